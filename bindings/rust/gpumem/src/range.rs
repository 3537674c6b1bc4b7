// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Ranges of addresses, and what is mapped in them.

use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::RangeBounds;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

use gpumem_sys as sys;

use crate::codes::Access;
#[cfg(doc)]
use crate::codes::Kind;
use crate::copy::sealed::{Keep, Operand, Span};
use crate::element::Element;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected};
use crate::infos::{MappingInfo, RangeInfo};
use crate::instance::{first_of, Instance, Processor};
use crate::library::{c, call, info_call, output_call};
use crate::managed::Place;
use crate::memory::Owned;
pub use crate::options::RangeOptions;
use crate::physical::Physical;
use crate::stream::Stream;
use crate::typed::{addressed_part, part_of_bytes};
use crate::uses::{busy, Parts, Use, Uses};

/// A range of addresses, into which blocks of [`Physical`] memory are mapped.
///
/// The addresses stay the same when more is mapped behind. Offsets are in bytes, from the first byte of the range.
/// Mapping, unmapping and changes of access happen at the call, not in the order of a stream.
///
/// Copies and fills take a part of it, a [`RangeSlice`]. The CPU and kernels use its addresses, which is unsafe.
///
/// Dropping it unmaps everything and gives the addresses back, once work in streams that uses it has been observed
/// complete.
///
/// ```
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let device = instance.device(0)?;
/// use gpumem::{Access, AddressRange, Physical, PhysicalOptions, Processor};
///
/// let unit = Physical::granularity(&device, &PhysicalOptions::new())?.minimum;
/// let mut range = AddressRange::reserve(&instance, 1024 * unit)?;
/// range.map(0, &[Physical::new(&device, unit)?])?;
/// range.set_access(0, unit, &[(Processor::Device(0), Access::READ_WRITE)])?;
///
/// instance.copy(range.slice(..3)?, &[1u32, 2, 3])?;
/// let mut back = [0u32; 2];
/// instance.copy(&mut back, range.slice(1..3)?)?;
/// assert_eq!(back, [2, 3]);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// A part cannot outlive the range, nor be used after its memory was unmapped:
///
/// ```compile_fail,E0502
/// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
/// # let mut range = gpumem::AddressRange::reserve(&instance, 1 << 30)?;
/// let part = range.slice::<u32>(..3)?;
/// range.unmap(0, 1 << 21)?;
/// instance.copy(part, &[1, 2, 3])?;
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct AddressRange {
    inner: Arc<RangeInner>,
}

struct RangeInner {
    owned: Owned<sys::gpumem_range_s>,
    base: *mut c_void,
    bytes: u64,
    uses: Uses,
}

// SAFETY: the base is only returned, and every function may be called from any thread.
unsafe impl Send for RangeInner {}
// SAFETY: as above.
unsafe impl Sync for RangeInner {}

