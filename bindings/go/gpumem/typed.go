// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// checkType refuses types that cannot lie in memory of C: those with pointers, which the garbage collector would not see
// there, those with bools, which a device could give a value that is neither true nor false, and those without a size.
func checkType[T any](function string) error {
	kind := reflect.TypeOf((*T)(nil)).Elem()
	if has := notNumbers(kind); has != "" {
		return refusal(ErrInvalidArgument, function,
			"the type %v has %s; only numbers, and arrays and structs of numbers, can lie outside of Go's memory", kind, has)
	}
	if kind.Size() == 0 {
		return refusal(ErrInvalidArgument, function, "the type %v has no size", kind)
	}
	return nil
}

// notNumbers names the elements of a type that are not numbers; "" if there are none.
func notNumbers(kind reflect.Type) string {
	switch kind.Kind() {
	case reflect.Bool:
		return "bools"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint,
		reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr, reflect.Float32,
		reflect.Float64, reflect.Complex64, reflect.Complex128:
		return ""
	case reflect.Array:
		return notNumbers(kind.Elem())
	case reflect.Struct:
		for i := 0; i < kind.NumField(); i++ {
			if has := notNumbers(kind.Field(i).Type); has != "" {
				return has
			}
		}
		return ""
	}
	return "pointers"
}

// valueSize returns the size of a value in bytes. It makes no value, which may be large.
func valueSize[T any]() uint64 { return uint64(reflect.TypeOf((*T)(nil)).Elem().Size()) }

// sizeOf returns the size of that many values in bytes.
func sizeOf[T any](function string, length int) (uint64, error) {
	if err := checkType[T](function); err != nil {
		return 0, err
	}
	size := valueSize[T]()
	if length < 0 || uint64(length) > math.MaxInt64/size {
		return 0, refusal(ErrInvalidArgument, function, "%d values of %d bytes each: the size must be 0 to 2^63-1 bytes", length, size)
	}
	return uint64(length) * size, nil
}

// of makes instances of a generic type different types, which Go then does not convert into one another: that would keep the
// length and change the size of the values.
type of[T any] [0]*T

// untyped is embedded in the types of values: its methods are theirs, but nobody else can put another Memory there.
type untyped = Memory

// typed is common to Pinned, DeviceMemory and Managed. It has the methods of Memory.
type typed[T any] struct {
	_ of[T]
	*untyped
	length int
}

func (t *typed[T]) memory() *Memory {
	if t == nil {
		return nil
	}
	return t.untyped
}

func (t *typed[T]) len() int {
	if t == nil {
		return 0
	}
	return t.length
}

func (t *typed[T]) span() Span[T] { return SpanOf[T](t.memory().At(0), t.len()) }

func (t *typed[T]) view(name string, use func(values []T) error) error {
	return view(t.memory(), name, func() error {
		return viewed(name, use, unsafe.Slice((*T)(pointerTo(t.host)), t.length))
	})
}

func (t *typed[T]) describe(kind string) string {
	return describe(generic[T](kind), t.memory().id() == 0, t.memory().details)
}

// Pinned is page-locked host memory as a slice of numbers, or of arrays or structs of numbers. Devices can access it in
// place. It has the methods of [Memory].
type Pinned[T any] typed[T]

// NewPinned allocates pinned memory for that many values, which are zero unless the options say Uninitialized. The call sets
// Kind and Size of the options, and refuses others.
func NewPinned[T any](device *Device, length int, options MemoryOptions) (*Pinned[T], error) {
	const name = "gpumem.NewPinned"
	memory, err := newTyped[T](name, KindPinned, device, length, options)
	if err != nil {
		return nil, err
	}
	if !options.Uninitialized {
		if err := memory.zero(); err != nil {
			_ = memory.Close()
			return nil, calledAs(name, err)
		}
	}
	return &Pinned[T]{untyped: memory, length: length}, nil
}

