// The memory of one context: areas do not overlap, come back, and neither side can change its size.
#include "verbs_shim/server/context_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "emulator/shared_layout.h"

namespace roci::shim {
namespace {

std::unique_ptr<ContextMemory> create() {
  auto memory = ContextMemory::create();
  REQUIRE(memory.has_value());
  return std::move(*memory);
}

TEST_CASE("areas are pages behind the control area, and one that was freed reads as zero") {
  const auto memory = create();
  const auto first = memory->allocate(1);
  const auto second = memory->allocate(5000);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->offset == emulator::kControlAreaBytes);
  CHECK(first->bytes == 4096);
  CHECK(second->offset == first->offset + 4096);
  CHECK(second->bytes == 8192);
  memory->bytes_of(*second)[5000] = std::byte{7};
  memory->free(*second);
  const auto again = memory->allocate(8192);
  CHECK(again->offset == second->offset);
  CHECK(memory->bytes_of(*again)[5000] == std::byte{0});
  CHECK(!memory->allocate(0));
  CHECK(!memory->allocate(ContextMemory::kBytes));
  CHECK(!memory->allocate(~std::size_t{0}));
}

TEST_CASE("the application maps the same memory and cannot resize it") {
  const auto memory = create();
  const UniqueFd fd = memory->take_fd();
  const auto area = memory->allocate(4096);
  memory->bytes_of(*area)[3] = std::byte{42};
  void* const seen =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), static_cast<off_t>(area->offset));
  REQUIRE(seen != MAP_FAILED);
  CHECK(static_cast<std::byte*>(seen)[3] == std::byte{42});
  ::munmap(seen, 4096);
  CHECK(::ftruncate(fd.get(), 0) != 0);
  CHECK(::ftruncate(fd.get(), static_cast<off_t>(2 * ContextMemory::kBytes)) != 0);
  CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0);
  struct stat status = {};
  CHECK(::fstat(fd.get(), &status) == 0);
  CHECK(status.st_blocks * 512 <= 8192);  // sparse
}

TEST_CASE("areas that come and go never overlap, and all of the memory comes back") {
  std::mt19937 dice(3);
  const auto memory = create();
  std::vector<ContextMemory::Area> areas;
  for (int i = 0; i < 3000; ++i) {
    if (dice() % 3 == 0 && !areas.empty()) {
      std::swap(areas[dice() % areas.size()], areas.back());
      memory->free(areas.back());
      areas.pop_back();
    } else if (const auto area = memory->allocate(1 + dice() % (1 << 20))) {
      areas.push_back(*area);
    }
  }
  std::sort(areas.begin(), areas.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  for (std::size_t i = 1; i < areas.size(); ++i)
    REQUIRE(areas[i - 1].offset + areas[i - 1].bytes <= areas[i].offset);
  CHECK(areas.back().offset + areas.back().bytes <= ContextMemory::kBytes);
  for (const auto& area : areas)
    memory->free(area);
  CHECK(memory->allocate(ContextMemory::kBytes - emulator::kControlAreaBytes));
}

}  // namespace
}  // namespace roci::shim
