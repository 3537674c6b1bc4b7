// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What gpumem/host.h asks of the backend: kernels, lost devices, foreign memory, peers, and steps that fail.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/arithmetic.h"
#include "host_support.h"
#include "process_support.h"

namespace gpumem::test {
namespace {

const uint64_t kPage = platform::page_size();

class HostKernel : public Host {
 protected:
  void SetUp() override { open(); }

  // What a kernel on the device gets for one view; the device is made anew if it was lost.
  Status view(const void* address, uint64_t size, gpumem_access access, size_t ordinal = 0) {
    const StreamPointer stream = make_stream(ordinal);
    Status status = GPUMEM_SUCCESS;
    const Status finished = run_kernel(
        *stream, [&](backend::Kernel& kernel) { status = status_of(kernel.view(address, size, access)); });
    EXPECT_EQ(finished, status);
    EXPECT_EQ(dev(ordinal).lost(), status == GPUMEM_ERROR_DEVICE_LOST);
    return status;
  }
  static constexpr Status kGood = GPUMEM_SUCCESS;
  static constexpr Status kLost = GPUMEM_ERROR_DEVICE_LOST;
};

char* at(void* base, uint64_t offset) { return static_cast<char*>(base) + offset; }

TEST_F(HostKernel, WorksOnDeviceMemory) {
  const auto memory = make_device(100);
  write(device(memory), pattern(100));
  const StreamPointer stream = make_stream();
  EXPECT_EQ(host::current_kernel(), nullptr);
  EXPECT_EQ(run_kernel(*stream,
                       [&](backend::Kernel& kernel) {
                         auto bytes =
                             kernel.view(at(memory->facts().device_pointer, 10), 90, GPUMEM_ACCESS_READWRITE);
                         ASSERT_TRUE(bytes);
                         *static_cast<unsigned char*>(*bytes) = 0x99;
                       }),
            GPUMEM_SUCCESS);
  auto expected = pattern(100);
  expected[10] = 0x99;
  EXPECT_EQ(read(device(memory), 100), expected);
  EXPECT_OK(memory->release());
}

TEST_F(HostKernel, LeavesTheEndOfTheMemory) {
  const auto memory = make_device(100);
  EXPECT_EQ(view(at(memory->facts().device_pointer, 99), 1, GPUMEM_ACCESS_READ), kGood);
  EXPECT_EQ(view(at(memory->facts().device_pointer, 99), 2, GPUMEM_ACCESS_READ), kLost);
}

TEST_F(HostKernel, SizesThatWrapAreRefused) {
  const auto memory = make_device(100);
  EXPECT_EQ(view(at(memory->facts().device_pointer, 1), UINT64_MAX, GPUMEM_ACCESS_READ), kLost);
}

TEST_F(HostKernel, FreedMemoryIsRefused) {
  const auto memory = make_device(100);
  void* const address = memory->facts().device_pointer;
  EXPECT_OK(memory->release());
  EXPECT_EQ(view(address, 1, GPUMEM_ACCESS_READ), kLost);
}

TEST_F(HostKernel, ViewsStayGoodWhileItRuns) {
  options_.strict = GPUMEM_TOGGLE_OFF;
  open();
  const auto memory = make_device(kPage);
  const StreamPointer stream = make_stream();
  EXPECT_EQ(run_kernel(*stream,
                       [&](backend::Kernel& kernel) {
                         auto bytes =
                             kernel.view(memory->facts().device_pointer, kPage, GPUMEM_ACCESS_READWRITE);
                         ASSERT_TRUE(bytes);
                         EXPECT_OK(memory->release());
                         std::memset(*bytes, 1, kPage);
                       }),
            GPUMEM_SUCCESS);
}

TEST_F(HostKernel, ReachesPeersWhenItIsAllowed) {
  options_.peers = "0>1";
  open();
  const auto memory = make_device(100, 1);
  void* const address = memory->facts().device_pointer;
  EXPECT_TRUE(*dev(0).enable_peer_access(dev(1)));
  EXPECT_EQ(view(address, 100, GPUMEM_ACCESS_READWRITE), kGood);
  const auto later = make_device(100, 1);
  EXPECT_EQ(view(later->facts().device_pointer, 100, GPUMEM_ACCESS_READWRITE), kGood) << "future memory too";
  EXPECT_OK(dev(0).disable_peer_access(dev(1)));
  EXPECT_EQ(view(address, 100, GPUMEM_ACCESS_READ), kLost);
  EXPECT_FALSE(dev(1).lost());
}

TEST_F(HostKernel, PeerAccessIsOneWay) {
  EXPECT_TRUE(*dev(0).enable_peer_access(dev(1)));
  const auto memory = make_device(100, 0);
  EXPECT_EQ(view(memory->facts().device_pointer, 1, GPUMEM_ACCESS_READ, 1), kLost);
}

TEST_F(HostKernel, ReachesPinnedMemoryFromEveryDevice) {
  const auto memory = make_pinned(100);
  EXPECT_EQ(view(memory->facts().device_pointer, 100, GPUMEM_ACCESS_READWRITE, 0), kGood);
  EXPECT_EQ(view(memory->facts().host_pointer, 100, GPUMEM_ACCESS_READWRITE, 1), kGood);
}

TEST_F(HostKernel, ReachesWriteCombinedMemoryByItsDeviceAddressOnly) {
  const auto memory = make_pinned(100, GPUMEM_MEMORY_WRITE_COMBINED);
  EXPECT_EQ(view(memory->facts().device_pointer, 100, GPUMEM_ACCESS_READWRITE), kGood);
  EXPECT_EQ(view(memory->facts().host_pointer, 1, GPUMEM_ACCESS_READ), kLost);
}

TEST_F(HostKernel, ReachesMappedRegistrationsOfItsDevice) {
  std::vector<unsigned char> bytes(100);
  const auto memory = make_registered(bytes.data(), 100, GPUMEM_MEMORY_MAPPED);
  void* const address = memory->facts().device_pointer;
  const StreamPointer stream = make_stream();
  EXPECT_EQ(run_kernel(*stream,
                       [&](backend::Kernel& kernel) {
                         auto seen = kernel.view(at(address, 40), 60, GPUMEM_ACCESS_READWRITE);
                         ASSERT_TRUE(seen);
                         EXPECT_EQ(*seen, static_cast<void*>(bytes.data() + 40));
                       }),
            GPUMEM_SUCCESS);
  EXPECT_EQ(view(address, 1, GPUMEM_ACCESS_READ, 1), kLost) << "not portable";
  EXPECT_EQ(view(bytes.data(), 1, GPUMEM_ACCESS_READ, 0), kLost) << "only by its device address";
  EXPECT_OK(memory->release());
}

TEST_F(HostKernel, ReachesPortableRegistrationsFromEveryDevice) {
  std::vector<unsigned char> bytes(100);
  const auto memory = make_registered(bytes.data(), 100, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE);
  EXPECT_EQ(view(memory->facts().device_pointer, 100, GPUMEM_ACCESS_READWRITE, 1), kGood);
  EXPECT_OK(memory->release());
}

TEST_F(HostKernel, OnlyReadsReadOnlyRegistrations) {
  std::vector<unsigned char> bytes(100);
  const auto memory = make_registered(bytes.data(), 100, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY);
  EXPECT_EQ(view(memory->facts().device_pointer, 100, GPUMEM_ACCESS_READ), kGood);
  EXPECT_EQ(view(memory->facts().device_pointer, 100, GPUMEM_ACCESS_READWRITE), kLost);
  EXPECT_OK(memory->release());
}

TEST_F(HostKernel, DoesNotReachRegistrationsWithoutMapped) {
  options_.same_pointer = GPUMEM_TOGGLE_ON;
  open();
  std::vector<unsigned char> bytes(100);
  const auto mapped = make_registered(bytes.data(), 50, GPUMEM_MEMORY_MAPPED);
  EXPECT_EQ(view(bytes.data(), 50, GPUMEM_ACCESS_READWRITE), kGood);
  const auto unmapped = make_registered(bytes.data() + 50, 50);
  EXPECT_EQ(view(bytes.data() + 50, 1, GPUMEM_ACCESS_READ), kLost);
  EXPECT_OK(mapped->release());
  EXPECT_OK(unmapped->release());
}

TEST_F(HostKernel, FindsTheHoleInARegistration) {
  void* const buffer = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto memory = make_registered(buffer, kPage, GPUMEM_MEMORY_MAPPED);
  mprotect(buffer, kPage, PROT_NONE);  // as good as unmapped, and nothing else comes there
  EXPECT_EQ(view(memory->facts().device_pointer, 1, GPUMEM_ACCESS_READ), kLost);
  EXPECT_OK(memory->release());
  munmap(buffer, kPage);
}

TEST_F(HostKernel, ReachesPageableMemoryByOption) {
  std::vector<unsigned char> bytes(100);
  static const char constant[] = "constant";
  EXPECT_EQ(view(bytes.data(), 1, GPUMEM_ACCESS_READ), kLost);
  options_.pageable = GPUMEM_TOGGLE_ON;
  open();
  EXPECT_EQ(view(bytes.data(), 100, GPUMEM_ACCESS_READWRITE), kGood);
  EXPECT_EQ(view(constant, sizeof constant, GPUMEM_ACCESS_READ), kGood);
  EXPECT_EQ(view(constant, sizeof constant, GPUMEM_ACCESS_READWRITE), kLost);
}

TEST_F(HostKernel, ReachesForeignMemory) {
  auto own = simulation().foreign_alloc(dev(0), true, 100);
  auto host_memory = simulation().foreign_alloc(dev(1), false, 100);
  auto other = simulation().foreign_alloc(dev(1), true, 100);
  ASSERT_TRUE(own && host_memory && other);
  EXPECT_EQ(view(*own, 100, GPUMEM_ACCESS_READWRITE), kGood);
  EXPECT_EQ(view(*host_memory, 100, GPUMEM_ACCESS_READWRITE), kGood);
  EXPECT_EQ(view(*other, 1, GPUMEM_ACCESS_READ), kLost);
}

// ---- lost devices ----

using HostLost = HostKernel;

TEST_F(HostLost, PendingWorkIsNotRun) {
  const auto memory = make_pinned(64);
  const StreamPointer stream = make_stream();
  Gate gate;
  bool run = false;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(stream->launch_host_function([](void* data) { *static_cast<bool*>(data) = true; }, &run, false));
  EXPECT_OK(stream->fill(fill_of(pinned(memory), 64, 1)));
  gate.await();
  simulation().lose(dev());
  simulation().lose(dev());
  gate.open();
  const auto finished = stream->synchronize(kForever);
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().status, GPUMEM_ERROR_DEVICE_LOST);
  EXPECT_NE(std::strstr(finished.error().message, "gpumem_host_device_lose"), nullptr)
      << finished.error().message;
  EXPECT_OK(stream->release());
  EXPECT_EQ(static_cast<unsigned char*>(memory->facts().host_pointer)[0], 0xA5);
  EXPECT_OK(memory->release());
  close();
  EXPECT_FALSE(run);
}

TEST_F(HostLost, EveryCallSaysSo) {
  const StreamPointer stream = make_stream();
  const EventPointer event = make_event();
  const EventPointer recorded = make_event();
  EXPECT_OK(recorded->record(*stream));
  const auto memory = make_device(64);
  auto foreign_memory = simulation().foreign_alloc(dev(), true, 64);
  ASSERT_TRUE(foreign_memory);
  simulation().lose(dev());
  EXPECT_TRUE(dev().lost());
  EXPECT_FALSE(dev(1).lost());
  EXPECT_EQ(status_of(dev().memory_available()), kLost);
  EXPECT_EQ(status_of(create_memory(dev(), device_request(1))), kLost);
  EXPECT_EQ(status_of(create_memory(dev(), pinned_request(1))), kLost);
  EXPECT_EQ(status_of(dev().create_stream(0)), kLost);
  EXPECT_EQ(status_of(dev().create_event(0)), kLost);
  EXPECT_EQ(status_of(dev().wrap_stream(nullptr)), kLost);
  EXPECT_EQ(status_of(stream->fill(fill_of(device(memory), 1, 0))), kLost);
  EXPECT_EQ(status_of(stream->copy(copy_of(device(memory), device(memory, 32), 1))), kLost);
  EXPECT_EQ(status_of(stream->write_value(device(memory), 0, 4)), kLost);
  EXPECT_EQ(status_of(stream->wait_value(device(memory), 0, 4, GPUMEM_WAIT_EQ)), kLost);
  EXPECT_EQ(status_of(stream->launch_host_function([](void*) {}, nullptr, false)), kLost);
  EXPECT_EQ(status_of(simulation().launch(
                *stream, [](gpumem_host_kernel, void*) {}, nullptr)),
            kLost);
  EXPECT_EQ(status_of(stream->wait_event(*event)), kLost);
  EXPECT_EQ(status_of(stream->query()), kLost);
  EXPECT_EQ(status_of(stream->synchronize(kForever)), kLost);
  EXPECT_EQ(status_of(event->record(*stream)), kLost);
  EXPECT_EQ(status_of(event->query()), kLost);
  EXPECT_EQ(status_of(recorded->synchronize(kForever)), kLost);
  EXPECT_EQ(status_of(recorded->elapsed_since(*recorded)), kLost);
  EXPECT_EQ(status_of(dev(0).enable_peer_access(dev(1))), kLost);
  EXPECT_EQ(status_of(dev(1).enable_peer_access(dev(0))), kLost);
  EXPECT_EQ(status_of(simulation().native_stream_create(dev())), kLost);
  EXPECT_EQ(status_of(simulation().foreign_alloc(dev(), true, 1)), kLost);
  EXPECT_OK(memory->release());
  EXPECT_OK(simulation().foreign_free(dev(), *foreign_memory));
  EXPECT_OK(event->release());
  EXPECT_OK(stream->release());
  EXPECT_OK(make_device(64, 1)->release());
}

TEST_F(HostLost, WaitersReturn) {
  const auto memory = make_pinned(64);
  const StreamPointer waiting = make_stream();
  const StreamPointer dependent = make_stream(1);
  EXPECT_OK(waiting->wait_value(pinned(memory), 0, 4, GPUMEM_WAIT_EQ));  // never
  const EventPointer event = make_event();
  EXPECT_OK(event->record(*waiting));
  EXPECT_OK(dependent->wait_event(*event));
  std::thread thread([&] { EXPECT_EQ(status_of(waiting->synchronize(kForever)), kLost); });
  EXPECT_FALSE(*dependent->synchronize(1'000'000));
  simulation().lose(dev());
  thread.join();
  finish(*dependent);  // of a device that goes on
  EXPECT_OK(memory->release());
}

// Copies of which one runs when the device is lost, or is just to begin.
class RunningCopies {
 public:
  static constexpr uint64_t kSize = 8 * kMiB;

