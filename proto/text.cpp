#include "proto/text.h"

#include "proto/bytes.h"
#include "proto/cm_text.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <utility>

namespace roci::proto {
namespace {

constexpr std::size_t kMaxTextBytes = 65535;  // of a payload or trailer: no IP packet is longer

// --- values -------------------------------------------------------------------------------------------

std::string hex_number(std::uint64_t value) {
  std::array<char, 19> text{};
  const int count = std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return {text.data(), static_cast<std::size_t>(count)};
}

std::optional<std::uint64_t> number_from_text(std::string_view text) {
  const bool is_hex = text.substr(0, 2) == "0x";
  if (is_hex) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, is_hex ? 16 : 10);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string hex_bytes(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte one : bytes) {
    const auto value = std::to_integer<unsigned>(one);
    text += digits[value >> 4];
    text += digits[value & 15];
  }
  return text;
}

std::optional<std::vector<std::byte>> bytes_from_hex(std::string_view text) {
  if (text.size() % 2 != 0 || text.size() / 2 > kMaxTextBytes) return std::nullopt;
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint8_t value = 0;
    const char* begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
    if (error != std::errc{} || end != begin + 2) return std::nullopt;
    bytes[i] = std::byte{value};
  }
  return bytes;
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{0}; });
}

std::string ipv4_text(std::uint32_t host_order) {
  std::array<char, INET_ADDRSTRLEN> text{};
  const in_addr raw{htonl(host_order)};
  return inet_ntop(AF_INET, &raw, text.data(), text.size());
}

std::string ipv6_text(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(AF_INET6, gid.bytes.data(), text.data(), text.size());
}

std::optional<std::uint32_t> ipv4_from_text(std::string_view text) {
  in_addr raw{};
  if (inet_pton(AF_INET, std::string{text}.c_str(), &raw) != 1) return std::nullopt;
  return ntohl(raw.s_addr);
}

std::optional<Gid> ipv6_from_text(std::string_view text) {
  Gid gid;
  if (inet_pton(AF_INET6, std::string{text}.c_str(), gid.bytes.data()) != 1) return std::nullopt;
  return gid;
}

std::string syndrome_text(Syndrome syndrome) {
  switch (syndrome.kind()) {
    case Syndrome::Kind::kAck:
      if (!syndrome.credits().messages()) return "ack";
      return "ack:" + std::to_string(syndrome.credits().code());
    case Syndrome::Kind::kRnrNak:
      return "rnr:" + std::to_string(syndrome.rnr_timer().code());
    case Syndrome::Kind::kNak:
      return "nak:" + std::string{name_of(syndrome.nak_code())};
    case Syndrome::Kind::kReserved:
      break;
  }
  return hex_number(syndrome.byte());
}

std::optional<Syndrome> syndrome_from_text(std::string_view text) {
  if (text == "ack") return Syndrome::ack();
  const std::string_view kind = text.substr(0, 4);
  const std::string_view value = text.substr(kind.size());
  if (kind == "nak:") {
    const auto* const found = std::find(kNakNames.begin(), kNakNames.end(), value);
    if (found == kNakNames.end()) return std::nullopt;
    return Syndrome::nak(static_cast<NakCode>(found - kNakNames.begin()));
  }
  const bool has_kind = kind == "ack:" || kind == "rnr:";
  const std::optional<std::uint64_t> number = number_from_text(has_kind ? value : text);
  if (!number || *number > (has_kind ? 31U : 255U)) return std::nullopt;
  const auto byte = static_cast<std::uint8_t>(*number);
  if (kind == "ack:") return Syndrome::ack(CreditCode{byte});
  if (kind == "rnr:") return Syndrome::rnr_nak(RnrTimer{byte});
  return Syndrome{byte};
}

// --- the fields of a packet, once for both directions -----------------------------------------------------

enum class Base : std::uint8_t { kDecimal, kHex };
constexpr std::optional<std::uint64_t> kAlways = std::nullopt;

