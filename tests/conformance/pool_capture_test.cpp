// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools and streams that are being captured into a graph (STR-22, POOL-14).
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "../asleep.h"
#include "captured.h"
#include "gpumem/mr.hpp"
#include "pools.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kRelaxed = 2;                                    // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr std::array<uint64_t, 2> kSizes{4 * kKiB, 2 * kMiB};  // a small block, and a large one

void release(gpumem_pool pool, uint64_t capture, gpumem_stream stream = nullptr) {
  EXPECT_OK(gpumem_pool_release_capture(pool, capture, stream, why()));
}

// Whether one of many allocations, in the stream, has an address. They are freed again.
bool hands_out(gpumem_pool pool, const void* block, uint64_t size, gpumem_stream stream = nullptr) {
  const size_t many = size > kMiB ? 12 : 96;
  std::vector<void*> taken;
  bool found = false;
  void* pointer = nullptr;
  // A lack of memory ends it as well: then it was all handed out.
  while (taken.size() < many && !found &&
         gpumem_pool_alloc(pool, size, stream, &pointer, nullptr) == GPUMEM_SUCCESS) {
    taken.push_back(pointer);
    found = pointer == block;
  }
  EXPECT_FALSE(taken.empty());
  for (void* const one : taken)
    give(pool, one, stream);
  return found;
}

// The same for a block that must be found among all that is free, once the marks in the streams have passed.
// All others are held meanwhile: a pool hands out first what no mark stands before.
bool is_free(gpumem_pool pool, const void* block, uint64_t size, gpumem_stream stream = nullptr) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  const size_t many = size > kMiB ? 100 : 800;
  std::vector<void*> held;
  bool found = false;
  while (!found && std::chrono::steady_clock::now() < deadline) {
    void* pointer = nullptr;
    if (gpumem_pool_alloc(pool, size, stream, &pointer, nullptr) == GPUMEM_SUCCESS) {
      held.push_back(pointer);
      found = pointer == block;
    }
    if (held.size() >= many || pointer == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (void* const one : held)
    give(pool, one, stream);
  return found;
}

TEST(PoolCapture, str_22_the_number_of_a_capture) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  Captured first(instance.device());
  Captured second(instance.device());
  EXPECT_EQ(first.number(), 0U);
  const uint64_t one = first.begin(kRelaxed);  // the other graph is instantiated beside it
  const uint64_t two = second.begin(kRelaxed);
  EXPECT_NE(one, 0U);
  EXPECT_NE(two, 0U);
  EXPECT_NE(one, two);
  EXPECT_EQ(first.number(), one);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_get_capture_id(first, nullptr, why()));
  EXPECT_EQ(second.end(), 0U);
  EXPECT_EQ(first.end(), 0U);
  EXPECT_EQ(first.number(), 0U);
  const uint64_t three = first.begin();
  EXPECT_TRUE(three != one && three != two && three != 0);
  first.end();
}

TEST(PoolCapture, str_22_blocks_belong_to_their_capture_until_it_is_released) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const gpumem_kind kind :
       {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED, GPUMEM_KIND_PAGEABLE}) {
    for (const uint64_t size : kSizes) {
      SCOPED_TRACE(kind);
      SCOPED_TRACE(size);
      const Pool pool = create_pool(instance.device(), kind);
      Captured captured(instance.device());
      const Stream other = create_stream(instance.device());
      // What the stream has free already is no reason to mix.
      void* const before = take(pool, size, captured);
      give(pool, before, captured);
      const uint64_t capture = captured.begin();
      void* const first = take(pool, size, captured);
      void* const second = take(pool, size, captured);
      EXPECT_NE(first, second);
      EXPECT_NE(first, before) << "its work was not seen complete, and may be used outside";
      give(pool, first, captured);
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, first, captured, why()));
      EXPECT_EQ(take(pool, size, captured), first) << "the order of the capture";
      give(pool, first, captured);
      EXPECT_EQ(captured.end(), 0U) << "nodes";
      EXPECT_EQ(info_of(pool).capture_count, 1U);
      EXPECT_EQ(info_of(pool).captured_bytes, 2 * size);
      EXPECT_EQ(info_of(pool).live_count, 1U);
      for (const gpumem_stream stream :
           {gpumem_stream{}, other.get(), static_cast<gpumem_stream>(captured)}) {
        EXPECT_FALSE(hands_out(pool, first, size, stream)) << "freed, but of the graph";
        EXPECT_FALSE(hands_out(pool, second, size, stream)) << "live";
      }
      // Another capture is another part.
      const uint64_t next = captured.begin();
      EXPECT_FALSE(hands_out(pool, first, size, captured));
      captured.end();
      EXPECT_EQ(info_of(pool).capture_count, 2U);
      release(pool, next);
      // What was freed in them above is not the pool's until their work has passed.
      EXPECT_OK(gpumem_stream_synchronize(other, GPUMEM_TIMEOUT_INFINITE, why()));
      EXPECT_OK(gpumem_stream_synchronize(captured, GPUMEM_TIMEOUT_INFINITE, why()));
      trim(pool);
      EXPECT_EQ(info_of(pool).captured_bytes, 2 * size) << "trim passes it over";
      EXPECT_GE(info_of(pool).reserved_bytes, 2 * size);
      if (size > kMiB) {  // of small ones the pool may have cut more
        void* none = nullptr;
        gpumem_pool_attempt attempt = GPUMEM_POOL_ATTEMPT_INIT;
        EXPECT_EQ(gpumem_pool_try_alloc(pool, size, 0, other, &none, &attempt, why()), GPUMEM_NOT_READY);
        EXPECT_EQ(attempt.answer, GPUMEM_POOL_ANSWER_NEEDS_MEMORY) << "no wait helps";
      }

      release(pool, capture);
      EXPECT_EQ(info_of(pool).capture_count, 0U);
      EXPECT_EQ(info_of(pool).captured_bytes, 0U);
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_release_capture(pool, capture, nullptr, why()));
      EXPECT_TRUE(is_free(pool, first, size)) << "given back";
      EXPECT_FALSE(hands_out(pool, second, size)) << "still live";
      give(pool, second);
      EXPECT_TRUE(is_free(pool, second, size));
      EXPECT_EQ(info_of(pool).live_count, 0U);
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

