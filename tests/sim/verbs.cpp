#include "tests/sim/verbs.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "emulator/ring_shape.h"

namespace roci::sim {

using namespace emulator;

namespace {

constexpr std::size_t kSendWqeBytes = sizeof(RingSendWqe), kRecvWqeBytes = sizeof(RingRecvWqe);

[[noreturn]] void fail(const char* what, std::errc error) {
  std::fprintf(stderr, "%s: errno %d\n", what, static_cast<int>(error));
  std::abort();
}
void must(const char* what, const CommandReply& reply) {
  if (reply.error != std::errc{}) fail(what, reply.error);
}

// As an application does: a lossy link may eat every question of one command.
std::errc retry_timeouts(const std::function<std::errc()>& command) {
  std::errc error{};
  for (int tries = 0; tries < 5; ++tries) {
    error = command();
    if (error != std::errc::timed_out) break;
  }
  return error;
}

std::uint32_t load_acquire(std::uint32_t& index) {
  return std::atomic_ref<std::uint32_t>(index).load(std::memory_order_acquire);
}
void store_release(std::uint32_t& index, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(index).store(value, std::memory_order_release);
}

std::uint32_t queued(RingHeader& header) {
  return (load_acquire(header.producer) - load_acquire(header.consumer)) & header.index_mask;
}
bool is_full(RingHeader& header) { return queued(header) == header.index_mask; }

std::uint32_t mtu_code(proto::PathMtu mtu) {
  return static_cast<std::uint32_t>(std::countr_zero(proto::bytes_of(mtu))) - 7;
}

// The WQE's sges, or the data of an inline request.
void store_sges(std::byte* out, const std::vector<Sge>& sges) {
  for (const Sge& sge : sges) {
    const RingSge raw{sge.address, sge.length_bytes, sge.lkey.value()};
    std::memcpy(out, &raw, sizeof raw);
    out += sizeof raw;
  }
}

}  // namespace

std::uint64_t length_of(const std::vector<Sge>& sges) {
  std::uint64_t sum = 0;
  for (const Sge& sge : sges)
    sum += sge.length_bytes;
  return sum;
}

// ---- rings -----------------------------------------------------------------------------------------

RingMemory::RingMemory(std::size_t bytes) : size_((bytes + 4095) / 4096 * 4096) {
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, size_)));
  std::memset(data_.get(), 0, size_);
  size_ = bytes;
}

std::byte* RingMemory::slot(std::uint32_t index) {
  return data_.get() + kRingDataOffset + (std::size_t{index} << header().log2_element_bytes);
}

std::optional<RingCqe> Cq::poll() {
  RingHeader& header = ring_.header();
  const std::uint32_t consumer = header.consumer;
  if (load_acquire(header.producer) == consumer) return std::nullopt;
  RingCqe cqe;
  std::memcpy(&cqe, ring_.slot(consumer), sizeof cqe);
  store_release(header.consumer, (consumer + 1) & header.index_mask);
  return cqe;
}

std::uint32_t Cq::pending() { return queued(ring_.header()); }

// ---- posting ---------------------------------------------------------------------------------------

