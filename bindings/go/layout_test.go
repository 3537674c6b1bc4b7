// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

// The structs of this package, by their names in C.
var layoutStructs = map[string]any{
	"gpumem_error":           nativeError{},
	"gpumem_status_info":     nativeStatusInfo{},
	"gpumem_probe_info":      nativeProbeInfo{},
	"gpumem_host_options":    nativeHostOptions{},
	"gpumem_instance_desc":   nativeInstanceDesc{},
	"gpumem_instance_info":   nativeInstanceInfo{},
	"gpumem_device_info":     nativeDeviceInfo{},
	"gpumem_capability_info": nativeCapabilityInfo{},
	"gpumem_memory_desc":     nativeMemoryDesc{},
	"gpumem_memory_info":     nativeMemoryInfo{},
	"gpumem_pointer_info":    nativePointerInfo{},
	"gpumem_stream_desc":     nativeStreamDesc{},
	"gpumem_stream_info":     nativeStreamInfo{},
	"gpumem_event_desc":      nativeEventDesc{},
	"gpumem_event_info":      nativeEventInfo{},
	"gpumem_copy_options":    nativeCopyOptions{},
	"gpumem_stats_kind":      nativeStatsKind{},
	"gpumem_stats":           nativeStats{},
}

// nameInC turns bufferID into buffer_id.
func nameInC(name string) string {
	if name == "kind" {
		return name
	}
	var text strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && unicode.IsLower(runes[i-1]) {
			text.WriteByte('_')
		}
		text.WriteRune(unicode.ToLower(r))
	}
	return text.String()
}

// ownLayout is what this package takes the interface to be, in the words of the layout file.
func ownLayout() map[string]string {
	lines := map[string]string{}
	for name, value := range layoutStructs {
		kind := reflect.TypeOf(value)
		lines["struct "+name] = fmt.Sprintf("size %d align %d", kind.Size(), kind.Align())
		for i := 0; i < kind.NumField(); i++ {
			field := kind.Field(i)
			inC := nameInC(field.Name)
			if name == "gpumem_capability_info" && inC == "kind" {
				inC = "type" // A keyword of Go.
			}
			lines["field "+name+"."+inC] = fmt.Sprintf("offset %d size %d", field.Offset, field.Type.Size())
		}
	}
	// The table is all functions in their order.
	list := append(functions(), "gpumem_table_get")
	lines["struct gpumem_table"] = fmt.Sprintf("size %d align 8", 8*len(list))
	lines["field gpumem_table.struct_size"] = "offset 0 size 8"
	for i, name := range list {
		lines["function "+name] = ""
		if name != "gpumem_table_get" {
			lines["field gpumem_table."+name] = fmt.Sprintf("offset %d size 8", 8*(i+1))
		}
	}
	for name, value := range layoutConstants {
		lines["constant "+name] = fmt.Sprint(value)
	}
	for status, name := range statusNames {
		lines["constant "+name] = fmt.Sprint(int32(status))
	}
	return lines
}

func TestLayoutIsThatOfTheHeaders(t *testing.T) {
	path := os.Getenv("GPUMEM_LAYOUT")
	if path == "" {
		t.Skip("GPUMEM_LAYOUT names no layout file")
	}
	content, err := os.ReadFile(path)
	must(t, err)
	own := ownLayout()
	for _, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		words := strings.SplitN(line, " ", 3)
		if len(words) < 2 {
			t.Fatalf("a line that is none: %q", line)
		}
		key, value := words[0]+" "+words[1], strings.Join(words[2:], " ")
		if mine, known := own[key]; !known {
			t.Errorf("unknown to this package: %s", line)
		} else if mine != value {
			t.Errorf("%s: here it is %q", line, mine)
		}
		delete(own, key)
	}
	for key := range own {
		t.Errorf("unknown to the headers: %s", key)
	}
}

