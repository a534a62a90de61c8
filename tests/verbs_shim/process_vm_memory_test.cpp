// Application memory in batches: every result and every byte is what one operation at a time would give,
// wherever pages are missing; and the batches are as few system calls as they should be.
#include "verbs_shim/server/process_vm_memory.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/verbs_shim/child_process.h"

namespace roci::shim {
namespace {

using emulator::AddressSpaceId;
using emulator::MemoryOp;
using Kind = MemoryOp::Kind;
using Result = MemoryOp::Result;

constexpr std::size_t kPage = ChildProcess::kPage;
constexpr std::size_t kSpacing = 4352;  // distance of packet buffers in a pool
constexpr std::size_t kEach = 256;      // distance of short pieces
constexpr std::size_t kLongest = 6000;  // random pieces

struct Fixture {
  std::unique_ptr<AddressSpaces> spaces = std::make_unique<AddressSpaces>();
  std::mutex atomics;
  ProcessVmMemory memory{*spaces, atomics};

  AddressSpaceId space(const ChildProcess& child) { return spaces->add(child.pid()).value(); }
  std::uint64_t calls_of(std::span<MemoryOp> ops) {
    const std::uint64_t before = memory.calls();
    memory.execute(ops);
    return memory.calls() - before;
  }
};

MemoryOp op(Kind kind, AddressSpaceId space, std::uint64_t address, std::byte* local, std::uint32_t length,
            std::uint32_t key = 1) {
  MemoryOp result;
  result.kind = kind;
  result.space = space;
  result.address = address;
  result.local = local;
  result.length_bytes = length;
  result.order_key = key;
  return result;
}

std::vector<std::byte> peek(const ChildProcess& child, std::size_t offset, std::size_t length) {
  std::vector<std::byte> bytes(length);
  const iovec local{bytes.data(), length};
  const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(child.address(offset))), length};
  REQUIRE(::process_vm_readv(child.pid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(length));
  return bytes;
}

// What one process's memory should be, and how one operation at a time behaves.
class Model {
 public:
  explicit Model(const ChildProcess& child) : child_(child), bytes_(child.size()) {
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      bytes_[i] = ChildProcess::fill(i);
  }
  Result run(MemoryOp& o) {
    const std::size_t at = o.address - child_.address();
    const bool reads = o.kind != Kind::kWrite, writes = o.kind != Kind::kRead;
    std::size_t reach = 0;  // the kernel moves what lies before the first page that it cannot reach
    while (reach < o.length_bytes && (writes ? child_.writable(at + reach) : child_.readable(at + reach)))
      ++reach;
    if (o.kind == Kind::kRead) std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at), reach, o.local);
    if (o.kind == Kind::kWrite) std::copy_n(o.local, reach, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
    if (reads && writes) {
      if (!child_.readable(at)) return Result::kFault;
      std::uint64_t value = 0;
      std::memcpy(&value, &bytes_[at], sizeof value);
      o.original = value;
      const std::uint64_t next = o.kind == Kind::kFetchAdd ? value + o.operand
                                 : value == o.compare      ? o.operand
                                                           : value;
      if (next != value && !child_.writable(at)) return Result::kFault;
      if (next != value) std::memcpy(&bytes_[at], &next, sizeof next);
      return Result::kOk;
    }
    return reach == o.length_bytes ? Result::kOk : Result::kFault;
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  const ChildProcess& child_;
  std::vector<std::byte> bytes_;
};

TEST_CASE("contiguous packets of a message are one call and two remote pieces") {
  const ChildProcess child(std::string(40, 'w'));
  Fixture f;
  std::vector<std::byte> frames(32 * kSpacing, std::byte{0x5A});
  std::vector<MemoryOp> ops;
  for (std::size_t i = 0; i < 32; ++i)
    ops.push_back(op(Kind::kWrite, f.space(child), child.address(64 + i * 4096), &frames[i * 4352], 4096));
  ops.back().ends_message = true;
  for (auto& o : ops)
    o.space = ops[0].space;
  CHECK(f.calls_of(ops) == 1);
  for (const auto& o : ops)
    CHECK(o.result == Result::kOk);
  CHECK(peek(child, 64, 32 * kPage) == std::vector<std::byte>(32 * kPage, std::byte{0x5A}));
  CHECK(peek(child, 0, 64).back() == ChildProcess::fill(63));
}

TEST_CASE("operations of two processes in turns are one call for each") {
  const ChildProcess a(std::string(64, 'w')), b(std::string(64, 'w'));
  Fixture f;
  const AddressSpaceId spaces[] = {f.space(a), f.space(b)};
  std::vector<std::byte> bytes(64 * kEach, std::byte{1});
  std::vector<MemoryOp> ops;
  for (std::size_t i = 0; i < 64; ++i)
    ops.push_back(op(i < 32 ? Kind::kWrite : Kind::kRead, spaces[i % 2],
                     (i % 2 == 0 ? a : b).address(i * 512), &bytes[i * 100], 100,
                     static_cast<std::uint32_t>(i % 2)));
  CHECK(f.calls_of(ops) == 4);
}

TEST_CASE("more pieces than one call takes") {
  const ChildProcess child(std::string(64, 'w'));
  Fixture f;
  const AddressSpaceId space = f.space(child);
  std::vector<std::byte> bytes(3000 * kEach, std::byte{7});
  std::vector<MemoryOp> ops;
  for (std::size_t i = 0; i < 3000; ++i) {
    ops.push_back(op(Kind::kWrite, space, child.address(i * 64), &bytes[i * 16], 16,
                     static_cast<std::uint32_t>(i % 5)));
    ops.back().ends_message = i % 2 == 0;
  }
  f.memory.execute(ops);
  CHECK(std::all_of(ops.begin(), ops.end(), [](const MemoryOp& o) { return o.result == Result::kOk; }));
  for (std::size_t i = 0; i < 3000; i += 111)
    CHECK(peek(child, i * 64, 16) == std::vector<std::byte>(16, std::byte{7}));
}

TEST_CASE("a fault at every position of a batch fails that operation and cancels its key") {
  constexpr std::size_t kOps = 24;
  const ChildProcess child("wwwwwwww-rw");
  Fixture f;
  const AddressSpaceId space = f.space(child);
  std::vector<std::byte> bytes(kOps * kEach, std::byte{9});
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    for (std::size_t bad = 0; bad < kOps; ++bad) {
      std::vector<MemoryOp> ops;
      for (std::size_t i = 0; i < kOps; ++i) {
        const std::size_t offset = i == bad ? 8 * kPage - 100 : i * 256;  // its second half has no page
        ops.push_back(
            op(kind, space, child.address(offset), &bytes[i * 256], 256, static_cast<std::uint32_t>(i % 3)));
      }
      f.memory.execute(ops);
      for (std::size_t i = 0; i < kOps; ++i) {
        const Result expected = i == bad                      ? Result::kFault
                                : i > bad && i % 3 == bad % 3 ? Result::kCancelled
                                                              : Result::kOk;
        INFO("operation " << i << " with the fault at " << bad);
        CHECK(ops[i].result == expected);
      }
    }
  }
}