TEST(PoolCapture, str_22_a_free_from_outside_waits_for_the_release) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    for (const bool by_pointer : {false, true}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(by_pointer);
      const Pool pool = create_pool(instance.device());
      Captured captured(instance.device());
      GatedStream other(instance.device());
      const uint64_t capture = captured.begin();
      void* const plain = take(pool, size, captured);
      void* const ordered = take(pool, size, captured);
      if (by_pointer) {
        EXPECT_OK(gpumem_pool_free_pointer(instance, plain, nullptr, why()));
        EXPECT_OK(gpumem_pool_free_pointer(instance, ordered, other, why()));
      } else {
        give(pool, plain);
        give(pool, ordered, other);
      }
      EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, plain, nullptr, why()));
      EXPECT_EQ(info_of(pool).live_count, 0U);
      EXPECT_EQ(info_of(pool).captured_bytes, 2 * size) << "kept back";
      EXPECT_FALSE(hands_out(pool, plain, size, captured)) << "nor may the capture itself have it";
      captured.end();
      EXPECT_FALSE(hands_out(pool, plain, size));
      EXPECT_FALSE(hands_out(pool, ordered, size, other));
      trim(pool);
      EXPECT_GE(info_of(pool).captured_bytes, 2 * size);
      release(pool, capture);
      EXPECT_TRUE(is_free(pool, plain, size));
      EXPECT_FALSE(hands_out(pool, ordered, size)) << "behind the work of its stream";
      other.finish();
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

TEST(PoolCapture, str_22_an_ordinary_block_that_a_capture_frees_or_uses_is_kept_back) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    Captured second(instance.device());
    void* const freed = take(pool, size, captured);
    void* const used = take(pool, size);
    void* const of_two = take(pool, size);
    const uint64_t capture = captured.begin(kRelaxed);  // the other graph is instantiated beside it
    const uint64_t other = second.begin(kRelaxed);
    void* const own = take(pool, 16, captured);
    give(pool, freed, captured);
    EXPECT_OK(gpumem_pool_record_use(pool, used, captured, why()));
    EXPECT_OK(gpumem_pool_record_use(pool, of_two, captured, why()));
    EXPECT_OK(gpumem_pool_record_use(pool, of_two, second, why()));
    // Allocated by this capture, and used by the other one.
    void* const lent = take(pool, size, captured);
    EXPECT_OK(gpumem_pool_record_use(pool, lent, second, why()));
    give(pool, lent, captured);
    give(pool, used);
    EXPECT_FALSE(hands_out(pool, freed, size, captured));
    second.end();
    captured.end();
    give(pool, of_two);
    EXPECT_EQ(info_of(pool).capture_count, 2U);
    for (void* const block : {freed, used, of_two, lent})
      EXPECT_FALSE(hands_out(pool, block, size));
    release(pool, capture);
    EXPECT_TRUE(is_free(pool, used, size));
    EXPECT_FALSE(hands_out(pool, of_two, size)) << "one graph is left";
    EXPECT_FALSE(hands_out(pool, lent, size));
    release(pool, other);
    EXPECT_TRUE(is_free(pool, of_two, size));
    EXPECT_TRUE(is_free(pool, lent, size));
    EXPECT_TRUE(is_free(pool, freed, size, captured));
    give(pool, own);
    trim(pool);
    EXPECT_EQ(info_of(pool).live_count, 0U);
    EXPECT_EQ(info_of(pool).captured_bytes, 0U);
  }
}

TEST(PoolCapture, pool_17_captures_are_left_to_a_caller_that_is_trusted) {
  Instance instance = open_instance();
  const Pool pool =
      create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_TRUST_NATIVE_STREAMS));
  Captured stream(instance.device());
  stream.begin();
  for (const uint64_t size : kSizes) {
    void* block = nullptr;
    ASSERT_OK(gpumem_pool_alloc_native(pool, size, stream.native(), &block, why()));
    EXPECT_EQ(info_of(pool).capture_count, 0u);
    EXPECT_OK(gpumem_pool_free_native(pool, block, stream.native(), why()));
    void* again = nullptr;
    EXPECT_OK(gpumem_pool_alloc_native(pool, size, stream.native(), &again, why()));
    EXPECT_EQ(again, block);
    EXPECT_OK(gpumem_pool_free_native(pool, again, stream.native(), why()));
  }
  // So many that a mark is due, which must not become part of the graph.
  std::vector<void*> blocks(300);
  for (void*& block : blocks)
    ASSERT_OK(gpumem_pool_alloc_native(pool, 64 * kKiB, stream.native(), &block, why()));
  for (void* const block : blocks)
    EXPECT_OK(gpumem_pool_free_native(pool, block, stream.native(), why()));
  EXPECT_EQ(stream.end(), 0u);
  EXPECT_EQ(info_of(pool).capture_count, 0u);
}

