#include "proto/cm.h"

#include "proto/bytes.h"

#include <cstring>

namespace roci::proto {
namespace {

// --- a field as a number ----------------------------------------------------------------------------------

template <class T>
std::uint64_t cm_number(const T& field) {
  if constexpr (requires { field.value(); }) {
    return field.value();
  } else if constexpr (requires { field.code(); }) {
    return field.code();
  } else {
    return static_cast<std::uint64_t>(field);
  }
}

template <class T>
void set_cm_number(T& field, std::uint64_t value) {
  if constexpr (requires { field.value(); }) {
    field = T{static_cast<decltype(field.value())>(value)};
  } else if constexpr (requires { field.code(); }) {
    field = T{static_cast<decltype(field.code())>(value)};
  } else {
    field = static_cast<T>(value);
  }
}

// --- the two directions
// -------------------------------------------------------------------------------------

// Places are a byte of the 232 and a bit of it, counted from the most significant; no field is in more than 8
// bytes.
constexpr std::size_t bytes_spanned(unsigned bit, unsigned width) { return (bit + width + 7) / 8; }
constexpr std::uint64_t low_bits(unsigned width) { return ~std::uint64_t{0} >> (64 - width); }

class CmReader {
 public:
  explicit CmReader(std::span<const std::byte, kMadDataBytes> in) : in_(in) {}

  template <class T>
  void number(T& field, std::size_t at, unsigned bit, unsigned width) const {
    set_cm_number(field, load(at, bit, width));
  }
  // Bits of `field` from `shift` on; the others are read elsewhere.
  void piece(std::uint32_t& field, unsigned shift, std::size_t at, unsigned width) const {
    field |= static_cast<std::uint32_t>(load(at, 0, width) << shift);
  }
  template <class Bytes>
  void bytes(Bytes& field, std::size_t at) const {
    std::memcpy(field.data(), in_.subspan(at, field.size()).data(), field.size());
  }

 private:
  [[nodiscard]] std::uint64_t load(std::size_t at, unsigned bit, unsigned width) const {
    const auto bytes = in_.subspan(at, bytes_spanned(bit, width));
    std::uint64_t value = 0;
    for (const std::byte one : bytes)
      value = value << 8 | std::to_integer<std::uint64_t>(one);
    return value >> (bytes.size() * 8 - bit - width) & low_bits(width);
  }
  std::span<const std::byte, kMadDataBytes> in_;
};

// Into bytes that are zero.
class CmWriter {
 public:
  explicit CmWriter(std::span<std::byte, kMadDataBytes> out) : out_(out) {}

  template <class T>
  void number(const T& field, std::size_t at, unsigned bit, unsigned width) const {
    store(cm_number(field), at, bit, width);
  }
  void piece(std::uint32_t field, unsigned shift, std::size_t at, unsigned width) const {
    store(field >> shift, at, 0, width);
  }
  template <class Bytes>
  void bytes(const Bytes& field, std::size_t at) const {
    std::memcpy(out_.subspan(at, field.size()).data(), field.data(), field.size());
  }

