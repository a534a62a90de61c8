// Application memory through process_vm_readv / process_vm_writev: as few system calls per batch as order
// allows.
//
// A batch is cut where the direction changes; what is between two cuts goes out as one call per process (of
// up to 1,024 pieces), and neighbouring pieces become one. The kernel stops at the first byte it cannot
// reach; the call is then taken up again behind the operation that failed, so every operation has its own
// result. The last 8 bytes of a message are a piece of their own, which the kernel copies after the others
// [UVERBS.md, section 4]. Atomics are read, computed and written under one lock of the whole daemon. Nothing
// is allocated after construction. Thread rule: one object per shard, used by its thread; stall() any thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "emulator/memory.h"
#include "verbs_shim/server/address_spaces.h"

namespace roci::shim {

class ProcessVmMemory final : public emulator::Memory {
 public:
  // `spaces` and `atomics` are shared by all shards and outlive this.
  ProcessVmMemory(const AddressSpaces& spaces, std::mutex& atomics) : spaces_(spaces), atomics_(atomics) {}

  void execute(std::span<emulator::MemoryOp> ops) override;

  // For a watchdog: the process that a system call is dealing with now (0: none), and a number that differs
  // for every call.
  struct Stall {
    std::uint64_t call = 0;
    pid_t pid = 0;
  };
  [[nodiscard]] Stall stall() const {
    return {calls_.load(std::memory_order_relaxed), inside_.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kMaxPieces = 1024;  // UIO_MAXIOV
  static constexpr std::size_t kMaxRun = 1024;     // operations between two cuts
  static constexpr std::size_t kMaxChains = 64;    // addresses of one run of atomics
  using Ops = std::span<emulator::MemoryOp>;
  enum class Direction : std::uint8_t { kRead, kWrite };

  // Pieces of one call. The two lists are cut independently; the kernel wants the same total only.
  struct Pieces {
    std::array<iovec, kMaxPieces> local, remote;
    std::size_t local_count = 0, remote_count = 0;
    std::uint64_t remote_end = 0;  // where a further piece may join the last one; 0: nowhere
  };
  // Consecutive atomics on one address.
  struct Chain {
    std::uint64_t address = 0;
    std::size_t begin = 0, end = 0;  // of the batch
    std::uint64_t value = 0;
    bool readable = false;
  };
  struct KeySlot {
    std::uint64_t stamp = 0;
    std::uint32_t key = 0;
    std::uint32_t space = 0;
  };

  void execute_run(Ops ops, std::size_t begin, std::size_t end, Direction direction);
  std::size_t end_where_a_key_changes_space(Ops ops, std::size_t begin, std::size_t end);
  void transfer(Ops ops, std::span<const std::uint16_t> run, std::size_t base, Direction direction);
  bool add_piece(const emulator::MemoryOp& op, std::uint32_t offset, Direction direction);
  void execute_atomics(Ops ops, std::size_t begin, std::size_t end);
  std::size_t collect_chains(Ops ops, std::size_t begin, std::size_t end);
  void read_chains(Ops ops, pid_t pid, std::size_t count);
  void write_chains(Ops ops, pid_t pid, std::size_t count);
  static void fail_writes(Ops ops, const Chain& chain, emulator::MemoryOp::Result result);
  static void fail_chain(Ops ops, const Chain& chain, emulator::MemoryOp::Result result);
  ssize_t call(pid_t pid, Direction direction);
  static void fail(Ops ops, std::size_t index, emulator::MemoryOp::Result result);

  const AddressSpaces& spaces_;
  std::mutex& atomics_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<pid_t> inside_{0};
  std::uint64_t stamp_ = 0;
  Pieces pieces_;
  std::array<std::uint16_t, kMaxRun> run_, rest_;
  std::array<Chain, kMaxChains> chains_;
  std::array<KeySlot, 2 * kMaxRun> keys_;
};

}  // namespace roci::shim