template <class T>
std::uint64_t as_number(const T& field) {
  if constexpr (requires { field.value(); }) {
    return field.value();
  } else {
    return static_cast<std::uint64_t>(field);
  }
}

template <class T>
void set_number(T& field, std::uint64_t value) {
  if constexpr (requires { field.value(); }) {
    field = T{static_cast<decltype(field.value())>(value)};
  } else {
    field = static_cast<T>(value);
  }
}

// `fields` is a FieldWriter or FieldReader: number(key, field, bits, base, usual), text(key, current, usual,
// set). A field that has its usual value is not written; kAlways is written whatever it is.

template <class Fields>
void visit_ip(Fields& fields, Ipv6Header& ip) {
  fields.number("tos", ip.traffic_class, 8, Base::kHex, 0);
  fields.number("flow", ip.flow_label, 20, Base::kHex, 0);
  fields.number("ttl", ip.hop_limit, 8, Base::kDecimal, 64);
}

template <class Fields>
void visit_ip(Fields& fields, Ipv4Header& ip) {
  fields.number("tos", ip.traffic_class, 8, Base::kHex, 0);
  fields.number("id", ip.identification, 16, Base::kDecimal, 0);
  fields.number("df", ip.dont_fragment, 1, Base::kDecimal, 1);
  fields.number("ipres", ip.reserved_flag, 1, Base::kDecimal, 0);
  fields.number("ttl", ip.time_to_live, 8, Base::kDecimal, 64);
}

template <class Fields>
void visit_transport(Fields& fields, Packet& p) {
  fields.number("dqpn", p.bth.destination, 24, Base::kHex, kAlways);
  fields.number("psn", p.bth.psn, 24, Base::kDecimal, kAlways);
  fields.number("a", p.bth.ack_request, 1, Base::kDecimal, 0);
  fields.number("se", p.bth.solicited_event, 1, Base::kDecimal, 0);
  if (p.rdeth) {
    fields.number("eec", p.rdeth->ee_context, 24, Base::kHex, kAlways);
    fields.number("eecres", p.rdeth->reserved8, 8, Base::kHex, 0);
  }
  if (p.deth) {
    fields.number("sqpn", p.deth->source, 24, Base::kHex, kAlways);
    fields.number("qkey", p.deth->qkey, 32, Base::kHex, kAlways);
    fields.number("dethres", p.deth->reserved8, 8, Base::kHex, 0);
  }
  if (p.xrceth) {
    fields.number("srqn", p.xrceth->srq_number, 24, Base::kHex, kAlways);
    fields.number("srqres", p.xrceth->reserved8, 8, Base::kHex, 0);
  }
  if (p.feth) {
    fields.number("plt", p.feth->placement_types, 4, Base::kHex, kAlways);
    fields.number("sel", p.feth->selectivity_level, 2, Base::kDecimal, kAlways);
    fields.number("fethres", p.feth->reserved26, 26, Base::kHex, 0);
  }
  if (p.reth) {
    fields.number("va", p.reth->virtual_address, 64, Base::kHex, kAlways);
    fields.number("rkey", p.reth->rkey, 32, Base::kHex, kAlways);
    fields.number("dlen", p.reth->dma_length_bytes, 32, Base::kDecimal, kAlways);
  }
  if (p.atomic_eth) {
    const bool is_add = p.opcode_info().operation == Operation::kFetchAdd;
    fields.number("va", p.atomic_eth->virtual_address, 64, Base::kHex, kAlways);
    fields.number("rkey", p.atomic_eth->rkey, 32, Base::kHex, kAlways);
    if (is_add) {
      fields.number("add", p.atomic_eth->swap_or_add_data, 64, Base::kHex, kAlways);
      fields.number("cmp", p.atomic_eth->compare_data, 64, Base::kHex, 0);
    } else {
      fields.number("cmp", p.atomic_eth->compare_data, 64, Base::kHex, kAlways);
      fields.number("swap", p.atomic_eth->swap_or_add_data, 64, Base::kHex, kAlways);
    }
  }
  if (p.aeth) {
    fields.text("syn", syndrome_text(p.aeth->syndrome), "", [&p](std::string_view text) {
      const std::optional<Syndrome> syndrome = syndrome_from_text(text);
      if (syndrome) p.aeth->syndrome = *syndrome;
      return syndrome.has_value();
    });
    fields.number("msn", p.aeth->msn, 24, Base::kDecimal, kAlways);
  }
  if (p.atomic_ack_eth) fields.number("orig", p.atomic_ack_eth->original_data, 64, Base::kHex, kAlways);
  if (p.imm_dt) fields.number("imm", p.imm_dt->value, 32, Base::kHex, kAlways);
  if (p.ieth) fields.number("inv", p.ieth->rkey, 32, Base::kHex, kAlways);
  if (p.cnp) {
    fields.text("cnp", hex_bytes(p.cnp->bytes), std::string(32, '0'), [&p](std::string_view text) {
      const auto bytes = bytes_from_hex(text);
      if (!bytes || bytes->size() != p.cnp->bytes.size()) return false;
      std::copy(bytes->begin(), bytes->end(), p.cnp->bytes.begin());
      return true;
    });
  }
}

