// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Codes of the C interface as newtypes. They are not enums, because a newer library may return values that this
//! crate does not know.

use crate::error::Error;
use crate::library::{all, c, call, output_call};

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident: $type:ty { $($(#[$value_meta:meta])* $value:ident = $constant:ident,)* })*) => {
        /// Names in C, with the type and the name in this crate.
        pub(crate) const CODES: &[(&str, &str, &str)] =
            &[$($((stringify!($constant), stringify!($name), stringify!($value)),)*)*];

        $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $type);

        impl $name {
            $($(#[$value_meta])* pub const $value: Self = Self(gpumem_sys::$constant);)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $(Self::$value => formatter.write_str(stringify!($value)),)*
                    Self(other) => write!(formatter, concat!(stringify!($name), "({})"), other),
                }
            }
        }
    )*};
}

macro_rules! flags {
    ($($(#[$meta:meta])* $name:ident: $type:ty { $($(#[$value_meta:meta])* $value:ident = $constant:ident,)* })*) => {
        /// Names in C, with the type and the name in this crate.
        pub(crate) const FLAGS: &[(&str, &str, &str)] =
            &[$($((stringify!($constant), stringify!($name), stringify!($value)),)*)*];

        $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $type);

        impl $name {
            /// No flags.
            pub const NONE: Self = Self(0);
            $($(#[$value_meta])* pub const $value: Self = Self(gpumem_sys::$constant);)*

            /// Whether this has all flags of `other`.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut rest = self.0;
                let mut separator = "";
                $(if self.contains(Self::$value) {
                    write!(formatter, "{}{}", separator, stringify!($value))?;
                    separator = " | ";
                    rest &= !Self::$value.0;
                })*
                if rest != 0 || self.0 == 0 {
                    write!(formatter, "{}{:#x}", separator, rest)?;
                }
                Ok(())
            }
        }
    )*};
}

/// The statuses, with their names as text. The rest of `Status` is in `error.rs`.
macro_rules! statuses {
    ($(#[$meta:meta])* $name:ident: $type:ty { $($(#[$value_meta:meta])* $value:ident = $constant:ident,)* }) => {
        /// Names in C, with the type and the name in this crate.
        pub(crate) const STATUSES: &[(&str, &str, &str)] =
            &[$((stringify!($constant), stringify!($name), stringify!($value)),)*];

        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $type);

        impl $name {
            $($(#[$value_meta])* pub const $value: Self = Self(gpumem_sys::$constant);)*

            /// Name of the constant in C, such as `GPUMEM_ERROR_BUSY`; `GPUMEM_ERROR_?` for a number that this crate
            /// does not know. It calls neither the library nor a driver.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $(gpumem_sys::$constant => stringify!($constant),)*
                    _ => "GPUMEM_ERROR_?",
                }
            }
        }
    };
}

mod lists;
pub use lists::*;
pub(crate) use lists::{CODES, FLAGS, STATUSES};

impl Default for Backend {
    fn default() -> Self {
        Self::ANY
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::PINNED
    }
}

impl Default for LockMode {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Feature {
    /// Whether the library in use has this feature.
    ///
    /// # Errors
    /// If there is no library.
    pub fn is_supported(self) -> Result<bool, Error> {
        // SAFETY: any number is allowed.
        Ok(unsafe { c!(gpumem_feature_supported)(self.0) } != 0)
    }
}

impl Capability {
    /// All capabilities of the library in use.
    ///
    /// # Errors
    /// If there is no library.
    pub fn all() -> Result<Vec<Self>, Error> {
        // SAFETY: any index may be given.
        all(|index| unsafe { output_call!(gpumem_capability_enumerate(index)) }.map(Self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_print_their_names() {
        assert_eq!(format!("{:?}", Kind::PINNED), "PINNED");
        assert_eq!(format!("{:?}", Kind(77)), "Kind(77)");
        assert_eq!(format!("{:?}", MemoryFlags::NONE), "0x0");
        assert_eq!(format!("{:?}", MemoryFlags::PORTABLE | MemoryFlags(1 << 40)), "PORTABLE | 0x10000000000");
    }

    #[test]
    fn flags_are_sets() {
        let mut both = MemoryFlags::PORTABLE;
        both |= MemoryFlags::MAPPED;
        assert!(both.contains(MemoryFlags::MAPPED) && both.contains(MemoryFlags::NONE));
        assert!(!both.contains(MemoryFlags::WRITE_COMBINED | MemoryFlags::MAPPED));
    }
}
