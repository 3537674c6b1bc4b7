// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/gpumem/gpumem/bindings/go/gpumem"
)

func Example() {
	instance, err := gpumem.Default()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(gpumem.KindDevice, gpumem.MemoryPortable|gpumem.MemoryMapped, instance.Close())
	// Output: KindDevice MemoryPortable|MemoryMapped Instance.Close: the default instance cannot be closed; open one of your own if you need to close it (ErrInvalidState)
}

// onHost runs an example with the first device of an instance on the CPU.
func onHost(example func(instance *gpumem.Instance, device *gpumem.Device) error) {
	instance, err := gpumem.Open(gpumem.Options{Backend: gpumem.BackendHost})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer instance.Close()
	device, err := instance.Device(0)
	if err == nil {
		err = example(instance, device)
	}
	if err != nil {
		fmt.Println(err)
	}
}

func ExampleStream_SynchronizeContext() {
	onHost(inTime)
	// Output: context deadline exceeded
}

func inTime(instance *gpumem.Instance, device *gpumem.Device) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	release := make(chan struct{})
	defer close(release)
	if err := stream.Launch(func() { <-release }); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := stream.SynchronizeContext(ctx); err != nil {
		return err // context.DeadlineExceeded if the work takes longer.
	}
	return nil
}

func ExampleError() {
	err := allocateTooMuch()
	var detail *gpumem.Error
	if errors.Is(err, gpumem.ErrOutOfDeviceMemory) && errors.As(err, &detail) {
		fmt.Println(detail.Name(), "from", detail.Function)
	}
	// Output: GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY from gpumem_memory_create
}

func allocateTooMuch() error {
	instance, err := gpumem.Default()
	if err != nil {
		return err
	}
	device, err := instance.Device(0)
	if err != nil {
		return err
	}
	memory, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 1 << 62})
	if err != nil {
		return fmt.Errorf("making the table: %w", err)
	}
	return memory.Close()
}

func ExampleStream() {
	onHost(onStream)
	// Output: the last byte is 7
}

func onStream(instance *gpumem.Instance, device *gpumem.Device) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	there, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 1 << 20})
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := gpumem.NewPinned[byte](device, 1<<20, gpumem.MemoryOptions{})
	if err != nil {
		return err
	}
	defer here.Close()
	defer stream.Synchronize() // Runs before the Closes, whichever return it is.

	if err := stream.Fill(there.At(0), there.Size(), 7, 1); err != nil {
		return err
	}
	if err := stream.Copy(here.At(0), there.At(0), there.Size()); err != nil {
		return err
	}
	if err := stream.Synchronize(); err != nil {
		return err
	}
	fmt.Println("the last byte is", here.Slice()[here.Len()-1])
	return nil
}

func ExampleInstance_CopyRegions() {
	onHost(regions)
	// Output:
	// [0 1 2 8 9 10]
	// true region 1
}

func regions(instance *gpumem.Instance, device *gpumem.Device) error {
	image, err := gpumem.NewPageable[byte](64)
	if err != nil {
		return err
	}
	defer image.Close()
	tile, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 6})
	if err != nil {
		return err
	}
	defer tile.Close()
	for i := range image.Slice() {
		image.Slice()[i] = byte(i)
	}

	// The first 3 bytes of 2 rows, which are 8 bytes apart in the image and dense in the tile.
	corner := gpumem.Region{
		Destination: gpumem.Operand{Address: tile.At(0)},
		Source:      gpumem.Operand{Address: image.At(0), RowPitch: 8},
		Width:       3,
		Height:      2,
	}
	if err := instance.CopyRegions([]gpumem.Region{corner}); err != nil {
		return err
	}
	result := make([]byte, 6)
	if err := gpumem.CopyToSlice(instance, result, tile.At(0)); err != nil {
		return err
	}
	fmt.Println(result)

	tooHigh := corner
	tooHigh.Height = 3
	err = instance.CopyRegions([]gpumem.Region{corner, tooHigh})
	var failed *gpumem.RegionError
	if errors.As(err, &failed) {
		fmt.Println(errors.Is(err, gpumem.ErrInvalidArgument), "region", failed.Index)
	}
	return nil
}

func ExampleStream_HostLaunch() {
	onHost(square)
	// Output: [1 4 9 16]
}

