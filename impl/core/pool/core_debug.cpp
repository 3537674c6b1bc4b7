// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools that find mistakes: guards around blocks, and freed ones that are kept back.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <new>

#include "base/text.h"
#include "core/pool/core.h"

namespace gpumem::core {
namespace {

constexpr uint8_t kGuardByte = 0xFD;
constexpr uint8_t kFreedByte = 0xDD;
constexpr size_t kQuarantineMost = 64;

}  // namespace

Result<void*> PoolCore::allocate_debug(Order& order, uint64_t size, uint64_t alignment,
                                       const std::function<Result<void*>(uint64_t)>& take) {
  const uint64_t before = std::max(kGuard, alignment);
  if (size > kSizeMax - before - kGuard) size = kSizeMax - before - kGuard;
  // Allocate the record first, so that nothing fails once there is a block.
  std::map<uint64_t, DebugBlock> entry;
  entry.emplace(0, DebugBlock{0, size});
  auto block = take(before + size + kGuard);
  if (!block) return block;
  const uint64_t pointer = address_of(*block) + before;
  auto node = entry.extract(entry.begin());
  node.key() = pointer;
  node.mapped().base = address_of(*block);
  node.mapped().guarded = may_guard(order);
  if (node.mapped().guarded) {
    std::memset(pointer_to(pointer - kGuard), kGuardByte, kGuard);
    std::memset(pointer_to(pointer + size), kGuardByte, kGuard);
  }
  debug_blocks_.insert(std::move(node));
  return pointer_to(pointer);
}

bool PoolCore::may_guard(Order& order) noexcept {
  if (!reached_by_cpu()) return false;
  try {
    mark(order);
    poll(order);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return order.harmless();
}

Result<void> PoolCore::free_debug(const PoolStream& stream, uint64_t address, uint64_t size) {
  const auto found = debug_blocks_.find(address);
  if (found == debug_blocks_.end()) {
    const auto behind = debug_blocks_.upper_bound(address);
    if (behind != debug_blocks_.begin()) {
      const auto& [first, block] = *std::prev(behind);
      if (address - first < block.requested) {
        return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                          "%p is at offset %" PRIu64 " in a block of %" PRIu64
                          " bytes; pass the pointer to its first byte",
                          pointer_to(address), address - first, block.requested);
      }
    }
    return make_error(GPUMEM_ERROR_NOT_FOUND, "the pool has no live block at %p; it may be freed already",
                      pointer_to(address));
  }
  const DebugBlock block = found->second;
  if (size != 0 && size != block.requested) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the block at %p has %" PRIu64 " byte%s, and is freed with %" PRIu64,
                      pointer_to(address), block.requested, plural(block.requested), size);
  }
  GPUMEM_TRY(check_unused(address, block.requested));
  if (block.guarded) {
    const auto* const bytes = static_cast<const uint8_t*>(pointer_to(address));
    for (uint64_t i = 1; i <= kGuard; ++i) {
      if (bytes[-static_cast<int64_t>(i)] == kGuardByte && bytes[block.requested + i - 1] == kGuardByte)
        continue;
      const bool in_front = bytes[-static_cast<int64_t>(i)] != kGuardByte;
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                        "byte %" PRIu64 " %s the block of %" PRIu64
                        " byte%s at %p was overwritten; find what wrote it: the "
                        "block stays live until the instance is closed with GPUMEM_CLOSE_FORCE",
                        i, in_front ? "in front of" : "behind", block.requested, plural(block.requested),
                        pointer_to(address));
    }
  }
  PoolRun& run = *blocks_.run_at(block.base);
  const uint8_t state = run.state(run.index_of(block.base)).load(std::memory_order_relaxed);
  if (state == PoolRun::kCaptured || stream.capture.id != 0) {
    free_captured(stream, run, block.base);
    debug_blocks_.erase(found);
    return {};
  }
  const auto order = order_of(stream);
  if (state == PoolRun::kRecorded) {
    await_recorded(order, run, block.base);
    count_free(run, block.base);
  } else {
    release_debug(order, block.base);
    if (reached_by_cpu() && order->is_none()) std::memset(pointer_to(address), kFreedByte, block.requested);
  }
  debug_blocks_.erase(found);
  try {
    settle_waiting();
    end_quarantine(kQuarantineMost);
    keep_threshold();
  } catch (const std::bad_alloc&) {
    // The block is free; the next call sees to the rest.
  }
  return {};
}

// Keeps a block of a debug pool back.
void PoolCore::release_debug(const std::shared_ptr<Order>& order, uint64_t base) {
  quarantine_.push_back({base, order});
  count_free(*blocks_.run_at(base), base);
}

void PoolCore::end_quarantine(size_t keep) {
  settle_given_back();
  while (quarantine_.size() > keep) {
    const Quarantined& oldest = quarantine_.front();
    free_block(*oldest.order, *blocks_.run_at(oldest.base), oldest.base);
    quarantine_.pop_front();
  }
}

}  // namespace gpumem::core
