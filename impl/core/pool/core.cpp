// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/pool/core.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <new>
#include <thread>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/object/abandoned.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "core/object/status_list.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace

// A callback must not free what its own call uses (COM-27).
Result<void> PoolCore::check_unused(uint64_t base, uint64_t size) {
  if (!UsedInCallbacks::any_in(base, size)) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "a call of this thread uses the block at %p; free it once that has returned",
                    pointer_to(base));
}

// ---- orders ----

std::shared_ptr<PoolOrder> PoolCore::order_of(const PoolStream& stream) {
  if (stream.capture.id != 0) return order_of(stream.capture);
  if (stream.unheard() && unheard_ >= poll_unheard_at_ && !orders_.contains(stream.key)) {
    try {
      poll_orders();
    } catch (const std::bad_alloc&) {
      // The next one sees to them.
    }
    poll_unheard_at_ = std::max(kUnheardMost, 2 * unheard_);
  }
  std::shared_ptr<Order>& order = orders_[stream.key];
  if (order == nullptr) {
    Cleanup drop([&] { orders_.erase(stream.key); });
    order = std::make_shared<Order>(++last_order_, stream.key);
    drop.dismiss();
  }
  if (stream.key != PoolStream::kNone && (!order->has_stream() || order->native())) {
    if (order->unheard()) --unheard_;
    order->set_stream(stream);
    if (order->unheard()) ++unheard_;
  }
  return order;
}

void PoolCore::pass(PoolSpace::Order number, uint64_t epoch) {
  source_.pass(number, epoch);
  space_.pass(number, epoch);
}

void PoolCore::poll(Order& order) {
  if (order.poll()) pass(order.number(), order.passed());
}

bool PoolCore::may_end(const std::shared_ptr<Order>& order) const noexcept {
  const bool ended = !order->has_stream() || order->native();
  return ended && !order->is_none() && order->idle() && order.use_count() == 1 && !is_kept(*order);
}

void PoolCore::poll_orders() {
  for (auto at = orders_.begin(); at != orders_.end();) {
    Order& order = *at->second;
    poll(order);
    if (!may_end(at->second)) {
      ++at;
      continue;
    }
    order.take_passed([&](const PoolFree& block) { put_back(block); });
    pass(order.number(), UINT64_MAX);
    if (order.unheard()) --unheard_;
    at = orders_.erase(at);
  }
}

void PoolCore::poll() {
  poll_orders();
  settle_waiting();
  settle_captures();
}

void PoolCore::mark(Order& order) {
  if (!at_once_ && order.mark(false)) ++marks_;
}

void PoolCore::mark_all() {
  for (auto& [key, order] : orders_)
    mark(*order);
}

bool PoolCore::settled() const {
  return waiting_.empty() &&
         std::all_of(orders_.begin(), orders_.end(), [](const auto& entry) { return entry.second->idle(); });
}

bool PoolCore::worth_waiting() const {
  return !at_once_ && !settled() && std::any_of(orders_.begin(), orders_.end(), [](const auto& entry) {
    return entry.second->under_way();
  });
}

void PoolCore::observe(bool wait) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
  while (true) {
    // Ask each time, because a block that waited for one stream is then freed in the order of another.
    for (auto& [key, order] : orders_) {
      if (order->ask()) pass(order->number(), order->passed());
    }
    mark_all();
    const size_t waiting = waiting_.size();
    poll();
    // That other stream may be idle already, however late it is.
    if (waiting_.size() != waiting) continue;
    if (!wait || !worth_waiting() || std::chrono::steady_clock::now() > deadline) return;
    std::this_thread::yield();
  }
}

// ---- what threads keep ----

PoolCache* PoolCore::cache_of_thread() {
  if (retired_ || seat_ == PoolCache::kSeats) return nullptr;
  platform::ThreadRecord& record = platform::thread_record();
  PoolCache* cache = PoolCache::of_thread(record, seat_, number_);
  if (cache != nullptr) return cache;
  auto made = std::make_unique<PoolCache>();
  made->largest.store(largest_kept(), std::memory_order_relaxed);
  PoolCache::attach(record, seat_, number_, made.get());
  made->next = caches_;
  caches_ = made.release();
  return caches_;
}

