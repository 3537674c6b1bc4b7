// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/managed.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <shared_mutex>

#include "backends/cuda/stream.h"
#include "base/arithmetic.h"
#include "platform/fork.h"
#include "platform/pages.h"
#include "platform/thread_record.h"

namespace gpumem::cuda {
namespace {

constexpr uint64_t kManagedSlackMax = uint64_t{2} << 20;

// Shared by hints, held alone by a query of several attributes: the driver reads them one by one (measured),
// and they are to be of one moment (MAN-28). A forked child has its own, as another thread may have held
// this one.
constinit platform::PerProcess<std::shared_mutex> hints;

class ManagedMemory final : public Memory {
 public:
  using Memory::Memory;

  // Takes whole pages, because hints and attachments act on those. They begin at a page (measured).
  Result<void> allocate(uint64_t size, uint64_t alignment, gpumem_memory_flags wanted) {
    const uint64_t page = platform::page_size();
    const uint64_t whole = round_up(size, page) + (alignment > page ? alignment - page : 0);
    const bool to_host = (wanted & GPUMEM_MEMORY_ATTACH_HOST) != 0;
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    GPUMEM_TRY(device_.check(
        device_.cu().MemAllocManaged(&base_, whole, to_host ? CU_MEM_ATTACH_HOST : CU_MEM_ATTACH_GLOBAL),
        Place::kDevice, "cannot allocate %llu bytes of managed memory on device %u",
        static_cast<unsigned long long>(size), device_.facts().ordinal));
    facts_.granted_size = whole;
    const uint64_t first = round_up(base_, std::max(alignment, page));
    if (first + size > base_ + whole) {
      (void)release();
      return make_error(GPUMEM_ERROR_UNSUPPORTED, "the driver's managed memory does not begin at a page");
    }
    facts_.host_pointer = pointer_to(first);
    facts_.device_pointer = facts_.host_pointer;
    facts_.allocation = pointer_to(base_);
    facts_.allocation_size = whole;
    facts_.granted = wanted & (GPUMEM_MEMORY_ATTACH_HOST | GPUMEM_MEMORY_OVERSUBSCRIBE);
    return {};
  }

  CUdeviceptr base() const { return base_; }

  Result<void> release() override {
    if (base_ == 0) return {};
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    const Outcome outcome = free();
    if (!refused(outcome)) base_ = 0;
    return device_.check_release(outcome, "cannot free the managed memory");
  }

 private:
  Outcome free() {
    const platform::Freeing freeing(base_, facts_.granted_size);
    return device_.cu().MemFree(base_);
  }

  CUdeviceptr base_ = 0;
};

// By member: headers of CUDA 13.4 have the id in a union, for which Clang wants more braces.
CUmemLocation location_of(CUmemLocationType type, int id) {
  CUmemLocation location{};
  location.type = type;
  location.id = id;
  return location;
}

CUmemLocation location_of(const Device& device, const backend::Location& location) {
  switch (location.type) {
    case GPUMEM_LOCATION_DEVICE:
      return location_of(CU_MEM_LOCATION_TYPE_DEVICE, device.all()[static_cast<size_t>(location.id)]);
    case GPUMEM_LOCATION_HOST_NUMA:
      return location_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, location.id);
    default:
      // Also where the advice has none: the driver reads the location all the same (measured).
      // A batch keeps the id and a single prefetch notes -1 (measured), so that others would seem to differ.
      return location_of(CU_MEM_LOCATION_TYPE_HOST, CU_DEVICE_CPU);
  }
}

// As older variants have it. Core gives them no node.
CUdevice device_of(const Device& device, const backend::Location& location) {
  return location.type == GPUMEM_LOCATION_DEVICE ? device.all()[static_cast<size_t>(location.id)]
                                                 : CU_DEVICE_CPU;
}

CUmem_advise advice_of(gpumem_advice advice) {
  static_assert(GPUMEM_ADVICE_SET_READ_MOSTLY == static_cast<int>(CU_MEM_ADVISE_SET_READ_MOSTLY));
  static_assert(GPUMEM_ADVICE_UNSET_READ_MOSTLY == static_cast<int>(CU_MEM_ADVISE_UNSET_READ_MOSTLY));
  static_assert(GPUMEM_ADVICE_SET_PREFERRED_LOCATION ==
                static_cast<int>(CU_MEM_ADVISE_SET_PREFERRED_LOCATION));
  static_assert(GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION ==
                static_cast<int>(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION));
  static_assert(GPUMEM_ADVICE_SET_ACCESSED_BY == static_cast<int>(CU_MEM_ADVISE_SET_ACCESSED_BY));
  static_assert(GPUMEM_ADVICE_UNSET_ACCESSED_BY == static_cast<int>(CU_MEM_ADVISE_UNSET_ACCESSED_BY));
  return static_cast<CUmem_advise>(advice);
}

unsigned flags_of(gpumem_attach attach) {
  static_assert(GPUMEM_ATTACH_GLOBAL == static_cast<int>(CU_MEM_ATTACH_GLOBAL));
  static_assert(GPUMEM_ATTACH_HOST == static_cast<int>(CU_MEM_ATTACH_HOST));
  static_assert(GPUMEM_ATTACH_SINGLE == static_cast<int>(CU_MEM_ATTACH_SINGLE));
  return static_cast<unsigned>(attach);
}

// Makes a call on a stream in relaxed mode, because it may otherwise invalidate another stream's capture.
template <class Call>
Outcome enqueue(backend::Stream& stream, Call call) {
  auto& own = static_cast<Stream&>(stream);
  const Relaxed relaxed(own.device().cu());
  return own.call(call);
}

CUstream native_of(backend::Stream& stream) { return static_cast<CUstream>(stream.native()); }

// The arrays that a batch call takes.
struct Arrays {
  Arrays(const Device& device, std::span<const backend::ManagedRange> ranges) {
    for (const backend::ManagedRange& range : ranges) {
      pointers.push_back(address_of(range.span.address));
      sizes.push_back(range.size);
      const bool same = !locations.empty() && last == range.location;
      last = range.location;
      if (same) continue;
      indices.push_back(pointers.size() - 1);
      locations.push_back(location_of(device, range.location));
    }
  }

