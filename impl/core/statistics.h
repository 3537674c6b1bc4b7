// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts of what lives in an instance (COM-23).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include "gpumem/stats.h"

namespace gpumem::core {

class Statistics {
 public:
  void add(gpumem_kind kind, uint64_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    gpumem_kind_stats& counts = of(kind);
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
    streams_ += static_cast<uint64_t>(difference);
  }
  void add_event(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    events_ += static_cast<uint64_t>(difference);
  }
  // Totals over all kinds, streams and events.
  gpumem_stats read() const {
    std::lock_guard lock(mutex_);
    gpumem_stats stats = GPUMEM_STATS_INIT;
    for (const gpumem_kind_stats& counts : kinds_) {
      stats.live_count += counts.live_count;
      stats.live_bytes += counts.live_bytes;
    }
    stats.streams = streams_;
    stats.events = events_;
    return stats;
  }
  static bool counts_kind(gpumem_kind kind) {
    return kind == GPUMEM_KIND_DEVICE || kind == GPUMEM_KIND_PINNED || kind == GPUMEM_KIND_REGISTERED;
  }
  // Of a kind that counts_kind().
  gpumem_kind_stats read_kind(gpumem_kind kind) const {
    std::lock_guard lock(mutex_);
    return kinds_[index_of(kind)];
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
  static size_t index_of(gpumem_kind kind) {
    switch (kind) {
      case GPUMEM_KIND_DEVICE:
        return 0;
      case GPUMEM_KIND_PINNED:
        return 1;
      default:
        return 2;
    }
  }
  gpumem_kind_stats& of(gpumem_kind kind) { return kinds_[index_of(kind)]; }

  mutable std::mutex mutex_;
  std::array<gpumem_kind_stats, 3> kinds_{};
  uint64_t streams_ = 0;
  uint64_t events_ = 0;
};

}  // namespace gpumem::core
