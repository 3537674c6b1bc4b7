// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// Every exported type prints itself.
func TestEveryTypeHasAString(t *testing.T) {
	packages, err := parser.ParseDir(token.NewFileSet(), ".", nil, 0)
	must(t, err)
	types, prints := map[string]bool{}, map[string]bool{}
	for name, file := range packages["gpumem"].Files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if named, ok := spec.(*ast.TypeSpec); ok && named.Name.IsExported() {
						_, isInterface := named.Type.(*ast.InterfaceType)
						types[named.Name.Name] = !isInterface
					}
				}
			case *ast.FuncDecl:
				if d.Recv == nil || d.Name.Name != "String" && d.Name.Name != "Error" {
					continue
				}
				receiver := d.Recv.List[0].Type
				if star, ok := receiver.(*ast.StarExpr); ok {
					receiver = star.X
				}
				if index, ok := receiver.(*ast.IndexExpr); ok {
					receiver = index.X
				}
				prints[receiver.(*ast.Ident).Name] = true
			}
		}
	}
	if len(types) < 55 {
		t.Errorf("only %d types were found", len(types))
	}
	for name, needed := range types {
		if needed && !prints[name] {
			t.Errorf("%s has neither String nor Error", name)
		}
	}
}

func TestStringsOfConstants(t *testing.T) {
	for value, expected := range map[fmt.Stringer]string{
		KindPinned:                               "KindPinned",
		Kind(77):                                 "Kind(77)",
		MemoryFlags(0):                           "MemoryFlags(0x0)",
		MemoryPortable | MemoryMapped:            "MemoryPortable|MemoryMapped",
		MemoryReadOnly | MemoryFlags(1<<40):      "MemoryReadOnly|MemoryFlags(0x10000000000)",
		ErrBusy:                                  "ErrBusy",
		Success:                                  "Success",
		Status(-5):                               "Status(-5)",
		BackendCUDA:                              "BackendCUDA",
		LogWarning:                               "LogWarning",
		DevicePtr(4096):                          "0x1000",
		RawAddress(255):                          "0xff",
		MemoryOptions{}:                          "MemoryOptions{}",
		Stats{LiveCount: 2, LiveBytes: 4096}:     "Stats{LiveCount: 2, LiveBytes: 4096}",
		StreamInfo{NativeStream: 255, Name: "a"}: `StreamInfo{NativeStream: 0xff, Name: "a"}`,
		DeviceInfo{UUID: [16]byte{1, 2}}:         "DeviceInfo{UUID: 01020000000000000000000000000000}",
		Options{Backend: BackendHost}:            "Options{Backend: BackendHost}",
		AccessReadWrite:                          "AccessReadWrite",
		PhysicalCompressible | PhysicalRDMA:      "PhysicalCompressible|PhysicalRDMA",
		RangeOptions{Size: 1, Address: 255}:      "RangeOptions{Size: 1, Address: 0xff}",
		MappingInfo{Base: 255, LocationID: -1}:   "MappingInfo{Base: 0xff, LocationID: -1}",
		PrepareOptions{Content: ContentFile}:     "PrepareOptions{Content: ContentFile}",
		BufferInfo{State: BufferStateFailed}:     "BufferInfo{State: BufferStateFailed}",
		GroupInfo{BufferCount: 2, Name: "a"}:     `GroupInfo{BufferCount: 2, Name: "a"}`,
		GroupOptions{Name: "a"}:                  `GroupOptions{Name: "a"}`,
		FabricHandle{63: 0xab}:                   strings.Repeat("00", 63) + "ab",
		Region{Width: 3, Destination: Operand{Address: RawAddress(16)}, CopyOptions: CopyOptions{Direction: DirectionHostToHost}}: "Region{" +
			"Destination: Operand{Address: 0x10}, Width: 3, CopyOptions: CopyOptions{Direction: DirectionHostToHost}}",
	} {
		if got := fmt.Sprint(value); got != expected {
			t.Errorf("%s instead of %s", got, expected)
		}
	}
	p := DevicePtr(0x1f0)
	if got := fmt.Sprintf("%v %s %d %x %#x %012X", p, p, p, p, p, p); got != "0x1f0 0x1f0 496 1f0 0x1f0 0000000001F0" {
		t.Error(got)
	}
	sleep := SleepOptions{Flags: SleepIdle, Tag: "cache", Progress: func(uint64, uint64) bool { return true }}
	if got := fmt.Sprint(sleep); got != `SleepOptions{Flags: SleepIdle, Tag: "cache", Progress: func(uint64, uint64) bool}` {
		t.Error(got)
	}
	wake := fmt.Sprint(WakeOptions{Keep: 5}, " ", BufferCallbacks{AfterWake: func(uint64) {}})
	if wake != "WakeOptions{Keep: 5} BufferCallbacks{AfterWake: func(uint64)}" {
		t.Error(wake)
	}
	options := Options{Host: &HostOptions{DeviceCount: 3}, CUDA: &CUDAOptions{Contexts: []uintptr{1}}}
	if got := fmt.Sprint(options); got != "Options{Host: HostOptions{DeviceCount: 3}, CUDA: CUDAOptions{Contexts: [1]}}" {
		t.Error(got)
	}
}

