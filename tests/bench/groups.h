// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Groups that sleep and wake, growth that a thread prepares, and what many sleeps leave behind.
#pragma once

#include "runner.h"

namespace bench {

// What the cases use.
struct Scene {
  Runner& runner;
  Raw& raw;
  gpumem_instance instance;
  gpumem_device device;
};

void groups(const Scene& scene);

}  // namespace bench
