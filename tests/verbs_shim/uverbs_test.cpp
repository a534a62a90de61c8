// uverbs commands, one by one: what is granted, and the errno of everything that is not.
#include <poll.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "emulator/ring_shape.h"
#include "emulator/shared_layout.h"
#include "tests/verbs_shim/server_fixture.h"
#include "tests/verbs_shim/verbs_client.h"
#include "verbs_shim/server/uverbs_numbers.h"

namespace roci::shim {
namespace {

constexpr std::size_t kPageBytes = 4096;

TEST_CASE("the context comes first and once") {
  ServerFixture f;
  TestClient client = f.connect();
  REQUIRE(client.open_device().error == 0);
  const std::array<std::uint64_t, 1> core{};
  CHECK(client.uverbs(client.legacy(IB_USER_VERBS_CMD_ALLOC_PD, core, 4)).error == EINVAL);
  CHECK(client.get_context().error == 0);
  CHECK(client.get_context().error == EINVAL);
}

TEST_CASE("device attributes, legacy and extended") {
  ServerFixture f;
  Verbs v(f);
  const std::array<std::uint64_t, 1> core{};
  const auto legacy = v.run(IB_USER_VERBS_CMD_QUERY_DEVICE, core, kRoom<ib_uverbs_query_device_resp>)
                          .response<ib_uverbs_query_device_resp>();
  CHECK(legacy.max_qp == 16384);
  CHECK(legacy.atomic_cap == 1);
  CHECK(legacy.phys_port_cnt == 1);
  CHECK(legacy.device_cap_flags == 0x1223C40);
  CHECK(legacy.max_srq == 8192);
  CHECK(legacy.max_srq_wr == 16384);
  CHECK(legacy.max_srq_sge == 32);
  CHECK(legacy.max_mw == 65536);
  CHECK(legacy.max_ah == 65536);
  CHECK(legacy.max_mcast_grp == 8192);
  CHECK(legacy.max_total_mcast_qp_attach == 8192 * 64);
  CHECK(__builtin_bswap64(legacy.node_guid) == 0x000000FFFE000001u);
  ib_uverbs_ex_query_device wanted{};
  const TestReply reply = v.client.uverbs(
      v.client.extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE, wanted, kRoom<ib_uverbs_ex_query_device_resp>));
  const auto extended = reply.response<ib_uverbs_ex_query_device_resp>();
  CHECK(extended.base.max_qp == legacy.max_qp);
  CHECK(extended.response_length == sizeof extended);
  // An older library has less room, a newer one more.
  const std::size_t small = offsetof(ib_uverbs_ex_query_device_resp, odp_caps);
  const TestReply old = v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE, wanted, small));
  CHECK(old.payload.size() == sizeof(UverbsReply) + small);
  CHECK(old.response<ib_uverbs_ex_query_device_resp>().response_length == small);
  const TestReply newer = v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE, wanted, 1024));
  CHECK(newer.payload.size() == sizeof(UverbsReply) + 1024);
  wanted.comp_mask = 1;
  CHECK(v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE, wanted, 1024)).error == EINVAL);
}

TestReply query_port(Verbs& v, std::uint8_t port) {
  ib_uverbs_query_port core{};
  core.port_num = port;
  return v.run(IB_USER_VERBS_CMD_QUERY_PORT, core, kRoom<ib_uverbs_query_port_resp>);
}

TEST_CASE("port attributes follow the link") {
  ServerFixture f;
  Verbs v(f, 1);
  const auto port = query_port(v, 1).response<ib_uverbs_query_port_resp>();
  CHECK(port.state == 4);
  CHECK(port.gid_tbl_len == 16);
  CHECK(port.active_mtu == 5);
  CHECK(port.link_layer == 2);
  CHECK(port.max_msg_sz == 0x80000000u);
  f.server().on_link({1}, false);
  CHECK(eventually([&] { return query_port(v, 1).response<ib_uverbs_query_port_resp>().state == 1; }));
  CHECK(query_port(v, 2).error == EINVAL);
}

