// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Pools, which allocate and free blocks fast, in the order of streams.

use std::fmt;
use std::mem::{align_of, size_of};
use std::ops::RangeBounds;
use std::os::raw::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use gpumem_sys as sys;

use crate::codes::{Access, Kind, MemoryFlags, PoolFlags};
use crate::copy::sealed::{Keep, Span, Whole};
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Rejected, Status};
use crate::infos::{PoolAttempt, PoolBlockInfo, PoolClassInfo};
use crate::instance::{first_of, lock, Inner, Instance, Processor};
use crate::library::{c, call, output_call};
use crate::memory::Remains;
pub use crate::options::PoolOptions;
use crate::size::bytes_of;
use crate::sleep::{caught, with_panics};
use crate::stream::{a_device_was_lost, order, Stream};
use crate::typed::{parts, Part};
use crate::uses::{lost, Parts, Use, Uses};

/// The alignment that every block has.
const ALIGNMENT: usize = 16;

impl PoolOptions {
    /// The kind of memory: [`Kind::DEVICE`], [`Kind::PINNED`], [`Kind::MANAGED`], or [`Kind::PAGEABLE`] for ordinary
    /// memory of the host.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Pinned memory only: the NUMA node that the pages must lie on ([`MemoryFlags::NUMA_NODE`]).
    #[must_use]
    pub fn numa_node(mut self, node: i32) -> Self {
        self.require |= MemoryFlags::NUMA_NODE;
        self.numa_node = node;
        self
    }

    /// What a device besides its own may do with all blocks of a pool of device memory; call it again for each.
    #[must_use]
    pub fn access(mut self, processor: Processor, access: Access) -> Self {
        self.accesses.push((processor, access));
        self
    }
}

/// A function that a pool calls when it lacks memory, behind a thin pointer.
pub(crate) struct PoolCallback(Box<dyn Fn(u64) -> bool + Send + Sync>);

/// # Safety
/// `user_data` is a `PoolCallback` that lives.
unsafe extern "C" fn run_callback(user_data: *mut c_void, _: sys::gpumem_pool, size: u64) -> i32 {
    // SAFETY: the caller's promise.
    let callback = unsafe { &*user_data.cast::<PoolCallback>() };
    caught(|| (callback.0)(size)).unwrap_or(false).into()
}

/// The one owner of a pool.
pub struct PoolInner {
    handle: sys::gpumem_pool,
    instance: Arc<Inner>,
    /// Whether the CPU may access its blocks.
    on_host: bool,
    /// Whether the pool lets a stream wait for another one, so that a block comes with work of that.
    lets_wait: bool,
    /// Whether the blocks are used through their addresses alone, since the pool is destroyed.
    closed: AtomicBool,
    /// Whether it has a callback, readable without its lock.
    calls_back: AtomicBool,
    callback: Mutex<Option<Box<PoolCallback>>>,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for PoolInner {}
// SAFETY: as above.
unsafe impl Sync for PoolInner {}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Acquire) {
            let callback = lock(&self.callback).take();
            Remains::Pool(self.handle, callback).release_or_keep(&self.instance);
        }
    }
}

/// How a block is freed. Everything in it stays valid after the pool, the stream and the instance are gone.
#[derive(Clone, Copy)]
pub(crate) struct Freeing {
    pool: sys::gpumem_pool,
    instance: sys::gpumem_instance,
    pointer: *mut c_void,
    bytes: u64,
    /// NULL if the block is freed without a stream.
    stream: sys::gpumem_stream,
}

// SAFETY: handles are numbers to C, and the pointer is only passed to it.
unsafe impl Send for Freeing {}
// SAFETY: as above.
unsafe impl Sync for Freeing {}

impl Freeing {
    /// Frees the block in the order of a stream. It may have been allocated from a pool that is destroyed.
    fn free_on(&self, stream: sys::gpumem_stream, function: &'static str) -> Result<(), Error> {
        // SAFETY: nothing uses the block any more, apart from work that the order of the stream covers.
        match unsafe { call!(gpumem_pool_free_sized(self.pool, self.pointer, self.bytes, stream)) } {
            Err(error) if error.kind() == ErrorKind::StaleHandle => {
                // The pool is destroyed, or the stream is.
                // SAFETY: as above.
                unsafe { call!(gpumem_pool_free_pointer(self.instance, self.pointer, stream)) }
            }
            result => result,
        }
        .map(drop)
        .map_err(|error| error.called_as(function))
    }

