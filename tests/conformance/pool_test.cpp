// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The rules of pools (STR-10 to STR-18, STR-23, POOL).
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../asleep.h"
#include "cuda_raw.h"
#include "pools.h"
#include "vmm.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kLong = 60'000'000'000;

constexpr std::array kKinds{GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED,
                            GPUMEM_KIND_PAGEABLE};
constexpr std::array<uint64_t, 12> kSizes{
    1, 16, 17, 255, 256, 4 * kKiB, 4 * kKiB + 1, 100 * kKiB, 1 * kMiB, 1 * kMiB + 1, 3 * kMiB, 5 * kMiB + 7};

std::string report_of(gpumem_instance instance) { return text_of(instance, gpumem_stats_report); }

TEST(Pool, pool_1_blocks_are_distinct_aligned_and_hold_their_bytes) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), pool_desc(kind));
    const uint64_t alignment = kind == GPUMEM_KIND_DEVICE || kind == GPUMEM_KIND_MANAGED ? 256 : 16;
    std::map<uint64_t, uint64_t> blocks;
    for (int round = 0; round < 3; ++round) {
      for (const uint64_t size : kSizes) {
        void* const pointer = take(pool, size);
        ASSERT_NE(pointer, nullptr);
        const auto address = reinterpret_cast<uint64_t>(pointer);
        EXPECT_EQ(address % alignment, 0U) << size;
        const auto behind = blocks.lower_bound(address);
        if (behind != blocks.end()) {
          EXPECT_LE(address + size, behind->first);
        }
        if (behind != blocks.begin()) {
          EXPECT_LE(std::prev(behind)->first + std::prev(behind)->second, address);
        }
        blocks[address] = size;
      }
    }
    uint32_t seed = 1;
    for (const auto& [address, size] : blocks)
      put_pattern(instance, reinterpret_cast<void*>(address), size, seed++);
    seed = 1;
    for (const auto& [address, size] : blocks)
      EXPECT_TRUE(holds_pattern(instance, reinterpret_cast<void*>(address), size, seed++)) << size;
    EXPECT_EQ(info_of(pool).live_count, blocks.size());
    for (const auto& [address, size] : blocks)
      give(pool, reinterpret_cast<void*>(address));
    EXPECT_EQ(info_of(pool).live_count, 0U);
    EXPECT_EQ(info_of(pool).live_bytes, 0U);
    trim(pool);
    EXPECT_EQ(info_of(pool).reserved_bytes, 0U);
  }
}

TEST(Pool, pool_2_alignments_up_to_many_mebibytes) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), kind);
    for (uint64_t alignment = 1; alignment <= 8 * kMiB; alignment *= 2) {
      for (const uint64_t size : {uint64_t{1}, uint64_t{300}, 70 * kKiB, 3 * kMiB}) {
        // New ones, and ones that the thread has kept.
        std::array<void*, 4> blocks{};
        for (int round = 0; round < 2; ++round) {
          for (void*& block : blocks) {
            ASSERT_OK(gpumem_pool_alloc_aligned(pool, size, alignment, nullptr, &block, why()));
            EXPECT_EQ(reinterpret_cast<uint64_t>(block) % alignment, 0U) << size << " at " << alignment;
          }
          for (void* const block : blocks)
            give(pool, block);
        }
      }
    }
    for (const uint64_t alignment : {uint64_t{3}, uint64_t{192}, uint64_t{1} << 41, UINT64_MAX}) {
      void* kept = &instance;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    gpumem_pool_alloc_aligned(pool, 1, alignment, nullptr, &kept, why()));
      EXPECT_EQ(kept, &instance);
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    gpumem_pool_try_alloc(pool, 1, alignment, nullptr, &kept, nullptr, why()));
      EXPECT_EQ(kept, &instance);
    }
    void* none = &instance;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_pool_alloc_aligned(pool, UINT64_MAX, 256, nullptr, &none, why()));
    EXPECT_EQ(none, &instance);
  }
}

TEST(Pool, pool_3_no_bytes_are_null) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  void* pointer = &instance;
  EXPECT_OK(gpumem_pool_alloc(pool, 0, nullptr, &pointer, why()));
  EXPECT_EQ(pointer, nullptr);
  EXPECT_OK(gpumem_pool_free(pool, nullptr, nullptr, why()));
  EXPECT_EQ(info_of(pool).total_count, 0U);
}

TEST(Pool, pool_3_nothing_to_do_succeeds_in_a_host_function) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream stream = create_stream(instance.device());
  struct State {
    gpumem_instance instance;
    gpumem_pool pool;
    gpumem_stream stream;
  } state{instance, pool, stream};
  const auto function = [](void* user_data) {
    const State it = *static_cast<State*>(user_data);
    for (const gpumem_stream in : {gpumem_stream{}, it.stream}) {
      void* pointer = user_data;
      EXPECT_OK(gpumem_pool_alloc(it.pool, 0, in, &pointer, why()));
      EXPECT_EQ(pointer, nullptr);
      pointer = user_data;
      EXPECT_OK(gpumem_pool_alloc_aligned(it.pool, 0, 4096, in, &pointer, why()));
      EXPECT_EQ(pointer, nullptr);
      pointer = user_data;
      EXPECT_OK(gpumem_pool_try_alloc(it.pool, 0, 0, in, &pointer, nullptr, why()));
      EXPECT_EQ(pointer, nullptr);
      EXPECT_OK(gpumem_pool_alloc_batch(it.pool, nullptr, 0, in, nullptr, why()));
      EXPECT_OK(gpumem_pool_free(it.pool, nullptr, in, why()));
      EXPECT_OK(gpumem_pool_free_sized(it.pool, nullptr, 0, in, why()));
      EXPECT_OK(gpumem_pool_free_batch(it.pool, nullptr, 0, in, why()));
      EXPECT_OK(gpumem_pool_free_pointer(it.instance, nullptr, in, why()));
    }
    void* pointer = user_data;
    EXPECT_OK(gpumem_pool_alloc_native(it.pool, 0, nullptr, &pointer, why()));
    EXPECT_EQ(pointer, nullptr);
    EXPECT_OK(gpumem_pool_free_native(it.pool, nullptr, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_alloc(it.pool, 1, nullptr, &pointer, why()));
  };
  EXPECT_OK(gpumem_stream_launch_host_function(stream, function, &state, why()));
  stream.synchronize();
}

TEST(Pool, pool_4_mistakes_are_found) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Pool other = create_pool(instance.device());
  for (const uint64_t size : {uint64_t{512}, 3 * kMiB}) {
    SCOPED_TRACE(size);
    auto* const block = static_cast<uint8_t*>(take(pool, size));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block + 1, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block + 256, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(other, block, nullptr, why()));
    give(pool, block);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND,
                  gpumem_pool_record_use(pool, block, create_stream(instance.device()), why()));
  }
  uint8_t byte = 0;
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, &byte, nullptr, why()));
  void* kept = &byte;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_alloc(pool, UINT64_MAX, nullptr, &kept, why()));
  EXPECT_EQ(kept, &byte);
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_IMPORTED);
  gpumem_pool made = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(instance.device(), &desc, &made, why()));
  desc = pool_desc();
  desc.flags = 64;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(instance.device(), &desc, &made, why()));
  desc = pool_desc();
  desc.limit = 1;
  desc.initial_size = 2;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(instance.device(), &desc, &made, why()));
  EXPECT_EQ(made, nullptr);
}

TEST(Pool, pool_5_batches_are_all_or_none) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc();
  desc.limit = 16 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  const std::array<uint64_t, 4> sizes{100, 0, 2 * kMiB, 4 * kKiB};
  std::array<void*, 4> blocks{};
  ASSERT_OK(gpumem_pool_alloc_batch(pool, sizes.data(), sizes.size(), nullptr, blocks.data(), why()));
  EXPECT_EQ(blocks[1], nullptr);
  EXPECT_EQ(info_of(pool).live_count, 3U);
  const std::array<uint64_t, 2> large{4 * kMiB, 64 * kMiB};
  std::array<void*, 2> kept{&instance, &instance};
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED,
                gpumem_pool_alloc_batch(pool, large.data(), large.size(), nullptr, kept.data(), &detail));
  const std::string message = detail.message;
  EXPECT_EQ(message.find("sizes[1]: no block of 67108864 bytes"), 0U) << message;
  EXPECT_NE(message.find("the blocks before it are freed again"), std::string::npos) << message;
  EXPECT_EQ(kept[0], &instance);
  EXPECT_EQ(info_of(pool).live_count, 3U);
  EXPECT_OK(gpumem_pool_free_batch(pool, blocks.data(), blocks.size(), nullptr, why()));
  EXPECT_EQ(info_of(pool).live_count, 0U);
}

// The kinds that the CPU reaches at any time.
std::vector<gpumem_kind> kinds_of_the_cpu(gpumem_device device) {
  std::vector<gpumem_kind> kinds{GPUMEM_KIND_PINNED, GPUMEM_KIND_PAGEABLE};
  if (capability(device, GPUMEM_CAPABILITY_MANAGED_CONCURRENT).value == GPUMEM_ANSWER_YES)
    kinds.push_back(GPUMEM_KIND_MANAGED);
  return kinds;
}

TEST(Pool, pool_5_a_batch_that_fails_leaves_no_trace) {
  Instance instance = open_instance();
  const std::array<uint64_t, 3> sizes{1000, 4 * kMiB, 64 * kMiB};
  std::array<void*, 3> none{};
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    SCOPED_TRACE(flags);
    gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PAGEABLE, flags);
    desc.limit = 16 * kMiB;
    desc.release_threshold = 2 * kMiB;
    const Pool pool = create_pool(instance.device(), desc);
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED,
                  gpumem_pool_alloc_batch(pool, sizes.data(), sizes.size(), nullptr, none.data(), why()));
    EXPECT_EQ(info_of(pool).live_count, 0U);
    EXPECT_LE(info_of(pool).reserved_bytes, 2 * kMiB) << "the threshold counts for it too";
    // The next block, which is smaller, may begin where one of the batch did.
    auto* const block = static_cast<uint8_t*>(take(pool, 996));
    if (flags == GPUMEM_POOL_DEBUG) {
      block[996] ^= 1;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block, nullptr, why()));
      block[996] ^= 1;
    }
    give(pool, block);
  }
}

TEST(Pool, pool_6_debug_finds_what_was_overwritten) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kinds_of_the_cpu(instance.device())) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), pool_desc(kind, GPUMEM_POOL_DEBUG));
    auto* const block = static_cast<uint8_t*>(take(pool, 100));
    gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
    ASSERT_OK(gpumem_pool_get_block_info(instance, block + 99, &info, why()));
    EXPECT_EQ(info.base, block);
    EXPECT_EQ(info.requested_size, 100U);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free_sized(pool, block, 99, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block + 1, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block + 99, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block + 100, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_get_block_info(instance, block + 100, &info, why()));
    for (uint8_t* const byte : {block - 256, block - 1, block + 100, block + 355}) {
      const uint8_t before = *byte;
      *byte ^= 1;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block, nullptr, why()));
      *byte = before;
    }
    EXPECT_OK(gpumem_pool_free_sized(pool, block, 100, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block, nullptr, why()));
    void* const another = take(pool, 100);
    EXPECT_NE(another, block) << "a freed block is kept back for a while";
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_get_block_info(instance, block, &info, why()));
    // What still lives is named by the report.
    std::array<char, 1000> report{};
    EXPECT_OK(gpumem_stats_report(instance, report.data(), report.size(), nullptr, why()));
    EXPECT_NE(std::string(report.data()).find("pool tested: 1 live block"), std::string::npos)
        << report.data();
    give(pool, another);
  }
}

TEST(Pool, pool_6_debug_poisons_what_is_freed) {
  Instance instance = open_instance();
  const Stream stream = create_stream(instance.device());
  for (const gpumem_kind kind : kinds_of_the_cpu(instance.device())) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), pool_desc(kind, GPUMEM_POOL_DEBUG));
    for (const uint64_t size : {UINT64_C(1), UINT64_C(100), 3 * kMiB}) {
      // A freed block is kept back, so its memory stays.
      auto* const block = static_cast<uint8_t*>(take(pool, size));
      std::memset(block, 7, size);
      give(pool, block);
      EXPECT_EQ(std::count(block, block + size, 0xDD), static_cast<ptrdiff_t>(size));
      EXPECT_NE(block[-1], 0xDD) << "the guards stay";
      EXPECT_NE(block[size], 0xDD);
      // Work of the stream may still read it.
      auto* const ordered = static_cast<uint8_t*>(take(pool, size));
      std::memset(ordered, 7, size);
      give(pool, ordered, stream);
      EXPECT_EQ(std::count(ordered, ordered + size, 7), static_cast<ptrdiff_t>(size));
    }
  }
}

TEST(Pool, pool_6_earlier_work_of_a_stream_overwrites_nothing) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_PINNED, GPUMEM_POOL_DEBUG));
  GatedStream stream(instance.device());
  void* const first = take(pool, 1000, stream);
  ASSERT_OK(gpumem_fill_async(stream, first, 1000, 7, 1, why()));
  give(pool, first, stream);
  trim(pool, UINT64_MAX);  // it is kept back no longer
  void* const second = take(pool, 900, stream);
  stream.finish();
  give(pool, second);
  // A stream without such work finds what was overwritten.
  auto* const third = static_cast<uint8_t*>(take(pool, 100, stream));
  third[100] ^= 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, third, stream, why()));
  third[100] ^= 1;
  give(pool, third, stream);
}

TEST(Pool, pool_6_blocks_are_guarded_again_once_the_work_before_the_frees_is_complete) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_PINNED, GPUMEM_POOL_DEBUG));
  const Stream stream = create_stream(instance.device());
  for (int i = 0; i < 100; ++i)  // more than are kept back
    give(pool, take(pool, 100, stream), stream);
  void* const first = take(pool, 100, stream);  // sets a mark
  stream.synchronize();
  auto* const block = static_cast<uint8_t*>(take(pool, 100, stream));
  block[100] ^= 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block, stream, why()));
  block[100] ^= 1;
  give(pool, block, stream);
  give(pool, first, stream);
}

TEST(Pool, pool_6_str_15_a_peak_counts_no_block_that_is_free_again) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG));
  for (int i = 0; i < 500; ++i)
    give(pool, take(pool, 4 * kKiB));
  EXPECT_LT(info_of(pool).peak_live_count, 100U);
  EXPECT_LT(info_of(pool).peak_live_bytes, 800 * kKiB);
}

TEST(Pool, pool_6_the_blocks_freed_last_are_kept_back) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG));
  void* last = nullptr;
  for (int i = 0; i < 1000; ++i) {
    void* const block = take(pool, 256 * kKiB);
    EXPECT_NE(block, last) << "freed just before";
    give(pool, block);
    last = block;
  }
  EXPECT_LT(info_of(pool).reserved_bytes, 64 * kMiB) << "and none for ever";
}

TEST(Pool, pool_6_str_13_a_debug_pool_gives_back_what_it_does_not_keep_back) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG);
  desc.release_threshold = 4 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  std::vector<void*> blocks(200);
  for (void*& block : blocks)
    block = take(pool, 256 * kKiB);
  const uint64_t reserved = info_of(pool).reserved_bytes;
  for (void* const block : blocks)
    give(pool, block);
  EXPECT_LE(info_of(pool).reserved_bytes, reserved / 2);
}

TEST(Pool, pool_6_a_debug_pool_logs_the_blocks_that_nobody_freed) {
  std::vector<std::string> lines;
  const auto hear = [](void* user_data, gpumem_log_level, const char* message) {
    static_cast<std::vector<std::string>*>(user_data)->emplace_back(message);
  };
  ASSERT_OK(gpumem_log_set_function(hear, &lines, GPUMEM_LOG_WARNING, why()));
  const auto named = [&](const char* text) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const auto& line) { return line.find(text) != std::string::npos; });
  };
  Instance instance = open_instance();
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, flags));
    std::vector<void*> blocks{take(pool, 100), take(pool, 3 * kMiB)};
    give(pool, take(pool, 77));
    pool.destroy();
    EXPECT_EQ(lines.size(), flags == 0 ? 0U : 2U);
    EXPECT_EQ(named("pool tested: the block of 100 bytes at "), flags == 0 ? 0 : 1);
    EXPECT_EQ(named("pool tested: the block of 3145728 bytes at "), flags == 0 ? 0 : 1);
    for (void* const block : blocks)
      EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
  }
  lines.clear();
  {
    Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG));
    for (int i = 0; i < 35; ++i)
      (void)take(pool, 9);
    EXPECT_OK(gpumem_instance_close(instance.release(), GPUMEM_CLOSE_FORCE, nullptr, why()));
    EXPECT_EQ(named("the block of 9 bytes at "), 32);
    EXPECT_EQ(named("pool tested: 3 more blocks were not freed"), 1);
    pool.release();
  }
  EXPECT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
}

TEST(Pool, pool_7_what_never_fits_costs_nothing_that_is_free) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    gpumem_pool_desc desc = pool_desc();
    desc.kind = kind;
    desc.limit = 8 * kMiB;
    const Pool pool = create_pool(instance.device(), desc);
    give(pool, take(pool, 4 * kMiB));
    const uint64_t before = info_of(pool).reserved_bytes;
    EXPECT_GE(before, 4 * kMiB);
    void* block = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 9 * kMiB, nullptr, &block, why()));
    EXPECT_EQ(info_of(pool).reserved_bytes, before);
  }
}

TEST(Pool, pool_7_a_callback_may_free) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc();
  desc.limit = 8 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  struct State {
    gpumem_pool pool;
    void* held;
    int calls;
  } state{pool, take(pool, 7 * kMiB), 0};
  const auto callback = [](void* user_data, gpumem_pool, uint64_t) -> int32_t {
    auto* const it = static_cast<State*>(user_data);
    ++it->calls;
    void* more = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(it->pool, 6 * kMiB, nullptr, &more, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_trim(it->pool, 0, nullptr, why()));
    if (it->held == nullptr) return 0;
    give(it->pool, it->held);
    it->held = nullptr;
    return 1;
  };
  EXPECT_OK(gpumem_pool_set_callback(pool, callback, &state, why()));
  void* const block = take(pool, 7 * kMiB);
  EXPECT_EQ(state.calls, 1);
  void* more = nullptr;
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 2 * kMiB, nullptr, &more, &detail));
  EXPECT_EQ(state.calls, 2);
  EXPECT_NE(std::string(detail.message).find("would have fitted"), std::string::npos) << detail.message;
  EXPECT_NE(std::string(detail.message).find("the search ended at the callback"), std::string::npos)
      << detail.message;
  EXPECT_NE(std::string(detail.message).find("raise the limit with gpumem_pool_set_limit()"),
            std::string::npos)
      << detail.message;
  EXPECT_OK(gpumem_pool_set_callback(pool, nullptr, nullptr, why()));
  give(pool, block);
}

TEST(Pool, pool_7_a_callback_may_free_blocks_of_a_debug_pool) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG, 8 * kMiB);
  void* held = take(pool, 5 * kMiB);
  const auto callback = [](void* user_data, gpumem_pool in, uint64_t) -> int32_t {
    give(in, std::exchange(*static_cast<void**>(user_data), nullptr));
    return 1;
  };
  EXPECT_OK(gpumem_pool_set_callback(pool, callback, &held, why()));
  void* const block = take(pool, 5 * kMiB);
  EXPECT_EQ(held, nullptr);
  EXPECT_OK(gpumem_pool_set_callback(pool, nullptr, nullptr, why()));
  give(pool, block);
}

// Nor may it end the pool: the call that it serves goes on.
TEST(Pool, pool_7_com_27_a_callback_cannot_destroy_its_own_pool) {
  Instance instance = open_instance();
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    SCOPED_TRACE(flags);
    Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, flags, 8 * kMiB);
    void* held = take(pool, 5 * kMiB);
    const auto callback = [](void* user_data, gpumem_pool own, uint64_t) -> int32_t {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_destroy(own, why()));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_set_callback(own, nullptr, nullptr, why()));
      give(own, std::exchange(*static_cast<void**>(user_data), nullptr));
      return 1;
    };
    EXPECT_OK(gpumem_pool_set_callback(pool, callback, &held, why()));
    void* const block = take(pool, 5 * kMiB);
    EXPECT_NE(block, nullptr);
    EXPECT_EQ(held, nullptr);
    EXPECT_EQ(info_of(pool).live_count, 1u);
    give(pool, block);
    EXPECT_OK(gpumem_pool_destroy(pool.release(), why())) << "the callback has returned";
  }
}

// Each would wait for the callback of the other to return.
TEST(Pool, pool_7_com_27_callbacks_of_two_pools) {
  Instance instance = open_instance();
  struct Side {
    gpumem_pool other;
    std::barrier<>* both;
  };
  gpumem_pool_desc desc = pool_desc();
  desc.limit = 8 * kMiB;
  const std::array<Pool, 2> pools{create_pool(instance.device(), desc), create_pool(instance.device(), desc)};
  const auto callback = [](void* user_data, gpumem_pool, uint64_t) -> int32_t {
    const auto* const side = static_cast<const Side*>(user_data);
    side->both->arrive_and_wait();
    void* more = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED,
                  gpumem_pool_alloc(side->other, 9 * kMiB, nullptr, &more, why()));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_pool_set_callback(side->other, nullptr, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_pool_destroy(side->other, why()));
    side->both->arrive_and_wait();
    return 0;
  };
  std::barrier<> both(2);
  std::array<Side, 2> sides{Side{pools[1], &both}, Side{pools[0], &both}};
  for (size_t i = 0; i < 2; ++i)
    ASSERT_OK(gpumem_pool_set_callback(pools.at(i), callback, &sides.at(i), why()));
  const auto run = [&](size_t own) {
    void* block = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED,
                  gpumem_pool_alloc(pools.at(own), 9 * kMiB, nullptr, &block, why()));
  };
  std::thread second(run, size_t{1});
  run(0);
  second.join();
}

