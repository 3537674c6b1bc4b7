// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Physical memory without an address.

use std::fmt;
use std::os::raw::c_void;
use std::os::unix::io::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use gpumem_sys as sys;

use crate::buffer::Lending;
#[cfg(doc)]
use crate::codes::HandleTypes;
use crate::device::Device;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::instance::Instance;
use crate::library::{c, call, output_call};
use crate::managed::Place;
use crate::memory::Owned;
pub use crate::options::PhysicalOptions;

impl PhysicalOptions {
    /// Memory of the host instead of the device, on any NUMA node. It cannot be shared.
    #[must_use]
    pub fn host(mut self) -> Self {
        self.place = Some(Place::HOST);
        self
    }

    /// Memory of this NUMA node of the host instead of the device.
    #[must_use]
    pub fn numa_node(mut self, node: u32) -> Self {
        self.place = Some(Place::numa_node(node));
        self
    }
}

/// A handle of physical memory: a block on a device or on the host, to be mapped into an
/// [`AddressRange`](crate::AddressRange).
///
/// The block lives while it has a handle, is mapped, or is open in another process. Dropping this ends the handle only.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{Physical, PhysicalOptions};
///
/// let unit = Physical::granularity(&device, &PhysicalOptions::new())?.recommended;
/// let block = Physical::new(&device, 4 * unit)?;
/// assert_eq!(block.info()?.size, 4 * unit);
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Physical {
    owned: Owned<sys::gpumem_physical_s>,
    bytes: u64,
}

impl Physical {
    /// Makes physical memory on a device. Its contents are indeterminate, and nobody can access it before it is mapped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the size is not a multiple of the [`granularity`](Self::granularity);
    /// otherwise [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`].
    pub fn new(device: &Device, bytes: u64) -> Result<Self, Error> {
        Self::with_options(device, bytes, &PhysicalOptions::new())
            .map_err(|error| error.called_as("Physical::new"))
    }

    /// As [`new`](Self::new), with options. For memory of the host, the device is the one that it is close to.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if an option cannot be granted.
    pub fn with_options(device: &Device, bytes: u64, options: &PhysicalOptions) -> Result<Self, Error> {
        Self::made(device, bytes, options, |desc, handle| {
            // SAFETY: the struct and its text live during the call; the output is writable.
            unsafe { call!(gpumem_physical_create(device.handle, desc, handle)) }
                .map_err(|error| error.called_as("Physical::with_options"))
        })
    }

    /// Makes a handle by a call that takes the options.
    fn made(
        device: &Device,
        bytes: u64,
        options: &PhysicalOptions,
        make: impl Fn(&sys::gpumem_physical_desc, &mut sys::gpumem_physical) -> Result<Status, Error>,
    ) -> Result<Self, Error> {
        device.instance.retry();
        let mut desc = options.describe()?;
        desc.size = bytes;
        let mut handle = ptr::null_mut();
        device.instance.with_room(|| make(&desc, &mut handle))?;
        Ok(Self { owned: Owned { handle, instance: device.instance.clone() }, bytes })
    }