// The legacy default stream waits for all blocking streams of its context, and while one of these is being
// captured the driver answers no question about it.
TEST(PoolCapture, pool_11_blocks_of_the_default_stream_beside_a_capture) {
  if (on_host()) SKIP_RULE("the host backend has no blocking streams");
#ifdef HAVE_CUDA_HEADERS
  Instance instance = open_instance();
  const PrimaryContext context(ordinal_of(instance.device()));
  gpumem_stream wrapped = nullptr;
  ASSERT_OK(gpumem_stream_wrap(instance.device(), nullptr, &wrapped, why()));
  gpumem_stream_info known = GPUMEM_STREAM_INFO_INIT;
  EXPECT_OK(gpumem_stream_get_info(wrapped, &known, why()));
  EXPECT_OK(gpumem_stream_destroy(wrapped, why()));
  if (known.id == 0) SKIP_RULE("a driver before 12.0 does not tell streams apart");
  for (const CUstream legacy : {CUstream{}, CU_STREAM_LEGACY}) {
    for (const uint64_t size : kSizes) {
      SCOPED_TRACE(size);
      const Pool pool = create_pool(instance.device());
      void* const unordered = take(pool, size);
      void* block = nullptr;
      ASSERT_OK(gpumem_pool_alloc_native(pool, size, legacy, &block, why()));
      CUstream blocking = nullptr;
      ASSERT_EQ(raw().cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
      EXPECT_EQ(raw().cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      void* none = nullptr;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_alloc_native(pool, size, legacy, &none, why()));
      EXPECT_OK(gpumem_stream_wrap(instance.device(), legacy, &wrapped, why()));
      gpumem::mr::rmm_deallocate(block, size, legacy, pool.get());
      gpumem::mr::rmm_deallocate(unordered, size, legacy, pool.get());
      EXPECT_EQ(info_of(pool).live_count, 0U);
      EXPECT_FALSE(hands_out(pool, block, size)) << "work of the default stream may use it";
      CUgraph graph = nullptr;
      EXPECT_EQ(raw().cuStreamEndCapture(blocking, &graph), CUDA_SUCCESS);
      ASSERT_NE(graph, nullptr);
      EXPECT_EQ(raw().cuGraphDestroy(graph), CUDA_SUCCESS);
      EXPECT_EQ(raw().cuStreamDestroy(blocking), CUDA_SUCCESS);
      void* again = nullptr;
      EXPECT_OK(gpumem_pool_alloc_native(pool, size, legacy, &again, why()));
      EXPECT_TRUE(again == block || again == unordered) << "it is the stream that freed it";
      EXPECT_OK(gpumem_pool_free_native(pool, again, legacy, why()));
      EXPECT_OK(gpumem_stream_destroy(wrapped, why()));
    }
  }
#endif
}

#ifdef HAVE_CUDA_HEADERS
// A stream of other code that is being captured.
class CapturedBeside {
 public:
  explicit CapturedBeside(unsigned flags) {
    EXPECT_EQ(raw().cuStreamCreate(&stream_, flags), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  }
  CapturedBeside(const CapturedBeside&) = delete;
  CapturedBeside& operator=(const CapturedBeside&) = delete;
  ~CapturedBeside() {
    CUgraph graph = nullptr;
    EXPECT_EQ(raw().cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS) << "something spoilt the capture";
    if (graph != nullptr) {
      EXPECT_EQ(raw().cuGraphDestroy(graph), CUDA_SUCCESS);
    }
    EXPECT_EQ(raw().cuStreamDestroy(stream_), CUDA_SUCCESS);
  }

 private:
  CUstream stream_ = nullptr;
};
#endif

TEST(PoolCapture, com_28_a_pool_with_frees_in_the_default_stream_ends_behind_a_capture) {
  if (on_host()) SKIP_RULE("the host backend has no blocking streams");
#ifdef HAVE_CUDA_HEADERS
  Instance instance = open_instance();
  const PrimaryContext context(ordinal_of(instance.device()));
  const Stream wrapped = wrap_stream(instance.device(), nullptr);
  const gpumem_stats before = stats(instance);
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    Pool pool = create_pool(instance.device());
    void* block = take(pool, size, wrapped);
    EXPECT_OK(fill_on(instance, wrapped, block, size, 6, 1, why()));
    give(pool, block, wrapped);
    {
      const CapturedBeside other(CU_STREAM_DEFAULT);
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_destroy(pool, why()));
      EXPECT_EQ(info_of(pool).live_count, 0U) << "it lives on";
    }
    EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
    EXPECT_EQ(stats(instance).live_count, before.live_count);

    // The last block of a destroyed pool is freed all the same, and the memory goes back later.
    pool = create_pool(instance.device());
    block = take(pool, size, wrapped);
    EXPECT_OK(fill_on(instance, wrapped, block, size, 6, 1, why()));
    EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
    {
      const CapturedBeside other(CU_STREAM_DEFAULT);
      EXPECT_OK(gpumem_pool_free_pointer(instance, block, wrapped, why()));
      EXPECT_GT(stats(instance).live_count, before.live_count);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    do {
      create_pool(instance.device());
    } while (stats(instance).live_count != before.live_count && std::chrono::steady_clock::now() < deadline);
    EXPECT_EQ(stats(instance).live_count, before.live_count);
  }
#endif
}

// Only the thread itself can ask or mark its default stream.
TEST(PoolCapture, com_28_a_pool_with_frees_in_a_threads_own_stream_ends_on_another_thread) {
  if (on_host()) SKIP_RULE("the host backend has no such stream");
#ifdef HAVE_CUDA_HEADERS
  Instance instance = open_instance();
  const PrimaryContext context(ordinal_of(instance.device()));
  const Stream wrapped = wrap_stream(instance.device(), CU_STREAM_PER_THREAD);
  const gpumem_stats before = stats(instance);
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    Pool pool = create_pool(instance.device());
    void* const block = take(pool, size, wrapped);
    EXPECT_OK(fill_on(instance, wrapped, block, size, 6, 1, why()));
    give(pool, block, wrapped);
    const auto destroy_on_a_thread = [&] {
      gpumem_status status = GPUMEM_NOT_READY;
      std::thread([&] { status = gpumem_pool_destroy(pool, why()); }).join();
      return status;
    };
    {
      const CapturedBeside blocking(CU_STREAM_DEFAULT);
      EXPECT_EQ(destroy_on_a_thread(), GPUMEM_ERROR_INVALID_STATE);
      EXPECT_EQ(info_of(pool).live_count, 0U) << "it lives on";
    }
    {
      const CapturedBeside other(CU_STREAM_NON_BLOCKING);
      EXPECT_EQ(destroy_on_a_thread(), GPUMEM_SUCCESS);
      (void)pool.release();
    }
    EXPECT_EQ(stats(instance).live_count, before.live_count);
  }
#endif
}

TEST(PoolCapture, str_22_a_pool_may_hear_of_a_capture_first_by_a_free) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    void* const block = take(pool, size, captured);
    const uint64_t capture = captured.begin();
    give(pool, block, captured);
    EXPECT_FALSE(hands_out(pool, block, size, captured));
    captured.end();
    for (const gpumem_stream stream : {gpumem_stream{}, static_cast<gpumem_stream>(captured)})
      EXPECT_FALSE(hands_out(pool, block, size, stream)) << "the graph uses it";
    release(pool, capture);
    EXPECT_TRUE(is_free(pool, block, size, captured));
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_use_that_is_recorded_outside_is_waited_for_too) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    GatedStream other(instance.device());
    const uint64_t capture = captured.begin();
    void* const block = take(pool, size, captured);
    EXPECT_OK(gpumem_pool_record_use(pool, block, other, why()));
    give(pool, block, captured);
    EXPECT_FALSE(hands_out(pool, block, size, captured)) << "the other stream uses it";
    captured.end();
    release(pool, capture);
    EXPECT_FALSE(hands_out(pool, block, size));
    other.finish();
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_use_that_is_recorded_outside_outlives_the_capture) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    GatedStream other(instance.device());
    const Stream stream = create_stream(instance.device());
    void* const block = take(pool, size, stream);
    EXPECT_OK(gpumem_pool_record_use(pool, block, other, why()));
    const uint64_t capture = captured.begin();
    EXPECT_OK(gpumem_pool_record_use(pool, block, captured, why()));
    EXPECT_EQ(info_of(pool).captured_bytes, 0U) << "it is no block of the part";
    captured.end();
    release(pool, capture);
    give(pool, block, stream);
    EXPECT_FALSE(hands_out(pool, block, size, stream)) << "the other stream uses it";
    other.finish();
    EXPECT_TRUE(is_free(pool, block, size, stream));
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_released_block_serves_the_stream_of_its_free_at_once) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    GatedStream held(instance.device());
    const uint64_t capture = captured.begin();
    void* const block = take(pool, size, captured);
    EXPECT_OK(gpumem_pool_record_use(pool, block, held, why()));
    give(pool, block, held);
    captured.end();
    EXPECT_FALSE(hands_out(pool, block, size, held));
    release(pool, capture);
    EXPECT_FALSE(hands_out(pool, block, size));
    EXPECT_TRUE(hands_out(pool, block, size, held)) << "its use in that stream is before the free";
    held.finish();
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_release_behind_the_work_of_a_stream) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    GatedStream launches(instance.device());
    const uint64_t capture = captured.begin();
    void* const block = take(pool, size, captured);
    give(pool, block, captured);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_release_capture(pool, capture, captured, why()));
    captured.end();
    release(pool, capture, launches);
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_release_capture(pool, capture, nullptr, why()));
    EXPECT_EQ(info_of(pool).capture_count, 0U) << "the part is released";
    EXPECT_FALSE(hands_out(pool, block, size)) << "the graph runs";
    EXPECT_FALSE(hands_out(pool, block, size, launches));
    trim(pool);
    EXPECT_EQ(info_of(pool).captured_bytes, size);
    launches.finish();
    EXPECT_TRUE(all_goes_back(pool));
    EXPECT_EQ(info_of(pool).captured_bytes, 0U);
  }
}

