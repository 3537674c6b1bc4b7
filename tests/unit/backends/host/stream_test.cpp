// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams and events of the host backend: order, what an operation does when its turn comes, and how they
// end.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "asleep.h"
#include "base/arithmetic.h"
#include "host_support.h"
#include "process_support.h"

namespace gpumem::test {
namespace {

using std::chrono::milliseconds;

const uint64_t kPage = platform::page_size();

// Reports by whether a value came; false if the time ran out.
bool done(const Result<bool>& result) {
  EXPECT_TRUE(result) << result.error().message;
  return result && *result;
}

class HostStreamTest : public Host {
 protected:
  void SetUp() override {
    open();
    stream_ = make_stream();
  }
  void TearDown() override {
    stream_.reset();
    Host::TearDown();
  }
  void reopen() {
    stream_.reset();
    open();
    stream_ = make_stream();
  }

  StreamPointer stream_;
};

TEST_F(HostStreamTest, OperationsRunInOrderOnAnotherThread) {
  struct Seen {
    std::vector<int> order;
    std::thread::id thread;
  } seen;
  std::vector<std::pair<Seen*, int>> calls;
  for (int number = 0; number < 50; ++number)
    calls.emplace_back(&seen, number);
  for (auto& call : calls) {
    EXPECT_OK(stream_->launch_host_function(
        [](void* data) {
          const auto& [target, number] = *static_cast<std::pair<Seen*, int>*>(data);
          target->order.push_back(number);
          target->thread = std::this_thread::get_id();
        },
        &call, false));
  }
  finish(*stream_);
  ASSERT_EQ(seen.order.size(), 50U);
  EXPECT_TRUE(std::is_sorted(seen.order.begin(), seen.order.end()));
  EXPECT_NE(seen.thread, std::this_thread::get_id());
}

TEST_F(HostStreamTest, QueryNeverBlocksAndSynchronizeHasALimit) {
  EXPECT_TRUE(done(stream_->query())) << "an empty stream is complete";
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  EXPECT_FALSE(done(stream_->query()));
  EXPECT_FALSE(done(stream_->synchronize(0)));
  EXPECT_FALSE(done(stream_->synchronize(2'000'000)));
  gate.open();
  EXPECT_TRUE(done(stream_->synchronize(UINT64_MAX - 1)));
  EXPECT_TRUE(done(stream_->query()));
}

TEST_F(HostStreamTest, SynchronizeWaitsForNothingThatCameLater) {
  Gate first;
  EXPECT_OK(first.hold(*stream_));
  std::atomic<pid_t> id{0};
  std::atomic<bool> returned{false};
  std::thread waiter([&] {
    id = gettid();
    EXPECT_TRUE(done(stream_->synchronize(kForever)));
    returned = true;
  });
  while (id == 0)
    std::this_thread::yield();
  test::wait_until_asleep(id);
  Gate second;
  EXPECT_OK(second.hold(*stream_));
  EXPECT_FALSE(returned);
  first.open();
  second.await();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!returned && std::chrono::steady_clock::now() < limit)
    std::this_thread::yield();
  EXPECT_TRUE(returned) << "it waits for what came later";
  second.open();
  waiter.join();
  finish(*stream_);
}

TEST_F(HostStreamTest, PriorityIsCutToTheRange) {
  for (const auto& [asked, granted] : {std::pair{-100, -1}, {-1, -1}, {0, 0}, {5, 0}}) {
    auto stream = dev().create_stream(asked);
    ASSERT_TRUE(stream);
    EXPECT_EQ((*stream)->priority(), granted);
    EXPECT_OK((*stream)->release());
  }
}

// ---- copies and fills ----

TEST_F(HostStreamTest, CopiesBetweenAllKinds) {
  const uint64_t size = 3 * kPage + 17;
  std::vector<unsigned char> source(size);
  std::vector<unsigned char> target(size);
  std::vector<unsigned char> lent(size);
  std::vector<unsigned char> lent_mapped(size);
  auto foreign_device = simulation().foreign_alloc(dev(1), true, size);
  auto foreign_pinned = simulation().foreign_alloc(dev(0), false, size);
  ASSERT_TRUE(foreign_device && foreign_pinned);
  const std::vector<MemoryPointer> memories = {
      make_device(size),
      make_device(size, 1),
      make_pinned(size),
      make_pinned(size, GPUMEM_MEMORY_WRITE_COMBINED),
      make_registered(lent.data(), size),
      make_registered(lent_mapped.data(), size, GPUMEM_MEMORY_MAPPED),
  };
  const std::vector<Span> spans = {
      device(memories[0]),
      device(memories[1]),
      pinned(memories[2]),
      pinned(memories[3]),
      registered(memories[4]),
      registered(memories[5]),
      foreign(*foreign_device, true),
      foreign(*foreign_pinned, false),
  };
  unsigned seed = 0;
  for (const Span& first : spans) {
    for (const Span& second : spans) {
      if (&first == &second) continue;
      source = pattern(size, ++seed);
      target.assign(size, 0);
      EXPECT_OK(stream_->copy(copy_of(first, pageable(source.data()), size)));
      EXPECT_OK(stream_->copy(copy_of(second, first, size)));
      EXPECT_OK(stream_->copy(copy_of(pageable(target.data()), second, size)));
      finish(*stream_);
      ASSERT_EQ(target, source) << "from " << &first - &spans[0] << " to " << &second - &spans[0];
    }
  }
  EXPECT_OK(simulation().foreign_free(dev(1), *foreign_device));
  EXPECT_OK(simulation().foreign_free(dev(0), *foreign_pinned));
  for (const MemoryPointer& memory : memories)
    EXPECT_OK(memory->release());
}

TEST_F(HostStreamTest, RowsLeaveTheGapsAlone) {
  for (const bool gapless : {false, true}) {
    const uint64_t pitch = gapless ? 10 : 16;
    const auto memory = make_device(kPage);
    const auto bytes = pattern(40);
    write(device(memory), std::vector<unsigned char>(100, 0xEE));
    auto request = copy_of(device(memory, 3), pageable(bytes.data()), 10);
    request.height = 4;
    request.destination_pitch = pitch;
    request.source_pitch = 10;
    EXPECT_OK(stream_->copy(request));
    auto fill = fill_of(device(memory, 80), 2, 0x77);
    fill.height = 3;
    fill.pitch = 4;
    EXPECT_OK(stream_->fill(fill));
    finish(*stream_);
    std::vector<unsigned char> expected(100, 0xEE);
    for (uint64_t row = 0; row < 4; ++row) {
      std::copy_n(bytes.begin() + static_cast<long>(10 * row), 10,
                  expected.begin() + static_cast<long>(3 + row * pitch));
    }
    for (const size_t at : {80U, 81U, 84U, 85U, 88U, 89U})
      expected[at] = 0x77;
    EXPECT_EQ(read(device(memory), 100), expected);
    EXPECT_OK(memory->release());
  }
}

TEST_F(HostStreamTest, FillsRepeatOneTwoOrFourBytes) {
  const auto memory = make_pinned(64);
  const auto* const bytes = static_cast<unsigned char*>(memory->facts().host_pointer);
  const auto fill = [&](uint32_t value_size) {
    EXPECT_OK(stream_->fill(fill_of(pinned(memory, 8), 16, 0x11223344, value_size)));
    finish(*stream_);
    return std::vector<unsigned char>(bytes + 7, bytes + 25);
  };
  EXPECT_EQ(fill(1), (std::vector<unsigned char>{0xA5, 0x44, 0x44, 0x44, 0x44, 0x44, 0x44, 0x44, 0x44, 0x44,
                                                 0x44, 0x44, 0x44, 0x44, 0x44, 0x44, 0x44, 0xA5}));
  EXPECT_EQ(fill(2), (std::vector<unsigned char>{0xA5, 0x44, 0x33, 0x44, 0x33, 0x44, 0x33, 0x44, 0x33, 0x44,
                                                 0x33, 0x44, 0x33, 0x44, 0x33, 0x44, 0x33, 0xA5}));
  EXPECT_EQ(fill(4), (std::vector<unsigned char>{0xA5, 0x44, 0x33, 0x22, 0x11, 0x44, 0x33, 0x22, 0x11, 0x44,
                                                 0x33, 0x22, 0x11, 0x44, 0x33, 0x22, 0x11, 0xA5}));
  EXPECT_OK(memory->release());
}

TEST_F(HostStreamTest, MemoryThatVanishesBeforeItsTurnIsReportedOnce) {
  const auto memory = make_device(4 * kPage);
  void* const buffer = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  EXPECT_OK(stream_->copy(copy_of(device(memory), pageable(buffer), 4 * kPage)));
  mprotect(static_cast<char*>(buffer) + kPage, kPage, PROT_NONE);
  const EventPointer event = make_event();
  EXPECT_OK(event->record(*stream_));
  gate.open();
  const auto observed = event->synchronize(kForever);
  ASSERT_FALSE(observed);
  EXPECT_EQ(observed.error().status, GPUMEM_ERROR_INVALID_STATE);
  finish(*stream_);  // reported already, and the stream goes on
  EXPECT_OK(memory->release());
  munmap(buffer, 4 * kPage);
}

TEST_F(HostStreamTest, EachObservationReportsTheFirstFailureThatItCovers) {
  auto* const pages = static_cast<char*>(
      mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const auto fill = [&](uint64_t page) {
    EXPECT_OK(stream_->fill(fill_of(pageable(pages + page * kPage), 8, 1)));
  };
  const auto names = [&](const Result<bool>& observed, uint64_t page) {
    char address[32];
    std::snprintf(address, sizeof address, "%p ", static_cast<void*>(pages + page * kPage));
    return status_of(observed) == GPUMEM_ERROR_INVALID_STATE &&
           std::strstr(observed.error().message, address) != nullptr;
  };
  const EventPointer event = make_event();
  Gate first;
  Gate last;
  EXPECT_OK(first.hold(*stream_));
  fill(0);
  fill(1);
  EXPECT_OK(event->record(*stream_));
  fill(2);
  EXPECT_OK(last.hold(*stream_));
  mprotect(pages, 3 * kPage, PROT_NONE);
  first.open();
  last.await();  // all three have failed, and nobody has looked
  EXPECT_TRUE(names(event->synchronize(kForever), 0));
  EXPECT_TRUE(done(event->synchronize(kForever))) << "the second failure is covered by the first";
  EXPECT_FALSE(done(stream_->query()));
  last.open();
  EXPECT_TRUE(names(stream_->synchronize(kForever), 2));
  finish(*stream_);
  munmap(pages, 3 * kPage);
}

TEST_F(HostStreamTest, WorkKeepsItsBytesWhenNotStrict) {
  options_.strict = GPUMEM_TOGGLE_OFF;
  reopen();
  const auto bytes = pattern(1000);
  std::vector<unsigned char> target(1000);
  const auto memory = make_device(1000);
  const uint64_t before = free_bytes();
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  EXPECT_OK(stream_->copy(copy_of(device(memory), pageable(bytes.data()), 1000)));
  EXPECT_OK(stream_->copy(copy_of(pageable(target.data()), device(memory), 1000)));
  EXPECT_OK(memory->release());
  EXPECT_EQ(free_bytes(), before) << "still in use";
  gate.open();
  finish(*stream_);
  EXPECT_EQ(target, bytes);
  EXPECT_GT(free_bytes(), before);
}

// ---- value write and wait ----

TEST_F(HostStreamTest, ValuesOfBothSizes) {
  const auto memory = make_pinned(64);
  auto* const bytes = static_cast<unsigned char*>(memory->facts().host_pointer);
  std::memset(bytes, 0, 64);
  EXPECT_OK(stream_->write_value(pinned(memory, 8), 0x1122334455667788, 4));
  EXPECT_OK(stream_->write_value(pinned(memory, 16), 0x1122334455667788, 8));
  finish(*stream_);
  uint64_t words[3];
  std::memcpy(words, bytes, sizeof words);
  EXPECT_EQ(words[1], 0x55667788U);
  EXPECT_EQ(words[2], 0x1122334455667788U);
  EXPECT_OK(memory->release());
}

struct WaitCase {
  gpumem_wait_condition condition;
  uint32_t size;
  uint64_t value;
  uint64_t holding;
  uint64_t passing;
};

class HostWaitTest : public HostStreamTest, public testing::WithParamInterface<WaitCase> {};

TEST_P(HostWaitTest, HoldsUntilTheConditionIsMet) {
  const WaitCase& wait = GetParam();
  const auto memory = make_device(64);
  const StreamPointer other = make_stream();
  EXPECT_OK(other->write_value(device(memory, 8), wait.holding, wait.size));
  finish(*other);
  EXPECT_OK(stream_->wait_value(device(memory, 8), wait.value, wait.size, wait.condition));
  EXPECT_FALSE(done(stream_->synchronize(3'000'000)));
  EXPECT_OK(other->write_value(device(memory, 8), wait.passing, wait.size));
  finish(*stream_);
  finish(*other);
  EXPECT_OK(memory->release());
}

constexpr uint64_t kAll = UINT64_MAX;
INSTANTIATE_TEST_SUITE_P(Conditions, HostWaitTest,
                         testing::Values(WaitCase{GPUMEM_WAIT_GEQ, 4, 5, 4, 5},
                                         WaitCase{GPUMEM_WAIT_GEQ, 8, 5, 4, 6},
                                         // counters wrap
                                         WaitCase{GPUMEM_WAIT_GEQ, 4, 2, 0xfffffff0, 3},
                                         WaitCase{GPUMEM_WAIT_GEQ, 8, kAll, kAll - 1, 2},
                                         WaitCase{GPUMEM_WAIT_EQ, 4, 0x1'0000'0007, 8, 7},
                                         WaitCase{GPUMEM_WAIT_EQ, 8, 7, 8, 7},
                                         WaitCase{GPUMEM_WAIT_AND, 4, 6, 9, 2},
                                         WaitCase{GPUMEM_WAIT_AND, 8, uint64_t{1} << 40, 1, kAll},
                                         WaitCase{GPUMEM_WAIT_NOR, 4, 0xffff0000, 0xffff, 0xfffe},
                                         WaitCase{GPUMEM_WAIT_NOR, 8, 1, kAll, kAll - 2}));

TEST_F(HostStreamTest, TheCpuOpensAValueWait) {
  const auto memory = make_pinned(8);
  auto* const word = static_cast<uint32_t*>(memory->facts().host_pointer);
  std::atomic_ref<uint32_t>(*word).store(0);
  EXPECT_OK(stream_->wait_value(pinned(memory), 1, 4, GPUMEM_WAIT_EQ));
  EXPECT_FALSE(done(stream_->query()));
  std::atomic_ref<uint32_t>(*word).store(1);
  finish(*stream_);
  EXPECT_OK(memory->release());
}

// ---- events ----

TEST_F(HostStreamTest, AnEventThatWasNeverRecordedIsComplete) {
  const EventPointer event = make_event();
  EXPECT_TRUE(done(event->query()));
  EXPECT_TRUE(done(event->synchronize(kForever)));
  EXPECT_OK(stream_->wait_event(*event));
  EXPECT_TRUE(done(stream_->query()));
  EXPECT_EQ(event->native(), nullptr);
}

TEST_F(HostStreamTest, AnEventCapturesWhatWasEnqueued) {
  const EventPointer event = make_event();
  Gate first;
  Gate second;
  EXPECT_OK(first.hold(*stream_));
  EXPECT_OK(event->record(*stream_));
  EXPECT_OK(second.hold(*stream_));
  EXPECT_FALSE(done(event->query()));
  first.open();
  EXPECT_TRUE(done(event->synchronize(kForever)));
  EXPECT_FALSE(done(stream_->query()));
  EXPECT_OK(event->record(*stream_));  // replaces the capture
  EXPECT_FALSE(done(event->query()));
  EXPECT_FALSE(done(event->synchronize(1'000'000)));
  second.open();
  EXPECT_TRUE(done(event->synchronize(kForever)));
}

TEST_F(HostStreamTest, AWaitUsesTheRecordOfItsTime) {
  const EventPointer event = make_event();
  const StreamPointer other = make_stream(1);  // a wait may cross devices
  Gate first;
  Gate second;
  EXPECT_OK(first.hold(*stream_));
  EXPECT_OK(event->record(*stream_));
  EXPECT_OK(other->wait_event(*event));
  EXPECT_OK(second.hold(*stream_));
  EXPECT_OK(event->record(*stream_));
  EXPECT_FALSE(done(other->synchronize(2'000'000)));
  first.open();
  finish(*other);
  EXPECT_FALSE(done(event->query()));
  second.open();
  finish(*stream_);
}

TEST_F(HostStreamTest, AWaitGoesOnWithoutItsEvent) {
  const StreamPointer other = make_stream();
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  {
    const EventPointer event = make_event();
    EXPECT_OK(event->record(*stream_));
    EXPECT_OK(other->wait_event(*event));
    EXPECT_OK(event->release());
  }
  EXPECT_FALSE(done(other->query()));
  gate.open();
  finish(*other);
}

TEST_F(HostStreamTest, ElapsedTime) {
  const EventPointer start = make_event();
  const EventPointer end = make_event();
  EXPECT_OK(start->record(*stream_));
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  EXPECT_OK(end->record(*stream_));
  auto early = end->elapsed_since(*start);
  ASSERT_TRUE(early);
  EXPECT_FALSE(early->has_value());
  gate.await();
  std::this_thread::sleep_for(milliseconds(5));
  gate.open();
  finish(*stream_);
  auto elapsed = end->elapsed_since(*start);
  ASSERT_TRUE(elapsed);
  ASSERT_TRUE(elapsed->has_value());
  EXPECT_GE(**elapsed, 5'000'000);
  auto backwards = start->elapsed_since(*end);
  EXPECT_EQ(**backwards, -**elapsed);
}

TEST_F(HostStreamTest, NoNativeEvents) {
  int event = 0;
  EXPECT_EQ(status_of(dev().wrap_event(&event, 0)), GPUMEM_ERROR_UNSUPPORTED);
}

// ---- the end of a stream ----

TEST_F(HostStreamTest, PendingWorkCompletesAfterTheRelease) {
  const auto memory = make_pinned(64);
  Gate gate;
  EXPECT_OK(gate.hold(*stream_));
  EXPECT_OK(stream_->fill(fill_of(pinned(memory), 64, 0x42)));
  EXPECT_OK(stream_->release());
  stream_.reset();
  EXPECT_EQ(status_of(memory->release()), GPUMEM_ERROR_BUSY);
  gate.open();
  while (status_of(memory->release()) == GPUMEM_ERROR_BUSY)
    std::this_thread::yield();
}

TEST_F(HostStreamTest, ThreadsEndWithTheirStreams) {
  const uint64_t before = threads();
  for (int round = 0; round < 30; ++round) {
    const StreamPointer stream = make_stream();
    EXPECT_OK(stream->release());
  }
  while (threads() > before)
    std::this_thread::yield();
  stream_.reset();
  close();
  // Its thread is joined; the kernel may list it for a moment more.
  while (threads() >= before)
    std::this_thread::yield();
}

TEST_F(HostStreamTest, ClosingRunsWhatIsPendingButWaitsForNoValue) {
  int runs = 0;
  const auto memory = make_pinned(64);
  const auto count = [](void* data) { ++*static_cast<int*>(data); };
  const StreamPointer other = make_stream();
  {
    const EventPointer event = make_event();
    EXPECT_OK(stream_->launch_host_function(count, &runs, false));
    EXPECT_OK(event->record(*stream_));
    EXPECT_OK(other->wait_event(*event));
    EXPECT_OK(other->launch_host_function(count, &runs, false));
    EXPECT_OK(other->wait_value(pinned(memory), 0, 4, GPUMEM_WAIT_EQ));  // never
    EXPECT_OK(other->launch_host_function(count, &runs, false));
  }
  EXPECT_OK(stream_->release());
  EXPECT_OK(other->release());
  stream_.reset();
  const_cast<StreamPointer&>(other).reset();
  const_cast<MemoryPointer&>(memory).reset();
  close();
  EXPECT_EQ(runs, 2);
}

// ---- native streams ----

TEST_F(HostStreamTest, ANativeStreamIsAdopted) {
  auto native = simulation().native_stream_create(dev());
  ASSERT_TRUE(native);
  EXPECT_EQ(status_of(dev(1).wrap_stream(*native)), GPUMEM_ERROR_INVALID_ARGUMENT);
  auto first = dev().wrap_stream(*native);
  auto second = dev().wrap_stream(*native);
  ASSERT_TRUE(first && second);
  EXPECT_EQ((*first)->native(), *native);
  Gate gate;
  EXPECT_OK(gate.hold(**first));
  EXPECT_FALSE(done((*second)->query())) << "both are the same stream";
  EXPECT_OK((*first)->release());
  EXPECT_EQ(status_of(simulation().native_stream_destroy(dev(), *native)), GPUMEM_ERROR_BUSY);
  EXPECT_OK((*second)->release());
  EXPECT_EQ(status_of(simulation().native_stream_destroy(dev(1), *native)), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_OK(simulation().native_stream_destroy(dev(), *native));
  EXPECT_EQ(status_of(simulation().native_stream_destroy(dev(), *native)), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(status_of(dev().wrap_stream(*native)), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_OK(simulation().native_stream_destroy(dev(), nullptr));
}

// Lets two threads begin something at once.
template <class First, class Second>
void at_once(First first, Second second) {
  std::atomic<int> ready{0};
  const auto both_are_there = [&] {
    ++ready;
    while (ready < 2) {
      // To give the processor away would let one of them go first.
    }
  };
  std::thread thread([&] {
    both_are_there();
    first();
  });
  both_are_there();
  second();
  thread.join();
}

TEST_F(HostStreamTest, OneOfTwoThreadsDestroysANativeStream) {
  for (int round = 0; round < 300; ++round) {
    auto native = simulation().native_stream_create(dev());
    ASSERT_TRUE(native);
    void* const stream = *native;
    Status one = GPUMEM_SUCCESS;
    Status other = GPUMEM_SUCCESS;
    at_once([&] { one = status_of(simulation().native_stream_destroy(dev(), stream)); },
            [&] { other = status_of(simulation().native_stream_destroy(dev(), stream)); });
    EXPECT_EQ(std::max(one, other), GPUMEM_SUCCESS);
    ASSERT_EQ(std::min(one, other), GPUMEM_ERROR_NOT_FOUND);
  }
}

TEST_F(HostStreamTest, ANativeStreamIsAdoptedOrDestroyed) {
  for (int round = 0; round < 300; ++round) {
    auto native = simulation().native_stream_create(dev());
    ASSERT_TRUE(native);
    void* const stream = *native;
    Status destroyed = GPUMEM_SUCCESS;
    StreamPointer adopted;
    at_once([&] { destroyed = status_of(simulation().native_stream_destroy(dev(), stream)); },
            [&] {
              if (auto wrapped = dev().wrap_stream(stream)) adopted = *wrapped;
            });
    if (adopted == nullptr) {
      ASSERT_EQ(destroyed, GPUMEM_SUCCESS);
      continue;
    }
    ASSERT_EQ(destroyed, GPUMEM_ERROR_BUSY);
    EXPECT_OK(adopted->release());
    EXPECT_OK(simulation().native_stream_destroy(dev(), stream));
  }
}

TEST_F(HostStreamTest, StreamsMadeHereCanBeAdoptedButNotDestroyedAsNative) {
  EXPECT_NE(stream_->native(), nullptr);
  auto adopted = dev().wrap_stream(stream_->native());
  ASSERT_TRUE(adopted);
  EXPECT_EQ(status_of(simulation().native_stream_destroy(dev(), stream_->native())), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_OK(stream_->release());
  EXPECT_EQ(status_of((*adopted)->fill(fill_of(pageable(this), 0, 0))), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_OK((*adopted)->release());
}

TEST_F(HostStreamTest, NullIsTheDefaultStreamOfADevice) {
  auto first = dev().wrap_stream(nullptr);
  auto second = dev().wrap_stream(nullptr);
  auto other = dev(1).wrap_stream(nullptr);
  ASSERT_TRUE(first && second && other);
  EXPECT_EQ((*first)->native(), nullptr);
  Gate gate;
  EXPECT_OK(gate.hold(**first));
  EXPECT_FALSE(done((*second)->query()));
  EXPECT_TRUE(done((*other)->query()));
  EXPECT_TRUE(done(stream_->query())) << "streams made here do not wait for it";
  gate.open();
  finish(**second);
}

TEST_F(HostStreamTest, TheCapturingMark) {
  EXPECT_FALSE(done(stream_->is_capturing()));
  simulation().set_capturing(*stream_, true);
  EXPECT_TRUE(done(stream_->is_capturing()));
  simulation().set_capturing(*stream_, false);
  EXPECT_FALSE(done(stream_->is_capturing()));
}

// ---- masked entry points ----

TEST_F(HostStreamTest, MaskedEntryPointsFailAtTheirCall) {
  options_.masked = "launch_host_function,write_value,wait_value,register,copy_2d,fill_2d,peer_access";
  reopen();
  const auto memory = make_device(kPage);
  std::vector<unsigned char> bytes(kPage);
  auto copy = copy_of(device(memory), pageable(bytes.data()), 10);
  auto fill = fill_of(device(memory), 10, 0);
  EXPECT_OK(stream_->copy(copy));
  EXPECT_OK(stream_->fill(fill));
  copy.height = fill.height = 2;
  copy.source_pitch = copy.destination_pitch = fill.pitch = 16;
  EXPECT_EQ(status_of(stream_->copy(copy)), GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(status_of(stream_->fill(fill)), GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(status_of(stream_->launch_host_function([](void*) {}, nullptr, false)),
            GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(status_of(stream_->write_value(device(memory), 0, 4)), GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(status_of(stream_->wait_value(device(memory), 0, 4, GPUMEM_WAIT_EQ)),
            GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(status_of(create_memory(dev(), register_request(bytes.data(), kPage))),
            GPUMEM_ERROR_SYMBOL_MISSING);
  EXPECT_EQ(status_of(dev().enable_peer_access(dev(1))), GPUMEM_ERROR_SYMBOL_MISSING);
  finish(*stream_);
  EXPECT_OK(memory->release());
}

TEST_F(HostStreamTest, TheCallersCurrentDeviceStays) {
  const StreamPointer other = make_stream(1);
  const EventPointer event = make_event(1);
  const auto memory = make_pinned(64);
  const int32_t before = host::set_current_device(9);
  EXPECT_OK(other->fill(fill_of(pinned(memory), 8, 1)));
  EXPECT_OK(other->write_value(pinned(memory), 1, 4));
  EXPECT_OK(other->wait_value(pinned(memory), 1, 4, GPUMEM_WAIT_EQ));
  EXPECT_OK(event->record(*other));
  EXPECT_OK(stream_->wait_event(*event));
  EXPECT_TRUE(done(event->synchronize(kForever)));
  EXPECT_TRUE(done(other->synchronize(kForever)));
  EXPECT_TRUE(done(other->query()));
  EXPECT_OK(other->release());
  EXPECT_EQ(host::set_current_device(before), 9);
  finish(*stream_);
  EXPECT_OK(memory->release());
}

}  // namespace
}  // namespace gpumem::test
