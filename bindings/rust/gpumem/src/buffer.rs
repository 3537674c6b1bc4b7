// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Arrays that grow in place and can sleep.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{align_of, size_of, ManuallyDrop};
use std::ops::{Deref, DerefMut, RangeBounds};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLockReadGuard};

use gpumem_sys as sys;

use crate::codes::{Access, BufferFlags, BufferState};
use crate::copy::sealed::{Keep, Span, Whole};
use crate::device::Device;
use crate::element::Element;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::group::{Group, GroupInner};
use crate::infos::BufferInfo;
use crate::instance::{c_pointer, c_text, first_of, lock, Inner, Instance, Processor};
use crate::library::{c, call, output_call};
use crate::managed::Place;
use crate::memory::Remains;
pub use crate::options::BufferOptions;
use crate::range::{describe_accesses, takes_away};
use crate::size::bytes_of;
use crate::sleep::{with_panics, BufferCallbacks, Callbacks, PrepareOptions, SleepOptions, WakeOptions};
use crate::stream::Stream;
use crate::typed::{parts, to_vec, Part};
use crate::uses::{busy, lost, Parts, Use, Uses};

impl BufferOptions {
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

    /// What a processor may do with the buffer. With this, nobody else has access, the device of the call included;
    /// call it again for each.
    #[must_use]
    pub fn access(mut self, processor: Processor, access: Access) -> Self {
        self.accesses.push((processor, access));
        self
    }

    /// The group that the buffer belongs to while it lives, of the same instance.
    #[must_use]
    pub fn group(mut self, group: &Group) -> Self {
        self.group = Some(group.share());
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

    /// Ends what is lent while this is held.
    fn end(&mut self, lent: Option<Lent>) {
        if let Some(lent) = lent.map(ManuallyDrop::new) {
            self.remove(lent.0);
        }
    }

    fn remove(&mut self, part: (u64, u64)) {
        if let Some(index) = self.0.iter().position(|other| *other == part) {
            self.0.swap_remove(index);
        }
    }
}

/// Addresses whose elements safe code may borrow for the CPU, until this is dropped. No alias of their memory may be
/// made, or other safe code could write what is borrowed.
pub struct Lent((u64, u64));

impl Drop for Lent {
    fn drop(&mut self) {
        Lending::lock().remove(self.0);
    }
}

/// What a buffer shares with its group, its registrations and its callbacks.
pub struct Shared {
    pub(crate) handle: sys::gpumem_buffer,
    instance: Arc<Inner>,
    on_host: bool,
    tag: Option<String>,
    /// First byte; 0 while it has no address.
    base: AtomicU64,
    /// Bytes that have memory, as last seen.
    capacity: AtomicU64,
    /// Bytes of addresses.
    reserved: AtomicU64,
    /// Number of calls and borrows that need it awake and in its place; [`CLOSED`] while its group sleeps or wakes, and
    /// [`ASLEEP`] from then on. Only of a buffer in a group: any other changes by `&mut` alone.
    holds: AtomicUsize,
    /// Of memory on the host.
    lent: Mutex<Option<Lent>>,
    uses: Uses,
}

const CLOSED: usize = usize::MAX;
const ASLEEP: usize = CLOSED - 1;

/// What a buffer in this state has as its holds while nothing uses it.
fn unheld(state: sys::gpumem_buffer_state) -> usize {
    if state == BufferState::AWAKE.0 {
        0
    } else {
        ASLEEP
    }
}

/// Why a buffer cannot be used now.
#[derive(Clone, Copy)]
pub enum Unusable {
    Asleep,
    Changing,
}

impl Unusable {
    pub(crate) fn error(self, function: &'static str) -> Error {
        let (status, message) = match self {
            Self::Asleep => {
                (Status::INVALID_STATE, "the buffer is asleep; call Buffer::wake or Group::wake first")
            }
            Self::Changing => {
                (Status::BUSY, "the group of the buffer sleeps or wakes now; try again when it has")
            }
        };
        Error::own(status, function, message)
    }
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn info(&self) -> Result<BufferInfo, Error> {
        self.c_info().map(|info| BufferInfo::of(&info))
    }