TEST(PoolCapture, str_22_a_release_waits_for_no_later_work_of_its_stream) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    const Stream launches = create_stream(instance.device());
    Gate gate;
    const uint64_t capture = captured.begin();
    void* const block = take(pool, size, captured);
    give(pool, block, captured);
    captured.end();
    release(pool, capture, launches);
    gate.hold(launches);
    EXPECT_TRUE(is_free(pool, block, size));
  }
}

// The capture has a new part by then.
TEST(PoolCapture, str_22_what_a_released_part_kept_back_is_not_kept_for_the_next_one) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    GatedStream launches(instance.device());
    const uint64_t capture = captured.begin(kRelaxed);
    void* const block = take(pool, size, captured);
    give(pool, block);
    release(pool, capture, launches);
    void* const next = take(pool, size, captured);
    EXPECT_NE(next, block);
    EXPECT_EQ(info_of(pool).capture_count, 1U);
    launches.finish();
    EXPECT_TRUE(is_free(pool, block, size));
    captured.end();
    give(pool, next);
    release(pool, capture);
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_str_23_a_recorded_use_ends_with_a_block_that_a_capture_frees) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  Captured captured(instance.device());
  const Stream first = create_stream(instance.device());
  const Stream second = create_stream(instance.device());
  Gate gate;
  void* const block = take(pool, 3 * kMiB);
  EXPECT_OK(gpumem_pool_record_use(pool, block, first, why()));
  const uint64_t capture = captured.begin();
  give(pool, block, captured);
  captured.end();
  release(pool, capture);
  first.synchronize();
  EXPECT_OK(gpumem_stream_synchronize(captured, GPUMEM_TIMEOUT_INFINITE, why()));
  trim(pool, UINT64_MAX);  // takes notice
  ASSERT_EQ(take(pool, 3 * kMiB), block);
  gate.hold(first);
  EXPECT_OK(gpumem_pool_record_use(pool, block, second, why()));
  give(pool, block);
  second.synchronize();
  trim(pool, UINT64_MAX);
  EXPECT_EQ(take(pool, 3 * kMiB), block) << "the first stream has not used it again";
  give(pool, block);
}

TEST(PoolCapture, str_22_a_block_of_two_captures_waits_for_the_work_of_both) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured first(instance.device());
    Captured second(instance.device());
    GatedStream launches(instance.device());
    const uint64_t one = first.begin(kRelaxed);
    const uint64_t two = second.begin(kRelaxed);
    void* const block = take(pool, size);
    EXPECT_OK(gpumem_pool_record_use(pool, block, first, why()));
    EXPECT_OK(gpumem_pool_record_use(pool, block, second, why()));
    second.end();
    first.end();
    give(pool, block);
    release(pool, one, launches);
    release(pool, two);
    EXPECT_FALSE(hands_out(pool, block, size)) << "the first graph runs";
    launches.finish();
    EXPECT_TRUE(is_free(pool, block, size));
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_block_that_another_capture_frees_waits_for_the_release_of_both) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured first(instance.device());
    Captured second(instance.device());
    void* const used = take(pool, size);
    const uint64_t one = first.begin(kRelaxed);
    const uint64_t two = second.begin(kRelaxed);
    void* const own = take(pool, size, first);
    EXPECT_OK(gpumem_pool_record_use(pool, used, first, why()));
    give(pool, used, second);
    give(pool, own, second);
    second.end();
    first.end();
    release(pool, one);
    EXPECT_FALSE(hands_out(pool, used, size)) << "the graph of the free is left";
    EXPECT_FALSE(hands_out(pool, own, size));
    release(pool, two);
    EXPECT_TRUE(is_free(pool, used, size));
    EXPECT_TRUE(is_free(pool, own, size));
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_released_part_counts_to_the_threshold) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc();
  desc.release_threshold = 4 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  Captured captured(instance.device());
  const uint64_t capture = captured.begin();
  give(pool, take(pool, 16 * kMiB, captured), captured);
  captured.end();
  EXPECT_GE(info_of(pool).reserved_bytes, 16 * kMiB);
  release(pool, capture);
  EXPECT_LE(info_of(pool).reserved_bytes, 4 * kMiB);
}

// No work outside of the capture has used it.
TEST(PoolCapture, str_22_a_block_that_its_own_capture_frees_waits_for_no_stream) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured first(instance.device());
    Captured second(instance.device());
    Gate gate;
    const uint64_t one = first.begin(kRelaxed);
    const uint64_t two = second.begin(kRelaxed);
    void* const block = take(pool, size, first);
    EXPECT_OK(gpumem_pool_record_use(pool, block, second, why()));
    give(pool, block, first);
    second.end();
    first.end();
    gate.hold(first);
    release(pool, one);
    EXPECT_FALSE(hands_out(pool, block, size));
    release(pool, two);
    EXPECT_TRUE(is_free(pool, block, size));
  }
}

