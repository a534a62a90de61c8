#include "tests/e2e/verbs_services.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include "tests/e2e/verbs_side.h"

namespace verbs_check {
namespace {

constexpr std::uint32_t kQkey = 0x1234567;
constexpr std::uint32_t kMulticastQpn = 0xFFFFFF;
constexpr std::size_t kGrhBytes = 40;
constexpr std::size_t kSlotBytes = 8192;  // of a receive: GRH and the largest datagram fit
constexpr std::uint8_t kLinkLocalGidIndex = 0;
constexpr std::uint32_t kAcrossDatagrams = 50;  // between two hosts
constexpr std::uint32_t kAcrossSeed = 4;        // of their data

// ---- datagrams

void to_rts_datagram(ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = kQkey;
  require(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0,
          "to INIT");
  attr.qp_state = IBV_QPS_RTR;
  require(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "to RTR");
  attr.qp_state = IBV_QPS_RTS;
  require(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "to RTS");
}

void open_datagram(Side& side, std::string_view nic) {
  open(side, nic, kAllRights, IBV_QPT_UD);
  to_rts_datagram(side.qp);
}

ibv_gid gid_of(const Side& side, std::uint8_t index) {
  ibv_gid gid{};
  require(ibv_query_gid(side.context, 1, index, &gid) == 0, "ibv_query_gid");
  return gid;
}

ibv_gid parse_group(const char* text) {
  ibv_gid group{};
  require(inet_pton(AF_INET6, text, group.raw) == 1, std::string(text) + " is no IPv6 address");
  return group;
}

// An address handle for as long as the object lives.
class Address {
 public:
  Address(const Side& side, const ibv_gid& to, std::uint8_t gid_index) {
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid = to;
    attr.grh.sgid_index = gid_index;
    attr.grh.hop_limit = 64;
    ah_ = require_made(ibv_create_ah(side.pd, &attr), "ibv_create_ah");
  }
  explicit Address(ibv_ah* ah) : ah_(require_made(ah, "ibv_create_ah_from_wc")) {}
  Address(const Address&) = delete;
  Address& operator=(const Address&) = delete;
  ~Address() { require(ibv_destroy_ah(ah_) == 0, "ibv_destroy_ah"); }
  [[nodiscard]] ibv_ah* get() const { return ah_; }

 private:
  ibv_ah* ah_;
};

void post_slot(Side& side, std::uint64_t slot) {
  ibv_sge sge = side.sge(slot * kSlotBytes, kSlotBytes);
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  wr.wr_id = slot;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  require(
      (side.srq != nullptr ? ibv_post_srq_recv(side.srq, &wr, &bad) : ibv_post_recv(side.qp, &wr, &bad)) == 0,
      "posting a receive");
}

void send_datagram(Side& from, const Address& to, std::uint32_t qpn, std::size_t source, std::size_t length,
                   std::uint32_t immediate, const std::string& what) {
  ibv_sge sge = from.sge(source, length);
  ibv_send_wr wr = request(IBV_WR_SEND_WITH_IMM, {&sge, 1});
  wr.imm_data = htobe32(immediate);
  wr.wr.ud.ah = to.get();
  wr.wr.ud.remote_qpn = qpn;
  wr.wr.ud.remote_qkey = kQkey;
  post(from, wr, what);
  expect(from, IBV_WC_SUCCESS, what);
}

// The GRH area of a receive: an IPv6 header, or an IPv4 header with its checksum in the last 20 bytes.
void require_grh(const std::uint8_t* grh, const ibv_gid& from, const ibv_gid& to, bool v4,
                 const std::string& what) {
  if (!v4) {
    require(
        grh[0] >> 4 == 6 && std::memcmp(grh + 8, from.raw, 16) == 0 && std::memcmp(grh + 24, to.raw, 16) == 0,
        what + ": the GRH is not the IPv6 header");
    return;
  }
  const std::uint8_t* ip = grh + 20;
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < 20; at += 2)
    sum += static_cast<std::uint32_t>(ip[at] << 8 | ip[at + 1]);
  require(ip[0] == 0x45 && ip[9] == 17 && (sum & 0xFFFF) + (sum >> 16) == 0xFFFF &&
              std::memcmp(ip + 12, from.raw + 12, 4) == 0 && std::memcmp(ip + 16, to.raw + 12, 4) == 0,
          what + ": the GRH's last 20 bytes are not the IPv4 header");
}

ibv_wc expect_datagram(Side& to, const Side& from, std::uint64_t slot, std::size_t source, std::size_t length,
                       std::uint32_t immediate, const std::string& what) {
  const ibv_wc wc = expect(to, IBV_WC_SUCCESS, what + " at its receiver");
  require(wc.wr_id == slot && wc.opcode == IBV_WC_RECV, what + ": wrong wr_id or opcode of the receive");
  require((wc.wc_flags & IBV_WC_GRH) != 0 && (wc.wc_flags & IBV_WC_WITH_IMM) != 0,
          what + ": flags are missing");
  require(be32toh(wc.imm_data) == immediate,
          what + ": wrong immediate data " + std::to_string(be32toh(wc.imm_data)));
  require(wc.src_qp == from.qp->qp_num, what + ": wrong source QP");
  require(wc.byte_len == kGrhBytes + length, what + ": byte_len " + std::to_string(wc.byte_len));
  require(
      std::memcmp(to.bytes.data() + slot * kSlotBytes + kGrhBytes, from.bytes.data() + source, length) == 0,
      what + ": wrong data");
  return wc;
}

}  // namespace

