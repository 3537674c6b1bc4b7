// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the calls cost: medians in microseconds. Every line depends on the machine.
#include "facts.hpp"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

namespace facts {
namespace {

using Clock = std::chrono::steady_clock;

struct Size {
  const char* name;
  std::size_t bytes;
};
constexpr Size kSizes[] = {
    {"4KiB", 4 * kKiB}, {"64KiB", 64 * kKiB}, {"2MiB", 2 * kMiB}, {"64MiB", 64 * kMiB}, {"1GiB", kGiB}};

std::string median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  char text_of[32];
  std::snprintf(text_of, sizeof text_of, "%.2f us", times[times.size() / 2]);
  return text_of;
}

int rounds_for(std::size_t bytes) { return bytes >= kGiB ? 3 : bytes >= 64 * kMiB ? 7 : 51; }

// Steps done one after the other, the whole sequence several times; each step gets its own median.
struct Step {
  const char* name;
  std::function<void()> run;
};

void measure(const std::string& what, int rounds, const std::vector<Step>& steps) {
  std::vector<std::vector<double>> times(steps.size());
  for (int round = 0; round < rounds + 1; ++round) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto start = Clock::now();
      steps[i].run();
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      if (round > 0) times[i].push_back(took.count());
    }
  }
  for (std::size_t i = 0; i < steps.size(); ++i)
    say_machine(what + "." + steps[i].name, median(times[i]));
}

// For calls of well under a microsecond: the mean of many, the median of some such means.
void measure_short(const std::string& what, const std::function<void()>& call) {
  constexpr int kCalls = 1000;
  std::vector<double> times;
  for (int round = 0; round < 11; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i)
      call();
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    times.push_back(took.count() / kCalls);
  }
  std::sort(times.begin(), times.end());
  char text_of[32];
  std::snprintf(text_of, sizeof text_of, "%.4f us", times[times.size() / 2]);
  say_machine(what, text_of);
}

void device_alloc(int) {
  for (const Size& size : {Size{"4KiB", 4 * kKiB}, Size{"2MiB", 2 * kMiB}, Size{"1GiB", kGiB}}) {
    CUdeviceptr p = 0;
    measure(size.name, size.bytes >= kGiB ? 7 : 51,
            {{"cuMemAlloc", [&] { p = device_memory(size.bytes); }},
             {"cuMemFree", [&] { must(cu.MemFree(p), "cuMemFree"); }}});
  }
}

void pinned_alloc(int) {
  for (const Size& size : kSizes) {
    std::uint8_t* p = nullptr;
    measure(size.name, rounds_for(size.bytes),
            {{"cuMemHostAlloc", [&] { p = pinned_memory(size.bytes); }},
             {"cuMemFreeHost", [&] { must(cu.MemFreeHost(p), "cuMemFreeHost"); }}});
  }
}

std::uint8_t* map_huge(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) give_up("mmap");
  madvise(p, bytes, MADV_HUGEPAGE);
  return static_cast<std::uint8_t*>(p);
}

void touch_by_threads(std::uint8_t* p, std::size_t bytes, unsigned threads) {
  const auto touch = [](volatile std::uint8_t* from, const volatile std::uint8_t* to) {
    for (; from < to; from += kPage)
      *from = 1;
  };
  if (bytes < threads * 2 * kMiB) {
    touch(p, p + bytes);
    return;
  }
  std::vector<std::thread> workers;
  const std::size_t part = bytes / threads;
  for (unsigned i = 0; i < threads; ++i)
    workers.emplace_back(touch, p + i * part, p + (i + 1) * part);
  for (std::thread& worker : workers)
    worker.join();
}

void map_touch_register(int) {
  for (const Size& size : kSizes) {
    std::uint8_t* p = nullptr;
    measure(size.name, rounds_for(size.bytes),
            {{"mmap", [&] { p = map_huge(size.bytes); }},
             {"touch_8_threads", [&] { touch_by_threads(p, size.bytes, 8); }},
             {"cuMemHostRegister", [&] { must(cu.MemHostRegister(p, size.bytes, 0), "cuMemHostRegister"); }},
             {"cuMemHostUnregister", [&] { must(cu.MemHostUnregister(p), "cuMemHostUnregister"); }},
             {"munmap", [&] { munmap(p, size.bytes); }}});
  }
}

void register_populated(int huge) {
  for (const Size& size : kSizes) {
    std::uint8_t* p = map_huge(size.bytes);
    if (!huge) madvise(p, size.bytes, MADV_NOHUGEPAGE);
    touch_by_threads(p, size.bytes, 8);
    measure(size.name, rounds_for(size.bytes),
            {{"cuMemHostRegister", [&] { must(cu.MemHostRegister(p, size.bytes, 0), "cuMemHostRegister"); }},
             {"cuMemHostUnregister", [&] { must(cu.MemHostUnregister(p), "cuMemHostUnregister"); }}});
    munmap(p, size.bytes);
  }
}

