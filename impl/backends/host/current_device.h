// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The calling thread's current device while a call of the backend runs (COM-9).
#pragma once

#include "backends/host/host_backend.h"

namespace gpumem::host {

// Makes a device current for a scope, as driver calls require, and then restores the caller's.
class CurrentDevice {
 public:
  explicit CurrentDevice(uint32_t ordinal) : before_(set_current_device(static_cast<int32_t>(ordinal))) {}
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() { set_current_device(before_); }

 private:
  int32_t before_;
};

}  // namespace gpumem::host
