// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Many threads at once on one backend; a thread sanitizer finds what the assertions do not.
#include <atomic>
#include <cstring>
#include <thread>

#include "host_support.h"
#include "process_support.h"

namespace gpumem::test {
namespace {

class HostThreads : public Host {
 protected:
  void SetUp() override { open(); }
};

// Makes, uses and frees everything that one thread can have for itself.
TEST_F(HostThreads, EachWithItsOwnObjects) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 15;
  const uint64_t before = free_bytes();
  std::vector<std::thread> threads;
  std::atomic<int> finished{0};
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      const auto size = static_cast<uint64_t>(5000 + number);
      std::vector<unsigned char> lent(size);
      for (int round = 0; round < kRounds; ++round) {
        const auto bytes = pattern(size, static_cast<unsigned>(number * kRounds + round));
        const StreamPointer first = make_stream();
        const StreamPointer second = make_stream(1);
        const auto on_device = make_device(size);
        const auto on_host = make_pinned(size);
        const auto mapped = make_registered(lent.data(), size, GPUMEM_MEMORY_MAPPED);
        const EventPointer event = make_event();
        EXPECT_OK(first->copy(copy_of(device(on_device), pageable(bytes.data()), size)));
        EXPECT_OK(first->copy(copy_of(pinned(on_host), device(on_device), size)));
        EXPECT_OK(event->record(*first));
        EXPECT_OK(second->wait_event(*event));
        EXPECT_OK(second->copy(copy_of(registered(mapped), pinned(on_host), size)));
        finish(*second);
        EXPECT_EQ(std::memcmp(lent.data(), bytes.data(), size), 0);
        EXPECT_OK(mapped->release());
        EXPECT_OK(on_host->release());
        EXPECT_OK(on_device->release());
        EXPECT_OK(event->release());
        EXPECT_OK(first->release());
        EXPECT_OK(second->release());
      }
      ++finished;
    });
  }
  while (finished < kThreads) {
    EXPECT_LE(free_bytes(), before);
    EXPECT_FALSE(backend_->pointer_facts(this)->known);
    (void)dev().capability(GPUMEM_CAPABILITY_PIN_PAGE_LOCKED, nullptr);
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(locked_bytes(), 0U);
}

// Several threads put work into one stream and record one event.
TEST_F(HostThreads, AllWithOneStream) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  const StreamPointer stream = make_stream();
  const StreamPointer other = make_stream(1);
  const EventPointer event = make_event();
  const auto counter = make_pinned(8);
  auto* const word = static_cast<uint64_t*>(counter->facts().host_pointer);
  *word = 0;
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        launch(*stream, [&](backend::Kernel& kernel) {
          auto view = kernel.view(counter->facts().device_pointer, 8, GPUMEM_ACCESS_READWRITE);
          if (view) ++*static_cast<uint64_t*>(*view);
        });
        EXPECT_OK(event->record(*stream));
        EXPECT_OK(other->wait_event(*event));
        EXPECT_TRUE(*event->synchronize(kForever));
        EXPECT_TRUE(other->query());
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  finish(*other);
  finish(*stream);
  EXPECT_EQ(*word, uint64_t{kThreads} * kRounds);
  EXPECT_OK(counter->release());
}

}  // namespace
}  // namespace gpumem::test
