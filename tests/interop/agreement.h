// What is common to both sides of the interoperability tests: how they agree over TCP, and what a cell is.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace roci::interop {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kGrhBytes = 40;
constexpr milliseconds kCompletionLimit{30000};
constexpr int kAgreeMs = 60000;
constexpr int kCellMs = 180000;  // a cell of connection management repeats its messages at leisure

// What makes a cell fail; anything else ends the program.
struct Finding : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool condition, const std::string& text) {
  if (!condition) throw Finding(text);
}

// Lines of text from one side to the other, over a connected TCP socket that it owns.
class Line {
 public:
  explicit Line(int fd);
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line();

  // Throw std::runtime_error when the other side has hung up or says nothing.
  void put(const std::string& text);
  std::string must_get(int limit_ms = kAgreeMs);
  // Nothing: it hung up.
  std::optional<std::string> get(int limit_ms);

 private:
  int fd_;
  std::string buffer_;
};

// ---- a cell ----------------------------------------------------------------------------------------------

struct Cell {
  std::string service, operation;  // rc, uc, ud: see verbs_side.cpp; cm: see cm_side.cpp
  int ip = 4;
  std::uint32_t mtu_bytes = 1024;
  bool driver_requests = true;
  bool is_clean = true;  // the wire between them does no harm
  std::uint32_t seed = 0;
  std::string text;

  [[nodiscard]] bool is_lossy() const { return service != "rc" && !is_clean; }
};
Cell parse_cell(const std::string& text);

// The index of the device's first GID that is an IPv4 address, or an IPv6 one that is not link-local. Throws
// Finding where there is none.
std::uint32_t gid_index(ibv_context* device, int ip);

std::string hex_of(const ibv_gid& gid);
ibv_gid gid_of(const std::string& hex);

}  // namespace roci::interop
