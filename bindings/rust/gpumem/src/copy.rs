// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Copies and fills, and their operands.

use std::mem::{size_of, MaybeUninit};
use std::ops::RangeBounds;
use std::os::raw::c_void;
use std::ptr;
use std::sync::atomic::{
    AtomicI16, AtomicI32, AtomicI64, AtomicI8, AtomicIsize, AtomicU16, AtomicU32, AtomicU64, AtomicU8,
    AtomicUsize,
};
use std::sync::Arc;

use gpumem_sys as sys;

use crate::buffer::{Buffer, BufferSlice, Hold};
use crate::codes::{Direction, SourceOrder};
use crate::element::{Atomic, Element, FillValue};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected};
use crate::instance::{first_of, Instance};
use crate::library::{c, call};
use crate::managed::{check_owner, Managed};
use crate::memory::Memory;
use crate::pool::{PoolBlock, PoolSlice};
use crate::range::RangeSlice;
use crate::ring::RingSlice;
use crate::share::ImportedSlice;
use crate::size::{bytes_of, check_box, check_rectangle};
use crate::stream::Stream;
use crate::typed::{part_of, Block, DeviceMemory, DeviceSlice, Part, Pinned, Registered, WriteCombined};

pub(crate) mod sealed {
    use std::os::raw::c_void;
    use std::sync::{Arc, Weak};

    use gpumem_sys as sys;

    use crate::buffer::{Hold, Unusable};
    use crate::memory::Memory;
    use crate::pool::PoolInner;
    use crate::stream::{Stream, StreamInner};
    use crate::uses::Use;

    /// The elements of an operand.
    pub struct Span {
        pub pointer: *mut c_void,
        pub len: usize,
        /// The memory that they lie in; NULL if it is not an object of the library.
        pub memory: sys::gpumem_memory,
        /// Bytes from the start of `memory` to the first element.
        pub offset: u64,
        /// The instance of managed memory, which alone knows who may access it; NULL for other memory.
        pub owner: sys::gpumem_instance,
        /// Keeps the elements in their place during the call; or the reason why they cannot be used now.
        pub hold: Result<Option<Hold>, Unusable>,
    }

    /// An object that must live until enqueued work has been observed complete.
    pub enum Keep {
        /// Nothing: there are no bytes.
        Nothing,
        /// An allocation.
        Memory(Memory),
        /// A part of a range of addresses or of a buffer.
        Part(Use),
        /// The pool of a block that is freed in the order of the work.
        Pool(Arc<PoolInner>),
        /// A ring, a slot of which is used: that of the message with this number.
        Slot(Arc<dyn Send + Sync>, u64),
        /// A share that keeps others from writing the array.
        Shared(Arc<dyn Send + Sync>),
        /// A function that may not have run.
        Function(Arc<dyn Discard>),
        /// Nothing, but once the work is observed complete, so is the work of another stream up to a number.
        Earlier(Weak<StreamInner>, u64),
    }

    /// A function that can be dropped without having run.
    pub trait Discard: Send + Sync {
        fn discard(&self);
    }

    /// Elements that copies use, and work in streams.
    pub trait Operand {
        fn elements(&self) -> Span;
        /// What a stream keeps, into which work with this is about to be enqueued.
        fn kept(&self, stream: &Stream) -> Keep;
    }

    /// An array of which copies use parts, given by the first index and the number of elements.
    pub trait Whole {
        fn len(&self) -> usize;
        fn elements_of(&self, start: usize, len: usize) -> Span;
        fn kept_of(&self, start: usize, len: usize, stream: &Stream) -> Keep;
    }

    pub trait Source<T> {
        fn span(&self) -> Span;
    }
    pub trait Destination<T> {
        fn span(&mut self) -> Span;
    }
    #[cfg_attr(
        gpumem_diagnostics,
        diagnostic::on_unimplemented(
            message = "work in a stream cannot use `{Self}`",
            label = "the work runs later, and nothing would keep this from being freed or accessed until then",
            note = "a stream takes `Pinned`, `WriteCombined`, `Registered` and `Managed` arrays by value, `into_part` of them, an `Arc` of one as a source, `&DeviceMemory`, `DeviceSlice`, `RangeSlice`, `RingSlice`, `ImportedSlice`, `&Buffer`, `BufferSlice`, `&PoolBlock` and `PoolSlice`, and `&Pinned`, `PinnedSlice`, `&Registered` and `RegisteredSlice` of atomics; from a slice there is `Stream::copy_from_slice`"
        )
    )]
    pub trait Enqueue {
        /// What the [`Pending`](crate::Pending) keeps, and its wait returns.
        type Returned: 'static;
        /// What the stream keeps, into which work with this is about to be enqueued.
        fn keep(&self, stream: &Stream) -> Keep;
        fn returned(self) -> Self::Returned;
    }
}
use sealed::{Keep, Operand, Span, Whole};

