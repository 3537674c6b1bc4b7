// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
)

func TestErrorsCarryTheDetail(t *testing.T) {
	d := device(t)
	_, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 1 << 62})
	wrapped := fmt.Errorf("making a table: %w", err)
	var detail *Error
	if !errors.As(wrapped, &detail) || !errors.Is(wrapped, ErrOutOfDeviceMemory) || errors.Is(wrapped, ErrBusy) {
		t.Fatalf("the error is %v", wrapped)
	}
	if detail.Status != ErrOutOfDeviceMemory || detail.Function != "gpumem_memory_create" || detail.Message == "" ||
		detail.Name() != "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY" {
		t.Errorf("the detail is %+v", detail)
	}
	if testBackend(t) == BackendCUDA && (detail.NativeDomain != NativeCUDA || detail.NativeCode == 0 ||
		detail.NativeName != "CUDA_ERROR_OUT_OF_MEMORY" || detail.EntryPoint == "") {
		t.Errorf("the driver's code is missing: %+v", detail)
	}
	for _, part := range []string{"Device.NewMemory: ", detail.Message, "(ErrOutOfDeviceMemory", detail.NativeName} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in %q", part, err)
		}
	}
}

func TestNotesAreNotFailures(t *testing.T) {
	for status, failed := range map[Status]bool{Success: false, NotReady: false, NoEffect: false, ErrBusy: true, -12345: true} {
		if status.Failed() != failed {
			t.Errorf("%v: failed is %v", status, status.Failed())
		}
	}
	d := device(t)
	s, word, start, end := newStream(t, d), newPinned[uint32](t, d, 1), newEvent(t, d), newEvent(t, d)
	word.Slice()[0] = 0
	must(t, start.Record(s))
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, end.Record(s))
	streamDone, streamErr := s.Query()
	eventDone, eventErr := end.Query()
	limited, limitedErr := end.SynchronizeFor(0)
	if streamDone || eventDone || limited || streamErr != nil || eventErr != nil || limitedErr != nil {
		t.Errorf("while the stream waits: %v %v, %v %v, %v %v", streamDone, streamErr, eventDone, eventErr, limited, limitedErr)
	}
	_, err := start.Elapsed(end)
	expect(t, err, NotReady)
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	_, err = start.Elapsed(end)
	must(t, err)
}

func TestEveryStatusHasItsTexts(t *testing.T) {
	list, err := Statuses()
	must(t, err)
	statuses := 0
	for _, c := range constants {
		if c.kind == "Status" {
			statuses++
		}
	}
	if len(list) != statuses {
		t.Errorf("the library has %d statuses, this package %d", len(list), statuses)
	}
	for _, status := range list {
		info, err := status.Info()
		must(t, err)
		if info.Status != status || info.Name != status.Name() || info.Cause == "" || info.Remedy == "" ||
			status.Error() != status.String() {
			t.Errorf("%d: %+v", int32(status), info)
		}
	}
	_, err = Status(-12345).Info()
	expect(t, err, ErrNotFound)
}

// A call leaves nothing behind, whichever of its steps fails.
func TestEachStepThatFails(t *testing.T) {
	onHost(t)
	d := device(t)
	i := d.Instance()
	b := newPageable[byte](t, 4096)
	unit, _, err := d.PhysicalGranularity(PhysicalOptions{})
	must(t, err)
	for name, make := range map[string]func() (interface{ Close() error }, error){
		"device": func() (interface{ Close() error }, error) {
			return d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 1})
		},
		"managed":    func() (interface{ Close() error }, error) { return NewManaged[int64](d, 8, MemoryOptions{}) },
		"physical":   func() (interface{ Close() error }, error) { return d.NewPhysical(PhysicalOptions{Size: unit}) },
		"range":      func() (interface{ Close() error }, error) { return d.Instance().ReserveRange(RangeOptions{Size: unit}) },
		"pinned":     func() (interface{ Close() error }, error) { return NewPinned[int64](d, 8, MemoryOptions{}) },
		"registered": func() (interface{ Close() error }, error) { return b.Register(d, RegisterOptions{}) },
		"stream":     func() (interface{ Close() error }, error) { return d.NewStream(StreamOptions{}) },
		"event":      func() (interface{ Close() error }, error) { return d.NewEvent(EventOptions{}) },
	} {
		for step := uint64(1); ; step++ {
			must(t, i.HostFailStep(step, true))
			made, err := make()
			must(t, i.HostFailStep(0, false))
			if err == nil {
				must(t, made.Close())
				break
			}
			var detail *Error
			if !errors.As(err, &detail) || detail.Message == "" {
				t.Errorf("%s, step %d: %v", name, step, err)
			}
			stats, err := i.Stats()
			must(t, err)
			if stats.Live() != 0 {
				t.Fatalf("%s, step %d leaves %+v", name, step, stats)
			}
			if step > 100 {
				t.Fatalf("%s never succeeds", name)
			}
		}
	}
	must(t, b.Close())
}

