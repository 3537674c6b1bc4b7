// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// EventOptions is how an event shall be.
type EventOptions struct {
	Flags EventFlags
	Name  string // For messages and reports, up to 63 bytes.
}

// Event is a point in a stream that others can wait for.
type Event struct {
	device *Device
	handle uintptr
	done   atomic.Bool
}

func (e *Event) id() C.uintptr_t {
	if e == nil {
		return 0
	}
	return C.uintptr_t(e.handle)
}

// NewEvent creates an event. Until it is recorded it counts as complete.
func (d *Device) NewEvent(options EventOptions) (*Event, error) {
	if err := checkTexts("Device.NewEvent", options.Name); err != nil {
		return nil, err
	}
	desc := nativeEventDesc{flags: uint32(options.Flags)}
	desc.structSize = unsafe.Sizeof(desc)
	return d.event(C.gpumem_go_event_create(d.id(), (*C.uint8_t)(unsafe.Pointer(&desc)), options.Name))
}

// WrapEvent adopts a CUevent that other code made with those flags. It stays its maker's, who must keep it until the
// Event is closed.
func (d *Device) WrapEvent(native uintptr, flags EventFlags) (*Event, error) {
	return d.event(C.gpumem_go_event_wrap(d.id(), C.uintptr_t(native), C.gpumem_event_flags(flags)))
}

func (d *Device) event(result C.gpumem_go_result) (*Event, error) {
	runtime.KeepAlive(d)
	if err := failure(result); err != nil {
		return nil, err
	}
	event := &Event{device: d, handle: uintptr(result.value)}
	closeWhenCollected(event, func(event *Event) outcome {
		if event.device.instance.closed() {
			return outcomeGone
		}
		return outcomeOf(event.Close())
	})
	return event, nil
}

// Close destroys the event, or lets go of an adopted one. Work that waits for it goes on as it would have.
func (e *Event) Close() error {
	if e == nil || e.done.Load() {
		return nil
	}
	err := failure(C.gpumem_go_event_destroy(e.id()))
	if err == nil || isGone(err) {
		if !e.done.Swap(true) {
			closedByHand(e)
		}
		err = nil
	}
	runtime.KeepAlive(e)
	return err
}

// EventInfo is what is known about an event.
type EventInfo struct {
	DeviceOrdinal int        // Number of its device.
	Wrapped       bool       // It was adopted by WrapEvent.
	Flags         EventFlags // Flags granted.
	NativeEvent   uintptr    // The CUevent, for use by other code; 0 on host.
	Name          string     // As given at creation.
}

// Info tells what is known about the event.
func (e *Event) Info() (EventInfo, error) {
	var info nativeEventInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_event_get_info(e.id(), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(e)
	if err != nil {
		return EventInfo{}, err
	}
	return EventInfo{int(info.deviceOrdinal), info.wrapped != 0, EventFlags(info.flags), uintptr(info.nativeEvent),
		text(info.name[:])}, nil
}

// Record captures the work that is in a stream now; a later record replaces the capture.
func (e *Event) Record(stream *Stream) error {
	err := failure(C.gpumem_go_event_record(e.id(), stream.id()))
	runtime.KeepAlive(e)
	runtime.KeepAlive(stream)
	return err
}

// Query tells whether the work of the latest record is complete.
func (e *Event) Query() (complete bool, err error) {
	result := C.gpumem_go_event_query(e.id())
	runtime.KeepAlive(e)
	return Status(result.status) == Success, failure(result)
}

// Synchronize waits until the work of the latest record is complete.
func (e *Event) Synchronize() error {
	err := failure(C.gpumem_go_event_synchronize(e.id(), timeoutInfinite))
	runtime.KeepAlive(e)
	return err
}

// SynchronizeFor is Synchronize with a time limit. It reports whether the work is complete.
func (e *Event) SynchronizeFor(limit time.Duration) (complete bool, err error) {
	result := C.gpumem_go_event_synchronize(e.id(), nanoseconds(limit))
	runtime.KeepAlive(e)
	return Status(result.status) == Success, failure(result)
}

// Elapsed is the time between two recorded, complete events of one device that were made with timing. The error is
// NotReady if one of them is not complete.
func Elapsed(start, end *Event) (time.Duration, error) {
	var milliseconds C.float
	result := C.gpumem_go_event_get_elapsed_time(start.id(), end.id(), &milliseconds)
	runtime.KeepAlive(start)
	runtime.KeepAlive(end)
	if err := failure(result); err != nil {
		return 0, err
	}
	if Status(result.status) == NotReady {
		return 0, refusal(NotReady, "gpumem.Elapsed", "an event is not complete")
	}
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), nil
}
