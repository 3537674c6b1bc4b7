// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Allocations and registrations of every kind, in bytes.

use std::alloc::{dealloc, Layout};
use std::fmt;
use std::mem;
use std::os::raw::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use gpumem_sys as sys;

use crate::codes::{Kind, MemoryFlags};
use crate::copy::sealed::Keep;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Hexadecimal, Rejected, Status};
use crate::infos::MemoryInfo;
use crate::instance::{lock, Inner};
use crate::library::{c, call, info_call, output_call};
use crate::managed::Turns;
pub use crate::options::{MemoryOptions, RegisterOptions};
use crate::pool::{Freeing, PoolCallback};
use crate::sleep::Callbacks;
use crate::uses::{busy, lost};

impl MemoryOptions {
    /// Pinned memory only: the NUMA node that the pages must lie on ([`MemoryFlags::NUMA_NODE`]).
    #[must_use]
    pub fn numa_node(mut self, node: i32) -> Self {
        self.require |= MemoryFlags::NUMA_NODE;
        self.numa_node = node;
        self
    }
}

/// Memory of Rust's allocator, to be freed after it is unregistered.
pub(crate) struct Backing {
    pub(crate) start: NonNull<u8>,
    /// Of everything that was allocated.
    layout: Layout,
    /// Bytes of the elements, which may be fewer.
    bytes: usize,
}

// SAFETY: these bytes have no other owner, and hold nothing that must be dropped.
unsafe impl Send for Backing {}
// SAFETY: nothing reads them through this.
unsafe impl Sync for Backing {}

impl Backing {
    /// Takes the bytes of a vector whose elements need no drop, with its spare capacity; `None` if the elements have
    /// no bytes.
    pub(crate) fn of<T>(values: Vec<T>) -> Option<Self> {
        let bytes = mem::size_of_val::<[T]>(&values);
        let layout = Layout::array::<T>(values.capacity()).ok()?;
        if bytes == 0 {
            return None;
        }
        let start = NonNull::new(mem::ManuallyDrop::new(values).as_mut_ptr().cast())?;
        Some(Self { start, layout, bytes })
    }

