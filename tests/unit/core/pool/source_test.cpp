// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pieces of a pool that move while work uses them.
#include <gtest/gtest.h>

#include "core/device/device.h"
#include "core/memory/pool_blocks.h"
#include "core/object/held.h"
#include "core/pool/source.h"
#include "interface_support.h"

namespace gpumem::core {
namespace {

constexpr PoolSpace::Order kOrder = 1;

class PoolSources : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(blocks_.open());
    ASSERT_TRUE(source_.open(blocks_));
    ASSERT_TRUE(source_.can_move());
  }
  void TearDown() override {
    while (!source_.pieces().empty())
      EXPECT_TRUE(source_.release(source_.pieces().begin()->first));
    EXPECT_TRUE(source_.close());
  }
  uint64_t place(uint64_t number) const { return source_.begin() + number * source_.granularity(); }
  void map(uint64_t at) { ASSERT_TRUE(source_.map(place(at), source_.granularity())); }
  void move(uint64_t from, uint64_t to, PoolPassing passing) {
    ASSERT_TRUE(source_.move(place(from), place(to), passing));
  }
  gpumem_status release(uint64_t at) {
    const auto released = source_.release(place(at));
    return released ? GPUMEM_SUCCESS : released.error().status;
  }
  static PoolSource source_of(uint64_t handle) {
    const auto device = held<DeviceObject>(handle);
    return {(*device)->shared_context(), (*device)->device(), PoolMemory{}};
  }

  test::Session session_{GPUMEM_BACKEND_HOST};
  PoolBlocks blocks_;
  PoolSource source_ = source_of(reinterpret_cast<uintptr_t>(session_.device()));
};

TEST_F(PoolSources, a_piece_stays_while_work_uses_it_where_it_was) {
  map(0);
  move(0, 1, {kOrder, 3});
  EXPECT_EQ(release(1), GPUMEM_ERROR_BUSY);
  source_.pass(kOrder, 2);
  EXPECT_EQ(release(1), GPUMEM_ERROR_BUSY);
  source_.pass(kOrder, 3);
  EXPECT_EQ(release(1), GPUMEM_SUCCESS);
}

TEST_F(PoolSources, a_piece_that_moves_on_stays_while_work_uses_it_where_it_was_first) {
  map(0);
  move(0, 1, {kOrder, 1});
  move(1, 2, {});
  ASSERT_TRUE(source_.unmap_old());
  EXPECT_EQ(release(2), GPUMEM_ERROR_BUSY);
  source_.pass(kOrder, 1);
  EXPECT_EQ(release(2), GPUMEM_SUCCESS);
}

TEST_F(PoolSources, a_piece_is_not_kept_for_another_that_was_at_its_old_place) {
  map(0);
  move(0, 1, {});
  ASSERT_TRUE(source_.unmap_old());
  map(0);
  move(0, 2, {kOrder, 1});
  EXPECT_EQ(release(1), GPUMEM_SUCCESS);
  EXPECT_EQ(release(2), GPUMEM_ERROR_BUSY);
  source_.pass(kOrder, 1);
}

TEST_F(PoolSources, a_piece_is_not_kept_for_what_was_released_at_its_place) {
  map(0);
  move(0, 1, {kOrder, 1});
  source_.pass(kOrder, 1);
  EXPECT_EQ(release(1), GPUMEM_SUCCESS);
  map(2);
  move(2, 1, {});
  EXPECT_EQ(release(1), GPUMEM_SUCCESS);
}

}  // namespace
}  // namespace gpumem::core
