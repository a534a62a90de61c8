#include "tools/trace/conversation.h"

#include "proto/bytes.h"
#include "tools/trace/packet_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace roci::tools {
namespace {

using proto::OpcodeInfo;
using proto::Operation;
using proto::Packet;
using proto::Position;
using proto::Role;
using proto::Service;

constexpr std::uint16_t kPkeyMembership = 0x8000;
constexpr std::uint16_t kPkeyBase = 0x7FFF;
// So many packets numbered one by one show how a sender numbers.
constexpr unsigned kTellingIpIdSteps = 3;
// A packet of another service is a fault, and not another QP with the same number, if its PSN fits.
constexpr std::int32_t kServicePsnReach = 4'096;

std::size_t mix(std::size_t seed, std::uint64_t value) {
  std::uint64_t x = seed ^ (value + 0x9E3779B97F4A7C15U + (std::uint64_t{seed} << 6) + (seed >> 2));
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9U;
  return static_cast<std::size_t>(x ^ (x >> 29));
}

std::size_t mix(std::size_t seed, const proto::Gid& gid) {
  const std::byte* at = std::as_bytes(std::span{gid.bytes}).data();
  return mix(mix(seed, proto::load_be64(at)), proto::load_be64(at + 8));
}

// Native InfiniBand without a GRH: LIDs stand for the addresses.
proto::Gid address(const proto::Gid& gid, const Packet& packet, std::uint16_t lid) {
  if (!packet.lrh || packet.grh) return gid;
  proto::Gid local;
  local.bytes[14] = static_cast<std::uint8_t>(lid >> 8);
  local.bytes[15] = static_cast<std::uint8_t>(lid);
  return local;
}

bool has_connection(Service service) {
  return service == Service::kRc || service == Service::kUc || service == Service::kXrc;
}

bool is_answered_service(Service service) { return service == Service::kRc || service == Service::kXrc; }

bool is_path_mtu(std::size_t bytes) {
  return bytes == 256 || bytes == 512 || bytes == 1024 || bytes == 2048 || bytes == 4096;
}

}  // namespace

std::size_t Conversations::PathHash::operator()(const Path& path) const {
  return mix(mix(std::size_t{0}, path.source), path.destination);
}

std::size_t Conversations::FlowKeyHash::operator()(const FlowKey& key) const {
  return mix(PathHash{}(key.path), std::uint64_t{key.destination.value()});
}

Conversations::Conversations(Report report, Limits limits) : report_(std::move(report)), limits_(limits) {}

RequestLog::Context Conversations::context_of(const Flow& flow, bool is_nothing_between) const {
  return {report_,           limits_, flow.mtu_bytes, last_unread_, last_unread_ > flow.last_number,
          is_nothing_between};
}

Conversations::Flow& Conversations::flow_of(const Packet& packet) {
  const std::uint16_t source_lid = packet.lrh ? packet.lrh->source_lid : std::uint16_t{0};
  const std::uint16_t destination_lid = packet.lrh ? packet.lrh->destination_lid : std::uint16_t{0};
  const FlowKey key{
      {address(packet.source(), packet, source_lid), address(packet.destination(), packet, destination_lid)},
      packet.bth.destination};
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) {
    flows_.splice(flows_.end(), flows_, found->second);
    return *found->second;
  }
  while (!flows_.empty() && (flows_.size() >= limits_.flows || all_requests_ > limits_.all_requests))
    forget_oldest();
  Flow& flow = flows_.emplace_back();
  flow.key = key;
  by_key_.emplace(key, std::prev(flows_.end()));
  return flow;
}

void Conversations::forget_oldest() {
  Flow& flow = flows_.front();
  all_requests_ -= flow.requests.size();
  judge_at_end(flow);
  unlist(flow);
  unpair(flow);
  by_key_.erase(flow.key);
  flows_.pop_front();
}

