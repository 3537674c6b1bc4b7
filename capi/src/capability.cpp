// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/capability.h"

#include "call.h"
#include "core/device/capability.h"
#include "core/device/device.h"
#include "core/object/context.h"

using namespace gpumem;

gpumem_status gpumem_device_get_capability(gpumem_device device, gpumem_capability capability,
                                           gpumem_device peer, gpumem_capability_info* out_info,
                                           gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.output(out_info, "out_info");
    const char* name = core::capability_name(capability);
    if (name == nullptr) {
      decode.not_a_value("capability", "GPUMEM_CAPABILITY_", capability);
    }
    core::Ref<core::DeviceObject> other;
    if (core::is_peer_capability(capability)) {
      if (peer == nullptr)
        decode.refuse("this capability belongs to a pair of devices; pass the other one as peer");
      other = decode.object<core::DeviceObject>(peer);
      if (object && other) {
        if (&object->context() != &other->context()) {
          decode.refuse("the devices belong to different instances");
        }
        if (&object->device() == &other->device()) decode.refuse("the two devices are the same");
      }
    } else {
      if (peer != nullptr) {
        decode.refuse("this capability belongs to one device, not to a pair; query it without a peer");
      }
    }
    GPUMEM_TRY(decode.done());
    auto found = object->device().ask_capability(capability, other ? &other->device() : nullptr);
    if (!found) return found.error();
    gpumem_capability_info info = GPUMEM_CAPABILITY_INFO_INIT;
    info.capability = capability;
    info.type = found->type;
    info.value = found->value;
    info.source = found->source;
    info.status = found->status;
    info.native_domain = found->native_domain;
    info.native_code = found->native_code;
    capi::copy_text(info.name, name);
    capi::copy_text(info.reason, found->reason);
    capi::answer(out_info, info);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_capability_enumerate(uint32_t index, gpumem_capability* out_capability,
                                          gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.not_null(out_capability, "out_capability");
    GPUMEM_TRY(decode.done());
    const gpumem_capability capability = core::capability_at(index);
    if (capability == 0)
      return make_error(GPUMEM_ERROR_NOT_FOUND, "index %u is past the end of the list", index);
    *out_capability = capability;
    return GPUMEM_SUCCESS;
  });
}
