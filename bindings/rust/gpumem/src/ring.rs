// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Rings: slots of device memory that go from a producer to consumers in other processes, again and again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::ops::RangeBounds;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use gpumem_sys as sys;

use crate::copy::sealed::{Keep, Operand, Span};
use crate::device::Device;
use crate::element::Element;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::infos::RingInfo;
use crate::instance::{lock, Instance};
use crate::library::{c, call, info_call, output_call};
use crate::memory::Owned;
pub use crate::options::{RingOpenOptions, RingOptions};
use crate::share::ShareHandle;
use crate::stream::{nanoseconds, order, Stream, StreamInner};
use crate::typed::{addressed_part, part_of_bytes};
use crate::uses::busy;

/// The one owner of a ring. Work in streams shares it, and so its memory stays until that is complete.
type Ring = Owned<sys::gpumem_ring_s>;

impl Ring {
    fn info(&self) -> Result<RingInfo, Error> {
        info_call!(gpumem_ring_get_info(self.handle) => RingInfo)
    }

    /// Destroys the ring, unless work in a stream shares it.
    fn close_shared(self: Arc<Self>) -> Result<(), (Arc<Self>, Error)> {
        let mut ring =
            Arc::try_unwrap(self).map_err(|shared| (shared, busy("ring", "gpumem_ring_destroy")))?;
        ring.close().map_err(|error| (Arc::new(ring), error))
    }

    fn release(&self, stream: Option<&Stream>, number: u64) -> Result<(), Error> {
        // SAFETY: only handles.
        unsafe { call!(gpumem_ring_release(self.handle, order(stream), number)) }.map(drop)
    }
}

/// The streams that were given work on a slot or message.
#[derive(Default)]
struct Users {
    number: u64,
    streams: Mutex<Vec<Weak<StreamInner>>>,
}

// Not derived, which Rust 1.63 refuses: its `Weak` has `Debug` only if what it leads to has.
impl fmt::Debug for Users {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Users").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Users {
    fn of(number: u64) -> Self {
        Self { number, streams: Mutex::default() }
    }

    fn add(&self, stream: &Stream) {
        let mut streams = lock(&self.streams);
        if !streams.iter().any(|known| ptr::eq(known.as_ptr(), &*stream.inner)) {
            streams.push(Arc::downgrade(&stream.inner));
        }
    }

    /// Those whose work on it was not observed complete, unless the slot's own stream comes after it.
    fn others(&self, ring: &Arc<Ring>, own: Option<&Stream>) -> Vec<Stream> {
        let known: Vec<_> = lock(&self.streams).iter().filter_map(Weak::upgrade).collect();
        let is_covered = |stream: &Arc<StreamInner>| match stream.latest_use(ring, self.number) {
            Some(last) => own.map_or(false, |own| own.inner.comes_after(stream, last)),
            None => true,
        };
        known.into_iter().filter(|stream| !is_covered(stream)).map(|inner| Stream { inner }).collect()
    }
}

/// What C says of a slot.
#[derive(Clone, Copy, Debug)]
struct Found {
    pointer: u64,
    size: u64,
    number: u64,
    tag: u64,
    index: u32,
}

impl Found {
    fn of(slot: &sys::gpumem_ring_slot) -> Self {
        Self {
            pointer: slot.pointer as u64,
            size: slot.size,
            number: slot.number,
            tag: slot.tag,
            index: slot.index,
        }
    }

    fn slice<'a, T: Element>(
        &self,
        ring: &'a Arc<Ring>,
        users: &'a Users,
        range: &impl RangeBounds<usize>,
        function: &'static str,
    ) -> Result<RingSlice<'a, T>, Error> {
        let (offset, len) = part_of_bytes::<T>((self.pointer, self.size), range, function)?;
        Ok(RingSlice { ring, start: self.pointer + offset, len, users, elements: PhantomData })
    }
}

addressed_part! {
    /// A part of a slot of a ring, as an operand of copies and fills.
    RingSlice of ring: Arc<Ring>, users: &'a Users
}

impl<T: Element> Operand for RingSlice<'_, T> {
    fn elements(&self) -> Span {
        Span::of_slice(self.start as *mut T, self.len)
    }
    fn kept(&self, stream: &Stream) -> Keep {
        self.users.add(stream);
        Keep::Slot(self.ring.clone(), self.users.number)
    }
}