    /// Frees the block in the order of its stream.
    pub(crate) fn release(&self) -> Result<(), Error> {
        const FUNCTION: &str = "PoolBlock::close";
        match self.free_on(self.stream, FUNCTION) {
            // A stream is destroyed when its work was observed complete.
            Err(error) if error.kind() == ErrorKind::StaleHandle && !self.stream.is_null() => {
                self.free_on(ptr::null_mut(), FUNCTION)
            }
            result => result,
        }
    }

    fn release_or_keep(self, instance: &Inner) {
        // Only a failure needs more than the call.
        if self.release().is_err() {
            Remains::Block(self).release_or_keep(instance);
        }
    }
}

/// Uses of a block in streams that the library does not order before its free.
struct Others {
    uses: Uses,
    pool: Arc<PoolInner>,
    /// How to free the block when the last use ends, after the block itself was dropped.
    freeing: Mutex<Option<Freeing>>,
}

impl Parts for Others {
    fn uses(&self) -> &Uses {
        &self.uses
    }
    fn bytes(&self) -> u64 {
        lock(&self.freeing).map_or(0, |freeing| freeing.bytes)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        if let Some(freeing) = lock(&self.freeing).take() {
            freeing.release_or_keep(&self.pool.instance);
        }
    }
}

/// What to ask for, in bytes, so that the elements are aligned too.
fn alignment_for<T>(alignment: u64) -> u64 {
    match align_of::<T>() {
        natural if natural > ALIGNMENT && alignment != 0 => alignment.max(natural as u64),
        natural if natural > ALIGNMENT => natural as u64,
        _ => alignment,
    }
}

/// A source of blocks of memory, fast enough to allocate for every piece of work.
///
/// It takes large pieces of one kind of memory and cuts blocks from them. An allocation that it can serve from what it
/// has makes no driver call and takes no lock.
///
/// Blocks are allocated and freed in the order of a stream: work of that stream may use them at once, and a drop does not
/// wait for the work that was enqueued before. Without a stream, a block is freed once all work that uses it has been
/// observed complete.
///
/// A stream that is being captured into a graph gets blocks that belong to the capture until [`Pool::release_capture`].
///
/// The blocks keep the pool. The last owner destroys it, which waits for the work that was enqueued before the frees.
///
/// ```
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// use gpumem::{Pool, Stream};
///
/// let pool = Pool::new(&device)?;
/// let stream = Stream::new(&device)?;
/// for step in 0..10u32 {
///     let block = pool.alloc::<u32>(1000, Some(&stream))?;
///     drop(stream.fill(&block, step)?);
///     // Dropped while the fill may run: the next step gets the same memory, in the order of the stream.
/// }
/// stream.synchronize()?;
/// assert_eq!(pool.info()?.live_count, 0);
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Pool {
    inner: Arc<PoolInner>,
}

