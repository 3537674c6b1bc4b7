// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// newFile makes a file with a content, which is gone after the test.
func newFile(t testing.TB, content []byte) *os.File {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "file")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if _, err := file.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	return file
}

func fileContent(t testing.TB, file *os.File) []byte {
	t.Helper()
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestFilesThereAndBack(t *testing.T) {
	d := device(t)
	i := d.Instance()
	const size = 9<<20 + 5
	content := numbered(size)
	from, to := newFile(t, append([]byte("abc"), content...)), newFile(t, nil)
	m := newMemory(t, d, KindDevice, size)
	copied, err := i.ReadFileWith(m.At(0), from, 3, size, FileOptions{})
	if err != nil || copied != (FileCopied{size, 0}) {
		t.Fatal(copied, err)
	}
	copied, err = i.WriteFileWith(to, 0, m.At(0), size, FileOptions{Prefer: FileDirect})
	if err != nil || copied.Size != size || copied.Direct > size {
		t.Fatal(copied, err)
	}
	if !bytes.Equal(fileContent(t, to), content) {
		t.Error("other bytes came back")
	}
	if err := i.ReadFile(m.At(10), from, 0, 3); err != nil {
		t.Fatal(err)
	}
	if err := i.WriteFile(to, 1, m.At(10), 3); err != nil {
		t.Fatal(err)
	}
	if found := fileContent(t, to)[1:4]; string(found) != "abc" {
		t.Error(found)
	}
}

func TestFilesProgress(t *testing.T) {
	d := device(t)
	i := d.Instance()
	file := newFile(t, numbered(1000))
	m := newMemory(t, d, KindPinned, 1000)
	var told []uint64
	_, err := i.ReadFileWith(m.At(0), file, 0, 1000, FileOptions{Progress: func(done, total uint64) bool {
		told = append(told, done, total)
		return true
	}})
	if err != nil || len(told) != 4 || told[0] != 0 || told[1] != 1000 || told[2] != 1000 || told[3] != 1000 {
		t.Fatal(told, err)
	}
	_, err = i.WriteFileWith(file, 0, m.At(0), 1000, FileOptions{Progress: func(done, total uint64) bool { return false }})
	expect(t, err, ErrCancelled)
	ctx, cancel := context.WithCancel(context.Background())
	_, err = i.ReadFileContext(ctx, m.At(0), file, 0, 1000, FileOptions{Progress: func(done, total uint64) bool {
		cancel()
		return true
	}})
	if err != context.Canceled {
		t.Error(err)
	}
	if _, err = i.WriteFileContext(context.Background(), file, 0, m.At(0), 10, FileOptions{}); err != nil {
		t.Error(err)
	}
	func() {
		defer func() {
			if caught := recover(); caught != "in a progress function" {
				t.Error(caught)
			}
		}()
		_, _ = i.ReadFileWith(m.At(0), file, 0, 1000, FileOptions{Progress: func(done, total uint64) bool { panic("in a progress function") }})
	}()
}

// The library uses the descriptor itself, so that it must not be another file's meanwhile.
func TestFilesClosedDuringTheCall(t *testing.T) {
	d := device(t)
	i := d.Instance()
	m := newMemory(t, d, KindDevice, 1000)
	file := newFile(t, numbered(1000))
	closed := false
	copied, err := i.ReadFileWith(m.At(0), file, 0, 1000, FileOptions{Progress: func(done, total uint64) bool {
		if !closed {
			closed = file.Close() == nil
		}
		return true
	}})
	if err != nil || copied.Size != 1000 || !closed {
		t.Error(copied, err, closed)
	}
	expect(t, i.ReadFile(m.At(0), file, 0, 1000), ErrInvalidArgument)
}

func TestFilesCopiedBeforeAFailure(t *testing.T) {
	d := device(t)
	i := d.Instance()
	const size, cut = 6 << 20, 5<<20 + 5
	content := numbered(size)
	file := newFile(t, content)
	m, back := newMemory(t, d, KindDevice, size), newMemory(t, d, KindPinned, size)
	copied, err := i.ReadFileWith(m.At(0), file, 0, size, FileOptions{Progress: func(done, total uint64) bool {
		return file.Truncate(cut) == nil
	}})
	expect(t, err, ErrInvalidState)
	if copied.Size == 0 || copied.Size > cut {
		t.Fatal(copied)
	}
	must(t, i.Copy(back.At(0), m.At(0), copied.Size))
	if !bytes.Equal(back.Bytes()[:copied.Size], content[:copied.Size]) {
		t.Error("other bytes were copied")
	}
	must(t, i.ReadFile(m.At(copied.Size), file, copied.Size, cut-copied.Size))
	copied, err = i.WriteFileWith(file, 0, m.At(0), size, FileOptions{Progress: func(done, total uint64) bool { return false }})
	expect(t, err, ErrCancelled)
	if copied != (FileCopied{}) {
		t.Error(copied)
	}
}

func TestFilesRefused(t *testing.T) {
	d := device(t)
	i := d.Instance()
	file := newFile(t, numbered(5))
	m := newMemory(t, d, KindDevice, 100)
	err := i.ReadFile(m.At(0), file, 0, 6)
	expect(t, err, ErrInvalidArgument)
	if !strings.Contains(err.Error(), "has 5 bytes") {
		t.Error(err)
	}
	expect(t, i.ReadFile(m.At(99), file, 0, 2), ErrInvalidArgument)
	expect(t, i.ReadFile(m.At(0), nil, 0, 2), ErrInvalidArgument)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	expect(t, i.ReadFile(m.At(0), read, 0, 2), ErrInvalidArgument)
	expect(t, i.WriteFile(write, 0, m.At(0), 2), ErrInvalidArgument)
	readOnly, err := os.Open(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	expect(t, i.WriteFile(readOnly, 0, m.At(0), 2), ErrNoAccess)
	if err := i.ReadFile(m.At(0), file, 0, 0); err != nil {
		t.Error(err)
	}
}

func TestNoFileIsMapped(t *testing.T) {
	_, err := MapFile[byte](nil, false)
	expect(t, err, ErrInvalidArgument)
}
