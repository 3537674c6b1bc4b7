// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What all instances of a process share, where a forked child cannot get to.
#pragma once

#include <cstddef>
#include <new>

namespace gpumem::cuda {

// Made without an allocation, because the first use may be a release, which must not fail. Never destroyed,
// because the driver and other threads go on while the process exits.
template <class T>
T& process_wide() noexcept {
  alignas(T) constinit static std::byte place[sizeof(T)] = {};
  static auto* const only = new (place) T;
  return *only;
}

}  // namespace gpumem::cuda
