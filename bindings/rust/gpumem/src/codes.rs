// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Codes of the C interface as types of their own. They are numbers, not enums: a newer library may hand out
//! values that this crate does not know.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use gpumem_sys as sys;

use crate::error::Error;
use crate::library::{c, call};

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident: $type:ty { $($(#[$value_meta:meta])* $value:ident = $constant:ident,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $type);

        impl $name {
            $($(#[$value_meta])* pub const $value: Self = Self(sys::$constant);)*
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$value => formatter.write_str(stringify!($value)),)*
                    Self(other) => write!(formatter, concat!(stringify!($name), "({})"), other),
                }
            }
        }
    )*};
}

codes! {
    /// Who does the work.
    Backend: i32 {
        /// The cuda backend if it has a usable device, otherwise the host backend.
        ANY = GPUMEM_BACKEND_ANY,
        /// The CUDA driver, loaded at run time.
        CUDA = GPUMEM_BACKEND_CUDA,
        /// CPU and operating system only, with the rules of a GPU.
        HOST = GPUMEM_BACKEND_HOST,
    }
    /// What a piece of memory is.
    Kind: i32 {
        /// An address that nobody knows.
        UNKNOWN = GPUMEM_KIND_UNKNOWN,
        /// Ordinary memory of the process.
        PAGEABLE = GPUMEM_KIND_PAGEABLE,
        /// Page-locked host memory that was allocated here.
        PINNED = GPUMEM_KIND_PINNED,
        /// Memory of the caller that was page-locked here.
        REGISTERED = GPUMEM_KIND_REGISTERED,
        /// Memory of one device.
        DEVICE = GPUMEM_KIND_DEVICE,
        /// Known to the driver, but made by other code.
        FOREIGN = GPUMEM_KIND_FOREIGN,
    }
    /// Where bytes lie.
    Location: i32 {
        /// Nowhere that can be named.
        NONE = GPUMEM_LOCATION_NONE,
        /// A device.
        DEVICE = GPUMEM_LOCATION_DEVICE,
        /// The host, any node.
        HOST = GPUMEM_LOCATION_HOST,
        /// A NUMA node of the host.
        HOST_NUMA = GPUMEM_LOCATION_HOST_NUMA,
    }
    /// Rights of devices to memory.
    Access: i32 {
        /// No right.
        NONE = GPUMEM_ACCESS_NONE,
        /// Read.
        READ = GPUMEM_ACCESS_READ,
        /// Read and write.
        READ_WRITE = GPUMEM_ACCESS_READWRITE,
        /// The driver does not tell.
        UNKNOWN = GPUMEM_ACCESS_UNKNOWN,
    }
    /// Between which sides a copy goes.
    Direction: i32 {
        /// As the pointers say.
        INFER = GPUMEM_DIRECTION_INFER,
        /// Both operands are host memory.
        HOST_TO_HOST = GPUMEM_DIRECTION_HOST_TO_HOST,
        /// From host memory to device memory.
        HOST_TO_DEVICE = GPUMEM_DIRECTION_HOST_TO_DEVICE,
        /// From device memory to host memory.
        DEVICE_TO_HOST = GPUMEM_DIRECTION_DEVICE_TO_HOST,
        /// Both operands are device memory.
        DEVICE_TO_DEVICE = GPUMEM_DIRECTION_DEVICE_TO_DEVICE,
    }
    /// When the source of a copy is read.
    SourceOrder: i32 {
        /// In stream order.
        STREAM = GPUMEM_SOURCE_ORDER_STREAM,
        /// Before the call returns.
        DURING_CALL = GPUMEM_SOURCE_ORDER_DURING_CALL,
        /// At any time before completion.
        ANY = GPUMEM_SOURCE_ORDER_ANY,
    }
    /// When a value wait lets go.
    WaitCondition: i32 {
        /// `(signed)(word - value) >= 0`, so that counters may wrap.
        GEQ = GPUMEM_WAIT_VALUE_GEQ,
        /// `word == value`
        EQ = GPUMEM_WAIT_VALUE_EQ,
        /// `(word & value) != 0`
        AND = GPUMEM_WAIT_VALUE_AND,
        /// `!(word | value) != 0`
        NOR = GPUMEM_WAIT_VALUE_NOR,
    }
    /// Whose number a native code is.
    NativeDomain: i32 {
        /// Nobody's: the library decided by itself.
        NONE = GPUMEM_NATIVE_NONE,
        /// An `errno` of the operating system.
        ERRNO = GPUMEM_NATIVE_ERRNO,
        /// A `CUresult` of the CUDA driver.
        CUDA = GPUMEM_NATIVE_CUDA,
    }
    /// How much a message of the library matters.
    LogLevel: i32 {
        /// Something was lost.
        ERROR = GPUMEM_LOG_ERROR,
        /// Something is probably not as intended.
        WARNING = GPUMEM_LOG_WARNING,
        /// What was found and chosen when a backend opened.
        INFO = GPUMEM_LOG_INFO,
        /// Why a call failed, for each failing call.
        DEBUG = GPUMEM_LOG_DEBUG,
    }
    /// Something that a build of the library may or may not contain.
    Feature: i32 {
        /// The host backend is compiled in.
        BACKEND_HOST = GPUMEM_FEATURE_BACKEND_HOST,
        /// The cuda backend is compiled in.
        BACKEND_CUDA = GPUMEM_FEATURE_BACKEND_CUDA,
        /// Device memory.
        MEMORY_DEVICE = GPUMEM_FEATURE_MEMORY_DEVICE,
        /// Pinned and mapped host memory.
        MEMORY_PINNED = GPUMEM_FEATURE_MEMORY_PINNED,
        /// Pinning of memory that exists already.
        MEMORY_REGISTERED = GPUMEM_FEATURE_MEMORY_REGISTERED,
        /// Value write and value wait in a stream.
        STREAM_VALUE = GPUMEM_FEATURE_STREAM_VALUE,
        /// The functions of the module `host`.
        HOST_SIMULATION = GPUMEM_FEATURE_HOST_SIMULATION,
    }
    /// Something that can be asked of a device.
    Capability: i32 {
        /// One address space for host and devices.
        UVA = GPUMEM_CAPABILITY_UVA,
        /// Devices of the instance.
        DEVICE_COUNT = GPUMEM_CAPABILITY_DEVICE_COUNT,
        /// Memory of the device.
        DEVICE_BYTES = GPUMEM_CAPABILITY_DEVICE_BYTES,
        /// The CPU may touch device memory.
        DEVICE_CPU_ACCESS = GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS,
        /// The device can use pinned memory in place.
        PIN_MAP_HOST = GPUMEM_CAPABILITY_PIN_MAP_HOST,
        /// Pinned pages are really locked.
        PIN_PAGE_LOCKED = GPUMEM_CAPABILITY_PIN_PAGE_LOCKED,
        /// Write-combined pinned memory.
        PIN_WRITE_COMBINED = GPUMEM_CAPABILITY_PIN_WRITE_COMBINED,
        /// Pinning of memory that exists already.
        PIN_REGISTER = GPUMEM_CAPABILITY_PIN_REGISTER,
        /// Registered memory has one address for CPU and devices.
        PIN_REGISTER_SAME_POINTER = GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER,
        /// Pinning for reading only.
        PIN_REGISTER_READ_ONLY = GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY,
        /// Pinning of memory-mapped I/O.
        PIN_REGISTER_IOMEMORY = GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY,
        /// Bytes of the largest range that is locked in one piece.
        PIN_MAX_SINGLE = GPUMEM_CAPABILITY_PIN_MAX_SINGLE,
        /// Pieces that may be locked at once.
        PIN_MAX_COUNT = GPUMEM_CAPABILITY_PIN_MAX_COUNT,
        /// Pinned memory can be placed on a NUMA node.
        PIN_NUMA = GPUMEM_CAPABILITY_PIN_NUMA,
        /// Atomics work across CPU and device.
        HOST_ATOMICS = GPUMEM_CAPABILITY_HOST_ATOMICS,
        /// The device reaches ordinary pageable memory.
        PAGEABLE = GPUMEM_CAPABILITY_PAGEABLE,
        /// It does so by the host's page tables.
        PAGEABLE_HOST_TABLES = GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES,
        /// Value write and wait on 4 bytes.
        STREAM_VALUE32 = GPUMEM_CAPABILITY_STREAM_VALUE32,
        /// Value write and wait on 8 bytes.
        STREAM_VALUE64 = GPUMEM_CAPABILITY_STREAM_VALUE64,
        /// Value wait with [`WaitCondition::NOR`].
        STREAM_VALUE_NOR = GPUMEM_CAPABILITY_STREAM_VALUE_NOR,
        /// Copies that can run at the same time.
        COPY_ENGINES = GPUMEM_CAPABILITY_COPY_ENGINES,
        /// Access to the memory of a peer; asked of a pair of devices.
        PEER_ACCESS = GPUMEM_CAPABILITY_PEER_ACCESS,
        /// Atomics on the memory of a peer; asked of a pair of devices.
        PEER_ATOMICS = GPUMEM_CAPABILITY_PEER_ATOMICS,
    }
    /// What the value of a capability counts.
    CapabilityType: i32 {
        /// No, yes or emulated.
        TRI = GPUMEM_CAPABILITY_TYPE_TRI,
        /// A number.
        INT = GPUMEM_CAPABILITY_TYPE_INT,
        /// A number of bytes.
        BYTES = GPUMEM_CAPABILITY_TYPE_BYTES,
    }
    /// How the answer to a capability question was found.
    CapabilitySource: i32 {
        /// The driver says so.
        ATTRIBUTE = GPUMEM_CAPABILITY_FROM_ATTRIBUTE,
        /// It was tried.
        TRIAL = GPUMEM_CAPABILITY_FROM_TRIAL,
        /// An option of the instance says so.
        CONFIGURATION = GPUMEM_CAPABILITY_FROM_CONFIGURATION,
        /// It is so for every device of this backend.
        CONTRACT = GPUMEM_CAPABILITY_FROM_CONTRACT,
    }
    /// How the host backend locks pinned memory.
    LockMode: i32 {
        /// As [`LockMode::TRY`].
        DEFAULT = GPUMEM_HOST_LOCK_DEFAULT,
        /// Lock if the limits allow; the granted flags tell.
        TRY = GPUMEM_HOST_LOCK_TRY,
        /// Fail if the limits do not allow it.
        REQUIRE = GPUMEM_HOST_LOCK_REQUIRE,
        /// Never lock.
        OFF = GPUMEM_HOST_LOCK_OFF,
    }
}

