#include "tests/interop/verbs_side.h"

#include <endian.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <sstream>

namespace roci::interop {
namespace {

constexpr std::size_t kOutgoing = kSlots * kSlotBytes;  // what is sent lies behind what is received
constexpr std::uint8_t kFill = 0xA5;                    // what nobody wrote
constexpr std::uint32_t kQkey = 0x11223344;
constexpr milliseconds kQuiet{400};  // after this long nothing more comes of a service that loses

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

struct Peer {
  std::uint32_t qpn = 0, psn = 0, rkey = 0;
  std::uint64_t address = 0;
  ibv_gid gid{};
  std::vector<std::uint32_t> window_keys;
};

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
    gid_index_ = gid_index(device_.context, cell_.ip);
    require(ibv_query_gid(device_.context, 1, static_cast<int>(gid_index_), &gid_) == 0, "ibv_query_gid");
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
    av.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
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
    if (operation_.error != Operation::Error::kNone && !cell_.is_clean && wc.status == IBV_WC_RETRY_EXC_ERR)
      return;
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
      if (cell_.service == "uc") wait_for_writes();
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

  // Nothing tells the responder of a WRITE on UC that it is there: what is still under way has time, and
  // where nothing is lost, more of it.
  void wait_for_writes() const {
    const auto is_there = [this](std::size_t i) {
      const std::uint8_t* const last = device_.bytes.data() + i * kSlotBytes + sizes_[i] - 1;
      return sizes_[i] == 0 ||
             *static_cast<const volatile std::uint8_t*>(last) == byte_of(cell_, i, sizes_[i] - 1);
    };
    const auto begin = std::chrono::steady_clock::now();
    const milliseconds limit = cell_.is_lossy() ? kQuiet : 10 * kQuiet;
    while (std::chrono::steady_clock::now() - begin < limit) {
      usleep(5000);
      std::size_t there = 0;
      while (there < sizes_.size() && is_there(there))
        ++there;
      if (there == sizes_.size()) return;
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
  std::uint32_t psn_ = 0, peer_qpn_ = 0, gid_index_ = 0;
  ibv_gid gid_{}, peer_gid_{};
};

}  // namespace

std::string run_verbs_cell(Device& device, Line& line, const Cell& cell, bool is_requester) {
  return Side(device, line, cell, is_requester).run();
}

}  // namespace roci::interop
