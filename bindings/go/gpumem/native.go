// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import "unsafe"

// text returns the text of C in an array of fixed size.
func text(bytes []byte) string {
	for i, b := range bytes {
		if b == 0 {
			return string(bytes[:i])
		}
	}
	return string(bytes)
}

// pointerTo makes a pointer of an address of memory that is not Go's. Such an address is stored as a number, not as a
// pointer: freed memory may later become Go's, and the garbage collector must not find an old pointer to it.
func pointerTo(address uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
