// Fuzz target: what an application may scribble into the memory that it shares with the engine, with traffic:
// work requests byte by byte, indices and shapes in ring headers, the control area.
//
// The input is a row of deeds, each a byte and what it needs. Aborts where memory is touched that must not
// be, an unsound packet goes out, a bystander of another client is disturbed, or its own objects cannot be
// destroyed.
#include <array>
#include <memory>

#include "emulator/ring_shape.h"
#include "tests/fuzz/bench.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"

namespace {

using namespace roci;
using namespace roci::emulator;
using roci::fuzz::Bench;
using roci::fuzz::Input;
using roci::fuzz::InputReader;
using roci::fuzz::require;

constexpr std::size_t kMaxDeeds = 64;
constexpr QpCapabilities kCapabilities{16, 16, 4, 4, 64};
constexpr std::size_t kSendBytes = sizeof(RingSendWqe) + 4 * sizeof(RingSge),
                      kRecvBytes = sizeof(RingRecvWqe) + 4 * sizeof(RingSge);
constexpr std::uint32_t kFirstPsn = 1000, kPeerFirstPsn = 100, kBystandersPeer = 0x333;

enum class Deed : std::uint8_t {
  kSend,
  kReceive,
  kPacket,
  kTime,
  kPoll,
  kReconnect,
  kHeader,
  kControl,
  kScribble,
  kAllDoorbells,
};
constexpr std::size_t kDeeds = 10;

struct Victim {
  QpType type;
  std::unique_ptr<sim::Cq> cq;
  std::unique_ptr<sim::Qp> qp;
};

class World {
 public:
  World() {
    for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
      Victim& victim = victims_[static_cast<std::size_t>(type) - static_cast<std::size_t>(QpType::kRc)];
      victim.type = type;
      victim.cq = client_.create_cq(30);
      victim.qp = client_.create_qp(*victim.cq, *victim.cq, {.capabilities = kCapabilities, .type = type});
      connect(victim);
    }
    bystander_ = other_.create_qp(*cq_, *cq_);
    other_.connect(*bystander_, connection(proto::Qpn{kBystandersPeer}));
  }

  [[nodiscard]] sim::Client& client() { return client_; }
  [[nodiscard]] Victim& victim(std::size_t index) { return victims_[index]; }
  [[nodiscard]] const sim::Mr& region() const { return region_; }
  [[nodiscard]] const sim::Mw& window() const { return window_; }
  [[nodiscard]] AhHandle destination() const { return destination_; }

  void carry_out(InputReader& input) {
    const auto deed = static_cast<Deed>(input.choice(kDeeds));
    Victim& victim = victims_[input.choice(victims_.size())];
    switch (deed) {
      case Deed::kSend:
        post(victim.qp->send_ring(), send_ring_shape(kCapabilities), kSendBytes, input);
        ring_doorbell(victim);
        break;
      case Deed::kReceive:
        post(victim.qp->recv_ring(), recv_ring_shape(kCapabilities), kRecvBytes, input);
        break;
      case Deed::kPacket:
        receive(victim, input);
        break;
      case Deed::kTime:
        bench_.advance(std::chrono::microseconds(100) * input.byte());
        break;
      case Deed::kPoll: {
        RingHeader& header = victim.cq->ring().header();
        header.consumer = header.producer;
        break;
      }
      case Deed::kReconnect:
        require(client_.to_state(*victim.qp, QpState::kReset) == std::errc{}, "a QP can be reset");
        connect(victim);
        break;
      case Deed::kHeader: {
        sim::RingMemory* const rings[] = {&victim.qp->send_ring(), &victim.qp->recv_ring(),
                                          &victim.cq->ring()};
        const std::span<std::byte> header = rings[input.choice(3)]->bytes().first(sizeof(RingHeader));
        // The words that mean something lie at 0, 4, 128 and 256.
        constexpr std::size_t kWords[] = {0, 1, 32, 64};
        store(header, kWords[input.choice(4)], input.number<std::uint32_t>());
        ring_doorbell(victim);
        break;
      }
      case Deed::kControl: {
        const std::span<std::byte> area = std::as_writable_bytes(std::span{&client_.control(), 1});
        const std::size_t word = input.number<std::uint16_t>();
        store(area, word % (area.size() / 4), input.number<std::uint32_t>());
        break;
      }
      case Deed::kScribble: {
        sim::RingMemory* const rings[] = {&victim.qp->send_ring(), &victim.qp->recv_ring(),
                                          &victim.cq->ring()};
        const std::span<std::byte> ring = rings[input.choice(3)]->bytes();
        const std::size_t at = input.number<std::uint16_t>() % ring.size();
        input.bytes(ring.subspan(at, std::min<std::size_t>(ring.size() - at, input.byte())));
        ring_doorbell(victim);
        break;
      }
      case Deed::kAllDoorbells: {
        ControlArea& control = client_.control();
        std::fill(std::begin(control.doorbells), std::end(control.doorbells), ~std::uint64_t{0});
        std::fill(std::begin(control.doorbell_summary), std::end(control.doorbell_summary),
                  ~std::uint64_t{0});
        break;
      }
    }
    bench_.host().pass();
    bench_.check();
    bench_.host().packets.clear();
    bench_.host().events.clear();
  }

