// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/managed.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <new>
#include <thread>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/memory/statistics.h"
#include "core/object/callback.h"
#include "core/object/handles.h"
#include "core/object/host_function_guard.h"
#include "core/object/precedence.h"
#include "platform/numa.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

// ---- ranges ----

// Bytes of one managed memory, or of ordinary memory.
struct FoundRange {
  backend::ManagedRange range;
  Ref<Region> region;  // empty for ordinary memory
};

Error wrong_kind(const void* pointer, const char* kind) {
  return make_error(GPUMEM_ERROR_WRONG_KIND, "the memory at %p is %s memory; this call takes managed memory",
                    pointer, kind);
}

// Finds what is at the first byte: NOT_FOUND or WRONG_KIND if it is of no use here.
Result<FoundRegion> find_start(Context& context, const void* pointer) {
  FoundRegion found = find_region(context, pointer);
  if (found.region) {
    if (!found.region->traits().managed) return wrong_kind(pointer, found.region->traits().name);
    return found;
  }
  if (found.covered) return nothing_at(context, pointer, found);
  auto facts = find_foreign(context, pointer);
  if (!facts) return facts.error();
  if (facts->known) return wrong_kind(pointer, kinds::foreign.name);
  if (platform::readable(pointer, 1)) return found;
  return nothing_at(context, pointer, found);
}

// INVALID_ARGUMENT if the bytes leave what they begin in (MAN-28).
Result<void> check_bounds(Context& context, const FoundRegion& found, const void* pointer, uint64_t size) {
  if (found.region) {
    if (size <= found.region->size() - found.offset) return {};
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the range has %" PRIu64 " bytes from offset %" PRIu64
                      ", but the managed memory there has %" PRIu64 " bytes",
                      size, found.offset, found.region->size());
  }
  const auto meets_region = [&] {
    const platform::Look look(platform::thread_record());
    return context.page_map().find_live(address_of(pointer), size) != nullptr;
  };
  if (meets_region()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the range begins in ordinary memory and extends into memory of this instance");
  }
  if (platform::mapped(pointer, size)) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "a page of the %" PRIu64 " bytes at %p is not mapped",
                    size, pointer);
}

backend::Span span_of(const FoundRegion& found, const void* pointer) {
  backend::Span span;
  span.address = const_cast<void*>(pointer);
  span.managed = true;
  if (found.region) {
    span.memory = &found.region->backend();
    span.offset = found.offset;
  } else {
    span.pageable = true;
  }
  return span;
}

Result<void> find_range(Context& context, const RangeArguments& asked, FoundRange* out) {
  auto found = find_start(context, asked.pointer);
  if (!found) return found.error();
  GPUMEM_TRY(check_bounds(context, *found, asked.pointer, asked.size));
  out->range = {span_of(*found, asked.pointer), asked.size, asked.location};
  out->region = std::move(found->region);
  return {};
}

// ---- what has an effect ----

backend::Managed* concurrent_facet(const Device& device) {
  backend::Managed* const managed = device.backend().managed();
  return managed != nullptr && managed->concurrent() ? managed : nullptr;
}

// Whether pages can be sent to a location, or be meant to lie there.
bool usable_location(Context& context, Device& asked, const backend::Location& location) {
  if (location.type == GPUMEM_LOCATION_DEVICE)
    return concurrent_facet(Devices::of(context)[static_cast<size_t>(location.id)]) != nullptr;
  if (location.type != GPUMEM_LOCATION_HOST_NUMA) return true;
  return asked.capability(GPUMEM_CAPABILITY_MANAGED_NUMA_LOCATIONS).value != GPUMEM_ANSWER_NO;
}

bool all_concurrent(Context& context) {
  return std::all_of(Devices::of(context).begin(), Devices::of(context).end(),
                     [](const auto& device) { return concurrent_facet(*device) != nullptr; });
}

// A hint that a driver lacks is a hint without effect (MAN-20).
Result<Status> hinted(const Result<void>& given) {
  if (given) return GPUMEM_SUCCESS;
  if (given.error().status == GPUMEM_ERROR_SYMBOL_MISSING) return GPUMEM_NO_EFFECT;
  return given.error();
}