// The shelf of an order. First spills the blocks of an older order in the same place. What a thread keeps of
// a stream that has ended is lost to others, so it keeps little of streams that may have ended: large blocks
// of the first, and nothing of more than have a place each.
PoolShelf* PoolCore::shelf_of(PoolCache& cache, Order& order) {
  std::unique_ptr<PoolShelf>& shelf = cache.shelves[PoolCache::place_of(order.key())];
  if (order.unheard() && unheard_ >= PoolCache::kShelves && (shelf == nullptr || shelf->order != &order))
    return nullptr;
  if (shelf != nullptr && shelf->order != &order && !empty_shelf(cache, shelf)) throw std::bad_alloc();
  if (shelf == nullptr) {
    auto made = std::make_unique<PoolShelf>();
    made->key = order.key();
    made->order = &order;
    made->keeps_large = !order.unheard() || unheard_ == 1;
    shelf = std::move(made);
  }
  return shelf.get();
}

bool PoolCore::spill(PoolShelf& shelf, uint32_t index, uint32_t keep) noexcept {
  PoolShelf::Bin& bin = shelf.bins[index];
  if (bin.count <= keep) return true;
  const uint32_t surplus = bin.count - keep;
  try {
    // Spill the oldest, as the youngest are in the processor's caches.
    shelf.order->push(index, bin.blocks.get(), surplus);
  } catch (const std::bad_alloc&) {
    return false;
  }
  std::move(bin.blocks.get() + surplus, bin.blocks.get() + bin.count, bin.blocks.get());
  bin.count = keep;
  out_count_ -= surplus;
  out_bytes_ -= surplus * classes_.size_of(index);
  return true;
}

bool PoolCore::spill_large(PoolCache& cache, PoolShelf& shelf, uint32_t keep) noexcept {
  while (shelf.large_count > keep) {
    const PoolShelf::Large oldest = shelf.large[0];
    try {
      free_block(*shelf.order, *blocks_.run_at(oldest.address), oldest.address);
    } catch (const std::bad_alloc&) {
      return false;
    }
    (void)shelf.pop_large(0);
    cache.count_out(oldest.size);
    --large_count_;
    large_bytes_ -= oldest.size;
  }
  return true;
}

void PoolCore::spill_large() noexcept {
  PoolCache* const cache = PoolCache::of_thread(platform::thread_record(), seat_, number_);
  if (cache == nullptr) return;
  for (const auto& shelf : cache->shelves) {
    if (shelf != nullptr && !shelf->order->native()) (void)spill_large(*cache, *shelf, 0);
  }
}

bool PoolCore::spill_small() noexcept {
  PoolCache* const cache = PoolCache::of_thread(platform::thread_record(), seat_, number_);
  const uint64_t before = out_count_;
  for (size_t place = 0; cache != nullptr && place < PoolCache::kShelves; ++place) {
    const auto& shelf = cache->shelves[place];
    for (uint32_t i = 0; shelf != nullptr && !shelf->order->native() && i < classes_.count(); ++i)
      (void)spill(*shelf, i, 0);
  }
  return out_count_ != before;
}

// Like drain(), needs a closed cache or the calling thread's own.
bool PoolCore::empty_shelf(PoolCache& cache, std::unique_ptr<PoolShelf>& shelf) noexcept {
  if (shelf != nullptr && !spill_large(cache, *shelf, 0)) return false;
  for (uint32_t i = 0; shelf != nullptr && i < classes_.count(); ++i) {
    if (!spill(*shelf, i, 0)) return false;
  }
  shelf = nullptr;
  return true;
}

bool PoolCore::drain(PoolCache& cache) noexcept {
  bool empty = true;
  for (auto& shelf : cache.shelves)
    empty = empty_shelf(cache, shelf) && empty;
  return empty;
}

bool PoolCore::is_kept(const Order& order) const noexcept {
  for (const PoolCache* cache = caches_; cache != nullptr; cache = cache->next) {
    const auto& shelf = cache->shelves[PoolCache::place_of(order.key())];
    if (shelf != nullptr && shelf->order == &order) return true;
  }
  return false;
}

bool PoolCore::drain_all() noexcept {
  if (caches_ == nullptr) return true;
  for (PoolCache* cache = caches_; cache != nullptr; cache = cache->next)
    cache->closed.store(true, std::memory_order_relaxed);
  platform::wait_for_looks();
  bool empty = true;
  for (PoolCache* cache = caches_; cache != nullptr; cache = cache->next) {
    empty = drain(*cache) && empty;
    cache->closed.store(false, std::memory_order_release);
  }
  return empty;
}

void PoolCore::count_back(PoolCache& cache) noexcept {
  for (uint32_t i = 0; i < classes_.count(); ++i) {
    allocated_[i] += cache.counts[i].allocated.exchange(0, std::memory_order_relaxed);
    freed_[i] += cache.counts[i].freed.exchange(0, std::memory_order_relaxed);
  }
  large_total_ += cache.large_allocated.exchange(0, std::memory_order_relaxed);
  large_total_bytes_ += cache.large_allocated_bytes.exchange(0, std::memory_order_relaxed);
}