    /// The vector that [`of`](Self::of) took.
    ///
    /// # Safety
    /// It was a vector of elements of this type.
    pub(crate) unsafe fn into_vec<T>(self) -> Vec<T> {
        let taken = mem::ManuallyDrop::new(self);
        let (len, capacity) = (taken.bytes / mem::size_of::<T>(), taken.layout.size() / mem::size_of::<T>());
        // SAFETY: the caller's promise. The elements are not zero-sized, as they have bytes.
        unsafe { Vec::from_raw_parts(taken.start.cast::<T>().as_ptr(), len, capacity) }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: it came from a vector of this layout, and its elements need no drop.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// An object that a drop could not destroy.
pub(crate) enum Remains {
    /// Memory, with the bytes that must live while they are registered.
    Memory(sys::gpumem_memory, Option<Backing>),
    /// A stream, with what its work uses, which is released once that is complete.
    Stream(sys::gpumem_stream, Mutex<Vec<(u64, Keep)>>),
    /// An event.
    Event(sys::gpumem_event),
    /// A handle of physical memory.
    Physical(sys::gpumem_physical),
    /// A range of addresses, with the offsets and sizes of what is mapped there.
    Range(sys::gpumem_range),
    /// A buffer, with the functions that the library calls.
    #[allow(dead_code)] // They are only dropped.
    Buffer(sys::gpumem_buffer, Option<Arc<Callbacks>>),
    /// A group of buffers.
    Group(sys::gpumem_group),
    /// A hub.
    Hub(sys::gpumem_hub),
    /// A link to a hub.
    Link(sys::gpumem_link),
    /// A side of a ring.
    Ring(sys::gpumem_ring),
    /// A pool, with the function that the library calls.
    #[allow(dead_code)] // It is only dropped.
    Pool(sys::gpumem_pool, Option<Box<PoolCallback>>),
    /// A block of a pool.
    Block(Freeing),
}

// SAFETY: handles are numbers to C.
unsafe impl Send for Remains {}

/// Destroys a stream once the work that uses something is complete.
fn release_stream(handle: sys::gpumem_stream, used: &Mutex<Vec<(u64, Keep)>>) -> Result<Status, Error> {
    let mut used = lock(used);
    if !used.is_empty() {
        // SAFETY: only a handle.
        match unsafe { call!(gpumem_stream_query(handle)) } {
            Ok(Status::SUCCESS) => {}
            Ok(_) => {
                let pending = "its work is not complete";
                return Err(Error::own(Status::BUSY, "gpumem_stream_destroy", pending));
            }
            // Nothing of it will be observed complete.
            Err(error) if error.kind().is_end() => {
                mem::take(&mut *used).into_iter().for_each(|(_, keep)| keep.abandon())
            }
            Err(error) => return Err(error),
        }
    }
    // SAFETY: only a handle, which is not used any more.
    unsafe { call!(gpumem_stream_destroy(handle)) }
}

impl Remains {
    /// Destroys the object. It may be dropped if that succeeds, or if the object does not exist any more.
    pub(crate) fn release(&self) -> Result<(), Error> {
        // SAFETY: only handles, which are not used any more.
        let result = unsafe {
            match self {
                Self::Memory(handle, _) => call!(gpumem_memory_destroy(*handle)),
                Self::Stream(handle, used) => release_stream(*handle, used),
                Self::Event(handle) => call!(gpumem_event_destroy(*handle)),
                Self::Physical(handle) => call!(gpumem_physical_release(*handle)),
                Self::Range(handle) => call!(gpumem_range_unmap(*handle, 0, sys::GPUMEM_WHOLE_RANGE))
                    .and_then(|_| call!(gpumem_range_release(*handle))),
                Self::Buffer(handle, ..) => call!(gpumem_buffer_destroy(*handle)),
                Self::Group(handle) => call!(gpumem_group_destroy(*handle)),
                Self::Hub(handle) => call!(gpumem_hub_close(*handle)),
                Self::Link(handle) => call!(gpumem_link_close(*handle)),
                Self::Ring(handle) => call!(gpumem_ring_destroy(*handle)),
                Self::Pool(handle, _) => call!(gpumem_pool_destroy(*handle)),
                Self::Block(freeing) => freeing.release().map(|()| Status::SUCCESS),
            }
        };
        match result {
            Ok(_) => Ok(()),
            // It went with its instance.
            Err(error) if error.kind().is_closed() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Destroys the object, or leaves it to the instance to try again.
    pub(crate) fn release_or_keep(self, instance: &Inner) {
        match self.release() {
            Ok(()) => {}
            // The parent's memory does not exist here; nothing can ever free it.
            Err(error) if error.kind() == ErrorKind::Forked => mem::forget(self),
            Err(_) => {
                let _ = self.finish();
                instance.keep(self);
            }
        }
    }

    /// Tells the consumers of a producer, which would wait as long as the process lives. A consumer is refused.
    fn finish(&self) -> Result<(), Error> {
        if let Self::Ring(handle) = self {
            // SAFETY: a handle that is not used any more.
            unsafe { call!(gpumem_ring_finish(*handle, 0)) }?;
        }
        Ok(())
    }
}

/// The one owner of an object of C, which needs nothing else to be destroyed.
pub(crate) struct Owned<T: Owner> {
    /// NULL after it was closed.
    pub(crate) handle: *mut T,
    pub(crate) instance: Arc<Inner>,
}

/// What a handle points to.
pub(crate) trait Owner {
    fn remains(handle: *mut Self) -> Remains;
}

macro_rules! owned {
    ($($target:ident: $remains:ident;)*) => {$(
        impl Owner for sys::$target {
            fn remains(handle: *mut Self) -> Remains {
                Remains::$remains(handle)
            }
        }
    )*};
}
owned! {
    gpumem_event_s: Event;
    gpumem_physical_s: Physical;
    gpumem_range_s: Range;
    gpumem_hub_s: Hub;
    gpumem_link_s: Link;
    gpumem_ring_s: Ring;
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl<T: Owner> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Owner> Sync for Owned<T> {}

impl<T: Owner> Owned<T> {
    /// Destroys the object now. If that fails, it stays.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        T::remains(self.handle).release()?;
        self.handle = ptr::null_mut();
        Ok(())
    }
}

impl<T: Owner> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            T::remains(self.handle).release_or_keep(&self.instance);
        }
    }
}

impl<T: Owner> fmt::Debug for Owned<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(formatter)
    }
}

/// The one owner of the memory of a handle.
pub(crate) struct Allocation {
    handle: sys::gpumem_memory,
    instance: Arc<Inner>,
    /// Address for the CPU, or NULL.
    host: *mut c_void,
    /// Address for devices, or 0 if it must be queried.
    device: u64,
    bytes: u64,
    backing: Option<Backing>,
    /// Whether the work of a lost device may still use the backing, which then is never freed.
    abandoned: AtomicBool,
    managed: bool,
    /// Of managed memory, if not all devices are concurrent.
    turns: Option<Turns>,
}

