// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Putting buffers to sleep and waking them, one or many at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/buffer/buffer.h"
#include "core/buffer/store.h"
#include "core/stream/event.h"
#include "core/stream/stream.h"

namespace gpumem::core {

// The caller's function that hears how far a call is, and may cancel it.
struct Progress {
  gpumem_progress_function function = nullptr;
  void* user_data = nullptr;
};

struct SleepRequest {
  StoreRequest store;
  bool idle = false;         // wait for nothing
  Stream* stream = nullptr;  // else for these, or if there is none of them for whole devices
  Event* event = nullptr;
  Progress progress;
};

struct WakeRequest {
  uint64_t keep = 0;  // of each store
  Progress progress;
};

// The caller holds the buffers. Each call does all or nothing. Of `many`, those that are there already are
// left as they are; one alone is refused.
Result<void> sleep_buffers(Context& context, const std::vector<Ref<Buffer>>& buffers, bool many,
                           const SleepRequest& request);
Result<void> wake_buffers(Context& context, const std::vector<Ref<Buffer>>& buffers, bool many,
                          const WakeRequest& request);
// At a pace if it is not 0: then in the background.
Result<void> prepare_buffers(Context& context, const std::vector<Ref<Buffer>>& buffers, bool many,
                             const StoreRequest& request, uint64_t bytes_per_second);

}  // namespace gpumem::core
