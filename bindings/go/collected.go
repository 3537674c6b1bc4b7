// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"runtime"
	"sync/atomic"
)

// CollectedObjects counts what the garbage collector found that was not closed.
type CollectedObjects struct {
	Freed uint64 // Given back.
	// Kept as they are, because a slice or number of theirs may still be in use, or because work on them cannot be
	// seen to be complete, or because closing failed. They live until their instance is closed by force.
	Kept uint64
}

var collected struct{ freed, kept atomic.Uint64 }

// Collected counts the objects that were dropped without Close, in the whole process.
func Collected() CollectedObjects {
	return CollectedObjects{collected.freed.Load(), collected.kept.Load()}
}

// outcome is what became of an object that was dropped.
type outcome int

const (
	outcomeKept outcome = iota
	outcomeFreed
	outcomeGone // It ended with its instance, so nothing was forgotten.
)

func outcomeOf(err error) outcome {
	if err != nil {
		return outcomeKept
	}
	return outcomeFreed
}

// closeWhenCollected is the net under objects that are dropped. It gives them back on a goroutine of its own, since
// that may wait for the device.
func closeWhenCollected[T any](object *T, give func(*T) outcome) {
	runtime.SetFinalizer(object, func(object *T) {
		go func() {
			switch give(object) {
			case outcomeFreed:
				collected.freed.Add(1)
			case outcomeKept:
				collected.kept.Add(1)
			}
		}()
	})
}

// closedByHand takes the net away.
func closedByHand[T any](object *T) { runtime.SetFinalizer(object, nil) }
