// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/event.h"

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/stream.h"

namespace gpumem::host {

Result<void> HostEvent::record(backend::Stream& stream) {
  const CurrentDevice current(device_.facts().ordinal);
  Queue& queue = static_cast<HostStream&>(stream).queue();
  const auto record = std::make_shared<Record>();
  const Lock lock(shared_.mutex);
  record->mark = queue.mark(lock);
  ++record->mark.number;  // the operation that records the time
  GPUMEM_TRY(queue.enqueue(lock, {[record]() -> Result<void> {
                             record->time = std::chrono::steady_clock::now();
                             return {};
                           }},
                           {}));
  latest_ = record;
  return {};
}

Result<bool> HostEvent::synchronize(uint64_t timeout_ns) {
  const CurrentDevice current(device_.facts().ordinal);
  std::shared_ptr<Record> record;
  {
    const Lock lock(shared_.mutex);
    record = latest_;
  }
  if (record == nullptr) {
    GPUMEM_TRY(device_.require_not_lost());
    return true;
  }
  return shared_.await(device_, record->mark, timeout_ns);
}

Result<std::optional<int64_t>> HostEvent::elapsed_since(backend::Event& start) {
  const CurrentDevice current(device_.facts().ordinal);
  const Lock lock(shared_.mutex);
  GPUMEM_TRY(device_.require_not_lost());  // after a loss, a record that did not run counts as complete
  const auto& first = static_cast<HostEvent&>(start).latest_;
  for (const auto& record : {first, latest_}) {
    if (record->mark.timeline->completed < record->mark.number) return std::optional<int64_t>();
  }
  return std::optional<int64_t>(std::chrono::nanoseconds(latest_->time - first->time).count());
}

}  // namespace gpumem::host
