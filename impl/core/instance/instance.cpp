// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/instance/instance.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cinttypes>
#include <cstring>
#include <thread>
#include <utility>

#include "base/cleanup.h"
#include "base/text.h"
#include "core/buffer/abandoned.h"
#include "core/buffer/buffer.h"
#include "core/buffer/group.h"
#include "core/device/host_function.h"
#include "core/memory/memory.h"
#include "core/memory/physical.h"
#include "core/memory/range.h"
#include "core/object/callback.h"
#include "core/object/host_function_guard.h"
#include "core/object/log.h"
#include "core/pool/pool.h"
#include "core/share/link/hub.h"
#include "core/share/link/link.h"
#include "core/share/ring/ring.h"
#include "core/stream/event.h"
#include "core/stream/stream.h"
#include "platform/environment.h"

namespace gpumem::core {

Instance::Instance(const OpenRequest& request, std::unique_ptr<backend::Backend> backend, Fallback fallback)
    : name_(request.name),
      pin_budget_(request.pin_budget),
      fallback_(std::move(fallback)),
      backend_(std::move(backend)) {
  for (const auto& device : backend_->devices())
    devices_.push_back(std::make_unique<Device>(*device, *this, request.transfer));
  has_exclusive_devices_ =
      std::any_of(backend_->devices().begin(), backend_->devices().end(), [](const auto& device) {
        const backend::Managed* const managed = device->managed();
        return managed != nullptr && !managed->concurrent();
      });
}

Result<uint64_t> Instance::open(const OpenRequest& request) {
  GPUMEM_TRY(outside_host_function());
  Fallback fallback;
  auto backend = open_backend(request.backend, request.options, &fallback);
  if (!backend) return backend.error();
  auto instance = std::make_shared<Instance>(request, std::move(*backend), std::move(fallback));
  GPUMEM_TRY(instance->page_map_.open());

  auto root = std::make_unique<InstanceObject>(instance);
  auto handle = handles::reserve(*root);
  if (!handle) return handle.error();
  Cleanup undo_root([&] { handles::cancel(*root); });
  std::vector<std::unique_ptr<DeviceObject>> objects;
  Cleanup undo_devices([&] {
    for (const auto& object : objects)
      handles::cancel(*object);
  });
  const size_t count = instance->devices_.size();
  objects.reserve(count);
  instance->device_handles_.reserve(count);
  instance->device_objects_.reserve(count);
  for (const auto& device : instance->devices_) {
    auto object = std::make_unique<DeviceObject>(instance, *device);
    auto device_handle = handles::reserve(*object);
    if (!device_handle) return device_handle.error();
    instance->device_handles_.push_back(*device_handle);
    instance->device_objects_.push_back(object.get());
    objects.push_back(std::move(object));
  }
  undo_root.dismiss();
  undo_devices.dismiss();
  for (auto& object : objects)
    handles::publish(object.release());
  handles::publish(root.release());
  log(GPUMEM_LOG_INFO, "opened the %s backend with %zu devices",
      instance->backend().kind() == GPUMEM_BACKEND_CUDA ? "cuda" : "host", count);
  return *handle;
}

Error instance_closed() {
  return make_error(GPUMEM_ERROR_CLOSED, "another thread closed the instance; open a new one");
}

Result<std::shared_lock<std::shared_mutex>> Instance::stay_open() {
  if (!closing_) {
    std::shared_lock lock(lifecycle_, std::try_to_lock);
    // A close that is going to fail has it for an instant.
    for (; !lock && !closing_; (void)lock.try_lock())
      std::this_thread::yield();
    if (!closing_) return lock;
  }
  return instance_closed();
}

Device* Instance::find_device(const std::array<uint8_t, 16>& uuid) const {
  const auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const auto& device) { return device->facts().uuid == uuid; });
  return found != devices_.end() ? found->get() : nullptr;
}

