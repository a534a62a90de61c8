#include "proto/opcode.h"

#include <catch2/catch.hpp>

#include <map>
#include <set>
#include <string>

using namespace roci::proto;

namespace {

const OpcodeInfo& of(unsigned value) { return info(static_cast<Opcode>(value)); }

}  // namespace

// The layout of every defined opcode, written down a second time in another form: bytes of extension headers.
TEST_CASE("extension bytes of each opcode [IBTA Table 38]") {
  const std::map<unsigned, unsigned> request_part = {
      {0x00, 0}, {0x01, 0},  {0x02, 0},  {0x03, 4},  {0x04, 0},  {0x05, 4},  {0x06, 16}, {0x07, 0}, {0x08, 0},
      {0x09, 4}, {0x0A, 16}, {0x0B, 20}, {0x0C, 16}, {0x13, 28}, {0x14, 28}, {0x16, 4},  {0x17, 4}};
  const std::map<unsigned, unsigned> response_part = {{0x0D, 4}, {0x0E, 0}, {0x0F, 4},
                                                      {0x10, 4}, {0x11, 4}, {0x12, 12}};
  std::map<unsigned, unsigned> expected = {{0x1C, 20}, {0x1D, 16}, {0x55, 12},
                                           {0x64, 8},  {0x65, 12}, {0x81, 16}};
  for (const auto& [value, bytes] : request_part) {
    expected[value] = bytes;
    if (value <= 0x0B) expected[0x20 + value] = bytes;
    if (value <= 0x14) expected[0x40 + value] = bytes + 12;  // RDETH and DETH
    expected[0xA0 + value] = bytes + 4;                      // XRCETH
  }
  for (const auto& [value, bytes] : response_part) {
    expected[value] = bytes;
    expected[0x40 + value] = bytes + 4;  // RDETH
    expected[0xA0 + value] = bytes;
  }
  for (unsigned value = 0; value < 256; ++value) {
    INFO("opcode " << value);
    const auto found = expected.find(value);
    CHECK(of(value).is_known == (found != expected.end()));
    if (found != expected.end()) CHECK(of(value).extension_bytes == found->second);
  }
}

TEST_CASE("the table is consistent in itself, for all 256 values") {
  std::set<std::string_view> names;
  std::set<std::string_view> short_names;
  std::size_t known = 0;
  for (unsigned value = 0; value < 256; ++value) {
    INFO("opcode " << value);
    const auto opcode = static_cast<Opcode>(value);
    const OpcodeInfo& one = info(opcode);
    CHECK(static_cast<unsigned>(one.service) == value >> 5);
    if (!one.is_known) {
      CHECK(one.operation == Operation::kReserved);
      CHECK(one.extension_bytes == 0);
      continue;
    }
    ++known;
    names.insert(one.name);
    short_names.insert(one.short_name);
    CHECK(opcode_from_short_name(one.short_name) == opcode);
    CHECK(one.extension_bytes == one.extensions.bytes());
    // What follows from first, middle, last and only.
    if (one.operation == Operation::kSend || one.operation == Operation::kWrite ||
        one.operation == Operation::kReadResponse) {
      const bool is_full = one.position == Position::kFirst || one.position == Position::kMiddle;
      CHECK((one.payload == PayloadRule::kExactlyPmtu) == is_full);
      CHECK(one.may_have_payload());
      CHECK(one.must_have_payload() == (one.position != Position::kOnly));
    } else {
      CHECK(one.position == Position::kOnly);
      CHECK(one.may_have_payload() == (one.operation == Operation::kAtomicWrite));
    }
    if (one.has(Extension::kImmDt) || one.has(Extension::kIeth)) CHECK(one.ends_message());
    if (one.has(Extension::kReth)) CHECK(one.starts_message());
    if (one.has(Extension::kAeth)) CHECK(one.role == Role::kResponse);
    CHECK(one.has(Extension::kRdeth) == (one.service == Service::kRd));
    CHECK(one.has(Extension::kXrceth) == (one.service == Service::kXrc && one.role == Role::kRequest));
    CHECK(one.has(Extension::kDeth) ==
          (one.service == Service::kUd || (one.service == Service::kRd && one.role == Role::kRequest)));
  }
  CHECK(known == 25 + 12 + 22 + 2 + 1 + 23);
  CHECK(names.size() == known);
  CHECK(short_names.size() == known);
}

TEST_CASE("an opcode by service and name") {
  CHECK(with_service(Opcode::kRcSendOnly, Service::kUc) == Opcode::kUcSendOnly);
  CHECK(with_service(Opcode::kRcSendOnly, Service::kUd) == Opcode::kUdSendOnly);
  CHECK_FALSE(info(with_service(Opcode::kRcReadRequest, Service::kUc)).is_known);  // [IBTA Table 44 (r1.2.1)]
  CHECK(of(0x04).name == "RC SEND Only");
  CHECK(of(0x1C).short_name == "RC_FLUSH");  // [IBTA oA19-5]
  CHECK(of(0x81).short_name == "CNP");       // [IBTA A17.9.3]
  CHECK_FALSE(opcode_from_short_name("RESERVED").has_value());
}

TEST_CASE("extension headers stand in wire order") {
  const auto offset = [](Extension one) {
    return unsigned{info(Opcode::kRdWriteOnlyImmediate).extension_offset[static_cast<std::size_t>(one)]};
  };
  CHECK(offset(Extension::kRdeth) == 0);
  CHECK(offset(Extension::kDeth) == 4);
  CHECK(offset(Extension::kReth) == 12);
  CHECK(offset(Extension::kImmDt) == 28);
}
