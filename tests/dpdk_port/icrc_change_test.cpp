// The ICRC, moved by a word's change and traced back to it: against ICRCs computed in full.
#include "dpdk_port/icrc_change.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "proto/bytes.h"
#include "proto/icrc.h"
#include "proto/ipv4.h"

using namespace roci;
using namespace roci::dpdk_port;

namespace {

// IPv4, UDP, BTH and a payload of random bytes, without the ICRC.
std::vector<std::byte> packet(std::size_t bytes, Ipv4Identity identity, std::mt19937& random) {
  std::vector<std::byte> made(bytes);
  for (auto& byte : made)
    byte = static_cast<std::byte>(random());
  proto::Ipv4Header ip;
  ip.total_length = static_cast<std::uint16_t>(bytes + 4);
  ip.identification = identity.identification;
  ip.dont_fragment = identity.dont_fragment;
  ip.source = 0x0A000001;
  ip.destination = 0x0A000002;
  ip.emit(std::span(made).first<20>());
  return made;
}

void set_identity(std::vector<std::byte>& packet, Ipv4Identity identity) {
  proto::store_be16(packet.data() + 4, identity.identification);
  proto::store_be16(packet.data() + 6, identity.dont_fragment ? 0x4000 : 0);
}

std::uint32_t icrc_of(std::span<const std::byte> packet) {
  const auto headers = packet.first(std::min(packet.size(), proto::Icrc::kMaxHeaderBytes));
  return proto::Icrc::over_ipv4(headers).update(packet.subspan(headers.size())).value();
}

constexpr std::size_t kLengths[] = {40, 41, 44, 255, 256, 257, 300, 1068, 4140, 9212};

}  // namespace

TEST_CASE("every word of a packet changes the ICRC as said, and the change tells the word") {
  std::mt19937 random(1);
  for (const std::size_t bytes : kLengths) {
    auto made = packet(bytes, {}, random);
    const std::uint32_t before = icrc_of(made);
    for (const std::size_t at :
         {std::size_t{4}, std::size_t{12}, std::size_t{16}, std::size_t{20}, bytes - 4}) {
      const auto change = static_cast<std::uint32_t>(random());
      auto other = made;
      for (std::size_t i = 0; i < 4; ++i)
        other[at + i] ^= static_cast<std::byte>(change >> (8 * i));
      CAPTURE(bytes, at, change);
      CHECK(icrc_of(other) == (before ^ icrc_change(change, bytes - at)));
      CHECK(word_change(icrc_of(other) ^ before, bytes - at) == change);
    }
  }
}

TEST_CASE("each of the 2^17 identities is found, from any that is assumed") {
  std::mt19937 random(2);
  for (const std::size_t bytes : {std::size_t{40}, std::size_t{1068}}) {
    auto made = packet(bytes, {}, random);
    const Ipv4Identity assumed{static_cast<std::uint16_t>(random()), random() % 2 == 0};
    set_identity(made, assumed);
    const std::uint32_t computed = icrc_of(made);
    std::size_t found = 0;
    for (std::uint32_t each = 0; each < 1U << 17; ++each) {
      const Ipv4Identity actual{static_cast<std::uint16_t>(each), (each >> 16) != 0};
      set_identity(made, actual);
      const std::uint32_t received = icrc_of(made);
      found += solve_identity(received, computed, assumed, bytes) == actual &&
                       icrc_with(computed, assumed, actual, bytes) == received
                   ? 1U
                   : 0U;
    }
    CHECK(found == 1U << 17);
  }
}

TEST_CASE("of damaged packets, one in 2^15 passes for one of another identity") {
  std::mt19937 random(3);
  constexpr std::uint32_t kTries = 1U << 20;
  constexpr std::size_t kBytes = 300;
  auto made = packet(kBytes, {}, random);
  const std::uint32_t sealed = icrc_of(made);
  std::uint32_t accepted = 0;
  for (std::uint32_t i = 0; i < kTries; ++i) {
    const std::size_t at = 40 + random() % (kBytes - 48);
    std::array<std::byte, 8> saved;
    std::copy_n(made.begin() + static_cast<std::ptrdiff_t>(at), 8, saved.begin());
    for (std::size_t j = 0; j < 8; ++j)
      made[at + j] ^= static_cast<std::byte>(random());
    accepted += solve_identity(sealed, icrc_of(made), {}, kBytes) ? 1U : 0U;
    std::copy(saved.begin(), saved.end(), made.begin() + static_cast<std::ptrdiff_t>(at));
  }
  CHECK(accepted > 10);  // 32 are expected, with a standard deviation of less than 6
  CHECK(accepted < 60);
}
