// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/page_map.h"

#include <algorithm>

#include "platform/pages.h"

namespace gpumem::core {
RegionRange::Link* PageMap::link_in(RegionRange& range, uint64_t page) noexcept {
  if (page == range.begin >> kPageShift) return &range.first;
  if (page == (range.begin + range.size - 1) >> kPageShift) return &range.last;
  return nullptr;
}

PageMap::PageMap() = default;

Result<void> PageMap::open() {
  auto pages = platform::map_lazily(kRootEntries * sizeof(Entry));
  if (!pages) return pages.error();
  root_ = static_cast<Entry*>(*pages);
  return {};
}

PageMap::~PageMap() {
  for (Middle* const first : middle_blocks_)
    platform::unmap(first, kMiddlesOfBlock * sizeof(Middle));
  if (root_ != nullptr) platform::unmap(root_, kRootEntries * sizeof(Entry));
}

// ---- room ----

// Each end of a range can need a middle node and a leaf. The rest fills whole entries, unless it is larger
// than a root entry covers.
[[gnu::cold]] Result<void> PageMap::Room::reserve(uint32_t ranges) {
  const std::lock_guard lock(map_.mutex_);
  const uint64_t nodes = 2 * (map_.promised_ranges_ + ranges);
  map_.leaves_.reserve(map_.leaves_.size() + nodes);
  map_.spare_leaves_.reserve(nodes);
  while (map_.spare_leaves_.size() < nodes)
    map_.spare_leaves_.push_back(std::make_unique<Leaf>());
  while (map_.spare_middles_.size() < nodes) {
    map_.middle_blocks_.reserve(map_.middle_blocks_.size() + 1);
    map_.spare_middles_.reserve(map_.spare_middles_.size() + kMiddlesOfBlock);
    auto pages = platform::map_lazily(kMiddlesOfBlock * sizeof(Middle));
    if (!pages) return pages.error();
    auto* const block = static_cast<Middle*>(*pages);
    map_.middle_blocks_.push_back(block);
    for (uint64_t i = 0; i < kMiddlesOfBlock; ++i)
      map_.spare_middles_.push_back(block + i);
  }
  map_.promised_ranges_ += ranges;
  ranges_ += ranges;
  return {};
}

PageMap::Room::~Room() {
  if (ranges_ == 0) return;
  const std::lock_guard lock(map_.mutex_);
  map_.promised_ranges_ -= ranges_;
}

// ---- nodes ----

// A range that filled the entry fills the entries of the new node.
PageMap::Middle* PageMap::middle_for(Entry& entry) noexcept {
  const uint64_t before = entry.load(std::memory_order_relaxed);
  if ((before & kTag) == kNode) return pointer_in<Middle>(before);
  Middle* const middle = spare_middles_.back();
  spare_middles_.pop_back();
  if (before != 0) {
    for (Entry& each : middle->entries)
      each.store(before, std::memory_order_relaxed);
  }
  entry.store(tagged(middle, kNode), std::memory_order_release);
  return middle;
}

PageMap::Leaf* PageMap::leaf_for(Entry& entry) noexcept {
  const uint64_t before = entry.load(std::memory_order_relaxed);
  if ((before & kTag) == kNode) return pointer_in<Leaf>(before);
  Leaf* const leaf = spare_leaves_.back().get();
  leaves_.push_back(std::move(spare_leaves_.back()));
  spare_leaves_.pop_back();
  if (before != 0) {
    for (Entry& each : leaf->entries)
      each.store(before, std::memory_order_relaxed);
  }
  entry.store(tagged(leaf, kNode), std::memory_order_release);
  return leaf;
}

// ---- writing ----

void PageMap::insert(RegionRange& range) noexcept {
  const std::lock_guard lock(mutex_);
  insert_locked(range);
}

void PageMap::insert_locked(RegionRange& range) noexcept {
  range.first.range = range.last.range = &range;
  const uint64_t end = range.begin + range.size;
  const uint64_t value = tagged(&range, kRange);
  for (uint64_t at = range.begin; at < end;) {
    Entry& root = root_entry(at);
    const auto covers = [&](uint64_t shift) {
      const uint64_t span = uint64_t{1} << shift;
      return (at & (span - 1)) == 0 && end - at >= span;
    };
    const auto next = [&](uint64_t shift) { return ((at >> shift) + 1) << shift; };
    if (covers(kRootShift) && (root.load(std::memory_order_relaxed) & kTag) != kNode) {
      root.store(value, std::memory_order_release);
      at = next(kRootShift);
      continue;
    }
    const uint64_t index = (at >> kMiddleShift) % kMiddleEntries;
    Entry* middle = middle_for(root)->entries.data() + index;
    if (covers(kMiddleShift) && (middle->load(std::memory_order_relaxed) & kTag) != kNode) {
      // A large range fills thousands of entries.
      uint64_t whole = std::min(kMiddleEntries - index, (end - at) >> kMiddleShift);
      for (; whole != 0 && (middle->load(std::memory_order_relaxed) & kTag) != kNode; --whole, ++middle) {
        middle->store(value, std::memory_order_release);
        at += uint64_t{1} << kMiddleShift;
      }
      continue;
    }
    Entry& page = leaf_for(*middle)->entries[(at >> kPageShift) % kLeafEntries];
    const uint64_t before = page.load(std::memory_order_relaxed);
    RegionRange::Link* const link = link_in(range, at >> kPageShift);
    RegionRange::Link* others = nullptr;
    if ((before & kTag) == kLinks) others = pointer_in<RegionRange::Link>(before);
    if ((before & kTag) == kRange) others = link_in(*pointer_in<RegionRange>(before), at >> kPageShift);
    if (link == nullptr || others == nullptr) {
      page.store(value, std::memory_order_release);  // the previous range fills the page and is leaving
    } else {
      if ((before & kTag) == kRange) others->next.store(nullptr, std::memory_order_relaxed);
      link->next.store(others, std::memory_order_relaxed);
      page.store(tagged(link, kLinks), std::memory_order_release);
    }
    at = next(kPageShift);
  }
}

const RegionRange* PageMap::insert_unless_taken(RegionRange& range) noexcept {
  const std::lock_guard lock(mutex_);
  const RegionRange* taken = nullptr;
  for_each_range(range.begin, range.size, [&](const RegionRange& other) {
    const RegionState& region = *other.owner;
    // Skip registrations that are being released: their bytes stay the caller's, and may stay registered.
    if (region.leaving() && !region.traits().registered) return;
    if (taken == nullptr || !region.traits().pinned()) taken = &other;
  });
  if (taken == nullptr) insert_locked(range);
  return taken;
}

void PageMap::erase(RegionRange& range) noexcept {
  const std::lock_guard lock(mutex_);
  for_each_entry(range.begin, range.begin + range.size, [&](Entry& entry, uint64_t) {
    const uint64_t value = entry.load(std::memory_order_relaxed);
    if ((value & kTag) == kRange && pointer_in<RegionRange>(value) == &range) {
      entry.store(0, std::memory_order_release);
    }
    if ((value & kTag) != kLinks) return;
    auto* const first = pointer_in<RegionRange::Link>(value);
    if (first->range == &range) {
      RegionRange::Link* const rest = first->next.load(std::memory_order_relaxed);
      entry.store(rest == nullptr ? 0 : tagged(rest, kLinks), std::memory_order_release);
      return;
    }
    for (auto* link = first; link != nullptr; link = link->next.load(std::memory_order_relaxed)) {
      RegionRange::Link* const next = link->next.load(std::memory_order_relaxed);
      if (next == nullptr || next->range != &range) continue;
      link->next.store(next->next.load(std::memory_order_relaxed), std::memory_order_release);
      return;
    }
  });
}

// ---- reading ----

// Every entry that is no node, with the address at which it begins or, for the first one, `begin`.
template <class F>
void PageMap::for_each_entry(uint64_t begin, uint64_t end, F function) noexcept {
  const auto next = [](uint64_t at, uint64_t shift) { return ((at >> shift) + 1) << shift; };
  for (uint64_t at = begin; at < end;) {
    Entry& root = root_entry(at);
    const uint64_t in_root = root.load(std::memory_order_acquire);
    if ((in_root & kTag) != kNode) {
      function(root, at);
      at = next(at, kRootShift);
      continue;
    }
    const uint64_t first = (at >> kMiddleShift) % kMiddleEntries;
    Entry* middle = pointer_in<Middle>(in_root)->entries.data() + first;
    for (uint64_t left = kMiddleEntries - first; left != 0 && at < end; --left, ++middle) {
      const uint64_t in_middle = middle->load(std::memory_order_acquire);
      if ((in_middle & kTag) != kNode) {
        function(*middle, at);
        at = next(at, kMiddleShift);
        continue;
      }
      for (uint64_t i = (at >> kPageShift) % kLeafEntries; i < kLeafEntries && at < end; ++i) {
        function(pointer_in<Leaf>(in_middle)->entries[i], at);
        at = next(at, kPageShift);
      }
    }
  }
}

// Every range that has a byte in common with another one. A range is passed once for each entry that it has.
template <class F>
void PageMap::for_each_range(uint64_t begin, uint64_t size, F function) const noexcept {
  const auto meets = [&](const RegionRange& range) {
    return range.begin < begin + size && begin < range.begin + range.size;
  };
  const_cast<PageMap*>(this)->for_each_entry(begin, begin + size, [&](Entry& entry, uint64_t) {
    const uint64_t value = entry.load(std::memory_order_acquire);
    if ((value & kTag) == kRange && meets(*pointer_in<RegionRange>(value))) {
      function(*pointer_in<RegionRange>(value));
    }
    if ((value & kTag) != kLinks) return;
    for (auto* link = pointer_in<RegionRange::Link>(value); link != nullptr;
         link = link->next.load(std::memory_order_acquire)) {
      if (meets(*link->range)) function(*link->range);
    }
  });
}

const RegionRange* PageMap::find_live(uint64_t begin, uint64_t size) const noexcept {
  const RegionRange* found = nullptr;
  if (begin >= kEnd) return nullptr;
  for_each_range(begin, std::min(size, kEnd - begin), [&](const RegionRange& range) {
    if (found == nullptr && range.owner->live()) found = &range;
  });
  return found;
}

}  // namespace gpumem::core
