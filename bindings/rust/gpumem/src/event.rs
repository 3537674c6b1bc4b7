// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Points in streams that can be waited for and timed.

use std::fmt;
use std::os::raw::c_void;
use std::os::unix::io::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use gpumem_sys as sys;

use crate::codes::EventFlags;
use crate::device::Device;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::instance::{c_pointer, c_text, lock};
use crate::library::{c, call, output_call};
use crate::memory::Owned;
use crate::share::{import_event, ShareHandle};
use crate::stream::{nanoseconds, Stream, StreamInner};

/// A point in a stream that can be waited for and timed.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{Event, Stream};
///
/// let (stream, event) = (Stream::new(&device)?, Event::new(&device)?);
/// event.record(&stream)?;
/// event.synchronize()?;
/// assert!(event.is_complete()?);
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Event {
    owned: Owned<sys::gpumem_event_s>,
    /// Whether other processes may record it.
    shared: bool,
    record: Mutex<Record>,
}

/// The latest record: in which stream, and after which of its work.
#[derive(Clone, Default)]
struct Record {
    generation: u64,
    stream: Weak<StreamInner>,
    number: u64,
}

impl Event {
    /// Creates an event. It counts as complete until it is recorded.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::with_options(device, EventFlags::NONE, None).map_err(|error| error.called_as("Event::new"))
    }

    /// As [`new`](Self::new), with properties, and a name for messages and reports of up to 63 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn with_options(device: &Device, flags: EventFlags, name: Option<&str>) -> Result<Self, Error> {
        device.instance.retry();
        let name = c_text(name, "Event::with_options")?;
        let desc = sys::gpumem_event_desc { flags: flags.0, name: c_pointer(&name), ..Default::default() };
        // SAFETY: the struct and its text live during the call.
        let made = unsafe { output_call!(gpumem_event_create(device.handle, &desc)) };
        let handle = made.map_err(|error| error.called_as("Event::with_options"))?;
        Ok(Self::of(handle, device, flags))
    }

    /// Wraps an event that other code created.
    ///
    /// # Safety
    /// It must be a `CUevent` of this device that was created with these flags, and must live until this is closed or
    /// dropped. No other code may record it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub unsafe fn wrap(device: &Device, native: *mut c_void, flags: EventFlags) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let handle = unsafe { output_call!(gpumem_event_wrap(device.handle, native, flags.0)) }?;
        Ok(Self::of(handle, device, flags))
    }

    /// Imports an event of another process, with the descriptors that came with the handle, or that the exporter has.
    /// Both processes can record it, wait for it and query it; a wait is for the latest record at the time of the call,
    /// in whichever process.
    ///
    /// # Errors
    /// [`ErrorKind::StaleHandle`] if the event was destroyed or the export has ended, [`ErrorKind::PeerGone`] if the
    /// exporter has, [`ErrorKind::InvalidState`] if this process is the exporter; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::PermissionDenied`], [`ErrorKind::Busy`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::LimitExceeded`] or [`ErrorKind::DeviceLost`].
    pub fn import(device: &Device, handle: &ShareHandle) -> Result<Self, Error> {
        Self::import_with_fds::<OwnedFd>(device, handle, &[])
    }

    /// As [`import`](Self::import), with the descriptors of [`Instance::export_fds`](crate::Instance::export_fds).
    ///
    /// # Errors
    /// As [`import`](Self::import), and [`ErrorKind::InvalidArgument`] if these are not the descriptors of the handle.
    pub fn import_with_fds<F: AsFd>(device: &Device, handle: &ShareHandle, fds: &[F]) -> Result<Self, Error> {
        Ok(Self::of(import_event(device, handle, fds)?, device, EventFlags::INTERPROCESS))
    }

    fn of(handle: sys::gpumem_event, device: &Device, flags: EventFlags) -> Self {
        let shared = flags.contains(EventFlags::INTERPROCESS);
        let owned = Owned { handle, instance: device.instance.clone() };
        Self { owned, shared, record: Mutex::default() }
    }

    pub(crate) fn handle(&self) -> sys::gpumem_event {
        self.owned.handle
    }

    /// Destroys the event. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// In a host function. The event is returned unchanged.
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.owned.close().map_err(|error| Rejected::new(self, error))
    }

    /// Records the work that is in a stream now. A later record replaces it. To have waited for an event of several
    /// processes does not release what the work uses: wait for the stream as well.
    ///
    /// # Errors
    /// If event and stream belong to different devices, or the device is lost.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        let number = stream.inner.latest();
        let mut record = lock(&self.record);
        // SAFETY: only handles.
        unsafe { call!(gpumem_event_record(self.owned.handle, stream.handle())) }?;
        record.generation += 1;
        // Another process may record the event meanwhile, and then its answers are not about this work.
        if !self.shared {
            record.stream = Arc::downgrade(&stream.inner);
            record.number = number;
        }
        Ok(())
    }

    /// Makes a call while the event cannot be recorded again, with the stream of the latest record and the number of
    /// its last work, or 0.
    pub(crate) fn with_record<R>(&self, call: impl FnOnce(&Weak<StreamInner>, u64) -> R) -> R {
        let record = lock(&self.record);
        call(&record.stream, record.number)
    }

    /// Queries or waits. If the work is complete, and the event was certainly not recorded again meanwhile, releases
    /// what the recorded work uses.
    fn observe(&self, query: impl FnOnce() -> Result<Status, Error>) -> Result<bool, Error> {
        let before = lock(&self.record).clone();
        let answer = query();
        let same = lock(&self.record).generation == before.generation;
        if let (true, Some(stream)) = (same, before.stream.upgrade()) {
            match &answer {
                Ok(Status::SUCCESS) => stream.observed(before.number),
                Ok(_) => {}
                Err(error) => stream.failed(before.number, error, || {
                    // SAFETY: only a handle.
                    unsafe { call!(gpumem_event_query(self.owned.handle)) }
                }),
            }
        }
        Ok(answer? == Status::SUCCESS)
    }

    /// Whether the work of the latest record is complete.
    ///
    /// # Errors
    /// If the device is lost, and in a host function.
    pub fn is_complete(&self) -> Result<bool, Error> {
        self.observe(|| {
            // SAFETY: only a handle.
            unsafe { call!(gpumem_event_query(self.owned.handle)) }
        })
    }

    /// Waits until the work of the latest record is complete.
    ///
    /// # Errors
    /// If the device is lost, and in a host function.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.wait(sys::GPUMEM_TIMEOUT_INFINITE).map(drop)
    }

    /// As [`synchronize`](Self::synchronize) with a timeout. Returns whether the work is complete.
    ///
    /// # Errors
    /// If the device is lost, and in a host function.
    pub fn synchronize_for(&self, timeout: Duration) -> Result<bool, Error> {
        self.wait(nanoseconds(timeout)).map_err(|error| error.called_as("Event::synchronize_for"))
    }

    fn wait(&self, timeout_ns: u64) -> Result<bool, Error> {
        self.observe(|| {
            // SAFETY: only a handle.
            unsafe { call!(gpumem_event_synchronize(self.owned.handle, timeout_ns)) }
        })
    }

    /// Nanoseconds from an earlier event to this one, negative if this one was recorded first; `None` while one of
    /// the records is not complete. On cuda the resolution is about half a microsecond.
    ///
    /// ```
    /// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
    /// # let stream = gpumem::Stream::new(&device)?;
    /// # let memory = gpumem::DeviceMemory::<u32>::new(&device, 1000)?;
    /// let (start, end) = (gpumem::Event::new(&device)?, gpumem::Event::new(&device)?);
    /// start.record(&stream)?;
    /// drop(stream.fill(&memory, 1u32)?);
    /// end.record(&stream)?;
    /// end.synchronize()?;
    /// assert!(end.nanoseconds_since(&start)?.is_some());
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// If one of them was never recorded or has no timing, or if they belong to different devices.
    pub fn nanoseconds_since(&self, start: &Event) -> Result<Option<i64>, Error> {
        let mut nanoseconds = 0;
        let (start, end) = (start.owned.handle, self.owned.handle);
        // SAFETY: the output is writable.
        let status = unsafe { call!(gpumem_event_get_elapsed_time(start, end, &mut nanoseconds)) }?;
        Ok((status == Status::SUCCESS).then_some(nanoseconds))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Event").field(&self.owned.handle).finish()
    }
}
