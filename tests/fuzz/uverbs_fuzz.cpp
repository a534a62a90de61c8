// Fuzz target: uverbs commands byte by byte, as a client's messages, to one context of the server with a real
// engine behind it; without sockets, threads or another process.
//
// The input is a row of messages: which command, how it is framed, and its bytes. Aborts where a message is
// not answered exactly once, an answer is larger than the room that was asked for, or anything is left once
// the context is closed.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "emulator/engine.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "verbs_shim/server/context.h"

namespace {

using namespace roci;
using namespace roci::shim;
using roci::fuzz::Input;
using roci::fuzz::InputReader;
using roci::fuzz::require;

constexpr std::size_t kMaxMessages = 60;
// Of this process, for regions: the server looks whether it is there.
constexpr std::uintptr_t kMemory = 0x20000000;
constexpr std::size_t kMemoryBytes = 0x10000;
constexpr emulator::Duration kStep = std::chrono::milliseconds(1);

// All memory is there and reads as zero.
class ZeroMemory final : public emulator::Memory {
 public:
  void execute(std::span<emulator::MemoryOp> ops) override {
    for (emulator::MemoryOp& op : ops) {
      if (op.kind == emulator::MemoryOp::Kind::kRead) std::memset(op.local, 0, op.length_bytes);
      op.result = emulator::MemoryOp::Result::kOk;
    }
  }
};

class NoPort final : public emulator::TxSink {
 public:
  std::span<emulator::TxFrame> reserve(std::size_t max) override {
    for (emulator::TxFrame& frame : frames_)
      frame = {bytes_.data(), static_cast<std::uint32_t>(bytes_.size()), 0, {}};
    return std::span(frames_).first(std::min(max, frames_.size()));
  }
  void commit(std::size_t) override {}
  [[nodiscard]] std::uint64_t blocked_nics() const override { return 0; }

 private:
  std::array<std::byte, 9216> bytes_;  // nobody looks at them
  std::array<emulator::TxFrame, 8> frames_;
};

class Host final : public ContextHost {
 public:
  Host() {
    emulator::NicConfig nic;
    nic.name = "rxe0";
    nic.mac = {{2, 0, 0, 0, 0, 1}};
    nic.addresses = {{proto::Gid::from_ipv4(0x7F4D0001), 24}};
    nic.neighbours = {{proto::Gid::from_ipv4(0x7F4D0002), {{2, 0, 0, 0, 0, 2}}}};
    config_.nics = {nic};
    emulator::EngineConfig config;
    config.nics = config_.nics;
    config.limits = config_.limits;
    engine_ = std::make_unique<emulator::Engine>(config, memory_);
  }

  void submit(std::uint32_t, emulator::Command&& command, Continuation then) override {
    waiting_.emplace(next_command_, std::move(then));
    engine_->submit(emulator::CommandId{next_command_++}, std::move(command), now_);
  }
  void reply(const ReplyTo& to, ReplyBody&& body) override {
    const std::size_t room = take_owed(to);
    for (const UniqueFd& fd : body.fds)
      require(static_cast<bool>(fd), "an answer's descriptor is one");
    if (to.kind != MessageKind::kUverbs) return;
    require(body.payload.size() <= sizeof(UverbsReply) + room, "an answer fits into the room for it");
    struct stat pipe {};
    if (!body.fds.empty() && ::fstat(body.fds.back().get(), &pipe) == 0) last_inode_ = pipe.st_ino;
    last_fds_ = std::move(body.fds);  // as the application would hold it
  }
  void fail(const ReplyTo& to, std::errc error) override {
    static_cast<void>(take_owed(to));
    require(error != std::errc{}, "an error has a number");
  }
  std::uint64_t watch(int, std::function<void()>, std::function<void()>) override { return ++watches_; }
  void unwatch(std::uint64_t watch) override { require(watch <= watches_, "what is watched no more, was"); }
  void log(const std::string&) override {}
  [[nodiscard]] const ServerConfig& config() const override { return config_; }
  [[nodiscard]] bool link_up(emulator::NicId) const override { return true; }
  [[nodiscard]] AddressSpaces& spaces() override { return *spaces_; }
  [[nodiscard]] EventRouter& router() override { return router_; }
  [[nodiscard]] int kick_fd(std::uint32_t) const override { return kick_.get(); }

