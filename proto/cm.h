// Messages of connection management: what stands in the 232 bytes behind the header of a MAD of class 0x07,
// version 2 [IBTA chapter 12; layouts: Tables 106-108, 110-113, 115, 116, 119, 120], and the header that the
// RDMA IP CM service puts first into the private data of REQ and SIDR_REQ [IBTA Annex A11].
//
// Fields have the standard's names; numbers that have no type of their own say their width. A number wider
// than that is cut when written. Reserved bits are written as 0 and ignored on reading. Any bytes of a known
// message parse: whether a value makes sense is the receiver's to judge. Not here: states, timers, who
// answers what (emulator/cm). Plain values, no thread rule.
#pragma once

#include "proto/ack_timeout.h"
#include "proto/ip.h"
#include "proto/mad.h"
#include "proto/result.h"
#include "proto/types.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

namespace roci::proto {

// --- the values of fields ---------------------------------------------------------------------------------

// Attribute id of the MAD, which says what message it is.
enum class CmAttribute : std::uint16_t {
  kReq = 0x10,      // request for communication
  kMra = 0x11,      // message receipt acknowledgement: more time is needed
  kRej = 0x12,      // reject
  kRep = 0x13,      // reply
  kRtu = 0x14,      // ready to use
  kDreq = 0x15,     // disconnection request
  kDrep = 0x16,     // disconnection reply
  kSidrReq = 0x17,  // service id resolution request: which datagram QP serves this id
  kSidrRep = 0x18,
  kLap = 0x19,  // load alternate path
  kApr = 0x1A,  // alternate path response
};

// What one side calls a connection; chosen by that side, 0 is none.
using CommunicationId = Key<struct CommunicationIdTag>;

// What a client asks for, of the listener; see service_id_of().
class ServiceId {
 public:
  constexpr ServiceId() = default;
  constexpr explicit ServiceId(std::uint64_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  constexpr auto operator<=>(const ServiceId&) const = default;

 private:
  std::uint64_t value_ = 0;
};

// A time of CM as a 5-bit code: 4.096 us x 2^code [IBTA, CM timeouts]. Other than with AckTimeout, code 0 is
// a time like the others.
class CmTimeout {
 public:
  static constexpr std::uint8_t kMask = 0x1F;

  constexpr CmTimeout() = default;
  constexpr explicit CmTimeout(std::uint8_t code) : code_(code & kMask) {}
  // The shortest that is not below `time`; the longest of all (2.4 hours) if there is none.
  [[nodiscard]] static constexpr CmTimeout at_least(std::chrono::nanoseconds time) {
    std::uint8_t code = 0;
    while (code < kMask && CmTimeout{code}.duration() < time)
      ++code;
    return CmTimeout{code};
  }

  [[nodiscard]] constexpr std::uint8_t code() const { return code_; }
  [[nodiscard]] constexpr std::chrono::nanoseconds duration() const {
    return std::chrono::nanoseconds{std::int64_t{4096} << code_};
  }
  constexpr bool operator==(const CmTimeout&) const = default;

