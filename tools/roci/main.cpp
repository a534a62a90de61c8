// roci: the command in the user's hands. Everything is in the subcommands, see subcommand.h.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tools/roci/process.h"
#include "tools/roci/subcommand.h"

namespace roci::tools {
namespace {

std::vector<std::string> after_dashes;

class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App*, std::string) const override { return "Usage: " + usage_ + "\n"; }

 private:
  std::string usage_;
};

// The status to end with: what was printed counts only if it arrived.
int finish(const std::string& subcommand, int status) {
  std::cout.flush();
  if (std::cout && std::ferror(stdout) == 0) return status;
  // Why is known to nobody any more; the next byte meets the same obstacle.
  const bool is_passable = ::write(STDOUT_FILENO, "\n", 1) == 1;
  const std::string reason = is_passable ? "it is not complete" : error_text(errno);
  std::cerr << "roci" << (subcommand.empty() ? "" : " ") << subcommand << ": standard output: " << reason
            << "\n";
  return std::max(status, kOutputLost);
}

}  // namespace

const std::vector<std::string>& program_after_dashes() { return after_dashes; }

void set_usage(CLI::App& command, std::string usage) {
  command.formatter(std::make_shared<UsageFormatter>(std::move(usage)));
}

CLI::Validator seconds_from_to(double least, double most) {
  const CLI::Range range(least, most);
  return {[range](std::string& text) {
            double seconds = 0;
            if (CLI::detail::lexical_cast(text, seconds) && std::isnan(seconds))
              return "Value " + text + " is not a number";
            return range(text);
          },
          range.get_description()};
}

int complain(std::string_view subcommand, std::string_view message, int status) {
  std::cout.flush();
  std::cerr << "roci " << subcommand << ": " << message << "\n";
  return status;
}

}  // namespace roci::tools

int main(int argc, char** argv) {
  using namespace roci::tools;

  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != "--") continue;
    after_dashes.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end());
    arguments.resize(i);
    break;
  }

  int exit_status = 0;
  CLI::App root{"Software RoCE v2 NICs for unmodified RDMA applications.", "roci"};
  root.set_version_flag("--version", "roci " ROCI_VERSION);
  root.require_subcommand(1);
  root.footer("Example: roci run -- ibv_devices\n`roci SUBCOMMAND --help` tells more.");
  add_run(root, exit_status);
  add_show(root, exit_status);
  add_capture(root, exit_status);
  add_check(root, exit_status);
  add_explain(root, exit_status);
  add_address(root, exit_status);
  add_stop(root, exit_status);

  const auto chosen_name = [&root] {
    const auto chosen = root.get_subcommands();
    return chosen.empty() ? std::string() : chosen.front()->get_name();
  };
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants it
    root.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const std::string name = chosen_name();
    if (error.get_exit_code() == 0) return finish(name, root.exit(error));  // --help, --version
    const bool lacks_dashes = (name == "run" || name == "capture") && after_dashes.empty() &&
                              dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    std::cerr << "roci" << (name.empty() ? "" : " ") << name << ": " << error.what()
              << (lacks_dashes ? "; a program and its arguments go behind --" : "") << "; see: roci " << name
              << (name.empty() ? "" : " ") << "--help\n";
    return kWrongUse;
  } catch (const std::exception& error) {
    std::cerr << "roci: " << error.what() << "\n";
    return kFailed;
  }
  return finish(chosen_name(), exit_status);
}
