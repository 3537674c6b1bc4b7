// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// The runner of tests/bindings/vectors.txt. Calls that the idiomatic layer refuses by itself, such as a call by pointer
// with the address of an object, use raw addresses.

var vectorNames = map[string]uint64{
	"pageable": uint64(KindPageable), "pinned": uint64(KindPinned), "registered": uint64(KindRegistered),
	"device": uint64(KindDevice), "managed": uint64(KindManaged), "virtual": uint64(KindVirtual),
	"imported": uint64(KindImported), "pool": uint64(KindPool), "shareable": uint64(MemoryShareable), "interprocess": uint64(EventInterprocess),
	"neighbours": uint64(ExportNeighbours), "memory": uint64(ShareTypeMemory), "event": uint64(ShareTypeEvent),
	"other_process": uint64(PeerOtherProcess), "same_process": uint64(PeerSameProcess), "other_user": uint64(PeerOtherUser),
	"other_device": uint64(PeerOtherDevice), "container": uint64(PeerContainer),
	"portable": uint64(MemoryPortable), "mapped": uint64(MemoryMapped), "write_combined": uint64(MemoryWriteCombined),
	"read_only": uint64(MemoryReadOnly), "iomemory": uint64(MemoryIOMemory), "page_locked": uint64(MemoryPageLocked),
	"numa_node": uint64(MemoryNUMANode), "attach_host": uint64(MemoryAttachHost),
	"oversubscribe":  uint64(MemoryOversubscribe),
	"disable_timing": uint64(EventDisableTiming), "blocking_sync": uint64(EventBlockingSync),
	"geq": uint64(WaitGEQ), "eq": uint64(WaitEQ), "and": uint64(WaitAND), "nor": uint64(WaitNOR),
	"none": uint64(AccessNone), "read": uint64(AccessRead), "readwrite": uint64(AccessReadWrite),
	"unknown": uint64(AccessUnknown),
	"check":   uint64(closeCheck), "force": uint64(closeForce),
	"movable": uint64(BufferMovable), "copyable": uint64(BufferCopyable), "awake": uint64(BufferStateAwake),
	"internal_dependencies": uint64(PoolAllowInternalDependencies), "debug": uint64(PoolDebug),
	"from_driver": uint64(PoolFromDriver),
	"asleep":      uint64(BufferStateAsleep), "failed": uint64(BufferStateFailed),
	"any": uint64(BackendAny), "cuda": uint64(BackendCUDA), "host": uint64(BackendHost),
}

// vectorContents are the values of the option content, some of which are kinds of memory elsewhere.
var vectorContents = map[string]Content{"pinned": ContentPinned, "pageable": ContentPageable, "zero": ContentZero,
	"drop": ContentDrop, "file": ContentFile}

// vectorWays are the values of the option way, of which any is a backend elsewhere, and those of handle_types.
var vectorWays, vectorHandleTypes = map[string]uint64{"any": uint64(ShareWayAny), "legacy": uint64(ShareWayLegacy),
	"posix_fd": uint64(ShareWayPOSIXFD), "fabric": uint64(ShareWayFabric), "dma_buf": uint64(ShareWayDMABuf)},
	map[string]uint64{"posix_fd": uint64(HandleTypePOSIXFD), "fabric": uint64(HandleTypeFabric)}

type vectorStep struct {
	line, result, operation, status string
	arguments                       []string
	options                         map[string]string
}

func parseStep(line string) vectorStep {
	step := vectorStep{line: line, status: "SUCCESS", options: map[string]string{}}
	words := strings.Fields(line)
	if len(words) > 2 && words[1] == "=" {
		step.result, words = words[0], words[2:]
	}
	if n := len(words); n > 2 && words[n-2] == "->" {
		step.status, words = words[n-1], words[:n-2]
	}
	step.operation = words[0]
	for _, word := range words[1:] {
		if name, value, found := strings.Cut(word, "="); found {
			step.options[name] = value
		} else {
			step.arguments = append(step.arguments, word)
		}
	}
	return step
}

type vectorCase struct {
	*testing.T
	objects map[string]any
	opened  []*Instance
	step    vectorStep
}

