// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for start := time.Now(); !so(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 60*time.Second {
			t.Fatalf("not %s after 60 seconds", what)
		}
	}
}

// panicOf runs a function and returns the value of its panic.
func panicOf(function func()) (value any) {
	defer func() { value = recover() }()
	function()
	return nil
}

func setCallbacksCount() int {
	callbacks.mutex.Lock()
	defer callbacks.mutex.Unlock()
	return len(callbacks.all)
}

func TestSleepWaitsForWork(t *testing.T) {
	d, unit := rangeDevice(t)
	s, e := newStream(t, d), newEvent(t, d)
	b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit})
	word := newPinned[uint32](t, d, 1)
	for number, options := range []SleepOptions{{}, {Stream: s}, {Event: e}, {Stream: s, Event: e, Content: ContentPageable}} {
		value := uint32('a' + number)
		word.Slice()[0] = 0
		must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
		must(t, s.Fill(b.At(0), unit, value, 1))
		must(t, e.Record(s))
		if testBackend(t) == BackendHost {
			expect(t, b.Sleep(SleepOptions{Flags: SleepIdle}), ErrBusy) // It knows better.
		}
		slept := make(chan error)
		go func() { slept <- b.Sleep(options) }()
		select {
		case err := <-slept:
			t.Fatalf("number %d: it slept before the work was complete (%v)", number, err)
		case <-time.After(20 * time.Millisecond):
		}
		word.Slice()[0] = 1
		must(t, <-slept)
		must(t, s.Synchronize())
		must(t, b.Wake(WakeOptions{}))
		if got := contentOf(t, b, unit-1, 1); got != string(rune(value)) {
			t.Errorf("number %d: awake it has %q", number, got)
		}
	}
	must(t, s.Synchronize())
	must(t, b.Sleep(SleepOptions{Flags: SleepIdle}))
}

func TestOptionsOfSleep(t *testing.T) {
	d, unit := rangeDevice(t)
	b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit})
	other, err := open(t).Device(0)
	must(t, err)
	s, directory := newStream(t, d), t.TempDir()
	file := filepath.Join(directory, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for number, one := range []struct {
		options SleepOptions
		status  Status
	}{
		{SleepOptions{Content: -1}, ErrInvalidArgument},
		{SleepOptions{Flags: 2}, ErrInvalidArgument},
		{SleepOptions{Directory: directory}, ErrInvalidArgument},
		{SleepOptions{Content: ContentFile}, ErrInvalidArgument},
		{SleepOptions{Content: ContentFile, Directory: file}, ErrInvalidArgument},
		{SleepOptions{Content: ContentFile, Directory: "a\x00b"}, ErrInvalidArgument},
		{SleepOptions{Content: ContentFile, Directory: directory + "/none"}, ErrNotFound},
		{SleepOptions{Tag: "weights"}, ErrInvalidArgument},
		{SleepOptions{Tag: "\x00"}, ErrInvalidArgument},
		{SleepOptions{Flags: SleepIdle, Stream: s}, ErrInvalidArgument},
		{SleepOptions{Stream: newStream(t, other)}, ErrInvalidArgument},
		{SleepOptions{Event: newEvent(t, other)}, ErrInvalidArgument},
		{SleepOptions{Event: newEvent(t, d)}, ErrInvalidState},
	} {
		if err := b.Sleep(one.options); !errors.Is(err, one.status) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	expect(t, b.Wake(WakeOptions{}), ErrInvalidState)
	for number, options := range []PrepareOptions{{Content: 9}, {Content: ContentFile}, {Directory: directory}, {Tag: "weights"},
		{Tag: "\x00"}, {Content: ContentFile, Directory: "\x00"}} {
		if err := b.Prepare(options); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	if detail := expect(t, b.Sleep(SleepOptions{Content: ContentFile}), ErrInvalidArgument); strings.Contains(detail.Message, "GPUMEM_") ||
		!strings.HasPrefix(detail.Error(), "GrowableBuffer.Sleep: ") {
		t.Error(detail)
	}
	must(t, b.Sleep(SleepOptions{}))
	expect(t, b.Prepare(PrepareOptions{}), ErrInvalidState)
	expect(t, b.Wake(WakeOptions{Tag: "weights"}), ErrInvalidArgument)
	expect(t, b.Wake(WakeOptions{Tag: "\x00"}), ErrInvalidArgument)
	must(t, b.Wake(WakeOptions{}))
}

func TestContentInAFile(t *testing.T) {
	d, unit := rangeDevice(t)
	i, directory := d.Instance(), t.TempDir()
	b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit})
	must(t, i.Fill(b.At(0), unit, 'x', 1))
	sleep := SleepOptions{Content: ContentFile, Directory: directory}
	must(t, b.Sleep(sleep))
	if info := infoOf(t, b); info.StoredSize != unit || info.StoreCapacity < unit {
		t.Errorf("asleep it is %+v", info)
	}
	must(t, b.Wake(WakeOptions{}))
	if got := contentOf(t, b, unit-2, 2); got != "xx" {
		t.Errorf("awake it has %q", got)
	}

	must(t, b.Sleep(sleep))
	links, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	cut := false
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, directory) {
			must(t, os.Truncate(link, 0))
			cut = true
		}
	}
	if !cut {
		t.Fatal("there is no file in the directory")
	}
	expect(t, b.Wake(WakeOptions{}), ErrContentLost)
	if info := infoOf(t, b); info.State == BufferStateAwake {
		t.Errorf("without its content it is %+v", info)
	}
	left, err := os.ReadDir(directory)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("the directory has %v", left)
	}
}

