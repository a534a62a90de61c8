// What the tests of verbs_check are made of: one side of a connection, a connection, waiting for completions,
// and a message moved once with every byte of the buffers looked at. A failure ends the program with a line
// of text.
#pragma once

#include <endian.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace verbs_check {

using Clock = std::chrono::steady_clock;

inline constexpr std::uint8_t kIpv4GidIndex = 1;
inline constexpr std::size_t kBufferBytes = (std::size_t{1} << 20) + 4096;
inline constexpr std::size_t kQueueDepth = 64;
inline constexpr auto kCompletionLimit = std::chrono::seconds(20);
inline constexpr unsigned kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

[[noreturn]] inline void fail(const std::string& text) {
  std::fprintf(stderr, "verbs_check: %s\n", text.c_str());
  std::_Exit(1);
}

inline std::string error_text(int error) { return std::generic_category().message(error); }

inline void require(bool condition, const std::string& text) {
  if (!condition) {
    fail(text);
  }
}

template <class T>
T* require_made(T* object, const char* call) {
  require(object != nullptr, std::string(call) + ": " + error_text(errno));
  return object;
}

// One side of a connection: a NIC opened, a buffer registered, one QP.
struct Side {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;  // only where the test makes one
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<std::uint8_t> bytes;

  Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() {
    destroy_qp();
    require(srq == nullptr || ibv_destroy_srq(srq) == 0, "ibv_destroy_srq");
    require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    require(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
    require(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
    require(ibv_close_device(context) == 0, "ibv_close_device");
  }
  void destroy_qp() {
    if (qp != nullptr) {
      require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
      qp = nullptr;
    }
  }
  [[nodiscard]] std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(bytes.data() + offset);
  }
  [[nodiscard]] ibv_sge sge(std::size_t offset, std::size_t length) const {
    return {address(offset), static_cast<std::uint32_t>(length), mr->lkey};
  }
};

inline ibv_context* open_nic(std::string_view name) {
  int count = 0;
  ibv_device** list = require_made(ibv_get_device_list(&count), "ibv_get_device_list");
  ibv_context* context = nullptr;
  for (int i = 0; i < count; ++i) {
    if (name == ibv_get_device_name(list[i])) {
      context = require_made(ibv_open_device(list[i]), "ibv_open_device");
    }
  }
  ibv_free_device_list(list);
  require(context != nullptr, "no device " + std::string(name));
  return context;
}

inline void open_without_qp(Side& side, std::string_view nic, unsigned rights = kAllRights) {
  side.bytes.resize(kBufferBytes);
  side.context = open_nic(nic);
  side.pd = require_made(ibv_alloc_pd(side.context), "ibv_alloc_pd");
  side.cq = require_made(ibv_create_cq(side.context, 4 * kQueueDepth, nullptr, nullptr, 0), "ibv_create_cq");
  side.mr = require_made(ibv_reg_mr(side.pd, side.bytes.data(), side.bytes.size(), rights), "ibv_reg_mr");
}

inline ibv_qp* create_qp(Side& side, ibv_qp_type type) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = side.cq;
  init.srq = side.srq;
  init.qp_type = type;
  init.cap.max_send_wr = init.cap.max_recv_wr = kQueueDepth;
  init.cap.max_send_sge = init.cap.max_recv_sge = 4;
  init.cap.max_inline_data = 64;
  return require_made(ibv_create_qp(side.pd, &init), "ibv_create_qp");
}

inline void open(Side& side, std::string_view nic, unsigned rights = kAllRights,
                 ibv_qp_type type = IBV_QPT_RC) {
  open_without_qp(side, nic, rights);
  side.qp = create_qp(side, type);
}

struct ConnectionOptions {
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint8_t timeout = 12;  // 4.096 us x 2^12 = 17 ms
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;
  std::uint32_t first_psn = 0xFFFFF0;  // wraps after 16 packets
};

// Of a connected service.
inline void to_rts(ibv_qp* qp, const ibv_qp* peer, const ConnectionOptions& options = {}) {
  const bool is_rc = qp->qp_type == IBV_QPT_RC;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = kAllRights;
  require(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
          "to INIT");

  ibv_gid peer_gid{};
  require(ibv_query_gid(peer->context, 1, kIpv4GidIndex, &peer_gid) == 0, "ibv_query_gid");
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = options.mtu;
  attr.dest_qp_num = peer->qp_num;
  attr.rq_psn = options.first_psn;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 1;  // 10 us
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = peer_gid;
  attr.ah_attr.grh.sgid_index = kIpv4GidIndex;
  attr.ah_attr.grh.hop_limit = 64;
  require(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0,
          "to RTR");
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_count;
  attr.rnr_retry = options.rnr_retry;
  attr.sq_psn = options.first_psn;
  attr.max_rd_atomic = 4;
  require(ibv_modify_qp(
              qp, &attr,
              IBV_QP_STATE | IBV_QP_SQ_PSN |
                  (is_rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                         : 0)) == 0,
          "to RTS");
}

struct Connection {
  Side requester, responder;
  explicit Connection(const ConnectionOptions& options = {}, unsigned responder_rights = kAllRights,
                      ibv_qp_type type = IBV_QPT_RC) {
    open(requester, "rxe1", kAllRights, type);
    open(responder, "rxe0", responder_rights, type);
    to_rts(requester.qp, responder.qp, options);
    to_rts(responder.qp, requester.qp, options);
  }
};

