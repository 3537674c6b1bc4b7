// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls the allocator for PyTorch as PyTorch does, over the fake driver: what is here of PyTorch's classes
// calls the same functions in the same order.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "c10_stand_in.h"
#include "fake_cuda.h"

namespace {

// The call of operator new on this thread that throws, from 1; 0 for none.
thread_local unsigned failing_new = 0;

}  // namespace

#ifndef OPERATOR_NEW_IS_TAKEN  // by ThreadSanitizer
void* operator new(size_t size) {
  if (failing_new != 0 && --failing_new == 0) throw std::bad_alloc();
  void* const block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size == 0 ? 1 : size); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
#endif

namespace {

using MempoolId = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(CUstream)>;

void* driver() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return library;
}

#define CU_TEXT(name) #name
#define CU_NAME(name) CU_TEXT(name)  // with the suffix that cuda.h gives it
#define CU(name) reinterpret_cast<decltype(&name)>(dlsym(driver(), CU_NAME(name)))
#define FAKE(name) reinterpret_cast<decltype(&name)>(dlsym(driver(), #name))

template <class Function>
Function* exported(const char* name) {
  static void* const library = dlopen(TORCH_ALLOCATOR, RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library != nullptr ? dlsym(library, name) : nullptr;
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function*>(symbol);
}

// torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator.
struct Pluggable {
  struct Metadata {
    size_t size;
    int device;
    CUstream stream;
  };
  std::function<void*(size_t, int, CUstream)> alloc =
      exported<void*(size_t, int, CUstream)>("gpumem_torch_alloc");
  std::function<void(void*, size_t, int, CUstream)> free =
      exported<void(void*, size_t, int, CUstream)>("gpumem_torch_free");
  std::function<void(int)> init = exported<void(int)>("gpumem_torch_init");
  std::function<void()> reset = exported<void()>("gpumem_torch_reset");
  std::function<void(double, int)> memory_fraction =
      exported<void(double, int)>("gpumem_torch_memory_fraction");
  std::function<void*(void*, size_t*)> base_alloc =
      exported<void*(void*, size_t*)>("gpumem_torch_base_alloc");
  std::function<void(void*, CUstream)> record_stream =
      exported<void(void*, CUstream)>("gpumem_torch_record_stream");
  std::function<void(int, MempoolId, Filter)> begin =
      exported<void(int, MempoolId, Filter)>("gpumem_torch_begin_allocate_to_pool");
  std::function<void(int, MempoolId)> end =
      exported<void(int, MempoolId)>("gpumem_torch_end_allocate_to_pool");
  std::function<void(int, MempoolId)> release = exported<void(int, MempoolId)>("gpumem_torch_release_pool");
  std::mutex mutex;
  std::unordered_map<void*, Metadata> metadata;

  void* malloc(size_t size, CUstream stream, int device = 0) {
    void* const pointer = alloc(size, device, stream);
    const std::lock_guard lock(mutex);
    metadata.emplace(pointer, Metadata{size, device, stream});
    return pointer;
  }
  void raw_delete(void* pointer) {
    Metadata found;
    {
      const std::lock_guard lock(mutex);
      found = metadata.at(pointer);
      metadata.erase(pointer);
    }
    free(pointer, found.size, found.device, found.stream);
  }
};

// at::cuda::CUDAGraph. The filter asks for the number of the capture, which is known only after the capture
// has begun.
struct Graph {
  Graph(Pluggable& from, CUstream in, MempoolId id) : allocator(from), stream(in), pool(id) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { reset(); }

  void capture_begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    allocator.begin(0, pool, [this](CUstream asked) {
      const cuuint64_t found = capture_of(asked);
      return found != 0 && found == capture;
    });
    ASSERT_EQ(CU(cuStreamBeginCapture)(stream, mode), CUDA_SUCCESS);
    capture = capture_of(stream);
    ASSERT_NE(capture, 0u);
  }
  void capture_end() {
    ASSERT_EQ(CU(cuStreamEndCapture)(stream, &graph), CUDA_SUCCESS);
    allocator.end(0, pool);
    ASSERT_EQ(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
    ended = true;
  }
  void replay(CUstream in) const { ASSERT_EQ(CU(cuGraphLaunch)(executable, in), CUDA_SUCCESS); }
  void reset() {
    if (!ended) return;
    ended = false;
    allocator.release(0, pool);
    EXPECT_EQ(CU(cuGraphExecDestroy)(executable), CUDA_SUCCESS);
  }
  static cuuint64_t capture_of(CUstream asked) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    const auto info = reinterpret_cast<CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*)>(
        dlsym(driver(), "cuStreamGetCaptureInfo"));
    return info(asked, &status, &id) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
  }

  Pluggable& allocator;
  const CUstream stream;
  const MempoolId pool;
  cuuint64_t capture = 0;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  bool ended = false;
};

