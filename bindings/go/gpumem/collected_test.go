// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"
)

// collectedSince is a count to compare with later ones.
type collectedSince struct{ CollectedObjects }

func (since *collectedSince) is(freed, kept uint64) func() bool {
	return func() bool {
		now := Collected()
		return now.Freed-since.Freed >= freed && now.Kept-since.Kept >= kept
	}
}

// settle waits until the objects that earlier tests dropped are collected.
func settle(t *testing.T) collectedSince {
	t.Helper()
	for last := Collected(); ; {
		for n := 0; n < 4; n++ {
			runtime.GC()
			runtime.Gosched()
		}
		now := Collected()
		if now == last {
			return collectedSince{now}
		}
		last = now
	}
}

func (since *collectedSince) exactly(t *testing.T, freed, kept uint64) {
	t.Helper()
	now := Collected()
	if now.Freed-since.Freed != freed || now.Kept-since.Kept != kept {
		t.Errorf("%d were freed and %d kept", now.Freed-since.Freed, now.Kept-since.Kept)
	}
}

func TestWhatIsDroppedIsFreedAndCounted(t *testing.T) {
	d := device(t)
	since := settle(t)
	func() {
		_, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
		must(t, err)
		p, err := NewPinned[int32](d, 16, MemoryOptions{})
		must(t, err)
		must(t, p.View(func(values []int32) error {
			values[0] = 1
			return nil
		}))
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		_, err = d.NewEvent(EventOptions{})
		must(t, err)
		b, err := NewPageable[byte](4096)
		must(t, err)
		_, err = b.Register(d, RegisterOptions{})
		must(t, err)
		must(t, s.Launch(func() { panic("nobody asks") }))
		must(t, s.Fill(p.At(0), 64, 1, 1))
	}()
	collectUntil(t, "freed", since.is(6, 0))
	since.exactly(t, 6, 0)
	var caught *PanicError
	if err := d.Instance().Close(); !errors.As(err, &caught) || caught.Value != "nobody asks" {
		t.Errorf("Close of the instance returned %v", err)
	}
}

func TestClosedObjectsAreNotCounted(t *testing.T) {
	d := device(t)
	since := settle(t)
	func() {
		m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
		must(t, err)
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		b, err := NewPageable[byte](4096)
		must(t, err)
		must(t, m.Close())
		must(t, s.Close())
		must(t, b.Close())
		_, err = Default() // It belongs to the process.
		must(t, err)
	}()
	left := settle(t)
	if left != since {
		t.Errorf("counted were %+v, then %+v", since, left)
	}
}

// Only a slice is left, which does not keep the Memory from being collected, so closing it would pull the bytes away.
func TestMemoryWhoseSliceIsInUseIsKept(t *testing.T) {
	d := device(t)
	i := d.Instance()
	since := settle(t)
	values := func() []int32 {
		p, err := NewPinned[int32](d, 1024, MemoryOptions{})
		must(t, err)
		m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
		must(t, err)
		if m.DevicePtr() == 0 {
			t.Error("there is no address")
		}
		return p.Slice()
	}()
	buffer := func() []int32 {
		b, err := NewPageable[int32](1024)
		must(t, err)
		return b.Slice()
	}()
	collectUntil(t, "kept", since.is(0, 3))
	since.exactly(t, 0, 3)
	for n := range values {
		values[n], buffer[n] = int32(n), int32(n)
	}
	stats, err := i.Stats()
	must(t, err)
	if values[1023]+buffer[1023] != 2046 || stats.Live() != 2 {
		t.Errorf("%+v lives", stats)
	}
	destroyed, err := i.CloseForce()
	must(t, err)
	if destroyed != 2 {
		t.Errorf("%d objects were destroyed", destroyed)
	}
}

// Memory is dropped while a stream works on it, with or without the stream: nothing is freed before the work is complete.
func TestMemoryUnderWorkIsFreedAfterTheWork(t *testing.T) {
	for _, name := range []string{"the stream is kept", "the stream is dropped too"} {
		t.Run(name, func(t *testing.T) {
			d := device(t)
			i := d.Instance()
			word := newPinned[uint32](t, d, 1)
			word.Slice()[0] = 0
			since := settle(t)
			var kept *Stream
			func() {
				s, err := d.NewStream(StreamOptions{})
				must(t, err)
				from, err := d.NewMemory(MemoryOptions{Kind: KindPinned, Size: 4096})
				must(t, err)
				to, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 4096})
				must(t, err)
				must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
				must(t, s.Copy(to.At(0), from.At(0), 4096))
				if name == "the stream is kept" {
					kept = s
				}
			}()
			for n := 0; n < 5; n++ {
				runtime.GC()
				runtime.Gosched()
			}
			since.exactly(t, 0, 0)
			stats, err := i.Stats()
			must(t, err)
			if stats.LiveCount != 3 || stats.Streams != 1 {
				t.Errorf("while the stream works there live %+v", stats)
			}
			word.Slice()[0] = 1
			collectUntil(t, "freed after the work", since.is(2, 0))
			must(t, kept.Close())
			if name == "the stream is dropped too" {
				collectUntil(t, "the stream freed too", since.is(3, 0))
			}
		})
	}
}

