// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	shareSize  = 2 << 20
	shareLimit = 60 * time.Second // That another process may take for an answer.
)

// socketPair returns two connected Unix sockets, of which one is a file for another process.
func socketPair(t testing.TB) (*net.UnixConn, *os.File) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	ours := os.NewFile(uintptr(pair[0]), "ours")
	defer ours.Close()
	connection, err := net.FileConn(ours)
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection.(*net.UnixConn), os.NewFile(uintptr(pair[1]), "theirs")
}

// peer is another process that runs the same test, and the socket to it. In that process, inChild() is true.
type peer struct {
	testing.TB
	*net.UnixConn
	command *exec.Cmd
	output  bytes.Buffer
}

// startPeer starts another process. Its other files are 4, 5 and so on; 3 is the socket.
func startPeer(t *testing.T, files ...*os.File) *peer {
	t.Helper()
	ours, theirs := socketPair(t)
	must(t, ours.SetDeadline(time.Now().Add(shareLimit)))
	p := &peer{TB: t, UnixConn: ours, command: exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")}
	p.command.Env = append(os.Environ(), "GPUMEM_GO_CHILD=1")
	p.command.ExtraFiles = append([]*os.File{theirs}, files...)
	p.command.Stdout, p.command.Stderr = &p.output, &p.output
	must(t, p.command.Start())
	must(t, theirs.Close())
	t.Cleanup(func() {
		if p.command.ProcessState == nil {
			_ = p.command.Process.Kill()
			_ = p.command.Wait()
			t.Logf("the other process: %s", p.output.String())
		}
	})
	return p
}

// starter is the process that started this one.
func starter(t *testing.T) *peer {
	t.Helper()
	file := os.NewFile(3, "starter")
	defer file.Close()
	connection, err := net.FileConn(file)
	must(t, err)
	must(t, connection.SetDeadline(time.Now().Add(shareLimit)))
	return &peer{TB: t, UnixConn: connection.(*net.UnixConn)}
}

// say sends one line.
func (p *peer) say(format string, arguments ...any) {
	p.Helper()
	_, err := p.Write([]byte(fmt.Sprintf(format, arguments...) + "\n"))
	must(p, err)
}

// hear reads one line, and not a byte more: a handle may follow.
func (p *peer) hear() string {
	p.Helper()
	var line []byte
	for one := make([]byte, 1); ; line = append(line, one[0]) {
		if _, err := p.Read(one); err != nil {
			p.Fatalf("%v after %q", err, line)
		}
		if one[0] == '\n' {
			return string(line)
		}
	}
}

func (p *peer) expect(line string) {
	p.Helper()
	if got := p.hear(); got != line {
		p.Fatalf("the other process says %q, not %q", got, line)
	}
}

func (p *peer) sayHandle(handle ShareHandle) {
	p.Helper()
	text, err := handle.MarshalText()
	must(p, err)
	p.say("%s", text)
}

func (p *peer) hearHandle() (handle ShareHandle) {
	p.Helper()
	must(p, handle.UnmarshalText([]byte(p.hear())))
	return handle
}

// wait waits until the process has ended without a failure.
func (p *peer) wait() {
	p.Helper()
	if err := p.command.Wait(); err != nil {
		p.Fatalf("the other process: %v: %s", err, p.output.String())
	}
}

// shareable is device memory that may be exported, with some content.
func shareable(t testing.TB, d *Device, content string) *Memory {
	t.Helper()
	m, err := d.NewMemory(MemoryOptions{Kind: KindDevice, Size: shareSize, Require: MemoryShareable})
	must(t, err)
	must(t, CopyFromSlice(d.Instance(), m.At(0), []byte(content)))
	return m
}

// byDescriptors is a buffer that is exported by descriptors, with some content.
func byDescriptors(t testing.TB, d *Device, content string) *GrowableBuffer {
	t.Helper()
	needs(t, d, CapabilityVMMHandlePOSIXFD)
	b, err := d.NewGrowableBuffer(BufferOptions{Size: shareSize, HandleTypes: HandleTypePOSIXFD})
	must(t, err)
	must(t, CopyFromSlice(d.Instance(), b.At(0), []byte(content)))
	return b
}

// bytesAt is the first bytes at an address.
func bytesAt(t testing.TB, i *Instance, address Address, size int) string {
	t.Helper()
	content := make([]byte, size)
	must(t, CopyToSlice(i, content, address))
	return string(content)
}

func exported(t testing.TB, i *Instance, address Address, options ExportOptions) ShareHandle {
	t.Helper()
	handle, err := i.Export(address, options)
	must(t, err)
	return handle
}

func TestShareHandles(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m := shareable(t, d, "hello")
	handle := exported(t, i, m.At(0), ExportOptions{})
	if again := exported(t, i, m.At(0), ExportOptions{Way: ShareWayLegacy, Access: AccessReadWrite}); !again.Equal(handle) {
		t.Error("exporting again gives other bytes")
	}
	info, err := handle.Info()
	must(t, err)
	ofDevice, err := d.Info()
	must(t, err)
	ofMemory, err := m.Info()
	must(t, err)
	expected := ShareInfo{ShareTypeMemory, ShareWayLegacy, testBackend(t), AccessReadWrite, LocationDevice, os.Getpid(),
		shareSize, 0, ofMemory.BufferID, info.FileCount, ofDevice.UUID}
	if info != expected {
		t.Errorf("%v instead of %v", info, expected)
	}
	inside, err := exported(t, i, m.At(4096), ExportOptions{}).Info()
	must(t, err)
	if inside.Offset != 4096 || inside.Size != shareSize {
		t.Errorf("a handle of the inside says %v", inside)
	}

	// The bytes are for channels, and are not printed.
	var inGob bytes.Buffer
	must(t, gob.NewEncoder(&inGob).Encode(handle))
	inJSON, err := json.Marshal(handle)
	must(t, err)
	var fromGob, fromJSON ShareHandle
	must(t, gob.NewDecoder(&inGob).Decode(&fromGob))
	must(t, json.Unmarshal(inJSON, &fromJSON))
	if !fromGob.Equal(handle) || !fromJSON.Equal(handle) {
		t.Error("a handle has changed on its way")
	}
	text := fmt.Sprintf("ShareHandle{%d bytes of process %d, ShareWayLegacy}", shareSize, os.Getpid())
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		if got := fmt.Sprintf(verb, handle); got != text {
			t.Errorf("%s prints %s", verb, got)
		}
	}
	for _, wrong := range [][]byte{nil, make([]byte, 255), make([]byte, 257)} {
		expect(t, new(ShareHandle).UnmarshalBinary(wrong), ErrInvalidArgument)
	}
	expect(t, new(ShareHandle).UnmarshalText([]byte("no base 64!")), ErrInvalidArgument)

	// It ends with Revoke, and with its memory.
	files, err := i.ExportedFiles(handle)
	must(t, err)
	if len(files) != info.FileCount {
		t.Errorf("%d files instead of %d", len(files), info.FileCount)
	}
	for _, file := range files {
		must(t, file.Close())
	}
	must(t, i.Revoke(handle))
	expect(t, i.Revoke(handle), ErrNotFound)
	_, err = i.ExportedFiles(handle)
	expect(t, err, ErrNotFound)
	handle = exported(t, i, m.At(0), ExportOptions{})
	must(t, m.Close())
	expect(t, i.Revoke(handle), ErrNotFound)
	_, err = i.Export(m.At(0), ExportOptions{})
	expect(t, err, ErrStaleHandle)
}