void check_datagrams(bool link_local_too) {
  constexpr std::array<std::size_t, 7> kLengths{0, 1, 7, 1023, 1024, 4095, 4096};
  Side a, b;
  open_datagram(a, "rxe1");
  open_datagram(b, "rxe0");
  std::uint32_t seed = 1;
  for (const std::uint8_t index : {kIpv4GidIndex, kLinkLocalGidIndex}) {
    if (index == kLinkLocalGidIndex && !link_local_too) continue;
    const bool v4 = gid_of(a, index).raw[10] == 0xFF && gid_of(a, index).raw[0] == 0;
    const Address to_b(a, gid_of(b, index), index);
    for (const std::size_t length : kLengths) {
      const std::string what = "datagram of " + std::to_string(length) + " bytes over IPv" + (v4 ? "4" : "6");
      const std::uint64_t slot = seed % 64;
      fill(a.bytes, seed);
      fill(b.bytes, seed + 100);
      const std::vector<std::uint8_t> before = b.bytes;
      post_slot(b, slot);
      send_datagram(a, to_b, b.qp->qp_num, 3, length, seed, what);
      ibv_wc wc = expect_datagram(b, a, slot, 3, length, seed, what);
      auto* grh = reinterpret_cast<ibv_grh*>(b.bytes.data() + slot * kSlotBytes);
      require_grh(b.bytes.data() + slot * kSlotBytes, gid_of(a, index), gid_of(b, index), v4, what);
      const std::size_t end = slot * kSlotBytes + kGrhBytes + length;
      require(std::memcmp(b.bytes.data(), before.data(), slot * kSlotBytes) == 0 &&
                  std::memcmp(b.bytes.data() + end, before.data() + end, before.size() - end) == 0,
              what + ": bytes outside of the receive changed");

      const Address back(ibv_create_ah_from_wc(b.pd, &wc, grh, 1));
      post_slot(a, 100);
      send_datagram(b, back, wc.src_qp, 0, 64, seed, what + ", the answer");
      expect_datagram(a, b, 100, 0, 64, seed, what + ", the answer");
      ++seed;
    }
    // A wrong Q_Key is dropped without a word, and takes no receive.
    ibv_sge sge = a.sge(0, 8);
    ibv_send_wr wr = request(IBV_WR_SEND, {&sge, 1});
    wr.wr.ud.ah = to_b.get();
    wr.wr.ud.remote_qpn = b.qp->qp_num;
    wr.wr.ud.remote_qkey = kQkey + 1;
    post_slot(b, 0);
    post(a, wr, "a datagram of a wrong Q_Key");
    expect(a, IBV_WC_SUCCESS, "a datagram of a wrong Q_Key");
    send_datagram(a, to_b, b.qp->qp_num, 0, 8, 7, "the datagram behind one of a wrong Q_Key");
    expect_datagram(b, a, 0, 0, 8, 7, "the datagram behind one of a wrong Q_Key");
  }
  expect_no_completion(a, "at the sender");
  expect_no_completion(b, "at the receiver");
}