 private:
  std::uint8_t code_ = 0;
};

// A path MTU on the wire is a 4-bit code of which 1 to 5 mean something.
[[nodiscard]] constexpr std::uint8_t code_of(PathMtu mtu) {
  std::uint8_t code = 1;
  while ((128U << code) < bytes_of(mtu))
    ++code;
  return code;
}
[[nodiscard]] constexpr std::optional<PathMtu> path_mtu_from_code(std::uint8_t code) {
  if (code < 1 || code > 5) return std::nullopt;
  return static_cast<PathMtu>(128U << code);
}

enum class CmTransportService : std::uint8_t {
  kRc = 0,
  kUc = 1,
  kRd = 2,
  kExtended = 3,  // extended_transport_type says which: 1 is XRC
};

// Which message an MRA asks for patience with. Two bits; 3 is reserved.
enum class CmMraed : std::uint8_t { kReq = 0, kRep = 1, kLap = 2 };
// Which message a REJ refuses. Two bits; 3 is reserved. kNone: none, e.g. when a REP did not come in time.
enum class CmRejected : std::uint8_t { kReq = 0, kRep = 1, kNone = 2 };

// X(Enumerator, number, "words"): reasons of a REJ [IBTA 12.6.7]. Any number may come in.
#define ROCI_CM_REJECT_REASONS(X)                                           \
  X(NoQp, 1, "no QP available")                                             \
  X(NoEec, 2, "no EE context available")                                    \
  X(NoResources, 3, "no resources available")                               \
  X(Timeout, 4, "timeout")                                                  \
  X(UnsupportedRequest, 5, "unsupported request")                           \
  X(InvalidCommunicationId, 6, "invalid communication id")                  \
  X(InvalidCommunicationInstance, 7, "invalid communication instance")      \
  X(InvalidServiceId, 8, "invalid service id")                              \
  X(InvalidTransportType, 9, "invalid transport service type")              \
  X(StaleConnection, 10, "stale connection")                                \
  X(RdcDoesNotExist, 11, "RDC does not exist")                              \
  X(InvalidPrimaryGid, 12, "primary remote port GID rejected")              \
  X(InvalidPrimaryLid, 13, "primary remote port LID rejected")              \
  X(InvalidPrimarySl, 14, "invalid primary SL")                             \
  X(InvalidPrimaryTrafficClass, 15, "invalid primary traffic class")        \
  X(InvalidPrimaryHopLimit, 16, "invalid primary hop limit")                \
  X(InvalidPrimaryPacketRate, 17, "invalid primary packet rate")            \
  X(InvalidAlternateGid, 18, "alternate remote port GID rejected")          \
  X(InvalidAlternateLid, 19, "alternate remote port LID rejected")          \
  X(InvalidAlternateSl, 20, "invalid alternate SL")                         \
  X(InvalidAlternateTrafficClass, 21, "invalid alternate traffic class")    \
  X(InvalidAlternateHopLimit, 22, "invalid alternate hop limit")            \
  X(InvalidAlternatePacketRate, 23, "invalid alternate packet rate")        \
  X(PortAndCmRedirection, 24, "port and CM redirection")                    \
  X(PortRedirection, 25, "port redirection")                                \
  X(InvalidPathMtu, 26, "invalid path MTU")                                 \
  X(InsufficientResponderResources, 27, "insufficient responder resources") \
  X(ConsumerReject, 28, "the application refuses")                          \
  X(RnrRetryCountReject, 29, "RNR retry count rejected")                    \
  X(DuplicateLocalCommunicationId, 30, "duplicate local communication id")  \
  X(InvalidClassVersion, 31, "invalid class version")                       \
  X(InvalidPrimaryFlowLabel, 32, "invalid primary flow label")              \
  X(InvalidAlternateFlowLabel, 33, "invalid alternate flow label")          \
  X(VendorOptionNotSupported, 35, "vendor option not supported")
// Never to be sent on RoCE v2: 13 and 19 [IBTA CA17-35].
enum class CmRejectReason : std::uint16_t {
#define ROCI_X(enumerator, number, words) k##enumerator = (number),
  ROCI_CM_REJECT_REASONS(ROCI_X)
#undef ROCI_X
};
// "" for a number that has no name.
[[nodiscard]] std::string_view words_of(CmRejectReason reason);

// AP status of an APR. Any number may come in. 7 is never sent on RoCE v2 [IBTA CA17-37].
enum class CmApStatus : std::uint8_t {
  kLoaded = 0,
  kInvalidCommunicationId = 1,
  kNotSupported = 2,
  kRejected = 3,
  kRedirected = 4,
  kIsCurrent = 5,
  kInvalidQpnOrEecn = 6,
  kInvalidLid = 7,
  kInvalidGid = 8,
  kInvalidFlowLabel = 9,
  kInvalidTrafficClass = 10,
  kInvalidHopLimit = 11,
  kInvalidPacketRate = 12,
  kInvalidSl = 13,
};

// Of a SIDR_REP. Any number may come in.
enum class CmSidrStatus : std::uint8_t {
  kValid = 0,
  kServiceIdNotSupported = 1,
  kRejected = 2,
  kNoQp = 3,
  kRedirected = 4,
  kVersionNotSupported = 5,
};

// --- the messages -----------------------------------------------------------------------------------------

inline constexpr std::size_t kCmInformationBytes = 72;  // additional information of REJ, APR, SIDR_REP
using CmInformation = std::array<std::byte, kCmInformationBytes>;

// Of REQ (primary and alternate) and LAP. LIDs mean nothing on RoCE v2 [IBTA CA17-34, CA17-36]; peers write
// 0xFFFF.
struct CmPath {
  std::uint16_t local_lid = 0;
  std::uint16_t remote_lid = 0;
  Gid local_gid;  // of the sender
  Gid remote_gid;
  std::uint32_t flow_label = 0;  // 20 bits
  std::uint8_t packet_rate = 0;  // 6 bits
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint8_t sl = 0;  // 4 bits
  bool is_subnet_local = false;
  AckTimeout local_ack_timeout;

