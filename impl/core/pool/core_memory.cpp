// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory of a pool: what it takes and gives back, and what it does where that is lacking.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <thread>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "core/object/callback.h"
#include "core/object/status_list.h"
#include "core/pool/core.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// What a request does not fit within.
const char* bound_of(const Error& lack) {
  if (lack.limit == Limit::kPool) return "the pool's limit";
  if (lack.limit == Limit::kPinBudget) return "the pin budget";
  if (lack.limit == Limit::kControlGroup) return "the control group";
  if (lack.status == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY) return "the device's memory";
  if (lack.status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY) return "the host's memory";
  if (lack.status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE) return "the addresses that are left";
  return "another limit";
}

}  // namespace

// ---- taking memory ----

// Calls `take(base, size)` for pieces that are free in an order, until it has taken `wanted` bytes: those in
// small places first, as larger ones are more useful. It answers whether it took the piece.
template <class F>
uint64_t PoolCore::take_free(PoolSpace::Order order, uint64_t wanted, F take) {
  uint64_t taken = 0;
  std::pair<uint64_t, uint64_t> at{0, 0};
  while (taken < wanted) {
    const auto place = space_.next_free(order, at.first, at.second);
    if (!place) break;
    at = *place;
    const auto [size, base] = at;
    auto piece = source_.pieces().lower_bound(base);
    while (taken < wanted && piece != source_.pieces().end() &&
           piece->first + piece->second.size <= base + size) {
      const auto [first, bytes] = std::pair(piece->first, piece->second.size);
      ++piece;
      space_.prepare(1);
      if (take(first, bytes)) taken += bytes;
    }
  }
  return taken;
}

// A chunk whose blocks are all free, in the order or for all, becomes free space of the order.
void PoolCore::end_chunks(Order& order) {
  const uint64_t epoch = order.epoch();
  for (uint32_t index = 0; index < classes_.count() && !order.is_none(); ++index) {
    const auto run_of = [&](const PoolFree& block) -> PoolRun& { return *blocks_.run_at(block.address); };
    size_t count = 0;
    order.take_if(index, [&](const PoolFree& block) {
      run_of(block).counted = 0;
      return false;
    });
    order.take_if(index, [&](const PoolFree& block) {
      PoolRun& run = run_of(block);
      if (++run.counted + run.free.size() == run.count) ++count;
      return false;
    });
    if (count == 0) continue;
    space_.prepare(count);
    order.take_if(index, [&](const PoolFree& block) {
      PoolRun& run = run_of(block);
      if (run.counted + run.free.size() != run.count) return false;
      --run.counted;
      run.free.push_back(run.index_of(block.address));
      if (run.counted == 0) end_chunk(run, {order.number(), epoch});
      return true;
    });
    order.note_frees(1);
  }
}

// The same for pieces that can move for the next work of an order.
template <class F>
uint64_t PoolCore::take_movable(const Order& order, uint64_t wanted, F take) {
  const uint64_t taken = take_free(PoolSpace::kAny, wanted, take);
  if (taken >= wanted || order.is_none() || !source_.has_addresses_to_move()) return taken;
  return taken + take_free(order.number(), wanted - taken, take);
}

// Only its callees allocate.
uint64_t PoolCore::release_free(uint64_t wanted) {
  settle_orders();
  (void)source_.unmap_old();
  return take_free(PoolSpace::kAny, wanted, [&](uint64_t base, uint64_t size) {
    if (!source_.release(base)) return false;
    space_.remove(base, size);
    ++releases_;
    return true;
  });
}

// Before memory that complete work has used is unmapped.
void PoolCore::settle_orders() noexcept {
  for (auto& [key, order] : orders_)
    order->settle();
}

void PoolCore::unmap_old() noexcept {
  if (!source_.has_old()) return;
  settle_orders();
  (void)source_.unmap_old();
}

uint64_t PoolCore::take_out(const Order& order, uint64_t wanted, std::vector<Moving>& out) {
  return take_movable(order, wanted, [&](uint64_t base, uint64_t size) {
    space_.prepare(out.size() + 2);  // what is put back needs none then
    out.push_back({base, size, {}});
    out.back().passing = space_.remove(base, size);
    return true;
  });
}

Error PoolCore::over_limit(uint64_t piece, uint64_t more) const {
  if (limit_ < piece) {
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                      "the pool's limit of %" PRIu64 " byte%s is below one piece of its memory, %" PRIu64
                      " bytes; raise it to %" PRIu64 " or more with gpumem_pool_set_limit()",
                      limit_, plural(limit_), piece, source_.bytes() + more)
        .with_limit(Limit::kPool);
  }
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "the pool has %" PRIu64 " bytes of its limit of %" PRIu64 "; %" PRIu64
                    " more do not fit; free some, or raise the limit with gpumem_pool_set_limit()",
                    source_.bytes(), limit_, more)
      .with_limit(Limit::kPool);
}

