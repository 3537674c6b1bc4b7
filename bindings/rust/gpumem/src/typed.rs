// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Arrays in each kind of memory.

use std::fmt;
use std::mem::{align_of, size_of, MaybeUninit};
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use crate::codes::{Kind, MemoryFlags};
use crate::copy::Source;
use crate::device::Device;
use crate::element::{Atomic, Element};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::infos::MemoryInfo;
use crate::instance::{Inner, Instance};
use crate::memory::{Backing, Memory, MemoryOptions, RegisterOptions};
use crate::size::bytes_of;

/// The alignment that every allocation has.
const ALIGNMENT: usize = 256;

/// `len` values in an allocation; without an allocation if they have no bytes.
pub(crate) struct Block<T> {
    memory: Option<Memory>,
    /// Address of the first: for devices in device memory, otherwise for the CPU.
    start: NonNull<T>,
    pub(crate) len: usize,
}

// SAFETY: the block owns its values, as a box does.
unsafe impl<T: Send> Send for Block<T> {}
// SAFETY: a shared block gives shared values, as a box does.
unsafe impl<T: Sync> Sync for Block<T> {}

impl<T: Element> Block<T> {
    pub(crate) fn allocate(
        device: &Device,
        kind: Kind,
        len: usize,
        options: &MemoryOptions,
        function: &'static str,
    ) -> Result<Self, Error> {
        let bytes = bytes_of::<T>(len, function)?;
        if bytes == 0 {
            return Ok(Self { memory: None, start: NonNull::dangling(), len });
        }
        let memory = if align_of::<T>() > ALIGNMENT && options.alignment < align_of::<T>() as u64 {
            let options = options.clone().alignment(align_of::<T>() as u64);
            Memory::create(device, kind, bytes as u64, &options)
        } else {
            Memory::create(device, kind, bytes as u64, options)
        }
        .map_err(|error| error.called_as(function))?;
        let address = match kind {
            Kind::DEVICE => memory.device_address()? as *mut T,
            _ => memory.host_pointer().cast(),
        };
        match NonNull::new(address) {
            Some(start) if address as usize % align_of::<T>() == 0 => {
                Ok(Self { memory: Some(memory), start, len })
            }
            _ => Err(Error::own(
                Status::INTERNAL,
                function,
                "the library returned memory that is not aligned for the elements",
            )),
        }
    }

    pub(crate) fn close(self) -> Result<(), Rejected<Self>> {
        let Self { memory, start, len } = self;
        memory
            .map_or(Ok(()), Memory::close)
            .map_err(|rejected| rejected.map(|memory| Self { memory: Some(memory), start, len }))
    }

    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    pub(crate) fn memory_mut(&mut self) -> Option<&mut Memory> {
        self.memory.as_mut()
    }

    pub(crate) fn start(&self) -> *mut T {
        self.start.as_ptr()
    }

    /// # Safety
    /// The values lie in memory that the CPU may read.
    pub(crate) unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: the allocation has room for them, any bits are values, and later writes need the block itself or a
        // `&mut` (see `DerefMut`).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// # Safety
    /// The values lie in memory that the CPU may read and write.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn cast<U>(self) -> Block<U> {
        debug_assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>());
        Block { memory: self.memory, start: self.start.cast(), len: self.len }
    }
}

/// First index and length of a range of indices.
pub(crate) fn part_of(
    len: usize,
    range: &impl RangeBounds<usize>,
    function: &'static str,
) -> Result<(usize, usize), Error> {
    // A bound behind the last index exceeds every array.
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        _ => {
            let (start, end) = (start.unwrap_or(usize::MAX), end.unwrap_or(usize::MAX));
            let message = format!("the part from {start} to {end} does not lie in the {len} elements here");
            Err(Error::invalid(function, message))
        }
    }
}

