// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/span.h"

#include <cinttypes>

#include "base/arithmetic.h"
#include "core/object/context.h"
#include "platform/pages.h"
#include "platform/thread.h"

namespace gpumem::core {

using namespace detail;

Error closed_span(const char* what) {
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "%s is in a buffer that is asleep, or is being put to sleep, woken or moved; use it once "
                    "that has ended and the buffer is awake",
                    what);
}

Error detail::leaves_object(const SpanRequest& request, const KindTraits& kind, uint64_t offset,
                            uint64_t object_size) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "%s extends over %" PRIu64 " bytes from offset %" PRIu64
                    ", but the %s memory there has %" PRIu64 " bytes",
                    request.what, request.size, offset, kind.name, object_size);
}

Result<void> detail::check_in_block(const SpanRequest& request, const Region& region, uint64_t offset) {
  PoolBlocks::Block block;
  const uint64_t address = region.address() + offset;
  // Freed since it was found.
  if (!region.pool_blocks()->find(address, &block)) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "%s is in a pool, but in no live block of it", request.what);
  }
  if (request.size > block.base + block.size - address)
    return leaves_object(request, kinds::pool, address - block.base, block.size);
  return {};
}

namespace {

// Checks only the pages of the first and last byte, often the same or adjacent. Between the rows of a
// rectangle, pages may be unmapped.
bool both_ends(const void* address, uint64_t size, bool (*ask)(const void*, uint64_t)) {
  const uint64_t last = address_of(address) + size - 1;
  const bool one_page = ((address_of(address) ^ last) & ~(platform::page_size() - 1)) == 0;
  return ask(address, 1) && (one_page || ask(pointer_to(last), 1));
}

Result<void> foreign_span(Context& context, const SpanRequest& request, const backend::PointerFacts& facts,
                          FoundSpan* out) {
  if (facts.base != nullptr && facts.size != 0) {
    const uint64_t offset = address_of(request.address) - address_of(facts.base);
    if (offset >= facts.size || request.size > facts.size - offset) {
      return leaves_object(request, kinds::foreign, offset, facts.size);
    }
  }
  out->kind = &kinds::foreign;
  out->span.address = const_cast<void*>(request.address);
  out->span.on_device = facts.location == GPUMEM_LOCATION_DEVICE;
  if (facts.device_ordinal >= 0) {
    out->device = &Devices::of(context)[static_cast<size_t>(facts.device_ordinal)];
  }
  return {};
}

Result<void> pageable_span(const Context& context, const SpanRequest& request, FoundSpan* out) {
  const bool writes = request.use == Use::kWrites;
  const bool writable = writes && both_ends(request.address, request.size, platform::writable);
  if (!writable && !both_ends(request.address, request.size, platform::readable)) {
    if (is_of_another_instance(context, request.address)) {
      return make_error(GPUMEM_ERROR_NOT_FOUND,
                        "%s, %" PRIu64
                        " bytes at %p, is memory of another instance of this process; make the "
                        "call there, or copy through host memory",
                        request.what, request.size, request.address);
    }
    return make_error(GPUMEM_ERROR_NOT_FOUND, "%s, %" PRIu64 " bytes at %p, is not %s memory", request.what,
                      request.size, request.address, writes ? "writable" : "readable");
  }
  out->span.address = const_cast<void*>(request.address);
  out->span.pageable = true;
  out->read_only = writes && !writable;
  return {};
}

}  // namespace

Result<void> detail::find_other_span(Context& context, const SpanRequest& request, const FoundRegion& own,
                                     FoundSpan* out) {
  const platform::CancellationHeld held;  // the driver is asked, or the system
  if (own.in_pool) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "%s is in a pool, but in no live block of it", request.what);
  }
  if (own.covered && own.released) {
    return make_error(GPUMEM_ERROR_NOT_FOUND, "%s is being freed by another thread", request.what);
  }
  if (!own.covered) {
    auto facts = find_foreign(context, request.address);
    if (!facts) return facts.error();
    if (facts->known) return foreign_span(context, request, *facts, out);
  }
  {
    // Ignore a region that was created at the first byte after the lookup: the call may count as earlier.
    const auto runs_into_region = [&] {
      const platform::Look look(platform::thread_record());
      const RegionRange* const next = context.page_map().find_live(address_of(request.address), request.size);
      return next != nullptr && next->begin > address_of(request.address);
    };
    // If the first byte is unmapped, what follows does not matter (COM-17).
    if (runs_into_region() && platform::readable(request.address, 1)) {
      return make_error(
          GPUMEM_ERROR_INVALID_ARGUMENT,
          "%s begins in ordinary memory and extends into memory of this instance; split the operation there",
          request.what);
    }
  }
  return pageable_span(context, request, out);
}

}  // namespace gpumem::core
