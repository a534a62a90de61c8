#include "tests/interop/cm_side.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace roci::interop {
namespace {

constexpr milliseconds kEventLimit{
    100000};  // a message that is lost is repeated after four seconds, or eight
constexpr std::size_t kMessageBytes = 3000;
constexpr std::size_t kConnectionsAtOnce = 8;
constexpr std::uint16_t kFirstPort = 20000;  // of those that a cell listens on; another for each seed

// What a message of connection management has room for, behind the addresses of the IP CM service. The kernel
// hands all of it on, whatever the sender filled: the rest is zero.
constexpr std::size_t kReqBytes = 56, kRepBytes = 196, kRejBytes = 148, kSidrReqBytes = 180,
                      kSidrRepBytes = 136;

struct Exchange {
  rdma_port_space space = RDMA_PS_TCP;
  std::size_t connections = 1;
  bool listens = true;
  bool accepts = true;
  bool passive_ends = false;  // the side that accepted disconnects first
  bool full_words = false;    // private data to the last byte
};

const std::map<std::string, Exchange>& table_of_exchanges() {
  static const std::map<std::string, Exchange> table = [] {
    std::map<std::string, Exchange> t;
    t["connect"] = {};
    t["connect_words"].full_words = true;
    t["end_by_passive"].passive_ends = true;
    t["at_once"].connections = kConnectionsAtOnce;
    t["reject"].accepts = false;
    t["no_listener"].listens = false;
    t["sidr"].space = RDMA_PS_UDP;
    t["sidr_reject"].space = RDMA_PS_UDP;
    t["sidr_reject"].accepts = false;
    t["sidr_no_listener"].space = RDMA_PS_UDP;
    t["sidr_no_listener"].listens = false;
    return t;
  }();
  return table;
}

struct EventAck {
  void operator()(rdma_cm_event* event) const { rdma_ack_cm_event(event); }
};
using EventPtr = std::unique_ptr<rdma_cm_event, EventAck>;

sockaddr_storage socket_address(const ibv_gid& gid, int ip, std::uint16_t port) {
  sockaddr_storage storage{};
  if (ip == 4) {
    auto& in = reinterpret_cast<sockaddr_in&>(storage);
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, gid.raw + 12, 4);
  } else {
    auto& in6 = reinterpret_cast<sockaddr_in6&>(storage);
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port);
    std::memcpy(&in6.sin6_addr, gid.raw, 16);
  }
  return storage;
}

// What one side says in the private data of a message of this connection.
std::vector<std::uint8_t> words(const Cell& cell, std::size_t connection, char message, std::size_t length) {
  std::vector<std::uint8_t> bytes(length);
  for (std::size_t i = 0; i < length; ++i)
    bytes[i] =
        static_cast<std::uint8_t>(cell.seed + connection * 37 + static_cast<std::size_t>(message) + i * 11);
  if (length != 0) bytes[0] = static_cast<std::uint8_t>(connection);
  return bytes;
}

std::uint8_t data_byte(const Cell& cell, std::size_t connection, bool of_active, std::size_t at) {
  return static_cast<std::uint8_t>(cell.seed * 13 + connection * 101 + (of_active ? 7 : 0) + at * 5 +
                                   at / 251);
}

// A QP of one connection, the memory it uses, and how far it is.
struct Connection {
  rdma_cm_id* id = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_ah* ah = nullptr;
  std::uint32_t remote_qpn = 0, remote_qkey = 0;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(2 * (kMessageBytes + kGrhBytes));

  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (ah != nullptr) ibv_destroy_ah(ah);
    if (id != nullptr && id->qp != nullptr) rdma_destroy_qp(id);
    if (mr != nullptr) ibv_dereg_mr(mr);
    if (cq != nullptr) ibv_destroy_cq(cq);
    if (pd != nullptr) ibv_dealloc_pd(pd);
    if (id != nullptr) rdma_destroy_id(id);
  }
};

