// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How to know that a thread has reached the place where it waits.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <fstream>
#include <string>

namespace gpumem::test {

// Whether a thread of this process sleeps in the kernel, by proc(5), or has ended.
inline bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return true;
  const size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && line[name_end + 2] == 'S';
}

inline void wait_until_asleep(pid_t thread) {
  // A sanitizer may sleep for a moment on locks of its own.
  for (int asleep = 0; asleep < 5; sched_yield())
    asleep = is_asleep(thread) ? asleep + 1 : 0;
}

}  // namespace gpumem::test
