// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/transport.h"

#include "call.h"
#include "core/object/context.h"
#include "decode/share.h"
#include "gpumem/share.h"

using namespace gpumem;

gpumem_status gpumem_share_send(gpumem_instance instance, const gpumem_share_handle* handle,
                                int32_t socket_fd, const gpumem_send_desc* desc, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    auto sent = capi::decode_share(decode, handle);
    const gpumem_send_desc given = decode.optional_input(desc, "desc");
    GPUMEM_TRY(decode.done());
    if (!sent) return sent.error();
    GPUMEM_TRY(core::send_handle(object->context(), *sent, socket_fd, given.lease_ns, given.timeout_ns));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_receive(gpumem_instance instance, int32_t socket_fd, uint64_t timeout_ns,
                                   gpumem_share_handle* out_handle, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_handle, "out_handle");
    GPUMEM_TRY(decode.done());
    core::ShareHandle handle;
    auto received = core::receive_handle(object->context(), socket_fd, timeout_ns, &handle);
    if (!received || *received != GPUMEM_SUCCESS) return received;
    *out_handle = core::encode(handle);
    return GPUMEM_SUCCESS;
  });
}
