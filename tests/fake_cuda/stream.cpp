// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams with a worker thread each, events, host functions, waits on values, and the state of stream
// capture.
#include <unistd.h>

#include <algorithm>
#include <type_traits>

#include "driver.h"

namespace fake {

thread_local bool t_in_host_function = false;

namespace {

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, number] : from)
    into[stream] = std::max(into[stream], number);
}

// The stream's tail and all that is ordered before it.
Clock tail_of(const Stream& stream) {
  Clock clock = stream.clock;
  clock[stream.id] = stream.enqueued;
  return clock;
}

bool is_complete(const Point& point) { return point.stream->completed >= point.number; }

bool can_run(const Stream& stream) {
  return !stream.queue.empty() &&
         std::all_of(stream.queue.front().after.begin(), stream.queue.front().after.end(), is_complete);
}

void work(const std::shared_ptr<Stream>& stream) {
  Driver& d = driver();
  std::unique_lock lock(d.mutex);
  for (;;) {
    d.progress.wait(lock, [&] {
      return stream->abandoned || (stream->destroyed && stream->queue.empty()) || can_run(*stream);
    });
    if (stream->abandoned || stream->queue.empty()) break;
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    bool lost = stream->context->device->sticky != CUDA_SUCCESS;
    unsigned delay = d.config.delay_us;
    stream->running = true;
    lock.unlock();
    if (!lost) {
      if (delay != 0) usleep(delay);
      operation.run();
    }
    operation.run = nullptr;
    lock.lock();
    stream->running = false;
    stream->completed = operation.number;
    d.progress.notify_all();
  }
  stream->queue.clear();
  stream->completed = stream->enqueued;
  stream->finished = true;
  d.progress.notify_all();
}

std::shared_ptr<Stream> make_stream(const std::shared_ptr<Context>& context, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->id = next_id();
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  return stream;
}

std::shared_ptr<Stream> add_stream(const std::shared_ptr<Context>& context, unsigned flags, int priority) {
  auto stream = make_stream(context, flags, priority);
  stream->handle = std::exchange(driver().last_destroyed, nullptr);
  if (stream->handle == nullptr || !driver().config.reuse_streams) stream->handle = next_handle<CUstream>();
  driver().streams.add(stream->handle, stream);
  return stream;
}

void retire(const std::shared_ptr<Stream>& stream) {
  stream->destroyed = true;
  if (stream->worker.joinable()) driver().retired.push_back(stream);
  driver().progress.notify_all();
}

CUstreamCaptureStatus capture_status(const Stream& stream) {
  return stream.capture ? stream.capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
}

