// One of two programs that try every operation on each other, with all data looked at on both sides.
//
//   interop_peer [-d DEVICE] serve PORT             does what its driver says, until that hangs up
//   interop_peer [-d DEVICE] drive ADDRESS PORT     one cell of the matrix a line on stdin, one result a line
//   on stdout
//
// A cell is words of KEY=VALUE (see Cell). The two agree over TCP; the cell's requester posts, its responder
// is written to, read from or sent to. It uses plain verbs only, so that it runs on any device: a result is
// `ok`, or `fail` and who saw what. A failed cell does not end the run; a peer that is gone does.
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kSlotBytes = 32768;  // of one message, a GRH in front
constexpr std::size_t kSlots = 16;
constexpr std::size_t kOutgoing = kSlots * kSlotBytes;  // what is sent lies behind what is received
constexpr std::size_t kRegionBytes = 2 * kSlots * kSlotBytes;
constexpr std::size_t kGrhBytes = 40;
constexpr std::uint8_t kFill = 0xA5;  // what nobody wrote
constexpr std::uint32_t kQkey = 0x11223344;
constexpr milliseconds kCompletionLimit{30000};
constexpr milliseconds kQuiet{400};  // after this long nothing more comes of a service that loses
constexpr int kAgreeMs = 60000;
constexpr unsigned kAllRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

// What makes a cell fail; anything else ends the program.
struct Finding : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void require(bool condition, const std::string& text) {
  if (!condition) throw Finding(text);
}

// ---- the agreement ---------------------------------------------------------------------------------------

class Line {
 public:
  explicit Line(int fd) : fd_(fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() { close(fd_); }

  void put(const std::string& text) {
    const std::string line = text + "\n";
    if (send(fd_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
      throw std::runtime_error("the other side hung up");
    }
  }
  // Nothing: it hung up.
  std::optional<std::string> get(int limit_ms) {
    for (;;) {
      if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, limit_ms) == 0) throw std::runtime_error("the other side says nothing");
      char bytes[4096];
      const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
      if (count <= 0) return std::nullopt;
      buffer_.append(bytes, static_cast<std::size_t>(count));
    }
  }
  std::string must_get() {
    std::optional<std::string> line = get(kAgreeMs);
    if (!line) throw std::runtime_error("the other side hung up");
    return *line;
  }

 private:
  int fd_;
  std::string buffer_;
};

// ---- a cell ----------------------------------------------------------------------------------------------

struct Cell {
  std::string service, operation;  // rc, uc, ud; see table_of_operations()
  int ip = 4;
  std::uint32_t mtu_bytes = 1024;
  bool driver_requests = true;
  bool is_clean = true;  // the wire between them does no harm
  std::uint32_t seed = 0;
  std::string text;

  [[nodiscard]] bool is_lossy() const { return service != "rc" && !is_clean; }
};

Cell parse_cell(const std::string& text) {
  Cell cell;
  cell.text = text;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t at = word.find('=');
    const std::string key = word.substr(0, at), value = at == std::string::npos ? "" : word.substr(at + 1);
    if (key == "service")
      cell.service = value;
    else if (key == "op")
      cell.operation = value;
    else if (key == "ip")
      cell.ip = std::stoi(value);
    else if (key == "mtu")
      cell.mtu_bytes = static_cast<std::uint32_t>(std::stoul(value));
    else if (key == "requester")
      cell.driver_requests = value == "driver";
    else if (key == "faults")
      cell.is_clean = value == "clean";
    else if (key == "seed")
      cell.seed = static_cast<std::uint32_t>(std::stoul(value));
    else
      throw std::runtime_error("a cell has no " + key);
  }
  return cell;
}

enum class Kind { kSend, kWrite, kRead, kAtomic };

struct Operation {
  Kind kind;
  ibv_wr_opcode opcode;
  bool immediate = false, invalidates = false, inline_data = false, from_srq = false, late = false;
  int window_type = 0;  // the responder grants access by a memory window
  enum class Error { kNone, kRkey, kLength } error = Error::kNone;  // what is wrong on purpose
};

