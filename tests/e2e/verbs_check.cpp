// A verbs application that validates what the distribution's tools do not: data of every operation,
// completion statuses of every error, and that garbage in the shared rings harms nobody else. Run it as `roci
// run -- verbs_check WHAT`.
//
// It opens rxe0 and rxe1 in one process and connects QPs across them. It uses libibverbs only, so it knows
// nothing of the daemon: on a machine with hardware it would say the same.
#include <endian.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tests/e2e/verbs_services.h"
#include "tests/e2e/verbs_side.h"

namespace verbs_check {
namespace {

constexpr std::size_t kGarbageWords = std::size_t{256} * 1024;  // of each mapping; one may be sparse and huge

void atomics(Connection& connection) {
  Side& requester = connection.requester;
  Side& responder = connection.responder;
  std::uint64_t expected = 0x0123456789ABCDEFULL;
  std::memcpy(responder.bytes.data() + 256, &expected, 8);
  for (int round = 0; round < 20; ++round) {
    const bool swap = round % 2 == 1;
    const bool matches = round % 4 == 1;
    ibv_sge sge = requester.sge(512, 8);
    ibv_send_wr wr = request(swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD, {&sge, 1});
    wr.wr.atomic.remote_addr = responder.address(256);
    wr.wr.atomic.rkey = responder.mr->rkey;
    wr.wr.atomic.compare_add = swap ? (matches ? expected : ~expected) : 0xFFFFFFFF00000001ULL;
    wr.wr.atomic.swap = 0x1111111111111111ULL * static_cast<unsigned long long>(round);
    post(requester, wr, "atomic");
    expect(requester, IBV_WC_SUCCESS, "atomic");
    std::uint64_t original = 0;
    std::uint64_t now = 0;
    std::memcpy(&original, requester.bytes.data() + 512, 8);
    std::memcpy(&now, responder.bytes.data() + 256, 8);
    require(original == expected, "atomic: wrong original value");
    expected = swap ? (matches ? wr.wr.atomic.swap : expected) : expected + wr.wr.atomic.compare_add;
    require(now == expected, "atomic: wrong new value");
  }
}

// Gathers from four pieces, with a piece of nothing among them, and inline data.
void pieces(Connection& connection) {
  Side& requester = connection.requester;
  Side& responder = connection.responder;
  fill(requester.bytes, 77);
  fill(responder.bytes, 78);
  std::vector<ibv_sge> sges{requester.sge(10, 1000), requester.sge(5000, 1), requester.sge(9000, 3333),
                            requester.sge(20000, 3)};
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, sges);
  wr.wr.rdma.remote_addr = responder.address(3);
  wr.wr.rdma.rkey = responder.mr->rkey;
  post(requester, wr, "gathering WRITE");
  expect(requester, IBV_WC_SUCCESS, "gathering WRITE");
  std::size_t at = 3;
  for (const ibv_sge& sge : sges) {
    require(
        std::memcmp(responder.bytes.data() + at, reinterpret_cast<const void*>(sge.addr), sge.length) == 0,
        "gathering WRITE: wrong data");
    at += sge.length;
  }

