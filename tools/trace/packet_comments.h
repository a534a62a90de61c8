// The comments of a capture's packets, such as what a NIC dropped a frame for: options of pcapng.
//
// Goes through the file beside CaptureReader, packet by packet. One thread at a time for each reader.
#pragma once

#include "tools/trace/pcapng_blocks.h"

#include <string>

namespace roci::tools {

class PacketComments {
 public:
  explicit PacketComments(const std::string& path) : blocks_(path) {}
  // That of the next packet, as one line; empty if it has none, or the file no comments: pcap, standard
  // input.
  [[nodiscard]] std::string next();

 private:
  PcapngBlocks blocks_;
};

}  // namespace roci::tools
