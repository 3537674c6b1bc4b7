// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Copies between files and memory.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::os::unix::io::AsRawFd;

use gpumem_sys as sys;

use crate::codes::{FileDirection, FileFlags};
use crate::copy::sealed::Span;
use crate::copy::{Destination, Source};
use crate::element::Element;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::instance::Instance;
use crate::library::{c, call};
use crate::size::bytes_of;
use crate::sleep::{progress_to_c, with_panics, Progress};

/// Options for copies between files and memory.
#[derive(Default)]
pub struct FileOptions<'a> {
    prefer: FileFlags,
    progress: Option<Progress<'a>>,
}

/// What [`Instance::read_file`] or [`Instance::write_file`] has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileCopied {
    /// All bytes.
    pub bytes: u64,
    /// Bytes of them that passed by the system's page cache.
    pub direct: u64,
}

impl<'a> FileOptions<'a> {
    /// Through the page cache, without progress.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Past the page cache where the file system can do that: for files that are read or written once.
    #[must_use]
    pub fn direct(mut self) -> Self {
        self.prefer = FileFlags::DIRECT;
        self
    }

    /// A function that is called before the first byte, after about each 64 MiB and at the end, with the bytes that are
    /// done and all bytes. If it breaks, the call fails with [`ErrorKind::Cancelled`]; bytes that are copied stay so. So
    /// it does if the function panics; the panic then goes on.
    #[must_use]
    pub fn progress(mut self, function: impl FnMut(u64, u64) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(function));
        self
    }
}

/// What the program called, for errors.
fn called(direction: FileDirection) -> &'static str {
    if direction == FileDirection::TO_MEMORY {
        "Instance::read_file"
    } else {
        "Instance::write_file"
    }
}