// Nobody else knows whether the capture goes on: its owner must.
TEST(PoolCapture, str_22_a_release_during_the_capture) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    const uint64_t capture = captured.begin(kRelaxed);
    void* const block = take(pool, size, captured);
    give(pool, block, captured);
    EXPECT_FALSE(hands_out(pool, block, size));
    release(pool, capture);
    EXPECT_EQ(info_of(pool).capture_count, 0U);
    EXPECT_TRUE(is_free(pool, block, size));
    give(pool, take(pool, size, captured), captured);
    EXPECT_EQ(info_of(pool).capture_count, 1U) << "a new part";
    captured.end();
    release(pool, capture);
    EXPECT_EQ(info_of(pool).capture_count, 0U);
  }
}

// The block is an ordinary one then, even if the capture has a new part.
TEST(PoolCapture, str_22_a_release_during_an_allocation_of_the_part) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  struct State {
    gpumem_pool pool;
    gpumem_stream stream;
    uint64_t capture;
    bool goes_on;
    void* next;
  };
  const auto callback = [](void* user_data, gpumem_pool, uint64_t) {
    auto* const it = static_cast<State*>(user_data);
    release(it->pool, it->capture);
    EXPECT_OK(gpumem_pool_set_limit(it->pool, 0, why()));
    if (it->goes_on) it->next = take(it->pool, 16, it->stream);
    return 1;
  };
  for (const uint64_t size : kSizes) {
    for (const bool goes_on : {false, true}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(goes_on);
      const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, 0, 4 * kMiB);
      Captured captured(instance.device());
      void* const outside = take(pool, 4 * kMiB);
      State state{pool, captured, captured.begin(kRelaxed), goes_on, nullptr};
      EXPECT_OK(gpumem_pool_set_callback(pool, callback, &state, why()));
      void* const block = take(pool, size, captured);
      EXPECT_EQ(info_of(pool).capture_count, goes_on ? 1U : 0U);
      if (goes_on) {
        EXPECT_LT(info_of(pool).captured_bytes, size);
      } else {
        EXPECT_EQ(info_of(pool).captured_bytes, 0U);
      }
      captured.end();
      give(pool, block);
      EXPECT_TRUE(is_free(pool, block, size));
      give(pool, outside);
      if (goes_on) {
        give(pool, state.next);
        release(pool, state.capture);
      }
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

TEST(PoolCapture, str_22_memory_that_is_lacking_and_limits) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, 0, 8 * kMiB);
  Captured captured(instance.device());
  // The ordinary cache has it all, in small blocks.
  const Stream other = create_stream(instance.device());
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i)
    blocks.push_back(take(pool, kMiB));
  for (void* const block : blocks)
    give(pool, block);
  const uint64_t capture = captured.begin();
  void* const block = take(pool, 6 * kMiB, captured);
  void* none = &instance;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 6 * kMiB, captured, &none, why()));
  EXPECT_EQ(none, &instance);
  give(pool, block, captured);
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 6 * kMiB, other, &none, why()))
      << "memory of a capture is no cache";
  // In the capture it is, also in pieces.
  void* const half = take(pool, 3 * kMiB, captured);
  EXPECT_GE(half, block);
  EXPECT_LT(static_cast<uint8_t*>(half), static_cast<uint8_t*>(block) + 6 * kMiB);
  const std::array<uint64_t, 3> sizes{kMiB, 16, 0};
  std::array<void*, 3> many{};
  EXPECT_OK(gpumem_pool_alloc_batch(pool, sizes.data(), sizes.size(), captured, many.data(), why()));
  EXPECT_OK(gpumem_pool_free_batch(pool, many.data(), many.size(), captured, why()));
  captured.end();
  EXPECT_EQ(info_of(pool).live_count, 1U);
  release(pool, capture);
  give(pool, half);
  give(pool, take(pool, 6 * kMiB, other), other);
}

TEST(PoolCapture, str_22_pool_7_memory_of_captures_is_no_fragment) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  gpumem_pool_desc desc = pool_desc(GPUMEM_KIND_PINNED);
  desc.limit = desc.initial_size = 8 * kMiB;
  const Pool pool = create_pool(instance.device(), desc);
  Captured captured(instance.device());
  const uint64_t capture = captured.begin();
  std::array<void*, 3> blocks{};
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i] = take(pool, i == 1 ? 5 * kMiB / 4 : 3 * kMiB, captured);
  give(pool, blocks[0], captured);
  give(pool, blocks[2], captured);
  captured.end();
  void* none = nullptr;
  gpumem_error detail = GPUMEM_ERROR_INIT;
  EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED, gpumem_pool_alloc(pool, 6 * kMiB, nullptr, &none, &detail));
  EXPECT_EQ(std::strstr(detail.message, "fragmented"), nullptr) << detail.message;
  give(pool, blocks[1]);
  release(pool, capture);
}

TEST(PoolCapture, str_22_pool_5_a_batch_that_fails_leaves_its_blocks_to_the_capture) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, 0, 8 * kMiB);
    Captured captured(instance.device());
    const uint64_t capture = captured.begin();
    const std::array<uint64_t, 2> sizes{size, 64 * kMiB};
    std::array<void*, 2> none{};
    EXPECT_STATUS(GPUMEM_ERROR_LIMIT_EXCEEDED,
                  gpumem_pool_alloc_batch(pool, sizes.data(), sizes.size(), captured, none.data(), why()));
    EXPECT_EQ(info_of(pool).live_count, 0U);
    EXPECT_EQ(info_of(pool).captured_bytes, size);
    void* const block = take(pool, size, captured);
    EXPECT_EQ(info_of(pool).captured_bytes, size) << "the same one";
    captured.end();
    give(pool, block);
    release(pool, capture);
    EXPECT_TRUE(is_free(pool, block, size));
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_destroying_a_pool_ends_its_parts) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  const gpumem_stats before = stats(instance);
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    for (const bool live : {false, true}) {
      SCOPED_TRACE(flags);
      SCOPED_TRACE(live);
      Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, flags);
      Captured captured(instance.device());
      const Stream other = create_stream(instance.device());
      captured.begin();
      void* const block = take(pool, 3 * kMiB, captured);
      for (const uint64_t size : kSizes) {
        give(pool, take(pool, size, captured), captured);
        give(pool, take(pool, size, captured), other);
      }
      if (!live) give(pool, block, captured);
      captured.end();
      EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
      if (live) {
        EXPECT_GT(stats(instance).live_count, before.live_count);
        EXPECT_OK(gpumem_pool_free_pointer(instance, block, nullptr, why()));
      }
      EXPECT_EQ(stats(instance).live_count, before.live_count) << "the memory goes back with the pool";
    }
  }
}

