// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"strings"
	"sync/atomic"
	"unsafe"
)

// Probe finds out whether a backend can be opened here, without opening it. The error says why it cannot.
func Probe(backend Backend) (ProbeInfo, error) {
	if err := useLibrary(); err != nil {
		return ProbeInfo{}, err
	}
	info := nativeProbeInfo{structSize: unsafe.Sizeof(nativeProbeInfo{})}
	result := C.gpumem_go_instance_probe(C.gpumem_backend(backend), inC(&info))
	return info.public(), failure(result)
}

// Instance is an open backend with its devices and every object made through it.
type Instance struct {
	gate      // Views, and calls that touch memory of the library themselves, are inside.
	handle    uintptr
	exclusive atomic.Int32 // What hasExclusive has found; 0 before.
	late      *panicBox    // Panics of functions whose streams are closed. It does not keep the Instance alive.
}

func newInstance(handle uintptr) *Instance {
	i := &Instance{handle: handle, late: &panicBox{}}
	i.what, i.after = "instance", ErrClosed
	return i
}

// Open opens a backend. Several instances can be open at once.
//
// With BackendAny, a cuda backend that cannot be opened is not a failure: Open opens the host backend, a warning is
// logged (see [SetLogFunction]), and [Instance.Info] reports why.
func Open(options Options) (*Instance, error) {
	if err := useLibrary(); err != nil {
		return nil, err
	}
	if err := options.check("gpumem.Open"); err != nil {
		return nil, err
	}
	desc := options.native()
	var host nativeHostOptions
	var hostPointer *C.uint8_t
	var peers, masked *C.char
	if given := options.Host; given != nil {
		if err := checkTexts("gpumem.Open", given.Peers, given.Masked); err != nil {
			return nil, err
		}
		host = given.native()
		hostPointer = inC(&host)
		peers, masked = optionalText(given.Peers), optionalText(given.Masked)
		defer C.free(unsafe.Pointer(peers))
		defer C.free(unsafe.Pointer(masked))
	}
	var cuda nativeCUDAOptions
	var cudaPointer, contexts *C.uint8_t
	if given := options.CUDA; given != nil {
		cuda = nativeCUDAOptions{structSize: unsafe.Sizeof(cuda), contextCount: uint64(len(given.Contexts))}
		cudaPointer, contexts = inC(&cuda), first(given.Contexts)
	}
	handle, err := valueOf[uintptr](C.gpumem_go_instance_open(inC(&desc), options.Name, hostPointer, peers, masked, cudaPointer, contexts))
	if err != nil {
		return nil, err
	}
	instance := newInstance(handle)
	closeWhenCollected(instance, func(instance *Instance) outcome {
		err := instance.Close()
		if instance.closed() {
			return outcomeFreed // Even if it returned a panic.
		}
		return outcomeOf(err)
	})
	return instance, nil
}

// optionalText copies a text for C, which the caller frees; nil for the empty one.
func optionalText(text string) *C.char {
	if text == "" {
		return nil
	}
	return C.CString(text)
}

// checkTexts refuses texts with a 0 byte, which C would take for the end.
func checkTexts(function string, texts ...string) error {
	for _, text := range texts {
		if strings.IndexByte(text, 0) >= 0 {
			return refusal(ErrInvalidArgument, function, "the text %q contains a 0 byte", text)
		}
	}
	return nil
}

// Default returns the default instance of the process, for programs that do not open their own. The first call opens it
// as the environment says: GPUMEM_BACKEND (any, cuda, host), GPUMEM_PIN_BUDGET (bytes), GPUMEM_TRANSFER_THREADS,
// GPUMEM_TRANSFER_BYTES and the GPUMEM_HOST_ variables. It
// belongs to the process and cannot be closed.
func Default() (*Instance, error) {
	if err := useLibrary(); err != nil {
		return nil, err
	}
	handle, err := valueOf[uintptr](C.gpumem_go_instance_default())
	if err != nil {
		return nil, err
	}
	return newInstance(handle), nil
}

// Close closes the instance. While memory, streams or events live, it fails with ErrBusy and a message that lists the
// first of them. On a closed instance it does nothing. It waits for the work of closed streams. If one of their functions
// panicked after Close of the stream, it closes the instance all the same, and returns a *PanicError.
func (i *Instance) Close() error {
	_, err := i.close("Instance.Close", closeCheck)
	return err
}

// CloseForce waits for the instance's streams, destroys everything that was made through the instance, and closes it. It
// returns the number of objects that it destroyed. Slices of their memory become invalid. It fails with ErrBusy while a View
// or a [HostAccess] uses memory of the instance. Panics are as for Close.
func (i *Instance) CloseForce() (destroyed uint64, err error) {
	return i.close("Instance.CloseForce", closeForce)
}

func (i *Instance) close(name string, mode closeMode) (destroyed uint64, err error) {
	if i == nil || i.handle == 0 {
		return 0, nil
	}
	done, err := i.gate.close(name, func() error {
		return changing(func() C.gpumem_go_result {
			result := C.gpumem_go_instance_close(i.id(), C.gpumem_close_mode(mode))
			destroyed = uint64(result.value)
			return result
		})
	})
	if done {
		closedByHand(i)
		dropCalls(i.handle)
		return destroyed, i.late.take()
	}
	runtime.KeepAlive(i)
	return destroyed, calledAs(name, err)
}

// Live returns the number of all live objects: memory, streams and events.
func (s Stats) Live() uint64 { return s.LiveCount + s.Streams + s.Events }

// Report returns a line for each live object with its kind, name, size and device, or "nothing lives".
func (i *Instance) Report() (string, error) {
	defer runtime.KeepAlive(i)
	report, err := wholeText(func(buffer *C.uint8_t, capacity C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_stats_report(i.id(), buffer, capacity)
	})
	return translate(report), err
}

// Snapshot returns the counters and the live objects as JSON, as the manual of gpumem_stats_snapshot describes it.
func (i *Instance) Snapshot() (string, error) {
	defer runtime.KeepAlive(i)
	return wholeText(func(buffer *C.uint8_t, capacity C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_stats_snapshot(i.id(), buffer, capacity)
	})
}

// wholeText asks again until the text fits.
func wholeText(write func(buffer *C.uint8_t, capacity C.uint64_t) C.gpumem_go_result) (string, error) {
	for capacity := uint64(1024); ; {
		buffer := make([]byte, capacity)
		result := write((*C.uint8_t)(unsafe.Pointer(&buffer[0])), C.uint64_t(capacity))
		if err := failure(result); err != nil {
			return "", err
		}
		if uint64(result.value) <= capacity {
			return text(buffer), nil
		}
		capacity = uint64(result.value)
	}
}
