// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pointer queries, and the lookup of an address's region with which other calls begin.
#pragma once

#include "base/arithmetic.h"
#include "contract/backend.h"
#include "core/memory/range.h"
#include "core/memory/region.h"
#include "core/object/context.h"
#include "core/object/handles.h"

namespace gpumem::core {

class DeviceObject;

// Where an address was found.
struct FoundRegion {
  Ref<Region> region;      // empty if no live region of the instance has it
  uint64_t base = 0;       // first byte of the region, by host or device address as it was asked
  uint64_t offset = 0;     // below the size of the region
  bool covered = false;    // no live region, but the driver must not be asked about the address
  bool released = false;   // being freed; not set for a registration, whose bytes stay
  bool releasing = false;  // perhaps already in other hands
  bool in_pool = false;    // of a pool, but not in a live block
};

namespace detail {

inline FoundRegion look_up(Context& context, const void* pointer, bool passing) {
  FoundRegion found;
  platform::ThreadRecord& record = platform::thread_record();
  const platform::Look look(record);
  const RegionRange* const range = context.page_map().find(address_of(pointer));
  if (range == nullptr) return found;
  Region* const region = &region_of(*range);
  platform::Use use(record, region, passing);
  // Check after announcing the use, so that a release either waits for this use or is seen here.
  if (!region->live()) {
    found.covered = true;
    found.released = !region->traits().registered;
    found.releasing = found.released && region->releasing();
    return found;
  }
  found.base = range->base;
  found.offset = address_of(pointer) - range->base;
  if (found.offset >= region->size()) {
    found.covered = true;  // granted beyond the requested size
    return found;
  }
  if (const PoolBlocks* const blocks = region->pool_blocks()) [[unlikely]] {
    PoolBlocks::Block block;
    if (!blocks->find(region->address() + found.offset, &block)) {
      found.covered = found.in_pool = true;
      return found;
    }
  }
  found.region = Ref<Region>(region, std::move(use));
  return found;
}

// Looks again until the release is over, because only then the owner of the address is known. Gives up in a
// host function, for which the release may wait.
void look_after_release(Context& context, const void* pointer, bool passing, FoundRegion* found);

}  // namespace detail

// No driver call. A passing use is one that ends with the call. Inline for the sake of find_span().
inline FoundRegion find_region(Context& context, const void* pointer, bool passing = false) {
  FoundRegion found = detail::look_up(context, pointer, passing);
  if (found.releasing) [[unlikely]]
    detail::look_after_release(context, pointer, passing, &found);
  return found;
}

// Whether another instance of this process has it. For messages: it goes through all objects.
bool is_of_another_instance(const Context& context, const void* pointer) noexcept;
// NOT_FOUND, and why no live memory of the instance has an address.
Error nothing_at(const Context& context, const void* pointer, const FoundRegion& found);

// What the driver knows of an address outside all regions. Refused in a host function.
Result<backend::PointerFacts> find_foreign(Context& context, const void* pointer);

// What is not the same everywhere in a range.
inline void describe_part(const Range& range, uint64_t offset, gpumem_pointer_info* out) noexcept {
  const Mapping* const mapping = range.mappings().find(offset);
  if (mapping == nullptr || mapping->leaving()) return;
  void* const address = pointer_to(range.address() + offset);
  out->location = mapping->facts.location;
  out->location_id = mapping->facts.location_id;
  out->device_ordinal = mapping->device_ordinal;
  out->device_pointer = address;
  if (mapping->access_of(nullptr) != GPUMEM_ACCESS_NONE) out->host_pointer = address;
}

inline void* advance(void* base, uint64_t offset) {
  return base == nullptr ? nullptr : pointer_to(address_of(base) + offset);
}

// gpumem_pointer_get_info() for memory of the instance; false if the address is of no region. Takes no lock.
// Needs a Look. Inline, because a call would cost more than the lookup.
[[gnu::always_inline]] inline bool own_pointer_info(const PageMap& map, const void* pointer,
                                                    gpumem_pointer_info* out) noexcept {
  const RegionRange* const range = map.find(address_of(pointer));
  if (range == nullptr) return false;
  const Region& region = region_of(*range);
  const uint64_t offset = address_of(pointer) - range->base;
  if (!region.live() || offset >= region.size()) return false;
  const PoolBlocks* const blocks = region.pool_blocks();
  PoolBlocks::Block block;
  if (blocks != nullptr && !blocks->find(region.address() + offset, &block)) return false;
  *out = region.info();
  out->buffer = reinterpret_cast<gpumem_buffer>(pointer_to(region.buffer()));
  if (region.in_parts()) {
    describe_part(static_cast<const Range&>(region), offset, out);
  } else {
    out->host_pointer = advance(region.info().host_pointer, offset);
    out->device_pointer = advance(region.info().device_pointer, offset);
  }
  if (blocks != nullptr) {
    out->kind = kinds::pool.kind;
    out->base = pointer_to(address_of(pointer) - (region.address() + offset - block.base));
    out->size = block.size;
    out->memory = nullptr;
  } else {
    out->base = pointer_to(range->base);
  }
  return true;
}
// gpumem_pointer_get_info() for any address.
Result<gpumem_pointer_info> pointer_info(Context& context, const void* pointer);
// What a device, or the CPU if `device` is null, may do at an address.
Result<gpumem_access> pointer_access(Context& context, const void* pointer, Device* device);
Result<void*> device_pointer(DeviceObject& device, const void* pointer);

}  // namespace gpumem::core
