// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Virtual memory management: reservations, physical blocks, mappings and access. A reservation stays
// inaccessible to the CPU, except where a host block is mapped and the host was given access.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace fake {
namespace {

bool is_host_location(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// The device of a valid set of properties, null for the host.
Device* check_properties(const CUmemAllocationProp* properties) {
  require(properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
  const CUmemLocation& location = properties->location;
  const unsigned handles = properties->requestedHandleTypes;
  require((handles & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC}) == 0);
  require((handles & CU_MEM_HANDLE_TYPE_FABRIC) == 0 || knows_fabric());
  require(properties->win32HandleMetaData == nullptr);
  const auto& extra = properties->allocFlags;
  require(extra.compressionType <= CU_MEM_ALLOCATION_COMP_GENERIC);
  require(std::all_of(std::begin(extra.reserved), std::end(extra.reserved),
                      [](unsigned char byte) { return byte == 0; }));
  const Device& any = *driver().devices[0];
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    Device& device = find_device(location.id);
    require(attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0,
            CUDA_ERROR_NOT_SUPPORTED);
    return &device;
  }
  require(is_host_location(location.type));
  bool numa = location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  require(numa || handles == CU_MEM_HANDLE_TYPE_NONE);
  require(!numa || location.id == 0);
  int needed = numa ? CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
                    : CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  require(attribute(any, needed) != 0, CUDA_ERROR_NOT_SUPPORTED);
  return nullptr;
}

std::shared_ptr<Block> find_block(CUmemGenericAllocationHandle handle) {
  auto found = driver().blocks.find(handle);
  if (found == driver().blocks.end()) violation("stale-handle", "physical block");
  require(found != driver().blocks.end());
  return found->second;
}

CUmemGenericAllocationHandle next_block_handle() { return 0x20000 + 16 * next_id(); }

void uncharge_if_unused(Block& block) {
  if (block.handles == 0 && block.mappings == 0 && block.device != nullptr && !block.imported)
    block.device->used -= block.size;
}

// An exported file is known in other processes by its name, which says where the memory lies.
constexpr const char* kBlockName = "fake_cuda-block-%d-%d";

std::string name_of(const CUmemLocation& location) {
  char name[64];
  std::snprintf(name, sizeof(name), kBlockName, static_cast<int>(location.type), location.id);
  return name;
}

bool find_location(int file, CUmemLocation* location) {
  char path[64];
  char link[128] = {};
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
  if (readlink(path, link, sizeof(link) - 1) <= 0) return false;
  int type = 0;
  if (std::sscanf(link, "/memfd:fake_cuda-block-%d-%d", &type, &location->id) != 2) return false;
  location->type = static_cast<CUmemLocationType>(type);
  return true;
}

void require_imex() { require(driver().config.imex, CUDA_ERROR_NOT_PERMITTED); }

// What a fabric handle says here: which file of which process it stands for. It keeps nothing alive.
struct FabricHandle {
  static constexpr uint64_t kMagic = 0x6361664b45464143;
  uint64_t magic;
  int64_t process;
  int64_t file;
  uint64_t inode;
  uint64_t rest[4];  // zeros
};
static_assert(sizeof(FabricHandle) == sizeof(CUmemFabricHandle));

// A new descriptor of a file that a fabric handle stands for.
int open_fabric(const void* shared) {
  FabricHandle handle;
  std::memcpy(&handle, shared, sizeof(handle));
  bool whole =
      std::all_of(std::begin(handle.rest), std::end(handle.rest), [](uint64_t word) { return word == 0; });
  require(whole && handle.magic == FabricHandle::kMagic);
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%" PRId64 "/fd/%" PRId64, handle.process, handle.file);
  int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  require(file >= 0);
  struct stat status = {};
  if (fstat(file, &status) == 0 && status.st_ino == handle.inode) return file;
  close(file);
  throw Failure{CUDA_ERROR_INVALID_VALUE};
}

// The mappings that [address, address + size) is exactly made of.
std::vector<std::shared_ptr<Memory>> whole_mappings(uintptr_t address, size_t size) {
  require(size != 0 && address + size > address);
  std::vector<std::shared_ptr<Memory>> mappings;
  uintptr_t reached = address;
  while (reached < address + size) {
    Located found = locate(reached);
    require(found.memory != nullptr && found.memory->kind == Kind::kMapping && found.offset == 0);
    mappings.push_back(found.memory);
    reached += found.memory->size;
  }
  require(reached == address + size);
  return mappings;
}

// Puts the CPU's view of a mapping in step with the host's access.
void apply_cpu_view(const Memory& mapping) {
  unsigned long long rights = rights_of(mapping, Memory::kHost);
  auto* address = reinterpret_cast<void*>(mapping.address);
  void* mapped = nullptr;
  if (rights == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    mapped = mmap(address, mapping.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                  -1, 0);
  } else {
    int protection = rights == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE;
    mapped = mmap(address, mapping.size, protection, MAP_SHARED | MAP_FIXED, mapping.backing->file, 0);
  }
  require(mapped != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  madvise(address, mapping.size, MADV_DONTFORK);
}

// Which processor a location names for one mapping, as a key of Memory::access.
int processor_of(const CUmemLocation& location, const Memory& mapping) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    bool known = location.id >= 0 && static_cast<size_t>(location.id) < driver().devices.size();
    require(known);
    const Device& device = find_device(location.id);
    const Device* home = mapping.block->device;
    bool reachable = home == nullptr || home == &device || can_access_peer(device, *home);
    require(reachable, CUDA_ERROR_INVALID_DEVICE);
    return device.ordinal;
  }
  require(is_host_location(location.type));
  require(mapping.block->device == nullptr, CUDA_ERROR_NOT_SUPPORTED);
  return Memory::kHost;
}

}  // namespace

