#include "dpdk_port/capture_ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace roci::dpdk_port {

CaptureRing::~CaptureRing() {
  if (memory_ != nullptr) munmap(memory_, 2 * bytes_);
}

bool CaptureRing::allocate(std::size_t bytes) {
  if (memory_ != nullptr) return true;
  const int fd = memfd_create("rocid-capture", MFD_CLOEXEC);
  if (fd < 0) return false;
  bool good = ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  void* both = good ? mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                    : MAP_FAILED;
  good = both != MAP_FAILED;
  for (std::size_t copy = 0; good && copy < 2; ++copy) {
    good = mmap(static_cast<std::byte*>(both) + copy * bytes, bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  }
  close(fd);
  if (good) {
    memory_ = static_cast<std::byte*>(both);
    bytes_ = bytes;
  } else if (both != MAP_FAILED) {
    munmap(both, 2 * bytes);
  }
  return good;
}

void CaptureRing::release_pages() {
  if (memory_ != nullptr) madvise(memory_, bytes_, MADV_REMOVE);
}

bool CaptureRing::put(std::span<const std::byte> frame, std::size_t snap_length_bytes, emulator::NicId from,
                      emulator::NicId to, Fate fate, emulator::Time time) {
  const std::size_t captured = std::min(frame.size(), snap_length_bytes);
  const std::size_t needed = (sizeof(Record) + captured + 7) / 8 * 8;
  const std::size_t head = head_.load(std::memory_order_relaxed);
  if (bytes_ - (head - tail_.load(std::memory_order_acquire)) < needed) {
    auto& lost = lost_[end_index(from)][end_index(to)];
    lost.store(lost.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return false;
  }
  std::byte* at = memory_ + (head & (bytes_ - 1));
  const Record record{static_cast<std::uint32_t>(needed),
                      static_cast<std::uint32_t>(captured),
                      static_cast<std::uint32_t>(frame.size()),
                      from,
                      to,
                      fate,
                      0,
                      time.time_since_epoch().count()};
  std::memcpy(at, &record, sizeof record);
  std::memcpy(at + sizeof record, frame.data(), captured);
  head_.store(head + needed, std::memory_order_release);
  return true;
}

const CaptureRing::Record* CaptureRing::front() const {
  const std::size_t tail = tail_.load(std::memory_order_relaxed);
  if (tail == head_.load(std::memory_order_acquire)) return nullptr;
  return reinterpret_cast<const Record*>(memory_ + (tail & (bytes_ - 1)));
}

void CaptureRing::pop() {
  const std::size_t tail = tail_.load(std::memory_order_relaxed);
  tail_.store(tail + front()->record_bytes, std::memory_order_release);
}

}  // namespace roci::dpdk_port
