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
