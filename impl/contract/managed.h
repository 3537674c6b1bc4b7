// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Managed memory: who may use it, where it should lie, and when it moves. MemorySort::kManaged allocates it.
#pragma once

#include <cstdint>
#include <span>

#include "contract/memory.h"
#include "gpumem/managed.h"
#include "gpumem/pointer.h"

namespace gpumem::backend {

class Stream;

// A device, the host, or a NUMA node that exists. HOST_NUMA_CURRENT is resolved in core.
struct Location {
  gpumem_location type = GPUMEM_LOCATION_NONE;
  int32_t id = -1;  // -1 unless the type is DEVICE or HOST_NUMA

  bool operator==(const Location&) const = default;
};

// Bytes of one managed memory, or mapped pageable bytes where the device takes those.
struct ManagedRange {
  Span span;
  uint64_t size = 0;
  Location location;  // where to move them, if they move
};

// True of every page of a range, at one moment.
struct ManagedFacts {
  bool read_mostly = false;
  Location preferred;      // NONE if the pages differ or one has none
  Location last_prefetch;  // the same
  bool accessed_by_host = false;
  uint64_t accessed_by_devices = 0;  // bits of ordinals
};

// Core has decided that a hint can be given: streams and devices are concurrent where that matters. A hint
// that the driver lacks fails with SYMBOL_MISSING, and one that it ignores is false.
class Managed {
 public:
  // Whether the CPU and the device may use managed memory at the same time. Never changes, asks nobody.
  virtual bool concurrent() const = 0;

  // A whole memory, from its first byte; or pageable bytes.
  virtual Result<void> attach(Stream& stream, const Span& first, uint64_t size, gpumem_attach attach) = 0;
  // `location` is NONE where the advice has none.
  virtual Result<bool> advise(const Span& span, uint64_t size, gpumem_advice advice, Location location) = 0;
  virtual Result<void> prefetch(Stream& stream, const ManagedRange& range) = 0;
  // At least one range, in any order. A backend without a call for many makes one for each.
  virtual Result<void> prefetch_batch(Stream& stream, std::span<const ManagedRange> ranges) = 0;
  // Whole pages.
  virtual Result<void> discard_batch(Stream& stream, std::span<const ManagedRange> ranges) = 0;
  virtual Result<void> discard_and_prefetch_batch(Stream& stream, std::span<const ManagedRange> ranges) = 0;
  virtual Result<ManagedFacts> facts(const Span& span, uint64_t size) = 0;

 protected:
  ~Managed() = default;
};

}  // namespace gpumem::backend