impl Span {
    /// What keeps the operand in its place during a call of this function.
    pub(crate) fn held(self, instance: &Instance, function: &'static str) -> Result<Option<Hold>, Error> {
        check_owner(self.owner, instance, function)?;
        self.hold.map_err(|why| why.error(function))
    }

    pub(crate) fn of_slice<T>(pointer: *mut T, len: usize) -> Self {
        let (memory, owner) = (ptr::null_mut(), ptr::null_mut());
        Self { pointer: pointer.cast(), len, memory, offset: 0, owner, hold: Ok(None) }
    }

    /// `len` elements of a block, from the index `start` on.
    fn of_block<T: Element>(block: &Block<T>, start: usize, len: usize) -> Self {
        Self {
            pointer: block.start().wrapping_add(start).cast(),
            len,
            memory: block.memory().map_or(ptr::null_mut(), |memory| memory.handle()),
            offset: (start * size_of::<T>()) as u64,
            owner: block.memory().map_or(ptr::null_mut(), Memory::managed_by),
            hold: Ok(None),
        }
    }

    fn describe(&self, row_pitch: u64, slice_pitch: u64) -> sys::gpumem_copy_operand {
        let mut operand = sys::gpumem_copy_operand { row_pitch, slice_pitch, ..Default::default() };
        if self.memory.is_null() {
            operand.pointer = self.pointer;
        } else {
            operand.memory = self.memory;
            operand.offset = self.offset;
        }
        operand
    }
}

/// An operand that a copy of elements `T` can read: `&[T]`, `&Vec<T>`, an array in any kind of memory by reference,
/// or a part of device memory, of a buffer, of a block of a pool, of a range of addresses or of imported memory; and
/// [`Atomic`]s, as their numbers. A stream also takes arrays by value; see [`Enqueue`].
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "`{Self}` cannot be the source of this copy",
        label = "the copy cannot read this",
        note = "a source is a slice, `&Vec` or `&[_; N]`, a reference to an array in any kind of memory, a `DeviceSlice`, `BufferSlice`, `PoolSlice`, `RangeSlice`, `RingSlice` or `ImportedSlice`, whose elements have the type of those of the destination; a stream also takes arrays by value"
    )
)]
pub trait Source<T>: sealed::Source<T> {}
impl<T, S: sealed::Source<T>> Source<T> for S {}

/// An operand that a copy of elements `T` can write: `&mut [T]`, `&mut [MaybeUninit<T>]`, an array in any kind of
/// memory by unique reference, device memory, a buffer, a block of a pool, or a part of these by any reference, or a part of a range of
/// addresses or of imported memory; and [`Atomic`]s, as their numbers, by shared reference. A stream also takes arrays by
/// value; see [`Enqueue`].
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "`{Self}` cannot be the destination of this copy or fill",
        label = "the call cannot write this",
        note = "a destination is `&mut` to a slice, `Vec` or array in host memory, `&DeviceMemory`, `&Buffer`, `&PoolBlock`, a `DeviceSlice`, `BufferSlice`, `PoolSlice`, `RangeSlice`, `RingSlice` or `ImportedSlice`, whose elements have the type of those of the source; a stream also takes arrays by value"
    )
)]
pub trait Destination<T>: sealed::Destination<T> {}
impl<T, D: sealed::Destination<T>> Destination<T> for D {}

/// An operand of work that runs later, which nothing can free or access in the meantime:
///
/// * [`Pinned`], [`WriteCombined`], [`Registered`] and [`Managed`] by value, or a part of one
///   ([`into_part`](Pinned::into_part)): the arrays are returned once the work is observed complete;
/// * an `Arc` of these as a source: nothing else can have it exclusively while the work runs;
/// * [`&DeviceMemory`](DeviceMemory), [`DeviceSlice`], [`RangeSlice`], [`RingSlice`] and [`ImportedSlice`]: safe code of the CPU cannot
///   access it, and the stream keeps it alive;
/// * [`&Buffer`](Buffer), [`BufferSlice`], [`&PoolBlock`](PoolBlock) and [`PoolSlice`]: the same, since they give the CPU nothing
///   that a stream uses;
/// * [`&Pinned`](Pinned) and [`&Registered`](Registered) arrays of [`Atomic`]s, and their [`slice`](Pinned::slice)s: other
///   threads may use the atomics meanwhile. Until the work has been observed complete, they may load any mix of old and new
///   bytes, also of one number, since a copy is not atomic.
///
/// Ordinary slices are not among them; see [`Stream::copy_from_slice`].
pub trait Enqueue: sealed::Enqueue {}
impl<E: sealed::Enqueue> Enqueue for E {}

