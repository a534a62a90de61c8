// Fuzz target: the first byte chooses a link type or text, the rest is the frame or the line.
//
// Aborts where a property fails: a frame that was read to its end comes out the same; its text gives it back;
// the two readers agree; a line that is accepted is a fixed point.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "proto/packet.h"
#include "proto/roce_view.h"
#include "proto/text.h"
#include "tests/fuzz/target.h"
#include "tests/proto/support.h"

namespace {

using namespace roci::proto;
using namespace roci::proto::test;
using roci::fuzz::Input;
using roci::fuzz::require;

constexpr std::array kLinks = {LinkType::kEthernet, LinkType::kRawIp, LinkType::kLinuxCooked,
                               LinkType::kInfiniBand, LinkType::kLinuxCooked2};

void check_frame(std::span<const std::byte> frame, LinkType link) {
  const Dissection dissection = dissect(frame, link);
  if (link == LinkType::kEthernet && frame.size() <= 65535) {
    RoceView view;
    const ParseError error = parse_roce(frame, view);
    const bool is_v1 = error == ParseError::kOtherEthertype;
    require(is_v1 || error == dissection.error, "parse_roce and dissect agree");
    if (error == ParseError::kNone) {
      require(icrc_of(view) == icrc_of(dissection.packet), "both readers compute the same ICRC");
    }
  }
  if (!dissection.is_complete) return;
  std::vector<std::byte> again(size_of(dissection.packet));
  require(emit(dissection.packet, again) == frame.size(), "emit gives as many bytes");
  require(std::equal(again.begin(), again.end(), frame.begin()), "emit gives the same bytes");
  const auto back = from_text(to_text(dissection.packet, TextDetail::kAll));
  require(back.has_value(), "the text of a packet can be read");
  require(back->packet() == dissection.packet, "the text of a packet gives the packet back");
}

void check_line(std::string_view line) {
  const auto packet = from_text(line);
  if (!packet) {
    require(!packet.error().message.empty(), "a refusal has a reason");
    return;
  }
  const auto again = from_text(to_text(packet->packet(), TextDetail::kAll));
  require(again.has_value(), "the text of a packet can be read");
  require(again->packet() == packet->packet(), "text is a fixed point");
}

Input input_of(std::size_t choice, std::span<const std::byte> bytes) {
  Input input{static_cast<std::uint8_t>(choice)};
  for (const std::byte one : bytes)
    input.push_back(std::to_integer<std::uint8_t>(one));
  return input;
}

// Every opcode in every framing, and its text.
std::vector<Input> packets_and_lines() {
  Dice dice{1};
  std::vector<Input> inputs;
  for (unsigned value = 0; value < 256; ++value) {
    const auto opcode = static_cast<Opcode>(value);
    if (!info(opcode).is_known && value % 16 != 15) continue;
    for (const Shape shape : kShapes) {
      const Bytes payload = dice.bytes(4 * dice.below(5));
      const Packet packet = random_packet(dice, opcode, shape, payload);
      const std::string line = to_text(packet, TextDetail::kAll);
      inputs.push_back(input_of(packet.link == LinkType::kInfiniBand ? 3 : 0, frame_of(packet)));
      inputs.push_back(input_of(kLinks.size(), std::as_bytes(std::span{line})));
    }
  }
  return inputs;
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {false, packets_and_lines};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t choice = data[0] % (kLinks.size() + 1);
  if (choice == kLinks.size()) {
    check_line({reinterpret_cast<const char*>(data + 1), size - 1});
  } else {
    check_frame({reinterpret_cast<const std::byte*>(data + 1), size - 1}, kLinks[choice]);
  }
  return 0;
}