func TestBlocksOfPoolsAreShared(t *testing.T) {
	d := device(t)
	needs(t, d, CapabilityVMMHandlePOSIXFD)
	i := d.Instance()
	p := newPool(t, d, PoolOptions{HandleTypes: HandleTypePOSIXFD})
	if info, err := p.Info(); err != nil || info.HandleTypes != HandleTypePOSIXFD {
		t.Errorf("the pool has %v (%v)", info.HandleTypes, err)
	}
	var blocks []*PoolBlock
	for _, content := range []string{"first", "other"} {
		b := newBlock(t, p, uint64(len(content)), nil)
		must(t, CopyFromSlice(i, b.At(0), []byte(content)))
		blocks = append(blocks, b)
	}
	_, err := i.Export(blocks[1].At(0), ExportOptions{})
	expect(t, err, ErrUnsupported)
	if !strings.Contains(err.Error(), "ExportNeighbours") {
		t.Errorf("it says %v", err)
	}
	handle := exported(t, i, blocks[1].At(1), ExportOptions{Flags: ExportNeighbours})
	if info, err := handle.Info(); err != nil || info.Way != ShareWayPOSIXFD || info.FileCount != 1 {
		t.Errorf("the handle says %v (%v)", info, err)
	}
	m, err := i.Import(handle, ImportOptions{})
	must(t, err)
	if content := bytesAt(t, i, m.Exported(), 4); content != "ther" {
		t.Errorf("the import has %q", content)
	}
	must(t, i.Fill(m.Exported(), 4, 'x', 1))
	if first, other := bytesAt(t, i, blocks[0].At(0), 5), bytesAt(t, i, blocks[1].At(0), 5); first != "first" || other != "oxxxx" {
		t.Errorf("the blocks have %q and %q", first, other)
	}
	must(t, m.Close())
	for _, b := range blocks {
		must(t, b.Free())
	}

	p = newPool(t, d, PoolOptions{})
	if info, err := p.Info(); err != nil || info.HandleTypes != 0 {
		t.Errorf("a pool without options has %v (%v)", info.HandleTypes, err)
	}
	plain := newBlock(t, p, 5, nil)
	_, err = i.Export(plain.At(0), ExportOptions{Flags: ExportNeighbours})
	expect(t, err, ErrUnsupported)
	must(t, plain.Free())
	_, err = d.NewPool(PoolOptions{Kind: KindPinned, HandleTypes: HandleTypePOSIXFD})
	expect(t, err, ErrInvalidArgument)
}

