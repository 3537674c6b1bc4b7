// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the coverage report showed that no other test of these rules had reached.
#include <cstring>

#include "cuda_raw.h"
#include "harness.h"
#include "pools.h"

namespace conformance {
namespace {

using Gaps = Conformance;

TEST_F(Gaps, com_20_features_of_the_build) {
  for (const gpumem_feature feature :
       {GPUMEM_FEATURE_BACKEND_HOST, GPUMEM_FEATURE_MEMORY_DEVICE, GPUMEM_FEATURE_MEMORY_PINNED,
        GPUMEM_FEATURE_MEMORY_REGISTERED, GPUMEM_FEATURE_MEMORY_MANAGED, GPUMEM_FEATURE_VMM,
        GPUMEM_FEATURE_BUFFER, GPUMEM_FEATURE_POOL, GPUMEM_FEATURE_STREAM_VALUE, GPUMEM_FEATURE_COPY_FILE,
        GPUMEM_FEATURE_HOST_SIMULATION, GPUMEM_FEATURE_SHARE, GPUMEM_FEATURE_HUB, GPUMEM_FEATURE_RING}) {
    EXPECT_EQ(gpumem_feature_supported(feature), 1) << feature;
  }
  EXPECT_EQ(gpumem_feature_supported(0), 0);
  EXPECT_EQ(gpumem_feature_supported(-1), 0);
  EXPECT_EQ(gpumem_feature_supported(9999), 0);
}

TEST_F(Gaps, com_24_a_long_list_of_what_lives_is_cut) {
  Instance other = open_instance();
  std::vector<Memory> memories;
  for (int i = 0; i < 5; ++i)
    memories.push_back(alloc_device(other.device(), 4096));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(other.get(), GPUMEM_CLOSE_CHECK, nullptr, why()));
  EXPECT_NE(std::strstr(last_error().message, "and 2 more"), nullptr) << last_error().message;
  memories.clear();
}

TEST_F(Gaps, com_18_what_a_lost_device_can_do) {
  if (!on_host())
    SKIP_RULE("the fake driver's loss lasts for the process; COM-18 has a process of its own for it");
  Instance other = open_instance();
  lose(other.device());
  const gpumem_capability_info info = capability(other.device(), GPUMEM_CAPABILITY_PIN_PAGE_LOCKED);
  EXPECT_EQ(info.value, GPUMEM_ANSWER_NO);
  EXPECT_EQ(info.status, GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_STRNE(info.reason, "");
}

TEST_F(Gaps, com_18_a_native_stream_of_a_lost_device) {
  if (!on_host()) SKIP_RULE("a driver's native streams are its own");
  const Instance other = open_instance();
  const Pool pool = create_pool(other.device());
  void* native = nullptr;
  EXPECT_OK(gpumem_host_native_stream_create(other.device(), &native, why()));
  void* block = nullptr;
  EXPECT_OK(gpumem_pool_alloc_native(pool, 4096, native, &block, why()));
  lose(other.device());
  // What the pool keeps of the stream is no handle of the caller's.
  EXPECT_OK(gpumem_host_native_stream_destroy(other.device(), native, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_host_native_stream_destroy(other.device(), native, why()));
  give(pool, block);
}

// The word lies in the memory of a device that this one has no access to.
TEST_F(Gaps, str_17_a_word_out_of_reach) {
  if (second_device() == nullptr) SKIP_RULE("there is no second device");
  const Memory memory = alloc_device(second_device(), 4096);
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_stream_write_value(stream, memory.device(), 1, 4, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS,
                gpumem_stream_wait_value(stream, memory.device(), 1, 4, GPUMEM_WAIT_EQ, why()));
  stream.synchronize();
}

TEST_F(Gaps, uva_8_from_ordinary_memory_into_registered_memory) {
  const Pages pages(4 * page_size());
  const Memory registered = register_memory(device_, pages.get() + 2 * page_size(), page_size());
  fill_pattern(pages.get(), pages.size(), 3);
  std::vector<uint8_t> bytes(4 * page_size());
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_copy(instance_, bytes.data(), pages.get(), pages.size(), nullptr, why()));
  EXPECT_EQ(bytes, std::vector<uint8_t>(bytes.size()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_fill(instance_, pages.get(), pages.size(), 0, 1, why()));
  EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 3));
}

#ifdef HAVE_CUDA_HEADERS

TEST_F(Gaps, str_20_an_adopted_event) {
  if (on_host()) SKIP_RULE("the host backend has no events of other code");
  CUevent native = nullptr;
  {
    const PrimaryContext context(0);
    ASSERT_EQ(raw().cuEventCreate(&native, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  }
  gpumem_event adopted = nullptr;
  ASSERT_OK(gpumem_event_wrap(device_, native, GPUMEM_EVENT_DISABLE_TIMING, &adopted, why()));
  gpumem_event_info info = GPUMEM_EVENT_INFO_INIT;
  EXPECT_OK(gpumem_event_get_info(adopted, &info, why()));
  EXPECT_EQ(info.wrapped, 1u);
  EXPECT_EQ(info.native_event, native);
  EXPECT_EQ(info.flags, GPUMEM_EVENT_DISABLE_TIMING);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_event_record(adopted, stream, why()));
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_event_query(adopted, why()));
  stream.finish();
  EXPECT_OK(gpumem_event_synchronize(adopted, GPUMEM_TIMEOUT_INFINITE, why()));
  EXPECT_OK(gpumem_event_destroy(adopted, why()));
  // Its owner still has it.
  const PrimaryContext context(0);
  EXPECT_EQ(raw().cuEventDestroy(native), CUDA_SUCCESS);
}

TEST_F(Gaps, com_22_contexts_of_the_caller) {
  if (on_host()) SKIP_RULE("the host backend has no contexts");
  const PrimaryContext context(0);
  void* contexts[] = {context.get()};
  gpumem_cuda_options options = GPUMEM_CUDA_OPTIONS_INIT;
  options.contexts = contexts;
  options.context_count = 1;
  const Instance instance =
      open_instance([&](gpumem_instance_desc& desc, gpumem_host_options&) { desc.cuda = &options; });
  const Memory memory = alloc_device(instance.device(), 4096);
  put_pattern(instance, memory.device(), 4096, 9);
  EXPECT_TRUE(holds_pattern(instance, memory.device(), 4096, 9));
}

#endif

}  // namespace
}  // namespace conformance
