// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "interrupt.h"

#include <signal.h>

#include <initializer_list>

namespace gpumem::cli {

namespace {
volatile sig_atomic_t arrived = 0;
}

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { arrived = 1; };
  // No SA_RESTART, so that a read that waits for a slow disk returns.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

void stop_if_interrupted() {
  if (arrived != 0) throw Interrupted{};
}

}  // namespace gpumem::cli
