#include "dpdk_port/pcapng.h"

#include <bit>
#include <cstring>

namespace roci::dpdk_port::pcapng {
namespace {

static_assert(std::endian::native == std::endian::little,
              "option and block words are stored as the host has them");

void append(std::vector<std::byte>& out, const void* bytes, std::size_t length) {
  const auto* first = static_cast<const std::byte*>(bytes);
  out.insert(out.end(), first, first + length);
}

template <class T>
void append_value(std::vector<std::byte>& out, T value) {
  append(out, &value, sizeof value);
}

void pad_to_4(std::vector<std::byte>& out) { out.resize((out.size() + 3) / 4 * 4); }

void append_option(std::vector<std::byte>& out, std::uint16_t code, const void* bytes, std::size_t length) {
  append_value(out, code);
  append_value(out, static_cast<std::uint16_t>(length));
  append(out, bytes, length);
  pad_to_4(out);
}

void append_option(std::vector<std::byte>& out, std::uint16_t code, std::string_view text) {
  if (!text.empty()) append_option(out, code, text.data(), text.size());
}

template <class T>
void append_option_value(std::vector<std::byte>& out, std::uint16_t code, T value) {
  append_option(out, code, &value, sizeof value);
}

void end_options(std::vector<std::byte>& out) { append_value(out, std::uint32_t{0}); }

void append_time(std::vector<std::byte>& out, std::uint64_t time_ns) {
  append_value(out, static_cast<std::uint32_t>(time_ns >> 32));
  append_value(out, static_cast<std::uint32_t>(time_ns));
}

// Type and length in front, the length again behind. The buffer is a multiple of 4 long before and after.
class Block {
 public:
  Block(std::vector<std::byte>& out, std::uint32_t type) : out_(out), start_(out.size()) {
    append_value(out, type);
    append_value(out, std::uint32_t{0});
  }
  ~Block() {
    const auto length = static_cast<std::uint32_t>(out_.size() - start_ + 4);
    append_value(out_, length);
    std::memcpy(out_.data() + start_ + 4, &length, sizeof length);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

 private:
  std::vector<std::byte>& out_;
  const std::size_t start_;
};

constexpr std::uint16_t kLinktypeEthernet = 1;

}  // namespace

void append_section(std::vector<std::byte>& out, std::string_view application) {
  const Block block(out, 0x0A0D0D0A);
  append_value(out, std::uint32_t{0x1A2B3C4D});
  append_value(out, std::uint16_t{1});
  append_value(out, std::uint16_t{0});
  append_value(out, ~std::uint64_t{0});  // section length: not known beforehand
  append_option(out, 4, application);    // shb_userappl
  end_options(out);
}

void append_interface(std::vector<std::byte>& out, std::string_view name, std::string_view description,
                      std::uint32_t snap_length_bytes) {
  const Block block(out, 1);
  append_value(out, kLinktypeEthernet);
  append_value(out, std::uint16_t{0});
  append_value(out, snap_length_bytes);
  append_option(out, 2, name);                   // if_name
  append_option(out, 3, description);            // if_description
  append_option_value(out, 9, std::uint8_t{9});  // if_tsresol: 10^-9 s
  end_options(out);
}

void append_packet(std::vector<std::byte>& out, const Packet& packet) {
  const Block block(out, 6);
  append_value(out, packet.interface);
  append_time(out, packet.time_ns);
  append_value(out, static_cast<std::uint32_t>(packet.bytes.size()));
  append_value(out, packet.original_length_bytes);
  append(out, packet.bytes.data(), packet.bytes.size());
  pad_to_4(out);
  append_option(out, 1, packet.comment);          // opt_comment
  append_option_value(out, 2, packet.direction);  // epb_flags
  end_options(out);
}

void append_statistics(std::vector<std::byte>& out, const Statistics& statistics) {
  const Block block(out, 5);
  append_value(out, statistics.interface);
  append_time(out, statistics.end_ns);
  const auto append_time_option = [&out](std::uint16_t code, std::uint64_t time_ns) {
    append_value(out, code);
    append_value(out, std::uint16_t{8});
    append_time(out, time_ns);
  };
  append_time_option(2, statistics.start_ns);        // isb_starttime
  append_time_option(3, statistics.end_ns);          // isb_endtime
  append_option_value(out, 4, statistics.received);  // isb_ifrecv
  append_option_value(out, 5, statistics.dropped);   // isb_ifdrop
  end_options(out);
}

}  // namespace roci::dpdk_port::pcapng
