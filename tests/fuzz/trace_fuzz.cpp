// Fuzz target: a capture file, through all that `roci check` and `roci explain` do with one, as text and
// JSON.
//
// The file is in memory (memfd), named by its path in /proc. Aborts where a verdict is none of the three, the
// two programs disagree whether it can be read, or the findings go beyond their limit.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tests/fuzz/target.h"
#include "tools/trace/check_files.h"
#include "tools/trace/explain_files.h"

namespace {

using namespace roci::tools;
using roci::fuzz::require;

constexpr std::size_t kMaxFindings = 20;

class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : file_(::memfd_create("capture", MFD_CLOEXEC)) {
    require(file_ >= 0, "there is a file in memory");
    require(::write(file_, data, size) == static_cast<ssize_t>(size), "it can be written");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(file_); }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {false, nullptr};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const MemoryFile file(data, size);
  const std::string path = file.path();
  for (const bool is_json : {false, true}) {
    CheckOptions check;
    check.paths = {path};
    check.is_json = is_json;
    check.limits.findings = kMaxFindings;
    std::ostringstream out, told, err;
    const int status = check_files(check, out, err);
    require(status == kCheckClean || status == kCheckFindings || status == kCheckUnreadable,
            "there are three verdicts");
    require((status == kCheckUnreadable) == !err.str().empty(),
            "what cannot be read is told, and nothing else");
    if (!is_json) {
      const std::string text = out.str();
      const auto lines = std::count(text.begin(), text.end(), '\n');
      require(lines <= static_cast<std::ptrdiff_t>(kMaxFindings) + 2, "findings are told up to their limit");
    }
    ExplainOptions explain;
    explain.paths = {path};
    explain.is_json = is_json;
    require((explain_files(explain, told, err) == 2) == (status == kCheckUnreadable),
            "check and explain agree on what can be read");
  }
  return 0;
}
