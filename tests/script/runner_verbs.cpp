#include <algorithm>
#include <cstring>

#include "proto/text.h"
#include "tests/script/attributes.h"
#include "tests/script/names.h"
#include "tests/script/runner.h"

namespace roci::scripts {

using namespace emulator;

namespace {

constexpr std::uint32_t kFirstPeerQpn = 0x222222;
constexpr std::uint32_t kFirstPsn = 1000, kPeerFirstPsn = 100;
constexpr std::size_t kRegionBytes = 0x10000;
constexpr std::uint64_t kRemoteAddress = 0x7000;
constexpr std::uint32_t kRemoteKey = 0x99, kUsualLength = 64, kReceiveBytes = 4096;
constexpr std::uint32_t kCqEntries = 200;

[[noreturn]] void differs(const std::string& field, const std::string& expected, const std::string& seen) {
  throw Stop{Stop::Kind::kMismatch,
             "  expected: " + field + " " + expected + "\n  seen:     " + seen + "\n  differs:  " + field,
             {field}};
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

// ---- objects by name -------------------------------------------------------------------------------

void Runner::build(const HostOptions& options) {
  host_ = std::make_unique<Host>(options);
  app_ = std::make_unique<Application>(*host_);
}

Host& Runner::host() {
  if (host_ == nullptr) build(HostOptions{});
  return *host_;
}

Application& Runner::app() {
  static_cast<void>(host());
  return *app_;
}

Qp& Runner::qp() {
  if (qp_ == nullptr) complain("there is no QP yet; 'qp' makes one");
  return *qp_;
}

Cq& Runner::cq_named(const std::string& name) {
  if (name == "send") return *qp().send_cq;
  if (name == "recv") return *qp().recv_cq;
  const auto found = app().cqs.find(name);
  if (found == app().cqs.end()) complain("there is no CQ '" + name + "'");
  return *found->second;
}

const Region& Runner::region_named(const std::string& name) {
  const auto found = app().regions.find(name == "mr" ? qp().name + ".mr" : name);
  if (found == app().regions.end()) complain("there is no region '" + name + "'");
  return found->second;
}

Runner::Place Runner::place_of(const std::string& text) {
  const std::size_t sign = text.find_first_of("+-", 1);
  const std::string base = text.substr(0, sign);
  std::uint64_t offset = 0;
  if (sign != std::string::npos) {
    offset = number_of("offset", std::string_view(text).substr(sign + 1));
    if (text[sign] == '-') offset = 0 - offset;
  }
  if (const auto number = try_number(base)) return {nullptr, *number + offset, *number + offset};
  const Region& region = region_named(base);
  return {&region, region.address + offset, region.iova + offset};
}

std::uint32_t Runner::key_of(const std::string& text) {
  if (const auto number = try_number(text))
    return static_cast<std::uint32_t>(number_of("key", text, 0xFFFFFFFF));
  const std::size_t flip = text.find('^'), dot = text.find(".old");
  const std::string name = text.substr(0, std::min(flip, dot));
  const auto window = app().windows.find(name);
  if (dot != std::string::npos && window != app().windows.end()) return window->second.old_key;
  const std::uint32_t key =
      window != app().windows.end() ? window->second.key : region_named(text.substr(0, flip)).key;
  if (flip == std::string::npos) return key;
  return key ^
         static_cast<std::uint32_t>(number_of("key", std::string_view(text).substr(flip + 1), 0xFFFFFFFF));
}

std::uint32_t Runner::qpn_of(const std::string& text) {
  if (text == "peer") return qp().peer_qpn.value();
  const auto found = app().qps.find(text);
  if (found != app().qps.end()) return found->second->qpn.value();
  return static_cast<std::uint32_t>(number_of("qpn", text, 0xFFFFFF));
}

std::uint32_t Runner::access_of(const std::string& text) {
  if (try_number(text)) return static_cast<std::uint32_t>(number_of("access", text, 0xFFFFFFFF));
  std::uint32_t access = 0;
  for (const std::string& name : split(text, ','))
    access |= named("access right", name, kAccessNames);
  return access;
}

void Runner::judge(std::errc error, Words& words) {
  const std::string wanted = words.outcome().value_or("OK");
  if (error != named("errno", wanted, kErrnoNames)) differs("errno", wanted, name_in(kErrnoNames, error));
}

// ---- making things ---------------------------------------------------------------------------------

void Runner::on_engine(Words& words) {
  if (host_ != nullptr) complain("'engine' comes before everything else");
  HostOptions options;
  options.window_packets =
      static_cast<std::uint32_t>(words.number("window", 1U << 20).value_or(options.window_packets));
  options.transmit_burst =
      static_cast<std::uint32_t>(words.number("burst", 1024).value_or(options.transmit_burst));
  options.mtu_bytes = static_cast<std::uint32_t>(words.number("mtu", 9000).value_or(options.mtu_bytes));
  if (options.window_packets == 0 || options.transmit_burst == 0 || options.mtu_bytes < 576)
    complain("such an engine cannot be");
  options.ipv6 = words.flag("ipv6");
  options.knows_peer = !words.flag("unknown_peer");
  build(options);
}

QpAttributes Runner::usual_attributes(const Qp& qp) {
  QpAttributes attributes;
  attributes.path_mtu_code = 1;
  attributes.qkey = proto::Qkey{qp.type == QpType::kGsi ? kGsiQkey : kUsualQkey};
  attributes.rq_psn = qp.peer_first_psn;
  attributes.sq_psn = qp.first_psn;
  attributes.dest_qpn = qp.peer_qpn;
  attributes.access = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
  attributes.av.dgid = host().peer_gid();
  attributes.av.is_global = true;
  attributes.av.sgid_index = host().options().ipv6 ? 2 : 1;
  attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 4;
  attributes.min_rnr_timer = 12;
  attributes.timeout = 14;
  attributes.retry_cnt = attributes.rnr_retry = 3;
  return attributes;
}

// The mask of those that the line has.
std::uint32_t Runner::read_attributes(Words& words, QpAttributes& attributes) {
  std::uint32_t mask = 0;
  for (const auto& [key, value] : words.rest()) {
    const Attribute* const attribute = find_attribute(key);
    if (attribute == nullptr || attribute->bit == 0) complain("a QP has no attribute '" + key + "' to set");
    if (key == "dest_qpn") {
      attribute->set(attributes, qpn_of(value));
    } else if (key == "access") {
      attribute->set(attributes, access_of(value));
    } else {
      attribute->set(attributes, number_of(key, value, 0xFFFFFFFF));
      if (key != "mtu" && attribute->get(attributes) != number_of(key, value))
        complain(value + " does not fit into " + std::string(attribute->name));
    }
    mask |= attribute->bit;
  }
  return mask;
}

std::errc Runner::modify(Qp& qp, QpState to, std::uint32_t mask, const QpAttributes& attributes) {
  ModifyQp command{qp.handle, mask, attributes};
  command.attributes.state = to;
  const std::errc error = app().transact(command).error;
  if (error == std::errc{} && (mask & kQpSqPsn) != 0) qp.first_psn = attributes.sq_psn;
  if (error == std::errc{} && (mask & kQpRqPsn) != 0) qp.peer_first_psn = attributes.rq_psn;
  return error;
}

void Runner::on_qp(Words& words) {
  const bool signal_all = words.flag("signal_all");
  const std::string name = words.next().value_or("qp");
  if (name != "qp" && (name.front() < 'A' || name.front() > 'Z'))
    complain("a name begins with a capital letter");
  if (app().qps.count(name) != 0) complain("there is a QP '" + name + "' already");
  const std::string type_name = words.value("type").value_or("rc");
  const auto type = try_number(type_name) ? static_cast<std::uint32_t>(*try_number(type_name))
                                          : named("QP type", type_name, kTypeNames);
  const QpState target = named("QP state", words.value("state").value_or("RTS"), kStateNames);
  const std::string pd = pd_named(words);
  const auto capability = [&](const char* key, std::uint32_t usual) {
    return static_cast<std::uint32_t>(words.number(key, 1U << 20).value_or(usual));
  };
  QpCapabilities capabilities;
  capabilities.max_send_wr = capability("max_send_wr", 64);
  capabilities.max_recv_wr = capability("max_recv_wr", 64);
  capabilities.max_send_sge = capability("max_send_sge", 4);
  capabilities.max_recv_sge = capability("max_recv_sge", 4);
  capabilities.max_inline_bytes = capability("max_inline", 128);
  const std::optional<std::string> cq = words.value("cq");
  if (!cq) {
    for (const char* which : {".send", ".recv"}) {
      if (app().cqs.count(name + which) != 0) continue;  // of one that was refused or destroyed
      if (app().create_cq(name + which, kCqEntries) != std::errc{}) complain("its CQs cannot be made");
    }
  }
  Cq& send_cq = cq ? cq_named(*cq) : *app().cqs.at(name + ".send");
  Cq& recv_cq = cq ? cq_named(*cq) : *app().cqs.at(name + ".recv");
  const std::optional<std::string> srq = words.value("srq");
  const std::errc error = app().create_qp(name, pd, send_cq, recv_cq,
                                          {type, capabilities, signal_all, srq ? &srq_named(*srq) : nullptr});
  if (words.outcome() != std::nullopt || error != std::errc{}) {
    judge(error, words);
    static_cast<void>(words.rest());  // of a QP that is not there
    return;
  }
  Qp& made = *app().qps.at(name);
  made.peer_qpn = proto::Qpn{kFirstPeerQpn + static_cast<std::uint32_t>(app().qps.size() - 1)};
  made.first_psn = proto::Psn{kFirstPsn};
  made.peer_first_psn = proto::Psn{kPeerFirstPsn};
  qp_ = &made;
  if (first_qp_ == nullptr) first_qp_ = &made;
  if (app().register_region(std::string(name).append(".mr"), pd, kRegionBytes, Application::kAllRights,
                            std::nullopt) != std::errc{})
    complain("its region cannot be registered");
  QpAttributes attributes = usual_attributes(made);
  read_attributes(words, attributes);
  made.peer_qpn = attributes.dest_qpn;
  for (const QpState step : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
    if (app().state_of(made) == target) break;
    const std::errc stepped = modify(made, step, kQpState | usual_mask(made.type, step), attributes);
    if (stepped != std::errc{})
      differs("errno", "OK to " + name_in(kStateNames, step), name_in(kErrnoNames, stepped));
  }
  if (app().state_of(made) != target) complain("'qp' makes one in RESET, INIT, RTR or RTS");
}

std::string Runner::pd_named(Words& words) {
  std::string pd = words.value("pd").value_or("pd");
  if (app().pds.count(pd) == 0) complain("there is no PD '" + pd + "'");
  return pd;
}

void Runner::on_window(Words& words) {
  const std::string name = words.need("a name");
  const std::string pd = pd_named(words);
  judge(app().alloc_window(name, pd, static_cast<std::uint32_t>(words.number("type", 255).value_or(2))),
        words);
}

namespace {

proto::Gid gid_of(const std::string& text) {
  const std::optional<proto::Gid> gid = proto::gid_from_text(text);
  if (!gid) complain("'" + text + "' is no address");
  return *gid;
}

}  // namespace

void Runner::on_address_handle(Words& words) {
  const std::string name = words.need("a name");
  const std::string pd = pd_named(words);
  QpAttributes attributes = usual_attributes({});
  if (const auto to = words.value("to")) attributes.av.dgid = gid_of(*to);
  if ((read_attributes(words, attributes) & ~std::uint32_t{kQpAv}) != 0)
    complain("an address handle has no such attribute");
  judge(app().create_ah(name, pd, attributes.av), words);
}

void Runner::on_multicast(Words& words) {
  const proto::Gid group = gid_of(words.need("a group"));
  judge(app().transact(AttachMulticast{qp().handle, group}).error, words);
}

void Runner::on_detach(Words& words) {
  const proto::Gid group = gid_of(words.need("a group"));
  judge(app().transact(DetachMulticast{qp().handle, group}).error, words);
}

void Runner::on_region(Words& words) {
  const std::string name = words.need("a name");
  const auto bytes = static_cast<std::size_t>(words.number("len", 1U << 26).value_or(4096));
  const std::uint32_t access = access_of(words.value("access").value_or("lw,rw,rr,ra"));
  const std::string pd = pd_named(words);
  judge(app().register_region(name, pd, bytes, access, words.number("iova")), words);
}

void Runner::on_resize(Words& words) {
  Cq& cq = cq_named(words.need("a CQ"));
  judge(
      app().resize_cq(cq, static_cast<std::uint32_t>(words.number("entries", 1U << 20).value_or(kCqEntries))),
      words);
}

Srq& Runner::srq_named(const std::string& name) {
  const auto found = app().srqs.find(name);
  if (found == app().srqs.end()) complain("there is no SRQ '" + name + "'");
  return *found->second;
}

void Runner::on_srq(Words& words) {
  const std::string name = words.need("a name");
  const std::string pd = pd_named(words);
  const auto max_wr = static_cast<std::uint32_t>(words.number("max_wr", 1U << 20).value_or(15));
  const auto max_sge = static_cast<std::uint32_t>(words.number("max_sge", 1024).value_or(4));
  const auto limit = static_cast<std::uint32_t>(words.number("limit", 1U << 20).value_or(0));
  judge(app().create_srq(name, pd, max_wr, max_sge, limit), words);
}

void Runner::on_limit(Words& words) {
  const Srq& srq = srq_named(words.need("an SRQ"));
  const auto limit = static_cast<std::uint32_t>(number_of("limit", words.need("a number"), 0xFFFFFFFF));
  judge(app().transact(ModifySrq{srq.handle, limit, 0, {}}).error, words);
}

void Runner::on_pd(Words& words) { judge(app().alloc_pd(words.need("a name")), words); }

void Runner::on_cq(Words& words) {
  const std::string name = words.need("a name");
  judge(app().create_cq(name,
                        static_cast<std::uint32_t>(words.number("entries", 1U << 20).value_or(kCqEntries))),
        words);
}

void Runner::on_destroy(Words& words) {
  const std::string name = words.need("what is destroyed");
  Application& application = app();
  const auto end = [&](auto& objects, auto command) {
    const std::errc error = application.transact(command).error;
    if (error == std::errc{}) objects.erase(name);
    judge(error, words);
  };
  if (const auto found = application.qps.find(name); found != application.qps.end()) {
    const bool is_first = first_qp_ == found->second.get();
    end(application.qps, DestroyQp{found->second->handle});
    if (is_first && application.qps.count(name) == 0) first_qp_ = nullptr;
    return;
  }
  if (const auto found = application.cqs.find(name); found != application.cqs.end())
    return end(application.cqs, DestroyCq{found->second->handle});
  if (const auto found = application.pds.find(name); found != application.pds.end())
    return end(application.pds, DeallocPd{found->second});
  if (const auto found = application.ahs.find(name); found != application.ahs.end())
    return end(application.ahs, DestroyAh{found->second});
  if (const auto found = application.srqs.find(name); found != application.srqs.end())
    return end(application.srqs, DestroySrq{found->second->handle});
  if (const auto found = application.windows.find(name); found != application.windows.end())
    return end(application.windows, DeallocMw{found->second.handle});
  const Region region = region_named(name);
  const std::errc error = application.transact(DeregMr{region.handle}).error;
  // Its key stays known to the script, as one that is dead.
  if (error == std::errc{})
    host().memory().give_up(application.space(), region.address,
                            static_cast<std::size_t>(region.length_bytes));
  judge(error, words);
}

// ---- posting ---------------------------------------------------------------------------------------

std::vector<RingSge> Runner::sges_of(Words& words, const std::string& usual_place, std::uint32_t usual_length,
                                     bool may_be_none) {
  const auto element = [&](const std::string& where, std::uint32_t length,
                           const std::optional<std::string>& key) {
    const Place place = place_of(where);
    if (place.region == nullptr && !key) complain("the SGE at " + where + " needs a key: ADDRESS:LENGTH:KEY");
    return RingSge{place.iova, length, key ? key_of(*key) : place.region->key};
  };
  std::vector<RingSge> sges;
  if (const std::optional<std::string> list = words.value("sge")) {
    for (const std::string& text : split(*list, ',')) {
      const std::vector<std::string> parts = split(text, ':');
      if (parts.size() < 2 || parts.size() > 3) complain("an SGE is ADDRESS:LENGTH or ADDRESS:LENGTH:KEY");
      sges.push_back(element(parts[0], static_cast<std::uint32_t>(number_of("length", parts[1], 0xFFFFFFFF)),
                             parts.size() == 3 ? std::optional(parts[2]) : std::nullopt));
    }
    return sges;
  }
  const std::string place = words.value("at").value_or(usual_place);
  const auto length = static_cast<std::uint32_t>(words.number("len", 0xFFFFFFFF).value_or(usual_length));
  if (length > 0 || !may_be_none) sges.push_back(element(place, length, words.value("lkey")));
  return sges;
}

void Runner::post_recv(Words& words) {
  const Range ids = range_of("wr", words.value("wr").value_or("0"));
  const std::optional<std::string> srq = words.value("srq");
  const std::vector<RingSge> sges = sges_of(words, "mr+0x8000", kReceiveBytes, true);
  std::errc error{};
  for (std::uint64_t id = ids.first; id <= ids.last && error == std::errc{}; ++id)
    error = srq ? app().post_recv(srq_named(*srq), id, sges) : app().post_recv(qp(), id, sges);
  judge(error, words);
}

void Runner::fill_datagram(Words& words, RingSendWqe& wqe) {
  const std::string name = words.value("ah").value_or("ah");
  if (name == "ah" && app().ahs.count(name) == 0) {
    if (app().create_ah(name, "pd", usual_attributes(qp()).av) != std::errc{})
      complain("no handle to the peer");
  }
  const auto found = app().ahs.find(name);
  const std::optional<std::uint64_t> number = try_number(name);  // of one that there may not be
  if (found == app().ahs.end() && !number) complain("there is no address handle '" + name + "'");
  wqe.wr.ud = {
      qpn_of(words.value("qpn").value_or("peer")),
      static_cast<std::uint32_t>(
          words.number("qkey", 0xFFFFFFFF).value_or(qp().type == QpType::kGsi ? kGsiQkey : kUsualQkey)),
      0, 0, found == app().ahs.end() ? static_cast<std::uint32_t>(*number) : found->second.value + 1};
}

// A binding gets the next key of its window, unless the line says which.
void Runner::fill_bind(Words& words, RingSendWqe& wqe) {
  const std::string name = words.value("mw").value_or("");
  const auto window = app().windows.find(name);
  if (window == app().windows.end()) complain("there is no window '" + name + "'");
  const Place place = place_of(words.value("at").value_or("mr"));
  const auto length = words.number("len").value_or(kUsualLength);
  const std::uint32_t access = access_of(words.value("access").value_or("rw"));
  const std::optional<std::string> region = words.value("mr");
  if (!region && place.region == nullptr) complain("a binding needs a region: at=R+8 or mr=R");
  Window& of = window->second;
  of.old_key = of.key;
  of.key = (of.key & ~0xFFU) | ((of.key + 1) & 0xFFU);
  wqe.wr.mw = {place.iova, length, region ? key_of(*region) : place.region->key, of.old_key, of.key, access};
}

void Runner::on_post(Words& words) {
  const std::string kind = words.need("what is posted");
  if (kind == "recv") return post_recv(words);
  const std::uint32_t opcode = named("work request", kind, kPostNames);
  const Range ids = range_of("wr", words.value("wr").value_or("0"));
  const bool is_atomic = kind == "cmp_swap" || kind == "fetch_add";
  SendPost post;
  RingSendWqe& wqe = post.wqe;
  std::memset(&wqe.wr, 0xEE, sizeof wqe.wr);  // what this kind does not use is not looked at
  wqe.immediate_or_invalidate = 0xEEEEEEEE;
  wqe.opcode = static_cast<std::uint32_t>(words.number("opcode", 0xFFFFFFFF).value_or(opcode));
  wqe.send_flags = words.flag("unsignaled") ? 0U : std::uint32_t{sim::kSignaled};
  if (words.flag("fence")) wqe.send_flags |= sim::kFence;
  if (words.flag("solicited")) wqe.send_flags |= sim::kSolicited;
  const bool is_inline = words.flag("inline"), is_unflagged = words.flag("unflagged");
  if (const auto imm = words.number("imm", 0xFFFFFFFF))
    wqe.immediate_or_invalidate = __builtin_bswap32(static_cast<std::uint32_t>(*imm));
  if (const auto inv = words.value("inv")) wqe.immediate_or_invalidate = key_of(*inv);
  const bool is_datagram = qp().type == QpType::kUd || qp().type == QpType::kGsi;
  if (is_datagram) fill_datagram(words, wqe);
  if (kind == "bind_mw") fill_bind(words, wqe);
  const std::uint64_t remote = place_of(words.value("remote").value_or(hex(kRemoteAddress))).iova;
  const std::uint32_t rkey = key_of(words.value("rkey").value_or(hex(kRemoteKey)));
  if (is_atomic) {
    const std::uint64_t add = words.number("add").value_or(0);
    wqe.wr.atomic = {remote, words.number("cmp").value_or(add), words.number("swap").value_or(0), rkey, 0};
  } else if (kind == "flush") {
    const auto length = static_cast<std::uint32_t>(words.number("len", 0xFFFFFFFF).value_or(kUsualLength));
    wqe.wr.flush = {remote, length, rkey, static_cast<std::uint8_t>(words.number("plt", 15).value_or(1)),
                    static_cast<std::uint8_t>(words.number("sel", 3).value_or(0))};
  } else if (!is_datagram && kind != "bind_mw") {
    wqe.wr.rdma = {remote, rkey, 0};
  }
  if (kind != "bind_mw" && kind != "local_inv" && kind != "flush")
    post.sges = sges_of(words, "mr", is_atomic || kind == "atomic_write" ? 8 : kUsualLength, !is_atomic);
  if (const auto lie = words.number("num_sge", 0xFFFFFFFF)) post.num_sge = static_cast<std::uint32_t>(*lie);
  // An ATOMIC WRITE's bytes stand in the request, as inline data do, but without the flag, which
  // ibv_wr_set_inline_data does not set either.
  if (is_inline || is_unflagged || kind == "atomic_write") {
    if (is_inline) wqe.send_flags |= sim::kInline;
    post.inline_data.emplace();
    for (const RingSge& sge : post.sges) {
      const auto data = app().bytes(sge.address, sge.length_bytes);  // its iova is its address
      post.inline_data->insert(post.inline_data->end(), data.begin(), data.end());
    }
    post.sges.clear();
  }
  std::errc error{};
  bool is_queued = false;
  for (std::uint64_t id = ids.first; id <= ids.last && error == std::errc{}; ++id) {
    wqe.wr_id = id;
    error = app().queue_send(qp(), post);
    is_queued = is_queued || error == std::errc{};
  }
  if (is_queued) app().ring_doorbell(qp().handle.value);
  judge(error, words);
}

// ---- QP states -------------------------------------------------------------------------------------

void Runner::on_modify(Words& words) {
  Qp& of = qp();
  const std::string name = words.need("a state, or SAME");
  const QpState from = app().state_of(of);
  const QpState to = name == "SAME" ? from : named("QP state", name, kStateNames);
  // A step of the way up carries what it must; any other only what the line has.
  const bool is_step = (from == QpState::kReset && to == QpState::kInit) ||
                       (from == QpState::kInit && to == QpState::kRtr) ||
                       (from == QpState::kRtr && to == QpState::kRts);
  QpAttributes attributes = usual_attributes(of);
  std::uint32_t mask =
      (name == "SAME" ? 0U : std::uint32_t{kQpState}) | (is_step ? usual_mask(of.type, to) : 0U);
  const std::optional<std::string> omitted = words.value("omit");
  if (const auto current = words.value("cur_state")) {
    attributes.current_state = named("QP state", *current, kStateNames);
    mask |= kQpCurState;
  }
  mask |= read_attributes(words, attributes);
  for (const std::string& one : omitted ? split(*omitted, ',') : std::vector<std::string>{}) {
    const Attribute* const attribute = find_attribute(one);
    if (attribute == nullptr || (mask & attribute->bit) == 0)
      complain("'" + one + "' is not there to be omitted");
    mask &= ~attribute->bit;
  }
  if ((mask & kQpDestQpn) != 0) of.peer_qpn = attributes.dest_qpn;
  judge(modify(of, to, mask, attributes), words);
}

void Runner::on_state(Words& words) {
  const std::string wanted = words.need("a state");
  const QpState state = named("QP state", wanted, kStateNames);
  const CommandReply reply = app().transact(QueryQp{qp().handle});
  if (reply.error != std::errc{}) differs("state", wanted, "errno " + name_in(kErrnoNames, reply.error));
  const QpState seen = std::get<QueryQpReply>(reply.body).attributes.state;
  if (seen != state) differs("state", wanted, name_in(kStateNames, seen));
  if (app().state_of(qp()) != state)
    differs("state", wanted, name_in(kStateNames, app().state_of(qp())) + " in the control area");
}

void Runner::on_query(Words& words) {
  const CommandReply reply = app().transact(QueryQp{qp().handle});
  judge(reply.error, words);
  const QpAttributes& seen = std::get<QueryQpReply>(reply.body).attributes;
  for (const auto& [key, value] : words.rest()) {
    const Attribute* const attribute = find_attribute(key);
    if (attribute == nullptr) complain("a QP has no attribute '" + key + "'");
    const std::uint64_t wanted = key == "access"     ? access_of(value)
                                 : key == "dest_qpn" ? qpn_of(value)
                                                     : number_of(key, value);
    if (attribute->get(seen) != wanted) differs(key, value, std::to_string(attribute->get(seen)));
  }
}

// ---- the rest --------------------------------------------------------------------------------------

void Runner::on_arm(Words& words) {
  const std::string name = words.need("a CQ");
  app().arm(cq_named(name), named("way to arm", words.need("'next' or 'solicited'"), kArmNames));
}

void Runner::on_unpolled(Words& words) { cq_named(words.need("a CQ")).is_polled = false; }

void Runner::on_memory(Words& words) {
  const std::string what = words.need("'set', 'expect', 'fault' or 'gone'");
  if (what == "fault") return host().memory().set_fault([](std::uint64_t, const MemoryOp&) { return true; });
  if (what == "gone") return host().memory().set_gone();
  const std::uint64_t address = place_of(words.need("an address")).address;
  const std::optional<std::uint64_t> number = words.number("u64");
  const std::optional<std::string> data = words.value("data");
  if (number.has_value() == data.has_value()) complain("'mem' has either u64= or data=");
  const auto length =
      number ? 8
             : static_cast<std::size_t>(
                   words.number("len", 1U << 26).value_or(length_of_bytes(*data).value_or(kUsualLength)));
  const std::span<std::byte> memory = app().bytes(address, length);
  Bytes wanted = number ? Bytes(8) : bytes_of(*data, length);
  if (number) std::memcpy(wanted.data(), &*number, 8);
  if (what == "set") {
    std::copy(wanted.begin(), wanted.end(), memory.begin());
    return;
  }
  if (what != "expect") complain("'mem' goes with 'set', 'expect', 'fault' or 'gone'");
  const auto [mine, theirs] = std::mismatch(wanted.begin(), wanted.end(), memory.begin(), memory.end());
  if (mine == wanted.end()) return;
  if (number) {
    std::uint64_t seen = 0;
    std::memcpy(&seen, memory.data(), 8);
    differs("u64", std::to_string(*number), std::to_string(seen));
  }
  const auto at = static_cast<std::size_t>(mine - wanted.begin());
  const std::size_t some = std::min<std::size_t>(8, length - at);
  differs("data", *data + ", from byte " + std::to_string(at) + ": " + hex(wanted.data() + at, some),
          hex(memory.data() + at, some));
}

void Runner::on_link(Words& words) {
  const std::string way = words.need("'up' or 'down'");
  if (way != "up" && way != "down") complain("a link is 'up' or 'down'");
  host().set_link(way == "up");
}

void Runner::on_transmit(Words& words) {
  const std::string way = words.need("'full' or 'free'");
  if (way != "full" && way != "free") complain("the transmit queue is 'full' or 'free'");
  host().block_transmit(way == "full");
}

void Runner::on_verdict(Words& words) {
  const std::string wanted = words.need("a drop reason, or 'accepted'");
  const auto known = std::find(std::begin(kDropReasonNames), std::end(kDropReasonNames), wanted);
  if (known == std::end(kDropReasonNames)) complain("'" + wanted + "' is no drop reason");
  if (verdicts_.empty()) complain("nothing was received yet");
  const auto seen = kDropReasonNames[static_cast<std::size_t>(verdicts_.back())];
  if (seen != wanted) differs("verdict", wanted, std::string(seen));
}

void Runner::on_counter(Words& words) {
  const Counters& counters = host().counters();
  const std::pair<std::string_view, std::uint64_t> all[] = {
#define X(member, what) {#member, counters.member},
      ROCI_COUNTERS(X)
#undef X
  };
  for (const auto& [key, value] : words.rest()) {
    const std::uint64_t seen = named("counter", key, all);
    if (seen != number_of(key, value)) differs(key, value, std::to_string(seen));
  }
}

}  // namespace roci::scripts