func square(instance *gpumem.Instance, device *gpumem.Device) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	numbers, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 4})
	if err != nil {
		return err
	}
	defer numbers.Close()
	defer stream.Synchronize() // Runs before the Closes, whichever return it is.
	if err := gpumem.CopyFromSliceAsync(stream, numbers.At(0), []byte{1, 2, 3, 4}); err != nil {
		return err
	}
	err = stream.HostLaunch(func(kernel *gpumem.HostKernel) {
		view, err := kernel.View(numbers.At(0), 4, gpumem.AccessReadWrite)
		if err != nil {
			return // The device is lost now, as after a kernel that faults.
		}
		for i := range view {
			view[i] *= view[i]
		}
	})
	if err != nil {
		return err
	}
	if err := stream.Synchronize(); err != nil {
		return err
	}
	result := make([]byte, 4)
	if err := gpumem.CopyToSlice(instance, result, numbers.At(0)); err != nil {
		return err
	}
	fmt.Println(result)
	return nil
}

func ExamplePinned_View() {
	onHost(viewed)
	// Output: true while it is viewed: Close is refused
}

func viewed(instance *gpumem.Instance, device *gpumem.Device) error {
	numbers, err := gpumem.NewPinned[float64](device, 1000, gpumem.MemoryOptions{})
	if err != nil {
		return err
	}
	defer numbers.Close()
	return numbers.View(func(values []float64) error {
		values[999] = 1
		fmt.Println(errors.Is(numbers.Close(), gpumem.ErrBusy), "while it is viewed: Close is refused")
		return nil
	})
}

func ExampleManaged_View() {
	onHost(onBothSides)
	// Output: [7 7 2 3]
}