    fn c_info(&self) -> Result<sys::gpumem_buffer_info, Error> {
        let mut info = sys::gpumem_buffer_info::default();
        // SAFETY: the struct is writable and has its own size.
        unsafe { call!(gpumem_buffer_get_info(self.handle, &mut info)) }?;
        Ok(info)
    }

    /// Whether a call for this tag is for the buffer. To the library, an empty tag is none.
    pub(crate) fn has_tag(&self, tag: Option<&str>) -> bool {
        tag.map_or(true, |tag| tag.is_empty() || self.tag.as_deref() == Some(tag))
    }

    fn base(&self) -> u64 {
        self.base.load(Ordering::Acquire)
    }

    /// Learns what a call has changed, but not what is lent.
    fn learn(&self) -> Result<sys::gpumem_buffer_info, Error> {
        let learned = self.c_info();
        let base = match &learned {
            // An ordinary allocation is freed while it sleeps.
            Ok(info) if info.range.is_null() && info.state != BufferState::AWAKE.0 => 0,
            Ok(info) => info.base as u64,
            Err(_) => 0,
        };
        self.base.store(base, Ordering::Release);
        let info = learned?;
        self.capacity.store(info.capacity, Ordering::Release);
        self.reserved.store(info.reserved_size, Ordering::Release);
        Ok(info)
    }

    /// Learns what a call has changed.
    fn refresh(&self) -> Result<sys::gpumem_buffer_info, Error> {
        let before = (self.base(), self.reserved.load(Ordering::Acquire));
        let info = self.learn()?;
        if self.on_host && before != (self.base(), info.reserved_size) {
            self.lend(Lending::lock());
        }
        Ok(info)
    }

    /// Enters the addresses among those that are lent, in place of the ones before.
    fn lend(&self, mut lending: Lending) {
        let base = self.base();
        let lent = (base != 0).then(|| lending.add(base, self.reserved.load(Ordering::Acquire)));
        drop(lending);
        *lock(&self.lent) = lent;
    }
}

/// A call or a borrow that needs a buffer of a group awake and in its place.
pub struct Hold(Arc<Shared>);

impl Hold {
    fn begin(shared: &Arc<Shared>) -> Result<Self, Unusable> {
        let more = |holds: usize| (holds < ASLEEP - 1).then(|| holds + 1);
        match shared.holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Self(shared.clone())),
            Err(ASLEEP) => Err(Unusable::Asleep),
            Err(_) => Err(Unusable::Changing),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A buffer of a group that sleeps or wakes now: nothing uses it, and nothing can begin to.
pub(crate) struct Closed {
    shared: Arc<Shared>,
    /// Its holds from then on.
    after: usize,
}

impl Closed {
    /// One that is asleep never fails.
    pub(crate) fn new(shared: Arc<Shared>, function: &'static str) -> Result<Self, Error> {
        let close = |holds: usize| (holds == 0 || holds == ASLEEP).then_some(CLOSED);
        match shared.holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, close) {
            Ok(after) => Ok(Self { shared, after }),
            Err(_) => {
                let message = "a buffer of the group is borrowed by the CPU or used by a copy; try again when that is over";
                Err(Error::own(Status::BUSY, function, message))
            }
        }
    }

    /// Fails if work in a stream uses the buffer.
    pub(crate) fn refuse_uses(&self, function: &'static str) -> Result<(), Error> {
        self.shared.uses.refuse((0, u64::MAX), "buffer", function)
    }

