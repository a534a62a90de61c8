// The invariant CRC, incremental over scattered pieces [IBTA CA17-22, 7.8.1].
//
// CRC-32 over 8 bytes of ones, then everything from the IP header (or GRH) to the pad, with ones in the
// fields that routers change. Native InfiniBand has the LRH, its virtual lane as ones, in place of the 8
// bytes. Not here: where the ICRC of a packet stands (roce_view.h, packet.h). Plain value, no thread rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

class Icrc {
 public:
  static constexpr std::size_t kSize = 4;

  // Each starts from headers as they are on the wire, BTH included; what must be masked is masked in a copy.
  // More bytes behind the BTH are welcome: the fewer pieces, the faster. At most kMaxHeaderBytes are taken.
  static constexpr std::size_t kMaxHeaderBytes = 256;
  [[nodiscard]] static Icrc over_ipv4(std::span<const std::byte> ipv4_udp_bth);    // >= 40 bytes
  [[nodiscard]] static Icrc over_ipv6(std::span<const std::byte> ipv6_udp_bth);    // >= 60 bytes
  [[nodiscard]] static Icrc over_grh(std::span<const std::byte> grh_bth);          // RoCE v1, >= 52 bytes
  [[nodiscard]] static Icrc over_lrh(std::span<const std::byte> lrh_bth);          // InfiniBand, >= 20 bytes
  [[nodiscard]] static Icrc over_lrh_grh(std::span<const std::byte> lrh_grh_bth);  // InfiniBand, >= 60 bytes

  // Continues with the next bytes in wire order: extension headers, payload, pad.
  Icrc& update(std::span<const std::byte> piece);

  // As a number; on the wire its least significant byte comes first.
  [[nodiscard]] std::uint32_t value() const { return crc_; }
  void store(std::span<std::byte, kSize> out) const;
  [[nodiscard]] static std::uint32_t load(std::span<const std::byte, kSize> in);

 private:
  explicit Icrc(std::uint32_t crc) : crc_(crc) {}

  std::uint32_t crc_;
};

}  // namespace roci::proto
