// What a capture does not show is never a finding: clean captures stay clean wherever they begin or end, with
// one direction, with answers lost, or with frames cut short.
#include "tests/trace/support.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>

namespace roci::tools::test {
namespace {

template <class Visit>
void for_each_clean_capture(Visit visit) {
  std::size_t count = 0;
  for (const auto& path : all_captures(pcaps_folder())) {
    if (!expectation(path.stem()).empty()) continue;
    INFO(path);
    visit(load(path));
    ++count;
  }
  REQUIRE(count >= 120);
}

Lines check_part(const Capture& whole, std::size_t from, std::size_t to) {
  Capture part;
  part.link = whole.link;
  part.frames.assign(whole.frames.begin() + static_cast<std::ptrdiff_t>(from),
                     whole.frames.begin() + static_cast<std::ptrdiff_t>(to));
  return check(part);
}

TEST_CASE("a capture may begin anywhere") {
  for_each_clean_capture([](const Capture& capture) {
    const std::size_t step = std::max<std::size_t>(1, capture.frames.size() / 40);
    for (std::size_t from = 1; from < capture.frames.size(); from += step) {
      INFO("from frame " << from + 1);
      CHECK(check_part(capture, from, capture.frames.size()) == Lines{});
    }
  });
}

TEST_CASE("a capture may end anywhere") {
  for_each_clean_capture([](const Capture& capture) {
    const std::size_t step = std::max<std::size_t>(1, capture.frames.size() / 40);
    for (std::size_t to = 0; to < capture.frames.size(); to += step) {
      INFO("before frame " << to + 1);
      CHECK(check_part(capture, 0, to) == Lines{});
    }
  });
}

TEST_CASE("a capture may hold one direction only") {
  for_each_clean_capture([](const Capture& capture) {
    std::map<std::array<std::uint8_t, 16>, Capture> by_source;
    for (const HeldFrame& frame : capture.frames) {
      const proto::Dissection dissection = proto::dissect(frame.bytes, capture.link);
      if (!dissection.is_complete) continue;
      by_source[dissection.packet.source().bytes].frames.push_back(frame);
    }
    for (const auto& [source, part] : by_source)
      CHECK(check(part) == Lines{});
  });
}

TEST_CASE("an answer may be lost before the capture sees it") {
  for_each_clean_capture([](const Capture& capture) {
    for (std::uint64_t number = 1; number <= capture.frames.size(); ++number) {
      const proto::Dissection dissection = proto::dissect(capture.frames[number - 1].bytes, capture.link);
      if (!dissection.is_complete || dissection.packet.opcode_info().role != proto::Role::kResponse) continue;
      Capture lossy = capture;
      lossy.remove(number);
      INFO("without packet " << number);
      CHECK(check(lossy) == Lines{});
    }
  });
}

TEST_CASE("frames may be cut short") {
  for_each_clean_capture([](const Capture& capture) {
    for (const std::size_t snap_bytes : {20U, 44U, 60U, 74U, 96U, 200U, 1000U}) {
      Capture cut = capture;
      for (HeldFrame& frame : cut.frames)
        frame.bytes.resize(std::min<std::size_t>(frame.bytes.size(), snap_bytes));
      INFO("cut at " << snap_bytes);
      CHECK(check(cut) == Lines{});
    }
  });
}

TEST_CASE("a packet may be captured twice, or two in the wrong order") {
  for_each_clean_capture([](const Capture& capture) {
    for (std::size_t i = 0; i + 1 < capture.frames.size(); i += 1 + capture.frames.size() / 40) {
      Capture twice = capture;
      twice.frames.insert(twice.frames.begin() + static_cast<std::ptrdiff_t>(i), capture.frames[i]);
      INFO("frame " << i + 1);
      CHECK(check(twice) == Lines{});
      Capture swapped = capture;
      std::swap(swapped.frames[i].bytes, swapped.frames[i + 1].bytes);
      std::swap(swapped.frames[i].original_bytes, swapped.frames[i + 1].original_bytes);
      CHECK(check(swapped) == Lines{});
    }
  });
}

// The other side of it: a request that is missing, though its answer covers it, is a gap.
TEST_CASE("a request that nobody saw is a PSN gap or nothing") {
  for_each_clean_capture([](const Capture& capture) {
    for (std::uint64_t number = 1; number <= capture.frames.size(); ++number) {
      const proto::Dissection dissection = proto::dissect(capture.frames[number - 1].bytes, capture.link);
      if (!dissection.is_complete || dissection.packet.opcode_info().role != proto::Role::kRequest) continue;
      Capture lossy = capture;
      lossy.remove(number);
      INFO("without packet " << number);
      for (const std::string& line : check(lossy))
        CHECK(line.find("PSN.CONTINUITY") != std::string::npos);
    }
  });
}

}  // namespace
}  // namespace roci::tools::test