TEST(Pool, pool_8_other_pools_make_room) {
  Instance instance = open_instance();
  const Pool first = create_pool(instance.device());
  const Pool second = create_pool(instance.device());
  uint64_t size = 2 * kMiB;
  std::vector<void*> blocks;
  uint64_t room = 0;
  ASSERT_OK(gpumem_device_get_memory(instance.device(), &room, nullptr, why()));
  if (room > uint64_t{4} << 30) GTEST_SKIP() << "a device with so much memory takes too long to fill";
  while (true) {
    void* block = nullptr;
    if (gpumem_pool_alloc(first, size, nullptr, &block, nullptr) != GPUMEM_SUCCESS) break;
    blocks.push_back(block);
  }
  ASSERT_FALSE(blocks.empty());
  void* block = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, gpumem_pool_alloc(second, size, nullptr, &block, why()));
  for (void* const one : blocks)
    give(first, one);
  give(second, take(second, size));
  EXPECT_LT(info_of(first).reserved_bytes, blocks.size() * size);
}

// A limit of the pool is no lack of memory.
TEST(Pool, pool_8_other_pools_keep_what_cannot_help) {
  Instance instance = open_instance();
  const Pool other = create_pool(instance.device());
  give(other, take(other, 6 * kMiB));
  const uint64_t before = info_of(other).reserved_bytes;
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, 0, 8 * kMiB);
  void* const block = take(pool, 4 * kMiB);
  void* none = nullptr;
  for (const uint64_t size : {6 * kMiB, 9 * kMiB})
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, size, nullptr, &none, why()));
  EXPECT_EQ(info_of(other).reserved_bytes, before);
  give(pool, block);
}

TEST(Pool, pool_7_the_message_says_where_the_search_ended) {
  Instance instance =
      open_instance([](gpumem_instance_desc& desc, gpumem_host_options&) { desc.pin_budget = 16 * kMiB; });
  const Pool other = create_pool(instance.device(), GPUMEM_KIND_PINNED);
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_PINNED);
  void* const live = take(other, 6 * kMiB);
  const auto ended_at = [&](const char* stage) {
    void* none = nullptr;
    gpumem_error detail = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 14 * kMiB, nullptr, &none, &detail));
    EXPECT_NE(std::strstr(detail.message, (std::string("the search ended at ") + stage + ";").c_str()),
              nullptr)
        << detail.message;
  };
  ended_at("the pool's own cache");
  give(pool, take(pool, 2 * kMiB));
  ended_at("what the pool had free");
  give(other, take(other, 2 * kMiB));
  ended_at("other pools");
  give(other, live);
}

// A piece is larger than what was asked for, unless only the least fits.
TEST(Pool, pool_7_a_piece_is_as_small_as_it_must_be) {
  Instance instance =
      open_instance([](gpumem_instance_desc& desc, gpumem_host_options&) { desc.pin_budget = 16 * kMiB; });
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PINNED);
  desc.segment_size = 32 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  give(pool, take(pool, 6 * kMiB));
  EXPECT_LE(info_of(pool).reserved_bytes, 16 * kMiB);
  EXPECT_EQ(info_of(pool).peak_reserved_bytes, info_of(pool).reserved_bytes);
}

TEST(Pool, str_16_a_segment_is_smaller_where_the_limit_leaves_less) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    SCOPED_TRACE(kind);
    gpumem_pool_desc desc = pool_desc(kind);
    desc.segment_size = 6 * kMiB;
    desc.limit = 8 * kMiB;
    const Pool pool = create_pool(instance.device(), desc);
    void* const first = take(pool, 6 * kMiB);
    give(pool, take(pool, 2 * kMiB));
    give(pool, first);
  }
}

TEST(Pool, pool_8_what_a_debug_pool_keeps_back_makes_room) {
  Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 64 * kMiB; });
  uint64_t room = 0;
  ASSERT_OK(gpumem_device_get_memory(instance.device(), &room, nullptr, why()));
  if (room > 4 * kGiB) GTEST_SKIP() << "a device with so much memory takes too long to fill";
  const Pool first = create_pool(instance.device(), GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG);
  const Pool second = create_pool(instance.device());
  give(first, take(first, room / 4 * 3));
  give(second, take(second, room / 2));
  EXPECT_EQ(info_of(first).reserved_bytes, 0U);
}

// What cannot fit takes no memory from others meanwhile, and releases nothing.
TEST(Pool, pool_7_what_never_fits_is_refused_at_once) {
  Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 256 * kMiB; });
  uint64_t room = 0;
  uint64_t total = 0;
  ASSERT_OK(gpumem_device_get_memory(instance.device(), &room, &total, why()));
  const Pool other = create_pool(instance.device());
  give(other, take(other, 4 * kMiB));
  const Pool pool = create_pool(instance.device());
  give(pool, take(pool, 4 * kMiB));
  void* none = nullptr;
  gpumem_error detail = GPUMEM_ERROR_INIT;
  const gpumem_stats before = stats(instance);
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                gpumem_pool_alloc(pool, total + 2 * kMiB, nullptr, &none, &detail));
  EXPECT_NE(std::string(detail.message).find("the search ended at the device's memory"), std::string::npos)
      << detail.message;
  EXPECT_GE(info_of(pool).reserved_bytes, 4 * kMiB);
  EXPECT_GE(info_of(other).reserved_bytes, 4 * kMiB);
  EXPECT_EQ(info_of(pool).peak_reserved_bytes, info_of(pool).reserved_bytes);
  EXPECT_EQ(stats(instance).live_count, before.live_count);
  // What does not fit beside the rest is refused before it takes a piece, after all others were asked.
  if (total > 8 * kGiB || room < 128 * kMiB) return;
  const Memory rest = alloc_device(instance.device(), 64 * kMiB);
  std::atomic<bool> stop{false};
  std::atomic<int> refused{0};
  std::thread thread([&] {
    void* more = nullptr;
    while (!stop) {
      EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                    gpumem_pool_alloc(pool, total - 32 * kMiB, nullptr, &more, why()));
      ++refused;
    }
  });
  const int rounds = kSanitized ? 15 : 50;
  for (int i = 0; i < rounds || refused < rounds; ++i)
    const Memory fits = alloc_device(instance.device(), 32 * kMiB);
  stop = true;
  thread.join();
  EXPECT_EQ(info_of(other).reserved_bytes, 0U) << "released for it";
}

TEST(Pool, pool_7_a_message_says_what_others_have_and_what_would_fit) {
  Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 256 * kMiB; });
  uint64_t room = 0;
  ASSERT_OK(gpumem_device_get_memory(instance.device(), &room, nullptr, why()));
  if (room > 4 * kGiB) SKIP_RULE("so large a device is not the test's alone");
  const Memory others = alloc_device(instance.device(), 64 * kMiB);
  const Pool pool = create_pool(instance.device());
  void* const block = take(pool, 6 * kMiB);
  uint64_t total = 0;
  ASSERT_OK(gpumem_device_get_memory(instance.device(), &room, &total, why()));
  void* none = nullptr;
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                gpumem_pool_alloc(pool, room + 2 * kMiB, nullptr, &none, &detail));
  const std::string message = detail.message;
  const auto says = [&](const std::string& text) { return message.find(text) != std::string::npos; };
  EXPECT_TRUE(says("others have " + std::to_string(total - room - 6 * kMiB) + " of the device's " +
                   std::to_string(total) + " bytes, and " + std::to_string(room) + " are free"))
      << message;
  const uint64_t fits = room / (2 * kMiB) * (2 * kMiB);
  EXPECT_TRUE(says("a block of " + std::to_string(fits) + " would have fitted")) << message;
  give(pool, take(pool, fits));
  give(pool, block);
}

// Every bound that an allocation can meet, and whether the message names it.
TEST(Pool, pool_7_the_message_names_what_the_block_does_not_fit_within) {
  const auto message_of = [](gpumem_pool pool, uint64_t size, gpumem_status status) {
    void* none = nullptr;
    gpumem_error detail = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(status, gpumem_pool_alloc(pool, size, nullptr, &none, &detail));
    return std::string(detail.message);
  };
  Instance instance = open_instance([](gpumem_instance_desc& desc, gpumem_host_options& host) {
    desc.pin_budget = 8 * kMiB;
    host.device_bytes = 256 * kMiB;
  });
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), kind, 0, 4 * kMiB);
    const std::string message = message_of(pool, 6 * kMiB, GPUMEM_ERROR_LIMIT_EXCEEDED);
    EXPECT_EQ(message.find("no block of 6291456 bytes within the pool's limit: "), 0U) << message;
    EXPECT_EQ(message.find("fragmented"), std::string::npos) << message;
  }
  {
    const Pool pool = create_pool(instance.device(), GPUMEM_KIND_PINNED);
    const std::string message = message_of(pool, 16 * kMiB, GPUMEM_ERROR_LIMIT_EXCEEDED);
    EXPECT_EQ(message.find("no block of 16777216 bytes within the pin budget: "), 0U) << message;
  }
  {
    uint64_t total = 0;
    ASSERT_OK(gpumem_device_get_memory(instance.device(), nullptr, &total, why()));
    const Memory some = alloc_device(instance.device(), 2 * kMiB);
    const Pool pool = create_pool(instance.device());
    const std::string message = message_of(pool, total, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_EQ(message.find("no block of " + std::to_string(total) + " bytes within the device's memory: "),
              0U)
        << message;
  }
  // Ordinary memory has no pages before it is touched, so the system alone would refuse it only by addresses.
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_PAGEABLE);
  const std::string message = message_of(pool, uint64_t{1} << 45, GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  const bool of_group = message.find("MemAvailable in /proc/meminfo leaves") == std::string::npos;
  EXPECT_EQ(message.find(std::string("no block of 35184372088832 bytes within ") +
                         (of_group ? "the control group: " : "the host's memory: ")),
            0U)
      << message;
  EXPECT_EQ(info_of(pool).reserved_bytes, 0U);
}

TEST(Pool, pool_7_the_message_says_that_the_pool_is_fragmented) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    gpumem_pool_desc desc = pool_desc(kind);
    desc.limit = desc.initial_size = 8 * kMiB;
    const Pool pool = create_pool(instance.device(), desc);
    constexpr uint64_t kSize = 5 * kMiB / 4;
    std::array<void*, 6> blocks{};
    for (void*& block : blocks)
      block = take(pool, kSize);
    for (size_t i = 0; i < blocks.size(); i += 2)
      give(pool, blocks.at(i));
    void* none = nullptr;
    gpumem_error detail = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 3 * kMiB, nullptr, &none, &detail));
    const std::string message = detail.message;
    const gpumem_pool_info info = info_of(pool);
    EXPECT_GE(info.cached_bytes, 3 * kMiB) << message;
    EXPECT_EQ(message.find("no block of 3145728 bytes within the pool's limit: the pool is fragmented: " +
                           std::to_string(info.cached_bytes) + " bytes are free in it, but at most " +
                           std::to_string(kSize) + " in a row; the pool has 8388608 bytes of its limit"),
              0U)
        << message;
    EXPECT_NE(message.find("a block of " + std::to_string(kSize) + " would have fitted"), std::string::npos)
        << message;
    // What does not fit into all that is free either is no matter of fragmentation.
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 7 * kMiB, nullptr, &none, &detail));
    EXPECT_EQ(std::strstr(detail.message, "fragmented"), nullptr) << detail.message;
    for (size_t i = 1; i < blocks.size(); i += 2)
      give(pool, blocks.at(i));
  }
}

// Free places of busy streams that lie apart are too small as well.
TEST(Pool, pool_7_the_message_knows_the_largest_piece_whatever_stream_has_it) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PINNED);
  desc.limit = desc.initial_size = 8 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  GatedStream busy(instance.device());
  constexpr uint64_t kSize = 5 * kMiB / 4;
  std::array<void*, 6> blocks{};
  for (void*& block : blocks)
    block = take(pool, kSize, busy);
  for (size_t i = 0; i < blocks.size(); i += 2)
    give(pool, blocks.at(i), busy);
  void* none = nullptr;
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 3 * kMiB, nullptr, &none, &detail));
  EXPECT_NE(std::string(detail.message).find("at most " + std::to_string(kSize) + " in a row"),
            std::string::npos)
      << detail.message;
  busy.finish();
  for (size_t i = 1; i < blocks.size(); i += 2)
    give(pool, blocks.at(i));
}

// It is not fragmented: the pieces will join.
TEST(Pool, pool_7_the_message_names_work_of_several_streams) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PINNED);
  desc.limit = desc.initial_size = 4 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  GatedStream first(instance.device());
  GatedStream second(instance.device());
  void* const lower = take(pool, 2 * kMiB, first);
  void* const upper = take(pool, 2 * kMiB, second);
  give(pool, lower, first);
  give(pool, upper, second);
  void* none = nullptr;
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 4 * kMiB, nullptr, &none, &detail));
  EXPECT_EQ(std::strstr(detail.message, "fragmented"), nullptr) << detail.message;
  EXPECT_NE(std::strstr(detail.message, "synchronize it"), nullptr) << detail.message;
  first.finish();
  second.finish();
  give(pool, take(pool, 4 * kMiB));
}

TEST(Pool, pool_7_the_message_says_which_block_would_have_fitted) {
  Instance instance = open_instance();
  const auto fits = [](gpumem_pool pool, uint64_t size, gpumem_stream stream, gpumem_status status) {
    void* none = nullptr;
    gpumem_error detail = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(status, gpumem_pool_alloc(pool, size, stream, &none, &detail));
    const std::string message = detail.message;
    const size_t at = message.rfind(", and a block of ");
    EXPECT_NE(at, std::string::npos) << message;
    return at == std::string::npos ? 0 : std::stoull(message.substr(at + 17));
  };
  {
    // What the limit leaves, though the pool has not taken it.
    const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, 0, 16 * kMiB);
    void* const block = take(pool, 3 * kMiB);
    const uint64_t left = 16 * kMiB - info_of(pool).reserved_bytes;
    EXPECT_EQ(fits(pool, 15 * kMiB, nullptr, GPUMEM_ERROR_LIMIT_EXCEEDED), left);
    give(pool, take(pool, left));
    give(pool, block);
    // The limit counts too where the device could never have as much.
    uint64_t total = 0;
    ASSERT_OK(gpumem_device_get_memory(instance.device(), nullptr, &total, why()));
    trim(pool);
    EXPECT_EQ(fits(pool, total + 2 * kMiB, nullptr, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY), 16 * kMiB);
  }
  // A small block, wherever it lies: free in the stream, free without one, or in its chunk.
  for (const int where : {0, 1, 2}) {
    SCOPED_TRACE(where);
    const Pool pool = create_pool(instance.device(), GPUMEM_KIND_PINNED, 0, 2 * kMiB);
    GatedStream busy(instance.device());
    const gpumem_stream stream = where == 0 ? busy.get() : nullptr;
    std::vector<void*> blocks;
    void* block = nullptr;
    while (gpumem_pool_alloc(pool, 4 * kKiB, stream, &block, nullptr) == GPUMEM_SUCCESS)
      blocks.push_back(block);
    ASSERT_GT(blocks.size(), 256u);
    // Each chunk keeps a live one, or it would be free as a whole.
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i % 8 != 0) give(pool, blocks[i], stream);
    }
    if (where == 2) trim(pool, UINT64_MAX);
    EXPECT_EQ(fits(pool, 3 * kMiB, where == 2 ? nullptr : busy.get(), GPUMEM_ERROR_LIMIT_EXCEEDED), 4 * kKiB);
    busy.finish();
    for (size_t i = 0; i < blocks.size(); i += 8)
      give(pool, blocks[i], stream);
  }
}

// A native stream whose marks have passed has nothing of the pool, and one that is marked will be heard of.
TEST(Pool, pool_7_the_message_counts_only_native_streams_that_nobody_can_ask) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PINNED);
  desc.limit = 8 * kMiB;
  desc.release_threshold = kGiB;  // so that no thread keeps the block
  const Pool pool = create_pool(instance.device(), desc);
  const Stream stream = create_stream(instance.device());
  gpumem_stream_info native = GPUMEM_STREAM_INFO_INIT;
  ASSERT_OK(gpumem_stream_get_info(stream, &native, why()));
  const auto says = [&](const char* text) {
    void* none = nullptr;
    gpumem_error detail = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 9 * kMiB, nullptr, &none, &detail));
    return std::strstr(detail.message, text) != nullptr;
  };
  void* block = nullptr;
  ASSERT_OK(gpumem_pool_alloc_native(pool, 2 * kMiB, native.native_stream, &block, why()));
  EXPECT_FALSE(says("native stream")) << "nothing was freed there";
  Gate gate;
  gate.hold(stream);
  EXPECT_OK(gpumem_pool_free_native(pool, block, native.native_stream, why()));  // sets a mark
  EXPECT_FALSE(says("native stream")) << "the mark will pass";
  gate.open();
  stream.synchronize();
}

// A process whose addresses are limited, so that those of the pool are no more than the device has bytes.
TEST(Pool, pool_7_the_message_names_the_addresses) {
  if (!on_host()) SKIP_RULE("a device of the driver is larger than what the test may fill");
  if (kSanitized) SKIP_RULE("a sanitizer needs addresses of its own");
  Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 64 * kMiB; });
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const uint64_t used = [] {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }();
  gpumem_pool made = nullptr;
  for (uint64_t more = 32 * kMiB; made == nullptr && more < kGiB; more += 16 * kMiB) {
    const rlimit less{used + more, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &less), 0);
    (void)gpumem_pool_create(instance.device(), nullptr, &made, why());
    ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  }
  ASSERT_NE(made, nullptr);
  const Pool pool(made);
  std::array<void*, 4> blocks{};
  for (void*& block : blocks)
    block = take(pool, 16 * kMiB);
  give(pool, blocks[0]);
  give(pool, blocks[2]);
  void* none = nullptr;
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
                gpumem_pool_alloc(pool, 24 * kMiB, nullptr, &none, &detail));
  EXPECT_EQ(std::string(detail.message).find("no block of 25165824 bytes within the addresses that are left"),
            0U)
      << detail.message;
  give(pool, blocks[1]);
  give(pool, blocks[3]);
}

TEST(Pool, pool_9_threads_share_a_pool) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_PINNED));
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  // Each thread frees what another one has allocated, and checks that nobody else had the block.
  std::array<std::vector<uint64_t*>, kThreads> passed;
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<uint64_t*> mine = std::move(passed[static_cast<size_t>(t)]);
        for (uint64_t* const block : mine) {
          EXPECT_EQ(*block, reinterpret_cast<uint64_t>(block));
          give(pool, block);
        }
        mine.clear();
        for (int i = 0; i < kRounds; ++i) {
          auto* const block = static_cast<uint64_t*>(take(pool, 64 + static_cast<uint64_t>(i % 7) * 1000));
          *block = reinterpret_cast<uint64_t>(block);
          if (i % 3 == 0) {
            give(pool, block);
          } else {
            mine.push_back(block);
          }
        }
        passed[static_cast<size_t>(t)] = std::move(mine);
      });
    }
    for (auto& thread : threads)
      thread.join();
    std::rotate(passed.begin(), passed.begin() + 1, passed.end());
  }
  for (auto& blocks : passed) {
    for (uint64_t* const block : blocks)
      give(pool, block);
  }
  EXPECT_EQ(info_of(pool).live_count, 0U);
  trim(pool);
  EXPECT_EQ(info_of(pool).reserved_bytes, 0U) << "threads that have ended keep nothing";
}

// What a thread kept goes to the next one. There are 1,200 of them.
TEST(Pool, pool_9_a_thread_for_each_allocation_needs_no_more_memory) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  uint64_t reserved = 0;
  for (int round = 0; round < 200; ++round) {
    for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
      void* block = nullptr;
      std::thread([&] { block = take(pool, size); }).join();
      std::thread([&] { give(pool, block); }).join();
      std::thread([&] { give(pool, take(pool, size)); }).join();
    }
    if (round == 0) reserved = info_of(pool).peak_reserved_bytes;
  }
  EXPECT_EQ(info_of(pool).peak_reserved_bytes, reserved);
  EXPECT_EQ(info_of(pool).live_count, 0U);
  EXPECT_TRUE(all_goes_back(pool));
}

// A thread that only frees keeps as much as any other, and passes the rest on to the one that allocates.
TEST(Pool, pool_9_a_thread_may_outlive_a_pool_whose_blocks_it_kept) {
  Instance instance = open_instance();
  Pool first = create_pool(instance.device());
  std::promise<void> kept;
  std::promise<void> replaced;
  std::thread thread([&] {
    give(first, take(first, 4 * kKiB));
    kept.set_value();
    replaced.get_future().wait();
  });
  kept.get_future().wait();
  first.destroy();
  const Pool second = create_pool(instance.device());  // has the place of the first one
  void* const block = take(second, 4 * kKiB);
  replaced.set_value();
  thread.join();
  EXPECT_EQ(info_of(second).live_count, 1U);
  give(second, block);
  EXPECT_TRUE(all_goes_back(second));
}

TEST(Pool, pool_9_a_thread_that_only_frees_keeps_little) {
  constexpr int kRounds = 40;
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream stream = create_stream(instance.device());
  for (const gpumem_stream in : {gpumem_stream{}, stream.get()}) {
    std::array<void*, 64> small{};
    std::array<void*, 8> large{};
    std::barrier handed_over(2);
    std::thread frees([&] {
      for (int round = 0; round < kRounds; ++round) {
        handed_over.arrive_and_wait();
        for (void* const block : small)
          give(pool, block, in);
        for (void* const block : large)
          give(pool, block, in);
        handed_over.arrive_and_wait();
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      for (void*& block : small)
        block = take(pool, 4 * kKiB, in);
      for (void*& block : large)
        block = take(pool, 2 * kMiB, in);
      handed_over.arrive_and_wait();
      handed_over.arrive_and_wait();
    }
    frees.join();
  }
  // 16 MiB live, a thread keeps at most 32 MiB of larger blocks for each stream, and there is a little more.
  EXPECT_LE(info_of(pool).peak_reserved_bytes, (16 + 32 + 32 + 4) * kMiB);
  EXPECT_EQ(info_of(pool).live_count, 0U);
  EXPECT_TRUE(all_goes_back(pool));
}

// One thread allocates a row of blocks while another frees the row before.
TEST(Pool, pool_9_a_producer_and_a_consumer_need_no_more_than_what_lives) {
  constexpr size_t kRows = 300;
  constexpr std::array<uint64_t, 3> kRowSizes{256, 4 * kKiB, 64 * kKiB};
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream stream = create_stream(instance.device());
  for (const gpumem_stream in : {gpumem_stream{}, stream.get()}) {
    std::array<std::array<void*, 64>, 2> rows{};
    std::barrier handed_over(2);
    std::thread consumer([&] {
      for (size_t row = 0; row < kRows; ++row) {
        handed_over.arrive_and_wait();
        for (void* const block : rows.at(row % 2))
          give(pool, block, in);
      }
    });
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = 0; i < rows[0].size(); ++i)
        rows.at(row % 2).at(i) = take(pool, kRowSizes.at(i % kRowSizes.size()), in);
      handed_over.arrive_and_wait();
    }
    consumer.join();
  }
  // 38,400 blocks of 860 MiB in all. Two rows of 1.5 MiB live, and each of both threads keeps 0.8 MiB at most
  // for each stream.
  EXPECT_LE(info_of(pool).peak_reserved_bytes, 8 * kMiB);
  EXPECT_EQ(info_of(pool).total_count, 2 * kRows * 64);
  EXPECT_EQ(info_of(pool).live_count, 0U);
  EXPECT_TRUE(all_goes_back(pool));
}

