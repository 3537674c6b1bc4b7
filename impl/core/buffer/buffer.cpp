// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/buffer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <optional>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/copy/copy.h"
#include "core/memory/mapping.h"
#include "core/memory/memory.h"
#include "core/memory/statistics.h"
#include "core/object/abandoned.h"
#include "core/object/background.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "core/object/held.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#include "core/object/status_list.h"
#include "platform/host_budget.h"
#include "platform/pages.h"
#include "platform/thread_record.h"

namespace gpumem::core {
namespace {

// The access of a buffer whose caller names none: its device, and the CPU where it can reach the memory.
std::vector<AccessRequest> default_accesses(Device& device, gpumem_location location) {
  std::vector<AccessRequest> accesses{{&device, GPUMEM_ACCESS_READWRITE}};
  if (location != GPUMEM_LOCATION_DEVICE) accesses.push_back({nullptr, GPUMEM_ACCESS_READWRITE});
  return accesses;
}

}  // namespace

Buffer::Buffer(std::shared_ptr<Context> context, Device& device, BufferRequest request)
    : Object(kType, std::move(context)),
      device_(device),
      request_(std::move(request)),
      accesses_(request_.accesses.empty() ? default_accesses(device, request_.physical.location)
                                          : request_.accesses),
      store_(device, request_.name) {}

gpumem_buffer_info Buffer::info() const {
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  info.granularity = unit_;
  info.location = request_.physical.location;
  info.location_id = -1;
  if (info.location == GPUMEM_LOCATION_DEVICE) info.location_id = static_cast<int32_t>(device_.ordinal());
  if (info.location == GPUMEM_LOCATION_HOST_NUMA) info.location_id = request_.physical.numa_node;
  info.device = reinterpret_cast<gpumem_device>(pointer_to(device_.handle()));
  info.device_ordinal = device_.ordinal();
  if (members_ != nullptr) info.group = reinterpret_cast<gpumem_group>(pointer_to(members_->group()));
  std::snprintf(info.name, sizeof info.name, "%s", name().c_str());
  std::snprintf(info.tag, sizeof info.tag, "%s", tag().c_str());
  const std::lock_guard lock(records_);
  info.base = place_.base;
  info.size = size_;
  info.capacity = capacity_;
  info.reserved_size = place_.size;
  info.block_count = blocks_.size();
  info.generation = generation_;
  info.stored_size = stored_size_;
  info.store_capacity = store_capacity_;
  info.ahead = ahead_;
  info.registrations = registrations_.size();
  info.state = state_;
  info.range = reinterpret_cast<gpumem_range>(pointer_to(place_.range));
  info.buffer_id = place_.buffer_id;
  return info;
}

// ---- changes ----

Buffer::Change::Change(Buffer& buffer, Exclusive::Held held) : held_(std::move(held)), buffer_(&buffer) {
  const std::lock_guard lock(buffer.records_);
  buffer.changing_ = true;
}

Buffer::Change::~Change() {
  if (buffer_ == nullptr) return;
  const std::lock_guard lock(buffer_->records_);
  buffer_->changing_ = false;
}

Result<Buffer::Change> Buffer::begin_change() {
  GPUMEM_TRY(outside_host_function());
  auto turn = changes_.enter();
  if (!turn) return turn.error();
  if (cleared_) return ended_meanwhile(kType);
  end_abandoned(context());
  return Change(*this, std::move(*turn));
}

Result<void> Buffer::check_awake() const {
  if (!asleep()) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE, "the buffer is asleep; call gpumem_buffer_wake() first");
}

void Buffer::set_size(uint64_t size) {
  const std::lock_guard lock(records_);
  size_ = size;
}

// ---- addresses ----

