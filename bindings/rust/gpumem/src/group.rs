// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Groups of buffers that sleep and wake as one.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use gpumem_sys as sys;

use crate::buffer::{Closed, Shared};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::infos::GroupInfo;
use crate::instance::{c_pointer, c_text, lock, Inner, Instance};
use crate::library::{c, call, output_call};
use crate::memory::Remains;
pub use crate::options::GroupOptions;
use crate::sleep::{with_panics, PrepareOptions, SleepOptions, WakeOptions};

/// Buffers that sleep and wake as one.
///
/// A [`Buffer`](crate::Buffer) enters it when it is made ([`BufferOptions::group`](crate::BufferOptions::group)), and
/// leaves it when it is dropped. Calls are for all buffers of the group, or for those with one tag.
///
/// The group needs no access to its buffers: it may sleep while others have references to them. So that no use meets a
/// buffer whose memory is gone, a sleep is refused while the CPU has borrowed one of them, or a copy of another thread
/// uses one; and while the group sleeps or wakes, its buffers refuse to be used, with [`ErrorKind::Busy`] in both cases.
///
/// ```
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// use gpumem::{Buffer, BufferOptions, Content, Group, SleepOptions};
///
/// let model = Group::new(&instance)?;
/// let options = BufferOptions::new().group(&model);
/// let weights = Buffer::<f32>::with_options(&device, 1000, &options.clone().tag("weights"))?;
/// let cache = Buffer::<f32>::with_options(&device, 1000, &options.tag("cache"))?;
/// instance.fill(&weights, 0.5f32)?;
///
/// model.sleep(Content::PINNED)?;
/// assert_eq!(model.info()?.asleep_count, 2);
/// model.wake()?;
/// model.sleep(SleepOptions::new().content(Content::DROP).tag("cache"))?;
/// assert_eq!(model.info()?.asleep_count, 1);
/// let mut value = [0.0];
/// instance.copy(&mut value, weights.slice(..1)?)?;
/// assert_eq!(value, [0.5]);
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Group {
    inner: Arc<GroupInner>,
}

pub struct GroupInner {
    handle: sys::gpumem_group,
    instance: Arc<Inner>,
    destroyed: AtomicBool,
    members: Mutex<Vec<Arc<Shared>>>,
    /// Held to write while the group sleeps or wakes, and to read while something else changes a buffer.
    changes: RwLock<()>,
}

// SAFETY: a handle is a number to C, and every function may be called from any thread.
unsafe impl Send for GroupInner {}
// SAFETY: as above.
unsafe impl Sync for GroupInner {}

impl GroupInner {
    pub(crate) fn handle(&self) -> sys::gpumem_group {
        self.handle
    }

    /// Keeps the group from sleeping and waking. Nothing waits, as a callback of the same thread may be asking.
    pub(crate) fn still(&self, function: &'static str) -> Result<RwLockReadGuard<'_, ()>, Error> {
        match self.changes.try_read() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(changing("the group of the buffer sleeps or wakes now", function))
            }
        }
    }

    fn change(&self, function: &'static str) -> Result<RwLockWriteGuard<'_, ()>, Error> {
        match self.changes.try_write() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(changing("another call changes the group or one of its buffers", function))
            }
        }
    }

    pub(crate) fn add(&self, member: Arc<Shared>) {
        lock(&self.members).push(member);
    }

    pub(crate) fn remove(&self, member: &Arc<Shared>) {
        lock(&self.members).retain(|known| !Arc::ptr_eq(known, member));
    }

    /// Makes a call that puts the buffers with a tag to sleep or wakes them, while nothing uses them.
    fn with_members(
        &self,
        tag: Option<&str>,
        wakes: bool,
        function: &'static str,
        call: impl FnOnce(&[Closed]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // A panic of the program's functions goes on when all is in order again.
        with_panics(|| {
            let _change = self.change(function)?;
            let members: Vec<_> =
                lock(&self.members).iter().filter(|member| member.has_tag(tag)).cloned().collect();
            let mut closed = Vec::with_capacity(members.len());
            for member in members {
                match Closed::new(member, function) {
                    Ok(member) => closed.push(member),
                    // It is awake and stays so, and who uses it is not disturbed.
                    Err(_) if wakes => {}
                    Err(error) => return Err(error),
                }
            }
            let result = call(&closed);
            // Also after a failure: what was undone may lie elsewhere.
            closed.iter_mut().for_each(Closed::learn);
            result
        })
    }
}

fn changing(what: &'static str, function: &'static str) -> Error {
    Error::own(Status::BUSY, function, format!("{what}; try again when it has returned"))
}

impl Drop for GroupInner {
    fn drop(&mut self) {
        if !self.destroyed.load(Ordering::Acquire) {
            Remains::Group(self.handle).release_or_keep(&self.instance);
        }
    }
}

