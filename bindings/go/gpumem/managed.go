// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// turns is how the CPU and the devices take turns with managed memory where a device is not concurrent. There, any work of the
// device takes from the CPU what it may use, so the memory is attached to the host while an access lasts.
type turns struct {
	taken    atomic.Bool // By the CPU, so that work on the memory is refused.
	first    sync.Mutex  // Of who begins an access while there is none, and so may wait for work.
	mutex    sync.Mutex  // Of the rest; nobody waits for work of the user under it.
	accesses int
	stream   uintptr     // Attaches the memory to the host and back; 0 if it is there anyway.
	initial  Attach      // What the memory was created with.
	attached Attach      // What the user attached it to; that with which it was created before.
	owner    *streamWork // The stream of AttachSingle.
}

// takeTurns prepares new managed memory.
func (m *Memory) takeTurns() error {
	exclusive, err := m.device.instance.hasExclusive()
	if err != nil || !exclusive {
		return err
	}
	info, err := m.Info()
	if err != nil {
		return err
	}
	initial := AttachGlobal
	if info.GrantedFlags&MemoryAttachHost != 0 {
		initial = AttachHost
	}
	m.turns = &turns{initial: initial, attached: initial}
	return nil
}

// hasExclusive reports whether there is a device with managed memory that is not concurrent.
func (i *Instance) hasExclusive() (bool, error) {
	const no, yes = 1, 2
	if known := i.exclusive.Load(); known != 0 {
		return known == yes, nil
	}
	devices, err := i.Devices()
	found := int32(no)
	for _, d := range devices {
		managed, first := d.Capability(CapabilityManaged)
		concurrent, second := d.Capability(CapabilityManagedConcurrent)
		err = firstError(err, first, second)
		if managed.Value != AnswerNo && concurrent.Value == AnswerNo {
			found = yes
		}
	}
	if err != nil {
		return false, err
	}
	i.exclusive.Store(found)
	return found == yes, nil
}

// enterWork is enter for work on the memory.
func (a Address) enterWork(function string, bytes uint64) error {
	if err := a.enter(function, bytes); err != nil {
		return err
	}
	if a.owner != nil && a.owner.turns != nil && a.owner.turns.taken.Load() {
		a.owner.leave()
		return refusal(ErrBusy, function,
			"the CPU is accessing the managed memory at %#x; end its View or close its HostAccess first", a.value)
	}
	return nil
}

// beginAccess begins an access of the CPU.
func (m *Memory) beginAccess(name string) error {
	i, t := m.device.instance, m.turns
	if t == nil {
		return i.beginHostAccess(m.address, name)
	}
	if !t.first.TryLock() {
		if calledByLibrary() {
			return waitsForItself(name)
		}
		t.first.Lock()
	}
	defer t.first.Unlock()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.accesses == 0 {
		t.mutex.Unlock()
		err := i.beginHostAccess(m.address, name)
		t.mutex.Lock()
		if err == nil {
			err = calledAs(name, m.takeToHost())
		}
		if err != nil {
			return err
		}
	} else if err := i.beginHostAccess(m.address, name); err != nil { // It is attached to the host, so this waits for nothing.
		return err
	}
	t.accesses++
	return nil
}

