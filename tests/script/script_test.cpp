// The runner itself: what it must refuse, what it must notice, and how it tells.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/script/script.h"
#include "tests/script/script_files.h"
#include "tests/script/words.h"

using namespace roci::scripts;

namespace {

const std::string kHead = "# A test of the runner.\ntopic: the runner\n";  // two lines

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string joined(const std::vector<std::string>& parts, char with) {
  std::string text;
  for (const std::string& part : parts)
    text.append(part).push_back(with);
  return text;
}

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char one) {
    return (one >= 'A' && one <= 'Z') || (one >= '0' && one <= '9') || one == '_';
  });
}

// Another value of the same kind; empty: this kind is not altered.
std::string other_value(const std::string& key, const std::string& value) {
  if (key == "syn" && value.rfind("ack:", 0) == 0) return value == "ack:0" ? "ack:1" : "ack:0";
  if (key == "syn") return value == "ack" ? "nak:invalid_request" : "ack";
  if (key == "of") return "nobody";
  if (key == "access") return "lw";
  if (value.front() == '~') return value == "~250" ? "~251" : "~250";
  if (value == "zero") return "~250";
  if (key == "data") return (value[0] == '0' ? "1" : "0") + value.substr(1);
  // The first number, with what is before and behind it.
  if (key == "from" || key == "to" || key == "smac" || key == "dmac" || key == "dqpn" || key == "dest_qpn")
    return "";
  const std::size_t sign = value.find_last_of("+-");
  const std::size_t dots = value.find("..");
  const std::size_t begin =
      sign == std::string::npos || dots != std::string::npos ? value.front() == '+' : sign + 1;
  const std::size_t end = std::min(dots, value.size());
  const auto number = try_number(std::string_view(value).substr(begin, end - begin));
  if (!number)
    return sign == std::string::npos && (key == "va" || key == "rkey" || key == "inv") ? "0x77" : "";
  std::string changed =
      value.substr(0, begin) + std::to_string(dots == std::string::npos ? *number ^ 1 : *number + 1);
  if (dots != std::string::npos) {
    const std::size_t last = dots + 2 + (value[dots + 2] == '+' ? 1 : 0);
    changed += value.substr(dots, last - dots) +
               std::to_string(try_number(std::string_view(value).substr(last)).value_or(0) + 1);
  }
  return changed;
}

struct Alteration {
  std::string line;   // as it would stand
  std::string field;  // that must be named
};

// Each expectation of the line altered, one at a time.
std::vector<Alteration> alterations_of(const std::string& line) {
  std::vector<std::string> words;
  std::size_t verb_at = std::string::npos;
  constexpr std::string_view kVerbs[] = {">", "cq:", "event:", "mem", "counter", "query", "state", "verdict"};
  for (std::size_t begin = line.find_first_not_of(' '); begin < line.size();) {
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    if (words.front() == "topic:") return {};
    if (words.back() == "#") {
      words.pop_back();
      break;
    }
    const bool is_verb = std::find(std::begin(kVerbs), std::end(kVerbs), words.back()) != std::end(kVerbs);
    if (is_verb && verb_at == std::string::npos) verb_at = words.size() - 1;
    begin = std::min(line.find_first_not_of(' ', end), line.size());
  }
  std::vector<Alteration> found;
  if (verb_at == std::string::npos || verb_at > 2 || verb_at + 1 >= words.size()) return found;
  const std::string verb = words[verb_at], what = words[verb_at + 1];
  if (what == "nothing" || (verb == "mem" && what != "expect") || what == "fault") return found;
  const auto alter = [&](std::size_t at, const std::string& word, const std::string& field) {
    std::vector<std::string> changed = words;
    changed[at] = word;
    found.push_back({joined(changed, ' '), field});
  };
  for (std::size_t at = verb_at + 1; at < words.size(); ++at) {
    const std::size_t equals = words[at].find('=');
    if (equals != std::string::npos) {
      const std::string key = words[at].substr(0, equals);
      if (verb == "mem" && key == "len") continue;  // how much is looked at
      const std::string value = other_value(key, words[at].substr(equals + 1));
      if (!value.empty()) alter(at, std::string(key).append("=").append(value), key);
    } else if (verb == ">" && at == verb_at + 1) {
      alter(at, what == "CNP" ? "RC_ACKNOWLEDGE" : "CNP", "opcode");
    } else if (words[at] == "ackreq") {
      alter(at, "a=0", "a");
    } else if (verb == ">" && words[at] == "solicited") {
      alter(at, "se=0", "se");
    } else if (verb == "cq:" && is_name(words[at])) {
      alter(at, words[at] == "GENERAL_ERR" ? "SUCCESS" : "GENERAL_ERR", "status");
    } else if (verb == "event:" && at == verb_at + 1) {
      alter(at, words[at] == "PORT_ERR" ? "PORT_ACTIVE" : "PORT_ERR", "event");
    } else if (verb == "state") {
      alter(at, words[at] == "SQE" ? "RTS" : "SQE", "state");
    } else if (verb == "verdict") {
      alter(at, words[at] == "ip_options" ? "accepted" : "ip_options", "verdict");
    }
  }
  return found;
}

}  // namespace

