// Frames of the engine and datagrams of a socket, one made of the other: every header a socket does not give
// comes back, and the ICRC is right again.
#include "dpdk_port/udp_datagram.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include "emulator/engine.h"
#include "proto/bytes.h"
#include "proto/header_template.h"
#include "proto/roce_view.h"
#include "proto/text.h"

using namespace roci;
using namespace roci::dpdk_port;
using proto::Gid;

namespace {

Gid gid(const char* text) { return *proto::gid_from_text(text); }

struct Sent {
  const char* source = "10.0.0.1";
  const char* destination = "10.0.0.2";
  std::uint16_t port = 0xC123;
  std::uint8_t traffic_class = 0x2A;
  std::uint8_t hop_limit = 17;
  std::uint16_t id = 0;
  std::size_t payload = 64;
};

std::vector<std::byte> frame_of(const Sent& sent) {
  proto::Path path;
  path.source = gid(sent.source);
  path.destination = gid(sent.destination);
  path.source_mac = emulator::made_up_mac(path.source);
  path.destination_mac = emulator::made_up_mac(path.destination);
  path.udp_source_port = sent.port;
  path.traffic_class = sent.traffic_class;
  path.hop_limit = sent.hop_limit;
  const proto::HeaderTemplate headers(path, proto::Qpn{0x123});
  proto::HeaderTemplate::PerPacket packet;
  packet.ip_identification = sent.id;
  packet.bytes_behind_bth = static_cast<std::uint16_t>(sent.payload);
  std::vector<std::byte> frame(headers.size() + sent.payload + 4);
  headers.emit(frame, packet);
  for (std::size_t i = 0; i < sent.payload; ++i)
    frame[headers.size() + i] = static_cast<std::byte>(i * 7);
  headers.icrc_over(std::span(frame).first(headers.size()))
      .update(std::span(frame).subspan(headers.size(), sent.payload))
      .store(std::span(frame).last<4>());
  return frame;
}

IncomingDatagram arrival_of(const Sent& sent) {
  IncomingDatagram in;
  in.source = gid(sent.source);
  in.destination = gid(sent.destination);
  in.source_mac = emulator::made_up_mac(in.source);
  in.destination_mac = emulator::made_up_mac(in.destination);
  in.source_port = sent.port;
  in.traffic_class = sent.traffic_class;
  in.hop_limit = sent.hop_limit;
  return in;
}

// What is left of a frame behind a socket: the space of its headers holds anything.
std::vector<std::byte> without_headers(std::vector<std::byte> frame, bool is_ipv6) {
  std::fill_n(frame.begin(), headers_before_bth(is_ipv6), std::byte{0xA5});
  return frame;
}

bool is_intact(std::span<const std::byte> frame) {
  proto::RoceView view;
  return proto::parse_roce(frame, view) == proto::ParseError::kNone && proto::icrc_matches(view);
}

IcrcVerdict build(FrameBuilder& builder, const Sent& sent) {
  const auto frame = frame_of(sent);
  auto rebuilt = without_headers(frame, false);
  const auto verdict = builder.build(rebuilt, arrival_of(sent));
  CHECK(rebuilt == frame);
  return verdict;
}

}  // namespace

TEST_CASE("a frame is what it was, whatever its IP id") {
  FrameBuilder builder;
  for (const auto id : std::initializer_list<std::uint16_t>{0x0000, 0x0001, 0x8000, 0xFFFF, 0x1234}) {
    for (const std::size_t payload : {std::size_t{0}, std::size_t{4}, std::size_t{1024}, std::size_t{4096}})
      (void)build(builder, {.id = id, .payload = payload});
  }
}

TEST_CASE("IP ids that stay or count are expected") {
  for (const auto step : std::initializer_list<std::uint16_t>{0, 1}) {
    FrameBuilder builder;
    std::uint16_t id = 0xFFF0;
    CHECK(build(builder, {.id = id}) == IcrcVerdict::kSolved);
    for (int i = 0; i < 40; ++i) {  // and wraps around
      id = static_cast<std::uint16_t>(id + step);
      CHECK(build(builder, {.id = id}) == IcrcVerdict::kPredicted);
    }
    CHECK(build(builder, {.id = static_cast<std::uint16_t>(id + 100)}) == IcrcVerdict::kSolved);
  }
  FrameBuilder builder;
  // What a kernel's socket sends, and runs that it cuts.
  for (const auto id : std::initializer_list<std::uint16_t>{0, 0, 0, 1, 2, 3, 0, 1, 0, 0})
    CHECK(build(builder, {.id = id}) == IcrcVerdict::kPredicted);
}

