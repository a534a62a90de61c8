// The pcapng file format, as far as a capture of NICs needs it: blocks are appended to a byte buffer.
//
// Our own and not rte_pcapng, which describes interfaces by ethdev (NICs on the fabric have none), takes
// mbufs (which a slow writer must not hold) and, in 22.11, writes no comment to a packet. Format:
// draft-ietf-opsawg-pcapng. Host byte order, as the section header says. Nanosecond time stamps. Plain
// values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace roci::dpdk_port::pcapng {

enum class Direction : std::uint32_t { kUnknown = 0, kInbound = 1, kOutbound = 2 };  // of epb_flags

struct Packet {
  std::uint32_t interface = 0;  // in the order of append_interface()
  std::uint64_t time_ns = 0;    // since 1970
  std::uint32_t original_length_bytes = 0;
  std::span<const std::byte> bytes;  // captured
  Direction direction = Direction::kUnknown;
  std::string_view comment;  // none if empty
};

struct Statistics {
  std::uint32_t interface = 0;
  std::uint64_t start_ns = 0, end_ns = 0;
  std::uint64_t received = 0;  // packets seen
  std::uint64_t dropped = 0;   // of them, not in the file for want of room
};

// `out` grows; nothing is ever removed from it here.
void append_section(std::vector<std::byte>& out, std::string_view application);
void append_interface(std::vector<std::byte>& out, std::string_view name, std::string_view description,
                      std::uint32_t snap_length_bytes);
void append_packet(std::vector<std::byte>& out, const Packet& packet);
void append_statistics(std::vector<std::byte>& out, const Statistics& statistics);

}  // namespace roci::dpdk_port::pcapng