func TestStoresThatArePrepared(t *testing.T) {
	d, unit := rangeDevice(t)
	b := newGrowable(t, d, BufferOptions{Size: 2 * unit, Reserve: 2 * unit})
	capacity := func() uint64 { return infoOf(t, b).StoreCapacity }
	if capacity() != 0 {
		t.Errorf("there is a store of %d bytes", capacity())
	}
	must(t, b.Prepare(PrepareOptions{}))
	if info := infoOf(t, b); info.StoreCapacity < 2*unit || info.StoredSize != 0 || info.State != BufferStateAwake {
		t.Errorf("prepared it is %+v", info)
	}
	must(t, d.Instance().Fill(b.At(0), 2*unit, 'p', 1))
	must(t, b.Sleep(SleepOptions{}))
	if info := infoOf(t, b); info.StoredSize != 2*unit {
		t.Errorf("asleep it is %+v", info)
	}
	must(t, b.Wake(WakeOptions{Keep: math.MaxUint64}))
	if capacity() < 2*unit {
		t.Errorf("kept were %d bytes", capacity())
	}
	must(t, b.Prepare(PrepareOptions{Content: ContentDrop}))
	if capacity() != 0 {
		t.Errorf("%d bytes are left", capacity())
	}
	must(t, b.Sleep(SleepOptions{}))
	must(t, b.Wake(WakeOptions{}))
	if capacity() != 0 {
		t.Errorf("%d bytes are kept", capacity())
	}
	must(t, b.Prepare(PrepareOptions{Content: ContentPageable, BytesPerSecond: 1 << 40}))
	eventually(t, "prepared", func() bool { return capacity() >= 2*unit })
	must(t, b.Sleep(SleepOptions{Content: ContentPageable}))
	must(t, b.Wake(WakeOptions{}))
	if got := contentOf(t, b, 2*unit-1, 1); got != "p" {
		t.Errorf("awake it has %q", got)
	}
}

