// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! How buffers sleep and wake, and the functions of the program that are called meanwhile.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::mem;
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, TryLockError};

use gpumem_sys as sys;

use crate::buffer::{BufferRegistration, Shared};
use crate::codes::{Content, SleepFlags};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::event::Event;
use crate::infos::BufferInfo;
pub use crate::options::{PrepareOptions, SleepOptions, WakeOptions};
use crate::stream::Stream;

/// A function that hears how many bytes of how many are done.
pub(crate) type Progress<'a> = Box<dyn FnMut(u64, u64) -> ControlFlow<()> + 'a>;

impl<'a> SleepOptions<'a> {
    /// Keeps the content in a file without a name in this directory: [`Content::FILE`].
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.content = Content::FILE;
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Waits for the work of this stream alone. If work in another stream uses a buffer, the call fails with
    /// [`ErrorKind::Busy`].
    #[must_use]
    pub fn after(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Waits for the work that this event marks alone. If other work uses a buffer, the call fails with
    /// [`ErrorKind::Busy`].
    #[must_use]
    pub fn after_event(mut self, event: &'a Event) -> Self {
        self.event = Some(event);
        self
    }

    /// A function that is called before the first byte and after each piece, with the bytes that are done and all
    /// bytes. If it breaks, the call fails with [`ErrorKind::Cancelled`], and what it did is undone. So it does if the
    /// function panics; the panic then goes on.
    #[must_use]
    pub fn progress(mut self, function: impl FnMut(u64, u64) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(function));
        self
    }

    /// Waits for the work that the options name. Returns whether other work must be known to be complete, because the
    /// library will not wait for it.
    pub(crate) fn wait(&self) -> Result<bool, Error> {
        if let Some(stream) = self.stream {
            stream.synchronize()?;
        }
        if let Some(event) = self.event {
            event.synchronize()?;
        }
        Ok(self.flags.contains(SleepFlags::IDLE) || self.stream.is_some() || self.event.is_some())
    }
}

impl<'a> WakeOptions<'a> {
    /// As [`SleepOptions::progress`].
    #[must_use]
    pub fn progress(mut self, function: impl FnMut(u64, u64) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(function));
        self
    }
}

impl PrepareOptions {
    /// Prepares a file in this directory: [`Content::FILE`].
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.content = Content::FILE;
        self.directory = Some(directory.as_ref().to_owned());
        self
    }
}

impl From<Content> for SleepOptions<'_> {
    fn from(content: Content) -> Self {
        Self::new().content(content)
    }
}

impl From<Content> for PrepareOptions {
    fn from(content: Content) -> Self {
        Self::new().content(content)
    }
}

impl fmt::Debug for SleepOptions<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SleepOptions")
            .field("content", &self.content)
            .field("flags", &self.flags)
            .field("directory", &self.directory)
            .field("tag", &self.tag)
            .field("stream", &self.stream)
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WakeOptions<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WakeOptions")
            .field("keep", &self.keep)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

// ---- functions of the program ----

type Panic = Box<dyn Any + Send>;

thread_local! {
    /// Where a panic waits for the end of the call that it came through; `None` outside of such a call.
    static PANIC: Cell<Option<Option<Panic>>> = const { Cell::new(None) };
}

/// Makes a call in which the library calls functions of the program. If one of them panics, the panic goes on after the
/// call.
pub(crate) fn with_panics<R>(call: impl FnOnce() -> R) -> R {
    let outer = PANIC.with(|panic| panic.replace(Some(None)));
    let result = call();
    match PANIC.with(|panic| panic.replace(outer)) {
        Some(Some(panic)) => resume_unwind(panic),
        _ => result,
    }
}

/// Runs a function of the program; `None` if it panicked.
pub(crate) fn caught<R>(function: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Only the first panic goes on. Nor does one in a call by other code, which has no place for it.
            let kept = PANIC.try_with(|panic| match panic.take() {
                Some(None) => {
                    panic.set(Some(Some(payload)));
                    None
                }
                other => {
                    panic.set(other);
                    Some(payload)
                }
            });
            // Its own drop could panic.
            mem::forget(kept);
            None
        }
    }
}