// zero zeroes new host memory. CloseForce must not take it meanwhile.
func (m *Memory) zero() error {
	instance := m.device.instance
	if instance.enter("") != nil {
		return instance.Fill(m.At(0), m.size, 0, 1) // It is being closed: the library knows how that ends.
	}
	defer instance.leave()
	bytes := unsafe.Slice((*byte)(pointerTo(m.host)), m.size)
	for i := range bytes {
		bytes[i] = 0
	}
	return nil
}

// newTyped allocates memory for values.
func newTyped[T any](function string, kind Kind, device *Device, length int, options MemoryOptions) (*Memory, error) {
	if err := checkType[T](function); err != nil {
		return nil, err
	}
	if length < 1 {
		return nil, refusal(ErrInvalidArgument, function, "the length is %d; ask for at least one value", length)
	}
	size, err := sizeOf[T](function, length)
	if err != nil {
		return nil, err
	}
	if align := uint64(reflect.TypeOf((*T)(nil)).Elem().Align()); options.Alignment != 0 && options.Alignment < align {
		return nil, refusal(ErrInvalidArgument, function, "the type needs an alignment of at least %d", align)
	}
	if options.Kind != 0 && options.Kind != kind {
		return nil, refusal(ErrInvalidArgument, function, "the options have %v; leave Kind out, or call Device.NewMemory", options.Kind)
	}
	if options.Size != 0 && options.Size != size {
		return nil, refusal(ErrInvalidArgument, function, "the options have a Size of %d, and the values %d bytes; leave Size out",
			options.Size, size)
	}
	options.Kind, options.Size = kind, size
	memory, err := device.NewMemory(options)
	return memory, calledAs(function, err)
}

// Len returns the number of values, which is that of Slice: 0 after Close.
func (p *Pinned[T]) Len() int {
	if p.Memory().gone() {
		return 0
	}
	return p.length
}

// Memory returns the same memory without its type; nil if p is nil.
func (p *Pinned[T]) Memory() *Memory { return (*typed[T])(p).memory() }

// Close frees the memory; see [Memory.Close].
func (p *Pinned[T]) Close() error { return calledAs("Pinned.Close", p.Memory().Close()) }

// Slice returns the memory, or nil after Close. A slice is valid until Close.
func (p *Pinned[T]) Slice() []T {
	if p.Memory().gone() {
		return nil
	}
	return sliceOf[T](&p.block, uint64(p.length))
}

// View calls a function with the memory as a slice, which is valid until the function returns. Meanwhile the memory and
// its instance cannot be closed: Close fails with ErrBusy.
func (p *Pinned[T]) View(use func(values []T) error) error {
	return (*typed[T])(p).view("Pinned.View", use)
}

// Span returns all values, for copies and fills. A call refuses it after Close.
func (p *Pinned[T]) Span() Span[T] { return (*typed[T])(p).span() }

// DeviceMemory is memory of a device for numbers, or for arrays or structs of numbers. The CPU cannot touch it: copy it. It
// has the methods of [Memory].
type DeviceMemory[T any] typed[T]

// NewDeviceMemory allocates memory of a device for that many values. Its contents are indeterminate. The call sets Kind and
// Size of the options, and refuses others.
func NewDeviceMemory[T any](device *Device, length int, options MemoryOptions) (*DeviceMemory[T], error) {
	memory, err := newTyped[T]("gpumem.NewDeviceMemory", KindDevice, device, length, options)
	if err != nil {
		return nil, err
	}
	return &DeviceMemory[T]{untyped: memory, length: length}, nil
}

// Len returns the number of values.
func (m *DeviceMemory[T]) Len() int { return (*typed[T])(m).len() }

// Memory returns the same memory without its type; nil if m is nil.
func (m *DeviceMemory[T]) Memory() *Memory { return (*typed[T])(m).memory() }

