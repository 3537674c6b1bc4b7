// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The beginning and the end of a pool.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/pool/core.h"

namespace gpumem::core {
namespace {

uint64_t next_number() {
  static constinit std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

constexpr uint64_t granule_of(const KindTraits& kind) { return kind.on_device || kind.managed ? 256 : 16; }

}  // namespace

PoolCore::PoolCore(std::shared_ptr<Context> context, Device& device, PoolRequest request,
                   PoolNeighbors& neighbors)
    : context_(std::move(context)),
      neighbors_(neighbors),
      device_(device),
      backend_(device.backend()),
      request_(std::move(request)),
      classes_(granule_of(*request_.memory.kind)),
      number_(next_number()),
      source_(context_, device, request_.memory),
      limit_(request_.limit),
      release_threshold_(request_.release_threshold) {}

PoolCore::~PoolCore() {
  while (caches_ != nullptr)
    delete std::exchange(caches_, caches_->next);
}

Result<void> PoolCore::open() {
  orders_.emplace(PoolStream::kNone, std::make_shared<Order>(PoolSpace::kAny, PoolStream::kNone));
  GPUMEM_TRY(blocks_.open());
  GPUMEM_TRY(source_.open(blocks_));
  if (source_.in_range()) GPUMEM_TRY(blocks_.reserve(source_.begin(), source_.end() - source_.begin()));
  if (!debug()) seat_ = pool_seats::take(*this, number_);
  if (request_.initial_size == 0) return {};
  uint64_t size = round_up(request_.initial_size, piece());
  if (limit_ != 0 && size > limit_) size = round_down(limit_, piece());
  if (size == 0) return {};
  auto grown = grow(no_order(), size, PoolClasses::kPage);
  if (grown || lacking_ == 0) return grown;
  Lock lock(mutex_);
  auto taken = take_from_driver(lock);
  if (!taken) return taken.error();
  return {};
}

void PoolCore::retire() noexcept {
  {
    const Lock lock(mutex_);
    retired_ = true;  // first: a new pool may have the seat as soon as it is left
  }
  pool_seats::leave(seat_);
  platform::wait_for_looks();  // of threads that found the handle
  const Lock lock(mutex_);
  seat_ = PoolCache::kSeats;
  PoolCache** link = &caches_;
  while (PoolCache* const cache = *link) {
    count_back(*cache);
    if (!drain(*cache)) {
      link = &cache->next;
      continue;
    }
    *link = cache->next;
    delete cache;
  }
}

void PoolCore::revive() noexcept {
  const uint64_t number = next_number();
  const uint32_t seat = debug() ? PoolCache::kSeats : pool_seats::take(*this, number);
  const Lock lock(mutex_);
  retired_ = false;
  number_ = number;
  seat_ = seat;
}

// A stream that is being captured cannot be marked, and waiting for its device would spoil the capture.
Result<std::shared_ptr<backend::Stream>> PoolCore::stream_behind(const Order& order) {
  if (!order.has_stream() || order.native()) return {nullptr};
  const auto capturing = order.stream()->is_capturing();
  if (capturing && *capturing) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "blocks were freed in a stream that is being captured; end the capture first");
  }
  if (capturing || capturing.error().status != GPUMEM_ERROR_INVALID_STATE) return {nullptr};
  // The legacy stream does not answer while a blocking stream is being captured.
  if (order.stream()->is_default()) return capturing.error();
  // The default stream of another thread does not answer this one. The legacy stream waits for it.
  auto legacy = order.device()->wrap_stream(nullptr);
  if (!legacy) return legacy;
  const auto beside = (*legacy)->is_capturing();
  if (!beside) return beside.error();
  return legacy;
}

Result<void> PoolCore::wait_for_work(backend::Device& device, backend::Stream* stream) {
  if (stream == nullptr) return device.synchronize();
  auto event = device.create_event(0);
  if (!event) return event.error();
  const Cleanup release([&] { (void)(*event)->release(); });
  GPUMEM_TRY((*event)->record(*stream));
  const auto complete = (*event)->synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) return complete.error();
  return {};
}

Result<bool> PoolCore::release_if_empty(bool wait) {
  Lock lock(mutex_);
  if (!retired_) return false;
  blocks_.set_empty(empty());
  // Nobody waits for the work before a free that no order knows of.
  if (!drain_all()) throw std::bad_alloc();
  end_quarantine(0);
  observe(wait);
  // Wait for work that uses the memory. Release the lock meanwhile, as that work may depend on another
  // thread's next call.
  for (;;) {
    end_quarantine(0);  // of what was freed meanwhile
    if (settled()) break;
    const auto busy =
        std::find_if(orders_.begin(), orders_.end(), [](const auto& entry) { return !entry.second->idle(); });
    if (busy == orders_.end()) {
      poll();  // what waited for one stream is now freed in the order of another
      continue;
    }
    const std::shared_ptr<Order> order = busy->second;
    if (order->unmarked() != 0 && !order->mark(false)) {
      if (!wait) return false;
      auto stream = stream_behind(*order);
      if (!stream) return stream.error();
      const auto frees = std::pair(order->epoch(), order->unmarked());
      Result<void> complete;
      if (backend::Device* const device = order->device(); device != nullptr) {
        lock.unlock();
        complete = wait_for_work(*device, stream->get());
        lock.lock();
        // Nothing runs on a lost device any more.
        if (!complete && !device->lost()) return complete.error();
      }
      if (!retired_) return false;
      if (frees != std::pair(order->epoch(), order->unmarked())) continue;  // something came later
      order->pass_all();
      pass(order->number(), order->passed());
      continue;
    }
    poll(*order);
    if (order->idle()) continue;
    if (!wait) return false;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
    if (!retired_) return false;
  }
  poll();
  end_captures();
  for (const auto& [key, order] : orders_)
    pass(order->number(), UINT64_MAX);  // all work is complete
  sweep();
  end_free_chunks();
  release_free(UINT64_MAX);
  if (!empty() || space_.taken_bytes() != 0) return false;
  while (!source_.pieces().empty()) {
    const auto [base, piece] = *source_.pieces().begin();
    space_.prepare(1);
    GPUMEM_TRY(source_.release(base));
    space_.remove(base, piece.size);
  }
  GPUMEM_TRY(source_.close());
  return true;
}

void PoolCore::forget() noexcept {
  log_blocks();
  source_.forget();
  captures_.parts.clear();
  captures_.ending.clear();
  orders_.clear();
}

}  // namespace gpumem::core