impl Parts for RangeInner {
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl AddressRange {
    /// Reserves addresses, far more than there is memory if wished. Nobody can access them before something is mapped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the size is not a multiple of the granularity; otherwise
    /// [`ErrorKind::AlreadyExists`], [`ErrorKind::Unsupported`], [`ErrorKind::OutOfMemory`] or
    /// [`ErrorKind::InvalidState`].
    pub fn reserve(instance: &Instance, bytes: u64) -> Result<Self, Error> {
        Self::reserve_with_options(instance, bytes, &RangeOptions::new())
    }

    /// As [`reserve`](Self::reserve), with options.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and if an option cannot be granted.
    pub fn reserve_with_options(
        instance: &Instance,
        bytes: u64,
        options: &RangeOptions,
    ) -> Result<Self, Error> {
        let instance = instance.inner.clone();
        instance.retry();
        let mut desc = options.describe()?;
        desc.size = bytes;
        // SAFETY: the struct and its text live during the call.
        let handle = unsafe { output_call!(gpumem_range_reserve(instance.handle, &*desc)) }?;
        let (base, uses) = (ptr::null_mut(), Uses::default());
        let mut inner = RangeInner { owned: Owned { handle, instance }, base, bytes, uses };
        inner.base = info(handle)?.base;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Maps blocks one behind the other, all or none, each of them whole. Nobody has access to a new mapping, not even
    /// the device of the block; see [`set_access`](Self::set_access). A block may be mapped at several places. The
    /// mapping keeps its memory alive, so that the handles can be dropped.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if something is mapped there; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::DeviceLost`], [`ErrorKind::InvalidState`], [`ErrorKind::Busy`] or
    /// [`ErrorKind::Unsupported`].
    pub fn map<'a>(
        &mut self,
        offset: u64,
        blocks: impl IntoIterator<Item = &'a Physical>,
    ) -> Result<(), Error> {
        let blocks: Vec<_> = blocks.into_iter().collect();
        let handles: Vec<_> = blocks.iter().map(|block| block.handle()).collect();
        let first = first_of(&handles);
        // SAFETY: there are as many handles.
        unsafe { call!(gpumem_range_map(self.inner.owned.handle, offset, first, handles.len() as u64)) }
            .map(drop)
    }

    /// Unmaps whole mappings, one or several in a row. The addresses stay reserved.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses them that was not observed complete; otherwise
    /// [`ErrorKind::InvalidArgument`] or [`ErrorKind::InvalidState`].
    pub fn unmap(&mut self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.inner.uses.refuse((offset, bytes), "range", "AddressRange::unmap")?;
        // SAFETY: no safe work uses the part, and all other access is unsafe.
        unsafe { call!(gpumem_range_unmap(self.inner.owned.handle, offset, bytes)) }.map(drop)
    }

    /// Sets what processors may do with whole mappings, one or several in a row; all is set or nothing. Processors that
    /// are not named keep what they have.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses them that was not observed complete, unless everything that is
    /// set is [`Access::READ_WRITE`]; otherwise [`ErrorKind::InvalidArgument`], [`ErrorKind::InvalidState`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::LimitExceeded`] or [`ErrorKind::DeviceLost`].
    pub fn set_access(
        &mut self,
        offset: u64,
        bytes: u64,
        accesses: &[(Processor, Access)],
    ) -> Result<(), Error> {
        if takes_away(accesses) {
            self.inner.uses.refuse((offset, bytes), "range", "AddressRange::set_access")?;
        }
        let described = describe_accesses(accesses);
        let (handle, count) = (self.inner.owned.handle, described.len() as u64);
        let first = first_of(&described);
        // SAFETY: there are as many entries.
        unsafe { call!(gpumem_range_set_access(handle, offset, bytes, first, count)) }.map(drop)
    }

    /// What is mapped at an offset.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] if nothing is mapped there, and [`ErrorKind::InvalidArgument`] if the offset is
    /// outside of the range.
    pub fn mapping(&self, offset: u64) -> Result<MappingInfo, Error> {
        const FUNCTION: &str = "AddressRange::mapping";
        if offset >= self.inner.bytes {
            let bytes = self.inner.bytes;
            let message = format!("the offset is {offset}, but the range has {bytes} bytes");
            return Err(Error::invalid(FUNCTION, message));
        }
        let instance = Instance { inner: self.inner.owned.instance.clone() };
        instance.mapping(self.at(offset)).map_err(|error| error.called_as(FUNCTION))
    }

    /// Some of the elements, as an operand of copies and fills: the addresses count as an array of `T`. They need memory
    /// to which the device of the work has access; the library checks that.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if they do not lie within the addresses.
    pub fn slice<T: Element>(&self, range: impl RangeBounds<usize>) -> Result<RangeSlice<'_, T>, Error> {
        let all = (self.inner.base as u64, self.inner.bytes);
        let (offset, len) = part_of_bytes::<T>(all, &range, "AddressRange::slice")?;
        Ok(RangeSlice { range: self, start: all.0 + offset, len, elements: PhantomData })
    }

    fn at(&self, offset: u64) -> *mut c_void {
        self.inner.base.cast::<u8>().wrapping_add(offset as usize).cast()
    }

    /// The first byte. The CPU may dereference it only where memory of the host is mapped to which it has access.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.inner.base
    }

    /// Bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// Handle for calls of [`sys`](crate::sys).
    #[must_use]
    pub fn handle(&self) -> sys::gpumem_range {
        self.inner.owned.handle
    }

    /// Information about the range.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<RangeInfo, Error> {
        info(self.inner.owned.handle)
    }

    /// Unmaps everything, and gives the addresses back. Dropping it does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete. The range is returned.
    pub fn close(self) -> Result<(), Rejected<Self>> {
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(shared) => {
                return Err(Rejected::new(Self { inner: shared }, busy("range", "AddressRange::close")))
            }
        };
        inner.owned.close().map_err(|error| Rejected::new(Self { inner: Arc::new(inner) }, error))
    }
}

/// Whether someone could have more access than this sets.
pub(crate) fn takes_away(accesses: &[(Processor, Access)]) -> bool {
    accesses.iter().any(|(_, access)| *access != Access::READ_WRITE)
}

/// What processors may do, in the form that C takes.
pub(crate) fn describe_accesses(accesses: &[(Processor, Access)]) -> Vec<sys::gpumem_access_desc> {
    let describe = |(processor, access): &(Processor, Access)| {
        let (location, location_id) = match processor {
            Processor::Cpu => (sys::GPUMEM_LOCATION_HOST, 0),
            Processor::Device(ordinal) => Place::device(*ordinal).to_c(),
        };
        sys::gpumem_access_desc { location, location_id, access: access.0, ..Default::default() }
    };
    accesses.iter().map(describe).collect()
}

fn info(handle: sys::gpumem_range) -> Result<RangeInfo, Error> {
    info_call!(gpumem_range_get_info(handle) => RangeInfo)
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AddressRange")
            .field("base", &self.inner.base)
            .field("bytes", &self.inner.bytes)
            .finish()
    }
}

addressed_part! {
    /// A part of an [`AddressRange`], as an operand of copies and fills.
    RangeSlice of range: AddressRange
}

impl<T: Element> Operand for RangeSlice<'_, T> {
    fn elements(&self) -> Span {
        Span::of_slice(self.start as *mut T, self.len)
    }
    fn kept(&self, _: &Stream) -> Keep {
        let inner = &self.range.inner;
        let (offset, bytes) = (self.start - inner.base as u64, (self.len * size_of::<T>()) as u64);
        Use::begin(inner.clone(), offset, bytes).map_or(Keep::Nothing, Keep::Part)
    }
}
