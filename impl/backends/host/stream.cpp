// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/stream.h"

#include <atomic>
#include <functional>

#include "backends/host/current_device.h"
#include "backends/host/device.h"
#include "backends/host/event.h"
#include "backends/host/kernel.h"
#include "backends/host/transfer.h"

namespace gpumem::host {

namespace {

template <class T>
bool holds(T word, T value, gpumem_wait_condition condition) {
  switch (condition) {
    case GPUMEM_WAIT_GEQ:
      return static_cast<std::make_signed_t<T>>(static_cast<T>(word - value)) >= 0;
    case GPUMEM_WAIT_EQ:
      return word == value;
    case GPUMEM_WAIT_AND:
      return (word & value) != 0;
    default:
      return static_cast<T>(~(word | value)) != 0;
  }
}

// Not std::atomic_ref, which libc++ has since version 19 only.
template <class T>
std::atomic<T>& word_at(const Rectangle& word) {
  static_assert(sizeof(std::atomic<T>) == sizeof(T) && alignof(std::atomic<T>) == alignof(T));
  return *reinterpret_cast<std::atomic<T>*>(word.bytes.first);
}

Rows rows_of(const Rectangle& rectangle) {
  return {rectangle.bytes.first, rectangle.pitch, rectangle.width, rectangle.height};
}

// Its pages cannot be written, so a worker must not try.
Result<void> require_writable(const Rectangle& destination) {
  const auto& allocation = destination.bytes.allocation;
  if (allocation == nullptr || !allocation->imported || !allocation->read_only()) return {};
  return make_error(GPUMEM_ERROR_NO_ACCESS, "the memory was imported with GPUMEM_ACCESS_READ");
}

}  // namespace

HostStream::HostStream(Shared& shared, const Lock& /*held*/, std::shared_ptr<Queue> queue, void* native,
                       int32_t priority, bool owned)
    : shared_(shared), queue_(std::move(queue)), native_(native), priority_(priority), owned_(owned) {
  ++queue_->timeline()->handles;
  if (owned_) conceal();
}

HostStream::~HostStream() {
  if (!released_) (void)release();
}

Result<void> HostStream::release() {
  const Lock lock(shared_.mutex);
  if (std::exchange(released_, true)) return {};
  --queue_->timeline()->handles;
  queue_->timeline()->settle_unobservable();
  if (owned_) queue_->retire(lock);
  shared_.managed.refresh(lock);
  return {};
}

Result<bool> HostStream::is_capturing() { return queue_->capture != 0; }

Result<backend::Capture> HostStream::capture() { return backend::Capture{queue_->capture, identity()}; }

const void* HostStream::cpu_view(const backend::Span& span) {
  auto bytes = resolve(shared_, span, 1, 1, 1);
  return bytes ? bytes->bytes.first : nullptr;
}

Result<void> HostStream::require_final_source(const backend::CopySegment& copy) {
  if (!shared_.options.strict) return {};
  auto source = resolve(shared_, copy.source, copy.source_pitch, copy.width, copy.height);
  if (!source) return source.error();
  const Lock lock(shared_.mutex);
  if (!queue_->will_write(lock, rows_of(*source))) return {};
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "earlier work of the stream writes the source at %p, which this source order may read before that; "
      "synchronize first, or use GPUMEM_SOURCE_ORDER_STREAM",
      copy.source.address);
}

Result<void> HostStream::enqueue(Operation operation, std::initializer_list<Allocation*> used) {
  const Lock lock(shared_.mutex);
  return queue_->capture != 0 ? queue_->require_open(lock)
                              : queue_->enqueue(lock, std::move(operation), used);
}

Result<void> HostStream::copy(const backend::CopySegment& segment) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  if (segment.height > 1) GPUMEM_TRY(shared_.options.require(EntryPoint::kCopy2d));
  auto destination =
      resolve(shared_, segment.destination, segment.destination_pitch, segment.width, segment.height);
  if (!destination) return destination.error();
  GPUMEM_TRY(require_writable(*destination));
  auto source = resolve(shared_, segment.source, segment.source_pitch, segment.width, segment.height);
  if (!source) return source.error();
  const std::shared_ptr<void> kept = segment.keep != nullptr ? *segment.keep : nullptr;
  return enqueue({.run = [to = *destination, from = *source, kept] { return host::copy(to, from); },
                  .touches = true,
                  .writes = rows_of(*destination),
                  .device_work = true},
                 {destination->bytes.allocation.get(), source->bytes.allocation.get()});
}

Result<void> HostStream::fill(const backend::FillSegment& segment) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  if (segment.height > 1) GPUMEM_TRY(shared_.options.require(EntryPoint::kFill2d));
  auto destination = resolve(shared_, segment.destination, segment.pitch, segment.width, segment.height);
  if (!destination) return destination.error();
  GPUMEM_TRY(require_writable(*destination));
  return enqueue({.run = [to = *destination, value = segment.value,
                          size = segment.value_size] { return host::fill(to, value, size); },
                  .touches = true,
                  .writes = rows_of(*destination),
                  .device_work = true},
                 {destination->bytes.allocation.get()});
}

