// The neighbour cache of one NIC: which MAC a GID is reached at, learnt by ARP and neighbour discovery.
//
// Also answers for the NIC's own addresses: ARP, ND solicitations, ICMP and ICMPv6 echo [RFC 826, 792, 4861,
// 4443], and reports the multicast groups that it is told of: IGMPv2 and MLDv1 [RFC 2236, 2710], whose frames
// routers and switches of the later versions understand as well, and which name one group each. Not here:
// duplicate address detection, redirects, router discovery, ageing of learnt entries, VLANs. Learns only what
// it asked for, and changes of entries it has; static entries and the NIC's own addresses never change. A MAC
// it gives is never zero. Every table is bounded, by a constant below or by what it is given: static entries
// and the groups of the NIC. Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "emulator/command.h"
#include "emulator/config.h"
#include "emulator/counters.h"
#include "emulator/time.h"
#include "proto/types.h"

namespace roci::emulator {

enum class NeighbourState : std::uint8_t {
  kUnknown,      // never asked for
  kPending,      // asked for, no answer yet
  kKnown,        // lookup() gives its MAC
  kFailed,       // no answer to kNeighbourTries requests; the next request() starts again
  kUnreachable,  // not on link, and no gateway of its family
};

inline constexpr unsigned kNeighbourTries = 3;
inline constexpr unsigned kUnaskedReports = 2;  // of a new group, as one may be lost [RFC 2236, 8.10]
inline constexpr std::size_t kMaxNeighbours =
    1024;  // learnt or asked for, a NIC; the oldest learnt one gives way
// Groups left whose leave message waits to be sent; of more nothing is said, and a query finds out.
inline constexpr std::size_t kMaxWaitingLeaves = 256;
inline constexpr std::size_t kMaxNeighbourReplies = 32;  // answers waiting to be sent; more are dropped
inline constexpr std::size_t kMaxNeighbourFrame =
    1514;  // longest answer, also bounded by the NIC's MTU; longer echo requests are not answered

class NeighbourCache {
 public:
  // `answers`: this shard answers for the NIC's addresses (shard 0, where NicConfig::answers_neighbours).
  NeighbourCache(const NicConfig& nic, Duration timeout, bool answers);

  // The MAC to send to, now; that of the gateway for a GID that is not on link. Multicast GIDs and own GIDs
  // always have one.
  [[nodiscard]] std::optional<proto::Mac> lookup(const proto::Gid& gid) const;
  [[nodiscard]] NeighbourState state(const proto::Gid& gid) const;
  // Starts to resolve unless it is known, pending or unreachable. Returns the state after that.
  NeighbourState request(const proto::Gid& gid, Time now);
  // Grows whenever a MAC or the outcome of a request changed: who waits, or keeps a copy of a MAC, looks
  // again then. A copy stays good if lookup() no longer knows the GID.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }

  // The NIC's own addresses are those of `nic` now.
  void change_addresses(const NicConfig& nic);
  // A station's GIDs are `now` and were `before`, the first of which stays. No effect unless that is a static
  // entry: who knows one of the station's GIDs without asking, as on a fabric, knows all.
  void follow_station(const proto::Mac& mac, std::span<const proto::Gid> before,
                      std::span<const proto::Gid> now);

  // Multicast groups to report to the network, now, once more after a while, and whenever it asks. No effect
  // where a kernel owns the addresses: the port joins there.
  void join(const proto::Gid& group, Time now);
  void leave(const proto::Gid& group);

  // Any frame that is not RoCE. kAccepted: it was ours and is dealt with.
  DropReason on_frame(std::span<const std::byte> frame);

  void on_timers(Time now);
  [[nodiscard]] Time next_deadline() const;  // of on_timers(); kNever if nothing is pending

