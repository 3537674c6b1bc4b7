// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Events: what their handles point to.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "contract/event.h"
#include "core/device/device.h"
#include "core/object/handles.h"
#include "core/object/host_function_guard.h"
#include "core/object/object.h"
#include "core/object/sharing.h"
#include "core/stream/stream.h"

namespace gpumem::core {

class Event final : public Object {
 public:
  static constexpr Type kType = Type::kEvent;
  Event(std::shared_ptr<Context> context, Device& device, bool wrapped, std::string name)
      : Object(kType, std::move(context)),
        device_(device),
        wrapped_(wrapped),
        recorded_(wrapped),
        name_(std::move(name)) {}

  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;

  Device& device() const { return device_; }
  bool wrapped() const { return wrapped_; }
  gpumem_event_flags flags() const { return flags_; }
  void set_flags(gpumem_event_flags flags) { flags_ = flags; }
  const std::string& name() const { return name_; }
  backend::Event& backend() const { return *backend_; }
  // The answer of gpumem_event_get_info().
  const gpumem_event_info& info() const { return info_; }
  // A wrapped event counts as recorded, because other code may have recorded it.
  bool recorded() const { return recorded_.load(std::memory_order_relaxed); }
  void set_recorded() {
    if (!recorded()) recorded_.store(true, std::memory_order_relaxed);  // most of the time nothing is written
  }
  // The capture that it was last recorded in; 0: none. Then it stands for a node of a graph.
  uint64_t capture() const { return capture_.load(std::memory_order_relaxed); }
  void set_capture(uint64_t id) {
    if (capture() != id) capture_.store(id, std::memory_order_relaxed);
  }
  // Whether another process owns the event, which holds it for this one until the event ends.
  bool imported() const { return exporter_ != nullptr; }
  void set_exporter(std::shared_ptr<const OtherProcess> exporter);
  Result<void> usable() const {
    GPUMEM_TRY(device_.usable());
    if (imported()) [[unlikely]]
      GPUMEM_TRY(check_peer());
    return outside_host_function();
  }
  // For calls that look at it, or wait for it on the CPU: that would end a capture.
  Result<void> observable() const {
    GPUMEM_TRY(usable());
    if (capture() != 0) [[unlikely]]
      return captured_error();
    return {};
  }

  static Error captured_error();

 private:
  Result<void> check_peer() const;
  void set_backend(std::shared_ptr<backend::Event> made);

  template <class T, class Make>
  friend Result<uint64_t> make_object(DeviceObject& device, bool wrapped, std::string name, Make make);

  Device& device_;
  const bool wrapped_;
  std::atomic<bool> recorded_;
  std::atomic<uint64_t> capture_{0};
  gpumem_event_flags flags_ = 0;
  const std::string name_;
  std::shared_ptr<backend::Event> backend_;
  std::shared_ptr<const OtherProcess> exporter_;
  gpumem_event_info info_ = GPUMEM_EVENT_INFO_INIT;
};

Result<uint64_t> create_event(DeviceObject& device, gpumem_event_flags flags, std::string name);
Result<uint64_t> wrap_event(DeviceObject& device, void* native, gpumem_event_flags flags);
Error of_other_device(const Event& event, const Stream& stream);
Result<void> record_in_capture(Event& event, Stream& stream);
inline Result<void> record_event(Event& event, Stream& stream) {
  if (&event.device() != &stream.device()) return of_other_device(event, stream);
  if (event.imported()) GPUMEM_TRY(event.usable());
  bool captured = false;
  GPUMEM_TRY(stream.accepts_work(&captured));
  if (captured) [[unlikely]]
    return record_in_capture(event, stream);
  GPUMEM_TRY(event.backend().record(stream.backend()));
  event.set_recorded();
  event.set_capture(0);
  return {};
}
inline Result<Status> query_event(Event& event) {
  GPUMEM_TRY(event.observable());
  return ready(event.backend().query());
}
Result<void> wait_event(Stream& stream, Event& event);
Result<Status> synchronize_event(Event& event, uint64_t timeout_ns);
// In nanoseconds; no value when one of them is not complete.
Result<std::optional<int64_t>> elapsed_time(Event& start, Event& end);

}  // namespace gpumem::core
