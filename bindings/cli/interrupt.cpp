// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <initializer_list>
#include <system_error>

namespace gpumem::cli {

namespace {
volatile sig_atomic_t arrived = 0;

// Wakes wait_for_interrupt(), whichever thread the signal has met; -1 before somebody waits.
std::atomic<int> waker{-1};

std::atomic<bool> over{false};  // somebody called end_waiting()

// Throws away what can be read; false at the end of the input.
bool drain(int descriptor) {
  std::array<char, 4096> bytes{};
  const ssize_t count = read(descriptor, bytes.data(), bytes.size());
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    const int error = errno;
    arrived = 1;
    if (const int descriptor = waker.load(); descriptor >= 0) eventfd_write(descriptor, 1);
    errno = error;
  };
  // No SA_RESTART, so that a read that waits for a slow disk returns.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

std::string until_interrupted() {
  struct sigaction of_terminal = {};
  sigaction(SIGINT, nullptr, &of_terminal);
  return of_terminal.sa_handler == SIG_IGN ? "Stays until SIGTERM" : "Stays until Ctrl-C or SIGTERM";
}

void stop_if_interrupted() {
  if (arrived != 0) throw Interrupted{};
}

void wait_for_interrupt(int descriptor) {
  if (waker < 0) waker = eventfd(0, EFD_CLOEXEC);
  if (waker < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  while (arrived == 0 && !over) {
    std::array<pollfd, 2> sources = {pollfd{waker, POLLIN, 0}, pollfd{descriptor, POLLIN, 0}};
    if (poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR)
      throw std::system_error(errno, std::generic_category(), "poll");
    if (sources[1].revents != 0 && !drain(descriptor)) return;
  }
}

void end_waiting() {
  over = true;
  if (const int descriptor = waker.load(); descriptor >= 0) eventfd_write(descriptor, 1);
}

}  // namespace gpumem::cli