impl Instance {
    /// Reads bytes of a file, from an offset on, into the whole destination. Threads of the library read on while the
    /// device copies what they have read. Where the file stands does not change.
    ///
    /// If it fails midway, any byte of the destination may have been written; [`Error::copied`] says how many from the
    /// start on are copied.
    ///
    /// ```
    /// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
    /// # let device = instance.device(0)?;
    /// # let path = std::env::temp_dir().join(format!("gpumem-doc-{}", std::process::id()));
    /// # std::fs::write(&path, [0, 0, 1, 2, 3, 4]).unwrap();
    /// # let file = std::fs::File::open(&path).unwrap();
    /// # std::fs::remove_file(&path).unwrap();
    /// use gpumem::DeviceMemory;
    ///
    /// let weights = DeviceMemory::<u8>::new(&device, 4)?;
    /// instance.read_file(&weights, &file, 2)?;
    /// assert_eq!(weights.to_vec()?, [1, 2, 3, 4]);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the file is shorter, or no file; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::PermissionDenied`], [`ErrorKind::Cancelled`], [`ErrorKind::DeviceLost`],
    /// [`ErrorKind::OutOfMemory`] or [`ErrorKind::Internal`].
    pub fn read_file<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        file: &File,
        offset: u64,
    ) -> Result<FileCopied, Error> {
        let (direction, span) = (FileDirection::TO_MEMORY, destination.span());
        self.copy_file::<T>(direction, span, file, offset, FileOptions::new())
    }

    /// As [`read_file`](Self::read_file), with options.
    ///
    /// # Errors
    /// As [`read_file`](Self::read_file), and [`ErrorKind::Cancelled`] if the progress function broke.
    pub fn read_file_with<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        file: &File,
        offset: u64,
        options: FileOptions<'_>,
    ) -> Result<FileCopied, Error> {
        self.copy_file::<T>(FileDirection::TO_MEMORY, destination.span(), file, offset, options)
            .map_err(|error| error.called_as("Instance::read_file_with"))
    }

    /// Writes the whole source to a file, from an offset on. What is written is with the system then, not yet on the disk.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the disk is full; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`],
    /// [`ErrorKind::PermissionDenied`], [`ErrorKind::Cancelled`], [`ErrorKind::DeviceLost`],
    /// [`ErrorKind::OutOfMemory`] or [`ErrorKind::Internal`].
    pub fn write_file<T: Element + Copy>(
        &self,
        file: &File,
        offset: u64,
        source: impl Source<T>,
    ) -> Result<FileCopied, Error> {
        let (direction, span) = (FileDirection::FROM_MEMORY, source.span());
        self.copy_file::<T>(direction, span, file, offset, FileOptions::new())
    }

    /// As [`write_file`](Self::write_file), with options.
    ///
    /// # Errors
    /// As [`write_file`](Self::write_file), and [`ErrorKind::Cancelled`] if the progress function broke.
    pub fn write_file_with<T: Element + Copy>(
        &self,
        file: &File,
        offset: u64,
        source: impl Source<T>,
        options: FileOptions<'_>,
    ) -> Result<FileCopied, Error> {
        self.copy_file::<T>(FileDirection::FROM_MEMORY, source.span(), file, offset, options)
            .map_err(|error| error.called_as("Instance::write_file_with"))
    }

    /// Reads bytes of a file into memory by its address.
    ///
    /// # Safety
    /// `destination` has `bytes` writable bytes, and no Rust reference forbids the access.
    ///
    /// # Errors
    /// As [`read_file_with`](Self::read_file_with).
    pub unsafe fn read_file_raw(
        &self,
        destination: *mut c_void,
        file: &File,
        offset: u64,
        bytes: u64,
        options: FileOptions<'_>,
    ) -> Result<FileCopied, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_file_raw(FileDirection::TO_MEMORY, destination, file, offset, bytes, options) }
            .map_err(|error| error.called_as("Instance::read_file_raw"))
    }

    /// Writes memory to a file by its address.
    ///
    /// # Safety
    /// `source` has `bytes` readable bytes, and no Rust reference forbids the access.
    ///
    /// # Errors
    /// As [`write_file_with`](Self::write_file_with).
    pub unsafe fn write_file_raw(
        &self,
        file: &File,
        offset: u64,
        source: *const c_void,
        bytes: u64,
        options: FileOptions<'_>,
    ) -> Result<FileCopied, Error> {
        let source = source as *mut c_void;
        // SAFETY: the caller's promise; the library only reads.
        unsafe { self.copy_file_raw(FileDirection::FROM_MEMORY, source, file, offset, bytes, options) }
            .map_err(|error| error.called_as("Instance::write_file_raw"))
    }

    fn copy_file<T>(
        &self,
        direction: FileDirection,
        span: Span,
        file: &File,
        offset: u64,
        options: FileOptions<'_>,
    ) -> Result<FileCopied, Error> {
        let called = called(direction);
        let size = bytes_of::<T>(span.len, called)? as u64;
        let pointer = span.pointer;
        let _hold = span.held(self, called)?;
        // SAFETY: the operand has so many bytes and stays during the call, and every bit pattern is a value of its elements.
        unsafe { self.copy_file_raw(direction, pointer, file, offset, size, options) }
    }

    /// # Safety
    /// The memory has `size` bytes that can be read or written.
    unsafe fn copy_file_raw(
        &self,
        direction: FileDirection,
        pointer: *mut c_void,
        file: &File,
        offset: u64,
        size: u64,
        mut options: FileOptions<'_>,
    ) -> Result<FileCopied, Error> {
        let (progress, user_data) = progress_to_c(&mut options.progress);
        let desc = sys::gpumem_copy_file_desc {
            file_descriptor: file.as_raw_fd(),
            direction: direction.0,
            file_offset: offset,
            pointer,
            size,
            prefer: options.prefer.0,
            progress,
            user_data,
            ..Default::default()
        };
        let mut info = sys::gpumem_copy_file_info::default();
        // SAFETY: the structs have their own sizes; the rest is the caller's promise.
        with_panics(|| unsafe { call!(gpumem_copy_file(self.inner.handle, &desc, &mut info)) })
            .map_err(|error| error.after_bytes(info.copied).called_as(called(direction)))?;
        Ok(FileCopied { bytes: info.copied, direct: info.direct })
    }
}
