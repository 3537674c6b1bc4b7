// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestHostFunctionsRunInOrder(t *testing.T) {
	d := device(t)
	s := newStream(t, d)
	var order []int // The stream orders the functions, and Synchronize orders them before the reader.
	for n := 0; n < 100; n++ {
		n := n
		must(t, s.Launch(func() { order = append(order, n) }))
		if n%10 == 0 {
			runtime.GC() // C has only a number, so nothing is lost.
		}
	}
	must(t, s.Synchronize())
	for n, got := range order {
		if n != got {
			t.Fatalf("number %d ran as number %d", got, n)
		}
	}
	if len(order) != 100 {
		t.Errorf("%d functions ran", len(order))
	}
}

func TestAHostFunctionThatPanicsIsReported(t *testing.T) {
	d := device(t)
	s := newStream(t, d)
	after := false
	must(t, s.Launch(func() { panic(io.ErrUnexpectedEOF) }))
	must(t, s.Launch(func() { panic("the second") }))
	must(t, s.Launch(func() { after = true }))
	err := s.Synchronize()
	var caught *PanicError
	if !errors.As(err, &caught) || !errors.Is(err, io.ErrUnexpectedEOF) || len(caught.Stack) == 0 ||
		!strings.Contains(err.Error(), "unexpected EOF") || caught.More != 1 || !strings.Contains(err.Error(), "and 1 more") {
		t.Fatalf("the panic became %v", err)
	}
	if !after {
		t.Error("the work after the panic was not done")
	}
	must(t, s.Synchronize()) // Reported once.

	must(t, s.Launch(func() { panic(nil) }))
	if err := s.Synchronize(); !errors.As(err, &caught) || caught.More != 0 {
		t.Fatalf("the panic without a value became %v", err)
	}

	var null *int
	must(t, s.Launch(func() { *null = 1 }))
	caught = nil
	for complete := false; !complete || caught == nil; runtime.Gosched() {
		if complete, err = s.Query(); err != nil && !errors.As(err, &caught) {
			t.Fatalf("the fault became %v", err)
		}
	}
	unseen, err := d.NewStream(StreamOptions{})
	must(t, err)
	must(t, unseen.Launch(func() { panic("unseen") }))
	e := newEvent(t, d)
	must(t, e.Record(unseen))
	must(t, e.Synchronize())
	if err := unseen.Close(); !errors.As(err, &caught) || caught.Value != "unseen" || caught.Unwrap() != nil {
		t.Errorf("Close returned %v", err)
	}
	must(t, unseen.Close())
}

func TestLaunchInACapture(t *testing.T) {
	onHost(t)
	s := newStream(t, device(t))
	must(t, s.HostSetCapturing(true))
	expect(t, s.Launch(func() { t.Error("it ran") }), ErrInvalidState)
	must(t, s.HostSetCapturing(false))
	must(t, s.Synchronize())
}

func TestAPanicAfterItsStreamIsClosed(t *testing.T) {
	for _, closeInstance := range []func(*Instance) error{(*Instance).Close, func(i *Instance) error {
		_, err := i.CloseForce()
		return err
	}} {
		d := device(t)
		i := d.Instance()
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		hold := make(chan bool)
		for _, value := range []string{"late", "later"} {
			value := value
			must(t, s.Launch(func() {
				<-hold
				panic(value)
			}))
		}
		must(t, s.Close())
		close(hold)
		var caught *PanicError
		if err := closeInstance(i); !errors.As(err, &caught) || caught.Value != "late" || caught.More != 1 || !i.closed() {
			t.Errorf("Close of the instance returned %v", err)
		}
		must(t, closeInstance(i)) // Reported once.
	}
}