// A stream works on registered memory, by an address of the registration or of the Pageable, and both are dropped.
func TestRegisteredMemoryUnderWorkIsFreedAfterTheWork(t *testing.T) {
	for _, name := range []string{"of the registration", "of the Pageable"} {
		t.Run(name, func(t *testing.T) {
			d := device(t)
			s, word := newStream(t, d), newPinned[uint32](t, d, 1)
			word.Slice()[0] = 0
			since := settle(t)
			func() {
				p, err := NewPageable[byte](4096)
				must(t, err)
				m, err := p.Register(d, RegisterOptions{})
				must(t, err)
				at := m.At(0)
				if name == "of the Pageable" {
					at = p.At(0)
				}
				must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
				must(t, s.Fill(at, 4096, 1, 1))
			}()
			for n := 0; n < 5; n++ {
				runtime.GC()
				runtime.Gosched()
			}
			since.exactly(t, 0, 0)
			word.Slice()[0] = 1
			must(t, s.Synchronize())
			collectUntil(t, "freed or kept", func() bool { return since.is(2, 0)() || since.is(0, 1)() })
			since.exactly(t, 2, 0)
		})
	}
}

// The work cannot be observed complete any more, so the memory stays.
func TestMemoryOfAStreamThatWasClosedIsKept(t *testing.T) {
	d := device(t)
	i := d.Instance()
	e := newEvent(t, d)
	since := settle(t)
	func() {
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 4096})
		must(t, err)
		must(t, s.Fill(m.At(0), 4096, 1, 1))
		must(t, e.Record(s))
		must(t, s.Close())
	}()
	collectUntil(t, "kept", since.is(0, 1))
	since.exactly(t, 0, 1)
	must(t, e.Synchronize())
	_, err := i.CloseForce()
	must(t, err)
}

// An event observes the work before its record, also for what is done when the stream is closed.
func TestWorkBeforeAnEventIsObserved(t *testing.T) {
	d := device(t)
	p := newPool(t, d, PoolOptions{})
	observe := map[string]func(*Event) (bool, error){
		"Query": func(e *Event) (bool, error) {
			for {
				if complete, err := e.Query(); complete || err != nil {
					return complete, err
				}
			}
		},
		"Synchronize":    func(e *Event) (bool, error) { return true, e.Synchronize() },
		"SynchronizeFor": func(e *Event) (bool, error) { return e.SynchronizeFor(2 * time.Minute) },
	}
	for name, call := range observe {
		since := settle(t)
		func() {
			s, e := newStream(t, d), newEvent(t, d)
			b := newBlock(t, p, 64, s)
			m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 4096})
			must(t, err)
			must(t, e.Record(newStream(t, d))) // Is replaced.
			must(t, s.Fill(m.At(0), 4096, 1, 1))
			must(t, s.Fill(b.At(0), 64, 1, 1))
			must(t, e.Record(s))
			if complete, err := call(e); !complete || err != nil {
				t.Errorf("%s: %v, %v", name, complete, err)
			}
			must(t, s.Close())
			must(t, b.Free())
		}()
		collectUntil(t, "freed", since.is(1, 0))
	}

	// What is enqueued behind the record is not observed by it, and neither is what a later record is about.
	s, e, word := newStream(t, d), newEvent(t, d), newPinned[uint32](t, d, 1)
	m := newMemory(t, d, KindDevice, 64)
	must(t, s.Fill(m.At(0), 64, 1, 1))
	must(t, e.Record(s))
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	must(t, s.Fill(m.At(0), 64, 2, 1))
	must(t, e.Synchronize())
	if s.complete() || len(m.streams.pending(nil)) != 1 {
		t.Error("the work behind the record counts as complete")
	}
	must(t, e.Record(newStream(t, d)))
	must(t, e.Synchronize())
	if s.complete() {
		t.Error("the record of another stream counts for this one")
	}
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	if !s.complete() || len(m.streams.pending(nil)) != 0 {
		t.Error("the work of the stream does not count as complete")
	}
}

