// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"math"
	"sync"
	"sync/atomic"
)

// gate keeps Close apart from the users of an object. Close waits for calls that are inside, as the library does. It is
// refused while a view, a host access or a registration holds the object. Nothing waits for Close, so a call may enter several objects
// in any order.
type gate struct {
	closing sync.Mutex
	inside  atomic.Int64 // Calls inside; far below 0 once closed, or while Close waits for them.
	holders atomic.Int64
	drained atomic.Pointer[chan struct{}]
	gone    atomic.Bool
	what    string // The object in messages; "" is "object".
	after   Status // Of calls after Close; 0 is ErrStaleHandle.
}

const gateClosed = math.MinInt64 / 2

// enter reports why the object cannot be used now.
func (g *gate) enter(function string) error {
	if g.inside.Add(1) > 0 {
		return nil
	}
	g.leave()
	if g.gone.Load() {
		what, status := g.what, g.after
		if what == "" {
			what = "object"
		}
		if status == 0 {
			status = ErrStaleHandle
		}
		return refusal(status, function, "this %s was closed; do not use it after that", what)
	}
	return refusal(ErrBusy, function, "another goroutine is closing the object")
}

func (g *gate) leave() {
	if g.inside.Add(-1) != gateClosed {
		return
	}
	if drained := g.drained.Load(); drained != nil {
		select {
		case *drained <- struct{}{}:
		default:
		}
	}
}

// hold is enter for longer than a call, until release.
func (g *gate) hold(function string) error {
	if err := g.enter(function); err != nil {
		return err
	}
	g.holders.Add(1)
	g.leave()
	return nil
}

func (g *gate) release() { g.holders.Add(-1) }

// occupied reports whether a call is inside.
func (g *gate) occupied() bool {
	inside := g.inside.Load()
	return inside != 0 && inside != gateClosed
}

func (g *gate) closed() bool { return g.gone.Load() }

// close runs destroy once, and reports whether this call did it. If it fails, nothing has changed.
func (g *gate) close(function string, destroy func() error) (bool, error) {
	if !g.closing.TryLock() {
		if calledByLibrary() {
			return false, waitsForItself(function)
		}
		g.closing.Lock()
	}
	defer g.closing.Unlock()
	if g.closed() {
		return false, nil
	}
	if err := g.shut(function); err != nil {
		return false, err
	}
	if err := destroy(); err != nil {
		g.inside.Add(-gateClosed)
		return false, err
	}
	g.gone.Store(true)
	return true, nil
}

// seize is the first half of close, for many objects at once; settle is the second. It reports whether this call has to
// settle the object, which is not so if it is closed.
func (g *gate) seize(function string) (bool, error) {
	if !g.closing.TryLock() {
		return false, refusal(ErrBusy, function, "another goroutine closes the object")
	}
	if g.closed() {
		g.closing.Unlock()
		return false, nil
	}
	if err := g.shut(function); err != nil {
		g.closing.Unlock()
		return false, err
	}
	return true, nil
}

// settle ends what seize began.
func (g *gate) settle(closed bool) {
	if closed {
		g.gone.Store(true)
	} else {
		g.inside.Add(-gateClosed)
	}
	g.closing.Unlock()
}

// shut refuses new calls, and waits until no call is inside.
func (g *gate) shut(function string) error {
	if g.inside.CompareAndSwap(0, gateClosed) {
		// The common case.
	} else if calledByLibrary() {
		return waitsForItself(function)
	} else {
		drained := make(chan struct{}, 1)
		g.drained.Store(&drained)
		for g.inside.Add(gateClosed); g.inside.Load() != gateClosed; {
			<-drained
		}
	}
	if g.holders.Load() > 0 {
		g.inside.Add(-gateClosed)
		return refusal(ErrBusy, function, "a view, a host access or a registration uses the object; end it, then call again")
	}
	return nil
}

// calledByLibrary reports whether this goroutine runs a function for the library, which another one may be waiting for.
func calledByLibrary() bool { return C.gpumem_go_is_inside() != 0 }

func waitsForItself(function string) error {
	return refusal(ErrInvalidState, function, "another goroutine uses the object, and may be waiting for this function to return")
}
