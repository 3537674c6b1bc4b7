// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Ordered queues of work, and what keeps memory alive while it is in them.

use std::fmt;
use std::mem;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpumem_sys as sys;

use crate::codes::{SourceOrder, WaitCondition};
use crate::copy::sealed::{Discard, Keep};
use crate::copy::{CheckedCopy, CheckedFill, CopyOptions, Destination, Enqueue, Rectangle, Source};
use crate::device::Device;
use crate::element::{Element, FillValue};
use crate::error::{array_text, check, Error, ErrorKind, Rejected, Status};
use crate::event::Event;
use crate::instance::{c_pointer, c_text, lock, Instance};
use crate::library::{c, call};
use crate::memory::Remains;
use crate::typed::{DeviceMemory, Pinned, Registered};

/// How a stream shall be.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    priority: i32,
    name: Option<String>,
}

impl StreamOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lower numbers run first; cut to the range of the device.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// A name for messages and reports, up to 63 bytes.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// An ordered queue of work of one device.
///
/// Work that is enqueued runs later. What it uses is taken by value and comes back from the [`Pending`] that each
/// call returns, or is memory that the CPU cannot touch; see [`Enqueue`]. In either case the stream itself keeps the
/// memory alive until the work has been observed complete. So nothing that is dropped or forgotten, neither the
/// `Pending`, nor the memory, nor the stream, lets memory go while work uses it.
///
/// Dropping a stream that has such work waits for it.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{DeviceMemory, Pinned, Stream};
///
/// let stream = Stream::new(&device)?;
/// let memory = DeviceMemory::<u8>::new(&device, 4096)?;
/// stream.fill(&memory, 7)?;
/// let pending = stream.copy(Pinned::<u8>::zeroed(&device, 4096)?, &memory)?;
/// // The pinned array comes back when its content is complete.
/// let (back, _) = pending.wait()?;
/// assert_eq!(back[4095], 7);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// Until then nobody can touch it:
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
/// A slice that is merely borrowed cannot be given to work that runs later:
///
/// ```compile_fail,E0277
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let stream = gpumem::Stream::new(&device)?;
/// # let memory = gpumem::DeviceMemory::<u8>::new(&device, 4096)?;
/// let mut back = vec![0; 4096];
/// stream.copy(&mut back[..], &memory)?;
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Stream {
    pub(crate) inner: Arc<StreamInner>,
}

pub struct StreamInner {
    handle: sys::gpumem_stream,
    instance: Instance,
    flight: Mutex<Flight>,
    /// Number of entries in `flight`, for those who only want to know whether there are any.
    entries: AtomicUsize,
    destroyed: AtomicBool,
    panics: Arc<AtomicU64>,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for StreamInner {}
// SAFETY: as above.
unsafe impl Sync for StreamInner {}

/// What work in the stream uses. Each piece of work has a number, given after it was enqueued.
struct Flight {
    last: u64,
    observed: u64,
    entries: Vec<(u64, Keep)>,
    /// At this many entries the stream is asked whether they are still needed.
    ask_at: usize,
    /// Failures of work, which the library reports to the first who asks only.
    failures: Vec<Failure>,
}

/// A failure that may concern work above one number and up to another.
struct Failure {
    above: u64,
    up_to: u64,
    error: Error,
}

/// More failures than this are not told apart.
const FAILURES_MAX: usize = 64;

const ASK_AT_LEAST: usize = 64;

impl Keep {
    fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Lets go after the device, instance or process is gone: work may have stopped at any point, but nobody tells
    /// when. Allocations of the library are given back to it, which knows; what others would free or use is not let
    /// go of.
    fn abandon(self) {
        match self {
            Self::Memory(memory) if !memory.has_backing() => drop(memory),
            Self::Function(function) => function.discard(),
            Self::Earlier(..) => {}
            other => mem::forget(other),
        }
    }
}

impl StreamInner {
    /// Number of the latest piece of work.
    pub(crate) fn latest(&self) -> u64 {
        if self.entries.load(Ordering::Acquire) == 0 {
            // Nothing has to be let go of, so an observation need not be noted.
            return 0;
        }
        lock(&self.flight).last
    }