    /// Learns what a call has changed. A buffer that was destroyed meanwhile has no users.
    pub(crate) fn learn(&mut self) {
        if let Ok(info) = self.shared.refresh() {
            self.after = unheld(info.state);
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.shared.holds.store(self.after, Ordering::Release);
    }
}

/// The one owner of a buffer.
struct BufferInner {
    /// NULL after it was closed.
    handle: sys::gpumem_buffer,
    movable: bool,
    /// Whether it is an allocation instead of a range.
    ordinary: bool,
    callbacks: Mutex<Option<Arc<Callbacks>>>,
    shared: Arc<Shared>,
    group: Option<Arc<GroupInner>>,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for BufferInner {}
// SAFETY: as above.
unsafe impl Sync for BufferInner {}

impl Parts for BufferInner {
    fn uses(&self) -> &Uses {
        &self.shared.uses
    }
    fn bytes(&self) -> u64 {
        self.shared.c_info().map_or(0, |info| info.capacity)
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // Lent no more before the memory goes: the next buffer may get the same addresses at once, and nothing borrows
            // these any more.
            drop(lock(&self.shared.lent).take());
            let callbacks = lock(&self.callbacks).take();
            Remains::Buffer(self.handle, callbacks).release_or_keep(&self.shared.instance);
        }
        if let Some(group) = &self.group {
            group.remove(&self.shared);
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
/// instance.fill(tokens.slice(3..)?, 9u32)?;
///
/// tokens.sleep(Content::PINNED)?;
/// tokens.wake()?;
/// let mut back = [0; 4];
/// instance.copy(&mut back, tokens.slice(..4)?)?;
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
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Makes a buffer of `len` elements on a device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `len` elements are more than can be addressed; otherwise
    /// [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`].
    pub fn new(device: &Device, len: usize) -> Result<Self, Error> {
        Self::with_options(device, len, &BufferOptions::new()).map_err(|error| error.called_as("Buffer::new"))
    }

    /// As [`new`](Self::new), with options. For memory of the host, the device is the one that may access it.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if an option cannot be granted.
    pub fn with_options(device: &Device, len: usize, options: &BufferOptions) -> Result<Self, Error> {
        const FUNCTION: &str = "Buffer::with_options";
        let size = bytes_of::<T>(len, FUNCTION)? as u64;
        let mut desc = options.describe()?;
        desc.size = size;
        let group = options.group.clone();
        let instance = device.instance.clone();
        instance.retry();
        let (_still, lending, handle) = instance.with_room(|| {
            // The group does not sleep before it has the buffer.
            let still = still(&group, FUNCTION)?;
            let lending = options.place.map(|_| Lending::lock());
            // SAFETY: the struct, its entries and its texts live during the call.
            let made = unsafe { output_call!(gpumem_buffer_create(device.handle, &*desc)) };
            Ok((still, lending, made.map_err(|error| error.called_as(FUNCTION))?))
        })?;
        let shared = Arc::new(Shared {
            handle,
            instance,
            on_host: options.place.is_some(),
            tag: options.tag.clone(),
            base: AtomicU64::default(),
            capacity: AtomicU64::default(),
            reserved: AtomicU64::default(),
            holds: AtomicUsize::default(),
            lent: Mutex::default(),
            uses: Uses::default(),
        });
        let learned = shared.learn();
        if let Some(lending) = lending {
            shared.lend(lending);
        }
        if let Some(group) = &group {
            group.add(shared.clone());
        }
        let inner = Arc::new(BufferInner {
            handle,
            movable: options.flags.contains(BufferFlags::MOVABLE),
            ordinary: matches!(&learned, Ok(info) if info.range.is_null()),
            callbacks: Mutex::default(),
            shared,
            group: group.clone(),
        });
        let buffer = Self { inner, len, elements: PhantomData };
        learned?;
        buffer.check_alignment(FUNCTION)?;
        Ok(buffer)
    }

    fn check_alignment(&self, function: &'static str) -> Result<(), Error> {
        if self.shared().base() % align_of::<T>() as u64 != 0 {
            return Err(Error::invalid(function, "the elements need more alignment than a buffer has"));
        }
        Ok(())
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
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
        // More may have been made ahead meanwhile.
        let known = || self.shared().capacity.load(Ordering::Acquire);
        let bytes = self.shared().c_info().map_or_else(|_| known(), |info| info.capacity);
        match size_of::<T>() {
            0 => usize::MAX,
            element => usize::try_from(bytes / element as u64).unwrap_or(usize::MAX),
        }
    }

    /// Grows or shrinks the buffer. The elements that remain are not touched, new ones have indeterminate values. If it
    /// fails, the buffer is as it was.
    ///
    /// Growing maps one more block, as large as what is missing, and work may go on meanwhile. Only if the reserved
    /// addresses are used up, and the buffer is [`MOVABLE`](BufferFlags::MOVABLE), it moves. Shrinking gives back each
    /// block that lies whole behind the new size. A buffer that is an ordinary allocation
    /// ([`COPYABLE`](BufferFlags::COPYABLE)) moves whenever its memory changes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream was not observed complete that uses elements which are to go, or a
    /// buffer which is to move, or while the group of the buffer sleeps or wakes; [`ErrorKind::InvalidState`] if the
    /// buffer is asleep; otherwise [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`] or [`ErrorKind::Unsupported`].
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        self.resize_as(len, "Buffer::resize")
    }

