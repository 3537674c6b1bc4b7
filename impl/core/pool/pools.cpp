// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/pool/pools.h"

#include <algorithm>

namespace gpumem::core {

void Pools::add(std::shared_ptr<PoolCore> core) {
  const std::lock_guard lock(mutex_);
  pools_.push_back(std::move(core));
  count_.store(pools_.size());
}

void Pools::remove(const PoolCore& core) noexcept {
  std::shared_ptr<PoolCore> last;  // ends without the lock
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool.get() == &core; });
  if (found == pools_.end()) return;
  last = std::move(*found);
  pools_.erase(found);
  count_.store(pools_.size());
}

std::vector<std::shared_ptr<PoolCore>> Pools::all() const {
  if (count_.load() == 0) return {};
  const std::lock_guard lock(mutex_);
  return pools_;
}

uint64_t Pools::trim_others(const PoolCore& core) {
  uint64_t released = 0;
  for (const auto& pool : all()) {
    if (pool.get() != &core) released += pool->trim_for_other();
  }
  return released;
}

std::vector<std::shared_ptr<PoolCore>> Pools::left() const {
  std::vector<std::shared_ptr<PoolCore>> pools = all();
  std::erase_if(pools, [](const auto& pool) {
    return pool->handle() != 0 || pool->request().memory.kind->counters != kNotCounted ||
           pool->try_live().count == 0;
  });
  return pools;
}

// Iterates backwards, because pools may leave the list meanwhile. New pools do not know the stream.
void Pools::end_stream(uint64_t key, const void* native) noexcept {
  for (size_t index = count_.load(); index-- != 0;) {
    std::shared_ptr<PoolCore> pool;
    {
      const std::lock_guard lock(mutex_);
      if (index < pools_.size()) pool = pools_[index];
    }
    if (pool == nullptr) continue;
    pool->end_stream(key);
    const uint64_t trusted = pool->key_of_native(native);
    if (trusted != PoolCore::kNoKey) pool->end_stream(trusted);
  }
}

void Pools::clear() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& pool : pools_)
    pool->forget();
  pools_.clear();
  count_.store(0);
}

}  // namespace gpumem::core
