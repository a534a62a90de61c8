#include "tools/trace/checker.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace roci::tools {

Checker::Checker(Limits limits)
    : limits_(limits), conversations_([this](Finding finding) { add(std::move(finding)); }, limits) {}

void Checker::add(Finding finding) {
  ++counts_.findings;
  if (findings_.size() < limits_.findings) findings_.push_back(std::move(finding));
}

void Checker::on_frame(const CapturedFrame& frame) {
  ++counts_.frames;
  JudgedFrame judged = judge_frame(frame, scratch_);
  if (judged.kind == FrameKind::kOther) return;
  ++counts_.roce;
  if (frame.is_cut()) ++counts_.cut_short;
  for (Violation& violation : judged.violations)
    add({frame.number, violation.rule, std::move(violation.text)});
  if (judged.kind == FrameKind::kSound) {
    conversations_.on_packet({frame.number, frame.time_ns, judged.packet});
  } else {
    conversations_.on_unread(frame.number);
  }
}

void Checker::finish() {
  conversations_.finish();
  std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.packet, a.rule) < std::tie(b.packet, b.rule);
  });
}

bool Checker::rests_on_missing() const {
  return std::any_of(findings_.begin(), findings_.end(),
                     [](const Finding& one) { return one.needs_whole_capture; });
}

void Checker::forgive_missing() {
  counts_.findings -= std::erase_if(findings_, [](const Finding& one) { return one.needs_whole_capture; });
}

}  // namespace roci::tools
