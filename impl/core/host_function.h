// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions of the caller that run in stream order. While one runs, its thread may only ask for information
// (COM-27).
#pragma once

#include "base/result.h"
#include "gpumem/stream.h"

namespace gpumem::core {

class Instance;

// Refuses on a thread that runs a host function or a kernel stand-in.
Result<void> outside_host_function();

// The functions that were enqueued and have not run yet, of the whole process: one may run after the instance
// that enqueued it was closed.
namespace host_functions {

// Names an entry for ever, so that a backend may come late with it: what was forgotten is not called.
using Id = uint64_t;

Id add(const Instance* owner, gpumem_host_function function, void* user_data);
void remove(Id id) noexcept;
// Those of an instance whose devices are lost: what has not begun never will, what runs is waited for.
void forget(const Instance* owner) noexcept;
// What the backend calls, with pointer_to(id) as its argument.
void GPUMEM_CALL run(void* id);

}  // namespace host_functions
}  // namespace gpumem::core
