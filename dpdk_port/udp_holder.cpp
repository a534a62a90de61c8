#include "dpdk_port/udp_holder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace roci::dpdk_port {
namespace {

namespace fs = std::filesystem;

struct SocketLine {
  std::string inode;
  unsigned long uid = 0;
};

// An address as the kernel's tables have it: words in hexadecimal, in the host's order.
std::string table_address(const proto::Gid& gid, std::size_t first_byte) {
  std::string text;
  for (std::size_t at = first_byte; at < gid.bytes.size(); at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, gid.bytes.data() + at, sizeof word);
    text += fmt::format("{:08X}", word);
  }
  return text;
}

// Sockets bound to the port with one of the addresses.
void read_table(const char* path, const std::vector<std::string>& addresses, std::uint16_t port,
                std::vector<SocketLine>& found) {
  std::ifstream table(path);
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, timeout;
    SocketLine socket;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> socket.uid >> timeout >>
        socket.inode;
    const bool is_it = std::any_of(addresses.begin(), addresses.end(), [&](const std::string& address) {
      return local == fmt::format("{}:{:04X}", address, port);
    });
    if (words && is_it) found.push_back(std::move(socket));
  }
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::string udp_port_holder(const proto::Gid& address, std::uint16_t port) {
  std::vector<SocketLine> sockets;
  const std::string any6(32, '0');  // takes the port of IPv4 addresses, too, unless it is told not to
  if (address.is_ipv4()) {
    read_table("/proc/self/net/udp", {table_address(address, 12), std::string(8, '0')}, port, sockets);
    read_table("/proc/self/net/udp6", {any6, table_address(address, 0)}, port, sockets);
  } else {
    read_table("/proc/self/net/udp6", {table_address(address, 0), any6}, port, sockets);
  }
  if (sockets.empty()) return "a socket that /proc/net does not show";
  const std::string wanted = fmt::format("socket:[{}]", sockets.front().inode);
  bool saw_all = true;
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename();
    if (pid.find_first_not_of("0123456789") != pid.npos) continue;
    std::error_code unreadable;
    for (fs::directory_iterator fd(process->path() / "fd", unreadable), last; !unreadable && fd != last;
         fd.increment(unreadable)) {
      std::error_code gone;
      if (fs::read_symlink(fd->path(), gone) == wanted)
        return fmt::format("process {} ({})", pid, first_line(process->path() / "comm"));
    }
    saw_all = saw_all && !unreadable;
  }
  return saw_all ? "the kernel itself or a process outside of this container (Soft-RoCE takes it)"
                 : fmt::format("a process of user {} that we may not look at, or by the kernel (Soft-RoCE)",
                               sockets.front().uid);
}

}  // namespace roci::dpdk_port