// Reserves as much as wanted, or half of it, and so on; not less than `least`.
Result<Buffer::Place> Buffer::reserve(uint64_t wanted, uint64_t least) {
  const uint64_t smallest = round_up(std::max(least, uint64_t{1}), reserve_unit_);
  for (uint64_t size = std::max(round_up(wanted, reserve_unit_), smallest);;) {
    backend::ReservationRequest request;
    request.size = size;
    request.alignment = reserve_unit_;
    auto range = reserve_range(shared_context(), request, name());
    if (range) {
      auto made = held<Range>(*range);
      if (!made) return made.error();
      (*made)->set_owned();
      return Place{*range, 0, pointer_to((*made)->address()), size, (*made)->buffer_id()};
    }
    if (range.error().status != GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE || size == smallest) return range.error();
    size = std::max(round_up(size / 2, reserve_unit_), smallest);
  }
}

Result<void> Buffer::release(const Place& place) {
  if (place.memory != 0) return give_back<Memory>(place.memory, destroy_memory);
  return place.range != 0 ? give_back<Range>(place.range, destroy_object) : Result<void>();
}

// Calls `use` with the region of a place, if there is one.
template <class F>
void Buffer::with_region(const Place& place, F use) noexcept {
  const uint64_t handle = place.memory != 0 ? place.memory : place.range;
  if (handle != 0) look_at(handle, [&](Object& object) { use(static_cast<Region&>(object)); });
}

// Has pointer queries name a buffer at a place; 0: none.
void Buffer::name_at(const Place& place, uint64_t buffer) noexcept {
  with_region(place, [buffer](Region& region) { region.set_buffer(buffer); });
}

// Has pointer queries name this buffer. From then on, another thread may destroy it.
void Buffer::show_place() const noexcept {
  Place place;
  {
    const std::lock_guard lock(records_);
    if (!published_) return;
    place = place_;
  }
  name_at(place, handle());
}

Result<void> Buffer::unmap(const Place& place, uint64_t offset, uint64_t size) {
  if (size == 0) return {};
  return give_back<Range>(place.range,
                          [&](Ref<Range> range) { return unmap_range(std::move(range), offset, size); });
}

// Unmaps what a failed undo may have left behind the first `known` bytes.
Result<void> Buffer::unmap_rest(const Place& place, uint64_t known) {
  return place.range != 0 ? unmap_from(place.range, known) : Result<void>();
}

// Releases addresses that nothing needs any more, or has the instance do so later.
void Buffer::abandon(const Place& place) noexcept {
  core::abandon(context(), place.memory != 0 ? place.memory : place.range);
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
  auto root = held<DeviceObject>(device_.handle());
  if (!root) return root.error();
  backend::PhysicalRequest request = request_.physical;
  request.size = size;
  auto made = create_physical(**root, request, name());
  if (!made) return made.error();
  const Cleanup handle([&] { core::abandon(context(), *made); });  // the mapping keeps the memory
  {
    auto physical = held<Physical>(*made);
    if (!physical) return physical.error();
    auto range = held<Range>(place.range);
    if (!range) return range.error();
    std::vector<Ref<Physical>> blocks;
    blocks.push_back(std::move(*physical));
    GPUMEM_TRY(map_range(std::move(*range), offset, blocks));
  }
  Cleanup undo([&] { (void)unmap(place, offset, size); });
  GPUMEM_TRY(grant(place, offset, size, accesses));
  undo.dismiss();
  return {};
}

// Provides memory for at least so many bytes.
Result<void> Buffer::provide(uint64_t capacity) {
  if (capacity <= capacity_) return {};
  const uint64_t wanted = round_up(capacity, unit_);
  uint64_t ample = wanted;
  if ((request_.flags & GPUMEM_BUFFER_GEOMETRIC) != 0) {
    ample = std::max(wanted, capacity_ + round_up(capacity_ / 8, unit_));
    if (!ordinary_ && wanted <= place_.size) ample = std::min(ample, place_.size);
  }
  auto grown = grow(ample);
  return !grown && ample > wanted && lacks_room(grown.error().status) ? grow(wanted) : grown;
}

