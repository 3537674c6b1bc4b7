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

// Marks the calling thread for as long as it lives.
class HostFunctionMark {
 public:
  HostFunctionMark();
  HostFunctionMark(const HostFunctionMark&) = delete;
  HostFunctionMark& operator=(const HostFunctionMark&) = delete;
  ~HostFunctionMark();
};

// The functions that were enqueued and have not run yet, of the whole process: one may run after the instance
// that enqueued it was closed.
namespace host_functions {

struct Pending;

Pending* add(const Instance* owner, gpumem_host_function function, void* user_data);
void remove(Pending* pending) noexcept;
// Frees those of an instance whose devices are lost: they never run.
void forget(const Instance* owner) noexcept;
// What the backend calls, with the Pending as its argument.
void GPUMEM_CALL run(void* pending);

}  // namespace host_functions
}  // namespace gpumem::core
