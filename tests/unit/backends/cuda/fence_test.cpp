// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Fences of the cuda backend over the fake driver, in each way that a device can have them: it writes words
// of 64 bits, or of 32 bits, or none, and then events answer.
#include "backends/cuda/fence.h"

#include <array>
#include <thread>

#include "base/arithmetic.h"
#include "cuda_fake.h"
#include "fence_support.h"
#include "host_support.h"
#include "process_support.h"

namespace gpumem::cuda {
namespace {

using test::fence_of;
using test::FencePointer;
using test::Gate;
using test::mark;
using test::mark_and_poll_by_many_threads;
using test::passes;
using test::StreamPointer;

enum class Way { kWide, kNarrow, kEvents };

class CudaFences : public CudaFake, public testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    CudaFake::SetUp();
    if (!IsSkipped()) prepare();
  }
  void TearDown() override {
    CudaFake::TearDown();
    Gate::forget();
  }

  // Opens a device that can only do it this way.
  void prepare() {
    const int wide = GetParam() == Way::kWide ? 1 : 0;
    const auto set = [](CUdevice_attribute number, int value) {
      FAKE(fake_cuda_set_attribute)(-1, number, value);
    };
    set(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1);
    set(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, wide);
    set(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, wide);
    // The device cannot reach the words then.
    if (GetParam() == Way::kEvents) set(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0);
    open();
  }
  bool by_word() const { return GetParam() != Way::kEvents; }
  // The one call of a mark.
  const char* call() const {
    return GetParam() == Way::kWide     ? "cuStreamWriteValue64"
           : GetParam() == Way::kNarrow ? "cuStreamWriteValue32"
                                        : "cuEventRecord";
  }

  StreamPointer make_stream() {
    auto stream = device().create_stream(0);
    EXPECT_TRUE(stream.ok());
    return *stream;
  }
  static void finish(backend::Stream& stream) {
    EXPECT_DONE(stream.synchronize(GPUMEM_TIMEOUT_INFINITE));
    EXPECT_DONE(stream.release());
  }
};

TEST_P(CudaFences, AMarkPassesWithTheWorkBeforeIt) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  Gate gate;
  const uint64_t first = mark(*fence, *stream);
  ASSERT_TRUE(passes(*fence, first));
  EXPECT_DONE(gate.hold(*stream));
  const uint64_t second = mark(*fence, *stream);
  const uint64_t third = mark(*fence, *stream);
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  gate.await();
  EXPECT_EQ(fence->poll(first), GPUMEM_SUCCESS);
  EXPECT_EQ(fence->poll(second), GPUMEM_NOT_READY);
  EXPECT_EQ(fence->poll(third), GPUMEM_NOT_READY);
  gate.open();
  EXPECT_TRUE(passes(*fence, third));
  EXPECT_EQ(fence->poll(second), GPUMEM_SUCCESS);
  finish(*stream);
}

TEST_P(CudaFences, AMarkIsOneCallAndAPollNone) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  EXPECT_TRUE(passes(*fence, mark(*fence, *stream)));  // events are made at the first mark
  Scope scope(device());
  uint64_t before = calls("*");
  const uint64_t current = calls("cuCtxGetCurrent");
  const uint64_t capturing = calls("cuStreamIsCapturing");
  const uint64_t marks = calls(call());
  const uint64_t number = mark(*fence, *stream);
  EXPECT_EQ(calls("cuStreamIsCapturing"), capturing) << "nobody has the handle";
  EXPECT_EQ(calls(call()) - marks, 1u);
  EXPECT_EQ(calls("*") - before - (calls("cuCtxGetCurrent") - current), 1u) << "that is all";
  EXPECT_TRUE(passes(*fence, number));
  before = calls("*");
  for (int round = 0; round < 100; ++round)
    EXPECT_EQ(fence->poll(number), GPUMEM_SUCCESS);
  EXPECT_EQ(calls("*"), before);
  if (by_word()) {
    EXPECT_EQ(fence->poll(number + 1), GPUMEM_NOT_READY);
    EXPECT_EQ(calls("*"), before) << "nor for a mark that has not passed";
    EXPECT_EQ(calls("cuEventCreate"), 0u);
  }
  finish(*stream);
}

TEST_P(CudaFences, StreamsOfOneIdentityShareAFence) {
  const StreamPointer own = make_stream();
  const StreamPointer wrapped = *device().wrap_stream(own->native());
  const StreamPointer other = make_stream();
  EXPECT_EQ(fence_of(*own), fence_of(*own));
  EXPECT_NE(fence_of(*own), fence_of(*other));
  EXPECT_EQ(fence_of(*own) == fence_of(*wrapped), wrapped->identity() != 0);
  const FencePointer fence = fence_of(*wrapped);
  EXPECT_TRUE(passes(*fence, mark(*fence, *wrapped)));
  EXPECT_DONE(wrapped->release());
  EXPECT_EQ(fence_of(*wrapped) == fence, wrapped->identity() != 0) << "found again, or made anew";
  EXPECT_DONE(wrapped->release());
  finish(*own);
  finish(*other);
}

