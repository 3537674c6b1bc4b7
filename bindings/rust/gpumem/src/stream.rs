// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Ordered queues of work, which keep the memory of their work alive.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::mem;
use std::ops::Deref;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gpumem_sys as sys;

use crate::codes::{EventFlags, SourceOrder, WaitCondition};
use crate::copy::sealed::{Discard, Keep};
use crate::copy::{
    describe_regions, CheckedCopy, CheckedFill, CopyOptions, Destination, Enqueue, Rectangle, Region,
    Returned, Source, Target,
};
use crate::device::Device;
use crate::element::{Element, FillValue};
use crate::error::{check, Error, ErrorKind, Rejected, Status};
use crate::event::Event;
use crate::instance::{lock, Instance};
use crate::library::{c, call, output_call};
use crate::memory::Remains;
pub use crate::options::StreamOptions;
use crate::typed::{DeviceMemory, Pinned, Registered};

/// An ordered queue of work on one device.
///
/// Enqueued work runs later. Its operands are taken by value and returned by the [`Pending`] of each call, or are
/// memory that the CPU cannot access; see [`Enqueue`]. In either case the stream itself keeps the memory alive until
/// the work has been observed complete. So memory is never freed while work uses it, even if the `Pending`, the
/// memory or the stream is dropped or forgotten.
///
/// Dropping a stream with such work waits for it.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{DeviceMemory, Pinned, Stream};
///
/// let stream = Stream::new(&device)?;
/// let memory = DeviceMemory::<u8>::new(&device, 4096)?;
/// drop(stream.fill(&memory, 7)?);
/// let pending = stream.copy(Pinned::<u8>::zeroed(&device, 4096)?, &memory)?;
/// // The pinned array is returned once it is complete.
/// let (back, _) = pending.wait()?;
/// assert_eq!(back[4095], 7);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// Until then nothing can access it:
///
/// ```compile_fail,E0382
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let stream = gpumem::Stream::new(&device)?;
/// # let memory = gpumem::DeviceMemory::<u8>::new(&device, 4096)?;
/// let back = gpumem::Pinned::<u8>::zeroed(&device, 4096)?;
/// let pending = stream.copy(back, &memory)?;
/// assert_eq!(back[4095], 7);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// A borrowed slice cannot be an operand of work that runs later:
///
/// ```compile_fail,E0277
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let stream = gpumem::Stream::new(&device)?;
/// # let memory = gpumem::DeviceMemory::<u8>::new(&device, 4096)?;
/// let mut back = vec![0; 4096];
/// drop(stream.copy(&mut back[..], &memory)?);
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Stream {
    pub(crate) inner: Arc<StreamInner>,
}

pub struct StreamInner {
    work: Arc<Work>,
    instance: Instance,
    destroyed: AtomicBool,
    panics: Arc<AtomicU64>,
}

impl Deref for StreamInner {
    type Target = Work;
    fn deref(&self) -> &Work {
        &self.work
    }
}

/// The work of a stream, which others may query without becoming an owner of the stream, whose drop waits.
pub struct Work {
    handle: sys::gpumem_stream,
    instance: sys::gpumem_instance,
    flight: Mutex<Flight>,
    /// Number of entries in `flight`, readable without its lock.
    entries: AtomicUsize,
    tasks: Tasks,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// The objects that work in the stream uses. Each piece of work gets a number after it was enqueued.
struct Flight {
    last: u64,
    observed: u64,
    entries: Vec<(u64, Keep)>,
    /// At this many entries the stream is queried, so that some can be released.
    query_at: usize,
    /// Failures of work, which the library reports only once.
    failures: Vec<Failure>,
}

/// A failure that may be of any work above one number and up to another.
struct Failure {
    above: u64,
    up_to: u64,
    error: Error,
}

/// Above this number, failures are merged.
const FAILURES_MAX: usize = 64;

const QUERY_AT_LEAST: usize = 64;

impl Keep {
    fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// An object that memory goes with, the number of its owners, and its bytes.
    fn shares(&self) -> Option<(*const (), usize, u64)> {
        match self {
            Self::Memory(memory) => {
                let allocation = &memory.allocation;
                Some((Arc::as_ptr(allocation).cast(), Arc::strong_count(allocation), memory.bytes()))
            }
            Self::Part(used) => Some(used.shares()),
            _ => None,
        }
    }

    /// Releases the object after its device, instance or process is gone, when the end of the work cannot be
    /// observed. The library knows whether its own allocations can be freed; the bytes of others are leaked.
    pub(crate) fn abandon(self) {
        match self {
            Self::Memory(memory) => memory.abandon(),
            Self::Function(function) => function.discard(),
            Self::Pool(pool) => drop(pool),
            Self::Part(used) => used.abandon(),
            Self::Earlier(..) => {}
            other => mem::forget(other),
        }
    }
}

impl Work {
    /// Number of the latest piece of work.
    pub(crate) fn latest(&self) -> u64 {
        if self.entries.load(Ordering::Acquire) == 0 {
            // There is nothing to release, so the observation need not be recorded.
            return 0;
        }
        lock(&self.flight).last
    }

