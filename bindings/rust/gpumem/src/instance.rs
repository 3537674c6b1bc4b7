// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Open backends, their statistics, and queries about addresses.

use std::ffi::CString;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::raw::{c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpumem_sys as sys;

use crate::codes::{Access, Backend, Location};
use crate::device::Device;
use crate::error::{array_text, Error, ErrorKind, Rejected, Status};
use crate::infos::{ProbeInfo, Stats};
use crate::library::{c, call, info_call, output_call, require};
use crate::memory::Remains;
pub use crate::options::{HostOptions, InstanceOptions};
use crate::stream::{a_device_was_lost, release_complete, waiting_bytes};
use crate::words::translate;

/// Locks a mutex. Poison is ignored: the data is never left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text for C.
pub(crate) fn c_text(text: Option<&str>, function: &'static str) -> Result<Option<CString>, Error> {
    text.map(|text| {
        CString::new(text).map_err(|_| {
            Error::invalid(function, format!("the text {text:?} contains a 0 byte; leave it out"))
        })
    })
    .transpose()
}

/// A path for C.
pub(crate) fn c_path(path: Option<&Path>, function: &'static str) -> Result<Option<CString>, Error> {
    path.map(|path| {
        CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::invalid(function, "the path contains a 0 byte"))
    })
    .transpose()
}

/// Pointer to a text; NULL if there is none.
pub(crate) fn c_pointer(text: &Option<CString>) -> *const sys::c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// Pointer to the first item; NULL if there is none.
pub(crate) fn first_of<T>(items: &[T]) -> *const T {
    items.first().map_or(ptr::null(), |_| items.as_ptr())
}

/// A struct of C, with what it points to.
pub(crate) struct Desc<D, H> {
    desc: D,
    _held: H,
}

impl<D, H> Desc<D, H> {
    pub(crate) fn new(desc: D, held: H) -> Self {
        Self { desc, _held: held }
    }
}

impl<D, H> Deref for Desc<D, H> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.desc
    }
}

impl<D, H> DerefMut for Desc<D, H> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.desc
    }
}