bool Qp::queue_send(const SendWr& wr) {
  RingHeader& header = send_ring_.header();
  const std::uint64_t length = length_of(wr.sges);
  const bool is_inline = (wr.flags & kInline) != 0;
  if (wr.sges.size() > capabilities_.max_send_sge) return false;
  if (is_inline && length > capabilities_.max_inline_bytes) return false;
  if (send_full()) return false;

  RingSendWqe wqe{};
  wqe.wr_id = wr.wr_id;
  wqe.opcode = wr.opcode;
  wqe.send_flags = wr.flags;
  wqe.immediate_or_invalidate = __builtin_bswap32(wr.immediate);
  if (wr.opcode == kWrSendInvalidate || wr.opcode == kWrLocalInvalidate)
    wqe.immediate_or_invalidate = wr.invalidate.value();
  const bool is_atomic = wr.opcode == kWrCompareSwap || wr.opcode == kWrFetchAdd;
  if (type_ == QpType::kUd || type_ == QpType::kGsi) {
    wqe.wr.ud = {wr.remote_qpn.value(), wr.remote_qkey.value(), 0, 0, wr.ah.value + 1};
  } else if (wr.opcode == kWrFlush) {
    wqe.wr.flush = {wr.remote_address, static_cast<std::uint32_t>(length), wr.rkey.value(), wr.placement,
                    wr.selectivity};
  } else if (wr.opcode == kWrBindWindow) {
    const Binding& to = wr.binding;
    wqe.wr.mw = {to.address,     to.length_bytes,    to.mr_lkey.value(),
                 to.key.value(), to.new_key.value(), to.access};
  } else if (is_atomic) {
    wqe.wr.atomic = {wr.remote_address, wr.compare_add, wr.swap, wr.rkey.value(), 0};
  } else {
    wqe.wr.rdma = {wr.remote_address, wr.rkey.value(), 0};
  }
  wqe.iova = wr.remote_address;
  wqe.ssn = ssn_++;
  wqe.dma.length_bytes = wqe.dma.resid = static_cast<std::uint32_t>(length);
  wqe.dma.num_sge = static_cast<std::uint32_t>(wr.sges.size());

  std::byte* slot = send_ring_.slot(header.producer);
  std::memcpy(slot, &wqe, sizeof wqe);
  std::byte* behind = slot + kSendWqeBytes;
  if (is_inline) {
    for (const Sge& sge : wr.sges) {
      if (sge.length_bytes == 0) continue;
      std::memcpy(behind, client_->bytes(sge.address, sge.length_bytes).data(), sge.length_bytes);
      behind += sge.length_bytes;
    }
  } else {
    store_sges(behind, wr.sges);
  }
  if (wr.opcode == kWrAtomicWrite) std::memcpy(behind, &wr.atomic_write, sizeof wr.atomic_write);
  store_release(header.producer, (header.producer + 1) & header.index_mask);
  return true;
}

bool Qp::ring_doorbell() {
  const QpState now = state();
  if (now == QpState::kReset || now == QpState::kInit || now == QpState::kRtr || now == QpState::kDestroyed)
    return false;
  set_doorbell(client_->control(), handle_.value);
  return true;
}

void Client::arm(Cq& cq, CqArm how) {
  if (arm_cq(control_->cq_arm[cq.handle().value], how))
    set_doorbell(*control_, cq_doorbell(cq.handle().value));
}

namespace {

bool post(RingMemory& ring, std::uint32_t max_sge, const RecvWr& wr) {
  RingHeader& header = ring.header();
  if (wr.sges.size() > max_sge || is_full(header)) return false;
  RingRecvWqe wqe{};
  wqe.wr_id = wr.wr_id;
  wqe.dma.length_bytes = wqe.dma.resid = static_cast<std::uint32_t>(length_of(wr.sges));
  wqe.dma.num_sge = static_cast<std::uint32_t>(wr.sges.size());
  std::byte* slot = ring.slot(header.producer);
  std::memcpy(slot, &wqe, sizeof wqe);
  store_sges(slot + kRecvWqeBytes, wr.sges);
  store_release(header.producer, (header.producer + 1) & header.index_mask);
  return true;
}

}  // namespace

bool Qp::post_recv(const RecvWr& wr) {
  if (state() == QpState::kReset || state() == QpState::kDestroyed) return false;
  return post(recv_ring_, capabilities_.max_recv_sge, wr);
}

bool Srq::post_recv(const RecvWr& wr) { return post(ring_, max_sge_, wr); }
std::uint32_t Srq::posted() { return queued(ring_.header()); }

QpState Qp::state() const {
  return static_cast<QpState>(
      std::atomic_ref<std::uint8_t>(client_->control().qp_state[handle_.value]).load());
}
std::uint32_t Qp::send_queued() { return queued(send_ring_.header()); }
std::uint32_t Qp::recv_queued() { return queued(recv_ring_.header()); }
bool Qp::send_full() { return is_full(send_ring_.header()); }
bool Qp::recv_full() { return is_full(recv_ring_.header()); }

// ---- commands --------------------------------------------------------------------------------------

Client::Client(PlainMemory& memory, Transact transact, NicId nic, std::string name)
    : memory_(memory),
      transact_(std::move(transact)),
      space_(memory.add_space()),
      control_memory_(kControlAreaBytes),
      control_(reinterpret_cast<ControlArea*>(control_memory_.bytes().data())) {
  const CommandReply opened =
      transact_(Command{{}, OpenContext{nic, control_memory_.bytes(), std::move(name)}});
  must("open", opened);
  context_ = std::get<ContextId>(opened.body);
  const CommandReply pd = this->transact(AllocPd{});
  must("alloc_pd", pd);
  pd_ = std::get<PdHandle>(pd.body);
}