  // Whom to answer the next message, which has room for so many bytes.
  [[nodiscard]] ReplyTo owe(MessageKind kind, std::size_t room) {
    owed_.emplace(next_message_, room);
    return {1, next_message_++, kind};
  }
  [[nodiscard]] std::uint64_t last_inode() const { return last_inode_; }

  void pass() {
    engine_->on_doorbells(now_);
    engine_->on_timers(now_);
    for (int burst = 0; burst < 64 && engine_->transmit(port_, now_) != 0; ++burst)
      continue;
    std::array<emulator::Event, 16> events;
    while (const std::size_t count = engine_->drain_events(events))
      router_.deliver(std::span(events).first(count));
    std::array<emulator::CommandReply, 16> replies;
    while (const std::size_t count = engine_->drain_replies(replies)) {
      for (std::size_t i = 0; i < count; ++i) {
        auto found = waiting_.extract(static_cast<std::uint64_t>(replies[i].id));
        require(!found.empty(), "the engine answers what it was asked");
        found.mapped()(std::move(replies[i]));
      }
    }
    now_ += kStep;
  }
  [[nodiscard]] bool owes_answers() const { return !owed_.empty() || !waiting_.empty(); }
  // True if no context has left anything.
  [[nodiscard]] bool is_empty() {
    bool empty = false;
    submit(0, {{}, emulator::Inspect{}}, [&](emulator::CommandReply&& reply) {
      const emulator::Snapshot& left = *std::get<std::unique_ptr<emulator::Snapshot>>(reply.body);
      empty = left.contexts.empty() && left.qps.empty() && left.mrs.empty() && left.cqs.empty() &&
              left.srqs.empty() && left.mws.empty() && left.ahs.empty();
    });
    pass();
    return empty;
  }

 private:
  [[nodiscard]] std::size_t take_owed(const ReplyTo& to) {
    const auto found = owed_.extract(to.id);
    require(!found.empty(), "a message is answered once");
    return found.mapped();
  }

