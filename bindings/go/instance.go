// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"strings"
	"unsafe"
)

// ProbeInfo is what a probe found out about a backend.
type ProbeInfo struct {
	Backend       Backend // The backend that an open would use.
	DriverVersion int     // Version as the driver counts (13000 is 13.0); 0 for host.
	DeviceCount   int     // Number of devices that an open would offer.
	Name          string  // For people, such as "CUDA driver 13.0".
}

// Probe finds out whether a backend can be opened here, without opening it. The error says why not.
func Probe(backend Backend) (ProbeInfo, error) {
	if err := useLibrary(); err != nil {
		return ProbeInfo{}, err
	}
	var info nativeProbeInfo
	info.structSize = unsafe.Sizeof(info)
	result := C.gpumem_go_instance_probe(C.gpumem_backend(backend), (*C.uint8_t)(unsafe.Pointer(&info)))
	if err := failure(result); err != nil {
		return ProbeInfo{}, err
	}
	return ProbeInfo{Backend(info.backend), int(info.driverVersion), int(info.deviceCount), text(info.name[:])}, nil
}

// HostOptions is how an instance of the host backend behaves. The zero value is the default of every field.
type HostOptions struct {
	DeviceCount      uint32   // Emulated devices, 1 to 64; 0 means 2.
	Strict           Toggle   // Device memory faults when the CPU touches it, and unfinished work is tracked; default on.
	DeviceBytes      uint64   // Memory of each device; 0 means 64 MiB.
	Granularity      uint64   // Unit in which device memory is charged; 0 means 2 MiB.
	Pageable         Toggle   // Devices reach ordinary memory; default off.
	SamePointer      Toggle   // Registered memory has one address for CPU and devices; default off.
	LockMode         LockMode // How far pinned memory is locked.
	NUMANodes        uint32   // Pretend that this many NUMA nodes exist; 0 means those of the machine.
	RegisterCountMax uint64   // Registrations that may live at once; 0 means 65500.
	LockPiece        uint64   // Locking works in pieces of this many bytes; 0 means 256 MiB.
	Quarantine       uint32   // Freed address ranges that stay inaccessible, 1 to 65536; 0 means 64.
	Fill             Toggle   // Fresh memory is filled with 0xA5; default as Strict.
	Peers            string   // Links between devices: "all", "none" or a list such as "0>1,1>0"; "" means all.
	Masked           string   // Entry points to treat as missing, such as "register,copy_2d".
}

// Options is what is to be opened. The zero value opens BackendAny with defaults.
type Options struct {
	Backend   Backend
	Name      string       // For messages and reports, up to 63 bytes.
	PinBudget uint64       // Page-locked bytes that may live at once; 0 means no limit.
	Host      *HostOptions // Used only if the host backend is opened; nil means defaults.
	// CUcontext values to work in, instead of the primary contexts of their devices. They must outlive the
	// instance. Used only if the cuda backend is opened.
	CUDAContexts []uintptr
}

// Instance is an opened backend with its devices and everything that was made through it.
type Instance struct {
	gate   // Views are inside.
	handle uintptr
}

func (i *Instance) id() C.uintptr_t {
	if i == nil {
		return 0
	}
	return C.uintptr_t(i.handle)
}

// Open opens a backend. Several instances may live side by side.
func Open(options Options) (*Instance, error) {
	if err := useLibrary(); err != nil {
		return nil, err
	}
	if err := checkTexts("gpumem.Open", options.Name); err != nil {
		return nil, err
	}
	desc := nativeInstanceDesc{backend: int32(options.Backend), pinBudget: options.PinBudget}
	desc.structSize = unsafe.Sizeof(desc)
	var host nativeHostOptions
	var hostPointer *C.uint8_t
	var peers, masked *C.char
	if given := options.Host; given != nil {
		if err := checkTexts("gpumem.Open", given.Peers, given.Masked); err != nil {
			return nil, err
		}
		host = given.native()
		hostPointer = (*C.uint8_t)(unsafe.Pointer(&host))
		peers, masked = optionalText(given.Peers), optionalText(given.Masked)
		defer C.free(unsafe.Pointer(peers))
		defer C.free(unsafe.Pointer(masked))
	}
	var contexts *C.uint8_t
	if len(options.CUDAContexts) > 0 {
		contexts = (*C.uint8_t)(unsafe.Pointer(&options.CUDAContexts[0]))
	}
	result := C.gpumem_go_instance_open((*C.uint8_t)(unsafe.Pointer(&desc)), options.Name, hostPointer, peers, masked,
		contexts, C.uint64_t(len(options.CUDAContexts)))
	if err := failure(result); err != nil {
		return nil, err
	}
	instance := &Instance{handle: uintptr(result.value)}
	closeWhenCollected(instance, func(instance *Instance) outcome { return outcomeOf(instance.Close()) })
	return instance, nil
}

func (o *HostOptions) native() nativeHostOptions {
	host := nativeHostOptions{
		deviceCount:      o.DeviceCount,
		strict:           int32(o.Strict),
		deviceBytes:      o.DeviceBytes,
		granularity:      o.Granularity,
		pageable:         int32(o.Pageable),
		samePointer:      int32(o.SamePointer),
		lockMode:         int32(o.LockMode),
		numaNodes:        o.NUMANodes,
		registerCountMax: o.RegisterCountMax,
		lockPiece:        o.LockPiece,
		quarantine:       o.Quarantine,
		fill:             int32(o.Fill),
	}
	host.structSize = unsafe.Sizeof(host)
	return host
}

