// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Managed memory: arrays that the CPU and devices share, and where their pages lie.

use std::fmt;
use std::mem::{align_of, size_of, MaybeUninit};
use std::ops::{Deref, DerefMut, RangeBounds};
use std::os::raw::c_void;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use gpumem_sys as sys;

use crate::codes::{Advice, Attach, Capability, Kind, Location, MemoryFlags};
use crate::copy::sealed::Keep;
use crate::device::Device;
use crate::element::Element;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::infos::MemoryInfo;
use crate::instance::{lock, Instance, Processor};
use crate::library::{c, call};
use crate::memory::{Memory, MemoryOptions};
use crate::stream::{Enqueued, Stream, StreamInner};
use crate::typed::{array, part_of, Block};

/// A place where memory can lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Kind of place.
    pub location: Location,
    /// Ordinal of the device or number of the NUMA node; otherwise 0.
    pub id: u32,
}

impl Place {
    /// The host, any NUMA node.
    pub const HOST: Self = Self { location: Location::HOST, id: 0 };
    /// The NUMA node of the calling thread; only for prefetches and advice.
    pub const CURRENT_NUMA_NODE: Self = Self { location: Location::HOST_NUMA_CURRENT, id: 0 };

    /// The device with this ordinal.
    #[must_use]
    pub const fn device(ordinal: u32) -> Self {
        Self { location: Location::DEVICE, id: ordinal }
    }

    /// This NUMA node of the host.
    #[must_use]
    pub const fn numa_node(node: u32) -> Self {
        Self { location: Location::HOST_NUMA, id: node }
    }

    pub(crate) fn to_c(self) -> (sys::gpumem_location, i32) {
        (self.location.0, i32::try_from(self.id).unwrap_or(i32::MAX))
    }

    pub(crate) fn of_c(location: sys::gpumem_location, id: i32) -> Self {
        Self { location: Location(location), id: u32::try_from(id).unwrap_or(0) }
    }
}

/// An array with one address for the CPU and all devices; its pages move to where they are used.
///
/// The CPU accesses it through a guard, which begins an access and ends it when it is dropped: [`host`](Self::host) or
/// [`host_mut`](Self::host_mut). To begin one waits until the CPU may touch the memory. Where all devices are
/// concurrent ([`Capability::MANAGED_CONCURRENT`]) that is at once.
///
/// Copies and fills take it like a [`Pinned`](crate::Pinned) array: by reference if they are done when the call
/// returns, by value in a stream. Those of another instance refuse it with [`ErrorKind::NotFound`].
///
/// ```
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// let mut numbers = gpumem::Managed::<u32>::zeroed(&device, 4)?;
/// numbers.host_mut()?[2] = 7;
/// let memory = gpumem::DeviceMemory::<u32>::new(&device, 4)?;
/// instance.copy(&memory, &numbers)?;
/// assert_eq!(memory.to_vec()?, *numbers.host()?);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// While the CPU has access, no work can be given the array:
///
/// ```compile_fail,E0505
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let stream = gpumem::Stream::new(&device)?;
/// # let memory = gpumem::DeviceMemory::<u32>::new(&device, 4)?;
/// let numbers = gpumem::Managed::<u32>::zeroed(&device, 4)?;
/// let seen = numbers.host()?;
/// drop(stream.copy(&memory, numbers)?);
/// assert_eq!(seen[0], 0);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// ```compile_fail,E0499
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// let mut numbers = gpumem::Managed::<u32>::zeroed(&device, 4)?;
/// let mut seen = numbers.host_mut()?;
/// instance.fill(&mut numbers, 7u32)?;
/// seen[0] = 1;
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// The values cannot outlive the guard:
///
/// ```compile_fail,E0716
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// let numbers = gpumem::Managed::<u32>::zeroed(&device, 4)?;
/// let second = numbers.host()?.get(1);
/// assert_eq!(second, Some(&0));
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Managed<T: Element> {
    block: Block<T>,
}
array!(Managed);

impl<T: Element> Managed<T> {
    /// Allocates memory for `len` elements, with all bits 0, written by the CPU.
    ///
    /// # Errors
    /// If there is not enough memory, the device has no managed memory, or `len` elements are more than can be
    /// addressed.
    pub fn zeroed(device: &Device, len: usize) -> Result<Self, Error> {
        Self::zeroed_with_options(device, len, &MemoryOptions::new())
            .map_err(|error| error.called_as("Managed::zeroed"))
    }

