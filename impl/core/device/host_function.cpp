// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/device/host_function.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <optional>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "contract/host_function_mark.h"
#include "core/device/device.h"
#include "platform/fork.h"
#include "platform/thread.h"

namespace gpumem::core {
namespace {

struct Entry {
  const Context* owner = nullptr;
  const Device* device = nullptr;  // of the stream; for what writes
  const Region* writes = nullptr;
  std::optional<sigset_t> mask;  // of the thread that enqueued a function of the caller
  std::function<void()> function;
  bool runs = false;
};

// Never reused, so that a backend that is late with it calls no dropped function.
using Id = uint64_t;

// All functions of the process that are enqueued and have not run: one may run after its instance was closed.
struct All {
  std::mutex mutex;
  std::map<Id, Entry> entries;
  Id last = 0;
  std::condition_variable ended;
};

constinit platform::PerProcess<All> all_functions;

Id add_function(Entry entry) {
  All& functions = all_functions.get();
  const std::lock_guard lock(functions.mutex);
  const Id id = functions.last + 1;
  functions.entries.emplace(id, std::move(entry));
  return functions.last = id;
}

void remove(Id id) noexcept {
  All& functions = all_functions.get();
  std::map<Id, Entry>::node_type removed;  // outlives the lock, because destroying it may be slow
  const std::lock_guard lock(functions.mutex);
  removed = functions.entries.extract(id);
  functions.ended.notify_all();
}

// Drops the entries that have not begun, and waits for those that run.
template <class Chosen>
void end_where(Chosen chosen) {
  All* const functions = all_functions.find();
  if (functions == nullptr) return;  // none was ever enqueued
  std::map<Id, Entry> dropped;
  std::unique_lock lock(functions->mutex);
  auto& entries = functions->entries;
  for (auto next = entries.begin(); next != entries.end();) {
    const auto one = next++;
    if (chosen(one->second) && !one->second.runs) dropped.insert(entries.extract(one));
  }
  functions->ended.wait(lock, [&] {
    return std::none_of(entries.begin(), entries.end(),
                        [&](const auto& item) { return chosen(item.second); });
  });
}

// What the backend calls, with pointer_to(id) as its argument.
void GPUMEM_CALL run(void* argument) {
  const Id id = address_of(argument);
  All& functions = all_functions.get();
  const Entry* entry = nullptr;
  {
    const std::lock_guard lock(functions.mutex);
    const auto found = functions.entries.find(id);
    if (found == functions.entries.end()) return;
    found->second.runs = true;
    entry = &found->second;  // running work is not dropped
  }
  const uint32_t process = platform::process_epoch();
  if (entry->mask) {
    const backend::HostFunctionMark mark;
    // A program that the function starts inherits the mask of this thread.
    const platform::SignalMask signals(*entry->mask);
    entry->function();
  } else {
    entry->function();
  }
  if (platform::process_epoch() != process) return;  // a forked child must not touch the lock
  remove(id);
}

// A function in a graph: it runs at each launch, and lives as long as the graph.
struct Captured {
  gpumem_host_function function;
  void* user_data;
  sigset_t mask;  // of the thread that captured it
};

void GPUMEM_CALL run_captured(void* argument) {
  const auto& captured = *static_cast<const Captured*>(argument);
  const backend::HostFunctionMark mark;
  const platform::SignalMask signals(captured.mask);
  captured.function(captured.user_data);
}

// False if out of memory.
bool wait_for(backend::Stream& stream) noexcept {
  try {
    (void)stream.observe(GPUMEM_TIMEOUT_INFINITE);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

Result<void> launch_for_user(Context& context, backend::Stream& stream, gpumem_host_function function,
                             void* user_data) {
  Entry entry;
  entry.owner = &context;
  entry.mask = platform::SignalMask::of_this_thread();
  entry.function = [function, user_data] { function(user_data); };
  const Id id = add_function(std::move(entry));
  Cleanup drop([&] { remove(id); });
  GPUMEM_TRY(stream.launch_host_function(run, pointer_to(id), false));
  drop.dismiss();
  return {};
}

Result<void> capture_for_user(backend::Stream& stream, gpumem_host_function function, void* user_data) {
  auto* const captured = new Captured{function, user_data, platform::SignalMask::of_this_thread()};
  return stream.capture_host_function(run_captured, captured,
                                      [](void* argument) { delete static_cast<Captured*>(argument); });
}

Result<void> launch_internal(Device& device, backend::Stream& stream, const Region* writes,
                             std::function<void()> function) {
  Entry entry;
  entry.owner = device.owner();
  entry.device = &device;
  entry.writes = writes;
  entry.function = std::move(function);
  const Id id = add_function(std::move(entry));
  Cleanup drop([&] {
    // Work enqueued before may use what the function keeps alive.
    if (wait_for(stream)) remove(id);
  });
  GPUMEM_TRY(stream.launch_host_function(run, pointer_to(id), true));
  drop.dismiss();
  return {};
}

void end_functions_writing(const Region& region) noexcept {
  end_where([&](const Entry& entry) {
    return entry.writes == &region && entry.device != nullptr && entry.device->backend().lost();
  });
}

void end_functions_of(const Context& context) noexcept {
  end_where([&](const Entry& entry) { return entry.owner == &context; });
}

}  // namespace gpumem::core