// optionalText is a text for C, or nil for the empty one; to be freed.
func optionalText(text string) *C.char {
	if text == "" {
		return nil
	}
	return C.CString(text)
}

// checkTexts refuses a 0 byte, which C would take for the end.
func checkTexts(function string, texts ...string) error {
	for _, text := range texts {
		if strings.IndexByte(text, 0) >= 0 {
			return refusal(ErrInvalidArgument, function, "the text %q has a 0 byte", text)
		}
	}
	return nil
}

// Default is the one instance of the process for programs that want one without asking. The first call opens it as
// the environment says: GPUMEM_BACKEND (any, cuda, host), GPUMEM_PIN_BUDGET (bytes) and the GPUMEM_HOST_ variables.
// It belongs to the process and cannot be closed.
func Default() (*Instance, error) {
	if err := useLibrary(); err != nil {
		return nil, err
	}
	result := C.gpumem_go_instance_default()
	if err := failure(result); err != nil {
		return nil, err
	}
	return &Instance{handle: uintptr(result.value)}, nil
}

// Close closes the instance. It refuses with ErrBusy, and names the first of them, while memory, streams or events
// live. On a closed instance it does nothing.
func (i *Instance) Close() error {
	_, err := i.close(closeCheck)
	return err
}

// CloseForce waits for the instance's streams, destroys everything that was made through the instance and closes it.
// It tells how many objects it destroyed. Slices of their memory end with them.
func (i *Instance) CloseForce() (destroyed uint64, err error) { return i.close(closeForce) }

func (i *Instance) close(mode closeMode) (destroyed uint64, err error) {
	if i == nil || i.handle == 0 {
		return 0, nil
	}
	done, err := i.gate.close("Instance.Close", func() error {
		result := C.gpumem_go_instance_close(i.id(), C.gpumem_close_mode(mode))
		destroyed = uint64(result.value)
		return failure(result)
	})
	if done {
		closedByHand(i)
		dropCalls(i.handle)
	}
	runtime.KeepAlive(i)
	return destroyed, err
}

// InstanceInfo is what is known about an open instance.
type InstanceInfo struct {
	Backend       Backend // BackendCUDA or BackendHost.
	DriverVersion int     // Version as the driver counts; 0 for host.
	DeviceCount   int     // Number of devices.
	Strict        bool    // The host backend enforces its rules by faults and tracking.
	PinBudget     uint64  // As given at open.
	Name          string  // As given at open.
}

// Info tells what is known about the instance.
func (i *Instance) Info() (InstanceInfo, error) {
	var info nativeInstanceInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_instance_get_info(i.id(), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(i)
	if err != nil {
		return InstanceInfo{}, err
	}
	return InstanceInfo{
		Backend:       Backend(info.backend),
		DriverVersion: int(info.driverVersion),
		DeviceCount:   int(info.deviceCount),
		Strict:        info.strict != 0,
		PinBudget:     info.pinBudget,
		Name:          text(info.name[:]),
	}, nil
}

// KindStats counts one kind of memory.
type KindStats struct {
	LiveCount  uint64 // Objects that live.
	LiveBytes  uint64 // Their sizes, as asked for.
	PeakCount  uint64 // Most objects that lived at once since open or the last reset.
	PeakBytes  uint64 // Most bytes that lived at once.
	TotalCount uint64 // Objects made since open.
	TotalBytes uint64 // Bytes made since open.
}

// Stats counts what lives in an instance.
type Stats struct {
	Device          KindStats // Device memory.
	Pinned          KindStats // Pinned allocations.
	Registered      KindStats // Registered memory.
	Streams         uint64    // Streams that live, adopted ones included.
	Events          uint64    // Events that live, adopted ones included.
	FileDescriptors uint64    // File descriptors that the instance holds open.
}

// Live is the number of all objects that live.
func (s Stats) Live() uint64 {
	return s.Device.LiveCount + s.Pinned.LiveCount + s.Registered.LiveCount + s.Streams + s.Events
}

// Stats reads the counts.
func (i *Instance) Stats() (Stats, error) {
	var stats nativeStats
	stats.structSize = unsafe.Sizeof(stats)
	err := failure(C.gpumem_go_stats_get(i.id(), (*C.uint8_t)(unsafe.Pointer(&stats))))
	runtime.KeepAlive(i)
	if err != nil {
		return Stats{}, err
	}
	return Stats{
		Device:          kindStats(stats.device),
		Pinned:          kindStats(stats.pinned),
		Registered:      kindStats(stats.registered),
		Streams:         stats.streams,
		Events:          stats.events,
		FileDescriptors: stats.fileDescriptors,
	}, nil
}

// ResetPeaks sets the peaks to what lives now.
func (i *Instance) ResetPeaks() error {
	err := failure(C.gpumem_go_stats_reset_peaks(i.id()))
	runtime.KeepAlive(i)
	return err
}

// Report lists all that lives, a line for each object, or "nothing lives".
func (i *Instance) Report() (string, error) {
	defer runtime.KeepAlive(i)
	for capacity := uint64(1024); ; {
		buffer := make([]byte, capacity)
		result := C.gpumem_go_stats_report(i.id(), (*C.uint8_t)(unsafe.Pointer(&buffer[0])), C.uint64_t(capacity))
		if err := failure(result); err != nil {
			return "", err
		}
		if uint64(result.value) <= capacity {
			return text(buffer), nil
		}
		capacity = uint64(result.value)
	}
}

func kindStats(kind nativeStatsKind) KindStats {
	return KindStats{kind.liveCount, kind.liveBytes, kind.peakCount, kind.peakBytes, kind.totalCount, kind.totalBytes}
}
