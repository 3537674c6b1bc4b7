// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream.h"

#include <cinttypes>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/host_function.h"
#include "core/instance.h"
#include "core/operand.h"

namespace gpumem::core {

// A new object of type T around what `make` gets from the backend.
template <class T, class Make>
Result<uint64_t> make_object(Ref<DeviceObject>& device, bool wrapped, std::string name, Make make) {
  Instance& instance = device->instance();
  GPUMEM_TRY(device->device().usable());
  GPUMEM_TRY(outside_host_function());
  const auto open = instance.stay_open();
  if (!open) return open.error();
  auto object = std::make_unique<T>(device->shared_instance(), device->device(), wrapped, std::move(name));
  auto handle = handles::reserve(*object);
  if (!handle) return handle.error();
  Cleanup undo_handle([&] { handles::cancel(*object); });
  auto made = make(device->device().backend(), *object);
  if (!made) return made.error();
  undo_handle.dismiss();
  object->backend_ = std::move(*made);
  instance.add_object(*object);
  handles::publish(object.release());
  return *handle;
}

namespace {

// The reverse: ends the handle and gives the object back.
template <class T>
Result<void> destroy_object(Ref<T> object, Result<void> (*release)(T&)) {
  GPUMEM_TRY(outside_host_function());
  const auto open = object->instance().stay_open();
  if (!open) return open.error();
  if (!handles::end(*object, End::kDestroyed)) {
    return make_error(GPUMEM_ERROR_STALE_HANDLE, "another thread has just destroyed this %s",
                      type_name(T::kType));
  }
  handles::wait_for_others(*object);
  auto released = release(*object);
  if (!released) handles::revive(*object);
  return released;
}

Result<Status> ready(Result<bool> complete) {
  if (!complete) return complete.error();
  return *complete ? GPUMEM_SUCCESS : GPUMEM_NOT_READY;
}

}  // namespace

Result<void> Stream::usable() const {
  GPUMEM_TRY(device_.usable());
  GPUMEM_TRY(outside_host_function());
  auto capturing = backend_->is_capturing();
  if (!capturing) return capturing.error();
  if (*capturing) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the stream is being captured into a graph; end the capture or use another stream");
  }
  return {};
}

Result<void> Event::usable() const {
  GPUMEM_TRY(device_.usable());
  return outside_host_function();
}

Result<uint64_t> create_stream(Ref<DeviceObject> device, int32_t priority, std::string name) {
  return make_object<Stream>(device, false, std::move(name), [&](backend::Device& backend, Stream&) {
    return backend.create_stream(priority);
  });
}

Result<uint64_t> wrap_stream(Ref<DeviceObject> device, void* native) {
  return make_object<Stream>(device, true, {},
                             [&](backend::Device& backend, Stream&) { return backend.wrap_stream(native); });
}

Result<void> destroy_stream(Ref<Stream> stream) { return destroy_object(std::move(stream), release_stream); }

Result<void> release_stream(Stream& stream) {
  GPUMEM_TRY(stream.backend().release());
  stream.instance().remove_object(stream);
  return {};
}

Result<Status> query_stream(Stream& stream) {
  GPUMEM_TRY(stream.usable());
  return ready(stream.backend().query());
}

Result<Status> synchronize_stream(Stream& stream, uint64_t timeout_ns) {
  GPUMEM_TRY(stream.usable());
  return ready(timeout_ns == 0 ? stream.backend().query() : stream.backend().synchronize(timeout_ns));
}

Result<void> wait_event(Stream& stream, Event& event) {
  if (&stream.instance() != &event.instance()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "stream and event belong to different instances");
  }
  GPUMEM_TRY(event.device().usable());
  GPUMEM_TRY(stream.usable());
  return stream.backend().wait_event(event.backend());
}

Result<void> launch_host_function(Stream& stream, gpumem_host_function function, void* user_data) {
  GPUMEM_TRY(stream.usable());
  const host_functions::Id id = host_functions::add(&stream.instance(), function, user_data);
  Cleanup undo([&] { host_functions::remove(id); });
  GPUMEM_TRY(stream.backend().launch_host_function(host_functions::run, pointer_to(id)));
  undo.dismiss();
  return {};
}

