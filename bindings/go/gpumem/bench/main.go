// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Measures the cost of a call of the package beside the same call in C and beside an empty call from Go to C. It prints
// nanoseconds and ratios, and has no limits.
package main

/*
#cgo pkg-config: gpumem
#include "../headers.h"
#include <time.h>

static uint32_t empty(void) { return gpumem_version(); }

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

// Objects as C would have them, on the default instance.
static gpumem_device device;
static gpumem_stream stream;
static gpumem_event event;

static int prepare(void) {
  gpumem_instance instance;
  return gpumem_instance_default(&instance, NULL) < 0 || gpumem_device_get(instance, 0, &device, NULL) < 0 ||
         gpumem_stream_create(device, NULL, &stream, NULL) < 0 || gpumem_event_create(device, NULL, &event, NULL) < 0;
}

#define MEASURE(name, call)                           \
  static double name(int count) {                     \
    gpumem_error error = GPUMEM_ERROR_INIT;           \
    double start = now();                             \
    for (int i = 0; i < count; ++i) (void)(call);     \
    (void)error;                                      \
    return (now() - start) / count;                   \
  }
MEASURE(c_event_query, gpumem_event_query(event, &error))
MEASURE(c_event_record, gpumem_event_record(event, stream, &error))
MEASURE(c_stream_query, gpumem_stream_query(stream, &error))

// The same by one call from Go, without anything around it.
static void bare_event_query(void) { (void)gpumem_event_query(event, NULL); }
static void bare_event_record(void) { (void)gpumem_event_record(event, stream, NULL); }
static void bare_stream_query(void) { (void)gpumem_stream_query(stream, NULL); }

static gpumem_memory create(void) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  gpumem_memory memory = NULL;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = 4096;
  (void)gpumem_memory_create(device, &desc, &memory, &error);
  (void)gpumem_memory_get_info(memory, &info, &error);
  return memory;
}

static void destroy(gpumem_memory memory) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  (void)gpumem_memory_destroy(memory, &error);
}

static double c_memory(int count) {
  double start = now();
  for (int i = 0; i < count; ++i) destroy(create());
  return (now() - start) / count;
}
*/
import "C"

import (
	"fmt"
	"log"
	"math"
	"time"

	"github.com/gpumem/gpumem/bindings/go/gpumem"
)

// rounds is the number of measurements; the smallest counts, because disturbances only add time.
const rounds = 60

func perCall(count int, call func()) float64 {
	start := time.Now()
	for i := 0; i < count; i++ {
		call()
	}
	return float64(time.Since(start)) / float64(count)
}

func main() {
	instance, err := gpumem.Default()
	check(err)
	device, err := instance.Device(0)
	check(err)
	stream, err := device.NewStream(gpumem.StreamOptions{})
	check(err)
	event, err := device.NewEvent(gpumem.EventOptions{})
	check(err)
	if C.prepare() != 0 {
		log.Fatal("the objects of C cannot be made")
	}

	show := func(name string, count int, inC func(C.int) C.double, bareCall, packageCall func()) {
		empty, c, bare, own := math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
		for i := 0; i < rounds; i++ {
			empty = math.Min(empty, perCall(count, func() { C.empty() }))
			c = math.Min(c, float64(inC(C.int(count))))
			bare = math.Min(bare, perCall(count, bareCall))
			own = math.Min(own, perCall(count, packageCall))
			check(stream.Synchronize())
		}
		fmt.Printf("%s: %.1f ns in C, %.1f ns by a bare call from Go, %.1f ns by this package, which is %.1f ns above C; "+
			"an empty call takes %.1f ns, ratio %.2f\n", name, c, bare, own, own-c, empty, (own-c)/empty)
	}
	show("event query", 2000, func(n C.int) C.double { return C.c_event_query(n) },
		func() { C.bare_event_query() }, func() { _, _ = event.Query() })
	show("stream query", 2000, func(n C.int) C.double { return C.c_stream_query(n) },
		func() { C.bare_stream_query() }, func() { _, _ = stream.Query() })
	show("event record", 200, func(n C.int) C.double { return C.c_event_record(n) },
		func() { C.bare_event_record() }, func() { _ = event.Record(stream) })
	show("memory, made and closed", 20, func(n C.int) C.double { return C.c_memory(n) },
		func() { C.destroy(C.create()) }, func() {
			memory, err := device.NewMemory(gpumem.MemoryOptions{Kind: gpumem.KindDevice, Size: 4096})
			check(err)
			check(memory.Close())
		})
	check(event.Close())
	check(stream.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