// endAccess ends an access of the CPU. It reports whether that has ended, also if there is an error.
func (m *Memory) endAccess(name string) (bool, error) {
	i, t := m.device.instance, m.turns
	if t == nil {
		err := i.endHostAccess(m.address, name)
		return err == nil, err
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	last := t.accesses == 1 && t.stream != 0
	if last {
		// In a function of a stream nothing can be attached.
		err := failure(C.gpumem_go_stream_query(C.uintptr_t(t.stream)))
		if errors.Is(err, ErrInvalidState) {
			return false, calledAs(name, err)
		}
	}
	if err := i.endHostAccess(m.address, name); err != nil {
		return false, err
	}
	t.accesses--
	if last {
		return true, calledAs(name, m.takeBack())
	}
	return true, nil
}

// takeToHost attaches the memory to the host for the first access, which has begun. If it fails, the access has ended.
func (m *Memory) takeToHost() error {
	i, t := m.device.instance, m.turns
	if t.attached == AttachSingle && t.owner.done.Load() {
		t.attached = t.initial // The library took it back when that stream ended.
	}
	if t.attached == AttachHost {
		return nil
	}
	stream, err := valueOf[uintptr](C.gpumem_go_stream_create(m.device.id(), 0, "host access"), m)
	if err != nil {
		_ = i.endHostAccess(m.address, "")
		return err
	}
	t.stream = stream
	t.taken.Store(true)
	for err == nil && m.occupied() { // By calls that are refused, or only ask for information.
		if calledByLibrary() {
			err = waitsForItself("")
		}
		runtime.Gosched()
	}
	// It cannot be attached during an access.
	err = firstError(err, i.endHostAccess(m.address, ""))
	if err == nil {
		err = m.attach(AttachHost)
	}
	if err == nil {
		err = i.beginHostAccess(m.address, "")
	}
	if err != nil {
		_ = m.takeBack()
	}
	return err
}

// takeBack attaches the memory as it was before the first access.
func (m *Memory) takeBack() (err error) {
	t := m.turns
	defer func() {
		_ = failure(C.gpumem_go_stream_destroy(C.uintptr_t(t.stream)))
		t.stream = 0
		t.taken.Store(false)
	}()
	if t.attached == AttachSingle {
		err = failure(C.gpumem_go_managed_attach(C.uintptr_t(t.owner.handle), C.uint64_t(m.address), 0,
			C.gpumem_attach(AttachSingle)))
		if err == nil {
			m.streams.add(t.owner, t.owner.enqueued.Add(1))
			return nil
		}
		t.attached = t.initial // As when that stream has ended.
	}
	if t.attached != AttachHost {
		err = firstError(unlessGone(err), m.attach(t.attached))
	}
	if errors.Is(err, ErrDeviceLost) {
		return nil // No work can use the memory.
	}
	return unlessGone(err)
}

// attach attaches the memory now. No access has begun.
func (m *Memory) attach(to Attach) error {
	stream := C.uintptr_t(m.turns.stream)
	err := failure(C.gpumem_go_managed_attach(stream, C.uint64_t(m.address), 0, C.gpumem_attach(to)))
	if err == nil {
		err = failure(C.gpumem_go_stream_synchronize(stream, timeoutInfinite))
	}
	return err
}

// Attach attaches managed memory, in stream order: it takes effect when the earlier work of the stream is complete. It
// replaces what the memory was attached to before. Destroying the stream takes the memory back to the association that
// it was created with. Where an access of the CPU attaches the memory to the host, its end takes it back to what an address of
// the object was attached to last.
//   - pointer: first byte of the allocation
//   - size: 0 or the size of the allocation; for pageable memory the bytes to attach, at least 1
func (s *Stream) Attach(pointer Address, size uint64, attach Attach) error {
	var t *turns
	if pointer.owner != nil && pointer.owner.turns != nil {
		t = pointer.owner.turns
		t.mutex.Lock() // Before enter, because takeToHost waits for calls that are inside.
		defer t.mutex.Unlock()
	}
	if err := pointer.enter("Stream.Attach", size); err != nil {
		return err
	}
	defer s.leave(pointer)
	err := checked(C.gpumem_go_managed_attach(s.id(), C.uint64_t(pointer.value), C.uint64_t(size),
		C.gpumem_attach(attach)), s)
	if err == nil && t != nil {
		t.attached, t.owner = attach, s.work()
	}
	return err
}

// Hints, which are advice, prefetches and discards, report whether they have an effect. It is false if the device or the
// driver cannot use the hint: then nothing changed, and that is no error. Portable code gives hints everywhere and
// ignores the answer.

func (i *Instance) beginHostAccess(address uint64, name string) error {
	return calledAs(name, checked(C.gpumem_go_managed_begin_host_access(i.id(), C.uint64_t(address)), i))
}

func (i *Instance) endHostAccess(address uint64, name string) error {
	err := checked(C.gpumem_go_managed_end_host_access(i.id(), C.uint64_t(address)), i)
	if isGone(err) {
		return nil
	}
	return calledAs(name, err)
}

// BeginHostAccess begins an access of the CPU to managed memory: it waits until the CPU may touch the memory. The access
// lasts until it is closed; [Memory.View] does both. Where all devices are concurrent it waits for nothing. On other
// devices, it attaches the memory to the host until the access is closed, so that other work takes nothing from the CPU, and
// work on the memory fails with ErrBusy. The memory and its instance cannot be closed before.
func (m *Memory) BeginHostAccess() (*HostAccess[byte], error) {
	return beginHostAccess[byte](m, "Memory.BeginHostAccess", int(m.Size()))
}

// ManagedRange is a range of a batch.
type ManagedRange struct {
	Address    Address  // First byte.
	Size       uint64   // Bytes.
	Location   Location // Where to move the range; LocationNone for a discard.
	LocationID int      // Ordinal of the device or number of the NUMA node; otherwise 0.
}

// PrefetchBatch moves each range to its location, and reports whether that has an effect. The batch is ordered against
// other work of the stream; its ranges are not ordered among themselves. Every range is checked before any is enqueued.
func (s *Stream) PrefetchBatch(ranges []ManagedRange) (effective bool, err error) {
	return s.managedBatch("Stream.PrefetchBatch", ranges, func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_managed_prefetch_batch(s.id(), first, count)
	})
}