func TestProgress(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	b := newGrowable(t, d, BufferOptions{Size: 3 * unit, Reserve: 3 * unit})
	must(t, i.Fill(b.At(0), 3*unit, 'q', 1))
	var seen []uint64
	all := func(done, total uint64) bool {
		if total != 3*unit || len(seen) > 0 && done < seen[len(seen)-1] {
			t.Errorf("%d of %d after %v", done, total, seen)
		}
		seen = append(seen, done)
		return done < total // At the end the value means nothing.
	}
	checkSeen := func() {
		t.Helper()
		if len(seen) < 2 || seen[0] != 0 || seen[len(seen)-1] != 3*unit {
			t.Errorf("seen was %v", seen)
		}
		seen = nil
	}
	must(t, b.Sleep(SleepOptions{Progress: all}))
	checkSeen()
	must(t, b.Wake(WakeOptions{Progress: all}))
	checkSeen()

	before := infoOf(t, b)
	calls := 0
	never := func(uint64, uint64) bool { calls++; return false }
	same := func(what string) {
		t.Helper()
		if now := infoOf(t, b); now.State != before.State || now.Generation != before.Generation || now.StoredSize != before.StoredSize {
			t.Errorf("%s: it was %+v, and is %+v", what, before, now)
		}
	}
	expect(t, b.Sleep(SleepOptions{Progress: never}), ErrCancelled)
	same("cancelled")
	if value := panicOf(func() { _ = b.Sleep(SleepOptions{Progress: func(uint64, uint64) bool { panic(io.ErrNoProgress) }}) }); value != io.ErrNoProgress {
		t.Errorf("the panic became %v", value)
	}
	same("after the panic")
	if got := contentOf(t, b, 0, 1) + contentOf(t, b, 3*unit-1, 1); got != "qq" {
		t.Errorf("there is %q", got)
	}
	// What the function may not do is refused.
	must(t, b.Sleep(SleepOptions{Progress: func(uint64, uint64) bool {
		for number, err := range []error{b.Resize(unit), b.Sleep(SleepOptions{}), b.Wake(WakeOptions{}), b.Close(),
			b.SetCallbacks(BufferCallbacks{})} {
			if !errors.Is(err, ErrInvalidState) {
				t.Errorf("number %d: %v", number, err)
			}
		}
		return true
	}}))
	before = infoOf(t, b)
	expect(t, b.Wake(WakeOptions{Progress: never}), ErrCancelled)
	if value := panicOf(func() { _ = b.Wake(WakeOptions{Progress: func(uint64, uint64) bool { panic("on purpose") }}) }); value != "on purpose" {
		t.Errorf("the panic became %v", value)
	}
	same("asleep")
	must(t, b.Wake(WakeOptions{}))
	if got := contentOf(t, b, 0, 1) + contentOf(t, b, 3*unit-1, 1); got != "qq" || calls != 2 {
		t.Errorf("there is %q after %d calls", got, calls)
	}

	// A call in the progress function of another has functions of its own.
	other := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit})
	must(t, other.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool { panic("inner") }}))
	woken := 0
	must(t, b.SetCallbacks(BufferCallbacks{AfterWake: func(uint64) { woken++ }}))
	var inner any
	expect(t, b.Sleep(SleepOptions{Progress: func(uint64, uint64) bool {
		inner = panicOf(func() { _ = other.Sleep(SleepOptions{}) })
		return false
	}}), ErrCancelled)
	if inner != "inner" || woken != 1 || infoOf(t, other).State != BufferStateAwake {
		t.Errorf("inside was %v, woken %d times, and the other is %+v", inner, woken, infoOf(t, other))
	}
	must(t, i.Fill(b.At(0), 1, 1, 1))
}

func TestNobodyElseUsesABufferThatSleeps(t *testing.T) {
	d, unit := rangeDevice(t)
	i, s := d.Instance(), newStream(t, d)
	b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit})
	must(t, i.Fill(b.At(0), unit, 'q', 1))
	at := b.At(0)
	calls := 0
	refused := func(uint64, uint64) bool {
		calls++
		all := make(chan []error)
		go func() {
			word := make([]byte, 8)
			all <- []error{CopyToSlice(i, word, at), CopyFromSlice(i, at, word), CopyFromSliceAsync(s, at, word), i.Fill(at, 8, 'x', 1)}
		}()
		for number, err := range <-all {
			expect(t, err, ErrInvalidState)
			if !strings.Contains(err.Error(), "in a buffer that is asleep") {
				t.Errorf("number %d: %v", number, err)
			}
		}
		return true
	}
	must(t, b.Sleep(SleepOptions{Progress: refused}))
	refused(0, 0)
	must(t, b.Wake(WakeOptions{Progress: refused}))
	if got := contentOf(t, b, 0, 8); got != "qqqqqqqq" || calls < 5 {
		t.Errorf("there is %q after %d calls", got, calls)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	d, unit := rangeDevice(t)
	g, err := d.Instance().NewGroup(GroupOptions{})
	must(t, err)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit, Group: g})
	must(t, err)
	must(t, d.Instance().Fill(b.At(0), unit, 'c', 1))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, one := range map[string]struct {
		sleep func(context.Context, SleepOptions) error
		wake  func(context.Context, WakeOptions) error
	}{"buffer": {b.SleepContext, b.WakeContext}, "group": {g.SleepContext, g.WakeContext}} {
		none := func(uint64, uint64) bool {
			t.Errorf("%s: it began although the context was canceled before", name)
			return true
		}
		// cancels makes a context that is canceled once the call has begun.
		cancels := func() (context.Context, func(uint64, uint64) bool) {
			ctx, cancel := context.WithCancel(context.Background())
			return ctx, func(uint64, uint64) bool { cancel(); return true }
		}
		if err := one.sleep(ended, SleepOptions{Progress: none}); err != context.Canceled {
			t.Errorf("%s: %v", name, err)
		}
		ctx, progress := cancels()
		if err := one.sleep(ctx, SleepOptions{Progress: progress}); err != context.Canceled || infoOf(t, b).State != BufferStateAwake {
			t.Errorf("%s: %v, and it is %+v", name, err, infoOf(t, b))
		}
		expect(t, one.sleep(context.Background(), SleepOptions{Progress: func(uint64, uint64) bool { return false }}), ErrCancelled)
		must(t, one.sleep(context.Background(), SleepOptions{}))
		if err := one.wake(ended, WakeOptions{Progress: none}); err != context.Canceled {
			t.Errorf("%s: %v", name, err)
		}
		ctx, progress = cancels()
		if err := one.wake(ctx, WakeOptions{Progress: progress}); err != context.Canceled || infoOf(t, b).State != BufferStateAsleep {
			t.Errorf("%s: %v, and it is %+v", name, err, infoOf(t, b))
		}
		limited, cancel := context.WithTimeout(context.Background(), time.Minute)
		must(t, one.wake(limited, WakeOptions{}))
		cancel()
		if got := contentOf(t, b, unit-1, 1); got != "c" {
			t.Errorf("%s: there is %q", name, got)
		}
	}
	expect(t, b.SleepContext(context.Background(), SleepOptions{Content: 9}), ErrInvalidArgument)
	must(t, b.Close())
	must(t, g.Close())
}

