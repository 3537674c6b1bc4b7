// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/event.h"

#include <cstdio>

#include "base/arithmetic.h"
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

Error Event::captured_error() {
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "the event was last recorded in a capture, so it stands for a node of that graph; record it "
      "in a stream that is not being captured");
}

Result<void> record_in_capture(Event& event, Stream& stream) {
  if ((event.flags() & GPUMEM_EVENT_INTERPROCESS) != 0 || event.imported()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the stream is being captured into a graph, which cannot hold an event that processes "
                      "share; record another event");
  }
  auto capture = Stream::current_capture(stream.backend());
  if (!capture) return capture.error();
  GPUMEM_TRY(event.backend().record(stream.backend()));
  event.set_recorded();
  event.set_capture(capture->id);
  return {};
}

namespace {

// The driver would end the capture if the event was not recorded in it (measured). Of a wrapped one it alone
// knows.
Result<void> check_in_capture(const Stream& stream, const Event& event) {
  if (event.wrapped() || !event.recorded()) return {};
  auto capture = Stream::current_capture(stream.backend());
  if (!capture) return capture.error();
  if (event.capture() == capture->id) return {};
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "the stream is being captured, and the event was recorded outside of that capture; record it "
      "in a stream of the capture, or wait before the capture begins");
}

}  // namespace

Result<void> wait_event(Stream& stream, Event& event) {
  if (&stream.context() != &event.context()) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "stream and event belong to different instances");
  }
  GPUMEM_TRY(event.device().usable());
  bool captured = false;
  GPUMEM_TRY(stream.accepts_work(&captured));
  if (event.imported()) GPUMEM_TRY(event.usable());
  if (captured) GPUMEM_TRY(check_in_capture(stream, event));
  auto waits = stream.backend().wait_event(event.backend());
  if (waits || captured || event.capture() == 0) return waits;
  if (waits.error().status == GPUMEM_ERROR_DEVICE_LOST) return waits;
  Error ended =
      reworded(waits.error(), "the capture that the event was last recorded in has ended; record it anew");
  ended.status = GPUMEM_ERROR_INVALID_STATE;  // a driver says NOT_SUPPORTED, or INVALID_VALUE
  return ended;
}

Result<Status> synchronize_event(Event& event, uint64_t timeout_ns) {
  GPUMEM_TRY(event.observable());
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
    if (event->capture() != 0) return Event::captured_error();
    if (!event->recorded())
      return make_error(GPUMEM_ERROR_INVALID_STATE, "the %s event was never recorded", which);
  }
  return end.backend().elapsed_since(start.backend());
}

}  // namespace gpumem::core