TEST(Pool, pool_10_trim_takes_what_other_threads_keep) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  give(pool, take(pool, 4 * kKiB));
  std::thread([&] { EXPECT_NE(trim(pool), 0U); }).join();
  EXPECT_EQ(info_of(pool).reserved_bytes, 0U);
  give(pool, take(pool, 4 * kKiB));
  EXPECT_NE(info_of(pool).reserved_bytes, 0U);
}

TEST(Pool, str_10_a_block_is_used_in_its_stream_at_once) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream stream = create_stream(instance.device());
  std::vector<uint8_t> bytes(4 * kKiB);
  fill_pattern(bytes.data(), bytes.size(), 3);
  std::vector<uint8_t> back(bytes.size());
  void* const block = take(pool, bytes.size(), stream);
  EXPECT_OK(copy_on(instance, stream, block, bytes.data(), bytes.size(), nullptr, why()));
  EXPECT_OK(copy_on(instance, stream, back.data(), block, bytes.size(), nullptr, why()));
  give(pool, block, stream);
  stream.synchronize();
  EXPECT_TRUE(has_pattern(back.data(), back.size(), 3));
}

TEST(Pool, str_11_work_before_the_free_has_the_block) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    GatedStream stream(instance.device());
    std::vector<uint8_t> bytes(size);
    fill_pattern(bytes.data(), bytes.size(), 5);
    const Memory source = alloc_pinned(instance.device(), size);
    const Memory target = alloc_pinned(instance.device(), size);
    std::memcpy(source.host(), bytes.data(), size);
    void* const block = take(pool, size, stream);
    EXPECT_OK(copy_on(instance, stream, block, source.host(), size, nullptr, why()));
    EXPECT_OK(copy_on(instance, stream, target.host(), block, size, nullptr, why()));
    give(pool, block, stream);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block, stream, why()));
    gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_get_block_info(instance, block, &info, why()));
    stream.finish();
    EXPECT_TRUE(has_pattern(target.host(), size, 5));
  }
}

TEST(Pool, str_12_another_stream_gets_a_block_when_its_work_is_complete) {
  Instance instance = open_instance();
  for (const uint64_t size : {1 * kMiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    GatedStream held(instance.device());
    const Stream other = create_stream(instance.device());
    void* const block = take(pool, size, held);
    give(pool, block, held);
    EXPECT_EQ(take(pool, size, held), block) << "the same stream gets it at once";
    give(pool, block, held);
    std::set<void*> taken;
    for (int i = 0; i < 12; ++i) {
      void* const one = take(pool, size, other);
      EXPECT_NE(one, block) << "its work is not complete";
      taken.insert(one);
    }
    void* const unordered = take(pool, size);
    EXPECT_NE(unordered, block);
    held.finish();
    bool reused = false;
    for (int i = 0; i < 40 && !reused; ++i) {
      void* const one = take(pool, size, other);
      taken.insert(one);
      reused = one == block;
    }
    EXPECT_TRUE(reused);
    for (void* const one : taken)
      give(pool, one, other);
    give(pool, unordered);
    other.synchronize();
  }
}

TEST(Pool, str_12_str_15_blocks_that_change_streams_are_counted) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc();
  desc.initial_size = 16 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  const Stream first = create_stream(instance.device());
  const Stream second = create_stream(instance.device());
  std::set<void*> freed;
  std::vector<void*> taken;
  while (freed.size() < 200)
    freed.insert(take(pool, 4 * kKiB, first));
  for (void* const block : freed)
    give(pool, block, first);
  // The first search of the other stream sets the mark.
  uint64_t found = 0;
  while (taken.size() < 1000 && found == 0) {
    first.synchronize();
    taken.push_back(take(pool, 4 * kKiB, second));
    found += freed.count(taken.back());
  }
  EXPECT_EQ(found, 1u);
  EXPECT_GE(info_of(pool).cross_stream_count, 1u);
  EXPECT_LE(info_of(pool).cross_stream_count, freed.size());
  for (void* const block : taken)
    give(pool, block, second);
}

TEST(Pool, str_12_a_dependency_is_inserted_if_the_pool_may) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES);
  const Pool pool = create_pool(instance.device(), desc);
  GatedStream held(instance.device());
  Stream other = create_stream(instance.device());
  std::vector<void*> blocks;
  // All blocks of the chunk are freed in the held stream, more than a thread keeps.
  for (int i = 0; i < 16; ++i)
    blocks.push_back(take(pool, 1 * kMiB, held));
  for (void* const block : blocks)
    give(pool, block, held);
  std::vector<void*> again;
  for (int i = 0; i < 16 && info_of(pool).wait_count == 0; ++i)
    again.push_back(take(pool, 1 * kMiB, other));
  EXPECT_NE(info_of(pool).wait_count, 0U);
  EXPECT_NE(info_of(pool).cross_stream_count, 0U);
  EXPECT_NE(std::find(blocks.begin(), blocks.end(), again.back()), blocks.end());
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_synchronize(other, 1, why()));
  held.finish();
  other.synchronize();
  for (void* const block : again)
    give(pool, block, other);
}

// Its handle may have ended.
TEST(Pool, str_12_no_dependency_is_inserted_on_a_native_stream) {
  Instance instance = open_instance();
  const Pool pool =
      create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES));
  GatedStream held(instance.device());
  gpumem_stream_info native = GPUMEM_STREAM_INFO_INIT;
  ASSERT_OK(gpumem_stream_get_info(held, &native, why()));
  const Stream other = create_stream(instance.device());
  std::vector<void*> blocks(16);  // more than a thread keeps
  for (void*& block : blocks)
    ASSERT_OK(gpumem_pool_alloc_native(pool, kMiB, native.native_stream, &block, why()));
  for (void* const block : blocks)
    EXPECT_OK(gpumem_pool_free_native(pool, block, native.native_stream, why()));
  for (void*& block : blocks)
    block = take(pool, kMiB, other);
  EXPECT_EQ(info_of(pool).wait_count, 0U);
  for (void* const block : blocks)
    give(pool, block, other);
  held.finish();
}

TEST(Pool, str_12_destroyed_streams_leave_their_blocks) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  for (int i = 0; i < 50; ++i) {
    const Stream stream = create_stream(instance.device());
    for (const uint64_t size : {1 * kMiB, 3 * kMiB}) {
      void* const block = take(pool, size, stream);
      give(pool, block, stream);
    }
    stream.synchronize();
  }
  EXPECT_LE(info_of(pool).reserved_bytes, 60 * kMiB);
  EXPECT_TRUE(all_goes_back(pool));
}

// GPUMEM_STREAMS says how many.
TEST(Pool, str_12_many_streams_leave_no_memory_behind) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const char* const count = std::getenv("GPUMEM_STREAMS");
  const uint64_t streams = count != nullptr ? std::strtoull(count, nullptr, 10) : kSanitized ? 1000 : 100'000;
  void* const live = take(pool, 4 * kKiB);
  for (uint64_t i = 0; i < streams; ++i) {
    Stream stream = create_stream(instance.device());
    give(pool, take(pool, i % 2 == 0 ? 4 * kKiB : 3 * kMiB, stream), stream);
    ASSERT_OK(gpumem_stream_destroy(stream.release(), why()));
    ASSERT_LE(info_of(pool).reserved_bytes, 32 * kMiB) << "stream " << i;
  }
  give(pool, live);
  EXPECT_EQ(info_of(pool).live_count, 0U);
  EXPECT_TRUE(all_goes_back(pool));
}

TEST(Pool, str_13_memory_stays_up_to_the_threshold) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  EXPECT_EQ(info_of(pool).release_threshold, 0U) << "no limit";
  give(pool, take(pool, 8 * kMiB));
  EXPECT_GE(info_of(pool).reserved_bytes, 8 * kMiB);
  void* const live = take(pool, 2 * kMiB);
  EXPECT_NE(trim(pool, 4 * kMiB), 0U);
  const uint64_t kept = info_of(pool).reserved_bytes;
  EXPECT_LE(kept, 8 * kMiB);
  EXPECT_GE(kept, 2 * kMiB);
  EXPECT_OK(gpumem_pool_set_release_threshold(pool, 2 * kMiB, why()));
  EXPECT_EQ(info_of(pool).release_threshold, 2 * kMiB);
  give(pool, take(pool, 8 * kMiB));
  EXPECT_LE(info_of(pool).reserved_bytes, 4 * kMiB);
  put_pattern(instance, live, 2 * kMiB, 9);
  trim(pool);
  EXPECT_TRUE(holds_pattern(instance, live, 2 * kMiB, 9)) << "live blocks stay";
  // Nor is anything taken away from work.
  GatedStream stream(instance.device());
  EXPECT_OK(gpumem_pool_set_release_threshold(pool, 0, why()));
  void* const used = take(pool, 4 * kMiB, stream);
  EXPECT_OK(fill_on(instance, stream, used, 4 * kMiB, 7, 1, why()));
  give(pool, used, stream);
  trim(pool);
  EXPECT_GE(info_of(pool).reserved_bytes, 6 * kMiB);
  stream.finish();
  trim(pool);
  EXPECT_LE(info_of(pool).reserved_bytes, 4 * kMiB);
  give(pool, live);
}

TEST(Pool, str_13_a_thread_keeps_no_larger_block_beside_a_threshold) {
  const Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc();
  desc.release_threshold = 4 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  give(pool, take(pool, 4 * kKiB));  // the thread keeps it
  give(pool, take(pool, 8 * kMiB));
  EXPECT_LE(info_of(pool).reserved_bytes, 4 * kMiB);
}

TEST(Pool, str_13_a_new_threshold_counts_for_what_a_thread_keeps) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  void* const small = take(pool, 4 * kKiB);
  give(pool, take(pool, 4 * kKiB));
  give(pool, take(pool, 6 * kMiB));
  EXPECT_GE(info_of(pool).reserved_bytes, 6 * kMiB);
  EXPECT_OK(gpumem_pool_set_release_threshold(pool, kMiB, why()));
  EXPECT_LE(info_of(pool).reserved_bytes, 4 * kMiB) << "what it has kept";
  give(pool, take(pool, 4 * kKiB));  // it keeps small blocks on
  give(pool, take(pool, 6 * kMiB));
  EXPECT_LE(info_of(pool).reserved_bytes, 4 * kMiB) << "what it may keep from now on";
  give(pool, small);
}

TEST(Pool, str_13_what_goes_back_goes_back_down_to_the_low_water) {
  const Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc();
  desc.release_threshold = 32 * kMiB;
  for (const uint64_t low : {uint64_t{0}, 8 * kMiB, 32 * kMiB}) {
    SCOPED_TRACE(low);
    desc.low_water = low;
    const Pool pool = create_pool(instance.device(), desc);
    EXPECT_EQ(info_of(pool).low_water, low);
    give(pool, take(pool, 40 * kMiB));
    EXPECT_EQ(info_of(pool).reserved_bytes, low == 0 ? 32 * kMiB : low);
    // Up to the threshold nothing goes back.
    give(pool, take(pool, 24 * kMiB));
    const gpumem_pool_info before = info_of(pool);
    EXPECT_EQ(before.reserved_bytes, low == 8 * kMiB ? 24 * kMiB : 32 * kMiB);
    give(pool, take(pool, 24 * kMiB));
    EXPECT_EQ(info_of(pool).release_count, before.release_count);
    // A threshold below the low water counts for both.
    EXPECT_OK(gpumem_pool_set_release_threshold(pool, 4 * kMiB, why()));
    EXPECT_EQ(info_of(pool).reserved_bytes, 4 * kMiB);
    EXPECT_EQ(info_of(pool).low_water, low);
  }
  for (const uint64_t low : {32 * kMiB + 1, UINT64_MAX}) {
    desc.low_water = low;
    gpumem_pool made = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(instance.device(), &desc, &made, why()));
    EXPECT_EQ(made, nullptr);
  }
}

TEST(Pool, str_14_without_a_stream_a_block_is_free_at_once) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream stream = create_stream(instance.device());
  for (const uint64_t size : {1 * kMiB, 3 * kMiB}) {
    void* const block = take(pool, size, stream);
    give(pool, block);
    EXPECT_EQ(take(pool, size), block) << size;
    give(pool, block);
  }
}

TEST(Pool, str_15_statistics) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i)
    blocks.push_back(take(pool, 4 * kKiB));
  blocks.push_back(take(pool, 3 * kMiB));
  gpumem_pool_info info = info_of(pool);
  EXPECT_EQ(info.live_count, 101U);
  EXPECT_EQ(info.live_bytes, 400 * kKiB + 3 * kMiB);
  EXPECT_EQ(info.total_count, 101U);
  EXPECT_GE(info.peak_live_bytes, info.live_bytes);
  EXPECT_EQ(info.cached_bytes, info.reserved_bytes - info.live_bytes);
  EXPECT_STREQ(info.name, "tested");
  uint64_t in_classes = 0;
  for (uint32_t i = 0; i < info.class_count; ++i) {
    gpumem_pool_class_info one = GPUMEM_POOL_CLASS_INFO_INIT;
    ASSERT_OK(gpumem_pool_get_class_info(pool, i, &one, why()));
    EXPECT_GE(one.block_count, one.live_count);
    in_classes += one.live_count;
  }
  EXPECT_EQ(in_classes, 100U);
  gpumem_pool_class_info none = GPUMEM_POOL_CLASS_INFO_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pool_get_class_info(pool, info.class_count, &none, why()));
  for (void* const block : blocks)
    give(pool, block);
  EXPECT_EQ(info_of(pool).live_bytes, 0U);
  EXPECT_GE(info_of(pool).peak_live_bytes, info.live_bytes);
  EXPECT_OK(gpumem_pool_reset_peaks(pool, why()));
  EXPECT_LT(info_of(pool).peak_live_bytes, info.live_bytes);
  void* const live = take(pool, 5 * kMiB);
  give(pool, take(pool, 16 * kMiB));
  EXPECT_NE(trim(pool), 0U);
  EXPECT_GT(info_of(pool).peak_reserved_bytes, info_of(pool).reserved_bytes);
  EXPECT_OK(gpumem_pool_reset_peaks(pool, why()));
  info = info_of(pool);
  EXPECT_EQ(info.peak_reserved_bytes, info.reserved_bytes);
  EXPECT_EQ(info.peak_live_count, 1U);
  EXPECT_EQ(info.peak_live_bytes, 5 * kMiB);
  give(pool, live);
}

TEST(Pool, str_15_what_lives_is_never_less_than_nothing) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (const uint64_t size : {uint64_t{100}, 3 * kMiB}) {
    threads.emplace_back([&, size] {
      while (!stop)
        give(pool, take(pool, size));
    });
  }
  constexpr uint64_t kMany = uint64_t{1} << 62;
  for (int round = 0; round < 20'000 && !testing::Test::HasFailure(); ++round) {
    const gpumem_pool_info info = info_of(pool);
    EXPECT_LT(info.live_count, kMany);
    EXPECT_LT(info.live_bytes, kMany);
    for (uint32_t index = 0; index < info.class_count; ++index) {
      gpumem_pool_class_info in_class = GPUMEM_POOL_CLASS_INFO_INIT;
      EXPECT_OK(gpumem_pool_get_class_info(pool, index, &in_class, why()));
      EXPECT_LT(in_class.live_count, kMany);
      if (in_class.block_size >= 100) break;
    }
  }
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(info_of(pool).live_count, 0U);
}

TEST(Pool, pool_23_blocks_count_when_they_are_cut) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), kind);
    const auto in_class = [&](uint64_t size) {
      gpumem_pool_class_info one = GPUMEM_POOL_CLASS_INFO_INIT;
      for (uint32_t i = 0; one.block_size < size; ++i) {
        one = GPUMEM_POOL_CLASS_INFO_INIT;
        if (gpumem_pool_get_class_info(pool, i, &one, why()) != GPUMEM_SUCCESS) break;
      }
      EXPECT_EQ(one.block_size, size);
      return one;
    };
    EXPECT_EQ(info_of(pool).cut_count, 0U);
    give(pool, take(pool, 4 * kKiB));
    const uint64_t chunk = in_class(4 * kKiB).cut_count;
    EXPECT_GT(chunk, 1U);
    EXPECT_EQ(in_class(4 * kKiB).block_count, chunk);
    EXPECT_EQ(info_of(pool).cut_count, chunk);
    for (int round = 0; round < 20; ++round)
      give(pool, take(pool, 4 * kKiB));
    EXPECT_EQ(in_class(4 * kKiB).cut_count, chunk);
    EXPECT_EQ(in_class(4 * kKiB).total_count, 21U);
    // What is cut anew counts again.
    trim(pool);
    EXPECT_EQ(in_class(4 * kKiB).block_count, 0U);
    EXPECT_EQ(in_class(4 * kKiB).cut_count, chunk);
    void* const again = take(pool, 4 * kKiB);
    EXPECT_EQ(in_class(4 * kKiB).block_count, chunk);
    EXPECT_EQ(in_class(4 * kKiB).cut_count, 2 * chunk);
    give(pool, again);
    give(pool, take(pool, kMiB));
    const uint64_t small = 2 * chunk + in_class(kMiB).cut_count;
    EXPECT_EQ(info_of(pool).cut_count, small);

    // A larger block counts each time, unless the thread has kept it.
    for (uint64_t times = 1; times <= 3; ++times) {
      give(pool, take(pool, 16 * kMiB));
      EXPECT_EQ(info_of(pool).cut_count, small + times);
    }
    for (int round = 0; round < 3; ++round) {
      give(pool, take(pool, 3 * kMiB));
      EXPECT_EQ(info_of(pool).cut_count, small + 4);
    }
    trim(pool);
    // Also when the thread has ended.
    std::thread([&] {
      for (int round = 0; round < 3; ++round)
        give(pool, take(pool, 3 * kMiB));
    }).join();
    const gpumem_pool_info info = info_of(pool);
    EXPECT_EQ(info.cut_count, small + 5);
    EXPECT_EQ(info.total_count, 32U);
    uint64_t in_classes = 0;
    for (uint32_t i = 0; i < info.class_count; ++i) {
      gpumem_pool_class_info one = GPUMEM_POOL_CLASS_INFO_INIT;
      ASSERT_OK(gpumem_pool_get_class_info(pool, i, &one, why()));
      in_classes += one.cut_count;
    }
    EXPECT_EQ(in_classes, small);
  }
}

TEST(Pool, com_23_a_pool_counts_the_memory_that_it_has_taken) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    Pool pool = create_pool(instance.device(), pool_desc(kind));
    const auto expect_counts = [&] {
      const gpumem_stats now = stats(instance);
      EXPECT_EQ(now.live_bytes, kind != GPUMEM_KIND_PAGEABLE ? info_of(pool).reserved_bytes : 0U);
      EXPECT_EQ(now.reserved_bytes, kind_stats(instance, GPUMEM_KIND_VIRTUAL).live_bytes);
    };
    expect_counts();
    for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
      void* const block = take(pool, size);
      EXPECT_GE(info_of(pool).reserved_bytes, size);
      expect_counts();
      give(pool, block);
      expect_counts();
    }
    trim(pool);
    EXPECT_EQ(stats(instance).live_bytes, 0U);
    // It ends with the last block of a pool that is destroyed.
    void* const block = take(pool, 3 * kMiB);
    const uint64_t lives = stats(instance).live_bytes;
    pool.destroy();
    EXPECT_EQ(stats(instance).live_bytes, lives);
    EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
    EXPECT_EQ(stats(instance).live_bytes, 0U);
    EXPECT_EQ(stats(instance).reserved_bytes, 0U);
  }
}

TEST(Pool, str_15_a_peak_is_never_below_what_lived) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const auto use_three = [&] {
    std::array<void*, 3> blocks{};
    for (void*& block : blocks)
      block = take(pool, 4 * kKiB);
    for (void* const block : blocks)
      give(pool, block);
  };
  use_three();
  EXPECT_GE(info_of(pool).peak_live_count, 3U);
  EXPECT_LE(info_of(pool).peak_live_bytes, 512 * kKiB) << "with what the thread keeps";
  // Now from what the thread keeps, which the pool does not see.
  EXPECT_OK(gpumem_pool_reset_peaks(pool, why()));
  use_three();
  EXPECT_GE(info_of(pool).peak_live_count, 3U);
  EXPECT_GE(info_of(pool).peak_live_bytes, 12 * kKiB);
  // When threads keep nothing, it is exact.
  trim(pool);
  EXPECT_OK(gpumem_pool_reset_peaks(pool, why()));
  EXPECT_EQ(info_of(pool).peak_live_count, 0U);
  EXPECT_EQ(info_of(pool).peak_live_bytes, 0U);
}

