// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Asks the driver what the way in which pinned memory is made depends on: how fast pages are touched,
// registered, unregistered and unmapped by how many threads and in pieces of which size; what a copy across
// the border of two registrations does; and how long other calls wait meanwhile. It uses the raw driver
// alone.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;
constexpr uint64_t kHuge = 2 * kMiB;
constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;

// clang-format off
#define PROBE_FUNCTIONS(X)                                                                                  \
  X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent)      \
  X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) \
  X(cuMemHostGetDevicePointer) X(cuMemcpyAsync) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemsetD8Async)  \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize) X(cuPointerGetAttribute)      \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord)
// clang-format on

struct Driver {
#define PROBE_MEMBER(function) decltype(&::function) function = nullptr;
  PROBE_FUNCTIONS(PROBE_MEMBER)
#undef PROBE_MEMBER
} cu;

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error(text); }

void load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(dlerror());
#define PROBE_NAME(function) #function
#define PROBE_LOAD(function)                                                                   \
  cu.function = reinterpret_cast<decltype(cu.function)>(dlsym(library, PROBE_NAME(function))); \
  if (cu.function == nullptr) fail("the driver has no " PROBE_NAME(function));
  PROBE_FUNCTIONS(PROBE_LOAD)
#undef PROBE_LOAD
#undef PROBE_NAME
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(std::string(what) + " gave " + std::to_string(result));
}
#define CHECK(call) check(cu.call, #call)

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
double timed(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return seconds_since(begin);
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

CUcontext context = nullptr;
int repeat = 3;

// Runs `work` for each chunk of the size, on some threads.
void on_chunks(uint64_t size, uint64_t chunk, unsigned threads,
               const std::function<void(uint64_t offset, uint64_t length)>& work) {
  std::atomic<uint64_t> next{0};
  const auto run = [&] {
    for (uint64_t at = next.fetch_add(chunk); at < size; at = next.fetch_add(chunk))
      work(at, std::min(chunk, size - at));
  };
  std::vector<std::thread> helpers;
  for (unsigned i = 1; i < threads; ++i) {
    helpers.emplace_back([&] {
      CHECK(cuCtxSetCurrent(context));
      run();
    });
  }
  run();
  for (std::thread& helper : helpers)
    helper.join();
}

struct Mapping {
  Mapping(uint64_t bytes, bool huge) : size(bytes) {
    whole_ = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole_ == MAP_FAILED) fail("mmap");
    base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(whole_) + kHuge - 1) / kHuge * kHuge);
    madvise(base, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    madvise(base, size, MADV_DONTFORK);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { end(); }
  void end() {
    if (whole_ != nullptr) munmap(whole_, size + kHuge);
    whole_ = nullptr;
  }

  uint64_t size;
  char* base;

 private:
  void* whole_;
};

void populate(char* at, uint64_t length) {
  if (madvise(at, length, MADV_POPULATE_WRITE) != 0) fail("MADV_POPULATE_WRITE");
}
void store(char* at, uint64_t length) {
  for (uint64_t i = 0; i < length; i += 4 * kKiB)
    *static_cast<volatile char*>(at + i) = 0;
}
void touch(Mapping& memory, unsigned threads, uint64_t chunk = 32 * kMiB) {
  on_chunks(memory.size, chunk, threads,
            [&](uint64_t offset, uint64_t length) { populate(memory.base + offset, length); });
}
void wait(unsigned microseconds) {
  if (microseconds != 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}
// After each piece, the thread leaves the driver alone for `pause` microseconds.
void do_register(Mapping& memory, uint64_t piece, unsigned threads, unsigned pause = 0) {
  on_chunks(memory.size, piece, threads, [&](uint64_t offset, uint64_t length) {
    CHECK(cuMemHostRegister(memory.base + offset, length, kFlags));
    wait(pause);
  });
}
void do_unregister(Mapping& memory, uint64_t piece, unsigned threads, unsigned pause = 0) {
  on_chunks(memory.size, piece, threads, [&](uint64_t offset, uint64_t) {
    CHECK(cuMemHostUnregister(memory.base + offset));
    wait(pause);
  });
}

void print_file(const char* path, const char* only = nullptr) {
  FILE* const file = std::fopen(path, "r");
  if (file == nullptr) return;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (only == nullptr || std::strstr(line, only) != nullptr) std::printf("  %s: %s", path, line);
  }
  std::fclose(file);
}