    /// As [`zeroed`](Self::zeroed), with options, such as [`MemoryFlags::ATTACH_HOST`].
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and if an option cannot be granted.
    pub fn zeroed_with_options(device: &Device, len: usize, options: &MemoryOptions) -> Result<Self, Error> {
        const FUNCTION: &str = "Managed::zeroed_with_options";
        let mut array = Managed::<MaybeUninit<T>>::uninit_with_options(device, len, options)
            .map_err(|error| error.called_as(FUNCTION))?;
        let mut access = array.first_of(FUNCTION)?;
        // SAFETY: there is room for all of them, and the CPU has access.
        unsafe { ptr::write_bytes(access.as_mut_ptr(), 0, len) };
        drop(access);
        // SAFETY: all bits are written, and 0 is a value.
        Ok(unsafe { array.assume_init() })
    }

    /// Begins an access of the CPU for reading. It waits until the CPU may touch the memory, and ends when the guard
    /// is dropped.
    ///
    /// On a device that is not concurrent, [`Attach`] says what there is to wait for. While the guard lives, the memory
    /// is attached to the host, so that other work of the device takes nothing from the CPU, and work on this memory
    /// fails with [`ErrorKind::Busy`]. Several guards for reading may live at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] in a host function, or if a stream to wait for is being captured;
    /// [`ErrorKind::DeviceLost`] if a device to wait for is lost.
    pub fn host(&self) -> Result<HostAccess<'_, T>, Error> {
        begin(self.memory(), Turns::take, "Managed::host")?;
        Ok(HostAccess { array: self })
    }

    /// As [`host`](Self::host), for reading and writing.
    ///
    /// # Errors
    /// As [`host`](Self::host).
    pub fn host_mut(&mut self) -> Result<HostAccessMut<'_, T>, Error> {
        begin(self.memory(), Turns::take, "Managed::host_mut")?;
        Ok(HostAccessMut { array: self })
    }

    /// A part of the array, for a hint or a query. The whole array converts to a [`ManagedRange`] by itself.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range exceeds the array.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<ManagedRange<'_>, Error> {
        let (start, len) = part_of(self.len(), &range, "Managed::range")?;
        let of_bytes = |elements| (elements * size_of::<T>()) as u64;
        Ok(ManagedRange { memory: self.memory(), offset: of_bytes(start), bytes: of_bytes(len) })
    }

    /// The first element, for code that orders its accesses itself, such as a function in a stream.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.block.start()
    }

    /// The same array without a claim about its values, so that they can be discarded.
    #[must_use]
    pub fn into_uninit(self) -> Managed<MaybeUninit<T>> {
        Managed { block: self.block.cast() }
    }
}

impl<T: Element + Copy> Managed<T> {
    /// Allocates memory with these values, written by the CPU.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice(device: &Device, values: &[T]) -> Result<Self, Error> {
        const FUNCTION: &str = "Managed::from_slice";
        let mut array = Managed::<MaybeUninit<T>>::uninit(device, values.len())
            .map_err(|error| error.called_as(FUNCTION))?;
        let mut access = array.first_of(FUNCTION)?;
        // SAFETY: there is room for all of them, they do not overlap what was just allocated, and the CPU has access.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), access.as_mut_ptr().cast(), values.len()) };
        drop(access);
        // SAFETY: all of it is written.
        Ok(unsafe { array.assume_init() })
    }
}

impl<T: Element> Managed<MaybeUninit<T>> {
    /// Allocates memory for `len` elements, with indeterminate values.
    ///
    /// # Errors
    /// As [`Managed::zeroed`].
    pub fn uninit(device: &Device, len: usize) -> Result<Self, Error> {
        Self::uninit_with_options(device, len, &MemoryOptions::new())
            .map_err(|error| error.called_as("Managed::uninit"))
    }

    /// As [`uninit`](Self::uninit), with options.
    ///
    /// # Errors
    /// As [`Managed::zeroed_with_options`].
    pub fn uninit_with_options(device: &Device, len: usize, options: &MemoryOptions) -> Result<Self, Error> {
        let mut block = Block::allocate(device, Kind::MANAGED, len, options, "Managed::uninit_with_options")?;
        if let Some(memory) = block.memory_mut() {
            let turns = Turns::of(device, memory)?;
            memory.set_turns(turns);
        }
        Ok(Self { block })
    }

