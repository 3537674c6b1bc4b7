// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

func TestProbeAndOpen(t *testing.T) {
	found, err := Probe(testBackend(t))
	must(t, err)
	if found.Backend != testBackend(t) || found.DeviceCount != 2 || found.Name == "" {
		t.Errorf("the probe found %+v", found)
	}
	_, err = Probe(99)
	expect(t, err, ErrInvalidArgument)

	i := open(t, Options{Name: "probe", PinBudget: 1 << 20})
	info, err := i.Info()
	must(t, err)
	if info.Backend != testBackend(t) || info.DeviceCount != 2 || info.Name != "probe" || info.PinBudget != 1<<20 ||
		info.Strict != (info.Backend == BackendHost) {
		t.Errorf("the instance is %+v", info)
	}
	devices, err := i.Devices()
	must(t, err)
	for ordinal, d := range devices {
		info, err := d.Info()
		must(t, err)
		free, total, err := d.Memory()
		must(t, err)
		if d.Ordinal() != ordinal || d.Instance() != i || info.Ordinal != ordinal || info.Name == "" || info.Lost ||
			info.UUID == [16]byte{} || total != info.TotalBytes || free == 0 || free > total {
			t.Errorf("device %d: %+v, %d of %d bytes free", ordinal, info, free, total)
		}
	}
	report, err := i.Report()
	must(t, err)
	if report != "nothing lives" {
		t.Errorf("the report says %q", report)
	}
	for _, name := range []string{"with\x00zero", strings.Repeat("x", 64), strings.Repeat("x", 1000)} {
		_, err := Open(Options{Backend: testBackend(t), Name: name})
		expect(t, err, ErrInvalidArgument)
	}
	_, err = Open(Options{Backend: BackendHost, Host: &HostOptions{Peers: "0>1\x00"}})
	expect(t, err, ErrInvalidArgument)
}

// BackendAny falls back to the host backend if cuda cannot be opened, and reports why.
func TestFallback(t *testing.T) {
	var warnings atomic.Int64
	must(t, SetLogFunction(LogWarning, func(LogLevel, string) { warnings.Add(1) }))
	t.Cleanup(func() { must(t, SetLogFunction(LogWarning, nil)) })
	_, cudaErr := Probe(BackendCUDA)
	want, backend := Success, BackendCUDA
	if cudaErr != nil {
		backend = BackendHost
		errors.As(cudaErr, &want)
	}
	found, err := Probe(BackendAny)
	must(t, err)
	before := warnings.Load()
	i, err := Open(Options{})
	must(t, err)
	defer func() { must(t, i.Close()) }()
	info, err := i.Info()
	must(t, err)
	if found.Backend != backend || found.FallbackStatus != want || (found.FallbackReason == "") != (want == Success) {
		t.Errorf("the probe found %+v", found)
	}
	if info.Backend != backend || info.FallbackStatus != want || (info.FallbackReason == "") != (want == Success) ||
		(warnings.Load() == before) != (want == Success) {
		t.Errorf("the instance is %+v; %d warnings", info, warnings.Load()-before)
	}

	named, err := Probe(testBackend(t))
	must(t, err)
	namedInfo, err := open(t).Info()
	must(t, err)
	if named.FallbackStatus != Success || named.FallbackReason != "" || namedInfo.FallbackStatus != Success ||
		namedInfo.FallbackReason != "" {
		t.Errorf("a backend that is named has a fallback: %+v, %+v", named, namedInfo)
	}
}

func TestCUDAOptions(t *testing.T) {
	must(t, open(t, Options{CUDA: &CUDAOptions{}}).Close())
	for _, contexts := range [][]uintptr{{0}, make([]uintptr, 65)} {
		i, err := Open(Options{Backend: testBackend(t), CUDA: &CUDAOptions{Contexts: contexts}})
		if testBackend(t) == BackendCUDA {
			expect(t, err, ErrInvalidArgument)
			continue
		}
		must(t, err) // Ignored, because the host backend was named.
		must(t, i.Close())
	}
}