// Refuses early a large growth that cannot succeed, so that it does not fill the device while others need the
// memory.
Result<void> PoolCore::check_room(uint64_t bytes) {
  constexpr uint64_t kMany = 64 * kMiB;
  if (bytes < kMany) return {};
  auto memory = device_.backend().memory_available();
  if (!memory || memory->free_bytes >= bytes) return {};
  return make_error(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                    "device %u has %" PRIu64 " bytes free; %" PRIu64 " more do not fit", device_.ordinal(),
                    memory->free_bytes, bytes);
}

// Moving a piece costs driver calls, so allow some slack first: 1/32 of the peak, up to 64 MiB, or 1/128 of a
// large pool.
uint64_t PoolCore::ample(uint64_t needed) {
  return needed + std::max(needed / 128, std::min(64 * kMiB, needed / 32));
}

bool PoolCore::may_grow(const Order& order, uint64_t size) {
  if (!source_.can_move()) return false;
  uint64_t most = ample(std::max(most_needed_, space_.taken_bytes() + size));
  if (limit_ != 0) most = std::min(limit_, most);
  if (source_.bytes() + size <= most) return true;
  const uint64_t surplus = source_.bytes() + size - most;
  return take_movable(order, surplus, [](uint64_t /*base*/, uint64_t /*size*/) { return true; }) >= surplus;
}

// Maps memory next to free memory, where the least is needed. If the pool has much more than it ever used at
// once, moves free memory there from elsewhere.
Result<void> PoolCore::grow_range(Order& order, uint64_t size) {
  if (exceeds_device(size)) {
    return make_error(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                      "device %u has %" PRIu64 " bytes in all, and %" PRIu64
                      " are needed at once; ask for less",
                      device_.ordinal(), device_.facts().total_bytes, size);
  }
  const uint64_t granularity = source_.granularity();
  uint64_t at = 0;
  uint64_t room = 0;
  uint64_t added = 0;
  const auto plan = [&] {
    added = UINT64_MAX;
    source_.for_each_gap([&](uint64_t begin, uint64_t end) {
      const uint64_t before = space_.tail(begin, order.number());
      const uint64_t lacking = size > before ? round_up(size - before, granularity) : 0;
      uint64_t needed = lacking;
      if (needed > end - begin) {
        const uint64_t behind = end != source_.end() ? space_.head(end, order.number()) : 0;
        if (before + (end - begin) + behind < size) return;
        needed = end - begin;
      }
      if (needed >= added) return;
      at = begin;
      room = end - begin;
      added = needed;
    });
  };
  plan();
  const uint64_t target = limit_ == 0 ? ample(most_needed_) : std::min(limit_, ample(most_needed_));
  std::vector<Moving> moving;
  uint64_t moved = 0;
  const Cleanup put_back([&] {
    for (const Moving& piece : moving)
      space_.add(piece.base, piece.size, 0, piece.passing);
  });
  // Taking something out may take what the plan counted on, so plan anew.
  while (added != UINT64_MAX && !never_fits(size)) {
    if (source_.bytes() + added <= target + moved) break;
    const uint64_t surplus = source_.bytes() + added - target - moved;
    const uint64_t found = source_.can_move() ? take_out(order, surplus, moving) : release_free(surplus);
    if (source_.can_move()) moved += found;
    if (found == 0) break;
    plan();
  }
  if (added == UINT64_MAX) {
    return make_error(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
                      "the pool has no %" PRIu64 " addresses in a row for its memory", size);
  }
  uint64_t done = 0;
  for (size_t i = moving.size(); i-- > 0 && done < added;) {
    const Moving piece = moving[i];
    if (piece.size > room - done) continue;
    GPUMEM_TRY(source_.move(piece.base, at + done, piece.passing));
    moving[i] = moving.back();
    moving.pop_back();
    space_.add(at + done, piece.size, 0, piece.passing);
    done += piece.size;
  }
  if (done >= added) return {};
  // What is too large for the place makes room for a new piece, as far as it may be released.
  settle_orders();
  for (size_t i = moving.size(); i-- > 0 && source_.bytes() + added > target + done;) {
    if (moving[i].passing.order != PoolSpace::kAny || !source_.release(moving[i].base)) continue;
    moving[i] = moving.back();
    moving.pop_back();
    ++releases_;
  }
  // Grow by more at a time, if that was requested.
  const uint64_t more = std::min(round_up(std::max(added, request_.segment_size), granularity), room);
  if (more > added && done == 0 && (limit_ == 0 || source_.bytes() + more <= limit_) && check_room(more))
    added = more;
  if (limit_ != 0 && source_.bytes() + added - done > limit_) return over_limit(granularity, added - done);

  GPUMEM_TRY(check_room(added - done));

  // Pieces are released whole: small ones leave less unreleased, but many cost time.
  const uint64_t unit = std::max(
      std::clamp(std::bit_floor(most_needed_ / 2048 | 1), granularity, std::max(granularity, 32 * kMiB)),
      round_up(std::bit_floor(added / 128 | 1), granularity));
  space_.prepare(added / unit + 2 + moving.size());
  while (done < added) {
    const uint64_t piece = std::min(unit, added - done);
    GPUMEM_TRY(source_.map(at + done, piece));
    space_.add(at + done, piece, 0);
    done += piece;
  }
  return {};
}

