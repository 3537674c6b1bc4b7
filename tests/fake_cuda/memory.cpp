// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Device, managed, pinned and registered memory, and what is known of a pointer.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace fake {
namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kLargest = size_t{1}
                            << 47;      // beyond any address space; keeps the rounding below from wrapping
constexpr size_t kDirtied = 64 * 1024;  // a fill of all would cost real pages

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Fresh memory has no promised contents, so that nobody may count on zeros.
void dirty(char* bytes, size_t size) { std::memset(bytes, 0xA5, std::min(size, kDirtied)); }

std::shared_ptr<Memory> make_memory(Kind kind, uintptr_t address, size_t size) {
  auto memory = std::make_shared<Memory>();
  memory->kind = kind;
  memory->address = address;
  memory->device_address = address;
  memory->size = size;
  memory->context = current_context();
  memory->device = memory->context->device;
  memory->id = next_id();
  return memory;
}

// The first gap of a slab that is large enough, or its size.
size_t find_gap(const Slab& slab, size_t size) {
  size_t offset = 0;
  for (const auto& [start, length] : slab.used) {
    if (start - offset >= size) return offset;
    offset = start + length;
  }
  return offset + size <= slab.backing->size ? offset : slab.backing->size;
}

// Where a slab of this size would lie right below the newest one of its kind; the driver, too, places them
// side by side.
uintptr_t place_beside(const Device& device, Kind kind, size_t size) {
  for (auto slab = device.slabs.rbegin(); slab != device.slabs.rend(); ++slab) {
    if ((*slab)->kind == kind) return (*slab)->address > size ? (*slab)->address - size : 0;
  }
  return 0;
}

std::shared_ptr<Slab> make_slab(Device& device, Kind kind, unsigned flags, size_t size) {
  bool concurrent = attribute(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0;
  bool charged = kind == Kind::kDevice || (kind == Kind::kManaged && !concurrent);
  if (charged) require(device.used + size <= driver().config.memory, CUDA_ERROR_OUT_OF_MEMORY);
  auto slab = std::make_shared<Slab>();
  slab->kind = kind;
  slab->flags = flags;
  slab->device = &device;
  slab->charged = charged ? size : 0;
  if (kind == Kind::kDevice) {
    slab->address = reserve_addresses(size, kSlab, place_beside(device, kind, size));
    try {
      slab->backing = std::make_shared<Backing>(size, Backing::Sharing::kFile, 0,
                                                name_of_slab(slab->address, device).c_str());
    } catch (...) {
      release_addresses(slab->address, size);
      throw;
    }
  } else {
    // A forked child inherits pinned memory from the real driver, and managed memory not.
    auto sharing = kind == Kind::kPinned ? Backing::Sharing::kInherited : Backing::Sharing::kAnonymous;
    slab->backing = std::make_shared<Backing>(size, sharing, place_beside(device, kind, size));
    slab->address = reinterpret_cast<uintptr_t>(slab->backing->bytes);
  }
  device.slabs.push_back(slab);
  device.used += slab->charged;
  return slab;
}

void release_from_slab(Memory& memory) {
  Slab& slab = *memory.slab;
  const auto used = slab.used.find(memory.address - memory.front - slab.address);
  slab.used_bytes -= used->second;
  slab.used.erase(used);
  if (!slab.used.empty()) return;
  slab.device->used -= slab.charged;
  if (slab.kind == Kind::kDevice) release_addresses(slab.address, slab.backing->size);
  std::erase(slab.device->slabs, memory.slab);
}

// Small allocations share slabs of 2 MiB, larger ones have one of their own.
std::shared_ptr<Memory> allocate(Kind kind, size_t size, unsigned flags) {
  Device& device = *current_context()->device;
  size_t rounded = round_up(size, kAlignment);
  std::shared_ptr<Slab> slab;
  size_t offset = 0;
  for (const auto& candidate : device.slabs) {
    bool alike = candidate->kind == kind && ((candidate->flags ^ flags) & CU_MEMHOSTALLOC_WRITECOMBINED) == 0;
    if (!alike || candidate->backing->size != kSlab || candidate->used_bytes + rounded > kSlab) continue;
    offset = find_gap(*candidate, rounded);
    if (offset == kSlab) continue;
    slab = candidate;
    break;
  }
  if (!slab) {
    slab = make_slab(device, kind, flags, round_up(rounded, kSlab));
    offset = 0;
  }
  auto memory = make_memory(kind, slab->address + offset, size);
  slab->used[offset] = rounded;
  slab->used_bytes += rounded;
  memory->slab = slab;
  memory->flags = slab->flags;
  memory->backing = slab->backing;
  memory->bytes = slab->backing->bytes + offset;
  dirty(memory->bytes, size);
  return memory;
}

// How the CPU may use [address, address + size): nothing, reading, or writing too.
enum class CpuAccess { kNone, kRead, kWrite };

CpuAccess cpu_access(uintptr_t address, size_t size) {
  std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  require(maps != nullptr, CUDA_ERROR_OPERATING_SYSTEM);
  uintptr_t reached = address;
  bool writable = true;
  char line[512];
  while (std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    uintptr_t start = 0;
    uintptr_t end = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &start, &end, rights) != 3) continue;
    if (end <= reached) continue;
    if (start > reached || rights[0] != 'r') return CpuAccess::kNone;
    writable = writable && rights[1] == 'w';
    reached = end;
    if (reached >= address + size) return writable ? CpuAccess::kWrite : CpuAccess::kRead;
  }
  return CpuAccess::kNone;
}

