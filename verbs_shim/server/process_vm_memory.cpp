#include "verbs_shim/server/process_vm_memory.h"

#include <algorithm>
#include <cerrno>

namespace roci::shim {
namespace {

using emulator::MemoryOp;
using Kind = MemoryOp::Kind;
using Result = MemoryOp::Result;

constexpr std::uint32_t kTailBytes = 8;

bool is_atomic(const MemoryOp& op) { return op.kind == Kind::kCompareSwap || op.kind == Kind::kFetchAdd; }

// The value behind an atomic operation on `value`.
std::uint64_t after(const MemoryOp& op, std::uint64_t value) {
  if (op.kind == Kind::kFetchAdd) return value + op.operand;
  return value == op.compare ? op.operand : value;
}

// What a system call that moved nothing says; errno is its own still.
Result result_of(ssize_t moved) { return moved < 0 && errno == ESRCH ? Result::kGone : Result::kFault; }

void* remote_pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

}  // namespace

void ProcessVmMemory::execute(Ops ops) {
  for (MemoryOp& op : ops)
    op.result = Result::kOk;
  for (std::size_t begin = 0; begin < ops.size();) {
    const Kind kind = ops[begin].kind;
    const std::size_t limit = std::min(ops.size(), begin + kMaxRun);
    std::size_t end = begin + 1;
    if (is_atomic(ops[begin])) {
      while (end < limit && is_atomic(ops[end]) && ops[end].space == ops[begin].space)
        ++end;
      execute_atomics(ops, begin, end);
    } else {
      bool one_space = true;
      for (; end < limit && ops[end].kind == kind; ++end)
        one_space = one_space && ops[end].space == ops[begin].space;
      const Direction direction = kind == Kind::kRead ? Direction::kRead : Direction::kWrite;
      // Reads commute, and what a cancelled one left in its buffer nobody looks at.
      if (!one_space && direction == Direction::kWrite) end = end_where_a_key_changes_space(ops, begin, end);
      execute_run(ops, begin, end, direction);
    }
    begin = end;
  }
}

// One transfer per process, in the order in which the processes first appear.
void ProcessVmMemory::execute_run(Ops ops, std::size_t begin, std::size_t end, Direction direction) {
  std::size_t left = 0;
  for (std::size_t i = begin; i < end; ++i)
    rest_[left++] = static_cast<std::uint16_t>(i - begin);
  while (left != 0) {
    const emulator::AddressSpaceId space = ops[begin + rest_[0]].space;
    std::size_t count = 0, others = 0;
    for (std::size_t i = 0; i < left; ++i) {
      const std::uint16_t op = rest_[i];
      if (ops[begin + op].space == space) {
        run_[count++] = op;
      } else {
        rest_[others++] = op;
      }
    }
    transfer(ops, {run_.data(), count}, begin, direction);
    left = others;
  }
}

// Writes of one key to two processes must not be regrouped: if the first fails, the second must not have
// happened.
std::size_t ProcessVmMemory::end_where_a_key_changes_space(Ops ops, std::size_t begin, std::size_t end) {
  ++stamp_;
  for (std::size_t i = begin; i < end; ++i) {
    const std::uint32_t key = ops[i].order_key;
    std::size_t at = (key * 0x9E3779B1u) >> 21;
    static_assert(2 * kMaxRun == 1u << 11);
    while (keys_[at].stamp == stamp_ && keys_[at].key != key)
      at = (at + 1) % keys_.size();
    if (keys_[at].stamp == stamp_ && keys_[at].space != ops[i].space.value) return i;
    keys_[at] = {stamp_, key, ops[i].space.value};
  }
  return end;
}

// `run` holds operations of one process, counted from `base`.
void ProcessVmMemory::transfer(Ops ops, std::span<const std::uint16_t> run, std::size_t base,
                               Direction direction) {
  const pid_t pid = spaces_.pid(ops[base + run[0]].space);
  std::size_t at = 0;        // next operation of `run`
  std::uint32_t offset = 0;  // bytes of it that are done
  while (at < run.size()) {
    if (pid == 0) {
      fail(ops, base + run[at++], Result::kGone);
      continue;
    }
    pieces_.local_count = pieces_.remote_count = 0;
    pieces_.remote_end = 0;
    std::size_t end = at;
    for (; end < run.size(); ++end) {
      const MemoryOp& op = ops[base + run[end]];
      if (op.result != Result::kOk || op.length_bytes == 0) continue;
      if (!add_piece(op, end == at ? offset : 0, direction)) break;
    }
    if (pieces_.local_count == 0) return;

    const ssize_t moved = call(pid, direction);
    const int error = moved < 0 ? errno : 0;
    std::uint64_t left = moved < 0 ? 0 : static_cast<std::uint64_t>(moved);
    for (; at < end; ++at, offset = 0) {
      const MemoryOp& op = ops[base + run[at]];
      if (op.result != Result::kOk) continue;
      if (left < op.length_bytes - offset) break;
      left -= op.length_bytes - offset;
    }
    if (at == end) continue;
    if (moved > 0) {  // ended early: a call that begins here says whether this operation is at fault
      offset += static_cast<std::uint32_t>(left);
      continue;
    }
    const Result result = error == ESRCH ? Result::kGone : Result::kFault;
    fail(ops, base + run[at++], result);
    offset = 0;
    if (error != ESRCH && error != EPERM) continue;
    for (; at < run.size(); ++at)
      fail(ops, base + run[at], result);
  }
}

// False: no room for it in this call.
bool ProcessVmMemory::add_piece(const MemoryOp& op, std::uint32_t offset, Direction direction) {
  Pieces& p = pieces_;
  if (p.local_count == kMaxPieces || p.remote_count + 2 > kMaxPieces) return false;
  std::byte* const local = op.local + offset;
  const std::uint64_t address = op.address + offset;
  const std::uint32_t length = op.length_bytes - offset;

  iovec* last = p.local_count == 0 ? nullptr : &p.local[p.local_count - 1];
  if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == local) {
    last->iov_len += length;
  } else {
    p.local[p.local_count++] = {local, length};
  }

