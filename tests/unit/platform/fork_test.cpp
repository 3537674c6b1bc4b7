// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a forked child does not inherit.
#include "platform/fork.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

#include "process_support.h"

namespace gpumem::platform {
namespace {

using test::exit_code_of;

struct Counted {
  std::mutex mutex;
  int count = 0;
};

TEST(Fork, EachProcessHasItsEpoch) {
  const uint32_t mine = process_epoch();
  EXPECT_EQ(process_epoch(), mine);
  EXPECT_EQ(exit_code_of([&] {
              const uint32_t childs = process_epoch();
              const int grandchilds = exit_code_of([&] {
                const uint32_t own = process_epoch();
                return own != childs && own != mine ? 5 : 1;
              });
              return childs != mine && process_epoch() == childs ? grandchilds : 1;
            }),
            5);
  EXPECT_EQ(process_epoch(), mine);
}

TEST(Fork, PerProcessIsOneForAllThreads) {
  static constinit PerProcess<Counted> shared;
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      Counted& counted = shared.get();
      const std::lock_guard lock(counted.mutex);
      ++counted.count;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(shared.get().count, kThreads);
}

TEST(Fork, PerProcessIsFreshInAChildEvenIfItWasLocked) {
  static constinit PerProcess<Counted> shared;
  Counted& mine = shared.get();
  const std::lock_guard lock(mine.mutex);
  mine.count = 3;
  EXPECT_EQ(exit_code_of([&] {
              Counted& childs = shared.get();
              if (&childs == &mine || !childs.mutex.try_lock()) return 1;
              childs.mutex.unlock();
              return childs.count == 0 && &shared.get() == &childs ? 5 : 2;
            }),
            5);
  EXPECT_EQ(&shared.get(), &mine);
  EXPECT_EQ(mine.count, 3);
}

}  // namespace
}  // namespace gpumem::platform
