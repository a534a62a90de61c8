#include "verbs_shim/server/show.h"

#include <arpa/inet.h>

#include <array>
#include <cstdio>

#include "verbs_shim/server/uverbs_numbers.h"

namespace roci::shim {
namespace {

using nlohmann::json;

std::string mac_text(const proto::Mac& mac) {
  const auto& b = mac.bytes;
  char text[20];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]);
  return text;
}

const char* state_text(emulator::QpState state) {
  switch (state) {
    case emulator::QpState::kReset:
      return "RESET";
    case emulator::QpState::kInit:
      return "INIT";
    case emulator::QpState::kRtr:
      return "RTR";
    case emulator::QpState::kRts:
      return "RTS";
    case emulator::QpState::kSqd:
      return "SQD";
    case emulator::QpState::kSqe:
      return "SQE";
    case emulator::QpState::kErr:
      return "ERR";
    case emulator::QpState::kDestroyed:
      return "DESTROYED";
  }
  return "?";
}

const char* type_text(emulator::QpType type) {
  switch (type) {
    case emulator::QpType::kGsi:
      return "GSI";
    case emulator::QpType::kRc:
      return "RC";
    case emulator::QpType::kUc:
      return "UC";
    case emulator::QpType::kUd:
      return "UD";
  }
  return "?";
}

json qp_json(const ServerConfig& config, const emulator::QpSnapshot& qp) {
  return {{"context", qp.context.value},
          {"handle", qp.handle.value},
          {"nic", config.nics[qp.nic.index].name},
          {"qpn", qp.qpn.value()},
          {"type", type_text(qp.type)},
          {"state", state_text(qp.state)},
          {"dest_qpn", qp.attributes.dest_qpn.value()},
          {"dest_ip", address_text(qp.attributes.av.dgid)},
          {"path_mtu", qp.attributes.path_mtu_code == 0 ? 0 : 128u << (qp.attributes.path_mtu_code & 7)},
          {"timeout", qp.attributes.timeout},
          {"retry_cnt", qp.attributes.retry_cnt},
          {"rnr_retry", qp.attributes.rnr_retry},
          {"next_psn", qp.next_psn.value()},
          {"oldest_unacked_psn", qp.oldest_unacked_psn.value()},
          {"expected_psn", qp.expected_psn.value()},
          {"send_queue_depth", qp.send_queue_depth},
          {"recv_queue_depth", qp.recv_queue_depth},
          {"packets_sent", qp.packets_sent},
          {"packets_received", qp.packets_received},
          {"bytes_sent", qp.bytes_sent},
          {"bytes_received", qp.bytes_received},
          {"retransmitted", qp.retransmitted}};
}

}  // namespace