Result<uint64_t> PoolCore::size_of_piece(uint64_t least) {
  uint64_t wanted = request_.segment_size;
  if (wanted == 0) wanted = std::clamp(round_down(source_.bytes() / 8, 2 * kMiB), 2 * kMiB, 64 * kMiB);
  wanted = std::max(round_up(wanted, PoolClasses::kPage), least);
  const auto over = [&](uint64_t bytes) { return limit_ != 0 && source_.bytes() + bytes > limit_; };
  if (over(wanted)) wanted = least;
  if (over(wanted) && !never_fits(wanted)) release_free(source_.bytes() + wanted - limit_);
  if (over(wanted)) return over_limit(PoolClasses::kPage, wanted);
  return wanted;
}

Result<PoolSource::Pieces::node_type> PoolCore::make_piece(uint64_t wanted, uint64_t least) const {
  auto made = source_.make(wanted);
  if (made || wanted == least || !lacks_room(made.error().status)) return made;
  return source_.make(least);
}

// A new piece; if that fails, it is released.
Result<void> PoolCore::enter(PoolSource::Pieces::node_type made) {
  const uint64_t size = made.mapped().size;
  const uint64_t base = source_.add(std::move(made));
  Cleanup undo([&] { (void)source_.release(base); });
  space_.prepare(1);
  GPUMEM_TRY(blocks_.reserve(base, size));
  undo.dismiss();
  space_.add(base, size, base);
  peak_reserved_ = std::max(peak_reserved_, source_.bytes());
  ++grows_;
  return {};
}

Result<bool> PoolCore::take_from_driver(Lock& lock) {
  const uint64_t least = std::exchange(lacking_, 0);
  if (taking_) {
    // What that thread takes may do for this one too.
    taken_.wait(lock, [&] { return !taking_; });
    return false;
  }
  auto wanted = size_of_piece(least);
  if (!wanted) return wanted.error();
  taking_ = true;
  auto made = [&] {
    lock.unlock();
    const Cleanup again([&] {
      lock.lock();
      taking_ = false;
      taken_.notify_all();
    });
    return make_piece(*wanted, least);
  }();
  if (!made) return made.error();
  GPUMEM_TRY(enter(std::move(*made)));
  return true;
}

Result<void*> PoolCore::try_allocate(Lock& lock, Order& order, uint64_t size, uint64_t alignment) {
  const auto index = class_of(size, alignment);
  const uint64_t block_size = index ? classes_.size_of(*index) : 0;
  const bool may_be_less =
      index && PoolClasses::least_chunk_size(block_size) < PoolClasses::chunk_size(block_size);
  bool least = false;
  bool entered = false;
  while (true) {
    auto block = try_allocate(order, size, alignment, least);
    if (block || lacking_ == 0) return block;
    if (entered) {
      lacking_ = 0;
      return make_error(GPUMEM_ERROR_INTERNAL, "the pool cannot use the memory that it took");
    }
    // Look for no more than is taken: more would be refused again, and the new piece released for it.
    least = least || (may_be_less && lacking_ < PoolClasses::chunk_size(block_size));
    auto taken = take_from_driver(lock);
    if (taken) {
      entered = *taken;
      continue;
    }
    if (least || !may_be_less || !lacks_room(taken.error().status)) return taken.error();
    least = true;
  }
}

