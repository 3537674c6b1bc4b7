// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Functions that only the host backend has: stand-ins for kernels, and ways to bring a program into situations that
//! are rare on a GPU. On the cuda backend every function that takes an object fails with
//! [`ErrorKind::Unsupported`].

use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use gpumem_sys as sys;

pub use crate::calls::*;
use crate::codes::Access;
use crate::element::Element;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{check, Error};
use crate::library::{c, call, output_call};
use crate::size::bytes_of;
use crate::stream::{run_caught, Slot, Stream};

/// A running stand-in for a kernel.
#[derive(Debug)]
pub struct Kernel<'a> {
    handle: sys::gpumem_host_kernel,
    running: PhantomData<&'a ()>,
}

impl Kernel<'_> {
    /// Opens a view of memory for reading, with the rights of the device. A view that the device's address
    /// translation would refuse loses the device, as a faulting kernel does.
    ///
    /// # Safety
    /// At the device address `address` are `len` elements, which nothing writes while the view is used, and which
    /// live until the kernel ends.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceLost`] if the device has no such right there.
    pub unsafe fn view<T: Element>(&self, address: u64, len: usize) -> Result<&[T], Error> {
        let view = self.open::<T>(address, len, Access::READ)?;
        // SAFETY: the view lasts as long as the kernel runs; the rest is the caller's promise.
        Ok(unsafe { slice::from_raw_parts(view, len) })
    }

    /// Opens a view of memory for reading and writing; see [`view`](Self::view).
    ///
    /// # Safety
    /// At the device address `address` are `len` elements, which nothing else uses while the view is used, and which
    /// live until the kernel ends.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    #[allow(clippy::mut_from_ref)] // The memory is borrowed, not the kernel; the caller promises that it may be.
    pub unsafe fn view_mut<T: Element>(&self, address: u64, len: usize) -> Result<&mut [T], Error> {
        let view = self.open::<T>(address, len, Access::READ_WRITE)?;
        // SAFETY: as above.
        Ok(unsafe { slice::from_raw_parts_mut(view, len) })
    }

    fn open<T>(&self, address: u64, len: usize, access: Access) -> Result<*mut T, Error> {
        let bytes = bytes_of::<T>(len, "Kernel::view")?;
        if bytes == 0 {
            return Ok(ptr::NonNull::dangling().as_ptr());
        }
        let address = address as *const c_void;
        // SAFETY: the kernel runs, on this thread: it can neither be stored nor sent.
        let view =
            unsafe { output_call!(gpumem_host_kernel_view(self.handle, address, bytes as u64, access.0)) }?;
        if view as usize % std::mem::align_of::<T>() != 0 {
            return Err(Error::invalid("Kernel::view", "the address is not aligned for the elements"));
        }
        Ok(view.cast())
    }
}

type KernelSlot = Slot<Box<dyn FnOnce(&Kernel<'_>) + Send>>;

/// # Safety
/// `raw` is a share of a [`KernelSlot`], and the kernel runs.
unsafe extern "C" fn run_kernel(handle: sys::gpumem_host_kernel, raw: *mut c_void) {
    // SAFETY: the share that `launch` passed to C.
    let slot = unsafe { Arc::from_raw(raw as *const KernelSlot) };
    if let Some(function) = slot.take() {
        function(&Kernel { handle, running: PhantomData });
    }
}

/// Enqueues a function that stands in for a kernel. A panic ends it and is counted by [`Stream::panicked_functions`].
///
/// ```
/// use std::sync::Arc;
/// use gpumem::{host, Backend, DeviceMemory, Instance, Stream};
///
/// let instance = Instance::open(Backend::HOST)?;
/// let device = instance.device(0)?;
/// let stream = Stream::new(&device)?;
/// let numbers = Arc::new(DeviceMemory::from_slice(&device, &[1, 2, 3, 4])?);
/// let shared = numbers.clone();
/// host::launch(&stream, move |kernel| {
///     // SAFETY: the kernel owns a share of the memory, and nothing else uses it now.
///     if let Ok(view) = unsafe { kernel.view_mut::<i32>(shared.device_address().unwrap(), shared.len()) } {
///         view.iter_mut().for_each(|number| *number *= *number);
///     }
/// })?;
/// stream.synchronize()?;
/// assert_eq!(numbers.to_vec()?, [1, 4, 9, 16]);
/// # Ok::<(), gpumem::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`], [`ErrorKind::Unsupported`], [`ErrorKind::DeviceLost`],
/// [`ErrorKind::InvalidState`] or [`ErrorKind::OutOfMemory`], as the message says.
pub fn launch(stream: &Stream, kernel: impl FnOnce(&Kernel<'_>) + Send + 'static) -> Result<(), Error> {
    let launch = c!(gpumem_host_launch);
    let panics = stream.panics();
    let slot: Arc<KernelSlot> = Slot::new(Box::new(move |running: &Kernel<'_>| {
        if run_caught(|| kernel(running)) {
            panics.fetch_add(1, Ordering::Relaxed);
        }
    }));
    let keep = slot.launch(|raw| {
        // SAFETY: C gets a share of the slot, and calls the function that takes it at most once.
        unsafe { check(|error| launch(stream.handle(), Some(run_kernel), raw, error)) }
    })?;
    stream.keep(keep);
    Ok(())
}

/// Sets the calling thread's current device, as other code would, and returns the previous one.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`].
pub fn set_current_device(ordinal: Option<u32>) -> Result<Option<u32>, Error> {
    let ordinal = match ordinal {
        None => -1,
        Some(ordinal) => i32::try_from(ordinal).unwrap_or(i32::MAX),
    };
    // SAFETY: only handles, numbers and addresses.
    let previous = unsafe { output_call!(gpumem_host_set_current_device(ordinal)) }?;
    Ok(u32::try_from(previous).ok())
}
