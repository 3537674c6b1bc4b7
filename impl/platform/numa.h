// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NUMA nodes of the machine, by system calls and sysfs; no library is needed.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gpumem::platform {

bool numa_node_exists(int32_t node);
// How many nodes there are; 1 where the system knows of none.
uint32_t numa_node_count();
// Binds the pages of a mapped, untouched range to a node; UNSUPPORTED where the system has no such call,
// PERMISSION_DENIED where it forbids it.
Result<void> bind_to_node(void* address, uint64_t size, int32_t node);
// As a wish: pages that the node has no room for lie elsewhere.
void prefer_node(void* address, uint64_t size, int32_t node);
// Node of the page that holds an address, or -1 if the system does not tell.
int32_t node_of(const void* address);

}  // namespace gpumem::platform
