// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/copy.h"
#include "core/host_function.h"
#include "core/instance.h"
#include "core/lifecycle.h"
#include "core/memory.h"
#include "platform/host_budget.h"
#include "platform/pages.h"
#include "platform/thread_record.h"

namespace gpumem::core {
namespace {

// An object that a buffer holds by its handle. It is gone only if the instance is being closed.
template <class T>
Result<Ref<T>> held(uint64_t handle) {
  Ref<T> found = acquire<T>(platform::thread_record(), handle);
  if (!found) return handles::refusal(handle, T::kType);
  return found;
}

// Gives an object back. A driver may report what went wrong before; then the next try succeeds.
template <class T, class End>
Result<void> give_back(uint64_t handle, End end) {
  Result<void> ended;
  for (int tries = 0; tries < 2; ++tries) {
    auto object = held<T>(handle);
    if (!object) return object.error();
    try {
      ended = end(std::move(*object));
    } catch (const std::bad_alloc&) {  // destructors call this
      ended = make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory to give memory back");
    }
    if (ended || ended.error().status == GPUMEM_ERROR_BUSY) break;
  }
  return ended;
}

// Does work and waits for it. If the wait itself fails, the work may go on; a second try waits for both.
template <class Work>
Result<void> complete(Work work) {
  auto done = work();
  return done ? done : work();
}

void* at(void* base, uint64_t offset) { return pointer_to(address_of(base) + offset); }

// What nobody asked for otherwise: the device of the call, and the CPU where it can.
std::vector<AccessRequest> default_accesses(Device& device, gpumem_location location) {
  std::vector<AccessRequest> accesses{{&device, GPUMEM_ACCESS_READWRITE}};
  if (location != GPUMEM_LOCATION_DEVICE) accesses.push_back({nullptr, GPUMEM_ACCESS_READWRITE});
  return accesses;
}

// Drops a handle of physical memory; the mapping keeps the memory.
void drop(uint64_t physical) { (void)give_back<Physical>(physical, release_physical); }

}  // namespace

Buffer::Buffer(std::shared_ptr<Instance> instance, Device& device, const BufferRequest& request,
               std::string name)
    : Object(kType, std::move(instance)),
      device_(device),
      request_(request),
      name_(std::move(name)),
      accesses_(request.accesses.empty() ? default_accesses(device, request.physical.location)
                                         : request.accesses) {
  facts_.location = request.physical.location;
  if (facts_.location == GPUMEM_LOCATION_DEVICE) facts_.location_id = static_cast<int32_t>(device.ordinal());
  if (facts_.location == GPUMEM_LOCATION_HOST_NUMA) facts_.location_id = request.physical.numa_node;
}

Buffer::~Buffer() {
  // What has a handle is the instance's to destroy, if it was closed.
  if (store_.memory == 0 && store_.bytes != nullptr) platform::unmap(store_.bytes, store_.size);
}

gpumem_buffer_info Buffer::info() const {
  const std::lock_guard lock(mutex_);
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  info.base = place_.base;
  info.size = size_;
  info.capacity = capacity_;
  info.reserved_size = place_.size;
  info.granularity = unit_;
  info.block_count = blocks_.size();
  info.generation = generation_;
  info.stored_size = store_.size;
  info.location = facts_.location;
  info.location_id = facts_.location_id;
  info.device = reinterpret_cast<gpumem_device>(pointer_to(instance().device_handle(device_.ordinal())));
  info.device_ordinal = device_.ordinal();
  info.asleep = asleep_ ? 1 : 0;
  info.range = reinterpret_cast<gpumem_range>(pointer_to(place_.range));
  info.buffer_id = place_.buffer_id;
  std::snprintf(info.name, sizeof info.name, "%s", name_.c_str());
  return info;
}

// ---- addresses ----

// Reserves as much as wanted, or half of it, and so on; not less than `least`.
Result<Buffer::Place> Buffer::reserve(uint64_t wanted, uint64_t least) {
  const uint64_t smallest = round_up(std::max(least, uint64_t{1}), reserve_unit_);
  for (uint64_t size = std::max(round_up(wanted, reserve_unit_), smallest);;) {
    backend::ReservationRequest request;
    request.size = size;
    request.alignment = reserve_unit_;
    auto range = reserve_range(shared_instance(), request, name_);
    if (range) {
      auto made = held<Range>(*range);
      if (!made) return made.error();
      (*made)->set_owned();
      return Place{*range, pointer_to((*made)->address()), size, (*made)->buffer_id()};
    }
    if (range.error().status != GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE || size == smallest) return range.error();
    size = std::max(round_up(size / 2, reserve_unit_), smallest);
  }
}

Result<void> Buffer::release(const Place& place) { return give_back<Range>(place.range, destroy_range); }

Result<void> Buffer::unmap(const Place& place, uint64_t offset, uint64_t size) {
  if (size == 0) return {};
  return give_back<Range>(place.range,
                          [&](Ref<Range> range) { return unmap_range(std::move(range), offset, size); });
}

Result<void> Buffer::grant(const Place& place, uint64_t offset, uint64_t size,
                           const std::vector<AccessRequest>& changes) {
  if (size == 0 || changes.empty()) return {};
  auto range = held<Range>(place.range);
  if (!range) return range.error();
  return set_range_access(std::move(*range), offset, size, changes);
}

// ---- memory ----

// Makes a block, and maps it with access.
Result<void> Buffer::map_block(const Place& place, uint64_t offset, uint64_t size,
                               const std::vector<AccessRequest>& accesses) {
  auto root = held<DeviceObject>(instance().device_handle(device_.ordinal()));
  if (!root) return root.error();
  backend::PhysicalRequest request = request_.physical;
  request.size = size;
  auto made = create_physical(**root, request, name_);
  if (!made) return made.error();
  const Cleanup handle([&] { drop(*made); });
  backend::PhysicalFacts facts;
  {
    auto physical = held<Physical>(*made);
    if (!physical) return physical.error();
    facts = (*physical)->facts();
    auto range = held<Range>(place.range);
    if (!range) return range.error();
    std::vector<Ref<Physical>> blocks;
    blocks.push_back(std::move(*physical));
    GPUMEM_TRY(map_range(std::move(*range), offset, blocks));
  }
  Cleanup undo([&] { (void)unmap(place, offset, size); });
  GPUMEM_TRY(grant(place, offset, size, accesses));
  undo.dismiss();
  facts_ = facts;
  return {};
}

// Gives memory to so many bytes at least.
Result<void> Buffer::provide(uint64_t capacity) {
  if (capacity <= capacity_) return {};
  const uint64_t wanted = round_up(capacity, unit_);
  if (wanted > place_.size) {
    if ((request_.flags & GPUMEM_BUFFER_MOVABLE) == 0) {
      return make_error(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
                        "the buffer has %" PRIu64 " bytes of addresses, but %" PRIu64
                        " are needed; reserve more, or create it with GPUMEM_BUFFER_MOVABLE",
                        place_.size, wanted);
    }
    return move(wanted);
  }
  blocks_.reserve(blocks_.size() + 1);
  GPUMEM_TRY(map_block(place_, capacity_, wanted - capacity_, accesses_));
  blocks_.push_back(wanted - capacity_);
  capacity_ = wanted;
  return {};
}

// Takes back the blocks that lie whole behind so many bytes.
Result<void> Buffer::take_back(uint64_t size) {
  uint64_t kept = capacity_;
  size_t count = blocks_.size();
  while (count > 0 && kept - blocks_[count - 1] >= size)
    kept -= blocks_[--count];
  GPUMEM_TRY(unmap(place_, kept, capacity_ - kept));
  blocks_.resize(count);
  capacity_ = kept;
  return {};
}

// Maps the blocks at another place too.
Result<void> Buffer::alias(const Place& place) {
  std::vector<uint64_t> retained;
  retained.reserve(blocks_.size());
  const Cleanup handles([&] {
    for (const uint64_t handle : retained)
      drop(handle);
  });
  uint64_t offset = 0;
  for (const uint64_t size : blocks_) {
    auto handle = retain_physical(instance(), at(place_.base, offset));
    if (!handle) return handle.error();
    retained.push_back(*handle);
    offset += size;
  }
  if (retained.empty()) return {};
  {
    std::vector<Ref<Physical>> blocks;
    blocks.reserve(retained.size());
    for (const uint64_t handle : retained) {
      auto block = held<Physical>(handle);
      if (!block) return block.error();
      blocks.push_back(std::move(*block));
    }
    auto range = held<Range>(place.range);
    if (!range) return range.error();
    GPUMEM_TRY(map_range(std::move(*range), 0, blocks));
  }
  Cleanup undo([&] { (void)unmap(place, 0, capacity_); });
  GPUMEM_TRY(grant(place, 0, capacity_, accesses_));
  undo.dismiss();
  return {};
}

// To a larger reservation, with room for more growth. No byte is copied.
Result<void> Buffer::move(uint64_t capacity) {
  const uint64_t twice = place_.size > kSizeMax / 2 ? capacity : place_.size * 2;
  auto larger = reserve(std::max(twice, capacity), capacity);
  if (!larger) return larger.error();
  uint64_t mapped = 0;
  Cleanup undo([&] {
    (void)unmap(*larger, 0, mapped);
    (void)release(*larger);
  });
  blocks_.reserve(blocks_.size() + 1);
  GPUMEM_TRY(alias(*larger));
  mapped = capacity_;
  GPUMEM_TRY(map_block(*larger, capacity_, capacity - capacity_, accesses_));
  mapped = capacity;
  GPUMEM_TRY(unmap(place_, 0, capacity_));
  undo.dismiss();
  const Place old = std::exchange(place_, *larger);
  blocks_.push_back(capacity - capacity_);
  capacity_ = capacity;
  ++generation_;
  (void)release(old);  // an address range that cannot be given back is all that is left
  return {};
}

Result<void> Buffer::check_awake() const {
  if (cleared_)
    return make_error(GPUMEM_ERROR_STALE_HANDLE, "another thread destroyed this buffer during the call");
  GPUMEM_TRY(outside_host_function());
  if (!asleep_) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE, "the buffer is asleep; call gpumem_buffer_wake first");
}