/// The side of a ring that fills slots. Its consumers are in other processes, and each gets every message that is
/// published after it has opened the ring, in order. The producer gets a slot again when all of them have released it.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let instance = device.instance();
/// use gpumem::{RingOptions, RingProducer};
///
/// let mut producer = RingProducer::new(&device, 4096, &RingOptions::new())?;
/// let handle = producer.export()?; // for other processes
/// # let _ = handle;
/// let slot = producer.acquire(None)?;
/// instance.copy(slot.slice::<u32>(..3)?, &[1, 2, 3])?;
/// slot.publish(12, 0)?;
/// producer.finish()?;
/// producer.close()?;
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// A slot cannot outlive its ring, nor its stream:
///
/// ```compile_fail,E0505
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # use gpumem::{RingOptions, RingProducer};
/// let mut producer = RingProducer::new(&device, 4096, &RingOptions::new())?;
/// let slot = producer.acquire(None)?;
/// drop(producer);
/// slot.publish(12, 0)?;
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// Dropping a producer that has consumers finishes the ring, and leaves it to the instance, which destroys it later.
#[derive(Debug)]
pub struct RingProducer {
    ring: Arc<Ring>,
    acquired: Option<Acquired>,
    /// Of the slot that was acquired.
    users: Users,
}

/// A slot that was acquired, and not published. It outlives its [`RingSlot`], which may be dropped or forgotten.
#[derive(Debug)]
struct Acquired {
    found: Found,
    /// Its work is not known to be complete.
    stream: Option<Stream>,
}

impl RingProducer {
    /// Makes a ring, whose messages have up to `slot_size` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device shares no memory or no events; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::LimitExceeded`] or [`ErrorKind::InvalidState`].
    pub fn new(device: &Device, slot_size: u64, options: &RingOptions) -> Result<Self, Error> {
        device.instance.retry();
        let mut desc = options.describe()?;
        desc.slot_size = slot_size;
        // SAFETY: the struct and its text live during the call.
        let create = || unsafe { output_call!(gpumem_ring_create(device.handle, &*desc)) };
        let handle = device.instance.with_room(create)?;
        let ring = Arc::new(Ring { handle, instance: device.instance.clone() });
        Ok(Self { ring, acquired: None, users: Users::default() })
    }

    /// Waits until all consumers have released the next slot. The stream will fill it, and waits for their work. Without a
    /// stream, this waits for that.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if the ring is finished; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::PeerGone`], [`ErrorKind::Busy`] or [`ErrorKind::StaleHandle`].
    pub fn acquire<'a>(&'a mut self, stream: Option<&'a Stream>) -> Result<RingSlot<'a>, Error> {
        loop {
            if let Some(found) = self.next(stream, sys::GPUMEM_TIMEOUT_INFINITE)? {
                return Ok(RingSlot { producer: self, found, stream });
            }
        }
    }