func (c *vectorCase) number(text string) uint64 {
	if value, err := strconv.ParseUint(text, 0, 64); err == nil {
		return value
	}
	if value, err := strconv.ParseInt(text, 0, 64); err == nil {
		return uint64(value)
	}
	value, known := vectorNames[text]
	if !known {
		c.Fatalf("%s: %q is neither a number nor a name", c.step.line, text)
	}
	return value
}

// named is a value of its own names, or a number; 0 if the text is empty.
func (c *vectorCase) named(names map[string]uint64, text string) (sum uint64) {
	for _, part := range strings.Split(text, ",") {
		if value, known := names[part]; known {
			sum |= value
		} else if part != "" {
			sum |= c.number(part)
		}
	}
	return sum
}

// option is the sum of the values of an option, or 0 without it.
func (c *vectorCase) option(name string) (sum uint64) {
	for _, part := range strings.Split(c.step.options[name], ",") {
		if part != "" {
			sum |= c.number(part)
		}
	}
	return sum
}

func (c *vectorCase) argument(index int) string {
	if index >= len(c.step.arguments) {
		c.Fatalf("%s: an argument is missing", c.step.line)
	}
	return c.step.arguments[index]
}

func object[T any](c *vectorCase, name string) T {
	found, ok := c.objects[name].(T)
	if !ok {
		c.Fatalf("%s: no such object: %s", c.step.line, name)
	}
	return found
}

func at[T any](c *vectorCase, index int) T { return object[T](c, c.argument(index)) }

// address is the address that an argument names.
func (c *vectorCase) address(index int) Address { return c.addressOf(c.argument(index)) }

func (c *vectorCase) addressOf(text string) Address {
	if text == "null" {
		return RawAddress(0)
	}
	name, plus, _ := strings.Cut(text, "+")
	offset := uint64(0)
	if plus != "" {
		offset = c.number(plus)
	}
	switch found := c.objects[name].(type) {
	case *Pageable[byte]:
		return found.At(offset)
	case *Memory:
		return found.At(offset)
	case *GrowableBuffer:
		return found.At(offset)
	case Address:
		return found.Add(offset)
	}
	c.Fatalf("%s: no such memory: %s", c.step.line, name)
	return Address{}
}

func (c *vectorCase) raw(index int) Address { return RawAddress(c.address(index).Number()) }

// copier has the copies and fills: of an instance they return when they are done, of a stream they enqueue.
type copier interface {
	CopyWith(destination, source Address, size uint64, options CopyOptions) error
	Copy2D(destination, source Address, rectangle Rectangle, options CopyOptions) error
	CopyRegions(regions []Region) error
	Fill(destination Address, size uint64, value uint32, valueSize uint32) error
	Fill2D(destination Address, rectangle Rectangle, value uint32, valueSize uint32) error
}

// copier is the stream of the step, or its first argument.
func (c *vectorCase) copier() copier {
	if name, given := c.step.options["stream"]; given {
		return object[*Stream](c, name)
	}
	return at[copier](c, 0)
}

// stream is the stream of the step, or nil.
func (c *vectorCase) stream() *Stream {
	if name, given := c.step.options["stream"]; given {
		return object[*Stream](c, name)
	}
	return nil
}

func (c *vectorCase) copyOptions() CopyOptions {
	return CopyOptions{Direction(c.option("direction")), SourceOrder(c.option("source_order"))}
}

// operand is a side of a region. Only a name after "@" reaches the library as a memory and an offset.
func (c *vectorCase) operand(index int, rowPitch, slicePitch string) Operand {
	operand := Operand{RowPitch: c.option(rowPitch), SlicePitch: c.option(slicePitch)}
	if text := c.argument(index); strings.HasPrefix(text, "@") {
		operand.Address = c.addressOf(text[1:])
	} else {
		operand.Address = c.raw(index)
	}
	return operand
}