// Asked where nothing is mapped yet that would refuse: what is accepted now must hold once there is.
Result<void> Buffer::check_accesses(const std::vector<AccessRequest>& changes) const {
  if (request_.physical.location != GPUMEM_LOCATION_DEVICE) return {};
  for (const AccessRequest& change : changes)
    GPUMEM_TRY(check_can_have(device_, change.device));
  return {};
}

Result<void> Buffer::resize(uint64_t size) {
  const std::lock_guard lock(mutex_);
  GPUMEM_TRY(device_.usable());
  GPUMEM_TRY(check_awake());
  if (size < size_) {
    GPUMEM_TRY(take_back(size));
  } else {
    GPUMEM_TRY(provide(size));
  }
  size_ = size;
  return {};
}

Result<void> Buffer::set_capacity(uint64_t capacity) {
  const std::lock_guard lock(mutex_);
  if (capacity != 0 && capacity < size_) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the capacity of %" PRIu64 " bytes is below the size of %" PRIu64
                      " bytes; resize the buffer first, or pass 0",
                      capacity, size_);
  }
  GPUMEM_TRY(device_.usable());
  GPUMEM_TRY(check_awake());
  const uint64_t wanted = std::max(capacity, size_);
  return wanted < capacity_ ? take_back(wanted) : provide(wanted);
}

