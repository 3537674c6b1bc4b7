// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Memory and events that other processes use too.

use std::convert::TryFrom;
use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::RangeBounds;
use std::os::raw::c_void;
use std::os::unix::io::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use gpumem_sys as sys;

use crate::buffer::{Buffer, BufferSlice, Hold, Lending};
#[cfg(doc)]
use crate::codes::{Capability, HandleTypes, Kind, MemoryFlags};
use crate::codes::{DmaBufFlags, SharePeer, ShareWay};
use crate::copy::sealed::{Keep, Operand, Source, Span};
use crate::device::Device;
use crate::element::Element;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
#[cfg(doc)]
use crate::hub::Link;
use crate::infos::{MemoryInfo, ShareInfo, WayInfo};
use crate::instance::{first_of, Inner, Instance};
use crate::library::{c, call, info_call, output_call};
use crate::memory::Memory;
pub use crate::options::{ExportOptions, ImportOptions, SendOptions};
use crate::pool::{PoolBlock, PoolSlice};
use crate::range::RangeSlice;
use crate::stream::{nanoseconds, Stream};
use crate::typed::{addressed_part, part_of_bytes, DeviceMemory, DeviceSlice};

/// Nanoseconds of a limit for C, to which 0 means a default.
pub(crate) fn limit(timeout: Option<Duration>) -> u64 {
    timeout.map_or(0, |timeout| nanoseconds(timeout).max(1))
}

/// Numbers of descriptors, for a call during which they are borrowed.
fn numbers_of<F: AsFd>(fds: &[F]) -> Vec<i32> {
    fds.iter().map(|fd| fd.as_fd().as_raw_fd()).collect()
}

/// Shared memory, or a shared event, as bytes that may be sent by any channel.
///
/// They hold no address, and a secret: whoever has them, and runs as the same user, may import. So `Debug` does not
/// show them.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{DeviceMemory, ExportOptions, MemoryFlags, MemoryOptions, ShareHandle};
///
/// let options = MemoryOptions::new().require(MemoryFlags::SHAREABLE);
/// let memory = DeviceMemory::<f32>::with_options(&device, 1000, &options)?;
/// let handle = device.instance().export(&memory, &ExportOptions::new())?;
///
/// // What another process receives.
/// let bytes: Vec<u8> = handle.as_ref().to_vec();
/// let received = ShareHandle::try_from(&bytes[..])?;
/// assert_eq!(received.info()?.size, 4000);
/// # Ok::<(), gpumem::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ShareHandle {
    // Boxed to keep what holds it small.
    bytes: Box<[u8; ShareHandle::LEN]>,
}

impl ShareHandle {
    /// Bytes of a handle.
    pub const LEN: usize = 256;

    pub(crate) fn of(native: &sys::gpumem_share_handle) -> Self {
        Self { bytes: Box::new(native.bytes) }
    }

    pub(crate) fn to_c(&self) -> sys::gpumem_share_handle {
        sys::gpumem_share_handle { bytes: *self.bytes }
    }

    /// What the handle says of itself. It was true when the handle was made; nobody is asked.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the bytes are damaged or no handle, and [`ErrorKind::Unsupported`] if they are
    /// of a newer version of the library.
    pub fn info(&self) -> Result<ShareInfo, Error> {
        info_call!(gpumem_share_get_info(&self.to_c()) => ShareInfo)
    }
}

impl AsRef<[u8]> for ShareHandle {
    fn as_ref(&self) -> &[u8] {
        &*self.bytes
    }
}

impl From<[u8; ShareHandle::LEN]> for ShareHandle {
    fn from(bytes: [u8; Self::LEN]) -> Self {
        Self { bytes: Box::new(bytes) }
    }
}

/// Takes exactly [`ShareHandle::LEN`] bytes. Whether they are a handle is found out where it is used.
impl TryFrom<&[u8]> for ShareHandle {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self, Error> {
        <[u8; Self::LEN]>::try_from(bytes).map(Self::from).map_err(|_| {
            let message = format!("a handle has {} bytes, not {}", Self::LEN, bytes.len());
            Error::invalid("ShareHandle::try_from", message)
        })
    }
}