const std::map<std::string, Operation>& table_of_operations() {
  static const std::map<std::string, Operation> table = [] {
    std::map<std::string, Operation> t;
    t["send"] = {Kind::kSend, IBV_WR_SEND};
    t["send_imm"] = {Kind::kSend, IBV_WR_SEND_WITH_IMM};
    t["send_imm"].immediate = true;
    t["send_inv"] = {Kind::kSend, IBV_WR_SEND_WITH_INV};
    t["send_inv"].invalidates = true;
    t["send_inv"].window_type = 2;
    t["send_inline"] = {Kind::kSend, IBV_WR_SEND};
    t["send_inline"].inline_data = true;
    t["send_srq"] = {Kind::kSend, IBV_WR_SEND};
    t["send_srq"].from_srq = true;
    t["send_rnr"] = {Kind::kSend, IBV_WR_SEND};
    t["send_rnr"].late = true;
    t["send_too_long"] = {Kind::kSend, IBV_WR_SEND};
    t["send_too_long"].error = Operation::Error::kLength;
    t["write"] = {Kind::kWrite, IBV_WR_RDMA_WRITE};
    t["write_imm"] = {Kind::kWrite, IBV_WR_RDMA_WRITE_WITH_IMM};
    t["write_imm"].immediate = true;
    t["write_window1"] = {Kind::kWrite, IBV_WR_RDMA_WRITE};
    t["write_window1"].window_type = 1;
    t["write_window2"] = {Kind::kWrite, IBV_WR_RDMA_WRITE};
    t["write_window2"].window_type = 2;
    t["write_bad_rkey"] = {Kind::kWrite, IBV_WR_RDMA_WRITE};
    t["write_bad_rkey"].error = Operation::Error::kRkey;
    t["read"] = {Kind::kRead, IBV_WR_RDMA_READ};
    t["read_bad_rkey"] = {Kind::kRead, IBV_WR_RDMA_READ};
    t["read_bad_rkey"].error = Operation::Error::kRkey;
    t["cmp_swap"] = {Kind::kAtomic, IBV_WR_ATOMIC_CMP_AND_SWP};
    t["fetch_add"] = {Kind::kAtomic, IBV_WR_ATOMIC_FETCH_AND_ADD};
    return t;
  }();
  return table;
}

// Sizes that meet every segmentation: nothing, less than a word, one packet, exactly full ones, and more.
std::vector<std::uint32_t> sizes_of(const Cell& cell, const Operation& operation) {
  const std::uint32_t mtu = cell.mtu_bytes;
  if (operation.kind == Kind::kAtomic) return {8, 8, 8, 8, 8};
  if (operation.error != Operation::Error::kNone) return {2 * mtu + 5};
  if (operation.inline_data && cell.service == "ud") return {1, 33, 64};
  if (operation.inline_data) return {0, 1, 33, 64};
  if (cell.service == "ud") return {4, 5, 63, mtu - 1, mtu};
  if (operation.window_type != 0) return {1, mtu, 2 * mtu + 7};
  return {0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 3};
}

std::uint8_t byte_of(const Cell& cell, std::size_t message, std::size_t at) {
  // The first byte of a datagram tells which it is, as datagrams come in any order.
  if (cell.service == "ud" && at == 0) return static_cast<std::uint8_t>(message);
  return static_cast<std::uint8_t>(cell.seed * 31 + message * 101 + at * 7 + at / 251);
}
std::uint32_t immediate_of(const Cell& cell, std::size_t message) {
  return cell.seed * 1000 + static_cast<std::uint32_t>(message);
}
constexpr std::uint64_t kAtomicStart = 0xFFFFFFFFFFFFFFF0;  // adds wrap
constexpr std::uint64_t kAtomicAdd = 5;

// ---- a device --------------------------------------------------------------------------------------------

struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kRegionBytes);

  explicit Device(const std::string& name) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i) {
      if (name == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
    }
    ibv_free_device_list(list);
    if (context == nullptr) throw std::runtime_error("no device " + name);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 256, nullptr, nullptr, 0);
    if (pd == nullptr || cq == nullptr) throw std::runtime_error("cannot make a PD and a CQ");
    mr = ibv_reg_mr(pd, bytes.data(), bytes.size(), static_cast<int>(kAllRights));
    if (mr == nullptr) throw std::runtime_error("cannot register memory");
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    ibv_dereg_mr(mr);
    ibv_destroy_cq(cq);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
  }
  [[nodiscard]] std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(bytes.data() + offset);
  }
};

struct Peer {
  std::uint32_t qpn = 0, psn = 0, rkey = 0;
  std::uint64_t address = 0;
  ibv_gid gid{};
  std::vector<std::uint32_t> window_keys;
};

std::string hex_of(const ibv_gid& gid) {
  std::string text;
  char pair[3];
  for (const std::uint8_t byte : gid.raw) {
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

ibv_gid gid_of(const std::string& hex) {
  ibv_gid gid{};
  for (std::size_t i = 0; i < sizeof gid.raw && 2 * i + 1 < hex.size(); ++i) {
    gid.raw[i] = static_cast<std::uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return gid;
}

ibv_mtu verbs_mtu(std::uint32_t bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    case 4096:
      return IBV_MTU_4096;
  }
  throw std::runtime_error("no path MTU of " + std::to_string(bytes));
}

// ---- one side of one cell --------------------------------------------------------------------------------

class Side {
 public:
  Side(Device& device, Line& line, const Cell& cell, bool is_requester)
      : device_(device),
        line_(line),
        cell_(cell),
        operation_(table_of_operations().at(cell.operation)),
        sizes_(sizes_of(cell, operation_)),
        is_requester_(is_requester) {}
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() {
    for (ibv_mw* const window : windows_)
      ibv_dealloc_mw(window);
    if (ah_ != nullptr) ibv_destroy_ah(ah_);
    if (qp_ != nullptr) ibv_destroy_qp(qp_);
    if (srq_ != nullptr) ibv_destroy_srq(srq_);
    ibv_wc wc;
    while (ibv_poll_cq(device_.cq, 1, &wc) > 0)
      continue;
  }

  // Whatever goes wrong, both sides come through the same steps of the agreement.
  std::string run() {
    std::string finding;
    const auto step = [&](auto&& what) {
      if (!finding.empty()) return;
      try {
        what();
      } catch (const std::exception& found) {
        finding = found.what();
      }
    };
    step([&] { open(); });
    line_.put(describe(finding));
    const Peer peer = parse_peer(line_.must_get());
    if (finding.empty() && peer.qpn == 0) finding = "the other side could not begin";
    step([&] { connect(peer); });
    step([&] { prepare(); });
    line_.put(finding.empty() ? "ready" : "not ready");
    if (line_.must_get() != "ready" && finding.empty()) finding = "the other side is not ready";
    // Windows are bound once the QP can; their keys go over with the requester's start.
    if (is_requester_) {
      Peer with_keys = peer;
      parse_keys(line_.must_get(), with_keys);
      step([&] { request(with_keys); });
      line_.put("requested");
      line_.must_get();
    } else {
      step([&] { bind_windows(); });
      line_.put(keys_text());
      step([&] {
        if (operation_.late) post_late();
      });
      line_.must_get();
      step([&] { respond(); });
      line_.put("responded");
    }
    return finding;
  }

 private:
  [[nodiscard]] bool is_datagram() const { return cell_.service == "ud"; }
  [[nodiscard]] std::size_t lead() const { return is_datagram() ? kGrhBytes : 0; }
  [[nodiscard]] bool takes_receives() const { return operation_.kind == Kind::kSend || operation_.immediate; }

  void open() {
    std::fill(device_.bytes.begin(), device_.bytes.end(), kFill);
    if (operation_.from_srq && !is_requester_) {
      ibv_srq_init_attr init{};
      init.attr.max_wr = 64;
      init.attr.max_sge = 1;
      srq_ = ibv_create_srq(device_.pd, &init);
      require(srq_ != nullptr, "ibv_create_srq");
    }
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = device_.cq;
    init.srq = srq_;
    init.qp_type = cell_.service == "rc" ? IBV_QPT_RC : cell_.service == "uc" ? IBV_QPT_UC : IBV_QPT_UD;
    init.cap = {64, 64, 2, 1, 64};
    init.sq_sig_all = 1;
    qp_ = ibv_create_qp(device_.pd, &init);
    require(qp_ != nullptr, "ibv_create_qp");
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (is_datagram()) {
      attr.qkey = kQkey;
      mask |= IBV_QP_QKEY;
    } else {
      attr.qp_access_flags = kAllRights & ~static_cast<unsigned>(IBV_ACCESS_MW_BIND);
      mask |= IBV_QP_ACCESS_FLAGS;
    }
    require(ibv_modify_qp(qp_, &attr, mask) == 0, "modify_qp to INIT");
    require(ibv_query_gid(device_.context, 1, cell_.ip == 4 ? 1 : 2, &gid_) == 0, "ibv_query_gid");
    std::mt19937 random(cell_.seed * 2 + (is_requester_ ? 1 : 0));
    psn_ = random() & 0xFFFFFF;
    if (cell_.seed % 4 == 0) psn_ = 0xFFFFFD;  // wraps soon
  }

  std::string describe(const std::string& finding) const {
    char text[160];
    std::snprintf(text, sizeof text, "peer %u %u %u %" PRIx64 " %s", finding.empty() ? qp_->qp_num : 0, psn_,
                  device_.mr->rkey, device_.address(0), hex_of(gid_).c_str());
    return text;
  }
  static Peer parse_peer(const std::string& text) {
    std::istringstream words(text);
    std::string word, address, gid;
    Peer peer;
    words >> word >> peer.qpn >> peer.psn >> peer.rkey >> address >> gid;
    if (word != "peer" || !words) throw std::runtime_error("the other side says: " + text);
    peer.address = std::stoull(address, nullptr, 16);
    peer.gid = gid_of(gid);
    return peer;
  }

  void connect(const Peer& peer) {
    peer_gid_ = peer.gid;
    peer_qpn_ = peer.qpn;
    ibv_ah_attr av{};
    av.is_global = 1;
    av.port_num = 1;
    av.grh.dgid = peer.gid;
    av.grh.sgid_index = cell_.ip == 4 ? 1 : 2;
    av.grh.hop_limit = 64;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    if (is_datagram()) {
      require(ibv_modify_qp(qp_, &attr, IBV_QP_STATE) == 0, "modify_qp to RTR");
      attr.qp_state = IBV_QPS_RTS;
      attr.sq_psn = psn_;
      require(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "modify_qp to RTS");
      ah_ = ibv_create_ah(device_.pd, &av);
      require(ah_ != nullptr, "ibv_create_ah");
      return;
    }
    attr.path_mtu = verbs_mtu(cell_.mtu_bytes);
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn;
    attr.ah_attr = av;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (cell_.service == "rc") {
      attr.max_dest_rd_atomic = 8;
      attr.min_rnr_timer = 12;  // 0.64 ms
      mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    require(ibv_modify_qp(qp_, &attr, mask) == 0, "modify_qp to RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = psn_;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (cell_.service == "rc") {
      attr.timeout = 14;  // 67 ms
      attr.retry_cnt = 7;
      attr.rnr_retry = 7;
      attr.max_rd_atomic = 8;
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    require(ibv_modify_qp(qp_, &attr, mask) == 0, "modify_qp to RTS");
  }

  void fill(std::size_t area, std::size_t message, std::size_t length) {
    std::uint8_t* const to = device_.bytes.data() + area + message * kSlotBytes;
    for (std::size_t at = 0; at < length; ++at)
      to[at] = byte_of(cell_, message, at);
  }

  void post_receive(std::size_t message) {
    // A WRITE with immediate takes a receive and none of its bytes.
    std::uint32_t length = static_cast<std::uint32_t>(kSlotBytes);
    if (operation_.kind == Kind::kWrite) length = 0;
    if (operation_.error == Operation::Error::kLength) length = 16;
    ibv_sge sge{device_.address(message * kSlotBytes), length, device_.mr->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = message;
    wr.sg_list = &sge;
    wr.num_sge = length == 0 ? 0 : 1;
    const int error = srq_ != nullptr ? ibv_post_srq_recv(srq_, &wr, &bad) : ibv_post_recv(qp_, &wr, &bad);
    require(error == 0, "posting a receive");
  }

  void prepare() {
    if (is_requester_) {
      if (operation_.kind == Kind::kRead || operation_.kind == Kind::kAtomic) return;
      for (std::size_t i = 0; i < sizes_.size(); ++i)
        fill(kOutgoing, i, sizes_[i]);
      return;
    }
    if (operation_.kind == Kind::kRead) {
      for (std::size_t i = 0; i < sizes_.size(); ++i)
        fill(0, i, sizes_[i]);
    }
    if (operation_.kind == Kind::kAtomic)
      std::memcpy(device_.bytes.data(), &kAtomicStart, sizeof kAtomicStart);
    if (takes_receives() && !operation_.late) {
      for (std::size_t i = 0; i < sizes_.size(); ++i)
        post_receive(i);
      if (is_datagram()) {  // duplicates take one each
        for (std::size_t i = sizes_.size(); i < kSlots; ++i)
          post_receive(i);
      }
    }
  }

  void post_late() {
    usleep(30000);
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      post_receive(i);
  }

  void bind_windows() {
    for (std::size_t i = 0; operation_.window_type != 0 && i < sizes_.size(); ++i) {
      ibv_mw* const window =
          ibv_alloc_mw(device_.pd, operation_.window_type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
      require(window != nullptr, "ibv_alloc_mw");
      windows_.push_back(window);
      const ibv_mw_bind_info info{device_.mr, device_.address(i * kSlotBytes), kSlotBytes,
                                  IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
      if (operation_.window_type == 1) {
        ibv_mw_bind bind{};
        bind.wr_id = i;
        bind.send_flags = IBV_SEND_SIGNALED;
        bind.bind_info = info;
        require(ibv_bind_mw(qp_, window, &bind) == 0, "ibv_bind_mw");
        window_keys_.push_back(window->rkey);
      } else {
        ibv_send_wr wr{}, *bad = nullptr;
        wr.wr_id = i;
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.bind_mw = {window, ibv_inc_rkey(window->rkey), info};
        require(ibv_post_send(qp_, &wr, &bad) == 0, "posting a bind");
        window_keys_.push_back(wr.bind_mw.rkey);
      }
      const ibv_wc wc = completion("of a bind");
      require(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW,
              std::string("binding a window: ") + ibv_wc_status_str(wc.status));
    }
  }
  [[nodiscard]] std::string keys_text() const {
    std::string text = "keys";
    for (const std::uint32_t key : window_keys_)
      text += " " + std::to_string(key);
    return text;
  }
  static void parse_keys(const std::string& text, Peer& peer) {
    std::istringstream words(text);
    std::string word;
    words >> word;
    for (std::uint32_t key = 0; words >> key;)
      peer.window_keys.push_back(key);
  }

  std::optional<ibv_wc> completion_within(milliseconds limit) {
    const auto end = Clock::now() + limit;
    ibv_wc wc{};
    for (;;) {
      const int count = ibv_poll_cq(device_.cq, 1, &wc);
      if (count < 0) throw Finding("ibv_poll_cq");
      if (count == 1) return wc;
      if (Clock::now() > end) return std::nullopt;
      usleep(50);
    }
  }
  ibv_wc completion(const char* what) {
    const std::optional<ibv_wc> wc = completion_within(kCompletionLimit);
    require(wc.has_value(), std::string("no completion ") + what);
    return *wc;
  }

  // ---- the requester

  void request(const Peer& peer) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      ibv_sge sge{device_.address(kOutgoing + i * kSlotBytes), sizes_[i], device_.mr->lkey};
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = i;
      wr.sg_list = &sge;
      wr.num_sge = sizes_[i] == 0 ? 0 : 1;
      wr.opcode = operation_.opcode;
      wr.send_flags = operation_.inline_data ? IBV_SEND_INLINE : 0;
      if (operation_.immediate || operation_.opcode == IBV_WR_SEND_WITH_IMM) {
        wr.imm_data = htobe32(immediate_of(cell_, i));
      }
      if (operation_.invalidates) wr.invalidate_rkey = peer.window_keys.at(i);
      std::uint32_t rkey = peer.rkey;
      if (!operation_.invalidates && operation_.window_type != 0) rkey = peer.window_keys.at(i);
      if (operation_.error == Operation::Error::kRkey) rkey ^= 0xFF00;
      if (is_datagram()) {
        wr.wr.ud = {ah_, peer.qpn, kQkey};
      } else if (operation_.kind == Kind::kAtomic) {
        // Swaps succeed and fail in turn.
        const bool swaps = operation_.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
        const std::uint64_t compare = i % 2 == 0 ? kAtomicStart + i / 2 : 0;
        wr.wr.atomic = {peer.address, swaps ? compare : kAtomicAdd, kAtomicStart + i / 2 + 1, rkey};
      } else {
        wr.wr.rdma = {peer.address + i * kSlotBytes, rkey};
      }
      require(ibv_post_send(qp_, &wr, &bad) == 0, "posting request " + std::to_string(i));
    }
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      check_request(i, completion("of a request"));
    if (operation_.kind == Kind::kRead && operation_.error == Operation::Error::kNone) {
      for (std::size_t i = 0; i < sizes_.size(); ++i)
        check_bytes(kOutgoing + i * kSlotBytes, i, sizes_[i]);
    }
    if (operation_.kind == Kind::kAtomic) check_originals();
  }

  void check_request(std::size_t i, const ibv_wc& wc) {
    require(wc.wr_id == i, "request " + std::to_string(wc.wr_id) + " completes, not " + std::to_string(i));
    const std::string status = ibv_wc_status_str(wc.status);
    // Who failed says so once; if that is lost, nobody answers any more.
    if (operation_.error != Operation::Error::kNone && !cell_.is_clean && wc.status == IBV_WC_RETRY_EXC_ERR) return;
    switch (operation_.error) {
      case Operation::Error::kNone:
        require(wc.status == IBV_WC_SUCCESS, "request " + std::to_string(i) + ": " + status);
        return;
      case Operation::Error::kRkey:
        require(wc.status == IBV_WC_REM_ACCESS_ERR, "not a remote access error but: " + status);
        return;
      case Operation::Error::kLength:
        // The standard's answer is invalid request, Soft-RoCE's is operational error.
        require(wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_OP_ERR,
                "not a remote invalid request or operational error but: " + status);
        return;
    }
  }

  void check_originals() {
    std::uint64_t value = kAtomicStart;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      std::uint64_t seen = 0;
      std::memcpy(&seen, device_.bytes.data() + kOutgoing + i * kSlotBytes, sizeof seen);
      require(seen == value, "the original value of atomic " + std::to_string(i) + " is " +
                                 std::to_string(seen) + ", not " + std::to_string(value));
      value = after_atomic(i, value);
    }
  }
  [[nodiscard]] std::uint64_t after_atomic(std::size_t i, std::uint64_t value) const {
    if (operation_.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) return value + kAtomicAdd;
    return i % 2 == 0 && value == kAtomicStart + i / 2 ? kAtomicStart + i / 2 + 1 : value;
  }

  // ---- the responder

  void check_bytes(std::size_t offset, std::size_t message, std::size_t length) const {
    const std::uint8_t* const bytes = device_.bytes.data() + offset;
    for (std::size_t at = 0; at < length; ++at) {
      require(bytes[at] == byte_of(cell_, message, at),
              "byte " + std::to_string(at) + " of message " + std::to_string(message) + " is wrong");
    }
    require(bytes[length] == kFill, "a byte behind message " + std::to_string(message) + " was written");
  }

  void respond() {
    if (operation_.error != Operation::Error::kNone) {
      check_untouched();
      return;
    }
    if (takes_receives()) {
      cell_.is_lossy() ? take_what_came() : take_all();
    } else if (operation_.kind == Kind::kWrite) {
      if (cell_.service == "uc")
        usleep(static_cast<useconds_t>(std::chrono::microseconds(kQuiet).count()));  // under way
      for (std::size_t i = 0; i < sizes_.size(); ++i) {
        cell_.is_lossy() ? check_pieces(i) : check_bytes(i * kSlotBytes, i, sizes_[i]);
      }
    } else if (operation_.kind == Kind::kAtomic) {
      std::uint64_t expected = kAtomicStart, value = 0;
      for (std::size_t i = 0; i < sizes_.size(); ++i)
        expected = after_atomic(i, expected);
      std::memcpy(&value, device_.bytes.data(), sizeof value);
      require(value == expected,
              "after the atomics memory has " + std::to_string(value) + ", not " + std::to_string(expected));
    }
  }

  void check_untouched() const {
    if (operation_.kind == Kind::kRead) return;
    // Of a SEND that is too long the part that fits may be there.
    const std::size_t from = operation_.error == Operation::Error::kLength ? 16 : 0;
    for (std::size_t at = from; at < kOutgoing; ++at)
      require(device_.bytes[at] == kFill, "memory was written");
  }

  // Packets of a WRITE on a service that loses: each byte is as it was, or as it was sent.
  void check_pieces(std::size_t message) const {
    const std::uint8_t* const bytes = device_.bytes.data() + message * kSlotBytes;
    for (std::size_t at = 0; at < sizes_[message]; ++at) {
      require(bytes[at] == kFill || bytes[at] == byte_of(cell_, message, at),
              "byte " + std::to_string(at) + " of message " + std::to_string(message) + " is wrong");
    }
    require(bytes[sizes_[message]] == kFill,
            "a byte behind message " + std::to_string(message) + " was written");
  }

  void check_receive(const ibv_wc& wc, std::size_t message) {
    const std::string name = "receive " + std::to_string(wc.wr_id);
    require(wc.status == IBV_WC_SUCCESS, name + ": " + ibv_wc_status_str(wc.status));
    require(wc.byte_len == sizes_[message] + lead(), name + " has " + std::to_string(wc.byte_len) + " bytes");
    require(wc.qp_num == qp_->qp_num, name + " names another QP");
    const ibv_wc_opcode opcode = operation_.kind == Kind::kWrite ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    require(wc.opcode == opcode, name + " has opcode " + std::to_string(wc.opcode));
    require(((wc.wc_flags & IBV_WC_WITH_IMM) != 0) == operation_.immediate, name + ": flag of the immediate");
    if (operation_.immediate) {
      require(be32toh(wc.imm_data) == immediate_of(cell_, message), name + " has another immediate");
    }
    if (operation_.invalidates) {
      require((wc.wc_flags & IBV_WC_WITH_INV) != 0, name + " does not tell of an invalidation");
      require(wc.invalidated_rkey == window_keys_.at(message),
              name + " tells another key that was invalidated");
    }
    if (is_datagram()) check_grh(wc, name);
    if (operation_.kind == Kind::kSend) {
      check_bytes(wc.wr_id * kSlotBytes + lead(), message, sizes_[message]);
    } else {
      check_bytes(message * kSlotBytes, message, sizes_[message]);
    }
  }

  void check_grh(const ibv_wc& wc, const std::string& name) const {
    require(wc.src_qp == peer_qpn_, name + " names another source QP");
    require((wc.wc_flags & IBV_WC_GRH) != 0, name + " has no GRH");
    const std::uint8_t* const area = device_.bytes.data() + wc.wr_id * kSlotBytes;
    if (cell_.ip == 4) {
      require(area[20] == 0x45 && std::equal(area + 32, area + 36, peer_gid_.raw + 12) &&
                  std::equal(area + 36, area + 40, gid_.raw + 12),
              name + " has another IPv4 header");
    } else {
      require(area[0] >> 4 == 6 && std::equal(area + 8, area + 24, peer_gid_.raw) &&
                  std::equal(area + 24, area + 40, gid_.raw),
              name + " has another GRH");
    }
  }

  void take_all() {
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const ibv_wc wc = completion("of a receive");
      require(wc.wr_id == i, "receives complete in another order than they were posted");
      check_receive(wc, i);
    }
    require(!completion_within(milliseconds(5)), "more receives complete than messages were sent");
  }

  // Messages may be lost, come twice and in any order; what comes is right. Each has a length of its own, and
  // datagrams their number.
  void take_what_came() {
    for (std::size_t taken = 0;; ++taken) {
      const std::optional<ibv_wc> wc = completion_within(kQuiet);
      if (!wc) return;
      // Soft-RoCE ends the receive of a message that broke off, if it is of a shared queue; we keep it for
      // the next.
      if (wc->status == IBV_WC_REM_INV_REQ_ERR && srq_ != nullptr && !is_datagram()) continue;
      require(wc->status == IBV_WC_SUCCESS, std::string("a receive: ") + ibv_wc_status_str(wc->status));
      require(wc->wr_id == taken, "receives complete in another order than they were posted");
      const std::size_t message =
          is_datagram() ? device_.bytes[wc->wr_id * kSlotBytes + kGrhBytes]
                        : static_cast<std::size_t>(std::find(sizes_.begin(), sizes_.end(), wc->byte_len) -
                                                   sizes_.begin());
      require(message < sizes_.size(),
              "a message of " + std::to_string(wc->byte_len) + " bytes that nobody sent");
      check_receive(*wc, message);
    }
  }

  Device& device_;
  Line& line_;
  const Cell& cell_;
  const Operation operation_;
  const std::vector<std::uint32_t> sizes_;
  const bool is_requester_;
  ibv_qp* qp_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_ah* ah_ = nullptr;
  std::vector<ibv_mw*> windows_;
  std::vector<std::uint32_t> window_keys_;
  std::uint32_t psn_ = 0, peer_qpn_ = 0;
  ibv_gid gid_{}, peer_gid_{};
};

// ---- the two programs ------------------------------------------------------------------------------------

void serve(Device& device, const char* port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<std::uint16_t>(std::stoul(port)));
  if (bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 || listen(listener, 1) != 0) {
    throw std::runtime_error("cannot listen on TCP port " + std::string(port));
  }
  std::puts("listening");
  std::fflush(stdout);
  Line line(accept(listener, nullptr, nullptr));
  close(listener);
  while (const std::optional<std::string> text = line.get(-1)) {
    const Cell cell = parse_cell(*text);
    line.put("end " + Side(device, line, cell, !cell.driver_requests).run());
  }
}

int dial(const char* address, const char* port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address, port, &hints, &found) != 0) throw std::runtime_error("no such address");
  const auto end = Clock::now() + std::chrono::seconds(20);  // until the other side listens
  for (;;) {
    const int fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
      freeaddrinfo(found);
      return fd;
    }
    close(fd);
    if (Clock::now() > end) throw std::runtime_error("the other side does not listen");
    usleep(50000);
  }
}

