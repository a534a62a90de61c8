// What `roci run` left in the environment, copied at first use (applications rewrite their environment).
//
// Without ROCI_SOCKET every hook is a plain pass-through. Any thread, signal handlers too.
#pragma once

#include <cstddef>

namespace roci::shim {

struct Environment {
  bool active = false;
  char socket_path[108] = {};  // the size of sun_path
  char view[512] = {};         // without a trailing slash; empty: paths are not redirected
  std::size_t view_length = 0;
};

[[nodiscard]] const Environment& environment();

}  // namespace roci::shim
