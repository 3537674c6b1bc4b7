// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The operations of one stream, and the thread that runs them one after the other.
#pragma once

#include <condition_variable>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "backends/host/shared.h"

namespace gpumem::host {

// What runs on the worker. A failure is reported by whoever observes the operation.
struct Operation {
  std::function<Result<void>()> run;
  bool touches = false;  // moves bytes, and waits for nothing
  // One element from enqueue() on: a lack of memory could be told to nobody when the operation fails.
  std::list<Failure> room = {};
};

class Queue {
 public:
  // `made_natively`: by gpumem_host_native_stream_create().
  Queue(Shared& shared, HostDevice& device, bool made_natively);

  HostDevice& device() const { return device_; }
  const std::shared_ptr<Timeline>& timeline() const { return timeline_; }
  bool made_natively() const { return made_natively_; }

  // Everything below that takes a Lock needs Shared::mutex held.

  // Appends an operation that uses these allocations; null ones are passed over. DEVICE_LOST or
  // INVALID_STATE if the stream can take none.
  Result<void> enqueue(const Lock& held, Operation operation, std::initializer_list<Allocation*> used);
  Result<void> enqueue(Operation operation, std::initializer_list<Allocation*> used);
  // All that was enqueued so far.
  Mark mark(const Lock& held) const;
  // Lets later operations wait for a point of a stream.
  Result<void> wait_for(const Lock& held, const Mark& mark);
  // Takes no more operations; the thread ends after the last one.
  void retire(const Lock& held);
  bool retired(const Lock& held) const;
  // All that was enqueued has run.
  bool idle(const Lock& held) const;
  bool touching(const Lock& /*held*/) const { return timeline_->touching; }
  // Lets an idle thread see that the backend closes.
  void wake(const Lock& /*held*/) { wake_.notify_one(); }

  // For operations: holds the queue until `done` says so, asking again and again. If the device is lost or
  // the backend closes before, the rest of the queue is not run.
  void hold_until(const std::function<bool()>& done);

  bool capturing = false;  // guarded by Shared::mutex

  void run();  // the thread

 private:
  Shared& shared_;
  HostDevice& device_;
  const std::shared_ptr<Timeline> timeline_;
  const bool made_natively_;
  std::condition_variable wake_;
  // Guarded by Shared::mutex:
  std::list<Operation> operations_;
  std::shared_ptr<const Clock> before_;  // what later operations are ordered after; null if nothing
  bool retired_ = false;
  bool abandoned_ = false;  // what is pending will not be run
};

// All queues of a backend, with their threads.
class Queues {
 public:
  explicit Queues(Shared& shared) : shared_(shared) {}
  ~Queues() { stop(); }

  Result<std::shared_ptr<Queue>> start(HostDevice& device, bool made_natively);
  // The queue with this address, if it belongs to the device and takes operations; otherwise
  // INVALID_ARGUMENT.
  Result<std::shared_ptr<Queue>> find(const Lock& held, const HostDevice& device, const void* native);
  // Waits until the queues of the device that take no more operations have run theirs, or the device is lost.
  void await_retired(const HostDevice& device);
  // Whether a queue of the device moves bytes now.
  bool touching(const Lock& held, const HostDevice& device) const;
  // Ends all threads. Runs what is still pending, but waits for no value and for nothing of a lost device.
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