pub(crate) fn progress_to_c(
    progress: &mut Option<Progress<'_>>,
) -> (sys::gpumem_progress_function, *mut c_void) {
    match progress {
        Some(function) => (Some(report_progress), (function as *mut Progress<'_>).cast()),
        None => (None, ptr::null_mut()),
    }
}

/// # Safety
/// `user_data` is a `Progress` that nobody else uses now.
unsafe extern "C" fn report_progress(user_data: *mut c_void, done: u64, total: u64) -> i32 {
    // SAFETY: the caller's promise.
    let function = unsafe { &mut *user_data.cast::<Progress<'_>>() };
    match caught(|| function(done, total)) {
        Some(ControlFlow::Continue(())) => 0,
        _ => 1,
    }
}

type BeforeSleep = Box<dyn FnMut(&CalledBuffer<'_>) -> bool + Send>;
type AfterWake = Box<dyn FnMut(&CalledBuffer<'_>, u64) + Send>;

/// Functions that are called when a buffer sleeps and wakes, for [`Buffer::set_callbacks`](crate::Buffer::set_callbacks).
///
/// They run on the thread that puts the buffer to sleep or wakes it. A panic goes on after that call.
#[derive(Default)]
pub struct BufferCallbacks {
    before_sleep: Option<BeforeSleep>,
    after_wake: Option<AfterWake>,
}

impl BufferCallbacks {
    /// No functions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Called before the buffer sleeps: the time to end registrations and to stop using it. It gets the buffer, and
    /// returns true if that may sleep; otherwise the call fails with [`ErrorKind::Busy`], and so it does after a panic.
    #[must_use]
    pub fn before_sleep(mut self, function: impl FnMut(&CalledBuffer<'_>) -> bool + Send + 'static) -> Self {
        self.before_sleep = Some(Box::new(function));
        self
    }

    /// Called after the buffer has woken, and after a sleep that it had been told of did not happen: the time to renew
    /// registrations. It gets the buffer and its [`generation`](BufferInfo::generation), which has not changed if the
    /// buffer did not sleep.
    #[must_use]
    pub fn after_wake(mut self, function: impl FnMut(&CalledBuffer<'_>, u64) + Send + 'static) -> Self {
        self.after_wake = Some(Box::new(function));
        self
    }
}

impl fmt::Debug for BufferCallbacks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BufferCallbacks")
            .field("before_sleep", &self.before_sleep.is_some())
            .field("after_wake", &self.after_wake.is_some())
            .finish()
    }
}

/// The buffer that a callback is called for.
pub struct CalledBuffer<'a> {
    shared: &'a Arc<Shared>,
}

impl CalledBuffer<'_> {
    /// Information about the buffer.
    ///
    /// # Errors
    /// As [`Buffer::info`](crate::Buffer::info).
    pub fn info(&self) -> Result<BufferInfo, Error> {
        self.shared.info()
    }

    /// As [`Buffer::note_registration`](crate::Buffer::note_registration).
    ///
    /// # Errors
    /// As [`Buffer::note_registration`](crate::Buffer::note_registration).
    pub fn note_registration(&self, name: &str) -> Result<BufferRegistration, Error> {
        BufferRegistration::note(self.shared, name)
    }
}

impl fmt::Debug for CalledBuffer<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("CalledBuffer").field(&self.shared.handle).finish()
    }
}

/// The callbacks that C has, which live until it has others, or the buffer is destroyed.
pub struct Callbacks {
    shared: Arc<Shared>,
    before_sleep: Option<Mutex<BeforeSleep>>,
    after_wake: Option<Mutex<AfterWake>>,
}

impl Callbacks {
    pub(crate) fn new(shared: &Arc<Shared>, given: BufferCallbacks) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            before_sleep: given.before_sleep.map(Mutex::new),
            after_wake: given.after_wake.map(Mutex::new),
        })
    }

    /// What C takes, which is valid while this lives.
    pub(crate) fn to_c(&self) -> sys::gpumem_buffer_callbacks {
        sys::gpumem_buffer_callbacks {
            before_sleep: if self.before_sleep.is_some() { Some(before_sleep) } else { None },
            after_wake: if self.after_wake.is_some() { Some(after_wake) } else { None },
            user_data: (self as *const Self as *mut Self).cast(),
            ..Default::default()
        }
    }

    /// Runs one of the functions; `None` if there is none, it panicked, or it is running.
    fn run<F, R>(
        &self,
        function: &Option<Mutex<F>>,
        run: impl FnOnce(&mut F, &CalledBuffer<'_>) -> R,
    ) -> Option<R> {
        let mut function = match function.as_ref()?.try_lock() {
            Ok(function) => function,
            // It may have panicked before.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        caught(|| run(&mut function, &CalledBuffer { shared: &self.shared }))
    }
}

/// # Safety
/// `user_data` are `Callbacks` that live.
unsafe extern "C" fn before_sleep(user_data: *mut c_void, _: sys::gpumem_buffer) -> i32 {
    // SAFETY: the caller's promise.
    let callbacks = unsafe { &*user_data.cast::<Callbacks>() };
    match callbacks.run(&callbacks.before_sleep, |function, buffer| function(buffer)) {
        Some(true) => 0,
        _ => 1,
    }
}

/// # Safety
/// As [`before_sleep`].
unsafe extern "C" fn after_wake(user_data: *mut c_void, _: sys::gpumem_buffer, generation: u64) {
    // SAFETY: the caller's promise.
    let callbacks = unsafe { &*user_data.cast::<Callbacks>() };
    let _ = callbacks.run(&callbacks.after_wake, |function, buffer| function(buffer, generation));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_goes_on_after_the_call() {
        assert_eq!(with_panics(|| caught(|| 7)), Some(7));
        let mut after = false;
        let payload = catch_unwind(AssertUnwindSafe(|| {
            with_panics(|| {
                // A call inside of a call has its own.
                let inner = catch_unwind(|| with_panics(|| caught(|| resume_unwind(Box::new(1)))));
                assert_eq!(inner.unwrap_err().downcast_ref(), Some(&1));
                assert_eq!(caught(|| resume_unwind(Box::new(2))), None::<()>);
                assert_eq!(caught(|| resume_unwind(Box::new(3))), None::<()>);
                after = true;
            });
        }))
        .unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&2));
        assert!(after);
        // Outside of a call there is no place for it.
        assert_eq!(caught(|| resume_unwind(Box::new(4))), None::<()>);
        with_panics(|| ());
    }

    #[test]
    fn progress_is_reported_until_it_breaks() {
        let mut seen = Vec::new();
        let mut progress: Option<Progress<'_>> = Some(Box::new(|done, total| {
            seen.push((done, total));
            if done < 2 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        }));
        let (function, user_data) = progress_to_c(&mut progress);
        // SAFETY: nobody else uses the function.
        let answers = unsafe { [1, 2].map(|done| function.unwrap()(user_data, done, 3)) };
        assert_eq!(answers, [0, 1]);
        drop(progress);
        assert_eq!(seen, [(1, 3), (2, 3)]);
        assert!(progress_to_c(&mut None).0.is_none());
    }

    #[test]
    fn options_of_c_have_what_was_set() {
        let mut options = SleepOptions::new().directory("/a").tag("weights").flags(SleepFlags::IDLE);
        assert!(options.wait().unwrap() && options.tag.as_deref() == Some("weights"));
        let text = format!("{options:?}");
        assert!(text.contains("directory: Some(\"/a\")") && text.contains("IDLE"), "{text}");
        let desc = options.describe().unwrap();
        assert_eq!((desc.content, desc.flags), (sys::GPUMEM_CONTENT_FILE, sys::GPUMEM_SLEEP_IDLE));
        assert!(!desc.directory.is_null() && !desc.tag.is_null() && desc.progress.is_none());
        assert!(!SleepOptions::from(Content::ZERO).wait().unwrap());
        let mut options = SleepOptions::from(Content::ZERO);
        let desc = options.describe().unwrap();
        assert_eq!(desc.content, sys::GPUMEM_CONTENT_ZERO);
        assert!(desc.directory.is_null() && desc.tag.is_null());
        let mut options = WakeOptions::new().keep(5).tag("cache").progress(|_, _| ControlFlow::Continue(()));
        let desc = options.describe().unwrap();
        assert!(desc.keep == 5 && !desc.tag.is_null() && desc.progress.is_some());
        let options = PrepareOptions::from(Content::PAGEABLE).tag("cache").bytes_per_second(9);
        let desc = options.describe().unwrap();
        assert_eq!((desc.content, desc.bytes_per_second), (sys::GPUMEM_CONTENT_PAGEABLE, 9));
        assert!(desc.directory.is_null() && !desc.tag.is_null());
        let mut refused = SleepOptions::new().directory("a\0b");
        assert!(refused.describe().err().unwrap().to_string().starts_with("SleepOptions::directory: "));
        assert!(PrepareOptions::new().tag("a\0b").describe().is_err());
        assert!(WakeOptions::new().tag("a\0b").describe().is_err());
    }
}