void Conversations::finish() {
  // Both sides of a connection are needed to judge either.
  for (Flow& flow : flows_)
    judge_at_end(flow);
  unpaired_.clear();
  by_key_.clear();
  flows_.clear();
  all_requests_ = 0;
}

void Conversations::judge_at_end(Flow& flow) {
  judge_pkeys(flow);
  judge_services(flow);
  std::optional<std::int64_t> last_ns;
  if (flow.peer != nullptr) last_ns = std::max(flow.last_ns, flow.peer->last_ns);
  flow.requests.finish(last_ns, context_of(flow));
}

void Conversations::on_packet(const Sighting& seen) {
  const Packet& packet = seen.packet;
  const OpcodeInfo& opcode = packet.opcode_info();
  Flow& flow = flow_of(packet);
  const bool nothing_between = is_nothing_between(flow.ip_ids, packet);
  const std::size_t requests_before = flow.requests.size();
  flow.last_ns = seen.time_ns;
  const std::uint16_t pkey = packet.bth.pkey.value();
  // QP1 takes every P_Key of the port [IBTA C9-42]; an invalid one is reported by itself.
  if (packet.bth.destination != proto::kQpnGsi && (pkey & kPkeyBase) != 0) {
    tally(flow.pkeys, pkey & kPkeyBase, seen);
    flow.has_full_member = flow.has_full_member || (pkey & kPkeyMembership) != 0;
  }
  if (opcode.service != Service::kCnp) tally(flow.services, static_cast<std::uint16_t>(opcode.service), seen);
  judge_mtu(flow, seen);
  switch (opcode.role) {
    case Role::kRequest:
      if (has_connection(opcode.service)) on_request(flow, seen, nothing_between);
      break;
    case Role::kResponse:
      if (is_answered_service(opcode.service)) on_response(flow, seen);
      break;
    case Role::kNotification:
      break;
  }
  flow.last_number = seen.number;
  all_requests_ += flow.requests.size() - requests_before;
}

bool Conversations::is_nothing_between(IpIds& ids, const Packet& packet) {
  if (!packet.ipv4) return false;
  const std::uint16_t id = packet.ipv4->identification;
  const bool is_step_of_one = ids.last && static_cast<std::uint16_t>(*ids.last + 1) == id;
  const bool is_telling = is_step_of_one && !ids.is_irregular && ids.steps_of_one >= kTellingIpIdSteps;
  if (is_step_of_one) {
    ++ids.steps_of_one;
  } else if (ids.last) {
    ids.is_irregular = true;
  }
  ids.last = id;
  return is_telling;
}

void Conversations::tally(Tallies& tallies, std::uint16_t value, const Sighting& seen) const {
  auto found =
      std::find_if(tallies.begin(), tallies.end(), [&](const Tally& one) { return one.value == value; });
  if (found == tallies.end()) {
    if (tallies.size() == limits_.noted_packets) return;
    found = tallies.insert(tallies.end(), Tally{value, 0, {}});
  }
  ++found->count;
  if (found->packets.size() < limits_.noted_packets)
    found->packets.push_back({seen.number, seen.packet.bth.psn});
}