// A call that waits for work ends with its context, and is undone when the work is complete.
func TestSleepLeavesWorkWithItsContext(t *testing.T) {
	d, unit := rangeDevice(t)
	g, err := d.Instance().NewGroup(GroupOptions{})
	must(t, err)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit, Group: g})
	must(t, err)
	must(t, d.Instance().Fill(b.At(0), unit, 'c', 1))
	for name, sleep := range map[string]func(context.Context, SleepOptions) error{"buffer": b.SleepContext, "group": g.SleepContext} {
		s, open := newStream(t, d), make(chan struct{})
		must(t, s.Launch(func() { <-open }))
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		result := make(chan error, 1)
		go func() {
			result <- sleep(ctx, SleepOptions{Content: ContentDrop, Progress: func(uint64, uint64) bool {
				t.Errorf("%s: progress after its context", name)
				return true
			}})
		}()
		select {
		case err := <-result:
			if err != context.DeadlineExceeded {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: it waits for work although its context is done", name)
		}
		cancel()
		close(open)
		must(t, b.SetCapacity(0)) // Which waits until it is undone.
		if info := infoOf(t, b); info.State != BufferStateAwake {
			t.Errorf("%s: %+v", name, info)
		}
		if got := contentOf(t, b, unit-1, 1); got != "c" {
			t.Errorf("%s: there is %q", name, got)
		}
		must(t, s.Synchronize())
	}
	must(t, b.Close())
	must(t, g.Close())
}

func TestWaitEndsOnceASleepThatWasLeftIsUndone(t *testing.T) {
	d, unit := rangeDevice(t)
	g, err := d.Instance().NewGroup(GroupOptions{})
	must(t, err)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit, Group: g})
	must(t, err)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	fill := func() error { return d.Instance().Fill(b.At(0), unit, 'c', 1) }
	for name, sleep := range map[string]func(context.Context, SleepOptions) error{"buffer": b.SleepContext, "group": g.SleepContext} {
		s, open := newStream(t, d), make(chan struct{})
		var inside error
		must(t, s.Launch(func() {
			<-open
			inside = b.Wait(context.Background())
		}))
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- sleep(ctx, SleepOptions{}) }()
		begin := time.Now()
		for fill() == nil { // Until the call has begun.
			if time.Since(begin) > time.Minute {
				t.Fatalf("%s: it has not begun", name)
			}
		}
		cancel()
		if err := <-result; err != context.Canceled {
			t.Errorf("%s: %v", name, err)
		}
		if state := infoOf(t, b).State; state != BufferStateAwake {
			t.Errorf("%s: while the call is left behind it is %v", name, state)
		}
		expect(t, fill(), ErrInvalidState)
		waits := map[string]func(context.Context) error{"b.Wait": b.Wait, "g.Wait": g.Wait,
			"b.WakeContext": func(ctx context.Context) error { return b.WakeContext(ctx, WakeOptions{}) },
			"g.WakeContext": func(ctx context.Context) error { return g.WakeContext(ctx, WakeOptions{}) }}
		for waited, wait := range waits {
			limited, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			if err := wait(limited); err != context.DeadlineExceeded {
				t.Errorf("%s: %s returned %v although the work goes on", name, waited, err)
			}
			cancel()
		}
		close(open)
		must(t, g.Wait(context.Background()))
		must(t, fill())
		must(t, b.Wait(ended)) // There is nothing to wait for.
		must(t, s.Synchronize())
		expect(t, inside, ErrInvalidState)
	}
	expect(t, (*GrowableBuffer)(nil).Wait(ended), ErrInvalidArgument)
	expect(t, (*Group)(nil).Wait(ended), ErrInvalidArgument)
	must(t, b.Close())
	must(t, g.Close())
}

