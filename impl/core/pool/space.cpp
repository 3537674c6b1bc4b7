// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/pool/space.h"

#include <algorithm>
#include <climits>
#include <vector>

#include "base/arithmetic.h"

namespace gpumem::core {

PoolNodes::~PoolNodes() {
  while (first_ != nullptr)
    ::operator delete(std::exchange(first_, *static_cast<void**>(first_)));
}

void PoolSpace::join(Places::iterator place) {
  const uint64_t size = place->second.size;
  const auto same = [&](Places::iterator first, Places::iterator second) {
    return !first->second.taken && !second->second.taken && first->second.order == second->second.order &&
           touch(first, second);
  };
  // A place that is free for all joins an at least as large neighbour in an order: that stream gains a larger
  // place, and others lose little, only until the work before is complete.
  const auto follow = [&](Places::iterator other) {
    if (other->second.taken || other->second.order != kAny || other->second.size > size) return;
    unlist(other);
    other->second.order = place->second.order;
    list(other);
  };
  if (place->second.order != kAny) {
    if (const auto next = std::next(place); next != places_.end() && touch(place, next)) follow(next);
    if (place != places_.begin() && touch(std::prev(place), place)) follow(std::prev(place));
  }
  // Join up to two on each side: the neighbour that was moved into this order, and the one beyond it.
  for (auto next = std::next(place); next != places_.end() && same(place, next); next = std::next(place)) {
    unlist(next);
    place->second.size += next->second.size;
    place->second.epoch = std::max(place->second.epoch, next->second.epoch);
    places_.erase(next);
  }
  while (place != places_.begin() && same(std::prev(place), place)) {
    const auto previous = std::prev(place);
    unlist(previous);
    previous->second.size += place->second.size;
    previous->second.epoch = std::max(previous->second.epoch, place->second.epoch);
    places_.erase(place);
    place = previous;
  }
  list(place);
}

PoolSpace::Places::iterator PoolSpace::cut(Places::iterator place, uint64_t base, uint64_t size) {
  const Place whole = place->second;
  const uint64_t begin = place->first;
  if (base + size < begin + whole.size) {
    Place rest = whole;
    rest.size = begin + whole.size - base - size;
    list(places_.emplace(base + size, rest).first);
  }
  if (begin < base) {
    place->second.size = base - begin;
    list(place);
    Place middle = whole;
    middle.size = size;
    return places_.emplace(base, middle).first;
  }
  place->second.size = size;
  return place;
}

void PoolSpace::add(uint64_t base, uint64_t size, uint64_t group, PoolPassing passing) {
  prepare(1);
  Place place;
  place.size = size;
  place.group = group;
  place.order = passing.order;
  place.epoch = passing.epoch;
  total_ += size;
  join(places_.emplace(base, place).first);
}

PoolPassing PoolSpace::remove(uint64_t base, uint64_t size) {
  prepare(1);
  const auto place = std::prev(places_.upper_bound(base));
  const PoolPassing passing{place->second.order, place->second.epoch};
  unlist(place);
  places_.erase(cut(place, base, size));
  total_ -= size;
  return passing;
}

std::optional<PoolSpace::FreePlace> PoolSpace::lowest(Order order, uint64_t size, uint64_t alignment,
                                                      int looks) const {
  std::optional<FreePlace> found;
  for_each_bin(order, size, [&](const Bin& bin) {
    int left = looks;
    for (const auto& [base, bytes] : bin) {
      if ((found && base > found->first) || left-- == 0) return;
      if (round_up(base, alignment) + size > base + bytes) continue;
      found = {base, bytes};
      return;
    }
  });
  return found;
}

std::optional<uint64_t> PoolSpace::take(uint64_t size, uint64_t alignment, Order order) {
  std::optional<FreePlace> found;
  for (const int looks : {64, INT_MAX}) {
    found = lowest(order, size, alignment, looks);
    if (order != kAny) {
      const auto other = lowest(kAny, size, alignment, looks);
      if (!found || (other && other->first < found->first)) found = other;
    }
    if (found) break;
  }
  if (!found) return {};
  prepare(1);
  auto place = places_.find(found->first);
  unlist(place);
  place = cut(place, round_up(found->first, alignment), size);
  place->second.taken = true;
  taken_ += size;
  return place->first;
}

std::optional<uint64_t> PoolSpace::take_joined(uint64_t size, uint64_t alignment, Order order) {
  prepare(1);
  const auto usable = [&](const Place& place) {
    return !place.taken && (place.order == order || place.order == kAny);
  };
  for (auto first = places_.begin(); first != places_.end(); ++first) {
    if (!usable(first->second)) continue;
    auto last = first;
    uint64_t joined = first->second.size;
    for (auto next = std::next(last); next != places_.end() && usable(next->second) && touch(last, next);
         last = next, ++next)
      joined += next->second.size;
    const uint64_t base = round_up(first->first, alignment);
    if (base + size > first->first + joined) {
      first = last;
      continue;
    }
    // Put all of the parts into this order.
    unlist(first);
    first->second.order = order;
    while (first->second.size < joined) {
      const auto next = std::next(first);
      unlist(next);
      first->second.size += next->second.size;
      first->second.epoch = std::max(first->second.epoch, next->second.epoch);
      places_.erase(next);
    }
    auto place = cut(first, base, size);
    place->second.taken = true;
    taken_ += size;
    return place->first;
  }
  return {};
}

std::optional<PoolSpace::Order> PoolSpace::order_in_the_way(uint64_t size, uint64_t alignment, Order own,
                                                            const std::function<bool(Order)>& counts) const {
  const auto is_other = [&](const Place& place) { return place.order != kAny && place.order != own; };
  uint64_t begin = 0;
  std::optional<Order> other;
  Places::const_iterator last = places_.end();
  for (auto place = places_.begin(); place != places_.end(); ++place) {
    const Place& it = place->second;
    if (it.taken || (is_other(it) && !counts(it.order))) {
      last = places_.end();
      continue;
    }
    if (last == places_.end() || !touch(last, place)) {
      begin = round_up(place->first, alignment);
      other.reset();
    }
    last = place;
    if (!other && is_other(it)) other = it.order;
    if (other && begin + size <= place->first + it.size) return other;
  }
  return {};
}

void PoolSpace::give(uint64_t base, Order order, uint64_t epoch) {
  prepare(1);
  const auto place = places_.find(base);
  place->second.taken = false;
  place->second.order = order;
  place->second.epoch = order == kAny ? 0 : epoch;
  taken_ -= place->second.size;
  join(place);
}

void PoolSpace::pass(Order order, uint64_t epoch) {
  if (order == kAny) return;
  std::vector<uint64_t> passed;
  for_each_bin(order, 0, [&](const Bin& bin) {
    for (const auto& [base, size] : bin) {
      if (places_.at(base).epoch <= epoch) passed.push_back(base);
    }
  });
  prepare(passed.size() / kNodesOfCall + 1);  // each may need a bin, while the one that it leaves stays
  for (const uint64_t base : passed) {
    const auto place = places_.find(base);
    unlist(place);
    place->second.order = kAny;
    place->second.epoch = 0;  // it may follow into an order that counts otherwise
    join(place);
  }
}

uint64_t PoolSpace::largest(Order order) const {
  uint64_t most = 0;
  uint64_t run = 0;
  Places::const_iterator last = places_.end();
  for (auto place = places_.begin(); place != places_.end(); last = place, ++place) {
    const Place& it = place->second;
    const bool usable = !it.taken && (it.order == order || it.order == kAny);
    if (!usable) {
      run = 0;
      continue;
    }
    run = (run != 0 && touch(last, place) ? run : 0) + it.size;
    most = std::max(most, run);
  }
  return most;
}

uint64_t PoolSpace::largest_place() const {
  uint64_t most = 0;
  for (const auto& [key, bin] : free_) {
    for (const auto& [base, size] : bin)
      most = std::max(most, size);
  }
  return most;
}

uint64_t PoolSpace::free_bytes(Order order) const {
  uint64_t bytes = 0;
  for_each_bin(order, 0, [&](const Bin& bin) {
    for (const auto& [base, size] : bin)
      bytes += size;
  });
  return bytes;
}

uint64_t PoolSpace::tail(uint64_t end, Order order) const {
  uint64_t bytes = 0;
  for (auto place = places_.lower_bound(end); place != places_.begin();) {
    --place;
    const Place& it = place->second;
    if (it.taken || (it.order != order && it.order != kAny) || place->first + it.size != end - bytes) break;
    bytes += it.size;
  }
  return bytes;
}

uint64_t PoolSpace::head(uint64_t begin, Order order) const {
  uint64_t bytes = 0;
  for (auto place = places_.find(begin); place != places_.end(); ++place) {
    const Place& it = place->second;
    if (it.taken || (it.order != order && it.order != kAny) || place->first != begin + bytes) break;
    bytes += it.size;
  }
  return bytes;
}

std::optional<std::pair<uint64_t, uint64_t>> PoolSpace::next_free(Order order, uint64_t size,
                                                                  uint64_t base) const {
  for (auto bin = free_.lower_bound({order, bin_of(size)}); bin != free_.end() && bin->first.first == order;
       ++bin) {
    const bool same = bin->first.second == bin_of(size);
    const auto place = same ? bin->second.upper_bound({base, UINT64_MAX}) : bin->second.begin();
    if (place != bin->second.end()) return std::pair(place->second, place->first);
  }
  return {};
}

bool PoolSpace::consistent() const {
  if (nodes_.lacked()) return false;
  uint64_t taken = 0;
  uint64_t total = 0;
  size_t free = 0;
  Places::const_iterator last = places_.end();
  for (auto place = places_.begin(); place != places_.end(); last = place, ++place) {
    const Place& it = place->second;
    total += it.size;
    if (!it.taken && it.order == kAny && it.epoch != 0) return false;
    if (last != places_.end()) {
      if (last->first + last->second.size > place->first) return false;
      const bool joinable = !it.taken && !last->second.taken && it.order == last->second.order;
      if (joinable && touch(last, place)) return false;
    }
    if (it.taken) {
      taken += it.size;
      continue;
    }
    ++free;
    const auto bin = free_.find(key_of(it));
    if (bin == free_.end() || !bin->second.contains({place->first, it.size})) return false;
  }
  size_t listed = 0;
  for (const auto& [key, bin] : free_)
    listed += bin.size();
  return taken == taken_ && total == total_ && free == listed;
}

}  // namespace gpumem::core