// A stream that stands still while this lives.
class Hold {
 public:
  explicit Hold(CUstream stream) : stream_(stream) {
    const auto wait = [](void* self) { static_cast<Hold*>(self)->release_.get_future().wait(); };
    EXPECT_EQ(CU(cuLaunchHostFunc)(stream, wait, this), CUDA_SUCCESS);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    release_.set_value();
    EXPECT_EQ(CU(cuStreamSynchronize)(stream_), CUDA_SUCCESS);
  }

 private:
  const CUstream stream_;
  std::promise<void> release_;
};

struct Stats {
  uint64_t live_count, live_bytes, reserved_bytes, segment_count;
  uint64_t peak_live_count, peak_live_bytes, peak_reserved_bytes;
  uint64_t total_count, total_bytes, grow_count, release_count;
  uint64_t retry_count, failure_count, limit, total_memory;
};

Stats stats_of(int device = 0) {
  Stats stats;
  static auto* const get = exported<int(int, Stats*)>("gpumem_torch_get_stats");
  (void)get(device, &stats);
  return stats;
}

struct BlockRow {
  uint64_t first, second, device, stream, address, size, begins_segment, state;
};

std::vector<BlockRow> private_blocks() {
  static auto* const get = exported<uint64_t(BlockRow*, uint64_t)>("gpumem_torch_get_blocks");
  std::vector<BlockRow> rows(get(nullptr, 0));
  rows.resize(get(rows.data(), rows.size()));
  return rows;
}

class TorchAllocator : public testing::Test {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;
  static constexpr uint64_t kDeviceBytes = 256 * kMiB;

  static void SetUpTestSuite() {
    ASSERT_NE(driver(), nullptr) << "the fake driver is not in LD_LIBRARY_PATH";
    ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context), CUDA_SUCCESS);
    // Once for the process, as PyTorch does.
    allocator = new Pluggable;
    allocator->init(2);
  }

  void SetUp() override {
    ASSERT_EQ(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamCreate)(&side, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }

  void TearDown() override {
    if (getenv("TORCH_ALLOCATOR_ENDS") != nullptr) return;
    EXPECT_TRUE(allocator->metadata.empty());
    EXPECT_EQ(FAKE(fake_cuda_settle)(), 1);
    allocator->reset();
    EXPECT_TRUE(private_blocks().empty());
    EXPECT_EQ(stats_of().live_count, 0u);
    EXPECT_EQ(stats_of().reserved_bytes, 0u);
    std::string violations(1 << 16, '\0');
    FAKE(fake_cuda_violations)(violations.data(), violations.size());
    EXPECT_STREQ(violations.c_str(), "");
    FAKE(fake_cuda_clear_violations)();
  }

  void* malloc(size_t size, CUstream in) { return allocator->malloc(size, in); }
  void* malloc(size_t size) { return allocator->malloc(size, stream); }
  static void free(void* pointer) { allocator->raw_delete(pointer); }
  static void fill(void* pointer, size_t size, unsigned char value, CUstream in) {
    ASSERT_EQ(CU(cuMemsetD8Async)(reinterpret_cast<CUdeviceptr>(pointer), value, size, in), CUDA_SUCCESS);
  }
  static unsigned byte_at(const void* pointer) {
    unsigned char byte = 0;
    EXPECT_EQ(CU(cuMemcpyDtoH)(&byte, reinterpret_cast<CUdeviceptr>(pointer), 1), CUDA_SUCCESS);
    return byte;
  }
  static void wait(CUstream in) { ASSERT_EQ(CU(cuStreamSynchronize)(in), CUDA_SUCCESS); }
  // How often the device was waited for.
  static uint64_t waits() { return FAKE(fake_cuda_call_count)("cuCtxSynchronize"); }
  // An id of its own for each private pool, as PyTorch counts them.
  static MempoolId next_pool() {
    static unsigned long long last = 0;
    return {++last, 0};
  }

  static Pluggable* allocator;
  CUstream stream = nullptr;
  CUstream side = nullptr;
};