TEST_CASE("every expectation of every script matters: altered, it fails and is named") {
  std::size_t count = 0;
  for (const ScriptFile& file : script_files()) {
    const std::vector<std::string> lines = lines_of(file.read());
    if (run(joined(lines, '\n'))) continue;  // its own test case tells
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (const Alteration& alteration : alterations_of(lines[i])) {
        std::vector<std::string> altered = lines;
        altered[i] = alteration.line;
        ++count;
        const auto failure = run(joined(altered, '\n'));
        INFO(file.path << ":" << i + 1 << ": altered to: " << alteration.line);
        REQUIRE(failure);
        INFO(to_text(file.path, *failure));
        CHECK_FALSE(failure->is_wrong_script);
        CHECK(failure->line == i + 1);
        CHECK(std::count(failure->fields.begin(), failure->fields.end(), alteration.field) == 1);
        CHECK(failure->message.find(alteration.field) != std::string::npos);
      }
    }
  }
  CHECK(count > 100);
}

TEST_CASE("a line left out of a script is missed") {
  // Whatever the engine does must be told: without any line that expects, a script fails.
  constexpr std::string_view kExpecting[] = {"> ", "cq: ", "event: "};
  for (const ScriptFile& file : script_files()) {
    const std::vector<std::string> lines = lines_of(file.read());
    if (run(joined(lines, '\n'))) continue;  // its own test case tells
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string& line = lines[i];
      const bool expects =
          line.find("nothing") == std::string::npos &&
          std::any_of(std::begin(kExpecting), std::end(kExpecting), [&](std::string_view verb) {
            return std::string_view(line).substr(0, verb.size()) == verb;
          });
      if (!expects) continue;
      std::vector<std::string> shorter = lines;
      shorter[i] = "";
      INFO(file.path << ":" << i + 1 << ": without: " << line);
      CHECK(run(joined(shorter, '\n')).has_value());
    }
  }
}

TEST_CASE("the message has the line, the packet expected, the packet seen and the field that differs") {
  const auto failure = run(kHead +
                           "qp\n"
                           "< RC_WRITE_ONLY psn=+0 len=4 ackreq\n"
                           "> RC_ACKNOWLEDGE psn=+0 msn=2 # one too many\n");
  REQUIRE(failure);
  CHECK_FALSE(failure->is_wrong_script);
  CHECK(failure->line == 5);
  CHECK(failure->fields == std::vector<std::string>{"msn"});
  const std::string text = to_text("a.script", *failure);
  CHECK(text.substr(0, 13) == "a.script:5: >");
  CHECK(text.find("expected: RC_ACKNOWLEDGE psn=100 msn=2") != std::string::npos);
  CHECK(text.find("seen:     RC_ACKNOWLEDGE") != std::string::npos);
  CHECK(text.find("differs:  msn: expected 2, seen 1") != std::string::npos);
}

TEST_CASE("what nobody expected fails at the next line that goes on, or at the end") {
  const std::string kWrite = "qp\n< RC_WRITE_ONLY psn=+0 len=4 ackreq\n";
  const std::pair<std::string, std::size_t> kCases[] = {
      {kWrite, 4},
      {kWrite + "< RC_WRITE_ONLY psn=+1 len=4\n", 5},
      {kWrite + "> nothing\n", 5},
      {kWrite + "> RC_ACKNOWLEDGE\n+5ms > RC_ACKNOWLEDGE\n", 6},  // nothing comes
      {"qp\npost recv wr=1\n< RC_SEND_ONLY len=4\n+1ms > nothing\n", 6},
      {"qp timeout=8\npost send len=4\n> RC_SEND_ONLY\n+10ms cq: nothing\n", 6},
      {"qp\nmodify ERR\npost recv wr=1\n+10ms modify RESET\n", 6},
      {"qp state=RTR\n< RC_WRITE_ONLY len=4\nmodify RTS\n", 5},  // COMM_EST
  };
  for (const auto& [script, line] : kCases) {
    INFO(script);
    const auto failure = run(kHead + script);
    REQUIRE(failure);
    INFO(to_text("", *failure));
    CHECK_FALSE(failure->is_wrong_script);
    CHECK(failure->line == line);
  }
}

TEST_CASE("a wrong time is named") {
  const std::string kPosted = kHead + "qp timeout=10\npost send len=4\n> RC_SEND_ONLY\n";
  for (const char* line :
       {"+1ms > RC_SEND_ONLY\n", "+100ms > RC_SEND_ONLY\n", "+6ms..9ms > RC_SEND_ONLY\n"}) {
    INFO(line);
    const auto failure = run(kPosted + line);
    REQUIRE(failure);
    INFO(failure->message);
    CHECK(failure->line == 6);
    CHECK((failure->fields == std::vector<std::string>{"time"} ||
           failure->fields == std::vector<std::string>{"nothing"}));
  }
  CHECK_FALSE(run(kPosted + "+4ms..17ms > RC_SEND_ONLY\n"));
}