func TestCallbacksOfBuffers(t *testing.T) {
	d, unit := rangeDevice(t)
	before := setCallbacksCount()
	b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: 2 * unit, Name: "weights"})
	must(t, err)
	var order []string
	var woken []uint64
	may := true
	var card *Registration
	register := func() {
		card, err = b.NoteRegistration("card")
		if err != nil {
			t.Error(err)
		}
	}
	register()
	must(t, b.SetCallbacks(BufferCallbacks{
		BeforeSleep: func() bool {
			order = append(order, "before")
			if err := card.Close(); err != nil {
				t.Error(err)
			}
			for number, err := range []error{b.Resize(0), b.SetCapacity(0), b.SetAccess(onDevice(0)), b.Sleep(SleepOptions{}),
				b.Prepare(PrepareOptions{}), b.SetAhead(0), b.Close()} {
				if !errors.Is(err, ErrInvalidState) {
					t.Errorf("number %d in a callback: %v", number, err)
				}
			}
			// The call that set them may not have returned, for all that this package knows.
			if err := b.SetCallbacks(BufferCallbacks{}); !errors.Is(err, ErrInvalidState) {
				t.Errorf("callbacks in a callback: %v", err)
			}
			if info, err := b.Info(); err != nil || info.State != BufferStateAwake || info.Registrations != 0 {
				t.Errorf("in the callback it is %+v (%v)", info, err)
			}
			return may
		},
		AfterWake: func(generation uint64) {
			order, woken = append(order, "after"), append(woken, generation)
			info, err := b.Info()
			if err != nil || b.Generation() != generation || info.Generation != generation || info.State != BufferStateAwake {
				t.Errorf("of generation %d it is %+v (%v)", generation, info, err)
			}
			if err := b.View(func([]byte) error { return nil }); !errors.Is(err, ErrBusy) {
				t.Errorf("a view in a callback: %v", err)
			}
			register()
		},
	}))
	if setCallbacksCount() != before+1 {
		t.Errorf("%d callbacks are remembered", setCallbacksCount()-before)
	}
	for n := 0; n < 10; n++ {
		runtime.GC() // C has only a number, so nothing is lost.
	}
	must(t, b.Sleep(SleepOptions{}))
	if strings.Join(order, " ") != "before" {
		t.Errorf("called was %v", order)
	}
	must(t, b.Wake(WakeOptions{}))
	may = false
	if detail := expect(t, b.Sleep(SleepOptions{}), ErrBusy); !strings.Contains(detail.Message, "weights") {
		t.Error(detail)
	}
	if got := strings.Join(order, " "); got != "before after before" || len(woken) != 1 || woken[0] != 1 {
		t.Errorf("called was %s, woken %v", got, woken)
	}
	// A sleep that does not happen is told, with the generation as it was.
	may = true
	register()
	expect(t, b.Sleep(SleepOptions{Progress: func(uint64, uint64) bool { return false }}), ErrCancelled)
	if got := strings.Join(order, " "); got != "before after before before after" || woken[1] != 1 {
		t.Errorf("called was %s, woken %v", got, woken)
	}
	must(t, card.Close())

	// Panics go on after the call.
	must(t, b.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool { panic("before") }}))
	if setCallbacksCount() != before+1 {
		t.Errorf("%d callbacks are remembered", setCallbacksCount()-before)
	}
	if value := panicOf(func() { _ = b.Sleep(SleepOptions{}) }); value != "before" || infoOf(t, b).State != BufferStateAwake {
		t.Errorf("the panic became %v, and the buffer is %+v", value, infoOf(t, b))
	}
	must(t, b.SetCallbacks(BufferCallbacks{AfterWake: func(uint64) { panic("after") }}))
	must(t, b.Sleep(SleepOptions{}))
	if value := panicOf(func() { _ = b.Wake(WakeOptions{}) }); value != "after" || infoOf(t, b).State != BufferStateAwake {
		t.Errorf("the panic became %v, and the buffer is %+v", value, infoOf(t, b))
	}
	must(t, d.Instance().Fill(b.At(0), unit, 1, 1))
	called := len(order)
	must(t, b.SetCallbacks(BufferCallbacks{}))
	if setCallbacksCount() != before {
		t.Errorf("%d callbacks are remembered", setCallbacksCount()-before)
	}
	must(t, b.Sleep(SleepOptions{}))
	must(t, b.Wake(WakeOptions{}))
	must(t, b.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool { return false }}))
	must(t, b.Close())
	if len(order) != called || setCallbacksCount() != before {
		t.Errorf("%d callbacks are remembered", setCallbacksCount()-before)
	}
	expect(t, b.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool { return false }}), ErrStaleHandle)

	// Nothing is kept of a buffer that is destroyed with its instance.
	b, err = d.NewGrowableBuffer(BufferOptions{Size: 1, Reserve: unit})
	must(t, err)
	must(t, b.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool { return b.Size() > 0 }}))
	_, err = d.Instance().CloseForce()
	must(t, err)
	if setCallbacksCount() != before {
		t.Errorf("%d callbacks are remembered", setCallbacksCount()-before)
	}
}

