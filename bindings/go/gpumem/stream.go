// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Stream is an ordered queue of work on one device.
type Stream struct {
	*streamWork
	device *Device
}

// streamWork is the part of a stream that memory used in it refers to. It does not keep the Stream alive.
type streamWork struct {
	handled
	enqueued atomic.Uint64 // Work that may use memory, counted once it is enqueued.
	observed atomic.Uint64 // Part of it that was observed complete.
	panics   panicBox      // Of the functions of the stream.
	late     *panicBox     // Of the instance, for those that end when the stream is closed.
	waiting  sync.Mutex    // Of who waits in observe.
}

// noWork stands for the work of no stream.
var noWork streamWork

func (s *Stream) work() *streamWork {
	if s == nil || s.streamWork == nil {
		return &noWork
	}
	return s.streamWork
}

func (s *Stream) id() C.uintptr_t { return C.uintptr_t(s.work().handle) }

// NewStream creates a stream. It does not synchronise with the legacy default stream of the device.
func (d *Device) NewStream(options StreamOptions) (*Stream, error) {
	if err := options.check("Device.NewStream"); err != nil {
		return nil, err
	}
	return d.stream(C.gpumem_go_stream_create(d.id(), C.int32_t(options.Priority), options.Name))
}

// WrapStream wraps a stream that other code created: a CUstream, or a stream of [Device.HostNativeStream]; 0 is the
// legacy default stream of the device. The native stream stays its creator's, and must live until the Stream is closed.
func (d *Device) WrapStream(native uintptr) (*Stream, error) {
	return d.stream(C.gpumem_go_stream_wrap(d.id(), C.uintptr_t(native)))
}

func (d *Device) stream(result C.gpumem_go_result) (*Stream, error) {
	runtime.KeepAlive(d)
	if err := failure(result); err != nil {
		return nil, err
	}
	stream := &Stream{streamWork: &streamWork{handled: handled{handle: uintptr(result.value)}, late: d.instance.late}, device: d}
	closeWhenCollected(stream, func(stream *Stream) outcome {
		if stream.device.instance.closed() {
			return outcomeGone
		}
		stream.observe() // Memory that it worked on may be dropped too.
		err := stream.Close()
		if caught, panicked := err.(*PanicError); panicked {
			stream.late.keep(caught)
			return outcomeFreed
		}
		return outcomeOf(err)
	})
	return stream, nil
}

// Close destroys the stream, or releases a wrapped one. It does not wait: pending work still completes, but can no
// longer be observed, so call Synchronize first. It also returns, once, the panic of a function of the stream. A later one
// is returned by Close of the instance.
func (s *Stream) Close() error {
	work := s.work()
	now, err := work.destroyOnce(func() error { return failure(C.gpumem_go_stream_destroy(s.id())) })
	if now {
		closedByHand(s)
		err = work.panics.take()
	}
	runtime.KeepAlive(s)
	return err
}

// guard runs a function of the stream and keeps its panic.
func (w *streamWork) guard(function func()) {
	w.panics.guard(function)
	if w.done.Load() { // Else Close finds it.
		if caught, panicked := w.panics.take().(*PanicError); panicked {
			w.late.keep(caught)
		}
	}
}

// complete reports whether all work that uses memory was observed complete.
func (w *streamWork) complete() bool { return w.observed.Load() >= w.enqueued.Load() }

// saw records that this much work is complete.
func (w *streamWork) saw(count uint64) { raise(&w.observed, count) }

// raise sets a number, unless it is larger already.
func raise(number *atomic.Uint64, to uint64) {
	for {
		now := number.Load()
		if now >= to || number.CompareAndSwap(now, to) {
			return
		}
	}
}

// observe waits until the work is complete, and reports whether it was observed complete.
func (w *streamWork) observe() bool {
	if !w.complete() {
		// One at a time, because who waits in C holds a thread, and objects may be dropped by the thousand.
		w.waiting.Lock()
		defer w.waiting.Unlock()
		if !w.complete() {
			_ = failure(w.synchronize(timeoutInfinite)) // The counters have the result.
		}
	}
	return w.complete()
}

// busy reports whether work of the stream is pending, as far as that can be found out.
func (w *streamWork) busy() bool {
	count := w.enqueued.Load()
	status := Status(w.answer(count, C.gpumem_go_stream_query(C.uintptr_t(w.handle))).status)
	return status == NotReady || status == ErrInvalidState // Inside a function of a stream, or of one that is captured.
}

func (w *streamWork) synchronize(timeout C.uint64_t) C.gpumem_go_result {
	count := w.enqueued.Load()
	return w.answer(count, C.gpumem_go_stream_synchronize(C.uintptr_t(w.handle), timeout))
}

func (w *streamWork) answer(count uint64, result C.gpumem_go_result) C.gpumem_go_result {
	if Status(result.status) == Success && w.observed.Load() < count {
		w.saw(count)
	}
	return result
}

