// The commands and events of the rdma_cm character device as bytes: our own structs for those of the kernel's
// rdma/rdma_user_cm.h, which C++ does not take (a flexible array, and sockaddr_in6 of two headers).
//
// Sizes and offsets are checked. Freestanding: the preload shim includes it too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace roci::shim::ucm {

enum class Command : std::uint32_t {
  kCreateId,
  kDestroyId,
  kBindIp,
  kResolveIp,
  kResolveRoute,
  kQueryRoute,
  kConnect,
  kListen,
  kAccept,
  kReject,
  kDisconnect,
  kInitQpAttr,
  kGetEvent,
  kGetOption,
  kSetOption,
  kNotify,
  kJoinIpMulticast,
  kLeaveMulticast,
  kMigrateId,
  kQuery,
  kBind,
  kResolveAddress,
  kJoinMulticast,
};

struct Header {
  std::uint32_t command;
  std::uint16_t in_bytes;   // behind this header
  std::uint16_t out_bytes;  // room for the response
};
static_assert(sizeof(Header) == 8);

inline constexpr std::uint16_t kInet = 2, kInet6 = 10, kInfiniband = 27;  // AF_*
struct SockAddr {  // sockaddr_in6, or a sockaddr_in in its place
  std::uint8_t bytes[28];
};
struct SockAddrStorage {
  std::uint8_t bytes[128];
};
// sockaddr_ib
struct SockAddrIb {
  std::uint16_t family;
  std::uint16_t pkey;
  std::uint32_t flow_info;
  std::uint8_t gid[16];
  std::uint64_t service_id;
  std::uint64_t service_mask;
  std::uint64_t scope_id;
};
static_assert(sizeof(SockAddrIb) == 48);

struct CreateId {
  std::uint64_t uid;
  std::uint64_t response;
  std::uint16_t port_space;
  std::uint8_t qp_type;
  std::uint8_t reserved[5];
};
static_assert(sizeof(CreateId) == 24);
struct CreateIdResponse {
  std::uint32_t id;
};
// DESTROY_ID and LEAVE_MCAST.
struct DestroyId {
  std::uint64_t response;
  std::uint32_t id;
  std::uint32_t reserved;
};
static_assert(sizeof(DestroyId) == 16);
// DESTROY_ID, LEAVE_MCAST and MIGRATE_ID.
struct EventsReported {
  std::uint32_t events_reported;
};
struct BindIp {
  std::uint64_t response;
  SockAddr address;
  std::uint32_t id;
};
static_assert(sizeof(BindIp) == 40);
struct Bind {
  std::uint32_t id;
  std::uint16_t address_bytes;
  std::uint16_t reserved;
  SockAddrStorage address;
};
static_assert(sizeof(Bind) == 136);
struct ResolveIp {
  SockAddr source, destination;
  std::uint32_t id;
  std::uint32_t timeout_ms;
};
static_assert(sizeof(ResolveIp) == 64);
struct ResolveAddress {
  std::uint32_t id;
  std::uint32_t timeout_ms;
  std::uint16_t source_bytes;
  std::uint16_t destination_bytes;
  std::uint32_t reserved;
  SockAddrStorage source, destination;
};
static_assert(sizeof(ResolveAddress) == 272);
struct ResolveRoute {
  std::uint32_t id;
  std::uint32_t timeout_ms;
};
struct Query {
  std::uint64_t response;
  std::uint32_t id;
  std::uint32_t option;  // of QUERY: QueryOption
};
static_assert(sizeof(Query) == 16);
enum class QueryOption : std::uint32_t { kAddress, kPath, kGid };

// ib_user_path_rec; big-endian where the kernel's is.
struct PathRecord {
  std::uint8_t dgid[16], sgid[16];
  std::uint16_t dlid, slid;
  std::uint32_t raw_traffic;
  std::uint32_t flow_label;
  std::uint32_t reversible;
  std::uint32_t mtu;
  std::uint16_t pkey;
  std::uint8_t hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector, rate,
      packet_life_time_selector, packet_life_time, preference;
};
static_assert(sizeof(PathRecord) == 64 && offsetof(PathRecord, pkey) == 52);
struct QueryRouteResponse {
  std::uint64_t node_guid;  // big-endian
  PathRecord paths[2];
  SockAddr source, destination;
  std::uint32_t path_count;
  std::uint8_t port;
  std::uint8_t reserved[3];
  std::uint32_t device_index;
  std::uint32_t reserved_1;
};
static_assert(sizeof(QueryRouteResponse) == 208 && offsetof(QueryRouteResponse, device_index) == 200);
struct QueryAddressResponse {
  std::uint64_t node_guid;  // big-endian
  std::uint8_t port;
  std::uint8_t reserved;
  std::uint16_t pkey;
  std::uint16_t source_bytes;
  std::uint16_t destination_bytes;
  SockAddrStorage source, destination;
  std::uint32_t device_index;
  std::uint32_t reserved_1;
};
static_assert(sizeof(QueryAddressResponse) == 280 && offsetof(QueryAddressResponse, device_index) == 272);
struct QueryPathResponse {  // with the one path that there is
  std::uint32_t path_count;
  std::uint32_t reserved;
  std::uint32_t flags;
  std::uint32_t reserved_1;
  std::uint8_t path_record[64];  // as in a MAD of subnet administration
};
static_assert(sizeof(QueryPathResponse) == 80 && offsetof(QueryPathResponse, flags) == 8);
inline constexpr std::uint32_t kPathFlags = 1 | 2 | 8 | 32;  // GMP, primary, bidirectional

