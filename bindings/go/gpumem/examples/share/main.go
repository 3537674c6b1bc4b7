// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Command share starts itself twice more, and shares memory and an event with the processes that it starts.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"

	"github.com/gpumem/gpumem/bindings/go/gpumem"
)

func main() {
	work := export
	switch {
	case len(os.Args) > 1 && os.Args[1] == "attach":
		work = attach
	case len(os.Args) > 1 && os.Args[1] == "wait":
		work = wait
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
	return record(device, memory, handle)
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

// record fills memory in a stream, and lets another process wait for that on the device.
func record(device *gpumem.Device, memory *gpumem.Memory, handle gpumem.ShareHandle) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	filled, err := device.NewEvent(gpumem.EventOptions{Flags: gpumem.EventInterprocess | gpumem.EventDisableTiming})
	if err != nil {
		return err
	}
	defer filled.Close()
	defer stream.Synchronize() // Runs before the Closes, whichever return it is.
	if err := stream.Fill(memory.At(0), 27, 7, 1); err != nil {
		return err
	}
	if err := filled.Record(stream); err != nil {
		return err
	}
	// The record is made, so now the other process may wait for it.
	event, err := filled.Export()
	if err != nil {
		return err
	}
	secrets, err := json.Marshal([]gpumem.ShareHandle{event, handle})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.Command(program, "wait")
	other.Stdin, other.Stderr = bytes.NewReader(secrets), os.Stderr
	if err := other.Run(); err != nil {
		return err
	}
	return stream.Synchronize()
}

// wait is the other process.
func wait() error {
	var handles [2]gpumem.ShareHandle
	if err := json.NewDecoder(os.Stdin).Decode(&handles); err != nil {
		return err
	}
	instance, err := gpumem.Default()
	if err != nil {
		return err
	}
	device, err := instance.Device(0)
	if err != nil {
		return err
	}
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	filled, err := device.ImportEvent(handles[0])
	if err != nil {
		return err
	}
	defer filled.Close()
	memory, err := instance.Import(handles[1], gpumem.ImportOptions{})
	if err != nil {
		return err
	}
	defer memory.Close()
	// On the device: what comes behind it in the stream sees the bytes.
	if err := stream.WaitEvent(filled); err != nil {
		return err
	}
	if err := stream.Synchronize(); err != nil {
		return err
	}
	received := make([]byte, 27)
	if err := gpumem.CopyToSlice(instance, received, memory.Exported()); err != nil {
		return err
	}
	if !bytes.Equal(received, bytes.Repeat([]byte{7}, len(received))) {
		return errors.New("the fill is not complete")
	}
	return nil
}