    /// Notes a piece of work that has been enqueued, and what it uses. Gives its number.
    fn enqueued(&self, keeps: impl IntoIterator<Item = Keep>) -> u64 {
        let mut flight = lock(&self.flight);
        flight.last += 1;
        let number = flight.last;
        flight.entries.extend(keeps.into_iter().filter(|keep| !keep.is_nothing()).map(|keep| (number, keep)));
        self.entries.store(flight.entries.len(), Ordering::Release);
        number
    }

    /// Asks whether work is complete if much of it has piled up that nobody has asked about.
    fn tidy(&self) {
        let entries = self.entries.load(Ordering::Acquire);
        if entries < ASK_AT_LEAST || entries < lock(&self.flight).ask_at {
            return;
        }
        // The answer is used inside; a failure shows in the call that follows.
        let _ = self.query();
        let mut flight = lock(&self.flight);
        flight.ask_at = flight.entries.len().saturating_mul(2);
    }

    /// Notes that work up to this number has been observed complete, and lets go of what it uses.
    pub(crate) fn observed(&self, number: u64) {
        if number != 0 {
            let mut flight = lock(&self.flight);
            flight.observed = flight.observed.max(number);
            drop(flight);
            self.let_go(number);
        }
    }

    /// Lets go of what work up to this number uses: it is over. Whether it went well is another question, if it was
    /// another stream that has shown it.
    fn let_go(&self, number: u64) {
        let mut flight = lock(&self.flight);
        let (over, needed): (Vec<_>, Vec<_>) =
            mem::take(&mut flight.entries).into_iter().partition(|(of, _)| *of <= number);
        flight.entries = needed;
        self.entries.store(flight.entries.len(), Ordering::Release);
        drop(flight);
        // Freeing calls the library; nobody should have to wait for it.
        for (_, keep) in over {
            if let Keep::Earlier(stream, number) = keep {
                if let Some(stream) = stream.upgrade() {
                    stream.let_go(number);
                }
            }
        }
    }

