// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/host_function.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "backend/host_function_mark.h"
#include "base/arithmetic.h"
#include "platform/fork.h"

namespace gpumem::core {

Result<void> outside_host_function() {
  if (!backend::HostFunctionMark::is_set()) return {};
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "called from a host function or kernel, which may only ask for information; do this on another thread");
}

namespace host_functions {

namespace {

struct Entry {
  const Instance* owner = nullptr;
  gpumem_host_function function = nullptr;
  void* user_data = nullptr;
  bool runs = false;
};

struct All {
  std::mutex mutex;
  std::map<Id, Entry> entries;
  Id last = 0;
  std::condition_variable ended;
};

constinit platform::PerProcess<All> all;

}  // namespace

Id add(const Instance* owner, gpumem_host_function function, void* user_data) {
  All& functions = all.get();
  const std::lock_guard lock(functions.mutex);
  const Id id = ++functions.last;
  functions.entries.emplace(id, Entry{owner, function, user_data});
  return id;
}

void remove(Id id) noexcept {
  All& functions = all.get();
  const std::lock_guard lock(functions.mutex);
  functions.entries.erase(id);
}

void forget(const Instance* owner) noexcept {
  All* const functions = all.find();
  if (functions == nullptr) return;  // none was ever enqueued
  std::unique_lock lock(functions->mutex);
  std::erase_if(functions->entries,
                [&](const auto& item) { return item.second.owner == owner && !item.second.runs; });
  functions->ended.wait(lock, [&] {
    return std::none_of(functions->entries.begin(), functions->entries.end(),
                        [&](const auto& item) { return item.second.owner == owner; });
  });
}

void run(void* argument) {
  const Id id = address_of(argument);
  All& functions = all.get();
  Entry entry;
  {
    const std::lock_guard lock(functions.mutex);
    const auto found = functions.entries.find(id);
    if (found == functions.entries.end()) return;
    found->second.runs = true;
    entry = found->second;
  }
  const uint32_t process = platform::process_epoch();
  {
    const backend::HostFunctionMark mark;
    entry.function(entry.user_data);
  }
  if (platform::process_epoch() != process) return;  // it forked, and the child must not touch the lock
  const std::lock_guard lock(functions.mutex);
  functions.entries.erase(id);
  functions.ended.notify_all();
}

}  // namespace host_functions
}  // namespace gpumem::core
