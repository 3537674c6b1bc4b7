// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where in the memory of a pool chunks and large blocks lie: at the lowest address that fits, with neighbours
// joined at once. In recorded programs that leaves more in a row than the best fit (docs/measured/pools.md).
//
// Free memory has an order: that of the stream in which it was freed, until the work before is complete.
// Neighbours join if they have the same order. Not thread-safe: guarded by the pool's lock.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <utility>

namespace gpumem::core {

// Allocates nodes of maps and sets ahead, so that a change cannot fail half way.
class PoolNodes {
 public:
  PoolNodes() = default;
  PoolNodes(const PoolNodes&) = delete;
  PoolNodes& operator=(const PoolNodes&) = delete;
  ~PoolNodes();
  // Allocates `count` nodes ahead. Throws std::bad_alloc.
  void prepare(size_t count) {
    while (free_ < count)
      put(::operator new(kNode));
  }
  void* take() {
    if (first_ == nullptr) {
      lacked_ = true;
      return ::operator new(kNode);
    }
    --free_;
    return std::exchange(first_, *static_cast<void**>(first_));
  }
  void put(void* node) noexcept {
    *static_cast<void**>(node) = first_;
    first_ = node;
    ++free_;
  }
  // Whether a change took a node that was not allocated ahead; for tests.
  bool lacked() const { return lacked_; }
  static constexpr size_t kNode = 128;

 private:
  void* first_ = nullptr;
  size_t free_ = 0;
  bool lacked_ = false;
};

template <class T>
class PoolNodeAllocator {
 public:
  using value_type = T;
  explicit PoolNodeAllocator(PoolNodes& nodes) : nodes_(&nodes) {}
  template <class U>
  PoolNodeAllocator(const PoolNodeAllocator<U>& other) : nodes_(&other.nodes()) {}  // NOLINT: converts
  T* allocate(size_t /*one*/) {
    static_assert(sizeof(T) <= PoolNodes::kNode);
    return static_cast<T*>(nodes_->take());
  }
  void deallocate(T* node, size_t /*one*/) noexcept { nodes_->put(node); }
  PoolNodes& nodes() const { return *nodes_; }
  template <class U>
  bool operator==(const PoolNodeAllocator<U>& other) const {
    return nodes_ == &other.nodes();
  }

 private:
  PoolNodes* nodes_;
};

// What free memory waits for: its order, up to the epoch of the latest free in it.
struct PoolPassing {
  uint64_t order = 0;  // PoolSpace::kAny: nothing
  uint64_t epoch = 0;
};

// A call that throws has changed nothing.
class PoolSpace {
 public:
  PoolSpace() : places_(PoolNodeAllocator<int>(nodes_)), free_(PoolNodeAllocator<int>(nodes_)) {}

  // Allocates ahead what so many calls need. Throws std::bad_alloc.
  void prepare(size_t calls) { nodes_.prepare(calls * kNodesOfCall); }
  using Order = uint64_t;           // never used again
  static constexpr Order kAny = 0;  // everyone may have it

  // Adds memory that is free, by default for all. Adjacent places join if they have the same group.
  void add(uint64_t base, uint64_t size, uint64_t group, PoolPassing passing = {});
  // Takes back memory that is free. Returns what it waits for.
  PoolPassing remove(uint64_t base, uint64_t size);

  // Takes the lowest sufficient place that is free for all or in the order; no value if there is none. Of the
  // places of about this size it looks at the first 64, and at all only if no other is large enough.
  std::optional<uint64_t> take(uint64_t size, uint64_t alignment, Order order);
  // Like take(), but joins neighbours that lie in the order or are free for all.
  std::optional<uint64_t> take_joined(uint64_t size, uint64_t alignment, Order order);
  // Another order that `counts` and has to pass before a place of this size is free for `own`; no value if
  // there is none.
  std::optional<Order> order_in_the_way(uint64_t size, uint64_t alignment, Order own,
                                        const std::function<bool(Order)>& counts) const;
  // Frees what was taken. `epoch` counts the marks of the order.
  void give(uint64_t base, Order order, uint64_t epoch);
  uint64_t size_of(uint64_t base) const { return places_.at(base).size; }
  // Call when the work of the order is complete up to an epoch.
  void pass(Order order, uint64_t epoch);