// The P_Key of a connection is the one that most of its packets have, of both directions; if there is none,
// the default one, if some have that.
void Conversations::judge_pkeys(Flow& flow) {
  if (flow.pkeys.empty()) return;
  const auto count_of = [&](std::uint16_t base) {
    std::uint64_t count = 0;
    for (const Flow* side : {static_cast<const Flow*>(&flow), static_cast<const Flow*>(flow.peer)}) {
      if (side == nullptr || (side == flow.peer && flow.peer == &flow)) continue;
      for (const Tally& one : side->pkeys) {
        if (one.value == base) count += one.count;
      }
    }
    return count;
  };
  std::uint16_t right = 0;
  std::uint64_t most = 0;
  bool is_tie = false;
  const auto consider = [&](const Tallies& tallies) {
    for (const Tally& one : tallies) {
      const std::uint64_t count = count_of(one.value);
      if (one.value == right) continue;
      is_tie = count == most || (is_tie && count < most);
      if (count > most || (count == most && one.value == kPkeyBase)) right = one.value;
      most = std::max(most, count);
    }
  };
  consider(flow.pkeys);
  if (flow.peer != nullptr) consider(flow.peer->pkeys);
  if (is_tie && right != kPkeyBase) return;
  for (const Tally& one : flow.pkeys) {
    if (one.value == right) continue;
    for (const Tally::Packet& packet : one.packets) {
      report_({packet.number, Rule::kPkey,
               fmt::format("the P_Key {:#06x} is not the one of the connection, {:#06x} (lower 15 bits)",
                           one.value, right)});
    }
  }
  if (flow.peer != nullptr && !flow.has_full_member && !flow.peer->has_full_member &&
      flow.pkeys.front().value == right) {
    report_({flow.pkeys.front().packets.front().number, Rule::kPkey,
             "both sides of the connection are limited members of their partition"});
  }
}

// A QP has the service of the requests that were answered, or else clearly of most packets.
void Conversations::judge_services(Flow& flow) {
  if (flow.services.size() < 2) return;
  const auto most = std::max_element(flow.services.begin(), flow.services.end(),
                                     [](const Tally& a, const Tally& b) { return a.count < b.count; });
  const Tally* right = &*most;
  if (flow.peer != nullptr) {
    const auto answered = std::find_if(flow.services.begin(), flow.services.end(), [](const Tally& one) {
      return is_answered_service(static_cast<Service>(one.value));
    });
    if (answered != flow.services.end()) right = &*answered;
  } else if (std::any_of(flow.services.begin(), flow.services.end(),
                         [&](const Tally& one) { return &one != right && 2 * one.count > right->count; })) {
    return;
  }
  const std::string_view service = info(static_cast<proto::Opcode>(right->value << 5)).name.substr(0, 2);
  for (const Tally& one : flow.services) {
    if (&one == right) continue;
    for (const Tally::Packet& packet : one.packets) {
      const bool is_near =
          std::any_of(right->packets.begin(), right->packets.end(), [&](const Tally::Packet& other) {
            return std::abs(packet.psn.distance_to(other.psn)) <= kServicePsnReach;
          });
      if (!is_near && !flow.requests.is_near(packet.psn, kServicePsnReach)) continue;
      report_({packet.number, Rule::kOpcodeService,
               fmt::format("the packet is of another service than the QP {:#x}, whose packets are {}",
                           flow.key.destination.value(), service)});
    }
  }
}

void Conversations::judge_mtu(Flow& flow, const Sighting& seen) {
  const Packet& packet = seen.packet;
  const OpcodeInfo& opcode = packet.opcode_info();
  if (opcode.service == Service::kCnp || !opcode.may_have_payload()) return;
  if (is_full_position(opcode)) {
    // A pad does not belong here and is reported by itself.
    const std::size_t size = packet.payload.size() + packet.bth.pad_count;
    if (!is_path_mtu(size)) {
      report_({seen.number, Rule::kLengthMtu,
               fmt::format("{} carries {} bytes, which is no path MTU", opcode.name, size)});
    } else if (flow.mtu_bytes == 0) {
      flow.mtu_bytes = static_cast<std::uint32_t>(size);
    } else if (flow.mtu_bytes != size) {
      report_(
          {seen.number, Rule::kLengthMtu,
           fmt::format("{} carries {} bytes where the path MTU is {}", opcode.name, size, flow.mtu_bytes)});
    }
    return;
  }
  const std::size_t most = flow.mtu_bytes != 0 ? flow.mtu_bytes : bytes_of(proto::PathMtu::k4096);
  if (packet.payload.size() > most) {
    report_({seen.number, Rule::kLengthMtu,
             fmt::format("{} carries {} bytes where the path MTU is {}{}", opcode.name, packet.payload.size(),
                         flow.mtu_bytes != 0 ? "" : "at most ", most)});
  }
}

