// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/host_work.h"

#include <list>
#include <mutex>

namespace gpumem::cuda {

struct HostWork {
  std::function<void()> run;
  std::list<HostWork>::iterator self;
};

namespace {

// Holds also what never runs because its device was lost. Never destroyed: the driver may call at any time.
struct Works {
  std::mutex mutex;
  std::list<HostWork> list;
};

Works& works() {
  static auto* const only = new Works;
  return *only;
}

}  // namespace

HostWork* add_host_work(std::function<void()> run) {
  const std::lock_guard lock(works().mutex);
  HostWork& work = works().list.emplace_front();
  work.run = std::move(run);
  work.self = works().list.begin();
  return &work;
}

void remove_host_work(const HostWork* work) {
  std::list<HostWork> removed;  // outlives the lock, since what it holds may take a while to destroy
  const std::lock_guard lock(works().mutex);
  removed.splice(removed.begin(), works().list, work->self);
}

void CUDA_CB run_host_work(void* work) {
  const auto* self = static_cast<const HostWork*>(work);
  self->run();
  remove_host_work(self);
}

}  // namespace gpumem::cuda
