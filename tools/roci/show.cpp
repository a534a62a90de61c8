// roci show: what the daemon holds and does, as tables for people or JSON for programs.
//
// The daemon decides what an object has: a table's columns are the members of its first object.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
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

void print_objects(const Json& objects) {
  if (objects.empty() || !objects.front().is_object()) {
    std::cout << "none\n";
    return;
  }
  Row head;
  std::vector<bool> is_number;
  for (const auto& [name, value] : objects.front().items()) {
    head.push_back(name);
    is_number.push_back(value.is_number());
  }
  std::vector<Row> rows = {head};
  for (const Json& object : objects) {
    Row row;
    for (const std::string& name : head)
      row.push_back(object.contains(name) ? cell(object[name]) : "-");
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

void print_members(const Json& object) {
  std::vector<Row> rows;
  for (const auto& [name, value] : object.items())
    rows.push_back({name, cell(value)});
  if (!rows.empty()) print_table(rows, {false, false});
}

void print(const Json& shown) {
  bool is_first = true;
  for (const auto& [name, value] : shown.items()) {
    if (shown.size() > 1) std::cout << (is_first ? "" : "\n") << "== " << name << "\n";
    is_first = false;
    if (value.is_array())
      print_objects(value);
    else if (name == "counters" && value.is_object())
      print_counters(value);
    else if (value.is_object())
      print_members(value);
    else
      std::cout << cell(value) << "\n";
  }
}

int show(const ShowOptions& options) {
  auto client = connect_to_daemon(locate_daemon(options.socket_path));
  if (!client) return complain("show", client.error());
  for (;;) {
    const auto answer = client->request({{"op", "show"}, {"what", options.what}});
    if (!answer) return complain("show", answer.error());
    if (options.watch_seconds > 0 && ::isatty(STDOUT_FILENO) == 1) std::cout << "\033[H\033[2J";
    if (options.as_json)
      std::cout << answer->dump(2) << "\n";
    else
      print(*answer);
    std::cout.flush();
    if (options.watch_seconds <= 0) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.watch_seconds));
  }
}

}  // namespace

void add_show(CLI::App& root, int& exit_status) {
  CLI::App* const command = root.add_subcommand("show", "Show what the daemon holds and does");
  auto options = std::make_shared<ShowOptions>();
  command->add_option("what", options->what, "nic, qp, mr, cq, counters or daemon; default: all of it")
      ->type_name("KIND")
      ->check(CLI::IsMember({"all", "nic", "qp", "mr", "cq", "counters", "daemon"}));
  command->add_flag("--json", options->as_json, "JSON, for programs");
  command->add_option("--watch", options->watch_seconds, "again every so many seconds, until Ctrl-C")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 1e6));
  command->add_option("--socket", options->socket_path, "ask the daemon that listens here")
      ->type_name("PATH");
  command->footer(
      "Exit status 1 if no daemon is running.\n\nExamples: roci show qp\n          roci show counters "
      "--watch 1\n"
      "          roci show --json | jq '.counters.rxe0.tx_roce_packets'");
  command->callback([options, &exit_status] { exit_status = show(*options); });
}

}  // namespace roci::tools