void PoolCore::end_cache(PoolCache* cache) noexcept {
  const std::lock_guard lock(mutex_);
  count_back(*cache);
  if (!drain(*cache)) return;  // the next drain_all() finds it
  PoolCache** link = &caches_;
  while (*link != cache)
    link = &(*link)->next;
  *link = cache->next;
  delete cache;
}

[[gnu::cold]] void PoolCore::end_stream(uint64_t key) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = orders_.find(key);
  if (found == orders_.end()) return;
  Order& order = *found->second;
  // Shelves come and go under the lock only.
  const auto shelf_in = [&](PoolCache& cache) -> std::unique_ptr<PoolShelf>& {
    return cache.shelves[PoolCache::place_of(key)];
  };
  const auto has_shelf = [&](PoolCache& cache) {
    return shelf_in(cache) != nullptr && shelf_in(cache)->order == &order;
  };
  bool kept = false;
  bool left = false;
  for (PoolCache* cache = caches_; cache != nullptr; cache = cache->next) {
    if (!has_shelf(*cache)) continue;
    cache->closed.store(true, std::memory_order_relaxed);
    kept = true;
  }
  if (kept) platform::wait_for_looks();
  for (PoolCache* cache = caches_; kept && cache != nullptr; cache = cache->next) {
    if (!has_shelf(*cache)) continue;
    left = !empty_shelf(*cache, shelf_in(*cache)) || left;
    cache->closed.store(false, std::memory_order_release);
  }
  try {
    // Count a free for blocks that are freed later, when the stream can no longer be marked.
    if (left || found->second.use_count() > 1) order.note_frees(1);
    if (!order.ask() && order.mark(true, true)) ++marks_;
  } catch (const std::bad_alloc&) {
    // Blocks that could not be marked stay until the pool ends.
  }
  order.drop_stream();
  try {
    poll();  // the order may end here
  } catch (const std::bad_alloc&) {
    // The next call polls again.
  }
}

// ---- chunks ----

void PoolCore::enlist(PoolRun& run) {
  auto& list = chunks_[run.class_index];
  run.list_index = static_cast<uint32_t>(list.size());
  list.push_back(&run);
}

void PoolCore::unlist(PoolRun& run) {
  auto& list = chunks_[run.class_index];
  list[run.list_index] = list.back();
  list[run.list_index]->list_index = run.list_index;
  list.pop_back();
  run.list_index = PoolRun::kUnlisted;
}

// Returns a block that any stream may use to its chunk; an empty chunk becomes free space.
void PoolCore::put_back(const PoolFree& block) {
  PoolRun& run = *blocks_.run_at(block.address);
  run.free.push_back(run.index_of(block.address));
  if (!run.listed()) enlist(run);
  if (run.free.size() != run.count) return;
  try {
    space_.prepare(1);
  } catch (const std::bad_alloc&) {
    return;  // it stays a chunk
  }
  end_chunk(run, {});
}

// Makes a chunk whose blocks are all in it free space. Needs a prepared node.
void PoolCore::end_chunk(PoolRun& run, PoolPassing passing) noexcept {
  if (run.listed()) unlist(run);
  run.free.clear();
  const uint64_t base = run.base();
  blocks_.clear(base, space_.size_of(base));
  space_.give(base, passing.order, passing.epoch);
  block_counts_[run.class_index] -= run.count;
  blocks_.recycle(&run);
}

void PoolCore::end_free_chunks() {
  for (auto& list : chunks_) {
    for (size_t i = list.size(); i-- > 0;) {
      PoolRun& run = *list[i];  // ending it moves the last one here
      if (run.free.size() != run.count) continue;
      space_.prepare(1);
      end_chunk(run, {});
    }
  }
}

void PoolCore::sweep() {
  for (auto& [key, order] : orders_)
    order->take_passed([&](const PoolFree& block) { put_back(block); });
}