    /// As [`acquire`](Self::acquire) with a timeout; `None` if the slot was not free in time.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn acquire_for<'a>(
        &'a mut self,
        stream: Option<&'a Stream>,
        timeout: Duration,
    ) -> Result<Option<RingSlot<'a>>, Error> {
        let found = self.next(stream, nanoseconds(timeout));
        let found = found.map_err(|error| error.called_as("RingProducer::acquire_for"))?;
        Ok(found.map(|found| RingSlot { producer: self, found, stream }))
    }

    fn next(&mut self, stream: Option<&Stream>, timeout_ns: u64) -> Result<Option<Found>, Error> {
        let share = || stream.map(|stream| Stream { inner: stream.inner.clone() });
        if let Some(acquired) = &mut self.acquired {
            let begun = Instant::now();
            for before in acquired.stream.iter().chain(&self.users.others(&self.ring, None)) {
                let passed = nanoseconds(begun.elapsed());
                // If it fails, nothing runs there any more.
                if let Ok(false) = before.inner.synchronize(timeout_ns.saturating_sub(passed)) {
                    return Ok(None);
                }
            }
            acquired.stream = share();
            return Ok(Some(acquired.found));
        }
        let mut slot = sys::gpumem_ring_slot::default();
        // SAFETY: the struct is writable and has its own size.
        let status =
            unsafe { call!(gpumem_ring_acquire(self.ring.handle, order(stream), timeout_ns, &mut slot)) }?;
        if status != Status::SUCCESS {
            return Ok(None);
        }
        let found = Found::of(&slot);
        self.acquired = Some(Acquired { found, stream: share() });
        self.users = Users::of(found.number);
        Ok(Some(found))
    }

    /// Says that no message will follow, and waits until all consumers have closed the ring. They take what is published,
    /// and then get [`ErrorKind::Closed`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`], [`ErrorKind::Busy`] or [`ErrorKind::StaleHandle`], as the message says.
    pub fn finish(&mut self) -> Result<(), Error> {
        while !self.finish_within(sys::GPUMEM_TIMEOUT_INFINITE)? {}
        Ok(())
    }

    /// As [`finish`](Self::finish) with a timeout. Returns whether there are no consumers; the ring is finished in any
    /// case.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_for(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.finish_within(nanoseconds(timeout)).map_err(|error| error.called_as("RingProducer::finish_for"))
    }

    fn finish_within(&mut self, timeout_ns: u64) -> Result<bool, Error> {
        // SAFETY: only a handle.
        let status = unsafe { call!(gpumem_ring_finish(self.ring.handle, timeout_ns)) }?;
        self.acquired = None;
        Ok(status == Status::SUCCESS)
    }

    /// Information about the ring. It asks nobody.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<RingInfo, Error> {
        self.ring.info()
    }

    /// Handle for calls of [`sys`](crate::sys). They must not destroy it.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_ring {
        self.ring.handle
    }

    /// Destroys the ring.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while consumers have the ring, see [`finish`](Self::finish), or if work in a stream uses it that was
    /// not observed complete. The producer is returned.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        let Self { ring, acquired, users } = self;
        ring.close_shared().map_err(|(ring, error)| Rejected::new(Self { ring, acquired, users }, error))
    }
}

/// A slot to fill. [`publish`](Self::publish) passes it on. If it is dropped instead, the next
/// [`acquire`](RingProducer::acquire) returns it once more; the drop waits for the work in its stream, and for work on it in
/// others. If it is forgotten, that `acquire` waits.
#[derive(Debug)]
#[must_use = "a slot that is dropped is not published"]
pub struct RingSlot<'a> {
    producer: &'a mut RingProducer,
    found: Found,
    stream: Option<&'a Stream>,
}

impl RingSlot<'_> {
    /// Some of the elements, as an operand of copies and fills: the slot counts as an array of `T`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if they do not lie within the slot.
    pub fn slice<T: Element>(&self, range: impl RangeBounds<usize>) -> Result<RingSlice<'_, T>, Error> {
        self.found.slice(&self.producer.ring, &self.producer.users, &range, "RingSlot::slice")
    }

    /// Bytes that may be filled.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.found.size
    }

    /// Number of the message: 0, 1, 2 and so on since the ring was created.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.found.number
    }

    /// Index of the slot.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.found.index
    }

    /// Publishes the first `bytes` bytes, with a number for the consumers. They see them when the work is complete that is
    /// in the slot's stream now. Without one, that is the stream with work on the slot, if there is one. Without consumers,
    /// the message is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in yet another stream uses the slot, for which its own does not wait, and that was not
    /// observed complete; the next [`acquire`](RingProducer::acquire) returns the slot, and waits for that.
    /// [`ErrorKind::InvalidArgument`] if the slot has fewer bytes; otherwise [`ErrorKind::InvalidState`] or
    /// [`ErrorKind::Busy`]. The slot is dropped then.
    pub fn publish(self, bytes: u64, tag: u64) -> Result<(), Error> {
        let others = self.producer.users.others(&self.producer.ring, self.stream);
        let stream = match (self.stream, &others[..]) {
            (own, []) => own,
            (None, [only]) => Some(only),
            _ => {
                mem::forget(self);
                let message =
                    "work in another stream uses the slot and was not observed complete; synchronize that \
                               stream, or take the slot with it";
                return Err(Error::own(Status::BUSY, "RingSlot::publish", message));
            }
        };
        let ring = self.producer.ring.handle;
        // SAFETY: only handles.
        unsafe { call!(gpumem_ring_publish(ring, order(stream), bytes, tag)) }?;
        let mut published = ManuallyDrop::new(self);
        published.producer.acquired = None;
        Ok(())
    }
}

