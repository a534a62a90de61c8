// The codec of connection management: each field against a second table of where it is, every reserved bit,
// hostile bytes.
#include "proto/cm.h"
#include "tests/proto/support.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <type_traits>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

using MadBytes = std::array<std::byte, kMadBytes>;
using DataBytes = std::array<std::byte, kMadDataBytes>;

template <class T>
void assign_number(T& field, std::uint64_t value) {
  if constexpr (std::is_class_v<T>) {
    if constexpr (requires { field.value(); }) {
      field = T{static_cast<decltype(field.value())>(value)};
    } else {
      field = T{static_cast<decltype(field.code())>(value)};
    }
  } else {
    field = static_cast<T>(value);
  }
}

// The bits of a field: `mask` of the big-endian word of `size` bytes (1 to 8) at `at`, or whole bytes.
struct Place {
  std::size_t at;
  std::size_t size;
  std::uint64_t mask;
};

template <class Message>
struct Field {
  const char* name;
  void (*fill)(Message&);  // with ones, more of them than there is room for
  std::vector<Place> places;
};

constexpr std::uint64_t kAll = ~std::uint64_t{0};

// One line a field: member, then byte, size and mask of each place.
#define NUMBER(Message, member, ...)                                         \
  Field<Message> {                                                           \
#member, [](Message & m) { assign_number(m.member, kAll); }, __VA_ARGS__ \
  }
template <class Bytes>
void fill_bytes(Bytes& bytes) {
  for (auto& one : bytes)
    one = static_cast<std::remove_reference_t<decltype(one)>>(0xFF);
}
#define BYTES(Message, member, at, size)                  \
  Field<Message> {                                        \
#member, [](Message & m) { fill_bytes(m.member); }, { \
      { at, size, kAll }                                  \
    }                                                     \
  }

template <class Message>
std::vector<Field<Message>> with_ids(std::vector<Field<Message>> fields) {
  fields.push_back(NUMBER(Message, local_comm_id, {{0, 4, 0xFFFFFFFF}}));
  fields.push_back(NUMBER(Message, remote_comm_id, {{4, 4, 0xFFFFFFFF}}));
  return fields;
}

