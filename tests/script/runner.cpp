#include "tests/script/runner.h"

#include <algorithm>
#include <utility>

#include "proto/text.h"
#include "tests/script/names.h"

namespace roci::scripts {

using namespace emulator;

const Runner::Verb Runner::kVerbs[] = {
    {"<", &Runner::on_receive, Role::kStimulus},
    {">", &Runner::on_expect_packet, Role::kExpectation},
    {"cq:", &Runner::on_expect_completion, Role::kExpectation},
    {"event:", &Runner::on_expect_event, Role::kExpectation},
    {"reply:", &Runner::on_expect_reply, Role::kExpectation},
    {"stall", &Runner::on_stall, Role::kExpectation},
    {"engine", &Runner::on_engine, Role::kStimulus},
    {"qp", &Runner::on_qp, Role::kStimulus},
    {"mr", &Runner::on_region, Role::kStimulus},
    {"pd", &Runner::on_pd, Role::kStimulus},
    {"cq", &Runner::on_cq, Role::kStimulus},
    {"resize", &Runner::on_resize, Role::kStimulus},
    {"srq", &Runner::on_srq, Role::kStimulus},
    {"limit", &Runner::on_limit, Role::kStimulus},
    {"mw", &Runner::on_window, Role::kStimulus},
    {"ah", &Runner::on_address_handle, Role::kStimulus},
    {"attach", &Runner::on_multicast, Role::kStimulus},
    {"detach", &Runner::on_detach, Role::kStimulus},
    {"post", &Runner::on_post, Role::kStimulus},
    {"modify", &Runner::on_modify, Role::kStimulus},
    {"destroy", &Runner::on_destroy, Role::kStimulus},
    {"arm", &Runner::on_arm, Role::kStimulus},
    {"unpolled", &Runner::on_unpolled, Role::kCheck},
    {"mem", &Runner::on_memory, Role::kCheck},
    {"link", &Runner::on_link, Role::kStimulus},
    {"tx", &Runner::on_transmit, Role::kStimulus},
    {"state", &Runner::on_state, Role::kCheck},
    {"query", &Runner::on_query, Role::kCheck},
    {"verdict", &Runner::on_verdict, Role::kCheck},
    {"counter", &Runner::on_counter, Role::kCheck},
};

namespace {

[[noreturn]] void mismatch(const std::string& expected, const std::string& seen,
                           const std::vector<Difference>& differences) {
  std::vector<std::string> fields;
  std::string message = "  expected: " + expected + "\n  seen:     " + seen;
  for (const Difference& one : differences) {
    message.append("\n  differs:  ").append(one.field);
    if (!one.expected.empty() || !one.seen.empty())
      message.append(": expected ").append(one.expected).append(", seen ").append(one.seen);
    fields.push_back(one.field);
  }
  throw Stop{Stop::Kind::kMismatch, std::move(message), std::move(fields)};
}

std::string describe(const SentPacket& packet) {
  return packet.is_roce
             ? proto::to_text(packet.packet)
             : std::string(kind_of(packet.frame)) + " frame " + hex(packet.frame.data(), packet.frame.size());
}

std::string describe(const RingCqe& cqe) {
  std::string text = name_in(kCompletionNames, cqe.opcode) + " wr=" + std::to_string(cqe.wr_id) + " " +
                     name_in(kStatusNames, cqe.status) + " len=" + std::to_string(cqe.byte_len);
  if ((cqe.wc_flags & kHasImmediate) != 0)
    text += " imm=" + hex(__builtin_bswap32(cqe.immediate_or_invalidate));
  if ((cqe.wc_flags & kHasInvalidate) != 0) text += " inv=" + hex(cqe.immediate_or_invalidate);
  if ((cqe.wc_flags & kHasGrh) != 0) text += " grh";
  return text + " src=" + hex(cqe.src_qp) + " qpn=" + hex(cqe.qp_num);
}

std::string describe(const Event& event, const Application& app) {
  return name_in(kEventNames, static_cast<std::uint8_t>(event.kind)) + " of=" + app.object_of(event);
}

}  // namespace

Runner::Runner() = default;

// ---- lines -----------------------------------------------------------------------------------------

void Runner::execute(const Statement& statement) {
  Words words(statement.text);
  burst_ = &statement.burst;
  when_ = {};
  std::string word = words.need("a verb");
  if (word.size() > 1 && word.front() == '+') {
    when_ = when_of(std::string_view(word).substr(1));
    word = words.need("a verb");
  }
  qp_ = first_qp_;
  if (app_ != nullptr) {
    if (const auto named = app_->qps.find(word); named != app_->qps.end() && word != "qp") {
      qp_ = named->second.get();
      word = words.need("a verb");
    }
  }
  const auto* const verb =
      std::find_if(std::begin(kVerbs), std::end(kVerbs), [&](const Verb& one) { return one.name == word; });
  if (verb == std::end(kVerbs)) complain("'" + word + "' is neither a verb nor a QP of this script");
  if (!statement.burst.empty() && verb->name != "<") complain("'&' continues only a line with '<'");
  if (verb->role != Role::kExpectation) settle(verb->role);
  (this->*verb->handler)(words);
  words.end();
  require_sound();
}

void Runner::require_sound() const {
  if (host_ != nullptr && host_->unsound) throw Stop{Stop::Kind::kMismatch, *host_->unsound, {"icrc"}};
}

void Runner::finish() {
  if (app_ != nullptr) {
    for (const auto& [name, cq] : app_->cqs)
      app_->poll(*cq);
  }
  require_sound();
  require_quiet();
  if (host_ == nullptr) complain("the script has no line that does anything");
  if (!host_->memory().violations().empty())
    throw Stop{
        Stop::Kind::kMismatch, "memory that was given up: " + host_->memory().violations().front(), {}};
}

void Runner::drop_output() {
  if (host_ == nullptr) return;
  host_->packets.clear();
  host_->events.clear();
  if (app_ == nullptr) return;
  for (const auto& [name, cq] : app_->cqs)
    cq->polled.clear();
}

std::optional<std::string> Runner::broken_promise() const {
  if (host_ == nullptr) return std::nullopt;
  if (host_->unsound) return host_->unsound;
  const std::vector<std::string>& violations = host_->memory().violations();
  return violations.empty() ? std::nullopt : std::optional(violations.front());
}

// ---- time ------------------------------------------------------------------------------------------

bool Runner::has_output() const {
  if (host_ == nullptr) return false;
  return !host_->packets.empty() || !host_->events.empty() ||
         std::any_of(app_->cqs.begin(), app_->cqs.end(),
                     [](const auto& entry) { return !entry.second->polled.empty(); });
}

std::string Runner::describe_output() const {
  std::string text;
  const auto add = [&](const std::string& what) {
    text.append(text.empty() ? "" : "\n            ").append(what);
  };
  for (const SentPacket& one : host_->packets)
    add("packet " + describe(one));
  for (const auto& [name, cq] : app_->cqs) {
    for (const Completed& one : cq->polled)
      add("completion in " + name + ": " + describe(one.cqe));
  }
  for (const RaisedEvent& one : host_->events)
    add("event " + describe(one.event, *app_));
  return text.empty() ? "nothing" : text;
}

void Runner::require_quiet() {
  if (has_output()) mismatch("nothing more before this line", describe_output(), {{"nothing", "", ""}});
}

void Runner::settle(Role role) {
  if (when_.earliest != when_.latest) complain("only what is expected may come within a span of time");
  if (role == Role::kStimulus || when_.latest.count() > 0) require_quiet();
  if (when_.latest.count() == 0) return;
  Host& bench = host();
  bench.advance(bench.now() + when_.latest, [this] { return has_output(); });
  require_quiet();
}

template <class Has, class At>
void Runner::await(const std::string& expected, Has has, At at) {
  Host& bench = host();
  const Time start = bench.now();
  if (!has() && when_.latest.count() > 0) {
    require_quiet();
    bench.advance(start + when_.latest, [this] { return has_output(); });
  }
  if (!has()) {
    mismatch(expected, describe_output() + " within " + to_text(bench.now() - start), {{"nothing", "", ""}});
  }
  const Duration after = at() - start;
  if (after < when_.earliest || after > when_.latest) {
    const std::string wanted =
        "+" + to_text(when_.earliest) + (when_.earliest == when_.latest ? "" : ".." + to_text(when_.latest));
    mismatch(expected, describe_output(), {{"time", wanted, "+" + to_text(after)}});
  }
  when_ = {};  // what else this line expects comes at the same time
}

void Runner::on_stall(Words&) {
  require_quiet();
  host().stall(when_.latest);
}

// ---- packets ---------------------------------------------------------------------------------------

std::string Runner::resolve_psn(const std::string& text, bool is_peers_request) const {
  const bool is_relative = !text.empty() && (text.front() == '+' || text.front() == '-');
  if (!is_relative) return text;
  const auto steps = static_cast<std::int64_t>(number_of("psn", std::string_view(text).substr(1), 0xFFFFFF));
  const proto::Psn first = is_peers_request ? qp_->peer_first_psn : qp_->first_psn;
  return std::to_string(first.plus(text.front() == '+' ? steps : -steps).value());
}

PacketLine Runner::read_packet(Words& words, bool is_sent) {
  PacketLine line{words.need("an opcode"), {}};
  const proto::OpcodeInfo& info = proto::info(opcode_of(line));
  const Qp& of = qp();
  // Numbered by the peer are its requests and our answers to them.
  const bool is_peers_request = (info.role != proto::Role::kResponse) == is_sent;
  if (words.flag("ackreq")) line.fields.emplace_back("a", "1");
  if (words.flag("solicited")) line.fields.emplace_back("se", "1");
  for (auto& [key, value] : words.rest()) {
    if (key == "psn") value = resolve_psn(value, is_peers_request);
    if (key == "va") value = hex(place_of(value).iova);
    if (key == "rkey" || key == "inv") value = hex(key_of(value));
    if (key == "dqpn" || key == "sqpn") value = hex(qpn_of(value));
    line.fields.emplace_back(key, value);
  }
  if (!is_sent) {
    line.add_if_missing("dqpn", hex(of.peer_qpn.value()));
    if (info.operation == proto::Operation::kAcknowledge) line.add_if_missing("syn", "ack");
    return line;
  }
  const bool is_ipv6 = host().options().ipv6;
  line.add_if_missing("from", is_ipv6 ? "fd00::2" : "10.0.0.2");
  line.add_if_missing("to", is_ipv6 ? "fd00::1" : "10.0.0.1");
  line.add_if_missing("smac", proto::to_text(Host::kPeerMac));
  line.add_if_missing("dmac", proto::to_text(Host::kOwnMac));
  line.add_if_missing("dqpn", hex(of.qpn.value()));
  line.add_if_missing("psn", resolve_psn("+0", is_peers_request));
  if (info.has(proto::Extension::kReth) || info.has(proto::Extension::kAtomicEth)) {
    line.add_if_missing("va", hex(place_of("mr").iova));
    line.add_if_missing("rkey", hex(key_of("mr")));
  }
  if (info.has(proto::Extension::kDeth)) {
    line.add_if_missing("sqpn", hex(of.peer_qpn.value()));
    line.add_if_missing("qkey", hex(of.type == QpType::kGsi ? kGsiQkey : kUsualQkey));
  }
  if (info.has(proto::Extension::kReth)) {
    const std::string* const length = line.find("len");
    line.add_if_missing("dlen", length == nullptr ? "0" : *length);
  }
  return line;
}

namespace {

// "psn=+1..+6": as many packets, whose data goes on from one to the next.
std::vector<std::string> spread(const std::string& text) {
  const std::size_t at = text.find("psn=");
  const std::size_t end = std::min(text.find(' ', at), text.size());
  const std::size_t dots = text.find("..", at);
  if (at == std::string::npos || dots == std::string::npos || dots > end) return {text};
  const std::string first = text.substr(at + 4, dots - at - 4), last = text.substr(dots + 2, end - dots - 2);
  const bool is_relative = !first.empty() && first.front() == '+';
  const std::string digits = is_relative ? first.substr(1) : first;
  const Range range = range_of("psn", digits + ".." + (is_relative && !last.empty() ? last.substr(1) : last));
  std::vector<std::string> lines;
  for (std::uint64_t i = 0; i < range.count(); ++i) {
    std::string line = text.substr(0, at) + "psn=" + (is_relative ? "+" : "") +
                       std::to_string(range.first + i) + text.substr(end);
    Words words(line);
    const std::uint64_t length = words.number("len").value_or(0);
    if (const auto data = words.value("data")) {
      const std::size_t where = line.find("data=" + *data);
      line.replace(where + 5, data->size(), advanced(*data, static_cast<std::size_t>(i * length)));
    }
    lines.push_back(line);
  }
  return lines;
}

// What may be sent besides RoCE.
constexpr std::string_view kOtherFrames[] = {"ARP", "ND", "IGMP", "MLD"};

std::string remaining(Words& words) {
  std::string text;
  while (const auto word = words.next())
    text.append(text.empty() ? "" : " ").append(*word);
  for (const auto& [key, value] : words.rest())
    text.append(" ").append(key).append("=").append(value);
  return text;
}

}  // namespace

void Runner::add_frames(Words& words, std::vector<Bytes>& frames) {
  if (words.flag("ARP_REPLY")) return frames.push_back(host().arp_reply());
  for (const std::string& text : spread(remaining(words))) {
    Words one(text);
    const std::optional<std::uint64_t> cut = one.number("cut", 65535), keep = one.number("keep", 65535),
                                       flip = one.number("flip", 65535);
    const PacketLine line = read_packet(one, true);
    one.end();
    Bytes frame = frame_of(line);
    if (cut && *cut > frame.size()) complain("the frame has no " + std::to_string(*cut) + " bytes");
    if (cut) frame.resize(frame.size() - static_cast<std::size_t>(*cut));
    if (keep) frame.resize(std::min(frame.size(), static_cast<std::size_t>(*keep)));
    if (flip && *flip >= frame.size()) complain("the frame has no byte " + std::to_string(*flip));
    if (flip) frame[static_cast<std::size_t>(*flip)] ^= std::byte{1};
    frames.push_back(std::move(frame));
  }
}

void Runner::on_receive(Words& words) {
  std::vector<Bytes> frames;
  add_frames(words, frames);
  for (const std::string& text : *burst_) {
    Words more(text);
    add_frames(more, frames);
  }
  verdicts_ = host().receive(frames);
}

void Runner::on_expect_packet(Words& words) {
  const std::string text = remaining(words);
  Host& bench = host();
  if (text == "nothing") {
    const auto has_packet = [&] { return !bench.packets.empty(); };
    if (has_packet()) mismatch("no packet", describe_output(), {{"nothing", "", ""}});
    if (when_.latest.count() == 0) return;
    require_quiet();
    bench.advance(bench.now() + when_.latest, [this] { return has_output(); });
    require_quiet();
    return;
  }
  if (std::find(std::begin(kOtherFrames), std::end(kOtherFrames), text) != std::end(kOtherFrames))
    return expect_other_frame(text);
  for (const std::string& one : spread(text)) {
    Words packet(one);
    expect_packet(read_packet(packet, false));
    packet.end();
  }
}

void Runner::expect_other_frame(const std::string& kind) {
  std::deque<SentPacket>& packets = host().packets;
  await(
      kind, [&] { return !packets.empty(); }, [&] { return packets.front().at; });
  const SentPacket& seen = packets.front();
  const std::string is = seen.is_roce ? "RoCE" : std::string(kind_of(seen.frame));
  if (is != kind) mismatch(kind, describe(seen), {{"opcode", kind, is}});
  packets.pop_front();
}

void Runner::expect_packet(const PacketLine& line) {
  Host& bench = host();
  const std::string expected = to_text(line);
  await(
      expected, [&] { return !bench.packets.empty(); }, [&] { return bench.packets.front().at; });
  const SentPacket& seen = bench.packets.front();
  if (!seen.is_roce) mismatch(expected, describe(seen), {{"opcode", line.opcode, "no RoCE"}});
  const std::vector<Difference> found = differences(line, seen.packet);
  if (!found.empty()) mismatch(expected, describe(seen), found);
  bench.packets.pop_front();
}

// ---- completions and events ------------------------------------------------------------------------

void Runner::on_expect_completion(Words& words) {
  const std::string kind = words.need("what completes, or 'nothing'");
  const std::optional<std::string> on = words.value("on");
  if (kind == "nothing") {
    const auto is_empty = [&](Cq& cq) { return cq.polled.empty(); };
    if (!is_empty(*qp().send_cq) || !is_empty(*qp().recv_cq))
      mismatch("no completion", describe_output(), {{"nothing", "", ""}});
    if (when_.latest.count() == 0) return;
    require_quiet();
    host().advance(host().now() + when_.latest, [this] { return has_output(); });
    require_quiet();
    return;
  }
  const std::uint32_t opcode = named("completion", kind, kCompletionNames);
  const std::string status_name = words.next().value_or("SUCCESS");
  const bool expects_grh = status_name == "grh" || words.flag("grh");
  const std::uint32_t status =
      named("completion status", status_name == "grh" ? "SUCCESS" : status_name, kStatusNames);
  const std::optional<std::string> wr = words.value("wr");
  const std::optional<Range> wr_ids = wr ? std::optional(range_of("wr", *wr)) : std::nullopt;
  const auto len = words.number("len"), imm = words.number("imm");
  const std::optional<std::string> src = words.value("src");
  const std::optional<std::string> inv = words.value("inv");
  Cq& cq = on ? cq_named(*on) : opcode >= 128 ? *qp().recv_cq : *qp().send_cq;
  if (!cq.is_polled) app().poll(cq);

  const std::string expected = kind + (wr ? " wr=" + *wr : "") + " " + status_name;
  for (std::uint64_t i = 0; i < (wr_ids ? wr_ids->count() : 1); ++i) {
    await(
        expected, [&] { return !cq.polled.empty(); }, [&] { return cq.polled.front().at; });
    const RingCqe& cqe = cq.polled.front().cqe;
    std::vector<Difference> found;
    const auto check = [&](const char* field, std::uint64_t wanted, std::uint64_t seen) {
      if (wanted != seen) found.push_back({field, std::to_string(wanted), std::to_string(seen)});
    };
    if (status != cqe.status) found.push_back({"status", status_name, name_in(kStatusNames, cqe.status)});
    // Of an error only wr_id, status and QP are told.
    if (status == 0 && cqe.status == 0 && opcode != cqe.opcode)
      found.push_back({"completion", kind, name_in(kCompletionNames, cqe.opcode)});
    if (wr_ids) check("wr", wr_ids->first + i, cqe.wr_id);
    check("qpn", qp().qpn.value(), cqe.qp_num);
    if (len) check("len", *len, cqe.byte_len);
    if (src) check("src", qpn_of(*src), cqe.src_qp);
    if (imm) {
      check("imm", *imm,
            (cqe.wc_flags & kHasImmediate) != 0 ? __builtin_bswap32(cqe.immediate_or_invalidate)
                                                : ~std::uint64_t{0});
    }
    if (inv) {
      check("inv", key_of(*inv),
            (cqe.wc_flags & kHasInvalidate) != 0 ? cqe.immediate_or_invalidate : ~std::uint64_t{0});
    }
    if (expects_grh) check("grh", 1, (cqe.wc_flags & kHasGrh) != 0 ? 1 : 0);
    if (!found.empty()) mismatch(expected, describe(cqe), found);
    cq.polled.pop_front();
  }
}

void Runner::on_expect_event(Words& words) {
  const std::string name = words.need("an event");
  const std::uint8_t kind = named("event", name, kEventNames);
  const std::optional<std::string> of = words.value("of");
  std::deque<RaisedEvent>& events = host().events;
  const std::string expected = "event " + name + (of ? " of=" + *of : "");
  await(
      expected, [&] { return !events.empty(); }, [&] { return events.front().at; });
  const Event& seen = events.front().event;
  std::vector<Difference> found;
  if (static_cast<std::uint8_t>(seen.kind) != kind)
    found.push_back({"event", name, name_in(kEventNames, static_cast<std::uint8_t>(seen.kind))});
  const std::string object = app().object_of(seen);
  if (of && object != *of) found.push_back({"of", *of, object});
  if (!found.empty()) mismatch(expected, describe(seen, app()), found);
  events.pop_front();
}

void Runner::on_expect_reply(Words& words) {
  const std::string name = words.need("an errno, or OK");
  const std::errc wanted = named("errno", name, kErrnoNames);
  std::optional<std::errc> got;
  Time at = host().now();
  const Time start = at;
  const auto has = [&] {
    if (!got) got = app().late_reply();
    if (got) at = host().now();
    return got.has_value();
  };
  if (!has()) host().advance(start + when_.latest, [&] { return has() || has_output(); });
  const Duration after = at - start;
  if (!got) mismatch("reply " + name, describe_output(), {{"reply", name, "none"}});
  if (after < when_.earliest) mismatch("reply " + name, "a reply", {{"time", "later", "+" + to_text(after)}});
  if (*got != wanted) mismatch("reply " + name, "a reply", {{"reply", name, name_in(kErrnoNames, *got)}});
}

// ---- the whole script ------------------------------------------------------------------------------

namespace {

std::string without_comment(std::string_view line) {
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1)) {
    if (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t') {
      line = line.substr(0, at);
      break;
    }
  }
  while (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r'))
    line.remove_suffix(1);
  const std::size_t begin = line.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string() : std::string(line.substr(begin));
}

bool starts_with(const std::string& text, std::string_view prefix) {
  return std::string_view(text).substr(0, prefix.size()) == prefix;
}

// The statements; what they obey is cited in the head.
std::vector<Statement> parse(std::string_view script, std::size_t& line) {
  std::vector<Statement> statements;
  bool has_title = false, cites = false;
  line = 0;
  for (std::size_t begin = 0; begin < script.size();) {
    const std::size_t end = std::min(script.find('\n', begin), script.size());
    const std::string_view whole = script.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (line == 1) has_title = whole.size() > 3 && whole.substr(0, 2) == "# ";
    std::string text = without_comment(whole);
    if (text.empty()) continue;
    if (!has_title) complain("the first line says in a comment what the script shows");
    if (starts_with(text, "clause: ") || starts_with(text, "topic: ")) {
      cites = true;
    } else if (starts_with(text, "case: ")) {
      continue;
    } else if (!cites) {
      complain("'clause: ...' or 'topic: ...' comes before the first event");
    } else if (starts_with(text, "& ")) {
      if (statements.empty()) complain("'&' continues nothing");
      statements.back().burst.push_back(text.substr(2));
    } else {
      statements.push_back({line, std::move(text), {}});
    }
  }
  return statements;
}

}  // namespace

std::optional<Failure> run(std::string_view script) {
  Failure failure;
  try {
    const std::vector<Statement> statements = parse(script, failure.line);
    const std::size_t last_line = failure.line;
    Runner runner;
    for (const Statement& statement : statements) {
      failure.line = statement.line;
      failure.text = statement.text;
      runner.execute(statement);
    }
    failure.line = last_line;
    failure.text = "(end of the script)";
    runner.finish();
    return std::nullopt;
  } catch (const Stop& stop) {
    failure.is_wrong_script = stop.kind == Stop::Kind::kWrongScript;
    failure.message = (failure.is_wrong_script ? "  the script is wrong: " : "") + stop.message;
    failure.fields = stop.fields;
    return failure;
  }
}

std::string to_text(std::string_view file, const Failure& failure) {
  return std::string(file) + ":" + std::to_string(failure.line) + ": " + failure.text + "\n" +
         failure.message;
}

}  // namespace roci::scripts
