// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What one of several users may hold.
#include "core/share/peer/fair_share.h"

#include <gtest/gtest.h>

#include <map>

namespace gpumem::core {
namespace {

// What each user holds, as `user` sees it.
FairShare seen_by(uint32_t user, const std::map<uint32_t, uint64_t>& held) {
  FairShare share(user);
  for (const auto& [other, amount] : held)
    share.add(other, amount);
  return share;
}

TEST(FairShare, WhoeverComesNextFindsSomething) {
  for (const uint64_t total : std::initializer_list<uint64_t>{1, 2, 7, 64, 1024, 1'000'000}) {
    std::map<uint32_t, uint64_t> held;
    uint64_t all = 0;
    for (uint64_t user = 1; user <= 100; ++user) {
      // Each takes all that it may.
      const uint64_t share = seen_by(static_cast<uint32_t>(user), held).of(total);
      if (all < total) {
        EXPECT_GE(share, std::max<uint64_t>(total / (user * (user + 1)), 1)) << user << " of " << total;
      }
      if (user > 1) {
        EXPECT_LE(share, held[static_cast<uint32_t>(user - 1)]);
      }
      held[static_cast<uint32_t>(user)] = share;
      all += share;
      EXPECT_LE(all, total);
    }
  }
}

TEST(FairShare, ItIsAPartOfWhatOthersHaveLeft) {
  EXPECT_EQ(seen_by(1, {}).of(60), 30U);
  EXPECT_EQ(seen_by(1, {{1, 30}}).of(60), 30U) << "whatever it holds itself";
  EXPECT_EQ(seen_by(2, {{1, 30}}).of(60), 10U);
  EXPECT_EQ(seen_by(1, {{1, 30}, {2, 10}}).of(60), 16U);
  EXPECT_EQ(seen_by(3, {{1, 30}, {2, 10}, {4, 0}}).of(60), 5U) << "who holds nothing is not counted";
  EXPECT_EQ(seen_by(3, {{1, 59}}).of(60), 1U) << "at least one";
  EXPECT_EQ(seen_by(3, {{1, 60}}).of(60), 0U) << "unless nothing is left";
  EXPECT_EQ(seen_by(3, {{1, 99}}).of(60), 0U) << "the limit was lowered";
  const FairShare share = seen_by(1, {{1, 5}, {2, 7}});
  EXPECT_EQ(share.own(), 5U);
  EXPECT_EQ(share.all(), 12U);
}

TEST(FairShare, WhatTakesNoMoreThanGoesIsLetIn) {
  const FairShare above = seen_by(1, {{1, 30}, {2, 20}});
  EXPECT_TRUE(above.check("fds_max", 60, 4, 4, "wait"));
  EXPECT_FALSE(above.check("fds_max", 60, 5, 4, "wait"));
  const FairShare below = seen_by(1, {{1, 10}, {2, 20}});
  EXPECT_TRUE(below.check("fds_max", 60, 8, 5, "wait")) << "13, as (60 - 20) / 3";
  EXPECT_FALSE(below.check("fds_max", 60, 9, 5, "wait"));
  EXPECT_FALSE(seen_by(1, {{2, 20}}).check("fds_max", 60, 14, 0, "wait"));
  const Result<void> refused = above.check("fds_max", 60, 1, 0, "wait");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_STREQ(
      refused.error().message,
      "the hub has fds_max = 60 for all users, of which user 1 may have 13 now; wait, or open it with "
      "a higher limit");
}

}  // namespace
}  // namespace gpumem::core
