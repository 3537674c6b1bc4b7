// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Goroutines that move between threads make, use, share and close objects. None locks a thread.
func TestStorm(t *testing.T) {
	i := open(t, Options{})
	devices, err := i.Devices()
	must(t, err)
	since := settle(t)
	const goroutines, rounds = 64, 25
	var group sync.WaitGroup
	var launched atomic.Int64
	for n := 0; n < goroutines; n++ {
		n := n
		group.Add(1)
		go func() {
			defer group.Done()
			for round := 0; round < rounds; round++ {
				if err := storm(devices[n%len(devices)], byte(n+round), &launched); err != nil {
					t.Errorf("goroutine %d, round %d: %v", n, round, err)
					return
				}
			}
		}()
	}
	stop := make(chan bool)
	go func() { // The collector runs all the time.
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	group.Wait()
	close(stop)
	if launched.Load() != goroutines*rounds {
		t.Errorf("%d functions ran", launched.Load())
	}
	since.exactly(t, 0, 0)
}

// storm is one round: content to the device and back on a stream, with a function and an event behind it. Each step runs
// on any thread.
func storm(d *Device, seed byte, launched *atomic.Int64) (err error) {
	var objects []interface{ Close() error }
	defer func() {
		// Another goroutine closes them, in reverse order of creation.
		closed := make(chan error)
		go func() {
			var first error
			for n := len(objects) - 1; n >= 0; n-- {
				if err := objects[n].Close(); err != nil && first == nil {
					first = err
				}
			}
			closed <- first
		}()
		if closeErr := <-closed; err == nil {
			err = closeErr
		}
	}()
	s, err := d.NewStream(StreamOptions{Name: "storm"})
	if err != nil {
		return err
	}
	e, err := d.NewEvent(EventOptions{})
	if err != nil {
		return err
	}
	from, err := NewPinned[byte](d, 10000, MemoryOptions{})
	if err != nil {
		return err
	}
	to, err := NewPinned[byte](d, 10000, MemoryOptions{})
	if err != nil {
		return err
	}
	objects = append(objects, s, e, from, to)
	for n := range from.Slice() {
		from.Slice()[n] = byte(n) * seed
	}
	content := append([]byte(nil), from.Slice()...)
	runtime.Gosched()
	for _, step := range []func() error{
		func() error { return s.Fill(to.At(0), 10000, uint32(^seed), 1) },
		func() error { return s.Copy(to.At(0), from.At(0), 5000) },
		func() error { return CopyFromSliceAsync(s, to.At(5000), content[5000:]) },
		func() error { return s.Launch(func() { launched.Add(1) }) },
		func() error { return e.Record(s) },
		func() error {
			for {
				if complete, err := e.SynchronizeFor(time.Millisecond); complete || err != nil {
					return err
				}
			}
		},
		s.Synchronize,
	} {
		if err := step(); err != nil {
			return err
		}
		runtime.Gosched()
	}
	if !bytes.Equal(to.Slice(), content) {
		return errors.New("the content did not arrive")
	}
	if _, err := d.NewMemory(MemoryOptions{Size: uint64(seed)}); !errors.Is(err, ErrInvalidArgument) {
		return fmt.Errorf("the error of another call arrived: %v", err)
	}
	return nil
}

// Goroutines use and close one memory at the same time: every call succeeds, or reports that it is closed or busy.
func TestCloseUnderUse(t *testing.T) {
	d := device(t)
	i := d.Instance()
	for round := 0; round < 30; round++ {
		m, err := d.NewMemory(MemoryOptions{Kind: KindPinned, Size: 4096})
		must(t, err)
		var group sync.WaitGroup
		for n := 0; n < 8; n++ {
			n := n
			group.Add(1)
			go func() {
				defer group.Done()
				for views := 0; ; {
					var err error
					switch n % 4 {
					case 0:
						err = i.Fill(m.At(0), 4096, 1, 1)
					case 1:
						if views++; views > 1000 {
							return // Views may keep Close out for as long as they like.
						}
						err = m.View(func(content []byte) error {
							_ = content[4095]
							return nil
						})
					case 2:
						_, err = i.Pointer(m.At(8))
					case 3:
						_, err = m.Info()
					}
					if errors.Is(err, ErrStaleHandle) {
						return
					}
					if err != nil && !errors.Is(err, ErrBusy) {
						t.Error(err)
						return
					}
				}
			}()
		}
		err = m.Close()
		for errors.Is(err, ErrBusy) { // A view was there.
			runtime.Gosched()
			err = m.Close()
		}
		must(t, err)
		group.Wait()
	}
}