/// Offset in bytes and length of a range of elements, in memory of that many bytes from an address on. Bytes at its end
/// that are no whole element do not count.
pub(crate) fn part_of_bytes<T>(
    (address, bytes): (u64, u64),
    range: &impl RangeBounds<usize>,
    function: &'static str,
) -> Result<(u64, usize), Error> {
    let whole = bytes.checked_div(size_of::<T>() as u64).map_or(usize::MAX, |len| len as usize);
    let (start, len) = part_of(whole, range, function)?;
    if address % align_of::<T>() as u64 != 0 {
        return Err(Error::invalid(function, "the memory is not aligned for the elements"));
    }
    Ok((start as u64 * size_of::<T>() as u64, len))
}

/// The elements of an operand, of which there are `len`. Without an instance they have no bytes.
pub(crate) fn to_vec<T: Element + Copy>(
    source: impl Source<T>,
    len: usize,
    instance: Option<Arc<Inner>>,
    function: &'static str,
) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    values
        .try_reserve_exact(len)
        .map_err(|_| Error::own(Status::OUT_OF_HOST_MEMORY, function, "out of memory for the values"))?;
    if let Some(inner) = instance {
        let room = values.spare_capacity_mut().get_mut(..len).unwrap_or_default();
        Instance { inner }.copy(room, source)?;
    }
    // SAFETY: the copy has written all of them (they may have no bytes), and any bits are values.
    unsafe { values.set_len(len) };
    Ok(values)
}

/// A part of an array, as an operand of copies and fills. Each kind of array has a name for its own:
/// [`DeviceSlice`], [`BufferSlice`](crate::BufferSlice) and [`PoolSlice`](crate::PoolSlice), and [`PinnedSlice`] and
/// [`RegisteredSlice`] for arrays of atomics.
pub struct Part<'a, W> {
    pub(crate) whole: &'a W,
    /// Index of the first element.
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl<'a, W> Part<'a, W> {
    /// The part of an array of `len` elements.
    pub(crate) fn of(
        whole: &'a W,
        len: usize,
        range: &impl RangeBounds<usize>,
        function: &'static str,
    ) -> Result<Self, Error> {
        let (start, len) = part_of(len, range, function)?;
        Ok(Self { whole, start, len })
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<W> Clone for Part<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for Part<'_, W> {}

impl<W: fmt::Debug> fmt::Debug for Part<'_, W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Part")
            .field("whole", self.whole)
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

/// A part of memory that has no elements of its own, whose address is its `start`.
macro_rules! addressed_part {
    ($(#[$about:meta])* $name:ident of $whole:ident: $kind:ty $(, $field:ident: $type:ty)?) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name<'a, T: Element> {
            $whole: &'a $kind,
            start: u64,
            len: usize,
            $($field: $type,)?
            elements: PhantomData<T>,
        }

        impl<T: Element> Clone for $name<'_, T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T: Element> Copy for $name<'_, T> {}

        impl<T: Element> $name<'_, T> {
            /// Number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether there are no elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// Address of the first element for kernels.
            #[must_use]
            pub fn device_address(&self) -> u64 {
                self.start
            }
        }
    };
}

/// The functions that all arrays have.
macro_rules! array {
    ($name:ident) => {
        impl<T: Element> $name<T> {
            /// Number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.block.len
            }

            /// Whether there are no elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.block.len == 0
            }

            /// The allocation; `None` for an array without bytes.
            #[must_use]
            pub fn memory(&self) -> Option<&Memory> {
                self.block.memory()
            }

            /// Information about the allocation; `None` for an array without bytes.
            ///
            /// # Errors
            /// If the instance is closed, or belongs to the parent process.
            pub fn info(&self) -> Result<Option<MemoryInfo>, Error> {
                self.block.memory().map(Memory::info).transpose()
            }

            /// Frees the memory. Dropping it does the same, but cannot report a failure. On the cuda backend the driver
            /// may wait for all work of the device then, also if none of it uses the memory.
            ///
            /// # Errors
            /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete. The array is returned
            /// unchanged.
            pub fn close(self) -> Result<(), Rejected<Self>> {
                self.block.close().map_err(|rejected| {
                    rejected.called_as(concat!(stringify!($name), "::close")).map(|block| Self { block })
                })
            }

            /// Address of the first element for kernels. It must not be used if the array has no bytes.
            ///
            /// # Errors
            /// [`ErrorKind::NoAccess`] for memory that was registered without [`MemoryFlags::MAPPED`].
            pub fn device_address(&self) -> Result<u64, Error> {
                self.block.memory().map_or(Ok(align_of::<T>() as u64), Memory::device_address)
            }

            pub(crate) fn block(&self) -> &Block<T> {
                &self.block
            }
        }

        impl<T: Element> fmt::Debug for $name<T> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .debug_struct(stringify!($name))
                    .field("len", &self.block.len)
                    .field("memory", &self.block.memory())
                    .finish()
            }
        }
    };
}

