// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The thread of an instance that prepares stores at a pace and lets buffers grow ahead. It is started when it
// has something to do for the first time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace gpumem::core {

class Background {
 public:
  // One step of a task. Answers how long to wait before the next; nothing once the task is done.
  using Step = std::function<std::optional<std::chrono::nanoseconds>()>;

  Background() = default;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background() { stop(); }

  // Throws what std::thread throws.
  void start();
  // Needs start(). The steps of all tasks run on the one thread, when they are due.
  void add(Step step);
  // Ends the thread after the step that it is at, and drops all tasks.
  void stop() noexcept;
  bool is_this_thread() const { return std::this_thread::get_id() == id_.load(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Task {
    Clock::time_point due;
    Step step;
  };
  void run();

  std::mutex mutex_;  // guards all but the id
  std::condition_variable wake_;
  std::vector<Task> tasks_;
  std::thread thread_;
  bool stopping_ = false;
  std::atomic<std::thread::id> id_{};
};

}  // namespace gpumem::core
