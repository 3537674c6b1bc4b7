// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The contract that every backend fills. The layers above have checked every value before they call: sizes
// are at least 1 and do not wrap, flags belong to the kind, operands lie inside their objects and do not
// overlap, the device is not known to be lost, no stream is captured. A backend checks only what it alone can
// know, and undoes the finished steps of a call that fails. Every method may be called from any thread, also
// several at once on one object.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpumem/capability.h"
#include "gpumem/copy.h"
#include "gpumem/event.h"
#include "gpumem/host.h"
#include "gpumem/instance.h"
#include "gpumem/memory.h"
#include "gpumem/pointer.h"
#include "gpumem/stream.h"

namespace gpumem::backend {

class Device;

// ---- memory ----

struct MemoryRequest {
  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;  // DEVICE, PINNED or REGISTERED
  uint64_t size = 0;
  uint64_t alignment = 0;  // 0 or a power of two; not for REGISTERED
  gpumem_memory_flags require = 0;
  gpumem_memory_flags prefer = 0;
  int32_t numa_node = -1;        // for GPUMEM_MEMORY_NUMA_NODE
  void* host_pointer = nullptr;  // REGISTERED only
};

// What a memory is, unchanged for its life.
struct MemoryFacts {
  void* host_pointer = nullptr;    // null for DEVICE
  void* device_pointer = nullptr;  // null if it has none
  uint64_t granted_size = 0;
  gpumem_memory_flags granted = 0;
  int32_t numa_node = -1;
};

class Memory {
 public:
  virtual ~Memory() = default;  // never calls a driver: release() does
  const MemoryFacts& facts() const { return facts_; }

  // BUSY if the backend knows of unobserved work on it. Changes nothing.
  virtual Result<void> check_unused() { return {}; }
  // Gives the memory back. A failure leaves it as it was. BUSY as check_unused().
  // Succeeds if the device is lost.
  virtual Result<void> release() = 0;

 protected:
  MemoryFacts facts_;
};

// One side of a copy or fill, as found by the layers above.
struct Operand {
  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;  // PAGEABLE, FOREIGN or a kind of memory made here
  std::shared_ptr<Memory> memory;          // null for PAGEABLE and FOREIGN; kept by work that runs later
  uint64_t offset = 0;                     // of the first byte in `memory`
  void* address = nullptr;                 // first byte as the caller gave it: a host or a device address
  bool on_device = false;                  // the bytes lie on a device: DEVICE, or FOREIGN that does
};

struct CopyRequest {
  Operand destination;
  Operand source;
  uint64_t destination_pitch = 0;  // meaningful if height > 1
  uint64_t source_pitch = 0;
  uint64_t width = 0;   // bytes of a row, or of the whole if height is 1
  uint64_t height = 1;  // rows
  gpumem_source_order source_order = GPUMEM_SOURCE_ORDER_STREAM;
};

struct FillRequest {
  Operand destination;
  uint64_t pitch = 0;  // meaningful if height > 1
  uint64_t width = 0;
  uint64_t height = 1;
  uint32_t value = 0;
  uint32_t value_size = 1;  // 1, 2 or 4
};

// ---- streams and events ----

class Event;

class Stream {
 public:
  virtual ~Stream() = default;  // never calls a driver: release() does

  virtual void* native() const = 0;
  virtual int32_t priority() const = 0;
  // Fails on a thread that cannot use the stream.
  virtual Result<bool> is_capturing() = 0;

  virtual Result<void> copy(const CopyRequest& request) = 0;
  virtual Result<void> fill(const FillRequest& request) = 0;
  virtual Result<void> wait_event(Event& event) = 0;
  virtual Result<void> launch_host_function(gpumem_host_function function, void* user_data) = 0;
  virtual Result<void> write_value(const Operand& word, uint64_t value, uint32_t value_size) = 0;
  virtual Result<void> wait_value(const Operand& word, uint64_t value, uint32_t value_size,
                                  gpumem_wait_condition condition) = 0;

  // True when all work that was enqueued before the call is complete; that is an observation. query() never
  // blocks.
  virtual Result<bool> query() = 0;
  virtual Result<bool> synchronize(uint64_t timeout_ns) = 0;
  // Waits for all work, as far as that spoils no capture of other code.
  virtual Result<void> drain() = 0;

  // Ends the stream, or lets go of a wrapped one. Pending work still completes. Does not block for it.
  virtual Result<void> release() = 0;
};

class Event {
 public:
  virtual ~Event() = default;  // never calls a driver: release() does

