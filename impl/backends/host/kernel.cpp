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

bool may_use(const Lock& held, Queue& queue, const Allocation& allocation, bool write) {
  const HostDevice& device = queue.device();
  if (allocation.managed != nullptr && !device.is_concurrent())
    return allocation.managed->lets_device(queue.timeline()->id);
  if (!allocation.access.empty()) {
    const gpumem_access needed = write ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_READ;
    return (allocation.access.at(device.facts().ordinal) & needed) == needed;
  }
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
  if (kernel.fault_[0] != '\0') queue.device().lose(kernel.fault_);
}

Result<void*> RunningKernel::view(const void* address, uint64_t size, gpumem_access access) {
  HostDevice& device = queue_.device();
  GPUMEM_TRY(device.require_not_lost());
  const bool write = access == GPUMEM_ACCESS_READWRITE;
  if (fault_[0] == '\0') {
    // A lack of memory is no refusal.
    if (auto bytes = translate(address, size, write); !bytes || *bytes != nullptr) return bytes;
    std::snprintf(fault_, sizeof fault_, "a kernel tried to %s %" PRIu64 " bytes at %p without access",
                  write ? "write" : "read", size, address);
  }
  return device.lost_because(fault_);
}

void RunningKernel::use(const std::shared_ptr<Allocation>& allocation) {
  used_.push_back(allocation);
  if (!shared_.options.strict) return;
  allocation->uses.prepare();
  allocation->uses.advance(queue_.timeline(), queue_.timeline()->completed + 1);
}

// Mappings are adjacent for the device but not in this process, so make one view of several.
Result<void*> RunningKernel::translate_mappings(const void* address, uint64_t size, bool write) {
  const uint64_t begin = address_of(address);
  std::vector<std::shared_ptr<Allocation>> mappings;
  {
    const Lock lock(shared_.mutex);
    for (uint64_t at = begin; at - begin < size;) {
      auto mapping = shared_.table.find(pointer_to(at));
      if (mapping == nullptr || mapping->block == nullptr || !may_use(lock, queue_, *mapping, write))
        return nullptr;
      at = address_of(mapping->device_address) + mapping->size;
      mappings.push_back(std::move(mapping));
    }
    for (const auto& mapping : mappings)
      use(mapping);
  }
  const uint64_t first = address_of(mappings.front()->device_address);
  const uint64_t whole = address_of(mappings.back()->device_address) + mappings.back()->size - first;
  auto place = platform::reserve(whole, platform::page_size());
  if (!place) return place.error();
  Range range(*place, whole);
  const uint64_t view = address_of(*place) - first;  // from the user's addresses
  for (const auto& mapping : mappings) {
    const uint64_t at = address_of(mapping->device_address);
    GPUMEM_TRY(platform::map_again(mapping->bytes, mapping->size, pointer_to(at + view)));
  }
  views_.push_back(std::move(range));
  return pointer_to(begin + view);
}

Result<void*> RunningKernel::translate(const void* address, uint64_t size, bool write) {
  std::shared_ptr<Allocation> allocation;
  bool several = false;
  {
    const Lock lock(shared_.mutex);
    allocation = shared_.table.find(address);
    if (allocation != nullptr) {
      const uint64_t offset = address_of(address) - address_of(allocation->device_address);
      several = allocation->block != nullptr && size > allocation->size - offset;
      if (!several) {
        if (size > allocation->size - offset || !may_use(lock, queue_, *allocation, write)) return nullptr;
        use(allocation);
      }
    }
  }
  if (several) return translate_mappings(address, size, write);
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