// A function that ends its goroutine cancels the call, and then ends the goroutine of the call.
func TestGoexitInCallbacks(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	g, err := i.NewGroup(GroupOptions{})
	must(t, err)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit, Group: g})
	must(t, err)
	other := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit})
	must(t, i.Fill(b.At(0), unit, 'g', 1))
	// exits reports whether the function ends its goroutine, and not by returning.
	exits := func(function func()) bool {
		exited, done := true, make(chan struct{})
		go func() {
			defer close(done)
			function()
			exited = false
		}()
		<-done
		return exited
	}
	exit := func(uint64, uint64) bool { runtime.Goexit(); return true }
	ends := func(what string, state BufferState, call func() error) {
		t.Helper()
		if !exits(func() { _ = call() }) {
			t.Errorf("%s: the call returned", what)
		}
		if info := infoOf(t, b); info.State != state {
			t.Errorf("%s: the buffer is %+v", what, info)
		}
	}
	ends("sleep", BufferStateAwake, func() error { return b.Sleep(SleepOptions{Progress: exit}) })
	ends("sleep of the group", BufferStateAwake, func() error { return g.Sleep(SleepOptions{Progress: exit}) })
	ends("sleep with a context", BufferStateAwake, func() error {
		return b.SleepContext(context.Background(), SleepOptions{Progress: exit})
	})
	must(t, b.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool { runtime.Goexit(); return true }}))
	ends("before sleep", BufferStateAwake, func() error { return b.Sleep(SleepOptions{}) })
	// What it may do, and what it may not, holds on the way out too.
	var there, here error
	must(t, b.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool {
		defer func() { there, here = other.Resize(0), b.Resize(0) }()
		runtime.Goexit()
		return true
	}}))
	ends("deferred calls", BufferStateAwake, func() error { return g.Sleep(SleepOptions{}) })
	must(t, there)
	expect(t, here, ErrInvalidState)
	// In the call of a call: only the inner one ends before the outer function does.
	must(t, b.SetCallbacks(BufferCallbacks{BeforeSleep: func() bool {
		_ = other.Sleep(SleepOptions{Content: ContentDrop})
		_ = other.Wake(WakeOptions{})
		return true
	}}))
	must(t, other.Resize(unit))
	must(t, other.SetCallbacks(BufferCallbacks{AfterWake: func(uint64) { runtime.Goexit() }}))
	ends("a call in a callback", BufferStateAwake, func() error { return b.Sleep(SleepOptions{}) })
	if info := infoOf(t, other); info.State != BufferStateAwake || info.Generation != 1 {
		t.Errorf("the other buffer is %+v", info)
	}
	must(t, b.SetCallbacks(BufferCallbacks{}))
	must(t, b.Sleep(SleepOptions{}))
	ends("waking", BufferStateAsleep, func() error { return b.Wake(WakeOptions{Progress: exit}) })
	must(t, b.SetCallbacks(BufferCallbacks{AfterWake: func(uint64) { runtime.Goexit() }}))
	ends("after waking", BufferStateAwake, func() error { return b.Wake(WakeOptions{}) })
	if got := contentOf(t, b, unit-1, 1); got != "g" {
		t.Errorf("there is %q", got)
	}
	must(t, b.Close())
	must(t, g.Close())
	if asides.Load() != 0 {
		t.Errorf("%d functions still run", asides.Load())
	}
}

