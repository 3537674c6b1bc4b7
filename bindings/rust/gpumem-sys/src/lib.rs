// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Declarations of libgpumem's C interface, under the names that they have in C.
//!
//! The [`gpumem`](https://docs.rs/gpumem) crate is the safe layer over these. The reference of each function is
//! the C header of the same name; here stands the first sentence.
//!
//! * Feature `link` (the default) links the library, found with pkg-config. The functions are the items of this
//!   crate's root.
//! * Feature `load` adds `Library`, which loads the library while the program runs, and has one result per
//!   function.
//!
//! Codes are integers, never Rust enums: a newer library may return numbers that this crate does not know.
//! A struct that begins with `struct_size` is set up by its [`Default`].

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
