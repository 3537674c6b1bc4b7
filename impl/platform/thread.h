// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Threads of the library take no signals of the program.
#pragma once

#include <pthread.h>
#include <csignal>
#include <thread>
#include <utility>

namespace gpumem::platform {

// As the constructor of std::thread, but only faults of the thread itself are delivered to it.
template <class F>
std::thread start_thread(F function) {
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
        sigdelset(&all, fault);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } blocked;
  return std::thread(std::move(function));
}

}  // namespace gpumem::platform
