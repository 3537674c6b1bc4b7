// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Token is a secret of a hub, which its links must show. Printing and encodings leave it out. The zero value is none.
type Token struct {
	secret func() []byte // Not a slice, which fmt prints; nil stands for none.
}

// TokenOf makes a token of 1 to 256 bytes, which it copies.
func TokenOf(secret []byte) Token {
	own := append([]byte(nil), secret...)
	return Token{func() []byte { return own }}
}

// bytes returns the secret; nil if there is none.
func (t Token) bytes() []byte {
	if t.secret == nil {
		return nil
	}
	return t.secret()
}

// HubOptions are options for a hub. 0 as a limit means its default.
type HubOptions struct {
	// Path of the socket, up to 107 bytes. One that begins with "@" is an abstract address, which has no file. A name without
	// "/" stands for that file in $XDG_RUNTIME_DIR/gpumem, or in /tmp/gpumem-UID where that is not set; these folders are
	// made, for the user alone. "" stands for the name "default".
	Path        string
	Mode        os.FileMode // Permissions of the socket file; 0 means 0600: the user alone.
	Users       []uint32    // Users that may connect beside the own one, by their ids.
	Groups      []uint32    // Groups whose members may connect.
	Token       Token       // A secret that links must show; see TokenOf.
	Flags       HubFlags
	MaxLinks    uint32        // Links at once; 64 by default.
	MaxNames    uint32        // Names at once; 1,024 by default.
	MaxVersions uint32        // Versions of one name at once; 16 by default.
	MaxFiles    uint32        // Descriptors that are held at once; 4,096 by default.
	MaxBytes    uint64        // Bytes of memory that links may publish in a keeper; no limit by default.
	Timeout     time.Duration // How long a link may take for a message that it has begun; 5 seconds by default.
	Name        string        // For messages and reports, up to 63 bytes.
}

// Hub has shared memory and events under names, for processes that connect. A name has versions, numbered upwards while the
// hub is open: publishing adds one, and readers of older ones keep them. With HubKeeper it is a keeper, in which others publish, and which holds their memory
// after they have ended.
type Hub struct {
	instance *Instance
	handle   uintptr
	done     atomic.Bool
}

func (h *Hub) id() C.uintptr_t {
	if h == nil {
		return 0
	}
	return C.uintptr_t(h.handle)
}

// first is the address of a slice for C, which reads it during the call.
func first[T any](values []T) *C.uint8_t {
	if len(values) == 0 {
		return nil
	}
	return (*C.uint8_t)(unsafe.Pointer(&values[0]))
}

// checkLengths refuses slices that C cannot express.
func checkLengths(function string, lengths ...int) error {
	for _, length := range lengths {
		if uint64(length) > math.MaxUint32 {
			return refusal(ErrInvalidArgument, function, "%d values are too many", length)
		}
	}
	return nil
}

// checkToken refuses an empty one, such as that of a variable that is not set: C would take it for none.
func checkToken(function string, token Token) error {
	if token.secret != nil && len(token.secret()) == 0 {
		return refusal(ErrInvalidArgument, function, "Token is empty; give at least one byte, or no Token")
	}
	return checkLengths(function, len(token.bytes()))
}