void Instance::add_object(Object& object) noexcept {
  if (!is_region(object.type())) statistics_.add_object(object.type(), 1);
  std::lock_guard lock(objects_mutex_);
  objects_.add(object);
}

void Instance::remove_object(Object& object) noexcept {
  if (!is_region(object.type())) statistics_.add_object(object.type(), -1);
  (void)take_abandoned(object);
  std::lock_guard lock(objects_mutex_);
  objects_.remove(object);
}

void Instance::note_abandoned(Object& object) noexcept {
  object.set_abandoned();
  abandoned_.fetch_add(1, std::memory_order_relaxed);
}

bool Instance::flush_transfers() noexcept {
  bool any = false;
  for (const auto& device : devices_)
    any = device->transfer().flush() || any;
  return any;
}

bool Instance::take_abandoned(Object& object) noexcept {
  if (!object.take_abandoned()) return false;
  abandoned_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

Result<void> Instance::charge_pinned(uint64_t bytes) {
  uint64_t used = pinned_bytes_.load(std::memory_order_relaxed);
  for (bool flushed = false;;) {
    if (pin_budget_ == 0 || (used <= pin_budget_ && bytes <= pin_budget_ - used)) {
      if (pinned_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed)) return {};
      continue;
    }
    // Give up the memory that is kept for copies before refusing.
    if (std::exchange(flushed, true) || !flush_transfers()) {
      return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                        "of the pin budget of %" PRIu64 " bytes, %" PRIu64 " are in use; %" PRIu64
                        " more do not fit; free some, or open the instance with a larger pin_budget",
                        pin_budget_, used, bytes);
    }
    used = pinned_bytes_.load(std::memory_order_relaxed);
  }
}

namespace {

// Without allocation, because what could not be destroyed is described as well.
struct Line {
  char text[256];
};

bool is_of_listed_pool(const Object& object) {
  if (!is_region(object.type())) return false;
  const PoolBlocks* const blocks = static_cast<const Region&>(object).pool_blocks();
  return blocks != nullptr && blocks->listed();
}

Line describe(const Object& object) {
  Line result;
  auto& line = result.text;
  const auto named = [](const std::string& name) { return name.empty() ? "(no name)" : name.c_str(); };
  const auto of_pool = [](const Region& region) -> const char* {
    if (region.pool_blocks() == nullptr) return "";
    return region.pool_blocks()->empty()
               ? ", of a destroyed pool, and in use; synchronize the streams"
               : ", of a destroyed pool with live blocks; gpumem_pool_free_pointer() frees them";
  };
  if (object.type() == Type::kMemory) {
    const auto& memory = static_cast<const Memory&>(object);
    const gpumem_pointer_info& info = memory.info();
    const void* address = info.host_pointer != nullptr ? info.host_pointer : info.device_pointer;
    std::snprintf(line, sizeof line, "%s memory %s: %" PRIu64 " byte%s at %p, device %u%s",
                  kind_name(memory.kind()), named(memory.name()), memory.size(), plural(memory.size()),
                  address, memory.device().ordinal(), of_pool(memory));
  } else if (object.type() == Type::kRange) {
    const auto& range = static_cast<const Range&>(object);
    std::snprintf(line, sizeof line, "%s memory %s: %" PRIu64 " bytes at %p, %" PRIu64 " of them mapped%s",
                  kind_name(range.kind()), named(range.name()), range.size(), pointer_to(range.address()),
                  range.mapped_size(), of_pool(range));
  } else if (object.type() == Type::kBuffer) {
    // Its memory has a line of its own.
    const auto& buffer = static_cast<const Buffer&>(object);
    std::snprintf(line, sizeof line, "buffer %s: device %u", named(buffer.name()), buffer.device().ordinal());
  } else if (object.type() == Type::kGroup) {
    const auto& group = static_cast<const Group&>(object);
    std::snprintf(line, sizeof line, "group %s", named(group.name()));
  } else if (object.type() == Type::kHub) {
    const auto& hub = static_cast<const Hub&>(object);
    std::snprintf(line, sizeof line, "hub %s: %s", named(hub.name()), hub.address().c_str());
  } else if (object.type() == Type::kLink) {
    std::snprintf(line, sizeof line, "link: %s", static_cast<const Link&>(object).address().c_str());
  } else if (object.type() == Type::kRing) {
    // Its memory has a line of its own.
    const auto& ring = static_cast<const Ring&>(object);
    std::snprintf(line, sizeof line, "ring %s: device %u", named(ring.name()), ring.device().ordinal());
  } else if (object.type() == Type::kPool) {
    // Its memory has no lines of its own.
    PoolCore& core = static_cast<const Pool&>(object).core();
    const PoolCore::Totals live = core.try_live();  // a look waits for nobody
    std::snprintf(line, sizeof line,
                  "pool %s: %" PRIu64 " live block%s of %" PRIu64 " bytes, %" PRIu64
                  " bytes taken, device %u",
                  named(core.request().memory.name), live.count, plural(live.count), live.bytes,
                  live.reserved, core.device().ordinal());
  } else if (object.type() == Type::kPhysical) {
    const auto& physical = static_cast<const Physical&>(object);
    std::snprintf(line, sizeof line, "physical memory %s: %" PRIu64 " bytes, device %u%s",
                  named(physical.name()), physical.facts().size, physical.device().ordinal(),
                  physical.facts().on_device() ? "" : ", on the host");
  } else if (object.type() == Type::kStream) {
    const auto& stream = static_cast<const Stream&>(object);
    std::snprintf(line, sizeof line, "stream %s: device %u%s", named(stream.name()),
                  stream.device().ordinal(), stream.wrapped() ? ", wrapped" : "");
  } else {
    const auto& event = static_cast<const Event&>(object);
    std::snprintf(line, sizeof line, "event %s: device %u%s", named(event.name()), event.device().ordinal(),
                  event.wrapped() ? ", wrapped" : "");
  }
  return result;
}

}  // namespace

