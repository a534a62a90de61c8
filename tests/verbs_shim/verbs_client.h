// A client with an open device, and its commands with every field at hand.
#pragma once

#include <rdma/ib_user_verbs.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "emulator/command.h"
#include "emulator/shared_layout.h"
#include "tests/verbs_shim/server_fixture.h"
#include "verbs_shim/server/uverbs_numbers.h"

namespace roci::shim {

template <class Response>
inline constexpr std::size_t kRoom = sizeof(Response);

struct Verbs {
  template <class Fixture>
  explicit Verbs(Fixture& f, std::uint32_t nic = 0) : client(f.connect()) {
    TestReply opened = client.open_device(nic);
    REQUIRE(opened.error == 0);
    REQUIRE(opened.fds.size() == 2);
    memory_bytes = opened.as<OpenDeviceReply>().memory_bytes;
    memory_fd = std::move(opened.fds[0]);
    void* const base = ::mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd.get(), 0);
    REQUIRE(base != MAP_FAILED);
    memory = static_cast<std::byte*>(base);
    TestReply context = client.get_context();
    REQUIRE(context.error == 0);
    REQUIRE(context.fds.size() == 1);
    async = std::move(context.fds[0]);
  }
  Verbs(const Verbs&) = delete;
  Verbs& operator=(const Verbs&) = delete;
  ~Verbs() { ::munmap(memory, memory_bytes); }

  template <class Core>
  TestReply run(std::uint32_t command, const Core& core, std::size_t room, std::uint64_t inode = 0) {
    return client.uverbs(client.legacy(command, core, room, inode));
  }
  std::uint32_t pd() {
    const std::array<std::uint64_t, 1> core{};
    return run(IB_USER_VERBS_CMD_ALLOC_PD, core, kRoom<ib_uverbs_alloc_pd_resp>)
        .response<ib_uverbs_alloc_pd_resp>()
        .pd_handle;
  }
  TestReply reg_mr(std::uint32_t pd, std::uint64_t at, std::uint64_t length, std::uint32_t access,
                   std::uint64_t iova) {
    ib_uverbs_reg_mr core{};
    core.start = at;
    core.hca_va = iova;
    core.length = length;
    core.pd_handle = pd;
    core.access_flags = access;
    return run(IB_USER_VERBS_CMD_REG_MR, core, kRoom<ib_uverbs_reg_mr_resp>);
  }
  TestReply channel() {
    const std::array<std::uint64_t, 1> core{};
    return run(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, core, 8);
  }
  TestReply create_cq(std::uint32_t entries, std::uint64_t user_handle = 0x1000, std::uint64_t inode = 0) {
    ib_uverbs_create_cq core{};
    core.cqe = entries;
    core.user_handle = user_handle;
    core.comp_channel = inode == 0 ? -1 : 5;
    return run(IB_USER_VERBS_CMD_CREATE_CQ, core, kRoom<ib_uverbs_create_cq_resp> + sizeof(MmapInfo), inode);
  }
  std::uint32_t cq(std::uint32_t entries = 16) {
    return create_cq(entries).response<ib_uverbs_create_cq_resp>().cq_handle;
  }
  TestReply destroy_cq(std::uint32_t handle) {
    ib_uverbs_destroy_cq core{};
    core.cq_handle = handle;
    return run(IB_USER_VERBS_CMD_DESTROY_CQ, core, kRoom<ib_uverbs_destroy_cq_resp>);
  }
  ib_uverbs_create_qp qp_request(std::uint32_t pd, std::uint32_t cq) {
    ib_uverbs_create_qp core{};
    core.pd_handle = pd;
    core.send_cq_handle = core.recv_cq_handle = cq;
    core.max_send_wr = core.max_recv_wr = 10;
    core.max_send_sge = core.max_recv_sge = 1;
    core.qp_type = 2;
    core.user_handle = 0x2000;
    return core;
  }
  TestReply create_qp(const ib_uverbs_create_qp& core) {
    return run(IB_USER_VERBS_CMD_CREATE_QP, core, kRoom<ib_uverbs_create_qp_resp> + sizeof(QpMmapInfo));
  }
  std::uint32_t qp(std::uint32_t pd, std::uint32_t cq) {
    return create_qp(qp_request(pd, cq)).response<ib_uverbs_create_qp_resp>().qp_handle;
  }
  int modify(const ib_uverbs_modify_qp& core) { return run(IB_USER_VERBS_CMD_MODIFY_QP, core, 0).error; }
  static ib_uverbs_modify_qp to_init(std::uint32_t qp) {
    ib_uverbs_modify_qp core{};
    core.qp_handle = qp;
    core.attr_mask =
        emulator::kQpState | emulator::kQpPkeyIndex | emulator::kQpPort | emulator::kQpAccessFlags;
    core.qp_state = 1;
    core.port_num = 1;
    return core;
  }
  static ib_uverbs_modify_qp to_rtr(std::uint32_t qp, std::uint8_t last_byte_of_ip, std::uint32_t dest_qpn) {
    ib_uverbs_modify_qp core{};
    core.qp_handle = qp;
    core.attr_mask = emulator::kQpState | emulator::kQpAv | emulator::kQpPathMtu | emulator::kQpDestQpn |
                     emulator::kQpRqPsn | emulator::kQpMaxDestRdAtomic | emulator::kQpMinRnrTimer;
    core.qp_state = 2;
    core.path_mtu = 3;
    core.dest_qp_num = dest_qpn;
    core.max_dest_rd_atomic = 1;
    core.min_rnr_timer = 12;
    const std::uint8_t gid[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 77, 0, last_byte_of_ip};
    std::copy(std::begin(gid), std::end(gid), std::begin(core.dest.dgid));
    core.dest.is_global = 1;
    core.dest.sgid_index = 1;
    core.dest.port_num = 1;
    core.dest.hop_limit = 64;
    return core;
  }
  static ib_uverbs_modify_qp to_rts(std::uint32_t qp) {
    ib_uverbs_modify_qp core{};
    core.qp_handle = qp;
    core.attr_mask = emulator::kQpState | emulator::kQpTimeout | emulator::kQpRetryCnt |
                     emulator::kQpRnrRetry | emulator::kQpSqPsn | emulator::kQpMaxQpRdAtomic;
    core.qp_state = 3;
    core.timeout = 14;
    core.retry_cnt = 7;
    core.rnr_retry = 7;
    core.max_rd_atomic = 1;
    return core;
  }
  emulator::ControlArea& control() { return *reinterpret_cast<emulator::ControlArea*>(memory); }

  TestClient client;
  UniqueFd memory_fd, async;
  std::byte* memory = nullptr;
  std::size_t memory_bytes = 0;
};

}  // namespace roci::shim