TEST_CASE("a wrong script is told as such, with its line") {
  struct Case {
    std::string script;
    std::size_t line;
    const char* message;
  };
  const Case kCases[] = {
      {"qp\n", 1, "first line says"},
      {"# No citation.\nqp\n", 2, "'clause: ...' or 'topic: ...'"},
      {kHead, 2, "no line that does anything"},
      {kHead + "qp\nquack\n", 4, "neither a verb nor a QP"},
      {kHead + "qp\n+10 > nothing\n", 4, "is no time"},
      {kHead + "qp\n+10ms\n", 4, "a verb is missing"},
      {kHead + "qp\n+4ms..2ms > nothing\n", 4, "ends before it begins"},
      {kHead + "qp\n+1ms..2ms post recv\n", 4, "only what is expected"},
      {kHead + "< RC_SEND_ONLY\n", 3, "there is no QP yet"},
      {kHead + "qp\n< RC_SEND_NOTHING\n", 4, "is no opcode"},
      {kHead + "qp\n< RC_SEND_ONLY dlen=4\n", 4, "does not belong to this packet"},
      {kHead + "qp\n< RC_SEND_ONLY psn=16777216\n", 4, "psn=16777216"},
      {kHead + "qp\n< RC_SEND_ONLY psn=0 psn=0\n", 4, "stands twice"},
      {kHead + "qp\n< RC_SEND_ONLY len=3 data=01\n", 4, "is not 3 bytes"},
      {kHead + "qp\n< RC_WRITE_ONLY va=R len=4\n", 4, "no region 'R'"},
      {kHead + "qp\n& RC_WRITE_ONLY\n", 3, "continues only"},
      {kHead + "qp\n< RC_WRITE_ONLY keep=x\n", 4, "keep=x is no number"},
      {kHead + "qp\n< RC_WRITE_ONLY cut=1000\n", 4, "has no 1000 bytes"},
      {kHead + "qp\n> RC_SEND_ONLY len=99999\n", 4, ""},
      {kHead + "qp\npost nonsense\n", 4, "is no work request"},
      {kHead + "qp\npost send wr=5..2\n", 4, "is no range"},
      {kHead + "qp\npost send sge=mr\n", 4, "an SGE is"},
      {kHead + "qp\npost send sge=0x1000:4\n", 4, "needs a key"},
      {kHead + "qp\npost send len=4 inlined\n", 4, "'inlined' does not belong here"},
      {kHead + "qp\npost recv -> EWHATEVER\n", 4, "is no errno"},
      {kHead + "qp\npost send inline at=mr+0x10000\n", 4, "no region's"},
      {kHead + "qp\nqp\n", 4, "already"},
      {kHead + "qp mtu=300\n", 3, "no path MTU"},
      {kHead + "qp timeout=256\n", 3, "does not fit"},
      {kHead + "qp nothing=1\n", 3, "no attribute 'nothing'"},
      {kHead + "qp state=SQD\n", 3, "makes one in"},
      {kHead + "qp\nengine window=8\n", 4, "comes before everything else"},
      {kHead + "engine window=0\n", 3, "such an engine cannot be"},
      {kHead + "qp\nmodify UP\n", 4, "is no QP state"},
      {kHead + "qp\nmodify ERR omit=timeout\n", 4, "not there to be omitted"},
      {kHead + "qp\nmem set mr\n", 4, "either u64= or data="},
      {kHead + "qp\nmem expect mr+0x10000 data=00\n", 4, "no region's"},
      {kHead + "qp\ncq: sand wr=1\n", 4, "is no completion"},
      {kHead + "qp\ncq: send wr=1 GOOD\n", 4, "is no completion status"},
      {kHead + "qp\nevent: BIRTHDAY\n", 4, "is no event"},
      {kHead + "qp\ncounter luck=7\n", 4, "is no counter"},
      {kHead + "qp\nverdict guilty\n", 4, "is no drop reason"},
      {kHead + "qp\nverdict accepted\n", 4, "nothing was received yet"},
      {kHead + "qp\ndestroy Q\n", 4, "there is no region 'Q'"},
      {kHead + "qp\nquery shoe_size=42\n", 4, "no attribute 'shoe_size'"},
  };
  for (const Case& one : kCases) {
    INFO(one.script);
    const auto failure = run(one.script);
    REQUIRE(failure);
    INFO(to_text("", *failure));
    if (std::string_view(one.message).empty()) {  // no packet came; the value is not looked at
      CHECK(failure->line == one.line);
      continue;
    }
    CHECK(failure->is_wrong_script);
    CHECK(failure->line == one.line);
    CHECK(failure->message.find(one.message) != std::string::npos);
  }
}
