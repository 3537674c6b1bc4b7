// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Command share starts itself once more, and shares memory with the process that it starts.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"

	"github.com/gpumem/gpumem/bindings/go"
)

func main() {
	work := export
	if len(os.Args) > 1 {
		work = attach
	}
	if err := work(); err != nil {
		log.Fatal(err)
	}
}

// export shares memory, and lets another process write into it.
func export() error {
	instance, err := gpumem.Default()
	if err != nil {
		return err
	}
	device, err := instance.Device(0)
	if err != nil {
		return err
	}
	memory, err := device.NewMemory(gpumem.MemoryOptions{
		Kind: gpumem.KindDevice, Size: 2 << 20, Require: gpumem.MemoryShareable,
	})
	if err != nil {
		return err
	}
	defer memory.Close()
	if err := gpumem.CopyFromSlice(instance, memory.At(0), []byte("from one process to another")); err != nil {
		return err
	}
	handle, err := instance.Export(memory.At(0), gpumem.ExportOptions{})
	if err != nil {
		return err
	}
	secret, err := handle.MarshalText()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.Command(program, "attach")
	other.Stdin, other.Stdout, other.Stderr = bytes.NewReader(secret), os.Stdout, os.Stderr
	if err := other.Run(); err != nil {
		return err
	}
	answer := make([]byte, 9)
	if err := gpumem.CopyToSlice(instance, answer, memory.At(0)); err != nil {
		return err
	}
	fmt.Printf("share: it answered %q\n", answer)
	return nil
}

// attach imports the memory whose handle it reads, and answers in it.
func attach() error {
	secret, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var handle gpumem.ShareHandle
	if err := handle.UnmarshalText(secret); err != nil {
		return err
	}
	instance, err := gpumem.Default()
	if err != nil {
		return err
	}
	memory, err := instance.Import(handle, gpumem.ImportOptions{})
	if err != nil {
		return err
	}
	defer memory.Close()
	received := make([]byte, 27)
	if err := gpumem.CopyToSlice(instance, received, memory.At(0)); err != nil {
		return err
	}
	fmt.Printf("share: another process has %q\n", received)
	return gpumem.CopyFromSlice(instance, memory.At(0), []byte("thank you"))
}
