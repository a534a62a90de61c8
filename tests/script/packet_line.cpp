#include "tests/script/packet_line.h"

#include <algorithm>
#include <map>

#include "proto/text.h"

namespace roci::scripts {
namespace {

constexpr std::string_view kDefaultData = "~1";
constexpr std::size_t kMaxPayload = 65535;

// Without the words behind the fields, which are about the payload.
std::string headers_text(const proto::Packet& packet) {
  const std::string text = proto::to_text(packet);
  return text.substr(0, text.find(" #"));
}

// One value of a packet's text replaced, and read again: the same text comes out if the packet had it.
Difference compare_text(const proto::Packet& seen, const std::string& key, const std::string& wanted) {
  const std::string text = headers_text(seen);
  Words words(text);
  std::string replaced = words.need("an opcode");
  Difference difference{key, wanted, "its usual value"};
  if (key == "a" || key == "se") difference.seen = "0";
  for (const auto& [name, value] : words.rest()) {
    if (name == key) {
      difference.seen = value;
    } else {
      replaced.append(" ").append(name).append("=").append(value);
    }
  }
  replaced.append(" ").append(key).append("=").append(wanted);
  const auto read = proto::from_text(replaced);
  if (!read) complain(read.error().message);
  if (headers_text(read->packet()) == text) difference.field.clear();
  return difference;
}

Difference compare_data(const proto::Packet& seen, const std::string& wanted) {
  const std::size_t count = length_of_bytes(wanted).value_or(seen.payload.size());
  const Bytes bytes = bytes_of(wanted, count);
  const auto [mine, theirs] =
      std::mismatch(bytes.begin(), bytes.end(), seen.payload.begin(), seen.payload.end());
  if (mine == bytes.end() && theirs == seen.payload.end()) return {};
  const auto at = static_cast<std::size_t>(mine - bytes.begin());
  const auto some = [at](const std::byte* data, std::size_t size) {
    return "from byte " + std::to_string(at) + ": " + hex(data + at, std::min<std::size_t>(8, size - at));
  };
  return {"data", wanted + ", " + some(bytes.data(), bytes.size()),
          some(seen.payload.data(), seen.payload.size())};
}

Difference compare(const proto::Packet& seen, const std::string& key, const std::string& wanted) {
  if (key == "data") return compare_data(seen, wanted);
  if (key == "len") {
    const bool same = number_of(key, wanted, kMaxPayload) == seen.payload.size();
    return same ? Difference{} : Difference{key, wanted, std::to_string(seen.payload.size())};
  }
  if (key == "syn" && wanted == "ack" && seen.aeth) {  // of any credits
    if (seen.aeth->syndrome.kind() == proto::Syndrome::Kind::kAck) return {};
  }
  return compare_text(seen, key, wanted);
}

}  // namespace

const std::string* PacketLine::find(std::string_view key) const {
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.first == key; });
  return found == fields.end() ? nullptr : &found->second;
}

void PacketLine::add_if_missing(const std::string& key, const std::string& value) {
  if (find(key) == nullptr) fields.emplace_back(key, value);
}

std::string to_text(const PacketLine& line) {
  std::string text = line.opcode;
  for (const auto& [key, value] : line.fields)
    text.append(" ").append(key).append("=").append(value);
  return text;
}

proto::Opcode opcode_of(const PacketLine& line) {
  const auto read = proto::from_text(line.opcode);
  if (!read) complain(read.error().message);
  return read->packet().bth.opcode;
}

Bytes frame_of(const PacketLine& line) {
  PacketLine whole{line.opcode, {}};
  std::size_t length = 0;
  std::string data(kDefaultData);
  for (const auto& [key, value] : line.fields) {
    if (key == "len") {
      length = static_cast<std::size_t>(number_of(key, value, kMaxPayload));
    } else if (key == "data") {
      data = value;
    } else {
      whole.fields.emplace_back(key, value);
    }
  }
  if (line.find("len") == nullptr) length = length_of_bytes(data).value_or(0);
  const Bytes payload = bytes_of(data, length);
  if (!payload.empty()) whole.fields.emplace_back("data", hex(payload.data(), payload.size()));
  const auto read = proto::from_text(to_text(whole));
  if (!read) complain(read.error().message);
  Bytes frame(proto::size_of(read->packet()));
  if (proto::emit(read->packet(), frame) != frame.size()) complain("this packet cannot be emitted");
  return frame;
}

std::vector<Difference> differences(const PacketLine& expected, const proto::Packet& seen) {
  if (opcode_of(expected) != seen.bth.opcode) {
    return {{"opcode", expected.opcode, std::string(proto::info(seen.bth.opcode).short_name)}};
  }
  std::vector<Difference> found;
  for (const auto& [key, value] : expected.fields) {
    if (Difference one = compare(seen, key, value); !one.field.empty()) found.push_back(std::move(one));
  }
  return found;
}

}  // namespace roci::scripts