    /// Records a piece of enqueued work with the objects that it uses, and returns its number.
    fn enqueued(&self, keeps: impl IntoIterator<Item = Keep>) -> u64 {
        let mut flight = lock(&self.flight);
        flight.last += 1;
        let number = flight.last;
        flight.entries.extend(keeps.into_iter().filter(|keep| !keep.is_nothing()).map(|keep| (number, keep)));
        self.entries.store(flight.entries.len(), Ordering::Release);
        number
    }

    /// Queries the stream if much work has accumulated that was not observed.
    fn tidy(&self) {
        let entries = self.entries.load(Ordering::Acquire);
        if entries < QUERY_AT_LEAST || entries < lock(&self.flight).query_at {
            return;
        }
        // The query releases what it can; a failure shows in the call that follows.
        let _ = self.query();
        let mut flight = lock(&self.flight);
        flight.query_at = flight.entries.len().saturating_mul(2);
    }

    /// Records that work up to this number has been observed complete, and releases what it uses.
    pub(crate) fn observed(&self, number: u64) {
        if number != 0 {
            let mut flight = lock(&self.flight);
            flight.observed = flight.observed.max(number);
            drop(flight);
            self.release(number);
        }
    }

    /// Releases what work up to this number uses: it is over. It may have failed, if another stream has observed it.
    fn release(&self, number: u64) {
        let mut flight = lock(&self.flight);
        let (over, mut needed): (Vec<_>, Vec<_>) =
            mem::take(&mut flight.entries).into_iter().partition(|(of, _)| *of <= number);
        match over.last() {
            // An entry stays, so that a close of this stream observes how the work ended, for those who still wait for it.
            Some((last, _)) if *last > flight.observed => needed.insert(0, (*last, Keep::Nothing)),
            _ => {}
        }
        flight.entries = needed;
        self.entries.store(flight.entries.len(), Ordering::Release);
        drop(flight);
        // Freeing calls the library, so it happens without the lock.
        for (_, keep) in over {
            if let Keep::Earlier(stream, number) = keep {
                if let Some(stream) = stream.upgrade() {
                    stream.release(number);
                }
            }
        }
    }

    /// Records a failure of work up to this number, for everything that waits for some of it.
    pub(crate) fn failed(&self, number: u64, error: &Error, query: impl FnOnce() -> Result<Status, Error>) {
        if number == 0 {
            return;
        }
        // A call at the wrong moment also has this status, again and again; a failure of work is reported only once.
        let wrong_moment = error.kind() == ErrorKind::InvalidState
            && matches!(query(), Err(again) if again.kind() == ErrorKind::InvalidState);
        if wrong_moment {
            return;
        }
        let mut flight = lock(&self.flight);
        let mut above = flight.observed;
        if flight.failures.len() == FAILURES_MAX {
            above = flight.failures.pop().map_or(above, |last| last.above);
        }
        flight.failures.push(Failure { above, up_to: number, error: error.clone() });
    }

    /// The failure that may be of the work with this number.
    fn failure_of(&self, number: u64) -> Option<Error> {
        let flight = lock(&self.flight);
        let found = flight.failures.iter().find(|failure| failure.above < number && number <= failure.up_to);
        found.map(|failure| failure.error.clone())
    }

    /// The number of the latest work that uses a slot of a ring and was not observed complete.
    pub(crate) fn latest_use<R>(&self, ring: &Arc<R>, slot: u64) -> Option<u64> {
        let uses = |keep: &Keep| match keep {
            Keep::Slot(of, number) => *number == slot && ptr::eq(Arc::as_ptr(of).cast(), Arc::as_ptr(ring)),
            _ => false,
        };
        lock(&self.flight).entries.iter().rev().find(|(_, keep)| uses(keep)).map(|(number, _)| *number)
    }

    /// Whether what is enqueued now runs after the work of a stream up to a number: it is this one, or was waited for.
    pub(crate) fn comes_after(&self, stream: &Arc<StreamInner>, number: u64) -> bool {
        let waits = |keep: &Keep| match keep {
            Keep::Earlier(of, last) => *last >= number && ptr::eq(of.as_ptr(), &**stream),
            _ => false,
        };
        ptr::eq(self, &*stream.work) || lock(&self.flight).entries.iter().any(|(_, keep)| waits(keep))
    }

    fn is_observed(&self, number: u64) -> bool {
        number == 0 || lock(&self.flight).observed >= number
    }

    /// Releases everything that can be released safely, after an error that means that nothing will be observed.
    fn ended(&self) {
        let entries = mem::take(&mut lock(&self.flight).entries);
        self.entries.store(0, Ordering::Release);
        entries.into_iter().for_each(|(_, keep)| keep.abandon());
    }

    /// Queries or waits, and releases what the result allows.
    fn observe(&self, query: impl FnOnce() -> Result<Status, Error>) -> Result<bool, Error> {
        let latest = self.latest();
        match query() {
            Ok(Status::SUCCESS) => {
                self.observed(latest);
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) => {
                if error.kind().is_end() {
                    self.ended();
                } else {
                    self.failed(latest, &error, || {
                        // SAFETY: only a handle.
                        unsafe { call!(gpumem_stream_query(self.handle)) }
                    });
                }
                Err(error)
            }
        }
    }