impl fmt::Debug for ShareHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("ShareHandle");
        if let Ok(info) = self.info() {
            text.field("share_type", &info.share_type).field("way", &info.way).field("size", &info.size);
            text.field("exporter_pid", &info.exporter_pid);
        }
        text.finish_non_exhaustive()
    }
}

mod places {
    use crate::buffer::{Hold, Unusable};
    use crate::error::Error;

    /// The bytes of memory that can be shared.
    pub struct Place {
        pub address: u64,
        pub bytes: u64,
        /// Keeps them in their place during the call; or the reason why they cannot be used now.
        pub hold: Result<Option<Hold>, Unusable>,
    }

    pub trait Shared {
        fn place(&self) -> Result<Place, Error>;
    }
}
use places::{Place, Shared};

/// Memory that can be shared with other processes, if it was created for it: [`&DeviceMemory`](DeviceMemory),
/// [`DeviceSlice`], [`RangeSlice`], [`&Buffer`](Buffer), [`BufferSlice`], [`&PoolBlock`](PoolBlock), [`PoolSlice`] and
/// [`&Memory`](Memory).
///
/// * Device memory: with [`MemoryFlags::SHAREABLE`], or [`ExportFlags::NEIGHBOURS`].
/// * Ranges and buffers: their physical memory was created with [`HandleTypes::POSIX_FD`] or
///   [`HandleTypes::FABRIC`].
/// * Blocks of pools: the pool was made with [`HandleTypes::POSIX_FD`], or with [`MemoryFlags::SHAREABLE`] for
///   [`ShareWay::LEGACY`]. Pass [`ExportFlags::NEIGHBOURS`]: importers see what else is in the same pieces of the pool,
///   now or later. Free a block only after its importers have stopped using it: the pool then hands out the same bytes
///   again.
///
/// [`ExportFlags::NEIGHBOURS`]: crate::ExportFlags::NEIGHBOURS
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "`{Self}` cannot be shared with other processes",
        label = "this is no device memory, range, buffer or block of a pool",
        note = "share `&DeviceMemory`, `&Buffer`, `&PoolBlock`, a `DeviceSlice`, `BufferSlice`, `PoolSlice` or `RangeSlice`, or `&Memory`, and copy to it what is in other memory; nothing imported can be shared again: another process imports the same handle"
    )
)]
pub trait Share: places::Shared {}
impl<S: places::Shared> Share for S {}

macro_rules! shared {
    ($($memory:ty;)*) => {$(
        impl<T: Element + Copy> Shared for $memory {
            fn place(&self) -> Result<Place, Error> {
                let span = Source::<T>::span(self);
                let bytes = (span.len * size_of::<T>()) as u64;
                // An array of no bytes has no address.
                let address = if bytes == 0 { 0 } else { span.pointer as u64 };
                Ok(Place { address, bytes, hold: span.hold })
            }
        }
    )*};
}
shared! {
    &DeviceMemory<T>;
    DeviceSlice<'_, T>;
    RangeSlice<'_, T>;
    &Buffer<T>;
    BufferSlice<'_, T>;
    &PoolBlock<T>;
    PoolSlice<'_, T>;
}

impl Shared for &Memory {
    fn place(&self) -> Result<Place, Error> {
        // Pinned memory has an address for devices too, by which the library says what it is.
        let address = self.device_address()?;
        Ok(Place { address, bytes: self.bytes(), hold: Ok(None) })
    }
}

/// Address and size of shared memory, and what keeps it in its place.
pub(crate) fn place_of(
    memory: &impl Share,
    function: &'static str,
) -> Result<(*mut c_void, u64, Option<Hold>), Error> {
    let place = memory.place()?;
    if place.bytes == 0 {
        return Err(Error::invalid(function, "there are no elements to share; pass at least one"));
    }
    Ok((place.address as *mut c_void, place.bytes, place.hold.map_err(|why| why.error(function))?))
}

/// Refuses the memory of a [`Buffer`] on the host. The result must live as long as the call, so that no buffer gets the
/// address meanwhile.
fn not_lent(pointer: *const c_void, function: &'static str) -> Result<Lending, Error> {
    let lending = Lending::lock();
    if lending.has(pointer as u64) {
        return Err(Error::invalid(
            function,
            "the memory is that of a Buffer on the host, which lends it to the CPU; map memory to share into an \
             AddressRange",
        ));
    }
    Ok(lending)
}

