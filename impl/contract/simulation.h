// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The functions of gpumem/host.h, which only a backend without hardware has.
#pragma once

#include <cstdint>
#include <memory>

#include "contract/device.h"
#include "gpumem/host.h"
#include "gpumem/pointer.h"

namespace gpumem::backend {

// A running kernel stand-in; what gpumem_host_kernel points to.
class Kernel {
 public:
  virtual Result<void*> view(const void* address, uint64_t size, gpumem_access access) = 0;

 protected:
  ~Kernel() = default;
};

class Simulation {
 public:
  virtual Result<void> launch(Stream& stream, gpumem_host_kernel_function function, void* user_data) = 0;
  virtual Result<void*> native_stream_create(Device& device) = 0;
  // Wraps one, also of a lost device.
  virtual Result<std::shared_ptr<Stream>> native_stream(Device& device, void* native) = 0;
  virtual Result<void> native_stream_destroy(Device& device, void* native) = 0;
  virtual void set_capturing(Stream& stream, bool capturing) = 0;
  virtual void lose(Device& device) = 0;
  virtual void fail_step(uint64_t step, bool repeat) = 0;
  virtual Result<void*> foreign_alloc(Device& device, bool on_device, uint64_t size) = 0;
  virtual Result<void> foreign_free(Device& device, void* pointer) = 0;
  virtual Result<void> foreign_peer_access(Device& device, Device& peer, bool enabled) = 0;

 protected:
  ~Simulation() = default;
};

}  // namespace gpumem::backend