  // Frames to send: requests and answers. emit() writes the next one and returns its length; 0 if there is
  // none or `out` is shorter than the longest: kMaxNeighbourFrame, or what the NIC's MTU allows.
  [[nodiscard]] bool has_frame() const { return asking_ != 0 || reply_count_ != 0 || reporting_ != 0; }
  std::size_t emit(std::span<std::byte> out);
  // ARP replies and neighbour advertisements handed out by emit().
  [[nodiscard]] std::uint64_t replies_sent() const { return replies_sent_; }

  // Appends what it knows, static entries included; `nic` is copied into each.
  void snapshot(NicId nic, std::vector<NeighbourSnapshot>& out) const;

 private:
  struct Entry {
    proto::Gid gid;
    proto::Mac mac;
    NeighbourState state = NeighbourState::kPending;
    bool is_static = false;
    bool ask = false;  // a request is to be sent
    unsigned tries = 0;
    Time deadline = kNever;
  };
  struct Membership {
    proto::Gid group;
    bool report = false;  // is to be sent
    bool leaves = false;  // that it is left is to be sent
    unsigned unasked_left = 0;
    Time deadline = kNever;  // of the next unasked report
  };
  struct Reply {
    std::uint16_t length_bytes = 0;
    bool is_echo = false;
    std::array<std::byte, kMaxNeighbourFrame> bytes;
  };

  [[nodiscard]] bool is_own(const proto::Gid& gid) const;
  [[nodiscard]] bool kernel_reaches(const proto::Gid& gid) const;
  [[nodiscard]] bool is_broadcast(std::uint32_t ipv4) const;
  [[nodiscard]] std::optional<proto::Gid> next_hop(const proto::Gid& gid) const;
  [[nodiscard]] std::optional<proto::Gid> source_for(const proto::Gid& target) const;
  [[nodiscard]] std::span<const Entry> learnt() const { return std::span(entries_).subspan(static_count_); }
  [[nodiscard]] std::span<Entry> learnt() { return std::span(entries_).subspan(static_count_); }
  [[nodiscard]] const Entry* find(const proto::Gid& gid) const;
  Entry* find(const proto::Gid& gid);
  Entry& add(const proto::Gid& gid);
  void remove(const proto::Gid& gid);
  void add_static(const proto::Gid& gid, const proto::Mac& mac);
  void learn(const proto::Gid& gid, const proto::Mac& mac, bool is_answer);
  Reply* new_reply();

  DropReason on_arp(std::span<const std::byte> frame);
  DropReason on_ipv4(std::span<const std::byte> frame);
  DropReason on_ipv6(std::span<const std::byte> frame);
  DropReason on_solicitation(std::span<const std::byte> frame, std::span<const std::byte> message);
  DropReason on_advertisement(std::span<const std::byte> frame, std::span<const std::byte> message);
  DropReason on_igmp(std::span<const std::byte> message);
  DropReason on_mld(std::span<const std::byte> message);
  void on_group_query(const proto::Gid& group, bool ipv4);
  void want_report(Membership& membership);
  std::size_t emit_membership(std::span<std::byte> out);
  std::size_t emit_request(const Entry& entry, std::span<std::byte> out) const;

  proto::Mac mac_;
  std::vector<NicAddress> addresses_;
  std::vector<proto::Gid> own_;  // gid_table()
  std::optional<proto::Gid> gateway4_, gateway6_;
  Duration timeout_;
  std::size_t max_frame_bytes_;
  bool answers_;
  bool reports_;
  bool kernel_finds_;
  std::uint64_t changes_ = 0;
  std::uint64_t replies_sent_ = 0;
  std::size_t static_count_ = 0;
  std::size_t asking_ = 0;      // entries with ask
  std::vector<Entry> entries_;  // static_count_ that never change, then the learnt ones
  std::size_t reporting_ = 0;   // memberships with report or leaves
  std::vector<Membership> memberships_;
  std::vector<Reply> replies_;  // a ring, empty where nothing is answered
  std::size_t reply_first_ = 0;
  std::size_t reply_count_ = 0;
};

}  // namespace roci::emulator