class CmSide {
 public:
  CmSide(ibv_context* device, Line& line, const Cell& cell, bool is_active)
      : device_(device),
        line_(line),
        cell_(cell),
        exchange_(table_of_exchanges().at(cell.operation)),
        is_active_(is_active),
        port_(static_cast<std::uint16_t>(kFirstPort + cell.seed % 20000)) {}
  CmSide(const CmSide&) = delete;
  CmSide& operator=(const CmSide&) = delete;
  ~CmSide() {
    connections_.clear();
    if (listener_ != nullptr) rdma_destroy_id(listener_);
    if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
  }

  // Whatever goes wrong, both sides come through the same steps of the agreement.
  std::string run() {
    std::string finding;
    const auto step = [&](auto&& what) {
      if (!finding.empty()) return;
      try {
        what();
      } catch (const Finding& found) {
        finding = found.what();
      }
    };
    step([&] { open(); });
    line_.put(finding.empty() ? "cm " + hex_of(gid_) : "not ready");
    const std::string answer = line_.must_get();
    if (answer.rfind("cm ", 0) == 0)
      peer_gid_ = gid_of(answer.substr(3));
    else if (finding.empty())
      finding = "the other side is not ready";
    step([&] { is_active_ ? act() : serve(); });
    // Whoever still repeats a message needs a peer that answers.
    line_.put("exchanged");
    line_.must_get(kCellMs);
    step([&] {
      const bool is_connected = exchange_.listens && exchange_.accepts && !is_datagram();
      if (is_connected) end_connections(is_active_ != exchange_.passive_ends);
    });
    line_.put("done");
    line_.must_get(kCellMs);
    return finding;
  }

 private:
  [[nodiscard]] bool is_datagram() const { return exchange_.space == RDMA_PS_UDP; }
  [[nodiscard]] std::size_t words_length(std::size_t room) const { return exchange_.full_words ? room : 17; }

