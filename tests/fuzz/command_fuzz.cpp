// Fuzz target: every command of the control plane with any handle and any value, from two contexts, in
// between frames, work requests and time.
//
// The input is a row of deeds. A ring is freed as soon as the engine has said that it needs it no more, so
// AddressSanitizer sees what touches it later. Aborts where memory is touched that must not be, an unsound
// packet goes out, a command stays without an answer, or anything is left once both contexts are closed.
#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <variant>

#include "emulator/ring_shape.h"
#include "tests/fuzz/bench.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "tests/script/attributes.h"

namespace {

using namespace roci;
using namespace roci::emulator;
using roci::fuzz::Input;
using roci::fuzz::InputReader;
using roci::fuzz::require;

using Body = decltype(Command::body);

constexpr std::size_t kMaxDeeds = 100;
constexpr std::uint64_t kRegionBytes = 0x10000;
constexpr std::size_t kShortRingBytes = 4096;
constexpr std::uint32_t kPeer = 0x400;

enum class Deed : std::uint8_t { kCommand, kPost, kReceive, kPacket, kTime, kLink };
// Of eight numbers three are commands.
constexpr std::array kDeeds = {Deed::kCommand, Deed::kCommand, Deed::kCommand, Deed::kPost,
                               Deed::kReceive, Deed::kPacket,  Deed::kTime,    Deed::kLink};

struct QpRings {
  sim::RingMemory send, recv;
  QpCapabilities capabilities;
  proto::Qpn qpn;
  QpType type;
};

template <std::size_t... I>
Body body_of_kind(std::size_t kind, std::index_sequence<I...>) {
  const std::array<Body, sizeof...(I)> bodies = {std::variant_alternative_t<I, Body>{}...};
  return bodies[kind];
}
Body body_of_kind(std::size_t kind) {
  return body_of_kind(kind, std::make_index_sequence<std::variant_size_v<Body>>{});
}

// A context, what it has, and the memory that the engine may use for it.
struct Owner {
  ContextId id;
  bool is_open = false;
  sim::RingMemory control;
  AddressSpaceId space;
  std::uint64_t memory = 0;
  std::map<std::uint32_t, sim::RingMemory> cqs, srqs;
  std::map<std::uint32_t, QpRings> qps;
  proto::Rkey last_key{};
};

class World {
 public:
  World() {
    for (Owner& owner : owners_)
      open(owner);
  }

  void carry_out(InputReader& input) {
    const Deed deed = kDeeds[input.choice(kDeeds.size())];
    Owner& owner = owners_[input.choice(owners_.size())];
    switch (deed) {
      case Deed::kCommand:
        command(owner, input);
        break;
      case Deed::kPost:
      case Deed::kReceive:
        post(owner, deed == Deed::kPost, input);
        break;
      case Deed::kPacket:
        receive(owner, input);
        break;
      case Deed::kTime:
        bench_.advance(std::chrono::microseconds(100) * input.byte());
        break;
      case Deed::kLink:
        bench_.host().set_link(input.choice(4) != 0);
        break;
    }
    bench_.check();
    bench_.host().packets.clear();
    bench_.host().events.clear();
  }

  void expect_nothing_left() {
    for (Owner& owner : owners_) {
      if (owner.is_open) close(owner);
    }
    // Commands that wait for a neighbour have gone with their context, or end by themselves.
    bench_.advance(std::chrono::milliseconds(10));
    for (const CommandId id : unanswered_)
      require(bench_.host().reply(id).has_value(), "every command is answered when its context is closed");
    const CommandReply reply = bench_.transact({{}, Inspect{}});
    require(reply.error == std::errc{}, "the engine can be inspected");
    const Snapshot& left = *std::get<std::unique_ptr<Snapshot>>(reply.body);
    require(left.contexts.empty() && left.qps.empty() && left.mrs.empty() && left.cqs.empty() &&
                left.srqs.empty() && left.mws.empty() && left.ahs.empty(),
            "no object is left of a closed context");
    bench_.check();
  }

 private:
  using Reply = std::optional<CommandReply>;
  [[nodiscard]] static bool succeeded(const Reply& reply) { return reply && reply->error == std::errc{}; }

  template <class Kind>
  Reply submit(ContextId context, Kind body) {
    const CommandId id{next_command_++};
    Reply reply = bench_.host().submit(id, Command{context, std::move(body)});
    if (!reply) unanswered_.push_back(id);
    return reply;
  }