// Close frees the memory; see [Memory.Close].
func (m *DeviceMemory[T]) Close() error { return calledAs("DeviceMemory.Close", m.Memory().Close()) }

// Span returns all values, for copies and fills.
func (m *DeviceMemory[T]) Span() Span[T] { return (*typed[T])(m).span() }

// Managed is managed memory for numbers, or for arrays or structs of numbers. It has one address for the CPU and all
// devices, and its pages move. The CPU reaches it in a View, or between BeginHostAccess and Close of the access. It has the
// methods of [Memory].
type Managed[T any] typed[T]

// NewManaged allocates managed memory for that many values. Its contents are indeterminate. The call sets Kind and Size of
// the options, and refuses others.
func NewManaged[T any](device *Device, length int, options MemoryOptions) (*Managed[T], error) {
	memory, err := newTyped[T]("gpumem.NewManaged", KindManaged, device, length, options)
	if err != nil {
		return nil, err
	}
	return &Managed[T]{untyped: memory, length: length}, nil
}

// Len returns the number of values.
func (m *Managed[T]) Len() int { return (*typed[T])(m).len() }

// Memory returns the same memory without its type; nil if m is nil.
func (m *Managed[T]) Memory() *Memory { return (*typed[T])(m).memory() }

// Close frees the memory; see [Memory.Close].
func (m *Managed[T]) Close() error { return calledAs("Managed.Close", m.Memory().Close()) }

// Span returns all values, for copies and fills.
func (m *Managed[T]) Span() Span[T] { return (*typed[T])(m).span() }

// View waits until the CPU may touch the memory, and calls a function with the memory as a slice, which is valid until
// the function returns. Meanwhile the memory and its instance cannot be closed: Close fails with ErrBusy.
func (m *Managed[T]) View(use func(values []T) error) error {
	return (*typed[T])(m).view("Managed.View", use)
}

// BeginHostAccess begins an access of the CPU, which lasts until it is closed; see [Memory.BeginHostAccess].
func (m *Managed[T]) BeginHostAccess() (*HostAccess[T], error) {
	return beginHostAccess[T](m.Memory(), "Managed.BeginHostAccess", m.Len())
}

// HostAccess is an access of the CPU to managed memory, from BeginHostAccess until Close.
type HostAccess[T any] struct {
	_ of[T]
	gate
	memory *Memory
	length int
	shown  atomic.Bool // A slice was handed out.
}

func beginHostAccess[T any](memory *Memory, function string, length int) (*HostAccess[T], error) {
	if memory == nil || memory.handle == 0 {
		return nil, refusal(ErrInvalidArgument, function, "the memory is nil")
	}
	instance := memory.device.instance
	if err := instance.hold(function); err != nil {
		return nil, err
	}
	if err := memory.hold(function); err != nil {
		instance.release()
		return nil, err
	}
	if err := memory.beginAccess(function); err != nil {
		memory.release()
		instance.release()
		return nil, err
	}
	access := &HostAccess[T]{memory: memory, length: length}
	access.what = "access"
	closeWhenCollected(access, func(access *HostAccess[T]) outcome {
		switch {
		case access.memory.device.instance.closed():
			return outcomeGone
		case access.shown.Load():
			access.memory.device.instance.release() // CloseForce frees what is kept.
			return outcomeKept
		}
		return outcomeOf(access.Close())
	})
	return access, nil
}

// Close ends the access. Slices of it must not be used any more.
func (a *HostAccess[T]) Close() error {
	if a == nil || a.memory == nil {
		return nil
	}
	const name = "HostAccess.Close"
	var after error
	done, err := a.gate.close(name, func() error {
		ended, err := a.memory.endAccess(name)
		if ended {
			after, err = err, nil
		}
		return err
	})
	if done {
		err = after
		closedByHand(a)
		a.memory.release()
		a.memory.device.instance.release()
	}
	return err
}

