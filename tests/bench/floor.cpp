// The floor under any user-space NIC that reaches application memory with process_vm: the same bytes read
// from one process, sealed and verified with a CRC each way, and written to another, in the best iovec shape.
//
// Prints one JSON object. Hot: one 64 KiB buffer over and over; cold: a walk through 128 MiB. Not a test.
#include <isa-l/crc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kArenaBytes = std::size_t{128} << 20;
constexpr std::size_t kBatch = 32;        // packets gathered by one call, as a transmit burst is
constexpr std::size_t kFrameRoom = 4352;  // distance of packet buffers, as in a pool
constexpr std::size_t kLargePacket = 4096;

// A process that only owns memory; it ends with its parent.
struct Owner {
  pid_t pid = 0;
  std::uint8_t* arena = nullptr;

  Owner() {
    void* memory = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    arena = static_cast<std::uint8_t*>(memory);
    int ready[2];
    if (pipe(ready) != 0) {
      std::perror("pipe");
      std::exit(1);
    }
    pid = fork();
    if (pid < 0) {
      std::perror("fork");
      std::exit(1);
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::memset(arena, 0x5a, kArenaBytes);  // its own pages, not the parent's
      if (write(ready[1], "r", 1) != 1) _exit(1);
      for (;;)
        pause();
    }
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) {
      std::fprintf(stderr, "floor: the memory owner died\n");
      std::exit(1);
    }
    close(ready[0]);
    close(ready[1]);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    munmap(arena, kArenaBytes);
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void must_move(ssize_t moved, std::size_t wanted) {
  if (moved < 0 || static_cast<std::size_t>(moved) != wanted) {
    std::perror("floor: process_vm");
    std::exit(1);
  }
}

// Packets a second for packets of `size` bytes. `contiguous`: the packets of a batch are one run of remote
// memory (one message); otherwise each is a remote element of its own (one small message each).
double packets_per_second(const Owner& from, const Owner& to, std::size_t size, std::size_t span_bytes,
                          bool contiguous, double seconds) {
  std::vector<std::uint8_t> frames(kBatch * kFrameRoom);
  iovec local[kBatch];
  iovec remote[kBatch];
  std::uint32_t crc_sum = 0;
  std::size_t offset = 0;
  std::uint64_t packets = 0;
  const auto start = std::chrono::steady_clock::now();
  do {
    for (std::size_t i = 0; i < kBatch; ++i) {
      local[i] = {frames.data() + i * kFrameRoom + 64, size};
      remote[i] = {from.arena + offset + i * size, size};
    }
    if (contiguous) remote[0].iov_len = kBatch * size;
    const std::size_t remote_count = contiguous ? 1 : kBatch;
    must_move(process_vm_readv(from.pid, local, kBatch, remote, remote_count, 0), kBatch * size);
    for (std::size_t pass = 0; pass < 2; ++pass) {  // seal, verify
      for (std::size_t i = 0; i < kBatch; ++i) {
        crc_sum ^= crc32_gzip_refl(0, static_cast<const std::uint8_t*>(local[i].iov_base), size);
      }
    }
    for (std::size_t i = 0; i < remote_count; ++i) {
      remote[i].iov_base = to.arena + offset + i * size;
    }
    must_move(process_vm_writev(to.pid, local, kBatch, remote, remote_count, 0), kBatch * size);
    offset += kBatch * size;
    if (offset + kBatch * size > span_bytes) offset = 0;
    packets += kBatch;
  } while (seconds_since(start) < seconds);
  const double elapsed = seconds_since(start);
  if (crc_sum == 1) std::fputs("", stderr);  // the sums are used
  return static_cast<double>(packets) / elapsed;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1.0;
  const Owner from;
  const Owner to;
  constexpr std::size_t kHot = kBatch * kLargePacket;
  const double hot = packets_per_second(from, to, kLargePacket, kHot, true, seconds);
  const double cold = packets_per_second(from, to, kLargePacket, kArenaBytes, true, seconds);
  const double small_hot = packets_per_second(from, to, 64, kBatch * 64, false, seconds);
  const double small_cold = packets_per_second(from, to, 64, kArenaBytes, false, seconds);
  const double bits = 8.0 * static_cast<double>(kLargePacket) / 1e9;
  std::printf("{\"hot_gbps\":%.2f,\"cold_gbps\":%.2f,\"small_hot_mps\":%.0f,\"small_cold_mps\":%.0f}\n",
              hot * bits, cold * bits, small_hot, small_cold);
  return 0;
}