// The statuses are in statusNames.
var layoutConstants = map[string]any{
	"GPUMEM_VERSION_MAJOR":                        VersionMajor,
	"GPUMEM_VERSION_MINOR":                        VersionMinor,
	"GPUMEM_VERSION_PATCH":                        VersionPatch,
	"GPUMEM_VERSION":                              makeVersion(VersionMajor, VersionMinor, VersionPatch),
	"GPUMEM_TIMEOUT_INFINITE":                     uint64(timeoutInfinite),
	"GPUMEM_CUDA_DRIVER_VERSION_MIN":              CUDADriverVersionMin,
	"GPUMEM_TOGGLE_DEFAULT":                       int32(ToggleDefault),
	"GPUMEM_TOGGLE_ON":                            int32(ToggleOn),
	"GPUMEM_TOGGLE_OFF":                           int32(ToggleOff),
	"GPUMEM_NATIVE_NONE":                          int32(NativeNone),
	"GPUMEM_NATIVE_ERRNO":                         int32(NativeErrno),
	"GPUMEM_NATIVE_CUDA":                          int32(NativeCUDA),
	"GPUMEM_FEATURE_BACKEND_HOST":                 int32(FeatureBackendHost),
	"GPUMEM_FEATURE_BACKEND_CUDA":                 int32(FeatureBackendCUDA),
	"GPUMEM_FEATURE_MEMORY_DEVICE":                int32(FeatureMemoryDevice),
	"GPUMEM_FEATURE_MEMORY_PINNED":                int32(FeatureMemoryPinned),
	"GPUMEM_FEATURE_MEMORY_REGISTERED":            int32(FeatureMemoryRegistered),
	"GPUMEM_FEATURE_STREAM_VALUE":                 int32(FeatureStreamValue),
	"GPUMEM_FEATURE_HOST_SIMULATION":              int32(FeatureHostSimulation),
	"GPUMEM_BACKEND_ANY":                          int32(BackendAny),
	"GPUMEM_BACKEND_CUDA":                         int32(BackendCUDA),
	"GPUMEM_BACKEND_HOST":                         int32(BackendHost),
	"GPUMEM_HOST_LOCK_DEFAULT":                    int32(HostLockDefault),
	"GPUMEM_HOST_LOCK_TRY":                        int32(HostLockTry),
	"GPUMEM_HOST_LOCK_REQUIRE":                    int32(HostLockRequire),
	"GPUMEM_HOST_LOCK_OFF":                        int32(HostLockOff),
	"GPUMEM_CLOSE_CHECK":                          int32(closeCheck),
	"GPUMEM_CLOSE_FORCE":                          int32(closeForce),
	"GPUMEM_LOG_ERROR":                            int32(LogError),
	"GPUMEM_LOG_WARNING":                          int32(LogWarning),
	"GPUMEM_LOG_INFO":                             int32(LogInfo),
	"GPUMEM_LOG_DEBUG":                            int32(LogDebug),
	"GPUMEM_KIND_UNKNOWN":                         int32(KindUnknown),
	"GPUMEM_KIND_PAGEABLE":                        int32(KindPageable),
	"GPUMEM_KIND_PINNED":                          int32(KindPinned),
	"GPUMEM_KIND_REGISTERED":                      int32(KindRegistered),
	"GPUMEM_KIND_DEVICE":                          int32(KindDevice),
	"GPUMEM_KIND_FOREIGN":                         int32(KindForeign),
	"GPUMEM_MEMORY_PORTABLE":                      uint64(MemoryPortable),
	"GPUMEM_MEMORY_MAPPED":                        uint64(MemoryMapped),
	"GPUMEM_MEMORY_WRITE_COMBINED":                uint64(MemoryWriteCombined),
	"GPUMEM_MEMORY_READ_ONLY":                     uint64(MemoryReadOnly),
	"GPUMEM_MEMORY_IOMEMORY":                      uint64(MemoryIOMemory),
	"GPUMEM_MEMORY_PAGE_LOCKED":                   uint64(MemoryPageLocked),
	"GPUMEM_MEMORY_NUMA_NODE":                     uint64(MemoryNUMANode),
	"GPUMEM_LOCATION_NONE":                        int32(LocationNone),
	"GPUMEM_LOCATION_DEVICE":                      int32(LocationDevice),
	"GPUMEM_LOCATION_HOST":                        int32(LocationHost),
	"GPUMEM_LOCATION_HOST_NUMA":                   int32(LocationHostNUMA),
	"GPUMEM_ACCESS_NONE":                          int32(AccessNone),
	"GPUMEM_ACCESS_READ":                          int32(AccessRead),
	"GPUMEM_ACCESS_READWRITE":                     int32(AccessReadWrite),
	"GPUMEM_ACCESS_UNKNOWN":                       int32(AccessUnknown),
	"GPUMEM_DIRECTION_INFER":                      int32(DirectionInfer),
	"GPUMEM_DIRECTION_HOST_TO_HOST":               int32(DirectionHostToHost),
	"GPUMEM_DIRECTION_HOST_TO_DEVICE":             int32(DirectionHostToDevice),
	"GPUMEM_DIRECTION_DEVICE_TO_HOST":             int32(DirectionDeviceToHost),
	"GPUMEM_DIRECTION_DEVICE_TO_DEVICE":           int32(DirectionDeviceToDevice),
	"GPUMEM_SOURCE_ORDER_STREAM":                  int32(SourceOrderStream),
	"GPUMEM_SOURCE_ORDER_DURING_CALL":             int32(SourceOrderDuringCall),
	"GPUMEM_SOURCE_ORDER_ANY":                     int32(SourceOrderAny),
	"GPUMEM_EVENT_DISABLE_TIMING":                 uint32(EventDisableTiming),
	"GPUMEM_EVENT_BLOCKING_SYNC":                  uint32(EventBlockingSync),
	"GPUMEM_WAIT_VALUE_GEQ":                       int32(WaitValueGEQ),
	"GPUMEM_WAIT_VALUE_EQ":                        int32(WaitValueEQ),
	"GPUMEM_WAIT_VALUE_AND":                       int32(WaitValueAND),
	"GPUMEM_WAIT_VALUE_NOR":                       int32(WaitValueNor),
	"GPUMEM_CAPABILITY_NO":                        CapabilityNo,
	"GPUMEM_CAPABILITY_YES":                       CapabilityYes,
	"GPUMEM_CAPABILITY_EMULATED":                  CapabilityEmulated,
	"GPUMEM_CAPABILITY_TYPE_TRI":                  int32(CapabilityTypeTri),
	"GPUMEM_CAPABILITY_TYPE_INT":                  int32(CapabilityTypeInt),
	"GPUMEM_CAPABILITY_TYPE_BYTES":                int32(CapabilityTypeBytes),
	"GPUMEM_CAPABILITY_FROM_ATTRIBUTE":            int32(CapabilityFromAttribute),
	"GPUMEM_CAPABILITY_FROM_TRIAL":                int32(CapabilityFromTrial),
	"GPUMEM_CAPABILITY_FROM_CONFIGURATION":        int32(CapabilityFromConfiguration),
	"GPUMEM_CAPABILITY_FROM_CONTRACT":             int32(CapabilityFromContract),
	"GPUMEM_CAPABILITY_UVA":                       int32(CapabilityUVA),
	"GPUMEM_CAPABILITY_DEVICE_COUNT":              int32(CapabilityDeviceCount),
	"GPUMEM_CAPABILITY_DEVICE_BYTES":              int32(CapabilityDeviceBytes),
	"GPUMEM_CAPABILITY_DEVICE_CPU_ACCESS":         int32(CapabilityDeviceCPUAccess),
	"GPUMEM_CAPABILITY_PIN_MAP_HOST":              int32(CapabilityPinMapHost),
	"GPUMEM_CAPABILITY_PIN_PAGE_LOCKED":           int32(CapabilityPinPageLocked),
	"GPUMEM_CAPABILITY_PIN_WRITE_COMBINED":        int32(CapabilityPinWriteCombined),
	"GPUMEM_CAPABILITY_PIN_REGISTER":              int32(CapabilityPinRegister),
	"GPUMEM_CAPABILITY_PIN_REGISTER_SAME_POINTER": int32(CapabilityPinRegisterSamePointer),
	"GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY":    int32(CapabilityPinRegisterReadOnly),
	"GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY":     int32(CapabilityPinRegisterIOMemory),
	"GPUMEM_CAPABILITY_PIN_MAX_SINGLE":            int32(CapabilityPinMaxSingle),
	"GPUMEM_CAPABILITY_PIN_MAX_COUNT":             int32(CapabilityPinMaxCount),
	"GPUMEM_CAPABILITY_PIN_NUMA":                  int32(CapabilityPinNUMA),
	"GPUMEM_CAPABILITY_HOST_ATOMICS":              int32(CapabilityHostAtomics),
	"GPUMEM_CAPABILITY_PAGEABLE":                  int32(CapabilityPageable),
	"GPUMEM_CAPABILITY_PAGEABLE_HOST_TABLES":      int32(CapabilityPageableHostTables),
	"GPUMEM_CAPABILITY_STREAM_VALUE32":            int32(CapabilityStreamValue32),
	"GPUMEM_CAPABILITY_STREAM_VALUE64":            int32(CapabilityStreamValue64),
	"GPUMEM_CAPABILITY_STREAM_VALUE_NOR":          int32(CapabilityStreamValueNor),
	"GPUMEM_CAPABILITY_COPY_ENGINES":              int32(CapabilityCopyEngines),
	"GPUMEM_CAPABILITY_PEER_ACCESS":               int32(CapabilityPeerAccess),
	"GPUMEM_CAPABILITY_PEER_ATOMICS":              int32(CapabilityPeerAtomics),
}
