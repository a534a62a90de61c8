#include "tests/sim/world.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "emulator/steering.h"
#include "proto/ethernet.h"
#include "proto/roce_view.h"

namespace roci::sim {

using namespace emulator;

namespace {

constexpr std::size_t kSinkFrames = 64;
constexpr std::size_t kFrameBytes = 9216;
constexpr std::size_t kMaxRxFrames = 64;
constexpr std::size_t kHashedBytes = 96;
constexpr std::size_t kMaxBurstsPerPass = 4;
constexpr Duration kCommandLimit = std::chrono::seconds(30);

}  // namespace

// Lends buffers as the configuration says, and hands what is committed to the link.
class World::Sink final : public TxSink {
 public:
  explicit Sink(World& world) : world_(world), storage_(kSinkFrames * kFrameBytes), frames_(kSinkFrames) {}

  void attach(Node& node) { node_ = &node; }
  std::span<TxFrame> reserve(std::size_t max) override {
    std::size_t count = std::min(max, frames_.size());
    if (world_.random_.chance(world_.config_.short_burst_per_million)) {
      count = world_.random_.index(count + 1);
      ++world_.counts_.short_bursts;
    }
    for (std::size_t i = 0; i < count; ++i) {
      frames_[i] = {storage_.data() + i * kFrameBytes, kFrameBytes, 0, {}};
    }
    return std::span{frames_}.first(count);
  }
  void commit(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i)
      world_.transmitted(*node_, frames_[i]);
  }
  std::uint64_t blocked_nics() const override {
    if (!world_.random_.chance(world_.config_.blocked_nic_per_million)) return 0;
    ++world_.counts_.blocked;
    return std::uint64_t{1} << world_.random_.index(world_.config_.nics);
  }

 private:
  World& world_;
  Node* node_ = nullptr;
  std::vector<std::byte> storage_;
  std::vector<TxFrame> frames_;
};

proto::Gid World::gid(unsigned host, unsigned nic, bool ipv6) {
  const std::uint32_t station = 1 + host * 8 + nic;
  if (!ipv6) return proto::Gid::from_ipv4(0x0A000000 + station);
  proto::Gid gid;
  gid.bytes = {0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<std::uint8_t>(station)};
  return gid;
}

proto::Mac World::mac(unsigned host, unsigned nic) {
  return {{2, 0, 0, 0, static_cast<std::uint8_t>(host + 1), static_cast<std::uint8_t>(nic + 1)}};
}

World::World(WorldConfig config)
    : config_(std::move(config)),
      random_(config_.seed),
      link_(config_.link, random_.fork()),
      events_(config_.hosts) {
  nodes_.resize(std::size_t{config_.hosts} * config_.shards);
  for (unsigned host = 0; host < config_.hosts; ++host) {
    memories_.push_back(std::make_unique<PlainMemory>());
    EngineConfig engine;
    engine.shard_count = config_.shards;
    engine.transmit_burst = config_.transmit_burst;
    engine.window_packets = config_.window_packets;
    for (std::uint64_t& word : engine.seed)
      word = random_.next();
    for (unsigned nic = 0; nic < config_.nics; ++nic) {
      NicConfig one;
      one.name = "rxe" + std::to_string(nic);
      one.mac = mac(host, nic);
      one.addresses = {{gid(host, nic), 24}, {gid(host, nic, true), 64}};
      one.mtu_bytes = config_.mtu_bytes;
      for (unsigned peer = 0; config_.static_neighbours && peer < config_.hosts; ++peer) {
        for (unsigned other = 0; other < config_.nics; ++other) {
          if (peer == host && other == nic) continue;
          one.neighbours.push_back({gid(peer, other), mac(peer, other)});
          one.neighbours.push_back({gid(peer, other, true), mac(peer, other)});
        }
      }
      engine.nics.push_back(std::move(one));
    }
    for (unsigned shard = 0; shard < config_.shards; ++shard) {
      engine.shard = shard;
      Node& made = node(host, shard);
      made.host = host;
      made.shard = shard;
      made.engine = std::make_unique<Engine>(engine, *memories_[host]);
    }
  }
  sink_ = std::make_unique<Sink>(*this);
}

World::~World() = default;

void World::mix(std::uint64_t value) {
  hash_ = (hash_ ^ value) * 0xFF51AFD7ED558CCD;
  hash_ ^= hash_ >> 32;
}