// What is seldom of interest, and so stands at the end of a line.
template <class Fields>
void visit_rest(Fields& fields, Packet& p) {
  fields.number("mig", p.bth.migration_request, 1, Base::kDecimal, 1);
  fields.number("pkey", p.bth.pkey, 16, Base::kHex, kDefaultPkey.value());
  fields.number("fecn", p.bth.fecn, 1, Base::kDecimal, 0);
  fields.number("becn", p.bth.becn, 1, Base::kDecimal, 0);
  fields.number("tver", p.bth.transport_version, 4, Base::kDecimal, 0);
  fields.number("bthres6", p.bth.reserved6, 6, Base::kHex, 0);
  fields.number("bthres7", p.bth.reserved7, 7, Base::kHex, 0);
  if (p.udp) {
    fields.number("sport", p.udp->source_port, 16, Base::kDecimal, 0xC000);
    fields.number("usum", p.udp->checksum, 16, Base::kHex, 0);
  }
  if (p.ipv4) visit_ip(fields, *p.ipv4);
  if (p.ipv6) visit_ip(fields, *p.ipv6);
  if (p.grh) visit_ip(fields, *p.grh);
  if (p.lrh) {
    fields.number("slid", p.lrh->source_lid, 16, Base::kHex, kAlways);
    fields.number("dlid", p.lrh->destination_lid, 16, Base::kHex, kAlways);
    fields.number("sl", p.lrh->service_level, 4, Base::kDecimal, 0);
    fields.number("vl", p.lrh->virtual_lane, 4, Base::kDecimal, 0);
    fields.number("lver", p.lrh->link_version, 4, Base::kDecimal, 0);
    fields.number("lrhres2", p.lrh->reserved2, 2, Base::kDecimal, 0);
    fields.number("lrhres5", p.lrh->reserved5, 5, Base::kHex, 0);
  }
  if (p.ethernet) {
    for (const auto& [key, mac] :
         {std::pair{"smac", &p.ethernet->source}, std::pair{"dmac", &p.ethernet->destination}}) {
      fields.text(key, to_text(*mac), to_text(Mac{}), [mac = mac](std::string_view text) {
        const std::optional<Mac> read = mac_from_text(text);
        if (read) *mac = *read;
        return read.has_value();
      });
    }
  }
  constexpr std::array kPriorityKeys = {"pcp", "pcp2"};
  constexpr std::array kDropKeys = {"dei", "dei2"};
  for (std::size_t i = 0; i < p.vlan_count; ++i) {
    fields.number(kPriorityKeys[i], p.vlan_tags[i].priority, 3, Base::kDecimal, 0);
    fields.number(kDropKeys[i], p.vlan_tags[i].drop_eligible, 1, Base::kDecimal, 0);
  }
}

