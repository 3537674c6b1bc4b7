// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Managed memory: attachment, advice, prefetches, discards, and what is known of its pages.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

#include "driver.h"

namespace fake {
namespace {

constexpr CUmemLocation kNowhere = {CU_MEM_LOCATION_TYPE_INVALID, CU_DEVICE_INVALID};

// The pages that have a byte in a range.
struct PageSpan {
  size_t first;
  size_t end;
};

PageSpan pages_of(uintptr_t address, size_t size) {
  return {address / kPage, (address + size - 1) / kPage + 1};
}

template <class F>
void for_each_page(Memory& memory, uintptr_t address, size_t size, F function) {
  const PageSpan pages = pages_of(address, size);
  for (size_t page = pages.first; page < pages.end; ++page)
    function(memory.pages[page]);
}

bool is_concurrent(const Device& device) {
  return attribute(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0;
}

bool all_concurrent() {
  return std::all_of(driver().devices.begin(), driver().devices.end(),
                     [](const auto& device) { return is_concurrent(*device); });
}

// The managed memory that the range lies in, or null for memory of the system where a device takes that.
std::shared_ptr<Memory> find_range(uintptr_t address, size_t size, const Device* device) {
  require(address != 0 && size != 0 && address + size > address);
  const Located found = locate(address);
  if (found.memory && found.memory->kind == Kind::kManaged) {
    require(size <= found.memory->size - found.offset);
    return found.memory;
  }
  require(!found.memory && device != nullptr &&
          attribute(*device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) != 0);
  require(is_readable(address) && is_readable(address + size - 1));
  return nullptr;
}

}  // namespace

bool node_exists(int node) {
  char path[64];
  std::snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
  return node == 0 || (node > 0 && access(path, F_OK) == 0);
}

namespace {

bool is_node(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

const Device* device_at(const CUmemLocation& location) {
  const auto count = static_cast<int>(driver().devices.size());
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 || location.id >= count) return nullptr;
  return driver().devices[static_cast<size_t>(location.id)].get();
}

// As older variants name a location.
CUmemLocation location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

// What the queries answer for the host: an id that was given in a batch alone is kept.
CUmemLocation kept(CUmemLocation location) {
  if (location.type == CU_MEM_LOCATION_TYPE_HOST) location.id = CU_DEVICE_CPU;
  return location;
}

struct SameLocation {
  CUmemLocation value;
  bool operator==(const SameLocation& other) const {
    const bool one_host = value.type == CU_MEM_LOCATION_TYPE_HOST;  // whatever its id
    return value.type == other.value.type && (one_host || value.id == other.value.id);
  }
};

// ---- advice ----

void require_location(CUmem_advise advice, const CUmemLocation& location) {
  require(location.type >= CU_MEM_LOCATION_TYPE_DEVICE &&
          location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
  const bool accessed_by =
      advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (!accessed_by && advice != CU_MEM_ADVISE_SET_PREFERRED_LOCATION) return;  // not looked at
  if (is_node(location)) {
    require(!accessed_by);
    require(location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT || node_exists(location.id));
  }
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return;
  const Device* const device = device_at(location);
  require(device != nullptr);
  require(is_concurrent(*device), CUDA_ERROR_INVALID_DEVICE);
}

void take_advice(Page& page, CUmem_advise advice, const CUmemLocation& location) {
  const int accessor = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      page.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
      break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      page.preferred = kept(location);
      break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      page.preferred = kNowhere;
      break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      page.accessed_by.insert(accessor);
      break;
    default:
      page.accessed_by.erase(accessor);
      break;
  }
}

CUresult advise(uintptr_t address, size_t size, CUmem_advise advice, const CUmemLocation& location) {
  require(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY);
  auto memory = find_range(address, size, current_context()->device);
  require(!memory || !in_pool(*memory), CUDA_ERROR_NOT_SUPPORTED);  // docs/measured/pools.md
  require_location(advice, location);
  // The H200 takes a node in any advice, and then does nothing.
  if (!memory || (is_node(location) && !driver().config.numa_advice)) return CUDA_SUCCESS;
  for_each_page(*memory, address, size, [&](Page& page) { take_advice(page, advice, location); });
  return CUDA_SUCCESS;
}

// ---- prefetches and discards ----

struct Range {
  uintptr_t address;
  size_t size;
  std::shared_ptr<Memory> memory;  // null: of the system
};

void require_target(const CUmemLocation& location) {
  require(location.type >= CU_MEM_LOCATION_TYPE_DEVICE &&
          location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
  if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) require(node_exists(location.id));
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return;
  const Device* const device = device_at(location);
  require(device != nullptr && is_concurrent(*device), CUDA_ERROR_INVALID_DEVICE);
}

void enqueue_ranges(const std::shared_ptr<Stream>& stream, const std::vector<Range>& ranges, bool discards) {
  std::vector<std::shared_ptr<Memory>> uses;
  for (const Range& range : ranges) {
    if (range.memory) uses.push_back(range.memory);
  }
  enqueue(
      stream,
      [ranges, discards] {
        // Only pages that lie whole in a range.
        for (const Range& range : ranges) {
          const uintptr_t first = (range.address + kPage - 1) / kPage * kPage;
          const uintptr_t end = (range.address + range.size) / kPage * kPage;
          if (discards && first < end)
            std::memset(range.memory->bytes + (first - range.memory->address), 0xA5, end - first);
        }
      },
      uses);
}

// As measured (MAN-27): of the runs of equal pages that a range has, the driver leaves each third as it was.
void set_prefetched(const Range& range, const CUmemLocation& location) {
  size_t run = 0;
  std::optional<SameLocation> before;
  for_each_page(*range.memory, range.address, range.size, [&](Page& page) {
    if (before != SameLocation{page.prefetched}) {
      before = SameLocation{page.prefetched};
      ++run;
    }
    if (run % 3 != 0) page.prefetched = location;
  });
}

CUresult prefetch(uintptr_t address, size_t size, const CUmemLocation& location, unsigned flags,
                  CUstream handle) {
  auto stream = find_stream(handle);
  const Device& device = *stream->context->device;
  require(flags == 0);
  const Range range{address, size, find_range(address, size, &device)};
  require_target(location);
  require(is_concurrent(device), CUDA_ERROR_INVALID_DEVICE);
  enqueue_ranges(stream, {range}, false);
  if (range.memory) set_prefetched(range, kept(location));
  return CUDA_SUCCESS;
}

// What all batches ask of their arguments.
std::vector<Range> find_batch(const Stream& stream, const CUdeviceptr* pointers, const size_t* sizes,
                              size_t count, unsigned long long flags, bool pageable) {
  require(stream.handle != nullptr && flags == 0);
  require(count != 0 && pointers != nullptr && sizes != nullptr);
  require(all_concurrent(), CUDA_ERROR_NOT_SUPPORTED);
  std::vector<Range> ranges;
  for (size_t index = 0; index < count; ++index) {
    ranges.push_back(
        {pointers[index], sizes[index],
         find_range(pointers[index], sizes[index], pageable ? stream.context->device : nullptr)});
  }
  return ranges;
}

// The H200 does not mind indices that do not grow.
void require_locations(const CUmemLocation* locations, const size_t* indices, size_t location_count,
                       size_t count) {
  require(locations != nullptr && indices != nullptr && location_count != 0 && location_count <= count);
  require(indices[0] == 0);
  for (size_t index = 0; index < location_count; ++index) {
    require(indices[index] < count);
    require_target(locations[index]);
  }
}

void set_locations(const std::vector<Range>& ranges, const CUmemLocation* locations, const size_t* indices,
                   size_t location_count) {
  size_t location = 0;
  for (size_t index = 0; index < ranges.size(); ++index) {
    while (location + 1 < location_count && indices[location + 1] <= index)
      ++location;
    if (ranges[index].memory) set_prefetched(ranges[index], locations[location]);
  }
}

// ---- queries ----

template <class Value, class Get>
Value common(const std::vector<const Page*>& pages, Value differ, Get get) {
  const Value first = get(*pages.front());
  const bool same =
      std::all_of(pages.begin(), pages.end(), [&](const Page* page) { return get(*page) == first; });
  return same ? first : differ;
}

CUmemLocation common_location(const std::vector<const Page*>& pages, CUmemLocation Page::*which) {
  return common(pages, SameLocation{kNowhere}, [&](const Page& page) { return SameLocation{page.*which}; })
      .value;
}

// As older queries answer it: a device, the CPU, or none.
int device_number(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

std::vector<int> common_accessors(const std::vector<const Page*>& pages) {
  std::vector<int> accessors;
  const auto add = [&](int number) {
    if (std::all_of(pages.begin(), pages.end(),
                    [&](const Page* page) { return page->accessed_by.contains(number); }))
      accessors.push_back(number);
  };
  for (const auto& device : driver().devices)
    add(device->ordinal);
  add(CU_DEVICE_CPU);
  return accessors;
}

int last_range_attribute() {
  return driver().version >= 12020 ? CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID
                                   : CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
}

void require_query(const void* data, size_t data_size, CUmem_range_attribute attribute) {
  require(data != nullptr);
  require(attribute >= CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY && attribute <= last_range_attribute());
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    require(data_size != 0 && data_size % sizeof(int) == 0);
  } else {
    require(data_size == sizeof(int));
  }
}

void answer(void* data, size_t data_size, CUmem_range_attribute attribute,
            const std::vector<const Page*>& pages) {
  auto* const out = static_cast<int*>(data);
  const CUmemLocation preferred = common_location(pages, &Page::preferred);
  const CUmemLocation prefetched = common_location(pages, &Page::prefetched);
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *out = common(pages, 0, [](const Page& page) { return page.read_mostly ? 1 : 0; });
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *out = device_number(preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      const std::vector<int> accessors = common_accessors(pages);
      for (size_t index = 0; index < data_size / sizeof(int); ++index)
        out[index] = index < accessors.size() ? accessors[index] : CU_DEVICE_INVALID;
      break;
    }
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *out = device_number(prefetched);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *out = preferred.type;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *out = preferred.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *out = prefetched.type;
      break;
    default:
      *out = prefetched.id;
      break;
  }
}

std::vector<const Page*> find_pages(CUdeviceptr address, size_t size) {
  const auto memory = find_range(address, size, nullptr);
  std::vector<const Page*> pages;
  for_each_page(*memory, address, size, [&](Page& page) { pages.push_back(&page); });
  return pages;
}

}  // namespace

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t length, unsigned flags) {
  auto stream = find_stream(handle);
  // The H200 crashes on other flags.
  require(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE);
  const bool is_default = stream->handle == nullptr || stream->per_thread;
  require(flags != CU_MEM_ATTACH_SINGLE || !is_default);
  auto memory = find_range(address, length == 0 ? 1 : length, stream->context->device);
  require(!memory || !in_pool(*memory));
  require(memory ? address == memory->address && (length == 0 || length == memory->size) : length != 0);
  std::vector<std::shared_ptr<Memory>> uses;
  if (memory) uses.push_back(memory);
  enqueue(
      stream, [] {}, uses);
  return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device) {
  return advise(address, size, advice, location_of(device));
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation location) {
  return advise(address, size, advice, location);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
  return prefetch(address, size, location_of(device), 0, stream);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags,
                               CUstream stream) {
  return prefetch(address, size, location, flags, stream);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t count, CUmemLocation* locations,
                                 size_t* indices, size_t location_count, unsigned long long flags,
                                 CUstream handle) {
  auto stream = find_stream(handle);
  const std::vector<Range> ranges = find_batch(*stream, pointers, sizes, count, flags, true);
  require_locations(locations, indices, location_count, count);
  enqueue_ranges(stream, ranges, false);
  set_locations(ranges, locations, indices, location_count);
  return CUDA_SUCCESS;
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t count, unsigned long long flags,
                                CUstream handle) {
  auto stream = find_stream(handle);
  enqueue_ranges(stream, find_batch(*stream, pointers, sizes, count, flags, false), true);
  return CUDA_SUCCESS;
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t count,
                                           CUmemLocation* locations, size_t* indices, size_t location_count,
                                           unsigned long long flags, CUstream handle) {
  auto stream = find_stream(handle);
  const std::vector<Range> ranges = find_batch(*stream, pointers, sizes, count, flags, false);
  require_locations(locations, indices, location_count, count);
  enqueue_ranges(stream, ranges, true);
  set_locations(ranges, locations, indices, location_count);
  return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttribute(void* data, size_t data_size, CUmem_range_attribute attribute,
                                CUdeviceptr address, size_t size) {
  require_query(data, data_size, attribute);
  answer(data, data_size, attribute, find_pages(address, size));
  return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttributes(void** data, size_t* data_sizes, CUmem_range_attribute* attributes,
                                 size_t count, CUdeviceptr address, size_t size) {
  require(data != nullptr && data_sizes != nullptr && attributes != nullptr && count != 0);
  for (size_t index = 0; index < count; ++index)
    require_query(data[index], data_sizes[index], attributes[index]);
  const std::vector<const Page*> pages = find_pages(address, size);
  for (size_t index = 0; index < count; ++index)
    answer(data[index], data_sizes[index], attributes[index], pages);
  return CUDA_SUCCESS;
}

}  // namespace fake
