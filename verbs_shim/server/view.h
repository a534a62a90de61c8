// What applications see as sysfs: trees of files that show a set of NICs [UVERBS.md, section 1].
//
// A view is made when it is first asked for and kept: the same set of NICs gives the same path. The counter
// files are rewritten by refresh(), only where a number changed, so their cost is bounded by how often that
// is called (the server: once a second, and only while there are clients). Everything is removed at the end.
// Control thread only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "emulator/config.h"
#include "emulator/counters.h"

namespace roci::shim {

class Views {
 public:
  static constexpr std::size_t kMaxTrees = 256;

  // Trees are made below `root`, which is emptied now and removed at the end.
  Views(std::string root, const std::vector<emulator::NicConfig>& nics,
        const std::vector<std::string>& port_names);
  ~Views();
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  // Path of the tree that shows NIC n for each bit n. Throws std::system_error where the disk says no, or
  // there are kMaxTrees already.
  [[nodiscard]] const std::string& path(std::uint64_t nics);
  // The NICs that the tree at `path` shows; nothing: none of ours.
  [[nodiscard]] std::optional<std::uint64_t> nics_of(const std::string& path) const;
  [[nodiscard]] bool empty() const { return trees_.empty(); }
  void refresh(emulator::NicId nic, const emulator::Counters& counters);
  void set_link(emulator::NicId nic, bool up);
  // The NIC's GIDs are others now.
  void change_gids(emulator::NicId nic);

 private:
  // Of one NIC: counter file (relative to the port's folder) -> what is written there.
  using Written = std::map<std::string, std::uint64_t>;

  void make_tree(const std::string& tree, std::uint64_t nics);
  void write_addresses(const std::string& tree, std::uint64_t nics);
  void make_nic(const std::string& tree, std::size_t index);
  void make_port(const std::string& port, std::size_t index);
  void write_gids(const std::string& port, std::size_t index);
  [[nodiscard]] std::string interface_of(std::size_t index) const;
  [[nodiscard]] std::string port_folder(const std::string& tree, std::size_t index) const;

  const std::string root_;
  const std::vector<emulator::NicConfig>& nics_;
  const std::vector<std::string>& port_names_;
  std::map<std::uint64_t, std::string> trees_;
  std::vector<Written> written_;
  std::vector<bool> up_;
};

}  // namespace roci::shim