// SAFETY: a handle is a number to C; the pointers are only returned.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn create(device: &Device, kind: Kind, bytes: u64, options: &MemoryOptions) -> Result<Self, Error> {
        device.instance.retry();
        let mut desc = options.describe()?;
        desc.kind = kind.0;
        desc.size = bytes;
        // SAFETY: the struct and its text live during the call.
        let create = || unsafe { output_call!(gpumem_memory_create(device.handle, &*desc)) };
        let handle = device.instance.with_room(create)?;
        let mut allocation = Self::of(device.instance.clone(), handle, bytes);
        allocation.managed = kind == Kind::MANAGED;
        allocation.learn()?;
        Ok(allocation)
    }

    /// Sets the addresses, and returns everything that the library knows.
    fn learn(&mut self) -> Result<MemoryInfo, Error> {
        let info = self.info()?;
        self.host = info.host_pointer;
        self.device = info.device_address;
        Ok(info)
    }

    /// # Safety
    /// The memory stays mapped until the allocation is gone.
    unsafe fn register(
        device: &Device,
        pointer: *mut c_void,
        bytes: u64,
        options: &RegisterOptions,
    ) -> Result<Self, Error> {
        device.instance.retry();
        let mut desc = options.describe()?;
        desc.pointer = pointer;
        desc.size = bytes;
        let mut handle = ptr::null_mut();
        // SAFETY: the struct and its text live during the call, the output is writable; the rest is the caller's
        // promise.
        let register = || unsafe { call!(gpumem_memory_register(device.handle, &*desc, &mut handle)) };
        device.instance.with_room(register)?;
        let mut allocation = Self::of(device.instance.clone(), handle, bytes);
        allocation.host = pointer;
        Ok(allocation)
    }

    fn of(instance: Arc<Inner>, handle: sys::gpumem_memory, bytes: u64) -> Self {
        let (host, device, backing, managed, turns) = (ptr::null_mut(), 0, None, false, None);
        let abandoned = AtomicBool::new(false);
        Self { handle, instance, host, device, bytes, backing, abandoned, managed, turns }
    }

    pub(crate) fn instance(&self) -> &Arc<Inner> {
        &self.instance
    }

    fn info(&self) -> Result<MemoryInfo, Error> {
        info_call!(gpumem_memory_get_info(self.handle) => MemoryInfo)
    }

    /// Takes the object to destroy out of this.
    fn take(&mut self) -> Option<Remains> {
        let handle = mem::replace(&mut self.handle, ptr::null_mut());
        if handle.is_null() {
            None
        } else {
            let mut backing = self.backing.take();
            if self.abandoned.load(Ordering::Acquire) {
                mem::forget(backing.take());
            }
            Some(Remains::Memory(handle, backing))
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(remains) = self.take() {
            remains.release_or_keep(&self.instance);
        }
    }
}

/// An allocation or registration of any kind, in bytes: the base of the typed arrays, for code that works with
/// addresses.
///
/// The memory is freed once this is dropped and all work that safe functions of this crate enqueued with it has been
/// observed complete. On the cuda backend the driver may wait for all work of the device then, also if none of it uses
/// the memory.
pub struct Memory {
    pub(crate) allocation: Arc<Allocation>,
}

impl Memory {
    /// Allocates memory of [`Kind::DEVICE`], [`Kind::PINNED`] or [`Kind::MANAGED`]. Its contents are indeterminate.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`], as the message says.
    pub fn create(device: &Device, kind: Kind, bytes: u64, options: &MemoryOptions) -> Result<Self, Error> {
        Ok(Self { allocation: Arc::new(Allocation::create(device, kind, bytes, options)?) })
    }

