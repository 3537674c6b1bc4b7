// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Threads of the library take no signals of the program.
#pragma once

#include <pthread.h>
#include <csignal>
#include <thread>
#include <utility>

namespace gpumem::platform {

// As the constructor of std::thread, but of the signals only two sorts are delivered to it: faults of the
// thread itself, and, as far as the creating thread takes them, those by which runtimes of other languages
// stop the threads that run their code. A collector waits for ever for a thread that ran a host function and
// does not hear it.
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
