// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Fences of the host backend: marks in streams, and what polling says of them.
#include <sys/mman.h>

#include <array>

#include "contract/fence.h"
#include "fence_support.h"
#include "host_support.h"
#include "process_support.h"

namespace gpumem::test {
namespace {

class HostFences : public Host {
 protected:
  void SetUp() override { open(); }
};

TEST_F(HostFences, AMarkPassesWithTheWorkBeforeIt) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  Gate gate;
  const uint64_t first = mark(*fence, *stream);
  ASSERT_TRUE(passes(*fence, first));
  EXPECT_OK(gate.hold(*stream));
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
}

TEST_F(HostFences, WhatWasCopiedBeforeAMarkIsThere) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  const auto memory = make_device(100'000);
  for (unsigned round = 0; round < 20; ++round) {
    const auto sent = pattern(100'000, round);
    std::vector<unsigned char> back(sent.size());
    EXPECT_OK(stream->copy(copy_of(device(memory), pageable(sent.data()), sent.size())));
    EXPECT_OK(stream->copy(copy_of(pageable(back.data()), device(memory), back.size())));
    ASSERT_TRUE(passes(*fence, mark(*fence, *stream)));
    EXPECT_EQ(back, sent);
  }
  finish(*stream);
  EXPECT_OK(memory->release());
}

TEST_F(HostFences, AFailureIsStillToBeReported) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  const uint64_t size = platform::page_size();
  void* const page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(stream->fill(fill_of(pageable(page), 8, 1)));
  const uint64_t number = mark(*fence, *stream);
  mprotect(page, size, PROT_NONE);
  gate.open();
  EXPECT_TRUE(passes(*fence, number));
  EXPECT_EQ(status_of(stream->synchronize(kForever)), GPUMEM_ERROR_INVALID_STATE);
  munmap(page, size);
}

TEST_F(HostFences, AStreamHasOneFence) {
  auto native = simulation().native_stream_create(dev());
  ASSERT_TRUE(native);
  const StreamPointer first = *dev().wrap_stream(*native);
  const StreamPointer second = *dev().wrap_stream(*native);
  const StreamPointer other = make_stream();
  EXPECT_EQ(fence_of(*first), fence_of(*second));
  EXPECT_NE(fence_of(*first), fence_of(*other));
  const uint64_t before = mark(*fence_of(*first), *first);
  EXPECT_GT(mark(*fence_of(*second), *second), before);
  EXPECT_OK(first->release());
  EXPECT_OK(second->release());
  EXPECT_OK(simulation().native_stream_destroy(dev(), *native));
}

TEST_F(HostFences, TheDefaultStreamHasOneToo) {
  const StreamPointer stream = *dev().wrap_stream(nullptr);
  const FencePointer fence = fence_of(*stream);
  EXPECT_TRUE(passes(*fence, mark(*fence, *stream)));
  EXPECT_OK(stream->release());
}

TEST_F(HostFences, ACapturedStreamCannotBeMarked) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  const uint64_t before = mark(*fence, *stream);
  simulation().set_capturing(*stream, true);
  const auto refused = fence->mark(*stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, GPUMEM_ERROR_INVALID_STATE);
  EXPECT_NE(std::string(refused.error().message).find("captured"), std::string::npos);
  EXPECT_TRUE(passes(*fence, before)) << "polling is no use of the stream";
  // Its last mark is none of the capture.
  auto last = fence->mark(*stream, true);
  ASSERT_TRUE(last.ok());
  EXPECT_TRUE(passes(*fence, *last));
  simulation().set_capturing(*stream, false);
  EXPECT_GT(mark(*fence, *stream), before);
}

TEST_F(HostFences, ALostDeviceFailsEveryMark) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  Gate gate;
  const uint64_t passed = mark(*fence, *stream);
  ASSERT_TRUE(passes(*fence, passed));
  EXPECT_OK(gate.hold(*stream));
  const uint64_t pending = mark(*fence, *stream);
  gate.await();
  simulation().lose(dev());
  gate.open();
  EXPECT_EQ(fence->poll(passed), GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_EQ(fence->poll(pending), GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_EQ(status_of(fence->mark(*stream)), GPUMEM_ERROR_DEVICE_LOST);
}

TEST_F(HostFences, MarksOutliveTheStream) {
  StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  const uint64_t number = mark(*fence, *stream);
  EXPECT_OK(stream->release());
  stream.reset();
  EXPECT_EQ(fence->poll(number), GPUMEM_NOT_READY);
  gate.open();
  EXPECT_TRUE(passes(*fence, number));
}

TEST_F(HostFences, AMarkThatCannotBeEnqueuedHasNoNumber) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  const uint64_t before = mark(*fence, *stream);
  simulation().fail_step(1, false);
  EXPECT_EQ(status_of(fence->mark(*stream)), GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  simulation().fail_step(0, false);
  EXPECT_EQ(mark(*fence, *stream), before + 1);
  EXPECT_TRUE(passes(*fence, before + 1));
}

TEST_F(HostFences, AForkedChildIsToldSo) {
  const StreamPointer stream = make_stream();
  const FencePointer fence = fence_of(*stream);
  const uint64_t number = mark(*fence, *stream);
  ASSERT_TRUE(passes(*fence, number));
  EXPECT_EQ(exit_code_of([&] {
              if (fence->poll(number) != GPUMEM_ERROR_FORKED) return 1;
              return status_of(fence->mark(*stream)) == GPUMEM_ERROR_FORKED ? 0 : 2;
            }),
            0);
}

TEST_F(HostFences, SixteenThreadsMarkAndPoll) {
  const std::array<StreamPointer, 2> streams{make_stream(), make_stream()};
  mark_and_poll_by_many_threads(streams);
  for (const StreamPointer& stream : streams)
    finish(*stream);
}

}  // namespace
}  // namespace gpumem::test