func TestHostOptions(t *testing.T) {
	i, err := Open(Options{Backend: BackendHost, Host: &HostOptions{DeviceCount: 3, Strict: ToggleOff,
		DeviceBytes: 8 << 20, Granularity: 1 << 20, Pageable: ToggleOn, SamePointer: ToggleOn, LockMode: HostLockOff,
		NUMANodes: 2, RegisterCountMax: 1, LockPiece: 1 << 20, Quarantine: 1, Fill: ToggleOn, Peers: "0>1",
		Masked: "copy_2d", Concurrent: ToggleOff, Compressible: ToggleOff, VMMGranularity: 1 << 20}})
	must(t, err)
	defer func() { must(t, i.Close()) }()
	info, err := i.Info()
	must(t, err)
	devices, err := i.Devices()
	must(t, err)
	if info.DeviceCount != 3 || info.Strict || len(devices) != 3 {
		t.Errorf("the instance is %+v", info)
	}
	released, err := devices[0].TrimGraphs()
	must(t, err)
	if released != 0 {
		t.Errorf("%d bytes came back, and no graph allocated", released)
	}
	there, err := devices[0].CanAccessPeer(devices[1])
	must(t, err)
	back, err := devices[1].CanAccessPeer(devices[0])
	must(t, err)
	if !there || back {
		t.Errorf("peers: 0>1 %v, 1>0 %v", there, back)
	}
	answer, err := devices[0].PeerCapability(CapabilityPeerAccess, devices[1])
	must(t, err)
	if answer.Value != AnswerYes || answer.Name != "peer.access" {
		t.Errorf("the capability is %+v", answer)
	}
	p, err := NewPinned[byte](devices[0], 4096, MemoryOptions{Uninitialized: true})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	if p.Slice()[4095] != 0xA5 {
		t.Error("fresh memory is not filled")
	}
	expect(t, i.Copy2D(p.At(0), p.At(2048), Rectangle{4, 2, 8, 8}, CopyOptions{}), ErrSymbolMissing)
	unit, _, err := devices[0].PhysicalGranularity(PhysicalOptions{})
	must(t, err)
	if unit != 1<<20 || can(t, devices[0], CapabilityManagedConcurrent) || can(t, devices[0], CapabilityVMMCompressible) {
		t.Errorf("options were lost: the granularity is %d", unit)
	}
	must(t, p.Close())
	for _, options := range []HostOptions{{DeviceCount: 65}, {Strict: 9}, {LockMode: 9}, {Peers: "nonsense"}, {Concurrent: 9},
		{Compressible: 9}, {VMMGranularity: 3}} {
		options := options
		_, err := Open(Options{Backend: BackendHost, Host: &options})
		expect(t, err, ErrInvalidArgument)
	}
}

func TestCapabilitiesAndFeatures(t *testing.T) {
	d := device(t)
	list, err := Capabilities()
	must(t, err)
	for _, capability := range list {
		if capability == CapabilityPeerAccess || capability == CapabilityPeerAtomics {
			_, err := d.Capability(capability)
			expect(t, err, ErrInvalidArgument)
			continue
		}
		answer, err := d.Capability(capability)
		must(t, err)
		if answer.Capability != capability || answer.Name == "" || answer.Reason == "" || answer.Source == 0 ||
			answer.Type == AnswerTypeTri && (answer.Value == AnswerNo) != (answer.Status < 0) {
			t.Errorf("%d: %+v", capability, answer)
		}
	}
	capabilities := 0
	for _, c := range constants {
		if c.kind == "Capability" {
			capabilities++
		}
	}
	if len(list) != capabilities {
		t.Errorf("the library has %d capabilities, this package %d", len(list), capabilities)
	}
	if !FeatureBackendHost.Supported() || !FeatureHostSimulation.Supported() || Feature(9999).Supported() {
		t.Error("the features are wrong")
	}
	version, err := Version()
	must(t, err)
	if version == "" || VersionNumber() < makeVersion(VersionMajor, VersionMinor, 0) {
		t.Errorf("the version is %q, %d", version, VersionNumber())
	}
}

