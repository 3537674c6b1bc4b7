// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Three mistakes, and the errors that the library returns for them.
package main

import (
	"errors"
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
	_, err = device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 0})
	show(err)
	_, err = device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 1 << 62})
	show(err)

	memory, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 4096})
	if err != nil {
		return err
	}
	// Only 8 bytes are left there.
	show(gpumem.CopyFromSlice(instance, memory.At(4088), make([]byte, 16)))
	if err := memory.Close(); err != nil {
		return err
	}

	info, err := gpumem.ErrBusy.Info()
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s; %s\n", info.Name, info.Cause, info.Remedy)
	stats, err := instance.Stats()
	fmt.Println("live objects:", stats.Live())
	return err
}

func show(err error) {
	var detail *gpumem.Error
	if errors.As(err, &detail) {
		fmt.Printf("%s: %s\n", detail.Name(), detail.Message)
	} else {
		fmt.Println("this should have failed, but got:", err)
	}
}
