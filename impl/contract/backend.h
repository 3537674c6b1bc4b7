// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The contract that every backend fills. The layers above have checked every value before they call: sizes
// are at least 1 and do not wrap, flags belong to the kind, spans lie inside their objects and do not
// overlap, the device is not known to be lost, no stream is captured. A backend checks only what it alone can
// know, and undoes the finished steps of a call that fails. Every method may be called from any thread, also
// several at once on one object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contract/device.h"
#include "contract/simulation.h"
#include "gpumem/base.h"
#include "gpumem/host.h"
#include "gpumem/instance.h"
#include "gpumem/pointer.h"

namespace gpumem::backend {

// What the driver knows about an address outside all regions.
struct PointerFacts {
  bool known = false;  // memory of other code; all else means something only then
  gpumem_location location = GPUMEM_LOCATION_NONE;
  int32_t location_id = -1;
  int32_t device_ordinal = -1;
  void* host_pointer = nullptr;
  void* device_pointer = nullptr;
  void* base = nullptr;
  uint64_t size = 0;
  uint64_t buffer_id = 0;
};

struct ProbeFacts {
  gpumem_backend backend = GPUMEM_BACKEND_ANY;
  int32_t driver_version = 0;
  uint32_t device_count = 0;
  std::string name;
};

// gpumem_host_options with owned texts, not yet checked: the host backend does that.
struct HostOptions {
  uint32_t device_count = 0;
  gpumem_toggle strict = GPUMEM_TOGGLE_DEFAULT;
  uint64_t device_bytes = 0;
  uint64_t granularity = 0;
  gpumem_toggle pageable = GPUMEM_TOGGLE_DEFAULT;
  gpumem_toggle same_pointer = GPUMEM_TOGGLE_DEFAULT;
  int32_t lock_mode = GPUMEM_HOST_LOCK_DEFAULT;
  uint32_t numa_nodes = 0;
  uint64_t register_count_max = 0;
  uint64_t lock_piece = 0;
  uint32_t quarantine = 0;
  gpumem_toggle fill = GPUMEM_TOGGLE_DEFAULT;
  gpumem_toggle compressible = GPUMEM_TOGGLE_DEFAULT;
  uint64_t vmm_granularity = 0;
  std::string peers = "all";
  std::string masked;
  gpumem_toggle concurrent = GPUMEM_TOGGLE_DEFAULT;
};

struct OpenRequest {
  HostOptions host;
  std::vector<void*> cuda_contexts;
};

// An opened backend. Destroying it releases what it holds of the driver; everything made through it is gone
// before.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual gpumem_backend kind() const = 0;
  virtual int32_t driver_version() const = 0;
  virtual bool strict() const = 0;
  virtual const std::vector<std::unique_ptr<Device>>& devices() const = 0;
  virtual bool has_numa_node(int32_t node) const = 0;
  virtual Result<PointerFacts> pointer_facts(const void* pointer) = 0;
  virtual Simulation* simulation() { return nullptr; }  // null if it has none
  // Call before closing: from then on, waits for records of other processes end within a second, where
  // possible. Work enqueued behind them does not run.
  virtual void stop_waiting_for_others() noexcept {}
};

}  // namespace gpumem::backend