TEST_CASE("a write into a read-only page fails, a read from it does not") {
  const ChildProcess child("wrw");
  Fixture f;
  const AddressSpaceId space = f.space(child);
  std::array<std::byte, 64> bytes{};
  std::array ops = {op(Kind::kRead, space, child.address(4096), bytes.data(), 64, 1),
                    op(Kind::kWrite, space, child.address(4096), bytes.data(), 64, 2),
                    op(Kind::kWrite, space, child.address(8192), bytes.data(), 64, 3)};
  f.memory.execute(ops);
  CHECK(ops[0].result == Result::kOk);
  CHECK(ops[1].result == Result::kFault);
  CHECK(ops[2].result == Result::kOk);
}

TEST_CASE("many fetch-and-adds on one address see one another and cost two calls") {
  const ChildProcess child("w");
  Fixture f;
  const AddressSpaceId space = f.space(child);
  std::uint64_t before = 0;
  const std::vector<std::byte> old = peek(child, 16, 8);
  std::memcpy(&before, old.data(), sizeof before);
  std::vector<MemoryOp> ops(50, op(Kind::kFetchAdd, space, child.address(16), nullptr, 8));
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i].operand = 3;
    ops[i].order_key = static_cast<std::uint32_t>(i % 4);
  }
  CHECK(f.calls_of(ops) == 2);
  for (std::size_t i = 0; i < ops.size(); ++i)
    CHECK(ops[i].original == before + 3 * i);
  const std::vector<std::byte> now = peek(child, 16, 8);
  std::uint64_t after = 0;
  std::memcpy(&after, now.data(), sizeof after);
  CHECK(after == before + 150);
}

TEST_CASE("an atomic sees an earlier write of the batch, and a later read sees the atomic") {
  const ChildProcess child("w");
  Fixture f;
  const AddressSpaceId space = f.space(child);
  std::uint64_t written = 41, read = 0;
  std::array ops = {op(Kind::kWrite, space, child.address(8), reinterpret_cast<std::byte*>(&written), 8, 1),
                    op(Kind::kCompareSwap, space, child.address(8), nullptr, 8, 2),
                    op(Kind::kRead, space, child.address(8), reinterpret_cast<std::byte*>(&read), 8, 3)};
  ops[1].compare = 41;
  ops[1].operand = 42;
  f.memory.execute(ops);
  CHECK(ops[1].original == 41);
  CHECK(read == 42);
}