// Usually what complete_lengths() says; `usual` has been completed.
template <class Fields>
void visit_lengths(Fields& fields, Packet& p, const Packet& usual) {
  fields.number("padcnt", p.bth.pad_count, 2, Base::kDecimal, usual.bth.pad_count);
  if (p.ethernet) fields.number("type", p.ethernet->ethertype, 16, Base::kHex, usual.ethernet->ethertype);
  constexpr std::array kTypeKeys = {"type1", "type2"};
  for (std::size_t i = 0; i < p.vlan_count; ++i) {
    fields.number(kTypeKeys[i], p.vlan_tags[i].ethertype, 16, Base::kHex, usual.vlan_tags[i].ethertype);
  }
  if (p.lrh) fields.number("lrhlen", p.lrh->length_words, 11, Base::kDecimal, usual.lrh->length_words);
  if (p.grh) fields.number("grhlen", p.grh->payload_length, 16, Base::kDecimal, usual.grh->payload_length);
  if (p.ipv4) fields.number("iplen", p.ipv4->total_length, 16, Base::kDecimal, usual.ipv4->total_length);
  if (p.ipv6) fields.number("iplen", p.ipv6->payload_length, 16, Base::kDecimal, usual.ipv6->payload_length);
  if (p.udp) fields.number("udplen", p.udp->length, 16, Base::kDecimal, usual.udp->length);
}

// Usually the right ones; `p` is otherwise final.
template <class Fields>
void visit_checks(Fields& fields, Packet& p) {
  if (p.ipv4) fields.number("ipsum", p.ipv4->checksum, 16, Base::kHex, p.ipv4->checksum_of());
  fields.number("icrc", p.icrc, 32, Base::kHex, icrc_of(p));
}

class FieldWriter {
 public:
  void word(std::string_view text) {
    if (!line_.empty()) line_ += ' ';
    line_ += text;
  }
  void pair(std::string_view key, std::string_view value) {
    word(key);
    line_ += '=';
    line_ += value;
  }
  template <class T>
  void number(std::string_view key, const T& field, unsigned, Base base, std::optional<std::uint64_t> usual) {
    const std::uint64_t value = as_number(field);
    if (usual && value == *usual) return;
    pair(key, base == Base::kHex ? hex_number(value) : std::to_string(value));
  }
  template <class Set>
  void text(std::string_view key, std::string_view current, std::string_view usual, const Set&) {
    if (current != usual) pair(key, current);
  }
  void comment(std::string_view text) {
    word("#");
    word(text);
  }
  std::string take() { return std::move(line_); }

 private:
  std::string line_;
};

// Words are looked up by key; each may stand once and must be used. The first complaint is kept.
class FieldReader {
 public:
  explicit FieldReader(std::string_view line) {
    while (true) {
      const std::size_t begin = line.find_first_not_of(" \t\r\n");
      if (begin == std::string_view::npos) break;
      const std::size_t end = std::min(line.find_first_of(" \t\r\n", begin), line.size());
      words_.push_back({line.substr(begin, end - begin), false});
      line.remove_prefix(end);
    }
  }