// copyRegions copies regions that are a step apart on both sides, and compares which one is reported.
func (c *vectorCase) copyRegions() error {
	region := Region{
		Destination: c.operand(1, "dpitch", "dslice"), Source: c.operand(2, "spitch", "sslice"),
		Width: c.option("width"), Height: c.option("height"), Depth: c.option("depth"), CopyOptions: c.copyOptions(),
	}
	count := uint64(1)
	if _, given := c.step.options["count"]; given {
		count = c.option("count")
	}
	var regions []Region
	for ; count > 0; count-- {
		regions = append(regions, region)
		for _, side := range []*Operand{&region.Destination, &region.Source} {
			if side.Address != RawAddress(0) {
				side.Address = side.Address.Add(c.option("step"))
			}
		}
	}
	err := c.copier().CopyRegions(regions)
	failed := ""
	var detail *RegionError
	if errors.As(err, &detail) {
		failed = strconv.Itoa(detail.Index)
	}
	if failed != c.step.options["failed"] {
		c.Errorf("%s: the region reported is %q: %v", c.step.line, failed, err)
	}
	return err
}

func keep[T any](c *vectorCase, made T, err error) error {
	if err == nil {
		c.objects[c.step.result] = made
	}
	return err
}

// noteOf turns "not complete" into the note that the C interface gives.
func noteOf(complete bool, err error) error {
	if err == nil && !complete {
		return NotReady
	}
	return err
}

func (c *vectorCase) bytes(index int, count int) []byte {
	return unsafe.Slice((*byte)(pointerTo(c.raw(index).Number())), count)
}

// content is the option of that name.
func (c *vectorCase) content() Content {
	text := c.step.options["content"]
	if known, ok := vectorContents[text]; ok || text == "" {
		return known
	}
	return Content(c.number(text))
}

// vectorFile is a temporary file, and what the calls get.
type vectorFile struct{ file, given *os.File }

func (c *vectorCase) newFile() error {
	content, err := hex.DecodeString(c.argument(0))
	if err != nil {
		return err
	}
	made := vectorFile{file: newFile(c, content)}
	made.given = made.file
	if _, onlyRead := c.step.options["access"]; onlyRead {
		if made.given, err = os.Open(made.file.Name()); err != nil {
			return err
		}
		c.Cleanup(func() { made.given.Close() })
	}
	return keep(c, made, nil)
}

// copyFile copies between memory and a file, and compares how much was copied.
func (c *vectorCase) copyFile() error {
	i, file, offset, size := at[*Instance](c, 0), at[vectorFile](c, 2).given, c.option("offset"), c.option("size")
	var options FileOptions
	if _, given := c.step.options["cancel"]; given {
		options.Progress = func(done, total uint64) bool { return false }
	}
	var copied FileCopied
	var err error
	if c.step.operation == "read_file" {
		copied, err = i.ReadFileWith(c.raw(1), file, offset, size, options)
	} else {
		copied, err = i.WriteFileWith(file, offset, c.raw(1), size, options)
	}
	c.same(map[string]uint64{"copied": copied.Size})
	return err
}

// sameText compares a text with an option, if that is given.
func (c *vectorCase) sameText(option, got string) {
	if expected, given := c.step.options[option]; given && expected != got {
		c.Errorf("%s: the %s is %q", c.step.line, option, got)
	}
}

// same compares those options of the step that are given.
func (c *vectorCase) same(got map[string]uint64) {
	for name, value := range got {
		if _, given := c.step.options[name]; given && c.option(name) != value {
			c.Errorf("%s: %s is %d", c.step.line, name, value)
		}
	}
}