Result<void> Buffer::grow(uint64_t capacity) {
  if (ordinary_) return reallocate(capacity);
  if (capacity > place_.size) {
    if ((request_.flags & GPUMEM_BUFFER_MOVABLE) == 0) {
      return make_error(GPUMEM_ERROR_OUT_OF_ADDRESS_SPACE,
                        "the buffer has %" PRIu64 " bytes of addresses, but %" PRIu64
                        " are needed; reserve more, or create it with GPUMEM_BUFFER_MOVABLE",
                        place_.size, capacity);
    }
    return move(capacity);
  }
  GPUMEM_TRY(unmap_rest(place_, capacity_));
  const uint64_t added = capacity - capacity_;
  {
    const std::lock_guard lock(records_);
    blocks_.reserve(blocks_.size() + 1);
  }
  GPUMEM_TRY(map_block(place_, capacity_, added, accesses_));
  const std::lock_guard lock(records_);
  blocks_.push_back(added);
  capacity_ = capacity;
  return {};
}

// Releases the blocks that lie entirely behind so many bytes.
Result<void> Buffer::take_back(uint64_t size) {
  if (ordinary_) {
    const uint64_t wanted = round_up(size, unit_);
    return wanted < capacity_ ? reallocate(wanted) : Result<void>();
  }
  uint64_t kept = capacity_;
  size_t count = blocks_.size();
  while (count > 0 && kept - blocks_[count - 1] >= size)
    kept -= blocks_[--count];
  GPUMEM_TRY(unmap(place_, kept, capacity_ - kept));
  const std::lock_guard lock(records_);
  blocks_.resize(count);
  capacity_ = kept;
  size_ = std::min(size_, size);  // together with the capacity, so that queries see both
  return {};
}

// Adds a handle of each block to `handles`, also if it fails.
Result<void> Buffer::retain(std::vector<uint64_t>& handles) const {
  handles.reserve(blocks_.size());
  uint64_t offset = 0;
  for (const uint64_t size : blocks_) {
    auto handle = retain_physical(context(), pointer_behind(place_.base, offset));
    if (!handle) return handle.error();
    handles.push_back(*handle);
    offset += size;
  }
  return {};
}

void Buffer::abandon(std::vector<uint64_t>& handles) noexcept {
  for (const uint64_t handle : handles)
    core::abandon(context(), handle);
  handles.clear();
}

// Maps the blocks of these handles, all that there are, with access.
Result<void> Buffer::map_retained(const Place& place, const std::vector<uint64_t>& handles,
                                  const std::vector<AccessRequest>& accesses) {
  if (handles.empty()) return {};
  {
    std::vector<Ref<Physical>> blocks;
    blocks.reserve(handles.size());
    for (const uint64_t handle : handles) {
      auto block = held<Physical>(handle);
      if (!block) return block.error();
      blocks.push_back(std::move(*block));
    }
    auto range = held<Range>(place.range);
    if (!range) return range.error();
    GPUMEM_TRY(map_range(std::move(*range), 0, blocks));
  }
  Cleanup undo([&] { (void)unmap(place, 0, capacity_); });
  GPUMEM_TRY(grant(place, 0, capacity_, accesses));
  undo.dismiss();
  return {};
}

// Maps the blocks at another place too.
Result<void> Buffer::alias(const Place& place) {
  std::vector<uint64_t> handles;
  const Cleanup undo([&] { abandon(handles); });
  GPUMEM_TRY(retain(handles));
  return map_retained(place, handles, accesses_);
}

// To a larger reservation, with room for more growth. No byte is copied.
Result<void> Buffer::move(uint64_t capacity) {
  const uint64_t twice = place_.size > kSizeMax / 2 ? capacity : place_.size * 2;
  auto larger = reserve(std::max(twice, capacity), capacity);
  if (!larger) return larger.error();
  Cleanup undo([&] { abandon(*larger); });
  {
    const std::lock_guard lock(records_);
    blocks_.reserve(blocks_.size() + 1);
  }
  GPUMEM_TRY(alias(*larger));
  GPUMEM_TRY(map_block(*larger, capacity_, capacity - capacity_, accesses_));
  GPUMEM_TRY(unmap(place_, 0, capacity_));
  undo.dismiss();
  Place old;
  {
    const std::lock_guard lock(records_);
    old = std::exchange(place_, *larger);
    blocks_.push_back(capacity - capacity_);
    capacity_ = capacity;
    ++generation_;
  }
  show_place();
  name_at(old, 0);  // it may stay for a while
  abandon(old);
  return {};
}

