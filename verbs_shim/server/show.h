// What the daemon is doing, as JSON for `roci show`: snapshots of the engines, merged and named.
//
// Pure functions of what they are given. Control thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "emulator/command.h"
#include "emulator/config.h"
#include "emulator/counters.h"
#include "verbs_shim/server/server.h"

namespace roci::shim {

// The text of a JSON value; names that are not UTF-8 (a process may be called anything) are mended.
[[nodiscard]] std::string to_text(const nlohmann::json& value);

// An IPv4 address where the GID is one, else IPv6.
[[nodiscard]] std::string address_text(const proto::Gid& gid);

[[nodiscard]] nlohmann::json nics_json(const ServerConfig& config,
                                       const std::function<bool(emulator::NicId)>& link_up);
[[nodiscard]] nlohmann::json counters_json(const emulator::Counters& counters);
// "contexts", "qps", "cqs", "srqs", "mrs", "mws", "ahs", "neighbours" of all shards.
[[nodiscard]] nlohmann::json objects_json(const ServerConfig& config,
                                          const std::vector<std::unique_ptr<emulator::Snapshot>>& shards);
// Sum of one NIC's counters over the shards.
[[nodiscard]] emulator::Counters sum_counters(const std::vector<ShardLink*>& links, emulator::NicId nic);

}  // namespace roci::shim
