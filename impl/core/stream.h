// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams and events: what their handles point to, and what can be enqueued in a stream besides copies.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "core/device.h"
#include "core/object.h"

namespace gpumem::core {

class Stream final : public Object {
 public:
  static constexpr Type kType = Type::kStream;
  Stream(std::shared_ptr<Instance> instance, Device& device, bool wrapped, std::string name)
      : Object(kType, std::move(instance)), device_(device), wrapped_(wrapped), name_(std::move(name)) {}

  Device& device() const { return device_; }
  bool wrapped() const { return wrapped_; }
  const std::string& name() const { return name_; }
  backend::Stream& backend() const { return *backend_; }
  // Refuses on a lost device, from a host function, and while other code captures the stream (STR-20).
  Result<void> usable() const;

 private:
  template <class T, class Make>
  friend Result<uint64_t> make_object(Ref<DeviceObject>& device, bool wrapped, std::string name, Make make);

  Device& device_;
  const bool wrapped_;
  const std::string name_;
  std::shared_ptr<backend::Stream> backend_;
};

class Event final : public Object {
 public:
  static constexpr Type kType = Type::kEvent;
  Event(std::shared_ptr<Instance> instance, Device& device, bool wrapped, std::string name)
      : Object(kType, std::move(instance)),
        device_(device),
        wrapped_(wrapped),
        recorded_(wrapped),
        name_(std::move(name)) {}

  Device& device() const { return device_; }
  bool wrapped() const { return wrapped_; }
  gpumem_event_flags flags() const { return flags_; }
  void set_flags(gpumem_event_flags flags) { flags_ = flags; }
  const std::string& name() const { return name_; }
  backend::Event& backend() const { return *backend_; }
  // What other code did with a wrapped event is not known; it counts as recorded.
  bool recorded() const { return recorded_.load(std::memory_order_relaxed); }
  void set_recorded() { recorded_.store(true, std::memory_order_relaxed); }
  Result<void> usable() const;

 private:
  template <class T, class Make>
  friend Result<uint64_t> make_object(Ref<DeviceObject>& device, bool wrapped, std::string name, Make make);

  Device& device_;
  const bool wrapped_;
  std::atomic<bool> recorded_;
  gpumem_event_flags flags_ = 0;
  const std::string name_;
  std::shared_ptr<backend::Event> backend_;
};

Result<uint64_t> create_stream(Ref<DeviceObject> device, int32_t priority, std::string name);
Result<uint64_t> wrap_stream(Ref<DeviceObject> device, void* native);
Result<void> destroy_stream(Ref<Stream> stream);
Result<Status> query_stream(Stream& stream);
Result<Status> synchronize_stream(Stream& stream, uint64_t timeout_ns);
Result<void> wait_event(Stream& stream, Event& event);
Result<void> launch_host_function(Stream& stream, gpumem_host_function function, void* user_data);
Result<void> write_value(Stream& stream, void* address, uint64_t value, uint32_t value_size);
Result<void> wait_value(Stream& stream, void* address, uint64_t value, uint32_t value_size,
                        gpumem_wait_condition condition);

Result<uint64_t> create_event(Ref<DeviceObject> device, gpumem_event_flags flags, std::string name);
Result<uint64_t> wrap_event(Ref<DeviceObject> device, void* native, gpumem_event_flags flags);
Result<void> destroy_event(Ref<Event> event);
Result<void> record_event(Event& event, Stream& stream);
Result<Status> query_event(Event& event);
Result<Status> synchronize_event(Event& event, uint64_t timeout_ns);
// In nanoseconds; no value when one of them is not complete.
Result<std::optional<int64_t>> elapsed_time(Event& start, Event& end);

// Gives back an ended stream or event that nobody else refers to. Needs Instance::stay_open().
Result<void> release_stream(Stream& stream);
Result<void> release_event(Event& event);

}  // namespace gpumem::core
