// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"runtime"
	"sync/atomic"
)

// CollectedObjects counts the objects that the garbage collector found unclosed.
type CollectedObjects struct {
	Freed uint64 // Objects that were closed.
	// Objects that stay, because a slice or number of theirs may still be in use, because work on them cannot be
	// observed complete, or because closing failed. They live until their instance is closed by force.
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
)

func outcomeOf(err error) outcome {
	if err != nil {
		return outcomeKept
	}
	return outcomeFreed
}

// closeWhenCollected closes an object that is dropped, on a goroutine of its own because that may wait for the device.
func closeWhenCollected[T any](object *T, closeDropped func(*T) outcome) {
	runtime.SetFinalizer(object, func(object *T) {
		go func() {
			switch closeDropped(object) {
			case outcomeFreed:
				collected.freed.Add(1)
			case outcomeKept:
				collected.kept.Add(1)
			}
		}()
	})
}

// closedByHand undoes closeWhenCollected.
func closedByHand[T any](object *T) { runtime.SetFinalizer(object, nil) }