void driver_alone(uint64_t size) {
  std::vector<double> alloc;
  std::vector<double> free;
  for (int i = 0; i < repeat; ++i) {
    void* pointer = nullptr;
    alloc.push_back(timed([&] { CHECK(cuMemHostAlloc(&pointer, size, 3)); }));
    free.push_back(timed([&] { CHECK(cuMemFreeHost(pointer)); }));
  }
  std::printf("cuMemHostAlloc %8llu KiB: %9.3f ms, cuMemFreeHost %9.3f ms\n",
              static_cast<unsigned long long>(size / kKiB), median(alloc) * 1e3, median(free) * 1e3);
}

enum class Unmap { kOne, kDiscardFirst };

struct Way {
  const char* name;
  bool huge;
  unsigned touch_threads;  // 0: not at all
  uint64_t touch_chunk;
  uint64_t piece;
  unsigned register_threads;
  Unmap unmap;
  unsigned unmap_threads;
};

void try_way(const Way& way, uint64_t size) {
  std::vector<double> map;
  std::vector<double> touched;
  std::vector<double> registered;
  std::vector<double> unregistered;
  std::vector<double> unmapped;
  for (int i = 0; i < repeat; ++i) {
    const auto begin = Clock::now();
    Mapping memory(size, way.huge);
    map.push_back(seconds_since(begin));
    touched.push_back(timed([&] {
      if (way.touch_threads == 0) return;
      on_chunks(size, way.touch_chunk, way.touch_threads,
                [&](uint64_t offset, uint64_t length) { store(memory.base + offset, length); });
    }));
    registered.push_back(timed([&] { do_register(memory, way.piece, way.register_threads); }));
    unregistered.push_back(timed([&] { do_unregister(memory, way.piece, way.register_threads); }));
    unmapped.push_back(timed([&] {
      const uint64_t part = std::max(kHuge, size / 32);
      if (way.unmap == Unmap::kDiscardFirst) {
        on_chunks(size, part, way.unmap_threads, [&](uint64_t offset, uint64_t length) {
          madvise(memory.base + offset, length, MADV_DONTNEED);
        });
      }
      memory.end();
    }));
  }
  const double alloc = median(map) + median(touched) + median(registered);
  const double free = median(unregistered) + median(unmapped);
  std::printf("%-52s touch %8.2f  register %8.2f  = %8.2f ms | unregister %8.2f  unmap %8.2f  = %8.2f ms\n",
              way.name, median(touched) * 1e3, median(registered) * 1e3, alloc * 1e3,
              median(unregistered) * 1e3, median(unmapped) * 1e3, free * 1e3);
  std::fflush(stdout);
}

void try_touching(const char* name, uint64_t size, bool huge, unsigned threads, uint64_t chunk,
                  bool by_stores) {
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    Mapping memory(size, huge);
    times.push_back(timed([&] {
      on_chunks(size, chunk, threads, [&](uint64_t offset, uint64_t length) {
        (by_stores ? store : populate)(memory.base + offset, length);
      });
    }));
  }
  std::printf("touch %-24s %s %2u threads, chunks of %4llu MiB: %8.2f ms\n", name, huge ? "huge " : "small",
              threads, static_cast<unsigned long long>(chunk / kMiB), median(times) * 1e3);
  std::fflush(stdout);
}

// Each thread touches a piece and registers it at once.
void try_pipeline(uint64_t size, uint64_t piece, unsigned threads) {
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    Mapping memory(size, true);
    times.push_back(timed([&] {
      on_chunks(size, piece, threads, [&](uint64_t offset, uint64_t length) {
        populate(memory.base + offset, length);
        CHECK(cuMemHostRegister(memory.base + offset, length, kFlags));
      });
    }));
    do_unregister(memory, piece, 1);
  }
  std::printf("touch and register each piece of %4llu MiB on %2u threads: %8.2f ms\n",
              static_cast<unsigned long long>(piece / kMiB), threads, median(times) * 1e3);
}

