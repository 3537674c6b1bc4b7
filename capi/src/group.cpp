// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/group.h"

#include "call.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "decode/sleep.h"
#include "gpumem/group.h"

using namespace gpumem;

gpumem_status gpumem_group_create(gpumem_instance instance, const gpumem_group_desc* desc,
                                  gpumem_group* out_group, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_group, "out_group");
    const gpumem_group_desc given = decode.optional_input(desc, "desc");
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_group(object->shared_context(), std::move(name));
    if (!handle) return handle.error();
    *out_group = capi::make_handle<gpumem_group>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_group_destroy(gpumem_group group, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (group == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Group>(group);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_object(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_group_get_info(gpumem_group group, const char* tag, gpumem_group_info* out_info,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Group>(group);
    decode.output(out_info, "out_info");
    const std::string wanted = [&] {
      const auto part = decode.inside("tag");
      return decode.name(tag);
    }();
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->info(wanted));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_group_sleep(gpumem_group group, const gpumem_sleep_desc* desc, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Group>(group);
    const capi::DecodedSleep sleep =
        capi::decode_sleep(decode, object ? &object->context() : nullptr, desc, true);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->sleep(sleep.tag, sleep.request));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_group_wake(gpumem_group group, const gpumem_wake_desc* desc, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Group>(group);
    const capi::DecodedWake wake = capi::decode_wake(decode, desc, true);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->wake(wake.tag, wake.request));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_group_prepare(gpumem_group group, const gpumem_prepare_desc* desc, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Group>(group);
    const capi::DecodedPrepare prepare = capi::decode_prepare(decode, desc, true);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->prepare(prepare.tag, prepare.store, prepare.bytes_per_second));
    return GPUMEM_SUCCESS;
  });
}