// DiscardBatch declares the contents of ranges useless, in stream order, and reports whether that has an effect. Until a
// byte is written or prefetched, reading it gives an indeterminate value. Advice stays. Only pages that lie whole in a
// range are discarded, and nothing else may use the ranges meanwhile.
func (s *Stream) DiscardBatch(ranges []ManagedRange) (effective bool, err error) {
	return s.managedBatch("Stream.DiscardBatch", ranges, func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
		return C.gpumem_go_managed_discard_batch(s.id(), first, count)
	})
}

// DiscardAndPrefetchBatch is DiscardBatch, then PrefetchBatch, but moves no byte.
func (s *Stream) DiscardAndPrefetchBatch(ranges []ManagedRange) (effective bool, err error) {
	return s.managedBatch("Stream.DiscardAndPrefetchBatch", ranges,
		func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result {
			return C.gpumem_go_managed_discard_and_prefetch_batch(s.id(), first, count)
		})
}

func (s *Stream) managedBatch(name string, ranges []ManagedRange,
	call func(first *C.uint8_t, count C.uint64_t) C.gpumem_go_result) (effective bool, err error) {
	native := make([]nativeManagedRange, len(ranges))
	entered := 0
	defer func() {
		for _, one := range ranges[:entered] {
			s.leave(one.Address)
		}
	}()
	for index, one := range ranges {
		err := checkLocationID(name, one.LocationID)
		if err == nil {
			err = one.Address.enter(name, one.Size)
		}
		if detail, ok := err.(*Error); ok {
			detail.Message = fmt.Sprintf("range %d: %s", index, detail.Message)
			return false, detail
		}
		entered++
		native[index] = nativeManagedRange{unsafe.Sizeof(native[index]), one.Address.value, one.Size, int32(one.Location),
			int32(one.LocationID)}
	}
	return succeeded(call(first(native), C.uint64_t(len(native))), s)
}

// ordinals lists the devices whose bits are set.
func ordinals(set uint64) (devices []int) {
	for ; set != 0; set &= set - 1 {
		devices = append(devices, bits.TrailingZeros64(set))
	}
	return devices
}
