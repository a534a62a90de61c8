// The captures of public repositories, which are not copied, against their expectations. Skips (exit status
// 77) where they are not at hand.
#include "tests/catch_main.h"
#include "tests/trace/support.h"

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>

namespace roci::tools::test {
namespace {

constexpr int kSkipped = 77;

std::filesystem::path public_folder() {
  for (const char* variable : {"ROCI_SHARED", "ROCI_SHARED_DEFAULT"}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return std::filesystem::path{value} / "pcaps" / "public";
  }
  return "../shared/pcaps/public";
}

TEST_CASE("each public capture gives exactly what it is expected to") {
  const auto paths = all_captures(public_folder());
  REQUIRE(paths.size() >= 6);
  for (const auto& path : paths) {
    INFO(path);
    CHECK(check(load(path)) == expectation(path.stem()));
  }
}

}  // namespace
}  // namespace roci::tools::test

int main(int argc, char** argv) {
  using namespace roci::tools::test;
  if (!std::filesystem::is_directory(public_folder())) {
    std::printf("skipped: no public captures in %s; set ROCI_SHARED to the folder that holds pcaps/\n",
                public_folder().c_str());
    return kSkipped;
  }
  return run_tests(argc, argv);
}