Pluggable* TorchAllocator::allocator = nullptr;

TEST_F(TorchAllocator, ServesAndReusesInTheOrderOfAStream) {
  void* const first = malloc(1000);
  fill(first, 1000, 1, stream);
  free(first);
  void* const second = malloc(1000);
  EXPECT_EQ(second, first);
  EXPECT_EQ(stats_of().live_count, 1u);
  EXPECT_GE(stats_of().live_bytes, 1000u);
  free(second);
}

TEST_F(TorchAllocator, ServesAnEmptyTensorWithNull) {
  EXPECT_EQ(malloc(0), nullptr);
  free(nullptr);
}

TEST_F(TorchAllocator, ServesEachDevice) {
  CUcontext context = nullptr, before = nullptr;
  ASSERT_EQ(CU(cuCtxGetCurrent)(&before), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 1), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuCtxSetCurrent)(context), CUDA_SUCCESS);
  void* const there = allocator->malloc(4096, nullptr, 1);
  ASSERT_EQ(CU(cuCtxSetCurrent)(before), CUDA_SUCCESS);
  EXPECT_EQ(stats_of(1).live_count, 1u);
  EXPECT_EQ(stats_of(0).live_count, 0u);
  free(there);
  EXPECT_EQ(stats_of(1).live_count, 0u);
  allocator->reset();
  EXPECT_EQ(stats_of(1).reserved_bytes, 0u);
  EXPECT_THROW((void)allocator->malloc(4096, nullptr, 64), std::runtime_error);
  EXPECT_THROW((void)allocator->malloc(4096, nullptr, -1), std::runtime_error);
}

TEST_F(TorchAllocator, FreesFromOtherThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        void* const block = malloc(static_cast<size_t>(round % 7 + 1) * 3000);
        free(block);
      }
    });
  }
  void* const block = malloc(64 << 10);
  threads.emplace_back([&] { free(block); });
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(stats_of().live_count, 0u);
}

TEST_F(TorchAllocator, ThrowsPyTorchsOutOfMemoryError) {
  void* const kept = malloc(100 * kMiB);
  const uint64_t failures = stats_of().failure_count;
  try {
    (void)malloc(200 * kMiB);
    FAIL() << "200 MiB of 156";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what_without_backtrace())
                  .find("CUDA out of memory. Tried to allocate 209715200 bytes on GPU 0"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(stats_of().failure_count, failures + 1);
  // More than any device has.
  EXPECT_THROW((void)malloc(size_t{1} << 50), c10::OutOfMemoryError);
  free(kept);
  free(malloc(200 * kMiB));  // it goes on
}

TEST_F(TorchAllocator, UsesWhatIsOnlyWaitingBeforeItFails) {
  // Freed in another stream whose work runs, so no block of it may be used yet.
  void* const block = malloc(200 * kMiB, side);
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "20000"), 0);
  for (int i = 0; i < 4; ++i)
    fill(block, 64, 4, side);
  free(block);
  void* const other = malloc(200 * kMiB, stream);
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "0"), 0);
  EXPECT_NE(other, nullptr);
  free(other);
}

TEST_F(TorchAllocator, HeedsAFractionOfTheMemory) {
  allocator->memory_fraction(0.25, 0);
  EXPECT_EQ(stats_of().limit, kDeviceBytes / 4);
  EXPECT_EQ(stats_of().total_memory, kDeviceBytes);
  void* const kept = malloc(40 * kMiB);
  EXPECT_THROW((void)malloc(40 * kMiB), c10::OutOfMemoryError);
  {
    // Private pools count.
    Graph graph(*allocator, stream, next_pool());
    graph.capture_begin();
    EXPECT_THROW((void)malloc(30 * kMiB), c10::OutOfMemoryError);
    void* const inside = malloc(20 * kMiB);
    free(inside);
    graph.capture_end();
    EXPECT_THROW((void)malloc(20 * kMiB), c10::OutOfMemoryError);
  }
  free(malloc(20 * kMiB));
  free(kept);
  allocator->memory_fraction(1, 0);
  free(malloc(100 * kMiB));
}

