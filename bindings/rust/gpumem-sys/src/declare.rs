// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Macros for the declarations in `types.rs` and `functions.rs`, which are generated from the headers.

/// `char` of C. (`core` has one only in newer compilers.)
#[cfg(any(
    target_arch = "aarch64",
    target_arch = "arm",
    target_arch = "powerpc",
    target_arch = "powerpc64",
    target_arch = "riscv32",
    target_arch = "riscv64",
    target_arch = "s390x"
))]
pub type c_char = u8;
/// `char` of C. (`core` has one only in newer compilers.)
#[cfg(not(any(
    target_arch = "aarch64",
    target_arch = "arm",
    target_arch = "powerpc",
    target_arch = "powerpc64",
    target_arch = "riscv32",
    target_arch = "riscv64",
    target_arch = "s390x"
)))]
pub type c_char = i8;

/// A version as one number; newer versions are larger.
#[allow(non_snake_case)]
pub const fn GPUMEM_MAKE_VERSION(major: u32, minor: u32, patch: u32) -> u32 {
    (major << 22) | (minor << 12) | patch
}

/// Pointers to types without a size, so that handles of different objects cannot be mixed up.
macro_rules! handles {
    ($($(#[$meta:meta])* $handle:ident = $target:ident;)*) => {$(
        #[doc = concat!("What a [`", stringify!($handle), "`] points to.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $target {
            _private: [u8; 0],
        }
        $(#[$meta])*
        pub type $handle = *mut $target;
    )*};
}

/// Types of numbers, and pointers to functions of the caller.
macro_rules! aliases {
    ($($(#[$meta:meta])* $name:ident = $type:ty;)*) => {
        $($(#[$meta])* pub type $name = $type;)*
    };
}

/// Constants, and for the layout test the lines that describe them.
macro_rules! constants {
    ($($(#[$meta:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$meta])* pub const $name: $type = $value;)*

        #[cfg(test)]
        pub(crate) fn describe_constants(lines: &mut std::vec::Vec<std::string::String>) {
            $(lines.push(std::format!("constant {} {}", stringify!($name), $name));)*
        }
    };
}

/// Structs with the layout of C, and for the layout test the lines that describe them and their defaults.
macro_rules! structs {
    ($($(#[$meta:meta])* $how:ident $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }
            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: every field is a number or a pointer, for which 0 is a value.
                    let zero: Self = unsafe { core::mem::zeroed() };
                    structs!(@$how zero)
                }
            }
        )*

        #[cfg(test)]
        pub(crate) fn describe_structs(lines: &mut std::vec::Vec<std::string::String>) {
            $(
                let probe = $name::default();
                let start = core::ptr::addr_of!(probe) as usize;
                crate::layout::describe_struct::<$name>(lines, stringify!($name));
                $(
                    let offset = core::ptr::addr_of!(probe.$field) as usize - start;
                    let size = core::mem::size_of_val(&probe.$field);
                    crate::layout::describe_field(lines, stringify!($name.$field), offset, size);
                )*
            )*
        }

        /// Passes the name and the default bytes of each struct that grows. Returns how many there are.
        #[cfg(test)]
        pub(crate) fn check_defaults(check: impl Fn(&str, &[u8])) -> usize {
            let mut count = 0;
            $(structs!(@check $how $name { $($field,)* }, check, count);)*
            count
        }
    };
    (@check growing $name:ident { $($field:ident,)* }, $check:ident, $count:ident) => {
        let value = $name::default();
        let size = core::mem::size_of::<$name>();
        // The bytes of padding would be undefined.
        assert_eq!(size, 0 $(+ core::mem::size_of_val(&value.$field))*, stringify!($name has padding));
        // SAFETY: without padding, every byte is initialised.
        $check(stringify!($name), unsafe {
            core::slice::from_raw_parts(core::ptr::addr_of!(value).cast::<u8>(), size)
        });
        $count += 1;
    };
    (@check plain $name:ident { $($field:ident,)* }, $check:ident, $count:ident) => {};
    (@growing $zero:ident) => {
        Self { struct_size: core::mem::size_of::<Self>(), ..$zero }
    };
    (@plain $zero:ident) => {
        $zero
    };
}

/// The functions: those of the table, and the one that returns it.
macro_rules! functions {
    (table {$(
        $(#[$meta:meta])* $pointer:ident, $name:ident($($parameter:ident: $type:ty),* $(,)?) $(-> $result:ty)?;
    )*}
    outside {$(
        $(#[$get_meta:meta])* $get_pointer:ident, $get:ident($($get_parameter:ident: $get_type:ty),* $(,)?)
            $(-> $get_result:ty)?;
    )*}) => {
        $(
            #[doc = concat!("Type of `", stringify!($name), "()`.")]
            pub type $pointer = unsafe extern "C" fn($($parameter: $type),*) $(-> $result)?;
        )*
        $(
            #[doc = concat!("Type of `", stringify!($get), "()`.")]
            pub type $get_pointer = unsafe extern "C" fn($($get_parameter: $get_type),*) $(-> $get_result)?;
        )*

        /// Every function of the library except `gpumem_table_get()`. `None` is a function that the library in use
        /// does not have.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct gpumem_table {
            /// Size of this struct.
            pub struct_size: usize,
            $($(#[$meta])* pub $name: Option<$pointer>,)*
        }

        impl Default for gpumem_table {
            fn default() -> Self {
                Self { struct_size: core::mem::size_of::<Self>(), $($name: None,)* }
            }
        }

        /// The functions of the library that this crate is linked with.
        #[cfg(feature = "link")]
        pub(crate) mod link {
            use super::*;

            extern "C" {
                $($(#[$meta])* pub fn $name($($parameter: $type),*) $(-> $result)?;)*
                $($(#[$get_meta])* pub fn $get($($get_parameter: $get_type),*) $(-> $get_result)?;)*
            }

            /// Checks that each function has its type in the table; never called.
            #[allow(dead_code)]
            fn assert_types() -> gpumem_table {
                $(let _: $get_pointer = $get;)*
                gpumem_table { struct_size: core::mem::size_of::<gpumem_table>(), $($name: Some($name),)* }
            }
        }

        #[cfg(feature = "load")]
        impl crate::Library {
            $(
                $(#[$meta])*
                ///
                /// # Errors
                /// If the library in use does not have the function.
                #[inline]
                pub fn $name(&self) -> Result<$pointer, crate::MissingSymbol> {
                    match self.table().$name {
                        Some(function) => Ok(function),
                        None => Err(crate::MissingSymbol::new(stringify!($name))),
                    }
                }
            )*
        }

        #[cfg(test)]
        pub(crate) fn describe_functions(lines: &mut std::vec::Vec<std::string::String>) {
            let probe = gpumem_table::default();
            let start = core::ptr::addr_of!(probe) as usize;
            crate::layout::describe_struct::<gpumem_table>(lines, "gpumem_table");
            let size = core::mem::size_of_val(&probe.struct_size);
            let offset = core::ptr::addr_of!(probe.struct_size) as usize - start;
            crate::layout::describe_field(lines, "gpumem_table.struct_size", offset, size);
            $(
                let offset = core::ptr::addr_of!(probe.$name) as usize - start;
                let size = core::mem::size_of_val(&probe.$name);
                crate::layout::describe_field(lines, concat!("gpumem_table.", stringify!($name)), offset, size);
                lines.push(std::format!("function {}", stringify!($name)));
            )*
            $(lines.push(std::format!("function {}", stringify!($get)));)*
        }
    };
}
