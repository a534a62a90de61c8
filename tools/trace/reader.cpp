#include "tools/trace/reader.h"

#include <pcap/pcap.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

namespace roci::tools {
namespace {

constexpr std::size_t kFileBufferBytes = std::size_t{1} << 20;
// Times outside are a damaged file's; clamped, they cannot overflow nanoseconds.
constexpr std::int64_t kMaxSeconds = 9'000'000'000;
constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

std::int64_t to_nanoseconds(const timeval& time) {
  const std::int64_t seconds = std::clamp<std::int64_t>(time.tv_sec, 0, kMaxSeconds);
  // With the precision asked for below, tv_usec counts nanoseconds.
  const std::int64_t rest = std::clamp<std::int64_t>(time.tv_usec, 0, kNanosecondsPerSecond - 1);
  return seconds * kNanosecondsPerSecond + rest;
}

}  // namespace

// The buffer outlives the file that uses it.
struct CaptureReader::Handle {
  std::vector<char> buffer;
  pcap_t* pcap = nullptr;
};

void CaptureReader::Close::operator()(Handle* handle) const {
  if (handle->pcap != nullptr) pcap_close(handle->pcap);  // closes the file, too
  delete handle;
}

CaptureReader::CaptureReader(std::unique_ptr<Handle, Close> handle) : handle_(std::move(handle)) {}

proto::Result<CaptureReader, std::string> CaptureReader::open(const std::string& path) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return proto::Unexpected{std::generic_category().message(errno)};
  std::unique_ptr<Handle, Close> handle{new Handle};
  if (file != stdin) {
    handle->buffer.resize(kFileBufferBytes);
    std::setvbuf(file, handle->buffer.data(), _IOFBF, handle->buffer.size());
  }

  char why[PCAP_ERRBUF_SIZE] = "";
  handle->pcap = pcap_fopen_offline_with_tstamp_precision(file, PCAP_TSTAMP_PRECISION_NANO, why);
  if (handle->pcap == nullptr) {
    if (file != stdin) std::fclose(file);
    return proto::Unexpected{std::string{why}};
  }
  const int number = pcap_datalink(handle->pcap);
  const std::optional<proto::LinkType> link = proto::link_type_from_pcap(number);
  if (!link) {
    return proto::Unexpected{"frames of link type " + std::to_string(number) + " cannot be read"};
  }

  CaptureReader reader{std::move(handle)};
  reader.link_ = *link;
  struct stat status {};
  if (fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    reader.file_bytes_ = static_cast<std::uint64_t>(status.st_size);
  }
  return reader;
}

CaptureReader::Next CaptureReader::next(CapturedFrame& frame) {
  pcap_pkthdr* header = nullptr;
  const u_char* bytes = nullptr;
  const int status = pcap_next_ex(handle_->pcap, &header, &bytes);
  if (status == PCAP_ERROR_BREAK) return Next::kEnd;
  if (status != 1) {
    error_ = pcap_geterr(handle_->pcap);
    return Next::kError;
  }
  frame.number = ++number_;
  frame.time_ns = to_nanoseconds(header->ts);
  frame.link = link_;
  frame.bytes = std::as_bytes(std::span{bytes, header->caplen});
  frame.original_bytes = std::max<std::size_t>(header->len, header->caplen);
  return Next::kFrame;
}

std::uint64_t CaptureReader::bytes_read() const {
  const off_t at = ftello(pcap_file(handle_->pcap));
  return at > 0 ? static_cast<std::uint64_t>(at) : 0;
}

}  // namespace roci::tools