// ---- other calls meanwhile ----

struct Calls {
  const char* name;
  std::function<void()> call;
};

// Prints the longest time that each call took on another thread while `work` ran.
void stalls(const char* name, const std::function<void()>& work) {
  std::printf("while %-46s", name);
  double took = 0;
  for (int which = 0; which < 4; ++which) {
    std::atomic<bool> ready{false};
    std::atomic<bool> stop{false};
    double longest = 0;
    uint64_t count = 0;
    const char* call_name = "";
    std::thread other([&] {
      CHECK(cuCtxSetCurrent(context));
      CUstream stream = nullptr;
      CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      CUdeviceptr device = 0;
      CHECK(cuMemAlloc(&device, kMiB));
      void* host = nullptr;
      CHECK(cuMemHostAlloc(&host, kMiB, 3));
      const Calls calls[] = {{"alloc+free",
                              [&] {
                                CUdeviceptr block = 0;
                                CHECK(cuMemAlloc(&block, 4 * kMiB));
                                CHECK(cuMemFree(block));
                              }},
                             {"query", [&] { (void)cu.cuStreamQuery(stream); }},
                             {"copy+sync",
                              [&] {
                                CHECK(cuMemcpyHtoDAsync(device, host, 64 * kKiB, stream));
                                CHECK(cuStreamSynchronize(stream));
                              }},
                             {"attribute", [&] {
                                unsigned type = 0;
                                CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
                              }}};
      call_name = calls[which].name;
      for (int i = 0; i < 20; ++i)
        calls[which].call();
      ready = true;
      while (!stop) {
        longest = std::max(longest, timed(calls[which].call));
        ++count;
      }
      CHECK(cuMemFreeHost(host));
      CHECK(cuMemFree(device));
      CHECK(cuStreamDestroy(stream));
    });
    while (!ready)
      std::this_thread::yield();
    took = timed(work);
    stop = true;
    other.join();
    std::printf(" %s %8.2f ms of %7llu", call_name, longest * 1e3, static_cast<unsigned long long>(count));
  }
  std::printf("  (work %8.2f ms)\n", took * 1e3);
  std::fflush(stdout);
}

