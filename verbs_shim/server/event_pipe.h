// How events reach an application: the write end of a pipe, of which it reads fixed records with read(), and
// the way from the shards to it.
//
// Writing never blocks (record_pipe.h). Each record belongs to an object (CQ, QP, port) that is being
// watched; when the object goes, its unread records are taken out of the pipe, and purge() says how many the
// application has seen, which is how many it will have acknowledged. Thread rule: any thread; one mutex per
// pipe, held over a write() of a record at most (a purge holds it longer).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "emulator/command.h"
#include "proto/result.h"
#include "verbs_shim/server/record_pipe.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::shim {

enum class ObjectClass : std::uint8_t { kCq, kQp, kSrq, kPort };

class EventPipe {
 public:
  // What the records are: ib_uverbs_comp_event_desc or ib_uverbs_async_event_desc.
  enum class Record : std::uint8_t { kCompletion = 8, kAsync = 16 };
  static constexpr std::size_t kMaxQueued =
      65536;  // records; more of an application that does not read are lost

  struct Ends;
  [[nodiscard]] static proto::Result<Ends, std::errc> create(Record record);

  // st_ino of the pipe: its name across processes and dup().
  [[nodiscard]] ino_t inode() const { return pipe_.inode(); }
  [[nodiscard]] int write_fd() const { return pipe_.write_fd(); }

  // Events of the object, named by the application's handle, are written from now on.
  void watch(ObjectClass object, std::uint64_t element);
  // Ends that, takes out what was not read, and returns how many records the application has read or is
  // reading.
  [[nodiscard]] std::uint32_t purge(ObjectClass object, std::uint64_t element);
  // An event, for nobody if the object is not watched. False: it is lost, as the application reads nothing
  // any more.
  bool push(ObjectClass object, std::uint64_t element, std::uint32_t type);
  // There is room again.
  void flush();

 private:
  struct Event {
    std::uint64_t element = 0;
    std::uint32_t type = 0;
    std::uint32_t reserved = 0;
  };
  static_assert(sizeof(Event) == 16);
  using Key = std::pair<ObjectClass, std::uint64_t>;

  EventPipe(Record record, PipeEnds&& ends)
      : record_(record),
        pipe_(std::move(ends.writer), ends.inode, kMaxQueued, static_cast<std::size_t>(record)) {}
  [[nodiscard]] bool is_of(const Event& event, const Key& key) const;

  const Record record_;
  std::mutex mutex_;
  RecordPipe<Event> pipe_;
  std::map<Key, std::uint32_t> written_;  // by watched object: records in the pipe, in the queue or read
};

struct EventPipe::Ends {
  std::shared_ptr<EventPipe> pipe;
  UniqueFd reader;  // the application's; blocking, as applications expect
};

// Finds the pipe of an event. Thread rule: any thread.
class EventRouter {
 public:
  void add_channel(std::uint64_t channel, std::shared_ptr<EventPipe> pipe);
  void remove_channel(std::uint64_t channel);
  void add_context(emulator::ContextId context, std::shared_ptr<EventPipe> async_pipe);
  void remove_context(emulator::ContextId context);
  void deliver(std::span<const emulator::Event> events);
  // How many were lost, as an application reads none.
  [[nodiscard]] std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<EventPipe> find(const emulator::Event& event);

  std::atomic<std::uint64_t> lost_{0};
  std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<EventPipe>> channels_;
  std::unordered_map<std::uint32_t, std::shared_ptr<EventPipe>> contexts_;
};

}  // namespace roci::shim