// Walks the handles of the process, so that nobody who makes or destroys an object waits for a long report.
std::string Instance::report(uint64_t most, const char* separator) const {
  std::string text;
  uint64_t lines = 0;
  Line line;
  const auto add_all = [&](auto wanted) {
    bool listed = false;
    const auto see = [&](const Object& object) {
      listed = &object.instance() == this && wanted(object.type()) && !is_of_listed_pool(object);
      if (listed) line = describe(object);
    };
    for (uint32_t slot = 0; lines < most && handles::see_next(&slot, see);) {
      if (!listed) continue;
      if (lines++ != 0) text += separator;
      text += line.text;
    }
  };
  add_all([](Type type) { return type == Type::kPool || type == Type::kBuffer || type == Type::kGroup; });
  add_all(is_region);
  add_all([](Type type) { return type == Type::kPhysical; });
  add_all([](Type type) { return type == Type::kStream || type == Type::kEvent; });
  add_all([](Type type) { return type == Type::kHub || type == Type::kLink || type == Type::kRing; });
  return lines != 0 ? text : "nothing lives";
}

Instance::OfPools Instance::of_pools() const {
  OfPools result;
  const auto see = [&](const Object& object) {
    if (&object.instance() != this || !is_of_listed_pool(object)) return;
    const auto& region = static_cast<const Region&>(object);
    ++result.count;
    gpumem_kind_stats& counts = result.kinds.at(region.traits().counters);
    counts.live_count += 1;
    counts.live_bytes += region.size();
  };
  for (uint32_t slot = 0; handles::see_next(&slot, see);) {
  }
  return result;
}