    /// The units in which such memory is made and mapped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn granularity(device: &Device, options: &PhysicalOptions) -> Result<Granularity, Error> {
        let mut found = Granularity { minimum: 0, recommended: 0 };
        let (minimum, recommended) = (&mut found.minimum, &mut found.recommended);
        let desc = options.describe()?;
        // SAFETY: the struct and its text live during the call; the outputs are writable.
        unsafe { call!(gpumem_physical_get_granularity(device.handle, &*desc, minimum, recommended)) }?;
        Ok(found)
    }

    /// Makes a handle for the memory behind a descriptor of [`export_fd`](Self::export_fd), from this process or
    /// another. The size and the options, apart from the name, are those of its making; the properties need not be
    /// given. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn import_fd(
        device: &Device,
        bytes: u64,
        options: &PhysicalOptions,
        fd: impl AsFd,
    ) -> Result<Self, Error> {
        let fd = fd.as_fd();
        Self::made(device, bytes, options, |desc, handle| {
            // SAFETY: the struct, its text and the descriptor live during the call; the output is writable.
            unsafe { call!(gpumem_physical_import_fd(device.handle, desc, fd.as_raw_fd(), handle)) }
        })
    }

    /// Makes a handle for the memory behind a fabric handle, of this process or another one on the fabric. The size and
    /// the options are those of its making, but no properties are given.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device cannot import such handles, as on the host backend; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::PermissionDenied`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`].
    pub fn import_fabric(
        device: &Device,
        bytes: u64,
        options: &PhysicalOptions,
        fabric: &FabricHandle,
    ) -> Result<Self, Error> {
        let fabric = sys::gpumem_fabric_handle { bytes: fabric.0 };
        Self::made(device, bytes, options, |desc, handle| {
            // SAFETY: the structs and the text live during the call; the output is writable.
            unsafe { call!(gpumem_physical_import_fabric(device.handle, desc, &fabric, handle)) }
        })
    }

    /// Makes one more handle of the memory that is mapped at an address. Not for a [`Buffer`](crate::Buffer) on the
    /// host: it lends its elements to the CPU, so nothing else may write them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for such a buffer; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::WrongKind`], [`ErrorKind::InvalidState`] or [`ErrorKind::DeviceLost`].
    #[allow(clippy::not_unsafe_ptr_arg_deref)] // The library never dereferences an unknown address.
    pub fn retain(instance: &Instance, pointer: *const c_void) -> Result<Self, Error> {
        let instance = instance.inner.clone();
        instance.retry();
        let mut handle = ptr::null_mut();
        // Held during the call, so that no buffer gets the address meanwhile.
        let lending = Lending::lock();
        if lending.has(pointer as u64) {
            return Err(Error::invalid(
                "Physical::retain",
                "the memory is that of a Buffer on the host, which lends it to the CPU; map memory to share into an \
                 AddressRange",
            ));
        }
        // SAFETY: the output is writable, and any address may be given.
        unsafe { call!(gpumem_physical_retain(instance.handle, pointer, &mut handle)) }?;
        drop(lending);
        let mut retained = Self { owned: Owned { handle, instance }, bytes: 0 };
        retained.bytes = retained.info()?.size;
        Ok(retained)
    }

    /// Makes a file descriptor for the memory, which another process can import. It keeps the memory alive.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the memory was made without [`HandleTypes::POSIX_FD`]; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`].
    pub fn export_fd(&self) -> Result<OwnedFd, Error> {
        // SAFETY: only handles, numbers and addresses.
        let fd = unsafe { output_call!(gpumem_physical_export_fd(self.owned.handle)) }?;
        // SAFETY: it is a new descriptor, which belongs to the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Makes a handle that a process on this or another node of the fabric can import. It does not keep the memory alive.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the memory was made without [`HandleTypes::FABRIC`]; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::PermissionDenied`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`].
    pub fn export_fabric(&self) -> Result<FabricHandle, Error> {
        // SAFETY: only handles, numbers and addresses.
        let fabric = unsafe { output_call!(gpumem_physical_export_fabric(self.owned.handle)) }?;
        Ok(FabricHandle(fabric.bytes))
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Handle for calls of [`sys`](crate::sys).
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_physical {
        self.owned.handle
    }

    /// Releases the handle. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] in a host function. The handle is returned unchanged.
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.owned.close().map_err(|error| Rejected::new(self, error))
    }
}

impl fmt::Debug for Physical {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Physical").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A handle of physical memory for other nodes of the fabric: bytes that may be sent by any channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FabricHandle(pub [u8; 64]);

/// The units in which physical memory is made and mapped, in bytes. Both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Granularity {
    /// The smallest unit.
    pub minimum: u64,
    /// The unit for the best performance, a multiple of the smallest.
    pub recommended: u64,
}
