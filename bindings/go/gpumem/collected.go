// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"errors"
	"runtime"
	"sync/atomic"
)

// CollectedObjects counts the objects that the garbage collector found unclosed.
type CollectedObjects struct {
	Freed uint64 // Objects that were closed.
	// Objects that stay, because a slice or number of theirs may still be in use, because work on them cannot be
	// observed complete, or because closing failed. They live until their instance is closed by force. If closing failed
	// with ErrBusy, each collection tries again, and then counts them as freed instead.
	Kept uint64
}

var collected struct{ freed, kept atomic.Uint64 }

// Collected returns the number of objects that were dropped without Close, in the whole process.
func Collected() CollectedObjects {
	return CollectedObjects{collected.freed.Load(), collected.kept.Load()}
}

// outcome is the result for an object that was dropped.
type outcome int

const (
	outcomeKept outcome = iota
	outcomeFreed
	outcomeGone // It was destroyed with its instance, so it is not counted.
	outcomeBusy // Something uses it now.
)

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return outcomeFreed
	case errors.Is(err, ErrBusy):
		return outcomeBusy
	}
	return outcomeKept
}

// closeWhenCollected closes an object that is dropped, on a goroutine of its own because that may wait for the device.
func closeWhenCollected[T any](object *T, closeDropped func(*T) outcome) {
	closeLater(object, closeDropped, false)
}

func closeLater[T any](object *T, closeDropped func(*T) outcome, kept bool) {
	runtime.SetFinalizer(object, func(object *T) {
		go func() {
			how := closeDropped(object)
			switch {
			case how == outcomeFreed:
				collected.freed.Add(1)
				if kept {
					collected.kept.Add(^uint64(0))
				}
			case (how == outcomeKept || how == outcomeBusy) && !kept:
				collected.kept.Add(1)
			}
			if how == outcomeBusy {
				closeLater(object, closeDropped, true) // It is found dropped again.
			}
		}()
	})
}

// closedByHand undoes closeWhenCollected.
func closedByHand[T any](object *T) { runtime.SetFinalizer(object, nil) }
