#include "verbs_shim/server/gsi.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "emulator/datagram.h"
#include "emulator/ring.h"
#include "emulator/ring_shape.h"
#include "emulator/shared_layout.h"
#include "proto/types.h"
#include "verbs_shim/server/context_memory.h"

namespace roci::shim {
namespace {

using emulator::AddressVector;
using emulator::CommandReply;
using emulator::RingCqe;
using emulator::RingShape;
using emulator::cm::kMadBytes;
using emulator::cm::OutgoingMad;

constexpr std::uint32_t kMadReceives = 512, kMadSends = 512;
constexpr std::size_t kMaxDestinations = 1024;  // address handles of a NIC
constexpr std::size_t kMaxMadsWaiting = 64;     // for one neighbour
constexpr std::size_t kMaxResolversWaiting = 16384;
constexpr auto kDestinationLife = std::chrono::seconds(30);
constexpr std::uint64_t kGsiChannel = ~std::uint64_t{0};  // no context's
constexpr std::uint32_t kReceiveBytes = emulator::kGrhAreaBytes + kMadBytes;
constexpr std::uint32_t kSendOpcode = 2, kInlineFlag = 8;  // IBV_WR_SEND, IBV_SEND_INLINE
constexpr std::uint32_t kReceivedBit = 128;                // of a completion's opcode: IBV_WC_RECV

// What makes one destination another.
using DestinationKey = std::tuple<std::array<std::uint8_t, 16>, std::uint32_t, std::uint8_t, std::uint8_t,
                                  std::uint8_t, std::uint8_t>;
DestinationKey key_of(const AddressVector& av) {
  return {av.dgid.bytes, av.flow_label, av.sgid_index, av.hop_limit, av.traffic_class, av.service_level};
}

// Of the area in front of a datagram: an IPv6 header, or an IPv4 header at its end [IBTA A17.4.5.2].
std::optional<std::pair<proto::Gid, proto::Gid>> addresses_of(
    std::span<const std::byte, emulator::kGrhAreaBytes> area) {
  const auto ipv6 = [&](std::size_t at) {
    proto::Gid gid;
    std::memcpy(gid.bytes.data(), area.data() + at, gid.bytes.size());
    return gid;
  };
  const auto ipv4 = [&](std::size_t at) {
    std::uint32_t address = 0;
    std::memcpy(&address, area.data() + at, sizeof address);
    return proto::Gid::from_ipv4(__builtin_bswap32(address));
  };
  constexpr std::size_t kIpv4At = 20;
  if (std::to_integer<unsigned>(area[0]) >> 4 == 6) return std::pair{ipv6(8), ipv6(24)};
  if (std::to_integer<unsigned>(area[kIpv4At]) >> 4 == 4)
    return std::pair{ipv4(kIpv4At + 12), ipv4(kIpv4At + 16)};
  return std::nullopt;
}

}  // namespace

// QP1 of one NIC.
class GsiPort : public std::enable_shared_from_this<GsiPort> {
 public:
  GsiPort(ContextHost& host, emulator::NicId nic, Gsi::Counters& counters)
      : host_(host), nic_(nic), counters_(counters) {}

  void open();
  void close(std::function<void()> done);
  void on_completions(const Gsi::Receive& receive);
  void send(const OutgoingMad& mad);
  void resolve(const AddressVector& to, std::function<void(std::errc)> then);
  [[nodiscard]] bool owns(emulator::ContextId context) const { return context_ == context; }

 private:
  struct Destination {
    std::optional<emulator::AhHandle> ah;  // none: the neighbour is being looked for
    std::chrono::steady_clock::time_point made, used;
    std::uint32_t in_flight = 0;  // posted sends that name the handle
    std::vector<OutgoingMad> waiting;
    std::vector<std::function<void(std::errc)>> resolvers;
  };
  using DestinationPtr = std::shared_ptr<Destination>;
  using Then = std::function<void(CommandReply&&)>;

  // The next step of opening; an error ends it.
  template <class Body>
  void step(Body&& body, Then then);
  void allocate();
  void create_qp(emulator::CqHandle cq);
  void to_init(emulator::QpHandle qp);
  void to_rtr();
  void to_rts();
  void submit_close();