  // The first word, which has no key.
  std::string_view head() {
    if (words_.empty()) return {};
    words_.front().is_used = true;
    return words_.front().text;
  }
  std::optional<std::string_view> find(std::string_view key) {
    for (Word& word : words_) {
      const bool is_it = !word.is_used && word.text.size() > key.size() && word.text[key.size()] == '=' &&
                         word.text.substr(0, key.size()) == key;
      if (!is_it) continue;
      word.is_used = true;
      return word.text.substr(key.size() + 1);
    }
    return std::nullopt;
  }
  std::optional<std::uint64_t> find_number(std::string_view key, std::uint64_t max) {
    const std::optional<std::string_view> text = find(key);
    if (!text) return std::nullopt;
    const std::optional<std::uint64_t> value = number_from_text(*text);
    if (value && *value <= max) return value;
    complain(key, *text, "is no number from 0 to " + std::to_string(max));
    return std::nullopt;
  }
  template <class T>
  void number(std::string_view key, T& field, unsigned bits, Base, std::optional<std::uint64_t> usual) {
    const std::uint64_t max = ~std::uint64_t{0} >> (64 - bits);
    if (const auto value = find_number(key, max)) {
      set_number(field, *value);
    } else if (usual) {
      set_number(field, *usual);
    }
  }
  template <class Set>
  void text(std::string_view key, std::string_view, std::string_view, const Set& set) {
    const std::optional<std::string_view> value = find(key);
    if (value && !set(*value)) complain(key, *value, "is no such value");
  }
  void complain(std::string_view key, std::string_view value, std::string_view what) {
    if (!error_.empty()) return;
    error_.append(key).append("=").append(value).append(" ").append(what);
  }
  void complain(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }
  // What was wrong, or a word that nothing asked for; empty if all is well.
  std::string error() {
    for (const Word& word : words_) {
      if (!word.is_used)
        complain(std::string{word.text} + " does not belong to this packet, or stands twice");
    }
    return error_;
  }
  [[nodiscard]] bool has_error() const { return !error_.empty(); }

 private:
  struct Word {
    std::string_view text;
    bool is_used;
  };
  std::vector<Word> words_;
  std::string error_;
};

// --- which headers there are ------------------------------------------------------------------------------

struct LinkName {
  std::string_view name;
  LinkType link;
};
constexpr std::array kLinkNames = {LinkName{"ethernet", LinkType::kEthernet},
                                   LinkName{"raw", LinkType::kRawIp}, LinkName{"sll", LinkType::kLinuxCooked},
                                   LinkName{"ib", LinkType::kInfiniBand},
                                   LinkName{"sll2", LinkType::kLinuxCooked2}};
constexpr std::string_view kReservedPrefix = "RESERVED_";

std::size_t cooked_size(LinkType link) { return link == LinkType::kLinuxCooked ? 16 : 20; }

void write_structure(FieldWriter& fields, const Packet& p) {
  if (p.opcode_info().is_known) {
    fields.word(p.opcode_info().short_name);
  } else {
    fields.word(std::string{kReservedPrefix} + hex_number(static_cast<std::uint8_t>(p.bth.opcode)));
  }
  for (const LinkName& one : kLinkNames) {
    if (one.link == p.link && p.link != LinkType::kEthernet) fields.pair("link", one.name);
  }
  if (p.cooked) fields.pair("cooked", hex_bytes(std::span{p.cooked->bytes}.first(cooked_size(p.link))));
  for (std::size_t i = 0; i < p.vlan_count; ++i)
    fields.pair("vlan", std::to_string(p.vlan_tags[i].vlan_id));
  if (p.grh && p.link != LinkType::kInfiniBand) fields.pair("roce", "1");
  if (p.ipv4) {
    fields.pair("from", ipv4_text(p.ipv4->source));
    fields.pair("to", ipv4_text(p.ipv4->destination));
  } else if (p.ipv6 || p.grh) {
    fields.pair("from", ipv6_text(p.source()));
    fields.pair("to", ipv6_text(p.destination()));
  }
}

std::optional<Opcode> opcode_from_head(std::string_view head) {
  if (head.substr(0, kReservedPrefix.size()) != kReservedPrefix) return opcode_from_short_name(head);
  const std::optional<std::uint64_t> value = number_from_text(head.substr(kReservedPrefix.size()));
  if (!value || *value > 255 || kOpcodeTable[*value].is_known) return std::nullopt;
  return static_cast<Opcode>(*value);
}