// Registered memory cannot be registered again, and memory of the driver's own not at all.
void require_unknown(uintptr_t address, size_t size) {
  std::shared_ptr<Memory> known = locate(address).memory;
  auto next = driver().memory.lower_bound(address);
  if (!known && next != driver().memory.end() && next->first < address + size) known = next->second;
  if (!known) return;
  require(known->kind == Kind::kRegistered);
  throw Failure{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED};
}

bool is_host(Kind kind) { return kind == Kind::kPinned || kind == Kind::kRegistered; }

// The CUresult of freeing something that is not the base of a live allocation of the right kind.
CUresult refuse_free(uintptr_t address, const char* function) {
  bool again = driver().freed.contains(address);
  violation(again ? "double-free" : "stray-free", function);
  return CUDA_ERROR_INVALID_VALUE;
}

// What gives memory back waits for all work of the memory's context first, and of nothing less.
void wait_as_the_driver_does(uintptr_t address) {
  Located found = locate(address);
  if (!found.memory || found.memory->address != address || !found.memory->context) return;
  check_idle(*found.memory, "memory is given back");
  drain(*found.memory->context);
}

CUresult free_memory(uintptr_t address, const char* function, bool host) {
  if (address == 0) return CUDA_SUCCESS;
  const Ending ending(address);
  wait_as_the_driver_does(address);
  Located found = locate(address);
  auto accepts = [&](Kind kind) {
    return host ? kind == Kind::kPinned : kind == Kind::kDevice || kind == Kind::kManaged;
  };
  if (!found.memory || found.memory->address != address || !accepts(found.memory->kind))
    return refuse_free(address, function);
  Memory& memory = *found.memory;
  bool own = !context_stack().empty() && context_stack().back() == memory.context->handle;
  if (memory.kind == Kind::kDevice && !own)
    violation("wrong-context", std::string(function) + " outside the memory's context");
  if (memory.kind == Kind::kDevice && memory.slab->used.size() == 1 && is_imported_elsewhere(*memory.backing))
    violation("freed-while-imported", std::string(function) + " while another process has the block open");
  remove_memory(found.memory);
  driver().freed.insert(address);
  return CUDA_SUCCESS;
}

// What the device of the current context, or of the memory where there is none, may do with it.
unsigned long long access_of_device(const Memory& memory) {
  std::shared_ptr<Context> current = context_stack().empty() ? nullptr : current_context();
  const Device* device = current ? current->device : memory.device;
  if (memory.kind == Kind::kMapping) return device != nullptr ? rights_of(memory, device->ordinal) : 0;
  if (memory.read_only) return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
  bool remote = is_device_memory(memory) && memory.device != device;
  bool opened_here = memory.kind == Kind::kImported && current == memory.context;
  bool linked = in_pool(memory) ? lets(memory, *device) : current->peers.contains(memory.context->handle);
  bool allowed = !remote || opened_here || linked;
  return allowed ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

// As wide as the driver writes: four bytes for what the header calls a boolean.
size_t attribute_size(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return 4;
    default:
      return 0;
  }
}