    /// As [`host_mut`](Self::host_mut), before any work can use the array.
    fn first_of(&mut self, function: &'static str) -> Result<HostAccessMut<'_, MaybeUninit<T>>, Error> {
        begin(self.memory(), Turns::take_first, function)?;
        Ok(HostAccessMut { array: self })
    }

    /// Declares that the values are initialised.
    ///
    /// # Safety
    /// All of it must have been written since it was allocated or discarded.
    #[must_use]
    pub unsafe fn assume_init(self) -> Managed<T> {
        Managed { block: self.block.cast() }
    }
}

/// Attaches an array to the host while the CPU has access, on devices that are not concurrent. Otherwise any other work,
/// even of other code, would take its pages from the CPU.
pub(crate) struct Turns {
    /// Attaches the array to the host and back, and does nothing else.
    stream: Stream,
    turn: Mutex<Turn>,
    /// The first access has begun, or has failed to.
    begun: Condvar,
}

struct Turn {
    guards: usize,
    /// Whether a thread begins the first access. It does not hold the lock while it waits for work.
    begins: bool,
    /// What the program attached the array to, and the stream if it is one.
    attached: Attach,
    owner: Weak<StreamInner>,
    /// What it was created with.
    initial: Attach,
}

impl Turns {
    /// `None` if all devices are concurrent.
    fn of(device: &Device, memory: &Memory) -> Result<Option<Self>, Error> {
        let concurrent = |device: &Device| {
            device.capability(Capability::MANAGED_CONCURRENT, None).map(|info| info.is_supported())
        };
        let mut exclusive = false;
        for device in device.instance().devices()? {
            exclusive |= !concurrent(&device)?;
        }
        if !exclusive {
            return Ok(None);
        }
        let for_host = memory.info()?.granted_flags.contains(MemoryFlags::ATTACH_HOST);
        let initial = if for_host { Attach::HOST } else { Attach::GLOBAL };
        let turn = Turn { guards: 0, begins: false, attached: initial, owner: Weak::new(), initial };
        let (turn, begun) = (Mutex::new(turn), Condvar::new());
        Ok(Some(Self { stream: Stream::new(device)?, turn, begun }))
    }

