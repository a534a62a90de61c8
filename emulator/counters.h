// Counters of one NIC and the reasons for dropping a received frame: one list each, everything else is
// derived.
//
// Written by the engine's thread only. A reader in another thread may load the values one by one (they are
// plain 64-bit words on an aligned address and may be a pass old).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace roci::emulator {

// X(identifier, "name", "sentence")
#define ROCI_DROP_REASONS(X)                                                                       \
  X(kAccepted, "accepted", "taken")                                                                \
  X(kNotForUs, "not_for_us", "another station's frame: destination MAC or IP address is not ours") \
  X(kNotRoce, "not_roce", "neither RoCE v2 nor a neighbour protocol we answer")                    \
  X(kMalformed, "malformed", "headers or lengths do not fit together")                             \
  X(kUnknownOpcode, "unknown_opcode", "the BTH opcode is not defined")                             \
  X(kBadTver, "bad_tver", "BTH transport version is not 0")                                        \
  X(kBadIcrc, "bad_icrc", "wrong ICRC")                                                            \
  X(kIpOptions, "ip_options", "IPv4 header with options [IBTA CA17-3]")                            \
  X(kIpFragment, "ip_fragment", "IPv4 fragment [IBTA CA17-8]")                                     \
  X(kBadPkey, "bad_pkey", "P_Key does not match")                                                  \
  X(kQp0, "qp0", "addressed to QP0 [IBTA CA17-33]")                                                \
  X(kUnknownQpn, "unknown_qpn", "no such QP")                                                      \
  X(kWrongService, "wrong_service", "opcode of another transport service than the QP's")           \
  X(kWrongPeer, "wrong_peer", "source or destination address is not the connection's")             \
  X(kBadQkey, "bad_qkey", "Q_Key is not the QP's")                                                 \
  X(kQpState, "qp_state", "QP state does not receive this")                                        \
  X(kDuplicate, "duplicate", "duplicate, acknowledged again or answered from the saved result")    \
  X(kOutOfSequence, "out_of_sequence", "PSN ahead of the expected one")                            \
  X(kGhostAck, "ghost_ack", "acknowledges a PSN that was not sent")                                \
  X(kStaleAck, "stale_ack", "acknowledges nothing new")                                            \
  X(kUnexpectedResponse, "unexpected_response", "response that nothing waits for")                 \
  X(kRnr, "rnr", "no receive posted: RNR NAK sent")                                                \
  X(kNoReceive, "no_receive", "no receive posted, and the service has no way to say so")           \
  X(kTooLong, "too_long", "longer than the receive or the path MTU [IBTA C9-205]")                 \
  X(kReceiveError, "receive_error", "the receive it was for completed in error")                   \
  X(kRefused, "refused", "UC: what a reliable service would have answered with a NAK")             \
  X(kNotAttached, "not_attached", "to a multicast group that no other QP here is attached to")     \
  X(kNaked, "naked", "answered with a NAK")                                                        \
  X(kCancelled, "cancelled", "behind a packet of the same QP that failed in the same burst")       \
  X(kOwnerGone, "owner_gone", "for the memory of an application that has ended: not answered")     \
  X(kVlan, "vlan", "a frame of a VLAN, for an untagged NIC")

enum class DropReason : std::uint8_t {
#define X(id, name, sentence) id,
  ROCI_DROP_REASONS(X)
#undef X
};

inline constexpr std::string_view kDropReasonNames[] = {
#define X(id, name, sentence) name,
    ROCI_DROP_REASONS(X)
#undef X
};
inline constexpr std::string_view kDropReasonSentences[] = {
#define X(id, name, sentence) sentence,
    ROCI_DROP_REASONS(X)
#undef X
};
inline constexpr std::size_t kDropReasonCount = sizeof(kDropReasonNames) / sizeof(kDropReasonNames[0]);

// X(member, "what it counts")
#define ROCI_COUNTERS(X)                                                       \
  X(tx_frames, "frames sent")                                                  \
  X(tx_bytes, "bytes of frames sent")                                          \
  X(tx_roce_packets, "RoCE packets sent, retransmissions included")            \
  X(rx_frames, "frames received")                                              \
  X(rx_bytes, "bytes of frames received")                                      \
  X(rx_roce_packets, "RoCE packets received, of any fate")                     \
  X(retransmitted_packets, "request packets sent again")                       \
  X(ack_timeouts, "ACK timer expirations that led to a retry")                 \
  X(rnr_naks_sent, "RNR NAKs sent")                                            \
  X(rnr_naks_received, "RNR NAKs received")                                    \
  X(naks_sent, "NAKs sent, RNR not counted")                                   \
  X(naks_received, "NAKs received, RNR not counted")                           \
  X(sequence_naks_sent, "of the NAKs sent: PSN sequence error")                \
  X(duplicate_requests, "duplicate request packets")                           \
  X(out_of_sequence, "request packets ahead of the expected PSN")              \
  X(retry_exceeded, "work requests failed for exhausted retries")              \
  X(local_errors, "work requests failed for a local error")                    \
  X(remote_errors, "work requests failed for an error at the peer")            \
  X(cq_overruns, "completions lost to a full CQ")                              \
  X(daemon_gaps, "gaps between passes credited to timers")                     \
  X(no_df, "IPv4 packets accepted without DF [IBTA CA17-24 would drop them]")  \
  X(cnp_received, "CNPs received")                                             \
  X(ecn_marked, "RoCE packets received with CE")                               \
  X(arp_replies_sent, "ARP replies and neighbour advertisements sent")         \
  X(no_source, "RoCE packets not sent: the NIC lost their source address")     \
  X(multicast_copies, "copies of multicast packets taken by QPs")              \
  X(multicast_losses, "copies that a QP attached to the group could not take") \
  X(memory_faults, "times application memory was not there, or its owner")

struct Counters {
#define X(member, what) std::uint64_t member = 0;
  ROCI_COUNTERS(X)
#undef X
  std::array<std::uint64_t, kDropReasonCount> dropped{};  // by DropReason; [kAccepted] counts accepted frames
};

}  // namespace roci::emulator