  const bool ends_message = direction == Direction::kWrite && op.ends_message;
  const std::uint32_t tail = ends_message ? std::min(length, kTailBytes) : 0;
  if (const std::uint32_t body = length - tail; body != 0) {
    if (address == p.remote_end && address != 0) {
      p.remote[p.remote_count - 1].iov_len += body;
    } else {
      p.remote[p.remote_count++] = {remote_pointer(address), body};
    }
    p.remote_end = address + body;
  }
  if (tail != 0) {
    p.remote[p.remote_count++] = {remote_pointer(address + length - tail), tail};
    p.remote_end = 0;
  }
  return true;
}

ssize_t ProcessVmMemory::call(pid_t pid, Direction direction) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  inside_.store(pid, std::memory_order_relaxed);
  const ssize_t moved = direction == Direction::kRead
                            ? process_vm_readv(pid, pieces_.local.data(), pieces_.local_count,
                                               pieces_.remote.data(), pieces_.remote_count, 0)
                            : process_vm_writev(pid, pieces_.local.data(), pieces_.local_count,
                                                pieces_.remote.data(), pieces_.remote_count, 0);
  inside_.store(0, std::memory_order_relaxed);
  return moved;
}

// An operation that was not cancelled failed: the later ones of its key are cancelled.
void ProcessVmMemory::fail(Ops ops, std::size_t index, Result result) {
  if (ops[index].result != Result::kOk) return;
  ops[index].result = result;
  const std::uint32_t key = ops[index].order_key;
  for (MemoryOp& later : ops.subspan(index + 1))
    if (later.order_key == key) later.result = Result::kCancelled;
}

// ---- atomics -----------------------------------------------------------------------------------------

void ProcessVmMemory::execute_atomics(Ops ops, std::size_t begin, std::size_t end) {
  const pid_t pid = spaces_.pid(ops[begin].space);
  if (pid == 0) {
    for (std::size_t i = begin; i < end; ++i)
      fail(ops, i, Result::kGone);
    return;
  }
  const std::lock_guard guard(atomics_);
  while (begin < end) {
    const std::size_t count = collect_chains(ops, begin, end);
    read_chains(ops, pid, count);
    write_chains(ops, pid, count);
    begin = chains_[count - 1].end;
  }
}