/// The functions of arrays that are slices for the CPU.
macro_rules! host_array {
    ($name:ident, $slice:ident of $memory:literal) => {
        array!($name);

        impl<A: Atomic> $name<A> {
            /// A part of an array of atomics, as an operand of copies and fills. Other arrays are slices: `&array[range]`.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`] if the range exceeds the array.
            pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<$slice<'_, A>, Error> {
                Part::of(self, self.len(), &range, concat!(stringify!($name), "::slice"))
            }
        }

        #[doc = concat!("A part of an array of atomics in ", $memory, " memory.")]
        pub type $slice<'a, A> = Part<'a, $name<A>>;

        impl<T: Element> Deref for $name<T> {
            type Target = [T];
            fn deref(&self) -> &[T] {
                // SAFETY: the CPU can access the memory.
                unsafe { self.block.as_slice() }
            }
        }

        /// Not for atomics: a stream may write them while they are shared, so nothing has exclusive access.
        impl<T: Element + Copy> DerefMut for $name<T> {
            fn deref_mut(&mut self) -> &mut [T] {
                // SAFETY: the CPU can access the memory.
                unsafe { self.block.as_mut_slice() }
            }
        }
    };
}

/// A part of memory that the CPU cannot use as a slice.
macro_rules! parts {
    ($name:ident, $slice:ident) => {
        impl<T: Element> $name<T> {
            /// A part of it, as an operand of copies and fills.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`] if the range exceeds it.
            pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<$slice<'_, T>, Error> {
                Part::of(self, self.len(), &range, concat!(stringify!($name), "::slice"))
            }

            /// The whole of it as a part of itself.
            #[must_use]
            pub fn as_slice(&self) -> $slice<'_, T> {
                Part { whole: self, start: 0, len: self.len() }
            }
        }
    };
}

pub(crate) use {addressed_part, array, parts};

/// An array in the memory of a device. The CPU cannot access it: copy it, fill it, or pass its
/// [`device_address`](Self::device_address) to a kernel.
///
/// Work on the device may change the values at any time, so a shared reference is enough to write them.
///
/// On the cuda backend, dropping it waits for all work of the device, also if none of it uses the array.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// let numbers = gpumem::DeviceMemory::from_slice(&device, &[1.5f32, 2.5])?;
/// assert_eq!(numbers.to_vec()?, [1.5, 2.5]);
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct DeviceMemory<T: Element> {
    block: Block<T>,
}
array!(DeviceMemory);
parts!(DeviceMemory, DeviceSlice);

impl<T: Element> DeviceMemory<T> {
    /// Allocates memory for `len` elements, with indeterminate values.
    ///
    /// # Errors
    /// If there is not enough memory, or `len` elements are more than can be addressed.
    pub fn new(device: &Device, len: usize) -> Result<Self, Error> {
        Self::with_options(device, len, &MemoryOptions::new())
            .map_err(|error| error.called_as("DeviceMemory::new"))
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if an option cannot be granted.
    pub fn with_options(device: &Device, len: usize, options: &MemoryOptions) -> Result<Self, Error> {
        const FUNCTION: &str = "DeviceMemory::with_options";
        Ok(Self { block: Block::allocate(device, Kind::DEVICE, len, options, FUNCTION)? })
    }
}

impl<T: Element + Copy> DeviceMemory<T> {
    /// Allocates memory with these values.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_slice(device: &Device, values: &[T]) -> Result<Self, Error> {
        let made = Self::new(device, values.len())
            .and_then(|memory| device.instance().copy(&memory, values).map(|()| memory));
        made.map_err(|error| error.called_as("DeviceMemory::from_slice"))
    }

