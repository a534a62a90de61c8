// The rules that a capture is checked against: one list of id, source and sentence.
//
// A rule is cited by its clause where a public source gives one, else by its topic. The order is the one of
// the layers. Not here: how a rule is decided (packet_rules.cpp for one packet alone, conversation.cpp for
// packets together). Constants, no thread rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace roci::tools {

// X(Enumerator, "ID", "source", "what must hold")
#define ROCI_TRACE_RULES(X)                                                                              \
  X(FrameLength, "FRAME.LENGTH", "IBTA CA17-6, CA17-15, CA17-21",                                        \
    "The IP and UDP lengths count everything to the ICRC, agree with each other and fit the frame.")     \
  X(FrameVersion, "FRAME.VERSION", "IBTA CA17-27",                                                       \
    "The IP version is the one that the Ethertype announces.")                                           \
  X(FrameOptions, "FRAME.OPTIONS", "IBTA CA17-3", "The IPv4 header is 5 words long: no options.")        \
  X(FrameDf, "FRAME.DF", "IBTA CA17-7", "The IPv4 header has DF set.")                                   \
  X(FrameFragment, "FRAME.FRAGMENT", "IBTA CA17-7, CA17-8", "The IPv4 packet is not a fragment.")        \
  X(FrameIpChecksum, "FRAME.IP_CHECKSUM", "IPv4: header checksum", "The IPv4 header checksum is right.") \
  X(FrameUdpChecksum, "FRAME.UDP_CHECKSUM", "IBTA A17.3.2.4; UDP: checksum",                             \
    "The UDP checksum is 0, or right.")                                                                  \
  X(Icrc, "ICRC", "IBTA CA17-22, 7.8.1", "The ICRC is right.")                                           \
  X(BthVersion, "BTH.TVER", "IBTA, packet format: BTH TVer", "The transport header version is 0.")       \
  X(BthReserved, "BTH.RESERVED", "IBTA C9-6", "The reserved bits of the BTH are 0.")                     \
  X(Pkey, "PKEY", "IBTA 10.9.1.2, 10.9.3", "The P_Key is valid and matches the one of the connection.")  \
  X(OpcodeKnown, "OPCODE.KNOWN", "IBTA Table 38", "The opcode is not reserved.")                         \
  X(OpcodeService, "OPCODE.SERVICE", "IBTA Table 38; QP: one transport service",                         \
    "The opcode is of the transport service of the QP that it goes to.")                                 \
  X(OpcodeSequence, "OPCODE.SEQUENCE", "IBTA, responder: opcode sequence",                               \
    "A message is FIRST, MIDDLE..., LAST of one operation, or ONLY.")                                    \
  X(LengthHeaders, "LENGTH.HEADERS", "IBTA 5.2.1-5.2.13",                                                \
    "The packet holds all headers of its opcode, its pad and the ICRC.")                                 \
  X(LengthPayload, "LENGTH.PAYLOAD", "IBTA C9-92, oA19-28",                                              \
    "The opcode may have that much payload: none, some, or exactly 8 bytes.")                            \
  X(LengthMtu, "LENGTH.MTU", "IBTA C5-8, C9-92",                                                         \
    "FIRST and MIDDLE carry exactly the path MTU, LAST and ONLY no more.")                               \
  X(LengthWrite, "LENGTH.WRITE", "IBTA C9-94; responder: RDMA WRITE length",                             \
    "A WRITE carries as many bytes as its RETH says, at most 2^31.")                                     \
  X(LengthRead, "LENGTH.READ", "IBTA C9-94; requester: READ response length",                            \
    "A READ response carries as many bytes as were asked for, at most 2^31.")                            \
  X(LengthMad, "LENGTH.MAD", "IBTA C13-3", "A management datagram is exactly 256 bytes long.")           \
  X(PadCount, "PAD.COUNT", "IBTA, packet format: pad count",                                             \
    "The pad count fills the payload up to a multiple of 4, and is 0 where there is nothing to fill.")   \
  X(PadZero, "PAD.ZERO", "IBTA, packet format: pad", "The pad bytes are 0.")                             \
  X(AtomicAlignment, "ATOMIC.ALIGNMENT", "IBTA r1.2.1 9.4.5",                                            \
    "The address of an ATOMIC is a multiple of 8.")                                                      \
  X(PsnContinuity, "PSN.CONTINUITY", "IBTA, PSN: each request follows the one before",                   \
    "Each new request has the PSN that follows the one before.")                                         \
  X(PsnReuse, "PSN.REUSE", "IBTA, PSN: retransmission",                                                  \
    "A PSN that is sent again carries the same request.")                                                \
  X(AckMissing, "ACK.MISSING", "IBTA, acknowledgements: AckReq",                                         \
    "A request that asks for an answer gets one.")

enum class Rule : std::uint8_t {
#define ROCI_X(enumerator, id, source, sentence) k##enumerator,
  ROCI_TRACE_RULES(ROCI_X)
#undef ROCI_X
};

struct RuleInfo {
  std::string_view id;
  std::string_view source;
  std::string_view sentence;
};

inline constexpr std::array kRules = {
#define ROCI_X(enumerator, id, source, sentence) RuleInfo{id, source, sentence},
    ROCI_TRACE_RULES(ROCI_X)
#undef ROCI_X
};

[[nodiscard]] constexpr const RuleInfo& info(Rule rule) { return kRules[static_cast<std::size_t>(rule)]; }

}  // namespace roci::tools