// ---- frames ----------------------------------------------------------------------------------------

void World::transmitted(Node& node, const TxFrame& lent) {
  const std::span<const std::byte> frame{lent.data, lent.length_bytes};
  ++counts_.frames;
  counts_.bytes += frame.size();
  // Headers, and the ICRC, which stands for the rest: it is checked below.
  mix(static_cast<std::uint64_t>(now_.time_since_epoch().count()));
  mix(node.host * 256 + node.shard);
  const auto mix_bytes = [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, frame.data() + at, std::min<std::size_t>(8, end - at));
      mix(word);
    }
  };
  mix_bytes(0, std::min(frame.size(), kHashedBytes));
  if (frame.size() > kHashedBytes) mix_bytes(frame.size() - 4, frame.size());
  if (tap_) tap_(node.host, frame);

  if (frame.size() < proto::EthernetHeader::kSize || lent.nic.index >= config_.nics) {
    violations_.push_back("a frame without Ethernet header, or of no NIC, was sent");
    return;
  }
  const proto::Mac destination = proto::load_mac(frame.data());
  const proto::Mac source = proto::load_mac(frame.data() + 6);
  if (source != mac(node.host, lent.nic.index))
    violations_.push_back("a frame with another NIC's source MAC was sent");
  if (destination == proto::Mac{}) violations_.push_back("a frame to MAC zero was sent");
  proto::RoceView view;
  const proto::ParseError error = proto::parse_roce(frame, view);
  if (error == proto::ParseError::kNone) {
    ++counts_.sent[static_cast<std::size_t>(view.bth.opcode)];
    if (!proto::icrc_matches(view)) violations_.push_back("a packet with a wrong ICRC was sent");
  } else if (!proto::is_other_traffic(error)) {
    violations_.push_back("a bad packet was sent: " + std::string(proto::info(error).sentence));
  }

  const bool is_group = (destination.bytes[0] & 1) != 0;
  for (unsigned host = 0; host < config_.hosts; ++host) {
    for (unsigned nic = 0; nic < config_.nics; ++nic) {
      const bool is_sender = host == node.host && nic == lent.nic.index;
      if (is_group ? !is_sender : mac(host, nic) == destination) link_.send(frame, port(host, nic), now_);
    }
  }
}

// ---- time ------------------------------------------------------------------------------------------

bool World::has_doorbell(const Node& node) const {
  const auto index = static_cast<std::size_t>(&node - nodes_.data());
  for (const Opened& one : clients_) {
    if (one.node != index || one.client == nullptr) continue;
    for (std::uint64_t& word : one.client->control().doorbell_summary) {
      if (std::atomic_ref<std::uint64_t>(word).load() != 0) return true;
    }
  }
  return false;
}

Time World::wants_pass(const Node& node) const {
  if (!node.received.empty() || node.has_commands || has_doorbell(node)) return node.free_at;
  return std::max(node.free_at, node.engine->next_deadline());
}

void World::show(Node& node) {
  const std::size_t count = std::min(node.received.size(), random_.index(kMaxRxFrames) + 1);
  std::array<Frame, kMaxRxFrames> frames;
  for (std::size_t i = 0; i < count; ++i) {
    const Delivery& one = node.received[i];
    frames[i] = {link_.bytes(one), {static_cast<std::uint8_t>(one.port % config_.nics)}};
  }
  node.engine->on_frames(std::span{frames}.first(count), now_);
  for (std::size_t i = 0; i < count; ++i) {
    proto::RoceView view;
    if (node.engine->verdicts()[i] == DropReason::kAccepted &&
        proto::parse_roce(frames[i].bytes, view) == proto::ParseError::kNone) {
      ++counts_.accepted[static_cast<std::size_t>(view.bth.opcode)];
    }
    link_.release(node.received[i]);
  }
  node.received.erase(node.received.begin(), node.received.begin() + static_cast<std::ptrdiff_t>(count));
}

