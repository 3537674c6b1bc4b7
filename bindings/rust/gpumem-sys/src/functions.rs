// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The functions, in the order of the C interface's function table.

use core::ffi::c_void;

use crate::types::*;

macro_rules! functions {
    ($($(#[$meta:meta])* $pointer:ident, $name:ident(
        $($parameter:ident: $type:ty),* $(,)?
    ) $(-> $result:ty)?;)*) => {
        $(
            #[doc = concat!("Type of `", stringify!($name), "()`.")]
            pub type $pointer = unsafe extern "C" fn($($parameter: $type),*) $(-> $result)?;
        )*

        /// Every function of the library except `gpumem_table_get()`. `None` is a function that the library in
        /// use does not have.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct gpumem_table {
            /// Size of this struct.
            pub struct_size: usize,
            $($(#[$meta])* pub $name: Option<$pointer>,)*
        }

        impl Default for gpumem_table {
            fn default() -> Self {
                Self { struct_size: core::mem::size_of::<Self>(), $($name: None,)* }
            }
        }

        /// The functions of the library that this crate is linked with.
        #[cfg(feature = "link")]
        pub(crate) mod link {
            use super::*;

            extern "C" {
                $($(#[$meta])* pub fn $name($($parameter: $type),*) $(-> $result)?;)*
                /// Fills a table with the functions of the library in use.
                pub fn gpumem_table_get(
                    version: u32,
                    out_table: *mut gpumem_table,
                    error: *mut gpumem_error,
                ) -> gpumem_status;
            }

            /// That each function has the type that the table says; never called.
            #[allow(dead_code)]
            fn assert_types() -> (gpumem_table, PFN_gpumem_table_get) {
                let table =
                    gpumem_table { struct_size: core::mem::size_of::<gpumem_table>(), $($name: Some($name),)* };
                (table, gpumem_table_get)
            }
        }

        #[cfg(feature = "load")]
        impl crate::Library {
            $(
                $(#[$meta])*
                ///
                /// # Errors
                /// If the library in use does not have the function.
                #[inline]
                pub fn $name(&self) -> Result<$pointer, crate::MissingSymbol> {
                    match self.table().$name {
                        Some(function) => Ok(function),
                        None => Err(crate::MissingSymbol::new(stringify!($name))),
                    }
                }
            )*
        }

        #[cfg(test)]
        pub(crate) fn describe_functions(lines: &mut std::vec::Vec<std::string::String>) {
            let probe = gpumem_table::default();
            let start = core::ptr::addr_of!(probe) as usize;
            crate::layout::describe_struct::<gpumem_table>(lines, "gpumem_table");
            let size = core::mem::size_of_val(&probe.struct_size);
            let offset = core::ptr::addr_of!(probe.struct_size) as usize - start;
            crate::layout::describe_field(lines, "gpumem_table.struct_size", offset, size);
            $(
                let offset = core::ptr::addr_of!(probe.$name) as usize - start;
                let size = core::mem::size_of_val(&probe.$name);
                crate::layout::describe_field(lines, concat!("gpumem_table.", stringify!($name)), offset, size);
                lines.push(std::format!("function {}", stringify!($name)));
            )*
            lines.push(std::format!("function {}", "gpumem_table_get"));
        }
    };
}

/// Type of `gpumem_table_get()`.
pub type PFN_gpumem_table_get = unsafe extern "C" fn(
    version: u32,
    out_table: *mut gpumem_table,
    error: *mut gpumem_error,
) -> gpumem_status;

functions! {
    /// Version of the library in use, as `GPUMEM_MAKE_VERSION`(crate::GPUMEM_MAKE_VERSION) makes it.
    PFN_gpumem_version, gpumem_version() -> u32;
    /// Version of the library in use, as text.
    PFN_gpumem_version_text, gpumem_version_text() -> *const c_char;
    /// Whether this build of the library contains a feature. It says nothing of drivers and
    /// devices: for those ask `gpumem_instance_probe()` and `gpumem_device_get_capability()`.
    PFN_gpumem_feature_supported, gpumem_feature_supported(feature: gpumem_feature) -> i32;
    /// Sets up a gpumem_error as [`Default`] does; for languages that cannot use macros.
    PFN_gpumem_error_init, gpumem_error_init(out_error: *mut gpumem_error);
    /// Sets up a gpumem_status_info as [`Default`] does.
    PFN_gpumem_status_info_init, gpumem_status_info_init(out_info: *mut gpumem_status_info);
    /// Name of a status code, such as `"GPUMEM_ERROR_BUSY"`.
    PFN_gpumem_status_name, gpumem_status_name(status: gpumem_status) -> *const c_char;
    /// Name, cause and remedy of a status code.
    PFN_gpumem_status_get_info, gpumem_status_get_info(
        status: gpumem_status,
        out_info: *mut gpumem_status_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// The status codes of this version, one after the other, for programs that list them.
    PFN_gpumem_status_enumerate, gpumem_status_enumerate(
        index: u32,
        out_status: *mut gpumem_status,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets the function that receives messages, for the whole process. The library prints nothing
    /// by itself. When the call returns, the former function is not running and will not be called
    /// again.
    PFN_gpumem_log_set_function, gpumem_log_set_function(
        function: gpumem_log_function,
        user_data: *mut c_void,
        max_level: gpumem_log_level,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_probe_info as [`Default`] does.
    PFN_gpumem_probe_info_init, gpumem_probe_info_init(out_info: *mut gpumem_probe_info);
    /// Finds out whether a backend can be opened here, without opening it. A failure is not
    /// remembered: the next probe or open looks again.
    PFN_gpumem_instance_probe, gpumem_instance_probe(
        backend: gpumem_backend,
        out_info: *mut gpumem_probe_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_host_options as [`Default`] does.
    PFN_gpumem_host_options_init, gpumem_host_options_init(out_options: *mut gpumem_host_options);
    /// Sets up a gpumem_instance_desc as [`Default`] does.
    PFN_gpumem_instance_desc_init, gpumem_instance_desc_init(out_desc: *mut gpumem_instance_desc);
    /// Opens a backend. Several instances of one or of different backends may live side by side.
    PFN_gpumem_instance_open, gpumem_instance_open(
        desc: *const gpumem_instance_desc,
        out_instance: *mut gpumem_instance,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Closes an instance. Afterwards every call with it or with a handle made through it fails
    /// with `GPUMEM_ERROR_CLOSED`.
    PFN_gpumem_instance_close, gpumem_instance_close(
        instance: gpumem_instance,
        mode: gpumem_close_mode,
        out_destroyed: *mut u64,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// The one instance of the process for people and plug-ins that want one without asking. The
    /// first call opens it as the environment says: `GPUMEM_BACKEND` (`any`, `cuda`, `host`),
    /// `GPUMEM_PIN_BUDGET` (bytes) and the variables of gpumem_host_options. In a process with
    /// raised privileges the environment is ignored. A failed open is not remembered. A forked
    /// child gets its own.
    PFN_gpumem_instance_default, gpumem_instance_default(
        out_instance: *mut gpumem_instance,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_instance_info as [`Default`] does.
    PFN_gpumem_instance_info_init, gpumem_instance_info_init(out_info: *mut gpumem_instance_info);
    /// What is known about an open instance.
    PFN_gpumem_instance_get_info, gpumem_instance_get_info(
        instance: gpumem_instance,
        out_info: *mut gpumem_instance_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Finds a device. The handle lives as long as its instance and is the same at each call.
    PFN_gpumem_device_get, gpumem_device_get(
        instance: gpumem_instance,
        ordinal: u32,
        out_device: *mut gpumem_device,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_device_info as [`Default`] does.
    PFN_gpumem_device_info_init, gpumem_device_info_init(out_info: *mut gpumem_device_info);
    /// What is known about a device; also after it is lost.
    PFN_gpumem_device_get_info, gpumem_device_get_info(
        device: gpumem_device,
        out_info: *mut gpumem_device_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Free and total bytes of a device. Both are estimates: other processes change them at any
    /// time, and no promise is made that what is free can be allocated.
    PFN_gpumem_device_get_memory, gpumem_device_get_memory(
        device: gpumem_device,
        out_free: *mut u64,
        out_total: *mut u64,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Whether work of `device` can be given direct access to the memory of `peer`.
    PFN_gpumem_device_can_access_peer, gpumem_device_can_access_peer(
        device: gpumem_device,
        peer: gpumem_device,
        out_possible: *mut u32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Lets work of `device` use all device memory of `peer`, present and future, at the same
    /// addresses. One-way and counted: as many disables undo as many enables. Copies between
    /// devices need none of it.
    PFN_gpumem_device_enable_peer_access, gpumem_device_enable_peer_access(
        device: gpumem_device,
        peer: gpumem_device,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Undoes one `gpumem_device_enable_peer_access()`. The last one switches the access off,
    /// unless other code had switched it on before.
    PFN_gpumem_device_disable_peer_access, gpumem_device_disable_peer_access(
        device: gpumem_device,
        peer: gpumem_device,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_capability_info as [`Default`] does.
    PFN_gpumem_capability_info_init, gpumem_capability_info_init(out_info: *mut gpumem_capability_info);
    /// Asks what a device can do. The first question about a capability may try it; the trial
    /// leaves nothing behind and its result is kept.
    PFN_gpumem_device_get_capability, gpumem_device_get_capability(
        device: gpumem_device,
        capability: gpumem_capability,
        peer: gpumem_device,
        out_info: *mut gpumem_capability_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// The capabilities of this version, one after the other, for programs that list them.
    PFN_gpumem_capability_enumerate, gpumem_capability_enumerate(
        index: u32,
        out_capability: *mut gpumem_capability,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_memory_desc as [`Default`] does.
    PFN_gpumem_memory_desc_init, gpumem_memory_desc_init(out_desc: *mut gpumem_memory_desc);
    /// Allocates memory, or page-locks memory that exists. Fresh memory has indeterminate contents.
    PFN_gpumem_memory_create, gpumem_memory_create(
        device: gpumem_device,
        desc: *const gpumem_memory_desc,
        out_memory: *mut gpumem_memory,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Frees an allocation, or makes registered memory pageable again with its contents. All device
    /// work on the memory must have been observed complete: see "order of free" in the guide.
    PFN_gpumem_memory_destroy, gpumem_memory_destroy(
        memory: gpumem_memory,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_memory_info as [`Default`] does.
    PFN_gpumem_memory_info_init, gpumem_memory_info_init(out_info: *mut gpumem_memory_info);
    /// What is known about an allocation; no driver call, also after its device is lost.
    PFN_gpumem_memory_get_info, gpumem_memory_get_info(
        memory: gpumem_memory,
        out_info: *mut gpumem_memory_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// The two-line way to an allocation: only a pointer, with the defaults of
    /// `gpumem_memory_create()`.
    PFN_gpumem_malloc, gpumem_malloc(
        device: gpumem_device,
        kind: gpumem_kind,
        size: u64,
        out_pointer: *mut *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Frees an allocation by its pointer, however it was made here. The order of free is that of
    /// `gpumem_memory_destroy()`.
    PFN_gpumem_free, gpumem_free(
        instance: gpumem_instance,
        pointer: *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// The two-line way to page-lock memory that exists, with the rules of
    /// `gpumem_memory_create()`.
    PFN_gpumem_register, gpumem_register(
        device: gpumem_device,
        pointer: *mut c_void,
        size: u64,
        require: gpumem_memory_flags,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Makes registered memory pageable again, by the exact pointer that was registered.
    PFN_gpumem_unregister, gpumem_unregister(
        instance: gpumem_instance,
        pointer: *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_pointer_info as [`Default`] does.
    PFN_gpumem_pointer_info_init, gpumem_pointer_info_init(out_info: *mut gpumem_pointer_info);
    /// What is this pointer? Every address has an answer; an unknown one is
    /// `GPUMEM_KIND_PAGEABLE` if the CPU can read it and `GPUMEM_KIND_UNKNOWN` otherwise. For
    /// memory of the instance no driver is asked, and the answer also comes after a device was
    /// lost.
    PFN_gpumem_pointer_get_info, gpumem_pointer_get_info(
        instance: gpumem_instance,
        pointer: *const c_void,
        out_info: *mut gpumem_pointer_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Address of a byte of host memory for a device. A device pointer is returned as it is.
    PFN_gpumem_pointer_get_device_pointer, gpumem_pointer_get_device_pointer(
        device: gpumem_device,
        pointer: *const c_void,
        out_device_pointer: *mut *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_stream_desc as [`Default`] does.
    PFN_gpumem_stream_desc_init, gpumem_stream_desc_init(out_desc: *mut gpumem_stream_desc);
    /// Creates a stream. It does not wait for the device's legacy default stream, nor that one for
    /// it.
    PFN_gpumem_stream_create, gpumem_stream_create(
        device: gpumem_device,
        desc: *const gpumem_stream_desc,
        out_stream: *mut gpumem_stream,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Adopts a stream that other code made. It stays its maker's, who must keep it until the
    /// handle is destroyed.
    PFN_gpumem_stream_wrap, gpumem_stream_wrap(
        device: gpumem_device,
        native_stream: *mut c_void,
        out_stream: *mut gpumem_stream,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Destroys a stream, or lets go of an adopted one. Pending work still completes; the handle is
    /// stale at once.
    PFN_gpumem_stream_destroy, gpumem_stream_destroy(
        stream: gpumem_stream,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_stream_info as [`Default`] does.
    PFN_gpumem_stream_info_init, gpumem_stream_info_init(out_info: *mut gpumem_stream_info);
    /// What is known about a stream.
    PFN_gpumem_stream_get_info, gpumem_stream_get_info(
        stream: gpumem_stream,
        out_info: *mut gpumem_stream_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Whether all work of a stream is complete. Success is an observation with the same rights as
    /// `gpumem_stream_synchronize()`.
    PFN_gpumem_stream_query, gpumem_stream_query(
        stream: gpumem_stream,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Waits until the work that was in the stream at the call is complete.
    PFN_gpumem_stream_synchronize, gpumem_stream_synchronize(
        stream: gpumem_stream,
        timeout_ns: u64,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Lets later work of a stream wait for what an event has captured. An event that was never
    /// recorded is complete.
    PFN_gpumem_stream_wait_event, gpumem_stream_wait_event(
        stream: gpumem_stream,
        event: gpumem_event,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Runs a function on the CPU after all earlier and before all later work of a stream, on a
    /// thread that is not the caller's. It is not run if the device is lost.
    PFN_gpumem_stream_launch_host_function, gpumem_stream_launch_host_function(
        stream: gpumem_stream,
        function: gpumem_host_function,
        user_data: *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Writes a number to a word of pinned or device memory, in stream order.
    PFN_gpumem_stream_write_value, gpumem_stream_write_value(
        stream: gpumem_stream,
        address: *mut c_void,
        value: u64,
        value_size: u32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Holds a stream until a word of pinned or device memory meets a condition.
    PFN_gpumem_stream_wait_value, gpumem_stream_wait_value(
        stream: gpumem_stream,
        address: *mut c_void,
        value: u64,
        value_size: u32,
        condition: gpumem_wait_value,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_event_desc as [`Default`] does.
    PFN_gpumem_event_desc_init, gpumem_event_desc_init(out_desc: *mut gpumem_event_desc);
    /// Creates an event. Until it is recorded it counts as complete.
    PFN_gpumem_event_create, gpumem_event_create(
        device: gpumem_device,
        desc: *const gpumem_event_desc,
        out_event: *mut gpumem_event,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Adopts an event that other code made. It stays its maker's, who must keep it until the
    /// handle is destroyed.
    PFN_gpumem_event_wrap, gpumem_event_wrap(
        device: gpumem_device,
        native_event: *mut c_void,
        flags: gpumem_event_flags,
        out_event: *mut gpumem_event,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Destroys an event, or lets go of an adopted one. Work that waits for it goes on as it would
    /// have.
    PFN_gpumem_event_destroy, gpumem_event_destroy(
        event: gpumem_event,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_event_info as [`Default`] does.
    PFN_gpumem_event_info_init, gpumem_event_info_init(out_info: *mut gpumem_event_info);
    /// What is known about an event.
    PFN_gpumem_event_get_info, gpumem_event_get_info(
        event: gpumem_event,
        out_info: *mut gpumem_event_info,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Captures the work that is in a stream now; a later record replaces the capture.
    PFN_gpumem_event_record, gpumem_event_record(
        event: gpumem_event,
        stream: gpumem_stream,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Whether the work of the latest record is complete. Success is an observation with the same
    /// rights as `gpumem_event_synchronize()`.
    PFN_gpumem_event_query, gpumem_event_query(
        event: gpumem_event,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Waits until the work of the record that is the latest at the call is complete.
    PFN_gpumem_event_synchronize, gpumem_event_synchronize(
        event: gpumem_event,
        timeout_ns: u64,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Time between two recorded, complete events of one device that were made with timing.
    PFN_gpumem_event_get_elapsed_time, gpumem_event_get_elapsed_time(
        start: gpumem_event,
        end: gpumem_event,
        out_milliseconds: *mut f32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_copy_options as [`Default`] does.
    PFN_gpumem_copy_options_init, gpumem_copy_options_init(out_options: *mut gpumem_copy_options);
    /// Copies bytes.
    PFN_gpumem_copy, gpumem_copy(
        instance: gpumem_instance,
        stream: gpumem_stream,
        destination: *mut c_void,
        source: *const c_void,
        size: u64,
        options: *const gpumem_copy_options,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Copies a rectangle of bytes.
    PFN_gpumem_copy_2d, gpumem_copy_2d(
        instance: gpumem_instance,
        stream: gpumem_stream,
        destination: *mut c_void,
        destination_pitch: u64,
        source: *const c_void,
        source_pitch: u64,
        width: u64,
        height: u64,
        options: *const gpumem_copy_options,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Fills memory with a repeated number.
    PFN_gpumem_fill, gpumem_fill(
        instance: gpumem_instance,
        stream: gpumem_stream,
        destination: *mut c_void,
        size: u64,
        value: u32,
        value_size: u32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Fills a rectangle of memory with a repeated number.
    PFN_gpumem_fill_2d, gpumem_fill_2d(
        instance: gpumem_instance,
        stream: gpumem_stream,
        destination: *mut c_void,
        pitch: u64,
        width: u64,
        height: u64,
        value: u32,
        value_size: u32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets up a gpumem_stats as [`Default`] does.
    PFN_gpumem_stats_init, gpumem_stats_init(out_stats: *mut gpumem_stats);
    /// Reads the counts of an instance.
    PFN_gpumem_stats_get, gpumem_stats_get(
        instance: gpumem_instance,
        out_stats: *mut gpumem_stats,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Sets the peaks of an instance to what lives now.
    PFN_gpumem_stats_reset_peaks, gpumem_stats_reset_peaks(
        instance: gpumem_instance,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Writes a list of all that lives in an instance: a line for each object with its kind, name,
    /// size and device, or the one line "nothing lives". Call it before closing to find leaks.
    PFN_gpumem_stats_report, gpumem_stats_report(
        instance: gpumem_instance,
        buffer: *mut c_char,
        capacity: u64,
        out_required: *mut u64,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Runs a function in stream order as a kernel would run on the device.
    PFN_gpumem_host_launch, gpumem_host_launch(
        stream: gpumem_stream,
        function: gpumem_host_kernel_function,
        user_data: *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Opens a view of memory for a running kernel, with the rights that its device has. A view
    /// that the device's address translation would refuse loses the device, exactly as a faulting
    /// kernel does.
    PFN_gpumem_host_kernel_view, gpumem_host_kernel_view(
        kernel: gpumem_host_kernel,
        address: *const c_void,
        size: u64,
        access: gpumem_access,
        out_view: *mut *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Makes a stream as other code would make one, to be adopted by `gpumem_stream_wrap()`.
    PFN_gpumem_host_native_stream_create, gpumem_host_native_stream_create(
        device: gpumem_device,
        out_native_stream: *mut *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Destroys what `gpumem_host_native_stream_create()` made. Pending work still completes.
    PFN_gpumem_host_native_stream_destroy, gpumem_host_native_stream_destroy(
        device: gpumem_device,
        native_stream: *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Marks a stream as being captured into a graph by other code, or no longer so.
    PFN_gpumem_host_stream_set_capturing, gpumem_host_stream_set_capturing(
        stream: gpumem_stream,
        capturing: u32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Loses a device, as a faulting kernel would: pending work is not run, and every call that
    /// needs the device fails from now on.
    PFN_gpumem_host_device_lose, gpumem_host_device_lose(
        device: gpumem_device,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Lets a step of the backend fail: each allocation, mapping, lock, thread and enqueue that the
    /// host backend makes for this instance counts as one step.
    PFN_gpumem_host_fail_step, gpumem_host_fail_step(
        instance: gpumem_instance,
        step: u64,
        repeat: u32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Makes memory as other code would make it through the driver: it is known to the devices but
    /// not to the instance.
    PFN_gpumem_host_foreign_alloc, gpumem_host_foreign_alloc(
        device: gpumem_device,
        kind: gpumem_kind,
        size: u64,
        out_pointer: *mut *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Frees what `gpumem_host_foreign_alloc()` made.
    PFN_gpumem_host_foreign_free, gpumem_host_foreign_free(
        device: gpumem_device,
        pointer: *mut c_void,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// Switches peer access on or off as other code of the process would.
    PFN_gpumem_host_foreign_peer_access, gpumem_host_foreign_peer_access(
        device: gpumem_device,
        peer: gpumem_device,
        enabled: u32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
    /// The calling thread's current device in the host backend, the counterpart of CUDA's current
    /// context. Calls of gpumem never change it; only this function does.
    PFN_gpumem_host_set_current_device, gpumem_host_set_current_device(
        ordinal: i32,
        out_previous: *mut i32,
        error: *mut gpumem_error,
    ) -> gpumem_status;
}
