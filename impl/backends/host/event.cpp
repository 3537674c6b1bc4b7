// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/event.h"

#include <algorithm>

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/stream.h"

namespace gpumem::host {

Result<void> HostEvent::record(backend::Stream& stream) {
  const CurrentDevice current(device_.facts().ordinal);
  Queue& queue = static_cast<HostStream&>(stream).queue();
  {
    const Lock lock(shared_.mutex);
    capture_ = queue.capture;
    if (capture_ != 0) return queue.require_open(lock);
  }
  const auto record = std::make_shared<Record>();
  std::shared_ptr<SharedEvent::Record> shown;  // to other processes
  if (page_ != nullptr) {
    auto made = page_->record();
    if (!made) return made.error();
    shown = std::move(*made);
  }
  const Lock lock(shared_.mutex);
  record->mark = queue.mark(lock);
  ++record->mark.number;  // the operation that records the time
  const SharedEvent::Record* const published = shown.get();
  GPUMEM_TRY(queue.enqueue(lock,
                           {.run = [record]() -> Result<void> {
                              record->time = std::chrono::steady_clock::now();
                              return {};
                            },
                            .shown = std::move(shown)},
                           {}));
  // The operation owns the record now, and cannot complete while the lock is held.
  if (published != nullptr) published->publish();
  latest_ = record;
  return {};
}

HostEvent::Latest HostEvent::latest(const Lock& /*held*/) const {
  Latest latest;
  const SharedEvent::Point point = page_ != nullptr ? page_->latest() : SharedEvent::Point();
  if (point.number != 0 && !page_->is_own(point)) {
    latest.elsewhere.emplace(page_, point);
  } else {
    latest.here = latest_;
  }
  return latest;
}

Result<bool> HostEvent::synchronize(uint64_t timeout_ns) {
  const CurrentDevice current(device_.facts().ordinal);
  Latest record;
  {
    const Lock lock(shared_.mutex);
    record = latest(lock);
  }
  if (record.elsewhere) return await(std::move(*record.elsewhere), timeout_ns);
  return await(record.here, timeout_ns);
}

Result<bool> HostEvent::synchronize_own(uint64_t timeout_ns) {
  const CurrentDevice current(device_.facts().ordinal);
  std::shared_ptr<Record> record;
  {
    const Lock lock(shared_.mutex);
    record = latest_;
  }
  return await(record, timeout_ns);
}

Result<bool> HostEvent::await(const std::shared_ptr<Record>& record, uint64_t timeout_ns) {
  if (record != nullptr) return shared_.await(device_, record->mark, timeout_ns);
  GPUMEM_TRY(device_.require_not_lost());
  return true;
}

Result<bool> HostEvent::await(SharedEvent::Wait record, uint64_t timeout_ns) {
  using std::chrono::steady_clock;
  constexpr uint64_t kLongest = uint64_t{1} << 61;  // the clock's arithmetic has room for it
  const auto limit = steady_clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kLongest));
  const auto check = [&](steady_clock::time_point now) -> Result<void> {
    GPUMEM_TRY(device_.require_not_lost());
    const Lock lock(shared_.mutex);
    if (now < shared_.others_until) return {};
    return make_error(GPUMEM_ERROR_CLOSED, "another thread closes the instance; do not wait any longer");
  };
  bool over = record.is_over();
  for (auto now = steady_clock::now(); !over && now < limit; now = steady_clock::now()) {
    GPUMEM_TRY(check(now));
    over = record.over_within(limit - now);
  }
  GPUMEM_TRY(device_.require_not_lost());
  if (!over) return false;
  GPUMEM_TRY(record.outcome());
  return true;
}

Result<std::optional<int64_t>> HostEvent::elapsed_since(backend::Event& start) {
  const CurrentDevice current(device_.facts().ordinal);
  const Lock lock(shared_.mutex);
  GPUMEM_TRY(device_.require_not_lost());  // after a loss, a record that did not run counts as complete
  const auto& first = static_cast<HostEvent&>(start).latest_;
  if (first == nullptr || latest_ == nullptr) {
    return make_error(GPUMEM_ERROR_INVALID_STATE, "another process recorded the event, which has no times");
  }
  for (const auto& record : {first, latest_}) {
    if (record->mark.timeline->completed < record->mark.number) return std::optional<int64_t>();
  }
  return std::optional<int64_t>(std::chrono::nanoseconds(latest_->time - first->time).count());
}

}  // namespace gpumem::host