Error in_range(uint64_t index, const Error& failure) {
  return reworded(failure, "ranges[%" PRIu64 "]: %s", index, failure.message);
}

Result<void> check_own_device(const FoundRange& found) {
  return found.region ? found.region->device().usable() : Result<void>();
}

Error accessed_by_cpu(const void* pointer) {
  return make_error(
      GPUMEM_ERROR_BUSY,
      "the CPU is accessing the managed memory at %p; call gpumem_managed_end_host_access() first", pointer);
}

}  // namespace

int32_t current_node(const Context& context) {
  const int32_t node = platform::current_numa_node();
  return context.backend().has_numa_node(node) ? node : 0;
}

// ---- attachment ----

namespace {

Result<void> check_whole(const FoundRegion& found, const void* pointer, uint64_t size) {
  if (!found.region) {
    if (size != 0) return {};
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "the size is 0, but ordinary memory at %p has no size of its own; pass the bytes to attach", pointer);
  }
  if (found.offset == 0 && (size == 0 || size == found.region->size())) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "managed memory is attached as a whole: pass its first byte, and 0 or its %" PRIu64
                    " bytes",
                    found.region->size());
}

}  // namespace

Result<void> attach(Stream& stream, void* pointer, uint64_t size, gpumem_attach attach) {
  Context& context = stream.context();
  GPUMEM_TRY(outside_host_function());
  auto found = find_start(context, pointer);
  if (!found) return found.error();
  GPUMEM_TRY(check_whole(*found, pointer, size));
  if (size != 0) GPUMEM_TRY(check_bounds(context, *found, pointer, size));
  if (found->region) GPUMEM_TRY(found->region->device().usable());
  GPUMEM_TRY(stream.usable());
  backend::Managed* const managed = stream.device().backend().managed();
  const backend::Span span = span_of(*found, pointer);
  if (!found->region) GPUMEM_TRY(stream.device().need(GPUMEM_CAPABILITY_PAGEABLE));
  if (managed == nullptr) {
    GPUMEM_TRY(stream.device().need(GPUMEM_CAPABILITY_MANAGED));
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "device %u has no managed memory", stream.device().ordinal());
  }
  if (!found->region || !Devices::of(context).has_exclusive())
    return managed->attach(stream.backend(), span, size, attach);

  ManagedState& state = *found->region->managed();
  if (!state.begin_work()) return accessed_by_cpu(pointer);
  const ManagedWork work(state);
  const StreamKey key = stream.order_key();
  auto fence = stream.backend().fence();
  if (!fence) return fence.error();
  const auto lock = state.lock();
  state.prepare();
  GPUMEM_TRY(managed->attach(stream.backend(), span, size, attach));
  const Association association{attach, attach == GPUMEM_ATTACH_SINGLE ? key : 0};
  // It is enqueued, so the call must not fail from here on, not even for lack of memory.
  try {
    if (const auto mark = (*fence)->mark(stream.backend())) {
      state.attach_from(association, key, std::move(*fence), *mark);
      return {};
    }
  } catch (const std::bad_alloc&) {
  }
  // Once it is complete no mark is needed.
  (void)stream.backend().observe(GPUMEM_TIMEOUT_INFINITE);
  state.attach_from(association, key, nullptr, 0);
  return {};
}

// ---- hints ----

Result<Status> advise(Context& context, const void* pointer, uint64_t size, gpumem_advice advice,
                      backend::Location location) {
  GPUMEM_TRY(outside_host_function());
  FoundRange found;
  GPUMEM_TRY(find_range(context, {const_cast<void*>(pointer), size, location}, &found));
  Device* device = found.region ? &found.region->device() : nullptr;
  if (device == nullptr) {
    const auto reaches = [](const auto& each) {
      return each->capability(GPUMEM_CAPABILITY_PAGEABLE).value != GPUMEM_ANSWER_NO;
    };
    const auto first = std::find_if(Devices::of(context).begin(), Devices::of(context).end(), reaches);
    if (first == Devices::of(context).end())
      return Devices::of(context)[0].need(GPUMEM_CAPABILITY_PAGEABLE).error();
    device = first->get();
  }
  GPUMEM_TRY(device->usable());
  // The advice of one device's memory may be for another one.
  if (concurrent_facet(*device) == nullptr) {
    for (const auto& other : Devices::of(context)) {
      if (concurrent_facet(*other) != nullptr && other->usable()) device = other.get();
    }
  }
  backend::Managed* const managed = concurrent_facet(*device);
  if (managed == nullptr || !usable_location(context, *device, location)) return GPUMEM_NO_EFFECT;
  auto given = managed->advise(found.range.span, size, advice, location);
  if (!given) return hinted(given.error());
  if (!*given) return GPUMEM_NO_EFFECT;
  if (found.region && advice == GPUMEM_ADVICE_SET_PREFERRED_LOCATION &&
      location.type != GPUMEM_LOCATION_DEVICE) {
    found.region->managed()->set_may_prefer_host();
  }
  return GPUMEM_SUCCESS;
}

