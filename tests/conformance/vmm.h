// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Physical memory and ranges for tests: handles that clean up after themselves, and short forms of the calls.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "harness.h"

namespace conformance {

class Physical : public Owned<gpumem_physical, gpumem_physical_release> {
 public:
  using Owned::Owned;
  gpumem_physical_info info() const {
    gpumem_physical_info info = GPUMEM_PHYSICAL_INFO_INIT;
    EXPECT_OK(gpumem_physical_get_info(get(), &info, why()));
    return info;
  }
};

inline gpumem_physical_desc physical_desc(uint64_t size, gpumem_location location = GPUMEM_LOCATION_DEVICE,
                                          gpumem_handle_types handle_types = 0) {
  gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
  desc.location = location;
  desc.size = size;
  desc.handle_types = handle_types;
  return desc;
}

inline Physical create_physical(gpumem_device device, const gpumem_physical_desc& desc) {
  gpumem_physical physical = nullptr;
  EXPECT_OK(gpumem_physical_create(device, &desc, &physical, why()));
  return Physical(physical);
}

inline gpumem_access_desc device_rights(uint32_t ordinal, gpumem_access access = GPUMEM_ACCESS_READWRITE) {
  gpumem_access_desc desc = GPUMEM_ACCESS_DESC_INIT;
  desc.location = GPUMEM_LOCATION_DEVICE;
  desc.location_id = static_cast<int32_t>(ordinal);
  desc.access = access;
  return desc;
}

inline gpumem_access_desc cpu_rights(gpumem_access access = GPUMEM_ACCESS_READWRITE) {
  gpumem_access_desc desc = GPUMEM_ACCESS_DESC_INIT;
  desc.location = GPUMEM_LOCATION_HOST;
  desc.access = access;
  return desc;
}

// Its destructor also unmaps what is left, whose work must have been observed complete.
class Range : public Owned<gpumem_range, gpumem_range_release> {
 public:
  using Owned::Owned;
  Range(Range&&) noexcept = default;
  Range& operator=(Range&&) noexcept = default;
  ~Range() { clear(); }

  gpumem_range_info info() const {
    gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
    EXPECT_OK(gpumem_range_get_info(get(), &info, why()));
    return info;
  }
  uint8_t* base() const { return static_cast<uint8_t*>(info().base); }
  gpumem_status map(uint64_t offset, std::initializer_list<gpumem_physical> blocks) const {
    return gpumem_range_map(get(), offset, blocks.begin(), blocks.size(), why());
  }
  gpumem_status unmap(uint64_t offset, uint64_t size) const {
    return gpumem_range_unmap(get(), offset, size, why());
  }
  gpumem_status set_access(uint64_t offset, uint64_t size,
                           std::initializer_list<gpumem_access_desc> rights) const {
    return gpumem_range_set_access(get(), offset, size, rights.begin(), rights.size(), why());
  }

  // Unmaps mapping by mapping; each is found by trying the multiples of the granularity.
  void clear() const {
    if (get() == nullptr) return;
    gpumem_range_info now = info();
    for (uint64_t begin = 0; now.mapped_size != 0 && begin < now.size; begin += now.granularity) {
      uint64_t size = now.granularity;
      for (; begin + size <= now.size; size += now.granularity) {
        const gpumem_status status = gpumem_range_unmap(get(), begin, size, nullptr);
        if (status == GPUMEM_ERROR_INVALID_STATE) break;  // nothing begins here
        if (status == GPUMEM_ERROR_INVALID_ARGUMENT) continue;
        EXPECT_EQ(status, GPUMEM_SUCCESS) << gpumem_status_name(status);
        if (status != GPUMEM_SUCCESS) return;
        begin += size - now.granularity;
        break;
      }
      now = info();
    }
  }
};

inline gpumem_range_desc range_desc(uint64_t size) {
  gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
  desc.size = size;
  return desc;
}

inline Range reserve(gpumem_instance instance, const gpumem_range_desc& desc) {
  gpumem_range range = nullptr;
  EXPECT_OK(gpumem_range_reserve(instance, &desc, &range, why()));
  return Range(range);
}

inline gpumem_mapping_info mapping_at(gpumem_instance instance, const void* pointer) {
  gpumem_mapping_info info = GPUMEM_MAPPING_INFO_INIT;
  EXPECT_OK(gpumem_range_get_mapping(instance, pointer, &info, why()));
  return info;
}

// Whatever a mapping of this device needs: the unit of its memory, and of every range of the instance.
inline uint64_t unit_of(gpumem_device device, const gpumem_physical_desc& desc) {
  uint64_t unit = 0;
  EXPECT_OK(gpumem_physical_get_granularity(device, &desc, &unit, nullptr, why()));
  return unit;
}

inline bool has_vmm(gpumem_device device) {
  return capability(device, GPUMEM_CAPABILITY_VMM_DEVICE).value != GPUMEM_ANSWER_NO;
}

}  // namespace conformance
