// The daemon that `roci` talks to: where its socket is, and the private one that is started when there is
// none.
//
// One private daemon per user, in $XDG_RUNTIME_DIR/rocinante or /tmp/rocinante-UID (mode 0700, ours):
// rocid.sock, rocid.log, and a lock file that serialises starts. It ends 10 s after its last client.
// ROCI_SOCKET or --socket name another daemon, which is used and never started. Single thread.
#pragma once

#include <string>

#include "tools/roci/daemon_client.h"

namespace roci::tools {

// Paths of the parts of this installation, found relative to this program: in a build folder or below any
// prefix.
struct Installation {
  std::string shim;    // libroci.so
  std::string daemon;  // rocid
};
[[nodiscard]] OrError<Installation> find_installation();

struct DaemonLocation {
  std::string socket_path;
  bool is_private = true;
};
// `socket_option`: the user's --socket, or empty.
[[nodiscard]] DaemonLocation locate_daemon(const std::string& socket_option);

// A connection to the daemon if one runs; the error says what to do.
[[nodiscard]] OrError<DaemonClient> connect_to_daemon(const DaemonLocation& location);

// A lifeline to the daemon, which is started if it is a private one and does not run. While the connection is
// open, that daemon stays.
[[nodiscard]] OrError<DaemonClient> hold_daemon(const DaemonLocation& location);

}  // namespace roci::tools