/// An open backend. Its clones and every object created through it share it; dropping the last of them closes it.
///
/// [`close`](Self::close) closes it and reports failures. If the last owner is dropped instead, the drop waits for
/// the work of the instance's streams, which [`close`](Self::close) does not.
///
/// ```
/// use gpumem::{Backend, DeviceMemory, Instance};
///
/// let instance = Instance::open(Backend::HOST)?;
/// let device = instance.device(0)?;
/// let memory = DeviceMemory::<u32>::new(&device, 1000)?;
/// instance.fill(&memory, 7u32)?;
/// assert_eq!(memory.to_vec()?, vec![7; 1000]);
///
/// memory.close()?;
/// instance.close()?;
/// # Ok::<(), gpumem::Error>(())
/// ```
#[derive(Clone)]
pub struct Instance {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) handle: sys::gpumem_instance,
    /// Whether dropping it closes it.
    owned: bool,
    closed: AtomicBool,
    /// Objects that could not be destroyed when they were dropped.
    remains: Mutex<Vec<Remains>>,
    has_remains: AtomicBool,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    fn new(handle: sys::gpumem_instance, owned: bool) -> Arc<Self> {
        Arc::new(Self {
            handle,
            owned,
            closed: AtomicBool::new(false),
            remains: Mutex::new(Vec::new()),
            has_remains: AtomicBool::new(false),
        })
    }

    /// Keeps an object that could not be destroyed, to try again later.
    pub(crate) fn keep(&self, remains: Remains) {
        lock(&self.remains).push(remains);
        self.has_remains.store(true, Ordering::Release);
    }

    /// Tries again to destroy the objects that could not be destroyed when they were dropped. Returns whether one was.
    pub(crate) fn retry(&self) -> bool {
        if !self.has_remains.load(Ordering::Acquire) {
            return false;
        }
        let mut tried = std::mem::take(&mut *lock(&self.remains));
        let before = tried.len();
        tried.retain(|remains| remains.release().is_err());
        let released = tried.len() != before;
        let mut kept = lock(&self.remains);
        kept.append(&mut tried);
        self.has_remains.store(!kept.is_empty(), Ordering::Release);
        released
    }

    /// Makes a call that needs memory. If there is none, it is made once more after what was dropped and is not used any
    /// more has been released. That drops objects, so nothing may be locked that their drops lock.
    #[inline]
    pub(crate) fn with_room<R>(&self, mut call: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        match call() {
            Err(error) if error.kind().is_lack() => {
                let result = if self.make_room() { call() } else { Err(error) };
                result.map_err(|error| self.with_waiting(error))
            }
            result => result,
        }
    }

    /// Says how much memory was dropped, and not freed because streams work on.
    #[cold]
    fn with_waiting(&self, error: Error) -> Error {
        match waiting_bytes(self.handle) {
            bytes if bytes != 0 && error.kind().is_lack() => error.with_note(&format!(
                "{bytes} bytes that were dropped wait for work in streams: synchronize them"
            )),
            _ => error,
        }
    }

    /// Releases what was dropped and is not used any more. Returns whether there was any.
    #[cold]
    pub(crate) fn make_room(&self) -> bool {
        let released = release_complete(self.handle);
        self.retry() || released
    }

    /// Says of what lives why it may do so although the program has dropped it.
    fn with_reasons(&self, mut error: Error) -> Error {
        if error.kind() != ErrorKind::Busy {
            return error;
        }
        if self.has_remains.load(Ordering::Acquire) {
            error =
                error.with_note("some of it was dropped while in use: close again when its work is complete");
        }
        if a_device_was_lost() {
            error = error.with_note("what was shared with the work of a lost device goes only by force");
        }
        error
    }

    /// Fails if the instance is closed, or belongs to the parent process: its memory may be gone then. For what touches
    /// memory without another call; and before a lock is waited for, which a thread of the parent may hold for ever.
    pub(crate) fn check(&self, function: &'static str) -> Result<(), Error> {
        let mut device = ptr::null_mut();
        // SAFETY: the output is writable; any handle may be given.
        unsafe { call!(gpumem_device_get(self.handle, 0, &mut device)) }
            .map(drop)
            .map_err(|error| error.called_as(function))
    }

    fn close(&self, mode: sys::gpumem_close_mode) -> Result<u64, Error> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(0);
        }
        let mut destroyed = 0;
        // SAFETY: the output is writable; any handle may be given.
        match unsafe { call!(gpumem_instance_close(self.handle, mode, &mut destroyed)) } {
            Ok(_) => {}
            // Another owner was faster.
            Err(error) if error.kind().is_closed() => {}
            Err(error) => return Err(error),
        }
        self.closed.store(true, Ordering::Release);
        Ok(destroyed)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.retry();
        if self.owned && !self.closed.load(Ordering::Acquire) {
            // Nothing in Rust refers to objects that may still live, so force is safe. If even that fails (in a
            // forked child, or in a host function), the system frees them at exit.
            let _ = self.close(sys::GPUMEM_CLOSE_FORCE);
        }
        if !self.closed.load(Ordering::Acquire) {
            // Still registered, so the bytes must not be freed.
            std::mem::forget(std::mem::take(&mut *lock(&self.remains)));
        }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("Instance");
        text.field("handle", &self.inner.handle);
        match self.info() {
            Ok(info) => text
                .field("backend", &info.backend)
                .field("name", &info.name)
                .field("device_count", &info.device_count),
            Err(error) => text.field("error", &error.kind()),
        };
        text.finish_non_exhaustive()
    }
}

impl InstanceOptions {
    /// Options of the host backend. Ignored with [`Backend::CUDA`].
    #[must_use]
    pub fn host(mut self, options: HostOptions) -> Self {
        self.host = Some(options);
        self
    }

    /// Options of the cuda backend. Ignored with [`Backend::HOST`].
    #[must_use]
    pub fn cuda(mut self, options: CudaOptions) -> Self {
        self.cuda = Some(options);
        self
    }
}

impl From<Backend> for InstanceOptions {
    fn from(backend: Backend) -> Self {
        Self::new().backend(backend)
    }
}

impl From<&InstanceOptions> for InstanceOptions {
    fn from(options: &InstanceOptions) -> Self {
        options.clone()
    }
}

/// Options for an instance of the cuda backend.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    // Numbers, so that the options can be sent to other threads.
    contexts: Vec<usize>,
}

impl CudaOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `CUcontext` values to work in instead of the primary contexts of their devices, at most one for each device.
    ///
    /// # Safety
    /// They must be contexts, and outlive the instance.
    #[must_use]
    pub unsafe fn contexts(mut self, contexts: &[*mut c_void]) -> Self {
        self.contexts = contexts.iter().map(|context| *context as usize).collect();
        self
    }
}

/// In C, 0 means the default.
pub(crate) fn toggle(on: Option<bool>) -> sys::gpumem_toggle {
    match on {
        None => 0,
        Some(true) => sys::GPUMEM_TOGGLE_ON,
        Some(false) => sys::GPUMEM_TOGGLE_OFF,
    }
}

