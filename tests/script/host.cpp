#include "tests/script/host.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/bytes.h"
#include "proto/ethernet.h"
#include "proto/parse_error.h"
#include "tests/sim/soundness.h"

namespace roci::scripts {

using namespace emulator;

namespace {

constexpr std::size_t kFrameBytes = 9216;
constexpr std::size_t kMaxPasses = 100'000;

proto::Gid gid(bool ipv6, std::uint8_t last) {
  proto::Gid gid = proto::Gid::from_ipv4(0x0A000000);
  if (ipv6) gid.bytes = {0xFD};
  gid.bytes[15] = last;
  return gid;
}

}  // namespace

class Host::Sink final : public TxSink {
 public:
  explicit Sink(Host& host) : host_(host), storage_(64 * kFrameBytes), frames_(64) {}

  bool is_blocked = false;

  std::span<TxFrame> reserve(std::size_t max) override {
    const std::size_t count = is_blocked ? 0 : std::min(max, frames_.size());
    for (std::size_t i = 0; i < count; ++i)
      frames_[i] = {storage_.data() + i * kFrameBytes, kFrameBytes, 0, {}};
    return std::span{frames_}.first(count);
  }
  void commit(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      SentPacket& sent = host_.packets.emplace_back();
      sent.at = host_.now_;
      sent.frame.assign(frames_[i].data, frames_[i].data + frames_[i].length_bytes);
      const proto::Dissection dissection = proto::dissect(sent.frame, proto::LinkType::kEthernet);
      sent.packet = dissection.packet;
      sent.is_roce = !proto::is_other_traffic(dissection.error);
      if (!sent.is_roce) continue;
      // Whatever the script is about, what goes out is sound.
      if (const std::optional<std::string> fault = sim::unsound(dissection))
        host_.unsound = "the engine sent an unsound packet: " + *fault;
    }
  }
  std::uint64_t blocked_nics() const override { return 0; }

 private:
  Host& host_;
  std::vector<std::byte> storage_;
  std::vector<TxFrame> frames_;
};

Host::Host(const HostOptions& options) : options_(options) {
  EngineConfig config;
  config.window_packets = options.window_packets;
  config.transmit_burst = options.transmit_burst;
  config.daemon_gap = options.daemon_gap;
  NicConfig nic;
  nic.name = "rxe0";
  nic.mac = kOwnMac;
  nic.addresses = {{gid(false, 1), 24}, {gid(true, 1), 64}};
  nic.mtu_bytes = options.mtu_bytes;
  if (options.knows_peer) nic.neighbours = {{gid(false, 2), kPeerMac}, {gid(true, 2), kPeerMac}};
  config.nics.push_back(nic);
  engine_ = std::make_unique<Engine>(config, memory_);
  sink_ = std::make_unique<Sink>(*this);
}

Host::~Host() = default;

std::string_view kind_of(std::span<const std::byte> frame) {
  const auto byte = [&](std::size_t at) -> unsigned {
    return at < frame.size() ? proto::load_u8(frame.data() + at) : 0U;
  };
  const unsigned ethertype = byte(12) << 8 | byte(13);
  constexpr std::size_t kIp = 14, kBehindIpv6 = kIp + 40;
  if (ethertype == proto::kEthertypeArp) return "ARP";
  if (ethertype == proto::kEthertypeIpv4) return byte(kIp + 9) == 2 ? "IGMP" : "OTHER";
  if (ethertype != proto::kEthertypeIpv6) return "OTHER";
  constexpr unsigned kHopByHop = 0, kIcmp = 58, kSolicitation = 135, kAdvertisement = 136;
  if (byte(kIp + 6) == kHopByHop && byte(kBehindIpv6) == kIcmp) return "MLD";  // a router alert goes first
  if (byte(kIp + 6) != kIcmp) return "OTHER";
  const unsigned type = byte(kBehindIpv6);
  return type == kSolicitation || type == kAdvertisement ? "ND" : "OTHER";
}

Bytes Host::arp_reply() const {
  Bytes frame(60);
  proto::store_mac(frame.data(), kOwnMac);
  proto::store_mac(frame.data() + 6, kPeerMac);
  proto::store_be16(frame.data() + 12, proto::kEthertypeArp);
  constexpr unsigned char kEthernetIpv4Reply[] = {0, 1, 8, 0, 6, 4, 0, 2};
  std::memcpy(frame.data() + 14, kEthernetIpv4Reply, sizeof kEthernetIpv4Reply);
  proto::store_mac(frame.data() + 22, kPeerMac);
  proto::store_be32(frame.data() + 28, gid(false, 2).ipv4());
  proto::store_mac(frame.data() + 32, kOwnMac);
  proto::store_be32(frame.data() + 38, gid(false, 1).ipv4());
  return frame;
}

proto::Gid Host::own_gid() const { return gid(options_.ipv6, 1); }
proto::Gid Host::peer_gid() const { return gid(options_.ipv6, 2); }

std::vector<DropReason> Host::receive(const std::vector<Bytes>& frames) {
  std::vector<Frame> lent;
  lent.reserve(frames.size());
  for (const Bytes& one : frames)
    lent.push_back({one, {0}});
  engine_->on_frames(lent, now_);
  const auto verdicts = engine_->verdicts();
  std::vector<DropReason> kept(verdicts.begin(), verdicts.end());
  pass();
  return kept;
}

std::optional<CommandReply> Host::submit(CommandId id, Command command) {
  engine_->submit(id, std::move(command), now_);
  pass();
  return reply(id);
}

std::optional<CommandReply> Host::reply(CommandId id) {
  const auto found =
      std::find_if(replies_.begin(), replies_.end(), [&](const CommandReply& one) { return one.id == id; });
  if (found == replies_.end()) return std::nullopt;
  CommandReply reply = std::move(*found);
  replies_.erase(found);
  return reply;
}

void Host::set_link(bool up) {
  engine_->on_link({0}, up, now_);
  pass();
}

void Host::block_transmit(bool blocked) {
  sink_->is_blocked = blocked;
  pass();
}

void Host::pass() {
  engine_->on_doorbells(now_);
  engine_->on_timers(now_);
  // A burst that came to nothing may have left something else to send.
  for (std::size_t i = 0, idle = 0; i < kMaxPasses && idle < 3; ++i) {
    idle = engine_->transmit(*sink_, now_) != 0 ? 0 : idle + 1;
  }
  CommandReply replies[8];
  for (std::size_t got = 0; (got = engine_->drain_replies(replies)) != 0;) {
    for (std::size_t i = 0; i < got; ++i)
      replies_.push_back(std::move(replies[i]));
  }
  Event drained[8];
  for (std::size_t got = 0; (got = engine_->drain_events(drained)) != 0;) {
    for (std::size_t i = 0; i < got; ++i)
      events.push_back({now_, drained[i]});
  }
  after_pass_();
}

void Host::advance(Time end, const std::function<bool()>& stop) {
  while (now_ < end && !stop()) {
    // A poll loop would call far more often; once a gap is enough for the engine to see that the daemon runs.
    // Where nothing can be sent the deadline has come already, and stays.
    const Duration least = sink_->is_blocked ? Duration(std::chrono::microseconds(100)) : Duration(1);
    now_ = std::min({end, now_ + options_.daemon_gap, std::max(engine_->next_deadline(), now_ + least)});
    pass();
  }
}

}  // namespace roci::scripts