    fn query(&self) -> Result<bool, Error> {
        self.observe(|| {
            // SAFETY: only a handle.
            unsafe { call!(gpumem_stream_query(self.handle)) }
        })
    }

    pub(crate) fn synchronize(&self, timeout_ns: u64) -> Result<bool, Error> {
        self.observe(|| {
            // SAFETY: only a handle.
            unsafe { call!(gpumem_stream_synchronize(self.handle, timeout_ns)) }
        })
    }
}

impl StreamInner {
    fn destroy(&self) -> Result<(), Error> {
        if self.destroyed.load(Ordering::Acquire) {
            return Ok(());
        }
        Remains::Stream(self.handle, Mutex::default()).release()?;
        self.destroyed.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for work that uses something. An error means that the stream must not be destroyed.
    fn settle(&self) -> Result<(), Error> {
        if self.entries.load(Ordering::Acquire) == 0 || self.destroyed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.synchronize(sys::GPUMEM_TIMEOUT_INFINITE) {
            Err(error) if !error.kind().is_end() => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // In a host function, or while the stream is captured, the end of the work cannot be observed. The instance
        // tries again.
        let unsettled = self.settle().is_err();
        let used = if unsettled { mem::take(&mut lock(&self.flight).entries) } else { Vec::new() };
        if !self.destroyed.load(Ordering::Acquire) {
            Remains::Stream(self.handle, Mutex::new(used)).release_or_keep(&self.instance.inner);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Stream").field(&self.inner.handle).finish()
    }
}

/// For C: no stream stands for no order, or for the calling thread.
pub(crate) fn order(stream: Option<&Stream>) -> sys::gpumem_stream {
    stream.map_or(ptr::null_mut(), Stream::handle)
}

/// Nanoseconds of a timeout; one that is too long never expires.
pub(crate) fn nanoseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos()).unwrap_or(sys::GPUMEM_TIMEOUT_INFINITE)
}

/// What the regions of a batch become.
fn returned<D: Enqueue, S: Enqueue>(regions: Vec<Region<D, S>>) -> Vec<Region<Returned<D>, Returned<S>>> {
    regions.into_iter().map(Region::returned).collect()
}

impl Stream {
    fn of(handle: sys::gpumem_stream, device: &Device) -> Self {
        let flight = Flight {
            last: 0,
            observed: 0,
            entries: Vec::new(),
            query_at: QUERY_AT_LEAST,
            failures: Vec::new(),
        };
        let work = Arc::new(Work {
            handle,
            instance: device.instance.handle,
            flight: Mutex::new(flight),
            entries: AtomicUsize::new(0),
            tasks: Mutex::default(),
        });
        note(&STREAMS, &work);
        Self {
            inner: Arc::new(StreamInner {
                work,
                instance: device.instance(),
                destroyed: AtomicBool::new(false),
                panics: Arc::default(),
            }),
        }
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`], as the message says.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::with_options(device, &StreamOptions::new()).map_err(|error| error.called_as("Stream::new"))
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`], as the message says.
    pub fn with_options(device: &Device, options: &StreamOptions) -> Result<Self, Error> {
        device.instance.retry();
        let desc = options.describe()?;
        // SAFETY: the struct and its text live during the call.
        let made = unsafe { output_call!(gpumem_stream_create(device.handle, &*desc)) };
        let handle = made.map_err(|error| error.called_as("Stream::with_options"))?;
        Ok(Self::of(handle, device))
    }

    /// Wraps a stream that other code created: a `CUstream`, a stream of
    /// [`host::native_stream_create`](crate::host::native_stream_create), or NULL for the legacy default stream.
    ///
    /// # Safety
    /// It must be a stream of this device, and must live until this is closed or dropped and no [`Pending`] of it is
    /// left.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`], as the message says.
    pub unsafe fn wrap(device: &Device, native: *mut c_void) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let handle = unsafe { output_call!(gpumem_stream_wrap(device.handle, native)) }?;
        Ok(Self::of(handle, device))
    }

    pub(crate) fn handle(&self) -> sys::gpumem_stream {
        self.inner.handle
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.inner.instance
    }