void read_link(FieldReader& fields, Packet& p) {
  if (const auto name = fields.find("link")) {
    const auto* const found = std::find_if(kLinkNames.begin(), kLinkNames.end(),
                                           [&](const LinkName& one) { return one.name == *name; });
    if (found == kLinkNames.end()) {
      fields.complain("link", *name, "is no link type");
      return;
    }
    p.link = found->link;
  }
  if (p.link != LinkType::kEthernet) p.ethernet.reset();
  if (p.link == LinkType::kInfiniBand) p.lrh.emplace();
  if (p.link == LinkType::kLinuxCooked || p.link == LinkType::kLinuxCooked2) {
    const std::string_view text = fields.find("cooked").value_or("");
    const auto bytes = bytes_from_hex(text);
    if (!bytes || bytes->size() != cooked_size(p.link)) {
      fields.complain("cooked", text, "is no header of this link type");
      return;
    }
    std::copy(bytes->begin(), bytes->end(), p.cooked.emplace().bytes.begin());
  }
  if (p.link == LinkType::kRawIp || p.link == LinkType::kInfiniBand) return;
  while (p.vlan_count < Packet::kMaxVlanTags) {
    const std::optional<std::uint64_t> id = fields.find_number("vlan", 0xFFF);
    if (!id) break;
    p.vlan_tags[p.vlan_count++].vlan_id = static_cast<std::uint16_t>(*id);
  }
}

void read_network(FieldReader& fields, Packet& p) {
  const auto from = fields.find("from");
  const auto to = fields.find("to");
  const bool is_infiniband = p.link == LinkType::kInfiniBand;
  const bool has_grh = is_infiniband ? (from || to) : fields.find_number("roce", 1).value_or(2) == 1;
  p.ipv4.reset();
  if (is_infiniband || has_grh) p.udp.reset();
  if (is_infiniband && !has_grh) return;

  const std::string_view example = from.value_or(to.value_or(""));
  if (has_grh || example.find(':') != std::string_view::npos) {
    const std::optional<Gid> source = ipv6_from_text(from.value_or("::"));
    const std::optional<Gid> destination = ipv6_from_text(to.value_or("::"));
    if (!source) fields.complain("from", *from, "is no IPv6 address");
    if (!destination) fields.complain("to", *to, "is no IPv6 address");
    Ipv6Header& ip = has_grh ? p.grh.emplace() : p.ipv6.emplace();
    ip.source = source.value_or(Gid{});
    ip.destination = destination.value_or(Gid{});
    if (has_grh) ip.next_header = kNextHeaderIba;
    return;
  }
  const std::optional<std::uint32_t> source = ipv4_from_text(from.value_or("0.0.0.0"));
  const std::optional<std::uint32_t> destination = ipv4_from_text(to.value_or("0.0.0.0"));
  if (!source) fields.complain("from", *from, "is no IPv4 address");
  if (!destination) fields.complain("to", *to, "is no IPv4 address");
  p.ipv4.emplace();
  p.ipv4->source = source.value_or(0);
  p.ipv4->destination = destination.value_or(0);
}

void read_payload(FieldReader& fields, OwnedPacket& owned) {
  const std::optional<std::uint64_t> length = fields.find_number("len", kMaxTextBytes);
  std::vector<std::byte> bytes(static_cast<std::size_t>(length.value_or(0)));
  if (const auto text = fields.find("data")) {
    auto given = bytes_from_hex(*text);
    if (!given || (length && given->size() != *length)) {
      fields.complain("data", text->substr(0, 16), "is no hexadecimal string of that length");
    } else {
      bytes = *std::move(given);
    }
  }
  owned.own_payload(std::move(bytes));
}

// The bytes behind the payload.
void read_tail(FieldReader& fields, OwnedPacket& owned) {
  if (const auto text = fields.find("trailer")) {
    auto bytes = bytes_from_hex(*text);
    if (bytes) {
      owned.own_trailer(*std::move(bytes));
    } else {
      fields.complain("trailer", text->substr(0, 16), "is no hexadecimal string");
    }
  }
  if (const auto text = fields.find("pad")) {
    const auto bytes = bytes_from_hex(*text);
    if (bytes && bytes->size() <= owned.packet().pad.size()) {
      std::copy(bytes->begin(), bytes->end(), owned.packet().pad.begin());
    } else {
      fields.complain("pad", *text, "is no hexadecimal string of up to 3 bytes");
    }
  }
}

