// The port through which application memory is reached, in batches.
//
// Order: operations of one `order_key` run in the order of the batch; the first that fails cancels the
// later ones of its key and no other. A read-modify-write sees every earlier operation of the batch.
// A write that ends a message makes its last 8 bytes visible after all the others [UVERBS ordering: a
// poller on the last byte must not see it early].
// Not here: keys and rights; an operation was checked before it gets here. Called on the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::emulator {

// One process's memory, as registered with the Memory implementation. Never reused while in use.
struct AddressSpaceId {
  std::uint32_t value = 0;
  constexpr bool operator==(const AddressSpaceId&) const = default;
};

struct MemoryOp {
  enum class Kind : std::uint8_t { kRead, kWrite, kCompareSwap, kFetchAdd };
  // kGone: the process has ended, so that nobody is there to be told; else like kFault.
  enum class Result : std::uint8_t { kOk, kFault, kCancelled, kGone };

  Kind kind = Kind::kRead;
  bool ends_message = false;    // kWrite: the last byte of a message is in this operation
  Result result = Result::kOk;  // out
  AddressSpaceId space;
  std::uint32_t order_key = 0;
  std::uint32_t length_bytes = 0;  // atomics: 8
  std::uint64_t address = 0;       // in the application; atomics: 8-byte aligned
  std::byte* local = nullptr;      // kRead: destination; kWrite: source, not modified
  std::uint64_t compare = 0;       // kCompareSwap
  std::uint64_t operand = 0;       // kCompareSwap: swap value; kFetchAdd: addend (host order)
  std::uint64_t original = 0;      // out: value before an atomic (host order)
};

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  // Runs the batch and writes each op's own result. Never fails as a whole.
  virtual void execute(std::span<MemoryOp> ops) = 0;
};

}  // namespace roci::emulator
