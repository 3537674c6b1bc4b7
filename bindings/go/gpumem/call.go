// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"errors"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// This file has what the calls of the library, and the objects that it knows by a handle, have in common.

// checked returns the error of a call. The objects that the call used are alive until then.
func checked(result C.gpumem_go_result, used ...any) error {
	err := failure(result)
	runtime.KeepAlive(used)
	return err
}

// valueOf is checked for a call that returns a number, a handle or an address.
func valueOf[T ~int32 | ~uint64 | ~uintptr](result C.gpumem_go_result, used ...any) (T, error) {
	err := checked(result, used...)
	return T(result.value), err
}

// inC is the address of a struct for C, which uses it during the call.
func inC[T any](value *T) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(value)) }

// first is the address of a slice for C, which uses it during the call.
func first[T any](values []T) *C.uint8_t {
	if len(values) == 0 {
		return nil
	}
	return inC(&values[0])
}

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// enumerated lists what a call has at each index, up to the first at which it has nothing.
func enumerated[T ~int32](at func(index C.uint32_t) C.gpumem_go_result) (list []T, err error) {
	if err := useLibrary(); err != nil {
		return nil, err
	}
	for index := C.uint32_t(0); ; index++ {
		one, err := valueOf[T](at(index))
		if errors.Is(err, ErrNotFound) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
}

// succeeded reports whether a call did what it was asked for: one that fails has an error, and others may have a note.
func succeeded(result C.gpumem_go_result, used ...any) (bool, error) {
	err := checked(result, used...)
	return Status(result.status) == Success, err
}

// unlessGone returns the error of a call that destroys an object; nil if the object does not exist any more.
func unlessGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}

// handled is common to what the library knows by a handle, and Close destroys without waiting for calls of other goroutines.
type handled struct {
	handle uintptr
	done   atomic.Bool
}

// destroyOnce destroys an object unless that was done, and reports whether this call did it.
func (o *handled) destroyOnce(destroy func() error) (bool, error) {
	if o.handle == 0 || o.done.Load() {
		return false, nil
	}
	if err := unlessGone(destroy()); err != nil {
		return false, err
	}
	return !o.done.Swap(true), nil
}

// closeObject is destroyOnce for what the garbage collector would close.
func closeObject[T any](closed *T, o *handled, destroy func() error) error {
	now, err := o.destroyOnce(destroy)
	if now {
		closedByHand(closed)
	}
	runtime.KeepAlive(closed)
	return err
}

// closeWhenDropped is closeWhenCollected for an object of an instance that can be closed at any time.
func closeWhenDropped[T any, P interface {
	*T
	Close() error
}](dropped P, instance *Instance) {
	closeWhenCollected((*T)(dropped), func(object *T) outcome {
		if instance.closed() {
			return outcomeGone
		}
		return outcomeOf(P(object).Close())
	})
}
