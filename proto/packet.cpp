#include "proto/packet.h"

#include "proto/bytes.h"
#include "proto/framing.h"
#include "proto/icrc.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <tuple>

namespace roci::proto {
namespace {

// The one list of a Packet's extension headers, in wire order.
template <class P, class Visit>
void for_each_extension(P& packet, Visit visit) {
  visit(Extension::kRdeth, packet.rdeth);
  visit(Extension::kDeth, packet.deth);
  visit(Extension::kXrceth, packet.xrceth);
  visit(Extension::kFeth, packet.feth);
  visit(Extension::kReth, packet.reth);
  visit(Extension::kAtomicEth, packet.atomic_eth);
  visit(Extension::kAeth, packet.aeth);
  visit(Extension::kAtomicAckEth, packet.atomic_ack_eth);
  visit(Extension::kImmDt, packet.imm_dt);
  visit(Extension::kIeth, packet.ieth);
  visit(Extension::kCnp, packet.cnp);
}

constexpr std::size_t kCookedBytes = 16;
constexpr std::size_t kCooked2Bytes = 20;

std::size_t cooked_bytes(LinkType link) {
  return link == LinkType::kLinuxCooked ? kCookedBytes : kCooked2Bytes;
}

// For a reserved opcode nobody knows what is pad, so all of it is payload.
std::size_t pad_bytes(const Packet& packet) {
  return packet.opcode_info().is_known ? std::size_t{packet.bth.pad_count & 3U} : 0;
}

class Dissector {
 public:
  Dissector(std::span<const std::byte> frame, LinkType link) : frame_(frame), end_(frame.size()) {
    packet().link = link;
  }

  Dissection run() {
    result_.is_complete = link_layer() && network_layer() && transport_layer();
    return result_;
  }

 private:
  enum class Network : std::uint8_t { kIpv4, kIpv6, kGrh, kNone };

  Packet& packet() { return result_.packet; }
  std::span<const std::byte> rest() const { return frame_.subspan(at_, end_ - at_); }

  // The first error stays; true if it is possible to read on.
  bool note(ParseError error) {
    if (result_.error == ParseError::kNone) result_.error = error;
    return framing::is_legible(error);
  }

  template <class Header>
  Header take() {
    const auto header = Header::parse(frame_.subspan(at_).template first<Header::kSize>());
    at_ += Header::kSize;
    return header;
  }

  bool link_layer() {
    switch (packet().link) {
      case LinkType::kEthernet:
        if (rest().size() < EthernetHeader::kSize) return note(ParseError::kShortLink);
        packet().ethernet = take<EthernetHeader>();
        return ethertype(packet().ethernet->ethertype);
      case LinkType::kLinuxCooked:
      case LinkType::kLinuxCooked2: {
        const std::size_t size = cooked_bytes(packet().link);
        if (rest().size() < size) return note(ParseError::kShortLink);
        std::memcpy(packet().cooked.emplace().bytes.data(), rest().data(), size);
        const std::size_t protocol_at = packet().link == LinkType::kLinuxCooked ? 14 : 0;
        at_ += size;
        return ethertype(load_be16(packet().cooked->bytes.data() + protocol_at));
      }
      case LinkType::kRawIp:
        if (rest().empty()) return note(ParseError::kShortIp);
        network_ = load_u8(rest().data()) >> 4 == 6 ? Network::kIpv6 : Network::kIpv4;
        return true;
      case LinkType::kInfiniBand:
        return local_route();
    }
    return note(ParseError::kOtherEthertype);
  }

  bool ethertype(std::uint16_t type) {
    while (is_vlan(type)) {
      if (packet().vlan_count == Packet::kMaxVlanTags) return note(ParseError::kVlanDepth);
      if (rest().size() < VlanTag::kSize) return note(ParseError::kShortLink);
      VlanTag& tag = packet().vlan_tags[packet().vlan_count++];
      tag = take<VlanTag>();
      type = tag.ethertype;
    }
    switch (type) {
      case kEthertypeIpv4:
        network_ = Network::kIpv4;
        return true;
      case kEthertypeIpv6:
        network_ = Network::kIpv6;
        return true;
      case kEthertypeRoceV1:
        network_ = Network::kGrh;
        return true;
      default:
        return note(ParseError::kOtherEthertype);
    }
  }

  bool local_route() {
    if (rest().size() < Lrh::kSize) return note(ParseError::kShortLink);
    const Lrh lrh = take<Lrh>();
    packet().lrh = lrh;
    switch (lrh.next_header) {
      case LinkNextHeader::kRaw:
      case LinkNextHeader::kIpv6:
        return note(ParseError::kOtherLinkNextHeader);
      case LinkNextHeader::kBth:
        network_ = Network::kNone;
        break;
      case LinkNextHeader::kGrh:
        network_ = Network::kGrh;
        break;
    }
    const std::size_t end = std::size_t{4} * lrh.length_words;
    if (end > frame_.size() || end < Lrh::kSize) return note(ParseError::kLinkLength);
    end_ = end;
    return true;
  }