func TestSharingThatIsRefused(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m := shareable(t, d, "hello")
	defer func() { must(t, m.Close()) }()
	handle := exported(t, i, m.At(0), ExportOptions{})
	for _, options := range []ExportOptions{{Way: 77}, {Way: ShareWayDMABuf}, {Access: 16}, {Flags: 1 << 40}} {
		_, err := i.Export(m.At(0), options)
		expect(t, err, ErrInvalidArgument)
	}
	_, err := i.Export(m.At(0), ExportOptions{Way: ShareWayPOSIXFD})
	expect(t, err, ErrUnsupported)
	_, err = i.Export(m.At(0), ExportOptions{Way: ShareWayLegacy, Access: AccessRead})
	expect(t, err, ErrUnsupported)
	_, err = i.Export(RawAddress(0), ExportOptions{})
	expect(t, err, ErrInvalidArgument)
	_, err = i.Export(newMemory(t, d, KindPinned, 4096).At(0), ExportOptions{})
	expect(t, err, ErrUnsupported)
	_, err = i.Export(newMemory(t, d, KindManaged, 4096).At(0), ExportOptions{})
	expect(t, err, ErrWrongKind)
	_, err = i.Import(handle, ImportOptions{})
	expect(t, err, ErrInvalidState) // This process has the memory itself.
	for _, options := range []ImportOptions{{Name: "\x00"}, {Timeout: -1}, {Files: []*os.File{nil}}, {Flags: 1 << 40},
		{Access: 16}} {
		_, err = i.Import(handle, options)
		expect(t, err, ErrInvalidArgument)
	}
	_, err = i.Import(ShareHandle{}, ImportOptions{})
	expect(t, err, ErrInvalidArgument)
	_, err = ShareHandle{}.Info()
	expect(t, err, ErrInvalidArgument)
	if text := fmt.Sprint(ShareHandle{}); text != "ShareHandle{}" {
		t.Error(text)
	}
	expect(t, i.Revoke(ShareHandle{}), ErrInvalidArgument)
	expect(t, i.SetImportCache(ImportCache{Idle: -1}), ErrInvalidArgument)
	_, err = m.ImportInfo()
	expect(t, err, ErrWrongKind)
	if m.Exported() != m.At(0) || (*Memory)(nil).Exported() != (Address{}) {
		t.Error("memory that is not imported begins elsewhere")
	}
	_, err = newEvent(t, d).Export()
	expect(t, err, ErrUnsupported)
	_, err = d.ImportEvent(handle)
	expect(t, err, ErrInvalidArgument)
	_, err = d.ImportEvent(handle, nil)
	expect(t, err, ErrInvalidArgument)

	expect(t, i.Send(nil, handle, SendOptions{}), ErrInvalidArgument)
	expect(t, i.Send((*os.File)(nil), handle, SendOptions{}), ErrInvalidArgument)
	_, err = i.Receive((*net.UnixConn)(nil))
	expect(t, err, ErrInvalidArgument)
	reader, writer, err := os.Pipe()
	must(t, err)
	defer reader.Close()
	defer writer.Close()
	expect(t, i.Send(writer, handle, SendOptions{}), ErrInvalidArgument)
	expect(t, i.Send(writer, handle, SendOptions{Lease: -1}), ErrInvalidArgument)
	_, err = writer.Write([]byte("x"))
	must(t, err)
	_, err = i.Receive(reader)
	expect(t, err, ErrInvalidArgument)
}

func TestWaysOfSharing(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m := shareable(t, d, "hello")
	defer func() { must(t, m.Close()) }()
	ways, err := i.ShareWays(m.At(0), PeerOtherProcess)
	must(t, err)
	if len(ways) != 4 || ways[0].Status != Success || ways[1].Way != ShareWayPOSIXFD || ways[1].Status != ErrUnsupported ||
		ways[1].Message == "" {
		t.Error(ways)
	}
	_, err = i.ShareWay(m.At(0), ShareWayAny, PeerOtherProcess)
	expect(t, err, ErrInvalidArgument)
	_, err = i.ShareWays(m.At(0), 77)
	expect(t, err, ErrInvalidArgument)

	file, err := i.ExportDMABuf(m.At(0), m.Size(), DMABufPreferPCIe)
	if ways[3].Status == Success {
		must(t, err)
		must(t, file.Close())
	} else {
		expect(t, err, ways[3].Status)
	}
	must(t, i.SetImportCache(ImportCache{Idle: time.Second, MaxBytes: 1 << 20}))
	must(t, i.FlushImportCache())
	must(t, i.SetImportCache(ImportCache{}))

	b := byDescriptors(t, d, "hello")
	defer func() { must(t, b.Close()) }()
	way, err := i.ShareWay(b.At(0), ShareWayPOSIXFD, PeerOtherProcess)
	must(t, err)
	if way.Status != Success || way.FileCount != 1 {
		t.Error(way)
	}
	inContainer, err := i.ShareWay(b.At(0), ShareWayPOSIXFD, PeerContainer)
	must(t, err)
	if inContainer.Status != Success || !inContainer.NeedsSocket {
		t.Error(inContainer)
	}
}

// A handle is bytes that go by any channel; the exporter hands out the rest.
func TestMemoryOfAnotherProcess(t *testing.T) {
	i := open(t)
	d, err := i.Device(0)
	must(t, err)
	if inChild() {
		parent := starter(t)
		for turn := 0; turn < 2; turn++ {
			handle := parent.hearHandle()
			m, err := i.Import(handle, ImportOptions{Name: "theirs"})
			must(t, err)
			info, err := m.Info()
			must(t, err)
			imported, err := m.ImportInfo()
			must(t, err)
			parent.say("%s %v %d %d %v %v %d", bytesAt(t, i, m.Exported(), 5), info.Kind, m.Size(), imported.ExporterPID,
				imported.State, imported.Access, imported.Count)

			// Another import is another Memory of the same bytes.
			again, err := i.Import(handle, ImportOptions{Device: d})
			must(t, err)
			imported, err = again.ImportInfo()
			must(t, err)
			if imported.Count != 2 || again.At(0).Number() != m.At(0).Number() || m.Device().Ordinal() != 0 {
				t.Errorf("the second import is %v, %v", imported, again)
			}
			must(t, again.Close())
			must(t, again.Close())
			_, err = again.Info()
			expect(t, err, ErrStaleHandle)
			_, err = again.ImportInfo()
			expect(t, err, ErrStaleHandle)
			expect(t, i.Fill(again.At(0), 1, 0, 1), ErrStaleHandle)
			must(t, CopyFromSlice(i, m.At(0), []byte("reply")))
			parent.say("written")
			parent.expect("close")
			must(t, m.Close())
			parent.say("closed")
		}
		_, err := i.Import(parent.hearHandle(), ImportOptions{Timeout: shareLimit})
		parent.say("%v", errors.Is(err, ErrStaleHandle))
		return
	}
	child := startPeer(t)
	m := shareable(t, d, "_hello")
	b := byDescriptors(t, d, "_hello")
	for _, one := range []interface {
		At(uint64) Address
		Close() error
	}{m, b} {
		handle := exported(t, i, one.At(1), ExportOptions{})
		child.sayHandle(handle)
		child.expect(fmt.Sprintf("hello KindImported %d %d ImportLive AccessReadWrite 1", shareSize, os.Getpid()))
		child.expect("written")
		if got := bytesAt(t, i, one.At(0), 5); got != "reply" {
			t.Errorf("the other process wrote %q", got)
		}
		if one == any(m) {
			expect(t, m.Close(), ErrBusy) // Memory of the driver must outlive its imports.
		}
		child.say("close")
		child.expect("closed")
	}
	handle := exported(t, i, m.At(0), ExportOptions{})
	must(t, i.Revoke(handle))
	child.sayHandle(handle)
	child.expect("true")
	child.wait()
	must(t, m.Close())
	must(t, b.Close())
}