// Two QPs on each NIC are in the group; what one sends, the others get once, in order, and it does not
// itself.
void check_multicast() {
  constexpr std::uint32_t kDatagrams = 20;
  std::array<Side, 4> sides;
  for (std::size_t i = 0; i < sides.size(); ++i)
    open_datagram(sides[i], i < 2 ? "rxe0" : "rxe1");
  const ibv_gid v4_group = parse_group("::ffff:239.77.0.1");
  const ibv_gid v6_group = parse_group("ff15::77:1");
  for (const std::uint8_t index : {kIpv4GidIndex, kLinkLocalGidIndex}) {
    const ibv_gid& group = index == kIpv4GidIndex ? v4_group : v6_group;
    for (Side& side : sides)
      require(ibv_attach_mcast(side.qp, &group, 0) == 0, "ibv_attach_mcast");
    for (std::size_t from = 0; from < sides.size(); ++from) {
      Side& sender = sides[from];
      fill(sender.bytes, static_cast<std::uint32_t>(10 * index + from));
      const Address to_group(sender, group, index);
      for (std::size_t to = 0; to < sides.size(); ++to) {
        for (std::uint32_t i = 0; i <= kDatagrams; ++i)
          post_slot(sides[to], 60 + i);  // the sender posts, too
      }
      for (std::uint32_t i = 0; i < kDatagrams; ++i)
        send_datagram(sender, to_group, kMulticastQpn, 64 * i, 100 * i, i, "multicast");
      for (std::size_t to = 0; to < sides.size(); ++to) {
        Side& receiver = sides[to];
        const std::string what = "multicast from QP " + std::to_string(from) + " to " + std::to_string(to) +
                                 (index == kIpv4GidIndex ? " over IPv4" : " over IPv6");
        const bool is_sender = to == from;
        for (std::uint32_t i = 0; i < kDatagrams && !is_sender; ++i) {
          expect_datagram(receiver, sender, 60 + i, 64 * i, 100 * i, i, what);
          require_grh(receiver.bytes.data() + (60 + i) * kSlotBytes, gid_of(sender, index), group,
                      index == kIpv4GidIndex, what);
        }
        // The next that arrives is the marker: nothing came twice, and nothing came back to the sender.
        const Address to_one(sender, gid_of(receiver, index), index);
        send_datagram(sender, to_one, receiver.qp->qp_num, 0, 8, 0xAA, what + ", the marker");
        if (is_sender) {
          expect_datagram(receiver, sender, 60, 0, 8, 0xAA, what + ", the marker");
          for (std::uint32_t i = 1; i <= kDatagrams; ++i) {  // takes the rest of its own receives
            send_datagram(sender, to_one, receiver.qp->qp_num, 0, 8, i, what);
            expect_datagram(receiver, sender, 60 + i, 0, 8, i, what);
          }
        } else {
          expect_datagram(receiver, sender, 60 + kDatagrams, 0, 8, 0xAA, what + ", the marker");
        }
      }
    }
    // Who has left gets no more.
    require(ibv_detach_mcast(sides[3].qp, &group, 0) == 0, "ibv_detach_mcast");
    require(ibv_detach_mcast(sides[3].qp, &group, 0) != 0, "detaching twice was not refused");
    for (Side& side : sides)
      post_slot(side, 100);
    const Address to_group(sides[0], group, index);
    send_datagram(sides[0], to_group, kMulticastQpn, 0, 50, 1, "multicast after a detach");
    for (const std::size_t to : {1U, 2U})
      expect_datagram(sides[to], sides[0], 100, 0, 50, 1, "multicast after a detach");
    for (const std::size_t to : {0U, 3U}) {
      const Address to_one(sides[0], gid_of(sides[to], index), index);
      send_datagram(sides[0], to_one, sides[to].qp->qp_num, 0, 50, 2, "the marker after a detach");
      expect_datagram(sides[to], sides[0], 100, 0, 50, 2, "the marker after a detach");
    }
    for (const std::size_t i : {0U, 1U, 2U})
      require(ibv_detach_mcast(sides[i].qp, &group, 0) == 0, "ibv_detach_mcast");
  }
}

