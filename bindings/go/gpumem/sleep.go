// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"errors"
	"math"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// sleepCall is a call that sleeps or wakes, and what the library calls meanwhile.
type sleepCall struct {
	progress func(done, total uint64) bool
	panics   panicBox
	exited   atomic.Bool // A function that it called has ended its goroutine.
}

// run makes the call. A panic or Goexit of a function that the library called goes on afterwards.
func (c *sleepCall) run(call func(number C.uintptr_t, progress C.uint32_t) C.gpumem_go_result) error {
	handle := cgo.NewHandle(c)
	defer handle.Delete()
	progress := C.uint32_t(0)
	if c.progress != nil {
		progress = 1
	}
	err := changing(func() C.gpumem_go_result { return call(C.uintptr_t(handle), progress) })
	if caught := c.panics.first.Load(); caught != nil {
		panic(caught.Value)
	}
	if c.exited.Load() {
		runtime.Goexit()
	}
	return err
}

// sleepCallOf returns the call with a number. Other code may have put a buffer to sleep, too; its number is 0.
func sleepCallOf(number uintptr) *sleepCall {
	if number == 0 {
		return &sleepCall{}
	}
	return cgo.Handle(number).Value().(*sleepCall)
}

// call calls a function of the caller.
func (c *sleepCall) call(function func()) {
	if !c.panics.runAside(function) {
		c.exited.Store(true)
	}
}

func (c *sleepCall) goesOn(done, total uint64) (yes bool) {
	c.call(func() { yes = c.progress(done, total) })
	return yes
}

// changer makes a call that changes a buffer or a group. No view may use bytes from the offset on.
type changer func(function string, from uint64, call func() error) error