size_t reservation_around(uintptr_t address, uintptr_t* base) {
  const auto& all = driver().reservations;
  auto next = all.upper_bound(address);
  if (next == all.begin()) return 0;
  const auto& [start, size] = *std::prev(next);
  if (address - start >= size) return 0;
  *base = start;
  return size;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  require(granularity != nullptr && properties != nullptr);
  require(option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  *granularity = driver().config.granularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  require(address != nullptr && flags == 0);
  require(size != 0 && size % driver().config.granularity == 0 && hint % kPage == 0);
  require((alignment & (alignment - 1)) == 0);
  uintptr_t reserved = reserve_addresses(size, std::max(alignment, kSlab), hint);
  driver().reservations[reserved] = size;
  *address = reserved;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  auto found = driver().reservations.find(address);
  bool exact = found != driver().reservations.end() && found->second == size;
  if (!exact) violation("stray-free", "cuMemAddressFree");
  require(exact);
  auto mapping = driver().memory.lower_bound(address);
  bool used = mapping != driver().memory.end() && mapping->first < address + size;
  if (used) violation("free-in-use", "cuMemAddressFree with a mapping inside");
  require(!used);
  driver().reservations.erase(found);
  release_addresses(address, size);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  require(handle != nullptr && flags == 0 && size != 0 && size % driver().config.granularity == 0);
  Device* device = check_properties(properties);
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) require_imex();
  if (device != nullptr) {
    require_healthy(*device);
    require(size <= driver().config.memory && device->used + size <= driver().config.memory,
            CUDA_ERROR_OUT_OF_MEMORY);
  }
  auto block = std::make_shared<Block>();
  block->size = size;
  block->properties = *properties;
  if (device == nullptr) block->properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  // Of pointers it is answered, and never read back.
  block->decompress = (properties->allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS) != 0;
  block->properties.allocFlags.usage = 0;
  // A wish that a device without compression grants by ordinary memory.
  if (device != nullptr && attribute(*device, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED) == 0)
    block->properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;
  block->backing = std::make_shared<Backing>(size, Backing::Sharing::kFile, 0,
                                             name_of(block->properties.location).c_str());
  block->device = device;
  block->id = next_id();
  block->handles = 1;
  *handle = next_block_handle();
  driver().blocks[*handle] = block;
  if (device != nullptr) device->used += size;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto block = find_block(handle);
  driver().blocks.erase(handle);
  --block->handles;
  uncharge_if_unused(*block);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  require(handle != nullptr);
  const Asking asking(reinterpret_cast<uintptr_t>(address));
  Located found = locate(reinterpret_cast<uintptr_t>(address));
  require(found.memory != nullptr && found.memory->kind == Kind::kMapping);
  *handle = next_block_handle();
  driver().blocks[*handle] = found.memory->block;
  ++found.memory->block->handles;
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  auto block = find_block(handle);
  size_t granularity = driver().config.granularity;
  require(flags == 0 && size != 0 && address % granularity == 0);
  require(offset == 0 && size == block->size, CUDA_ERROR_NOT_SUPPORTED);
  uintptr_t base = 0;
  size_t reserved = reservation_around(address, &base);
  require(reserved != 0 && address + size <= base + reserved);
  auto next = driver().memory.lower_bound(address);
  bool free =
      (next == driver().memory.end() || next->first >= address + size) && locate(address).memory == nullptr;
  require(free);
  auto mapping = std::make_shared<Memory>();
  mapping->kind = Kind::kMapping;
  mapping->address = mapping->device_address = address;
  mapping->size = size;
  mapping->bytes = block->backing->bytes;
  mapping->backing = block->backing;
  mapping->device = block->device;
  mapping->id = next_id();
  mapping->block = block;
  add_memory(mapping);
  ++block->mappings;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  uintptr_t base = 0;
  size_t reserved = reservation_around(address, &base);
  require(reserved != 0 && size != 0 && address + size <= base + reserved);
  const Ending ending(address, size);
  std::vector<std::shared_ptr<Memory>> mappings;
  size_t mapped = 0;
  for (auto next = driver().memory.lower_bound(address); next != driver().memory.end(); ++next) {
    if (next->first >= address + size) break;
    mappings.push_back(next->second);
    mapped += next->second->size;
    require(next->first + next->second->size <= address + size);
  }
  Located first = locate(address);
  require(first.memory == nullptr || first.offset == 0);
  if (mapped != size)
    violation("stray-free", "cuMemUnmap of a range with a hole");  // the driver lets it pass
  for (const auto& mapping : mappings) {
    check_idle(*mapping, "cuMemUnmap");
    bool visible = rights_of(*mapping, Memory::kHost) != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    mapping->access.clear();
    if (visible) apply_cpu_view(*mapping);
    remove_memory(mapping);
    uncharge_if_unused(*mapping->block);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* wanted, size_t count) {
  require(wanted != nullptr && count != 0);
  auto mappings = whole_mappings(address, size);
  for (const auto& mapping : mappings) {
    for (size_t index = 0; index < count; ++index) {
      processor_of(wanted[index].location, *mapping);
      unsigned flags = wanted[index].flags;
      require(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
              flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
  }
  for (const auto& mapping : mappings) {
    for (size_t index = 0; index < count; ++index) {
      int processor = processor_of(wanted[index].location, *mapping);
      mapping->access[processor] = wanted[index].flags;
      if (processor == Memory::kHost) apply_cpu_view(*mapping);
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  require(flags != nullptr && location != nullptr);
  Located found = locate(address);
  require(found.memory != nullptr && found.memory->kind == Kind::kMapping);
  bool on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  require(on_device || is_host_location(location->type), CUDA_ERROR_INVALID_DEVICE);
  int processor = on_device ? find_device(location->id).ordinal : Memory::kHost;
  *flags = rights_of(*found.memory, processor);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  require(properties != nullptr);
  *properties = find_block(handle)->properties;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  require(shared != nullptr && flags == 0);
  require(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
          (type == CU_MEM_HANDLE_TYPE_FABRIC && knows_fabric()));
  auto block = find_block(handle);
  require((block->properties.requestedHandleTypes & type) != 0);
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    require_imex();
    struct stat status = {};
    require(fstat(block->backing->file, &status) == 0, CUDA_ERROR_OPERATING_SYSTEM);
    const FabricHandle made = {FabricHandle::kMagic, getpid(), block->backing->file, status.st_ino, {}};
    std::memcpy(shared, &made, sizeof(made));
    return CUDA_SUCCESS;
  }
  int file = fcntl(block->backing->file, F_DUPFD_CLOEXEC, 0);
  require(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
  *static_cast<int*>(shared) = file;
  return CUDA_SUCCESS;
}

// An import has the bytes and the location, but no handle types: it cannot be exported again.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared,
                                        CUmemAllocationHandleType type) {
  require(handle != nullptr);
  require(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
          (type == CU_MEM_HANDLE_TYPE_FABRIC && knows_fabric()));
  auto block = std::make_shared<Block>();
  int file = -1;
  struct stat status = {};
  CUmemLocation location = {};
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    require_imex();
    require(shared != nullptr);
    file = open_fabric(shared);
  } else {
    int given = static_cast<int>(reinterpret_cast<intptr_t>(shared));
    require(fstat(given, &status) == 0 && find_location(given, &location), CUDA_ERROR_UNKNOWN);
    file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    require(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
  }
  try {
    require(fstat(file, &status) == 0 && find_location(file, &location), CUDA_ERROR_INVALID_VALUE);
    block->size = static_cast<size_t>(status.st_size);
    block->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    block->properties.location = location;
    block->device = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? &find_device(location.id) : nullptr;
    if (block->device != nullptr) require_healthy(*block->device);
    block->imported = true;
    block->backing = std::make_shared<Backing>(block->size, file);
  } catch (const Failure&) {
    close(file);
    throw;
  }
  block->id = next_id();
  block->handles = 1;
  *handle = next_block_handle();
  driver().blocks[*handle] = block;
  return CUDA_SUCCESS;
}

}  // namespace fake
