// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"encoding/base64"
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// ShareHandle is memory or an event that other processes can import, as bytes for any channel. Whoever has them, and runs
// as the same user, may import it: they are a secret, which printing leaves out, also where the handle is a field of another
// struct. Only the methods that begin with Marshal give them, and so do encodings, which call these. Compare with Equal.
type ShareHandle struct {
	secret func() *[handleSize]byte // Not a pointer, which fmt may follow. The bytes never change; nil stands for zeros.
}

const handleSize = 256

var noSecret [handleSize]byte

// bytes returns the bytes, for reading.
func (h ShareHandle) bytes() *[handleSize]byte {
	if h.secret == nil {
		return &noSecret
	}
	return h.secret()
}

// native is the handle for C, which reads it during the call.
func (h ShareHandle) native() *C.uint8_t { return (*C.uint8_t)(&h.bytes()[0]) }

// newHandle makes a handle that a call writes.
func newHandle(call func(bytes *C.uint8_t) error) (ShareHandle, error) {
	bytes := new([handleSize]byte)
	if err := call((*C.uint8_t)(&bytes[0])); err != nil {
		return ShareHandle{}, err
	}
	return ShareHandle{func() *[handleSize]byte { return bytes }}, nil
}

// Equal reports whether the handles have the same bytes, as those of one export have. A handle that was received or fetched is
// not equal to the one that was sent or published: it says over which connection it came.
func (h ShareHandle) Equal(other ShareHandle) bool { return *h.bytes() == *other.bytes() }

// MarshalBinary returns the bytes, for channels such as encoding/gob.
func (h ShareHandle) MarshalBinary() ([]byte, error) {
	return append([]byte(nil), h.bytes()[:]...), nil
}

// UnmarshalBinary takes the bytes of MarshalBinary. [ShareHandle.Info] reports whether they are whole.
func (h *ShareHandle) UnmarshalBinary(bytes []byte) error {
	if len(bytes) != handleSize {
		return refusal(ErrInvalidArgument, "ShareHandle.UnmarshalBinary", "a handle has %d bytes, not %d", handleSize, len(bytes))
	}
	own := new([handleSize]byte)
	copy(own[:], bytes)
	h.secret = func() *[handleSize]byte { return own }
	return nil
}

// MarshalText returns the bytes in base 64, for channels such as encoding/json or an environment variable.
func (h ShareHandle) MarshalText() ([]byte, error) {
	encoded := make([]byte, base64.RawURLEncoding.EncodedLen(handleSize))
	base64.RawURLEncoding.Encode(encoded, h.bytes()[:])
	return encoded, nil
}

// UnmarshalText takes the text of MarshalText.
func (h *ShareHandle) UnmarshalText(encoded []byte) error {
	bytes, err := base64.RawURLEncoding.DecodeString(string(encoded))
	if err != nil {
		return refusal(ErrInvalidArgument, "ShareHandle.UnmarshalText", "the text is no handle: %v", err)
	}
	if len(bytes) != handleSize {
		return refusal(ErrInvalidArgument, "ShareHandle.UnmarshalText", "the text of a handle has %d characters, not %d",
			base64.RawURLEncoding.EncodedLen(handleSize), len(encoded))
	}
	return h.UnmarshalBinary(bytes)
}

// Info reads the handle. It needs no instance, and asks nobody.
func (h ShareHandle) Info() (ShareInfo, error) {
	if err := useLibrary(); err != nil {
		return ShareInfo{}, err
	}
	info := nativeShareInfo{structSize: unsafe.Sizeof(nativeShareInfo{})}
	err := failure(C.gpumem_go_share_get_info(h.native(), inC(&info)))
	return info.public(), err
}

// Export makes memory importable for other processes of this user. Exporting it again gives the same handle and costs
// little. By ShareWayLegacy an allocation is shared as a whole; by descriptors, all blocks that are mapped one behind the
// other around the address, as they lie; of a [PoolBlock], the whole pieces of the pool that it lies in. The export ends
// when the memory is closed or unmapped, and with [Instance.Revoke].
//
// A PoolBlock needs [ExportNeighbours], because importers see what else is in these pieces, now or later. Exports of blocks
// that lie in the same pieces, with the same access, share one import. Free a block only after its importers have stopped
// using it: the pool then hands out the same bytes again.
func (i *Instance) Export(address Address, options ExportOptions) (ShareHandle, error) {
	if err := address.enter("Instance.Export", 1); err != nil {
		return ShareHandle{}, err
	}
	defer address.leave()
	desc := options.native()
	// Other processes may use the memory unseen.
	number := address.Number()
	defer runtime.KeepAlive(i)
	return newHandle(func(bytes *C.uint8_t) error {
		return failure(C.gpumem_go_share_export(i.id(), C.uint64_t(number), inC(&desc), bytes))
	})
}