/// What an operand of work becomes once the work is complete: an array, or a share of one, is returned as it was
/// given. A reference to device memory becomes `()`, so that work in a stream borrows nothing.
pub type Returned<O> = <O as sealed::Enqueue>::Returned;

/// A part of an array that work in a stream takes by value, as made by [`Pinned::into_part`]. The wait returns the whole
/// array.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{DeviceMemory, Pinned, Stream};
///
/// let stream = Stream::new(&device)?;
/// let memory = DeviceMemory::<u8>::new(&device, 2)?;
/// let staging = Pinned::from_slice(&device, &[1, 2, 3, 4])?;
/// let (_, staging) = stream.copy(&memory, staging.into_part(1..3)?)?.wait()?;
/// assert_eq!(memory.to_vec()?, [2, 3]);
/// assert_eq!(staging.len(), 4);
/// # Ok::<(), gpumem::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct OwnedPart<A> {
    array: A,
    /// Index of the first element.
    start: usize,
    len: usize,
}

impl<A> OwnedPart<A> {
    /// Number of elements of the part.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the part has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole array.
    #[must_use]
    pub fn into_array(self) -> A {
        self.array
    }
}

impl<W: Whole> Operand for W {
    fn elements(&self) -> Span {
        self.elements_of(0, self.len())
    }
    fn kept(&self, stream: &Stream) -> Keep {
        self.kept_of(0, self.len(), stream)
    }
}

impl<W: Whole> Operand for Part<'_, W> {
    fn elements(&self) -> Span {
        self.whole.elements_of(self.start, self.len)
    }
    fn kept(&self, stream: &Stream) -> Keep {
        self.whole.kept_of(self.start, self.len, stream)
    }
}

impl<A: Whole> Operand for OwnedPart<A> {
    fn elements(&self) -> Span {
        self.array.elements_of(self.start, self.len)
    }
    fn kept(&self, stream: &Stream) -> Keep {
        self.array.kept_of(self.start, self.len, stream)
    }
}

macro_rules! arrays {
    ($($name:ident)*) => {$(
        impl<T: Element> Whole for $name<T> {
            fn len(&self) -> usize {
                self.block().len
            }
            fn elements_of(&self, start: usize, len: usize) -> Span {
                Span::of_block(self.block(), start, len)
            }
            fn kept_of(&self, _: usize, _: usize, _: &Stream) -> Keep {
                self.memory().map_or(Keep::Nothing, |memory| Keep::Memory(memory.share()))
            }
        }
    )*};
}
arrays! {
    DeviceMemory Pinned WriteCombined Registered Managed
}

macro_rules! sources {
    ($($source:ty;)*) => {$(
        impl<T: Element + Copy> sealed::Source<T> for $source {
            fn span(&self) -> Span {
                self.elements()
            }
        }
    )*};
}

macro_rules! destinations {
    ($($destination:ty;)*) => {$(
        impl<T: Element + Copy> sealed::Destination<T> for $destination {
            fn span(&mut self) -> Span {
                self.elements()
            }
        }
    )*};
}

/// What is borrowed during a call only: the stream keeps what it needs of it.
macro_rules! borrowed {
    ($([$element:ident: $bound:ident] $operand:ty;)*) => {$(
        impl<$element: $bound> sealed::Enqueue for $operand {
            type Returned = ();
            fn returned(self) {}
            fn keep(&self, stream: &Stream) -> Keep {
                self.kept(stream)
            }
        }
    )*};
    ($($operand:ty;)*) => {
        sources! { $($operand;)* }
        destinations! { $($operand;)* }
        $(borrowed! { [T: Element] $operand; })*
    };
}
borrowed! {
    &DeviceMemory<T>;
    DeviceSlice<'_, T>;
    RangeSlice<'_, T>;
    RingSlice<'_, T>;
    ImportedSlice<'_, T>;
    &Buffer<T>;
    BufferSlice<'_, T>;
    &PoolBlock<T>;
    PoolSlice<'_, T>;
}