// A captured stream can be neither marked nor waited for.
TEST(PoolCapture, str_16_a_pool_that_cannot_end_during_a_capture_goes_on) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  Pool pool = create_pool(instance.device());
  Captured captured(instance.device());
  give(pool, take(pool, 4 * kKiB, captured), captured);
  captured.begin();
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_destroy(pool, why()));
  give(pool, take(pool, 3 * kMiB));
  const uint64_t cut = info_of(pool).cut_count;
  give(pool, take(pool, 3 * kMiB));
  EXPECT_EQ(info_of(pool).cut_count, cut) << "threads keep blocks as before";
  captured.end();
  EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
}

// The work before the free is in no graph, so the pool waits for it as for any other.
TEST(PoolCapture, str_22_destroying_waits_for_the_work_before_a_free_that_a_capture_holds) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    GatedStream other(instance.device());
    captured.begin();
    void* const block = take(pool, size, captured);
    captured.end();
    EXPECT_OK(fill_on(instance, other, block, size, 6, 1, why()));
    give(pool, block, other);
    std::atomic<bool> opened{false};
    bool waited = false;
    gpumem::test::Sleeper destroying([&] {
      EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));
      waited = opened;
    });
    opened = true;
    other.open();
    destroying.join();
    EXPECT_TRUE(waited);
  }
}

TEST(PoolCapture, str_22_what_captures_kept_back_goes_back_with_the_pool_while_a_block_lives) {
  REQUIRE_FOREIGN();
  if (!on_host() && !on_fake_cuda()) GTEST_SKIP() << "others use the device's memory too";
  Instance instance = open_instance();
  const uint64_t before = free_bytes(instance.device());
  Pool pool = create_pool(instance.device());
  Captured captured(instance.device());
  GatedStream other(instance.device());
  void* const live = take(pool, 4 * kKiB);
  captured.begin();
  void* const used = take(pool, 20 * kMiB, captured);
  EXPECT_OK(gpumem_pool_record_use(pool, used, other, why()));
  give(pool, used, captured);
  give(pool, take(pool, 20 * kMiB, captured));
  captured.end();
  other.finish();
  pool.destroy();
  EXPECT_LE(before - free_bytes(instance.device()), 16 * kMiB);
  EXPECT_OK(gpumem_pool_free_pointer(instance, live, nullptr, why()));
  EXPECT_EQ(free_bytes(instance.device()), before);
}

TEST(PoolCapture, str_22_a_pool_grows_much_during_a_capture) {
  REQUIRE_FOREIGN();
  Instance instance =
      open_instance([](gpumem_instance_desc&, gpumem_host_options& host) { host.device_bytes = 512 * kMiB; });
  for (const int mode : {0, 1, 2}) {
    SCOPED_TRACE(mode);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    const Stream other = create_stream(instance.device());
    const uint64_t capture = captured.begin(mode);
    void* const own = take(pool, 100 * kMiB, captured);
    void* const outside = take(pool, 100 * kMiB, other);
    EXPECT_EQ(captured.end(), 0U);
    give(pool, outside, other);
    give(pool, own);
    release(pool, capture);
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_destroyed_pool_has_no_parts) {
  REQUIRE_FOREIGN();
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    for (const uint64_t size : kSizes) {
      for (const bool made_in_capture : {false, true}) {
        SCOPED_TRACE(flags);
        SCOPED_TRACE(size);
        SCOPED_TRACE(made_in_capture);
        Instance instance = open_instance();
        {
          Captured captured(instance.device());
          Pool pool = create_pool(instance.device(), GPUMEM_KIND_DEVICE, flags);
          void* block = made_in_capture ? nullptr : take(pool, size);
          captured.begin();
          if (made_in_capture) block = take(pool, size, captured);
          pool.destroy();
          EXPECT_OK(gpumem_pool_free_pointer(instance, block, captured, why()));
          EXPECT_EQ(captured.end(), 0U) << "the capture is not spoiled";
        }
        EXPECT_OK(gpumem_instance_close(instance.release(), GPUMEM_CLOSE_CHECK, nullptr, why()));
      }
    }
  }
}

TEST(PoolCapture, str_12_what_a_stream_freed_before_its_capture_outlives_it) {
  if (!on_host())
    SKIP_RULE("a driver cannot mark a captured stream, so these blocks stay until the pool ends (pool.h)");
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    for (const bool pending : {false, true}) {
      SCOPED_TRACE(size);
      SCOPED_TRACE(pending);
      const Pool pool = create_pool(instance.device());
      GatedStream gate(instance.device());
      Stream stream = create_stream(instance.device());
      void* const block = take(pool, size, stream);
      void* const later = take(pool, size, stream);
      EXPECT_OK(fill_on(instance, stream, block, size, 6, 1, why()));
      if (pending) {
        const Event opened = create_event(instance.device());
        EXPECT_OK(gpumem_event_record(opened, gate, why()));
        EXPECT_OK(gpumem_stream_wait_event(stream, opened, why()));
      }
      EXPECT_OK(gpumem_pool_record_use(pool, later, stream, why()));
      give(pool, block, stream);
      EXPECT_OK(gpumem_host_stream_set_capturing(stream, 1, why()));
      stream.destroy();
      give(pool, later);
      if (pending) {
        EXPECT_FALSE(hands_out(pool, block, size)) << "its work is pending";
      }
      gate.finish();
      EXPECT_TRUE(is_free(pool, block, size));
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

// A pool that may let streams wait for each other records no event in a stream that is being captured.
TEST(PoolCapture, com_28_an_internal_dependency_keeps_out_of_captures) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  const Pool pool =
      create_pool(instance.device(), pool_desc(GPUMEM_KIND_DEVICE, GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES));
  GatedStream gate(instance.device());
  const Event opened = create_event(instance.device());
  EXPECT_OK(gpumem_event_record(opened, gate, why()));
  Captured captured(instance.device());
  const Stream other = create_stream(instance.device());
  const auto take_many = [&](gpumem_stream stream) {
    std::vector<void*> blocks(300);  // more than a thread keeps
    for (void*& block : blocks)
      block = take(pool, 4 * kKiB, stream);
    return blocks;
  };
  const auto give_all = [&](const std::vector<void*>& blocks, gpumem_stream stream) {
    for (void* const block : blocks)
      give(pool, block, stream);
  };
  const std::vector<void*> first = take_many(captured);
  EXPECT_OK(gpumem_stream_wait_event(captured, opened, why()));
  give_all(first, captured);
  captured.begin(kRelaxed);
  const std::vector<void*> second = take_many(other);
  EXPECT_EQ(info_of(pool).wait_count, 0U);
  EXPECT_EQ(captured.end(), 0U) << "the capture is whole, and has no node";
  give_all(second, other);
  gate.finish();
  EXPECT_TRUE(all_goes_back(pool));
}

TEST(PoolCapture, str_22_a_debug_pool) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device(), GPUMEM_KIND_PAGEABLE, GPUMEM_POOL_DEBUG);
  Captured captured(instance.device());
  void* const ordinary = take(pool, 1000);
  const uint64_t capture = captured.begin();
  give(pool, ordinary, captured);
  EXPECT_GE(info_of(pool).captured_bytes, 1000U) << "kept back for the graph";
  auto* const block = static_cast<uint8_t*>(take(pool, 1000, captured));
  std::memset(block, 7, 1000);
  block[1000] = 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_free(pool, block, captured, why()));
  block[1000] = 0xFD;
  give(pool, block);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_pool_free(pool, block, captured, why()));
  EXPECT_TRUE(all_are(block, 1000, 7)) << "of the graph";
  give(pool, take(pool, 1000, captured), captured);
  auto* const again = static_cast<uint8_t*>(take(pool, 900, captured));
  again[900] = 1;  // as a graph may, in which it was a block of 1000
  give(pool, again, captured);
  captured.end();
  release(pool, capture);
  EXPECT_EQ(info_of(pool).captured_bytes, 0U);
  EXPECT_TRUE(all_goes_back(pool));
}

