// Messages between an application's shim (or `roci`) and the daemon, over a SOCK_SEQPACKET unix socket.
//
// One message is one packet: MessageHeader, then `length_bytes` of payload. A request carries an id of the
// sender's choice, and the reply repeats it; replies may come in any order. Same machine and same release
// only, so host byte order; a version mismatch is answered with EPROTONOSUPPORT. Both sides treat what they
// receive as hostile. Freestanding: the preload shim includes it and has no C++ runtime.
#pragma once

#include <cstddef>
#include <cstdint>

namespace roci::shim {

inline constexpr std::uint32_t kMessageMagic = 0x49434f52;  // "ROCI"
inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} * 1024;
inline constexpr std::size_t kMaxMessageFds = 4;

enum class MessageKind : std::uint16_t {
  kOpenDevice =
      1,          // OpenDeviceRequest -> OpenDeviceReply + 2 fds; this connection is that context from now on
  kUverbs = 2,    // UverbsRequest + raw command -> UverbsReply + raw response, 0 or 1 fd
  kAdmin = 3,     // JSON text -> JSON text (error 0) or a sentence (error != 0); 0 or 1 fd with the request
  kLifeline = 4,  // no payload -> no payload; afterwards the connection only tells by its end that the other
                  // side died
  kCloseDevice = 5,  // no payload -> no payload, once nothing of the context's process is touched any more
                     // (before execve)
  kOpenRdmaCm = 6,  // path of the caller's view of sysfs, or nothing for every NIC -> no payload + 1 fd, from
                    // which rdma_cm events are read; this connection is that channel from now on
  kRdmaCm = 7,      // RdmaCmRequest + raw command + what it points to -> raw response
};

struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t kind = 0;
  std::uint64_t id = 0;
  std::int32_t error = 0;  // replies: 0 or an errno
  std::uint32_t length_bytes = 0;
};
static_assert(sizeof(MessageHeader) == 24);

struct OpenDeviceRequest {
  std::uint32_t nic = 0;       // N of uverbsN
  std::uint32_t pid_hint = 0;  // for the log only; the daemon trusts SO_PEERCRED
};

// Fds: [0] memfd of the context's memory (ControlArea at 0, rings behind it; sealed against resizing), which
// serves as the application's uverbs fd; [1] the eventfd to kick: write 8 bytes of 1.
struct OpenDeviceReply {
  std::uint32_t context = 0;
  std::uint32_t reserved = 0;
  std::uint64_t memory_bytes = 0;
};

// The bytes of the application's write() to the uverbs fd follow, header included.
struct UverbsRequest {
  // CREATE_CQ with a channel: st_ino of the channel fd (a pipe), which names the channel whatever fd number
  // it has.
  std::uint64_t channel_inode = 0;
};

inline constexpr std::uint32_t kNoFd = 0xFFFFFFFFu;

// The response bytes follow; the shim copies them to the command's response pointer.
struct UverbsReply {
  // Offset in the response of a 32-bit fd number to be filled in with the fd that came along; kNoFd: none.
  std::uint32_t fd_offset = kNoFd;
  std::uint32_t reserved = 0;
};

// The bytes of the application's write() to the rdma_cm fd follow, header included; then, of SET_OPTION, the
// value. The shim copies the response to the command's response pointer.
struct RdmaCmRequest {
  std::uint64_t other_inode = 0;  // MIGRATE_ID: st_ino of the fd it names
  std::uint32_t command_bytes = 0;
  std::uint32_t reserved = 0;
};

// Admin requests are JSON objects with "op". A result that does not fit a message comes as a memfd that holds
// the text, and the payload is empty:
//   {"op":"ping"}                                  ->
//   {"pid":N,"version":"0.1.0","nics":[{"name","ip":[...],"mac","port"}...]}
//   {"op":"view","nics":["rxe0"]}                  -> {"path":"/.../view"}: a sysfs tree that shows these
//   NICs only; [] = all
//   {"op":"show","what":"nic|qp|cq|srq|mr|mw|ah|cm|counters|all|daemon"} ->
//   {"nics":[...],"contexts":[...],"qps":[...],"cqs":[...],"srqs":[...],"mrs":[...],"mws":[...],"ahs":[...],
//                                                       "neighbours":[...],"cms":[...],"cm_counters":{...},"counters":{"rxe0":{...}},"daemon":{...}}
//   {"op":"capture","nics":[...],"snaplen":N,"truncate":BOOL} + fd -> {"id":N}: pcapng is written to the fd,
//   a file that is first emptied if that is asked for, until "capture_stop" or the end of this connection
//   {"op":"capture_stop","id":N}                   -> {"written":N,"lost":N,"bytes":N}, and "error":TEXT if
//   the file took no more
//   {"op":"address","action":"add","nic":"rxe0","address":"10.0.0.5/24"} -> {}: or "del"; own uid only
//   {"op":"shutdown"}                              -> {}: only from the daemon's own uid

// ---- environment, set by `roci run` and read by the shim ---------------------------------------------
inline constexpr char kSocketVariable[] = "ROCI_SOCKET";  // path of the daemon's socket
inline constexpr char kViewVariable[] = "ROCI_VIEW";      // root of the sysfs view, the same as SYSFS_PATH

}  // namespace roci::shim
