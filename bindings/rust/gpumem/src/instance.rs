// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Opened backends.

use std::ffi::CString;
use std::fmt;
use std::os::raw::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpumem_sys as sys;

use crate::codes::{Access, Backend, Kind, Location, LockMode, MemoryFlags};
use crate::device::Device;
use crate::error::{array_text, Error, ErrorKind};
use crate::library::{c, call, require};
use crate::memory::Remains;

/// A lock whose poison is of no interest: what it guards is never left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text for C, or the reason why it cannot be one.
pub(crate) fn c_text(text: Option<&str>, function: &'static str) -> Result<Option<CString>, Error> {
    text.map(|text| CString::new(text).map_err(|_| Error::invalid(function, "a text has a 0 byte in it")))
        .transpose()
}

/// Pointer to a text that may be missing.
pub(crate) fn c_pointer(text: &Option<CString>) -> *const sys::c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// An opened backend. All copies of it, and all that was made through it, share it; the last one that goes closes
/// it.
///
/// Use [`close`](Self::close) to close it and see failures. When the last holder is dropped instead, the drop waits
/// for the work of the instance's streams, as [`close`](Self::close) does not.
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
/// memory.close().map_err(|(_, error)| error)?;
/// instance.close().map_err(|(_, error)| error)?;
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
    /// What could not be given back when it was dropped.
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

    /// Keeps what could not be given back, to be tried again.
    pub(crate) fn keep(&self, remains: Remains) {
        lock(&self.remains).push(remains);
        self.has_remains.store(true, Ordering::Release);
    }

    /// Tries again to give back what could not be given back when it was dropped.
    pub(crate) fn retry(&self) {
        if !self.has_remains.load(Ordering::Acquire) {
            return;
        }
        let mut tried = std::mem::take(&mut *lock(&self.remains));
        tried.retain(|remains| remains.release().is_err());
        let mut kept = lock(&self.remains);
        kept.append(&mut tried);
        self.has_remains.store(!kept.is_empty(), Ordering::Release);
    }

    fn close(&self, mode: sys::gpumem_close_mode) -> Result<u64, Error> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(0);
        }
        let mut destroyed = 0;
        // SAFETY: the output is writable; any handle may be given.
        match unsafe { call!(gpumem_instance_close(self.handle, mode, &mut destroyed)) } {
            Ok(_) => {}
            // Another holder was faster.
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
            // Nothing in Rust refers to what may still live, so it can go by force. If even that fails (in a forked
            // child, or in a host function) the system takes it back at exit.
            let _ = self.close(sys::GPUMEM_CLOSE_FORCE);
        }
        if !self.closed.load(Ordering::Acquire) {
            // Still registered, so not to be freed.
            std::mem::forget(std::mem::take(&mut *lock(&self.remains)));
        }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Instance").field(&self.inner.handle).finish()
    }
}

/// What is to be opened. A [`Backend`] alone will do.
#[derive(Clone, Debug, Default)]
pub struct InstanceOptions {
    backend: Backend,
    name: Option<String>,
    pin_budget: u64,
    host: Option<HostOptions>,
    cuda_contexts: Vec<usize>,
}

impl InstanceOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Who does the work.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// A name for messages and reports, up to 63 bytes.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Page-locked bytes that may live at once; 0 means no limit.
    #[must_use]
    pub fn pin_budget(mut self, bytes: u64) -> Self {
        self.pin_budget = bytes;
        self
    }

    /// How the host backend behaves, if that is opened.
    #[must_use]
    pub fn host(mut self, options: HostOptions) -> Self {
        self.host = Some(options);
        self
    }

    /// `CUcontext` values to work in, instead of the primary contexts of their devices, if cuda is opened.
    ///
    /// # Safety
    /// They must be contexts, and outlive the instance.
    #[must_use]
    pub unsafe fn cuda_contexts(mut self, contexts: &[*mut c_void]) -> Self {
        self.cuda_contexts = contexts.iter().map(|context| *context as usize).collect();
        self
    }
}

