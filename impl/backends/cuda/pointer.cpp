// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/pointer.h"

#include <iterator>
#include <map>
#include <mutex>

#include "base/arithmetic.h"

namespace gpumem::cuda {
namespace {

struct UsedPart {
  void* memory;
  uint64_t size;
};

// Of all instances; never destroyed.
struct UsedParts {
  std::mutex mutex;
  std::map<uint64_t, UsedPart> by_allocation;
};

UsedParts& used_parts() {
  static auto* const only = new UsedParts;
  return *only;
}

// Narrows what the driver knows to what a memory of ours uses; false if the address lies beside it.
bool narrow(backend::PointerFacts& facts, const void* pointer) {
  const std::lock_guard lock(used_parts().mutex);
  const auto found = used_parts().by_allocation.find(address_of(facts.base));
  if (found == used_parts().by_allocation.end()) return true;
  facts.base = found->second.memory;
  facts.size = found->second.size;
  return address_of(pointer) - address_of(facts.base) < facts.size;
}

}  // namespace

void note_used_part(uint64_t allocation, const void* memory, uint64_t size) {
  const std::lock_guard lock(used_parts().mutex);
  used_parts().by_allocation[allocation] = {const_cast<void*>(memory), size};
}

void forget_used_part(uint64_t allocation) {
  const std::lock_guard lock(used_parts().mutex);
  used_parts().by_allocation.erase(allocation);
}

// The plural form: it gives nulls for strangers, where the singular one fails, and is faster.
Result<backend::PointerFacts> pointer_facts(Device& device, const void* pointer) {
  CUmemorytype type{};
  CUdeviceptr device_pointer = 0;
  void* host_pointer = nullptr;
  unsigned managed = 0;
  int ordinal = -1;
  CUdeviceptr base = 0;
  size_t size = 0;
  unsigned long long buffer_id = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_HOST_POINTER,   CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&type, &device_pointer, &host_pointer, &managed, &ordinal, &base, &size, &buffer_id};
  // Without a current context the driver tells no device pointer.
  Scope scope(device);
  GPUMEM_TRY(scope.entered());
  GPUMEM_TRY(device.check(
      device.cu().PointerGetAttributes(std::size(attributes), attributes, values, address_of(pointer)),
      Place::kHost, "the driver does not tell what %p is", pointer));

  backend::PointerFacts facts;
  const bool host = type == CU_MEMORYTYPE_HOST;
  if (!host && type != CU_MEMORYTYPE_DEVICE && managed == 0) return facts;
  facts.kind = GPUMEM_KIND_FOREIGN;
  if (managed != 0) {
    facts.location = GPUMEM_LOCATION_NONE;  // it moves
  } else {
    facts.location = host ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE;
  }
  facts.device_ordinal = ordinal >= 0 ? ordinal : -1;
  if (facts.location == GPUMEM_LOCATION_DEVICE) facts.location_id = facts.device_ordinal;
  facts.host_pointer = host_pointer;
  // Memory of a device has one address for all; the driver tells it only to devices with access.
  const bool of_device = facts.location == GPUMEM_LOCATION_DEVICE;
  facts.device_pointer = of_device ? const_cast<void*>(pointer) : pointer_to(device_pointer);
  facts.base = pointer_to(base);
  facts.size = size;
  facts.buffer_id = buffer_id;
  return narrow(facts, pointer) ? facts : backend::PointerFacts();
}

}  // namespace gpumem::cuda
