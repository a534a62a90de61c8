// A forked child whose memory a test reaches: pages at an address that parent and child share by inheritance,
// each with the protection that the test wants in the child.
//
// The child only waits; it is killed and reaped at the end. One thread.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace roci::shim {

class ChildProcess {
 public:
  static constexpr std::size_t kPage = 4096;

  // One letter a page: 'w' writable, 'r' read-only, '-' not mapped. Byte i of the region is fill(i).
  explicit ChildProcess(const std::string& pages) : pages_(pages), bytes_(pages.size() * kPage) {
    void* const base = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) std::abort();
    base_ = static_cast<std::byte*>(base);
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (std::size_t i = 0; i < bytes_; ++i)
        base_[i] = fill(i);
      for (std::size_t i = 0; i < pages_.size(); ++i) {
        std::byte* const page = base_ + i * kPage;
        if (pages_[i] == 'r' && ::mprotect(page, kPage, PROT_READ) != 0) ::_exit(1);
        if (pages_[i] == '-' && ::munmap(page, kPage) != 0) ::_exit(1);
      }
      if (::write(ready[1], "r", 1) != 1) ::_exit(1);
      for (;;)
        ::pause();
    }
    char byte = 0;
    if (::read(ready[0], &byte, 1) != 1) std::abort();
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    end();
    ::munmap(base_, bytes_);
  }

  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::uint64_t address(std::size_t offset = 0) const {
    return reinterpret_cast<std::uintptr_t>(base_) + offset;
  }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] bool readable(std::size_t offset) const { return pages_[offset / kPage] != '-'; }
  [[nodiscard]] bool writable(std::size_t offset) const { return pages_[offset / kPage] == 'w'; }
  [[nodiscard]] static std::byte fill(std::size_t offset) {
    return static_cast<std::byte>(offset * 7 + offset / 251);
  }

 private:
  std::string pages_;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
  pid_t pid_ = 0;
};

}  // namespace roci::shim
