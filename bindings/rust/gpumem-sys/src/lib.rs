// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Declarations of libgpumem's C interface, under the names that they have in C.
//!
//! The [`gpumem`](https://docs.rs/gpumem) crate is the safe layer over these. The C headers have the full reference
//! of each function; here is its first sentence.
//!
//! * Feature `link` (the default) links the library, found with pkg-config. The functions are items of the crate's
//!   root.
//! * Feature `load` adds `Library`, which loads the library at run time, and has one result per function.
//!
//! Codes are integers, never Rust enums: a newer library may return numbers that this crate does not know.
//! The [`Default`] of a struct is all zeros, with `struct_size` set if it has one.

#![no_std]
#![deny(missing_docs)]
#![warn(unsafe_op_in_unsafe_fn)]
#![allow(non_camel_case_types)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod declare;
mod functions;
#[cfg(feature = "load")]
mod load;
mod types;

#[cfg(test)]
mod layout;

pub use declare::{c_char, GPUMEM_MAKE_VERSION};
#[cfg(feature = "link")]
pub use functions::link::*;
pub use functions::*;
#[cfg(feature = "load")]
pub use load::{Library, LoadError, LoadErrorKind, MissingSymbol};
pub use types::*;