// The growth fails, but what it got before suffices together with the block that debug mode had kept back.
TEST(Pool, str_15_a_peak_counts_what_a_failed_growth_has_taken) {
  Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 64 * kMiB; });
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG);
  give(pool, take(pool, 3 * kMiB / 2));
  uint64_t room = 0;
  ASSERT_OK(gpumem_device_get_memory(instance.device(), &room, nullptr, why()));
  if (room > uint64_t{4} << 30)
    SKIP_RULE("all but 4 MiB of the device is to be taken, and so large a device is not the test's alone");
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = room - 4 * kMiB;
  const Memory rest = create_memory(instance.device(), desc);
  give(pool, take(pool, 5 * kMiB));
  const gpumem_pool_info info = info_of(pool);
  EXPECT_EQ(info.reserved_bytes, 6 * kMiB);
  EXPECT_EQ(info.peak_reserved_bytes, info.reserved_bytes);
}

TEST(Pool, str_15_larger_blocks_that_a_thread_keeps_are_free) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), pool_desc(kind));
    std::vector<void*> blocks;
    for (int i = 0; i < 14; ++i)
      blocks.push_back(take(pool, i % 2 == 0 ? 2 * kMiB : 3 * kMiB - 1));
    EXPECT_EQ(info_of(pool).live_count, 14U);
    EXPECT_EQ(info_of(pool).live_bytes, 35 * kMiB);
    for (void* const block : blocks) {
      give(pool, block);
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block, nullptr, why()));
      gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_get_block_info(instance, block, &info, why()));
    }
    EXPECT_EQ(info_of(pool).live_count, 0U);
    EXPECT_EQ(info_of(pool).live_bytes, 0U);
    // Each is served once, and only to its own size.
    std::set<void*> taken;
    for (int i = 0; i < 14; ++i) {
      void* const block = take(pool, i % 2 == 0 ? 2 * kMiB : 3 * kMiB);
      EXPECT_TRUE(taken.insert(block).second);
      gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
      EXPECT_OK(gpumem_pool_get_block_info(instance, block, &info, why()));
      EXPECT_EQ(info.usable_size, i % 2 == 0 ? 2 * kMiB : 3 * kMiB);
    }
    EXPECT_EQ(info_of(pool).live_bytes, 35 * kMiB);
    EXPECT_EQ(info_of(pool).total_count, 28U);
    EXPECT_EQ(info_of(pool).total_bytes, 70 * kMiB);
    for (void* const block : taken)
      give(pool, block);
    // In a range there is room, unless the thread holds on to what it keeps.
    if (kind == GPUMEM_KIND_DEVICE && !on_host()) {
      const uint64_t reserved = info_of(pool).reserved_bytes;
      give(pool, take(pool, 30 * kMiB));
      EXPECT_EQ(info_of(pool).reserved_bytes, reserved);
    }
    (void)trim(pool);
    EXPECT_EQ(info_of(pool).reserved_bytes, 0U);
    EXPECT_EQ(info_of(pool).live_count, 0U);
    EXPECT_EQ(info_of(pool).live_bytes, 0U);
    // With a threshold nothing is kept back.
    EXPECT_OK(gpumem_pool_set_release_threshold(pool, kMiB, why()));
    give(pool, take(pool, 2 * kMiB));
    EXPECT_EQ(info_of(pool).reserved_bytes, 0U);
  }
}

TEST(Pool, str_16_blocks_outlive_their_pool) {
  Instance instance = open_instance();
  const gpumem_stats before = stats(instance);
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    Pool pool = create_pool(instance.device());
    void* const block = take(pool, size);
    gpumem_pool const gone = pool;
    pool.destroy();
    void* none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_pool_alloc(gone, 1, nullptr, &none, why()));
    EXPECT_STATUS(GPUMEM_ERROR_STALE_HANDLE, gpumem_pool_free(gone, block, nullptr, why()));
    put_pattern(instance, block, size, 4);
    EXPECT_TRUE(holds_pattern(instance, block, size, 4));
    gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
    EXPECT_OK(gpumem_pool_get_block_info(instance, block, &info, why()));
    EXPECT_EQ(info.pool, nullptr);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_pool_free_pointer(instance, static_cast<uint8_t*>(block) + 1, nullptr, why()));
    EXPECT_NE(stats(instance).live_count, before.live_count);
    const Instance other = open_instance();
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free_pointer(other, block, nullptr, why()));
    EXPECT_NE(std::string(last_error().message).find("is memory of another instance"), std::string::npos);
    EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free_pointer(instance, block, nullptr, why()));
    EXPECT_EQ(stats(instance).live_count, before.live_count) << "the memory goes back with the last block";
  }
}

TEST(Pool, str_16_what_a_destroyed_pool_has_free_waits_for_no_live_block) {
  if (!on_host() && !on_fake_cuda()) GTEST_SKIP() << "others use the device's memory too";
  Instance instance = open_instance();
  const uint64_t before = free_bytes(instance.device());
  Pool pool = create_pool(instance.device());
  const Stream stream = create_stream(instance.device());
  void* const live = take(pool, 4 * kKiB);
  std::vector<void*> blocks(32);
  for (void*& block : blocks)
    block = take(pool, 256 * kKiB, stream);
  blocks.push_back(take(pool, 32 * kMiB, stream));
  for (void* const block : blocks)
    give(pool, block, stream);
  stream.synchronize();
  pool.destroy();
  EXPECT_LE(before - free_bytes(instance.device()), 4 * kMiB);
  EXPECT_OK(gpumem_pool_free_pointer(instance, live, nullptr, why()));
  EXPECT_EQ(free_bytes(instance.device()), before);
}

// What the strict host backend refuses to take away goes back later.
TEST(Pool, str_16_memory_of_a_destroyed_pool_goes_back_later) {
  if (!on_host()) SKIP_RULE("only the strict host backend refuses to free what nobody has observed complete");
  enum class By { kFree, kNewPool, kClose };
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    for (const By by : {By::kFree, By::kNewPool, By::kClose}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(static_cast<int>(by));
      Instance instance = open_instance();
      const gpumem_stats before = stats(instance);
      {
        const Stream stream = create_stream(instance.device());
        Pool pool = create_pool(instance.device());
        void* const block = take(pool, size);
        EXPECT_OK(fill_on(instance, stream, block, size, 6, 1, why()));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        pool.destroy();
        EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
        EXPECT_NE(stats(instance).live_count, before.live_count) << "nobody has observed the fill";
        EXPECT_NE(report_of(instance).find("of a destroyed pool, and in use"), std::string::npos)
            << report_of(instance);
        stream.synchronize();
        if (by == By::kFree) {
          EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free_pointer(instance, block, nullptr, why()));
        } else if (by == By::kNewPool) {
          create_pool(instance.device());
        }
        if (by != By::kClose) {
          EXPECT_EQ(stats(instance).live_count, before.live_count);
        }
      }
      EXPECT_OK(gpumem_instance_close(instance.release(), GPUMEM_CLOSE_CHECK, nullptr, why()));
    }
  }
}

// Takes a block of a pool that has room for only one of this size.
void* take_the_only(gpumem_pool pool, uint64_t size) {
  void* const block = take(pool, size);
  void* kept = &kept;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, size, nullptr, &kept, why()));
  EXPECT_EQ(kept, &kept);
  EXPECT_LE(info_of(pool).reserved_bytes, info_of(pool).limit);
  return block;
}

TEST(Pool, str_16_a_limit_holds) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    gpumem_pool_desc desc = pool_desc(kind);
    desc.limit = 4 * kMiB;
    const Pool pool = create_pool(instance.device(), desc);
    void* const block = take_the_only(pool, 3 * kMiB);
    EXPECT_EQ(info_of(pool).limit, 4 * kMiB);
    EXPECT_OK(gpumem_pool_set_limit(pool, 8 * kMiB, why()));
    void* const more = take(pool, 3 * kMiB);
    EXPECT_LE(info_of(pool).reserved_bytes, 8 * kMiB);
    give(pool, more);
    give(pool, block);
  }
}

// Classes of blocks up to 1 MiB take memory for several at once, if there is room for that.
TEST(Pool, str_16_what_is_below_the_limit_fits) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    for (const uint64_t limit : {2 * kMiB, 4 * kMiB}) {
      const Pool pool = create_pool(instance.device(), kind, 0, limit);
      for (uint64_t size = 64 * kKiB; size <= limit; size += size < kMiB ? 72 * kKiB + 1 : kMiB) {
        SCOPED_TRACE(std::to_string(kind) + ", " + std::to_string(size) + " of " + std::to_string(limit));
        std::vector<void*> blocks;
        // As many as one piece has room for, with what they are rounded up by.
        const uint64_t most = std::max(uint64_t{1}, 2 * kMiB / (size + size / 8 + 64 * kKiB));
        while (blocks.size() < most) {
          blocks.push_back(take(pool, size));
          gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
          EXPECT_OK(gpumem_pool_get_block_info(instance, blocks.back(), &info, why()));
          EXPECT_LE(info.usable_size, size <= kMiB ? size * 9 / 8 : size + 64 * kKiB - 1);
        }
        EXPECT_LE(info_of(pool).reserved_bytes, limit);
        for (void* const block : blocks)
          give(pool, block);
        trim(pool);
      }
    }
  }
}

TEST(Pool, str_16_an_initial_size_stays_below_the_limit) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    gpumem_pool_desc desc = pool_desc(kind);
    desc.limit = desc.initial_size = 3 * kMiB + 5;
    const Pool pool = create_pool(instance.device(), desc);
    const uint64_t taken = info_of(pool).reserved_bytes;
    EXPECT_GE(taken, 2 * kMiB);
    EXPECT_LE(taken, desc.limit);
    const Pool fitting = create_pool(instance.device(), [&] {
      desc.initial_size = desc.limit = 4 * kMiB;
      return desc;
    }());
    EXPECT_EQ(info_of(fitting).reserved_bytes, 4 * kMiB);
  }
}

TEST(Pool, pool_18_a_pool_of_the_capacity_serves_the_sizes_and_takes_no_more) {
  Instance instance = open_instance();
  std::vector<uint64_t> sizes{0};
  for (const uint64_t size : kSizes)
    sizes.insert(sizes.end(), size < kMiB ? 13 : 2, size);
  const auto capacity_for = [](gpumem_pool pool, const std::vector<uint64_t>& wanted) {
    uint64_t bytes = 1;
    EXPECT_OK(gpumem_pool_capacity_for(pool, wanted.data(), wanted.size(), &bytes, why()));
    return bytes;
  };
  for (const gpumem_kind kind : kKinds) {
    for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, gpumem_pool_flags{GPUMEM_POOL_DEBUG}}) {
      SCOPED_TRACE(std::to_string(kind) + (flags != 0 ? " debug" : ""));
      gpumem_pool_desc desc = pool_desc(kind);
      desc.flags = flags;
      const Pool probe = create_pool(instance.device(), desc);
      EXPECT_EQ(capacity_for(probe, {}), 0U);
      EXPECT_EQ(capacity_for(probe, {0}), 0U);
      // Of a whole number of pieces of any kind, nothing is lost.
      if (flags == 0) {
        EXPECT_EQ(capacity_for(probe, {4 * kMiB}), 4 * kMiB);
      } else {
        EXPECT_GT(capacity_for(probe, {4 * kMiB}), 4 * kMiB) << "and the guards";
      }
      const uint64_t capacity = capacity_for(probe, sizes);
      EXPECT_GT(capacity, std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}));
      EXPECT_EQ(info_of(probe).reserved_bytes, 0U) << "asking takes nothing";
      desc.initial_size = desc.limit = capacity;
      for (const bool largest_first : {false, true}) {
        const Pool pool = create_pool(instance.device(), desc);
        EXPECT_EQ(info_of(pool).reserved_bytes, capacity);
        std::vector<uint64_t> wanted = sizes;
        if (largest_first) std::reverse(wanted.begin(), wanted.end());
        std::vector<void*> blocks(wanted.size());
        for (size_t i = 0; i < wanted.size(); ++i)
          EXPECT_OK(gpumem_pool_alloc(pool, wanted[i], nullptr, &blocks[i], why())) << wanted[i];
        EXPECT_EQ(info_of(pool).reserved_bytes, capacity);
        EXPECT_EQ(info_of(pool).grow_count, 1U);
        EXPECT_EQ(capacity_for(pool, sizes), capacity) << "also of a pool that is full";
        EXPECT_OK(gpumem_pool_free_batch(pool, blocks.data(), blocks.size(), nullptr, why()));
      }
    }
  }
}

TEST(Pool, pool_18_wrong_sizes_have_no_capacity) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE));
  constexpr uint64_t kMost = INT64_MAX;
  const std::array<uint64_t, 3> sizes{1, kMost, 1};
  uint64_t bytes = 77;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pool_capacity_for(nullptr, sizes.data(), 1, &bytes, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_capacity_for(pool, nullptr, 1, &bytes, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pool_capacity_for(pool, sizes.data(), 1, nullptr, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pool_capacity_for(pool, sizes.data(), 3, &bytes, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pool_capacity_for(pool, sizes.data(), UINT64_MAX, &bytes, why()));
  const std::array<uint64_t, 2> above{1, kMost + 1};
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pool_capacity_for(pool, above.data(), 2, &bytes, why()));
  EXPECT_NE(std::strstr(last_error().message, "sizes[1]"), nullptr) << last_error().message;
  const std::vector<uint64_t> many(5, kMost / 2);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_pool_capacity_for(pool, many.data(), many.size(), &bytes, why()));
  EXPECT_EQ(bytes, 77U) << "nothing was written";
  EXPECT_OK(gpumem_pool_capacity_for(pool, nullptr, 0, &bytes, why()));
  EXPECT_EQ(bytes, 0U);
}

// No time plays a part: without streams a block is free at once. Holes below 2 MiB cannot go back to the
// driver.
TEST(Pool, pool_16_holes_are_used_again_or_go_back) {
  constexpr uint64_t kBytes = 160 * kMiB;
  Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 256 * kMiB; });
  struct Block {
    void* pointer;
    uint64_t size;
  };
  struct Load {
    gpumem_pool pool;
    std::vector<Block> blocks;
    uint64_t live = 0;
    uint64_t peak = 0;
    void fill_with(uint64_t size) {
      while (live + size <= kBytes) {
        blocks.push_back({take(pool, size), size});
        live += size;
      }
      peak = std::max(peak, live);
    }
    void keep_each(size_t step) {
      std::vector<Block> kept;
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (i % step == 0) {
          kept.push_back(blocks[i]);
        } else {
          give(pool, blocks[i].pointer);
          live -= blocks[i].size;
        }
      }
      blocks = std::move(kept);
    }
  };
  const std::array<void (*)(Load&), 4> patterns{
      [](Load& load) {  // all goes, and larger blocks come
        for (uint64_t size = 3 * kMiB / 2; size <= 40 * kMiB; size = size * 3 / 2) {
          load.fill_with(size);
          load.keep_each(SIZE_MAX);
          load.keep_each(SIZE_MAX);
        }
      },
      [](Load& load) {  // every second goes
        for (uint64_t size = 4 * kMiB; size <= 16 * kMiB; size *= 2) {
          load.fill_with(size);
          load.keep_each(2);
        }
      },
      [](Load& load) {  // few stay, and large ones come
        load.fill_with(5 * kMiB);
        load.keep_each(16);
        load.fill_with(24 * kMiB);
        load.fill_with(kMiB);
      },
      [](Load& load) {  // just above powers of two
        for (uint64_t size = 32 * kMiB; size >= 2 * kMiB; size /= 2)
          load.fill_with(size + 1);
        load.keep_each(3);
        for (uint64_t size = 16 * kMiB; size >= 2 * kMiB; size /= 2)
          load.fill_with(size + 1);
      },
  };
  for (size_t i = 0; i < patterns.size(); ++i) {
    SCOPED_TRACE(i);
    const Pool pool = create_pool(instance.device());
    void* none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                  gpumem_pool_alloc(pool, uint64_t{1} << 50, nullptr, &none, why()))
        << "and does not count";
    Load load{pool, {}};
    patterns[i](load);
    EXPECT_GT(load.peak, kBytes * 7 / 8);
    EXPECT_LE(info_of(pool).peak_reserved_bytes, load.peak / 8 * 9);
    for (const Block& block : load.blocks)
      give(pool, block.pointer);
  }
}

// Blocks with holes between them, and then some that are too large for the holes.
class WithHoles {
 public:
  static constexpr uint64_t kPeak = 160 * kMiB;
  static constexpr uint64_t kSize = 4 * kMiB;
  static constexpr uint64_t kWider = 9 * kMiB / 2;
  static Instance open() {
    return open_instance(
        [](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 256 * kMiB; });
  }
  WithHoles(gpumem_instance instance, gpumem_pool pool, gpumem_stream stream)
      : instance_(instance), pool_(pool), stream_(stream) {
    std::vector<void*> holes;
    for (uint64_t i = 0; i < kPeak / kSize / 2; ++i) {
      add(kSize);
      holes.push_back(take(pool, kSize, stream));
      EXPECT_OK(fill_on(instance, stream, holes.back(), kSize, 0xEE, 1, why()));
    }
    for (void* const hole : holes)
      give(pool, hole, stream);
  }
  WithHoles(const WithHoles&) = delete;
  WithHoles& operator=(const WithHoles&) = delete;
  ~WithHoles() {
    for (const auto& [block, size] : blocks_)
      give(pool_, block, stream_);
  }
  void add(uint64_t size = kWider) {
    blocks_.emplace_back(take(pool_, size, stream_), size);
    EXPECT_OK(fill_on(instance_, stream_, blocks_.back().first, size, static_cast<uint32_t>(blocks_.size()),
                      1, why()));
  }
  // The work in the stream is complete.
  void expect_content() const {
    for (size_t i = 0; i < blocks_.size(); ++i)
      EXPECT_TRUE(
          holds_only(instance_, blocks_[i].first, blocks_[i].second, static_cast<unsigned char>(i + 1)))
          << i;
  }

 private:
  gpumem_instance instance_;
  gpumem_pool pool_;
  gpumem_stream stream_;
  std::vector<std::pair<void*, uint64_t>> blocks_;
};

// To move a piece costs driver calls: a little more memory is taken before.
TEST(Pool, pool_16_holes_move_only_if_much_more_would_be_taken) {
  Instance instance = WithHoles::open();
  const Pool pool = create_pool(instance.device());
  WithHoles blocks(instance, pool, nullptr);
  blocks.add();
  EXPECT_GT(info_of(pool).reserved_bytes, WithHoles::kPeak);
  for (int i = 0; i < 8; ++i)
    blocks.add();
  EXPECT_LE(info_of(pool).peak_reserved_bytes, WithHoles::kPeak / 16 * 17);
  EXPECT_EQ(info_of(pool).release_count, 0U);
  blocks.expect_content();
}

// Nothing that the stream does next can come before the work that still uses the holes.
TEST(Pool, pool_16_holes_move_while_the_work_of_their_stream_runs) {
  Instance instance = WithHoles::open();
  const Pool pool = create_pool(instance.device());
  GatedStream busy(instance.device());
  const uint64_t before = free_bytes(instance.device());
  {
    WithHoles blocks(instance, pool, busy);
    for (int i = 0; i < 9; ++i)
      blocks.add();
    EXPECT_LE(info_of(pool).peak_reserved_bytes, WithHoles::kPeak / 16 * 17);
    busy.finish();
    blocks.expect_content();
  }
  EXPECT_TRUE(all_goes_back(pool));
  if (on_host() || on_fake_cuda()) {
    EXPECT_EQ(free_bytes(instance.device()), before) << "nothing is mapped any more";
  }
}

// Where holes have moved to, other streams get what is left only once the work that used them is complete.
TEST(Pool, pool_16_holes_that_moved_keep_their_order) {
  Instance instance = WithHoles::open();
  const Pool pool = create_pool(instance.device());
  GatedStream busy(instance.device());
  const Stream other = create_stream(instance.device());
  WithHoles blocks(instance, pool, busy);
  for (int i = 0; i < 9; ++i)
    blocks.add();
  EXPECT_LE(info_of(pool).peak_reserved_bytes, WithHoles::kPeak / 16 * 17);
  constexpr uint64_t kSize = 5 * kMiB / 4;
  std::array<void*, 12> others{};
  for (void*& block : others) {
    block = take(pool, kSize, other);
    EXPECT_OK(fill_on(instance, other, block, kSize, 0x77, 1, why()));
  }
  EXPECT_OK(gpumem_stream_synchronize(other, GPUMEM_TIMEOUT_INFINITE, why()));
  busy.finish();
  blocks.expect_content();
  for (void* const block : others) {
    EXPECT_TRUE(holds_only(instance, block, kSize, 0x77));
    give(pool, block, other);
  }
}

// Whoever has imported a piece keeps its memory, so nothing else may lie there.
TEST(Pool, pool_16_pieces_that_can_be_exported_are_released_instead) {
  Instance instance = WithHoles::open();
  gpumem_pool_desc desc = pool_desc();
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  const Pool pool = create_pool(instance.device(), desc);
  WithHoles blocks(instance, pool, nullptr);
  for (int i = 0; i < 9; ++i)
    blocks.add();
  EXPECT_LE(info_of(pool).peak_reserved_bytes, WithHoles::kPeak / 16 * 17);
  EXPECT_GT(info_of(pool).release_count, 0U);
  blocks.expect_content();
}

// A limit that leaves room only where the holes are.
TEST(Pool, pool_16_holes_move_within_a_limit) {
  Instance instance = WithHoles::open();
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, 0, WithHoles::kPeak);
  GatedStream busy(instance.device());
  WithHoles blocks(instance, pool, busy);
  for (int i = 0; i < 16; ++i)
    blocks.add();
  EXPECT_EQ(info_of(pool).reserved_bytes, WithHoles::kPeak);
  busy.finish();
  blocks.expect_content();
}

