// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stand-ins until the functions are written; goes away.
#include "gpumem/gpumem.h"

gpumem_status gpumem_share_send(gpumem_instance, const gpumem_share_handle*, int32_t, const gpumem_send_desc*,
                                gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_share_receive(gpumem_instance, int32_t, uint64_t, gpumem_share_handle*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_hub_open(gpumem_instance, const gpumem_hub_desc*, gpumem_hub*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_hub_close(gpumem_hub, gpumem_error*) { return GPUMEM_ERROR_UNSUPPORTED; }
gpumem_status gpumem_hub_get_info(gpumem_hub, gpumem_hub_info*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_hub_publish(gpumem_hub, const char*, const gpumem_share_handle*,
                                 const gpumem_publish_desc*, uint64_t*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_hub_withdraw(gpumem_hub, const char*, uint64_t, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_link_connect(gpumem_instance, const gpumem_link_desc*, gpumem_link*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_link_close(gpumem_link, gpumem_error*) { return GPUMEM_ERROR_UNSUPPORTED; }
gpumem_status gpumem_link_get_info(gpumem_link, gpumem_link_info*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_link_enumerate(gpumem_link, uint32_t, gpumem_entry_info*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_link_wait(gpumem_link, const char*, uint64_t, uint64_t, gpumem_entry_info*,
                               gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_link_fetch(gpumem_link, const char*, const gpumem_fetch_desc*, gpumem_share_handle*,
                                gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_link_publish(gpumem_link, const char*, const gpumem_share_handle*,
                                  const gpumem_publish_desc*, uint64_t*, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
gpumem_status gpumem_link_withdraw(gpumem_link, const char*, uint64_t, gpumem_error*) {
  return GPUMEM_ERROR_UNSUPPORTED;
}
