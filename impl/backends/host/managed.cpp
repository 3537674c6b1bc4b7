// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/managed.h"

#include <algorithm>
#include <cstring>

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/memory.h"
#include "backends/host/stream.h"
#include "platform/pages.h"

namespace gpumem::host {
namespace {

// The pages of an allocation that have a byte in a range.
struct PageSpan {
  uint64_t first;
  uint64_t end;
};

PageSpan pages_of(uint64_t offset, uint64_t size) {
  const uint64_t page = platform::page_size();
  return {offset / page, (offset + size - 1) / page + 1};
}

// Null for pageable memory.
std::shared_ptr<Allocation> allocation_of(const backend::Span& span) {
  return span.memory == nullptr ? nullptr : static_cast<HostMemory&>(*span.memory).allocation();
}

void take_advice(backend::ManagedFacts& page, gpumem_advice advice, const backend::Location& location) {
  const bool device = location.type == GPUMEM_LOCATION_DEVICE;
  const uint64_t bit = device ? uint64_t{1} << location.id : 0;
  switch (advice) {
    case GPUMEM_ADVICE_SET_READ_MOSTLY:
    case GPUMEM_ADVICE_UNSET_READ_MOSTLY:
      page.read_mostly = advice == GPUMEM_ADVICE_SET_READ_MOSTLY;
      break;
    case GPUMEM_ADVICE_SET_PREFERRED_LOCATION:
    case GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION:
      page.preferred = advice == GPUMEM_ADVICE_SET_PREFERRED_LOCATION ? location : backend::Location();
      break;
    case GPUMEM_ADVICE_SET_ACCESSED_BY:
      page.accessed_by_devices |= bit;
      page.accessed_by_host = page.accessed_by_host || !device;
      break;
    default:
      page.accessed_by_devices &= ~bit;
      page.accessed_by_host = page.accessed_by_host && device;
      break;
  }
}

}  // namespace

// ---- devices that are not concurrent ----

void ManagedTable::add(const Lock& held, Allocation& allocation) {
  allocations_.push_back(&allocation);
  refresh(held);
}

void ManagedTable::remove(const Allocation& allocation) { std::erase(allocations_, &allocation); }

void ManagedTable::update(const Lock& held) {
  const bool any_active = queues_->any_active(held);
  for (Allocation* const allocation : allocations_) {
    ManagedPart& managed = *allocation->managed;
    bool touchable = !any_active;
    if (managed.attach == GPUMEM_ATTACH_SINGLE) {
      const Timeline* const stream = queues_->find_timeline(held, managed.stream);
      // The stream has ended, with all its work (MAN-13).
      if (stream == nullptr) managed.attach = managed.initial;
      if (stream != nullptr) touchable = !stream->active();
    }
    if (managed.attach == GPUMEM_ATTACH_HOST) touchable = true;
    if (touchable == managed.touchable || !protects_) continue;
    const uint64_t size = round_up(allocation->size, platform::page_size());
    if (platform::set_accessible(allocation->host_address, size, touchable)) managed.touchable = touchable;
  }
}

// ---- the facet ----

bool HostManaged::concurrent() const { return shared_.options.concurrent; }

Result<void> HostManaged::attach(backend::Stream& stream, const backend::Span& first, uint64_t /*size*/,
                                 gpumem_attach attach) {
  const CurrentDevice current(device_.facts().ordinal);
  Queue& queue = static_cast<HostStream&>(stream).queue();
  const uint64_t id = attach == GPUMEM_ATTACH_SINGLE ? queue.timeline()->id : 0;
  return queue.enqueue({[&shared = shared_, allocation = allocation_of(first), attach, id]() -> Result<void> {
                         if (allocation == nullptr) return {};
                         const Lock lock(shared.mutex);
                         allocation->managed->attach = attach;
                         allocation->managed->stream = id;
                         shared.managed.refresh(lock);
                         return {};
                       }},
                       {allocation_of(first).get()});
}

Result<bool> HostManaged::advise(const backend::Span& span, uint64_t size, gpumem_advice advice,
                                 backend::Location location) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  GPUMEM_TRY(shared_.steps.take("advise"));
  const auto allocation = allocation_of(span);
  if (allocation == nullptr) return true;
  const PageSpan pages = pages_of(span.offset, size);
  const Lock lock(shared_.mutex);
  PageTable& table = allocation->managed->pages;
  table.prepare(pages.first, pages.end);
  table.change(pages.first, pages.end, [&](auto& page) { take_advice(page, advice, location); });
  table.join();
  return true;
}

Result<void> HostManaged::enqueue(backend::Stream& stream, std::span<const backend::ManagedRange> ranges,
                                  bool discards, bool moves) {
  const CurrentDevice current(device_.facts().ordinal);
  std::vector<std::shared_ptr<Allocation>> held;
  std::vector<Allocation*> used;
  for (const backend::ManagedRange& range : ranges) {
    held.push_back(allocation_of(range.span));
    used.push_back(held.back().get());
  }
  Operation operation;
  operation.device_work = true;
  operation.touches = discards;
  operation.run = [held, discards, all = std::vector(ranges.begin(), ranges.end())]() -> Result<void> {
    for (size_t index = 0; discards && index < all.size(); ++index)
      std::memset(held[index]->bytes + all[index].span.offset, kFreshByte, all[index].size);
    return {};
  };
  const Lock lock(shared_.mutex);
  const auto for_each = [&](auto function) {
    for (size_t index = 0; moves && index < ranges.size(); ++index) {
      if (used[index] == nullptr) continue;
      function(used[index]->managed->pages, pages_of(ranges[index].span.offset, ranges[index].size),
               ranges[index].location);
    }
  };
  for_each([](PageTable& table, const PageSpan& pages, const backend::Location&) {
    table.prepare(pages.first, pages.end);
  });
  GPUMEM_TRY(static_cast<HostStream&>(stream).queue().enqueue(lock, std::move(operation), used));
  for_each([&](PageTable& table, const PageSpan& pages, const backend::Location& location) {
    table.change(pages.first, pages.end, [&](auto& page) { page.last_prefetch = location; });
  });
  for_each([](PageTable& table, const PageSpan&, const backend::Location&) { table.join(); });
  return {};
}

Result<void> HostManaged::prefetch(backend::Stream& stream, const backend::ManagedRange& range) {
  return enqueue(stream, {&range, 1}, false, true);
}

Result<void> HostManaged::prefetch_batch(backend::Stream& stream,
                                         std::span<const backend::ManagedRange> ranges) {
  return enqueue(stream, ranges, false, true);
}

Result<void> HostManaged::discard_batch(backend::Stream& stream,
                                        std::span<const backend::ManagedRange> ranges) {
  return enqueue(stream, ranges, true, false);
}

Result<void> HostManaged::discard_and_prefetch_batch(backend::Stream& stream,
                                                     std::span<const backend::ManagedRange> ranges) {
  return enqueue(stream, ranges, true, true);
}

Result<backend::ManagedFacts> HostManaged::facts(const backend::Span& span, uint64_t size) {
  const CurrentDevice current(device_.facts().ordinal);
  GPUMEM_TRY(device_.require_not_lost());
  const PageSpan pages = pages_of(span.offset, size);
  const auto allocation = allocation_of(span);
  const Lock lock(shared_.mutex);
  return allocation->managed->pages.common(pages.first, pages.end);
}

}  // namespace gpumem::host
