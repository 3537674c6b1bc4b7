// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Name is the name of the status in C, such as "GPUMEM_ERROR_BUSY". A number that this package does not know, the
// library may know.
func (s Status) Name() string {
	if name, known := statusNames[s]; known {
		return name
	}
	if useLibrary() != nil {
		return "GPUMEM_ERROR_?"
	}
	return C.GoString(C.gpumem_go_status_name(C.gpumem_status(s)))
}

// Error makes a Status an error.
func (s Status) Error() string { return s.Name() }

// StatusInfo is everything that is known about one status.
type StatusInfo struct {
	Status Status
	Name   string // Such as "GPUMEM_ERROR_BUSY".
	Cause  string // One line: when it is returned.
	Remedy string // One line: what to do about it.
}

// Info tells when a status is returned and what to do about it.
func (s Status) Info() (StatusInfo, error) {
	if err := useLibrary(); err != nil {
		return StatusInfo{}, err
	}
	var info nativeStatusInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_status_get_info(C.gpumem_status(s), (*C.uint8_t)(unsafe.Pointer(&info))))
	if err != nil {
		return StatusInfo{}, err
	}
	constant := func(address uintptr) string { return C.GoString((*C.char)(pointerTo(uint64(address)))) }
	return StatusInfo{Status(info.status), constant(info.name), constant(info.cause), constant(info.remedy)}, nil
}

// Statuses are all statuses of the library in use.
func Statuses() (list []Status, err error) {
	if err := useLibrary(); err != nil {
		return nil, err
	}
	for index := C.uint32_t(0); ; index++ {
		result := C.gpumem_go_status_enumerate(index)
		if Status(result.status) == ErrNotFound {
			C.free(unsafe.Pointer(result.detail))
			return list, nil
		}
		if err := failure(result); err != nil {
			return nil, err
		}
		list = append(list, Status(int64(result.value)))
	}
}

// Error is what went wrong in one call. It was filled by the call itself.
type Error struct {
	Status       Status       // What a program decides by.
	Message      string       // One line: what is wrong and what to do.
	Function     string       // The function of the library, or the method of this package, that failed.
	EntryPoint   string       // The driver or system call that failed; empty if none was reached.
	NativeDomain NativeDomain // Whose number NativeCode is.
	NativeCode   int32        // Code of the driver or operating system.
	NativeName   string       // Its name, such as "CUDA_ERROR_OUT_OF_MEMORY" or "ENOMEM".
}

// Name is the name of the status, such as "GPUMEM_ERROR_BUSY".
func (e *Error) Name() string { return e.Status.Name() }

func (e *Error) Error() string {
	line := e.Function + ": " + e.Message + " (" + e.Name()
	if e.NativeDomain != NativeNone {
		line += fmt.Sprintf("; %s: %s, %d", e.EntryPoint, e.NativeName, e.NativeCode)
	}
	return line + ")"
}

// Unwrap gives the Status, for errors.Is.
func (e *Error) Unwrap() error { return e.Status }

// failure is the error of a call, or nil if it succeeded or gave a note.
func failure(result C.gpumem_go_result) error {
	if result.status >= 0 {
		return nil
	}
	return failureOf(result)
}

func failureOf(result C.gpumem_go_result) error {
	if result.detail == nil {
		return &Error{Status: Status(result.status), Function: "gpumem", Message: "no memory to keep the message"}
	}
	defer C.free(unsafe.Pointer(result.detail))
	detail := (*nativeError)(unsafe.Pointer(result.detail))
	return &Error{
		Status:       Status(result.status),
		Message:      text(detail.message[:]),
		Function:     text(detail.function[:]),
		EntryPoint:   text(detail.entryPoint[:]),
		NativeDomain: NativeDomain(detail.nativeDomain),
		NativeCode:   detail.nativeCode,
		NativeName:   text(detail.nativeName[:]),
	}
}

// refusal is the error of a call that does not reach the library.
func refusal(status Status, function, format string, arguments ...any) error {
	return &Error{Status: status, Function: function, Message: fmt.Sprintf(format, arguments...)}
}

// isGone tells of an error of Close that there is nothing left to close.
func isGone(err error) bool {
	detail, ok := err.(*Error)
	return ok && (detail.Status == ErrStaleHandle || detail.Status == ErrClosed)
}
