#include "tools/trace/check_files.h"

#include "tools/trace/capture_loss.h"
#include "tools/trace/checker.h"
#include "tools/trace/progress.h"
#include "tools/trace/reader.h"
#include "tools/trace/rules.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ostream>
#include <utility>

namespace roci::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kStandardInput = "-";

struct FileVerdict {
  std::vector<Finding> findings;
  CheckCounts counts;
  std::uint64_t lost_by_capture = 0;  // looked up only where it matters
  std::string error;                  // empty if the file was read to its end

  [[nodiscard]] int status() const {
    if (!error.empty()) return kCheckUnreadable;
    return counts.findings > 0 ? kCheckFindings : kCheckClean;
  }
};

FileVerdict check_file(const std::string& path, const CheckOptions& options, std::ostream& err) {
  FileVerdict verdict;
  auto opened = CaptureReader::open(path);
  if (!opened) {
    verdict.error = opened.error();
    return verdict;
  }
  CaptureReader& reader = *opened;
  Checker checker{options.limits};
  {
    Progress progress{options.shows_progress, path, err};
    CapturedFrame frame;
    CaptureReader::Next next = CaptureReader::Next::kEnd;
    while ((next = reader.next(frame)) == CaptureReader::Next::kFrame) {
      checker.on_frame(frame);
      progress.on_frame(reader, frame.number);
    }
    if (next == CaptureReader::Next::kError) verdict.error = reader.error();
  }
  checker.finish();
  if (checker.rests_on_missing() && path != kStandardInput) {
    verdict.lost_by_capture = frames_lost_by_capture(path);
    if (verdict.lost_by_capture > 0) checker.forgive_missing();
  }
  verdict.findings = checker.findings();
  verdict.counts = checker.counts();
  return verdict;
}

std::string plural(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void print_text(const std::string& path, const FileVerdict& verdict, const CheckOptions& options,
                std::ostream& out) {
  for (const Finding& finding : verdict.findings) {
    const RuleInfo& rule = info(finding.rule);
    out << fmt::format("{}: packet {}: {}: {} [{}]\n", path, finding.packet, rule.id, finding.text,
                       rule.source);
  }
  const CheckCounts& counts = verdict.counts;
  if (counts.findings > verdict.findings.size()) {
    out << fmt::format("{}: {} more are not shown\n", path,
                       plural(counts.findings - verdict.findings.size(), "finding"));
  }
  if (options.is_quiet && verdict.status() == kCheckClean) return;
  if (counts.frames == 0 && !verdict.error.empty()) return;
  out << fmt::format("{}: {}, {} of RoCE or InfiniBand: {}", path, plural(counts.frames, "frame"),
                     counts.roce, counts.findings == 0 ? "no finding" : plural(counts.findings, "finding"));
  if (counts.cut_short > 0) {
    out << fmt::format(" ({} cut by the capture, judged as far as they go)", counts.cut_short);
  }
  if (verdict.lost_by_capture > 0) {
    out << fmt::format(" (the capture lost {}, so what is missing was not judged)",
                       plural(verdict.lost_by_capture, "frame"));
  }
  out << '\n';
}

Json to_json(const std::string& path, const FileVerdict& verdict) {
  Json findings = Json::array();
  for (const Finding& finding : verdict.findings) {
    const RuleInfo& rule = info(finding.rule);
    findings.push_back(
        {{"packet", finding.packet}, {"rule", rule.id}, {"source", rule.source}, {"text", finding.text}});
  }
  constexpr std::array<const char*, 3> kVerdicts = {"clean", "findings", "unreadable"};
  Json json = {{"file", path},
               {"verdict", kVerdicts[static_cast<std::size_t>(verdict.status())]},
               {"frames", verdict.counts.frames},
               {"roce", verdict.counts.roce},
               {"cut_short", verdict.counts.cut_short},
               {"lost_by_capture", verdict.lost_by_capture},
               {"finding_count", verdict.counts.findings},
               {"findings", std::move(findings)}};
  if (!verdict.error.empty()) json["error"] = verdict.error;
  return json;
}

// File names and libpcap's messages may hold any byte.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace

int check_files(const CheckOptions& options, std::ostream& out, std::ostream& err) {
  int status = kCheckClean;
  Json files = Json::array();
  for (const std::string& path : options.paths) {
    const FileVerdict verdict = check_file(path, options, err);
    status = std::max(status, verdict.status());
    if (options.is_json) {
      files.push_back(to_json(path, verdict));
    } else {
      print_text(path, verdict, options, out);
    }
    if (!verdict.error.empty()) {
      out << std::flush;
      err << path << ": "
          << (verdict.counts.frames == 0 ? "cannot be read"
                                         : fmt::format("unreadable after frame {}", verdict.counts.frames))
          << ": " << verdict.error << '\n';
    }
  }
  if (options.is_json) out << dump({{"files", std::move(files)}}) << '\n';
  return status;
}

void print_rules(bool is_json, std::ostream& out) {
  if (is_json) {
    Json rules = Json::array();
    for (const RuleInfo& rule : kRules) {
      rules.push_back({{"rule", rule.id}, {"source", rule.source}, {"text", rule.sentence}});
    }
    out << dump({{"rules", std::move(rules)}}) << '\n';
    return;
  }
  for (const RuleInfo& rule : kRules)
    out << fmt::format("{:<19} {} [{}]\n", rule.id, rule.sentence, rule.source);
}

}  // namespace roci::tools
