// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/table.h"

#include "call.h"

using namespace gpumem;

namespace {

const gpumem_table kTable = {
    sizeof(gpumem_table),
    gpumem_version,
    gpumem_version_text,
    gpumem_feature_supported,
    gpumem_status_name,
    gpumem_status_get_info,
    gpumem_status_enumerate,
    gpumem_log_set_function,
    gpumem_instance_probe,
    gpumem_instance_open,
    gpumem_instance_close,
    gpumem_instance_default,
    gpumem_instance_get_info,
    gpumem_device_get,
    gpumem_device_get_info,
    gpumem_device_get_memory,
    gpumem_device_can_access_peer,
    gpumem_device_enable_peer_access,
    gpumem_device_disable_peer_access,
    gpumem_device_get_capability,
    gpumem_capability_enumerate,
    gpumem_memory_create,
    gpumem_memory_register,
    gpumem_memory_destroy,
    gpumem_memory_get_info,
    gpumem_malloc,
    gpumem_free,
    gpumem_register,
    gpumem_unregister,
    gpumem_pointer_get_info,
    gpumem_pointer_get_access,
    gpumem_pointer_get_device_pointer,
    gpumem_copy,
    gpumem_copy_async,
    gpumem_copy_2d,
    gpumem_copy_2d_async,
    gpumem_copy_regions,
    gpumem_copy_regions_async,
    gpumem_fill,
    gpumem_fill_async,
    gpumem_fill_2d,
    gpumem_fill_2d_async,
    gpumem_stream_create,
    gpumem_stream_wrap,
    gpumem_stream_destroy,
    gpumem_stream_get_info,
    gpumem_stream_query,
    gpumem_stream_synchronize,
    gpumem_stream_wait_event,
    gpumem_stream_launch_host_function,
    gpumem_stream_write_value,
    gpumem_stream_wait_value,
    gpumem_event_create,
    gpumem_event_wrap,
    gpumem_event_destroy,
    gpumem_event_get_info,
    gpumem_event_record,
    gpumem_event_query,
    gpumem_event_synchronize,
    gpumem_event_get_elapsed_time,
    gpumem_stats_get,
    gpumem_stats_get_kind,
    gpumem_stats_reset_peaks,
    gpumem_stats_report,
    gpumem_host_launch,
    gpumem_host_kernel_view,
    gpumem_host_native_stream_create,
    gpumem_host_native_stream_destroy,
    gpumem_host_stream_set_capturing,
    gpumem_host_device_lose,
    gpumem_host_fail_step,
    gpumem_host_foreign_alloc,
    gpumem_host_foreign_free,
    gpumem_host_foreign_peer_access,
    gpumem_host_set_current_device,
};

}  // namespace

gpumem_status gpumem_table_get(uint32_t version, gpumem_table* out_table, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.not_null(out_table, "out_table");
    const size_t size = out_table != nullptr ? out_table->struct_size : 0;
    decode.require(out_table == nullptr || (size % sizeof(void*) == 0 && size >= 2 * sizeof(void*) &&
                                            size <= capi::kStructSizeMax),
                   "out_table->struct_size is %zu, which is no size of this table", size);
    GPUMEM_TRY(decode.done());
    if (version >> 22 != GPUMEM_VERSION_MAJOR) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "the caller was written for major version %u, this library is %d", version >> 22,
                        GPUMEM_VERSION_MAJOR);
    }
    // A newer caller knows more functions; those it finds empty.
    if (size > sizeof(gpumem_table)) {
      std::memset(reinterpret_cast<char*>(out_table) + sizeof(gpumem_table), 0, size - sizeof(gpumem_table));
    }
    capi::answer(out_table, kTable);
    return GPUMEM_SUCCESS;
  });
}