inline ibv_wc completion(Side& side, const std::string& of) {
  ibv_wc wc{};
  const auto limit = Clock::now() + kCompletionLimit;
  for (;;) {
    const int count = ibv_poll_cq(side.cq, 1, &wc);
    require(count >= 0, "ibv_poll_cq while waiting for " + of);
    if (count == 1) {
      return wc;
    }
    require(Clock::now() < limit, "no completion of " + of);
    usleep(20);
  }
}

inline ibv_wc expect(Side& side, ibv_wc_status status, const std::string& of) {
  const ibv_wc wc = completion(side, of);
  require(wc.status == status, of + ": completed with '" + ibv_wc_status_str(wc.status) + "', expected '" +
                                   ibv_wc_status_str(status) + "'");
  return wc;
}

inline void expect_no_completion(Side& side, const std::string& when) {
  ibv_wc wc{};
  require(ibv_poll_cq(side.cq, 1, &wc) == 0, "a completion too many " + when);
}

inline ibv_send_wr request(ibv_wr_opcode opcode, std::span<ibv_sge> sges) {
  ibv_send_wr wr{};
  wr.wr_id = 0x5EED;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = sges.data();
  wr.num_sge = static_cast<int>(sges.size());
  return wr;
}

inline void post(Side& side, ibv_send_wr& wr, const std::string& what) {
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(side.qp, &wr, &bad);
  require(error == 0, what + ": ibv_post_send: " + error_text(error));
}

inline void post_receive(Side& side, ibv_sge sge) {
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  wr.wr_id = 0xFEED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  const int error = ibv_post_recv(side.qp, &wr, &bad);
  require(error == 0, std::string("ibv_post_recv: ") + error_text(error));
}

// Bytes that no two places or seeds have in common by accident (splitmix64).
inline void fill(std::vector<std::uint8_t>& bytes, std::uint32_t seed) {
  std::uint64_t state = std::uint64_t{seed} << 32;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    state += 0x9E3779B97F4A7C15ULL;
    std::uint64_t word = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
    word ^= word >> 31;
    word |= 0xC0C0C0C0C0C0C0C0ULL;  // no short message that tshark takes for an Ethertype and its protocol
    std::memcpy(bytes.data() + at, &word, 8);
  }
}

// The target range equals the source range, and no byte outside of the target range has changed.
inline void require_moved(const Side& from, std::size_t source, const Side& to,
                          const std::vector<std::uint8_t>& before, std::size_t target, std::size_t length,
                          const std::string& what) {
  require(std::memcmp(from.bytes.data() + source, to.bytes.data() + target, length) == 0,
          what + ": wrong data");
  require(std::memcmp(before.data(), to.bytes.data(), target) == 0,
          what + ": bytes before the target changed");
  require(std::memcmp(before.data() + target + length, to.bytes.data() + target + length,
                      before.size() - target - length) == 0,
          what + ": bytes behind the target changed");
}

struct Operation {
  const char* name;
  ibv_wr_opcode opcode;
  bool takes_receive, has_immediate;
};

inline constexpr std::array kDataOperations{
    Operation{"SEND", IBV_WR_SEND, true, false},
    Operation{"SEND with immediate", IBV_WR_SEND_WITH_IMM, true, true},
    Operation{"RDMA WRITE", IBV_WR_RDMA_WRITE, false, false},
    Operation{"RDMA WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, true, true},
    Operation{"RDMA READ", IBV_WR_RDMA_READ, false, false},
};

inline void move_once(Connection& connection, const Operation& operation, std::size_t length,
                      std::uint32_t seed) {
  Side& requester = connection.requester;
  Side& responder = connection.responder;
  const std::string what =
      std::string(operation.name) + " of " + std::to_string(length) + " bytes, seed " + std::to_string(seed);
  const std::size_t source = 64 + seed % 7;  // unaligned now and then
  const std::size_t target = 128 + seed % 5;
  fill(requester.bytes, seed);
  fill(responder.bytes, seed + 1);
  const bool is_read = operation.opcode == IBV_WR_RDMA_READ;
  Side& to = is_read ? requester : responder;
  Side& from = is_read ? responder : requester;
  const std::vector<std::uint8_t> before = to.bytes;

  const bool receive_has_data = operation.opcode == IBV_WR_SEND || operation.opcode == IBV_WR_SEND_WITH_IMM;
  if (operation.takes_receive) {
    post_receive(responder, responder.sge(target, receive_has_data ? length : 0));
  }
  ibv_sge sge = requester.sge(is_read ? target : source, length);
  ibv_send_wr wr = request(operation.opcode, {&sge, 1});
  const std::uint32_t immediate = 0xC0FFEE00U + seed % 100;
  wr.imm_data = htobe32(immediate);
  wr.wr.rdma.remote_addr = responder.address(is_read ? source : target);
  wr.wr.rdma.rkey = responder.mr->rkey;
  post(requester, wr, what);

  const ibv_wc sent = expect(requester, IBV_WC_SUCCESS, what);
  require(sent.wr_id == 0x5EED && sent.qp_num == requester.qp->qp_num, what + ": wrong wr_id or qp_num");
  if (operation.takes_receive) {
    const ibv_wc got = expect(responder, IBV_WC_SUCCESS, what + " at the responder");
    require(got.wr_id == 0xFEED, what + ": wrong wr_id of the receive");
    require(got.byte_len == length, what + ": byte_len " + std::to_string(got.byte_len));
    require(((got.wc_flags & IBV_WC_WITH_IMM) != 0) == operation.has_immediate,
            what + ": wrong immediate flag");
    require(!operation.has_immediate || be32toh(got.imm_data) == immediate, what + ": wrong immediate data");
  }
  require_moved(from, source, to, before, target, length, what);
}

}  // namespace verbs_check
