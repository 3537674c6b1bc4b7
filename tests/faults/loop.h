// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The loop: the 1st, 2nd, ... call of a kind fails, once and for ever, until the scenario succeeds.
#pragma once

#include "injection.h"
#include "scenario.h"

namespace faults {

// Whether the fake driver can be controlled in this process.
bool have_fake_driver();

// Runs all loops of a scenario for one kind of fault, in this process.
void run_loops(const Scenario& scenario, gpumem_backend backend, Kind kind);
// The same with a forked process for each attempt. Nothing may have called the library in this one.
void run_loops_first(const Scenario& scenario, gpumem_backend backend, Kind kind);
// A child whose parent has set a log function makes a call that fails, and has no memory.
void run_log_in_child();
// A connection carries messages, and has no memory.
void run_sending_without_memory();
void run_receiving_without_memory();
// Hubs are used, and allocations of a kind fail.
void run_serving_without_memory(Kind kind);
void run_lending_without_memory();
void run_closing_without_memory();
void run_publishing_without_memory();
void run_withdrawing_without_memory();
void run_waiting_without_memory();
// A process forks while the driver is being initialised in it, and after that has failed.
void run_fork_around_init();

}  // namespace faults
