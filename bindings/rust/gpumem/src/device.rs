// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The devices of an instance.

use std::fmt;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

use gpumem_sys as sys;

use crate::codes::{AnswerType, Capability, Kind, MemoryFlags};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::infos::{CapabilityInfo, DeviceInfo};
use crate::instance::{Inner, Instance};
use crate::library::{c, call, info_call, output_call};

/// One processor with its memory. A clone is the same device; each keeps the instance open.
#[derive(Clone)]
pub struct Device {
    pub(crate) handle: sys::gpumem_device,
    pub(crate) instance: Arc<Inner>,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(handle: sys::gpumem_device, instance: Arc<Inner>) -> Self {
        Self { handle, instance }
    }

    /// The instance of the device.
    #[must_use]
    pub fn instance(&self) -> Instance {
        Instance { inner: self.instance.clone() }
    }

    /// Information about the device. Works after the device was lost.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<DeviceInfo, Error> {
        info_call!(gpumem_device_get_info(self.handle) => DeviceInfo)
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

    /// Gives back the memory that the device keeps for graphs, such as those that captured `cudaMallocAsync()`, and that no
    /// graph uses. Returns the bytes; 0 on the host backend.
    ///
    /// # Errors
    /// If the device is lost, the driver is older than CUDA 11.4, or the call comes from a host function.
    pub fn trim_graphs(&self) -> Result<u64, Error> {
        // SAFETY: only handles, numbers and addresses.
        unsafe { output_call!(gpumem_device_trim_graphs(self.handle)) }
    }

    /// Queries a capability of the device, or of a pair of devices, which needs `peer`.
    ///
    /// # Errors
    /// If the capability is unknown, or `peer` is given for a capability of one device or missing for one of a pair.
    pub fn capability(&self, capability: Capability, peer: Option<&Device>) -> Result<CapabilityInfo, Error> {
        let peer = peer.map_or(ptr::null_mut(), |peer| peer.handle);
        info_call!(gpumem_device_get_capability(self.handle, capability.0, peer) => CapabilityInfo)
    }

    /// Whether this device could access the memory of `peer` directly.
    ///
    /// # Errors
    /// If the two are the same device or belong to different instances.
    pub fn can_access_peer(&self, peer: &Device) -> Result<bool, Error> {
        // SAFETY: only handles, numbers and addresses.
        let possible = unsafe { output_call!(gpumem_device_can_access_peer(self.handle, peer.handle)) }?;
        Ok(possible != 0)
    }

    /// Lets this device access all device memory of `peer`. The access is counted: it ends after as many disables as
    /// enables.
    ///
    /// # Errors
    /// If there is no link between them, or if they are the same device or belong to different instances.
    pub fn enable_peer_access(&self, peer: &Device) -> Result<(), Error> {
        // SAFETY: only handles.
        unsafe { call!(gpumem_device_enable_peer_access(self.handle, peer.handle)) }.map(drop)
    }

    /// Undoes one [`enable_peer_access`](Self::enable_peer_access).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if there is no enable to undo.
    pub fn disable_peer_access(&self, peer: &Device) -> Result<(), Error> {
        // SAFETY: only handles.
        unsafe { call!(gpumem_device_disable_peer_access(self.handle, peer.handle)) }.map(drop)
    }

    /// Address of a byte of memory for this device.
    ///
    /// # Errors
    /// If there is no known memory, or this device cannot access it.
    #[allow(clippy::not_unsafe_ptr_arg_deref)] // The library never dereferences an unknown address.
    pub fn device_address(&self, pointer: *const c_void) -> Result<u64, Error> {
        // SAFETY: any address may be queried.
        let address = unsafe { output_call!(gpumem_pointer_get_device_pointer(self.handle, pointer)) }?;
        Ok(address as u64)
    }

    /// Allocates memory of [`Kind::DEVICE`], [`Kind::PINNED`] or [`Kind::MANAGED`] and returns only its pointer;
    /// [`Instance::free`] frees it. [`DeviceMemory`](crate::DeviceMemory), [`Pinned`](crate::Pinned) and
    /// [`Managed`](crate::Managed) free themselves.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn malloc(&self, kind: Kind, bytes: u64) -> Result<*mut c_void, Error> {
        // SAFETY: only handles, numbers and addresses.
        unsafe { output_call!(gpumem_malloc(self.handle, kind.0, bytes)) }
    }

    /// Page-locks existing memory until [`Instance::unregister`]. [`Registered`](crate::Registered) and
    /// [`Device::with_registered`] do so safely.
    ///
    /// # Safety
    /// The memory must stay mapped until it is unregistered.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::AlreadyExists`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub unsafe fn register(
        &self,
        pointer: *mut c_void,
        bytes: u64,
        require: MemoryFlags,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { call!(gpumem_register(self.handle, pointer, bytes, require.0)) }.map(drop)
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