func TestStringsOfObjects(t *testing.T) {
	i := open(t, Options{Name: "printing"})
	d, err := i.Device(0)
	must(t, err)
	info, err := d.Info()
	must(t, err)
	m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: 100, Name: "table"})
	must(t, err)
	p, err := NewPinned[int32](d, 10, MemoryOptions{})
	must(t, err)
	there, err := NewDeviceMemory[int16](d, 3, MemoryOptions{})
	must(t, err)
	b, err := NewPageable[float64](8)
	must(t, err)
	s, err := d.NewStream(StreamOptions{Name: "uploads"})
	must(t, err)
	e, err := d.NewEvent(EventOptions{})
	must(t, err)
	check := func(value any, expected string, arguments ...any) {
		t.Helper()
		if got := fmt.Sprint(value); got != fmt.Sprintf(expected, arguments...) {
			t.Errorf("%s instead of %s", got, fmt.Sprintf(expected, arguments...))
		}
	}
	check(i, `Instance{%v "printing", 2 devices}`, testBackend(t))
	check(d, `Device{0 %q, %d bytes}`, info.Name, info.TotalBytes)
	check(m, `Memory{KindDevice "table", 100 bytes at %v, device 0}`, m.At(0))
	check(p, `Pinned[int32]{KindPinned, 40 bytes at %v, device 0}`, p.At(0))
	check(there, `DeviceMemory[int16]{KindDevice, 6 bytes at %v, device 0}`, there.At(0))
	check(there.Span().Part(1, 3), `Span[int16]{2 values at %v}`, there.At(2))
	check(b, `Pageable[float64]{8 values at %v}`, b.At(0))
	check(s, `Stream{"uploads" device 0}`)
	check(e, `Event{device 0}`)
	for _, object := range []interface{ Close() error }{m, p, there, b, s, e, i} {
		must(t, object.Close())
	}
	check(i, "Instance{closed}")
	check(d, "Device{closed}")
	check(m, "Memory{closed}")
	check(p, "Pinned[int32]{closed}")
	check(b, "Pageable[float64]{closed}")
	check(s, "Stream{closed}")
	check(e, "Event{closed}")
	check((*Managed[int])(nil), "Managed[int](nil)")
	check((*HostAccess[int])(nil), "HostAccess[int](nil)")
	check((*DeviceMemory[int])(nil), "DeviceMemory[int](nil)")
	check((*Buffer[int])(nil), "Buffer[int](nil)")
	check(Span[int]{}, "Span[int]{0 values at 0x0}")
	check((*Physical)(nil), "Physical(nil)")
	check((*AddressRange)(nil), "AddressRange(nil)")
	check((*GrowableBuffer)(nil), "GrowableBuffer(nil)")
	check((*Group)(nil), "Group(nil)")
	check((*Registration)(nil), "Registration(nil)")
	check((*Instance)(nil), "Instance(nil)")
	check((*Device)(nil), "Device(nil)")
	check((*Memory)(nil), "Memory(nil)")
	check((*Pinned[int])(nil), "Pinned[int](nil)")
	check((*Pageable[int])(nil), "Pageable[int](nil)")
	check((*Stream)(nil), "Stream(nil)")
	check((*Event)(nil), "Event(nil)")
	check((*HostKernel)(nil), "HostKernel(nil)")
	check((*Pinned[int])(nil).Memory(), "Memory(nil)")
}

