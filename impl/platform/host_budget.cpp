// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "platform/host_budget.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "platform/text_file.h"

namespace gpumem::platform {
namespace {

// Where a version of control groups has its folders, and what it calls its files.
struct Hierarchy {
  const char* mark;    // in /proc/self/cgroup, before the path
  const char* folder;  // of the outermost group
  const char* limit;
  const char* used;
  const char* reclaimable;  // in memory.stat
};

constexpr Hierarchy kHierarchies[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file "}};

// The path of the process's group: "/" in a container, empty where the hierarchy is not in use.
std::string group_path(const Hierarchy& hierarchy, const std::string& root) {
  TextFile file((root + "/proc/self/cgroup").c_str());
  char line[4096];
  while (file.next(line)) {
    const char* const mark = std::strstr(line, hierarchy.mark);
    const bool leads = hierarchy.mark[0] != ':';
    if (mark == nullptr || (leads && mark != line)) continue;
    const char* const path = mark + std::strlen(hierarchy.mark);
    return {path, std::strcspn(path, "\n")};
  }
  return "";
}

// The limits of the group and of all around it, up to that of the container.
void tighten(const Hierarchy& hierarchy, const std::string& root, HostBudget& budget) {
  const std::string outermost = root + hierarchy.folder;
  for (std::string folder = outermost + group_path(hierarchy, root);; folder.resize(folder.rfind('/'))) {
    const uint64_t limit = number_in((folder + "/" + hierarchy.limit).c_str(), "");
    const uint64_t used = number_in((folder + "/" + hierarchy.used).c_str(), "");
    // The kernel reclaims these pages before it kills.
    const uint64_t cached = number_in((folder + "/memory.stat").c_str(), hierarchy.reclaimable);
    if (limit != UINT64_MAX && used != UINT64_MAX) {
      const uint64_t held = used - std::min(used, cached == UINT64_MAX ? 0 : cached);
      const uint64_t left = limit - std::min(limit, held);
      if (left < budget.available) budget = {left, folder.substr(root.size()) + "/" + hierarchy.limit, true};
    }
    if (folder.size() <= outermost.size()) return;
  }
}

}  // namespace

uint64_t host_memory() {
  const uint64_t kibibytes = number_in("/proc/meminfo", "MemTotal:");
  return kibibytes > UINT64_MAX / 1024 ? UINT64_MAX / 2 : kibibytes * 1024;
}

HostBudget host_budget(const std::string& root) {
  HostBudget budget;
  const uint64_t kibibytes = number_in((root + "/proc/meminfo").c_str(), "MemAvailable:");
  if (kibibytes <= UINT64_MAX / 1024) budget = {kibibytes * 1024, "MemAvailable in /proc/meminfo", false};
  for (const Hierarchy& hierarchy : kHierarchies)
    tighten(hierarchy, root, budget);
  return budget;
}

Result<void> check_host_budget(uint64_t bytes, const std::string& root) {
  const HostBudget budget = host_budget(root);
  if (bytes <= budget.available) return {};
  return make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY,
                    "%" PRIu64 " bytes do not fit into the host's memory: %s leaves %" PRIu64 "; free some%s",
                    bytes, budget.limit.c_str(), budget.available,
                    budget.of_group ? ", or raise the limit of the control group in that file" : "")
      .with_limit(budget.of_group ? Limit::kControlGroup : Limit::kOther);
}

}  // namespace gpumem::platform
