// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/background.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "core/object/log.h"
#include "platform/thread.h"

namespace gpumem::core {

void Background::start() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable() || stopping_) return;
  thread_ = platform::start_thread([this] { run(); });
}

void Background::add(Step step) {
  const std::lock_guard lock(mutex_);
  tasks_.reserve(tasks_.size() + 2);  // the task that runs now comes back
  tasks_.push_back({Clock::now(), std::move(step)});
  wake_.notify_one();
}

void Background::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  tasks_.clear();
}

void Background::run() {
  id_ = std::this_thread::get_id();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto next = std::min_element(tasks_.begin(), tasks_.end(),
                                       [](const Task& a, const Task& b) { return a.due < b.due; });
    if (next == tasks_.end()) {
      wake_.wait(lock);
      continue;
    }
    if (next->due > Clock::now()) {
      const Clock::time_point due = next->due;
      wake_.wait_until(lock, due);
      continue;
    }
    Task task = std::move(*next);
    tasks_.erase(next);
    lock.unlock();
    std::optional<std::chrono::nanoseconds> pause;
    try {
      pause = task.step();
    } catch (const std::exception& problem) {
      log(GPUMEM_LOG_WARNING, "background work was given up: %s", problem.what());
    }
    if (!pause) task.step = {};  // releases what the task holds, without the lock
    lock.lock();
    if (pause && !stopping_) {
      task.due = Clock::now() + *pause;
      tasks_.push_back(std::move(task));
    }
  }
}

}  // namespace gpumem::core
