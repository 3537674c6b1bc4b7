// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The free blocks of a pool that one thread keeps. Only that thread uses them, inside a Look. To take them
// away, close the cache and wait for the looks. So the warm path takes no lock and shares no cache line.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/memory/pool_blocks.h"
#include "core/memory/pool_classes.h"
#include "core/pool/order.h"
#include "platform/thread_record.h"

namespace gpumem::core {

class PoolCache;

// A pool, as its caches know it.
class PoolCacheOwner {
 public:
  // Call when a thread ends.
  virtual void end_cache(PoolCache* cache) noexcept = 0;

 protected:
  ~PoolCacheOwner() = default;
};

// The kept blocks of one order.
struct PoolShelf {
  struct Bin {
    uint32_t count = 0;
    uint32_t capacity = 0;
    std::unique_ptr<PoolFree[]> blocks;  // made at the first use
  };
  // Larger blocks, the latest last. One serves only its own size.
  struct Large {
    uint64_t address = 0;
    uint64_t size = 0;
    std::atomic<uint8_t>* state = nullptr;
  };
  static constexpr uint32_t kLargeMost = 16;
  static constexpr uint64_t kLargeSize = uint64_t{8} << 20;    // of one at most
  static constexpr uint64_t kLargeBytes = uint64_t{32} << 20;  // of all at most

  uint64_t key = 0;
  PoolOrder* order = nullptr;
  bool keeps_large = true;
  uint32_t large_count = 0;
  uint64_t large_bytes = 0;
  std::array<Large, kLargeMost> large;
  std::array<Bin, PoolClasses::kCountMax> bins;

  bool has_room_for(uint64_t size) const {
    return keeps_large && large_count < kLargeMost && large_bytes + size <= kLargeBytes;
  }
  void push_large(const Large& block) {
    large[large_count++] = block;
    large_bytes += block.size;
  }
  Large pop_large(uint32_t index) {
    const Large block = large[index];
    std::move(large.begin() + index + 1, large.begin() + large_count, large.begin() + index);
    --large_count;
    large_bytes -= block.size;
    return block;
  }
};

class PoolCache {
 public:
  static constexpr uint32_t kShelves = 9;
  // The current thread's cache of the pool with this seat and number; null if it has none.
  static PoolCache* of_thread(const platform::ThreadRecord& record, uint32_t seat, uint64_t number) noexcept {
    return record.attachment != nullptr ? attached(record, seat, number) : nullptr;
  }
  // The same if the thread has any.
  static PoolCache* attached(const platform::ThreadRecord& record, uint32_t seat, uint64_t number) noexcept {
    const Entry& entry = static_cast<const Table*>(record.attachment)->entries[seat];
    if (entry.number != number) [[unlikely]]
      return nullptr;
    if (entry.cache == nullptr) __builtin_unreachable();  // a number comes with a cache
    return entry.cache;
  }
  // Enters a cache for the current thread. Throws std::bad_alloc.
  static void attach(platform::ThreadRecord& record, uint32_t seat, uint64_t number, PoolCache* cache);

  bool open() const { return !closed.load(std::memory_order_acquire); }
  // Place 0 is for blocks without a stream. The golden ratio keeps ids in a row apart, and also handles,
  // whose low bits are all zero. (A division would take a tenth of an allocation.)
  static uint32_t place_of(uint64_t key) {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    static_assert(kShelves - 1 == 8, "the upper three bits choose");
    return key == 0 ? 0 : 1 + static_cast<uint32_t>(key * kGoldenRatio >> 61);
  }
  PoolShelf* shelf(uint64_t key) const noexcept {
    PoolShelf* const found = shelves[place_of(key)].get();
    return found != nullptr && (key == PoolStream::kNone || found->key == key) ? found : nullptr;
  }
  void count(std::atomic<uint64_t>& counter, uint64_t change = 1) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }

  // A block of class `index` for work in the order of `key`; null if the cache has none.
  void* take(uint64_t key, uint32_t index) noexcept {
    PoolShelf* const found = open() ? shelf(key) : nullptr;  // a closed cache is not looked into
    if (found == nullptr) [[unlikely]]
      return nullptr;
    PoolShelf::Bin& bin = found->bins[index];
    if (bin.count == 0) [[unlikely]]
      return nullptr;
    const PoolFree block = bin.blocks[--bin.count];
    block.state->store(PoolRun::kLive, std::memory_order_release);
    count(counts[index].allocated);
    return pointer_to(block.address);
  }
  // Like take(), for a larger block of exactly this size.
  [[gnu::noinline]] void* take_large(uint64_t key, uint64_t size) noexcept {
    PoolShelf* const found = open() ? shelf(key) : nullptr;
    if (found == nullptr) [[unlikely]]
      return nullptr;
    for (uint32_t i = found->large_count; i-- > 0;) {
      if (found->large[i].size != size) continue;
      const PoolShelf::Large block = found->pop_large(i);
      block.state->store(PoolRun::kLive, std::memory_order_release);
      count(large_allocated);
      count(large_allocated_bytes, size);
      count_out(size);
      return pointer_to(block.address);
    }
    return nullptr;
  }
  // Puts a live block in; false if the pool must free it, or put_large() be tried.
  [[gnu::always_inline]] bool put(uint64_t key, const PoolRun& run, uint64_t address) noexcept {
    PoolShelf* const found = open() ? shelf(key) : nullptr;
    if (found == nullptr) [[unlikely]]
      return false;
    const uint64_t index = run.index_of_first(address);
    if (index >= run.count) [[unlikely]]
      return false;
    const uint32_t class_index = run.class_index;
    PoolShelf::Bin& bin = found->bins[class_index];
    const uint32_t place = bin.count;
    std::atomic<uint8_t>& state = run.state(index);
    if (place == bin.capacity || state.load(std::memory_order_relaxed) != PoolRun::kLive) [[unlikely]]
      return false;
    state.store(PoolRun::kFree, std::memory_order_release);
    bin.blocks[place] = {address, &state};
    bin.count = place + 1;
    count(counts[class_index].freed);
    return true;
  }

  bool put_large(uint64_t key, const PoolRun& run, uint64_t address) noexcept {
    PoolShelf* const found = run.class_index == PoolRun::kLarge && open() ? shelf(key) : nullptr;
    return found != nullptr && put_large(*found, run, address);
  }
  bool put_large(PoolShelf& shelf, const PoolRun& run, uint64_t address) noexcept {
    const uint64_t size = run.block_size();
    std::atomic<uint8_t>& state = run.state(0);
    if (run.base() != address || size > largest.load(std::memory_order_relaxed) ||
        !shelf.has_room_for(size) || state.load(std::memory_order_relaxed) != PoolRun::kLive)
      return false;
    state.store(PoolRun::kFree, std::memory_order_release);
    shelf.push_large({address, size, &state});
    count(kept_count, 1);
    count(kept_bytes, size);
    return true;
  }
  // Call when a larger block has left a shelf.
  void count_out(uint64_t size) noexcept {
    count(kept_count, uint64_t{0} - 1);
    count(kept_bytes, uint64_t{0} - size);
  }

  std::atomic<bool> closed{false};
  std::atomic<uint64_t> largest{0};  // block that may be kept
  std::array<std::unique_ptr<PoolShelf>, kShelves> shelves;
  struct Counts {
    std::atomic<uint64_t> allocated{0};
    std::atomic<uint64_t> freed{0};
  };
  std::array<Counts, PoolClasses::kCountMax> counts;  // as far apart as the bins, so one product finds both
  std::atomic<uint64_t> large_allocated{0};
  std::atomic<uint64_t> large_allocated_bytes{0};
  std::atomic<uint64_t> kept_count{0};  // larger blocks on the shelves
  std::atomic<uint64_t> kept_bytes{0};
  PoolCache* next = nullptr;  // of the pool

  static constexpr uint32_t kSeats = 256;

 private:
  struct Entry {
    uint64_t number = 0;
    PoolCache* cache = nullptr;
  };
  struct Table {
    std::array<Entry, kSeats + 1> entries;  // the last is never filled: pools without a seat look there
  };
  static void end_thread(void* table) noexcept;
};

// Seats of the process: where threads find their cache of a pool.
namespace pool_seats {
// A seat, or kSeats if all are taken: then threads keep no blocks of the pool.
uint32_t take(PoolCacheOwner& pool, uint64_t number);
// Ending threads no longer reach the pool after this.
void leave(uint32_t seat) noexcept;
}  // namespace pool_seats

}  // namespace gpumem::core
