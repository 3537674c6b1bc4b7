// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"errors"
	"runtime"
	"sort"
	"sync"
	"time"
	"unsafe"
)

// ring is common to both sides of a ring.
type ring struct {
	handled
	instance *Instance
	end      *ringEnd

	mutex sync.Mutex
	held  []*ringSlot     // What was acquired or waited for, and not published or released, in the order of the numbers.
	spare *nativeRingSlot // A slot that was acquired and dropped.
}

// ringEnd closes a ring that is dropped. The ring and its slots refer to each other, and what is part of such a circle is
// collected only if it has no finalizer, so this refers to neither.
type ringEnd struct {
	used     block // Notes how the slots that are held are used.
	instance *Instance
	handle   uintptr
}

func makeRing(instance *Instance, handle uintptr) ring {
	end := &ringEnd{instance: instance, handle: handle}
	closeWhenCollected(end, (*ringEnd).closeDropped)
	return ring{handled: handled{handle: handle}, instance: instance, end: end}
}

func (e *ringEnd) closeDropped() outcome {
	return e.used.dropped(e.instance, func() error {
		// Else the consumers of a producer would wait. This waits until they have left; a consumer is refused.
		_ = failure(C.gpumem_go_ring_finish(C.uintptr_t(e.handle), timeoutInfinite))
		return failure(C.gpumem_go_ring_destroy(C.uintptr_t(e.handle)))
	})
}

func (r *ring) id() C.uintptr_t {
	if r == nil {
		return 0
	}
	return C.uintptr_t(r.handle)
}

// ringSlot is common to the slots of both sides.
type ringSlot struct {
	block
	of       *ring
	stream   *Stream
	native   nativeRingSlot
	released bool // By its user. The library gets it when all older ones are released.
}

// take keeps a slot that the library has handed out.
func (r *ring) take(what string, slot *ringSlot, native nativeRingSlot, stream *Stream) {
	slot.what, slot.within = what, &r.end.used
	slot.endless = true // The library knows only the end of all slots.
	slot.of, slot.stream, slot.native = r, stream, native
	slot.address, slot.size = native.pointer, native.size
	r.mutex.Lock()
	defer r.mutex.Unlock()
	at := sort.Search(len(r.held), func(index int) bool { return r.held[index].native.number > native.number })
	r.held = append(r.held, nil)
	copy(r.held[at+1:], r.held[at:])
	r.held[at] = slot
}

// forget drops a slot; the mutex is locked.
func (r *ring) forget(slot *ringSlot) {
	for index, other := range r.held {
		if other == slot {
			copy(r.held[index:], r.held[index+1:])
			r.held[len(r.held)-1] = nil // A slot that is kept here keeps the ring from being collected.
			r.held = r.held[:len(r.held)-1]
			r.forgot()
			return
		}
	}
}

// forgot notes that nothing may use a slot any more if none is held; the mutex is locked.
func (r *ring) forgot() {
	if len(r.held) == 0 {
		r.end.used.shown.Store(false)
	}
}

// forgetAll closes the slots of a ring that has none any more.
func (r *ring) forgetAll() {
	r.mutex.Lock()
	held := r.held
	r.held, r.spare = nil, nil
	r.mutex.Unlock()
	for _, slot := range held {
		_, _ = slot.close("gpumem.Ring", func() error { return nil })
	}
}

// takeSpare returns the slot that was dropped, for one caller; nil if there is none.
func (r *ring) takeSpare() (spare *nativeRingSlot) {
	if r != nil {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		spare, r.spare = r.spare, nil
	}
	return spare
}

// next waits for a slot, with a function of the library.
func (r *ring) next(ctx context.Context, wait func(limit C.uint64_t, slot *C.uint8_t) C.gpumem_go_result) (nativeRingSlot, error) {
	slot := nativeRingSlot{structSize: unsafe.Sizeof(nativeRingSlot{})}
	one := func(limit C.uint64_t) (bool, error) {
		return succeeded(wait(limit, inC(&slot)))
	}
	err := takeNext(ctx, one)
	runtime.KeepAlive(r)
	return slot, err
}

func (r *ring) close() error {
	if r == nil {
		return nil
	}
	return closeObject(r.end, &r.handled, func() error {
		err := unlessGone(checked(C.gpumem_go_ring_destroy(r.id()), r))
		if err == nil {
			r.forgetAll()
		}
		return err
	})
}

func (r *ring) info() (RingInfo, error) {
	info := nativeRingInfo{structSize: unsafe.Sizeof(nativeRingInfo{})}
	err := checked(C.gpumem_go_ring_get_info(r.id(), inC(&info)), r)
	return info.public(), err
}

// order returns the stream in which the slot is passed on: none if that was closed when its work was observed complete.
func (s *ringSlot) order() *streamWork {
	if work := s.stream.work(); !work.done.Load() || !work.complete() {
		return work
	}
	return &noWork
}