// "2 pinned (8192 bytes), 1 stream": memory first, by size.
std::string Instance::totals(const OfPools& of_pools) const {
  std::vector<std::pair<const KindTraits*, gpumem_kind_stats>> kinds;
  for (const KindTraits& kind : all_kinds()) {
    if (kind.counters == kNotCounted) continue;
    gpumem_kind_stats counts = statistics_.read_kind(kind);
    const gpumem_kind_stats& hidden = of_pools.kinds.at(kind.counters);
    if (counts.live_count <= hidden.live_count) continue;
    counts.live_count -= hidden.live_count;
    counts.live_bytes -= std::min(counts.live_bytes, hidden.live_bytes);
    kinds.emplace_back(&kind, counts);
  }
  std::sort(kinds.begin(), kinds.end(),
            [](const auto& a, const auto& b) { return a.second.live_bytes > b.second.live_bytes; });
  std::string text;
  const auto add = [&text](const std::string& total) { text += (text.empty() ? "" : ", ") + total; };
  for (const auto& [kind, counts] : kinds) {
    add(std::to_string(counts.live_count) + ' ' + kind->name + " (" + std::to_string(counts.live_bytes) +
        " byte" + plural(counts.live_bytes) + (kind->in_parts ? " of addresses)" : ")"));
  }
  const auto add_others = [&](Type type, const char* name) {
    const uint64_t count = statistics_.objects(type);
    const bool plural = count != 1 && type != Type::kPhysical;
    if (count != 0) add(std::to_string(count) + ' ' + name + (plural ? "s" : ""));
  };
  add_others(Type::kPool, "pool");
  add_others(Type::kBuffer, "buffer");
  add_others(Type::kGroup, "group");
  add_others(Type::kPhysical, "physical memory");
  add_others(Type::kStream, "stream");
  add_others(Type::kEvent, "event");
  add_others(Type::kHub, "hub");
  add_others(Type::kLink, "link");
  add_others(Type::kRing, "ring");
  return text;
}

uint64_t Instance::live_count() const {
  std::lock_guard lock(objects_mutex_);
  return objects_.count();
}

// Makes the calling thread the one that closes.
Result<void> Instance::claim_close(gpumem_close_mode mode) {
  const auto claim = [this]() -> Result<void> {
    if (!closing_.exchange(true)) return {};
    return instance_closed();
  };
  if (mode == GPUMEM_CLOSE_FORCE) return claim();
  {
    // Not waited for: whoever has it may wait, in the driver or for another thread.
    const std::unique_lock lock(lifecycle_, std::try_to_lock);
    if (lock && live_count() == 0) return claim();
  }
  if (closing_) return claim();
  const uint64_t all = live_count();
  if (all == 0) {
    return make_error(GPUMEM_ERROR_BUSY,
                      "another thread is creating or destroying an object; close when it is done");
  }
  const OfPools hidden = of_pools();
  const uint64_t count = all - std::min(all, hidden.count);
  constexpr uint64_t kShown = 3;
  std::string list = report(kShown, "; ");
  if (count > kShown) list += "; and " + std::to_string(count - kShown) + " more in gpumem_stats_report()";
  return make_error(GPUMEM_ERROR_BUSY, "alive: %s; destroy %s, or close with GPUMEM_CLOSE_FORCE: %s",
                    totals(hidden).c_str(), count == 1 ? "it" : "them", list.c_str());
}

