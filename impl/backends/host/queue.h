// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The operations of one stream, and the thread that runs them in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backends/host/fence.h"
#include "backends/host/shared.h"
#include "backends/host/shared_event.h"

namespace gpumem::host {

// Bytes that an operation writes. Owns nothing.
struct Rows {
  const std::byte* first = nullptr;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t height = 0;  // 0: none
};
// Whether two sets of rows have a byte in common.
bool meet(const Rows& a, const Rows& b);

// Runs on the worker. The call that observes the operation reports its failure.
struct Operation {
  std::function<Result<void>()> run;
  bool touches = false;  // moves bytes, and waits for nothing
  Rows writes = {};
  // Preallocated, because the worker cannot report out-of-memory.
  std::list<Failure> room = {};
  bool device_work = false;  // makes its stream active until it is observed complete (MAN-9)
  bool function = false;     // of the caller, for the CPU: meanwhile its stream is idle (MAN-16)
  std::shared_ptr<const Clock> before = {};  // of a function: all that it comes after
  // Released in the same critical section that completes the operation: an event is complete in all processes
  // or in none.
  std::shared_ptr<SharedEvent::Record> shown = {};
};

class Queue {
 public:
  // `made_natively`: created by gpumem_host_native_stream_create().
  Queue(Shared& shared, HostDevice& device, bool made_natively);
  ~Queue();

  HostDevice& device() const { return device_; }
  const std::shared_ptr<Timeline>& timeline() const { return timeline_; }
  bool made_natively() const { return made_natively_; }
  const std::shared_ptr<HostFence>& fence() const { return fence_; }
  // What stands for the stream in other code's hands. The next stream gets the value of one that has ended.
  void* handle() const { return handle_; }

  // Functions with a Lock parameter require Shared::mutex.

  // Appends an operation that uses these allocations; null ones are ignored. DEVICE_LOST or INVALID_STATE if
  // the stream accepts none.
  Result<void> enqueue(const Lock& held, Operation operation, std::span<Allocation* const> used);
  Result<void> enqueue(const Lock& held, Operation operation, std::initializer_list<Allocation*> used) {
    return enqueue(held, std::move(operation), std::span(used.begin(), used.size()));
  }
  Result<void> enqueue(Operation operation, std::initializer_list<Allocation*> used);
  // All that was enqueued so far.
  Mark mark(const Lock& held) const;
  // Lets later operations wait for a point of a stream.
  Result<void> wait_for(const Lock& held, const Mark& mark);
  // Refuses further operations; the thread ends after the last one.
  void retire(const Lock& held);
  bool retired(const Lock& held) const;
  // Whether an operation that has not run writes any of these bytes.
  bool will_write(const Lock& held, const Rows& bytes) const;
  // Whether everything that was enqueued has run.
  bool idle(const Lock& held) const;
  bool touching(const Lock& /*held*/) const { return timeline_->touching; }
  // DEVICE_LOST or INVALID_STATE if it accepts no operations.
  Result<void> require_open(const Lock& held) const;
  // Wakes an idle thread, so that it notices that the backend is closing.
  void wake(const Lock& /*held*/) { wake_.notify_one(); }

  // For operations: holds the queue and polls until `done` returns true. If the device is lost or the backend
  // closes first, the rest of the queue does not run.
  void hold_until(const std::function<bool()>& done);
  // The same for another process, without polling: `pending` waits for a while by itself. False if it was
  // not waited for to the end.
  bool hold_while(const std::function<bool()>& pending);

  std::atomic<uint64_t> capture{0};  // id of the simulated one, or 0; written with Shared::mutex

  void run();  // the thread

 private:
  void begin_function(const Lock& held, const Operation& function);

  Shared& shared_;
  HostDevice& device_;
  const std::shared_ptr<Timeline> timeline_;
  const std::shared_ptr<HostFence> fence_;
  const bool made_natively_;
  void* const handle_;
  std::condition_variable wake_;
  // Guarded by Shared::mutex:
  std::list<Operation> operations_;
  Rows being_written_;                   // by the operation that runs
  std::shared_ptr<const Clock> before_;  // later operations are ordered after this; may be null
  bool retired_ = false;
  bool abandoned_ = false;  // pending operations will not run
};

// All queues of a backend, with their threads.
class Queues {
 public:
  explicit Queues(Shared& shared) : shared_(shared) {}
  ~Queues() { stop(); }

  Result<std::shared_ptr<Queue>> start(HostDevice& device, bool made_natively);
  // The queue of this handle; INVALID_ARGUMENT unless it belongs to the device and accepts operations.
  Result<std::shared_ptr<Queue>> find(const Lock& held, const HostDevice& device, const void* native);
  // Of all streams that have joined it.
  void end_capture(const Lock& held, uint64_t capture);
  // Whether a stream of any device is active.
  bool any_active(const Lock& held) const;
  // Of a stream that accepts operations or has some left; else null.
  const Timeline* find_timeline(const Lock& held, uint64_t id) const;
  // All that was enqueued so far for a device. INVALID_STATE if one of its streams is being captured.
  Result<std::vector<Mark>> marks(const Lock& held, const HostDevice& device) const;
  // Waits until all closed queues of the device are empty, or the device is lost.
  void await_retired(const HostDevice& device);
  // Whether a queue of the device is moving bytes.
  bool touching(const Lock& held, const HostDevice& device) const;
  // Ends all threads. Runs pending operations, but does not wait for values or for a lost device.
  void stop();

 private:
  struct Worker {
    std::shared_ptr<Queue> queue;
    std::thread thread;
  };

  Shared& shared_;
  std::list<Worker> workers_;  // guarded by Shared::mutex
};

}  // namespace gpumem::host
