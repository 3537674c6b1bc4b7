// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The pools of an instance, also those that are destroyed while blocks of them live.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "core/pool/core.h"

namespace gpumem::core {

class Pools final : public PoolNeighbors {
 public:
  // Of the instance.
  static Pools& of(Context& context);

  void add(std::shared_ptr<PoolCore> core);
  void remove(const PoolCore& core) noexcept;
  std::vector<std::shared_ptr<PoolCore>> all() const;
  uint64_t trim_others(const PoolCore& core) override;
  // Destroyed pools with live blocks of ordinary memory, which no object has, as far as can be told without
  // waiting.
  std::vector<std::shared_ptr<PoolCore>> left() const;
  // Call when a stream ends, while it can still be marked.
  void end_stream(uint64_t key, const void* native) noexcept;
  // Call when the instance closes.
  void clear() noexcept;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<PoolCore>> pools_;
  std::atomic<size_t> count_{0};
};

}  // namespace gpumem::core