func TestCallsFromAHostFunctionAreRefused(t *testing.T) {
	d := device(t)
	i := d.Instance()
	s, other := newStream(t, d), newStream(t, d)
	m := newMemory(t, d, KindDevice, 64)
	var results []error
	var name string
	must(t, s.Launch(func() {
		_, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
		_, forceErr := i.CloseForce()
		results = []error{err, other.Synchronize(), i.Fill(m.At(0), 64, 0, 1), other.Launch(func() {}), i.Close(),
			m.Close(), forceErr}
		info, _ := d.Info()
		name = info.Name + ErrBusy.Name()
	}))
	must(t, s.Synchronize())
	for number, err := range results {
		if !errors.Is(err, ErrInvalidState) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	if len(results) != 7 || name == "" || m.DevicePtr() == 0 {
		t.Errorf("%d results, name %q", len(results), name)
	}
}

// While Close waits for a host function, that function calls Close too. Neither hangs.
func TestCloseWithinAndWithoutAHostFunction(t *testing.T) {
	d := device(t)
	i := d.Instance()
	s, err := d.NewStream(StreamOptions{})
	must(t, err)
	started, within := make(chan bool), make(chan error, 1)
	must(t, s.Launch(func() {
		close(started)
		// The library refuses this until the other goroutine is inside Close, and then this package does.
		for n := 0; n < 1000; n++ {
			err := i.Close()
			if !errors.Is(err, ErrInvalidState) {
				within <- err
				return
			}
			runtime.Gosched()
		}
		within <- nil
	}))
	<-started
	// Close is busy while the host function is inside its own Close.
	for {
		if _, err = i.CloseForce(); !errors.Is(err, ErrBusy) {
			break
		}
		runtime.Gosched()
	}
	must(t, err)
	must(t, <-within)
}

func TestWhatALostDeviceNeverRunsIsForgotten(t *testing.T) {
	onHost(t)
	d := device(t)
	i := d.Instance()
	s := newStream(t, d)
	word := newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	waiting := func() int {
		calls.mutex.Lock()
		defer calls.mutex.Unlock()
		return len(calls.all)
	}
	before := waiting()
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, s.Launch(func() { t.Error("a lost device ran a function") }))
	if waiting() != before+1 {
		t.Fatal("the function is not remembered")
	}
	must(t, d.HostLose())
	expect(t, s.Synchronize(), ErrDeviceLost)
	expect(t, s.Launch(func() {}), ErrDeviceLost)
	info, err := d.Info()
	must(t, err)
	if !info.Lost {
		t.Error("the device is not lost")
	}
	must(t, word.Close())
	must(t, s.Close())
	must(t, i.Close())
	if waiting() != before {
		t.Error("the function is remembered for ever")
	}
}

func TestLogFunction(t *testing.T) {
	d := device(t)
	var lines atomic.Int64
	must(t, SetLogFunction(LogDebug, func(level LogLevel, message string) {
		if level < LogError || level > LogDebug || message == "" {
			t.Errorf("level %d: %q", level, message)
		}
		lines.Add(1)
	}))
	t.Cleanup(func() { _ = SetLogFunction(LogDebug, nil) })
	fail := func() {
		_, err := d.NewMemory(MemoryOptions{Kind: KindDevice})
		expect(t, err, ErrInvalidArgument)
	}
	fail()
	if lines.Load() == 0 {
		t.Error("no line came")
	}
	expect(t, SetLogFunction(77, func(LogLevel, string) {}), ErrInvalidArgument)
	count := lines.Load()
	fail() // The former function is still in place.
	if lines.Load() == count {
		t.Error("a refused SetLogFunction took the function away")
	}

	var inner error
	must(t, SetLogFunction(LogDebug, func(LogLevel, string) { inner = SetLogFunction(LogDebug, nil) }))
	fail()
	if !errors.Is(inner, ErrInvalidState) {
		t.Errorf("setting it from inside gave %v", inner)
	}
	must(t, SetLogFunction(LogDebug, func(LogLevel, string) { panic("in the log") }))
	fail()
	var caught *PanicError
	if err := SetLogFunction(LogDebug, nil); !errors.As(err, &caught) || caught.Value != "in the log" {
		t.Errorf("the panic became %v", err)
	}
	must(t, SetLogFunction(LogDebug, nil))
	count = lines.Load()
	fail()
	if lines.Load() != count {
		t.Error("a former function was called")
	}
}

