// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Statuses and errors.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;
use std::mem::{size_of, MaybeUninit};
use std::ptr::{addr_of, addr_of_mut};

use gpumem_sys as sys;
use gpumem_sys::c_char;

use crate::codes::NativeDomain;
pub use crate::codes::Status;
use crate::library::{all, c, call, output_call};
use crate::stream::device_is_lost;
use crate::words;

impl Status {
    /// Name, cause and remedy of this status, from the library.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the library does not know the number.
    ///
    /// ```
    /// let info = gpumem::Status::BUSY.info()?;
    /// assert_eq!(info.name, "GPUMEM_ERROR_BUSY");
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    pub fn info(self) -> Result<StatusInfo, Error> {
        let mut info = sys::gpumem_status_info::default();
        // SAFETY: the struct is writable and has its own size; the texts are constants of the library, which is never
        // unloaded.
        unsafe {
            call!(gpumem_status_get_info(self.0, &mut info))?;
            Ok(StatusInfo {
                status: Self(info.status),
                name: static_text(info.name),
                cause: words::translate(static_text(info.cause)),
                remedy: words::translate(static_text(info.remedy)),
            })
        }
    }

    /// The library's name of this status. [`Status::name`] is the same without a call.
    ///
    /// # Errors
    /// If there is no library.
    pub fn library_name(self) -> Result<&'static str, Error> {
        // SAFETY: any number is allowed, and the result is a constant text.
        Ok(unsafe { static_text(c!(gpumem_status_name)(self.0)) })
    }

    /// All statuses of the library in use.
    ///
    /// # Errors
    /// If there is no library.
    pub fn all() -> Result<Vec<Self>, Error> {
        // SAFETY: any index may be given.
        all(|index| unsafe { output_call!(gpumem_status_enumerate(index)) }.map(Self))
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match crate::codes::STATUSES.iter().find(|(c, _, _)| *c == self.name()) {
            Some((_, _, value)) => formatter.write_str(value),
            None => write!(formatter, "Status({})", self.0),
        }
    }
}

/// Information about a status.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusInfo {
    /// The status.
    pub status: Status,
    /// Name of its constant in C.
    pub name: &'static str,
    /// When it is returned.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

/// # Safety
/// `text` ends with a 0 byte and is never freed.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}

/// Kind of a failure, for `match`.
///
/// The documentation of a call lists its kinds. Any call with an object can also fail with [`Closed`](Self::Closed),
/// [`StaleHandle`](Self::StaleHandle) or [`Forked`](Self::Forked), and the first ones with [`Library`](Self::Library).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value that no configuration accepts.
    InvalidArgument,
    /// The memory is of a kind that this function does not take.
    WrongKind,
    /// This instance has nothing of that name, address or id.
    NotFound,
    /// The range or relation exists already.
    AlreadyExists,
    /// The object was destroyed.
    StaleHandle,
    /// Right object, wrong moment.
    InvalidState,
    /// The processor that would act has no right to the range.
    NoAccess,
    /// In use by other work or objects; the same call may succeed later.
    Busy,
    /// The instance is closed, or the driver is shutting down.
    Closed,
    /// An object of the parent process was used in a forked child.
    Forked,
    /// The other process of a shared object has ended.
    PeerGone,
    /// The device cannot be used again until the process ends.
    DeviceLost,
    /// The progress function ended the call.
    Cancelled,
    /// Content that was kept can no longer be read.
    ContentLost,
    /// Not enough memory on the device or the host, or no address range.
    OutOfMemory,
    /// A limit or budget is used up.
    LimitExceeded,
    /// The request is valid, but this device, driver or backend cannot do it.
    Unsupported,
    /// System, driver or peer refuses this user or process.
    PermissionDenied,
    /// No usable driver, or no device.
    NoDriver,
    /// The gpumem library is missing, incompatible, or lacks a function.
    Library,
    /// Anything else, including statuses that this crate does not know.
    Internal,
}