TEST(PoolCapture, str_22_native_streams) {
  REQUIRE_FOREIGN();
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured captured(instance.device());
    void* const ordinary = take(pool, size);
    const uint64_t capture = captured.begin();
    void* first = nullptr;
    void* second = nullptr;
    ASSERT_OK(gpumem_pool_alloc_native(pool, size, captured.native(), &first, why()));
    EXPECT_OK(gpumem_pool_free_native(pool, first, captured.native(), why()));
    ASSERT_OK(gpumem_pool_alloc_native(pool, size, captured.native(), &second, why()));
    EXPECT_EQ(first, second);
    void* const third = take(pool, size, captured);
    EXPECT_NE(third, first);
    EXPECT_OK(gpumem_pool_free_native(pool, second, captured.native(), why()));
    EXPECT_EQ(take(pool, size, captured), second) << "it is the same stream";
    EXPECT_OK(gpumem_pool_free_native(pool, ordinary, captured.native(), why()));
    captured.end();
    EXPECT_FALSE(hands_out(pool, ordinary, size));
    give(pool, third);
    EXPECT_EQ(info_of(pool).live_count, 1U);
    release(pool, capture);
    EXPECT_EQ(info_of(pool).capture_count, 0U);
    give(pool, second);
    EXPECT_TRUE(is_free(pool, second, size));
  }
}

#ifdef HAVE_CUDA_HEADERS

