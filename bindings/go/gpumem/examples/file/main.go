// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Weights in a file behind a header, read into memory of a device.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/gpumem/gpumem/bindings/go/gpumem"
)

const (
	header = 100
	size   = 12 << 20
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	instance, err := gpumem.Default()
	if err != nil {
		return err
	}
	device, err := instance.Device(0)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "gpumem")
	if err != nil {
		return err
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return err
	}
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(i*7 + i/1000)
	}
	if _, err := file.WriteAt(content, header); err != nil {
		return err
	}

	weights, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: size})
	if err != nil {
		return err
	}
	last := uint64(0)
	show := func(done, total uint64) bool {
		last = 100 * done / total
		return true // false ends the call
	}
	if _, err := instance.ReadFileWith(weights.At(0), file, header, size, gpumem.FileOptions{Progress: show}); err != nil {
		return err
	}
	back := make([]byte, size)
	if err := gpumem.CopyToSlice(instance, back, weights.At(0)); err != nil {
		return err
	}
	same := map[bool]string{true: "equal", false: "different"}[bytes.Equal(back, content)]
	fmt.Printf("%d %% are there, content %s\n", last, same)

	// More than the file has.
	err = instance.ReadFile(weights.At(0), file, header+1, size)
	var detail *gpumem.Error
	if !errors.As(err, &detail) {
		return fmt.Errorf("this should have failed, but got: %w", err)
	}
	fmt.Printf("%s: %s\n", detail.Name(), detail.Message)
	if err := weights.Close(); err != nil {
		return err
	}
	stats, err := instance.Stats()
	fmt.Println("live objects:", stats.Live())
	return err
}
