// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// A text goes to the device and back.
package main

import (
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
	instance, err := gpumem.Default()
	if err != nil {
		return err
	}
	device, err := instance.Device(0)
	if err != nil {
		return err
	}
	memory, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 4096})
	if err != nil {
		return err
	}
	defer memory.Close()

	sent, received := []byte("to the device and back"), make([]byte, 22)
	if err := gpumem.CopyFromSlice(instance, memory.At(0), sent); err != nil {
		return err
	}
	if err := gpumem.CopyToSlice(instance, received, memory.At(0)); err != nil {
		return err
	}
	fmt.Println(string(received))
	return nil
}
