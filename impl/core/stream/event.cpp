// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/event.h"

#include <cstdio>

#include "base/arithmetic.h"
#include "core/stream/make_object.h"
#include "core/stream/stream.h"

namespace gpumem::core {

void Event::set_exporter(std::shared_ptr<const OtherProcess> exporter) {
  exporter_ = std::move(exporter);
  set_recorded();  // by the other process, perhaps
}

Result<void> Event::check_peer() const {
  if (!exporter_->gone()) return {};
  return make_error(GPUMEM_ERROR_PEER_GONE,
                    "the process that exported the event has ended; destroy the import");
}

void Event::set_backend(std::shared_ptr<backend::Event> made) {
  backend_ = std::move(made);
  info_.device = reinterpret_cast<gpumem_device>(pointer_to(device_.handle()));
  info_.device_ordinal = device_.ordinal();
  info_.wrapped = wrapped_ ? 1 : 0;
  info_.flags = flags_;
  info_.native_event = backend_->native();
  std::snprintf(info_.name, sizeof info_.name, "%s", name_.c_str());
}

Result<uint64_t> create_event(DeviceObject& device, gpumem_event_flags flags, std::string name) {
  using Made = Result<std::shared_ptr<backend::Event>>;
  return make_object<Event>(device, false, std::move(name),
                            [&](backend::Device& backend, Event& event) -> Made {
                              if ((flags & GPUMEM_EVENT_INTERPROCESS) != 0)
                                GPUMEM_TRY(device.device().need(GPUMEM_CAPABILITY_SHARE_EVENTS));
                              event.set_flags(flags);
                              return backend.create_event(flags);
                            });
}

Result<uint64_t> wrap_event(DeviceObject& device, void* native, gpumem_event_flags flags) {
  return make_object<Event>(device, true, {}, [&](backend::Device& backend, Event& event) {
    event.set_flags(flags);
    return backend.wrap_event(native, flags);
  });
}

Line Event::describe() const {
  return line_of("event %s: device %u%s", shown(name_), device_.ordinal(), wrapped_ ? ", wrapped" : "");
}

void Event::list(Fields& fields) const noexcept {
  fields.add("name", name_);
  fields.add("device", uint64_t{device_.ordinal()});
  if (wrapped_) fields.add_true("wrapped");
}

Result<void> Event::release() {
  GPUMEM_TRY(backend().release());
  return {};
}

Error of_other_device(const Event& event, const Stream& stream) {
  if (&event.context() != &stream.context())
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the event and the stream belong to different instances");
  return make_error(
      GPUMEM_ERROR_INVALID_ARGUMENT,
      "the event belongs to device %u and the stream to device %u; use an event of the stream's device",
      event.device().ordinal(), stream.device().ordinal());
}

Result<void> wait_event(Stream& stream, Event& event) {
  if (&stream.context() != &event.context()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "stream and event belong to different instances");
  }
  GPUMEM_TRY(event.device().usable());
  GPUMEM_TRY(stream.usable());
  if (event.imported()) GPUMEM_TRY(event.usable());
  return stream.backend().wait_event(event.backend());
}

Result<Status> synchronize_event(Event& event, uint64_t timeout_ns) {
  GPUMEM_TRY(event.usable());
  return ready(timeout_ns == 0 ? event.backend().query() : event.backend().synchronize(timeout_ns));
}

Result<std::optional<int64_t>> elapsed_time(Event& start, Event& end) {
  if (&start.device() != &end.device()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the events belong to different %s",
                      &start.context() == &end.context() ? "devices" : "instances");
  }
  GPUMEM_TRY(start.usable());
  for (const Event* event : {&start, &end}) {
    const char* const which = event == &start ? "start" : "end";
    if ((event->flags() & GPUMEM_EVENT_DISABLE_TIMING) != 0) {
      return make_error(GPUMEM_ERROR_INVALID_STATE,
                        "the %s event was created with GPUMEM_EVENT_DISABLE_TIMING", which);
    }
    if (!event->recorded())
      return make_error(GPUMEM_ERROR_INVALID_STATE, "the %s event was never recorded", which);
  }
  return end.backend().elapsed_since(start.backend());
}

}  // namespace gpumem::core
