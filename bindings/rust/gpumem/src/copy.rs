// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Copies and fills, and what they can be done with.

use std::mem::MaybeUninit;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

use gpumem_sys as sys;

use crate::codes::{Direction, SourceOrder};
use crate::element::{Element, FillValue};
use crate::error::Error;
use crate::instance::Instance;
use crate::library::{c, call};
use crate::size::{bytes_of, rectangle_fits};
use crate::stream::Stream;
use crate::typed::{DeviceMemory, DeviceSlice, Pinned, Registered, WriteCombined};

pub(crate) mod sealed {
    use std::os::raw::c_void;
    use std::sync::{Arc, Weak};

    use crate::memory::Memory;
    use crate::stream::StreamInner;

    /// Where the elements of an operand lie.
    #[derive(Clone, Copy)]
    pub struct Span {
        pub pointer: *mut c_void,
        pub len: usize,
    }

    /// What must live until work that was enqueued has been observed complete.
    pub enum Keep {
        /// Nothing: there are no bytes.
        Nothing,
        /// An allocation.
        Memory(Memory),
        /// Something whose sharing keeps others from writing it.
        Shared(Arc<dyn Send + Sync>),
        /// A function that may not have run.
        Function(Arc<dyn Discard>),
        /// Nothing, but when the work is observed complete, so is that of another stream up to a number.
        Earlier(Weak<StreamInner>, u64),
    }

    /// What can be told that it will not be needed.
    pub trait Discard: Send + Sync {
        fn discard(&self);
    }

    pub trait Source<T> {
        fn span(&self) -> Span;
    }
    pub trait Destination<T> {
        fn span(&mut self) -> Span;
    }
    pub trait Enqueue {
        fn keep(&self) -> Keep;
    }
}
use sealed::{Keep, Span};

/// What a copy of elements `T` can read: `&[T]`, `&Vec<T>`, an array of any kind of memory by reference, or a part
/// of device memory. In a stream also arrays by value; see [`Enqueue`].
pub trait Source<T>: sealed::Source<T> {}
impl<T, S: sealed::Source<T>> Source<T> for S {}

/// What a copy of elements `T` can write: `&mut [T]`, `&mut [MaybeUninit<T>]`, an array of any kind of memory by
/// unique reference, or (a part of) device memory by any reference. In a stream also arrays by value; see
/// [`Enqueue`].
pub trait Destination<T>: sealed::Destination<T> {}
impl<T, D: sealed::Destination<T>> Destination<T> for D {}

/// What work can use that runs later, because nobody can free it or touch it in the meantime:
///
/// * [`Pinned`], [`WriteCombined`] and [`Registered`] by value: they come back when the work is observed complete;
/// * `Arc` of these, as a source: while the work runs nobody can have it alone;
/// * [`&DeviceMemory`](DeviceMemory) and [`DeviceSlice`]: the CPU cannot touch it, and the stream keeps it alive.
///
/// Ordinary slices are not among them; see [`Stream::copy_from_slice`].
pub trait Enqueue: sealed::Enqueue {}
impl<E: sealed::Enqueue> Enqueue for E {}

