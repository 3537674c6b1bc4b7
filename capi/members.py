# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What Go, Rust and Python call the functions of C, for texts of the library that mention them. C# has its own list in generate.py."""

import re

# Nouns of C that are no class, because what they do belongs to that of the first handle.
NO_CLASS = ("share", "managed", "stats")
# The words of a class that are not those of its handle.
CLASSES = {
    "Python": {"ring": "RingProducer"},
    "Go": {"range": "AddressRange", "ring": "RingProducer", "buffer": "GrowableBuffer"},
    "Rust": {"range": "AddressRange", "ring": "RingProducer", "host_kernel": "host::Kernel", "host": "host"},
}
# What does not follow from the name in C.
OTHERS = {
    "Python": "status_get_info=gpumem.status_info status_enumerate=gpumem.statuses capability_enumerate=gpumem.capabilities "
              "memory_register=Device.register memory_get_import_info=ImportedMemory.import_info register=Device.register_pointer "
              "pointer_get_info=Instance.pointer_info pointer_get_access=Instance.pointer_access "
              "pointer_get_device_pointer=Device.device_pointer physical_get_granularity=Device.physical_granularity "
              "physical_import_fabric=Device.import_fabric physical_import_fd=Device.import_physical "
              "physical_retain=Instance.retain_physical range_get_mapping=Instance.mapping range_reserve=Instance.reserve "
              "buffer_forget_registration=Registration.close copy_file=Instance.read_file device_get=Instance.device "
              "device_get_memory=Device.memory_info event_import=gpumem.import_event event_get_elapsed_time=Event.elapsed_time_ns "
              "host_stream_set_capturing=gpumem.host.set_capturing host_device_lose=gpumem.host.lose host_kernel_view= table_get= "
              "instance_open=gpumem.Instance instance_probe=gpumem.probe instance_default=gpumem.default_instance "
              "hub_open=Instance.hub link_connect=Instance.connect link_enumerate=Link.list link_get_way=Link.share_way "
              "log_set_function=gpumem.set_log_function managed_get_info=Instance.managed_info "
              "managed_begin_host_access=HostAccess.begin managed_end_host_access=HostAccess.end pool_alloc_aligned=Pool.alloc "
              "pool_alloc_native=Pool.alloc pool_free=PoolBlock.free pool_free_native=PoolBlock.free pool_free_sized=PoolBlock.free "
              "pool_free_pointer=Instance.free_block pool_get_block_info=Instance.block_info pool_get_class_info=Pool.classes "
              "pool_record_use=PoolBlock.record_use ring_open=gpumem.open_ring ring_publish=RingSlot.publish "
              "ring_release=RingMessage.release ring_wait=RingConsumer.wait share_get_info=ShareHandle.info "
              "share_get_fds=Instance.share_fds share_get_way=Instance.share_way share_import=gpumem.import_memory "
              "share_send=gpumem.send_share share_receive=gpumem.receive_share share_set_cache=Instance.set_import_cache "
              "share_flush_cache=Instance.flush_import_cache stats_get=Instance.stats stats_get_kind=Instance.kind_stats",
    "Go": "version=gpumem.VersionNumber version_text=gpumem.Version feature_supported=Feature.Supported status_name=Status.Name "
          "status_get_info=Status.Info status_enumerate=gpumem.Statuses capability_enumerate=gpumem.Capabilities "
          "memory_register=Device.RegisterMemory pointer_get_info=Instance.Pointer pointer_get_device_pointer=Device.DevicePointer "
          "physical_get_granularity=Device.PhysicalGranularity physical_retain=Instance.RetainPhysical physical_export_fd=Physical.Export "
          "physical_import_fd=Device.ImportPhysical range_reserve=Instance.ReserveRange buffer_forget_registration=Registration.Close "
          "share_get_info=ShareHandle.Info share_get_fds=Instance.ExportedFiles share_set_cache=Instance.SetImportCache "
          "share_flush_cache=Instance.FlushImportCache share_get_way=Instance.ShareWay event_wrap=Device.WrapEvent "
          "event_get_elapsed_time=Event.Elapsed event_import=Device.ImportEvent copy_file=Instance.ReadFile "
          "host_native_stream_create=Device.HostNativeStream host_native_stream_destroy=Device.DestroyHostNativeStream "
          "host_stream_set_capturing=Stream.HostSetCapturing host_device_lose=Device.HostLose hub_open=Instance.OpenHub "
          "link_enumerate=Link.Entries link_get_way=Link.ShareWay device_get=Instance.Device "
          "pointer_get_access=Instance.PointerAccess "
          "managed_discard_and_prefetch_batch=Stream.DiscardAndPrefetchBatch instance_default=gpumem.Default log_set_function=gpumem.SetLogFunction managed_get_info=Instance.ManagedInfo "
          "managed_begin_host_access=Memory.BeginHostAccess managed_end_host_access=HostAccess.Close pool_free_sized=PoolBlock.Free "
          "pool_free_native=PoolBlock.FreeNative pool_free_pointer=Instance.FreeBlock pool_record_use=PoolBlock.RecordUse "
          "pool_get_class_info=Pool.Classes ring_create=Device.NewRing ring_open=Instance.OpenRing ring_publish=RingSlot.Publish "
          "ring_wait=RingConsumer.Wait ring_release=RingMessage.Release stats_get=Instance.Stats stats_get_kind=Instance.KindStats "
          "stream_wrap=Device.WrapStream stream_launch_host_function=Stream.Launch",
    "Rust": "version=Version::of_library version_text=Version::text_of_library feature_supported=Feature::is_supported "
            "status_name=Status::library_name status_get_info=Status::info status_enumerate=Status::all capability_enumerate=Capability::all "
            "memory_create=Memory::create pointer_get_info=Instance::pointer_info pointer_get_access=Instance::pointer_access "
            "pointer_get_device_pointer=Device::device_address range_get_mapping=Instance::mapping "
            "buffer_set_capacity=Buffer::reserve_exact buffer_forget_registration=BufferRegistration::close device_get=Instance::device "
            "share_get_info=ShareHandle::info share_get_fds=Instance::export_fds share_import=Imported::new "
            "memory_get_import_info=Imported::info share_set_cache=Instance::set_import_cache "
            "share_flush_cache=Instance::flush_import_cache share_get_way=Instance::share_way event_get_elapsed_time=Event::nanoseconds_since "
            "copy_file=Instance::read_file link_enumerate=Link::entries link_get_way=Link::share_way instance_probe=probe "
            "instance_default=Instance::default_instance log_set_function=log::set managed_discard_batch=Stream::discard "
            "managed_discard_and_prefetch_batch=Stream::discard_and_prefetch managed_get_info=Instance::managed_info "
            "managed_begin_host_access=Managed::host managed_end_host_access=Instance::end_host_access_raw pool_free=Pool::free_raw "
            "pool_free_sized=Pool::free_sized_raw pool_free_batch=Pool::free_batch_raw pool_free_pointer=Instance::free_block "
            "pool_record_use=PoolBlock::record_use pool_get_class_info=Pool::class pool_get_block_info=Instance::block_info "
            "ring_open=RingConsumer::open ring_publish=RingSlot::publish ring_wait=RingConsumer::wait ring_release=RingMessage::release "
            "stats_get=Instance::stats stats_get_kind=Instance::kind_stats",
}
OTHERS = {language: {f"gpumem_{pair.partition('=')[0]}": pair.partition("=")[2] for pair in pairs.split()}
          for language, pairs in OTHERS.items()}