// Chunks of small blocks too, if all of their blocks are free in the stream.
TEST(Pool, pool_16_small_blocks_that_work_still_uses_make_room_in_their_stream) {
  Instance instance = WithHoles::open();
  const Pool pool = create_pool(instance.device());
  GatedStream busy(instance.device());
  std::vector<void*> blocks(96);
  for (void*& block : blocks) {
    block = take(pool, 256 * kKiB, busy);
    EXPECT_OK(fill_on(instance, busy, block, 256 * kKiB, 0xEE, 1, why()));
  }
  const uint64_t reserved = info_of(pool).reserved_bytes;
  for (size_t i = 1; i < blocks.size(); ++i)
    give(pool, blocks[i], busy);
  void* const large = take(pool, 20 * kMiB, busy);
  EXPECT_OK(fill_on(instance, busy, large, 20 * kMiB, 1, 1, why()));
  EXPECT_EQ(info_of(pool).reserved_bytes, reserved);
  busy.finish();
  EXPECT_TRUE(holds_only(instance, large, 20 * kMiB, 1));
  EXPECT_TRUE(holds_only(instance, blocks[0], 256 * kKiB, 0xEE));
  give(pool, large, busy);
  give(pool, blocks[0], busy);
}

// What is left of such a chunk serves all once that work is complete.
TEST(Pool, pool_16_what_is_left_of_small_blocks_goes_back) {
  Instance instance = WithHoles::open();
  const Pool pool = create_pool(instance.device());
  GatedStream busy(instance.device());
  std::vector<void*> blocks(96);
  for (void*& block : blocks)
    block = take(pool, 256 * kKiB, busy);
  const uint64_t reserved = info_of(pool).reserved_bytes;
  for (void* const block : blocks)
    give(pool, block, busy);
  trim(pool, UINT64_MAX);  // sets the mark of these frees
  void* const large = take(pool, 20 * kMiB, busy);
  EXPECT_EQ(info_of(pool).reserved_bytes, reserved);
  busy.finish();
  give(pool, take(pool, 30 * kMiB));  // takes notice of the marks
  give(pool, large);                  // a free in the stream would set another one
  EXPECT_TRUE(all_goes_back(pool));
}

// A thread keeps 8 blocks of a class however large they are, and they are no reason to take more memory.
TEST(Pool, pool_16_small_blocks_that_a_thread_keeps_make_room) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), kind);
    std::array<void*, 8> blocks{};
    for (void*& block : blocks)
      block = take(pool, kMiB);
    for (void* const block : blocks)
      give(pool, block);
    const uint64_t grown = info_of(pool).grow_count;
    // A larger block, and a smaller one whose class has none. In a stream it would depend on whether that has
    // passed the frees a moment later.
    void* const large = take(pool, 3 * kMiB);
    void* const small = take(pool, kMiB / 2);
    EXPECT_EQ(info_of(pool).grow_count, grown);
    give(pool, small);
    give(pool, large);
  }
}

TEST(Pool, str_16_a_limit_below_one_piece_is_named) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    for (const uint64_t limit : {uint64_t{1}, 32 * kKiB}) {
      SCOPED_TRACE(limit);
      gpumem_pool_desc desc = pool_desc(kind);
      desc.limit = limit;
      desc.initial_size = limit == 1 ? 1 : 0;
      const Pool pool = create_pool(instance.device(), desc);
      for (const uint64_t size : {uint64_t{1}, uint64_t{64}, 3 * kMiB}) {
        void* none = &instance;
        gpumem_error detail = GPUMEM_ERROR_INIT;
        EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, size, nullptr, &none, &detail));
        EXPECT_EQ(none, &instance);
        const std::string message = detail.message;
        const std::string named = limit == 1 ? "limit of 1 byte is" : "limit of 32768 bytes is";
        EXPECT_NE(message.find(named + " below one piece"), std::string::npos) << message;
        EXPECT_NE(message.find("no block would have fitted"), std::string::npos) << message;
        if (size < kMiB) continue;
        // What it advises is enough.
        const size_t advised = message.find("raise it to ");
        ASSERT_NE(advised, std::string::npos) << message;
        const char* const number = message.c_str() + advised + std::strlen("raise it to ");
        const uint64_t enough = std::strtoull(number, nullptr, 10);
        ASSERT_GE(enough, size) << message;
        EXPECT_OK(gpumem_pool_set_limit(pool, enough, why()));
        give(pool, take(pool, size));
        EXPECT_OK(gpumem_pool_set_limit(pool, limit, why()));
        EXPECT_OK(gpumem_pool_trim(pool, 0, nullptr, why()));
      }
      EXPECT_EQ(info_of(pool).reserved_bytes, 0U);
      EXPECT_OK(gpumem_pool_set_limit(pool, kind == GPUMEM_KIND_DEVICE ? 2 * kMiB : 64 * kKiB, why()));
      give(pool, take(pool, 64));
    }
  }
}

TEST(Pool, str_18_pool_memory_is_told_apart) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), pool_desc(kind));
    for (const uint64_t size : {uint64_t{4096}, 3 * kMiB}) {
      auto* const block = static_cast<uint8_t*>(take(pool, size));
      const gpumem_pointer_info info = pointer_info(instance, block + 100);
      EXPECT_EQ(info.kind, GPUMEM_KIND_POOL);
      EXPECT_EQ(info.base, block);
      EXPECT_EQ(info.size, size);
      EXPECT_EQ(info.memory, nullptr);
      EXPECT_EQ(info.buffer, nullptr);
      EXPECT_EQ(info.location, kind == GPUMEM_KIND_DEVICE ? GPUMEM_LOCATION_DEVICE : GPUMEM_LOCATION_HOST);
      EXPECT_EQ(device_access(instance, block, 0), GPUMEM_ACCESS_READWRITE);
      EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_free(instance, block, why()));
      EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_unregister(instance, block, why()));
      EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_register(instance.device(), block, 16, 0, why()));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, fill_on(instance, nullptr, block, size + 1, 1, 1, why()));
      EXPECT_OK(fill_on(instance, nullptr, block, size, 1, 1, why()));
      gpumem_pool_block_info owner = GPUMEM_POOL_BLOCK_INFO_INIT;
      EXPECT_OK(gpumem_pool_get_block_info(instance, block + 1, &owner, why()));
      EXPECT_EQ(owner.pool, pool.get());
      EXPECT_EQ(owner.base, block);
      EXPECT_EQ(owner.usable_size, size);
      give(pool, block);
      EXPECT_NE(pointer_info(instance, block).kind, GPUMEM_KIND_POOL);
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, fill_on(instance, nullptr, block, 16, 1, 1, why()));
    }
  }
}

TEST(Pool, str_18_a_stream_needs_access_to_the_memory) {
  Instance instance = open_instance();
  if (instance.device_count() < 2) SKIP_RULE("needs two devices");
  const Stream stream = create_stream(instance.device(1));
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    const auto refused = [&] {
      void* kept = &instance;
      gpumem_error detail = GPUMEM_ERROR_INIT;
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_pool_alloc(pool, size, stream, &kept, &detail));
      EXPECT_NE(std::string(detail.message).find("gpumem_pool_create()"), std::string::npos);
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS,
                    gpumem_pool_alloc_aligned(pool, size, 4 * kKiB, stream, &kept, why()));
      EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_pool_alloc_batch(pool, &size, 1, stream, &kept, why()));
      EXPECT_EQ(kept, &instance);
    };
    refused();
    give(pool, take(pool, size), stream);
    refused();  // nor does it get what was freed in its order
    gpumem_pool_desc desc = pool_desc();
    gpumem_access_desc access = GPUMEM_ACCESS_DESC_INIT;
    access.location = GPUMEM_LOCATION_DEVICE;
    access.location_id = 1;
    access.access = GPUMEM_ACCESS_READWRITE;
    desc.accesses = &access;
    desc.access_count = 1;
    gpumem_pool made = nullptr;
    const gpumem_status status = gpumem_pool_create(instance.device(), &desc, &made, nullptr);
    if (status != GPUMEM_ERROR_UNSUPPORTED) {  // no link
      ASSERT_OK(status);
      const Pool shared(made);
      void* const block = take(shared, size, stream);
      EXPECT_OK(fill_on(instance, stream, block, size, 5, 1, why()));
      give(shared, block, stream);
      EXPECT_EQ(take(shared, size, stream), block);
      give(shared, block, stream);
      stream.synchronize();
    }
  }
  // Other memory needs no access of its own.
  for (const auto& [kind, flags] : {std::pair{GPUMEM_KIND_DEVICE, GPUMEM_MEMORY_SHAREABLE},
                                    {GPUMEM_KIND_PINNED, gpumem_memory_flags{0}},
                                    {GPUMEM_KIND_MANAGED, gpumem_memory_flags{0}},
                                    {GPUMEM_KIND_PAGEABLE, gpumem_memory_flags{0}}}) {
    SCOPED_TRACE(kind);
    gpumem_pool_desc desc = pool_desc(kind);
    desc.memory_flags = flags;
    const Pool pool = create_pool(instance.device(), desc);
    give(pool, take(pool, 4 * kKiB, stream), stream);
  }
}

TEST(Pool, str_18_ordinary_memory_of_a_pool_is_pageable) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_PAGEABLE));
  for (const uint64_t size : {uint64_t{4096}, 3 * kMiB}) {
    auto* const block = static_cast<uint8_t*>(take(pool, size));
    const gpumem_pointer_info info = pointer_info(instance, block + 100);
    EXPECT_EQ(info.kind, GPUMEM_KIND_PAGEABLE);
    EXPECT_EQ(info.base, nullptr);
    EXPECT_EQ(info.size, 0U);
    EXPECT_EQ(info.host_pointer, block + 100);
    gpumem_pool_block_info owner = GPUMEM_POOL_BLOCK_INFO_INIT;
    EXPECT_OK(gpumem_pool_get_block_info(instance, block + 100, &owner, why()));
    EXPECT_EQ(owner.pool, pool.get());
    EXPECT_EQ(owner.base, block);
    EXPECT_EQ(owner.usable_size, size);
    give(pool, block);
  }
}

TEST(Pool, str_23_recorded_uses_are_waited_for) {
  Instance instance = open_instance();
  for (const uint64_t size : {1 * kMiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    const Stream stream = create_stream(instance.device());
    GatedStream other(instance.device());
    void* const block = take(pool, size, stream);
    EXPECT_OK(fill_on(instance, other, block, size, 6, 1, why()));
    EXPECT_OK(gpumem_pool_record_use(pool, block, other, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_pool_record_use(pool, static_cast<uint8_t*>(block) + 1, other, why()));
    give(pool, block, stream);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block, stream, why()));
    std::vector<void*> taken;
    for (int i = 0; i < 10; ++i) {
      taken.push_back(take(pool, size, stream));
      EXPECT_NE(taken.back(), block) << "the other stream uses it";
    }
    other.finish();
    bool reused = false;
    for (int i = 0; i < 40 && !reused; ++i) {
      taken.push_back(take(pool, size, stream));
      reused = taken.back() == block;
    }
    EXPECT_TRUE(reused);
    for (void* const one : taken)
      give(pool, one, stream);
    stream.synchronize();
  }
}

TEST(Pool, str_23_every_recorded_stream_is_waited_for) {
  Instance instance = open_instance();
  for (const uint64_t size : {1 * kMiB, 3 * kMiB}) {
    for (const bool held_first : {false, true}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(held_first);
      const Pool pool = create_pool(instance.device());
      const Stream stream = create_stream(instance.device());
      const Stream idle = create_stream(instance.device());
      GatedStream held(instance.device());
      void* const block = take(pool, size, stream);
      for (const gpumem_stream user :
           held_first ? std::array{held.get(), idle.get()} : std::array{idle.get(), held.get()})
        EXPECT_OK(gpumem_pool_record_use(pool, block, user, why()));
      give(pool, block, stream);
      idle.synchronize();
      EXPECT_OK(gpumem_pool_free_pointer(instance, take(pool, 16), nullptr, why()));  // takes notice
      std::vector<void*> taken;
      for (int i = 0; i < 10; ++i) {
        taken.push_back(take(pool, size, stream));
        EXPECT_NE(taken.back(), block) << "the held stream uses it";
      }
      for (void* const one : taken)
        give(pool, one, stream);
      held.finish();
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

TEST(Pool, str_23_a_use_in_the_stream_of_the_free_holds_nothing_up) {
  Instance instance = open_instance();
  for (const uint64_t size : {1 * kMiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    GatedStream held(instance.device());
    void* const block = take(pool, size, held);
    EXPECT_OK(gpumem_pool_record_use(pool, block, held, why()));
    give(pool, block, held);
    std::vector<void*> taken;  // of small blocks, the thread has others first
    while (taken.size() < 10 && (taken.empty() || taken.back() != block))
      taken.push_back(take(pool, size, held));
    EXPECT_EQ(taken.back(), block);
    for (void* const one : taken)
      give(pool, one, held);
    held.finish();
  }
}

TEST(Pool, str_23_a_recorded_use_ends_with_its_block) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream first = create_stream(instance.device());
  const Stream second = create_stream(instance.device());
  Gate gate;
  const auto free_behind = [&](void* block, const Stream& user) {
    EXPECT_OK(gpumem_pool_record_use(pool, block, user, why()));
    give(pool, block);
    user.synchronize();
    trim(pool, UINT64_MAX);  // takes notice
  };
  void* const block = take(pool, 3 * kMiB);
  free_behind(block, first);
  ASSERT_EQ(take(pool, 3 * kMiB), block);
  gate.hold(first);
  free_behind(block, second);
  EXPECT_EQ(take(pool, 3 * kMiB), block) << "the first stream has not used it again";
  give(pool, block);
}

TEST(Pool, str_23_a_recorded_stream_may_end_before_the_free) {
  Instance instance = open_instance();
  const gpumem_stats before = stats(instance);
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    for (const bool busy : {false, true}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(busy);
      Pool pool = create_pool(instance.device());
      const Stream native = create_stream(instance.device());
      gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
      ASSERT_OK(gpumem_stream_get_info(native, &info, why()));
      const Stream stream = create_stream(instance.device());
      void* const block = take(pool, size, stream);
      {
        gpumem_stream made = nullptr;
        ASSERT_OK(gpumem_stream_wrap(instance.device(), info.native_stream, &made, why()));
        const Owned<gpumem_stream, gpumem_stream_destroy> wrapped(made);
        if (busy) {
          EXPECT_OK(fill_on(instance, wrapped, block, size, 6, 1, why()));
        }
        EXPECT_OK(gpumem_pool_record_use(pool, block, wrapped, why()));
      }
      give(pool, block, stream);
      stream.synchronize();
      native.synchronize();
      EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
      EXPECT_EQ(stats(instance).live_count, before.live_count) << "the memory goes back with the pool";
    }
  }
}

TEST(Pool, str_23_destroying_waits_for_the_stream_of_a_recorded_free) {
  Instance instance = open_instance();
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    Pool pool = create_pool(instance.device());
    GatedStream other(instance.device());
    GatedStream stream(instance.device());
    void* const block = take(pool, size, stream);
    EXPECT_OK(gpumem_pool_record_use(pool, block, other, why()));
    EXPECT_OK(fill_on(instance, stream, block, size, 6, 1, why()));
    give(pool, block, stream);
    std::atomic<bool> returned{false};
    gpumem_status status = GPUMEM_NOT_READY;
    std::thread thread([&] {
      status = gpumem_pool_destroy(pool, why());
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    other.finish();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(returned) << "the block is still filled";
    stream.finish();
    thread.join();
    EXPECT_OK(status);
    pool.release();
  }
}

// Nobody else has observed it.
TEST(Pool, str_23_a_pool_observes_the_work_before_its_frees) {
  Instance instance = open_instance();
  const auto live_before = stats(instance).live_count;
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    for (const bool trimmed : {false, true}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(trimmed);
      Pool pool = create_pool(instance.device());
      GatedStream stream(instance.device());
      for (int i = 0; i < 3; ++i) {
        void* const block = take(pool, size, stream);
        EXPECT_OK(fill_on(instance, stream, block, size, 6, 1, why()));
        give(pool, block, stream);
      }
      std::thread opener([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        stream.open();
      });
      if (trimmed) {
        EXPECT_TRUE(all_goes_back(pool));
      }
      EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
      opener.join();
      EXPECT_EQ(stats(instance).live_count, live_before);
    }
  }
}

TEST(Pool, pool_10_trim_takes_what_was_freed_under_pending_work) {
  Instance instance = open_instance();
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    for (const bool recorded : {false, true}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(recorded);
      const Pool pool = create_pool(instance.device());
      const Stream stream = create_stream(instance.device());
      GatedStream held(instance.device());
      const gpumem_stream in = recorded ? stream.get() : held.get();
      void* const block = take(pool, size, in);
      EXPECT_OK(fill_on(instance, held, block, size, 6, 1, why()));
      if (recorded) {
        EXPECT_OK(gpumem_pool_record_use(pool, block, held, why()));
      }
      give(pool, block, in);
      EXPECT_EQ(trim(pool), 0U) << "its work is not complete";
      held.finish();
      stream.synchronize();  // the first trim has set a mark there, too
      trim(pool);
      EXPECT_EQ(info_of(pool).reserved_bytes, 0U) << "once is enough";
    }
  }
}

// Blocks of another stream may become free at the moment in which the pool makes new ones.
TEST(Pool, pool_10_trim_takes_what_was_made_and_not_needed) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream one = create_stream(instance.device());
  const Stream other = create_stream(instance.device());
  for (int round = 0; round < (kSanitized ? 500 : 2000); ++round) {
    give(pool, take(pool, 4 * kKiB, one), one);
    give(pool, take(pool, 4 * kKiB, other), other);
    ASSERT_TRUE(all_goes_back(pool)) << "round " << round;
  }
}

TEST(Pool, str_23_work_of_a_recorded_stream_that_ended_is_waited_for) {
  Instance instance = open_instance();
  for (const uint64_t size : {1 * kMiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    GatedStream held(instance.device());
    gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
    ASSERT_OK(gpumem_stream_get_info(held, &info, why()));
    void* const block = take(pool, size);
    {
      gpumem_stream made = nullptr;
      ASSERT_OK(gpumem_stream_wrap(instance.device(), info.native_stream, &made, why()));
      const Owned<gpumem_stream, gpumem_stream_destroy> wrapped(made);
      EXPECT_OK(fill_on(instance, wrapped, block, size, 6, 1, why()));
      EXPECT_OK(gpumem_pool_record_use(pool, block, wrapped, why()));
    }
    give(pool, block);
    trim(pool);
    EXPECT_NE(info_of(pool).reserved_bytes, 0U) << "the block is still filled";
    void* const next = take(pool, size);
    EXPECT_NE(next, block);
    give(pool, next);
    held.finish();
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(Pool, str_23_the_stream_of_a_recorded_free_may_end_first) {
  Instance instance = open_instance();
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(flags);
      const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, flags));
      GatedStream held(instance.device());
      {
        const Stream stream = create_stream(instance.device());
        void* const block = take(pool, size, stream);
        if (flags == 0) {
          EXPECT_OK(fill_on(instance, held, block, size, 6, 1, why()));
          EXPECT_OK(gpumem_pool_record_use(pool, block, held, why()));
        }
        give(pool, block, stream);
      }
      held.finish();
      trim(pool);
      EXPECT_EQ(info_of(pool).reserved_bytes, 0U);
    }
  }
}

// Neither the quarantine nor the poison of a debug pool may meet work that still uses the block.
TEST(Pool, str_23_a_debug_pool_waits_for_a_recorded_use) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
      SCOPED_TRACE(kind);
      SCOPED_TRACE(size);
      const Pool pool = create_pool(instance.device(), pool_desc(kind, GPUMEM_POOL_DEBUG));
      GatedStream held(instance.device());
      auto* const block = static_cast<uint8_t*>(take(pool, size));
      if (kind == GPUMEM_KIND_PINNED) std::memset(block, 7, size);
      EXPECT_OK(fill_on(instance, held, block, size, 6, 1, why()));
      EXPECT_OK(gpumem_pool_record_use(pool, block, held, why()));
      give(pool, block);
      EXPECT_EQ(info_of(pool).live_count, 0U);
      if (kind == GPUMEM_KIND_PINNED) {
        EXPECT_TRUE(std::all_of(block, block + size, [](uint8_t byte) { return byte == 7; })) << "in use";
      }
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block, nullptr, why()));
      for (int i = 0; i < 100; ++i) {
        void* const other = take(pool, size);
        EXPECT_NE(other, block);
        give(pool, other);
      }
      if (kind == GPUMEM_KIND_DEVICE) {  // the driver waits for the device when pinned memory is released
        trim(pool);
        EXPECT_NE(info_of(pool).reserved_bytes, 0U);
      }
      held.finish();
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

