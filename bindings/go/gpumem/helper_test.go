// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// testBackend is the backend that the tests run on: host, or cuda over a driver.
func testBackend(t testing.TB) Backend {
	switch name := os.Getenv("GPUMEM_TEST_BACKEND"); name {
	case "", "host":
		return BackendHost
	case "cuda":
		return BackendCUDA
	default:
		t.Fatalf("GPUMEM_TEST_BACKEND is %q, neither host nor cuda", name)
		return 0
	}
}

func onHost(t testing.TB) {
	t.Helper()
	if testBackend(t) != BackendHost {
		t.Skip("only the host backend has this")
	}
}

// open opens an instance on the backend under test, and checks that nothing lives in it at the end of the test.
func open(t testing.TB, options ...Options) *Instance {
	t.Helper()
	wanted := Options{}
	if len(options) > 0 {
		wanted = options[0]
	}
	wanted.Backend = testBackend(t)
	instance, err := Open(wanted)
	must(t, err)
	t.Cleanup(func() {
		if instance.closed() {
			return
		}
		if stats, err := instance.Stats(); err != nil || stats.Live() != 0 {
			report, _ := instance.Report()
			t.Errorf("%d objects live at the end of the test (%v):\n%s", stats.Live(), err, report)
			_, _ = instance.CloseForce()
		} else {
			must(t, instance.Close())
		}
	})
	return instance
}

func device(t testing.TB, options ...Options) *Device {
	t.Helper()
	found, err := open(t, options...).Device(0)
	must(t, err)
	return found
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expect checks the status of an error, and that its other fields are set.
func expect(t testing.TB, err error, status Status) *Error {
	t.Helper()
	var detail *Error
	if !errors.Is(err, status) || !errors.As(err, &detail) {
		t.Fatalf("expected %v, got %v", status, err)
	}
	if detail.Status != status || detail.Message == "" || detail.Function == "" {
		t.Fatalf("the detail is not complete: %#v", detail)
	}
	return detail
}

func newMemory(t testing.TB, d *Device, kind Kind, size uint64) *Memory {
	t.Helper()
	m, err := d.NewMemory(MemoryOptions{Kind: kind, Size: size})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return m
}

func newPinned[T any](t testing.TB, d *Device, length int) *Pinned[T] {
	t.Helper()
	p, err := NewPinned[T](d, length, MemoryOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func newPageable[T any](t testing.TB, length int) *Pageable[T] {
	t.Helper()
	b, err := NewPageable[T](length)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

func newStream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s, err := d.NewStream(StreamOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func newEvent(t testing.TB, d *Device) *Event {
	t.Helper()
	e, err := d.NewEvent(EventOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// collectUntil runs the garbage collector until a condition holds.
func collectUntil(t testing.TB, what string, so func() bool) {
	t.Helper()
	for start := time.Now(); !so(); runtime.Gosched() {
		runtime.GC()
		if time.Since(start) > 120*time.Second {
			t.Fatalf("not %s after 120 seconds of collecting garbage", what)
		}
	}
}

// child runs this test in a process of its own, where inChild() is true, and returns the output.
func child(t *testing.T, variables ...string) (string, error) {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	command.Env = append(append(os.Environ(), "GPUMEM_GO_CHILD=1"), variables...)
	output, err := command.CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

func inChild() bool { return os.Getenv("GPUMEM_GO_CHILD") != "" }
