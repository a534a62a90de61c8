// `roci check`: its options.
#include "tools/roci/subcommand.h"
#include "tools/trace/check_files.h"

#include <unistd.h>

#include <iostream>
#include <memory>

namespace roci::tools {

void add_check(CLI::App& root, int& exit_status) {
  struct Arguments {
    CheckOptions options;
    bool lists_rules = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = root.add_subcommand("check", "Check captures against the rules of RoCE v2");
  set_usage(*command, "roci check [OPTIONS] FILE...");
  command->add_option("FILE", arguments->options.paths, "pcap or pcapng files; - is standard input");
  command->add_flag("--rules", arguments->lists_rules, "List the rules and their sources instead");
  command->add_flag("--json", arguments->options.is_json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->options.is_quiet, "Say nothing of clean files");
  command->footer(
      "One line for each finding: file, packet number, rule, what is wrong, source of the rule.\n"
      "What a capture does not show is no finding: it may start and end anywhere, hold one\n"
      "direction only, or frames cut short.\n\n"
      "Exit status: 0 no finding, 1 findings, 2 a file could not be read to its end.\n\n"
      "Example:\n  roci check run.pcapng && echo clean");
  command->callback([arguments, &exit_status] {
    if (arguments->lists_rules) {
      print_rules(arguments->options.is_json, std::cout);
      return;
    }
    if (arguments->options.paths.empty()) {
      exit_status = complain("check", "no FILE given; see roci check --help", kWrongUse);
      return;
    }
    arguments->options.shows_progress = isatty(STDERR_FILENO) == 1;
    exit_status = check_files(arguments->options, std::cout, std::cerr);
  });
}

}  // namespace roci::tools
