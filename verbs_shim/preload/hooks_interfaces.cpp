// The list of network interfaces, with the NICs' addresses behind the kernel's: a NIC that has addresses of
// its own has no interface in the kernel, and applications look here for what they may bind to.
//
// The daemon writes the addresses into the view, a line each: "INTERFACE ADDRESS PREFIX_LENGTH".
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "verbs_shim/preload/environment.h"
#include "verbs_shim/preload/real.h"
#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {
namespace {

constexpr std::size_t kMaxFileBytes = 65536;
constexpr std::size_t kMaxEntries = 512;
constexpr std::uint64_t kMagic = 0x726F63692D696661;

struct Entry {
  ifaddrs node;  // first: an application holds this
  std::uint64_t magic;
  sockaddr_storage address, netmask;
  char name[IF_NAMESIZE];
};

constinit Real<int(ifaddrs**)> real_getifaddrs{"getifaddrs"};
constinit Real<void(ifaddrs*)> real_freeifaddrs{"freeifaddrs"};

bool is_ours(const ifaddrs& node) {
  // The C library's nodes are longer than this, too: their addresses follow.
  const auto& entry = reinterpret_cast<const Entry&>(node);
  return entry.magic == kMagic && node.ifa_name == entry.name;
}

// The whole file, ended by a zero; null where there is none. The caller frees it.
char* read_addresses() {
  const Environment& env = environment();
  if (!env.active || env.view_length == 0) return nullptr;
  char path[sizeof env.view + sizeof "/addresses"];
  std::memcpy(path, env.view, env.view_length);
  std::memcpy(path + env.view_length, "/addresses", sizeof "/addresses");
  const long fd = system_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return nullptr;
  auto* const text = static_cast<char*>(std::malloc(kMaxFileBytes));
  std::size_t length = 0;
  while (text != nullptr && length < kMaxFileBytes - 1) {
    const long count = system_call_restarted(SYS_read, fd, text + length, kMaxFileBytes - 1 - length);
    if (count <= 0) break;
    length += static_cast<std::size_t>(count);
  }
  close_quietly(static_cast<int>(fd));
  if (text != nullptr) text[length] = '\0';
  return text;
}

void fill_mask(void* to, std::size_t bytes, unsigned prefix_length) {
  auto* const mask = static_cast<std::uint8_t*>(to);
  for (unsigned i = 0; i < bytes; ++i) {
    const unsigned bits = prefix_length > 8 * i ? prefix_length - 8 * i : 0;
    mask[i] = bits >= 8 ? 0xFF : static_cast<std::uint8_t>(0xFF00 >> bits);
  }
}

bool parse(char* line, Entry& entry) {
  char* rest = nullptr;
  const char* const name = strtok_r(line, " ", &rest);
  const char* const address = strtok_r(nullptr, " ", &rest);
  const char* const length = strtok_r(nullptr, " ", &rest);
  if (length == nullptr || std::strlen(name) >= sizeof entry.name) return false;
  std::strcpy(entry.name, name);
  const auto prefix_length = static_cast<unsigned>(std::strtoul(length, nullptr, 10));
  auto& in = reinterpret_cast<sockaddr_in&>(entry.address);
  auto& in6 = reinterpret_cast<sockaddr_in6&>(entry.address);
  if (inet_pton(AF_INET, address, &in.sin_addr) == 1) {
    entry.address.ss_family = entry.netmask.ss_family = AF_INET;
    fill_mask(&reinterpret_cast<sockaddr_in&>(entry.netmask).sin_addr, 4, prefix_length);
  } else if (inet_pton(AF_INET6, address, &in6.sin6_addr) == 1) {
    entry.address.ss_family = entry.netmask.ss_family = AF_INET6;
    fill_mask(&reinterpret_cast<sockaddr_in6&>(entry.netmask).sin6_addr, 16, prefix_length);
  } else {
    return false;
  }
  entry.magic = kMagic;
  entry.node.ifa_name = entry.name;
  entry.node.ifa_flags = IFF_UP | IFF_RUNNING | IFF_MULTICAST;
  entry.node.ifa_addr = reinterpret_cast<sockaddr*>(&entry.address);
  entry.node.ifa_netmask = reinterpret_cast<sockaddr*>(&entry.netmask);
  return true;
}

bool is_same(const sockaddr& one, const sockaddr& other) {
  if (one.sa_family != other.sa_family) return false;
  if (one.sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(one).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(other).sin_addr.s_addr;
  return one.sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(one).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(other).sin6_addr, 16) == 0;
}

bool is_listed(const ifaddrs* list, const sockaddr& address) {
  for (; list != nullptr; list = list->ifa_next)
    if (list->ifa_addr != nullptr && is_same(*list->ifa_addr, address)) return true;
  return false;
}

// Behind the last of `list`: what the kernel has not. One block, which its first entry begins.
void append_ours(ifaddrs** list) {
  char* const text = read_addresses();
  if (text == nullptr) return;
  auto* const entries = static_cast<Entry*>(std::calloc(kMaxEntries, sizeof(Entry)));
  std::size_t count = 0;
  char* rest = nullptr;
  for (char* line = strtok_r(text, "\n", &rest); line != nullptr && entries != nullptr && count < kMaxEntries;
       line = strtok_r(nullptr, "\n", &rest)) {
    Entry& entry = entries[count];
    if (parse(line, entry) && !is_listed(*list, *entry.node.ifa_addr)) {
      if (count > 0) entries[count - 1].node.ifa_next = &entry.node;
      ++count;
    } else {
      std::memset(static_cast<void*>(&entry), 0, sizeof entry);
    }
  }
  std::free(text);
  if (count == 0) {
    std::free(entries);
    return;
  }
  ifaddrs** end = list;
  while (*end != nullptr)
    end = &(*end)->ifa_next;
  *end = &entries->node;
}

ROCI_HOOK int getifaddrs(ifaddrs** list) noexcept {
  const int result = real_getifaddrs(list);
  if (result == 0) append_ours(list);
  return result;
}

ROCI_HOOK void freeifaddrs(ifaddrs* list) noexcept {
  for (ifaddrs** at = &list; *at != nullptr; at = &(*at)->ifa_next) {
    if (!is_ours(**at)) continue;
    std::free(*at);
    *at = nullptr;
    break;
  }
  if (list != nullptr) real_freeifaddrs(list);
}

}  // namespace
}  // namespace roci::shim
