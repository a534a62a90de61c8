// tshark's opinion of CM messages: of those in pcaps/, and of random ones that we write. Skips (exit status
// 77) where tshark is not installed.
//
// tshark 4.0 knows the layout of REQ, REP, RTU, REJ, DREQ and DREP; of the others only the MAD header. It
// reads flow labels and packet rates of a REQ from the wrong bytes (a field of 32 bits out of 3 resp. 1), so
// these are not asked for.
#include "proto/cm.h"
#include "proto/packet.h"
#include "proto/text.h"
#include "tests/catch_main.h"
#include "tests/proto/captures.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

constexpr int kSkippedHere = 77;

// --- what we say
// --------------------------------------------------------------------------------------------

// Names of tshark's fields to values: numbers decimal, bytes hexadecimal, addresses as text.
using Values = std::map<std::string, std::string>;

template <class T>
std::string number_text(const T& field) {
  if constexpr (requires { field.value(); }) {
    return std::to_string(field.value());
  } else if constexpr (requires { field.code(); }) {
    return std::to_string(field.code());
  } else {
    return std::to_string(static_cast<std::uint64_t>(field));
  }
}

std::string hex_text(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte one : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", std::to_integer<unsigned>(one));
    text += digits.data();
  }
  return text;
}

void add_ids(Values& values, const std::string& prefix, CommunicationId local, CommunicationId remote) {
  values[prefix + ".localcommid"] = number_text(local);
  values[prefix + ".remotecommid"] = number_text(remote);
}

void add_path(Values& values, const std::string& prefix, const CmPath& path) {
  values[prefix + "locallid"] = number_text(path.local_lid);
  values[prefix + "remotelid"] = number_text(path.remote_lid);
  values[prefix + "tfcclass"] = number_text(path.traffic_class);
  values[prefix + "hoplim"] = number_text(path.hop_limit);
  values[prefix + "sl"] = number_text(path.sl);
  values[prefix + "subnetlocal"] = number_text(path.is_subnet_local);
  values[prefix + "localacktout"] = number_text(path.local_ack_timeout);
}

void add_message(Values& values, const CmReq& m) {
  const std::string req = "infiniband.cm.req";
  values[req] = number_text(m.local_comm_id);
  values[req + ".localcaguid"] = number_text(m.local_ca_guid);
  values[req + ".localqkey"] = number_text(m.local_qkey);
  values[req + ".localqpn"] = number_text(m.local_qpn);
  values[req + ".responderres"] = number_text(m.responder_resources);
  values[req + ".localeecn"] = number_text(m.local_eecn);
  values[req + ".initdepth"] = number_text(m.initiator_depth);
  values[req + ".remoteeecn"] = number_text(m.remote_eecn);
  values[req + ".remoteresptout"] = number_text(m.remote_cm_response_timeout);
  values[req + ".transpsvctype"] = number_text(m.transport_service_type);
  values[req + ".e2eflowctrl"] = number_text(m.end_to_end_flow_control);
  values[req + ".startpsn"] = number_text(m.starting_psn);
  values[req + ".localresptout"] = number_text(m.local_cm_response_timeout);
  values[req + ".retrcount"] = number_text(m.retry_count);
  values[req + ".pkey"] = number_text(m.partition_key);
  values[req + ".pppmtu"] = number_text(m.path_packet_payload_mtu);
  values[req + ".rdcexist"] = number_text(m.rdc_exists);
  values[req + ".rnrretrcount"] = number_text(m.rnr_retry_count);
  values[req + ".maxcmretr"] = number_text(m.max_cm_retries);
  values[req + ".srq"] = number_text(m.srq);
  values[req + ".ext_transport"] = number_text(m.extended_transport_type);
  add_path(values, req + ".prim_", m.primary);
  add_path(values, req + ".alt_", m.alternate);
  values[req + (m.primary.local_gid.is_ipv4() ? ".prim_localgid_ipv4" : ".prim_localgid")] =
      to_text(m.primary.local_gid);
  values[req + (m.primary.remote_gid.is_ipv4() ? ".prim_remotegid_ipv4" : ".prim_remotegid")] =
      to_text(m.primary.remote_gid);
  values[req + ".alt_localgid"] = hex_text(std::as_bytes(std::span{m.alternate.local_gid.bytes}));
  values[req + ".alt_remotegid"] = hex_text(std::as_bytes(std::span{m.alternate.remote_gid.bytes}));

  const auto service = ip_service_of(m.service_id);
  const auto ip_cm = IpCmHeader::parse(std::span{m.private_data}.first<IpCmHeader::kSize>());
  if (!service) {
    values[req + ".serviceid"] = number_text(m.service_id);
    values[req + ".private"] = hex_text(m.private_data);
    return;
  }
  values[req + ".serviceid.protocol"] = std::to_string(static_cast<unsigned>(service->port_space) & 0xFF);
  values[req + ".serviceid.dport"] = number_text(service->port);
  REQUIRE(ip_cm);
  const bool is_ipv4 = ip_cm->ip_version == IpVersion::kIpv4;
  values[req + ".ip_cm.majv"] = "0";
  values[req + ".ip_cm.minv"] = "0";
  values[req + ".ip_cm.ipv"] = is_ipv4 ? "4" : "6";
  values[req + ".ip_cm.sport"] = number_text(ip_cm->source_port);
  values[req + (is_ipv4 ? ".ip_cm.sip4" : ".ip_cm.sip6")] = to_text(ip_cm->source);
  values[req + (is_ipv4 ? ".ip_cm.dip4" : ".ip_cm.dip6")] = to_text(ip_cm->destination);
  values[req + ".ip_cm.private"] = hex_text(std::span{m.private_data}.subspan(IpCmHeader::kSize));
}