func TestStringsOfManagedMemoryAndRanges(t *testing.T) {
	d := managedDevice(t)
	i := d.Instance()
	check := func(value any, expected string, arguments ...any) {
		t.Helper()
		if got := fmt.Sprint(value); got != fmt.Sprintf(expected, arguments...) {
			t.Errorf("%s instead of %s", got, fmt.Sprintf(expected, arguments...))
		}
	}
	shared, err := NewManaged[int32](d, 10, MemoryOptions{Name: "shared"})
	must(t, err)
	access, err := shared.BeginHostAccess()
	must(t, err)
	check(shared, `Managed[int32]{KindManaged "shared", 40 bytes at %v, device 0}`, shared.At(0))
	check(access, `HostAccess[int32]{Memory{KindManaged "shared", 40 bytes at %v, device 0}}`, shared.At(0))
	must(t, access.Close())
	must(t, shared.Close())
	check(shared, "Managed[int32]{closed}")
	check(access, "HostAccess[int32]{closed}")

	needs(t, d, CapabilityVMMDevice)
	unit, _, err := d.PhysicalGranularity(PhysicalOptions{})
	must(t, err)
	physical, err := d.NewPhysical(PhysicalOptions{Size: unit, Name: "block"})
	must(t, err)
	r, err := i.ReserveRange(RangeOptions{Size: 4 * unit, Name: "array"})
	must(t, err)
	must(t, r.Map(0, physical))
	check(physical, `Physical{"block" %d bytes, LocationDevice 0}`, unit)
	check(r, `AddressRange{"array" %d bytes at %v, %d mapped}`, 4*unit, r.At(0), unit)
	must(t, r.Unmap(0, unit))
	must(t, physical.Close())
	must(t, r.Close())
	check(physical, "Physical{closed}")
	check(r, "AddressRange{closed}")

	buffer, err := d.NewGrowableBuffer(BufferOptions{Size: 100, Name: "weights"})
	must(t, err)
	check(buffer, `GrowableBuffer{"weights" 100 bytes at %v, LocationDevice 0}`, buffer.At(0))
	must(t, buffer.Sleep(SleepOptions{Content: ContentDrop}))
	check(buffer, `GrowableBuffer{"weights" 100 bytes at %v, LocationDevice 0, asleep}`, buffer.At(0))
	must(t, buffer.Close())
	check(buffer, "GrowableBuffer{closed}")

	group, err := i.NewGroup(GroupOptions{Name: "engine"})
	must(t, err)
	member, err := d.NewGrowableBuffer(BufferOptions{Size: 1, Name: "member", Group: group, Tag: "cache"})
	must(t, err)
	check(group, `Group{"engine" 1 buffers, 0 asleep}`)
	check(BufferOptions{Group: group, Tag: "cache"}, `BufferOptions{Group: Group{"engine" 1 buffers, 0 asleep}, Tag: "cache"}`)
	registration, err := member.NoteRegistration("card")
	must(t, err)
	check(registration, `Registration{"card" of %v}`, member)
	must(t, registration.Close())
	check(registration, "Registration{closed}")
	must(t, group.Sleep(SleepOptions{Content: ContentDrop}))
	check(group, `Group{"engine" 1 buffers, 1 asleep}`)
	must(t, member.Close())
	must(t, group.Close())
	check(group, "Group{closed}")
	info, err := member.Info()
	expect(t, err, ErrStaleHandle)
	check(info, "BufferInfo{}")
	check(BufferOptions{Size: 1, Flags: BufferMovable, Accesses: []ProcessorAccess{onDevice(1)}},
		"BufferOptions{Size: 1, Flags: BufferMovable, Accesses: [ProcessorAccess{Location: LocationDevice, LocationID: 1, Access: AccessReadWrite}]}")
}