impl fmt::Debug for GroupInner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Group").field(&self.handle).finish()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl Group {
    /// Makes an empty group.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`] or [`ErrorKind::InvalidState`], as the message
    /// says.
    pub fn new(instance: &Instance) -> Result<Self, Error> {
        Self::with_options(instance, &GroupOptions::new()).map_err(|error| error.called_as("Group::new"))
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfMemory`] or [`ErrorKind::InvalidState`], as the message
    /// says.
    pub fn with_options(instance: &Instance, options: &GroupOptions) -> Result<Self, Error> {
        let instance = instance.inner.clone();
        instance.retry();
        let desc = options.describe()?;
        // SAFETY: the struct and its text live during the call.
        let made = unsafe { output_call!(gpumem_group_create(instance.handle, &*desc)) };
        let handle = made.map_err(|error| error.called_as("Group::with_options"))?;
        Ok(Self {
            inner: Arc::new(GroupInner {
                handle,
                instance,
                destroyed: AtomicBool::new(false),
                members: Mutex::default(),
                changes: RwLock::default(),
            }),
        })
    }

    pub(crate) fn share(&self) -> Arc<GroupInner> {
        self.inner.clone()
    }

    /// Handle for calls of [`sys`](crate::sys). They must not put buffers to sleep or wake them.
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_group {
        self.inner.handle
    }

    /// Information about the group.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<GroupInfo, Error> {
        self.query(None)
    }

    /// Information about the buffers of the group with this tag.
    ///
    /// # Errors
    /// As [`info`](Self::info), and [`ErrorKind::InvalidArgument`] for a text that cannot be a tag.
    pub fn info_of(&self, tag: &str) -> Result<GroupInfo, Error> {
        self.query(Some(tag))
    }

    fn query(&self, tag: Option<&str>) -> Result<GroupInfo, Error> {
        let tag = c_text(tag, "Group::info_of")?;
        let mut info = sys::gpumem_group_info::default();
        // SAFETY: the text lives during the call; the struct is writable and has its own size.
        unsafe { call!(gpumem_group_get_info(self.inner.handle, c_pointer(&tag), &mut info)) }?;
        Ok(GroupInfo::of(&info))
    }

    /// Puts the buffers to sleep as one: their memory is given back, their addresses stay. Those that sleep already stay
    /// as they are.
    ///
    /// If it fails, each buffer that it put to sleep is woken again. One for which there is no memory any more stays
    /// asleep with its content, [`BufferState::FAILED`](crate::BufferState::FAILED).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a buffer is in use (see [`Group`]), if registrations are noted, or if a callback
    /// refused; [`ErrorKind::Cancelled`] if the progress function broke; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::NotFound`], [`ErrorKind::InvalidState`], [`ErrorKind::NoAccess`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::PermissionDenied`] or [`ErrorKind::DeviceLost`].
    pub fn sleep<'a>(&self, options: impl Into<SleepOptions<'a>>) -> Result<(), Error> {
        const FUNCTION: &str = "Group::sleep";
        let mut options = options.into();
        let (handle, tag) = (self.inner.handle, options.tag.clone());
        self.inner.with_members(tag.as_deref(), false, FUNCTION, |members| {
            if options.wait()? {
                members.iter().try_for_each(|member| member.refuse_uses(FUNCTION))?;
            }
            let desc = options.describe()?;
            // SAFETY: no safe code uses the buffers, the library waits for work, and all other access is unsafe.
            unsafe { call!(gpumem_group_sleep(handle, &*desc)) }.map(drop)
        })
    }

    /// Wakes the buffers as one. Those that are awake stay as they are. If it fails, those that it woke sleep again, and
    /// nothing is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while another call makes the group sleep or wake, or changes one of its buffers;
    /// otherwise [`ErrorKind::InvalidArgument`], [`ErrorKind::InvalidState`], [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::Unsupported`], [`ErrorKind::Cancelled`],
    /// [`ErrorKind::ContentLost`] or [`ErrorKind::DeviceLost`].
    pub fn wake(&self) -> Result<(), Error> {
        self.wake_with_options(WakeOptions::new())
    }

    /// As [`wake`](Self::wake), with options.
    ///
    /// # Errors
    /// As [`wake`](Self::wake), and [`ErrorKind::Cancelled`] if the progress function broke.
    pub fn wake_with_options(&self, mut options: WakeOptions<'_>) -> Result<(), Error> {
        let (handle, tag) = (self.inner.handle, options.tag.clone());
        self.inner.instance.with_room(|| {
            self.inner.with_members(tag.as_deref(), true, "Group::wake", |_| {
                let desc = options.describe()?;
                // SAFETY: only a handle and a struct of its own size.
                unsafe { call!(gpumem_group_wake(handle, &*desc)) }.map(drop)
            })
        })
    }

    /// Makes the stores for the content of the buffers that are awake, ahead of a sleep with the same content.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::InvalidState`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::OutOfMemory`], [`ErrorKind::PermissionDenied`] or
    /// [`ErrorKind::DeviceLost`], as the message says.
    pub fn prepare(&self, options: impl Into<PrepareOptions>) -> Result<(), Error> {
        let desc = options.into().describe()?;
        // SAFETY: only a handle and a struct of its own size.
        unsafe { call!(gpumem_group_prepare(self.inner.handle, &*desc)) }.map(drop)
    }

    /// Destroys the group. Dropping it does the same, once its buffers are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a buffer belongs to it. The group is returned unchanged.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        self.inner.instance.retry();
        match Remains::Group(self.inner.handle).release() {
            Ok(()) => {
                self.inner.destroyed.store(true, Ordering::Release);
                Ok(())
            }
            Err(error) => Err(Rejected::new(self, error)),
        }
    }
}
