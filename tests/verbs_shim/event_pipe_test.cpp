// Events in pipes: none lost while they fit or wait, none of an object that is gone, and a count of what was
// read that is exact.
#include "verbs_shim/server/event_pipe.h"

#include <poll.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <thread>
#include <vector>

namespace roci::shim {
namespace {

using Record = EventPipe::Record;

EventPipe::Ends make(Record record) {
  std::signal(SIGPIPE, SIG_IGN);
  auto ends = EventPipe::create(record);
  REQUIRE(ends.has_value());
  return std::move(*ends);
}

// The next record's first word; nothing: none is there.
std::optional<std::uint64_t> next(const EventPipe::Ends& ends, std::size_t record_bytes = 8) {
  pollfd ready{ends.reader.get(), POLLIN, 0};
  if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLIN) == 0) return std::nullopt;
  std::uint64_t words[2];
  REQUIRE(::read(ends.reader.get(), words, record_bytes) == static_cast<ssize_t>(record_bytes));
  return words[0];
}

TEST_CASE("only watched objects are heard of") {
  const auto ends = make(Record::kCompletion);
  ends.pipe->push(ObjectClass::kCq, 1, 0);
  CHECK(!next(ends));
  ends.pipe->watch(ObjectClass::kCq, 1);
  ends.pipe->push(ObjectClass::kCq, 1, 0);
  CHECK(next(ends) == 1);
  struct stat status = {};
  REQUIRE(::fstat(ends.reader.get(), &status) == 0);
  CHECK(status.st_ino == ends.pipe->inode());
}

TEST_CASE("purging takes out what was not read and counts what was") {
  const auto ends = make(Record::kCompletion);
  for (const std::uint64_t cq : {1u, 2u})
    ends.pipe->watch(ObjectClass::kCq, cq);
  for (int i = 0; i < 5; ++i) {
    ends.pipe->push(ObjectClass::kCq, 1, 0);
    ends.pipe->push(ObjectClass::kCq, 2, 0);
  }
  CHECK(next(ends) == 1);
  CHECK(next(ends) == 2);
  CHECK(next(ends) == 1);
  CHECK(ends.pipe->purge(ObjectClass::kCq, 1) == 2);
  CHECK(ends.pipe->purge(ObjectClass::kCq, 1) == 0);
  for (int i = 0; i < 4; ++i)
    CHECK(next(ends) == 2);
  CHECK(!next(ends));
  CHECK(ends.pipe->purge(ObjectClass::kCq, 2) == 5);
}

TEST_CASE("what does not fit into the pipe waits, in order") {
  const auto ends = make(Record::kCompletion);
  constexpr std::uint64_t kEvents = 30000;
  for (std::uint64_t i = 0; i < kEvents; ++i) {
    ends.pipe->watch(ObjectClass::kCq, i);
    ends.pipe->push(ObjectClass::kCq, i, 0);
  }
  CHECK(ends.pipe->purge(ObjectClass::kCq, 17) == 0);           // from the pipe
  CHECK(ends.pipe->purge(ObjectClass::kCq, kEvents - 1) == 0);  // from the queue
  for (std::uint64_t i = 0; i < kEvents - 1; ++i) {
    if (i == 17) continue;
    auto event = next(ends);
    if (!event) {
      ends.pipe->flush();
      event = next(ends);
    }
    REQUIRE(event == i);
  }
  ends.pipe->flush();
  CHECK(!next(ends));
}

TEST_CASE("an application that reads nothing costs bounded memory") {
  const auto ends = make(Record::kCompletion);
  ends.pipe->watch(ObjectClass::kCq, 1);
  constexpr std::size_t kPushed = 2 * EventPipe::kMaxQueued + 20000;
  EventRouter router;
  router.add_channel(7, ends.pipe);
  emulator::Event event;
  event.kind = emulator::EventKind::kCompletion;
  event.channel = 7;
  event.user_handle = 1;
  for (std::size_t i = 0; i < kPushed; ++i)
    router.deliver(std::span(&event, 1));
  CHECK(router.lost() > 0);
  std::size_t read = 0;
  for (int round = 0; round < 100; ++round) {
    while (next(ends))
      ++read;
    ends.pipe->flush();
  }
  CHECK(read >= EventPipe::kMaxQueued);
  CHECK(read < 2 * EventPipe::kMaxQueued);
  CHECK(read + router.lost() == kPushed);
  CHECK(ends.pipe->purge(ObjectClass::kCq, 1) == read);
}