// ---- an ordinary allocation ----

Result<Buffer::Place> Buffer::allocate(uint64_t capacity) {
  if (capacity == 0) return Place{};
  auto root = held<DeviceObject>(device_.handle());
  if (!root) return root.error();
  const bool on_device = request_.physical.location == GPUMEM_LOCATION_DEVICE;
  backend::MemoryRequest request;
  request.size = capacity;
  if (request_.physical.location == GPUMEM_LOCATION_HOST_NUMA) {
    request.require = GPUMEM_MEMORY_NUMA_NODE;
    request.numa_node = request_.physical.numa_node;
  }
  auto made = create_memory(**root, on_device ? kinds::device : kinds::pinned, request, name(), true);
  if (!made) return made.error();
  auto memory = held<Memory>(made->handle);
  if (!memory) return memory.error();
  (*memory)->set_owned();
  return Place{0, made->handle, made->pointer, capacity, (*memory)->buffer_id()};
}

Result<void> Buffer::reallocate(uint64_t capacity) {
  auto other = allocate(capacity);
  if (!other) return other.error();
  Cleanup undo([&] {
    reopen();
    abandon(*other);
  });
  if (const uint64_t kept = std::min(size_, capacity); kept != 0) {
    // Close first, so that no stream writes after the copy.
    GPUMEM_TRY(close({this}));
    GPUMEM_TRY(finish_work({this}));
    GPUMEM_TRY(copy(context(), nullptr, copy_of_bytes(other->base, place_.base, kept, true)));
  }
  GPUMEM_TRY(release(place_));
  undo.dismiss();
  set_closed(*other, false);
  {
    const std::lock_guard lock(records_);
    place_ = *other;
    capacity_ = capacity;
    size_ = std::min(size_, capacity);
    blocks_.assign(capacity != 0 ? 1 : 0, capacity);
    ++generation_;
  }
  show_place();
  return {};
}

// ---- size and access ----

// Check accesses before anything is mapped, so that what is accepted now also works later.
Result<void> Buffer::check_accesses(const std::vector<AccessRequest>& changes) const {
  if (request_.physical.location != GPUMEM_LOCATION_DEVICE) return {};
  for (const AccessRequest& change : changes)
    GPUMEM_TRY(check_can_have(device_, change.device));
  return {};
}

// Resizes without waiting, if there is memory for it.
bool Buffer::resize_within(uint64_t size) {
  bool notice = false;
  {
    const std::lock_guard lock(records_);
    if (changing_ || cleared_ || asleep() || size < size_ || size > capacity_) return false;
    size_ = size;
    notice = begins_to_grow();
  }
  if (notice) notice_growth();
  return true;
}

// Whether too little is ahead, and nobody provides more yet: the caller does then. Needs the records' lock.
bool Buffer::begins_to_grow() noexcept {
  const bool begins = capacity_ - size_ < ahead_ / 2 && capacity_ < place_.size && !growing_;
  growing_ = growing_ || begins;
  return begins;
}

// Has the background thread provide the memory ahead.
void Buffer::notice_growth() noexcept {
  try {
    context().background().add([handle = handle()]() -> std::optional<std::chrono::nanoseconds> {
      if (const auto buffer = acquire<Buffer>(platform::thread_record(), handle)) buffer->grow_ahead();
      return {};
    });
  } catch (const std::bad_alloc&) {  // the next resize tries again
    const std::lock_guard lock(records_);
    growing_ = false;
  }
}

void Buffer::look_ahead() noexcept {
  {
    const std::lock_guard lock(records_);
    if (ahead_ == 0 || growing_ || asleep()) return;
    growing_ = true;
  }
  notice_growth();
}

void Buffer::grow_ahead() {
  const auto turn = changes_.enter();
  if (!turn) return;
  const Cleanup done([&] {
    const std::lock_guard lock(records_);
    growing_ = false;
  });
  if (cleared_ || asleep() || device_.backend().lost()) return;
  uint64_t wanted = 0;
  {
    const std::lock_guard lock(records_);
    wanted = std::min(round_up(size_ + std::min(ahead_, kSizeMax - size_), unit_), place_.size);
  }
  if (auto grown = provide(wanted); !grown) {
    log(GPUMEM_LOG_INFO, "buffer %s could not grow ahead: %s", shown(name()), grown.error().message);
  }
}