Result<Status> prefetch(Stream& stream, const RangeArguments& range) {
  Context& context = stream.context();
  GPUMEM_TRY(outside_host_function());
  FoundRange found;
  GPUMEM_TRY(find_range(context, range, &found));
  GPUMEM_TRY(check_own_device(found));
  GPUMEM_TRY(stream.usable());
  if (!found.region) GPUMEM_TRY(stream.device().need(GPUMEM_CAPABILITY_PAGEABLE));
  backend::Managed* const managed = concurrent_facet(stream.device());
  if (managed == nullptr || !usable_location(context, stream.device(), range.location))
    return GPUMEM_NO_EFFECT;
  return hinted(managed->prefetch(stream.backend(), found.range));
}

namespace {

// Finds all ranges of a batch before anything is enqueued.
Result<void> find_ranges(Stream& stream, Batch what, const std::vector<RangeArguments>& ranges,
                         std::vector<FoundRange>* out) {
  Context& context = stream.context();
  out->reserve(ranges.size());
  const Result<void> usable = stream.usable();
  Verdict later;  // failures that come behind those of any range (COM-17)
  later.note(usable);
  for (uint64_t index = 0; index < ranges.size(); ++index) {
    FoundRange& found = out->emplace_back();
    if (auto good = find_range(context, ranges[index], &found); !good) return in_range(index, good.error());
    if (!found.region && what != Batch::kPrefetch)
      return in_range(index, wrong_kind(ranges[index].pointer, kinds::pageable.name));
    if (auto good = check_own_device(found); !good) later.note(in_range(index, good.error()));
  }
  if (!later) return later.error();
  const bool any_pageable =
      std::any_of(out->begin(), out->end(), [](const FoundRange& found) { return !found.region; });
  return any_pageable ? stream.device().need(GPUMEM_CAPABILITY_PAGEABLE) : Result<void>();
}

// The whole pages in a range, and at most two ranges around them.
struct Split {
  backend::ManagedRange pages;  // size 0: none
  std::vector<backend::ManagedRange> edges;
};

backend::ManagedRange part_of(const backend::ManagedRange& range, uint64_t begin, uint64_t end) {
  return {range.span.after(begin - address_of(range.span.address)), end - begin, range.location};
}

Split split_at_pages(const backend::ManagedRange& range) {
  const uint64_t page = platform::page_size();
  const uint64_t begin = address_of(range.span.address);
  const uint64_t end = begin + range.size;
  const uint64_t first = round_up(begin, page);
  const uint64_t last = round_down(end, page);
  Split split;
  if (first >= last) {
    split.edges.push_back(range);
    return split;
  }
  split.pages = part_of(range, first, last);
  if (begin < first) split.edges.push_back(part_of(range, begin, first));
  if (last < end) split.edges.push_back(part_of(range, last, end));
  return split;
}

}  // namespace

