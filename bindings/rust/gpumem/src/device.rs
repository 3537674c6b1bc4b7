// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The devices of an instance.

use std::fmt;
use std::sync::Arc;

use gpumem_sys as sys;

use crate::codes::AnswerType;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::infos::CapabilityInfo;
use crate::instance::{Inner, Instance};
use crate::library::{c, call};

/// One processor with its memory. A clone is the same device; each keeps the instance open.
#[derive(Clone)]
pub struct Device {
    pub(crate) handle: sys::gpumem_device,
    ordinal: u32,
    pub(crate) instance: Arc<Inner>,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(handle: sys::gpumem_device, ordinal: u32, instance: Arc<Inner>) -> Self {
        Self { handle, ordinal, instance }
    }

    /// Its number in the instance, as [`Instance::device`] takes it.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The instance of the device.
    #[must_use]
    pub fn instance(&self) -> Instance {
        Instance { inner: self.instance.clone() }
    }

    /// Free and total bytes of the device. Other processes change them at any time.
    ///
    /// # Errors
    /// If the device is lost, or if the instance is closed or belongs to the parent process.
    pub fn memory(&self) -> Result<DeviceBytes, Error> {
        let mut bytes = DeviceBytes { free: 0, total: 0 };
        // SAFETY: the outputs are writable.
        unsafe { call!(gpumem_device_get_memory(self.handle, &mut bytes.free, &mut bytes.total)) }?;
        Ok(bytes)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Device").field(&self.handle).finish()
    }
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceBytes {
    /// Free bytes.
    pub free: u64,
    /// Total bytes.
    pub total: u64,
}

impl CapabilityInfo {
    /// Whether it works, on hardware or emulated. For a capability that is a number, whether the number is not 0.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.value != sys::GPUMEM_ANSWER_NO
    }

    /// Whether it works as documented, but without the effect on hardware.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.answer_type == AnswerType::TRI && self.value == sys::GPUMEM_ANSWER_EMULATED
    }
}
