// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls that meet the end of their instance.
#pragma once

#include <atomic>
#include <thread>

#include "harness.h"

namespace conformance {

// Closes the instance by force while another thread repeats `call`, which must succeed until it is refused.
template <class Call>
void close_amid(gpumem_instance instance, Call call) {
  std::atomic<bool> begun{false};
  std::thread caller([&] {
    gpumem_status status = GPUMEM_SUCCESS;
    while (status == GPUMEM_SUCCESS) {
      status = call();
      begun = true;
    }
    EXPECT_TRUE(status == GPUMEM_ERROR_CLOSED || status == GPUMEM_ERROR_NOT_FOUND ||
                status == GPUMEM_ERROR_STALE_HANDLE)
        << gpumem_status_name(status);
  });
  while (!begun)
    std::this_thread::yield();
  EXPECT_OK(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, why()));
  caller.join();
}

}  // namespace conformance
