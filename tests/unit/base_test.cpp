// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The helpers of impl/base.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "base/result.h"

namespace gpumem {
namespace {

TEST(Arithmetic, WrapsAreSeen) {
  EXPECT_FALSE(add_wraps(UINT64_MAX - 1, 1));
  EXPECT_TRUE(add_wraps(UINT64_MAX, 1));
  uint64_t value = 7;
  EXPECT_TRUE(multiply(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, &value));
  EXPECT_FALSE(multiply(uint64_t{1} << 32, uint64_t{1} << 32, &value));
  EXPECT_TRUE(add(UINT64_MAX, 0, &value));
  EXPECT_FALSE(add(UINT64_MAX, 1, &value));
}

TEST(Arithmetic, PowersOfTwoAndRounding) {
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_TRUE(is_power_of_two(1));
  EXPECT_TRUE(is_power_of_two(uint64_t{1} << 63));
  EXPECT_FALSE(is_power_of_two(12));
  EXPECT_EQ(round_up(1, 4096), 4096u);
  EXPECT_EQ(round_up(4096, 4096), 4096u);
  EXPECT_EQ(round_down(8191, 4096), 4096u);
}

TEST(Result, CarriesAValueOrAnError) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(5));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(**good, 5);
  const Result<int> bad = make_error(GPUMEM_ERROR_BUSY, "used by %d", 3);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().status, GPUMEM_ERROR_BUSY);
  EXPECT_STREQ(bad.error().message, "used by 3");
}

TEST(Result, TryLeavesTheFunction) {
  int reached = 0;
  const auto function = [&](bool fail) -> Result<void> {
    GPUMEM_TRY(fail ? Result<void>(make_error(GPUMEM_ERROR_NOT_FOUND, "no")) : Result<void>());
    ++reached;
    return {};
  };
  EXPECT_EQ(function(true).error().status, GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(function(false).ok());
  EXPECT_EQ(reached, 1);
}

TEST(Result, LongMessagesAreCutNotOverrun) {
  const std::string text(2000, 'x');
  const Error error = make_error(GPUMEM_ERROR_INTERNAL, "%s", text.c_str());
  EXPECT_EQ(std::strlen(error.message), sizeof error.message - 1);
}

TEST(Cleanup, RunsUnlessDismissed) {
  int runs = 0;
  {
    const Cleanup undo([&] { ++runs; });
  }
  EXPECT_EQ(runs, 1);
  {
    Cleanup undo([&] { ++runs; });
    undo.dismiss();
  }
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace gpumem
