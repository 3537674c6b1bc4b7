// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NUMA nodes of the machine.
#include "platform/numa.h"

#include <gtest/gtest.h>

#include <thread>

#include "platform/pages.h"

namespace gpumem::platform {
namespace {

class NumaPage : public testing::Test {
 protected:
  void SetUp() override {
    auto page = map_anonymous(page_size(), page_size());
    ASSERT_TRUE(page);
    page_ = *page;
  }
  void TearDown() override { unmap(page_, page_size()); }

  static int32_t some_node() {
    int32_t node = 0;
    while (!numa_node_exists(node))
      ++node;
    return node;
  }

  void* page_ = nullptr;
};

TEST(Numa, NodesOfTheMachine) {
  EXPECT_GE(numa_node_count(), 1U);
  EXPECT_FALSE(numa_node_exists(-1));
  EXPECT_FALSE(numa_node_exists(1023));
  EXPECT_FALSE(numa_node_exists(INT32_MAX));
}

TEST_F(NumaPage, BoundMemoryLiesOnItsNode) {
  const int32_t node = some_node();
  const auto bound = bind_to_node(page_, page_size(), node);
  if (!bound) GTEST_SKIP() << "this system binds no memory: " << bound.error().message;
  ASSERT_TRUE(populate(page_, page_size(), 1));
  EXPECT_EQ(node_of(page_), node);
}

TEST_F(NumaPage, AMissingNodeIsRefused) {
  const auto bound = bind_to_node(page_, page_size(), 1000);
  ASSERT_FALSE(bound);
  EXPECT_STREQ(bound.error().entry_point, "mbind");
  EXPECT_NE(bound.error().native_code, 0);
  prefer_node(page_, page_size(), 1000);  // a wish that cannot come true does no harm
  EXPECT_TRUE(populate(page_, page_size(), 1));
}

TEST_F(NumaPage, APreferredNodeIsUsed) {
  const int32_t node = some_node();
  prefer_node(page_, page_size(), node);
  ASSERT_TRUE(populate(page_, page_size(), 1));
  const int32_t found = node_of(page_);
  if (found < 0) GTEST_SKIP() << "this system does not tell where a page lies";
  EXPECT_EQ(found, node);
}

TEST(Numa, NodeOfNothingIsUnknown) { EXPECT_EQ(node_of(nullptr), -1); }

TEST(Numa, AThreadStaysOnANode) {
  const uint32_t all = allowed_processors(-1);
  EXPECT_GE(all, 1u);
  EXPECT_EQ(allowed_processors(1000), all) << "a node that does not exist takes nothing away";
  EXPECT_GE(allowed_processors(0), 1u);
  EXPECT_LE(allowed_processors(0), all);
  std::thread([&] {
    for (const int32_t nothing : {-1, 1000}) {
      stay_on_node(nothing);
      EXPECT_EQ(allowed_processors(-1), all);
    }
    stay_on_node(0);
    EXPECT_EQ(allowed_processors(-1), allowed_processors(0));
  }).join();
  EXPECT_EQ(allowed_processors(-1), all) << "this thread was meant too";
}

}  // namespace
}  // namespace gpumem::platform
