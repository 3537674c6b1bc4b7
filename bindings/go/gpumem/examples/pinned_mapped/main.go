// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Pinned memory with its flags, memory that is pinned where it lies, and a copy between the two on a stream.
package main

import (
	"fmt"
	"log"

	"github.com/gpumem/gpumem/bindings/go/gpumem"
)

func main() {
	instance, err := gpumem.Default()
	if err == nil {
		err = run(instance)
	}
	if err != nil {
		log.Fatal(err)
	}
	stats, err := instance.Stats()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("live objects:", stats.Live())
}

func run(instance *gpumem.Instance) error {
	device, err := instance.Device(0)
	if err != nil {
		return err
	}
	pinned, err := gpumem.NewPinned[int32](device, 16384, gpumem.MemoryOptions{
		Require: gpumem.MemoryPortable | gpumem.MemoryMapped,
	})
	if err != nil {
		return err
	}
	defer pinned.Close()
	combined, err := gpumem.NewPinned[int32](device, 16384, gpumem.MemoryOptions{Require: gpumem.MemoryWriteCombined})
	if err != nil {
		return err
	}
	defer combined.Close()
	if err := printFlags("pinned", pinned.Memory()); err != nil {
		return err
	}
	if err := printFlags("write-combined", combined.Memory()); err != nil {
		return err
	}
	fmt.Println("device pointer:", yesOrNo(pinned.DevicePtr() != 0))

	mine, err := gpumem.NewPageable[int32](16384)
	if err != nil {
		return err
	}
	defer mine.Close()
	for i := range mine.Slice() {
		mine.Slice()[i] = int32(i) * int32(i)
	}
	registered, err := mine.Register(device, gpumem.RegisterOptions{})
	if err != nil {
		return err
	}
	defer registered.Close()
	fmt.Printf("registered: %d bytes\n", registered.Size())

	if err := copyOnStream(instance, device, pinned, mine); err != nil {
		return err
	}
	for i, value := range pinned.Slice() {
		if value != mine.Slice()[i] {
			return fmt.Errorf("pinned_mapped: value %d is different", i)
		}
	}
	fmt.Printf("pinned_mapped: %d bytes on a stream, content equal\n", pinned.Size())
	return nil
}

func copyOnStream(instance *gpumem.Instance, device *gpumem.Device, to *gpumem.Pinned[int32],
	from *gpumem.Pageable[int32]) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	event, err := device.NewEvent(gpumem.EventOptions{})
	if err != nil {
		return err
	}
	defer event.Close()
	defer stream.Synchronize() // Runs before the Closes, whichever return it is.
	if err := stream.Copy(to.At(0), from.At(0), to.Size()); err != nil {
		return err
	}
	if err := event.Record(stream); err != nil {
		return err
	}
	return event.Synchronize()
}

func printFlags(name string, memory *gpumem.Memory) error {
	info, err := memory.Info()
	if err != nil {
		return err
	}
	has := func(flag gpumem.MemoryFlags) string { return yesOrNo(info.GrantedFlags&flag != 0) }
	fmt.Printf("%s: portable %s, mapped %s, write_combined %s\n", name, has(gpumem.MemoryPortable),
		has(gpumem.MemoryMapped), has(gpumem.MemoryWriteCombined))
	return nil
}

func yesOrNo(so bool) string {
	if so {
		return "yes"
	}
	return "no"
}