void all_stalls(uint64_t size) {
  stalls("nothing (100 ms)", [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  void* pointer = nullptr;
  std::vector<void*> allocated;
  stalls("cuMemHostAlloc", [&] {
    CHECK(cuMemHostAlloc(&pointer, size, 3));
    allocated.push_back(pointer);
  });
  stalls("cuMemFreeHost", [&] {
    CHECK(cuMemFreeHost(allocated.back()));
    allocated.pop_back();
  });
  {
    Mapping memory(size, true);
    stalls("touching by 16 threads", [&] {
      madvise(memory.base, size, MADV_DONTNEED);
      touch(memory, 16);
    });
    for (const uint64_t piece : {size, kGiB, 256 * kMiB, 64 * kMiB}) {
      for (const unsigned threads : {1U, 4U}) {
        if (piece == size && threads != 1) continue;
        char name[80];
        std::snprintf(name, sizeof name, "register, unregister: %llu MiB, %u threads",
                      static_cast<unsigned long long>(piece / kMiB), threads);
        stalls(name, [&] {
          do_register(memory, piece, threads);
          do_unregister(memory, piece, threads);
        });
      }
    }
  }
  {
    Mapping memory(size, true);
    touch(memory, 4);
    for (const uint64_t piece : {256 * kMiB, 64 * kMiB}) {
      for (const unsigned pause : {1U, 50U, 200U, 1000U}) {
        char name[80];
        std::snprintf(name, sizeof name, "register, unregister: %llu MiB, pause %u us",
                      static_cast<unsigned long long>(piece / kMiB), pause);
        stalls(name, [&] {
          do_register(memory, piece, 1, pause);
          do_unregister(memory, piece, 1, pause);
        });
      }
    }
  }
  Mapping untouched(size, true);
  stalls("register of untouched memory, unregister", [&] {
    madvise(untouched.base, size, MADV_DONTNEED);
    do_register(untouched, size, 1);
    do_unregister(untouched, size, 1);
  });
}

// ---- borders ----

void borders() {
  const uint64_t piece = 4 * kMiB;
  Mapping memory(2 * piece, true);
  touch(memory, 1);
  do_register(memory, piece, 1);
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr device = 0;
  CHECK(cuMemAlloc(&device, kMiB));
  char* const across = memory.base + piece - 4096;
  const auto host = reinterpret_cast<CUdeviceptr>(across);
  std::printf("across a border: HtoDAsync %d, ", cu.cuMemcpyHtoDAsync(device, across, 8192, stream));
  std::printf("DtoHAsync %d, ", cu.cuMemcpyDtoHAsync(across, device, 8192, stream));
  std::printf("cuMemcpyAsync %d and %d, ", cu.cuMemcpyAsync(device, host, 8192, stream),
              cu.cuMemcpyAsync(host, device, 8192, stream));
  std::printf("cuMemsetD8Async %d, ", cu.cuMemsetD8Async(host, 1, 8192, stream));
  std::printf("stream then %d\n", cu.cuStreamSynchronize(stream));
  for (const uint64_t offset : {uint64_t{0}, piece - 1, piece, 2 * piece - 1}) {
    const auto at = reinterpret_cast<CUdeviceptr>(memory.base + offset);
    CUdeviceptr start = 0;
    size_t length = 0;
    CUdeviceptr mapped = 0;
    const int codes[] = {cu.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at),
                         cu.cuPointerGetAttribute(&length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at),
                         cu.cuMemHostGetDevicePointer(&mapped, memory.base + offset, 0)};
    std::printf("offset %9llu: start +%lld (%d), size %zu (%d), device pointer %s (%d)\n",
                static_cast<unsigned long long>(offset),
                static_cast<long long>(start) - reinterpret_cast<long long>(memory.base), codes[0], length,
                codes[1], mapped == at ? "the same" : "another", codes[2]);
  }
  CHECK(cuMemFree(device));
  CHECK(cuStreamDestroy(stream));
  do_unregister(memory, piece, 1);
}

// Memory of the program, of small pages: whether touching first helps, where it has its pages and where not.
void existing(uint64_t size) {
  for (const bool huge : {false, true}) {
    for (const bool has_pages : {false, true}) {
      for (const unsigned threads : {0U, 1U, 4U, 16U}) {
        std::vector<double> touched;
        std::vector<double> registered;
        for (int i = 0; i < repeat; ++i) {
          Mapping memory(size, huge);
          if (has_pages) touch(memory, 16);
          touched.push_back(timed([&] {
            if (threads != 0) touch(memory, threads);
          }));
          registered.push_back(timed([&] { do_register(memory, size, 1); }));
          do_unregister(memory, size, 1);
        }
        std::printf("existing, %s pages, %s, touched by %2u threads: %8.2f + register %8.2f ms\n",
                    huge ? "huge " : "small", has_pages ? "populated" : "untouched", threads,
                    median(touched) * 1e3, median(registered) * 1e3);
        std::fflush(stdout);
      }
    }
  }
}

int run(uint64_t size) {
  load();
  CHECK(cuInit(0));
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  const unsigned all = std::max(1U, std::thread::hardware_concurrency());
  std::printf("%llu MiB, %u threads of the machine, medians of %d\n",
              static_cast<unsigned long long>(size / kMiB), all, repeat);
  print_file("/sys/kernel/mm/transparent_hugepage/enabled");
  print_file("/sys/kernel/mm/transparent_hugepage/defrag");
  print_file("/proc/meminfo", "Mem");
  borders();
  {
    Mapping memory(size, true);
    touch(memory, all);
    print_file("/proc/self/smaps_rollup", "AnonHugePages");
  }
  for (const uint64_t each : {4 * kKiB, 2 * kMiB, 64 * kMiB, kGiB, size}) {
    if (each <= size) driver_alone(each);
  }
  for (const unsigned threads : {1U, 4U, 8U, 12U, 16U, 32U})
    try_touching("populate", size, true, threads, 32 * kMiB, false);
  for (const uint64_t chunk : {2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB, 64 * kMiB})
    try_touching("populate", size, true, 16, chunk, false);
  for (const unsigned threads : {1U, 4U, 8U, 12U, 16U}) {
    for (const uint64_t each :
         {4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB, 256 * kMiB, kGiB, size}) {
      const std::string name = "store, " + std::to_string(each / kMiB) + " MiB";
      if (each <= size) try_touching(name.c_str(), each, true, threads, 2 * kMiB, true);
    }
  }
  try_touching("store", size, true, 16, 8 * kMiB, true);
  try_touching("store", size, true, 16, 32 * kMiB, true);
  try_touching("populate", size, false, 16, 8 * kMiB, false);
  const Way ways[] = {
      {"pieces of 256 MiB, 1 thread", true, 16, 8 * kMiB, 256 * kMiB, 1, Unmap::kOne, 1},
      {"whole", true, 16, 8 * kMiB, size, 1, Unmap::kOne, 1},
      {"whole, discarded first by 4", true, 16, 8 * kMiB, size, 1, Unmap::kDiscardFirst, 4},
      {"whole, discarded first by 16", true, 16, 8 * kMiB, size, 1, Unmap::kDiscardFirst, 16},
      {"pieces of 1 GiB, 1 thread", true, 16, 8 * kMiB, kGiB, 1, Unmap::kOne, 1},
      {"pieces of 1 GiB, 4 threads", true, 16, 8 * kMiB, kGiB, 4, Unmap::kOne, 1},
      {"pieces of 256 MiB, 2 threads", true, 16, 8 * kMiB, 256 * kMiB, 2, Unmap::kOne, 1},
      {"pieces of 256 MiB, 4 threads", true, 16, 8 * kMiB, 256 * kMiB, 4, Unmap::kOne, 1},
      {"pieces of 256 MiB, 16 threads", true, 16, 8 * kMiB, 256 * kMiB, 16, Unmap::kOne, 1},
      {"pieces of 64 MiB, 1 thread", true, 16, 8 * kMiB, 64 * kMiB, 1, Unmap::kOne, 1},
      {"pieces of 64 MiB, 4 threads", true, 16, 8 * kMiB, 64 * kMiB, 4, Unmap::kOne, 1},
      {"whole, small pages", false, 16, 8 * kMiB, size, 1, Unmap::kOne, 1},
      {"whole, small pages, discarded first by 16", false, 16, 8 * kMiB, size, 1, Unmap::kDiscardFirst, 16},
      {"whole, touched by the driver", true, 0, 0, size, 1, Unmap::kOne, 1},
  };
  for (const Way& way : ways)
    try_way(way, size);
  for (const unsigned threads : {4U, 16U}) {
    try_pipeline(size, 256 * kMiB, threads);
    try_pipeline(size, 64 * kMiB, threads);
  }
  if (size >= kGiB) {
    for (const uint64_t each : {2 * kMiB, 8 * kMiB, 64 * kMiB, kGiB}) {
      for (const unsigned threads : {1U, 4U, 16U}) {
        char name[64];
        std::snprintf(name, sizeof name, "%llu MiB whole, touched by %u",
                      static_cast<unsigned long long>(each / kMiB), threads);
        try_way({name, true, threads, std::max(2 * kMiB, each / 64), each, 1, Unmap::kOne, 1}, each);
      }
    }
  }
  existing(std::min(size, 2 * kGiB));
  all_stalls(size);
  CHECK(cuDevicePrimaryCtxRelease(device));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t mebibytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4096;
  if (argc > 2) repeat = std::max(1, std::atoi(argv[2]));
  try {
    return run(std::max<uint64_t>(mebibytes, 8) * kMiB);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "pin_probe: %s\n", problem.what());
    return 1;
  }
}