void drive(Device& device, const char* address, const char* port) {
  Line line(dial(address, port));
  for (std::string text; std::getline(std::cin, text);) {
    const Cell cell = parse_cell(text);
    line.put(text);
    const std::string ours = Side(device, line, cell, cell.driver_requests).run();
    std::string theirs = line.must_get();
    theirs.erase(0, std::strlen("end "));
    if (ours.empty() && theirs.empty()) {
      std::puts("ok");
    } else {
      std::printf("fail driver: %s; server: %s\n", ours.empty() ? "ok" : ours.c_str(),
                  theirs.empty() ? "ok" : theirs.c_str());
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::string name = "rxe0";
  if (words.size() >= 2 && words[0] == "-d") {
    name = words[1];
    words.erase(words.begin(), words.begin() + 2);
  }
  const bool serves = words.size() == 2 && words[0] == "serve";
  if (!serves && !(words.size() == 3 && words[0] == "drive")) {
    std::fputs("usage: interop_peer [-d DEVICE] serve PORT | drive ADDRESS PORT\n", stderr);
    return 2;
  }
  try {
    Device device(name);
    if (serves)
      serve(device, words[1].c_str());
    else
      drive(device, words[1].c_str(), words[2].c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interop_peer: %s\n", error.what());
    return 1;
  }
  return 0;
}
