// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include <stdint.h>
import "C"

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// PanicError reports a panic in a function that the library called.
type PanicError struct {
	Value any    // Value of the panic.
	Stack []byte // Stack at the panic.
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("gpumem: a function called by the library panicked: %v", e.Value)
}

// Unwrap returns the value of the panic if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// panicBox keeps the first panic until it is taken.
type panicBox struct{ first atomic.Pointer[PanicError] }

// guard runs a function and keeps its panic.
func (b *panicBox) guard(function func()) {
	defer func() {
		if value := recover(); value != nil {
			b.first.CompareAndSwap(nil, &PanicError{value, debug.Stack()})
		}
	}()
	function()
}

func (b *panicBox) take() error {
	if b.first.Load() == nil {
		return nil
	}
	if caught := b.first.Swap(nil); caught != nil {
		return caught
	}
	return nil
}

// hostCall is a function that is pending in a stream.
type hostCall struct {
	run      func()
	kernel   func(*HostKernel)
	instance uintptr // Handle of the stream's instance.
	panics   *panicBox
}

// calls has the functions that are pending in streams. The library knows only their numbers, never a pointer of Go. It
// is not a cgo.Handle, because functions that a lost device never runs must be dropped when the instance is closed.
var calls = struct {
	mutex   sync.Mutex
	last    uintptr
	waiting map[uintptr]*hostCall
}{waiting: map[uintptr]*hostCall{}}

func rememberCall(call *hostCall) uintptr {
	calls.mutex.Lock()
	defer calls.mutex.Unlock()
	calls.last++
	calls.waiting[calls.last] = call
	return calls.last
}

func takeCall(number uintptr) *hostCall {
	calls.mutex.Lock()
	defer calls.mutex.Unlock()
	call := calls.waiting[number]
	delete(calls.waiting, number)
	return call
}

// dropCalls drops the functions that a closed instance never ran.
func dropCalls(instance uintptr) {
	calls.mutex.Lock()
	defer calls.mutex.Unlock()
	for number, call := range calls.waiting {
		if call.instance == instance {
			delete(calls.waiting, number)
		}
	}
}

//export gpumemGoHostFunction
func gpumemGoHostFunction(number C.uintptr_t) {
	if call := takeCall(uintptr(number)); call != nil {
		call.panics.guard(call.run)
	}
}

//export gpumemGoHostKernel
func gpumemGoHostKernel(handle, number C.uintptr_t) {
	if call := takeCall(uintptr(number)); call != nil {
		kernel := &HostKernel{handle: uintptr(handle)}
		call.panics.guard(func() { call.kernel(kernel) })
		kernel.ended.Store(true)
	}
}

//export gpumemGoLog
func gpumemGoLog(level C.int32_t, message *C.char) {
	if function := logging.function.Load(); function != nil {
		logging.panics.guard(func() { (*function)(LogLevel(level), translate(C.GoString(message))) })
	}
}