  // The bystander sends, and is answered.
  void expect_undisturbed() {
    require(bystander_->post_send({.wr_id = 7, .sges = {other_region_.sge(0, 8)}}), "the bystander posts");
    bool was_sent = false;
    for (int pass = 0; pass < 1000 && !was_sent; ++pass) {
      bench_.host().pass();
      for (const scripts::SentPacket& one : bench_.host().packets)
        was_sent = was_sent || (one.is_roce && one.packet.bth.destination == proto::Qpn{kBystandersPeer});
      bench_.host().packets.clear();
    }
    require(was_sent, "the bystander's packet is sent");
    bench_.receive({.opcode = proto::Opcode::kRcAcknowledge,
                    .destination = bystander_->qpn(),
                    .psn = proto::Psn{kFirstPsn}});
    const auto cqe = cq_->poll();
    require(cqe && cqe->status == sim::kWcSuccess && cqe->wr_id == 7, "the bystander's request completes");
  }

  // Nothing of the client is touched once it has gone.
  void expect_gone() {
    for (Victim& victim : victims_) {
      require(client_.destroy(*victim.qp).error == std::errc{}, "a QP can be destroyed");
      victim.qp.reset();
      require(client_.destroy(*victim.cq).error == std::errc{}, "a CQ can be destroyed");
      victim.cq.reset();
    }
    client_.close();
    bench_.memory().give_up(client_.space());
    bench_.advance(std::chrono::milliseconds(10));
    other_.close();
    bench_.check();
  }

 private:
  [[nodiscard]] sim::ConnectOptions connection(proto::Qpn peer) {
    return {.dgid = bench_.host().peer_gid(),
            .dest_qpn = peer,
            .sq_psn = proto::Psn{kFirstPsn},
            .rq_psn = proto::Psn{kPeerFirstPsn},
            .mtu = proto::PathMtu::k256,
            .timeout = 8,  // 1 ms
            .retry_cnt = 1,
            .rnr_retry = 1};
  }

  void connect(Victim& victim) {
    if (victim.type != QpType::kUd) {
      client_.connect(*victim.qp, connection(proto::Qpn{0x400}));
      return;
    }
    for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
      require(client_.to_datagram_state(*victim.qp, state, fuzz::kQkey, proto::Psn{kFirstPsn}) == std::errc{},
              "a datagram QP goes up");
    }
  }

  static void store(std::span<std::byte> area, std::size_t word, std::uint32_t value) {
    std::memcpy(area.data() + 4 * word, &value, sizeof value);
  }

  // As the ring was made, whatever its header says by now.
  static void post(sim::RingMemory& ring, RingShape shape, std::size_t bytes, InputReader& input) {
    RingHeader& header = ring.header();
    const std::uint32_t mask = shape.slots - 1, slot = header.producer & mask;
    input.bytes(
        {ring.bytes().data() + kRingDataOffset + (std::size_t{slot} << shape.log2_element_bytes), bytes});
    header.producer = (slot + 1) & mask;
  }

  void ring_doorbell(const Victim& victim) { set_doorbell(client_.control(), victim.qp->handle().value); }

  void receive(const Victim& victim, InputReader& input) {
    fuzz::PeerPacket packet;
    // Of the QP's class, or of any.
    constexpr unsigned kClasses[] = {0x00, 0x20, 0x60};
    const unsigned in_class = kClasses[static_cast<std::size_t>(victim.type) - 2] | (input.byte() & 0x1FU);
    const unsigned opcode = input.choice(8) == 7 ? input.byte() : in_class;
    packet.opcode = static_cast<proto::Opcode>(opcode);
    packet.destination = victim.qp->qpn();
    const bool is_answer = proto::info(packet.opcode).role == proto::Role::kResponse;
    packet.psn =
        proto::Psn{is_answer ? kFirstPsn : kPeerFirstPsn}.plus(static_cast<std::int8_t>(input.byte()));
    packet.address = region_.iova + input.number<std::uint16_t>();
    packet.rkey = input.choice(8) == 7 ? window_.next_key() : region_.rkey;
    packet.length_bytes = input.number<std::uint16_t>();
    packet.syndrome = input.byte();
    packet.payload_bytes = std::size_t{input.byte()} * 2;
    bench_.receive(packet);
  }

  Bench bench_;
  sim::Client client_{bench_.memory(), bench_.client_transact(), {0}, "scribbler"};
  sim::Client other_{bench_.memory(), bench_.client_transact(), {0}, "bystander"};
  sim::Mr region_ =
      client_.reg_mr(client_.allocate(0x10000), 0x10000, sim::Client::kAllRights | kAccessMwBind);
  sim::Mw window_ = client_.alloc_mw(MwType::kType2);
  AhHandle destination_ =
      client_.create_ah({.dgid = bench_.host().peer_gid(), .sgid_index = 1, .is_global = true});
  sim::Mr other_region_ = other_.new_mr(4096);
  std::unique_ptr<sim::Cq> cq_ = other_.create_cq(30);
  std::array<Victim, 3> victims_;
  std::unique_ptr<sim::Qp> bystander_;
};

