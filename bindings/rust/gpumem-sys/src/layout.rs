// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Compares the declarations with what the C compiler says of the headers, and the defaults of the structs with
//! those of the library.

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

/// Every line of the C compiler is ours, and every one of ours is the compiler's.
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

/// Each `Default` is what the library's own function sets up.
#[cfg(feature = "link")]
#[test]
fn defaults_are_those_of_the_library() {
    macro_rules! compare {
        ($($name:ident, $init:ident;)*) => {$({
            let own = crate::$name::default();
            let mut theirs = core::mem::MaybeUninit::<crate::$name>::zeroed();
            // SAFETY: the function writes a struct of this type.
            let theirs = unsafe {
                crate::$init(theirs.as_mut_ptr());
                theirs.assume_init()
            };
            assert_eq!(format!("{own:?}"), format!("{theirs:?}"), stringify!($name));
        })*};
    }
    compare! {
        gpumem_error, gpumem_error_init;
        gpumem_status_info, gpumem_status_info_init;
        gpumem_probe_info, gpumem_probe_info_init;
        gpumem_host_options, gpumem_host_options_init;
        gpumem_instance_desc, gpumem_instance_desc_init;
        gpumem_instance_info, gpumem_instance_info_init;
        gpumem_device_info, gpumem_device_info_init;
        gpumem_capability_info, gpumem_capability_info_init;
        gpumem_memory_desc, gpumem_memory_desc_init;
        gpumem_memory_info, gpumem_memory_info_init;
        gpumem_pointer_info, gpumem_pointer_info_init;
        gpumem_stream_desc, gpumem_stream_desc_init;
        gpumem_stream_info, gpumem_stream_info_init;
        gpumem_event_desc, gpumem_event_desc_init;
        gpumem_event_info, gpumem_event_info_init;
        gpumem_copy_options, gpumem_copy_options_init;
        gpumem_stats, gpumem_stats_init;
    }
}