func onBothSides(instance *gpumem.Instance, device *gpumem.Device) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()

	table, err := gpumem.NewManaged[int32](device, 4, gpumem.MemoryOptions{})
	if err != nil {
		return err
	}
	defer table.Close()
	err = table.View(func(values []int32) error {
		for i := range values {
			values[i] = int32(i)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// The device uses the same address. Its pages can be there before they are needed.
	if _, err := stream.Prefetch(table.At(0), table.Size(), gpumem.LocationDevice, device.Ordinal()); err != nil {
		return err
	}
	defer stream.Synchronize() // Runs before the Closes, whichever return it is.
	if err := stream.Fill(table.At(0), 8, 7, 4); err != nil {
		return err
	}
	if err := stream.Synchronize(); err != nil {
		return err
	}

	access, err := table.BeginHostAccess()
	if err != nil {
		return err
	}
	defer access.Close()
	fmt.Println(access.Slice())
	return nil
}

func ExampleAddressRange() {
	onHost(growing)
	// Output: [1 2] at the seam
}

func growing(instance *gpumem.Instance, device *gpumem.Device) error {
	_, block, err := device.PhysicalGranularity(gpumem.PhysicalOptions{})
	if err != nil {
		return err
	}

	// A thousand blocks of addresses, and no memory.
	array, err := instance.ReserveRange(gpumem.RangeOptions{Size: 1000 * block, Name: "array"})
	if err != nil {
		return err
	}
	defer array.Close()
	if err := grow(device, array, 0, block); err != nil {
		return err
	}
	defer array.Unmap(0, block)
	if err := instance.Fill(array.At(0), block, 1, 1); err != nil {
		return err
	}
	// The first block stays where it is, with what is in it.
	if err := grow(device, array, block, block); err != nil {
		return err
	}
	defer array.Unmap(block, block)
	if err := instance.Fill(array.At(block), block, 2, 1); err != nil {
		return err
	}
	seam := make([]byte, 2)
	if err := gpumem.CopyToSlice(instance, seam, array.At(block-1)); err != nil {
		return err
	}
	fmt.Println(seam, "at the seam")
	return nil
}

// grow maps one more block behind the bytes in use, and gives the device access.
func grow(device *gpumem.Device, array *gpumem.AddressRange, used, block uint64) error {
	memory, err := device.NewPhysical(gpumem.PhysicalOptions{Size: block})
	if err != nil {
		return err
	}
	defer memory.Close() // The mapping keeps the memory.
	if err := array.Map(used, memory); err != nil {
		return err
	}
	return array.SetAccess(used, block, gpumem.ProcessorAccess{
		Location: gpumem.LocationDevice, LocationID: device.Ordinal(), Access: gpumem.AccessReadWrite,
	})
}

func ExampleGrowableBuffer() {
	onHost(weights)
	// Output:
	// [1 2] at the seam
	// 499500
}

func weights(instance *gpumem.Instance, device *gpumem.Device) error {
	const half = 4 << 20
	buffer, err := device.NewGrowableBuffer(gpumem.BufferOptions{Size: half, Reserve: 1 << 30, Name: "weights"})
	if err != nil {
		return err
	}
	defer buffer.Close()
	if err := instance.Fill(buffer.At(0), half, 1, 1); err != nil {
		return err
	}
	// Twice as large, at the same address, with the same bytes.
	if err := buffer.Resize(2 * half); err != nil {
		return err
	}
	if err := instance.Fill(buffer.At(half), half, 2, 1); err != nil {
		return err
	}

	if err := buffer.Sleep(gpumem.SleepOptions{Content: gpumem.ContentPageable}); err != nil {
		return err
	}
	// The device has its memory back.
	if err := buffer.Wake(gpumem.WakeOptions{}); err != nil {
		return err
	}
	seam := make([]byte, 2)
	if err := gpumem.CopyToSlice(instance, seam, buffer.At(half-1)); err != nil {
		return err
	}
	fmt.Println(seam, "at the seam")
	return numbersOfTheHost(device)
}

func numbersOfTheHost(device *gpumem.Device) error {
	numbers, err := device.NewGrowableBuffer(gpumem.BufferOptions{Size: 4000, Location: gpumem.LocationHost})
	if err != nil {
		return err
	}
	defer numbers.Close()
	return gpumem.ViewAs(numbers, func(values []int32) error {
		sum := int32(0)
		for i := range values {
			values[i] = int32(i)
			sum += values[i]
		}
		fmt.Println(sum)
		return nil
	})
}

func ExampleBuffer() {
	onHost(values)
	// Output: [7 7 1.5 2.5]
}

func values(instance *gpumem.Instance, device *gpumem.Device) error {
	table, err := gpumem.NewDeviceMemory[float32](device, 1000, gpumem.MemoryOptions{})
	if err != nil {
		return err
	}
	defer table.Close()
	if err := gpumem.Fill(instance, table.Span(), 7); err != nil {
		return err
	}

	found, err := gpumem.NewBuffer[float32](device, 2, gpumem.BufferOptions{Reserve: 1 << 30})
	if err != nil {
		return err
	}
	defer found.Close()
	if err := gpumem.Copy(instance, found.Span(), table.Span().Part(0, 2)); err != nil {
		return err
	}
	if err := found.Append(1.5, 2.5); err != nil {
		return err
	}

	result := make([]float32, found.Len())
	if err := gpumem.CopyToSlice(instance, result, found.At(0)); err != nil {
		return err
	}
	fmt.Println(result)
	return nil
}

func ExampleGrowableBuffer_Wait() {
	onHost(leaves)
	// Output: it can be used
}

func leaves(instance *gpumem.Instance, device *gpumem.Device) error {
	buffer, err := device.NewGrowableBuffer(gpumem.BufferOptions{Size: 4096, Reserve: 4096})
	if err != nil {
		return err
	}
	defer buffer.Close()
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	release := make(chan struct{})
	if err := stream.Launch(func() { <-release }); err != nil {
		return err
	}
	defer stream.Synchronize()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err = buffer.SleepContext(ctx, gpumem.SleepOptions{})
	close(release)
	if errors.Is(err, context.DeadlineExceeded) {
		// The buffer stays awake. It can be used again when Wait returns.
		err = buffer.Wait(context.Background())
	}
	if err != nil {
		return err
	}
	if err := instance.Fill(buffer.At(0), 4096, 7, 1); err != nil {
		return err
	}
	fmt.Println("it can be used")
	return nil
}

func ExampleGroup() {
	onHost(engine)
	// Output:
	// 0 of 8 MiB
	// 8 of 8 MiB
	// 2 asleep
	// [1 1] in the weights
}

func engine(instance *gpumem.Instance, device *gpumem.Device) error {
	group, err := instance.NewGroup(gpumem.GroupOptions{Name: "engine"})
	if err != nil {
		return err
	}
	defer group.Close()
	weights, err := device.NewGrowableBuffer(gpumem.BufferOptions{Size: 8 << 20, Group: group, Tag: "weights"})
	if err != nil {
		return err
	}
	defer weights.Close()
	cache, err := device.NewGrowableBuffer(gpumem.BufferOptions{Size: 4 << 20, Group: group, Tag: "cache"})
	if err != nil {
		return err
	}
	defer cache.Close()
	if err := instance.Fill(weights.At(0), weights.Size(), 1, 1); err != nil {
		return err
	}

	card, err := weights.NoteRegistration("network card")
	if err != nil {
		return err
	}
	err = weights.SetCallbacks(gpumem.BufferCallbacks{
		BeforeSleep: func() bool {
			return card.Close() == nil // false refuses to sleep.
		},
		AfterWake: func(uint64) {
			if card, err = weights.NoteRegistration("network card"); err != nil {
				fmt.Println(err)
			}
		},
	})
	if err != nil {
		return err
	}

	// What is in the cache can be computed again; the weights are kept.
	if err := group.Sleep(gpumem.SleepOptions{Tag: "cache", Content: gpumem.ContentDrop}); err != nil {
		return err
	}
	err = group.Sleep(gpumem.SleepOptions{
		Tag: "weights",
		Progress: func(done, total uint64) bool {
			fmt.Printf("%d of %d MiB\n", done>>20, total>>20)
			return true // false ends the call, and undoes what it did.
		},
	})
	if err != nil {
		return err
	}
	info, err := group.Info("")
	if err != nil {
		return err
	}
	fmt.Println(info.AsleepCount, "asleep")

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := group.WakeContext(ctx, gpumem.WakeOptions{}); err != nil {
		return err // context.DeadlineExceeded if it takes longer; then all of them sleep on.
	}
	defer card.Close()
	first := make([]byte, 2)
	if err := gpumem.CopyToSlice(instance, first, weights.At(0)); err != nil {
		return err
	}
	fmt.Println(first, "in the weights")
	return nil
}

func ExamplePool() {
	onHost(pooled)
	// Output: the next request has the memory of the one before: true
}

func pooled(instance *gpumem.Instance, device *gpumem.Device) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	pool, err := device.NewPool(gpumem.PoolOptions{Limit: 1 << 30, Name: "requests"})
	if err != nil {
		return err
	}
	defer pool.Close()
	before := gpumem.DevicePtr(0)
	for request := 0; request < 2; request++ {
		at, err := serve(pool, stream, 100_000)
		if err != nil {
			return err
		}
		if request > 0 {
			fmt.Println("the next request has the memory of the one before:", at == before)
		}
		before = at
	}
	return stream.Synchronize()
}

// serve uses a block for the work of a stream, and waits for nothing.
func serve(pool *gpumem.Pool, stream *gpumem.Stream, size uint64) (gpumem.DevicePtr, error) {
	block, err := pool.Alloc(size, stream)
	if err != nil {
		return 0, err
	}
	defer block.Free() // In the order of the stream: what is enqueued until then still has it.
	return block.DevicePtr(), stream.Fill(block.At(0), size, 0, 4)
}

func ExamplePool_staging() {
	onHost(staging)
	// Output: [0 1 2 3 4 5 6 7]
}

func staging(instance *gpumem.Instance, device *gpumem.Device) error {
	stream, err := device.NewStream(gpumem.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	staging, err := device.NewPool(gpumem.PoolOptions{Kind: gpumem.KindPinned})
	if err != nil {
		return err
	}
	defer staging.Close()
	const size = 100_000
	table, err := gpumem.NewDeviceMemory[byte](device, 8*size, gpumem.MemoryOptions{})
	if err != nil {
		return err
	}
	defer table.Close()
	defer stream.Synchronize()
	for step := 0; step < 8; step++ {
		if err := upload(staging, stream, table.Memory().At(uint64(step*size)), bytes.Repeat([]byte{byte(step)}, size)); err != nil {
			return err
		}
	}
	if err := stream.Synchronize(); err != nil {
		return err
	}
	content := make([]byte, 8*size)
	if err := gpumem.CopyToSlice(instance, content, table.Memory().At(0)); err != nil {
		return err
	}
	last := make([]byte, 8)
	for step := range last {
		last[step] = content[(step+1)*size-1]
	}
	fmt.Println(last)
	return nil
}

// upload sends values through a block of pinned memory, and waits for nothing.
func upload(staging *gpumem.Pool, stream *gpumem.Stream, to gpumem.Address, values []byte) error {
	block, err := staging.Alloc(uint64(len(values)), nil) // No stream: the CPU may write it at once.
	if err != nil {
		return err
	}
	defer block.Free() // After the copy.
	copy(block.Bytes(), values)
	return stream.Copy(to, block.At(0), block.Size())
}

func ExampleInstance_OpenHub() {
	onHost(withNames)
	// Output: batch 1 2097152 bytes
}

func withNames(instance *gpumem.Instance, device *gpumem.Device) error {
	handle, memory, err := shared(instance)
	if err != nil {
		return err
	}
	defer memory.Close()
	path := fmt.Sprintf("@gpumem-example-%d", os.Getpid())
	hub, err := instance.OpenHub(gpumem.HubOptions{Path: path})
	if err != nil {
		return err
	}
	defer hub.Close()
	if _, err := hub.Publish("batch", handle, gpumem.PublishOptions{}); err != nil {
		return err
	}
	return fetch(instance, path)
}

func fetch(instance *gpumem.Instance, path string) error {
	link, err := instance.Connect(gpumem.LinkOptions{Path: path})
	if err != nil {
		return err
	}
	defer link.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	entry, err := link.Wait(ctx, "batch", 0) // 0: any version.
	if err != nil {
		return err
	}
	handle, err := link.Fetch(entry.Name, gpumem.FetchOptions{Version: entry.Version})
	if err != nil {
		return err
	}
	info, err := handle.Info()
	if err != nil {
		return err
	}
	fmt.Println(entry.Name, entry.Version, info.Size, "bytes")
	return nil
}

// shared is memory that other processes can import, and its handle.
func shared(instance *gpumem.Instance) (handle gpumem.ShareHandle, memory *gpumem.Memory, err error) {
	device, err := instance.Device(0)
	if err != nil {
		return handle, nil, err
	}
	memory, err = device.NewMemory(gpumem.MemoryOptions{
		Kind: gpumem.KindDevice, Size: 2 << 20, Require: gpumem.MemoryShareable,
	})
	if err != nil {
		return handle, nil, err
	}
	handle, err = instance.Export(memory.At(0), gpumem.ExportOptions{})
	return handle, memory, err
}

func ExampleDevice_NewRing() {
	if os.Getenv("GPUMEM_GO_CHILD") != "" { // This program again, as the other process.
		if err := consume(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	onHost(produce)
	// Output:
	// message 0: first
	// message 1: second
}

func produce(instance *gpumem.Instance, device *gpumem.Device) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ring, err := device.NewRing(gpumem.RingOptions{SlotSize: 1 << 20, FirstConsumers: 1})
	if err != nil {
		return err
	}
	defer ring.Close()
	handle, err := ring.Export()
	if err != nil {
		return err
	}
	secret, err := handle.MarshalBinary()
	if err != nil {
		return err
	}
	worker := exec.Command(os.Args[0], "-test.run=^ExampleDevice_NewRing$")
	worker.Env = append(os.Environ(), "GPUMEM_GO_CHILD=1")
	worker.Stdin, worker.Stderr = bytes.NewReader(secret), os.Stdout
	if err := worker.Start(); err != nil {
		return err
	}
	for _, text := range []string{"first", "second"} {
		if err := send(ctx, ring, text); err != nil {
			return err
		}
	}
	if err := ring.Finish(ctx); err != nil { // Waits until all consumers have closed it.
		return err
	}
	return worker.Wait()
}

func send(ctx context.Context, ring *gpumem.RingProducer, text string) error {
	slot, err := ring.Acquire(ctx, nil)
	if err != nil {
		return err
	}
	defer slot.Drop() // Nothing, if it was published.
	if err := gpumem.CopyFromSlice(ring.Instance(), slot.At(0), []byte(text)); err != nil {
		return err
	}
	return slot.Publish(uint64(len(text)), 0)
}

func consume() error {
	instance, err := gpumem.Open(gpumem.Options{Backend: gpumem.BackendHost})
	if err != nil {
		return err
	}
	defer instance.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	secret, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var handle gpumem.ShareHandle
	if err := handle.UnmarshalBinary(secret); err != nil {
		return err
	}
	ring, err := instance.OpenRing(handle, gpumem.RingOpenOptions{})
	if err != nil {
		return err
	}
	defer ring.Close()
	return ring.Each(ctx, nil, func(message *gpumem.RingMessage) error {
		received := make([]byte, message.Size())
		if err := gpumem.CopyToSlice(instance, received, message.At(0)); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "message %d: %s\n", message.Number(), received)
		return nil
	})
}

func ExampleInstance_Send() {
	onHost(overASocket)
	// Output: true
}

func overASocket(instance *gpumem.Instance, device *gpumem.Device) error {
	handle, memory, err := shared(instance)
	if err != nil {
		return err
	}
	defer memory.Close()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var ends [2]net.Conn
	for index := range ends {
		file := os.NewFile(uintptr(pair[index]), "socket")
		defer file.Close()
		if ends[index], err = net.FileConn(file); err != nil {
			return err
		}
		defer ends[index].Close()
	}
	connection := ends[0].(*net.UnixConn)
	if err := instance.Send(connection, handle, gpumem.SendOptions{}); err != nil {
		return err
	}
	received, err := instance.Receive(ends[1].(*net.UnixConn)) // In another process, usually.
	if err != nil {
		return err
	}
	sent, err := handle.Info()
	if err != nil {
		return err
	}
	came, err := received.Info()
	fmt.Println(came == sent) // The handles differ: what was received says how it came.
	return err
}
