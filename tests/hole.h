// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory in which a test makes holes.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace gpumem::test {

// New pages of the process. Where some of them are unmapped later, nothing else comes: the kernel fills the
// highest gap that is large enough first, and one lies right above the pages.
inline void* map_below_gap(uint64_t size, int protection = PROT_READ | PROT_WRITE) {
  constexpr uint64_t kGap = uint64_t{16} << 20;
  void* const base = mmap(nullptr, size + kGap, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base != MAP_FAILED) munmap(static_cast<char*>(base) + size, kGap);
  return base;
}

}  // namespace gpumem::test
