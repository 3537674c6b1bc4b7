// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The limits of control groups, read below a made-up root.
#include "platform/host_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace gpumem;
using namespace gpumem::platform;

namespace {

class HostBudgetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/gpumem_host_budget_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
    write("/proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

constexpr uint64_t kKiB = 1024;

TEST_F(HostBudgetTest, WithoutGroupsTheSystemDecides) {
  const HostBudget budget = host_budget(root_);
  EXPECT_EQ(budget.available, 1000 * kKiB);
  EXPECT_EQ(budget.limit, "MemAvailable in /proc/meminfo");
}

TEST_F(HostBudgetTest, AnAncestorsLimitCounts) {
  write("/proc/self/cgroup", "0::/outer/inner\n");
  write("/sys/fs/cgroup/outer/memory.max", "600000\n");
  write("/sys/fs/cgroup/outer/memory.current", "500000\n");
  write("/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100000\n");
  write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("/sys/fs/cgroup/outer/inner/memory.current", "400000\n");
  const HostBudget budget = host_budget(root_);
  EXPECT_EQ(budget.available, 200000u) << "what the kernel can reclaim is not in use";
  EXPECT_EQ(budget.limit, "/sys/fs/cgroup/outer/memory.max");
}

TEST_F(HostBudgetTest, TheTightestOfAllCounts) {
  write("/proc/self/cgroup", "0::/outer/inner\n");
  write("/sys/fs/cgroup/outer/memory.max", "600000\n");
  write("/sys/fs/cgroup/outer/memory.current", "0\n");
  write("/sys/fs/cgroup/outer/inner/memory.max", "5000\n");
  write("/sys/fs/cgroup/outer/inner/memory.current", "7000\n");
  EXPECT_EQ(host_budget(root_).available, 0u) << "above its limit";
  EXPECT_EQ(host_budget(root_).limit, "/sys/fs/cgroup/outer/inner/memory.max");
}

TEST_F(HostBudgetTest, GroupsOfTheFirstVersionCountToo) {
  write("/proc/self/cgroup", "5:cpu:/elsewhere\n4:memory:/job\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000\n");
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "250000\n");
  write("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 50000\n");
  EXPECT_EQ(host_budget(root_).available, 100000u);
}

TEST_F(HostBudgetTest, WhatDoesNotFitNamesTheLimit) {
  EXPECT_TRUE(check_host_budget(1000 * kKiB, root_).ok());
  const auto refused = check_host_budget(1000 * kKiB + 1, root_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(refused.error().limit, Limit::kOther);
  EXPECT_NE(std::string(refused.error().message).find("MemAvailable"), std::string::npos);
  EXPECT_EQ(std::string(refused.error().message).find("raise"), std::string::npos) << "there is no limit";
}

TEST_F(HostBudgetTest, ALimitOfAGroupCanBeRaised) {
  write("/proc/self/cgroup", "0::/job\n");
  write("/sys/fs/cgroup/job/memory.max", "4096\n");
  write("/sys/fs/cgroup/job/memory.current", "0\n");
  const auto refused = check_host_budget(4097, root_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().limit, Limit::kControlGroup);
  const std::string message = refused.error().message;
  EXPECT_NE(message.find("/sys/fs/cgroup/job/memory.max leaves 4096; free some, or raise the limit of the "
                         "control group in that file"),
            std::string::npos)
      << message;
}

TEST(HostBudget, OfThisMachineIsPartOfIt) {
  const auto machine =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_GT(host_budget().available, 0u);
  EXPECT_LE(host_budget().available, machine);
}

}  // namespace