    /// Copies the values to a vector. Work that writes them must have been observed complete.
    ///
    /// # Errors
    /// If they cannot be copied, or there is not enough memory.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let instance = self.memory().map(|memory| memory.allocation.instance().clone());
        to_vec(self, self.len(), instance, "DeviceMemory::to_vec")
    }
}

/// A part of an array in the memory of a device.
pub type DeviceSlice<'a, T> = Part<'a, DeviceMemory<T>>;

impl<T: Element> DeviceSlice<'_, T> {
    /// Address of the first element for kernels.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn device_address(&self) -> Result<u64, Error> {
        Ok(self.whole.device_address()? + (self.start * size_of::<T>()) as u64)
    }
}

/// An array in page-locked host memory: a slice for the CPU, copied at the full speed of the link, and accessed in
/// place by devices through its [`device_address`](Self::device_address).
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// let mut numbers = gpumem::Pinned::<u32>::zeroed(&device, 4)?;
/// numbers[2] = 7;
/// assert_eq!(*numbers, [0, 0, 7, 0]);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// It can be sent to another thread only if its elements can:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<gpumem::Pinned<std::rc::Rc<u8>>>();
/// ```
///
/// Types for which some bit patterns are not values are refused:
///
/// ```compile_fail,E0277
/// # fn f(device: &gpumem::Device) -> Result<(), gpumem::Error> {
/// let words = gpumem::Pinned::<String>::zeroed(device, 4)?;
/// # Ok(()) }
/// ```
pub struct Pinned<T: Element> {
    block: Block<T>,
}
host_array!(Pinned, PinnedSlice of "page-locked");

impl<T: Element> Pinned<T> {
    /// Allocates memory for `len` elements, with all bits 0.
    ///
    /// # Errors
    /// If there is not enough memory, a limit is reached, or `len` elements are more than can be addressed.
    pub fn zeroed(device: &Device, len: usize) -> Result<Self, Error> {
        Self::zeroed_with_options(device, len, &MemoryOptions::new())
            .map_err(|error| error.called_as("Pinned::zeroed"))
    }

    /// As [`zeroed`](Self::zeroed), with options.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and if an option cannot be granted.
    pub fn zeroed_with_options(device: &Device, len: usize, options: &MemoryOptions) -> Result<Self, Error> {
        let array = Pinned::<MaybeUninit<T>>::uninit_with_options(device, len, options)
            .map_err(|error| error.called_as("Pinned::zeroed_with_options"))?;
        // SAFETY: there is room for all of them, and 0 is a value.
        unsafe {
            ptr::write_bytes(array.block.start(), 0, len);
            Ok(array.assume_init())
        }
    }
}

impl<T: Element + Copy> Pinned<T> {
    /// Allocates memory with these values.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice(device: &Device, values: &[T]) -> Result<Self, Error> {
        let array = Pinned::<MaybeUninit<T>>::uninit(device, values.len())
            .map_err(|error| error.called_as("Pinned::from_slice"))?;
        // SAFETY: there is room for all of them, and they do not overlap what was just allocated.
        unsafe {
            ptr::copy_nonoverlapping(values.as_ptr(), array.block.start().cast::<T>(), values.len());
            Ok(array.assume_init())
        }
    }
}

impl<T: Element> Pinned<MaybeUninit<T>> {
    /// Allocates memory for `len` elements, with indeterminate values.
    ///
    /// # Errors
    /// As [`Pinned::zeroed`].
    pub fn uninit(device: &Device, len: usize) -> Result<Self, Error> {
        Self::uninit_with_options(device, len, &MemoryOptions::new())
            .map_err(|error| error.called_as("Pinned::uninit"))
    }