TEST_F(TorchAllocator, EmptiesItsCache) {
  free(malloc(64 * kMiB));
  void* const kept = malloc(4096);
  EXPECT_GE(stats_of().reserved_bytes, 64 * kMiB);
  allocator->reset();
  EXPECT_LE(stats_of().reserved_bytes, 4 * kMiB);
  free(kept);
}

TEST_F(TorchAllocator, EmptiesItsCacheOfWhatWorkStillUses) {
  void* const block = malloc(64 * kMiB);
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "20000"), 0);
  fill(block, 64, 1, stream);
  free(block);
  const uint64_t before = waits();
  allocator->reset();
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "0"), 0);
  EXPECT_GT(waits(), before);
  EXPECT_EQ(stats_of().reserved_bytes, 0u);
}

TEST_F(TorchAllocator, ResetsPeaks) {
  auto* const reset_peaks = exported<void(int)>("gpumem_torch_reset_peaks");
  free(malloc(64 * kMiB));
  EXPECT_GE(stats_of().peak_live_bytes, 64 * kMiB);
  EXPECT_GE(stats_of().peak_reserved_bytes, 64 * kMiB);
  allocator->reset();
  reset_peaks(0);
  EXPECT_LE(stats_of().peak_live_bytes, kMiB);
  EXPECT_EQ(stats_of().peak_reserved_bytes, 0u);
}

TEST_F(TorchAllocator, FindsTheBaseOfAnAllocation) {
  void* const block = malloc(2000);
  size_t size = 0;
  EXPECT_EQ(allocator->base_alloc(static_cast<char*>(block) + 700, &size), block);
  EXPECT_GE(size, 2000u);
  int other = 0;
  EXPECT_EQ(allocator->base_alloc(&other, &size), &other);
  free(block);
}

TEST_F(TorchAllocator, KeepsABlockThatAnotherStreamUses) {
  void* const block = malloc(8192);
  allocator->record_stream(block, side);
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "50000"), 0);
  fill(block, 8192, 9, side);  // enqueued after the record, and before the free
  free(block);
  void* const other = malloc(8192);
  EXPECT_NE(other, block);
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "0"), 0);
  wait(side);
  free(other);
}

// ---- private pools ----

TEST_F(TorchAllocator, ServesACaptureFromItsPrivatePool) {
  void* const input = malloc(kMiB);
  fill(input, kMiB, 5, stream);
  wait(stream);
  Graph graph(*allocator, stream, next_pool());
  graph.capture_begin();
  void* const temporary = malloc(3 * kMiB);
  fill(temporary, 3 * kMiB, 6, stream);
  free(temporary);
  void* const again = malloc(3 * kMiB);
  EXPECT_EQ(again, temporary);
  void* const output = malloc(1000);
  fill(output, 1000, 7, stream);
  free(again);
  // Streams that are not captured go on as ever, and legal calls only are made.
  void* const beside = malloc(5 * kMiB, side);
  graph.capture_end();
  for (const BlockRow& row : private_blocks()) {
    EXPECT_EQ(row.first, graph.pool.first);
    EXPECT_NE(row.address, reinterpret_cast<uintptr_t>(beside));
  }
  // What others allocate now never has the graph's memory.
  void* const outside = malloc(3 * kMiB);
  EXPECT_NE(outside, temporary);
  fill(outside, 3 * kMiB, 1, stream);
  fill(output, 1000, 0, stream);
  graph.replay(stream);
  wait(stream);
  EXPECT_EQ(byte_at(output), 7u);
  EXPECT_EQ(byte_at(outside), 1u);
  free(outside);
  free(beside);
  free(output);
  free(input);
}

TEST_F(TorchAllocator, SharesAPrivatePoolAmongCaptures) {
  const MempoolId pool = next_pool();
  Graph first(*allocator, stream, pool), second(*allocator, stream, pool);
  first.capture_begin();
  void* const temporary = malloc(30 * kMiB);
  free(temporary);
  first.capture_end();
  const uint64_t reserved = stats_of().reserved_bytes;
  second.capture_begin();
  void* const again = malloc(30 * kMiB);
  EXPECT_EQ(again, temporary);
  free(again);
  second.capture_end();
  EXPECT_EQ(stats_of().reserved_bytes, reserved);
  // The first one may end; the pool stays for the second.
  first.reset();
  EXPECT_FALSE(private_blocks().empty());
  allocator->reset();
  EXPECT_FALSE(private_blocks().empty());
  second.reset();
  allocator->reset();
  EXPECT_TRUE(private_blocks().empty());
}