TEST_CASE("objects of different classes may have the same handle") {
  const auto ends = make(Record::kAsync);
  for (const ObjectClass object : {ObjectClass::kCq, ObjectClass::kQp, ObjectClass::kPort}) {
    ends.pipe->watch(object, 7);
  }
  ends.pipe->push(ObjectClass::kCq, 7, 0);
  ends.pipe->push(ObjectClass::kQp, 7, 1);
  ends.pipe->push(ObjectClass::kPort, 7, 9);
  CHECK(ends.pipe->purge(ObjectClass::kQp, 7) == 0);
  CHECK(next(ends, 16) == 7);
  CHECK(next(ends, 16) == 7);
  CHECK(!next(ends, 16));
  CHECK(ends.pipe->purge(ObjectClass::kCq, 7) == 1);
}

TEST_CASE("every kind of event goes with its object") {
  using emulator::EventKind;
  const auto ends = make(Record::kAsync);
  const std::pair<EventKind, ObjectClass> kinds[] = {{EventKind::kCqErr, ObjectClass::kCq},
                                                     {EventKind::kQpFatal, ObjectClass::kQp},
                                                     {EventKind::kQpReqErr, ObjectClass::kQp},
                                                     {EventKind::kQpAccessErr, ObjectClass::kQp},
                                                     {EventKind::kCommEst, ObjectClass::kQp},
                                                     {EventKind::kSqDrained, ObjectClass::kQp},
                                                     {EventKind::kQpLastWqeReached, ObjectClass::kQp},
                                                     {EventKind::kSrqErr, ObjectClass::kSrq},
                                                     {EventKind::kSrqLimitReached, ObjectClass::kSrq},
                                                     {EventKind::kPortErr, ObjectClass::kPort}};
  for (const auto& [kind, object] : kinds) {
    INFO("event " << static_cast<int>(kind));
    ends.pipe->watch(object, 1);
    ends.pipe->push(object, 1, static_cast<std::uint32_t>(kind));
    CHECK(ends.pipe->purge(object, 1) == 0);
    CHECK(!next(ends, 16));
  }
}

TEST_CASE("what an application writes into its pipe itself is nobody's event") {
  const auto ends = make(Record::kAsync);
  ends.pipe->watch(ObjectClass::kQp, 1);
  const std::uint64_t forged[2] = {1, 0xFFFFFFFFFFu};
  REQUIRE(::write(ends.pipe->write_fd(), forged, sizeof forged) == sizeof forged);
  ends.pipe->push(ObjectClass::kQp, 1, 1);
  CHECK(ends.pipe->purge(ObjectClass::kQp, 1) == 0);
  CHECK(next(ends, 16) == 1);
  CHECK(!next(ends, 16));
}

TEST_CASE("a closed reader is no trouble") {
  auto ends = make(Record::kCompletion);
  ends.pipe->watch(ObjectClass::kCq, 1);
  ends.pipe->push(ObjectClass::kCq, 1, 0);
  CHECK(next(ends) == 1);
  ends.reader.reset();
  ends.pipe->push(ObjectClass::kCq, 1, 0);
  ends.pipe->flush();
  CHECK(ends.pipe->purge(ObjectClass::kCq, 1) == 1);
}

TEST_CASE("a reader at work while objects go gets every other event once") {
  const auto ends = make(Record::kCompletion);
  constexpr std::uint64_t kObjects = 200, kEach = 50;
  std::vector<std::uint64_t> seen(kObjects + 1);
  std::thread reader([&] {
    std::uint64_t element = 0;
    while (::read(ends.reader.get(), &element, sizeof element) == sizeof element && element != kObjects)
      ++seen[element];
  });
  std::vector<std::uint32_t> reported(kObjects);
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    ends.pipe->watch(ObjectClass::kCq, i);
    for (std::uint64_t n = 0; n < kEach; ++n)
      ends.pipe->push(ObjectClass::kCq, i, 0);
    if (i % 2 == 0) reported[i] = ends.pipe->purge(ObjectClass::kCq, i);
  }
  ends.pipe->watch(ObjectClass::kCq, kObjects);
  ends.pipe->push(ObjectClass::kCq, kObjects, 0);
  std::thread flusher([&] {
    for (int i = 0; i < 1000; ++i)
      ends.pipe->flush();
  });
  reader.join();
  flusher.join();
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    INFO("object " << i);
    CHECK(seen[i] == (i % 2 == 0 ? reported[i] : kEach));
  }
}

}  // namespace
}  // namespace roci::shim
