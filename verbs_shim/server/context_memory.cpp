#include "verbs_shim/server/context_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <iterator>

#include "emulator/shared_layout.h"

namespace roci::shim {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr unsigned kNoExecSeal = 0x0008U;  // MFD_NOEXEC_SEAL, Linux 6.3

}  // namespace

proto::Result<std::unique_ptr<ContextMemory>, std::errc> ContextMemory::create() {
  UniqueFd fd(::memfd_create("rocinante", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal));
  if (!fd && errno == EINVAL) fd.reset(::memfd_create("rocinante", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return proto::Unexpected{last_error()};
  if (::ftruncate(fd.get(), static_cast<off_t>(kBytes)) != 0) return proto::Unexpected{last_error()};
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return proto::Unexpected{last_error()};
  void* const base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return proto::Unexpected{last_error()};
  return std::unique_ptr<ContextMemory>(new ContextMemory(static_cast<std::byte*>(base), std::move(fd)));
}

ContextMemory::ContextMemory(std::byte* base, UniqueFd fd) : base_(base), fd_(std::move(fd)) {
  static_assert(emulator::kControlAreaBytes % kPageBytes == 0);
  free_[emulator::kControlAreaBytes] = kBytes - emulator::kControlAreaBytes;
}

ContextMemory::~ContextMemory() { ::munmap(base_, kBytes); }

std::span<std::byte> ContextMemory::control_area() const { return {base_, emulator::kControlAreaBytes}; }

// The first that is large enough.
std::optional<ContextMemory::Area> ContextMemory::allocate(std::size_t bytes) {
  if (bytes == 0 || bytes > kBytes) return std::nullopt;
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const auto [offset, room] = *at;
    if (room < bytes) continue;
    free_.erase(at);
    if (room > bytes) free_[offset + bytes] = room - bytes;
    return Area{offset, bytes};
  }
  return std::nullopt;
}

void ContextMemory::free(const Area& area) {
  // On a shared mapping this punches a hole into the memfd. If it fails, only memory is lost until the
  // context ends, and the next ring starts with old contents, of which the engine overwrites the header.
  static_cast<void>(::madvise(base_ + area.offset, area.bytes, MADV_REMOVE));
  auto [at, added] = free_.emplace(area.offset, area.bytes);
  if (!added) std::abort();  // freed twice
  if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at == free_.begin()) return;
  if (const auto before = std::prev(at); before->first + before->second == at->first) {
    before->second += at->second;
    free_.erase(at);
  }
}

}  // namespace roci::shim
