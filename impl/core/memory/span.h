// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The bytes that a copy, fill or value operation names, found and checked.
#pragma once

#include <utility>

#include "base/arithmetic.h"
#include "contract/memory.h"
#include "core/memory/kind.h"
#include "core/memory/pointer.h"

namespace gpumem::core {

enum class Use { kReads, kWrites };

// Bytes of one object, with what keeps them while work on them is enqueued.
struct FoundSpan {
  backend::Span span;
  const KindTraits* kind = &kinds::pageable;
  Ref<Region> region;        // of this instance, or empty
  Region* owner = nullptr;   // the same, also where the caller holds it
  ManagedWork work;          // keeps the CPU off managed memory
  Device* device = nullptr;  // of the memory; null for ordinary memory. Means nothing in a range
  bool read_only = false;    // known only if it was to be written
};

// What find_span() is asked for.
struct SpanRequest {
  const void* address = nullptr;
  Region* region = nullptr;  // instead of an address, and the caller holds it
  uint64_t offset = 0;       // in `region`
  uint64_t size = 0;
  const char* what = "";  // in messages
  Use use = Use::kReads;
  bool passing = false;  // the work ends before the call returns
};

// NOT_FOUND if nothing is there, INVALID_ARGUMENT if the bytes leave their object (UVA-8): a matter of bounds
// for the order of failures. `out` is written on success.
inline Result<void> find_span(Context& context, const SpanRequest& request, FoundSpan* out);

// INVALID_STATE: a buffer has closed its memory. Check closed() only while using the region.
[[gnu::cold, gnu::noinline]] Error closed_span(const char* what);
inline Result<void> check_open(const FoundSpan& found, const char* what) {
  if (found.owner == nullptr || !found.owner->closed()) [[likely]]
    return {};
  return closed_span(what);
}

// ---- the path for memory of the instance, inline because every copy takes it ----

namespace detail {

Error leaves_object(const SpanRequest& request, const KindTraits& kind, uint64_t offset,
                    uint64_t object_size);

// INVALID_ARGUMENT if the bytes leave their block of a pool.
Result<void> check_in_block(const SpanRequest& request, const Region& region, uint64_t offset);

inline Result<void> span_of(const SpanRequest& request, Region& region, uint64_t offset, FoundSpan* out) {
  const KindTraits& kind = region.traits();
  if (offset > region.size() || request.size > region.size() - offset) {
    return leaves_object(request, kind, offset, region.size());
  }
  out->kind = &kind;
  out->span.memory = &region.backend();
  out->span.offset = offset;
  out->span.address = pointer_to(region.address() + offset);
  out->span.on_device = kind.on_device;
  out->span.registered = kind.registered;
  out->span.managed = kind.managed;
  out->owner = &region;
  out->span.in_range = kind.in_parts;
  if (request.use == Use::kWrites) out->read_only = region.has(GPUMEM_MEMORY_READ_ONLY);
  out->device = &region.device();
  return {};
}

// Where no live region has the address. `covered` and `released` as in FoundRegion.
Result<void> find_other_span(Context& context, const SpanRequest& request, const FoundRegion& own,
                             FoundSpan* out);

}  // namespace detail

inline Result<void> find_span(Context& context, const SpanRequest& request, FoundSpan* out) {
  if (request.region != nullptr) {
    GPUMEM_TRY(detail::span_of(request, *request.region, request.offset, out));
    if (request.passing) {
      out->region =
          Ref<Region>(request.region, platform::Use(platform::thread_record(), request.region, true));
    }
    return {};
  }
  FoundRegion own = find_region(context, request.address, request.passing);
  if (!own.region) [[unlikely]]
    return detail::find_other_span(context, request, own, out);
  if (own.region->pool_blocks() != nullptr) [[unlikely]]
    GPUMEM_TRY(detail::check_in_block(request, *own.region, own.offset));
  GPUMEM_TRY(detail::span_of(request, *own.region, own.offset, out));
  out->region = std::move(own.region);
  return {};
}

}  // namespace gpumem::core
