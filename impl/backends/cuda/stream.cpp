// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "backends/cuda/fence.h"
#include "base/cleanup.h"

namespace gpumem::cuda {
namespace {

// Polls until complete or out of time, because the driver has no wait with a limit.
template <class Query>
Result<bool> poll(uint64_t timeout_ns, Query query) {
  using std::chrono::nanoseconds;
  constexpr uint64_t kFirstPause = 50'000;
  constexpr uint64_t kLastPause = 1'000'000;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t pause = kFirstPause;; pause = std::min(2 * pause, kLastPause)) {
    auto complete = query();
    if (!complete || *complete) return complete;
    const auto passed = static_cast<uint64_t>(nanoseconds(std::chrono::steady_clock::now() - start).count());
    if (passed >= timeout_ns) return false;
    std::this_thread::sleep_for(nanoseconds(std::min(pause, timeout_ns - passed)));
  }
}

// Id of the calling thread, from 1; never reused.
uint64_t thread_number() {
  static constinit std::atomic<uint64_t> last{0};
  thread_local const uint64_t own = ++last;
  return own;
}

// NOT_READY is a result; everything else is a failure.
[[gnu::always_inline]] inline Result<bool> answer(Device& device, Outcome outcome, const char* what) {
  if (outcome.ok()) return true;
  if (outcome.code == CUDA_ERROR_NOT_READY) return false;
  return device.failure(outcome, what);
}

}  // namespace

// ---- streams ----

[[gnu::cold]] Result<void> Stream::create(int32_t priority) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  const Driver& cu = device_.cu();
  GPUMEM_TRY(device_.check(cu.StreamCreateWithPriority(&native_, CU_STREAM_NON_BLOCKING, priority),
                           Place::kDevice, "cannot create a stream on device %u", device_.facts().ordinal));
  auto known = device_.check(cu.StreamGetPriority(native_, &priority_), Place::kDevice,
                             "cannot query the priority of the stream");
  if (!known) {
    cu.StreamDestroy(native_);
    native_ = nullptr;
    return known;
  }
  find_identity();
  conceal();
  return {};
}

// The driver reuses handles at once, but never an id (measured). Before it had ids, only streams of our own
// have one: the library counts them, beyond all ids that a driver will ever give.
Outcome Stream::find_identity() {
  static constinit std::atomic<uint64_t> last_own{uint64_t{1} << 63};
  // Asking for the id of a stream that is captured would end the capture; asking for that of the legacy
  // stream would end the capture of any blocking stream (measured).
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const Outcome asked = device_.cu().StreamIsCapturing(native_, &status);
  std::atomic<uint64_t>& known = device_.legacy_stream_id();
  if (!asked.ok() || status != CU_STREAM_CAPTURE_STATUS_NONE) {
    if (is_default()) identity_ = known.load(std::memory_order_relaxed);
    return asked;
  }
  unsigned long long id = 0;
  if (device_.cu().StreamGetId(native_, &id).ok()) {
    identity_ = id;
    if (is_default()) known.store(id, std::memory_order_relaxed);
  } else if (owned_) {
    identity_ = ++last_own;
  }
  return asked;
}

[[gnu::cold]] Result<void> Stream::wrap(CUstream native) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  const Driver& cu = device_.cu();
  native_ = native;
  if (is_default()) {
    // It is of the current context, and its priority is 0. Asking the driver for these would end the capture
    // of any blocking stream (measured).
    const Outcome asked = find_identity();
    if (asked.code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return {};
    return device_.check(asked, Place::kDevice, "cannot query the default stream");
  }
  CUcontext context = nullptr;
  const Outcome outcome = cu.StreamGetCtx(native, &context);
  const bool unknown = outcome.code == CUDA_ERROR_INVALID_HANDLE ||
                       outcome.code == CUDA_ERROR_INVALID_CONTEXT || outcome.code == CUDA_ERROR_INVALID_VALUE;
  // Our events could not order work in a stream of another context, even on this device.
  if (unknown || (outcome.ok() && context != device_.context())) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the stream %p does not belong to the context in use on device %u; pass its context to "
                      "gpumem_instance_open(), or use a stream of the primary context",
                      static_cast<void*>(native), device_.facts().ordinal);
  }
  GPUMEM_TRY(device_.check(outcome, Place::kDevice, "cannot query the context of the stream"));
  GPUMEM_TRY(device_.check(cu.StreamGetPriority(native, &priority_), Place::kDevice,
                           "cannot query the priority of the stream"));
  find_identity();
  if (native == CU_STREAM_PER_THREAD) thread_ = thread_number();
  return {};
}

