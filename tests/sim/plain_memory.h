// Application memory for tests: segments at made-up addresses, with bounds, injected faults and a checker.
//
// Addresses are made up so that the same seed gives the same bytes on the wire. A fault is injected at the
// n-th operation, or wherever no segment is. The checker holds the engine to memory.h and to its promises: no
// operation on a space or a segment that was given up, no empty operation, atomics of 8 bytes at an aligned
// address, no end of a message but by a write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "emulator/memory.h"

namespace roci::sim {

class PlainMemory final : public emulator::Memory {
 public:
  using Address = std::uint64_t;

  // A new space; spaces do not see each other.
  [[nodiscard]] emulator::AddressSpaceId add_space();
  // Bytes of zero at `address`; segments of one space do not overlap. The span is good until the segment is
  // removed.
  std::span<std::byte> map(emulator::AddressSpaceId space, Address address, std::size_t bytes);
  // The same, but that many bytes are the segment again and again: more than there is to have. No operation
  // may cross from one to the next.
  std::span<std::byte> map_folded(emulator::AddressSpaceId space, Address address, std::uint64_t bytes,
                                  std::size_t segment_bytes);
  void unmap(emulator::AddressSpaceId space, Address address);
  // The mapped bytes at `address`, which must lie within one segment.
  [[nodiscard]] std::span<std::byte> at(emulator::AddressSpaceId space, Address address, std::size_t bytes);

  // From now on no operation may touch these bytes, nor the whole space.
  void give_up(emulator::AddressSpaceId space, Address address, std::size_t bytes);
  void give_up(emulator::AddressSpaceId space);
  // Ends that ban for exactly that range.
  void take_back(emulator::AddressSpaceId space, Address address, std::size_t bytes);

  // Chosen before each operation: true makes it fault. The number counts operations since construction.
  void set_fault(std::function<bool(std::uint64_t number, const emulator::MemoryOp& op)> fault) {
    fault_ = std::move(fault);
  }
  // From now on its owner has ended, and every operation says so.
  void set_gone() { is_gone_ = true; }

  void execute(std::span<emulator::MemoryOp> ops) override;

  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  [[nodiscard]] std::uint64_t faults() const { return faults_; }
  [[nodiscard]] std::uint64_t batches() const { return batches_; }
  // What the checker found, a sentence each; empty if all is well.
  [[nodiscard]] const std::vector<std::string>& violations() const { return violations_; }

 private:
  struct Ban {
    Address address;
    std::size_t bytes;
  };
  struct Segment {
    std::vector<std::byte> bytes;
    std::uint64_t length;  // a multiple of the bytes there are
  };
  struct Space {
    std::map<Address, Segment> segments;
    std::vector<Ban> bans;
    bool given_up = false;
  };

  std::byte* find(Space& space, Address address, std::size_t bytes);
  void check(const emulator::MemoryOp& op, const Space& space);
  void run(emulator::MemoryOp& op);

  std::vector<Space> spaces_;
  std::function<bool(std::uint64_t, const emulator::MemoryOp&)> fault_;
  bool is_gone_ = false;
  std::vector<std::uint32_t> failed_keys_;  // of the current batch
  std::uint64_t operations_ = 0, faults_ = 0, batches_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace roci::sim
