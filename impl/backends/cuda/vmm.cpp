// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/vmm.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "backends/cuda/memory.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/descriptor.h"
#include "platform/host_budget.h"
#include "platform/pages.h"
#include "platform/thread_record.h"

namespace gpumem::cuda {
namespace {

unsigned long long number(uint64_t value) { return value; }

// ---- physical memory ----

class Physical final : public backend::Physical {
 public:
  Physical(Device& device, CUmemGenericAllocationHandle native, const backend::PhysicalFacts& facts)
      : device_(device), native_(native) {
    facts_ = facts;
  }

  Device& device() const { return device_; }
  uint64_t native() const override { return native_; }
  void set_granted(gpumem_physical_flags granted) { facts_.granted = granted; }
  void set_handle_types(gpumem_handle_types types) { facts_.handle_types = types; }

  // What the driver made of the properties that were asked for.
  Outcome read_back(CUmemAllocationProp* out) const {
    return device_.cu().MemGetAllocationPropertiesFromHandle(out, native_);
  }

  Result<int> export_fd() override {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    int file_descriptor = -1;
    const Outcome outcome = device_.cu().MemExportToShareableHandle(
        &file_descriptor, native_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return check_descriptor(device_, outcome, file_descriptor, "cannot export the physical memory");
  }

  Result<gpumem_fabric_handle> export_fabric() override {
    static_assert(sizeof(gpumem_fabric_handle) == sizeof(CUmemFabricHandle));
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    gpumem_fabric_handle handle{};
    GPUMEM_TRY(
        device_.check(device_.cu().MemExportToShareableHandle(&handle, native_, CU_MEM_HANDLE_TYPE_FABRIC, 0),
                      Place::kHost, "cannot export the physical memory to the fabric"));
    return handle;
  }

  Result<void> release() override {
    if (released_) return {};
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    const Outcome outcome = device_.cu().MemRelease(native_);
    if (!refused(outcome)) released_ = true;
    return device_.check_release(outcome, "cannot release the physical memory");
  }

 private:
  Device& device_;
  const CUmemGenericAllocationHandle native_;
  bool released_ = false;
};

// Releases what is not to be kept. A release may be told of an earlier error, and the next one succeeds then.
void drop(Physical& physical) {
  if (!physical.release()) (void)physical.release();
}

gpumem_physical_flags granted_of(const CUmemAllocationProp& properties) {
  gpumem_physical_flags granted = 0;
  if (properties.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC)
    granted |= GPUMEM_PHYSICAL_COMPRESSIBLE;
  if (properties.allocFlags.gpuDirectRDMACapable != 0) granted |= GPUMEM_PHYSICAL_RDMA;
  return granted;
}

gpumem_handle_types types_of(const CUmemAllocationProp& properties) {
  const unsigned native = properties.requestedHandleTypes;
  gpumem_handle_types types = 0;
  if ((native & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) types |= GPUMEM_HANDLE_TYPE_POSIX_FD;
  if ((native & CU_MEM_HANDLE_TYPE_FABRIC) != 0) types |= GPUMEM_HANDLE_TYPE_FABRIC;
  return types;
}

CUmemLocationType location_type(gpumem_location location) {
  if (location == GPUMEM_LOCATION_HOST) return CU_MEM_LOCATION_TYPE_HOST;
  return location == GPUMEM_LOCATION_HOST_NUMA ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
}

// ---- reservations ----

class Reservation final : public backend::Reservation {
 public:
  Reservation(Device& device, CUdeviceptr base, uint64_t size) : device_(device), base_(base), size_(size) {
    facts_.device_pointer = pointer_to(base);
    facts_.granted_size = size;
    gone_.reserve(4);  // unmapping, which undoes what failed for lack of memory, takes none then
  }

  Result<void> map(uint64_t offset, std::span<backend::Physical* const> blocks) override {
    Device& device = static_cast<Physical&>(*blocks.front()).device();
    RelaxedScope scope(device);
    GPUMEM_TRY(scope.entered());
    GPUMEM_TRY(unmap_strays());
    strays_.reserve(1);
    uint64_t at = offset;
    Cleanup undo([&] { take_back({offset, at}, device); });
    for (backend::Physical* const block : blocks) {
      const auto& physical = static_cast<Physical&>(*block);
      const uint64_t size = physical.facts().size;
      const Outcome outcome = device_.cu().MemMap(base_ + at, size, 0, physical.native(), 0);
      // The driver maps blocks whole, so a refusal says that an import has another size (measured).
      if (outcome.code == CUDA_ERROR_NOT_SUPPORTED && physical.facts().imported) {
        return make_error(
                   GPUMEM_ERROR_INVALID_ARGUMENT,
                   "the imported memory has not %llu bytes; import it with the size that it was created "
                   "with",
                   number(size))
            .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
      }
      GPUMEM_TRY(device.check(outcome, Place::kDevice, "cannot map %llu bytes at offset %llu", number(size),
                              number(at)));
      at += size;
    }
    undo.dismiss();
    return {};
  }

  // The driver may report an earlier error although the mappings are gone; then the next try succeeds.
  Result<void> unmap(uint64_t offset, uint64_t size, backend::Device& home) override {
    auto& device = static_cast<Device&>(home);
    std::optional<RelaxedScope> scope;  // not entered where all is gone: then nothing can fail
    const uint64_t end = offset + size;
    gone_.reserve(gone_.size() + 2);  // what is split, and what is added
    for (uint64_t at = offset; at < end;) {
      // The first part from here on that is gone already.
      Part gone{end, end};
      for (const Part& part : gone_) {
        if (at < part.end && part.begin < gone.begin) gone = part;
      }
      if (gone.begin <= at) {
        at = gone.end;
        continue;
      }
      if (!scope) {
        scope.emplace(device);
        GPUMEM_TRY(scope->entered_for_release());
      }
      const Outcome outcome = unmap_part({at, gone.begin});
      auto unmapped = device.check_release(outcome, "cannot unmap a part of the range");
      if (!unmapped) {
        const Part done{offset, refused(outcome) ? at : gone.begin};
        forget_gone(done);
        if (done.begin != done.end) gone_.push_back(done);
        return unmapped;
      }
      at = gone.begin;
    }
    forget_gone({offset, end});
    return {};
  }

  Result<void> set_access(std::span<const backend::AccessPart> parts,
                          std::span<const backend::AccessChange> changes) override {
    const auto named = std::find_if(changes.begin(), changes.end(), [](const backend::AccessChange& change) {
      return change.device != nullptr;
    });
    Device& device = named != changes.end() ? static_cast<Device&>(*named->device) : device_;
    const bool of_cpu = std::any_of(changes.begin(), changes.end(), [](const backend::AccessChange& change) {
      return change.device == nullptr;
    });
    RelaxedScope scope(device);
    GPUMEM_TRY(scope.entered());
    std::vector<CUmemAccessDesc> wanted(changes.size());
    // The CPU is named by the location of the memory, so each call is about mappings of one location.
    for (size_t begin = 0; begin < parts.size();) {
      size_t end = begin + 1;
      while (end < parts.size() && (!of_cpu || parts[end].location == parts[begin].location))
        ++end;
      for (size_t index = 0; index < changes.size(); ++index)
        wanted[index] = describe(changes[index].device, changes[index].access, parts[begin].location);
      const uint64_t offset = parts[begin].offset;
      const uint64_t size = parts[end - 1].offset + parts[end - 1].size - offset;
      const Outcome outcome = device_.cu().MemSetAccess(base_ + offset, size, wanted.data(), wanted.size());
      if (!outcome.ok()) {
        auto failed =
            device.check(outcome, Place::kDevice, "cannot set the access to %llu bytes", number(size));
        set_back(parts.first(end), {begin, refused(outcome) ? begin : end}, changes, wanted);
        return failed;
      }
      // The driver lets children inherit what the CPU may use.
      if (of_cpu) platform::keep_from_children(pointer_to(base_ + offset), size);
      begin = end;
    }
    return {};
  }

  Result<std::unique_ptr<backend::Physical>> retain(uint64_t offset,
                                                    const backend::PhysicalFacts& facts) override {
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered());
    CUmemGenericAllocationHandle native = 0;
    GPUMEM_TRY(device_.check(device_.cu().MemRetainAllocationHandle(&native, pointer_to(base_ + offset)),
                             Place::kHost, "cannot get a handle of the memory that is mapped"));
    Cleanup undo([&] { (void)device_.cu().MemRelease(native); });
    auto retained = std::make_unique<Physical>(device_, native, facts);
    undo.dismiss();
    return std::unique_ptr<backend::Physical>(std::move(retained));
  }

  Result<void> release() override {
    if (released_) return {};
    RelaxedScope scope(device_);
    GPUMEM_TRY(scope.entered_for_release());
    GPUMEM_TRY(unmap_strays());
    const platform::Freeing freeing(base_, size_);
    const Outcome outcome = device_.cu().MemAddressFree(base_, size_);
    if (!refused(outcome)) released_ = true;
    return device_.check_release(outcome, "cannot release the addresses");
  }

 private:
  struct Part {
    uint64_t begin;
    uint64_t end;
  };
  struct Stray {
    Part part;
    Device* home;
  };

  static CUmemAccessDesc describe(backend::Device* processor, gpumem_access access,
                                  gpumem_location location) {
    CUmemAccessDesc result{};
    result.location.type = processor != nullptr ? CU_MEM_LOCATION_TYPE_DEVICE : location_type(location);
    result.location.id = processor != nullptr ? static_cast<Device&>(*processor).handle() : 0;
    result.flags = static_cast<CUmemAccess_flags>(access);  // the same numbers
    return result;
  }

  Outcome unmap_part(Part part) {
    const platform::Freeing freeing(base_ + part.begin, part.end - part.begin);
    return device_.cu().MemUnmap(base_ + part.begin, part.end - part.begin);
  }

  // Unmaps what a call that failed has mapped.
  void take_back(Part part, Device& home) {
    if (part.begin != part.end && refused(unmap_part(part)) && refused(unmap_part(part)))
      strays_.push_back({part, &home});
  }
  Result<void> unmap_strays() {
    for (; !strays_.empty(); strays_.pop_back()) {
      const auto [part, home] = strays_.back();
      const Outcome outcome = unmap_part(part);
      auto unmapped = home->check_release(outcome, "cannot unmap what an earlier call has mapped");
      if (!unmapped && refused(outcome)) return unmapped;
    }
    return {};
  }

  // Parts are apart from each other, so one of them is split at most.
  void forget_gone(Part where) {
    for (size_t index = gone_.size(); index-- > 0;) {
      const Part part = gone_[index];
      if (part.end <= where.begin || where.end <= part.begin) continue;
      gone_.erase(gone_.begin() + static_cast<std::ptrdiff_t>(index));
      if (part.begin < where.begin) gone_.push_back({part.begin, where.begin});
      if (where.end < part.end) gone_.push_back({where.end, part.end});
    }
  }

  // How many parts, from the first on, a failed call has changed.
  struct Changed {
    size_t surely;
    size_t perhaps;
  };

  // Sets back what a failed call may have changed, and notes in the parts what could not be. One call for
  // parts that were alike, because a busy driver takes its time for each.
  void set_back(std::span<const backend::AccessPart> parts, Changed changed,
                std::span<const backend::AccessChange> changes, std::vector<CUmemAccessDesc>& buffer) {
    for (size_t begin = 0; begin < parts.size();) {
      const backend::AccessPart& first = parts[begin];
      uint64_t size = 0;
      size_t end = begin;
      for (; end < parts.size() && parts[end].location == first.location &&
             std::equal(first.before, first.before + changes.size(), parts[end].before);
           ++end)
        size += parts[end].size;
      for (size_t index = 0; index < changes.size(); ++index)
        buffer[index] = describe(changes[index].device, first.before[index], first.location);
      const Outcome outcome =
          device_.cu().MemSetAccess(base_ + first.offset, size, buffer.data(), buffer.size());
      for (size_t part = begin; !outcome.ok() && part < std::min(end, changed.perhaps); ++part) {
        const bool known = part < changed.surely && refused(outcome);
        for (size_t index = 0; index < changes.size(); ++index) {
          gpumem_access& access = parts[part].before[index];
          access = known ? changes[index].access : access & changes[index].access;
        }
      }
      begin = end;
    }
  }

  Device& device_;
  const CUdeviceptr base_;
  const uint64_t size_;
  bool released_ = false;
  std::vector<Part> gone_;     // unmapped by calls that failed
  std::vector<Stray> strays_;  // mapped by a call that failed
};

}  // namespace

Result<void> check_room_for_descriptors(Outcome outcome) {
  if (outcome.ok() || outcome.missing() || !platform::out_of_descriptors()) return {};
  return platform::no_descriptor(EMFILE, outcome.entry_point)
      .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
}

Result<int> check_descriptor(Device& device, Outcome outcome, int file_descriptor, const char* what) {
  GPUMEM_TRY(check_room_for_descriptors(outcome));
  GPUMEM_TRY(device.check(outcome, Place::kHost, "%s", what));
  platform::close_on_exec(file_descriptor);
  return file_descriptor;
}

// ---- the facet ----

CUmemAllocationProp VirtualMemory::properties_for(const backend::PhysicalRequest& request,
                                                  gpumem_physical_flags wanted) const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = location_type(request.location);
  if (request.location == GPUMEM_LOCATION_DEVICE) properties.location.id = device_.handle();
  if (request.location == GPUMEM_LOCATION_HOST_NUMA) properties.location.id = request.numa_node;
  unsigned types = CU_MEM_HANDLE_TYPE_NONE;
  if ((request.handle_types & GPUMEM_HANDLE_TYPE_POSIX_FD) != 0)
    types |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((request.handle_types & GPUMEM_HANDLE_TYPE_FABRIC) != 0) types |= CU_MEM_HANDLE_TYPE_FABRIC;
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  if ((wanted & GPUMEM_PHYSICAL_COMPRESSIBLE) != 0)
    properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  if ((wanted & GPUMEM_PHYSICAL_RDMA) != 0) properties.allocFlags.gpuDirectRDMACapable = 1;
  if ((wanted & GPUMEM_PHYSICAL_HW_DECOMPRESS) != 0)
    properties.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
  return properties;
}

Result<backend::Granularity> VirtualMemory::granularity(const backend::PhysicalRequest& request) {
  const size_t place = static_cast<size_t>(request.location) * 2 + (request.handle_types != 0 ? 1 : 0);
  KnownUnit& known = known_.at(place);
  if (const uint64_t recommended = known.recommended.load(std::memory_order_acquire); recommended != 0) {
    return backend::Granularity{known.minimum.load(std::memory_order_relaxed), recommended};
  }
  const CUmemAllocationProp properties = properties_for(request, 0);
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  const auto ask = [&](CUmemAllocationGranularity_flags which, size_t* out) {
    return device_.check(device_.cu().MemGetAllocationGranularity(out, &properties, which), Place::kHost,
                         "cannot query the granularity of physical memory");
  };
  size_t minimum = 0;
  size_t recommended = 0;
  GPUMEM_TRY(ask(CU_MEM_ALLOC_GRANULARITY_MINIMUM, &minimum));
  GPUMEM_TRY(ask(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, &recommended));
  known.minimum.store(minimum, std::memory_order_relaxed);
  known.recommended.store(recommended, std::memory_order_release);
  return backend::Granularity{minimum, recommended};
}

Result<std::unique_ptr<backend::Physical>> VirtualMemory::try_create(const backend::PhysicalRequest& request,
                                                                     gpumem_physical_flags wanted) {
  auto unit = granularity(request);
  if (!unit) return unit.error();
  const bool on_device = request.location == GPUMEM_LOCATION_DEVICE;
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  backend::PhysicalFacts facts;
  facts.location = request.location;
  if (on_device) facts.location_id = static_cast<int32_t>(device_.facts().ordinal);
  if (request.location == GPUMEM_LOCATION_HOST_NUMA) facts.location_id = request.numa_node;
  facts.size = request.size;
  facts.granularity = unit->minimum;
  facts.handle_types = request.handle_types;
  facts.block_id = backend::next_block_id();
  const CUmemAllocationProp properties = properties_for(request, wanted);
  CUmemGenericAllocationHandle native = 0;
  GPUMEM_TRY(device_.check(device_.cu().MemCreate(&native, request.size, &properties, 0),
                           on_device ? Place::kDevice : Place::kHost,
                           "cannot create %llu bytes of physical memory", number(request.size)));
  std::unique_ptr<Physical> physical;
  Cleanup undo([&] {
    if (physical != nullptr) {
      drop(*physical);
    } else {
      (void)device_.cu().MemRelease(native);
    }
  });
  physical = std::make_unique<Physical>(device_, native, facts);
  if (wanted != 0) {
    CUmemAllocationProp made{};
    GPUMEM_TRY(device_.check(physical->read_back(&made), Place::kHost,
                             "cannot read the properties of the physical memory back"));
    // What the memory is for is not read back, though the driver knows it of pointers (measured).
    const gpumem_physical_flags granted = granted_of(made) | (wanted & GPUMEM_PHYSICAL_HW_DECOMPRESS);
    if ((request.require & ~granted) != 0) {
      return make_error(
          GPUMEM_ERROR_UNSUPPORTED,
          "the driver did not grant the properties 0x%llx that are required; prefer them instead",
          number(request.require & ~granted));
    }
    physical->set_granted(granted);
  }
  undo.dismiss();
  return std::unique_ptr<backend::Physical>(std::move(physical));
}

// A preference must not make the call fail.
Result<std::unique_ptr<backend::Physical>> VirtualMemory::create(const backend::PhysicalRequest& request) {
  const bool on_host = request.location != GPUMEM_LOCATION_DEVICE;
  if (on_host && request.size >= platform::kLargeOnHost)
    GPUMEM_TRY(platform::check_host_budget(request.size));
  const gpumem_physical_flags wanted = request.require | request.prefer;
  auto made = try_create(request, wanted);
  if (!made && wanted != request.require && !device_.lost()) return try_create(request, request.require);
  return made;
}

template <class Refusal>
Result<std::unique_ptr<backend::Physical>> VirtualMemory::import(const backend::PhysicalRequest& request,
                                                                 void* shared, CUmemAllocationHandleType type,
                                                                 Refusal refusal) {
  auto unit = granularity(request);
  if (!unit) return unit.error();
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  CUmemGenericAllocationHandle native = 0;
  const Outcome outcome = device_.cu().MemImportFromShareableHandle(&native, shared, type);
  GPUMEM_TRY(check_room_for_descriptors(outcome));
  // For something else (measured of descriptors).
  if (outcome.code == CUDA_ERROR_UNKNOWN || outcome.code == CUDA_ERROR_INVALID_VALUE ||
      outcome.code == CUDA_ERROR_INVALID_HANDLE) {
    return refusal("is not of physical memory")
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  GPUMEM_TRY(device_.check(outcome, Place::kHost, "cannot import the physical memory"));
  backend::PhysicalFacts facts;
  facts.location = request.location;
  if (request.location == GPUMEM_LOCATION_DEVICE)
    facts.location_id = static_cast<int32_t>(device_.facts().ordinal);
  if (request.location == GPUMEM_LOCATION_HOST_NUMA) facts.location_id = request.numa_node;
  facts.size = request.size;
  facts.granularity = unit->minimum;
  facts.block_id = backend::next_block_id();
  facts.imported = true;
  std::unique_ptr<Physical> physical;
  Cleanup undo([&] {
    if (physical != nullptr) {
      drop(*physical);
    } else {
      (void)device_.cu().MemRelease(native);
    }
  });
  physical = std::make_unique<Physical>(device_, native, facts);
  CUmemAllocationProp made{};
  GPUMEM_TRY(device_.check(physical->read_back(&made), Place::kHost,
                           "cannot read the properties of the physical memory"));
  const CUmemAllocationProp expected = properties_for(request, 0);
  if (made.location.type != expected.location.type || made.location.id != expected.location.id) {
    return refusal("is of memory at another location than that in desc");
  }
  physical->set_granted(granted_of(made));
  // The driver exports no imports, and says so here (measured of descriptors).
  physical->set_handle_types(types_of(made));
  undo.dismiss();
  return std::unique_ptr<backend::Physical>(std::move(physical));
}

Result<std::unique_ptr<backend::Physical>> VirtualMemory::import_fd(const backend::PhysicalRequest& request,
                                                                    int file_descriptor) {
  const auto refusal = [&](const char* why) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "file descriptor %d %s; pass one that gpumem_physical_export_fd() has made",
                      file_descriptor, why);
  };
  const platform::DescriptorFacts known = platform::describe(file_descriptor);
  if (!known.open) return refusal("is not open");
  if (!known.shareable) return refusal("is not of physical memory");
  return import(request, pointer_to(static_cast<uint64_t>(file_descriptor)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, refusal);
}

Result<std::unique_ptr<backend::Physical>> VirtualMemory::import_fabric(
    const backend::PhysicalRequest& request, const gpumem_fabric_handle& handle) {
  gpumem_fabric_handle native = handle;  // the driver takes no constant
  return import(request, &native, CU_MEM_HANDLE_TYPE_FABRIC, [](const char* why) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the fabric handle %s; pass one that gpumem_physical_export_fabric() has made", why);
  });
}

