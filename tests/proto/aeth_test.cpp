#include "proto/aeth.h"

#include <catch2/catch.hpp>

using namespace roci::proto;

TEST_CASE("each of the 256 syndromes has one kind and comes back from its parts [IBTA 9.7.5.2.2]") {
  for (unsigned value = 0; value < 256; ++value) {
    INFO("syndrome " << value);
    const Syndrome syndrome{static_cast<std::uint8_t>(value)};
    CHECK(syndrome.byte() == value);
    switch (syndrome.kind()) {
      case Syndrome::Kind::kAck:
        CHECK(value < 0x20);
        CHECK(Syndrome::ack(syndrome.credits()) == syndrome);
        break;
      case Syndrome::Kind::kRnrNak:
        CHECK((value >= 0x20 && value < 0x40));
        CHECK(Syndrome::rnr_nak(syndrome.rnr_timer()) == syndrome);
        break;
      case Syndrome::Kind::kNak:
        CHECK((value >= 0x60 && value <= 0x64));
        CHECK(Syndrome::nak(syndrome.nak_code()) == syndrome);
        CHECK_FALSE(name_of(syndrome.nak_code()).empty());
        break;
      case Syndrome::Kind::kReserved:
        CHECK(((value >= 0x40 && value < 0x60) || value > 0x64));
        break;
    }
  }
}

TEST_CASE("syndromes as the captures have them") {
  CHECK(Syndrome::ack().byte() == 0x1F);
  CHECK(Syndrome::rnr_nak(RnrTimer{12}).byte() == 0x2C);
  CHECK(Syndrome::nak(NakCode::kPsnSequenceError).byte() == 0x60);
  CHECK(Syndrome::nak(NakCode::kInvalidRequest).byte() == 0x61);
  CHECK(Syndrome::nak(NakCode::kRemoteAccessError).byte() == 0x62);
  CHECK(Syndrome::nak(NakCode::kRemoteOperationalError).byte() == 0x63);
}

TEST_CASE("credit codes") {
  CHECK(CreditCode{0}.messages() == 0U);
  CHECK(CreditCode{5}.messages() == 6U);
  CHECK(CreditCode{10}.messages() == 32U);
  CHECK(CreditCode{30}.messages() == 32768U);
  CHECK_FALSE(CreditCode{31}.messages().has_value());
  for (std::uint8_t code = 0; code < CreditCode::kNoLimit; ++code) {
    const std::uint32_t messages = CreditCode{code}.messages().value();
    CHECK(CreditCode::from_messages(messages).code() == code);
    if (messages > 0) CHECK(CreditCode::from_messages(messages - 1).code() == code - 1);
  }
  CHECK(CreditCode::from_messages(0xFFFFFFFF).code() == 30);
}
