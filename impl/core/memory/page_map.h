// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which region owns an address. A radix map from pages to regions: readers use plain loads, writers a lock.
//
// Every instance has a map of its own. Two instances may own one address, as when one registers what another
// has pinned, and a forked child begins with an empty map without doing anything.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "core/memory/kind.h"

namespace gpumem::core {

// What the map knows of a region, of which it is a base.
class RegionState {
 public:
  // Reserved during creation, live once recorded, leaving once new uses are refused, releasing while the
  // backend frees it: the addresses may be reused before it is erased. In any state, the driver is never
  // asked about its addresses.
  enum class State : uint8_t { kReserved, kLive, kLeaving, kReleasing };
  bool live() const { return state_.load(std::memory_order_acquire) == State::kLive; }
  bool leaving() const { return state_.load(std::memory_order_acquire) >= State::kLeaving; }
  bool releasing() const { return state_.load(std::memory_order_acquire) == State::kReleasing; }
  void set_state(State state) noexcept { state_.store(state, std::memory_order_release); }

  const KindTraits& traits() const { return traits_; }

 protected:
  explicit RegionState(const KindTraits& traits) : traits_(traits) {}
  ~RegionState() = default;

 private:
  std::atomic<State> state_{State::kReserved};
  const KindTraits& traits_;
};

// A range of addresses of a region. It lies in the region and lives as long.
struct RegionRange {
  uint64_t begin = 0;
  uint64_t size = 0;             // includes granted bytes around the region, which no one else can have
  uint64_t base = 0;             // first byte of the region
  RegionState* owner = nullptr;  // see region_of()

  bool holds(uint64_t address) const { return address - begin < size; }

  // Links of the pages that the range shares with others: its first and its last one.
  struct Link {
    RegionRange* range = nullptr;
    std::atomic<Link*> next{nullptr};
  };
  Link first;
  Link last;
};

class PageMap {
 public:
  PageMap();
  ~PageMap();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;
  // Call once, before anything else.
  Result<void> open();

  // Room for `ranges` calls of insert(), whose addresses need not be known yet. Unused room is released.
  class Room {
   public:
    explicit Room(PageMap& map) : map_(map) {}
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room();
    Result<void> reserve(uint32_t ranges);

   private:
    PageMap& map_;
    uint32_t ranges_ = 0;
  };

  // Enters a range for which room was reserved. Displaces regions that are leaving.
  void insert(RegionRange& range) noexcept;
  // Like insert(), but returns a conflicting range instead of entering, other than a registration that is
  // leaving. Prefers one of memory that can never be registered. Valid as what find() returns.
  const RegionRange* insert_unless_taken(RegionRange& range) noexcept;
  // Erases what is left of a range. Delete it only once no thread looks at it any more.
  void erase(RegionRange& range) noexcept;

  // The range that holds an address, or null; of several, one that is not leaving. Valid while a Look lives
  // that began before the call.
  const RegionRange* find(uint64_t address) const noexcept;
  // A live range with a byte in [begin, begin + size), or null. As find().
  const RegionRange* find_live(uint64_t begin, uint64_t size) const noexcept;

  // Addresses from here on cannot be entered: no system hands them to user programs.
  static constexpr uint64_t kEnd = uint64_t{1} << 56;

 private:
  // Bits of an address: 20 for the root, 15 for a middle node, 9 for a leaf, 12 within a page.
  static constexpr uint64_t kRootShift = 36;
  static constexpr uint64_t kMiddleShift = 21;
  static constexpr uint64_t kPageShift = 12;
  static constexpr uint64_t kRootEntries = uint64_t{1} << 20;
  static constexpr uint64_t kMiddleEntries = uint64_t{1} << (kRootShift - kMiddleShift);
  static constexpr uint64_t kLeafEntries = uint64_t{1} << (kMiddleShift - kPageShift);
  static constexpr uint64_t kMiddlesOfBlock = 8;  // mapping takes longer than using

  // An entry is 0, or a pointer and what it points to. A range in an entry holds all of the entry's addresses
  // or shares none of them with another range; links hold the ranges of a page that several share.
  using Entry = std::atomic<uint64_t>;
  static constexpr uint64_t kTag = 3;
  static constexpr uint64_t kNode = 1;
  static constexpr uint64_t kRange = 2;
  static constexpr uint64_t kLinks = 3;
  struct Leaf {
    std::array<Entry, kLeafEntries> entries{};
  };
  struct Middle {
    std::array<Entry, kMiddleEntries> entries;  // zero pages of the system
  };

  template <class T>
  static T* pointer_in(uint64_t entry) {
    return reinterpret_cast<T*>(entry & ~kTag);  // NOLINT(performance-no-int-to-ptr): tagged
  }
  static uint64_t tagged(const void* pointer, uint64_t tag) {
    return reinterpret_cast<uint64_t>(pointer) | tag;
  }

  Entry& root_entry(uint64_t address) const noexcept { return root_[address >> kRootShift]; }
  // The link of a range in a page; null where the range holds the whole page and never shares it.
  static RegionRange::Link* link_in(RegionRange& range, uint64_t page) noexcept;
  Middle* middle_for(Entry& entry) noexcept;
  Leaf* leaf_for(Entry& entry) noexcept;
  template <class F>
  void for_each_entry(uint64_t begin, uint64_t end, F function) noexcept;
  template <class F>
  void for_each_range(uint64_t begin, uint64_t size, F function) const noexcept;
  void insert_locked(RegionRange& range) noexcept;

  std::mutex mutex_;  // for writers
  Entry* root_ = nullptr;
  // Nodes for inserts to come. Guarded by mutex_.
  std::vector<std::unique_ptr<Leaf>> spare_leaves_;
  std::vector<Middle*> spare_middles_;
  uint64_t promised_ranges_ = 0;
  std::vector<std::unique_ptr<Leaf>> leaves_;
  std::vector<Middle*> middle_blocks_;  // first nodes of what is mapped at once
};

inline const RegionRange* PageMap::find(uint64_t address) const noexcept {
  if (address >= kEnd) return nullptr;
  uint64_t value = root_entry(address).load(std::memory_order_acquire);
  if ((value & kTag) == kNode) [[likely]] {
    value = pointer_in<Middle>(value)->entries[(address >> kMiddleShift) % kMiddleEntries].load(
        std::memory_order_acquire);
    if ((value & kTag) == kNode) {
      value = pointer_in<Leaf>(value)->entries[(address >> kPageShift) % kLeafEntries].load(
          std::memory_order_acquire);
    }
  }
  if ((value & kTag) == kRange) [[likely]] {
    const auto* const range = pointer_in<RegionRange>(value);
    return range->holds(address) ? range : nullptr;
  }
  const RegionRange* leaving = nullptr;
  if ((value & kTag) == kLinks) {
    for (auto* link = pointer_in<RegionRange::Link>(value); link != nullptr;
         link = link->next.load(std::memory_order_acquire)) {
      if (!link->range->holds(address)) continue;
      if (!link->range->owner->leaving()) return link->range;
      leaving = link->range;
    }
  }
  return leaving;
}

}  // namespace gpumem::core