Result<Status> move_batch(Stream& stream, Batch what, const std::vector<RangeArguments>& ranges) {
  Context& context = stream.context();
  GPUMEM_TRY(outside_host_function());
  std::vector<FoundRange> found;
  GPUMEM_TRY(find_ranges(stream, what, ranges, &found));
  const bool usable = std::all_of(ranges.begin(), ranges.end(), [&](const RangeArguments& range) {
    return usable_location(context, stream.device(), range.location);
  });
  backend::Managed* const managed = concurrent_facet(stream.device());
  if (managed == nullptr || !usable) return GPUMEM_NO_EFFECT;

  if (what == Batch::kPrefetch) {
    if (found.empty()) return GPUMEM_SUCCESS;
    std::vector<backend::ManagedRange> all;
    all.reserve(found.size());
    for (const FoundRange& each : found)
      all.push_back(each.range);
    return hinted(managed->prefetch_batch(stream.backend(), all));
  }
  if (!all_concurrent(context) ||
      stream.device().capability(GPUMEM_CAPABILITY_MANAGED_DISCARD).value == GPUMEM_ANSWER_NO) {
    return GPUMEM_NO_EFFECT;
  }
  // Discard only whole pages: a page with other bytes keeps its contents.
  std::vector<backend::ManagedRange> pages;
  std::vector<backend::ManagedRange> edges;
  for (const FoundRange& each : found) {
    const Split split = split_at_pages(each.range);
    if (split.pages.size != 0) pages.push_back(split.pages);
    edges.insert(edges.end(), split.edges.begin(), split.edges.end());
  }
  if (what == Batch::kDiscard) edges.clear();
  if (pages.empty()) {
    return edges.empty() ? Result<Status>(GPUMEM_SUCCESS)
                         : hinted(managed->prefetch_batch(stream.backend(), edges));
  }
  auto done = hinted(what == Batch::kDiscard ? managed->discard_batch(stream.backend(), pages)
                                             : managed->discard_and_prefetch_batch(stream.backend(), pages));
  if (!done || edges.empty()) return done;
  // What is discarded is gone, so the call must not fail any more. The rest are hints.
  try {
    (void)managed->prefetch_batch(stream.backend(), edges);
  } catch (const std::bad_alloc&) {
  }
  return done;
}

Result<backend::ManagedFacts> managed_facts(Context& context, const void* pointer, uint64_t size) {
  GPUMEM_TRY(outside_host_function());
  auto found = find_start(context, pointer);
  if (!found) return found.error();
  if (!found->region) return wrong_kind(pointer, kinds::pageable.name);
  GPUMEM_TRY(check_bounds(context, *found, pointer, size));
  const Device& device = found->region->device();
  GPUMEM_TRY(device.usable());
  return device.backend().managed()->facts(span_of(*found, pointer), size);
}

// ---- copies and fills ----

namespace {

bool prefers_host(const Region& region, const backend::Span& span, uint64_t extent) {
  if (!region.managed()->may_prefer_host()) return false;
  auto facts = region.device().backend().managed()->facts(span, extent);
  return facts && (facts->preferred.type == GPUMEM_LOCATION_HOST ||
                   facts->preferred.type == GPUMEM_LOCATION_HOST_NUMA);
}

}  // namespace

Result<void> settle_side(Device& device, const Stream* stream, ManagedSide wanted, uint64_t extent,
                         FoundSpan* found) {
  // An operand that is named by its handle is held by the caller.
  const Region& region = *found->owner;
  ManagedState& state = *region.managed();
  Coherence coherence;
  if (concurrent_facet(device) == nullptr) {
    coherence = {true, false};
    if (device.backend().managed() != nullptr)
      coherence = state.coherence(stream != nullptr ? stream->order_key() : 0);
  }
  bool on_device = true;
  switch (wanted) {
    case ManagedSide::kHost:
      on_device = !coherence.host;
      break;
    case ManagedSide::kDevice:
      if (coherence.device) break;
      return make_error(GPUMEM_ERROR_NO_ACCESS,
                        "device %u is not concurrent, and the managed memory at %p is not attached to %s; "
                        "attach it with gpumem_managed_attach() first",
                        device.ordinal(), found->span.address,
                        stream != nullptr ? "this stream" : "the streams of calls without a stream");
    case ManagedSide::kInfer:
      on_device = coherence.device && !(coherence.host && prefers_host(region, found->span, extent));
      break;
  }
  found->span.on_device = on_device;
  if (concurrent_facet(device) != nullptr) return {};
  if (!state.begin_work()) return accessed_by_cpu(found->span.address);
  found->work = ManagedWork(state);
  return {};
}

// ---- the guard ----