type particle struct {
	Position [3]float32
	Kind     uint8
	Mass     float64
}

func TestTypedMemory(t *testing.T) {
	d := device(t)
	p := newPinned[particle](t, d, 1000)
	q := newPinned[particle](t, d, 1000)
	m := newMemory(t, d, KindDevice, p.Size())
	if len(p.Slice()) != 1000 || p.Len() != 1000 || p.Size() != 1000*uint64(unsafe.Sizeof(particle{})) ||
		uintptr(unsafe.Pointer(&p.Slice()[0]))%unsafe.Alignof(particle{}) != 0 || m.Device() != d {
		t.Error("the slice is not as asked for")
	}
	for i := range p.Slice() {
		p.Slice()[i] = particle{[3]float32{float32(i), 1, 2}, uint8(i), float64(i) / 2}
		q.Slice()[i] = particle{}
	}
	must(t, d.Instance().Copy(m.At(0), p.At(0), p.Size()))
	must(t, d.Instance().Copy(q.At(0), m.At(0), q.Size()))
	for i, got := range q.Slice() {
		if got != p.Slice()[i] {
			t.Fatalf("value %d is %v", i, got)
		}
	}
	combined, err := NewPinned[uint64](d, 8, MemoryOptions{Require: MemoryWriteCombined | MemoryPortable, Name: "wc"})
	must(t, err)
	defer func() { must(t, combined.Close()) }()
	info, err := combined.Info()
	must(t, err)
	const granted = MemoryWriteCombined | MemoryPortable | MemoryMapped
	if info.GrantedFlags&granted != granted || info.Name != "wc" || info.Size != 64 || info.DeviceOrdinal != 0 ||
		info.Kind != KindPinned || info.RequestedFlags != MemoryWriteCombined|MemoryPortable || info.BufferID == 0 {
		t.Errorf("granted was %+v", info)
	}
}

func TestPinnedMemoryIsZeroed(t *testing.T) {
	onHost(t) // It can fill fresh memory with a pattern.
	d := device(t, Options{Host: &HostOptions{Fill: ToggleOn}})
	zeroed := newPinned[uint32](t, d, 1000)
	for i, value := range zeroed.Slice() {
		if value != 0 {
			t.Fatalf("number %d is %#x", i, value)
		}
	}
	fresh, err := NewPinned[uint32](d, 1000, MemoryOptions{Uninitialized: true})
	must(t, err)
	if value := fresh.Slice()[999]; value == 0 {
		t.Error("it was zeroed although nobody asked for that")
	}
	must(t, fresh.Close())
}

func TestFaultInAClosedSlice(t *testing.T) {
	if inChild() {
		b, err := NewPageable[int32](1)
		must(t, err)
		values := b.Slice()
		must(t, b.Close())
		defer func() { _ = recover() }()
		values[0] = 1
		return
	}
	output, err := child(t)
	lines := strings.SplitN(output, "\n", 4)
	// The guide shows these lines.
	if err == nil || len(lines) < 4 || !strings.HasPrefix(lines[0], "unexpected fault address 0x") || lines[1] != "fatal error: fault" ||
		!strings.HasPrefix(lines[2], "[signal SIGSEGV: segmentation violation code=") {
		t.Errorf("%v:\n%s", err, output)
	}
}

// None of these may reach the library with a wrong size, or panic.
func TestOptionsThatAValueTypeSets(t *testing.T) {
	d := device(t)
	_, kind := NewDeviceMemory[uint32](d, 4, MemoryOptions{Kind: KindPinned})
	_, size := NewPinned[uint32](d, 4, MemoryOptions{Size: 64})
	for number, err := range []error{kind, size} {
		text := expect(t, err, ErrInvalidArgument).Message
		if number == 0 && !strings.Contains(text, "KindPinned") || number > 0 && !strings.Contains(text, "64") {
			t.Error(text)
		}
	}
	m, err := NewDeviceMemory[uint32](d, 4, MemoryOptions{Kind: KindDevice, Size: 16})
	must(t, err)
	must(t, m.Close())
}

