// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/mapping.h"

#include "base/arithmetic.h"
#include "core/memory/physical.h"
#include "core/memory/pointer.h"
#include "core/memory/range.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"

namespace gpumem::core {
namespace {

// A mapping, and the range that keeps it.
struct FoundMapping {
  Ref<Range> range;
  uint64_t offset = 0;
  const Mapping* mapping = nullptr;
};

Result<void> find_mapping(Context& context, const void* pointer, FoundMapping* out) {
  FoundRegion found = find_region(context, pointer);
  if (!found.region) return nothing_at(context, pointer, found);
  if (!found.region->in_parts()) {
    return make_error(GPUMEM_ERROR_WRONG_KIND, "the memory at %p is %s memory, and not in a range", pointer,
                      found.region->traits().name);
  }
  out->range = std::move(found.region).as<Range>();
  out->offset = found.offset;
  out->mapping = out->range->mappings().find(found.offset);
  if (out->mapping != nullptr && !out->mapping->leaving()) return {};
  return not_mapped(*out->range, found.offset);
}

}  // namespace

Result<gpumem_mapping_info> mapping_info(Context& context, const void* pointer) {
  FoundMapping found;
  GPUMEM_TRY(find_mapping(context, pointer, &found));
  const Mapping& mapping = *found.mapping;
  gpumem_mapping_info info = GPUMEM_MAPPING_INFO_INIT;
  info.range = reinterpret_cast<gpumem_range>(pointer_to(found.range->handle()));
  info.base = pointer_to(found.range->address() + mapping.offset);
  info.size = mapping.size;
  info.block_id = mapping.facts.block_id;
  info.location = mapping.facts.location;
  info.location_id = mapping.facts.location_id;
  return info;
}

Result<uint64_t> retain_physical(Context& context, const void* pointer) {
  FoundMapping found;
  GPUMEM_TRY(find_mapping(context, pointer, &found));
  GPUMEM_TRY(found.mapping->device.usable());
  GPUMEM_TRY(outside_host_function());
  const auto open = context.stay_open();
  if (!open) return open.error();
  return make_physical(found.range->shared_context(), found.mapping->device, {},
                       [&]() -> Result<std::unique_ptr<backend::Physical>> {
                         const HeldMapping held(*found.range, *found.mapping);
                         if (!held.holds())
                           return make_error(GPUMEM_ERROR_INVALID_STATE, "another thread unmaps the block");
                         return found.range->reservation().retain(found.mapping->offset,
                                                                  found.mapping->facts);
                       });
}

}  // namespace gpumem::core