inline constexpr std::uint32_t kUnknownDeviceIndex = 0xFFFFFFFF;  // then devices are found by their GUID

inline constexpr std::size_t kMaxPrivateData = 256;
struct ConnParam {
  std::uint32_t qp_num;
  std::uint32_t qkey;
  std::uint8_t private_data[kMaxPrivateData];
  std::uint8_t private_data_bytes;
  std::uint8_t srq;
  std::uint8_t responder_resources;
  std::uint8_t initiator_depth;
  std::uint8_t flow_control;
  std::uint8_t retry_count;
  std::uint8_t rnr_retry_count;
  std::uint8_t valid;
};
static_assert(sizeof(ConnParam) == 272);
// ib_uverbs_ah_attr
struct AhAttr {
  std::uint8_t dgid[16];
  std::uint32_t flow_label;
  std::uint8_t sgid_index, hop_limit, traffic_class, reserved;
  std::uint16_t dlid;
  std::uint8_t sl, src_path_bits, static_rate, is_global, port_num, reserved_1;
};
static_assert(sizeof(AhAttr) == 32);
struct UdParam {
  std::uint32_t qp_num;
  std::uint32_t qkey;
  AhAttr ah;
  std::uint8_t private_data[kMaxPrivateData];
  std::uint8_t private_data_bytes;
  std::uint8_t reserved[7];
};
static_assert(sizeof(UdParam) == 304);
struct Connect {
  ConnParam parameters;
  std::uint32_t id;
  std::uint32_t reserved;
  std::uint32_t ece[2];  // since Linux 5.8
};
static_assert(sizeof(Connect) == 288);
struct Listen {
  std::uint32_t id;
  std::int32_t backlog;
};
struct Accept {
  std::uint64_t uid;
  ConnParam parameters;
  std::uint32_t id;
  std::uint32_t reserved;
  std::uint32_t ece[2];  // since Linux 5.8
};
static_assert(sizeof(Accept) == 296);
struct Reject {
  std::uint32_t id;
  std::uint8_t private_data_bytes;
  std::uint8_t reason;
  std::uint8_t reserved[2];
  std::uint8_t private_data[kMaxPrivateData];
};
static_assert(sizeof(Reject) == 264);
struct Disconnect {
  std::uint32_t id;
};
struct InitQpAttr {
  std::uint64_t response;
  std::uint32_t id;
  std::uint32_t qp_state;
};
static_assert(sizeof(InitQpAttr) == 16);
// ib_uverbs_qp_attr
struct QpAttr {
  std::uint32_t mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
      qp_access_flags;
  AhAttr ah, alt_ah;
  std::uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
  std::uint16_t pkey_index, alt_pkey_index;
  std::uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
      timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
  std::uint8_t reserved[5];
};
static_assert(sizeof(QpAttr) == 144 && offsetof(QpAttr, ah) == 40 && offsetof(QpAttr, pkey_index) == 124);
struct Notify {
  std::uint32_t id;
  std::uint32_t event;
};
struct JoinIpMulticast {
  std::uint64_t response;
  std::uint64_t uid;
  SockAddr address;
  std::uint32_t id;
};
static_assert(sizeof(JoinIpMulticast) == 48);
struct JoinMulticast {
  std::uint64_t response;
  std::uint64_t uid;
  std::uint32_t id;
  std::uint16_t address_bytes;
  std::uint16_t join_flags;
  SockAddrStorage address;
};
static_assert(sizeof(JoinMulticast) == 152);
struct SetOption {
  std::uint64_t value;  // its address
  std::uint32_t id;
  std::uint32_t level;
  std::uint32_t name;
  std::uint32_t value_bytes;
};
static_assert(sizeof(SetOption) == 24);
inline constexpr std::uint32_t kLevelId = 0, kLevelIb = 1;
inline constexpr std::uint32_t kOptionTos = 0, kOptionReuseAddress = 1, kOptionOneFamilyOnly = 2,
                               kOptionAckTimeout = 3;
inline constexpr std::size_t kMaxOptionBytes = 4096;
struct MigrateId {
  std::uint64_t response;
  std::uint32_t id;
  std::uint32_t fd;
};
static_assert(sizeof(MigrateId) == 16);
struct GetEvent {
  std::uint64_t response;
};

// What is read from the device: one event.
struct EventRecord {
  std::uint64_t uid;
  std::uint32_t id;
  std::uint32_t event;
  std::int32_t status;
  union {
    ConnParam conn;
    UdParam ud;
  } param;
  std::uint32_t reserved;
  std::uint32_t ece[2];
};
static_assert(sizeof(EventRecord) == 336 && offsetof(EventRecord, param) == 20);
// Older libraries do not know the end of it.
inline constexpr std::size_t kLeastEventBytes = offsetof(EventRecord, reserved);

}  // namespace roci::shim::ucm