void World::pass(Node& node) {
  if (random_.chance(config_.pause_per_million)) {
    ++counts_.pauses;
    const auto shortest = static_cast<std::uint64_t>(config_.min_pause.count());
    const auto longest = static_cast<std::uint64_t>(config_.max_pause.count());
    node.free_at = now_ + Duration(static_cast<std::int64_t>(random_.between(shortest, longest)));
    return;
  }
  ++counts_.passes;
  if (!node.received.empty()) show(node);
  node.engine->on_doorbells(now_);
  node.engine->on_timers(now_);
  sink_->attach(node);
  for (std::size_t burst = 0; burst < kMaxBurstsPerPass; ++burst) {
    if (node.engine->transmit(*sink_, now_) == 0) break;
  }
  node.has_commands = false;

  CommandReply replies[16];
  for (std::size_t got = 0; (got = node.engine->drain_replies(replies)) != 0;) {
    for (std::size_t i = 0; i < got; ++i)
      node.replies.push_back(std::move(replies[i]));
  }
  Event events[16];
  for (std::size_t got = 0; (got = node.engine->drain_events(events)) != 0;) {
    events_[node.host].insert(events_[node.host].end(), events, events + got);
  }
  node.free_at = now_ + Duration(static_cast<std::int64_t>(random_.between(200, 1000)));
}

bool World::step() {
  Time next = std::min(link_.next_delivery(), in_command_ ? kNever : application_at_);
  for (const Node& node : nodes_)
    next = std::min(next, wants_pass(node));
  if (next == kNever) return false;
  now_ = std::max(now_, next);

  while (const std::optional<Delivery> arrived = link_.receive(now_)) {
    const unsigned host = static_cast<unsigned>(arrived->port) / config_.nics;
    const std::optional<std::uint32_t> shard = steer(link_.bytes(*arrived), config_.shards);
    if (!shard.has_value()) {
      for (unsigned other = 1; other < config_.shards; ++other)
        node(host, other).received.push_back(link_.copy(*arrived));
    }
    node(host, shard.value_or(0)).received.push_back(*arrived);
  }
  for (Node& node : nodes_) {
    if (wants_pass(node) <= now_) pass(node);
  }
  if (application_ && !in_command_) application_at_ = std::max(application_(now_), now_ + Duration(1));
  return true;
}

bool World::run_until(const std::function<bool()>& done, Duration limit) {
  const Time end = now_ + limit;
  if (application_ && !in_command_) application_at_ = now_;
  while (!done()) {
    if (now_ > end || !step()) return false;
  }
  return true;
}

void World::run_for(Duration duration) {
  const Time end = now_ + duration;
  while (true) {
    Time next = std::min(link_.next_delivery(), in_command_ ? kNever : application_at_);
    for (const Node& node : nodes_)
      next = std::min(next, wants_pass(node));
    if (next > end) break;
    step();
  }
  now_ = end;
}

// ---- commands --------------------------------------------------------------------------------------

CommandReply World::transact(Node& node, Command command) {
  const CommandId id{next_command_++};
  node.engine->submit(id, std::move(command), now_);
  node.has_commands = true;
  const auto is_reply = [&](const CommandReply& reply) { return reply.id == id; };
  const bool was_in_command = std::exchange(in_command_, true);
  const bool answered = run_until(
      [&] { return std::any_of(node.replies.begin(), node.replies.end(), is_reply); }, kCommandLimit);
  in_command_ = was_in_command;
  if (!answered) {
    std::fprintf(stderr, "a command was not answered\n");
    std::abort();
  }
  const auto reply = std::find_if(node.replies.begin(), node.replies.end(), is_reply);
  CommandReply result = std::move(*reply);
  node.replies.erase(reply);
  return result;
}

Client& World::add_client(unsigned host, unsigned shard, unsigned nic) {
  const std::size_t index = host * config_.shards + shard;
  auto transact = [this, index](Command command) {
    return this->transact(nodes_[index], std::move(command));
  };
  clients_.push_back(
      {index, std::make_unique<Client>(*memories_[host], transact, NicId{static_cast<std::uint8_t>(nic)},
                                       "client" + std::to_string(clients_.size()))});
  return *clients_.back().client;
}

void World::remove_client(Client& client) {
  const auto found = std::find_if(clients_.begin(), clients_.end(),
                                  [&](const Opened& one) { return one.client.get() == &client; });
  if (found == clients_.end()) return;
  client.close();
  client.memory().give_up(client.space());
  clients_.erase(found);
}

std::vector<std::string> World::violations() const {
  std::vector<std::string> all = violations_;
  for (const std::unique_ptr<PlainMemory>& memory : memories_) {
    all.insert(all.end(), memory->violations().begin(), memory->violations().end());
  }
  return all;
}

}  // namespace roci::sim