// run puts to sleep what the function does.
func (o *SleepOptions) run(name string, change changer, sleep func(desc *C.uint8_t, directory *C.char, call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result) error {
	if err := o.check(name); err != nil {
		return err
	}
	desc := o.native()
	directory := optionalText(o.Directory)
	defer C.free(unsafe.Pointer(directory))
	defer runtime.KeepAlive(o)
	return change(name, 0, func() error {
		return (&sleepCall{progress: o.Progress}).run(func(call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result {
			return sleep(inC(&desc), directory, call, progress)
		})
	})
}

// run wakes what the function does.
func (o *WakeOptions) run(name string, change changer, wake func(call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result) error {
	if err := o.check(name); err != nil {
		return err
	}
	return change(name, math.MaxUint64, func() error { return (&sleepCall{progress: o.Progress}).run(wake) })
}

// run prepares what the function does.
func (o *PrepareOptions) run(name string, prepare func(directory *C.char) C.gpumem_go_result) error {
	if err := o.check(name); err != nil {
		return err
	}
	directory := optionalText(o.Directory)
	defer C.free(unsafe.Pointer(directory))
	return changing(func() C.gpumem_go_result { return prepare(directory) })
}

// leaveAfter is how long a call that was cancelled may take to undo what it did, before its caller leaves it alone.
const leaveAfter = 40 * time.Millisecond

// untilDone makes a call with this progress function, and ends it once the context is done. One that may wait for work, which
// a context cannot end, runs on a goroutine of its own; it is left there, among those that are left, until it asks the progress
// function. left is nil for a call that does not wait.
func untilDone(ctx context.Context, progress *func(done, total uint64) bool, left *leftCalls, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	const running, leaving, ending = 0, 1, 2
	var state atomic.Int32
	given, ended := *progress, error(nil)
	*progress = func(done, total uint64) bool {
		if done == total {
			state.CompareAndSwap(running, ending) // Nothing cancels the call any more.
		}
		if ended = ctx.Err(); ended != nil || given != nil && !given(done, total) {
			return false
		}
		ended = ctx.Err()
		return ended == nil
	}
	made := func() error {
		err := call()
		if ended != nil && errors.Is(err, ErrCancelled) {
			return ended
		}
		return err
	}
	if left == nil || ctx.Done() == nil || asideHere() != nil {
		return made()
	}
	var err error
	var panics panicBox
	returned, finished := false, make(chan struct{})
	go func() {
		defer close(finished)
		panics.guard(func() { err = made() })
		returned = true
	}()
	select {
	case <-finished:
	case <-ctx.Done():
		select {
		case <-finished:
		case <-time.After(leaveAfter):
			if state.CompareAndSwap(running, leaving) {
				left.add(finished)
				return ctx.Err()
			}
			<-finished
		}
	}
	if caught := panics.first.Load(); caught != nil {
		panic(caught.Value)
	}
	if !returned {
		runtime.Goexit()
	}
	return err
}

// leftCalls are calls of SleepContext that returned before they were undone.
type leftCalls struct {
	mutex sync.Mutex
	all   []<-chan struct{} // Closed when the call is undone.
}

func (l *leftCalls) add(finished <-chan struct{}) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.all = append(l.all, finished)
}

// now returns those that are not undone yet.
func (l *leftCalls) now() []<-chan struct{} {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	kept := l.all[:0]
	for _, finished := range l.all {
		select {
		case <-finished:
		default:
			kept = append(kept, finished)
		}
	}
	l.all = kept
	return append([]<-chan struct{}(nil), kept...)
}

// wait waits until all of them are undone.
func (l *leftCalls) wait(ctx context.Context, function string) error {
	for _, finished := range l.now() {
		if asideHere() != nil || calledByLibrary() {
			return waitsForItself(function)
		}
		select {
		case <-finished:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// BufferCallbacks are functions that are called when a buffer sleeps and wakes, alone or with its [Group]. They may ask
// for information about the buffer and note and close registrations; they must not change or close it. The call waits
// while they run, each on a goroutine of its own. If one panics or calls runtime.Goexit, that goes on in the goroutine of
// the call when the call is over. A function that refers to the buffer keeps it from being collected until it is closed,
// or other callbacks are set.
type BufferCallbacks struct {
	// Called before the buffer sleeps: the time to close registrations and to stop using it. If it does not return true,
	// the call fails with ErrBusy. May be nil.
	BeforeSleep func() bool
	// Called after the buffer has woken, and after a sleep that it had been told of did not happen: the time to renew
	// registrations. The generation is that of the memory, unchanged if it has not slept. May be nil.
	AfterWake func(generation uint64)
}

// setCallbacks are the callbacks of a buffer.
type setCallbacks struct {
	BufferCallbacks
	growing  *growing
	instance uintptr // Handle of the instance of the buffer.
}

// callbacks has the callbacks of all buffers.
var callbacks table[*setCallbacks]

func (s *setCallbacks) maySleep(call *sleepCall) (yes bool) {
	if s == nil || s.BeforeSleep == nil {
		return true
	}
	call.call(func() { yes = s.BeforeSleep() })
	return yes
}

func (s *setCallbacks) woke(call *sleepCall, generation uint64) {
	if s == nil {
		return
	}
	_ = s.growing.refresh(true) // An ordinary allocation has another address now.
	if s.AfterWake != nil {
		call.call(func() { s.AfterWake(generation) })
	}
}

// SetCallbacks sets the callbacks of the buffer; the zero value means none. When it returns, the ones before are not
// running and are not called again.
func (b *GrowableBuffer) SetCallbacks(given BufferCallbacks) error {
	if b == nil {
		return failure(C.gpumem_go_buffer_set_callbacks(0, 0))
	}
	// Not Lock, because a callback that calls this would wait for itself.
	if !b.setting.TryLock() {
		return refusal(ErrBusy, "GrowableBuffer.SetCallbacks", "another goroutine is setting the callbacks")
	}
	defer b.setting.Unlock()
	number := uintptr(0)
	if b.growing != nil && (given.BeforeSleep != nil || given.AfterWake != nil) {
		number = callbacks.add(&setCallbacks{given, b.growing, b.device.instance.handle})
	}
	err := changing(func() C.gpumem_go_result { return C.gpumem_go_buffer_set_callbacks(b.id(), C.uintptr_t(number)) })
	runtime.KeepAlive(b)
	if err != nil {
		callbacks.take(number)
		return err
	}
	callbacks.take(b.callbacks.Swap(number))
	if b.closed() || b.device.instance.closed() {
		callbacks.take(number) // It was closed meanwhile.
	}
	return nil
}

// Registration is the note that something outside the library holds the memory of a buffer. The buffer does not sleep
// before it is closed. One that is dropped stays noted, and the collector leaves its buffer alone.
type Registration struct {
	buffer *GrowableBuffer
	name   string
	number uint64
	done   atomic.Bool
}

// NoteRegistration notes that something outside the library holds the memory of the buffer: a network card, a
// communicator, a process that imported it. The name says what, in up to 63 bytes. Until the Registration is closed, the
// buffer does not sleep. It may be called from callbacks of the buffer and from functions of a stream.
func (b *GrowableBuffer) NoteRegistration(name string) (*Registration, error) {
	if err := checkTexts("GrowableBuffer.NoteRegistration", name); err != nil {
		return nil, err
	}
	result := C.gpumem_go_buffer_note_registration(b.id(), name)
	runtime.KeepAlive(b)
	if err := failure(result); err != nil {
		return nil, err
	}
	return &Registration{buffer: b, name: name, number: uint64(result.value)}, nil
}

// Close ends the registration. It does nothing if the registration or its buffer is closed. It may be called from
// callbacks of the buffer and from functions of a stream.
func (r *Registration) Close() error {
	if r == nil || r.buffer == nil || r.done.Swap(true) {
		return nil
	}
	err := checked(C.gpumem_go_buffer_forget_registration(r.buffer.id(), C.uint64_t(r.number)), r)
	if err != nil && !isGone(err) {
		r.done.Store(false)
		return err
	}
	return nil
}
