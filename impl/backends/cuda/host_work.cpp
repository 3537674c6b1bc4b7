// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/host_work.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "backends/cuda/process_wide.h"
#include "base/arithmetic.h"

namespace gpumem::cuda {
namespace {

struct HostWork {
  std::function<void()> run;
  Writing writing;
  bool runs = false;
};

// The driver is told ids, which it may come back with when the work has been dropped.
struct Works {
  std::mutex mutex;
  std::map<HostWorkId, HostWork> all;  // also what never runs because its device was lost
  HostWorkId last = 0;
  std::condition_variable ended;
};

Works& works() { return process_wide<Works>(); }

template <class Chosen>
void end_where(Chosen chosen) {
  std::map<HostWorkId, HostWork>
      dropped;  // outlives the lock, since what it holds may take a while to destroy
  std::unique_lock lock(works().mutex);
  const auto concerned = [&](const auto& item) {
    const Writing& writing = item.second.writing;
    return writing.device != nullptr && writing.device->lost() && chosen(writing);
  };
  auto& all = works().all;
  for (auto next = all.begin(); next != all.end();) {
    const auto one = next++;
    if (concerned(*one) && !one->second.runs) dropped.insert(all.extract(one));
  }
  works().ended.wait(lock, [&] { return std::none_of(all.begin(), all.end(), concerned); });
}

}  // namespace

HostWorkId add_host_work(std::function<void()> run, Writing writing) {
  const std::lock_guard lock(works().mutex);
  const HostWorkId id = works().last + 1;
  works().all.emplace(id, HostWork{std::move(run), writing});
  return works().last = id;
}

void remove_host_work(HostWorkId id) {
  std::map<HostWorkId, HostWork>::node_type removed;  // outlives the lock
  const std::lock_guard lock(works().mutex);
  removed = works().all.extract(id);
  works().ended.notify_all();
}

void end_host_work_of(const Device& device) {
  end_where([&](const Writing& writing) { return writing.device == &device; });
}

void end_host_work_on(const backend::Memory& memory) {
  end_where([&](const Writing& writing) { return writing.memory == &memory; });
}

void forget_device_of_host_work(const Device& device) {
  const std::lock_guard lock(works().mutex);
  for (auto& [id, work] : works().all) {
    if (work.writing.device == &device) work.writing.device = nullptr;
  }
}

void CUDA_CB run_host_work(void* argument) {
  const HostWorkId id = address_of(argument);
  const std::function<void()>* run = nullptr;
  {
    const std::lock_guard lock(works().mutex);
    const auto found = works().all.find(id);
    if (found == works().all.end()) return;
    found->second.runs = true;
    run = &found->second.run;  // what runs is not dropped
  }
  (*run)();
  remove_host_work(id);
}

}  // namespace gpumem::cuda