    fn resize_as(&mut self, len: usize, function: &'static str) -> Result<(), Error> {
        let bytes = bytes_of::<T>(len, function)? as u64;
        if bytes < self.bytes() {
            self.shared().uses.refuse((bytes, u64::MAX), "buffer", function)?;
        }
        let handle = self.inner.handle;
        let fits = bytes >= self.bytes() && bytes <= self.shared().capacity.load(Ordering::Acquire);
        // SAFETY: no safe work uses what is given back, and all other access is unsafe.
        self.provide(bytes, fits, function, || unsafe {
            call!(gpumem_buffer_resize(handle, bytes)).map(drop).map_err(|error| error.called_as(function))
        })?;
        self.len = len;
        Ok(())
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
        self.provide(bytes, false, function, || unsafe {
            call!(gpumem_buffer_set_capacity(handle, bytes))
                .map(drop)
                .map_err(|error| error.called_as(function))
        })
    }

    /// Makes a call that gives memory to so many bytes, and may move the buffer.
    fn provide(
        &mut self,
        bytes: u64,
        fits: bool,
        function: &'static str,
        call: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.shared().instance.with_room(|| self.try_to_provide(bytes, fits, function, &call))
    }

    fn try_to_provide(
        &self,
        bytes: u64,
        fits: bool,
        function: &'static str,
        call: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _still = still(&self.inner.group, function)?;
        let shared = self.shared();
        let leaves = self.inner.movable && bytes > shared.reserved.load(Ordering::Acquire);
        if leaves || (self.inner.ordinary && !fits) {
            shared.uses.refuse((0, u64::MAX), "buffer", function)?;
        }
        if leaves && shared.on_host && !self.inner.ordinary {
            // Nobody makes an alias between the move and the entry of the new addresses.
            let lending = Lending::lock();
            call()?;
            let learned = shared.learn();
            shared.lend(lending);
            return learned.map(drop);
        }
        call()?;
        shared.refresh().map(drop)
    }

    /// Has memory made ahead of growth, on a thread of the library: as soon as less than half of `elements` of it lie
    /// behind the length, more is mapped, up to `elements`. A [`resize`](Self::resize) that needs no more waits for
    /// nobody. 0 ends it, and leaves what is there.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the buffer is an ordinary allocation; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::OutOfMemory`] or [`ErrorKind::InvalidState`].
    pub fn set_ahead(&mut self, elements: usize) -> Result<(), Error> {
        let bytes = bytes_of::<T>(elements, "Buffer::set_ahead")? as u64;
        // SAFETY: only a handle and a number.
        unsafe { call!(gpumem_buffer_set_ahead(self.inner.handle, bytes)) }.map(drop)
    }

    /// Sets what processors may do with the buffer, now and as it grows. Processors that are not named keep what they
    /// have.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses the buffer that was not observed complete, unless everything
    /// that is set is [`Access::READ_WRITE`]; [`ErrorKind::InvalidState`] if it is asleep; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`] or [`ErrorKind::DeviceLost`].
    pub fn set_access(&mut self, accesses: &[(Processor, Access)]) -> Result<(), Error> {
        if takes_away(accesses) {
            self.shared().uses.refuse((0, u64::MAX), "buffer", "Buffer::set_access")?;
        }
        let described = describe_accesses(accesses);
        let (handle, first) = (self.inner.handle, first_of(&described));
        // SAFETY: there are as many entries.
        unsafe { call!(gpumem_buffer_set_access(handle, first, described.len() as u64)) }.map(drop)
    }

