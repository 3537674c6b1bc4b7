// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Arithmetic of sizes, in plain Rust.

use std::mem::size_of;

use crate::error::Error;

/// Bytes of `len` values, if Rust can address as many.
pub(crate) fn bytes_of<T>(len: usize, function: &'static str) -> Result<usize, Error> {
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(bytes),
        _ => Err(Error::invalid(
            function,
            format!("{len} elements of {} bytes are more than can be addressed", size_of::<T>()),
        )),
    }
}

/// Whether a rectangle of `height` rows of `width` elements, each row `pitch` elements after the one before, lies
/// within `len` elements. An empty one does.
pub(crate) fn rectangle_fits(len: usize, pitch: usize, width: usize, height: usize) -> bool {
    if width == 0 || height == 0 {
        return true;
    }
    let end = (height - 1).checked_mul(pitch).and_then(|start| start.checked_add(width));
    pitch >= width && matches!(end, Some(end) if end <= len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_checked() {
        assert_eq!(bytes_of::<u32>(3, "f").unwrap(), 12);
        assert_eq!(bytes_of::<u32>(0, "f").unwrap(), 0);
        assert_eq!(bytes_of::<[u8; 0]>(usize::MAX, "f").unwrap(), 0);
        assert_eq!(bytes_of::<u8>(isize::MAX as usize, "f").unwrap(), isize::MAX as usize);
        assert!(bytes_of::<u8>(isize::MAX as usize + 1, "f").is_err());
        assert!(bytes_of::<u16>(usize::MAX / 2 + 1, "f").is_err());
        assert!(bytes_of::<u64>(usize::MAX / 4, "f").is_err());
    }

    #[test]
    fn rectangles_are_checked() {
        assert!(rectangle_fits(10, 4, 2, 3));
        assert!(!rectangle_fits(9, 4, 2, 3));
        assert!(!rectangle_fits(100, 1, 2, 3));
        assert!(rectangle_fits(0, 0, 0, usize::MAX));
        assert!(rectangle_fits(0, 0, usize::MAX, 0));
        assert!(!rectangle_fits(usize::MAX, usize::MAX, 1, 3));
        assert!(!rectangle_fits(usize::MAX, usize::MAX, usize::MAX, 2));
    }
}
