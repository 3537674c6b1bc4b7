// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

// #include "native.h"
import "C"

import (
	"context"
	"os"
	"runtime"
	"unsafe"
)

// FileOptions are options for copies between files and memory. The zero value goes through the page cache.
type FileOptions struct {
	Prefer FileFlags // FileDirect, or 0.
	// Progress is called before the first byte, after about each 64 MiB and at the end, and gets the bytes that are done and
	// all bytes. If it returns false, the call fails with ErrCancelled; bytes that are copied stay so. It runs as that of
	// SleepOptions does. It may be nil.
	Progress func(done, total uint64) bool
}

// FileCopied is what a copy between a file and memory has done, also if it then failed or was cancelled.
type FileCopied struct {
	// Bytes from the start on that were copied, with no gap: all, unless the call failed. A call for the others goes on from there.
	Size   uint64
	Direct uint64 // Bytes that bypassed the page cache; after a failure it may be more than Size.
}

// ReadFile reads bytes of a file, from an offset on, into memory of any kind, and returns when they are there. Threads of
// the library read on while the device copies what they have read. Where the file stands does not change. If it fails
// midway, any byte of the destination may have been written. If the file is closed meanwhile, that happens afterwards.
func (i *Instance) ReadFile(destination Address, file *os.File, offset, size uint64) error {
	_, err := i.copyFile("Instance.ReadFile", FileDirectionToMemory, destination, file, offset, size, FileOptions{})
	return err
}

// ReadFileWith is ReadFile with options. If it fails, it also returns how much was copied.
func (i *Instance) ReadFileWith(destination Address, file *os.File, offset, size uint64, options FileOptions) (FileCopied, error) {
	return i.copyFile("Instance.ReadFileWith", FileDirectionToMemory, destination, file, offset, size, options)
}

// ReadFileContext is ReadFileWith until the context is done. Then it returns the error of the context.
func (i *Instance) ReadFileContext(ctx context.Context, destination Address, file *os.File, offset, size uint64, options FileOptions) (copied FileCopied, err error) {
	err = untilDone(ctx, &options.Progress, nil, func() error {
		copied, err = i.copyFile("Instance.ReadFileContext", FileDirectionToMemory, destination, file, offset, size, options)
		return err
	})
	return copied, err
}

// WriteFile writes memory of any kind to a file, from an offset on, and returns when it is written: it is with the system
// then, not yet on the disk.
func (i *Instance) WriteFile(file *os.File, offset uint64, source Address, size uint64) error {
	_, err := i.copyFile("Instance.WriteFile", FileDirectionFromMemory, source, file, offset, size, FileOptions{})
	return err
}

// WriteFileWith is WriteFile with options. If it fails, it also returns how much was copied.
func (i *Instance) WriteFileWith(file *os.File, offset uint64, source Address, size uint64, options FileOptions) (FileCopied, error) {
	return i.copyFile("Instance.WriteFileWith", FileDirectionFromMemory, source, file, offset, size, options)
}

// WriteFileContext is WriteFileWith until the context is done. Then it returns the error of the context.
func (i *Instance) WriteFileContext(ctx context.Context, file *os.File, offset uint64, source Address, size uint64, options FileOptions) (copied FileCopied, err error) {
	err = untilDone(ctx, &options.Progress, nil, func() error {
		copied, err = i.copyFile("Instance.WriteFileContext", FileDirectionFromMemory, source, file, offset, size, options)
		return err
	})
	return copied, err
}

func (i *Instance) copyFile(name string, direction FileDirection, memory Address, file *os.File, offset, size uint64, options FileOptions) (FileCopied, error) {
	if err := memory.enterWork(name, size); err != nil {
		return FileCopied{}, err
	}
	defer memory.leave()
	desc := nativeCopyFileDesc{
		direction:  int32(direction),
		fileOffset: offset,
		pointer:    memory.value,
		size:       size,
		prefer:     uint64(options.Prefer),
	}
	desc.structSize = unsafe.Sizeof(desc)
	info := nativeCopyFileInfo{structSize: unsafe.Sizeof(nativeCopyFileInfo{})}
	files := []*os.File{file}
	if size == 0 {
		files = nil // nothing is looked at
	}
	var err error
	refused := withDescriptors(name, files, func(first *C.uint8_t, count C.uint32_t) {
		if count != 0 {
			desc.fileDescriptor = *(*int32)(unsafe.Pointer(first))
		}
		err = (&sleepCall{progress: options.Progress}).run(func(call C.uintptr_t, progress C.uint32_t) C.gpumem_go_result {
			return C.gpumem_go_copy_file(i.id(), inC(&desc), call, progress, inC(&info))
		})
	})
	runtime.KeepAlive(i)
	if refused != nil {
		return FileCopied{}, refused
	}
	return FileCopied{info.copied, info.direct}, calledAs(name, err)
}