  ServerConfig config_;
  ZeroMemory memory_;
  NoPort port_;
  std::unique_ptr<emulator::Engine> engine_;
  std::unique_ptr<AddressSpaces> spaces_ = std::make_unique<AddressSpaces>();
  EventRouter router_;
  UniqueFd kick_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::map<std::uint64_t, Continuation> waiting_;
  std::map<std::uint64_t, std::size_t> owed_;  // messages not answered yet, and the room for their answers
  std::vector<UniqueFd> last_fds_;
  std::uint64_t last_inode_ = 0;
  std::uint64_t next_command_ = 1, next_message_ = 1, watches_ = 0;
  emulator::Time now_{std::chrono::seconds(1)};
};

// What the ABI says of each command: a second opinion beside the server's own table.
struct Shape {
  std::uint32_t command;
  std::size_t request_bytes, response_bytes, driver_bytes;
};
constexpr std::uint32_t kExtended = UverbsCall::kExtendedFlag;
constexpr std::array kShapes = {
    Shape{IB_USER_VERBS_CMD_GET_CONTEXT, 8, sizeof(ib_uverbs_get_context_resp), 0},
    Shape{IB_USER_VERBS_CMD_QUERY_DEVICE, 8, sizeof(ib_uverbs_query_device_resp), 0},
    Shape{kExtended | IB_USER_VERBS_EX_CMD_QUERY_DEVICE, sizeof(ib_uverbs_ex_query_device),
          sizeof(ib_uverbs_ex_query_device_resp), 0},
    Shape{IB_USER_VERBS_CMD_QUERY_PORT, sizeof(ib_uverbs_query_port), sizeof(ib_uverbs_query_port_resp), 0},
    Shape{IB_USER_VERBS_CMD_ALLOC_PD, 8, sizeof(ib_uverbs_alloc_pd_resp), 0},
    Shape{IB_USER_VERBS_CMD_DEALLOC_PD, sizeof(ib_uverbs_dealloc_pd), 0, 0},
    Shape{IB_USER_VERBS_CMD_REG_MR, sizeof(ib_uverbs_reg_mr), sizeof(ib_uverbs_reg_mr_resp), 0},
    Shape{IB_USER_VERBS_CMD_DEREG_MR, sizeof(ib_uverbs_dereg_mr), 0, 0},
    Shape{IB_USER_VERBS_CMD_ALLOC_MW, sizeof(ib_uverbs_alloc_mw), sizeof(ib_uverbs_alloc_mw_resp), 0},
    Shape{IB_USER_VERBS_CMD_DEALLOC_MW, sizeof(ib_uverbs_dealloc_mw), 0, 0},
    Shape{IB_USER_VERBS_CMD_CREATE_AH, sizeof(ib_uverbs_create_ah), sizeof(ib_uverbs_create_ah_resp), 8},
    Shape{IB_USER_VERBS_CMD_DESTROY_AH, sizeof(ib_uverbs_destroy_ah), 0, 0},
    Shape{IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, 8, sizeof(ib_uverbs_create_comp_channel_resp), 0},
    Shape{IB_USER_VERBS_CMD_CREATE_CQ, sizeof(ib_uverbs_create_cq), sizeof(ib_uverbs_create_cq_resp), 16},
    Shape{kExtended | IB_USER_VERBS_EX_CMD_CREATE_CQ, sizeof(ib_uverbs_ex_create_cq),
          sizeof(ib_uverbs_ex_create_cq_resp), 16},
    Shape{IB_USER_VERBS_CMD_RESIZE_CQ, sizeof(ib_uverbs_resize_cq), sizeof(ib_uverbs_resize_cq_resp), 16},
    Shape{IB_USER_VERBS_CMD_DESTROY_CQ, sizeof(ib_uverbs_destroy_cq), sizeof(ib_uverbs_destroy_cq_resp), 0},
    Shape{IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, sizeof(ib_uverbs_req_notify_cq), 0, 0},
    Shape{IB_USER_VERBS_CMD_CREATE_QP, sizeof(ib_uverbs_create_qp), sizeof(ib_uverbs_create_qp_resp), 32},
    Shape{kExtended | IB_USER_VERBS_EX_CMD_CREATE_QP, sizeof(ib_uverbs_ex_create_qp),
          sizeof(ib_uverbs_ex_create_qp_resp), 32},
    Shape{IB_USER_VERBS_CMD_QUERY_QP, sizeof(ib_uverbs_query_qp), sizeof(ib_uverbs_query_qp_resp), 0},
    Shape{IB_USER_VERBS_CMD_MODIFY_QP, sizeof(ib_uverbs_modify_qp), 0, 0},
    Shape{kExtended | IB_USER_VERBS_EX_CMD_MODIFY_QP, sizeof(ib_uverbs_ex_modify_qp), 0, 0},
    Shape{IB_USER_VERBS_CMD_DESTROY_QP, sizeof(ib_uverbs_destroy_qp), sizeof(ib_uverbs_destroy_qp_resp), 0},
    Shape{IB_USER_VERBS_CMD_POST_SEND, offsetof(ib_uverbs_post_send, send_wr),
          sizeof(ib_uverbs_post_send_resp), 0},
    Shape{IB_USER_VERBS_CMD_ATTACH_MCAST, sizeof(ib_uverbs_attach_mcast), 0, 0},
    Shape{IB_USER_VERBS_CMD_DETACH_MCAST, sizeof(ib_uverbs_detach_mcast), 0, 0},
    Shape{IB_USER_VERBS_CMD_CREATE_SRQ, sizeof(ib_uverbs_create_srq), sizeof(ib_uverbs_create_srq_resp), 24},
    Shape{IB_USER_VERBS_CMD_CREATE_XSRQ, sizeof(ib_uverbs_create_xsrq), sizeof(ib_uverbs_create_srq_resp),
          24},
    Shape{IB_USER_VERBS_CMD_MODIFY_SRQ, sizeof(ib_uverbs_modify_srq), 0, 0},
    Shape{IB_USER_VERBS_CMD_QUERY_SRQ, sizeof(ib_uverbs_query_srq), sizeof(ib_uverbs_query_srq_resp), 0},
    Shape{IB_USER_VERBS_CMD_DESTROY_SRQ, sizeof(ib_uverbs_destroy_srq), sizeof(ib_uverbs_destroy_srq_resp),
          0},
};

// How a message deviates from what its command's shape says: the second byte of a message.
constexpr std::uint8_t kAnyWords = 200, kAnyCommand = 220, kAnyTail = 235, kAnySender = 253;
constexpr std::uint8_t kNamesChannel = 1;  // a bit

template <class T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto* const at = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), at, at + sizeof value);
}