std::uint64_t Client::allocate(std::size_t bytes) {
  constexpr std::uint64_t kGap = 0x10000;
  const std::uint64_t address = next_address_;
  next_address_ += (bytes + kGap - 1) / kGap * kGap + kGap;
  memory_.map(space_, address, bytes);
  return address;
}

Mr Client::reg_mr(std::uint64_t address, std::uint64_t length_bytes, std::uint32_t access,
                  std::optional<std::uint64_t> iova, std::optional<PdHandle> pd) {
  Mr mr;
  mr.address = address;
  mr.iova = iova.value_or(address);
  mr.length_bytes = length_bytes;
  const CommandReply reply =
      transact(RegMr{pd.value_or(pd_), space_, address, length_bytes, mr.iova, access});
  must("reg_mr", reply);
  const RegMrReply& made = std::get<RegMrReply>(reply.body);
  mr.handle = made.mr;
  mr.lkey = made.lkey;
  mr.rkey = made.rkey;
  return mr;
}

void Client::dereg_mr(const Mr& mr) { must("dereg_mr", transact(DeregMr{mr.handle})); }

Mw Client::alloc_mw(MwType type, std::optional<PdHandle> pd) {
  const CommandReply reply = transact(AllocMw{pd.value_or(pd_), static_cast<std::uint32_t>(type)});
  must("alloc_mw", reply);
  const AllocMwReply& made = std::get<AllocMwReply>(reply.body);
  return {made.mw, made.rkey};
}

std::unique_ptr<Cq> Client::create_cq(std::uint32_t entries, std::uint64_t user_handle,
                                      std::uint64_t channel) {
  auto cq = std::make_unique<Cq>();
  const RingShape shape = cq_ring_shape(entries);
  cq->ring_ = RingMemory(shape.bytes());
  const CommandReply reply = transact(CreateCq{cq->ring_.bytes(), shape.slots, user_handle, channel});
  must("create_cq", reply);
  cq->handle_ = std::get<CqHandle>(reply.body);
  return cq;
}

RingMemory Client::resize(Cq& cq, std::uint32_t entries) {
  const RingShape shape = cq_ring_shape(entries);
  RingMemory ring(shape.bytes());
  must("resize_cq", transact(ResizeCq{cq.handle(), ring.bytes(), shape.slots}));
  std::swap(cq.ring_, ring);
  return ring;
}

std::unique_ptr<Qp> Client::create_qp(Cq& send_cq, Cq& recv_cq, const QpOptions& options) {
  std::errc error{};
  std::unique_ptr<Qp> qp = try_create_qp(send_cq, recv_cq, options, error);
  if (qp == nullptr) fail("create_qp", error);
  return qp;
}

std::unique_ptr<Qp> Client::try_create_qp(Cq& send_cq, Cq& recv_cq, const QpOptions& options,
                                          std::errc& error) {
  auto qp = std::make_unique<Qp>();
  const QpCapabilities& caps = options.capabilities;
  qp->client_ = this;
  qp->capabilities_ = caps;
  qp->type_ = options.type;
  qp->send_ring_ = RingMemory(send_ring_shape(caps).bytes());
  qp->recv_ring_ = RingMemory(recv_ring_shape(caps).bytes());
  CreateQp create;
  create.pd = options.pd.value_or(pd_);
  create.send_cq = send_cq.handle();
  create.recv_cq = recv_cq.handle();
  create.type = static_cast<std::uint32_t>(options.type);
  create.sq_signal_all = options.signal_all;
  create.capabilities = caps;
  create.srq = options.srq;
  create.send_ring = qp->send_ring_.bytes();
  create.recv_ring = qp->recv_ring_.bytes();
  const CommandReply reply = transact(create);
  error = reply.error;
  if (error != std::errc{}) return nullptr;
  const CreateQpReply& made = std::get<CreateQpReply>(reply.body);
  qp->handle_ = made.qp;
  qp->qpn_ = made.qpn;
  return qp;
}

std::unique_ptr<Srq> Client::create_srq(std::uint32_t max_wr, std::uint32_t max_sge,
                                        std::optional<PdHandle> pd) {
  auto srq = std::make_unique<Srq>();
  srq->max_sge_ = max_sge;
  srq->ring_ = RingMemory(srq_ring_shape(max_wr, max_sge).bytes());
  const CommandReply reply =
      transact(CreateSrq{pd.value_or(pd_), max_wr, max_sge, 0, srq->ring_.bytes(), 0x5});
  must("create_srq", reply);
  srq->handle_ = std::get<SrqHandle>(reply.body);
  return srq;
}