// passOn makes a call that passes the slot on, in the order of its stream. If it has none, that is the one stream whose work uses it.
func (s *ringSlot) passOn(name string, call func(stream C.uintptr_t) C.gpumem_go_result) error {
	in := s.order()
	for _, use := range s.streams.pending(s.stream.work()) {
		if use.busy(); use.over() {
			continue
		} else if s.stream != nil || in != &noWork {
			return refusal(ErrBusy, name, "work of another stream uses the %s; synchronize the stream, or take the slot with it", s.what)
		}
		in = use.streamWork
	}
	err := failure(call(C.uintptr_t(in.handle)))
	runtime.KeepAlive(s.stream)
	return err
}

// RingProducer is the side of a ring that fills slots. Its consumers are in other processes, and each gets every message
// that is published after it has opened the ring, in order. One goroutine at a time may call it; another call is refused
// with [ErrBusy].
type RingProducer struct{ ring }

// NewRing makes a ring.
func (d *Device) NewRing(options RingOptions) (*RingProducer, error) {
	if err := options.check("Device.NewRing"); err != nil {
		return nil, err
	}
	desc := options.native()
	handle, err := valueOf[uintptr](C.gpumem_go_ring_create(d.id(), inC(&desc), options.Name), d)
	if err != nil {
		return nil, err
	}
	return &RingProducer{makeRing(d.Instance(), handle)}, nil
}

// Export makes the ring openable for other processes of this user. The handle travels like one of memory.
func (p *RingProducer) Export() (ShareHandle, error) {
	defer runtime.KeepAlive(p)
	return newHandle(func(bytes *C.uint8_t) error { return failure(C.gpumem_go_ring_export(p.side().id(), bytes)) })
}

// Info gets information about the ring. It asks nobody.
func (p *RingProducer) Info() (RingInfo, error) { return p.side().info() }

// Close closes the ring. It fails with [ErrBusy] while consumers have it: see Finish.
func (p *RingProducer) Close() error { return p.side().close() }

// RingSlot is a slot to fill. Publish passes it on, and Drop does not.
type RingSlot struct{ ringSlot }

// Acquire waits until all consumers have released the next slot. The stream will fill it, and waits for the work of the
// consumers; nil means that Acquire waits for that. If the context is done first, it returns the error of the context
// within about 10 milliseconds.
func (p *RingProducer) Acquire(ctx context.Context, stream *Stream) (*RingSlot, error) {
	r, made := p.side(), &RingSlot{}
	if spare := r.takeSpare(); spare != nil {
		r.take("slot", &made.ringSlot, *spare, stream)
		return made, nil
	}
	native, err := r.next(ctx, func(limit C.uint64_t, slot *C.uint8_t) C.gpumem_go_result {
		return C.gpumem_go_ring_acquire(r.id(), stream.id(), limit, slot)
	})
	runtime.KeepAlive(p)
	runtime.KeepAlive(stream)
	if err != nil {
		return nil, err
	}
	r.take("slot", &made.ringSlot, native, stream)
	return made, nil
}

// Publish publishes the slot, with a number for the consumers. They see the bytes when the work is complete that is in
// the slot's stream now. A slot of no stream has that of the work on it that this package has enqueued; with work of several
// streams, or of another than the slot's own, Publish fails with ErrBusy until that is complete. Without consumers, the message
// is lost. If the stream was closed, its work must have been observed complete before.
func (s *RingSlot) Publish(size, tag uint64) error {
	const name = "RingSlot.Publish"
	if s == nil || s.of == nil {
		return refusal(ErrInvalidArgument, name, "the slot is none of a ring; pass one that Acquire returned")
	}
	done, err := s.close(name, func() error {
		err := s.passOn(name, func(stream C.uintptr_t) C.gpumem_go_result {
			return C.gpumem_go_ring_publish(s.of.id(), stream, C.uint64_t(size), C.uint64_t(tag))
		})
		if err == nil {
			s.of.mutex.Lock()
			s.of.forget(&s.ringSlot)
			s.of.mutex.Unlock()
		}
		return err
	})
	if err == nil && !done {
		err = refusal(ErrStaleHandle, name, "the slot was published or dropped, or its ring closed")
	}
	runtime.KeepAlive(s)
	return err
}

// Drop keeps the slot for the next Acquire, unless it was published. It waits for all work on the slot. It is for
// defer: then a slot is not lost if filling it fails. It returns the panic of a function of the stream, as
// [Stream.Synchronize] does, and drops the slot all the same.
func (s *RingSlot) Drop() error {
	const name = "RingSlot.Drop"
	if s == nil || s.of == nil {
		return nil
	}
	var caught *PanicError
	_, err := s.close(name, func() error {
		if s.order() != &noWork {
			if err := s.stream.Synchronize(); err != nil && !errors.As(err, &caught) {
				return calledAs(name, err)
			}
		}
		for _, use := range s.streams.pending(s.stream.work()) {
			if err := failure(use.synchronize(timeoutInfinite)); err != nil && !use.over() {
				return calledAs(name, err)
			}
		}
		s.of.mutex.Lock()
		s.of.forget(&s.ringSlot)
		native := s.native // Not a part of the slot, which has the ring.
		s.of.spare = &native
		s.of.mutex.Unlock()
		return nil
	})
	runtime.KeepAlive(s)
	if err == nil && caught != nil {
		return caught
	}
	return err
}