impl Pool {
    /// Makes a pool of device memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::PermissionDenied`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`], as the message says.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::with_options(device, &PoolOptions::new()).map_err(|error| error.called_as("Pool::new"))
    }

    /// As [`new`](Self::new), with options. For memory of the host, the device is the one that it is pinned for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::PermissionDenied`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::InvalidState`], as the message says.
    pub fn with_options(device: &Device, options: &PoolOptions) -> Result<Self, Error> {
        device.instance.retry();
        let desc = options.describe()?;
        // SAFETY: the struct, its entries and its text live during the call.
        let create = || unsafe { output_call!(gpumem_pool_create(device.handle, &*desc)) };
        let made = device.instance.with_room(create);
        let handle = made.map_err(|error| error.called_as("Pool::with_options"))?;
        Ok(Self {
            inner: Arc::new(PoolInner {
                handle,
                instance: device.instance.clone(),
                on_host: options.kind == Kind::PINNED || options.kind == Kind::PAGEABLE,
                lets_wait: options.flags.0 & PoolFlags::ALLOW_INTERNAL_DEPENDENCIES.0 != 0,
                closed: AtomicBool::new(false),
                calls_back: AtomicBool::new(false),
                callback: Mutex::default(),
            }),
        })
    }

    /// Allocates a block of `len` elements with indeterminate values, in the order of a stream. Without one, no work may
    /// use the block when it is freed, so it is kept until all of it has been observed complete.
    ///
    /// A block without bytes is valid, and nothing is allocated for it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `len` elements are more than can be addressed; otherwise
    /// [`ErrorKind::NoAccess`], [`ErrorKind::OutOfMemory`], [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`]
    /// or [`ErrorKind::InvalidState`].
    pub fn alloc<T: Element>(&self, len: usize, stream: Option<&Stream>) -> Result<PoolBlock<T>, Error> {
        self.alloc_as(len, 0, stream, "Pool::alloc")
    }

    /// As [`alloc`](Self::alloc), with an alignment in bytes, a power of two. It is at least that of the elements; 0 asks
    /// for no more.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_aligned<T: Element>(
        &self,
        len: usize,
        alignment: u64,
        stream: Option<&Stream>,
    ) -> Result<PoolBlock<T>, Error> {
        self.alloc_as(len, alignment, stream, "Pool::alloc_aligned")
    }

    /// Allocates a block as [`alloc_aligned`](Self::alloc_aligned) does if the pool has one free: it waits for nothing and
    /// takes no memory. If there is none, or another thread is changing the pool, the inner `Err` says what would help.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NoAccess`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn try_alloc<T: Element>(
        &self,
        len: usize,
        alignment: u64,
        stream: Option<&Stream>,
    ) -> Result<Result<PoolBlock<T>, PoolAttempt>, Error> {
        const FUNCTION: &str = "Pool::try_alloc";
        let bytes = bytes_of::<T>(len, FUNCTION)? as u64;
        let (handle, order, mut pointer) = (self.inner.handle, order(stream), ptr::null_mut());
        let alignment = alignment_for::<T>(alignment);
        let mut attempt = sys::gpumem_pool_attempt::default();
        // SAFETY: the outputs are writable.
        let status = unsafe {
            call!(gpumem_pool_try_alloc(handle, bytes, alignment, order, &mut pointer, &mut attempt))
        };
        if status.map_err(|error| error.called_as(FUNCTION))? == Status::NOT_READY {
            return Ok(Err(PoolAttempt::of(&attempt)));
        }
        self.block(pointer, len, bytes, stream).checked(FUNCTION).map(Ok)
    }

    fn alloc_as<T: Element>(
        &self,
        len: usize,
        alignment: u64,
        stream: Option<&Stream>,
        function: &'static str,
    ) -> Result<PoolBlock<T>, Error> {
        let bytes = bytes_of::<T>(len, function)? as u64;
        let alignment = alignment_for::<T>(alignment);
        self.inner.instance.retry();
        self.run(function, || {
            let pointer = self.alloc_bytes(bytes, alignment, stream)?;
            self.block(pointer, len, bytes, stream).checked(function)
        })
    }

    /// Allocates a block for each length, all or none; see [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and [`ErrorKind::InvalidArgument`] if the elements need more alignment than 16 bytes.
    pub fn alloc_batch<T: Element>(
        &self,
        lens: &[usize],
        stream: Option<&Stream>,
    ) -> Result<Vec<PoolBlock<T>>, Error> {
        const FUNCTION: &str = "Pool::alloc_batch";
        if align_of::<T>() > ALIGNMENT {
            let message = "the elements need more alignment than a batch has; call Pool::alloc for each";
            return Err(Error::invalid(FUNCTION, message));
        }
        let sizes = lens.iter().map(|len| bytes_of::<T>(*len, FUNCTION).map(|bytes| bytes as u64));
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        self.inner.instance.retry();
        self.run(FUNCTION, || {
            let pointers = self.alloc_pointers(&sizes, stream);
            let pointers = pointers.map_err(|error| error.with_argument("sizes[", "lens["))?;
            let blocks = pointers.into_iter().zip(lens).zip(&sizes);
            let made = blocks.map(|((pointer, len), bytes)| self.block(pointer, *len, *bytes, stream));
            Ok(made.collect())
        })
    }

    /// Makes a call that needs memory, in which the library may call the callback. If that panics, the panic goes on after
    /// the call.
    fn run<R>(&self, function: &'static str, call: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        let result = if self.inner.calls_back.load(Ordering::Acquire) {
            // The callback makes room, so that it is called only once.
            with_panics(call)
        } else {
            self.inner.instance.with_room(call)
        };
        result.map_err(|error| error.called_as(function))
    }

    fn alloc_bytes(&self, bytes: u64, alignment: u64, stream: Option<&Stream>) -> Result<*mut c_void, Error> {
        let (handle, stream, mut pointer) = (self.inner.handle, order(stream), ptr::null_mut());
        // SAFETY: the output is writable.
        unsafe {
            if alignment == 0 {
                call!(gpumem_pool_alloc(handle, bytes, stream, &mut pointer))
            } else {
                call!(gpumem_pool_alloc_aligned(handle, bytes, alignment, stream, &mut pointer))
            }
        }?;
        Ok(pointer)
    }

    fn alloc_pointers(&self, sizes: &[u64], stream: Option<&Stream>) -> Result<Vec<*mut c_void>, Error> {
        let mut pointers = vec![ptr::null_mut(); sizes.len()];
        let (handle, count) = (self.inner.handle, sizes.len() as u64);
        let first = first_of(sizes);
        // SAFETY: there are as many sizes, and as many places for addresses.
        unsafe {
            call!(gpumem_pool_alloc_batch(handle, first, count, order(stream), pointers.as_mut_ptr()))
        }?;
        Ok(pointers)
    }

    fn block<T: Element>(
        &self,
        pointer: *mut c_void,
        len: usize,
        bytes: u64,
        stream: Option<&Stream>,
    ) -> PoolBlock<T> {
        // The stream ends only when its work was observed complete, of which this is part.
        if let (Some(stream), true) = (stream, self.inner.lets_wait) {
            stream.keep(Keep::Pool(self.inner.clone()));
        }
        let (pool, instance) = (self.inner.handle, self.inner.instance.handle);
        let start = NonNull::new(pointer.cast::<T>());
        PoolBlock {
            pool: self.inner.clone(),
            freeing: start.map(|_| Freeing { pool, instance, pointer, bytes, stream: order(stream) }),
            start: start.unwrap_or_else(NonNull::dangling),
            len,
            others: Mutex::default(),
        }
    }

    /// Allocates a block and returns only its address, NULL for 0 bytes: for code that frees blocks itself.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NoAccess`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn alloc_raw(&self, bytes: u64, stream: Option<&Stream>) -> Result<*mut c_void, Error> {
        self.run("Pool::alloc_raw", || self.alloc_bytes(bytes, 0, stream))
    }

    /// As [`alloc_raw`](Self::alloc_raw), with an alignment in bytes, a power of two.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NoAccess`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn alloc_aligned_raw(
        &self,
        bytes: u64,
        alignment: u64,
        stream: Option<&Stream>,
    ) -> Result<*mut c_void, Error> {
        self.run("Pool::alloc_aligned_raw", || self.alloc_bytes(bytes, alignment, stream))
    }

    /// Allocates a block of each size, all or none, and returns only their addresses.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NoAccess`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn alloc_batch_raw(&self, sizes: &[u64], stream: Option<&Stream>) -> Result<Vec<*mut c_void>, Error> {
        self.run("Pool::alloc_batch_raw", || self.alloc_pointers(sizes, stream))
    }

    /// Allocates a block in the order of a native stream, and returns only its address.
    ///
    /// # Safety
    /// It must be a live stream of the pool's device: a `CUstream`, a stream of
    /// [`host::native_stream_create`](crate::host::native_stream_create), or NULL for the legacy default stream.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub unsafe fn alloc_native(&self, bytes: u64, native: *mut c_void) -> Result<*mut c_void, Error> {
        let mut pointer = ptr::null_mut();
        let handle = self.inner.handle;
        // SAFETY: the output is writable; the rest is the caller's promise.
        self.run("Pool::alloc_native", || unsafe {
            call!(gpumem_pool_alloc_native(handle, bytes, native, &mut pointer))
        })?;
        Ok(pointer)
    }

    /// Sets the function that is called when the pool cannot get memory, before an allocation fails: the time to free
    /// blocks or other memory. It gets the bytes that are lacking, and returns true if the allocation should be tried
    /// again; that also happens if complete work used something that could be released. The function before is dropped.
    ///
    /// It runs on the thread that allocates, on several at once if several do. If it panics, the allocation is not tried
    /// again, and the panic goes on after it. It keeps what it owns until it is replaced or the pool is destroyed; if it
    /// owns a share of the pool, that is never.
    ///
    /// ```
    /// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
    /// use std::sync::{Arc, Mutex};
    /// use gpumem::{Pool, PoolBlock, PoolOptions};
    ///
    /// let pool = Pool::with_options(&device, &PoolOptions::new().limit(32 << 20))?;
    /// // Results that can be computed again.
    /// let cache = Arc::new(Mutex::new(vec![pool.alloc::<u8>(20 << 20, None)?]));
    /// let shared = Arc::downgrade(&cache);
    /// pool.set_callback(move |_| {
    ///     shared.upgrade().map_or(false, |cache| cache.lock().unwrap().pop().is_some())
    /// })?;
    /// let block = pool.alloc::<u8>(20 << 20, None)?;
    /// assert!(cache.lock().unwrap().is_empty());
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] in the callback and in a host function, and [`ErrorKind::Busy`] while another thread
    /// sets one. The function before stays.
    pub fn set_callback(&self, function: impl Fn(u64) -> bool + Send + Sync + 'static) -> Result<(), Error> {
        // No share of the instance, which may keep the pool.
        let instance = Arc::downgrade(&self.inner.instance);
        let callback = move |bytes| {
            let released = instance.upgrade().map_or(false, |instance| instance.make_room());
            function(bytes) || released
        };
        self.replace_callback(Some(Box::new(PoolCallback(Box::new(callback)))))
    }

    /// Drops the function that [`set_callback`](Self::set_callback) set.
    ///
    /// # Errors
    /// As [`set_callback`](Self::set_callback).
    pub fn clear_callback(&self) -> Result<(), Error> {
        self.replace_callback(None)
    }

    fn replace_callback(&self, fresh: Option<Box<PoolCallback>>) -> Result<(), Error> {
        // Waiting could never end: who holds the lock may wait for the callback that calls this.
        let mut current = match self.inner.callback.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread sets the callback of the pool now; try again when it has";
                return Err(Error::own(Status::BUSY, "Pool::set_callback", message));
            }
        };
        let (function, user_data): (sys::gpumem_pool_callback, _) = match &fresh {
            Some(fresh) => (Some(run_callback), &**fresh as *const PoolCallback as *mut c_void),
            None => (None, ptr::null_mut()),
        };
        // Before the call, because the function may run before that returns.
        let called_back = self.inner.calls_back.swap(true, Ordering::AcqRel);
        // SAFETY: what C calls lives until it has been replaced, or the pool is destroyed.
        let set = unsafe { call!(gpumem_pool_set_callback(self.inner.handle, function, user_data)) };
        self.inner
            .calls_back
            .store(if set.is_ok() { fresh.is_some() } else { called_back }, Ordering::Release);
        set?;
        let before = std::mem::replace(&mut *current, fresh);
        drop(current);
        drop(before);
        Ok(())
    }

    /// Information about each size class, from the smallest blocks to the largest.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn classes(&self) -> Result<impl Iterator<Item = Result<PoolClassInfo, Error>> + '_, Error> {
        Ok((0..self.info()?.class_count).map(|index| self.class(index)))
    }

    /// Handle for calls of [`sys`](crate::sys). They must not destroy the pool or change its callback.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_pool {
        self.inner.handle
    }

    /// Destroys the pool at once, even if blocks live: they stay usable, and the memory goes back with the last one.
    /// Waits for the work that was enqueued before the frees.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] on a strict host backend if work that uses freed blocks was not observed complete, and
    /// [`ErrorKind::InvalidState`] in the callback and in a host function. The pool is returned unchanged.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        match Remains::Pool(self.inner.handle, None).release() {
            Ok(()) => {
                self.inner.closed.store(true, Ordering::Release);
                drop(lock(&self.inner.callback).take());
                Ok(())
            }
            Err(error) => Err(Rejected::new(self, error)),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Pool").field(&self.inner.handle).finish()
    }
}