// OpenHub opens a hub. A socket file that a dead process has left at the path is replaced. It publishes what this instance
// exports.
func (i *Instance) OpenHub(options HubOptions) (*Hub, error) {
	const name = "Instance.OpenHub"
	if err := checkTexts(name, options.Path, options.Name); err != nil {
		return nil, err
	}
	if err := checkLimits(name, options.Timeout); err != nil {
		return nil, err
	}
	if err := checkLengths(name, len(options.Users), len(options.Groups)); err != nil {
		return nil, err
	}
	if err := checkToken(name, options.Token); err != nil {
		return nil, err
	}
	desc := nativeHubDesc{
		mode:        uint32(options.Mode),
		userCount:   uint32(len(options.Users)),
		groupCount:  uint32(len(options.Groups)),
		tokenSize:   uint32(len(options.Token.bytes())),
		flags:       uint64(options.Flags),
		linksMax:    options.MaxLinks,
		namesMax:    options.MaxNames,
		versionsMax: options.MaxVersions,
		fdsMax:      options.MaxFiles,
		bytesMax:    options.MaxBytes,
		timeoutNs:   uint64(options.Timeout),
	}
	desc.structSize = unsafe.Sizeof(desc)
	path := optionalText(options.Path)
	defer C.free(unsafe.Pointer(path))
	result := C.gpumem_go_hub_open(i.id(), (*C.uint8_t)(unsafe.Pointer(&desc)), path, first(options.Users),
		first(options.Groups), first(options.Token.bytes()), options.Name)
	runtime.KeepAlive(i)
	if err := failure(result); err != nil {
		return nil, err
	}
	h := &Hub{instance: i, handle: uintptr(result.value)}
	// Other processes may be using it.
	closeWhenCollected(h, func(h *Hub) outcome {
		if h.instance.closed() {
			return outcomeGone
		}
		return outcomeKept
	})
	return h, nil
}

// Close closes the hub: its links hang up, its file is removed, and its names are gone. Memory that links have imported
// stays with them.
func (h *Hub) Close() error {
	if h == nil || h.handle == 0 || h.done.Load() {
		return nil
	}
	err := failure(C.gpumem_go_hub_close(h.id()))
	if err == nil || isGone(err) {
		if !h.done.Swap(true) {
			closedByHand(h)
		}
		err = nil
	}
	runtime.KeepAlive(h)
	return err
}

