// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/make_object.h"

#include <cstdio>

#include "base/arithmetic.h"
#include "core/stream/event.h"
#include "core/stream/stream.h"

namespace gpumem::core {

void Stream::set_backend(std::shared_ptr<backend::Stream> made) {
  backend_ = std::move(made);
  info_.device = reinterpret_cast<gpumem_device>(pointer_to(device_.handle()));
  info_.device_ordinal = device_.ordinal();
  info_.wrapped = wrapped_ ? 1 : 0;
  info_.priority = backend_->priority();
  info_.native_stream = backend_->native();
  info_.id = backend_->identity();
  // As PoolStream has it: set in keys made of handles, which are never reused, for streams that the driver
  // cannot tell apart.
  constexpr uint64_t kByHandle = uint64_t{1} << 62;
  order_key_ = info_.id != 0 ? info_.id : kByHandle | handle();
  std::snprintf(info_.name, sizeof info_.name, "%s", name_.c_str());
}

Result<uint64_t> create_stream(DeviceObject& device, int32_t priority, std::string name) {
  return make_object<Stream>(device, false, std::move(name), [&](backend::Device& backend, Stream&) {
    return backend.create_stream(priority);
  });
}

Result<uint64_t> wrap_stream(DeviceObject& device, void* native) {
  return make_object<Stream>(device, true, {},
                             [&](backend::Device& backend, Stream&) { return backend.wrap_stream(native); });
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

}  // namespace gpumem::core
