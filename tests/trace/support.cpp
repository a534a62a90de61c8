#include "tests/trace/support.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace roci::tools::test {
namespace {

enum class Repair : std::uint8_t { kNothing, kSeal, kAll };

void edit(HeldFrame& frame, proto::LinkType link, Repair repair,
          const std::function<void(proto::Packet&)>& change) {
  const Bytes before = frame.bytes;
  proto::Dissection dissection = proto::dissect(before, link);
  if (!dissection.is_complete) throw std::runtime_error{"cannot edit a frame that is not whole"};
  proto::Packet packet = dissection.packet;
  change(packet);
  switch (repair) {
    case Repair::kNothing:
      break;
    case Repair::kSeal:
      if (packet.ipv4) packet.ipv4->checksum = packet.ipv4->checksum_of();
      packet.icrc = proto::icrc_of(packet);
      break;
    case Repair::kAll:
      proto::complete(packet);
      break;
  }
  frame.bytes.resize(proto::size_of(packet));
  if (proto::emit(packet, frame.bytes) != frame.bytes.size()) throw std::runtime_error{"cannot emit"};
  frame.original_bytes = frame.bytes.size();
}

}  // namespace

void Capture::change(std::uint64_t number, const std::function<void(proto::Packet&)>& change) {
  edit(at(number), link, Repair::kAll, change);
}

void Capture::spoil(std::uint64_t number, const std::function<void(proto::Packet&)>& change) {
  edit(at(number), link, Repair::kNothing, change);
}

void Capture::spoil_and_seal(std::uint64_t number, const std::function<void(proto::Packet&)>& change) {
  edit(at(number), link, Repair::kSeal, change);
}

void Capture::poke(std::uint64_t number, std::size_t offset, std::uint8_t value) {
  at(number).bytes.at(offset) = std::byte{value};
}

void Capture::remove(std::uint64_t number) {
  frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(number - 1));
}

std::filesystem::path pcaps_folder() { return ROCI_PCAPS; }

std::vector<std::filesystem::path> all_captures(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    const std::string extension = entry.path().extension();
    if (extension == ".pcap" || extension == ".pcapng") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Capture load(const std::filesystem::path& path) {
  auto reader = CaptureReader::open(path);
  if (!reader) throw std::runtime_error{path.string() + ": " + reader.error()};
  Capture capture;
  CapturedFrame frame;
  while (reader->next(frame) == CaptureReader::Next::kFrame) {
    capture.link = frame.link;
    capture.frames.push_back({frame.time_ns, {frame.bytes.begin(), frame.bytes.end()}, frame.original_bytes});
  }
  return capture;
}

Lines check(const Capture& capture) {
  Checker checker;
  std::uint64_t number = 0;
  for (const HeldFrame& frame : capture.frames) {
    checker.on_frame({++number, frame.time_ns, capture.link, frame.bytes, frame.original_bytes});
  }
  checker.finish();
  Lines lines;
  for (const Finding& finding : checker.findings()) {
    lines.push_back(std::to_string(finding.packet) + " " + std::string{info(finding.rule).id});
  }
  return lines;
}

Lines expectation(const std::string& name) {
  const std::filesystem::path path = pcaps_folder() / (name + ".expect");
  std::ifstream file{path};
  if (!file) throw std::runtime_error{path.string() + " is missing"};
  Lines lines;
  for (std::string line; std::getline(file, line);)
    lines.push_back(line);
  return lines;
}

Bytes file_bytes(const std::filesystem::path& path) {
  std::ifstream file{path, std::ios::binary};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

TemporaryFile::TemporaryFile()
    : path_((std::filesystem::temp_directory_path() / "roci-trace-XXXXXX").string()) {
  const int descriptor = mkstemp(path_.data());
  if (descriptor < 0) throw std::runtime_error{"cannot make a temporary file"};
  close(descriptor);
}

TemporaryFile::~TemporaryFile() { std::remove(path_.c_str()); }

void TemporaryFile::write(std::span<const std::byte> bytes) const {
  std::ofstream file{path_, std::ios::binary | std::ios::trunc};
  for (const std::byte byte : bytes)
    file.put(static_cast<char>(byte));
}

}  // namespace roci::tools::test
