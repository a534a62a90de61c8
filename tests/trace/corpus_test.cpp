// Every capture of pcaps/ gives exactly the findings of its .expect file, and every one is in the MANIFEST.
#include "tests/trace/support.h"

#include <catch2/catch.hpp>

#include <fstream>
#include <set>

namespace roci::tools::test {
namespace {

TEST_CASE("each capture gives exactly what it is expected to") {
  const auto paths = all_captures(pcaps_folder());
  REQUIRE(paths.size() >= 141);
  for (const auto& path : paths) {
    INFO(path);
    CHECK(check(load(path)) == expectation(path.stem()));
  }
}

TEST_CASE("every rule that an expectation names exists") {
  std::set<std::string> ids;
  for (const RuleInfo& rule : kRules)
    ids.emplace(rule.id);
  CHECK(ids.size() == kRules.size());
  for (const auto& entry : std::filesystem::directory_iterator{pcaps_folder()}) {
    if (entry.path().extension() != ".expect") continue;
    for (const std::string& line : expectation(entry.path().stem())) {
      INFO(entry.path() << ": " << line);
      const std::size_t space = line.find(' ');
      REQUIRE(space != std::string::npos);
      CHECK(ids.count(line.substr(space + 1)) == 1);
    }
  }
}

TEST_CASE("the manifest names every capture and every expectation") {
  std::ifstream manifest{pcaps_folder() / "MANIFEST"};
  REQUIRE(manifest);
  std::set<std::string> named;
  std::set<std::string> stems;
  for (std::string line; std::getline(manifest, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::string name = line.substr(0, line.find('\t'));
    named.insert(name);
    stems.insert(std::filesystem::path{name}.stem());
  }
  for (const auto& path : all_captures(pcaps_folder())) {
    INFO(path);
    CHECK(named.count(path.filename()) == 1);
  }
  for (const auto& entry : std::filesystem::directory_iterator{pcaps_folder()}) {
    if (entry.path().extension() != ".expect") continue;
    INFO(entry.path());
    CHECK(stems.count(entry.path().stem()) == 1);
  }
}

}  // namespace
}  // namespace roci::tools::test