Result<void> Buffer::resize(uint64_t size) {
  GPUMEM_TRY(device_.usable());
  GPUMEM_TRY(outside_host_function());
  if (resize_within(size)) return {};
  {
    const auto change = begin_change();
    if (!change) return change.error();
    GPUMEM_TRY(check_awake());
    if (size < size_) {
      GPUMEM_TRY(take_back(size));
    } else {
      GPUMEM_TRY(provide(size));
    }
    set_size(size);
  }
  bool notice = false;
  {
    // Another thread may have changed the buffer again.
    const std::lock_guard lock(records_);
    notice = !changing_ && !cleared_ && !asleep() && begins_to_grow();
  }
  if (notice) notice_growth();
  return {};
}

Result<void> Buffer::set_capacity(uint64_t capacity) {
  const auto change = begin_change();
  if (!change) return change.error();
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

Result<void> Buffer::set_ahead(uint64_t bytes) {
  GPUMEM_TRY(outside_host_function());
  if (ordinary_) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "the buffer is an ordinary allocation, which moves when it grows; nothing can be made ahead");
  }
  if (bytes != 0) context().background().start();
  {
    const auto change = begin_change();
    if (!change) return change.error();
    const std::lock_guard lock(records_);
    ahead_ = bytes;
  }
  look_ahead();
  return {};
}

Result<void> Buffer::set_access(const std::vector<AccessRequest>& changes) {
  const auto change = begin_change();
  if (!change) return change.error();
  GPUMEM_TRY(device_.usable());
  GPUMEM_TRY(check_awake());
  if (ordinary_) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the buffer is an ordinary allocation, whose access cannot be set");
  }
  std::vector<AccessRequest> all = accesses_;
  for (const AccessRequest& wanted : changes) {
    const auto same = [&](const AccessRequest& known) { return known.device == wanted.device; };
    if (const auto known = std::find_if(all.begin(), all.end(), same); known != all.end()) {
      known->access = wanted.access;
    } else {
      all.push_back(wanted);
    }
  }
  if (capacity_ == 0) GPUMEM_TRY(check_accesses(changes));
  GPUMEM_TRY(grant(place_, 0, capacity_, changes));
  accesses_ = std::move(all);
  return {};
}

// ---- callbacks and registrations ----

Result<void> Buffer::set_callbacks(const BufferCallbacks& callbacks) {
  const auto change = begin_change();
  if (!change) return change.error();
  callbacks_ = callbacks;
  return {};
}

Result<void> Buffer::before_sleep() {
  if (callbacks_.before_sleep == nullptr) return {};
  const auto self = reinterpret_cast<gpumem_buffer>(pointer_to(handle()));
  const Callback mark;
  if (callbacks_.before_sleep(callbacks_.user_data, self) == 0) return {};
  return make_error(GPUMEM_ERROR_BUSY, "the callback of buffer %s refused to let it sleep", shown(name()));
}

void Buffer::after_wake() const {
  if (callbacks_.after_wake == nullptr) return;
  const auto self = reinterpret_cast<gpumem_buffer>(pointer_to(handle()));
  const Callback mark;
  callbacks_.after_wake(callbacks_.user_data, self, generation_);
}

Result<uint64_t> Buffer::note_registration(std::string holder) {
  static constinit std::atomic<uint64_t> last{0};
  const std::lock_guard lock(records_);
  if (asleep()) return check_awake().error();
  if (refuses_registrations_)
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the buffer is being put to sleep; register it once it is awake");
  const uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  registrations_.emplace_back(number, std::move(holder));
  return number;
}

Result<void> Buffer::forget_registration(uint64_t number) {
  const std::lock_guard lock(records_);
  const auto found = std::find_if(registrations_.begin(), registrations_.end(),
                                  [&](const auto& known) { return known.first == number; });
  if (found == registrations_.end())
    return make_error(GPUMEM_ERROR_NOT_FOUND, "the buffer has no registration %" PRIu64, number);
  registrations_.erase(found);
  return {};
}

