// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Package gpumem gives Go programs the memory of a GPU system: device memory, pinned host memory, host
// memory that the GPU uses in place, and ordinary memory that is pinned where it lies. Every function and method may be
// called from any goroutine at any time. Nothing needs runtime.LockOSThread, and nothing changes the CUDA context of a
// thread. Without a GPU the same program runs on the CPU.
//
// # Objects
//
// An [Instance] is an open backend. It has devices ([Device]). Each [Memory], [Stream] and [Event] belongs to a device.
// [DeviceMemory] is memory of a device for numbers or structs, and [Pinned] pinned memory as a slice of them.
// [Pageable] is ordinary memory that can be registered, so that devices can use it where it lies. [Managed] is
// memory with one address for the CPU and all devices. [Physical] is memory without an address, which is mapped into
// an [AddressRange]. A [Buffer], or a [GrowableBuffer] of bytes, grows in place and can sleep, alone or with a
// [Group]. A [Pool] hands out each [PoolBlock] fast, in the order of a stream. An [Address] is an address in any of
// them, and a [Span] a run of values, for copies and fills. A [ShareHandle] stands for memory or an event that other
// processes import, and a [Hub] has such handles under names. A [RingProducer] passes messages to each
// [RingConsumer] of other processes.
//
// # Copies
//
// Copies and fills of an Instance return when they are done. Those of a Stream enqueue the work and return; both operands
// must then stay open, and the source unmodified, until the work has been observed complete. Work is observed complete
// by Synchronize, or by a Query that returns true, of its stream or of an event recorded behind it.
//
// # Closing
//
// Close releases an object. It may be called from any goroutine and any number of times; on a closed object it does
// nothing and returns nil. It fails with [ErrBusy], and changes nothing, while a View or a [HostAccess] uses the object,
// while ordinary memory is registered, while something is mapped in a range, or while work on it has not been observed complete
// and the backend knows. Calls that begin while another goroutine closes memory fail with [ErrBusy], too. The order is:
// observe that work is complete, close memory, close events and streams, close the instance. With defer: create streams
// first, and defer their Synchronize last.
//
// The garbage collector closes objects that are dropped without Close, if nothing can still be using them. It first
// waits for the streams that worked on the memory. It keeps memory from which a slice or a number was handed out,
// because those do not keep their memory alive, or that was exported, and each [Hub], because other processes may be using
// it, and buffers with a [Registration]. What is mapped in a range is unmapped first. [Collected] counts both; a
// count other than 0 means that a Close is missing. Do not copy the struct behind a pointer, as keep := *memory does: a copy
// does not keep the memory from being collected. go vet reports that.
//
// # Slices
//
// A slice of [Pinned.Slice], [Memory.Bytes] or [Pageable.Slice] is memory of C, and valid until Close. Using it later is a
// fault that ends the program, as with unmapped memory. Inside [Pinned.View] that cannot happen. Managed memory and
// ranges have slices only in a View, and managed memory in a [HostAccess].
//
// # Memory of Go
//
// C keeps no pointer to memory of Go. [CopyFromSlice], [CopyFromSliceAsync] and [CopyToSlice] take slices of Go because
// they have finished with them when they return. A slice of Go cannot be registered: Go does not promise that its memory
// stays where it is, or mapped, and does not report when the memory is reused. Use a [Pageable] instead.
//
// # Errors
//
// Every error of the library is an [*Error]. errors.Is compares it with [ErrBusy] and the other constants of type
// [Status], and errors.As gets the detail. No function panics, but for a nil context and methods of nil pointers to types
// of elements, such as *Pinned[int32], and to a [RingSlot] or [RingMessage]. A panic in a function that a call runs, such as that of a View, a Progress or a
// callback of a buffer, goes on when the call is over.
//
// # The library
//
// By default programs are linked with libgpumem.so.0, which pkg-config finds. With the build tag gpumem_dlopen they load
// it at the first use, and get an error ([ErrLibrary]) if it is missing; nothing needs to be installed to build them.
package gpumem
