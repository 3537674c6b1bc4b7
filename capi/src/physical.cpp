// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/physical.h"

#include "call.h"
#include "core/memory/mapping.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "decode/vmm.h"
#include "gpumem/physical.h"

using namespace gpumem;

gpumem_status gpumem_physical_get_granularity(gpumem_device device, const gpumem_physical_desc* desc,
                                              uint64_t* out_minimum, uint64_t* out_recommended,
                                              gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    const gpumem_physical_desc given = decode.input(desc, "desc");
    const backend::PhysicalRequest request = capi::decode_physical(decode, object.get(), given);
    (void)decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto unit = core::physical_granularity(*object, request);
    if (!unit) return unit.error();
    if (out_minimum != nullptr) *out_minimum = unit->minimum;
    if (out_recommended != nullptr) *out_recommended = unit->recommended;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_create(gpumem_device device, const gpumem_physical_desc* desc,
                                     gpumem_physical* out_physical, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_physical, "out_physical");
    const gpumem_physical_desc given = decode.input(desc, "desc");
    const backend::PhysicalRequest request = capi::decode_physical(decode, object.get(), given);
    decode.size(given.size);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_physical(*object, request, std::move(name));
    if (!handle) return handle.error();
    *out_physical = capi::make_handle<gpumem_physical>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_release(gpumem_physical physical, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (physical == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Physical>(physical);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_object(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_get_info(gpumem_physical physical, gpumem_physical_info* out_info,
                                       gpumem_error* error) {
  const bool answered = capi::look(error, [&](uint32_t process) {
    const core::Physical* const known = capi::peek<core::Physical>(physical, process);
    if (known == nullptr || !capi::has_own_size(out_info)) return false;
    *out_info = known->info();
    return true;
  });
  if (answered) return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Physical>(physical);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_retain(gpumem_instance instance, const void* pointer,
                                     gpumem_physical* out_physical, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.not_null(out_physical, "out_physical");
    GPUMEM_TRY(decode.done());
    auto handle = core::retain_physical(object->context(), pointer);
    if (!handle) return handle.error();
    *out_physical = capi::make_handle<gpumem_physical>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_export_fd(gpumem_physical physical, int32_t* out_fd, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Physical>(physical);
    decode.not_null(out_fd, "out_fd");
    GPUMEM_TRY(decode.done());
    auto made = core::export_physical(*object);
    if (!made) return made.error();
    *out_fd = *made;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_import_fd(gpumem_device device, const gpumem_physical_desc* desc, int32_t fd,
                                        gpumem_physical* out_physical, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_physical, "out_physical");
    const gpumem_physical_desc given = decode.input(desc, "desc");
    const backend::PhysicalRequest request = capi::decode_physical(decode, object.get(), given);
    decode.size(given.size);
    if (fd < 0) decode.refuse("the file descriptor is %d", fd);
    if ((given.require | given.prefer) != 0) {
      decode.refuse("require and prefer must be 0; the memory has the properties that it was created with");
    }
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::import_physical(*object, request, fd, std::move(name));
    if (!handle) return handle.error();
    *out_physical = capi::make_handle<gpumem_physical>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_export_fabric(gpumem_physical physical, gpumem_fabric_handle* out_handle,
                                            gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Physical>(physical);
    decode.not_null(out_handle, "out_handle");
    GPUMEM_TRY(decode.done());
    auto handle = core::export_fabric(*object);
    if (!handle) return handle.error();
    *out_handle = *handle;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_physical_import_fabric(gpumem_device device, const gpumem_physical_desc* desc,
                                            const gpumem_fabric_handle* handle, gpumem_physical* out_physical,
                                            gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(handle, "handle");
    decode.not_null(out_physical, "out_physical");
    const gpumem_physical_desc given = decode.input(desc, "desc");
    const backend::PhysicalRequest request = capi::decode_physical(decode, object.get(), given);
    decode.size(given.size);
    if ((given.require | given.prefer) != 0) {
      decode.refuse("require and prefer must be 0; the memory has the properties that it was created with");
    }
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto made = core::import_fabric(*object, request, *handle, std::move(name));
    if (!made) return made.error();
    *out_physical = capi::make_handle<gpumem_physical>(*made);
    return GPUMEM_SUCCESS;
  });
}
