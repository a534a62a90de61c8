#include "proto/result.h"

#include <catch2/catch.hpp>

#include <memory>
#include <string>

using roci::proto::Result;
using roci::proto::Unexpected;

TEST_CASE("a Result is its value or its error") {
  const Result<int, std::string> good = 5;
  const Result<int, std::string> bad = Unexpected{std::string{"why"}};
  CHECK(good.has_value());
  CHECK(*good == 5);
  CHECK_FALSE(bad);
  CHECK(bad.error() == "why");
}

TEST_CASE("value and error may be of one type, and move-only") {
  const Result<int, int> bad = Unexpected{7};
  CHECK_FALSE(bad.has_value());
  CHECK(bad.error() == 7);
  Result<std::unique_ptr<int>, int> owner = std::make_unique<int>(3);
  const std::unique_ptr<int> taken = std::move(owner).value();
  CHECK(*taken == 3);
}