void Conversations::on_request(Flow& flow, const Sighting& seen, bool is_nothing_between) {
  const RequestLog::Placed placed = flow.requests.on_request(seen, context_of(flow, is_nothing_between));
  if (placed == RequestLog::Placed::kAnotherConnection) {
    unpair(flow);
    flow.mtu_bytes = 0;
  }
  if (flow.peer == nullptr && is_answered_service(seen.packet.opcode_info().service)) list_unpaired(flow);
}

void Conversations::on_response(Flow& flow, const Sighting& seen) {
  const Packet& packet = seen.packet;
  const proto::Psn psn = packet.bth.psn;
  if (flow.peer == nullptr) find_peer(flow, packet);
  if (flow.peer == nullptr) return;
  Flow& requester = *flow.peer;
  if (packet.opcode_info().operation == Operation::kAcknowledge) {
    requester.requests.on_acknowledge(psn, packet.aeth->syndrome, seen.time_ns, context_of(requester));
    return;
  }
  if (packet.opcode_info().operation == Operation::kReadResponse) judge_read_response(requester, flow, seen);
  requester.requests.on_response(psn, seen.time_ns);
}

void Conversations::judge_read_response(const Flow& requester, const Flow& responder, const Sighting& seen) {
  const Packet& packet = seen.packet;
  const OpcodeInfo& opcode = packet.opcode_info();
  const auto place = requester.requests.read_at(packet.bth.psn);
  if (!place || (place->packets_before > 0 && responder.mtu_bytes == 0)) return;
  const std::uint64_t before = std::uint64_t{place->packets_before} * responder.mtu_bytes;
  const std::uint64_t size = packet.payload.size() + (is_full_position(opcode) ? packet.bth.pad_count : 0);
  const std::uint64_t carried = before + size;
  // A packet behind the end belongs to something that the capture does not have.
  if (place->packets_before > 0 && before >= place->length_bytes) return;
  if (opcode.ends_message() ? carried == place->length_bytes : carried < place->length_bytes) return;
  report_({seen.number, Rule::kLengthRead,
           fmt::format("with {} the response has {} of the {} bytes that were asked for{}", opcode.name,
                       carried, place->length_bytes, opcode.ends_message() ? "" : ", and more follow")});
}

void Conversations::find_peer(Flow& flow, const Packet& packet) {
  if (flow.pairing_tries >= limits_.pairing_tries) return;
  ++flow.pairing_tries;
  const auto listed = unpaired_.find(flow.key.path.reversed());
  if (listed == unpaired_.end() || listed->second.size() > limits_.pairing_scan) return;
  Flow* only = nullptr;
  for (Flow* candidate : listed->second) {
    if (!candidate->requests.awaits(packet.bth.psn)) continue;
    if (only != nullptr) return;  // cannot tell them apart by this answer
    only = candidate;
  }
  if (only == nullptr) return;
  flow.peer = only;
  only->peer = &flow;
  unlist(flow);
  unlist(*only);
}

void Conversations::list_unpaired(Flow& flow) {
  if (flow.is_listed) return;
  unpaired_[flow.key.path].push_back(&flow);
  flow.is_listed = true;
}

void Conversations::unlist(Flow& flow) {
  if (!flow.is_listed) return;
  const auto listed = unpaired_.find(flow.key.path);
  std::erase(listed->second, &flow);
  if (listed->second.empty()) unpaired_.erase(listed);
  flow.is_listed = false;
}

void Conversations::unpair(Flow& flow) {
  if (flow.peer == nullptr) return;
  Flow& other = *flow.peer;
  other.peer = nullptr;
  flow.peer = nullptr;
  flow.pairing_tries = 0;
  other.pairing_tries = 0;
}

}  // namespace roci::tools
