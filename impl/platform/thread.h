// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Threads of the library, how a thread spins, and what a thread of the program must not meet inside a call:
// signals and cancellation.
#pragma once

#include <pthread.h>
#include <csignal>
#include <thread>
#include <utility>

namespace gpumem::platform {

// For spin loops: briefly yields the core to its other hardware thread.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The signal mask of threads that are started while it lives: it blocks all signals except faults and, if the
// creating thread does not block them:
// - those with which language runtimes stop threads: without these, a garbage collector would wait forever
//   for a thread that ran a host function;
// - those that ask the process to end, if it has no handler for them: else it could not be ended once all
//   its own threads are gone.
class NewThreadSignals {
 public:
  NewThreadSignals();
  NewThreadSignals(const NewThreadSignals&) = delete;
  NewThreadSignals& operator=(const NewThreadSignals&) = delete;
  ~NewThreadSignals();

 private:
  sigset_t before_;
};

// Like std::thread's constructor, with the signals above.
template <class F>
std::thread start_thread(F function) {
  const NewThreadSignals signals;
  return std::thread(std::move(function));
}

// Gives the calling thread another signal mask for as long as it lives.
class SignalMask {
 public:
  explicit SignalMask(const sigset_t& mask) { pthread_sigmask(SIG_SETMASK, &mask, &before_); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;
  ~SignalMask() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  static sigset_t of_this_thread() {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return mask;
  }

 private:
  sigset_t before_;
};

// Defers pthread_cancel() while it lives, because a thread inside the driver, or with a lock held, cannot be
// unwound. A deferred cancellation takes effect at the program's next cancellation point.
class CancellationHeld {
 public:
  CancellationHeld() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  CancellationHeld(const CancellationHeld&) = delete;
  CancellationHeld& operator=(const CancellationHeld&) = delete;
  ~CancellationHeld() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace gpumem::platform
