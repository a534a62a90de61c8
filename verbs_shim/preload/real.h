// The C library's own functions behind our hooks, found on first use.
//
// A hook may run before any constructor of ours, in a signal handler and in a child of vfork, so there is no
// set-up step: the first call looks the symbol up (RTLD_NEXT, so that another preloaded library behind us is
// still called), later calls cost one load. Any thread.
#pragma once

#include <dlfcn.h>

#include <atomic>

// A function that applications find instead of the C library's. Everything else of this library is hidden.
#define ROCI_HOOK extern "C" [[gnu::visibility("default")]]

namespace roci::shim {

template <typename Function>
class Real {
 public:
  explicit constexpr Real(const char* name) : name_(name) {}

  // Null where this C library has no such function.
  [[nodiscard]] Function* get() {
    Function* function = function_.load(std::memory_order_relaxed);
    if (function == nullptr) [[unlikely]] {
      function = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name_));
      function_.store(function, std::memory_order_relaxed);
    }
    return function;
  }
  template <typename... Arguments>
  auto operator()(Arguments... arguments) {
    return get()(arguments...);
  }

 private:
  const char* name_;
  std::atomic<Function*> function_{nullptr};
};

}  // namespace roci::shim
