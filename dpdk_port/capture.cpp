#include "dpdk_port/capture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "dpdk_port/pcapng.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {
namespace {

using Clock = std::chrono::steady_clock;  // the clock of emulator::Time in the daemon

std::uint64_t wall_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

std::string comment(Fate fate) {
  if (fate == Fate::kNobody) return "no_station: no NIC of the fabric has this destination MAC";
  if (fate == Fate::kQueueFull) return "queue_full: the receiver's input queue was full";
  if (fate == Fate::kLinkDown) return "link_down: the sender's port is down";
  const auto reason = static_cast<std::size_t>(fate);
  if (reason == 0 || reason >= emulator::kDropReasonCount) return {};
  return fmt::format("{}: {}", emulator::kDropReasonNames[reason], emulator::kDropReasonSentences[reason]);
}

}  // namespace

// One pcapng file being written.
struct CaptureHub::File {
  static constexpr std::size_t kBufferBytes =
      std::size_t{256} * 1024;  // stays in the cache on its way to write()

  // Bit n: NIC n.
  [[nodiscard]] bool has(emulator::NicId nic) const { return nic != kWire && ((nics >> nic.index) & 1) != 0; }
  // The interface a frame is shown on: its receiver's, or its sender's where the receiver is not of interest.
  [[nodiscard]] emulator::NicId shown_on(emulator::NicId from, emulator::NicId to) const {
    return has(to) ? to : has(from) ? from : kWire;
  }

