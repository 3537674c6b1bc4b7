// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/region.h"

#include "base/arithmetic.h"
#include "platform/thread_record.h"

namespace gpumem::core {
namespace {

constinit std::atomic<uint64_t> last_buffer_id{0};

// What a device may do with a managed region (UVA-5).
Result<void> managed_reachable(const Region& region, const Device& device) {
  const backend::Managed* const managed = device.backend().managed();
  if (managed != nullptr && (managed->concurrent() || region.managed()->lets_devices())) return {};
  return make_error(GPUMEM_ERROR_NO_ACCESS,
                    managed == nullptr
                        ? "device %u has no managed memory"
                        : "device %u is not concurrent, and the managed memory is attached to the host",
                    device.ordinal());
}

}  // namespace

Region::Region(Type type, std::shared_ptr<Context> context, Device& device, const KindTraits& traits,
               uint64_t size, std::string name)
    : Object(type, std::move(context)),
      RegionState(traits),
      in_parts_(traits.in_parts),
      size_(size),
      device_(device),
      buffer_id_(last_buffer_id.fetch_add(1, std::memory_order_relaxed) + 1),
      name_(std::move(name)) {
  host_range_.owner = device_range_.owner = this;
}

const char* Region::pool_note() const {
  if (pool_blocks() == nullptr) return "";
  return pool_blocks()->empty()
             ? ", of a destroyed pool, and in use; synchronize the streams"
             : ", of a destroyed pool with live blocks; gpumem_pool_free_pointer() frees them";
}

const RegionRange* Region::reserve_range(PageMap& map, const void* pointer) noexcept {
  host_range_.begin = address_of(pointer);
  host_range_.size = size_;
  host_range_.base = host_range_.begin;
  const RegionRange* const taken = map.insert_unless_taken(host_range_);
  if (taken != nullptr) host_range_.size = 0;
  return taken;
}

void Region::cancel_range(PageMap& map) noexcept {
  if (host_range_.size == 0) return;
  map.erase(host_range_);
  platform::wait_for_looks();
}

void Region::record(PageMap& map, std::unique_ptr<backend::Memory> made) noexcept {
  backend_ = std::move(made);
  const backend::MemoryFacts& known = facts();
  address_ = address_of(known.host_pointer != nullptr ? known.host_pointer : known.device_pointer);
  const auto enter = [&](RegionRange& range, void* pointer) {
    if (pointer == nullptr || range.size != 0) return;
    const bool larger = address_of(pointer) - address_of(known.allocation) < known.allocation_size;
    range.begin = address_of(larger ? known.allocation : pointer);
    range.size = larger ? known.allocation_size : size_;
    range.base = address_of(pointer);
    map.insert(range);
  };

  info_.kind = kind();
  info_.device_ordinal = static_cast<int32_t>(device_.ordinal());
  info_.location = traits().managed ? GPUMEM_LOCATION_NONE : GPUMEM_LOCATION_HOST;
  info_.location_id = -1;
  if (traits().on_device) {
    info_.location = GPUMEM_LOCATION_DEVICE;
    info_.location_id = info_.device_ordinal;
  } else if (has(GPUMEM_MEMORY_NUMA_NODE)) {
    info_.location = GPUMEM_LOCATION_HOST_NUMA;
    info_.location_id = known.numa_node;
  }
  info_.host_pointer = known.host_pointer;
  info_.device_pointer = known.device_pointer;
  info_.size = size_;
  info_.buffer_id = buffer_id_;
  info_.granted_flags = known.granted;
  info_.memory = reinterpret_cast<gpumem_memory>(pointer_to(handle()));

  enter(host_range_, known.host_pointer);
  if (known.device_pointer != known.host_pointer) enter(device_range_, known.device_pointer);
}

void Region::erase(PageMap& map) noexcept {
  for (RegionRange* const range : {&host_range_, &device_range_}) {
    if (range->size != 0) map.erase(*range);
  }
}

Result<void> Region::peer_gone() const {
  if (!peer_->gone()) return {};
  return make_error(GPUMEM_ERROR_PEER_GONE,
                    "the process that exported the memory has ended; destroy the import");
}

Result<void> Region::reachable_by(const Device& device, bool write) const {
  if (traits().managed) return managed_reachable(*this, device);
  if (traits().imported) {
    GPUMEM_TRY(check_peer());
    if (!write || !has(GPUMEM_MEMORY_READ_ONLY)) return {};
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the memory was imported with GPUMEM_ACCESS_READ");
  }
  if (!traits().registered) return {};
  if (!has(GPUMEM_MEMORY_MAPPED)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS,
                      "the memory was registered without GPUMEM_MEMORY_MAPPED and has no device pointer");
  }
  if (&device != &device_ && !has(GPUMEM_MEMORY_PORTABLE)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS,
                      "the memory was registered for device %u without GPUMEM_MEMORY_PORTABLE, so device %u "
                      "cannot access it",
                      device_.ordinal(), device.ordinal());
  }
  if (write && has(GPUMEM_MEMORY_READ_ONLY)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the memory was registered with GPUMEM_MEMORY_READ_ONLY");
  }
  return {};
}

gpumem_access Region::access_of(const Device& device) const {
  if (traits().imported && &device != &device_) return GPUMEM_ACCESS_NONE;
  if (traits().peer_access) {
    const bool reaches = &device == &device_ || (from_driver_ ? (users_ >> (device.ordinal() & 63) & 1) != 0
                                                              : device.has_peer_access(device_));
    return reaches ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE;
  }
  if (reachable_by(device, true)) return GPUMEM_ACCESS_READWRITE;
  return reachable_by(device, false) ? GPUMEM_ACCESS_READ : GPUMEM_ACCESS_NONE;
}

}  // namespace gpumem::core