[[gnu::cold]] bool PoolCore::make_chunk(Order& order, uint32_t index, uint64_t size) {
  const uint64_t block_size = classes_.size_of(index);
  const auto count = static_cast<uint32_t>(size / block_size);
  // For each chunk, so that listing needs none.
  chunks_[index].reserve(block_counts_[index] / (PoolClasses::least_chunk_size(block_size) / block_size) + 1);
  order.reserve(index, count);
  space_.prepare(2);
  PoolRun* const run = blocks_.make_run(index, block_size, count);
  auto base = space_.take(size, PoolClasses::kPage, PoolSpace::kAny);
  const bool for_all = base.has_value();
  if (!base) base = space_.take(size, PoolClasses::kPage, order.number());
  if (!base) base = space_.take_joined(size, PoolClasses::kPage, order.number());
  if (!base) {
    blocks_.recycle(run);
    return false;
  }
  run->set_place(*base, block_size);
  blocks_.set(*base, size, run);
  block_counts_[index] += count;
  cut_counts_[index] += count;
  if (for_all) {
    for (uint32_t i = count; i-- > 0;)
      run->free.push_back(i);
    enlist(*run);
  } else {
    for (uint32_t i = count; i-- > 0;) {
      const PoolFree block{run->address_of_block(i), &run->state(i)};
      order.push(index, &block, 1);
    }
  }
  return true;
}

size_t PoolCore::gather_from_chunks(uint32_t index, PoolFree* out, size_t count) {
  size_t taken = 0;
  while (taken < count && !chunks_[index].empty()) {
    PoolRun& run = *chunks_[index].back();
    while (taken < count && !run.free.empty()) {
      const uint32_t block = run.free.back();
      run.free.pop_back();
      out[taken++] = {run.address_of_block(block), &run.state(block)};
    }
    if (run.free.empty()) unlist(run);
  }
  return taken;
}

size_t PoolCore::gather_from_others(Order& order, uint32_t index, PoolFree* out, size_t count) {
  size_t taken = 0;
  for (auto& [key, other] : orders_) {
    if (other.get() == &order || other->is_none() || !other->has(index)) continue;
    try {
      poll(*other);
    } catch (const std::bad_alloc&) {
      if (taken == 0) throw;
      break;  // only this call knows the blocks already taken
    }
    taken += other->pop_passed(index, out + taken, count - taken);
    if (taken == count) break;
    if (taken == 0) mark(*other);  // for the next time
  }
  cross_stream_ += taken;
  return taken;
}

// Before growing by more than the pool may have, which costs more: the work may be complete by now. A native
// stream can be marked since it was passed to this call, but not the legacy default stream, where a mark
// spoils a capture that begins meanwhile.
void PoolCore::await_free(Order& own, uint64_t size) {
  end_chunks(own);  // first, so that the mark is behind it
  if (!at_once_ && own.has_stream() && !own.stream()->is_default() && own.mark(true)) ++marks_;
  mark_all();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
  do {
    poll();
  } while (!may_grow(own, size) && worth_waiting() && std::chrono::steady_clock::now() < deadline);
  sweep();
}

size_t PoolCore::gather(Order& order, uint32_t index, PoolFree* out, size_t count) {
  size_t taken = order.pop(index, out, count);
  if (taken < count && !order.is_none()) taken += no_order().pop(index, out + taken, count - taken);
  if (taken == 0) taken = gather_from_others(order, index, out, count);
  if (taken == 0) taken = gather_from_chunks(index, out, count);
  return taken;
}

// Lets the stream of `order` wait for another one that has blocks of the class.
[[gnu::cold]] bool PoolCore::wait_for_other(Order& order, uint32_t index) {
  if (at_once_ || !order.has_stream() || (request_.flags & GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES) == 0)
    return false;
  for (auto& [key, other] : orders_) {
    if (other.get() == &order || other->is_none() || !other->has_stream() || other->native() ||
        !other->has(index))
      continue;
    // Skip a captured stream: the event would join its graph and draw this stream into the capture.
    const auto capturing = other->stream()->is_capturing();
    if (!capturing || *capturing) continue;
    auto event = other->device()->create_event(0);
    if (!event) continue;
    const bool ordered = (*event)->record(*other->stream()).ok() && order.stream()->wait_event(**event).ok();
    (void)(*event)->release();
    if (!ordered) continue;
    ++waits_;
    std::array<PoolFree, 64> blocks;
    while (other->has(index)) {
      order.reserve(index, blocks.size());
      const size_t some = other->pop(index, blocks.data(), blocks.size());
      order.push(index, blocks.data(), some);
      cross_stream_ += some;
    }
    return true;
  }
  return false;
}

void PoolCore::note_peaks() {
  peak_count_ = std::max(peak_count_, out_count_ + large_count_);
  peak_bytes_ = std::max(peak_bytes_, out_bytes_ + large_bytes_);
}

// ---- allocating ----