void add_message(Values& values, const CmRep& m) {
  const std::string rep = "infiniband.cm.rep";
  values[rep] = number_text(m.local_comm_id);
  values[rep + ".remotecommid"] = number_text(m.remote_comm_id);
  values[rep + ".localqkey"] = number_text(m.local_qkey);
  values[rep + ".localqpn"] = number_text(m.local_qpn);
  values[rep + ".localeecn"] = number_text(m.local_eecn);
  values[rep + ".startpsn"] = number_text(m.starting_psn);
  values[rep + ".respres"] = number_text(m.responder_resources);
  values[rep + ".initdepth"] = number_text(m.initiator_depth);
  values[rep + ".tgtackdelay"] = number_text(m.target_ack_delay);
  values[rep + ".failoveracc"] = number_text(m.failover_accepted);
  values[rep + ".e2eflowctrl"] = number_text(m.end_to_end_flow_control);
  values[rep + ".rnrretrcount"] = number_text(m.rnr_retry_count);
  values[rep + ".srq"] = number_text(m.srq);
  values[rep + ".localcaguid"] = number_text(m.local_ca_guid);
  values[rep + ".private"] = hex_text(m.private_data);
}
void add_message(Values& values, const CmRtu& m) {
  add_ids(values, "infiniband.cm.rtu", m.local_comm_id, m.remote_comm_id);
  values["infiniband.cm.rtu.private"] = hex_text(m.private_data);
}
void add_message(Values& values, const CmRej& m) {
  const std::string rej = "infiniband.cm.rej";
  add_ids(values, rej, m.local_comm_id, m.remote_comm_id);
  values[rej + ".msgrej"] = number_text(m.message_rejected);
  values[rej + ".rejinfolen"] = number_text(m.reject_info_length_bytes);
  values[rej + ".reason"] = number_text(m.reason);
  values[rej + ".ari"] = hex_text(m.additional_reject_information);
  values[rej + ".private"] = hex_text(m.private_data);
}
void add_message(Values& values, const CmDreq& m) {
  add_ids(values, "infiniband.cm.dreq", m.local_comm_id, m.remote_comm_id);
  values["infiniband.cm.req.remoteqpneecn"] = number_text(m.remote_qpn_eecn);  // its name in tshark
  values["infiniband.cm.dreq.private"] = hex_text(m.private_data);
}
void add_message(Values& values, const CmDrep& m) {
  add_ids(values, "infiniband.cm.drsp", m.local_comm_id, m.remote_comm_id);
  values["infiniband.cm.drsp.private"] = hex_text(m.private_data);
}
// tshark does not dissect these.
void add_message(Values&, const CmMra&) {}
void add_message(Values&, const CmSidrReq&) {}
void add_message(Values&, const CmSidrRep&) {}
void add_message(Values&, const CmLap&) {}
void add_message(Values&, const CmApr&) {}