// Runs a call that must not wait for a gate, and says whether it has returned in time.
template <class Call>
bool returns(Call call, GatedStream& gate) {
  std::atomic<bool> done{false};
  std::thread thread([&] {
    call();
    done = true;
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!done && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  const bool in_time = done;
  if (!in_time) gate.open();
  thread.join();
  return in_time;
}

TEST(Pool, pool_11_destroying_holds_up_no_other_call) {
  Instance instance = open_instance();
  Pool pool = create_pool(instance.device());
  GatedStream held(instance.device());
  void* const block = take(pool, 3 * kMiB, held);
  EXPECT_OK(fill_on(instance, held, block, 3 * kMiB, 6, 1, why()));
  give(pool, block, held);
  const gpumem_pool handle = pool.release();
  std::thread destroyer([&] { EXPECT_OK(gpumem_pool_destroy(handle, why())); });
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  while (gpumem_pool_get_info(handle, &info, nullptr) == GPUMEM_SUCCESS)
    std::this_thread::yield();
  EXPECT_TRUE(returns(
      [&] {
        create_stream(instance.device()).destroy();
        const Pool other = create_pool(instance.device());
        give(other, take(other, kMiB));
      },
      held));
  held.finish();
  destroyer.join();
}

// A native stream cannot be marked, so destroying waits for the device.
TEST(Pool, pool_11_a_free_waits_for_no_native_stream_that_destroying_waits_for) {
  Instance instance = open_instance();
  const auto live_before = stats(instance).live_count;
  Pool pool = create_pool(instance.device());
  GatedStream held(instance.device());
  gpumem_stream_info native = GPUMEM_STREAM_INFO_INIT;
  ASSERT_OK(gpumem_stream_get_info(held, &native, why()));
  void* used = nullptr;
  ASSERT_OK(gpumem_pool_alloc_native(pool, 4 * kKiB, native.native_stream, &used, why()));
  EXPECT_OK(fill_on(instance, held, used, 4 * kKiB, 6, 1, why()));
  void* const live = take(pool, 4 * kKiB);
  EXPECT_OK(gpumem_pool_free_native(pool, used, native.native_stream, why()));
  gpumem::test::Sleeper destroying([&] { EXPECT_OK(gpumem_pool_destroy(pool.release(), why())); });
  EXPECT_TRUE(returns([&] { EXPECT_OK(gpumem_pool_free_pointer(instance, live, nullptr, why())); }, held));
  held.finish();
  destroying.join();
  EXPECT_EQ(stats(instance).live_count, live_before);
}

TEST(Pool, pool_11_destroying_waits_for_the_work_before_a_free_that_comes_meanwhile) {
  Instance instance = open_instance();
  const auto live_before = stats(instance).live_count;
  Pool pool = create_pool(instance.device());
  GatedStream held(instance.device());
  Gate second;
  gpumem_stream_info native = GPUMEM_STREAM_INFO_INIT;
  ASSERT_OK(gpumem_stream_get_info(held, &native, why()));
  void* used = nullptr;
  ASSERT_OK(gpumem_pool_alloc_native(pool, 4 * kKiB, native.native_stream, &used, why()));
  EXPECT_OK(fill_on(instance, held, used, 4 * kKiB, 6, 1, why()));
  void* const later = take(pool, 4 * kKiB);
  EXPECT_OK(gpumem_pool_free_native(pool, used, native.native_stream, why()));
  std::atomic<bool> opened{false};
  bool waited = false;
  gpumem::test::Sleeper destroying([&] {
    EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
    waited = opened;
  });
  second.hold(held);
  EXPECT_OK(fill_on(instance, held, later, 4 * kKiB, 6, 1, why()));
  EXPECT_OK(gpumem_pool_free_pointer(instance, later, held, why()));
  held.open();
  second.wait_until_reached();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for who does not wait to show it
  opened = true;
  second.open();
  destroying.join();
  EXPECT_TRUE(waited);
  EXPECT_EQ(stats(instance).live_count, live_before);
}

TEST(Pool, pool_11_blocks_are_freed_while_it_is_destroyed) {
  Instance instance = open_instance();
  const auto live_before = stats(instance).live_count;
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    for (int round = 0; round < 40; ++round) {
      Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, flags));
      GatedStream held(instance.device());
      void* const used = take(pool, 4 * kKiB, held);
      EXPECT_OK(fill_on(instance, held, used, 4 * kKiB, 6, 1, why()));
      give(pool, used, held);
      std::array<void*, 16> blocks{};
      for (void*& block : blocks)
        block = take(pool, 4 * kKiB);
      std::vector<std::thread> threads;
      threads.emplace_back([&] { EXPECT_OK(gpumem_pool_destroy(pool.release(), why())); });
      for (size_t first = 0; first < 2; ++first) {
        threads.emplace_back([&, first] {
          for (size_t i = first; i < blocks.size(); i += 2)
            EXPECT_OK(gpumem_pool_free_pointer(instance, blocks[i], nullptr, why()));
        });
      }
      held.open();
      for (std::thread& thread : threads)
        thread.join();
    }
  }
  create_pool(instance.device()).destroy();  // sees to what is left
  EXPECT_EQ(stats(instance).live_count, live_before);
}

// Each answer is a block, or that the pool is gone.
TEST(Pool, pool_11_destroying_while_others_allocate) {
  Instance instance = open_instance();
  const auto live_before = stats(instance).live_count;
  constexpr std::array<uint64_t, 4> kUsed{100, 4 * kKiB, 70 * kKiB, 2 * kMiB};
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    for (int round = 0; round < 20; ++round) {
      Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, flags));
      const gpumem_pool handle = pool.get();
      std::atomic<int> under_way = 0;
      std::array<std::vector<void*>, 3> live;
      std::vector<std::thread> threads;
      for (size_t t = 0; t < live.size(); ++t) {
        threads.emplace_back([&, t] {
          gpumem_error error = GPUMEM_ERROR_INIT;
          for (size_t i = 0;; ++i) {
            void* block = nullptr;
            const gpumem_status status = gpumem_pool_alloc(handle, kUsed[i % 4], nullptr, &block, &error);
            if (status != GPUMEM_SUCCESS) {
              EXPECT_EQ(status, GPUMEM_ERROR_STALE_HANDLE) << error.message;
              EXPECT_EQ(block, nullptr);
              break;
            }
            live[t].push_back(block);
            if (i == 8) ++under_way;
            if (live[t].size() < 8) continue;
            const gpumem_status freed = gpumem_pool_free(handle, live[t].back(), nullptr, &error);
            if (freed == GPUMEM_SUCCESS) {
              live[t].pop_back();
            } else {
              EXPECT_EQ(freed, GPUMEM_ERROR_STALE_HANDLE) << error.message;
            }
          }
        });
      }
      while (under_way != 3)
        std::this_thread::yield();
      EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
      for (std::thread& thread : threads)
        thread.join();
      for (const auto& blocks : live) {
        for (void* const block : blocks)
          EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
      }
    }
  }
  create_pool(instance.device()).destroy();  // sees to what is left
  EXPECT_EQ(stats(instance).live_count, live_before);
}

TEST(Pool, pool_11_only_the_last_block_of_a_destroyed_pool_waits) {
  Instance instance = open_instance();
  const auto live_before = stats(instance).live_count;
  Pool pool = create_pool(instance.device());
  GatedStream held(instance.device());
  void* const block = take(pool, 3 * kMiB, held);
  void* const last = take(pool, 3 * kMiB);
  pool.destroy();
  EXPECT_OK(fill_on(instance, held, block, 3 * kMiB, 6, 1, why()));
  EXPECT_TRUE(returns([&] { EXPECT_OK(gpumem_pool_free_pointer(instance, block, held, why())); }, held));
  held.finish();
  EXPECT_OK(gpumem_pool_free_pointer(instance, last, nullptr, why()));
  EXPECT_EQ(stats(instance).live_count, live_before);
}

// Three threads with a stream each take and give at random, also each other's blocks. What each block holds
// is written and read in stream order, so a block that two had at once is found.
TEST(Pool, pool_15_a_random_walk_of_threads) {
  Instance instance = open_instance();
  constexpr size_t kThreads = 3;
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES}) {
    const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, flags));
    struct Block {
      uint32_t* pointer;
      uint32_t value;
      uint64_t words;
    };
    struct Handed {
      std::mutex mutex;
      std::vector<Block> blocks;
    };
    std::array<Handed, kThreads> handed;  // without a stream: all work on them is complete
    std::vector<Stream> streams;
    for (size_t i = 0; i < kThreads; ++i)
      streams.push_back(create_stream(instance.device()));
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const gpumem_stream stream = streams[t];
        std::mt19937 random(static_cast<uint32_t>(t + 1));
        std::vector<Block> mine;
        const auto check = [&](const Block& block, gpumem_stream in) {
          std::array<uint32_t, 2> seen{};
          EXPECT_OK(copy_on(instance, in, seen.data(), block.pointer, 4, nullptr, why()));
          EXPECT_OK(
              copy_on(instance, in, seen.data() + 1, block.pointer + block.words - 1, 4, nullptr, why()));
          if (in != nullptr) {
            EXPECT_OK(gpumem_stream_synchronize(in, kLong, why()));
          }
          EXPECT_EQ(seen[0], block.value);
          EXPECT_EQ(seen[1], block.value);
        };
        for (uint32_t step = 0; step < 250; ++step) {
          const auto what = static_cast<uint32_t>(random() % 10);
          if (what < 5) {
            const uint64_t size = uint64_t{4} << random() % 20;
            Block block{static_cast<uint32_t*>(take(pool, size, stream)),
                        step << 8 | static_cast<uint32_t>(t), size / 4};
            if (block.pointer == nullptr) continue;
            EXPECT_OK(fill_on(instance, stream, block.pointer, size, block.value, 4, why()));
            mine.push_back(block);
          } else if (what < 8 && !mine.empty()) {
            std::swap(mine[random() % mine.size()], mine.back());
            if (what == 7) check(mine.back(), stream);
            give(pool, mine.back().pointer, stream);
            mine.pop_back();
          } else if (what == 8 && !mine.empty()) {
            check(mine.back(), stream);
            Handed& other = handed[(t + 1) % kThreads];
            const std::lock_guard lock(other.mutex);
            other.blocks.push_back(mine.back());
            mine.pop_back();
          } else {
            const std::lock_guard lock(handed[t].mutex);
            for (const Block& block : handed[t].blocks) {
              check(block, nullptr);
              give(pool, block.pointer);
            }
            handed[t].blocks.clear();
            if (step % 20 == 0) trim(pool, 8 * kMiB);
          }
          if (mine.size() > 20) {
            give(pool, mine.front().pointer, stream);
            mine.erase(mine.begin());
          }
        }
        for (const Block& block : mine) {
          check(block, stream);
          give(pool, block.pointer, stream);
        }
      });
    }
    for (auto& thread : threads)
      thread.join();
    for (Handed& rest : handed) {
      for (const Block& block : rest.blocks)
        give(pool, block.pointer);
    }
    EXPECT_EQ(info_of(pool).live_count, 0U);
    for (const Stream& stream : streams)
      stream.synchronize();
  }
}

TEST(Pool, pool_11_a_native_stream_needs_no_wrapper) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  const Stream stream = create_stream(instance.device());
  gpumem_stream_info native = GPUMEM_STREAM_INFO_INIT;
  ASSERT_OK(gpumem_stream_get_info(stream, &native, why()));
  void* block = nullptr;
  ASSERT_OK(gpumem_pool_alloc_native(pool, 4096, native.native_stream, &block, why()));
  EXPECT_OK(gpumem_pool_free_native(pool, block, native.native_stream, why()));
  EXPECT_EQ(take(pool, 4096, stream), block) << "it is the same stream";
  give(pool, block, stream);
  give(pool, take(pool, kMiB, stream), stream);  // none is kept, so the pool hears of the handle
  stream.synchronize();
  EXPECT_TRUE(all_goes_back(pool)) << "with a handle it can be marked at any time";
}

// No pool hears of the end of a native stream, but for that of a wrapper, which marks it.
TEST(Pool, pool_11_native_streams_come_and_go) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_DEVICE);
  desc.limit = 8 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  std::string message;
  const auto used_once = [&](bool heard) {
    const NativeStream native(instance.device());
    void* block = nullptr;
    const gpumem_status status = gpumem_pool_alloc_native(pool, 300'000, native.get(), &block, why());
    if (status != GPUMEM_SUCCESS) {
      message = last_error().message;
      return status;
    }
    EXPECT_OK(gpumem_pool_free_native(pool, block, native.get(), why()));
    gpumem_stream wrapper = nullptr;
    if (heard) {
      EXPECT_OK(gpumem_stream_wrap(instance.device(), native.get(), &wrapper, why()));
      EXPECT_OK(gpumem_stream_destroy(wrapper, why()));
    }
    return status;
  };
  // Many streams may not have come to their frees yet; what is lost stays lost.
  const auto used_at_last = [&](bool heard) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    gpumem_status status = used_once(heard);
    while (status == GPUMEM_ERROR_LIMIT_EXCEEDED && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      status = used_once(heard);
    }
    return status;
  };
  for (int i = 0; i < 100; ++i)
    ASSERT_EQ(used_at_last(true), GPUMEM_SUCCESS) << i << ": " << message;
  EXPECT_TRUE(all_goes_back(pool));
  gpumem_status status = GPUMEM_SUCCESS;
  for (int i = 0; i < 100 && status == GPUMEM_SUCCESS; ++i)
    status = on_host() ? used_at_last(false) : used_once(false);
  if (on_host()) {
    EXPECT_EQ(status, GPUMEM_SUCCESS) << message;
    return;
  }
  EXPECT_EQ(status, GPUMEM_ERROR_LIMIT_EXCEEDED) << "the last block of each is lost to others";
  EXPECT_NE(message.find("before a native stream ends"), std::string::npos) << message;
}

// The more there have been, the fewer frees share a mark, and the less a thread keeps of them.
TEST(Pool, pool_11_many_native_streams_leave_little_behind) {
  Instance instance = open_instance();
  for (const auto& [size, limit] :
       {std::pair<uint64_t, uint64_t>{4 * kKiB, 4 * kMiB}, {kMiB / 4, 16 * kMiB}, {4 * kMiB, 16 * kMiB}}) {
    SCOPED_TRACE(size);
    gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_DEVICE);
    desc.limit = limit;
    const Pool pool = create_pool(instance.device(), desc);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (int i = 0; i < 400; ++i) {
      const NativeStream native(instance.device());
      void* block = nullptr;
      gpumem_status status = GPUMEM_SUCCESS;
      // Many may not have come to their marks yet; what is lost stays lost.
      while ((status = gpumem_pool_alloc_native(pool, size, native.get(), &block, why())) ==
                 GPUMEM_ERROR_LIMIT_EXCEEDED &&
             std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_EQ(status, GPUMEM_SUCCESS) << i << ": " << last_error().message;
      EXPECT_OK(gpumem_pool_free_native(pool, block, native.get(), why()));
    }
  }
}

// No call but the frees is handed the stream, so that only they can set marks in it.
TEST(Pool, str_12_what_is_freed_in_a_native_stream_serves_others) {
  const Instance instance = open_instance(
      [](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 4096 * kMiB; });
  const Stream stream = create_stream(instance.device());
  gpumem_stream_info native = GPUMEM_STREAM_INFO_INIT;
  ASSERT_OK(gpumem_stream_get_info(stream, &native, why()));
  for (const auto& [size, count] :
       {std::pair<uint64_t, uint64_t>{4 * kKiB, 10'000}, {kMiB, 800}, {4 * kMiB, 200}}) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    for (uint64_t i = 0; i < count; ++i) {
      void* block = nullptr;
      ASSERT_OK(gpumem_pool_alloc(pool, size, nullptr, &block, why()));
      ASSERT_OK(gpumem_pool_free_native(pool, block, native.native_stream, why()));
      if (i % 20 == 0) {
        ASSERT_OK(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
      }
    }
    EXPECT_EQ(info_of(pool).live_count, 0U);
    EXPECT_LT(info_of(pool).reserved_bytes, size * count / 4);
  }
}

// Of 1 GiB, or half of a smaller device.
Instance open_for_a_large_pool() {
  return open_instance([](gpumem_instance_desc&, gpumem_host_options& host) {
    host.device_bytes = 2048 * kMiB;
    host.fill = GPUMEM_TOGGLE_OFF;
  });
}

gpumem_pool_desc large_pool(gpumem_device device) {
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device, &info, why()));
  gpumem_pool_desc desc = pool_desc(0);
  desc.initial_size = std::min(1024 * kMiB, info.total_bytes / 2);
  return desc;
}

// What has no mark is a small share of the pool, since this may be the last that it hears of the stream.
TEST(Pool, str_12_large_blocks_freed_in_a_native_stream_share_marks) {
  const Instance instance = open_for_a_large_pool();
  const NativeStream stream(instance.device());
  constexpr uint64_t kSize = 12 * kMiB;  // no thread keeps it
  const gpumem_pool_desc desc = large_pool(instance.device());
  const Pool pool = create_pool(instance.device(), desc);
  std::vector<void*> blocks(desc.initial_size / kSize / 2);
  for (void*& block : blocks)
    ASSERT_OK(gpumem_pool_alloc_native(pool, kSize, stream.get(), &block, why()));
  for (void* const block : blocks)
    ASSERT_OK(gpumem_pool_free_native(pool, block, stream.get(), why()));
  const uint64_t marks = info_of(pool).mark_count;
  EXPECT_GT(marks, 0U);
  if (desc.initial_size >= 1024 * kMiB) {
    EXPECT_LE(marks, blocks.size() / 2);
  }
  gpumem_stream wrapper = nullptr;
  ASSERT_OK(gpumem_stream_wrap(instance.device(), stream.get(), &wrapper, why()));
  ASSERT_OK(gpumem_stream_synchronize(wrapper, GPUMEM_TIMEOUT_INFINITE, why()));
  std::vector<void*> others;
  for (uint64_t bytes = 0; bytes < desc.initial_size - desc.initial_size / 32 - 3 * kSize; bytes += kSize)
    others.push_back(take(pool, kSize));
  EXPECT_EQ(info_of(pool).reserved_bytes, desc.initial_size);
  for (void* const block : others)
    give(pool, block);
  EXPECT_OK(gpumem_stream_destroy(wrapper, why()));
}

// Each stream may never be heard of again, so all of them together leave little without a mark.
TEST(Pool, str_12_the_more_native_streams_the_sooner_they_are_marked) {
  const Instance instance = open_for_a_large_pool();
  const gpumem_pool_desc desc = large_pool(instance.device());
  const Pool pool = create_pool(instance.device(), desc);
  const uint64_t count = std::min<uint64_t>(16, desc.initial_size / (32 * kMiB));
  std::vector<std::unique_ptr<NativeStream>> streams;
  while (streams.size() < count) {
    streams.push_back(std::make_unique<NativeStream>(instance.device()));
    std::array<void*, 2> blocks{};
    for (void*& block : blocks)
      ASSERT_OK(gpumem_pool_alloc_native(pool, 12 * kMiB, streams.back()->get(), &block, why()));
    for (void* const block : blocks)
      ASSERT_OK(gpumem_pool_free_native(pool, block, streams.back()->get(), why()));
  }
  EXPECT_GE(info_of(pool).mark_count, count - 2);
}

// So that it can use again, or give back, what was freed in the stream, which no other call can mark.
TEST(Pool, str_12_a_growth_marks_the_native_stream_of_its_call) {
  const Instance instance = open_instance();
  const NativeStream stream(instance.device());
  const auto marks_of_a_growth = [&](void* native) {
    const Pool pool = create_pool(instance.device());
    std::array<void*, 20> blocks{};
    for (void*& block : blocks)
      EXPECT_OK(gpumem_pool_alloc_native(pool, kMiB, native, &block, why()));
    for (void* const block : blocks)
      EXPECT_OK(gpumem_pool_free_native(pool, block, native, why()));
    EXPECT_EQ(info_of(pool).mark_count, 0U) << "too few for one";
    void* large = nullptr;
    EXPECT_OK(gpumem_pool_alloc_native(pool, 24 * kMiB, native, &large, why()));
    const uint64_t marks = info_of(pool).mark_count;
    EXPECT_OK(gpumem_pool_free_native(pool, large, native, why()));
    return marks;
  };
  EXPECT_GE(marks_of_a_growth(stream.get()), 1U);
  EXPECT_EQ(marks_of_a_growth(nullptr), 0U) << "a mark in the legacy default stream may spoil a capture";
}

TEST(Pool, pool_19_trying_gives_what_is_free_and_takes_nothing) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
      SCOPED_TRACE(testing::Message() << kind << " " << flags);
      const Pool pool = create_pool(instance.device(), pool_desc(kind, flags));
      const auto attempt = [&](uint64_t size, uint64_t alignment, void** out) {
        return gpumem_pool_try_alloc(pool, size, alignment, nullptr, out, nullptr, why());
      };
      void* kept = &instance;
      EXPECT_EQ(attempt(100, 0, &kept), GPUMEM_NOT_READY);
      EXPECT_EQ(kept, &instance);
      void* const wide = take(pool, 6 * kMiB);
      give(pool, wide);
      // A block of a debug pool is held back for a while.
      if (flags == 0) {
        std::vector<void*> blocks;
        for (const auto& [size, alignment] :
             {std::pair(100 * kKiB, uint64_t{0}), std::pair(uint64_t{100}, uint64_t{0}),
              std::pair(300 * kKiB, uint64_t{0}), std::pair(uint64_t{100}, 64 * kKiB)}) {
          void* block = nullptr;
          ASSERT_EQ(attempt(size, alignment, &block), GPUMEM_SUCCESS) << why()->message;
          EXPECT_EQ(alignment != 0 ? reinterpret_cast<uint64_t>(block) % alignment : 0, 0U);
          put_pattern(instance, block, size, static_cast<uint32_t>(size));
          blocks.push_back(block);
        }
        for (void* const block : blocks)
          give(pool, block);
      }
      const uint64_t reserved = info_of(pool).reserved_bytes;
      EXPECT_EQ(attempt(reserved + 1, 0, &kept), GPUMEM_NOT_READY);
      EXPECT_EQ(info_of(pool).reserved_bytes, reserved);
      EXPECT_EQ(attempt(0, 0, &kept), GPUMEM_SUCCESS);
      EXPECT_EQ(kept, nullptr);
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attempt(100, 3, &kept));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attempt(uint64_t{1} << 63, 0, &kept));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attempt(100, 0, nullptr));
    }
  }
}

TEST(Pool, pool_19_trying_gives_nothing_that_work_of_another_stream_uses) {
  Instance instance = open_instance();
  for (const uint64_t size : {4 * kKiB, 3 * kMiB}) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    GatedStream busy(instance.device());
    const Stream other = create_stream(instance.device());
    const auto attempt = [&](gpumem_stream stream) {
      void* block = nullptr;
      const gpumem_status status = gpumem_pool_try_alloc(pool, size, 0, stream, &block, nullptr, why());
      EXPECT_TRUE(status == GPUMEM_SUCCESS || status == GPUMEM_NOT_READY) << why()->message;
      return block;
    };
    // All that the pool has.
    std::vector<void*> all{take(pool, size, busy)};
    while (void* const block = attempt(busy))
      all.push_back(block);
    EXPECT_OK(fill_on(instance, busy, all.front(), size, 6, 1, why()));
    for (void* const block : all)
      give(pool, block, busy);
    EXPECT_EQ(attempt(other), nullptr);
    void* const same = attempt(busy);
    ASSERT_NE(same, nullptr) << "what follows in the stream comes behind the work";
    give(pool, same, busy);
    busy.finish();
    void* found = nullptr;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while ((found = attempt(other)) == nullptr && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_NE(found, nullptr);
    give(pool, found, other);
  }
}