    /// Begins an access, and takes the array to the host for the first one. Only one thread does that at a time: the access
    /// of another one would keep the array from being attached.
    fn take(&self, memory: &Memory) -> Result<(), Error> {
        let mut turn = lock(&self.turn);
        while turn.begins {
            // Fails where nothing may be waited for, as in a host function, which the first access may wait for.
            self.stream.is_complete()?;
            turn = self.begun.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        if turn.guards == 0 {
            turn.begins = true;
            drop(turn);
            let begun = begin_access(memory);
            turn = lock(&self.turn);
            turn.begins = false;
            self.begun.notify_all();
            begun?;
            if turn.attached != Attach::HOST {
                // It cannot be attached during an access.
                end_access(memory)?;
                self.attach_to_host(memory)?;
                begin_access(memory)?;
            }
        } else {
            begin_access(memory)?;
        }
        turn.guards += 1;
        Ok(())
    }

    /// As [`take`](Self::take), of an array that no work can use yet, and so waits for none.
    fn take_first(&self, memory: &Memory) -> Result<(), Error> {
        let mut turn = lock(&self.turn);
        if turn.attached != Attach::HOST {
            self.attach_to_host(memory)?;
        }
        begin_access(memory)?;
        turn.guards += 1;
        Ok(())
    }

    fn attach_to_host(&self, memory: &Memory) -> Result<(), Error> {
        // SAFETY: an attachment to the host takes nothing from the CPU, and the caller holds the memory.
        unsafe { self.stream.attach_raw(memory.host_pointer(), 0, Attach::HOST) }?;
        self.stream.synchronize()
    }

    /// Ends an access, and takes the array back to where it was after the last one.
    fn give(&self, memory: &Memory) -> Result<(), Error> {
        let mut turn = lock(&self.turn);
        turn.guards -= 1;
        end_access(memory)?;
        if turn.guards != 0 || turn.attached == Attach::HOST {
            return Ok(());
        }
        let pointer = memory.host_pointer();
        if turn.attached == Attach::SINGLE {
            if let Some(inner) = turn.owner.upgrade() {
                // SAFETY: no access of the CPU has begun, and the caller holds the memory.
                if unsafe { Stream { inner }.attach_raw(pointer, 0, Attach::SINGLE) }.is_ok() {
                    return Ok(());
                }
            }
            // That stream is gone.
            turn.attached = turn.initial;
        }
        // SAFETY: as above.
        unsafe { self.stream.attach_raw(pointer, 0, turn.attached) }?;
        self.stream.synchronize()
    }
}

fn begin_access(memory: &Memory) -> Result<(), Error> {
    let instance = memory.allocation.instance().handle;
    // SAFETY: any address may be given.
    unsafe { call!(gpumem_managed_begin_host_access(instance, memory.host_pointer())) }.map(drop)
}

fn end_access(memory: &Memory) -> Result<(), Error> {
    let instance = memory.allocation.instance().handle;
    // SAFETY: the caller has begun the access.
    unsafe { call!(gpumem_managed_end_host_access(instance, memory.host_pointer())) }.map(drop)
}

fn begin(
    memory: Option<&Memory>,
    take: fn(&Turns, &Memory) -> Result<(), Error>,
    function: &'static str,
) -> Result<(), Error> {
    memory.map_or(Ok(()), |memory| {
        match memory.turns() {
            Some(turns) => memory.allocation.instance().check(function).and_then(|()| take(turns, memory)),
            None => begin_access(memory),
        }
        .map_err(|error| error.called_as(function))
    })
}

/// Ends an access in a drop.
fn end(memory: Option<&Memory>) {
    if let Some(memory) = memory {
        // It fails if the memory is gone, or the device is lost.
        let _ = match memory.turns() {
            Some(turns) => memory.allocation.instance().check("drop").and_then(|()| turns.give(memory)),
            None => end_access(memory),
        };
    }
}

/// An access of the CPU to a [`Managed`] array, for reading. It ends when this is dropped. If it is forgotten, it never
/// ends, and the array can neither be used nor freed by devices that are not concurrent.
// It has a reference to the array and not to the values: those may change as soon as the access has ended, even while
// `drop` still runs.
#[must_use]
pub struct HostAccess<'a, T: Element> {
    array: &'a Managed<T>,
}

/// An access of the CPU to a [`Managed`] array, for reading and writing. See [`HostAccess`].
#[must_use]
pub struct HostAccessMut<'a, T: Element> {
    array: &'a mut Managed<T>,
}

impl<T: Element> Deref for HostAccess<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the access has begun. Safe work that writes needs the array by value or by `&mut`.
        unsafe { self.array.block.as_slice() }
    }
}

impl<T: Element> Deref for HostAccessMut<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: as above.
        unsafe { self.array.block.as_slice() }
    }
}

impl<T: Element> DerefMut for HostAccessMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the access has begun, and no safe work can use the array, which is borrowed mutably.
        unsafe { self.array.block.as_mut_slice() }
    }
}

impl<T: Element> Drop for HostAccess<'_, T> {
    fn drop(&mut self) {
        end(self.array.memory());
    }
}

impl<T: Element> Drop for HostAccessMut<'_, T> {
    fn drop(&mut self) {
        end(self.array.memory());
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for HostAccess<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for HostAccessMut<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

/// Bytes of a [`Managed`] array, for hints and queries. They act on whole pages: on every page that has a byte of it.
#[derive(Clone, Copy, Debug)]
pub struct ManagedRange<'a> {
    memory: Option<&'a Memory>,
    offset: u64,
    bytes: u64,
}

impl<'a, T: Element> From<&'a Managed<T>> for ManagedRange<'a> {
    fn from(array: &'a Managed<T>) -> Self {
        Self { memory: array.memory(), offset: 0, bytes: (array.len() * size_of::<T>()) as u64 }
    }
}

impl<'a> ManagedRange<'a> {
    /// Memory, address and size, for a call of this instance; `None` if there are no bytes.
    fn parts(
        &self,
        instance: &Instance,
        function: &'static str,
    ) -> Result<Option<(&'a Memory, *mut c_void, u64)>, Error> {
        let memory = match self.memory {
            Some(memory) if self.bytes != 0 => memory,
            _ => return Ok(None),
        };
        check_owner(memory.managed_by(), instance, function)?;
        let start = memory.host_pointer().cast::<u8>().wrapping_add(self.offset as usize);
        Ok(Some((memory, start.cast(), self.bytes)))
    }
}

