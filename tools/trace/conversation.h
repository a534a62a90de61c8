// What packets say together: the flows of a capture, put together to connections, and the rules between
// packets.
//
// A flow is what one address sends to one QP: requests of one side of a connection, and its answers to the
// other side's. Two flows make a connection; answers whose PSN fits one flow's requests and no other's tell
// which. What a capture does not show is never a failure: it may begin and end anywhere, see one direction
// only, and miss what was lost before it got there. A judgement waits until it can be certain, at the latest
// until finish(). Memory is bounded by Limits. Not here: rules of one packet alone (packet_rules.h), and
// those between the requests of one flow (request_log.h). One thread.
#pragma once

#include "proto/packet.h"
#include "tools/trace/check_limits.h"
#include "tools/trace/finding.h"
#include "tools/trace/request_log.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace roci::tools {

class Conversations {
 public:
  explicit Conversations(Report report, Limits limits = {});

  void on_packet(const Sighting& seen);
  // A frame that cannot be read, or that its receiver drops: it may be what seems to be missing later.
  void on_unread(std::uint64_t number) { last_unread_ = number; }
  // The capture is over: judges what waited.
  void finish();

 private:
  struct Path {
    proto::Gid source;
    proto::Gid destination;
    bool operator==(const Path&) const = default;
    [[nodiscard]] Path reversed() const { return {destination, source}; }
  };
  struct PathHash {
    std::size_t operator()(const Path& path) const;
  };
  struct FlowKey {
    Path path;
    proto::Qpn destination;
    bool operator==(const FlowKey&) const = default;
  };
  struct FlowKeyHash {
    std::size_t operator()(const FlowKey& key) const;
  };

  // How many packets had a value, and which ones as far as limits allow.
  struct Tally {
    std::uint16_t value = 0;
    std::uint64_t count = 0;
    struct Packet {
      std::uint64_t number;
      proto::Psn psn;
    };
    std::vector<Packet> packets;
  };
  using Tallies = std::vector<Tally>;

  // Whether the sender numbers the packets of this flow, and no others, one after the other.
  struct IpIds {
    std::optional<std::uint16_t> last;
    unsigned steps_of_one = 0;
    bool is_irregular = false;
  };

  struct Flow {
    FlowKey key;
    Flow* peer = nullptr;  // what the other side of the connection sends
    RequestLog requests;
    Tallies pkeys;  // by their lower 15 bits
    Tallies services;
    std::uint32_t mtu_bytes = 0;
    IpIds ip_ids;
    bool has_full_member = false;  // some P_Key had the membership bit
    bool is_listed = false;        // in unpaired_
    std::size_t pairing_tries = 0;
    std::int64_t last_ns = 0;
    std::uint64_t last_number = 0;
  };
  using FlowList = std::list<Flow>;

  Flow& flow_of(const proto::Packet& packet);
  void forget_oldest();
  void judge_at_end(Flow& flow);
  void judge_pkeys(Flow& flow);
  void judge_services(Flow& flow);
  void judge_mtu(Flow& flow, const Sighting& seen);
  void judge_read_response(const Flow& requester, const Flow& responder, const Sighting& seen);
  void on_request(Flow& flow, const Sighting& seen, bool is_nothing_between);
  void on_response(Flow& flow, const Sighting& seen);
  void find_peer(Flow& flow, const proto::Packet& packet);
  void list_unpaired(Flow& flow);
  void unlist(Flow& flow);
  void unpair(Flow& flow);
  void tally(Tallies& tallies, std::uint16_t value, const Sighting& seen) const;
  [[nodiscard]] RequestLog::Context context_of(const Flow& flow, bool is_nothing_between = false) const;
  [[nodiscard]] static bool is_nothing_between(IpIds& ids, const proto::Packet& packet);

  Report report_;
  Limits limits_;
  std::uint64_t last_unread_ = 0;
  std::size_t all_requests_ = 0;
  FlowList flows_;  // the one idle for longest comes first
  std::unordered_map<FlowKey, FlowList::iterator, FlowKeyHash> by_key_;
  std::unordered_map<Path, std::vector<Flow*>, PathHash>
      unpaired_;  // with requests whose answers are not known
};

}  // namespace roci::tools