    /// As [`uninit`](Self::uninit), with options.
    ///
    /// # Errors
    /// As [`Pinned::zeroed_with_options`].
    pub fn uninit_with_options(device: &Device, len: usize, options: &MemoryOptions) -> Result<Self, Error> {
        const FUNCTION: &str = "Pinned::uninit_with_options";
        if (options.require | options.prefer).contains(MemoryFlags::WRITE_COMBINED) {
            let message =
                "a Pinned array cannot be WRITE_COMBINED, because reads would be slow; use WriteCombined";
            return Err(Error::invalid(FUNCTION, message));
        }
        Ok(Self { block: Block::allocate(device, Kind::PINNED, len, options, FUNCTION)? })
    }

    /// Declares that the values are initialised.
    ///
    /// # Safety
    /// All of it must have been written.
    #[must_use]
    pub unsafe fn assume_init(self) -> Pinned<T> {
        Pinned { block: self.block.cast() }
    }
}

/// An array in write-combined host memory: the CPU writes it without caching it, devices read it.
///
/// The CPU may read such memory a hundred times slower than other memory, so there is no way to read it:
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// let mut numbers = gpumem::WriteCombined::<u32>::new(&device, 4)?;
/// numbers.write(2, 7)?;
/// numbers.write_slice(0, &[1, 2])?;
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// ```compile_fail,E0608
/// # fn f(numbers: &gpumem::WriteCombined<u32>) -> u32 {
/// numbers[2]
/// # }
/// ```
///
/// ```compile_fail,E0614
/// # fn f(numbers: &gpumem::WriteCombined<u32>) {
/// let slice = &**numbers;
/// # }
/// ```
pub struct WriteCombined<T: Element> {
    block: Block<T>,
}
array!(WriteCombined);

impl<T: Element + Copy> WriteCombined<T> {
    /// Allocates memory for `len` elements, with indeterminate values.
    ///
    /// # Errors
    /// If such memory is not supported or there is not enough, or `len` elements are more than can be addressed.
    pub fn new(device: &Device, len: usize) -> Result<Self, Error> {
        Self::with_options(device, len, &MemoryOptions::new())
            .map_err(|error| error.called_as("WriteCombined::new"))
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if an option cannot be granted.
    pub fn with_options(device: &Device, len: usize, options: &MemoryOptions) -> Result<Self, Error> {
        const FUNCTION: &str = "WriteCombined::with_options";
        let options = options.clone().require(MemoryFlags::WRITE_COMBINED);
        Ok(Self { block: Block::allocate(device, Kind::PINNED, len, &options, FUNCTION)? })
    }

    /// Writes one element. Not in a forked child: [`write_slice`](Self::write_slice) looks, but that takes longer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no element has this index.
    pub fn write(&mut self, index: usize, value: T) -> Result<(), Error> {
        self.put(index, slice::from_ref(&value), "WriteCombined::write")
    }

    /// Writes elements from `start` on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if they do not fit, and [`ErrorKind::Forked`] in a forked child.
    pub fn write_slice(&mut self, start: usize, values: &[T]) -> Result<(), Error> {
        const FUNCTION: &str = "WriteCombined::write_slice";
        if let Some(memory) = self.memory() {
            memory.allocation.instance().check(FUNCTION)?;
        }
        self.put(start, values, FUNCTION)
    }

    fn put(&mut self, start: usize, values: &[T], function: &'static str) -> Result<(), Error> {
        match start.checked_add(values.len()) {
            Some(end) if end <= self.len() => {}
            _ => {
                return Err(Error::invalid(
                    function,
                    format!(
                        "{} elements from index {start} on exceed the length {}",
                        values.len(),
                        self.len()
                    ),
                ))
            }
        }
        // SAFETY: there is room for them, and a borrowed slice cannot overlap memory that only this owns.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.block.start().add(start), values.len()) };
        Ok(())
    }

    /// Writes every element. Not in a forked child, where the memory of the parent does not exist.
    pub fn write_all(&mut self, value: T) {
        for index in 0..self.len() {
            // SAFETY: the index is in range.
            unsafe { self.block.start().add(index).write(value) };
        }
    }

    /// The first element, for code that writes through pointers.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.block.start()
    }
}

