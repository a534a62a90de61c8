#include "verbs_shim/preload/watcher.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/poll.h>

#include <cstring>

#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {

using emulator::RingCqe;
using emulator::RingHeader;
using emulator::RingRecvWqe;
using emulator::RingSendWqe;

namespace {

// Numbers of the verbs ABI: IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND, IBV_WC_RECV.
constexpr std::uint32_t kFlushError = 5, kSendOpcode = 0, kReceiveOpcode = 128;

constexpr int kFlushIntervalMs = 5;
constexpr std::size_t kStackBytes = std::size_t{64} * 1024;  // beside what the C library needs for itself

std::atomic<bool> is_running{false};
std::atomic<int> wake_fd{-1};  // hidden eventfd

std::uint32_t load(std::uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
void store(std::uint32_t& word, std::uint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

// What the application can have broken is not followed outside the ring.
bool is_sound(const RingHeader& header, std::uint32_t size_bytes, std::size_t least_element_bytes) {
  if (header.log2_element_bytes > 16) return false;
  const std::uint64_t slots = std::uint64_t{header.index_mask} + 1;
  return (std::size_t{1} << header.log2_element_bytes) >= least_element_bytes && (slots & (slots - 1)) == 0 &&
         emulator::kRingDataOffset + (slots << header.log2_element_bytes) <= size_bytes;
}

std::byte* element(RingHeader& header, std::uint32_t index) {
  return reinterpret_cast<std::byte*>(&header) + emulator::kRingDataOffset +
         (std::size_t{index & header.index_mask} << header.log2_element_bytes);
}

}  // namespace

DeviceTable::Locked::Locked() { ::pthread_mutex_lock(&device_table().lock); }
DeviceTable::Locked::~Locked() { ::pthread_mutex_unlock(&device_table().lock); }

std::size_t DeviceTable::index_of(const Device* device) const {
  std::size_t index = 0;
  while (devices[index] != device)
    ++index;
  return index;
}

void Watcher::start() {
  if (!is_running.exchange(true)) {
    const long visible = system_call(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (visible >= 0) wake_fd.store(hide_fd(static_cast<int>(visible)));

    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread inherits it
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    const long least = ::sysconf(_SC_THREAD_STACK_MIN);
    ::pthread_attr_setstacksize(&attributes, kStackBytes + static_cast<std::size_t>(least > 0 ? least : 0));
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread{};
    // Without the thread everything works but the rescue of a poller from a dead daemon; the next open tries
    // again.
    if (::pthread_create(&thread, &attributes, run, nullptr) != 0) {
      const int fd = wake_fd.exchange(-1);
      clear_fd_tag(fd);
      close_quietly(fd);
      is_running.store(false);
    }
    ::pthread_attr_destroy(&attributes);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return;
  }
  const std::uint64_t one = 1;
  system_call(SYS_write, wake_fd.load(), &one, sizeof(one));
}

void Watcher::reset_after_fork() {
  is_running.store(false);
  const int fd = wake_fd.exchange(-1);
  if (fd < 0) return;
  clear_fd_tag(fd);
  close_quietly(fd);
}

void Watcher::replace_fd_locked(int from, int to) {
  if (wake_fd.load() == from) wake_fd.store(to);
}

void* Watcher::run(void*) {
  static pollfd watched[kMaxDevices + 1];
  static Device* owners[kMaxDevices + 1];
  DeviceTable& table = device_table();
  for (;;) {
    std::size_t count = 1;
    bool is_any_dead = false;
    {
      DeviceTable::Locked locked;
      watched[0] = {wake_fd.load(), POLLIN, 0};
      for (Device* device : table.devices) {
        if (device == nullptr) break;
        if (device->state_ != Device::State::kOpen || device->is_inherited_ ||
            device->kind_ != Device::Kind::kUverbs)  // of rdma_cm the pipe tells its reader
          continue;
        if (device->control_->dead != 0) {
          flush(*device);
          is_any_dead = true;
          continue;
        }
        owners[count] = device;
        watched[count++] = {device->connection_.fd(), 0, 0};  // hang-up and error are always reported
      }
    }
    if (system_call(SYS_poll, watched, count, is_any_dead ? kFlushIntervalMs : -1) <= 0) continue;
    std::uint64_t wakes = 0;
    if (watched[0].revents != 0) system_call(SYS_read, watched[0].fd, &wakes, sizeof(wakes));

    DeviceTable::Locked locked;
    for (std::size_t i = 1; i < count; ++i) {
      Device& device = *owners[i];
      if (watched[i].revents == 0 || device.state_ != Device::State::kOpen ||
          device.connection_.fd() != watched[i].fd)
        continue;
      // The device may have been closed meanwhile, and another opened in its place, with the same fd: ask
      // again.
      pollfd now = {watched[i].fd, 0, 0};
      if (system_call(SYS_poll, &now, 1, 0) <= 0) continue;
      __atomic_store_n(&device.control_->dead, 1u, __ATOMIC_SEQ_CST);
    }
  }
}

void Watcher::flush(Device& device) {
  const std::uint32_t bound = __atomic_load_n(&device.records_->qp_bound, __ATOMIC_ACQUIRE);
  for (std::uint32_t i = 0; i < bound; ++i) {
    QpRecord& qp = device.records_->qps[i];
    if (!__atomic_load_n(&qp.is_live, __ATOMIC_ACQUIRE)) continue;
    flush_ring(device, qp, qp.send_ring, qp.send_cq, true);
    if (!qp.has_srq) {
      flush_ring(device, qp, qp.recv_ring, qp.recv_cq, false);
    } else if (qp.srq < kMaxSrqRecords &&
               __atomic_load_n(&device.records_->srqs[qp.srq].is_live, __ATOMIC_ACQUIRE)) {
      // All that waits there goes to the first of the SRQ's QPs.
      flush_ring(device, qp, device.records_->srqs[qp.srq].ring, qp.recv_cq, false);
    }
  }
}

std::byte* Watcher::map(Device& device, Ring& ring) {
  if (ring.mapped == nullptr && ring.location.size_bytes > emulator::kRingDataOffset) {
    void* mapped = ::mmap(nullptr, ring.location.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                          device.memory_fd_.load(), static_cast<off_t>(ring.location.offset));
    if (mapped != MAP_FAILED) ring.mapped = static_cast<std::byte*>(mapped);
  }
  return ring.mapped;
}

void Watcher::flush_ring(Device& device, const QpRecord& qp, Ring& ring, std::uint32_t cq, bool is_send) {
  if (cq >= emulator::kMaxCqsPerContext ||
      !__atomic_load_n(&device.records_->cqs[cq].is_live, __ATOMIC_ACQUIRE))
    return;
  Ring& cq_ring = device.records_->cqs[cq].ring;
  if (map(device, ring) == nullptr || map(device, cq_ring) == nullptr) return;
  auto& work = *reinterpret_cast<RingHeader*>(ring.mapped);
  auto& completions = *reinterpret_cast<RingHeader*>(cq_ring.mapped);
  if (!is_sound(work, ring.location.size_bytes, is_send ? sizeof(RingSendWqe) : sizeof(RingRecvWqe)) ||
      !is_sound(completions, cq_ring.location.size_bytes, sizeof(RingCqe)))
    return;

  std::uint32_t consumer = load(work.consumer) & work.index_mask;
  const std::uint32_t producer = load(work.producer) & work.index_mask;
  while (consumer != producer) {
    const std::uint32_t slot = load(completions.producer) & completions.index_mask;
    const std::uint32_t next = (slot + 1) & completions.index_mask;
    if (next == (load(completions.consumer) & completions.index_mask)) return;  // full: more of it next time
    RingCqe cqe{};
    std::memcpy(&cqe.wr_id, element(work, consumer), sizeof(cqe.wr_id));  // first member of both kinds of WQE
    cqe.status = kFlushError;
    cqe.opcode = is_send ? kSendOpcode : kReceiveOpcode;
    cqe.qp_num = qp.qpn;
    cqe.port_num = 1;
    std::memcpy(element(completions, slot), &cqe, sizeof(cqe));
    store(completions.producer, next);
    consumer = (consumer + 1) & work.index_mask;
    store(work.consumer, consumer);
  }
}

}  // namespace roci::shim