func TestHandlesOverASocket(t *testing.T) {
	i := open(t)
	d, err := i.Device(0)
	must(t, err)
	if inChild() {
		parent := starter(t)
		for turn := 0; turn < 2; turn++ {
			handle, err := i.Receive(parent.UnixConn)
			must(t, err)
			m, err := i.Import(handle, ImportOptions{})
			must(t, err)
			parent.say("%s", bytesAt(t, i, m.Exported(), 5))
			parent.expect("go on")
			must(t, m.Close())
		}
		// A file that blocks, as one that was inherited, has no deadline.
		parent.say("waiting")
		inherited := os.NewFile(4, "blocking")
		handle, err := i.Receive(inherited)
		must(t, err)
		must(t, inherited.Close())
		e, err := d.ImportEvent(handle)
		if errors.Is(err, ErrInvalidArgument) {
			parent.say("no event")
			return
		}
		must(t, err)
		parent.say("imported")
		must(t, e.Synchronize())
		parent.say("complete")
		must(t, e.Close())
		return
	}
	other, file := socketPair(t)
	child := startPeer(t, file)
	must(t, file.Close())
	m, b := shareable(t, d, "_first"), byDescriptors(t, d, "next_")
	must(t, i.Send(child.UnixConn, exported(t, i, m.At(1), ExportOptions{}), SendOptions{Lease: shareLimit}))
	child.expect("first")
	child.say("go on")
	must(t, i.Send(child.UnixConn, exported(t, i, b.At(0), ExportOptions{Access: AccessRead}), SendOptions{}))
	child.expect("next_")
	child.say("go on")
	child.expect("waiting")

	answer, err := d.Capability(CapabilityShareEvents)
	must(t, err)
	if answer.Value == AnswerNo {
		must(t, i.Send(other, exported(t, i, m.At(0), ExportOptions{}), SendOptions{}))
		child.expect("no event")
	} else {
		e, err := d.NewEvent(EventOptions{Flags: EventInterprocess | EventDisableTiming})
		must(t, err)
		s := newStream(t, d)
		flag := newPinned[uint32](t, d, 1)
		flag.Slice()[0] = 0
		must(t, s.WaitValue(flag.At(0), 1, 4, WaitGEQ))
		must(t, e.Record(s))
		handle, err := e.Export()
		must(t, err)
		if text := fmt.Sprint(handle); text != fmt.Sprintf("ShareHandle{event of process %d}", os.Getpid()) {
			t.Error(text)
		}
		must(t, i.Send(other, handle, SendOptions{}))
		child.expect("imported")
		must(t, child.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		if _, err := child.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the event is complete before its work: %v", err)
		}
		must(t, child.SetReadDeadline(time.Now().Add(shareLimit)))
		flag.Slice()[0] = 1
		child.expect("complete")
		must(t, s.Synchronize())
		child.wait()
		must(t, e.Close())
	}
	if child.command.ProcessState == nil {
		child.wait()
	}
	must(t, m.Close())
	must(t, b.Close())
}