std::string address_text(const proto::Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  if (gid.is_ipv4()) {
    const std::uint32_t address = htonl(gid.ipv4());
    ::inet_ntop(AF_INET, &address, text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
  }
  return text;
}

std::string to_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json nics_json(const ServerConfig& config, const std::function<bool(emulator::NicId)>& link_up) {
  json list = json::array();
  for (std::size_t i = 0; i < config.nics.size(); ++i) {
    const emulator::NicConfig& nic = config.nics[i];
    json addresses = json::array();
    for (const emulator::NicAddress& address : nic.addresses)
      if (address.gid != proto::Gid{})
        addresses.push_back(address_text(address.gid) + "/" + std::to_string(address.prefix_length));
    json gids = json::array();
    for (const proto::Gid& gid : emulator::gid_table(nic))
      gids.push_back(address_text(gid));
    list.push_back({{"name", nic.name},
                    {"mac", mac_text(nic.mac)},
                    {"ip", addresses},
                    {"gids", gids},
                    {"port", config.port_names[i]},
                    {"mtu", nic.mtu_bytes},
                    {"active_mtu", proto::bytes_of(emulator::active_path_mtu(nic.mtu_bytes))},
                    {"link", link_up(emulator::NicId{static_cast<std::uint8_t>(i)}) ? "up" : "down"}});
  }
  return list;
}

json counters_json(const emulator::Counters& counters) {
  json all;
#define X(member, what) all[#member] = counters.member;
  ROCI_COUNTERS(X)
#undef X
  json dropped;
  // [0] counts the accepted ones.
  for (std::size_t i = 1; i < emulator::kDropReasonCount; ++i)
    dropped[std::string(emulator::kDropReasonNames[i])] = counters.dropped[i];
  all["dropped"] = std::move(dropped);
  return all;
}

json objects_json(const ServerConfig& config,
                  const std::vector<std::unique_ptr<emulator::Snapshot>>& shards) {
  json contexts = json::array(), qps = json::array(), mrs = json::array(), cqs = json::array(),
       srqs = json::array(), mws = json::array(), ahs = json::array(), neighbours = json::array();
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    if (!shards[shard]) continue;
    const emulator::Snapshot& snapshot = *shards[shard];
    for (const auto& c : snapshot.contexts)
      contexts.push_back({{"context", c.context.value},
                          {"nic", config.nics[c.nic.index].name},
                          {"client", c.client},
                          {"pds", c.pds},
                          {"shard", shard}});
    for (const auto& qp : snapshot.qps)
      qps.push_back(qp_json(config, qp));
    for (const auto& mr : snapshot.mrs)
      mrs.push_back({{"context", mr.context.value},
                     {"handle", mr.handle.value},
                     {"pd", mr.pd.value},
                     {"rkey", mr.rkey.value()},
                     {"iova", mr.iova},
                     {"length", mr.length_bytes},
                     {"access", mr.access}});
    for (const auto& cq : snapshot.cqs)
      cqs.push_back({{"context", cq.context.value},
                     {"handle", cq.handle.value},
                     {"slots", cq.slots},
                     {"depth", cq.depth},
                     {"completions", cq.completions},
                     {"overrun", cq.overrun}});
    for (const auto& srq : snapshot.srqs)
      srqs.push_back({{"context", srq.context.value},
                      {"handle", srq.handle.value},
                      {"max_wr", srq.max_wr},
                      {"limit", srq.limit},
                      {"depth", srq.depth},
                      {"users", srq.users}});
    for (const auto& mw : snapshot.mws)
      mws.push_back({{"context", mw.context.value},
                     {"handle", mw.handle.value},
                     {"pd", mw.pd.value},
                     {"type", static_cast<unsigned>(mw.type)},
                     {"rkey", mw.rkey.value()},
                     {"bound", mw.is_bound},
                     {"address", mw.address},
                     {"length", mw.length_bytes},
                     {"access", mw.access}});
    for (const auto& ah : snapshot.ahs)
      ahs.push_back({{"context", ah.context.value},
                     {"handle", ah.handle.value},
                     {"dest_ip", address_text(ah.av.dgid)},
                     {"sgid_index", ah.av.sgid_index},
                     {"hop_limit", ah.av.hop_limit},
                     {"traffic_class", ah.av.traffic_class},
                     {"flow_label", ah.av.flow_label}});
    for (const auto& n : snapshot.neighbours)
      neighbours.push_back({{"nic", config.nics[n.nic.index].name},
                            {"ip", address_text(n.gid)},
                            {"mac", mac_text(n.mac)},
                            {"resolved", n.resolved},
                            {"shard", shard}});
  }
  return {{"contexts", std::move(contexts)}, {"qps", std::move(qps)},
          {"mrs", std::move(mrs)},           {"cqs", std::move(cqs)},
          {"srqs", std::move(srqs)},         {"mws", std::move(mws)},
          {"ahs", std::move(ahs)},           {"neighbours", std::move(neighbours)}};
}

emulator::Counters sum_counters(const std::vector<ShardLink*>& links, emulator::NicId nic) {
  // Another thread writes them; each word is read whole, and may be a pass old.
  const auto load = [](const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); };
  emulator::Counters sum;
  for (const ShardLink* link : links) {
    const emulator::Counters& shard = link->counters(nic);
#define X(member, what) sum.member += load(shard.member);
    ROCI_COUNTERS(X)
#undef X
    for (std::size_t i = 0; i < sum.dropped.size(); ++i)
      sum.dropped[i] += load(shard.dropped[i]);
  }
  return sum;
}

}  // namespace roci::shim