void send(Host& host, Context& context, InputReader& input) {
  const Shape& shape = kShapes[input.choice(kShapes.size())];
  const std::uint8_t how = input.byte();
  std::vector<std::byte> core(shape.request_bytes);
  input.bytes(core);
  if (how >= kAnyTail) core.resize(core.size() + input.byte());
  const std::size_t room = shape.response_bytes + shape.driver_bytes;
  const bool is_extended = (shape.command & kExtended) != 0;

  ib_uverbs_cmd_hdr header{shape.command, 0, 0};
  ib_uverbs_ex_cmd_hdr extension{};
  if (is_extended) {
    header.in_words = static_cast<std::uint16_t>(core.size() / 8);
    header.out_words = static_cast<std::uint16_t>(shape.response_bytes / 8);
    extension.response = room == 0 ? 0 : 0x1000;
    extension.provider_out_words = static_cast<std::uint16_t>(shape.driver_bytes / 8);
  } else {
    header.in_words = static_cast<std::uint16_t>((sizeof header + core.size()) / 4);
    header.out_words = static_cast<std::uint16_t>(room / 4);
  }
  if (how >= kAnyWords) {
    header.in_words = static_cast<std::uint16_t>(header.in_words + static_cast<std::int8_t>(input.byte()));
    header.out_words = input.number<std::uint16_t>();
    extension.provider_in_words = input.byte() % 4U;
    extension.provider_out_words = input.byte();
  }
  if (how >= kAnyCommand) header.command = input.number<std::uint32_t>();
  std::vector<std::byte> message;
  append(message, UverbsRequest{(how & kNamesChannel) != 0 ? host.last_inode() : 0});
  append(message, header);
  if (is_extended) append(message, extension);
  message.insert(message.end(), core.begin(), core.end());

  // MODIFY_SRQ names a place of its own for where the new ring lies.
  std::size_t asked = header.command == IB_USER_VERBS_CMD_MODIFY_SRQ ? sizeof(MmapInfo) : 0;
  asked += (header.command & kExtended) != 0
               ? (std::size_t{header.out_words} + extension.provider_out_words) * 8
               : std::size_t{header.out_words} * 4;
  const ucred sender{::getpid() + (how >= kAnySender ? 1 : 0), ::getuid(), ::getgid()};
  context.handle(host.owe(MessageKind::kUverbs, asked), sender, message);
}

// ---- seeds -----------------------------------------------------------------------------------------

template <class Core>
void add(Input& input, std::uint32_t command, const Core& core, std::uint8_t how = 0) {
  const auto* const shape =
      std::find_if(kShapes.begin(), kShapes.end(), [&](const Shape& one) { return one.command == command; });
  input.push_back(static_cast<std::uint8_t>(shape - kShapes.begin()));
  input.push_back(how);
  std::vector<std::byte> bytes;
  append(bytes, core);
  bytes.resize(shape->request_bytes);
  for (const std::byte one : bytes)
    input.push_back(std::to_integer<std::uint8_t>(one));
}