  std::array<std::uint8_t, 64> small{};
  small.fill(0xA5);
  ibv_sge sge{reinterpret_cast<std::uint64_t>(small.data()), small.size(), 0};  // inline needs no key
  wr = request(IBV_WR_RDMA_WRITE, {&sge, 1});
  wr.send_flags |= IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = responder.address(100000);
  wr.wr.rdma.rkey = responder.mr->rkey;
  post(requester, wr, "inline WRITE");
  small.fill(0);  // may be reused as soon as the post returns
  expect(requester, IBV_WC_SUCCESS, "inline WRITE");
  require(std::all_of(responder.bytes.begin() + 100000, responder.bytes.begin() + 100064,
                      [](std::uint8_t b) { return b == 0xA5; }),
          "inline WRITE: wrong data");
}

// Every operation, in one packet, two, three and many: each RC opcode goes over the wire, both ways.
void check_operations() {
  constexpr std::array kMtus{IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096};
  std::uint32_t seed = 1;
  for (const ibv_mtu mtu : kMtus) {
    const std::size_t mtu_bytes = std::size_t{128} << mtu;
    ConnectionOptions options;
    options.mtu = mtu;
    Connection connection(options);
    for (const Operation& operation : kDataOperations) {
      for (const std::size_t length :
           {std::size_t{0}, std::size_t{1}, std::size_t{7}, mtu_bytes - 1, mtu_bytes, mtu_bytes + 1,
            2 * mtu_bytes, 2 * mtu_bytes + 3, 5 * mtu_bytes + 2}) {
        move_once(connection, operation, length, seed++);
      }
    }
    atomics(connection);
    pieces(connection);
    expect_no_completion(connection.requester, "at the requester");
    expect_no_completion(connection.responder, "at the responder");
  }
  ConnectionOptions options;
  options.mtu = IBV_MTU_4096;
  Connection connection(options);
  for (const Operation& operation : kDataOperations) {
    move_once(connection, operation, (std::size_t{1} << 20) + 5, seed++);
  }
}

// The error comes as the first completion, everything behind it is flushed, and the QP is in the error state.
void expect_error(Connection& connection, ibv_send_wr wr, ibv_wc_status status, const std::string& what) {
  Side& requester = connection.requester;
  ibv_sge sge = requester.sge(0, 8);
  ibv_send_wr behind = request(IBV_WR_RDMA_WRITE, {&sge, 1});
  behind.wr.rdma.remote_addr = connection.responder.address(0);
  behind.wr.rdma.rkey = connection.responder.mr->rkey;
  behind.send_flags = 0;  // an error completes, signaled or not
  wr.next = &behind;
  post(requester, wr, what);
  expect(requester, status, what);
  expect(requester, IBV_WC_WR_FLUSH_ERR, what + ", the request behind it");
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  require(ibv_query_qp(requester.qp, &attr, IBV_QP_STATE, &init) == 0, "ibv_query_qp");
  require(attr.qp_state == IBV_QPS_ERR, what + ": the QP is in state " + std::to_string(attr.qp_state));
}

ibv_send_wr write_request(Connection& connection, ibv_sge& sge) {
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, {&sge, 1});
  wr.wr.rdma.remote_addr = connection.responder.address(0);
  wr.wr.rdma.rkey = connection.responder.mr->rkey;
  return wr;
}

void check_errors() {
  {
    Connection connection;
    ibv_sge sge = connection.requester.sge(0, 64);
    sge.lkey ^= 0x5A5A5A;
    expect_error(connection, write_request(connection, sge), IBV_WC_LOC_PROT_ERR, "a bad lkey");
  }
  {
    Connection connection;
    ibv_sge sge = connection.requester.sge(kBufferBytes - 32, 64);
    expect_error(connection, write_request(connection, sge), IBV_WC_LOC_PROT_ERR,
                 "a piece beyond its region");
  }
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Connection connection;
    ibv_sge sge = connection.requester.sge(0, 64);
    ibv_send_wr wr = write_request(connection, sge);
    wr.opcode = opcode;
    wr.wr.rdma.rkey ^= 0x5A5A5A;
    expect_error(connection, wr, IBV_WC_REM_ACCESS_ERR, "a bad rkey");
  }
  {
    Connection connection;
    ibv_sge sge = connection.requester.sge(0, 64);
    ibv_send_wr wr = write_request(connection, sge);
    wr.wr.rdma.remote_addr += kBufferBytes - 32;
    expect_error(connection, wr, IBV_WC_REM_ACCESS_ERR, "a WRITE beyond the remote region");
  }
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    Connection connection({}, IBV_ACCESS_LOCAL_WRITE);
    ibv_sge sge = connection.requester.sge(0, 8);
    ibv_send_wr wr = write_request(connection, sge);
    wr.opcode = opcode;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic.remote_addr = connection.responder.address(0);
      wr.wr.atomic.rkey = connection.responder.mr->rkey;
    }
    expect_error(connection, wr, IBV_WC_REM_ACCESS_ERR, "an operation that the region does not allow");
  }
  {
    Connection connection;
    post_receive(connection.responder, connection.responder.sge(0, 16));
    ibv_sge sge = connection.requester.sge(0, 64);
    expect_error(connection, request(IBV_WR_SEND, {&sge, 1}), IBV_WC_REM_INV_REQ_ERR,
                 "a SEND longer than the receive");
    expect(connection.responder, IBV_WC_LOC_LEN_ERR, "the receive that was too short");
  }
  {
    ConnectionOptions options;
    options.rnr_retry = 2;
    Connection connection(options);
    ibv_sge sge = connection.requester.sge(0, 64);
    expect_error(connection, request(IBV_WR_SEND, {&sge, 1}), IBV_WC_RNR_RETRY_EXC_ERR,
                 "a SEND without a receive");
  }
  {
    ConnectionOptions options;
    options.timeout = 8;  // 1 ms
    options.retry_count = 2;
    Connection connection(options);
    connection.responder.destroy_qp();
    ibv_sge sge = connection.requester.sge(0, 64);
    expect_error(connection, write_request(connection, sge), IBV_WC_RETRY_EXC_ERR, "a peer QP that is gone");
  }
  {  // To ERR by modify: posted receives are flushed.
    Connection connection;
    post_receive(connection.responder, connection.responder.sge(0, 16));
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    require(ibv_modify_qp(connection.responder.qp, &attr, IBV_QP_STATE) == 0, "to ERR");
    expect(connection.responder, IBV_WC_WR_FLUSH_ERR, "a receive of a QP moved to ERR");
  }
}

