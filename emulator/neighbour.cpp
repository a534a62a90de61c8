#include "emulator/neighbour.h"

#include <algorithm>
#include <cstring>

#include "emulator/multicast.h"
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

bool is_station(const Mac& mac) { return !is_group(mac) && mac != Mac{}; }
bool is_link_local(const Gid& gid) { return gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80; }

// Where a solicitation for `target` goes: ff02::1:ffXX:XXXX.
Gid solicited_node(const Gid& target) {
  Gid group;
  group.bytes = {
      0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, target.bytes[13], target.bytes[14], target.bytes[15]};
  return group;
}
// IGMPv2 [RFC 2236] and MLDv1 [RFC 2710]. Both start with a type, which the first 8 bytes of an IGMP message
// and of an MLD header have alike.
constexpr std::uint8_t kIgmpQuery = 0x11, kIgmpReport = 0x16, kIgmpLeave = 0x17;
constexpr std::uint8_t kMldQuery = 130, kMldReport = 131, kMldDone = 132;
constexpr std::size_t kIgmpBytes = 8, kMldBytes = 24, kMldGroup = 8;
constexpr std::uint32_t kRouterAlert4 = 0x94040000;  // IPv4 option [RFC 2113]
constexpr std::size_t kHopByHopBytes = 8;
constexpr std::uint32_t kRouterAlert6 = 0x05020000, kPadTwo = 0x0100;  // of an MLD message [RFC 2711]
constexpr Gid kAllRouters6{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}};
constexpr std::uint32_t kAllSystems4 = 0xE0000001, kAllRouters4 = 0xE0000002;

constexpr Gid kAllNodes{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

// Groups that stay on the host or that everyone is in are not reported [RFC 2236, 6; RFC 2710, 5].
bool is_reported(const Gid& group) {
  if (group.is_ipv4()) return group.ipv4() != kAllSystems4;
  return group != kAllNodes && (group.bytes[1] & 0x0F) > 1;
}

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
      gateway4_(nic.gateway(true)),
      gateway6_(nic.gateway(false)),
      timeout_(timeout),
      max_frame_bytes_(std::min(kMaxNeighbourFrame, kEthernetBytes + nic.mtu_bytes)),
      answers_(answers),
      reports_(nic.answers_neighbours),
      kernel_finds_(nic.kernel_finds_neighbours) {
  for (const NicConfig::Neighbour& known : nic.neighbours) {
    if (!is_own(known.gid) && is_station(known.mac)) add_static(known.gid, known.mac);
  }
  entries_.reserve(static_count_ + kMaxNeighbours);
  if (answers_) replies_.resize(kMaxNeighbourReplies);
}

// ---- what is known ---------------------------------------------------------------------------------

bool NeighbourCache::is_own(const Gid& gid) const {
  return gid != Gid{} && std::find(own_.begin(), own_.end(), gid) != own_.end();
}

// Link-local GIDs are of no use to a kernel's socket without an interface, and none of the addresses is one.
bool NeighbourCache::kernel_reaches(const Gid& gid) const {
  if (gid == Gid{} || gid == Gid::from_ipv4(0) || (!gid.is_ipv4() && is_link_local(gid))) return false;
  if (gid.is_ipv4() && is_broadcast(gid.ipv4())) return false;
  return std::any_of(addresses_.begin(), addresses_.end(), [&](const NicAddress& one) {
    return one.gid != Gid{} && one.gid.is_ipv4() == gid.is_ipv4();
  });
}

// Of everywhere, or of a network that the NIC is on: no address of a station.
bool NeighbourCache::is_broadcast(std::uint32_t ipv4) const {
  if (ipv4 == 0xFFFFFFFF) return true;
  return std::any_of(addresses_.begin(), addresses_.end(), [&](const NicAddress& one) {
    if (!one.gid.is_ipv4() || one.prefix_length > 30) return false;
    const std::uint32_t host_bits = 0xFFFFFFFFU >> one.prefix_length;
    return (ipv4 | host_bits) == (one.gid.ipv4() | host_bits) && (ipv4 & host_bits) == host_bits;
  });
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
  return gid.is_ipv4() ? gateway4_ : gateway6_;
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
  if (kernel_finds_) return kernel_reaches(gid) ? std::optional(made_up_mac(gid)) : std::nullopt;
  const std::optional<Gid> hop = next_hop(gid);
  if (!hop.has_value()) return std::nullopt;
  const Entry* entry = find(*hop);
  if (entry == nullptr || entry->state != NeighbourState::kKnown) return std::nullopt;
  return entry->mac;
}

NeighbourState NeighbourCache::state(const Gid& gid) const {
  if (is_own(gid) || is_multicast(gid)) return NeighbourState::kKnown;
  if (kernel_finds_) return kernel_reaches(gid) ? NeighbourState::kKnown : NeighbourState::kUnreachable;
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

void NeighbourCache::remove(const Gid& gid) {
  const auto at =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) { return one.gid == gid; });
  if (at == entries_.end()) return;
  static_count_ -= at->is_static ? 1U : 0U;
  asking_ -= at->ask ? 1U : 0U;
  entries_.erase(at);
}

