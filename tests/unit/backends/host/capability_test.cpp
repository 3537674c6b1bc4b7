// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Capabilities of emulated devices, and what the backend says of itself.
#include <set>

#include "backends/host/backend.h"
#include "host_support.h"
#include "platform/numa.h"
#include "process_support.h"

namespace gpumem::test {
namespace {

class HostCapability : public Host {
 protected:
  void SetUp() override { open(); }
  backend::Capability ask(gpumem_capability capability) { return dev().capability(capability, nullptr); }
  backend::Capability ask_pair(gpumem_capability capability, size_t from, size_t to) {
    return dev(from).capability(capability, &dev(to));
  }
};

const gpumem_capability kTris[] = {
    GPUMEM_CAPABILITY_UVA,
    GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS,
    GPUMEM_CAPABILITY_PIN_MAP_HOST,
    GPUMEM_CAPABILITY_PIN_PAGE_LOCKED,
    GPUMEM_CAPABILITY_PIN_WRITE_COMBINED,
    GPUMEM_CAPABILITY_PIN_REGISTER,
    GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER,
    GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY,
    GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY,
    GPUMEM_CAPABILITY_PIN_NUMA,
    GPUMEM_CAPABILITY_HOST_ATOMICS,
    GPUMEM_CAPABILITY_PAGEABLE,
    GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES,
    GPUMEM_CAPABILITY_STREAM_VALUE32,
    GPUMEM_CAPABILITY_STREAM_VALUE64,
    GPUMEM_CAPABILITY_STREAM_VALUE_NOR,
    GPUMEM_CAPABILITY_COPY_BATCH,
    GPUMEM_CAPABILITY_SHARE_LEGACY,
    GPUMEM_CAPABILITY_SHARE_EVENTS,
    GPUMEM_CAPABILITY_SHARE_CHANNEL,
    GPUMEM_CAPABILITY_SHARE_DMA_BUF,
    GPUMEM_CAPABILITY_SHARE_DMA_BUF_PCIE,
};

TEST_F(HostCapability, EveryAnswerHasAReason) {
  for (const gpumem_capability capability : kTris) {
    const auto answer = ask(capability);
    EXPECT_EQ(answer.type, GPUMEM_ANSWER_TYPE_TRI) << capability;
    EXPECT_EQ(answer.status == GPUMEM_SUCCESS, answer.value != GPUMEM_ANSWER_NO) << capability;
    EXPECT_STRNE(answer.reason, "") << capability;
    EXPECT_STRNE(answer.reason, "not known to the host backend") << capability;
  }
}

TEST_F(HostCapability, Defaults) {
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_UVA).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS).value, GPUMEM_ANSWER_NO);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_WRITE_COMBINED).value, GPUMEM_ANSWER_EMULATED);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER).value, GPUMEM_ANSWER_NO);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PAGEABLE).value, GPUMEM_ANSWER_NO);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_DEVICE_COUNT).value, 2U);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_DEVICE_COUNT).type, GPUMEM_ANSWER_TYPE_INT);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_DEVICE_BYTES).value, 16 * kMiB);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_DEVICE_BYTES).type, GPUMEM_ANSWER_TYPE_BYTES);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_MAX_SINGLE).value, 256 * kMiB);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_MAX_COUNT).value, 65500U);
  EXPECT_GE(ask(GPUMEM_CAPABILITY_COPY_ENGINES).value, 1U);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_COPY_BATCH).value, GPUMEM_ANSWER_YES);
}

TEST_F(HostCapability, OptionsChangeTheAnswers) {
  options_.strict = GPUMEM_TOGGLE_OFF;
  options_.pageable = GPUMEM_TOGGLE_ON;
  options_.same_pointer = GPUMEM_TOGGLE_ON;
  options_.masked = "register,wait_value";
  open();
  EXPECT_FALSE(backend_->strict());
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PAGEABLE).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER).value, GPUMEM_ANSWER_YES);
  for (const gpumem_capability capability :
       {GPUMEM_CAPABILITY_PIN_REGISTER, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY,
        GPUMEM_CAPABILITY_STREAM_VALUE32, GPUMEM_CAPABILITY_STREAM_VALUE64,
        GPUMEM_CAPABILITY_STREAM_VALUE_NOR}) {
    EXPECT_EQ(ask(capability).value, GPUMEM_ANSWER_NO) << capability;
    EXPECT_EQ(ask(capability).status, GPUMEM_ERROR_SYMBOL_MISSING) << capability;
  }
}