std::vector<Field<CmReq>> fields_of(const CmReq&) {
  return {NUMBER(CmReq, local_comm_id, {{0, 4, 0xFFFFFFFF}}),
          NUMBER(CmReq, vendor_id, {{4, 4, 0x00FFFFFF}}),
          NUMBER(CmReq, service_id, {{8, 8, kAll}}),
          NUMBER(CmReq, local_ca_guid, {{16, 8, kAll}}),
          NUMBER(CmReq, local_qkey, {{28, 4, 0xFFFFFFFF}}),
          NUMBER(CmReq, local_qpn, {{32, 4, 0xFFFFFF00}}),
          NUMBER(CmReq, responder_resources, {{32, 4, 0x000000FF}}),
          NUMBER(CmReq, local_eecn, {{36, 4, 0xFFFFFF00}}),
          NUMBER(CmReq, initiator_depth, {{36, 4, 0x000000FF}}),
          NUMBER(CmReq, remote_eecn, {{40, 4, 0xFFFFFF00}}),
          NUMBER(CmReq, remote_cm_response_timeout, {{43, 1, 0xF8}}),
          NUMBER(CmReq, transport_service_type, {{43, 1, 0x06}}),
          NUMBER(CmReq, end_to_end_flow_control, {{43, 1, 0x01}}),
          NUMBER(CmReq, starting_psn, {{44, 4, 0xFFFFFF00}}),
          NUMBER(CmReq, local_cm_response_timeout, {{47, 1, 0xF8}}),
          NUMBER(CmReq, retry_count, {{47, 1, 0x07}}),
          NUMBER(CmReq, partition_key, {{48, 2, 0xFFFF}}),
          NUMBER(CmReq, path_packet_payload_mtu, {{50, 1, 0xF0}}),
          NUMBER(CmReq, rdc_exists, {{50, 1, 0x08}}),
          NUMBER(CmReq, rnr_retry_count, {{50, 1, 0x07}}),
          NUMBER(CmReq, max_cm_retries, {{51, 1, 0xF0}}),
          NUMBER(CmReq, srq, {{51, 1, 0x08}}),
          NUMBER(CmReq, extended_transport_type, {{51, 1, 0x07}}),
          NUMBER(CmReq, primary.local_lid, {{52, 2, 0xFFFF}}),
          NUMBER(CmReq, primary.remote_lid, {{54, 2, 0xFFFF}}),
          BYTES(CmReq, primary.local_gid.bytes, 56, 16),
          BYTES(CmReq, primary.remote_gid.bytes, 72, 16),
          NUMBER(CmReq, primary.flow_label, {{88, 4, 0xFFFFF000}}),
          NUMBER(CmReq, primary.packet_rate, {{88, 4, 0x0000003F}}),
          NUMBER(CmReq, primary.traffic_class, {{92, 1, 0xFF}}),
          NUMBER(CmReq, primary.hop_limit, {{93, 1, 0xFF}}),
          NUMBER(CmReq, primary.sl, {{94, 1, 0xF0}}),
          NUMBER(CmReq, primary.is_subnet_local, {{94, 1, 0x08}}),
          NUMBER(CmReq, primary.local_ack_timeout, {{95, 1, 0xF8}}),
          NUMBER(CmReq, alternate.local_lid, {{96, 2, 0xFFFF}}),
          NUMBER(CmReq, alternate.remote_lid, {{98, 2, 0xFFFF}}),
          BYTES(CmReq, alternate.local_gid.bytes, 100, 16),
          BYTES(CmReq, alternate.remote_gid.bytes, 116, 16),
          NUMBER(CmReq, alternate.flow_label, {{132, 4, 0xFFFFF000}}),
          NUMBER(CmReq, alternate.packet_rate, {{132, 4, 0x0000003F}}),
          NUMBER(CmReq, alternate.traffic_class, {{136, 1, 0xFF}}),
          NUMBER(CmReq, alternate.hop_limit, {{137, 1, 0xFF}}),
          NUMBER(CmReq, alternate.sl, {{138, 1, 0xF0}}),
          NUMBER(CmReq, alternate.is_subnet_local, {{138, 1, 0x08}}),
          NUMBER(CmReq, alternate.local_ack_timeout, {{139, 1, 0xF8}}),
          BYTES(CmReq, private_data, 140, 92)};
}
std::vector<Field<CmMra>> fields_of(const CmMra&) {
  return with_ids<CmMra>({NUMBER(CmMra, message_mraed, {{8, 1, 0xC0}}),
                          NUMBER(CmMra, service_timeout, {{9, 1, 0xF8}}),
                          BYTES(CmMra, private_data, 10, 222)});
}
std::vector<Field<CmRej>> fields_of(const CmRej&) {
  return with_ids<CmRej>(
      {NUMBER(CmRej, message_rejected, {{8, 1, 0xC0}}),
       NUMBER(CmRej, reject_info_length_bytes, {{9, 1, 0xFE}}), NUMBER(CmRej, reason, {{10, 2, 0xFFFF}}),
       BYTES(CmRej, additional_reject_information, 12, 72), BYTES(CmRej, private_data, 84, 148)});
}
std::vector<Field<CmRep>> fields_of(const CmRep&) {
  return with_ids<CmRep>(
      {NUMBER(CmRep, local_qkey, {{8, 4, 0xFFFFFFFF}}), NUMBER(CmRep, local_qpn, {{12, 4, 0xFFFFFF00}}),
       NUMBER(CmRep, vendor_id, {{15, 1, 0xFF}, {19, 1, 0xFF}, {23, 1, 0xFF}}),
       NUMBER(CmRep, local_eecn, {{16, 4, 0xFFFFFF00}}), NUMBER(CmRep, starting_psn, {{20, 4, 0xFFFFFF00}}),
       NUMBER(CmRep, responder_resources, {{24, 1, 0xFF}}), NUMBER(CmRep, initiator_depth, {{25, 1, 0xFF}}),
       NUMBER(CmRep, target_ack_delay, {{26, 1, 0xF8}}), NUMBER(CmRep, failover_accepted, {{26, 1, 0x06}}),
       NUMBER(CmRep, end_to_end_flow_control, {{26, 1, 0x01}}),
       NUMBER(CmRep, rnr_retry_count, {{27, 1, 0xE0}}), NUMBER(CmRep, srq, {{27, 1, 0x10}}),
       NUMBER(CmRep, local_ca_guid, {{28, 8, kAll}}), BYTES(CmRep, private_data, 36, 196)});
}
std::vector<Field<CmRtu>> fields_of(const CmRtu&) {
  return with_ids<CmRtu>({BYTES(CmRtu, private_data, 8, 224)});
}
std::vector<Field<CmDreq>> fields_of(const CmDreq&) {
  return with_ids<CmDreq>(
      {NUMBER(CmDreq, remote_qpn_eecn, {{8, 4, 0xFFFFFF00}}), BYTES(CmDreq, private_data, 12, 220)});
}
std::vector<Field<CmDrep>> fields_of(const CmDrep&) {
  return with_ids<CmDrep>({BYTES(CmDrep, private_data, 8, 224)});
}
std::vector<Field<CmSidrReq>> fields_of(const CmSidrReq&) {
  return {NUMBER(CmSidrReq, request_id, {{0, 4, 0xFFFFFFFF}}),
          NUMBER(CmSidrReq, partition_key, {{4, 2, 0xFFFF}}), NUMBER(CmSidrReq, service_id, {{8, 8, kAll}}),
          BYTES(CmSidrReq, private_data, 16, 216)};
}
std::vector<Field<CmSidrRep>> fields_of(const CmSidrRep&) {
  return {NUMBER(CmSidrRep, request_id, {{0, 4, 0xFFFFFFFF}}),
          NUMBER(CmSidrRep, status, {{4, 1, 0xFF}}),
          NUMBER(CmSidrRep, additional_information_length_bytes, {{5, 1, 0xFF}}),
          NUMBER(CmSidrRep, vendor_id, {{6, 2, 0xFFFF}, {11, 1, 0xFF}}),
          NUMBER(CmSidrRep, qpn, {{8, 4, 0xFFFFFF00}}),
          NUMBER(CmSidrRep, service_id, {{12, 8, kAll}}),
          NUMBER(CmSidrRep, qkey, {{20, 4, 0xFFFFFFFF}}),
          BYTES(CmSidrRep, additional_information, 24, 72),
          BYTES(CmSidrRep, private_data, 96, 136)};
}
std::vector<Field<CmLap>> fields_of(const CmLap&) {
  return with_ids<CmLap>(
      {NUMBER(CmLap, remote_qpn_eecn, {{12, 4, 0xFFFFFF00}}),
       NUMBER(CmLap, remote_cm_response_timeout, {{15, 1, 0xF8}}),
       NUMBER(CmLap, alternate.local_lid, {{20, 2, 0xFFFF}}),
       NUMBER(CmLap, alternate.remote_lid, {{22, 2, 0xFFFF}}),
       BYTES(CmLap, alternate.local_gid.bytes, 24, 16), BYTES(CmLap, alternate.remote_gid.bytes, 40, 16),
       NUMBER(CmLap, alternate.flow_label, {{56, 4, 0xFFFFF000}}),
       NUMBER(CmLap, alternate.traffic_class, {{56, 4, 0x000000FF}}),
       NUMBER(CmLap, alternate.hop_limit, {{60, 1, 0xFF}}),
       NUMBER(CmLap, alternate.packet_rate, {{61, 1, 0x3F}}), NUMBER(CmLap, alternate.sl, {{62, 1, 0xF0}}),
       NUMBER(CmLap, alternate.is_subnet_local, {{62, 1, 0x08}}),
       NUMBER(CmLap, alternate.local_ack_timeout, {{63, 1, 0xF8}}), BYTES(CmLap, private_data, 64, 168)});
}
std::vector<Field<CmApr>> fields_of(const CmApr&) {
  return with_ids<CmApr>({NUMBER(CmApr, additional_information_length_bytes, {{8, 1, 0xFF}}),
                          NUMBER(CmApr, ap_status, {{9, 1, 0xFF}}),
                          BYTES(CmApr, additional_information, 12, 72), BYTES(CmApr, private_data, 84, 148)});
}