  RunningCopies() : source_(kSize, 1), target_(kSize, 2) {}

  unsigned char* target() { return target_.data(); }
  void start(backend::Stream& stream, const Span& target) {
    for (int copy = 0; copy < 3; ++copy) {
      EXPECT_OK(stream.launch_host_function([](void* data) { ++*static_cast<std::atomic<int>*>(data); },
                                            &copies_, false));
      EXPECT_OK(stream.copy(copy_of(target, pageable(source_.data()), kSize)));
    }
    while (copies_ == 0)
      std::this_thread::yield();
  }
  // To be called when the target is the test's again, and looked at when no work is left.
  void use_target() { std::memset(target_.data(), 3, kSize); }
  bool target_is_used() const { return target_ == std::vector<unsigned char>(kSize, 3); }

 private:
  std::vector<unsigned char> source_;
  std::vector<unsigned char> target_;
  std::atomic<int> copies_{0};
};

constexpr int kRounds = 10;

TEST_F(HostLost, CopiesThatRunAreOverWhenACallSaysLost) {
  for (int round = 0; round < kRounds; ++round) {
    open();
    RunningCopies copies;
    const StreamPointer stream = make_stream();
    copies.start(*stream, pageable(copies.target()));
    std::thread thread([&] { simulation().lose(dev()); });
    (void)stream->synchronize(kForever);
    copies.use_target();
    thread.join();
    EXPECT_OK(stream->release());
    close();
    ASSERT_TRUE(copies.target_is_used());
  }
}

TEST_F(HostLost, CopiesThatRunAreOverWhenAnyStreamSaysLost) {
  for (int round = 0; round < kRounds; ++round) {
    open();
    RunningCopies copies;
    const StreamPointer stream = make_stream();
    const StreamPointer other = make_stream();
    copies.start(*stream, pageable(copies.target()));
    EXPECT_EQ(run_kernel(*other,
                         [](backend::Kernel& kernel) {
                           EXPECT_FALSE(kernel.view(pointer_to(kPage), 1, GPUMEM_ACCESS_READ));
                         }),
              kLost);
    copies.use_target();
    EXPECT_OK(stream->release());
    EXPECT_OK(other->release());
    close();
    ASSERT_TRUE(copies.target_is_used());
  }
}

TEST_F(HostLost, NoTimeToARecordThatWasNotRun) {
  constexpr size_t kDevices = 64;
  options_.device_count = kDevices;
  open();
  const auto word = make_pinned(64);
  for (size_t ordinal = 0; ordinal < kDevices; ++ordinal) {
    const StreamPointer stream = make_stream(ordinal);
    const EventPointer start = make_event(ordinal);
    const EventPointer end = make_event(ordinal);
    EXPECT_OK(start->record(*stream));
    EXPECT_OK(stream->wait_value(pinned(word), 0, 4, GPUMEM_WAIT_EQ));  // never
    EXPECT_OK(end->record(*stream));
    std::atomic<int> asking{0};
    std::atomic<int> times{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number) {
      threads.emplace_back([&] {
        ++asking;
        for (;;) {
          auto elapsed = end->elapsed_since(*start);
          if (!elapsed) break;
          if (elapsed->has_value()) ++times;
        }
      });
    }
    while (asking < 3)
      std::this_thread::yield();
    simulation().lose(dev(ordinal));
    for (std::thread& thread : threads)
      thread.join();
    ASSERT_EQ(times, 0);
    EXPECT_OK(stream->release());
  }
  EXPECT_OK(word->release());
}

TEST_F(HostLost, RegisteredMemoryIsTheCallersAfterItsRelease) {
  for (const size_t lost : {0U, 1U}) {
    for (int round = 0; round < kRounds; ++round) {
      open();
      RunningCopies copies;
      const auto memory = make_registered(copies.target(), RunningCopies::kSize,
                                          GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE);
      const StreamPointer stream = make_stream(1);  // not of the memory's device
      copies.start(*stream, registered(memory));
      simulation().lose(dev(lost));
      EXPECT_OK(memory->release());
      copies.use_target();
      EXPECT_OK(stream->release());
      close();
      ASSERT_TRUE(copies.target_is_used());
    }
  }
}

TEST_F(HostLost, WorkOnRegisteredMemoryThatWasReleasedFails) {
  std::vector<unsigned char> bytes(100, 1);
  const auto memory = make_registered(bytes.data(), 100, GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_PORTABLE);
  const StreamPointer stream = make_stream(1);
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  EXPECT_OK(stream->fill(fill_of(registered(memory), 100, 2)));
  simulation().lose(dev(0));
  EXPECT_OK(memory->release());
  gate.open();
  EXPECT_EQ(status_of(stream->synchronize(kForever)), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_EQ(bytes, std::vector<unsigned char>(100, 1));
}

// ---- foreign memory and peers ----

using HostForeign = HostKernel;

TEST_F(HostForeign, DeviceMemoryOfOtherCode) {
  const uint64_t before = free_bytes(1);
  auto memory = simulation().foreign_alloc(dev(1), true, 1000);
  ASSERT_TRUE(memory);
  EXPECT_LT(free_bytes(1), before);
  auto facts = backend_->pointer_facts(at(*memory, 999));
  ASSERT_TRUE(facts);
  EXPECT_TRUE(facts->known);
  EXPECT_EQ(facts->location, GPUMEM_LOCATION_DEVICE);
  EXPECT_EQ(facts->location_id, 1);
  EXPECT_EQ(facts->device_ordinal, 1);
  EXPECT_EQ(facts->host_pointer, nullptr);
  EXPECT_EQ(facts->device_pointer, static_cast<void*>(at(*memory, 999)));
  EXPECT_EQ(facts->base, *memory);
  EXPECT_EQ(facts->size, 1000U);
  EXPECT_NE(facts->buffer_id, 0U);
  EXPECT_FALSE(backend_->pointer_facts(at(*memory, 1000))->known);
  EXPECT_TRUE(faults(*memory, false));
  EXPECT_EQ(*dev(0).foreign_device_pointer(at(*memory, 5)), static_cast<void*>(at(*memory, 5)));

  EXPECT_EQ(status_of(simulation().foreign_free(dev(0), *memory)), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(status_of(simulation().foreign_free(dev(1), at(*memory, 1))), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_OK(simulation().foreign_free(dev(1), *memory));
  EXPECT_EQ(status_of(simulation().foreign_free(dev(1), *memory)), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(free_bytes(1), before);
  EXPECT_FALSE(backend_->pointer_facts(*memory)->known);
  EXPECT_EQ(status_of(dev(0).foreign_device_pointer(*memory)), GPUMEM_ERROR_NOT_FOUND);
  const StreamPointer stream = make_stream();
  EXPECT_EQ(status_of(stream->fill(fill_of(foreign(*memory, true), 1, 0))), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_OK(simulation().foreign_free(dev(1), nullptr));
}

TEST_F(HostForeign, PinnedMemoryOfOtherCode) {
  auto memory = simulation().foreign_alloc(dev(0), false, 1000);
  ASSERT_TRUE(memory);
  auto facts = backend_->pointer_facts(*memory);
  EXPECT_EQ(facts->location, GPUMEM_LOCATION_HOST);
  EXPECT_EQ(facts->location_id, -1);
  EXPECT_EQ(facts->host_pointer, *memory);
  EXPECT_EQ(facts->device_pointer, *memory);
  EXPECT_FALSE(faults(*memory, true));
  auto again = simulation().foreign_alloc(dev(0), false, 1000);
  EXPECT_NE(backend_->pointer_facts(*again)->buffer_id, facts->buffer_id);
  EXPECT_OK(simulation().foreign_free(dev(0), *memory));
  // The other one is left to the backend's end.
}

TEST_F(HostForeign, OneOfTwoThreadsFreesIt) {
  for (int round = 0; round < 300; ++round) {
    auto memory = simulation().foreign_alloc(dev(), true, kPage);
    ASSERT_TRUE(memory);
    void* const pointer = *memory;
    std::atomic<int> ready{0};
    Status statuses[2];
    const auto free = [&](int number) {
      ++ready;
      while (ready < 2)
        std::this_thread::yield();
      statuses[number] = status_of(simulation().foreign_free(dev(), pointer));
    };
    std::thread other(free, 0);
    free(1);
    other.join();
    std::sort(std::begin(statuses), std::end(statuses));
    EXPECT_EQ(statuses[0], GPUMEM_ERROR_NOT_FOUND);
    EXPECT_EQ(statuses[1], GPUMEM_SUCCESS);
  }
}

TEST_F(HostForeign, OwnAndStrangeMemoryIsNotForeign) {
  const auto memory = make_device(100);
  EXPECT_FALSE(backend_->pointer_facts(memory->facts().device_pointer)->known);
  EXPECT_FALSE(backend_->pointer_facts(this)->known);
  EXPECT_EQ(status_of(simulation().foreign_free(dev(), memory->facts().device_pointer)),
            GPUMEM_ERROR_NOT_FOUND);
  EXPECT_OK(memory->release());
}

TEST_F(HostForeign, PeerAccessOfOtherCodeStays) {
  options_.peers = "0>1";
  open();
  EXPECT_TRUE(*dev(0).can_access_peer(dev(1)));
  EXPECT_FALSE(*dev(1).can_access_peer(dev(0)));
  EXPECT_EQ(status_of(dev(1).enable_peer_access(dev(0))), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(status_of(simulation().foreign_peer_access(dev(1), dev(0), true)), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_OK(simulation().foreign_peer_access(dev(0), dev(1), true));
  EXPECT_FALSE(*dev(0).enable_peer_access(dev(1))) << "other code had switched it on";
  EXPECT_OK(dev(0).disable_peer_access(dev(1)));
  const auto memory = make_device(100, 1);
  EXPECT_EQ(view(memory->facts().device_pointer, 1, GPUMEM_ACCESS_READ), kGood);
  EXPECT_OK(simulation().foreign_peer_access(dev(0), dev(1), false));
  EXPECT_EQ(view(memory->facts().device_pointer, 1, GPUMEM_ACCESS_READ), kLost);
}

// ---- steps that fail ----

// What must be the same before and after a call that fails.
struct State {
  uint64_t free = 0;
  uint64_t locked = 0;
  uint64_t files = 0;
  uint64_t threads = 0;
  bool operator==(const State&) const = default;
};

class HostSteps : public Host {
 protected:
  HostSteps() { options_.lock_piece = kPage; }
  void SetUp() override { open(); }

  State state() { return {free_bytes(), locked_bytes(), open_files(), threads()}; }

  // Lets each step fail in turn until the call succeeds; says how many there are.
  uint64_t fail_each(const std::function<Status()>& call) {
    State before = state();
    for (uint64_t step = 1;; ++step) {
      simulation().fail_step(step, false);
      const Status status = call();
      simulation().fail_step(0, false);
      if (status == GPUMEM_SUCCESS) return step - 1;
      EXPECT_EQ(status, GPUMEM_ERROR_OUT_OF_HOST_MEMORY) << "step " << step;
      State now = state();
      now.threads = threads_at_most(before.threads);
      // The thread of a stream that was destroyed earlier may have ended only now.
      before.threads = std::min(before.threads, now.threads);
      EXPECT_EQ(now, before) << "step " << step;
      if (status != GPUMEM_ERROR_OUT_OF_HOST_MEMORY || step > 100) return 0;
    }
  }
  Status create(const Request& request) {
    auto memory = create_memory(dev(), request);
    if (!memory) {
      EXPECT_EQ(memory.error().native_code, ENOMEM);
      EXPECT_EQ(memory.error().native_domain, GPUMEM_NATIVE_ERRNO);
      EXPECT_STRNE(memory.error().entry_point, "");
      return memory.error().status;
    }
    EXPECT_OK((*memory)->release());
    return GPUMEM_SUCCESS;
  }
};

TEST_F(HostSteps, OfMemory) {
  SKIP_IF_LOCKING_IS_FORBIDDEN();
  // With maps of its own, and the first in a slab.
  EXPECT_GE(fail_each([&] { return create(device_request(100 * kPage)); }), 4U);
  EXPECT_EQ(fail_each([&] { return create(device_request(3 * kPage)); }), 5U);
  EXPECT_EQ(fail_each([&] { return create(device_request(3 * kPage)); }), 1U);
  EXPECT_GE(fail_each([&] { return create(pinned_request(3 * kPage)); }), 8U);
  EXPECT_GE(fail_each([&] { return create(pinned_request(3 * kPage, GPUMEM_MEMORY_WRITE_COMBINED)); }), 9U);
  std::vector<unsigned char> bytes(2 * kPage);
  EXPECT_GE(
      fail_each([&] { return create(register_request(bytes.data(), bytes.size(), GPUMEM_MEMORY_MAPPED)); }),
      3U);
  options_.strict = GPUMEM_TOGGLE_OFF;
  open();
  EXPECT_GE(fail_each([&] { return create(device_request(3 * kPage)); }), 4U);
}

TEST_F(HostSteps, OfStreamsAndEvents) {
  EXPECT_EQ(fail_each([&] {
              auto stream = dev().create_stream(0);
              if (!stream) return stream.error().status;
              return status_of((*stream)->release());
            }),
            1U);
  const StreamPointer stream = make_stream();
  const auto memory = make_pinned(64);
  EXPECT_EQ(fail_each([&] { return status_of(dev().create_event(0)); }), 1U);
  EXPECT_EQ(fail_each([&] { return status_of(stream->fill(fill_of(pinned(memory), 8, 0))); }), 1U);
  EXPECT_EQ(
      fail_each([&] { return status_of(stream->copy(copy_of(pinned(memory), pinned(memory, 32), 8))); }), 1U);
  const EventPointer event = make_event();
  EXPECT_OK(event->record(*stream));
  finish(*stream);
  Gate gate;
  EXPECT_OK(gate.hold(*stream));
  simulation().fail_step(1, false);
  EXPECT_EQ(status_of(event->record(*stream)), GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  EXPECT_TRUE(*event->query()) << "the earlier record stays";
  gate.open();
  finish(*stream);
  EXPECT_OK(memory->release());
}

TEST_F(HostSteps, Repeatedly) {
  simulation().fail_step(2, true);
  EXPECT_OK(dev().create_event(0));
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(status_of(dev().create_event(0)), GPUMEM_ERROR_OUT_OF_HOST_MEMORY);
  }
  simulation().fail_step(0, true);
  EXPECT_OK(dev().create_event(0));
}

}  // namespace
}  // namespace gpumem::test
