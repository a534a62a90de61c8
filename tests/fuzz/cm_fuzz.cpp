// Fuzz target: a MAD of any length as it comes to QP 1.
//
// Aborts where a property fails: a refusal has a reason; a message that was read is a fixed point of writing
// and reading; what is told of it has no '#', which would end it too early; the same of its IP CM header.
#include <algorithm>
#include <array>
#include <string>
#include <variant>

#include "proto/cm.h"
#include "proto/cm_text.h"
#include "tests/fuzz/target.h"
#include "tests/proto/support.h"

namespace {

using namespace roci::proto;
using roci::fuzz::Input;
using roci::fuzz::require;

using MadBytes = std::array<std::byte, kMadBytes>;

void check_ip_cm(std::span<const std::byte> private_data) {
  const auto header = IpCmHeader::parse(private_data.first<IpCmHeader::kSize>());
  if (!header) {
    require(!info(header.error()).sentence.empty(), "a refusal has a reason");
    return;
  }
  std::array<std::byte, IpCmHeader::kSize> bytes{};
  header->emit(bytes);
  const auto again = IpCmHeader::parse(bytes);
  require(again.has_value() && *again == *header, "an IP CM header is a fixed point");
}

// Each message once, with content.
std::vector<Input> messages() {
  test::Dice dice{1};
  std::vector<Input> inputs;
  for (unsigned attribute = 0x10; attribute <= 0x1A; ++attribute) {
    const test::Bytes data = dice.bytes(kMadDataBytes);
    MadBytes bytes{};
    MadHeader header;
    header.attribute_id = static_cast<std::uint16_t>(attribute);
    write_mad(header, bytes);
    std::copy(data.begin(), data.end(), bytes.begin() + MadHeader::kSize);
    if (auto mad = parse_cm(bytes); auto* const req = std::get_if<CmReq>(&mad->message)) {
      req->service_id = service_id_of(CmPortSpace::kTcp, 7471);
      IpCmHeader{}.emit(std::span{req->private_data}.first<IpCmHeader::kSize>());
      write_cm(header, *req, bytes);
    }
    Input& input = inputs.emplace_back();
    for (const std::byte one : bytes)
      input.push_back(std::to_integer<std::uint8_t>(one));
  }
  return inputs;
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {false, messages};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Behind the input nothing may be read: sanitizers see it, for the input ends there.
  const auto mad = parse_cm(std::as_bytes(std::span{data, size}));
  if (!mad) {
    require(!info(mad.error()).sentence.empty(), "a refusal has a reason");
    return 0;
  }
  MadBytes bytes;
  bytes.fill(std::byte{0xFF});
  write_cm(mad->header, mad->message, bytes);
  const auto again = parse_cm(bytes);
  require(again.has_value(), "what is written can be read");
  require(again->header == mad->header && again->message == mad->message, "a message is a fixed point");
  require(cm_details(mad->message).find('#') == std::string::npos, "words have no '#'");
  std::visit(
      [](const auto& message) {
        if constexpr (requires { message.service_id; }) check_ip_cm(message.private_data);
      },
      mad->message);
  return 0;
}
