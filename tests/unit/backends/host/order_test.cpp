// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Strict tracking of work (COM-13): memory is busy until all work on it was observed complete.
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "host_support.h"

namespace gpumem::test {
namespace {

class HostOrder : public Host {
 protected:
  void SetUp() override {
    open();
    memory_ = make_pinned(64);
    stream_ = make_stream();
    other_ = make_stream(1);
  }
  void TearDown() override {
    stream_.reset();
    other_.reset();
    memory_.reset();
    Host::TearDown();
  }

  // Each stream its own half, so that they do not race.
  void use(backend::Stream& stream) {
    EXPECT_OK(stream.fill(fill_of(pinned(memory_, &stream == stream_.get() ? 0 : 32), 32, 1)));
  }
  Status release() { return status_of(memory_->release()); }
  // Complete, as far as one can tell without an observation.
  void settle() {
    Gate gate;
    gate.open();
    EXPECT_OK(gate.hold(*stream_));
    gate.await();
    EXPECT_OK(gate.hold(*other_));
    gate.await();
  }
  // After all that was enqueued before it.
  EventPointer record(backend::Stream& stream, size_t ordinal) {
    EventPointer event = make_event(ordinal);
    EXPECT_OK(event->record(stream));
    return event;
  }

  MemoryPointer memory_;
  StreamPointer stream_;
  StreamPointer other_;
};

TEST_F(HostOrder, UnusedMemoryIsFree) { EXPECT_EQ(release(), GPUMEM_SUCCESS); }

TEST_F(HostOrder, CompleteIsNotObserved) {
  use(*stream_);
  settle();
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AQueryObserves) {
  use(*stream_);
  while (!*stream_->query())
    std::this_thread::yield();
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AFailedSynchronizeObservesNothing) {
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  use(*stream_);
  EXPECT_FALSE(*stream_->synchronize(1000));
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  gate.open();
  settle();
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AllStreamsMustBeObserved) {
  use(*stream_);
  use(*other_);
  finish(*stream_);
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  finish(*other_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AnEventAfterTheUseObserves) {
  use(*stream_);
  const auto after = record(*stream_, 0);
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));  // the stream itself cannot be observed
  EXPECT_TRUE(*after->synchronize(kForever));
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AnEventBeforeTheUseDoesNot) {
  const auto before = record(*stream_, 0);
  use(*stream_);
  EXPECT_TRUE(*before->synchronize(kForever));
  settle();
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AStreamThatWaitedObservesForTheOther) {
  use(*stream_);
  const auto after = record(*stream_, 0);
  EXPECT_OK(other_->wait_event(*after));
  finish(*other_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AChainOfThreeStreams) {
  const StreamPointer third = make_stream();
  use(*stream_);
  EXPECT_OK(other_->wait_event(*record(*stream_, 0)));
  EXPECT_OK(third->wait_event(*record(*other_, 1)));
  const auto last = record(*third, 0);
  EXPECT_TRUE(*last->synchronize(kForever));
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AnEventKeepsTheOrderOfItsTime) {
  const auto early = record(*other_, 1);  // before the wait
  use(*stream_);
  EXPECT_OK(other_->wait_event(*record(*stream_, 0)));
  settle();
  EXPECT_TRUE(*early->synchronize(kForever));
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  finish(*other_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AWaitThatFailedOrdersNothing) {
  use(*stream_);
  // A record that is complete need not be waited for.
  std::atomic<bool> tried{false};
  const auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load())
      std::this_thread::yield();
  };
  EXPECT_OK(stream_->launch_host_function(hold, &tried, true));
  const auto after = record(*stream_, 0);
  simulation().fail_step(1, false);
  EXPECT_FALSE(other_->wait_event(*after));
  simulation().fail_step(0, false);
  tried = true;
  settle();
  finish(*other_);
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, AnOperationThatFailedLeavesNoMark) {
  simulation().fail_step(1, false);
  EXPECT_FALSE(stream_->fill(fill_of(pinned(memory_), 64, 1)));
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, BothSidesOfACopyAreUsed) {
  const auto source = make_device(64);
  EXPECT_OK(stream_->copy(copy_of(pinned(memory_), device(source), 64)));
  settle();
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  EXPECT_EQ(status_of(source->release()), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
  EXPECT_OK(source->release());
}

TEST_F(HostOrder, RegisteredMemoryIsBusyToo) {
  std::vector<unsigned char> bytes(100);
  const auto memory = make_registered(bytes.data(), 100);
  EXPECT_OK(stream_->fill(fill_of(registered(memory), 100, 7)));
  settle();
  EXPECT_EQ(status_of(memory->release()), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_OK(memory->release());
}

TEST_F(HostOrder, AKernelUsesWhatItViews) {
  const auto viewed = make_device(64);
  launch(*stream_, [&](backend::Kernel& kernel) {
    EXPECT_TRUE(kernel.view(viewed->facts().device_pointer, 64, GPUMEM_ACCESS_READ));
  });
  settle();
  EXPECT_EQ(status_of(viewed->release()), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_OK(viewed->release());
}

TEST_F(HostOrder, ForeignMemoryIsBusyToo) {
  auto memory = simulation().foreign_alloc(dev(), true, 64);
  ASSERT_TRUE(memory);
  EXPECT_OK(stream_->fill(fill_of(foreign(*memory, true), 64, 7)));
  settle();
  EXPECT_EQ(status_of(simulation().foreign_free(dev(), *memory)), GPUMEM_ERROR_BUSY);
  finish(*stream_);
  EXPECT_OK(simulation().foreign_free(dev(), *memory));
}

TEST_F(HostOrder, WithoutItsStreamWorkIsObservedWhenItIsOver) {
  use(*stream_);
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  use(*stream_);
  EXPECT_OK(stream_->release());
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  gate.open();
  while (release() == GPUMEM_ERROR_BUSY)
    std::this_thread::yield();
}

TEST_F(HostOrder, WhatWasOverWithoutItsStreamStaysObservedWhenThatIsAdoptedAgain) {
  auto native = simulation().native_stream_create(dev());
  ASSERT_TRUE(native);
  for (void* const stream : {*native, static_cast<void*>(nullptr)}) {
    for (const bool waits_again : {false, true}) {
      const auto memory = make_pinned(64);
      auto adopted = dev().wrap_stream(stream);
      ASSERT_TRUE(adopted);
      EXPECT_OK((*adopted)->fill(fill_of(pinned(memory), 64, 1)));
      EXPECT_OK(stream_->wait_event(*record(**adopted, 0)));
      EXPECT_OK((*adopted)->release());
      settle();  // with stream_ the other is complete
      if (waits_again) EXPECT_OK(stream_->wait_event(*record(*other_, 1)));
      auto again = dev().wrap_stream(stream);
      ASSERT_TRUE(again);
      if (waits_again) finish(*stream_);
      EXPECT_EQ(status_of(memory->release()), GPUMEM_SUCCESS);
      EXPECT_OK((*again)->release());
    }
  }
  EXPECT_OK(simulation().native_stream_destroy(dev(), *native));
}

TEST_F(HostOrder, WhatEndsAfterItsStreamIsAdoptedAgainIsNotObserved) {
  auto native = simulation().native_stream_create(dev());
  ASSERT_TRUE(native);
  auto adopted = dev().wrap_stream(*native);
  ASSERT_TRUE(adopted);
  Gate gate;
  EXPECT_OK(gate.hold(**adopted));
  EXPECT_OK((*adopted)->fill(fill_of(pinned(memory_), 32, 1)));
  const auto after = record(**adopted, 0);
  EXPECT_OK((*adopted)->release());
  auto again = dev().wrap_stream(*native);
  ASSERT_TRUE(again);
  gate.open();
  EXPECT_OK(stream_->wait_event(*after));
  settle();
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  finish(**again);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
  EXPECT_OK((*again)->release());
  EXPECT_OK(simulation().native_stream_destroy(dev(), *native));
}

TEST_F(HostOrder, ALostDeviceHoldsNothing) {
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  use(*stream_);
  use(*other_);
  finish(*other_);
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  simulation().lose(dev());
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
}

TEST_F(HostOrder, ALostDeviceOfTheMemoryHoldsNothing) {
  Gate gate;
  EXPECT_OK(gate.hold(*other_));
  use(*other_);
  EXPECT_EQ(release(), GPUMEM_ERROR_BUSY);
  simulation().lose(dev(0));
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
  gate.open();
  finish(*other_);
}

TEST_F(HostOrder, NothingIsTrackedWhenNotStrict) {
  TearDown();
  options_.strict = GPUMEM_TOGGLE_OFF;
  SetUp();
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  use(*stream_);
  EXPECT_EQ(release(), GPUMEM_SUCCESS);
  gate.open();
  finish(*stream_);
}

}  // namespace
}  // namespace gpumem::test