// Slice returns the memory, or nil after Close. A slice is valid until Close.
func (a *HostAccess[T]) Slice() []T {
	if a == nil || a.memory == nil || a.closed() || a.memory.gone() {
		return nil
	}
	a.shown.Store(true)
	return unsafe.Slice((*T)(pointerTo(a.memory.host)), a.length)
}

// mapping is ordinary memory of the system, outside of Go's heap.
type mapping struct {
	block
	bytes []byte
}

// Pageable is ordinary memory that does not belong to Go: it stays where it is until Close. Copies take it like any other
// memory, and it can be registered, so that devices can use it where it lies.
type Pageable[T any] struct {
	_       of[T]
	mapping *mapping
	length  int
}

// NewPageable allocates ordinary memory for that many values, page aligned and zeroed.
func NewPageable[T any](length int) (*Pageable[T], error) {
	size, err := sizeOf[T]("gpumem.NewPageable", length)
	if err != nil {
		return nil, err
	}
	return newMapping[T]("gpumem.NewPageable", size, -1, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

// MapFile maps a whole file. Writes go to the file. Unless it is writable,
// writing to the memory faults, and registering it needs MemoryReadOnly.
func MapFile[T any](file *os.File, writable bool) (*Pageable[T], error) {
	const name = "gpumem.MapFile"
	if err := checkType[T](name); err != nil {
		return nil, err
	}
	if file == nil {
		return nil, refusal(ErrInvalidArgument, name, "the file is nil")
	}
	state, err := file.Stat()
	if err != nil {
		return nil, refusal(ErrInvalidArgument, name, "the file cannot be used: %v", err)
	}
	if !state.Mode().IsRegular() {
		return nil, refusal(ErrInvalidArgument, name, "the file is a directory, a pipe or a device; pass a regular file")
	}
	size := uint64(state.Size())
	if size%valueSize[T]() != 0 {
		return nil, refusal(ErrInvalidArgument, name, "the size of the file is %d bytes, not a multiple of %d", size, valueSize[T]())
	}
	protection := syscall.PROT_READ
	if writable {
		protection |= syscall.PROT_WRITE
	}
	var memory *Pageable[T]
	var mapErr error
	err = withDescriptor(name, file, func(descriptor uintptr) {
		memory, mapErr = newMapping[T](name, size, int(descriptor), protection, syscall.MAP_SHARED)
	})
	if err != nil {
		return nil, err
	}
	return memory, mapErr
}

func newMapping[T any](name string, size uint64, file, protection, flags int) (*Pageable[T], error) {
	if size == 0 {
		return nil, refusal(ErrInvalidArgument, name, "the size is 0; it must be at least one byte")
	}
	bytes, err := syscall.Mmap(file, 0, int(size), protection, flags)
	if err != nil {
		return nil, systemRefusal(name, "mmap", err)
	}
	m := &mapping{bytes: bytes}
	m.host = uint64(uintptr(unsafe.Pointer(&bytes[0])))
	m.address = m.host
	m.size = size
	m.what = "memory"
	m.endless = true
	closeWhenCollected(m, func(m *mapping) outcome {
		if m.shown.Load() || !m.streams.observe() {
			return outcomeKept
		}
		return outcomeOf(m.close())
	})
	return &Pageable[T]{mapping: m, length: int(size / valueSize[T]())}, nil
}

// systemErrors are the codes with which mapping fails, and what to do then.
var systemErrors = map[syscall.Errno]struct {
	status       Status
	name, remedy string
}{
	syscall.EACCES: {ErrPermissionDenied, "EACCES", "open the file for reading, and for writing if writable is true"},
	syscall.EAGAIN: {ErrLimitExceeded, "EAGAIN", "raise the limit of locked memory (ulimit -l), or lock less"},
	syscall.ENODEV: {ErrUnsupported, "ENODEV", "the file system cannot map files; use NewPageable and Instance.ReadFile"},
	syscall.ENOMEM: {ErrOutOfHostMemory, "ENOMEM", "ask for less, or close other memory"},
	syscall.EPERM:  {ErrPermissionDenied, "EPERM", "the file is sealed, or its file system forbids it; map it without writing, or copy it"},
}

// systemRefusal makes the error of a system call.
func systemRefusal(function, call string, err error) error {
	failed := &Error{Status: ErrInternal, Function: function, EntryPoint: call, Message: err.Error()}
	if number, ok := err.(syscall.Errno); ok {
		failed.NativeDomain, failed.NativeCode = NativeErrno, int32(number)
		if known, ok := systemErrors[number]; ok {
			failed.Status, failed.NativeName = known.status, known.name
			failed.Message += "; " + known.remedy
		} else {
			failed.NativeName = fmt.Sprintf("errno %d", int(number))
		}
	}
	return failed
}

func (m *mapping) close() error {
	const name = "Pageable.Close"
	done, err := m.gate.close(name, func() error {
		// The library does not know when this memory ends.
		for _, use := range m.streams.pending(nil) {
			if use.busy() {
				return refusal(ErrBusy, name, "a stream may still use the memory; call Synchronize of the stream first")
			}
		}
		if err := syscall.Munmap(m.bytes); err != nil {
			return systemRefusal(name, "munmap", err)
		}
		return nil
	})
	if done {
		m.bytes = nil
		closedByHand(m)
	}
	return err
}

// Close returns the memory to the system. While it is registered, or work of a stream on it is pending, this fails with
// ErrBusy: close the registration, or synchronize the stream, first. It knows nothing of the work of a stream that was closed.
func (p *Pageable[T]) Close() error {
	if p == nil || p.mapping == nil {
		return nil
	}
	return p.mapping.close()
}

// Len returns the number of values, which is that of Slice: 0 after Close.
func (p *Pageable[T]) Len() int {
	if p == nil || p.mapping == nil || p.mapping.closed() {
		return 0
	}
	return p.length
}

// At returns the address of the byte at an offset, for copies and fills, and to register a part.
func (p *Pageable[T]) At(offset uint64) Address {
	if p == nil || p.mapping == nil {
		return Address{}
	}
	return Address{&p.mapping.block, p.mapping.address + offset}
}

// Span returns all values, for copies and fills.
func (p *Pageable[T]) Span() Span[T] {
	if p == nil {
		return Span[T]{}
	}
	return SpanOf[T](p.At(0), p.length) // Also after Close, so that a call refuses it.
}

// Slice returns the memory, or nil after Close. A slice is valid until Close.
func (p *Pageable[T]) Slice() []T {
	if p == nil || p.mapping == nil || p.mapping.closed() {
		return nil
	}
	return sliceOf[T](&p.mapping.block, uint64(p.length))
}

// View calls a function with the memory as a slice, which is valid until the function returns. Meanwhile the memory
// cannot be closed: Close fails with ErrBusy.
func (p *Pageable[T]) View(use func(values []T) error) error {
	if p == nil || p.mapping == nil {
		return refusal(ErrInvalidArgument, "Pageable.View", "the memory is nil")
	}
	if err := p.mapping.hold("Pageable.View"); err != nil {
		return err
	}
	defer p.mapping.release()
	return viewed("Pageable.View", use, unsafe.Slice((*T)(pointerTo(p.mapping.host)), p.length))
}

// Register page-locks the whole memory, so that devices can use it where it lies, until the Memory is closed. It
// cannot be closed meanwhile. [Device.RegisterMemory] registers a part.
func (p *Pageable[T]) Register(device *Device, options RegisterOptions) (*Memory, error) {
	if p == nil || p.mapping == nil {
		return nil, refusal(ErrInvalidArgument, "Pageable.Register", "the memory is nil")
	}
	memory, err := device.RegisterMemory(p.At(0), p.mapping.size, options)
	return memory, calledAs("Pageable.Register", err)
}