  bool network_layer() {
    framing::Verdict verdict;
    switch (network_) {
      case Network::kIpv4:
        verdict = framing::check_ipv4(rest());
        break;
      case Network::kIpv6:
        verdict = framing::check_ipv6(rest());
        break;
      case Network::kGrh:
        verdict = framing::check_grh(rest());
        // Under an LRH both lengths must tell the same end.
        if (verdict.error == ParseError::kNone && packet().lrh && at_ + verdict.end != end_) {
          verdict.error = ParseError::kIpLength;
        }
        break;
      case Network::kNone:
        return true;
    }
    if (!note(verdict.error)) return false;
    end_ = at_ + verdict.end;
    switch (network_) {
      case Network::kIpv4:
        packet().ipv4 = take<Ipv4Header>();
        break;
      case Network::kIpv6:
        packet().ipv6 = take<Ipv6Header>();
        break;
      case Network::kGrh:
        packet().grh = take<Grh>();
        return true;
      case Network::kNone:
        return true;
    }
    packet().udp = take<UdpHeader>();
    return true;
  }

  bool transport_layer() {
    if (rest().size() < framing::kMinTransportBytes) return note(ParseError::kShortBth);
    const std::span<const std::byte> transport = rest();
    packet().bth = take<Bth>();
    if (!note(framing::check_transport(transport, packet().bth))) return false;
    for_each_extension(packet(), [this]<class Header>(Extension which, std::optional<Header>& header) {
      if (packet().opcode_info().has(which)) header = take<Header>();
    });
    const std::size_t pad = pad_bytes(packet());
    const std::size_t icrc = end_ - Icrc::kSize;
    packet().payload = frame_.subspan(at_, icrc - pad - at_);
    std::copy_n(frame_.begin() + static_cast<std::ptrdiff_t>(icrc - pad), pad, packet().pad.begin());
    packet().icrc = Icrc::load(frame_.subspan(icrc).first<Icrc::kSize>());
    packet().trailer = frame_.subspan(end_);
    return true;
  }

  std::span<const std::byte> frame_;
  std::size_t end_;  // of the packet, as the layers read so far have it
  std::size_t at_ = 0;
  Network network_ = Network::kNone;
  Dissection result_;
};

class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}

