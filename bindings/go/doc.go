// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Package gpumem gives a Go program every kind of memory that a GPU system has: device memory, pinned host memory,
// host memory that the GPU uses in place, and ordinary memory that is pinned where it lies. Every function and method
// may be called from any goroutine at any time; nothing needs runtime.LockOSThread, and nothing changes the CUDA
// context of a thread. Without a GPU the same program runs on the CPU.
//
// # Objects
//
// An [Instance] is an opened backend. It has devices ([Device]). Each [Memory], [Stream] and [Event] belongs to a
// device. [Pinned] is pinned memory as a slice of numbers or structs; [Buffer] is ordinary memory that can be
// registered, so that devices use it where it lies. An [Address] is a place in any of them, and what copies and fills
// take.
//
// # Closing
//
// Close gives an object back. It may be called from any goroutine and any number of times; when the object is gone
// already it does nothing and returns nil. It refuses with [ErrBusy] while a call or a View of another goroutine uses
// the object, or while work on it has not been observed complete where the backend can tell, and changes nothing
// then. The order is: observe that work is complete, close memory, close events and streams, close the instance.
//
// What is not closed, the garbage collector gives back, if nobody can still be using it: it first waits for the
// streams that worked on the memory, and it keeps memory from which a slice or a number was handed out, because those
// do not keep their memory alive. [Collected] counts both, and any other count than 0 shows a missing Close.
//
// # Slices
//
// A slice of [Pinned.Slice], [Memory.Bytes] or [Buffer.Slice] is memory of C. It ends with Close: a use after that is
// a fault that stops the program, as with memory that was unmapped. Inside [Pinned.View] that cannot happen.
//
// # Memory of Go
//
// C keeps no pointer to memory of Go. [CopyFromSlice] and [CopyToSlice] take slices of Go because they are done with
// them when they return. Registering a slice of Go is not offered: Go neither promises that its memory stays where it
// is, nor that it stays mapped, nor tells when it is used for something else. Use a [Buffer] instead.
//
// # Errors
//
// Every error of the library is an [*Error]; errors.Is compares it with [ErrBusy] and the other constants of type
// [Status], and errors.As gives the detail. No function panics.
//
// # The library
//
// By default programs are linked with libgpumem.so.0, found by pkg-config. With the build tag gpumem_dlopen they load
// it when it is first used and get an error that says so ([ErrLibrary]) where it is missing.
package gpumem
