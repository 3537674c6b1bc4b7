// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Compares the declarations with the layout that the C compiler printed from the headers.

use std::collections::BTreeSet;
use std::format;
use std::string::String;
use std::vec::Vec;

/// The line of a struct.
pub(crate) fn describe_struct<T>(lines: &mut Vec<String>, name: &str) {
    lines.push(format!(
        "struct {name} size {} align {}",
        core::mem::size_of::<T>(),
        core::mem::align_of::<T>()
    ));
}

/// The line of a field.
pub(crate) fn describe_field(lines: &mut Vec<String>, name: &str, offset: usize, size: usize) {
    let name: String = name.split_whitespace().collect::<String>().replace("r#", "");
    lines.push(format!("field {name} offset {offset} size {size}"));
}

fn own_lines() -> BTreeSet<String> {
    let mut lines = Vec::new();
    crate::types::describe_constants(&mut lines);
    crate::types::describe_structs(&mut lines);
    crate::functions::describe_functions(&mut lines);
    lines.into_iter().collect()
}

/// The lines of the C compiler and of Rust are the same.
#[test]
fn layout_is_that_of_c() {
    let path =
        std::env::var("GPUMEM_LAYOUT").expect("GPUMEM_LAYOUT names the layout that the C compiler printed");
    let text = std::fs::read_to_string(path).expect("the layout can be read");
    let expected: BTreeSet<String> = text.lines().map(String::from).collect();
    assert!(!expected.is_empty());
    let own = own_lines();
    let missing: Vec<_> = expected.difference(&own).collect();
    let different: Vec<_> = own.difference(&expected).collect();
    assert!(
        missing.is_empty() && different.is_empty(),
        "C has, Rust has not: {missing:#?}\nRust has, C has not: {different:#?}"
    );
}

#[test]
fn char_is_that_of_std() {
    let c: crate::c_char = 65;
    let same: std::os::raw::c_char = c;
    assert_eq!(same, 65);
}

/// Each `Default` of a struct that grows is zeroed but for its size, which is how C initialises it.
#[test]
fn defaults_are_zeroed_with_their_size() {
    let check = |name: &str, bytes: &[u8]| {
        let (size, rest) = bytes.split_at(core::mem::size_of::<usize>());
        assert_eq!(usize::from_ne_bytes(size.try_into().unwrap()), bytes.len(), "{name}");
        assert!(rest.iter().all(|byte| *byte == 0), "{name}");
    };
    assert!(crate::types::check_defaults(check) >= 20);
    let operand = crate::gpumem_copy_operand::default();
    assert!(operand.memory.is_null() && operand.pointer.is_null());
    assert_eq!((operand.offset, operand.row_pitch, operand.slice_pitch), (0, 0, 0));
}