func TestTypesAndLengthsThatAreRefused(t *testing.T) {
	d := device(t)
	_, pointer := NewPinned[*int](d, 1, MemoryOptions{})
	_, text := NewPinned[string](d, 1, MemoryOptions{})
	_, slice := NewPinned[[]byte](d, 1, MemoryOptions{})
	_, nested := NewPinned[struct{ inner [2]struct{ m map[int]int } }](d, 1, MemoryOptions{})
	_, interfaceErr := NewPinned[any](d, 1, MemoryOptions{})
	_, function := NewPageable[func()](1)
	_, channel := NewPageable[chan int](1)
	_, unsafePointer := NewPageable[unsafe.Pointer](1)
	_, truth := NewPinned[bool](d, 1, MemoryOptions{}) // A byte of 2 would be neither true nor false.
	_, nestedTruth := NewPageable[struct{ inner [2]bool }](1)
	_, nothing := NewPinned[struct{}](d, 1, MemoryOptions{})
	_, emptyArray := NewPageable[[0]int](1)
	_, zero := NewPinned[int32](d, 0, MemoryOptions{})
	_, zeroBuffer := NewPageable[int32](0)
	_, negative := NewPinned[int32](d, -1, MemoryOptions{})
	_, overflow := NewPinned[[4096]byte](d, math.MaxInt/4096+1, MemoryOptions{})
	_, wraps := NewPinned[int64](d, math.MaxInt, MemoryOptions{})
	_, bufferOverflow := NewPageable[int64](math.MaxInt)
	_, alignment := NewPinned[int64](d, 1, MemoryOptions{Alignment: 1})
	_, name := NewPinned[int64](d, 1, MemoryOptions{Name: "\x00"})
	_, flag := NewPinned[int64](d, 1, MemoryOptions{Require: MemoryReadOnly})
	_, mapped := MapFile[*int](os.Stdin, false)
	place := newMemory(t, d, KindDevice, 64).At(0)
	for number, err := range []error{pointer, text, slice, nested, interfaceErr, function, channel, unsafePointer, truth,
		nestedTruth, nothing, emptyArray, zero, zeroBuffer, negative, overflow, wraps, bufferOverflow, alignment, name, flag, mapped,
		CopyFromSlice(d.Instance(), place, []*int{nil}), CopyToSlice(d.Instance(), []string{""}, place),
		CopyToSlice(d.Instance(), []bool{true}, place)} {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	_, tooMuch := NewPinned[byte](d, math.MaxInt, MemoryOptions{})
	if !errors.Is(tooMuch, ErrOutOfHostMemory) && !errors.Is(tooMuch, ErrLimitExceeded) {
		t.Errorf("2^63-1 bytes: %v", tooMuch)
	}
	_, bufferTooMuch := NewPageable[byte](math.MaxInt / 2)
	if detail := expect(t, bufferTooMuch, ErrOutOfHostMemory); detail.EntryPoint != "mmap" ||
		detail.NativeDomain != NativeErrno || detail.NativeCode == 0 {
		t.Errorf("the system's refusal is %+v", detail)
	}
}

// The size of a value is known without one.
func TestValuesMayBeLarge(t *testing.T) {
	type layer [4 << 20]float32
	d := device(t)
	there, err := NewDeviceMemory[layer](d, 1, MemoryOptions{})
	must(t, err)
	defer func() { must(t, there.Close()) }()
	if made := testing.AllocsPerRun(1, func() {
		if size, err := there.Span().Part(0, 1).bytes("", d.Instance()); size != 16<<20 || err != nil {
			t.Errorf("%d bytes, %v", size, err)
		}
	}); made != 0 {
		t.Errorf("%v allocations for the size of a value", made)
	}
	_, err = NewPageable[[1 << 40]byte](1 << 20)
	expect(t, err, ErrOutOfHostMemory)
}

// A slice has the length of its memory in values of its type, so neither can be exchanged.
func TestValuesStayOfOneType(t *testing.T) {
	for _, types := range [][2]any{
		{Pinned[int32]{}, Pinned[*int32]{}}, {DeviceMemory[int32]{}, DeviceMemory[float32]{}},
		{Managed[int32]{}, Managed[[2]int32]{}}, {HostAccess[int32]{}, HostAccess[int64]{}},
		{Pageable[byte]{}, Pageable[[2]byte]{}}, {Buffer[int32]{}, Buffer[string]{}}, {Span[byte]{}, Span[uint16]{}},
	} {
		one, other := reflect.TypeOf(types[0]), reflect.TypeOf(types[1])
		if one.ConvertibleTo(other) || reflect.PointerTo(one).ConvertibleTo(reflect.PointerTo(other)) {
			t.Errorf("%v can be converted to %v", one, other)
		}
		for i := 0; i < one.NumField(); i++ {
			if one.Field(i).IsExported() {
				t.Errorf("%s of %v can be replaced", one.Field(i).Name, one)
			}
		}
		if marker := one.Field(0); marker.Type.Size() != 0 || one.Field(1).Offset != 0 {
			t.Errorf("%s makes %v larger", marker.Name, one)
		}
	}
}

func TestDeviceMemoryIsNotForTheCPU(t *testing.T) {
	m := newMemory(t, device(t), KindDevice, 4096)
	if m.Bytes() != nil || m.DevicePtr() == 0 {
		t.Error("device memory has a slice, or no address")
	}
	expect(t, m.View(func([]byte) error { return nil }), ErrWrongKind)
	p := newPinned[byte](t, m.Device(), 16)
	must(t, p.Memory().View(func(content []byte) error {
		content[15] = 1
		return nil
	}))
	if p.Bytes()[15] != 1 {
		t.Error("the view was of other memory")
	}
}

func TestCopiesOfGoMemory(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m := newMemory(t, d, KindDevice, 4096)
	s := newStream(t, d)
	// The source lies inside an object that has pointers, which cgo would refuse if it looked there.
	holder := &struct {
		next    *int
		content [1024]uint32
	}{next: new(int)}
	for n := range holder.content {
		holder.content[n] = uint32(n * n)
	}
	want := holder.content
	must(t, CopyFromSliceAsync(s, m.At(0), holder.content[:]))
	holder.content = [1024]uint32{} // It has been read already.
	must(t, s.Synchronize())
	got := struct {
		next    *int
		content [1024]uint32
	}{next: new(int)}
	must(t, CopyToSlice(i, got.content[:], m.At(0)))
	if got.content != want {
		t.Error("the content did not arrive")
	}
	must(t, CopyFromSlice(i, m.At(4), []byte("text")))
	must(t, CopyToSlice(i, got.content[:2], m.At(0)))
	if !bytes.Equal((*[4]byte)(unsafe.Pointer(&got.content[1]))[:], []byte("text")) {
		t.Error("the offset was lost")
	}
	must(t, CopyFromSlice(i, m.At(0), []byte{}))
	must(t, CopyToSlice(i, []byte(nil), m.At(0)))
	expect(t, CopyFromSlice(i, m.At(4090), []uint64{1}), ErrInvalidArgument)
	expect(t, CopyToSlice(i, make([]byte, 4097), m.At(0)), ErrInvalidArgument)
}

func TestLengthsAreRefusedAlike(t *testing.T) {
	d := device(t)
	for _, length := range []int{0, -1, math.MinInt} {
		_, pinned := NewPinned[int32](d, length, MemoryOptions{})
		_, memory := NewDeviceMemory[int32](d, length, MemoryOptions{})
		_, managed := NewManaged[int32](d, length, MemoryOptions{})
		for _, err := range []error{pinned, memory, managed} {
			want := fmt.Sprintf("the length is %d; ask for at least one value", length)
			if got := expect(t, err, ErrInvalidArgument).Error(); !strings.Contains(got, want) {
				t.Error(got)
			}
		}
	}
}

// Another object may lie behind an object, so an address there is refused before the library looks it up.
func TestAddressesStayInTheirObject(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m, other := newMemory(t, d, KindDevice, 4096), newMemory(t, d, KindDevice, 4096)
	b := newPageable[byte](t, 4096)
	distance := other.address - m.address // May wrap around.
	_, pointerErr := i.Pointer(m.At(distance))
	_, accessErr := i.PointerAccess(m.At(distance), LocationDevice, 0)
	_, behindErr := d.RegisterMemory(b.At(4096), 1, RegisterOptions{})
	_, overErr := d.RegisterMemory(b.At(4000), 97, RegisterOptions{})
	_, beforeErr := d.RegisterMemory(b.At(math.MaxUint64), 1, RegisterOptions{})
	for number, err := range []error{pointerErr, accessErr, behindErr, overErr, beforeErr,
		i.Copy(m.At(distance), b.At(0), 16), i.Copy(m.At(0), b.At(4096), 16),
		i.Fill(m.At(distance), 16, 1, 1), i.Fill(m.At(4097), 0, 1, 1), i.Fill(m.At(4095), 2, 1, 1),
		CopyFromSlice(i, m.At(distance), []byte{1}), CopyToSlice(i, []byte{1}, m.At(4096))} {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("number %d: %v", number, err)
		}
	}
	must(t, i.Fill(m.At(4096), 0, 1, 1)) // No byte at the end is no byte outside.
	must(t, i.Fill(m.At(4095), 1, 1, 1))
}

