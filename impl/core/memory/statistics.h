// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Counts of what lives in an instance (COM-23).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "core/memory/kind.h"
#include "core/object/object.h"
#include "gpumem/stats.h"

namespace gpumem::core {

class Statistics {
 public:
  void add(const KindTraits& kind, uint64_t bytes) noexcept {
    const Change change(*this);
    gpumem_kind_stats& counts = kinds_[kind.counters];
    counts.live_count += 1;
    counts.live_bytes += bytes;
    totals_.count.raise(1);
    raise_bytes(bytes_of(kind), bytes);
    counts.total_count += 1;
    counts.total_bytes += bytes;
    raise_peaks(counts);
  }
  void remove(const KindTraits& kind, uint64_t bytes) noexcept {
    const Change change(*this);
    kinds_[kind.counters].live_count -= 1;
    kinds_[kind.counters].live_bytes -= bytes;
    totals_.count.raise(-uint64_t{1});
    bytes_of(kind).raise(-bytes);
  }
  // A block of physical memory counts once, however many handles and mappings keep it.
  struct Block {
    uint64_t bytes = 0;
    uint64_t keepers = 0;
    int32_t device = -1;  // ordinal; -1 if it lies elsewhere, or another process has made it
  };
  using Blocks = std::map<uint64_t, Block>;  // by block id
  // Counts a block for a new handle. `room` has one element, allocated before, so that counting cannot fail.
  void keep_block(Blocks room, uint64_t id, uint64_t bytes, int32_t device) noexcept {
    const Change change(*this);
    auto node = room.extract(room.begin());
    node.key() = id;
    node.mapped() = {bytes, 0, device};
    const auto placed = blocks_.insert(std::move(node));
    if (placed.inserted) raise_bytes(totals_.bytes, bytes);
    ++placed.position->second.keepers;
  }
  // For a new mapping, while a handle keeps the block.
  void keep_block(uint64_t id) noexcept {
    std::lock_guard lock(mutex_);
    ++blocks_.find(id)->second.keepers;
  }
  void drop_block(uint64_t id) noexcept {
    const Change change(*this);
    const auto known = blocks_.find(id);
    if (--known->second.keepers != 0) return;
    totals_.bytes.raise(-known->second.bytes);
    blocks_.erase(known);
  }
  // By ordinal.
  std::map<uint32_t, uint64_t> block_bytes_by_device() const {
    std::map<uint32_t, uint64_t> bytes;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, block] : blocks_) {
      if (block.device >= 0) bytes[static_cast<uint32_t>(block.device)] += block.bytes;
    }
    return bytes;
  }
  // Counts an object that is not a region. Memory of buffers and rings is counted by its kind; physical
  // memory has no address, and so no kind.
  void add_object(Type type, int64_t difference) noexcept {
    const Change change(*this);
    objects_.at(static_cast<size_t>(type)).raise(static_cast<uint64_t>(difference));
  }
  uint64_t objects(Type type) const noexcept { return objects_[static_cast<size_t>(type)].get(); }
  // Addresses that are not reserved, of those that a process has on every machine.
  uint64_t free_addresses() const noexcept {
    constexpr uint64_t kAddresses = uint64_t{1} << 47;
    return kAddresses - std::min(kAddresses, totals_.reserved.get());
  }
  // Totals over all kinds, physical memory, streams and events, all of one moment.
  gpumem_stats read() const {
    const std::lock_guard lock(mutex_);
    return totals();
  }
  // The same without a lock, and so without a write to what threads share; false if others change it.
  bool look(gpumem_stats* out) const noexcept {
    const uint64_t version = version_.load(std::memory_order_acquire);
    const gpumem_stats stats = totals();
    if (version % 2 != 0 || version_.load(std::memory_order_relaxed) != version) return false;
    *out = stats;
    return true;
  }
  // Of a kind that is counted.
  gpumem_kind_stats read_kind(const KindTraits& kind) const {
    std::lock_guard lock(mutex_);
    return kinds_[kind.counters];
  }
  void reset_peaks() {
    const Change change(*this);
    totals_.peak.set(totals_.bytes.get());
    for (gpumem_kind_stats& counts : kinds_) {
      counts.peak_count = counts.live_count;
      counts.peak_bytes = counts.live_bytes;
    }
  }

 private:
  // Written under mutex_. Readers order their loads by the version behind them.
  class Number {
   public:
    void raise(uint64_t difference) noexcept {
      value_.store(value_.load(std::memory_order_relaxed) + difference, std::memory_order_release);
    }
    void set(uint64_t value) noexcept { value_.store(value, std::memory_order_release); }
    uint64_t get() const noexcept { return value_.load(std::memory_order_acquire); }

   private:
    std::atomic<uint64_t> value_{0};
  };
  // Readers see all of it or nothing: the version is odd meanwhile.
  class Change {
   public:
    explicit Change(Statistics& statistics) noexcept
        : lock_(statistics.mutex_), version_(statistics.version_) {
      version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    ~Change() { version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

   private:
    const std::lock_guard<std::mutex> lock_;
    std::atomic<uint64_t>& version_;
  };

  Number& bytes_of(const KindTraits& kind) { return kind.in_parts ? totals_.reserved : totals_.bytes; }
  gpumem_stats totals() const noexcept {
    gpumem_stats stats = GPUMEM_STATS_INIT;
    stats.live_count = totals_.count.get();
    stats.live_bytes = totals_.bytes.get();
    stats.peak_bytes = totals_.peak.get();
    stats.reserved_bytes = totals_.reserved.get();
    stats.streams = objects(Type::kStream);
    stats.events = objects(Type::kEvent);
    return stats;
  }
  void raise_bytes(Number& number, uint64_t bytes) noexcept {
    number.raise(bytes);
    totals_.peak.set(std::max(totals_.peak.get(), totals_.bytes.get()));
  }
  static void raise_peaks(gpumem_kind_stats& counts) {
    counts.peak_count = std::max(counts.peak_count, counts.live_count);
    counts.peak_bytes = std::max(counts.peak_bytes, counts.live_bytes);
  }
  mutable std::mutex mutex_;
  std::array<gpumem_kind_stats, kCountedKinds> kinds_{};
  std::array<Number, std::size(kTypeWords)> objects_{};
  Blocks blocks_;
  struct {
    Number count, bytes, peak, reserved;  // memory objects, their bytes and blocks', the most, and addresses
  } totals_;
  std::atomic<uint64_t> version_{0};
};

}  // namespace gpumem::core
