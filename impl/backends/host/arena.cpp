// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/arena.h"

#include <algorithm>
#include <bit>

#include "backends/host/shared.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/host_budget.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

constexpr uint64_t kSlabMin = uint64_t{64} << 10;
constexpr uint64_t kSlabMax = uint64_t{4} << 20;

// Reports a lack of system memory as one of the device's.
Error of_device(Error error) {
  if (error.status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY || error.status == GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE) {
    error.status = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  }
  return error;
}

Result<void> populate(Shared& shared, const Slab& slab) {
  GPUMEM_TRY(shared.steps.take("madvise"));
  if (auto populated = platform::populate(slab.view, slab.size, 1); !populated) {
    return of_device(populated.error());
  }
  return {};
}

}  // namespace

// ---- slots ----

Slot::~Slot() {
  if (pool_ != nullptr) pool_->put_back(*slab_, index_, rests_);
}

std::byte* Slot::view() const { return slab_->view + index_ * pool_->slot_size(); }

void* Slot::address() const { return slab_->addresses + index_ * pool_->slot_size(); }

// ---- pools ----

Result<std::list<Slab>> SlotPool::make_slab(uint64_t size) {
  Steps& steps = shared_->steps;
  std::list<Slab> made(1);
  Slab& slab = made.front();
  slab.self = made.begin();
  slab.size = size;
  slab.slots = static_cast<uint32_t>(size / slot_size_);
  slab.free.reserve(slab.slots);

  if (shared_->options.fill && size == kSlabMax) {
    if (auto fits = platform::check_host_budget(size); !fits) return of_device(fits.error());
  }
  GPUMEM_TRY(steps.take("memfd_create"));
  auto file = platform::memory_file(size);
  if (!file) return of_device(file.error());
  const Cleanup close([&] { platform::close_file(*file); });  // the views keep the pages

  GPUMEM_TRY(steps.take("mmap"));
  auto view = platform::map_file(*file, size, nullptr);
  if (!view) return of_device(view.error());
  slab.private_view = Range(*view, size);
  slab.view = static_cast<std::byte*>(*view);

  GPUMEM_TRY(steps.take("mmap"));
  auto addresses = platform::reserve(size, kSlabMin);
  if (!addresses) return of_device(addresses.error());
  slab.user_range = Range(*addresses, size);
  slab.addresses = static_cast<std::byte*>(*addresses);
  if (shared_->options.fill) {
    GPUMEM_TRY(populate(*shared_, slab));
    slab.has_pages = true;
  }
  return made;
}

void SlotPool::add(std::list<Slab>& fresh) {
  // Makes room for what can rest now, because freeing must not fail.
  const uint64_t slots = total_ + fresh.front().slots;
  if (const uint64_t room = std::min<uint64_t>(shared_->options.quarantine, slots); resting_.size() < room) {
    std::rotate(resting_.begin(), resting_.begin() + static_cast<ptrdiff_t>(oldest_), resting_.end());
    oldest_ = 0;
    resting_.resize(room);
  }
  total_ = slots;
  open_.splice(open_.begin(), fresh);
}

Result<Slot> SlotPool::take() {
  GPUMEM_TRY(shared_->steps.take("suballocate"));
  std::unique_lock lock(mutex_);
  while (open_.empty()) {
    // Double the total, so that few blocks take little memory and many take few maps.
    const uint64_t wanted = std::clamp(std::bit_floor(total_ * slot_size_), kSlabMin, kSlabMax);
    lock.unlock();
    auto made = make_slab(wanted);
    // A smaller one may fit into what a limit leaves.
    const uint64_t least = std::max(slot_size_, platform::page_size());
    if (!made && made.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED) made = make_slab(least);
    if (!made) return made.error();
    lock.lock();
    add(*made);
  }
  Slab& slab = open_.front();
  if (shared_->options.fill && !slab.has_pages) GPUMEM_TRY(populate(*shared_, slab));
  slab.has_pages = true;
  uint16_t index = 0;
  if (slab.free.empty()) {
    index = static_cast<uint16_t>(slab.begun++);
  } else {
    index = slab.free.back();
    slab.free.pop_back();
  }
  ++slab.taken;
  ++busy_;
  if (!slab.has_room()) full_.splice(full_.begin(), open_, slab.self);
  return Slot(*this, slab, index);
}

void SlotPool::put_back(Slab& slab, uint16_t index, bool rests) {
  std::list<Slab> dropped;  // unmapped without the lock
  const std::lock_guard lock(mutex_);
  --slab.taken;
  if (!rests) {
    release(slab, index);
    drop_if_empty(slab, &dropped);
    return;
  }
  slab.known = true;
  if (resting_count_ == shared_->options.quarantine) {
    const Resting oldest = resting_[oldest_];
    oldest_ = (oldest_ + 1) % resting_.size();
    --resting_count_;
    --oldest.slab->resting;
    release(*oldest.slab, oldest.index);
    rest(slab, index);
    drop_if_empty(*oldest.slab, &dropped);
  } else {
    rest(slab, index);
  }
}

void SlotPool::rest(Slab& slab, uint16_t index) {
  resting_[(oldest_ + resting_count_++) % resting_.size()] = {&slab, index};
  ++slab.resting;
  // Nobody can read what is left there. The first slab is kept, because it is the next to be used.
  if (slab.taken == 0 && slab.has_pages && (open_.empty() || &slab != &open_.front())) {
    slab.has_pages = !platform::discard(slab.view, slab.size);
  }
}

void SlotPool::release(Slab& slab, uint16_t index) {
  if (!slab.has_room()) open_.splice(open_.end(), full_, slab.self);
  slab.free.push_back(index);
  --busy_;
}

void SlotPool::drop_if_empty(Slab& slab, std::list<Slab>* dropped) {
  if (slab.taken != 0 || slab.resting != 0) return;
  // Keep the room of one more slab, so that alternating frees and allocations do not make one each time.
  if (slab.known && total_ - busy_ < 2 * uint64_t{slab.slots}) return;
  total_ -= slab.slots;
  dropped->splice(dropped->begin(), open_, slab.self);
}

// ---- the arena ----

// No slabs if the CPU can read device memory: it must become inaccessible when freed, and so own its pages.
Arena::Arena(Shared& shared) : largest_(shared.options.strict ? kSmallest << (kPools - 1) : 0) {
  for (size_t index = 0; index < kPools; ++index)
    pools_.at(index).set_up(shared, kSmallest << index);
}

bool Arena::takes(uint64_t size, uint64_t alignment) const {
  return size <= largest_ && alignment <= largest_;
}

Result<Slot> Arena::take(uint64_t size, uint64_t alignment) {
  const uint64_t slot_size = std::bit_ceil(std::max({size, alignment, kSmallest}));
  return pools_.at(static_cast<size_t>(std::countr_zero(slot_size / kSmallest))).take();
}

}  // namespace gpumem::host
