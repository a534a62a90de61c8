// The table of open devices, and the thread that notices the death of the daemon.
//
// Applications that wait for events see their pipes end; those that only poll would spin for ever. So for
// each context whose connection ends, the watcher marks the control area dead (later posts fail with EIO) and
// completes what is outstanding on its QPs with flush errors in the CQ rings, on and on until the application
// closes the device, since receives are posted without our seeing it. One small thread with all signals
// blocked, started at the first open.
#pragma once

#include <pthread.h>

#include <cstddef>

#include "verbs_shim/preload/device.h"

namespace roci::shim {

struct DeviceTable {
  Device* devices[kMaxDevices] = {};  // filled from the start, never emptied: the first null ends it
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

  class Locked {
   public:
    Locked();
    ~Locked();
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
  };
  [[nodiscard]] std::size_t index_of(const Device* device) const;
  void reset_lock_after_fork() { lock = PTHREAD_MUTEX_INITIALIZER; }
};
DeviceTable& device_table();

class Watcher {
 public:
  // A device was opened: watch it too.
  static void start();
  static void reset_after_fork();
  static void replace_fd_locked(int from, int to);

 private:
  static void* run(void*);
  // One more look at a device whose daemon is gone.
  static void flush(Device& device);
  static void flush_ring(Device& device, const QpRecord& qp, Ring& ring, std::uint32_t cq, bool is_send);
  static std::byte* map(Device& device, Ring& ring);
};

}  // namespace roci::shim
