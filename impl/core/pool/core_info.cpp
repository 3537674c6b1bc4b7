// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a pool says of itself.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/arithmetic.h"
#include "base/text.h"
#include "core/object/log.h"
#include "core/pool/core.h"

namespace gpumem::core {

bool PoolCore::empty() const {
  uint64_t live = large_count_;
  for (uint32_t i = 0; i < classes_.count(); ++i)
    live += allocated_[i] - freed_[i];
  return live == 0;
}

PoolCore::Totals PoolCore::totals() const noexcept {
  uint64_t kept_count = 0;
  uint64_t kept_bytes = 0;
  for (const PoolCache* cache = caches_; cache != nullptr; cache = cache->next) {
    kept_count += cache->kept_count.load(std::memory_order_relaxed);
    kept_bytes += cache->kept_bytes.load(std::memory_order_relaxed);
  }
  // A block that changes hands meanwhile may be seen in both.
  Totals totals{large_count_ - std::min(kept_count, large_count_),
                large_bytes_ - std::min(kept_bytes, large_bytes_), source_.bytes()};
  for (uint32_t i = 0; i < classes_.count(); ++i) {
    const uint64_t count = counts_of(i).live;
    totals.count += count;
    totals.bytes += count * classes_.size_of(i);
  }
  return totals;
}

PoolCore::Counts PoolCore::counts_of(uint32_t index) const noexcept {
  // Read the frees first, so that a block which comes and goes meanwhile does not count as freed alone.
  uint64_t freed = freed_[index];
  for (const PoolCache* cache = caches_; cache != nullptr; cache = cache->next)
    freed += cache->counts[index].freed.load(std::memory_order_acquire);
  uint64_t allocated = allocated_[index];
  for (const PoolCache* cache = caches_; cache != nullptr; cache = cache->next)
    allocated += cache->counts[index].allocated.load(std::memory_order_relaxed);
  // The threads store both without an order.
  return {allocated, allocated - std::min(freed, allocated)};
}

PoolCore::Totals PoolCore::live() noexcept {
  const Lock lock(mutex_);
  return totals();
}

PoolCore::Totals PoolCore::try_live() noexcept {
  const Lock lock(mutex_, std::try_to_lock);
  return lock ? totals() : Totals{};
}

// The only line of a pool: its memory has none until the pool is destroyed.
Line PoolCore::describe() noexcept {
  const Totals live = try_live();  // a report must not wait
  return line_of("pool %s: %" PRIu64 " live block%s of %" PRIu64 " bytes, %" PRIu64
                 " bytes taken, device %u%s",
                 shown(request_.memory.name), live.count, plural(live.count), live.bytes, live.reserved,
                 device_.ordinal(), handle_ != 0 ? "" : ", destroyed; gpumem_pool_free_pointer() frees them");
}

void PoolCore::list(Fields& fields) noexcept {
  const Lock lock(mutex_, std::try_to_lock);  // a snapshot must not wait
  const Totals live = lock ? totals() : Totals{};
  fields.add("name", request_.memory.name);
  fields.add("device", uint64_t{device_.ordinal()});
  fields.add("kind", request_.memory.kind->name);
  fields.add("live_count", live.count);
  fields.add("live_bytes", live.bytes);
  fields.add("reserved_bytes", live.reserved);
  if (lock) {
    fields.add("free_bytes", space_.total_bytes() - space_.taken_bytes());
    fields.add("largest_free_bytes", space_.largest_place());
    if (const uint64_t captured = captured_bytes(); captured != 0) fields.add("captured_bytes", captured);
    if (limit_ != 0) fields.add("limit", limit_);
  } else {
    fields.add_true("busy");
  }
  if (handle_ == 0) fields.add_true("destroyed");
}

gpumem_pool_info PoolCore::info() {
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  const Lock lock(mutex_);
  const Totals totals = this->totals();
  info.device = reinterpret_cast<gpumem_device>(pointer_to(device_.handle()));
  info.device_ordinal = device_.ordinal();
  info.kind = request_.memory.kind->kind;
  info.flags = request_.flags;
  info.memory_flags = request_.memory.flags;
  info.handle_types = request_.memory.handle_types;
  info.limit = limit_;
  info.release_threshold = release_threshold_;
  info.low_water = request_.low_water;
  info.live_count = totals.count;
  info.live_bytes = totals.bytes;
  info.reserved_bytes = source_.bytes();
  info.cached_bytes = info.reserved_bytes > totals.bytes ? info.reserved_bytes - totals.bytes : 0;
  info.segment_count = source_.pieces().size();
  info.peak_live_count = peak_count_;
  info.peak_live_bytes = peak_bytes_;
  info.peak_reserved_bytes = peak_reserved_;
  info.total_count = large_total_;
  info.total_bytes = large_total_bytes_;
  info.cut_count = large_cut_;
  for (const PoolCache* cache = caches_; cache != nullptr; cache = cache->next) {
    info.total_count += cache->large_allocated.load(std::memory_order_relaxed);
    info.total_bytes += cache->large_allocated_bytes.load(std::memory_order_relaxed);
  }
  for (uint32_t i = 0; i < classes_.count(); ++i) {
    const uint64_t count = counts_of(i).allocated;
    info.total_count += count;
    info.total_bytes += count * classes_.size_of(i);
    info.cut_count += cut_counts_[i];
  }
  info.cross_stream_count = cross_stream_;
  info.wait_count = waits_;
  info.mark_count = marks_;
  info.grow_count = grows_;
  info.release_count = releases_;
  info.capture_count = captures_.parts.size();
  info.captured_bytes = captured_bytes();
  info.class_count = classes_.count();
  std::snprintf(info.name, sizeof info.name, "%s", request_.memory.name.c_str());
  return info;
}

Result<gpumem_pool_class_info> PoolCore::class_info(uint32_t index) {
  if (index >= classes_.count()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "there is no class %u; the pool has %u", index,
                      classes_.count());
  }
  const Lock lock(mutex_);
  gpumem_pool_class_info info = GPUMEM_POOL_CLASS_INFO_INIT;
  info.block_size = classes_.size_of(index);
  const Counts counts = counts_of(index);
  info.total_count = counts.allocated;
  info.live_count = counts.live;
  info.block_count = block_counts_[index];
  info.cut_count = cut_counts_[index];
  return info;
}

