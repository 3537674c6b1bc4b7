// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/queue.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <utility>

#include "backends/host/device.h"
#include "base/arithmetic.h"
#include "platform/thread.h"

namespace gpumem::host {
namespace {

// The handles of all streams of the process. The lowest free one is taken, so that values come back at once,
// as those of a driver do: nobody may know a stream by its handle (COM-29). No lock, for the sake of a forked
// child.
constexpr uint64_t kHandleStep = 0x100;
constinit std::array<std::atomic<uint64_t>, 256> taken_handles{};

void* take_handle() {
  for (size_t word = 0; word < taken_handles.size(); ++word) {
    std::atomic<uint64_t>& taken = taken_handles.at(word);
    for (uint64_t seen = taken.load(); seen != UINT64_MAX;) {
      const auto bit = static_cast<uint64_t>(std::countr_one(seen));
      if (taken.compare_exchange_weak(seen, seen | uint64_t{1} << bit)) {
        return pointer_to((word * 64 + bit + 1) * kHandleStep);
      }
    }
  }
  // Those beyond are used once.
  static constinit std::atomic<uint64_t> more{taken_handles.size() * 64};
  return pointer_to((++more) * kHandleStep);
}

void give_back_handle(const void* handle) {
  const uint64_t place = address_of(handle) / kHandleStep - 1;
  if (place < taken_handles.size() * 64) taken_handles.at(place / 64).fetch_and(~(uint64_t{1} << place % 64));
}

}  // namespace

bool meet(const Rows& a, const Rows& b) {
  uint64_t row = 0;
  uint64_t other = 0;
  while (row < a.height && other < b.height) {
    const std::byte* const first = a.first + row * a.pitch;
    const std::byte* const others_first = b.first + other * b.pitch;
    if (first < others_first + b.width && others_first < first + a.width) return true;
    ++(first < others_first ? row : other);
  }
  return false;
}

Queue::Queue(Shared& shared, HostDevice& device, bool made_natively)
    : shared_(shared),
      device_(device),
      timeline_(std::make_shared<Timeline>(device.lost_flag())),
      fence_(std::make_shared<HostFence>(shared, device.lost_flag())),
      made_natively_(made_natively),
      handle_(take_handle()) {}

Queue::~Queue() {
  if (!retired_) give_back_handle(handle_);
}

Result<void> Queue::require_open(const Lock& /*held*/) const {
  GPUMEM_TRY(device_.require_not_lost());
  if (retired_)
    return make_error(GPUMEM_ERROR_INVALID_STATE, "the code that created the stream has destroyed it");
  return {};
}

Result<void> Queue::enqueue(const Lock& held, Operation operation, std::span<Allocation* const> used) {
  GPUMEM_TRY(require_open(held));
  GPUMEM_TRY(shared_.steps.take("enqueue"));
  // Allocate everything before the first change.
  std::list<Operation> node;
  operation.room.emplace_back();
  if (operation.function) operation.before = before_;
  const bool device_work = operation.device_work;
  node.push_back(std::move(operation));
  const bool tracked = shared_.options.strict;
  for (Allocation* const allocation : used) {
    if (tracked && allocation != nullptr) allocation->uses.prepare();
  }
  const uint64_t number = ++timeline_->enqueued;
  for (Allocation* const allocation : used) {
    if (tracked && allocation != nullptr) allocation->uses.advance(timeline_, number);
  }
  operations_.splice(operations_.end(), node);
  wake_.notify_one();
  if (device_work) {
    timeline_->device_work = number;
    shared_.managed.refresh(held);
  }
  return {};
}

Result<void> Queue::enqueue(Operation operation, std::initializer_list<Allocation*> used) {
  const Lock lock(shared_.mutex);
  return enqueue(lock, std::move(operation), used);
}

Mark Queue::mark(const Lock& /*held*/) const { return {timeline_, timeline_->enqueued, before_}; }

Result<void> Queue::wait_for(const Lock& held, const Mark& mark) {
  const auto before = before_ != nullptr ? std::make_shared<Clock>(*before_) : std::make_shared<Clock>();
  if (mark.before != nullptr) before->merge(*mark.before);
  before->prepare();
  before->advance(mark.timeline, mark.number);
  if (mark.timeline->completed >= mark.number) {
    GPUMEM_TRY(require_open(held));
    before_ = before;
    return {};
  }
  GPUMEM_TRY(enqueue(held, {[this, timeline = mark.timeline, number = mark.number]() -> Result<void> {
                       Lock lock(shared_.mutex);
                       shared_.progress.wait(lock,
                                             [&] { return timeline->completed >= number || device_.lost(); });
                       return {};
                     }},
                     {}));
  before_ = before;
  return {};
}

void Queue::retire(const Lock& /*held*/) {
  if (!std::exchange(retired_, true)) give_back_handle(handle_);
  capture = 0;
  wake_.notify_one();
}

bool Queue::retired(const Lock& /*held*/) const { return retired_; }

bool Queue::will_write(const Lock& /*held*/, const Rows& bytes) const {
  return meet(being_written_, bytes) || std::ranges::any_of(operations_, [&](const Operation& operation) {
           return meet(operation.writes, bytes);
         });
}

bool Queue::idle(const Lock& /*held*/) const { return timeline_->completed == timeline_->enqueued; }

void Queue::hold_until(const std::function<bool()>& done) {
  constexpr std::chrono::microseconds kLongestPause{500};
  std::chrono::microseconds pause{10};
  Lock lock(shared_.mutex);
  for (;;) {
    // `done` must not run once the device is lost: what it reads may be gone.
    abandoned_ = device_.lost();
    if (abandoned_ || done()) return;
    abandoned_ = shared_.closing;
    if (abandoned_) return;
    shared_.progress.wait_for(lock, pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

bool Queue::hold_while(const std::function<bool()>& pending) {
  bool closing = false;
  for (;;) {
    {
      const Lock lock(shared_.mutex);
      abandoned_ = device_.lost() || closing;
      if (abandoned_) return false;
      closing = shared_.closing || std::chrono::steady_clock::now() >= shared_.others_until;
    }
    if (!pending()) return true;
  }
}

void Queue::run() {
  pthread_setname_np(pthread_self(), "gpumem-stream");
  Lock lock(shared_.mutex);
  for (;;) {
    wake_.wait(lock, [this] { return !operations_.empty() || retired_ || shared_.closing; });
    if (operations_.empty()) return;
    std::list<Operation> current;
    current.splice(current.end(), operations_, operations_.begin());
    shared_.progress.wait(lock, [&] { return !device_.is_being_lost(lock); });
    const bool wanted = !device_.lost() && !abandoned_;
    timeline_->touching = wanted && current.front().touches;
    being_written_ = current.front().writes;
    if (wanted && current.front().function) begin_function(lock, current.front());
    lock.unlock();
    Result<void> result;
    if (wanted) result = current.front().run();
    std::list<Failure> failure = std::move(current.front().room);
    std::shared_ptr<SharedEvent::Record> shown = std::move(current.front().shown);
    current.clear();  // releases its memory before anyone can observe completion
    lock.lock();
    timeline_->touching = false;
    timeline_->in_function = false;
    being_written_ = {};
    const uint64_t number = ++timeline_->completed;
    shown.reset();  // completes the record, whether it ran or not
    timeline_->settle_unobservable();
    if (!result) {
      failure.front() = {number, result.error()};
      timeline_->failures.splice(timeline_->failures.end(), failure);
    }
    shared_.managed.refresh(lock);
    shared_.progress.notify_all();
  }
}

// As if an event that was recorded just before were synchronized.
void Queue::begin_function(const Lock& held, const Operation& function) {
  timeline_->in_function = true;
  timeline_->seen = timeline_->completed;
  if (function.before != nullptr) function.before->see();
  shared_.managed.refresh(held);
}

void Queues::end_capture(const Lock& /*held*/, uint64_t capture) {
  for (const Worker& worker : workers_) {
    if (worker.queue->capture == capture) worker.queue->capture = 0;
  }
  shared_.captures.erase(capture);
}

bool Queues::any_active(const Lock& /*held*/) const {
  return std::ranges::any_of(workers_,
                             [](const Worker& worker) { return worker.queue->timeline()->active(); });
}

const Timeline* Queues::find_timeline(const Lock& held, uint64_t id) const {
  for (const Worker& worker : workers_) {
    const Queue& queue = *worker.queue;
    if (queue.timeline()->id != id) continue;
    return queue.retired(held) && queue.idle(held) ? nullptr : queue.timeline().get();
  }
  return nullptr;
}

Result<std::vector<Mark>> Queues::marks(const Lock& held, const HostDevice& device) const {
  std::vector<Mark> marks;
  for (const Worker& worker : workers_) {
    const Queue& queue = *worker.queue;
    if (&queue.device() != &device) continue;
    if (queue.capture != 0) {
      return make_error(GPUMEM_ERROR_INVALID_STATE,
                        "a stream of device %u is being captured; end the capture, or say what to wait for",
                        device.facts().ordinal);
    }
    marks.push_back(queue.mark(held));
  }
  return marks;
}

void Queues::await_retired(const HostDevice& device) {
  Lock lock(shared_.mutex);
  shared_.progress.wait(lock, [&] {
    return device.lost() || std::ranges::none_of(workers_, [&](const Worker& worker) {
             const Queue& queue = *worker.queue;
             return &queue.device() == &device && queue.retired(lock) && !queue.idle(lock);
           });
  });
}

bool Queues::touching(const Lock& held, const HostDevice& device) const {
  return std::ranges::any_of(workers_, [&](const Worker& worker) {
    return &worker.queue->device() == &device && worker.queue->touching(held);
  });
}

void Queues::stop() {
  {
    const Lock lock(shared_.mutex);
    shared_.closing = true;
    shared_.progress.notify_all();
    for (Worker& worker : workers_)
      worker.queue->wake(lock);
  }
  for (Worker& worker : workers_)
    worker.thread.join();
  workers_.clear();
}

Result<std::shared_ptr<Queue>> Queues::start(HostDevice& device, bool made_natively) {
  GPUMEM_TRY(device.require_not_lost());
  GPUMEM_TRY(shared_.steps.take("pthread_create"));
  auto queue = std::make_shared<Queue>(shared_, device, made_natively);
  std::list<Worker> started(1);
  const auto worker = started.begin();
  worker->queue = queue;
  worker->thread = platform::start_thread([this, worker, queue] {
    queue->run();
    std::list<Worker> ended;
    const Lock lock(shared_.mutex);
    if (shared_.closing) return;  // stop() joins
    // The stream was destroyed before the backend, so nothing joins this thread.
    ended.splice(ended.end(), workers_, worker);
    worker->thread.detach();
  });
  const Lock lock(shared_.mutex);
  workers_.splice(workers_.end(), started);
  return queue;
}

Result<std::shared_ptr<Queue>> Queues::find(const Lock& held, const HostDevice& device, const void* native) {
  for (Worker& worker : workers_) {
    Queue& queue = *worker.queue;
    if (queue.handle() == native && &queue.device() == &device && !queue.retired(held)) return worker.queue;
  }
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "device %u has no native stream %p",
                    device.facts().ordinal, native);
}

}  // namespace gpumem::host