macro_rules! host_arrays {
    ($($name:ident;)*) => {$(
        sources! { $name<T>; &$name<T>; &mut $name<T>; Arc<$name<T>>; OwnedPart<$name<T>>; }
        destinations! { $name<T>; &mut $name<T>; OwnedPart<$name<T>>; }

        impl<T: Element> $name<T> {
            /// A part of the array for work in a stream, whose wait returns the whole array.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`] if the range exceeds the array. The array is
            /// returned.
            pub fn into_part(self, range: impl RangeBounds<usize>) -> Result<OwnedPart<Self>, Rejected<Self>> {
                match part_of(self.len(), &range, concat!(stringify!($name), "::into_part")) {
                    Ok((start, len)) => Ok(OwnedPart { array: self, start, len }),
                    Err(error) => Err(Rejected::new(self, error)),
                }
            }
        }

        impl<T: Element + Copy> sealed::Enqueue for $name<T> {
            type Returned = Self;
            fn returned(self) -> Self {
                self
            }
            fn keep(&self, stream: &Stream) -> Keep {
                self.kept(stream)
            }
        }
        impl<T: Element + Copy + Send + Sync> sealed::Enqueue for Arc<$name<T>> {
            type Returned = Self;
            fn returned(self) -> Self {
                self
            }
            fn keep(&self, _: &Stream) -> Keep {
                Keep::Shared(self.clone())
            }
        }
    )*};
}
host_arrays! {
    Pinned;
    WriteCombined;
    Registered;
    Managed;
}
destinations! {
    Pinned<MaybeUninit<T>>;
    &mut Pinned<MaybeUninit<T>>;
    Managed<MaybeUninit<T>>;
    &mut Managed<MaybeUninit<T>>;
}

impl<A: sealed::Enqueue> sealed::Enqueue for OwnedPart<A> {
    type Returned = A::Returned;
    fn returned(self) -> A::Returned {
        self.array.returned()
    }
    fn keep(&self, stream: &Stream) -> Keep {
        self.array.keep(stream)
    }
}

macro_rules! slices {
    ($([$($generic:tt)*] $source:ty;)*) => {$(
        impl<T: Element + Copy, $($generic)*> sealed::Source<T> for $source {
            fn span(&self) -> Span {
                Span::of_slice(self.as_ptr() as *mut T, self.len())
            }
        }
    )*};
}
slices! {
    [] &[T];
    [] &mut [T];
    [] &Vec<T>;
    [const N: usize] &[T; N];
}

macro_rules! mutable_slices {
    ($([$($generic:tt)*] $destination:ty;)*) => {$(
        impl<T: Element + Copy, $($generic)*> sealed::Destination<T> for $destination {
            fn span(&mut self) -> Span {
                Span::of_slice(self.as_mut_ptr(), self.len())
            }
        }
    )*};
}
mutable_slices! {
    [] &mut [T];
    [] &mut [MaybeUninit<T>];
    [] &mut Vec<T>;
    [const N: usize] &mut [T; N];
    [const N: usize] &mut [MaybeUninit<T>; N];
}

// Atomics may change while they are shared, so a copy writes them through a shared reference. Nothing gives a `&mut` to
// those of an array while work uses it. For whole arrays and slices as sources there is an impl for each atomic: one for
// all would overlap with that for numbers.
impl<A: Atomic> sealed::Destination<A::Number> for &[A] {
    fn span(&mut self) -> Span {
        Span::of_slice(self.as_ptr() as *mut A::Number, self.len())
    }
}
macro_rules! atomic_arrays {
    ($($name:ident;)*) => {$(
        impl<A: Atomic> sealed::Source<A::Number> for Part<'_, $name<A>> {
            fn span(&self) -> Span {
                self.elements()
            }
        }
        impl<A: Atomic> sealed::Destination<A::Number> for Part<'_, $name<A>> {
            fn span(&mut self) -> Span {
                self.elements()
            }
        }
        impl<A: Atomic> sealed::Destination<A::Number> for &$name<A> {
            fn span(&mut self) -> Span {
                self.elements()
            }
        }
        borrowed! { [A: Atomic] Part<'_, $name<A>>; }
        borrowed! { [A: Atomic] &$name<A>; }
    )*};
}
atomic_arrays! {
    Pinned;
    Registered;
}
macro_rules! atomic_sources {
    ($($atomic:ident)*) => {$(
        impl sealed::Source<<$atomic as Atomic>::Number> for &[$atomic] {
            fn span(&self) -> Span {
                Span::of_slice(self.as_ptr() as *mut $atomic, self.len())
            }
        }
        atomic_sources!(@array Pinned<$atomic>, $atomic);
        atomic_sources!(@array Registered<$atomic>, $atomic);
    )*};
    (@array $array:ty, $atomic:ident) => {
        impl sealed::Source<<$atomic as Atomic>::Number> for &$array {
            fn span(&self) -> Span {
                self.elements()
            }
        }
    };
}
atomic_sources! {
    AtomicU8 AtomicI8 AtomicU16 AtomicI16 AtomicU32 AtomicI32 AtomicU64 AtomicI64 AtomicUsize AtomicIsize
}

/// Options for a copy by addresses.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Direction of the copy.
    pub direction: Direction,
    /// When a stream may read the source. A copy without a stream ignores it.
    pub source_order: SourceOrder,
}