  // Largest place of an order, or of one that could be joined.
  uint64_t largest(Order order) const;
  // Bytes free at the end of a group, up to the address `end`.
  uint64_t tail(uint64_t end, Order order) const;
  // Bytes free at the start of a group, from the address `begin` on.
  uint64_t head(uint64_t begin, Order order) const;
  // Bytes that are free in the order.
  uint64_t free_bytes(Order order) const;
  // Largest place that is free, in whichever order.
  uint64_t largest_place() const;
  uint64_t taken_bytes() const { return taken_; }
  uint64_t total_bytes() const { return total_; }

  // Calls `function(base, size)` for each place that is free for all, from high addresses on.
  template <class F>
  void for_each_free(F function) const {
    for (auto place = places_.rbegin(); place != places_.rend(); ++place) {
      if (!place->second.taken && place->second.order == kAny) function(place->first, place->second.size);
    }
  }
  // Places that are free in an order, by power of two of the size, and by base: the one behind (size, base),
  // or nothing. Needs no memory.
  std::optional<std::pair<uint64_t, uint64_t>> next_free(Order order, uint64_t size, uint64_t base) const;
  // Whether the records are consistent; for tests.
  bool consistent() const;

 private:
  struct Place {
    uint64_t size = 0;
    uint64_t group = 0;
    uint64_t epoch = 0;  // of its order: that of the latest free in it
    Order order = kAny;
    bool taken = false;
  };
  static constexpr size_t kNodesOfCall = 8;
  template <class K, class V>
  using Map = std::map<K, V, std::less<K>, PoolNodeAllocator<std::pair<const K, V>>>;
  using Places = Map<uint64_t, Place>;
  using FreePlace = std::pair<uint64_t, uint64_t>;  // base and size
  using Bin = std::set<FreePlace, std::less<FreePlace>, PoolNodeAllocator<FreePlace>>;
  using BinKey = std::pair<Order, int>;
  using Bins = Map<BinKey, Bin>;

  static int bin_of(uint64_t size) { return static_cast<int>(std::bit_width(size)); }
  static BinKey key_of(const Place& place) { return {place.order, bin_of(place.size)}; }
  // Calls `function(bin)` for each bin of an order that may have places of a size.
  template <class F>
  void for_each_bin(Order order, uint64_t size, F function) const {
    for (auto bin = free_.lower_bound({order, bin_of(size)}); bin != free_.end() && bin->first.first == order;
         ++bin)
      function(bin->second);
  }
  void list(Places::iterator place) {
    const auto bin = free_.try_emplace(key_of(place->second), PoolNodeAllocator<FreePlace>(nodes_)).first;
    bin->second.emplace(place->first, place->second.size);
  }
  void unlist(Places::iterator place) {
    const auto bin = free_.find(key_of(place->second));
    bin->second.erase({place->first, place->second.size});
    if (bin->second.empty()) free_.erase(bin);
  }
  // Joins a free place with its neighbours of the same order, and lists it.
  void join(Places::iterator place);
  static bool touch(Places::const_iterator first, Places::const_iterator second) {
    return first->first + first->second.size == second->first && first->second.group == second->second.group;
  }
  // Cuts [base, base + size) out of a free place, which is not listed; the rests are.
  Places::iterator cut(Places::iterator place, uint64_t base, uint64_t size);
  std::optional<FreePlace> lowest(Order order, uint64_t size, uint64_t alignment, int looks) const;

  PoolNodes nodes_;  // first, since the others end in it
  Places places_;
  Bins free_;  // by order and power of two
  uint64_t taken_ = 0;
  uint64_t total_ = 0;
};

}  // namespace gpumem::core