func TestDeadlinesOfSockets(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m := shareable(t, d, "hello")
	defer func() { must(t, m.Close()) }()
	handle := exported(t, i, m.At(0), ExportOptions{})
	ours, theirs := socketPair(t)
	must(t, ours.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	if _, err := i.Receive(ours); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("receiving ended with %v", err)
	}
	must(t, ours.SetReadDeadline(time.Time{}))

	// What another goroutine does to the socket ends the wait.
	ended := make(chan error)
	go func() {
		_, err := i.Receive(ours)
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	must(t, ours.SetReadDeadline(time.Now()))
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("receiving ended with %v", err)
	}
	must(t, ours.SetReadDeadline(time.Time{}))

	// A part of a message is waited with, and stays in the socket.
	for _, part := range []string{"gpms", "\x01\x00\x0a\x00\x40\x00\x00\x00\x01\x00\x00\x01", "\x00\x00\x00\x00\x00\x00\x00\x00 body"} {
		_, err := theirs.Write([]byte(part))
		must(t, err)
		must(t, ours.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		if _, err = i.Receive(ours); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("receiving a part ended with %v", err)
		}
	}
	must(t, ours.SetReadDeadline(time.Time{}))
	raw, err := theirs.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(descriptor uintptr) { must(t, syscall.Shutdown(int(descriptor), syscall.SHUT_WR)) }))
	_, err = i.Receive(ours)
	expect(t, err, ErrPeerGone)
	must(t, ours.Close())
	must(t, theirs.Close())
	ours, theirs = socketPair(t)

	// It has room long after it ceases to be ready.
	raw, err = ours.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(descriptor uintptr) {
		must(t, syscall.SetsockoptInt(int(descriptor), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 64<<10))
	}))
	for count := 0; count < 50; count++ {
		must(t, ours.SetWriteDeadline(time.Now().Add(shareLimit)))
		must(t, i.Send(ours, handle, SendOptions{}))
	}

	// The socket is full.
	must(t, ours.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err := error(nil); err == nil; {
		_, err = ours.Write(make([]byte, 4096))
	}
	must(t, ours.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	if err := i.Send(ours, handle, SendOptions{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("sending ended with %v", err)
	}
	must(t, ours.SetWriteDeadline(time.Time{}))
	must(t, theirs.Close())
	expect(t, i.Send(ours, handle, SendOptions{}), ErrPeerGone)
	fresh, other := socketPair(t)
	must(t, other.Close())
	_, err = i.Receive(fresh)
	expect(t, err, ErrPeerGone)
	must(t, fresh.Close())
	if _, err := i.Receive(fresh); !errors.Is(err, net.ErrClosed) {
		t.Errorf("receiving from a closed socket ended with %v", err)
	}
}

// What can pass no handle is refused at once, and not waited for.
func TestWhatIsNoConnectedSocketIsRefused(t *testing.T) {
	i := open(t)
	reading, writing, err := os.Pipe()
	must(t, err)
	listening, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@gpumem-test-%d", os.Getpid()), Net: "unix"})
	must(t, err)
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	must(t, err)
	internet, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	var ends [2]int
	must(t, syscall.Pipe(ends[:]))
	blocking, other := os.NewFile(uintptr(ends[0]), "blocking"), os.NewFile(uintptr(ends[1]), "other")
	for _, one := range []interface {
		syscall.Conn
		io.Closer
	}{reading, writing, blocking, other, listening, datagrams, internet} {
		received := make(chan error, 1)
		go func() {
			_, err := i.Receive(one)
			received <- err
		}()
		select {
		case err := <-received:
			expect(t, err, ErrInvalidArgument)
		case <-time.After(10 * time.Second):
			t.Errorf("%T: receiving waits", one)
		}
		expect(t, i.Send(one, ShareHandle{}, SendOptions{}), ErrInvalidArgument)
		must(t, one.Close())
	}
}

// The descriptors go by a way of the program's own, and keep the memory after its exporter has ended.
func TestDescriptorsOfAnExport(t *testing.T) {
	i := open(t)
	d, err := i.Device(0)
	must(t, err)
	if inChild() {
		parent := starter(t)
		handle := parent.hearHandle()
		file := os.NewFile(4, "memory")
		_, err := i.Import(handle, ImportOptions{Files: []*os.File{file, file}})
		expect(t, err, ErrInvalidArgument)
		m, err := i.Import(handle, ImportOptions{Files: []*os.File{file}, Access: AccessRead})
		must(t, err)
		must(t, file.Close())
		info, err := m.ImportInfo()
		must(t, err)
		parent.say("%s %v", bytesAt(t, i, m.At(0), 5), info.Access)
		expect(t, i.Fill(m.At(0), 1, 0, 1), ErrNoAccess)
		must(t, m.Close())
		return
	}
	b := byDescriptors(t, d, "hello")
	handle := exported(t, i, b.At(0), ExportOptions{})
	files, err := i.ExportedFiles(handle)
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("there are %d files", len(files))
	}
	child := startPeer(t, files[0])
	must(t, files[0].Close())
	child.sayHandle(handle)
	child.expect("hello AccessRead")
	child.wait()
	must(t, b.Close())
}

// Secrets are not printed, also from fields whose methods fmt cannot call.
func TestSecretsAreNotPrinted(t *testing.T) {
	secret := []byte("12345678")
	var handle ShareHandle
	must(t, handle.UnmarshalBinary(bytes.Repeat(secret, 32)))
	hub, link := HubOptions{Path: "@x", Token: TokenOf(secret)}, LinkOptions{Token: TokenOf(secret)}
	for _, value := range []any{
		handle, &handle, []ShareHandle{handle}, struct{ inner ShareHandle }{handle}, &struct{ inner *ShareHandle }{&handle},
		hub, &hub, link, hub.Token, struct{ inner HubOptions }{hub}, struct{ inner []LinkOptions }{[]LinkOptions{link}},
		map[string]struct{ inner Token }{"": {hub.Token}},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
			text := fmt.Sprintf(verb, value)
			for _, form := range []string{"12345678", "49 50 51", "0x31, 0x32", "3132333435"} {
				if strings.Contains(text, form) {
					t.Errorf("%s prints the bytes of %T: %s", verb, value, text)
				}
			}
		}
	}
	inJSON, err := json.Marshal([]any{hub, link})
	if must(t, err); strings.Contains(string(inJSON), "MTIzNDU2Nzg") {
		t.Errorf("%s", inJSON)
	}
	if text := fmt.Sprint(hub, link); text != `HubOptions{Path: "@x", Token: Token{8 bytes}} LinkOptions{Token: Token{8 bytes}}` {
		t.Error(text)
	}

	// What is made is not changed by what it was made of, or by a copy.
	copied := handle
	must(t, copied.UnmarshalBinary(make([]byte, 256)))
	if !copied.Equal(ShareHandle{}) || handle.Equal(copied) {
		t.Error("a copy of a handle is not its own")
	}
	secret[0] = 'x'
	if string(hub.Token.bytes()) != "12345678" {
		t.Error("the token has changed")
	}
}

