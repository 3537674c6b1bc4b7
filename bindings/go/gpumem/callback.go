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
	More  int    // Functions that panicked later, before this was returned. Their values are lost.
}

func (e *PanicError) Error() string {
	more := ""
	if e.More != 0 {
		more = fmt.Sprintf(" (and %d more did)", e.More)
	}
	return fmt.Sprintf("gpumem: a function called by the library panicked%s: %v", more, e.Value)
}

// Unwrap returns the value of the panic if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// panicBox keeps the first panic until it is taken, and counts the others.
type panicBox struct {
	first atomic.Pointer[PanicError]
	more  atomic.Int64
}

func (b *panicBox) put(value any) { b.keep(&PanicError{Value: value, Stack: debug.Stack()}) }

func (b *panicBox) keep(caught *PanicError) {
	if !b.first.CompareAndSwap(nil, caught) {
		b.more.Add(1 + int64(caught.More))
	}
}

// guard runs a function and keeps its panic. It does not return if the function has called runtime.Goexit.
func (b *panicBox) guard(function func()) {
	unseen := true
	func() {
		defer func() {
			if value := recover(); value != nil {
				b.put(value)
				unseen = false
			}
		}()
		function()
		unseen = false
	}()
	// In a program for Go 1.20 or older, recover returns nil for panic(nil), as it does for runtime.Goexit.
	if unseen {
		b.put(nil)
	}
}

func (b *panicBox) take() error {
	if b.first.Load() == nil {
		return nil
	}
	if caught := b.first.Swap(nil); caught != nil {
		caught.More += int(b.more.Swap(0))
		return caught
	}
	return nil
}

// hostCall is a function that is pending in a stream.
type hostCall struct {
	run      func()
	kernel   func(*HostKernel)
	instance uintptr // Handle of the stream's instance.
	work     *streamWork
}

// table has values that the library knows by their numbers, never by a pointer of Go. It is not a cgo.Handle, because
// what an instance no longer calls must be dropped when the instance is closed.
type table[T any] struct {
	mutex sync.Mutex
	last  uintptr
	all   map[uintptr]T
}

func (n *table[T]) add(value T) uintptr {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.all == nil {
		n.all = map[uintptr]T{}
	}
	n.last++
	n.all[n.last] = value
	return n.last
}

func (n *table[T]) find(number uintptr) T {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.all[number]
}

func (n *table[T]) take(number uintptr) T {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	value := n.all[number]
	delete(n.all, number)
	return value
}

func (n *table[T]) drop(goes func(T) bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for number, value := range n.all {
		if goes(value) {
			delete(n.all, number)
		}
	}
}

// calls has the functions that are pending in streams.
var calls table[*hostCall]

// dropCalls drops the functions that a closed instance never ran, or will not call again, and its addresses.
func dropCalls(instance uintptr) {
	calls.drop(func(call *hostCall) bool { return call.instance == instance })
	callbacks.drop(func(one *setCallbacks) bool { return one.instance == instance })
	poolCallbacks.drop(func(one *poolCallback) bool { return one.instance == instance })
	ownedMemory.drop(instance)
	ownedBlocks.drop(instance)
}

//export gpumemGoHostFunction
func gpumemGoHostFunction(number C.uintptr_t) {
	if call := calls.take(uintptr(number)); call != nil {
		call.work.guard(call.run)
	}
}

//export gpumemGoHostKernel
func gpumemGoHostKernel(handle, number C.uintptr_t) {
	if call := calls.take(uintptr(number)); call != nil {
		kernel := &HostKernel{handle: uintptr(handle)}
		call.work.guard(func() { call.kernel(kernel) })
		kernel.ended.Store(true)
	}
}

//export gpumemGoLog
func gpumemGoLog(level C.int32_t, message *C.char) {
	if function := logging.function.Load(); function != nil {
		logging.panics.guard(func() { (*function)(LogLevel(level), translateWith(C.GoString(message), argumentNames)) })
	}
}

//export gpumemGoProgress
func gpumemGoProgress(call C.uintptr_t, done, total C.uint64_t) C.int32_t {
	return refusedUnless(sleepCallOf(uintptr(call)).goesOn(uint64(done), uint64(total)))
}

//export gpumemGoBeforeSleep
func gpumemGoBeforeSleep(call, number C.uintptr_t) C.int32_t {
	return refusedUnless(callbacks.find(uintptr(number)).maySleep(sleepCallOf(uintptr(call))))
}

//export gpumemGoAfterWake
func gpumemGoAfterWake(call, number C.uintptr_t, generation C.uint64_t) {
	callbacks.find(uintptr(number)).woke(sleepCallOf(uintptr(call)), uint64(generation))
}

//export gpumemGoPoolCallback
func gpumemGoPoolCallback(number C.uintptr_t, size C.uint64_t) C.int32_t {
	if poolCallbacks.find(uintptr(number)).freed(uint64(size)) {
		return 1
	}
	return 0
}

func refusedUnless(yes bool) C.int32_t {
	if yes {
		return 0
	}
	return 1
}