func (c *vectorCase) run() error {
	step := c.step
	switch strings.TrimSuffix(step.operation, "_async") {
	case "open":
		options := Options{Backend: testBackend(c), PinBudget: c.option("pin_budget")}
		if _, given := step.options["backend"]; given {
			options.Backend = Backend(c.option("backend"))
		}
		instance, err := Open(options)
		if err == nil {
			c.opened = append(c.opened, instance)
		}
		return keep(c, instance, err)
	case "close":
		_, err := at[*Instance](c, 0).close("Instance.Close", closeMode(c.option("mode")))
		return err
	case "device":
		found, err := at[*Instance](c, 0).Device(int(c.number(c.argument(1))))
		return keep(c, found, err)
	case "create":
		made, err := at[*Device](c, 0).NewMemory(MemoryOptions{
			Kind: Kind(c.option("kind")), Size: c.option("size"), Alignment: c.option("alignment"),
			Require: MemoryFlags(c.option("require")), Prefer: MemoryFlags(c.option("prefer")),
			NUMANode: int32(c.number("0" + step.options["numa_node"])), Name: step.options["name"],
		})
		return keep(c, made, err)
	case "register":
		made, err := at[*Device](c, 0).RegisterMemory(c.address(1), c.option("size"), RegisterOptions{
			Require: MemoryFlags(c.option("require")), Prefer: MemoryFlags(c.option("prefer")), Name: step.options["name"],
		})
		return keep(c, made, err)
	case "buffer":
		made, err := NewPageable[byte](int(c.number(c.argument(0))))
		return keep(c, made, err)
	case "malloc":
		made, err := at[*Device](c, 0).Malloc(Kind(c.option("kind")), c.option("size"))
		return keep(c, made, err)
	case "free":
		return at[*Instance](c, 0).Free(c.raw(1))
	case "register_pointer":
		return at[*Device](c, 0).Register(c.raw(1), c.option("size"), MemoryFlags(c.option("require")))
	case "unregister_pointer":
		return at[*Instance](c, 0).Unregister(c.raw(1))
	case "stream":
		made, err := at[*Device](c, 0).NewStream(StreamOptions{Priority: int32(c.option("priority"))})
		return keep(c, made, err)
	case "event":
		made, err := at[*Device](c, 0).NewEvent(EventOptions{Flags: EventFlags(c.option("flags"))})
		return keep(c, made, err)
	case "group":
		made, err := at[*Instance](c, 0).NewGroup(GroupOptions{Name: step.options["name"]})
		return keep(c, made, err)
	case "pool":
		made, err := at[*Device](c, 0).NewPool(PoolOptions{
			Kind: Kind(c.option("kind")), Flags: PoolFlags(c.option("flags")), Limit: c.option("limit"),
			ReleaseThreshold: c.option("threshold"), InitialSize: c.option("initial"), Name: step.options["name"],
			HandleTypes: HandleTypes(c.named(vectorHandleTypes, step.options["handle_types"])),
		})
		return keep(c, made, err)
	case "alloc":
		size := c.number(c.argument(1))
		if _, given := step.options["alignment"]; !given {
			made, err := at[*Pool](c, 0).Malloc(size, c.stream())
			return keep(c, made, err)
		}
		made, err := at[*Pool](c, 0).AllocAligned(size, c.option("alignment"), c.stream())
		if err != nil {
			return err
		}
		made.disown() // The step that frees it knows only the address.
		return keep(c, RawAddress(made.At(0).Number()), nil)
	case "free_block":
		return at[*Pool](c, 0).Free(c.raw(1), c.stream())
	case "free_pointer":
		return at[*Instance](c, 0).FreeBlock(c.raw(1), c.stream())
	case "record_use":
		block := &PoolBlock{pool: at[*Pool](c, 0)}
		block.address = c.raw(1).Number()
		return block.RecordUse(c.stream())
	case "trim":
		_, err := at[*Pool](c, 0).Trim(c.option("keep"))
		return err
	case "set_limit":
		return at[*Pool](c, 0).SetLimit(c.number(c.argument(1)))
	case "set_threshold":
		return at[*Pool](c, 0).SetReleaseThreshold(c.number(c.argument(1)))
	case "pool_info":
		info, err := at[*Pool](c, 0).Info()
		if err != nil {
			return err
		}
		c.sameText("name", info.Name)
		c.same(map[string]uint64{"kind": uint64(info.Kind), "limit": info.Limit, "threshold": info.ReleaseThreshold, "live": info.LiveCount,
			"captures": info.CaptureCount})
		return nil
	case "capturing":
		return at[*Stream](c, 0).HostSetCapturing(c.number(c.argument(1)) != 0)
	case "capture":
		number, err := at[*Stream](c, 0).CaptureID()
		is := uint64(0)
		if number != 0 {
			is = 1
		}
		c.same(map[string]uint64{"is": is})
		return keep(c, number, err)
	case "release_capture":
		return at[*Pool](c, 0).ReleaseCapture(at[uint64](c, 1), c.stream())
	case "file":
		return c.newFile()
	case "expect_file":
		content, err := hex.DecodeString(c.argument(1))
		if got := fileContent(c, at[vectorFile](c, 0).file); !bytes.Equal(got, content) {
			return fmt.Errorf("the file has %x", got)
		}
		return err
	case "read_file", "write_file":
		return c.copyFile()
	case "block_info":
		info, err := at[*Instance](c, 0).BlockInfo(c.raw(1))
		if err != nil {
			return err
		}
		c.same(map[string]uint64{"offset": c.raw(1).Number() - info.Base, "requested": info.RequestedSize})
		return nil
	case "growable":
		options := BufferOptions{
			Size: c.option("size"), Reserve: c.option("reserve"), Flags: BufferFlags(c.option("flags")),
			Name: step.options["name"], Tag: step.options["tag"],
			HandleTypes: HandleTypes(c.named(vectorHandleTypes, step.options["handle_types"])),
		}
		if name, given := step.options["group"]; given {
			options.Group = object[*Group](c, name)
		}
		made, err := at[*Device](c, 0).NewGrowableBuffer(options)
		return keep(c, made, err)
	case "resize":
		return at[*GrowableBuffer](c, 0).Resize(c.number(c.argument(1)))
	case "set_capacity":
		return at[*GrowableBuffer](c, 0).SetCapacity(c.number(c.argument(1)))
	case "note":
		made, err := at[*GrowableBuffer](c, 0).NoteRegistration(c.argument(1))
		return keep(c, made, err)
	case "forget":
		// Another one each time, because Close does nothing the second time.
		return (&Registration{buffer: at[*GrowableBuffer](c, 0), number: at[*Registration](c, 1).number}).Close()
	case "sleep":
		return at[interface{ Sleep(SleepOptions) error }](c, 0).Sleep(SleepOptions{
			Content: c.content(), Directory: step.options["directory"], Tag: step.options["tag"],
		})
	case "prepare":
		return at[interface{ Prepare(PrepareOptions) error }](c, 0).Prepare(PrepareOptions{
			Content: c.content(), Directory: step.options["directory"], Tag: step.options["tag"],
		})
	case "wake":
		return at[interface{ Wake(WakeOptions) error }](c, 0).Wake(WakeOptions{Keep: c.option("keep"), Tag: step.options["tag"]})
	case "buffer_info":
		info, err := at[*GrowableBuffer](c, 0).Info()
		c.same(map[string]uint64{"state": uint64(info.State), "size": info.Size, "generation": info.Generation,
			"stored": info.StoredSize, "registrations": info.Registrations})
		c.sameText("name", info.Name)
		c.sameText("tag", info.Tag)
		return err
	case "group_info":
		info, err := at[*Group](c, 0).Info(step.options["tag"])
		c.same(map[string]uint64{"buffers": info.BufferCount, "awake": info.AwakeCount, "asleep": info.AsleepCount,
			"size": info.Size, "stored": info.StoredSize})
		return err
	case "destroy":
		return at[interface{ Close() error }](c, 0).Close()
	case "record":
		return at[*Event](c, 0).Record(at[*Stream](c, 1))
	case "wait":
		return at[*Stream](c, 0).WaitEvent(at[*Event](c, 1))
	case "query":
		return noteOf(at[interface{ Query() (bool, error) }](c, 0).Query())
	case "synchronize":
		if _, given := step.options["timeout"]; !given {
			return at[interface{ Synchronize() error }](c, 0).Synchronize()
		}
		limited := at[interface {
			SynchronizeFor(time.Duration) (bool, error)
		}](c, 0)
		return noteOf(limited.SynchronizeFor(time.Duration(c.option("timeout"))))
	case "elapsed":
		_, err := at[*Event](c, 0).Elapsed(at[*Event](c, 1))
		return err
	case "copy":
		return c.copier().CopyWith(c.address(1), c.address(2), c.option("size"), c.copyOptions())
	case "copy_2d":
		rectangle := Rectangle{c.option("width"), c.option("height"), c.option("dpitch"), c.option("spitch")}
		return c.copier().Copy2D(c.address(1), c.address(2), rectangle, c.copyOptions())
	case "copy_regions":
		return c.copyRegions()
	case "fill":
		return c.copier().Fill(c.address(1), c.option("size"), uint32(c.option("value")), uint32(c.option("width")))
	case "fill_2d":
		rectangle := Rectangle{Width: c.option("size_x"), Height: c.option("size_y"), DestinationPitch: c.option("pitch")}
		return c.copier().Fill2D(c.address(1), rectangle, uint32(c.option("value")), uint32(c.option("width")))
	case "write_value":
		return at[*Stream](c, 0).WriteValue(c.address(1), c.option("value"), uint32(c.option("size")))
	case "wait_value":
		return at[*Stream](c, 0).WaitValue(c.address(1), c.option("value"), uint32(c.option("size")),
			WaitCondition(c.option("condition")))
	case "set":
		content, err := hex.DecodeString(c.argument(1))
		copy(c.bytes(0, len(content)), content)
		return err
	case "expect":
		content, err := hex.DecodeString(c.argument(1))
		if got := c.bytes(0, len(content)); !bytes.Equal(got, content) {
			return fmt.Errorf("the memory has %x", got)
		}
		return err
	case "info":
		info, err := at[*Memory](c, 0).Info()
		c.same(map[string]uint64{"kind": uint64(info.Kind), "size": info.Size, "alignment": info.Alignment})
		c.sameText("name", info.Name)
		if granted := c.option("granted"); uint64(info.GrantedFlags)&granted != granted {
			c.Errorf("%s: granted are %#x", step.line, info.GrantedFlags)
		}
		return err
	case "pointer":
		address := c.raw(1)
		info, err := at[*Instance](c, 0).Pointer(address)
		c.same(map[string]uint64{"kind": uint64(info.Kind), "size": info.Size, "offset": address.Number() - info.Base})
		return err
	case "access":
		location, id := LocationHost, -1
		if _, given := step.options["device"]; given {
			location, id = LocationDevice, int(c.option("device"))
		}
		access, err := at[*Instance](c, 0).PointerAccess(c.address(1), location, id)
		if err == nil {
			c.same(map[string]uint64{"is": uint64(access)})
		}
		return err
	case "count":
		stats, err := at[*Instance](c, 0).Stats()
		if err != nil {
			return err
		}
		counts := map[string]uint64{
			"live": stats.LiveCount, "bytes": stats.LiveBytes, "reserved": stats.ReservedBytes,
			"streams": stats.Streams, "events": stats.Events,
		}
		for name := range step.options {
			if _, known := counts[name]; known {
				continue
			}
			kind, err := at[*Instance](c, 0).KindStats(Kind(c.number(name)))
			if err != nil {
				return err
			}
			counts[name] = kind.LiveCount
		}
		c.same(counts)
		return nil
	case "export":
		made, err := at[*Instance](c, 0).Export(c.raw(1), ExportOptions{
			Way: ShareWay(c.named(vectorWays, step.options["way"])), Access: Access(c.option("access")),
			Flags: ExportFlags(c.option("flags")),
		})
		return keep(c, &made, err)
	case "export_event":
		made, err := at[*Event](c, 0).Export()
		return keep(c, &made, err)
	case "handle":
		var made ShareHandle
		return keep(c, &made, made.UnmarshalBinary(make([]byte, handleSize)))
	case "damage":
		at[*ShareHandle](c, 0).bytes()[c.number(c.argument(1))] ^= 0xff
		return nil
	case "same":
		if !at[*ShareHandle](c, 0).Equal(*at[*ShareHandle](c, 1)) {
			return errors.New("the handles differ")
		}
		return nil
	case "share_info":
		info, err := at[*ShareHandle](c, 0).Info()
		if way, given := step.options["way"]; given && c.named(vectorWays, way) != uint64(info.Way) {
			c.Errorf("%s: way is %v", step.line, info.Way)
		}
		c.same(map[string]uint64{"type": uint64(info.Type), "access": uint64(info.Access), "size": info.Size,
			"offset": info.Offset, "descriptors": uint64(info.FileCount)})
		return err
	case "descriptors":
		files, err := at[*Instance](c, 0).ExportedFiles(*at[*ShareHandle](c, 1))
		for _, file := range files {
			must(c, file.Close())
		}
		if err == nil && uint64(len(files)) != c.number(c.argument(2)) {
			return fmt.Errorf("there are %d descriptors", len(files))
		}
		return err
	case "revoke":
		return at[*Instance](c, 0).Revoke(*at[*ShareHandle](c, 1))
	case "import":
		made, err := at[*Instance](c, 0).Import(*at[*ShareHandle](c, 1), ImportOptions{Access: Access(c.option("access"))})
		return keep(c, made, err)
	case "import_event":
		made, err := at[*Device](c, 0).ImportEvent(*at[*ShareHandle](c, 1))
		return keep(c, made, err)
	case "way":
		info, err := at[*Instance](c, 0).ShareWay(c.raw(1), ShareWay(c.named(vectorWays, c.argument(2))),
			SharePeer(c.number(c.argument(3))))
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(info.Status.Name(), "GPUMEM_"), "ERROR_")
		if expected, given := step.options["is"]; given && expected != name {
			c.Errorf("%s: it is %s: %s", step.line, name, info.Message)
		}
		c.same(map[string]uint64{"descriptors": uint64(info.FileCount)})
		return nil
	case "cache":
		return at[*Instance](c, 0).SetImportCache(ImportCache{time.Duration(c.option("idle")), c.option("bytes")})
	case "flush_cache":
		return at[*Instance](c, 0).FlushImportCache()
	case "capability":
		_, err := at[*Device](c, 0).Capability(Capability(c.number(c.argument(1))))
		return err
	case "peer":
		first, second := at[*Device](c, 0), at[*Device](c, 1)
		switch c.argument(2) {
		case "query":
			_, err := first.CanAccessPeer(second)
			return err
		case "enable":
			return first.EnablePeerAccess(second)
		case "disable":
			return first.DisablePeerAccess(second)
		}
	case "status_name":
		if got := Status(int32(c.number(c.argument(0)))).Name(); got != c.argument(1) {
			return fmt.Errorf("the name is %s", got)
		}
		return nil
	}
	c.Fatalf("no such operation: %s", step.line)
	return nil
}