template <class Message>
DataBytes bits_of(const Field<Message>& field) {
  DataBytes bits{};
  for (const Place& place : field.places) {
    for (std::size_t i = 0; i < place.size; ++i) {
      const std::uint64_t byte = place.size > 8 ? 0xFF : place.mask >> (8 * (place.size - 1 - i)) & 0xFF;
      bits[place.at + i] |= static_cast<std::byte>(byte);
    }
  }
  return bits;
}

DataBytes written(const CmMessage& message) {
  MadBytes out;
  out.fill(std::byte{0xA5});  // whatever stood there
  write_cm({}, message, out);
  DataBytes data;
  std::copy(out.begin() + MadHeader::kSize, out.end(), data.begin());
  return data;
}

template <class Message>
Message read(const DataBytes& data) {
  MadBytes bytes{};
  MadHeader header;
  header.attribute_id = static_cast<std::uint16_t>(Message::kAttribute);
  header.emit(std::span{bytes}.first<MadHeader::kSize>());
  std::copy(data.begin(), data.end(), bytes.begin() + MadHeader::kSize);
  const auto mad = parse_cm(bytes);
  REQUIRE(mad.has_value());
  REQUIRE(std::holds_alternative<Message>(mad->message));
  return std::get<Message>(mad->message);
}