// Chains from `begin` on, all of different addresses, so that they can be read first and written afterwards.
std::size_t ProcessVmMemory::collect_chains(Ops ops, std::size_t begin, std::size_t end) {
  std::size_t count = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const std::uint64_t address = ops[i].address;
    if (count != 0 && chains_[count - 1].address == address) {
      chains_[count - 1].end = i + 1;
      continue;
    }
    const auto known = chains_.begin() + static_cast<std::ptrdiff_t>(count);
    const bool seen =
        std::any_of(chains_.begin(), known, [&](const Chain& c) { return c.address == address; });
    if (seen || count == kMaxChains) break;
    chains_[count++] = {address, i, i + 1, 0, false};
  }
  return count;
}

void ProcessVmMemory::read_chains(Ops ops, pid_t pid, std::size_t count) {
  for (std::size_t at = 0; at < count;) {
    pieces_.local_count = pieces_.remote_count = 0;
    for (std::size_t i = at; i < count; ++i) {
      pieces_.local[pieces_.local_count++] = {&chains_[i].value, sizeof chains_[i].value};
      pieces_.remote[pieces_.remote_count++] = {remote_pointer(chains_[i].address), sizeof chains_[i].value};
    }
    const ssize_t moved = call(pid, Direction::kRead);
    const std::size_t done = moved < 0 ? 0 : static_cast<std::size_t>(moved) / sizeof(std::uint64_t);
    for (std::size_t i = 0; i < done; ++i)
      chains_[at + i].readable = true;
    at += done;
    if (done == 0) fail_chain(ops, chains_[at++], result_of(moved));
  }
}

// Computes and writes back in the order of the batch. A chain that cannot be written cancels what follows of
// its keys, so the chains behind it are computed after that is known.
void ProcessVmMemory::write_chains(Ops ops, pid_t pid, std::size_t count) {
  std::array<std::uint64_t, kMaxChains> results;
  std::array<std::size_t, kMaxChains> written;  // chains of the current call
  for (std::size_t at = 0; at < count;) {
    pieces_.local_count = pieces_.remote_count = 0;
    for (std::size_t c = at; c < count; ++c) {
      const Chain& chain = chains_[c];
      if (!chain.readable) continue;
      std::uint64_t value = chain.value;
      bool changes = false;  // a failed comparison does not write
      for (std::size_t i = chain.begin; i < chain.end; ++i) {
        if (ops[i].result != Result::kOk) continue;
        ops[i].original = value;
        value = after(ops[i], value);
        changes = changes || value != ops[i].original;
      }
      if (!changes) continue;
      results[c] = value;
      written[pieces_.local_count] = c;
      pieces_.local[pieces_.local_count++] = {&results[c], sizeof value};
      pieces_.remote[pieces_.remote_count++] = {remote_pointer(chain.address), sizeof value};
    }
    if (pieces_.local_count == 0) return;
    const ssize_t moved = call(pid, Direction::kWrite);
    const std::size_t done = moved < 0 ? 0 : static_cast<std::size_t>(moved) / sizeof(std::uint64_t);
    if (done == pieces_.local_count) return;
    at = written[done];
    if (done == 0) fail_writes(ops, chains_[at++], result_of(moved));
  }
}

// The address can be read, not written: operations that would change the value fail, the others see the old
// one.
void ProcessVmMemory::fail_writes(Ops ops, const Chain& chain, Result result) {
  for (std::size_t i = chain.begin; i < chain.end; ++i) {
    if (ops[i].result != Result::kOk) continue;
    ops[i].original = chain.value;
    if (after(ops[i], chain.value) != chain.value) fail(ops, i, result);
  }
}

void ProcessVmMemory::fail_chain(Ops ops, const Chain& chain, Result result) {
  for (std::size_t i = chain.begin; i < chain.end; ++i)
    fail(ops, i, result);
}

}  // namespace roci::shim
