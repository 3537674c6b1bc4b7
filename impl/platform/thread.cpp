// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/thread.h"

namespace gpumem::platform {

NewThreadSignals::NewThreadSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, nullptr, &before_);
  const auto keep = [&](int signal) {
    if (!sigismember(&before_, signal)) sigdelset(&all, signal);
  };
  for (const int stop : {SIGXCPU, SIGPWR})
    keep(stop);
  for (int stop = SIGRTMIN; stop <= SIGRTMAX; ++stop)
    keep(stop);
  for (const int end : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    struct sigaction action;
    if (sigaction(end, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) keep(end);
  }
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
    sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

NewThreadSignals::~NewThreadSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace gpumem::platform
