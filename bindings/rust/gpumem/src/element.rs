// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Types of elements in memory that devices read and write.

use std::mem::MaybeUninit;
use std::num::Wrapping;
use std::sync::atomic::{
    AtomicI16, AtomicI32, AtomicI64, AtomicI8, AtomicIsize, AtomicU16, AtomicU32, AtomicU64, AtomicU8,
    AtomicUsize,
};

/// A type for memory that devices read and write.
///
/// # Safety
/// Every bit pattern is a value of the type (which excludes references, `bool`, `char` and enums), and dropping it
/// does nothing. A struct needs `#[repr(C)]` to have the layout that a kernel expects.
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "`{Self}` cannot lie in memory that devices write",
        label = "not every bit pattern is a value of this type",
        note = "elements are numbers, atomics, `MaybeUninit`, and arrays of these; declare your own struct of numbers with `unsafe impl gpumem::Element`"
    )
)]
pub unsafe trait Element: 'static {}

macro_rules! elements {
    ($($type:ty)*) => {$(
        // SAFETY: every bit pattern is a value, and there is nothing to drop.
        unsafe impl Element for $type {}
    )*};
}
elements! {
    u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 usize isize f32 f64
}

/// An atomic number, which threads may use while a device or a copy does. For a copy it is its number: `u32` for
/// `AtomicU32`.
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "`{Self}` is no atomic, and only an array of atomics can be written by a shared reference, lent to a stream or shared",
        label = "nothing would keep the elements from being accessed while they are copied",
        note = "an `Instance` takes `&mut` to the array; a `Stream` takes the array by value, and its `Pending` returns it; or make it of atomics, such as `Pinned<AtomicU32>`"
    )
)]
pub trait Atomic: Element + Sync + sealed::Atomic {
    /// The number, which has the same layout.
    type Number: Element + Copy;
}

macro_rules! atomics {
    ($($atomic:ident: $number:ty;)*) => {
        elements! { $($atomic)* }
        $(
            impl sealed::Atomic for $atomic {}
            impl Atomic for $atomic {
                type Number = $number;
            }
        )*
    };
}
atomics! {
    AtomicU8: u8;
    AtomicI8: i8;
    AtomicU16: u16;
    AtomicI16: i16;
    AtomicU32: u32;
    AtomicI32: i32;
    AtomicU64: u64;
    AtomicI64: i64;
    AtomicUsize: usize;
    AtomicIsize: isize;
}

// SAFETY: as its elements.
unsafe impl<T: Element, const N: usize> Element for [T; N] {}
// SAFETY: as the number in it.
unsafe impl<T: Element> Element for Wrapping<T> {}
// SAFETY: every bit pattern is allowed, and it never drops its content.
unsafe impl<T: Element> Element for MaybeUninit<T> {}

/// A number of 1, 2 or 4 bytes that memory can be filled with.
#[cfg_attr(
    gpumem_diagnostics,
    diagnostic::on_unimplemented(
        message = "memory cannot be filled with `{Self}`",
        label = "this is not a number of 1, 2 or 4 bytes",
        note = "use u8, i8, u16, i16, u32, i32 or f32; to clear memory with other elements, use `fill_bytes`"
    )
)]
pub trait FillValue: Element + Copy + sealed::FillValue {}

pub(crate) mod sealed {
    pub trait Atomic {}
    pub trait FillValue {
        /// The bits of the number, and its size in bytes.
        fn bits(self) -> (u32, u32);
    }
}

macro_rules! fill_values {
    ($($type:ty: $value:ident => $bits:expr, $size:literal;)*) => {$(
        impl FillValue for $type {}
        impl sealed::FillValue for $type {
            fn bits(self) -> (u32, u32) {
                let $value = self;
                ($bits, $size)
            }
        }
    )*};
}
fill_values! {
    u8: value => value.into(), 1;
    i8: value => (value as u8).into(), 1;
    u16: value => value.into(), 2;
    i16: value => (value as u16).into(), 2;
    u32: value => value, 4;
    i32: value => value as u32, 4;
    f32: value => value.to_bits(), 4;
}

#[cfg(test)]
mod tests {
    use super::sealed::FillValue;

    #[test]
    fn bits_of_numbers() {
        assert_eq!((-1i8).bits(), (0xff, 1));
        assert_eq!((-2i16).bits(), (0xfffe, 2));
        assert_eq!((-3i32).bits(), (0xffff_fffd, 4));
        assert_eq!(1.0f32.bits(), (0x3f80_0000, 4));
        assert_eq!(7u8.bits(), (7, 1));
    }
}