    /// Waits for work that uses memory, and destroys the stream.
    ///
    /// # Errors
    /// If it cannot wait (in a host function, or while other code captures the stream). The stream is returned
    /// unchanged.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        match self.inner.settle().and_then(|()| self.inner.destroy()) {
            Ok(()) => Ok(()),
            Err(error) => Err(Rejected::new(self, error)),
        }
    }

    /// Whether all work is complete.
    ///
    /// # Errors
    /// If the device is lost, and in a host function.
    pub fn is_complete(&self) -> Result<bool, Error> {
        self.inner.query()
    }

    /// Waits until all work that is in the stream now is complete.
    ///
    /// # Errors
    /// If the device is lost, and in a host function.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.inner.synchronize(sys::GPUMEM_TIMEOUT_INFINITE).map(drop)
    }

    /// As [`synchronize`](Self::synchronize) with a timeout. Returns whether the work is complete.
    ///
    /// # Errors
    /// If the device is lost, and in a host function.
    pub fn synchronize_for(&self, timeout: Duration) -> Result<bool, Error> {
        self.inner
            .synchronize(nanoseconds(timeout))
            .map_err(|error| error.called_as("Stream::synchronize_for"))
    }

    /// Makes later work of this stream wait for the latest record of an event.
    ///
    /// # Errors
    /// If the two belong to different instances, or a device is lost.
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        event.with_record(|stream, number| {
            // SAFETY: only handles.
            unsafe { call!(gpumem_stream_wait_event(self.handle(), event.handle())) }?;
            if number != 0 {
                self.keep(Keep::Earlier(stream.clone(), number));
            }
            Ok(())
        })
    }

    /// Enqueues a copy of elements. Both operands have the same number of elements.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the numbers of elements differ; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::OutOfMemory`]. The operands are returned.
    pub fn copy<T, D, S>(&self, destination: D, source: S) -> Enqueued<(Returned<D>, Returned<S>)>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
        S: Source<T> + Enqueue,
    {
        self.enqueue_copy(destination, source, None, "Stream::copy")
    }

    /// Enqueues a copy of a rectangle of elements.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it does not lie within its operands; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`], [`ErrorKind::OutOfMemory`]
    /// or [`ErrorKind::Unsupported`]. The operands are returned.
    pub fn copy_2d<T, D, S>(
        &self,
        destination: D,
        source: S,
        rectangle: &Rectangle,
    ) -> Enqueued<(Returned<D>, Returned<S>)>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
        S: Source<T> + Enqueue,
    {
        self.enqueue_copy(destination, source, Some(rectangle), "Stream::copy_2d")
    }

    /// Enqueues copies of a batch of regions. The batch is ordered against other work of the stream; its regions are
    /// not ordered among themselves: no region may write elements that another one reads or writes.
    ///
    /// Every region is checked before any is enqueued. If one fails its check, nothing is enqueued. If the backend
    /// fails midway, the regions before the failed one are enqueued, the failed one may be enqueued in part, and
    /// later ones are not. So even a call that fails returns a [`Pending`], whose wait returns the regions once
    /// nothing uses them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a region does not lie within its operands; otherwise
    /// [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`],
    /// [`ErrorKind::OutOfMemory`] or [`ErrorKind::Unsupported`]. [`Error::region`] is the index of the region that
    /// failed.
    pub fn copy_regions<T, D, S>(
        &self,
        regions: impl IntoIterator<Item = Region<D, S>>,
    ) -> EnqueuedRegions<D, S>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
        S: Source<T> + Enqueue,
    {
        self.inner.tidy();
        let mut regions: Vec<_> = regions.into_iter().collect();
        let described =
            match describe_regions::<T, D, S>(&mut regions, self.instance(), "Stream::copy_regions") {
                Ok(described) => described,
                Err(error) => return Err(Rejected::new(self.pending(returned(regions), 0), error)),
            };
        if described.regions.iter().all(|region| region.width == 0) {
            return Ok(self.pending(returned(regions), 0));
        }
        let keeps: Vec<_> = regions
            .iter()
            .flat_map(|region| [region.destination.keep(self), region.source.keep(self)])
            .collect();
        // SAFETY: as in `enqueue_copy`; the boxes lie within their operands.
        let result = unsafe { self.copy_regions_raw(&described.regions) };
        // After a failure too: some of the regions may be enqueued.
        let pending = self.pending(returned(regions), self.inner.enqueued(keeps));
        match result {
            Ok(()) => Ok(pending),
            Err(error) => Err(Rejected::new(pending, error)),
        }
    }

    fn pending<B>(&self, operands: B, number: u64) -> Pending<B> {
        Pending {
            operands: Some(operands),
            stream: self.inner.clone(),
            number,
            reported: false,
            arrival: None,
        }
    }

    /// Enqueues work by a function that returns whether there was any.
    pub(crate) fn enqueue<B>(
        &self,
        operands: B,
        keeps: impl IntoIterator<Item = Keep>,
        run: impl FnOnce() -> Result<bool, Error>,
    ) -> Enqueued<B> {
        self.inner.tidy();
        match run() {
            Ok(any) => {
                let number = if any { self.inner.enqueued(keeps) } else { 0 };
                Ok(self.pending(operands, number))
            }
            Err(error) => Err(Rejected::new(operands, error)),
        }
    }

    fn enqueue_copy<T, D, S>(
        &self,
        mut destination: D,
        source: S,
        rectangle: Option<&Rectangle>,
        function: &'static str,
    ) -> Enqueued<(Returned<D>, Returned<S>)>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
        S: Source<T> + Enqueue,
    {
        let checked = CheckedCopy::new(&mut destination, &source, rectangle, self.instance(), function);
        let keeps = [destination.keep(self), source.keep(self)];
        self.enqueue((destination.returned(), source.returned()), keeps, || {
            let copy = checked?;
            // SAFETY: the stream keeps the operands alive, and only the `Pending` could give access to them; if it is
            // dropped, they are dropped with it.
            unsafe { copy.run(Target::Stream(self), &CopyOptions::new()) }?;
            Ok(!copy.is_empty())
        })
    }

    /// Enqueues a copy of the elements of a slice. The slice is read before the call returns, so it can be a local
    /// variable. For large copies this is slower than a copy from a [`Pinned`] array.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the numbers of elements differ; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::OutOfMemory`]. The destination is returned.
    pub fn copy_from_slice<T, D>(&self, mut destination: D, source: &[T]) -> Enqueued<Returned<D>>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
    {
        let checked =
            CheckedCopy::new(&mut destination, &source, None, self.instance(), "Stream::copy_from_slice");
        let keep = destination.keep(self);
        let options = CopyOptions { source_order: SourceOrder::DURING_CALL, ..CopyOptions::new() };
        self.enqueue(destination.returned(), [keep], || {
            let copy = checked?;
            // SAFETY: as in `enqueue_copy` for the destination; the source is not used after the call.
            unsafe { copy.run(Target::Stream(self), &options) }?;
            Ok(!copy.is_empty())
        })
    }

    fn enqueue_fill<T, D>(
        &self,
        mut destination: D,
        value: (u32, u32),
        rectangle: Option<&Rectangle>,
        function: &'static str,
    ) -> Enqueued<Returned<D>>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
    {
        let checked = CheckedFill::new(&mut destination, value, rectangle, self.instance(), function);
        let keep = destination.keep(self);
        self.enqueue(destination.returned(), [keep], || {
            let fill = checked?;
            // SAFETY: as in `enqueue_copy`.
            unsafe { fill.run(Target::Stream(self)) }?;
            Ok(!fill.is_empty())
        })
    }

    /// Enqueues a fill of memory with a number.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or [`ErrorKind::OutOfMemory`], as the message says.
    /// The destination is returned.
    pub fn fill<T, D>(&self, destination: D, value: T) -> Enqueued<Returned<D>>
    where
        T: FillValue,
        D: Destination<T> + Enqueue,
    {
        self.enqueue_fill(destination, value.bits(), None, "Stream::fill")
    }

    /// Enqueues a fill of memory with elements of any type with a byte.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or [`ErrorKind::OutOfMemory`], as the message says.
    /// The destination is returned.
    pub fn fill_bytes<T, D>(&self, destination: D, value: u8) -> Enqueued<Returned<D>>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
    {
        self.enqueue_fill(destination, (value.into(), 1), None, "Stream::fill_bytes")
    }

    /// Enqueues a fill of a rectangle with a number.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it does not lie within its operand; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`], [`ErrorKind::OutOfMemory`]
    /// or [`ErrorKind::Unsupported`]. The destination is returned.
    pub fn fill_2d<T, D>(&self, destination: D, rectangle: &Rectangle, value: T) -> Enqueued<Returned<D>>
    where
        T: FillValue,
        D: Destination<T> + Enqueue,
    {
        self.enqueue_fill(destination, value.bits(), Some(rectangle), "Stream::fill_2d")
    }

    /// Enqueues a write of a number to a word.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no word has this index, if the value does not fit in a word; otherwise
    /// [`ErrorKind::NotFound`], [`ErrorKind::WrongKind`], [`ErrorKind::NoAccess`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`].
    pub fn write_value(&self, words: &impl Words, index: usize, value: u64) -> Result<(), Error> {
        let (address, bytes) = word(words, index, value, "Stream::write_value")?;
        let keep = words.kept(self);
        // SAFETY: the stream keeps the memory alive; the word is atomic, or the CPU cannot access it.
        unsafe { self.write_value_raw(address, value, bytes) }?;
        self.keep(keep);
        Ok(())
    }

    /// Makes later work of the stream wait until a word meets a condition.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no word has this index, if the value does not fit in a word; otherwise
    /// [`ErrorKind::NotFound`], [`ErrorKind::WrongKind`], [`ErrorKind::NoAccess`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`].
    pub fn wait_value(
        &self,
        words: &impl Words,
        index: usize,
        condition: WaitCondition,
        value: u64,
    ) -> Result<(), Error> {
        let (address, bytes) = word(words, index, value, "Stream::wait_value")?;
        let keep = words.kept(self);
        // SAFETY: the stream keeps the memory alive; the word is atomic, or the CPU cannot access it.
        unsafe { self.wait_value_raw(address, value, bytes, condition) }?;
        self.keep(keep);
        Ok(())
    }

    /// Enqueues a function that runs on the CPU, on a thread other than the caller's. If the device is lost, it is
    /// dropped without having run.
    ///
    /// It must not wait for device work. Of this crate it can only query information about objects; everything else
    /// fails with [`ErrorKind::InvalidState`](crate::ErrorKind::InvalidState). A panic ends the function and is
    /// counted; see [`panicked_functions`](Self::panicked_functions).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::DeviceLost`], [`ErrorKind::InvalidState`],
    /// [`ErrorKind::OutOfMemory`] or [`ErrorKind::Unsupported`], as the message says. The function runs once, so a
    /// stream that is being captured into a graph refuses it.
    pub fn launch_host_function(&self, function: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        if self.capture_id()? != 0 {
            return Err(Error::own(
                Status::INVALID_STATE,
                "Stream::launch_host_function",
                "the stream is being captured into a graph, which would call the function at each launch; launch it outside of \
                 the capture",
            ));
        }
        let launch = c!(gpumem_stream_launch_host_function);
        let panics = self.panics();
        let slot: Arc<HostSlot> = Slot::new(Box::new(move || {
            if run_caught(function) {
                panics.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let keep = slot.launch(|raw| {
            // SAFETY: C gets a share of the slot, and calls the function that takes it at most once.
            unsafe { check(|error| launch(self.handle(), Some(run_host_function), raw, error)) }
        })?;
        self.keep(keep);
        Ok(())
    }

    /// Number of functions of this stream that have panicked.
    #[must_use]
    pub fn panicked_functions(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// Keeps an object alive until the work that is in the stream now has been observed complete.
    pub(crate) fn keep(&self, keep: Keep) {
        self.keep_all([keep]);
    }

    /// As [`keep`](Self::keep), of several objects.
    pub(crate) fn keep_all(&self, keeps: impl IntoIterator<Item = Keep>) {
        self.inner.enqueued(keeps);
    }

    pub(crate) fn panics(&self) -> Arc<AtomicU64> {
        self.inner.panics.clone()
    }
}

/// A function that C calls at most once.
pub(crate) struct Slot<F> {
    function: Mutex<Option<F>>,
}

/// The slot behind the pointer that [`run_host_function`] gets.
type HostSlot = Slot<Box<dyn FnOnce() + Send>>;

impl<F: Send + 'static> Slot<F> {
    pub(crate) fn new(function: F) -> Arc<Self> {
        Arc::new(Self { function: Mutex::new(Some(function)) })
    }

    /// Passes one share of the slot to C, and returns the other for the stream to keep.
    pub(crate) fn launch(
        self: Arc<Self>,
        enqueue: impl FnOnce(*mut c_void) -> Result<Status, Error>,
    ) -> Result<Keep, Error> {
        let raw = Arc::into_raw(self.clone());
        match enqueue(raw as *mut c_void) {
            Ok(_) => Ok(Keep::Function(self)),
            Err(error) => {
                // SAFETY: C did not take this share.
                drop(unsafe { Arc::from_raw(raw) });
                Err(error)
            }
        }
    }

    /// Takes the function, to run or drop it.
    pub(crate) fn take(&self) -> Option<F> {
        lock(&self.function).take()
    }
}

impl<F: Send + 'static> Discard for Slot<F> {
    fn discard(&self) {
        let function = self.take();
        let _ = run_caught(|| drop(function));
    }
}

/// Runs code of the user and catches its panic. Returns whether it panicked.
pub(crate) fn run_caught(code: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(()) => false,
        Err(payload) => {
            // Its own drop could panic.
            mem::forget(payload);
            true
        }
    }
}

/// # Safety
/// `raw` is a share of a [`HostSlot`].
unsafe extern "C" fn run_host_function(raw: *mut c_void) {
    // SAFETY: the share that `launch` passed to C.
    let slot = unsafe { Arc::from_raw(raw as *const HostSlot) };
    if let Some(function) = slot.take() {
        function();
    }
}

/// Words that a stream can write and wait for: `DeviceMemory` of `u32` or `u64`, and [`Pinned`] or [`Registered`]
/// arrays of `AtomicU32` or `AtomicU64`, which the CPU can use at the same time.
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "`{Self}` has no words that a stream can write or wait for",
        label = "this is neither device memory of u32 or u64, nor an array of `AtomicU32` or `AtomicU64`",
        note = "use a `DeviceMemory<u32>` or `<u64>`, or a `Pinned` or `Registered` array of `AtomicU32` or `AtomicU64`"
    )
)]
pub trait Words: words::Words {}
impl<W: words::Words> Words for W {}