    /// Gives the memory back, and keeps the addresses. Waits for work first: without other options for all work of each
    /// device that may access the buffer. If it fails, the buffer is awake, with its content; or it could not be woken
    /// again and stays asleep with its content, [`BufferState::FAILED`].
    ///
    /// ```
    /// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
    /// use std::ops::ControlFlow;
    /// use gpumem::{Buffer, Content, SleepOptions};
    ///
    /// let mut tokens = Buffer::<u32>::new(&device, 1000)?;
    /// let options = SleepOptions::new().content(Content::PAGEABLE).progress(|done, total| {
    ///     println!("{done} of {total}");
    ///     ControlFlow::Continue(())
    /// });
    /// tokens.sleep(options)?;
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if registrations are noted, a callback refused, work uses the buffer that the options do
    /// not wait for, or its group sleeps or wakes; [`ErrorKind::InvalidState`] if it is asleep already;
    /// [`ErrorKind::Cancelled`] if the progress function broke; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`], [`ErrorKind::LimitExceeded`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::PermissionDenied`] or [`ErrorKind::DeviceLost`].
    pub fn sleep<'a>(&mut self, options: impl Into<SleepOptions<'a>>) -> Result<(), Error> {
        const FUNCTION: &str = "Buffer::sleep";
        let mut options = options.into();
        let (handle, shared) = (self.inner.handle, self.shared());
        self.change_state(FUNCTION, || {
            if options.wait()? {
                shared.uses.refuse((0, u64::MAX), "buffer", FUNCTION)?;
            }
            let desc = options.describe()?;
            // SAFETY: no safe code uses the buffer, the library waits for work, and all other access is unsafe.
            unsafe { call!(gpumem_buffer_sleep(handle, &*desc)) }.map(drop)
        })
    }

    /// Wakes the buffer: at the same address, with its size, the access of each processor, and the content that was
    /// kept. An ordinary allocation gets a new address. If it fails, the buffer sleeps on, and nothing is lost. Frees what
    /// kept the content; [`wake_with_options`](Self::wake_with_options) can keep that.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if it is awake, where [`Group::wake`](crate::Group::wake) succeeds; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::Busy`], [`ErrorKind::Cancelled`], [`ErrorKind::ContentLost`] or
    /// [`ErrorKind::DeviceLost`].
    pub fn wake(&mut self) -> Result<(), Error> {
        self.wake_with_options(WakeOptions::new())
    }

    /// As [`wake`](Self::wake), with options.
    ///
    /// # Errors
    /// As [`wake`](Self::wake), and [`ErrorKind::Cancelled`] if the progress function broke.
    pub fn wake_with_options(&mut self, mut options: WakeOptions<'_>) -> Result<(), Error> {
        let handle = self.inner.handle;
        self.shared().instance.with_room(|| {
            self.change_state("Buffer::wake", || {
                let desc = options.describe()?;
                // SAFETY: only a handle and a struct of its own size.
                unsafe { call!(gpumem_buffer_wake(handle, &*desc)) }.map(drop)
            })
        })
    }

    /// Makes a call in which the buffer sleeps or wakes.
    fn change_state(
        &self,
        function: &'static str,
        call: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        // A panic of the program's functions goes on when all is in order again.
        with_panics(|| {
            let _still = still(&self.inner.group, function)?;
            let result = call();
            // Also after a failure: an allocation that was woken again lies elsewhere.
            let learned = self.shared().refresh();
            if let Ok(info) = &learned {
                self.shared().holds.store(unheld(info.state), Ordering::Release);
            }
            result.and(learned.map(drop))
        })
    }

    /// Makes the store for the content ahead of a sleep with the same content, as large as the buffer is now.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if the buffer is asleep; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::NotFound`], [`ErrorKind::LimitExceeded`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::PermissionDenied`] or [`ErrorKind::DeviceLost`].
    pub fn prepare(&self, options: impl Into<PrepareOptions>) -> Result<(), Error> {
        let desc = options.into().describe()?;
        // SAFETY: only a handle and a struct of its own size.
        unsafe { call!(gpumem_buffer_prepare(self.inner.handle, &*desc)) }.map(drop)
    }

