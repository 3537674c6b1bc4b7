// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts of what lives in an instance (COM-23).
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "gpumem/stats.h"

namespace gpumem::core {

class Statistics {
 public:
  void add(gpumem_kind kind, uint64_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    gpumem_stats_kind& counts = of(kind);
    counts.live_count += 1;
    counts.live_bytes += bytes;
    counts.total_count += 1;
    counts.total_bytes += bytes;
    raise_peaks(counts);
  }
  void remove(gpumem_kind kind, uint64_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    of(kind).live_count -= 1;
    of(kind).live_bytes -= bytes;
  }
  void add_stream(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    counts_.streams += static_cast<uint64_t>(difference);
  }
  void add_event(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    counts_.events += static_cast<uint64_t>(difference);
  }
  gpumem_stats read() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }
  void reset_peaks() {
    std::lock_guard lock(mutex_);
    for (gpumem_stats_kind* counts : {&counts_.device, &counts_.pinned, &counts_.registered}) {
      counts->peak_count = counts->live_count;
      counts->peak_bytes = counts->live_bytes;
    }
  }

 private:
  static void raise_peaks(gpumem_stats_kind& counts) {
    counts.peak_count = std::max(counts.peak_count, counts.live_count);
    counts.peak_bytes = std::max(counts.peak_bytes, counts.live_bytes);
  }
  gpumem_stats_kind& of(gpumem_kind kind) {
    switch (kind) {
      case GPUMEM_KIND_DEVICE:
        return counts_.device;
      case GPUMEM_KIND_PINNED:
        return counts_.pinned;
      default:
        return counts_.registered;
    }
  }

  mutable std::mutex mutex_;
  gpumem_stats counts_ = GPUMEM_STATS_INIT;
};

}  // namespace gpumem::core