    /// Page-locks existing memory, at any address.
    ///
    /// # Safety
    /// The memory must stay mapped until this is closed, or is dropped and no work in a stream uses it. A `Memory`
    /// that is forgotten keeps it registered forever.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::AlreadyExists`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub unsafe fn register(
        device: &Device,
        pointer: *mut c_void,
        bytes: u64,
        options: &RegisterOptions,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let allocation = unsafe { Allocation::register(device, pointer, bytes, options) }?;
        Ok(Self { allocation: Arc::new(allocation) })
    }

    /// Registers bytes of Rust's allocator, which are freed after they are unregistered.
    pub(crate) fn register_backing(
        device: &Device,
        backing: Backing,
        options: &RegisterOptions,
    ) -> Result<Self, Rejected<Backing>> {
        let (pointer, bytes) = (backing.start.as_ptr().cast(), backing.bytes as u64);
        // SAFETY: the allocation owns the bytes, and frees them only after they are unregistered.
        match unsafe { Allocation::register(device, pointer, bytes, options) } {
            Ok(mut allocation) => {
                allocation.backing = Some(backing);
                Ok(Self { allocation: Arc::new(allocation) })
            }
            Err(error) => Err(Rejected::new(backing, error)),
        }
    }

    /// One import of memory of another process, which this ends.
    pub(crate) fn imported(instance: Arc<Inner>, handle: sys::gpumem_memory) -> Result<Self, Error> {
        let mut allocation = Allocation::of(instance, handle, 0);
        allocation.bytes = allocation.learn()?.size;
        Ok(Self { allocation: Arc::new(allocation) })
    }

    /// Information about the memory. Works after its device was lost.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<MemoryInfo, Error> {
        self.allocation.info()
    }

    /// Handle for calls of [`sys`](crate::sys). It is stale once the memory is freed.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_memory {
        self.allocation.handle
    }

    /// Bytes requested.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.allocation.bytes
    }

    /// Address for the CPU; NULL for device memory.
    #[must_use]
    pub fn host_pointer(&self) -> *mut c_void {
        self.allocation.host
    }

    /// Address for kernels and for other code that works on a device. It is a number, because the CPU must not
    /// dereference it.
    ///
    /// # Errors
    /// [`ErrorKind::NoAccess`] for memory that was registered without [`MemoryFlags::MAPPED`].
    pub fn device_address(&self) -> Result<u64, Error> {
        if self.allocation.device != 0 {
            return Ok(self.allocation.device);
        }
        match self.info()?.device_address {
            0 => Err(Error::own(
                Status::NO_ACCESS,
                "Memory::device_address",
                "the memory was registered without MAPPED, so it has no device address; require MAPPED",
            )),
            address => Ok(address),
        }
    }

    /// Frees the memory, or unregisters it. On the cuda backend the driver may wait for all work of the device, as it may
    /// when this is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete. The memory is returned
    /// unchanged.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        self.release(false).map(drop)
    }

    /// Unregisters the memory, and returns the bytes that were registered.
    pub(crate) fn take_backing(self) -> Result<Option<Backing>, Rejected<Self>> {
        self.release(true)
    }

    fn release(self, returns: bool) -> Result<Option<Backing>, Rejected<Self>> {
        const FUNCTION: &str = "gpumem_memory_destroy";
        let mut allocation = match Arc::try_unwrap(self.allocation) {
            Ok(allocation) => allocation,
            Err(shared) => return Err(Rejected::new(Self { allocation: shared }, busy("memory", FUNCTION))),
        };
        // Nobody else can abandon it any more.
        if returns && allocation.abandoned.load(Ordering::Acquire) {
            // If the instance is closed, that is the reason.
            let error = allocation.info().err().unwrap_or_else(|| lost("memory", FUNCTION));
            return Err(Rejected::new(Self { allocation: Arc::new(allocation) }, error));
        }
        match allocation.take() {
            None => Ok(None),
            Some(remains) => match (remains.release(), remains) {
                (Ok(()), Remains::Memory(_, backing)) => Ok(backing),
                (Err(error), Remains::Memory(handle, backing)) => {
                    allocation.handle = handle;
                    allocation.backing = backing;
                    Err(Rejected::new(Self { allocation: Arc::new(allocation) }, error))
                }
                (_, _) => Ok(None),
            },
        }
    }

    /// The instance of managed memory; NULL for other memory.
    pub(crate) fn managed_by(&self) -> sys::gpumem_instance {
        match self.allocation.managed {
            true => self.allocation.instance.handle,
            false => ptr::null_mut(),
        }
    }

    pub(crate) fn turns(&self) -> Option<&Turns> {
        self.allocation.turns.as_ref()
    }

    /// Sets what [`turns`](Self::turns) returns, before the memory has another owner.
    pub(crate) fn set_turns(&mut self, turns: Option<Turns>) {
        if let Some(allocation) = Arc::get_mut(&mut self.allocation) {
            allocation.turns = turns;
        }
    }

    /// Another owner of the same memory, for work that runs later.
    pub(crate) fn share(&self) -> Self {
        Self { allocation: self.allocation.clone() }
    }

    /// Gives the share back although work may go on that uses the memory: its device is lost.
    pub(crate) fn abandon(self) {
        self.allocation.abandoned.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Memory")
            .field("bytes", &self.allocation.bytes)
            .field("host", &self.allocation.host)
            .field("device", &Hexadecimal(self.allocation.device))
            .finish()
    }
}