/// A block of a [`Pool`]: an array that is freed in the order of its stream.
///
/// Copies and fills take it by reference, or a part of it, a [`PoolSlice`]. The CPU accesses a block of pinned or
/// ordinary memory through [`host`](Self::host) and [`host_mut`](Self::host_mut).
///
/// Dropping it does not wait. Work in its stream that was enqueued before still has the memory. Work of other streams that
/// was enqueued by this crate is known to the pool, which waits for it, too; work of other code is not, so name its stream
/// with [`record_use`](Self::record_use), or order it before the drop. If the stream of the block is gone by then, so is
/// its work.
///
/// ```
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// use gpumem::{Kind, Pool, PoolOptions, Stream};
///
/// let stream = Stream::new(&device)?;
/// let there = Pool::new(&device)?.alloc::<u32>(3, Some(&stream))?;
/// let staging = Pool::with_options(&device, &PoolOptions::new().kind(Kind::PINNED))?;
///
/// let mut sent = staging.alloc::<u32>(3, Some(&stream))?;
/// sent.host_mut()?.copy_from_slice(&[1, 2, 3]);
/// drop(stream.copy(&there, &sent)?);
/// drop(sent);
/// let mut received = staging.alloc::<u32>(2, Some(&stream))?;
/// drop(stream.copy(&received, there.slice(1..)?)?);
/// // This waits for the work of the stream.
/// assert_eq!(received.host()?, [2, 3]);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// While the CPU has borrowed the elements, no work can be given the block:
///
/// ```compile_fail,E0502
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let stream = gpumem::Stream::new(&device)?;
/// # let pool = gpumem::Pool::with_options(&device, &gpumem::PoolOptions::new().kind(gpumem::Kind::PINNED))?;
/// let mut block = pool.alloc::<u32>(3, Some(&stream))?;
/// let values = block.host_mut()?;
/// drop(stream.fill(&block, 7u32)?);
/// values[0] = 1;
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct PoolBlock<T: Element> {
    pool: Arc<PoolInner>,
    /// `None` if it has no bytes, or was freed.
    freeing: Option<Freeing>,
    start: NonNull<T>,
    len: usize,
    /// Made when the first use begins that the library does not order before the free.
    others: Mutex<Option<Arc<Others>>>,
}