impl From<Backend> for InstanceOptions {
    fn from(backend: Backend) -> Self {
        Self::new().backend(backend)
    }
}

/// How an instance of the host backend behaves; see `docs/host-backend.md`. Every option has a default.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    values: HostValues,
    peers: Option<String>,
    masked: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct HostValues {
    device_count: u32,
    strict: i32,
    device_bytes: u64,
    granularity: u64,
    pageable: i32,
    same_pointer: i32,
    lock_mode: LockMode,
    numa_nodes: u32,
    register_count_max: u64,
    lock_piece: u64,
    quarantine: u32,
    fill: i32,
}

const fn toggle(on: bool) -> sys::gpumem_toggle {
    if on {
        sys::GPUMEM_TOGGLE_ON
    } else {
        sys::GPUMEM_TOGGLE_OFF
    }
}

macro_rules! host_options {
    ($($(#[$meta:meta])* $name:ident($argument:ident: $type:ty) $value:expr;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub fn $name(mut self, $argument: $type) -> Self {
            self.values.$name = $value;
            self
        }
    )*};
}

impl HostOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        // What the library takes where nothing is said.
        let mut options = Self::default();
        options.values.strict = sys::GPUMEM_TOGGLE_DEFAULT;
        options
    }

    host_options! {
        /// Emulated devices, 1 to 64.
        device_count(count: u32) count;
        /// Whether the rules of a GPU are enforced by faults and tracking.
        strict(on: bool) toggle(on);
        /// Memory of each device.
        device_bytes(bytes: u64) bytes;
        /// Unit in which device memory is charged.
        granularity(bytes: u64) bytes;
        /// Whether devices reach ordinary pageable memory.
        pageable(on: bool) toggle(on);
        /// Whether registered memory has one address for CPU and devices.
        same_pointer(on: bool) toggle(on);
        /// How pinned memory is locked.
        lock_mode(mode: LockMode) mode;
        /// Pretend that this many NUMA nodes exist.
        numa_nodes(nodes: u32) nodes;
        /// Registrations that may live at once.
        register_count_max(count: u64) count;
        /// Memory is locked in pieces of this many bytes.
        lock_piece(bytes: u64) bytes;
        /// Freed address ranges that stay inaccessible before they are used again.
        quarantine(ranges: u32) ranges;
        /// Whether fresh memory is filled with the byte 0xA5.
        fill(on: bool) toggle(on);
    }

    /// Links between devices: `all`, `none`, or a list such as `0>1,1>0`.
    #[must_use]
    pub fn peers(mut self, links: impl Into<String>) -> Self {
        self.peers = Some(links.into());
        self
    }

    /// Entry points to treat as missing, such as `register,copy_2d`.
    #[must_use]
    pub fn masked(mut self, entry_points: impl Into<String>) -> Self {
        self.masked = Some(entry_points.into());
        self
    }
}

