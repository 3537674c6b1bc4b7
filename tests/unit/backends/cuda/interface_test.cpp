// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The public interface over the cuda backend and the fake driver: how many driver calls it makes, where it
// splits, stages and routes, and what it never asks the driver.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "base/arithmetic.h"
#include "core/object/held.h"
#include "core/pool/pool.h"
#include "cuda_fake.h"
#include "interface_support.h"
#include "platform/pages.h"
#include "sanitizer.h"

namespace gpumem::cuda {
namespace {

using test::address;
using test::finish;
using test::StreamGate;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Pages of the test's own.
class Pages {
 public:
  explicit Pages(uint64_t size)
      : size_(size),
        base_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0)) {}
  ~Pages() { munmap(base_, size_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  unsigned char* get() const { return static_cast<unsigned char*>(base_); }

 private:
  uint64_t size_;
  void* base_;
};

class CudaInterface : public CudaFake {
 protected:
  void SetUp() override {
    CudaFake::SetUp();
    if (IsSkipped()) return;
    configure("FAKE_CUDA_DEVICES", "2");
    open();
  }
  void TearDown() override {
    session_.reset();
    CudaFake::TearDown();
  }

  void open() { session_ = std::make_unique<test::Session>(GPUMEM_BACKEND_CUDA); }
  gpumem_instance instance() { return session_->instance(); }

  // Driver calls that `call` makes.
  template <class Function>
  static uint64_t calls_of(Function call) {
    const uint64_t before = calls("*");
    call();
    return calls("*") - before;
  }

  std::unique_ptr<test::Session> session_;
};

// The context of a device is current while it lives.
class Current {
 public:
  explicit Current(CUdevice device) : device_(device) {
    EXPECT_EQ(entry<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain")(&context_, device),
              CUDA_SUCCESS);
    EXPECT_EQ(entry<PFN_cuCtxPushCurrent_v4000>("cuCtxPushCurrent_v2")(context_), CUDA_SUCCESS);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CUcontext popped = nullptr;
    EXPECT_EQ(entry<PFN_cuCtxPopCurrent_v4000>("cuCtxPopCurrent_v2")(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context_);
    EXPECT_EQ(entry<PFN_cuDevicePrimaryCtxRelease_v11000>("cuDevicePrimaryCtxRelease_v2")(device_),
              CUDA_SUCCESS);
  }

 private:
  template <class Function>
  static Function entry(const char* name) {
    return reinterpret_cast<Function>(dlsym(fake_library(), name));
  }

  CUdevice device_;
  CUcontext context_ = nullptr;
};

// ---- addresses ----

TEST_F(CudaInterface, BuffersLeaveAddressesForOthersHoweverManyThereAre) {
  constexpr uint64_t kTiB = uint64_t{1} << 40;
  session_.reset();
  configure("FAKE_CUDA_MEMORY", std::to_string(32 * kTiB).c_str());
  open();
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = 1;
  uint64_t reserved = 0;
  uint64_t before = UINT64_MAX;
  std::array<gpumem_buffer, 20> buffers{};
  for (gpumem_buffer& buffer : buffers) {
    CALL(gpumem_buffer_create, session_->device(), &desc, &buffer);
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    CALL(gpumem_buffer_get_info, buffer, &info);
    EXPECT_LE(info.reserved_size, (128 * kTiB - reserved) / 64 + 64 * kMiB);
    if (!test::kThreadSanitizer) {  // it leaves a program less than 2 TiB, in which not all fits
      EXPECT_GT(info.reserved_size, kTiB);
      EXPECT_LE(info.reserved_size, before);
    }
    before = info.reserved_size;
    reserved += info.reserved_size;
  }
  for (const gpumem_buffer buffer : buffers)
    CALL(gpumem_buffer_destroy, buffer);
}

// ---- lack of memory ----

TEST_F(CudaInterface, WhatIsKeptForCopiesMakesRoom) {
  constexpr uint64_t kLarge = 64 * kMiB;
  const gpumem_memory on_device = session_->create(GPUMEM_KIND_DEVICE, kLarge);
  const Pages ours(kLarge);
  std::memset(ours.get(), 1, kLarge);
  for (const bool addresses : {false, true}) {
    SCOPED_TRACE(addresses);
    CALL(gpumem_copy, instance(), address(on_device), ours.get(), kLarge, nullptr);
    const uint64_t given_back = calls("cuMemHostUnregister");
    const char* const lacking = addresses ? "cuMemAddressReserve" : "cuMemHostAlloc";
    FAKE(fake_cuda_fail)(lacking, 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
    if (addresses) {
      gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
      desc.size = 2 * kMiB;
      gpumem_range range = nullptr;
      CALL(gpumem_range_reserve, instance(), &desc, &range);
      CALL(gpumem_range_release, range);
    } else {
      CALL(gpumem_memory_destroy, session_->create(GPUMEM_KIND_PINNED, kMiB));
    }
    EXPECT_GT(calls("cuMemHostUnregister"), given_back);
  }
  CALL(gpumem_memory_destroy, on_device);
}

// ---- driver calls ----

// Copies 400 small pieces, from pinned to device memory and back, and looks at the bytes. Gives the calls of
// each kind that the driver got for the two batches.
struct BatchCalls {
  uint64_t launches;
  uint64_t batches;
  uint64_t copies;
};
BatchCalls copy_pieces(const test::Session& session, uint64_t size, uint64_t (*calls)(const char*)) {
  constexpr uint64_t kPieces = 400;
  const gpumem_memory pinned = session.create(GPUMEM_KIND_PINNED, 2 * kPieces * size);
  const gpumem_memory device = session.create(GPUMEM_KIND_DEVICE, 2 * kPieces * size);
  unsigned char* const bytes = address(pinned);
  const auto copy = [&](unsigned char* to, unsigned char* from, bool spread) {
    std::vector<gpumem_copy_region> regions(kPieces, GPUMEM_COPY_REGION_INIT);
    for (uint64_t i = 0; i < kPieces; ++i) {
      regions[i].destination.pointer = to + (spread ? 2 : 1) * i * size;
      regions[i].source.pointer = from + (spread ? 1 : 2) * i * size;
      regions[i].width = size - i % 2;
    }
    CALL(gpumem_copy_regions, session.instance(), regions.data(), kPieces, nullptr);
  };
  for (uint64_t i = 0; i < kPieces * size; ++i)
    bytes[i] = static_cast<unsigned char>(i % 251);
  const BatchCalls before{calls("cuLaunchKernel"), calls("cuMemcpyBatchAsync"), calls("cuMemcpyAsync")};
  copy(address(device), bytes, true);
  std::memset(bytes, 255, 2 * kPieces * size);
  copy(bytes, address(device), false);
  const BatchCalls made{calls("cuLaunchKernel") - before.launches,
                        calls("cuMemcpyBatchAsync") - before.batches, calls("cuMemcpyAsync") - before.copies};
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < 2 * kPieces * size; ++i) {
    // Every second piece is a byte shorter.
    const bool copied = i < kPieces * size && i % (2 * size) != 2 * size - 1;
    wrong += bytes[i] != (copied ? i % 251 : 255);
  }
  EXPECT_EQ(wrong, 0u);
  CALL(gpumem_memory_destroy, pinned);
  CALL(gpumem_memory_destroy, device);
  return made;
}

TEST_F(CudaInterface, ABatchOfSmallCopiesIsAFewCalls) {
  for (const uint64_t size : {2U, 100U, 40'000U}) {
    const BatchCalls made = copy_pieces(*session_, size, &calls);
    EXPECT_EQ(made.launches, 6u);
    EXPECT_EQ(made.batches, 0u);
    EXPECT_EQ(made.copies, 0u);
  }
}

// The driver may lack its compiler. And it would wait for the other code's work before it loads anything.
TEST_F(CudaInterface, ABatchWithoutTheKernelIsTheDriversOwn) {
  const bool has_batch = cuda::load().value()->version >= 12080;
  for (const char* const failing : {"cuModuleLoadData", "cuModuleGetFunction", ""}) {
    SCOPED_TRACE(failing);
    session_.reset();
    std::optional<Current> others;
    if (*failing == '\0') {
      others.emplace(0);
    } else {
      FAKE(fake_cuda_fail)(failing, 1, 0, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
    }
    open();
    const BatchCalls made = copy_pieces(*session_, 100, &calls);
    EXPECT_EQ(made.launches, 0u);
    EXPECT_EQ(made.batches, has_batch ? 2u : 0u);
    EXPECT_EQ(made.copies, has_batch ? 0u : 800u);
    const bool loaded = std::string(failing) == "cuModuleGetFunction";
    EXPECT_EQ(live(FAKE_CUDA_MODULE), loaded ? 2u : 1u) << "one is the second device's";
  }
}

TEST_F(CudaInterface, WhatCopiesABatchIsTriedOnce) {
  gpumem_capability_info info = GPUMEM_CAPABILITY_INFO_INIT;
  const auto ask = [&] {
    const BatchCalls before{calls("cuLaunchKernel"), calls("cuMemcpyBatchAsync"), calls("cuMemcpyAsync")};
    CALL(gpumem_device_get_capability, session_->device(), GPUMEM_CAPABILITY_COPY_BATCH, nullptr, &info);
    return BatchCalls{calls("cuLaunchKernel") - before.launches, calls("cuMemcpyBatchAsync") - before.batches,
                      calls("cuMemcpyAsync") - before.copies};
  };
  const uint64_t objects = live(FAKE_CUDA_ANY);
  EXPECT_EQ(ask().launches, 1u);
  EXPECT_EQ(info.value, uint64_t{GPUMEM_ANSWER_YES}) << info.reason;
  EXPECT_NE(std::strstr(info.reason, "kernel"), nullptr) << info.reason;
  EXPECT_EQ(ask().launches, 0u);
  EXPECT_EQ(live(FAKE_CUDA_ANY), objects);

  // A kernel that the device does not run.
  session_.reset();
  open();
  FAKE(fake_cuda_fail)("cuLaunchKernel", 1, 0, CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(ask().launches, 1u);
  EXPECT_EQ(info.value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_EQ(info.native_code, CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(live(FAKE_CUDA_ANY), objects);

  // No kernel.
  session_.reset();
  FAKE(fake_cuda_fail)("cuModuleLoadData", 1, 0, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
  open();
  const bool has_batch = cuda::load().value()->version >= 12080;
  const BatchCalls made = ask();
  EXPECT_EQ(made.launches, 0u);
  EXPECT_EQ(made.batches, has_batch ? 1u : 0u);
  EXPECT_EQ(made.copies, 0u);
  EXPECT_EQ(info.value, has_batch ? uint64_t{GPUMEM_ANSWER_YES} : uint64_t{GPUMEM_ANSWER_EMULATED})
      << info.reason;
  EXPECT_EQ(info.source, has_batch ? GPUMEM_ANSWER_FROM_TRIAL : GPUMEM_ANSWER_FROM_ATTRIBUTE);
  EXPECT_EQ(info.status, GPUMEM_SUCCESS);
  EXPECT_NE(std::strstr(info.reason, "cuMemcpyBatchAsync"), nullptr) << info.reason;
  EXPECT_EQ(live(FAKE_CUDA_ANY), objects - 1) << "the module";
}

// Instances share it. Where other code keeps the context it stays there, since unloading would wait for that
// code's work, but is not used again: the context could have been another one meanwhile.
TEST_F(CudaInterface, TheKernelIsUsedUntilTheLastInstanceEnds) {
  EXPECT_EQ(live(FAKE_CUDA_MODULE), 2u);
  const Current others(0);
  auto second = std::make_unique<test::Session>(GPUMEM_BACKEND_CUDA);
  EXPECT_EQ(live(FAKE_CUDA_MODULE), 2u);
  session_.reset();
  EXPECT_EQ(copy_pieces(*second, 100, &calls).launches, 6u);
  second.reset();
  EXPECT_EQ(live(FAKE_CUDA_MODULE), 1u);
  open();
  EXPECT_EQ(live(FAKE_CUDA_MODULE), 2u) << "one more, of the second device";
  EXPECT_EQ(copy_pieces(*session_, 100, &calls).launches, 0u);
}

// No driver seen so far is like this, but none promises that it is not.
TEST_F(CudaInterface, ADriverThatNeedsACurrentContextGetsOne) {
  configure("FAKE_CUDA_NEEDS_CONTEXT", "1");
  const gpumem_memory pinned = session_->create(GPUMEM_KIND_PINNED, 64);
  const gpumem_memory on_device = session_->create(GPUMEM_KIND_DEVICE, 64);
  const gpumem_stream stream = session_->stream();
  const gpumem_event event = session_->event();
  std::memset(address(pinned), 5, 64);
  CALL(gpumem_copy_async, stream, address(on_device), address(pinned), uint64_t{64}, nullptr);
  CALL(gpumem_event_record, event, stream);
  CALL(gpumem_event_synchronize, event, GPUMEM_TIMEOUT_INFINITE);
  CALL(gpumem_stream_query, stream);
  unsigned char read[64] = {};
  CALL(gpumem_copy, instance(), read, address(on_device), uint64_t{64}, nullptr);
  EXPECT_EQ(read[0], 5);
  EXPECT_EQ(read[63], 5);
  CUcontext current = nullptr;
  EXPECT_EQ(reinterpret_cast<PFN_cuCtxGetCurrent_v4000>(dlsym(fake_library(), "cuCtxGetCurrent"))(&current),
            CUDA_SUCCESS);
  EXPECT_EQ(current, nullptr);
  CALL(gpumem_event_destroy, event);
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_memory_destroy, on_device);
  CALL(gpumem_memory_destroy, pinned);
}

// Its handle is the same on every device: the current context says whose stream it is.
TEST_F(CudaInterface, TheDefaultStreamIsItsDevicesWhicheverContextIsCurrent) {
  const gpumem_memory on_device = session_->create(GPUMEM_KIND_DEVICE, 64);
  const gpumem_stream own = session_->stream();
  const gpumem_event event = session_->event();
  gpumem_stream standard = nullptr;
  CALL(gpumem_stream_wrap, session_->device(), nullptr, &standard);
  StreamGate gate;
  const Current current(1);
  gate.hold(standard);
  CALL(gpumem_fill_async, standard, address(on_device), uint64_t{64}, 6, 1);
  CALL(gpumem_event_record, event, standard);
  EXPECT_EQ(gpumem_stream_query(standard, nullptr), GPUMEM_NOT_READY);
  gate.open();
  CALL(gpumem_stream_synchronize, standard, GPUMEM_TIMEOUT_INFINITE);
  CALL(gpumem_event_query, event);
  unsigned char read[64] = {};
  CALL(gpumem_copy_async, own, read, address(on_device), uint64_t{64}, nullptr);
  finish(own);
  EXPECT_EQ(read[63], 6);
  CALL(gpumem_stream_destroy, standard);
  CALL(gpumem_event_destroy, event);
  CALL(gpumem_stream_destroy, own);
  CALL(gpumem_memory_destroy, on_device);
}

TEST_F(CudaInterface, TheHotCallsAskTheDriverForNothingMore) {
  constexpr uint64_t kSize = 4096;
  const gpumem_memory pinned = session_->create(GPUMEM_KIND_PINNED, kSize);
  const gpumem_memory on_device = session_->create(GPUMEM_KIND_DEVICE, kSize);
  const gpumem_stream stream = session_->stream();
  const gpumem_event event = session_->event();
  unsigned char* const host = address(pinned);
  unsigned char* const there = address(on_device);
  std::memset(host, 1, kSize);
  uint64_t asks = 0;  // whether the stream is being captured
  const auto expect_no_more = [&] {
    EXPECT_EQ(calls_of([&] { CALL(gpumem_copy_async, stream, there, host, kSize, nullptr); }), asks + 1);
    EXPECT_EQ(calls_of([&] { CALL(gpumem_fill_async, stream, there, kSize, 7, 4); }), asks + 1);
    EXPECT_EQ(calls_of([&] { CALL(gpumem_fill_async, stream, host, kSize, 7, 1); }), asks + 1);
    EXPECT_EQ(calls_of([&] { CALL(gpumem_event_record, event, stream); }), asks + 1);
    EXPECT_EQ(FAKE(fake_cuda_settle)(), 1);
    // The query, between two changes of what the thread does to captures.
    EXPECT_EQ(calls_of([&] { CALL(gpumem_event_query, event); }), 3U);
    EXPECT_EQ(calls_of([&] { CALL(gpumem_stream_query, stream); }), asks + 3);
  };
  // A stream carries its context, whichever is current.
  expect_no_more();
  for (const CUdevice device : {0, 1}) {
    const Current current(device);
    expect_no_more();
  }
  // Who has the native handle can capture the stream.
  gpumem_stream_info stream_info = GPUMEM_STREAM_INFO_INIT;
  CALL(gpumem_stream_get_info, stream, &stream_info);
  asks = 1;
  expect_no_more();
  // Of a memory or an address of its own the instance knows all.
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  gpumem_memory_info memory_info = GPUMEM_MEMORY_INFO_INIT;
  const uint64_t before = calls("*");
  CALL(gpumem_pointer_get_info, instance(), there + 5, &info);
  CALL(gpumem_memory_get_info, pinned, &memory_info);
  EXPECT_EQ(calls("*"), before);
  CALL(gpumem_event_destroy, event);
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_memory_destroy, on_device);
  CALL(gpumem_memory_destroy, pinned);
}

// Another context costs the switch there and back.
// The driver gives more than the memory in it. What is behind belongs to the instance, so nobody is asked.
TEST_F(CudaInterface, TheDriverIsNotAskedAboutWhatAnAlignmentCosts) {
  const gpumem_memory memory = session_->create(GPUMEM_KIND_DEVICE, 1000, 64 * 1024);
  unsigned char* const begin = address(memory);
  const uint64_t asked = calls("cuPointerGetAttributes");
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  CALL(gpumem_pointer_get_info, instance(), begin + 999, &info);
  EXPECT_EQ(info.kind, GPUMEM_KIND_DEVICE);
  EXPECT_EQ(info.base, begin);
  EXPECT_EQ(info.size, 1000U);
  CALL(gpumem_pointer_get_info, instance(), begin + 1000, &info);
  EXPECT_EQ(info.kind, GPUMEM_KIND_UNKNOWN);
  EXPECT_EQ(info.base, nullptr);
  EXPECT_EQ(gpumem_fill(instance(), begin + 1000, 4, 0, 4, nullptr), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(gpumem_free(instance(), begin + 1000, nullptr), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(calls("cuPointerGetAttributes"), asked);
  CALL(gpumem_memory_destroy, memory);
}

// ---- pieces ----

// 256 MiB is what the backend registers at once.
TEST_F(CudaInterface, CopiesAndFillsAreCutAtTheBordersOfPieces) {
  constexpr uint64_t kPiece = 256 * kMiB;
  const uint64_t page = platform::page_size();
  const Pages pages(2 * kPiece + page);
  const gpumem_memory lent =
      session_->lend(pages.get(), 2 * kPiece + page, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_IN_PIECES);
  EXPECT_EQ(live(FAKE_CUDA_REGISTRATION), 3U);
  const gpumem_memory on_device = session_->create(GPUMEM_KIND_DEVICE, 8 * page);
  const gpumem_stream stream = session_->stream();
  unsigned char* const there = address(on_device);
  const auto copies = [&](unsigned char* from, uint64_t size) {
    const uint64_t before = calls("cuMemcpyAsync");
    CALL(gpumem_copy_async, stream, there, from, size, nullptr);
    return calls("cuMemcpyAsync") - before;
  };
  unsigned char* const border = pages.get() + kPiece;
  std::iota(border - page, border + page, 1);
  EXPECT_EQ(copies(border - page, page), 1U);
  EXPECT_EQ(copies(border, page), 1U);
  EXPECT_EQ(copies(border - page, 2 * page), 2U);
  EXPECT_EQ(copies(pages.get() + 2 * kPiece - 1, 2), 2U);
  CALL(gpumem_copy_async, stream, there, border - 100, 200, nullptr);
  std::vector<unsigned char> seen(200);
  finish(stream);
  CALL(gpumem_copy, instance(), seen.data(), there, 200, nullptr);
  EXPECT_EQ(std::memcmp(seen.data(), border - 100, 200), 0);

  const auto fill = [&](uint32_t value) {
    return gpumem_fill_async(stream, border - 200, 400, value, 4, nullptr);
  };
  uint64_t before = calls("cuMemsetD32Async");
  EXPECT_EQ(fill(0x01020304), GPUMEM_SUCCESS);
  EXPECT_EQ(calls("cuMemsetD32Async") - before, 2U);
  // A part that fails after others were enqueued: the call waits for those.
  FAKE(fake_cuda_fail)("cuMemsetD32Async", 2, 0, CUDA_ERROR_UNKNOWN);
  before = calls("cuStreamSynchronize");
  EXPECT_EQ(fill(0), GPUMEM_ERROR_INTERNAL);
  EXPECT_EQ(calls("cuStreamSynchronize") - before, 1U);
  finish(stream);
  EXPECT_EQ(border[199], 1);
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_memory_destroy, on_device);
  CALL(gpumem_memory_destroy, lent);
}

TEST_F(CudaInterface, APitchAboveTheDriversIsRefused) {
  session_.reset();
  FAKE(fake_cuda_set_attribute)(-1, CU_DEVICE_ATTRIBUTE_MAX_PITCH, 5000);
  open();
  const gpumem_memory memory = session_->create(GPUMEM_KIND_DEVICE, 64 * 1024);
  std::vector<unsigned char> bytes(64 * 1024);
  const auto copy = [&](uint64_t pitch, uint64_t height) {
    return gpumem_copy_2d(instance(), bytes.data(), pitch, address(memory), 128, 100, height, nullptr,
                          nullptr);
  };
  EXPECT_EQ(copy(5001, 10), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(copy(5001, 1), GPUMEM_SUCCESS);
  EXPECT_EQ(copy(5000, 10), GPUMEM_SUCCESS);
  CALL(gpumem_memory_destroy, memory);
}

// ---- staging ----

TEST_F(CudaInterface, DuringCallReadsAtOnce) {
  const gpumem_memory on_device = session_->create(GPUMEM_KIND_DEVICE, 4096);
  const gpumem_memory pinned = session_->create(GPUMEM_KIND_PINNED, 4096);
  const gpumem_stream stream = session_->stream();
  unsigned char* const bytes = address(pinned);
  unsigned char* const there = address(on_device);
  std::memset(bytes, 0x11, 4096);
  unsigned char local[64];
  std::memset(local, 0x22, sizeof local);
  StreamGate gate;
  gate.hold(stream);
  gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
  options.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
  CALL(gpumem_copy_async, stream, there, bytes, 4096, &options);
  CALL(gpumem_copy_2d_async, stream, there + 1000, 16, local, 8, 8, 8, &options);
  std::memset(bytes, 0x33, 4096);
  std::memset(local, 0x44, sizeof local);
  gate.open();
  finish(stream);
  std::vector<unsigned char> seen(4096);
  CALL(gpumem_copy, instance(), seen.data(), there, 4096, nullptr);
  for (uint64_t at = 0; at < seen.size(); ++at) {
    const bool in_plane = at >= 1000 && at < 1000 + 7 * 16 + 8 && (at - 1000) % 16 < 8;
    ASSERT_EQ(seen[at], in_plane ? 0x22 : 0x11) << at;
  }
  CALL(gpumem_stream_destroy, stream);
  CALL(gpumem_memory_destroy, on_device);
  CALL(gpumem_memory_destroy, pinned);
}

TEST_F(CudaInterface, CopiesOfAllKindsInEveryOrder) {
  constexpr uint64_t kSize = 10000;
  constexpr uint64_t kOffset = 123;
  const Pages pages(kMiB);
  std::vector<unsigned char> heap(kSize + kOffset);
  const std::vector<gpumem_memory> memories = {session_->create(GPUMEM_KIND_DEVICE, kSize + kOffset),
                                               session_->create(GPUMEM_KIND_DEVICE, kSize + kOffset, 0, 1),
                                               session_->create(GPUMEM_KIND_PINNED, kSize + kOffset),
                                               session_->lend(pages.get(), kSize + kOffset)};
  const gpumem_stream stream = session_->stream();
  std::vector<unsigned char*> places;
  for (const gpumem_memory memory : memories)
    places.push_back(address(memory) + kOffset);
  places.push_back(heap.data() + kOffset);
  std::vector<unsigned char> pattern(kSize);
  std::vector<unsigned char> seen(kSize);
  std::iota(pattern.begin(), pattern.end(), 1);
  for (unsigned char* const source : places) {
    for (unsigned char* const destination : places) {
      if (source == destination) continue;
      for (const gpumem_source_order order :
           {GPUMEM_SOURCE_ORDER_STREAM, GPUMEM_SOURCE_ORDER_DURING_CALL, GPUMEM_SOURCE_ORDER_ANY}) {
        SCOPED_TRACE(order);
        ++pattern[0];
        gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
        options.source_order = order;
        CALL(gpumem_copy_async, stream, source, pattern.data(), kSize, nullptr);
        // Drivers read device memory too early.
        const bool refused = order == GPUMEM_SOURCE_ORDER_ANY && (source == places[0] || source == places[1]);
        if (refused) {
          EXPECT_EQ(gpumem_copy_async(stream, destination, source, kSize, &options, nullptr),
                    GPUMEM_ERROR_INVALID_ARGUMENT);
          continue;
        }
        CALL(gpumem_copy_async, stream, destination, source, kSize, &options);
        CALL(gpumem_copy_async, stream, seen.data(), destination, kSize, nullptr);
        finish(stream);
        EXPECT_EQ(seen, pattern);
      }
    }
  }
  CALL(gpumem_stream_destroy, stream);
  for (const gpumem_memory memory : memories)
    CALL(gpumem_memory_destroy, memory);
}

// ---- fills ----

TEST_F(CudaInterface, FillsReachAllKinds) {
  constexpr uint64_t kSize = 4096;
  const Pages pages(kMiB);
  std::vector<unsigned char> heap(kSize);
  const std::vector<gpumem_memory> memories = {
      session_->create(GPUMEM_KIND_DEVICE, kSize),
      session_->create(GPUMEM_KIND_DEVICE, kSize, 0, 1),
      session_->create(GPUMEM_KIND_PINNED, kSize),
      session_->lend(pages.get() + kSize, kSize, GPUMEM_MEMORY_MAPPED),
      session_->lend(pages.get(), kSize),
      session_->lend(pages.get() + 2 * kSize, kSize, GPUMEM_MEMORY_MAPPED, 1)};
  const gpumem_stream stream = session_->stream();
  struct Case {
    unsigned char* destination;
    uint64_t host_functions;  // pageable memory needs none: it is filled at the call
  };
  const Case cases[] = {{address(memories[0]) + 8, 0}, {address(memories[1]) + 8, 0},
                        {address(memories[2]) + 8, 0}, {address(memories[3]) + 8, 0},
                        {address(memories[4]) + 8, 1}, {address(memories[5]) + 8, 1},
                        {heap.data() + 8, 0}};
  for (const Case& one : cases) {
    for (const uint32_t value_size : {1U, 2U, 4U}) {
      for (const uint64_t height : {uint64_t{1}, uint64_t{5}}) {
        SCOPED_TRACE(testing::Message() << &one - &cases[0] << " " << value_size << " " << height);
        constexpr uint32_t kValue = 0xA1B2C3D4;
        std::vector<unsigned char> expected(kSize - 8, 0x55);
        CALL(gpumem_copy_async, stream, one.destination, expected.data(), kSize - 8, nullptr);
        const uint64_t host_functions = calls("cuLaunchHostFunc");
        CALL(gpumem_fill_2d_async, stream, one.destination, 64, 40, height, kValue, value_size);
        EXPECT_EQ(calls("cuLaunchHostFunc") - host_functions, one.host_functions);
        for (uint64_t row = 0; row < height; ++row) {
          for (uint64_t at = 0; at < 40; ++at) {
            expected[row * 64 + at] = static_cast<unsigned char>(kValue >> (8 * (at % value_size)));
          }
        }
        std::vector<unsigned char> seen(kSize - 8);
        CALL(gpumem_copy_async, stream, seen.data(), one.destination, kSize - 8, nullptr);
        finish(stream);
        EXPECT_EQ(seen, expected);
      }
    }
  }
  CALL(gpumem_stream_destroy, stream);
  for (const gpumem_memory memory : memories)
    CALL(gpumem_memory_destroy, memory);
}

TEST_F(CudaInterface, AFillOfPageableMemoryIsDoneAtTheCall) {
  const gpumem_stream stream = session_->stream();
  uint32_t word = 0;
  // What runs before the fill writes there too.
  const gpumem_host_function write = [](void* place) { *static_cast<uint32_t*>(place) = 1; };
  CALL(gpumem_stream_launch_host_function, stream, write, &word);
  CALL(gpumem_fill_async, stream, &word, sizeof word, 0xA1B2C3D4, 4);
  EXPECT_EQ(word, 0xA1B2C3D4U);
  CALL(gpumem_stream_destroy, stream);
}

// A page that holds up whoever touches it until it is let through, or for 100 ms: a test that would have to
// wait for longer has seen by then what it wanted to see. One at a time.
class SlowPage {
 public:
  explicit SlowPage(void* page) {
    page_ = page;
    touched_ = false;
    through_ = false;
    struct sigaction action {};
    action.sa_sigaction = hold_up;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
    EXPECT_EQ(mprotect(page_, platform::page_size(), PROT_NONE), 0);
  }
  ~SlowPage() {
    EXPECT_EQ(mprotect(page_, platform::page_size(), PROT_READ | PROT_WRITE), 0);
    sigaction(SIGSEGV, &before_, nullptr);
  }
  SlowPage(const SlowPage&) = delete;
  SlowPage& operator=(const SlowPage&) = delete;

  void let_through() { through_ = true; }
  void wait_until_touched() {
    while (!touched_)
      std::this_thread::yield();
  }

 private:
  static void hold_up(int, siginfo_t* info, void*) {
    const uint64_t offset = address_of(info->si_addr) - address_of(page_);
    if (offset >= platform::page_size()) std::abort();
    touched_ = true;
    for (int round = 0; round < 100 && !through_; ++round)
      usleep(1000);
    mprotect(page_, platform::page_size(), PROT_READ | PROT_WRITE);
  }

  static inline void* page_ = nullptr;
  static inline std::atomic<bool> touched_{false};
  static inline std::atomic<bool> through_{false};
  struct sigaction before_ {};
};

// Nobody can wait for the stream of a lost device, and what the CPU fills belongs to others afterwards.
TEST_F(CudaInterface, NothingIsFilledOnceALostDeviceHasGivenBack) {
  const uint64_t page = platform::page_size();
  enum class How { kDestroy, kDestroyThatFindsOut, kClose };
  for (const How how : {How::kDestroy, How::kDestroyThatFindsOut, How::kClose}) {
    SCOPED_TRACE(static_cast<int>(how));
    session_.reset();
    reset();
    open();
    const Pages pages(2 * page);
    const gpumem_memory memory = session_->lend(pages.get(), 2 * page);
    const gpumem_stream stream = session_->stream();
    {
      SlowPage slow(pages.get() + page);
      CALL(gpumem_fill_async, stream, pages.get(), 2 * page, 1, 1);
      slow.wait_until_touched();
      CALL(gpumem_fill_async, stream, pages.get(), 2 * page, 2, 1);
      FAKE(fake_cuda_set_sticky)(0, CUDA_ERROR_ILLEGAL_ADDRESS);
      if (how != How::kDestroyThatFindsOut) {
        uint64_t free = 0;
        EXPECT_EQ(gpumem_device_get_memory(session_->device(), &free, nullptr, nullptr),
                  GPUMEM_ERROR_DEVICE_LOST);
      }
      if (how == How::kClose) {
        session_->close_by_force();
      } else {
        CALL(gpumem_memory_destroy, memory);
      }
      EXPECT_EQ(pages.get()[0], 1);
      EXPECT_EQ(pages.get()[2 * page - 1], 1) << "the fill that ran has ended";
      slow.let_through();
    }
    // What no real driver does: so the fake runs what comes behind, as a real one might.
    FAKE(fake_cuda_set_sticky)(0, 0);
    EXPECT_EQ(FAKE(fake_cuda_settle)(), 1);
    EXPECT_EQ(pages.get()[0], 1) << "the fill that had not begun never does";
    if (how != How::kClose) CALL(gpumem_stream_destroy, stream);
  }
}

// ---- ranges ----

class CudaRange : public CudaInterface {
 protected:
  void SetUp() override {
    CudaInterface::SetUp();
    if (IsSkipped()) return;
    const gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
    CALL(gpumem_physical_get_granularity, session_->device(), &desc, &unit_, nullptr);
  }

  static gpumem_status map(gpumem_range range, uint64_t offset,
                           std::initializer_list<gpumem_physical> blocks) {
    return gpumem_range_map(range, offset, blocks.begin(), blocks.size(), nullptr);
  }
  gpumem_physical block(uint32_t ordinal = 0, gpumem_location location = GPUMEM_LOCATION_DEVICE) {
    gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
    desc.location = location;
    desc.size = unit_;
    gpumem_physical physical = nullptr;
    CALL(gpumem_physical_create, session_->device(ordinal), &desc, &physical);
    return physical;
  }
  gpumem_range reserve(uint64_t units) {
    gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
    desc.size = units * unit_;
    gpumem_range range = nullptr;
    CALL(gpumem_range_reserve, instance(), &desc, &range);
    return range;
  }
  static gpumem_range_info info_of(gpumem_range range) {
    gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
    CALL(gpumem_range_get_info, range, &info);
    return info;
  }
  static void no_faults() { configure("FAKE_CUDA_FAIL", ""); }

  uint64_t unit_ = 0;
};

// The second try of what was unmapped though the driver reported an error asks for nothing; what was mapped
// there since is another matter.
TEST_F(CudaRange, WhatWasMappedAnewIsUnmapped) {
  const gpumem_physical one = block();
  for (const uint64_t anew : {uint64_t{0}, uint64_t{1}, uint64_t{3}}) {
    SCOPED_TRACE(anew);
    const gpumem_range range = reserve(4);
    ASSERT_EQ(map(range, 0, {one, one, one, one}), GPUMEM_SUCCESS);
    FAKE(fake_cuda_fail)("cuMemUnmap", 1, 0, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(gpumem_range_unmap(range, 0, 4 * unit_, nullptr), GPUMEM_ERROR_INTERNAL);
    const uint64_t unmappings = calls("cuMemUnmap");
    CALL(gpumem_range_unmap, range, anew * unit_, unit_);
    EXPECT_EQ(calls("cuMemUnmap"), unmappings);
    ASSERT_EQ(map(range, anew * unit_, {one}), GPUMEM_SUCCESS);
    CALL(gpumem_range_unmap, range, 0, 4 * unit_);
    EXPECT_EQ(calls("cuMemUnmap"), unmappings + 1);
    EXPECT_EQ(live(FAKE_CUDA_MAPPING), 0u);
    CALL(gpumem_range_release, range);
  }
  CALL(gpumem_physical_release, one);
}

TEST_F(CudaRange, WhatAFailedMappingLeftIsUnmapped) {
  const gpumem_physical one = block();
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again);
    const gpumem_range range = reserve(2);
    FAKE(fake_cuda_fail)("cuMemMap", 2, 0, CUDA_ERROR_OUT_OF_MEMORY);
    FAKE(fake_cuda_fail)("cuMemUnmap", 1, 1, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(map(range, 0, {one, one}), GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_EQ(live(FAKE_CUDA_MAPPING), 1u);
    EXPECT_EQ(info_of(range).mapping_count, 0u);
    EXPECT_EQ(map(range, 0, {one, one}), GPUMEM_ERROR_PERMISSION_DENIED);
    EXPECT_EQ(gpumem_range_release(range, nullptr), GPUMEM_ERROR_PERMISSION_DENIED);
    no_faults();
    if (again) {
      EXPECT_EQ(map(range, 0, {one, one}), GPUMEM_SUCCESS);
      CALL(gpumem_range_unmap, range, 0, 2 * unit_);
    }
    CALL(gpumem_range_release, range);
    EXPECT_EQ(live(FAKE_CUDA_MAPPING), 0u);
  }
  CALL(gpumem_physical_release, one);
}

// The CPU's rights to memory of two locations take two calls.
TEST_F(CudaRange, TheAccessThatABusyDriverLeavesIsKnown) {
  gpumem_capability_info answer = GPUMEM_CAPABILITY_INFO_INIT;
  CALL(gpumem_device_get_capability, session_->device(), GPUMEM_CAPABILITY_VMM_HOST, nullptr, &answer);
  if (answer.value == GPUMEM_ANSWER_NO) GTEST_SKIP() << "the driver has no physical memory of the host";
  const Current current(0);
  const auto get_access =
      reinterpret_cast<PFN_cuMemGetAccess_v10020>(dlsym(fake_library(), "cuMemGetAccess"));
  const gpumem_physical one = block(0, GPUMEM_LOCATION_HOST);
  const gpumem_physical two = block(0, GPUMEM_LOCATION_HOST_NUMA);
  const gpumem_range range = reserve(2);
  auto* const base = static_cast<unsigned char*>(info_of(range).base);
  ASSERT_EQ(map(range, 0, {one, two}), GPUMEM_SUCCESS);
  const auto set = [&](gpumem_access access) {
    gpumem_access_desc rights[] = {GPUMEM_ACCESS_DESC_INIT, GPUMEM_ACCESS_DESC_INIT};
    rights[0].location = GPUMEM_LOCATION_DEVICE;
    rights[1].location = GPUMEM_LOCATION_HOST;
    rights[0].access = rights[1].access = access;
    return gpumem_range_set_access(range, 0, 2 * unit_, rights, 2, nullptr);
  };
  const gpumem_access all[] = {GPUMEM_ACCESS_NONE, GPUMEM_ACCESS_READ, GPUMEM_ACCESS_READWRITE};
  for (const gpumem_access before : all) {
    for (const gpumem_access after : all) {
      SCOPED_TRACE(testing::Message() << before << " to " << after);
      ASSERT_EQ(set(before), GPUMEM_SUCCESS);
      FAKE(fake_cuda_fail)("cuMemSetAccess", 2, 1, CUDA_ERROR_NOT_READY);
      EXPECT_EQ(set(after), GPUMEM_ERROR_BUSY);
      no_faults();
      for (const unsigned char* const at : {base, base + unit_}) {
        for (const gpumem_location location : {GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_HOST}) {
          const bool on_device = location == GPUMEM_LOCATION_DEVICE;
          const CUmemLocation native = {on_device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST,
                                        0};
          unsigned long long in_force = 77;
          EXPECT_EQ(get_access(&in_force, &native, reinterpret_cast<CUdeviceptr>(at)), CUDA_SUCCESS);
          gpumem_access known = 77;
          CALL(gpumem_pointer_get_access, instance(), at, location, 0, &known);
          EXPECT_EQ(known, in_force) << (at - base) << (on_device ? ", device" : ", CPU");
        }
      }
    }
  }
  CALL(gpumem_range_unmap, range, 0, 2 * unit_);
  CALL(gpumem_range_release, range);
  CALL(gpumem_physical_release, one);
  CALL(gpumem_physical_release, two);
}

// Though the addresses were reserved by the device that is lost.
TEST_F(CudaRange, AFailureCountsWhereAnotherDeviceIsLost) {
  const gpumem_physical theirs = block(1);
  const gpumem_range range = reserve(1);
  ASSERT_EQ(map(range, 0, {theirs}), GPUMEM_SUCCESS);
  CALL(gpumem_physical_release, theirs);
  FAKE(fake_cuda_set_sticky)(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(gpumem_device_get_memory(session_->device(), nullptr, nullptr, nullptr),
            GPUMEM_ERROR_DEVICE_LOST);
  FAKE(fake_cuda_fail)("cuMemUnmap", 1, 0, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(gpumem_range_unmap(range, 0, unit_, nullptr), GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(info_of(range).mapping_count, 1u);
  EXPECT_EQ(live(FAKE_CUDA_BLOCK), 1u);
  CALL(gpumem_range_unmap, range, 0, unit_);
  EXPECT_EQ(live(FAKE_CUDA_BLOCK), 0u);
  CALL(gpumem_range_release, range);
}

// ---- pools ----

TEST_F(CudaInterface, TryingToAllocateCallsTheDriverOnlyToMarkWhatIsInTheWay) {
  gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
  desc.flags = GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES;
  gpumem_pool pool = nullptr;
  CALL(gpumem_pool_create, session_->device(), &desc, &pool);
  const gpumem_stream busy = session_->stream();
  const gpumem_stream other = session_->stream();
  const bool events = cuda::load().value()->version < 11070;
  for (const uint64_t size : {uint64_t{1000}, 3 * kMiB, 20 * kMiB}) {
    SCOPED_TRACE(size);
    const auto attempt = [&](gpumem_stream stream, bool may_call = false) {
      void* block = nullptr;
      gpumem_status status = GPUMEM_SUCCESS;
      const auto calls =
          calls_of([&] { status = gpumem_pool_try_alloc(pool, size, 0, stream, &block, nullptr, nullptr); });
      if (may_call) {
        EXPECT_GT(calls, 0u);
      } else {
        EXPECT_EQ(calls, 0u);
      }
      EXPECT_EQ(status, block != nullptr ? GPUMEM_SUCCESS : GPUMEM_NOT_READY);
      return block;
    };
    // All blocks that there are, freed in a stream that has work.
    void* first = nullptr;
    CALL(gpumem_pool_alloc, pool, size, busy, &first);
    std::vector<void*> blocks{first};
    while (void* const block = attempt(busy))
      blocks.push_back(block);
    StreamGate gate;
    gate.hold(busy);
    for (void* const block : blocks)
      CALL(gpumem_pool_free, pool, block, busy);
    EXPECT_EQ(attempt(other, true), nullptr);
    // Marks of an older driver are events, which only it can look at.
    EXPECT_EQ(attempt(other, events), nullptr);
    EXPECT_EQ(attempt(nullptr, events), nullptr);
    void* const again = attempt(busy);
    EXPECT_NE(again, nullptr);
    CALL(gpumem_pool_free, pool, again, busy);
    gate.open();
    finish(busy);
    CALL(gpumem_pool_trim, pool, 0, nullptr);
  }
  CALL(gpumem_stream_destroy, busy);
  CALL(gpumem_stream_destroy, other);
  CALL(gpumem_pool_destroy, pool);
}

// No pool hears of their end.
TEST_F(CudaInterface, OrdersOfNativeStreamsDoNotAddUp) {
  const Current current(0);
  const auto entry = [](auto function, const char* name) {
    return reinterpret_cast<decltype(function)>(dlsym(fake_library(), name));
  };
  const auto create = entry(PFN_cuStreamCreate_v2000{}, "cuStreamCreate");
  const auto destroy = entry(PFN_cuStreamDestroy_v4000{}, "cuStreamDestroy_v2");
  const auto synchronize = entry(PFN_cuStreamSynchronize_v2000{}, "cuStreamSynchronize");
  for (const uint64_t size : {uint64_t{4} << 10, 4 * kMiB}) {
    SCOPED_TRACE(size);
    gpumem_pool pool = nullptr;
    CALL(gpumem_pool_create, session_->device(), nullptr, &pool);
    for (int i = 0; i < 300; ++i) {
      CUstream native = nullptr;
      void* block = nullptr;
      EXPECT_EQ(create(&native, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      CALL(gpumem_pool_alloc_native, pool, size, native, &block);
      CALL(gpumem_pool_free_native, pool, block, native);
      EXPECT_EQ(synchronize(native), CUDA_SUCCESS);
      EXPECT_EQ(destroy(native), CUDA_SUCCESS);
    }
    {
      const auto object = core::held<core::Pool>(reinterpret_cast<uintptr_t>(pool));
      ASSERT_TRUE(object.ok());
      EXPECT_LE((*object)->core().order_count(), 70U);
    }
    CALL(gpumem_pool_destroy, pool);
  }
}

}  // namespace
}  // namespace gpumem::cuda