func second[T any](_ T, err error) string { return err.Error() }

// The texts of the library have the names of this package.
func TestTextsHaveGoNames(t *testing.T) {
	for inC, inGo := range map[string]string{
		"":                             "",
		"gpumem":                       "gpumem",
		"use gpumem_memory_register()": "use Device.RegisterMemory",
		"Query gpumem_device_get_capability first":            "Query Device.Capability first",
		"require GPUMEM_MEMORY_READ_ONLY":                     "require MemoryReadOnly",
		"no GPUMEM_KIND_ value (é)":                           "no Kind value (é)",
		"close with GPUMEM_CLOSE_FORCE: 1":                    "close with Instance.CloseForce: 1",
		"set GPUMEM_HOST_DEVICES, gpumem_new()":               "set GPUMEM_HOST_DEVICES, gpumem_new()",
		"create it with GPUMEM_BUFFER_COPYABLE":               "create it with BufferCopyable",
		"at 0x1; call gpumem_managed_end_host_access() first": "at 0x1; end its View or close its HostAccess first",
	} {
		if got := translate(inC); got != inGo {
			t.Errorf("%q instead of %q", got, inGo)
		}
	}
	for _, name := range functions() {
		if functionName(name) == name {
			t.Errorf("%s has no name in Go", name)
		}
	}
	known := map[string]bool{}
	for _, name := range functions() {
		known[name] = true
	}
	for _, pair := range functionNames {
		if !known[pair.inC] {
			t.Errorf("%s is no function of the library", pair.inC)
		}
	}

	d := device(t)
	m := newMemory(t, d, KindDevice, 64)
	err := d.Instance().Close()
	if text := expect(t, err, ErrBusy).Error(); !strings.HasPrefix(text, "Instance.Close: ") ||
		!strings.Contains(text, "Instance.CloseForce") || !strings.HasSuffix(text, "(ErrBusy)") {
		t.Error(text)
	}
	_, err = d.NewMemory(MemoryOptions{Kind: KindRegistered, Size: 1})
	if text := err.Error(); !strings.Contains(text, "register it with Device.RegisterMemory") {
		t.Error(text)
	}
	for _, c := range []struct{ expected, got string }{
		{"gpumem.NewPinned: the device handle is nil (ErrInvalidArgument)", second(NewPinned[int32](nil, 1, MemoryOptions{}))},
		{"gpumem.CopyToSlice: the instance handle is nil (ErrInvalidArgument)", CopyToSlice(nil, make([]byte, 1), m.At(0)).Error()},
		{"Device.NewMemory: the kind is KindUnknown; it must be KindDevice, KindPinned or KindManaged (ErrInvalidArgument)",
			second(d.NewMemory(MemoryOptions{Size: 1}))},
		{"gpumem.Open: the backend is 9, which is not a Backend value (ErrInvalidArgument)", second(Open(Options{Backend: 9}))},
	} {
		if c.got != c.expected {
			t.Errorf("%q instead of %q", c.got, c.expected)
		}
	}
	list, err := Statuses()
	must(t, err)
	for _, status := range list {
		info, err := status.Info()
		must(t, err)
		if strings.Contains(info.Cause+info.Remedy, "gpumem_") {
			t.Error(info)
		}
	}
	must(t, m.Close())
}

// A method of nil fails, also if it is the first call of the program.
func TestNilIsRefusedFirst(t *testing.T) {
	if !inChild() {
		output, err := child(t, "GPUMEM_GO_NIL=1")
		if err != nil || !strings.Contains(output, "went on") {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	_, memoryErr := (*Memory)(nil).Info()
	_, deviceErr := (*Device)(nil).Info()
	_, instanceErr := (*Instance)(nil).Report()
	for _, err := range []error{memoryErr, deviceErr, instanceErr, (*Stream)(nil).Synchronize(), (*Event)(nil).Record(nil)} {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Error(err)
		}
	}
	fmt.Println("went on")
}