Result<bool> Stream::is_capturing() {
  if (!may_be_captured()) return false;
  // On another thread this handle means that thread's stream, which has other work.
  if (thread_ != 0 && is_of_other_thread()) {
    return make_error(
        GPUMEM_ERROR_INVALID_STATE,
        "this is the default stream of another thread, and only that thread can use it; wrap a stream that "
        "was created with cuStreamCreate()");
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  GPUMEM_TRY(device_.check_enqueued(call([&] { return device_.cu().StreamIsCapturing(native_, &status); }),
                                    "cannot query whether the stream is being captured"));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Result<backend::Capture> Stream::capture() {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  GPUMEM_TRY(
      device_.check_enqueued(call([&] { return device_.cu().StreamGetCaptureInfo(native_, &status, &id); }),
                             "cannot query the capture of the stream"));
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return backend::Capture{};
  // A thread's own default stream has the same handle on each thread.
  return backend::Capture{id, thread_ != 0 ? ~thread_ : address_of(native_)};
}

bool Stream::is_of_other_thread() const { return thread_ != thread_number(); }

Result<void> Stream::wait_event(backend::Event& event) {
  const auto awaited = static_cast<CUevent>(event.native());
  GPUMEM_TRY(device_.check_enqueued(
      call([&] { return device_.cu().StreamWaitEvent(native_, awaited, CU_EVENT_WAIT_DEFAULT); }),
      "cannot enqueue the wait for the event"));
  if (may_be_captured()) return {};
  // Other code may have recorded the event in a capture, which this stream is then part of.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const Outcome asked = call([&] { return device_.cu().StreamIsCapturing(native_, &status); });
  if (!asked.ok() || status != CU_STREAM_CAPTURE_STATUS_NONE) expose();
  return {};
}

Result<std::shared_ptr<backend::Fence>> Stream::fence() {
  return device_.fences().of_stream(identity_, fence_);
}

Result<void> Stream::launch_host_function(gpumem_host_function function, void* user_data, bool /*internal*/) {
  return device_.check(call([&] { return device_.cu().LaunchHostFunc(native_, function, user_data); }),
                       Place::kHost, "cannot enqueue the host function");
}

[[gnu::cold]] Result<void> Stream::capture_host_function(gpumem_host_function function, void* user_data,
                                                         void (*end)(void* user_data)) {
  const Driver& cu = device_.cu();
  const auto check = [&](const Outcome& outcome) {
    return device_.check(outcome, Place::kHost, "the host function cannot become part of the graph");
  };
  CUuserObject object = nullptr;
  const Outcome made = cu.UserObjectCreate(&object, user_data, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (!made.ok()) {
    end(user_data);
    return check(made);
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  Outcome kept =
      call([&] { return cu.StreamGetCaptureGraph(native_, &status, &id, &graph, nullptr, nullptr); });
  if (kept.ok()) kept = cu.GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (!kept.ok()) {
    cu.UserObjectRelease(object, 1);
    return check(kept);
  }
  // From here on the graph ends the function, also if it does not get it.
  return check(call([&] { return cu.LaunchHostFunc(native_, function, user_data); }));
}

Result<void> Stream::write_value(const backend::Span& word, uint64_t value, uint32_t value_size) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  const Driver& cu = device_.cu();
  const uint64_t address = device_address(word);
  const Outcome outcome = value_size == 8
                              ? cu.StreamWriteValue64(native_, address, value, CU_STREAM_WRITE_VALUE_DEFAULT)
                              : cu.StreamWriteValue32(native_, address, static_cast<uint32_t>(value),
                                                      CU_STREAM_WRITE_VALUE_DEFAULT);
  return device_.check(outcome, Place::kDevice, "cannot enqueue the value write");
}

Result<void> Stream::wait_value(const backend::Span& word, uint64_t value, uint32_t value_size,
                                gpumem_wait_condition condition) {
  static_assert(GPUMEM_WAIT_GEQ == static_cast<int>(CU_STREAM_WAIT_VALUE_GEQ));
  static_assert(GPUMEM_WAIT_EQ == static_cast<int>(CU_STREAM_WAIT_VALUE_EQ));
  static_assert(GPUMEM_WAIT_AND == static_cast<int>(CU_STREAM_WAIT_VALUE_AND));
  static_assert(GPUMEM_WAIT_NOR == static_cast<int>(CU_STREAM_WAIT_VALUE_NOR));
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  const Driver& cu = device_.cu();
  const uint64_t address = device_address(word);
  const auto flags = static_cast<unsigned>(condition);
  const Outcome outcome = value_size == 8
                              ? cu.StreamWaitValue64(native_, address, value, flags)
                              : cu.StreamWaitValue32(native_, address, static_cast<uint32_t>(value), flags);
  return device_.check(outcome, Place::kDevice, "cannot enqueue the value wait");
}

Result<bool> Stream::query_relaxed() {
  return answer(device_, call([&] { return device_.cu().StreamQuery(native_); }), "cannot query the stream");
}

// Flattened, as Event::query(): the calls would cost as much as the rest.
[[gnu::flatten]] Result<bool> Stream::query() {
  const Relaxed relaxed(device_.cu());
  return query_relaxed();
}

Result<bool> Stream::synchronize(uint64_t timeout_ns) {
  const Relaxed relaxed(device_.cu());
  if (timeout_ns != GPUMEM_TIMEOUT_INFINITE) return poll(timeout_ns, [&] { return query_relaxed(); });
  return answer(device_, call([&] { return device_.cu().StreamSynchronize(native_); }),
                "cannot synchronize the stream");
}

Result<void> Stream::drain() {
  auto capturing = is_capturing();
  if (!capturing) return capturing.error();
  if (*capturing) return {};  // waiting would invalidate the capture (STR-20)
  auto complete = synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) return complete.error();
  return {};
}

[[gnu::cold]] Result<void> Stream::release() {
  fence_.reset();
  if (!owned_ || native_ == nullptr) return {};
  const RelaxedScope scope(device_);  // tried in any case: a stream knows its context
  device_.remember_work(native_);
  const Outcome outcome = device_.cu().StreamDestroy(native_);
  owned_ = refused(outcome);
  return device_.check_release(outcome, "cannot destroy the stream");
}

// ---- events ----

[[gnu::cold]] Result<void> Event::create(gpumem_event_flags flags) {
  unsigned native_flags = CU_EVENT_DEFAULT;
  if ((flags & GPUMEM_EVENT_DISABLE_TIMING) != 0) native_flags |= CU_EVENT_DISABLE_TIMING;
  if ((flags & GPUMEM_EVENT_BLOCKING_SYNC) != 0) native_flags |= CU_EVENT_BLOCKING_SYNC;
  if ((flags & GPUMEM_EVENT_INTERPROCESS) != 0) native_flags |= CU_EVENT_INTERPROCESS;
  Scope scope(device_);
  GPUMEM_TRY(scope.entered());
  return device_.check(device_.cu().EventCreate(&native_, native_flags), Place::kDevice,
                       "cannot create an event on device %u", device_.facts().ordinal);
}

Result<void> Event::record(backend::Stream& stream) {
  auto& order = static_cast<Stream&>(stream);
  return device_.check_enqueued(
      order.call([&] { return device_.cu().EventRecord(native_, static_cast<CUstream>(order.native())); }),
      "cannot record the event");
}

Result<bool> Event::query_relaxed() {
  return answer(device_, device_.call_on(true, [&] { return device_.cu().EventQuery(native_); }),
                "cannot query the event");
}

[[gnu::flatten]] Result<bool> Event::query() {
  const Relaxed relaxed(device_.cu());
  return query_relaxed();
}

Result<bool> Event::synchronize(uint64_t timeout_ns) {
  const Relaxed relaxed(device_.cu());
  if (timeout_ns != GPUMEM_TIMEOUT_INFINITE) return poll(timeout_ns, [&] { return query_relaxed(); });
  return answer(device_, device_.call_on(true, [&] { return device_.cu().EventSynchronize(native_); }),
                "cannot synchronize the event");
}

[[gnu::cold]] Result<std::optional<int64_t>> Event::elapsed_since(backend::Event& start) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  float milliseconds = 0;
  const Outcome outcome =
      device_.cu().EventElapsedTime(&milliseconds, static_cast<CUevent>(start.native()), native_);
  // The driver returns this for events without timing or record; for wrapped events only it can know.
  if (outcome.code == CUDA_ERROR_INVALID_HANDLE) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "one of the events was never recorded or has no timing; create both with timing, and "
                      "record both")
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  auto complete = answer(device_, outcome, "cannot query the elapsed time");
  if (!complete) return complete.error();
  if (!*complete) return std::optional<int64_t>();
  const double nanoseconds = double{milliseconds} * 1e6;
  return std::optional(static_cast<int64_t>(nanoseconds < 0 ? nanoseconds - 0.5 : nanoseconds + 0.5));
}