Result<uint64_t> PoolCore::capacity_for(std::span<const uint64_t> sizes) const {
  // Chunks and larger blocks are whole pages, so nothing is lost between them.
  std::array<uint64_t, PoolClasses::kCountMax> counts{};
  uint64_t bytes = 0;
  bool fits = true;
  for (uint64_t size : sizes) {
    if (size == 0) continue;
    if (debug()) size += 2 * kGuard;
    if (size <= PoolClasses::kSmallMax) {
      ++counts[classes_.index_of(size)];
    } else {
      fits = fits && add(bytes, round_up(size, PoolClasses::kPage), &bytes);
    }
  }
  for (uint32_t index = 0; index < classes_.count(); ++index) {
    const uint64_t block_size = classes_.size_of(index);
    const uint64_t chunk = PoolClasses::chunk_size(block_size);
    const uint64_t blocks = chunk / block_size;
    const uint64_t chunks = counts[index] / blocks + (counts[index] % blocks != 0 ? 1 : 0);
    uint64_t all = 0;
    fits = fits && multiply(chunks, chunk, &all) && add(bytes, all, &bytes);
  }
  if (!fits || bytes > kSizeMax)
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the blocks take more than 2^63-1 bytes together; pass fewer");
  return round_up(bytes, piece());
}

void PoolCore::reset_peaks() {
  const Lock lock(mutex_);
  // Kept blocks count, because threads take them without the pool noticing.
  peak_count_ = peak_bytes_ = 0;
  note_peaks();
  peak_reserved_ = source_.bytes();
}

bool PoolCore::block_info(const void* pointer, gpumem_pool_block_info* out) {
  PoolBlocks::Block block;
  if (debug()) {
    const Lock lock(mutex_);
    const auto behind = debug_blocks_.upper_bound(address_of(pointer));
    if (behind == debug_blocks_.begin()) return false;
    const auto& [first, known] = *std::prev(behind);
    if (address_of(pointer) - first >= known.requested) return false;
    out->base = pointer_to(first);
    out->usable_size = out->requested_size = known.requested;
  } else {
    const platform::Look look(platform::thread_record());
    if (!blocks_.find(address_of(pointer), &block)) return false;
    out->base = pointer_to(block.base);
    out->usable_size = block.size;
    out->requested_size = 0;
  }
  out->pool = reinterpret_cast<gpumem_pool>(pointer_to(handle_));
  return true;
}

// Only a debug pool records single blocks.
void PoolCore::log_blocks() noexcept {
  constexpr size_t kMost = 32;
  const Lock lock(mutex_);
  const char* const name = shown(request_.memory.name);
  size_t left = debug_blocks_.size();
  for (const auto& [pointer, block] : debug_blocks_) {
    if (debug_blocks_.size() - left == kMost) {
      log(GPUMEM_LOG_WARNING, "pool %s: %zu more block%s not freed", name, left,
          left == 1 ? " was" : "s were");
      return;
    }
    log(GPUMEM_LOG_WARNING, "pool %s: the block of %" PRIu64 " byte%s at %p was not freed", name,
        block.requested, plural(block.requested), pointer_to(pointer));
    --left;
  }
}

}  // namespace gpumem::core