  bool operator==(const CmPath&) const = default;
};

struct CmReq {
  static constexpr CmAttribute kAttribute = CmAttribute::kReq;

  CommunicationId local_comm_id;
  std::uint32_t vendor_id = 0;  // 24 bits; with the MAD's attribute modifier a vendor's options [IBTA r1.4]
  ServiceId service_id;
  std::uint64_t local_ca_guid = 0;
  Qkey local_qkey;
  Qpn local_qpn;
  std::uint8_t responder_resources = 0;  // READs and ATOMICs at once that the sender takes
  std::uint32_t local_eecn = 0;          // 24 bits
  std::uint8_t initiator_depth = 0;      // and that it would send
  std::uint32_t remote_eecn = 0;         // 24 bits
  CmTimeout remote_cm_response_timeout;  // what the receiver may take to answer
  CmTransportService transport_service_type = CmTransportService::kRc;
  bool end_to_end_flow_control = false;
  Psn starting_psn;
  CmTimeout local_cm_response_timeout;  // what the sender takes to answer
  std::uint8_t retry_count = 0;         // 3 bits
  Pkey partition_key = kDefaultPkey;
  std::uint8_t path_packet_payload_mtu = 0;  // 4 bits: path_mtu_from_code()
  bool rdc_exists = false;
  std::uint8_t rnr_retry_count = 0;  // 3 bits
  std::uint8_t max_cm_retries = 0;   // 4 bits [IBTA 12.7.27, r1.7]
  bool srq = false;
  std::uint8_t extended_transport_type = 0;  // 3 bits
  CmPath primary;
  CmPath alternate;  // all 0: there is none
  std::array<std::byte, 92> private_data{};

  bool operator==(const CmReq&) const = default;
};

struct CmMra {
  static constexpr CmAttribute kAttribute = CmAttribute::kMra;

  CommunicationId local_comm_id;
  CommunicationId remote_comm_id;
  CmMraed message_mraed = CmMraed::kReq;
  CmTimeout service_timeout;  // within which the answer will come
  std::array<std::byte, 222> private_data{};

  bool operator==(const CmMra&) const = default;
};

struct CmRej {
  static constexpr CmAttribute kAttribute = CmAttribute::kRej;

  CommunicationId local_comm_id;   // 0 if the sender made none
  CommunicationId remote_comm_id;  // 0 if a REP did not come in time [IBTA Table 108]
  CmRejected message_rejected = CmRejected::kReq;
  std::uint8_t reject_info_length_bytes = 0;  // 7 bits; may claim more than there is
  CmRejectReason reason = CmRejectReason::kConsumerReject;
  CmInformation additional_reject_information{};
  std::array<std::byte, 148> private_data{};

  bool operator==(const CmRej&) const = default;
};

struct CmRep {
  static constexpr CmAttribute kAttribute = CmAttribute::kRep;

