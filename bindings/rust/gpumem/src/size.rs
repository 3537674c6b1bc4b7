// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Arithmetic of sizes.

use std::mem::size_of;

use crate::error::Error;

/// Bytes of `len` values; fails if Rust cannot address as many.
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

/// Whether a box of `depth` slices of `height` rows of `width` elements lies within `len` elements. The pitches are
/// from one row to the next and from one slice to the next; 0 means no gap. An empty box fits everywhere.
pub(crate) fn box_fits(
    len: usize,
    (width, height, depth): (usize, usize, usize),
    (row_pitch, slice_pitch): (usize, usize),
) -> bool {
    if width == 0 || height == 0 || depth == 0 {
        return true;
    }
    let row_pitch = if row_pitch == 0 { width } else { row_pitch };
    let spanned = (height - 1).checked_mul(row_pitch).and_then(|start| start.checked_add(width));
    let slice_pitch = if slice_pitch == 0 { height.checked_mul(row_pitch) } else { Some(slice_pitch) };
    match (spanned, slice_pitch) {
        (Some(spanned), Some(slice_pitch)) => {
            let end = (depth - 1).checked_mul(slice_pitch).and_then(|start| start.checked_add(spanned));
            row_pitch >= width && slice_pitch >= spanned && matches!(end, Some(end) if end <= len)
        }
        _ => false,
    }
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

    #[test]
    fn boxes_are_checked() {
        assert!(box_fits(12, (2, 3, 2), (0, 0)));
        assert!(!box_fits(11, (2, 3, 2), (0, 0)));
        // 2 slices of 2 rows: 0 1 . . 4 5 . . . . 10 11 . . 14 15
        assert!(box_fits(16, (2, 2, 2), (4, 10)));
        assert!(!box_fits(15, (2, 2, 2), (4, 10)));
        assert!(!box_fits(100, (2, 2, 1), (1, 0)));
        // A slice spans 6 elements.
        assert!(box_fits(100, (2, 2, 2), (4, 6)));
        assert!(!box_fits(100, (2, 2, 2), (4, 5)));
        for (width, height, depth) in [(0, usize::MAX, 9), (usize::MAX, 0, 9), (usize::MAX, 9, 0)] {
            assert!(box_fits(0, (width, height, depth), (0, 0)));
        }
        assert!(!box_fits(usize::MAX, (1, 2, 3), (usize::MAX, 0)));
        assert!(!box_fits(usize::MAX, (1, 1, 3), (0, usize::MAX)));
        assert!(!box_fits(usize::MAX, (usize::MAX, 1, 2), (0, 0)));
    }
}