  DestinationPtr destination(const AddressVector& to);
  void forget_oldest();
  void forget(std::map<DestinationKey, DestinationPtr>::iterator at);
  void created(const DestinationKey& key, const DestinationPtr& to, CommandReply&& reply);
  void post_send(const DestinationPtr& to, const OutgoingMad& mad);
  void post_receive(std::uint32_t index);
  void sent(const RingCqe& cqe);
  void received(const RingCqe& cqe, const Gsi::Receive& receive);
  void arm();
  void ring_doorbell(std::uint32_t slot);
  [[nodiscard]] emulator::ControlArea& control() const {
    return *reinterpret_cast<emulator::ControlArea*>(memory_->control_area().data());
  }
  [[nodiscard]] std::span<std::byte> buffer(std::uint32_t index) const {
    return memory_->bytes_of(*buffers_).subspan(std::size_t{index} * kReceiveBytes, kReceiveBytes);
  }

  ContextHost& host_;
  const emulator::NicId nic_;
  Gsi::Counters& counters_;
  std::unique_ptr<ContextMemory> memory_;
  std::optional<emulator::AddressSpaceId> space_;
  std::optional<emulator::ContextId> context_;
  emulator::PdHandle pd_;
  std::uint32_t lkey_ = 0;
  emulator::CqHandle cq_handle_;
  emulator::QpHandle qp_;
  std::optional<ContextMemory::Area> buffers_, cq_area_, send_area_, receive_area_;
  emulator::Ring cq_, sends_, receives_;
  bool is_opening_ = false, is_up_ = false, is_closing_ = false;
  std::function<void()> when_closed_;
  std::map<DestinationKey, DestinationPtr> destinations_;
  std::deque<DestinationPtr> posted_;  // sends complete in order
};

// ---- life --------------------------------------------------------------------------------------------

template <class Body>
void GsiPort::step(Body&& body, Then then) {
  const emulator::ContextId context = context_.value_or(emulator::ContextId{});
  host_.submit(0, {context, std::forward<Body>(body)},
               [self = shared_from_this(), then = std::move(then)](CommandReply&& reply) {
                 if (self->is_closing_ && self->context_) return;
                 if (reply.error == std::errc{}) return then(std::move(reply));
                 self->is_opening_ = false;
                 self->host_.log("no connection management on " +
                                 self->host_.config().nics[self->nic_.index].name + ": " +
                                 std::make_error_code(reply.error).message());
                 if (self->is_closing_) self->submit_close();
               });
}

void GsiPort::open() {
  auto memory = ContextMemory::create();
  space_ = host_.spaces().add(::getpid());
  if (!memory || !space_)
    return host_.log("no connection management on " + host_.config().nics[nic_.index].name + ": no memory");
  memory_ = std::move(*memory);
  memory_->take_fd().reset();
  is_opening_ = true;
  step(emulator::OpenContext{nic_, memory_->control_area(), "rocid: connection management"},
       [this](CommandReply&& reply) {
         context_ = std::get<emulator::ContextId>(reply.body);
         if (is_closing_) return submit_close();
         allocate();
       });
}

void GsiPort::allocate() {
  const RingShape cq_shape = emulator::cq_ring_shape(kMadReceives + kMadSends);
  const emulator::QpCapabilities capabilities{kMadSends, kMadReceives, 1, 1, kMadBytes};
  const RingShape send_shape = emulator::send_ring_shape(capabilities);
  const RingShape receive_shape = emulator::recv_ring_shape(capabilities);
  buffers_ = memory_->allocate(std::size_t{kMadReceives} * kReceiveBytes);
  cq_area_ = memory_->allocate(cq_shape.bytes());
  send_area_ = memory_->allocate(send_shape.bytes());
  receive_area_ = memory_->allocate(receive_shape.bytes());
  // The same headers as the engine's; so these are the application's end of the rings.
  cq_ = emulator::Ring(memory_->bytes_of(cq_area_.value()), cq_shape);
  sends_ = emulator::Ring(memory_->bytes_of(send_area_.value()), send_shape);
  receives_ = emulator::Ring(memory_->bytes_of(receive_area_.value()), receive_shape);
  step(emulator::AllocPd{}, [this, cq_shape](CommandReply&& reply) {
    pd_ = std::get<emulator::PdHandle>(reply.body);
    emulator::RegMr region;
    region.pd = pd_;
    region.space = *space_;
    region.address = region.iova = reinterpret_cast<std::uintptr_t>(buffer(0).data());
    region.length_bytes = std::uint64_t{kMadReceives} * kReceiveBytes;
    region.access = emulator::kAccessLocalWrite;
    step(region, [this, cq_shape](CommandReply&& registered) {
      lkey_ = std::get<emulator::RegMrReply>(registered.body).lkey.value();
      emulator::CreateCq create;
      create.ring = memory_->bytes_of(*cq_area_).first(cq_shape.bytes());
      create.slots = cq_shape.slots;
      create.user_handle = nic_.index;
      create.channel = kGsiChannel;
      step(create, [this](CommandReply&& created) { create_qp(std::get<emulator::CqHandle>(created.body)); });
    });
  });
}

void GsiPort::create_qp(emulator::CqHandle cq) {
  cq_handle_ = cq;
  emulator::CreateQp create;
  create.pd = pd_;
  create.send_cq = create.recv_cq = cq;
  create.type = static_cast<std::uint32_t>(emulator::QpType::kGsi);
  create.sq_signal_all = true;
  create.capabilities = {kMadSends, kMadReceives, 1, 1, kMadBytes};
  create.send_ring =
      memory_->bytes_of(*send_area_).first(emulator::send_ring_shape(create.capabilities).bytes());
  create.recv_ring =
      memory_->bytes_of(*receive_area_).first(emulator::recv_ring_shape(create.capabilities).bytes());
  step(create, [this](CommandReply&& reply) { to_init(std::get<emulator::CreateQpReply>(reply.body).qp); });
}

void GsiPort::to_init(emulator::QpHandle qp) {
  qp_ = qp;
  emulator::ModifyQp modify;
  modify.qp = qp_;
  modify.mask = emulator::kQpState | emulator::kQpPkeyIndex | emulator::kQpQkey;
  modify.attributes.state = emulator::QpState::kInit;
  modify.attributes.qkey = emulator::kGsiQkey;
  step(modify, [this](CommandReply&&) { to_rtr(); });
}

void GsiPort::to_rtr() {
  for (std::uint32_t i = 0; i < kMadReceives; ++i)
    post_receive(i);
  arm();
  emulator::ModifyQp modify;
  modify.qp = qp_;
  modify.mask = emulator::kQpState;
  modify.attributes.state = emulator::QpState::kRtr;
  step(modify, [this](CommandReply&&) { to_rts(); });
}

void GsiPort::to_rts() {
  emulator::ModifyQp modify;
  modify.qp = qp_;
  modify.mask = emulator::kQpState | emulator::kQpSqPsn;
  modify.attributes.state = emulator::QpState::kRts;
  step(modify, [this](CommandReply&&) {
    is_opening_ = false;
    is_up_ = true;
  });
}

void GsiPort::close(std::function<void()> done) {
  when_closed_ = std::move(done);
  is_closing_ = true;
  is_up_ = false;
  // Without a context: either the engine has not answered yet, or there is nothing.
  if (context_ || !is_opening_) submit_close();
}

void GsiPort::submit_close() {
  const auto finish = [self = shared_from_this()] {
    self->context_.reset();
    self->destinations_.clear();
    self->posted_.clear();
    if (self->space_) self->host_.spaces().remove(*std::exchange(self->space_, std::nullopt));
    self->memory_.reset();
    std::exchange(self->when_closed_, nullptr)();
  };
  if (!context_) return finish();
  host_.submit(0, {*context_, emulator::CloseContext{}}, [finish](CommandReply&&) { finish(); });
}

// ---- destinations ------------------------------------------------------------------------------------

// The known one, or a new one whose neighbour is looked for; nullptr: there are too many.
GsiPort::DestinationPtr GsiPort::destination(const AddressVector& to) {
  const DestinationKey key = key_of(to);
  const auto now = std::chrono::steady_clock::now();
  if (const auto known = destinations_.find(key); known != destinations_.end()) {
    Destination& d = *known->second;
    d.used = now;
    if (!d.ah || now - d.made < kDestinationLife || d.in_flight != 0) return known->second;
    forget(known);
  }
  if (destinations_.size() == kMaxDestinations) forget_oldest();
  if (destinations_.size() == kMaxDestinations) return nullptr;
  auto made = std::make_shared<Destination>();
  made->used = now;
  destinations_.emplace(key, made);
  host_.submit(0, {*context_, emulator::CreateAh{pd_, to}},
               [self = shared_from_this(), key, made](CommandReply&& reply) {
                 self->created(key, made, std::move(reply));
               });
  return made;
}

void GsiPort::created(const DestinationKey& key, const DestinationPtr& to, CommandReply&& reply) {
  if (reply.error == std::errc{}) {
    to->ah = std::get<emulator::AhHandle>(reply.body);
    to->made = std::chrono::steady_clock::now();
  } else {
    destinations_.erase(key);
    counters_.no_neighbour += to->waiting.size();
  }
  for (const OutgoingMad& mad : std::exchange(to->waiting, {}))
    if (to->ah) post_send(to, mad);
  for (const auto& then : std::exchange(to->resolvers, {}))
    then(reply.error);
}

void GsiPort::forget_oldest() {
  auto oldest = destinations_.end();
  for (auto at = destinations_.begin(); at != destinations_.end(); ++at) {
    const bool is_idle = at->second->ah && at->second->in_flight == 0;
    if (is_idle && (oldest == destinations_.end() || at->second->used < oldest->second->used)) oldest = at;
  }
  if (oldest != destinations_.end()) forget(oldest);
}

void GsiPort::forget(std::map<DestinationKey, DestinationPtr>::iterator at) {
  host_.submit(0, {*context_, emulator::DestroyAh{at->second->ah.value()}}, [](CommandReply&&) {});
  destinations_.erase(at);
}

void GsiPort::resolve(const AddressVector& to, std::function<void(std::errc)> then) {
  if (!is_up_ || !host_.link_up(nic_)) return then(std::errc::network_down);
  const DestinationPtr found = destination(to);
  if (!found || found->resolvers.size() == kMaxResolversWaiting) return then(std::errc::no_buffer_space);
  if (found->ah) return then(std::errc{});
  found->resolvers.push_back(std::move(then));
}

// ---- MADs --------------------------------------------------------------------------------------------

void GsiPort::send(const OutgoingMad& mad) {
  if (!is_up_ || !host_.link_up(nic_)) {
    ++counters_.not_up;
    return;
  }
  const DestinationPtr to = destination(mad.to);
  if (to && to->ah) return post_send(to, mad);
  if (to && to->waiting.size() < kMaxMadsWaiting) {
    to->waiting.push_back(mad);
  } else {
    ++counters_.no_neighbour;
  }
}

void GsiPort::post_send(const DestinationPtr& to, const OutgoingMad& mad) {
  const std::uint32_t producer = sends_.load_producer();
  if (!is_up_ || sends_.after(producer) == sends_.load_consumer()) {
    ++counters_.no_room;
    return;
  }
  emulator::RingSendWqe wqe{};
  wqe.opcode = kSendOpcode;
  wqe.send_flags = kInlineFlag;
  wqe.wr.ud.remote_qpn = proto::kQpnGsi.value();
  wqe.wr.ud.remote_qkey = emulator::kGsiQkey.value();
  wqe.wr.ud.ah_number = to->ah.value().value + 1;
  wqe.dma.length_bytes = wqe.dma.resid = kMadBytes;
  std::byte* const slot = sends_.element(producer);
  std::memcpy(slot, &wqe, sizeof wqe);
  std::memcpy(slot + sizeof wqe, mad.bytes.data(), mad.bytes.size());
  sends_.store_producer(sends_.after(producer));
  ++to->in_flight;
  posted_.push_back(to);
  ++counters_.sent;
  ring_doorbell(qp_.value);
}

void GsiPort::post_receive(std::uint32_t index) {
  const std::uint32_t producer = receives_.load_producer();
  emulator::RingRecvWqe wqe{};
  wqe.wr_id = index;
  wqe.dma.length_bytes = wqe.dma.resid = kReceiveBytes;
  wqe.dma.num_sge = 1;
  const emulator::RingSge sge{reinterpret_cast<std::uintptr_t>(buffer(index).data()), kReceiveBytes, lkey_};
  std::byte* const slot = receives_.element(producer);
  std::memcpy(slot, &wqe, sizeof wqe);
  std::memcpy(slot + sizeof wqe, &sge, sizeof sge);
  receives_.store_producer(receives_.after(producer));
}

// At most as many as the CQ holds, so that others have their turn; arming tells of what came meanwhile.
void GsiPort::on_completions(const Gsi::Receive& receive) {
  if (!context_ || !cq_area_) return;
  for (std::uint32_t i = 0; i < cq_.slots(); ++i) {
    const std::uint32_t consumer = cq_.load_consumer();
    if (consumer == cq_.load_producer()) break;
    RingCqe cqe;
    std::memcpy(&cqe, cq_.element(consumer), sizeof cqe);
    cq_.store_consumer(cq_.after(consumer));
    if ((cqe.opcode & kReceivedBit) != 0) {
      received(cqe, receive);
    } else {
      sent(cqe);
    }
  }
  arm();
}

void GsiPort::sent(const RingCqe& cqe) {
  if (posted_.empty()) return;
  --posted_.front()->in_flight;
  posted_.pop_front();
  if (cqe.status == 0 || !is_up_) return;
  // A send that failed has stopped the queue, and what was behind it is flushed.
  emulator::ModifyQp modify;
  modify.qp = qp_;
  modify.mask = emulator::kQpState;
  modify.attributes.state = emulator::QpState::kRts;
  host_.submit(0, {*context_, modify}, [](CommandReply&&) {});
}

void GsiPort::received(const RingCqe& cqe, const Gsi::Receive& receive) {
  const auto index = static_cast<std::uint32_t>(cqe.wr_id % kMadReceives);
  if (cqe.status != 0) {  // our own memory was not there, or the QP is being taken down
    if (std::exchange(is_up_, false)) host_.log("QP1 of " + host_.config().nics[nic_.index].name + " failed");
    return;
  }
  const std::span<const std::byte, kReceiveBytes> bytes(buffer(index));
  const auto addresses = addresses_of(bytes.first<emulator::kGrhAreaBytes>());
  ++counters_.received;
  if (cqe.byte_len != kReceiveBytes || !addresses) {
    ++counters_.malformed;
  } else if (is_up_) {
    receive({nic_, addresses->first, addresses->second, proto::Qpn{cqe.src_qp},
             bytes.subspan<emulator::kGrhAreaBytes, kMadBytes>()});
  }
  post_receive(index);
}

void GsiPort::arm() {
  if (emulator::arm_cq(control().cq_arm[cq_handle_.value], emulator::CqArm::kNext))
    ring_doorbell(emulator::cq_doorbell(cq_handle_.value));
}

void GsiPort::ring_doorbell(std::uint32_t slot) {
  emulator::set_doorbell(control(), slot);
  if (__atomic_load_n(&control().asleep, __ATOMIC_SEQ_CST) == 0 ||
      __atomic_exchange_n(&control().asleep, 0U, __ATOMIC_SEQ_CST) == 0)
    return;
  constexpr std::uint64_t kOnce = 1;
  static_cast<void>(!::write(host_.kick_fd(0), &kOnce, sizeof kOnce));
}

// ---- all NICs ----------------------------------------------------------------------------------------

Gsi::Gsi(ContextHost& host, Receive receive) : host_(host), receive_(std::move(receive)) {
  auto ends = EventPipe::create(EventPipe::Record::kCompletion);
  if (!ends) throw std::system_error(std::make_error_code(ends.error()), "a pipe");
  channel_ = std::move(ends->pipe);
  events_ = std::move(ends->reader);
  if (::fcntl(events_.get(), F_SETFL, O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "a pipe");
}

Gsi::~Gsi() = default;

void Gsi::open() {
  host_.router().add_channel(kGsiChannel, channel_);
  for (std::size_t i = 0; i < host_.config().nics.size(); ++i) {
    const emulator::NicId nic{static_cast<std::uint8_t>(i)};
    channel_->watch(ObjectClass::kCq, i);
    ports_.push_back(std::make_shared<GsiPort>(host_, nic, counters_));
    ports_.back()->open();
  }
}

void Gsi::close(const std::function<void()>& done) {
  const auto left = std::make_shared<std::size_t>(ports_.size());
  if (ports_.empty()) return done();
  for (const auto& port : ports_) {
    port->close([this, left, done] {
      if (--*left != 0) return;
      host_.router().remove_channel(kGsiChannel);
      done();
    });
  }
}

void Gsi::on_completions() {
  std::array<std::uint64_t, 64> nics;
  const ssize_t length = ::read(events_.get(), nics.data(), sizeof nics);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; length > 0 && i < static_cast<std::size_t>(length) / sizeof nics[0]; ++i) {
    if (nics[i] >= ports_.size() || ((seen >> nics[i]) & 1) != 0) continue;
    seen |= std::uint64_t{1} << nics[i];
    ports_[nics[i]]->on_completions(receive_);
  }
}

bool Gsi::owns(emulator::ContextId context) const {
  return std::any_of(ports_.begin(), ports_.end(),
                     [context](const auto& port) { return port->owns(context); });
}

void Gsi::send(const OutgoingMad& mad) {
  if (mad.nic.index < ports_.size()) return ports_[mad.nic.index]->send(mad);
  ++counters_.not_up;
}

void Gsi::resolve(emulator::NicId nic, const AddressVector& to, std::function<void(std::errc)> then) {
  if (nic.index < ports_.size()) return ports_[nic.index]->resolve(to, std::move(then));
  then(std::errc::no_such_device);
}

}  // namespace roci::shim