    /// Sets the functions that are called when the buffer sleeps and wakes. Those before are dropped.
    ///
    /// ```
    /// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
    /// use std::sync::{Arc, Mutex};
    /// use gpumem::{Buffer, BufferCallbacks, Content};
    ///
    /// let mut cache = Buffer::<u32>::new(&device, 1000)?;
    /// // A network card has the memory registered, except while it sleeps.
    /// let card = Arc::new(Mutex::new(Some(cache.note_registration("nic")?)));
    /// let again = card.clone();
    /// cache.set_callbacks(
    ///     BufferCallbacks::new()
    ///         .before_sleep(move |_| {
    ///             card.lock().unwrap().take();
    ///             true
    ///         })
    ///         .after_wake(move |cache, _| *again.lock().unwrap() = cache.note_registration("nic").ok()),
    /// )?;
    /// cache.sleep(Content::PINNED)?;
    /// cache.wake()?;
    /// assert_eq!(cache.info()?.registrations, 1);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] or [`ErrorKind::InvalidState`], as the message says. The functions before
    /// stay.
    pub fn set_callbacks(&mut self, callbacks: BufferCallbacks) -> Result<(), Error> {
        let fresh = Callbacks::new(self.shared(), callbacks);
        let desc = fresh.to_c();
        // SAFETY: what C calls lives until it has been replaced, or the buffer is destroyed.
        unsafe { call!(gpumem_buffer_set_callbacks(self.inner.handle, &desc)) }?;
        let unused = lock(&self.inner.callbacks).replace(fresh);
        drop(unused);
        Ok(())
    }

    /// Notes that something outside the library holds the memory: a network card, a communicator, a process that
    /// imported it. The buffer does not sleep before the registration is dropped. The name is for messages, up to 63
    /// bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if the buffer is asleep; otherwise [`ErrorKind::InvalidArgument`] or
    /// [`ErrorKind::OutOfMemory`].
    pub fn note_registration(&self, name: &str) -> Result<BufferRegistration, Error> {
        BufferRegistration::note(self.shared(), name)
    }

    /// The elements for the CPU, to read. The memory must lie on the host, and the CPU must have access.
    ///
    /// It needs the buffer by `&mut`, because other work writes a shared one. The group of the buffer cannot sleep while
    /// the guard lives, nor after the guard was forgotten, until the buffer is borrowed so again.
    ///
    /// # Errors
    /// [`ErrorKind::NoAccess`] if the CPU may not read the buffer; [`ErrorKind::Busy`] if work in a stream uses it that
    /// was not observed complete, or its group sleeps or wakes; [`ErrorKind::DeviceLost`] if that work never will be; and
    /// [`ErrorKind::InvalidState`] if the buffer is asleep.
    pub fn host(&mut self) -> Result<BufferAccess<'_, T>, Error> {
        let (start, hold) = self.for_cpu("Buffer::host", &[Access::READ, Access::READ_WRITE])?;
        // SAFETY: the CPU may read the elements. Any bits are values, and as the memory comes from the system, there are
        // some. No work uses the buffer, and none can begin while it is borrowed mutably. No alias can be made (`Lent`),
        // and its group cannot take the memory away (`Hold`).
        let elements = unsafe { slice::from_raw_parts(start.as_ptr(), self.len) };
        Ok(BufferAccess { elements, _hold: hold })
    }