// A hub in another process, whose end importers learn of.
func TestAHubInAnotherProcess(t *testing.T) {
	i := open(t)
	d, err := i.Device(0)
	must(t, err)
	secret := TokenOf([]byte("secret"))
	if inChild() {
		parent := starter(t)
		path := parent.hear()
		h, err := i.OpenHub(HubOptions{Path: path, Token: secret, Name: "theirs", MaxLinks: 8})
		must(t, err)
		parent.say("open")
		b := byDescriptors(t, d, "first")
		version, err := h.Publish("batch", exported(t, i, b.At(0), ExportOptions{}), PublishOptions{Keep: 3})
		must(t, err)
		parent.say("%d", version)
		parent.expect("next")
		next := byDescriptors(t, d, "second")
		version, err = h.Publish("batch", exported(t, i, next.At(0), ExportOptions{}),
			PublishOptions{Version: 7, Keep: 3, Access: AccessReadWrite, Fingerprint: [32]byte{1, 2, 3}})
		must(t, err)
		parent.say("%d", version)
		parent.expect("withdraw")
		must(t, h.Withdraw("batch", 1))
		info, err := h.Info()
		must(t, err)
		parent.say("%d %d %d %s %s", info.LinkCount, info.NameCount, info.VersionCount, info.Path, info.Name)
		parent.hear() // It is killed here.
		return
	}
	path := fmt.Sprintf("@gpumem-go-%d-hub", os.Getpid())
	_, err = i.Connect(LinkOptions{Path: path})
	expect(t, err, ErrNotFound)
	child := startPeer(t)
	child.say("%s", path)
	child.expect("open")
	_, err = i.Connect(LinkOptions{Path: path, Token: TokenOf([]byte("guess"))})
	expect(t, err, ErrPermissionDenied)
	l, err := i.Connect(LinkOptions{Path: path, Token: secret, Timeout: shareLimit})
	must(t, err)
	link, err := l.Info()
	must(t, err)
	if expected := (LinkInfo{child.command.Process.Pid, uint32(os.Getuid()), true, false, path}); link != expected {
		t.Errorf("the link is %v", link)
	}
	if text := fmt.Sprint(l); text != fmt.Sprintf("Link{%s of process %d}", path, link.PID) {
		t.Error(text)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := l.Wait(ctx, "other", 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait ended with %v", err)
	}
	mine := byDescriptors(t, d, "mine")
	way := func(address Address, way ShareWay, peer SharePeer) WayInfo {
		info, err := l.ShareWay(address, way, peer)
		must(t, err)
		return info
	}
	if info := way(mine.At(0), ShareWayPOSIXFD, PeerOtherProcess); info != (WayInfo{Way: ShareWayPOSIXFD, FileCount: 1}) {
		t.Errorf("by descriptors: %v", info)
	}
	if info := way(mine.At(0), ShareWayPOSIXFD, PeerOtherDevice); info.Status != Success || !info.Slow ||
		!strings.Contains(info.Message, "on another device") {
		t.Errorf("to another device: %v", info)
	}
	// Nobody opens a dma-buf, which could be exported.
	if info := way(mine.At(0), ShareWayDMABuf, PeerOtherProcess); info.Status != ErrUnsupported || info.FileCount != 0 ||
		info.Slow || !strings.Contains(info.Message, "opens none") {
		t.Errorf("as a dma-buf: %v", info)
	}
	_, err = l.ShareWay(mine.At(0), ShareWayAny, PeerOtherProcess)
	expect(t, err, ErrInvalidArgument)
	_, err = (*Link)(nil).ShareWay(mine.At(0), ShareWayPOSIXFD, PeerOtherProcess)
	expect(t, err, ErrInvalidArgument)
	entry, err := l.Wait(context.Background(), "batch", 0)
	must(t, err)
	child.expect("1")
	expected := Entry{"batch", 1, entry.Size, ShareTypeMemory, ShareWayPOSIXFD, AccessRead, link.PID, false, link.UID, [32]byte{}}
	if entry != expected || entry.Size < 5 {
		t.Errorf("%v instead of %v", entry, expected)
	}
	handle, err := l.Fetch("batch", FetchOptions{})
	must(t, err)
	first, err := i.Import(handle, ImportOptions{})
	must(t, err)
	info, err := first.Info()
	must(t, err)
	if info.GrantedFlags&MemoryReadOnly == 0 {
		t.Errorf("an import for reading is %v", info)
	}
	child.say("next")
	longer, stop := context.WithTimeout(context.Background(), shareLimit)
	defer stop()
	entry, err = l.Wait(longer, "batch", 1)
	must(t, err)
	child.expect("7")
	list, err := l.Entries()
	must(t, err)
	if len(list) != 2 || list[0].Version != 1 || list[1] != entry || entry.Fingerprint != [32]byte{1, 2, 3} {
		t.Errorf("the hub has %v", list)
	}
	for _, c := range []struct {
		options FetchOptions
		content string
	}{{FetchOptions{}, "second"}, {FetchOptions{Version: 1}, "first\x00"}, {FetchOptions{Fingerprint: [32]byte{1, 2, 3}}, "second"}} {
		handle, err := l.Fetch("batch", c.options)
		must(t, err)
		m, err := i.Import(handle, ImportOptions{})
		must(t, err)
		if got := bytesAt(t, i, m.Exported(), 5); got != c.content[:5] {
			t.Errorf("%v has %q", c.options, got)
		}
		must(t, m.Close())
	}
	_, err = l.Fetch("batch", FetchOptions{Fingerprint: [32]byte{9}})
	expect(t, err, ErrNotFound)
	child.say("withdraw")
	child.expect("1 1 1 " + path + " theirs")
	state := func() ImportState {
		info, err := first.ImportInfo()
		must(t, err)
		return info.State
	}
	eventually(t, "withdrawn", func() bool { return state() == ImportWithdrawn })

	handle, err = l.Fetch("batch", FetchOptions{})
	must(t, err)
	second, err := i.Import(handle, ImportOptions{Access: AccessReadWrite})
	must(t, err)
	must(t, child.command.Process.Kill())
	_ = child.command.Wait() // It was killed.
	eventually(t, "gone", func() bool {
		info, err := second.ImportInfo()
		must(t, err)
		return info.State == ImportPeerGone
	})
	must(t, i.Fill(second.At(0), 5, 'x', 1))
	if got := bytesAt(t, i, second.At(0), 6); got != "xxxxxd" {
		t.Errorf("memory that outlives its exporter has %q", got)
	}
	_, err = l.Entries()
	expect(t, err, ErrPeerGone)
	_, err = l.Wait(context.Background(), "batch", 99)
	expect(t, err, ErrPeerGone)
	// What is not kept is asked.
	alone := shareable(t, d, "alone")
	if info := way(alone.At(0), ShareWayLegacy, PeerOtherProcess); info.Status != ErrPeerGone || info.Message == "" {
		t.Errorf("to a process that has ended: %v", info)
	}
	must(t, alone.Close())
	must(t, mine.Close())
	must(t, l.Close())
	must(t, first.Close())
	must(t, second.Close())
}

// A keeper holds what a process left, for the one that comes after it.
func TestAKeeper(t *testing.T) {
	i := open(t)
	d, err := i.Device(0)
	must(t, err)
	if inChild() {
		parent := starter(t)
		l, err := i.Connect(LinkOptions{Path: parent.hear()})
		must(t, err)
		b := byDescriptors(t, d, "saved")
		handle := exported(t, i, b.At(0), ExportOptions{})
		for version := uint64(1); version < 3; version++ {
			got, err := l.Publish("state", handle, PublishOptions{Keep: 2})
			must(t, err)
			if got != version {
				t.Errorf("version %d is %d", version, got)
			}
		}
		must(t, l.Withdraw("state", 1))
		parent.say("saved")
		parent.hear() // It is killed here.
		return
	}
	keeper := open(t)
	path := fmt.Sprintf("@gpumem-go-%d-keeper", os.Getpid())
	h, err := keeper.OpenHub(HubOptions{Path: path, Flags: HubKeeper, Name: "keeper"})
	must(t, err)
	needs(t, d, CapabilityVMMHandlePOSIXFD)
	child := startPeer(t)
	child.say("%s", path)
	child.expect("saved")
	must(t, child.command.Process.Kill())
	_ = child.command.Wait() // It was killed.
	l, err := i.Connect(LinkOptions{Path: path})
	must(t, err)
	eventually(t, "gone", func() bool {
		list, err := l.Entries()
		must(t, err)
		return len(list) == 1 && list[0].PublisherGone && list[0].Version == 2
	})
	handle, err := l.Fetch("state", FetchOptions{})
	must(t, err)
	m, err := i.Import(handle, ImportOptions{})
	must(t, err)
	if got := bytesAt(t, i, m.At(0), 5); got != "saved" {
		t.Errorf("the keeper has %q", got)
	}
	must(t, m.Close())
	if text := fmt.Sprint(h); text != fmt.Sprintf(`Hub{"keeper" %s, 1 names, 1 links}`, path) {
		t.Error(text)
	}
	must(t, l.Withdraw("state", 0))
	info, err := h.Info()
	must(t, err)
	if info.NameCount != 0 || info.FileCount != 0 {
		t.Errorf("the keeper is %v", info)
	}
	must(t, l.Close())
	must(t, h.Close())
}

func TestTheNextOfAName(t *testing.T) {
	onHost(t) // One process imports from itself, by another instance.
	ours, theirs := open(t), open(t)
	d, err := ours.Device(0)
	must(t, err)
	path := fmt.Sprintf("@gpumem-next-%d", os.Getpid())
	h, err := ours.OpenHub(HubOptions{Path: path})
	must(t, err)
	defer func() { must(t, h.Close()) }()
	l, err := theirs.Connect(LinkOptions{Path: path})
	must(t, err)
	defer func() { must(t, l.Close()) }()
	publish := func(size uint64) ShareHandle {
		t.Helper()
		b := newGrowable(t, d, BufferOptions{Size: size, HandleTypes: HandleTypePOSIXFD})
		must(t, ours.Fill(b.At(0), size, uint32(byte(size)), 1))
		handle, err := ours.Export(b.At(0), ExportOptions{})
		must(t, err)
		_, err = h.Publish("batch", handle, PublishOptions{})
		must(t, err)
		return handle
	}
	next := func(after uint64) (uint64, byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m, entry, err := l.ImportNext(ctx, "batch", after, ImportOptions{})
		if err != nil {
			return 0, 0, err
		}
		var first [1]byte
		if err = CopyToSlice(theirs, first[:], m.Exported()); err == nil {
			err = m.Close()
		}
		return entry.Version, first[0], err
	}
	expectNext := func(after, version uint64, content byte) {
		t.Helper()
		if found, first, err := next(after); err != nil || found != version || first != content {
			t.Errorf("after %d came %d with %d: %v", after, found, first, err)
		}
	}
	publish(2)
	expectNext(0, 1, 2)
	publish(3)
	expectNext(0, 2, 3)
	expectNext(1, 2, 3)

	// Each is withdrawn as soon as the next one is there, mostly between the steps of the reader.
	const last = 300
	ended := make(chan error)
	go func() {
		for seen, content := uint64(2), byte(0); seen < last; {
			var err error
			if seen, content, err = next(seen); err != nil || content != byte(seen+1) {
				ended <- fmt.Errorf("version %d has %d: %w", seen, content, err)
				return
			}
		}
		ended <- nil
	}()
	var before ShareHandle
	for version := 3; version <= last; version++ {
		handle := publish(uint64(version) + 1)
		if version > 3 {
			must(t, ours.Revoke(before))
		}
		before = handle
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := l.ImportNext(ctx, "batch", last, ImportOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled it ended with %v", err)
	}
	_, _, err = l.ImportNext(context.Background(), "a/b", 0, ImportOptions{})
	expect(t, err, ErrInvalidArgument)
	_, _, err = (*Link)(nil).ImportNext(context.Background(), "batch", 0, ImportOptions{})
	expect(t, err, ErrInvalidArgument)
}

func TestHubsAndLinksThatAreRefused(t *testing.T) {
	d := device(t)
	i := d.Instance()
	path := fmt.Sprintf("@gpumem-go-%d-refused", os.Getpid())
	for _, options := range []HubOptions{{Path: "a\x00b"}, {Name: "\x00"}, {Path: strings.Repeat("x", 200)}, {Path: path, Timeout: -1},
		{Path: path, Token: TokenOf(make([]byte, 257))}, {Path: path, Token: TokenOf(nil)}, {Path: path, Flags: 1 << 40}, {Path: path, Mode: os.ModeSetuid}} {
		_, err := i.OpenHub(options)
		expect(t, err, ErrInvalidArgument)
	}
	for _, options := range []LinkOptions{{Path: "a\x00b"}, {Path: path, Timeout: -1}, {Path: path, Token: TokenOf(make([]byte, 257))},
		{Path: path, Token: TokenOf(nil)}} {
		_, err := i.Connect(options)
		expect(t, err, ErrInvalidArgument)
	}
	h, err := i.OpenHub(HubOptions{Path: path, Users: []uint32{uint32(os.Getuid())}, Groups: []uint32{uint32(os.Getgid())}})
	must(t, err)
	_, err = i.OpenHub(HubOptions{Path: path})
	expect(t, err, ErrAlreadyExists)
	m := shareable(t, d, "hello")
	handle := exported(t, i, m.At(0), ExportOptions{})
	for _, name := range []string{"", "a/b", strings.Repeat("x", 64), "a\x00b", "a\nb"} {
		_, err = h.Publish(name, handle, PublishOptions{})
		expect(t, err, ErrInvalidArgument)
	}
	_, err = h.Publish("rows", ShareHandle{}, PublishOptions{})
	expect(t, err, ErrInvalidArgument)
	_, err = h.Publish("rows", handle, PublishOptions{Version: 5})
	must(t, err)
	_, err = h.Publish("rows", handle, PublishOptions{Version: 5})
	expect(t, err, ErrAlreadyExists)
	expect(t, h.Withdraw("rows", 4), ErrNotFound)
	expect(t, h.Withdraw("\x00", 0), ErrInvalidArgument)

	l, err := i.Connect(LinkOptions{Path: path})
	must(t, err)
	_, err = l.Publish("rows", handle, PublishOptions{})
	expect(t, err, ErrUnsupported) // It is no keeper.
	expect(t, l.Withdraw("rows", 0), ErrUnsupported)
	_, err = l.Publish("\x00", handle, PublishOptions{})
	expect(t, err, ErrInvalidArgument)
	expect(t, l.Withdraw("\x00", 0), ErrInvalidArgument)
	_, err = l.Fetch("\x00", FetchOptions{})
	expect(t, err, ErrInvalidArgument)
	_, err = l.Wait(context.Background(), "\x00", 0)
	expect(t, err, ErrInvalidArgument)
	// A loop ends with its context, although there is more to take.
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err = l.Wait(over, "rows", 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, _, err = l.ImportNext(over, "rows", 0, ImportOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	// Close ends a wait.
	ended := make(chan error)
	go func() {
		_, err := l.Wait(context.Background(), "never", 0)
		ended <- err
	}()
	time.Sleep(20 * time.Millisecond)
	must(t, l.Close())
	must(t, l.Close())
	expect(t, <-ended, ErrStaleHandle)
	_, err = l.Info()
	expect(t, err, ErrStaleHandle)
	must(t, h.Close())
	must(t, h.Close())
	_, err = h.Info()
	expect(t, err, ErrStaleHandle)
	must(t, m.Close())
	for text, object := range map[string]any{"Hub{closed}": h, "Link{closed}": l, "Hub(nil)": (*Hub)(nil), "Link(nil)": (*Link)(nil)} {
		if got := fmt.Sprint(object); got != text {
			t.Errorf("%s instead of %s", got, text)
		}
	}
	must(t, (*Hub)(nil).Close())
	must(t, (*Link)(nil).Close())
	_, err = (*Hub)(nil).Info()
	expect(t, err, ErrInvalidArgument)
	_, err = (*Link)(nil).Entries()
	expect(t, err, ErrInvalidArgument)
}

// A dropped link is closed. A dropped hub stays, because other processes may be using it; so does exported memory.
func TestHubsAndLinksThatAreDropped(t *testing.T) {
	d := device(t)
	i := d.Instance()
	path := fmt.Sprintf("@gpumem-go-%d-dropped", os.Getpid())
	before := Collected()
	func() {
		h, err := i.OpenHub(HubOptions{Path: path})
		must(t, err)
		m := shareable(t, d, "hello")
		_, err = h.Publish("rows", exported(t, i, m.At(0), ExportOptions{}), PublishOptions{})
		must(t, err)
		_, err = i.Connect(LinkOptions{Path: path})
		must(t, err)
	}()
	collectUntil(t, "collected", func() bool {
		now := Collected()
		return now.Freed-before.Freed >= 1 && now.Kept-before.Kept >= 2 // Of other tests, too.
	})
	l, err := i.Connect(LinkOptions{Path: path})
	must(t, err)
	list, err := l.Entries()
	must(t, err)
	if len(list) != 1 {
		t.Errorf("the hub has %v", list)
	}
	must(t, l.Close())
	if _, err := i.CloseForce(); err != nil {
		t.Error(err)
	}
}
