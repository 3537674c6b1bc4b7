// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How to know that a thread has reached the place where it waits.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <fstream>
#include <string>

namespace processes {

// Until a thread of this process sleeps in the kernel.
inline void wait_until_asleep(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  // A sanitizer may sleep for a moment on locks of its own.
  for (int asleep = 0; asleep < 5; sched_yield()) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line)) return;  // it has ended
    const size_t name_end = line.rfind(") ");
    asleep = name_end != std::string::npos && line[name_end + 2] == 'S' ? asleep + 1 : 0;
  }
}

}  // namespace processes