Result<void> Buffer::refuse_registrations() {
  const std::lock_guard lock(records_);
  if (registrations_.empty()) {
    refuses_registrations_ = true;
    return {};
  }
  std::string holders;
  for (const auto& [number, holder] : registrations_)
    holders += (holders.empty() ? "" : ", ") + holder;
  return make_error(
      GPUMEM_ERROR_BUSY,
      "buffer %s is registered with: %s; end that, and call gpumem_buffer_forget_registration()",
      shown(name()), holders.c_str());
}

void Buffer::accept_registrations() {
  const std::lock_guard lock(records_);
  refuses_registrations_ = false;
}

// ---- the steps of sleeping and waking ----

void Buffer::set_closed(const Place& place, bool closed) noexcept {
  with_region(place, [closed](Region& region) { region.set_closed(closed); });
}

Result<void> Buffer::close(const std::vector<Buffer*>& buffers) {
  for (const Buffer* const buffer : buffers)
    set_closed(buffer->place_, true);
  platform::fence_all_threads();
  for (const Buffer* const buffer : buffers) {
    // The region stays while this call holds the change of the buffer.
    const Region* kept = nullptr;
    Result<void> unused;
    with_region(buffer->place_, [&](const Region& region) {
      kept = &region;
      unused = uses_will_end(region);
    });
    if (unused && kept != nullptr) unused = wait_for_uses(*kept);
    GPUMEM_TRY(unused);
  }
  return {};
}

Result<void> Buffer::finish_work(const std::vector<Buffer*>& buffers) {
  std::vector<Device*> waited_for;
  for (const Buffer* const buffer : buffers) {
    for (Device* const device : buffer->users()) {
      if (std::find(waited_for.begin(), waited_for.end(), device) != waited_for.end()) continue;
      GPUMEM_TRY(device->backend().synchronize());
      waited_for.push_back(device);
    }
  }
  return {};
}

std::vector<Device*> Buffer::users() const {
  std::vector<Device*> devices{&device_};
  for (const AccessRequest& access : accesses_) {
    if (access.device != nullptr && access.device != &device_ && access.access != GPUMEM_ACCESS_NONE)
      devices.push_back(access.device);
  }
  return devices;
}

Result<void> Buffer::check_unused() {
  if (place_.memory != 0) {
    auto memory = held<Memory>(place_.memory);
    if (!memory) return memory.error();
    return core::check_unused(**memory, [&] { return (*memory)->backend().check_unused(); });
  }
  if (place_.range == 0) return {};
  auto range = held<Range>(place_.range);
  if (!range) return range.error();
  return check_range_unused(**range, 0, capacity_);
}

Result<void> Buffer::hold_memory() {
  if (ordinary_) return {};
  auto retained = retain(held_);
  if (!retained) abandon(held_);
  return retained;
}

Result<void> Buffer::drop_memory() {
  if (!ordinary_) return unmap(place_, 0, capacity_);
  GPUMEM_TRY(release(place_));
  const std::lock_guard lock(records_);
  place_ = {};
  return {};
}

bool Buffer::has_memory() const {
  if (ordinary_) return place_.memory != 0 || capacity_ == 0;
  const auto range = held<Range>(place_.range);
  return range && (*range)->mapped_size() == capacity_;
}

// Whether all access may be granted at once. Not for host memory: a driver may restore content with the CPU
// if that has access, and fails if it may only read.
bool Buffer::device_shares() const {
  return request_.physical.location == GPUMEM_LOCATION_DEVICE &&
         std::any_of(accesses_.begin(), accesses_.end(), [&](const AccessRequest& access) {
           return access.device == &device_ && access.access == GPUMEM_ACCESS_READWRITE;
         });
}