TEST_CASE("a packet without DF is rebuilt without it") {
  auto frame = frame_of({.id = 7});
  frame[20] = std::byte{0};  // flags
  proto::Ipv4Header ip = proto::Ipv4Header::parse(std::span(frame).subspan(14).first<20>());
  ip.checksum = ip.checksum_of();
  ip.emit(std::span(frame).subspan(14).first<20>());
  proto::RoceView view;
  REQUIRE(proto::parse_roce(frame, view) == proto::ParseError::kNone);
  const std::uint32_t icrc = proto::icrc_of(view);
  for (std::size_t i = 0; i < 4; ++i)
    frame[frame.size() - 4 + i] = static_cast<std::byte>(icrc >> (8 * i));
  auto rebuilt = without_headers(frame, false);
  FrameBuilder builder;
  CHECK(builder.build(rebuilt, arrival_of({})) == IcrcVerdict::kSolved);
  CHECK(rebuilt == frame);
}

TEST_CASE("damaged, short and foreign datagrams make frames that the engine refuses") {
  FrameBuilder builder;
  const Sent sent;
  for (std::size_t bit = 0; bit < 8 * 80; bit += 5) {
    auto rebuilt = without_headers(frame_of(sent), false);
    const std::size_t at = headers_before_bth(false) + bit / 8;
    if (at == headers_before_bth(false) + 4) continue;  // of the BTH, which routers may change
    rebuilt[at] ^= static_cast<std::byte>(1U << (bit % 8));
    CAPTURE(bit);
    CHECK(builder.build(rebuilt, arrival_of(sent)) == IcrcVerdict::kUnsolved);
    CHECK_FALSE(is_intact(rebuilt));
  }
  for (std::size_t payload = 0; payload < 80; ++payload) {
    std::vector<std::byte> rebuilt(headers_before_bth(false) + payload);
    CHECK(builder.build(rebuilt, arrival_of(sent)) == IcrcVerdict::kUnsolved);
    CHECK_FALSE(is_intact(rebuilt));
  }
  CHECK(build(builder, {.id = 0}) == IcrcVerdict::kPredicted);  // nothing was learnt of them
}

TEST_CASE("IPv6 frames come back exactly") {
  const Sent sent{.source = "fd00::1", .destination = "fd00::2", .payload = 256};
  const auto frame = frame_of(sent);
  auto rebuilt = without_headers(frame, true);
  FrameBuilder builder;
  CHECK(builder.build(rebuilt, arrival_of(sent)) == IcrcVerdict::kExact);
  CHECK(rebuilt == frame);
}

TEST_CASE("what is sent has the ICRC of the headers that the kernel puts in front") {
  for (const bool is_ipv6 : {false, true}) {
    Sent sent{.id = 0x4321};
    if (is_ipv6) std::tie(sent.source, sent.destination) = std::pair("fd00::1", "fd00::2");
    const auto frame = frame_of(sent);
    const auto datagram = parse_outgoing(frame);
    REQUIRE(datagram);
    CHECK(datagram->source == gid(sent.source));
    CHECK(datagram->destination == gid(sent.destination));
    CHECK(datagram->traffic_class == 0x2A);
    CHECK(datagram->hop_limit == 17);
    CHECK(datagram->payload.size() == frame.size() - headers_before_bth(is_ipv6) - 4);
    // Another source port and, with IPv4, another id: the same bytes as if the engine had chosen them.
    sent.port = 0xC00F;
    sent.id = is_ipv6 ? sent.id : std::uint16_t{5};
    const auto wanted = frame_of(sent);
    const auto icrc = datagram->icrc_as_sent(0xC00F, {5, true});
    CHECK(std::equal(icrc.begin(), icrc.end(), wanted.end() - 4));
  }
}

TEST_CASE("frames that are not RoCE packets have no datagram") {
  auto frame = frame_of({});
  CHECK(parse_outgoing(frame));
  for (std::size_t length = 0; length < frame.size(); ++length)
    CHECK_FALSE(parse_outgoing(std::span(frame).first(length)));
  frame[12] = std::byte{0x08};
  frame[13] = std::byte{0x06};  // ARP
  CHECK_FALSE(parse_outgoing(frame));
}
