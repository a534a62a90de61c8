#include "tests/fuzz/bench.h"

#include <utility>

#include "proto/packet.h"
#include "tests/fuzz/target.h"

namespace roci::fuzz {

using namespace emulator;

CommandReply Bench::transact(Command command) {
  const CommandId id{next_command_++};
  std::optional<CommandReply> reply = host_.submit(id, std::move(command));
  if (!reply) {
    constexpr Duration kLongest = std::chrono::seconds(5);  // no neighbour answers
    host_.advance(host_.now() + kLongest, [&] {
      reply = host_.reply(id);
      return reply.has_value();
    });
  }
  require(reply.has_value(), "a command is answered");
  return *std::move(reply);
}

sim::Client::Transact Bench::client_transact() {
  return [this](Command command) { return transact(std::move(command)); };
}

void Bench::advance(Duration duration) {
  host_.advance(host_.now() + duration, [] { return false; });
}

scripts::Bytes Bench::frame(const PeerPacket& wanted) const {
  using proto::Extension;
  const proto::OpcodeInfo& info = proto::info(wanted.opcode);
  proto::Packet packet = proto::make_packet(wanted.opcode);
  packet.ethernet->source = scripts::Host::kPeerMac;
  packet.ethernet->destination = scripts::Host::kOwnMac;
  packet.ipv4->source = host_.peer_gid().ipv4();
  packet.ipv4->destination = host_.own_gid().ipv4();
  packet.udp->source_port = 0xC123;
  packet.bth.destination = wanted.destination;
  packet.bth.psn = wanted.psn;
  packet.bth.ack_request = wanted.ack_request;
  const scripts::Bytes payload(wanted.payload_bytes, std::byte{0x5A});
  packet.payload = payload;
  if (info.has(Extension::kDeth)) packet.deth = proto::Deth{kQkey, 0, proto::Qpn{0x777}};
  if (info.has(Extension::kReth)) packet.reth = proto::Reth{wanted.address, wanted.rkey, wanted.length_bytes};
  if (info.has(Extension::kAtomicEth))
    packet.atomic_eth = proto::AtomicEth{wanted.address, wanted.rkey, 1, 2};
  if (info.has(Extension::kAeth)) packet.aeth = proto::Aeth{proto::Syndrome{wanted.syndrome}, proto::Msn{1}};
  if (info.has(Extension::kIeth)) packet.ieth = proto::Ieth{wanted.rkey};
  proto::complete(packet);
  scripts::Bytes bytes(proto::size_of(packet));
  require(proto::emit(packet, bytes) == bytes.size(), "the peer's packet can be made");
  return bytes;
}

void Bench::check() {
  require(!host_.unsound, host_.unsound ? host_.unsound->c_str() : "");
  const std::vector<std::string>& violations = memory().violations();
  require(violations.empty(), violations.empty() ? "" : violations.front().c_str());
}

}  // namespace roci::fuzz