namespace {

// What an attempt to allocate comes to. A block that it gets is freed again.
gpumem_pool_attempt attempt_at(gpumem_pool pool, uint64_t size, gpumem_stream stream = nullptr) {
  gpumem_pool_attempt attempt = GPUMEM_POOL_ATTEMPT_INIT;
  void* block = nullptr;
  const gpumem_status status = gpumem_pool_try_alloc(pool, size, 0, stream, &block, &attempt, why());
  EXPECT_EQ(status, attempt.answer == GPUMEM_POOL_ANSWER_ALLOCATED ? GPUMEM_SUCCESS : GPUMEM_NOT_READY)
      << why()->message;
  if (attempt.answer != GPUMEM_POOL_ANSWER_NEEDS_WAIT) {
    EXPECT_EQ(attempt.stream_id, 0U);
  }
  give(pool, block, stream);
  return attempt;
}

uint64_t id_of(gpumem_stream stream) {
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  EXPECT_OK(gpumem_stream_get_info(stream, &info, why()));
  return info.id;
}

}  // namespace

TEST(Pool, pool_21_trying_says_that_memory_is_lacking) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
      SCOPED_TRACE(testing::Message() << kind << " " << flags);
      const Pool pool = create_pool(instance.device(), pool_desc(kind, flags));
      for (const uint64_t size : {uint64_t{1}, 4 * kKiB, 3 * kMiB})
        EXPECT_EQ(attempt_at(pool, size).answer, GPUMEM_POOL_ANSWER_NEEDS_MEMORY);
      EXPECT_EQ(attempt_at(pool, 0).answer, GPUMEM_POOL_ANSWER_ALLOCATED);
      void* const block = take(pool, 100);
      const uint64_t reserved = info_of(pool).reserved_bytes;
      EXPECT_OK(gpumem_pool_set_limit(pool, reserved, why()));
      EXPECT_EQ(attempt_at(pool, reserved).answer, GPUMEM_POOL_ANSWER_OVER_LIMIT);
      EXPECT_OK(gpumem_pool_set_limit(pool, reserved + 64 * kMiB, why()));
      EXPECT_EQ(attempt_at(pool, reserved).answer, GPUMEM_POOL_ANSWER_NEEDS_MEMORY);
      EXPECT_EQ(attempt_at(pool, reserved + 65 * kMiB).answer, GPUMEM_POOL_ANSWER_OVER_LIMIT);
      EXPECT_OK(gpumem_pool_set_limit(pool, 0, why()));
      if (kind == GPUMEM_KIND_DEVICE) {
        gpumem_device_info device = GPUMEM_DEVICE_INFO_INIT;
        EXPECT_OK(gpumem_device_get_info(instance.device(), &device, why()));
        EXPECT_EQ(attempt_at(pool, device.total_bytes + 1).answer, GPUMEM_POOL_ANSWER_OVER_LIMIT);
      }
      give(pool, block);
      gpumem_pool_attempt wrong = GPUMEM_POOL_ATTEMPT_INIT;
      wrong.struct_size = 4;
      void* kept = &instance;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    gpumem_pool_try_alloc(pool, 100, 0, nullptr, &kept, &wrong, why()));
      EXPECT_EQ(kept, &instance);
    }
  }
}

TEST(Pool, pool_21_trying_counts_what_threads_keep_as_free) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    const Pool pool = create_pool(instance.device(), pool_desc(kind));
    std::promise<void> kept;
    std::promise<void> done;
    std::thread other([&] {
      give(pool, take(pool, 4 * kKiB));
      kept.set_value();
      done.get_future().wait();
    });
    kept.get_future().wait();
    const uint64_t reserved = info_of(pool).reserved_bytes;
    EXPECT_OK(gpumem_pool_set_limit(pool, reserved, why()));
    EXPECT_EQ(attempt_at(pool, reserved).answer, GPUMEM_POOL_ANSWER_NEEDS_MEMORY);
    give(pool, take(pool, reserved));
    done.set_value();
    other.join();
  }
}

TEST(Pool, pool_21_trying_names_the_stream_that_has_the_memory) {
  Instance instance = open_instance();
  for (const auto& [size, recorded] :
       {std::pair(4 * kKiB, false), std::pair(4 * kKiB, true), std::pair(3 * kMiB, false),
        std::pair(3 * kMiB, true), std::pair(20 * kMiB, false)}) {
    SCOPED_TRACE(testing::Message() << size << " " << recorded);
    const Pool pool = create_pool(instance.device());
    GatedStream busy(instance.device());
    const Stream other = create_stream(instance.device());
    const auto lacks = [&, bytes = size](gpumem_stream stream) {
      const gpumem_pool_attempt attempt = attempt_at(pool, bytes, stream);
      return attempt.answer == GPUMEM_POOL_ANSWER_NEEDS_WAIT && attempt.stream_id == id_of(busy);
    };
    // All that the pool has.
    std::vector<void*> all{take(pool, size, busy)};
    void* block = nullptr;
    while (gpumem_pool_try_alloc(pool, size, 0, busy, &block, nullptr, why()) == GPUMEM_SUCCESS)
      all.push_back(block);
    EXPECT_OK(fill_on(instance, busy, all.front(), size, 6, 1, why()));
    EXPECT_EQ(attempt_at(pool, size, other).answer, GPUMEM_POOL_ANSWER_NEEDS_MEMORY);
    for (void* const each : all) {
      // Used by the work of one stream, and freed in another or in itself.
      if (recorded) {
        EXPECT_OK(gpumem_pool_record_use(pool, each, busy, why()));
      }
      give(pool, each, recorded ? other.get() : busy.get());
    }
    EXPECT_TRUE(lacks(other));
    EXPECT_TRUE(lacks(nullptr));
    EXPECT_EQ(attempt_at(pool, info_of(pool).reserved_bytes + 1, other).answer,
              GPUMEM_POOL_ANSWER_NEEDS_MEMORY);
    EXPECT_EQ(attempt_at(pool, size, busy).answer,
              recorded ? GPUMEM_POOL_ANSWER_NEEDS_WAIT : GPUMEM_POOL_ANSWER_ALLOCATED);
    busy.finish();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (lacks(other) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(attempt_at(pool, size, other).answer, GPUMEM_POOL_ANSWER_ALLOCATED);
  }
}

TEST(Pool, pool_7_the_message_tells_what_is_in_use_from_what_work_uses) {
  Instance instance = open_instance();
  constexpr uint64_t kSize = 4 * kMiB;
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PINNED);
  desc.limit = kSize;
  const Pool pool = create_pool(instance.device(), desc);
  GatedStream busy(instance.device());
  void* const block = take(pool, kSize, busy);
  void* none = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, kSize, nullptr, &none, &error));
  EXPECT_NE(std::strstr(error.message, "4194304 are in use"), nullptr) << error.message;
  EXPECT_EQ(std::strstr(error.message, "synchronize"), nullptr) << error.message;
  give(pool, block, busy);
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, kSize, nullptr, &none, &error));
  EXPECT_NE(std::strstr(error.message, " 0 are in use"), nullptr) << error.message;
  EXPECT_NE(std::strstr(error.message, "work of another stream may still use that: synchronize it"), nullptr)
      << error.message;
  busy.finish();
}

TEST(Pool, pool_21_trying_says_that_another_thread_has_the_pool) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop)
      trim(pool, 0);
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < deadline)
    seen = attempt_at(pool, 4 * kKiB).answer == GPUMEM_POOL_ANSWER_BUSY;
  stop = true;
  busy.join();
  EXPECT_TRUE(seen);
}

// A new pool has one piece, and a chunk of several such blocks would not fit.
TEST(Pool, pool_19_trying_gives_a_block_where_a_whole_chunk_has_no_room) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PAGEABLE);
  desc.limit = desc.initial_size = 128 * kKiB;
  const Pool pool = create_pool(instance.device(), desc);
  EXPECT_EQ(attempt_at(pool, 100 * kKiB).answer, GPUMEM_POOL_ANSWER_ALLOCATED);
  EXPECT_EQ(info_of(pool).grow_count, 1U);
}

TEST(Pool, pool_17_a_native_stream_may_be_told_by_its_handle) {
  Instance instance = open_instance();
  const Pool pool =
      create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_TRUST_NATIVE_STREAMS));
  const NativeStream first(instance.device());
  const NativeStream second(instance.device());
  const auto wrap = [&](const NativeStream& native) { return wrap_stream(instance.device(), native.get()); };
  for (const uint64_t size : {4 * kKiB, 3 * kMiB, 20 * kMiB}) {
    SCOPED_TRACE(size);
    const Stream wrapped = wrap(first);
    Gate gate;
    void* block = nullptr;
    ASSERT_OK(gpumem_pool_alloc_native(pool, size, first.get(), &block, why()));
    gate.hold(wrapped);
    EXPECT_OK(fill_on(instance, wrapped, block, size, 6, 1, why()));
    EXPECT_OK(gpumem_pool_free_native(pool, block, first.get(), why()));
    void* other = nullptr;
    EXPECT_OK(gpumem_pool_alloc_native(pool, size, second.get(), &other, why()));
    EXPECT_NE(other, block) << "work of another stream still uses it";
    void* same = nullptr;
    EXPECT_OK(gpumem_pool_alloc_native(pool, size, first.get(), &same, why()));
    EXPECT_EQ(same, block) << "what follows in the stream comes behind the work";
    EXPECT_OK(gpumem_pool_free_native(pool, same, first.get(), why()));
    EXPECT_OK(gpumem_pool_free_native(pool, other, second.get(), why()));
    gate.open();
    wrapped.synchronize();
  }
  // The end of a wrapper marks the stream for the frees by its handle too.
  wrap(first).destroy();
  wrap(second).destroy();
  EXPECT_TRUE(all_goes_back(pool));
}

TEST(Pool, pool_17_the_default_stream_of_each_thread_is_told_apart) {
  Instance instance = open_instance();
  const Pool pool =
      create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_TRUST_NATIVE_STREAMS));
  // It has one handle, and is another stream in each thread.
  void* const per_thread = reinterpret_cast<void*>(uintptr_t{2});
  void* block = nullptr;
  if (on_host()) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_pool_alloc_native(pool, 4 * kKiB, per_thread, &block, why()))
        << "the host backend has no such stream";
    return;
  }
  constexpr uint64_t kSize = 80 * kMiB;
  gpumem_stream mine = nullptr;
  ASSERT_OK(gpumem_stream_wrap(instance.device(), per_thread, &mine, why()));
  const Stream wrapped(mine);
  ASSERT_OK(gpumem_pool_alloc_native(pool, kSize, per_thread, &block, why()));
  Gate gate;
  gate.hold(wrapped);
  EXPECT_OK(fill_on(instance, wrapped, block, kSize, 6, 1, why()));
  EXPECT_OK(gpumem_pool_free_native(pool, block, per_thread, why()));
  std::thread([&] {
    void* other = nullptr;
    EXPECT_OK(gpumem_pool_alloc_native(pool, kSize, per_thread, &other, why()));
    EXPECT_NE(other, block) << "work of the first thread's stream still uses it";
    EXPECT_OK(gpumem_pool_free_native(pool, other, per_thread, why()));
  }).join();
  gate.open();
  wrapped.synchronize();
}

TEST(Pool, pool_12_a_forked_child_is_refused) {
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), pool_desc(GPUMEM_KIND_PAGEABLE));
  void* const block = take(pool, 64);
  const ProcessResult result = in_forked_child([&] {
    void* none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_pool_alloc(pool, 64, nullptr, &none, why()));
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_pool_free(pool, block, nullptr, why()));
    std::thread([] {}).join();
  });
  EXPECT_CHILD_OK(result);
  give(pool, block);
}

TEST(Pool, pool_13_closing_names_what_lives) {
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc();
  gpumem_pool pool = nullptr;
  ASSERT_OK(gpumem_pool_create(instance.device(), &desc, &pool, why()));
  (void)take(pool, 5000);
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, &detail));
  EXPECT_NE(std::string(detail.message).find("tested"), std::string::npos) << detail.message;
  EXPECT_OK(gpumem_instance_close(instance.release(), GPUMEM_CLOSE_FORCE, nullptr, why()));
  void* none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_CLOSED, gpumem_pool_alloc(pool, 1, nullptr, &none, why()));
}

// Ordinary memory of a pool is no object of the instance.
TEST(Pool, pool_13_blocks_that_outlive_their_pool_keep_the_instance_open) {
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    Instance instance = open_instance();
    Pool pool = create_pool(instance.device(), pool_desc(kind));
    auto* const block = static_cast<uint8_t*>(take(pool, 3 * kMiB));
    pool.destroy();
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, why()));
    EXPECT_NE(std::strstr(last_error().message, "gpumem_pool_free_pointer()"), nullptr)
        << last_error().message;
    if (kind == GPUMEM_KIND_PAGEABLE) block[0] = 1;
    EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
    EXPECT_OK(gpumem_instance_close(instance.release(), GPUMEM_CLOSE_CHECK, nullptr, why()));
  }
}

TEST(Pool, com_23_the_snapshot_has_what_a_pool_has_free) {
  Instance instance = open_instance();
  Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE);
  const auto number_behind = [&](const std::string& key) {
    const std::string snapshot = text_of(instance, gpumem_stats_snapshot);
    const size_t place = snapshot.find('"' + key + "\":", snapshot.find("\"objects\":"));
    EXPECT_NE(place, std::string::npos) << snapshot;
    return place == std::string::npos ? 0 : std::stoull(snapshot.substr(place + key.size() + 3));
  };
  constexpr uint64_t kBlock = 10 * kMiB;  // which no thread keeps
  std::array<void*, 4> blocks{};
  for (void*& block : blocks)
    block = take(pool, kBlock);
  const uint64_t rest = number_behind("free_bytes");
  EXPECT_LT(number_behind("largest_free_bytes"), kBlock);
  EXPECT_OK(gpumem_pool_free(pool, blocks[0], nullptr, why()));
  EXPECT_OK(gpumem_pool_free(pool, blocks[2], nullptr, why()));
  EXPECT_EQ(number_behind("free_bytes"), rest + 2 * kBlock);
  EXPECT_GE(number_behind("largest_free_bytes"), kBlock);
  EXPECT_LT(number_behind("largest_free_bytes"), 2 * kBlock);
  EXPECT_EQ(text_of(instance, gpumem_stats_snapshot).find("\"limit\""), std::string::npos);
  EXPECT_OK(gpumem_pool_set_limit(pool, 48 * kMiB, why()));
  EXPECT_EQ(number_behind("limit"), 48 * kMiB);
  EXPECT_OK(gpumem_pool_free(pool, blocks[1], nullptr, why()));
  EXPECT_OK(gpumem_pool_free(pool, blocks[3], nullptr, why()));
}

TEST(Pool, pool_13_its_memory_is_not_listed_beside_it) {
  Instance instance = open_instance();
  for (const gpumem_kind kind : kKinds) {
    SCOPED_TRACE(kind);
    Pool pool = create_pool(instance.device(), kind);
    void* const block = take(pool, 3 * kMiB);
    void* const small = take(pool, 5000);
    const std::string report = report_of(instance);
    EXPECT_EQ(report.find("pool tested: 2 live block"), 0U) << report;
    EXPECT_EQ(text_of(instance, gpumem_stats_snapshot).find("pool_destroyed"), std::string::npos);
    EXPECT_EQ(report.find('\n'), std::string::npos) << report;
    gpumem_error detail = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, &detail));
    const std::string message = detail.message;
    EXPECT_EQ(message.find("alive: 1 pool; destroy it, or"), 0U) << message;
    EXPECT_EQ(message.find("more in"), std::string::npos) << message;
    {
      gpumem_memory_desc own = memory_desc(GPUMEM_KIND_PINNED, 4096);
      own.name = "beside";
      const Memory beside = create_memory(instance.device(), own);
      EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, &detail));
      const std::string both = detail.message;
      EXPECT_EQ(both.find("alive: 1 pinned (4096 bytes), 1 pool; destroy them"), 0U) << both;
      EXPECT_NE(both.find("beside"), std::string::npos) << both;
    }
    // What outlives the pool is all that can be named.
    pool.destroy();
    const std::string left = report_of(instance);
    const bool is_object = kind != GPUMEM_KIND_PAGEABLE;
    EXPECT_EQ(left.find("pool tested: 2 live blocks"), is_object ? std::string::npos : 0U) << left;
    EXPECT_NE(
        left.find(is_object ? "of a destroyed pool with live blocks; gpumem_pool_free_pointer() frees them"
                            : ", destroyed; gpumem_pool_free_pointer() frees them"),
        std::string::npos)
        << left;
    const std::string snapshot = text_of(instance, gpumem_stats_snapshot);
    EXPECT_EQ(snapshot.find("\"destroyed\":true") != std::string::npos, !is_object) << snapshot;
    EXPECT_EQ(snapshot.find("\"of_pool\":true,\"pool_destroyed\":true") != std::string::npos, is_object)
        << snapshot;
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, &detail));
    const std::string why_alive = detail.message;
    EXPECT_NE(why_alive.find("gpumem_pool_free_pointer() frees them"), std::string::npos) << why_alive;
    if (!is_object) {
      EXPECT_EQ(why_alive.find("alive: 1 destroyed pool; free the blocks, or"), 0U) << why_alive;
    }
    EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
    EXPECT_OK(gpumem_pool_free_pointer(instance, small, nullptr, why()));
    EXPECT_EQ(report_of(instance), "nothing lives");
  }
}

// ---- what the driver keeps for graphs ----

uint64_t trim_graphs(gpumem_device device) {
  uint64_t released = UINT64_MAX;
  EXPECT_OK(gpumem_device_trim_graphs(device, &released, why()));
  return released;
}

TEST(Pool, pool_20_there_may_be_nothing) {
  const Instance instance = open_instance();
  EXPECT_EQ(trim_graphs(instance.device()), 0u);
  EXPECT_OK(gpumem_device_trim_graphs(instance.device(), nullptr, why()));
}

CHILD(pool_20_what_graphs_keep_on_the_fake_driver) {
  const Instance instance = open_instance();
  EXPECT_EQ(trim_graphs(instance.device()), 3 * kMiB);
  EXPECT_EQ(trim_graphs(instance.device()), 0u);
}

