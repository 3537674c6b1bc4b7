// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/shared.h"

#include <chrono>

#include "backends/host/device.h"
#include "backends/host/vmm.h"

namespace gpumem::host {

Result<bool> Shared::await(const HostDevice& device, const Mark& mark, uint64_t timeout_ns,
                           Failures failures) {
  // Longer than any process lives, yet cannot overflow the clock's arithmetic.
  constexpr uint64_t kLongest = uint64_t{1} << 61;
  Timeline& timeline = *mark.timeline;
  const auto over = [&] { return timeline.completed >= mark.number || device.lost(); };
  std::unique_lock lock(mutex);
  if (timeout_ns == 0) {
    if (!over()) return false;
  } else if (timeout_ns >= kLongest) {
    progress.wait(lock, over);
  } else {
    const auto limit = std::chrono::nanoseconds(static_cast<int64_t>(timeout_ns));
    if (!progress.wait_for(lock, limit, over)) return false;
  }
  GPUMEM_TRY(device.require_not_lost());
  mark.observe();
  managed.refresh(lock);
  Result<bool> observed = true;
  if (failures == Failures::kKeep) return observed;
  for (auto& failed = timeline.failures; !failed.empty() && failed.front().number <= mark.number;
       failed.pop_front()) {
    if (observed) observed = failed.front().error;  // later failures may be consequences of the first
  }
  return observed;
}

void Shared::remember(const std::shared_ptr<HostBlock>& block) {
  std::erase_if(blocks, [](const auto& known) { return known.second.expired(); });
  blocks.insert_or_assign(block->identity, block);
}

std::shared_ptr<HostBlock> Shared::recall(const std::pair<uint64_t, uint64_t>& identity) const {
  const auto known = blocks.find(identity);
  return known != blocks.end() ? known->second.lock() : nullptr;
}

}  // namespace gpumem::host
