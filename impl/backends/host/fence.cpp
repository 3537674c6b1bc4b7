// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/fence.h"

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/stream.h"

namespace gpumem::host {

Result<uint64_t> HostFence::enqueue(backend::Stream& stream) {
  Queue& queue = static_cast<HostStream&>(stream).queue();
  const CurrentDevice current(queue.device().facts().ordinal);
  const Lock lock(shared_.mutex);
  const uint64_t number = marked_ + 1;
  // Work that is dropped, because the device is lost, does not run, and its mark neither.
  GPUMEM_TRY(queue.enqueue(lock, {[this, number]() -> Result<void> {
                             reached_.store(number, std::memory_order_release);
                             return {};
                           }},
                           {}));
  return marked_ = number;
}

}  // namespace gpumem::host