// Finish says that no message will follow, and waits until all consumers have closed the ring. They take what is
// published, and then get [ErrClosed]. A slot that was not published is dropped. If the context is done first, it returns
// the error of the context; the ring is finished all the same.
func (p *RingProducer) Finish(ctx context.Context) error {
	finish := func(limit C.uint64_t) (bool, error) {
		result := C.gpumem_go_ring_finish(p.side().id(), limit)
		err := failure(result)
		if err == nil {
			p.forgetAll()
		}
		return Status(result.status) == Success, err
	}
	err := waitFor(ctx,
		func() error { _, err := finish(timeoutInfinite); return err },
		func(piece time.Duration) (bool, error) { return finish(nanoseconds(piece)) })
	runtime.KeepAlive(p)
	return err
}

// RingConsumer is the side of a ring that uses messages. The producer waits for it to release them. One goroutine at a
// time may call it; another call is refused with [ErrBusy].
type RingConsumer struct{ ring }

// OpenRing opens a ring of another process. This instance will use the messages that are published from now on.
func (i *Instance) OpenRing(handle ShareHandle, options RingOpenOptions) (*RingConsumer, error) {
	if err := options.check("Instance.OpenRing"); err != nil {
		return nil, err
	}
	ring, err := valueOf[uintptr](C.gpumem_go_ring_open(i.id(), handle.native(), C.uint64_t(options.Timeout), options.Name), i)
	if err != nil {
		return nil, err
	}
	return &RingConsumer{makeRing(i, ring)}, nil
}

// Info gets information about the ring. It asks nobody.
func (c *RingConsumer) Info() (RingInfo, error) {
	info, err := c.side().info()
	return info, calledAs("RingConsumer.Info", err)
}

// Close leaves the ring. What was not released is released, so work on it must have been observed complete. It waits for
// the work on what was.
func (c *RingConsumer) Close() error { return calledAs("RingConsumer.Close", c.side().close()) }

// RingMessage is a message. Release passes the slot back to the producer.
type RingMessage struct{ ringSlot }

// Wait waits for the next message; several can be held. The stream will use it, and waits for the work of the producer;
// nil means that Wait waits for that. It fails with [ErrClosed] if the producer has finished the ring and this was all,
// and with [ErrPeerGone] if the producer has ended. If the context is done first, it returns the error of the context within
// about 10 milliseconds.
func (c *RingConsumer) Wait(ctx context.Context, stream *Stream) (*RingMessage, error) {
	r := c.side()
	native, err := r.next(ctx, func(limit C.uint64_t, slot *C.uint8_t) C.gpumem_go_result {
		return C.gpumem_go_ring_wait(r.id(), stream.id(), limit, slot)
	})
	runtime.KeepAlive(c)
	runtime.KeepAlive(stream)
	if err != nil {
		return nil, err
	}
	message := &RingMessage{}
	r.take("message", &message.ringSlot, native, stream)
	return message, nil
}

// Each calls a function with each message, and releases it when the function returns. It returns nil when the producer has
// finished the ring, and otherwise the first error: of the function, of a call, or of the context.
func (c *RingConsumer) Each(ctx context.Context, stream *Stream, use func(*RingMessage) error) error {
	if use == nil {
		return refusal(ErrInvalidArgument, "RingConsumer.Each", "the function is nil")
	}
	one := func(message *RingMessage) (err error) {
		defer func() { // Also if the function panics.
			if released := message.Release(); err == nil {
				err = released
			}
		}()
		return use(message)
	}
	for {
		message, err := c.Wait(ctx, stream)
		if errors.Is(err, ErrClosed) && !c.instance.closed() {
			return nil
		} else if err != nil {
			return calledAs("RingConsumer.Each", err)
		}
		if err := one(message); err != nil {
			return err
		}
	}
}

// Release releases the message. The producer fills the slot again when the work is complete that is in the message's stream
// now. Work of other streams is as for [RingSlot.Publish]. A message that is released before an older one stays held until that is released. A second call does nothing. As with [RingSlot.Publish], a stream may be closed once its work was observed
// complete.
func (m *RingMessage) Release() error {
	if m == nil || m.of == nil {
		return nil
	}
	const name = "RingMessage.Release"
	_, err := m.close(name, func() error {
		r := m.of
		r.mutex.Lock()
		defer r.mutex.Unlock()
		m.released = true
		for len(r.held) > 0 && r.held[0].released {
			oldest := r.held[0]
			err := oldest.passOn(name, func(stream C.uintptr_t) C.gpumem_go_result {
				return C.gpumem_go_ring_release(r.id(), stream, C.uint64_t(oldest.native.number))
			})
			if err != nil && oldest == &m.ringSlot {
				m.released = false
				return err
			} else if err != nil {
				return nil // The next Release tries again.
			}
			r.held[0] = nil
			r.held = r.held[1:]
			r.forgot()
		}
		return nil
	})
	runtime.KeepAlive(m)
	return err
}
