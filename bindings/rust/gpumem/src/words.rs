// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Texts of the library, with the names of this crate in place of those of C.

use std::borrow::Cow;

use crate::codes::{MemoryFlags, CODES, FLAGS, STATUSES};

mod functions;
use functions::FUNCTIONS;

/// What C does by a call that this crate does in another way. Whole phrases: a text also has names and paths of the
/// program.
const PHRASES: &[(&str, &str)] = &[
    ("use gpumem_memory_destroy()", "drop its Imported"),
    ("call gpumem_managed_end_host_access() first", "drop its HostAccess first"),
    ("use GPUMEM_LOCATION_HOST_NUMA, with the node in location_id", "call numa_node in place of host"),
    (
        "a block of a pool; use gpumem_pool_free()",
        "a block of a pool; drop it, or use Pool::free_raw if it is raw",
    ),
    (
        "it may be freed already, or belong to other code",
        "it may be freed already, a block of a pool, or of other code",
    ),
    (
        "live blocks; gpumem_pool_free_pointer() frees them",
        "live blocks; drop them, or use Instance::free_block for raw ones",
    ),
    (
        "destroyed; gpumem_pool_free_pointer() frees them",
        "dropped; drop the blocks, or use Instance::free_block for raw ones",
    ),
    ("destroyed pool; free the blocks", "dropped pool; drop the blocks"),
    ("destroyed pool", "dropped pool"),
    ("GPUMEM_ACCESS_READWRITE or 0", "GPUMEM_ACCESS_READWRITE or GPUMEM_ACCESS_NONE"),
    ("desc->cuda: context_count exceeds", "CudaOptions::contexts has more than"),
    ("desc->", ""),
    ("than that in desc", "than that in the options"),
    ("is empty; pass NULL for the default", "is empty; leave it out for the default"),
    ("physicals is NULL", "there are no blocks; pass at least one"),
    ("accesses is NULL", "there are no accesses; pass at least one"),
    ("physicals[", "blocks["),
    ("fd_count is ", "the number of descriptors is "),
    ("location_id is ", "Place::id is "),
    ("native_event is ", "native is "),
    ("token_size is ", "the size of the token is "),
    ("value_size", "the size of the value"),
    ("slots are held; release a message first", "slots are held; release the oldest message first"),
    ("destroy it", "drop it"),
    ("destroy some", "drop some"),
    ("destroy that", "drop that"),
    ("destroy the ", "drop the "),
    ("Destroy the ", "Drop the "),
    ("destroy them", "drop them"),
    ("destroyed this ", "dropped this "),
    ("are destroyed", "are dropped"),
    ("was destroyed", "was dropped"),
    ("destroying an object", "dropping an object"),
    ("destroying its object", "dropping its object"),
];

/// What a program calls in place of a function of C. Any other name is returned as it is.
pub(crate) fn function(name: &str) -> &str {
    match FUNCTIONS.binary_search_by(|(c, _)| (*c).cmp(name)) {
        Ok(index) => FUNCTIONS.get(index).map_or(name, |(_, rust)| rust),
        Err(_) => name,
    }
}

/// The name of a constant, or of the type of the constants whose names begin so.
fn constant(name: &str) -> Option<String> {
    if name == "GPUMEM_CLOSE_FORCE" {
        return Some("Instance::close_by_force".to_owned());
    }
    let mut all = CODES.iter().chain(FLAGS).chain(STATUSES);
    if name.ends_with('_') {
        all.find(|(c, _, _)| c.starts_with(name)).map(|(_, kind, _)| (*kind).to_owned())
    } else {
        all.find(|(c, _, _)| *c == name).map(|(_, kind, value)| format!("{kind}::{value}"))
    }
}

/// The names of flags that a text has as a number.
fn name_flags(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("the flags 0x")?;
    let (number, after) = rest.split_once(" do not belong to ")?;
    let flags = MemoryFlags(u64::from_str_radix(number, 16).ok()?);
    Some(format!("{before}leave out MemoryFlags::{flags:?}, which does not belong to {after}"))
}

/// A text of the library with the names of this crate in place of those of C. Names that this crate does not know
/// stay: those of a newer library, and of environment variables.
pub(crate) fn translate(text: &str) -> String {
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut text = name_flags(text).map_or(Cow::from(text), Cow::from);
    for (c, rust) in PHRASES {
        if text.contains(c) {
            text = text.replace(c, rust).into();
        }
    }
    let mut result = String::with_capacity(text.len());
    let mut rest = &*text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(|character| !is_word(character)).unwrap_or(rest.len()));
        let known = function(word);
        if known != word {
            result.push_str(known);
            rest = after.strip_prefix("()").unwrap_or(after);
        } else {
            let other = match word {
                "NULL" => Some("null".to_owned()),
                "gpumem_buffer" => Some("Buffer".to_owned()),
                "gpumem_physical" => Some("Physical".to_owned()),
                _ if word.starts_with("GPUMEM_") => constant(word),
                _ => None,
            };
            result.push_str(other.as_deref().unwrap_or(word));
            rest = after;
        }
        let (between, next) = rest.split_at(rest.find(is_word).unwrap_or(rest.len()));
        result.push_str(between);
        rest = next;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_names_of_this_crate() {
        for (c, rust) in [
            ("", ""),
            ("the device handle is NULL, ANNULLED", "the device handle is null, ANNULLED"),
            ("gpumem", "gpumem"),
            ("register it with gpumem_memory_register()", "register it with Memory::register"),
            ("Query gpumem_device_get_capability first", "Query Device::capability first"),
            ("require GPUMEM_MEMORY_READ_ONLY", "require MemoryFlags::READ_ONLY"),
            ("no GPUMEM_KIND_ value (é)", "no Kind value (é)"),
            ("close with GPUMEM_CLOSE_FORCE: 1", "close with Instance::close_by_force: 1"),
            ("(GPUMEM_ERROR_BUSY)", "(Status::BUSY)"),
            ("create it with GPUMEM_BUFFER_COPYABLE", "create it with BufferFlags::COPYABLE"),
            (
                "must be GPUMEM_ACCESS_READ, GPUMEM_ACCESS_READWRITE or 0",
                "must be Access::READ, Access::READ_WRITE or Access::NONE",
            ),
            ("desc->tag has 80 bytes", "tag has 80 bytes"),
            ("physicals[1] belongs to", "blocks[1] belongs to"),
            ("the exporter has ended; destroy the import", "the exporter has ended; drop the import"),
            (
                "it is imported memory; use gpumem_memory_destroy()",
                "it is imported memory; drop its Imported",
            ),
            (
                "use GPUMEM_LOCATION_HOST_NUMA, with the node in location_id",
                "call numa_node in place of host",
            ),
            (
                "the flags 0x41 do not belong to pageable memory",
                "leave out MemoryFlags::PORTABLE | NUMA_NODE, which does not belong to pageable memory",
            ),
            (
                "create it as a gpumem_buffer, or of a gpumem_physical",
                "create it as a Buffer, or of a Physical",
            ),
            ("cannot open /destroy/gpumem_buffers", "cannot open /destroy/gpumem_buffers"),
            ("set GPUMEM_HOST_DEVICES, gpumem_new_thing()", "set GPUMEM_HOST_DEVICES, gpumem_new_thing()"),
        ] {
            assert_eq!(translate(c), rust);
        }
    }
}