impl ErrorKind {
    pub(crate) fn of(status: Status) -> Self {
        match status {
            Status::INVALID_ARGUMENT => Self::InvalidArgument,
            Status::WRONG_KIND => Self::WrongKind,
            Status::NOT_FOUND => Self::NotFound,
            Status::ALREADY_EXISTS => Self::AlreadyExists,
            Status::STALE_HANDLE => Self::StaleHandle,
            Status::INVALID_STATE => Self::InvalidState,
            Status::NO_ACCESS => Self::NoAccess,
            Status::BUSY => Self::Busy,
            Status::CLOSED => Self::Closed,
            Status::FORKED => Self::Forked,
            Status::PEER_GONE => Self::PeerGone,
            Status::DEVICE_LOST => Self::DeviceLost,
            Status::CANCELLED => Self::Cancelled,
            Status::CONTENT_LOST => Self::ContentLost,
            Status::OUT_OF_DEVICE_MEMORY | Status::OUT_OF_HOST_MEMORY | Status::OUT_OF_ADDRESS_SPACE => {
                Self::OutOfMemory
            }
            Status::LIMIT_EXCEEDED => Self::LimitExceeded,
            Status::UNSUPPORTED | Status::SYMBOL_MISSING => Self::Unsupported,
            Status::PERMISSION_DENIED => Self::PermissionDenied,
            Status::NO_DEVICE | Status::DRIVER_NOT_FOUND | Status::DRIVER_TOO_OLD => Self::NoDriver,
            _ => Self::Internal,
        }
    }
}

/// Reason why a call failed, complete and independent of every other call.
///
/// Match on [`kind`](Self::kind) or [`status`](Self::status); the texts are for people and may change. Formatting an
/// error calls neither the library nor a driver.
#[derive(Clone)]
#[non_exhaustive]
pub struct Error {
    // Boxed to keep a Result small.
    detail: Box<Detail>,
}

#[derive(Clone)]
struct Detail {
    kind: ErrorKind,
    status: Status,
    native_domain: NativeDomain,
    native_code: i32,
    native_name: Cow<'static, str>,
    function: Cow<'static, str>,
    entry_point: Cow<'static, str>,
    message: Cow<'static, str>,
    region: Option<usize>,
    copied: Option<u64>,
    /// What the program called, if it is not the counterpart of `function`.
    called: Option<&'static str>,
}

impl Error {
    /// Kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.detail.kind
    }

    /// Status that the call returned. A failure that this crate detects itself has the status that the library would
    /// return.
    #[must_use]
    pub fn status(&self) -> Status {
        self.detail.status
    }

    /// One line: what is wrong and what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.detail.message
    }

    /// What [`native_code`](Self::native_code) is a code of.
    #[must_use]
    pub fn native_domain(&self) -> NativeDomain {
        self.detail.native_domain
    }

    /// Code of the driver or operating system; 0 if there was none.
    #[must_use]
    pub fn native_code(&self) -> i32 {
        self.detail.native_code
    }

    /// Name of the native code, such as `CUDA_ERROR_OUT_OF_MEMORY`; empty if there was none.
    #[must_use]
    pub fn native_name(&self) -> &str {
        &self.detail.native_name
    }

    /// The function of the C interface, or of this crate, that failed. The text of the error has the name in this crate.
    #[must_use]
    pub fn function(&self) -> &str {
        &self.detail.function
    }

    /// The driver or system call that failed; empty if none was reached.
    #[must_use]
    pub fn entry_point(&self) -> &str {
        &self.detail.entry_point
    }

    /// Index of the region that failed, if the call had a batch of regions and the failure belongs to one of them.
    #[must_use]
    pub fn region(&self) -> Option<usize> {
        self.detail.region
    }

    /// Bytes that a copy between a file and memory copied before it failed, from the start on with no gap: a call for the
    /// others goes on from there. `None` if the failure is of another function.
    #[must_use]
    pub fn copied(&self) -> Option<u64> {
        self.detail.copied
    }

    /// The same failure, of what the program called.
    pub(crate) fn called_as(mut self, name: &'static str) -> Self {
        self.detail.called = Some(name);
        self
    }

    /// The same failure, with the name that an argument has in this crate, where another function has it as C has it.
    pub(crate) fn with_argument(mut self, c: &str, rust: &str) -> Self {
        if let Some(rest) = self.message().strip_prefix(c) {
            self.detail.message = format!("{rust}{rest}").into();
        }
        self
    }

    /// The same failure, with more about what to do.
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        self.detail.message = format!("{}; {note}", self.message()).into();
        self
    }

    /// What the program called.
    fn called(&self) -> &str {
        self.detail.called.unwrap_or_else(|| words::function(self.function()))
    }

    pub(crate) fn after_bytes(mut self, copied: u64) -> Self {
        self.detail.copied = Some(copied);
        self
    }

    pub(crate) fn of_region(mut self, index: usize) -> Self {
        self.detail.region = Some(index);
        self
    }

    /// A failure that this crate detects before it calls the library.
    #[cold]
    pub(crate) fn own(status: Status, function: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            detail: Box::new(Detail {
                kind: ErrorKind::of(status),
                status,
                native_domain: NativeDomain::NONE,
                native_code: 0,
                native_name: Cow::Borrowed(""),
                function: Cow::Borrowed(function),
                entry_point: Cow::Borrowed(""),
                message: message.into(),
                region: None,
                copied: None,
                called: None,
            }),
        }
    }

    #[cold]
    pub(crate) fn invalid(function: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::own(Status::INVALID_ARGUMENT, function, message)
    }

    #[cold]
    pub(crate) fn library(message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::own(Status::UNSUPPORTED, "load", message);
        error.detail.kind = ErrorKind::Library;
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.called())?;
        let mut message = self.message();
        if let Some(index) = self.region() {
            // Most messages of the library begin with it.
            message = message.strip_prefix(&*format!("regions[{index}]: ")).unwrap_or(message);
            write!(formatter, "region {index}: ")?;
        }
        formatter.write_str(message)?;
        if self.native_domain() == NativeDomain::NONE {
            Ok(())
        } else {
            write!(formatter, " ({}: {} {})", self.entry_point(), self.native_name(), self.native_code())
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A program whose `main` returns the error prints this, so what is empty is left out.
        let mut fields = formatter.debug_struct("Error");
        fields
            .field("kind", &self.kind())
            .field("status", &self.status())
            .field("function", &self.called())
            .field("message", &self.message());
        if let Some(region) = self.region() {
            fields.field("region", &region);
        }
        if let Some(copied) = self.copied() {
            fields.field("copied", &copied);
        }
        if self.native_domain() != NativeDomain::NONE {
            fields
                .field("native_domain", &self.native_domain())
                .field("native_code", &self.native_code())
                .field("native_name", &self.native_name())
                .field("entry_point", &self.entry_point());
        }
        fields.finish()
    }
}

