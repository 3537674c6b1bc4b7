// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpumem/gpumem/bindings/go/gpumem"
)

// reader uses each new version of a name.
type reader struct {
	instance *gpumem.Instance
	current  *gpumem.Memory
	use      func(memory *gpumem.Memory) error
}

// follow goes on when the hub was restarted.
func (r *reader) follow(ctx context.Context, path, name string) error {
	for ctx.Err() == nil {
		link, err := r.instance.Connect(gpumem.LinkOptions{Path: path})
		if errors.Is(err, gpumem.ErrNotFound) {
			time.Sleep(10 * time.Millisecond) // No hub is there yet.
			continue
		}
		if err != nil {
			return err
		}
		err = r.followOne(ctx, link, name)
		_ = link.Close() // The first failure is reported.
		if !errors.Is(err, gpumem.ErrPeerGone) {
			return err
		}
	}
	return ctx.Err()
}

// followOne returns ErrPeerGone when the hub has ended.
func (r *reader) followOne(ctx context.Context, link *gpumem.Link, name string) error {
	for seen := uint64(0); ; { // Another hub counts anew.
		memory, entry, err := link.ImportNext(ctx, name, seen, gpumem.ImportOptions{})
		if err != nil {
			return err
		}
		seen = entry.Version
		// The new one is used from here on, and the old one is not needed.
		old := r.current
		r.current = memory
		if err := old.Close(); err != nil {
			return err
		}
		if err := r.use(memory); err != nil {
			return err
		}
	}
}

func ExampleLink_ImportNext() {
	onHost(followed)
	// Output:
	// version 1 is old
	// version 1 is new
}

func followed(instance *gpumem.Instance, device *gpumem.Device) error {
	other, err := gpumem.Open(gpumem.Options{Backend: gpumem.BackendHost})
	if err != nil {
		return err
	}
	defer other.Close()
	used, ended := make(chan string, 1), make(chan error, 1)
	r := &reader{instance: other, use: func(memory *gpumem.Memory) error {
		content := make([]byte, 3)
		err := gpumem.CopyToSlice(other, content, memory.Exported())
		used <- string(content)
		return err
	}}
	defer func() { _ = r.current.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	path := fmt.Sprintf("@gpumem-example-follow-%d", os.Getpid())
	go func() { ended <- r.follow(ctx, path, "model") }()
	for _, content := range []string{"old", "new"} {
		err := publishOnce(instance, device, path, content, func(version uint64) error {
			select {
			case found := <-used:
				fmt.Println("version", version, "is", found)
				return nil
			case err := <-ended:
				return err
			}
		})
		if err != nil {
			return err
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// publishOnce opens a hub for as long as a function takes, and publishes in it.
func publishOnce(instance *gpumem.Instance, device *gpumem.Device, path, content string, meanwhile func(version uint64) error) error {
	hub, err := instance.OpenHub(gpumem.HubOptions{Path: path})
	if err != nil {
		return err
	}
	defer hub.Close()
	buffer, err := device.NewGrowableBuffer(gpumem.BufferOptions{Size: uint64(len(content)), HandleTypes: gpumem.HandleTypePOSIXFD})
	if err != nil {
		return err
	}
	defer buffer.Close()
	if err := gpumem.CopyFromSlice(instance, buffer.At(0), []byte(content)); err != nil {
		return err
	}
	handle, err := instance.Export(buffer.At(0), gpumem.ExportOptions{})
	if err != nil {
		return err
	}
	version, err := hub.Publish("model", handle, gpumem.PublishOptions{})
	if err != nil {
		return err
	}
	return meanwhile(version)
}

// memory is what runs of a program hand on: imported memory, or a buffer.
type memory interface {
	At(offset uint64) gpumem.Address
	Close() error
}

// lastState is what the last run of this program left in a keeper, or new memory.
func lastState(instance *gpumem.Instance, link *gpumem.Link) (memory, error) {
	handle, err := link.Fetch("state", gpumem.FetchOptions{})
	if err == nil {
		return instance.Import(handle, gpumem.ImportOptions{})
	}
	if !errors.Is(err, gpumem.ErrNotFound) {
		return nil, err
	}
	device, err := instance.Device(0)
	if err != nil {
		return nil, err
	}
	buffer, err := device.NewGrowableBuffer(gpumem.BufferOptions{Size: 8, HandleTypes: gpumem.HandleTypePOSIXFD})
	if err != nil {
		return nil, err
	}
	if err := instance.Fill(buffer.At(0), 8, 0, 1); err != nil {
		return nil, err
	}
	if handle, err = instance.Export(buffer.At(0), gpumem.ExportOptions{}); err != nil {
		return nil, err
	}
	// The next run may write too.
	_, err = link.Publish("state", handle, gpumem.PublishOptions{Access: gpumem.AccessReadWrite})
	return buffer, err
}

func ExampleLink_Publish() {
	keeper, err := gpumem.Open(gpumem.Options{Backend: gpumem.BackendHost})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer keeper.Close()
	path := fmt.Sprintf("@gpumem-example-keeper-%d", os.Getpid())
	hub, err := keeper.OpenHub(gpumem.HubOptions{Path: path, Flags: gpumem.HubKeeper}) // In place of "gpumem keep".
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hub.Close()
	for run := 0; run < 3; run++ {
		if err := oneRun(path); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// run 0
	// run 1
	// run 2
}

// oneRun is a run of the program.
func oneRun(path string) error {
	instance, err := gpumem.Open(gpumem.Options{Backend: gpumem.BackendHost})
	if err != nil {
		return err
	}
	defer instance.Close()
	link, err := instance.Connect(gpumem.LinkOptions{Path: path})
	if err != nil {
		return err
	}
	defer link.Close()
	state, err := lastState(instance, link)
	if err != nil {
		return err
	}
	defer state.Close()
	count := make([]byte, 1)
	if err := gpumem.CopyToSlice(instance, count, state.At(0)); err != nil {
		return err
	}
	fmt.Println("run", count[0])
	count[0]++
	return gpumem.CopyFromSlice(instance, state.At(0), count)
}
