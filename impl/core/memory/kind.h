// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kinds of memory, one row each. Code elsewhere asks for a trait and never compares kinds: a new kind is
// a new row.
#pragma once

#include <cstdint>
#include <span>

#include "contract/memory.h"
#include "gpumem/capability.h"
#include "gpumem/memory.h"
#include "gpumem/pointer.h"

namespace gpumem::core {

// A flag that needs a capability. Other flags are granted or refused by the backend in the call.
struct FlagNeed {
  gpumem_memory_flags flag;
  gpumem_capability capability;
};

struct KindTraits {
  gpumem_kind kind;
  const char* name;   // in messages and reports
  uint32_t counters;  // place in Statistics; kNotCounted if nothing of the kind is made here

  // Where the bytes lie and who reaches them.
  bool on_device = false;    // on the device of the memory; otherwise on the host
  bool peer_access = false;  // other devices reach them once peer access is enabled
  bool managed = false;      // they move, and have one address for the CPU and all devices
  bool registered =
      false;  // the bytes belong to the caller and outlive the memory; flags decide who reaches them

  // Reserved addresses: each part has a place and access of its own, or no bytes at all.
  bool in_parts = false;

  // How other processes may import it, and whether it is itself imported.
  enum class Sharing : uint8_t { kNever, kWhole, kBlocks };
  Sharing sharing = Sharing::kNever;
  bool imported = false;
  // True if sharing is possible but no backend implements it; false if it is impossible.
  bool sharing_unsupported = false;

  // What a request may ask for.
  gpumem_memory_flags flags = 0;
  std::span<const FlagNeed> flag_needs = {};
  gpumem_capability capability = 0;  // that making one needs; 0: none
  // What a backend allocates for one; none if gpumem_memory_create() does not make this kind.
  backend::MemorySort sort = backend::MemorySort::kNone;

  bool charged_as_pinned = false;  // to the pin budget
  const char* freed_by = "";       // the function that ends one by its pointer

  bool pinned() const { return charged_as_pinned; }
  bool allocated() const { return sort != backend::MemorySort::kNone; }
};

inline constexpr uint32_t kNotCounted = UINT32_MAX;
inline constexpr uint32_t kCountedKinds = 16;  // room for kinds to come

namespace kinds {
extern const KindTraits& pinned;
extern const KindTraits& registered;
extern const KindTraits& device;
extern const KindTraits& managed;
extern const KindTraits& reserved;
extern const KindTraits& imported;
extern const KindTraits& imported_host;  // the same kind, for memory of the host
extern const KindTraits& pool;
extern const KindTraits& pageable;
extern const KindTraits& foreign;
}  // namespace kinds

// The rows of all kinds.
std::span<const KindTraits> all_kinds();
// The row of a kind; null for a number that no kind has.
const KindTraits* find_kind(gpumem_kind kind);
const char* kind_name(gpumem_kind kind);

}  // namespace gpumem::core