impl Instance {
    /// Opens a backend. Several instances can be open at once.
    ///
    /// With [`Backend::ANY`], a cuda backend that cannot be opened is not an error: the host backend is opened, and
    /// [`InstanceInfo::fallback`](crate::InstanceInfo::fallback) has the reason.
    ///
    /// ```
    /// use gpumem::{Backend, HostOptions, Instance, InstanceOptions};
    ///
    /// let instance = Instance::open(Backend::ANY)?;
    /// if let Some(fallback) = instance.info()?.fallback {
    ///     println!("no GPU: {}", fallback.reason);
    /// }
    ///
    /// // With options: here two simulated devices.
    /// let options = InstanceOptions::from(Backend::HOST).name("test").host(HostOptions::new().device_count(2));
    /// assert_eq!(Instance::open(options)?.info()?.device_count, 2);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the library cannot be used, the backend cannot be opened here, or an option is out of its range.
    pub fn open(options: impl Into<InstanceOptions>) -> Result<Self, Error> {
        require()?;
        let options = options.into();
        let mut desc = options.describe()?;
        let host = options.host.as_ref().map(HostOptions::describe).transpose()?;
        let contexts: Option<Vec<*mut c_void>> = options
            .cuda
            .as_ref()
            .map(|cuda| cuda.contexts.iter().map(|context| *context as *mut c_void).collect());
        let cuda = contexts.as_deref().map(|contexts| sys::gpumem_cuda_options {
            contexts: first_of(contexts),
            context_count: contexts.len() as u64,
            ..Default::default()
        });
        desc.host = host.as_ref().map_or(ptr::null(), |host| &**host);
        desc.cuda = cuda.as_ref().map_or(ptr::null(), |cuda| cuda);
        // SAFETY: the structs and what they point to live during the call.
        let handle = unsafe { output_call!(gpumem_instance_open(&*desc)) }?;
        Ok(Self { inner: Inner::new(handle, true) })
    }

    /// Gets the default instance of the process, for programs and plug-ins that do not open their own. The first call
    /// opens it as the environment says (`GPUMEM_BACKEND`, `GPUMEM_PIN_BUDGET`, `GPUMEM_HOST_...`). It is never
    /// closed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn default_instance() -> Result<Self, Error> {
        require()?;
        // SAFETY: only handles, numbers and addresses.
        let handle = unsafe { output_call!(gpumem_instance_default()) }?;
        Ok(Self { inner: Inner::new(handle, false) })
    }

    /// Closes the instance if none of its objects is live. Afterwards every use of its devices fails with
    /// [`ErrorKind::Closed`]. Closing it again through a clone succeeds.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if objects are live, with a list of the first ones, also if they were dropped and work still uses
    /// them; or [`ErrorKind::InvalidState`] for the default instance. The instance is returned unchanged.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        self.inner.retry();
        match self.inner.close(sys::GPUMEM_CLOSE_CHECK) {
            Ok(_) => Ok(()),
            Err(error) => {
                let error = self.inner.with_reasons(error);
                Err(Rejected::new(self, error))
            }
        }
    }

    /// Waits for the work of the instance's streams, destroys all its objects, and closes it. Returns how many
    /// objects were destroyed.
    ///
    /// # Safety
    /// All its memory is freed: afterwards nothing may use a [`Pinned`](crate::Pinned),
    /// [`WriteCombined`](crate::WriteCombined) or pointer of this instance, except to drop it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] for the default instance, and in a host function.
    pub unsafe fn close_by_force(self) -> Result<u64, Rejected<Self>> {
        self.inner.close(sys::GPUMEM_CLOSE_FORCE).map_err(|error| Rejected::new(self, error))
    }

    /// Gets a device by its ordinal.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no device has this ordinal.
    pub fn device(&self, ordinal: u32) -> Result<Device, Error> {
        // SAFETY: only handles, numbers and addresses.
        let handle = unsafe { output_call!(gpumem_device_get(self.inner.handle, ordinal)) }?;
        Ok(Device::new(handle, ordinal, self.inner.clone()))
    }

    /// Gets all devices.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn devices(&self) -> Result<Vec<Device>, Error> {
        (0..self.info()?.device_count).map(|ordinal| self.device(ordinal)).collect()
    }

    /// A list of the live objects, one line for each.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn report(&self) -> Result<String, Error> {
        // SAFETY: as whole_text() promises.
        let report = whole_text(|place, capacity, required| unsafe {
            call!(gpumem_stats_report(self.inner.handle, place, capacity, required))
        })?;
        Ok(translate(&report))
    }

    /// The counters and the live objects as JSON, as the manual of `gpumem_stats_snapshot()` describes it.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn snapshot(&self) -> Result<String, Error> {
        // SAFETY: as whole_text() promises.
        whole_text(|place, capacity, required| unsafe {
            call!(gpumem_stats_snapshot(self.inner.handle, place, capacity, required))
        })
    }

    /// Gets what one processor may do, in place, with the memory at an address. Copies and fills need no such right.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for NULL, and if there is no such device.
    #[allow(clippy::not_unsafe_ptr_arg_deref)] // The library never dereferences an unknown address.
    pub fn pointer_access(&self, pointer: *const c_void, processor: Processor) -> Result<Access, Error> {
        let (location, id) = match processor {
            Processor::Cpu => (Location::HOST, -1),
            Processor::Device(ordinal) => (Location::DEVICE, i32::try_from(ordinal).unwrap_or(i32::MAX)),
        };
        let (handle, mut access) = (self.inner.handle, 0);
        // SAFETY: the output is writable, and any address may be queried.
        unsafe { call!(gpumem_pointer_get_access(handle, pointer, location.0, id, &mut access)) }?;
        Ok(Access(access))
    }
}

