#include "tests/sim/churn_program.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

namespace roci::sim {

using namespace emulator;
using std::chrono::microseconds;
using std::chrono::seconds;

namespace {

constexpr std::uint32_t kRegionBytes = 8192;
constexpr std::uint32_t kQueue = 16;
constexpr std::size_t kMaxParties = 6;               // a host
constexpr std::size_t kMaxQps = 4, kMaxRegions = 4;  // a party
constexpr std::uint32_t kSteadyBytes = 6000;
constexpr std::uint64_t kSteady = std::uint64_t{1} << 60;  // marks the wr_ids of the steady connection

struct Party {
  unsigned host = 0, shard = 0;
  Client* client = nullptr;
  std::unique_ptr<Cq> cq;
  std::vector<std::unique_ptr<Qp>> qps;
  std::vector<Mr> regions;
};

class ChurnProgram {
 public:
  explicit ChurnProgram(const ProgramOptions& options) : options_(options), random_(options.seed * 2 + 1) {}

  ProgramResult run() {
    WorldConfig config;
    config.seed = random_.next();
    config.shards = options_.shards;
    choose_faults(config, options_, random_.fork());
    config.static_neighbours = random_.chance(500'000);
    result_.setting = std::to_string(options_.shards) + " shards, " + describe_faults(config);
    world_ = std::make_unique<World>(config);
    start_steady();
    for (unsigned host = 0; host < 2; ++host) {
      for (int i = 0; i < 2; ++i) {
        Party& party = arrive(host);
        for (int n = 0; n < 2; ++n)
          party.regions.push_back(party.client->new_mr(kRegionBytes));
      }
    }
    for (unsigned i = 0; i < options_.max_connections; ++i)
      make_connection();
    for (unsigned i = 0; i < 2 * options_.operations && result_.ok(); ++i) {
      act();
      world_->run_for(microseconds(random_.between32(1, 300)));
      poll_all();
    }
    end_all();
    collect(*world_, config, result_);
    return result_;
  }

 private:
  void fail(const std::string& what) {
    if (result_.failure.empty()) result_.failure = what;
  }
  void must(const char* what, std::errc error) {
    if (error != std::errc{})
      fail(std::string(what) + " is refused with errno " + std::to_string(static_cast<int>(error)));
  }

  // ---- the connection that takes no part

  void start_steady() {
    for (unsigned host = 0; host < 2; ++host) {
      steady_[host].host = host;
      steady_[host].shard = static_cast<unsigned>(random_.index(options_.shards));
      steady_[host].client = &world_->add_client(host, steady_[host].shard);
      Client& client = *steady_[host].client;
      steady_[host].cq = client.create_cq(kQueue);
      steady_[host].qps.push_back(client.create_qp(*steady_[host].cq, *steady_[host].cq));
      steady_[host].regions.push_back(client.new_mr(kSteadyBytes));
    }
    connect(steady_[0], *steady_[0].qps[0], steady_[1], *steady_[1].qps[0], 7);
    post_steady();
  }

  void post_steady() {
    const Mr& source = steady_[0].regions[0];
    for (std::byte& one : steady_[0].client->bytes(source, 0, kSteadyBytes))
      one = static_cast<std::byte>(random_.next());
    SendWr wr{.wr_id = kSteady + ++steady_rounds_, .opcode = kWrWrite, .sges = {source.sge(0, kSteadyBytes)}};
    wr.remote_address = steady_[1].regions[0].iova;
    wr.rkey = steady_[1].regions[0].rkey;
    outstanding_.insert(wr.wr_id);
    if (!steady_[0].qps[0]->post_send(wr)) fail("the steady connection cannot post");
  }

  void steady_completed(const RingCqe& cqe) {
    if (cqe.status != kWcSuccess)
      return fail("the steady connection fails with status " + std::to_string(cqe.status));
    const auto sent = steady_[0].client->bytes(steady_[0].regions[0], 0, kSteadyBytes);
    const auto got = steady_[1].client->bytes(steady_[1].regions[0], 0, kSteadyBytes);
    if (!std::equal(sent.begin(), sent.end(), got.begin()))
      return fail("the steady connection moved wrong bytes");
    result_.bytes += kSteadyBytes;
    post_steady();
  }

  // ---- comings and goings

  void connect(Party& left, Qp& a, Party& right, Qp& b, std::uint8_t retries) {
    ConnectOptions to_b, to_a;
    to_b.dgid = World::gid(right.host);
    to_a.dgid = World::gid(left.host);
    to_b.dest_qpn = b.qpn();
    to_a.dest_qpn = a.qpn();
    to_b.sq_psn = to_a.rq_psn = proto::Psn{random_.between32(0, 0xFFFFFF)};
    to_a.sq_psn = to_b.rq_psn = proto::Psn{random_.between32(0, 0xFFFFFF)};
    to_b.mtu = to_a.mtu = proto::PathMtu{static_cast<std::uint16_t>(256U << random_.index(5))};
    to_b.retry_cnt = to_a.retry_cnt = retries;
    to_b.rnr_retry = to_a.rnr_retry = retries;
    // Short, so that what is dead ends soon.
    to_b.timeout = to_a.timeout = retries == 7 ? 13 : 9;
    connect_one(left, a, to_b);
    connect_one(right, b, to_a);
  }

  void connect_one(Party& party, Qp& qp, const ConnectOptions& options) {
    std::errc error = party.client->to_init(qp, options.access);
    if (error == std::errc{}) error = party.client->to_rtr(qp, options);
    // A lossy link may eat every question for the neighbour.
    for (int tries = 0; tries < 5 && error == std::errc::timed_out; ++tries)
      error = party.client->to_rtr(qp, options);
    if (error == std::errc{}) error = party.client->to_rts(qp, options);
    if (error != std::errc{} && !is_overrun(party)) must("connecting", error);
  }

  bool is_overrun(const Party& party) {
    const CommandReply reply = world_->command(party.host, party.shard, Command{{}, Inspect{}});
    const auto& cqs = std::get<std::unique_ptr<Snapshot>>(reply.body)->cqs;
    return std::any_of(cqs.begin(), cqs.end(), [&](const CqSnapshot& one) {
      return one.context == party.client->context() && one.overrun;
    });
  }

  Party& arrive(unsigned host) {
    auto party = std::make_unique<Party>();
    party->host = host;
    party->shard = static_cast<unsigned>(random_.index(options_.shards));
    party->client = &world_->add_client(host, party->shard);
    party->cq = party->client->create_cq(random_.chance(100'000) ? 4 : 500);  // some overrun
    parties_.push_back(std::move(party));
    return *parties_.back();
  }

  void leave(std::size_t index) {
    Party& party = *parties_[index];
    world_->remove_client(*party.client);
    parties_.erase(parties_.begin() + static_cast<std::ptrdiff_t>(index));  // frees its rings
  }

  void destroy_qp(Party& party, std::size_t index) {
    must("destroy_qp", party.client->destroy(*party.qps[index]).error);
    party.qps.erase(party.qps.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void dereg(Party& party, std::size_t index) {
    const Mr mr = party.regions[index];
    party.client->dereg_mr(mr);
    party.client->memory().give_up(party.client->space(), mr.address, mr.length_bytes);
    gone_.push_back(mr);
    party.regions.erase(party.regions.begin() + static_cast<std::ptrdiff_t>(index));
  }

  Party* any_party() { return parties_.empty() ? nullptr : parties_[random_.index(parties_.size())].get(); }
  Qp* any_qp(Party& party) {
    return party.qps.empty() ? nullptr : party.qps[random_.index(party.qps.size())].get();
  }

  // A region of somebody, alive or dead, as a target.
  Mr any_region() {
    if (random_.chance(200'000) && !gone_.empty()) return gone_[random_.index(gone_.size())];
    Party* party = any_party();
    return party == nullptr || party->regions.empty() ? Mr{}
                                                      : party->regions[random_.index(party->regions.size())];
  }

  // Nothing new is connected to an overrun CQ.
  bool has_overrun(Party& party) {
    const CommandReply reply = party.client->transact(Inspect{});
    const auto& cqs = std::get<std::unique_ptr<Snapshot>>(reply.body)->cqs;
    return std::any_of(cqs.begin(), cqs.end(), [&](const CqSnapshot& one) {
      return one.context == party.client->context() && one.overrun;
    });
  }

  void make_connection() {
    Party* left = any_party();
    Party* right = any_party();
    if (left == nullptr || left->qps.size() >= kMaxQps || right->qps.size() >= kMaxQps) return;
    if (has_overrun(*left) || has_overrun(*right)) return;
    QpOptions options;
    options.capabilities = {kQueue, kQueue, 2, 2, 32};
    for (Party* party : {left, right}) {
      std::errc error{};
      std::unique_ptr<Qp> qp = party->client->try_create_qp(*party->cq, *party->cq, options, error);
      if (qp == nullptr && !is_overrun(*party)) must("create_qp", error);
      if (qp == nullptr) return;  // the left one stays alone
      party->qps.push_back(std::move(qp));
    }
    // Of one party with itself, the last two.
    Qp& a = left == right ? *left->qps[left->qps.size() - 2] : *left->qps.back();
    connect(*left, a, *right, *right->qps.back(), static_cast<std::uint8_t>(random_.between32(0, 6)));
  }

  void act() {
    switch (random_.index(30)) {
      case 0:
        if (parties_.size() < 2 * kMaxParties) arrive(static_cast<unsigned>(random_.index(2)));
        break;
      case 1:
        if (parties_.size() > 2 && random_.chance(400'000)) leave(random_.index(parties_.size()));
        break;
      case 2:
      case 3:
        make_connection();
        break;
      case 4:
        if (Party* party = any_party(); party != nullptr && !party->qps.empty())
          destroy_qp(*party, random_.index(party->qps.size()));
        break;
      case 5:
        if (Party* party = any_party(); party != nullptr && party->regions.size() < kMaxRegions) {
          party->regions.push_back(party->client->new_mr(kRegionBytes));
        }
        break;
      case 6:
        if (Party* party = any_party(); party != nullptr && !party->regions.empty())
          dereg(*party, random_.index(party->regions.size()));
        break;
      case 7:
        if (Party* party = any_party(); party != nullptr) {
          if (Qp* qp = any_qp(*party)) {
            constexpr QpState kTargets[] = {QpState::kErr, QpState::kReset, QpState::kSqd, QpState::kRts};
            (void)party->client->to_state(*qp, kTargets[random_.index(4)]);
          }
        }
        break;
      default:
        post();
        break;
    }
  }

  void post() {
    Party* party = any_party();
    if (party == nullptr || party->regions.empty()) return;
    Qp* qp = any_qp(*party);
    if (qp == nullptr) return;
    const Mr& local = party->regions[random_.index(party->regions.size())];
    for (std::size_t n = random_.index(6); n != 0; --n) {
      const std::uint64_t id = next_id_++;
      if (random_.chance(400'000)) {
        if (qp->post_recv({id, {local.sge(0, random_.between32(0, kRegionBytes))}})) outstanding_.insert(id);
        continue;
      }
      const Mr target = any_region();
      SendWr wr{.wr_id = id, .opcode = static_cast<std::uint32_t>(random_.index(7))};
      wr.flags = static_cast<std::uint32_t>(random_.index(8));
      const bool is_atomic = wr.opcode == kWrCompareSwap || wr.opcode == kWrFetchAdd;
      wr.sges = {local.sge(0, is_atomic ? 8 : random_.between32(0, kRegionBytes))};
      wr.remote_address = target.iova;
      wr.rkey = target.rkey;
      // Below RTS it is refused, yet it stays in the ring and is flushed with the rest.
      if (qp->queue_send(wr)) {
        outstanding_.insert(id);
        ++result_.operations;
        (void)qp->ring_doorbell();
      }
    }
  }

  // ---- what comes of it

  void poll(Party& party) {
    while (const std::optional<RingCqe> cqe = party.cq->poll()) {
      world_->mix(cqe->wr_id * 64 + cqe->status);
      if (outstanding_.erase(cqe->wr_id) == 0)
        return fail("work request " + std::to_string(cqe->wr_id) + " completes twice, or was never posted");
      if (cqe->status == kWcSuccess) ++result_.messages_received;
      if (cqe->wr_id >= kSteady) steady_completed(*cqe);
    }
  }

  void poll_all() {
    for (const std::unique_ptr<Party>& party : parties_)
      poll(*party);
    for (Party& party : steady_)
      poll(party);
    // Memory that was given up may be mapped and used by its owner again, never by the engine.
    if (gone_.size() > 100) gone_.erase(gone_.begin(), gone_.begin() + 50);
  }

  void end_all() {
    const std::uint64_t rounds = steady_rounds_;
    const bool goes_on = world_->run_until(
        [&] {
          poll_all();
          return !result_.ok() || steady_rounds_ >= rounds + 3;
        },
        seconds(60));
    if (!goes_on) fail("the steady connection has come to rest");
    while (!parties_.empty())
      leave(parties_.size() - 1);
    world_->run_for(seconds(1));
    for (unsigned host = 0; host < 2 && result_.ok(); ++host) {
      std::size_t contexts = 0, qps = 0, regions = 0, cqs = 0;
      for (unsigned shard = 0; shard < options_.shards; ++shard) {
        const CommandReply reply = world_->command(host, shard, Command{{}, Inspect{}});
        const auto& snapshot = std::get<std::unique_ptr<Snapshot>>(reply.body);
        contexts += snapshot->contexts.size();
        qps += snapshot->qps.size();
        regions += snapshot->mrs.size();
        cqs += snapshot->cqs.size();
      }
      if (contexts != 1 || qps != 1 || regions != 1 || cqs != 1) {
        fail("left at the end: " + std::to_string(contexts) + " contexts, " + std::to_string(qps) + " QPs, " +
             std::to_string(regions) + " regions, " + std::to_string(cqs) + " CQs instead of one each");
      }
    }
  }

  ProgramOptions options_;
  Random random_;
  ProgramResult result_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Party>> parties_;
  Party steady_[2];
  std::vector<Mr> gone_;
  std::set<std::uint64_t> outstanding_;
  std::uint64_t next_id_ = 1, steady_rounds_ = 0;
};

}  // namespace

ProgramResult run_churn_program(const ProgramOptions& options) { return ChurnProgram(options).run(); }

}  // namespace roci::sim
