// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Arrays that grow in place and can sleep.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::RangeBounds;
use std::os::raw::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};

use gpumem_sys as sys;

use crate::codes::{Access, BufferFlags, Content, HandleTypes, PhysicalFlags};
use crate::device::Device;
use crate::element::Element;
use crate::error::{array_text, Error, ErrorKind, Rejected, Status};
use crate::instance::{c_pointer, c_text, lock, Inner, Instance, Processor};
use crate::library::{c, call};
use crate::managed::Place;
use crate::memory::Remains;
use crate::range::{describe_accesses, first_access, takes_away};
use crate::size::bytes_of;
use crate::typed::part_of;
use crate::uses::{busy, Parts, Use, Uses};

/// Options for a buffer.
#[derive(Clone, Debug, Default)]
pub struct BufferOptions {
    reserve: u64,
    place: Option<Place>,
    handle_types: HandleTypes,
    require: PhysicalFlags,
    prefer: PhysicalFlags,
    flags: BufferFlags,
    accesses: Vec<(Processor, Access)>,
    name: Option<String>,
}

impl BufferOptions {
    /// The defaults: memory of the device that the call names, which alone may access it, and addresses for as much
    /// as the device has memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of addresses to reserve: what the buffer can grow to in place. At least its first size.
    #[must_use]
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = bytes;
        self
    }

    /// Memory of the host instead of the device, on any NUMA node. The CPU may access it too.
    #[must_use]
    pub fn host(mut self) -> Self {
        self.place = Some(Place::HOST);
        self
    }

    /// Memory of this NUMA node of the host instead of the device. The CPU may access it too.
    #[must_use]
    pub fn numa_node(mut self, node: u32) -> Self {
        self.place = Some(Place::numa_node(node));
        self
    }

    /// Ways of sharing that must be possible for its physical memory.
    #[must_use]
    pub fn handle_types(mut self, types: HandleTypes) -> Self {
        self.handle_types |= types;
        self
    }

    /// Properties that the memory must have; otherwise the call fails.
    #[must_use]
    pub fn require(mut self, flags: PhysicalFlags) -> Self {
        self.require |= flags;
        self
    }

    /// Properties that the memory should have if possible.
    #[must_use]
    pub fn prefer(mut self, flags: PhysicalFlags) -> Self {
        self.prefer |= flags;
        self
    }

    /// How the buffer behaves, such as [`BufferFlags::MOVABLE`].
    #[must_use]
    pub fn flags(mut self, flags: BufferFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// What a processor may do with the buffer. With this, nobody else has access, the device of the call included;
    /// call it again for each.
    #[must_use]
    pub fn access(mut self, processor: Processor, access: Access) -> Self {
        self.accesses.push((processor, access));
        self
    }

    /// A name for messages and reports, up to 63 bytes.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// Addresses of first bytes and behind last ones that buffers lend the CPU.
static LENT: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// The right to see and change what is lent. It must not be held while a [`Lent`] is dropped.
pub(crate) struct Lending(MutexGuard<'static, Vec<(u64, u64)>>);

impl Lending {
    pub(crate) fn lock() -> Self {
        Self(lock(&LENT))
    }

    pub(crate) fn has(&self, address: u64) -> bool {
        self.0.iter().any(|(first, behind)| (*first..*behind).contains(&address))
    }

    fn add(&mut self, first: u64, bytes: u64) -> Lent {
        let part = (first, first.saturating_add(bytes));
        self.0.push(part);
        Lent(part)
    }
}

/// Addresses whose elements safe code may borrow for the CPU, until this is dropped. No alias of their memory may be
/// made, or other safe code could write what is borrowed.
pub struct Lent((u64, u64));

impl Drop for Lent {
    fn drop(&mut self) {
        let mut lent = lock(&LENT);
        if let Some(index) = lent.iter().position(|part| *part == self.0) {
            lent.swap_remove(index);
        }
    }
}

struct BufferInner {
    handle: sys::gpumem_buffer,
    instance: Arc<Inner>,
    movable: bool,
    /// Of memory on the host.
    lent: Mutex<Option<Lent>>,
    uses: Uses,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for BufferInner {}
// SAFETY: as above.
unsafe impl Sync for BufferInner {}

impl Parts for BufferInner {
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let lent = lock(&self.lent).take();
            Remains::Buffer(self.handle, lent).release_or_keep(&self.instance);
        }
    }
}

/// An array that grows and shrinks in place, and can sleep.
///
/// It reserves addresses once, and maps memory into them as it grows. Its address stays the same, what lies in it is
/// never copied or touched, and work in streams may use it while it grows. New elements have indeterminate values.
/// While it sleeps its memory is given back.
///
/// Copies and fills take it by reference, like [`DeviceMemory`](crate::DeviceMemory), or a part of it, a
/// [`BufferSlice`]. If it lies on the host, the CPU accesses it through [`host`](Self::host) and
/// [`host_mut`](Self::host_mut).
///
/// Dropping it frees everything, once work in streams that uses it has been observed complete.
///
/// ```
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// use gpumem::{Buffer, Content};
///
/// let mut tokens = Buffer::<u32>::new(&device, 3)?;
/// instance.copy(&tokens, &[1, 2, 3])?;
/// tokens.resize(1000)?;
/// instance.fill(tokens.slice(3..).unwrap(), 9u32)?;
///
/// tokens.sleep(Content::PINNED)?;
/// tokens.wake()?;
/// let mut back = [0; 4];
/// instance.copy(&mut back, tokens.slice(..4).unwrap())?;
/// assert_eq!(back, [1, 2, 3, 9]);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// A part cannot be used after a change:
///
/// ```compile_fail,E0502
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// let mut tokens = gpumem::Buffer::<u32>::new(&device, 3)?;
/// let part = tokens.as_slice();
/// tokens.resize(2)?;
/// instance.copy(part, &[1, 2, 3])?;
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// Nor can the elements that the CPU has borrowed be, or be used by other work meanwhile:
///
/// ```compile_fail,E0499
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// let mut table = gpumem::Buffer::<u32>::new(&device, 3)?;
/// let values = table.host_mut()?;
/// table.resize(2)?;
/// values[2] = 7;
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// ```compile_fail,E0502
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// let mut table = gpumem::Buffer::<u32>::new(&device, 3)?;
/// let values = table.host()?;
/// instance.fill(&table, 7u32)?;
/// assert_eq!(values[0], 7);
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Buffer<T: Element> {
    inner: Arc<BufferInner>,
    len: usize,
    base: u64,
    /// Bytes that have memory.
    capacity: u64,
    /// Bytes of addresses.
    reserved: u64,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Makes a buffer of `len` elements on a device.
    ///
    /// # Errors
    /// If `len` elements are more than can be addressed, and as `gpumem_buffer_create()`.
    pub fn new(device: &Device, len: usize) -> Result<Self, Error> {
        Self::with_options(device, len, &BufferOptions::new())
    }

    /// As [`new`](Self::new), with options. For memory of the host, the device is the one that may access it.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if an option cannot be granted.
    pub fn with_options(device: &Device, len: usize, options: &BufferOptions) -> Result<Self, Error> {
        const FUNCTION: &str = "Buffer::new";
        let size = bytes_of::<T>(len, FUNCTION)? as u64;
        let name = c_text(options.name.as_deref(), "BufferOptions::name")?;
        let (location, location_id) = options.place.map_or((0, 0), Place::to_c);
        let accesses = describe_accesses(&options.accesses);
        let desc = sys::gpumem_buffer_desc {
            size,
            reserve: options.reserve,
            location,
            location_id,
            handle_types: options.handle_types.0,
            require: options.require.0,
            prefer: options.prefer.0,
            flags: options.flags.0,
            accesses: first_access(&accesses),
            access_count: accesses.len() as u64,
            name: c_pointer(&name),
            ..Default::default()
        };
        let instance = device.instance.clone();
        instance.retry();
        let lending = options.place.map(|_| Lending::lock());
        let mut handle = ptr::null_mut();
        // SAFETY: the struct, its entries and its text live during the call; the output is writable.
        unsafe { call!(gpumem_buffer_create(device.handle, &desc, &mut handle)) }?;
        let movable = options.flags.contains(BufferFlags::MOVABLE);
        let (lent, uses) = (Mutex::default(), Uses::default());
        let inner = Arc::new(BufferInner { handle, instance, movable, lent, uses });
        let mut buffer = Self { inner, len, base: 0, capacity: 0, reserved: 0, elements: PhantomData };
        buffer.refresh()?;
        if let Some(mut lending) = lending {
            *lock(&buffer.inner.lent) = Some(lending.add(buffer.base, buffer.reserved));
        }
        if buffer.base % align_of::<T>() as u64 != 0 {
            return Err(Error::invalid(FUNCTION, "the elements need more alignment than a buffer has"));
        }
        Ok(buffer)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of elements that have memory, or had when the buffer went to sleep.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match size_of::<T>() {
            0 => usize::MAX,
            bytes => usize::try_from(self.capacity / bytes as u64).unwrap_or(usize::MAX),
        }
    }

    /// Grows or shrinks the buffer. The elements that remain are not touched, new ones have indeterminate values. If it
    /// fails, the buffer is as it was.
    ///
    /// Growing maps one more block, as large as what is missing, and work may go on meanwhile. Only if the reserved
    /// addresses are used up, and the buffer is [`MOVABLE`](BufferFlags::MOVABLE), it moves. Shrinking gives back each
    /// block that lies whole behind the new size.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream was not observed complete that uses elements which are to go, or a buffer
    /// which is to move; [`ErrorKind::InvalidState`] if the buffer is asleep; and as `gpumem_buffer_resize()`.
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        const FUNCTION: &str = "Buffer::resize";
        let bytes = bytes_of::<T>(len, FUNCTION)? as u64;
        if bytes < self.bytes() {
            self.inner.uses.refuse((bytes, u64::MAX), "buffer", FUNCTION)?;
        }
        let handle = self.inner.handle;
        // SAFETY: no safe work uses what is given back, and all other access is unsafe.
        self.provide(bytes, FUNCTION, || unsafe { call!(gpumem_buffer_resize(handle, bytes)).map(drop) })?;
        self.len = len;
        self.refresh()
    }

    /// Gives memory to at least `additional` more elements, ahead of growth. Nothing happens if they have it.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn reserve_exact(&mut self, additional: usize) -> Result<(), Error> {
        match self.len.checked_add(additional) {
            Some(wanted) if wanted <= self.capacity() => Ok(()),
            wanted => self.set_capacity(wanted.unwrap_or(usize::MAX), "Buffer::reserve_exact"),
        }
    }

    /// Gives back each block of which no element is used.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn shrink_to_fit(&mut self) -> Result<(), Error> {
        self.set_capacity(0, "Buffer::shrink_to_fit")
    }

    /// Gives back each block that lies whole behind the elements and behind `min_capacity`. Nothing happens if the
    /// capacity is smaller.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn shrink_to(&mut self, min_capacity: usize) -> Result<(), Error> {
        let wanted = min_capacity.max(self.len);
        if wanted >= self.capacity() {
            return Ok(());
        }
        self.set_capacity(wanted, "Buffer::shrink_to")
    }

    fn set_capacity(&mut self, elements: usize, function: &'static str) -> Result<(), Error> {
        let (bytes, handle) = (bytes_of::<T>(elements, function)? as u64, self.inner.handle);
        // SAFETY: nothing uses what lies behind the elements.
        self.provide(bytes, function, || unsafe {
            call!(gpumem_buffer_set_capacity(handle, bytes))
                .map(drop)
                .map_err(|error| error.called_as(function))
        })?;
        self.refresh()
    }

    /// Makes a call that gives memory to so many bytes, and may move the buffer.
    fn provide(
        &mut self,
        bytes: u64,
        function: &'static str,
        call: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.inner.movable || bytes <= self.reserved {
            return call();
        }
        self.inner.uses.refuse((0, u64::MAX), "buffer", function)?;
        if lock(&self.inner.lent).is_none() {
            return call();
        }
        // Nobody makes an alias between the move and the entry of the new addresses.
        let mut lending = Lending::lock();
        call()?;
        self.refresh()?;
        let lent = Some(lending.add(self.base, self.reserved));
        drop(lending);
        *lock(&self.inner.lent) = lent;
        Ok(())
    }

    /// Learns what a call has changed.
    fn refresh(&mut self) -> Result<(), Error> {
        let info = info(self.inner.handle)?;
        self.base = info.base as u64;
        self.capacity = info.capacity;
        self.reserved = info.reserved_size;
        Ok(())
    }

    /// Sets what processors may do with the buffer, now and as it grows. Processors that are not named keep what they
    /// have.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses the buffer that was not observed complete, unless everything that is
    /// set is [`Access::READ_WRITE`]; [`ErrorKind::InvalidState`] if it is asleep; and as `gpumem_buffer_set_access()`.
    pub fn set_access(&mut self, accesses: &[(Processor, Access)]) -> Result<(), Error> {
        if takes_away(accesses) {
            self.inner.uses.refuse((0, u64::MAX), "buffer", "Buffer::set_access")?;
        }
        let described = describe_accesses(accesses);
        let (handle, first) = (self.inner.handle, first_access(&described));
        // SAFETY: there are as many entries.
        unsafe { call!(gpumem_buffer_set_access(handle, first, described.len() as u64)) }?;
        Ok(())
    }

    /// Gives the memory back, and keeps the addresses. If it fails, the buffer is awake, with its content.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete, [`ErrorKind::InvalidState`] if it
    /// is asleep already, and as `gpumem_buffer_sleep()`.
    pub fn sleep(&mut self, content: Content) -> Result<(), Error> {
        self.inner.uses.refuse((0, u64::MAX), "buffer", "Buffer::sleep")?;
        // SAFETY: no safe work uses the buffer, and all other access is unsafe.
        unsafe { call!(gpumem_buffer_sleep(self.inner.handle, content.0)) }?;
        Ok(())
    }

    /// Wakes the buffer: at the same address, with its size, the access of each processor, and the content that was
    /// kept. If it fails, the buffer sleeps on, and nothing is lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if it is awake, and as `gpumem_buffer_wake()`.
    pub fn wake(&mut self) -> Result<(), Error> {
        // SAFETY: only a handle.
        unsafe { call!(gpumem_buffer_wake(self.inner.handle)) }?;
        Ok(())
    }

    /// The elements for the CPU, to read. The memory must lie on the host, and the CPU must have access.
    ///
    /// It needs the buffer by `&mut`, because other work writes a shared one.
    ///
    /// # Errors
    /// [`ErrorKind::NoAccess`] if the CPU may not read the buffer, [`ErrorKind::Busy`] if work in a stream uses it that
    /// was not observed complete, [`ErrorKind::DeviceLost`] if it never will be, and [`ErrorKind::InvalidState`] if the
    /// buffer is asleep.
    pub fn host(&mut self) -> Result<&[T], Error> {
        let start = self.for_cpu("Buffer::host", &[Access::READ, Access::READ_WRITE])?;
        // SAFETY: the CPU may read the elements. Any bits are values, and as the memory comes from the system, there are
        // some. No work uses the buffer, and none can begin while it is borrowed mutably. No alias can be made (`Lent`).
        Ok(unsafe { slice::from_raw_parts(start.as_ptr(), self.len) })
    }

    /// The elements for the CPU, to read and write. See [`host`](Self::host).
    ///
    /// # Errors
    /// As [`host`](Self::host), and [`ErrorKind::NoAccess`] if the CPU may only read.
    pub fn host_mut(&mut self) -> Result<&mut [T], Error> {
        let start = self.for_cpu("Buffer::host_mut", &[Access::READ_WRITE])?;
        // SAFETY: as above; and the CPU may write.
        Ok(unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.len) })
    }

    /// The first element, if the CPU has one of these rights, and no work uses the buffer.
    fn for_cpu(&self, function: &'static str, sufficient: &[Access]) -> Result<NonNull<T>, Error> {
        let refused = |kind, status, message| Err(Error::own(kind, status, function, message));
        if lock(&self.inner.lent).is_none() {
            let message = "the buffer lies on the device; make it with BufferOptions::host, or copy from it";
            return refused(ErrorKind::NoAccess, Status::NO_ACCESS, message);
        }
        self.inner.uses.refuse((0, u64::MAX), "buffer", function)?;
        if self.inner.uses.are_abandoned() {
            let message = "the device was lost while work used the buffer, and the work may go on";
            return refused(ErrorKind::DeviceLost, Status::DEVICE_LOST, message);
        }
        let info = self.info().map_err(|error| error.called_as(function))?;
        if info.asleep {
            let message = "the buffer is asleep; call Buffer::wake first";
            return refused(ErrorKind::InvalidState, Status::INVALID_STATE, message);
        }
        if self.bytes() == 0 {
            return Ok(NonNull::dangling());
        }
        let instance = Instance { inner: self.inner.instance.clone() };
        let access = instance.pointer_access(info.base, Processor::Cpu);
        let access = access.map_err(|error| error.called_as(function))?;
        match NonNull::new(info.base.cast()) {
            Some(start) if sufficient.contains(&access) => Ok(start),
            _ => {
                let message = "the CPU has no such access to the buffer; call Buffer::set_access first";
                refused(ErrorKind::NoAccess, Status::NO_ACCESS, message)
            }
        }
    }

    /// A part of the buffer, as an operand of copies and fills; `None` if the range exceeds the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Option<BufferSlice<'_, T>> {
        let (start, len) = part_of(self.len, &range)?;
        Some(BufferSlice { whole: self, start, len })
    }

    /// The whole buffer as a part of itself.
    #[must_use]
    pub fn as_slice(&self) -> BufferSlice<'_, T> {
        BufferSlice { whole: self, start: 0, len: self.len }
    }

    /// The first element, for code that orders its accesses itself. Only a buffer that moves changes it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.base as *mut T
    }

    /// Address of the first element for kernels.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.base
    }

    /// Handle for calls of [`sys`](crate::sys). They must not change the buffer.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_buffer {
        self.inner.handle
    }

    fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Information about the buffer. Works after its device was lost.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process, and [`ErrorKind::InvalidState`] in a host function.
    pub fn info(&self) -> Result<BufferInfo, Error> {
        info(self.inner.handle)
    }

    /// Frees the buffer, awake or asleep. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete. The buffer is returned.
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        let closed = match Arc::get_mut(&mut self.inner) {
            Some(inner) => Remains::Buffer(inner.handle, None).release().map(|()| {
                inner.handle = ptr::null_mut();
            }),
            None => Err(busy("buffer", "Buffer::close")),
        };
        closed.map_err(|error| Rejected::new(self, error))
    }
}