// Info gets information about the hub.
func (h *Hub) Info() (HubInfo, error) {
	var info nativeHubInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_hub_get_info(h.id(), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(h)
	return info.public(), err
}

// PublishOptions are options for publishing.
type PublishOptions struct {
	Version uint64 // Number of the version, above all that the name ever had; 0 means one more than the last.
	// The most that links get, within what the export allows: AccessRead or AccessReadWrite; 0 means AccessRead for
	// descriptors, and what the export allows otherwise.
	Access      Access
	Keep        uint32   // How many older versions to keep; those before are withdrawn. 0 means one.
	Fingerprint [32]byte // What the bytes are, such as a hash of them, to be fetched by; 0 means none.
}

func (o *PublishOptions) native() nativePublishDesc {
	desc := nativePublishDesc{version: o.Version, access: int32(o.Access), keep: o.Keep, fingerprint: o.Fingerprint}
	desc.structSize = unsafe.Sizeof(desc)
	return desc
}

// Publish publishes a handle under a name, as its newest version, and returns the number of that. The work that fills the
// memory must be complete. A name has up to 63 bytes of UTF-8, without "/".
func (h *Hub) Publish(name string, handle ShareHandle, options PublishOptions) (version uint64, err error) {
	if err := checkTexts("Hub.Publish", name); err != nil {
		return 0, err
	}
	desc := options.native()
	result := C.gpumem_go_hub_publish(h.id(), name, handle.native(), (*C.uint8_t)(unsafe.Pointer(&desc)))
	runtime.KeepAlive(h)
	return uint64(result.value), failure(result)
}

// Withdraw withdraws one version of a name, or all if version is 0. Importers keep what they have.
func (h *Hub) Withdraw(name string, version uint64) error {
	if err := checkTexts("Hub.Withdraw", name); err != nil {
		return err
	}
	err := failure(C.gpumem_go_hub_withdraw(h.id(), name, C.uint64_t(version)))
	runtime.KeepAlive(h)
	return err
}

// LinkOptions are options for connecting to a hub.
type LinkOptions struct {
	Path    string        // As in HubOptions.
	Token   Token         // That of the hub.
	Timeout time.Duration // How long the hub may take for each answer; 0 means 5 seconds.
}

// Link is a connection to a hub.
type Link struct {
	instance *Instance
	handle   uintptr
	done     atomic.Bool
}

func (l *Link) id() C.uintptr_t {
	if l == nil {
		return 0
	}
	return C.uintptr_t(l.handle)
}

// Connect connects to a hub. It does not wait for one to be opened: on ErrNotFound, pause and try again. This instance will
// import what is fetched.
func (i *Instance) Connect(options LinkOptions) (*Link, error) {
	const name = "Instance.Connect"
	if err := checkTexts(name, options.Path); err != nil {
		return nil, err
	}
	if err := checkLimits(name, options.Timeout); err != nil {
		return nil, err
	}
	if err := checkToken(name, options.Token); err != nil {
		return nil, err
	}
	path := optionalText(options.Path)
	defer C.free(unsafe.Pointer(path))
	result := C.gpumem_go_link_connect(i.id(), path, first(options.Token.bytes()), C.uint32_t(len(options.Token.bytes())),
		C.uint64_t(options.Timeout))
	runtime.KeepAlive(i)
	if err := failure(result); err != nil {
		return nil, err
	}
	l := &Link{instance: i, handle: uintptr(result.value)}
	closeWhenCollected(l, func(l *Link) outcome {
		if l.instance.closed() {
			return outcomeGone
		}
		return outcomeOf(l.Close())
	})
	return l, nil
}

// Close closes the link. What was imported through it stays. A Wait of another goroutine fails with ErrStaleHandle.
func (l *Link) Close() error {
	if l == nil || l.handle == 0 || l.done.Load() {
		return nil
	}
	err := failure(C.gpumem_go_link_close(l.id()))
	if err == nil || isGone(err) {
		if !l.done.Swap(true) {
			closedByHand(l)
		}
		err = nil
	}
	runtime.KeepAlive(l)
	return err
}

// Info gets information about the link.
func (l *Link) Info() (LinkInfo, error) {
	var info nativeLinkInfo
	info.structSize = unsafe.Sizeof(info)
	err := failure(C.gpumem_go_link_get_info(l.id(), (*C.uint8_t)(unsafe.Pointer(&info))))
	runtime.KeepAlive(l)
	return info.public(), err
}

// Entries lists the versions in the hub, in the order of names and versions. What is published or withdrawn meanwhile may
// be missing or appear twice.
func (l *Link) Entries() (list []Entry, err error) {
	defer runtime.KeepAlive(l)
	for index := C.uint32_t(0); ; index++ {
		var info nativeEntryInfo
		info.structSize = unsafe.Sizeof(info)
		result := C.gpumem_go_link_enumerate(l.id(), index, (*C.uint8_t)(unsafe.Pointer(&info)))
		if err := failure(result); errors.Is(err, ErrNotFound) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, info.public())
	}
}

// Wait waits until a name has a version after a given one, and returns the newest. 0 waits for any version. If the context is
// done first, it returns the error of the context within about 10 milliseconds; or ErrBusy, if the hub does not answer within the
// link's timeout.
//
// Fetch the version that it found; if that is ErrNotFound, newer ones have replaced it, so wait again. The numbers only grow
// while the hub is open, and another hub counts anew: after ErrPeerGone, connect again and begin with 0.
func (l *Link) Wait(ctx context.Context, name string, after uint64) (Entry, error) {
	if err := checkTexts("Link.Wait", name); err != nil {
		return Entry{}, err
	}
	var info nativeEntryInfo
	info.structSize = unsafe.Sizeof(info)
	wait := func(limit C.uint64_t) (found bool, err error) {
		result := C.gpumem_go_link_wait(l.id(), name, C.uint64_t(after), limit, (*C.uint8_t)(unsafe.Pointer(&info)))
		return Status(result.status) == Success, failure(result)
	}
	err := takeNext(ctx, wait)
	runtime.KeepAlive(l)
	if err != nil {
		return Entry{}, err
	}
	return info.public(), nil
}