impl Default for Backend {
    fn default() -> Self {
        Self::ANY
    }
}

impl Default for LockMode {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Feature {
    /// Whether the library in use contains this.
    ///
    /// # Errors
    /// If there is no library.
    pub fn is_supported(self) -> Result<bool, Error> {
        // SAFETY: any number will do.
        Ok(unsafe { c!(gpumem_feature_supported)(self.0) } != 0)
    }
}

impl Capability {
    /// All capabilities of the library in use.
    ///
    /// # Errors
    /// If there is no library.
    pub fn all() -> Result<Vec<Self>, Error> {
        let mut found = Vec::new();
        for index in 0.. {
            let mut capability = 0;
            // SAFETY: the output is writable.
            match unsafe { call!(gpumem_capability_enumerate(index, &mut capability)) } {
                Ok(_) => found.push(Self(capability)),
                Err(error) if error.status() == crate::Status::NOT_FOUND => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

macro_rules! flags {
    ($($(#[$meta:meta])* $name:ident: $type:ty { $($(#[$value_meta:meta])* $value:ident = $constant:ident,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $type);

        impl $name {
            /// None of them.
            pub const NONE: Self = Self(0);
            $($(#[$value_meta])* pub const $value: Self = Self(sys::$constant);)*

            /// Whether all of `other` are in this.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Those of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut rest = self.0;
                let mut separator = "";
                $(if self.contains(Self::$value) {
                    write!(formatter, "{}{}", separator, stringify!($value))?;
                    separator = " | ";
                    rest &= !Self::$value.0;
                })*
                if rest != 0 || self.0 == 0 {
                    write!(formatter, "{}{:#x}", separator, rest)?;
                }
                Ok(())
            }
        }
    )*};
}

flags! {
    /// Properties of an allocation.
    MemoryFlags: u64 {
        /// All devices treat the memory as pinned. Pinned allocations have it anyway.
        PORTABLE = GPUMEM_MEMORY_PORTABLE,
        /// The memory has a device address. Pinned allocations have it anyway.
        MAPPED = GPUMEM_MEMORY_MAPPED,
        /// Uncached for the CPU, which may read it very slowly. See [`WriteCombined`](crate::WriteCombined).
        WRITE_COMBINED = GPUMEM_MEMORY_WRITE_COMBINED,
        /// Registered only: devices may only read.
        READ_ONLY = GPUMEM_MEMORY_READ_ONLY,
        /// Registered only: memory-mapped I/O of another device.
        IOMEMORY = GPUMEM_MEMORY_IOMEMORY,
        /// The pages are really locked.
        PAGE_LOCKED = GPUMEM_MEMORY_PAGE_LOCKED,
        /// Pinned only: the pages lie on the node that was asked for.
        NUMA_NODE = GPUMEM_MEMORY_NUMA_NODE,
    }
    /// Properties of an event.
    EventFlags: u32 {
        /// Takes no time stamp; cheaper.
        DISABLE_TIMING = GPUMEM_EVENT_DISABLE_TIMING,
        /// Waiting for it gives up the processor.
        BLOCKING_SYNC = GPUMEM_EVENT_BLOCKING_SYNC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_print_their_names() {
        assert_eq!(format!("{:?}", Kind::PINNED), "PINNED");
        assert_eq!(format!("{:?}", Kind(77)), "Kind(77)");
        assert_eq!(format!("{:?}", MemoryFlags::NONE), "0x0");
        assert_eq!(format!("{:?}", MemoryFlags::PORTABLE | MemoryFlags(1 << 40)), "PORTABLE | 0x10000000000");
    }

    #[test]
    fn flags_are_sets() {
        let mut both = MemoryFlags::PORTABLE;
        both |= MemoryFlags::MAPPED;
        assert!(both.contains(MemoryFlags::MAPPED) && both.contains(MemoryFlags::NONE));
        assert!(!both.contains(MemoryFlags::WRITE_COMBINED | MemoryFlags::MAPPED));
    }
}