Result<uint64_t> Instance::close(Object& root, gpumem_close_mode mode) {
  GPUMEM_TRY(outside_host_function());
  if (Callback::runs_here() || background_.is_this_thread() || share_server_.is_this_thread() ||
      share_server_.tries_on_this_thread()) {
    return make_error(
        GPUMEM_ERROR_INVALID_STATE,
        "an instance cannot be closed in a callback of the library; close it when that has returned");
  }
  if (is_default_) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the default instance cannot be closed; open one of your own if you need to close it");
  }
  end_abandoned(*this);
  // Work of streams that live may be waited for elsewhere; of those that are gone nobody else can.
  if (mode == GPUMEM_CLOSE_CHECK) end_left_pools(*this, statistics_.objects(Type::kStream) == 0);
  GPUMEM_TRY(claim_close(mode));
  handles::end(root, End::kClosed);
  // Calls that wait for other processes return.
  share_server_.stop();
  // Once this lock is had, no call is in the middle of making or destroying an object.
  lifecycle_.lock();
  lifecycle_.unlock();
  const uint64_t count = live_count();
  if (count != 0) {
    log(GPUMEM_LOG_WARNING, "closing an instance that has %" PRIu64 " live object%s", count, plural(count));
  }
  backend_->stop_waiting_for_others();
  platform::fence_all_threads();
  platform::wait_for_uses(&root);
  background_.stop();
  end_handles();
  await_streams();
  imports_.stop();
  destroy_objects();
  for (const auto& device : devices_) {
    device->forget_peers();
    device->transfer().stop();
    device->release_streams();
  }
  for (Object* device : device_objects_)
    handles::remove(device);
  device_objects_.clear();
  devices_.clear();
  backend_.reset();
  return count;
}

Result<uint64_t> close_instance(Ref<InstanceObject> root, gpumem_close_mode mode) {
  auto destroyed = root->instance().close(*root, mode);
  if (!destroyed) return destroyed;
  InstanceObject* const gone = root.get();
  root = {};
  handles::remove(gone);
  return destroyed;
}

// Ends every handle before anything is waited for, so that no work comes after the wait. The objects are kept
// until they are released.
void Instance::end_handles() noexcept {
  for (Object* device : device_objects_)
    handles::end(*device, End::kClosed);
  const auto for_all = [this](auto is_meant, auto function) {
    for (Object* object = objects_.first(); object != nullptr; object = ObjectList::next(*object)) {
      if (is_meant(object->type())) function(*object);
    }
  };
  const auto end_all = [&](auto is_meant) {
    for_all(is_meant, [](Object& object) { handles::end(object, End::kClosed); });
    platform::fence_all_threads();
    for_all(is_meant, [](Object& object) { platform::wait_for_uses(&object); });
  };
  // A call on a stream still finds the memory that it names.
  end_all([](Type type) { return !is_region(type); });
  for_all(is_region, [](Object& object) { static_cast<Region&>(object).set_state(Region::State::kLeaving); });
  end_all(is_region);
  for (Object* device : device_objects_)
    platform::wait_for_uses(device);
}

void Instance::await_streams() noexcept {
  for (Object* object = objects_.first(); object != nullptr; object = ObjectList::next(*object)) {
    if (object->type() != Type::kStream) continue;
    auto& stream = static_cast<Stream&>(*object);
    if (stream.device().backend().lost()) continue;
    if (auto done = stream.backend().drain(); !done) {
      log(GPUMEM_LOG_WARNING, "could not wait for a stream at close: %s", done.error().message);
    }
  }
  for (const auto& device : devices_) {
    if (auto done = device->backend().await_released_streams(); !done) {
      log(GPUMEM_LOG_WARNING, "could not wait for a destroyed stream at close: %s", done.error().message);
    }
  }
  // A lost device could not be waited for. What runs must not lose the memory that it uses.
  const bool lost = std::any_of(devices_.begin(), devices_.end(),
                                [](const auto& device) { return device->backend().lost(); });
  if (lost) end_functions_of(*this);
}

