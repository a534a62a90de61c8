#include "proto/ack_timeout.h"
#include "proto/rnr_timer.h"

#include <catch2/catch.hpp>

using namespace roci::proto;
using namespace std::chrono_literals;

TEST_CASE("the RNR timer table [IBTA Table 45; 48 in another release]") {
  CHECK(RnrTimer{0}.wait() == 655360us);
  CHECK(RnrTimer{1}.wait() == 10us);
  CHECK(RnrTimer{12}.wait() == 640us);
  CHECK(RnrTimer{18}.wait() == 5120us);
  CHECK(RnrTimer{20}.wait() == 10240us);
  CHECK(RnrTimer{31}.wait() == 491520us);
  for (std::uint8_t code = 2; code < 32; ++code) {
    INFO("code " << int{code});
    CHECK(RnrTimer{code}.wait() > RnrTimer{static_cast<std::uint8_t>(code - 1)}.wait());
    // From 4 on, two codes double the wait.
    if (code >= 6) CHECK(RnrTimer{code}.wait() == 2 * RnrTimer{static_cast<std::uint8_t>(code - 2)}.wait());
  }
}

TEST_CASE("the ACK timeout is 4.096 us x 2^code, 0 is none [IBTA C9-140]") {
  CHECK_FALSE(AckTimeout{0}.duration().has_value());
  CHECK(AckTimeout{1}.duration() == 8192ns);
  CHECK(AckTimeout{14}.duration() == 67108864ns);
  CHECK(AckTimeout{31}.duration() == 4096ns * (std::int64_t{1} << 31));
  CHECK(AckTimeout{32}.code() == 0);
}