// ImportNext waits until a name has memory after a given version, and imports the newest, which the entry describes. One that
// is replaced meanwhile is passed over. Otherwise it is Wait, Fetch and [Instance.Import]: to follow a name, pass the version
// of the last entry, or 0 after ErrPeerGone and Connect. The context is as in Wait. It takes no Files.
func (l *Link) ImportNext(ctx context.Context, name string, after uint64, options ImportOptions) (*Memory, Entry, error) {
	const function = "Link.ImportNext"
	if err := checkTexts(function, name, options.Name); err != nil {
		return nil, Entry{}, err
	}
	if err := checkLimits(function, options.Timeout); err != nil {
		return nil, Entry{}, err
	}
	if len(options.Files) != 0 {
		return nil, Entry{}, refusal(ErrInvalidArgument, function, "the descriptors come with what is fetched; pass no Files")
	}
	desc := options.native()
	var info nativeEntryInfo
	info.structSize = unsafe.Sizeof(info)
	var made C.gpumem_go_import
	wait := func(limit C.uint64_t) (found bool, err error) {
		made = C.gpumem_go_link_import_next(l.id(), name, C.uint64_t(after), limit, (*C.uint8_t)(unsafe.Pointer(&desc)), options.Name,
			(*C.uint8_t)(unsafe.Pointer(&info)))
		return Status(made.memory.result.status) == Success, failure(made.memory.result)
	}
	err := takeNext(ctx, wait)
	defer runtime.KeepAlive(l)
	defer runtime.KeepAlive(options.Device)
	if err != nil {
		return nil, Entry{}, err
	}
	memory, err := l.instance.imported(made, options.Device)
	if err != nil {
		return nil, Entry{}, err
	}
	return memory, info.public(), nil
}

// FetchOptions are options for fetching. The zero value fetches the newest version.
type FetchOptions struct {
	Version     uint64   // Number of the version; 0 means the newest.
	Fingerprint [32]byte // What the bytes must be; 0 means anything. With it and no version: the newest that has it.
}

// Fetch fetches the handle of a name. Its descriptors and connection are kept until it is imported, or for 30 seconds.
func (l *Link) Fetch(name string, options FetchOptions) (ShareHandle, error) {
	if err := checkTexts("Link.Fetch", name); err != nil {
		return ShareHandle{}, err
	}
	desc := nativeFetchDesc{version: options.Version, fingerprint: options.Fingerprint}
	desc.structSize = unsafe.Sizeof(desc)
	defer runtime.KeepAlive(l)
	return newHandle(func(bytes *C.uint8_t) error {
		return failure(C.gpumem_go_link_fetch(l.id(), name, (*C.uint8_t)(unsafe.Pointer(&desc)), bytes))
	})
}

// Publish publishes a handle of this link's instance, exported by ShareWayPOSIXFD, in a keeper, as [Hub.Publish] does. The
// keeper takes its descriptors, and so the memory outlives this process.
func (l *Link) Publish(name string, handle ShareHandle, options PublishOptions) (version uint64, err error) {
	if err := checkTexts("Link.Publish", name); err != nil {
		return 0, err
	}
	desc := options.native()
	result := C.gpumem_go_link_publish(l.id(), name, handle.native(), (*C.uint8_t)(unsafe.Pointer(&desc)))
	runtime.KeepAlive(l)
	return uint64(result.value), failure(result)
}

// Withdraw withdraws one version of a name from a keeper, or all if version is 0.
func (l *Link) Withdraw(name string, version uint64) error {
	if err := checkTexts("Link.Withdraw", name); err != nil {
		return err
	}
	err := failure(C.gpumem_go_link_withdraw(l.id(), name, C.uint64_t(version)))
	runtime.KeepAlive(l)
	return err
}
