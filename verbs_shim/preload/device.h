// One open of a device by the application: its connection, and, of a uverbs device, the control area it
// shares with the engine, and what is known of its rings, for the day that the daemon dies.
//
// Two commands never leave the process, as the data path cannot pay for a round trip: the send doorbell and
// the arming of a CQ. Everything else is the daemon's. Slots are never unmapped, so a thread that still uses
// a closed context finds an empty control area and not a hole. The rdma_cm device (rdma_cm_device.cpp) has
// neither: its fd is the read end of a pipe of events, and every other command is the daemon's. Thread rule:
// as each member says.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "emulator/shared_layout.h"
#include "verbs_shim/preload/fd_table.h"
#include "verbs_shim/preload/rpc.h"
#include "verbs_shim/preload/uverbs_command.h"
#include "verbs_shim/rdma_cm_abi.h"

namespace roci::shim {

// Character device numbers of uverbsN, as its sysfs file says.
inline constexpr unsigned kUverbsMajor = 231;
inline constexpr unsigned kUverbsFirstMinor = 192;
// Of the rdma_cm device: a miscellaneous one.
inline constexpr unsigned kRdmaCmMajor = 10;
inline constexpr unsigned kRdmaCmMinor = 122;

inline constexpr std::size_t kMaxDevices = 1024;  // opens at the same time, in this process
// SRQs of one open whose receives are flushed when the daemon dies; of more than that they are not.
inline constexpr std::uint32_t kMaxSrqRecords = 8192;

// What is known of a context's rings, by slot. Plain structs without initializers: they live in fresh pages,
// which are zero, and of which only those in use exist.
struct Ring {
  RingLocation location;
  std::byte* mapped;  // by the watcher, once the daemon is dead
};
struct CqRecord {
  bool is_live;  // accessed atomically
  Ring ring;
};
struct SrqRecord {
  bool is_live;  // accessed atomically
  Ring ring;
};
struct QpRecord {
  bool is_live;  // accessed atomically
  bool has_srq;  // instead of a receive ring
  std::uint32_t qpn;
  std::uint32_t send_cq, recv_cq, srq;  // slots
  Ring send_ring, recv_ring;
};
struct Records {
  std::uint32_t cq_bound, qp_bound, srq_bound;  // slots from here on were never in use; accessed atomically
  CqRecord cqs[emulator::kMaxCqsPerContext];
  QpRecord qps[emulator::kMaxQpsPerContext];
  SrqRecord srqs[kMaxSrqRecords];
};

class Device {
 public:
  enum class State : std::uint8_t { kFree, kOpening, kOpen, kClosing };
  enum class Kind : std::uint8_t { kUverbs, kRdmaCm };

  // The fd, or -1 with errno. Any thread. `uverbs_number`: of a uverbs device.
  static int open(Kind kind, int uverbs_number, int open_flags);
  static Device& of(FdTag tag);

  // write() on the fd. `fd` is what the application wrote to. Any thread, concurrently.
  // kNotOurs: the fd was closed behind our back and is another file now.
  static constexpr ssize_t kNotOurs = -2;
  static constexpr std::size_t kMaxCommandBytes = 4096;  // and of a response; those of the ABI are shorter
  ssize_t write(int fd, const void* bytes, std::size_t length_bytes);

  // fds: another one names this device; one fewer does, and the last closes it. Own process only.
  void add_fd();
  void drop_fd();
  // The fd still is our file, however it came to its number.
  [[nodiscard]] bool is_same_file(int fd) const;
  [[nodiscard]] dev_t device_number() const;

  // A hidden fd must leave its number, because the application wants that very one.
  static void move_hidden_fd(int fd);
  // Ends all contexts of this process before its memory becomes another program's, and waits until the daemon
  // has let go of them.
  static void close_all_for_exec();

 private:
  friend class Watcher;

  int connect(int uverbs_number, int open_flags);
  int connect_uverbs(int uverbs_number, int& memory_fd);
  int connect_rdma_cm(int& event_fd, int open_flags);
  int map_control_area(int memory_fd);
  ssize_t write_uverbs(int fd, const void* bytes, std::size_t length_bytes, const void* frame);
  ssize_t write_rdma_cm(int fd, const void* bytes, std::size_t length_bytes, const void* frame);
  static int read_event(int fd, std::byte* response, std::size_t capacity_bytes, const void* frame);
  int run_rdma_cm(int fd, const ucm::Header& header, const std::byte* core, std::byte* response_at,
                  std::size_t capacity_bytes, const void* frame);
  int post_send(std::uint32_t qp);
  void ring_doorbell(std::uint32_t slot);
  int arm(std::uint32_t cq, bool solicited_only);
  int run(int fd, const void* bytes, std::size_t length_bytes, const void* frame);
  void remember(const UverbsCommand& command, const std::byte* response, std::size_t response_bytes);
  void remember_qp(const UverbsCommand& command, const std::byte* response, std::size_t response_bytes);
  void release();
  static void after_fork_in_child();
  void forget_rings();
  static Device* claim_slot();

  State state_ = State::kFree;  // under the lock of all devices
  Kind kind_ = Kind::kUverbs;
  bool is_inherited_ = false;  // from the parent of a fork, whose it stays: here every command fails
  std::atomic<std::uint32_t> fd_count_{0};
  std::atomic<std::uint32_t> running_{0};  // commands in progress
  std::uint32_t nic_ = 0;
  dev_t file_device_ = 0;  // of the application's fd: memory object or pipe
  ino_t file_inode_ = 0;
  std::atomic<int> kick_fd_{-1};
  std::atomic<int> memory_fd_{-1};  // hidden duplicate, to map rings from
  emulator::ControlArea* control_ = nullptr;
  Connection connection_;
  Records* records_ = nullptr;  // as long as the slot
};

}  // namespace roci::shim