Result<void*> PoolCore::try_small(Order& order, uint32_t index, bool least_chunk) {
  PoolCache* const cache = order.held() ? nullptr : cache_of_thread();  // threads keep nothing of captures
  PoolShelf* const shelf = cache != nullptr ? shelf_of(*cache, order) : nullptr;
  const uint64_t block_size = classes_.size_of(index);
  PoolShelf::Bin* const bin = shelf != nullptr ? &bin_of(*shelf, index) : nullptr;
  // The bin may have blocks by now: those that the callback has freed, for one.
  if (bin != nullptr && bin->count != 0) return cache->take(order.key(), index);
  // Take many at once, so that their states share few cache lines with those of other threads.
  const bool whole = bin != nullptr && bin->capacity == PoolClasses::kCacheMost;
  const size_t wanted = bin == nullptr ? 1 : whole ? bin->capacity : bin->capacity / 2;
  PoolFree single;
  PoolFree* const blocks = bin == nullptr ? &single : bin->blocks.get();
  // Take from the new chunk, even if other orders have blocks by now: an unused chunk would never end.
  const uint64_t least = PoolClasses::least_chunk_size(block_size);
  uint64_t chunk = least_chunk ? least : PoolClasses::chunk_size(block_size);
  const auto take_from_new_chunk = [&] {
    if (!make_chunk(order, index, chunk)) return size_t{0};
    const size_t taken = order.pop(index, blocks, wanted);
    return taken != 0 ? taken : gather_from_chunks(index, blocks, wanted);
  };
  size_t found = gather(order, index, blocks, wanted);
  if (found == 0 && cache != nullptr && orders_.size() > 1) {
    // Give up the blocks that this thread keeps for other streams before taking more memory. Skip native
    // streams: they can be marked only by the free that finds the bin full.
    for (const auto& other : cache->shelves) {
      if (other != nullptr && other.get() != shelf && !other->order->native()) (void)spill(*other, index, 0);
    }
    found = gather(order, index, blocks, wanted);
  }
  if (found == 0 && wait_for_other(order, index)) found = gather(order, index, blocks, wanted);
  if (found == 0) found = take_from_new_chunk();
  if (found == 0) {
    spill_large();
    poll();
    sweep();
    found = gather(order, index, blocks, wanted);
  }
  if (found == 0) found = take_from_new_chunk();
  if (found == 0 && spill_small()) {
    await_free(order, chunk);
    found = take_from_new_chunk();
  }
  if (found == 0) {
    auto grown = grow(order, chunk, PoolClasses::kPage);
    if (!grown && (at_once_ || lacks_room(grown.error().status)) && least < chunk) {
      chunk = least;
      found = take_from_new_chunk();
      if (found == 0) grown = grow(order, chunk, PoolClasses::kPage);
    }
    if (found == 0) {
      GPUMEM_TRY(grown);
      found = take_from_new_chunk();
    }
  }
  if (found == 0) return make_error(GPUMEM_ERROR_INTERNAL, "the pool cannot use the memory that it took");
  out_count_ += found;
  out_bytes_ += found * block_size;
  note_peaks();
  const PoolFree block = blocks[--found];
  block.state->store(PoolRun::kLive, std::memory_order_release);
  if (bin != nullptr) {
    bin->count = static_cast<uint32_t>(found);
    cache->count(cache->counts[index].allocated);
  } else {
    ++allocated_[index];
  }
  return pointer_to(block.address);
}

Result<void*> PoolCore::try_large(Order& order, uint64_t size, uint64_t alignment) {
  alignment = std::max(alignment, PoolClasses::kPage);
  PoolRun* const run = blocks_.make_run(PoolRun::kLarge, size, 1);
  Cleanup undo([&] { blocks_.recycle(run); });
  const auto look = [&] {
    auto base = space_.take(size, alignment, order.number());
    return base ? base : space_.take_joined(size, alignment, order.number());
  };
  auto base = look();
  if (!base) {
    spill_large();
    base = look();
  }
  if (!base) {
    await_free(order, size);
    base = look();
  }
  // Chunks of small blocks that nobody uses make room too.
  if (!base && spill_small()) {
    await_free(order, size);
    base = look();
  }
  if (!base) {
    GPUMEM_TRY(grow(order, size, alignment));
    base = look();
  }
  if (!base) return make_error(GPUMEM_ERROR_INTERNAL, "the pool cannot use the memory that it took");
  undo.dismiss();
  most_needed_ = std::max(most_needed_, space_.taken_bytes());
  run->set_place(*base, size);
  run->state(0).store(PoolRun::kLive, std::memory_order_release);
  blocks_.set(*base, size, run);
  ++large_count_;
  large_bytes_ += size;
  ++large_total_;
  ++large_cut_;
  large_total_bytes_ += size;
  note_peaks();
  return pointer_to(*base);
}