  std::vector<CUdeviceptr> pointers;
  std::vector<size_t> sizes;
  std::vector<CUmemLocation> locations;
  std::vector<size_t> indices;  // the first range of each location
  backend::Location last;
};

}  // namespace

Result<std::unique_ptr<backend::Memory>> create_managed(Device& device,
                                                        const backend::MemoryRequest& request) {
  if (request.alignment > std::max(kManagedSlackMax, request.size / 8)) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "managed memory cannot be aligned to %llu bytes; request a smaller alignment",
                      static_cast<unsigned long long>(request.alignment));
  }
  auto memory = std::make_unique<ManagedMemory>(device);
  GPUMEM_TRY(memory->allocate(request.size, request.alignment, request.require | request.prefer));
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

Result<void> Managed::attach(backend::Stream& stream, const backend::Span& first, uint64_t size,
                             gpumem_attach attach) {
  const CUdeviceptr address = first.memory != nullptr
                                  ? static_cast<const ManagedMemory&>(*first.memory).base()
                                  : address_of(first.address);
  const uint64_t length = first.memory != nullptr ? 0 : size;  // 0: all of it
  return device_.check_enqueued(enqueue(stream,
                                        [&] {
                                          return device_.cu().StreamAttachMemAsync(native_of(stream), address,
                                                                                   length, flags_of(attach));
                                        }),
                                "the memory cannot be attached");
}

Result<bool> Managed::advise(const backend::Span& span, uint64_t size, gpumem_advice advice,
                             backend::Location location) {
  const Driver& cu = device_.cu();
  const CUdeviceptr address = address_of(span.address);
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  const Outcome outcome = [&] {
    const std::shared_lock lock(hints.get());
    return cu.version >= kTakesLocations
               ? cu.MemAdvise(address, size, advice_of(advice), location_of(device_, location))
               : cu.MemAdviseDevice(address, size, advice_of(advice), device_of(device_, location));
  }();
  GPUMEM_TRY(device_.check(outcome, Place::kDevice, "the advice cannot be given"));
  if (location.type != GPUMEM_LOCATION_HOST_NUMA || span.pageable) return true;
  // Check the result, because some drivers accept a node and ignore it (measured).
  auto known = facts(span, size);
  if (!known) return known.error();
  return known->preferred == location;
}

Result<void> Managed::prefetch(backend::Stream& stream, const backend::ManagedRange& range) {
  const Driver& cu = device_.cu();
  const CUdeviceptr address = address_of(range.span.address);
  const CUstream native = native_of(stream);
  const auto call = [&] {
    const std::shared_lock lock(hints.get());
    return cu.version >= kTakesLocations
               ? cu.MemPrefetchAsync(address, range.size, location_of(device_, range.location), 0, native)
               : cu.MemPrefetchDeviceAsync(address, range.size, device_of(device_, range.location), native);
  };
  return device_.check_enqueued(enqueue(stream, call), "the prefetch cannot be enqueued");
}