void register_in_pieces(int) {
  constexpr std::size_t kBytes = 2 * kGiB;
  std::uint8_t* p = map_huge(kBytes);
  touch_by_threads(p, kBytes, 8);
  for (const Size& piece : {Size{"whole", kBytes}, Size{"512MiB", 512 * kMiB}, Size{"128MiB", 128 * kMiB},
                            Size{"2MiB", 2 * kMiB}}) {
    const auto each = [&](const std::function<CUresult(std::uint8_t*)>& call) {
      for (std::size_t at = 0; at < kBytes; at += piece.bytes)
        must(call(p + at), "the call");
    };
    measure(
        piece.name, 3,
        {{"cuMemHostRegister",
          [&] { each([&](std::uint8_t* at) { return cu.MemHostRegister(at, piece.bytes, 0); }); }},
         {"cuMemHostUnregister", [&] { each([](std::uint8_t* at) { return cu.MemHostUnregister(at); }); }}});
  }
  // Pieces by several threads at once: does the driver take them in parallel?
  measure("512MiB_by_4_threads", 3,
          {{"cuMemHostRegister",
            [&] {
              std::vector<std::thread> workers;
              for (std::size_t at = 0; at < kBytes; at += 512 * kMiB) {
                workers.emplace_back([p, at] {
                  (void)cu.CtxSetCurrent(context());
                  (void)cu.MemHostRegister(p + at, 512 * kMiB, 0);
                });
              }
              for (std::thread& worker : workers)
                worker.join();
            }},
           {"cuMemHostUnregister", [&] {
              for (std::size_t at = 0; at < kBytes; at += 512 * kMiB)
                (void)cu.MemHostUnregister(p + at);
            }}});
  munmap(p, kBytes);
}

void small_calls(int) {
  const CUdeviceptr device = device_memory(kMiB);
  std::uint8_t* pinned = pinned_memory(kMiB);
  std::uint8_t* pageable = cpu_memory(kMiB);
  CUpointer_attribute six[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                               CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_BUFFER_ID,
                               CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  std::uint64_t values[6] = {};
  void* slots[6];
  for (int i = 0; i < 6; ++i)
    slots[i] = &values[i];
  const auto query = [&](unsigned count, CUdeviceptr p) {
    (void)cu.PointerGetAttributes(count, six, slots, p);
  };
  measure_short("cuPointerGetAttributes_1_device", [&] { query(1, device); });
  measure_short("cuPointerGetAttributes_6_device", [&] { query(6, device); });
  measure_short("cuPointerGetAttributes_6_pinned", [&] { query(6, as_device(pinned)); });
  measure_short("cuPointerGetAttributes_6_pageable", [&] { query(6, as_device(pageable)); });
  measure_short("cuMemHostGetDevicePointer", [&] {
    CUdeviceptr p = 0;
    (void)cu.MemHostGetDevicePointer(&p, pinned, 0);
  });
  measure_short("cuMemGetAddressRange", [&] {
    CUdeviceptr p = 0;
    std::size_t size = 0;
    (void)cu.MemGetAddressRange(&p, &size, device);
  });
  measure_short("cuMemGetInfo", [] {
    std::size_t bytes = 0;
    (void)cu.MemGetInfo(&bytes, &bytes);
  });
  measure_short("cuCtxPushCurrent_PopCurrent", [] {
    CUcontext popped = nullptr;
    (void)cu.CtxPushCurrent(context());
    (void)cu.CtxPopCurrent(&popped);
  });
  measure_short("cuCtxGetCurrent", [] {
    CUcontext current = nullptr;
    (void)cu.CtxGetCurrent(&current);
  });
  measure_short("event_create_destroy", [] { (void)cu.EventDestroy(new_event()); });
  measure_short("untimed_event_create_destroy",
                [] { (void)cu.EventDestroy(new_event(CU_EVENT_DISABLE_TIMING)); });
  CUstream stream = new_stream();
  CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
  measure_short("event_record", [&] { (void)cu.EventRecord(event, stream); });
  must(cu.StreamSynchronize(stream), "cuStreamSynchronize");
  measure_short("event_query", [&] { (void)cu.EventQuery(event); });
  measure_short("stream_query", [&] { (void)cu.StreamQuery(stream); });
  measure_short("stream_is_capturing", [&] {
    CUstreamCaptureStatus status;
    (void)cu.StreamIsCapturing(stream, &status);
  });
  measure_short("copy_async_4KiB_and_synchronize", [&] {
    (void)cu.MemcpyHtoDAsync(device, pinned, 4 * kKiB, stream);
    (void)cu.StreamSynchronize(stream);
  });
  measure_short("host_function_and_synchronize", [&] {
    (void)cu.LaunchHostFunc(
        stream, [](void*) {}, nullptr);
    (void)cu.StreamSynchronize(stream);
  });
  CUstream made = nullptr;
  measure("stream", 51,
          {{"create", [&] { made = new_stream(); }},
           {"destroy", [&] { must(cu.StreamDestroy(made), "cuStreamDestroy"); }}});
}

constexpr Fact kFacts[] = {
    {.name = "time.device_alloc", .run = device_alloc},
    {.name = "time.pinned_alloc", .run = pinned_alloc},
    {.name = "time.map_touch_register", .run = map_touch_register},
    {.name = "time.register_populated_huge_pages", .run = register_populated, .arg = 1},
    {.name = "time.register_populated_small_pages", .run = register_populated, .arg = 0},
    {.name = "time.register_in_pieces", .run = register_in_pieces},
    {.name = "time.small_calls", .run = small_calls},
};

}  // namespace

std::span<const Fact> time_facts() { return kFacts; }

}  // namespace facts