std::optional<uint32_t> PoolCore::class_of(uint64_t size, uint64_t alignment) const {
  if (size > PoolClasses::kSmallMax || alignment > PoolClasses::kPage) return {};
  return alignment <= classes_.granule() ? classes_.index_of(size) : classes_.index_of(size, alignment);
}

Result<void*> PoolCore::try_allocate(Order& order, uint64_t size, uint64_t alignment, bool least) {
  const auto index = class_of(size, alignment);
  return index ? try_small(order, *index, least)
               : try_large(order, round_up(size, PoolClasses::kPage), alignment);
}

PoolOrder* PoolCore::order_in_the_way(const Order& order, uint64_t size, uint64_t alignment) const {
  const auto index = class_of(size, alignment);
  for (const auto& [key, other] : orders_) {
    if (index && other.get() != &order && !other->is_none() && other->has(*index)) return other.get();
  }
  for (const Waiting& one : waiting_) {
    if (index ? one.run->class_index != *index : one.run->block_size() < size) continue;
    for (const auto& [needed, epoch] : one.needs) {
      if (!needed->has_passed(epoch)) return needed.get();
    }
  }
  size = index ? PoolClasses::least_chunk_size(classes_.size_of(*index)) : round_up(size, PoolClasses::kPage);
  alignment = std::max(alignment, PoolClasses::kPage);
  // Not those of captures, whose work may be launched again.
  const auto by_number = [&](PoolSpace::Order number) {
    return std::find_if(orders_.begin(), orders_.end(),
                        [&](const auto& entry) { return entry.second->number() == number; });
  };
  const auto number = space_.order_in_the_way(
      size, alignment, order.number(), [&](PoolSpace::Order it) { return by_number(it) != orders_.end(); });
  return number ? by_number(*number)->second.get() : nullptr;
}

gpumem_pool_attempt PoolCore::obstacle(const Order& order, uint64_t size, uint64_t alignment) {
  gpumem_pool_attempt attempt = GPUMEM_POOL_ATTEMPT_INIT;
  if (Order* const other = order_in_the_way(order, size, alignment)) {
    // Otherwise trying again would never help.
    if (other->mark(false)) ++marks_;
    attempt.answer = GPUMEM_POOL_ANSWER_NEEDS_WAIT;
    attempt.stream_id = other->stream_id();
  } else if (exceeds_device(size) || never_fits(size) ||
             (limit_ != 0 && limit_ < source_.bytes() + piece() &&
              limit_ < totals().bytes + captured_bytes() + size)) {
    attempt.answer = GPUMEM_POOL_ANSWER_OVER_LIMIT;
  } else {
    attempt.answer = GPUMEM_POOL_ANSWER_NEEDS_MEMORY;
  }
  return attempt;
}

// A range is mapped for the devices that the request names, and a pool of the driver gives them access. Other
// memory needs no access of its own (DEV-8).
bool PoolCore::lets(const PoolStream& stream) const {
  if (stream.device == nullptr || stream.device == &device_.backend()) return true;
  if (!source_.in_range() && !(request_.memory.from_driver && request_.memory.kind->on_device)) return true;
  const auto& accesses = request_.memory.accesses;
  return std::any_of(accesses.begin(), accesses.end(), [&](const AccessRequest& one) {
    return one.device != nullptr && &one.device->backend() == stream.device &&
           one.access != GPUMEM_ACCESS_NONE;
  });
}

Result<void*> PoolCore::allocate(const PoolStream& stream, uint64_t size, uint64_t alignment,
                                 gpumem_pool_attempt* attempt) {
  if (!lets(stream)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS,
                      "the stream is of device %u, which has no access to this pool of device %u; name it "
                      "in the accesses of gpumem_pool_create()",
                      stream.device->facts().ordinal, device_.ordinal());
  }
  // Retries frees that the driver refused, as this call is slow anyway. Neither under the lock nor in a
  // callback, because a retry may wait.
  bool grew = false;
  const Cleanup later([&] {
    if (grew && !Callback::runs_here()) end_abandoned(*context_);
  });
  Lock lock(mutex_, std::defer_lock);
  if (attempt == nullptr) {
    lock.lock();
  } else if (!lock.try_lock()) {
    attempt->answer = GPUMEM_POOL_ANSWER_BUSY;
    return make_error(GPUMEM_NOT_READY, "another thread is changing the pool");
  }
  at_once_ = attempt != nullptr;
  const Cleanup waits_again([&] { at_once_ = false; });
  const auto order = order_of(stream);
  const uint64_t bytes_before = source_.bytes();
  const Cleanup note([&, before = grows_] { grew = grows_ != before; });
  Cleanup shrink([&] {
    try {
      if (source_.in_range() && source_.bytes() > bytes_before) {
        sweep();
        release_free(source_.bytes() - bytes_before);
      }
    } catch (const std::bad_alloc&) {
      // The memory stays in the pool.
    }
  });
  const auto look = [&](uint64_t bytes) {
    auto block = allocate_for(lock, stream, order, bytes, alignment);
    if (block) {
      shrink.dismiss();
    } else if (block.error().status == GPUMEM_NOT_READY) {
      *attempt = obstacle(*order, bytes, alignment);
    }
    return block;
  };
  return debug() ? allocate_debug(*order, size, alignment, look) : look(size);
}