// Lets `to` wait for what `from` has, so that it joins the capture or comes back to it.
void order(gpumem_device device, const Captured& from, const Captured& to) {
  const PrimaryContext context(ordinal_of(device));
  CUevent event = nullptr;
  ASSERT_EQ(raw().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(raw().cuEventRecord(event, static_cast<CUstream>(from.native())), CUDA_SUCCESS);
  EXPECT_EQ(raw().cuStreamWaitEvent(static_cast<CUstream>(to.native()), event, 0), CUDA_SUCCESS);
  EXPECT_EQ(raw().cuEventDestroy(event), CUDA_SUCCESS);
}

TEST(PoolCapture, str_22_streams_that_join_a_capture_share_its_part_but_no_blocks) {
  if (on_host()) GTEST_SKIP() << "captures of the host backend have one stream";
  Instance instance = open_instance();
  for (const uint64_t size : kSizes) {
    SCOPED_TRACE(size);
    const Pool pool = create_pool(instance.device());
    Captured first(instance.device());
    Captured second(instance.device());
    const uint64_t capture = first.begin();
    order(instance.device(), first, second);
    EXPECT_EQ(second.number(), capture);
    void* const block = take(pool, size, first);
    give(pool, block, second);
    EXPECT_FALSE(hands_out(pool, block, size, first)) << "the other stream has it until its free";
    EXPECT_EQ(take(pool, size, second), block);
    give(pool, block, second);
    void* const used = take(pool, size, first);
    EXPECT_OK(gpumem_pool_record_use(pool, used, first, why()));
    give(pool, used, first);
    EXPECT_EQ(take(pool, size, first), used) << "its own use holds nothing up";
    EXPECT_OK(gpumem_pool_record_use(pool, used, second, why()));
    give(pool, used, first);
    EXPECT_FALSE(hands_out(pool, used, size, first));
    order(instance.device(), second, first);
    first.end();
    EXPECT_EQ(info_of(pool).capture_count, 1U);
    release(pool, capture);
    EXPECT_TRUE(all_goes_back(pool));
  }
}

TEST(PoolCapture, str_22_a_graph_finds_its_blocks_each_time) {
  if (on_host()) GTEST_SKIP() << "the host backend has no graphs";
  Instance instance = open_instance();
  for (const int mode : {0, 1, 2}) {
    if (mode != 0 && kThreadSanitizer) break;  // the modes differ for the threads that do not capture
    for (const uint64_t size : kSizes) {
      SCOPED_TRACE(mode);
      SCOPED_TRACE(size);
      const Memory results = alloc_device(instance.device(), 2 * size);
      const auto result = reinterpret_cast<CUdeviceptr>(results.device());
      const Pool pool = create_pool(instance.device());
      Captured captured(instance.device());
      const auto stream = static_cast<CUstream>(captured.native());
      const Stream other = create_stream(instance.device());
      give(pool, take(pool, size, captured), captured);
      const uint64_t capture = captured.begin(mode);
      {
        const PrimaryContext context(ordinal_of(instance.device()));
        // The second block lies where the first one was. Between the fills, the pool grows, trims and fails.
        for (unsigned char i = 0; i < 2; ++i) {
          void* const block = take(pool, size, captured);
          const auto address = reinterpret_cast<CUdeviceptr>(block);
          EXPECT_EQ(raw().cuMemsetD8Async(address, i + 1, size, stream), CUDA_SUCCESS);
          EXPECT_EQ(raw().cuMemcpyDtoDAsync(result + i * size, address, size, stream), CUDA_SUCCESS);
          give(pool, block, captured);
          give(pool, take(pool, 5 * kMiB, other), other);
          trim(pool);
        }
      }
      EXPECT_EQ(captured.end(), 4U) << "nodes: two fills and two copies";
      for (int round = 0; round < 3; ++round) {
        std::vector<void*> blocks;
        for (int i = 0; i < 10; ++i) {
          blocks.push_back(take(pool, size, round == 0 ? other.get() : nullptr));
          EXPECT_OK(fill_on(instance, nullptr, blocks.back(), size, 0xEE, 1, why()));
        }
        EXPECT_OK(fill_on(instance, nullptr, results.device(), 2 * size, 0, 1, why()));
        captured.launch();
        EXPECT_TRUE(holds_only(instance, results.device(), size, 1));
        EXPECT_TRUE(holds_only(instance, results.device() + size, size, 2));
        // And nobody else's bytes were written.
        for (void* const block : blocks) {
          EXPECT_TRUE(holds_only(instance, block, size, 0xEE));
          give(pool, block);
        }
        trim(pool);
      }
      release(pool, capture);
      trim(pool);
      EXPECT_EQ(info_of(pool).captured_bytes, 0U);
    }
  }
}

// Memory that moves during a capture stays where earlier nodes use it, too.
TEST(PoolCapture, str_22_a_graph_finds_blocks_that_have_moved) {
  if (on_host()) GTEST_SKIP() << "the host backend has no graphs";
  Instance instance = open_instance();
  constexpr uint64_t kSize = 4 * kMiB;
  constexpr uint64_t kWider = 5 * kMiB;
  const Pool pool = create_pool(instance.device());
  Captured captured(instance.device());
  const Memory results = alloc_device(instance.device(), 64 * kMiB);
  CUdeviceptr result = reinterpret_cast<CUdeviceptr>(results.device());
  const auto stream = static_cast<CUstream>(captured.native());
  const uint64_t capture = captured.begin();
  std::vector<void*> blocks;
  std::vector<std::pair<uint64_t, unsigned char>> copies;
  const auto use = [&](uint64_t size) {
    blocks.push_back(take(pool, size, captured));
    const PrimaryContext context(ordinal_of(instance.device()));
    const auto address = reinterpret_cast<CUdeviceptr>(blocks.back());
    copies.emplace_back(size, static_cast<unsigned char>(copies.size() + 1));
    EXPECT_EQ(raw().cuMemsetD8Async(address, copies.back().second, size, stream), CUDA_SUCCESS);
    EXPECT_EQ(raw().cuMemcpyDtoDAsync(result, address, size, stream), CUDA_SUCCESS);
    result += size;
  };
  for (int i = 0; i < 8; ++i)
    use(kSize);
  for (size_t i = 0; i < 8; i += 2)
    give(pool, blocks[i], captured);
  for (int i = 0; i < 3; ++i)
    use(kWider);
  EXPECT_EQ(captured.end(), 22U) << "nodes: a fill and a copy for each";
  EXPECT_LE(info_of(pool).peak_reserved_bytes, 36 * kMiB) << "or nothing has moved";
  for (int round = 0; round < 2; ++round) {
    EXPECT_OK(fill_on(instance, nullptr, results.device(), 64 * kMiB, 0, 1, why()));
    trim(pool);
    captured.launch();
    const uint8_t* at = results.device();
    for (const auto& [size, value] : copies) {
      EXPECT_TRUE(holds_only(instance, at, size, value)) << unsigned{value};
      at += size;
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i >= 8 || i % 2 != 0) give(pool, blocks[i]);
  }
  release(pool, capture);
  EXPECT_TRUE(all_goes_back(pool));
}

// Twice, or destroyed without a launch: the part stays until it is released, and then all of it goes back.
TEST(PoolCapture, str_22_a_graph_is_instantiated_any_number_of_times) {
  if (on_host()) GTEST_SKIP() << "the host backend has no graphs";
  Instance instance = open_instance();
  for (const size_t times : {size_t{0}, size_t{1}, size_t{2}}) {
    for (const uint64_t size : kSizes) {
      SCOPED_TRACE(times);
      SCOPED_TRACE(size);
      const Pool pool = create_pool(instance.device());
      void* block = nullptr;
      uint64_t capture = 0;
      {
        Captured captured(instance.device());
        capture = captured.begin();
        block = take(pool, size, captured);
        {
          const PrimaryContext context(ordinal_of(instance.device()));
          EXPECT_EQ(raw().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(block), 5, size,
                                          static_cast<CUstream>(captured.native())),
                    CUDA_SUCCESS);
        }
        EXPECT_EQ(captured.end(times), 1U);
        for (size_t index = 0; times > 1 && index < times; ++index) {
          EXPECT_OK(fill_on(instance, nullptr, block, size, 0, 1, why()));
          captured.launch(index);
          EXPECT_TRUE(holds_only(instance, block, size, 5));
        }
        give(pool, block, captured);
        EXPECT_FALSE(hands_out(pool, block, size));
      }
      EXPECT_FALSE(hands_out(pool, block, size)) << "the graph has ended, but nobody said so";
      EXPECT_GE(info_of(pool).captured_bytes, size);
      release(pool, capture);
      EXPECT_TRUE(is_free(pool, block, size));
      EXPECT_TRUE(all_goes_back(pool));
    }
  }
}

TEST(PoolCapture, pool_14_a_stream_whose_capture_failed_is_refused) {
  if (on_host()) GTEST_SKIP() << "captures of the host backend do not fail";
  Instance instance = open_instance();
  const Pool pool = create_pool(instance.device());
  Captured captured(instance.device());
  void* const ordinary = take(pool, 4096, captured);
  const uint64_t capture = captured.begin();
  void* const block = take(pool, 4096, captured);
  const PrimaryContext context(ordinal_of(instance.device()));
  const auto stream = static_cast<CUstream>(captured.native());
  EXPECT_NE(raw().cuStreamSynchronize(stream), CUDA_SUCCESS);  // spoils it
  void* none = &instance;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_pool_alloc(pool, 4096, captured, &none, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_pool_alloc_native(pool, 4096, captured.native(), &none, why()));
  uint64_t number = 7;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_stream_get_capture_id(captured, &number, why()));
  EXPECT_EQ(number, 7U);
  EXPECT_EQ(none, &instance);
  give(pool, block, captured);
  give(pool, ordinary, captured);
  CUgraph graph = nullptr;
  EXPECT_EQ(raw().cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_FALSE(hands_out(pool, block, 4096));
  release(pool, capture);
  EXPECT_TRUE(all_goes_back(pool));
}

#endif

}  // namespace
}  // namespace conformance