impl Instance {
    /// Opens a backend. Several instances may live side by side.
    ///
    /// # Errors
    /// If the library cannot be used, the backend is not usable here, or an option is out of its range.
    pub fn open(options: impl Into<InstanceOptions>) -> Result<Self, Error> {
        const FUNCTION: &str = "Instance::open";
        require()?;
        let options = options.into();
        let name = c_text(options.name.as_deref(), FUNCTION)?;
        let host = options.host.unwrap_or_default();
        let (peers, masked) =
            (c_text(host.peers.as_deref(), FUNCTION)?, c_text(host.masked.as_deref(), FUNCTION)?);
        let values = host.values;
        let host = sys::gpumem_host_options {
            device_count: values.device_count,
            strict: values.strict,
            device_bytes: values.device_bytes,
            granularity: values.granularity,
            pageable: values.pageable,
            same_pointer: values.same_pointer,
            lock_mode: values.lock_mode.0,
            numa_nodes: values.numa_nodes,
            register_count_max: values.register_count_max,
            lock_piece: values.lock_piece,
            quarantine: values.quarantine,
            fill: values.fill,
            peers: c_pointer(&peers),
            masked: c_pointer(&masked),
            ..Default::default()
        };
        let contexts: Vec<*mut c_void> =
            options.cuda_contexts.iter().map(|context| *context as *mut c_void).collect();
        let desc = sys::gpumem_instance_desc {
            backend: options.backend.0,
            name: c_pointer(&name),
            pin_budget: options.pin_budget,
            host: &host,
            cuda_contexts: if contexts.is_empty() { ptr::null() } else { contexts.as_ptr() },
            cuda_context_count: contexts.len() as u64,
            ..Default::default()
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the struct and what it points to live during the call; the output is writable.
        unsafe { call!(gpumem_instance_open(&desc, &mut handle)) }?;
        Ok(Self { inner: Inner::new(handle, true) })
    }

    /// The one instance of the process, for programs and plug-ins that want one without asking. The first call
    /// opens it as the environment says (`GPUMEM_BACKEND`, `GPUMEM_PIN_BUDGET`, `GPUMEM_HOST_...`). It is never
    /// closed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn default_instance() -> Result<Self, Error> {
        require()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the output is writable.
        unsafe { call!(gpumem_instance_default(&mut handle)) }?;
        Ok(Self { inner: Inner::new(handle, false) })
    }

