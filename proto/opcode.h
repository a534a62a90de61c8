// BTH opcodes: one list, and everything else about an opcode derived from it [IBTA Table 38].
//
// Covers RC, UC, RD, UD, XRC and CNP. RD is known by name and layout only; nothing here executes it.
// Any byte is a legal Opcode value: info(opcode).is_known tells whether the standard defines it.
// Not here: sequence rules (first, middle, last in order), which are the emulator's. Constants, no thread
// rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace roci::proto {

// The transport service: the top three bits of an opcode.
enum class Service : std::uint8_t {
  kRc = 0,
  kUc = 1,
  kRd = 2,
  kUd = 3,
  kCnp = 4,
  kXrc = 5,
  kVendor6 = 6,
  kVendor7 = 7
};

enum class Operation : std::uint8_t {
  kSend,
  kWrite,
  kReadRequest,
  kReadResponse,
  kAcknowledge,
  kAtomicAcknowledge,
  kCompareSwap,
  kFetchAdd,
  kFlush,
  kAtomicWrite,
  kResync,
  kCnp,
  kReserved,
};

// ATOMIC: those that answer with what stood there. ATOMIC WRITE is none.
[[nodiscard]] constexpr bool is_atomic(Operation operation) {
  return operation == Operation::kCompareSwap || operation == Operation::kFetchAdd;
}

enum class Position : std::uint8_t { kFirst, kMiddle, kLast, kOnly };

enum class Role : std::uint8_t { kRequest, kResponse, kNotification };

// How much payload the opcode may carry; pmtu is the path MTU [IBTA C9-92]. That a LAST carries at least one
// byte follows from FIRST and MIDDLE being full [IBTA C5-8]: the message would have ended before.
enum class PayloadRule : std::uint8_t { kNone, kUpToPmtu, kOneToPmtu, kExactlyPmtu, kEightBytes };

// Extension headers in the order in which they stand on the wire behind the BTH.
enum class Extension : std::uint8_t {
  kRdeth,
  kDeth,
  kXrceth,
  kFeth,
  kReth,
  kAtomicEth,
  kAeth,
  kAtomicAckEth,
  kImmDt,
  kIeth,
  kCnp,  // the 16 reserved bytes of a CNP
};
inline constexpr std::size_t kExtensionCount = 11;
inline constexpr std::array<std::uint8_t, kExtensionCount> kExtensionBytes = {4, 8, 4, 4, 16, 28,
                                                                              4, 8, 4, 4, 16};

class ExtensionSet {
 public:
  constexpr ExtensionSet() = default;
  constexpr ExtensionSet(Extension one) : bits_(bit(one)) {}

  [[nodiscard]] constexpr bool has(Extension one) const { return (bits_ & bit(one)) != 0; }
  [[nodiscard]] constexpr ExtensionSet operator|(ExtensionSet other) const {
    ExtensionSet both;
    both.bits_ = static_cast<std::uint16_t>(bits_ | other.bits_);
    return both;
  }
  // Bytes of the members that stand before `one`.
  [[nodiscard]] constexpr std::size_t offset_of(Extension one) const {
    return bytes_below(static_cast<std::size_t>(one));
  }
  [[nodiscard]] constexpr std::size_t bytes() const { return bytes_below(kExtensionCount); }
  constexpr bool operator==(const ExtensionSet&) const = default;

 private:
  static constexpr std::uint16_t bit(Extension one) {
    return static_cast<std::uint16_t>(1U << static_cast<unsigned>(one));
  }
  [[nodiscard]] constexpr std::size_t bytes_below(std::size_t end) const {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < end; ++i) {
      if (has(static_cast<Extension>(i))) sum += kExtensionBytes[i];
    }
    return sum;
  }
  std::uint16_t bits_ = 0;
};
inline constexpr ExtensionSet kNoExtension{};
[[nodiscard]] constexpr ExtensionSet operator|(Extension a, Extension b) { return ExtensionSet{a} | b; }