fn info(handle: sys::gpumem_buffer) -> Result<BufferInfo, Error> {
    let mut info = sys::gpumem_buffer_info::default();
    // SAFETY: the struct is writable and has its own size.
    unsafe { call!(gpumem_buffer_get_info(handle, &mut info)) }?;
    Ok(BufferInfo {
        base: info.base,
        size: info.size,
        capacity: info.capacity,
        reserved_size: info.reserved_size,
        granularity: info.granularity,
        block_count: info.block_count,
        generation: info.generation,
        stored_size: info.stored_size,
        place: Place::of_c(info.location, info.location_id),
        device_ordinal: info.device_ordinal,
        asleep: info.asleep != 0,
        range: info.range,
        buffer_id: info.buffer_id,
        name: array_text(&info.name),
    })
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Buffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("base", &self.as_ptr())
            .finish()
    }
}

/// A part of a [`Buffer`], as an operand of copies and fills.
#[derive(Debug)]
pub struct BufferSlice<'a, T: Element> {
    whole: &'a Buffer<T>,
    start: usize,
    len: usize,
}

impl<T: Element> Clone for BufferSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Element> Copy for BufferSlice<'_, T> {}

impl<T: Element> BufferSlice<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first element for kernels.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.start() as u64
    }

    pub(crate) fn as_slice(&self) -> Self {
        *self
    }

    pub(crate) fn start(&self) -> *mut T {
        self.whole.as_ptr().wrapping_add(self.start)
    }

    /// Marks the part as used by work in a stream; `None` if there are no bytes.
    pub(crate) fn begin_use(&self) -> Option<Use> {
        let of_bytes = |elements| (elements * size_of::<T>()) as u64;
        Use::begin(self.whole.inner.clone(), of_bytes(self.start), of_bytes(self.len))
    }
}

/// Information about a buffer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BufferInfo {
    /// First byte.
    pub base: *mut c_void,
    /// Bytes of its elements.
    pub size: u64,
    /// Bytes that have memory, or had when the buffer went to sleep.
    pub capacity: u64,
    /// Bytes of addresses: what the buffer can grow to in place.
    pub reserved_size: u64,
    /// Unit in which it grows, in bytes.
    pub granularity: u64,
    /// Blocks of physical memory that it is made of.
    pub block_count: u64,
    /// How often it has woken or moved: what other code derived from it before is out of date.
    pub generation: u64,
    /// Bytes of the host that keep its content while it sleeps.
    pub stored_size: u64,
    /// Where its memory lies.
    pub place: Place,
    /// Ordinal of the device given at creation.
    pub device_ordinal: u32,
    /// Whether it sleeps.
    pub asleep: bool,
    /// Handle of the range that it is mapped in. Only the buffer may change it.
    pub range: sys::gpumem_range,
    /// Number of the reservation, unique in the process and never reused.
    pub buffer_id: u64,
    /// As given at creation.
    pub name: String,
}
