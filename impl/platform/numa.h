// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NUMA nodes of the machine, by system calls and sysfs; no library is needed.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gpumem::platform {

bool numa_node_exists(int32_t node);
// Of the calling thread, at this moment.
int32_t current_numa_node();
// Number of nodes; 1 on a system without NUMA.
uint32_t numa_node_count();
// Binds the pages of a mapped, untouched range to a node. UNSUPPORTED if the system lacks the call,
// PERMISSION_DENIED if it forbids it.
Result<void> bind_to_node(void* address, uint64_t size, int32_t node);
// Only a preference: pages go elsewhere if the node is full.
void prefer_node(void* address, uint64_t size, int32_t node);
// Processors that the calling thread may run on, of one node or, for -1, of all; at least 1.
uint32_t allowed_processors(int32_t node);
// Keeps the calling thread on the processors of a node that it may run on, if there are any. For -1 it
// changes nothing.
void stay_on_node(int32_t node);
// Node of the page at an address, or -1 if unknown.
int32_t node_of(const void* address);

}  // namespace gpumem::platform