func TestPointerAccess(t *testing.T) {
	i := open(t)
	devices, err := i.Devices()
	must(t, err)
	m, p := newMemory(t, devices[0], KindDevice, 64), newPinned[byte](t, devices[0], 64)
	access := func(address Address, location Location, id int) Access {
		t.Helper()
		found, err := i.PointerAccess(address, location, id)
		must(t, err)
		return found
	}
	for _, check := range []struct {
		address  Address
		location Location
		id       int
		want     Access
	}{
		{m.At(8), LocationDevice, 0, AccessReadWrite},
		{m.At(8), LocationDevice, 1, AccessNone},
		{m.At(8), LocationHost, -1, AccessNone},
		{p.At(8), LocationDevice, 1, AccessReadWrite},
		{p.At(8), LocationHost, 0, AccessReadWrite},
	} {
		if got := access(check.address, check.location, check.id); got != check.want {
			t.Errorf("%d %d may do %d", check.location, check.id, got)
		}
	}
	possible, err := devices[1].CanAccessPeer(devices[0])
	must(t, err)
	if possible {
		must(t, devices[1].EnablePeerAccess(devices[0]))
		if got := access(m.At(0), LocationDevice, 1); got != AccessReadWrite {
			t.Errorf("a peer may do %d", got)
		}
		must(t, devices[1].DisablePeerAccess(devices[0]))
	}
	for _, processor := range []struct {
		location Location
		id       int
	}{{LocationNone, 0}, {LocationHostNUMA, 0}, {77, 0}, {LocationDevice, 2}, {LocationDevice, -1}, {LocationHost, 5},
		{LocationDevice, 1 << 32}, {LocationHost, math.MinInt}} {
		_, err := i.PointerAccess(m.At(0), processor.location, processor.id)
		expect(t, err, ErrInvalidArgument)
	}
	// It hands out no number, so the memory may still be collected.
	if m.shown.Load() {
		t.Error("a query of access counts as handing out the address")
	}
}