TEST_CASE("commands that are too short, too small or unknown") {
  ServerFixture f;
  Verbs v(f);
  const std::array<std::uint64_t, 1> none{};
  CHECK(v.run(IB_USER_VERBS_CMD_ALLOC_PD, none, 0).error == ENOSPC);  // no room for the response
  CHECK(v.run(IB_USER_VERBS_CMD_REG_MR, none, 16).error == ENOSPC);   // request cut off
  ib_uverbs_create_cq cq{};
  cq.cqe = 1;
  cq.comp_channel = -1;
  CHECK(v.run(IB_USER_VERBS_CMD_CREATE_CQ, cq, kRoom<ib_uverbs_create_cq_resp>).error ==
        EINVAL);  // nor the driver's
  const std::vector<std::byte> bytes = v.client.legacy(IB_USER_VERBS_CMD_ALLOC_PD, none, 8);
  CHECK(v.client.uverbs({bytes.begin(), bytes.end() - 4}).error == EINVAL);  // not as long as in_words says
  for (const std::uint32_t command : {IB_USER_VERBS_CMD_POLL_CQ, IB_USER_VERBS_CMD_OPEN_XRCD,
                                      IB_USER_VERBS_CMD_OPEN_QP, IB_USER_VERBS_CMD_REREG_MR}) {
    INFO("command " << command);
    CHECK(v.run(command, none, 64).error == EOPNOTSUPP);
  }
  CHECK(v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_CREATE_WQ, none, 64)).error == EOPNOTSUPP);
  CHECK(v.run(200, none, 64).error == EOPNOTSUPP);
}

TEST_CASE("handles that name nothing") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t kNone = 77;
  CHECK(v.run(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd{kNone}, 0).error == EINVAL);
  CHECK(v.run(IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr{kNone}, 0).error == EINVAL);
  CHECK(v.destroy_cq(kNone).error == EINVAL);
  CHECK(v.run(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_req_notify_cq{kNone, 0}, 0).error == EINVAL);
  CHECK(v.run(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_req_notify_cq{0xFFFFFFFFu, 0}, 0).error == EINVAL);
  CHECK(v.modify(Verbs::to_init(kNone)) == EINVAL);
  ib_uverbs_query_qp query{};
  query.qp_handle = kNone;
  CHECK(v.run(IB_USER_VERBS_CMD_QUERY_QP, query, kRoom<ib_uverbs_query_qp_resp>).error == EINVAL);
  ib_uverbs_destroy_qp destroy{};
  destroy.qp_handle = kNone;
  CHECK(v.run(IB_USER_VERBS_CMD_DESTROY_QP, destroy, kRoom<ib_uverbs_destroy_qp_resp>).error == EINVAL);
  static std::array<std::byte, 64> memory;
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  CHECK(v.reg_mr(kNone, at, 64, 1, at).error == EINVAL);
  const std::uint32_t pd = v.pd(), cq = v.cq();
  CHECK(v.create_qp(v.qp_request(kNone, cq)).error == EINVAL);
  CHECK(v.create_qp(v.qp_request(pd, kNone)).error == EINVAL);
  CHECK(v.create_cq(16, 1, 12345).error == EBADF);  // a channel that is none of ours
}

TEST_CASE("memory regions") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t pd = v.pd();
  void* const base =
      ::mmap(nullptr, 16 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto at = reinterpret_cast<std::uintptr_t>(base);
  REQUIRE(::munmap(static_cast<std::byte*>(base) + 8 * kPageBytes, 4096) == 0);
  REQUIRE(::mprotect(static_cast<std::byte*>(base) + 12 * kPageBytes, 4096, PROT_READ) == 0);

  const TestReply ok = v.reg_mr(pd, at + 5, 8 * kPageBytes - 5, 0xF, at + 5);
  REQUIRE(ok.error == 0);
  CHECK(ok.response<ib_uverbs_reg_mr_resp>().lkey != 0);
  CHECK(v.reg_mr(pd, at, 9 * kPageBytes, 1, at).error == EFAULT);                       // ends in the hole
  CHECK(v.reg_mr(pd, at, 12 * kPageBytes, 1, at).error == EFAULT);                      // spans it
  CHECK(v.reg_mr(pd, at + 8 * kPageBytes, 1, 0, at + 8 * kPageBytes).error == EFAULT);  // lies in it
  CHECK(v.reg_mr(pd, at + 9 * kPageBytes, 7 * kPageBytes, 0, at).error == 0);       // reading read-only pages
  CHECK(v.reg_mr(pd, at + 9 * kPageBytes, 7 * kPageBytes, 1, at).error == EFAULT);  // writing them
  CHECK(v.reg_mr(pd, at, 4096, 1, 0x10000).error == 0);                             // under another name
  CHECK(v.reg_mr(pd, at, 4096, 1, 0x10001).error == EINVAL);                        // of another page offset
  CHECK(v.reg_mr(pd, at, 0, 1, at).error == EINVAL);
  CHECK(v.reg_mr(pd, ~std::uint64_t{4095}, 8192, 1, 0).error == EINVAL);
  CHECK(v.reg_mr(pd, at, 4096, emulator::kAccessRemoteWrite, at).error == EINVAL);
  CHECK(v.reg_mr(pd, at, 4096, emulator::kAccessRemoteAtomic, at).error == EINVAL);
  CHECK(v.reg_mr(pd, at, 4096, emulator::kAccessRemoteRead, at).error == 0);
  CHECK(v.reg_mr(pd, at, 4096, 1 | 1u << 20, at).error == 0);  // relaxed ordering: optional
  CHECK(v.reg_mr(pd, at, 4096, 1 | emulator::kAccessOnDemand, at).error == EOPNOTSUPP);
  CHECK(v.reg_mr(pd, at, 4096, 1 | 1u << 12, at).error == EINVAL);
  CHECK(v.run(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd{pd}, 0).error == EBUSY);
  const ib_uverbs_dereg_mr dereg{ok.response<ib_uverbs_reg_mr_resp>().mr_handle};
  CHECK(v.run(IB_USER_VERBS_CMD_DEREG_MR, dereg, 0).error == 0);
  CHECK(v.run(IB_USER_VERBS_CMD_DEREG_MR, dereg, 0).error == EINVAL);
  ::munmap(base, 16 * kPageBytes);
}