    /// Closes the instance if nothing lives that was made through it. Afterwards every use of its devices fails
    /// with [`ErrorKind::Closed`]. Closing again what another copy has closed is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if something lives, with a list of it, or [`ErrorKind::InvalidState`] for the default
    /// instance. The instance is handed back, as it was.
    pub fn close(self) -> Result<(), (Self, Error)> {
        self.inner.retry();
        match self.inner.close(sys::GPUMEM_CLOSE_CHECK) {
            Ok(_) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    /// Waits for the work of the instance's streams, frees everything that was made through it, and closes it.
    /// Says how many objects were destroyed.
    ///
    /// # Safety
    /// Memory that lives is gone afterwards: nothing may use a [`Pinned`](crate::Pinned),
    /// [`WriteCombined`](crate::WriteCombined) or pointer of this instance any more, but dropping is good.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] for the default instance, and in a host function.
    pub unsafe fn close_by_force(self) -> Result<u64, (Self, Error)> {
        self.inner.close(sys::GPUMEM_CLOSE_FORCE).map_err(|error| (self, error))
    }

    /// What is known about the instance.
    ///
    /// # Errors
    /// If it is closed, or of the parent of this process.
    pub fn info(&self) -> Result<InstanceInfo, Error> {
        let mut info = sys::gpumem_instance_info::default();
        // SAFETY: the struct is writable and says its own size.
        unsafe { call!(gpumem_instance_get_info(self.inner.handle, &mut info)) }?;
        Ok(InstanceInfo {
            backend: Backend(info.backend),
            driver_version: info.driver_version,
            device_count: info.device_count,
            strict: info.strict != 0,
            pin_budget: info.pin_budget,
            name: array_text(&info.name),
        })
    }

    /// Finds a device by its number.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is none of that number.
    pub fn device(&self, ordinal: u32) -> Result<Device, Error> {
        let mut handle = ptr::null_mut();
        // SAFETY: the output is writable.
        unsafe { call!(gpumem_device_get(self.inner.handle, ordinal, &mut handle)) }?;
        Ok(Device::new(handle, self.inner.clone()))
    }

    /// All devices.
    ///
    /// # Errors
    /// If the instance is closed, or of the parent of this process.
    pub fn devices(&self) -> Result<Vec<Device>, Error> {
        (0..self.info()?.device_count).map(|ordinal| self.device(ordinal)).collect()
    }

    /// What lives in the instance.
    ///
    /// # Errors
    /// If the instance is closed, or of the parent of this process.
    pub fn stats(&self) -> Result<Stats, Error> {
        let mut stats = sys::gpumem_stats::default();
        // SAFETY: the struct is writable and says its own size.
        unsafe { call!(gpumem_stats_get(self.inner.handle, &mut stats)) }?;
        Ok(Stats {
            device: stats.device.into(),
            pinned: stats.pinned.into(),
            registered: stats.registered.into(),
            streams: stats.streams,
            events: stats.events,
            file_descriptors: stats.file_descriptors,
        })
    }

    /// Sets the peaks of [`stats`](Self::stats) to what lives now.
    ///
    /// # Errors
    /// If the instance is closed, or of the parent of this process.
    pub fn reset_peaks(&self) -> Result<(), Error> {
        // SAFETY: only a handle.
        unsafe { call!(gpumem_stats_reset_peaks(self.inner.handle)) }?;
        Ok(())
    }

    /// A list of all that lives, one line for each object.
    ///
    /// # Errors
    /// If the instance is closed, or of the parent of this process.
    pub fn report(&self) -> Result<String, Error> {
        let mut text: Vec<u8> = Vec::new();
        loop {
            let mut required = 0;
            let place = if text.is_empty() { ptr::null_mut() } else { text.as_mut_ptr().cast() };
            // SAFETY: the buffer is as large as is said, and the output is writable.
            unsafe {
                call!(gpumem_stats_report(self.inner.handle, place, text.len() as u64, &mut required))
            }?;
            if required <= text.len() as u64 {
                text.truncate((required as usize).saturating_sub(1));
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
            // Other threads may make objects before the next try.
            text.resize(required as usize + 256, 0);
        }
    }

    /// What is this pointer? Every address but NULL has an answer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for NULL.
    #[allow(clippy::not_unsafe_ptr_arg_deref)] // The library follows no address that it does not know.
    pub fn pointer_info(&self, pointer: *const c_void) -> Result<PointerInfo, Error> {
        let mut info = sys::gpumem_pointer_info::default();
        // SAFETY: the struct is writable and says its own size; any address may be asked about.
        unsafe { call!(gpumem_pointer_get_info(self.inner.handle, pointer, &mut info)) }?;
        Ok(PointerInfo {
            kind: Kind(info.kind),
            location: Location(info.location),
            location_id: info.location_id,
            device_ordinal: u32::try_from(info.device_ordinal).ok(),
            host_pointer: info.host_pointer,
            device_address: info.device_pointer as u64,
            base: info.base as u64,
            size: info.size,
            buffer_id: info.buffer_id,
            granted_flags: MemoryFlags(info.granted_flags),
            access: Access(info.access),
            access_devices: info.access_devices,
        })
    }

    /// Frees an allocation by its pointer, however it was made.
    ///
    /// # Safety
    /// Nothing may use the memory any more, and all device work on it must have been observed complete. It must not
    /// be the memory of an object of this crate.
    ///
    /// # Errors
    /// As `gpumem_free()`.
    pub unsafe fn free(&self, pointer: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { call!(gpumem_free(self.inner.handle, pointer)) }?;
        Ok(())
    }

    /// Makes memory pageable again that [`Device::register`](crate::Device::register) registered.
    ///
    /// # Safety
    /// All device work on it must have been observed complete.
    ///
    /// # Errors
    /// As `gpumem_unregister()`.
    pub unsafe fn unregister(&self, pointer: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { call!(gpumem_unregister(self.inner.handle, pointer)) }?;
        Ok(())
    }
}

/// Finds out whether a backend can be opened here, without opening it.
///
/// # Errors
/// Why it cannot be opened.
pub fn probe(backend: Backend) -> Result<ProbeInfo, Error> {
    require()?;
    let mut info = sys::gpumem_probe_info::default();
    // SAFETY: the struct is writable and says its own size.
    unsafe { call!(gpumem_instance_probe(backend.0, &mut info)) }?;
    Ok(ProbeInfo {
        backend: Backend(info.backend),
        driver_version: info.driver_version,
        device_count: info.device_count,
        name: array_text(&info.name),
    })
}

/// A version of the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl Version {
    /// The version that this crate was written for.
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

    /// The version of the library in use, as the library writes it.
    ///
    /// # Errors
    /// If there is no library that this crate can use.
    pub fn text_of_library() -> Result<&'static str, Error> {
        require()?;
        // SAFETY: the answer is a constant text of a library that is never unloaded.
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

/// What a probe found out about a backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProbeInfo {
    /// The backend that an open would use.
    pub backend: Backend,
    /// Version as the driver counts (13000 is 13.0); 0 for host.
    pub driver_version: i32,
    /// Number of devices that an open would offer.
    pub device_count: u32,
    /// For people, such as `CUDA driver 13.0`.
    pub name: String,
}

/// What is known about an open instance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstanceInfo {
    /// Cuda or host.
    pub backend: Backend,
    /// Version as the driver counts; 0 for host.
    pub driver_version: i32,
    /// Number of devices.
    pub device_count: u32,
    /// Whether the host backend enforces its rules by faults and tracking.
    pub strict: bool,
    /// As given at open.
    pub pin_budget: u64,
    /// As given at open.
    pub name: String,
}

/// Counts of one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsKind {
    /// Objects that live.
    pub live_count: u64,
    /// Their sizes, as asked for.
    pub live_bytes: u64,
    /// Most objects that lived at once since open or the last reset.
    pub peak_count: u64,
    /// Most bytes that lived at once.
    pub peak_bytes: u64,
    /// Objects made since open.
    pub total_count: u64,
    /// Bytes made since open.
    pub total_bytes: u64,
}

