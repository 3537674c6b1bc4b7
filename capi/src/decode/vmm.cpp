// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "vmm.h"

#include "core/object/context.h"
#include "gpumem/range.h"

namespace gpumem::capi {

backend::PhysicalRequest decode_physical(Decoder& decode, const core::DeviceObject* device,
                                         const gpumem_physical_desc& desc) {
  backend::PhysicalRequest request;
  request.location = desc.location != 0 ? desc.location : GPUMEM_LOCATION_DEVICE;
  const bool on_node = request.location == GPUMEM_LOCATION_HOST_NUMA;
  if (request.location < GPUMEM_LOCATION_DEVICE || request.location > GPUMEM_LOCATION_HOST_NUMA) {
    decode.not_a_value("the location", "GPUMEM_LOCATION_", desc.location,
                       "GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_HOST or GPUMEM_LOCATION_HOST_NUMA");
  }
  if (!on_node && desc.location_id != 0) {
    decode.refuse("location_id is %d; without GPUMEM_LOCATION_HOST_NUMA it must be 0%s", desc.location_id,
                  device != nullptr ? ", because the device is that of the call" : "");
  }
  request.numa_node = on_node ? desc.location_id : -1;
  constexpr gpumem_handle_types kTypes = GPUMEM_HANDLE_TYPE_POSIX_FD | GPUMEM_HANDLE_TYPE_FABRIC;
  if ((desc.handle_types & ~kTypes) != 0) {
    decode.refuse("the handle types 0x%llx are no GPUMEM_HANDLE_TYPE_ values",
                  static_cast<unsigned long long>(desc.handle_types & ~kTypes));
  }
  if (request.location == GPUMEM_LOCATION_HOST && desc.handle_types != 0) {
    decode.refuse(
        "memory of GPUMEM_LOCATION_HOST has no handle types; use GPUMEM_LOCATION_HOST_NUMA, with the node in "
        "location_id");
  }
  constexpr gpumem_physical_flags kFlags =
      GPUMEM_PHYSICAL_COMPRESSIBLE | GPUMEM_PHYSICAL_RDMA | GPUMEM_PHYSICAL_HW_DECOMPRESS;
  if (((desc.require | desc.prefer) & ~kFlags) != 0) {
    decode.refuse("the flags 0x%llx are no GPUMEM_PHYSICAL_ values",
                  static_cast<unsigned long long>((desc.require | desc.prefer) & ~kFlags));
  }
  request.size = desc.size;
  request.handle_types = desc.handle_types;
  request.require = desc.require;
  request.prefer = desc.prefer & ~desc.require;
  return request;
}

namespace {

core::AccessRequest decode_access(Decoder& decode, core::Context* instance, const gpumem_access_desc& given) {
  core::AccessRequest request;
  request.access = given.access;
  if (given.access != GPUMEM_ACCESS_NONE && given.access != GPUMEM_ACCESS_READ &&
      given.access != GPUMEM_ACCESS_READWRITE) {
    decode.not_a_value("the access", "GPUMEM_ACCESS_", given.access,
                       "GPUMEM_ACCESS_NONE, GPUMEM_ACCESS_READ or GPUMEM_ACCESS_READWRITE");
  }
  if (given.reserved != 0) decode.refuse("reserved must be 0");
  if (given.location == GPUMEM_LOCATION_HOST) {
    if (given.location_id != 0)
      decode.refuse("location_id is %d; for the CPU it must be 0", given.location_id);
    return request;
  }
  if (given.location != GPUMEM_LOCATION_DEVICE) {
    decode.not_a_value("the location", "GPUMEM_LOCATION_", given.location,
                       "GPUMEM_LOCATION_DEVICE or GPUMEM_LOCATION_HOST");
    return request;
  }
  if (instance == nullptr) return request;
  const size_t devices = core::Devices::of(*instance).size();
  if (given.location_id < 0 || static_cast<size_t>(given.location_id) >= devices) {
    decode.refuse("there is no device %d; the instance has %zu devices, numbered from 0", given.location_id,
                  devices);
    return request;
  }
  request.device = &core::Devices::of(*instance)[static_cast<size_t>(given.location_id)];
  return request;
}

}  // namespace

void decode_array(Decoder& decode, const void* first, uint64_t count, uint64_t stride, const char* name) {
  decode.not_null(first, name);
  if (count == 0) decode.refuse("count is 0; pass at least one of %s", name);
  uint64_t bytes = 0;
  if (!multiply(stride, count, &bytes) || add_wraps(address_of(first), bytes)) {
    decode.refuse("an array of %llu %s wraps around the address space",
                  static_cast<unsigned long long>(count), name);
  }
}

std::vector<core::AccessRequest> decode_accesses(Decoder& decode, core::Context* instance,
                                                 const gpumem_access_desc* accesses, uint64_t count) {
  const size_t stride = accesses != nullptr ? accesses->struct_size : 0;
  decode_array(decode, accesses, count, stride, "accesses");
  std::vector<core::AccessRequest> result;
  for (uint64_t index = 0; accesses != nullptr && index < count; ++index) {
    const auto* const entry = reinterpret_cast<const gpumem_access_desc*>(
        reinterpret_cast<const unsigned char*>(accesses) + index * stride);
    const auto inside = decode.inside("accesses", index);
    // Check this first: with another size, the rest of the entry may lie behind the end of the array.
    if (entry->struct_size != stride) {
      decode.refuse("struct_size is %zu, but that of the first entry is %zu", entry->struct_size, stride);
      return result;
    }
    const gpumem_access_desc given = decode.input(entry, "the entry");
    if (stride % alignof(gpumem_access_desc) != 0) decode.refuse("struct_size is %zu, which is odd", stride);
    const core::AccessRequest request = decode_access(decode, instance, given);
    if (!decode.done()) return result;
    for (const core::AccessRequest& other : result) {
      if (other.device == request.device && instance != nullptr) {
        decode.refuse("the processor is named twice");
        return result;
      }
    }
    result.push_back(request);
  }
  return result;
}

}  // namespace gpumem::capi