Values values_of(const CmMad& mad) {
  Values values;
  values["infiniband.mad.baseversion"] = number_text(mad.header.base_version);
  values["infiniband.mad.mgmtclass"] = number_text(mad.header.management_class);
  values["infiniband.mad.classversion"] = number_text(mad.header.class_version);
  values["infiniband.mad.method"] = number_text(mad.header.method);
  values["infiniband.mad.status"] = number_text(mad.header.status);
  values["infiniband.mad.classspecific"] = number_text(mad.header.class_specific);
  values["infiniband.mad.transactionid"] = number_text(mad.header.transaction_id);
  values["infiniband.mad.attributeid"] = number_text(mad.header.attribute_id);
  values["infiniband.mad.attributemodifier"] = number_text(mad.header.attribute_modifier);
  std::visit([&values](const auto& message) { add_message(values, message); }, mad.message);
  return values;
}

// --- what tshark says
// -----------------------------------------------------------------------------------------

// "0x1f" is a number, whatever else is text.
std::string plain(const std::string& word) {
  if (word.rfind("0x", 0) != 0) return word;
  return std::to_string(std::strtoull(word.c_str() + 2, nullptr, 16));
}

// The MADs in `file`, each with those of `names` that it has.
std::vector<Values> ask_tshark(const std::filesystem::path& file, const std::vector<std::string>& names) {
  std::string command = "tshark --disable-protocol rpcordma --disable-protocol infiniband.eoib -r '" +
                        file.string() + "' -Y infiniband.mad -T fields -E separator='|'";
  for (const std::string& name : names)
    command += " -e " + name;
  command += " 2>/dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe{popen(command.c_str(), "r"), &pclose};
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 4096> some{};
  while (const std::size_t count = std::fread(some.data(), 1, some.size(), pipe.get()))
    output.append(some.data(), count);

  std::vector<Values> mads;
  for (std::size_t begin = 0; begin < output.size();) {
    const std::size_t end = output.find('\n', begin);
    std::string line = output.substr(begin, end - begin) + "|";
    Values& values = mads.emplace_back();
    for (const std::string& name : names) {
      const std::size_t bar = line.find('|');
      REQUIRE(bar != std::string::npos);
      if (bar > 0) values[name] = plain(line.substr(0, bar));
      line.erase(0, bar + 1);
    }
    begin = end + 1;
  }
  return mads;
}

// How many MADs were compared.
std::size_t compare(const std::filesystem::path& file) {
  INFO(file.string());
  const Capture capture = read_capture(file);
  std::vector<Values> ours;
  std::vector<std::string> names;
  for (const Bytes& frame : capture.frames) {
    const auto packet = parse(frame, capture.link);
    if (!packet || packet->bth.destination != kQpnGsi) continue;
    const auto mad = parse_cm(packet->payload);
    REQUIRE(mad.has_value());
    for (const auto& [name, value] : ours.emplace_back(values_of(*mad)))
      names.push_back(name);
  }
  if (ours.empty()) return 0;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::vector<Values> theirs = ask_tshark(file, names);
  REQUIRE(theirs.size() == ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    INFO("MAD " << i + 1);
    for (const auto& [name, value] : ours[i]) {
      INFO(name);
      const auto found = theirs[i].find(name);
      REQUIRE(found != theirs[i].end());
      CHECK(found->second == value);
    }
  }
  return ours.size();
}

// --- random messages
// ------------------------------------------------------------------------------------------

template <class Message>
Message random_message(Dice& dice) {
  std::array<std::byte, kMadBytes> bytes{};
  write_cm({}, Message{}, bytes);
  const Bytes data = dice.bytes(kMadDataBytes);
  std::copy(data.begin(), data.end(), bytes.begin() + MadHeader::kSize);
  return std::get<Message>(parse_cm(bytes)->message);
}