void receive_multicast(const char* text) {
  Side side;
  open_datagram(side, "rxe0");
  const ibv_gid group = parse_group(text);
  std::vector<std::uint8_t> expected(kBufferBytes);
  fill(expected, kAcrossSeed);
  for (std::uint32_t i = 0; i < kAcrossDatagrams; ++i)
    post_slot(side, i);
  require(ibv_attach_mcast(side.qp, &group, 0) == 0, "ibv_attach_mcast");
  std::printf("attached\n");
  std::fflush(stdout);
  for (std::uint32_t i = 0; i < kAcrossDatagrams; ++i) {
    const ibv_wc wc = expect(side, IBV_WC_SUCCESS, "multicast " + std::to_string(i));
    require(be32toh(wc.imm_data) == i && wc.byte_len == kGrhBytes + 20 * i,
            "multicast: not the next datagram");
    require(std::memcmp(side.bytes.data() + i * kSlotBytes + kGrhBytes, expected.data() + i, 20 * i) == 0,
            "multicast: wrong data");
  }
  require(ibv_detach_mcast(side.qp, &group, 0) == 0, "ibv_detach_mcast");
}

void send_multicast(const char* text) {
  Side side;
  open_datagram(side, "rxe0");
  const ibv_gid group = parse_group(text);
  const auto is_v4 = [](const ibv_gid& gid) { return gid.raw[0] == 0 && gid.raw[10] == 0xFF; };
  fill(side.bytes, kAcrossSeed);
  // From the NIC's first address if it is of the group's family.
  const bool same = is_v4(gid_of(side, kIpv4GidIndex)) == is_v4(group);
  const Address to_group(side, group, same ? kIpv4GidIndex : kLinkLocalGidIndex);
  for (std::uint32_t i = 0; i < kAcrossDatagrams; ++i)
    send_datagram(side, to_group, kMulticastQpn, i, 20 * i, i, "multicast");
}

// ---- a peer that is not there

void check_lonely(const char* text) {
  Side side;
  open_datagram(side, "rxe0");
  const Address nowhere(side, parse_group(text), kIpv4GidIndex);
  for (std::uint32_t i = 0; i < 10; ++i)
    send_datagram(side, nowhere, 0x123, 0, 64, i, "a datagram to nobody");
}

// ---- unreliable connection

void check_unreliable_connection() {
  std::uint32_t seed = 1;
  for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_4096}) {
    const std::size_t mtu_bytes = std::size_t{128} << mtu;
    ConnectionOptions options;
    options.mtu = mtu;
    Connection connection(options, kAllRights, IBV_QPT_UC);
    for (const Operation& operation : kDataOperations) {
      if (!operation.takes_receive)
        continue;  // its data may come after its completion; the immediate tells when
      for (const std::size_t length :
           {std::size_t{0}, std::size_t{1}, mtu_bytes, mtu_bytes + 1, 2 * mtu_bytes + 3, 5 * mtu_bytes})
        move_once(connection, operation, length, seed++);
    }
    // WRITEs, seen through a SEND behind them; and a message for which there is no receive is lost without a
    // word.
    Side& requester = connection.requester;
    Side& responder = connection.responder;
    fill(requester.bytes, seed);
    for (std::size_t i = 0; i < 10; ++i) {
      ibv_sge sge = requester.sge(i * 20000, 1 + i * 1999);
      ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, {&sge, 1});
      wr.wr.rdma.remote_addr = responder.address(i * 20000);
      wr.wr.rdma.rkey = responder.mr->rkey;
      post(requester, wr, "UC WRITE");
      expect(requester, IBV_WC_SUCCESS, "UC WRITE");
    }
    ibv_sge sge = requester.sge(0, 16);
    ibv_send_wr lost = request(IBV_WR_SEND, {&sge, 1});
    post(requester, lost, "UC SEND without a receive");
    expect(requester, IBV_WC_SUCCESS, "UC SEND without a receive");
    // So is a WRITE with a wrong key; the QPs work on.
    ibv_send_wr wrong = request(IBV_WR_RDMA_WRITE, {&sge, 1});
    wrong.wr.rdma.remote_addr = responder.address(0);
    wrong.wr.rdma.rkey = responder.mr->rkey ^ 0x5A5A5A;
    post(requester, wrong, "UC WRITE with a bad rkey");
    expect(requester, IBV_WC_SUCCESS, "UC WRITE with a bad rkey");
    post_receive(responder, responder.sge(kBufferBytes - 64, 16));
    // The SEND above may still be under way and take this receive: then it is the next that is lost.
    post(requester, lost, "UC SEND");
    expect(requester, IBV_WC_SUCCESS, "UC SEND");
    expect(responder, IBV_WC_SUCCESS, "UC SEND at the responder");  // so the WRITEs before it are there
    expect_no_completion(responder, "at the responder");
    for (std::size_t i = 0; i < 10; ++i) {
      require(std::memcmp(requester.bytes.data() + i * 20000, responder.bytes.data() + i * 20000,
                          1 + i * 1999) == 0,
              "UC WRITE: wrong data");
    }
    ++seed;
  }
}

