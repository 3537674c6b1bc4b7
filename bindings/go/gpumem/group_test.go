// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func newGroup(t testing.TB, i *Instance) *Group {
	t.Helper()
	g, err := i.NewGroup(GroupOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, g.Close()) })
	return g
}

func groupInfo(t testing.TB, g *Group, tag string) GroupInfo {
	t.Helper()
	info, err := g.Info(tag)
	must(t, err)
	return info
}

func TestAGroup(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	g, err := i.NewGroup(GroupOptions{Name: "engine"})
	must(t, err)
	if info := groupInfo(t, g, ""); info != (GroupInfo{Name: "engine"}) {
		t.Errorf("the new group is %+v", info)
	}
	must(t, g.Sleep(SleepOptions{})) // Of nothing.
	must(t, g.Wake(WakeOptions{}))
	var all []*GrowableBuffer
	for n, tag := range []string{"weights", "cache", "weights", ""} {
		b, err := d.NewGrowableBuffer(BufferOptions{Size: unit, Reserve: 2 * unit, Group: g, Tag: tag})
		must(t, err)
		if info := infoOf(t, b); b.Group() != g || info.Tag != tag {
			t.Errorf("buffer %d is %+v of %v", n, info, b.Group())
		}
		must(t, i.Fill(b.At(0), unit, uint32('a'+n), 1))
		all = append(all, b)
	}
	states := func(expected string) {
		t.Helper()
		got := ""
		for n, b := range all {
			info := infoOf(t, b)
			got += map[BufferState]string{BufferStateAwake: "w", BufferStateAsleep: "s", BufferStateFailed: "f"}[info.State]
			if info.Generation != b.Generation() {
				t.Errorf("the generation of %d is %d", n, b.Generation())
			}
			if info.State == BufferStateAwake && contentOf(t, b, unit-1, 1) != string(rune('a'+n)) {
				t.Errorf("buffer %d has %q", n, contentOf(t, b, unit-1, 1))
			}
		}
		if got != expected {
			t.Errorf("the buffers are %s instead of %s", got, expected)
		}
	}
	states("wwww")
	before, _, err := d.Memory()
	must(t, err)
	must(t, g.Prepare(PrepareOptions{Tag: "weights"}))
	if info := groupInfo(t, g, "weights"); info.StoreCapacity < 2*unit || info.StoreCapacity != groupInfo(t, g, "").StoreCapacity {
		t.Errorf("prepared it is %+v", info)
	}
	must(t, g.Sleep(SleepOptions{Tag: "weights"}))
	states("swsw")
	if info := groupInfo(t, g, "weights"); info.AsleepCount != 2 || info.BufferCount != 2 || info.Size != 2*unit || info.StoredSize != 2*unit {
		t.Errorf("with half asleep it is %+v", info)
	}
	var last uint64
	must(t, g.Sleep(SleepOptions{Content: ContentPageable, Progress: func(done, total uint64) bool {
		if total != 2*unit {
			t.Errorf("%d of %d", done, total)
		}
		last = done
		return true
	}}))
	states("ssss")
	free, _, err := d.Memory()
	must(t, err)
	if free < before+4*unit || last != 2*unit {
		t.Errorf("%d bytes were free, and now are %d, with progress up to %d", before, free, last)
	}
	if info := groupInfo(t, g, ""); info.AsleepCount != 4 || info.AwakeCount+info.FailedCount != 0 {
		t.Errorf("asleep it is %+v", info)
	}
	must(t, g.Wake(WakeOptions{Tag: "cache"}))
	states("swss")
	must(t, g.Wake(WakeOptions{Keep: math.MaxUint64}))
	states("wwww")
	if info := groupInfo(t, g, ""); info.StoreCapacity < 3*unit || info.StoredSize != 0 {
		t.Errorf("with stores kept it is %+v", info)
	}
	must(t, g.Prepare(PrepareOptions{Content: ContentZero}))
	if info := groupInfo(t, g, ""); info.StoreCapacity != 0 {
		t.Errorf("without stores it is %+v", info)
	}
	must(t, g.Sleep(SleepOptions{Tag: "none"}))
	states("wwww")

	for number, err := range []error{g.Sleep(SleepOptions{Tag: "\x00"}), g.Wake(WakeOptions{Tag: "\x00"}), g.Prepare(PrepareOptions{Tag: "\x00"}),
		g.Sleep(SleepOptions{Tag: "\n"}), g.Sleep(SleepOptions{Content: 9}), g.Prepare(PrepareOptions{Content: 9})} {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	_, err = g.Info("\x00")
	expect(t, err, ErrInvalidArgument)
	_, err = i.NewGroup(GroupOptions{Name: "\x00"})
	expect(t, err, ErrInvalidArgument)
	_, err = d.NewGrowableBuffer(BufferOptions{Size: 1, Tag: "weights"})
	expect(t, err, ErrInvalidArgument)
	_, err = d.NewGrowableBuffer(BufferOptions{Size: 1, Group: g, Tag: "\x00"})
	expect(t, err, ErrInvalidArgument)
	_, err = d.NewGrowableBuffer(BufferOptions{Size: 1, Group: newGroup(t, open(t))})
	expect(t, err, ErrInvalidArgument)
	expect(t, g.Close(), ErrBusy)
	expect(t, i.Close(), ErrBusy)

	// One that is closed asleep leaves the group.
	must(t, g.Sleep(SleepOptions{}))
	must(t, all[3].Close())
	all = all[:3]
	must(t, g.Wake(WakeOptions{}))
	states("www")
	if len(g.members) != 3 || groupInfo(t, g, "").BufferCount != 3 {
		t.Errorf("%d buffers are left", len(g.members))
	}
	for _, b := range all {
		must(t, b.Close())
	}
	must(t, g.Close())
	must(t, g.Close())
	_, err = g.Info("")
	expect(t, err, ErrStaleHandle)
	expect(t, g.Sleep(SleepOptions{}), ErrStaleHandle)
	_, err = d.NewGrowableBuffer(BufferOptions{Size: 1, Group: g})
	expect(t, err, ErrStaleHandle)
	if len(g.members)+len(g.changes) != 0 {
		t.Errorf("%d buffers and %d calls are left", len(g.members), len(g.changes))
	}
}

// A view and a call for the group exclude each other.
func TestViewsOfBuffersInAGroup(t *testing.T) {
	d, unit := rangeDevice(t)
	needs(t, d, CapabilityVMMHost)
	i := d.Instance()
	g := newGroup(t, i)
	options := BufferOptions{Size: 1000, Reserve: 4 * unit, Location: LocationHost, Group: g, Tag: "table"}
	b := newGrowable(t, d, options)
	options.Tag = "other"
	other := newGrowable(t, d, options)
	nothing := func([]byte) error { return errors.New("this must not run") }
	must(t, i.Fill(b.At(0), 1000, 3, 1))
	must(t, b.View(func(content []byte) error {
		for number, err := range []error{g.Sleep(SleepOptions{}), g.Sleep(SleepOptions{Tag: "table"})} {
			if !errors.Is(err, ErrBusy) {
				t.Errorf("number %d during a view: %v", number, err)
			}
		}
		if infoOf(t, other).State != BufferStateAwake || content[999] != 3 {
			t.Errorf("refused, but the other is %+v", infoOf(t, other))
		}
		must(t, g.Sleep(SleepOptions{Tag: "other"}))
		must(t, g.Wake(WakeOptions{}))
		return nil
	}))
	must(t, g.Sleep(SleepOptions{Tag: "table", Progress: func(uint64, uint64) bool {
		if err := b.View(nothing); !errors.Is(err, ErrBusy) {
			t.Errorf("a view during a sleep: %v", err)
		}
		return true
	}}))
	expect(t, b.View(nothing), ErrInvalidState)
	_, err := b.Bytes()
	expect(t, err, ErrInvalidState)
	_, err = SliceAs[int32](b)
	expect(t, err, ErrInvalidState)
	if err := i.Fill(b.At(0), 1, 1, 1); err == nil {
		t.Error("bytes were written while it slept")
	}
	must(t, other.View(func([]byte) error { return nil }))
	must(t, b.SetCallbacks(BufferCallbacks{AfterWake: func(uint64) {
		if err := b.View(nothing); !errors.Is(err, ErrBusy) {
			t.Errorf("a view before the waking is done: %v", err)
		}
		panic("awake")
	}}))
	if value := panicOf(func() { _ = g.Wake(WakeOptions{}) }); value != "awake" {
		t.Errorf("the panic became %v", value)
	}
	must(t, b.View(func(content []byte) error {
		if len(content) != 1000 || content[999] != 3 {
			return fmt.Errorf("awake it has %d bytes", len(content))
		}
		return nil
	}))

	// A buffer that is made during a call for its group cannot be viewed before that returns.
	change := g.begin("table", 0)
	late := &growing{tag: "table", buffer: b.growing.buffer}
	elsewhere := &growing{tag: "other", buffer: other.growing.buffer}
	g.enter(late)
	g.enter(elsewhere)
	if late.parts.claim(0, 1, false) != nil || elsewhere.parts.claim(0, 1, false) == nil || b.growing.parts.claim(0, 1, false) != nil {
		t.Error("the wrong buffers are claimed")
	}
	g.end(change)
	if late.parts.claim(0, 1, false) == nil || late.now().size != 1000 {
		t.Error("the buffer is still claimed")
	}
	g.leave(late)
	g.leave(elsewhere)
}

// A call for a group fails whole, whichever of its steps fails, and what the package knows is true afterwards.
func TestGroupsWhenStepsFail(t *testing.T) {
	onHost(t)
	d, unit := rangeDevice(t)
	i := d.Instance()
	g := newGroup(t, i)
	var all []*GrowableBuffer
	for n := 0; n < 3; n++ {
		b := newGrowable(t, d, BufferOptions{Size: unit, Reserve: unit, Location: LocationHost, Group: g})
		must(t, i.Fill(b.At(0), unit, uint32('a'+n), 1))
		all = append(all, b)
	}
	check := func(step uint64, expected BufferState) {
		t.Helper()
		for n, b := range all {
			info := infoOf(t, b)
			err := b.View(func(content []byte) error {
				if content[0] != byte('a'+n) || content[unit-1] != byte('a'+n) {
					t.Errorf("step %d: buffer %d has %q", step, n, content[0])
				}
				return nil
			})
			if awake := err == nil; awake != (info.State == BufferStateAwake) || info.State != expected || b.Generation() != info.Generation {
				t.Errorf("step %d: the view of buffer %d ends with %v, but it is %+v", step, n, err, info)
			}
		}
	}
	failures := 0
	for step, before := uint64(1), -1; failures != before; step++ {
		before = failures
		must(t, i.HostFailStep(step, false))
		if err := g.Sleep(SleepOptions{}); err != nil {
			failures++
			check(step, BufferStateAwake)
			must(t, g.Sleep(SleepOptions{}))
		}
		check(step, BufferStateAsleep)
		if err := g.Wake(WakeOptions{}); err != nil {
			failures++
			check(step, BufferStateAsleep)
			must(t, g.Wake(WakeOptions{}))
		}
		must(t, i.HostFailStep(0, false))
		check(step, BufferStateAwake)
	}
	if failures < 10 {
		t.Errorf("only %d steps failed", failures)
	}
}

// Goroutines view buffers, and make and close some, while others put their group to sleep.
func TestGroupsUnderUse(t *testing.T) {
	d, unit := rangeDevice(t)
	needs(t, d, CapabilityVMMHost)
	g := newGroup(t, d.Instance())
	options := BufferOptions{Size: unit, Reserve: 2 * unit, Location: LocationHost, Group: g}
	b := newGrowable(t, d, options)
	var running sync.WaitGroup
	var ended atomic.Bool
	var sleeps, views atomic.Int64
	allowed := func(err error) {
		if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrInvalidState) {
			t.Error(err)
		}
	}
	repeat := func(work func()) {
		running.Add(1)
		go func() {
			defer running.Done()
			for !ended.Load() {
				work()
				time.Sleep(time.Millisecond)
			}
		}()
	}
	write := func(content []byte) error {
		content[0], content[len(content)-1] = 1, 1
		views.Add(1)
		return nil
	}
	repeat(func() {
		err := g.Sleep(SleepOptions{Content: ContentPageable})
		allowed(err)
		if err == nil {
			sleeps.Add(1)
		}
		if err := g.Wake(WakeOptions{}); err != nil {
			t.Errorf("awake: %v", err)
		}
	})
	repeat(func() { allowed(b.View(write)) })
	repeat(func() { allowed(b.Resize(unit + uint64(views.Load()%2)*unit)) })
	repeat(func() {
		one, err := d.NewGrowableBuffer(options)
		if err != nil {
			t.Error(err)
			return
		}
		allowed(one.View(write))
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "slept and viewed", func() bool { return sleeps.Load() >= 10 && views.Load() >= 20 })
	ended.Store(true)
	running.Wait()
	if info := infoOf(t, b); len(g.members) != 1 || len(g.changes) != 0 || len(b.growing.parts.all) != 0 || info.State != BufferStateAwake {
		t.Errorf("left are %d buffers, %d calls and %d parts, of %+v", len(g.members), len(g.changes), len(b.growing.parts.all), info)
	}
}
