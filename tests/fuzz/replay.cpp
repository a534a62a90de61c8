// Drives a fuzz target without libFuzzer: the inputs that its code makes, those of files and folders, and N
// seeded mutations of each. Same seed and files, same inputs.
//
//   fuzz_NAME [--mutations N] [--seed S] [--ending .script] [FILE|FOLDER...]
//
// An input that fails is written to a file, and the command that replays it is printed. One that takes 20 s
// of processor time hangs, and fails.
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/target.h"

namespace {

using namespace roci::fuzz;

constexpr int kHangSeconds = 20;

struct Named {
  std::string name;
  Input input;
};

// What runs now, for the signal handler.
const Input* running = nullptr;
std::string failed_file, origin, replay_line;

void say(std::string_view text) { static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size())); }

// Only calls that a signal handler may make.
void on_failure(int signal) {
  if (signal == SIGVTALRM) say("it hangs\n");
  say(origin);
  const int file = ::open(failed_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  static_cast<void>(!::write(file, running->data(), running->size()));
  say(replay_line);
  ::_exit(1);
}

void run(const Input& input) {
  running = &input;
  const itimerval limit{{0, 0}, {kHangSeconds, 0}};
  ::setitimer(ITIMER_VIRTUAL, &limit, nullptr);
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

bool add_file(const std::filesystem::path& path, std::vector<Named>& inputs) {
  std::ifstream file(path, std::ios::binary);
  inputs.push_back({path.string(), {std::istreambuf_iterator<char>(file), {}}});
  if (file.good() || file.eof()) return true;
  std::fprintf(stderr, "cannot read %s\n", path.c_str());
  return false;
}

bool add_path(const std::string& path, const std::vector<std::string>& endings, std::vector<Named>& inputs) {
  if (!std::filesystem::is_directory(path)) return add_file(path, inputs);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    const bool is_wanted = endings.empty() || std::find(endings.begin(), endings.end(),
                                                        entry.path().extension().string()) != endings.end();
    if (entry.is_regular_file() && is_wanted) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return std::all_of(files.begin(), files.end(), [&](const auto& file) { return add_file(file, inputs); });
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t mutations = 0, seed = 1;
  std::vector<std::string> endings, paths;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (i + 1 < argc && word == "--mutations") {
      mutations = std::strtoull(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && word == "--seed") {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && word == "--ending") {
      endings.emplace_back(argv[++i]);
    } else {
      paths.emplace_back(word);
    }
  }
  std::vector<Named> inputs;
  for (const std::string& path : paths) {
    if (!add_path(path, endings, inputs)) return 2;
  }
  // A single file is a replay: nothing but that.
  if (kTarget.seeds != nullptr && (mutations > 0 || paths.empty())) {
    std::size_t number = 0;
    for (Input& input : kTarget.seeds())
      inputs.push_back({"seed-" + std::to_string(number++), std::move(input)});
  }
  if (inputs.empty()) {
    std::fprintf(stderr, "there is no input\n");
    return 2;
  }
  failed_file = std::filesystem::path(argv[0]).filename().string() + ".failed";
  replay_line =
      "the input is kept in " + failed_file + "; replay it with: " + argv[0] + " " + failed_file + "\n";
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM})
    std::signal(signal, on_failure);

  roci::sim::Random random(seed);
  std::uint64_t runs = 0;
  for (const Named& one : inputs) {
    origin = "from " + one.name + ": ";
    run(one.input);
    for (std::uint64_t i = 0; i < mutations; ++i, ++runs) {
      const Input& other = inputs[random.index(inputs.size())].input;
      run(kTarget.is_text ? mutated_text(one.input, other, random) : mutated_bytes(one.input, other, random));
    }
  }
  std::printf("%zu inputs and %llu mutations of seed %llu: every property holds\n", inputs.size(),
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed));
  return 0;
}