struct Answer {
  bool known;  // false: the attribute has no value for this pointer
  uint64_t value;
  bool written = true;  // by cuPointerGetAttributes
};

// The answer for an address that lies in a reservation without a mapping, or in no memory at all.
Answer ask_nothing(CUpointer_attribute attribute, uintptr_t address) {
  uintptr_t base = 0;
  size_t size = reservation_around(address, &base);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return {false, static_cast<uint32_t>(-2)};
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return {false, address};
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return {false, base, size != 0};
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return {false, size, size != 0};
    default:
      return {false, 0};
  }
}

// The piece of memory of the system's that an allocation lies in.
struct SystemPiece {
  uintptr_t start;
  size_t size;
};

SystemPiece system_piece_around(const Located& found) {
  const Memory& memory = *found.memory;
  if (memory.kind == Kind::kMapping) return {memory.address, memory.size};
  if (memory.slab && found.start == memory.address) return {memory.slab->address, memory.slab->backing->size};
  uintptr_t first = found.start / kPage * kPage;
  return {first, round_up(found.start + memory.size, kPage) - first};
}

Answer ask(CUpointer_attribute attribute, const Located& found) {
  const Memory& memory = *found.memory;
  bool mapping = memory.kind == Kind::kMapping;
  bool cpu_can = !is_device_memory(memory) && (!mapping || rights_of(memory, Memory::kHost) != 0);
  uintptr_t base = memory.address;
  size_t range = memory.size;
  if (mapping) range = reservation_around(memory.address, &base);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return {true, mapping || in_pool(memory) ? 0 : reinterpret_cast<uint64_t>(memory.context->handle)};
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
      bool host = is_host(memory.kind) || (mapping && memory.block->device == nullptr);
      return {true, static_cast<uint64_t>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE)};
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: {
      bool can = !mapping || access_of_device(memory) != CU_MEM_ACCESS_FLAGS_PROT_NONE;
      if (in_pool(memory) && memory.kind == Kind::kPinned) can = lets(memory, *memory.device);
      return {can, can ? memory.device_address + found.offset : 0};
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return {cpu_can, cpu_can ? memory.address + found.offset : 0};
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return {true, memory.id};
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return {true, memory.kind == Kind::kManaged};
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return {true, static_cast<uint32_t>(memory.device != nullptr ? memory.device->ordinal : 0)};
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return {true, memory.kind == Kind::kDevice && !in_pool(memory)};
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (in_pool(memory) && memory.kind == Kind::kPinned) return {true, 0};
      return {true, found.start == memory.address ? base : found.start};
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return {true, range};
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return {true, 1};
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return {true, mapping ? static_cast<uint64_t>(memory.block->properties.requestedHandleTypes) : 0};
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      if (mapping) return {true, memory.block->decompress};
      [[fallthrough]];
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return {true, memory.kind == Kind::kDevice && !in_pool(memory)};
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return {true, access_of_device(memory)};
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      if (memory.pool) return {true, reinterpret_cast<uint64_t>(memory.pool->handle)};
      return {true, in_pool(memory) ? reinterpret_cast<uint64_t>(memory.device) : 0};
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return {true, system_piece_around(found).size};
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return {true, system_piece_around(found).start};
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return {true, mapping ? memory.block->id : memory.id};
    default:
      return {true, 0};
  }
}

}  // namespace

Backing::Backing(size_t bytes_wanted, int of_file) : size(bytes_wanted) {
  auto* place = reinterpret_cast<void*>(reserve_addresses(size, kSlab));
  void* mapped =
      mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, of_file, 0);
  if (mapped == MAP_FAILED) munmap(place, size);
  require(mapped != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  madvise(mapped, size, MADV_DONTFORK);
  bytes = static_cast<char*>(mapped);
  file = of_file;
}

