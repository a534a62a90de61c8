// rocid's command line, and the configuration file it names.
//
// Options of the command line prevail over the file's; NICs of both are taken. Not here: whether what is
// asked for can be had. Pure but for reading the file and printing help; any thread.
#pragma once

#include <optional>

#include "dpdk_port/config.h"

namespace roci::dpdk_port {

struct CommandLine {
  DaemonConfig config;
  int ready_fd = -1;          // a newline is written to it once rocid serves; -1: none
  bool only_printed = false;  // --help or --version: there is nothing else to do
};

[[nodiscard]] Parsed<CommandLine> parse_command_line(int argc, const char* const* argv);

}  // namespace roci::dpdk_port
