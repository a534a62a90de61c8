// Memory regions, and the table of keys: what a key grants, and the one check that every access goes through.
//
// Keys are looked up again for each packet, so a region is never touched once it was deregistered
// [IBTA, memory regions: access checks]. The upper 24 bits of a key say what it names and are not to be
// guessed; the lower 8 bits are a variant, which a memory window's owner chooses anew with each bind.
// Not here: windows (memory_window.h), and reaching the memory (memory.h). Thread rule: the engine's thread.
#pragma once

#include <cstdint>

#include "emulator/command.h"
#include "emulator/flat_table.h"
#include "emulator/memory.h"
#include "proto/types.h"

namespace roci::emulator {

struct Qp;

struct Pd {
  std::uint32_t handle = 0;
  std::uint32_t users = 0;  // MRs, MWs, QPs, SRQs and AHs
};

// What a key grants: a range of memory as peers and SGEs name it, and rights. Of a window that is not bound,
// nothing.
struct MemoryGrant {
  std::uint32_t key = 0;  // L_Key and R_Key
  bool is_window = false;
  std::uint32_t access = 0;
  Pd* pd = nullptr;
  const Qp* only_for = nullptr;  // a type 2 window's QP [IBTA o10-37.2.43]; null: any of the PD
  AddressSpaceId space;
  std::uint64_t address = 0;
  std::uint64_t iova = 0;
  std::uint64_t length_bytes = 0;

  // In arithmetic that cannot overflow: the end of the range is never computed.
  [[nodiscard]] bool covers(std::uint64_t at, std::uint64_t length) const {
    return at >= iova && length <= length_bytes && at - iova <= length_bytes - length;
  }
};

struct MemoryRegion : MemoryGrant {
  std::uint32_t handle = 0;
  std::uint32_t windows = 0;  // bound to it
};

// Where an iova lies in an application's memory.
struct Location {
  AddressSpaceId space;
  std::uint64_t address = 0;
};

// The part of a key that its owner may choose, if the key is a window's.
inline constexpr std::uint32_t kKeyVariantBits = 8;
inline constexpr std::uint32_t kKeyVariantMask = (1U << kKeyVariantBits) - 1;

class KeyTable {
 public:
  void insert(MemoryGrant& grant) { grants_.insert(index_of(grant.key), grant); }
  void erase(const MemoryGrant& grant) { grants_.erase(index_of(grant.key)); }
  // A key that no other has the upper part of, made of random bits.
  template <class Draw>
  [[nodiscard]] std::uint32_t draw(Draw random) const {
    std::uint32_t key = 0;
    do {
      key = random();
    } while (index_of(key) == 0 || grants_.find(index_of(key)) != nullptr);
    return key;
  }
  [[nodiscard]] MemoryGrant* find(std::uint32_t key) const {
    MemoryGrant* const grant = grants_.find(index_of(key));
    return grant != nullptr && grant->key == key ? grant : nullptr;
  }

  // True, and `where` is set, if the key names a region of `pd` [IBTA C10-56] that grants `access` [IBTA
  // C10-57] to all of the range.
  [[nodiscard]] bool resolve(const Pd* pd, proto::Lkey key, std::uint32_t access, std::uint64_t iova,
                             std::uint64_t length_bytes, Location& where) const {
    const MemoryGrant* const grant = find(key.value());
    return grant != nullptr && !grant->is_window && resolve(*grant, pd, access, iova, length_bytes, where);
  }
  // The same for what a peer names, which may be a window, too [IBTA C10-76.2.1, C10-77]. `qp` of `pd` is the
  // one that it came by.
  [[nodiscard]] bool resolve(const Pd* pd, const Qp& qp, proto::Rkey key, std::uint32_t access,
                             std::uint64_t iova, std::uint64_t length_bytes, Location& where) const {
    const MemoryGrant* const grant = find(key.value());
    return grant != nullptr && (grant->only_for == nullptr || grant->only_for == &qp) &&
           resolve(*grant, pd, access, iova, length_bytes, where);
  }

 private:
  static constexpr std::uint32_t index_of(std::uint32_t key) { return key >> kKeyVariantBits; }
  static bool resolve(const MemoryGrant& grant, const Pd* pd, std::uint32_t access, std::uint64_t iova,
                      std::uint64_t length_bytes, Location& where) {
    if (grant.pd != pd || (grant.access & access) != access || !grant.covers(iova, length_bytes))
      return false;
    where = {grant.space, grant.address + (iova - grant.iova)};
    return true;
  }

  FlatTable<MemoryGrant> grants_;  // by the upper part of the key
};

}  // namespace roci::emulator