  CommunicationId local_comm_id;
  CommunicationId remote_comm_id;
  Qkey local_qkey;
  Qpn local_qpn;
  std::uint32_t local_eecn = 0;  // 24 bits
  Psn starting_psn;
  std::uint32_t vendor_id = 0;  // 24 bits, in three pieces on the wire
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  CmTimeout target_ack_delay;
  std::uint8_t failover_accepted = 0;  // 2 bits
  bool end_to_end_flow_control = false;
  std::uint8_t rnr_retry_count = 0;  // 3 bits
  bool srq = false;
  std::uint64_t local_ca_guid = 0;
  std::array<std::byte, 196> private_data{};

  bool operator==(const CmRep&) const = default;
};

struct CmRtu {
  static constexpr CmAttribute kAttribute = CmAttribute::kRtu;

  CommunicationId local_comm_id;
  CommunicationId remote_comm_id;
  std::array<std::byte, 224> private_data{};

  bool operator==(const CmRtu&) const = default;
};

struct CmDreq {
  static constexpr CmAttribute kAttribute = CmAttribute::kDreq;

  CommunicationId local_comm_id;
  CommunicationId remote_comm_id;
  Qpn remote_qpn_eecn;  // of the receiver
  std::array<std::byte, 220> private_data{};

  bool operator==(const CmDreq&) const = default;
};

struct CmDrep {
  static constexpr CmAttribute kAttribute = CmAttribute::kDrep;

  CommunicationId local_comm_id;
  CommunicationId remote_comm_id;
  std::array<std::byte, 224> private_data{};

  bool operator==(const CmDrep&) const = default;
};

struct CmSidrReq {
  static constexpr CmAttribute kAttribute = CmAttribute::kSidrReq;

  CommunicationId request_id;
  Pkey partition_key = kDefaultPkey;
  ServiceId service_id;
  std::array<std::byte, 216> private_data{};

  bool operator==(const CmSidrReq&) const = default;
};

struct CmSidrRep {
  static constexpr CmAttribute kAttribute = CmAttribute::kSidrRep;

  CommunicationId request_id;
  CmSidrStatus status = CmSidrStatus::kValid;
  std::uint8_t additional_information_length_bytes = 0;  // may claim more than there is
  std::uint32_t vendor_id = 0;                           // 24 bits, in two pieces on the wire
  Qpn qpn;
  ServiceId service_id;
  Qkey qkey;
  CmInformation additional_information{};
  std::array<std::byte, 136> private_data{};

  bool operator==(const CmSidrRep&) const = default;
};

struct CmLap {
  static constexpr CmAttribute kAttribute = CmAttribute::kLap;

  CommunicationId local_comm_id;
  CommunicationId remote_comm_id;
  Qpn remote_qpn_eecn;
  CmTimeout remote_cm_response_timeout;
  CmPath alternate;
  std::array<std::byte, 168> private_data{};

  bool operator==(const CmLap&) const = default;
};

struct CmApr {
  static constexpr CmAttribute kAttribute = CmAttribute::kApr;

  CommunicationId local_comm_id;
  CommunicationId remote_comm_id;
  std::uint8_t additional_information_length_bytes = 0;  // may claim more than there is
  CmApStatus ap_status = CmApStatus::kLoaded;
  CmInformation additional_information{};
  std::array<std::byte, 148> private_data{};