impl std::error::Error for Error {}

#[cfg(feature = "load")]
impl From<sys::MissingSymbol> for Error {
    fn from(missing: sys::MissingSymbol) -> Self {
        Self::library(missing.to_string())
    }
}

#[cfg(feature = "load")]
impl From<sys::LoadError> for Error {
    fn from(error: sys::LoadError) -> Self {
        Self::library(match error.kind() {
            sys::LoadErrorKind::NotFound => {
                format!("{error}; check the path, install libgpumem.so.0, or set GPUMEM_LIBRARY to its path")
            }
            _ => error.to_string(),
        })
    }
}

/// A failure that returns what the call was given.
///
/// It is an error itself, so `?` passes it on as it is (to a `Box<dyn Error>`, for example), or as an [`Error`], which
/// drops what was given. To keep it, match:
///
/// ```
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// # let memory = gpumem::DeviceMemory::<u8>::new(&device, 1)?;
/// let instance = match instance.close() {
///     Ok(()) => return Ok(()),
///     Err(rejected) => {
///         println!("{}", rejected.error);
///         rejected.given
///     }
/// };
/// drop(memory);
/// instance.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub struct Rejected<B> {
    /// What the call was given, unchanged.
    pub given: B,
    /// The reason.
    pub error: Error,
}

impl<B> Rejected<B> {
    pub(crate) fn new(given: B, error: Error) -> Self {
        Self { given, error }
    }

    /// The same failure, of what the program called.
    pub(crate) fn called_as(self, name: &'static str) -> Self {
        Self { error: self.error.called_as(name), ..self }
    }

    /// The same failure, with what another layer was given.
    pub(crate) fn map<C>(self, outer: impl FnOnce(B) -> C) -> Rejected<C> {
        Rejected { given: outer(self.given), error: self.error }
    }
}

impl<B> From<Rejected<B>> for Error {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error
    }
}

impl<B> fmt::Debug for Rejected<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Rejected").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for Rejected<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl<B> std::error::Error for Rejected<B> {}

/// Makes a call of the C interface with room for the error detail.
#[inline]
pub(crate) fn check(
    call: impl FnOnce(*mut sys::gpumem_error) -> sys::gpumem_status,
) -> Result<Status, Error> {
    let mut detail = MaybeUninit::<sys::gpumem_error>::uninit();
    let place = detail.as_mut_ptr();
    // Only two words are set, because clearing all of it would cost more than the fastest calls. A call that fails
    // sets the status and everything else.
    // SAFETY: `place` is writable.
    unsafe {
        addr_of_mut!((*place).struct_size).write(size_of::<sys::gpumem_error>());
        addr_of_mut!((*place).status).write(sys::GPUMEM_SUCCESS);
    }
    let status = call(place);
    // Notes, which are positive, are not failures.
    if status < 0 {
        if status == Status::DEVICE_LOST.0 {
            device_is_lost();
        }
        // SAFETY: its status was set above.
        Err(unsafe { from_detail(Status(status), &detail) })
    } else {
        Ok(Status(status))
    }
}