/// The address of a word, which has room for the value, and its bytes. C would take the low bits.
fn word<W: Words>(
    words: &W,
    index: usize,
    value: u64,
    function: &'static str,
) -> Result<(*mut c_void, u32), Error> {
    let (span, bytes) = (words.elements(), mem::size_of::<W::Word>() as u32);
    if index >= span.len {
        let message = format!("the index is {index}, but there are {} words", span.len);
        return Err(Error::invalid(function, message));
    }
    if bytes == 4 && u32::try_from(value).is_err() {
        let message = format!("the value {value:#x} does not fit in a word of 32 bits; use words of 64 bits");
        return Err(Error::invalid(function, message));
    }
    Ok((span.pointer.cast::<W::Word>().wrapping_add(index).cast(), bytes))
}

mod words {
    pub trait Words: crate::copy::sealed::Operand {
        type Word;
    }
}

macro_rules! words {
    ($($name:ident of $word:ty;)*) => {$(
        impl words::Words for $name<$word> {
            type Word = $word;
        }
    )*};
}
words! {
    DeviceMemory of u32;
    DeviceMemory of u64;
    Pinned of AtomicU32;
    Pinned of AtomicU64;
    Registered of AtomicU32;
    Registered of AtomicU64;
}

/// Result of a call that enqueues work: a [`Pending`] with what the operands become, or the same with the error.
pub type Enqueued<B> = Result<Pending<B>, Rejected<B>>;