// ---- shared receive queues

void check_shared_receives() {
  constexpr std::uint32_t kReceives = 16, kLimit = 8;
  Side responder, requester;
  open_without_qp(responder, "rxe0");
  ibv_srq_init_attr srq{};
  srq.attr.max_wr = 32;
  srq.attr.max_sge = 1;
  responder.srq = require_made(ibv_create_srq(responder.pd, &srq), "ibv_create_srq");
  responder.qp = create_qp(responder, IBV_QPT_RC);
  ibv_qp* second = create_qp(responder, IBV_QPT_RC);
  open(requester, "rxe1");
  ibv_qp* other = create_qp(requester, IBV_QPT_RC);
  to_rts(requester.qp, responder.qp);
  to_rts(responder.qp, requester.qp);
  to_rts(other, second);
  to_rts(second, other);
  require(fcntl(responder.context->async_fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");

  fill(requester.bytes, 5);
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < kReceives; ++i)
      post_slot(responder, i);
    ibv_srq_attr limit{};
    limit.srq_limit = kLimit;
    require(ibv_modify_srq(responder.srq, &limit, IBV_SRQ_LIMIT) == 0, "arming the SRQ's limit");
    for (std::uint32_t i = 0; i < kReceives; ++i) {
      const std::string what = "SEND " + std::to_string(i) + " to an SRQ";
      const bool first = i % 3 != 0;
      const std::size_t length = 1 + i * 500;
      ibv_sge sge = requester.sge(i * 4096, length);
      ibv_send_wr wr = request(IBV_WR_SEND, {&sge, 1});
      ibv_send_wr* bad = nullptr;
      require(ibv_post_send(first ? requester.qp : other, &wr, &bad) == 0, what);
      expect(requester, IBV_WC_SUCCESS, what);
      const ibv_wc wc = expect(responder, IBV_WC_SUCCESS, what + " at the responder");
      require(wc.wr_id == i && wc.byte_len == length, what + ": not the oldest receive, or a wrong length");
      require(wc.qp_num == (first ? responder.qp : second)->qp_num, what + ": wrong QP");
      require(std::memcmp(responder.bytes.data() + i * kSlotBytes, requester.bytes.data() + i * 4096,
                          length) == 0,
              what + ": wrong data");

      // The event comes when fewer than the limit are left, once.
      const bool is_due = kReceives - i - 1 == kLimit - 1;
      pollfd events{responder.context->async_fd, POLLIN, 0};
      const int readable = poll(&events, 1, is_due ? 5000 : 0);
      require((readable == 1) == is_due, what + (is_due ? ": no limit event" : ": an event too many"));
      if (!is_due) continue;
      ibv_async_event event{};
      require(ibv_get_async_event(responder.context, &event) == 0, "ibv_get_async_event");
      require(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == responder.srq,
              what + ": the event is " + ibv_event_type_str(event.event_type));
      ibv_ack_async_event(&event);
      require(ibv_query_srq(responder.srq, &limit) == 0 && limit.srq_limit == 0, "the limit is still armed");
    }
  }
  require(ibv_destroy_srq(responder.srq) == EBUSY, "destroying an SRQ in use was not refused with EBUSY");
  require(ibv_destroy_qp(second) == 0 && ibv_destroy_qp(other) == 0, "ibv_destroy_qp");
}

// ---- memory windows

namespace {

constexpr unsigned kWindowRights = kAllRights | IBV_ACCESS_MW_BIND;
constexpr std::size_t kWindowAt = 5000, kWindowBytes = 3000;

void write_through(Connection& connection, std::uint32_t rkey, std::size_t target, ibv_wc_status status,
                   const std::string& what) {
  Side& requester = connection.requester;
  fill(requester.bytes, rkey);
  ibv_sge sge = requester.sge(0, 100);
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, {&sge, 1});
  wr.wr.rdma.remote_addr = connection.responder.address(target);
  wr.wr.rdma.rkey = rkey;
  const std::vector<std::uint8_t> before = connection.responder.bytes;
  post(requester, wr, what);
  expect(requester, status, what);
  if (status == IBV_WC_SUCCESS)
    require_moved(requester, 0, connection.responder, before, target, 100, what);
  else
    require(connection.responder.bytes == before, what + ": it wrote all the same");
}