Result<void> Buffer::set_access(const std::vector<AccessRequest>& changes) {
  const std::lock_guard lock(mutex_);
  GPUMEM_TRY(device_.usable());
  GPUMEM_TRY(check_awake());
  std::vector<AccessRequest> all = accesses_;
  for (const AccessRequest& change : changes) {
    const auto same = [&](const AccessRequest& known) { return known.device == change.device; };
    if (const auto known = std::find_if(all.begin(), all.end(), same); known != all.end()) {
      known->access = change.access;
    } else {
      all.push_back(change);
    }
  }
  if (capacity_ == 0) GPUMEM_TRY(check_accesses(changes));
  GPUMEM_TRY(grant(place_, 0, capacity_, changes));
  accesses_ = std::move(all);
  return {};
}

// ---- sleep ----

Result<void> Buffer::copy(void* destination, void* source, uint64_t bytes) {
  CopyArguments arguments;
  arguments.destination.address = destination;
  arguments.source.address = source;
  arguments.destination.pitch = arguments.source.pitch = bytes;
  arguments.destination.extent = arguments.source.extent = bytes;
  arguments.width = bytes;
  return complete([&] { return core::copy(instance(), nullptr, arguments); });
}

Result<Buffer::Store> Buffer::save(gpumem_content content) {
  Store store;
  store.content = content;
  if (size_ == 0 || content == GPUMEM_CONTENT_ZERO || content == GPUMEM_CONTENT_DROP) return store;
  if (content == GPUMEM_CONTENT_PINNED) {
    auto root = held<DeviceObject>(instance().device_handle(device_.ordinal()));
    if (!root) return root.error();
    backend::MemoryRequest request;
    request.size = size_;
    auto made = create_memory(**root, kinds::pinned, request, name_);
    if (!made) return made.error();
    store.memory = made->handle;
    store.bytes = made->pointer;
  } else {
    if (auto fits = platform::check_host_budget(size_); !fits) return fits.error();
    auto made = platform::map_anonymous(size_, platform::page_size());
    if (!made) return made.error();
    store.bytes = *made;
  }
  store.size = size_;
  Cleanup undo([&] { (void)discard(store); });
  GPUMEM_TRY(copy(store.bytes, place_.base, size_));
  undo.dismiss();
  return store;
}

