// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory as backends make it, and the spans of it that work is enqueued for.
#pragma once

#include <cstdint>

#include "base/arithmetic.h"
#include "base/result.h"
#include "gpumem/memory.h"

namespace gpumem::backend {

class Device;

// The sorts that backends allocate. Each has one place in a backend that makes it.
enum class MemorySort { kNone, kDevice, kPinned, kManaged };

struct MemoryRequest {
  MemorySort sort = MemorySort::kNone;
  uint64_t size = 0;
  uint64_t alignment = 0;  // 0 or a power of two
  gpumem_memory_flags require = 0;
  gpumem_memory_flags prefer = 0;
  int32_t numa_node = -1;  // for GPUMEM_MEMORY_NUMA_NODE
  // From a pool of the driver (GPUMEM_CAPABILITY_POOL_DRIVER).
  bool from_driver = false;
  uint64_t users = 0;  // of kDevice from there: bits of the ordinals of other devices that can access it
};

struct RegistrationRequest {
  void* pointer = nullptr;
  uint64_t size = 0;
  gpumem_memory_flags require = 0;
  gpumem_memory_flags prefer = 0;
};

// What a memory is, unchanged for its life.
struct MemoryFacts {
  void* host_pointer = nullptr;    // null if the CPU has no address for it
  void* device_pointer = nullptr;  // null if devices have none
  uint64_t granted_size = 0;
  gpumem_memory_flags granted = 0;
  int32_t numa_node = -1;
  // The driver's allocation, if larger than the memory in it, as for an alignment. No one else can have these
  // addresses.
  void* allocation = nullptr;
  uint64_t allocation_size = 0;
};

class Memory {
 public:
  virtual ~Memory() = default;  // never calls a driver: release() does
  const MemoryFacts& facts() const { return facts_; }

  // BUSY if the backend knows of unobserved work on it. Changes nothing.
  virtual Result<void> check_unused() { return {}; }
  // Frees the memory. A failure leaves it as it was. BUSY as check_unused(). Succeeds if the device is lost.
  virtual Result<void> release() = 0;

  // Bytes from an offset up to where the driver sees another object. No segment goes beyond (PIN-15).
  virtual uint64_t contiguous(uint64_t /*offset*/) const { return UINT64_MAX; }

 protected:
  MemoryFacts facts_;
};

// Contiguous bytes of one object, as the layers above have found them.
struct Span {
  Memory* memory = nullptr;  // null if not of this instance
  uint64_t offset = 0;       // of the first byte in `memory`
  void* address = nullptr;   // first byte: a host or a device address
  bool on_device = false;    // the bytes lie on a device, or a device accesses them
  bool pageable = false;     // ordinary memory, which no driver knows
  bool registered = false;   // memory of the caller, which may be unmapped at any time
  bool managed = false;      // one address for all; core decides which side accesses it (MAN-32)
  bool in_range = false;     // in a reservation, so that the CPU has perhaps no access
  Device* home = nullptr;    // of a segment in a reservation: the device that has the memory; null: the host

  // The span that begins `bytes` behind.
  Span after(uint64_t bytes) const {
    Span moved = *this;
    moved.offset += bytes;
    moved.address = pointer_to(address_of(address) + bytes);
    return moved;
  }
  bool host() const { return !on_device; }
};

}  // namespace gpumem::backend