TEST_CASE("a CQ's ring lies where the response says") {
  ServerFixture f;
  Verbs v(f);
  for (const std::uint32_t entries : {1u, 3u, 4u, 100u, 65536u}) {
    const TestReply reply = v.create_cq(entries);
    REQUIRE(reply.error == 0);
    const auto created = reply.response<ib_uverbs_create_cq_resp>();
    const auto ring = reply.as<MmapInfo>(sizeof(UverbsReply) + sizeof created);
    const auto shape = emulator::cq_ring_shape(entries);
    CHECK(created.cqe == shape.slots - 1);
    CHECK(created.cqe >= entries);
    CHECK(ring.size_bytes >= shape.bytes());
    const auto* const header = reinterpret_cast<const emulator::RingHeader*>(v.memory + ring.offset);
    CHECK(header->index_mask == shape.slots - 1);
    CHECK(header->log2_element_bytes == emulator::kLog2CqeBytes);
    CHECK(v.destroy_cq(created.cq_handle).error == 0);
    CHECK(header->index_mask == 0);  // the pages went back
  }
  CHECK(v.create_cq(0).error == EINVAL);
  CHECK(v.create_cq(65537).error == EINVAL);
  CHECK(v.create_cq(0xFFFFFFFFu).error == EINVAL);
  ib_uverbs_create_cq vector{};
  vector.cqe = 1;
  vector.comp_channel = -1;
  vector.comp_vector = 1;
  CHECK(v.run(IB_USER_VERBS_CMD_CREATE_CQ, vector, 24).error == EINVAL);
}

TEST_CASE("an extended CQ answers in the extended shape") {
  ServerFixture f;
  Verbs v(f);
  ib_uverbs_ex_create_cq core{};
  core.cqe = 10;
  core.comp_channel = -1;
  const std::size_t room = kRoom<ib_uverbs_ex_create_cq_resp>;
  const TestReply reply =
      v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_CREATE_CQ, core, room, sizeof(MmapInfo)));
  REQUIRE(reply.error == 0);
  CHECK(reply.response<ib_uverbs_ex_create_cq_resp>().base.cqe == 15);
  CHECK(reply.response<ib_uverbs_ex_create_cq_resp>().response_length == room);
  CHECK(reply.as<MmapInfo>(sizeof(UverbsReply) + room).offset >= emulator::kControlAreaBytes);
  core.flags = 1;
  CHECK(v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_CREATE_CQ, core, room, 16)).error ==
        EOPNOTSUPP);
}