// Managed memory only where all devices are concurrent: elsewhere the work of a device takes it from the CPU.
bool PoolCore::reached_by_cpu() const {
  return on_host() || (request_.memory.kind->managed && !Devices::of(*context_).has_exclusive());
}

// ---- freeing ----

Error PoolCore::not_found(uint64_t address) const {
  PoolBlocks::Block block;
  if (blocks_.find(address, &block)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "%p is at offset %" PRIu64 " in a block of %" PRIu64
                      " bytes; pass the pointer to its first byte",
                      pointer_to(address), address - block.base, block.size);
  }
  return make_error(GPUMEM_ERROR_NOT_FOUND,
                    "the pool has no live block at %p; it may be freed already, or belong to another pool",
                    pointer_to(address));
}

void PoolCore::free_block(Order& order, PoolRun& run, uint64_t address) {
  if (run.class_index == PoolRun::kLarge) {
    const uint64_t size = run.block_size();
    space_.prepare(1);
    blocks_.clear(address, size);
    blocks_.recycle(&run);
    const uint64_t epoch = order.epoch();
    space_.give(address, order.has_passed(epoch) ? PoolSpace::kAny : order.number(), epoch);
    order.note_frees(1 + size / (2 * kMiB));
  } else {
    const PoolFree block{address, &run.state(run.index_of(address))};
    order.push(run.class_index, &block, 1);
    --out_count_;
    out_bytes_ -= run.block_size();
  }
}

Result<void> PoolCore::free(const PoolStream& stream, const void* pointer, uint64_t size) {
  const Lock lock(mutex_);
  if (stream.capture.id == 0 || !retired_ || handle_ != 0) return free_in(stream, address_of(pointer), size);
  // Ignore the capture: the parts of a destroyed pool have ended.
  PoolStream outside = stream;
  outside.capture = {};
  return free_in(outside, address_of(pointer), size);
}

Result<void> PoolCore::free_in(const PoolStream& stream, uint64_t address, uint64_t size) {
  if (debug()) return free_debug(stream, address, size);
  PoolRun* const run = blocks_.run_at(address);
  const uint32_t index = run != nullptr ? run->index_of(address) : 0;
  if (run == nullptr || index >= run->count || run->address_of_block(index) != address)
    return not_found(address);
  std::atomic<uint8_t>& state = run->state(index);
  const uint8_t before = state.load(std::memory_order_relaxed);
  if (before == PoolRun::kFree) return not_found(address);
  GPUMEM_TRY(check_unused(address, run->block_size()));
  if (before == PoolRun::kCaptured || stream.capture.id != 0) [[unlikely]] {
    free_captured(stream, *run, address);
    return {};
  }
  const auto order = order_of(stream);
  const bool large = run->class_index == PoolRun::kLarge;
  // Allocate before anything changes.
  space_.prepare(1);
  // Check the device now: blocks that a thread keeps for a stream are allocated unchecked.
  const bool kept =
      before == PoolRun::kLive && (!large || run->block_size() <= largest_kept()) && lets(stream);
  PoolCache* const cache = kept ? cache_of_thread() : nullptr;
  PoolShelf* shelf = cache != nullptr ? shelf_of(*cache, *order) : nullptr;
  if (shelf != nullptr && large && !shelf->keeps_large) shelf = nullptr;
  if (before == PoolRun::kRecorded) {
    await_recorded(order, *run, address);
  } else if (shelf != nullptr && large) {
    while (!shelf->has_room_for(run->block_size())) {
      if (!spill_large(*cache, *shelf, shelf->large_count / 2)) throw std::bad_alloc();
    }
  } else if (shelf != nullptr) {
    PoolShelf::Bin& bin = bin_of(*shelf, run->class_index);
    if (bin.count == bin.capacity && !spill(*shelf, run->class_index, bin.capacity / 2))
      throw std::bad_alloc();
  } else if (!large) {
    order->reserve(run->class_index, 1);
  }
  if (shelf != nullptr && large) {
    (void)cache->put_large(*shelf, *run, address);
  } else {
    state.store(PoolRun::kFree, std::memory_order_release);
    if (large) {
      --large_count_;
      large_bytes_ -= run->block_size();
    } else if (shelf == nullptr) {
      ++freed_[run->class_index];
    }
  }
  if (shelf != nullptr && large) {
    // It is kept.
  } else if (shelf != nullptr) {
    PoolShelf::Bin& bin = shelf->bins[run->class_index];
    bin.blocks[bin.count++] = {address, &state};
    cache->count(cache->counts[run->class_index].freed);
  } else if (before == PoolRun::kLive) {
    free_block(*order, *run, address);
  }
  try {
    settle_waiting();
    mark_if_due(*order, stream, large);
    keep_threshold();
  } catch (const std::bad_alloc&) {
    // The block is free; the next call sees to the rest.
  }
  return {};
}

