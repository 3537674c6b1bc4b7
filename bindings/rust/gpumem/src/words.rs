// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Texts of the library, with the names of this crate in place of those of C.

use std::borrow::Cow;

use crate::codes::{CODES, FLAGS, STATUSES};

/// The functions of C, and what a program calls in their place. Sorted.
const FUNCTIONS: &[(&str, &str)] = &[
    ("gpumem_buffer_create", "Buffer::new"),
    ("gpumem_buffer_destroy", "Buffer::close"),
    ("gpumem_buffer_forget_registration", "BufferRegistration::close"),
    ("gpumem_buffer_get_info", "Buffer::info"),
    ("gpumem_buffer_note_registration", "Buffer::note_registration"),
    ("gpumem_buffer_prepare", "Buffer::prepare"),
    ("gpumem_buffer_resize", "Buffer::resize"),
    ("gpumem_buffer_set_access", "Buffer::set_access"),
    ("gpumem_buffer_set_ahead", "Buffer::set_ahead"),
    ("gpumem_buffer_set_callbacks", "Buffer::set_callbacks"),
    ("gpumem_buffer_set_capacity", "Buffer::reserve_exact"),
    ("gpumem_buffer_sleep", "Buffer::sleep"),
    ("gpumem_buffer_wake", "Buffer::wake"),
    ("gpumem_capability_enumerate", "Capability::all"),
    ("gpumem_copy", "Instance::copy"),
    ("gpumem_copy_2d", "Instance::copy_2d"),
    ("gpumem_copy_2d_async", "Stream::copy_2d"),
    ("gpumem_copy_async", "Stream::copy"),
    ("gpumem_copy_file", "Instance::read_file"),
    ("gpumem_copy_regions", "Instance::copy_regions"),
    ("gpumem_copy_regions_async", "Stream::copy_regions"),
    ("gpumem_device_can_access_peer", "Device::can_access_peer"),
    ("gpumem_device_disable_peer_access", "Device::disable_peer_access"),
    ("gpumem_device_enable_peer_access", "Device::enable_peer_access"),
    ("gpumem_device_get", "Instance::device"),
    ("gpumem_device_get_capability", "Device::capability"),
    ("gpumem_device_get_info", "Device::info"),
    ("gpumem_device_get_memory", "Device::memory"),
    ("gpumem_event_create", "Event::new"),
    ("gpumem_event_destroy", "Event::close"),
    ("gpumem_event_export", "Event::export"),
    ("gpumem_event_get_elapsed_time", "Event::nanoseconds_since"),
    ("gpumem_event_get_info", "Event::info"),
    ("gpumem_event_import", "Event::import"),
    ("gpumem_event_query", "Event::is_complete"),
    ("gpumem_event_record", "Event::record"),
    ("gpumem_event_synchronize", "Event::synchronize"),
    ("gpumem_event_wrap", "Event::wrap"),
    ("gpumem_feature_supported", "Feature::is_supported"),
    ("gpumem_fill", "Instance::fill"),
    ("gpumem_fill_2d", "Instance::fill_2d"),
    ("gpumem_fill_2d_async", "Stream::fill_2d"),
    ("gpumem_fill_async", "Stream::fill"),
    ("gpumem_free", "Instance::free"),
    ("gpumem_group_create", "Group::new"),
    ("gpumem_group_destroy", "Group::close"),
    ("gpumem_group_get_info", "Group::info"),
    ("gpumem_group_prepare", "Group::prepare"),
    ("gpumem_group_sleep", "Group::sleep"),
    ("gpumem_group_wake", "Group::wake"),
    ("gpumem_host_device_lose", "host::device_lose"),
    ("gpumem_host_fail_step", "host::fail_step"),
    ("gpumem_host_foreign_alloc", "host::foreign_alloc"),
    ("gpumem_host_foreign_free", "host::foreign_free"),
    ("gpumem_host_foreign_peer_access", "host::foreign_peer_access"),
    ("gpumem_host_kernel_view", "host::Kernel::view"),
    ("gpumem_host_launch", "host::launch"),
    ("gpumem_host_native_stream_create", "host::native_stream_create"),
    ("gpumem_host_native_stream_destroy", "host::native_stream_destroy"),
    ("gpumem_host_set_current_device", "host::set_current_device"),
    ("gpumem_host_stream_set_capturing", "host::stream_set_capturing"),
    ("gpumem_hub_close", "Hub::close"),
    ("gpumem_hub_get_info", "Hub::info"),
    ("gpumem_hub_open", "Hub::open"),
    ("gpumem_hub_publish", "Hub::publish"),
    ("gpumem_hub_withdraw", "Hub::withdraw"),
    ("gpumem_instance_close", "Instance::close"),
    ("gpumem_instance_default", "Instance::default_instance"),
    ("gpumem_instance_get_info", "Instance::info"),
    ("gpumem_instance_open", "Instance::open"),
    ("gpumem_instance_probe", "probe"),
    ("gpumem_link_close", "Link::close"),
    ("gpumem_link_connect", "Link::connect"),
    ("gpumem_link_enumerate", "Link::entries"),
    ("gpumem_link_fetch", "Link::fetch"),
    ("gpumem_link_get_info", "Link::info"),
    ("gpumem_link_get_way", "Link::share_way"),
    ("gpumem_link_publish", "Link::publish"),
    ("gpumem_link_wait", "Link::wait"),
    ("gpumem_link_withdraw", "Link::withdraw"),
    ("gpumem_log_set_function", "log::set"),
    ("gpumem_malloc", "Device::malloc"),
    ("gpumem_managed_advise", "Instance::advise"),
    ("gpumem_managed_attach", "Stream::attach"),
    ("gpumem_managed_begin_host_access", "Managed::host"),
    ("gpumem_managed_discard_and_prefetch_batch", "Stream::discard_and_prefetch"),
    ("gpumem_managed_discard_batch", "Stream::discard"),
    ("gpumem_managed_end_host_access", "Instance::end_host_access_raw"),
    ("gpumem_managed_get_info", "Instance::managed_info"),
    ("gpumem_managed_prefetch", "Stream::prefetch"),
    ("gpumem_managed_prefetch_batch", "Stream::prefetch_batch"),
    ("gpumem_memory_create", "Memory::create"),
    ("gpumem_memory_destroy", "Memory::close"),
    ("gpumem_memory_get_import_info", "Imported::info"),
    ("gpumem_memory_get_info", "Memory::info"),
    ("gpumem_memory_register", "Memory::register"),
    ("gpumem_physical_create", "Physical::new"),
    ("gpumem_physical_export_fabric", "Physical::export_fabric"),
    ("gpumem_physical_export_fd", "Physical::export_fd"),
    ("gpumem_physical_get_granularity", "Physical::granularity"),
    ("gpumem_physical_get_info", "Physical::info"),
    ("gpumem_physical_import_fabric", "Physical::import_fabric"),
    ("gpumem_physical_import_fd", "Physical::import_fd"),
    ("gpumem_physical_release", "Physical::close"),
    ("gpumem_physical_retain", "Physical::retain"),
    ("gpumem_pointer_get_access", "Instance::pointer_access"),
    ("gpumem_pointer_get_device_pointer", "Device::device_address"),
    ("gpumem_pointer_get_info", "Instance::pointer_info"),
    ("gpumem_pool_alloc", "Pool::alloc"),
    ("gpumem_pool_alloc_aligned", "Pool::alloc_aligned"),
    ("gpumem_pool_alloc_batch", "Pool::alloc_batch"),
    ("gpumem_pool_alloc_native", "Pool::alloc_native"),
    ("gpumem_pool_create", "Pool::new"),
    ("gpumem_pool_destroy", "Pool::close"),
    ("gpumem_pool_free", "Pool::free_raw"),
    ("gpumem_pool_free_batch", "Pool::free_batch_raw"),
    ("gpumem_pool_free_native", "Pool::free_native"),
    ("gpumem_pool_free_pointer", "Instance::free_block"),
    ("gpumem_pool_free_sized", "Pool::free_sized_raw"),
    ("gpumem_pool_get_block_info", "Instance::block_info"),
    ("gpumem_pool_get_class_info", "Pool::class"),
    ("gpumem_pool_get_info", "Pool::info"),
    ("gpumem_pool_record_use", "PoolBlock::record_use"),
    ("gpumem_pool_release_capture", "Pool::release_capture"),
    ("gpumem_pool_reset_peaks", "Pool::reset_peaks"),
    ("gpumem_pool_set_callback", "Pool::set_callback"),
    ("gpumem_pool_set_limit", "Pool::set_limit"),
    ("gpumem_pool_set_release_threshold", "Pool::set_release_threshold"),
    ("gpumem_pool_trim", "Pool::trim"),
    ("gpumem_range_get_info", "AddressRange::info"),
    ("gpumem_range_get_mapping", "Instance::mapping"),
    ("gpumem_range_map", "AddressRange::map"),
    ("gpumem_range_release", "AddressRange::close"),
    ("gpumem_range_reserve", "AddressRange::reserve"),
    ("gpumem_range_set_access", "AddressRange::set_access"),
    ("gpumem_range_unmap", "AddressRange::unmap"),
    ("gpumem_register", "Device::register"),
    ("gpumem_ring_acquire", "RingProducer::acquire"),
    ("gpumem_ring_create", "RingProducer::new"),
    ("gpumem_ring_destroy", "RingProducer::close"),
    ("gpumem_ring_export", "RingProducer::export"),
    ("gpumem_ring_finish", "RingProducer::finish"),
    ("gpumem_ring_get_info", "RingProducer::info"),
    ("gpumem_ring_open", "RingConsumer::open"),
    ("gpumem_ring_publish", "RingSlot::publish"),
    ("gpumem_ring_release", "RingMessage::release"),
    ("gpumem_ring_wait", "RingConsumer::wait"),
    ("gpumem_share_export", "Instance::export"),
    ("gpumem_share_export_dma_buf", "Instance::export_dma_buf"),
    ("gpumem_share_flush_cache", "Instance::flush_import_cache"),
    ("gpumem_share_get_fds", "Instance::export_fds"),
    ("gpumem_share_get_info", "ShareHandle::info"),
    ("gpumem_share_get_way", "Instance::share_way"),
    ("gpumem_share_import", "Imported::new"),
    ("gpumem_share_receive", "Instance::receive"),
    ("gpumem_share_revoke", "Instance::revoke"),
    ("gpumem_share_send", "Instance::send"),
    ("gpumem_share_set_cache", "Instance::set_import_cache"),
    ("gpumem_stats_get", "Instance::stats"),
    ("gpumem_stats_get_kind", "Instance::kind_stats"),
    ("gpumem_stats_report", "Instance::report"),
    ("gpumem_stats_reset_peaks", "Instance::reset_peaks"),
    ("gpumem_status_enumerate", "Status::all"),
    ("gpumem_status_get_info", "Status::info"),
    ("gpumem_status_name", "Status::library_name"),
    ("gpumem_stream_create", "Stream::new"),
    ("gpumem_stream_destroy", "Stream::close"),
    ("gpumem_stream_get_capture_id", "Stream::capture_id"),
    ("gpumem_stream_get_info", "Stream::info"),
    ("gpumem_stream_launch_host_function", "Stream::launch_host_function"),
    ("gpumem_stream_query", "Stream::is_complete"),
    ("gpumem_stream_synchronize", "Stream::synchronize"),
    ("gpumem_stream_wait_event", "Stream::wait_event"),
    ("gpumem_stream_wait_value", "Stream::wait_value"),
    ("gpumem_stream_wrap", "Stream::wrap"),
    ("gpumem_stream_write_value", "Stream::write_value"),
    ("gpumem_unregister", "Instance::unregister"),
    ("gpumem_version", "Version::of_library"),
    ("gpumem_version_text", "Version::text_of_library"),
];