TEST_F(TorchAllocator, KeepsThePrivatePoolUntilItsLastBlockIsFreed) {
  void* output = nullptr;
  {
    Graph graph(*allocator, stream, next_pool());
    graph.capture_begin();
    output = malloc(1000);
    fill(output, 1000, 7, stream);
    graph.capture_end();
    graph.replay(stream);
    wait(stream);
  }
  allocator->reset();
  EXPECT_FALSE(private_blocks().empty());
  EXPECT_EQ(byte_at(output), 7u);
  free(output);
  allocator->reset();
  EXPECT_TRUE(private_blocks().empty());
}

TEST_F(TorchAllocator, TakesNothingFromAGraphForOthers) {
  Graph graph(*allocator, stream, next_pool());
  graph.capture_begin();
  void* const temporary = malloc(100 * kMiB);
  fill(temporary, 64, 8, stream);
  fill(static_cast<char*>(temporary) + 100 * kMiB - 64, 64, 8, stream);
  free(temporary);
  graph.capture_end();
  EXPECT_THROW((void)malloc(200 * kMiB), c10::OutOfMemoryError);
  allocator->reset();
  graph.replay(stream);  // the fake ends what touches memory that is gone
  wait(stream);
  EXPECT_EQ(byte_at(temporary), 8u);
  graph.reset();
  free(malloc(200 * kMiB));
}

TEST_F(TorchAllocator, WaitsForAGraphThatRunsBeforeItsMemoryGoes) {
  Graph graph(*allocator, stream, next_pool());
  graph.capture_begin();
  void* const temporary = malloc(4 * kMiB);
  for (int i = 0; i < 4; ++i)
    fill(temporary, 4 * kMiB, 8, stream);
  free(temporary);
  graph.capture_end();
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "20000"), 0);
  graph.replay(side);  // in a stream that the allocator has never seen
  const uint64_t before = waits();
  graph.reset();
  EXPECT_EQ(waits(), before);
  allocator->reset();
  EXPECT_GT(waits(), before);
  EXPECT_TRUE(private_blocks().empty());
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "0"), 0);
}

// PyTorch holds the lock of Python's interpreter there, for which a function in a stream may wait.
TEST_F(TorchAllocator, WaitsForNothingWhereGraphsAndTensorsEnd) {
  void* const orphan = malloc(kMiB, CU_STREAM_PER_THREAD);
  const uint64_t before = waits();
  const MempoolId other = next_pool();
  void* output = nullptr;
  {
    Graph graph(*allocator, stream, next_pool());
    graph.capture_begin();
    output = malloc(1000);
    graph.capture_end();
    graph.replay(side);
    allocator->begin(0, other, [](CUstream) { return true; });
    free(malloc(1000));
    allocator->release(0, other);
  }
  free(output);
  allocator->end(0, other);
  // As if its stream were gone.
  ASSERT_EQ(
      FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "cuStreamIsCapturing:1:always:CUDA_ERROR_INVALID_HANDLE"),
      0);
  free(orphan);
  ASSERT_EQ(FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", ""), 0);
  EXPECT_EQ(stats_of().live_count, 1u);
  EXPECT_EQ(waits(), before);
}

TEST_F(TorchAllocator, ReclaimsBeforeACapture) {
  {
    Graph graph(*allocator, stream, next_pool());
    graph.capture_begin();
    free(malloc(150 * kMiB));
    graph.capture_end();
  }
  Graph graph(*allocator, stream, next_pool());
  graph.capture_begin();
  void* const inside = malloc(150 * kMiB);  // where nothing could be waited for
  EXPECT_NE(inside, nullptr);
  free(inside);
  graph.capture_end();
}

