// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Devices as backends make them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "contract/capability.h"
#include "contract/event.h"
#include "contract/managed.h"
#include "contract/memory.h"
#include "contract/sharing.h"
#include "contract/stream.h"
#include "contract/vmm.h"

namespace gpumem::backend {

struct DeviceFacts {
  uint32_t ordinal = 0;
  int32_t numa_node = -1;
  uint64_t total_bytes = 0;
  std::array<uint8_t, 16> uuid{};
  uint32_t pci_domain = 0;
  uint32_t pci_bus = 0;
  uint32_t pci_device = 0;
  int32_t compute_major = 0;
  int32_t compute_minor = 0;
  std::string pci_id;
  std::string name;
  uint64_t pitch_max = UINT64_MAX;  // of a copy in two dimensions
  // Copies from host memory to host memory in a range are done by the CPU where that has any access.
  bool copies_by_cpu = false;
  // The driver copies ordinary memory through page-locked memory with one thread; more threads are faster.
  bool stages_ordinary = false;
};

struct MemoryAvailable {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  const DeviceFacts& facts() const { return facts_; }

  // Whether a call has found the device unusable; from then on for ever. Not virtual, as every call asks.
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  virtual Result<MemoryAvailable> memory_available() = 0;
  // Gives back what is kept for graphs with nodes that allocate; answers the bytes.
  virtual Result<uint64_t> trim_graphs() { return uint64_t{0}; }
  // UNSUPPORTED if the driver has no pools of the memory that such requests ask for, of any size.
  virtual Result<void> open_driver_pool(const MemoryRequest& /*request*/) { return {}; }

  virtual Result<std::unique_ptr<Memory>> create_memory(const MemoryRequest& request) = 0;
  virtual Result<std::unique_ptr<Memory>> register_memory(const RegistrationRequest& request) = 0;
  virtual Result<std::shared_ptr<Stream>> create_stream(int32_t priority) = 0;
  virtual Result<std::shared_ptr<Stream>> wrap_stream(void* native) = 0;
  // Waits for all work of the device that this process has enqueued. INVALID_STATE if a stream is being
  // captured, and that may spoil the capture.
  virtual Result<void> synchronize() = 0;
  // Waits until the work of streams that were released with work pending is complete.
  virtual Result<void> await_released_streams() = 0;
  virtual Result<std::shared_ptr<Event>> create_event(gpumem_event_flags flags) = 0;
  virtual Result<std::shared_ptr<Event>> wrap_event(void* native, gpumem_event_flags flags) = 0;

  // The address at which this device reaches a byte of foreign host memory; for memory made here the facts
  // say.
  virtual Result<void*> foreign_device_pointer(const void* pointer) = 0;

  virtual Result<bool> can_access_peer(Device& peer) = 0;
  // True if the backend enabled the access, for this or another instance: then disable it once. False if
  // other code had enabled it. Core counts the calls of one instance.
  virtual Result<bool> enable_peer_access(Device& peer) = 0;
  virtual Result<void> disable_peer_access(Device& peer) = 0;

  // Finds out by attribute or trial; the layers above keep the answer. `peer` only for the peer capabilities.
  virtual Capability capability(gpumem_capability capability, Device* peer) = 0;

  // Facets: null where the device has no such thing.
  virtual Managed* managed() { return nullptr; }
  virtual VirtualMemory* vmm() { return nullptr; }
  virtual Sharing* sharing() { return nullptr; }

 protected:
  DeviceFacts facts_;
  std::atomic<bool> lost_{false};
};

}  // namespace gpumem::backend
