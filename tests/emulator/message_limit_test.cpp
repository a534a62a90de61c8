// The longest message of the device: so long is allowed, a byte more is not.
#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;

namespace {

constexpr std::uint32_t kLongest = 2 * kMtu + 100;

Bench bench_with_limit(std::uint32_t max_message_bytes) {
  BenchOptions options;
  options.limits.max_message_bytes = max_message_bytes;
  return Bench(options);
}

}  // namespace

TEST_CASE("responder: a SEND up to the longest message") {
  Bench bench = bench_with_limit(kLongest);
  Connection qp = bench.connect();
  qp.recv(1);
  const std::uint32_t excess = GENERATE(0U, 1U);
  bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = pattern(kMtu)});
  bench.send(qp, {.opcode = Opcode::kRcSendMiddle, .psn = 101, .payload = pattern(kMtu)});
  bench.send(qp, {.opcode = Opcode::kRcSendLast,
                  .psn = 102,
                  .ack_request = true,
                  .payload = pattern(kLongest - 2 * kMtu + excess)});
  if (excess == 0) {
    bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 102, .is_ack = true});
    bench.expect_recv(qp, {.wr_id = 1, .byte_len = kLongest});
  } else {
    bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 102, .syndrome = kNakInvalid});
    bench.expect_recv(qp, {.wr_id = 1, .status = sim::kWcRemoteInvalidRequest});
  }
}

TEST_CASE("responder: the longest message is one packet") {
  Bench bench = bench_with_limit(kMtu);
  Connection qp = bench.connect();
  qp.recv(1);
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .payload = pattern(kMtu)});
  bench.expect_recv(qp, {.wr_id = 1, .byte_len = kMtu});
  // What the message before was long counts no more.
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 101, .payload = pattern(kMtu)});
  bench.expect_recv(qp, {.wr_id = 2, .byte_len = kMtu});
}

TEST_CASE("responder: WRITE, READ and FLUSH up to the longest message [IBTA C9-94]") {
  Bench bench = bench_with_limit(kLongest);
  ConnectionOptions options;
  options.access |= emulator::kAccessFlushGlobal;
  Connection qp = bench.connect(options);
  const std::uint32_t excess = GENERATE(0U, 1U);
  SECTION("WRITE") {
    bench.send(qp, {.opcode = Opcode::kRcWriteFirst,
                    .psn = 100,
                    .ack_request = true,
                    .length = kLongest + excess,
                    .payload = pattern(kMtu)});
    if (excess == 0) bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  }
  SECTION("READ") {
    bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .length = kLongest + excess});
    if (excess == 0) {
      bench.expect({.opcode = Opcode::kRcReadResponseFirst, .psn = 100});
      bench.expect({.opcode = Opcode::kRcReadResponseMiddle, .psn = 101});
      bench.expect({.opcode = Opcode::kRcReadResponseLast, .psn = 102});
    }
  }
  SECTION("FLUSH") {
    const auto region = bench.client().new_mr(0x1000, sim::Client::kAllRights | emulator::kAccessFlushGlobal);
    bench.send(qp, {.opcode = Opcode::kRcFlush,
                    .psn = 100,
                    .va = region.iova,
                    .rkey = region.rkey.value(),
                    .length = kLongest + excess,
                    .edit = [](proto::Packet& packet) { packet.feth->placement_types = 1; }});
    if (excess == 0) bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 100});
  }
  if (excess != 0) bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakInvalid});
  bench.expect_nothing();
}

TEST_CASE("responder: a duplicate READ up to the longest message") {
  Bench bench = bench_with_limit(kLongest);
  Connection qp = bench.connect();
  bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .length = kLongest});
  const auto expect_responses = [&] {
    bench.expect({.opcode = Opcode::kRcReadResponseFirst, .psn = 100});
    bench.expect({.opcode = Opcode::kRcReadResponseMiddle, .psn = 101});
    bench.expect({.opcode = Opcode::kRcReadResponseLast, .psn = 102});
  };
  expect_responses();
  bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .length = kLongest});
  expect_responses();
  bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .length = kLongest + 1});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess});
}

TEST_CASE("requester: a SEND up to the longest message [IBTA 11.6.2]") {
  Bench bench = bench_with_limit(100);
  Connection qp = bench.connect();
  const std::uint32_t flags = GENERATE(0U, std::uint32_t{sim::kInline}) | sim::kSignaled;
  bench.post(qp, {.wr_id = 1, .flags = flags, .sges = {qp.mr.sge(0, 100)}});
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = kOurPsn, .payload_bytes = 100});
  bench.send(qp, {.opcode = Opcode::kRcAcknowledge, .psn = kOurPsn});
  bench.expect(qp, {.wr_id = 1});
  bench.post(qp, {.wr_id = 2, .flags = flags, .sges = {qp.mr.sge(0, 101)}});
  bench.expect(qp, {.wr_id = 2, .status = sim::kWcLocalLength});
  bench.expect_nothing();
}
