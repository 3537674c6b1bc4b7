// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// Failed reports whether the status is a failure. Success and notes such as NotReady are not.
func (s Status) Failed() bool { return s < 0 }

// Name returns the name of the status in C, such as "GPUMEM_ERROR_BUSY", also for a status that only the library in use
// knows.
func (s Status) Name() string {
	for i := range constants {
		if c := &constants[i]; c.kind == "Status" && c.value == int64(s) {
			return c.inC
		}
	}
	if useLibrary() != nil {
		return "GPUMEM_ERROR_?"
	}
	return C.GoString(C.gpumem_go_status_name(C.gpumem_status(s)))
}

// Error makes a Status an error. Its text is that of String, such as "ErrBusy".
func (s Status) Error() string { return s.String() }

// StatusInfo is the name, cause and remedy of a status.
type StatusInfo struct {
	Status Status
	Name   string // Such as "GPUMEM_ERROR_BUSY".
	Cause  string // One line: when it is returned.
	Remedy string // One line: what to do about it.
}

// Info gets the cause and the remedy of a status.
func (s Status) Info() (StatusInfo, error) {
	if err := useLibrary(); err != nil {
		return StatusInfo{}, err
	}
	info := nativeStatusInfo{structSize: unsafe.Sizeof(nativeStatusInfo{})}
	err := failure(C.gpumem_go_status_get_info(C.gpumem_status(s), inC(&info)))
	if err != nil {
		return StatusInfo{}, err
	}
	constant := func(address uintptr) string { return C.GoString((*C.char)(pointerTo(uint64(address)))) }
	return StatusInfo{Status(info.status), constant(info.name), translate(constant(info.cause)),
		translate(constant(info.remedy))}, nil
}

// Statuses lists the statuses of the library in use.
func Statuses() ([]Status, error) {
	return enumerated[Status](func(index C.uint32_t) C.gpumem_go_result { return C.gpumem_go_status_enumerate(index) })
}

// Error is the detail of a failed call.
type Error struct {
	Status       Status       // For decisions of the program.
	Message      string       // One line: what is wrong and what to do.
	Function     string       // The function of the library, or the method of this package, that failed. Error has the name in Go.
	EntryPoint   string       // The driver or system call that failed; empty if none was reached.
	NativeDomain NativeDomain // Type of NativeCode.
	NativeCode   int32        // Code of the driver or operating system; 0 if there was none.
	NativeName   string       // Name of NativeCode, such as "CUDA_ERROR_OUT_OF_MEMORY" or "ENOMEM".
	called       string       // What the program called, if it is not the counterpart of Function.
}

// calledAs makes an error name what the program called.
func calledAs(name string, err error) error {
	if detail, ok := err.(*Error); ok {
		detail.called = name
		if !strings.HasPrefix(detail.Function, "gpumem_") {
			detail.Function = name
		}
		if strings.HasPrefix(name, "Buffer.") {
			detail.Message = strings.ReplaceAll(detail.Message, "GrowableBuffer.", "Buffer.")
		}
	}
	return err
}

// Name returns the name of the status in C, such as "GPUMEM_ERROR_BUSY".
func (e *Error) Name() string { return e.Status.Name() }

func (e *Error) Error() string {
	function := e.called
	if function == "" {
		function = functionName(e.Function)
	}
	line := function + ": " + e.Message + " (" + e.Status.String()
	if e.NativeDomain != NativeNone {
		line += fmt.Sprintf("; %s: %s, %d", e.EntryPoint, e.NativeName, e.NativeCode)
	}
	return line + ")"
}

// Unwrap returns the Status, for errors.Is.
func (e *Error) Unwrap() error { return e.Status }

// failure returns the error of a call; nil for success and notes.
func failure(result C.gpumem_go_result) error {
	if !Status(result.status).Failed() {
		return nil
	}
	return failureOf(result)
}

func failureOf(result C.gpumem_go_result) error {
	if result.detail == nil {
		return &Error{Status: Status(result.status), Function: "gpumem", Message: "out of host memory for the message"}
	}
	defer C.free(unsafe.Pointer(result.detail))
	detail := (*nativeError)(unsafe.Pointer(result.detail))
	var words map[string]string
	if s := Status(result.status); s == ErrInvalidArgument || s == ErrLimitExceeded || s == ErrUnsupported || s == ErrOutOfDeviceMemory {
		words = argumentNames
	}
	message := translateWith(text(detail.message[:]), words)
	return &Error{
		Status:       Status(result.status),
		Message:      message,
		Function:     text(detail.function[:]),
		EntryPoint:   text(detail.entryPoint[:]),
		NativeDomain: NativeDomain(detail.nativeDomain),
		NativeCode:   detail.nativeCode,
		NativeName:   text(detail.nativeName[:]),
	}
}

// refusal makes the error of a call that does not reach the library.
func refusal(status Status, function, format string, arguments ...any) error {
	return &Error{Status: status, Function: function, Message: fmt.Sprintf(format, arguments...)}
}

// isGone reports whether an error of Close says that the object does not exist any more.
func isGone(err error) bool {
	detail, ok := err.(*Error)
	return ok && (detail.Status == ErrStaleHandle || detail.Status == ErrClosed)
}