TEST(Pool, pool_20_what_graphs_keep) {
  if (on_host()) SKIP_RULE("graphs allocate nothing on the host backend");
  if (on_fake_cuda()) {
    EXPECT_CHILD_OK(
        run_child("pool_20_what_graphs_keep_on_the_fake_driver", {"FAKE_CUDA_GRAPH_MEMORY=3145728"}));
  }
  REQUIRE_FOREIGN();
#ifdef HAVE_CUDA_HEADERS
  if (on_fake_cuda() || raw().cuMemAllocAsync == nullptr) return;
  constexpr uint64_t kSize = 64 * kMiB;
  const Instance instance = open_instance();
  const NativeStream native(instance.device());
  {
    const PrimaryContext context(0);
    const auto stream = static_cast<CUstream>(native.get());
    CUdeviceptr bytes = 0;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    EXPECT_EQ(raw().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemAllocAsync(&bytes, kSize, stream), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemsetD8Async(bytes, 1, kSize, stream), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemFreeAsync(bytes, stream), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuGraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuGraphLaunch(executable, stream), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuGraphExecDestroy(executable), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  EXPECT_GE(trim_graphs(instance.device()), kSize);
  EXPECT_EQ(trim_graphs(instance.device()), 0u);
#endif
}

// ---- memory of the driver's own pool ----

bool has_driver_pools(gpumem_device device) {
  return capability(device, GPUMEM_CAPABILITY_POOL_DRIVER).value != GPUMEM_ANSWER_NO;
}

// What FROM_DRIVER serves: the current pool of the device, and pools that the library makes.
struct OfDriver {
  gpumem_kind kind;
  gpumem_memory_flags flags = 0;

  gpumem_pool_desc desc(gpumem_pool_flags more = 0) const {
    gpumem_pool_desc wanted = pool_desc(kind, GPUMEM_POOL_FROM_DRIVER | more);
    wanted.memory_flags = flags;
    return wanted;
  }
  bool on_host() const { return kind == GPUMEM_KIND_PINNED; }
};

// Those that the device has.
std::vector<OfDriver> kinds_of_driver(gpumem_device device) {
  std::vector<OfDriver> result;
  if (!has_driver_pools(device)) return result;
  for (const OfDriver& each :
       {OfDriver{GPUMEM_KIND_DEVICE}, {GPUMEM_KIND_PINNED}, {GPUMEM_KIND_PINNED, GPUMEM_MEMORY_NUMA_NODE}}) {
    const gpumem_pool_desc desc = each.desc();
    gpumem_pool pool = nullptr;
    gpumem_error error = GPUMEM_ERROR_INIT;
    const gpumem_status status = gpumem_pool_create(device, &desc, &pool, &error);
    if (status == GPUMEM_ERROR_UNSUPPORTED && each.kind != GPUMEM_KIND_DEVICE && !on_host()) {
      EXPECT_NE(std::string(error.message).find("CUDA 13.0"), std::string::npos) << error.message;
      continue;
    }
    EXPECT_STATUS(GPUMEM_SUCCESS, status) << each.kind << ' ' << each.flags << ": " << error.message;
    if (status != GPUMEM_SUCCESS) continue;
    const Pool made(pool);
    result.push_back(each);
  }
  return result;
}

TEST(Pool, pool_22_memory_of_the_driver_is_used_as_any_other) {
  Instance instance = open_instance();
  const std::vector<OfDriver> kinds = kinds_of_driver(instance.device());
  if (kinds.empty()) SKIP_RULE("the driver has no pools");
  const Stream stream = create_stream(instance.device());
  for (const OfDriver& each : kinds) {
    for (const gpumem_pool_flags more : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
      SCOPED_TRACE(testing::Message() << each.kind << ' ' << each.flags << ' ' << more);
      const Pool pool = create_pool(instance.device(), each.desc(more));
      EXPECT_EQ(info_of(pool).flags, GPUMEM_POOL_FROM_DRIVER | more);
      EXPECT_EQ(info_of(pool).kind, each.kind);
      std::vector<void*> blocks;
      for (const uint64_t size : kSizes) {
        void* block = nullptr;
        ASSERT_OK(
            gpumem_pool_alloc_aligned(pool, size, size < 64 * kKiB ? 0 : 64 * kKiB, stream, &block, why()));
        const uint64_t least = each.on_host() ? 16 : 256;
        EXPECT_EQ(reinterpret_cast<uint64_t>(block) % (size < 64 * kKiB ? least : 64 * kKiB), 0u) << size;
        const gpumem_pointer_info info = pointer_info(instance, block);
        EXPECT_EQ(info.kind, GPUMEM_KIND_POOL);
        EXPECT_EQ(info.device_pointer, block);
        EXPECT_EQ(info.host_pointer, each.kind == GPUMEM_KIND_DEVICE ? nullptr : block);
        EXPECT_EQ(device_access(instance, block, 0), GPUMEM_ACCESS_READWRITE);
        put_pattern(instance, block, size, static_cast<uint32_t>(size));
        blocks.push_back(block);
      }
      for (size_t i = 0; i < blocks.size(); ++i)
        EXPECT_TRUE(holds_pattern(instance, blocks[i], kSizes[i], static_cast<uint32_t>(kSizes[i])));
      // The device, and the CPU where it may.
      for (size_t i = 0; i < blocks.size(); ++i)
        EXPECT_OK(gpumem_fill_async(stream, blocks[i], kSizes[i], 7, 1, why()));
      stream.synchronize();
      for (size_t i = 0; i < blocks.size() && each.kind != GPUMEM_KIND_DEVICE; ++i) {
        auto* const bytes = static_cast<uint8_t*>(blocks[i]);
        EXPECT_EQ(bytes[0], 7) << kSizes[i];
        EXPECT_EQ(bytes[kSizes[i] - 1], 7) << kSizes[i];
        std::memset(bytes, 9, kSizes[i]);
      }
      const uint8_t wanted = each.kind == GPUMEM_KIND_DEVICE ? 7 : 9;
      for (size_t i = 0; i < blocks.size(); ++i) {
        std::vector<uint8_t> bytes(kSizes[i]);
        EXPECT_OK(gpumem_copy_async(stream, bytes.data(), blocks[i], kSizes[i], nullptr, why()));
        stream.synchronize();
        EXPECT_EQ(std::count(bytes.begin(), bytes.end(), wanted), static_cast<int64_t>(kSizes[i]));
        give(pool, blocks[i], stream);
      }
      stream.synchronize();
      EXPECT_NE(info_of(pool).reserved_bytes, 0u);
      EXPECT_EQ(info_of(pool).reserved_bytes % (64 * kKiB), 0u);
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

TEST(Pool, pool_22_a_limit_holds_for_memory_of_the_driver) {
  const Instance instance = open_instance();
  const std::vector<OfDriver> kinds = kinds_of_driver(instance.device());
  if (kinds.empty()) SKIP_RULE("the driver has no pools");
  for (const OfDriver& each : kinds) {
    SCOPED_TRACE(each.kind);
    gpumem_pool_desc desc = each.desc();
    desc.limit = 192 * kKiB;
    const Pool pool = create_pool(instance.device(), desc);
    void* const block = take_the_only(pool, 128 * kKiB);
    EXPECT_EQ(info_of(pool).limit, 192 * kKiB);
    give(pool, block);
    trim(pool);
    EXPECT_EQ(info_of(pool).reserved_bytes, 0u);
  }
}

TEST(Pool, pool_22_blocks_outlive_their_pool) {
  Instance instance = open_instance();
  const std::vector<OfDriver> kinds = kinds_of_driver(instance.device());
  if (kinds.empty()) SKIP_RULE("the driver has no pools");
  for (const OfDriver& each : kinds) {
    SCOPED_TRACE(each.kind);
    Pool pool = create_pool(instance.device(), each.desc());
    void* const block = take(pool, 3 * kMiB);
    put_pattern(instance, block, 3 * kMiB, 5);
    pool.destroy();
    EXPECT_TRUE(holds_pattern(instance, block, 3 * kMiB, 5));
    EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
  }
}

// What the driver refuses to do with such memory (docs/measured/pools.md).
TEST(Pool, pool_22_no_values_are_written_there) {
  Instance instance = open_instance();
  const std::vector<OfDriver> kinds = kinds_of_driver(instance.device());
  if (kinds.empty()) SKIP_RULE("the driver has no pools");
  const Stream stream = create_stream(instance.device());
  for (const OfDriver& each : kinds) {
    SCOPED_TRACE(each.kind);
    const Pool pool = create_pool(instance.device(), each.desc());
    void* const block = take(pool, 3 * kMiB);
    gpumem_error error = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_stream_write_value(stream, block, 1, 4, &error));
    EXPECT_NE(std::string(error.message).find("GPUMEM_POOL_FROM_DRIVER"), std::string::npos) << error.message;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED,
                  gpumem_stream_wait_value(stream, block, 1, 4, GPUMEM_WAIT_GEQ, why()));
    give(pool, block);
  }
}

TEST(Pool, pool_22_a_limit_below_the_usual_chunk) {
  const Instance instance = open_instance();
  if (!has_driver_pools(instance.device())) SKIP_RULE("the driver has no pools");
  const Pool pool = create_pool(instance.device(), 0, GPUMEM_POOL_FROM_DRIVER, kMiB);
  void* const first = take(pool, 4 * kKiB);
  // Blocks of this size usually come by the megabyte.
  void* const second = take(pool, 128 * kKiB);
  give(pool, first);
  give(pool, second);
}

TEST(Pool, pool_22_other_devices_do_not_reach_it) {
  Instance instance = open_instance();
  if (!has_driver_pools(instance.device())) SKIP_RULE("the driver has no pools");
  if (instance.device_count() < 2) SKIP_RULE("needs two devices");
  const Stream stream = create_stream(instance.device(1));
  const Pool pool = create_pool(instance.device(), 0, GPUMEM_POOL_FROM_DRIVER);
  const bool linked =
      gpumem_device_enable_peer_access(instance.device(1), instance.device(), nullptr) == GPUMEM_SUCCESS;
  void* const block = take(pool, 4 * kKiB);
  EXPECT_EQ(device_access(instance, block, 0), GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(device_access(instance, block, 1), GPUMEM_ACCESS_NONE);
  void* kept = &kept;
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_pool_alloc(pool, 4 * kKiB, stream, &kept, why()));
  EXPECT_EQ(kept, &kept);
  give(pool, block);
  if (linked) {
    EXPECT_OK(gpumem_device_disable_peer_access(instance.device(1), instance.device(), why()));
  }
}

TEST(Pool, pool_22_accesses_let_other_devices_reach_it) {
  Instance instance = open_instance();
  if (!has_driver_pools(instance.device())) SKIP_RULE("the driver has no pools");
  if (instance.device_count() < 2) SKIP_RULE("needs two devices");
  const Stream own = create_stream(instance.device());
  const Stream stream = create_stream(instance.device(1));
  gpumem_access_desc rights[] = {device_rights(0), device_rights(1)};
  gpumem_pool_desc desc = OfDriver{GPUMEM_KIND_DEVICE}.desc();
  desc.accesses = rights;
  desc.access_count = 2;
  gpumem_pool made = nullptr;
  const gpumem_status status = gpumem_pool_create(instance.device(), &desc, &made, why());
  if (status == GPUMEM_ERROR_UNSUPPORTED) SKIP_RULE("the devices have no link");
  ASSERT_OK(status);
  const Pool pool(made);
  void* const block = take(pool, 3 * kMiB, stream);
  EXPECT_EQ(device_access(instance, block, 0), GPUMEM_ACCESS_READWRITE);
  EXPECT_EQ(device_access(instance, block, 1), GPUMEM_ACCESS_READWRITE);
  EXPECT_OK(fill_on(instance, stream, block, 3 * kMiB, 5, 1, why()));
  stream.synchronize();
  std::vector<uint8_t> bytes(3 * kMiB);
  EXPECT_OK(gpumem_copy_async(own, bytes.data(), block, bytes.size(), nullptr, why()));
  own.synchronize();
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 5), static_cast<int64_t>(bytes.size()));
  give(pool, block, stream);
  stream.synchronize();
  EXPECT_TRUE(all_goes_back(pool));
  // An entry that names nobody else, or gives nothing, changes nothing.
  rights[1].access = GPUMEM_ACCESS_NONE;
  const Pool alone = create_pool(instance.device(), desc);
  void* const second = take(alone, 4 * kKiB);
  EXPECT_EQ(device_access(instance, second, 1), GPUMEM_ACCESS_NONE);
  void* kept = &kept;
  EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, gpumem_pool_alloc(alone, 4 * kKiB, stream, &kept, why()));
  give(alone, second);
}

// As other pinned memory.
TEST(Pool, pool_22_every_device_reaches_pinned_memory) {
  Instance instance = open_instance();
  const std::vector<OfDriver> kinds = kinds_of_driver(instance.device());
  if (kinds.empty()) SKIP_RULE("the driver has no pools");
  if (instance.device_count() < 2) SKIP_RULE("needs two devices");
  const Stream stream = create_stream(instance.device(1));
  for (const OfDriver& each : kinds) {
    if (each.kind == GPUMEM_KIND_DEVICE) continue;
    SCOPED_TRACE(each.kind);
    const Pool pool = create_pool(instance.device(), each.desc());
    void* const block = take(pool, kMiB, stream);
    EXPECT_EQ(device_access(instance, block, 1), GPUMEM_ACCESS_READWRITE);
    EXPECT_OK(gpumem_fill_async(stream, block, kMiB, 5, 1, why()));
    stream.synchronize();
    EXPECT_EQ(static_cast<uint8_t*>(block)[kMiB - 1], 5);
    give(pool, block, stream);
    stream.synchronize();
  }
}

// Whether a forked child gets the page at an address.
bool is_for_children(const void* pointer) {
  std::ifstream maps("/proc/self/smaps");
  const auto address = reinterpret_cast<uint64_t>(pointer);
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2)
      inside = address >= begin && address < end;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line.find(" dc") == std::string::npos;
  }
  ADD_FAILURE() << pointer << " is not mapped";
  return true;
}

TEST(Pool, pool_22_forked_children_do_not_get_pinned_memory) {
  Instance instance = open_instance();
  for (const OfDriver& each : kinds_of_driver(instance.device())) {
    if (each.kind != GPUMEM_KIND_PINNED) continue;
    const Pool pool = create_pool(instance.device(), each.desc());
    auto* const block = static_cast<uint8_t*>(take(pool, kMiB));
    EXPECT_FALSE(is_for_children(block));
    EXPECT_FALSE(is_for_children(block + kMiB - 1));
    give(pool, block);
  }
}

TEST(Pool, pool_22_what_does_not_go_with_it_is_refused) {
  const Instance instance = open_instance();
  const auto refused = [&](gpumem_status status, const gpumem_pool_desc& desc, const char* reason) {
    gpumem_pool pool = nullptr;
    gpumem_error error = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(status, gpumem_pool_create(instance.device(), &desc, &pool, &error));
    EXPECT_EQ(pool, nullptr);
    EXPECT_NE(std::string(error.message).find(reason), std::string::npos) << error.message;
  };
  for (const gpumem_kind kind : {GPUMEM_KIND_PAGEABLE, GPUMEM_KIND_MANAGED})
    refused(GPUMEM_ERROR_INVALID_ARGUMENT, OfDriver{kind}.desc(), "GPUMEM_POOL_FROM_DRIVER");
  for (const OfDriver& each : {OfDriver{GPUMEM_KIND_DEVICE, GPUMEM_MEMORY_SHAREABLE},
                               {GPUMEM_KIND_PINNED, GPUMEM_MEMORY_WRITE_COMBINED},
                               {GPUMEM_KIND_PINNED, GPUMEM_MEMORY_NUMA_NODE | GPUMEM_MEMORY_PORTABLE}}) {
    SCOPED_TRACE(each.kind);
    refused(GPUMEM_ERROR_INVALID_ARGUMENT, each.desc(), "GPUMEM_POOL_FROM_DRIVER");
  }
  gpumem_pool_desc desc = OfDriver{GPUMEM_KIND_PINNED, GPUMEM_MEMORY_NUMA_NODE}.desc();
  desc.numa_node = 1000;
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, desc, "NUMA node 1000");
  if (!has_driver_pools(instance.device())) SKIP_RULE("the driver has no pools");
  desc = OfDriver{GPUMEM_KIND_DEVICE}.desc();
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  refused(GPUMEM_ERROR_UNSUPPORTED, desc, "GPUMEM_POOL_FROM_DRIVER has no handle types");
  desc.handle_types = 0;
  for (const gpumem_access_desc& access : {device_rights(0, GPUMEM_ACCESS_READ), cpu_rights()}) {
    desc.accesses = &access;
    desc.access_count = 1;
    refused(GPUMEM_ERROR_UNSUPPORTED, desc,
            access.location == GPUMEM_LOCATION_HOST ? "the CPU" : "GPUMEM_ACCESS_READWRITE");
  }
}

CHILD(pool_22_older_driver) {
  Instance instance = open_instance();
  for (const OfDriver& each : {OfDriver{GPUMEM_KIND_PINNED}, {GPUMEM_KIND_PINNED, GPUMEM_MEMORY_NUMA_NODE}}) {
    SCOPED_TRACE(testing::Message() << each.kind << ' ' << each.flags);
    const gpumem_pool_desc desc = each.desc();
    gpumem_pool pool = nullptr;
    gpumem_error error = GPUMEM_ERROR_INIT;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_pool_create(instance.device(), &desc, &pool, &error));
    EXPECT_NE(std::string(error.message).find("CUDA 13.0"), std::string::npos) << error.message;
  }
  give(create_pool(instance.device(), OfDriver{GPUMEM_KIND_DEVICE}.desc()), nullptr);
}

TEST(Pool, pool_22_an_older_driver_says_what_it_lacks) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver can be older");
  EXPECT_CHILD_OK(run_child("pool_22_older_driver", {"FAKE_CUDA_VERSION=12.8"}));
  EXPECT_CHILD_OK(run_child("pool_22_older_driver", {"FAKE_CUDA_VERSION=11.2"}));
}

CHILD(pool_22_without_host_pools) {
  Instance instance = open_instance();
  for (const gpumem_memory_flags flags : {gpumem_memory_flags{0}, GPUMEM_MEMORY_NUMA_NODE}) {
    const gpumem_pool_desc desc = OfDriver{GPUMEM_KIND_PINNED, flags}.desc();
    gpumem_pool pool = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_pool_create(instance.device(), &desc, &pool, why()));
  }
}

TEST(Pool, pool_22_a_device_without_host_pools_says_so) {
  if (!on_fake_cuda()) SKIP_RULE("every other backend here has them");
  EXPECT_CHILD_OK(
      run_child("pool_22_without_host_pools",
                {"FAKE_CUDA_VERSION=13.0", "FAKE_CUDA_ATTRIBUTE_142=0", "FAKE_CUDA_ATTRIBUTE_144=0"}));
}

CHILD(pool_22_without_driver_pools) {
  const Instance instance = open_instance();
  EXPECT_EQ(capability(instance.device(), GPUMEM_CAPABILITY_POOL_DRIVER).value, GPUMEM_ANSWER_NO);
  const gpumem_pool_desc desc = pool_desc(0, GPUMEM_POOL_FROM_DRIVER);
  gpumem_pool pool = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_pool_create(instance.device(), &desc, &pool, &error));
  EXPECT_NE(std::string(error.message).find("pool.driver"), std::string::npos) << error.message;
  give(create_pool(instance.device()), nullptr);
}

TEST(Pool, pool_22_a_device_without_driver_pools_says_so) {
  if (!on_fake_cuda()) SKIP_RULE("every other backend here has them");
  constexpr const char* kNone = "FAKE_CUDA_ATTRIBUTE_115=0";  // MEMORY_POOLS_SUPPORTED
  EXPECT_CHILD_OK(run_child("pool_22_without_driver_pools", {kNone}));
}

#ifdef HAVE_CUDA_HEADERS
CUmemoryPool driver_pool_of(const void* pointer) {
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(raw().cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                        reinterpret_cast<CUdeviceptr>(pointer)),
            CUDA_SUCCESS);
  return pool;
}
#endif

TEST(Pool, pool_22_it_cannot_be_shared) {
  const Instance instance = open_instance();
  if (!has_driver_pools(instance.device())) SKIP_RULE("the driver has no pools");
  const Pool pool = create_pool(instance.device(), 0, GPUMEM_POOL_FROM_DRIVER);
  void* const block = take(pool, 2 * kMiB);
  gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
  for (const gpumem_export_flags flags : {gpumem_export_flags{0}, GPUMEM_EXPORT_NEIGHBOURS}) {
    for (const gpumem_share_way way :
         {GPUMEM_SHARE_WAY_ANY, GPUMEM_SHARE_WAY_LEGACY, GPUMEM_SHARE_WAY_POSIX_FD}) {
      SCOPED_TRACE(testing::Message() << flags << " " << way);
      desc.flags = flags;
      desc.way = way;
      gpumem_share_handle handle;
      gpumem_error error = GPUMEM_ERROR_INIT;
      EXPECT_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_share_export(instance, block, &desc, &handle, &error));
      EXPECT_NE(std::string(error.message).find("GPUMEM_POOL_FROM_DRIVER"), std::string::npos)
          << error.message;
    }
  }
  give(pool, block);
}

// The driver may hand out memory that other code has freed behind work which still runs; then taking it
// waits.
TEST(Pool, pool_22_taking_memory_waits_and_holds_up_no_other_call) {
  REQUIRE_FOREIGN();
#ifdef HAVE_CUDA_HEADERS
  if (on_host()) SKIP_RULE("other code has no memory of an emulated device");
  const Instance instance = open_instance();
  if (!has_driver_pools(instance.device())) SKIP_RULE("the driver has no pools");
  GatedStream held(instance.device());
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  ASSERT_OK(gpumem_stream_get_info(held, &info, why()));
  {
    const PrimaryContext context(0);
    const auto native = static_cast<CUstream>(info.native_stream);
    CUdeviceptr of_other_code = 0;
    ASSERT_EQ(raw().cuMemAllocAsync(&of_other_code, 8 * kMiB, CU_STREAM_LEGACY), CUDA_SUCCESS);
    ASSERT_EQ(raw().cuStreamSynchronize(CU_STREAM_LEGACY), CUDA_SUCCESS);
    ASSERT_EQ(raw().cuMemFreeAsync(of_other_code, native), CUDA_SUCCESS);
  }
  const Pool pool = create_pool(instance.device(), 0, GPUMEM_POOL_FROM_DRIVER, 12 * kMiB);
  std::atomic<bool> opened = false;
  void* block = nullptr;
  gpumem::test::Sleeper taking([&] {
    block = take(pool, 8 * kMiB);
    if (on_fake_cuda()) {
      EXPECT_TRUE(opened) << "the fake driver orders it behind every pending free";
    }
  });
  // The lock of the pool is not held meanwhile.
  void* kept = &kept;
  gpumem_pool_attempt attempt = GPUMEM_POOL_ATTEMPT_INIT;
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_pool_try_alloc(pool, 2 * kMiB, 0, nullptr, &kept, &attempt, why()));
  EXPECT_EQ(attempt.answer, GPUMEM_POOL_ANSWER_NEEDS_MEMORY);
  // Who lacks memory too waits for what that thread takes.
  void* small = nullptr;
  gpumem::test::Sleeper other([&] { small = take(pool, 4 * kKiB); });
  opened = true;
  held.finish();
  taking.join();
  other.join();
  EXPECT_LE(info_of(pool).reserved_bytes, 12 * kMiB);
  give(pool, block);
  give(pool, small);
#endif
}

TEST(Pool, pool_22_the_driver_has_it_in_the_pool_of_all) {
  REQUIRE_FOREIGN();
#ifdef HAVE_CUDA_HEADERS
  if (on_host()) SKIP_RULE("other code has no memory of an emulated device");
  const Instance instance = open_instance();
  if (!has_driver_pools(instance.device())) SKIP_RULE("the driver has no pools");
  const PrimaryContext context(0);
  CUdeviceptr of_other_code = 0;
  ASSERT_EQ(raw().cuMemAllocAsync(&of_other_code, kMiB, CU_STREAM_LEGACY), CUDA_SUCCESS);
  for (const uint64_t size : {4 * kKiB, 8 * kMiB}) {
    const Pool own = create_pool(instance.device());
    const Pool shared = create_pool(instance.device(), 0, GPUMEM_POOL_FROM_DRIVER);
    void* const in_own = take(own, size);
    void* const in_shared = take(shared, size);
    EXPECT_EQ(driver_pool_of(in_own), nullptr);
    EXPECT_NE(driver_pool_of(in_shared), nullptr);
    EXPECT_EQ(driver_pool_of(in_shared), driver_pool_of(reinterpret_cast<void*>(of_other_code)));
    give(own, in_own);
    give(shared, in_shared);
  }
  EXPECT_EQ(raw().cuMemFreeAsync(of_other_code, CU_STREAM_LEGACY), CUDA_SUCCESS);
  EXPECT_EQ(raw().cuStreamSynchronize(CU_STREAM_LEGACY), CUDA_SUCCESS);
#endif
}

// One pool of the driver serves all that ask for the same, and no other code has memory of it.
TEST(Pool, pool_22_pools_of_the_driver_are_made_once) {
  REQUIRE_FOREIGN();
#ifdef HAVE_CUDA_HEADERS
  if (on_host()) SKIP_RULE("an emulated device has no driver");
  Instance instance = open_instance();
  const std::vector<OfDriver> kinds = kinds_of_driver(instance.device());
  if (kinds.empty()) SKIP_RULE("the driver has no pools");
  std::set<CUmemoryPool> found;
  for (const OfDriver& each : kinds) {
    const Pool pool = create_pool(instance.device(), each.desc());
    const Pool second = create_pool(instance.device(), each.desc());
    void* const block = take(pool, 4 * kKiB);
    void* const other = take(second, 4 * kKiB);
    EXPECT_NE(driver_pool_of(block), nullptr);
    EXPECT_EQ(driver_pool_of(block), driver_pool_of(other));
    EXPECT_TRUE(found.insert(driver_pool_of(block)).second) << each.kind << ' ' << each.flags;
    give(pool, block);
    give(second, other);
  }
#endif
}

}  // namespace
}  // namespace conformance