TEST_CASE("a QP gets what fits into its rings") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t pd = v.pd(), cq = v.cq();
  struct Case {
    std::uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_bytes;
  };
  for (const Case& c :
       {Case{0, 0, 0, 0, 0}, Case{1, 1, 1, 1, 0}, Case{10, 300, 2, 5, 60}, Case{16384, 16384, 32, 32, 512}}) {
    ib_uverbs_create_qp request = v.qp_request(pd, cq);
    request.max_send_wr = c.send_wr;
    request.max_recv_wr = c.recv_wr;
    request.max_send_sge = c.send_sge;
    request.max_recv_sge = c.recv_sge;
    request.max_inline_data = c.inline_bytes;
    const TestReply reply = v.create_qp(request);
    REQUIRE(reply.error == 0);
    const auto created = reply.response<ib_uverbs_create_qp_resp>();
    const auto rings = reply.as<QpMmapInfo>(sizeof(UverbsReply) + sizeof created);
    CHECK(created.max_send_wr >= c.send_wr);
    CHECK(created.max_recv_wr >= c.recv_wr);
    CHECK(created.max_send_sge >= c.send_sge);
    CHECK(created.max_recv_sge >= c.recv_sge);
    CHECK(created.max_inline_data >= c.inline_bytes);
    const auto* const send = reinterpret_cast<const emulator::RingHeader*>(v.memory + rings.send.offset);
    const auto* const recv = reinterpret_cast<const emulator::RingHeader*>(v.memory + rings.recv.offset);
    CHECK(send->index_mask >=
          created.max_send_wr);  // that many fit into a ring that is full with one slot free
    CHECK(recv->index_mask >= created.max_recv_wr);
    const std::size_t send_bytes = std::size_t{1} << send->log2_element_bytes;
    const std::size_t recv_bytes = std::size_t{1} << recv->log2_element_bytes;
    CHECK(sizeof(emulator::RingSendWqe) +
              std::max<std::size_t>(created.max_send_sge * sizeof(emulator::RingSge),
                                    created.max_inline_data) <=
          send_bytes);
    CHECK(sizeof(emulator::RingRecvWqe) + created.max_recv_sge * sizeof(emulator::RingSge) <= recv_bytes);
    CHECK(rings.send.size_bytes >=
          emulator::kRingDataOffset + (std::size_t{send->index_mask} + 1) * send_bytes);
    CHECK(rings.recv.size_bytes >=
          emulator::kRingDataOffset + (std::size_t{recv->index_mask} + 1) * recv_bytes);
  }
}

TEST_CASE("QPs that are refused leave nothing") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t pd = v.pd(), cq = v.cq();
  const auto refused = [&](auto change) {
    ib_uverbs_create_qp request = v.qp_request(pd, cq);
    change(request);
    return v.create_qp(request).error;
  };
  CHECK(refused([](auto& r) { r.max_send_wr = 16385; }) == EINVAL);
  CHECK(refused([](auto& r) { r.max_recv_wr = 0xFFFFFFFF; }) == EINVAL);
  CHECK(refused([](auto& r) { r.max_send_sge = 33; }) == EINVAL);
  CHECK(refused([](auto& r) { r.max_recv_sge = 33; }) == EINVAL);
  CHECK(refused([](auto& r) { r.max_inline_data = 513; }) == EINVAL);
  CHECK(refused([](auto& r) { r.is_srq = 1; }) == EINVAL);  // there is none
  CHECK(refused([](auto& r) { r.qp_type = 9; }) == EOPNOTSUPP);
  CHECK(v.destroy_cq(cq).error == 0);
  CHECK(v.run(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd{pd}, 0).error == 0);
}

TEST_CASE("a context's memory ends with ENOMEM, and comes back") {
  ServerFixture f;
  Verbs v(f);
  std::vector<std::uint32_t> cqs;
  int error = 0;
  while (error == 0 && cqs.size() < 1000) {
    const TestReply reply = v.create_cq(65536);  // 8 MiB each
    error = reply.error;
    if (error == 0) cqs.push_back(reply.response<ib_uverbs_create_cq_resp>().cq_handle);
  }
  CHECK(error == ENOMEM);
  CHECK(cqs.size() > 60);
  for (const std::uint32_t cq : cqs)
    CHECK(v.destroy_cq(cq).error == 0);
  CHECK(v.create_cq(65536).error == 0);
}