TEST_F(TorchAllocator, FreesWhileAnotherThreadWaitsForTheDevice) {
  void* const block = malloc(4096);
  void* const recorded = malloc(4096);
  Graph before(*allocator, stream, next_pool()), during(*allocator, stream, next_pool());
  Graph kept(*allocator, stream, next_pool());
  std::vector<void*> inside;
  for (Graph* const graph : {&before, &during, &kept}) {
    graph->capture_begin();
    inside.push_back(malloc(1000));
    inside.push_back(malloc(2 * kMiB));
    graph->capture_end();
  }
  free(inside[0]);
  free(inside[1]);
  free(inside[2]);
  before.reset();
  kept.reset();
  CUstream never_seen = nullptr;
  ASSERT_EQ(CU(cuStreamCreate)(&never_seen, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  void* const other = malloc(4096, never_seen);
  std::thread waiter, ender;
  {
    const Hold hold(side);
    const uint64_t count = waits();
    waiter = std::thread([&] { allocator->reset(); });
    while (waits() == count)
      std::this_thread::yield();
    std::promise<void> ended;
    ender = std::thread([&] {
      allocator->record_stream(recorded, side);
      free(recorded);
      free(block);
      free(other);
      during.replay(side);  // after the wait began
      during.reset();
      free(inside[3]);
      free(inside[4]);
      ended.set_value();
    });
    EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  }
  waiter.join();
  ender.join();
  // What ended while the thread waited stays.
  std::set<uint64_t> left;
  for (const BlockRow& row : private_blocks())
    left.insert(row.first);
  EXPECT_EQ(left, (std::set<uint64_t>{during.pool.first, kept.pool.first}));
  free(inside[5]);
  allocator->reset();
  EXPECT_TRUE(private_blocks().empty());
}

TEST_F(TorchAllocator, HoldsBackWhatACapturedStreamFrees) {
  // A block from before, freed by the stream while that is captured: no part of a capture keeps it
  // afterwards.
  void* const before = malloc(kMiB);
  Graph graph(*allocator, stream, next_pool());
  graph.capture_begin();
  free(before);
  void* const inside = malloc(kMiB);
  EXPECT_NE(inside, before);
  free(inside);
  graph.capture_end();
  EXPECT_EQ(stats_of().live_count, 0u);
  void* const after = malloc(kMiB);
  EXPECT_EQ(after, before);
  free(after);
}

TEST_F(TorchAllocator, RecordsUsesOfACapturedStreamWhenTheCaptureEnds) {
  void* const block = malloc(kMiB, side);
  Graph graph(*allocator, stream, next_pool());
  graph.capture_begin();
  allocator->record_stream(block, stream);
  free(block);
  graph.capture_end();
  EXPECT_EQ(stats_of().live_count, 0u);
  wait(stream);  // and then nothing keeps it: see TearDown()
}

TEST_F(TorchAllocator, HoldsBackPrivateBlocksThatOtherStreamsUse) {
  const MempoolId pool = next_pool();
  Graph first(*allocator, stream, pool), second(*allocator, stream, pool);
  first.capture_begin();
  void* const block = malloc(2 * kMiB);
  allocator->record_stream(block, side);
  allocator->record_stream(block, stream);
  free(block);
  first.capture_end();
  second.capture_begin();
  void* const other = malloc(2 * kMiB);
  EXPECT_NE(other, block);
  free(other);
  second.capture_end();
  allocator->reset();  // which waits
  second.reset();
}

TEST_F(TorchAllocator, NoticesACaptureThatFailed) {
  const MempoolId pool = next_pool();
  {
    // PyTorch then calls neither the end nor the release, and the filter is of a graph that is gone.
    Graph graph(*allocator, stream, pool);
    graph.capture_begin();
    void* const inside = malloc(kMiB);
    EXPECT_NE(CU(cuStreamSynchronize)(stream), CUDA_SUCCESS);
    EXPECT_NE(CU(cuStreamEndCapture)(stream, &graph.graph), CUDA_SUCCESS);
    free(inside);
    graph.capture = 1;
  }
  const size_t before = private_blocks().size();
  void* const after = malloc(kMiB);
  EXPECT_EQ(private_blocks().size(), before);
  free(after);
  // A lack of memory is met as ever: that waits, which nothing does during a capture.
  const uint64_t waited = waits();
  EXPECT_THROW((void)malloc(400 * kMiB), c10::OutOfMemoryError);
  EXPECT_GT(waits(), waited);
  allocator->end(0, pool);  // late, as where another thread has noticed it first
  EXPECT_THROW(allocator->end(0, pool), std::runtime_error);
  allocator->release(0, pool);
}

TEST_F(TorchAllocator, RoutesAThreadToAPrivatePool) {
  // torch.cuda.use_mem_pool(), and warm-up runs of torch.compile: a filter that asks for the thread, without
  // a capture.
  const MempoolId pool{0, 77};
  const auto here = std::this_thread::get_id();
  allocator->begin(0, pool, [here](CUstream) { return std::this_thread::get_id() == here; });
  EXPECT_THROW(allocator->begin(0, pool, [](CUstream) { return true; }), std::runtime_error);
  void* const ours = malloc(10000);
  void* others = nullptr;
  std::thread([&] { others = malloc(10000); }).join();
  ASSERT_EQ(private_blocks().size(), 2u);  // and the rest of the segment
  EXPECT_EQ(private_blocks()[0].address, reinterpret_cast<uintptr_t>(ours));
  EXPECT_EQ(private_blocks()[0].second, 77u);
  EXPECT_EQ(private_blocks()[0].state, 1u);
  free(others);
  allocator->end(0, pool);
  EXPECT_THROW(allocator->end(0, pool), std::runtime_error);
  fill(ours, 10000, 1, stream);
  free(ours);
  allocator->release(0, pool);
}

TEST_F(TorchAllocator, JoinsFreeNeighbours) {
  const MempoolId pool = next_pool();
  allocator->begin(0, pool, [](CUstream) { return true; });
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i)
    blocks.push_back(malloc(4 * kMiB));
  EXPECT_EQ(stats_of().reserved_bytes, 20 * kMiB);
  for (const size_t index : std::vector<size_t>{1, 3, 2, 0, 4})
    free(blocks[index]);
  EXPECT_EQ(private_blocks().size(), 1u);
  void* const whole = malloc(20 * kMiB);
  EXPECT_EQ(whole, blocks[0]);
  free(whole);
  allocator->end(0, pool);
  allocator->release(0, pool);
}

// Each operator new fails once.
TEST_F(TorchAllocator, LosesNoBlockForLackOfMemoryOfTheHost) {
#ifdef OPERATOR_NEW_IS_TAKEN
  GTEST_SKIP() << "ThreadSanitizer has its own operator new";
#endif
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    EXPECT_EQ(CU(cuMemGetInfo)(&free, &total), CUDA_SUCCESS);
    return free;
  };
  allocator->reset();
  const size_t before = free_bytes();
  const MempoolId pool = next_pool();
  const auto fails = [](unsigned k, const std::function<void()>& work) {
    failing_new = k;
    try {
      work();
    } catch (const std::exception&) {
      failing_new = 0;
      return true;
    }
    return std::exchange(failing_new, 0) == 0;
  };
  unsigned k = 1;
  for (bool begun = false; !begun; ++k) {
    ASSERT_LT(k, 1000u);
    (void)fails(k, [&] {
      allocator->begin(0, pool, [](CUstream) { return true; });
      begun = true;
    });
  }
  // The first takes a segment of 20 MiB, and the next ones cut it.
  std::vector<void*> blocks;
  blocks.reserve(4);
  for (int i = 0; i < 4; ++i) {
    void* block = nullptr;
    for (k = 1; fails(k, [&] { block = allocator->alloc(4 * kMiB, 0, stream); }); ++k) {
      ASSERT_LT(k, 1000u);
      // It may have succeeded all the same.
      if (block != nullptr) allocator->free(std::exchange(block, nullptr), 4 * kMiB, 0, stream);
      for (const BlockRow& row : private_blocks()) {
        const bool live =
            std::find(blocks.begin(), blocks.end(), reinterpret_cast<void*>(row.address)) != blocks.end();
        EXPECT_EQ(row.state, live ? 1u : 0u) << "block " << i << ", failure " << k;
      }
    }
    EXPECT_GT(k, 1u);
    ASSERT_NE(block, nullptr);
    blocks.push_back(block);
  }
  EXPECT_EQ(stats_of().reserved_bytes, 20 * kMiB);
  for (void* const block : blocks) {
    // A free cannot throw, so it must not fail.
    EXPECT_FALSE(fails(1, [&] { allocator->free(block, 4 * kMiB, 0, stream); }));
  }
  EXPECT_EQ(private_blocks().size(), 1u);
  allocator->end(0, pool);
  allocator->release(0, pool);
  allocator->reset();
  EXPECT_EQ(free_bytes(), before);
}

