// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/pointer.h"

#include <chrono>
#include <thread>

#include "base/arithmetic.h"
#include "core/memory/range.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "platform/pages.h"
#include "platform/thread.h"

namespace gpumem::core {
namespace {

bool is_readable(const void* address) { return platform::readable(address, 1); }

// What the mapping of the process allows.
gpumem_access mapped_access(const void* address) {
  if (platform::writable(address, 1)) return GPUMEM_ACCESS_READWRITE;
  return is_readable(address) ? GPUMEM_ACCESS_READ : GPUMEM_ACCESS_NONE;
}

// What is mapped at an offset in a range, or null.
const Mapping* mapping_at(const Region& range, uint64_t offset) {
  const Mapping* const mapping = static_cast<const Range&>(range).mappings().find(offset);
  return mapping == nullptr || mapping->leaving() ? nullptr : mapping;
}

// VMM-16; nobody has access where nothing is mapped.
gpumem_access access_in_range(const Region& range, uint64_t offset, const Device* processor) {
  const Mapping* const mapping = mapping_at(range, offset);
  return mapping != nullptr ? mapping->access_of(processor) : GPUMEM_ACCESS_NONE;
}

gpumem_access cpu_access(const Region& region, uint64_t offset) {
  // Do not probe managed memory: that would move the page, and the CPU may touch it at any time.
  if (region.traits().managed && !Devices::of(region.context()).has_exclusive())
    return GPUMEM_ACCESS_READWRITE;
  if (region.facts().host_pointer != nullptr)
    return mapped_access(advance(region.facts().host_pointer, offset));
  // This needs no driver call in either backend.
  const backend::Capability can = region.device().capability(GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS);
  return can.value == GPUMEM_ANSWER_YES ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE;
}

}  // namespace

void detail::look_after_release(Context& context, const void* pointer, bool passing, FoundRegion* found) {
  if (backend::HostFunctionMark::is_set()) return;
  const platform::CancellationHeld held;
  while (found->releasing) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    *found = look_up(context, pointer, passing);
  }
}

bool is_of_another_instance(const Context& context, const void* pointer) noexcept {
  bool found = false;
  const auto see = [&](const Object& object) {
    if (object.type() != Type::kInstance) return;  // a device does not hold its instance
    Context& other = object.context();
    found = &other != &context && other.page_map().find(address_of(pointer)) != nullptr;
  };
  for (uint32_t slot = 0; !found && handles::see_next(&slot, see);) {
  }
  return found;
}

Error nothing_at(const Context& context, const void* pointer, const FoundRegion& found) {
  const char* why = "has no memory of this instance; it may be freed already";
  if (found.in_pool) {
    why = "is in a pool, but in no live block of it";
  } else if (found.released) {
    why = "has memory that another thread is freeing";
  } else if (is_of_another_instance(context, pointer)) {
    why = "is memory of another instance of this process; make the call there";
  }
  return make_error(GPUMEM_ERROR_NOT_FOUND, "%p %s", pointer, why);
}

Result<backend::PointerFacts> find_foreign(Context& context, const void* pointer) {
  GPUMEM_TRY(outside_host_function());
  auto facts = context.backend().pointer_facts(pointer);
  if (!facts || !facts->known || facts->base == nullptr || facts->base == pointer) return facts;
  // Do not trust the driver about the bytes granted beyond the size of our allocation.
  const FoundRegion owner = find_region(context, facts->base);
  if (owner.region || owner.covered) return backend::PointerFacts();
  return facts;
}

Result<gpumem_pointer_info> pointer_info(Context& context, const void* pointer) {
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  {
    const platform::Look look(platform::thread_record());
    if (own_pointer_info(context.page_map(), pointer, &info)) return info;
  }
  info.location_id = -1;
  info.device_ordinal = -1;
  if (!find_region(context, pointer).covered) {
    auto facts = find_foreign(context, pointer);
    if (!facts) return facts.error();
    if (facts->known) {
      info.kind = kinds::foreign.kind;
      info.location = facts->location;
      info.location_id = facts->location_id;
      info.device_ordinal = facts->device_ordinal;
      info.host_pointer = facts->host_pointer;
      info.device_pointer = facts->device_pointer;
      info.base = facts->base;
      info.size = facts->size;
      info.buffer_id = facts->buffer_id;
      return info;
    }
  }
  if (!is_readable(pointer)) return info;
  info.kind = kinds::pageable.kind;
  info.location = GPUMEM_LOCATION_HOST;
  info.host_pointer = const_cast<void*>(pointer);
  for (const auto& device : Devices::of(context)) {
    if (device->capability(GPUMEM_CAPABILITY_PAGEABLE).value != GPUMEM_ANSWER_YES) continue;
    info.device_pointer = const_cast<void*>(pointer);
  }
  return info;
}

Result<gpumem_access> pointer_access(Context& context, const void* pointer, Device* device) {
  const FoundRegion found = find_region(context, pointer);
  if (found.region && found.region->in_parts()) return access_in_range(*found.region, found.offset, device);
  if (found.region)
    return device != nullptr ? found.region->access_of(*device) : cpu_access(*found.region, found.offset);
  if (!found.covered) {
    auto facts = find_foreign(context, pointer);
    if (!facts) return facts.error();
    if (facts->known) return GPUMEM_ACCESS_UNKNOWN;
  }
  if (device != nullptr && device->capability(GPUMEM_CAPABILITY_PAGEABLE).value != GPUMEM_ANSWER_YES) {
    return GPUMEM_ACCESS_NONE;
  }
  return mapped_access(pointer);
}

Result<void*> device_pointer(DeviceObject& device_object, const void* pointer) {
  Device& device = device_object.device();
  Context& context = device_object.context();
  const FoundRegion found = find_region(context, pointer);
  if (found.region && found.region->in_parts()) {
    if (mapping_at(*found.region, found.offset) != nullptr) return const_cast<void*>(pointer);
    return not_mapped(static_cast<const Range&>(*found.region), found.offset, "the address",
                      GPUMEM_ERROR_NOT_FOUND);
  }
  if (found.region) {
    const Region& region = *found.region;
    GPUMEM_TRY(region.reachable_by(device, false));
    // Answer from the map, because all capabilities of a lost device are NO (COM-18).
    if (!region.traits().on_device && !region.traits().managed && device.usable())
      GPUMEM_TRY(device.need(GPUMEM_CAPABILITY_PIN_MAP_HOST));
    return advance(region.facts().device_pointer, found.offset);
  }
  if (!found.covered) {
    auto facts = find_foreign(context, pointer);
    if (!facts) return facts.error();
    if (facts->known) return device.backend().foreign_device_pointer(pointer);
  }
  if (!is_readable(pointer)) return nothing_at(context, pointer, found);
  if (const auto reached = device.need(GPUMEM_CAPABILITY_PAGEABLE); !reached) {
    if (found.covered || is_of_another_instance(context, pointer))
      return reworded(reached.error(), "%s", nothing_at(context, pointer, found).message);
    return reworded(reached.error(),
                    "%p is ordinary memory, which has no device pointer; register it with "
                    "gpumem_memory_register(): %s",
                    pointer, reached.error().message);
  }
  return const_cast<void*>(pointer);
}

}  // namespace gpumem::core
