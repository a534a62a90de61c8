// Tells a capture in words: one sentence for each packet, with the packet that it answers or repeats.
//
// Remembers a bounded number of requests; beyond, a sentence says less. Says what is wrong with a packet by
// itself. Not here: rules between packets (conversation.h). One thread.
#pragma once

#include "proto/packet.h"
#include "tools/trace/packet_rules.h"
#include "tools/trace/reader.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace roci::tools {

struct Story {
  std::string source;  // address, "" where there is none
  std::string destination;
  std::string text;  // what the packet is and does
  std::vector<Violation> violations;
};

class Narrator {
 public:
  // What `frame` lends must live until the next call. `packet` of the last call, if it had a legible BTH.
  [[nodiscard]] Story tell(const CapturedFrame& frame);
  [[nodiscard]] const std::optional<proto::Packet>& packet() const { return packet_; }

 private:
  static constexpr std::size_t kRememberedRequests = 16'384;

  // Requests are looked up by path and PSN: who answers does not say which QP it was asked by.
  struct Key {
    proto::Gid source;
    proto::Gid destination;
    proto::Psn psn;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Request {
    std::uint64_t first_number = 0;
    std::uint64_t last_number = 0;
    proto::Qpn destination;
    proto::Opcode opcode = proto::Opcode::kRcSendOnly;
    bool is_ambiguous = false;  // several QPs had this PSN
  };
  // A READ response in progress, by who gets it.
  struct Response {
    std::uint64_t request_number = 0;
    proto::Psn next;
  };

  [[nodiscard]] std::string tell_request(const proto::Packet& packet, const CapturedFrame& frame);
  [[nodiscard]] std::string tell_response(const proto::Packet& packet);
  [[nodiscard]] std::string tell_acknowledge(const proto::Packet& packet) const;
  // "(packet 12)", or "" if it is not known.
  [[nodiscard]] std::string answered(const proto::Packet& packet) const;
  [[nodiscard]] const Request* request_answered_by(const proto::Packet& packet) const;

  std::unordered_map<Key, Request, KeyHash> requests_;
  std::deque<Key> order_;
  std::unordered_map<Key, Response, KeyHash> responses_;  // the PSN of the key is the QPN
  std::optional<proto::Packet> packet_;
  Scratch scratch_;
};

}  // namespace roci::tools