/// Result of [`Stream::copy_regions`]. Some of the regions may be enqueued even if it is an error, so the regions are
/// in a [`Pending`] either way.
pub type EnqueuedRegions<D, S> = Result<PendingRegions<D, S>, Rejected<PendingRegions<D, S>>>;

/// A batch of regions that may not be complete.
pub type PendingRegions<D, S> = Pending<Vec<Region<Returned<D>, Returned<S>>>>;

/// Work that may not be complete, with its operands.
///
/// [`wait`](Self::wait) returns them, and so does `await`: it is a future of what `wait` returns. Dropping or forgetting
/// this is always safe: the stream keeps the memory alive as long as necessary. It does not wait, unless the [`Stream`] was
/// dropped before: the last of them that is dropped waits for the work.
///
/// An array that was given away is lost with it, and a forgotten `await` waits for nothing. So one that is not used is a
/// warning, and `drop` says that nothing is wanted back:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let stream = gpumem::Stream::new(&device)?;
/// # let memory = gpumem::DeviceMemory::<u32>::new(&device, 3)?;
/// # let array = gpumem::Pinned::<u32>::zeroed(&device, 3)?;
/// drop(stream.fill(&memory, 7u32)?);
/// stream.copy(&memory, array)?;
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// The future needs no runtime of its own: a function in the stream, behind the work, wakes the task. So a task waits for
/// what is in the stream when it is first polled. A waker is called on a thread of the library or the driver, where most
/// functions of this crate fail. If the device is lost, the task wakes when another call has found out, on the thread of
/// that call. So do the tasks of other devices, which go on waiting. A program that makes no other calls awaits with a
/// timeout, and calls [`Stream::is_complete`] when it expires.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{DeviceMemory, Element, Error, Pinned, Stream};
///
/// async fn download<T: Element + Copy>(
///     stream: &Stream,
///     memory: &DeviceMemory<T>,
///     to: Pinned<T>,
/// ) -> Result<Pinned<T>, Error> {
///     let (values, _) = stream.copy(to, memory)?.await?;
///     Ok(values)
/// }
/// # Ok::<(), gpumem::Error>(())
/// ```
#[must_use = "wait for it, or drop it if you need neither the operands nor the end of the work"]
pub struct Pending<B> {
    /// `None` once the future has returned them.
    operands: Option<B>,
    stream: Arc<StreamInner>,
    number: u64,
    /// Whether a failure was reported here.
    reported: bool,
    /// What wakes the task that polls this.
    arrival: Option<Arrival>,
}

