// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Handles, codes and structs, header by header.

use core::ffi::c_void;

/// `char` of C. (`core` has one only in newer compilers.)
#[cfg(any(
    target_arch = "aarch64",
    target_arch = "arm",
    target_arch = "powerpc",
    target_arch = "powerpc64",
    target_arch = "riscv32",
    target_arch = "riscv64",
    target_arch = "s390x"
))]
pub type c_char = u8;
/// `char` of C. (`core` has one only in newer compilers.)
#[cfg(not(any(
    target_arch = "aarch64",
    target_arch = "arm",
    target_arch = "powerpc",
    target_arch = "powerpc64",
    target_arch = "riscv32",
    target_arch = "riscv64",
    target_arch = "s390x"
)))]
pub type c_char = i8;

/// Pointers to types without a size, so that handles of different objects cannot be mixed up.
macro_rules! handles {
    ($($(#[$meta:meta])* $handle:ident = $target:ident;)*) => {$(
        #[doc = concat!("What a [`", stringify!($handle), "`] points to.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $target {
            _private: [u8; 0],
        }
        $(#[$meta])*
        pub type $handle = *mut $target;
    )*};
}

/// Constants, and for the layout test the lines that describe them.
macro_rules! constants {
    ($($(#[$meta:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$meta])* pub const $name: $type = $value;)*

        #[cfg(test)]
        pub(crate) fn describe_constants(lines: &mut std::vec::Vec<std::string::String>) {
            $(lines.push(std::format!("constant {} {}", stringify!($name), $name));)*
        }
    };
}

/// Structs as C lays them out, and for the layout test the lines that describe them.
macro_rules! structs {
    ($($(#[$meta:meta])* $how:ident $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }
            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: every field is a number or a pointer, for which 0 is a value.
                    let zero: Self = unsafe { core::mem::zeroed() };
                    structs!(@$how zero)
                }
            }
        )*

        #[cfg(test)]
        pub(crate) fn describe_structs(lines: &mut std::vec::Vec<std::string::String>) {
            $(
                let probe = $name::default();
                let start = core::ptr::addr_of!(probe) as usize;
                crate::layout::describe_struct::<$name>(lines, stringify!($name));
                $(
                    let offset = core::ptr::addr_of!(probe.$field) as usize - start;
                    let size = core::mem::size_of_val(&probe.$field);
                    crate::layout::describe_field(lines, stringify!($name.$field), offset, size);
                )*
            )*
        }
    };
    (@growing $zero:ident) => {
        Self { struct_size: core::mem::size_of::<Self>(), ..$zero }
    };
    (@plain $zero:ident) => {
        $zero
    };
}

handles! {
    /// An opened backend with its devices and everything that was made through it. See instance.h.
    gpumem_instance = gpumem_instance_s;
    /// One processor with its memory; lives as long as its instance. See device.h.
    gpumem_device = gpumem_device_s;
    /// One allocation or registration of any kind. See memory.h.
    gpumem_memory = gpumem_memory_s;
    /// An ordered queue of work of one device. See stream.h.
    gpumem_stream = gpumem_stream_s;
    /// A point in a stream that others can wait for. See event.h.
    gpumem_event = gpumem_event_s;
    /// A running stand-in for a kernel; valid only while its function runs.
    gpumem_host_kernel = gpumem_host_kernel_s;
}

// ---- base.h

/// A choice whose default belongs to the library: one of the GPUMEM_TOGGLE_ values.
pub type gpumem_toggle = i32;

// ---- version.h

/// Something that a build or release of the library may or may not contain: one of the
/// GPUMEM_FEATURE_ values.
pub type gpumem_feature = i32;

// ---- status.h

/// Result of a call: 0 is success, negative is a failure, positive is a note that is no failure.
/// Numbers are never reused. A program treats an unknown negative number as
/// [`GPUMEM_ERROR_INTERNAL`].
pub type gpumem_status = i32;

/// Whose number `native_code` is: one of the GPUMEM_NATIVE_ values.
pub type gpumem_native_domain = i32;

// ---- log.h

/// How much a message matters: one of the GPUMEM_LOG_ values.
pub type gpumem_log_level = i32;

/// Receives one finished line, without a line end. It may be called from any thread, must not call
/// gpumem and must not throw. `message` is valid during the call only.
pub type gpumem_log_function =
    Option<unsafe extern "C" fn(user_data: *mut c_void, level: gpumem_log_level, message: *const c_char)>;

// ---- instance.h

/// Who does the work: one of the GPUMEM_BACKEND_ values.
pub type gpumem_backend = i32;

/// What to do with objects that live at close: one of the GPUMEM_CLOSE_ values.
pub type gpumem_close_mode = i32;

// ---- capability.h

/// Something that can be asked of a device: one of the GPUMEM_CAPABILITY_ values.
pub type gpumem_capability = i32;

/// What `value` of a gpumem_capability_info counts: one of the GPUMEM_CAPABILITY_TYPE_ values.
pub type gpumem_capability_type = i32;

/// How an answer was found: one of the GPUMEM_CAPABILITY_FROM_ values.
pub type gpumem_capability_source = i32;

// ---- memory.h

/// What a piece of memory is: one of the GPUMEM_KIND_ values.
pub type gpumem_kind = i32;

/// Properties of an allocation: a sum of GPUMEM_MEMORY_ values.
pub type gpumem_memory_flags = u64;

// ---- pointer.h

/// Where bytes lie: one of the GPUMEM_LOCATION_ values.
pub type gpumem_location = i32;

/// Rights of devices to memory: one of the GPUMEM_ACCESS_ values.
pub type gpumem_access = i32;

// ---- stream.h

/// A function of the caller that runs in stream order. It must not throw and must not wait for
/// device work. Of gpumem it may call only the functions that give status texts, versions and
/// information about objects.
pub type gpumem_host_function = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// When a value wait lets go: one of the GPUMEM_WAIT_VALUE_ values.
pub type gpumem_wait_value = i32;

// ---- event.h

/// Properties of an event: a sum of GPUMEM_EVENT_ values.
pub type gpumem_event_flags = u32;

// ---- copy.h

/// Between which sides a copy goes: one of the GPUMEM_DIRECTION_ values.
pub type gpumem_direction = i32;

/// When the source of a copy is read: one of the GPUMEM_SOURCE_ORDER_ values.
pub type gpumem_source_order = i32;

// ---- host.h

/// The code of a kernel. It must not throw and reaches memory only through
/// `gpumem_host_kernel_view()`.
pub type gpumem_host_kernel_function =
    Option<unsafe extern "C" fn(kernel: gpumem_host_kernel, user_data: *mut c_void)>;

/// A version as one number that grows with it.
#[allow(non_snake_case)]
pub const fn GPUMEM_MAKE_VERSION(major: u32, minor: u32, patch: u32) -> u32 {
    (major << 22) | (minor << 12) | patch
}

constants! {
    // ---- base.h

    /// What the field's text says.
    GPUMEM_TOGGLE_DEFAULT: gpumem_toggle = 0;
    /// On.
    GPUMEM_TOGGLE_ON: gpumem_toggle = 1;
    /// Off.
    GPUMEM_TOGGLE_OFF: gpumem_toggle = 2;
    /// Time limit that never runs out, in nanoseconds.
    GPUMEM_TIMEOUT_INFINITE: u64 = u64::MAX;

    // ---- version.h

    /// Changes when the interface breaks.
    GPUMEM_VERSION_MAJOR: u32 = 0;
    /// Changes when the interface grows.
    GPUMEM_VERSION_MINOR: u32 = 1;
    /// Changes otherwise.
    GPUMEM_VERSION_PATCH: u32 = 0;
    /// The host backend is compiled in.
    GPUMEM_FEATURE_BACKEND_HOST: gpumem_feature = 1;
    /// The cuda backend is compiled in; whether it works here, the probe tells.
    GPUMEM_FEATURE_BACKEND_CUDA: gpumem_feature = 2;
    /// Device memory.
    GPUMEM_FEATURE_MEMORY_DEVICE: gpumem_feature = 10;
    /// Pinned and mapped host memory.
    GPUMEM_FEATURE_MEMORY_PINNED: gpumem_feature = 11;
    /// Pinning of memory that exists already.
    GPUMEM_FEATURE_MEMORY_REGISTERED: gpumem_feature = 12;
    /// Value write and value wait in a stream.
    GPUMEM_FEATURE_STREAM_VALUE: gpumem_feature = 20;
    /// The functions of host.h.
    GPUMEM_FEATURE_HOST_SIMULATION: gpumem_feature = 30;

    // ---- status.h

    /// Done.
    GPUMEM_SUCCESS: gpumem_status = 0;
    /// Note: the work that was asked about is not complete.
    GPUMEM_NOT_READY: gpumem_status = 1;
    /// Note: a valid hint that this device or driver cannot use; nothing changed.
    GPUMEM_NO_EFFECT: gpumem_status = 2;
    /// A value that no configuration accepts.
    GPUMEM_ERROR_INVALID_ARGUMENT: gpumem_status = -101;
    /// The memory is of a kind that this function does not take.
    GPUMEM_ERROR_WRONG_KIND: gpumem_status = -102;
    /// Nothing of that name, address or id exists in this instance.
    GPUMEM_ERROR_NOT_FOUND: gpumem_status = -103;
    /// The range or relation exists already.
    GPUMEM_ERROR_ALREADY_EXISTS: gpumem_status = -104;
    /// The handle named an object that is gone.
    GPUMEM_ERROR_STALE_HANDLE: gpumem_status = -105;
    /// Right object, wrong moment.
    GPUMEM_ERROR_INVALID_STATE: gpumem_status = -201;
    /// The processor that would act has no right to the range.
    GPUMEM_ERROR_NO_ACCESS: gpumem_status = -202;
    /// In use by other work; the same call may succeed later.
    GPUMEM_ERROR_BUSY: gpumem_status = -203;
    /// The instance is closed, or the driver is shutting down.
    GPUMEM_ERROR_CLOSED: gpumem_status = -204;
    /// An object of the parent was used in a forked child.
    GPUMEM_ERROR_FORKED: gpumem_status = -205;
    /// The other process of a shared object has ended.
    GPUMEM_ERROR_PEER_GONE: gpumem_status = -206;
    /// The device cannot be used again until the process ends.
    GPUMEM_ERROR_DEVICE_LOST: gpumem_status = -207;
    /// No memory at a device location.
    GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY: gpumem_status = -301;
    /// No memory at a host location or for the library's records.
    GPUMEM_ERROR_OUT_OF_HOST_MEMORY: gpumem_status = -302;
    /// No address range of that size.
    GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE: gpumem_status = -303;
    /// A limit or budget is used up; the detail names it.
    GPUMEM_ERROR_LIMIT_EXCEEDED: gpumem_status = -304;
    /// Valid, but this device, driver, backend or object cannot do it.
    GPUMEM_ERROR_UNSUPPORTED: gpumem_status = -401;
    /// System, driver or peer refuses this user or process.
    GPUMEM_ERROR_PERMISSION_DENIED: gpumem_status = -402;
    /// The driver is present but no usable device.
    GPUMEM_ERROR_NO_DEVICE: gpumem_status = -403;
    /// No driver library can be loaded, or it is a stub.
    GPUMEM_ERROR_DRIVER_NOT_FOUND: gpumem_status = -404;
    /// The driver is below [`GPUMEM_CUDA_DRIVER_VERSION_MIN`] or mismatched.
    GPUMEM_ERROR_DRIVER_TOO_OLD: gpumem_status = -405;
    /// This driver lacks the entry point of this one function.
    GPUMEM_ERROR_SYMBOL_MISSING: gpumem_status = -406;
    /// Anything else; the native code is attached.
    GPUMEM_ERROR_INTERNAL: gpumem_status = -901;
    /// Oldest CUDA driver that the cuda backend works with, as the driver counts (11020 is 11.2).
    GPUMEM_CUDA_DRIVER_VERSION_MIN: i32 = 11020;
    /// No native code: the library decided by itself.
    GPUMEM_NATIVE_NONE: gpumem_native_domain = 0;
    /// An `errno` value of the operating system.
    GPUMEM_NATIVE_ERRNO: gpumem_native_domain = 1;
    /// A `CUresult` of the CUDA driver.
    GPUMEM_NATIVE_CUDA: gpumem_native_domain = 2;

    // ---- log.h

    /// Something was lost, such as a free that the driver refused.
    GPUMEM_LOG_ERROR: gpumem_log_level = 1;
    /// Something is probably not as intended, such as objects alive at close.
    GPUMEM_LOG_WARNING: gpumem_log_level = 2;
    /// What was found and chosen when a backend opened.
    GPUMEM_LOG_INFO: gpumem_log_level = 3;
    /// Why a call failed, for each failing call.
    GPUMEM_LOG_DEBUG: gpumem_log_level = 4;

    // ---- instance.h

    /// The cuda backend if it has a usable device, otherwise the host backend.
    GPUMEM_BACKEND_ANY: gpumem_backend = 0;
    /// The CUDA driver, loaded at run time.
    GPUMEM_BACKEND_CUDA: gpumem_backend = 1;
    /// CPU and operating system only, with the rules of a GPU.
    GPUMEM_BACKEND_HOST: gpumem_backend = 2;
    /// As [`GPUMEM_HOST_LOCK_TRY`].
    GPUMEM_HOST_LOCK_DEFAULT: i32 = 0;
    /// Lock if the limits allow; the granted flags tell.
    GPUMEM_HOST_LOCK_TRY: i32 = 1;
    /// Fail if the limits do not allow it.
    GPUMEM_HOST_LOCK_REQUIRE: i32 = 2;
    /// Never lock.
    GPUMEM_HOST_LOCK_OFF: i32 = 3;
    /// Refuse, and say what lives.
    GPUMEM_CLOSE_CHECK: gpumem_close_mode = 0;
    /// Wait for the instance's streams, then destroy everything.
    GPUMEM_CLOSE_FORCE: gpumem_close_mode = 1;

    // ---- capability.h

    /// `uva`: one address space for host and devices.
    GPUMEM_CAPABILITY_UVA: gpumem_capability = 1;
    /// `device.count`: devices of the instance.
    GPUMEM_CAPABILITY_DEVICE_COUNT: gpumem_capability = 2;
    /// `device.bytes`: memory of the device.
    GPUMEM_CAPABILITY_DEVICE_BYTES: gpumem_capability = 3;
    /// `dev.cpu_access`: the CPU may touch device memory.
    GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS: gpumem_capability = 4;
    /// `pin.map_host`: the device can use pinned memory in place.
    GPUMEM_CAPABILITY_PIN_MAP_HOST: gpumem_capability = 10;
    /// `pin.page_locked`: pinned pages are really locked.
    GPUMEM_CAPABILITY_PIN_PAGE_LOCKED: gpumem_capability = 11;
    /// `pin.write_combined`: write-combined pinned memory.
    GPUMEM_CAPABILITY_PIN_WRITE_COMBINED: gpumem_capability = 12;
    /// `pin.register`: pinning of memory that exists already.
    GPUMEM_CAPABILITY_PIN_REGISTER: gpumem_capability = 13;
    /// `pin.register_same_pointer`: registered memory has one address for CPU and devices.
    GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER: gpumem_capability = 14;
    /// `pin.register_read_only`: pinning for reading only.
    GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY: gpumem_capability = 15;
    /// `pin.register_iomemory`: pinning of memory-mapped I/O.
    GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY: gpumem_capability = 16;
    /// `pin.max_single`: bytes of the largest range that is locked in one piece.
    GPUMEM_CAPABILITY_PIN_MAX_SINGLE: gpumem_capability = 17;
    /// `pin.max_count`: pieces that may be locked at once.
    GPUMEM_CAPABILITY_PIN_MAX_COUNT: gpumem_capability = 18;
    /// `pin.numa`: pinned memory can be placed on a NUMA node.
    GPUMEM_CAPABILITY_PIN_NUMA: gpumem_capability = 19;
    /// `host.atomics`: atomics work across CPU and device.
    GPUMEM_CAPABILITY_HOST_ATOMICS: gpumem_capability = 20;
    /// `man.pageable`: the device reaches ordinary pageable memory.
    GPUMEM_CAPABILITY_PAGEABLE: gpumem_capability = 30;
    /// `man.pageable_host_tables`: it does so by the host's page tables.
    GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES: gpumem_capability = 31;
    /// `stream.value32`: value write and wait on 4 bytes.
    GPUMEM_CAPABILITY_STREAM_VALUE32: gpumem_capability = 40;
    /// `stream.value64`: value write and wait on 8 bytes.
    GPUMEM_CAPABILITY_STREAM_VALUE64: gpumem_capability = 41;
    /// `stream.value_nor`: value wait with [`GPUMEM_WAIT_VALUE_NOR`].
    GPUMEM_CAPABILITY_STREAM_VALUE_NOR: gpumem_capability = 42;
    /// `copy.engines`: copies that can run at the same time.
    GPUMEM_CAPABILITY_COPY_ENGINES: gpumem_capability = 50;
    /// `peer.access`: asked of a pair of devices.
    GPUMEM_CAPABILITY_PEER_ACCESS: gpumem_capability = 60;
    /// `peer.atomics`: asked of a pair of devices.
    GPUMEM_CAPABILITY_PEER_ATOMICS: gpumem_capability = 61;
    /// [`GPUMEM_CAPABILITY_NO`], [`GPUMEM_CAPABILITY_YES`] or [`GPUMEM_CAPABILITY_EMULATED`].
    GPUMEM_CAPABILITY_TYPE_TRI: gpumem_capability_type = 1;
    /// A number.
    GPUMEM_CAPABILITY_TYPE_INT: gpumem_capability_type = 2;
    /// A number of bytes.
    GPUMEM_CAPABILITY_TYPE_BYTES: gpumem_capability_type = 3;
    /// It cannot be done; `status` and `reason` say why.
    GPUMEM_CAPABILITY_NO: u64 = 0;
    /// It works.
    GPUMEM_CAPABILITY_YES: u64 = 1;
    /// It works as described, without the effect on hardware.
    GPUMEM_CAPABILITY_EMULATED: u64 = 2;
    /// The driver says so.
    GPUMEM_CAPABILITY_FROM_ATTRIBUTE: gpumem_capability_source = 1;
    /// It was tried.
    GPUMEM_CAPABILITY_FROM_TRIAL: gpumem_capability_source = 2;
    /// An option of the instance says so.
    GPUMEM_CAPABILITY_FROM_CONFIGURATION: gpumem_capability_source = 3;
    /// It is so for every device of this backend.
    GPUMEM_CAPABILITY_FROM_CONTRACT: gpumem_capability_source = 4;

    // ---- memory.h

    /// An address that neither the instance, the driver nor the CPU knows.
    GPUMEM_KIND_UNKNOWN: gpumem_kind = 0;
    /// Ordinary memory of the process.
    GPUMEM_KIND_PAGEABLE: gpumem_kind = 1;
    /// Page-locked host memory that was allocated here.
    GPUMEM_KIND_PINNED: gpumem_kind = 2;
    /// Memory of the caller that was page-locked here.
    GPUMEM_KIND_REGISTERED: gpumem_kind = 3;
    /// Memory of one device.
    GPUMEM_KIND_DEVICE: gpumem_kind = 4;
    /// Known to the driver, but made by other code.
    GPUMEM_KIND_FOREIGN: gpumem_kind = 9;
    /// All devices treat the memory as pinned. Pinned allocations have it anyway.
    GPUMEM_MEMORY_PORTABLE: gpumem_memory_flags = 0x1;
    /// The memory has a device pointer. Pinned allocations have it anyway.
    GPUMEM_MEMORY_MAPPED: gpumem_memory_flags = 0x2;
    /// Pinned only: uncached for the CPU, which may read it very slowly.
    GPUMEM_MEMORY_WRITE_COMBINED: gpumem_memory_flags = 0x4;
    /// Registered only: devices may only read. Needed if the CPU mapping is read-only.
    GPUMEM_MEMORY_READ_ONLY: gpumem_memory_flags = 0x8;
    /// Registered only: memory-mapped I/O of another device.
    GPUMEM_MEMORY_IOMEMORY: gpumem_memory_flags = 0x10;
    /// Pinned and registered: the pages are really locked.
    GPUMEM_MEMORY_PAGE_LOCKED: gpumem_memory_flags = 0x20;
    /// Pinned only: the pages lie on `numa_node`.
    GPUMEM_MEMORY_NUMA_NODE: gpumem_memory_flags = 0x40;

    // ---- pointer.h

    /// Nowhere that can be named.
    GPUMEM_LOCATION_NONE: gpumem_location = 0;
    /// A device; its ordinal beside it.
    GPUMEM_LOCATION_DEVICE: gpumem_location = 1;
    /// The host, any node.
    GPUMEM_LOCATION_HOST: gpumem_location = 2;
    /// The host; the node beside it.
    GPUMEM_LOCATION_HOST_NUMA: gpumem_location = 3;
    /// No right.
    GPUMEM_ACCESS_NONE: gpumem_access = 0;
    /// Read.
    GPUMEM_ACCESS_READ: gpumem_access = 1;
    /// Read and write.
    GPUMEM_ACCESS_READWRITE: gpumem_access = 3;
    /// Foreign memory: the driver does not tell.
    GPUMEM_ACCESS_UNKNOWN: gpumem_access = 4;

    // ---- stream.h

    /// `(signed)(word - value) >= 0`, so that counters may wrap.
    GPUMEM_WAIT_VALUE_GEQ: gpumem_wait_value = 0;
    /// `word == value`
    GPUMEM_WAIT_VALUE_EQ: gpumem_wait_value = 1;
    /// `(word & value) != 0`
    GPUMEM_WAIT_VALUE_AND: gpumem_wait_value = 2;
    /// `~(word | value) != 0`
    GPUMEM_WAIT_VALUE_NOR: gpumem_wait_value = 3;

    // ---- event.h

    /// Takes no time stamp; cheaper.
    GPUMEM_EVENT_DISABLE_TIMING: gpumem_event_flags = 0x1;
    /// `gpumem_event_synchronize()` gives up the processor while it waits.
    GPUMEM_EVENT_BLOCKING_SYNC: gpumem_event_flags = 0x2;

    // ---- copy.h

    /// As the pointers say.
    GPUMEM_DIRECTION_INFER: gpumem_direction = 0;
    /// Both operands are host memory.
    GPUMEM_DIRECTION_HOST_TO_HOST: gpumem_direction = 1;
    /// The source is host memory, the destination device memory.
    GPUMEM_DIRECTION_HOST_TO_DEVICE: gpumem_direction = 2;
    /// The source is device memory, the destination host memory.
    GPUMEM_DIRECTION_DEVICE_TO_HOST: gpumem_direction = 3;
    /// Both operands are device memory.
    GPUMEM_DIRECTION_DEVICE_TO_DEVICE: gpumem_direction = 4;
    /// In stream order.
    GPUMEM_SOURCE_ORDER_STREAM: gpumem_source_order = 0;
    /// Before the call returns, so that a variable on the stack will do; no earlier work of the
    /// stream may write it.
    GPUMEM_SOURCE_ORDER_DURING_CALL: gpumem_source_order = 1;
    /// At any time before completion, also before earlier work of the stream; the source must not
    /// change from the call on.
    GPUMEM_SOURCE_ORDER_ANY: gpumem_source_order = 2;

    // ---- the version of these headers as one number

    /// Version of the headers that these declarations were written from.
    GPUMEM_VERSION: u32 =
        GPUMEM_MAKE_VERSION(GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR, GPUMEM_VERSION_PATCH);
}

structs! {
    // ---- status.h

    /// What went wrong, filled by the call itself through its last parameter. Set it up once with
    /// [`Default`] and pass it to any number of calls. A call whose `error->struct_size`
    /// is below the first version's size is refused with [`GPUMEM_ERROR_INVALID_ARGUMENT`] and
    /// leaves the struct alone. All texts end with a 0 byte; long ones are cut.
    growing gpumem_error {
        /// `sizeof(gpumem_error)` of the caller; the only field the caller sets.
        struct_size: usize,
        /// The same value that the call returned.
        status: gpumem_status,
        /// Whose number `native_code` is.
        native_domain: gpumem_native_domain,
        /// Code of the driver or operating system; 0 if there was none.
        native_code: i32,
        /// 0.
        reserved: u32,
        /// Name of `native_code`, such as `CUDA_ERROR_OUT_OF_MEMORY` or `ENOMEM`.
        native_name: [c_char; 56],
        /// The gpumem function that failed.
        function: [c_char; 48],
        /// The driver or system call that failed; empty if none was reached.
        entry_point: [c_char; 48],
        /// One line: what is wrong and what to do. Empty on success.
        message: [c_char; 512],
    }

    /// Everything that is known about one status code without a driver or an instance. The texts
    /// are constants of the library and stay valid for ever.
    growing gpumem_status_info {
        /// `sizeof(gpumem_status_info)` of the caller.
        struct_size: usize,
        /// The code.
        status: gpumem_status,
        /// 0.
        reserved: u32,
        /// Its constant's name, such as `GPUMEM_ERROR_BUSY`.
        name: *const c_char,
        /// One line: when it is returned.
        cause: *const c_char,
        /// One line: what to do about it.
        remedy: *const c_char,
    }

    // ---- instance.h

    /// What a probe found out about a backend.
    growing gpumem_probe_info {
        /// `sizeof(gpumem_probe_info)` of the caller.
        struct_size: usize,
        /// The backend that an open would use.
        backend: gpumem_backend,
        /// Version as the driver counts (13000 is 13.0); 0 for host.
        driver_version: i32,
        /// Number of devices that an open would offer.
        device_count: u32,
        /// 0.
        reserved: u32,
        /// For people, such as `CUDA driver 13.0`.
        name: [c_char; 64],
    }

    /// How an instance of the host backend behaves. Every field has a default; the default instance
    /// reads the environment variable named at each field.
    growing gpumem_host_options {
        /// `sizeof(gpumem_host_options)` of the caller.
        struct_size: usize,
        /// Emulated devices, 1 to 64; 0 means 2. `GPUMEM_HOST_DEVICES`
        device_count: u32,
        /// Device memory faults when the CPU touches it, and unfinished work is tracked; default
        /// on. `GPUMEM_HOST_STRICT`
        strict: gpumem_toggle,
        /// Memory of each device, at least one granule; 0 means 64 MiB. `GPUMEM_HOST_DEVICE_BYTES`
        device_bytes: u64,
        /// Unit in which device memory is charged: a power of two and multiple of the page, at most
        /// 1 GiB; 0 means 2 MiB. `GPUMEM_HOST_GRANULARITY`
        granularity: u64,
        /// Devices reach ordinary pageable memory; default off. `GPUMEM_HOST_PAGEABLE`
        pageable: gpumem_toggle,
        /// Registered memory has one address for CPU and devices; default off.
        /// `GPUMEM_HOST_SAME_POINTER`
        same_pointer: gpumem_toggle,
        /// One of the GPUMEM_HOST_LOCK_ values. `GPUMEM_HOST_LOCK` (`require`, `try`, `off`)
        lock_mode: i32,
        /// Pretend that this many NUMA nodes exist, 1 to 64; 0 means those of the machine.
        /// `GPUMEM_HOST_NUMA_NODES`
        numa_nodes: u32,
        /// Registrations (pieces) that may live at once; 0 means 65500. `GPUMEM_HOST_REGISTER_MAX`
        register_count_max: u64,
        /// Locking works in pieces of this many bytes, a multiple of the page; 0 means 256 MiB.
        /// `GPUMEM_HOST_LOCK_PIECE`
        lock_piece: u64,
        /// How many freed address ranges stay inaccessible before they can be used again, 1 to
        /// 65536; 0 means 64. `GPUMEM_HOST_QUARANTINE`
        quarantine: u32,
        /// Fresh memory is filled with 0xA5; default as `strict`. `GPUMEM_HOST_FILL`
        fill: gpumem_toggle,
        /// Directed links between devices: `"all"`, `"none"`, or a list such as `"0>1,1>0"`. NULL
        /// means all. `GPUMEM_HOST_PEERS`
        peers: *const c_char,
        /// Comma-separated entry points to treat as missing: `launch_host_function`, `write_value`,
        /// `wait_value`, `register`, `copy_2d`, `fill_2d`, `peer_access`. NULL means none.
        /// `GPUMEM_HOST_MASKED`
        masked: *const c_char,
    }

    /// What is to be opened.
    growing gpumem_instance_desc {
        /// `sizeof(gpumem_instance_desc)` of the caller.
        struct_size: usize,
        /// One of the GPUMEM_BACKEND_ values.
        backend: gpumem_backend,
        /// 0.
        reserved: u32,
        /// For messages and reports, up to 63 bytes, or NULL; copied.
        name: *const c_char,
        /// Page-locked bytes that may live at once, registered ones included; 0 means no limit.
        pin_budget: u64,
        /// Options of the host backend, or NULL; used only if that backend is opened.
        host: *const gpumem_host_options,
        /// `CUcontext` values of the caller to work in, one for each device at most, instead of the
        /// primary contexts of these devices; or NULL. They must outlive the instance. Used only if
        /// the cuda backend is opened.
        cuda_contexts: *const *mut c_void,
        /// Number of entries of `cuda_contexts`.
        cuda_context_count: u64,
    }

    /// What is known about an open instance.
    growing gpumem_instance_info {
        /// `sizeof(gpumem_instance_info)` of the caller.
        struct_size: usize,
        /// [`GPUMEM_BACKEND_CUDA`] or [`GPUMEM_BACKEND_HOST`].
        backend: gpumem_backend,
        /// Version as the driver counts; 0 for host.
        driver_version: i32,
        /// Number of devices.
        device_count: u32,
        /// 1 if the host backend enforces its rules by faults and tracking; 0 otherwise.
        strict: u32,
        /// As given at open.
        pin_budget: u64,
        /// As given at open.
        name: [c_char; 64],
    }

    // ---- device.h

    /// What is known about a device.
    growing gpumem_device_info {
        /// `sizeof(gpumem_device_info)` of the caller.
        struct_size: usize,
        /// Its number in the instance.
        ordinal: u32,
        /// Nearest NUMA node of the host; -1 if unknown.
        numa_node: i32,
        /// Memory of the device.
        total_bytes: u64,
        /// The same in every process; see HST-7 for emulated devices.
        uuid: [u8; 16],
        /// PCI domain; 0 for emulated devices.
        pci_domain: u32,
        /// PCI bus; 0 for emulated devices.
        pci_bus: u32,
        /// PCI device; 0 for emulated devices.
        pci_device: u32,
        /// Major number of the compute capability; 0 for emulated devices.
        compute_major: i32,
        /// Minor number of the compute capability.
        compute_minor: i32,
        /// 1 once the device is lost.
        lost: u32,
        /// Such as `0000:65:00.0`; empty for emulated devices.
        pci_id: [c_char; 32],
        /// Such as `NVIDIA H200`.
        name: [c_char; 256],
    }

    // ---- capability.h

    /// Answer to a capability question. It never changes during the life of an instance, except to
    /// [`GPUMEM_CAPABILITY_NO`] when the device is lost.
    growing gpumem_capability_info {
        /// `sizeof(gpumem_capability_info)` of the caller.
        struct_size: usize,
        /// What was asked.
        capability: gpumem_capability,
        /// What `value` counts.
        r#type: gpumem_capability_type,
        /// The answer.
        value: u64,
        /// How it was found.
        source: gpumem_capability_source,
        /// What a call that needs it would return: [`GPUMEM_SUCCESS`] unless the answer is no.
        status: gpumem_status,
        /// Whose number `native_code` is.
        native_domain: gpumem_native_domain,
        /// Code that the trial got; 0 if it succeeded or there was none.
        native_code: i32,
        /// Such as `pin.map_host`.
        name: [c_char; 48],
        /// One line: how the answer was established, or why not.
        reason: [c_char; 256],
    }

    // ---- memory.h

    /// What is to be allocated or registered.
    growing gpumem_memory_desc {
        /// `sizeof(gpumem_memory_desc)` of the caller.
        struct_size: usize,
        /// [`GPUMEM_KIND_DEVICE`], [`GPUMEM_KIND_PINNED`] or [`GPUMEM_KIND_REGISTERED`].
        kind: gpumem_kind,
        /// Node for [`GPUMEM_MEMORY_NUMA_NODE`]; otherwise 0.
        numa_node: i32,
        /// Bytes, 1 to 2^63-1.
        size: u64,
        /// Power of two in bytes, met exactly or refused; 0 means at least 256. Not for registered
        /// memory.
        alignment: u64,
        /// Properties without which the call shall fail.
        require: gpumem_memory_flags,
        /// Properties that may be missing from what is granted.
        prefer: gpumem_memory_flags,
        /// Registered only: first byte, at any address. The memory must stay mapped for as long as
        /// it is registered. Otherwise NULL.
        host_pointer: *mut c_void,
        /// For messages and reports, up to 63 bytes, or NULL; copied.
        name: *const c_char,
    }

    /// What is known about an allocation.
    growing gpumem_memory_info {
        /// `sizeof(gpumem_memory_info)` of the caller.
        struct_size: usize,
        /// What it is.
        kind: gpumem_kind,
        /// Node that the pages lie on, for [`GPUMEM_MEMORY_NUMA_NODE`]; otherwise -1.
        numa_node: i32,
        /// Device given at creation.
        device: gpumem_device,
        /// Its number.
        device_ordinal: u32,
        /// 0.
        reserved: u32,
        /// Address for the CPU; NULL for device memory.
        host_pointer: *mut c_void,
        /// Address for devices; NULL if the memory has none.
        device_pointer: *mut c_void,
        /// Bytes asked for: the only ones that may be used.
        size: u64,
        /// Bytes charged.
        granted_size: u64,
        /// Alignment asked for; 0 if none.
        alignment: u64,
        /// `require` and `prefer` together.
        requested_flags: gpumem_memory_flags,
        /// What the memory really has; contains `require`.
        granted_flags: gpumem_memory_flags,
        /// Number of this allocation; unique in the process and never used again.
        buffer_id: u64,
        /// As given at creation.
        name: [c_char; 64],
    }

    // ---- pointer.h

    /// What is known about an address.
    growing gpumem_pointer_info {
        /// `sizeof(gpumem_pointer_info)` of the caller.
        struct_size: usize,
        /// What it is.
        kind: gpumem_kind,
        /// Where its bytes lie.
        location: gpumem_location,
        /// Device ordinal or NUMA node of the location; -1 if it has none.
        location_id: i32,
        /// Device of the allocation or registration; -1 if none.
        device_ordinal: i32,
        /// The same byte for the CPU; NULL if none.
        host_pointer: *mut c_void,
        /// The same byte for devices; NULL if none.
        device_pointer: *mut c_void,
        /// First byte of the object, in the address range that was asked in; NULL if unknown.
        base: *mut c_void,
        /// Bytes of the object; 0 if unknown.
        size: u64,
        /// Number of the allocation, never used again; 0 if none.
        buffer_id: u64,
        /// Its properties.
        granted_flags: gpumem_memory_flags,
        /// What the devices in `access_devices` may do.
        access: gpumem_access,
        /// 0.
        reserved: u32,
        /// Bit n stands for the device with ordinal n.
        access_devices: u64,
        /// Its handle; NULL if it was not made through this instance.
        memory: gpumem_memory,
    }

    // ---- stream.h

    /// How a stream shall be.
    growing gpumem_stream_desc {
        /// `sizeof(gpumem_stream_desc)` of the caller.
        struct_size: usize,
        /// Lower numbers run first; cut to the range of the device; 0 is the default.
        priority: i32,
        /// 0.
        reserved: u32,
        /// For messages and reports, up to 63 bytes, or NULL; copied.
        name: *const c_char,
    }

    /// What is known about a stream.
    growing gpumem_stream_info {
        /// `sizeof(gpumem_stream_info)` of the caller.
        struct_size: usize,
        /// Its device.
        device: gpumem_device,
        /// The device's number.
        device_ordinal: u32,
        /// 1 if it was adopted by `gpumem_stream_wrap()`.
        wrapped: u32,
        /// Priority granted.
        priority: i32,
        /// 0.
        reserved: u32,
        /// The `CUstream`, for use by other code; for host see
        /// `gpumem_host_native_stream_create()`.
        native_stream: *mut c_void,
        /// As given at creation.
        name: [c_char; 64],
    }

    // ---- event.h

    /// How an event shall be.
    growing gpumem_event_desc {
        /// `sizeof(gpumem_event_desc)` of the caller.
        struct_size: usize,
        /// Sum of GPUMEM_EVENT_ values.
        flags: gpumem_event_flags,
        /// 0.
        reserved: u32,
        /// For messages and reports, up to 63 bytes, or NULL; copied.
        name: *const c_char,
    }

    /// What is known about an event.
    growing gpumem_event_info {
        /// `sizeof(gpumem_event_info)` of the caller.
        struct_size: usize,
        /// Its device.
        device: gpumem_device,
        /// The device's number.
        device_ordinal: u32,
        /// 1 if it was adopted by `gpumem_event_wrap()`.
        wrapped: u32,
        /// Flags granted.
        flags: gpumem_event_flags,
        /// 0.
        reserved: u32,
        /// The `CUevent`, for use by other code; NULL on host.
        native_event: *mut c_void,
        /// As given at creation.
        name: [c_char; 64],
    }

    // ---- copy.h

    /// What else a copy can be told.
    growing gpumem_copy_options {
        /// `sizeof(gpumem_copy_options)` of the caller.
        struct_size: usize,
        /// One of the GPUMEM_DIRECTION_ values.
        direction: gpumem_direction,
        /// One of the GPUMEM_SOURCE_ORDER_ values.
        source_order: gpumem_source_order,
    }

    // ---- stats.h

    /// Counts of one kind of memory.
    plain gpumem_stats_kind {
        /// Objects that live.
        live_count: u64,
        /// Their sizes, as asked for.
        live_bytes: u64,
        /// Most objects that lived at once since open or the last reset.
        peak_count: u64,
        /// Most bytes that lived at once.
        peak_bytes: u64,
        /// Objects made since open.
        total_count: u64,
        /// Bytes made since open.
        total_bytes: u64,
    }

    /// Counts of an instance. A failed call leaves them unchanged.
    growing gpumem_stats {
        /// `sizeof(gpumem_stats)` of the caller.
        struct_size: usize,
        /// Device memory.
        device: gpumem_stats_kind,
        /// Pinned allocations.
        pinned: gpumem_stats_kind,
        /// Registered memory.
        registered: gpumem_stats_kind,
        /// Streams that live, adopted ones included.
        streams: u64,
        /// Events that live, adopted ones included.
        events: u64,
        /// File descriptors that the instance holds open.
        file_descriptors: u64,
    }
}
