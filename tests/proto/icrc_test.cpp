#include "tests/proto/support.h"

#include "proto/icrc.h"

#include <catch2/catch.hpp>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

// The sample packet of the standard [IBTA Figure 57, Table 29], variant fields already ones.
const char* const kSample =
    "f012375c 000e17d2 0a202487 ff87b1b3 000dec2a 01710a1c 015d4002 38f27a05 0000000e"
    "bb884d85 fd5cfba4 728bc069 0ed40000";

}  // namespace

TEST_CASE("ICRC of the standard's sample packet [IBTA 7.8.1, Table 29]") {
  const Bytes sample = hex(kSample);
  REQUIRE(sample.size() == 52);
  const Icrc icrc = Icrc::over_lrh(sample);
  CHECK(icrc.value() == 0x5AB72596);
  Bytes stored(Icrc::kSize);
  icrc.store(std::span<std::byte, Icrc::kSize>{stored.data(), Icrc::kSize});
  CHECK(stored == hex("96 25 b7 5a"));

  // The same packet as it was on its lane.
  Bytes frame = sample;
  frame[0] = std::byte{0x70};
  frame[12] = std::byte{0x00};
  frame.insert(frame.end(), stored.begin(), stored.end());
  const auto packet = parse(frame, LinkType::kInfiniBand);
  REQUIRE(packet);
  CHECK(packet->bth.opcode == Opcode::kRcWriteOnly);
  CHECK(packet->reth->dma_length_bytes == 14);
  CHECK(packet->payload.size() == 14);
  CHECK(icrc_matches(*packet));
  CHECK(frame_of(*packet) == frame);
}

TEST_CASE("an ICRC is the same over any pieces") {
  Dice dice{3};
  const Bytes bytes = dice.bytes(600);
  const std::span<const std::byte> all{bytes};
  const std::uint32_t whole = Icrc::over_ipv4(all.first(256)).update(all.subspan(256)).value();
  for (int round = 0; round < 500; ++round) {
    std::size_t at = 40 + dice.below(200);
    Icrc icrc = Icrc::over_ipv4(all.first(at));
    while (at < all.size()) {
      const std::size_t piece = std::min(all.size() - at, static_cast<std::size_t>(dice.below(70)));
      icrc.update(all.subspan(at, piece));
      at += piece;
    }
    REQUIRE(icrc.value() == whole);
  }
}

// Flip every bit of every header: exactly the variant fields must not count. [IBTA CA17-22]
TEST_CASE("what routers may change is not in the ICRC, all else is") {
  struct Case {
    Shape shape;
    std::vector<std::pair<std::size_t, std::size_t>> variant_bits;  // [from, to) from where the ICRC starts
  };
  const std::vector<Case> cases = {
      {Shape::kIpv4, {{8, 16}, {64, 72}, {80, 96}, {20 * 8 + 48, 20 * 8 + 64}, {28 * 8 + 32, 28 * 8 + 40}}},
      {Shape::kIpv6, {{4, 32}, {56, 64}, {40 * 8 + 48, 40 * 8 + 64}, {48 * 8 + 32, 48 * 8 + 40}}},
      {Shape::kGrh, {{4, 32}, {56, 64}, {40 * 8 + 32, 40 * 8 + 40}}},
      {Shape::kInfiniBand, {{0, 4}, {8 * 8 + 32, 8 * 8 + 40}}},
      {Shape::kInfiniBandGrh, {{0, 4}, {64 + 4, 64 + 32}, {64 + 56, 64 + 64}, {48 * 8 + 32, 48 * 8 + 40}}},
  };
  for (const Case& one : cases) {
    Dice dice{4};
    const Bytes payload = dice.bytes(5);
    const Packet packet = random_packet(dice, Opcode::kRcWriteOnly, one.shape, payload);
    const PacketOffsets offsets = offsets_of(packet);
    const std::size_t begin = packet.lrh ? 0 : offsets.network;
    const Bytes frame = frame_of(packet);
    const auto crc = [&](std::span<const std::byte> bytes) {
      switch (one.shape) {
        case Shape::kIpv4:
          return Icrc::over_ipv4(bytes).value();
        case Shape::kIpv6:
          return Icrc::over_ipv6(bytes).value();
        case Shape::kGrh:
          return Icrc::over_grh(bytes).value();
        case Shape::kInfiniBand:
          return Icrc::over_lrh(bytes).value();
        case Shape::kInfiniBandGrh:
          return Icrc::over_lrh_grh(bytes).value();
      }
      return 0U;
    };
    Bytes covered(frame.begin() + static_cast<std::ptrdiff_t>(begin),
                  frame.begin() + static_cast<std::ptrdiff_t>(offsets.icrc));
    REQUIRE(crc(covered) == packet.icrc);
    for (std::size_t bit = 0; bit < covered.size() * 8; ++bit) {
      const auto mask = static_cast<std::byte>(0x80U >> (bit % 8));
      covered[bit / 8] ^= mask;
      bool is_variant = false;
      for (const auto& [from, to] : one.variant_bits)
        is_variant = is_variant || (bit >= from && bit < to);
      INFO("shape " << static_cast<int>(one.shape) << " bit " << bit);
      CHECK((crc(covered) == packet.icrc) == is_variant);
      covered[bit / 8] ^= mask;
    }
  }
}