Result<void> PoolCore::grow(Order& order, uint64_t size, uint64_t alignment) {
  if (at_once_) return make_error(GPUMEM_NOT_READY, "the pool has no block free");
  if (alignment > PoolClasses::kPage) size += alignment;
  if (!source_.in_range()) {
    const uint64_t least = round_up(size, PoolClasses::kPage);
    auto wanted = size_of_piece(least);
    if (!wanted) return wanted.error();
    if (request_.memory.from_driver) {
      lacking_ = least;
      return make_error(GPUMEM_NOT_READY, "the driver's pool is asked next");
    }
    auto made = make_piece(*wanted, least);
    if (!made) return made.error();
    return enter(std::move(*made));
  }
  const uint64_t needed_before = most_needed_;
  Cleanup undo([&] { most_needed_ = needed_before; });
  most_needed_ = std::max(most_needed_, space_.taken_bytes() + size);
  unmap_old();
  auto grown = [&] {
    const Cleanup unmap([&] { unmap_old(); });
    return grow_range(order, size);
  }();
  // Count the pieces of a failed growth too: with what is freed for the next try, they may suffice.
  peak_reserved_ = std::max(peak_reserved_, source_.bytes());
  if (!grown) return grown;
  undo.dismiss();
  ++grows_;
  return {};
}

void PoolCore::keep_threshold() {
  if (release_threshold_ == 0 || source_.bytes() <= release_threshold_) return;
  mark_all();
  poll();
  sweep();
  const uint64_t kept =
      request_.low_water == 0 ? release_threshold_ : std::min(request_.low_water, release_threshold_);
  release_free(source_.bytes() - kept);
}

// ---- lack of memory ----

bool PoolCore::in_callback() const {
  return callback_thread_.load(std::memory_order_relaxed) == &platform::thread_record();
}

Result<void> PoolCore::set_callback(gpumem_pool_callback callback, void* user_data) {
  if (in_callback()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE, "the callback is running; set it when it has returned");
  }
  const auto lock = lock_unless_in_callback(callback_mutex_);
  if (!lock) return changed_elsewhere("pool, or in its callback");
  callback_ = callback;
  callback_data_ = user_data;
  return {};
}

std::optional<bool> PoolCore::ask_callback(Lock& lock, uint64_t size) {
  if (in_callback()) return {};
  lock.unlock();
  std::optional<bool> again;
  {
    // Within a callback of another pool, do not wait for this pool's callback, to avoid a deadlock.
    const auto running = lock_unless_in_callback(callback_mutex_);
    if (running && callback_ != nullptr) {
      callback_thread_.store(&platform::thread_record(), std::memory_order_relaxed);
      const Callback here;
      again = callback_(callback_data_, reinterpret_cast<gpumem_pool>(pointer_to(handle_)), size) != 0;
      callback_thread_.store(nullptr, std::memory_order_relaxed);
    }
  }
  lock.lock();
  return again;
}

Error PoolCore::lacking(const Error& last, const char* stage, Order& order, uint64_t size) {
  uint64_t largest = space_.largest(order.number());
  for (uint32_t i = 0; i < classes_.count(); ++i) {
    if (!chunks_[i].empty() || order.has(i) || no_order().has(i))
      largest = std::max(largest, classes_.size_of(i));
  }
  const Totals live = totals();
  const uint64_t used = live.bytes + captured_bytes();
  const uint64_t free = source_.bytes() - std::min(source_.bytes(), used);
  const bool in_the_way = order_in_the_way(order, size, 0) != nullptr;
  std::array<char, 160> fragmented{};
  const uint64_t row = std::max(largest, space_.largest_place());  // in whatever stream it was freed
  if (free >= size && row < size && !in_the_way) {
    std::snprintf(fragmented.data(), fragmented.size(),
                  "the pool is fragmented: %" PRIu64 " bytes are free in it, but at most %" PRIu64
                  " in a row; ",
                  free, row);
  }
  if (last.status == GPUMEM_ERROR_LIMIT_EXCEEDED && limit_ > source_.bytes())
    largest = std::max(largest, round_down(limit_ - source_.bytes(), piece()));
  const Error copy = last;
  std::array<char, 160> of_device{};
  const KindTraits& kind = *request_.memory.kind;
  if (last.status == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY && kind.on_device && !kind.managed) {
    if (auto memory = device_.backend().memory_available()) {
      const uint64_t taken = memory->total_bytes - memory->free_bytes;
      std::snprintf(of_device.data(), of_device.size(),
                    "; others have %" PRIu64 " of the device's %" PRIu64 " bytes, and %" PRIu64 " are free",
                    taken - std::min(taken, source_.bytes()), memory->total_bytes, memory->free_bytes);
      const uint64_t room = limit_ == 0
                                ? memory->free_bytes
                                : std::min(memory->free_bytes, limit_ - std::min(limit_, source_.bytes()));
      // If there was room, the allocation failed for another reason.
      if (room < size) largest = std::max(largest, round_down(room, piece()));
    }
  }
  std::array<char, 64> fitting;
  if (largest != 0) {
    std::snprintf(fitting.data(), fitting.size(), "a block of %" PRIu64, largest);
  } else {
    std::snprintf(fitting.data(), fitting.size(), "no block");
  }
  // Nobody can ask them, so what was freed in them last is theirs for good if they have ended.
  const auto unheard =
      static_cast<size_t>(std::count_if(orders_.begin(), orders_.end(), [](const auto& entry) {
        const Order& other = *entry.second;
        return other.native() && !other.idle() && !other.under_way();
      }));
  std::array<char, 160> of_streams{};
  if (unheard != 0) {
    std::snprintf(of_streams.data(), of_streams.size(),
                  "%zu native stream%s may still use some of the pool: before a native stream ends, wrap it "
                  "and destroy the wrapper; ",
                  unheard, plural(unheard));
  } else if (in_the_way) {
    std::snprintf(
        of_streams.data(), of_streams.size(),
        "enough of the pool is free, but work of another stream may still use that: synchronize it; ");
  }
  // What is to be done first, since a long message is cut off at its end.
  return reworded(copy,
                  "no block of %" PRIu64
                  " byte%s within %s: %s%s%s; the search ended at %s%s; of the pool's %" PRIu64
                  " bytes %" PRIu64 " are in use, and %s would have fitted",
                  size, plural(size), bound_of(copy), fragmented.data(), of_streams.data(), copy.message,
                  stage, of_device.data(), source_.bytes(), live.bytes, fitting.data());
}