  bool operator==(const CmApr&) const = default;
};

using CmMessage =
    std::variant<CmReq, CmMra, CmRej, CmRep, CmRtu, CmDreq, CmDrep, CmSidrReq, CmSidrRep, CmLap, CmApr>;

[[nodiscard]] constexpr CmAttribute attribute_of(const CmMessage& message) {
  return std::visit([](const auto& one) { return one.kAttribute; }, message);
}
// "REQ", "SIDR_REP".
[[nodiscard]] std::string_view name_of(CmAttribute attribute);
// As many bytes of `information` as `length_bytes` says, all of them if it claims more.
[[nodiscard]] inline std::span<const std::byte> cm_information(const CmInformation& information,
                                                               std::uint8_t length_bytes) {
  return std::span{information}.first(std::min<std::size_t>(length_bytes, information.size()));
}

// --- bytes ------------------------------------------------------------------------------------------------

// X(Enumerator, counter_name, "sentence"), in the order in which they are looked for.
#define ROCI_CM_ERRORS(X)                                                                               \
  X(Length, length, "the MAD is not 256 bytes long")                                                    \
  X(BaseVersion, base_version, "the base version of the MAD is not 1")                                  \
  X(Class, management_class, "the MAD is not of the class of connection management")                    \
  X(ClassVersion, class_version, "the class version of the MAD is not 2")                               \
  X(Method, method, "the method of the MAD is not Send")                                                \
  X(Attribute, attribute, "the attribute id of the MAD names no CM message")                            \
  X(IpCmVersion, ip_cm_version, "the private data does not start with version 0.0 of the IP CM header") \
  X(IpVersion, ip_version, "the IP version of the IP CM header is neither 4 nor 6")

enum class CmError : std::uint8_t {
#define ROCI_X(enumerator, name, sentence) k##enumerator,
  ROCI_CM_ERRORS(ROCI_X)
#undef ROCI_X
};
struct CmErrorInfo {
  std::string_view name;
  std::string_view sentence;
};
[[nodiscard]] const CmErrorInfo& info(CmError error);

struct CmMad {
  MadHeader header;
  CmMessage message;
};

// A MAD as it came to QP 1, of any length and content.
[[nodiscard]] Result<CmMad, CmError> parse_cm(std::span<const std::byte> bytes);
[[nodiscard]] Result<CmMad, CmError> parse_cm(const Mad& mad);

// The header's attribute id is made that of the message; the rest of `header` is taken as it is.
void write_cm(MadHeader header, const CmMessage& message, std::span<std::byte, kMadBytes> out);

// --- the RDMA IP CM service [IBTA Annex A11]
// -----------------------------------------------------------------

// Bytes 4 and 5 of a service id: 1 and the IP protocol. Numbered as RDMA_PS_*; kIb has no IP CM header.
enum class CmPortSpace : std::uint16_t { kTcp = 0x0106, kUdp = 0x0111, kIb = 0x013F };

struct IpService {
  CmPortSpace port_space = CmPortSpace::kTcp;  // any 0x01.. may come in
  std::uint16_t port = 0;
  bool operator==(const IpService&) const = default;
};

[[nodiscard]] constexpr ServiceId service_id_of(CmPortSpace port_space, std::uint16_t port) {
  return ServiceId{(std::uint64_t{static_cast<std::uint16_t>(port_space)} << 16) | port};
}
// No value: not of the IP CM service, whose ids start with 00 00 00 00 01.
[[nodiscard]] constexpr std::optional<IpService> ip_service_of(ServiceId id) {
  if (id.value() >> 24 != 1) return std::nullopt;
  return IpService{static_cast<CmPortSpace>(id.value() >> 16 & 0xFFFF),
                   static_cast<std::uint16_t>(id.value() & 0xFFFF)};
}

// The first bytes of the private data of REQ and SIDR_REQ: who asks whom. The destination port is in the
// service id. Version 0.0.
struct IpCmHeader {
  static constexpr std::size_t kSize = 36;

  IpVersion ip_version = IpVersion::kIpv4;
  std::uint16_t source_port = 0;
  Gid source;  // with kIpv4 mapped addresses, though the wire has zeros before the four bytes
  Gid destination;

  [[nodiscard]] static Result<IpCmHeader, CmError> parse(std::span<const std::byte, kSize> in);
  void emit(std::span<std::byte, kSize> out) const;
  bool operator==(const IpCmHeader&) const = default;
};

// What is left of the private data for the application.
inline constexpr std::size_t kIpCmReqDataBytes = 92 - IpCmHeader::kSize;       // 56
inline constexpr std::size_t kIpCmSidrReqDataBytes = 216 - IpCmHeader::kSize;  // 180

}  // namespace roci::proto
