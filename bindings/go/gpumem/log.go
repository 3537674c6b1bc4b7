// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"sync"
	"sync/atomic"
)

type logFunction func(level LogLevel, message string)

var logging struct {
	setting  sync.Mutex
	function atomic.Pointer[logFunction]
	panics   panicBox
}

// SetLogFunction sets the function that receives the library's messages up to a level, for the whole process; nil for
// none. The library may call it on any thread, and it must not use this package. If it panics, the message is lost and
// the next SetLogFunction returns a *PanicError. When SetLogFunction returns, the previous function is not running and
// will not be called again.
func SetLogFunction(level LogLevel, function func(level LogLevel, message string)) error {
	if err := useLibrary(); err != nil {
		return err
	}
	// Not Lock, because a log function that calls this would wait for itself.
	if !logging.setting.TryLock() {
		return refusal(ErrBusy, "gpumem.SetLogFunction", "another goroutine is setting the function")
	}
	defer logging.setting.Unlock()
	former := logging.function.Load()
	on := C.uint32_t(0)
	if function != nil {
		on = 1
		wrapped := logFunction(function)
		logging.function.Store(&wrapped)
	}
	if err := failure(C.gpumem_go_log_set_function(on, C.gpumem_log_level(level))); err != nil {
		logging.function.Store(former)
		return err
	}
	if function == nil {
		logging.function.Store(nil)
	}
	return logging.panics.take()
}