  void open(Owner& owner) {
    owner = Owner{};
    owner.control = sim::RingMemory(kControlAreaBytes);
    owner.space = bench_.memory().add_space();
    owner.memory = 0x100000;
    bench_.memory().map(owner.space, owner.memory, kRegionBytes);
    const CommandReply reply = bench_.transact({{}, OpenContext{{0}, owner.control.bytes(), "fuzz"}});
    require(reply.error == std::errc{}, "a context can be opened");
    owner.id = std::get<ContextId>(reply.body);
    owner.is_open = true;
  }
  void close(Owner& owner) {
    const CommandReply reply = bench_.transact({owner.id, CloseContext{}});
    require(reply.error == std::errc{}, "a context can be closed");
    bench_.memory().give_up(owner.space);
    owner = Owner{};
  }

  // ---- values: mostly small and right, now and then any
  static std::uint32_t handle(InputReader& input) {
    const std::uint8_t value = input.byte();
    return value < 250 ? value % 4U : input.number<std::uint32_t>();
  }
  static std::uint32_t small(InputReader& input, std::uint32_t most) {
    const std::uint8_t value = input.byte();
    return value < 250 ? value % (most + 1) : input.number<std::uint32_t>();
  }
  static QpCapabilities capabilities(InputReader& input) {
    QpCapabilities cap;
    cap.max_send_wr = small(input, 16);
    cap.max_recv_wr = small(input, 16);
    cap.max_send_sge = small(input, 4);
    cap.max_recv_sge = small(input, 4);
    cap.max_inline_bytes = small(input, 64);
    return cap;
  }
  // As large as it must be, if that is not very much; now and then too short.
  static sim::RingMemory ring(RingShape shape, InputReader& input) {
    constexpr std::size_t kMost = std::size_t{1} << 16;
    const bool is_right = input.byte() < 240 && shape.slots <= 64 && shape.bytes() <= kMost;
    return sim::RingMemory(is_right ? shape.bytes() : kShortRingBytes);
  }
  // The shapes of numbers that are no ring's are not asked for.
  static bool is_small(std::uint32_t entries, std::uint32_t sge, std::uint32_t inline_bytes = 0) {
    return entries <= 64 && sge <= 64 && inline_bytes <= 1024;
  }
  static RingShape cq_shape(InputReader& input) {
    const std::uint32_t entries = small(input, 16);
    return is_small(entries, 0) ? cq_ring_shape(entries) : RingShape{kLog2CqeBytes, entries};
  }
  static sim::RingMemory srq_ring(std::uint32_t max_wr, std::uint32_t max_sge, InputReader& input) {
    return is_small(max_wr, max_sge) ? ring(srq_ring_shape(max_wr, max_sge), input)
                                     : sim::RingMemory(kShortRingBytes);
  }
  static proto::Gid group(InputReader& input) {
    proto::Gid gid = proto::Gid::from_ipv4(0xE0000100U | (input.byte() & 3U));
    if (input.choice(8) == 7) input.bytes(std::as_writable_bytes(std::span(gid.bytes)));
    return gid;
  }
  AddressVector address_vector(InputReader& input) {
    AddressVector av;
    av.dgid = bench_.host().peer_gid();
    av.sgid_index = 1;
    av.is_global = true;
    switch (input.choice(8)) {
      case 4:
        av.dgid.bytes[15] = input.byte();
        break;
      case 5:
        input.bytes(std::as_writable_bytes(std::span(av.dgid.bytes)));
        break;
      case 6:
        av.sgid_index = input.byte();
        break;
      case 7:
        av.flow_label = input.number<std::uint32_t>();
        av.hop_limit = input.byte();
        av.traffic_class = input.byte();
        av.service_level = input.byte();
        av.is_global = input.choice(2) != 0;
        av.port = input.byte();
        break;
      default:
        break;
    }
    return av;
  }