impl From<sys::gpumem_stats_kind> for StatsKind {
    fn from(kind: sys::gpumem_stats_kind) -> Self {
        Self {
            live_count: kind.live_count,
            live_bytes: kind.live_bytes,
            peak_count: kind.peak_count,
            peak_bytes: kind.peak_bytes,
            total_count: kind.total_count,
            total_bytes: kind.total_bytes,
        }
    }
}

/// Counts of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Device memory.
    pub device: StatsKind,
    /// Pinned allocations.
    pub pinned: StatsKind,
    /// Registered memory.
    pub registered: StatsKind,
    /// Streams that live.
    pub streams: u64,
    /// Events that live.
    pub events: u64,
    /// File descriptors that the instance holds open.
    pub file_descriptors: u64,
}

impl Stats {
    /// All objects that live.
    #[must_use]
    pub fn live_objects(&self) -> u64 {
        self.device.live_count
            + self.pinned.live_count
            + self.registered.live_count
            + self.streams
            + self.events
    }
}

/// What is known about an address.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PointerInfo {
    /// What it is.
    pub kind: Kind,
    /// Where its bytes lie.
    pub location: Location,
    /// Device ordinal or NUMA node of the location; -1 if it has none.
    pub location_id: i32,
    /// Device of the allocation or registration.
    pub device_ordinal: Option<u32>,
    /// The same byte for the CPU; NULL if none.
    pub host_pointer: *mut c_void,
    /// The same byte for devices; 0 if none.
    pub device_address: u64,
    /// First byte of the object, in the address range that was asked in; 0 if unknown.
    pub base: u64,
    /// Bytes of the object; 0 if unknown.
    pub size: u64,
    /// Number of the allocation, never used again; 0 if none.
    pub buffer_id: u64,
    /// Its properties.
    pub granted_flags: MemoryFlags,
    /// What the devices in `access_devices` may do.
    pub access: Access,
    /// Bit n stands for the device with ordinal n.
    pub access_devices: u64,
}

impl ErrorKind {
    /// Whether the instance of an object is closed. A handle that was never destroyed here can only be stale because
    /// its instance was closed long ago.
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Self::Closed | Self::StaleHandle)
    }

    /// Whether nothing more can happen to memory of the object: its device, instance or process is gone.
    pub(crate) fn is_end(self) -> bool {
        self.is_closed() || matches!(self, Self::DeviceLost | Self::Forked)
    }
}
