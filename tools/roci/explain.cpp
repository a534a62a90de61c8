// `roci explain`: its options.
#include "tools/roci/subcommand.h"
#include "tools/trace/explain_files.h"

#include <iostream>
#include <memory>

namespace roci::tools {

void add_explain(CLI::App& root, int& exit_status) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* command = root.add_subcommand("explain", "Tell captures in words, one line a packet");
  set_usage(*command, "roci explain [OPTIONS] FILE...");
  command->add_option("FILE", options->paths, "pcap or pcapng files; - is standard input")->required();
  command->add_flag("--json", options->is_json, "Print JSON, one object a line");
  command->add_flag("--roce", options->is_roce_only, "Leave out frames that are not RoCE");
  command->footer(
      "Each line: number, seconds since the first frame, sender, receiver and its QP, what the\n"
      "packet is, and what it answers or repeats. What breaks a rule by itself follows after **;\n"
      "roci check also finds what packets break together. A comment that the capture has on the packet,\n"
      "such as why the NIC dropped it, follows after //.\n\n"
      "Exit status: 0, or 2 if a file could not be read to its end.\n\n"
      "Example:\n  roci explain run.pcapng | less");
  command->callback([options, &exit_status] { exit_status = explain_files(*options, std::cout, std::cerr); });
}

}  // namespace roci::tools