func (c *vectorCase) check(line string) {
	c.step = parseStep(line)
	err := c.run()
	got := Success
	var status Status
	if errors.As(err, &status) {
		got = status
	} else if err != nil {
		c.Fatalf("%s: %v", line, err)
	}
	if name := got.Name(); name != "GPUMEM_"+c.step.status && name != "GPUMEM_ERROR_"+c.step.status {
		c.Fatalf("%s: got %s: %v", line, name, err)
	}
}

// end closes everything that is still open.
func (c *vectorCase) end() {
	for _, instance := range c.opened {
		if _, err := instance.CloseForce(); err != nil {
			c.Errorf("closing by force: %v", err)
		}
	}
	var buffers []*Pageable[byte]
	for _, found := range c.objects {
		if buffer, ok := found.(*Pageable[byte]); ok {
			buffers = append(buffers, buffer)
		} else if closer, ok := found.(interface{ Close() error }); ok && closer.Close() != nil {
			c.Errorf("closing once more: %v", closer.Close())
		}
	}
	for _, buffer := range buffers {
		must(c, buffer.Close())
	}
}

func TestVectors(t *testing.T) {
	path := os.Getenv("GPUMEM_VECTORS")
	if path == "" {
		t.Skip("GPUMEM_VECTORS names no file")
	}
	content, err := os.ReadFile(path)
	must(t, err)
	cases := strings.Split("\n"+string(content), "\ncase ")[1:]
	if len(cases) == 0 {
		t.Fatal("the file has no case")
	}
	for _, text := range cases {
		name, steps, _ := strings.Cut(text, "\n")
		t.Run(strings.TrimSpace(name), func(t *testing.T) {
			c := &vectorCase{T: t, objects: map[string]any{}}
			defer c.end()
			for _, line := range strings.Split(steps, "\n") {
				if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				if !strings.HasPrefix(line, "only ") {
					c.check(line)
				} else if vectorNames[strings.TrimPrefix(line, "only ")] != uint64(testBackend(c)) {
					break
				}
			}
		})
	}
}

func TestVectorNumbersReachTheirLimits(t *testing.T) {
	c := &vectorCase{T: t}
	if c.number("0xffffffffffffffff") != math.MaxUint64 || c.number("-5") != math.MaxUint64-4 {
		t.Error("a number was read wrong")
	}
}
