// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is at an address? Pointer queries, and the search for the region of an address that other calls begin
// with.
#pragma once

#include "contract/backend.h"
#include "core/handles.h"
#include "core/region.h"

namespace gpumem::core {

class DeviceObject;

// Where an address was found.
struct FoundRegion {
  Ref<Region> region;     // empty if no live region of the instance has it
  uint64_t base = 0;      // first byte of the region, by host or device address as it was asked
  uint64_t offset = 0;    // below the size of the region
  bool covered = false;   // no live region, but addresses that a driver must not be asked about
  bool released = false;  // such as are being freed; not those of a registration, whose bytes stay
};

// No driver call. A passing use is one that ends with the call.
FoundRegion find_region(Instance& instance, const void* pointer, bool passing = false);

// What the driver knows of an address that no region has. Refused in a host function.
Result<backend::PointerFacts> find_foreign(Instance& instance, const void* pointer);

// gpumem_pointer_get_info() for memory of the instance: writes the answer, or answers false. Takes no lock.
bool own_pointer_info(Instance& instance, const void* pointer, gpumem_pointer_info* out) noexcept;
// The same for any address.
Result<gpumem_pointer_info> pointer_info(Instance& instance, const void* pointer);
// What a device, or the CPU if `device` is null, may do at an address.
Result<gpumem_access> pointer_access(Instance& instance, const void* pointer, Device* device);
Result<void*> device_pointer(DeviceObject& device, const void* pointer);

}  // namespace gpumem::core