  ModifyQp modification(const Owner& owner, InputReader& input) {
    ModifyQp command{{handle(input)}, kQpState, {}};
    const auto found = owner.qps.find(command.qp.value);
    QpAttributes& to = command.attributes;
    to.state = static_cast<QpState>(input.byte() % 8);
    to.path_mtu_code = 1;
    to.qkey = fuzz::kQkey;
    to.rq_psn = proto::Psn{100};
    to.sq_psn = proto::Psn{1000};
    to.dest_qpn = proto::Qpn{kPeer};
    to.access = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
    to.av = address_vector(input);
    to.max_rd_atomic = to.max_dest_rd_atomic = 4;
    to.min_rnr_timer = 1;
    to.timeout = 8;
    to.retry_cnt = to.rnr_retry = 1;
    const bool is_up = to.state == QpState::kInit || to.state == QpState::kRtr || to.state == QpState::kRts;
    if (found != owner.qps.end() && is_up) command.mask |= scripts::usual_mask(found->second.type, to.state);
    if (input.choice(4) != 3) return command;
    command.mask ^= input.choice(2) == 0 ? 1U << input.choice(26) : input.number<std::uint32_t>();
    to.current_state = static_cast<QpState>(input.byte());
    to.path_mtu_code = input.byte();
    to.access = input.number<std::uint32_t>();
    to.pkey_index = input.byte();
    to.port = input.byte();
    to.max_rd_atomic = input.byte();
    to.max_dest_rd_atomic = input.byte();
    to.min_rnr_timer = input.byte();
    to.timeout = input.byte();
    to.retry_cnt = input.byte();
    to.rnr_retry = input.byte();
    to.en_sqd_async_notify = input.choice(2) != 0;
    return command;
  }

  // ---- commands
  Owner* owner_of(ContextId id) {
    for (Owner& owner : owners_) {
      if (owner.is_open && owner.id == id) return &owner;
    }
    return nullptr;
  }

  void command(Owner& chosen, InputReader& input) {
    Body body = body_of_kind(input.choice(std::variant_size_v<Body>));
    const std::uint8_t any = input.byte();
    const ContextId context = any < 250 ? chosen.id : ContextId{any - 250U};
    Owner nobody;
    Owner* const found = owner_of(context);
    const Call call{context, found != nullptr ? *found : nobody, input};
    const bool done = std::visit([&](const auto& kind) { return carry_out(kind, call); }, body);
    require(found != nullptr || !done, "nothing is done for a context that is not");
  }

  struct Call {
    ContextId context;
    Owner& owner;
    InputReader& input;
  };
  // Each makes a command of its kind; true if it succeeded at once, and has to do with the context.
  template <class Kind>
  bool plain(const Call& call, Kind body) {
    return succeeded(submit(call.context, std::move(body)));
  }
  template <class Kind, class Rings>
  bool end(const Call& call, Rings& rings) {
    const std::uint32_t slot = handle(call.input);
    const bool done = plain(call, Kind{{slot}});
    if (done) rings.erase(slot);
    return done;
  }

  bool carry_out(const OpenContext&, const Call& call) {
    const auto closed =
        std::find_if(owners_.begin(), owners_.end(), [](const Owner& owner) { return !owner.is_open; });
    if (closed != owners_.end()) {
      open(*closed);
      return false;
    }
    // One that must be refused: without room, or of a NIC that is not.
    sim::RingMemory memory(kControlAreaBytes);
    const std::span<std::byte> area = memory.bytes();
    const std::uint8_t nic = call.input.byte();
    const Reply reply = submit({}, OpenContext{{nic}, nic == 0 ? area.first(area.size() / 2) : area, "bad"});
    require(reply && !succeeded(reply), "a context of no NIC, or without room, is refused");
    return false;
  }
  bool carry_out(const CloseContext&, const Call& call) {
    if (!call.owner.is_open) return plain(call, CloseContext{});
    close(call.owner);
    return false;
  }
  bool carry_out(const AllocPd&, const Call& call) { return plain(call, AllocPd{}); }
  bool carry_out(const DeallocPd&, const Call& call) { return plain(call, DeallocPd{{handle(call.input)}}); }
  bool carry_out(const RegMr&, const Call& call) {
    InputReader& input = call.input;
    const bool is_any = input.choice(8) == 7;
    RegMr reg{{handle(input)}, call.owner.space, call.owner.memory, kRegionBytes, call.owner.memory, 0};
    reg.address += input.byte();
    reg.length_bytes = is_any ? input.number<std::uint64_t>() : input.number<std::uint16_t>();
    reg.iova = input.choice(8) == 7 ? input.number<std::uint64_t>() : reg.address;
    reg.access = input.choice(8) == 7 ? input.number<std::uint32_t>() : 0x1FU;
    const Reply reply = submit(call.context, reg);
    if (succeeded(reply)) call.owner.last_key = std::get<RegMrReply>(reply->body).rkey;
    return succeeded(reply);
  }
  bool carry_out(const DeregMr&, const Call& call) { return plain(call, DeregMr{{handle(call.input)}}); }

