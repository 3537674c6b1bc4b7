// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions of the library that the CPU runs when a stream comes to them.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>

#include "backends/cuda/device.h"

namespace gpumem::cuda {

// What a work writes to: the memory, null if it was not made here, and the device whose stream it is in.
struct Writing {
  const Device* device = nullptr;  // null if it writes nothing
  const backend::Memory* memory = nullptr;
};

using HostWorkId = uint64_t;

// Made before it is enqueued, so that nothing can fail once it is. `run` must not call the driver.
HostWorkId add_host_work(std::function<void()> run, Writing writing = {});
void remove_host_work(HostWorkId id);

// The streams of a lost device cannot be waited for. So what writes there and has not begun is dropped, and
// what runs is waited for: all of a lost device, or what writes to a memory on any lost device.
void end_host_work_of(const Device& device);
void end_host_work_on(const backend::Memory& memory);
// What is left when a device is closed runs in streams that other code has made, and is their business.
void forget_device_of_host_work(const Device& device);

// What the driver is given to call with the id as its argument; removes the work afterwards.
void CUDA_CB run_host_work(void* id);

}  // namespace gpumem::cuda
