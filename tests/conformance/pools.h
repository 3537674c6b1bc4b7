// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools for tests: a handle that cleans up after itself, and short forms of the calls.
#pragma once

#include <chrono>

#include "harness.h"

namespace conformance {

using Pool = Owned<gpumem_pool, gpumem_pool_destroy>;

inline gpumem_pool_desc pool_desc(gpumem_kind kind = GPUMEM_KIND_DEVICE, gpumem_pool_flags flags = 0) {
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.kind = kind;
  desc.flags = flags;
  desc.name = "tested";
  return desc;
}

inline Pool create_pool(gpumem_device device, const gpumem_pool_desc& desc = pool_desc()) {
  gpumem_pool pool = nullptr;
  EXPECT_OK(gpumem_pool_create(device, &desc, &pool, why()));
  return Pool(pool);
}

inline Pool create_pool(gpumem_device device, gpumem_kind kind, gpumem_pool_flags flags = 0,
                        uint64_t limit = 0) {
  gpumem_pool_desc desc = pool_desc(kind, flags);
  desc.limit = limit;
  return create_pool(device, desc);
}

inline void* take(gpumem_pool pool, uint64_t size, gpumem_stream stream = nullptr) {
  void* pointer = nullptr;
  EXPECT_OK(gpumem_pool_alloc(pool, size, stream, &pointer, why()));
  return pointer;
}

inline void give(gpumem_pool pool, void* pointer, gpumem_stream stream = nullptr) {
  EXPECT_OK(gpumem_pool_free(pool, pointer, stream, why()));
}

inline gpumem_pool_info info_of(gpumem_pool pool) {
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  EXPECT_OK(gpumem_pool_get_info(pool, &info, why()));
  return info;
}

inline uint64_t trim(gpumem_pool pool, uint64_t keep = 0) {
  uint64_t released = UINT64_MAX;
  EXPECT_OK(gpumem_pool_trim(pool, keep, &released, why()));
  return released;
}

inline uint64_t free_bytes(gpumem_device device) {
  uint64_t free = 0;
  EXPECT_OK(gpumem_device_get_memory(device, &free, nullptr, why()));
  return free;
}

// Whether trimming releases all memory, once the marks in the streams have passed.
inline bool all_goes_back(gpumem_pool pool) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (info_of(pool).reserved_bytes != 0 && std::chrono::steady_clock::now() < deadline)
    trim(pool);
  return info_of(pool).reserved_bytes == 0;
}

}  // namespace conformance