func TestAnInstanceThatIsDroppedIsClosed(t *testing.T) {
	since := settle(t)
	func() {
		i, err := Open(Options{Backend: testBackend(t)})
		must(t, err)
		d, err := i.Device(0)
		must(t, err)
		_, err = d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
		must(t, err)
	}()
	collectUntil(t, "freed", since.is(2, 0))
	since.exactly(t, 2, 0)
}

func TestWhatEndedWithItsInstanceIsNotCounted(t *testing.T) {
	since := settle(t)
	func() {
		i, err := Open(Options{Backend: testBackend(t)})
		must(t, err)
		d, err := i.Device(0)
		must(t, err)
		p, err := NewPinned[int32](d, 16, MemoryOptions{})
		must(t, err)
		p.Slice()[0] = 1
		_, err = d.NewStream(StreamOptions{})
		must(t, err)
		_, err = d.NewEvent(EventOptions{})
		must(t, err)
		_, err = i.CloseForce()
		must(t, err)
	}()
	left := settle(t)
	if left != since {
		t.Errorf("counted were %+v, then %+v", since, left)
	}
}

func TestAStreamSetForgetsWhatIsComplete(t *testing.T) {
	d := device(t)
	m := newMemory(t, d, KindDevice, 64)
	for n := 0; n < 50; n++ {
		s, err := d.NewStream(StreamOptions{})
		must(t, err)
		must(t, s.Fill(m.At(0), 64, 1, 1))
		must(t, s.Synchronize())
		must(t, s.Close())
	}
	if count := len(m.streams.all); count > 2 {
		t.Errorf("%d streams are remembered", count)
	}
}

// The stream that was used last gets work just as another one is added.
func TestAStreamSetKeepsWhatHasJustGotWork(t *testing.T) {
	var set streamSet
	var a, b streamWork
	for n := 0; n < 100_000; n++ {
		set.add(&a, 0)
		start, done := make(chan bool), make(chan bool)
		go func() {
			<-start
			set.add(&a, a.enqueued.Add(1))
			done <- true
		}()
		close(start)
		set.add(&b, 0)
		<-done
		if found := set.pending(&b); len(found) != 1 || found[0].streamWork != &a {
			t.Fatalf("in round %d the streams with work are %v", n, found)
		}
		a.saw(a.enqueued.Load())
	}
}

// A stream is found idle just before a call enqueues work in it.
func TestWorkIsNotObservedBeforeItIsEnqueued(t *testing.T) {
	d := device(t)
	s, p := newStream(t, d), newPinned[uint32](t, d, 1)
	word := p.Slice()
	done, ended := make(chan bool), make(chan bool)
	defer func() {
		close(done)
		<-ended
	}()
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				_, _ = s.Query()
			}
		}
	}()
	for n := 0; n < 20_000 && !t.Failed(); n++ {
		word[0] = 0
		must(t, s.WaitValue(p.At(0), 1, 4, WaitEQ))
		if len(p.streams.pending(nil)) != 1 {
			t.Errorf("in round %d the stream waits for a word that no work uses", n)
		}
		word[0] = 1
		must(t, s.Synchronize())
	}
}

// The library knows of work that this package does not.
func TestWhatIsBusyIsClosedLater(t *testing.T) {
	onHost(t)
	d := device(t)
	s, word := newStream(t, d), newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	since := settle(t)
	func() {
		m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
		must(t, err)
		must(t, s.Fill(RawAddress(m.address), 64, 1, 1))
	}()
	collectUntil(t, "kept", since.is(0, 1))
	settle(t)
	since.exactly(t, 0, 1)
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	collectUntil(t, "freed", since.is(1, 0))
	since.exactly(t, 1, 0)
}

// A wait in C holds a thread, and a program in Go may have 10,000.
func TestWhatIsDroppedWithAStalledStreamTakesFewThreads(t *testing.T) {
	const count = 300
	d := device(t)
	s := newStream(t, d)
	word := newPinned[uint32](t, d, 1)
	must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
	word.Slice()[0] = 0
	since := settle(t)
	func() {
		for n := 0; n < count; n++ {
			m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 64})
			must(t, err)
			must(t, s.Fill(m.At(0), 64, 1, 1))
		}
	}()
	threads := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		must(t, err)
		return len(tasks)
	}
	before, goroutines := threads(), runtime.NumGoroutine()
	collectUntil(t, "waited for", func() bool { return runtime.NumGoroutine() >= goroutines+count })
	if now := threads(); now > before+50 {
		t.Errorf("there are %d threads, and were %d before", now, before)
	}
	word.Slice()[0] = 1
	must(t, s.Synchronize())
	collectUntil(t, "freed after the work", since.is(count, 0))
}