func TestAddressesByNumber(t *testing.T) {
	d := device(t)
	i := d.Instance()
	there, err := d.Malloc(KindDevice, 4096)
	must(t, err)
	must(t, i.Fill(there.Add(16), 16, 0x01020304, 4))
	got := make([]uint32, 4)
	must(t, CopyToSlice(i, got, DevicePtr(there.Number()).At(16)))
	if got[3] != 0x01020304 {
		t.Errorf("the fill left %#x", got)
	}
	info, err := i.Pointer(there.Add(5))
	must(t, err)
	if info.Kind != KindDevice || info.Location != LocationDevice || info.Size != 4096 || info.Base != there.Number() ||
		uint64(info.DevicePointer) != there.Number()+5 || !info.Owned || info.DeviceOrdinal != 0 || info.BufferID == 0 {
		t.Errorf("the pointer is %+v", info)
	}
	address, err := d.DevicePointer(there.Add(5))
	must(t, err)
	if uint64(address) != there.Number()+5 {
		t.Errorf("the device pointer is %#x", address)
	}
	must(t, i.Free(there))
	expect(t, i.Free(there), ErrNotFound)

	b := newPageable[byte](t, 4096)
	number := RawAddress(b.At(0).Number())
	must(t, d.Register(number, 4096, MemoryMapped))
	if _, err := d.DevicePointer(b.At(100)); err != nil {
		t.Error(err)
	}
	must(t, i.Unregister(number))
	registered, err := d.RegisterMemory(number, 100, RegisterOptions{Require: MemoryMapped, Name: "by number"})
	must(t, err)
	registeredInfo, err := registered.Info()
	must(t, err)
	if registeredInfo.Kind != KindRegistered || registeredInfo.Size != 100 || registeredInfo.Name != "by number" ||
		registeredInfo.GrantedFlags&MemoryMapped == 0 {
		t.Errorf("the registration is %+v", registeredInfo)
	}
	must(t, registered.Close())
	_, err = d.RegisterMemory(number, 100, RegisterOptions{Name: "\x00"})
	expect(t, err, ErrInvalidArgument)
	_, err = d.NewMemory(MemoryOptions{Kind: KindRegistered, Size: 100})
	expect(t, err, ErrInvalidArgument)
	// Objects are not freed by their addresses.
	m := newMemory(t, d, KindDevice, 4096)
	expect(t, i.Free(m.At(0)), ErrInvalidArgument)
	expect(t, d.Register(b.At(0), 4096, 0), ErrInvalidArgument)
	expect(t, i.Unregister(b.At(0)), ErrInvalidArgument)
}