func TestLogFunctionsAreChangedByManyGoroutines(t *testing.T) {
	d := device(t)
	var group sync.WaitGroup
	for n := 0; n < 4; n++ {
		group.Add(2)
		go func() {
			defer group.Done()
			for k := 0; k < 100; k++ {
				if err := SetLogFunction(LogDebug, func(LogLevel, string) {}); err != nil && !errors.Is(err, ErrBusy) {
					t.Error(err)
				}
			}
		}()
		go func() {
			defer group.Done()
			for k := 0; k < 100; k++ {
				if _, err := d.NewMemory(MemoryOptions{}); !errors.Is(err, ErrInvalidArgument) {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	must(t, SetLogFunction(LogDebug, nil))
}

func TestHostKernel(t *testing.T) {
	onHost(t)
	d := device(t)
	i := d.Instance()
	s := newStream(t, d)
	m := newMemory(t, d, KindDevice, 16)
	must(t, CopyFromSliceAsync(s, m.At(0), []byte{1, 2, 3, 4}))
	var escaped *HostKernel
	must(t, s.HostLaunch(func(kernel *HostKernel) {
		escaped = kernel
		values, err := kernel.View(m.At(0), 4, AccessReadWrite)
		if err != nil {
			panic(err)
		}
		for n := range values {
			values[n] *= values[n]
		}
	}))
	must(t, s.Synchronize())
	got := make([]byte, 4)
	must(t, CopyToSlice(i, got, m.At(0)))
	if string(got) != "\x01\x04\x09\x10" {
		t.Errorf("the kernel left %v", got)
	}
	_, err := escaped.View(m.At(0), 4, AccessRead)
	expect(t, err, ErrInvalidState)

	must(t, s.HostLaunch(func(kernel *HostKernel) {
		_, err := kernel.View(m.At(0), 4, AccessNone)
		panic(err)
	}))
	if err := s.Synchronize(); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("the kernel's error became %v", err)
	}
	// A kernel that accesses other memory loses the device.
	must(t, s.HostLaunch(func(kernel *HostKernel) {
		_, err := kernel.View(RawAddress(4096), 4, AccessRead)
		if !errors.Is(err, ErrDeviceLost) {
			panic(err)
		}
	}))
	expect(t, s.Synchronize(), ErrDeviceLost)
	must(t, m.Close())
	must(t, s.Close())
}

func TestHostSimulation(t *testing.T) {
	onHost(t)
	i := open(t)
	devices, err := i.Devices()
	must(t, err)
	d := devices[0]

	native, err := d.HostNativeStream()
	must(t, err)
	s, err := d.WrapStream(native)
	must(t, err)
	info, err := s.Info()
	must(t, err)
	if !info.Wrapped || info.NativeStream != native {
		t.Errorf("the wrapped stream is %+v", info)
	}
	expect(t, d.DestroyHostNativeStream(native), ErrBusy)
	must(t, s.HostSetCapturing(true))
	expect(t, s.Synchronize(), ErrInvalidState)
	must(t, s.HostSetCapturing(false))
	must(t, s.Synchronize())
	must(t, s.Close())
	must(t, d.DestroyHostNativeStream(native))
	expect(t, d.DestroyHostNativeStream(native), ErrNotFound)

	foreign, err := d.HostForeignAlloc(KindPinned, 4096)
	must(t, err)
	known, err := i.Pointer(foreign)
	must(t, err)
	if known.Kind != KindForeign || known.Owned {
		t.Errorf("foreign memory is %+v", known)
	}
	must(t, i.Fill(foreign, 4096, 1, 1))
	must(t, d.HostForeignFree(foreign))
	must(t, d.HostForeignPeerAccess(devices[1], true))
	must(t, d.HostForeignPeerAccess(devices[1], false))

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	previous, err := HostSetCurrentDevice(1)
	must(t, err)
	m := newMemory(t, d, KindDevice, 64)
	must(t, i.Fill(m.At(0), 64, 1, 1))
	now, err := HostSetCurrentDevice(previous)
	must(t, err)
	if previous != -1 || now != 1 {
		t.Errorf("the current device was %d, and %d after calls", previous, now)
	}
	_, err = HostSetCurrentDevice(64)
	expect(t, err, ErrInvalidArgument)
}

func TestHostSimulationNeedsTheHostBackend(t *testing.T) {
	if testBackend(t) == BackendHost {
		t.Skip("only other backends refuse")
	}
	d := device(t)
	s := newStream(t, d)
	_, nativeErr := d.HostNativeStream()
	_, foreignErr := d.HostForeignAlloc(KindDevice, 1)
	for number, err := range []error{nativeErr, foreignErr, s.HostLaunch(func(*HostKernel) {}), s.HostSetCapturing(true),
		d.HostLose(), d.Instance().HostFailStep(1, false), d.DestroyHostNativeStream(0)} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("number %d: %v", number, err)
		}
	}
}

// Go has no fork, so the test makes the child by a system call.
func TestFork(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector does not survive fork")
	}
	if !inChild() {
		output, err := child(t, "GOMAXPROCS=1", "GOGC=off")
		if err != nil || !strings.HasSuffix(output, "FORKED in the child, good in the parent\nPASS") {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	d := device(t)
	m := newMemory(t, d, KindDevice, 64)
	s := newStream(t, d)
	answer := inForkedProcess(t, func() int {
		_, infoErr := d.Instance().Info()
		_, memoryErr := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 1})
		for number, err := range []error{infoErr, memoryErr, s.Synchronize(), m.Close(), d.Instance().Close()} {
			if !errors.Is(err, ErrForked) {
				return 10 + number
			}
		}
		return 1
	})
	if answer != 1 {
		t.Fatalf("the child answered %d", answer)
	}
	must(t, d.Instance().Fill(m.At(0), 64, 1, 1))
	must(t, s.Synchronize())
	_, _ = os.Stdout.WriteString("FORKED in the child, good in the parent\n")
}