// ExportedFiles returns the descriptors of an export of this instance as files, for a transport of the caller's own. The
// caller closes them. They keep the memory alive, also after this process has ended. By ShareWayLegacy the cuda backend has
// none.
func (i *Instance) ExportedFiles(handle ShareHandle) ([]*os.File, error) {
	defer runtime.KeepAlive(i)
	asked := C.gpumem_go_share_get_fds(i.id(), handle.native(), nil, 0)
	if err := failure(asked); err != nil || asked.value == 0 {
		return nil, err
	}
	descriptors := make([]int32, int(asked.value))
	got := C.gpumem_go_share_get_fds(i.id(), handle.native(), (*C.uint8_t)(unsafe.Pointer(&descriptors[0])),
		C.uint32_t(len(descriptors)))
	if err := failure(got); err != nil {
		return nil, err
	}
	files := make([]*os.File, int(got.value))
	for index := range files {
		files[index] = os.NewFile(uintptr(descriptors[index]), "gpumem.ShareHandle")
	}
	return files, nil
}

// withDescriptors calls a function with the descriptors of files, none of which is closed meanwhile.
func withDescriptors(function string, files []*os.File, use func(first *C.uint8_t, count C.uint32_t)) error {
	descriptors := make([]int32, 0, len(files))
	var next func() error
	next = func() error {
		if len(descriptors) == len(files) {
			var first *C.uint8_t
			if len(descriptors) > 0 {
				first = (*C.uint8_t)(unsafe.Pointer(&descriptors[0]))
			}
			use(first, C.uint32_t(len(descriptors)))
			return nil
		}
		// Not file.Fd(), which would make a non-blocking file blocking.
		connection, err := files[len(descriptors)].SyscallConn()
		if err != nil {
			return refusal(ErrInvalidArgument, function, "a file is nil")
		}
		var inner error
		err = connection.Control(func(descriptor uintptr) {
			descriptors = append(descriptors, int32(descriptor))
			inner = next()
		})
		if err != nil {
			return refusal(ErrInvalidArgument, function, "a file cannot be used: %v", err)
		}
		return inner
	}
	return next()
}

// withDescriptor calls a function with the descriptor of a file, which is not closed meanwhile.
func withDescriptor(function string, file *os.File, use func(descriptor uintptr)) error {
	// Not file.Fd(), which would make a non-blocking file blocking.
	connection, err := file.SyscallConn()
	if err != nil {
		return refusal(ErrInvalidArgument, function, "the file is nil")
	}
	if err := connection.Control(use); err != nil {
		return refusal(ErrInvalidArgument, function, "the file cannot be used: %v", err)
	}
	return nil
}

// checkLimits refuses durations that C cannot express.
func checkLimits(function string, limits ...time.Duration) error {
	for _, limit := range limits {
		if limit < 0 {
			return refusal(ErrInvalidArgument, function, "the duration is %v; it must not be negative", limit)
		}
	}
	return nil
}

// Import maps memory of another process. It is a Memory of KindImported, which does what device memory does; CPU access is
// that of the memory. It is mapped once in this process for each device and access: importing it again is quick and
// counts, and it is unmapped when each Memory of it is closed. By ShareWayPOSIXFD it stays usable after the exporter has
// ended.
func (i *Instance) Import(handle ShareHandle, options ImportOptions) (*Memory, error) {
	const name = "Instance.Import"
	if err := options.check(name); err != nil {
		return nil, err
	}
	desc := options.native()
	var made C.gpumem_go_import
	err := withDescriptors(name, options.Files, func(first *C.uint8_t, count C.uint32_t) {
		made = C.gpumem_go_share_import(i.id(), handle.native(), first, count, inC(&desc), options.Name)
	})
	defer runtime.KeepAlive(i)
	defer runtime.KeepAlive(options.Device)
	if err != nil {
		return nil, err
	}
	return i.imported(made, options.Device)
}

// imported is the memory that a call has imported. Without a device it is that of the memory.
func (i *Instance) imported(made C.gpumem_go_import, device *Device) (*Memory, error) {
	err := failure(made.memory.result)
	if err != nil {
		return nil, err
	}
	if device == nil {
		if device, err = i.Device(int(made.ordinal)); err != nil {
			_ = failure(C.gpumem_go_memory_destroy(C.uintptr_t(made.memory.result.value))) // The first failure is reported.
			return nil, err
		}
	}
	m, err := device.memory(made.memory, uint64(made.size))
	if err != nil {
		return nil, err
	}
	m.imported = true
	if made.exported != 0 {
		m.exported = uint64(made.exported) - m.devicePointer
	}
	return m, nil
}

// Exported returns the address that the exporter named, in imported memory. Of other memory it is the first byte.
func (m *Memory) Exported() Address {
	if m == nil {
		return Address{}
	}
	return m.At(m.exported)
}