// The list. SEND and WRITE look alike in RC, UC, RD and XRC but for the headers that name the target
// (`target`), READ, ATOMIC and acknowledgements alike in RC, RD and XRC, hence the two shared parts.
// X(value, Enumerator, SHORT_NAME, "name as in the standard", Service, Operation, Position, extensions,
// PayloadRule)
#define ROCI_OPCODES_SEND_WRITE(X, base, E, S, T, service, target)                                          \
  X((base) + 0x00, E##SendFirst, S##_SEND_FIRST, T " SEND First", service, kSend, kFirst, (target),         \
    kExactlyPmtu)                                                                                           \
  X((base) + 0x01, E##SendMiddle, S##_SEND_MIDDLE, T " SEND Middle", service, kSend, kMiddle, (target),     \
    kExactlyPmtu)                                                                                           \
  X((base) + 0x02, E##SendLast, S##_SEND_LAST, T " SEND Last", service, kSend, kLast, (target), kOneToPmtu) \
  X((base) + 0x03, E##SendLastImmediate, S##_SEND_LAST_IMM, T " SEND Last with Immediate", service, kSend,  \
    kLast, (target) | Extension::kImmDt, kOneToPmtu)                                                        \
  X((base) + 0x04, E##SendOnly, S##_SEND_ONLY, T " SEND Only", service, kSend, kOnly, (target), kUpToPmtu)  \
  X((base) + 0x05, E##SendOnlyImmediate, S##_SEND_ONLY_IMM, T " SEND Only with Immediate", service, kSend,  \
    kOnly, (target) | Extension::kImmDt, kUpToPmtu)                                                         \
  X((base) + 0x06, E##WriteFirst, S##_WRITE_FIRST, T " RDMA WRITE First", service, kWrite, kFirst,          \
    (target) | Extension::kReth, kExactlyPmtu)                                                              \
  X((base) + 0x07, E##WriteMiddle, S##_WRITE_MIDDLE, T " RDMA WRITE Middle", service, kWrite, kMiddle,      \
    (target), kExactlyPmtu)                                                                                 \
  X((base) + 0x08, E##WriteLast, S##_WRITE_LAST, T " RDMA WRITE Last", service, kWrite, kLast, (target),    \
    kOneToPmtu)                                                                                             \
  X((base) + 0x09, E##WriteLastImmediate, S##_WRITE_LAST_IMM, T " RDMA WRITE Last with Immediate", service, \
    kWrite, kLast, (target) | Extension::kImmDt, kOneToPmtu)                                                \
  X((base) + 0x0A, E##WriteOnly, S##_WRITE_ONLY, T " RDMA WRITE Only", service, kWrite, kOnly,              \
    (target) | Extension::kReth, kUpToPmtu)                                                                 \
  X((base) + 0x0B, E##WriteOnlyImmediate, S##_WRITE_ONLY_IMM, T " RDMA WRITE Only with Immediate", service, \
    kWrite, kOnly, (target) | Extension::kReth | Extension::kImmDt, kUpToPmtu)

// `answer` is what stands before the AETH of a response.
#define ROCI_OPCODES_READ_ATOMIC(X, base, E, S, T, service, target, answer)                                  \
  X((base) + 0x0C, E##ReadRequest, S##_READ_REQUEST, T " RDMA READ Request", service, kReadRequest, kOnly,   \
    (target) | Extension::kReth, kNone)                                                                      \
  X((base) + 0x0D, E##ReadResponseFirst, S##_READ_RESPONSE_FIRST, T " RDMA READ response First", service,    \
    kReadResponse, kFirst, (answer) | Extension::kAeth, kExactlyPmtu)                                        \
  X((base) + 0x0E, E##ReadResponseMiddle, S##_READ_RESPONSE_MIDDLE, T " RDMA READ response Middle", service, \
    kReadResponse, kMiddle, (answer), kExactlyPmtu)                                                          \
  X((base) + 0x0F, E##ReadResponseLast, S##_READ_RESPONSE_LAST, T " RDMA READ response Last", service,       \
    kReadResponse, kLast, (answer) | Extension::kAeth, kOneToPmtu)                                           \
  X((base) + 0x10, E##ReadResponseOnly, S##_READ_RESPONSE_ONLY, T " RDMA READ response Only", service,       \
    kReadResponse, kOnly, (answer) | Extension::kAeth, kUpToPmtu)                                            \
  X((base) + 0x11, E##Acknowledge, S##_ACKNOWLEDGE, T " Acknowledge", service, kAcknowledge, kOnly,          \
    (answer) | Extension::kAeth, kNone)                                                                      \
  X((base) + 0x12, E##AtomicAcknowledge, S##_ATOMIC_ACKNOWLEDGE, T " ATOMIC Acknowledge", service,           \
    kAtomicAcknowledge, kOnly, (answer) | Extension::kAeth | Extension::kAtomicAckEth, kNone)                \
  X((base) + 0x13, E##CompareSwap, S##_COMPARE_SWAP, T " CmpSwap", service, kCompareSwap, kOnly,             \
    (target) | Extension::kAtomicEth, kNone)                                                                 \
  X((base) + 0x14, E##FetchAdd, S##_FETCH_ADD, T " FetchAdd", service, kFetchAdd, kOnly,                     \
    (target) | Extension::kAtomicEth, kNone)

#define ROCI_OPCODES_SEND_INVALIDATE(X, base, E, S, T, service, target)                                      \
  X((base) + 0x16, E##SendLastInvalidate, S##_SEND_LAST_INV, T " SEND Last with Invalidate", service, kSend, \
    kLast, (target) | Extension::kIeth, kOneToPmtu)                                                          \
  X((base) + 0x17, E##SendOnlyInvalidate, S##_SEND_ONLY_INV, T " SEND Only with Invalidate", service, kSend, \
    kOnly, (target) | Extension::kIeth, kUpToPmtu)

#define ROCI_OPCODES(X)                                                                                  \
  ROCI_OPCODES_SEND_WRITE(X, 0x00, Rc, RC, "RC", kRc, kNoExtension)                                      \
  ROCI_OPCODES_READ_ATOMIC(X, 0x00, Rc, RC, "RC", kRc, kNoExtension, kNoExtension)                       \
  ROCI_OPCODES_SEND_INVALIDATE(X, 0x00, Rc, RC, "RC", kRc, kNoExtension)                                 \
  X(0x1C, RcFlush, RC_FLUSH, "RC FLUSH", kRc, kFlush, kOnly, Extension::kFeth | Extension::kReth, kNone) \
  X(0x1D, RcAtomicWrite, RC_ATOMIC_WRITE, "RC ATOMIC WRITE", kRc, kAtomicWrite, kOnly, Extension::kReth, \
    kEightBytes)                                                                                         \
  ROCI_OPCODES_SEND_WRITE(X, 0x20, Uc, UC, "UC", kUc, kNoExtension)                                      \
  ROCI_OPCODES_SEND_WRITE(X, 0x40, Rd, RD, "RD", kRd, Extension::kRdeth | Extension::kDeth)              \
  ROCI_OPCODES_READ_ATOMIC(X, 0x40, Rd, RD, "RD", kRd, Extension::kRdeth | Extension::kDeth,             \
                           Extension::kRdeth)                                                            \
  X(0x55, RdResync, RD_RESYNC, "RD RESYNC", kRd, kResync, kOnly, Extension::kRdeth | Extension::kDeth,   \
    kNone)                                                                                               \
  X(0x64, UdSendOnly, UD_SEND_ONLY, "UD SEND Only", kUd, kSend, kOnly, Extension::kDeth, kUpToPmtu)      \
  X(0x65, UdSendOnlyImmediate, UD_SEND_ONLY_IMM, "UD SEND Only with Immediate", kUd, kSend, kOnly,       \
    Extension::kDeth | Extension::kImmDt, kUpToPmtu)                                                     \
  X(0x81, Cnp, CNP, "CNP", kCnp, kCnp, kOnly, Extension::kCnp, kNone)                                    \
  ROCI_OPCODES_SEND_WRITE(X, 0xA0, Xrc, XRC, "XRC", kXrc, Extension::kXrceth)                            \
  ROCI_OPCODES_READ_ATOMIC(X, 0xA0, Xrc, XRC, "XRC", kXrc, Extension::kXrceth, kNoExtension)             \
  ROCI_OPCODES_SEND_INVALIDATE(X, 0xA0, Xrc, XRC, "XRC", kXrc, Extension::kXrceth)

enum class Opcode : std::uint8_t {
#define ROCI_X(value, enumerator, short_name, name, service, operation, position, extensions, payload) \
  k##enumerator = (value),
  ROCI_OPCODES(ROCI_X)
#undef ROCI_X
};

struct OpcodeInfo {
  std::string_view name = "reserved";        // as in the standard, "RC SEND First"
  std::string_view short_name = "RESERVED";  // "RC_SEND_FIRST"
  Service service = Service::kRc;            // right for reserved opcodes too
  Operation operation = Operation::kReserved;
  Position position = Position::kOnly;
  Role role = Role::kRequest;
  PayloadRule payload = PayloadRule::kUpToPmtu;
  ExtensionSet extensions;
  std::uint8_t extension_bytes = 0;
  std::array<std::uint8_t, kExtensionCount> extension_offset{};  // from the end of the BTH
  bool is_known = false;

  [[nodiscard]] constexpr bool has(Extension one) const { return extensions.has(one); }
  [[nodiscard]] constexpr bool starts_message() const {
    return position == Position::kFirst || position == Position::kOnly;
  }
  [[nodiscard]] constexpr bool ends_message() const {
    return position == Position::kLast || position == Position::kOnly;
  }
  [[nodiscard]] constexpr bool may_have_payload() const { return payload != PayloadRule::kNone; }
  [[nodiscard]] constexpr bool must_have_payload() const {
    return payload != PayloadRule::kNone && payload != PayloadRule::kUpToPmtu;
  }
};

namespace detail {

constexpr Role role_of(Operation operation) {
  switch (operation) {
    case Operation::kReadResponse:
    case Operation::kAcknowledge:
    case Operation::kAtomicAcknowledge:
      return Role::kResponse;
    case Operation::kCnp:
      return Role::kNotification;
    case Operation::kSend:
    case Operation::kWrite:
    case Operation::kReadRequest:
    case Operation::kCompareSwap:
    case Operation::kFetchAdd:
    case Operation::kFlush:
    case Operation::kAtomicWrite:
    case Operation::kResync:
    case Operation::kReserved:
      break;
  }
  return Role::kRequest;
}

constexpr OpcodeInfo make_info(std::string_view name, std::string_view short_name, Service service,
                               Operation operation, Position position, ExtensionSet extensions,
                               PayloadRule payload) {
  OpcodeInfo info{name,      short_name, service,
                  operation, position,   role_of(operation),
                  payload,   extensions, static_cast<std::uint8_t>(extensions.bytes()),
                  {},        true};
  for (std::size_t i = 0; i < kExtensionCount; ++i) {
    info.extension_offset[i] = static_cast<std::uint8_t>(extensions.offset_of(static_cast<Extension>(i)));
  }
  return info;
}

constexpr std::array<OpcodeInfo, 256> make_opcode_table() {
  std::array<OpcodeInfo, 256> table{};
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i].service = static_cast<Service>(i >> 5);
#define ROCI_X(value, enumerator, short_name, name, service, operation, position, extensions, payload)    \
  table[value] = make_info(name, #short_name, Service::service, Operation::operation, Position::position, \
                           extensions, PayloadRule::payload);
  ROCI_OPCODES(ROCI_X)
#undef ROCI_X
  return table;
}

}  // namespace detail

inline constexpr std::array<OpcodeInfo, 256> kOpcodeTable = detail::make_opcode_table();

[[nodiscard]] constexpr const OpcodeInfo& info(Opcode opcode) {
  return kOpcodeTable[static_cast<std::uint8_t>(opcode)];
}

// The opcode of a service, e.g. with_service(Opcode::kRcSendOnly, Service::kUc) is kUcSendOnly; may be
// reserved.
[[nodiscard]] constexpr Opcode with_service(Opcode opcode, Service service) {
  return static_cast<Opcode>((static_cast<unsigned>(service) << 5) | (static_cast<unsigned>(opcode) & 0x1F));
}

// By short name; no value if no opcode has it.
[[nodiscard]] constexpr std::optional<Opcode> opcode_from_short_name(std::string_view short_name) {
  for (std::size_t i = 0; i < kOpcodeTable.size(); ++i) {
    if (kOpcodeTable[i].is_known && kOpcodeTable[i].short_name == short_name) return static_cast<Opcode>(i);
  }
  return std::nullopt;
}

}  // namespace roci::proto