impl CopyOptions {
    /// The defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self { direction: Direction::INFER, source_order: SourceOrder::STREAM }
    }

    pub(crate) fn describe(self) -> sys::gpumem_copy_options {
        sys::gpumem_copy_options {
            direction: self.direction.0,
            source_order: self.source_order.0,
            ..Default::default()
        }
    }
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A rectangle of elements: `height` rows of `width` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// Elements of a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Elements from one row of the destination to the next, at least `width`.
    pub destination_pitch: usize,
    /// Elements from one row of the source to the next, at least `width`. Fills ignore it.
    pub source_pitch: usize,
}

/// A box of elements to copy: `depth` slices of `height` rows of `width` elements.
///
/// Each operand begins at the first element of the box. [`Instance::copy_regions`] and [`Stream::copy_regions`] copy
/// batches of them.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Region<D, S> {
    /// Operand to write.
    pub destination: D,
    /// Operand to read; it must share no element with the destination.
    pub source: S,
    width: usize,
    height: usize,
    depth: usize,
    destination_pitches: Pitches,
    source_pitches: Pitches,
}

/// Elements from one row to the next, and from one slice to the next; 0 means no gap.
#[derive(Clone, Copy, Debug, Default)]
struct Pitches {
    row: usize,
    slice: usize,
}

impl<D, S> Region<D, S> {
    /// A single row of `width` elements.
    pub const fn new(destination: D, source: S, width: usize) -> Self {
        let none = Pitches { row: 0, slice: 0 };
        Self {
            destination,
            source,
            width,
            height: 1,
            depth: 1,
            destination_pitches: none,
            source_pitches: none,
        }
    }

    /// Number of rows of a slice. 0 copies nothing.
    pub fn height(mut self, rows: usize) -> Self {
        self.height = rows;
        self
    }

    /// Number of slices. 0 copies nothing.
    pub fn depth(mut self, slices: usize) -> Self {
        self.depth = slices;
        self
    }

    /// Elements from one row of the destination to the next, at least the width; 0, the default, means the width.
    pub fn destination_row_pitch(mut self, elements: usize) -> Self {
        self.destination_pitches.row = elements;
        self
    }

    /// Elements from one slice of the destination to the next, at least what the rows of a slice span; 0, the
    /// default, means the height times the row pitch.
    pub fn destination_slice_pitch(mut self, elements: usize) -> Self {
        self.destination_pitches.slice = elements;
        self
    }

    /// Elements from one row of the source to the next, at least the width; 0, the default, means the width.
    pub fn source_row_pitch(mut self, elements: usize) -> Self {
        self.source_pitches.row = elements;
        self
    }

    /// Elements from one slice of the source to the next, at least what the rows of a slice span; 0, the default,
    /// means the height times the row pitch.
    pub fn source_slice_pitch(mut self, elements: usize) -> Self {
        self.source_pitches.slice = elements;
        self
    }

    /// The same region with what its operands become.
    pub(crate) fn returned(self) -> Region<Returned<D>, Returned<S>>
    where
        D: Enqueue,
        S: Enqueue,
    {
        Region {
            destination: self.destination.returned(),
            source: self.source.returned(),
            width: self.width,
            height: self.height,
            depth: self.depth,
            destination_pitches: self.destination_pitches,
            source_pitches: self.source_pitches,
        }
    }

    fn side<T>(
        &self,
        name: &str,
        span: &Span,
        pitches: Pitches,
        function: &'static str,
    ) -> Result<sys::gpumem_copy_operand, Error> {
        let extent = (self.width, self.height, self.depth);
        check_box(name, span.len, extent, (pitches.row, pitches.slice), function)?;
        let row_pitch = bytes_of::<T>(pitches.row, function)? as u64;
        Ok(span.describe(row_pitch, bytes_of::<T>(pitches.slice, function)? as u64))
    }

    fn describe<T: Element + Copy>(
        &mut self,
        holds: &mut Vec<Option<Hold>>,
        instance: &Instance,
        function: &'static str,
    ) -> Result<sys::gpumem_copy_region, Error>
    where
        D: Destination<T>,
        S: Source<T>,
    {
        let (to, from) = (self.destination.span(), self.source.span());
        let destination = self.side::<T>("destination", &to, self.destination_pitches, function)?;
        let source = self.side::<T>("source", &from, self.source_pitches, function)?;
        if size_of::<T>() == 0 || self.width == 0 || self.height == 0 || self.depth == 0 {
            // In C, a width of 0 makes a region empty.
            return Ok(sys::gpumem_copy_region::default());
        }
        holds.extend([to.held(instance, function)?, from.held(instance, function)?]);
        Ok(sys::gpumem_copy_region {
            destination,
            source,
            width: (self.width * size_of::<T>()) as u64,
            height: self.height as u64,
            depth: self.depth as u64,
            ..Default::default()
        })
    }
}

