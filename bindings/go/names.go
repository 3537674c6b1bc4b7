// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"fmt"
	"strings"
)

// constant is a constant of this package: its type, its name here and in C, and its value.
type constant struct {
	kind, name, inC string
	value           int64
}

// nameOf returns the name of a constant; the type and the number if there is none.
func nameOf(kind string, value int64) string {
	for i := range constants {
		if c := &constants[i]; c.value == value && c.kind == kind {
			return c.name
		}
	}
	return fmt.Sprintf("%s(%d)", kind, value)
}

// nameOfFlags returns the names of all flags that are set, and the number of those that have none.
func nameOfFlags(kind string, value uint64) string {
	var names []string
	for i := range constants {
		if c := &constants[i]; c.kind == kind && value&uint64(c.value) != 0 {
			names = append(names, c.name)
			value &^= uint64(c.value)
		}
	}
	if value != 0 || len(names) == 0 {
		names = append(names, fmt.Sprintf("%s(%#x)", kind, value))
	}
	return strings.Join(names, "|")
}

// functionNames has what a program calls in place of a function of C.
var functionNames = [...]struct{ inC, name string }{
	{"gpumem_buffer_create", "Device.NewGrowableBuffer"},
	{"gpumem_buffer_destroy", "GrowableBuffer.Close"},
	{"gpumem_buffer_forget_registration", "Registration.Close"},
	{"gpumem_buffer_get_info", "GrowableBuffer.Info"},
	{"gpumem_buffer_note_registration", "GrowableBuffer.NoteRegistration"},
	{"gpumem_buffer_prepare", "GrowableBuffer.Prepare"},
	{"gpumem_buffer_resize", "GrowableBuffer.Resize"},
	{"gpumem_buffer_set_access", "GrowableBuffer.SetAccess"},
	{"gpumem_buffer_set_ahead", "GrowableBuffer.SetAhead"},
	{"gpumem_buffer_set_callbacks", "GrowableBuffer.SetCallbacks"},
	{"gpumem_buffer_set_capacity", "GrowableBuffer.SetCapacity"},
	{"gpumem_buffer_sleep", "GrowableBuffer.Sleep"},
	{"gpumem_buffer_wake", "GrowableBuffer.Wake"},
	{"gpumem_capability_enumerate", "gpumem.Capabilities"},
	{"gpumem_copy", "Instance.Copy"},
	{"gpumem_copy_2d", "Instance.Copy2D"},
	{"gpumem_copy_2d_async", "Stream.Copy2D"},
	{"gpumem_copy_async", "Stream.Copy"},
	{"gpumem_copy_file", "Instance.ReadFile"},
	{"gpumem_copy_regions", "Instance.CopyRegions"},
	{"gpumem_copy_regions_async", "Stream.CopyRegions"},
	{"gpumem_device_can_access_peer", "Device.CanAccessPeer"},
	{"gpumem_device_disable_peer_access", "Device.DisablePeerAccess"},
	{"gpumem_device_enable_peer_access", "Device.EnablePeerAccess"},
	{"gpumem_device_get", "Instance.Device"},
	{"gpumem_device_get_capability", "Device.Capability"},
	{"gpumem_device_get_info", "Device.Info"},
	{"gpumem_device_get_memory", "Device.Memory"},
	{"gpumem_event_create", "Device.NewEvent"},
	{"gpumem_event_destroy", "Event.Close"},
	{"gpumem_event_export", "Event.Export"},
	{"gpumem_event_get_elapsed_time", "Event.Elapsed"},
	{"gpumem_event_get_info", "Event.Info"},
	{"gpumem_event_import", "Device.ImportEvent"},
	{"gpumem_event_query", "Event.Query"},
	{"gpumem_event_record", "Event.Record"},
	{"gpumem_event_synchronize", "Event.Synchronize"},
	{"gpumem_event_wrap", "Device.WrapEvent"},
	{"gpumem_feature_supported", "Feature.Supported"},
	{"gpumem_fill", "Instance.Fill"},
	{"gpumem_fill_2d", "Instance.Fill2D"},
	{"gpumem_fill_2d_async", "Stream.Fill2D"},
	{"gpumem_fill_async", "Stream.Fill"},
	{"gpumem_free", "Instance.Free"},
	{"gpumem_group_create", "Instance.NewGroup"},
	{"gpumem_group_destroy", "Group.Close"},
	{"gpumem_group_get_info", "Group.Info"},
	{"gpumem_group_prepare", "Group.Prepare"},
	{"gpumem_group_sleep", "Group.Sleep"},
	{"gpumem_group_wake", "Group.Wake"},
	{"gpumem_host_device_lose", "Device.HostLose"},
	{"gpumem_host_fail_step", "Instance.HostFailStep"},
	{"gpumem_host_foreign_alloc", "Device.HostForeignAlloc"},
	{"gpumem_host_foreign_free", "Device.HostForeignFree"},
	{"gpumem_host_foreign_peer_access", "Device.HostForeignPeerAccess"},
	{"gpumem_host_kernel_view", "HostKernel.View"},
	{"gpumem_host_launch", "Stream.HostLaunch"},
	{"gpumem_host_native_stream_create", "Device.HostNativeStream"},
	{"gpumem_host_native_stream_destroy", "Device.DestroyHostNativeStream"},
	{"gpumem_host_set_current_device", "gpumem.HostSetCurrentDevice"},
	{"gpumem_host_stream_set_capturing", "Stream.HostSetCapturing"},
	{"gpumem_hub_close", "Hub.Close"},
	{"gpumem_hub_get_info", "Hub.Info"},
	{"gpumem_hub_open", "Instance.OpenHub"},
	{"gpumem_hub_publish", "Hub.Publish"},
	{"gpumem_hub_withdraw", "Hub.Withdraw"},
	{"gpumem_instance_close", "Instance.Close"},
	{"gpumem_instance_default", "gpumem.Default"},
	{"gpumem_instance_get_info", "Instance.Info"},
	{"gpumem_instance_open", "gpumem.Open"},
	{"gpumem_instance_probe", "gpumem.Probe"},
	{"gpumem_link_close", "Link.Close"},
	{"gpumem_link_connect", "Instance.Connect"},
	{"gpumem_link_enumerate", "Link.Entries"},
	{"gpumem_link_fetch", "Link.Fetch"},
	{"gpumem_link_get_info", "Link.Info"},
	{"gpumem_link_get_way", "Link.ShareWay"},
	{"gpumem_link_publish", "Link.Publish"},
	{"gpumem_link_wait", "Link.Wait"},
	{"gpumem_link_withdraw", "Link.Withdraw"},
	{"gpumem_log_set_function", "gpumem.SetLogFunction"},
	{"gpumem_malloc", "Device.Malloc"},
	{"gpumem_managed_advise", "Instance.Advise"},
	{"gpumem_managed_attach", "Stream.Attach"},
	{"gpumem_managed_begin_host_access", "Memory.BeginHostAccess"},
	{"gpumem_managed_discard_and_prefetch_batch", "Stream.DiscardAndPrefetchBatch"},
	{"gpumem_managed_discard_batch", "Stream.DiscardBatch"},
	{"gpumem_managed_end_host_access", "HostAccess.Close"},
	{"gpumem_managed_get_info", "Instance.ManagedInfo"},
	{"gpumem_managed_prefetch", "Stream.Prefetch"},
	{"gpumem_managed_prefetch_batch", "Stream.PrefetchBatch"},
	{"gpumem_memory_create", "Device.NewMemory"},
	{"gpumem_memory_destroy", "Memory.Close"},
	{"gpumem_memory_get_import_info", "Memory.ImportInfo"},
	{"gpumem_memory_get_info", "Memory.Info"},
	{"gpumem_memory_register", "Device.RegisterMemory"},
	{"gpumem_physical_create", "Device.NewPhysical"},
	{"gpumem_physical_export_fabric", "Physical.ExportFabric"},
	{"gpumem_physical_export_fd", "Physical.Export"},
	{"gpumem_physical_get_granularity", "Device.PhysicalGranularity"},
	{"gpumem_physical_get_info", "Physical.Info"},
	{"gpumem_physical_import_fabric", "Device.ImportFabric"},
	{"gpumem_physical_import_fd", "Device.ImportPhysical"},
	{"gpumem_physical_release", "Physical.Close"},
	{"gpumem_physical_retain", "Instance.RetainPhysical"},
	{"gpumem_pointer_get_access", "Instance.PointerAccess"},
	{"gpumem_pointer_get_device_pointer", "Device.DevicePointer"},
	{"gpumem_pointer_get_info", "Instance.Pointer"},
	{"gpumem_pool_alloc", "Pool.Alloc"},
	{"gpumem_pool_alloc_aligned", "Pool.AllocAligned"},
	{"gpumem_pool_alloc_batch", "Pool.AllocBatch"},
	{"gpumem_pool_alloc_native", "Pool.AllocNative"},
	{"gpumem_pool_create", "Device.NewPool"},
	{"gpumem_pool_destroy", "Pool.Close"},
	{"gpumem_pool_free", "Pool.Free"},
	{"gpumem_pool_free_batch", "Pool.FreeBatch"},
	{"gpumem_pool_free_native", "PoolBlock.FreeNative"},
	{"gpumem_pool_free_pointer", "Instance.FreeBlock"},
	{"gpumem_pool_free_sized", "PoolBlock.Free"},
	{"gpumem_pool_get_block_info", "Instance.BlockInfo"},
	{"gpumem_pool_get_class_info", "Pool.Classes"},
	{"gpumem_pool_get_info", "Pool.Info"},
	{"gpumem_pool_record_use", "PoolBlock.RecordUse"},
	{"gpumem_pool_release_capture", "Pool.ReleaseCapture"},
	{"gpumem_pool_reset_peaks", "Pool.ResetPeaks"},
	{"gpumem_pool_set_callback", "Pool.SetCallback"},
	{"gpumem_pool_set_limit", "Pool.SetLimit"},
	{"gpumem_pool_set_release_threshold", "Pool.SetReleaseThreshold"},
	{"gpumem_pool_trim", "Pool.Trim"},
	{"gpumem_range_get_info", "AddressRange.Info"},
	{"gpumem_range_get_mapping", "Instance.Mapping"},
	{"gpumem_range_map", "AddressRange.Map"},
	{"gpumem_range_release", "AddressRange.Close"},
	{"gpumem_range_reserve", "Instance.ReserveRange"},
	{"gpumem_range_set_access", "AddressRange.SetAccess"},
	{"gpumem_range_unmap", "AddressRange.Unmap"},
	{"gpumem_register", "Device.Register"},
	{"gpumem_ring_acquire", "RingProducer.Acquire"},
	{"gpumem_ring_create", "Device.NewRing"},
	{"gpumem_ring_destroy", "RingProducer.Close"},
	{"gpumem_ring_export", "RingProducer.Export"},
	{"gpumem_ring_finish", "RingProducer.Finish"},
	{"gpumem_ring_get_info", "RingProducer.Info"},
	{"gpumem_ring_open", "Instance.OpenRing"},
	{"gpumem_ring_publish", "RingSlot.Publish"},
	{"gpumem_ring_release", "RingMessage.Release"},
	{"gpumem_ring_wait", "RingConsumer.Wait"},
	{"gpumem_share_export", "Instance.Export"},
	{"gpumem_share_export_dma_buf", "Instance.ExportDMABuf"},
	{"gpumem_share_flush_cache", "Instance.FlushImportCache"},
	{"gpumem_share_get_fds", "Instance.ExportedFiles"},
	{"gpumem_share_get_info", "ShareHandle.Info"},
	{"gpumem_share_get_way", "Instance.ShareWay"},
	{"gpumem_share_import", "Instance.Import"},
	{"gpumem_share_receive", "Instance.Receive"},
	{"gpumem_share_revoke", "Instance.Revoke"},
	{"gpumem_share_send", "Instance.Send"},
	{"gpumem_share_set_cache", "Instance.SetImportCache"},
	{"gpumem_stats_get", "Instance.Stats"},
	{"gpumem_stats_get_kind", "Instance.KindStats"},
	{"gpumem_stats_report", "Instance.Report"},
	{"gpumem_stats_reset_peaks", "Instance.ResetPeaks"},
	{"gpumem_status_enumerate", "gpumem.Statuses"},
	{"gpumem_status_get_info", "Status.Info"},
	{"gpumem_status_name", "Status.Name"},
	{"gpumem_stream_create", "Device.NewStream"},
	{"gpumem_stream_destroy", "Stream.Close"},
	{"gpumem_stream_get_capture_id", "Stream.CaptureID"},
	{"gpumem_stream_get_info", "Stream.Info"},
	{"gpumem_stream_launch_host_function", "Stream.Launch"},
	{"gpumem_stream_query", "Stream.Query"},
	{"gpumem_stream_synchronize", "Stream.Synchronize"},
	{"gpumem_stream_wait_event", "Stream.WaitEvent"},
	{"gpumem_stream_wait_value", "Stream.WaitValue"},
	{"gpumem_stream_wrap", "Device.WrapStream"},
	{"gpumem_stream_write_value", "Stream.WriteValue"},
	{"gpumem_unregister", "Instance.Unregister"},
	{"gpumem_version", "gpumem.VersionNumber"},
	{"gpumem_version_text", "gpumem.Version"},
}

