// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The table of functions. The binding calls through Native; the table tells whether a library has everything.

using System;
using System.Runtime.InteropServices;

#pragma warning disable 1591, 0649 // The C headers describe each field; the library fills them.

namespace GpuMem.Interop
{
  [StructLayout(LayoutKind.Sequential)]
  public struct gpumem_table
  {
    public UIntPtr struct_size;
    public IntPtr gpumem_version;
    public IntPtr gpumem_version_text;
    public IntPtr gpumem_feature_supported;
    public IntPtr gpumem_error_init;
    public IntPtr gpumem_status_info_init;
    public IntPtr gpumem_status_name;
    public IntPtr gpumem_status_get_info;
    public IntPtr gpumem_status_enumerate;
    public IntPtr gpumem_log_set_function;
    public IntPtr gpumem_probe_info_init;
    public IntPtr gpumem_instance_probe;
    public IntPtr gpumem_host_options_init;
    public IntPtr gpumem_instance_desc_init;
    public IntPtr gpumem_instance_open;
    public IntPtr gpumem_instance_close;
    public IntPtr gpumem_instance_default;
    public IntPtr gpumem_instance_info_init;
    public IntPtr gpumem_instance_get_info;
    public IntPtr gpumem_device_get;
    public IntPtr gpumem_device_info_init;
    public IntPtr gpumem_device_get_info;
    public IntPtr gpumem_device_get_memory;
    public IntPtr gpumem_device_can_access_peer;
    public IntPtr gpumem_device_enable_peer_access;
    public IntPtr gpumem_device_disable_peer_access;
    public IntPtr gpumem_capability_info_init;
    public IntPtr gpumem_device_get_capability;
    public IntPtr gpumem_capability_enumerate;
    public IntPtr gpumem_memory_desc_init;
    public IntPtr gpumem_memory_create;
    public IntPtr gpumem_memory_destroy;
    public IntPtr gpumem_memory_info_init;
    public IntPtr gpumem_memory_get_info;
    public IntPtr gpumem_malloc;
    public IntPtr gpumem_free;
    public IntPtr gpumem_register;
    public IntPtr gpumem_unregister;
    public IntPtr gpumem_pointer_info_init;
    public IntPtr gpumem_pointer_get_info;
    public IntPtr gpumem_pointer_get_device_pointer;
    public IntPtr gpumem_stream_desc_init;
    public IntPtr gpumem_stream_create;
    public IntPtr gpumem_stream_wrap;
    public IntPtr gpumem_stream_destroy;
    public IntPtr gpumem_stream_info_init;
    public IntPtr gpumem_stream_get_info;
    public IntPtr gpumem_stream_query;
    public IntPtr gpumem_stream_synchronize;
    public IntPtr gpumem_stream_wait_event;
    public IntPtr gpumem_stream_launch_host_function;
    public IntPtr gpumem_stream_write_value;
    public IntPtr gpumem_stream_wait_value;
    public IntPtr gpumem_event_desc_init;
    public IntPtr gpumem_event_create;
    public IntPtr gpumem_event_wrap;
    public IntPtr gpumem_event_destroy;
    public IntPtr gpumem_event_info_init;
    public IntPtr gpumem_event_get_info;
    public IntPtr gpumem_event_record;
    public IntPtr gpumem_event_query;
    public IntPtr gpumem_event_synchronize;
    public IntPtr gpumem_event_get_elapsed_time;
    public IntPtr gpumem_copy_options_init;
    public IntPtr gpumem_copy;
    public IntPtr gpumem_copy_2d;
    public IntPtr gpumem_fill;
    public IntPtr gpumem_fill_2d;
    public IntPtr gpumem_stats_init;
    public IntPtr gpumem_stats_get;
    public IntPtr gpumem_stats_reset_peaks;
    public IntPtr gpumem_stats_report;
    public IntPtr gpumem_host_launch;
    public IntPtr gpumem_host_kernel_view;
    public IntPtr gpumem_host_native_stream_create;
    public IntPtr gpumem_host_native_stream_destroy;
    public IntPtr gpumem_host_stream_set_capturing;
    public IntPtr gpumem_host_device_lose;
    public IntPtr gpumem_host_fail_step;
    public IntPtr gpumem_host_foreign_alloc;
    public IntPtr gpumem_host_foreign_free;
    public IntPtr gpumem_host_foreign_peer_access;
    public IntPtr gpumem_host_set_current_device;
  }
}