/// Regions in the form that C takes, after their boxes were checked against their operands.
pub(crate) struct Described {
    pub(crate) regions: Vec<sys::gpumem_copy_region>,
    _holds: Vec<Option<Hold>>,
}

pub(crate) fn describe_regions<T: Element + Copy, D: Destination<T>, S: Source<T>>(
    regions: &mut [Region<D, S>],
    instance: &Instance,
    function: &'static str,
) -> Result<Described, Error> {
    let mut holds = Vec::new();
    let described = regions.iter_mut().enumerate();
    let described = described
        .map(|(index, region)| {
            region.describe::<T>(&mut holds, instance, function).map_err(|error| error.of_region(index))
        })
        .collect::<Result<_, _>>()?;
    Ok(Described { regions: described, _holds: holds })
}

/// Adds the index of the region that failed to an error of a batch.
fn failed_region(error: Error, index: u64, count: usize) -> Error {
    match usize::try_from(index) {
        Ok(index) if index < count => error.of_region(index),
        _ => error,
    }
}

/// Where copies and fills run.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// In the call, which returns when the work is done.
    Instance(&'a Instance),
    /// Later, in stream order.
    Stream(&'a Stream),
}

/// A copy whose operands have been compared.
pub(crate) struct CheckedCopy {
    destination: *mut c_void,
    source: *const c_void,
    rows: Rows,
    _holds: [Option<Hold>; 2],
}

/// A fill whose operand has been checked.
pub(crate) struct CheckedFill {
    destination: *mut c_void,
    rows: Rows,
    value: (u32, u32),
    _hold: Option<Hold>,
}

/// Sizes in bytes.
#[derive(Clone, Copy)]
enum Rows {
    One { bytes: u64 },
    Many { width: u64, height: u64, destination_pitch: u64, source_pitch: u64 },
}

impl Rows {
    fn one<T>(len: usize, function: &'static str) -> Result<Self, Error> {
        Ok(Self::One { bytes: bytes_of::<T>(len, function)? as u64 })
    }

    fn many<T>(rectangle: &Rectangle, function: &'static str) -> Result<Self, Error> {
        Ok(Self::Many {
            width: bytes_of::<T>(rectangle.width, function)? as u64,
            height: rectangle.height as u64,
            destination_pitch: bytes_of::<T>(rectangle.destination_pitch, function)? as u64,
            source_pitch: bytes_of::<T>(rectangle.source_pitch, function)? as u64,
        })
    }

    fn is_empty(self) -> bool {
        match self {
            Self::One { bytes } => bytes == 0,
            Self::Many { width, height, .. } => width == 0 || height == 0,
        }
    }
}

impl CheckedCopy {
    /// A copy of all elements, or of a rectangle of them.
    pub(crate) fn new<T: Element + Copy>(
        destination: &mut impl Destination<T>,
        source: &impl Source<T>,
        rectangle: Option<&Rectangle>,
        instance: &Instance,
        function: &'static str,
    ) -> Result<Self, Error> {
        let (to, from) = (destination.span(), source.span());
        let rows = match rectangle {
            Some(rectangle) => {
                let extent = (rectangle.width, rectangle.height);
                check_rectangle("destination", to.len, rectangle.destination_pitch, extent, function)?;
                check_rectangle("source", from.len, rectangle.source_pitch, extent, function)?;
                Rows::many::<T>(rectangle, function)?
            }
            None if to.len != from.len => {
                let message = format!(
                    "the destination has {} elements and the source {}; pass a slice of the larger one",
                    to.len, from.len
                );
                return Err(Error::invalid(function, message));
            }
            None => Rows::one::<T>(to.len, function)?,
        };
        Ok(Self {
            destination: to.pointer,
            source: from.pointer,
            rows,
            _holds: [to.held(instance, function)?, from.held(instance, function)?],
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// # Safety
    /// In a stream: the operands live, and nothing else accesses them, until the work has been observed complete.
    pub(crate) unsafe fn run(&self, target: Target<'_>, options: &CopyOptions) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let (to, from) = (self.destination, self.source);
        // SAFETY: the operands were checked when this was created; the rest is the caller's promise.
        unsafe {
            match (self.rows, target) {
                (Rows::One { bytes }, Target::Instance(instance)) => {
                    instance.copy_raw(to, from, bytes, options)
                }
                (Rows::One { bytes }, Target::Stream(stream)) => stream.copy_raw(to, from, bytes, options),
                (Rows::Many { width, height, destination_pitch, source_pitch }, target) => {
                    let (to, from, extent) = ((to, destination_pitch), (from, source_pitch), (width, height));
                    match target {
                        Target::Instance(instance) => instance.copy_2d_raw(to, from, extent, options),
                        Target::Stream(stream) => stream.copy_2d_raw(to, from, extent, options),
                    }
                }
            }
        }
    }
}

impl CheckedFill {
    /// A fill of all elements, or of a rectangle of them, with a value that comes with its size.
    pub(crate) fn new<T: Element + Copy>(
        destination: &mut impl Destination<T>,
        value: (u32, u32),
        rectangle: Option<&Rectangle>,
        instance: &Instance,
        function: &'static str,
    ) -> Result<Self, Error> {
        let to = destination.span();
        let rows = match rectangle {
            Some(rectangle) => {
                let extent = (rectangle.width, rectangle.height);
                check_rectangle("destination", to.len, rectangle.destination_pitch, extent, function)?;
                Rows::many::<T>(rectangle, function)?
            }
            None => Rows::one::<T>(to.len, function)?,
        };
        Ok(Self { destination: to.pointer, rows, value, _hold: to.held(instance, function)? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// # Safety
    /// As [`CheckedCopy::run`].
    pub(crate) unsafe fn run(&self, target: Target<'_>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let (to, value) = (self.destination, self.value);
        // SAFETY: the operand was checked when this was created; the rest is the caller's promise.
        unsafe {
            match (self.rows, target) {
                (Rows::One { bytes }, Target::Instance(instance)) => instance.fill_raw(to, bytes, value),
                (Rows::One { bytes }, Target::Stream(stream)) => stream.fill_raw(to, bytes, value),
                (Rows::Many { width, height, destination_pitch, .. }, target) => {
                    let (to, extent) = ((to, destination_pitch), (width, height));
                    match target {
                        Target::Instance(instance) => instance.fill_2d_raw(to, extent, value),
                        Target::Stream(stream) => stream.fill_2d_raw(to, extent, value),
                    }
                }
            }
        }
    }
}

/// The copies and fills of an instance return when they are done. They are not ordered against any stream: work that
/// they depend on must have been observed complete.
impl Instance {
    /// Copies elements between any two kinds of memory. Both operands have the same number of elements.
    ///
    /// ```
    /// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
    /// # let device = instance.device(0)?;
    /// let memory = gpumem::DeviceMemory::<u16>::new(&device, 3)?;
    /// instance.copy(&memory, &[1, 2, 3])?;
    /// let mut back = [0; 2];
    /// instance.copy(&mut back, memory.as_slice())
    ///     .expect_err("the numbers of elements differ");
    /// instance.copy(&mut back, memory.slice(1..)?)?;
    /// assert_eq!(back, [2, 3]);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the numbers of elements differ; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or
    /// [`ErrorKind::OutOfMemory`].
    pub fn copy<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        source: impl Source<T>,
    ) -> Result<(), Error> {
        let copy = CheckedCopy::new(&mut destination, &source, None, self, "Instance::copy")?;
        // SAFETY: the work is done when the call returns.
        unsafe { copy.run(Target::Instance(self), &CopyOptions::new()) }
    }

    /// Copies a rectangle of elements.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it does not lie within its operands; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`], [`ErrorKind::OutOfMemory`]
    /// or [`ErrorKind::Unsupported`].
    pub fn copy_2d<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        source: impl Source<T>,
        rectangle: &Rectangle,
    ) -> Result<(), Error> {
        let copy = CheckedCopy::new(&mut destination, &source, Some(rectangle), self, "Instance::copy_2d")?;
        // SAFETY: the work is done when the call returns.
        unsafe { copy.run(Target::Instance(self), &CopyOptions::new()) }
    }

    /// Copies a batch of regions, in any order and possibly at the same time: no region may write elements that
    /// another one reads or writes.
    ///
    /// Every region is checked before any is copied. If one fails its check, nothing is copied. If the backend fails
    /// midway, the regions before the failed one are copied, the failed one may be copied in part, and later ones are
    /// not.
    ///
    /// ```
    /// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
    /// # let device = instance.device(0)?;
    /// use gpumem::{DeviceMemory, Region};
    ///
    /// // Two tiles of 2 by 2 elements, out of an image of 4 by 3.
    /// let image = [1u8, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    /// let tiles = DeviceMemory::<u8>::new(&device, 8)?;
    /// instance.copy_regions([
    ///     Region::new(tiles.slice(..4)?, &image[0..], 2).height(2).source_row_pitch(4),
    ///     Region::new(tiles.slice(4..)?, &image[6..], 2).height(2).source_row_pitch(4),
    /// ])?;
    /// assert_eq!(tiles.to_vec()?, [1, 2, 5, 6, 7, 8, 11, 12]);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a region does not lie within its operands; otherwise
    /// [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`],
    /// [`ErrorKind::OutOfMemory`] or [`ErrorKind::Unsupported`]. [`Error::region`] is the index of the region that
    /// failed.
    pub fn copy_regions<T, D, S>(&self, regions: impl IntoIterator<Item = Region<D, S>>) -> Result<(), Error>
    where
        T: Element + Copy,
        D: Destination<T>,
        S: Source<T>,
    {
        // The operands live until the call returns.
        let mut regions: Vec<_> = regions.into_iter().collect();
        let described = describe_regions::<T, D, S>(&mut regions, self, "Instance::copy_regions")?;
        // SAFETY: the boxes lie within their operands, and the work is done when the call returns.
        unsafe { self.copy_regions_raw(&described.regions) }
    }

    /// Fills memory with a number.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or [`ErrorKind::OutOfMemory`], as the message says.
    pub fn fill<T: FillValue>(&self, mut destination: impl Destination<T>, value: T) -> Result<(), Error> {
        let fill = CheckedFill::new(&mut destination, value.bits(), None, self, "Instance::fill")?;
        // SAFETY: the work is done when the call returns.
        unsafe { fill.run(Target::Instance(self)) }
    }

    /// Fills memory with elements of any type with a byte.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`] or [`ErrorKind::OutOfMemory`], as the message says.
    pub fn fill_bytes<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        value: u8,
    ) -> Result<(), Error> {
        let fill = CheckedFill::new(&mut destination, (value.into(), 1), None, self, "Instance::fill_bytes")?;
        // SAFETY: the work is done when the call returns.
        unsafe { fill.run(Target::Instance(self)) }
    }

    /// Fills a rectangle with a number.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it does not lie within its operand; otherwise [`ErrorKind::NotFound`],
    /// [`ErrorKind::NoAccess`], [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`], [`ErrorKind::OutOfMemory`]
    /// or [`ErrorKind::Unsupported`].
    pub fn fill_2d<T: FillValue>(
        &self,
        mut destination: impl Destination<T>,
        rectangle: &Rectangle,
        value: T,
    ) -> Result<(), Error> {
        let fill =
            CheckedFill::new(&mut destination, value.bits(), Some(rectangle), self, "Instance::fill_2d")?;
        // SAFETY: the work is done when the call returns.
        unsafe { fill.run(Target::Instance(self)) }
    }

    /// Copies regions of bytes by handles or addresses. [`Memory::handle`] has the handle of
    /// a memory.
    ///
    /// [`Memory::handle`]: crate::Memory::handle
    ///
    /// # Safety
    /// As [`copy_raw`](Self::copy_raw), for each region.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`], [`ErrorKind::OutOfMemory`] or
    /// [`ErrorKind::Unsupported`], as the message says. [`Error::region`] is the index of the region that failed.
    pub unsafe fn copy_regions_raw(&self, regions: &[sys::gpumem_copy_region]) -> Result<(), Error> {
        let (first, count) = (first_of(regions), regions.len());
        let mut failed = u64::MAX;
        // SAFETY: there are as many regions, and the output is writable; the rest is the caller's promise.
        unsafe { call!(gpumem_copy_regions(self.inner.handle, first, count as u64, &mut failed)) }
            .map(drop)
            .map_err(|error| failed_region(error, failed, count))
    }
}

/// Copies and fills by addresses, in stream order. The safe ones are beside the other functions of streams.
impl Stream {
    /// Enqueues copies of regions of bytes by handles or addresses. [`Memory::handle`]
    /// has the handle of a memory.
    ///
    /// [`Memory::handle`]: crate::Memory::handle
    ///
    /// # Safety
    /// As [`copy_raw`](Self::copy_raw), for each region. A call that fails may have enqueued some of them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::NoAccess`],
    /// [`ErrorKind::InvalidState`], [`ErrorKind::DeviceLost`], [`ErrorKind::OutOfMemory`] or
    /// [`ErrorKind::Unsupported`], as the message says. [`Error::region`] is the index of the region that failed.
    pub unsafe fn copy_regions_raw(&self, regions: &[sys::gpumem_copy_region]) -> Result<(), Error> {
        let (first, count) = (first_of(regions), regions.len());
        let mut failed = u64::MAX;
        // SAFETY: there are as many regions, and the output is writable; the rest is the caller's promise.
        unsafe { call!(gpumem_copy_regions_async(self.handle(), first, count as u64, &mut failed)) }
            .map(drop)
            .map_err(|error| failed_region(error, failed, count))
    }
}
