// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/pointer.h"

#include "call.h"
#include "core/instance.h"
#include "core/operand.h"

using namespace gpumem;

void gpumem_pointer_info_init(gpumem_pointer_info* out_info) {
  if (out_info != nullptr) *out_info = GPUMEM_POINTER_INFO_INIT;
}

gpumem_status gpumem_pointer_get_info(gpumem_instance instance, const void* pointer,
                                      gpumem_pointer_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    auto info = core::pointer_info(object->instance(), pointer);
    if (!info) return info.error();
    capi::answer(out_info, *info);
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