// checkImport refuses an import that is closed, of which another may have the same handle.
func (m *Memory) checkImport(function string) error {
	if m != nil && m.imported && m.closed() {
		return refusal(ErrStaleHandle, function, "the memory is closed")
	}
	return nil
}

// ImportInfo gets information about imported memory, such as whether its exporter lives. It asks nobody.
func (m *Memory) ImportInfo() (ImportInfo, error) {
	if err := m.checkImport("Memory.ImportInfo"); err != nil {
		return ImportInfo{}, err
	}
	info := nativeImportInfo{structSize: unsafe.Sizeof(nativeImportInfo{})}
	err := checked(C.gpumem_go_memory_get_import_info(m.id(), inC(&info)), m)
	return info.public(), err
}

// ImportEvent imports an event of another process, for the device that has it. Both processes can record it and wait for it;
// a wait is for the latest record at the time of the call, in whichever process. It has no times. The files are as in
// [ImportOptions].
func (d *Device) ImportEvent(handle ShareHandle, files ...*os.File) (*Event, error) {
	var event *Event
	var made error
	err := withDescriptors("Device.ImportEvent", files, func(first *C.uint8_t, count C.uint32_t) {
		event, made = d.event(C.gpumem_go_event_import(d.id(), handle.native(), first, count))
	})
	if err != nil {
		return nil, err
	}
	return event, made
}

// ImportCache says how long imports are kept mapped after they were closed, because they may be imported again. Only
// ShareWayPOSIXFD is kept. What is kept keeps the exporter's memory alive, and goes before a call fails for lack of memory.
type ImportCache struct {
	Idle     time.Duration // How long one is kept; 0 means not at all.
	MaxBytes uint64        // Bytes that are kept at most; 0 means no limit.
}

// SetImportCache sets how long imports are kept. At the beginning they are not.
func (i *Instance) SetImportCache(cache ImportCache) error {
	if err := checkLimits("Instance.SetImportCache", cache.Idle); err != nil {
		return err
	}
	return checked(C.gpumem_go_share_set_cache(i.id(), C.uint64_t(cache.Idle), C.uint64_t(cache.MaxBytes)), i)
}

// wayOf asks in which way the memory at an address can be shared.
func wayOf(name string, address Address, way ShareWay, used any, ask func(address C.uint64_t, info *C.uint8_t) C.gpumem_go_result) (WayInfo, error) {
	if err := address.enter(name, 1); err != nil {
		return WayInfo{}, err
	}
	defer address.leave()
	info := nativeWayInfo{structSize: unsafe.Sizeof(nativeWayInfo{})}
	if err := checked(ask(C.uint64_t(address.value), inC(&info)), used); err != nil {
		return WayInfo{}, err
	}
	known := info.public()
	known.Way = way
	return known, nil
}

// ShareWay reports whether memory can be shared in one way with a peer, and why not. It changes nothing. It answers from
// here; [Link.ShareWay] asks the other process.
func (i *Instance) ShareWay(address Address, way ShareWay, peer SharePeer) (WayInfo, error) {
	return wayOf("Instance.ShareWay", address, way, i, func(at C.uint64_t, info *C.uint8_t) C.gpumem_go_result {
		return C.gpumem_go_share_get_way(i.id(), at, C.gpumem_share_way(way), C.gpumem_share_peer(peer), info)
	})
}

// ShareWay reports whether memory of the link's instance can be shared in one way with the process of the hub, by a trial at
// both ends: that process opens a small block in the same place. The answer is kept with the link. A keeper opens nothing.
func (l *Link) ShareWay(address Address, way ShareWay, peer SharePeer) (WayInfo, error) {
	return wayOf("Link.ShareWay", address, way, l, func(at C.uint64_t, info *C.uint8_t) C.gpumem_go_result {
		return C.gpumem_go_link_get_way(l.id(), at, C.gpumem_share_way(way), C.gpumem_share_peer(peer), info)
	})
}

// ShareWays reports the same for each way.
func (i *Instance) ShareWays(address Address, peer SharePeer) ([]WayInfo, error) {
	var ways []WayInfo
	for _, way := range []ShareWay{ShareWayLegacy, ShareWayPOSIXFD, ShareWayFabric, ShareWayDMABuf} {
		info, err := i.ShareWay(address, way, peer)
		if err != nil {
			return nil, calledAs("Instance.ShareWays", err)
		}
		ways = append(ways, info)
	}
	return ways, nil
}

