// Reads the frames of a capture file: pcap and pcapng, with times of micro- or nanoseconds.
//
// Never trusts the file: a damaged one ends in an error, after the frames before the damage. Holds one frame
// at a time. Not here: what the frames mean. One thread at a time for each reader.
#pragma once

#include "proto/link_type.h"
#include "proto/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace roci::tools {

struct CapturedFrame {
  std::uint64_t number = 0;  // from 1, as Wireshark counts
  std::int64_t time_ns = 0;  // since 1970
  proto::LinkType link = proto::LinkType::kEthernet;
  std::span<const std::byte> bytes;  // lent until the next call of next()
  std::size_t original_bytes = 0;    // on the wire; more than bytes.size() if the capture cut it

  [[nodiscard]] bool is_cut() const { return original_bytes > bytes.size(); }
};

class CaptureReader {
 public:
  // "-" is standard input. The error says why in one line, without the path.
  [[nodiscard]] static proto::Result<CaptureReader, std::string> open(const std::string& path);

  enum class Next : std::uint8_t { kFrame, kEnd, kError };
  [[nodiscard]] Next next(CapturedFrame& frame);
  // Why next() said kError.
  [[nodiscard]] const std::string& error() const { return error_; }

  // For progress; 0 where the file has no size, such as a pipe.
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] std::uint64_t bytes_read() const;

 private:
  struct Handle;
  struct Close {
    void operator()(Handle* handle) const;
  };
  explicit CaptureReader(std::unique_ptr<Handle, Close> handle);

  std::unique_ptr<Handle, Close> handle_;
  proto::LinkType link_ = proto::LinkType::kEthernet;
  std::uint64_t number_ = 0;
  std::uint64_t file_bytes_ = 0;
  std::string error_;
};

}  // namespace roci::tools