// Memory first, then what ordered the work on it.
void Instance::destroy_objects() noexcept {
  const auto destroy_all = [&](Type type, Result<void> (*destroy)(Object&), void (*abandon)(Object&)) {
    Object* next = nullptr;
    for (Object* object = objects_.first(); object != nullptr; object = next) {
      next = ObjectList::next(*object);
      if (object->type() != type) continue;
      auto done = destroy(*object);
      // A release may be told of what went wrong before it; the next one succeeds then.
      if (!done) done = destroy(*object);
      if (!done) {
        log(GPUMEM_LOG_ERROR, "could not destroy %s at close: %s", describe(*object).text,
            done.error().message);
        abandon(*object);
      }
      handles::remove(object);
    }
  };
  const auto remove = [](Object& object) { object.instance().remove_object(object); };
  const auto close_it = [](Object& object) -> Result<void> {
    object.instance().remove_object(object);
    return {};
  };
  destroy_all(
      Type::kRing,
      [](Object& object) -> Result<void> {
        static_cast<Ring&>(object).close();
        object.instance().remove_object(object);
        return {};
      },
      remove);
  destroy_all(
      Type::kPool,
      [](Object& object) -> Result<void> {
        static_cast<Pool&>(object).core().retire();
        object.instance().remove_object(object);
        return {};
      },
      remove);
  destroy_all(Type::kHub, close_it, remove);
  destroy_all(Type::kLink, close_it, remove);
  // Only the buffers' own records: their ranges and blocks are destroyed as such, below.
  destroy_all(
      Type::kBuffer,
      [](Object& object) -> Result<void> {
        object.instance().remove_object(object);
        return {};
      },
      remove);
  destroy_all(
      Type::kGroup,
      [](Object& object) -> Result<void> {
        object.instance().remove_object(object);
        return {};
      },
      remove);
  destroy_all(
      Type::kRange, [](Object& object) { return release_range(static_cast<Range&>(object)); },
      [](Object& object) { forget_range(static_cast<Range&>(object)); });
  destroy_all(
      Type::kMemory, [](Object& object) { return release_memory(static_cast<Memory&>(object)); },
      [](Object& object) { forget_memory(static_cast<Memory&>(object)); });
  pools_.clear();
  destroy_all(
      Type::kPhysical, [](Object& object) { return free_physical(static_cast<Physical&>(object)); }, remove);
  destroy_all(
      Type::kEvent, [](Object& object) { return release_event(static_cast<Event&>(object)); }, remove);
  destroy_all(
      Type::kStream, [](Object& object) { return release_stream(static_cast<Stream&>(object)); }, remove);
}

// ---- the default instance ----

namespace {

struct DefaultInstance {
  std::atomic<uint32_t> opening{
      0};  // epoch of the process in which a thread is at it; another one's is no lock
  std::atomic<uint32_t> epoch{0};  // of the process that `handle` belongs to
  std::atomic<uint64_t> handle{0};
};

constinit DefaultInstance default_instance;

Error bad_variable(const char* name, const char* value, const char* expected) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the environment variable %s is %s; it must be %s", name,
                    Quoted(value).text(), expected);
}

template <class T>
Result<void> read_number(const char* name, T* out) {
  const char* text = platform::environment(name);
  if (text == nullptr) return {};
  const char* end = text + std::strlen(text);
  T value{};
  const auto [stop, problem] = std::from_chars(text, end, value);
  if (problem != std::errc{} || stop != end) return bad_variable(name, text, "a whole number");
  *out = value;
  return {};
}

struct Word {
  const char* text;
  int32_t value;
};

template <size_t N>
Result<void> read_word(const char* name, const std::array<Word, N>& words, const char* expected,
                       int32_t* out) {
  const char* text = platform::environment(name);
  if (text == nullptr) return {};
  for (const Word& word : words) {
    if (std::strcmp(word.text, text) == 0) {
      *out = word.value;
      return {};
    }
  }
  return bad_variable(name, text, expected);
}

Result<void> read_toggle(const char* name, gpumem_toggle* out) {
  static constexpr std::array<Word, 4> kWords{{{"1", GPUMEM_TOGGLE_ON},
                                               {"on", GPUMEM_TOGGLE_ON},
                                               {"0", GPUMEM_TOGGLE_OFF},
                                               {"off", GPUMEM_TOGGLE_OFF}}};
  return read_word(name, kWords, "1, 0, on or off", out);
}

Result<void> read_transfer_threads(uint32_t* out) {
  constexpr const char* kName = "GPUMEM_TRANSFER_THREADS";
  const char* const text = platform::environment(kName);
  if (text != nullptr && std::strcmp(text, "off") == 0) {
    *out = TransferOptions::kOff;
    return {};
  }
  return read_number(kName, out);
}