impl Instance {
    /// Exports memory. Exporting it again gives the same bytes and costs little.
    ///
    /// The first byte of the operand is recorded in the handle. Device memory is shared as a whole; of a range, all blocks
    /// around that byte that are mapped one behind the other; a buffer with all its capacity; of a block of a pool, the
    /// whole pieces of the pool that it lies in. Exports of blocks that lie in the same pieces, with the same access, share
    /// one import. What was imported cannot be exported.
    ///
    /// The export ends when the memory is freed, when one of its blocks is unmapped (as when a buffer shrinks or sleeps),
    /// and with [`revoke`](Self::revoke). While others have imported it by [`ShareWay::LEGACY`], the memory cannot be
    /// freed: closing it fails with [`ErrorKind::Busy`], and what is dropped stays with the instance.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the memory does not have this way, with what would give it; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::WrongKind`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::PermissionDenied`], [`ErrorKind::LimitExceeded`] or
    /// [`ErrorKind::DeviceLost`].
    pub fn export(&self, memory: impl Share, options: &ExportOptions) -> Result<ShareHandle, Error> {
        let (pointer, _, _hold) = place_of(&memory, "Instance::export")?;
        self.export_at(pointer, options, "Instance::export")
    }

    /// As [`export`](Self::export), of the memory at an address. Not for a [`Buffer`] on the host: it lends its elements
    /// to the CPU, so nothing else may write them.
    ///
    /// # Errors
    /// As [`export`](Self::export), and [`ErrorKind::InvalidArgument`] for such a buffer.
    pub fn export_raw(&self, pointer: *const c_void, options: &ExportOptions) -> Result<ShareHandle, Error> {
        self.export_at(pointer, options, "Instance::export_raw")
    }

    fn export_at(
        &self,
        pointer: *const c_void,
        options: &ExportOptions,
        function: &'static str,
    ) -> Result<ShareHandle, Error> {
        let _lending = not_lent(pointer, function)?;
        let desc = options.describe();
        let mut handle = sys::gpumem_share_handle::default();
        // SAFETY: the struct lives during the call; the output is writable, and any address may be given. Safe code
        // has no references to the memory of a device, and none to addresses that a range reserves, so other
        // processes may write it.
        unsafe { call!(gpumem_share_export(self.inner.handle, pointer, &desc, &mut handle)) }
            .map_err(|error| error.called_as(function))?;
        Ok(ShareHandle::of(&handle))
    }

    /// Gets the file descriptors of an export, for a transport of the program's own; [`send`](Self::send) is one. They
    /// keep the memory alive, also after this process has ended.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if this instance has no such export, or no longer.
    pub fn export_fds(&self, handle: &ShareHandle) -> Result<Vec<OwnedFd>, Error> {
        let (instance, native) = (self.inner.handle, handle.to_c());
        // SAFETY: there is no room for descriptors.
        let mut count = unsafe { output_call!(gpumem_share_get_fds(instance, &native, ptr::null_mut(), 0)) }?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut fds = vec![-1; count as usize];
        // SAFETY: the outputs are writable, and there is room for as many.
        unsafe { call!(gpumem_share_get_fds(instance, &native, fds.as_mut_ptr(), count, &mut count)) }?;
        // SAFETY: they are new descriptors, which belong to the caller. Fewer may have been written.
        Ok(fds.into_iter().take(count as usize).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
    }

    /// Says whether memory can be shared in one way, and why not. It changes nothing, and [`export`](Self::export) does
    /// what it says. It answers from here; [`Link::share_way`] asks the other process.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for [`ShareWay::ANY`], and for an unknown way or peer.
    pub fn share_way(&self, memory: impl Share, way: ShareWay, peer: SharePeer) -> Result<WayInfo, Error> {
        let (pointer, _, _hold) = place_of(&memory, "Instance::share_way")?;
        self.share_way_raw(pointer, way, peer)
    }

    /// Sends a handle over a Unix socket, with its descriptors and a connection to this process. It needs no right to
    /// inspect processes and no common namespace. The message is sent whole, between two messages of the program's own.
    /// Calls for one socket must not overlap.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if this instance has no such export; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::PeerGone`], [`ErrorKind::Busy`], [`ErrorKind::LimitExceeded`] or
    /// [`ErrorKind::InvalidState`].
    pub fn send(&self, handle: &ShareHandle, socket: impl AsFd) -> Result<(), Error> {
        self.send_with_options(handle, socket, &SendOptions::new())
    }

    /// As [`send`](Self::send), with options.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_with_options(
        &self,
        handle: &ShareHandle,
        socket: impl AsFd,
        options: &SendOptions,
    ) -> Result<(), Error> {
        let desc = options.describe();
        let (instance, socket) = (self.inner.handle, socket.as_fd());
        // SAFETY: the structs and the descriptor live during the call.
        unsafe { call!(gpumem_share_send(instance, &handle.to_c(), socket.as_raw_fd(), &desc)) }.map(drop)
    }

