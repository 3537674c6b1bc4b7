// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/kind.h"

#include <array>
#include <cstddef>

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

constexpr std::array kManagedNeeds{
    FlagNeed{GPUMEM_MEMORY_OVERSUBSCRIBE, GPUMEM_CAPABILITY_MANAGED_CONCURRENT},
};

constexpr std::array kDeviceNeeds{
    FlagNeed{GPUMEM_MEMORY_SHAREABLE, GPUMEM_CAPABILITY_SHARE_LEGACY},
};

constexpr std::array kKinds{
    KindTraits{.kind = GPUMEM_KIND_DEVICE,
               .name = "device",
               .counters = 0,
               .on_device = true,
               .peer_access = true,
               .sharing = KindTraits::Sharing::kWhole,
               .flags = GPUMEM_MEMORY_SHAREABLE,
               .flag_needs = kDeviceNeeds,
               .sort = backend::MemorySort::kDevice,
               .freed_by = "gpumem_free()"},
    KindTraits{.kind = GPUMEM_KIND_PINNED,
               .name = "pinned",
               .counters = 1,
               .sharing_unsupported = true,
               .flags = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_WRITE_COMBINED |
                        GPUMEM_MEMORY_PAGE_LOCKED | GPUMEM_MEMORY_NUMA_NODE | GPUMEM_MEMORY_IN_PIECES,
               .flag_needs = kPinnedNeeds,
               .sort = backend::MemorySort::kPinned,
               .charged_as_pinned = true,
               .freed_by = "gpumem_free()"},
    KindTraits{.kind = GPUMEM_KIND_REGISTERED,
               .name = "registered",
               .counters = 2,
               .registered = true,
               .flags = GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY |
                        GPUMEM_MEMORY_IOMEMORY | GPUMEM_MEMORY_PAGE_LOCKED | GPUMEM_MEMORY_IN_PIECES,
               .flag_needs = kRegisteredNeeds,
               .capability = GPUMEM_CAPABILITY_PIN_REGISTER,
               .charged_as_pinned = true,
               .freed_by = "gpumem_unregister()"},
    KindTraits{.kind = GPUMEM_KIND_MANAGED,
               .name = "managed",
               .counters = 3,
               .managed = true,
               .flags = GPUMEM_MEMORY_ATTACH_HOST | GPUMEM_MEMORY_OVERSUBSCRIBE,
               .flag_needs = kManagedNeeds,
               .capability = GPUMEM_CAPABILITY_MANAGED,
               .sort = backend::MemorySort::kManaged,
               .freed_by = "gpumem_free()"},
    KindTraits{.kind = GPUMEM_KIND_VIRTUAL,
               .name = "virtual",
               .counters = 4,
               .in_parts = true,
               .sharing = KindTraits::Sharing::kBlocks,
               .freed_by = "gpumem_range_release()"},
    KindTraits{.kind = GPUMEM_KIND_IMPORTED,
               .name = "imported",
               .counters = 5,
               .on_device = true,
               .imported = true,
               .flags = GPUMEM_MEMORY_READ_ONLY,
               .freed_by = "gpumem_memory_destroy()"},
    KindTraits{
        .kind = GPUMEM_KIND_POOL, .name = "pool", .counters = kNotCounted, .freed_by = "gpumem_pool_free()"},
    KindTraits{.kind = GPUMEM_KIND_PAGEABLE, .name = "pageable", .counters = kNotCounted},
    KindTraits{.kind = GPUMEM_KIND_FOREIGN, .name = "foreign", .counters = kNotCounted},
    KindTraits{.kind = GPUMEM_KIND_UNKNOWN, .name = "unknown", .counters = kNotCounted},
};

// Does not compile for a kind without a row.
constexpr const KindTraits& row_of(gpumem_kind kind) {
  size_t index = 0;
  while (kKinds.at(index).kind != kind)
    ++index;
  return kKinds.at(index);
}

constexpr KindTraits kImportedHost = [] {
  KindTraits row = row_of(GPUMEM_KIND_IMPORTED);
  row.on_device = false;
  return row;
}();

}  // namespace

constinit const KindTraits& kinds::device = row_of(GPUMEM_KIND_DEVICE);
constinit const KindTraits& kinds::managed = row_of(GPUMEM_KIND_MANAGED);
constinit const KindTraits& kinds::pinned = row_of(GPUMEM_KIND_PINNED);
constinit const KindTraits& kinds::registered = row_of(GPUMEM_KIND_REGISTERED);
constinit const KindTraits& kinds::reserved = row_of(GPUMEM_KIND_VIRTUAL);
constinit const KindTraits& kinds::imported = row_of(GPUMEM_KIND_IMPORTED);
constinit const KindTraits& kinds::imported_host = kImportedHost;
constinit const KindTraits& kinds::pool = row_of(GPUMEM_KIND_POOL);
constinit const KindTraits& kinds::pageable = row_of(GPUMEM_KIND_PAGEABLE);
constinit const KindTraits& kinds::foreign = row_of(GPUMEM_KIND_FOREIGN);

std::span<const KindTraits> all_kinds() { return kKinds; }

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
