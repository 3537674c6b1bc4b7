// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/kernel.h"

#include <cinttypes>

#include "backends/host/device.h"
#include "backends/host/host_backend.h"
#include "contract/host_function_mark.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

thread_local backend::Kernel* running = nullptr;

bool may_use(const Lock& held, const HostDevice& device, const Allocation& allocation, bool write) {
  if (allocation.on_device) return device.reaches(held, allocation.device);
  if (!allocation.registered) return true;
  return (&allocation.device == &device || (allocation.granted & GPUMEM_MEMORY_PORTABLE) != 0) &&
         !(write && (allocation.granted & GPUMEM_MEMORY_READ_ONLY) != 0);
}

bool mapped(const void* address, uint64_t size, bool write) {
  return write ? platform::writable(address, size) : platform::readable(address, size);
}

}  // namespace

backend::Kernel* current_kernel() { return backend::HostFunctionMark::is_set() ? running : nullptr; }

void RunningKernel::run(Shared& shared, Queue& queue, gpumem_host_kernel_function function, void* user_data) {
  RunningKernel kernel(shared, queue);
  running = &kernel;
  {
    const backend::HostFunctionMark mark;
    function(reinterpret_cast<gpumem_host_kernel>(running), user_data);
  }
  running = nullptr;
  const Lock lock(shared.mutex);
  queue.timeline()->faulting = false;
}

Result<void*> RunningKernel::view(const void* address, uint64_t size, gpumem_access access) {
  HostDevice& device = queue_.device();
  GPUMEM_TRY(device.require_not_lost());
  const bool write = access == GPUMEM_ACCESS_READWRITE;
  if (void* const bytes = translate(address, size, write); bytes != nullptr) return bytes;
  char reason[128];
  std::snprintf(reason, sizeof reason, "a kernel tried to %s %" PRIu64 " bytes at %p without access",
                write ? "write" : "read", size, address);
  {
    const Lock lock(shared_.mutex);
    queue_.timeline()->faulting = true;
  }
  device.lose(reason);
  return device.require_not_lost().error();
}

void* RunningKernel::translate(const void* address, uint64_t size, bool write) {
  const HostDevice& device = queue_.device();
  std::shared_ptr<Allocation> allocation;
  {
    const Lock lock(shared_.mutex);
    allocation = shared_.table.find(address);
    if (allocation != nullptr) {
      const uint64_t offset = address_of(address) - address_of(allocation->device_address);
      if (size > allocation->size - offset || !may_use(lock, device, *allocation, write)) return nullptr;
      used_.push_back(allocation);
      if (shared_.options.strict) {
        allocation->uses.prepare();
        allocation->uses.advance(queue_.timeline(), queue_.timeline()->completed + 1);
      }
    }
  }
  if (allocation != nullptr) {
    std::byte* const bytes =
        allocation->bytes + (address_of(address) - address_of(allocation->device_address));
    if (allocation->registered && !mapped(bytes, size, write)) return nullptr;
    return bytes;
  }
  if (shared_.options.pageable && mapped(address, size, write)) return const_cast<void*>(address);
  return nullptr;
}

}  // namespace gpumem::host