Result<void> Buffer::take_memory() {
  if (ordinary_) {
    if (place_.memory != 0) return {};  // waking failed, and the backend refused to release the memory
    auto place = allocate(capacity_);
    if (!place) return place.error();
    {
      const std::lock_guard lock(records_);
      place_ = *place;
    }
    show_place();
    return {};
  }
  GPUMEM_TRY(unmap_rest(place_, 0));
  const std::vector<AccessRequest> writer{{&device_, GPUMEM_ACCESS_READWRITE}};
  const std::vector<AccessRequest>& accesses = device_shares() ? accesses_ : writer;
  if (holds_memory()) return map_retained(place_, held_, accesses);
  uint64_t offset = 0;
  Cleanup undo([&] { (void)unmap(place_, 0, offset); });
  for (const uint64_t size : blocks_) {
    GPUMEM_TRY(map_block(place_, offset, size, accesses));
    offset += size;
  }
  undo.dismiss();
  return {};
}

Result<void> Buffer::share_memory() {
  if (ordinary_ || device_shares()) return {};
  std::vector<AccessRequest> accesses = accesses_;
  const auto is_own = [&](const AccessRequest& access) { return access.device == &device_; };
  if (std::none_of(accesses.begin(), accesses.end(), is_own))
    accesses.push_back({&device_, GPUMEM_ACCESS_NONE});
  return grant(place_, 0, capacity_, accesses);
}

void Buffer::set_awake() {
  abandon(held_);
  const std::lock_guard lock(records_);
  state_ = GPUMEM_BUFFER_STATE_AWAKE;
  stored_size_ = 0;
  ++generation_;
}

void Buffer::set_asleep() {
  abandon(held_);
  const std::lock_guard lock(records_);
  state_ = GPUMEM_BUFFER_STATE_ASLEEP;
  stored_size_ = store_.capacity() != 0 ? size_ : 0;
}

void Buffer::set_failed() {
  const std::lock_guard lock(records_);
  state_ = GPUMEM_BUFFER_STATE_FAILED;
  stored_size_ = store_.capacity() != 0 || holds_memory() ? size_ : 0;
}

void Buffer::show_store() {
  const std::lock_guard lock(records_);
  store_capacity_ = store_.capacity();
}

// ---- making and destroying ----

Result<void> Buffer::open() {
  const bool on_device = request_.physical.location == GPUMEM_LOCATION_DEVICE;
  const bool copyable = (request_.flags & GPUMEM_BUFFER_COPYABLE) != 0;
  const auto advise = [&](const Error& error) {
    const bool helps =
        error.status == GPUMEM_ERROR_UNSUPPORTED && !device_.need(GPUMEM_CAPABILITY_VMM_DEVICE);
    if (!helps) return error;
    return reworded(
        error,
        "%s; with GPUMEM_BUFFER_COPYABLE the buffer is an ordinary allocation, which moves when it grows",
        error.message);
  };
  if (on_device || copyable) {
    auto facet = virtual_memory_of(device_);
    const Result<void> usable = facet ? device_.need(GPUMEM_CAPABILITY_VMM_DEVICE) : facet.error();
    if (!usable && copyable) return open_ordinary();
    if (!usable) return advise(usable.error());
  }
  auto root = held<DeviceObject>(device_.handle());
  if (!root) return root.error();
  auto unit = physical_granularity(**root, request_.physical);
  if (!unit) return advise(unit.error());
  unit_ = unit->minimum;
  auto reserve_unit = range_granularity(context());
  if (!reserve_unit) return advise(reserve_unit.error());
  reserve_unit_ = std::max(*reserve_unit, unit_);

  GPUMEM_TRY(check_accesses(accesses_));

  uint64_t wanted = request_.reserve;
  if (wanted == 0) {
    // Limit the reservation, so that the process has addresses left with many buffers.
    wanted = std::min(on_device ? device_.facts().total_bytes : platform::host_memory(),
                      context().statistics().free_addresses() / 64);
  }
  const bool all = (request_.flags & GPUMEM_BUFFER_RESERVE_ALL) != 0;
  auto place = reserve(wanted, all ? std::max(wanted, request_.size) : request_.size);
  if (!place) return place.error();
  place_ = *place;
  Cleanup undo([&] { abandon(place_); });
  GPUMEM_TRY(provide(request_.size));
  undo.dismiss();
  size_ = request_.size;
  return {};
}

