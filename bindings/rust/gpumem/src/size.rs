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
            format!("{len} elements of {} bytes are more than can be addressed; pass fewer", size_of::<T>()),
        )),
    }
}

/// Checks that a rectangle of `height` rows of `width` elements, each row `pitch` elements after the one before, lies
/// within the `len` elements of the operand that `name` says. An empty one does.
pub(crate) fn check_rectangle(
    name: &str,
    len: usize,
    pitch: usize,
    (width, height): (usize, usize),
    function: &'static str,
) -> Result<(), Error> {
    if width == 0 || height == 0 {
        return Ok(());
    }
    check_pitch("", name, pitch, "width", width, function)?;
    let end = (height - 1).checked_mul(pitch).and_then(|start| start.checked_add(width));
    check_end("rectangle", name, end, len, function)
}

/// Checks that a box of `depth` slices of `height` rows of `width` elements lies within the `len` elements of the
/// operand that `name` says. The pitches are from one row to the next and from one slice to the next; 0 means no gap.
/// An empty box fits everywhere.
pub(crate) fn check_box(
    name: &str,
    len: usize,
    (width, height, depth): (usize, usize, usize),
    (row_pitch, slice_pitch): (usize, usize),
    function: &'static str,
) -> Result<(), Error> {
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let row_pitch = if row_pitch == 0 { width } else { row_pitch };
    check_pitch("row ", name, row_pitch, "width", width, function)?;
    let spanned = (height - 1).checked_mul(row_pitch).and_then(|start| start.checked_add(width));
    let slice_pitch = if slice_pitch == 0 { height.checked_mul(row_pitch) } else { Some(slice_pitch) };
    let mut end = None;
    if let (Some(spanned), Some(slice_pitch)) = (spanned, slice_pitch) {
        check_pitch("slice ", name, slice_pitch, "span of its rows", spanned, function)?;
        end = (depth - 1).checked_mul(slice_pitch).and_then(|start| start.checked_add(spanned));
    }
    check_end("box", name, end, len, function)
}

fn check_pitch(
    of: &str,
    name: &str,
    pitch: usize,
    least_name: &str,
    least: usize,
    function: &'static str,
) -> Result<(), Error> {
    if pitch >= least {
        return Ok(());
    }
    let text =
        format!("the {of}pitch of the {name} is {pitch}, which is less than the {least_name} of {least}");
    Err(Error::invalid(function, text))
}

/// `end` is none if it overflows.
fn check_end(
    what: &str,
    name: &str,
    end: Option<usize>,
    len: usize,
    function: &'static str,
) -> Result<(), Error> {
    match end {
        Some(end) if end <= len => Ok(()),
        _ => Err(Error::invalid(
            function,
            format!("the {what} does not lie within the {name}, which has {len} elements"),
        )),
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
        let error = bytes_of::<u16>(1 << 63, "f").unwrap_err();
        assert_eq!(
            error.message(),
            "9223372036854775808 elements of 2 bytes are more than can be addressed; pass fewer"
        );
        assert!(bytes_of::<u64>(usize::MAX / 4, "f").is_err());
    }

    fn rectangle_fits(len: usize, pitch: usize, extent: (usize, usize)) -> bool {
        check_rectangle("source", len, pitch, extent, "f").is_ok()
    }

    fn box_fits(len: usize, extent: (usize, usize, usize), pitches: (usize, usize)) -> bool {
        check_box("source", len, extent, pitches, "f").is_ok()
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let said = |result: Result<(), Error>| result.unwrap_err().to_string();
        let pitch = said(check_rectangle("source", 100, 1, (2, 3), "f"));
        assert!(pitch.contains("the pitch of the source is 1, which is less than the width of 2"), "{pitch}");
        let end = said(check_rectangle("destination", 9, 4, (2, 3), "f"));
        assert!(
            end.contains("the rectangle does not lie within the destination, which has 9 elements"),
            "{end}"
        );
        let row = said(check_box("source", 100, (2, 2, 1), (1, 0), "f"));
        assert!(row.contains("the row pitch of the source is 1, which is less than the width of 2"), "{row}");
        let slice = said(check_box("source", 100, (2, 2, 2), (4, 5), "f"));
        assert!(slice
            .contains("the slice pitch of the source is 5, which is less than the span of its rows of 6"));
    }

    #[test]
    fn rectangles_are_checked() {
        assert!(rectangle_fits(10, 4, (2, 3)));
        assert!(!rectangle_fits(9, 4, (2, 3)));
        assert!(!rectangle_fits(100, 1, (2, 3)));
        assert!(rectangle_fits(0, 0, (0, usize::MAX)));
        assert!(rectangle_fits(0, 0, (usize::MAX, 0)));
        assert!(!rectangle_fits(usize::MAX, usize::MAX, (1, 3)));
        assert!(!rectangle_fits(usize::MAX, usize::MAX, (usize::MAX, 2)));
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