// Nothing points into the operands: they are only moved out.
impl<B> Unpin for Pending<B> {}

impl<B> Pending<B> {
    /// Waits until the work is complete, and returns its operands.
    ///
    /// # Errors
    /// If work of the stream failed, or if nothing can be observed: the device is lost, or this is a host function.
    /// The work may still use its operands then, so only this is returned. After a failure of work, another wait
    /// returns the operands, with whatever they contain. [`ErrorKind::InvalidState`](crate::ErrorKind::InvalidState) if
    /// the future has returned them.
    pub fn wait(mut self) -> Result<B, Rejected<Self>> {
        let waited = match self.known() {
            Ok(false) => self.stream.synchronize(sys::GPUMEM_TIMEOUT_INFINITE).map(drop),
            known => known.map(drop),
        };
        self.end(waited, "Pending::wait")
    }

    /// Whether the work is known to be complete, or how it failed.
    fn known(&self) -> Result<bool, Error> {
        // The library reports a failure only once, and may have reported it to another wait.
        match self.stream.failure_of(self.number) {
            Some(error) if self.number != 0 && !self.reported => Err(error),
            _ => Ok(self.stream.is_observed(self.number)),
        }
    }

    /// The operands, or this again after a failure.
    fn end(&mut self, waited: Result<(), Error>, function: &'static str) -> Result<B, Rejected<Self>> {
        let (operands, error) = match (waited, self.operands.take()) {
            (Ok(()), Some(operands)) => return Ok(operands),
            (Ok(()), None) => {
                let message = "the operands are not here any more: an await or a poll has returned them";
                (None, Error::own(Status::INVALID_STATE, function, message))
            }
            (Err(error), operands) => (operands, error.called_as(function)),
        };
        let stream = self.stream.clone();
        let again = Self { operands, stream, number: self.number, reported: true, arrival: None };
        Err(Rejected::new(again, error))
    }

    /// Whether the work is complete; otherwise the waker is called when it is.
    fn arrived(&mut self, waker: &Waker) -> Result<bool, Error> {
        if self.known()? {
            return Ok(true);
        }
        if self.arrival.is_none() {
            if self.stream.query()? {
                return Ok(true);
            }
            self.arrival = Some(Arrival::behind(&self.stream, waker)?);
            return Ok(false);
        }
        match &self.arrival {
            Some(arrival) => match arrival.ask(waker) {
                Answer::Come => arrival.event.is_complete(),
                Answer::Doubtful => self.stream.query(),
                Answer::Expected => Ok(false),
            },
            None => Ok(false),
        }
    }

    /// Whether the work is complete; then [`wait`](Self::wait) does not wait.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn is_complete(&self) -> Result<bool, Error> {
        if self.stream.is_observed(self.number) {
            return Ok(true);
        }
        let over = self.stream.query().map_err(|error| error.called_as("Pending::is_complete"))?;
        Ok(over || self.stream.is_observed(self.number))
    }
}