/// What C does by a call that this crate does in another way. Whole phrases: a text also has names and paths of the
/// program.
const PHRASES: &[(&str, &str)] = &[
    ("use gpumem_memory_destroy()", "drop its Imported"),
    ("call gpumem_managed_end_host_access() first", "drop its HostAccess first"),
    ("destroy it", "drop it"),
    ("destroy some", "drop some"),
    ("destroy that", "drop that"),
    ("destroy the ", "drop the "),
    ("Destroy the ", "Drop the "),
    ("destroy them", "drop them"),
    ("a destroyed pool", "a dropped pool"),
    ("destroyed this ", "dropped this "),
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

/// A text of the library with the names of this crate in place of those of C. Names that this crate does not know
/// stay: those of a newer library, and of environment variables.
pub(crate) fn translate(text: &str) -> String {
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut text = Cow::from(text);
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
    fn every_function_has_a_name() {
        let declared = include_str!("../../gpumem-sys/src/functions.rs");
        let mut names: Vec<_> = declared
            .split("PFN_")
            .skip(1)
            .filter_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next())
            .filter(|name| *name != "gpumem_table_get")
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, FUNCTIONS.iter().map(|(c, _)| *c).collect::<Vec<_>>());
    }

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
            ("the exporter has ended; destroy the import", "the exporter has ended; drop the import"),
            (
                "it is imported memory; use gpumem_memory_destroy()",
                "it is imported memory; drop its Imported",
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