// SAFETY: the block owns its elements, as a box does.
unsafe impl<T: Element + Send> Send for PoolBlock<T> {}
// SAFETY: a shared block gives no elements.
unsafe impl<T: Element + Sync> Sync for PoolBlock<T> {}

impl<T: Element> Drop for PoolBlock<T> {
    fn drop(&mut self) {
        let others = self.others.get_mut().unwrap_or_else(PoisonError::into_inner);
        match (self.freeing.take(), others.take()) {
            // The last use frees it.
            (Some(freeing), Some(others)) => *lock(&others.freeing) = Some(freeing),
            (Some(freeing), None) => freeing.release_or_keep(&self.pool.instance),
            (None, _) => {}
        }
    }
}

impl<T: Element> PoolBlock<T> {
    fn checked(self, function: &'static str) -> Result<Self, Error> {
        if self.freeing.is_some() && self.start.as_ptr() as usize % align_of::<T>() != 0 {
            let message = "the library returned memory that is not aligned for the elements";
            return Err(Error::own(Status::INTERNAL, function, message));
        }
        Ok(self)
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

    /// The first element, for code that orders its accesses itself.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.start.as_ptr()
    }

    /// Address of the first element for kernels. It must not be used if the block has no bytes.
    ///
    /// # Errors
    /// For a block of host memory as [`Device::device_address`].
    pub fn device_address(&self) -> Result<u64, Error> {
        if !self.pool.on_host || self.freeing.is_none() {
            return Ok(self.start.as_ptr() as u64);
        }
        let instance = Instance { inner: self.pool.instance.clone() };
        let info = instance.pointer_info(self.start.as_ptr().cast())?;
        match info.device_address {
            0 => Err(Error::own(
                Status::NO_ACCESS,
                "PoolBlock::device_address",
                "ordinary memory of the host has no device address; use a pool of Kind::PINNED",
            )),
            address => Ok(address),
        }
    }

