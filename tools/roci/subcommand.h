// What the subcommands of `roci` share: how they register, how they fail, and the program that follows `--`.
//
// Each subcommand is one file with one function add_NAME(root, exit_status): it adds its parser and, as the
// callback, its work, which sets the exit status. main.cpp lists them. Single thread.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace roci::tools {

void add_run(CLI::App& root, int& exit_status);
void add_show(CLI::App& root, int& exit_status);
void add_capture(CLI::App& root, int& exit_status);
void add_check(CLI::App& root, int& exit_status);
void add_explain(CLI::App& root, int& exit_status);
void add_address(CLI::App& root, int& exit_status);
void add_stop(CLI::App& root, int& exit_status);

inline constexpr int kFailed = 1;
inline constexpr int kWrongUse = 2;
inline constexpr int kOutputLost = 2;  // standard output could not be written; 1 would mean findings

// What stood behind the first `--` of the command line; taken off before the options are parsed.
[[nodiscard]] const std::vector<std::string>& program_after_dashes();

// What `--help` says instead of "[OPTIONS]": this version of CLI11 cannot say what follows `--`.
void set_usage(CLI::App& command, std::string usage);

// CLI::Range, but NaN is outside.
[[nodiscard]] CLI::Validator seconds_from_to(double least, double most);

// One line on stderr, "roci NAME: message"; returns `status`.
int complain(std::string_view subcommand, std::string_view message, int status = kFailed);

}  // namespace roci::tools
