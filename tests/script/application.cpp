#include "tests/script/application.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "emulator/ring_shape.h"
#include "tests/sim/soundness.h"

namespace roci::scripts {

using namespace emulator;

namespace {

std::uint32_t load_acquire(std::uint32_t& index) {
  return std::atomic_ref<std::uint32_t>(index).load(std::memory_order_acquire);
}
void store_release(std::uint32_t& index, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(index).store(value, std::memory_order_release);
}
bool is_full(RingHeader& header) {
  return ((load_acquire(header.producer) - load_acquire(header.consumer)) & header.index_mask) ==
         header.index_mask;
}
void advance_producer(RingHeader& header) {
  store_release(header.producer, (header.producer + 1) & header.index_mask);
}
std::uint32_t length_of(const std::vector<RingSge>& sges) {
  return std::accumulate(sges.begin(), sges.end(), std::uint32_t{0},
                         [](std::uint32_t sum, const RingSge& sge) { return sum + sge.length_bytes; });
}

}  // namespace

Application::Application(Host& host)
    : host_(host),
      space_(host.memory().add_space()),
      control_memory_(kControlAreaBytes),
      control_(reinterpret_cast<ControlArea*>(control_memory_.bytes().data())) {
  const CommandReply opened = transact(Command{{}, OpenContext{{0}, control_memory_.bytes(), "script"}});
  if (opened.error != std::errc{}) complain("the context cannot be opened");
  context_ = std::get<ContextId>(opened.body);
  if (alloc_pd("pd") != std::errc{}) complain("the PD cannot be allocated");
  host_.after_each_pass([this] { poll(); });
}

CommandReply Application::transact(Command command) {
  const CommandId id{next_command_++};
  std::optional<CommandReply> reply = host_.submit(id, std::move(command));
  if (reply) return *std::move(reply);
  if (waiting_) complain("two commands wait for the network at the same time");
  waiting_ = id;
  CommandReply later;
  later.error = std::errc::operation_in_progress;
  return later;
}

std::optional<std::errc> Application::late_reply() {
  if (!waiting_) return std::nullopt;
  const std::optional<CommandReply> reply = host_.reply(*waiting_);
  if (!reply) return std::nullopt;
  waiting_.reset();
  return reply->error;
}

std::uint64_t Application::name_object(const std::string& name) {
  object_names_.push_back(name);
  return object_names_.size() - 1;
}

std::string Application::object_of(const Event& event) const {
  if (event.kind == EventKind::kPortActive || event.kind == EventKind::kPortErr ||
      event.kind == EventKind::kGidChange) {
    return "port";
  }
  return event.user_handle < object_names_.size() ? object_names_[event.user_handle] : "nobody";
}

// ---- objects ---------------------------------------------------------------------------------------

std::errc Application::alloc_pd(const std::string& name) {
  const CommandReply reply = transact(AllocPd{});
  if (reply.error == std::errc{}) pds[name] = std::get<PdHandle>(reply.body);
  return reply.error;
}

std::errc Application::register_region(const std::string& name, const std::string& pd, std::size_t bytes,
                                       std::uint32_t access, std::optional<std::uint64_t> iova) {
  constexpr std::uint64_t kGap = 0x10000;  // so that one byte too many is nobody's
  Region region;
  region.address = next_address_;
  region.length_bytes = bytes;
  region.iova = iova.value_or(region.address);
  next_address_ += (bytes + kGap - 1) / kGap * kGap + kGap;
  if (bytes > 0) host_.memory().map(space_, region.address, bytes);
  const CommandReply reply = transact(RegMr{pds.at(pd), space_, region.address, bytes, region.iova, access});
  if (reply.error != std::errc{}) return reply.error;
  const RegMrReply& made = std::get<RegMrReply>(reply.body);
  region.handle = made.mr;
  region.key = made.rkey.value();
  regions[name] = region;
  return {};
}

std::errc Application::create_cq(const std::string& name, std::uint32_t entries) {
  if (cqs.count(name) != 0) complain("there is a CQ '" + name + "' already");
  auto cq = std::make_unique<Cq>();
  cq->name = name;
  const RingShape shape = cq_ring_shape(entries);
  cq->ring = sim::RingMemory(shape.bytes());
  const std::uint64_t number = name_object(name);
  const CommandReply reply = transact(CreateCq{cq->ring.bytes(), shape.slots, number, number + 1});
  if (reply.error != std::errc{}) return reply.error;
  cq->handle = std::get<CqHandle>(reply.body);
  cqs[name] = std::move(cq);
  return {};
}

std::errc Application::resize_cq(Cq& cq, std::uint32_t entries) {
  const RingShape shape = cq_ring_shape(entries);
  sim::RingMemory ring(shape.bytes());
  const std::errc error = transact(ResizeCq{cq.handle, ring.bytes(), shape.slots}).error;
  if (error == std::errc{}) cq.ring = std::move(ring);
  return error;
}

std::errc Application::create_srq(const std::string& name, const std::string& pd, std::uint32_t max_wr,
                                  std::uint32_t max_sge, std::uint32_t limit) {
  auto srq = std::make_unique<Srq>();
  srq->max_sge = max_sge;
  srq->ring = sim::RingMemory(srq_ring_shape(max_wr, max_sge).bytes());
  const CommandReply reply =
      transact(CreateSrq{pds.at(pd), max_wr, max_sge, limit, srq->ring.bytes(), name_object(name)});
  if (reply.error != std::errc{}) return reply.error;
  srq->handle = std::get<SrqHandle>(reply.body);
  srqs[name] = std::move(srq);
  return {};
}

std::errc Application::create_qp(const std::string& name, const std::string& pd, Cq& send_cq, Cq& recv_cq,
                                 const QpShape& shape) {
  auto qp = std::make_unique<Qp>();
  qp->name = name;
  qp->type = static_cast<QpType>(shape.type);
  qp->capabilities = shape.capabilities;
  qp->send_ring = sim::RingMemory(send_ring_shape(shape.capabilities).bytes());
  qp->send_cq = &send_cq;
  qp->recv_cq = &recv_cq;
  qp->srq = shape.srq;
  CreateQp create;
  create.pd = pds.at(pd);
  create.send_cq = send_cq.handle;
  create.recv_cq = recv_cq.handle;
  create.type = shape.type;
  create.sq_signal_all = shape.signal_all;
  if (shape.srq != nullptr) {
    qp->capabilities.max_recv_wr = qp->capabilities.max_recv_sge = 0;
    create.srq = shape.srq->handle;
  } else {
    qp->recv_ring = sim::RingMemory(recv_ring_shape(shape.capabilities).bytes());
    create.recv_ring = qp->recv_ring.bytes();
  }
  create.capabilities = qp->capabilities;
  create.send_ring = qp->send_ring.bytes();
  create.user_handle = name_object(name);
  const CommandReply reply = transact(create);
  if (reply.error != std::errc{}) return reply.error;
  const CreateQpReply& made = std::get<CreateQpReply>(reply.body);
  qp->handle = made.qp;
  qp->qpn = made.qpn;
  qps[name] = std::move(qp);
  return {};
}

std::errc Application::alloc_window(const std::string& name, const std::string& pd, std::uint32_t type) {
  const CommandReply reply = transact(AllocMw{pds.at(pd), type});
  if (reply.error != std::errc{}) return reply.error;
  const AllocMwReply& made = std::get<AllocMwReply>(reply.body);
  windows[name] = {made.mw, made.rkey.value(), made.rkey.value()};
  return {};
}

std::errc Application::create_ah(const std::string& name, const std::string& pd, const AddressVector& av) {
  const CommandReply reply = transact(CreateAh{pds.at(pd), av});
  if (reply.error == std::errc{}) ahs[name] = std::get<AhHandle>(reply.body);
  return reply.error;
}

// ---- posting ---------------------------------------------------------------------------------------

std::errc Application::queue_send(Qp& qp, const SendPost& post) {
  const QpState state = state_of(qp);
  const bool is_below_rts =
      state == QpState::kReset || state == QpState::kInit || state == QpState::kRtr;  // [IBTA C10-96]
  const std::size_t inline_bytes = post.inline_data ? post.inline_data->size() : 0;
  if (is_below_rts || post.sges.size() > qp.capabilities.max_send_sge ||
      inline_bytes > qp.capabilities.max_inline_bytes) {
    return std::errc::invalid_argument;
  }
  RingHeader& header = qp.send_ring.header();
  if (is_full(header)) return std::errc::not_enough_memory;
  RingSendWqe wqe = post.wqe;
  wqe.iova = wqe.wr.rdma.remote_address;
  wqe.dma.length_bytes = post.inline_data ? static_cast<std::uint32_t>(inline_bytes) : length_of(post.sges);
  wqe.dma.resid = wqe.dma.length_bytes;
  wqe.dma.num_sge = post.num_sge.value_or(static_cast<std::uint32_t>(post.sges.size()));
  std::byte* const slot = qp.send_ring.slot(header.producer);
  std::memcpy(slot, &wqe, sizeof wqe);
  if (inline_bytes > 0) std::memcpy(slot + sizeof wqe, post.inline_data->data(), inline_bytes);
  if (!post.sges.empty())
    std::memcpy(slot + sizeof wqe, post.sges.data(), post.sges.size() * sizeof(RingSge));
  advance_producer(header);
  return {};
}

void Application::ring_doorbell(std::uint32_t slot) {
  set_doorbell(*control_, slot);
  host_.pass();
}

namespace {

std::errc queue_recv(sim::RingMemory& ring, std::uint64_t wr_id, const std::vector<RingSge>& sges) {
  RingHeader& header = ring.header();
  if (is_full(header)) return std::errc::not_enough_memory;
  RingRecvWqe wqe{};
  wqe.wr_id = wr_id;
  wqe.dma.length_bytes = wqe.dma.resid = length_of(sges);
  wqe.dma.num_sge = static_cast<std::uint32_t>(sges.size());
  std::byte* const slot = ring.slot(header.producer);
  std::memcpy(slot, &wqe, sizeof wqe);
  if (!sges.empty()) std::memcpy(slot + sizeof wqe, sges.data(), sges.size() * sizeof(RingSge));
  advance_producer(header);
  return {};
}

}  // namespace

std::errc Application::post_recv(Qp& qp, std::uint64_t wr_id, const std::vector<RingSge>& sges) {
  const bool is_refused = state_of(qp) == QpState::kReset ||  // [IBTA C10-97.2.1]
                          qp.srq != nullptr || sges.size() > qp.capabilities.max_recv_sge;
  return is_refused ? std::errc::invalid_argument : queue_recv(qp.recv_ring, wr_id, sges);
}

std::errc Application::post_recv(Srq& srq, std::uint64_t wr_id, const std::vector<RingSge>& sges) {
  return sges.size() > srq.max_sge ? std::errc::invalid_argument : queue_recv(srq.ring, wr_id, sges);
}

// ---- completions, memory ---------------------------------------------------------------------------

void Application::poll(Cq& cq) {
  RingHeader& header = cq.ring.header();
  while (load_acquire(header.producer) != header.consumer) {
    Completed& one = cq.polled.emplace_back();
    one.at = host_.now();
    std::memcpy(&one.cqe, cq.ring.slot(header.consumer), sizeof one.cqe);
    store_release(header.consumer, (header.consumer + 1) & header.index_mask);
    if (const std::optional<std::string> fault = sim::unsound(one.cqe))
      host_.unsound = "the engine wrote an unsound completion: " + *fault;
  }
}

void Application::poll() {
  for (const auto& [name, cq] : cqs) {
    if (cq->is_polled) poll(*cq);
  }
}

void Application::arm(const Cq& cq, CqArm how) {
  if (!emulator::arm_cq(control_->cq_arm[cq.handle.value], how)) return;
  ring_doorbell(emulator::cq_doorbell(cq.handle.value));
}

QpState Application::state_of(const Qp& qp) const {
  return static_cast<QpState>(std::atomic_ref<std::uint8_t>(control_->qp_state[qp.handle.value]).load());
}

std::span<std::byte> Application::bytes(std::uint64_t address, std::size_t count) {
  const bool is_mapped = std::any_of(regions.begin(), regions.end(), [&](const auto& entry) {
    const Region& region = entry.second;
    const std::uint64_t offset = address - region.address;
    return offset <= region.length_bytes && count <= region.length_bytes - offset;
  });
  if (!is_mapped)
    complain("this memory is no region's: " + hex(address) + ", " + std::to_string(count) + " bytes");
  return host_.memory().at(space_, address, count);
}

}  // namespace roci::scripts
