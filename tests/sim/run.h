// Which program a run is, and running it where it may crash or never end.
//
// A run is told by its command line: same words, same bytes. Not here: the programs (*_program.h) and what is
// printed of many runs (main.cpp). Thread rule: one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/opcode.h"
#include "tests/sim/program.h"

namespace roci::sim {

struct RunOptions {
  std::string kind = "rc";  // a name of kinds()
  ProgramOptions program;
};

struct Kind {
  const char* name;
  ProgramResult (*run)(const ProgramOptions&);
};
[[nodiscard]] const std::vector<Kind>& kinds();
[[nodiscard]] ProgramResult run(const RunOptions& options);
// What the programs send: all of RC, UC and UD.
[[nodiscard]] std::vector<proto::Opcode> opcodes();
// The command that does it again.
[[nodiscard]] std::string command_of(const RunOptions& options);

// Ends this process by SIGPROF when a run, from now on, takes two minutes of processor time: it hangs. A
// machine that stands still, or is shared with others, does not count.
void limit_run();
// Runs it in a process of its own. Its failure; one that crashes or does not end has failed, too.
[[nodiscard]] std::string failure_apart(const RunOptions& options);
// The same of a process that ended with this wait status, which is not 0.
[[nodiscard]] std::string failure_of_status(int status);
// What is the same in failures of one cause: the text without its numbers.
[[nodiscard]] std::string class_of(const std::string& failure);

// Makes a failing run smaller while it fails in the same way: fewer operations, fewer connections, one shard,
// faults switched off one by one. A smaller run takes other turns, so some seeds are tried for each.
// `failure_of` runs it.
[[nodiscard]] RunOptions shrink(const RunOptions& failing, const std::string& failure,
                                const std::function<std::string(const RunOptions&)>& failure_of);

}  // namespace roci::sim
