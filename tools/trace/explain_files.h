// `roci explain`: a capture told in words, one line a packet, as text or JSON.
//
// Not here: options (tools/roci/explain.cpp), the words (narrator.h). One thread.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace roci::tools {

struct ExplainOptions {
  std::vector<std::string> paths;
  bool is_json = false;  // one object a line
  bool is_roce_only = false;
};

// 0, or 2 if a file could not be read to its end.
[[nodiscard]] int explain_files(const ExplainOptions& options, std::ostream& out, std::ostream& err);

}  // namespace roci::tools
