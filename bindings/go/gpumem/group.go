// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"math"
	"runtime"
	"sync"
	"unsafe"
)

// Group is buffers that sleep and wake as one. A buffer enters it when it is made ([BufferOptions].Group) and leaves it
// when it is closed. A call may be for all of them or for those with one tag.
type Group struct {
	handled
	instance *Instance
	mutex    sync.Mutex
	members  map[*growing]bool
	changes  map[*groupChange]bool
	left     leftCalls
}

// groupChange is a call that changes buffers of a group, and what it claims of each.
type groupChange struct {
	tag    string
	from   uint64
	claims map[*growing]*part
}

// NewGroup makes an empty group.
func (i *Instance) NewGroup(options GroupOptions) (*Group, error) {
	if err := options.check("Instance.NewGroup"); err != nil {
		return nil, err
	}
	handle, err := valueOf[uintptr](C.gpumem_go_group_create(i.id(), options.Name), i)
	if err != nil {
		return nil, err
	}
	g := &Group{instance: i, handled: handled{handle: handle}, members: map[*growing]bool{}, changes: map[*groupChange]bool{}}
	// Its buffers refer to it, so there is none any more.
	closeWhenDropped(g, i)
	return g, nil
}

// Close destroys the group. While a buffer belongs to it, it fails with ErrBusy.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	return closeObject(g, &g.handled, func() error { return changing(func() C.gpumem_go_result { return C.gpumem_go_group_destroy(g.id()) }) })
}

// enter takes a new buffer in. Calls for the group that run now may find it already, so they claim it too.
func (g *Group) enter(member *growing) {
	if g.id() == 0 {
		return
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.members[member] = true
	for change := range g.changes {
		if change.tag == "" || change.tag == member.tag {
			change.claims[member] = member.parts.claim(change.from, math.MaxUint64, true)
		}
	}
}

func (g *Group) leave(member *growing) {
	if g == nil {
		return
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	delete(g.members, member)
}

// begin claims the buffers with a tag from an offset on; it returns nil if a view uses one.
func (g *Group) begin(tag string, from uint64) *groupChange {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	change := &groupChange{tag, from, map[*growing]*part{}}
	for member := range g.members {
		if tag != "" && tag != member.tag {
			continue
		}
		claimed := member.parts.claim(from, math.MaxUint64, true)
		if claimed == nil {
			change.release()
			return nil
		}
		change.claims[member] = claimed
	}
	g.changes[change] = true
	return change
}

func (c *groupChange) release() {
	for member, claimed := range c.claims {
		member.parts.release(claimed)
	}
}

func (g *Group) end(change *groupChange) {
	g.mutex.Lock()
	delete(g.changes, change)
	g.mutex.Unlock()
	for member := range change.claims {
		_ = member.refresh(false) // It fails only if the buffer is gone.
	}
	change.release()
}

// changer makes calls that change the buffers with a tag.
func (g *Group) changer(tag string) changer {
	return func(function string, from uint64, call func() error) error {
		if g.id() == 0 {
			return call()
		}
		change := g.begin(tag, from)
		if change == nil {
			return refusal(ErrBusy, function, "a view uses a buffer of the group; end it, then call again")
		}
		defer g.end(change)
		defer runtime.KeepAlive(g)
		return call()
	}
}

// Sleep puts the buffers to sleep as one; those that sleep already stay as they are. If it fails, each that it put to
// sleep is woken again. One for which there is no memory any more stays asleep with its content, BufferStateFailed. It
// fails with ErrBusy while a View uses one of them.
func (g *Group) Sleep(options SleepOptions) error {
	return options.run("Group.Sleep", g.changer(options.Tag), func(desc *C.uint8_t, directory *C.char, call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result {
		return C.gpumem_go_group_sleep(g.id(), desc, directory, options.Tag, call, progress)
	})
}

// SleepContext is Sleep until the context is done. Then it undoes what it did, and returns the error of the context. If it is
// waiting for work then, the rest of the call is left behind, and its buffers cannot be used until that is undone, although
// they are BufferStateAwake: [Group.Wait] waits for that; see [GrowableBuffer.SleepContext].
func (g *Group) SleepContext(ctx context.Context, options SleepOptions) error {
	var left *leftCalls
	if g != nil {
		left = &g.left
	}
	return untilDone(ctx, &options.Progress, left, func() error { return g.Sleep(options) })
}

// Wait is [GrowableBuffer.Wait] for the calls of the group and of all its buffers.
func (g *Group) Wait(ctx context.Context) error {
	const name = "Group.Wait"
	if g.id() == 0 {
		return refusal(ErrInvalidArgument, name, "the group is nil")
	}
	g.mutex.Lock()
	all := []*leftCalls{&g.left}
	for member := range g.members {
		all = append(all, &member.left)
	}
	g.mutex.Unlock()
	for _, left := range all {
		if err := left.wait(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Wake wakes the buffers as one; those that are awake stay as they are. If it fails, those that it woke sleep again, and
// nothing is lost.
func (g *Group) Wake(options WakeOptions) error {
	return options.run("Group.Wake", g.changer(options.Tag), func(call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result {
		return C.gpumem_go_group_wake(g.id(), C.uint64_t(options.Keep), options.Tag, call, progress)
	})
}

// WakeContext is Wake until the context is done. Then the buffers sleep on, and it returns the error of the context. If a
// SleepContext is left behind, it waits for that first.
func (g *Group) WakeContext(ctx context.Context, options WakeOptions) error {
	if g != nil && g.handle != 0 {
		if err := g.Wait(ctx); err != nil {
			return err
		}
	}
	return untilDone(ctx, &options.Progress, nil, func() error { return g.Wake(options) })
}

// Prepare makes the stores of the buffers that are awake, as [GrowableBuffer.Prepare] does. With BytesPerSecond, the
// whole group keeps to it. If it fails, the stores that were made stay.
func (g *Group) Prepare(options PrepareOptions) error {
	defer runtime.KeepAlive(g)
	return options.run("Group.Prepare", func(directory *C.char) C.gpumem_go_result {
		return C.gpumem_go_group_prepare(g.id(), C.gpumem_content(options.Content), directory, options.Tag,
			C.uint64_t(options.BytesPerSecond))
	})
}

// Info gets information about the buffers with a tag, or about all if it is "".
func (g *Group) Info(tag string) (GroupInfo, error) {
	if err := checkTexts("Group.Info", tag); err != nil {
		return GroupInfo{}, err
	}
	info := nativeGroupInfo{structSize: unsafe.Sizeof(nativeGroupInfo{})}
	err := checked(C.gpumem_go_group_get_info(g.id(), tag, inC(&info)), g)
	return info.public(), err
}