/// Finds out whether a backend can be opened here, without opening it.
///
/// # Errors
/// The reason why it cannot be opened.
pub fn probe(backend: Backend) -> Result<ProbeInfo, Error> {
    require()?;
    info_call!(gpumem_instance_probe(backend.0) => ProbeInfo)
}

/// A version of the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl Version {
    /// The version of the headers that this crate was written for.
    pub const OF_CRATE: Self = Self(sys::GPUMEM_VERSION);

    /// The version of the library in use.
    ///
    /// # Errors
    /// If there is no library that this crate can use.
    pub fn of_library() -> Result<Self, Error> {
        require()?;
        // SAFETY: no arguments.
        Ok(Self(unsafe { c!(gpumem_version)() }))
    }

    /// The version of the library in use as text.
    ///
    /// # Errors
    /// If there is no library that this crate can use.
    pub fn text_of_library() -> Result<&'static str, Error> {
        require()?;
        // SAFETY: the result is a constant text of a library that is never unloaded.
        Ok(unsafe { crate::error::static_text(c!(gpumem_version_text)()) })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.0 >> 22, (self.0 >> 12) & 0x3ff, self.0 & 0xfff)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The reason why [`Backend::ANY`] stands for the host backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallback {
    /// Status of the cuda backend.
    pub status: Status,
    /// The same as one line of text.
    pub reason: String,
}

impl Fallback {
    pub(crate) fn of(status: sys::gpumem_status, reason: &[sys::c_char]) -> Option<Self> {
        (status != sys::GPUMEM_SUCCESS)
            .then(|| Self { status: Status(status), reason: translate(&array_text(reason)) })
    }
}

/// A processor that accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// The CPU.
    Cpu,
    /// The device with this ordinal.
    Device(u32),
}

impl Stats {
    /// Number of live objects: memory, streams and events.
    #[must_use]
    pub fn live_objects(&self) -> u64 {
        self.live_count + self.streams + self.events
    }
}

impl ErrorKind {
    /// Whether the instance of an object is closed. A handle that was never destroyed here can only be stale because
    /// its instance was closed long ago.
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Self::Closed | Self::StaleHandle)
    }

    /// Whether there was too little of something, which what is dropped gives back.
    pub(crate) fn is_lack(self) -> bool {
        matches!(self, Self::OutOfMemory | Self::LimitExceeded)
    }

    /// Whether no more work of the object can be observed: its device, instance or process is gone.
    pub(crate) fn is_end(self) -> bool {
        self.is_closed() || matches!(self, Self::DeviceLost | Self::Forked)
    }
}

/// The whole text that `write` writes: into a buffer of that capacity, and how much room it needs.
fn whole_text(write: impl Fn(*mut c_char, u64, &mut u64) -> Result<Status, Error>) -> Result<String, Error> {
    let mut text: Vec<u8> = Vec::new();
    loop {
        let mut required = 0;
        let place = if text.is_empty() { ptr::null_mut() } else { text.as_mut_ptr().cast() };
        write(place, text.len() as u64, &mut required)?;
        if required <= text.len() as u64 {
            text.truncate((required as usize).saturating_sub(1));
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        // Other threads may create objects before the next try.
        text.resize(required as usize + 256, 0);
    }
}