void add_step(Input& input, std::uint8_t state) {
  ib_uverbs_modify_qp modify{};
  using namespace emulator;
  modify.qp_state = state;
  modify.attr_mask = kQpState;
  if (state == 1) modify.attr_mask |= kQpPkeyIndex | kQpPort | kQpAccessFlags;
  if (state == 2) {
    modify.attr_mask |= kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | kQpMaxDestRdAtomic | kQpMinRnrTimer;
  }
  if (state == 3) modify.attr_mask |= kQpSqPsn | kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxQpRdAtomic;
  modify.port_num = 1;
  modify.path_mtu = 3;
  modify.dest_qp_num = 0x400;
  modify.timeout = 8;
  const proto::Gid peer = proto::Gid::from_ipv4(0x7F4D0002);
  std::copy(peer.bytes.begin(), peer.bytes.end(), modify.dest.dgid);
  modify.dest.is_global = 1;
  modify.dest.sgid_index = 1;
  modify.dest.port_num = 1;
  add(input, IB_USER_VERBS_CMD_MODIFY_QP, modify);
}

// A life with a bit of everything; every handle is the first of its kind.
std::vector<Input> lives() {
  std::vector<Input> inputs;
  const std::uint64_t nothing = 0;
  for (const bool has_srq : {false, true}) {
    Input& input = inputs.emplace_back();
    add(input, IB_USER_VERBS_CMD_GET_CONTEXT, nothing);
    add(input, IB_USER_VERBS_CMD_QUERY_DEVICE, nothing);
    add(input, kExtended | IB_USER_VERBS_EX_CMD_QUERY_DEVICE, ib_uverbs_ex_query_device{});
    ib_uverbs_query_port port{};
    port.port_num = 1;
    add(input, IB_USER_VERBS_CMD_QUERY_PORT, port);
    add(input, IB_USER_VERBS_CMD_ALLOC_PD, nothing);
    ib_uverbs_reg_mr region{};
    region.start = region.hca_va = kMemory;
    region.length = kMemoryBytes;
    region.access_flags = 0x1F;
    add(input, IB_USER_VERBS_CMD_REG_MR, region);
    ib_uverbs_alloc_mw window{};
    window.mw_type = 2;
    add(input, IB_USER_VERBS_CMD_ALLOC_MW, window);
    add(input, IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, nothing);
    ib_uverbs_create_cq cq{};
    cq.cqe = 20;
    cq.comp_channel = 5;
    add(input, IB_USER_VERBS_CMD_CREATE_CQ, cq, kNamesChannel);
    ib_uverbs_ex_create_cq other_cq{};
    other_cq.cqe = 20;
    other_cq.comp_channel = -1;
    add(input, kExtended | IB_USER_VERBS_EX_CMD_CREATE_CQ, other_cq);
    ib_uverbs_create_srq srq{};
    srq.max_wr = 10;
    srq.max_sge = 2;
    add(input, IB_USER_VERBS_CMD_CREATE_SRQ, srq);
    ib_uverbs_create_xsrq other_srq{};
    other_srq.max_wr = 10;
    other_srq.max_sge = 2;
    add(input, IB_USER_VERBS_CMD_CREATE_XSRQ, other_srq);
    ib_uverbs_create_qp qp{};
    qp.max_send_wr = qp.max_recv_wr = 10;
    qp.max_send_sge = qp.max_recv_sge = 2;
    qp.qp_type = 2;
    qp.is_srq = has_srq ? 1 : 0;
    add(input, IB_USER_VERBS_CMD_CREATE_QP, qp);
    ib_uverbs_ex_create_qp datagram{};
    datagram.max_send_wr = datagram.max_recv_wr = 10;
    datagram.max_send_sge = datagram.max_recv_sge = 2;
    datagram.qp_type = 4;
    add(input, kExtended | IB_USER_VERBS_EX_CMD_CREATE_QP, datagram);
    for (const std::uint8_t state : {std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3}})
      add_step(input, state);
    add(input, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_req_notify_cq{});
    add(input, IB_USER_VERBS_CMD_POST_SEND, nothing);
    ib_uverbs_query_qp query{};
    query.attr_mask = 0x1FFFFF;
    add(input, IB_USER_VERBS_CMD_QUERY_QP, query);
    ib_uverbs_resize_cq resize{};
    resize.cqe = 50;
    add(input, IB_USER_VERBS_CMD_RESIZE_CQ, resize);
    ib_uverbs_create_ah ah{};
    const proto::Gid peer = proto::Gid::from_ipv4(0x7F4D0002);
    std::copy(peer.bytes.begin(), peer.bytes.end(), ah.attr.grh.dgid);
    ah.attr.grh.sgid_index = 1;
    ah.attr.is_global = 1;
    ah.attr.port_num = 1;
    add(input, IB_USER_VERBS_CMD_CREATE_AH, ah);
    ib_uverbs_attach_mcast group{};
    const proto::Gid address = proto::Gid::from_ipv4(0xE0000101);
    std::copy(address.bytes.begin(), address.bytes.end(), group.gid);
    group.qp_handle = 1;
    add(input, IB_USER_VERBS_CMD_ATTACH_MCAST, group);
    ib_uverbs_detach_mcast no_group{};
    std::copy(address.bytes.begin(), address.bytes.end(), no_group.gid);
    no_group.qp_handle = 1;
    add(input, IB_USER_VERBS_CMD_DETACH_MCAST, no_group);
    ib_uverbs_modify_srq modify{};
    modify.attr_mask = 3;
    modify.max_wr = 20;
    modify.srq_limit = 2;
    add(input, IB_USER_VERBS_CMD_MODIFY_SRQ, modify);
    add(input, IB_USER_VERBS_CMD_QUERY_SRQ, ib_uverbs_query_srq{});
    add_step(input, 6);
    add(input, IB_USER_VERBS_CMD_DESTROY_AH, ib_uverbs_destroy_ah{});
    add(input, IB_USER_VERBS_CMD_DESTROY_QP, ib_uverbs_destroy_qp{});
    add(input, IB_USER_VERBS_CMD_DESTROY_SRQ, ib_uverbs_destroy_srq{});
    add(input, IB_USER_VERBS_CMD_DESTROY_CQ, ib_uverbs_destroy_cq{});
    add(input, IB_USER_VERBS_CMD_DEALLOC_MW, ib_uverbs_dealloc_mw{});
    add(input, IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr{});
    add(input, IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd{});
  }
  return inputs;
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {false, lives};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr int kPasses = 4, kPassesToTheEnd = 5000;  // a neighbour that is silent is given up after 3 s
  static const bool is_mapped =
      ::mmap(reinterpret_cast<void*>(kMemory), kMemoryBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == reinterpret_cast<void*>(kMemory);
  require(is_mapped, "there is memory to register");
  std::signal(SIGPIPE, SIG_IGN);  // as the server has it
  Host host;
  const ucred owner{::getpid(), ::getuid(), ::getgid()};
  const auto context = Context::open(host, {0}, 0, owner, host.owe(MessageKind::kOpenDevice, 0));
  require(context != nullptr, "a context can be opened");
  host.pass();
  InputReader input({data, size});
  for (std::size_t messages = 0; messages < kMaxMessages && !input.is_empty(); ++messages) {
    send(host, *context, input);
    for (int pass = 0; pass < kPasses; ++pass)
      host.pass();
  }
  bool is_closed = false;
  context->close([&] { is_closed = true; });
  for (int pass = 0; pass < kPassesToTheEnd && (!is_closed || host.owes_answers()); ++pass)
    host.pass();
  require(is_closed, "a context closes");
  require(!host.owes_answers(), "every message is answered");
  require(host.is_empty(), "no object is left of a closed context");
  return 0;
}
