// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Starts threads that block the program's signals.
#pragma once

#include <pthread.h>
#include <csignal>
#include <thread>
#include <utility>

namespace gpumem::platform {

// Like std::thread's constructor, but blocks all signals except faults and, if the creating thread does not
// block them, those with which language runtimes stop threads: without these, a garbage collector would wait
// forever for a thread that ran a host function.
template <class F>
std::thread start_thread(F function) {
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, nullptr, &before);
      const auto keep = [&](int signal) {
        if (!sigismember(&before, signal)) sigdelset(&all, signal);
      };
      for (const int stop : {SIGXCPU, SIGPWR})
        keep(stop);
      for (int stop = SIGRTMIN; stop <= SIGRTMAX; ++stop)
        keep(stop);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
        sigdelset(&all, fault);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } blocked;
  return std::thread(std::move(function));
}

}  // namespace gpumem::platform
