// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Status is the result of a call, a number that means the same for ever. The negative ones are errors: compare with
// errors.Is(err, gpumem.ErrBusy).
type Status int32

// What is no failure.
const (
	Success  Status = 0 // Done.
	NotReady Status = 1 // The work asked about is not complete.
	NoEffect Status = 2 // A valid hint that this device or driver cannot use.
)

// The errors.
const (
	ErrInvalidArgument   Status = -101 // A value that no configuration accepts.
	ErrWrongKind         Status = -102 // The memory is of a kind that this function does not take.
	ErrNotFound          Status = -103 // Nothing of that name, address or id exists in this instance.
	ErrAlreadyExists     Status = -104 // The range or relation exists already.
	ErrStaleHandle       Status = -105 // The object is gone: it was closed.
	ErrInvalidState      Status = -201 // Right object, wrong moment.
	ErrNoAccess          Status = -202 // The processor that would act has no right to the range.
	ErrBusy              Status = -203 // In use by other work; the same call may succeed later.
	ErrClosed            Status = -204 // The instance is closed, or the driver is shutting down.
	ErrForked            Status = -205 // An object of the parent was used in a forked child.
	ErrPeerGone          Status = -206 // The other process of a shared object has ended.
	ErrDeviceLost        Status = -207 // The device cannot be used again until the process ends.
	ErrOutOfDeviceMemory Status = -301 // No memory at a device location.
	ErrOutOfHostMemory   Status = -302 // No memory at a host location or for the library's records.
	ErrOutOfAddressSpace Status = -303 // No address range of that size.
	ErrLimitExceeded     Status = -304 // A limit or budget is used up; the message names it.
	ErrUnsupported       Status = -401 // Valid, but this device, driver, backend or object cannot do it.
	ErrPermissionDenied  Status = -402 // System, driver or peer refuses this user or process.
	ErrNoDevice          Status = -403 // The driver is present but no usable device.
	ErrDriverNotFound    Status = -404 // No driver library can be loaded, or it is a stub.
	ErrDriverTooOld      Status = -405 // The driver is below CUDADriverVersionMin or mismatched.
	ErrSymbolMissing     Status = -406 // This driver lacks the entry point of this one function.
	ErrInternal          Status = -901 // Anything else; the native code is attached.
)

// CUDADriverVersionMin is the oldest CUDA driver that the cuda backend works with, as the driver counts (11.2).
const CUDADriverVersionMin = 11020

// Known here too, so that an error can be printed where there is no library.
var statusNames = map[Status]string{
	Success:              "GPUMEM_SUCCESS",
	NotReady:             "GPUMEM_NOT_READY",
	NoEffect:             "GPUMEM_NO_EFFECT",
	ErrInvalidArgument:   "GPUMEM_ERROR_INVALID_ARGUMENT",
	ErrWrongKind:         "GPUMEM_ERROR_WRONG_KIND",
	ErrNotFound:          "GPUMEM_ERROR_NOT_FOUND",
	ErrAlreadyExists:     "GPUMEM_ERROR_ALREADY_EXISTS",
	ErrStaleHandle:       "GPUMEM_ERROR_STALE_HANDLE",
	ErrInvalidState:      "GPUMEM_ERROR_INVALID_STATE",
	ErrNoAccess:          "GPUMEM_ERROR_NO_ACCESS",
	ErrBusy:              "GPUMEM_ERROR_BUSY",
	ErrClosed:            "GPUMEM_ERROR_CLOSED",
	ErrForked:            "GPUMEM_ERROR_FORKED",
	ErrPeerGone:          "GPUMEM_ERROR_PEER_GONE",
	ErrDeviceLost:        "GPUMEM_ERROR_DEVICE_LOST",
	ErrOutOfDeviceMemory: "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY",
	ErrOutOfHostMemory:   "GPUMEM_ERROR_OUT_OF_HOST_MEMORY",
	ErrOutOfAddressSpace: "GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE",
	ErrLimitExceeded:     "GPUMEM_ERROR_LIMIT_EXCEEDED",
	ErrUnsupported:       "GPUMEM_ERROR_UNSUPPORTED",
	ErrPermissionDenied:  "GPUMEM_ERROR_PERMISSION_DENIED",
	ErrNoDevice:          "GPUMEM_ERROR_NO_DEVICE",
	ErrDriverNotFound:    "GPUMEM_ERROR_DRIVER_NOT_FOUND",
	ErrDriverTooOld:      "GPUMEM_ERROR_DRIVER_TOO_OLD",
	ErrSymbolMissing:     "GPUMEM_ERROR_SYMBOL_MISSING",
	ErrInternal:          "GPUMEM_ERROR_INTERNAL",
}

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

// NativeDomain says whose number a native code is.
type NativeDomain int32

// The domains.
const (
	NativeNone  NativeDomain = 0 // No native code: the library decided by itself.
	NativeErrno NativeDomain = 1 // An errno value of the operating system.
	NativeCUDA  NativeDomain = 2 // A CUresult of the CUDA driver.
)

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
