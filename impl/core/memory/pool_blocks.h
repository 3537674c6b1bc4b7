// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which block of a pool an address lies in. A radix map from pages of 64 KiB to runs of equal blocks: readers
// use plain loads. Runs live as long as their pool, so a late reader gets an old answer, never freed memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/result.h"
#include "core/memory/pool_classes.h"

namespace gpumem::core {

// Adjacent blocks of one size: a chunk of small ones, or one large one. Their states follow it in memory, so
// that finding them loads no pointer.
struct alignas(64) PoolRun {
  static constexpr uint32_t kLarge = UINT32_MAX;
  // All but free are live. Recorded: other streams use it; captured: so do captures.
  enum State : uint8_t { kFree = 0, kLive = 1, kRecorded = 2, kCaptured = 3 };

  // Throws std::bad_alloc.
  static std::unique_ptr<PoolRun> make(uint32_t class_index, uint64_t block_size, uint32_t count);
  PoolRun(const PoolRun&) = delete;
  PoolRun& operator=(const PoolRun&) = delete;
  static void operator delete(void* run) { ::operator delete(run, std::align_val_t(alignof(PoolRun))); }

  void set_place(uint64_t base, uint64_t block_size) noexcept {
    base_.store(base, std::memory_order_relaxed);
    block_size_.store(block_size, std::memory_order_relaxed);
  }
  uint64_t base() const { return base_.load(std::memory_order_relaxed); }
  uint64_t block_size() const { return block_size_.load(std::memory_order_relaxed); }
  uint64_t address_of_block(uint32_t index) const { return base() + index * block_size(); }
  // The index of the block at an address of this run; `count` or more if behind the last block.
  uint32_t index_of(uint64_t address) const {
    if (class_index == kLarge) return address - base() < block_size() ? 0 : 1;
    return static_cast<uint32_t>(product(address) >> 64);
  }
  // The index of the small block that begins at an address; `count` or more if none does.
  uint64_t index_of_first(uint64_t address) const {
    const Product result = product(address);
    const bool is_first = static_cast<uint64_t>(result) < reciprocal_;  // which is 0 for a large block
    return is_first ? static_cast<uint64_t>(result >> 64) : UINT64_MAX;
  }
  std::atomic<uint8_t>& state(uint64_t index) const {
    return reinterpret_cast<std::atomic<uint8_t>*>(const_cast<PoolRun*>(this) + 1)[index];
  }

 private:
  // The offset times the reciprocal. Its upper half is the quotient. The lower half is the remainder times
  // the reciprocal, plus what rounding that up adds: less than the offset, so less than a reciprocal.
  __extension__ using Product = unsigned __int128;
  Product product(uint64_t address) const { return Product{address - base()} * reciprocal_; }
  PoolRun(uint32_t class_index, uint64_t block_size, uint32_t count);

  std::atomic<uint64_t> base_{0};
  std::atomic<uint64_t> block_size_;
  const uint64_t reciprocal_;

 public:
  const uint32_t class_index;
  const uint32_t count;

  // Guarded by the pool's lock.
  std::vector<uint32_t> free;  // blocks that nobody keeps, and whose work is complete
  static constexpr uint32_t kUnlisted = UINT32_MAX;
  uint32_t list_index = kUnlisted;  // in the pool's list of chunks with free blocks
  uint32_t counted = 0;             // blocks, by PoolCore::end_chunks()
  bool listed() const { return list_index != kUnlisted; }
};

class PoolBlocks {
 public:
  PoolBlocks() = default;
  ~PoolBlocks();
  PoolBlocks(const PoolBlocks&) = delete;
  PoolBlocks& operator=(const PoolBlocks&) = delete;
  // Call once, before anything else.
  Result<void> open();

  // Reserves entries for later addresses; UNSUPPORTED for addresses that no system gives out. Needs the
  // pool's lock, as set() and clear() do.
  Result<void> reserve(uint64_t base, uint64_t size);
  void set(uint64_t base, uint64_t size, PoolRun* run) noexcept;
  void clear(uint64_t base, uint64_t size) noexcept { set(base, size, nullptr); }

  // The run that has an address; null if there is none.
  PoolRun* run_at(uint64_t address) const noexcept {
    const uint64_t place = address >> kRootShift;
    if (place >= kRootEntries) [[unlikely]]
      return nullptr;
    const Leaf* const leaf = root_[place].load(std::memory_order_acquire);
    if (leaf == nullptr) [[unlikely]]
      return nullptr;
    return leaf[address >> kPageShift & (kLeafEntries - 1)].load(std::memory_order_acquire);
  }

  struct Block {
    uint64_t base = 0;
    uint64_t size = 0;
  };
  // The live block that has an address. Valid while it lives.
  bool find(uint64_t address, Block* out) const noexcept {
    const PoolRun* const run = run_at(address);
    if (run == nullptr) return false;
    const uint32_t index = run->index_of(address);
    if (index >= run->count || run->state(index).load(std::memory_order_acquire) == PoolRun::kFree)
      return false;
    out->size = run->block_size();
    out->base = run->base() + index * out->size;
    return true;
  }

  // Whether reports list the pool. Its memory needs no lines then.
  bool listed() const { return listed_.load(std::memory_order_relaxed); }
  void set_listed(bool listed) noexcept { listed_.store(listed, std::memory_order_relaxed); }
  // Whether none lived when the pool was last to end.
  bool empty() const { return empty_.load(std::memory_order_relaxed); }
  void set_empty(bool empty) noexcept { empty_.store(empty, std::memory_order_relaxed); }

  // A run that was used before, or a new one. Throws std::bad_alloc.
  PoolRun* make_run(uint32_t class_index, uint64_t block_size, uint32_t count);
  void recycle(PoolRun* run) noexcept;

 private:
  static constexpr uint64_t kPageShift = 16;
  static constexpr uint64_t kRootShift = 32;
  static constexpr uint64_t kEnd = uint64_t{1} << 48;
  static constexpr uint64_t kRootEntries = kEnd >> kRootShift;
  static constexpr uint64_t kLeafEntries = uint64_t{1} << (kRootShift - kPageShift);
  using Leaf = std::atomic<PoolRun*>;
  static_assert(uint64_t{1} << kPageShift == PoolClasses::kPage);

  std::atomic<Leaf*>* root_ = nullptr;
  // Entries of the root outside of these are null, and their pages never touched.
  uint64_t first_leaf_ = kRootEntries;
  uint64_t end_of_leaves_ = 0;
  std::atomic<bool> listed_{false};
  std::atomic<bool> empty_{false};
  std::vector<std::unique_ptr<PoolRun>> runs_;
  std::array<std::vector<PoolRun*>, PoolClasses::kCountMax> unused_;  // chunks by class
  std::vector<PoolRun*> unused_large_;
};

}  // namespace gpumem::core