namespace {

struct ValueWord {
  backend::Operand operand;
  Ref<Memory> memory;
};

// Refuses memory that no word can lie in.
Result<void> check_kind(const FoundOperand& found) {
  if (found.memory && found.memory->facts().device_pointer != nullptr) return {};
  return make_error(GPUMEM_ERROR_WRONG_KIND,
                    "the word lies in %s memory without a device pointer of this instance; use pinned, "
                    "device or mapped registered memory",
                    kind_name(found.operand.kind));
}

// The word that a value write or wait acts on (STR-17).
Result<ValueWord> find_word(Stream& stream, void* address, uint32_t value_size, bool write) {
  auto found = find_operand(stream.instance(), address, value_size, "the word");
  if (!found) {
    // That the memory is of the wrong kind comes before that the word leaves it (COM-17).
    if (auto first = find_operand(stream.instance(), address, 1, "the word")) GPUMEM_TRY(check_kind(*first));
    return found.error();
  }
  GPUMEM_TRY(check_kind(*found));
  if (found->operand.on_device) GPUMEM_TRY(found->memory->device().usable());
  GPUMEM_TRY(stream.usable());
  GPUMEM_TRY(found->memory->reachable_by(stream.device(), write));
  if (found->memory->kind() == GPUMEM_KIND_DEVICE && &found->memory->device() != &stream.device() &&
      !stream.device().has_peer_access(found->memory->device())) {
    return make_error(GPUMEM_ERROR_NO_ACCESS,
                      "device %u has no access to the memory of device %u; enable it first",
                      stream.device().ordinal(), found->memory->device().ordinal());
  }
  GPUMEM_TRY(stream.device().need(value_size == 4 ? GPUMEM_CAPABILITY_STREAM_VALUE32
                                                  : GPUMEM_CAPABILITY_STREAM_VALUE64));
  return ValueWord{std::move(found->operand), std::move(found->memory)};
}

}  // namespace

Result<void> write_value(Stream& stream, void* address, uint64_t value, uint32_t value_size) {
  auto word = find_word(stream, address, value_size, true);
  if (!word) return word.error();
  return stream.backend().write_value(word->operand, value, value_size);
}

Result<void> wait_value(Stream& stream, void* address, uint64_t value, uint32_t value_size,
                        gpumem_wait_condition condition) {
  auto word = find_word(stream, address, value_size, false);
  if (!word) return word.error();
  if (condition == GPUMEM_WAIT_NOR) GPUMEM_TRY(stream.device().need(GPUMEM_CAPABILITY_STREAM_VALUE_NOR));
  return stream.backend().wait_value(word->operand, value, value_size, condition);
}

Result<uint64_t> create_event(Ref<DeviceObject> device, gpumem_event_flags flags, std::string name) {
  return make_object<Event>(device, false, std::move(name), [&](backend::Device& backend, Event& event) {
    event.set_flags(flags);
    return backend.create_event(flags);
  });
}

Result<uint64_t> wrap_event(Ref<DeviceObject> device, void* native, gpumem_event_flags flags) {
  return make_object<Event>(device, true, {}, [&](backend::Device& backend, Event& event) {
    event.set_flags(flags);
    return backend.wrap_event(native, flags);
  });
}

Result<void> destroy_event(Ref<Event> event) { return destroy_object(std::move(event), release_event); }

Result<void> release_event(Event& event) {
  GPUMEM_TRY(event.backend().release());
  event.instance().remove_object(event);
  return {};
}

Result<void> record_event(Event& event, Stream& stream) {
  if (&event.device() != &stream.device()) {
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "the event belongs to device %u and the stream to device %u; use an event of the stream's device",
        event.device().ordinal(), stream.device().ordinal());
  }
  GPUMEM_TRY(stream.usable());
  GPUMEM_TRY(event.backend().record(stream.backend()));
  event.set_recorded();
  return {};
}

Result<Status> query_event(Event& event) {
  GPUMEM_TRY(event.usable());
  return ready(event.backend().query());
}

Result<Status> synchronize_event(Event& event, uint64_t timeout_ns) {
  GPUMEM_TRY(event.usable());
  return ready(timeout_ns == 0 ? event.backend().query() : event.backend().synchronize(timeout_ns));
}

Result<std::optional<int64_t>> elapsed_time(Event& start, Event& end) {
  if (&start.device() != &end.device()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the events belong to different devices");
  }
  GPUMEM_TRY(start.usable());
  for (const Event* event : {&start, &end}) {
    if ((event->flags() & GPUMEM_EVENT_DISABLE_TIMING) != 0) {
      return make_error(GPUMEM_ERROR_INVALID_STATE, "an event was made with GPUMEM_EVENT_DISABLE_TIMING");
    }
    if (!event->recorded()) return make_error(GPUMEM_ERROR_INVALID_STATE, "an event was never recorded");
  }
  return end.backend().elapsed_since(start.backend());
}

}  // namespace gpumem::core
