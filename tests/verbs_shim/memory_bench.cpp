// How fast application memory is reached: batches as the engine makes them, against a plain loop of one
// system call per packet. Prints GB/s and ns per operation; not a test.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/verbs_shim/child_process.h"
#include "verbs_shim/server/process_vm_memory.h"

namespace {

using namespace roci;  // NOLINT: a program of one file
using emulator::MemoryOp;

constexpr std::size_t kFrameRoom = 4352;  // distance of packet buffers in a pool
constexpr std::size_t kBatch = 32;

struct Shape {
  const char* name;
  MemoryOp::Kind kind;
  std::uint32_t bytes;
  bool contiguous;  // packets of one message, or one message each
};

double seconds_of(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void plain(const std::vector<MemoryOp>& ops, pid_t pid) {
  for (const MemoryOp& op : ops) {
    const iovec local{op.local, op.length_bytes};
    const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(op.address)), op.length_bytes};
    const ssize_t moved = op.kind == MemoryOp::Kind::kRead ? process_vm_readv(pid, &local, 1, &remote, 1, 0)
                                                           : process_vm_writev(pid, &local, 1, &remote, 1, 0);
    if (moved != static_cast<ssize_t>(op.length_bytes)) std::abort();
  }
}

}  // namespace

int main() {
  const shim::ChildProcess child(std::string(512, 'w'));
  auto spaces = std::make_unique<shim::AddressSpaces>();
  std::mutex atomics;
  auto memory = std::make_unique<shim::ProcessVmMemory>(*spaces, atomics);
  const auto space = spaces->add(child.pid()).value();
  std::vector<std::byte> frames(kBatch * kFrameRoom, std::byte{1});
  constexpr Shape kShapes[] = {{"read  4096 x 32, contiguous", MemoryOp::Kind::kRead, 4096, true},
                               {"write 4096 x 32, contiguous", MemoryOp::Kind::kWrite, 4096, true},
                               {"read  4096 x 32, scattered", MemoryOp::Kind::kRead, 4096, false},
                               {"write 4096 x 32, scattered", MemoryOp::Kind::kWrite, 4096, false},
                               {"read    64 x 32, scattered", MemoryOp::Kind::kRead, 64, false},
                               {"write   64 x 32, scattered", MemoryOp::Kind::kWrite, 64, false},
                               {"write    2 x 1", MemoryOp::Kind::kWrite, 2, false}};
  std::printf("%-30s %10s %10s %12s %12s\n", "", "GB/s", "plain", "ns/op", "plain");
  for (const Shape& shape : kShapes) {
    const std::size_t batch = shape.bytes == 2 ? 1 : kBatch;
    std::vector<MemoryOp> ops(batch);
    for (std::size_t i = 0; i < batch; ++i) {
      ops[i].kind = shape.kind;
      ops[i].space = space;
      ops[i].order_key = shape.contiguous ? 1 : static_cast<std::uint32_t>(i);
      ops[i].ends_message = !shape.contiguous || i + 1 == batch;
      ops[i].length_bytes = shape.bytes;
      ops[i].address = child.address(shape.contiguous ? i * shape.bytes : i * 3 * 4096);
      ops[i].local = &frames[i * kFrameRoom + 58];
    }
    const std::size_t rounds = 4000 * kBatch / batch / (shape.bytes > 1000 ? 4 : 1);  // of each of five goes
    double best = 1e9, best_plain = 1e9;
    for (int i = 0; i < 5; ++i) {  // in turns, and the best of each, as other programs run too
      best = std::min(best, seconds_of([&] {
                        for (std::size_t r = 0; r < rounds; ++r)
                          memory->execute(ops);
                      }));
      best_plain = std::min(best_plain, seconds_of([&] {
                              for (std::size_t r = 0; r < rounds; ++r)
                                plain(ops, child.pid());
                            }));
    }
    const double count = static_cast<double>(rounds * batch), bytes = count * shape.bytes;
    std::printf("%-30s %10.2f %10.2f %12.0f %12.0f\n", shape.name, bytes / best / 1e9,
                bytes / best_plain / 1e9, best / count * 1e9, best_plain / count * 1e9);
  }
}