std::errc Srq::resize(Client& client, std::uint32_t max_wr, RingMemory* old) {
  RingMemory other(srq_ring_shape(max_wr, max_sge_).bytes());
  const CommandReply reply = client.transact(ModifySrq{handle_, std::nullopt, max_wr, other.bytes()});
  if (reply.error != std::errc{}) return reply.error;
  std::swap(ring_, other);
  if (old != nullptr) *old = std::move(other);
  return reply.error;
}

std::errc Srq::set_limit(Client& client, std::uint32_t limit) {
  return client.transact(ModifySrq{handle_, limit, 0, {}}).error;
}

std::errc Client::to_init(Qp& qp, std::uint32_t access) {
  ModifyQp modify{qp.handle(), kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags, {}};
  modify.attributes.state = QpState::kInit;
  modify.attributes.access = access;
  return transact(modify).error;
}

std::errc Client::to_rtr(Qp& qp, const ConnectOptions& options) {
  ModifyQp modify{qp.handle(), kQpState | kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn, {}};
  if (qp.type_ == QpType::kRc) modify.mask |= kQpMaxDestRdAtomic | kQpMinRnrTimer;
  QpAttributes& attributes = modify.attributes;
  attributes.state = QpState::kRtr;
  attributes.av.dgid = options.dgid;
  attributes.av.is_global = true;
  attributes.av.sgid_index = options.sgid_index;
  attributes.av.traffic_class = options.traffic_class;
  attributes.av.hop_limit = options.hop_limit;
  attributes.av.flow_label = options.flow_label;
  attributes.path_mtu_code = mtu_code(options.mtu);
  attributes.dest_qpn = options.dest_qpn;
  attributes.rq_psn = options.rq_psn;
  attributes.max_dest_rd_atomic = options.max_dest_rd_atomic;
  attributes.min_rnr_timer = options.min_rnr_timer;
  return transact(modify).error;
}

std::errc Client::to_rts(Qp& qp, const ConnectOptions& options) {
  ModifyQp modify{qp.handle(), kQpState | kQpSqPsn, {}};
  if (qp.type_ == QpType::kRc) modify.mask |= kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxQpRdAtomic;
  QpAttributes& attributes = modify.attributes;
  attributes.state = QpState::kRts;
  attributes.timeout = options.timeout;
  attributes.retry_cnt = options.retry_cnt;
  attributes.rnr_retry = options.rnr_retry;
  attributes.sq_psn = options.sq_psn;
  attributes.max_rd_atomic = options.max_rd_atomic;
  return transact(modify).error;
}

std::errc Client::to_state(Qp& qp, QpState state) {
  ModifyQp modify{qp.handle(), kQpState, {}};
  modify.attributes.state = state;
  return transact(modify).error;
}

std::errc Client::to_datagram_state(Qp& qp, QpState state, proto::Qkey qkey, proto::Psn sq_psn) {
  ModifyQp modify{qp.handle(), kQpState, {}};
  modify.attributes.state = state;
  modify.attributes.qkey = qkey;
  modify.attributes.sq_psn = sq_psn;
  if (state == QpState::kInit) modify.mask |= kQpPkeyIndex | kQpQkey;
  if (state == QpState::kInit && qp.type_ == QpType::kUd) modify.mask |= kQpPort;
  if (state == QpState::kRts) modify.mask |= kQpSqPsn;
  return transact(modify).error;
}

AhHandle Client::create_ah(const AddressVector& av) {
  AhHandle ah;
  const std::errc error = retry_timeouts([&] {
    const CommandReply reply = transact(CreateAh{pd_, av});
    if (reply.error == std::errc{}) ah = std::get<AhHandle>(reply.body);
    return reply.error;
  });
  if (error != std::errc{}) fail("create_ah", error);
  return ah;
}

void Client::connect(Qp& qp, const ConnectOptions& options) {
  if (const std::errc error = to_init(qp, options.access); error != std::errc{}) fail("to INIT", error);
  const std::errc to_rtr_error = retry_timeouts([&] { return to_rtr(qp, options); });
  if (to_rtr_error != std::errc{}) fail("to RTR", to_rtr_error);
  if (const std::errc error = to_rts(qp, options); error != std::errc{}) fail("to RTS", error);
}

QpAttributes Client::query(Qp& qp) {
  const CommandReply reply = transact(QueryQp{qp.handle()});
  must("query_qp", reply);
  return std::get<QueryQpReply>(reply.body).attributes;
}

void Client::close() { must("close", transact(CloseContext{})); }

}  // namespace roci::sim