/// An existing array, page-locked in place: a slice for the CPU that is copied at the full speed of the link.
///
/// It owns the array, so the array is never freed while it is registered, even if this is forgotten. To register an
/// array that is only borrowed, use [`Device::with_registered`].
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{RegisterOptions, Registered};
///
/// let mut numbers = Registered::new(&device, vec![1u32, 2, 3], &RegisterOptions::new())?;
/// numbers[0] = 7;
/// let plain: Vec<u32> = numbers.into_vec()?;
/// assert_eq!(plain, [7, 2, 3]);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// What would have to be copied is refused:
///
/// ```compile_fail,E0277
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// use gpumem::{RegisterOptions, Registered};
///
/// let numbers = Registered::new(&device, &[1u32, 2, 3][..], &RegisterOptions::new())?;
/// # Ok::<(), gpumem::Error>(())
/// ```
pub struct Registered<T: Element> {
    block: Block<T>,
}
host_array!(Registered, RegisteredSlice of "registered");

/// What [`Registered::new`] takes: a `Vec<T>` or a `Box<[T]>`. Its elements stay where they are.
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "`Registered::new` cannot take `{Self}`",
        label = "this is neither a `Vec<{T}>` nor a `Box<[{T}]>`",
        note = "the array must own its elements, which stay where they are; for a borrowed array use `Device::with_registered`"
    )
)]
pub trait OwnedArray<T>: owned::OwnedArray<T> {}
impl<T, V: owned::OwnedArray<T>> OwnedArray<T> for V {}

mod owned {
    pub trait OwnedArray<T> {
        fn into_vec(self) -> Vec<T>;
        fn from_vec(values: Vec<T>) -> Self;
    }

    impl<T> OwnedArray<T> for Vec<T> {
        fn into_vec(self) -> Self {
            self
        }
        fn from_vec(values: Self) -> Self {
            values
        }
    }

    impl<T> OwnedArray<T> for Box<[T]> {
        fn into_vec(self) -> Vec<T> {
            <[T]>::into_vec(self)
        }
        fn from_vec(values: Vec<T>) -> Self {
            // It came from a box, so it has no spare capacity.
            values.into_boxed_slice()
        }
    }
}