/// # Safety
/// The status of `detail` is initialised; if it is not 0, everything is, and the texts end with a 0 byte.
#[cold]
unsafe fn from_detail(status: Status, detail: &MaybeUninit<sys::gpumem_error>) -> Error {
    let place = detail.as_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if addr_of!((*place).status).read() == sys::GPUMEM_SUCCESS {
            return Error::own(status, "", "");
        }
        let detail = &*place;
        Error {
            detail: Box::new(Detail {
                kind: ErrorKind::of(status),
                status,
                native_domain: NativeDomain(detail.native_domain),
                native_code: detail.native_code,
                native_name: text_at(detail.native_name.as_ptr()),
                function: text_at(detail.function.as_ptr()),
                entry_point: text_at(detail.entry_point.as_ptr()),
                message: Cow::Owned(words::translate(&text_at(detail.message.as_ptr()))),
                region: None,
                copied: None,
                called: None,
            }),
        }
    }
}

/// # Safety
/// `text` ends with a 0 byte.
unsafe fn text_at(text: *const c_char) -> Cow<'static, str> {
    // SAFETY: the caller's promise.
    Cow::Owned(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A text in a fixed array of C.
pub(crate) fn array_text(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An address that is a number, printed like a pointer.
pub(crate) struct Hexadecimal(pub(crate) u64);

impl fmt::Debug for Hexadecimal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(place: *mut sys::gpumem_error, status: i32) -> i32 {
        let mut error =
            sys::gpumem_error { status, native_domain: 2, native_code: 700, ..Default::default() };
        for (to, from) in error.message.iter_mut().zip(b"it broke") {
            *to = *from as c_char;
        }
        // SAFETY: `check` gives a writable place.
        unsafe { place.write(error) };
        status
    }

    #[test]
    fn details_are_kept() {
        let error = check(|place| fill(place, -203)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(error.status(), Status::BUSY);
        assert_eq!(error.native_domain(), NativeDomain::CUDA);
        assert_eq!(error.native_code(), 700);
        assert_eq!(error.message(), "it broke");
        assert_eq!(error.to_string(), ": it broke (:  700)");
        let copy = error.clone();
        assert_eq!(format!("{copy:?}"), format!("{error:?}"));
    }

    #[test]
    fn a_detail_that_was_not_filled_in_is_empty() {
        let error = check(|_| -987_654).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(error.status().name(), "GPUMEM_ERROR_?");
        assert_eq!(error.message(), "");
        assert_eq!(error.native_domain(), NativeDomain::NONE);
    }

    #[test]
    fn notes_are_not_errors() {
        assert_eq!(check(|place| fill(place, 1)).unwrap(), Status::NOT_READY);
        assert_eq!(check(|place| fill(place, 0)).unwrap(), Status::SUCCESS);
    }

    #[test]
    fn the_failed_region_is_part_of_the_text() {
        let error = Error::invalid("f", "no");
        assert_eq!((error.region(), error.to_string()), (None, "f: no".to_owned()));
        let error = error.of_region(2);
        assert_eq!((error.region(), error.to_string()), (Some(2), "f: region 2: no".to_owned()));
        assert!(format!("{error:?}").contains("region: 2"));
        let error = Error::invalid("f", "regions[2]: no").of_region(2);
        assert_eq!(error.to_string(), "f: region 2: no");
    }

    #[test]
    fn arrays_become_texts() {
        let mut array = [0 as c_char; 4];
        assert_eq!(array_text(&array), "");
        array[0] = b'a' as c_char;
        assert_eq!(array_text(&array), "a");
        array = [b'x' as c_char; 4];
        assert_eq!(array_text(&array), "xxxx");
        array[1] = 0xffu8 as c_char;
        assert_eq!(array_text(&array), "x\u{fffd}xx");
    }

    #[test]
    fn rejected_becomes_an_error() {
        let rejected = Rejected::new(vec![1], Error::invalid("f", "no"));
        assert_eq!(rejected.to_string(), "f: no");
        assert_eq!(Error::from(rejected).kind(), ErrorKind::InvalidArgument);
    }
}
