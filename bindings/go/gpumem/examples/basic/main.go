// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A megabyte from pinned memory to the device and back.
package main

import (
	"bytes"
	"fmt"
	"log"

	"github.com/gpumem/gpumem/bindings/go/gpumem"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	const size = 1 << 20
	instance, err := gpumem.Default()
	if err != nil {
		return err
	}
	device, err := instance.Device(0)
	if err != nil {
		return err
	}
	if err := roundTrip(instance, device, size); err != nil {
		return err
	}
	stats, err := instance.Stats()
	fmt.Println("live objects:", stats.Live())
	return err
}

func roundTrip(instance *gpumem.Instance, device *gpumem.Device, size int) error {
	sent, err := gpumem.NewPinned[byte](device, size, gpumem.MemoryOptions{})
	if err != nil {
		return err
	}
	defer sent.Close()
	received, err := gpumem.NewPinned[byte](device, size, gpumem.MemoryOptions{})
	if err != nil {
		return err
	}
	defer received.Close()
	there, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: uint64(size)})
	if err != nil {
		return err
	}
	defer there.Close()

	for i := range sent.Slice() {
		sent.Slice()[i] = byte(i * 7)
	}
	if err := instance.Copy(there.At(0), sent.At(0), there.Size()); err != nil {
		return err
	}
	if err := instance.Copy(received.At(0), there.At(0), there.Size()); err != nil {
		return err
	}
	if !bytes.Equal(sent.Slice(), received.Slice()) {
		return fmt.Errorf("basic: the content is different")
	}
	fmt.Printf("basic: %d bytes to the device and back, content equal\n", size)
	return nil
}