impl<T: Element> Registered<T> {
    /// Registers the elements of an array where they are; nothing is copied. Does nothing for an array without bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::WrongKind`], [`ErrorKind::AlreadyExists`],
    /// [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`], [`ErrorKind::LimitExceeded`],
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::DeviceLost`] or [`ErrorKind::InvalidState`], as the message says.
    /// The array is returned.
    pub fn new<V: OwnedArray<T>>(
        device: &Device,
        values: V,
        options: &RegisterOptions,
    ) -> Result<Self, Rejected<V>> {
        let values = values.into_vec();
        let len = values.len();
        let backing = match Backing::of(values) {
            Some(backing) => backing,
            None => return Ok(Self { block: Block { memory: None, start: NonNull::dangling(), len } }),
        };
        let start = backing.start.cast();
        match Memory::register_backing(device, backing, options) {
            Ok(memory) => Ok(Self { block: Block { memory: Some(memory), start, len } }),
            Err(Rejected { given: backing, error }) => {
                // SAFETY: it was this array.
                let values = V::from_vec(unsafe { backing.into_vec() });
                Err(Rejected::new(values, error.called_as("Registered::new")))
            }
        }
    }

    /// Unregisters the array and returns it, at the same address and with the same capacity.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if work in a stream uses it that was not observed complete, and [`ErrorKind::DeviceLost`] if
    /// that work never will be: the array is unregistered then when this is dropped, but never freed. This is returned
    /// unchanged.
    pub fn into_vec(self) -> Result<Vec<T>, Rejected<Self>> {
        let Block { memory, start, len } = self.block;
        let backing = match memory.map_or(Ok(None), Memory::take_backing) {
            Ok(backing) => backing,
            Err(rejected) => {
                return Err(rejected
                    .called_as("Registered::into_vec")
                    .map(|memory| Self { block: Block { memory: Some(memory), start, len } }))
            }
        };
        match backing {
            // SAFETY: it was a vector of such elements.
            Some(backing) => Ok(unsafe { backing.into_vec() }),
            // SAFETY: the elements have no bytes, and their address is aligned.
            None => Ok(unsafe { Vec::from_raw_parts(start.as_ptr(), len, len) }),
        }
    }
}

/// A registration that lasts for one call of [`Device::with_registered`].
pub struct Registration {
    memory: Option<Memory>,
}

impl Registration {
    /// Information about the registration; `None` for an array without bytes.
    ///
    /// # Errors
    /// If the instance is closed, or belongs to the parent process.
    pub fn info(&self) -> Result<Option<MemoryInfo>, Error> {
        self.memory.as_ref().map(Memory::info).transpose()
    }

    /// Address of the first element for kernels. They must be complete before the call of [`Device::with_registered`]
    /// ends.
    ///
    /// # Errors
    /// [`ErrorKind::NoAccess`] if [`MemoryFlags::MAPPED`] was not granted, or there are no bytes.
    pub fn device_address(&self) -> Result<u64, Error> {
        match &self.memory {
            Some(memory) => memory.device_address(),
            None => Err(Error::own(
                Status::NO_ACCESS,
                "Registration::device_address",
                "an array without bytes has no address",
            )),
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Registration").field(&self.memory).finish()
    }
}

impl Device {
    /// Registers a borrowed array while a function runs. The function gets the array and the registration; when it
    /// returns or panics, the array is unregistered. There is no guard that could be forgotten, so the array never
    /// stays registered after the borrow has ended.
    ///
    /// ```
    /// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
    /// let mut numbers = [1u32, 2, 3];
    /// let memory = gpumem::DeviceMemory::<u32>::new(&device, 3)?;
    /// device.with_registered(&mut numbers, &gpumem::RegisterOptions::new(), |numbers, _| {
    ///     device.instance().copy(&memory, &*numbers)
    /// })??;
    /// assert_eq!(memory.to_vec()?, numbers);
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// While it is registered, nothing else can access the array:
    ///
    /// ```compile_fail,E0502
    /// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
    /// let mut numbers = [1u32, 2, 3];
    /// device.with_registered(&mut numbers, &gpumem::RegisterOptions::new(), |_, _| numbers[0])?;
    /// # Ok::<(), gpumem::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the array cannot be registered; the function is not called then. If it cannot be unregistered, which
    /// happens only if unsafe code enqueued work and did not wait for it.
    pub fn with_registered<T: Element, R>(
        &self,
        values: &mut [T],
        options: &RegisterOptions,
        function: impl FnOnce(&mut [T], &Registration) -> R,
    ) -> Result<R, Error> {
        let bytes = bytes_of::<T>(values.len(), "Device::with_registered")?;
        if bytes == 0 {
            return Ok(function(values, &Registration { memory: None }));
        }
        // SAFETY: the registration ends before this function returns or unwinds, and so before the borrow: nothing
        // else can take or forget it.
        let memory = unsafe { Memory::register(self, values.as_mut_ptr().cast(), bytes as u64, options) }
            .map_err(|error| error.called_as("Device::with_registered"))?;
        let registration = Registration { memory: Some(memory) };
        let result = function(values, &registration);
        match registration.memory.map_or(Ok(()), Memory::close) {
            Ok(()) => Ok(result),
            Err(rejected) => Err(rejected.error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_bytes_are_of_whole_aligned_elements() {
        let part = |all, range| part_of_bytes::<u32>(all, &range, "f").ok();
        assert_eq!(part((4, 11), 0..2), Some((0, 2)));
        assert_eq!(part((4, 11), 1..2), Some((4, 1)));
        assert_eq!(part((4, 11), 2..2), Some((8, 0)));
        assert_eq!(part((4, 11), 1..3), None);
        assert_eq!(part((6, 8), 0..1), None);
        assert_eq!(part_of_bytes::<[u64; 0]>((8, 0), &(..3), "f").ok(), Some((0, 3)));
    }
}
