// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"syscall"
	"testing"
	"unsafe"
)

// inForkedProcess runs a function in a child that has only this thread, and returns its result, 1 to 100. A signal ends
// the child if it hangs. It runs with GOMAXPROCS=1, and the goroutine is not locked to its thread: the scheduler, which
// may have asked for its turn just before, would look for another thread, and there is none in the child.
func inForkedProcess(t *testing.T, function func() int) int {
	id, _, number := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if number != 0 {
		t.Fatal(number)
	}
	if id == 0 {
		// Go's runtime ignores this signal: let it end the process, as is the default.
		byDefault := [4]uint64{} // struct sigaction of the kernel
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGALRM), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
		limit := [4]uint64{0, 0, 30, 0} // struct itimerval: once, after 30 seconds.
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETITIMER, 0, uintptr(unsafe.Pointer(&limit)), 0)
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(function()), 0, 0)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(int(id), &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		must(t, err)
		return status.ExitStatus()
	}
}
