// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "platform/pages.h"
#include "platform/text_file.h"

namespace gpumem::platform {

namespace {

constexpr int32_t kNodesMax = 1024;  // the kernel's maximum

bool set_policy(void* address, uint64_t size, int policy, int32_t node) {
  constexpr auto kBits = static_cast<int32_t>(8 * sizeof(unsigned long));
  std::array<unsigned long, kNodesMax / kBits> mask{};
  mask.at(static_cast<size_t>(node / kBits)) = 1UL << (node % kBits);
  // The kernel ignores the last bit of the count it is given.
  return syscall(SYS_mbind, address, size, policy, mask.data(), kNodesMax + 1L, 0) == 0;
}

}  // namespace

bool numa_node_exists(int32_t node) {
  if (node < 0 || node >= kNodesMax) return false;
  char path[64];
  std::snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
  if (access(path, F_OK) == 0) return true;
  return node == 0 && access("/sys/devices/system/node/node0", F_OK) != 0;
}

int32_t current_numa_node() {
  unsigned node = 0;
  if (syscall(SYS_getcpu, nullptr, &node, nullptr) != 0) return 0;
  return static_cast<int32_t>(node);
}

uint32_t numa_node_count() {
  // Not an initialized static: a child forked during its initialization would wait forever.
  static constinit std::atomic<uint32_t> known{0};
  uint32_t count = known.load(std::memory_order_relaxed);
  if (count != 0) return count;
  for (int32_t node = 0; node < 64; ++node) {
    if (numa_node_exists(node)) ++count;
  }
  count = std::max(count, 1U);
  known.store(count, std::memory_order_relaxed);
  return count;
}

Result<void> bind_to_node(void* address, uint64_t size, int32_t node) {
  if (set_policy(address, size, MPOL_BIND, node)) return {};
  const int error = errno;
  const Status status = error == ENOMEM  ? GPUMEM_ERROR_OUT_OF_HOST_MEMORY
                        : error == EPERM ? GPUMEM_ERROR_PERMISSION_DENIED
                                         : GPUMEM_ERROR_UNSUPPORTED;
  return system_error(status, error, "mbind", "cannot bind the memory to the NUMA node");
}

void prefer_node(void* address, uint64_t size, int32_t node) {
  set_policy(address, size, MPOL_PREFERRED, node);
}

namespace {

// By number, because the C library's function differs between C libraries in what it answers.
bool allowed_set(cpu_set_t* set) {
  CPU_ZERO(set);
  return syscall(SYS_sched_getaffinity, 0, sizeof *set, set) > 0;
}

// Takes away what does not belong to the node: its file has ranges such as 0-15,32-47.
bool keep_node(int32_t node, cpu_set_t* set) {
  char path[64];
  std::snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
  TextFile file(path);
  char line[4096];
  if (!file.next(line)) return false;
  cpu_set_t own;
  CPU_ZERO(&own);
  for (const char* at = line; at != nullptr; at = std::strchr(at, ',')) {
    if (*at == ',') ++at;
    unsigned first = 0;
    unsigned last = 0;
    const int read = std::sscanf(at, "%u-%u", &first, &last);
    if (read < 1) break;
    for (unsigned each = first; each <= (read == 2 ? last : first) && each < CPU_SETSIZE; ++each)
      CPU_SET(each, &own);
  }
  CPU_AND(set, set, &own);
  return CPU_COUNT(set) > 0;
}

}  // namespace

uint32_t allowed_processors(int32_t node) {
  cpu_set_t set;
  if (!allowed_set(&set)) return 1;
  const auto all = static_cast<uint32_t>(CPU_COUNT(&set));
  if (node < 0 || numa_node_count() < 2 || !keep_node(node, &set)) return std::max(all, 1U);
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

void stay_on_node(int32_t node) {
  cpu_set_t set;
  if (node < 0 || !allowed_set(&set) || !keep_node(node, &set)) return;
  (void)syscall(SYS_sched_setaffinity, 0, sizeof set, &set);
}

int32_t node_of(const void* address) {
  int node = -1;
  if (syscall(SYS_get_mempolicy, &node, nullptr, 0UL, address, MPOL_F_NODE | MPOL_F_ADDR) != 0) return -1;
  return node;
}

}  // namespace gpumem::platform