void read_text(const char* name, std::string* out) {
  if (const char* text = platform::environment(name)) *out = text;
}

Result<OpenRequest> request_from_environment() {
  static constexpr std::array<Word, 3> kBackends{
      {{"any", GPUMEM_BACKEND_ANY}, {"cuda", GPUMEM_BACKEND_CUDA}, {"host", GPUMEM_BACKEND_HOST}}};
  static constexpr std::array<Word, 3> kLockModes{
      {{"try", GPUMEM_HOST_LOCK_TRY}, {"require", GPUMEM_HOST_LOCK_REQUIRE}, {"off", GPUMEM_HOST_LOCK_OFF}}};
  OpenRequest request;
  request.name = "default";
  backend::HostOptions& host = request.options.host;
  GPUMEM_TRY(read_word("GPUMEM_BACKEND", kBackends, "any, cuda or host", &request.backend));
  GPUMEM_TRY(read_number("GPUMEM_PIN_BUDGET", &request.pin_budget));
  GPUMEM_TRY(read_transfer_threads(&request.transfer.threads));
  GPUMEM_TRY(read_number("GPUMEM_TRANSFER_BYTES", &request.transfer.bytes));
  GPUMEM_TRY(read_number("GPUMEM_HOST_DEVICES", &host.device_count));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_STRICT", &host.strict));
  GPUMEM_TRY(read_number("GPUMEM_HOST_DEVICE_BYTES", &host.device_bytes));
  GPUMEM_TRY(read_number("GPUMEM_HOST_GRANULARITY", &host.granularity));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_PAGEABLE", &host.pageable));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_SAME_POINTER", &host.same_pointer));
  GPUMEM_TRY(read_word("GPUMEM_HOST_LOCK", kLockModes, "try, require or off", &host.lock_mode));
  GPUMEM_TRY(read_number("GPUMEM_HOST_NUMA_NODES", &host.numa_nodes));
  GPUMEM_TRY(read_number("GPUMEM_HOST_REGISTER_MAX", &host.register_count_max));
  GPUMEM_TRY(read_number("GPUMEM_HOST_LOCK_PIECE", &host.lock_piece));
  GPUMEM_TRY(read_number("GPUMEM_HOST_QUARANTINE", &host.quarantine));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_FILL", &host.fill));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_COMPRESSIBLE", &host.compressible));
  GPUMEM_TRY(read_number("GPUMEM_HOST_VMM_GRANULARITY", &host.vmm_granularity));
  read_text("GPUMEM_HOST_PEERS", &host.peers);
  read_text("GPUMEM_HOST_MASKED", &host.masked);
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_CONCURRENT", &host.concurrent));
  return request;
}

}  // namespace

Result<uint64_t> Instance::open_default() {
  const uint32_t epoch = platform::process_epoch();
  while (true) {
    if (default_instance.epoch.load(std::memory_order_acquire) == epoch)
      return default_instance.handle.load();
    uint32_t holder = default_instance.opening.load();
    if (holder != epoch && default_instance.opening.compare_exchange_strong(holder, epoch)) break;
    default_instance.opening.wait(epoch);  // another thread of this process opens it
  }
  Cleanup done([] {
    default_instance.opening.store(0);
    default_instance.opening.notify_all();
  });
  if (default_instance.epoch.load(std::memory_order_acquire) == epoch) return default_instance.handle.load();
  auto request = request_from_environment();
  if (!request) return request.error();
  auto handle = open(*request);
  if (!handle) return handle;
  {
    const platform::Look look(platform::thread_record());
    if (Object* const root = handles::look_up(*handle, Type::kInstance, epoch))
      root->instance().is_default_ = true;
  }
  default_instance.handle.store(*handle);
  default_instance.epoch.store(epoch, std::memory_order_release);
  return handle;
}

}  // namespace gpumem::core