TEST_F(HostCapability, PageLockingIsTried) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  auto answer = ask(GPUMEM_CAPABILITY_PIN_PAGE_LOCKED);
  EXPECT_EQ(answer.value, GPUMEM_ANSWER_YES) << answer.reason;
  EXPECT_EQ(answer.source, GPUMEM_ANSWER_FROM_TRIAL);
  EXPECT_EQ(locked_bytes(), 0U) << "the trial leaves nothing behind";
  {
    const LockLimit limit(0);
    answer = ask(GPUMEM_CAPABILITY_PIN_PAGE_LOCKED);
    EXPECT_EQ(answer.value, GPUMEM_ANSWER_EMULATED);
    EXPECT_NE(answer.native_code, 0);
    EXPECT_EQ(answer.status, GPUMEM_SUCCESS);
  }
  options_.lock_mode = GPUMEM_HOST_LOCK_OFF;
  open();
  answer = ask(GPUMEM_CAPABILITY_PIN_PAGE_LOCKED);
  EXPECT_EQ(answer.value, GPUMEM_ANSWER_EMULATED);
  EXPECT_EQ(answer.source, GPUMEM_ANSWER_FROM_CONFIGURATION);
}

TEST_F(HostCapability, NumaIsTriedUnlessItIsPretended) {
  const auto tried = ask(GPUMEM_CAPABILITY_PIN_NUMA);
  EXPECT_EQ(tried.source, GPUMEM_ANSWER_FROM_TRIAL);
  auto request = pinned_request(1, GPUMEM_MEMORY_NUMA_NODE);
  request.numa_node = dev().facts().numa_node;
  EXPECT_EQ(status_of(create_memory(dev(), request)), tried.status) << "the call gets what the answer says";
  if (platform::numa_node_count() >= 64) GTEST_SKIP() << "the machine has as many nodes as can be pretended";
  options_.numa_nodes = 64;
  open();
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_PIN_NUMA).value, GPUMEM_ANSWER_EMULATED);
}

TEST_F(HostCapability, PeersByDirection) {
  options_.peers = "1>0";
  open();
  EXPECT_EQ(ask_pair(GPUMEM_CAPABILITY_PEER_ACCESS, 1, 0).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask_pair(GPUMEM_CAPABILITY_PEER_ATOMICS, 1, 0).value, GPUMEM_ANSWER_YES);
  EXPECT_EQ(ask_pair(GPUMEM_CAPABILITY_PEER_ACCESS, 0, 1).value, GPUMEM_ANSWER_NO);
  EXPECT_EQ(ask_pair(GPUMEM_CAPABILITY_PEER_ACCESS, 0, 1).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(ask_pair(GPUMEM_CAPABILITY_PEER_ATOMICS, 0, 1).value, GPUMEM_ANSWER_NO);
}

TEST_F(HostCapability, ALostDeviceCanDoNothing) {
  simulation().lose(dev());
  for (const gpumem_capability capability : kTris) {
    EXPECT_EQ(ask(capability).value, GPUMEM_ANSWER_NO) << capability;
    EXPECT_EQ(ask(capability).status, GPUMEM_ERROR_DEVICE_LOST) << capability;
  }
  EXPECT_EQ(ask(GPUMEM_CAPABILITY_DEVICE_BYTES).value, 16 * kMiB);
}

TEST_F(HostCapability, TheBackend) {
  EXPECT_EQ(backend_->kind(), GPUMEM_BACKEND_HOST);
  EXPECT_EQ(backend_->driver_version(), 0);
  EXPECT_TRUE(backend_->strict());
  EXPECT_EQ(host::probe().backend, GPUMEM_BACKEND_HOST);
  EXPECT_EQ(host::probe().device_count, 2U);
  ASSERT_EQ(backend_->devices().size(), 2U);
  EXPECT_EQ(dev(1).facts().ordinal, 1U);
  EXPECT_EQ(dev(1).facts().name, "gpumem host device 1");
  EXPECT_EQ(dev(1).facts().total_bytes, 16 * kMiB);
  EXPECT_EQ(dev(1).facts().pci_id, "");
  EXPECT_NE(dev(0).facts().uuid, dev(1).facts().uuid);
}

}  // namespace
}  // namespace gpumem::test