func TestStatsAndReport(t *testing.T) {
	d := device(t)
	i := d.Instance()
	var kept [40]*Memory // More than the report's first buffer can hold.
	for n := range kept {
		var err error
		kept[n], err = d.NewMemory(MemoryOptions{Kind: KindPinned, Size: 16, Name: strings.Repeat("name", 12)})
		must(t, err)
	}
	stats, err := i.Stats()
	must(t, err)
	if stats.LiveCount != 40 || stats.LiveBytes != 640 || stats.Live() != 40 {
		t.Errorf("the counters are %+v", stats)
	}
	pinned, err := i.KindStats(KindPinned)
	must(t, err)
	if want := (KindStats{40, 640, 40, 640, 40, 640}); pinned != want {
		t.Errorf("the counters of pinned memory are %+v", pinned)
	}
	devices, err := i.KindStats(KindDevice)
	must(t, err)
	if devices != (KindStats{}) {
		t.Errorf("the counters of device memory are %+v", devices)
	}
	for _, kind := range []Kind{KindPageable, KindForeign, KindUnknown, 77} {
		_, err := i.KindStats(kind)
		expect(t, err, ErrInvalidArgument)
	}
	s := newStream(t, d)
	if stats, err = i.Stats(); err != nil || stats.Streams != 1 || stats.Events != 0 || stats.Live() != 41 {
		t.Errorf("with a stream the counters are %+v, %v", stats, err)
	}
	must(t, s.Close())
	report, err := i.Report()
	must(t, err)
	if strings.Count(report, strings.Repeat("name", 12)) != 40 {
		t.Errorf("the report is cut: %s", report)
	}
	snapshot, err := i.Snapshot()
	must(t, err)
	var found struct {
		LiveBytes uint64 `json:"live_bytes"`
		Objects   []struct{ Type, Name, Kind string }
	}
	must(t, json.Unmarshal([]byte(snapshot), &found))
	if found.LiveBytes != 640 || len(found.Objects) != 40 || found.Objects[39].Kind != "pinned" || found.Objects[0].Type != "memory" {
		t.Errorf("the snapshot is %s", snapshot)
	}
	destroyed, err := i.CloseForce()
	must(t, err)
	if destroyed != 40 {
		t.Errorf("%d objects were destroyed", destroyed)
	}
	runtime.KeepAlive(kept) // or the collector would free some before they are counted
	expect(t, i.ResetPeaks(), ErrClosed)
}

