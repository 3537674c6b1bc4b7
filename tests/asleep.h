// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How to know that a thread has reached the place where it waits.
#pragma once

#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace gpumem::test {

// What proc(5) tells of a thread of this process: its state, 'X' if it has ended, and the ticks that it has
// run.
struct ThreadState {
  char state = 'X';
  uint64_t ticks = 0;
};

inline ThreadState state_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return {};
  std::istringstream fields(line.substr(line.rfind(") ") + 2));
  ThreadState found;
  fields >> found.state;
  std::string skipped;
  for (int i = 0; i < 10; ++i)
    fields >> skipped;
  uint64_t user = 0, system = 0;
  fields >> user >> system;
  found.ticks = user + system;
  return found;
}

// Whether a thread of this process sleeps in the kernel, or has ended.
inline bool is_asleep(pid_t thread) {
  const char state = state_of(thread).state;
  return state == 'S' || state == 'X';
}

// Waits until a thread has reached the call in which it waits.
inline void wait_until_asleep(pid_t thread) {
  // A real driver waits without sleeping. Who has run for so long (200 ms) is in its loop.
  constexpr uint64_t kSpinning = 20;
  const uint64_t before = state_of(thread).ticks;
  // A sanitizer may sleep for a moment on locks of its own.
  for (int asleep = 0; asleep < 5 && state_of(thread).ticks - before < kSpinning; sched_yield())
    asleep = is_asleep(thread) ? asleep + 1 : 0;
}

// A thread that makes one call, begun when that has gone to sleep in the kernel.
class Sleeper {
 public:
  explicit Sleeper(std::function<void()> call) {
    thread_ = std::thread([this, call = std::move(call)] {
      id_ = gettid();
      call();
    });
    while (id_ == 0)
      std::this_thread::yield();
    wait_until_asleep(id_);
  }
  void join() { thread_.join(); }

 private:
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

}  // namespace gpumem::test
