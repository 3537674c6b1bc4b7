// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Ctrl-C, as an exception that is thrown where the program can free everything.
#pragma once

#include <string>

namespace gpumem::cli {

// Somebody pressed Ctrl-C or asked the process to end.
struct Interrupted {};

// From now on SIGINT, SIGTERM and SIGHUP are only remembered; a second one ends the process at once. A signal
// that was ignored from the start, as by nohup or a shell's `&`, stays ignored.
void watch_signals();

// What ends a command that stays, as it says at its start.
std::string until_interrupted();

// Throws Interrupted if such a signal has arrived.
void stop_if_interrupted();

// Sleeps until such a signal has arrived, until the input at the descriptor has ended, -1 standing for none,
// or until another thread calls end_waiting(). What can be read there is thrown away.
void wait_for_interrupt(int descriptor);
void end_waiting();

}  // namespace gpumem::cli
