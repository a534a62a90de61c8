#include "emulator/cm/ports.h"

#include <algorithm>

#include "emulator/cm/addressing.h"

namespace roci::emulator::cm {
namespace {

bool covers(const Ports::Holder& holder, const proto::Gid& ip) {
  if (holder.ip == ip) return true;
  if (!is_any(holder.ip)) return false;
  // :: without AFONLY means IPv4 as well; 0.0.0.0 is of IPv4 only.
  if (holder.ip.is_ipv4()) return ip.is_ipv4();
  return !ip.is_ipv4() || !holder.one_family;
}

bool overlap(const Ports::Holder& a, const Ports::Holder& b) {
  return (a.nics & b.nics) != 0 && (covers(a, b.ip) || covers(b, a.ip));
}

bool conflict(const Ports::Holder& a, const Ports::Holder& b) {
  const bool both_share = a.may_share && b.may_share && !a.is_listening && !b.is_listening;
  return overlap(a, b) && !both_share;
}

}  // namespace

bool Ports::bind(PortSpace space, std::uint16_t port, const Holder& holder) {
  std::vector<Holder>& all = holders_[key(space, port)];
  for (const Holder& other : all)
    if (conflict(other, holder)) return false;
  all.push_back(holder);
  return true;
}

std::optional<std::uint16_t> Ports::bind_any(PortSpace space, std::uint32_t start, const Holder& holder) {
  Holder alone = holder;
  alone.may_share = false;  // nobody wants a random port that is another's, too
  for (std::uint32_t step = 0; step < kEphemeralPorts; ++step) {
    const auto port = static_cast<std::uint16_t>(kFirstEphemeralPort + (start + step) % kEphemeralPorts);
    if (!bind(space, port, alone)) continue;
    holders_[key(space, port)].back().may_share = holder.may_share;
    return port;
  }
  return std::nullopt;
}

bool Ports::listen(PortSpace space, std::uint16_t port, IdHandle id) {
  std::vector<Holder>& all = holders_[key(space, port)];
  const auto self = std::find_if(all.begin(), all.end(), [&](const Holder& h) { return h.id == id; });
  for (const Holder& other : all)
    if (other.id != id && other.is_listening && overlap(other, *self)) return false;
  self->is_listening = true;
  return true;
}

void Ports::release(PortSpace space, std::uint16_t port, IdHandle id) {
  const auto found = holders_.find(key(space, port));
  if (found == holders_.end()) return;
  std::vector<Holder>& all = found->second;
  all.erase(std::remove_if(all.begin(), all.end(), [&](const Holder& h) { return h.id == id; }), all.end());
  if (all.empty()) holders_.erase(found);
}

std::optional<IdHandle> Ports::listener(PortSpace space, std::uint16_t port, NicId nic,
                                        const proto::Gid& ip) const {
  const auto found = holders_.find(key(space, port));
  if (found == holders_.end()) return std::nullopt;
  std::optional<IdHandle> by_wildcard;
  for (const Holder& holder : found->second) {
    if (!holder.is_listening || (holder.nics >> nic.index & 1) == 0 || !covers(holder, ip)) continue;
    if (!is_any(holder.ip)) return holder.id;
    by_wildcard = holder.id;
  }
  return by_wildcard;
}

}  // namespace roci::emulator::cm