Result<void> HostStream::wait_for(backend::Event& event, bool or_end) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  const Lock lock(shared_.mutex);
  const auto& awaited = static_cast<HostEvent&>(event);
  if (const uint64_t capture = awaited.capture(lock); capture != 0 && queue_->capture == 0) {
    if (!shared_.captures.contains(capture))
      return make_error(GPUMEM_ERROR_INVALID_STATE, "the capture of the event has ended");
    queue_->capture = capture;  // the stream joins it
    expose();
  }
  if (queue_->capture != 0) return queue_->require_open(lock);
  const HostEvent::Latest latest = awaited.latest(lock);
  if (latest.elsewhere) {
    if (latest.elsewhere->is_complete()) return queue_->require_open(lock);
    const auto wait = std::make_shared<SharedEvent::Wait>(*latest.elsewhere);
    return queue_->enqueue(
        lock, {[queue = queue_.get(), wait, or_end]() -> Result<void> {
          if (queue->hold_while([&] { return !wait->over_within(SharedEvent::kLookEvery); }))
            return or_end ? Result<void>() : wait->outcome();
          return make_error(GPUMEM_ERROR_BUSY,
                            "another process did not complete its record of an event in time; the work that "
                            "waited for it was dropped");
        }},
        {});
  }
  if (latest.here == nullptr) return queue_->device().require_not_lost();
  return queue_->wait_for(lock, latest.here->mark);
}

Result<void> HostStream::launch_host_function(gpumem_host_function function, void* user_data, bool internal) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  if (!internal) GPUMEM_TRY(shared_.options.require(EntryPoint::kLaunchHostFunction));
  return enqueue({.run = [function, user_data]() -> Result<void> {
                    function(user_data);
                    return {};
                  },
                  .function = !internal},
                 {});
}

Result<void> HostStream::capture_host_function(gpumem_host_function /*function*/, void* user_data,
                                               void (*end)(void* user_data)) {
  end(user_data);
  GPUMEM_TRY(shared_.options.require(EntryPoint::kLaunchHostFunction));
  const Lock lock(shared_.mutex);
  return queue_->require_open(lock);
}

Result<void> HostStream::launch_kernel(gpumem_host_kernel_function function, void* user_data) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  return enqueue(
      {.run = [this_queue = queue_.get(), &shared = shared_, function, user_data]() -> Result<void> {
         RunningKernel::run(shared, *this_queue, function, user_data);
         return {};
       },
       .device_work = true},
      {});
}

Result<void> HostStream::write_value(const backend::Span& word, uint64_t value, uint32_t value_size) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  GPUMEM_TRY(shared_.options.require(EntryPoint::kWriteValue));
  auto to = resolve(shared_, word, value_size, value_size, 1);
  if (!to) return to.error();
  GPUMEM_TRY(require_writable(*to));
  return enqueue({.run = [to = *to, value]() -> Result<void> {
                    GPUMEM_TRY(require_reachable(to, Use::kWrite));
                    if (to.width == sizeof(uint32_t)) {
                      word_at<uint32_t>(to).store(static_cast<uint32_t>(value), std::memory_order_release);
                    } else {
                      word_at<uint64_t>(to).store(value, std::memory_order_release);
                    }
                    return {};
                  },
                  .touches = true,
                  .writes = rows_of(*to),
                  .device_work = true},
                 {to->bytes.allocation.get()});
}

Result<void> HostStream::wait_value(const backend::Span& word, uint64_t value, uint32_t value_size,
                                    gpumem_wait_condition condition) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  GPUMEM_TRY(shared_.options.require(EntryPoint::kWaitValue));
  auto from = resolve(shared_, word, value_size, value_size, 1);
  if (!from) return from.error();
  return enqueue({.run = [queue = queue_.get(), from = *from, value, condition]() -> Result<void> {
                    Result<void> reached;
                    const auto over = [&] {
                      reached = require_reachable(from, Use::kRead);
                      if (!reached) return true;
                      if (from.width == sizeof(uint32_t)) {
                        const uint32_t now = word_at<uint32_t>(from).load(std::memory_order_acquire);
                        return holds(now, static_cast<uint32_t>(value), condition);
                      }
                      return holds(word_at<uint64_t>(from).load(std::memory_order_acquire), value, condition);
                    };
                    queue->hold_until(
                        std::ref(over));  // allocates nothing, because the worker cannot report out-of-memory
                    return reached;
                  },
                  .device_work = true},
                 {from->bytes.allocation.get()});
}

Result<bool> HostStream::query() { return synchronize(0); }

Result<bool> HostStream::synchronize(uint64_t timeout_ns) {
  return await(timeout_ns, Shared::Failures::kReport);
}

Result<bool> HostStream::observe(uint64_t timeout_ns) { return await(timeout_ns, Shared::Failures::kKeep); }

Result<bool> HostStream::await(uint64_t timeout_ns, Shared::Failures failures) {
  const CurrentDevice current(queue_->device().facts().ordinal);
  Mark mark;
  {
    const Lock lock(shared_.mutex);
    mark = queue_->mark(lock);
  }
  return shared_.await(queue_->device(), mark, timeout_ns, failures);
}

// A wait does not invalidate a simulated capture.
Result<void> HostStream::drain() {
  auto complete = synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) return complete.error();
  return {};
}

}  // namespace gpumem::host
