// What parsing, emitting and checking one packet costs. Not a test: prints nanoseconds, run by hand.
#include "tests/proto/support.h"

#include "proto/header_template.h"
#include "proto/icrc.h"
#include "proto/roce_view.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

volatile std::uint64_t sink = 0;  // keeps results alive

// The best of several rounds: other work on the machine only adds.
template <class Work>
void report(const char* what, double bytes, Work work) {
  constexpr int rounds = 15;
  constexpr int turns = 20000;
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t sum = 0;
    for (int turn = 0; turn < turns; ++turn)
      sum += work(turn);
    const auto end = std::chrono::steady_clock::now();
    sink = sink + sum;
    best = std::min(best, std::chrono::duration<double, std::nano>(end - begin).count() / turns);
  }
  std::printf("%-44s %8.1f ns", what, best);
  if (bytes > 0) std::printf("  %6.1f Gb/s", bytes * 8 / best);
  std::printf("\n");
}

Bytes frame_with(IpVersion version, std::span<const std::byte> payload) {
  Packet packet = make_packet(Opcode::kRcWriteOnly, version);
  if (packet.ipv6) packet.ipv6->source.bytes[0] = packet.ipv6->destination.bytes[0] = 0xFD;
  packet.payload = payload;
  complete(packet);
  return frame_of(packet);
}

}  // namespace

int main() {
  Dice dice{1};
  const Bytes payload = dice.bytes(4096);
  for (const IpVersion version : {IpVersion::kIpv4, IpVersion::kIpv6}) {
    const Bytes small = frame_with(version, std::span{payload}.first(64));
    const Bytes large = frame_with(version, payload);
    std::printf("IPv%d\n", version == IpVersion::kIpv4 ? 4 : 6);
    // A ring of copies, as frames come from different places.
    std::vector<Bytes> ring(64, small);
    report("  parse_roce, 64-byte WRITE", 0, [&](int turn) {
      RoceView view;
      const ParseError error = parse_roce(ring[static_cast<std::size_t>(turn) % ring.size()], view);
      return view.bth.psn.value() + view.payload_bytes + static_cast<std::uint64_t>(error);
    });
    RoceView view;
    (void)parse_roce(small, view);
    report("  icrc_matches, 64-byte WRITE", 64, [&](int) { return std::uint64_t{icrc_matches(view)}; });
    RoceView large_view;
    (void)parse_roce(large, large_view);
    report("  icrc_matches, 4096-byte WRITE", 4096,
           [&](int) { return std::uint64_t{icrc_matches(large_view)}; });

    Path path;
    path.source = path.destination = version == IpVersion::kIpv4 ? Gid::from_ipv4(0x0A000001) : Gid{{0xFD}};
    const HeaderTemplate headers{path, Qpn{0x11}};
    Bytes out(HeaderTemplate::kMaxSize + Reth::kSize);
    report("  template emit, RETH and start of the ICRC", 0, [&](int turn) {
      HeaderTemplate::PerPacket fields;
      fields.opcode = Opcode::kRcWriteOnly;
      fields.psn = Psn{static_cast<std::uint32_t>(turn)};
      fields.bytes_behind_bth = Reth::kSize + 64;
      const std::size_t size = headers.emit(out, fields);
      Reth{static_cast<std::uint64_t>(turn), Rkey{1}, 64}.emit(
          std::span{out}.subspan(size).first<Reth::kSize>());
      return headers.icrc_over(std::span{out}.first(size + Reth::kSize)).value();
    });
    report("  dissect, 64-byte WRITE", 0,
           [&](int) { return dissect(small, LinkType::kEthernet).packet.bth.psn.value(); });
  }
  return 0;
}