TEST_CASE("a QP through its states, and what a query tells") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t pd = v.pd(), cq = v.cq();
  const TestReply created = v.create_qp(v.qp_request(pd, cq));
  const auto qp = created.response<ib_uverbs_create_qp_resp>();
  CHECK(v.control().qp_state[qp.qp_handle] == 0);
  CHECK(v.modify(Verbs::to_rts(qp.qp_handle)) == EINVAL);  // not from RESET
  CHECK(v.modify(Verbs::to_init(qp.qp_handle)) == 0);
  CHECK(v.modify(Verbs::to_rtr(qp.qp_handle, 1, qp.qpn)) == 0);
  CHECK(v.modify(Verbs::to_rts(qp.qp_handle)) == 0);
  CHECK(v.control().qp_state[qp.qp_handle] == 3);
  ib_uverbs_query_qp query{};
  query.qp_handle = qp.qp_handle;
  const auto r = v.run(IB_USER_VERBS_CMD_QUERY_QP, query, kRoom<ib_uverbs_query_qp_resp>)
                     .response<ib_uverbs_query_qp_resp>();
  CHECK(r.qp_state == 3);
  CHECK(r.dest_qp_num == qp.qpn);
  CHECK(r.dest.dgid[15] == 1);
  CHECK(r.path_mtu == 3);
  CHECK(r.retry_cnt == 7);
  CHECK(r.max_send_wr == qp.max_send_wr);
  ib_uverbs_modify_qp bad = Verbs::to_init(qp.qp_handle);
  bad.qp_state = 7;
  CHECK(v.modify(bad) == EINVAL);
  bad = Verbs::to_init(qp.qp_handle);
  bad.attr_mask |= 1u << 25;
  CHECK(v.modify(bad) == EOPNOTSUPP);  // extended only
  CHECK(v.destroy_cq(cq).error == EBUSY);
  CHECK(v.run(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd{pd}, 0).error == EBUSY);
  ib_uverbs_destroy_qp destroy{};
  destroy.qp_handle = qp.qp_handle;
  CHECK(v.run(IB_USER_VERBS_CMD_DESTROY_QP, destroy, kRoom<ib_uverbs_destroy_qp_resp>).error == 0);
  CHECK(v.control().qp_state[qp.qp_handle] == 255);
  CHECK(v.destroy_cq(cq).error == 0);
}

TEST_CASE("an extended modify says how much it answered") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t qp = v.qp(v.pd(), v.cq());
  ib_uverbs_ex_modify_qp core{};
  core.base = Verbs::to_init(qp);
  const TestReply reply = v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_MODIFY_QP, core, 8));
  CHECK(reply.error == 0);
  CHECK(reply.response<ib_uverbs_ex_modify_qp_resp>().response_length == 8);
}

TEST_CASE("a command that waits for the network delays no other") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t pd = v.pd(), qp = v.qp(pd, v.cq());
  REQUIRE(v.modify(Verbs::to_init(qp)) == 0);
  const std::uint64_t waiting = v.client.send(
      MessageKind::kUverbs, v.client.legacy(IB_USER_VERBS_CMD_MODIFY_QP, Verbs::to_rtr(qp, 99, 5), 0));
  const std::array<std::uint64_t, 1> core{};
  const TestReply other = v.run(IB_USER_VERBS_CMD_ALLOC_PD, core, 4);
  CHECK(other.error == 0);
  CHECK(other.id != waiting);
  ib_uverbs_destroy_qp destroy{};
  destroy.qp_handle = qp;
  const std::uint64_t destroying =
      v.client.send(MessageKind::kUverbs,
                    v.client.legacy(IB_USER_VERBS_CMD_DESTROY_QP, destroy, kRoom<ib_uverbs_destroy_qp_resp>));
  const TestReply first = v.client.receive(), second = v.client.receive();
  const TestReply& cancelled = first.id == waiting ? first : second;
  const TestReply& destroyed = first.id == destroying ? first : second;
  CHECK(cancelled.error == ECANCELED);
  CHECK(destroyed.error == 0);
}

// ---- events ------------------------------------------------------------------------------------------

