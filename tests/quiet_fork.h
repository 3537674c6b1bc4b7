// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// fork() for tests whose child allocates memory.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "asleep.h"
#include "sanitizer.h"

namespace gpumem::test {

// A forked child waits for ever for a lock of the allocator that AddressSanitizer or ThreadSanitizer puts in
// place, if another thread held it at the fork. glibc's own allocator has no such flaw.
inline constexpr bool kForkBesideAllocations = !kAddressSanitizer && !kThreadSanitizer;

// A child that hangs all the same is ended by SIGALRM, if it calls alarm() with this.
inline constexpr unsigned kHangSeconds = 300;

// Whether each thread but the calling one sleeps: then none is in the middle of an allocation.
inline bool others_sleep() {
  std::error_code problem;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", problem)) {
    const pid_t thread = std::stoi(task.path().filename());
    if (thread != gettid() && !is_asleep(thread)) return false;
  }
  return true;
}

// With a sanitizer, first waits until the other threads sleep, though not for ever: a test may keep them
// busy, and hangs now and then.
inline pid_t quiet_fork() {
  constexpr int kLooks = 3;
  constexpr int kLooksMost = 10'000;
  // One that was asleep may have been woken by one that was looked at later.
  for (int quiet = kForkBesideAllocations ? kLooks : 0, looks = 0; quiet < kLooks && looks < kLooksMost;
       ++looks) {
    quiet = others_sleep() ? quiet + 1 : 0;
    if (quiet < kLooks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fork();
}

}  // namespace gpumem::test
