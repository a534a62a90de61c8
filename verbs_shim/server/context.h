// One open of a NIC by one client: its shared memory, channels and processes, and its uverbs commands, turned
// into the engine's commands and the engine's replies back into the ABI's.
//
// The engine owns the objects and checks handles and rights; here is only what it cannot know: where rings
// lie, which pipe an event goes to, what the ABI's numbers are. A command is answered when the engine has
// answered, so commands of several threads pass one another. Control thread only.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "emulator/command.h"
#include "verbs_shim/protocol.h"
#include "verbs_shim/server/address_spaces.h"
#include "verbs_shim/server/context_memory.h"
#include "verbs_shim/server/event_pipe.h"
#include "verbs_shim/server/server.h"
#include "verbs_shim/server/uverbs_call.h"
#include "verbs_shim/server/uverbs_numbers.h"

namespace roci::shim {

// The request that a reply answers.
struct ReplyTo {
  std::uint64_t client = 0;
  std::uint64_t id = 0;  // the client's
  MessageKind kind = MessageKind::kUverbs;
};

struct ReplyBody {
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
};

// What a context needs of the server around it.
class ContextHost {
 public:
  using Continuation = std::function<void(emulator::CommandReply&&)>;

  ContextHost() = default;
  ContextHost(const ContextHost&) = delete;
  ContextHost& operator=(const ContextHost&) = delete;
  virtual ~ContextHost() = default;

  // `then` runs when the shard's reply has come, on the control thread.
  virtual void submit(std::uint32_t shard, emulator::Command&& command, Continuation then) = 0;
  virtual void reply(const ReplyTo& to, ReplyBody&& body) = 0;
  virtual void fail(const ReplyTo& to, std::errc error) = 0;
  // Of a pipe's write end: calls `has_room` when there is room again, and `closed` when the application has
  // closed its end. Ends with unwatch(), to be called before the pipe goes.
  virtual std::uint64_t watch(int write_fd, std::function<void()> has_room, std::function<void()> closed) = 0;
  virtual void unwatch(std::uint64_t watch) = 0;
  virtual void log(const std::string& sentence) = 0;

  [[nodiscard]] virtual const ServerConfig& config() const = 0;
  [[nodiscard]] virtual bool link_up(emulator::NicId nic) const = 0;
  [[nodiscard]] virtual AddressSpaces& spaces() = 0;
  [[nodiscard]] virtual EventRouter& router() = 0;
  [[nodiscard]] virtual int kick_fd(std::uint32_t shard) const = 0;
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  static constexpr std::size_t kMaxChannels = 1024;

  // Opens a context of `nic` for the process `owner` and answers `to` when the engine has; nullptr: answered
  // with an error.
  [[nodiscard]] static std::shared_ptr<Context> open(ContextHost& host, emulator::NicId nic,
                                                     std::uint32_t shard, const ucred& owner,
                                                     const ReplyTo& to);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  // A kUverbs message: UverbsRequest and the command. `sender` is the process that wrote it: a child of fork
  // that still holds its parent's socket is refused, as its addresses name other memory than the parent's.
  void handle(const ReplyTo& to, const ucred& sender, std::span<const std::byte> payload);
  // The device goes: IBV_EVENT_DEVICE_FATAL, and nothing after it.
  void tell_fatal();
  // The process's memory is not touched any more from now on; `done` runs when the engine has let go of
  // everything. It may be called again: each `done` runs.
  void close(std::function<void()> done);

  [[nodiscard]] std::uint32_t shard() const { return shard_; }
  [[nodiscard]] emulator::NicId nic() const { return nic_; }

 private:
  struct Request {
    ReplyTo to;
    std::uint64_t channel_inode = 0;
    UverbsCall call;
  };
  using Handler = void (Context::*)(const Request&);
  struct Row {
    UverbsFormat format;
    Handler handler;
  };
  static const Row* find_row(std::uint32_t command);

  struct Channel {
    std::shared_ptr<EventPipe> pipe;
    std::uint64_t watch = 0;
    std::uint32_t cqs = 0;
    bool closed = false;
  };
  // A ring that can be resized. The application uses the old area until the reply has come and it has mapped
  // the new one; by the next command that concerns the object it has.
  struct MovableRing {
    ContextMemory::Area now;
    std::optional<ContextMemory::Area> before;
  };
  struct Cq {
    MovableRing ring;
    std::uint64_t user_handle = 0;
    std::uint64_t channel = 0;
  };
  struct Qp {
    ContextMemory::Area send_ring;
    std::optional<ContextMemory::Area> recv_ring;  // none: an SRQ's
    std::uint64_t user_handle = 0;
    emulator::QpCapabilities capabilities;
    bool signal_all = false;
  };
  struct Srq {
    MovableRing ring;
    std::uint64_t user_handle = 0;
    std::uint32_t max_sge = 0;
  };

