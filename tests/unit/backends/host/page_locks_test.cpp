// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Locks of pages that several registrations share.
#include "backends/host/page_locks.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/arithmetic.h"
#include "hole.h"
#include "platform/pages.h"
#include "process_support.h"

namespace gpumem::host {
namespace {

class PageLocks : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_IF_LOCKING_IS_FORBIDDEN();
    void* const memory = test::map_below_gap(kPages * page_);
    ASSERT_NE(memory, MAP_FAILED);
    base_ = address_of(memory);
    before_ = test::locked_bytes();
  }
  void TearDown() override {
    if (base_ == 0) return;
    EXPECT_EQ(test::locked_bytes(), before_);
    platform::unmap(pointer_to(base_), kPages * page_);
  }

  PageLock lock(uint64_t first, uint64_t end) {
    PageLock lock(base_ + first * page_);
    EXPECT_TRUE(lock.extend(base_ + end * page_));
    return lock;
  }
  // One letter a page: L for locked.
  std::string locked() const {
    std::string pages;
    for (uint64_t page = 0; page < kPages; ++page) {
      pages += test::has_flag(pointer_to(base_ + page * page_), "lo") ? 'L' : '.';
    }
    return pages;
  }

  static constexpr uint64_t kPages = 8;
  const uint64_t page_ = platform::page_size();
  uint64_t base_ = 0;
  uint64_t before_ = 0;
};

TEST_F(PageLocks, ASharedPageStaysLockedUntilTheLastEnds) {
  std::optional<PageLock> first = lock(0, 3);
  std::optional<PageLock> second = lock(2, 5);
  EXPECT_EQ(locked(), "LLLLL...");
  first.reset();
  EXPECT_EQ(locked(), "..LLL...");
  std::optional<PageLock> third = lock(1, 3);
  second.reset();
  EXPECT_EQ(locked(), ".LL.....");
  third.reset();
  EXPECT_EQ(locked(), "........");
}

TEST_F(PageLocks, OneInsideAndOneAround) {
  std::optional<PageLock> inner = lock(3, 4);
  std::optional<PageLock> outer = lock(1, 7);
  std::optional<PageLock> same = lock(1, 7);
  EXPECT_EQ(locked(), ".LLLLLL.");
  outer.reset();
  inner.reset();
  EXPECT_EQ(locked(), ".LLLLLL.");
  same.reset();
  EXPECT_EQ(locked(), "........");
}

TEST_F(PageLocks, GapsBetweenOthersAreFilled) {
  std::optional<PageLock> left = lock(0, 1);
  std::optional<PageLock> middle = lock(3, 5);
  std::optional<PageLock> right = lock(7, 8);
  std::optional<PageLock> all = lock(0, 8);
  EXPECT_EQ(locked(), "LLLLLLLL");
  middle.reset();
  EXPECT_EQ(locked(), "LLLLLLLL");
  all.reset();
  EXPECT_EQ(locked(), "L......L");
}

TEST_F(PageLocks, AFailureLeavesWhatOthersLocked) {
  std::optional<PageLock> other = lock(2, 4);
  {
    const test::LockLimit limit(before_ + 3 * page_);
    PageLock lock(base_);
    ASSERT_TRUE(lock.extend(base_ + page_));
    const auto more = lock.extend(base_ + 6 * page_);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
    EXPECT_EQ(locked(), "L.LL....");
  }
  EXPECT_EQ(locked(), "..LL....");
}

TEST_F(PageLocks, AHoleFailsAsAWhole) {
  platform::unmap(pointer_to(base_ + 4 * page_), page_);
  PageLock lock(base_);
  EXPECT_FALSE(lock.extend(base_ + kPages * page_));
  EXPECT_EQ(locked(), "........");
}

TEST_F(PageLocks, WhatOthersLockedBeforeStaysLocked) {
  const auto page = [&](uint64_t number) { return pointer_to(base_ + number * page_); };
  ASSERT_EQ(syscall(SYS_mlock, page(1), page_), 0);
  ASSERT_EQ(syscall(SYS_mlock, page(3), 2 * page_), 0);
  std::optional<PageLock> first = lock(0, 4);
  std::optional<PageLock> second = lock(2, 7);
  EXPECT_EQ(locked(), "LLLLLLL.");
  first.reset();
  EXPECT_EQ(locked(), ".LLLLLL.");
  second.reset();
  EXPECT_EQ(locked(), ".L.LL...");
  // A program that has unlocked its pages gets them unlocked.
  syscall(SYS_munlock, page(0), kPages * page_);
  first = lock(0, 8);
  first.reset();
  EXPECT_EQ(locked(), "........");
}

TEST_F(PageLocks, WithEverythingLockedNothingIsUnlocked) {
  const int code = test::exit_code_of([&] {
    // A child does not inherit the pages of the fixture.
    base_ = address_of(platform::map_anonymous(kPages * page_, page_).value());
    std::optional<PageLock> mine = lock(2, 5);
    // Only what is there already: the shadow memory of a sanitizer would be more than the machine has.
    if (syscall(SYS_mlockall, MCL_CURRENT | MCL_ONFAULT) != 0) return 77;
    mine.reset();
    const bool kept = locked() == "LLLLLLLL";
    syscall(SYS_munlockall);
    mine = lock(2, 5);
    mine.reset();
    return !kept ? 1 : locked() == "........" ? 0 : 2;
  });
  if (code == 77) GTEST_SKIP() << "this process may not lock all its memory";
  EXPECT_EQ(code, 0);
}

TEST_F(PageLocks, MovesWithItsOwner) {
  PageLock first = lock(0, 2);
  PageLock second = std::move(first);
  EXPECT_EQ(locked(), "LL......");
  second = PageLock();
  EXPECT_EQ(locked(), "........");
}

}  // namespace
}  // namespace gpumem::host