/// Fails if this is the instance of managed memory, or NULL, and not that of the call. The library would take the memory
/// for ordinary memory, or for that of other code.
pub(crate) fn check_owner(
    owner: sys::gpumem_instance,
    instance: &Instance,
    function: &'static str,
) -> Result<(), Error> {
    if owner.is_null() || owner == instance.inner.handle {
        return Ok(());
    }
    let message = "the array is managed memory of another instance of this process; make the call there";
    Err(Error::own(Status::NOT_FOUND, function, message))
}

fn describe(pointer: *mut c_void, bytes: u64, place: Option<Place>) -> sys::gpumem_managed_range {
    let (location, location_id) = place.map_or((0, 0), Place::to_c);
    sys::gpumem_managed_range { pointer, size: bytes, location, location_id, ..Default::default() }
}

/// What is known about a range of managed memory, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagedInfo {
    /// Whether every page is read-mostly.
    pub read_mostly: bool,
    /// Preferred location that all pages share.
    pub preferred_location: Option<Place>,
    /// Location that all pages were last asked to move to.
    pub last_prefetch_location: Option<Place>,
    /// Processors that are set as accessors of every page.
    pub accessed_by: Vec<Processor>,
}

impl ManagedInfo {
    pub(crate) fn of(info: &sys::gpumem_managed_info) -> Self {
        let place = |location, id| (location != Location::NONE.0).then(|| Place::of_c(location, id));
        let cpu = (info.accessed_by_host != 0).then_some(Processor::Cpu);
        let devices = (0..u64::BITS).filter(|ordinal| info.accessed_by_devices >> ordinal & 1 != 0);
        Self {
            read_mostly: info.read_mostly != 0,
            preferred_location: place(info.preferred_location, info.preferred_location_id),
            last_prefetch_location: place(info.last_prefetch_location, info.last_prefetch_location_id),
            accessed_by: cpu.into_iter().chain(devices.map(Processor::Device)).collect(),
        }
    }
}

/// Advice about managed memory, and accesses of the CPU by address.
impl Instance {
    /// Advises how a range will be used. No value changes, and nothing moves now. Returns `false` if the device or the
    /// driver cannot use the advice; nothing changed then.
    ///
    /// `place` is for advice about a location. [`Advice::SET_ACCESSED_BY`] and [`Advice::UNSET_ACCESSED_BY`] take a
    /// device or [`Place::HOST`].
    ///
    /// ```
    /// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
    /// # let device = instance.device(0)?;
    /// use gpumem::{Advice, Managed, Place};
    ///
    /// let weights = Managed::<f32>::zeroed(&device, 1 << 20)?;
    /// instance.advise(&weights, Advice::SET_READ_MOSTLY, None)?;
    /// instance.advise(weights.range(..1024)?, Advice::SET_PREFERRED_LOCATION, Some(Place::device(0)))?;
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::NotFound`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::InvalidState`] or [`ErrorKind::DeviceLost`], as the message says.
    pub fn advise<'a>(
        &self,
        range: impl Into<ManagedRange<'a>>,
        advice: Advice,
        place: Option<Place>,
    ) -> Result<bool, Error> {
        match range.into().parts(self, "Instance::advise")? {
            Some((_, pointer, bytes)) => self
                .advise_raw(pointer, bytes, advice, place)
                .map_err(|error| error.called_as("Instance::advise")),
            None => Ok(true),
        }
    }

    /// The advice and the last prefetch of a range.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a range without bytes; otherwise [`ErrorKind::WrongKind`],
    /// [`ErrorKind::NotFound`], [`ErrorKind::InvalidState`] or [`ErrorKind::DeviceLost`].
    pub fn managed_info<'a>(&self, range: impl Into<ManagedRange<'a>>) -> Result<ManagedInfo, Error> {
        match range.into().parts(self, "Instance::managed_info")? {
            Some((_, pointer, bytes)) => self
                .managed_info_raw(pointer, bytes)
                .map_err(|error| error.called_as("Instance::managed_info")),
            None => Err(Error::invalid("Instance::managed_info", "the range has no bytes")),
        }
    }
}

