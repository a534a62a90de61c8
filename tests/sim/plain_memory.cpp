#include "tests/sim/plain_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace roci::sim {

using emulator::AddressSpaceId;
using emulator::MemoryOp;

namespace {

std::string describe(const char* what, const MemoryOp& op) {
  char text[160];
  static constexpr const char* kKinds[] = {"read", "write", "compare and swap", "fetch and add"};
  std::snprintf(text, sizeof text, "%s: %s of %u bytes at 0x%llx in space %u", what,
                kKinds[static_cast<std::size_t>(op.kind)], op.length_bytes,
                static_cast<unsigned long long>(op.address), op.space.value);
  return text;
}

bool overlaps(std::uint64_t a, std::uint64_t a_bytes, std::uint64_t b, std::uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

AddressSpaceId PlainMemory::add_space() {
  spaces_.emplace_back();
  return {static_cast<std::uint32_t>(spaces_.size())};
}

std::span<std::byte> PlainMemory::map(AddressSpaceId space, Address address, std::size_t bytes) {
  return map_folded(space, address, bytes, bytes);
}

std::span<std::byte> PlainMemory::map_folded(AddressSpaceId space, Address address, std::uint64_t bytes,
                                             std::size_t segment_bytes) {
  Segment& segment = spaces_.at(space.value - 1).segments[address];
  segment.bytes.assign(segment_bytes, std::byte{0});
  segment.length = bytes;
  return segment.bytes;
}

void PlainMemory::unmap(AddressSpaceId space, Address address) {
  spaces_.at(space.value - 1).segments.erase(address);
}

std::span<std::byte> PlainMemory::at(AddressSpaceId space, Address address, std::size_t bytes) {
  std::byte* found = find(spaces_.at(space.value - 1), address, bytes);
  if (found == nullptr) {
    std::fprintf(stderr, "test asks for memory that is not mapped: 0x%llx\n",
                 static_cast<unsigned long long>(address));
    std::abort();
  }
  return {found, bytes};
}

void PlainMemory::give_up(AddressSpaceId space, Address address, std::size_t bytes) {
  spaces_.at(space.value - 1).bans.push_back({address, bytes});
}
void PlainMemory::give_up(AddressSpaceId space) { spaces_.at(space.value - 1).given_up = true; }
void PlainMemory::take_back(AddressSpaceId space, Address address, std::size_t bytes) {
  std::vector<Ban>& bans = spaces_.at(space.value - 1).bans;
  const auto ban = std::find_if(bans.begin(), bans.end(),
                                [&](const Ban& one) { return one.address == address && one.bytes == bytes; });
  if (ban != bans.end()) bans.erase(ban);
}

std::byte* PlainMemory::find(Space& space, Address address, std::size_t bytes) {
  auto after = space.segments.upper_bound(address);
  if (after == space.segments.begin()) return nullptr;
  auto& [base, segment] = *std::prev(after);
  std::uint64_t offset = address - base;
  if (offset > segment.length || bytes > segment.length - offset) return nullptr;
  if (segment.length != segment.bytes.size()) {
    offset %= segment.bytes.size();
    if (bytes > segment.bytes.size() - offset) return nullptr;
  }
  return segment.bytes.data() + offset;
}

void PlainMemory::check(const MemoryOp& op, const Space& space) {
  if (space.given_up) violations_.push_back(describe("the space was given up", op));
  for (const Ban& ban : space.bans) {
    if (overlaps(op.address, op.length_bytes, ban.address, ban.bytes))
      violations_.push_back(describe("the region was given up", op));
  }
  if (op.length_bytes == 0) violations_.push_back(describe("empty operation", op));
  const bool is_atomic = op.kind == MemoryOp::Kind::kCompareSwap || op.kind == MemoryOp::Kind::kFetchAdd;
  if (is_atomic && (op.length_bytes != 8 || op.address % 8 != 0))
    violations_.push_back(describe("atomic is not 8 aligned bytes", op));
  if (op.kind != MemoryOp::Kind::kWrite && op.ends_message)
    violations_.push_back(describe("only a write ends a message", op));
  if (!is_atomic && op.local == nullptr) violations_.push_back(describe("no local buffer", op));
}

void PlainMemory::run(MemoryOp& op) {
  if (op.space.value == 0 || op.space.value > spaces_.size()) {
    violations_.push_back(describe("no such space", op));
    op.result = MemoryOp::Result::kFault;
    return;
  }
  Space& space = spaces_[op.space.value - 1];
  check(op, space);
  std::byte* remote = find(space, op.address, op.length_bytes);
  const bool injected = fault_ && fault_(operations_, op);
  if (remote == nullptr || injected || is_gone_) {
    op.result = is_gone_ ? MemoryOp::Result::kGone : MemoryOp::Result::kFault;
    ++faults_;
    return;
  }
  op.result = MemoryOp::Result::kOk;
  std::uint64_t value = 0;
  switch (op.kind) {
    case MemoryOp::Kind::kRead:
      std::memcpy(op.local, remote, op.length_bytes);
      return;
    case MemoryOp::Kind::kWrite:
      std::memcpy(remote, op.local, op.length_bytes);
      return;
    case MemoryOp::Kind::kCompareSwap:
      std::memcpy(&value, remote, sizeof value);
      op.original = value;
      if (value == op.compare) std::memcpy(remote, &op.operand, sizeof value);
      return;
    case MemoryOp::Kind::kFetchAdd:
      std::memcpy(&value, remote, sizeof value);
      op.original = value;
      value += op.operand;
      std::memcpy(remote, &value, sizeof value);
      return;
  }
}

void PlainMemory::execute(std::span<MemoryOp> ops) {
  ++batches_;
  failed_keys_.clear();
  for (MemoryOp& op : ops) {
    if (std::find(failed_keys_.begin(), failed_keys_.end(), op.order_key) != failed_keys_.end()) {
      op.result = MemoryOp::Result::kCancelled;
      continue;
    }
    run(op);
    ++operations_;
    if (op.result == MemoryOp::Result::kFault) failed_keys_.push_back(op.order_key);
  }
}

}  // namespace roci::sim
