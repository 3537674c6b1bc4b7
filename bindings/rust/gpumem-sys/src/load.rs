// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The library, loaded at run time.

use core::ffi::c_void;
use core::fmt;
use core::mem;

use crate::declare::{c_char, GPUMEM_MAKE_VERSION};
use crate::functions::{gpumem_table, PFN_gpumem_table_get, PFN_gpumem_version};
use crate::types::*;

#[link(name = "dl")]
extern "C" {
    fn dlopen(path: *const c_char, mode: i32) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *mut c_char;
}

/// `RTLD_NOW`, of all systems that have the library.
const RTLD_NOW: i32 = 2;

/// Name of the system's library.
pub(crate) const NAME: &[u8] = b"libgpumem.so.0\0";

/// A loaded library: one method for each function, which returns it or an error if it is missing.
///
/// The library is never unloaded, so the functions stay valid for the life of the process.
#[derive(Clone, Copy)]
pub struct Library {
    table: gpumem_table,
    version: u32,
}

// The error contains its text, because there is no allocator; the table in the library is larger.
#[allow(unknown_lints, clippy::result_large_err)]
impl Library {
    /// Loads the system's `libgpumem.so.0`.
    ///
    /// # Errors
    /// If it cannot be loaded, or these declarations do not fit it.
    pub fn open() -> Result<Self, LoadError> {
        // SAFETY: the name ends with a 0 byte, and the library is the one whose functions are declared here.
        unsafe { Self::open_path(NAME.as_ptr().cast()) }
    }

    /// Loads the library from a path, which `dlopen` interprets.
    ///
    /// # Safety
    /// `path` is a text that ends with a 0 byte. The file is a build of gpumem: a library runs code when it is
    /// loaded, and its functions must have the types that are declared here.
    ///
    /// # Errors
    /// If it cannot be loaded, or these declarations do not fit it.
    pub unsafe fn open_path(path: *const c_char) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        let handle = unsafe { dlopen(path, RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: NULL, or a text that is valid until the next call of a dl function on this thread.
            return Err(unsafe { LoadError::new(LoadErrorKind::NotFound, dlerror()) });
        }
        // SAFETY: the names end with a 0 byte, and the symbols have these types in every version.
        let (version, table_get) = unsafe {
            (
                mem::transmute::<*mut c_void, Option<PFN_gpumem_version>>(dlsym(
                    handle,
                    b"gpumem_version\0".as_ptr().cast(),
                )),
                mem::transmute::<*mut c_void, Option<PFN_gpumem_table_get>>(dlsym(
                    handle,
                    b"gpumem_table_get\0".as_ptr().cast(),
                )),
            )
        };
        let (version, table_get) = match (version, table_get) {
            (Some(version), Some(table_get)) => (version, table_get),
            // SAFETY: the caller's promise.
            _ => return Err(unsafe { LoadError::new(LoadErrorKind::NotGpumem, path) }),
        };
        // SAFETY: no arguments.
        let version = unsafe { version() };
        let mut table = gpumem_table::default();
        // SAFETY: the table is writable and has its own size.
        let status = unsafe { table_get(GPUMEM_VERSION, &mut table, core::ptr::null_mut()) };
        if status != GPUMEM_SUCCESS || !is_compatible(version) {
            // SAFETY: the caller's promise.
            return Err(unsafe { LoadError::new(LoadErrorKind::Version(version), path) });
        }
        Ok(Self { table, version })
    }

    /// Version of the library in use, as [`GPUMEM_MAKE_VERSION`](crate::GPUMEM_MAKE_VERSION) makes it.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All functions.
    #[must_use]
    #[inline]
    pub fn table(&self) -> &gpumem_table {
        &self.table
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Library").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Whether these declarations fit a library of this version: one of the same major version that is not older than the
/// first release.
#[must_use]
pub(crate) const fn is_compatible(version: u32) -> bool {
    version >> 22 == GPUMEM_VERSION_MAJOR && version >= GPUMEM_MAKE_VERSION(0, 1, 0)
}

/// A function that the library in use does not have, because it is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingSymbol {
    name: &'static str,
}

impl MissingSymbol {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name }
    }

    /// Name of the function.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Display for MissingSymbol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the gpumem library in use has no {}; it is too old for this call", self.name)
    }
}

/// Why the library cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// There is no such file, or it cannot be loaded.
    NotFound,
    /// The file is a library, but not gpumem.
    NotGpumem,
    /// It is gpumem, but these declarations do not fit its version.
    Version(u32),
}

/// Why the library cannot be used, with the text of the dynamic loader.
#[derive(Clone, Copy)]
pub struct LoadError {
    kind: LoadErrorKind,
    /// Text of the dynamic loader, or the path of what it has loaded.
    text: [u8; 256],
    length: usize,
}

impl LoadError {
    /// # Safety
    /// `text` is NULL or ends with a 0 byte.
    unsafe fn new(kind: LoadErrorKind, text: *const c_char) -> Self {
        let mut error = Self { kind, text: [0; 256], length: 0 };
        if !text.is_null() {
            for (index, byte) in error.text.iter_mut().enumerate() {
                // SAFETY: no byte before this one was the last.
                let next = unsafe { *text.add(index) };
                if next == 0 {
                    break;
                }
                *byte = next as u8;
                error.length = index + 1;
            }
        }
        error
    }

    /// Kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> LoadErrorKind {
        self.kind
    }

    /// Text of the dynamic loader; empty if the loader did not fail.
    #[must_use]
    pub fn loader_text(&self) -> &str {
        match self.kind {
            LoadErrorKind::NotFound => self.text(),
            _ => "",
        }
    }

    fn text(&self) -> &str {
        let bytes = self.text.get(..self.length).unwrap_or_default();
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                core::str::from_utf8(bytes.get(..error.valid_up_to()).unwrap_or_default()).unwrap_or_default()
            }
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            LoadErrorKind::NotFound => {
                write!(formatter, "the gpumem library cannot be loaded: {}", self.loader_text())
            }
            LoadErrorKind::NotGpumem => {
                let path = self.text();
                write!(formatter, "the library that was loaded is not gpumem: {path} has no gpumem_table_get")
            }
            LoadErrorKind::Version(version) => write!(
                formatter,
                "the gpumem library {} has version {}.{}.{}, but a version from 0.1.0 to below {}.0.0 is needed",
                self.text(),
                version >> 22,
                (version >> 12) & 0x3ff,
                version & 0xfff,
                GPUMEM_VERSION_MAJOR + 1
            ),
        }
    }
}

impl fmt::Debug for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LoadError")
            .field("kind", &self.kind)
            .field("text", &self.loader_text())
            .finish()
    }
}