  virtual void* native() const = 0;  // null if the backend has no native events
  virtual Result<void> record(Stream& stream) = 0;
  virtual Result<bool> query() = 0;
  virtual Result<bool> synchronize(uint64_t timeout_ns) = 0;
  // From `start` to this event, in nanoseconds; both recorded (the layers above know) and of one device. No
  // value when one of them is not complete.
  virtual Result<std::optional<int64_t>> elapsed_since(Event& start) = 0;
  virtual Result<void> release() = 0;
};

// ---- devices ----

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
};

struct MemoryAvailable {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

struct Capability {
  gpumem_answer_type type = GPUMEM_ANSWER_TYPE_TRI;
  uint64_t value = 0;
  gpumem_answer_source source = GPUMEM_ANSWER_FROM_CONTRACT;
  Status status = GPUMEM_SUCCESS;  // what a call that needs it gets; not success exactly when a TRI is NO
  bool passing = false;            // the same question may get another answer later
  gpumem_native_domain native_domain = GPUMEM_NATIVE_NONE;
  int32_t native_code = 0;
  const char* native_name = "";  // texts behind pointers are constants
  const char* entry_point = "";
  char reason[256] = "";

  // What the driver or the system said.
  void set_native(const Error& error) {
    native_domain = error.native_domain;
    native_code = error.native_code;
    native_name = error.native_name;
    entry_point = error.entry_point;
  }
};

class Device {
 public:
  virtual ~Device() = default;
  const DeviceFacts& facts() const { return facts_; }

  // Whether a call has found the device unusable; from then on for ever.
  virtual bool lost() const = 0;
  virtual Result<MemoryAvailable> memory_available() = 0;

  virtual Result<std::shared_ptr<Memory>> create_memory(const MemoryRequest& request) = 0;
  virtual Result<std::shared_ptr<Stream>> create_stream(int32_t priority) = 0;
  virtual Result<std::shared_ptr<Stream>> wrap_stream(void* native) = 0;
  // Waits until the work of streams that were released with work pending is complete.
  virtual Result<void> await_released_streams() = 0;
  virtual Result<std::shared_ptr<Event>> create_event(gpumem_event_flags flags) = 0;
  virtual Result<std::shared_ptr<Event>> wrap_event(void* native, gpumem_event_flags flags) = 0;

  // The address at which this device reaches a byte of foreign host memory; for memory made here the facts
  // tell.
  virtual Result<void*> foreign_device_pointer(const void* pointer) = 0;

  virtual Result<bool> can_access_peer(Device& peer) = 0;
  // True if the backend has switched the access on, here or for another of its instances: then it is to be
  // disabled once. False if other code had done so. The calls of one instance are counted above.
  virtual Result<bool> enable_peer_access(Device& peer) = 0;
  virtual Result<void> disable_peer_access(Device& peer) = 0;

  // Finds out by attribute or trial; the layers above keep the answer. `peer` only for the peer capabilities.
  virtual Capability capability(gpumem_capability capability, Device* peer) = 0;

 protected:
  DeviceFacts facts_;
};

// ---- host-only functions (gpumem/host.h); the cuda backend has none ----

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
  virtual Result<void> native_stream_destroy(Device& device, void* native) = 0;
  virtual void set_capturing(Stream& stream, bool capturing) = 0;
  virtual void lose(Device& device) = 0;
  virtual void fail_step(uint64_t step, bool repeat) = 0;
  virtual Result<void*> foreign_alloc(Device& device, gpumem_kind kind, uint64_t size) = 0;
  virtual Result<void> foreign_free(Device& device, void* pointer) = 0;
  virtual Result<void> foreign_peer_access(Device& device, Device& peer, bool enabled) = 0;

 protected:
  ~Simulation() = default;
};

// ---- backends ----

// What the driver knows about an address that the registry does not know. Kind FOREIGN, or UNKNOWN for a
// stranger.
struct PointerFacts {
  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;
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
  std::string peers = "all";
  std::string masked;
};

struct OpenRequest {
  HostOptions host;
  std::vector<void*> cuda_contexts;
};

// An opened backend. Destroying it gives back what it holds of the driver; everything made through it is gone
// before.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual gpumem_backend kind() const = 0;
  virtual int32_t driver_version() const = 0;
  virtual bool strict() const = 0;
  virtual const std::vector<std::unique_ptr<Device>>& devices() const = 0;
  virtual bool has_numa_node(int32_t node) const = 0;
  virtual uint64_t file_descriptors() const = 0;  // held open now
  virtual Result<PointerFacts> pointer_facts(const void* pointer) = 0;
  virtual Simulation* simulation() = 0;  // null if it has none
};

}  // namespace gpumem::backend
