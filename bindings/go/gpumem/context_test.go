// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
)

func TestWaitsEndWithTheirContext(t *testing.T) {
	d := device(t)
	s, e, word := newStream(t, d), newEvent(t, d), newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, e.Record(s))
	goroutines := runtime.NumGoroutine()
	for name, wait := range map[string]func(context.Context) error{"stream": s.SynchronizeContext, "event": e.SynchronizeContext} {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if err := wait(ended); err != context.Canceled {
			t.Errorf("%s: %v although the context was canceled before", name, err)
		}
		begin := time.Now()
		limited, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		err := wait(limited)
		if err != context.DeadlineExceeded || time.Since(begin) < 30*time.Millisecond {
			t.Errorf("%s: %v after %v", name, err, time.Since(begin))
		}
		cancel()

		canceled, cancel := context.WithCancel(context.Background())
		result := make(chan error)
		go func() { result <- wait(canceled) }()
		select {
		case err := <-result:
			t.Errorf("%s: %v before the context was canceled", name, err)
		case <-time.After(50 * time.Millisecond):
			cancel()
			select {
			case err := <-result:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", name, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: the wait did not end", name)
			}
		}
		cancel()
	}
	for tries := 0; runtime.NumGoroutine() > goroutines && tries < 1000; tries++ {
		time.Sleep(time.Millisecond)
	}
	if now := runtime.NumGoroutine(); now > goroutines {
		t.Errorf("%d goroutines are left", now-goroutines)
	}

	word.Slice()[0] = 1
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must(t, s.SynchronizeContext(ctx))
	must(t, e.SynchronizeContext(ctx))
	must(t, s.SynchronizeContext(context.Background()))
	// Complete work is reported, whatever the context says.
	cancel()
	must(t, s.SynchronizeContext(ctx))
	must(t, e.SynchronizeContext(ctx))
}

func TestWaitsReportFailuresBeforeTheirContext(t *testing.T) {
	d := device(t)
	s := newStream(t, d)
	must(t, s.Launch(func() { panic("on purpose") }))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var caught *PanicError
	if err := s.SynchronizeContext(ctx); !errors.As(err, &caught) {
		t.Errorf("the panic became %v", err)
	}
	expect(t, (*Stream)(nil).SynchronizeContext(ctx), ErrInvalidArgument)
	expect(t, (*Event)(nil).SynchronizeContext(ctx), ErrInvalidArgument)
}

func TestANilContextIsRefused(t *testing.T) {
	d := device(t)
	expect(t, newStream(t, d).SynchronizeContext(nil), ErrInvalidArgument)
	expect(t, newEvent(t, d).SynchronizeContext(nil), ErrInvalidArgument)
}
