// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts of what lives in an instance (COM-23).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

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
  // A block of physical memory counts once, however many handles and mappings keep it.
  struct Block {
    uint64_t bytes = 0;
    uint64_t keepers = 0;
  };
  using Blocks = std::map<uint64_t, Block>;  // by block id
  // For a new handle. `room` has one element: it is made before the handle, so that counting takes no memory.
  void keep_block(Blocks room, uint64_t id, uint64_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    auto node = room.extract(room.begin());
    node.key() = id;
    node.mapped() = {bytes, 0};
    const auto placed = blocks_.insert(std::move(node));
    if (placed.inserted) block_bytes_ += bytes;
    ++placed.position->second.keepers;
  }
  // For a new mapping, while a handle keeps the block.
  void keep_block(uint64_t id) noexcept {
    std::lock_guard lock(mutex_);
    ++blocks_.find(id)->second.keepers;
  }
  void drop_block(uint64_t id) noexcept {
    std::lock_guard lock(mutex_);
    const auto known = blocks_.find(id);
    if (--known->second.keepers != 0) return;
    block_bytes_ -= known->second.bytes;
    blocks_.erase(known);
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
  // Totals over all kinds, physical memory, streams and events.
  gpumem_stats read() const {
    std::lock_guard lock(mutex_);
    gpumem_stats stats = GPUMEM_STATS_INIT;
    stats.live_bytes = block_bytes_;
    for (const KindTraits& kind : all_kinds()) {
      if (kind.counters == kNotCounted) continue;
      const gpumem_kind_stats& counts = kinds_[kind.counters];
      stats.live_count += counts.live_count;
      (kind.in_parts ? stats.reserved_bytes : stats.live_bytes) += counts.live_bytes;
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
  Blocks blocks_;
  uint64_t block_bytes_ = 0;
};

}  // namespace gpumem::core
