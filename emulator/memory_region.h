// Memory regions: what a key grants, and the one check that every access goes through.
//
// Keys are looked up again for each packet, so a region is never touched once it was deregistered
// [IBTA, memory regions: access checks]. Not here: reaching the memory (memory.h). Thread rule: the engine's
// thread.
#pragma once

#include <cstdint>

#include "emulator/command.h"
#include "emulator/flat_table.h"
#include "emulator/memory.h"

namespace roci::emulator {

struct Context;

struct Pd {
  std::uint32_t handle = 0;
  std::uint32_t users = 0;  // MRs, QPs and AHs
};

struct MemoryRegion {
  Context* context = nullptr;
  Pd* pd = nullptr;
  std::uint32_t handle = 0;
  std::uint32_t key = 0;  // L_Key and R_Key
  std::uint32_t access = 0;
  AddressSpaceId space;
  std::uint64_t address = 0;
  std::uint64_t iova = 0;
  std::uint64_t length_bytes = 0;

  // In arithmetic that cannot overflow: the end of the range is never computed.
  [[nodiscard]] bool covers(std::uint64_t at, std::uint64_t length) const {
    return at >= iova && length <= length_bytes && at - iova <= length_bytes - length;
  }
};

// Where an iova lies in an application's memory.
struct Location {
  AddressSpaceId space;
  std::uint64_t address = 0;
};

class KeyTable {
 public:
  void insert(MemoryRegion& region) { regions_.insert(region.key, region); }
  void erase(const MemoryRegion& region) { regions_.erase(region.key); }
  [[nodiscard]] bool contains(std::uint32_t key) const { return regions_.find(key) != nullptr; }

  // True, and `where` is set, if `key` names a region of `pd` [IBTA C10-56] that grants `access` [IBTA
  // C10-57] to all of the range.
  [[nodiscard]] bool resolve(const Pd* pd, std::uint32_t key, std::uint32_t access, std::uint64_t iova,
                             std::uint64_t length_bytes, Location& where) const {
    const MemoryRegion* region = regions_.find(key);
    if (region == nullptr || region->pd != pd || (region->access & access) != access ||
        !region->covers(iova, length_bytes)) {
      return false;
    }
    where = {region->space, region->address + (iova - region->iova)};
    return true;
  }

 private:
  FlatTable<MemoryRegion> regions_;
};

}  // namespace roci::emulator
