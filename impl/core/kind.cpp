// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/kind.h"

#include "contract/device.h"

namespace gpumem::core {
namespace {

constexpr std::array kPinnedNeeds{
    FlagNeed{GPUMEM_MEMORY_WRITE_COMBINED, GPUMEM_CAPABILITY_PIN_WRITE_COMBINED},
    FlagNeed{GPUMEM_MEMORY_NUMA_NODE, GPUMEM_CAPABILITY_PIN_NUMA},
};
constexpr std::array kRegisteredNeeds{
    FlagNeed{GPUMEM_MEMORY_IOMEMORY, GPUMEM_CAPABILITY_PIN_REGISTER_IOMEMORY},
    FlagNeed{GPUMEM_MEMORY_READ_ONLY, GPUMEM_CAPABILITY_PIN_REGISTER_READ_ONLY},
};

Result<std::unique_ptr<backend::Memory>> allocate_device(backend::Device& device,
                                                         const backend::MemoryRequest& request) {
  return device.create_device_memory(request);
}

Result<std::unique_ptr<backend::Memory>> allocate_pinned(backend::Device& device,
                                                         const backend::MemoryRequest& request) {
  return device.create_pinned_memory(request);
}

constexpr std::array kKinds{
    KindTraits{.kind = GPUMEM_KIND_DEVICE,
               .name = "device",
               .counters = 0,
               .on_device = true,
               .peer_access = true,
               .allocate = allocate_device,
               .freed_by = "gpumem_free"},
    KindTraits{.kind = GPUMEM_KIND_PINNED,
               .name = "pinned",
               .counters = 1,
               .flags = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_WRITE_COMBINED |
                        GPUMEM_MEMORY_PAGE_LOCKED | GPUMEM_MEMORY_NUMA_NODE,
               .flag_needs = kPinnedNeeds,
               .allocate = allocate_pinned,
               .charged_as_pinned = true,
               .freed_by = "gpumem_free"},
    KindTraits{.kind = GPUMEM_KIND_REGISTERED,
               .name = "registered",
               .counters = 2,
               .registered = true,
               .flags = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY |
                        GPUMEM_MEMORY_IOMEMORY | GPUMEM_MEMORY_PAGE_LOCKED,
               .flag_needs = kRegisteredNeeds,
               .capability = GPUMEM_CAPABILITY_PIN_REGISTER,
               .charged_as_pinned = true,
               .freed_by = "gpumem_unregister"},
    KindTraits{.kind = GPUMEM_KIND_PAGEABLE, .name = "pageable", .counters = kNotCounted},
    KindTraits{.kind = GPUMEM_KIND_FOREIGN, .name = "foreign", .counters = kNotCounted},
    KindTraits{.kind = GPUMEM_KIND_UNKNOWN, .name = "unknown", .counters = kNotCounted},
};

}  // namespace

constinit const KindTraits& kinds::device = kKinds[0];
constinit const KindTraits& kinds::pinned = kKinds[1];
constinit const KindTraits& kinds::registered = kKinds[2];
constinit const KindTraits& kinds::pageable = kKinds[3];
constinit const KindTraits& kinds::foreign = kKinds[4];

const KindTraits* find_kind(gpumem_kind kind) {
  for (const KindTraits& row : kKinds) {
    if (row.kind == kind) return &row;
  }
  return nullptr;
}

const char* kind_name(gpumem_kind kind) {
  const KindTraits* const row = find_kind(kind);
  return row != nullptr ? row->name : "unknown";
}

}  // namespace gpumem::core
