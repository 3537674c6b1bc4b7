// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is logged of other processes.
#include "core/object/warnings.h"

#include <gtest/gtest.h>

namespace gpumem::core {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

class WarningsTest : public testing::Test {
 protected:
  Lines add(uint32_t user, int times = 1, const char* cause = "refused") {
    Lines lines;
    for (int i = 0; i < times; ++i)
      warnings_.add(cause, 7, user, "why", now_, lines);
    return lines;
  }
  Lines left_out() {
    Lines lines;
    warnings_.add_left_out(now_, lines);
    return lines;
  }

  Warnings warnings_;
  Warnings::Time now_{1h};
};

TEST_F(WarningsTest, ALineNamesWhoItIs) {
  EXPECT_EQ(add(5), Lines{"refused process 7 of user 5: why"});
  EXPECT_EQ(add(Warnings::kUnknown, 1, "dropped somebody"), Lines{"dropped somebody: why"});
}

TEST_F(WarningsTest, TheFirstOfEachCauseAndUserAreTold) {
  EXPECT_EQ(add(5, 50).size(), Warnings::kLines);
  EXPECT_EQ(add(6, 50).size(), Warnings::kLines) << "another user";
  EXPECT_EQ(add(5, 50, "hung up on").size(), Warnings::kLines) << "another cause";
  EXPECT_TRUE(add(5).empty());
}

TEST_F(WarningsTest, TheNumberOfTheOthersIsToldOnce) {
  add(5, 8);
  EXPECT_EQ(warnings_.next(), Warnings::Time::max()) << "all were told";
  add(5, 42);
  add(Warnings::kUnknown, 10, "dropped somebody");
  EXPECT_EQ(warnings_.next(), now_ + Warnings::kPeriod);
  now_ += Warnings::kPeriod - 1ns;
  EXPECT_TRUE(left_out().empty());
  now_ += 1ns;
  EXPECT_EQ(left_out(),
            (Lines{"dropped somebody: 2 times more", "refused processes of user 5: 42 times more"}));
  EXPECT_TRUE(left_out().empty());
  EXPECT_EQ(warnings_.next(), Warnings::Time::max());
}

TEST_F(WarningsTest, WhoGoesOnIsToldOfAllTheSame) {
  add(5);
  for (int i = 0; i < 19; ++i) {
    now_ += std::chrono::milliseconds(Warnings::kPeriod) / 20;
    add(5);
  }
  now_ += std::chrono::milliseconds(Warnings::kPeriod) / 20;
  EXPECT_EQ(left_out(), Lines{"refused processes of user 5: 12 times more"});
}

TEST_F(WarningsTest, WhatComesLaterIsToldBehindTheNumber) {
  add(5, 10);
  now_ += Warnings::kPeriod;
  EXPECT_EQ(add(5, 50).size(), 1 + Warnings::kLines);
  now_ += Warnings::kPeriod;
  EXPECT_EQ(add(5),
            (Lines{"refused processes of user 5: 42 times more", "refused process 7 of user 5: why"}));
}

TEST_F(WarningsTest, ManyUsersShareOneAccount) {
  size_t lines = 0;
  for (uint32_t user = 0; user < 1000; ++user)
    lines += add(user).size();
  EXPECT_EQ(lines, 256 + Warnings::kLines);
  EXPECT_EQ(add(0).size(), 1U) << "those that were known before keep theirs";
  now_ += Warnings::kPeriod;
  EXPECT_EQ(left_out(), Lines{"refused: 736 times more"});
  EXPECT_EQ(add(999).size(), 1U);
  EXPECT_EQ(add(999), Lines{"refused process 7 of user 999: why"});
}

}  // namespace
}  // namespace gpumem::core