    /// The elements for the CPU, to read and write. See [`host`](Self::host).
    ///
    /// # Errors
    /// As [`host`](Self::host), and [`ErrorKind::NoAccess`] if the CPU may only read.
    pub fn host_mut(&mut self) -> Result<BufferAccessMut<'_, T>, Error> {
        let (start, hold) = self.for_cpu("Buffer::host_mut", &[Access::READ_WRITE])?;
        // SAFETY: as above; and the CPU may write.
        let elements = unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.len) };
        Ok(BufferAccessMut { elements, _hold: hold })
    }

    /// The first element, if the CPU has one of these rights, and no work uses the buffer; and what keeps it there.
    fn for_cpu(
        &mut self,
        function: &'static str,
        sufficient: &[Access],
    ) -> Result<(NonNull<T>, Option<Hold>), Error> {
        let refused = |message| Err(Error::own(Status::NO_ACCESS, function, message));
        let shared = self.shared();
        shared.instance.check(function)?;
        if !shared.on_host {
            let message = "the buffer lies on the device; make it with BufferOptions::host, or copy from it";
            return refused(message);
        }
        // The buffer is borrowed mutably, so whoever still holds it was forgotten.
        let forget = |holds: usize| (holds < ASLEEP).then_some(0);
        let _ = shared.holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, forget);
        let hold = self.hold().map_err(|why| why.error(function))?;
        shared.uses.refuse((0, u64::MAX), "buffer", function)?;
        if shared.uses.are_abandoned() {
            return Err(lost("buffer", function));
        }
        let info = shared.c_info().map_err(|error| error.called_as(function))?;
        if info.state != BufferState::AWAKE.0 {
            return Err(Unusable::Asleep.error(function));
        }
        if self.bytes() == 0 {
            return Ok((NonNull::dangling(), hold));
        }
        self.check_alignment(function)?;
        let instance = Instance { inner: shared.instance.clone() };
        let access = instance.pointer_access(info.base, Processor::Cpu);
        let access = access.map_err(|error| error.called_as(function))?;
        match NonNull::new(info.base.cast()) {
            Some(start) if sufficient.contains(&access) => Ok((start, hold)),
            _ => {
                let message = "the CPU has no such access to the buffer; call Buffer::set_access first";
                refused(message)
            }
        }
    }

    /// Keeps the buffer in its place while the result lives; one without a group stays there while it is borrowed.
    fn hold(&self) -> Result<Option<Hold>, Unusable> {
        if self.inner.group.is_none() {
            return Ok(None);
        }
        Hold::begin(self.shared()).map(Some)
    }

    /// The first element, for code that orders its accesses itself. Only a buffer that moves changes it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.shared().base() as *mut T
    }

    /// Address of the first element for kernels.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.shared().base()
    }

    /// Handle for calls of [`sys`](crate::sys). They must not change the buffer or its callbacks.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_buffer {
        self.inner.handle
    }

    fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Information about the buffer. Works after its device was lost, in callbacks and in host functions.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<BufferInfo, Error> {
        self.shared().info()
    }

    /// Frees the buffer, awake or asleep. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete, or if it lies on the host and its
    /// group sleeps or wakes. The buffer is returned.
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.destroy().map_err(|error| Rejected::new(self, error))
    }

    fn destroy(&mut self) -> Result<(), Error> {
        const FUNCTION: &str = "Buffer::close";
        let inner = Arc::get_mut(&mut self.inner).ok_or_else(|| busy("buffer", FUNCTION))?;
        if !inner.shared.on_host {
            Remains::Buffer(inner.handle, None).release()?;
        } else {
            inner.shared.instance.check(FUNCTION)?;
            // A sleep could call functions of the program that wait for the lock below, while this waits for the sleep.
            let _still = still(&inner.group, FUNCTION)?;
            // Held from before the memory goes until its addresses are lent no more: the next buffer may get them at once.
            // If it stays, nobody has made an alias.
            let mut lending = Lending::lock();
            Remains::Buffer(inner.handle, None).release()?;
            lending.end(lock(&inner.shared.lent).take());
        }
        inner.handle = ptr::null_mut();
        Ok(())
    }
}

impl<T: Element + Copy> Buffer<T> {
    /// Appends values, and returns when they are copied. The buffer grows as by [`resize`](Self::resize), so
    /// [`reserve_exact`](Self::reserve_exact) or [`BufferFlags::GEOMETRIC`] makes many small calls cheap. If it fails, the
    /// buffer keeps its elements and its length.
    ///
    /// # Errors
    /// As [`resize`](Self::resize) and [`Instance::copy`], and if so many elements cannot be addressed.
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<(), Error> {
        const FUNCTION: &str = "Buffer::extend_from_slice";
        let before = self.len;
        let len = before
            .checked_add(values.len())
            .ok_or_else(|| Error::invalid(FUNCTION, "the elements are more than can be counted"))?;
        self.resize_as(len, FUNCTION)?;
        let instance = Instance { inner: self.shared().instance.clone() };
        let copied = self
            .slice(before..)
            .and_then(|new| instance.copy(new, values).map(drop))
            .map_err(|error| error.called_as(FUNCTION));
        if copied.is_err() {
            // Only the new elements go, which no work uses. If their memory stays, it is capacity.
            if self.resize(before).is_err() {
                self.len = before;
            }
        }
        copied
    }

