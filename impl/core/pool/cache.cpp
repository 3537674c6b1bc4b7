// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/pool/cache.h"

#include <mutex>

#include "platform/fork.h"

namespace gpumem::core {
namespace {

struct Seats {
  struct Seat {
    PoolCacheOwner* pool = nullptr;
    uint64_t number = 0;
  };
  std::mutex mutex;  // taken before a pool's
  std::array<Seat, PoolCache::kSeats> seats;
};

constinit platform::PerProcess<Seats> process_seats;

}  // namespace

uint32_t pool_seats::take(PoolCacheOwner& pool, uint64_t number) {
  Seats& all = process_seats.get();
  const std::lock_guard lock(all.mutex);
  for (uint32_t seat = 0; seat < PoolCache::kSeats; ++seat) {
    if (all.seats[seat].pool != nullptr) continue;
    all.seats[seat] = {&pool, number};
    return seat;
  }
  return PoolCache::kSeats;
}

void pool_seats::leave(uint32_t seat) noexcept {
  Seats* const all = process_seats.find();
  if (all == nullptr || seat == PoolCache::kSeats) return;
  const std::lock_guard lock(all->mutex);
  all->seats[seat] = {};
}

void PoolCache::attach(platform::ThreadRecord& record, uint32_t seat, uint64_t number, PoolCache* cache) {
  if (record.attachment == nullptr) {
    record.attachment = new Table;
    record.detach = end_thread;
    record.choose_way();
  }
  static_cast<Table*>(record.attachment)->entries[seat] = {number, cache};
}

// Returns the blocks that the thread kept to their pools.
void PoolCache::end_thread(void* table) noexcept {
  const std::unique_ptr<Table> entries(static_cast<Table*>(table));
  Seats* const all = process_seats.find();
  if (all == nullptr) return;
  const std::lock_guard lock(all->mutex);
  for (uint32_t seat = 0; seat < kSeats; ++seat) {
    const Entry& entry = entries->entries[seat];
    if (entry.cache != nullptr && all->seats[seat].pool != nullptr && all->seats[seat].number == entry.number)
      all->seats[seat].pool->end_cache(entry.cache);
  }
}

}  // namespace gpumem::core
