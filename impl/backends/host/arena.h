// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Small device memory in strict mode. A process may have only so many maps, so small blocks share them: a
// slab is one memory file, cut into slots of one size, and a range of addresses that stays inaccessible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/host/range.h"
#include "base/result.h"

namespace gpumem::host {

struct Shared;
class SlotPool;

struct Slab {
  std::byte* view = nullptr;       // for this backend
  std::byte* addresses = nullptr;  // the user's
  Range private_view;
  Range user_range;
  uint64_t size = 0;
  uint32_t slots = 0;
  uint32_t begun = 0;    // slots from here on were never used
  uint32_t taken = 0;    // by allocations
  uint32_t resting = 0;  // freed, and not yet to be reused
  bool has_pages = false;
  bool known = false;          // the user has seen addresses of it
  std::vector<uint16_t> free;  // has room for every slot, so that freeing cannot fail
  std::list<Slab>::iterator self;

  bool has_room() const { return begun < slots || !free.empty(); }
};

// A block in a slab. The destructor returns it.
class Slot {
 public:
  Slot() = default;
  Slot(SlotPool& pool, Slab& slab, uint16_t index) : pool_(&pool), slab_(&slab), index_(index) {}
  Slot(Slot&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        slab_(other.slab_),
        index_(other.index_),
        rests_(other.rests_) {}
  Slot& operator=(Slot&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(slab_, other.slab_);
    std::swap(index_, other.index_);
    std::swap(rests_, other.rests_);
    return *this;
  }
  ~Slot();

  std::byte* view() const;
  void* address() const;
  bool taken() const { return pool_ != nullptr; }
  // The user has seen the address, so it is not reused at once.
  void let_rest() { rests_ = true; }

 private:
  SlotPool* pool_ = nullptr;
  Slab* slab_ = nullptr;
  uint16_t index_ = 0;
  bool rests_ = false;
};

// All slots of one size of one device.
class SlotPool {
 public:
  void set_up(Shared& shared, uint64_t slot_size) {
    shared_ = &shared;
    slot_size_ = slot_size;
  }

  Result<Slot> take();
  void put_back(Slab& slab, uint16_t index, bool rests);
  uint64_t slot_size() const { return slot_size_; }

 private:
  struct Resting {
    Slab* slab;
    uint16_t index;
  };

  Result<std::list<Slab>> make_slab(uint64_t size);
  void add(std::list<Slab>& fresh);
  void rest(Slab& slab, uint16_t index);
  void release(Slab& slab, uint16_t index);
  void drop_if_empty(Slab& slab, std::list<Slab>* dropped);

  Shared* shared_ = nullptr;
  uint64_t slot_size_ = 0;
  std::mutex mutex_;  // guards everything below
  std::list<Slab> open_;
  std::list<Slab> full_;
  uint64_t total_ = 0;  // slots, and those of them that are taken or rest
  uint64_t busy_ = 0;
  std::vector<Resting> resting_;  // a ring, with room for all that can rest
  size_t oldest_ = 0;
  size_t resting_count_ = 0;
};

// The small memory of one device.
class Arena {
 public:
  explicit Arena(Shared& shared);

  // Whether a block of this size and alignment shares a slab.
  bool takes(uint64_t size, uint64_t alignment) const;
  Result<Slot> take(uint64_t size, uint64_t alignment);

 private:
  static constexpr uint64_t kSmallest = 512;
  static constexpr size_t kPools = 8;  // up to 64 KiB

  uint64_t largest_;  // 0: none
  std::array<SlotPool, kPools> pools_;
};

}  // namespace gpumem::host
