// The containers that the engine keeps its objects in.
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "emulator/context.h"
#include "emulator/dice.h"
#include "emulator/flat_table.h"
#include "emulator/intrusive_list.h"
#include "emulator/slot_map.h"
#include "emulator/timers.h"

namespace roci::emulator {
namespace {

constexpr std::uint64_t kSeed[4] = {7, 7, 7, 7};

TEST_CASE("a key that is drawn has an upper part that no other has, and that is not 0") {
  KeyTable keys;
  MemoryGrant taken;
  taken.key = 0x1234'5600;
  keys.insert(taken);
  const std::uint32_t dice[] = {0x0000'00AB, 0x1234'56CD, 0x0000'01EF};
  const std::uint32_t* next = dice;
  CHECK(keys.draw([&] { return *next++; }) == 0x0000'01EF);
}

TEST_CASE("FlatTable finds exactly what a map would") {
  Dice dice{kSeed, 1};
  FlatTable<int> table;
  std::map<std::uint32_t, int> model;
  for (int i = 0; i < 20000; ++i) {
    // Few numbers in few home slots, so that runs form and wrap around the end.
    const std::uint32_t number =
        (dice.below(4) == 0 ? 0xFFFFFFF0U : 0U) + dice.below(48) * 64 + dice.below(3);
    const auto found = model.find(number);
    if (found == model.end()) {
      table.insert(number, model[number]);
    } else if (dice.below(2) == 0) {
      table.erase(number);
      model.erase(found);
    }
    if (i % 64 != 0) continue;
    REQUIRE(table.size() == model.size());
    for (auto& [key, value] : model)
      REQUIRE(table.find(key) == &value);
    CHECK(table.find(0x12345677) == nullptr);
  }
}

TEST_CASE("SlotMap gives the lowest free handle") {
  SlotMap<int> map;
  for (int i = 0; i < 4; ++i) {
    CHECK(map.next_handle() == static_cast<std::uint32_t>(i));
    map.add(std::make_unique<int>(i));
  }
  map.remove(2);
  map.remove(1);
  CHECK(map.size() == 2);
  CHECK(map.find(1) == nullptr);
  CHECK(map.find(4) == nullptr);
  CHECK(map.next_handle() == 1);
  map.add(std::make_unique<int>(10));
  CHECK(*map.find(1) == 10);
  CHECK(map.handles() == std::vector<std::uint32_t>{0, 1, 3});
}

struct Item {
  int value = 0;
  OwnedNode<Item> node{*this};
};

std::vector<int> values(IntrusiveList<Item>& list) {
  std::vector<int> out;
  list.for_each([&](Item& item) { out.push_back(item.value); });
  return out;
}

TEST_CASE("IntrusiveList keeps its order, and an element that dies leaves it") {
  IntrusiveList<Item> list;
  Item first{1}, third{3};
  {
    Item second{2};
    for (Item* item : {&first, &second, &third})
      list.push_back(item->node);
    list.push_back(first.node);  // is in it already
    CHECK(values(list) == std::vector<int>{1, 2, 3});
    list.rotate(first.node);
    CHECK(values(list) == std::vector<int>{2, 3, 1});
  }
  CHECK(values(list) == std::vector<int>{3, 1});
  list.for_each([](Item& item) { item.node.unlink(); });
  CHECK(list.is_empty());
}

TEST_CASE("Timers give the QPs in the order of their deadlines, wherever these move") {
  Dice dice{kSeed, 2};
  Context context;
  std::vector<std::unique_ptr<Qp>> qps;
  Timers timers;
  for (std::uint32_t i = 0; i < 50; ++i)
    qps.push_back(std::make_unique<Qp>(context, i, proto::Qpn{i + 2}));
  timers.reserve(qps.size());
  const auto earliest = [&] {
    Time time = kNever;
    for (const auto& qp : qps)
      time = std::min(time, qp->timer_deadline);
    return time;
  };
  for (int i = 0; i < 5000; ++i) {
    Qp& qp = *qps[dice.below(50)];
    const bool stops = dice.below(5) == 0;
    timers.set(qp, stops ? kNever : Time{} + std::chrono::nanoseconds(dice.below(1000)));
    REQUIRE(timers.next() == earliest());
  }
  timers.postpone_all([](const Qp& qp) { return qp.timer_deadline + std::chrono::nanoseconds(qp.handle); });
  Time last = Time::min();
  while (Qp* qp = timers.first_due(Time{} + std::chrono::seconds(1))) {
    CHECK(qp->timer_deadline >= last);
    last = qp->timer_deadline;
    timers.set(*qp, kNever);
  }
  CHECK(timers.next() == kNever);
  CHECK(earliest() == kNever);
}

}  // namespace
}  // namespace roci::emulator
