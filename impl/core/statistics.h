// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts of what lives in an instance (COM-23).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include "core/kind.h"
#include "core/object.h"
#include "gpumem/stats.h"

namespace gpumem::core {

class Statistics {
 public:
  void add(const KindTraits& kind, uint64_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    gpumem_kind_stats& counts = kinds_[kind.counters];
    counts.live_count += 1;
    counts.live_bytes += bytes;
    counts.total_count += 1;
    counts.total_bytes += bytes;
    raise_peaks(counts);
  }
  void remove(const KindTraits& kind, uint64_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    kinds_[kind.counters].live_count -= 1;
    kinds_[kind.counters].live_bytes -= bytes;
  }
  // Of an object that is no region. The memory of buffers and rings counts as what it is; physical memory has
  // no address, and so is no kind of memory.
  void add_object(Type type, int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    objects_.at(static_cast<size_t>(type)) += static_cast<uint64_t>(difference);
  }
  uint64_t objects(Type type) const {
    std::lock_guard lock(mutex_);
    return objects_.at(static_cast<size_t>(type));
  }
  // Totals over all kinds, streams and events.
  gpumem_stats read() const {
    std::lock_guard lock(mutex_);
    gpumem_stats stats = GPUMEM_STATS_INIT;
    for (const gpumem_kind_stats& counts : kinds_) {
      stats.live_count += counts.live_count;
      stats.live_bytes += counts.live_bytes;
    }
    stats.streams = objects_.at(static_cast<size_t>(Type::kStream));
    stats.events = objects_.at(static_cast<size_t>(Type::kEvent));
    return stats;
  }
  // Of a kind that is counted.
  gpumem_kind_stats read_kind(const KindTraits& kind) const {
    std::lock_guard lock(mutex_);
    return kinds_[kind.counters];
  }
  void reset_peaks() {
    std::lock_guard lock(mutex_);
    for (gpumem_kind_stats& counts : kinds_) {
      counts.peak_count = counts.live_count;
      counts.peak_bytes = counts.live_bytes;
    }
  }

 private:
  static void raise_peaks(gpumem_kind_stats& counts) {
    counts.peak_count = std::max(counts.peak_count, counts.live_count);
    counts.peak_bytes = std::max(counts.peak_bytes, counts.live_bytes);
  }
  mutable std::mutex mutex_;
  std::array<gpumem_kind_stats, kCountedKinds> kinds_{};
  std::array<uint64_t, kTypeCount> objects_{};
};

}  // namespace gpumem::core