  Context(ContextHost& host, emulator::NicId nic, std::uint32_t shard, std::unique_ptr<ContextMemory> memory);
  void opened(const ReplyTo& to, emulator::CommandReply&& reply);
  void submit_close();

  // ---- commands, in the order of the table
  void get_context(const Request& request);
  void query_device(const Request& request);
  void query_device_ex(const Request& request);
  void query_port(const Request& request);
  void alloc_pd(const Request& request);
  void dealloc_pd(const Request& request);
  void reg_mr(const Request& request);
  void dereg_mr(const Request& request);
  void alloc_mw(const Request& request);
  void dealloc_mw(const Request& request);
  void create_ah(const Request& request);
  void destroy_ah(const Request& request);
  void create_comp_channel(const Request& request);
  void create_cq(const Request& request);
  void create_cq_ex(const Request& request);
  void resize_cq(const Request& request);
  void destroy_cq(const Request& request);
  void req_notify_cq(const Request& request);
  void create_qp(const Request& request);
  void create_qp_ex(const Request& request);
  void query_qp(const Request& request);
  void modify_qp(const Request& request);
  void modify_qp_ex(const Request& request);
  void destroy_qp(const Request& request);
  void post_send(const Request& request);
  void attach_multicast(const Request& request);
  void detach_multicast(const Request& request);
  void create_srq(const Request& request);
  void create_xsrq(const Request& request);
  void modify_srq(const Request& request);
  void query_srq(const Request& request);
  void destroy_srq(const Request& request);

  using Reply = emulator::CommandReply;
  // Submits `body`; success goes on in `then`, an error is answered after `undo`.
  template <class Body, class Undo, class Then>
  void run(const Request& request, Body&& body, Undo undo, Then then);
  template <class Body, class Then>
  void run(const Request& request, Body&& body, Then then);
  template <class Body>
  void run(const Request& request, Body&& body);
  template <class Wanted>  // ib_uverbs_create_cq or its extended form; so below
  void start_cq(const Request& request, const Wanted& wanted);
  void forget_cq(const Cq& cq, ib_uverbs_destroy_cq_resp* reported);
  template <class Wanted>
  void start_qp(const Request& request, const Wanted& wanted);
  std::uint32_t forget_qp(const Qp& qp);
  void start_modify(const Request& request, const ib_uverbs_modify_qp& wanted, bool extended);
  template <class Wanted>
  void start_srq(const Request& request, const Wanted& wanted);
  std::uint32_t forget_srq(const Srq& srq);
  void move_ring(MovableRing& ring, const ContextMemory::Area& to);
  void free_ring(const MovableRing& ring);
  template <class Response>
  void answer(const Request& request, const Response& response, std::span<const std::byte> driver = {});
  template <class Response>
  void answer_as_long_as_asked(const Request& request, Response response,
                               std::span<const std::byte> driver = {});
  void answer(const Request& request);
  void answer_with(const Request& request, std::span<const std::byte> response);
  void answer_with_fd(const Request& request, std::span<const std::byte> response, std::size_t fd_offset,
                      UniqueFd fd);
  [[nodiscard]] ib_uverbs_query_device_resp device_attributes() const;
  [[nodiscard]] std::optional<std::uint64_t> find_channel(std::uint64_t inode) const;
  void channel_closed(std::uint64_t channel);
  void drop_channel_if_unused(std::uint64_t channel);
  void ring_doorbell(std::uint32_t slot);

  ContextHost& host_;
  const emulator::NicId nic_;
  const std::uint32_t shard_;
  std::unique_ptr<ContextMemory> memory_;
  emulator::ContextId id_;
  pid_t owner_ = 0;  // the process whose memory `space_` is
  std::optional<emulator::AddressSpaceId> space_;
  bool is_open_ = false;      // the engine knows it
  bool has_context_ = false;  // GET_CONTEXT was answered
  bool closing_ = false, closed_ = false;
  std::vector<std::function<void()>> when_closed_;
  std::shared_ptr<EventPipe> async_;
  std::uint64_t async_watch_ = 0;
  std::map<std::uint64_t, Channel> channels_;
  std::map<std::uint32_t, Cq> cqs_;
  std::map<std::uint32_t, Qp> qps_;
  std::map<std::uint32_t, Srq> srqs_;
};

}  // namespace roci::shim