Backing::Backing(size_t bytes_wanted, Sharing sharing, uintptr_t hint, const char* name)
    : size(bytes_wanted) {
  bool with_file = sharing == Sharing::kFile;
  if (with_file) {
    file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(file >= 0, CUDA_ERROR_OUT_OF_MEMORY);
    if (ftruncate(file, static_cast<off_t>(size)) != 0 ||
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
      close(file);
      throw Failure{CUDA_ERROR_OUT_OF_MEMORY};
    }
  }
  int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED | (with_file ? 0 : MAP_ANONYMOUS);
  void* mapped = MAP_FAILED;
  try {
    // Pinned and managed memory, which is used where it lies, begins at a multiple of a slab.
    auto* place = reinterpret_cast<void*>(reserve_addresses(size, kSlab, hint));
    mapped = mmap(place, size, PROT_READ | PROT_WRITE, flags, file, 0);
    if (mapped == MAP_FAILED) munmap(place, size);
    require(mapped != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  } catch (const Failure&) {
    if (file >= 0) close(file);
    throw;
  }
  if (sharing != Sharing::kInherited) madvise(mapped, size, MADV_DONTFORK);
  bytes = static_cast<char*>(mapped);
}

Backing::~Backing() {
  munmap(bytes, size);
  if (file >= 0) close(file);
}

uintptr_t reserve_addresses(size_t size, size_t alignment, uintptr_t hint) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (hint != 0 && hint % alignment == 0) {
    void* there = mmap(reinterpret_cast<void*>(hint), size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (there == reinterpret_cast<void*>(hint)) {
      madvise(there, size, MADV_DONTFORK);
      return hint;
    }
    if (there != MAP_FAILED) munmap(there, size);
  }
  require(alignment < kLargest && size < kLargest, CUDA_ERROR_OUT_OF_MEMORY);
  size_t whole = size + alignment;
  void* mapped = mmap(nullptr, whole, PROT_NONE, flags, -1, 0);
  require(mapped != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  auto start = reinterpret_cast<uintptr_t>(mapped);
  uintptr_t aligned = round_up(start, alignment);
  if (aligned > start) munmap(mapped, aligned - start);
  size_t behind = start + whole - (aligned + size);
  if (behind > 0) munmap(reinterpret_cast<void*>(aligned + size), behind);
  madvise(reinterpret_cast<void*>(aligned), size, MADV_DONTFORK);
  return aligned;
}

void release_addresses(uintptr_t address, size_t size) { munmap(reinterpret_cast<void*>(address), size); }

void charge(Device& device, uint64_t size) {
  require(device.used + size <= driver().config.memory, CUDA_ERROR_OUT_OF_MEMORY);
  device.used += size;
}

unsigned long long rights_of(const Memory& mapping, int processor) {
  auto set = mapping.access.find(processor);
  if (set == mapping.access.end()) return CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return set->second;
}

Located locate(uintptr_t address) {
  const auto& all = driver().memory;
  auto next = all.upper_bound(address);
  if (next == all.begin()) return {};
  const auto& [start, memory] = *std::prev(next);
  if (address - start >= memory->size) return {};
  return {memory, address - start, start};
}

void add_memory(const std::shared_ptr<Memory>& memory) {
  driver().memory[memory->address] = memory;
  driver().memory[memory->device_address] = memory;
  driver().freed.erase(memory->address);
}

void remove_memory(const std::shared_ptr<Memory>& memory) {
  driver().memory.erase(memory->address);
  driver().memory.erase(memory->device_address);
  if (memory->device_address != memory->address) release_addresses(memory->device_address, memory->size);
  if (memory->slab) release_from_slab(*memory);
  if (memory->block) --memory->block->mappings;
  if (memory->kind == Kind::kImported) release_addresses(memory->address, memory->size);
}

Ending::Ending(uintptr_t address)
    : Ending(address, locate(address).memory ? locate(address).memory->size : 0) {}

Ending::Ending(uintptr_t address, size_t size) {
  const auto asked = driver().asked.lower_bound(address);
  if (asked != driver().asked.end() && *asked - address < size)
    violation("asked-while-freed", "memory at an address that another thread asks about");
  place_ = driver().ending.insert(driver().ending.end(), {address, size});
  pause(driver().config.pointer_delay_us);
}

Asking::Asking(uintptr_t address) : place_(driver().asked.insert(address)) {
  for (const auto& [base, size] : driver().ending) {
    if (address - base < size) violation("asked-while-freed", "an address in memory that is being freed");
  }
  pause(driver().config.pointer_delay_us);
}

Asking::~Asking() { driver().asked.erase(place_); }

Ending::~Ending() { driver().ending.erase(place_); }

void check_idle(const Memory& memory, const char* what) {
  if (memory.device != nullptr && memory.device->sticky != CUDA_SUCCESS) return;
  const Clock& observed = driver().observed;
  // Memory of the host may be in use by a device that is lost.
  const auto is_lost = [](uint64_t id) {
    const auto& all = driver().streams.all();
    return std::any_of(all.begin(), all.end(), [&](const auto& entry) {
      return entry.second->id == id && entry.second->context->device->sticky != CUDA_SUCCESS;
    });
  };
  for (const auto& [stream, number] : memory.uses) {
    if (is_lost(stream)) continue;
    auto seen = observed.find(stream);
    if (seen == observed.end() || seen->second < number) {
      violation("free-in-flight", std::string(what) + " before its use was seen complete");
      return;
    }
  }
}

void free_memory_of(const Context& context) {
  std::set<std::shared_ptr<Memory>> owned;
  for (const auto& [address, memory] : driver().memory) {
    if (memory->context.get() == &context) owned.insert(memory);
  }
  for (const auto& memory : owned)
    remove_memory(memory);
}

bool is_readable(uintptr_t address) {
  // An invalid "how" makes the kernel read the set, and nothing else.
  uintptr_t aligned = address & ~uintptr_t{7};
  return syscall(SYS_rt_sigprocmask, ~0, aligned, nullptr, size_t{8}) == -1 && errno == EINVAL;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  uint64_t memory = driver().config.memory;
  uint64_t used = current_context()->device->used;
  if (total != nullptr) *total = memory;
  if (free != nullptr) *free = memory > used ? memory - used : 0;
  return CUDA_SUCCESS;
}

// A refused allocation sets the pointer to null, as the driver does.
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  require(address != nullptr);
  *address = 0;
  require(size != 0);
  require(size < kLargest, CUDA_ERROR_OUT_OF_MEMORY);
  auto memory = allocate(Kind::kDevice, size, 0);
  add_memory(memory);
  *address = memory->address;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned element) {
  require(address != nullptr && pitch != nullptr);
  *address = 0;
  require(width != 0 && height != 0 && (element == 4 || element == 8 || element == 16));
  require(width < kLargest && height < kLargest, CUDA_ERROR_OUT_OF_MEMORY);
  const size_t row = round_up(width, kAlignment);
  require(row < kLargest / height, CUDA_ERROR_OUT_OF_MEMORY);
  *pitch = row;
  return fake::cuMemAlloc_v2(address, row * height);
}

CUresult cuMemFree_v2(CUdeviceptr address) { return free_memory(address, "cuMemFree", false); }

// Where memory of a pool begins: an H200 aligned the first one to 2 MiB, and the next ones to 4 KiB
// (docs/measured/pools.md).
constexpr size_t kFirstInPool = 64 * 1024;
constexpr size_t kNextInPool = 4096;

namespace {

// From the current pool of the stream's device, or another one.
CUresult allocate_from(const std::shared_ptr<Pool>& pool, CUdeviceptr* address, size_t size,
                       const std::shared_ptr<Stream>& stream) {
  const Device& device = *stream->context->device;
  require(!stream->capture, CUDA_ERROR_NOT_SUPPORTED);  // a node that allocates
  size_t alignment = kFirstInPool;
  std::vector<Point> frees;
  for (const auto& [base, other] : driver().memory) {
    if (!in_pool(*other) || other->pool != pool || (!pool && other->device != &device)) continue;
    if (other->freed_in) {
      frees.push_back({other->freed_in, other->freed_at});
    } else {
      alignment = kNextInPool;
    }
  }
  auto memory = allocate(pool ? pool->kind : Kind::kDevice, 2 * alignment + size, 0);
  memory->pool = pool;
  // Behind the frees that are pending, as the driver does where it gives their memory again.
  if (!frees.empty() && (!pool || pool->internal_dependencies))
    enqueue(
        stream, [] {}, {}, std::move(frees));
  memory->front = round_up(memory->address + 1, alignment) - memory->address;
  memory->size = size;
  memory->address = memory->device_address += memory->front;
  memory->bytes += memory->front;
  add_memory(memory);
  *address = memory->address;
  return CUDA_SUCCESS;
}

std::shared_ptr<Pool> find_pool(CUmemoryPool handle) {
  auto pool = driver().pools.find(handle);
  require(pool != nullptr);
  return pool;
}

bool is_of_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, CUstream handle) {
  require(address != nullptr);
  *address = 0;
  require(size != 0);
  require(size < kLargest, CUDA_ERROR_OUT_OF_MEMORY);
  const auto stream = find_stream(handle);
  require(attribute(*stream->context->device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) != 0,
          CUDA_ERROR_NOT_SUPPORTED);
  return allocate_from(nullptr, address, size, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t size, CUmemoryPool pool, CUstream handle) {
  require(address != nullptr);
  *address = 0;
  const auto found = find_pool(pool);
  require(size != 0);
  require(size < kLargest, CUDA_ERROR_OUT_OF_MEMORY);
  return allocate_from(found, address, size, find_stream(handle));
}

// The codes are those of an H200 (docs/measured/pools.md).
CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* wanted) {
  require(handle != nullptr && wanted != nullptr);
  const CUmemLocation& location = wanted->location;
  const bool managed = wanted->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && driver().version >= 13000;
  require(managed || wanted->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
  require(managed || location.type == CU_MEM_LOCATION_TYPE_DEVICE || driver().version >= 13000);
  auto pool = std::make_shared<Pool>();
  CUdevice_attribute needed = CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_NONE:
      require(managed);
      break;
    case CU_MEM_LOCATION_TYPE_DEVICE:
      require(location.id >= 0 && static_cast<size_t>(location.id) < driver().devices.size());
      pool->device = driver().devices[static_cast<size_t>(location.id)].get();
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      if (!managed) needed = CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED;
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      require(node_exists(location.id));
      if (!managed) needed = CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED;
      break;
    default:
      throw Failure{CUDA_ERROR_INVALID_VALUE};
  }
  const Device& device = pool->device != nullptr ? *pool->device : *driver().devices.front();
  require(attribute(device, needed) != 0, CUDA_ERROR_NOT_SUPPORTED);
  // Sharing is not there: where the driver shares, the fake refuses.
  require(wanted->handleTypes == CU_MEM_HANDLE_TYPE_NONE);
  pool->kind = managed ? Kind::kManaged : is_of_host(location.type) ? Kind::kPinned : Kind::kDevice;
  pool->handle = next_handle<CUmemoryPool>();
  driver().pools.add(pool->handle, pool);
  *handle = pool->handle;
  return CUDA_SUCCESS;
}

// Memory of it lives on.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  const auto pool = find_pool(handle);
  if (!pool->access.empty()) violation("pool-with-access", "a pool ends that other devices can still access");
  driver().pools.remove(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  const auto pool = find_pool(handle);
  require(value != nullptr && attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
          attribute <= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
  if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
    pool->internal_dependencies = *static_cast<const int*>(value) != 0;
  return CUDA_SUCCESS;
}

// The codes are those of an H200, but for other devices, of which it had none.
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* wanted, size_t count) {
  const auto pool = find_pool(handle);
  require(wanted != nullptr || count == 0);
  for (size_t index = 0; index < count; ++index) {
    const auto& [location, flags] = wanted[index];
    const bool none = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    require(none || flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_ERROR_NOT_SUPPORTED);
    if (is_of_host(location.type)) {
      require(pool->kind == Kind::kManaged || (pool->kind == Kind::kPinned && !none),
              CUDA_ERROR_NOT_SUPPORTED);
      continue;
    }
    require(location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
                static_cast<size_t>(location.id) < driver().devices.size(),
            CUDA_ERROR_INVALID_DEVICE);
    const Device& device = find_device(location.id);
    if (pool->kind == Kind::kDevice) {
      if (pool->device == &device) {
        require(!none, CUDA_ERROR_INVALID_DEVICE);
        continue;
      }
      require(can_access_peer(device, *pool->device), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    if (none) {
      pool->access.erase(device.ordinal);
    } else {
      pool->access.insert(device.ordinal);
    }
  }
  return CUDA_SUCCESS;
}

// Of managed memory it knows only what was set.
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  const auto pool = find_pool(handle);
  require(flags != nullptr && location != nullptr);
  bool has = pool->kind == Kind::kPinned;
  if (!is_of_host(location->type)) {
    require(location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    const Device& device = find_device(location->id);
    has = (pool->kind == Kind::kDevice && pool->device == &device) || pool->access.contains(device.ordinal);
  }
  *flags = has ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

// It goes back when the stream comes to it.
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  if (address == 0) return CUDA_SUCCESS;
  const Ending ending(address);
  const Located found = locate(address);
  if (!found.memory || found.memory->address != address || !in_pool(*found.memory) ||
      driver().freed.contains(address))
    return refuse_free(address, "cuMemFreeAsync");
  check_idle(*found.memory, "memory goes back to the pool");
  // Nothing runs on a lost device, and its memory is gone.
  if (found.memory->device->sticky != CUDA_SUCCESS) remove_memory(found.memory);
  const auto stream = find_stream(handle);
  enqueue(stream, [memory = found.memory] {
    std::lock_guard lock(driver().mutex);
    const auto known = driver().memory.find(memory->address);
    if (known != driver().memory.end() && known->second == memory) remove_memory(memory);
  });
  if (stream->capture) return CUDA_SUCCESS;  // it goes back at each launch
  driver().freed.insert(address);
  found.memory->freed_in = stream;
  found.memory->freed_at = stream->enqueued;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Located found = locate(address);
  require(found.memory != nullptr, CUDA_ERROR_NOT_FOUND);
  if (in_pool(*found.memory) && found.memory->kind == Kind::kPinned)
    require(lets(*found.memory, *current_context()->device), CUDA_ERROR_NOT_FOUND);
  if (base != nullptr) *base = found.start;
  if (size != nullptr) *size = found.memory->size;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned flags) {
  require(address != nullptr);
  *address = 0;
  require(size != 0);
  require(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
  require(size < kLargest, CUDA_ERROR_OUT_OF_MEMORY);
  const Device& device = *current_context()->device;
  require(attribute(device, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) != 0, CUDA_ERROR_NOT_SUPPORTED);
  auto memory = allocate(Kind::kManaged, size, 0);
  add_memory(memory);
  *address = memory->address;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** pointer, size_t size, unsigned flags) {
  require(pointer != nullptr);
  *pointer = nullptr;
  const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  require((flags & ~known) == 0);
  if (size == 0) return CUDA_SUCCESS;
  require(size < kLargest, CUDA_ERROR_OUT_OF_MEMORY);
  auto memory = allocate(Kind::kPinned, size, flags);
  if ((flags & CU_MEMHOSTALLOC_WRITECOMBINED) != 0 && driver().config.write_combined_differs)
    memory->device_address = reserve_addresses(round_up(size, kPage), kPage);
  add_memory(memory);
  *pointer = memory->bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** pointer, size_t size) { return fake::cuMemHostAlloc(pointer, size, 0); }

CUresult cuMemFreeHost(void* pointer) {
  return free_memory(reinterpret_cast<uintptr_t>(pointer), "cuMemFreeHost", true);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer, unsigned flags) {
  require(address != nullptr);
  *address = 0;
  require(pointer != nullptr && flags == 0);
  const Asking asking(reinterpret_cast<uintptr_t>(pointer));
  Located found = locate(reinterpret_cast<uintptr_t>(pointer));
  require(found.memory != nullptr && is_host(found.memory->kind) && !in_pool(*found.memory));
  const Device& device = *current_context()->device;
  require(attribute(device, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) != 0, CUDA_ERROR_NOT_SUPPORTED);
  *address = found.memory->device_address + found.offset;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  require(flags != nullptr && pointer != nullptr);
  Located found = locate(reinterpret_cast<uintptr_t>(pointer));
  bool managed = found.memory != nullptr && found.memory->kind == Kind::kManaged;
  require(managed || (found.memory != nullptr && is_host(found.memory->kind)));
  require(!in_pool(*found.memory));
  // Implied by unified addressing.
  *flags = CU_MEMHOSTALLOC_DEVICEMAP | (managed ? 0 : found.memory->flags);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* pointer, size_t size, unsigned flags) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  require(pointer != nullptr && size != 0 && address + size > address);
  require(size < kLargest, CUDA_ERROR_NOT_SUPPORTED);
  const unsigned known =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
  require((flags & ~(known | CU_MEMHOSTREGISTER_IOMEMORY)) == 0);
  require((flags & CU_MEMHOSTREGISTER_IOMEMORY) == 0);  // no ordinary memory is that
  const Device& device = *current_context()->device;
  require(attribute(device, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0, CUDA_ERROR_NOT_SUPPORTED);
  bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  if (read_only)
    require(attribute(device, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0,
            CUDA_ERROR_NOT_SUPPORTED);
  require_unknown(address, size);
  CpuAccess access = cpu_access(address, size);
  require(access == CpuAccess::kWrite || (access == CpuAccess::kRead && read_only));
  // Pages that cannot be had, such as those beyond the end of a file. (An older kernel does not know the
  // question.)
  uintptr_t first = address / kPage * kPage;
  int populated = madvise(reinterpret_cast<void*>(first), address + size - first, MADV_POPULATE_READ);
  require(populated == 0 || errno != EFAULT);
  uint64_t limit = driver().config.registrations;
  require(limit == UINT64_MAX || live(FAKE_CUDA_REGISTRATION) < limit, CUDA_ERROR_OUT_OF_MEMORY);
  auto memory = make_memory(Kind::kRegistered, address, size);
  bool same = true;
  for (const auto& each : driver().devices) {
    same = same && attribute(*each, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) != 0;
  }
  if (!same) memory->device_address = reserve_addresses(round_up(size, kPage), kPage);
  memory->bytes = static_cast<char*>(pointer);
  memory->flags = flags & CU_MEMHOSTREGISTER_PORTABLE;
  memory->read_only = read_only;
  add_memory(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* pointer) {
  require(pointer != nullptr);
  auto address = reinterpret_cast<uintptr_t>(pointer);
  const Ending ending(address);
  wait_as_the_driver_does(address);
  Located found = locate(address);
  bool registered =
      found.memory && found.memory->kind == Kind::kRegistered && found.memory->address == address;
  if (!registered) violation("stray-free", "cuMemHostUnregister");
  require(found.memory != nullptr, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  require(registered);
  remove_memory(found.memory);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  size_t size = attribute_size(attribute);
  require(data != nullptr && size != 0);
  const Asking asking(address);
  Located found = locate(address);
  Answer answer = found.memory ? ask(attribute, found) : ask_nothing(attribute, address);
  require(answer.known);
  std::memcpy(data, &answer.value, size);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  require(count != 0 && attributes != nullptr && data != nullptr);
  for (unsigned index = 0; index < count; ++index)
    require(attribute_size(attributes[index]) != 0 && data[index] != nullptr);
  const Asking asking(address);
  Located found = locate(address);
  for (unsigned index = 0; index < count; ++index) {
    Answer answer = found.memory ? ask(attributes[index], found) : ask_nothing(attributes[index], address);
    if (answer.written) std::memcpy(data[index], &answer.value, attribute_size(attributes[index]));
  }
  return CUDA_SUCCESS;
}

}  // namespace fake
