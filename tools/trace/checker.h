// Checks a capture against the rules, one frame after the other: passive conformance.
//
// Puts the parts together: rules of one packet, then the flows. Never writes to anything. One thread.
#pragma once

#include "tools/trace/check_limits.h"
#include "tools/trace/conversation.h"
#include "tools/trace/finding.h"
#include "tools/trace/packet_rules.h"
#include "tools/trace/reader.h"

#include <cstdint>
#include <vector>

namespace roci::tools {

struct CheckCounts {
  std::uint64_t frames = 0;
  std::uint64_t roce = 0;       // RoCE v2, RoCE v1 and InfiniBand packets
  std::uint64_t cut_short = 0;  // cut by the capture: what is missing was not judged
  std::uint64_t findings = 0;   // all of them; no more than Limits::findings are kept
};

class Checker {
 public:
  explicit Checker(Limits limits = {});
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  void on_frame(const CapturedFrame& frame);
  // No more frames: the findings are complete and in the order of packets.
  void finish();
  // After finish(): some findings rest on what is missing, and are none if the capture itself lost frames.
  [[nodiscard]] bool rests_on_missing() const;
  void forgive_missing();

  [[nodiscard]] const std::vector<Finding>& findings() const { return findings_; }
  [[nodiscard]] const CheckCounts& counts() const { return counts_; }

 private:
  void add(Finding finding);

  Limits limits_;
  CheckCounts counts_;
  std::vector<Finding> findings_;
  Scratch scratch_;
  Conversations conversations_;
};

}  // namespace roci::tools