Result<void> Managed::prefetch_batch(backend::Stream& stream, std::span<const backend::ManagedRange> ranges) {
  const Driver& cu = device_.cu();
  if (cu.MemPrefetchBatchAsync.function == nullptr) {
    Result<void> result;
    for (auto range = ranges.begin(); range != ranges.end() && result; ++range)
      result = prefetch(stream, *range);
    // A failed call leaves no work behind.
    if (!result) (void)stream.synchronize(GPUMEM_TIMEOUT_INFINITE);
    return result;
  }
  Arrays arrays(device_, ranges);
  return device_.check_enqueued(
      enqueue(stream,
              [&] {
                const std::shared_lock lock(hints.get());
                return cu.MemPrefetchBatchAsync(
                    arrays.pointers.data(), arrays.sizes.data(), arrays.sizes.size(), arrays.locations.data(),
                    arrays.indices.data(), arrays.locations.size(), 0, native_of(stream));
              }),
      "the prefetches cannot be enqueued");
}

Result<void> Managed::discard_batch(backend::Stream& stream, std::span<const backend::ManagedRange> ranges) {
  Arrays arrays(device_, ranges);
  return device_.check_enqueued(enqueue(stream,
                                        [&] {
                                          return device_.cu().MemDiscardBatchAsync(
                                              arrays.pointers.data(), arrays.sizes.data(),
                                              arrays.sizes.size(), 0, native_of(stream));
                                        }),
                                "the discards cannot be enqueued");
}

Result<void> Managed::discard_and_prefetch_batch(backend::Stream& stream,
                                                 std::span<const backend::ManagedRange> ranges) {
  Arrays arrays(device_, ranges);
  return device_.check_enqueued(
      enqueue(stream,
              [&] {
                const std::shared_lock lock(hints.get());
                return device_.cu().MemDiscardAndPrefetchBatchAsync(
                    arrays.pointers.data(), arrays.sizes.data(), arrays.sizes.size(), arrays.locations.data(),
                    arrays.indices.data(), arrays.locations.size(), 0, native_of(stream));
              }),
      "the discards cannot be enqueued");
}

namespace {

// A location by the number that older drivers answer with.
backend::Location location_of_device(const Device& device, int number) {
  if (number == CU_DEVICE_CPU) return {GPUMEM_LOCATION_HOST, -1};
  for (size_t ordinal = 0; ordinal < device.all().size(); ++ordinal) {
    if (device.all()[ordinal] == number) return {GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(ordinal)};
  }
  return {};
}

backend::Location location_of_type(const Device& device, int type, int id) {
  switch (type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location_of_device(device, id);
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return {GPUMEM_LOCATION_HOST_NUMA, id};
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:  // by other code
      return {GPUMEM_LOCATION_HOST, -1};
    default:
      return {};
  }
}

}  // namespace

Result<backend::ManagedFacts> Managed::facts(const backend::Span& span, uint64_t size) {
  const Driver& cu = device_.cu();
  int read_mostly = 0;
  int preferred[2] = {CU_DEVICE_INVALID, 0};  // a type and an id, or a device
  int prefetched[2] = {CU_DEVICE_INVALID, 0};
  // The answer has a bit for each of 64 devices. No allocation: advice that was given must not fail
  // afterwards.
  std::array<int, 64 + 1> accessed_by;
  accessed_by.fill(CU_DEVICE_INVALID);
  const size_t accessed_size = std::min(device_.all().size() + 1, accessed_by.size()) * sizeof(int);
  const bool types = cu.version >= kTakesLocations;
  CUmem_range_attribute attributes[] = {
      CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
      CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
      types ? CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE : CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
      types ? CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE
            : CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
      CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID,
      CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID};
  void* values[] = {&read_mostly,   accessed_by.data(), &preferred[0],
                    &prefetched[0], &preferred[1],      &prefetched[1]};
  size_t sizes[] = {sizeof(int), accessed_size, sizeof(int), sizeof(int), sizeof(int), sizeof(int)};
  const size_t count = types ? std::size(attributes) : 4;
  {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    const std::unique_lock lock(hints.get());
    GPUMEM_TRY(device_.check(
        cu.MemRangeGetAttributes(values, sizes, attributes, count, address_of(span.address), size),
        Place::kHost, "cannot query the driver about %llu bytes at %p", static_cast<unsigned long long>(size),
        span.address));
  }
  backend::ManagedFacts facts;
  facts.read_mostly = read_mostly != 0;
  facts.preferred = types ? location_of_type(device_, preferred[0], preferred[1])
                          : location_of_device(device_, preferred[0]);
  facts.last_prefetch = types ? location_of_type(device_, prefetched[0], prefetched[1])
                              : location_of_device(device_, prefetched[0]);
  for (const int number : accessed_by) {
    const backend::Location accessor = location_of_device(device_, number);
    if (accessor.type == GPUMEM_LOCATION_HOST) facts.accessed_by_host = true;
    if (accessor.type == GPUMEM_LOCATION_DEVICE) facts.accessed_by_devices |= uint64_t{1} << accessor.id;
  }
  return facts;
}

}  // namespace gpumem::cuda