    /// Copies the elements to a vector. Work that writes them must have been observed complete.
    ///
    /// # Errors
    /// If they cannot be copied, or there is not enough memory.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        to_vec(self, self.len, Some(self.shared().instance.clone()), "Buffer::to_vec")
    }
}

/// Keeps the group, if there is one, from sleeping and waking.
fn still<'a>(
    group: &'a Option<Arc<GroupInner>>,
    function: &'static str,
) -> Result<Option<RwLockReadGuard<'a, ()>>, Error> {
    group.as_ref().map(|group| group.still(function)).transpose()
}

/// The elements of a [`Buffer`] on the host, for the CPU to read.
#[must_use]
pub struct BufferAccess<'a, T: Element> {
    elements: &'a [T],
    _hold: Option<Hold>,
}

/// The elements of a [`Buffer`] on the host, for the CPU to read and write.
#[must_use]
pub struct BufferAccessMut<'a, T: Element> {
    elements: &'a mut [T],
    _hold: Option<Hold>,
}

impl<T: Element> Deref for BufferAccess<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T: Element> Deref for BufferAccessMut<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T: Element> DerefMut for BufferAccessMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for BufferAccess<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for BufferAccessMut<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

/// Something outside the library that holds the memory of a buffer, as [`Buffer::note_registration`] noted it. Dropping
/// it forgets the registration, so that the buffer can sleep.
#[must_use]
pub struct BufferRegistration {
    shared: Arc<Shared>,
    /// 0 once it is forgotten.
    number: u64,
}

impl BufferRegistration {
    pub(crate) fn note(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        let name = c_text(Some(name), "Buffer::note_registration")?;
        // SAFETY: the text lives during the call.
        let number =
            unsafe { output_call!(gpumem_buffer_note_registration(shared.handle, c_pointer(&name))) }?;
        Ok(Self { shared: shared.clone(), number })
    }

    /// Its number in C.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    fn forget(&mut self) -> Result<(), Error> {
        // SAFETY: only a handle and a number.
        unsafe { call!(gpumem_buffer_forget_registration(self.shared.handle, self.number)) }?;
        self.number = 0;
        Ok(())
    }

    /// Forgets the registration. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// If the buffer or its instance is gone. The registration is returned unchanged.
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.forget().map_err(|error| Rejected::new(self, error))
    }
}

impl Drop for BufferRegistration {
    fn drop(&mut self) {
        if self.number != 0 {
            // It fails only if the buffer is gone.
            let _ = self.forget();
        }
    }
}

impl fmt::Debug for BufferRegistration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("BufferRegistration").field(&self.number).finish()
    }
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
pub type BufferSlice<'a, T> = Part<'a, Buffer<T>>;
parts!(Buffer, BufferSlice);

impl<T: Element> BufferSlice<'_, T> {
    /// Address of the first element for kernels.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.whole.as_ptr().wrapping_add(self.start) as u64
    }
}

impl<T: Element> Whole for Buffer<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn elements_of(&self, start: usize, len: usize) -> Span {
        let mut hold = Ok(None);
        if len * size_of::<T>() != 0 {
            hold = self.hold();
            // Once it is held, it stays where it is.
            if self.shared().base() == 0 {
                hold = Err(Unusable::Asleep);
            }
        }
        Span { hold, ..Span::of_slice(self.as_ptr().wrapping_add(start), len) }
    }

    fn kept_of(&self, start: usize, len: usize, _: &Stream) -> Keep {
        let of_bytes = |elements| (elements * size_of::<T>()) as u64;
        Use::begin(self.inner.clone(), of_bytes(start), of_bytes(len)).map_or(Keep::Nothing, Keep::Part)
    }
}