// argumentNames has words for arguments in messages, and the words of this package.
var argumentNames = map[string]string{
	"NULL":        "nil",
	"location_id": "locationID", "max_level": "level", "numa_node": "NUMANode", "pin_budget": "PinBudget", "transfer_bytes": "TransferBytes", "transfer_threads": "TransferThreads",
	"value_size": "valueSize",
}

// functionName returns what a program calls in place of a function of C; another name is returned as it is.
func functionName(inC string) string {
	for i := range functionNames {
		if functionNames[i].inC == inC {
			return functionNames[i].name
		}
	}
	return inC
}

// constantName returns the name of a constant of C, or the type of the constants whose names begin so; "" for another.
func constantName(inC string) string {
	if inC == "GPUMEM_CLOSE_FORCE" {
		return "Instance.CloseForce"
	}
	for i := range constants {
		if c := &constants[i]; c.inC == inC {
			return c.name
		} else if strings.HasSuffix(inC, "_") && strings.HasPrefix(c.inC, inC) {
			return c.kind
		}
	}
	return ""
}

// translate returns a text of the library with the names of this package in place of those of C. Names that this package
// does not know stay: those of a newer library, and of environment variables.
func translate(text string) string { return translateWith(text, nil) }

func translateWith(text string, words map[string]string) string {
	isWord := func(c rune) bool {
		return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
	}
	var result strings.Builder
	for text != "" {
		end := strings.IndexFunc(text, func(c rune) bool { return !isWord(c) })
		if end < 0 {
			end = len(text)
		}
		word := text[:end]
		text = text[end:]
		if known := functionName(word); known != word {
			word = known
			text = strings.TrimPrefix(text, "()")
		} else if strings.HasPrefix(word, "GPUMEM_") {
			if known := constantName(word); known != "" {
				word = known
			}
		} else if known, ok := words[word]; ok {
			word = known
		}
		next := strings.IndexFunc(text, isWord)
		if next < 0 {
			next = len(text)
		}
		result.WriteString(word)
		result.WriteString(text[:next])
		text = text[next:]
	}
	return result.String()
}
