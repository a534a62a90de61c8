#include "verbs_shim/server/process_probe.h"

#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "verbs_shim/server/unique_fd.h"

namespace roci::shim {
namespace {

struct Mapping {
  std::uint64_t begin = 0, end = 0;
  bool readable = false, writable = false;
};

// The start of a line of /proc/PID/maps: "55d0c0a00000-55d0c0a02000 r--p ...".
bool parse_mapping(std::string_view line, Mapping& out) {
  const char* const end = line.data() + line.size();
  const auto [dash, first_error] = std::from_chars(line.data(), end, out.begin, 16);
  if (first_error != std::errc{} || dash == end || *dash != '-') return false;
  const auto [space, second_error] = std::from_chars(dash + 1, end, out.end, 16);
  if (second_error != std::errc{} || end - space < 3) return false;
  out.readable = space[1] == 'r';
  out.writable = space[2] == 'w';
  return true;
}

// Walks the mappings upwards from `address` for as long as they join; the address where that ends.
class Coverage {
 public:
  Coverage(std::uint64_t address, std::uint64_t end, bool writable)
      : reached_(address), end_(end), writable_(writable) {}

  // False: no further line can change the verdict.
  bool take(const Mapping& mapping) {
    if (mapping.end <= reached_) return true;
    if (mapping.begin > reached_ || !mapping.readable || (writable_ && !mapping.writable)) return false;
    reached_ = mapping.end;
    return reached_ < end_;
  }
  [[nodiscard]] bool complete() const { return reached_ >= end_; }

 private:
  std::uint64_t reached_;
  std::uint64_t end_;
  bool writable_;
};

std::errc read_byte(pid_t pid, std::uint64_t address) {
  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), 1};
  return ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == 1 ? std::errc{} : static_cast<std::errc>(errno);
}

}  // namespace

std::errc probe_memory(pid_t pid, std::uint64_t address, std::uint64_t length_bytes, bool writable) {
  if (length_bytes == 0 || address + length_bytes < address) return std::errc::invalid_argument;
  if (const std::errc first = read_byte(pid, address); first != std::errc{}) return first;
  if (const std::errc last = read_byte(pid, address + length_bytes - 1); last != std::errc{}) return last;

  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/maps", static_cast<int>(pid));
  const UniqueFd maps(::open(path, O_RDONLY | O_CLOEXEC));
  if (!maps) return static_cast<std::errc>(errno == ENOENT ? ESRCH : errno);

  Coverage coverage(address, address + length_bytes, writable);
  std::array<char, 16384> buffer;  // far more than a line, whose path is at most PATH_MAX escaped
  std::size_t kept = 0;
  for (;;) {
    const ssize_t got = ::read(maps.get(), buffer.data() + kept, buffer.size() - kept);
    if (got <= 0) break;
    std::string_view text(buffer.data(), kept + static_cast<std::size_t>(got));
    for (std::size_t eol = text.find('\n'); eol != std::string_view::npos; eol = text.find('\n')) {
      Mapping mapping;
      if (parse_mapping(text.substr(0, eol), mapping) && !coverage.take(mapping))
        return coverage.complete() ? std::errc{} : std::errc::bad_address;
      text.remove_prefix(eol + 1);
    }
    kept = text.size();
    if (kept == buffer.size()) break;
    std::copy(text.begin(), text.end(), buffer.begin());
  }
  return coverage.complete() ? std::errc{} : std::errc::bad_address;
}

std::string process_name(pid_t pid) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/comm", static_cast<int>(pid));
  const UniqueFd comm(::open(path, O_RDONLY | O_CLOEXEC));
  char name[64];
  const ssize_t length = comm ? ::read(comm.get(), name, sizeof name) : 0;
  std::string text(name, length > 0 ? static_cast<std::size_t>(length) : 0);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return (text.empty() ? "?" : text) + "[" + std::to_string(pid) + "]";
}

}  // namespace roci::shim