/// Managed memory, in stream order.
impl Stream {
    /// Attaches managed memory, which says who may access it on devices that are not concurrent. It takes effect when
    /// the earlier work of the stream is complete, and replaces what the memory was attached to before. With
    /// [`Attach::SINGLE`] this stream alone may use the memory.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while the CPU has access; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::WrongKind`], [`ErrorKind::NotFound`], [`ErrorKind::Unsupported`], [`ErrorKind::InvalidState`] or
    /// [`ErrorKind::DeviceLost`].
    pub fn attach<T: Element>(&self, array: &Managed<T>, attach: Attach) -> Result<(), Error> {
        if let Some((memory, pointer, _)) =
            ManagedRange::from(array).parts(self.instance(), "Stream::attach")?
        {
            memory.allocation.instance().check("Stream::attach")?;
            let turn = memory.turns().map(|turns| lock(&turns.turn));
            // SAFETY: the stream keeps the memory alive; the library refuses it while the CPU has access.
            unsafe { self.attach_raw(pointer, 0, attach) }?;
            if let Some(mut turn) = turn {
                turn.attached = attach;
                turn.owner = Arc::downgrade(&self.inner);
            }
            self.keep(Keep::Memory(memory.share()));
        }
        Ok(())
    }

    /// Moves a range to a place. It is never needed for correctness, and the memory may be used meanwhile. Returns
    /// `false` if the device or the driver cannot prefetch; nothing changed then.
    ///
    /// ```
    /// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
    /// # let device = instance.device(0)?;
    /// use gpumem::{Managed, Place, Stream};
    ///
    /// let stream = Stream::new(&device)?;
    /// let numbers = Managed::<u32>::zeroed(&device, 1 << 20)?;
    /// if stream.prefetch(&numbers, Place::device(0))? {
    ///     let moved = instance.managed_info(&numbers)?.last_prefetch_location;
    ///     assert_eq!(moved, Some(Place::device(0)));
    /// }
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::NotFound`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::InvalidState`] or [`ErrorKind::DeviceLost`], as the message says.
    pub fn prefetch<'a>(&self, range: impl Into<ManagedRange<'a>>, place: Place) -> Result<bool, Error> {
        let (memory, pointer, bytes) = match range.into().parts(self.instance(), "Stream::prefetch")? {
            Some(parts) => parts,
            None => return Ok(true),
        };
        // SAFETY: the stream keeps the memory alive.
        let used = unsafe { self.prefetch_raw(pointer, bytes, place) }?;
        if used {
            self.keep(Keep::Memory(memory.share()));
        }
        Ok(used)
    }

    /// Moves the ranges of a batch, each to its place. They are not ordered among themselves. Every range is checked
    /// before any is enqueued. Returns `false` as [`prefetch`](Self::prefetch).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::NotFound`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::OutOfMemory`], as the message says.
    pub fn prefetch_batch<'a, R: Into<ManagedRange<'a>>>(
        &self,
        ranges: impl IntoIterator<Item = (R, Place)>,
    ) -> Result<bool, Error> {
        let mut keeps = Vec::new();
        let mut described = Vec::new();
        for (range, place) in ranges {
            let parts = range.into().parts(self.instance(), "Stream::prefetch_batch")?;
            if let Some((memory, pointer, bytes)) = parts {
                keeps.push(Keep::Memory(memory.share()));
                described.push(describe(pointer, bytes, Some(place)));
            }
        }
        // SAFETY: the stream keeps the memory alive.
        let used = unsafe { self.prefetch_batch_raw(&described) }?;
        if used {
            self.keep_all(keeps);
        }
        Ok(used)
    }

    /// Discards the values of arrays, so that their pages need not be moved or kept. The arrays have elements that
    /// need not be initialised ([`Managed::into_uninit`]), and are returned once it is done. Where the driver or a
    /// device cannot discard ([`Capability::MANAGED_DISCARD`]), nothing happens.
    ///
    /// ```
    /// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
    /// # let stream = gpumem::Stream::new(&device)?;
    /// let scratch = gpumem::Managed::<u32>::zeroed(&device, 1 << 20)?;
    /// let scratch = stream.discard([scratch.into_uninit()])?.wait()?;
    /// assert_eq!(scratch[0].len(), 1 << 20);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::NotFound`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or [`ErrorKind::OutOfMemory`], as the message says.
    /// The arrays are returned.
    pub fn discard<T: Element>(
        &self,
        arrays: impl IntoIterator<Item = Managed<MaybeUninit<T>>>,
    ) -> Enqueued<Vec<Managed<MaybeUninit<T>>>> {
        self.discard_all(arrays.into_iter().map(|array| (array, None)), "Stream::discard", |ranges| {
            // SAFETY: the stream keeps the arrays alive, only the `Pending` could give access to them, and nothing
            // claims that they have values.
            unsafe { self.discard_batch_raw(ranges) }
        })
    }

    /// Discards the values of arrays, and moves each array to its place, without moving a byte. Otherwise as
    /// [`discard`](Self::discard).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::NotFound`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or [`ErrorKind::OutOfMemory`], as the message says.
    /// The arrays are returned.
    pub fn discard_and_prefetch<T: Element>(
        &self,
        arrays: impl IntoIterator<Item = (Managed<MaybeUninit<T>>, Place)>,
    ) -> Enqueued<Vec<Managed<MaybeUninit<T>>>> {
        let arrays = arrays.into_iter().map(|(array, place)| (array, Some(place)));
        self.discard_all(arrays, "Stream::discard_and_prefetch", |ranges| {
            // SAFETY: as in `discard`.
            unsafe { self.discard_and_prefetch_batch_raw(ranges) }
        })
    }

    fn discard_all<T: Element>(
        &self,
        arrays: impl Iterator<Item = (Managed<MaybeUninit<T>>, Option<Place>)>,
        function: &'static str,
        run: impl FnOnce(&[sys::gpumem_managed_range]) -> Result<bool, Error>,
    ) -> Enqueued<Vec<Managed<MaybeUninit<T>>>> {
        let mut keeps = Vec::new();
        let mut described = Vec::new();
        let mut taken = Vec::new();
        let mut refused = Ok(());
        for (array, place) in arrays {
            match ManagedRange::from(&array).parts(self.instance(), function) {
                Ok(Some((memory, pointer, bytes))) => {
                    keeps.push(Keep::Memory(memory.share()));
                    described.push(describe(pointer, bytes, place));
                }
                Ok(None) => {}
                Err(error) => refused = Err(error),
            }
            taken.push(array);
        }
        self.enqueue(taken, keeps, || refused.and_then(|()| Ok(run(&described)? && !described.is_empty())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_c() {
        assert_eq!(Place::device(3).to_c(), (sys::GPUMEM_LOCATION_DEVICE, 3));
        assert_eq!(Place::numa_node(u32::MAX).to_c(), (sys::GPUMEM_LOCATION_HOST_NUMA, i32::MAX));
        assert_eq!(Place::HOST.to_c(), (sys::GPUMEM_LOCATION_HOST, 0));
        assert_eq!(Place::CURRENT_NUMA_NODE.to_c(), (sys::GPUMEM_LOCATION_HOST_NUMA_CURRENT, 0));
        assert_eq!(Place::of_c(sys::GPUMEM_LOCATION_HOST, -1), Place::HOST);
        assert_eq!(Place::of_c(sys::GPUMEM_LOCATION_DEVICE, 3), Place::device(3));
    }

    #[test]
    fn information_is_that_of_c() {
        let nothing = ManagedInfo::of(&sys::gpumem_managed_info::default());
        assert_eq!((nothing.read_mostly, nothing.preferred_location), (false, None));
        assert_eq!((nothing.last_prefetch_location, nothing.accessed_by), (None, vec![]));
        let all = ManagedInfo::of(&sys::gpumem_managed_info {
            read_mostly: 1,
            preferred_location: sys::GPUMEM_LOCATION_HOST_NUMA,
            preferred_location_id: 1,
            last_prefetch_location: sys::GPUMEM_LOCATION_HOST,
            last_prefetch_location_id: -1,
            accessed_by_host: 1,
            accessed_by_devices: 1 << 63 | 1,
            ..Default::default()
        });
        assert!(all.read_mostly);
        assert_eq!(all.preferred_location, Some(Place::numa_node(1)));
        assert_eq!(all.last_prefetch_location, Some(Place::HOST));
        assert_eq!(all.accessed_by, [Processor::Cpu, Processor::Device(0), Processor::Device(63)]);
    }
}