 private:
  void store(std::uint64_t value, std::size_t at, unsigned bit, unsigned width) const {
    const auto bytes = out_.subspan(at, bytes_spanned(bit, width));
    value = (value & low_bits(width)) << (bytes.size() * 8 - bit - width);
    for (std::size_t i = bytes.size(); i-- > 0; value >>= 8)
      bytes[i] |= static_cast<std::byte>(value & 0xFF);
  }
  std::span<std::byte, kMadDataBytes> out_;
};

// --- the layouts, once for both directions ----------------------------------------------------------------

template <class Fields, class Data>
void visit_private_data(const Fields& fields, Data& data) {
  fields.bytes(data, kMadDataBytes - data.size());
}

template <class Fields, class Message>
void visit_comm_ids(const Fields& fields, Message& m) {
  fields.number(m.local_comm_id, 0, 0, 32);
  fields.number(m.remote_comm_id, 4, 0, 32);
}

template <class Fields>
void visit_path_ends(const Fields& fields, CmPath& path, std::size_t at) {
  fields.number(path.local_lid, at, 0, 16);
  fields.number(path.remote_lid, at + 2, 0, 16);
  fields.bytes(path.local_gid.bytes, at + 4);
  fields.bytes(path.remote_gid.bytes, at + 20);
  fields.number(path.flow_label, at + 36, 0, 20);
}

template <class Fields>
void visit_req_path(const Fields& fields, CmPath& path, std::size_t at) {
  visit_path_ends(fields, path, at);
  fields.number(path.packet_rate, at + 39, 2, 6);
  fields.number(path.traffic_class, at + 40, 0, 8);
  fields.number(path.hop_limit, at + 41, 0, 8);
  fields.number(path.sl, at + 42, 0, 4);
  fields.number(path.is_subnet_local, at + 42, 4, 1);
  fields.number(path.local_ack_timeout, at + 43, 0, 5);
}

template <class Fields>
void visit_cm(const Fields& fields, CmReq& m) {
  fields.number(m.local_comm_id, 0, 0, 32);
  fields.number(m.vendor_id, 5, 0, 24);
  fields.number(m.service_id, 8, 0, 64);
  fields.number(m.local_ca_guid, 16, 0, 64);
  fields.number(m.local_qkey, 28, 0, 32);
  fields.number(m.local_qpn, 32, 0, 24);
  fields.number(m.responder_resources, 35, 0, 8);
  fields.number(m.local_eecn, 36, 0, 24);
  fields.number(m.initiator_depth, 39, 0, 8);
  fields.number(m.remote_eecn, 40, 0, 24);
  fields.number(m.remote_cm_response_timeout, 43, 0, 5);
  fields.number(m.transport_service_type, 43, 5, 2);
  fields.number(m.end_to_end_flow_control, 43, 7, 1);
  fields.number(m.starting_psn, 44, 0, 24);
  fields.number(m.local_cm_response_timeout, 47, 0, 5);
  fields.number(m.retry_count, 47, 5, 3);
  fields.number(m.partition_key, 48, 0, 16);
  fields.number(m.path_packet_payload_mtu, 50, 0, 4);
  fields.number(m.rdc_exists, 50, 4, 1);
  fields.number(m.rnr_retry_count, 50, 5, 3);
  fields.number(m.max_cm_retries, 51, 0, 4);
  fields.number(m.srq, 51, 4, 1);
  fields.number(m.extended_transport_type, 51, 5, 3);
  visit_req_path(fields, m.primary, 52);
  visit_req_path(fields, m.alternate, 96);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmMra& m) {
  visit_comm_ids(fields, m);
  fields.number(m.message_mraed, 8, 0, 2);
  fields.number(m.service_timeout, 9, 0, 5);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmRej& m) {
  visit_comm_ids(fields, m);
  fields.number(m.message_rejected, 8, 0, 2);
  fields.number(m.reject_info_length_bytes, 9, 0, 7);
  fields.number(m.reason, 10, 0, 16);
  fields.bytes(m.additional_reject_information, 12);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmRep& m) {
  visit_comm_ids(fields, m);
  fields.number(m.local_qkey, 8, 0, 32);
  fields.number(m.local_qpn, 12, 0, 24);
  fields.piece(m.vendor_id, 16, 15, 8);
  fields.number(m.local_eecn, 16, 0, 24);
  fields.piece(m.vendor_id, 8, 19, 8);
  fields.number(m.starting_psn, 20, 0, 24);
  fields.piece(m.vendor_id, 0, 23, 8);
  fields.number(m.responder_resources, 24, 0, 8);
  fields.number(m.initiator_depth, 25, 0, 8);
  fields.number(m.target_ack_delay, 26, 0, 5);
  fields.number(m.failover_accepted, 26, 5, 2);
  fields.number(m.end_to_end_flow_control, 26, 7, 1);
  fields.number(m.rnr_retry_count, 27, 0, 3);
  fields.number(m.srq, 27, 3, 1);
  fields.number(m.local_ca_guid, 28, 0, 64);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmRtu& m) {
  visit_comm_ids(fields, m);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmDreq& m) {
  visit_comm_ids(fields, m);
  fields.number(m.remote_qpn_eecn, 8, 0, 24);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmDrep& m) {
  visit_comm_ids(fields, m);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmSidrReq& m) {
  fields.number(m.request_id, 0, 0, 32);
  fields.number(m.partition_key, 4, 0, 16);
  fields.number(m.service_id, 8, 0, 64);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmSidrRep& m) {
  fields.number(m.request_id, 0, 0, 32);
  fields.number(m.status, 4, 0, 8);
  fields.number(m.additional_information_length_bytes, 5, 0, 8);
  fields.piece(m.vendor_id, 8, 6, 16);
  fields.number(m.qpn, 8, 0, 24);
  fields.piece(m.vendor_id, 0, 11, 8);
  fields.number(m.service_id, 12, 0, 64);
  fields.number(m.qkey, 20, 0, 32);
  fields.bytes(m.additional_information, 24);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmLap& m) {
  visit_comm_ids(fields, m);
  fields.number(m.remote_qpn_eecn, 12, 0, 24);
  fields.number(m.remote_cm_response_timeout, 15, 0, 5);
  visit_path_ends(fields, m.alternate, 20);
  fields.number(m.alternate.traffic_class, 59, 0, 8);  // not in the order of a REQ
  fields.number(m.alternate.hop_limit, 60, 0, 8);
  fields.number(m.alternate.packet_rate, 61, 2, 6);
  fields.number(m.alternate.sl, 62, 0, 4);
  fields.number(m.alternate.is_subnet_local, 62, 4, 1);
  fields.number(m.alternate.local_ack_timeout, 63, 0, 5);
  visit_private_data(fields, m.private_data);
}

template <class Fields>
void visit_cm(const Fields& fields, CmApr& m) {
  visit_comm_ids(fields, m);
  fields.number(m.additional_information_length_bytes, 8, 0, 8);
  fields.number(m.ap_status, 9, 0, 8);
  fields.bytes(m.additional_information, 12);
  visit_private_data(fields, m.private_data);
}

template <class Message>
CmMessage read_cm(std::span<const std::byte, kMadDataBytes> data) {
  Message message;
  visit_cm(CmReader{data}, message);
  return message;
}

std::optional<CmMessage> read_cm(CmAttribute attribute, std::span<const std::byte, kMadDataBytes> data) {
  switch (attribute) {
    case CmAttribute::kReq:
      return read_cm<CmReq>(data);
    case CmAttribute::kMra:
      return read_cm<CmMra>(data);
    case CmAttribute::kRej:
      return read_cm<CmRej>(data);
    case CmAttribute::kRep:
      return read_cm<CmRep>(data);
    case CmAttribute::kRtu:
      return read_cm<CmRtu>(data);
    case CmAttribute::kDreq:
      return read_cm<CmDreq>(data);
    case CmAttribute::kDrep:
      return read_cm<CmDrep>(data);
    case CmAttribute::kSidrReq:
      return read_cm<CmSidrReq>(data);
    case CmAttribute::kSidrRep:
      return read_cm<CmSidrRep>(data);
    case CmAttribute::kLap:
      return read_cm<CmLap>(data);
    case CmAttribute::kApr:
      return read_cm<CmApr>(data);
  }
  return std::nullopt;
}

std::optional<CmError> error_of(const MadHeader& header) {
  if (header.base_version != kMadBaseVersion) return CmError::kBaseVersion;
  if (header.management_class != kMadClassCm) return CmError::kClass;
  if (header.class_version != kMadClassVersionCm) return CmError::kClassVersion;
  if (header.method != MadMethod::kSend) return CmError::kMethod;
  return std::nullopt;
}

}  // namespace

std::string_view words_of(CmRejectReason reason) {
  switch (reason) {
#define ROCI_X(enumerator, number, words) \
  case CmRejectReason::k##enumerator:     \
    return words;
    ROCI_CM_REJECT_REASONS(ROCI_X)
#undef ROCI_X
  }
  return "";
}

std::string_view name_of(CmAttribute attribute) {
  constexpr std::array<std::string_view, 11> kNames = {"REQ",  "MRA",      "REJ",      "REP", "RTU", "DREQ",
                                                       "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"};
  const auto index = static_cast<std::size_t>(attribute) - static_cast<std::size_t>(CmAttribute::kReq);
  return index < kNames.size() ? kNames[index] : "";
}

const CmErrorInfo& info(CmError error) {
  static constexpr std::array kTable = {
#define ROCI_X(enumerator, name, sentence) CmErrorInfo{#name, sentence},
      ROCI_CM_ERRORS(ROCI_X)
#undef ROCI_X
  };
  return kTable[static_cast<std::size_t>(error)];
}

Result<CmMad, CmError> parse_cm(std::span<const std::byte> bytes) {
  const std::optional<Mad> mad = parse_mad(bytes);
  if (!mad) return Unexpected{CmError::kLength};
  return parse_cm(*mad);
}

Result<CmMad, CmError> parse_cm(const Mad& mad) {
  if (const auto error = error_of(mad.header)) return Unexpected{*error};
  const auto message = read_cm(static_cast<CmAttribute>(mad.header.attribute_id), mad.data);
  if (!message) return Unexpected{CmError::kAttribute};
  return CmMad{mad.header, *message};
}

void write_cm(MadHeader header, const CmMessage& message, std::span<std::byte, kMadBytes> out) {
  header.attribute_id = static_cast<std::uint16_t>(attribute_of(message));
  write_mad(header, out);
  const auto data = out.last<kMadDataBytes>();
  std::fill(data.begin(), data.end(), std::byte{0});
  std::visit([&data](auto copy) { visit_cm(CmWriter{data}, copy); }, message);
}

Result<IpCmHeader, CmError> IpCmHeader::parse(std::span<const std::byte, kSize> in) {
  if (load_u8(in.data()) != 0) return Unexpected{CmError::kIpCmVersion};
  IpCmHeader header;
  header.source_port = load_be16(in.data() + 2);
  const std::byte* const source = in.data() + 4;
  const std::byte* const destination = in.data() + 20;
  switch (load_u8(in.data() + 1) >> 4) {
    case 4:
      header.ip_version = IpVersion::kIpv4;
      header.source = Gid::from_ipv4(load_be32(source + 12));
      header.destination = Gid::from_ipv4(load_be32(destination + 12));
      return header;
    case 6:
      header.ip_version = IpVersion::kIpv6;
      std::memcpy(header.source.bytes.data(), source, header.source.bytes.size());
      std::memcpy(header.destination.bytes.data(), destination, header.destination.bytes.size());
      return header;
    default:
      return Unexpected{CmError::kIpVersion};
  }
}

void IpCmHeader::emit(std::span<std::byte, kSize> out) const {
  std::fill(out.begin(), out.end(), std::byte{0});
  store_u8(out.data() + 1, ip_version == IpVersion::kIpv4 ? 0x40 : 0x60);
  store_be16(out.data() + 2, source_port);
  std::byte* const from = out.data() + 4;
  std::byte* const to = out.data() + 20;
  if (ip_version == IpVersion::kIpv4) {
    store_be32(from + 12, source.ipv4());
    store_be32(to + 12, destination.ipv4());
  } else {
    std::memcpy(from, source.bytes.data(), source.bytes.size());
    std::memcpy(to, destination.bytes.data(), destination.bytes.size());
  }
}

}  // namespace roci::proto
