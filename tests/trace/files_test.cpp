// `roci check` as a whole: exit status, text, JSON, several files.
#include "tests/trace/support.h"
#include "tools/trace/check_files.h"
#include "tools/trace/explain_files.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <sstream>

namespace roci::tools::test {
namespace {

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

Outcome run(std::vector<std::string> paths, bool is_json = false, bool is_quiet = false) {
  std::ostringstream out;
  std::ostringstream err;
  CheckOptions options;
  options.paths = std::move(paths);
  options.is_json = is_json;
  options.is_quiet = is_quiet;
  const int status = check_files(options, out, err);
  return {status, out.str(), err.str()};
}

std::string own(std::string_view name) { return (pcaps_folder() / (std::string{name} + ".pcap")).string(); }

TEST_CASE("0 is clean, 1 findings, 2 unreadable, and the greatest counts") {
  const TemporaryFile empty;
  const TemporaryFile garbage;
  garbage.write(Bytes(1000, std::byte{'x'}));
  const TemporaryFile cut;
  const Bytes whole = file_bytes(own("raw-dropped"));
  cut.write(std::span{whole}.first(whole.size() - 1));

  CHECK(run({own("rc-send-only")}).status == kCheckClean);
  CHECK(run({own("raw-dropped")}).status == kCheckFindings);
  CHECK(run({"/nonexistent/file"}).status == kCheckUnreadable);
  CHECK(run({"/"}).status == kCheckUnreadable);
  CHECK(run({empty.path()}).status == kCheckUnreadable);
  CHECK(run({garbage.path()}).status == kCheckUnreadable);
  CHECK(run({own("raw-dropped"), own("rc-send-only")}).status == kCheckFindings);
  CHECK(run({"/nonexistent/file", own("rc-send-only")}).status == kCheckUnreadable);

  // What could be read of a cut file is judged, and said, all the same.
  const Outcome outcome = run({cut.path()});
  CHECK(outcome.status == kCheckUnreadable);
  CHECK(outcome.out.find("packet 3: ICRC:") != std::string::npos);
  CHECK(outcome.err.find("unreadable after frame 5") != std::string::npos);
}

TEST_CASE("text names file, packet, rule and source") {
  const Outcome outcome = run({own("raw-tolerated")});
  CHECK(outcome.out.find(
            "raw-tolerated.pcap: packet 5: FRAME.DF: DF is not set in the IPv4 header [IBTA CA17-7]\n") !=
        std::string::npos);
  CHECK(outcome.out.find("10 frames, 10 of RoCE or InfiniBand: 1 finding\n") != std::string::npos);
  CHECK(outcome.err.empty());
  CHECK(run({own("rc-send-only")}, false, true).out.empty());
}

TEST_CASE("JSON has one object for each file") {
  const Outcome outcome = run({own("raw-dropped"), own("rc-send-only"), "/nonexistent/file"}, true);
  const auto json = nlohmann::json::parse(outcome.out);
  REQUIRE(json["files"].size() == 3);
  CHECK(json["files"][0]["verdict"] == "findings");
  REQUIRE(json["files"][0]["findings"].size() == 3);
  CHECK(json["files"][0]["findings"][2]["packet"] == 3);
  CHECK(json["files"][0]["findings"][2]["rule"] == "ICRC");
  CHECK(json["files"][1]["verdict"] == "clean");
  CHECK(json["files"][1]["frames"] == 6);
  CHECK(json["files"][2]["verdict"] == "unreadable");
  CHECK(json["files"][2].contains("error"));
}

// A pcapng file of the frames, with a statistics block that tells of `lost` frames.
Bytes pcapng_of(const Capture& capture, std::uint64_t lost, std::string_view comment = {}) {
  Bytes file;
  const auto put = [&file]<class T>(T value) {
    const auto bytes = std::as_bytes(std::span{&value, 1});
    file.insert(file.end(), bytes.begin(), bytes.end());
  };
  const auto put32 = [&put](std::size_t value) { put(static_cast<std::uint32_t>(value)); };
  put32(0x0A0D0D0A), put32(28), put32(0x1A2B3C4D), put32(1), put(std::int64_t{-1}), put32(28);
  put32(1), put32(20), put32(1), put32(0), put32(20);
  const std::size_t options = comment.empty() ? 0 : 4 + (comment.size() + 3) / 4 * 4 + 4;
  for (const HeldFrame& frame : capture.frames) {
    const std::size_t padded = (frame.bytes.size() + 3) / 4 * 4;
    put32(6), put32(32 + padded + options), put32(0), put32(0), put32(0), put32(frame.bytes.size()),
        put32(frame.bytes.size());
    file.insert(file.end(), frame.bytes.begin(), frame.bytes.end());
    file.resize(file.size() + padded - frame.bytes.size());
    if (!comment.empty()) {
      put(std::uint16_t{1}), put(static_cast<std::uint16_t>(comment.size()));
      const auto text = std::as_bytes(std::span{comment});
      file.insert(file.end(), text.begin(), text.end());
      file.resize((file.size() + 3) / 4 * 4);
      put32(0);
    }
    put32(32 + padded + options);
  }
  put32(5), put32(40), put32(0), put(std::uint64_t{0});
  put(std::uint16_t{5}), put(std::uint16_t{8}), put(lost), put32(0), put32(40);
  return file;
}

TEST_CASE("a capture that says that it lost frames is not judged by what is missing") {
  Capture capture = load_own("rc-send-multi");
  capture.remove(9);
  const TemporaryFile file;
  file.write(pcapng_of(capture, 0));
  const Outcome whole = run({file.path()});
  CHECK(whole.status == kCheckFindings);
  CHECK(whole.out.find("PSN.CONTINUITY") != std::string::npos);
  file.write(pcapng_of(capture, 1));
  const Outcome lossy = run({file.path()});
  CHECK(lossy.status == kCheckClean);
  CHECK(lossy.out.find("the capture lost 1 frame,") != std::string::npos);
}

TEST_CASE("explain tells the comments of a capture's packets") {
  const Capture capture = load_own("rc-send-only");
  const TemporaryFile file;
  file.write(pcapng_of(capture, 0, "bad_icrc: wrong\nICRC"));
  ExplainOptions options;
  options.paths = {file.path()};
  for (const bool is_json : {false, true}) {
    options.is_json = is_json;
    std::ostringstream out, err;
    CHECK(explain_files(options, out, err) == 0);
    std::istringstream in{out.str()};
    std::size_t count = 0;
    for (std::string line; std::getline(in, line); ++count) {
      if (is_json)
        CHECK(nlohmann::json::parse(line)["comment"] == "bad_icrc: wrong ICRC");
      else
        CHECK_THAT(line, Catch::EndsWith(" // bad_icrc: wrong ICRC"));
    }
    CHECK(count == capture.frames.size());
  }
  file.write(pcapng_of(capture, 0));
  options.is_json = false;
  std::ostringstream out, err;
  CHECK(explain_files(options, out, err) == 0);
  CHECK(out.str().find("//") == std::string::npos);
}

TEST_CASE("--rules lists every rule") {
  std::ostringstream text;
  print_rules(false, text);
  std::ostringstream json;
  print_rules(true, json);
  CHECK(nlohmann::json::parse(json.str())["rules"].size() == kRules.size());
  for (const RuleInfo& rule : kRules)
    CHECK(text.str().find(rule.id) != std::string::npos);
}

}  // namespace
}  // namespace roci::tools::test
