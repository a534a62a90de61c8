// roci show: what the daemon holds and does, as tables for people or JSON for programs.
//
// What the daemon shows beyond the tables named here is printed as it comes.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "tools/roci/private_daemon.h"
#include "tools/roci/subcommand.h"

namespace roci::tools {
namespace {

struct ShowOptions {
  std::string what = "all";
  std::string socket_path;
  bool as_json = false;
  double watch_seconds = 0;
};

std::string cell(const Json& value) {
  if (value.is_string()) return value;
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_array()) {
    std::string text;
    for (const Json& item : value)
      text += (text.empty() ? "" : " ") + cell(item);
    return text.empty() ? "-" : text;
  }
  if (value.is_object()) {
    std::string text;
    for (const auto& [name, item] : value.items())
      text += (text.empty() ? "" : " ") + name + "=" + cell(item);
    return text.empty() ? "-" : text;
  }
  return value.dump();
}

using Row = std::vector<std::string>;

// Numbers to the right, text to the left, two blanks between.
void print_table(const std::vector<Row>& rows, const std::vector<bool>& is_number) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (is_number[i] ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << "\n";
  }
}

// The columns that fit a terminal, in a reader's order; --json has everything.
enum class Form : std::uint8_t { kPlain, kHex, kAccess };
struct Column {
  const char* member;
  const char* heading;
  Form form = Form::kPlain;
};
struct Table {
  const char* member;
  std::vector<Column> columns;
};
const std::vector<Table>& tables() {
  static const std::vector<Table> all = {
      {"nics",
       {{"name", "nic"},
        {"link", "link"},
        {"ip", "ip"},
        {"mac", "mac"},
        {"port", "port"},
        {"mtu", "mtu"},
        {"active_mtu", "path mtu"}}},
      {"contexts", {{"context", "context"}, {"nic", "nic"}, {"client", "client"}, {"pds", "pds"}}},
      {"qps",
       {{"qpn", "qpn", Form::kHex},
        {"nic", "nic"},
        {"context", "context"},
        {"type", "type"},
        {"state", "state"},
        {"dest_qpn", "to qpn", Form::kHex},
        {"dest_ip", "at"},
        {"path_mtu", "mtu"},
        {"send_queue_depth", "sq"},
        {"recv_queue_depth", "rq"},
        {"packets_sent", "sent"},
        {"packets_received", "received"},
        {"retransmitted", "again"}}},
      {"cqs",
       {{"handle", "cq"},
        {"context", "context"},
        {"slots", "slots"},
        {"depth", "depth"},
        {"completions", "completions"},
        {"overrun", "overrun"}}},
      {"srqs",
       {{"handle", "srq"},
        {"context", "context"},
        {"max_wr", "max wr"},
        {"depth", "depth"},
        {"limit", "limit"},
        {"users", "qps"}}},
      {"mrs",
       {{"rkey", "rkey", Form::kHex},
        {"context", "context"},
        {"iova", "iova", Form::kHex},
        {"length", "bytes"},
        {"pd", "pd"},
        {"access", "access", Form::kAccess}}},
      {"mws",
       {{"rkey", "rkey", Form::kHex},
        {"context", "context"},
        {"type", "type"},
        {"bound", "bound"},
        {"address", "address", Form::kHex},
        {"length", "bytes"},
        {"pd", "pd"},
        {"access", "access", Form::kAccess}}},
      {"ahs",
       {{"handle", "ah"},
        {"context", "context"},
        {"dest_ip", "to"},
        {"sgid_index", "sgid"},
        {"hop_limit", "hops"},
        {"traffic_class", "class", Form::kHex},
        {"flow_label", "flow label", Form::kHex}}},
      {"cms",
       {{"id", "cm id"},
        {"pid", "pid"},
        {"port_space", "space"},
        {"state", "state"},
        {"nic", "nic"},
        {"source", "from"},
        {"destination", "to"},
        {"qpn", "qpn", Form::kHex},
        {"remote_qpn", "to qpn", Form::kHex}}},
      {"neighbours", {{"nic", "nic"}, {"ip", "ip"}, {"mac", "mac"}, {"resolved", "resolved"}}},
      {"poll_threads",
       {{"shard", "shard"},
        {"passes", "passes"},
        {"sleeps", "sleeps"},
        {"working_ms", "work ms"},
        {"spinning_ms", "spin ms"},
        {"sleeping_ms", "sleep ms"},
        {"involuntary_switches", "preempted"},
        {"lost_frames", "lost"},
        {"idle", "when idle"}}},
  };
  return all;
}