  bool carry_out(const CreateCq&, const Call& call) {
    const RingShape shape = cq_shape(call.input);
    sim::RingMemory memory = ring(shape, call.input);
    const Reply reply = submit(call.context, CreateCq{memory.bytes(), shape.slots, 1, 2});
    if (succeeded(reply)) call.owner.cqs[std::get<CqHandle>(reply->body).value] = std::move(memory);
    return succeeded(reply);
  }
  bool carry_out(const ResizeCq&, const Call& call) {
    const RingShape shape = cq_shape(call.input);
    sim::RingMemory memory = ring(shape, call.input);
    const std::uint32_t slot = handle(call.input);
    const bool done = plain(call, ResizeCq{{slot}, memory.bytes(), shape.slots});
    if (done) call.owner.cqs[slot] = std::move(memory);
    return done;
  }
  bool carry_out(const DestroyCq&, const Call& call) { return end<DestroyCq>(call, call.owner.cqs); }

  bool carry_out(const CreateQp&, const Call& call) {
    InputReader& input = call.input;
    CreateQp create;
    create.pd = {handle(input)};
    create.send_cq = {handle(input)};
    create.recv_cq = {handle(input)};
    const std::uint8_t what = input.byte();
    if ((what & 3) == 3) create.srq = SrqHandle{handle(input)};
    create.sq_signal_all = (what & 4) != 0;
    constexpr std::uint32_t kTypes[] = {2, 3, 4, 2};
    create.type = (what & 24) == 24 ? input.byte() : kTypes[what >> 6];
    QpCapabilities cap = capabilities(input);
    if (create.srq) cap.max_recv_wr = cap.max_recv_sge = 0;
    create.capabilities = cap;
    const bool is_usual = is_small(cap.max_send_wr, cap.max_send_sge, cap.max_inline_bytes) &&
                          is_small(cap.max_recv_wr, cap.max_recv_sge);
    sim::RingMemory send = is_usual ? ring(send_ring_shape(cap), input) : sim::RingMemory(kShortRingBytes);
    sim::RingMemory recv = is_usual ? ring(recv_ring_shape(cap), input) : sim::RingMemory(kShortRingBytes);
    create.send_ring = send.bytes();
    if (!create.srq) create.recv_ring = recv.bytes();
    const Reply reply = submit(call.context, create);
    if (!succeeded(reply)) return false;
    const CreateQpReply& made = std::get<CreateQpReply>(reply->body);
    call.owner.qps[made.qp.value] =
        QpRings{std::move(send), std::move(recv), cap, made.qpn, static_cast<QpType>(create.type)};
    return true;
  }
  bool carry_out(const ModifyQp&, const Call& call) {
    return plain(call, modification(call.owner, call.input));
  }
  bool carry_out(const QueryQp&, const Call& call) { return plain(call, QueryQp{{handle(call.input)}}); }
  bool carry_out(const DestroyQp&, const Call& call) { return end<DestroyQp>(call, call.owner.qps); }

  bool carry_out(const CreateSrq&, const Call& call) {
    InputReader& input = call.input;
    CreateSrq create;
    create.pd = {handle(input)};
    create.max_wr = small(input, 16);
    create.max_sge = small(input, 4);
    create.limit = small(input, 4);
    sim::RingMemory memory = srq_ring(create.max_wr, create.max_sge, input);
    create.ring = memory.bytes();
    const Reply reply = submit(call.context, create);
    if (succeeded(reply)) call.owner.srqs[std::get<SrqHandle>(reply->body).value] = std::move(memory);
    return succeeded(reply);
  }
  bool carry_out(const ModifySrq&, const Call& call) {
    InputReader& input = call.input;
    ModifySrq modify;
    modify.srq = {handle(input)};
    const std::uint8_t what = input.byte();
    if ((what & 1) != 0) modify.limit = small(input, 16);
    if ((what & 2) == 0) return plain(call, modify);
    modify.max_wr = small(input, 16);
    sim::RingMemory memory = srq_ring(modify.max_wr, 4, input);
    modify.ring = memory.bytes();
    const bool done = plain(call, modify);
    if (done) call.owner.srqs[modify.srq.value] = std::move(memory);
    return done;
  }
  bool carry_out(const QuerySrq&, const Call& call) { return plain(call, QuerySrq{{handle(call.input)}}); }
  bool carry_out(const DestroySrq&, const Call& call) { return end<DestroySrq>(call, call.owner.srqs); }