impl Drop for RingSlot<'_> {
    fn drop(&mut self) {
        for stream in self.stream.into_iter().chain(&self.producer.users.others(&self.producer.ring, None)) {
            // If it fails, nothing runs there any more.
            let _ = stream.synchronize();
        }
        if let Some(acquired) = &mut self.producer.acquired {
            acquired.stream = None;
        }
    }
}

/// The side of a ring that uses messages. The producer waits for it to release them.
///
/// Dropping it leaves the ring. It can be sent to another thread while it holds no message.
#[derive(Debug)]
pub struct RingConsumer {
    ring: Arc<Ring>,
    /// The messages that are held, in their order: number, and whether it is to be released with the one before.
    held: RefCell<VecDeque<(u64, bool)>>,
}

impl RingConsumer {
    /// Opens a ring of another process. The consumer sees every message that is published after this has returned.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the ring has as many consumers as it may, [`ErrorKind::Closed`] if it is
    /// finished, [`ErrorKind::PeerGone`] if the producer has ended; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::StaleHandle`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::PermissionDenied`], [`ErrorKind::Busy`], [`ErrorKind::NotFound`] or [`ErrorKind::Unsupported`].
    pub fn open(instance: &Instance, handle: &ShareHandle, options: &RingOpenOptions) -> Result<Self, Error> {
        let instance = instance.inner.clone();
        instance.retry();
        let desc = options.describe()?;
        let (native, mut opened) = (handle.to_c(), ptr::null_mut());
        // SAFETY: the structs and the text live during the call; the output is writable.
        unsafe { call!(gpumem_ring_open(instance.handle, &native, &*desc, &mut opened)) }?;
        Ok(Self { ring: Arc::new(Ring { handle: opened, instance }), held: RefCell::default() })
    }

    /// Waits for the next message; several can be held. The stream will use it, and waits for the work of the producer.
    /// Without a stream, this waits for that.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the producer has finished the ring and this was all, [`ErrorKind::PeerGone`] if it
    /// has ended; otherwise [`ErrorKind::InvalidArgument`], [`ErrorKind::InvalidState`], [`ErrorKind::Busy`] or
    /// [`ErrorKind::StaleHandle`].
    pub fn wait<'a>(&'a self, stream: Option<&'a Stream>) -> Result<RingMessage<'a>, Error> {
        loop {
            if let Some(message) = self.wait_within(stream, sys::GPUMEM_TIMEOUT_INFINITE)? {
                return Ok(message);
            }
        }
    }