def class_name(handle, language, pascal):
    return CLASSES[language].get(handle, pascal(handle))


def member(interface, function, language, pascal):
    """What a program calls in place of a function; `pascal` writes words as the language does."""
    if function.name in OTHERS[language]:
        return OTHERS[language][function.name]
    handles = [handle.name.removeprefix("gpumem_") for handle in interface.handles]
    first = function.parameters[0].type.base.removeprefix("gpumem_") if function.parameters else ""
    first = first if first in handles else ""
    words = function.name.removeprefix("gpumem_").removesuffix("_async")
    noun = max((noun for noun in [*handles, *CLASSES[language], *NO_CLASS] if words.startswith(f"{noun}_")), key=len, default="")
    words = words.removeprefix(f"{noun}_").removeprefix("get_")
    words = re.sub(r"^(destroy|release|close)$", "close", words)

    def name(handle):
        return class_name(handle, language, pascal)
    owner = first if noun in ("", *NO_CLASS) else noun
    if language == "Rust":
        words = {"create": "new", "query": "is_complete"}.get(words, words)
        return f"{name(owner)}::{words}" if owner else words
    if language == "Python":
        if noun == "host" or words.startswith("host_"):
            return f"gpumem.host.{words.removeprefix('host_')}"
        return f"{name(first)}.{noun}" if words == "create" else f"{name(owner) if owner else 'gpumem'}.{words}"
    if not first:
        return f"gpumem.{pascal(words)}"
    return f"{name(first)}.{f'New{name(noun)}' if words == 'create' else pascal(words)}"