// What a device cannot do, and what is in use, is refused with the errno a driver gives; the context works
// on.
void check_refusals() {
  Connection connection;
  Side& side = connection.requester;
  const auto refused = [](const void* object, int error, const char* what) {
    require(object == nullptr, std::string(what) + " was not refused");
    require(errno == error, std::string(what) + " was refused with " + error_text(errno));
  };
  const auto create_qp = [&](ibv_qp_type type, ibv_srq* srq, std::uint32_t max_send_sge) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = side.cq;
    init.srq = srq;
    init.qp_type = type;
    init.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = max_send_sge,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    return ibv_create_qp(side.pd, &init);
  };
  const auto create_srq = [&](std::uint32_t max_wr, std::uint32_t max_sge) {
    ibv_srq_init_attr init{};
    init.attr.max_wr = max_wr;
    init.attr.max_sge = max_sge;
    return ibv_create_srq(side.pd, &init);
  };
  refused(create_qp(IBV_QPT_RAW_PACKET, nullptr, 1), EOPNOTSUPP, "a raw packet QP");
  refused(create_qp(IBV_QPT_UD, nullptr, 33), EINVAL, "a QP of 33 SGEs");
  refused(create_srq(0, 1), EINVAL, "an SRQ of no receives");
  refused(create_srq(16385, 1), EINVAL, "an SRQ of too many receives");
  refused(create_srq(1, 33), EINVAL, "an SRQ of 33 SGEs");
  ibv_ah_attr address{};
  address.port_num = 1;
  refused(ibv_create_ah(side.pd, &address), EINVAL, "an address handle without a GID");

  ibv_srq* const srq = require_made(create_srq(15, 1), "an SRQ");
  ibv_srq_attr limit{};
  limit.srq_limit = 16;
  require(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == EINVAL,
          "a limit above an SRQ's size was not refused");
  ibv_qp* const user = require_made(create_qp(IBV_QPT_RC, srq, 1), "a QP with an SRQ");
  require(ibv_destroy_srq(srq) == EBUSY, "destroying an SRQ with a live QP was not refused with EBUSY");
  ibv_gid group{};
  group.raw[0] = 0xFF;
  group.raw[15] = 1;
  require(ibv_attach_mcast(user, &group, 0) == EINVAL, "attaching an RC QP to a group was not refused");
  require(ibv_destroy_qp(user) == 0 && ibv_destroy_srq(srq) == 0, "destroying an SRQ and its QP");
  ibv_qp* const datagram = require_made(create_qp(IBV_QPT_UD, nullptr, 1), "a UD QP");
  require(ibv_detach_mcast(datagram, &group, 0) == EINVAL, "leaving a group never joined was not refused");
  require(ibv_destroy_qp(datagram) == 0, "destroying a UD QP");

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  require(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE) == EINVAL, "RTS to INIT was not refused with EINVAL");
  require(ibv_destroy_cq(side.cq) == EBUSY, "destroying a CQ with a live QP was not refused with EBUSY");
  require(ibv_dealloc_pd(side.pd) == EBUSY, "deallocating a PD with a live QP was not refused with EBUSY");
  move_once(connection, kDataOperations[2], 5000, 4711);
}

