#include "emulator/neighbour.h"

#include <algorithm>
#include <cstring>

#include "proto/bytes.h"
#include "proto/ethernet.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"

namespace roci::emulator {
namespace {

using proto::Gid;
using proto::Mac;
using Bytes = std::span<const std::byte>;

constexpr Mac kBroadcast{{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}};
constexpr std::size_t kEthernetBytes = proto::EthernetHeader::kSize;
constexpr std::size_t kIpv4Bytes = proto::Ipv4Header::kSize;
constexpr std::size_t kIpv6Bytes = proto::Ipv6Header::kSize;

// ARP for IPv4 over Ethernet [RFC 826].
constexpr std::size_t kArpBytes = 28;
constexpr std::uint64_t kArpKind = 0x0001'0800'06'04;  // hardware, protocol and address lengths in one word
constexpr std::uint16_t kArpRequest = 1, kArpReply = 2;

// ICMP [RFC 792] and ICMPv6 [RFC 4443, RFC 4861].
constexpr std::size_t kIcmpHeaderBytes = 8;
constexpr std::uint8_t kEchoReply = 0, kEchoRequest = 8;
constexpr std::uint8_t kEchoRequest6 = 128, kEchoReply6 = 129, kSolicitation = 135, kAdvertisement = 136;
constexpr std::size_t kNdBytes = 24;  // header and target; options follow
constexpr std::size_t kNdTarget = 8;
constexpr std::size_t kLinkOptionBytes = 8;
constexpr std::uint8_t kSourceLinkOption = 1, kTargetLinkOption = 2;
constexpr std::uint8_t kNdHopLimit = 255;  // proves that it comes from this link
constexpr std::uint32_t kNdSolicited = 0x40000000, kNdOverride = 0x20000000;

template <std::size_t N>
std::span<const std::byte, N> fixed(Bytes bytes, std::size_t at) {
  return bytes.subspan(at).first<N>();
}
template <std::size_t N>
std::span<std::byte, N> fixed(std::span<std::byte> bytes, std::size_t at) {
  return bytes.subspan(at).first<N>();
}

bool is_station(const Mac& mac) { return (mac.bytes[0] & 1) == 0 && mac != Mac{}; }
bool is_multicast(const Gid& gid) {
  return gid.is_ipv4() ? (gid.bytes[12] & 0xF0) == 0xE0 : gid.bytes[0] == 0xFF;
}
bool is_link_local(const Gid& gid) { return gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80; }

Mac multicast_mac(const Gid& gid) {
  const auto& b = gid.bytes;
  if (gid.is_ipv4()) return {{0x01, 0x00, 0x5E, static_cast<std::uint8_t>(b[13] & 0x7F), b[14], b[15]}};
  return {{0x33, 0x33, b[12], b[13], b[14], b[15]}};
}
// Where a solicitation for `target` goes: ff02::1:ffXX:XXXX.
Gid solicited_node(const Gid& target) {
  Gid group;
  group.bytes = {
      0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, target.bytes[13], target.bytes[14], target.bytes[15]};
  return group;
}
constexpr Gid kAllNodes{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

bool is_on_link(const Gid& gid, const NicAddress& address) {
  if (gid.is_ipv4() != address.gid.is_ipv4()) return false;
  const unsigned bits = address.prefix_length + (gid.is_ipv4() ? 96U : 0U);
  for (unsigned bit = 0; bit < bits && bit < 128; ++bit) {
    const unsigned mask = 0x80U >> (bit % 8);
    if (((gid.bytes[bit / 8] ^ address.gid.bytes[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

// The first link-layer address option of that type behind a solicitation or advertisement; nothing if there
// is none or an option is malformed.
std::optional<Mac> link_option(Bytes message, std::uint8_t type) {
  for (std::size_t at = kNdBytes; at + kLinkOptionBytes <= message.size();) {
    const std::size_t length = std::size_t{8} * proto::load_u8(message.data() + at + 1);
    if (length == 0) return std::nullopt;
    if (proto::load_u8(message.data() + at) == type) return proto::load_mac(message.data() + at + 2);
    at += length;
  }
  return std::nullopt;
}

void emit_arp(std::span<std::byte> out, std::uint16_t operation, const Mac& from_mac, std::uint32_t from_ip,
              const Mac& to_mac, std::uint32_t to_ip) {
  const bool asks = operation == kArpRequest;
  proto::EthernetHeader{asks ? kBroadcast : to_mac, from_mac, proto::kEthertypeArp}.emit(
      fixed<kEthernetBytes>(out, 0));
  std::byte* arp = out.data() + kEthernetBytes;
  proto::store_be64(arp, (kArpKind << 16) | operation);
  proto::store_mac(arp + 8, from_mac);
  proto::store_be32(arp + 14, from_ip);
  proto::store_mac(arp + 18, asks ? Mac{} : to_mac);
  proto::store_be32(arp + 24, to_ip);
}

// The IPv6 header in front of an ICMPv6 message that stands in `out` already, and the message's checksum.
void seal_icmpv6(std::span<std::byte> out, std::size_t message_bytes, const Gid& source,
                 const Gid& destination, std::uint8_t hop_limit) {
  proto::Ipv6Header ip;
  ip.payload_length = static_cast<std::uint16_t>(message_bytes);
  ip.next_header = proto::kProtocolIcmpv6;
  ip.hop_limit = hop_limit;
  ip.source = source;
  ip.destination = destination;
  ip.emit(fixed<kIpv6Bytes>(out, kEthernetBytes));
  const std::span<std::byte> message = out.subspan(kEthernetBytes + kIpv6Bytes, message_bytes);
  proto::store_be16(message.data() + 2, 0);
  const std::uint32_t pseudo = proto::Ipv6Header::pseudo_header_sum(
      source, destination, static_cast<std::uint32_t>(message_bytes), proto::kProtocolIcmpv6);
  proto::store_be16(message.data() + 2, proto::internet_checksum(message, pseudo));
}

// A solicitation or advertisement with its link-layer address option; returns the frame's length.
std::size_t emit_nd(std::span<std::byte> out, std::uint8_t type, std::uint32_t flags, const Mac& from_mac,
                    const Gid& source, const Mac& to_mac, const Gid& destination, const Gid& target) {
  proto::EthernetHeader{to_mac, from_mac, proto::kEthertypeIpv6}.emit(fixed<kEthernetBytes>(out, 0));
  std::byte* nd = out.data() + kEthernetBytes + kIpv6Bytes;
  proto::store_be32(nd, std::uint32_t{type} << 24);
  proto::store_be32(nd + 4, flags);
  proto::store_gid(nd + kNdTarget, target);
  proto::store_u8(nd + kNdBytes, type == kSolicitation ? kSourceLinkOption : kTargetLinkOption);
  proto::store_u8(nd + kNdBytes + 1, 1);  // in units of 8 bytes
  proto::store_mac(nd + kNdBytes + 2, from_mac);
  seal_icmpv6(out, kNdBytes + kLinkOptionBytes, source, destination, kNdHopLimit);
  return kEthernetBytes + kIpv6Bytes + kNdBytes + kLinkOptionBytes;
}

}  // namespace

NeighbourCache::NeighbourCache(const NicConfig& nic, Duration timeout, bool answers)
    : mac_(nic.mac),
      addresses_(nic.addresses),
      own_(gid_table(nic)),
      gateway_(nic.gateway),
      timeout_(timeout),
      max_frame_bytes_(std::min(kMaxNeighbourFrame, kEthernetBytes + nic.mtu_bytes)),
      answers_(answers) {
  for (const NicConfig::Neighbour& known : nic.neighbours) {
    if (is_own(known.gid) || !is_station(known.mac)) continue;
    Entry entry;
    entry.gid = known.gid;
    entry.mac = known.mac;
    entry.state = NeighbourState::kKnown;
    entry.is_static = true;
    entries_.push_back(entry);
  }
  static_count_ = entries_.size();
  entries_.reserve(static_count_ + kMaxNeighbours);
  if (answers_) replies_.resize(kMaxNeighbourReplies);
}

// ---- what is known ---------------------------------------------------------------------------------

bool NeighbourCache::is_own(const Gid& gid) const {
  return std::find(own_.begin(), own_.end(), gid) != own_.end();
}

const NeighbourCache::Entry* NeighbourCache::find(const Gid& gid) const {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) { return one.gid == gid; });
  return entry == entries_.end() ? nullptr : &*entry;
}
NeighbourCache::Entry* NeighbourCache::find(const Gid& gid) {
  return const_cast<Entry*>(static_cast<const NeighbourCache*>(this)->find(gid));
}

// The GID whose MAC a packet to `gid` goes to; nothing if there is no way.
std::optional<Gid> NeighbourCache::next_hop(const Gid& gid) const {
  const Entry* entry = find(gid);
  if (entry != nullptr && entry->is_static) return gid;
  if (gid == Gid{} || gid == Gid::from_ipv4(0)) return std::nullopt;
  if (!gid.is_ipv4() && is_link_local(gid)) return gid;
  for (const NicAddress& address : addresses_) {
    if (is_on_link(gid, address)) return gid;
  }
  if (gateway_.has_value() && gateway_->is_ipv4() == gid.is_ipv4()) return gateway_;
  return std::nullopt;
}

// The own address to ask from: of the target's prefix if there is one, else any of its family.
std::optional<Gid> NeighbourCache::source_for(const Gid& target) const {
  if (!target.is_ipv4() && is_link_local(target)) return own_.front();
  for (const NicAddress& address : addresses_) {
    if (is_on_link(target, address)) return address.gid;
  }
  if (!target.is_ipv4()) return own_.front();
  for (const NicAddress& address : addresses_) {
    if (address.gid.is_ipv4()) return address.gid;
  }
  return std::nullopt;
}

std::optional<Mac> NeighbourCache::lookup(const Gid& gid) const {
  if (is_own(gid)) return mac_;
  if (is_multicast(gid)) return multicast_mac(gid);
  const std::optional<Gid> hop = next_hop(gid);
  if (!hop.has_value()) return std::nullopt;
  const Entry* entry = find(*hop);
  if (entry == nullptr || entry->state != NeighbourState::kKnown) return std::nullopt;
  return entry->mac;
}

NeighbourState NeighbourCache::state(const Gid& gid) const {
  if (is_own(gid) || is_multicast(gid)) return NeighbourState::kKnown;
  const std::optional<Gid> hop = next_hop(gid);
  if (!hop.has_value()) return NeighbourState::kUnreachable;
  const Entry* entry = find(*hop);
  return entry == nullptr ? NeighbourState::kUnknown : entry->state;
}

NeighbourState NeighbourCache::request(const Gid& gid, Time now) {
  const NeighbourState before = state(gid);
  if (before != NeighbourState::kUnknown && before != NeighbourState::kFailed) return before;
  const Gid hop = *next_hop(gid);
  if (!source_for(hop).has_value()) return NeighbourState::kUnreachable;
  Entry* entry = find(hop);
  if (entry == nullptr) entry = &add(hop);
  entry->state = NeighbourState::kPending;
  entry->ask = true;
  ++asking_;
  entry->tries = 1;
  entry->deadline = now + timeout_;
  return entry->state;
}

// A new entry. In a full table the oldest one that is not pending gives way, else the oldest.
NeighbourCache::Entry& NeighbourCache::add(const Gid& gid) {
  if (entries_.size() == static_count_ + kMaxNeighbours) {
    const auto first = entries_.begin() + static_cast<std::ptrdiff_t>(static_count_);
    auto victim = std::find_if(first, entries_.end(),
                               [](const Entry& one) { return one.state != NeighbourState::kPending; });
    if (victim == entries_.end()) victim = first;
    if (victim->ask) --asking_;
    entries_.erase(victim);
    ++changes_;
  }
  entries_.emplace_back().gid = gid;
  return entries_.back();
}

// What a peer claims about itself. An answer completes a pending entry; any claim may change one that is
// known.
void NeighbourCache::learn(const Gid& gid, const Mac& mac, bool is_answer) {
  Entry* entry = find(gid);
  if (entry == nullptr || entry->is_static || !is_station(mac)) return;
  if (entry->state == NeighbourState::kPending && !is_answer) return;
  if (entry->state == NeighbourState::kFailed ||
      (entry->state == NeighbourState::kKnown && entry->mac == mac))
    return;
  if (entry->ask) --asking_;
  entry->ask = false;
  entry->mac = mac;
  entry->state = NeighbourState::kKnown;
  entry->deadline = kNever;
  ++changes_;
}

void NeighbourCache::snapshot(NicId nic, std::vector<NeighbourSnapshot>& out) const {
  for (const Entry& entry : entries_)
    out.push_back({nic, entry.gid, entry.mac, entry.state == NeighbourState::kKnown});
}

// ---- time ------------------------------------------------------------------------------------------

void NeighbourCache::on_timers(Time now) {
  for (Entry& entry : entries_) {
    if (entry.state != NeighbourState::kPending || now < entry.deadline) continue;
    if (entry.tries == kNeighbourTries) {
      if (entry.ask) --asking_;
      entry.ask = false;
      entry.state = NeighbourState::kFailed;
      entry.deadline = kNever;
      ++changes_;
      continue;
    }
    ++entry.tries;
    entry.deadline = now + timeout_;
    if (!entry.ask) ++asking_;
    entry.ask = true;
  }
}

Time NeighbourCache::next_deadline() const {
  Time earliest = kNever;
  for (const Entry& entry : entries_)
    earliest = std::min(earliest, entry.deadline);
  return earliest;
}

// ---- frames in -------------------------------------------------------------------------------------

DropReason NeighbourCache::on_frame(Bytes frame) {
  if (frame.size() < kEthernetBytes) return DropReason::kMalformed;
  const proto::EthernetHeader ethernet = proto::EthernetHeader::parse(fixed<kEthernetBytes>(frame, 0));
  if (ethernet.source == mac_) return DropReason::kNotForUs;  // our own, handed back by the port
  if (!is_station(ethernet.source)) return DropReason::kMalformed;
  if (is_station(ethernet.destination) && ethernet.destination != mac_) return DropReason::kNotForUs;
  switch (ethernet.ethertype) {
    case proto::kEthertypeArp:
      return on_arp(frame);
    case proto::kEthertypeIpv4:
      return on_ipv4(frame);
    case proto::kEthertypeIpv6:
      return on_ipv6(frame);
    default:
      return DropReason::kNotRoce;  // not an enum: any 16-bit value
  }
}

DropReason NeighbourCache::on_arp(Bytes frame) {
  if (frame.size() < kEthernetBytes + kArpBytes) return DropReason::kMalformed;
  const std::byte* arp = frame.data() + kEthernetBytes;
  const std::uint64_t kind = proto::load_be64(arp);
  if (kind >> 16 != kArpKind) return DropReason::kNotRoce;
  const auto operation = static_cast<std::uint16_t>(kind);
  if (operation != kArpRequest && operation != kArpReply) return DropReason::kNotRoce;
  const Mac sender_mac = proto::load_mac(arp + 8);
  const std::uint32_t sender_ip = proto::load_be32(arp + 14);
  const std::uint32_t target_ip = proto::load_be32(arp + 24);
  if (!is_station(sender_mac)) return DropReason::kMalformed;
  const bool is_to_us = is_own(Gid::from_ipv4(target_ip));

  // Only a reply to our own address answers; a request from the peer, or a gratuitous one, may change what is
  // known.
  learn(Gid::from_ipv4(sender_ip), sender_mac, operation == kArpReply && is_to_us);
  if (operation == kArpReply || !is_to_us) return is_to_us ? DropReason::kAccepted : DropReason::kNotForUs;
  if (is_own(Gid::from_ipv4(sender_ip))) return DropReason::kNotForUs;  // another station has our address
  if (Reply* reply = new_reply(); reply != nullptr) {
    emit_arp(reply->bytes, kArpReply, mac_, target_ip, sender_mac, sender_ip);
    reply->length_bytes = kEthernetBytes + kArpBytes;
  }
  return DropReason::kAccepted;
}

DropReason NeighbourCache::on_ipv4(Bytes frame) {
  if (frame.size() < kEthernetBytes + kIpv4Bytes) return DropReason::kMalformed;
  const proto::Ipv4Header ip = proto::Ipv4Header::parse(fixed<kIpv4Bytes>(frame, kEthernetBytes));
  if (ip.version != 4 || ip.header_words < 5 || ip.checksum != ip.checksum_of())
    return DropReason::kMalformed;
  if (ip.header_words != 5) return DropReason::kIpOptions;
  if (ip.more_fragments || ip.fragment_offset != 0) return DropReason::kIpFragment;
  if (ip.total_length < kIpv4Bytes || kEthernetBytes + ip.total_length > frame.size())
    return DropReason::kMalformed;
  if (ip.protocol != proto::kProtocolIcmp) return DropReason::kNotRoce;
  if (!is_own(Gid::from_ipv4(ip.destination))) return DropReason::kNotForUs;
  const Bytes message = frame.subspan(kEthernetBytes + kIpv4Bytes, ip.total_length - kIpv4Bytes);
  if (message.size() < kIcmpHeaderBytes || proto::internet_checksum(message) != 0)
    return DropReason::kMalformed;
  if (proto::load_u8(message.data()) != kEchoRequest) return DropReason::kNotRoce;

  const std::size_t length = kEthernetBytes + ip.total_length;
  Reply* reply = length <= max_frame_bytes_ ? new_reply() : nullptr;
  if (reply == nullptr) return DropReason::kAccepted;
  const std::span<std::byte> out{reply->bytes};
  proto::EthernetHeader{proto::load_mac(frame.data() + 6), mac_, proto::kEthertypeIpv4}.emit(
      fixed<kEthernetBytes>(out, 0));
  proto::Ipv4Header answer = ip;
  answer.source = ip.destination;
  answer.destination = ip.source;
  answer.time_to_live = 64;
  answer.checksum = answer.checksum_of();
  answer.emit(fixed<kIpv4Bytes>(out, kEthernetBytes));
  const std::span<std::byte> echo = out.subspan(kEthernetBytes + kIpv4Bytes, message.size());
  std::memcpy(echo.data(), message.data(), message.size());
  proto::store_be32(echo.data(), std::uint32_t{kEchoReply} << 24);
  proto::store_be16(echo.data() + 2, proto::internet_checksum(echo));
  reply->is_echo = true;
  reply->length_bytes = static_cast<std::uint16_t>(length);
  return DropReason::kAccepted;
}

DropReason NeighbourCache::on_ipv6(Bytes frame) {
  if (frame.size() < kEthernetBytes + kIpv6Bytes) return DropReason::kMalformed;
  const proto::Ipv6Header ip = proto::Ipv6Header::parse(fixed<kIpv6Bytes>(frame, kEthernetBytes));
  if (ip.version != 6 || is_multicast(ip.source)) return DropReason::kMalformed;
  const std::size_t end = kEthernetBytes + kIpv6Bytes + ip.payload_length;
  if (end > frame.size()) return DropReason::kMalformed;
  if (ip.next_header != proto::kProtocolIcmpv6) return DropReason::kNotRoce;
  const Bytes message = frame.subspan(kEthernetBytes + kIpv6Bytes, ip.payload_length);
  const std::uint32_t pseudo =
      proto::Ipv6Header::pseudo_header_sum(ip.source, ip.destination, ip.payload_length, ip.next_header);
  if (message.size() < kIcmpHeaderBytes || proto::internet_checksum(message, pseudo) != 0)
    return DropReason::kMalformed;

  const std::uint8_t type = proto::load_u8(message.data());
  if (type == kSolicitation || type == kAdvertisement) {
    if (ip.hop_limit != kNdHopLimit || message.size() < kNdBytes || proto::load_u8(message.data() + 1) != 0) {
      return DropReason::kMalformed;
    }
    return type == kSolicitation ? on_solicitation(frame, message) : on_advertisement(frame, message);
  }
  if (type != kEchoRequest6) return DropReason::kNotRoce;
  if (!is_own(ip.destination)) return DropReason::kNotForUs;
  Reply* reply = end <= max_frame_bytes_ ? new_reply() : nullptr;
  if (reply == nullptr) return DropReason::kAccepted;
  const std::span<std::byte> out{reply->bytes};
  proto::EthernetHeader{proto::load_mac(frame.data() + 6), mac_, proto::kEthertypeIpv6}.emit(
      fixed<kEthernetBytes>(out, 0));
  std::memcpy(out.data() + kEthernetBytes + kIpv6Bytes, message.data(), message.size());
  proto::store_u8(out.data() + kEthernetBytes + kIpv6Bytes, kEchoReply6);
  seal_icmpv6(out, message.size(), ip.destination, ip.source, 64);
  reply->is_echo = true;
  reply->length_bytes = static_cast<std::uint16_t>(end);
  return DropReason::kAccepted;
}

// Duplicate address detection of another station asks from the unspecified address; the answer goes to all.
DropReason NeighbourCache::on_solicitation(Bytes frame, Bytes message) {
  const Gid source = proto::load_gid(frame.data() + kEthernetBytes + 8);
  const Gid target = proto::load_gid(message.data() + kNdTarget);
  if (is_multicast(target)) return DropReason::kMalformed;
  const std::optional<Mac> option = link_option(message, kSourceLinkOption);
  const bool is_probe = source == Gid{};
  if (is_probe && option.has_value()) return DropReason::kMalformed;
  const Mac sender_mac = option.value_or(proto::load_mac(frame.data() + 6));
  if (!is_station(sender_mac)) return DropReason::kMalformed;
  if (!is_probe) learn(source, sender_mac, false);
  if (!is_own(target) || target.is_ipv4() || is_own(source)) return DropReason::kNotForUs;
  if (Reply* reply = new_reply(); reply != nullptr) {
    const std::size_t length = is_probe ? emit_nd(reply->bytes, kAdvertisement, kNdOverride, mac_, target,
                                                  multicast_mac(kAllNodes), kAllNodes, target)
                                        : emit_nd(reply->bytes, kAdvertisement, kNdSolicited | kNdOverride,
                                                  mac_, target, sender_mac, source, target);
    reply->length_bytes = static_cast<std::uint16_t>(length);
  }
  return DropReason::kAccepted;
}

DropReason NeighbourCache::on_advertisement(Bytes frame, Bytes message) {
  const Gid destination = proto::load_gid(frame.data() + kEthernetBytes + 24);
  const Gid target = proto::load_gid(message.data() + kNdTarget);
  const std::uint32_t flags = proto::load_be32(message.data() + 4);
  const std::optional<Mac> option = link_option(message, kTargetLinkOption);
  if (is_multicast(target) || !option.has_value() || !is_station(*option)) return DropReason::kMalformed;
  const bool is_answer = (flags & kNdSolicited) != 0;
  if (is_answer && !is_own(destination)) return DropReason::kNotForUs;
  // Without the override flag a known MAC stays [RFC 4861, 7.2.5].
  const Entry* entry = find(target);
  if ((flags & kNdOverride) == 0 && entry != nullptr && entry->state == NeighbourState::kKnown)
    return DropReason::kAccepted;
  learn(target, *option, is_answer);
  return DropReason::kAccepted;
}

// ---- frames out ------------------------------------------------------------------------------------

NeighbourCache::Reply* NeighbourCache::new_reply() {
  if (!answers_ || reply_count_ == replies_.size()) return nullptr;
  Reply& reply = replies_[(reply_first_ + reply_count_) % replies_.size()];
  ++reply_count_;
  reply.is_echo = false;
  return &reply;
}

std::size_t NeighbourCache::emit_request(const Entry& entry, std::span<std::byte> out) const {
  const Gid source = *source_for(entry.gid);
  if (entry.gid.is_ipv4()) {
    emit_arp(out, kArpRequest, mac_, source.ipv4(), Mac{}, entry.gid.ipv4());
    return kEthernetBytes + kArpBytes;
  }
  const Gid group = solicited_node(entry.gid);
  return emit_nd(out, kSolicitation, 0, mac_, source, multicast_mac(group), group, entry.gid);
}

std::size_t NeighbourCache::emit(std::span<std::byte> out) {
  if (out.size() < max_frame_bytes_) return 0;
  std::size_t length = 0;
  if (reply_count_ != 0) {
    const Reply& reply = replies_[reply_first_];
    length = reply.length_bytes;
    std::memcpy(out.data(), reply.bytes.data(), length);
    if (!reply.is_echo) ++replies_sent_;
    reply_first_ = (reply_first_ + 1) % replies_.size();
    --reply_count_;
  } else if (asking_ != 0) {
    const auto entry =
        std::find_if(entries_.begin(), entries_.end(), [](const Entry& one) { return one.ask; });
    length = emit_request(*entry, out);
    entry->ask = false;
    --asking_;
  } else {
    return 0;
  }
  if (length < proto::kMinFrameBytes) {
    std::memset(out.data() + length, 0, proto::kMinFrameBytes - length);
    length = proto::kMinFrameBytes;
  }
  return length;
}

}  // namespace roci::emulator
