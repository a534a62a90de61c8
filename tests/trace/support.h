// Captures in memory: read from pcaps/, changed packet by packet, checked. For tests of tools/trace.
#pragma once

#include "proto/packet.h"
#include "tools/trace/checker.h"
#include "tools/trace/reader.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace roci::tools::test {

using Bytes = std::vector<std::byte>;

struct HeldFrame {
  std::int64_t time_ns = 0;
  Bytes bytes;
  std::size_t original_bytes = 0;
};

struct Capture {
  proto::LinkType link = proto::LinkType::kEthernet;
  std::vector<HeldFrame> frames;

  // Packets by their number, from 1.
  [[nodiscard]] HeldFrame& at(std::uint64_t number) { return frames.at(number - 1); }
  // The packet with `change` applied, then its lengths, checksum and ICRC made right again.
  void change(std::uint64_t number, const std::function<void(proto::Packet&)>& change);
  // The same, but everything else stays as it was.
  void spoil(std::uint64_t number, const std::function<void(proto::Packet&)>& change);
  // As spoil(), then with the right ICRC and IPv4 checksum.
  void spoil_and_seal(std::uint64_t number, const std::function<void(proto::Packet&)>& change);
  // By byte from the start of the frame.
  void poke(std::uint64_t number, std::size_t offset, std::uint8_t value);
  void remove(std::uint64_t number);
};

[[nodiscard]] std::filesystem::path pcaps_folder();
[[nodiscard]] std::vector<std::filesystem::path> all_captures(const std::filesystem::path& folder);
[[nodiscard]] Capture load(const std::filesystem::path& path);
[[nodiscard]] inline Capture load_own(std::string_view name) {
  return load(pcaps_folder() / (std::string{name} + ".pcap"));
}

// "3 ICRC" for each finding, in order.
using Lines = std::vector<std::string>;
[[nodiscard]] Lines check(const Capture& capture);
[[nodiscard]] Lines expectation(const std::string& name);

[[nodiscard]] Bytes file_bytes(const std::filesystem::path& path);

// A file with a name of its own that is gone in the end.
class TemporaryFile {
 public:
  TemporaryFile();
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> bytes) const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace roci::tools::test