func TestErrorsNameWhatWasCalled(t *testing.T) {
	d := device(t)
	i, s := d.Instance(), newStream(t, d)
	closed := newPinned[int32](t, d, 4)
	must(t, closed.Close())
	pinned := newPinned[int32](t, d, 4)
	managed, err := NewManaged[int32](d, 4, MemoryOptions{})
	must(t, err)
	defer managed.Close()
	buffer, err := NewBuffer[int32](d, 4, BufferOptions{Location: LocationHost})
	must(t, err)
	defer buffer.Close()
	var none *RingConsumer
	var handle ShareHandle
	for name, call := range map[string]func() error{
		"gpumem.Fill":   func() error { return Fill[int32](i, closed.Span(), 1) },
		"gpumem.Copy":   func() error { return Copy[int32](s, pinned.Span(), closed.Span()) },
		"Pinned.Close":  func() error { return pinned.View(func([]int32) error { return pinned.Close() }) },
		"Managed.Close": func() error { return managed.View(func([]int32) error { return managed.Close() }) },
		"Buffer.Resize": func() error { return buffer.View(func([]int32) error { return buffer.Resize(1) }) },
		"RingConsumer.Each": func() error {
			return none.Each(context.Background(), nil, func(*RingMessage) error { return nil })
		},
		"ShareHandle.UnmarshalText": func() error { return json.Unmarshal([]byte(`"AAAA"`), &handle) },
	} {
		var detail *Error
		if err := call(); !errors.As(err, &detail) || !strings.HasPrefix(err.Error(), name+": ") ||
			detail.Function != name && !strings.HasPrefix(detail.Function, "gpumem_") {
			t.Errorf("%s: %v, of %+v", name, err, detail)
		}
	}
	if err := handle.UnmarshalText([]byte("AAAA")); err == nil || !strings.Contains(err.Error(), "342 characters, not 4 (") {
		t.Error(err)
	}
}

func TestTheLogNamesTheFieldsOfThisPackage(t *testing.T) {
	host, err := Open(Options{Backend: BackendHost})
	must(t, err)
	defer host.Close()
	d, err := host.Device(0)
	must(t, err)
	var mutex sync.Mutex
	var told []string
	must(t, SetLogFunction(LogDebug, func(_ LogLevel, message string) {
		mutex.Lock()
		defer mutex.Unlock()
		told = append(told, message)
	}))
	_, failed := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 1 << 50})
	must(t, SetLogFunction(LogDebug, nil))
	detail := expect(t, failed, ErrOutOfDeviceMemory)
	if all := strings.Join(told, "\n"); !strings.Contains(all, detail.Message) || strings.Contains(all, "device_bytes") {
		t.Errorf("the error says\n%s\nand the log\n%s", detail.Message, all)
	}
}

func TestMessagesNameTheFieldsOfThisPackage(t *testing.T) {
	d := device(t)
	openHost := func(options HostOptions) error {
		_, err := Open(Options{Backend: BackendHost, Host: &options})
		return err
	}
	newRing := func(options RingOptions) error {
		_, err := d.NewRing(options)
		return err
	}
	_, pool := d.NewPool(PoolOptions{InitialSize: 2 << 20, Limit: 1 << 20})
	host, err := Open(Options{Backend: BackendHost})
	must(t, err)
	defer host.Close()
	small, err := host.Device(0)
	must(t, err)
	_, memory := small.NewMemory(MemoryOptions{Kind: KindDevice, Size: 1 << 40})
	for word, err := range map[string]error{
		"DeviceCount": openHost(HostOptions{DeviceCount: 65}), "LockPiece": openHost(HostOptions{LockPiece: 1}),
		"VMMGranularity": openHost(HostOptions{VMMGranularity: 3}), "InitialSize": pool,
		"Slots": newRing(RingOptions{SlotSize: 1, Slots: 257}), "MaxConsumers": newRing(RingOptions{SlotSize: 1, MaxConsumers: 65}),
		"FirstConsumers": newRing(RingOptions{SlotSize: 1, FirstConsumers: 5}), "NUMANodes": openHost(HostOptions{NUMANodes: 65}),
		"devices: DeviceBytes": memory, "DeviceBytes": openHost(HostOptions{DeviceBytes: 1}),
	} {
		if err == nil || !strings.Contains(err.Error(), word) || regexp.MustCompile("[a-z]_[a-z]").MatchString(err.Error()) {
			t.Errorf("%s: %v", word, err)
		}
	}
	if text := translateWith("token_size and handle_types", argumentNames); text != "the size of Token and HandleTypes" {
		t.Error(text)
	}
	for text, expected := range map[string]string{
		"another thread destroyed this link during the call; do not use its handle after that": "another goroutine closed this link during the call; do not use it after that",
		"let one thread at a time use it":              "let one goroutine at a time use it",
		"this is the default stream of another thread": "this is the default stream of another thread",
	} {
		if got := translate(text); got != expected {
			t.Error(got)
		}
	}
}