DataBytes random_mad_data(Dice& dice) {
  DataBytes data;
  for (std::byte& one : data)
    one = static_cast<std::byte>(dice.bits(8));
  return data;
}

}  // namespace

TEMPLATE_TEST_CASE("each field of a CM message has its bits and no other's", "", CmReq, CmMra, CmRej, CmRep,
                   CmRtu, CmDreq, CmDrep, CmSidrReq, CmSidrRep, CmLap, CmApr) {
  const TestType zero = read<TestType>(DataBytes{});
  CHECK(written(zero) == DataBytes{});
  DataBytes all{};
  for (const auto& field : fields_of(zero)) {
    INFO(field.name);
    TestType message = zero;
    field.fill(message);
    const DataBytes bits = bits_of(field);
    CHECK(written(message) == bits);
    CHECK(written(read<TestType>(bits)) == bits);
    CHECK_FALSE(read<TestType>(bits) == zero);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK((all[i] & bits[i]) == std::byte{0});
      all[i] |= bits[i];
    }
  }

  // What is left is reserved: ignored on reading, 0 when written.
  DataBytes ones;
  ones.fill(std::byte{0xFF});
  CHECK(written(read<TestType>(ones)) == all);
  DataBytes reserved;
  std::transform(all.begin(), all.end(), reserved.begin(), [](std::byte one) { return ~one; });
  CHECK(read<TestType>(reserved) == zero);

  Dice dice{7};
  for (int round = 0; round < 500; ++round) {
    const DataBytes data = random_mad_data(dice);
    const TestType message = read<TestType>(data);
    const DataBytes again = written(message);
    for (std::size_t i = 0; i < data.size(); ++i)
      REQUIRE(again[i] == (data[i] & all[i]));
    REQUIRE(read<TestType>(again) == message);
  }
}

TEST_CASE(
    "the private data of each CM message ends where the MAD ends, with the size that applications know") {
  const auto size = [](const auto& message) { return message.private_data.size(); };
  CHECK(size(CmReq{}) == 92);
  CHECK(size(CmMra{}) == 222);
  CHECK(size(CmRej{}) == 148);
  CHECK(size(CmRep{}) == 196);
  CHECK(size(CmRtu{}) == 224);
  CHECK(size(CmDreq{}) == 220);
  CHECK(size(CmDrep{}) == 224);
  CHECK(size(CmSidrReq{}) == 216);
  CHECK(size(CmSidrRep{}) == 136);
  CHECK(size(CmLap{}) == 168);
  CHECK(size(CmApr{}) == 148);
  CHECK(kIpCmReqDataBytes == 56);
  CHECK(kIpCmSidrReqDataBytes == 180);
}

TEST_CASE("the header of a MAD") {
  const Bytes raw = hex("01 07 02 03 1234 5678 0102030405060708 0010 0000 9abcdef0");
  const auto header = MadHeader::parse(std::span<const std::byte, MadHeader::kSize>{raw.data(), 24});
  CHECK(header == MadHeader{1, 7, 2, MadMethod::kSend, 0x1234, 0x5678, 0x0102030405060708, 0x10, 0x9ABCDEF0});
  MadBytes out;
  out.fill(std::byte{0xFF});
  write_mad(header, out);
  CHECK(std::equal(raw.begin(), raw.end(), out.begin()));
  CHECK(out[24] == std::byte{0xFF});

  MadBytes with_message;
  write_cm(header, CmRtu{}, with_message);
  const auto back = parse_cm(with_message);
  REQUIRE(back);
  MadHeader expected = header;
  expected.attribute_id = 0x14;
  CHECK(back->header == expected);
  CHECK(back->message == CmMessage{CmRtu{}});
}