  bool carry_out(const AllocMw&, const Call& call) {
    const PdHandle pd{handle(call.input)};
    return plain(call, AllocMw{pd, small(call.input, 3)});
  }
  bool carry_out(const DeallocMw&, const Call& call) { return plain(call, DeallocMw{{handle(call.input)}}); }
  bool carry_out(const CreateAh&, const Call& call) {
    const PdHandle pd{handle(call.input)};
    return plain(call, CreateAh{pd, address_vector(call.input)});
  }
  bool carry_out(const DestroyAh&, const Call& call) { return plain(call, DestroyAh{{handle(call.input)}}); }
  bool carry_out(const AttachMulticast&, const Call& call) {
    const QpHandle qp{handle(call.input)};
    return plain(call, AttachMulticast{qp, group(call.input)});
  }
  bool carry_out(const DetachMulticast&, const Call& call) {
    const QpHandle qp{handle(call.input)};
    return plain(call, DetachMulticast{qp, group(call.input)});
  }
  // Of the NIC's owner, whatever the context: addresses come and go under QPs, address handles and
  // neighbours.
  bool carry_out(const ChangeAddresses&, const Call& call) {
    std::vector<NicAddress> addresses(call.input.choice(4));
    for (NicAddress& address : addresses) {
      const bool is_own = call.input.choice(2) == 0;
      address.gid = is_own ? bench_.host().own_gid() : proto::Gid::from_ipv4(0x0A000000U | call.input.byte());
    }
    const Reply reply = submit(call.context, ChangeAddresses{{0}, std::move(addresses)});
    require(succeeded(reply), "a NIC's addresses can be changed");
    return false;
  }
  bool carry_out(const Inspect&, const Call& call) {
    require(succeeded(submit(call.context, Inspect{})), "the engine can be inspected");
    return false;
  }

  // ---- traffic
  void post(Owner& owner, bool is_send, InputReader& input) {
    const std::uint32_t slot = handle(input);
    const std::uint8_t opcode = input.byte(), flags = input.byte();
    const std::uint32_t length = input.number<std::uint16_t>(), count = input.byte() % 3U;
    const auto found = owner.qps.find(slot);
    if (found == owner.qps.end() || !owner.is_open) return;
    QpRings& qp = found->second;
    const RingShape shape = is_send ? send_ring_shape(qp.capabilities) : recv_ring_shape(qp.capabilities);
    const RingSge sge{owner.memory, length, owner.last_key.value()};
    if (!is_send && qp.capabilities.max_recv_wr == 0) return;
    sim::RingMemory& memory = is_send ? qp.send : qp.recv;
    RingHeader& header = memory.header();
    std::byte* const at = memory.bytes().data() + kRingDataOffset +
                          (std::size_t{header.producer & (shape.slots - 1)} << shape.log2_element_bytes);
    if (is_send) {
      RingSendWqe wqe{};
      wqe.opcode = opcode % 16;
      wqe.send_flags = flags;
      wqe.wr.rdma = {0x7000, 0x99, 0};
      if (qp.type == QpType::kUd) wqe.wr.ud = {kPeer, fuzz::kQkey.value(), 0, 0, 1};
      if (wqe.opcode == sim::kWrBindWindow)
        wqe.wr.mw = {owner.memory, length, owner.last_key.value(), flags, flags + 1U, kAccessRemoteWrite};
      if (wqe.opcode == sim::kWrLocalInvalidate) wqe.immediate_or_invalidate = owner.last_key.value();
      wqe.dma.length_bytes = length;
      wqe.dma.num_sge = std::min(count, qp.capabilities.max_send_sge);
      std::memcpy(at, &wqe, sizeof wqe);
      for (std::uint32_t i = 0; i < wqe.dma.num_sge; ++i)
        std::memcpy(at + sizeof wqe + i * sizeof sge, &sge, sizeof sge);
    } else {
      RingRecvWqe wqe{};
      wqe.dma.num_sge = std::min(count, qp.capabilities.max_recv_sge);
      std::memcpy(at, &wqe, sizeof wqe);
      for (std::uint32_t i = 0; i < wqe.dma.num_sge; ++i)
        std::memcpy(at + sizeof wqe + i * sizeof sge, &sge, sizeof sge);
    }
    header.producer = (header.producer + 1) & (shape.slots - 1);
    set_doorbell(*reinterpret_cast<ControlArea*>(owner.control.bytes().data()), slot);
    bench_.host().pass();
  }

