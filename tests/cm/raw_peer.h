// One manager, and a peer that says whatever a test likes, without one of its own.
//
// Test code only. Thread rule: one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/cm/network.h"

namespace roci::cm_test {

// The states of a conversation, and the two where there is none.
enum class Stage : std::uint8_t {
  kReqSent,
  kRepReceived,
  kActive,  // established, we asked
  kReqReceived,
  kRepSent,
  kPassive,  // established, the peer asked
  kDreqSent,
  kTimeWait,
  kForgotten,
  kSidrReqSent,
  kSidrReqReceived,
  kSidrRepSent,
};
inline constexpr std::size_t kStages = 12;

class RawPeer {
 public:
  static constexpr proto::CommunicationId kId{0x77};  // the peer's
  static constexpr proto::Qpn kQpn{0x100}, kOurQpn{0x200};
  static constexpr std::uint16_t kPort = 7;  // where we listen, in TCP and UDP

  explicit RawPeer(cm::Limits limits = {});
  // From a fresh manager to that stage.
  void reach(Stage stage);

  [[nodiscard]] cm::ConnectionManager& cm() { return *host_.cm; }
  [[nodiscard]] Network& network() { return network_; }
  [[nodiscard]] Host& host() { return host_; }
  [[nodiscard]] proto::CommunicationId ours() const { return ours_; }
  [[nodiscard]] IdHandle id() const { return id_; }

  // Messages of the peer about the conversation that there is.
  [[nodiscard]] proto::CmReq req(proto::CommunicationId id = kId, proto::Qpn qpn = kQpn) const;
  [[nodiscard]] proto::CmRep rep() const;
  [[nodiscard]] proto::CmSidrReq sidr_req(proto::CommunicationId id = kId) const;
  [[nodiscard]] std::vector<proto::CmMessage> every_message() const;

  void say(const proto::CmMessage& message);
  void say_from(const proto::Gid& source, const proto::CmMessage& message,
                proto::Qpn source_qpn = proto::kQpnGsi);
  // What the manager sent since the last call.
  [[nodiscard]] std::vector<proto::CmMessage> heard();
  // What came of the last message in words: "DREP +disconnected >time wait".
  [[nodiscard]] std::string outcome();

 private:
  [[nodiscard]] std::string word() const;

  Network network_;
  Host& host_;
  std::vector<proto::CmMessage> heard_;
  proto::CommunicationId ours_;
  IdHandle id_;
  std::string last_word_;
};

[[nodiscard]] const char* name_of(EventKind kind);
[[nodiscard]] const char* name_of(Stage stage);

}  // namespace roci::cm_test
