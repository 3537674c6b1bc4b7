// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts of what lives in an instance (COM-23).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include "core/kind.h"
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
  void add_stream(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    streams_ += static_cast<uint64_t>(difference);
  }
  void add_event(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    events_ += static_cast<uint64_t>(difference);
  }
  void add_physical(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    physicals_ += static_cast<uint64_t>(difference);
  }
  void add_buffer(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    buffers_ += static_cast<uint64_t>(difference);
  }
  // Their memory counts with their ranges.
  uint64_t buffers() const {
    std::lock_guard lock(mutex_);
    return buffers_;
  }
  void add_group(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    groups_ += static_cast<uint64_t>(difference);
  }
  uint64_t groups() const {
    std::lock_guard lock(mutex_);
    return groups_;
  }
  void add_hub(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    hubs_ += static_cast<uint64_t>(difference);
  }
  uint64_t hubs() const {
    std::lock_guard lock(mutex_);
    return hubs_;
  }
  void add_link(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    links_ += static_cast<uint64_t>(difference);
  }
  uint64_t links() const {
    std::lock_guard lock(mutex_);
    return links_;
  }
  void add_ring(int64_t difference) noexcept {
    std::lock_guard lock(mutex_);
    rings_ += static_cast<uint64_t>(difference);
  }
  // Their memory counts as what it is.
  uint64_t rings() const {
    std::lock_guard lock(mutex_);
    return rings_;
  }
  // Handles of physical memory, which has no address and so is no kind of memory.
  uint64_t physicals() const {
    std::lock_guard lock(mutex_);
    return physicals_;
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
  uint64_t streams_ = 0;
  uint64_t events_ = 0;
  uint64_t physicals_ = 0;
  uint64_t buffers_ = 0;
  uint64_t groups_ = 0;
  uint64_t hubs_ = 0;
  uint64_t links_ = 0;
  uint64_t rings_ = 0;
};

}  // namespace gpumem::core