Result<void*> PoolCore::allocate_block(Lock& lock, Order& order, uint64_t size, uint64_t alignment) {
  auto block = try_allocate(lock, order, size, alignment);
  if (block || !lacks_room(block.error().status)) return block;
  // If the request never fits, only the callback can help, by raising the limit, so keep what is free.
  const bool too_large = exceeds_device(size);
  const bool hopeless = too_large || never_fits(size);
  const char* stage = too_large  ? "the device's memory"
                      : hopeless ? "the pool's limit"
                                 : "the pool's own cache";
  if (!hopeless) {
    collect();
    block = try_allocate(lock, order, size, alignment);
    if (block || !lacks_room(block.error().status)) return block;
    if (release_free(UINT64_MAX) != 0) {
      stage = "what the pool had free";
      block = try_allocate(lock, order, size, alignment);
      if (block || !lacks_room(block.error().status)) return block;
    }
  }
  if (!too_large && (limit_ == 0 || source_.bytes() + size <= limit_)) {
    bool released = false;
    {
      lock.unlock();
      const Cleanup again([&] { lock.lock(); });
      released = neighbors_.trim_others(*this) != 0;
    }
    stage = released ? "other pools" : stage;
    if (released) block = try_allocate(lock, order, size, alignment);
    if (block || !lacks_room(block.error().status)) return block;
  }
  if (const auto again = ask_callback(lock, size)) {
    stage = "the callback";
    if (*again) {
      collect();
      block = try_allocate(lock, order, size, alignment);
      if (block || !lacks_room(block.error().status)) return block;
    }
  }
  return lacking(block.error(), stage, order, size);
}

// ---- giving memory back ----

void PoolCore::collect() {
  (void)drain_all();
  end_quarantine(0);
  observe();
  sweep();
}

Result<uint64_t> PoolCore::trim(uint64_t keep_bytes) {
  if (in_callback()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the pool is in its callback, and has released all that it could");
  }
  const Lock lock(mutex_);
  collect();
  if (source_.bytes() <= keep_bytes) return uint64_t{0};
  return release_free(source_.bytes() - keep_bytes);
}

uint64_t PoolCore::trim_for_other() noexcept {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock) return 0;
  try {
    collect();
    return release_free(UINT64_MAX);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void PoolCore::set_limit(uint64_t bytes) {
  const Lock lock(mutex_);
  limit_ = bytes;
}

void PoolCore::set_release_threshold(uint64_t bytes) {
  const Lock lock(mutex_);
  release_threshold_ = bytes;
  // Before the caches are open again, so that none keeps a block that is to go back.
  for (PoolCache* cache = caches_; cache != nullptr; cache = cache->next)
    cache->largest.store(largest_kept(), std::memory_order_relaxed);
  (void)drain_all();
  try {
    keep_threshold();
  } catch (const std::bad_alloc&) {
    // The threshold is set; the next call sees to the rest.
  }
}

}  // namespace gpumem::core
