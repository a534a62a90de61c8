#include "proto/cm_text.h"

#include "proto/text.h"

#include <array>
#include <cstdio>

namespace roci::proto {
namespace {

std::string cm_format(const char* format, unsigned long long value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string ids_words(CommunicationId local, CommunicationId remote) {
  return cm_format("local id 0x%08llx, ", local.value()) + cm_format("remote id 0x%08llx", remote.value());
}

std::string qpn_words(Qpn qpn) { return cm_format("QPN 0x%llx", qpn.value()); }
std::string psn_words(Psn psn) { return cm_format("starting PSN 0x%06llx", psn.value()); }

std::string port_space_words(CmPortSpace space) {
  switch (space) {
    case CmPortSpace::kTcp:
      return "TCP";
    case CmPortSpace::kUdp:
      return "UDP";
    case CmPortSpace::kIb:
      return "IB";
  }
  return cm_format("protocol 0x%02llx", static_cast<std::uint16_t>(space) & 0xFF);
}

// `private_data` starts with an IP CM header if the service says so.
std::string service_words(ServiceId id, std::span<const std::byte> private_data) {
  const auto service = ip_service_of(id);
  if (!service) return cm_format("service id 0x%016llx", id.value());
  std::string words = cm_format("service %llu/", service->port) + port_space_words(service->port_space);
  if (service->port_space == CmPortSpace::kIb) return words;
  const auto header = IpCmHeader::parse(private_data.first<IpCmHeader::kSize>());
  if (!header) return words + ", no IP CM header that can be read";
  const std::string source = to_text(header->source);
  words += header->source.is_ipv4() ? " from " + source : " from [" + source + "]";
  return words + cm_format(":%llu to ", header->source_port) + to_text(header->destination);
}

std::string_view transport_words(CmTransportService service) {
  switch (service) {
    case CmTransportService::kRc:
      return "RC";
    case CmTransportService::kUc:
      return "UC";
    case CmTransportService::kRd:
      return "RD";
    case CmTransportService::kExtended:
      return "an extended transport";
  }
  return "";
}

// Both enumerations of the message that an MRA or REJ is about, whose third value differs.
std::string_view about_words(std::uint8_t message, std::string_view third) {
  const std::array<std::string_view, 4> words = {"the REQ", "the REP", third, "a reserved message"};
  return words[message & 3];
}

std::string details_of(const CmReq& m) {
  std::string words = cm_format("local id 0x%08llx, ", m.local_comm_id.value()) + qpn_words(m.local_qpn) +
                      ", " + psn_words(m.starting_psn) + ", " + service_words(m.service_id, m.private_data) +
                      ", ";
  words += transport_words(m.transport_service_type);
  const auto mtu = path_mtu_from_code(m.path_packet_payload_mtu);
  return words + (mtu ? cm_format(", path MTU %llu", bytes_of(*mtu))
                      : cm_format(", reserved path MTU code %llu", m.path_packet_payload_mtu));
}
std::string details_of(const CmMra& m) {
  std::array<char, 32> time{};
  std::snprintf(time.data(), time.size(), "%.3g s",
                std::chrono::duration<double>(m.service_timeout.duration()).count());
  return ids_words(m.local_comm_id, m.remote_comm_id) + ", about " +
         std::string{about_words(static_cast<std::uint8_t>(m.message_mraed), "the LAP")} +
         ", which will be answered within " + time.data();
}
std::string details_of(const CmRej& m) {
  std::string words = ids_words(m.local_comm_id, m.remote_comm_id) + ", about " +
                      std::string{about_words(static_cast<std::uint8_t>(m.message_rejected), "no message")} +
                      cm_format(", reason %llu", static_cast<std::uint16_t>(m.reason));
  if (const std::string_view reason = words_of(m.reason); !reason.empty()) words.append(": ").append(reason);
  return words;
}
std::string details_of(const CmRep& m) {
  return ids_words(m.local_comm_id, m.remote_comm_id) + ", " + qpn_words(m.local_qpn) + ", " +
         psn_words(m.starting_psn);
}
std::string details_of(const CmRtu& m) { return ids_words(m.local_comm_id, m.remote_comm_id); }
std::string details_of(const CmDreq& m) {
  return ids_words(m.local_comm_id, m.remote_comm_id) + ", remote " + qpn_words(m.remote_qpn_eecn);
}
std::string details_of(const CmDrep& m) { return ids_words(m.local_comm_id, m.remote_comm_id); }
std::string details_of(const CmSidrReq& m) {
  return cm_format("request id 0x%08llx, ", m.request_id.value()) +
         service_words(m.service_id, m.private_data);
}
std::string details_of(const CmSidrRep& m) {
  const std::string words = cm_format("request id 0x%08llx, ", m.request_id.value());
  if (m.status != CmSidrStatus::kValid)
    return words + cm_format("refused with status %llu", static_cast<std::uint8_t>(m.status));
  return words + qpn_words(m.qpn) + cm_format(", Q_Key 0x%llx", m.qkey.value());
}
std::string details_of(const CmLap& m) {
  return ids_words(m.local_comm_id, m.remote_comm_id) + ", remote " + qpn_words(m.remote_qpn_eecn) +
         ", path from " + to_text(m.alternate.local_gid) + " to " + to_text(m.alternate.remote_gid);
}
std::string details_of(const CmApr& m) {
  return ids_words(m.local_comm_id, m.remote_comm_id) +
         cm_format(", status %llu", static_cast<std::uint8_t>(m.ap_status));
}

}  // namespace

std::string cm_details(const CmMessage& message) {
  return std::visit([](const auto& one) { return details_of(one); }, message);
}

}  // namespace roci::proto