    /// As [`wait`](Self::wait) with a timeout; `None` if no message came in time.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_for<'a>(
        &'a self,
        stream: Option<&'a Stream>,
        timeout: Duration,
    ) -> Result<Option<RingMessage<'a>>, Error> {
        self.wait_within(stream, nanoseconds(timeout))
            .map_err(|error| error.called_as("RingConsumer::wait_for"))
    }

    fn wait_within<'a>(
        &'a self,
        stream: Option<&'a Stream>,
        timeout_ns: u64,
    ) -> Result<Option<RingMessage<'a>>, Error> {
        let mut slot = sys::gpumem_ring_slot::default();
        // SAFETY: the struct is writable and has its own size.
        let status =
            unsafe { call!(gpumem_ring_wait(self.ring.handle, order(stream), timeout_ns, &mut slot)) }?;
        if status != Status::SUCCESS {
            return Ok(None);
        }
        self.held.borrow_mut().push_back((slot.number, false));
        let users = Users::of(slot.number);
        Ok(Some(RingMessage { consumer: self, found: Found::of(&slot), stream, users }))
    }

    /// The messages that come, until the producer has finished the ring. After an error it goes on waiting.
    #[must_use]
    pub fn messages<'a>(&'a self, stream: Option<&'a Stream>) -> RingMessages<'a> {
        RingMessages { consumer: self, stream }
    }

    fn release(&self, users: &Users, own: Option<&Stream>) -> Result<(), Error> {
        let (number, others) = (users.number, users.others(&self.ring, own));
        let stream = match (own, &others[..]) {
            (None, [only]) => Some(only),
            _ => {
                // If it fails, nothing runs there any more.
                others.iter().for_each(|other| drop(other.synchronize()));
                own
            }
        };
        let mut held = self.held.borrow_mut();
        if !matches!(held.front(), Some((oldest, _)) if *oldest == number) {
            // It is released after the stream may be gone.
            let complete = stream.map_or(Ok(()), Stream::synchronize);
            if let Some(message) = held.iter_mut().find(|message| message.0 == number) {
                message.1 = true;
            }
            return complete;
        }
        let released = self.ring.release(stream, number);
        if released.is_err() {
            // The next release tries again, without the stream.
            let _ = stream.map(Stream::synchronize);
            if let Some(message) = held.front_mut() {
                message.1 = true;
            }
            return released;
        }
        held.pop_front();
        while let Some((number, true)) = held.front().copied() {
            if self.ring.release(None, number).is_err() {
                break;
            }
            held.pop_front();
        }
        Ok(())
    }

    /// Information about the ring. It asks nobody.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<RingInfo, Error> {
        self.ring.info()
    }

    /// Handle for calls of [`sys`](crate::sys). They must not destroy it.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_ring {
        self.ring.handle
    }

    /// Leaves the ring, and waits for the work on what was released. Dropping the consumer does the same, but cannot report a
    /// failure.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses the ring that was not observed complete. The consumer is returned.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        let Self { ring, held } = self;
        ring.close_shared().map_err(|(ring, error)| {
            Rejected::new(Self { ring, held }, error.called_as("RingConsumer::close"))
        })
    }
}

impl<'a> IntoIterator for &'a RingConsumer {
    type Item = Result<RingMessage<'a>, Error>;
    type IntoIter = RingMessages<'a>;

    fn into_iter(self) -> RingMessages<'a> {
        self.messages(None)
    }
}

/// The messages of a ring; see [`RingConsumer::messages`].
#[derive(Clone, Debug)]
pub struct RingMessages<'a> {
    consumer: &'a RingConsumer,
    stream: Option<&'a Stream>,
}

impl<'a> Iterator for RingMessages<'a> {
    type Item = Result<RingMessage<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.consumer.wait(self.stream) {
            Err(error) if error.status() == Status::CLOSED => None,
            other => Some(other),
        }
    }
}

/// A message. It is released when it is dropped, or by [`release`](Self::release).
///
/// The producer gets the slots in their order: a message that is dropped before an older one is released with that, and
/// the drop waits for the work in its stream.
#[derive(Debug)]
pub struct RingMessage<'a> {
    consumer: &'a RingConsumer,
    found: Found,
    stream: Option<&'a Stream>,
    users: Users,
}

impl RingMessage<'_> {
    /// Some of the elements, as an operand of copies and fills: the message counts as an array of `T`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if they do not lie within the message.
    pub fn slice<T: Element>(&self, range: impl RangeBounds<usize>) -> Result<RingSlice<'_, T>, Error> {
        self.found.slice(&self.consumer.ring, &self.users, &range, "RingMessage::slice")
    }

    /// Bytes of the message.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.found.size
    }

    /// Number of the message: 0, 1, 2 and so on since the ring was created.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.found.number
    }

    /// The number that the producer passed with it.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.found.tag
    }

    /// Index of the slot.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.found.index
    }

    /// Releases the message. The producer fills the slot again when the work is complete that is in the message's stream now.
    /// Without one, that is the stream with work on the message, if there is one. This waits for work on it in yet other
    /// streams, unless its own waits for that.
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if the producer has ended; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::InvalidState`] or [`ErrorKind::Busy`].
    pub fn release(self) -> Result<(), Error> {
        let mut message = ManuallyDrop::new(self);
        let users = mem::take(&mut message.users);
        message.consumer.release(&users, message.stream)
    }
}

impl Drop for RingMessage<'_> {
    fn drop(&mut self) {
        // The next wait reports what is wrong.
        let _ = self.consumer.release(&self.users, self.stream);
    }
}