TEST_CASE("what is no CM MAD is refused by name, in a fixed order") {
  MadBytes good;
  write_cm({}, CmRtu{}, good);
  const auto error_with = [&good](std::initializer_list<std::pair<std::size_t, unsigned>> changes) {
    MadBytes bytes = good;
    for (const auto& [at, value] : changes)
      bytes[at] = static_cast<std::byte>(value);
    const auto mad = parse_cm(bytes);
    REQUIRE_FALSE(mad.has_value());
    return mad.error();
  };
  REQUIRE(parse_cm(good).has_value());
  CHECK(error_with({{0, 2}, {1, 1}}) == CmError::kBaseVersion);
  CHECK(error_with({{1, 3}, {2, 1}}) == CmError::kClass);
  CHECK(error_with({{2, 1}, {3, 1}}) == CmError::kClassVersion);
  CHECK(error_with({{3, 0x81}, {17, 0}}) == CmError::kMethod);
  CHECK(error_with({{17, 0x0F}}) == CmError::kAttribute);
  CHECK(error_with({{17, 0x1B}}) == CmError::kAttribute);
  CHECK(error_with({{16, 1}}) == CmError::kAttribute);
  for (std::size_t size = 0; size <= 300; ++size) {
    const Bytes bytes(size, std::byte{1});
    if (size == kMadBytes) continue;
    const auto mad = parse_cm(bytes);
    REQUIRE_FALSE(mad.has_value());
    REQUIRE(mad.error() == CmError::kLength);
  }
  CHECK(info(CmError::kLength).name == "length");
  CHECK(info(CmError::kIpVersion).sentence == "the IP version of the IP CM header is neither 4 nor 6");
}

TEST_CASE("of the 65536 attribute ids eleven are messages, and each gives its own") {
  MadBytes bytes;
  write_cm({}, CmRtu{}, bytes);
  std::size_t messages = 0;
  for (unsigned id = 0; id <= 0xFFFF; ++id) {
    store_be16(bytes.data() + 16, static_cast<std::uint16_t>(id));
    const auto mad = parse_cm(bytes);
    const auto attribute = static_cast<CmAttribute>(id);
    REQUIRE(mad.has_value() == !name_of(attribute).empty());
    if (!mad) continue;
    ++messages;
    CHECK(attribute_of(mad->message) == attribute);
  }
  CHECK(messages == 11);
  CHECK(name_of(CmAttribute::kReq) == "REQ");
  CHECK(name_of(CmAttribute::kSidrRep) == "SIDR_REP");
  CHECK(name_of(CmAttribute::kApr) == "APR");
}

TEST_CASE("additional information that claims more than there is ends with it") {
  const CmInformation information{};
  CHECK(cm_information(information, 0).empty());
  CHECK(cm_information(information, 71).size() == 71);
  CHECK(cm_information(information, 72).size() == 72);
  CHECK(cm_information(information, 255).size() == 72);
}

TEST_CASE("reject reasons have words, numbers without a name have none") {
  CHECK(static_cast<int>(CmRejectReason::kStaleConnection) == 10);
  CHECK(static_cast<int>(CmRejectReason::kConsumerReject) == 28);
  CHECK(words_of(CmRejectReason::kInvalidServiceId) == "invalid service id");
  for (const unsigned number : {0U, 34U, 36U, 65535U})
    CHECK(words_of(static_cast<CmRejectReason>(number)).empty());
}