// Bits as `enum ibv_access_flags` has them.
std::string access_words(std::uint64_t bits) {
  static constexpr std::array<const char*, 8> kWords = {"local-write", "remote-write", "remote-read",
                                                        "atomic",      "mw-bind",      "zero-based",
                                                        "on-demand",   "hugetlb"};
  std::string text;
  for (std::size_t bit = 0; bit < 64; ++bit) {
    if (((bits >> bit) & 1) == 0) continue;
    text += text.empty() ? "" : ",";
    text += bit < kWords.size() ? kWords[bit] : "bit" + std::to_string(bit);
  }
  return text.empty() ? "local-read" : text;
}

std::string cell(const Json& value, Form form) {
  if (form == Form::kPlain || !value.is_number_unsigned()) return cell(value);
  if (form == Form::kAccess) return access_words(value.get<std::uint64_t>());
  std::ostringstream text;
  text << "0x" << std::hex << value.get<std::uint64_t>();
  return text.str();
}

std::vector<Column> columns_of(const std::string& name, const Json& first_object) {
  for (const Table& table : tables())
    if (name == table.member) return table.columns;
  std::vector<Column> columns;
  for (auto item = first_object.begin(); item != first_object.end(); ++item)
    columns.push_back({item.key().c_str(), item.key().c_str()});
  return columns;
}

void print_objects(const std::string& name, const Json& objects) {
  if (objects.empty() || !objects.front().is_object()) {
    std::cout << "none\n";
    return;
  }
  const std::vector<Column> columns = columns_of(name, objects.front());
  std::vector<Row> rows(1);
  std::vector<bool> is_number;
  for (const Column& column : columns) {
    rows.front().emplace_back(column.heading);
    is_number.push_back(objects.front().contains(column.member) &&
                        objects.front()[column.member].is_number() && column.form != Form::kAccess);
  }
  for (const Json& object : objects) {
    Row row;
    for (const Column& column : columns)
      row.push_back(object.contains(column.member) ? cell(object[column.member], column.form) : "-");
    rows.push_back(row);
  }
  print_table(rows, is_number);
}

// Flattens {"dropped": {"bad_icrc": 1}} to dropped.bad_icrc.
void collect_numbers(const Json& object, const std::string& prefix,
                     std::vector<std::pair<std::string, Json>>& out) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object())
      collect_numbers(value, prefix + name + ".", out);
    else
      out.emplace_back(prefix + name, value);
  }
}

// One column a NIC; lines that are zero everywhere are left out.
void print_counters(const Json& counters) {
  Row head = {"counter"};
  std::vector<bool> is_number = {false};
  std::vector<Row> rows;
  for (const auto& [nic, values] : counters.items()) {
    head.push_back(nic);
    is_number.push_back(true);
    std::vector<std::pair<std::string, Json>> numbers;
    collect_numbers(values, "", numbers);
    for (const auto& [name, value] : numbers) {
      const auto same_name = [name = name](const Row& row) { return row.front() == name; };
      auto row = std::find_if(rows.begin(), rows.end(), same_name);
      if (row == rows.end()) row = rows.insert(rows.end(), Row{name});
      row->resize(head.size() - 1, "0");
      row->push_back(cell(value));
    }
  }
  const auto is_all_zero = [](const Row& row) {
    return std::all_of(row.begin() + 1, row.end(), [](const std::string& text) { return text == "0"; });
  };
  rows.erase(std::remove_if(rows.begin(), rows.end(), is_all_zero), rows.end());
  for (Row& row : rows)
    row.resize(head.size(), "0");
  rows.insert(rows.begin(), head);
  print_table(rows, is_number);
  if (rows.size() == 1) std::cout << "all are 0\n";
}