    /// Receives a handle that [`send`](Self::send) sent, and waits for it. Its descriptors and connection are kept until
    /// it is imported, or for the sender's lease. Calls for one socket must not overlap.
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if the sender has hung up; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::Busy`], [`ErrorKind::LimitExceeded`] or [`ErrorKind::InvalidState`].
    pub fn receive(&self, socket: impl AsFd) -> Result<ShareHandle, Error> {
        loop {
            if let Some(handle) = self.receive_within(&socket, sys::GPUMEM_TIMEOUT_INFINITE)? {
                return Ok(handle);
            }
        }
    }

    /// As [`receive`](Self::receive) with a timeout; `None` if nothing came in time.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_for(&self, socket: impl AsFd, timeout: Duration) -> Result<Option<ShareHandle>, Error> {
        self.receive_within(&socket, nanoseconds(timeout))
            .map_err(|error| error.called_as("Instance::receive_for"))
    }

    fn receive_within(&self, socket: &impl AsFd, timeout_ns: u64) -> Result<Option<ShareHandle>, Error> {
        let mut handle = sys::gpumem_share_handle::default();
        let (instance, socket) = (self.inner.handle, socket.as_fd().as_raw_fd());
        // SAFETY: the descriptor lives during the call; the output is writable.
        let status = unsafe { call!(gpumem_share_receive(instance, socket, timeout_ns, &mut handle)) }?;
        Ok((status == Status::SUCCESS).then(|| ShareHandle::of(&handle)))
    }

    /// Makes a dma-buf of device memory, which drivers of other devices import: of network cards, say. Address and size
    /// are multiples of the page size. A part of a range must be exported again after it was mapped anew.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] without [`Capability::SHARE_DMA_BUF`]; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::NotFound`], [`ErrorKind::WrongKind`], [`ErrorKind::InvalidState`], [`ErrorKind::LimitExceeded`]
    /// or [`ErrorKind::DeviceLost`].
    pub fn export_dma_buf(&self, memory: impl Share, flags: DmaBufFlags) -> Result<OwnedFd, Error> {
        const FUNCTION: &str = "Instance::export_dma_buf";
        let (pointer, bytes, _hold) = place_of(&memory, FUNCTION)?;
        let _lending = not_lent(pointer, FUNCTION)?;
        let (instance, mut fd) = (self.inner.handle, -1);
        // SAFETY: the output is writable, and any address may be given; who else may write such memory: see `export_at`.
        unsafe { call!(gpumem_share_export_dma_buf(instance, pointer, bytes, flags.0, &mut fd)) }?;
        // SAFETY: it is a new descriptor, which belongs to the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Sets how long imports are kept mapped after they were dropped, and how many bytes of them (0 means no limit). At
    /// the beginning they are not kept; a time of 0 means that again. What is kept keeps the exporter's memory alive, and
    /// goes before a call of this instance fails for lack of memory. Only [`ShareWay::POSIX_FD`] is kept.
    ///
    /// # Errors
    /// In a host function.
    pub fn set_import_cache(&self, idle: Duration, bytes_max: u64) -> Result<(), Error> {
        let desc =
            sys::gpumem_import_cache_desc { idle_ns: nanoseconds(idle), bytes_max, ..Default::default() };
        // SAFETY: the struct lives during the call.
        unsafe { call!(gpumem_share_set_cache(self.inner.handle, &desc)) }.map(drop)
    }
}