TEST_CASE("times of CM are 4.096 us x 2^code") {
  using std::chrono::nanoseconds;
  CHECK(CmTimeout{0}.duration() == nanoseconds{4096});
  CHECK(CmTimeout{20}.duration() == nanoseconds{4'294'967'296});
  CHECK(CmTimeout{31}.duration() == nanoseconds{4096LL << 31});
  CHECK(CmTimeout::at_least(nanoseconds{0}).code() == 0);
  CHECK(CmTimeout::at_least(nanoseconds::max()).code() == 31);
  for (std::uint8_t code = 0; code < 31; ++code) {
    const CmTimeout timeout{code};
    CHECK(CmTimeout::at_least(timeout.duration()) == timeout);
    CHECK(CmTimeout::at_least(timeout.duration() + nanoseconds{1}).code() == code + 1);
  }
}

TEST_CASE("codes of the path MTU") {
  for (std::uint8_t code = 0; code < 16; ++code) {
    const auto mtu = path_mtu_from_code(code);
    REQUIRE(mtu.has_value() == (code >= 1 && code <= 5));
    if (mtu) CHECK(code_of(*mtu) == code);
  }
  CHECK(code_of(PathMtu::k256) == 1);
  CHECK(code_of(PathMtu::k4096) == 5);
}

TEST_CASE("service ids of the IP CM service") {
  CHECK(service_id_of(CmPortSpace::kTcp, 7471).value() == 0x0000000001061D2F);
  CHECK(service_id_of(CmPortSpace::kUdp, 0xFFFF).value() == 0x000000000111FFFF);
  CHECK(service_id_of(CmPortSpace::kIb, 1).value() == 0x00000000013F0001);
  for (const CmPortSpace space : {CmPortSpace::kTcp, CmPortSpace::kUdp, CmPortSpace::kIb})
    CHECK(ip_service_of(service_id_of(space, 4711)) == IpService{space, 4711});
  for (const std::uint64_t other : {0x0000000002061D2FULL, 0x0000000101061D2FULL, 0x061D2FULL, ~0ULL})
    CHECK_FALSE(ip_service_of(ServiceId{other}).has_value());
}

TEST_CASE("the IP CM header") {
  const auto parse = [](const Bytes& raw) {
    REQUIRE(raw.size() == IpCmHeader::kSize);
    return IpCmHeader::parse(std::span<const std::byte, IpCmHeader::kSize>{raw.data(), IpCmHeader::kSize});
  };
  const auto emitted = [](const IpCmHeader& header) {
    Bytes out(IpCmHeader::kSize, std::byte{0xFF});
    header.emit(std::span<std::byte, IpCmHeader::kSize>{out.data(), IpCmHeader::kSize});
    return out;
  };
  const Bytes ipv4 = hex("00 40 8abe 000000000000000000000000 0a4d000b 000000000000000000000000 0a4d000c");
  const auto of_ipv4 = parse(ipv4);
  REQUIRE(of_ipv4);
  CHECK(*of_ipv4 ==
        IpCmHeader{IpVersion::kIpv4, 0x8ABE, Gid::from_ipv4(0x0A4D000B), Gid::from_ipv4(0x0A4D000C)});
  CHECK(emitted(*of_ipv4) == ipv4);

  const Bytes ipv6 = hex("00 60 c46d fd770000000000000000000000000011 fd770000000000000000000000000012");
  const auto of_ipv6 = parse(ipv6);
  REQUIRE(of_ipv6);
  CHECK(of_ipv6->ip_version == IpVersion::kIpv6);
  CHECK(of_ipv6->source_port == 0xC46D);
  CHECK(of_ipv6->source.bytes[15] == 0x11);
  CHECK(of_ipv6->destination.bytes[15] == 0x12);
  CHECK(emitted(*of_ipv6) == ipv6);

  // What stands before an IPv4 address, and the low half of the second byte, is reserved.
  const auto noisy =
      parse(hex("00 4f 8abe ffffffffffffffffffffffff 0a4d000b 112233445566778899aabbcc 0a4d000c"));
  REQUIRE(noisy);
  CHECK(*noisy == *of_ipv4);

  for (unsigned version = 1; version < 256; ++version) {
    Bytes raw = ipv4;
    raw[0] = static_cast<std::byte>(version);
    CHECK(parse(raw).error() == CmError::kIpCmVersion);
  }
  for (unsigned version = 0; version < 16; ++version) {
    Bytes raw = ipv4;
    raw[1] = static_cast<std::byte>(version << 4);
    const auto header = parse(raw);
    REQUIRE(header.has_value() == (version == 4 || version == 6));
    if (!header) CHECK(header.error() == CmError::kIpVersion);
  }
}
