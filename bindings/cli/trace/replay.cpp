// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem trace replay: makes and frees again what a trace has, one call after the other in the order in which
// they took effect, on any backend, and from a pool if that is asked for.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <unordered_map>

#include "../commands.h"
#include "../library.h"
#include "../output.h"
#include "../path.h"
#include "history.h"

namespace gpumem::cli {

namespace {

using Field = TraceField;
using enum Table::Align;

gpumem_kind kind_of(const std::string& name) {
  if (name == "pinned") return GPUMEM_KIND_PINNED;
  if (name == "managed") return GPUMEM_KIND_MANAGED;
  if (name == "pageable") return GPUMEM_KIND_PAGEABLE;
  return GPUMEM_KIND_DEVICE;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// The handle or address by which a call names memory.
uint64_t key_of(const TraceCall& call) {
  for (const Field field :
       {Field::kMemory, Field::kBuffer, Field::kPhysical, Field::kRange, Field::kPointer}) {
    if (call[field] != 0) return call[field];
  }
  return 0;
}

class Replay {
 public:
  Replay(const TraceOptions& options, gpumem_instance instance) : options_(options), instance_(instance) {
    const uint32_t count = instance_info(instance).device_count;
    for (uint32_t i = 0; i < count; ++i)
      devices_.push_back(find_device(instance, i));
    call(gpumem_stats_reset_peaks, instance);
  }

  void run(const Trace& trace) {
    for (const TraceCall& now : trace.calls) {
      now_ = &now;
      const uint64_t before = calls_ + failed_;
      if (now.status == 0) options_.pool ? from_one_pool() : as_recorded();
      const bool replayed = calls_ + failed_ != before;
      if (replayed && now.first()) recorded_ns_ += now.ns;
      if (!replayed && now.first()) ++left_out_;
    }
  }

  // What the program had left.
  void free_all() {
    // Ranges hold what is mapped, so they go first.
    for (const What what :
         {What::kRange, What::kMemory, What::kPages, What::kPhysical, What::kBuffer, What::kBlock}) {
      for (auto object = objects_.begin(); object != objects_.end();) {
        if (object->second.what == what) {
          destroy(object->second, nullptr);
          object = objects_.erase(object);
        } else {
          ++object;
        }
      }
    }
    for (const auto& [key, pool] : pools_)
      gpumem_pool_destroy(pool, nullptr);
    streams_.clear();
    require_nothing_lives(instance_);
  }

  void print(const Trace& trace) const {
    gpumem_stats stats = GPUMEM_STATS_INIT;
    call(gpumem_stats_get, instance_, &stats);
    const auto calls = std::count_if(trace.calls.begin(), trace.calls.end(),
                                     [](const TraceCall& one) { return one.first(); });
    Table table({}, {kRight});
    table.add({std::to_string(calls), "calls in the trace"});
    table.add({std::to_string(left_out_),
               "left out: they failed, changed nothing, or were about memory of others"});
    table.add({std::to_string(static_cast<uint64_t>(calls) - left_out_), "replayed"});
    table.add({std::to_string(failed_), "failed"});
    for (const auto& [status, count] : failures_)
      table.add({std::to_string(count), std::string("with ") + gpumem_status_name(status)});
    table.add({time_text(ns_), "in the calls"});
    table.add({time_text(recorded_ns_), "in the same calls when they were recorded"});
    if (recorded_ns_ != 0) {
      std::array<char, 32> ratio{};
      std::snprintf(ratio.data(), ratio.size(), "%.3g",
                    static_cast<double>(ns_) / static_cast<double>(recorded_ns_));
      table.add({ratio.data(), "times as long as recorded"});
    }
    table.add({size_text(peak_live_), "live at most, as asked for"});
    table.add({size_text(stats.peak_bytes), "taken at most, from the device and the system"});
    std::cout << table.text();
  }
  uint64_t failed() const { return failed_; }

 private:
  enum class What { kMemory, kPages, kPhysical, kRange, kBuffer, kBlock };
  struct Object {
    What what = What::kMemory;
    uint64_t size = 0;        // 0 while it sleeps
    uint64_t size_awake = 0;  // while it sleeps
    bool asleep = false;
    void* handle = nullptr;  // or address
    gpumem_pool pool = nullptr;
    uint64_t pool_key = 0;
    Pages pages;  // of a registration
    uint64_t group = 0;
    std::string tag;
  };

  template <typename Function, typename... Arguments>
  bool attempt(Function function, Arguments... arguments) {
    const auto begin = std::chrono::steady_clock::now();
    const gpumem_status status = function(arguments..., nullptr);
    ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
    if (GPUMEM_FAILED(status)) {
      ++failed_;
      ++failures_[status];
    } else {
      ++calls_;
    }
    return !GPUMEM_FAILED(status);
  }

  gpumem_device device(uint64_t ordinal) const { return devices_[ordinal % devices_.size()]; }
  gpumem_device device() const { return device((*now_)[Field::kDevice]); }

  // The stream that stands for one of the trace.
  gpumem_stream stream(uint64_t ordinal) {
    const bool native = now_->has(Field::kNativeStream);
    const uint64_t key = (*now_)[native ? Field::kNativeStream : Field::kStream];
    if (key == 0 && !native) return nullptr;
    auto found = streams_.find(key);
    if (found == streams_.end()) found = streams_.emplace(key, create_stream(device(ordinal))).first;
    return found->second.get();
  }

  void keep(uint64_t key, Object object) {
    if (key == 0) return;
    release(key);  // its end was lost
    live_ += object.size;
    peak_live_ = std::max(peak_live_, live_);
    objects_[key] = std::move(object);
  }
  Object* find(uint64_t key) {
    const auto found = objects_.find(key);
    return found == objects_.end() ? nullptr : &found->second;
  }
  void release(uint64_t key, gpumem_stream stream = nullptr) {
    const auto found = objects_.find(key);
    if (found == objects_.end()) return;
    live_ -= found->second.size;
    destroy(found->second, stream);
    objects_.erase(found);
  }
  void destroy(const Object& object, gpumem_stream stream) {
    switch (object.what) {
      case What::kMemory:
        attempt(gpumem_memory_destroy, static_cast<gpumem_memory>(object.handle));
        break;
      case What::kPages:
        ++calls_;
        std::free(object.handle);
        break;
      case What::kPhysical:
        attempt(gpumem_physical_release, static_cast<gpumem_physical>(object.handle));
        break;
      case What::kRange: {
        const auto range = static_cast<gpumem_range>(object.handle);
        gpumem_range_unmap(range, 0, GPUMEM_WHOLE_RANGE, nullptr);
        attempt(gpumem_range_release, range);
        break;
      }
      case What::kBuffer:
        attempt(gpumem_buffer_destroy, static_cast<gpumem_buffer>(object.handle));
        break;
      case What::kBlock:
        if (pools_.count(object.pool_key) != 0)
          attempt(gpumem_pool_free, object.pool, object.handle, stream);
        else
          attempt(gpumem_pool_free_pointer, instance_, object.handle, stream);
        break;
    }
  }

  void make_memory(uint64_t key, gpumem_kind kind, uint64_t ordinal) {
    Object object;
    object.size = (*now_)[Field::kSize];
    if (kind == GPUMEM_KIND_PAGEABLE) {
      object.what = What::kPages;
      object.handle = std::malloc(object.size);
      ++calls_;
      return keep(key, std::move(object));
    }
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = kind;
    desc.size = object.size;
    desc.alignment = (*now_)[Field::kAlignment];
    desc.require = now_->has(Field::kPool) ? 0 : (*now_)[Field::kRequire] & ~GPUMEM_MEMORY_NUMA_NODE;
    gpumem_memory memory = nullptr;
    if (!attempt(gpumem_memory_create, device(ordinal), &desc, &memory)) return;
    object.handle = memory;
    keep(key, std::move(object));
  }
  void make_block(uint64_t key, uint64_t pool_key, uint64_t size, gpumem_stream stream) {
    Object object;
    object.what = What::kBlock;
    object.size = size;
    object.pool_key = pool_key;
    object.pool = pools_.at(pool_key);
    if (attempt(gpumem_pool_alloc_aligned, object.pool, size, (*now_)[Field::kAlignment], stream,
                &object.handle))
      keep(key, std::move(object));
  }
  void make_registration(uint64_t key) {
    Object object;
    object.size = (*now_)[Field::kSize];
    object.pages = Pages(object.size);
    gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
    desc.pointer = object.pages.get();
    desc.size = object.size;
    gpumem_memory memory = nullptr;
    if (!attempt(gpumem_memory_register, device(), &desc, &memory)) return;
    object.handle = memory;
    keep(key, std::move(object));
  }

  void as_recorded() {
    const TraceCall& now = *now_;
    const std::string& name = now.call;
    if (name == "memory_create" || name == "malloc") {
      make_memory(key_of(now), kind_of(now.kind), now[Field::kDevice]);
    } else if (name == "memory_register" || name == "register") {
      make_registration(key_of(now));
    } else if (name == "memory_destroy" || name == "free" || name == "unregister" ||
               name == "physical_release" || name == "range_release" || name == "buffer_destroy") {
      release(key_of(now));
    } else if (name == "stream_create" || name == "stream_wrap") {
      streams_[now[Field::kStream]] = create_stream(device());
      ++calls_;
    } else if (name == "stream_destroy") {
      calls_ += streams_.erase(now[Field::kStream]);
    } else if (name.rfind("pool_", 0) == 0) {
      replay_pool();
    } else if (name.rfind("buffer_", 0) == 0) {
      replay_buffer();
    } else if (name == "group_sleep" || name == "group_wake") {
      for (auto& [key, object] : objects_) {
        if (object.what == What::kBuffer && object.group == now[Field::kGroup] &&
            (now.tag.empty() || now.tag == object.tag) && object.asleep == (name == "group_wake"))
          name == "group_sleep" ? sleep(object) : wake(object);
      }
    } else if (name == "physical_create") {
      replay_physical();
    } else if (name.rfind("range_", 0) == 0) {
      replay_range();
    }
  }

  struct PoolOf {
    gpumem_kind kind;
    uint64_t device;
  };

  void replay_pool() {
    const TraceCall& now = *now_;
    const std::string& name = now.call;
    const uint64_t key = now[Field::kPool];
    if (name == "pool_create") {
      kinds_[key] = {kind_of(now.kind), now[Field::kDevice]};
      gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
      desc.kind = kind_of(now.kind);
      desc.flags = now[Field::kFlags];
      desc.memory_flags = now[Field::kMemoryFlags] & ~GPUMEM_MEMORY_NUMA_NODE;
      desc.limit = now[Field::kLimit];
      desc.release_threshold = now[Field::kReleaseThreshold];
      desc.initial_size = now[Field::kInitialSize];
      desc.segment_size = now[Field::kSegmentSize];
      gpumem_pool pool = nullptr;
      if (!options_.no_pool && attempt(gpumem_pool_create, device(), &desc, &pool)) pools_[key] = pool;
      return;
    }
    const auto kind = kinds_.find(key);
    const auto pool = pools_.find(key);
    if (contains(name, "free")) {
      release(now[Field::kPointer], stream(kind == kinds_.end() ? 0 : kind->second.device));
    } else if (options_.no_pool) {
      if (contains(name, "alloc") && now[Field::kPointer] != 0 && kind != kinds_.end())
        make_memory(now[Field::kPointer], kind->second.kind, kind->second.device);
    } else if (pool == pools_.end()) {
      return;
    } else if (contains(name, "alloc")) {
      make_block(now[Field::kPointer], key, now[Field::kSize], stream(kind->second.device));
    } else if (name == "pool_trim") {
      attempt(gpumem_pool_trim, pool->second, now[Field::kKeepBytes], nullptr);
    } else if (name == "pool_destroy") {
      if (attempt(gpumem_pool_destroy, pool->second)) pools_.erase(pool);
    }
  }

  void sleep(Object& object) {
    gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
    const auto content = static_cast<gpumem_content>((*now_)[Field::kContent]);
    desc.content = content == GPUMEM_CONTENT_FILE ? GPUMEM_CONTENT_PAGEABLE : content;
    if (!attempt(gpumem_buffer_sleep, static_cast<gpumem_buffer>(object.handle), &desc)) return;
    object.size_awake = object.size;
    object.asleep = true;
    resize(&object, 0);
  }
  void wake(Object& object) {
    if (!attempt(gpumem_buffer_wake, static_cast<gpumem_buffer>(object.handle), nullptr)) return;
    object.asleep = false;
    resize(&object, object.size_awake);
  }

  void replay_buffer() {
    const TraceCall& now = *now_;
    if (now.call == "buffer_create") {
      gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
      desc.size = now[Field::kSize];
      desc.reserve = now[Field::kReserve];
      desc.flags = now[Field::kFlags];
      desc.location = static_cast<gpumem_location>(
          now[Field::kLocation] > GPUMEM_LOCATION_HOST ? GPUMEM_LOCATION_HOST : now[Field::kLocation]);
      Object object;
      object.what = What::kBuffer;
      object.size = desc.size;
      object.group = now[Field::kGroup];
      object.tag = now.tag;
      gpumem_buffer buffer = nullptr;
      if (!attempt(gpumem_buffer_create, device(), &desc, &buffer)) return;
      object.handle = buffer;
      return keep(now[Field::kBuffer], std::move(object));
    }
    Object* const object = find(now[Field::kBuffer]);
    if (object == nullptr) return;
    if (now.call == "buffer_resize" &&
        attempt(gpumem_buffer_resize, static_cast<gpumem_buffer>(object->handle), now[Field::kSize]))
      resize(object, now[Field::kSize]);
    if (now.call == "buffer_set_capacity")
      attempt(gpumem_buffer_set_capacity, static_cast<gpumem_buffer>(object->handle), now[Field::kCapacity]);
    if (now.call == "buffer_sleep") sleep(*object);
    if (now.call == "buffer_wake") wake(*object);
  }
  void resize(Object* object, uint64_t size) {
    live_ = live_ - object->size + size;
    object->size = size;
    peak_live_ = std::max(peak_live_, live_);
  }

  void replay_physical() {
    gpumem_physical_desc desc = GPUMEM_PHYSICAL_DESC_INIT;
    if ((*now_)[Field::kLocation] >= GPUMEM_LOCATION_HOST) desc.location = GPUMEM_LOCATION_HOST;
    uint64_t unit = 1;
    if (!attempt(gpumem_physical_get_granularity, device(), &desc, &unit, nullptr)) return;
    --calls_;
    desc.size = ((*now_)[Field::kSize] + unit - 1) / unit * unit;
    gpumem_physical physical = nullptr;
    if (!attempt(gpumem_physical_create, device(), &desc, &physical)) return;
    Object object;
    object.what = What::kPhysical;
    object.size = desc.size;
    object.handle = physical;
    keep((*now_)[Field::kPhysical], std::move(object));
  }
  void replay_range() {
    const TraceCall& now = *now_;
    if (now.call == "range_reserve") {
      gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
      desc.size = now[Field::kSize];
      desc.alignment = now[Field::kAlignment];
      gpumem_range range = nullptr;
      if (!attempt(gpumem_range_reserve, instance_, &desc, &range)) return;
      Object object;
      object.what = What::kRange;
      object.handle = range;
      return keep(now[Field::kRange], std::move(object));
    }
    Object* const range = find(now[Field::kRange]);
    if (range == nullptr) return;
    if (now.call == "range_map") {
      if (now.first()) next_offset_ = now[Field::kOffset];
      Object* const block = find(now[Field::kPhysical]);
      if (block == nullptr) return;
      const auto physical = static_cast<gpumem_physical>(block->handle);
      attempt(gpumem_range_map, static_cast<gpumem_range>(range->handle), next_offset_, &physical,
              uint64_t{1});
      next_offset_ += block->size;
    } else if (now.call == "range_unmap") {
      attempt(gpumem_range_unmap, static_cast<gpumem_range>(range->handle), now[Field::kOffset],
              now[Field::kSize]);
    }
  }

  // Whatever it was, it is a block now. What the program owns or others have made stays out.
  void from_one_pool() {
    const TraceCall& now = *now_;
    const std::string& name = now.call;
    if (name == "pool_create") kinds_[now[Field::kPool]] = {kind_of(now.kind), now[Field::kDevice]};
    const bool of_pool = name.rfind("pool_", 0) == 0;
    const auto kind = kinds_.find(now[Field::kPool]);
    const uint64_t ordinal = of_pool && kind != kinds_.end() ? kind->second.device : now[Field::kDevice];
    const uint64_t key = key_of(now);
    if (name == "memory_create" || name == "malloc" || name == "physical_create" || name == "buffer_create" ||
        (of_pool && contains(name, "alloc"))) {
      if (key != 0 && now[Field::kSize] != 0) allocate(key, now[Field::kSize], ordinal, stream(ordinal));
    } else if (name == "buffer_resize" || name == "buffer_wake" || name == "buffer_sleep") {
      uint64_t& size = sizes_[key];
      if (name == "buffer_resize") size = now[Field::kSize];
      release(key);
      if (name != "buffer_sleep" && size != 0) allocate(key, size, now[Field::kDevice], nullptr);
    } else if (contains(name, "free") || contains(name, "destroy") || contains(name, "release")) {
      release(key, stream(ordinal));
    }
  }
  void allocate(uint64_t key, uint64_t size, uint64_t ordinal, gpumem_stream stream) {
    const uint64_t pool_key = ordinal % devices_.size() + 1;
    if (pools_.count(pool_key) == 0) {
      gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
      desc.kind = kind_of(*options_.pool);
      gpumem_pool pool = nullptr;
      call(gpumem_pool_create, device(ordinal), &desc, &pool);
      pools_[pool_key] = pool;
    }
    sizes_[key] = size;
    make_block(key, pool_key, size, stream);
  }

  const TraceOptions& options_;
  gpumem_instance instance_;
  std::vector<gpumem_device> devices_;
  const TraceCall* now_ = nullptr;
  std::unordered_map<uint64_t, Object> objects_;
  std::unordered_map<uint64_t, gpumem_pool> pools_;
  std::unordered_map<uint64_t, PoolOf> kinds_;
  std::unordered_map<uint64_t, uint64_t> sizes_;  // of buffers, also of those that sleep
  std::unordered_map<uint64_t, Stream> streams_;
  std::map<gpumem_status, uint64_t> failures_;
  uint64_t next_offset_ = 0;
  uint64_t calls_ = 0;  // that succeeded now
  uint64_t failed_ = 0;
  uint64_t left_out_ = 0;
  uint64_t ns_ = 0;
  uint64_t recorded_ns_ = 0;
  uint64_t live_ = 0;
  uint64_t peak_live_ = 0;
};

}  // namespace

int trace_replay(const TraceOptions& options) {
  const Trace trace = read_trace(options.file);
  const gpumem_instance instance = open_instance(options.backend);
  Replay replay(options, instance);
  replay.run(trace);
  replay.print(trace);
  const uint64_t failed = replay.failed();
  replay.free_all();
  return failed == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace gpumem::cli