    /// Notes a failure of work up to this number, for all who wait for some of it.
    pub(crate) fn failed(&self, number: u64, error: &Error, ask: impl FnOnce() -> Result<Status, Error>) {
        if number == 0 {
            return;
        }
        // A call at the wrong moment has this status too, and has it again; a failure of work is reported once.
        let wrong_moment = error.kind() == ErrorKind::InvalidState
            && matches!(ask(), Err(again) if again.kind() == ErrorKind::InvalidState);
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

    /// The failure that may concern work of this number.
    fn failure_of(&self, number: u64) -> Option<Error> {
        let flight = lock(&self.flight);
        let found = flight.failures.iter().find(|failure| failure.above < number && number <= failure.up_to);
        found.map(|failure| failure.error.clone())
    }

    fn is_observed(&self, number: u64) -> bool {
        number == 0 || lock(&self.flight).observed >= number
    }

    /// Lets go of everything as far as that is safe after a failure that says that nothing will be observed.
    fn ended(&self) {
        let entries = mem::take(&mut lock(&self.flight).entries);
        self.entries.store(0, Ordering::Release);
        entries.into_iter().for_each(|(_, keep)| keep.abandon());
    }

    /// Asks or waits, and draws the conclusions for what is kept alive.
    fn observe(&self, ask: impl FnOnce() -> Result<Status, Error>) -> Result<bool, Error> {
        let latest = self.latest();
        match ask() {
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

    fn synchronize(&self, timeout_ns: u64) -> Result<bool, Error> {
        self.observe(|| {
            // SAFETY: only a handle.
            unsafe { call!(gpumem_stream_synchronize(self.handle, timeout_ns)) }
        })
    }

    fn destroy(&self) -> Result<(), Error> {
        if self.destroyed.load(Ordering::Acquire) {
            return Ok(());
        }
        Remains::Stream(self.handle).release()?;
        self.destroyed.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for work that uses something. Says whether the stream may be destroyed.
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
        if self.settle().is_err() {
            // In a host function, or while the stream is captured: nobody will see when the work is complete, so
            // what it uses stays.
            mem::forget(mem::take(&mut lock(&self.flight).entries));
        }
        if !self.destroyed.load(Ordering::Acquire) {
            Remains::Stream(self.handle).release_or_keep(&self.instance.inner);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Stream").field(&self.inner.handle).finish()
    }
}

/// Nanoseconds of a time limit; what does not fit is for ever.
pub(crate) fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(sys::GPUMEM_TIMEOUT_INFINITE)
}

impl Stream {
    fn of(handle: sys::gpumem_stream, device: &Device) -> Self {
        Self {
            inner: Arc::new(StreamInner {
                handle,
                instance: device.instance(),
                flight: Mutex::new(Flight {
                    last: 0,
                    observed: 0,
                    entries: Vec::new(),
                    ask_at: ASK_AT_LEAST,
                    failures: Vec::new(),
                }),
                entries: AtomicUsize::new(0),
                destroyed: AtomicBool::new(false),
                panics: Arc::default(),
            }),
        }
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// As `gpumem_stream_create()`.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::with_options(device, &StreamOptions::new())
    }

    /// As [`new`](Self::new), with more to say.
    ///
    /// # Errors
    /// As `gpumem_stream_create()`.
    pub fn with_options(device: &Device, options: &StreamOptions) -> Result<Self, Error> {
        device.instance.retry();
        let name = c_text(options.name.as_deref(), "StreamOptions::name")?;
        let desc = sys::gpumem_stream_desc {
            priority: options.priority,
            name: c_pointer(&name),
            ..Default::default()
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the struct and its text live during the call; the output is writable.
        unsafe { call!(gpumem_stream_create(device.handle, &desc, &mut handle)) }?;
        Ok(Self::of(handle, device))
    }

    /// Adopts a stream that other code made: a `CUstream`, what
    /// [`host::native_stream_create`](crate::host::native_stream_create) made, or NULL for the legacy default stream.
    ///
    /// # Safety
    /// It must be a stream of this device, and its maker must keep it until this is closed or dropped and no
    /// [`Pending`] of it is left.
    ///
    /// # Errors
    /// As `gpumem_stream_wrap()`.
    pub unsafe fn wrap(device: &Device, native: *mut c_void) -> Result<Self, Error> {
        let mut handle = ptr::null_mut();
        // SAFETY: the output is writable; the rest is the caller's promise.
        unsafe { call!(gpumem_stream_wrap(device.handle, native, &mut handle)) }?;
        Ok(Self::of(handle, device))
    }

    pub(crate) fn handle(&self) -> sys::gpumem_stream {
        self.inner.handle
    }

    /// Waits for work that uses memory, and destroys the stream.
    ///
    /// # Errors
    /// If it cannot wait (in a host function, or while other code captures the stream). The stream is handed back,
    /// as it was.
    pub fn close(self) -> Result<(), (Self, Error)> {
        match self.inner.settle().and_then(|()| self.inner.destroy()) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    /// What is known about the stream.
    ///
    /// # Errors
    /// If the instance is closed, or of the parent of this process.
    pub fn info(&self) -> Result<StreamInfo, Error> {
        let mut info = sys::gpumem_stream_info::default();
        // SAFETY: the struct is writable and says its own size.
        unsafe { call!(gpumem_stream_get_info(self.handle(), &mut info)) }?;
        Ok(StreamInfo {
            device_ordinal: info.device_ordinal,
            wrapped: info.wrapped != 0,
            priority: info.priority,
            native_stream: info.native_stream,
            name: array_text(&info.name),
        })
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

    /// As [`synchronize`](Self::synchronize), but not longer than a time limit. Says whether the work is complete.
    ///
    /// # Errors
    /// If the device is lost, and in a host function.
    pub fn synchronize_for(&self, limit: Duration) -> Result<bool, Error> {
        self.inner.synchronize(nanoseconds(limit))
    }

    /// Lets later work of this stream wait for what an event has captured.
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

    /// Copies elements, in stream order. Both operands have the same number of elements.
    ///
    /// # Errors
    /// If the numbers of elements differ, or as `gpumem_copy()`. The operands are handed back.
    pub fn copy<T, D, S>(&self, mut destination: D, source: S) -> Enqueued<(D, S)>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
        S: Source<T> + Enqueue,
    {
        let checked = CheckedCopy::new(&mut destination, &source);
        self.enqueue_copy(checked, destination, source)
    }

    /// Copies a rectangle of elements, in stream order.
    ///
    /// # Errors
    /// If it does not lie within its operands, or as `gpumem_copy_2d()`. The operands are handed back.
    pub fn copy_2d<T, D, S>(&self, mut destination: D, source: S, rectangle: &Rectangle) -> Enqueued<(D, S)>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
        S: Source<T> + Enqueue,
    {
        let checked = CheckedCopy::of_rectangle(&mut destination, &source, rectangle);
        self.enqueue_copy(checked, destination, source)
    }

    /// Enqueues work by a function that says whether there was any.
    fn enqueue<B, const N: usize>(
        &self,
        operands: B,
        keeps: [Keep; N],
        run: impl FnOnce() -> Result<bool, Error>,
    ) -> Enqueued<B> {
        self.inner.tidy();
        match run() {
            Ok(any) => {
                let number = if any { self.inner.enqueued(keeps) } else { 0 };
                Ok(Pending { operands, stream: self.inner.clone(), number, told: false })
            }
            Err(error) => Err(Rejected::new(operands, error)),
        }
    }

    fn enqueue_copy<D: Enqueue, S: Enqueue>(
        &self,
        checked: Result<CheckedCopy, Error>,
        destination: D,
        source: S,
    ) -> Enqueued<(D, S)> {
        let keeps = [destination.keep(), source.keep()];
        self.enqueue((destination, source), keeps, || {
            let copy = checked?;
            // SAFETY: the stream keeps the operands alive, and the `Pending` keeps others from touching them, or, if
            // it goes, its operands go with it.
            unsafe { copy.run(&self.inner.instance, Some(self), &CopyOptions::new()) }?;
            Ok(!copy.is_empty())
        })
    }

    /// Copies elements of a slice, in stream order. The slice is read before the call returns, so that a variable on
    /// the stack will do; for large copies this is slower than a copy of a [`Pinned`] array.
    ///
    /// # Errors
    /// If the numbers of elements differ, or as `gpumem_copy()`. The destination is handed back.
    pub fn copy_from_slice<T, D>(&self, mut destination: D, source: &[T]) -> Enqueued<D>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
    {
        let checked = CheckedCopy::new(&mut destination, &source);
        let keep = destination.keep();
        let options = CopyOptions { source_order: SourceOrder::DURING_CALL, ..CopyOptions::new() };
        self.enqueue(destination, [keep], || {
            let copy = checked?;
            // SAFETY: as in `enqueue_copy` for the destination; the source is done with when the call returns.
            unsafe { copy.run(&self.inner.instance, Some(self), &options) }?;
            Ok(!copy.is_empty())
        })
    }

    fn enqueue_fill<D: Enqueue>(&self, checked: Result<CheckedFill, Error>, destination: D) -> Enqueued<D> {
        let keep = destination.keep();
        self.enqueue(destination, [keep], || {
            let fill = checked?;
            // SAFETY: as in `enqueue_copy`.
            unsafe { fill.run(&self.inner.instance, Some(self)) }?;
            Ok(!fill.is_empty())
        })
    }

    /// Fills memory with a number, in stream order.
    ///
    /// # Errors
    /// As `gpumem_fill()`. The destination is handed back.
    pub fn fill<T, D>(&self, mut destination: D, value: T) -> Enqueued<D>
    where
        T: FillValue,
        D: Destination<T> + Enqueue,
    {
        let checked = CheckedFill::new(&mut destination, value);
        self.enqueue_fill(checked, destination)
    }

    /// Fills memory of any elements with a byte, in stream order.
    ///
    /// # Errors
    /// As `gpumem_fill()`. The destination is handed back.
    pub fn fill_bytes<T, D>(&self, mut destination: D, value: u8) -> Enqueued<D>
    where
        T: Element + Copy,
        D: Destination<T> + Enqueue,
    {
        let checked = CheckedFill::bytes::<T>(&mut destination, value);
        self.enqueue_fill(checked, destination)
    }

    /// Fills a rectangle with a number, in stream order.
    ///
    /// # Errors
    /// If it does not lie within its operand, or as `gpumem_fill_2d()`. The destination is handed back.
    pub fn fill_2d<T, D>(&self, mut destination: D, rectangle: &Rectangle, value: T) -> Enqueued<D>
    where
        T: FillValue,
        D: Destination<T> + Enqueue,
    {
        let checked = CheckedFill::of_rectangle(&mut destination, rectangle, value);
        self.enqueue_fill(checked, destination)
    }

    /// Writes a number to a word, in stream order.
    ///
    /// # Errors
    /// If there is no word of that index, or as `gpumem_stream_write_value()`.
    pub fn write_value(&self, words: &impl Words, index: usize, value: u64) -> Result<(), Error> {
        let address = words.address(index, "Stream::write_value")?;
        let keep = words.keep();
        // SAFETY: the stream keeps the memory alive; the word is atomic, or not the CPU's.
        unsafe { self.write_value_raw(address, value, words.word_size()) }?;
        self.keep(keep);
        Ok(())
    }

    /// Holds the stream until a word meets a condition.
    ///
    /// # Errors
    /// If there is no word of that index, or as `gpumem_stream_wait_value()`.
    pub fn wait_value(
        &self,
        words: &impl Words,
        index: usize,
        condition: WaitCondition,
        value: u64,
    ) -> Result<(), Error> {
        let address = words.address(index, "Stream::wait_value")?;
        let keep = words.keep();
        // SAFETY: the stream keeps the memory alive; the word is atomic, or not the CPU's.
        unsafe { self.wait_value_raw(address, value, words.word_size(), condition) }?;
        self.keep(keep);
        Ok(())
    }

    /// `gpumem_stream_write_value()`: by address.
    ///
    /// # Safety
    /// The word may be written, by more than one at a time, until the work has been observed complete.
    ///
    /// # Errors
    /// As `gpumem_stream_write_value()`.
    pub unsafe fn write_value_raw(&self, address: *mut c_void, value: u64, bytes: u32) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { call!(gpumem_stream_write_value(self.handle(), address, value, bytes)) }?;
        Ok(())
    }

    /// `gpumem_stream_wait_value()`: by address.
    ///
    /// # Safety
    /// The word may be read until the work has been observed complete.
    ///
    /// # Errors
    /// As `gpumem_stream_wait_value()`.
    pub unsafe fn wait_value_raw(
        &self,
        address: *mut c_void,
        value: u64,
        bytes: u32,
        condition: WaitCondition,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { call!(gpumem_stream_wait_value(self.handle(), address, value, bytes, condition.0)) }?;
        Ok(())
    }

    /// Runs a function on the CPU in stream order, on a thread that is not the caller's. It is dropped without having
    /// run if the device is lost.
    ///
    /// It must not wait for work of a device. Of this crate it can only ask for information; everything else fails
    /// with [`ErrorKind::InvalidState`](crate::ErrorKind::InvalidState). A panic ends the function and is counted; see
    /// [`panicked_functions`](Self::panicked_functions).
    ///
    /// # Errors
    /// As `gpumem_stream_launch_host_function()`.
    pub fn launch_host_function(&self, function: impl FnOnce() + Send + 'static) -> Result<(), Error> {
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

    /// How many functions of this stream have panicked.
    #[must_use]
    pub fn panicked_functions(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// Keeps something until the work that is in the stream now has been observed complete.
    pub(crate) fn keep(&self, keep: Keep) {
        self.inner.enqueued([keep]);
    }

    pub(crate) fn panics(&self) -> Arc<AtomicU64> {
        self.inner.panics.clone()
    }
}

/// A function that C will call once, or never.
pub(crate) struct Slot<F> {
    function: Mutex<Option<F>>,
}

/// A function without arguments, as [`run_host_function`] finds it behind its pointer.
type HostSlot = Slot<Box<dyn FnOnce() + Send>>;

impl<F: Send + 'static> Slot<F> {
    pub(crate) fn new(function: F) -> Arc<Self> {
        Arc::new(Self { function: Mutex::new(Some(function)) })
    }

    /// Hands one share of the slot to C, and gives the other, to be kept by the stream.
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

    /// The function, for the one who runs or drops it.
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

/// Runs code of the user, so that a panic does not leave it. Says whether it panicked.
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
    // SAFETY: the share that `launch` handed over.
    let slot = unsafe { Arc::from_raw(raw as *const HostSlot) };
    if let Some(function) = slot.take() {
        function();
    }
}

/// Words that a stream can write and wait for: `DeviceMemory` of `u32` or `u64`, and [`Pinned`] or [`Registered`]
/// arrays of `AtomicU32` or `AtomicU64`, which the CPU can use at the same time.
pub trait Words: words::Words {}
impl<W: words::Words> Words for W {}

mod words {
    use super::{c_void, Error, Keep};

    pub trait Words {
        fn word_size(&self) -> u32;
        fn address(&self, index: usize, function: &'static str) -> Result<*mut c_void, Error>;
        fn keep(&self) -> Keep;
    }
}

macro_rules! words {
    ($($name:ident of $word:ty: $size:literal;)*) => {$(
        impl words::Words for $name<$word> {
            fn word_size(&self) -> u32 {
                $size
            }
            fn address(&self, index: usize, function: &'static str) -> Result<*mut c_void, Error> {
                if index < self.len() {
                    Ok(self.block().start().wrapping_add(index).cast())
                } else {
                    Err(Error::invalid(function, format!("there are {} words, and none of index {index}", self.len())))
                }
            }
            fn keep(&self) -> Keep {
                self.memory().map_or(Keep::Nothing, |memory| Keep::Memory(memory.share()))
            }
        }
    )*};
}
words! {
    DeviceMemory of u32: 4;
    DeviceMemory of u64: 8;
    Pinned of AtomicU32: 4;
    Pinned of AtomicU64: 8;
    Registered of AtomicU32: 4;
    Registered of AtomicU64: 8;
}

/// What a call that enqueues work returns: a [`Pending`] with the operands, or the operands and why it failed.
pub type Enqueued<B> = Result<Pending<B>, Rejected<B>>;

/// Work that may not be complete, and what it uses.
///
/// [`wait`](Self::wait) hands it back. Dropping or forgetting this does not wait and is always good: the stream
/// keeps the memory alive as long as it has to.
pub struct Pending<B> {
    operands: B,
    stream: Arc<StreamInner>,
    number: u64,
    /// Whether a failure was reported here.
    told: bool,
}

impl<B> Pending<B> {
    /// Waits until the work is complete, and hands back what it used.
    ///
    /// # Errors
    /// If work of the stream failed, or if nothing can be observed: the device is lost, or this is a host function.
    /// Nothing is handed back then but this, because the work may still use its operands. After a failure of work,
    /// another wait hands them back, with whatever they contain.
    pub fn wait(mut self) -> Result<B, Rejected<Self>> {
        if self.number == 0 {
            return Ok(self.operands);
        }
        // Another wait may have been told of a failure of this work, which is reported only once.
        if let (false, Some(error)) = (self.told, self.stream.failure_of(self.number)) {
            self.told = true;
            return Err(Rejected::new(self, error));
        }
        if self.stream.is_observed(self.number) {
            return Ok(self.operands);
        }
        match self.stream.synchronize(sys::GPUMEM_TIMEOUT_INFINITE) {
            Ok(_) => Ok(self.operands),
            Err(error) => {
                self.told = true;
                Err(Rejected::new(self, error))
            }
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
        Ok(self.stream.query()? || self.stream.is_observed(self.number))
    }
}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pending").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What is known about a stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamInfo {
    /// Number of its device.
    pub device_ordinal: u32,
    /// Whether it was adopted.
    pub wrapped: bool,
    /// Priority granted.
    pub priority: i32,
    /// The `CUstream`, for use by other code. It goes with the stream.
    pub native_stream: *mut c_void,
    /// As given at creation.
    pub name: String,
}
