// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Blocks that work of other streams uses too, and whose frees wait for it.
#include <algorithm>

#include "base/cleanup.h"
#include "core/pool/core.h"

namespace gpumem::core {

Result<void> PoolCore::record_use(const PoolStream& stream, const void* pointer) {
  const Lock lock(mutex_);
  uint64_t address = address_of(pointer);
  if (debug()) {
    const auto found = debug_blocks_.find(address);
    if (found == debug_blocks_.end()) return not_found(address);
    address = found->second.base;
  }
  PoolRun* const run = blocks_.run_at(address);
  const uint32_t index = run != nullptr ? run->index_of(address) : 0;
  if (run == nullptr || index >= run->count || run->address_of_block(index) != address ||
      run->state(index).load(std::memory_order_relaxed) == PoolRun::kFree)
    return not_found(address);
  if (stream.capture.id != 0) {
    record_captured_use(stream.capture, *run, address);
    return {};
  }
  const auto order = order_of(stream);
  const auto [entry, fresh] = recorded_.try_emplace(address);
  Cleanup drop([&, place = entry, made = fresh] {
    if (made) recorded_.erase(place);
  });
  auto& orders = entry->second;
  if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(order);
  drop.dismiss();
  std::atomic<uint8_t>& state = run->state(index);
  if (state.load(std::memory_order_relaxed) != PoolRun::kCaptured)
    state.store(PoolRun::kRecorded, std::memory_order_release);
  return {};
}

// The free of a block waits for the streams whose use of it was recorded.
void PoolCore::await_recorded(const std::shared_ptr<Order>& order, PoolRun& run, uint64_t address) {
  Waiting waiting{{address, &run.state(run.index_of(address))}, &run, order, {}};
  const auto others = recorded_.find(address);
  waiting.needs.reserve(others->second.size());
  waiting_.reserve(waiting_.size() + 1);
  for (auto& other : others->second) {
    if (other == order) continue;
    other->note_frees(1);
    waiting.needs.emplace_back(other, other->epoch());
  }
  waiting_.push_back(std::move(waiting));
  recorded_.erase(others);
}

void PoolCore::settle_waiting() {
  for (size_t i = 0; i < waiting_.size();) {
    Waiting& one = waiting_[i];
    bool complete = true;
    for (auto& [order, epoch] : one.needs) {
      if (order->has_passed(epoch)) continue;
      mark(*order);
      poll(*order);
      complete = complete && order->has_passed(epoch);
    }
    if (!complete) {
      ++i;
      continue;
    }
    free_block(*one.order, *one.run, one.block.address);
    if (i + 1 != waiting_.size()) one = std::move(waiting_.back());
    waiting_.pop_back();
  }
}

}  // namespace gpumem::core