bool is_capturing_implicitly(const Context& context) {
  for (const auto& [handle, stream] : driver().streams.all()) {
    bool blocking = (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
    if (stream->context.get() == &context && blocking &&
        capture_status(*stream) != CU_STREAM_CAPTURE_STATUS_NONE)
      return true;
  }
  return false;
}

// True when the operation only becomes a node of a graph. Refuses what capture forbids.
bool is_captured(Stream& stream) {
  if (capture_status(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE) return true;
  require(capture_status(stream) == CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  if (stream.handle == nullptr && is_capturing_implicitly(*stream.context)) {
    for (const auto& [handle, other] : driver().streams.all()) {
      if (other->context == stream.context && capture_status(*other) == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        other->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      }
    }
    throw Failure{CUDA_ERROR_STREAM_CAPTURE_IMPLICIT};
  }
  return false;
}

// These questions about the legacy stream spoil the capture of a blocking one (measured, driver 580).
std::shared_ptr<Stream> find_stream_to_ask(CUstream handle) {
  auto stream = find_stream(handle);
  if (stream->handle == nullptr) (void)is_captured(*stream);
  return stream;
}

void refuse_if_captured(Stream& stream) {
  if (!is_captured(stream)) return;
  stream.capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  throw Failure{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
}

// A stream that waits for an event of a capture becomes part of it.
void join(const std::shared_ptr<Stream>& stream, const Event& event) {
  const std::shared_ptr<Capture>& capture = event.captured_in;
  require(capture->status != CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_NOT_SUPPORTED);
  require(capture->status == CU_STREAM_CAPTURE_STATUS_ACTIVE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  if (!is_captured(*stream)) {
    require(stream->handle != nullptr, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    capture->streams.push_back(stream);
    stream->capture = capture;
    stream->captured.clear();
    stream->captured[stream->id] = 1;  // it must come back, even if nothing follows
  }
  if (stream->capture != capture) {
    capture->status = stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    throw Failure{CUDA_ERROR_STREAM_CAPTURE_MERGE};
  }
  merge(stream->captured, event.captured);
}

// Whether all that joined the capture has come back to the stream that began it.
bool is_joined(const Capture& capture, const Stream& origin) {
  for (const auto& one : capture.streams) {
    const auto stream = one.lock();
    if (!stream) continue;
    const auto own = stream->captured.find(stream->id);
    const auto seen = origin.captured.find(stream->id);
    if (own == stream->captured.end()) continue;
    if (seen == origin.captured.end() || seen->second < own->second) return false;
  }
  return true;
}

void observe(const Clock& clock) { merge(driver().observed, clock); }

// The legacy stream waits for the blocking streams of its context, and they for it.
void order_with_legacy(Stream& stream, std::vector<Point>& after) {
  auto follow = [&](const std::shared_ptr<Stream>& other) {
    merge(stream.clock, tail_of(*other));
    if (other->completed < other->enqueued) after.push_back({other, other->enqueued});
  };
  const Context& context = *stream.context;
  if (stream.handle != nullptr) {
    bool blocking = (stream.flags & CU_STREAM_NON_BLOCKING) == 0;
    if (blocking && context.legacy) follow(context.legacy);
    return;
  }
  for (const auto& [handle, other] : driver().streams.all()) {
    if (other->context.get() == &context && (other->flags & CU_STREAM_NON_BLOCKING) == 0) follow(other);
  }
}

std::shared_ptr<Stream> find_created_stream(CUstream handle) {
  auto stream = driver().streams.find(handle);
  if (!stream) violation("stale-handle", "stream");
  require(stream != nullptr, CUDA_ERROR_INVALID_HANDLE);
  return stream;
}

// Asking after an event of a capture, or after any event where a capture forbids it, ends that capture.
void refuse_if_captured(Event& event) {
  if (event.captured_in) {
    Capture& capture = *event.captured_in;
    if (capture.status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
      capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    throw Failure{CUDA_ERROR_CAPTURED_EVENT};
  }
  CUresult forbidden = refuse_in_capture();
  require(forbidden == CUDA_SUCCESS, forbidden);
}

// The ticket of the most recent record if another process made it, or another handle of this one; else 0.
uint64_t foreign_ticket(const Event& event) {
  if (!event.shared) return 0;
  const uint64_t latest = event.shared->latest();
  const bool own = event.record != nullptr && event.record->ticket == latest;
  return own ? 0 : latest;
}

// A record of another process is complete: what this one had given it to wait for is so too. What that was is
// not known, so everything counts that is complete and was shared.
void observe_through_others() {
  for (const auto& [handle, event] : driver().events.all()) {
    // Others know it from the page, a moment before the stream does.
    const bool complete = event->shared && event->record && event->shared->is_complete(event->record->ticket);
    if (complete) observe(event->record->clock);
  }
}

// Completes a record of a shared event, also when the operation is dropped and never runs.
struct Recording {
  explicit Recording(std::shared_ptr<SharedEvent> of) : event(std::move(of)) {}
  ~Recording() { complete(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void complete() {
    if (ticket != 0) event->complete(std::exchange(ticket, 0));
  }
  std::shared_ptr<SharedEvent> event;
  uint64_t ticket = 0;
};

CUresult create_stream(CUstream* handle, unsigned flags, int priority) {
  require(handle != nullptr);
  require((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0);
  join_retired_workers();
  *handle = add_stream(current_context(), flags, std::clamp(priority, kGreatestPriority, 0))->handle;
  return CUDA_SUCCESS;
}

// The word that a value operation acts on.
Located find_word(CUdeviceptr address, size_t size) {
  require(address % size == 0);
  Located word = locate(address);
  require(word.memory != nullptr && word.memory->kind != Kind::kManaged && !in_pool(*word.memory));
  require(word.offset + size <= word.memory->size);
  return word;
}

void require_value_operations(const Device& device, size_t size, bool first_version) {
  if (first_version) {
    int needed = size == 8 ? CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1
                           : CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1;
    require(attribute(device, needed) != 0, CUDA_ERROR_NOT_SUPPORTED);
  } else if (size == 8) {
    require(attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0,
            CUDA_ERROR_NOT_SUPPORTED);
  }
}

template <class Word>
CUresult write_value(CUstream handle, CUdeviceptr address, Word value, unsigned flags, bool first_version) {
  auto stream = find_stream(handle);
  require_value_operations(*stream->context->device, sizeof(Word), first_version);
  require(flags == CU_STREAM_WRITE_VALUE_DEFAULT);
  Located word = find_word(address, sizeof(Word));
  auto* target = reinterpret_cast<Word*>(word.memory->bytes + word.offset);
  // The CPU can read the word, and see by it that all before it is complete.
  Clock seen;
  if (!is_device_memory(*word.memory)) {
    seen = tail_of(*stream);
    ++seen[stream->id];
  }
  enqueue(stream,
          [target, value, seen, keep = word.memory->backing] {
            std::lock_guard lock(driver().mutex);
            observe(seen);  // before the CPU can act on the word
            __atomic_store_n(target, value, __ATOMIC_SEQ_CST);
          },
          {word.memory});
  return CUDA_SUCCESS;
}

template <class Word>
bool holds(Word now, Word value, unsigned condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::make_signed_t<Word>>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:
      return static_cast<Word>(~(now | value)) != 0;
  }
}

template <class Word>
CUresult wait_value(CUstream handle, CUdeviceptr address, Word value, unsigned flags, bool first_version) {
  auto stream = find_stream(handle);
  const Device& device = *stream->context->device;
  require_value_operations(device, sizeof(Word), first_version);
  if (flags & CU_STREAM_WAIT_VALUE_FLUSH) {
    require(attribute(device, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES) != 0, CUDA_ERROR_NOT_SUPPORTED);
    flags &= ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
  }
  require(flags <= CU_STREAM_WAIT_VALUE_NOR);
  if (flags == CU_STREAM_WAIT_VALUE_NOR) {
    int needed = first_version ? CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1
                               : CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR;
    require(attribute(device, needed) != 0, CUDA_ERROR_NOT_SUPPORTED);
  }
  Located word = find_word(address, sizeof(Word));
  auto* target = reinterpret_cast<Word*>(word.memory->bytes + word.offset);
  auto poll = [target, value, flags, waiting = stream.get(), keep = word.memory->backing] {
    while (!holds(__atomic_load_n(target, __ATOMIC_SEQ_CST), value, flags)) {
      {
        std::lock_guard lock(driver().mutex);
        if (waiting->abandoned || waiting->context->device->sticky != CUDA_SUCCESS) return;
      }
      usleep(50);
    }
  };
  enqueue(stream, poll, {word.memory});
  return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<Event> find_event(CUevent handle) {
  auto event = driver().events.find(handle);
  if (!event) violation("stale-handle", "event");
  require(event != nullptr, CUDA_ERROR_INVALID_HANDLE);
  return event;
}

std::shared_ptr<Stream> find_stream(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    auto current = current_context();
    if (!current->legacy) current->legacy = make_stream(current, CU_STREAM_DEFAULT, 0);
    return current->legacy;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    auto current = current_context();
    std::shared_ptr<Stream>& own = current->per_thread[std::this_thread::get_id()];
    if (!own) own = add_stream(current, CU_STREAM_DEFAULT, 0);
    own->per_thread = true;
    return own;
  }
  auto stream = find_created_stream(handle);
  require_healthy(*stream->context->device);
  return stream;
}

void enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> run,
             const std::vector<std::shared_ptr<Memory>>& uses, std::vector<Point> after) {
  if (is_captured(*stream)) {
    stream->capture->graph->nodes.push_back(std::move(run));
    ++stream->captured[stream->id];
    return;
  }
  order_with_legacy(*stream, after);
  if (!stream->worker.joinable()) {
    try {
      stream->worker = std::thread(work, stream);
    } catch (const std::system_error&) {
      throw Failure{CUDA_ERROR_OUT_OF_MEMORY};
    }
  }
  stream->queue.push_back({stream->enqueued + 1, std::move(after), std::move(run)});
  ++stream->enqueued;
  for (const auto& memory : uses)
    memory->uses[stream->id] = stream->enqueued;
  driver().progress.notify_all();
}

void synchronize(const std::shared_ptr<Stream>& stream) {
  Clock clock = tail_of(*stream);
  uint64_t number = stream->enqueued;
  wait_until([&] { return stream->completed >= number; });
  require_healthy(*stream->context->device);
  observe(clock);
}

namespace {

std::vector<std::shared_ptr<Stream>> streams_of(const Context& context) {
  std::vector<std::shared_ptr<Stream>> streams;
  if (context.legacy) streams.push_back(context.legacy);
  for (const auto& [handle, stream] : driver().streams.all()) {
    if (stream->context.get() == &context) streams.push_back(stream);
  }
  for (const auto& stream : driver().retired) {
    if (stream->context.get() == &context) streams.push_back(stream);
  }
  return streams;
}

}  // namespace

void synchronize(Context& context) {
  std::vector<std::shared_ptr<Stream>> streams = streams_of(context);
  for (const auto& stream : streams)
    refuse_if_captured(*stream);
  Clock ended = context.ended;
  for (const auto& stream : streams)
    synchronize(stream);
  observe(ended);
}

void drain(const Context& context) {
  std::vector<Point> tails;
  for (const auto& stream : streams_of(context))
    tails.push_back({stream, stream->enqueued});
  // The end of a host function on a lost device is nobody's concern any more, and nothing runs behind it.
  auto is_over = [&](const Point& tail) {
    bool given_up = context.device->sticky != CUDA_SUCCESS && tail.stream->in_host_function;
    return given_up || is_complete(tail);
  };
  wait_until([&] { return std::all_of(tails.begin(), tails.end(), is_over); });
}

bool settle() {
  Driver& d = driver();
  std::unique_lock lock(d.mutex);
  std::vector<Point> tails;
  for (const auto& [handle, context] : d.contexts.all()) {
    for (const auto& stream : streams_of(*context))
      tails.push_back({stream, stream->enqueued});
  }
  return d.progress.wait_for(lock, std::chrono::seconds(20),
                             [&] { return std::all_of(tails.begin(), tails.end(), is_complete); });
}

CUresult refuse_in_capture() {
  CUresult answer = CUDA_SUCCESS;
  if (capture_mode_of_thread() == CU_STREAM_CAPTURE_MODE_RELAXED) return answer;
  bool heeds_others = capture_mode_of_thread() == CU_STREAM_CAPTURE_MODE_GLOBAL;
  for (const auto& [handle, stream] : driver().streams.all()) {
    if (!stream->capture) continue;
    Capture& capture = *stream->capture;
    bool own = capture.thread == std::this_thread::get_id();
    bool forbids = own ? capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED
                       : heeds_others && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (capture.status != CU_STREAM_CAPTURE_STATUS_ACTIVE || !forbids) continue;
    capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return answer;
}

void abandon_streams(const Context* context) {
  Driver& d = driver();
  auto abandon = [](const std::shared_ptr<Stream>& stream) {
    stream->abandoned = true;
    retire(stream);
  };
  std::vector<std::shared_ptr<Stream>> streams;
  for (const auto& [handle, stream] : d.streams.all()) {
    if (context == nullptr || stream->context.get() == context) streams.push_back(stream);
  }
  for (const auto& stream : d.retired) {
    if (context == nullptr || stream->context.get() == context) stream->abandoned = true;
  }
  for (const auto& stream : streams) {
    d.streams.remove(stream->handle);
    abandon(stream);
  }
  for (const auto& [handle, one] : d.contexts.all()) {
    if (context != nullptr && one.get() != context) continue;
    one->per_thread.clear();
    if (one->legacy) abandon(std::exchange(one->legacy, nullptr));
  }
}

void join_retired_workers() {
  auto settled = [](const std::shared_ptr<Stream>& stream) {
    return stream->finished || stream->running || (!stream->abandoned && !stream->queue.empty());
  };
  std::vector<std::shared_ptr<Stream>>& retired = driver().retired;
  wait_until([&] { return std::all_of(retired.begin(), retired.end(), settled); });
  std::erase_if(retired, [](const std::shared_ptr<Stream>& stream) {
    if (stream->finished) stream->worker.join();
    return stream->finished;
  });
}

void settle_retired_workers(std::chrono::milliseconds limit) {
  wait_until_or(
      [] {
        return std::none_of(driver().retired.begin(), driver().retired.end(),
                            [](const auto& stream) { return stream->running; });
      },
      limit);
  join_retired_workers();
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return create_stream(stream, flags, 0); }

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  require(handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD,
          CUDA_ERROR_INVALID_HANDLE);
  auto stream = find_created_stream(handle);
  merge(stream->context->ended, tail_of(*stream));
  driver().streams.remove(handle);
  driver().last_destroyed = handle;
  retire(stream);
  join_retired_workers();
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) { return fake::cuStreamDestroy_v2(handle); }

CUresult cuStreamQuery(CUstream handle) {
  auto stream = find_stream(handle);
  refuse_if_captured(*stream);
  std::vector<Point> before;
  order_with_legacy(*stream, before);
  bool waits = stream->handle == nullptr && !before.empty();
  if (waits || stream->completed < stream->enqueued) return CUDA_ERROR_NOT_READY;
  observe(tail_of(*stream));
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  auto stream = find_stream(handle);
  refuse_if_captured(*stream);
  if (stream->handle != nullptr) {
    synchronize(stream);
    return CUDA_SUCCESS;
  }
  enqueue(stream, [] {});  // behind everything that the legacy stream is ordered behind
  synchronize(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  auto stream = find_stream(handle);
  auto event = find_event(event_handle);
  require(flags == CU_EVENT_WAIT_DEFAULT);
  if (event->captured_in) {
    join(stream, *event);
    return CUDA_SUCCESS;
  }
  if (const uint64_t ticket = foreign_ticket(*event)) {
    refuse_if_captured(*stream);
    enqueue(stream, [shared = event->shared, ticket, waiting = stream.get()] {
      while (!shared->await(ticket)) {
        std::lock_guard lock(driver().mutex);
        if (waiting->abandoned || waiting->context->device->sticky != CUDA_SUCCESS) return;
      }
      std::lock_guard lock(driver().mutex);
      observe_through_others();
    });
    return CUDA_SUCCESS;
  }
  if (!event->record) return CUDA_SUCCESS;
  // Measured: a graph cannot depend on work outside of it.
  if (is_captured(*stream)) {
    stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  enqueue(stream, [] {}, {}, {event->record->point});
  merge(stream->clock, event->record->clock);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  require(context != nullptr);
  *context = find_stream_to_ask(handle)->context->handle;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return fake::cuStreamGetCtx(handle, context);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  require(flags != nullptr);
  *flags = find_stream(handle)->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  require(priority != nullptr);
  *priority = find_stream_to_ask(handle)->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  require(id != nullptr);
  *id = find_stream_to_ask(handle)->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  require(status != nullptr);
  auto stream = find_stream(handle);
  bool implicit = stream->handle == nullptr && is_capturing_implicitly(*stream->context);
  require(!implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  *status = capture_status(*stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id) {
  require(id != nullptr);
  CUresult answer = fake::cuStreamIsCapturing(handle, status);
  if (answer == CUDA_SUCCESS && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
    *id = find_stream(handle)->capture->id;
  return answer;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
  require(nodes == nullptr && count == nullptr, CUDA_ERROR_NOT_SUPPORTED);
  cuuint64_t ignored = 0;
  CUresult answer = fake::cuStreamGetCaptureInfo(handle, status, id != nullptr ? id : &ignored);
  if (graph == nullptr || answer != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return answer;
  Capture& capture = *find_stream(handle)->capture;
  if (capture.handle == nullptr) {
    capture.handle = next_handle<CUgraph>();
    driver().graphs.add(capture.handle, capture.graph);
  }
  *graph = capture.handle;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  auto stream = find_stream(handle);
  require(mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
  require(stream->handle != nullptr, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  require(capture_status(*stream) == CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_ILLEGAL_STATE);
  stream->capture = std::make_shared<Capture>();
  stream->capture->id = next_id();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->streams.push_back(stream);
  stream->captured.clear();
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  require(graph != nullptr);
  auto stream = find_stream(handle);
  require(capture_status(*stream) != CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_ILLEGAL_STATE);
  const std::shared_ptr<Capture> held = stream->capture;
  Capture& capture = *held;
  require(capture.streams.front().lock() == stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  bool own = capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture.thread == std::this_thread::get_id();
  require(own, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  bool valid = capture.status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  bool joined = is_joined(capture, *stream);
  capture.status = CU_STREAM_CAPTURE_STATUS_NONE;
  for (const auto& one : capture.streams) {
    if (const auto member = one.lock()) member->capture = nullptr;
  }
  *graph = nullptr;
  if (capture.handle != nullptr) driver().graphs.remove(capture.handle);
  require(valid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  require(joined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  *graph = capture.handle != nullptr ? capture.handle : next_handle<CUgraph>();
  driver().graphs.add(*graph, capture.graph);
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  require(mode != nullptr && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
  std::swap(*mode, capture_mode_of_thread());
  return CUDA_SUCCESS;
}

// Nodes can be counted, not named: nothing here looks into a graph.
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  require(count != nullptr);
  auto found = driver().graphs.find(graph);
  require(found != nullptr);
  require(nodes == nullptr, CUDA_ERROR_NOT_SUPPORTED);
  *count = found->nodes.size();
  return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject* handle, void* object, CUhostFn destroy, unsigned count,
                            unsigned flags) {
  require(handle != nullptr && destroy != nullptr);
  require(count == 1 && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUDA_ERROR_NOT_SUPPORTED);
  *handle = next_handle<CUuserObject>();
  driver().user_objects.add(*handle, std::make_shared<UserObject>(destroy, object));
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  require(driver().user_objects.find(object) != nullptr && count == 1);
  driver().user_objects.remove(object);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  auto retained = driver().user_objects.find(object);
  auto found = driver().graphs.find(graph);
  require(found != nullptr && retained != nullptr && count == 1);
  require(flags == CU_GRAPH_USER_OBJECT_MOVE, CUDA_ERROR_NOT_SUPPORTED);
  found->retained.push_back(std::move(retained));
  driver().user_objects.remove(object);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  require(driver().graphs.find(graph) != nullptr);
  driver().graphs.remove(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  auto found = driver().graphs.find(graph);
  require(executable != nullptr && found != nullptr && flags == 0);
  *executable = next_handle<CUgraphExec>();
  driver().executables.add(*executable, std::make_shared<Graph>(*found));
  return CUDA_SUCCESS;
}

// The memory that a graph uses is not known to be in use while it runs.
CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  auto found = driver().executables.find(executable);
  require(found != nullptr);
  enqueue(find_stream(handle), [found] {
    for (const auto& node : found->nodes)
      node();
  });
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  require(driver().executables.find(executable) != nullptr);
  driver().executables.remove(executable);
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  require(function != nullptr);
  auto stream = find_stream(handle);
  // Its start proves to the host that all earlier work has ended; what that is becomes known once it is
  // enqueued.
  auto before = std::make_shared<Clock>();
  enqueue(stream, [function, argument, before, own = stream.get()] {
    {
      std::lock_guard lock(driver().mutex);
      observe(*before);
      own->in_host_function = true;
    }
    t_in_host_function = true;
    function(argument);
    t_in_host_function = false;
    std::lock_guard lock(driver().mutex);
    own->in_host_function = false;
  });
  *before = tail_of(*stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value(stream, address, value, flags, true);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value(stream, address, value, flags, false);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value(stream, address, value, flags, true);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value(stream, address, value, flags, false);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait_value(stream, address, value, flags, true);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait_value(stream, address, value, flags, false);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return wait_value(stream, address, value, flags, true);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return wait_value(stream, address, value, flags, false);
}

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  require(handle != nullptr);
  const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  require((flags & ~known) == 0);
  require((flags & CU_EVENT_INTERPROCESS) == 0 || (flags & CU_EVENT_DISABLE_TIMING) != 0);
  auto event = std::make_shared<Event>();
  event->context = current_context();
  event->flags = flags;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) event->shared = std::make_shared<SharedEvent>(next_id());
  *handle = next_handle<CUevent>();
  driver().events.add(*handle, event);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  find_event(handle);
  driver().events.remove(handle);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  auto event = find_event(handle);
  auto stream = find_stream(stream_handle);
  require(event->context == stream->context, CUDA_ERROR_INVALID_HANDLE);
  auto record = std::make_shared<Record>();
  // Measured: that leaves the capture as it is.
  if (event->shared && is_captured(*stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  event->captured_in = is_captured(*stream) ? stream->capture : nullptr;
  event->captured = stream->captured;
  if (event->captured_in) return CUDA_SUCCESS;
  std::shared_ptr<Recording> recording;
  if (event->shared) {
    event->shared->enlist();
    recording = std::make_shared<Recording>(event->shared);
  }
  enqueue(stream, [record, recording] {
    record->time = std::chrono::steady_clock::now();
    if (recording) recording->complete();
  });
  // The operation cannot have begun: its worker needs the lock to take it.
  if (recording) record->ticket = recording->ticket = event->shared->add_record();
  record->point = {stream, stream->enqueued};
  record->clock = tail_of(*stream);
  event->record = record;
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
  auto event = find_event(handle);
  require_healthy(*event->context->device);
  refuse_if_captured(*event);
  if (const uint64_t ticket = foreign_ticket(*event)) {
    if (!event->shared->is_complete(ticket)) return CUDA_ERROR_NOT_READY;
    observe_through_others();
    return CUDA_SUCCESS;
  }
  if (!event->record) return CUDA_SUCCESS;
  if (!is_complete(event->record->point)) return CUDA_ERROR_NOT_READY;
  observe(event->record->clock);
  return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent handle) {
  auto event = find_event(handle);
  require_healthy(*event->context->device);
  refuse_if_captured(*event);
  if (const uint64_t ticket = foreign_ticket(*event)) {
    bool complete = event->shared->is_complete(ticket);
    while (!complete && event->context->device->sticky == CUDA_SUCCESS)
      without_lock([&] { complete = event->shared->await(ticket); });
    require_healthy(*event->context->device);
    observe_through_others();
    return CUDA_SUCCESS;
  }
  auto record = event->record;
  if (!record) return CUDA_SUCCESS;
  wait_until([&] { return is_complete(record->point); });
  require_healthy(*event->context->device);
  observe(record->clock);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  auto first = find_event(start);
  auto last = find_event(end);
  for (const auto& event : {first, last}) {
    bool timed = event->record != nullptr && (event->flags & CU_EVENT_DISABLE_TIMING) == 0;
    require(timed && event->context->device == first->context->device, CUDA_ERROR_INVALID_HANDLE);
  }
  if (!is_complete(first->record->point) || !is_complete(last->record->point)) return CUDA_ERROR_NOT_READY;
  require(milliseconds != nullptr, CUDA_ERROR_INVALID_HANDLE);
  *milliseconds = std::chrono::duration<float, std::milli>(last->record->time - first->record->time).count();
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return fake::cuEventElapsedTime(milliseconds, start, end);
}

}  // namespace fake
