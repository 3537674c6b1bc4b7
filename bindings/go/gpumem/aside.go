// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"runtime"
	"runtime/cgo"
	"sync/atomic"
)

// aside is a function of the caller on a goroutine of its own, while the thread that the library called on waits for it.
// So runtime.Goexit ends that goroutine, and not the frames of the library.
type aside struct{ changes chan func() }

// asides counts those that run now.
var asides atomic.Int32

// runAside runs a function and reports whether it returned; a panic, which the box keeps, counts as returned.
func (b *panicBox) runAside(function func()) (returned bool) {
	one := &aside{make(chan func())}
	number := cgo.NewHandle(one)
	defer number.Delete()
	asides.Add(1)
	defer asides.Add(-1)
	go func() {
		defer close(one.changes)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		C.gpumem_go_set_aside(C.uintptr_t(number))
		defer C.gpumem_go_set_aside(0)
		b.guard(function)
		returned = true
	}()
	for change := range one.changes {
		change()
	}
	return returned
}

// asideHere returns the function of the caller that this goroutine runs while the library waits for it; nil if there is
// none.
func asideHere() *aside {
	if asides.Load() > 0 {
		if number := C.gpumem_go_get_aside(); number != 0 {
			return cgo.Handle(number).Value().(*aside)
		}
	}
	return nil
}

// hand makes a call on the thread that waits.
func hand[R any](waiting *aside, call func() R) R {
	result := make(chan R)
	waiting.changes <- func() { result <- call() }
	return <-result
}

// changing makes a call that a function of the caller may not make while the library waits for it. There it is made on
// the thread that waits, by which the library knows that it must refuse.
func changing(call func() C.gpumem_go_result) error {
	if waiting := asideHere(); waiting != nil {
		return hand(waiting, func() error { return failure(call()) })
	}
	return failure(call())
}