Result<void> Buffer::discard(Store& store) {
  if (store.memory != 0) {
    GPUMEM_TRY(give_back<Memory>(store.memory, destroy_memory));
  } else if (store.bytes != nullptr) {
    platform::unmap(store.bytes, store.size);
  }
  store = {};
  return {};
}

Result<void> Buffer::sleep(gpumem_content content) {
  const std::lock_guard lock(mutex_);
  GPUMEM_TRY(device_.usable());
  GPUMEM_TRY(check_awake());
  {
    // Before the content is read: unfinished work may still write it.
    auto range = held<Range>(place_.range);
    if (!range) return range.error();
    GPUMEM_TRY(check_range_unused(**range, 0, capacity_));
  }
  auto store = save(content);
  if (!store) return store.error();
  if (auto unmapped = unmap(place_, 0, capacity_); !unmapped) {
    (void)discard(*store);
    return unmapped;
  }
  store_ = *store;
  asleep_ = true;
  return {};
}

// Blocks of the same sizes as before, all or none, and nothing for others than the device, which writes the
// content: a driver may fill them by the CPU where that has access, and fails where it may only read.
Result<void> Buffer::restore_blocks() {
  const std::vector<AccessRequest> writer{{&device_, GPUMEM_ACCESS_READWRITE}};
  uint64_t offset = 0;
  Cleanup undo([&] { (void)unmap(place_, 0, offset); });
  for (const uint64_t size : blocks_) {
    GPUMEM_TRY(map_block(place_, offset, size, writer));
    offset += size;
  }
  undo.dismiss();
  return {};
}