  // A pipe or terminal that nobody reads from must not hold the writer for ever. It is opened anew without
  // blocking; where that is denied, as it is another user's, it is asked each time.
  void open(shim::UniqueFd given) {
    fd = std::move(given);
    struct stat status {};
    if (fstat(fd.get(), &status) != 0) return;
    to_socket = S_ISSOCK(status.st_mode);
    if (!S_ISFIFO(status.st_mode) && isatty(fd.get()) != 1) return;
    shim::UniqueFd own(::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(),
                              O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    asks_first = !own;
    if (own) fd = std::move(own);
  }

  [[nodiscard]] ssize_t put(std::span<const std::byte> bytes) const {
    if (to_socket) return send(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (asks_first) {
      pollfd room{fd.get(), POLLOUT, 0};
      if (poll(&room, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
      }
      bytes = bytes.first(std::min<std::size_t>(bytes.size(), PIPE_BUF));  // so much, then, does not block
    }
    return write(fd.get(), bytes.data(), bytes.size());
  }

  // Waits for a pipe or socket at most `patience` at a time.
  void flush(emulator::Duration patience) {
    std::size_t at = 0;
    while (error == 0 && at < buffer.size()) {
      const ssize_t done = put(std::span(buffer).subspan(at));
      if (done > 0) {
        at += static_cast<std::size_t>(done);
      } else if (done == 0) {
        error = EIO;
      } else if (errno == EAGAIN) {
        pollfd waiting{fd.get(), POLLOUT, 0};
        if (poll(&waiting, 1, static_cast<int>(patience / std::chrono::milliseconds(1))) == 0)
          error = ETIMEDOUT;
      } else if (errno != EINTR) {
        error = errno;
      }
    }
    totals.bytes += at;
    if (error == 0) {
      for (std::size_t nic = 0; nic < pending.size(); ++nic)
        written[nic] += std::exchange(pending[nic], 0);
    }
    buffer.clear();
  }

  std::int64_t id = 0;
  shim::UniqueFd fd;
  bool to_socket = false;
  std::uint64_t nics = 0;
  std::uint32_t snap_length_bytes = 0;
  bool asks_first = false;  // write() may block
  int error = 0;            // an errno: the file takes no more
  std::uint64_t start_ns = 0;
  std::int64_t wall_offset_ns = 0;  // wall clock = emulator::Time + this
  std::vector<std::byte> buffer;
  std::vector<std::uint32_t> interface_of;            // by NIC, where has()
  std::vector<std::uint64_t> seen, written, pending;  // frames by NIC; pending: in the buffer
  std::vector<std::uint64_t> lost_before;             // of the rings, by NIC, when the capture began
  Totals totals;
};

CaptureHub::CaptureHub(Config config)
    : config_(std::move(config)), answers_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  for (std::uint32_t shard = 0; shard < config_.shards; ++shard)
    taps_.push_back(std::make_unique<CaptureTap>(switch_));
  writer_ = std::thread([this] { write_loop(); });
}

CaptureHub::~CaptureHub() { end(); }

void CaptureHub::end() {
  if (!writer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  writer_.join();
}

// ---- the control thread's side -----------------------------------------------------------------------

void CaptureHub::start(shim::UniqueFd fd, const Wanted& wanted, std::function<void(std::int64_t)> then) {
  const auto file = std::make_shared<shim::UniqueFd>(std::move(fd));  // a std::function has to be copyable
  submit([this, file, wanted, then = std::move(then)] {
    answer([then, id = begin(std::move(*file), wanted)] { then(id); });
  });
}

void CaptureHub::stop(std::int64_t id, std::function<void(const Totals&)> then) {
  submit([this, id, then = std::move(then)] { answer([then, totals = finish(id)] { then(totals); }); });
}

void CaptureHub::run_answers() {
  std::uint64_t count = 0;
  (void)!read(answers_fd_.get(), &count, sizeof count);
  std::deque<Job> answers;
  {
    const std::lock_guard lock(mutex_);
    answers.swap(answers_);
  }
  for (const Job& one : answers)
    one();
}

void CaptureHub::submit(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_all();
}

void CaptureHub::answer(Job answer) {
  {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
  }
  const std::uint64_t one = 1;
  (void)!write(answers_fd_.get(), &one, sizeof one);
}

// ---- the writer's ------------------------------------------------------------------------------------

void CaptureHub::update_switch() {
  std::uint32_t longest = 0;
  for (const auto& file : files_)
    longest = std::max(longest, file->snap_length_bytes);
  switch_.snap_length_bytes.store(longest);
  switch_.on.store(!files_.empty());
}

// Losses of the rings, by the NIC they would have been shown on.
static std::vector<std::uint64_t> ring_losses(
    const std::vector<std::unique_ptr<CaptureTap>>& taps, std::size_t nics,
    const std::function<emulator::NicId(emulator::NicId, emulator::NicId)>& shown_on) {
  std::vector<emulator::NicId> ends{kWire};
  for (std::size_t nic = 0; nic < nics; ++nic)
    ends.push_back(emulator::NicId{static_cast<std::uint8_t>(nic)});
  std::vector<std::uint64_t> lost(nics);
  for (const auto from : ends) {
    for (const auto to : ends) {
      const auto nic = shown_on(from, to);
      if (nic == kWire) continue;
      for (const auto& tap : taps)
        lost[nic.index] += tap->ring().lost(from, to);
    }
  }
  return lost;
}

std::int64_t CaptureHub::begin(shim::UniqueFd fd, const Wanted& wanted) {
  auto file = std::make_unique<File>();
  file->open(std::move(fd));
  const std::size_t nic_count = config_.nic_names.size();
  const std::uint64_t all = nic_count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << nic_count) - 1;
  file->nics = wanted.nics & all;
  if (file->nics == 0) return -EINVAL;
  file->snap_length_bytes = wanted.snap_length_bytes == 0
                                ? kMaxSnapLengthBytes
                                : std::clamp(wanted.snap_length_bytes, 64U, kMaxSnapLengthBytes);
  file->start_ns = wall_ns();
  file->wall_offset_ns = static_cast<std::int64_t>(file->start_ns) - now_ns();
  file->seen.resize(nic_count);
  file->written.resize(nic_count);
  file->pending.resize(nic_count);
  file->interface_of.resize(nic_count);
  pcapng::append_section(file->buffer, config_.application);
  std::uint32_t interfaces = 0;
  for (std::size_t nic = 0; nic < nic_count; ++nic) {
    if (((file->nics >> nic) & 1) == 0) continue;
    pcapng::append_interface(file->buffer, config_.nic_names[nic], config_.port_names[nic],
                             file->snap_length_bytes);
    file->interface_of[nic] = interfaces++;
  }

  if (files_.size() >= config_.max_captures) return -EBUSY;
  for (const auto& tap : taps_) {
    if (!tap->ring().allocate(config_.ring_bytes)) return -ENOMEM;
  }
  if (wanted.truncate && ftruncate(file->fd.get(), 0) != 0 && errno != EINVAL)
    return -errno;  // EINVAL: no file
  file->flush(config_.write_patience);
  if (file->error != 0) return -file->error;
  file->lost_before =
      ring_losses(taps_, nic_count, [&](auto from, auto to) { return file->shown_on(from, to); });
  file->id = next_id_++;
  const std::int64_t id = file->id;
  files_.push_back(std::move(file));
  update_switch();
  (void)config_.wait_for_pass();  // one that sleeps since before has not said that it records nothing
  return id;
}

CaptureHub::Totals CaptureHub::finish(std::int64_t id) {
  (void)config_.wait_for_pass();  // what was seen before this call is in the rings now
  const auto at =
      std::find_if(files_.begin(), files_.end(), [id](const auto& file) { return file->id == id; });
  if (at == files_.end()) return {};
  drain(now_ns(), std::numeric_limits<std::size_t>::max());
  const std::unique_ptr<File> file = std::move(*at);
  files_.erase(at);
  update_switch();

  file->flush(config_.write_patience);
  const std::uint64_t end_ns = wall_ns();
  const auto lost = ring_losses(taps_, config_.nic_names.size(),
                                [&](auto from, auto to) { return file->shown_on(from, to); });
  for (std::size_t nic = 0; nic < lost.size(); ++nic) {
    if (((file->nics >> nic) & 1) == 0) continue;
    const std::uint64_t in_rings = lost[nic] - file->lost_before[nic];
    const std::uint64_t dropped = in_rings + file->seen[nic] - file->written[nic];
    pcapng::append_statistics(
        file->buffer, {file->interface_of[nic], file->start_ns, end_ns, in_rings + file->seen[nic], dropped});
    file->totals.written += file->written[nic];
    file->totals.lost += dropped;
  }
  file->flush(config_.write_patience);
  file->totals.error = file->error;
  if (files_.empty() && config_.wait_for_pass()) {  // nobody writes to the rings any more
    for (const auto& tap : taps_) {
      while (tap->ring().front() != nullptr)
        tap->ring().pop();
      tap->ring().release_pages();
    }
  }
  return file->totals;
}

void CaptureHub::write_record(const CaptureRing::Record& record) {
  for (const auto& file : files_) {
    const auto nic = file->shown_on(record.from, record.to);
    if (nic == kWire) continue;
    ++file->seen[nic.index];
    if (file->error != 0) continue;
    pcapng::Packet packet;
    packet.interface = file->interface_of[nic.index];
    packet.time_ns = static_cast<std::uint64_t>(record.time_ns + file->wall_offset_ns);
    packet.original_length_bytes = record.original_bytes;
    packet.bytes =
        record.bytes().first(std::min<std::size_t>(record.captured_bytes, file->snap_length_bytes));
    packet.direction = nic == record.to ? pcapng::Direction::kInbound : pcapng::Direction::kOutbound;
    const std::string text = comment(record.fate);
    packet.comment = text;
    pcapng::append_packet(file->buffer, packet);
    ++file->pending[nic.index];
    if (file->buffer.size() >= File::kBufferBytes) file->flush(config_.write_patience);
  }
}

// The time up to which every shard has recorded what it ever will.
std::int64_t CaptureHub::horizon_ns() const {
  std::int64_t horizon = std::numeric_limits<std::int64_t>::max();
  if (taps_.size() == 1) return horizon;  // one ring is in order by itself
  for (const auto& tap : taps_)
    horizon = std::min(horizon, tap->horizon_ns());
  return horizon;
}

// Writes up to `most` of the records not younger than `until_ns`, the oldest first.
bool CaptureHub::drain(std::int64_t until_ns, std::size_t most) {
  bool found = false;
  for (std::size_t count = 0; count < most; ++count) {
    CaptureTap* oldest = nullptr;
    for (const auto& tap : taps_) {
      const auto* record = tap->ring().front();
      if (record != nullptr && (oldest == nullptr || record->time_ns < oldest->ring().front()->time_ns))
        oldest = tap.get();
    }
    if (oldest == nullptr || oldest->ring().front()->time_ns > until_ns) break;
    write_record(*oldest->ring().front());
    oldest->ring().pop();
    found = true;
  }
  return found;
}

void CaptureHub::write_loop() {
  constexpr std::size_t kMostRecords = 4096;  // so that jobs get their turn
  const auto is_wanted = [this] { return ending_ || !jobs_.empty(); };
  for (bool is_ending = false; !is_ending;) {
    if (const Job job = next_job()) {
      job();
      continue;
    }
    if (drain(horizon_ns(), kMostRecords)) continue;
    for (const auto& file : files_)
      file->flush(config_.write_patience);
    std::unique_lock lock(mutex_);
    if (files_.empty())
      wake_.wait(lock, is_wanted);
    else
      wake_.wait_for(lock, config_.write_interval, is_wanted);
    is_ending = ending_ && jobs_.empty();
  }
  while (!files_.empty())
    (void)finish(files_.back()->id);
}

CaptureHub::Job CaptureHub::next_job() {
  const std::lock_guard lock(mutex_);
  if (jobs_.empty()) return {};
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

}  // namespace roci::dpdk_port