macro_rules! slices {
    ($([$($generic:tt)*] $source:ty;)*) => {$(
        impl<T: Element + Copy, $($generic)*> sealed::Source<T> for $source {
            fn span(&self) -> Span {
                Span { pointer: self.as_ptr() as *mut c_void, len: self.len() }
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
                Span { pointer: self.as_mut_ptr().cast(), len: self.len() }
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

macro_rules! host_arrays {
    ($($name:ident;)*) => {$(
        host_arrays!(@source $name<T>; &$name<T>; &mut $name<T>; Arc<$name<T>>;);
        host_arrays!(@destination $name<T>; &mut $name<T>;);

        impl<T: Element + Copy> sealed::Enqueue for $name<T> {
            fn keep(&self) -> Keep {
                self.memory().map_or(Keep::Nothing, |memory| Keep::Memory(memory.share()))
            }
        }
        impl<T: Element + Copy + Send + Sync> sealed::Enqueue for Arc<$name<T>> {
            fn keep(&self) -> Keep {
                Keep::Shared(self.clone())
            }
        }
    )*};
    (@source $($source:ty;)*) => {$(
        impl<T: Element + Copy> sealed::Source<T> for $source {
            fn span(&self) -> Span {
                Span { pointer: self.block().start().cast(), len: self.len() }
            }
        }
    )*};
    (@destination $($destination:ty;)*) => {$(
        impl<T: Element + Copy> sealed::Destination<T> for $destination {
            fn span(&mut self) -> Span {
                Span { pointer: self.block().start().cast(), len: self.len() }
            }
        }
    )*};
}
host_arrays! {
    Pinned;
    WriteCombined;
    Registered;
}
host_arrays!(@source &DeviceMemory<T>;);
host_arrays!(@destination &DeviceMemory<T>;);

impl<T: Element + Copy> sealed::Destination<T> for Pinned<MaybeUninit<T>> {
    fn span(&mut self) -> Span {
        Span { pointer: self.block().start().cast(), len: self.len() }
    }
}
impl<T: Element + Copy> sealed::Destination<T> for &mut Pinned<MaybeUninit<T>> {
    fn span(&mut self) -> Span {
        Span { pointer: self.block().start().cast(), len: self.len() }
    }
}
impl<T: Element> sealed::Enqueue for &DeviceMemory<T> {
    fn keep(&self) -> Keep {
        self.memory().map_or(Keep::Nothing, |memory| Keep::Memory(memory.share()))
    }
}
impl<T: Element + Copy> sealed::Source<T> for DeviceSlice<'_, T> {
    fn span(&self) -> Span {
        Span { pointer: self.start().cast(), len: self.len() }
    }
}
impl<T: Element + Copy> sealed::Destination<T> for DeviceSlice<'_, T> {
    fn span(&mut self) -> Span {
        Span { pointer: self.start().cast(), len: self.len() }
    }
}
impl<T: Element> sealed::Enqueue for DeviceSlice<'_, T> {
    fn keep(&self) -> Keep {
        self.memory().map_or(Keep::Nothing, |memory| Keep::Memory(memory.share()))
    }
}

/// What else a copy by addresses can be told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Between which sides it goes.
    pub direction: Direction,
    /// When the source is read.
    pub source_order: SourceOrder,
}

impl CopyOptions {
    /// The defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self { direction: Direction::INFER, source_order: SourceOrder::STREAM }
    }

    fn to_c(self) -> sys::gpumem_copy_options {
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

/// Rows of a rectangle of elements: `height` rows of `width` elements. A pitch says how many elements lie between
/// the starts of two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Elements from one row of the destination to the next, at least `width`.
    pub destination_pitch: usize,
    /// Elements from one row of the source to the next, at least `width`. Not used by fills.
    pub source_pitch: usize,
}

/// A copy whose operands have been compared.
#[derive(Clone, Copy)]
pub(crate) struct CheckedCopy {
    destination: *mut c_void,
    source: *const c_void,
    rows: Rows,
}

/// A fill whose operand has been looked at.
#[derive(Clone, Copy)]
pub(crate) struct CheckedFill {
    destination: *mut c_void,
    rows: Rows,
    value: u32,
    value_size: u32,
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
    pub(crate) fn new<T: Element + Copy>(
        destination: &mut impl Destination<T>,
        source: &impl Source<T>,
    ) -> Result<Self, Error> {
        let (to, from) = (destination.span(), source.span());
        if to.len != from.len {
            return Err(Error::invalid(
                "copy",
                format!("the destination has {} elements and the source {}", to.len, from.len),
            ));
        }
        Ok(Self { destination: to.pointer, source: from.pointer, rows: Rows::one::<T>(to.len, "copy")? })
    }

    pub(crate) fn of_rectangle<T: Element + Copy>(
        destination: &mut impl Destination<T>,
        source: &impl Source<T>,
        rectangle: &Rectangle,
    ) -> Result<Self, Error> {
        let (to, from) = (destination.span(), source.span());
        let Rectangle { width, height, destination_pitch, source_pitch } = *rectangle;
        if !rectangle_fits(to.len, destination_pitch, width, height)
            || !rectangle_fits(from.len, source_pitch, width, height)
        {
            return Err(Error::invalid("copy_2d", "the rectangle does not lie within its operands"));
        }
        Ok(Self {
            destination: to.pointer,
            source: from.pointer,
            rows: Rows::many::<T>(rectangle, "copy_2d")?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// # Safety
    /// With a stream: the operands live, and are not touched, until the work has been observed complete.
    pub(crate) unsafe fn run(
        &self,
        instance: &Instance,
        stream: Option<&Stream>,
        options: &CopyOptions,
    ) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        // SAFETY: the operands were checked when this was made; the rest is the caller's promise.
        unsafe {
            match self.rows {
                Rows::One { bytes } => {
                    instance.copy_raw(stream, self.destination, self.source, bytes, options)
                }
                Rows::Many { width, height, destination_pitch, source_pitch } => instance.copy_2d_raw(
                    stream,
                    (self.destination, destination_pitch),
                    (self.source, source_pitch),
                    (width, height),
                    options,
                ),
            }
        }
    }
}

impl CheckedFill {
    pub(crate) fn new<T: FillValue>(destination: &mut impl Destination<T>, value: T) -> Result<Self, Error> {
        let to = destination.span();
        let (value, value_size) = value.bits();
        Ok(Self { destination: to.pointer, rows: Rows::one::<T>(to.len, "fill")?, value, value_size })
    }

    pub(crate) fn bytes<T: Element + Copy>(
        destination: &mut impl Destination<T>,
        value: u8,
    ) -> Result<Self, Error> {
        let to = destination.span();
        let rows = Rows::one::<T>(to.len, "fill_bytes")?;
        Ok(Self { destination: to.pointer, rows, value: value.into(), value_size: 1 })
    }

    pub(crate) fn of_rectangle<T: FillValue>(
        destination: &mut impl Destination<T>,
        rectangle: &Rectangle,
        value: T,
    ) -> Result<Self, Error> {
        let to = destination.span();
        if !rectangle_fits(to.len, rectangle.destination_pitch, rectangle.width, rectangle.height) {
            return Err(Error::invalid("fill_2d", "the rectangle does not lie within its operand"));
        }
        let (value, value_size) = value.bits();
        Ok(Self { destination: to.pointer, rows: Rows::many::<T>(rectangle, "fill_2d")?, value, value_size })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// # Safety
    /// As [`CheckedCopy::run`].
    pub(crate) unsafe fn run(&self, instance: &Instance, stream: Option<&Stream>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let value = (self.value, self.value_size);
        // SAFETY: the operand was checked when this was made; the rest is the caller's promise.
        unsafe {
            match self.rows {
                Rows::One { bytes } => instance.fill_raw(stream, self.destination, bytes, value),
                Rows::Many { width, height, destination_pitch, .. } => instance.fill_2d_raw(
                    stream,
                    (self.destination, destination_pitch),
                    (width, height),
                    value,
                ),
            }
        }
    }
}

/// Handle of a stream that may be missing.
fn handle_of(stream: Option<&Stream>) -> sys::gpumem_stream {
    stream.map_or(ptr::null_mut(), Stream::handle)
}

impl Instance {
    /// Copies elements between any two kinds of memory, and returns when it is done. Both operands have the same
    /// number of elements. It is not ordered against any stream: what it needs must have been observed complete.
    ///
    /// ```
    /// # let instance = gpumem::Instance::open(gpumem::Backend::HOST)?;
    /// # let device = instance.device(0)?;
    /// let memory = gpumem::DeviceMemory::<u16>::new(&device, 3)?;
    /// instance.copy(&memory, &[1, 2, 3])?;
    /// let mut back = [0; 2];
    /// instance.copy(&mut back, memory.as_slice())
    ///     .expect_err("the numbers of elements differ");
    /// instance.copy(&mut back, memory.slice(1..).unwrap())?;
    /// assert_eq!(back, [2, 3]);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the numbers of elements differ, or as `gpumem_copy()`.
    pub fn copy<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        source: impl Source<T>,
    ) -> Result<(), Error> {
        let copy = CheckedCopy::new(&mut destination, &source)?;
        // SAFETY: without a stream, the work is done when the call returns.
        unsafe { copy.run(self, None, &CopyOptions::new()) }
    }

    /// Copies a rectangle of elements, and returns when it is done.
    ///
    /// # Errors
    /// If it does not lie within its operands, or as `gpumem_copy_2d()`.
    pub fn copy_2d<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        source: impl Source<T>,
        rectangle: &Rectangle,
    ) -> Result<(), Error> {
        let copy = CheckedCopy::of_rectangle(&mut destination, &source, rectangle)?;
        // SAFETY: without a stream, the work is done when the call returns.
        unsafe { copy.run(self, None, &CopyOptions::new()) }
    }

    /// Fills memory with a number, and returns when it is done.
    ///
    /// # Errors
    /// As `gpumem_fill()`.
    pub fn fill<T: FillValue>(&self, mut destination: impl Destination<T>, value: T) -> Result<(), Error> {
        let fill = CheckedFill::new(&mut destination, value)?;
        // SAFETY: without a stream, the work is done when the call returns.
        unsafe { fill.run(self, None) }
    }

    /// Fills memory of any elements with a byte, and returns when it is done.
    ///
    /// # Errors
    /// As `gpumem_fill()`.
    pub fn fill_bytes<T: Element + Copy>(
        &self,
        mut destination: impl Destination<T>,
        value: u8,
    ) -> Result<(), Error> {
        let fill = CheckedFill::bytes(&mut destination, value)?;
        // SAFETY: without a stream, the work is done when the call returns.
        unsafe { fill.run(self, None) }
    }

    /// Fills a rectangle with a number, and returns when it is done.
    ///
    /// # Errors
    /// If it does not lie within its operand, or as `gpumem_fill_2d()`.
    pub fn fill_2d<T: FillValue>(
        &self,
        mut destination: impl Destination<T>,
        rectangle: &Rectangle,
        value: T,
    ) -> Result<(), Error> {
        let fill = CheckedFill::of_rectangle(&mut destination, rectangle, value)?;
        // SAFETY: without a stream, the work is done when the call returns.
        unsafe { fill.run(self, None) }
    }

    /// `gpumem_copy()`: by addresses, in a stream or done at return.
    ///
    /// # Safety
    /// The source is `size` bytes that may be read and the destination as many that may be written, and no Rust
    /// reference forbids it. With a stream they stay so until the work has been observed complete.
    ///
    /// # Errors
    /// As `gpumem_copy()`.
    pub unsafe fn copy_raw(
        &self,
        stream: Option<&Stream>,
        destination: *mut c_void,
        source: *const c_void,
        bytes: u64,
        options: &CopyOptions,
    ) -> Result<(), Error> {
        let options = options.to_c();
        // SAFETY: the struct says its own size; the rest is the caller's promise.
        unsafe {
            call!(gpumem_copy(self.inner.handle, handle_of(stream), destination, source, bytes, &options))
        }?;
        Ok(())
    }

    /// `gpumem_copy_2d()`: addresses with their pitches, and width and height, in bytes and rows.
    ///
    /// # Safety
    /// As [`copy_raw`](Self::copy_raw).
    ///
    /// # Errors
    /// As `gpumem_copy_2d()`.
    pub unsafe fn copy_2d_raw(
        &self,
        stream: Option<&Stream>,
        (destination, destination_pitch): (*mut c_void, u64),
        (source, source_pitch): (*const c_void, u64),
        (width, height): (u64, u64),
        options: &CopyOptions,
    ) -> Result<(), Error> {
        let options = options.to_c();
        // SAFETY: the struct says its own size; the rest is the caller's promise.
        unsafe {
            call!(gpumem_copy_2d(
                self.inner.handle,
                handle_of(stream),
                destination,
                destination_pitch,
                source,
                source_pitch,
                width,
                height,
                &options
            ))
        }?;
        Ok(())
    }

    /// `gpumem_fill()`: with a value of 1, 2 or 4 bytes, given with its size.
    ///
    /// # Safety
    /// As [`copy_raw`](Self::copy_raw).
    ///
    /// # Errors
    /// As `gpumem_fill()`.
    pub unsafe fn fill_raw(
        &self,
        stream: Option<&Stream>,
        destination: *mut c_void,
        bytes: u64,
        (value, value_size): (u32, u32),
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            call!(gpumem_fill(self.inner.handle, handle_of(stream), destination, bytes, value, value_size))
        }?;
        Ok(())
    }

    /// `gpumem_fill_2d()`: address with pitch, width and height in bytes and rows, value with its size.
    ///
    /// # Safety
    /// As [`copy_raw`](Self::copy_raw).
    ///
    /// # Errors
    /// As `gpumem_fill_2d()`.
    pub unsafe fn fill_2d_raw(
        &self,
        stream: Option<&Stream>,
        (destination, pitch): (*mut c_void, u64),
        (width, height): (u64, u64),
        (value, value_size): (u32, u32),
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            call!(gpumem_fill_2d(
                self.inner.handle,
                handle_of(stream),
                destination,
                pitch,
                width,
                height,
                value,
                value_size
            ))
        }?;
        Ok(())
    }
}