namespace {

Result<FoundRegion> find_own(Context& context, const void* pointer) {
  FoundRegion found = find_region(context, pointer);
  if (!found.region) return nothing_at(context, pointer, found);
  if (!found.region->traits().managed) return wrong_kind(pointer, found.region->traits().name);
  return found;
}

bool is_exclusive(const Device& device) {
  const backend::Managed* const managed = device.backend().managed();
  return managed != nullptr && !managed->concurrent();
}

Result<void> await_stream(Stream& stream) {
  GPUMEM_TRY(stream.device().usable());
  auto capturing = stream.backend().is_capturing();
  if (!capturing) return capturing.error();
  if (*capturing) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "a stream that the access must wait for is being captured; end the capture first");
  }
  auto complete = stream.backend().synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) return complete.error();
  return {};
}

// Waits for the streams of an instance on devices that are not concurrent, and that `chosen` wants.
template <class Chosen>
Result<void> await_streams(Context& context, Chosen chosen) {
  std::vector<uint64_t> handles;
  uint64_t handle = 0;
  const auto see = [&](const Object& object) {
    handle = 0;
    if (&object.context() != &context || object.type() != Type::kStream) return;
    const auto& stream = static_cast<const Stream&>(object);
    if (is_exclusive(stream.device()) && chosen(stream.order_key())) handle = object.handle();
  };
  for (uint32_t slot = 0; handles::see_next(&slot, see);) {
    if (handle != 0) handles.push_back(handle);
  }
  for (const uint64_t each : handles) {
    const Ref<Stream> stream = acquire<Stream>(platform::thread_record(), each);
    if (stream) GPUMEM_TRY(await_stream(*stream));  // else it was released meanwhile
  }
  return {};
}

Result<void> await_released_streams(Context& context) {
  for (const auto& device : Devices::of(context)) {
    if (!is_exclusive(*device)) continue;
    GPUMEM_TRY(device->usable());
    GPUMEM_TRY(device->backend().await_released_streams());
  }
  return {};
}

Result<void> await_cpu_access(Context& context, ManagedState& state) {
  // Wait first for streams that still attach it, then for the one that it is attached to.
  for (;;) {
    const ManagedState::Waits waits = state.waits();
    if (waits.streams.empty() && !waits.ended) break;
    GPUMEM_TRY(await_streams(context, [&](StreamKey key) {
      return std::find(waits.streams.begin(), waits.streams.end(), key) != waits.streams.end();
    }));
    if (waits.ended) GPUMEM_TRY(await_released_streams(context));
    // A fence may report late.
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  const Association held = state.settled();
  if (held.attach == GPUMEM_ATTACH_HOST) return {};
  if (held.attach == GPUMEM_ATTACH_SINGLE)
    return await_streams(context, [&](StreamKey key) { return key == held.stream; });
  GPUMEM_TRY(await_streams(context, [](StreamKey) { return true; }));
  return await_released_streams(context);
}

}  // namespace

bool needs_no_guard(Context& context, const void* pointer) noexcept {
  if (Devices::of(context).has_exclusive() || backend::HostFunctionMark::is_set()) return false;
  const RegionRange* const range = context.page_map().find(address_of(pointer));
  if (range == nullptr) return false;
  const Region& region = region_of(*range);
  return region.traits().managed && region.live() && address_of(pointer) - range->base < region.size();
}

Result<void> begin_host_access(Context& context, const void* pointer) {
  auto found = find_own(context, pointer);
  if (!found) return found.error();
  GPUMEM_TRY(outside_host_function());
  if (!Devices::of(context).has_exclusive()) return {};
  ManagedState& state = *found->region->managed();
  if (!Callback::runs_here()) {
    const platform::Waiting waiting;
    state.begin_access();
  } else {
    while (!state.try_begin_access()) {
      GPUMEM_TRY(uses_will_end(*found->region));
      std::this_thread::yield();
    }
  }
  Cleanup undo([&] { state.end_access(); });
  GPUMEM_TRY(await_cpu_access(context, state));
  undo.dismiss();
  return {};
}

Result<void> end_host_access(Context& context, const void* pointer) {
  auto found = find_own(context, pointer);
  if (!found) return found.error();
  if (!Devices::of(context).has_exclusive()) return {};  // nothing was counted
  if (found->region->managed()->end_access()) return {};
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "no access to the managed memory at %p has begun; call gpumem_managed_begin_host_access() first",
      pointer);
}

}  // namespace gpumem::core
