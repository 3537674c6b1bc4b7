// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// rangeDevice is a device whose memory can be mapped, and the unit for it.
func rangeDevice(t testing.TB, options ...Options) (*Device, uint64) {
	t.Helper()
	d := device(t, options...)
	needs(t, d, CapabilityVMMDevice)
	minimum, _, err := d.PhysicalGranularity(PhysicalOptions{})
	must(t, err)
	return d, minimum
}

func newPhysical(t testing.TB, d *Device, options PhysicalOptions) *Physical {
	t.Helper()
	p, err := d.NewPhysical(options)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// newRange reserves a range, and unmaps what is left at the end of the test.
func newRange(t testing.TB, i *Instance, size uint64) *AddressRange {
	t.Helper()
	r, err := i.ReserveRange(RangeOptions{Size: size})
	must(t, err)
	t.Cleanup(func() {
		if err := r.Close(); errors.Is(err, ErrBusy) {
			info, err := r.Info()
			must(t, err)
			for offset := uint64(0); offset < r.Size(); offset += info.Granularity {
				if mapping, err := i.Mapping(r.At(offset)); err == nil {
					must(t, r.Unmap(offset, mapping.Size))
				}
			}
			must(t, r.Close())
		} else {
			must(t, err)
		}
	})
	return r
}

func onDevice(ordinal int) ProcessorAccess {
	return ProcessorAccess{LocationDevice, ordinal, AccessReadWrite}
}

var onCPU = ProcessorAccess{LocationHost, 0, AccessReadWrite}

func TestPhysicalMemory(t *testing.T) {
	d, unit := rangeDevice(t)
	minimum, recommended, err := d.PhysicalGranularity(PhysicalOptions{Location: LocationDevice})
	must(t, err)
	if minimum != unit || minimum&(minimum-1) != 0 || recommended == 0 || recommended%minimum != 0 {
		t.Errorf("the granularity is %d, recommended %d", minimum, recommended)
	}
	p, err := d.NewPhysical(PhysicalOptions{Size: 3 * unit, Name: "block"})
	must(t, err)
	info, err := p.Info()
	must(t, err)
	if info.Location != LocationDevice || info.LocationID != 0 || info.DeviceOrdinal != 0 || info.Imported || info.Size != 3*unit ||
		info.Granularity != unit || info.BlockID == 0 || info.HandleTypes != 0 || info.Name != "block" {
		t.Errorf("the memory is %+v", info)
	}
	if (info.NativeHandle != 0) != (testBackend(t) == BackendCUDA) {
		t.Errorf("the native handle is %#x", info.NativeHandle)
	}
	_, err = p.Export()
	expect(t, err, ErrUnsupported)
	must(t, p.Close())
	must(t, p.Close())
	_, err = p.Info()
	expect(t, err, ErrStaleHandle)
	_, err = p.Export()
	expect(t, err, ErrStaleHandle)

	hosts := newPhysical(t, d, PhysicalOptions{Location: LocationHost, Size: unit})
	info, err = hosts.Info()
	must(t, err)
	if info.Location != LocationHost || info.DeviceOrdinal != 0 {
		t.Errorf("the memory of the host is %+v", info)
	}
	for number, bad := range []PhysicalOptions{{}, {Size: unit / 2}, {Size: unit + 1}, {Size: 1 << 63}, {Size: unit, Location: 9},
		{Size: unit, Location: LocationHostNUMACurrent}, {Size: unit, Location: LocationHostNUMA, LocationID: 4711},
		{Size: unit, HandleTypes: 2}, {Size: unit, Require: 1 << 40}, {Size: unit, Name: "\x00"},
		{Size: unit, Location: LocationHost, HandleTypes: HandleTypePOSIXFD}} {
		if _, err := d.NewPhysical(bad); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	_, _, err = d.PhysicalGranularity(PhysicalOptions{Location: 9})
	expect(t, err, ErrInvalidArgument)
}

func TestPropertiesOfPhysicalMemory(t *testing.T) {
	onHost(t)
	for _, compressible := range []Toggle{ToggleOn, ToggleOff} {
		d, unit := rangeDevice(t, Options{Host: &HostOptions{Compressible: compressible, VMMGranularity: 64 << 10}})
		if unit != 64<<10 {
			t.Errorf("the granularity is %d", unit)
		}
		preferred := newPhysical(t, d, PhysicalOptions{Size: unit, Prefer: PhysicalCompressible})
		info, err := preferred.Info()
		must(t, err)
		required, err := d.NewPhysical(PhysicalOptions{Size: unit, Require: PhysicalCompressible})
		if compressible == ToggleOn {
			must(t, err)
			must(t, required.Close())
		} else {
			expect(t, err, ErrUnsupported)
		}
		if (info.GrantedFlags == PhysicalCompressible) != (compressible == ToggleOn) {
			t.Errorf("%v: granted were %v", compressible, info.GrantedFlags)
		}
	}
	d, unit := rangeDevice(t, Options{Host: &HostOptions{NUMANodes: 2}})
	d, err := d.Instance().Device(1)
	must(t, err)
	info, err := newPhysical(t, d, PhysicalOptions{Size: unit, Location: LocationHostNUMA, LocationID: 1}).Info()
	must(t, err)
	if info.Location != LocationHostNUMA || info.LocationID != 1 || info.DeviceOrdinal != 1 {
		t.Errorf("the memory of a node is %+v", info)
	}
}

// Two blocks side by side, with a copy and a fill across the seam.
func TestARange(t *testing.T) {
	d, unit := rangeDevice(t)
	i, s := d.Instance(), newStream(t, d)
	first, second := newPhysical(t, d, PhysicalOptions{Size: unit}), newPhysical(t, d, PhysicalOptions{Size: 2 * unit})
	r, err := i.ReserveRange(RangeOptions{Size: 16 * unit, Name: "table"})
	must(t, err)
	must(t, r.Map(unit, first, second))
	info, err := r.Info()
	must(t, err)
	if info.Size != 16*unit || info.Granularity != unit || info.MappedSize != 3*unit || info.MappingCount != 2 || info.BufferID == 0 ||
		info.Name != "table" || r.Size() != 16*unit {
		t.Errorf("the range is %+v", info)
	}
	must(t, first.Close()) // The mapping keeps the memory.
	expect(t, i.Fill(r.At(unit), unit, 1, 1), ErrNoAccess)
	must(t, r.SetAccess(unit, 3*unit, onDevice(0)))
	must(t, s.Fill(r.At(unit), 3*unit, 1, 1))
	must(t, CopyFromSliceAsync(s, r.At(2*unit-4), []byte("12345678")))
	must(t, s.Synchronize())
	got := make([]byte, 10)
	must(t, CopyToSlice(i, got, r.At(2*unit-5)))
	if !bytes.Equal(got, []byte("\x0112345678\x01")) {
		t.Errorf("at the seam there is %q", got)
	}
	// A region of a range goes by its address, not by a handle.
	must(t, i.CopyRegions([]Region{{Destination: Operand{Address: r.At(unit)}, Source: Operand{Address: r.At(2*unit - 4)}, Width: 8}}))
	must(t, CopyToSlice(i, got[:8], r.At(unit)))
	if string(got[:8]) != "12345678" {
		t.Errorf("the region has %q", got)
	}

	access, err := i.PointerAccess(r.At(unit), LocationDevice, 0)
	must(t, err)
	none, err := i.PointerAccess(r.At(unit), LocationDevice, 1)
	must(t, err)
	pointer, err := i.Pointer(r.At(unit))
	must(t, err)
	stats, err := i.KindStats(KindVirtual)
	must(t, err)
	if stats.LiveCount != 1 || stats.LiveBytes != 16*unit {
		t.Errorf("the counters are %+v", stats)
	}
	all, err := i.Stats()
	must(t, err)
	if all.ReservedBytes != 16*unit || all.LiveBytes != 3*unit {
		t.Errorf("the counters are %+v", all)
	}
	if access != AccessReadWrite || none != AccessNone || pointer.Kind != KindVirtual || pointer.Location != LocationDevice ||
		!pointer.Owned || pointer.BufferID != info.BufferID || pointer.IsIn(newGrowable(t, d, BufferOptions{})) {
		t.Errorf("access is %v and %v, the pointer %+v", access, none, pointer)
	}
	secondInfo, err := second.Info()
	must(t, err)
	mapping, err := i.Mapping(r.At(2*unit + 5))
	must(t, err)
	if want := (MappingInfo{r.At(2 * unit).Number(), 2 * unit, secondInfo.BlockID, LocationDevice, 0}); mapping != want {
		t.Errorf("the mapping is %+v", mapping)
	}
	again, err := i.RetainPhysical(r.At(2*unit + 5))
	must(t, err)
	againInfo, err := again.Info()
	must(t, err)
	if againInfo.BlockID != secondInfo.BlockID || againInfo.Size != 2*unit {
		t.Errorf("retained was %+v", againInfo)
	}
	must(t, r.Map(8*unit, again)) // An alias.
	must(t, again.Close())
	must(t, r.SetAccess(8*unit, 2*unit, onDevice(0)))
	must(t, CopyToSlice(i, got[:4], r.At(8*unit)))
	if string(got[:4]) != "5678" {
		t.Errorf("the alias has %q", got[:4])
	}

	expect(t, r.Close(), ErrBusy)
	expect(t, r.Unmap(unit, unit/2), ErrInvalidArgument)
	expect(t, r.Unmap(0, unit), ErrInvalidState)
	expect(t, r.Map(2*unit, second), ErrAlreadyExists)
	expect(t, r.Map(15*unit, second), ErrInvalidArgument)
	expect(t, r.Map(unit/2, second), ErrInvalidArgument)
	expect(t, r.Map(0), ErrInvalidArgument)
	expect(t, r.Map(0, nil), ErrInvalidArgument)
	expect(t, r.Map(0, first), ErrStaleHandle)
	expect(t, r.SetAccess(0, unit, onDevice(0)), ErrInvalidState)
	expect(t, r.SetAccess(unit, unit), ErrInvalidArgument)
	expect(t, r.SetAccess(unit, unit, onDevice(2)), ErrInvalidArgument)
	expect(t, r.SetAccess(unit, unit, onDevice(1<<40)), ErrInvalidArgument)
	expect(t, r.SetAccess(unit, unit, onDevice(0), onDevice(0)), ErrInvalidArgument)
	expect(t, r.SetAccess(unit, unit, ProcessorAccess{LocationDevice, 0, 2}), ErrInvalidArgument)
	expect(t, r.SetAccess(unit, unit, onCPU), ErrUnsupported)
	_, err = i.Mapping(r.At(0))
	expect(t, err, ErrInvalidState)
	_, err = i.RetainPhysical(r.At(0))
	expect(t, err, ErrInvalidState)
	_, err = i.Mapping(newPinned[byte](t, d, 16).At(0))
	expect(t, err, ErrWrongKind)
	must(t, r.SetAccess(unit, unit, ProcessorAccess{LocationDevice, 0, AccessRead}))
	expect(t, i.Fill(r.At(unit), 1, 1, 1), ErrNoAccess)
	must(t, CopyToSlice(i, got[:1], r.At(unit)))
	must(t, r.Unmap(unit, 3*unit))
	must(t, r.Unmap(8*unit, 2*unit))
	place := r.At(0)
	must(t, r.Close())
	must(t, r.Close())
	if r.DevicePtr() != 0 {
		t.Error("a closed range hands out its address")
	}
	_, err = i.Mapping(place)
	expect(t, err, ErrStaleHandle)
	expect(t, i.Fill(place, 1, 1, 1), ErrStaleHandle)
	expect(t, r.Map(0, second), ErrStaleHandle)
	expect(t, r.View(0, unit, func([]byte) error { return nil }), ErrStaleHandle)
}

func TestWhereARangeIsReserved(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	r, err := i.ReserveRange(RangeOptions{Size: unit, Alignment: 64 * unit})
	must(t, err)
	place := r.At(0).Number()
	if place%(64*unit) != 0 || uint64(r.DevicePtr()) != place {
		t.Errorf("the range begins at %#x", place)
	}
	_, err = i.ReserveRange(RangeOptions{Size: unit, Address: place, Flags: RangeFixed})
	expect(t, err, ErrAlreadyExists)
	must(t, r.Close())
	if testBackend(t) == BackendHost {
		r, err = i.ReserveRange(RangeOptions{Size: unit, Address: place, Flags: RangeFixed})
		must(t, err)
		if r.At(0).Number() != place {
			t.Errorf("the fixed range begins at %v", r.At(0))
		}
		must(t, r.Close())
	}
	for number, bad := range []RangeOptions{{}, {Size: unit / 2}, {Size: 1 << 63}, {Size: unit, Alignment: 3}, {Size: unit, Address: 1},
		{Size: unit, Flags: RangeFixed}, {Size: unit, Flags: 2}, {Size: unit, Name: "\x00"}} {
		if _, err := i.ReserveRange(bad); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
}

// Blocks of two devices and of the host in one range, with access for all in one call.
func TestARangeOverSeveralProcessors(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	peer, err := i.Device(1)
	must(t, err)
	needs(t, d, CapabilityVMMHost)
	r := newRange(t, i, 3*unit)
	must(t, r.Map(0, newPhysical(t, d, PhysicalOptions{Size: unit}), newPhysical(t, peer, PhysicalOptions{Size: unit}),
		newPhysical(t, d, PhysicalOptions{Size: unit, Location: LocationHost})))
	must(t, r.SetAccess(0, 3*unit, onDevice(0), onDevice(1)))
	must(t, r.SetAccess(2*unit, unit, onCPU))
	must(t, i.Fill(r.At(0), 3*unit, 9, 1))
	for part, want := range []struct {
		location Location
		id       int
	}{{LocationDevice, 0}, {LocationDevice, 1}, {LocationHost, -1}} {
		mapping, err := i.Mapping(r.At(uint64(part) * unit))
		must(t, err)
		if mapping.Location != want.location || mapping.LocationID != want.id || mapping.Size != unit {
			t.Errorf("part %d is %+v", part, mapping)
		}
	}
	must(t, r.View(2*unit, unit, func(content []byte) error {
		if uint64(len(content)) != unit || content[0] != 9 || content[unit-1] != 9 {
			return errors.New("the fill did not arrive")
		}
		return nil
	}))
}

func TestAViewOfARange(t *testing.T) {
	d, unit := rangeDevice(t)
	needs(t, d, CapabilityVMMHost)
	i := d.Instance()
	r := newRange(t, i, 8*unit)
	block := newPhysical(t, d, PhysicalOptions{Size: unit, Location: LocationHost})
	nothing := func([]byte) error { return errors.New("this must not run") }
	must(t, r.Map(unit, block, block))
	must(t, r.Map(4*unit, newPhysical(t, d, PhysicalOptions{Size: unit})))
	expect(t, r.View(unit, unit, nothing), ErrNoAccess)
	must(t, r.SetAccess(unit, unit, onCPU))
	expect(t, r.View(unit, 2*unit, nothing), ErrNoAccess) // Only the first part.
	must(t, r.SetAccess(2*unit, unit, ProcessorAccess{LocationHost, 0, AccessRead}))
	expect(t, r.View(0, unit, nothing), ErrInvalidState)
	expect(t, r.View(2*unit, 2*unit, nothing), ErrInvalidState)
	expect(t, r.View(4*unit, 1, nothing), ErrNoAccess)
	expect(t, r.View(8*unit, 1, nothing), ErrInvalidArgument)
	expect(t, r.View(1, 8*unit, nothing), ErrInvalidArgument)
	more := newPhysical(t, d, PhysicalOptions{Size: unit, Location: LocationHost})
	must(t, r.View(unit, 2*unit, func(content []byte) error {
		content[5] = 42
		if content[unit+5] != 42 {
			return errors.New("the alias has other content")
		}
		for number, err := range []error{r.Unmap(2*unit, unit), r.Unmap(0, 1<<63), r.Close(), i.Close(),
			r.SetAccess(unit, unit, ProcessorAccess{LocationHost, 0, AccessNone})} {
			if !errors.Is(err, ErrBusy) {
				t.Errorf("number %d during a view: %v", number, err)
			}
		}
		// Other parts and other processors may change.
		must(t, r.SetAccess(unit, unit, onDevice(0)))
		must(t, r.Unmap(4*unit, unit))
		must(t, r.Map(4*unit, more))
		return r.SetAccess(4*unit, unit, onCPU)
	}))
	must(t, r.SetAccess(unit, unit, ProcessorAccess{LocationHost, 0, AccessNone}))
	expect(t, r.View(unit, unit, nothing), ErrNoAccess)
	must(t, r.Unmap(unit, 2*unit))
	if r.shown.Load() {
		t.Error("a view counts as handing out a slice")
	}
}

// A file of physical memory goes to another process, which maps the same bytes.
func TestPhysicalMemoryInAnotherProcess(t *testing.T) {
	options := PhysicalOptions{HandleTypes: HandleTypePOSIXFD}
	d, unit := rangeDevice(t)
	needs(t, d, CapabilityVMMHandlePOSIXFD)
	i := d.Instance()
	options.Size = unit
	r := newRange(t, i, unit)
	if inChild() {
		p, err := d.ImportPhysical(os.NewFile(3, "received"), options)
		must(t, err)
		must(t, r.Map(0, p))
		must(t, p.Close())
		must(t, r.SetAccess(0, unit, onDevice(0)))
		content := make([]byte, 5)
		must(t, CopyToSlice(i, content, r.At(0)))
		must(t, CopyFromSlice(i, r.At(0), []byte("reply")))
		fmt.Printf("received %s\n", content)
		return
	}
	p := newPhysical(t, d, options)
	must(t, r.Map(0, p))
	must(t, r.SetAccess(0, unit, onDevice(0)))
	must(t, CopyFromSlice(i, r.At(0), []byte("hello")))
	file, err := p.Export()
	must(t, err)
	defer file.Close()
	if testBackend(t) == BackendHost { // The memory of the fake driver ends with its process.
		command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		command.Env = append(os.Environ(), "GPUMEM_GO_CHILD=1")
		command.ExtraFiles = []*os.File{file}
		output, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(output), "received hello") {
			t.Errorf("the other process: %v: %s", err, output)
		}
		content := make([]byte, 5)
		must(t, CopyToSlice(i, content, r.At(0)))
		if string(content) != "reply" {
			t.Errorf("it answered %q", content)
		}
	}

	// The same in this process.
	imported, err := d.ImportPhysical(file, options)
	must(t, err)
	defer func() { must(t, imported.Close()) }()
	info, err := imported.Info()
	must(t, err)
	if !info.Imported || info.Size != unit || info.Location != LocationDevice {
		t.Errorf("the import is %+v", info)
	}
	again, err := imported.Export()
	if info.HandleTypes != 0 {
		must(t, err)
		must(t, again.Close())
	} else {
		expect(t, err, ErrUnsupported) // As the CUDA driver does.
	}
	if testBackend(t) == BackendHost && info.HandleTypes != HandleTypePOSIXFD {
		t.Errorf("the import can be shared by %v", info.HandleTypes)
	}
	wrong := options
	wrong.Require = PhysicalCompressible
	_, err = d.ImportPhysical(file, wrong)
	expect(t, err, ErrInvalidArgument)
	_, err = d.ImportPhysical(nil, options)
	expect(t, err, ErrInvalidArgument)
	reader, writer, err := os.Pipe()
	must(t, err)
	defer writer.Close()
	_, err = d.ImportPhysical(reader, options)
	expect(t, err, ErrInvalidArgument)
	must(t, reader.Close())
	_, err = d.ImportPhysical(reader, options)
	expect(t, err, ErrInvalidArgument)
}

func TestRangesThatAreDropped(t *testing.T) {
	d, unit := rangeDevice(t)
	i := d.Instance()
	reserve := func() *AddressRange {
		r, err := i.ReserveRange(RangeOptions{Size: 8 * unit})
		must(t, err)
		p, err := d.NewPhysical(PhysicalOptions{Size: unit})
		must(t, err)
		must(t, r.Map(unit, p, p))
		must(t, r.Map(5*unit, p))
		must(t, r.SetAccess(unit, 2*unit, onDevice(0)))
		return r
	}
	since := settle(t)
	func() {
		must(t, i.Fill(reserve().At(unit), unit, 1, 1))
	}()
	collectUntil(t, "freed", since.is(2, 0)) // Also what was mapped.
	since.exactly(t, 2, 0)

	word := newPinned[uint32](t, d, 1)
	word.Slice()[0] = 0
	s := newStream(t, d)
	func() {
		r := reserve()
		must(t, s.WaitValue(word.At(0), 1, 4, WaitEQ))
		must(t, s.Fill(r.At(unit), unit, 1, 1))
	}()
	collectUntil(t, "the physical memory freed", since.is(3, 0))
	runtime.GC()
	since.exactly(t, 3, 0)
	word.Slice()[0] = 1
	collectUntil(t, "freed after the work", since.is(4, 0))

	func() {
		if reserve().DevicePtr() == 0 {
			t.Error("there is no address")
		}
	}()
	collectUntil(t, "kept", since.is(5, 1))
	since.exactly(t, 5, 1)
	must(t, word.Close())
	must(t, s.Close())
	_, err := i.CloseForce()
	must(t, err)
}

// Goroutines map, view, use and unmap parts of one range at the same time.
func TestRangesUnderUse(t *testing.T) {
	d, unit := rangeDevice(t)
	needs(t, d, CapabilityVMMHost)
	i := d.Instance()
	r := newRange(t, i, 8*unit)
	var group sync.WaitGroup
	for n := uint64(0); n < 8; n++ {
		n := n
		group.Add(1)
		go func() {
			defer group.Done()
			for round := 0; round < 20; round++ {
				if err := useOnePart(d, r, n*unit, unit, byte(n)); err != nil {
					t.Errorf("part %d, round %d: %v", n, round, err)
					return
				}
			}
		}()
	}
	group.Wait()
	info, err := r.Info()
	must(t, err)
	if info.MappedSize != 0 || len(r.parts.all) != 0 {
		t.Errorf("left are %+v and %d parts", info, len(r.parts.all))
	}
}

func useOnePart(d *Device, r *AddressRange, offset, size uint64, value byte) error {
	p, err := d.NewPhysical(PhysicalOptions{Size: size, Location: LocationHost})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := r.Map(offset, p); err != nil {
		return err
	}
	if err := r.SetAccess(offset, size, onCPU, onDevice(0)); err != nil {
		return err
	}
	if err := d.Instance().Fill(r.At(offset), size, uint32(value), 1); err != nil {
		return err
	}
	if err := r.View(offset, size, func(content []byte) error {
		if content[0] != value || content[size-1] != value {
			return fmt.Errorf("the content is %d", content[0])
		}
		return nil
	}); err != nil {
		return err
	}
	return r.Unmap(offset, size)
}
