// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Access to the functions of the C library: linked, or loaded when first used.

use crate::error::{Error, Status};

/// A function of the C library. With the feature `load` this returns from the caller with an error if there is none.
#[cfg(not(feature = "load"))]
macro_rules! c {
    ($name:ident) => {
        gpumem_sys::$name
    };
}
#[cfg(feature = "load")]
macro_rules! c {
    ($name:ident) => {
        crate::library::get()?.$name()?
    };
}

/// Calls a function of the C library, and adds its error parameter. Belongs in an `unsafe` block.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let function = c!($name);
        crate::error::check(|error| function($($argument,)* error))
    }};
}

/// Calls a function whose last argument is an output, of numbers or addresses, and returns what it has written there.
/// Belongs in an `unsafe` block, of which the output needs nothing.
macro_rules! output_call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let mut output = std::mem::MaybeUninit::zeroed();
        call!($name($($argument,)* output.as_mut_ptr())).map(|_| output.assume_init())
    }};
}

/// Calls a function that fills in a struct of information, whose type in this crate follows the arrow.
macro_rules! info_call {
    ($name:ident($($argument:expr),* $(,)?) => $info:ident) => {{
        let mut info = Default::default();
        // SAFETY: the struct is writable and has its own size; any handle, address and number may be given.
        unsafe { call!($name($($argument,)* &mut info)) }.map(|_| $info::of(&info))
    }};
}
pub(crate) use {c, call, info_call, output_call};

/// All that a function of the library enumerates, from the index 0 on.
pub(crate) fn all<T>(at: impl FnMut(u32) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    let known = |one: &Result<T, Error>| !matches!(one, Err(error) if error.status() == Status::NOT_FOUND);
    (0..).map(at).take_while(known).collect()
}

/// Checks that the library in use fits these declarations, before anything is opened.
#[cfg(not(feature = "load"))]
pub(crate) fn require() -> Result<(), Error> {
    // SAFETY: no arguments.
    let version = unsafe { gpumem_sys::gpumem_version() };
    let oldest = gpumem_sys::GPUMEM_MAKE_VERSION(0, 1, 0);
    if version >> 22 == gpumem_sys::GPUMEM_VERSION_MAJOR && version >= oldest {
        Ok(())
    } else {
        Err(Error::library(format!(
            "the gpumem library has version {}, but a version from 0.1.0 to below {}.0.0 is needed",
            crate::Version(version),
            gpumem_sys::GPUMEM_VERSION_MAJOR + 1
        )))
    }
}
#[cfg(feature = "load")]
pub(crate) fn require() -> Result<(), Error> {
    get().map(|_| ())
}

#[cfg(feature = "load")]
pub(crate) use loading::get;
#[cfg(feature = "load")]
pub use loading::load_from;

#[cfg(feature = "load")]
mod loading {
    use std::ffi::{CStr, CString};
    use std::os::raw::c_char;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use gpumem_sys::Library;

    use crate::error::Error;

    extern "C" {
        fn secure_getenv(name: *const c_char) -> *mut c_char;
    }

    static LIBRARY: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());

    /// The library, loaded when first used. A failure is not remembered.
    #[inline]
    pub(crate) fn get() -> Result<&'static Library, Error> {
        // SAFETY: a stored library is never freed.
        match unsafe { LIBRARY.load(Ordering::Acquire).as_ref() } {
            Some(library) => Ok(library),
            None => load_by_name(),
        }
    }

    #[cold]
    fn load_by_name() -> Result<&'static Library, Error> {
        // SAFETY: the name ends with a 0 byte. The result is NULL, also in a program with raised privileges, or a
        // text. As with every getenv, code that changes the environment must not do so now.
        let library = unsafe {
            let named = secure_getenv(b"GPUMEM_LIBRARY\0".as_ptr().cast());
            if named.is_null() || CStr::from_ptr(named).to_bytes().is_empty() {
                Library::open()
            } else {
                Library::open_path(named)
            }
        };
        Ok(keep(library?).0)
    }

    /// Stores the library, unless there is one already. Returns the stored one, and whether it is this one.
    fn keep(library: Library) -> (&'static Library, bool) {
        let fresh = Box::into_raw(Box::new(library));
        match LIBRARY.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just stored, and never freed.
            Ok(_) => (unsafe { &*fresh }, true),
            Err(known) => {
                // SAFETY: `fresh` was not stored; `known` is never freed.
                unsafe {
                    drop(Box::from_raw(fresh));
                    (&*known, false)
                }
            }
        }
    }

    /// Loads the library from a path. Call it before anything else of this crate, which would load the library that
    /// `GPUMEM_LIBRARY` in the environment names, or else the system's `libgpumem.so.0`.
    ///
    /// # Safety
    /// The file must be a build of gpumem: a library runs code when it is loaded.
    ///
    /// # Errors
    /// If it cannot be loaded, is not a gpumem library that this crate can use, or a library is in use already.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<(), Error> {
        let path = CString::new(path.as_ref().as_os_str().as_bytes())
            .map_err(|_| Error::invalid("load_from", "the path contains a 0 byte"))?;
        // SAFETY: the path ends with a 0 byte; the rest is the caller's promise.
        let library = unsafe { Library::open_path(path.as_ptr()) }?;
        if keep(library).1 {
            Ok(())
        } else {
            Err(Error::library("a gpumem library is in use already"))
        }
    }
}