// What the payload of a packet to QP 1 says, in words; empty if it is no CM message.
std::string cm_comment(const Packet& p) {
  if (p.bth.opcode != Opcode::kUdSendOnly || p.bth.destination != kQpnGsi) return {};
  const auto mad = parse_cm(p.payload);
  if (!mad) return {};
  return std::string{name_of(attribute_of(mad->message))} + ": " + cm_details(mad->message);
}

}  // namespace

std::string to_text(const Packet& packet, TextDetail detail) {
  Packet p = packet;  // the visitors take fields they could set
  FieldWriter fields;
  write_structure(fields, p);
  visit_transport(fields, p);
  if (!p.payload.empty()) {
    fields.pair("len", std::to_string(p.payload.size()));
    if (detail == TextDetail::kAll && !all_zero(p.payload)) fields.pair("data", hex_bytes(p.payload));
  }
  visit_rest(fields, p);
  Packet usual = p;
  complete_lengths(usual);
  visit_lengths(fields, p, usual);
  if (!all_zero(p.pad)) fields.pair("pad", hex_bytes(p.pad));
  if (!p.trailer.empty()) fields.pair("trailer", hex_bytes(p.trailer));
  visit_checks(fields, p);
  if (const std::string comment = cm_comment(p); !comment.empty()) fields.comment(comment);
  return fields.take();
}

void OwnedPacket::own_payload(std::vector<std::byte> bytes) {
  payload_ = std::move(bytes);
  packet_.payload = payload_;
}

void OwnedPacket::own_trailer(std::vector<std::byte> bytes) {
  trailer_ = std::move(bytes);
  packet_.trailer = trailer_;
}

Result<OwnedPacket, TextError> from_text(std::string_view line) {
  FieldReader fields{line.substr(0, line.find('#'))};
  const std::string_view head = fields.head();
  const std::optional<Opcode> opcode = opcode_from_head(head);
  if (!opcode) return Unexpected{TextError{"'" + std::string{head.substr(0, 64)} + "' is no opcode"}};

  OwnedPacket owned;
  Packet& p = owned.packet();
  p = make_packet(*opcode);
  read_link(fields, p);
  if (fields.has_error()) return Unexpected{TextError{fields.error()}};
  read_network(fields, p);
  visit_transport(fields, p);
  read_payload(fields, owned);
  visit_rest(fields, p);
  read_tail(fields, owned);
  Packet usual = p;
  complete_lengths(usual);
  visit_lengths(fields, p, usual);
  if (p.lrh) p.lrh->next_header = usual.lrh->next_header;
  visit_checks(fields, p);
  if (std::string error = fields.error(); !error.empty()) return Unexpected{TextError{std::move(error)}};
  return owned;
}

std::string to_text(const Mac& mac) {
  std::array<char, 18> text{};
  const auto& b = mac.bytes;
  std::snprintf(text.data(), text.size(), "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4],
                b[5]);
  return text.data();
}

std::string to_text(const Gid& gid) { return gid.is_ipv4() ? ipv4_text(gid.ipv4()) : ipv6_text(gid); }

std::optional<Mac> mac_from_text(std::string_view text) {
  Mac mac;
  if (text.size() != 17) return std::nullopt;
  for (std::size_t i = 0; i < mac.bytes.size(); ++i) {
    const char* begin = text.data() + 3 * i;
    if (i > 0 && begin[-1] != ':') return std::nullopt;
    const auto [end, error] = std::from_chars(begin, begin + 2, mac.bytes[i], 16);
    if (error != std::errc{} || end != begin + 2) return std::nullopt;
  }
  return mac;
}

std::optional<Gid> gid_from_text(std::string_view text) {
  if (text.find(':') != std::string_view::npos) return ipv6_from_text(text);
  const std::optional<std::uint32_t> address = ipv4_from_text(text);
  if (!address) return std::nullopt;
  return Gid::from_ipv4(*address);
}

}  // namespace roci::proto
