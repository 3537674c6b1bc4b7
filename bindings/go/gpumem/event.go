// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Event is a point in a stream that can be waited for.
type Event struct {
	handled
	device    *Device
	recording sync.Mutex
	recorded  atomic.Pointer[eventRecord] // The latest one, if it has work that was not observed complete.
}

// eventRecord is the work of a stream up to a record.
type eventRecord struct {
	work  *streamWork
	count uint64
}

// observe makes a call that may observe the latest record complete. A record meanwhile replaces the one that it is about.
func (e *Event) observe(call func() C.gpumem_go_result) C.gpumem_go_result {
	if e == nil {
		return call()
	}
	before := e.recorded.Load()
	result := call()
	if before != nil && Status(result.status) == Success && e.recorded.CompareAndSwap(before, nil) {
		before.work.saw(before.count)
	}
	runtime.KeepAlive(e)
	return result
}

// NewEvent creates an event. It counts as complete until it is recorded.
func (d *Device) NewEvent(options EventOptions) (*Event, error) {
	if err := options.check("Device.NewEvent"); err != nil {
		return nil, err
	}
	return d.event(C.gpumem_go_event_create(d.id(), C.gpumem_event_flags(options.Flags), options.Name))
}

// WrapEvent wraps a CUevent that other code created with the given flags. The CUevent stays its creator's, and must live
// until the Event is closed.
func (d *Device) WrapEvent(native uintptr, flags EventFlags) (*Event, error) {
	return d.event(C.gpumem_go_event_wrap(d.id(), C.uintptr_t(native), C.gpumem_event_flags(flags)))
}

func (d *Device) event(result C.gpumem_go_result) (*Event, error) {
	runtime.KeepAlive(d)
	if err := failure(result); err != nil {
		return nil, err
	}
	event := &Event{device: d, handled: handled{handle: uintptr(result.value)}}
	closeWhenDropped(event, d.instance)
	return event, nil
}

// Record records the work that is in a stream now. A later record replaces it.
func (e *Event) Record(stream *Stream) error {
	defer runtime.KeepAlive(stream)
	if e == nil {
		return failure(C.gpumem_go_event_record(0, stream.id()))
	}
	e.recording.Lock()
	defer e.recording.Unlock()
	work, before := stream.work(), e.recorded.Swap(nil)
	count := work.enqueued.Load()
	err := failure(C.gpumem_go_event_record(e.id(), stream.id()))
	if err != nil {
		e.recorded.Store(before)
	} else if work.observed.Load() < count {
		e.recorded.Store(&eventRecord{work, count})
	}
	runtime.KeepAlive(e)
	return err
}

// Query reports whether the work of the latest record is complete.
func (e *Event) Query() (complete bool, err error) {
	return succeeded(e.observe(func() C.gpumem_go_result { return C.gpumem_go_event_query(e.id()) }))
}

// Synchronize waits until the work of the latest record is complete.
func (e *Event) Synchronize() error {
	return failure(e.observe(func() C.gpumem_go_result { return C.gpumem_go_event_synchronize(e.id(), timeoutInfinite) }))
}

// SynchronizeFor is Synchronize with a timeout. It reports whether the work is complete.
func (e *Event) SynchronizeFor(limit time.Duration) (complete bool, err error) {
	return succeeded(e.observe(func() C.gpumem_go_result { return C.gpumem_go_event_synchronize(e.id(), nanoseconds(limit)) }))
}

// SynchronizeContext is Synchronize until the context is done. Then it returns the error of the context within about 10
// milliseconds, and the work goes on.
func (e *Event) SynchronizeContext(ctx context.Context) error {
	if ctx == nil {
		return refusal(ErrInvalidArgument, "Event.SynchronizeContext", "the context is nil")
	}
	return waitFor(ctx, e.Synchronize, e.SynchronizeFor)
}

// Elapsed returns the time from the record of the event to that of another one of the same device; negative if end was
// recorded first. Both events must have been created with timing. If one of the records is not complete, the error is
// NotReady.
func (e *Event) Elapsed(end *Event) (time.Duration, error) {
	result := C.gpumem_go_event_get_elapsed_time(e.id(), end.id())
	runtime.KeepAlive(e)
	runtime.KeepAlive(end)
	if err := failure(result); err != nil {
		return 0, err
	}
	if Status(result.status) == NotReady {
		return 0, refusal(NotReady, "Event.Elapsed", "the work of an event is not complete")
	}
	return time.Duration(int64(result.value)), nil
}
