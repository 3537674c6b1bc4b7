// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which calls of a pool take a lock. The program is linked with --wrap=pthread_mutex_lock.
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <set>
#include <vector>

#include "contract/host_function_mark.h"
#include "core/object/callback.h"
#include "core/pool/cache.h"
#include "interface_support.h"

namespace {
thread_local uint64_t locks_taken = 0;
}

extern "C" {
int __real_pthread_mutex_lock(pthread_mutex_t* mutex);  // NOLINT: the linker gives the name
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex);  // NOLINT
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  ++locks_taken;
  return __real_pthread_mutex_lock(mutex);
}
}

namespace gpumem::test {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// Of the calling thread.
template <class F>
uint64_t locks_in(F function) {
  const uint64_t before = locks_taken;
  function();
  return locks_taken - before;
}

class PoolLocks : public testing::Test {
 protected:
  gpumem_pool create(gpumem_kind kind, gpumem_pool_flags flags = 0) {
    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
    desc.kind = kind;
    desc.flags = flags;
    gpumem_pool pool = nullptr;
    CALL(gpumem_pool_create, session_.device(), &desc, &pool);
    return pool;
  }

  Session session_{GPUMEM_BACKEND_HOST};
};

TEST_F(PoolLocks, a_thread_keeps_blocks_of_several_native_streams) {
  constexpr uint64_t kSize = 4 * kKiB;
  const gpumem_pool pool = create(GPUMEM_KIND_DEVICE, GPUMEM_POOL_TRUST_NATIVE_STREAMS);
  // So many that not all have the same place by chance.
  std::vector<void*> streams(32);
  for (void*& stream : streams)
    CALL(gpumem_host_native_stream_create, session_.device(), &stream);
  const auto place_of = [](void* native) {
    return core::PoolCache::place_of(core::PoolStream::kByHandle | reinterpret_cast<uintptr_t>(native));
  };
  size_t other = 1;
  while (other + 1 < streams.size() && place_of(streams[other]) == place_of(streams[0]))
    ++other;
  const auto use = [&](void* stream) {
    void* block = nullptr;
    CALL(gpumem_pool_alloc_native, pool, kSize, stream, &block);
    CALL(gpumem_pool_free_native, pool, block, stream);
  };
  EXPECT_NE(locks_in([&] { use(streams[0]); }), 0U) << "the first time";
  use(streams[other]);
  const uint64_t locks = locks_in([&] {
    for (int i = 0; i < 100; ++i) {
      use(streams[0]);
      use(streams[other]);
    }
  });
  EXPECT_EQ(locks, 0U);
  CALL(gpumem_pool_destroy, pool);
  for (void* const stream : streams)
    CALL(gpumem_host_native_stream_destroy, session_.device(), stream);
}

TEST_F(PoolLocks, an_alignment_that_blocks_of_a_class_have_costs_no_lock) {
  for (const gpumem_kind kind :
       {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED, GPUMEM_KIND_PAGEABLE}) {
    const gpumem_pool pool = create(kind);
    for (const uint64_t size : {UINT64_C(1), UINT64_C(300), 5 * kKiB, 70 * kKiB + 1, kMiB, 3 * kMiB}) {
      for (uint64_t alignment = 1; alignment <= 64 * kKiB; alignment *= 2) {
        const auto use = [&] {
          void* block = nullptr;
          CALL(gpumem_pool_alloc_aligned, pool, size, alignment, nullptr, &block);
          EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0U);
          CALL(gpumem_pool_free, pool, block, nullptr);
          CALL(gpumem_pool_try_alloc, pool, size, alignment, nullptr, &block, nullptr);
          EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0U);
          CALL(gpumem_pool_free, pool, block, nullptr);
        };
        use();
        EXPECT_EQ(locks_in(use), 0U) << size << " aligned to " << alignment << ", kind " << kind;
      }
    }
    CALL(gpumem_pool_destroy, pool);
  }
}

// The short ways ask nothing but the thread's record whether it runs a function of the caller.
TEST_F(PoolLocks, no_function_of_the_caller_takes_a_short_way) {
  const gpumem_pool pool = create(GPUMEM_KIND_DEVICE, GPUMEM_POOL_TRUST_NATIVE_STREAMS);
  gpumem_stream stream = nullptr;
  CALL(gpumem_stream_create, session_.device(), nullptr, &stream);
  void* native = nullptr;
  CALL(gpumem_host_native_stream_create, session_.device(), &native);
  for (const uint64_t size : {4 * kKiB, 2 * kMiB}) {
    void* block = nullptr;
    const auto take = [&](int how) {
      return how == 2 ? gpumem_pool_alloc_native(pool, size, native, &block, nullptr)
                      : gpumem_pool_alloc(pool, size, how == 1 ? stream : nullptr, &block, nullptr);
    };
    const auto give = [&](int how) {
      return how == 2 ? gpumem_pool_free_native(pool, block, native, nullptr)
                      : gpumem_pool_free(pool, block, how == 1 ? stream : nullptr, nullptr);
    };
    for (int how = 0; how < 3; ++how) {
      const auto pair = [&] {
        EXPECT_EQ(take(how), GPUMEM_SUCCESS);
        EXPECT_EQ(give(how), GPUMEM_SUCCESS);
      };
      pair();
      EXPECT_EQ(locks_in(pair), 0U);
      {
        const backend::HostFunctionMark mark;
        EXPECT_EQ(take(how), GPUMEM_ERROR_INVALID_STATE);
      }
      EXPECT_EQ(locks_in([&] { EXPECT_EQ(take(how), GPUMEM_SUCCESS); }), 0U);
      {
        const backend::HostFunctionMark mark;
        EXPECT_EQ(give(how), GPUMEM_ERROR_INVALID_STATE);
      }
      {
        const core::Callback callback;
        { const core::Callback inner; }
        // The pool sees whether the call that waits uses the block.
        EXPECT_NE(locks_in([&] { EXPECT_EQ(give(how), GPUMEM_SUCCESS); }), 0U);
      }
      pair();
      EXPECT_EQ(locks_in(pair), 0U) << "again";
    }
  }
  CALL(gpumem_pool_destroy, pool);
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_host_native_stream_destroy, session_.device(), native);
}

}  // namespace
}  // namespace gpumem::test