// Half of them of the IP CM service.
CmReq random_req(Dice& dice) {
  CmReq req = random_message<CmReq>(dice);
  if (dice.one_in(2)) return req;
  req.service_id = service_id_of(dice.one_in(2) ? CmPortSpace::kTcp : CmPortSpace::kUdp,
                                 static_cast<std::uint16_t>(dice.bits(16)));
  IpCmHeader header;
  header.source_port = static_cast<std::uint16_t>(dice.bits(16));
  if (dice.one_in(2)) {
    header.source = Gid::from_ipv4(static_cast<std::uint32_t>(dice.bits(32)));
    header.destination = Gid::from_ipv4(static_cast<std::uint32_t>(dice.bits(32)));
  } else {
    header.ip_version = IpVersion::kIpv6;
    header.source = req.primary.local_gid;
    header.destination = req.primary.remote_gid;
  }
  header.emit(std::span{req.private_data}.first<IpCmHeader::kSize>());
  if (header.ip_version == IpVersion::kIpv4) {
    req.primary.local_gid = header.source;
    req.primary.remote_gid = header.destination;
  }
  return req;
}

CmMessage random_cm(Dice& dice) {
  switch (dice.below(6)) {
    case 0:
      return random_req(dice);
    case 1:
      return random_message<CmRep>(dice);
    case 2:
      return random_message<CmRtu>(dice);
    case 3:
      return random_message<CmRej>(dice);
    case 4:
      return random_message<CmDreq>(dice);
    default:
      return random_message<CmDrep>(dice);
  }
}

Bytes cm_frame(const MadHeader& header, const CmMessage& message) {
  std::array<std::byte, kMadBytes> payload{};
  write_cm(header, message, payload);
  // tshark takes the GIDs of a REQ to be of the IP version that carries it.
  const auto* const req = std::get_if<CmReq>(&message);
  const bool is_ipv6 = req != nullptr && !req->primary.local_gid.is_ipv4();
  Packet packet = make_packet(Opcode::kUdSendOnly, is_ipv6 ? IpVersion::kIpv6 : IpVersion::kIpv4);
  packet.bth.destination = kQpnGsi;
  packet.deth->qkey = kQkeyGsi;
  packet.deth->source = kQpnGsi;
  packet.payload = payload;
  complete(packet);
  return frame_of(packet);
}

}  // namespace

TEST_CASE("tshark reads the CM messages of the captures as we do") {
  std::size_t compared = 0;
  for (const auto& path : captures_in(ROCI_PCAPS)) {
    if (path.filename().string().rfind("cm-", 0) == 0) compared += compare(path);
  }
  CHECK(compared == 43);
}

TEST_CASE("tshark reads what we write as it was meant") {
  constexpr std::size_t kMessages = 600;
  Dice dice{11};
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("roci-cm-" + std::to_string(getpid()) + ".pcap");
  {
    const std::unique_ptr<pcap_t, decltype(&pcap_close)> dead{pcap_open_dead(DLT_EN10MB, 65535), &pcap_close};
    const std::unique_ptr<pcap_dumper_t, decltype(&pcap_dump_close)> file{
        pcap_dump_open(dead.get(), path.c_str()), &pcap_dump_close};
    REQUIRE(file != nullptr);
    for (std::size_t i = 0; i < kMessages; ++i) {
      MadHeader header;
      header.transaction_id = dice.bits(64);
      header.status = static_cast<std::uint16_t>(dice.bits(16));
      header.class_specific = static_cast<std::uint16_t>(dice.bits(16));
      header.attribute_modifier = static_cast<std::uint32_t>(dice.bits(32));
      const Bytes frame = cm_frame(header, random_cm(dice));
      pcap_pkthdr record{};
      record.caplen = record.len = static_cast<bpf_u_int32>(frame.size());
      pcap_dump(reinterpret_cast<unsigned char*>(file.get()), &record,
                reinterpret_cast<const unsigned char*>(frame.data()));
    }
  }
  CHECK(compare(path) == kMessages);
  std::filesystem::remove(path);
}

int main(int argc, char** argv) {
  if (std::system("command -v tshark >/dev/null") != 0) {
    std::printf("skipped: no tshark to compare with\n");
    return kSkippedHere;
  }
  return run_tests(argc, argv);
}
