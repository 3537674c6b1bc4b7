// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The log function, which receives the library's messages. Without one, the library logs nothing.

use std::ffi::CStr;
use std::os::raw::c_void;
use std::ptr;
use std::sync::{Mutex, TryLockError};

use gpumem_sys as sys;

use crate::codes::LogLevel;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Status};
use crate::library::{c, call, require};
use crate::stream::run_caught;
use crate::words::translate;

type Function = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The function that C calls: a `Function` in a box, or NULL.
struct Current(*mut Function);

// SAFETY: the function can be sent.
unsafe impl Send for Current {}

static CURRENT: Mutex<Current> = Mutex::new(Current(ptr::null_mut()));

/// # Safety
/// `user_data` is a `Function` that lives, and `message` ends with a 0 byte.
unsafe extern "C" fn deliver(
    user_data: *mut c_void,
    level: sys::gpumem_log_level,
    message: *const sys::c_char,
) {
    // SAFETY: the caller's promise.
    let (function, message) = unsafe { (&*user_data.cast::<Function>(), CStr::from_ptr(message)) };
    // A panic could only be logged to the function that panicked.
    let _ = run_caught(|| function(LogLevel(level), &translate(&message.to_string_lossy())));
}

/// Sets the function that receives the messages up to a level, one line each, for the whole process. It is called
/// from any thread and must not call this crate. When this returns, the previous function is not running and will not
/// be called again. A panic ends the function for that message only.
///
/// # Errors
/// [`ErrorKind::InvalidState`] from inside the function, [`ErrorKind::Busy`] while another thread sets one, and
/// [`ErrorKind::InvalidArgument`] for an unknown level.
pub fn set(
    max_level: LogLevel,
    function: impl Fn(LogLevel, &str) + Send + Sync + 'static,
) -> Result<(), Error> {
    replace(Some(Box::new(function)), max_level)
}

/// Removes the function, so that nothing is logged.
///
/// # Errors
/// As [`set`].
pub fn clear() -> Result<(), Error> {
    replace(None, LogLevel::ERROR)
}

fn replace(function: Option<Function>, max_level: LogLevel) -> Result<(), Error> {
    require()?;
    // No wait: the thread that holds the lock may be waiting for a function that sets another one.
    let mut current = match CURRENT.try_lock() {
        Ok(current) => current,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(Error::own(Status::BUSY, "log::set", "another thread is setting the log function"))
        }
    };
    let (callback, fresh): (sys::gpumem_log_function, *mut Function) = match function {
        Some(function) => (Some(deliver), Box::into_raw(Box::new(function))),
        None => (None, ptr::null_mut()),
    };
    // A missing function must not return from here: the function would leak.
    let set = || -> Result<(), Error> {
        // SAFETY: the function lives until it has been replaced.
        unsafe { call!(gpumem_log_set_function(callback, fresh.cast(), max_level.0)) }.map(drop)
    };
    let result = set();
    let unused = match result {
        Ok(()) => std::mem::replace(&mut current.0, fresh),
        Err(_) => fresh,
    };
    drop(current);
    if !unused.is_null() {
        // SAFETY: it came from a box, and C does not use it.
        let unused = unsafe { Box::from_raw(unused) };
        // Its own drop could panic.
        let _ = run_caught(move || drop(unused));
    }
    result
}
