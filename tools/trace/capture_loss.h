// How many frames a capture says that it lost itself: the statistics blocks of pcapng.
//
// What libpcap does not tell. Skips from block to block; a damaged file ends the search. No thread rule.
#pragma once

#include <cstdint>
#include <string>

namespace roci::tools {

// 0 if it lost none, or does not say: pcap, standard input, a file without statistics.
[[nodiscard]] std::uint64_t frames_lost_by_capture(const std::string& path);

}  // namespace roci::tools