std::shared_ptr<PoolOrder> PoolCore::known_order(const PoolStream& stream) noexcept {
  if (stream.capture.id == 0) {
    const auto found = orders_.find(stream.key);
    if (found != orders_.end()) return found->second;
  } else if (const PoolPart* const part = captures_.find(stream.capture.id)) {
    const auto found = part->lines.find(stream.capture.line);
    if (found != part->lines.end()) return found->second;
  }
  return orders_.at(PoolStream::kNone);  // the part of the capture has ended meanwhile
}

void PoolCore::give_back(const PoolStream& stream, std::list<GivenBack>& blocks) noexcept {
  const Lock lock(mutex_);
  GivenBack& given = blocks.front();
  given.order = known_order(stream);
  for (void*& block : given.blocks) {
    if (block == nullptr) continue;
    uint64_t address = address_of(block);
    if (debug()) {
      const auto known = debug_blocks_.find(address);
      address = known->second.base;
      debug_blocks_.erase(known);
      block = pointer_to(address);
    }
    captures_.blocks.erase(address);
    count_free(*blocks_.run_at(address), address);
  }
  given_back_.splice(given_back_.end(), blocks);
  try {
    settle_given_back();
    keep_threshold();
  } catch (const std::bad_alloc&) {
    // The blocks are free; the next call that looks for memory sees to the rest.
  }
}

void PoolCore::settle_given_back() {
  while (!given_back_.empty()) {
    auto& [order, blocks] = given_back_.front();
    for (; !blocks.empty(); blocks.pop_back()) {
      const uint64_t address = address_of(blocks.back());
      if (address != 0) free_block(*order, *blocks_.run_at(address), address);
    }
    // Nobody asks an order of a capture any more whose part has ended meanwhile.
    if (order->held() && order->idle()) end_line(*order);
    given_back_.pop_front();
  }
}

// Sets one mark for many frees, if another stream may want the blocks. A native stream can be marked only in
// its own calls, of which this may be the last, so what lies without a mark in all of them is few small
// blocks and a small share of the pool.
void PoolCore::mark_if_due(Order& order, const PoolStream& stream, bool large) {
  constexpr uint64_t kMany = 32;
  const uint64_t share =
      std::clamp<uint64_t>(source_.bytes() / (64 * kMiB) / std::max<size_t>(orders_.size() - 1, 1), 1, kMany);
  const uint64_t few = order.unheard() ? std::max<uint64_t>(kMany / unheard_, 1) : kMany;
  const uint64_t frees = order.native() && large ? share : few;
  if (orders_.size() <= 2 && !order.native()) return;
  if (order.unmarked() >= frees && order.mark(stream.key == order.key())) ++marks_;
}

PoolShelf::Bin& PoolCore::bin_of(PoolShelf& shelf, uint32_t index) {
  PoolShelf::Bin& bin = shelf.bins[index];
  if (bin.blocks == nullptr) {
    const uint32_t capacity = PoolClasses::cache_size(classes_.size_of(index));
    bin.blocks = std::make_unique<PoolFree[]>(capacity);
    bin.capacity = capacity;
  }
  return bin;
}

void PoolCore::count_free(PoolRun& run, uint64_t base) noexcept {
  run.state(run.index_of(base)).store(PoolRun::kFree, std::memory_order_release);
  if (run.class_index == PoolRun::kLarge) {
    --large_count_;
    large_bytes_ -= run.block_size();
  } else {
    ++freed_[run.class_index];
  }
}

}  // namespace gpumem::core