TEST_CASE("a process that has ended is told apart from a fault") {
  ChildProcess child("w");
  Fixture f;
  const AddressSpaceId space = f.space(child);
  std::array<std::byte, 64> bytes{};
  const auto batch = [&] {
    std::array ops = {op(Kind::kWrite, space, child.address(), bytes.data(), 64, 1),
                      op(Kind::kWrite, space, child.address(), bytes.data(), 64, 1),
                      op(Kind::kFetchAdd, space, child.address(), nullptr, 8, 2)};
    f.memory.execute(ops);
    return std::array{ops[0].result, ops[1].result, ops[2].result};
  };
  SECTION("found out by the call") {
    child.end();
    CHECK(batch() == std::array{Result::kGone, Result::kCancelled, Result::kGone});
  }
  SECTION("said so before") {
    f.spaces->mark_dead(space);
    CHECK(batch() == std::array{Result::kGone, Result::kCancelled, Result::kGone});
    CHECK(peek(child, 0, 1).front() == ChildProcess::fill(0));
  }
}

TEST_CASE("random batches give what one operation at a time gives") {
  const std::uint32_t seed = GENERATE(range(1u, 25u));
  INFO("seed " << seed << "; run this case alone to replay");
  std::mt19937 dice(seed);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(dice() % n); };
  const ChildProcess a("wwrw-wwwrw"), b("w-wwwrwwww");
  const ChildProcess* const children[] = {&a, &b};
  Fixture f;
  const AddressSpaceId spaces[] = {f.space(a), f.space(b)};
  std::array models = {Model(a), Model(b)};

  for (int round = 0; round < 25; ++round) {
    std::vector<MemoryOp> ops;
    std::vector<std::byte> actual(64 * kLongest), expected;
    for (auto& byte : actual)
      byte = static_cast<std::byte>(dice());
    expected = actual;
    const std::uint32_t count = 1 + below(64);
    const bool mixed = below(2) == 0;  // many directions, or long runs of one
    Kind kind = Kind::kWrite;
    std::size_t next = 0;  // so that neighbours join
    for (std::uint32_t i = 0; i < count; ++i) {
      if (mixed || below(20) == 0) kind = static_cast<Kind>(below(4));
      const std::uint32_t which = below(8) == 0 ? 1 : 0;
      const bool atomic = kind == Kind::kCompareSwap || kind == Kind::kFetchAdd;
      const std::uint32_t length = atomic ? 8 : below(5) == 0 ? below(6000) : below(40);
      std::size_t offset = below(3) == 0 ? below(9 * 4096) : next;
      if (atomic) offset = (below(2) == 0 ? kPage * below(10) : offset) / 8 * 8;
      offset = std::min<std::size_t>(offset, 10 * kPage - 6000);
      next = offset + length;
      MemoryOp o =
          op(kind, spaces[which], children[which]->address(offset), &actual[i * kLongest], length, below(4));
      o.ends_message = below(3) == 0;
      o.operand = below(3);
      std::memcpy(&o.compare, models[which].bytes().data() + offset / 8 * 8, sizeof o.compare);
      ops.push_back(o);
    }

    std::vector<MemoryOp> reference = ops;
    std::vector<std::uint32_t> failed;
    for (std::size_t i = 0; i < reference.size(); ++i) {
      MemoryOp& o = reference[i];
      o.local = &expected[i * kLongest];
      if (std::find(failed.begin(), failed.end(), o.order_key) != failed.end()) {
        o.result = Result::kCancelled;
        continue;
      }
      o.result = models[o.space == spaces[0] ? 0 : 1].run(o);
      if (o.result != Result::kOk) failed.push_back(o.order_key);
    }
    f.memory.execute(ops);

    for (std::size_t i = 0; i < ops.size(); ++i) {
      INFO("round " << round << ", operation " << i << " of " << ops.size());
      REQUIRE(ops[i].result == reference[i].result);
      if (ops[i].result != Result::kOk) continue;
      REQUIRE(ops[i].original == reference[i].original);
      if (ops[i].kind != Kind::kRead) continue;
      REQUIRE(std::equal(ops[i].local, ops[i].local + ops[i].length_bytes, reference[i].local));
    }
    for (std::size_t which = 0; which < 2; ++which) {
      for (std::size_t page = 0; page < 10; ++page) {
        if (!children[which]->readable(page * kPage)) continue;
        const auto bytes = peek(*children[which], page * kPage, 4096);
        INFO("round " << round << ", process " << which << ", page " << page);
        REQUIRE(std::equal(bytes.begin(), bytes.end(),
                           models[which].bytes().begin() + static_cast<std::ptrdiff_t>(page * kPage)));
      }
    }
  }
}

}  // namespace
}  // namespace roci::shim
