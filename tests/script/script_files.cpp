#include "tests/script/script_files.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace roci::scripts {

std::string ScriptFile::read() const {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof()) {
    std::fprintf(stderr, "%s cannot be read\n", path.c_str());
    std::abort();
  }
  return text;
}

const std::vector<ScriptFile>& script_files() {
  static const std::vector<ScriptFile> files = [] {
    std::vector<ScriptFile> found;
    const std::filesystem::path top = ROCI_SCRIPT_DIR;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(top)) {
      if (entry.path().extension() != ".script") continue;
      std::filesystem::path name = entry.path().lexically_relative(top);
      found.push_back({name.replace_extension().string(), entry.path().string()});
    }
    std::sort(found.begin(), found.end(),
              [](const ScriptFile& a, const ScriptFile& b) { return a.name < b.name; });
    return found;
  }();
  return files;
}

}  // namespace roci::scripts
