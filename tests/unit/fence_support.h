// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Short ways to mark streams and to wait for marks, for fences of either backend.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "contract/fence.h"

namespace gpumem::test {

using FencePointer = std::shared_ptr<backend::Fence>;

inline FencePointer fence_of(backend::Stream& stream) {
  auto fence = stream.fence();
  if (fence) return *fence;
  ADD_FAILURE() << fence.error().message;
  return nullptr;
}

// 0, which has always passed, if the stream cannot be marked.
inline uint64_t mark(backend::Fence& fence, backend::Stream& stream) {
  auto number = fence.mark(stream);
  if (number) return *number;
  ADD_FAILURE() << number.error().message;
  return 0;
}

// Whether the mark passes within two minutes, by polling alone.
inline bool passes(backend::Fence& fence, uint64_t number) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < limit) {
    const Status status = fence.poll(number);
    if (status != GPUMEM_NOT_READY) return status == GPUMEM_SUCCESS;
    std::this_thread::yield();
  }
  return false;
}

// Each of 16 threads lets the streams, in turns, write a word of its own, marks them, and reads the word once
// the mark has passed. The word is no atomic: only the fence orders it, as a thread sanitizer sees.
template <class Streams>
void mark_and_poll_by_many_threads(const Streams& streams, int rounds = 40) {
  constexpr int kThreads = 16;
  struct Work {
    int* word;
    int value;
  };
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      int word = 0;
      std::vector<Work> work(static_cast<size_t>(rounds));
      uint64_t last = 0;
      const auto write = [](void* data) {
        const auto* const work_of_round = static_cast<Work*>(data);
        *work_of_round->word = work_of_round->value;
      };
      backend::Stream& stream = *streams[static_cast<size_t>(number) % streams.size()];
      const FencePointer fence = fence_of(stream);
      for (int round = 0; round < rounds; ++round) {
        work[static_cast<size_t>(round)] = {&word, round + 1};
        auto launched = stream.launch_host_function(write, &work[static_cast<size_t>(round)], true);
        EXPECT_TRUE(launched.ok());
        const uint64_t own = mark(*fence, stream);
        EXPECT_GT(own, last);
        ASSERT_TRUE(passes(*fence, own));
        EXPECT_EQ(word, round + 1);
        EXPECT_EQ(fence->poll(last), GPUMEM_SUCCESS) << "an earlier mark has passed too, and for ever";
        last = own;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace gpumem::test