// native returns the native stream, or 0 if the stream is closed.
func (w *streamWork) native() uintptr {
	info := nativeStreamInfo{structSize: unsafe.Sizeof(nativeStreamInfo{})}
	if failure(C.gpumem_go_stream_get_info(C.uintptr_t(w.handle), inC(&info))) != nil {
		return 0
	}
	return uintptr(info.nativeStream)
}

// Query reports whether all work of the stream is complete. It also returns, once, the panic of a function of the
// stream.
func (s *Stream) Query() (complete bool, err error) {
	work := s.work()
	count := work.enqueued.Load()
	result := C.gpumem_go_stream_query(C.uintptr_t(work.handle))
	if result.status == 0 && work.observed.Load() >= count && work.panics.first.Load() == nil {
		runtime.KeepAlive(s) // The usual case, kept short.
		return true, nil
	}
	return s.answer(work.answer(count, result))
}

// Synchronize waits until the work that is in the stream now is complete. It also returns, once, the panic of a
// function of the stream.
func (s *Stream) Synchronize() error {
	_, err := s.answer(s.work().synchronize(timeoutInfinite))
	return err
}

// SynchronizeFor is Synchronize with a timeout. It reports whether the work is complete.
func (s *Stream) SynchronizeFor(limit time.Duration) (complete bool, err error) {
	return s.answer(s.work().synchronize(nanoseconds(limit)))
}

// SynchronizeContext is Synchronize until the context is done. Then it returns the error of the context within about 10
// milliseconds, and the work goes on: its operands must still stay open.
func (s *Stream) SynchronizeContext(ctx context.Context) error {
	if ctx == nil {
		return refusal(ErrInvalidArgument, "Stream.SynchronizeContext", "the context is nil")
	}
	return waitFor(ctx, s.Synchronize, s.SynchronizeFor)
}

// waitFor waits in short pieces, because nothing can end a wait of the library early.
func waitFor(ctx context.Context, wait func() error, waitPiece func(time.Duration) (bool, error)) error {
	if ctx.Done() == nil {
		return wait()
	}
	for piece := time.Duration(0); ; {
		if complete, err := waitPiece(piece); complete || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		piece = 10 * time.Millisecond
		if end, limited := ctx.Deadline(); limited && time.Until(end) < piece {
			// A little more, so that the context is done afterwards.
			piece = time.Until(end) + 100*time.Microsecond
		}
	}
}

// takeNext waits for what comes one after another. It takes nothing once the context is done, or a loop would not end while more
// comes.
func takeNext(ctx context.Context, wait func(limit C.uint64_t) (found bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return waitFor(ctx,
		func() error { _, err := wait(timeoutInfinite); return err },
		func(piece time.Duration) (bool, error) { return wait(nanoseconds(piece)) })
}

func (s *Stream) answer(result C.gpumem_go_result) (complete bool, err error) {
	if err = failure(result); err == nil {
		err = s.work().panics.take()
	}
	runtime.KeepAlive(s)
	return Status(result.status) == Success, err
}

func nanoseconds(limit time.Duration) C.uint64_t {
	if limit < 0 {
		limit = 0
	}
	return C.uint64_t(limit.Nanoseconds())
}

// Launch enqueues a function that runs on the CPU, after all earlier and before all later work of the stream, on another
// thread. It must not wait for device work. Of this package it may call only what returns texts, versions and
// information about objects. It does not run if the device is lost. If it panics, the next Synchronize, Query or Close
// of the stream, or Close of the instance if the stream is closed, returns a *PanicError. It must not call
// runtime.Goexit, and so not FailNow of a test. It runs once, so a stream that is being captured into a graph refuses it.
func (s *Stream) Launch(function func()) error {
	if function == nil {
		return refusal(ErrInvalidArgument, "Stream.Launch", "the function is nil")
	}
	if capture, err := s.CaptureID(); err != nil {
		return err
	} else if capture != 0 {
		return refusal(ErrInvalidState, "Stream.Launch",
			"the stream is being captured into a graph, which would call the function at each launch; launch it outside of the capture")
	}
	return s.launch(&hostCall{run: function}, func(call C.uintptr_t) C.gpumem_go_result {
		return C.gpumem_go_stream_launch_host_function(s.id(), call)
	})
}

func (s *Stream) launch(call *hostCall, start func(C.uintptr_t) C.gpumem_go_result) error {
	call.work = s.work()
	if s != nil && s.device != nil {
		call.instance = s.device.instance.handle
	}
	number := calls.add(call)
	err := failure(start(C.uintptr_t(number)))
	if err != nil {
		calls.take(number)
	} else {
		s.work().enqueued.Add(1)
	}
	runtime.KeepAlive(s)
	return err
}

// leave is Address.leave for a call that has enqueued work: the memory refers to the stream until that work is observed
// complete. Work is not counted earlier, because a goroutine that then finds the stream idle would count it as complete.
// Without a stream, the call itself has done the work.
func (s *Stream) leave(address Address) {
	if work := s.work(); work != &noWork {
		count := work.enqueued.Add(1)
		if address.owner != nil {
			address.owner.streams.add(work, count)
			if within := address.owner.within; within != nil {
				within.streams.add(work, count)
			}
		}
	}
	address.leave()
}
