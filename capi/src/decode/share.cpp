// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "share.h"

namespace gpumem::capi {

core::ImportRequest decode_import(Decoder& decode, const gpumem_import_desc& given,
                                  const core::Object* object, core::Ref<core::DeviceObject>* device) {
  if (given.device != nullptr) {
    *device = decode.object<core::DeviceObject>(given.device);
    if (*device && object != nullptr && &(*device)->context() != &object->context())
      decode.refuse("the device is one of another instance");
  }
  require_access(decode, given.access);
  decode.flags(given.flags, GPUMEM_IMPORT_UNVERIFIED, "GPUMEM_IMPORT_");
  if (given.reserved != 0) decode.refuse("desc->reserved is not 0");
  core::ImportRequest request;
  request.name = decode.name(given.name);
  request.device = device->get();
  request.access = given.access;
  request.unverified = (given.flags & GPUMEM_IMPORT_UNVERIFIED) != 0;
  request.address = const_cast<void*>(given.address);
  request.timeout_ns = given.timeout_ns != 0 ? given.timeout_ns : kAnswerTimeout;
  return request;
}

}  // namespace gpumem::capi