func TestPeaksAreReset(t *testing.T) {
	d := device(t)
	m := newMemory(t, d, KindDevice, 16)
	must(t, m.Close())
	must(t, d.Instance().ResetPeaks())
	stats, err := d.Instance().KindStats(KindDevice)
	must(t, err)
	if want := (KindStats{TotalCount: 1, TotalBytes: 16}); stats != want {
		t.Errorf("the counters are %+v", stats)
	}
}

func TestStreamsAndEvents(t *testing.T) {
	d := device(t)
	s, err := d.NewStream(StreamOptions{Priority: -1, Name: "work"})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	first, second := newEvent(t, d), newEvent(t, d)
	quick, err := d.NewEvent(EventOptions{Flags: EventDisableTiming | EventBlockingSync, Name: "quick"})
	must(t, err)
	defer func() { must(t, quick.Close()) }()
	m := newMemory(t, d, KindDevice, 1<<20)
	must(t, first.Record(s))
	must(t, s.Fill2D(m.At(0), Rectangle{Width: 4, Height: 8, DestinationPitch: 16}, 7, 1))
	must(t, s.CopyWith(m.At(4096), m.At(0), 128, CopyOptions{DirectionDeviceToDevice, SourceOrderStream}))
	must(t, second.Record(s))
	must(t, quick.Record(s))
	complete, err := second.SynchronizeFor(time.Minute)
	must(t, err)
	if !complete {
		t.Error("a fill takes longer than a minute")
	}
	must(t, quick.Synchronize())
	complete, err = quick.Query()
	must(t, err)
	elapsed, elapsedErr := first.Elapsed(second)
	must(t, elapsedErr)
	backwards, err := second.Elapsed(first)
	must(t, err)
	if !complete || elapsed < 0 || backwards != -elapsed {
		t.Errorf("complete %v, %v elapsed, %v backwards", complete, elapsed, backwards)
	}
	must(t, s.Synchronize())
	streamInfo, err := s.Info()
	must(t, err)
	eventInfo, err := quick.Info()
	must(t, err)
	if streamInfo.Name != "work" || streamInfo.Wrapped || streamInfo.DeviceOrdinal != 0 || eventInfo.Name != "quick" ||
		eventInfo.Flags != EventDisableTiming|EventBlockingSync || eventInfo.Wrapped {
		t.Errorf("the stream is %+v, the event %+v", streamInfo, eventInfo)
	}
	if testBackend(t) == BackendCUDA {
		wrapped, err := d.WrapEvent(eventInfo.NativeEvent, eventInfo.Flags)
		must(t, err)
		must(t, wrapped.Synchronize())
		must(t, wrapped.Close())
		stream, err := d.WrapStream(streamInfo.NativeStream)
		must(t, err)
		must(t, stream.Synchronize())
		must(t, stream.Close())
	} else {
		_, err := d.WrapEvent(1, 0)
		expect(t, err, ErrUnsupported)
	}
}