func TestRegistrationsOfBuffers(t *testing.T) {
	d, unit := rangeDevice(t)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit})
	must(t, err)
	for _, name := range []string{"", "\x00", "\n", strings.Repeat("n", 64), strings.Repeat("n", 1000)} {
		if _, err := b.NoteRegistration(name); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%q: %v", name, err)
		}
	}
	first, err := b.NoteRegistration(strings.Repeat("n", 63))
	must(t, err)
	second, err := b.NoteRegistration("communicator")
	must(t, err)
	if info := infoOf(t, b); info.Registrations != 2 {
		t.Errorf("the buffer is %+v", info)
	}
	must(t, first.Close())
	must(t, first.Close())
	if detail := expect(t, b.Sleep(SleepOptions{}), ErrBusy); !strings.Contains(detail.Message, "communicator") ||
		!strings.Contains(detail.Message, "Registration.Close") {
		t.Error(detail)
	}
	if info := infoOf(t, b); info.Registrations != 1 || info.State != BufferStateAwake {
		t.Errorf("the buffer is %+v", info)
	}
	// A function of a stream may do both.
	s := newStream(t, d)
	var noteErr, closeErr error
	must(t, s.Launch(func() {
		var third *Registration
		third, noteErr = b.NoteRegistration("third")
		closeErr = third.Close()
	}))
	must(t, s.Synchronize())
	must(t, noteErr)
	must(t, closeErr)
	must(t, second.Close())
	must(t, b.Sleep(SleepOptions{Content: ContentDrop}))
	_, err = b.NoteRegistration("late")
	expect(t, err, ErrInvalidState)
	must(t, b.Wake(WakeOptions{}))
	last, err := b.NoteRegistration("last")
	must(t, err)
	must(t, b.Close())
	must(t, last.Close()) // There is nothing left to forget.
	_, err = b.NoteRegistration("later")
	expect(t, err, ErrStaleHandle)
}

// What something outside the library holds, the collector does not free.
func TestRegisteredBuffersThatAreDropped(t *testing.T) {
	d, unit := rangeDevice(t)
	since := settle(t)
	func() {
		b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit})
		must(t, err)
		_, err = b.NoteRegistration("card")
		must(t, err)
	}()
	collectUntil(t, "kept", since.is(0, 1))
	func() {
		g, err := d.Instance().NewGroup(GroupOptions{})
		must(t, err)
		_, err = d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: unit, Group: g})
		must(t, err)
	}()
	collectUntil(t, "freed, the buffer before its group", since.is(2, 1))
	_, err := d.Instance().CloseForce()
	must(t, err)
}

func TestGrowingAhead(t *testing.T) {
	d, unit := rangeDevice(t)
	b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: 16 * unit})
	expect(t, b.SetAhead(1<<63), ErrInvalidArgument)
	must(t, b.SetAhead(4*unit))
	if info := infoOf(t, b); info.Ahead != 4*unit {
		t.Errorf("the buffer is %+v", info)
	}
	start := b.At(0)
	for size := unit; size <= 8*unit; size += unit {
		must(t, b.Resize(size))
		eventually(t, "grown ahead", func() bool { return infoOf(t, b).Capacity >= size+2*unit })
	}
	must(t, d.Instance().Fill(b.At(0), 8*unit, 1, 1))
	if b.At(0) != start || b.Size() != 8*unit {
		t.Errorf("the buffer moved from %v to %v", start, b.At(0))
	}
	must(t, b.SetAhead(0))
	if info := infoOf(t, b); info.Ahead != 0 || info.Capacity < 10*unit {
		t.Errorf("the buffer is %+v", info)
	}
}