// Garbage in everything that is shared with the daemon, then doorbells. Nothing is asked of this process's
// own connections afterwards; the caller looks whether the daemon and its other clients still work.
void write_garbage(std::uint32_t seed) {
  auto* connection = new Connection();  // never destroyed: its destructor expects a sane daemon side
  std::mt19937 dice(seed);
  struct Mapping {
    std::uintptr_t begin, end;
  };
  std::vector<Mapping> mappings;
  std::FILE* maps = require_made(std::fopen("/proc/self/maps", "re"), "/proc/self/maps");
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), maps) != nullptr) {
    char* rest = nullptr;  // "begin-end rights ..."
    const std::uintptr_t begin = std::strtoul(line.data(), &rest, 16);
    const std::uintptr_t end = *rest == '-' ? std::strtoul(rest + 1, &rest, 16) : begin;
    if (end > begin && std::string_view(rest).substr(0, 5) == " rw-s") {
      mappings.push_back({begin, end});
    }
  }
  std::fclose(maps);
  require(!mappings.empty(), "this process shares no memory with the daemon: the test would prove nothing");
  for (int round = 0; round < 200; ++round) {
    for (const Mapping& mapping : mappings) {
      const std::size_t words = std::min((mapping.end - mapping.begin) / 4, kGarbageWords);
      auto* memory = reinterpret_cast<volatile std::uint32_t*>(mapping.begin);
      const bool all = round % 10 == 0;
      for (std::size_t i = 0; i < (all ? words : 64); ++i) {
        const std::size_t at = all ? i : dice() % std::min<std::size_t>(words, 1024);
        memory[at] = static_cast<std::uint32_t>(dice() % 4 == 0 ? dice() % 256 : dice());
      }
    }
    for (Side* side : {&connection->requester, &connection->responder}) {
      // The provider's own doorbell: {command, words in and out, response, QP handle, nothing to post}.
      struct {
        std::uint32_t command;
        std::uint16_t in_words, out_words;
        std::uint64_t response;
        std::uint32_t qp_handle, wr_count, sge_count, wqe_size;
      } doorbell{IB_USER_VERBS_CMD_POST_SEND, sizeof(doorbell) / 4, 1, 0, side->qp->handle, 0, 0, 64};
      std::uint32_t response = 0;
      doorbell.response = reinterpret_cast<std::uint64_t>(&response);
      // Its answer does not matter: the QP's state in the shared page is garbage, too.
      [[maybe_unused]] const ssize_t answer = write(side->context->cmd_fd, &doorbell, sizeof(doorbell));
    }
    usleep(1000);
  }
  std::_Exit(0);
}

// Operations without end, to be killed at any moment. After `milliseconds`: a fork whose child lives on and
// keeps all that it inherited, or another program in this process's place.
[[noreturn]] void move_without_end(std::string_view then, unsigned milliseconds) {
  constexpr const char* kLingerSeconds = "0.3";
  Connection connection;
  const auto at = Clock::now() + std::chrono::milliseconds(milliseconds);
  bool is_pending = then == "fork" || then == "exec";
  for (std::uint32_t seed = 1;; ++seed) {
    move_once(connection, {"WRITE", IBV_WR_RDMA_WRITE, false, false}, 1 + seed % 60000, seed);
    move_once(connection, {"SEND", IBV_WR_SEND, true, false}, 1 + seed % 60000, seed);
    if (!is_pending || Clock::now() < at) continue;
    is_pending = false;
    if (then == "exec" || fork() == 0) {
      execlp("sleep", "sleep", kLingerSeconds, nullptr);
      fail("execlp: " + error_text(errno));
    }
  }
}

}  // namespace
}  // namespace verbs_check

int main(int argc, char** argv) {
  using namespace verbs_check;
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "operations") {
    check_operations();
  } else if (what == "errors") {
    check_errors();
  } else if (what == "refusals") {
    check_refusals();
  } else if (what == "datagrams" || what == "routed-datagrams") {
    check_datagrams(what == "datagrams");
  } else if (what == "multicast") {
    check_multicast();
  } else if (what == "receive-multicast" && argc == 3) {
    receive_multicast(argv[2]);
  } else if (what == "send-multicast" && argc == 3) {
    send_multicast(argv[2]);
  } else if (what == "lonely" && argc == 3) {
    check_lonely(argv[2]);
  } else if (what == "shared-receives") {
    check_shared_receives();
  } else if (what == "windows") {
    check_windows();
  } else if (what == "unreliable-connection") {
    check_unreliable_connection();
  } else if (what == "atomic-write") {
    check_atomic_write();
  } else if (what == "resize") {
    check_resize();
  } else if (what == "garbage" && argc == 3) {
    write_garbage(static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)));
  } else if (what == "traffic" && argc == 4) {
    move_without_end(argv[2], static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)));
  } else {
    std::fprintf(
        stderr,
        "usage: verbs_check operations | errors | refusals | datagrams | routed-datagrams | multicast |\n"
        "         shared-receives | windows | unreliable-connection | atomic-write | resize |\n"
        "         garbage SEED |\n"
        "         receive-multicast GROUP | send-multicast GROUP | lonely GID |\n"
        "         traffic plain|fork|exec MS\n");
    return 2;
  }
  std::printf("verbs_check %s: all as expected\n", argv[1]);
  return 0;
}
