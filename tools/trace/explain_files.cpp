#include "tools/trace/explain_files.h"

#include "tools/trace/narrator.h"
#include "tools/trace/packet_comments.h"
#include "tools/trace/reader.h"
#include "tools/trace/rules.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <ostream>

namespace roci::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kUnreadable = 2;

// From the first frame on; a capture may step back.
std::string seconds(std::int64_t nanoseconds) {
  return fmt::format("{:.6f}", static_cast<double>(nanoseconds) / 1e9);
}

std::string to_line(const CapturedFrame& frame, std::int64_t first_ns, const Story& story,
                    const std::optional<proto::Packet>& packet, const std::string& comment) {
  std::string line = fmt::format("{:>5} {:>11} ", frame.number, seconds(frame.time_ns - first_ns));
  if (packet) {
    line +=
        fmt::format("{} -> {} QP {:#x}: ", story.source, story.destination, packet->bth.destination.value());
  }
  line += story.text;
  for (const Violation& violation : story.violations) {
    line += fmt::format(" ** {}: {}", info(violation.rule).id, violation.text);
  }
  if (!comment.empty()) line += " // " + comment;
  return line;
}

Json to_json(const std::string& path, const CapturedFrame& frame, std::int64_t first_ns, const Story& story,
             const std::optional<proto::Packet>& packet, const std::string& comment) {
  Json json = {{"file", path},
               {"packet", frame.number},
               {"seconds", static_cast<double>(frame.time_ns - first_ns) / 1e9}};
  if (packet) {
    json["source"] = story.source;
    json["destination"] = story.destination;
    json["destination_qp"] = packet->bth.destination.value();
    json["opcode"] = packet->opcode_info().short_name;
    json["psn"] = packet->bth.psn.value();
    json["payload_bytes"] = packet->payload.size();
  }
  json["text"] = story.text;
  Json violations = Json::array();
  for (const Violation& violation : story.violations) {
    violations.push_back({{"rule", info(violation.rule).id}, {"text", violation.text}});
  }
  json["violations"] = std::move(violations);
  if (!comment.empty()) json["comment"] = comment;
  return json;
}

}  // namespace

int explain_files(const ExplainOptions& options, std::ostream& out, std::ostream& err) {
  int status = 0;
  for (const std::string& path : options.paths) {
    auto opened = CaptureReader::open(path);
    if (!opened) {
      err << path << ": cannot be read: " << opened.error() << '\n';
      status = kUnreadable;
      continue;
    }
    if (options.paths.size() > 1 && !options.is_json) out << path << ":\n";
    Narrator narrator;
    PacketComments comments(path);
    CapturedFrame frame;
    std::int64_t first_ns = 0;
    CaptureReader::Next next = CaptureReader::Next::kEnd;
    while (out && (next = opened->next(frame)) == CaptureReader::Next::kFrame) {
      if (frame.number == 1) first_ns = frame.time_ns;
      const Story story = narrator.tell(frame);
      const std::string comment = comments.next();
      if (options.is_roce_only && !narrator.packet() && story.violations.empty()) continue;
      if (options.is_json) {
        out << to_json(path, frame, first_ns, story, narrator.packet(), comment)
                   .dump(-1, ' ', false, Json::error_handler_t::replace)
            << '\n';
      } else {
        out << to_line(frame, first_ns, story, narrator.packet(), comment) << '\n';
      }
    }
    if (next == CaptureReader::Next::kError) {
      out << std::flush;
      err << path << ": unreadable after frame " << frame.number << ": " << opened->error() << '\n';
      status = kUnreadable;
    }
  }
  return status;
}

}  // namespace roci::tools
