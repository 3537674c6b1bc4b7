// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/ring.h"

#include "call.h"

using namespace gpumem;

namespace {

gpumem_status not_yet(const char* function, gpumem_error* error) {
  return capi::call(function, error, [](capi::Decoder&) -> Result<Status> {
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "rings are not built yet");
  });
}

}  // namespace

gpumem_status gpumem_ring_create(gpumem_device, const gpumem_ring_desc*, gpumem_ring*, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_export(gpumem_ring, gpumem_share_handle*, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_open(gpumem_instance, const gpumem_share_handle*, const gpumem_ring_open_desc*,
                               gpumem_ring*, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_acquire(gpumem_ring, gpumem_stream, uint64_t, gpumem_ring_slot*,
                                  gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_publish(gpumem_ring, gpumem_stream, uint64_t, uint64_t, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_wait(gpumem_ring, gpumem_stream, uint64_t, gpumem_ring_slot*, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_release(gpumem_ring, gpumem_stream, uint64_t, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_finish(gpumem_ring, uint64_t, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_get_info(gpumem_ring, gpumem_ring_info*, gpumem_error* error) {
  return not_yet(__func__, error);
}
gpumem_status gpumem_ring_destroy(gpumem_ring, gpumem_error* error) { return not_yet(__func__, error); }
