#include "verbs_shim/preload/environment.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "verbs_shim/protocol.h"

namespace roci::shim {
namespace {

Environment the_environment;
std::atomic<bool> is_read{false};

}  // namespace

const Environment& environment() {
  if (is_read.load(std::memory_order_acquire)) [[likely]]
    return the_environment;
  // Two threads that come first at once both write the same bytes; a lock here could deadlock a signal
  // handler.
  const char* socket_path = std::getenv(kSocketVariable);
  const char* view = std::getenv(kViewVariable);
  if (socket_path != nullptr && *socket_path != 0 &&
      std::strlen(socket_path) < sizeof(the_environment.socket_path)) {
    std::memcpy(the_environment.socket_path, socket_path, std::strlen(socket_path) + 1);
    the_environment.active = true;
  }
  if (the_environment.active && view != nullptr && *view == '/') {
    std::size_t length = std::strlen(view);
    while (length > 1 && view[length - 1] == '/')
      --length;
    if (length < sizeof(the_environment.view)) {
      std::memcpy(the_environment.view, view, length);
      the_environment.view[length] = 0;
      the_environment.view_length = length;
    }
  }
  is_read.store(true, std::memory_order_release);
  return the_environment;
}

}  // namespace roci::shim
