// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/log.h"

#include <atomic>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "base/text.h"
#include "core/object/callback.h"
#include "platform/fork.h"
#include "platform/thread.h"

namespace gpumem::core {
namespace {

// Level first and without a lock: a process that set no function pays one load.
constinit std::atomic<gpumem_log_level> listening_level{0};

struct Listener {
  std::shared_mutex mutex;       // shared while a message is delivered
  std::atomic<int> changing{0};  // threads that want the lock alone
  gpumem_log_function function = nullptr;
  void* user_data = nullptr;

  // A forked child keeps the log function of its parent.
  void inherit(const Listener& parents) {
    function = parents.function;
    user_data = parents.user_data;
  }
};

constinit platform::PerProcess<Listener> listener;

// Epoch of the process in which this thread delivers a message. A child that the log function forks is not in
// it.
constinit thread_local uint32_t delivering = 0;

bool is_delivering() { return delivering != 0 && delivering == platform::process_epoch(); }

}  // namespace

Result<void> set_log_function(gpumem_log_function function, void* user_data, gpumem_log_level max_level) {
  if (is_delivering()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "gpumem_log_set_function() was called from the log function");
  }
  Listener& target = listener.get();
  ++target.changing;
  std::unique_lock lock(target.mutex);
  --target.changing;
  target.function = function;
  target.user_data = user_data;
  listening_level.store(function != nullptr ? max_level : 0, std::memory_order_relaxed);
  return {};
}

void log(gpumem_log_level level, const char* format, ...) noexcept {
  // Drop a message that is logged during the delivery of another on this thread: it would deadlock.
  if (level > listening_level.load(std::memory_order_relaxed) || is_delivering()) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  format_text(line, sizeof line, format, arguments);
  va_end(arguments);
  Listener* target = nullptr;
  try {
    target = &listener.get();
  } catch (const std::bad_alloc&) {
    return;  // a forked child without memory for its own listener logs nothing
  }
  // Drop the message, so that the function can be changed under steady logging. Waiting here could block a
  // thread that the function waits for.
  if (target->changing != 0) return;
  const platform::CancellationHeld held;
  std::shared_lock lock(target->mutex);
  if (target->function == nullptr) return;
  delivering = platform::process_epoch();
  const Callback mark;
  target->function(target->user_data, level, line);
  delivering = 0;
}

}  // namespace gpumem::core
