// roci run: become the application, with the shim in it and a daemon behind it.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "tools/roci/private_daemon.h"
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

void set_default(const char* name, const char* value) { ::setenv(name, value, 0); }

// exec says "permission denied" for a name that is nowhere, if one of the folders searched may not be
// entered.
bool is_anywhere(const std::string& name) {
  if (name.find('/') != std::string::npos) return true;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access(((folder.empty() ? "." : folder) + "/" + name).c_str(), F_OK) == 0) return true;
  return false;
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

  std::string preload = installation->shim;
  if (const char* before = std::getenv("LD_PRELOAD"); before != nullptr && *before != 0) {
    const std::string theirs = before;
    preload = theirs.find(installation->shim) == std::string::npos ? preload + ":" + theirs : theirs;
  }
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  ::setenv("SYSFS_PATH", view.c_str(), 1);
  ::setenv(shim::kViewVariable, view.c_str(), 1);
  ::setenv(shim::kSocketVariable, location.socket_path.c_str(), 1);
  // When the daemon has died, let libibverbs free what it had instead of failing each destroy call.
  set_default("RDMAV_ALLOW_DISASSOC_DESTROY", "1");

  std::vector<char*> arguments;
  for (const std::string& word : program)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno == EACCES && !is_anywhere(program[0]) ? ENOENT : errno;
  return complain("run", program[0] + ": " + std::strerror(error), error == ENOENT ? 127 : 126);
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