TEST_P(CudaFences, DefaultStreamsHaveThemToo) {
  for (const CUstream native : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    auto stream = device().wrap_stream(native);
    ASSERT_TRUE(stream.ok());
    const FencePointer fence = fence_of(**stream);
    const uint64_t number = mark(*fence, **stream);
    EXPECT_TRUE(passes(*fence, number));
    std::thread([&, thread = native == CU_STREAM_PER_THREAD] {
      EXPECT_EQ(fence->poll(number), GPUMEM_SUCCESS);
      const auto marked = fence->mark(**stream);
      EXPECT_EQ(test::status_of(marked), thread ? GPUMEM_ERROR_INVALID_STATE : GPUMEM_SUCCESS);
    }).join();
    finish(**stream);
  }
}

TEST_P(CudaFences, CapturesAreNeitherMarkedNorSpoiled) {
  const auto begin =
      reinterpret_cast<PFN_cuStreamBeginCapture_v10010>(dlsym(fake_library(), "cuStreamBeginCapture_v2"));
  const auto end =
      reinterpret_cast<PFN_cuStreamEndCapture_v10000>(dlsym(fake_library(), "cuStreamEndCapture"));
  const auto destroy = reinterpret_cast<PFN_cuGraphDestroy_v10000>(dlsym(fake_library(), "cuGraphDestroy"));
  const auto nodes = reinterpret_cast<PFN_cuGraphGetNodes_v10000>(dlsym(fake_library(), "cuGraphGetNodes"));
  const StreamPointer captured = make_stream();
  const StreamPointer free = make_stream();
  const FencePointer of_captured = fence_of(*captured);
  const uint64_t before = mark(*of_captured, *captured);
  captured->expose();
  Scope scope(device());
  ASSERT_EQ(begin(static_cast<CUstream>(captured->native()), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_FAILS(GPUMEM_ERROR_INVALID_STATE, of_captured->mark(*captured));
  EXPECT_TRUE(passes(*of_captured, before));
  std::thread([&] {
    const FencePointer fence = fence_of(*free);  // the first of the stream: a slot or an event is made
    EXPECT_TRUE(passes(*fence, mark(*fence, *free)));
  }).join();
  CUgraph graph = nullptr;
  ASSERT_EQ(end(static_cast<CUstream>(captured->native()), &graph), CUDA_SUCCESS);
  size_t count = 1;
  ASSERT_EQ(nodes(graph, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 0u);
  ASSERT_EQ(destroy(graph), CUDA_SUCCESS);
  EXPECT_GT(mark(*of_captured, *captured), before);
  finish(*captured);
  finish(*free);
}

TEST_P(CudaFences, ALostDeviceFailsEveryMark) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  Gate gate;
  const uint64_t passed = mark(*fence, *stream);
  ASSERT_TRUE(passes(*fence, passed));
  EXPECT_DONE(gate.hold(*stream));
  const uint64_t pending = mark(*fence, *stream);
  FAKE(fake_cuda_set_sticky)(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  if (by_word()) {
    EXPECT_EQ(fence->poll(pending), GPUMEM_NOT_READY) << "no call has found it";
  }
  EXPECT_FAILS(GPUMEM_ERROR_DEVICE_LOST, fence->mark(*stream));
  gate.open();
  EXPECT_EQ(fence->poll(passed), GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_EQ(fence->poll(pending), GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_DONE(stream->release());
}

TEST_P(CudaFences, MarksOutliveTheStream) {
  StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  Gate gate;
  EXPECT_DONE(gate.hold(*stream));
  const uint64_t number = mark(*fence, *stream);
  EXPECT_DONE(stream->release());
  stream.reset();
  EXPECT_EQ(fence->poll(number), GPUMEM_NOT_READY);
  gate.open();
  EXPECT_TRUE(passes(*fence, number));
  EXPECT_DONE(device().await_released_streams());
}

// The write of the first stream is still to come when the second one gets its fence.
TEST_P(CudaFences, NothingIsUsedAgainBeforeItsLastMarkHasPassed) {
  StreamPointer first = make_stream();
  StreamPointer second = make_stream();
  Gate gate;
  EXPECT_DONE(gate.hold(*first));
  {
    const FencePointer fence = fence_of(*first);
    const uint64_t number = mark(*fence, *first);
    EXPECT_EQ(fence->poll(number), GPUMEM_NOT_READY);
  }
  EXPECT_DONE(first->release());
  const FencePointer fence = fence_of(*second);
  const uint64_t number = mark(*fence, *second);
  EXPECT_TRUE(passes(*fence, number));
  gate.open();
  EXPECT_DONE(device().await_released_streams());
  EXPECT_EQ(fence->poll(number), GPUMEM_SUCCESS) << "the other stream did not write here";
  finish(*second);
}

TEST_P(CudaFences, StreamsThatComeAndGoNeedLittle) {
  for (int round = 0; round < 300; ++round) {
    const StreamPointer stream = make_stream();
    const FencePointer fence = fence_of(*stream);
    ASSERT_TRUE(passes(*fence, mark(*fence, *stream)));
    EXPECT_DONE(stream->release());
  }
  EXPECT_DONE(device().await_released_streams());
  EXPECT_EQ(calls("cuMemHostRegister"), by_word() ? 1u : 0u);
  EXPECT_EQ(live(FAKE_CUDA_EVENT), by_word() ? 0u : 1u);
}

TEST_P(CudaFences, ManyMarksMayBePending) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  for (int round = 0; round < 3; ++round) {
    Gate gate;
    EXPECT_DONE(gate.hold(*stream));
    std::vector<uint64_t> numbers;
    for (int i = 0; i < 50; ++i)
      numbers.push_back(mark(*fence, *stream));
    for (const uint64_t number : numbers)
      EXPECT_EQ(fence->poll(number), GPUMEM_NOT_READY);
    gate.open();
    for (const uint64_t number : numbers)
      EXPECT_TRUE(passes(*fence, number));
  }
  EXPECT_LE(live(FAKE_CUDA_EVENT), 8u);
  finish(*stream);
}

TEST_P(CudaFences, AMarkThatFailsLeavesTheFenceUsable) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  const uint64_t before = mark(*fence, *stream);
  FAKE(fake_cuda_fail)(call(), 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, fence->mark(*stream));
  const uint64_t after = mark(*fence, *stream);
  EXPECT_GT(after, before);
  EXPECT_TRUE(passes(*fence, after));
  finish(*stream);
}

TEST_P(CudaFences, AFenceThatCannotBeMadeIsAStatus) {
  const StreamPointer stream = make_stream();
  if (by_word()) {
    FAKE(fake_cuda_fail)("cuMemHostRegister", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, stream->fence());
  } else {
    FAKE(fake_cuda_fail)("cuEventCreate", 1, 0, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_FAILS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, fence_of(*stream)->mark(*stream));
  }
  const FencePointer fence = fence_of(*stream);
  EXPECT_TRUE(passes(*fence, mark(*fence, *stream)));
  finish(*stream);
}

TEST_P(CudaFences, AForkedChildIsToldSo) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  const uint64_t number = mark(*fence, *stream);
  ASSERT_TRUE(passes(*fence, number));
  EXPECT_EQ(test::exit_code_of([&] {
              if (fence->poll(number) != GPUMEM_ERROR_FORKED) return 1;
              return test::status_of(fence->mark(*stream)) == GPUMEM_ERROR_FORKED ? 0 : 2;
            }),
            0);
  finish(*stream);
}

TEST_P(CudaFences, SixteenThreadsMarkAndPoll) {
  const std::array<StreamPointer, 3> streams{make_stream(), make_stream(), make_stream()};
  mark_and_poll_by_many_threads(streams, 15);
  for (const StreamPointer& stream : streams)
    finish(*stream);
}

TEST_P(CudaFences, SixteenThreadsGetOneFence) {
  const StreamPointer stream = make_stream();
  std::array<FencePointer, 16> fences;
  std::vector<std::thread> threads;
  for (FencePointer& fence : fences)
    threads.emplace_back([&] { fence = fence_of(*stream); });
  for (std::thread& thread : threads)
    thread.join();
  for (const FencePointer& fence : fences)
    EXPECT_EQ(fence, fences[0]);
  EXPECT_TRUE(passes(*fences[0], mark(*fences[15], *stream)));
  finish(*stream);
}

// Words of 32 bits come round; numbers do not.
TEST_P(CudaFences, NumbersGrowBeyondTheWord) {
  if (!by_word()) GTEST_SKIP() << "events have no word";
  auto slot = device().fences().take_slot();
  ASSERT_TRUE(slot.ok());
  slot->marked = uint64_t{UINT32_MAX} - 2;
  slot->word->number = slot->marked;
  const FenceWord* const word = slot->word;
  device().fences().give_back(*slot);
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  uint64_t expected = uint64_t{UINT32_MAX} - 2;
  for (int round = 0; round < 6; ++round) {
    Gate gate;
    EXPECT_DONE(gate.hold(*stream));
    const uint64_t number = mark(*fence, *stream);
    EXPECT_EQ(number, ++expected);
    EXPECT_EQ(fence->poll(number), GPUMEM_NOT_READY);
    EXPECT_EQ(fence->poll(number - 1), GPUMEM_SUCCESS);
    gate.open();
    EXPECT_TRUE(passes(*fence, number));
    EXPECT_EQ(static_cast<uint32_t>(word->number), static_cast<uint32_t>(number)) << "in this very slot";
  }
  finish(*stream);
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaFences, testing::Values(Way::kWide, Way::kNarrow, Way::kEvents),
                         [](const auto& param) {
                           return param.param == Way::kWide     ? "Wide"
                                  : param.param == Way::kNarrow ? "Narrow"
                                                                : "Events";
                         });

}  // namespace
}  // namespace gpumem::cuda