    /// Information about the block; `None` for one without bytes.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<Option<PoolBlockInfo>, Error> {
        let instance = Instance { inner: self.pool.instance.clone() };
        self.freeing.map(|freeing| instance.block_info(freeing.pointer)).transpose()
    }

    /// The elements for the CPU, to read. The pool must be of [`Kind::PINNED`] or [`Kind::PAGEABLE`].
    ///
    /// It waits for the work of the block's stream, because that may still write the memory, also for a block that had it
    /// before.
    ///
    /// # Errors
    /// [`ErrorKind::NoAccess`] for other kinds; [`ErrorKind::Busy`] if work of another stream uses the block that was not
    /// observed complete; [`ErrorKind::DeviceLost`] if that work never will be; and as [`Stream::synchronize`].
    pub fn host(&mut self) -> Result<&[T], Error> {
        self.for_cpu("PoolBlock::host")?;
        // SAFETY: the CPU may read the elements. Any bits are values, and as the memory comes from the library, there are
        // some. No work uses the block, and none can begin while it is borrowed mutably.
        Ok(unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// The elements for the CPU, to read and write. See [`host`](Self::host).
    ///
    /// # Errors
    /// As [`host`](Self::host).
    pub fn host_mut(&mut self) -> Result<&mut [T], Error> {
        self.for_cpu("PoolBlock::host_mut")?;
        // SAFETY: as above; and the CPU may write.
        Ok(unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    fn for_cpu(&mut self, function: &'static str) -> Result<(), Error> {
        let freeing = match self.freeing {
            Some(freeing) => freeing,
            None => return Ok(()),
        };
        self.pool.instance.check(function)?;
        if !self.pool.on_host {
            let message =
                "the CPU has no such access to the block; use a pool of Kind::PINNED or Kind::PAGEABLE, or copy";
            return Err(Error::own(Status::NO_ACCESS, function, message));
        }
        if let Some(others) = &*lock(&self.others) {
            others.uses.refuse((0, u64::MAX), "block", function)?;
            if others.uses.are_abandoned() {
                return Err(lost("block", function));
            }
        }
        if freeing.stream.is_null() {
            return Ok(());
        }
        // SAFETY: only a handle.
        match unsafe { call!(gpumem_stream_synchronize(freeing.stream, sys::GPUMEM_TIMEOUT_INFINITE)) } {
            // It is destroyed, and so its work was observed complete, unless it had ended with its device.
            Err(error) if error.kind() == ErrorKind::StaleHandle => match a_device_was_lost() {
                true => Err(lost("block", function)),
                false => Ok(()),
            },
            result => result.map(drop).map_err(|error| error.called_as(function)),
        }
    }

    /// Records that work of a stream uses the block that other code enqueues, such as a kernel. The free then waits for
    /// the work that the stream has by then, without holding up the caller.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    pub fn record_use(&self, stream: &Stream) -> Result<(), Error> {
        match &self.freeing {
            Some(freeing) => freeing.record_use(stream.handle()),
            None => Ok(()),
        }
    }

    /// Frees the block in the order of its stream. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work of another stream uses it that was not observed complete; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`] or [`ErrorKind::InvalidState`]. The block is returned
    /// unchanged.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        self.free("PoolBlock::close", Freeing::release)
    }

    /// Frees the block in the order of another stream, after the work that both have now.
    ///
    /// # Errors
    /// As [`close`](Self::close), and [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`],
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`].
    pub fn free_on(self, stream: &Stream) -> Result<(), Rejected<Self>> {
        const FUNCTION: &str = "PoolBlock::free_on";
        let on = stream.handle();
        self.free(FUNCTION, |freeing| {
            if !freeing.stream.is_null() && freeing.stream != on {
                match freeing.record_use(freeing.stream) {
                    // The stream is destroyed, and so its work was observed complete.
                    Err(error) if error.kind() == ErrorKind::StaleHandle && !freeing.stream_lives() => {}
                    result => result.map_err(|error| error.called_as(FUNCTION))?,
                }
            }
            freeing.free_on(on, FUNCTION)
        })
    }

    fn free(
        mut self,
        function: &'static str,
        free: impl FnOnce(&Freeing) -> Result<(), Error>,
    ) -> Result<(), Rejected<Self>> {
        let freeing = match self.freeing {
            Some(freeing) => freeing,
            None => return Ok(()),
        };
        let used = match lock(&self.others).as_ref() {
            Some(others) => others.uses.refuse((0, u64::MAX), "block", function),
            None => Ok(()),
        };
        match used.and_then(|()| free(&freeing)) {
            // It went with its instance.
            Err(error) if !error.kind().is_closed() => Err(Rejected::new(self, error)),
            _ => {
                self.freeing = None;
                Ok(())
            }
        }
    }
}

impl<T: Element> Whole for PoolBlock<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn elements_of(&self, start: usize, len: usize) -> Span {
        Span::of_slice(self.as_ptr().wrapping_add(start), len)
    }

    fn kept_of(&self, start: usize, len: usize, on: &Stream) -> Keep {
        let bytes = |elements: usize| (elements * size_of::<T>()) as u64;
        let freeing = match self.freeing {
            Some(freeing) if bytes(len) != 0 => freeing,
            _ => return Keep::Nothing,
        };
        let ordered = freeing.stream == on.handle()
            // The CPU must know of the work, and so must a free without a stream.
            || !(self.pool.on_host || freeing.stream.is_null()) && freeing.record_use(on.handle()).is_ok();
        if ordered {
            return Keep::Pool(self.pool.clone());
        }
        let mut others = lock(&self.others);
        let others = others.get_or_insert_with(|| {
            Arc::new(Others { uses: Uses::default(), pool: self.pool.clone(), freeing: Mutex::default() })
        });
        Use::begin(others.clone(), bytes(start), bytes(len)).map_or(Keep::Nothing, Keep::Part)
    }
}

impl Freeing {
    fn record_use(&self, stream: sys::gpumem_stream) -> Result<(), Error> {
        // SAFETY: only handles and the address of a block that lives.
        unsafe { call!(gpumem_pool_record_use(self.pool, self.pointer, stream)) }.map(drop)
    }

    fn stream_lives(&self) -> bool {
        let mut info = sys::gpumem_stream_info::default();
        let query = || {
            // SAFETY: the struct is writable and has its own size.
            unsafe { call!(gpumem_stream_get_info(self.stream, &mut info)) }
        };
        !matches!({ query }(), Err(error) if error.kind() == ErrorKind::StaleHandle)
    }
}

impl<T: Element> fmt::Debug for PoolBlock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PoolBlock").field("len", &self.len).field("start", &self.start).finish()
    }
}

/// A part of a [`PoolBlock`], as an operand of copies and fills.
pub type PoolSlice<'a, T> = Part<'a, PoolBlock<T>>;
parts!(PoolBlock, PoolSlice);

impl<T: Element> PoolSlice<'_, T> {
    /// The first element, for code that orders its accesses itself.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.whole.as_ptr().wrapping_add(self.start)
    }

    /// Address of the first element for kernels.
    ///
    /// # Errors
    /// As [`PoolBlock::device_address`].
    pub fn device_address(&self) -> Result<u64, Error> {
        Ok(self.whole.device_address()? + (self.start * size_of::<T>()) as u64)
    }
}
