// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "access.h"

#include <algorithm>
#include <vector>

#include "calls.h"

namespace bench {
namespace {

// Memory of each side, and how it is given back.
struct Pair {
  void* ours = nullptr;
  void* raw = nullptr;
  Call free;
};

struct Way {
  const char* name;
  Pair (*make)(const Scene& scene, uint64_t size);
};

void* device_pointer_of(gpumem_memory memory) {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  must(gpumem_memory_get_info, memory, &info);
  return info.device_pointer;
}

Pair allocated(const Scene& scene, uint64_t size, gpumem_kind kind, gpumem_memory_flags flags = 0) {
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = kind;
  desc.require = flags;
  desc.size = size;
  gpumem_memory memory = nullptr;
  must(gpumem_memory_create, scene.device, &desc, &memory);
  void* const raw = scene.raw.allocate(kind, flags, size);
  return {device_pointer_of(memory), raw, [memory, raw, kind, size, &scene] {
            scene.raw.free(kind, raw, size);
            must(gpumem_memory_destroy, memory);
          }};
}

Pair registered(const Scene& scene, uint64_t size) {
  void* const ours = std::aligned_alloc(2 * kMiB, size);
  void* const raw = std::aligned_alloc(2 * kMiB, size);
  if (ours == nullptr || raw == nullptr) fail("no memory");
  std::fill_n(static_cast<char*>(ours), size, 1);
  std::fill_n(static_cast<char*>(raw), size, 1);
  gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
  desc.require = GPUMEM_MEMORY_MAPPED;
  desc.pointer = ours;
  desc.size = size;
  gpumem_memory memory = nullptr;
  must(gpumem_memory_register, scene.device, &desc, &memory);
  scene.raw.pin(raw, size);
  return {device_pointer_of(memory), raw, [=, &scene] {
            scene.raw.unpin(raw, size);
            must(gpumem_memory_destroy, memory);
            std::free(ours);
            std::free(raw);
          }};
}

// Beside memory that the driver allocates on the device.
Pair beside_device(const Scene& scene, uint64_t size, void* ours, const Call& free) {
  void* const raw = scene.raw.allocate(GPUMEM_KIND_DEVICE, 0, size);
  return {ours, raw, [raw, size, free, &scene] {
            scene.raw.free(GPUMEM_KIND_DEVICE, raw, size);
            free();
          }};
}

Pair buffer(const Scene& scene, uint64_t size) {
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = size;
  gpumem_buffer made = nullptr;
  must(gpumem_buffer_create, scene.device, &desc, &made);
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  must(gpumem_buffer_get_info, made, &info);
  return beside_device(scene, size, info.base, [made] { must(gpumem_buffer_destroy, made); });
}

Pair range(const Scene& scene, uint64_t size) {
  gpumem_physical_desc of_block = GPUMEM_PHYSICAL_DESC_INIT;
  of_block.size = size;
  gpumem_physical block = nullptr;
  must(gpumem_physical_create, scene.device, &of_block, &block);
  gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
  desc.size = size;
  gpumem_range made = nullptr;
  must(gpumem_range_reserve, scene.instance, &desc, &made);
  must(gpumem_range_map, made, uint64_t{0}, &block, size_t{1});
  must(gpumem_physical_release, block);  // the range keeps it
  gpumem_access_desc access = GPUMEM_ACCESS_DESC_INIT;
  access.location = GPUMEM_LOCATION_DEVICE;
  access.access = GPUMEM_ACCESS_READWRITE;
  must(gpumem_range_set_access, made, uint64_t{0}, size, &access, size_t{1});
  gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
  must(gpumem_range_get_info, made, &info);
  return beside_device(scene, size, info.base, [made, size] {
    must(gpumem_range_unmap, made, uint64_t{0}, size);
    must(gpumem_range_release, made);
  });
}

constexpr Way kWays[] = {
    {"pinned", [](const Scene& scene, uint64_t size) { return allocated(scene, size, GPUMEM_KIND_PINNED); }},
    {"write_combined",
     [](const Scene& scene, uint64_t size) {
       return allocated(scene, size, GPUMEM_KIND_PINNED, GPUMEM_MEMORY_WRITE_COMBINED);
     }},
    {"registered", registered},
    {"device", [](const Scene& scene, uint64_t size) { return allocated(scene, size, GPUMEM_KIND_DEVICE); }},
    // The first access brings it to the device, where it stays.
    {"managed",
     [](const Scene& scene, uint64_t size) { return allocated(scene, size, GPUMEM_KIND_MANAGED); }},
    {"buffer", buffer},
    {"range", range}};

}  // namespace

void access(const Scene& scene) {
  if (!scene.raw.has_kernels()) {
    note("access is left out: there is no kernel here that could read or write");
    return;
  }
  const uint64_t size = scene.runner.smoke() ? 2 * kMiB : 256 * kMiB;
  for (const Way& way : kWays) {
    for (const bool write : {false, true}) {
      const std::string name =
          std::string("access/") + (write ? "write/" : "read/") + way.name + "/" + text_of(size);
      if (!scene.runner.wanted(name)) continue;
      const Pair pair = way.make(scene, size);
      scene.runner.rate(
          name, size, [&] { scene.raw.run_kernel(pair.ours, size, write); },
          [&] { scene.raw.run_kernel(pair.raw, size, write); });
      pair.free();
    }
  }
  const std::string copy = "access/copy/range/" + text_of(size);
  if (!scene.runner.wanted(copy)) return;
  const Pair from = range(scene, size);
  const Pair to = range(scene, size);
  scene.runner.rate(
      copy, size,
      [&] { must_succeed(gpumem_copy(scene.instance, to.ours, from.ours, size, nullptr, nullptr)); },
      [&] { scene.raw.copy(to.raw, from.raw, size); });
  from.free();
  to.free();
}

}  // namespace bench
