#include "tests/interop/agreement.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <sstream>

namespace roci::interop {

Line::Line(int fd) : fd_(fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Line::~Line() { close(fd_); }

void Line::put(const std::string& text) {
  const std::string line = text + "\n";
  if (send(fd_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
    throw std::runtime_error("the other side hung up");
  }
}

std::optional<std::string> Line::get(int limit_ms) {
  for (;;) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, limit_ms) == 0) throw std::runtime_error("the other side says nothing");
    char bytes[4096];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count <= 0) return std::nullopt;
    buffer_.append(bytes, static_cast<std::size_t>(count));
  }
}

std::string Line::must_get(int limit_ms) {
  std::optional<std::string> line = get(limit_ms);
  if (!line) throw std::runtime_error("the other side hung up");
  return *line;
}

Cell parse_cell(const std::string& text) {
  Cell cell;
  cell.text = text;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t at = word.find('=');
    const std::string key = word.substr(0, at), value = at == std::string::npos ? "" : word.substr(at + 1);
    if (key == "service")
      cell.service = value;
    else if (key == "op")
      cell.operation = value;
    else if (key == "ip")
      cell.ip = std::stoi(value);
    else if (key == "mtu")
      cell.mtu_bytes = static_cast<std::uint32_t>(std::stoul(value));
    else if (key == "requester")
      cell.driver_requests = value == "driver";
    else if (key == "faults")
      cell.is_clean = value == "clean";
    else if (key == "seed")
      cell.seed = static_cast<std::uint32_t>(std::stoul(value));
    else
      throw std::runtime_error("a cell has no " + key);
  }
  return cell;
}

std::uint32_t gid_index(ibv_context* device, int ip) {
  static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, kZero[16] = {};
  ibv_gid gid{};
  for (int index = 0; ibv_query_gid(device, 1, index, &gid) == 0; ++index) {
    const bool is_ipv4 = std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0;
    const bool is_link_local = gid.raw[0] == 0xFE && gid.raw[1] == 0x80;
    const bool is_ipv6 = !is_ipv4 && !is_link_local && std::memcmp(gid.raw, kZero, sizeof kZero) != 0;
    if (ip == 4 ? is_ipv4 : is_ipv6) return static_cast<std::uint32_t>(index);
  }
  throw Finding("the device has no IPv" + std::to_string(ip) + " address");
}

std::string hex_of(const ibv_gid& gid) {
  std::string text;
  char pair[3];
  for (const std::uint8_t byte : gid.raw) {
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

ibv_gid gid_of(const std::string& hex) {
  ibv_gid gid{};
  for (std::size_t i = 0; i < sizeof gid.raw && 2 * i + 1 < hex.size(); ++i) {
    gid.raw[i] = static_cast<std::uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return gid;
}

}  // namespace roci::interop