// Where mapping is not supported, a buffer may be an ordinary allocation.
func TestBuffersThatAreCopied(t *testing.T) {
	if testBackend(t) == BackendHost {
		d, unit := rangeDevice(t)
		b := newGrowable(t, d, BufferOptions{Size: 1, Reserve: unit, Flags: BufferCopyable})
		p, err := d.Instance().RetainPhysical(b.At(0))
		must(t, err) // It is mapped, because the device can.
		must(t, p.Close())
		testCopied(t, device(t, Options{Backend: BackendHost, Host: &HostOptions{Masked: "vmm"}}))
		return
	}
	if os.Getenv("FAKE_CUDA_DEVICES") == "" {
		t.Skip("a driver that has virtual memory management cannot be made to be without it")
	}
	if !inChild() {
		output, err := child(t, "FAKE_CUDA_ATTRIBUTE_102=0")
		if err != nil || !strings.Contains(output, "PASS") {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	testCopied(t, device(t))
}

// On a device without virtual memory management.
func testCopied(t *testing.T, d *Device) {
	i := d.Instance()
	_, err := d.NewGrowableBuffer(BufferOptions{Size: 100})
	expect(t, err, ErrUnsupported)
	b := newGrowable(t, d, BufferOptions{Size: 100, Flags: BufferCopyable})
	must(t, i.Fill(b.At(0), 100, 'o', 1))
	before := b.At(0)
	must(t, b.Resize(1<<20))
	if b.At(0) == before || b.Generation() != 1 || contentOf(t, b, 99, 1) != "o" {
		t.Errorf("the larger buffer is %+v at %v, before %v", infoOf(t, b), b.At(0), before)
	}
	expect(t, b.SetAhead(1), ErrUnsupported)
	expect(t, b.SetAccess(onDevice(0)), ErrUnsupported)
	var inCallback Address
	must(t, b.SetCallbacks(BufferCallbacks{AfterWake: func(uint64) { inCallback = b.At(0) }}))
	before = b.At(0)
	must(t, b.Sleep(SleepOptions{}))
	expect(t, i.Fill(b.At(0), 1, 1, 1), ErrInvalidState)
	expect(t, i.Fill(before, 1, 1, 1), ErrInvalidState)
	must(t, b.Wake(WakeOptions{}))
	if contentOf(t, b, 99, 1) != "o" || inCallback != b.At(0) {
		t.Errorf("awake the buffer is %+v at %v, in the callback at %v", infoOf(t, b), b.At(0), inCallback)
	}

	hosts := newGrowable(t, d, BufferOptions{Size: 100, Location: LocationHost, Flags: BufferCopyable})
	must(t, i.Fill(hosts.At(0), 100, 'h', 1))
	must(t, hosts.View(func(content []byte) error {
		for number, err := range []error{hosts.Resize(1 << 20), hosts.Resize(0), hosts.SetCapacity(1 << 20), hosts.Sleep(SleepOptions{}), hosts.Close()} {
			if !errors.Is(err, ErrBusy) {
				t.Errorf("number %d during a view: %v", number, err)
			}
		}
		if content[99] != 'h' {
			t.Errorf("there is %q", content[99])
		}
		return nil
	}))
}

func TestFabricHandles(t *testing.T) {
	if os.Getenv("FAKE_CUDA_DEVICES") != "" && testBackend(t) == BackendCUDA && !inChild() {
		output, err := child(t, "FAKE_CUDA_IMEX=1", "FAKE_CUDA_VERSION=13.0")
		if err != nil || !strings.Contains(output, "PASS") {
			t.Errorf("%v: %s", err, output)
		}
	}
	d, unit := rangeDevice(t)
	answer, err := d.Capability(CapabilityVMMHandleFabric)
	must(t, err)
	options := PhysicalOptions{Size: unit, HandleTypes: HandleTypeFabric}
	plain := newPhysical(t, d, PhysicalOptions{Size: unit})
	_, err = plain.ExportFabric()
	expect(t, err, ErrUnsupported)
	if answer.Value == AnswerNo {
		_, err = d.NewPhysical(options)
		if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrPermissionDenied) {
			t.Errorf("made for the fabric: %v", err)
		}
		_, err = d.ImportFabric(FabricHandle{}, options)
		if err == nil {
			t.Error("a handle of nothing was imported")
		}
		if inChild() {
			t.Errorf("%s is %v: %s", answer.Name, answer.Value, answer.Reason)
		}
		return
	}
	p := newPhysical(t, d, options)
	handle, err := p.ExportFabric()
	must(t, err)
	if handle == (FabricHandle{}) {
		t.Error("the handle is empty")
	}
	imported, err := d.ImportFabric(handle, options)
	must(t, err)
	info, err := imported.Info()
	must(t, err)
	if !info.Imported || info.Size != unit {
		t.Errorf("imported was %+v", info)
	}
	must(t, imported.Close())
	options.Name = "\x00"
	_, err = d.ImportFabric(handle, options)
	expect(t, err, ErrInvalidArgument)
	options.Name = ""
	_, err = d.ImportFabric(FabricHandle{1, 2, 3}, options)
	if err == nil {
		t.Error("a handle of nothing was imported")
	}
}
