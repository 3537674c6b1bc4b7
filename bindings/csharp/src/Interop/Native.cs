// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The functions of the C interface, under their C names. One declaration serves every target: all parameters are
// blittable, so that a call needs no marshalling, and an entry point is bound when it is first called.

using System;
using System.Runtime.InteropServices;

#pragma warning disable 1591 // The C headers describe each function.

namespace GpuMem.Interop
{
  /// <summary>
  /// The C interface as it is. Call <see cref="GpuMemLibrary.Load"/> before, and in another method: some runtimes bind
  /// an entry point when they compile the method that calls it.
  /// </summary>
  public static unsafe partial class Native
  {
    /// <summary>The name that the library is asked for by.</summary>
    public const string Library = GpuMemLibrary.FileName;

    // version.h
#if NET8_0_OR_GREATER
    [SuppressGCTransition]
#endif
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern uint gpumem_version();
#if NET8_0_OR_GREATER
    [SuppressGCTransition]
#endif
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern IntPtr gpumem_version_text();
#if NET8_0_OR_GREATER
    [SuppressGCTransition]
#endif
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_feature_supported(int feature);

    // status.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_error_init(gpumem_error* out_error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_status_info_init(gpumem_status_info* out_info);
#if NET8_0_OR_GREATER
    [SuppressGCTransition]
#endif
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern IntPtr gpumem_status_name(int status);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_status_get_info(int status, gpumem_status_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_status_enumerate(uint index, int* out_status, gpumem_error* error);

    // log.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_log_set_function(
        IntPtr function, IntPtr user_data, int max_level, gpumem_error* error);

    // instance.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_probe_info_init(gpumem_probe_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_instance_probe(int backend, gpumem_probe_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_host_options_init(gpumem_host_options* out_options);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_instance_desc_init(gpumem_instance_desc* out_desc);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_instance_open(
        gpumem_instance_desc* desc, IntPtr* out_instance, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_instance_close(
        IntPtr instance, int mode, ulong* out_destroyed, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_instance_default(IntPtr* out_instance, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_instance_info_init(gpumem_instance_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_instance_get_info(
        IntPtr instance, gpumem_instance_info* out_info, gpumem_error* error);

    // device.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_device_get(IntPtr instance, uint ordinal, IntPtr* out_device, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_device_info_init(gpumem_device_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_device_get_info(IntPtr device, gpumem_device_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_device_get_memory(
        IntPtr device, ulong* out_free, ulong* out_total, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_device_can_access_peer(
        IntPtr device, IntPtr peer, uint* out_possible, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_device_enable_peer_access(IntPtr device, IntPtr peer, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_device_disable_peer_access(IntPtr device, IntPtr peer, gpumem_error* error);

    // capability.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_capability_info_init(gpumem_capability_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_device_get_capability(
        IntPtr device, int capability, IntPtr peer, gpumem_capability_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_capability_enumerate(uint index, int* out_capability, gpumem_error* error);

    // memory.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_memory_desc_init(gpumem_memory_desc* out_desc);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_memory_create(
        IntPtr device, gpumem_memory_desc* desc, IntPtr* out_memory, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_memory_destroy(IntPtr memory, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_memory_info_init(gpumem_memory_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_memory_get_info(IntPtr memory, gpumem_memory_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_malloc(
        IntPtr device, int kind, ulong size, IntPtr* out_pointer, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_free(IntPtr instance, IntPtr pointer, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_register(
        IntPtr device, IntPtr pointer, ulong size, ulong require, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_unregister(IntPtr instance, IntPtr pointer, gpumem_error* error);

    // pointer.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_pointer_info_init(gpumem_pointer_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_pointer_get_info(
        IntPtr instance, IntPtr pointer, gpumem_pointer_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_pointer_get_device_pointer(
        IntPtr device, IntPtr pointer, IntPtr* out_device_pointer, gpumem_error* error);

    // copy.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_copy_options_init(gpumem_copy_options* out_options);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_copy(
        IntPtr instance, IntPtr stream, IntPtr destination, IntPtr source, ulong size, gpumem_copy_options* options,
        gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_copy_2d(
        IntPtr instance, IntPtr stream, IntPtr destination, ulong destination_pitch, IntPtr source,
        ulong source_pitch, ulong width, ulong height, gpumem_copy_options* options, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_fill(
        IntPtr instance, IntPtr stream, IntPtr destination, ulong size, uint value, uint value_size,
        gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_fill_2d(
        IntPtr instance, IntPtr stream, IntPtr destination, ulong pitch, ulong width, ulong height, uint value,
        uint value_size, gpumem_error* error);

    // stream.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_stream_desc_init(gpumem_stream_desc* out_desc);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_create(
        IntPtr device, gpumem_stream_desc* desc, IntPtr* out_stream, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_wrap(
        IntPtr device, IntPtr native_stream, IntPtr* out_stream, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_destroy(IntPtr stream, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_stream_info_init(gpumem_stream_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_get_info(IntPtr stream, gpumem_stream_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_query(IntPtr stream, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_synchronize(IntPtr stream, ulong timeout_ns, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_wait_event(IntPtr stream, IntPtr @event, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_launch_host_function(
        IntPtr stream, IntPtr function, IntPtr user_data, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_write_value(
        IntPtr stream, IntPtr address, ulong value, uint value_size, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stream_wait_value(
        IntPtr stream, IntPtr address, ulong value, uint value_size, int condition, gpumem_error* error);

    // event.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_event_desc_init(gpumem_event_desc* out_desc);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_create(
        IntPtr device, gpumem_event_desc* desc, IntPtr* out_event, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_wrap(
        IntPtr device, IntPtr native_event, uint flags, IntPtr* out_event, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_destroy(IntPtr @event, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_event_info_init(gpumem_event_info* out_info);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_get_info(IntPtr @event, gpumem_event_info* out_info, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_record(IntPtr @event, IntPtr stream, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_query(IntPtr @event, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_synchronize(IntPtr @event, ulong timeout_ns, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_event_get_elapsed_time(
        IntPtr start, IntPtr end, float* out_milliseconds, gpumem_error* error);

    // stats.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern void gpumem_stats_init(gpumem_stats* out_stats);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stats_get(IntPtr instance, gpumem_stats* out_stats, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stats_reset_peaks(IntPtr instance, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_stats_report(
        IntPtr instance, IntPtr buffer, ulong capacity, ulong* out_required, gpumem_error* error);

    // host.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_launch(IntPtr stream, IntPtr function, IntPtr user_data, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_kernel_view(
        IntPtr kernel, IntPtr address, ulong size, int access, IntPtr* out_view, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_native_stream_create(
        IntPtr device, IntPtr* out_native_stream, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_native_stream_destroy(
        IntPtr device, IntPtr native_stream, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_stream_set_capturing(IntPtr stream, uint capturing, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_device_lose(IntPtr device, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_fail_step(IntPtr instance, ulong step, uint repeat, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_foreign_alloc(
        IntPtr device, int kind, ulong size, IntPtr* out_pointer, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_foreign_free(IntPtr device, IntPtr pointer, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_foreign_peer_access(
        IntPtr device, IntPtr peer, uint enabled, gpumem_error* error);
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_host_set_current_device(int ordinal, int* out_previous, gpumem_error* error);

    // table.h
    [DllImport(Library, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]
    public static extern int gpumem_table_get(uint version, gpumem_table* out_table, gpumem_error* error);
  }
}
