// roci run: become the application, with the shim in it and a daemon behind it.
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "tools/roci/private_daemon.h"
#include "tools/roci/process.h"
#include "tools/roci/subcommand.h"
#include "verbs_shim/protocol.h"

namespace roci::tools {
namespace {

struct RunOptions {
  std::vector<std::string> nics;
  std::string socket_path;
};

constexpr int kLifelineFdStart = 960;

// The lifeline is inherited by the application and whatever it starts, so the daemon stays as long as any of
// them lives, however late they open a device. Out of the way of the numbers that programs count on.
void pass_on(DaemonClient lifeline) {
  const int fd = lifeline.release();
  int high = ::fcntl(fd, F_DUPFD, kLifelineFdStart);
  if (high < 0) high = ::fcntl(fd, F_DUPFD, 0);
  if (high >= 0) ::close(fd);
}

int run(const RunOptions& options) {
  const auto& program = program_after_dashes();
  if (program.empty())
    return complain("run", "no program is named; put it behind --, as in: roci run -- ibv_devices",
                    kWrongUse);

  const auto installation = find_installation();
  if (!installation) return complain("run", installation.error());
  if (installation->shim.find_first_of(" \t:") != std::string::npos)
    return complain("run", "LD_PRELOAD cannot name a path with blanks or colons: " + installation->shim);

  const DaemonLocation location = locate_daemon(options.socket_path);
  auto lifeline = hold_daemon(location);
  if (!lifeline) return complain("run", lifeline.error());
  std::string view;
  {
    auto admin = connect_to_daemon(location);
    if (!admin) return complain("run", admin.error());
    const auto answer = admin->request({{"op", "view"}, {"nics", options.nics}});
    if (!answer) return complain("run", answer.error());
    if (!answer->is_object() || !answer->contains("path") || !(*answer)["path"].is_string())
      return complain("run", "the daemon names no view");
    view = (*answer)["path"];
  }
  pass_on(std::move(*lifeline));

  Environment environment;
  const std::string theirs = environment.get("LD_PRELOAD");
  const bool is_nested = theirs.find(installation->shim) != std::string::npos;
  if (!is_nested)
    environment.set("LD_PRELOAD", theirs.empty() ? installation->shim : installation->shim + ":" + theirs);
  environment.set("SYSFS_PATH", view);
  environment.set(shim::kViewVariable, view);
  environment.set(shim::kSocketVariable, location.socket_path);
  // When the daemon has died, let libibverbs free what it had instead of failing each destroy call.
  environment.set_default("RDMAV_ALLOW_DISASSOC_DESTROY", "1");
  return become("run", program, environment);
}

}  // namespace

void add_run(CLI::App& root, int& exit_status) {
  CLI::App* const command = root.add_subcommand("run", "Run an RDMA application on software NICs");
  auto options = std::make_shared<RunOptions>();
  command
      ->add_option("--nic", options->nics,
                   "the application sees this NIC only (may be repeated; default: all)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--socket", options->socket_path, "use the daemon that listens here, and start none")
      ->type_name("PATH");
  set_usage(*command, "roci run [OPTIONS] -- PROGRAM [ARGUMENTS]...");
  command->footer(
      "The program becomes this process: signals, terminal and exit status are its own (127: not found, 126: "
      "cannot be\n"
      "started). Unless one runs, a private daemon is started, with rxe0 = 127.77.0.1/24 and rxe1 = "
      "127.77.0.2/24 on a virtual\n"
      "fabric; it ends 10 s after the last program that used it.\n\n"
      "Set for the program: LD_PRELOAD (ours first, then yours), SYSFS_PATH, ROCI_SOCKET, ROCI_VIEW, and, "
      "unless you set it,\n"
      "RDMAV_ALLOW_DISASSOC_DESTROY=1, so that it can clean up when the daemon has died.\n\n"
      "Example, in two terminals:\n"
      "  roci run --nic rxe0 -- ibv_rc_pingpong -c -d rxe0 -g 1\n"
      "  roci run --nic rxe1 -- ibv_rc_pingpong -c -d rxe1 -g 1 127.77.0.1");
  command->callback([options, &exit_status] { exit_status = run(*options); });
}

}  // namespace roci::tools