// Likewise, where what captures held back is freed.
TEST_F(TorchAllocator, LosesNothingThatWaitsForLackOfMemoryOfTheHost) {
#ifdef OPERATOR_NEW_IS_TAKEN
  GTEST_SKIP() << "ThreadSanitizer has its own operator new";
#endif
  bool complete = false;
  for (unsigned k = 1; !complete; ++k) {
    ASSERT_LT(k, 1000u);
    CUstream fresh = nullptr;  // which no record knows
    ASSERT_EQ(CU(cuStreamCreate)(&fresh, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    std::vector<void*> blocks;
    for (int i = 0; i < 3; ++i)
      blocks.push_back(malloc(4096, side));
    Graph graph(*allocator, fresh, next_pool());
    graph.capture_begin();
    allocator->record_stream(blocks[0], fresh);
    allocator->metadata.at(blocks[1]).stream = allocator->metadata.at(blocks[2]).stream = fresh;
    for (void* const block : blocks)
      free(block);
    ASSERT_EQ(CU(cuStreamEndCapture)(fresh, &graph.graph), CUDA_SUCCESS);
    failing_new = k;
    try {
      allocator->end(0, graph.pool);
      complete = failing_new != 0;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(failing_new, 0u);
    }
    failing_new = 0;
    allocator->release(0, graph.pool);
    ASSERT_EQ(CU(cuGraphDestroy)(graph.graph), CUDA_SUCCESS);
    allocator->reset();
    EXPECT_EQ(stats_of().live_count, 0u) << "failure " << k;
  }
}

TEST_F(TorchAllocator, ServesSegmentsForAMemPool) {
  auto* const alloc = exported<void*(size_t, int, CUstream)>("gpumem_torch_segment_alloc");
  void* const segment = alloc(20 * kMiB, 0, stream);
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(alloc(size_t{1} << 50, 0, stream), nullptr);  // PyTorch makes an exception of it
  fill(segment, 64, 1, stream);
  allocator->free(segment, 20 * kMiB, 0, stream);
}

// ---- processes ----

TEST_F(TorchAllocator, LeavesAForkedChildAlone) {
  void* const block = malloc(4096);
  const pid_t child = fork();
  if (child == 0) {
    // Tensors of the parent are freed as the child ends. An allocation cannot succeed.
    allocator->raw_delete(block);
    allocator->reset();
    allocator->release(0, {1, 0});
    int failed = 0;
    try {
      (void)allocator->malloc(4096, stream);
    } catch (const std::runtime_error&) {
      failed = 1;
    }
    _exit(failed == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  free(block);
}

// What lives when the process ends is freed by destructors of static objects, after the driver has ended.
struct Leftover {
  void* pointer = nullptr;
  Pluggable* allocator = nullptr;
  ~Leftover() {
    if (pointer == nullptr) return;
    allocator->raw_delete(pointer);
    allocator->release(0, {1000, 0});
    allocator->reset();
  }
};
Leftover leftover;

TEST_F(TorchAllocator, MayBeCalledWhileTheProcessEnds) {
  if (getenv("TORCH_ALLOCATOR_ENDS") != nullptr) {
    const MempoolId pool{1000, 0};
    allocator->begin(0, pool, [](CUstream) { return true; });
    free(malloc(4096));
    allocator->end(0, pool);
    leftover.pointer = malloc(4096);
    leftover.allocator = allocator;
    return;
  }
  const std::string report = testing::TempDir() + "torch_allocator_" + std::to_string(getpid());
  const pid_t child = fork();
  if (child == 0) {
    setenv("TORCH_ALLOCATOR_ENDS", "1", 1);
    setenv("FAKE_CUDA_REPORT", report.c_str(), 1);
    unsetenv("GTEST_OUTPUT");
    execl("/proc/self/exe", "torch_allocator", "--gtest_filter=*MayBeCalledWhileTheProcessEnds", nullptr);
    _exit(127);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(access(report.c_str(), F_OK), 0) << "violations are in " << report;
}

}  // namespace