bool readable(const UniqueFd& fd) {
  pollfd ready{fd.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

TEST_CASE("the port's events reach every context") {
  ServerFixture f;
  Verbs v(f);
  f.shard(0).set_link({0}, false);
  ib_uverbs_async_event_desc event{};
  REQUIRE(::read(v.async.get(), &event, sizeof event) == sizeof event);
  CHECK(event.event_type == 10);  // IBV_EVENT_PORT_ERR
  CHECK(event.element == 1);
}

// Flushed receives complete on a CQ with a channel: post into the ring as an application's library does.
TEST_CASE("completion events go to the channel that the CQ names, and are accounted for") {
  ServerFixture f;
  Verbs v(f);
  TestReply channel = v.channel();
  REQUIRE(channel.error == 0);
  REQUIRE(channel.fds.size() == 1);
  const UniqueFd events = std::move(channel.fds[0]);
  struct stat status = {};
  REQUIRE(::fstat(events.get(), &status) == 0);
  const TestReply created = v.create_cq(16, 0xABCD, status.st_ino);
  REQUIRE(created.error == 0);
  const std::uint32_t cq = created.response<ib_uverbs_create_cq_resp>().cq_handle;
  const TestReply made = v.create_qp(v.qp_request(v.pd(), cq));
  const auto qp = made.response<ib_uverbs_create_qp_resp>();
  const auto rings = made.as<QpMmapInfo>(sizeof(UverbsReply) + sizeof qp);
  REQUIRE(v.modify(Verbs::to_init(qp.qp_handle)) == 0);
  auto* const recv = reinterpret_cast<emulator::RingHeader*>(v.memory + rings.recv.offset);
  const auto post = [&] {
    const std::uint32_t at = recv->producer;
    std::memset(v.memory + rings.recv.offset + emulator::kRingDataOffset +
                    (std::size_t{at} << recv->log2_element_bytes),
                0, std::size_t{1} << recv->log2_element_bytes);
    std::atomic_ref<std::uint32_t>(recv->producer).store((at + 1) & recv->index_mask);
  };
  REQUIRE(v.run(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_req_notify_cq{cq, 0}, 0).error == 0);
  post();
  ib_uverbs_modify_qp to_error{};
  to_error.qp_handle = qp.qp_handle;
  to_error.attr_mask = emulator::kQpState;
  to_error.qp_state = 6;
  REQUIRE(v.modify(to_error) == 0);
  ib_uverbs_comp_event_desc event{};
  REQUIRE(::read(events.get(), &event, sizeof event) == sizeof event);
  CHECK(event.cq_handle == 0xABCD);
  // A second one stays unread: destroying takes it out and reports the first only.
  REQUIRE(v.run(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_req_notify_cq{cq, 0}, 0).error == 0);
  post();
  CHECK(eventually([&] { return readable(events); }));
  ib_uverbs_destroy_qp destroy{};
  destroy.qp_handle = qp.qp_handle;
  CHECK(v.run(IB_USER_VERBS_CMD_DESTROY_QP, destroy, kRoom<ib_uverbs_destroy_qp_resp>).error == 0);
  const auto destroyed = v.destroy_cq(cq).response<ib_uverbs_destroy_cq_resp>();
  CHECK(destroyed.comp_events_reported == 1);
  CHECK(!readable(events));
}

TEST_CASE("a channel that the application closed is closed here too, once no CQ uses it") {
  ServerFixture f;
  Verbs v(f);
  TestReply channel = v.channel();
  struct stat status = {};
  REQUIRE(::fstat(channel.fds[0].get(), &status) == 0);
  const std::uint32_t cq = v.create_cq(16, 1, status.st_ino).response<ib_uverbs_create_cq_resp>().cq_handle;
  const std::size_t before = open_fds();
  channel.fds.clear();
  CHECK(eventually([&] { return v.create_cq(16, 2, status.st_ino).error == EBADF; }));
  CHECK(open_fds() == before - 1);
  CHECK(v.destroy_cq(cq).error == 0);
  CHECK(open_fds() == before - 2);
}

// ib_uverbs_post_send without its flexible end.
struct PostSend {
  std::uint64_t response = 0;
  std::uint32_t qp_handle = 0, wr_count = 0, sge_count = 0, wqe_size = 0;
};
static_assert(sizeof(PostSend) == offsetof(ib_uverbs_post_send, send_wr));

TEST_CASE("a doorbell that comes as a command rings") {
  ServerFixture f;
  Verbs v(f);
  const std::uint32_t qp = v.qp(v.pd(), v.cq());
  const auto post = [&](std::uint32_t handle, std::uint32_t count) {
    return v
        .run(IB_USER_VERBS_CMD_POST_SEND, PostSend{0, handle, count, 0, 0}, kRoom<ib_uverbs_post_send_resp>)
        .error;
  };
  CHECK(post(qp, 0) == 0);
  CHECK(post(qp, 1) == EINVAL);
  CHECK(post(0xFFFFFFFF, 0) == EINVAL);
}

}  // namespace
}  // namespace roci::shim