impl WayInfo {
    /// Whether the memory can be shared in this way.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.status == Status::SUCCESS
    }
}

impl ImportOptions {
    /// The device that will use the memory.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }
}

/// Memory of another process.
///
/// A memory is mapped once in a process, for each device and access, however often it is imported; the exporter sees the
/// last of these being dropped. Dropping one ends it once work in streams that uses it has been observed complete.
///
/// Others may write it at any time. So safe code copies: it takes parts, [`slice`](Self::slice), as operands of copies
/// and fills. The CPU and kernels use the addresses, which is unsafe.
///
/// What happens when the exporter ends depends on the way. [`ShareWay::POSIX_FD`]: nothing, the memory stays. With
/// [`ShareWay::LEGACY`], copies and fills fail with [`ErrorKind::PeerGone`].
///
/// A part cannot outlive the import:
///
/// ```compile_fail,E0505
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let handle = gpumem::ShareHandle::from([0; 256]);
/// let imported = gpumem::Imported::new(&instance, &handle)?;
/// let part = imported.slice::<u32>(..3)?;
/// drop(imported);
/// instance.copy(part, &[1, 2, 3])?;
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Imported {
    memory: Memory,
    /// From the start of the memory to the byte that was exported.
    offset: u64,
}

impl Imported {
    /// Imports memory, with the descriptors that came with the handle through [`Instance::receive`] or
    /// [`Link::fetch`](crate::Link::fetch); otherwise the exporter is asked for them.
    ///
    /// # Errors
    /// [`ErrorKind::StaleHandle`] if the memory was freed or the export has ended, [`ErrorKind::PeerGone`] if the
    /// exporter has, [`ErrorKind::InvalidState`] if this process exported it by [`ShareWay::LEGACY`]; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NoAccess`], [`ErrorKind::NotFound`],
    /// [`ErrorKind::PermissionDenied`], [`ErrorKind::Busy`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::AlreadyExists`], [`ErrorKind::LimitExceeded`], [`ErrorKind::OutOfMemory`] or
    /// [`ErrorKind::DeviceLost`].
    pub fn new(instance: &Instance, handle: &ShareHandle) -> Result<Self, Error> {
        Self::with_options(instance, handle, &ImportOptions::new())
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if an option cannot be granted.
    pub fn with_options(
        instance: &Instance,
        handle: &ShareHandle,
        options: &ImportOptions,
    ) -> Result<Self, Error> {
        Self::with_fds::<OwnedFd>(instance, handle, &[], options)
    }

    /// As [`with_options`](Self::with_options), with the descriptors of [`Instance::export_fds`], in their order. They are
    /// not needed afterwards.
    ///
    /// # Errors
    /// As [`with_options`](Self::with_options), and [`ErrorKind::InvalidArgument`] if these are not the descriptors of the
    /// handle.
    pub fn with_fds<F: AsFd>(
        instance: &Instance,
        handle: &ShareHandle,
        fds: &[F],
        options: &ImportOptions,
    ) -> Result<Self, Error> {
        instance.inner.retry();
        let desc = options.describe()?;
        let numbers = numbers_of(fds);
        let (first, count) = (first_of(&numbers), numbers.len() as u32);
        let (mut pointer, mut memory) = (ptr::null_mut(), ptr::null_mut());
        let (inner, native) = (instance.inner.clone(), handle.to_c());
        // SAFETY: the structs, the text and the descriptors live during the call; the outputs are writable.
        unsafe {
            call!(gpumem_share_import(inner.handle, &native, first, count, &*desc, &mut pointer, &mut memory))
        }?;
        Self::of(inner, memory, pointer)
    }

    /// The memory of a call that has imported it, and the byte that was exported.
    pub(crate) fn of(
        inner: Arc<Inner>,
        memory: sys::gpumem_memory,
        exported: *mut c_void,
    ) -> Result<Self, Error> {
        let memory = Memory::imported(inner, memory)?;
        let offset = (exported as u64).wrapping_sub(memory.device_address()?);
        Ok(Self { memory, offset })
    }

    /// Some of the elements, as an operand of copies and fills: the memory counts as an array of `T`, from the byte that
    /// was exported on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if they do not lie within the memory, or if that byte is not aligned for them.
    pub fn slice<T: Element>(&self, range: impl RangeBounds<usize>) -> Result<ImportedSlice<'_, T>, Error> {
        let first = self.memory.device_address()?.wrapping_add(self.offset);
        let (offset, len) = part_of_bytes::<T>((first, self.bytes()), &range, "Imported::slice")?;
        let (start, offset) = (first.wrapping_add(offset), self.offset + offset);
        Ok(ImportedSlice { imported: self, start, offset, len, elements: PhantomData })
    }

