// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/pointer.h"

#include "call.h"
#include "core/instance/instance.h"
#include "core/memory/pointer.h"

using namespace gpumem;

// GCC clears a struct of 96 bytes or more with `rep stos`, which would cost each query, and each caller's
// initialiser, 14 of 41 ns.
static_assert(sizeof(gpumem_pointer_info) <= 88);

namespace {

// Out of line, because its frame would slow down the short way.
[[gnu::noinline]] gpumem_status get_info(const char* function, gpumem_instance instance, const void* pointer,
                                         gpumem_pointer_info* out_info, gpumem_error* error) {
  return capi::call(function, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    auto info = core::pointer_info(object->context(), pointer);
    if (!info) return info.error();
    capi::answer(out_info, *info);
    return GPUMEM_SUCCESS;
  });
}

}  // namespace

gpumem_status gpumem_pointer_get_info(gpumem_instance instance, const void* pointer,
                                      gpumem_pointer_info* out_info, gpumem_error* error) {
  const bool answered = capi::look(error, [&](uint32_t process) {
    const core::InstanceObject* const known = capi::peek<core::InstanceObject>(instance, process);
    if (known == nullptr || pointer == nullptr || !capi::has_own_size(out_info)) return false;
    return core::own_pointer_info(core::Instance::of(known->context()).page_map(), pointer, out_info);
  });
  if (answered) [[likely]]
    return GPUMEM_SUCCESS;
  return get_info(__func__, instance, pointer, out_info, error);
}

gpumem_status gpumem_pointer_get_access(gpumem_instance instance, const void* pointer,
                                        gpumem_location location, int32_t location_id,
                                        gpumem_access* out_access, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.not_null(out_access, "out_access");
    const bool device = location == GPUMEM_LOCATION_DEVICE;
    if (!device && location != GPUMEM_LOCATION_HOST) {
      decode.not_a_value("the location", "GPUMEM_LOCATION_", location,
                         "GPUMEM_LOCATION_DEVICE or GPUMEM_LOCATION_HOST");
    }
    if (location == GPUMEM_LOCATION_HOST && location_id != 0 && location_id != -1) {
      decode.refuse("location_id is %d; it must be 0 or -1 for the CPU", location_id);
    }
    if (object && device) {
      const size_t count = core::Devices::of(object->context()).size();
      if (location_id < 0 || static_cast<size_t>(location_id) >= count) {
        decode.refuse("there is no device %d; the instance has %zu devices, numbered from 0", location_id,
                      count);
      }
    }
    GPUMEM_TRY(decode.done());
    core::Context& opened = object->context();
    auto access = core::pointer_access(
        opened, pointer, device ? &core::Devices::of(opened)[static_cast<size_t>(location_id)] : nullptr);
    if (!access) return access.error();
    *out_access = *access;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pointer_get_device_pointer(gpumem_device device, const void* pointer,
                                                void** out_device_pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(pointer, "pointer");
    decode.not_null(out_device_pointer, "out_device_pointer");
    GPUMEM_TRY(decode.done());
    auto address = core::device_pointer(*object, pointer);
    if (!address) return address.error();
    *out_device_pointer = *address;
    return GPUMEM_SUCCESS;
  });
}