// Send sends a handle that this instance exported, with its descriptors and a connection to this process, over a Unix
// socket: a [*net.UnixConn] or an [*os.File]. The receiver needs no common namespace. Deadlines of the socket hold. The
// message is sent whole, between two messages of the caller's own.
func (i *Instance) Send(socket syscall.Conn, handle ShareHandle, options SendOptions) error {
	const name = "Instance.Send"
	if err := options.check(name); err != nil {
		return err
	}
	defer runtime.KeepAlive(i)
	send := func(descriptor C.int32_t, timeout time.Duration) error {
		return failure(C.gpumem_go_share_send(i.id(), handle.native(), descriptor, C.uint64_t(options.Lease), C.uint64_t(timeout)))
	}
	info, _ := handle.Info() // The call reports what is wrong.
	try := func(descriptor C.int32_t) (bool, error) {
		if C.gpumem_go_ready(descriptor, 1, 0) != 0 {
			return true, send(descriptor, options.Timeout)
		}
		// A socket has room long after it ceases to be ready. A message of several packets could end in the middle.
		if info.FileCount >= packetFDs {
			return false, nil
		}
		err := send(descriptor, time.Nanosecond)
		return !errors.Is(err, ErrBusy), err
	}
	return overSocket(name, socket, true, try, func(descriptor C.int32_t) error { return send(descriptor, options.Timeout) })
}

// Receive waits for a handle that [Instance.Send] sent, on a connected Unix socket: a [*net.UnixConn] or an [*os.File].
// Anything else is refused at once. Deadlines of the socket hold, also while only a part has come: the error is then
// os.ErrDeadlineExceeded. Descriptors and connection are kept until the handle is imported, or for the sender's lease. The
// handle is not [ShareHandle.Equal] to the one that was sent.
func (i *Instance) Receive(socket syscall.Conn) (ShareHandle, error) {
	const name = "Instance.Receive"
	defer runtime.KeepAlive(i)
	return newHandle(func(bytes *C.uint8_t) error {
		receive := func(descriptor C.int32_t) error {
			result := C.gpumem_go_share_receive(i.id(), descriptor, C.uint64_t(messageLimit), bytes)
			if Status(result.status) == NotReady {
				return refusal(ErrBusy, name, "the message did not come whole within %v", messageLimit)
			}
			return failure(result)
		}
		try := func(descriptor C.int32_t) (bool, error) {
			if C.gpumem_go_has_packet(descriptor) == 0 {
				return false, nil
			}
			return true, receive(descriptor)
		}
		return overSocket(name, socket, false, try, receive)
	})
}

// messageLimit is how long the rest of a message may take: of a blocking file, and else the packets behind the first, of
// a message with more than packetFDs. It is sent whole.
const messageLimit = 5 * time.Second

// packetFDs is how many descriptors go with a packet, one of which is the connection.
const packetFDs = 253

// overSocket tries a call until it needs no wait. The wait between holds no thread, and ends with the deadline. For a
// blocking file it waits here until the socket is ready, and makes the call then.
func overSocket(function string, socket syscall.Conn, toWrite bool, try func(descriptor C.int32_t) (bool, error),
	call func(descriptor C.int32_t) error) error {
	if unix, ok := socket.(*net.UnixConn); socket == nil || ok && unix == nil {
		return refusal(ErrInvalidArgument, function, "the socket is nil")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return refusal(ErrInvalidArgument, function, "the socket cannot be used: %v", err)
	}
	wait, direction := raw.Read, C.uint32_t(0)
	if toWrite {
		wait, direction = raw.Write, 1
	}
	called, failed := false, error(nil)
	err = wait(func(descriptor uintptr) bool {
		called, failed = try(C.int32_t(descriptor))
		return called
	})
	switch {
	case called:
		return failed
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed):
		return err
	}
	// The file is blocking, so it has no deadline either.
	err = raw.Control(func(descriptor uintptr) {
		_ = C.gpumem_go_ready(C.int32_t(descriptor), direction, -1) // The call reports what is wrong.
		failed = call(C.int32_t(descriptor))
	})
	if err != nil {
		return refusal(ErrInvalidArgument, function, "the socket cannot be used: %v", err)
	}
	return failed
}

// ExportDMABuf makes a dma-buf of device memory, which drivers of other devices import: of network cards, say. Address and
// size are multiples of the page size. The caller closes the file. A part of a range must be exported again after it was
// mapped anew.
func (i *Instance) ExportDMABuf(address Address, size uint64, flags DMABufFlags) (*os.File, error) {
	if err := address.enter("Instance.ExportDMABuf", size); err != nil {
		return nil, err
	}
	defer address.leave()
	// Other devices may use the memory unseen.
	handle, err := valueOf[uintptr](C.gpumem_go_share_export_dma_buf(i.id(), C.uint64_t(address.Number()), C.uint64_t(size),
		C.gpumem_dma_buf_flags(flags)), i)
	if err != nil {
		return nil, err
	}
	return os.NewFile(handle, "gpumem.DMABuf"), nil
}
