// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions of the library that the CPU runs when a stream comes to them.
#pragma once

#include <cuda.h>

#include <functional>

namespace gpumem::cuda {

struct HostWork;

// Made before it is enqueued, so that nothing can fail once it is. `run` must not call the driver.
HostWork* add_host_work(std::function<void()> run);
void remove_host_work(const HostWork* work);

// What the driver is given to call with the work; removes it afterwards.
void CUDA_CB run_host_work(void* work);

}  // namespace gpumem::cuda