Result<void> Buffer::open_ordinary() {
  if (request_.physical.handle_types != 0 || request_.physical.require != 0 || !request_.accesses.empty()) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "device %u has no virtual memory management (vmm.device is NO); an ordinary allocation has no "
        "handle types, properties or access of its own",
        device_.ordinal());
  }
  ordinary_ = true;
  unit_ = platform::page_size();
  GPUMEM_TRY(provide(request_.size));
  size_ = request_.size;
  generation_ = 0;
  return {};
}

Result<void> Buffer::clear() {
  auto turn = changes_.enter();
  if (!turn) return turn.error();
  if (cleared_) return {};  // by a destroy call that could not wait for the last users
  const Change change(*this, std::move(*turn));
  end_abandoned(context());
  GPUMEM_TRY(unmap_rest(place_, asleep() ? 0 : capacity_));
  if (!asleep()) GPUMEM_TRY(drop_memory());
  abandon(held_);
  {
    const std::lock_guard lock(records_);
    blocks_.clear();
    size_ = capacity_ = 0;
    state_ = GPUMEM_BUFFER_STATE_AWAKE;
    stored_size_ = 0;
  }
  reopen();  // the buffer stays in use if its addresses cannot be released
  const auto freed = store_.trim(0);
  show_store();
  GPUMEM_TRY(freed);
  GPUMEM_TRY(release(place_));
  const std::lock_guard lock(records_);
  place_ = {};
  cleared_ = true;
  return {};
}

Result<uint64_t> create_buffer(DeviceObject& device_object, BufferRequest request, GroupMembers* members) {
  Context& context = device_object.context();
  Device& device = device_object.device();
  GPUMEM_TRY(device.usable());
  GPUMEM_TRY(outside_host_function());
  end_abandoned(context);
  auto buffer = std::make_unique<Buffer>(device_object.shared_context(), device, std::move(request));
  auto handle = handles::reserve(*buffer);
  if (!handle) return handle.error();
  Cleanup undo([&] { handles::cancel(*buffer); });
  if (members != nullptr) members->reserve_place();
  Cleanup undo_place([&] {
    if (members != nullptr) members->cancel_place();
  });
  GPUMEM_TRY(buffer->open());
  const auto open = context.stay_open();
  if (!open) {
    (void)buffer->clear();
    return open.error();
  }
  undo_place.dismiss();
  undo.dismiss();
  context.add_object(*buffer);
  Buffer* const made = buffer.release();
  made->members_ = members;
  handles::publish(made);
  if (members != nullptr) members->enter(*made);
  {
    const std::lock_guard lock(made->records_);
    made->published_ = true;
  }
  made->show_place();
  return *handle;
}

Result<void> destroy_buffer(Ref<Buffer> buffer) {
  GPUMEM_TRY(outside_host_function());
  GPUMEM_TRY(uses_will_end(*buffer));
  GPUMEM_TRY(buffer->clear());
  return destroy_object(std::move(buffer));
}

Object::Discard Buffer::discard() const noexcept {
  return [](uint64_t handle) { return give_back<Buffer>(handle, destroy_buffer); };
}

// Only the buffer; its memory has its own line.
Line Buffer::describe() const { return line_of("buffer %s: device %u", shown(name()), device().ordinal()); }

void Buffer::list(Fields& fields) const noexcept {
  fields.add("name", name());
  fields.add("device", uint64_t{device().ordinal()});
  const std::unique_lock lock(records_, std::try_to_lock);  // a snapshot must not wait
  if (!lock) return;
  fields.add("size", size_);
  fields.add("state", state_ == GPUMEM_BUFFER_STATE_AWAKE    ? "awake"
                      : state_ == GPUMEM_BUFFER_STATE_ASLEEP ? "asleep"
                                                             : "failed");
  if (store_capacity_ != 0) fields.add("store_bytes", store_capacity_);
}

// Its range and blocks are released on their own.
Result<void> Buffer::release() {
  if (members_ != nullptr) members_->leave(*this);
  return {};
}

}  // namespace gpumem::core
