// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/pointer.h"

#include <iterator>

#include "base/arithmetic.h"
#include "platform/thread_record.h"

namespace gpumem::cuda {

Outcome find_device_pointer(const Driver& cu, const void* pointer, CUdeviceptr* out) {
  const platform::Question question(platform::thread_record(), pointer);
  if (!question.allowed()) return {CUDA_ERROR_INVALID_VALUE, cu.MemHostGetDevicePointer.name};
  return cu.MemHostGetDevicePointer(out, const_cast<void*>(pointer), 0);
}

// The plural form returns nulls for unknown addresses, where the singular one fails, and is faster.
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
  const platform::Question question(platform::thread_record(), pointer);
  if (!question.allowed()) return backend::PointerFacts();
  const auto ask = [&] {
    return device.check(
        device.cu().PointerGetAttributes(std::size(attributes), attributes, values, address_of(pointer)),
        Place::kHost, "cannot query the driver about %p", pointer);
  };
  GPUMEM_TRY(ask());

  backend::PointerFacts facts;
  const bool host = type == CU_MEMORYTYPE_HOST;
  if (!host && type != CU_MEMORYTYPE_DEVICE && managed == 0) return facts;
  if (host && device_pointer == 0) {
    // Without a current context the driver returns no device pointer.
    Scope scope(device);
    GPUMEM_TRY(scope.entered());
    GPUMEM_TRY(ask());
  }
  facts.known = true;
  if (managed != 0) {
    facts.location = GPUMEM_LOCATION_NONE;  // it moves
  } else {
    facts.location = host ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE;
  }
  facts.device_ordinal = ordinal >= 0 ? ordinal : -1;
  if (facts.location == GPUMEM_LOCATION_DEVICE) facts.location_id = facts.device_ordinal;
  facts.host_pointer = host_pointer;
  // Device memory has the same address everywhere, but the driver returns it only to devices with access.
  const bool of_device = facts.location == GPUMEM_LOCATION_DEVICE;
  facts.device_pointer = of_device ? const_cast<void*>(pointer) : pointer_to(device_pointer);
  facts.base = pointer_to(base);
  facts.size = size;
  facts.buffer_id = buffer_id;
  return facts;
}

}  // namespace gpumem::cuda
