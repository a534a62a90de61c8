// What the checker remembers at most, and how long it waits before it calls something missing.
//
// Beyond a limit it forgets the oldest, and what is forgotten is never a finding. Constants, no thread rule.
#pragma once

#include <cstddef>
#include <cstdint>

namespace roci::tools {

struct Limits {
  std::size_t flows = 65'536;            // beyond, the one idle for longest is judged and forgotten
  std::size_t requests = 1'024;          // of a flow while they are unanswered
  std::size_t all_requests = 1'000'000;  // of all flows; beyond, the flow idle for longest is forgotten
  std::size_t answered = 128;            // of a flow once they are answered, for what is sent again
  std::size_t gaps = 64;                 // of a flow, waiting for an explanation
  std::size_t noted_packets = 16;        // numbers kept for each P_Key and each service of a flow
  std::size_t pairing_tries = 64;        // answers looked at until the flow that they answer is found
  std::size_t pairing_scan = 512;        // flows compared in one try
  std::int32_t psn_jump = 4'096;         // further away it is another connection of the same QPN
  std::int64_t answer_ns = 100'000'000;  // a connection that goes on for so long owed the answer
  std::size_t findings = 100'000;        // kept with their sentence; further ones are counted
};

}  // namespace roci::tools