[[gnu::cold]] Result<void> Event::release() {
  if (!owned_ || native_ == nullptr) return {};
  const Scope scope(device_);  // tried in any case: an event knows its context
  const Outcome outcome = device_.cu().EventDestroy(native_);
  owned_ = refused(outcome);
  return device_.check_release(outcome, "cannot destroy the event");
}

// ---- streams that are gone before their work ----

[[gnu::cold]] void Device::remember_work(CUstream stream) {
  if (cu_.StreamQuery(stream).code != CUDA_ERROR_NOT_READY) return;
  CUevent event = nullptr;
  if (!cu_.EventCreate(&event, CU_EVENT_DISABLE_TIMING).ok()) return;
  Cleanup undo([&] { cu_.EventDestroy(event); });
  if (!cu_.EventRecord(event, stream).ok()) return;
  const std::lock_guard lock(released_mutex_);
  std::erase_if(released_, [&](CUevent earlier) {
    return cu_.EventQuery(earlier).ok() && !refused(cu_.EventDestroy(earlier));
  });
  try {
    released_.push_back(event);
    undo.dismiss();
  } catch (const std::bad_alloc&) {
    // Then it is not waited for; the stream is destroyed anyway.
  }
}

[[gnu::cold]] Result<void> Device::await_released_streams() {
  RelaxedScope scope(*this);
  GPUMEM_TRY(scope.entered_for_release());
  const std::lock_guard lock(released_mutex_);
  Result<void> result;
  for (const CUevent event : released_) {
    if (!lost()) {
      auto waited = check(cu_.EventSynchronize(event), Place::kDevice,
                          "cannot wait for the work of a destroyed stream");
      if (!waited) result = waited;
    }
    (void)check_release(cu_.EventDestroy(event), "cannot destroy an event of the library");
  }
  released_.clear();
  return result;
}

// ---- creation ----

[[gnu::cold]] Result<std::shared_ptr<backend::Stream>> Device::create_stream(int32_t priority) {
  auto stream = std::make_shared<Stream>(*this, true);
  GPUMEM_TRY(stream->create(priority));
  return {stream};
}

[[gnu::cold]] Result<std::shared_ptr<backend::Stream>> Device::wrap_stream(void* native) {
  auto stream = std::make_shared<Stream>(*this, false);
  GPUMEM_TRY(stream->wrap(static_cast<CUstream>(native)));
  return {stream};
}

[[gnu::cold]] Result<std::shared_ptr<backend::Event>> Device::create_event(gpumem_event_flags flags) {
  auto event = std::make_shared<Event>(*this, nullptr, true);
  GPUMEM_TRY(event->create(flags));
  return {event};
}

[[gnu::cold]] Result<std::shared_ptr<backend::Event>> Device::wrap_event(void* native, gpumem_event_flags) {
  return {std::make_shared<Event>(*this, static_cast<CUevent>(native), false)};
}

}  // namespace gpumem::cuda
