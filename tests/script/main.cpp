// Every script below tests/script is a test case of its own, named by its path without ".script".
//
// The scripts are read when the program runs, so a changed one needs no build. Thread rule: one thread.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <list>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/catch_main.h"
#include "tests/script/script.h"
#include "tests/script/script_files.h"

namespace {

using roci::scripts::ScriptFile;

class ScriptCase final : public Catch::ITestInvoker {
 public:
  explicit ScriptCase(const ScriptFile& file) : file_(file) {}
  void invoke() const override {
    const auto failure = roci::scripts::run(file_.read());
    if (failure) FAIL(roci::scripts::to_text(file_.path, *failure));
    SUCCEED();
  }

 private:
  const ScriptFile& file_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<ScriptFile>& files = roci::scripts::script_files();
  std::list<Catch::AutoReg> registered;  // Catch2 owns what it is given, and copies the rest
  for (const ScriptFile& file : files) {
    registered.emplace_back(new ScriptCase(file), Catch::SourceLineInfo(file.path.c_str(), 1),
                            Catch::StringRef(), Catch::NameAndTags(file.name));
  }
  return run_tests(argc, argv);
}