  void receive(Owner& owner, InputReader& input) {
    const auto found = owner.qps.find(handle(input));
    const QpType type = found == owner.qps.end() ? QpType::kRc : found->second.type;
    fuzz::PeerPacket packet;
    const unsigned in_class = type == QpType::kRc ? 0x00U : type == QpType::kUc ? 0x20U : 0x60U;
    packet.opcode = static_cast<proto::Opcode>(in_class | (input.byte() & 0x1FU));
    packet.destination = found == owner.qps.end() ? proto::Qpn{1} : found->second.qpn;
    const bool is_answer = proto::info(packet.opcode).role == proto::Role::kResponse;
    packet.psn = proto::Psn{is_answer ? 1000U : 100U}.plus(static_cast<std::int8_t>(input.byte()));
    packet.address = owner.memory;
    packet.rkey = owner.last_key;
    packet.length_bytes = input.number<std::uint16_t>();
    packet.syndrome = input.byte();
    packet.payload_bytes = input.byte();
    bench_.receive(packet);
  }

  fuzz::Bench bench_;
  std::array<Owner, 2> owners_;
  std::vector<CommandId> unanswered_;
  std::uint64_t next_command_ = std::uint64_t{1} << 32;  // the bench counts from 1
};

// ---- seeds -----------------------------------------------------------------------------------------

constexpr std::uint8_t kCommandDeed = 0, kPostDeed = 3, kReceiveDeed = 4, kPacketDeed = 5, kTimeDeed = 6;

template <class Kind>
void add(Input& input, std::initializer_list<std::uint8_t> values) {
  const auto kind = static_cast<std::uint8_t>(Body(Kind{}).index());
  input.insert(input.end(), {kCommandDeed, 0, kind, 0});
  input.insert(input.end(), values);
}
void up(Input& input, QpState state) { add<ModifyQp>(input, {0, static_cast<std::uint8_t>(state), 0, 0}); }

// An ordinary life of each service, with a bit of everything.
std::vector<Input> lives() {
  std::vector<Input> inputs;
  for (unsigned type = 0; type < 3; ++type) {
    for (const bool has_srq : {false, true}) {
      Input& input = inputs.emplace_back();
      add<AllocPd>(input, {});
      add<CreateCq>(input, {15, 0});
      add<RegMr>(input, {0, 0, 0, 0, 0x80, 0, 0});
      add<CreateSrq>(input, {0, 15, 4, 3, 0});
      const auto what = static_cast<std::uint8_t>(type << 6 | (has_srq ? 3U : 0U));
      if (has_srq) {
        add<CreateQp>(input, {0, 0, 0, what, 0, 15, 0, 4, 0, 64, 0, 0});
      } else {
        add<CreateQp>(input, {0, 0, 0, what, 15, 15, 4, 4, 64, 0, 0});
      }
      add<CreateAh>(input, {0, 0});
      add<AllocMw>(input, {0, 2});
      for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts})
        up(input, state);
      add<AttachMulticast>(input, {0, 1, 0});
      input.insert(input.end(), {kReceiveDeed, 0, 0, 0, 0, 0, 1, 1});
      input.insert(input.end(), {kPostDeed, 0, 0, 2, 2, 100, 0, 1});
      input.insert(input.end(), {kPacketDeed, 0, 0, 4, 0, 0, 0, 0x1F, 20});
      input.insert(input.end(), {kPacketDeed, 0, 0, 0x11, 0, 0, 0, 0x1F, 0});
      add<ResizeCq>(input, {8, 0, 0});
      add<ModifySrq>(input, {0, 3, 2, 8, 0});
      add<QueryQp>(input, {0});
      add<QuerySrq>(input, {0});
      add<Inspect>(input, {});
      input.insert(input.end(), {kTimeDeed, 0, 30});
      add<DetachMulticast>(input, {0, 1, 0});
      add<DestroyAh>(input, {0});
      add<DeallocMw>(input, {0});
      up(input, QpState::kErr);
      add<DestroyQp>(input, {0});
      add<DestroySrq>(input, {0});
      add<DestroyCq>(input, {0});
      add<DeregMr>(input, {0});
      add<DeallocPd>(input, {0});
      add<CloseContext>(input, {});
      add<OpenContext>(input, {});
    }
  }
  return inputs;
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {false, lives};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  World world;
  InputReader input({data, size});
  for (std::size_t deeds = 0; deeds < kMaxDeeds && !input.is_empty(); ++deeds)
    world.carry_out(input);
  world.expect_nothing_left();
  return 0;
}
