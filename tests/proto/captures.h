// Capture files as lists of frames.
//
// Test code only: what cannot be read fails the test. No thread rule.
#pragma once

#include "proto/link_type.h"
#include "tests/proto/support.h"

#include <pcap/pcap.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

namespace roci::proto::test {

struct Capture {
  LinkType link;
  std::vector<Bytes> frames;
};

inline Capture read_capture(const std::filesystem::path& path) {
  char error[PCAP_ERRBUF_SIZE];
  const std::unique_ptr<pcap_t, decltype(&pcap_close)> file{pcap_open_offline(path.c_str(), error),
                                                            &pcap_close};
  REQUIRE(file != nullptr);
  const auto link = link_type_from_pcap(pcap_datalink(file.get()));
  REQUIRE(link);
  Capture capture{*link, {}};
  pcap_pkthdr* header = nullptr;
  const unsigned char* data = nullptr;
  while (pcap_next_ex(file.get(), &header, &data) == 1) {
    REQUIRE(header->caplen == header->len);
    const auto* const bytes = reinterpret_cast<const std::byte*>(data);
    capture.frames.emplace_back(bytes, bytes + header->caplen);
  }
  return capture;
}

inline std::vector<std::filesystem::path> captures_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    const auto extension = entry.path().extension();
    if (extension == ".pcap" || extension == ".pcapng") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace roci::proto::test