  template <class Header>
  void put(const std::optional<Header>& header) {
    if (header) put(*header);
  }
  template <class Header>
  void put(const Header& header) {
    header.emit(out_.subspan(at_).template first<Header::kSize>());
    at_ += Header::kSize;
  }
  void put_bytes(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(out_.subspan(at_).data(), bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  [[nodiscard]] std::size_t written() const { return at_; }

 private:
  std::span<std::byte> out_;
  std::size_t at_ = 0;
};

std::size_t link_bytes(const Packet& packet) {
  std::size_t size = packet.vlan_count * VlanTag::kSize;
  if (packet.ethernet) size += EthernetHeader::kSize;
  if (packet.cooked) size += cooked_bytes(packet.link);
  return size;
}

void put_link(const Packet& packet, Writer& writer) {
  writer.put(packet.ethernet);
  if (packet.cooked) writer.put_bytes(std::span{packet.cooked->bytes}.first(cooked_bytes(packet.link)));
  for (std::size_t i = 0; i < packet.vlan_count; ++i)
    writer.put(packet.vlan_tags[i]);
}

// LRH to the last extension header: what an ICRC starts from.
void put_headers(const Packet& packet, Writer& writer) {
  writer.put(packet.lrh);
  writer.put(packet.grh);
  writer.put(packet.ipv4);
  writer.put(packet.ipv6);
  writer.put(packet.udp);
  writer.put(packet.bth);
  for_each_extension(packet, [&writer](Extension, const auto& header) { writer.put(header); });
}

Icrc start_icrc(const Packet& packet, std::span<const std::byte> headers) {
  if (packet.lrh) return packet.grh ? Icrc::over_lrh_grh(headers) : Icrc::over_lrh(headers);
  if (packet.grh) return Icrc::over_grh(headers);
  return packet.ipv6 ? Icrc::over_ipv6(headers) : Icrc::over_ipv4(headers);
}

}  // namespace

Gid Packet::source() const {
  if (ipv4) return Gid::from_ipv4(ipv4->source);
  if (ipv6) return ipv6->source;
  return grh ? grh->source : Gid{};
}

Gid Packet::destination() const {
  if (ipv4) return Gid::from_ipv4(ipv4->destination);
  if (ipv6) return ipv6->destination;
  return grh ? grh->destination : Gid{};
}

Ecn Packet::ecn() const {
  if (ipv4) return ipv4->ecn();
  if (ipv6) return ipv6->ecn();
  return grh ? grh->ecn() : Ecn::kNotEct;
}

bool operator==(const Packet& a, const Packet& b) {
  const auto values = [](const Packet& p) {
    return std::tie(p.link, p.ethernet, p.vlan_count, p.vlan_tags, p.cooked, p.lrh, p.grh, p.ipv4, p.ipv6,
                    p.udp, p.bth, p.rdeth, p.deth, p.xrceth, p.feth, p.reth, p.atomic_eth, p.aeth,
                    p.atomic_ack_eth, p.imm_dt, p.ieth, p.cnp, p.pad, p.icrc);
  };
  return values(a) == values(b) &&
         std::equal(a.payload.begin(), a.payload.end(), b.payload.begin(), b.payload.end()) &&
         std::equal(a.trailer.begin(), a.trailer.end(), b.trailer.begin(), b.trailer.end());
}

Dissection dissect(std::span<const std::byte> frame, LinkType link) { return Dissector{frame, link}.run(); }

Result<Packet, ParseError> parse(std::span<const std::byte> frame, LinkType link) {
  const Dissection dissection = dissect(frame, link);
  if (dissection.error != ParseError::kNone) return Unexpected{dissection.error};
  return dissection.packet;
}

PacketOffsets offsets_of(const Packet& packet) {
  PacketOffsets offsets;
  std::size_t at = link_bytes(packet);
  offsets.network = at;
  if (packet.lrh) at += Lrh::kSize;
  if (packet.grh) {
    offsets.network = at;
    at += Grh::kSize;
  }
  if (packet.ipv4) at += Ipv4Header::kSize;
  if (packet.ipv6) at += Ipv6Header::kSize;
  if (packet.udp) {
    offsets.udp = at;
    at += UdpHeader::kSize;
  }
  offsets.bth = at;
  at += Bth::kSize;
  offsets.extensions = at;
  for_each_extension(packet, [&at]<class Header>(Extension, const std::optional<Header>& header) {
    if (header) at += Header::kSize;
  });
  offsets.payload = at;
  offsets.icrc = at + packet.payload.size() + pad_bytes(packet);
  offsets.end = offsets.icrc + Icrc::kSize;
  return offsets;
}

std::size_t size_of(const Packet& packet) { return offsets_of(packet).end + packet.trailer.size(); }

std::size_t emit(const Packet& packet, std::span<std::byte> out) {
  if (out.size() < size_of(packet)) return 0;
  Writer writer{out};
  put_link(packet, writer);
  put_headers(packet, writer);
  writer.put_bytes(packet.payload);
  writer.put_bytes(std::span{packet.pad}.first(pad_bytes(packet)));
  std::array<std::byte, Icrc::kSize> icrc;
  std::memcpy(icrc.data(), &packet.icrc, icrc.size());
  writer.put_bytes(icrc);
  writer.put_bytes(packet.trailer);
  return writer.written();
}

std::uint32_t icrc_of(const Packet& packet) {
  assert(packet.lrh || packet.grh || packet.ipv4 || packet.ipv6);
  std::array<std::byte, Icrc::kMaxHeaderBytes> headers;
  Writer writer{headers};
  put_headers(packet, writer);
  Icrc icrc = start_icrc(packet, std::span{headers}.first(writer.written()));
  icrc.update(packet.payload).update(std::span{packet.pad}.first(pad_bytes(packet)));
  return icrc.value();
}

void complete_lengths(Packet& packet) {
  packet.bth.pad_count = packet.opcode_info().is_known
                             ? static_cast<std::uint8_t>(-packet.payload.size() & 3U)
                             : std::uint8_t{0};

  std::uint16_t type = packet.ipv4 ? kEthertypeIpv4 : packet.ipv6 ? kEthertypeIpv6 : kEthertypeRoceV1;
  for (std::size_t i = packet.vlan_count; i > 0; --i) {
    packet.vlan_tags[i - 1].ethertype = type;
    type = i == packet.vlan_count ? kEthertypeVlan : kEthertypeServiceVlan;
  }
  if (packet.ethernet) packet.ethernet->ethertype = type;

  const PacketOffsets offsets = offsets_of(packet);
  const auto bytes_from = [&offsets](std::size_t from) {
    return static_cast<std::uint16_t>(offsets.end - from);
  };
  if (packet.lrh) {
    packet.lrh->next_header = packet.grh ? LinkNextHeader::kGrh : LinkNextHeader::kBth;
    packet.lrh->length_words = static_cast<std::uint16_t>(offsets.end / 4 & 0x7FF);
  }
  if (packet.grh) {
    packet.grh->next_header = kNextHeaderIba;
    packet.grh->payload_length = bytes_from(offsets.bth);
  }
  if (packet.ipv4) packet.ipv4->total_length = bytes_from(offsets.network);
  if (packet.ipv6) packet.ipv6->payload_length = bytes_from(offsets.udp);
  if (packet.udp) packet.udp->length = bytes_from(offsets.udp);
}

void complete(Packet& packet) {
  complete_lengths(packet);
  if (packet.ipv4) packet.ipv4->checksum = packet.ipv4->checksum_of();
  packet.icrc = icrc_of(packet);
}

Packet make_packet(Opcode opcode, IpVersion version) {
  Packet packet;
  packet.ethernet.emplace();
  if (version == IpVersion::kIpv4) {
    packet.ipv4.emplace();
  } else {
    packet.ipv6.emplace();
  }
  packet.udp.emplace();
  packet.udp->source_port = 0xC000;
  packet.bth.opcode = opcode;
  for_each_extension(packet, [opcode](Extension which, auto& header) {
    if (info(opcode).has(which)) header.emplace();
  });
  return packet;
}

}  // namespace roci::proto