  void open() {
    require(ibv_query_gid(device_, 1, static_cast<int>(gid_index(device_, cell_.ip)), &gid_) == 0,
            "ibv_query_gid");
    channel_ = rdma_create_event_channel();
    require(channel_ != nullptr, "rdma_create_event_channel");
    require(fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) == 0,
            "the channel's fcntl");
    if (is_active_ || !exchange_.listens) return;
    require(rdma_create_id(channel_, &listener_, nullptr, exchange_.space) == 0, "rdma_create_id");
    sockaddr_storage own = socket_address(gid_, cell_.ip, port_);
    require(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&own)) == 0, "rdma_bind_addr");
    require(rdma_listen(listener_, static_cast<int>(kConnectionsAtOnce)) == 0, "rdma_listen");
  }

  EventPtr event(const std::string& awaited) {
    const auto end = Clock::now() + kEventLimit;
    for (;;) {
      rdma_cm_event* raw = nullptr;
      if (rdma_get_cm_event(channel_, &raw) == 0) return EventPtr(raw);
      require(errno == EAGAIN, "rdma_get_cm_event");
      require(Clock::now() < end, "no event while waiting for " + awaited);
      pollfd ready{channel_->fd, POLLIN, 0};
      poll(&ready, 1, 100);
    }
  }
  EventPtr expect(rdma_cm_event_type type) {
    EventPtr got = event(rdma_event_str(type));
    require(got->event == type, std::string(rdma_event_str(got->event)) + " (" + std::to_string(got->status) +
                                    ") instead of " + rdma_event_str(type));
    return got;
  }

  void make_qp(Connection& c) {
    require(c.id->verbs != nullptr, "the id has no device");
    c.pd = ibv_alloc_pd(c.id->verbs);
    c.cq = ibv_create_cq(c.id->verbs, 16, nullptr, nullptr, 0);
    require(c.pd != nullptr && c.cq != nullptr, "a PD and a CQ");
    c.mr = ibv_reg_mr(c.pd, c.bytes.data(), c.bytes.size(), IBV_ACCESS_LOCAL_WRITE);
    require(c.mr != nullptr, "ibv_reg_mr");
    ibv_qp_init_attr init{};
    init.qp_type = is_datagram() ? IBV_QPT_UD : IBV_QPT_RC;
    init.send_cq = init.recv_cq = c.cq;
    init.cap = {4, 4, 1, 1, 0};
    init.sq_sig_all = 1;
    require(rdma_create_qp(c.id, c.pd, &init) == 0, "rdma_create_qp");
    ibv_sge sge{reinterpret_cast<std::uint64_t>(c.bytes.data()), kMessageBytes + kGrhBytes, c.mr->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    require(ibv_post_recv(c.id->qp, &wr, &bad) == 0, "ibv_post_recv");
  }

  static rdma_conn_param parameters(const std::vector<std::uint8_t>& said, const Connection& c) {
    rdma_conn_param p{};
    p.private_data = said.data();
    p.private_data_len = static_cast<std::uint8_t>(said.size());
    p.responder_resources = p.initiator_depth = 4;
    p.retry_count = p.rnr_retry_count = 7;
    if (c.id->qp != nullptr) p.qp_num = c.id->qp->qp_num;
    return p;
  }

  // Private data goes in a field of fixed length: what was said, then zeros.
  void check_words(const rdma_cm_event& event, std::size_t connection, char message, std::size_t room,
                   std::size_t length) const {
    const bool is_ud = is_datagram();
    const void* const data = is_ud ? event.param.ud.private_data : event.param.conn.private_data;
    const std::size_t seen = is_ud ? event.param.ud.private_data_len : event.param.conn.private_data_len;
    const std::string name = std::string("the private data of ") + rdma_event_str(event.event);
    require(data != nullptr && seen == room,
            name + " has " + std::to_string(seen) + " bytes, not " + std::to_string(room));
    std::vector<std::uint8_t> expected = words(cell_, connection, message, length);
    expected.resize(room);
    require(std::memcmp(data, expected.data(), room) == 0, name + " is other than what was said");
  }

  // ---- the active side

  void act() {
    for (std::size_t i = 0; i < exchange_.connections; ++i) {
      connections_.push_back(std::make_unique<Connection>());
      Connection& c = *connections_.back();
      require(rdma_create_id(channel_, &c.id, nullptr, exchange_.space) == 0, "rdma_create_id");
      sockaddr_storage to = socket_address(peer_gid_, cell_.ip, port_);
      sockaddr_storage from = socket_address(gid_, cell_.ip, 0);
      require(rdma_resolve_addr(c.id, reinterpret_cast<sockaddr*>(&from), reinterpret_cast<sockaddr*>(&to),
                                5000) == 0,
              "rdma_resolve_addr");
      expect(RDMA_CM_EVENT_ADDR_RESOLVED);
      require(rdma_resolve_route(c.id, 5000) == 0, "rdma_resolve_route");
      expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
      make_qp(c);
    }
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      const auto said = words(cell_, i, 'Q', words_length(is_datagram() ? kSidrReqBytes : kReqBytes));
      rdma_conn_param p = parameters(said, *connections_[i]);
      require(rdma_connect(connections_[i]->id, &p) == 0, "rdma_connect");
    }
    if (!exchange_.listens || !exchange_.accepts) return expect_refusal();
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      const EventPtr got = expect(RDMA_CM_EVENT_ESTABLISHED);
      const std::size_t which = index_of(got->id);
      check_words(*got, which, 'P', is_datagram() ? kSidrRepBytes : kRepBytes,
                  words_length(is_datagram() ? kSidrRepBytes : kRepBytes));
      if (is_datagram()) address_datagrams(*connections_[which], *got);
    }
    exchange_messages();
  }

  void expect_refusal() {
    const bool is_ud = is_datagram();
    const EventPtr got = expect(is_ud ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
    // 28: consumer reject; 8: invalid service id. Of a SIDR_REP, the status: 2 rejected, 1 unsupported.
    const int status = is_ud ? (exchange_.listens ? 2 : 1) : (exchange_.listens ? 28 : 8);
    require(got->status == status,
            "refused with status " + std::to_string(got->status) + ", not " + std::to_string(status));
    if (exchange_.listens && !is_ud) check_words(*got, 0, 'J', kRejBytes, words_length(kRejBytes));
  }

  void address_datagrams(Connection& c, const rdma_cm_event& event) {
    ibv_ah_attr attr = event.param.ud.ah_attr;
    c.ah = ibv_create_ah(c.pd, &attr);
    require(c.ah != nullptr, "ibv_create_ah of what SIDR_REP said");
    c.remote_qpn = event.param.ud.qp_num;
    c.remote_qkey = event.param.ud.qkey;
  }

  std::size_t index_of(const rdma_cm_id* id) const {
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      if (connections_[i]->id == id) return i;
    }
    throw Finding("an event of an id that is not ours");
  }

  // ---- the passive side

  void serve() {
    if (!exchange_.listens) return;
    // Requests come in any order where frames are lost; their private data tells which is which.
    std::vector<std::size_t> order;
    std::size_t established = 0;
    while (order.size() < exchange_.connections ||
           (awaits_established() && established < exchange_.connections)) {
      const EventPtr got = event("CONNECT_REQUEST or ESTABLISHED");
      if (got->event == RDMA_CM_EVENT_ESTABLISHED) {
        ++established;
        continue;
      }
      require(got->event == RDMA_CM_EVENT_CONNECT_REQUEST,
              std::string(rdma_event_str(got->event)) + " instead of CONNECT_REQUEST");
      require(got->listen_id == listener_, "a request of another listener");
      connections_.push_back(std::make_unique<Connection>());
      Connection& c = *connections_.back();
      c.id = got->id;
      const std::size_t room = is_datagram() ? kSidrReqBytes : kReqBytes;
      const void* const data = is_datagram() ? got->param.ud.private_data : got->param.conn.private_data;
      require(data != nullptr, "a request without private data");
      const std::size_t which = *static_cast<const std::uint8_t*>(data);
      order.push_back(which);
      check_words(*got, which, 'Q', room, words_length(room));
      check_addresses(*c.id);
      answer(c, which);
    }
    order_ = std::move(order);
    if (exchange_.accepts) exchange_messages();
  }
  [[nodiscard]] bool awaits_established() const { return exchange_.accepts && !is_datagram(); }

  void check_addresses(rdma_cm_id& id) const {
    const sockaddr_storage theirs = socket_address(peer_gid_, cell_.ip, 0);
    const sockaddr* const seen = rdma_get_peer_addr(&id);
    const bool is_right =
        seen->sa_family == theirs.ss_family &&
        (cell_.ip == 4
             ? std::memcmp(&reinterpret_cast<const sockaddr_in*>(seen)->sin_addr, peer_gid_.raw + 12, 4) == 0
             : std::memcmp(&reinterpret_cast<const sockaddr_in6*>(seen)->sin6_addr, peer_gid_.raw, 16) == 0);
    require(is_right, "the request names another peer address");
    require(ntohs(rdma_get_src_port(&id)) == port_, "the request names another port");
  }

  void answer(Connection& c, std::size_t which) {
    if (!exchange_.accepts) {
      const auto said = words(cell_, which, 'J', words_length(is_datagram() ? kSidrRepBytes : kRejBytes));
      require(rdma_reject(c.id, said.data(), static_cast<std::uint8_t>(said.size())) == 0, "rdma_reject");
      return;
    }
    make_qp(c);
    const auto said = words(cell_, which, 'P', words_length(is_datagram() ? kSidrRepBytes : kRepBytes));
    rdma_conn_param p = parameters(said, c);
    require(rdma_accept(c.id, &p) == 0, "rdma_accept");
  }

  // ---- data and the end

  // Datagrams go one way. The two sides may have their connections in another order.
  void exchange_messages() {
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      if (is_active_ || !is_datagram()) send(i);
    }
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      if (!is_active_ || !is_datagram()) receive(i);
    }
  }

  [[nodiscard]] std::size_t number(std::size_t i) const { return is_active_ ? i : order_[i]; }
  [[nodiscard]] std::size_t message_bytes() const { return is_datagram() ? 200 : kMessageBytes; }

  void send(std::size_t i) {
    Connection& c = *connections_[i];
    std::uint8_t* const from = c.bytes.data() + kMessageBytes + kGrhBytes;
    for (std::size_t at = 0; at < message_bytes(); ++at)
      from[at] = data_byte(cell_, number(i), is_active_, at);
    ibv_sge sge{reinterpret_cast<std::uint64_t>(from), static_cast<std::uint32_t>(message_bytes()),
                c.mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = 1;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    if (is_datagram()) wr.wr.ud = {c.ah, c.remote_qpn, c.remote_qkey};
    // A datagram that is lost is gone, so there are more of it.
    const int times = is_datagram() && !cell_.is_clean ? 4 : 1;
    for (int time = 0; time < times; ++time) {
      require(ibv_post_send(c.id->qp, &wr, &bad) == 0, "ibv_post_send");
      complete(c, 1);
    }
  }

  void receive(std::size_t i) {
    Connection& c = *connections_[i];
    const ibv_wc wc = complete(c, 0);
    const std::size_t lead = is_datagram() ? kGrhBytes : 0;
    require(wc.byte_len == message_bytes() + lead, "a message of " + std::to_string(wc.byte_len) + " bytes");
    for (std::size_t at = 0; at < message_bytes(); ++at)
      require(c.bytes[lead + at] == data_byte(cell_, number(i), !is_active_, at),
              "byte " + std::to_string(at) + " is wrong");
  }

  // The next completion with this wr_id: a receive may complete before the send that is waited for.
  ibv_wc complete(Connection& c, std::uint64_t wr_id) {
    std::vector<ibv_wc>& waiting = waiting_[&c];
    const auto end = Clock::now() + kCompletionLimit;
    for (;;) {
      const auto found =
          std::find_if(waiting.begin(), waiting.end(), [&](const ibv_wc& wc) { return wc.wr_id == wr_id; });
      if (found != waiting.end()) {
        const ibv_wc wc = *found;
        waiting.erase(found);
        require(wc.status == IBV_WC_SUCCESS,
                std::string(wr_id == 0 ? "a receive: " : "a send: ") + ibv_wc_status_str(wc.status));
        return wc;
      }
      ibv_wc wc{};
      if (ibv_poll_cq(c.cq, 1, &wc) == 1)
        waiting.push_back(wc);
      else
        usleep(200);
      require(Clock::now() < end, wr_id == 0 ? "no message came" : "no completion of a send");
    }
  }

  void end_connections(bool is_first) {
    for (const auto& c : connections_) {
      if (is_first) require(rdma_disconnect(c->id) == 0, "rdma_disconnect");
    }
    for (std::size_t ended = 0; ended < connections_.size();) {
      const EventPtr got = event("DISCONNECTED");
      if (got->event == RDMA_CM_EVENT_TIMEWAIT_EXIT) continue;
      require(got->event == RDMA_CM_EVENT_DISCONNECTED,
              std::string(rdma_event_str(got->event)) + " instead of DISCONNECTED");
      ++ended;
      if (!is_first)
        require(rdma_disconnect(connections_[index_of(got->id)]->id) == 0, "rdma_disconnect in answer");
    }
  }

  ibv_context* device_;
  Line& line_;
  const Cell& cell_;
  const Exchange exchange_;
  const bool is_active_;
  const std::uint16_t port_;
  ibv_gid gid_{}, peer_gid_{};
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<const Connection*, std::vector<ibv_wc>> waiting_;
  std::vector<std::size_t> order_;  // passive: which of the active side's each connection is
};

}  // namespace

std::string run_cm_cell(ibv_context* device, Line& line, const Cell& cell, bool is_requester) {
  return CmSide(device, line, cell, is_requester).run();
}

}  // namespace roci::interop