// Lists of objects within become tables of their own.
void print_members(const Json& object) {
  std::vector<Row> rows;
  for (const auto& [name, value] : object.items())
    if (!value.is_array()) rows.push_back({name, cell(value)});
  if (!rows.empty()) print_table(rows, {false, false});
  for (const auto& [name, value] : object.items()) {
    if (!value.is_array()) continue;
    std::cout << "\n-- " << name << "\n";
    print_objects(name, value);
  }
}

void print(const Json& shown) {
  std::vector<std::string> order;
  for (const Table& table : tables())
    if (shown.contains(table.member)) order.emplace_back(table.member);
  for (const auto& [name, value] : shown.items())
    if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
  for (const std::string& name : order) {
    const Json& value = shown[name];
    if (order.size() > 1) std::cout << (name == order.front() ? "" : "\n") << "== " << name << "\n";
    if (value.is_array())
      print_objects(name, value);
    else if (name == "counters" && value.is_object())
      print_counters(value);
    else if (value.is_object())
      print_members(value);
    else
      std::cout << cell(value) << "\n";
  }
}

// What separates one look from the next: a cleared terminal, or an empty line and the time.
void print_watch_head(bool is_first) {
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::array<char, 16> text{};
  ::localtime_r(&now, &local);
  std::strftime(text.data(), text.size(), "%H:%M:%S", &local);
  std::cout << (is_terminal ? "\033[H\033[2J" : is_first ? "" : "\n") << "---- " << text.data() << "\n";
}

int show(const ShowOptions& options) {
  auto client = connect_to_daemon(locate_daemon(options.socket_path));
  if (!client) return complain("show", client.error());
  for (bool is_first = true;; is_first = false) {
    const auto answer = client->request({{"op", "show"}, {"what", options.what}});
    if (!answer) return complain("show", answer.error());
    if (options.watch_seconds > 0 && !options.as_json) print_watch_head(is_first);
    if (options.as_json)
      std::cout << answer->dump(2) << "\n";
    else
      print(*answer);
    std::cout.flush();
    if (options.watch_seconds <= 0 || !std::cout) return 0;  // main() looks at the output's state
    std::this_thread::sleep_for(std::chrono::duration<double>(options.watch_seconds));
  }
}

}  // namespace

void add_show(CLI::App& root, int& exit_status) {
  CLI::App* const command = root.add_subcommand("show", "Show what the daemon holds and does");
  auto options = std::make_shared<ShowOptions>();
  command
      ->add_option("what", options->what,
                   "nic, qp, cq, srq, mr, mw, ah, cm, counters or daemon; default: all of it")
      ->type_name("KIND")
      ->check(CLI::IsMember({"all", "nic", "qp", "cq", "srq", "mr", "mw", "ah", "cm", "counters", "daemon"}));
  command->add_flag("--json", options->as_json, "JSON, for programs");
  command->add_option("--watch", options->watch_seconds, "again every so many seconds, until Ctrl-C")
      ->type_name("SECONDS")
      ->check(seconds_from_to(0.1, 1e6));
  command->add_option("--socket", options->socket_path, "ask the daemon that listens here")
      ->type_name("PATH");
  command->footer(
      "Exit status 1 if no daemon is running.\n\nExamples: roci show qp\n          roci show counters "
      "--watch 1\n"
      "          roci show --json | jq '.counters.rxe0.tx_roce_packets'");
  command->callback([options, &exit_status] { exit_status = show(*options); });
}

}  // namespace roci::tools
