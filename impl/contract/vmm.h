// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The facet of virtual memory management: physical memory, reserved addresses, and what is mapped where.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "contract/memory.h"
#include "gpumem/physical.h"
#include "gpumem/range.h"

namespace gpumem::backend {

class Device;

struct PhysicalRequest {
  gpumem_location location = GPUMEM_LOCATION_DEVICE;  // of this device; or HOST or HOST_NUMA
  int32_t numa_node = -1;                             // for HOST_NUMA
  uint64_t size = 0;
  gpumem_handle_types handle_types = 0;
  gpumem_physical_flags require = 0;
  gpumem_physical_flags prefer = 0;
};

// What a handle of physical memory is, unchanged for its life.
struct PhysicalFacts {
  gpumem_location location = GPUMEM_LOCATION_DEVICE;
  int32_t location_id = -1;  // ordinal or node; -1 if it has none
  uint64_t size = 0;
  uint64_t granularity = 0;
  uint64_t block_id = 0;  // the same for every handle of the same memory, as far as the backend can tell
  gpumem_handle_types handle_types = 0;
  gpumem_physical_flags granted = 0;
  bool imported = false;

  bool on_device() const { return location == GPUMEM_LOCATION_DEVICE; }
};

// Numbers blocks of physical memory; no number is used twice in a process.
inline uint64_t next_block_id() {
  static constinit std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// A handle of physical memory. Mappings keep the memory alive without it.
class Physical {
 public:
  virtual ~Physical() = default;  // never calls a driver: release() does
  const PhysicalFacts& facts() const { return facts_; }
  virtual uint64_t native() const { return 0; }  // 0 if the backend has no native handles

  // A new file descriptor, closed on exec. The memory has this handle type.
  virtual Result<int> export_fd() = 0;
  // A handle for the fabric. The memory has this handle type.
  virtual Result<gpumem_fabric_handle> export_fabric() {
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "the memory of this backend is on no fabric");
  }
  // Succeeds if the device is lost.
  virtual Result<void> release() = 0;

 protected:
  PhysicalFacts facts_;
};

// What one processor is to have.
struct AccessChange {
  Device* device = nullptr;  // null: the CPU
  gpumem_access access = GPUMEM_ACCESS_NONE;
};

// A whole mapping whose access changes.
struct AccessPart {
  uint64_t offset = 0;
  uint64_t size = 0;
  gpumem_location location = GPUMEM_LOCATION_DEVICE;  // of the memory
  // Of the processors, in the order of the changes. A change that fails and cannot be undone leaves here what
  // is in force.
  gpumem_access* before = nullptr;
};

// Which parts of a reservation are mapped; the layers above keep it.
class Layout {
 public:
  virtual ~Layout() = default;
  // Bytes from an offset up to the end of the mapping there.
  virtual uint64_t contiguous(uint64_t offset) const = 0;
};

// Reserved addresses, from facts().device_pointer on. Offsets and sizes are those of whole mappings; the
// layers above know what is mapped. Two calls that change one reservation are never made at once.
class Reservation : public Memory {
 public:
  // Maps blocks one behind the other, all or none. No processor has access.
  virtual Result<void> map(uint64_t offset, std::span<Physical* const> blocks) = 0;
  // BUSY if the backend knows of unobserved work on the mappings there. Changes nothing.
  virtual Result<void> check_mappings_unused(uint64_t /*offset*/, uint64_t /*size*/) { return {}; }
  // BUSY as check_mappings_unused(). A failure leaves the mappings as they were, or lets the next try
  // succeed. `home` has memory that is mapped there; succeeds if it is lost.
  virtual Result<void> unmap(uint64_t offset, uint64_t size, Device& home) = 0;
  // For mappings in a row, all or nothing, if a failure can be undone. BUSY as check_mappings_unused() if
  // some is taken away.
  virtual Result<void> set_access(std::span<const AccessPart> parts,
                                  std::span<const AccessChange> changes) = 0;
  // One more handle of the memory that is mapped at an offset, and has these facts.
  virtual Result<std::unique_ptr<Physical>> retain(uint64_t offset, const PhysicalFacts& facts) = 0;

  uint64_t contiguous(uint64_t offset) const final { return layout_->contiguous(offset); }
  const Layout& layout() const { return *layout_; }
  void set_layout(const Layout& layout) { layout_ = &layout; }

 private:
  const Layout* layout_ = nullptr;
};

struct ReservationRequest {
  uint64_t size = 0;
  uint64_t alignment = 0;   // a power of two, at least the granularity
  void* address = nullptr;  // where it should begin, if not null
  bool fixed = false;       // there or not at all: ALREADY_EXISTS
};

struct Granularity {
  uint64_t minimum = 0;
  uint64_t recommended = 0;
};

class VirtualMemory {
 public:
  // Of memory with these properties. Needs no driver call once it is known.
  virtual Result<Granularity> granularity(const PhysicalRequest& request) = 0;
  virtual Result<std::unique_ptr<Physical>> create(const PhysicalRequest& request) = 0;
  // INVALID_ARGUMENT unless the descriptor is of memory as requested, as far as that can be seen.
  virtual Result<std::unique_ptr<Physical>> import_fd(const PhysicalRequest& request,
                                                      int file_descriptor) = 0;
  // INVALID_ARGUMENT unless the handle is of memory as requested, as far as that can be seen.
  virtual Result<std::unique_ptr<Physical>> import_fabric(const PhysicalRequest& /*request*/,
                                                          const gpumem_fabric_handle& /*handle*/) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED, "the devices of this backend are on no fabric");
  }
  // For memory of every device.
  virtual Result<std::unique_ptr<Reservation>> reserve(const ReservationRequest& request) = 0;

 protected:
  ~VirtualMemory() = default;
};

}  // namespace gpumem::backend
