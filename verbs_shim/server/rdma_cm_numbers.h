// What the connection manager says, in the numbers and structs of the rdma_cm ABI, and the other way round.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "emulator/cm/connection_manager.h"
#include "verbs_shim/rdma_cm_abi.h"

namespace roci::shim::ucm {

inline constexpr std::uint8_t kVendorOptionReject = 35;  // reason of a REJ [IBTA 12.6.7.2]

struct IdKind {
  emulator::cm::PortSpace space;
  emulator::QpType type;
};
// Nothing: no such port space, or QP type of the one that leaves it open.
[[nodiscard]] std::optional<IdKind> kind_of(std::uint16_t port_space, std::uint8_t qp_type);
[[nodiscard]] const char* name_of(emulator::cm::PortSpace space);

// ---- socket addresses
[[nodiscard]] std::uint16_t family_of(std::span<const std::uint8_t> address);
// Of AF_INET or AF_INET6; nothing: another family.
[[nodiscard]] std::optional<emulator::cm::SocketAddress> address_of(std::span<const std::uint8_t> address);
// The same, if `size_bytes` is that of the family.
[[nodiscard]] std::optional<emulator::cm::SocketAddress> address_of(std::span<const std::uint8_t> address,
                                                                    std::size_t size_bytes);
[[nodiscard]] std::string text_of(const emulator::cm::SocketAddress& address);

// ---- routes
using Nics = std::vector<emulator::NicConfig>;
[[nodiscard]] QueryRouteResponse route_response(const emulator::cm::Route& route, const Nics& nics);
[[nodiscard]] QueryAddressResponse address_response(const emulator::cm::Route& route, const Nics& nics,
                                                    bool as_gids);
[[nodiscard]] QueryPathResponse path_response(const emulator::cm::Route& route, const Nics& nics);

// ---- connections
[[nodiscard]] emulator::cm::PrivateData private_data_of(std::span<const std::uint8_t> data,
                                                        std::size_t length_bytes);
[[nodiscard]] emulator::cm::ConnectionParameters parameters_of(const ConnParam& wanted);
[[nodiscard]] QpAttr qp_attr_of(const emulator::cm::QpTransition& transition);
void set_parameters(EventRecord& record, const emulator::cm::Event& event);

}  // namespace roci::shim::ucm
