// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"errors"
	"math"
	"runtime"
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

// Hub has shared memory and events under names, for processes that connect. A name has versions, numbered upwards while the
// hub is open: publishing adds one, and readers of older ones keep them. With HubKeeper it is a keeper, in which others publish, and which holds their memory
// after they have ended.
type Hub struct {
	handled
	instance *Instance
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
	if err := options.check("Instance.OpenHub"); err != nil {
		return nil, err
	}
	desc := options.native()
	path := optionalText(options.Path)
	defer C.free(unsafe.Pointer(path))
	handle, err := valueOf[uintptr](C.gpumem_go_hub_open(i.id(), inC(&desc), path, first(options.Users),
		first(options.Groups), first(options.Token.bytes()), options.Name), i)
	if err != nil {
		return nil, err
	}
	h := &Hub{instance: i, handled: handled{handle: handle}}
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
	if h == nil {
		return nil
	}
	return closeObject(h, &h.handled, func() error { return failure(C.gpumem_go_hub_close(h.id())) })
}

// Publish publishes a handle under a name, as its newest version, and returns the number of that. The work that fills the
// memory must be complete. A name has up to 63 bytes of UTF-8, without "/".
func (h *Hub) Publish(name string, handle ShareHandle, options PublishOptions) (version uint64, err error) {
	if err := checkTexts("Hub.Publish", name); err != nil {
		return 0, err
	}
	desc := options.native()
	return valueOf[uint64](C.gpumem_go_hub_publish(h.id(), name, handle.native(), inC(&desc)), h)
}

// Withdraw withdraws one version of a name, or all if version is 0. Importers keep what they have.
func (h *Hub) Withdraw(name string, version uint64) error {
	if err := checkTexts("Hub.Withdraw", name); err != nil {
		return err
	}
	return checked(C.gpumem_go_hub_withdraw(h.id(), name, C.uint64_t(version)), h)
}

// Link is a connection to a hub.
type Link struct {
	handled
	instance *Instance
}

// Connect connects to a hub. It does not wait for one to be opened: on ErrNotFound, pause and try again. This instance will
// import what is fetched.
func (i *Instance) Connect(options LinkOptions) (*Link, error) {
	if err := options.check("Instance.Connect"); err != nil {
		return nil, err
	}
	path := optionalText(options.Path)
	defer C.free(unsafe.Pointer(path))
	handle, err := valueOf[uintptr](C.gpumem_go_link_connect(i.id(), path, first(options.Token.bytes()), C.uint32_t(len(options.Token.bytes())),
		C.uint64_t(options.Timeout)), i)
	if err != nil {
		return nil, err
	}
	l := &Link{instance: i, handled: handled{handle: handle}}
	closeWhenDropped(l, i)
	return l, nil
}

// Close closes the link. What was imported through it stays. A Wait of another goroutine fails with ErrStaleHandle.
func (l *Link) Close() error {
	if l == nil {
		return nil
	}
	return closeObject(l, &l.handled, func() error { return failure(C.gpumem_go_link_close(l.id())) })
}

// Entries lists the versions in the hub, in the order of names and versions. What is published or withdrawn meanwhile may
// be missing or appear twice.
func (l *Link) Entries() (list []Entry, err error) {
	defer runtime.KeepAlive(l)
	for index := C.uint32_t(0); ; index++ {
		info := nativeEntryInfo{structSize: unsafe.Sizeof(nativeEntryInfo{})}
		result := C.gpumem_go_link_enumerate(l.id(), index, inC(&info))
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
	info := nativeEntryInfo{structSize: unsafe.Sizeof(nativeEntryInfo{})}
	wait := func(limit C.uint64_t) (found bool, err error) {
		return succeeded(C.gpumem_go_link_wait(l.id(), name, C.uint64_t(after), limit, inC(&info)))
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
	info := nativeEntryInfo{structSize: unsafe.Sizeof(nativeEntryInfo{})}
	var made C.gpumem_go_import
	wait := func(limit C.uint64_t) (found bool, err error) {
		made = C.gpumem_go_link_import_next(l.id(), name, C.uint64_t(after), limit, inC(&desc), options.Name,
			inC(&info))
		return succeeded(made.memory.result)
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

// Fetch fetches the handle of a name. Its descriptors and connection are kept until it is imported, or for 30 seconds.
func (l *Link) Fetch(name string, options FetchOptions) (ShareHandle, error) {
	if err := checkTexts("Link.Fetch", name); err != nil {
		return ShareHandle{}, err
	}
	desc := options.native()
	defer runtime.KeepAlive(l)
	return newHandle(func(bytes *C.uint8_t) error {
		return failure(C.gpumem_go_link_fetch(l.id(), name, inC(&desc), bytes))
	})
}

// Publish publishes a handle of this link's instance, exported by ShareWayPOSIXFD, in a keeper, as [Hub.Publish] does. The
// keeper takes its descriptors, and so the memory outlives this process.
func (l *Link) Publish(name string, handle ShareHandle, options PublishOptions) (version uint64, err error) {
	if err := checkTexts("Link.Publish", name); err != nil {
		return 0, err
	}
	desc := options.native()
	return valueOf[uint64](C.gpumem_go_link_publish(l.id(), name, handle.native(), inC(&desc)), l)
}

// Withdraw withdraws one version of a name from a keeper, or all if version is 0.
func (l *Link) Withdraw(name string, version uint64) error {
	if err := checkTexts("Link.Withdraw", name); err != nil {
		return err
	}
	return checked(C.gpumem_go_link_withdraw(l.id(), name, C.uint64_t(version)), l)
}
