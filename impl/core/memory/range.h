// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Reserved addresses, and what is mapped where in them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "contract/vmm.h"
#include "core/device/device.h"
#include "core/memory/physical.h"
#include "core/memory/region.h"
#include "core/object/handles.h"

namespace gpumem::core {

class InstanceObject;

// One mapping. Only its access changes.
struct Mapping {
  Mapping(uint64_t at, const Physical& physical, size_t devices);

  const uint64_t offset;
  const uint64_t size;
  const backend::PhysicalFacts facts;
  Device& device;  // that has the memory; for host memory, a close one
  const int32_t device_ordinal;

  uint64_t end() const { return offset + size; }
  // The device that has the bytes; null: the host.
  Device* home() const { return facts.on_device() ? &device : nullptr; }
  // What a device, or the CPU if it is null, may do.
  gpumem_access access_of(const Device* processor) const {
    return access[place_of(processor)].load(std::memory_order_acquire);
  }
  void set_access(const Device* processor, gpumem_access granted) {
    access[place_of(processor)].store(granted, std::memory_order_release);
  }
  // Whether it is being unmapped: calls that begin now find nothing there.
  bool leaving() const { return ends.load(std::memory_order_acquire); }

  std::atomic<bool> ends{false};

 private:
  static size_t place_of(const Device* processor) {
    return processor == nullptr ? 0 : processor->ordinal() + size_t{1};
  }
  std::unique_ptr<std::atomic<gpumem_access>[]> access;  // of the CPU, then of each device
};

// Finds the mapping of an offset with one load: an entry for each unit of the range. Written by one thread at
// a time, read by all.
class Mappings final : public backend::Layout {
 public:
  Mappings() = default;
  ~Mappings() override;
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;
  // Call once, before anything else. Entries take memory only where something is mapped.
  Result<void> open(uint64_t size, uint64_t granularity);

  uint64_t granularity() const { return granularity_; }
  // Null where nothing is mapped. Valid while the caller uses the range, or looks.
  Mapping* find(uint64_t offset) const { return entries_[offset >> shift_].load(std::memory_order_acquire); }
  void enter(Mapping& mapping) noexcept { set(mapping, &mapping); }
  void erase(Mapping& mapping) noexcept { set(mapping, nullptr); }

  uint64_t contiguous(uint64_t offset) const override {
    const Mapping* const mapping = find(offset);
    return mapping != nullptr ? mapping->end() - offset : granularity_ - offset % granularity_;
  }

 private:
  void set(const Mapping& mapping, Mapping* value) noexcept;

  std::atomic<Mapping*>* entries_ = nullptr;
  uint64_t granularity_ = 0;  // a power of two
  int shift_ = 0;
  uint64_t bytes_ = 0;
};

class Range;

// Keeps a mapping mapped: a call that unmaps it waits. Needed to get a handle of mapped memory, because
// driver 580 crashes if the block is unmapped or replaced during that call.
class HeldMapping {
 public:
  HeldMapping(const Range& range, const Mapping& mapping);
  // False if it was unmapped, or is being unmapped.
  bool holds() const { return holds_; }

 private:
  const platform::Question question_;
  bool holds_ = false;
};

class Range final : public Region {
 public:
  static constexpr Type kType = Type::kRange;
  Range(std::shared_ptr<Context> context, Device& device, uint64_t size, std::string name);
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> may_end() override;
  Result<void> may_end_unused() override;
  Result<void> release() override;
  Discard discard() const noexcept override;
  void forget() noexcept override;

  backend::Reservation& reservation() const { return static_cast<backend::Reservation&>(backend()); }
  const Mappings& mappings() const { return mappings_; }
  uint64_t mapped_size() const { return (mapped_.load() >> kCountBits) * mappings_.granularity(); }
  uint64_t mapping_count() const { return mapped_.load() & kCountMask; }
  // The answer of gpumem_range_get_info().
  gpumem_range_info range_info() const;

  // Whether a buffer owns it: then only that may change it.
  bool owned() const { return owned_.load(std::memory_order_acquire); }
  void set_owned() noexcept { owned_.store(true, std::memory_order_release); }

 private:
  friend class NewRange;
  friend class RangeChange;

  Mappings mappings_;
  std::atomic<bool> owned_{false};
  // Units that are mapped, and number of mappings: in one word, so that they always match.
  static constexpr uint32_t kCountBits = 28;
  static constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
  uint64_t share_of(const Mapping& mapping) const {
    return (mapping.size / mappings_.granularity() << kCountBits) + 1;
  }
  std::atomic<uint64_t> mapped_{0};
  std::mutex changes_;  // during the driver's calls. Not taken by calls that use the range by its address
  std::map<uint64_t, std::unique_ptr<Mapping>> by_offset_;  // guarded by changes_
  // Unmapped, but a call may still look at them; guarded by changes_.
  std::multimap<uint64_t, std::unique_ptr<Mapping>> unmapped_;
  gpumem_range_info info_ = GPUMEM_RANGE_INFO_INIT;
};

// The unit of reservations: that of every device of the instance.
Result<uint64_t> range_granularity(Context& context);
Result<uint64_t> reserve_range(const std::shared_ptr<Context>& context, backend::ReservationRequest request,
                               std::string name);
Result<void> map_range(Ref<Range> range, uint64_t offset, const std::vector<Ref<Physical>>& physicals);
Result<void> unmap_range(Ref<Range> range, uint64_t offset, uint64_t size);
// All that is mapped, also if that is nothing.
Result<void> unmap_all(Ref<Range> range);
// Unmaps all that is mapped behind the first `known` bytes, which must be mapped or no longer be used. For a
// range that the library holds by its handle.
Result<void> unmap_from(uint64_t range, uint64_t known);
// BUSY if work that uses a part of the range was not observed complete, as far as the backend can see.
Result<void> check_range_unused(const Range& range, uint64_t offset, uint64_t size);
// Whether a processor can be given access to memory of a device (VMM-17, VMM-18). Null is the CPU.
Result<void> check_can_have(Device& home, Device* processor);

// What a processor is to have; a null device is the CPU.
struct AccessRequest {
  Device* device = nullptr;
  gpumem_access access = GPUMEM_ACCESS_NONE;
};
Result<void> set_range_access(Ref<Range> range, uint64_t offset, uint64_t size,
                              const std::vector<AccessRequest>& changes);

// The failure of a call on addresses that are reserved and have no memory.
Error not_mapped(const Range& range, uint64_t offset, const char* what = "the address",
                 Status status = GPUMEM_ERROR_INVALID_STATE);

}  // namespace gpumem::core