void NeighbourCache::add_static(const Gid& gid, const Mac& mac) {
  Entry entry;
  entry.gid = gid;
  entry.mac = mac;
  entry.state = NeighbourState::kKnown;
  entry.is_static = true;
  entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(static_count_), entry);
  ++static_count_;
}

void NeighbourCache::change_addresses(const NicConfig& nic) {
  addresses_ = nic.addresses;
  own_ = gid_table(nic);
  // Who cannot be asked any more, for want of an address to ask from, does not answer.
  for (Entry& entry : learnt()) {
    if (entry.state != NeighbourState::kPending || source_for(entry.gid).has_value()) continue;
    asking_ -= entry.ask ? 1U : 0U;
    entry.ask = false;
    entry.state = NeighbourState::kFailed;
    entry.deadline = kNever;
  }
  ++changes_;
}

void NeighbourCache::follow_station(const Mac& mac, std::span<const Gid> before, std::span<const Gid> now) {
  const Entry* const station = find(before.front());
  if (station == nullptr || !station->is_static || station->mac != mac) return;
  const auto is_in = [](std::span<const Gid> list, const Gid& gid) {
    return std::find(list.begin(), list.end(), gid) != list.end();
  };
  for (const Gid& gid : before)
    if (gid != Gid{} && !is_in(now, gid)) remove(gid);
  for (const Gid& gid : now) {
    if (gid == Gid{} || is_in(before, gid) || is_own(gid)) continue;
    remove(gid);  // what was learnt of it
    add_static(gid, mac);
  }
  ++changes_;
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

// ---- groups ----------------------------------------------------------------------------------------

void NeighbourCache::want_report(Membership& membership) {
  if (!membership.report && !membership.leaves) ++reporting_;
  membership.report = true;
  membership.leaves = false;
}

void NeighbourCache::join(const Gid& group, Time now) {
  if (!reports_ || !is_reported(group)) return;
  auto found = std::find_if(memberships_.begin(), memberships_.end(),
                            [&](const Membership& one) { return one.group == group; });
  if (found == memberships_.end()) {
    memberships_.emplace_back().group = group;
    found = memberships_.end() - 1;
  }
  want_report(*found);
  found->unasked_left = kUnaskedReports - 1;
  found->deadline = now + timeout_;
}

void NeighbourCache::leave(const Gid& group) {
  const auto found = std::find_if(memberships_.begin(), memberships_.end(),
                                  [&](const Membership& one) { return one.group == group; });
  if (found == memberships_.end() || found->leaves) return;
  if (std::count_if(memberships_.begin(), memberships_.end(),
                    [](const Membership& one) { return one.leaves; }) == kMaxWaitingLeaves) {
    if (found->report) --reporting_;
    memberships_.erase(found);
    return;
  }
  if (!found->report) ++reporting_;
  found->report = false;
  found->leaves = true;
  found->deadline = kNever;
}

// Answers go out at once, not after a random delay: this NIC's groups are few, and there are no dice here. A
// query for no group is for all of its family.
void NeighbourCache::on_group_query(const Gid& group, bool ipv4) {
  const bool is_general = group == Gid{} || group == Gid::from_ipv4(0);
  for (Membership& one : memberships_) {
    if (!one.leaves && one.group.is_ipv4() == ipv4 && (is_general || one.group == group)) want_report(one);
  }
}

DropReason NeighbourCache::on_igmp(Bytes message) {
  if (message.size() < kIgmpBytes || proto::internet_checksum(message) != 0) return DropReason::kMalformed;
  if (proto::load_u8(message.data()) != kIgmpQuery) return DropReason::kNotRoce;
  on_group_query(Gid::from_ipv4(proto::load_be32(message.data() + 4)), true);
  return DropReason::kAccepted;
}

DropReason NeighbourCache::on_mld(Bytes message) {
  if (message.size() < kMldBytes) return DropReason::kMalformed;
  on_group_query(proto::load_gid(message.data() + kMldGroup), false);
  return DropReason::kAccepted;
}

// ---- time ------------------------------------------------------------------------------------------

void NeighbourCache::on_timers(Time now) {
  for (Entry& entry : learnt()) {
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
  for (Membership& one : memberships_) {
    if (now < one.deadline) continue;
    want_report(one);
    --one.unasked_left;
    one.deadline = one.unasked_left > 0 ? now + timeout_ : kNever;
  }
}

Time NeighbourCache::next_deadline() const {
  Time earliest = kNever;
  for (const Entry& entry : learnt())
    earliest = std::min(earliest, entry.deadline);
  for (const Membership& one : memberships_)
    earliest = std::min(earliest, one.deadline);
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
  if (ip.version != 4 || ip.header_words < 5) return DropReason::kMalformed;
  const std::size_t header_bytes = std::size_t{4} * ip.header_words;
  if (frame.size() < kEthernetBytes + header_bytes ||
      proto::internet_checksum(frame.subspan(kEthernetBytes, header_bytes)) != 0) {
    return DropReason::kMalformed;
  }
  const bool is_igmp = ip.protocol == proto::kProtocolIgmp;  // which has the router alert option
  if (ip.header_words != 5 && !is_igmp) return DropReason::kIpOptions;
  if (ip.more_fragments || ip.fragment_offset != 0) return DropReason::kIpFragment;
  if (ip.total_length < header_bytes || kEthernetBytes + ip.total_length > frame.size())
    return DropReason::kMalformed;
  if (is_igmp) return on_igmp(frame.subspan(kEthernetBytes + header_bytes, ip.total_length - header_bytes));
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
  Bytes message = frame.subspan(kEthernetBytes + kIpv6Bytes, ip.payload_length);
  const bool has_options = ip.next_header == proto::kHopByHopOptions;  // the router alert of MLD
  if (has_options) {
    if (message.size() < kHopByHopBytes) return DropReason::kMalformed;
    const std::uint8_t next_header = proto::load_u8(message.data());
    const std::size_t length = kHopByHopBytes * (proto::load_u8(message.data() + 1) + std::size_t{1});
    if (next_header != proto::kProtocolIcmpv6) return DropReason::kNotRoce;
    if (message.size() < length) return DropReason::kMalformed;
    message = message.subspan(length);
  } else if (ip.next_header != proto::kProtocolIcmpv6) {
    return DropReason::kNotRoce;
  }
  const std::uint32_t pseudo = proto::Ipv6Header::pseudo_header_sum(
      ip.source, ip.destination, static_cast<std::uint32_t>(message.size()), proto::kProtocolIcmpv6);
  if (message.size() < kIcmpHeaderBytes || proto::internet_checksum(message, pseudo) != 0)
    return DropReason::kMalformed;

  const std::uint8_t type = proto::load_u8(message.data());
  if (type == kMldQuery) return on_mld(message);
  if (has_options) return DropReason::kNotRoce;
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

// The next report or leave message; a membership ends with the latter.
std::size_t NeighbourCache::emit_membership(std::span<std::byte> out) {
  const auto one = std::find_if(memberships_.begin(), memberships_.end(),
                                [](const Membership& each) { return each.report || each.leaves; });
  const Gid group = one->group;
  const bool leaves = one->leaves;
  one->report = false;
  if (leaves) memberships_.erase(one);
  --reporting_;
  if (group.is_ipv4()) {
    const Gid to = leaves ? Gid::from_ipv4(kAllRouters4) : group;
    const std::optional<Gid> source = source_for(group);
    constexpr std::size_t kHeaderBytes = kIpv4Bytes + 4;  // with the option
    proto::EthernetHeader{multicast_mac(to), mac_, proto::kEthertypeIpv4}.emit(fixed<kEthernetBytes>(out, 0));
    proto::Ipv4Header ip;
    ip.header_words = kHeaderBytes / 4;
    ip.total_length = kHeaderBytes + kIgmpBytes;
    ip.time_to_live = 1;
    ip.protocol = proto::kProtocolIgmp;
    ip.source = source.value_or(Gid::from_ipv4(0)).ipv4();
    ip.destination = to.ipv4();
    ip.emit(fixed<kIpv4Bytes>(out, kEthernetBytes));
    const std::span<std::byte> header = out.subspan(kEthernetBytes, kHeaderBytes);
    proto::store_be32(header.data() + kIpv4Bytes, kRouterAlert4);
    proto::store_be16(header.data() + 10, proto::internet_checksum(header));
    const std::span<std::byte> igmp = out.subspan(kEthernetBytes + kHeaderBytes, kIgmpBytes);
    proto::store_be32(igmp.data(), std::uint32_t{leaves ? kIgmpLeave : kIgmpReport} << 24);
    proto::store_be32(igmp.data() + 4, group.ipv4());
    proto::store_be16(igmp.data() + 2, proto::internet_checksum(igmp));
    return kEthernetBytes + kHeaderBytes + kIgmpBytes;
  }
  const Gid to = leaves ? kAllRouters6 : group;
  proto::EthernetHeader{multicast_mac(to), mac_, proto::kEthertypeIpv6}.emit(fixed<kEthernetBytes>(out, 0));
  proto::Ipv6Header ip;
  ip.payload_length = kHopByHopBytes + kMldBytes;
  ip.next_header = proto::kHopByHopOptions;
  ip.hop_limit = 1;
  ip.source = own_.front();  // link-local [RFC 2710, 3]
  ip.destination = to;
  ip.emit(fixed<kIpv6Bytes>(out, kEthernetBytes));
  std::byte* const options = out.data() + kEthernetBytes + kIpv6Bytes;
  proto::store_be16(options, std::uint16_t{proto::kProtocolIcmpv6} << 8);
  proto::store_be32(options + 2, kRouterAlert6);
  proto::store_be16(options + 6, kPadTwo);
  const std::span<std::byte> mld = out.subspan(kEthernetBytes + kIpv6Bytes + kHopByHopBytes, kMldBytes);
  proto::store_be32(mld.data(), std::uint32_t{leaves ? kMldDone : kMldReport} << 24);
  proto::store_be32(mld.data() + 4, 0);
  proto::store_gid(mld.data() + kMldGroup, group);
  proto::store_be16(mld.data() + 2,
                    proto::internet_checksum(mld, proto::Ipv6Header::pseudo_header_sum(
                                                      ip.source, to, kMldBytes, proto::kProtocolIcmpv6)));
  return kEthernetBytes + kIpv6Bytes + kHopByHopBytes + kMldBytes;
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
    const std::span<Entry> all = learnt();
    const auto entry = std::find_if(all.begin(), all.end(), [](const Entry& one) { return one.ask; });
    length = emit_request(*entry, out);
    entry->ask = false;
    --asking_;
  } else if (reporting_ != 0) {
    length = emit_membership(out);
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
