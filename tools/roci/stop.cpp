// roci stop: end the daemon.
#include <poll.h>

#include <iostream>
#include <memory>

#include "tools/roci/private_daemon.h"
#include "tools/roci/subcommand.h"

namespace roci::tools {
namespace {

constexpr int kEndMs = 10'000;

int stop(const std::string& socket_path) {
  const DaemonLocation location = locate_daemon(socket_path);
  auto client = DaemonClient::connect(location.socket_path);
  if (!client) {
    if (!client.error().empty()) return complain("stop", client.error());
    std::cout << "no daemon is running\n";
    return 0;
  }
  const auto answer = client->request({{"op", "shutdown"}});
  pollfd ended{client->fd(), 0, 0};  // hang-up is always reported; one that is ending already gives no answer
  if (::poll(&ended, 1, answer ? kEndMs : 0) != 1)
    return complain("stop", answer ? "the daemon still runs after 10 s" : answer.error());
  std::cout << "the daemon has ended\n";
  return 0;
}

}  // namespace

void add_stop(CLI::App& root, int& exit_status) {
  CLI::App* const command = root.add_subcommand("stop", "End the daemon");
  auto socket_path = std::make_shared<std::string>();
  command->add_option("--socket", *socket_path, "the daemon that listens here")->type_name("PATH");
  command->footer(
      "Applications that still use it get errors. Exit status 0 also if none is running.\n\nExample: roci "
      "stop");
  command->callback([socket_path, &exit_status] { exit_status = stop(*socket_path); });
}

}  // namespace roci::tools
