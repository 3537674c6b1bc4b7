// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import "unsafe"

// The structs of the C interface, as this package sees them. Handles and pointers are numbers here, so that the
// garbage collector never takes one for its own. A test compares every field with the library's headers.

type nativeError struct {
	structSize   uintptr
	status       int32
	nativeDomain int32
	nativeCode   int32
	reserved     uint32
	nativeName   [56]byte
	function     [48]byte
	entryPoint   [48]byte
	message      [512]byte
}

type nativeStatusInfo struct {
	structSize uintptr
	status     int32
	reserved   uint32
	name       uintptr
	cause      uintptr
	remedy     uintptr
}

type nativeProbeInfo struct {
	structSize    uintptr
	backend       int32
	driverVersion int32
	deviceCount   uint32
	reserved      uint32
	name          [64]byte
}

type nativeHostOptions struct {
	structSize       uintptr
	deviceCount      uint32
	strict           int32
	deviceBytes      uint64
	granularity      uint64
	pageable         int32
	samePointer      int32
	lockMode         int32
	numaNodes        uint32
	registerCountMax uint64
	lockPiece        uint64
	quarantine       uint32
	fill             int32
	peers            uintptr
	masked           uintptr
}

type nativeInstanceDesc struct {
	structSize       uintptr
	backend          int32
	reserved         uint32
	name             uintptr
	pinBudget        uint64
	host             uintptr
	cudaContexts     uintptr
	cudaContextCount uint64
}

type nativeInstanceInfo struct {
	structSize    uintptr
	backend       int32
	driverVersion int32
	deviceCount   uint32
	strict        uint32
	pinBudget     uint64
	name          [64]byte
}

type nativeDeviceInfo struct {
	structSize   uintptr
	ordinal      uint32
	numaNode     int32
	totalBytes   uint64
	uuid         [16]byte
	pciDomain    uint32
	pciBus       uint32
	pciDevice    uint32
	computeMajor int32
	computeMinor int32
	lost         uint32
	pciID        [32]byte
	name         [256]byte
}

type nativeCapabilityInfo struct {
	structSize   uintptr
	capability   int32
	kind         int32 // The field "type".
	value        uint64
	source       int32
	status       int32
	nativeDomain int32
	nativeCode   int32
	name         [48]byte
	reason       [256]byte
}

type nativeMemoryDesc struct {
	structSize  uintptr
	kind        int32
	numaNode    int32
	size        uint64
	alignment   uint64
	require     uint64
	prefer      uint64
	hostPointer uint64
	name        uintptr
}

type nativeMemoryInfo struct {
	structSize     uintptr
	kind           int32
	numaNode       int32
	device         uintptr
	deviceOrdinal  uint32
	reserved       uint32
	hostPointer    uint64
	devicePointer  uint64
	size           uint64
	grantedSize    uint64
	alignment      uint64
	requestedFlags uint64
	grantedFlags   uint64
	bufferID       uint64
	name           [64]byte
}

type nativePointerInfo struct {
	structSize    uintptr
	kind          int32
	location      int32
	locationID    int32
	deviceOrdinal int32
	hostPointer   uint64
	devicePointer uint64
	base          uint64
	size          uint64
	bufferID      uint64
	grantedFlags  uint64
	access        int32
	reserved      uint32
	accessDevices uint64
	memory        uintptr
}

type nativeStreamDesc struct {
	structSize uintptr
	priority   int32
	reserved   uint32
	name       uintptr
}

type nativeStreamInfo struct {
	structSize    uintptr
	device        uintptr
	deviceOrdinal uint32
	wrapped       uint32
	priority      int32
	reserved      uint32
	nativeStream  uintptr
	name          [64]byte
}

type nativeEventDesc struct {
	structSize uintptr
	flags      uint32
	reserved   uint32
	name       uintptr
}

type nativeEventInfo struct {
	structSize    uintptr
	device        uintptr
	deviceOrdinal uint32
	wrapped       uint32
	flags         uint32
	reserved      uint32
	nativeEvent   uintptr
	name          [64]byte
}

type nativeCopyOptions struct {
	structSize  uintptr
	direction   int32
	sourceOrder int32
}

type nativeStatsKind struct {
	liveCount  uint64
	liveBytes  uint64
	peakCount  uint64
	peakBytes  uint64
	totalCount uint64
	totalBytes uint64
}

type nativeStats struct {
	structSize      uintptr
	device          nativeStatsKind
	pinned          nativeStatsKind
	registered      nativeStatsKind
	streams         uint64
	events          uint64
	fileDescriptors uint64
}

// text is a text of C in an array of fixed size.
func text(bytes []byte) string {
	for i, b := range bytes {
		if b == 0 {
			return string(bytes[:i])
		}
	}
	return string(bytes)
}

// pointerTo makes a pointer from an address of memory that is not Go's. Such an address is stored as a number and not
// as a pointer: memory that was given back may later become Go's, and the garbage collector must not find an old
// pointer to it.
func pointerTo(address uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