Result<std::unique_ptr<backend::Reservation>> VirtualMemory::reserve(
    const backend::ReservationRequest& request) {
  const Driver& cu = device_.cu();
  const auto unmet = [&] {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "a range cannot be aligned to %llu bytes; request a smaller alignment",
                      number(request.alignment));
  };
  if (request.alignment > kAlignmentMax) return unmet();
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  CUdeviceptr base = 0;
  const uint64_t hint = address_of(request.address);
  Outcome outcome = cu.MemAddressReserve(&base, request.size, request.alignment, hint, 0);
  // A place that the driver cannot have is no reason to fail where it is only a wish.
  if (outcome.code == CUDA_ERROR_INVALID_VALUE && hint != 0 && !request.fixed)
    outcome = cu.MemAddressReserve(&base, request.size, request.alignment, 0, 0);
  if (outcome.code == CUDA_ERROR_INVALID_VALUE && !request.fixed) return unmet();
  GPUMEM_TRY(device_.check(outcome, Place::kAddresses, "cannot reserve addresses for %llu bytes",
                           number(request.size)));
  std::unique_ptr<Reservation> reservation;
  Cleanup undo([&] {
    if (reservation == nullptr) {
      (void)cu.MemAddressFree(base, request.size);
    } else if (!reservation->release()) {
      (void)reservation->release();
    }
  });
  reservation = std::make_unique<Reservation>(device_, base, request.size);
  if (request.fixed && base != hint) {
    return make_error(GPUMEM_ERROR_ALREADY_EXISTS, "the addresses from %p on are in use; reserve others",
                      request.address);
  }
  if (base % request.alignment != 0) return unmet();
  undo.dismiss();
  return std::unique_ptr<backend::Reservation>(std::move(reservation));
}

}  // namespace gpumem::cuda