impl<B> Future for Pending<B> {
    type Output = Result<B, Rejected<Self>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.arrived(context.waker()) {
            Ok(false) => Poll::Pending,
            waited => Poll::Ready(this.end(waited.map(drop), "Pending::await")),
        }
    }
}

/// A function in a stream that wakes a task, behind an event that the task then queries: the function itself is not over
/// when the task runs.
struct Arrival {
    event: Event,
    waiting: Arc<Mutex<Waiting>>,
}

/// The task, until the function has run.
enum Waiting {
    For(Waker),
    /// The task was woken because a device is lost. It may be another device.
    Doubtful,
    Nobody,
}

impl Waiting {
    /// A waker may run code of the caller, so it is called, cloned and dropped without the lock.
    fn wake(self) {
        if let Self::For(waker) = self {
            waker.wake();
        }
    }
}

/// What an arrival tells its task.
enum Answer {
    Come,
    /// The function may never run.
    Doubtful,
    Expected,
}

/// The tasks that wait for a stream, and some that no longer do.
type Tasks = Mutex<Vec<Weak<Mutex<Waiting>>>>;

/// Every stream. Only making a stream writes it, because all threads share it.
static STREAMS: Mutex<Vec<Weak<Work>>> = Mutex::new(Vec::new());

fn living<T>(list: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    lock(list).iter().filter_map(Weak::upgrade).collect()
}

fn note<T>(list: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut list = lock(list);
    if list.len() == list.capacity() {
        list.retain(|known| known.strong_count() != 0);
        // As many more, so that this is rare.
        let more = list.len() + 1;
        list.reserve(more);
    }
    list.push(Arc::downgrade(one));
}

/// Queries the streams of an instance that keep something, without waiting, and releases what complete work used. Returns
/// whether there was any.
pub(crate) fn release_complete(instance: sys::gpumem_instance) -> bool {
    let mut released = false;
    for work in living(&STREAMS) {
        if work.instance == instance && work.entries.load(Ordering::Acquire) != 0 {
            // A failure shows in the call that asks for it.
            released |= work.query().unwrap_or(false);
        }
    }
    released
}

/// Bytes of what only work in streams of an instance still keeps.
pub(crate) fn waiting_bytes(instance: sys::gpumem_instance) -> u64 {
    let mut kept = HashMap::new();
    for work in living(&STREAMS).iter().filter(|work| work.instance == instance) {
        for (_, keep) in &lock(&work.flight).entries {
            if let Some((object, owners, bytes)) = keep.shares() {
                kept.entry(object).or_insert((owners as isize, bytes)).0 -= 1;
            }
        }
    }
    kept.values().filter(|(others, _)| *others == 0).map(|(_, bytes)| bytes).sum()
}

/// Whether a call has found a device lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// Whether a device was lost in this process, so that the work of a stream that is gone may never have been observed
/// complete.
pub(crate) fn a_device_was_lost() -> bool {
    LOST.load(Ordering::Acquire)
}

/// Wakes all tasks after a call has found a device lost: they find out whether it is theirs. The library drops their
/// functions only when something is asked about their own stream.
pub(crate) fn device_is_lost() {
    LOST.store(true, Ordering::Release);
    for task in living(&STREAMS).iter().flat_map(|work| living(&work.tasks)) {
        let mut waiting = lock(&task);
        if let Waiting::For(_) = *waiting {
            let woken = mem::replace(&mut *waiting, Waiting::Doubtful);
            drop(waiting);
            woken.wake();
        }
    }
}

/// Wakes the task when it is dropped, also if the function does not run because the device is lost.
struct Wake(Arc<Mutex<Waiting>>);

impl Drop for Wake {
    fn drop(&mut self) {
        let waiting = mem::replace(&mut *lock(&self.0), Waiting::Nobody);
        waiting.wake();
    }
}

impl Arrival {
    fn behind(stream: &Arc<StreamInner>, waker: &Waker) -> Result<Self, Error> {
        let stream = Stream { inner: stream.clone() };
        let device = stream.inner.instance.device(stream.info()?.device_ordinal)?;
        let event = Event::with_options(&device, EventFlags::DISABLE_TIMING, None)?;
        event.record(&stream)?;
        let waiting = Arc::new(Mutex::new(Waiting::For(waker.clone())));
        // Before the launch, which fails if the device was lost until then.
        note(&stream.inner.tasks, &waiting);
        let wake = Wake(waiting.clone());
        stream.launch_host_function(move || drop(wake))?;
        Ok(Self { event, waiting })
    }

    /// Whether the function has run; otherwise it wakes this task.
    fn ask(&self, waker: &Waker) -> Answer {
        match &*lock(&self.waiting) {
            Waiting::Nobody => return Answer::Come,
            Waiting::For(last) if last.will_wake(waker) => return Answer::Expected,
            _ => {}
        }
        let next = Waiting::For(waker.clone());
        let mut waiting = lock(&self.waiting);
        let answer = match *waiting {
            Waiting::Nobody => return Answer::Come,
            Waiting::Doubtful => Answer::Doubtful,
            Waiting::For(_) => Answer::Expected,
        };
        let last = mem::replace(&mut *waiting, next);
        drop(waiting);
        drop(last);
        answer
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pending").field("number", &self.number).finish_non_exhaustive()
    }
}
