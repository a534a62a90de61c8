// roci address: give a NIC an address while it runs, or take one away.
#include <memory>
#include <string>

#include "tools/roci/private_daemon.h"
#include "tools/roci/subcommand.h"

namespace roci::tools {
namespace {

struct Options {
  std::string socket_path, nic, address;
};

int change(const std::string& action, const Options& options) {
  auto client = DaemonClient::connect(locate_daemon(options.socket_path).socket_path);
  if (!client) return complain("address", client.error().empty() ? "no daemon is running" : client.error());
  const auto answer = client->request(
      {{"op", "address"}, {"action", action}, {"nic", options.nic}, {"address", options.address}});
  return answer ? 0 : complain("address", answer.error());
}

void add_action(CLI::App& command, const std::string& action, const std::string& what, int& exit_status) {
  CLI::App* const verb = command.add_subcommand(action, what);
  auto options = std::make_shared<Options>();
  verb->add_option("NIC", options->nic, "as `roci show nic` names it")->required();
  verb->add_option("ADDRESS/PREFIX", options->address, "IPv4 or IPv6")->required();
  verb->add_option("--socket", options->socket_path, "the daemon that listens here")->type_name("PATH");
  verb->footer("Example: roci address " + action + " rxe0 10.0.0.5/24");
  verb->callback([options, action, &exit_status] { exit_status = change(action, *options); });
}

}  // namespace

void add_address(CLI::App& root, int& exit_status) {
  CLI::App* const command = root.add_subcommand("address", "Change the addresses of a NIC");
  command->require_subcommand(1);
  add_action(*command, "add", "Give it one more", exit_status);
  add_action(*command, "del", "Take one away", exit_status);
  command->footer(
      "The first free place of the GID table takes a new address, and one that is taken away leaves its "
      "place "
      "free; applications are told (IBV_EVENT_GID_CHANGE). What was connected from an address that is gone "
      "sends and hears nothing any more. Where a NIC has the addresses of a kernel's interface it follows "
      "them by itself.\n\nExample: roci address add rxe0 10.0.0.5/24");
}

}  // namespace roci::tools