Result<void> Buffer::load() {
  if (size_ == 0 || store_.content == GPUMEM_CONTENT_DROP) return {};
  if (store_.content != GPUMEM_CONTENT_ZERO) return copy(place_.base, store_.bytes, size_);
  FillArguments zeros;
  zeros.destination = place_.base;
  zeros.pitch = zeros.extent = zeros.width = size_;
  return complete([&] { return fill(instance(), nullptr, zeros); });
}

Result<void> Buffer::wake() {
  const std::lock_guard lock(mutex_);
  GPUMEM_TRY(device_.usable());
  if (cleared_ || !asleep_) {
    GPUMEM_TRY(check_awake());
    return make_error(GPUMEM_ERROR_INVALID_STATE, "the buffer is awake");
  }
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(restore_blocks());
  Cleanup undo([&] { (void)unmap(place_, 0, capacity_); });
  GPUMEM_TRY(load());
  std::vector<AccessRequest> accesses = accesses_;
  const auto is_own = [&](const AccessRequest& access) { return access.device == &device_; };
  if (std::none_of(accesses.begin(), accesses.end(), is_own))
    accesses.push_back({&device_, GPUMEM_ACCESS_NONE});
  GPUMEM_TRY(grant(place_, 0, capacity_, accesses));
  undo.dismiss();
  asleep_ = false;
  ++generation_;
  (void)discard(store_);  // if it cannot be freed now, it is when the buffer is destroyed
  return {};
}

// ---- making and destroying ----

Result<void> Buffer::open() {
  auto root = held<DeviceObject>(instance().device_handle(device_.ordinal()));
  if (!root) return root.error();
  auto unit = physical_granularity(**root, request_.physical);
  if (!unit) return unit.error();
  unit_ = unit->minimum;
  auto reserve_unit = range_granularity(instance());
  if (!reserve_unit) return reserve_unit.error();
  reserve_unit_ = std::max(*reserve_unit, unit_);

  GPUMEM_TRY(check_accesses(accesses_));

  uint64_t wanted = request_.reserve;
  if (wanted == 0) {
    wanted = request_.physical.location == GPUMEM_LOCATION_DEVICE ? device_.facts().total_bytes
                                                                  : platform::host_memory();
  }
  auto place = reserve(wanted, request_.size);
  if (!place) return place.error();
  place_ = *place;
  Cleanup undo([&] { (void)release(place_); });
  GPUMEM_TRY(provide(request_.size));
  undo.dismiss();
  size_ = request_.size;
  return {};
}

Result<void> Buffer::clear() {
  const std::lock_guard lock(mutex_);
  if (cleared_) return check_awake();
  if (!asleep_) GPUMEM_TRY(unmap(place_, 0, capacity_));
  blocks_.clear();
  size_ = capacity_ = 0;
  GPUMEM_TRY(discard(store_));
  GPUMEM_TRY(release(place_));
  cleared_ = true;
  return {};
}

Result<uint64_t> create_buffer(DeviceObject& device_object, BufferRequest request, std::string name) {
  Instance& instance = device_object.instance();
  Device& device = device_object.device();
  GPUMEM_TRY(device.usable());
  GPUMEM_TRY(outside_host_function());
  auto buffer = std::make_unique<Buffer>(device_object.shared_instance(), device, request, std::move(name));
  auto handle = handles::reserve(*buffer);
  if (!handle) return handle.error();
  Cleanup undo([&] { handles::cancel(*buffer); });
  GPUMEM_TRY(buffer->open());
  const auto open = instance.stay_open();
  if (!open) {
    (void)buffer->clear();
    return open.error();
  }
  undo.dismiss();
  instance.add_object(*buffer);
  handles::publish(buffer.release());
  return *handle;
}

Result<void> destroy_buffer(Ref<Buffer> buffer) {
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(not_used_by_this_thread(*buffer));
  GPUMEM_TRY(buffer->clear());
  return destroy_object<Buffer>(std::move(buffer), [](Buffer& gone) -> Result<void> {
    gone.instance().remove_object(gone);
    return {};
  });
}

}  // namespace gpumem::core
