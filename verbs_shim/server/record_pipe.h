// The write end of a pipe from which an application reads records of one size with read().
//
// Writing never blocks: what does not fit is queued here, bounded, and flushed when the pipe has room.
// Records that were not read can be taken back. A record is shorter than PIPE_BUF, so it is in the pipe whole
// or not at all; the application may scribble on its own end as it likes. Thread rule: one at a time.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "proto/result.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::shim {

struct PipeEnds {
  UniqueFd reader;  // the application's; blocking, as applications expect
  UniqueFd writer;  // ours; it never blocks
  ino_t inode = 0;
};

[[nodiscard]] inline proto::Result<PipeEnds, std::errc> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return proto::Unexpected{last_error()};
  PipeEnds pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  struct stat status = {};
  if (::fcntl(pipe.writer.get(), F_SETFL, O_NONBLOCK) != 0 || ::fstat(pipe.writer.get(), &status) != 0)
    return proto::Unexpected{last_error()};
  pipe.inode = status.st_ino;
  return pipe;
}

template <class Record>
class RecordPipe {
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) <= PIPE_BUF);

 public:
  // What is written of a record are its first `record_bytes`.
  RecordPipe(UniqueFd write_fd, ino_t inode, std::size_t max_queued,
             std::size_t record_bytes = sizeof(Record))
      : write_fd_(std::move(write_fd)), inode_(inode), max_queued_(max_queued), record_bytes_(record_bytes) {}

  // st_ino of the pipe: its name across processes and dup().
  [[nodiscard]] ino_t inode() const { return inode_; }
  [[nodiscard]] int write_fd() const { return write_fd_.get(); }

  // What is pushed now is lost: the application reads nothing any more.
  [[nodiscard]] bool is_full() const { return queue_.size() == max_queued_; }
  // False: the record is lost, as the application closed its end or reads nothing any more.
  [[nodiscard]] bool push(const Record& record) {
    if (queue_.empty() && write(record)) return true;
    if ((queue_.empty() && errno != EAGAIN) || is_full()) return false;
    queue_.push_back(record);
    return true;
  }
  // There is room again.
  void flush() {
    while (!queue_.empty() && write(queue_.front()))
      queue_.pop_front();
  }

  // Takes out what was not read and fits `is_wanted`, oldest first. The pipe is read empty and what stays is
  // written back; if the application reads at the same time, each record goes to one of the two.
  template <class Predicate>
  [[nodiscard]] std::vector<Record> take_out(Predicate is_wanted) {
    std::vector<Record> taken, kept;
    for (const Record& record : read_all())
      (is_wanted(record) ? taken : kept).push_back(record);
    for (const Record& record : queue_)
      (is_wanted(record) ? taken : kept).push_back(record);
    queue_.assign(kept.begin(), kept.end());
    flush();
    return taken;
  }

 private:
  [[nodiscard]] bool write(const Record& record) const {
    return ::write(write_fd_.get(), &record, record_bytes_) == static_cast<ssize_t>(record_bytes_);
  }
  [[nodiscard]] std::vector<Record> read_all() const {
    std::vector<Record> all;
    char path[40];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", write_fd_.get());
    const UniqueFd reader(::open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!reader) return all;
    std::vector<std::byte> bytes(record_bytes_ * 64);
    while (all.size() < max_queued_) {
      const ssize_t length = ::read(reader.get(), bytes.data(), bytes.size());
      if (length <= 0) break;
      for (std::size_t at = 0; at + record_bytes_ <= static_cast<std::size_t>(length); at += record_bytes_) {
        Record record{};
        std::memcpy(static_cast<void*>(&record), bytes.data() + at, record_bytes_);
        all.push_back(record);
      }
    }
    return all;
  }

  UniqueFd write_fd_;
  ino_t inode_;
  std::size_t max_queued_, record_bytes_;
  std::deque<Record> queue_;  // behind what is in the pipe
};

}  // namespace roci::shim