// ---- seeds -----------------------------------------------------------------------------------------

void add(Input& input, Deed deed, std::size_t victim, std::span<const std::byte> more) {
  input.push_back(static_cast<std::uint8_t>(deed));
  input.push_back(static_cast<std::uint8_t>(victim));
  for (const std::byte one : more)
    input.push_back(std::to_integer<std::uint8_t>(one));
}

template <std::size_t N>
void add(Input& input, Deed deed, std::size_t victim, const std::array<std::uint8_t, N>& more) {
  add(input, deed, victim, std::as_bytes(std::span(more)));
}

// Each work request on each QP as the provider writes it, with a receive, an answer and time.
std::vector<Input> requests() {
  World world;
  std::vector<Input> inputs;
  const sim::Sge sge = world.region().sge(0, 600), word = world.region().sge(0, 8);
  const sim::Binding binding{
      world.window().rkey, world.window().next_key(), world.region().lkey, world.region().iova, 4096,
      kAccessRemoteWrite};
  for (std::size_t victim = 0; victim < 3; ++victim) {
    sim::Qp& qp = *world.victim(victim).qp;
    for (const std::uint32_t opcode :
         {sim::kWrWrite, sim::kWrWriteImm, sim::kWrSend, sim::kWrSendImm, sim::kWrRead, sim::kWrCompareSwap,
          sim::kWrFetchAdd, sim::kWrLocalInvalidate, sim::kWrBindWindow, sim::kWrSendInvalidate}) {
      for (const bool is_inline : {false, true}) {
        const bool is_atomic = opcode == sim::kWrCompareSwap || opcode == sim::kWrFetchAdd;
        sim::SendWr wr{.wr_id = opcode, .opcode = opcode, .sges = {is_atomic || is_inline ? word : sge}};
        wr.flags = sim::kSignaled | (is_inline ? sim::kInline : 0U);
        wr.remote_address = 0x7000;
        wr.rkey = proto::Rkey{0x99};
        wr.ah = world.destination();
        wr.remote_qpn = proto::Qpn{0x400};
        wr.remote_qkey = fuzz::kQkey;
        wr.invalidate = world.window().rkey;
        wr.binding = binding;
        const std::byte* const slot = qp.send_ring().slot(qp.send_ring().header().producer);
        require(qp.queue_send(wr), "a seed's request fits");
        Input& input = inputs.emplace_back();
        add(input, Deed::kSend, victim, {slot, kSendBytes});
        const std::byte* const recv_slot = qp.recv_ring().slot(0);
        qp.recv_ring().header().producer = 0;
        require(qp.post_recv({.wr_id = 9, .sges = {sge}}), "a seed's receive fits");
        add(input, Deed::kReceive, victim, {recv_slot, kRecvBytes});
        add(input, Deed::kPacket, victim, std::array<std::uint8_t, 8>{4, 0, 0, 0, 0, 0, 0, 0});  // SEND only
        add(input, Deed::kPacket, victim, std::array<std::uint8_t, 8>{0x11, 0, 0, 0, 0, 0, 0, 0});  // ACK
        add(input, Deed::kTime, victim, std::array<std::uint8_t, 1>{20});
        qp.send_ring().header().producer = 0;
      }
    }
  }
  return inputs;
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {false, requests};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  World world;
  InputReader input({data, size});
  for (std::size_t deeds = 0; deeds < kMaxDeeds && !input.is_empty(); ++deeds)
    world.carry_out(input);
  world.expect_undisturbed();
  world.expect_gone();
  return 0;
}