ibv_mw_bind_info whole_window(const Side& side) {
  return {side.mr, side.address(kWindowAt), kWindowBytes, IBV_ACCESS_REMOTE_WRITE};
}

// A window of type 2, bound by a work request; returns its key.
std::uint32_t bind_by_request(Side& side, ibv_mw* mw) {
  ibv_send_wr wr = request(IBV_WR_BIND_MW, {});
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = whole_window(side);
  post(side, wr, "BIND_MW");
  require(expect(side, IBV_WC_SUCCESS, "BIND_MW").opcode == IBV_WC_BIND_MW,
          "BIND_MW: wrong opcode of the completion");
  return wr.bind_mw.rkey;
}

void bind_by_call(Side& side, ibv_mw* mw, std::size_t length) {
  ibv_mw_bind bind{};
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_info = whole_window(side);
  bind.bind_info.length = length;
  require(ibv_bind_mw(side.qp, mw, &bind) == 0, "ibv_bind_mw");
  require(expect(side, IBV_WC_SUCCESS, "ibv_bind_mw").opcode == IBV_WC_BIND_MW,
          "ibv_bind_mw: wrong opcode of the completion");
}

}  // namespace

void check_windows() {
  for (const bool unbind : {false, true}) {
    Connection connection({}, kWindowRights);
    Side& owner = connection.responder;
    ibv_mw* mw = require_made(ibv_alloc_mw(owner.pd, IBV_MW_TYPE_1), "ibv_alloc_mw");
    bind_by_call(owner, mw, kWindowBytes);
    const std::uint32_t old_key = mw->rkey;
    write_through(connection, mw->rkey, kWindowAt, IBV_WC_SUCCESS, "a WRITE through a window of type 1");
    bind_by_call(owner, mw, kWindowBytes);
    require(mw->rkey != old_key, "a window of type 1 has its old key after a second bind");
    write_through(connection, mw->rkey, kWindowAt + kWindowBytes - 100, IBV_WC_SUCCESS,
                  "a WRITE to a window's end");
    if (unbind) {
      bind_by_call(owner, mw, 0);
      write_through(connection, mw->rkey, kWindowAt, IBV_WC_REM_ACCESS_ERR,
                    "a WRITE through an unbound window");
    } else {
      write_through(connection, old_key, kWindowAt, IBV_WC_REM_ACCESS_ERR, "a WRITE with a window's old key");
    }
    require(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
  }
  {
    Connection connection({}, kWindowRights);
    ibv_mw* mw = require_made(ibv_alloc_mw(connection.responder.pd, IBV_MW_TYPE_2), "ibv_alloc_mw");
    const std::uint32_t key = bind_by_request(connection.responder, mw);
    write_through(connection, key, kWindowAt + kWindowBytes - 99, IBV_WC_REM_ACCESS_ERR,
                  "a WRITE beyond a window");
    connection.responder.destroy_qp();
    require(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
  }
  for (const bool remotely : {false, true}) {
    Connection connection({}, kWindowRights);
    Side& owner = connection.responder;
    ibv_mw* mw = require_made(ibv_alloc_mw(owner.pd, IBV_MW_TYPE_2), "ibv_alloc_mw");
    const std::uint32_t key = bind_by_request(owner, mw);
    write_through(connection, key, kWindowAt, IBV_WC_SUCCESS, "a WRITE through a window of type 2");
    if (remotely) {
      post_receive(owner, owner.sge(0, 64));
      ibv_sge sge = connection.requester.sge(0, 32);
      ibv_send_wr wr = request(IBV_WR_SEND_WITH_INV, {&sge, 1});
      wr.invalidate_rkey = key;
      post(connection.requester, wr, "SEND with invalidate");
      expect(connection.requester, IBV_WC_SUCCESS, "SEND with invalidate");
      const ibv_wc wc = expect(owner, IBV_WC_SUCCESS, "SEND with invalidate at the responder");
      require((wc.wc_flags & IBV_WC_WITH_INV) != 0 && wc.invalidated_rkey == key && wc.byte_len == 32,
              "SEND with invalidate: the completion does not say so");
    } else {
      ibv_send_wr wr = request(IBV_WR_LOCAL_INV, {});
      wr.invalidate_rkey = key;
      post(owner, wr, "LOCAL_INV");
      require(expect(owner, IBV_WC_SUCCESS, "LOCAL_INV").opcode == IBV_WC_LOCAL_INV,
              "LOCAL_INV: wrong opcode");
    }
    mw->rkey = key;
    const std::uint32_t again = bind_by_request(owner, mw);  // it can be bound once more
    write_through(connection, again, kWindowAt, IBV_WC_SUCCESS,
                  "a WRITE through a window that was bound again");
    write_through(connection, key, kWindowAt, IBV_WC_REM_ACCESS_ERR, "a WRITE through an invalidated window");
    connection.responder.destroy_qp();
    require(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
  }
}

// ---- atomic write

void check_atomic_write() {
  Side requester, responder;
  open_without_qp(requester, "rxe1");
  open(responder, "rxe0");
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = requester.cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {.max_send_wr = kQueueDepth,
              .max_recv_wr = 1,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 8};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = requester.pd;
  init.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE;
  requester.qp = require_made(ibv_create_qp_ex(requester.context, &init), "ibv_create_qp_ex");
  to_rts(requester.qp, responder.qp);
  to_rts(responder.qp, requester.qp);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(requester.qp);
  fill(responder.bytes, 9);
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::uint64_t value = 0x0102030405060708u * (i + 1);
    const std::size_t target = 64 + 8 * (i % 5);
    std::vector<std::uint8_t> expected = responder.bytes;
    std::memcpy(expected.data() + target, &value, 8);
    ibv_wr_start(qp);
    qp->wr_id = i;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(qp, responder.mr->rkey, responder.address(target), &value);
    require(ibv_wr_complete(qp) == 0, "ibv_wr_complete");
    const ibv_wc wc = expect(requester, IBV_WC_SUCCESS, "ATOMIC WRITE");
    require(wc.wr_id == i && wc.opcode == IBV_WC_ATOMIC_WRITE,
            "ATOMIC WRITE: wrong wr_id or opcode of the completion");
    require(responder.bytes == expected, "ATOMIC WRITE: wrong data");
  }
  const std::uint64_t value = 1;
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_atomic_write(qp, responder.mr->rkey, responder.address(68), &value);
  require(ibv_wr_complete(qp) == 0, "ibv_wr_complete");
  expect(requester, IBV_WC_REM_INV_REQ_ERR, "an ATOMIC WRITE to an address that is no multiple of 8");
}

// ---- CQ resize

void check_resize() {
  constexpr std::size_t kBytes = 3000;
  Connection connection;
  Side& requester = connection.requester;
  fill(requester.bytes, 3);
  std::uint64_t posted = 0, completed = 0;
  const auto post_some = [&](int count) {
    for (int i = 0; i < count; ++i, ++posted) {
      ibv_sge sge = requester.sge(posted % 300 * kBytes, kBytes);
      ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, {&sge, 1});
      wr.wr_id = posted;
      wr.wr.rdma.remote_addr = connection.responder.address(posted % 300 * kBytes);
      wr.wr.rdma.rkey = connection.responder.mr->rkey;
      post(requester, wr, "a WRITE under a CQ resize");
    }
  };
  const auto take_some = [&](int count) {
    for (int i = 0; i < count; ++i, ++completed) {
      const ibv_wc wc = expect(requester, IBV_WC_SUCCESS, "a WRITE under a CQ resize");
      require(wc.wr_id == completed,
              "completion " + std::to_string(wc.wr_id) + " where " + std::to_string(completed) + " is due");
    }
  };
  for (int round = 0; round < 50; ++round) {
    post_some(30);
    require(ibv_resize_cq(requester.cq, round % 2 == 0 ? 1000 : 63) == 0, "ibv_resize_cq");
    require(requester.cq->cqe >= (round % 2 == 0 ? 1000 : 63), "the CQ is smaller than asked for");
    post_some(30);
    take_some(11);
    require(ibv_resize_cq(requester.cq, 100 + round) == 0, "ibv_resize_cq");
    take_some(49);
  }
  require(std::memcmp(requester.bytes.data(), connection.responder.bytes.data(), 300 * kBytes) == 0,
          "wrong data under a CQ resize");
  expect_no_completion(requester, "after the last");
}

}  // namespace verbs_check