    /// Bytes from the one that was exported to the end of the memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes().saturating_sub(self.offset)
    }

    /// Where in the whole memory the byte lies that was exported.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Address of the byte that was exported, for kernels and for other code that works on a device.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn device_address(&self) -> Result<u64, Error> {
        Ok(self.memory.device_address()?.wrapping_add(self.offset))
    }

    /// Address of the byte that was exported, for the CPU; NULL if it cannot access the memory. The import may be
    /// read-only, and other processes may write the bytes at the same time.
    #[must_use]
    pub fn host_pointer(&self) -> *mut c_void {
        let base = self.memory.host_pointer();
        if base.is_null() {
            return base;
        }
        base.cast::<u8>().wrapping_add(self.offset as usize).cast()
    }

    /// What the library knows of the memory, which is of [`Kind::IMPORTED`].
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn memory_info(&self) -> Result<MemoryInfo, Error> {
        self.memory.info()
    }

    /// Handle for calls of [`sys`](crate::sys). They must not destroy it.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_memory {
        self.memory.handle()
    }

    /// Ends the import. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete. The import is returned.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        let offset = self.offset;
        self.memory
            .close()
            .map_err(|rejected| rejected.called_as("Imported::close").map(|memory| Self { memory, offset }))
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Imported")
            .field("memory", &self.memory)
            .field("offset", &self.offset)
            .finish()
    }
}

addressed_part! {
    /// A part of [`Imported`] memory, as an operand of copies and fills.
    // The offset is from the start of the memory.
    ImportedSlice of imported: Imported, offset: u64
}

impl<T: Element> Operand for ImportedSlice<'_, T> {
    fn elements(&self) -> Span {
        Span {
            memory: self.imported.memory.handle(),
            offset: self.offset,
            ..Span::of_slice(self.start as *mut T, self.len)
        }
    }
    fn kept(&self, _: &Stream) -> Keep {
        Keep::Memory(self.imported.memory.share())
    }
}

/// Imports an event, and returns its handle.
pub(crate) fn import_event<F: AsFd>(
    device: &Device,
    handle: &ShareHandle,
    fds: &[F],
) -> Result<sys::gpumem_event, Error> {
    device.instance.retry();
    let numbers = numbers_of(fds);
    let (first, count) = (first_of(&numbers), numbers.len() as u32);
    let (native, mut event) = (handle.to_c(), ptr::null_mut());
    // SAFETY: the handle and the descriptors live during the call; the output is writable.
    unsafe { call!(gpumem_event_import(device.handle, &native, first, count, &mut event)) }?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_bytes_and_print_none() {
        let mut bytes = [0u8; ShareHandle::LEN];
        bytes[7] = 0xab;
        let handle = ShareHandle::from(bytes);
        assert_eq!(handle.as_ref(), &bytes[..]);
        assert_eq!(ShareHandle::try_from(&bytes[..]).unwrap(), handle.clone());
        assert_eq!(format!("{handle:?}"), "ShareHandle { .. }");
        for len in [0, 255, 257] {
            let error = ShareHandle::try_from(&vec![0u8; len][..]).unwrap_err();
            assert_eq!(error.status(), Status::INVALID_ARGUMENT);
            assert!(error.to_string().contains(&format!("not {len}")), "{error}");
        }
    }

    #[test]
    fn no_limit_is_no_default() {
        assert_eq!(limit(None), 0);
        assert_eq!(limit(Some(Duration::ZERO)), 1);
        assert_eq!(limit(Some(Duration::from_secs(1))), 1_000_000_000);
        assert_eq!(limit(Some(Duration::MAX)), sys::GPUMEM_TIMEOUT_INFINITE);
    }
}
