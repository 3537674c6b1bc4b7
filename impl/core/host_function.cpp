// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/host_function.h"

#include <list>
#include <mutex>

#include "core/backends.h"
#include "platform/fork.h"

namespace gpumem::core {
namespace {

thread_local int marks = 0;

}  // namespace

HostFunctionMark::HostFunctionMark() { ++marks; }
HostFunctionMark::~HostFunctionMark() { --marks; }

Result<void> outside_host_function() {
  if (marks == 0) return {};
  return make_error(
      GPUMEM_ERROR_INVALID_STATE,
      "called from a host function, which may only ask for information; do this on another thread");
}

namespace host_functions {

struct Pending {
  const Instance* owner = nullptr;
  gpumem_host_function function = nullptr;
  void* user_data = nullptr;
  std::list<Pending>::iterator self;
};

namespace {

struct All {
  std::mutex mutex;
  std::list<Pending> pending;
};

constinit platform::PerProcess<All> all;

}  // namespace

Pending* add(const Instance* owner, gpumem_host_function function, void* user_data) {
  All& functions = all.get();
  std::lock_guard lock(functions.mutex);
  Pending& pending = functions.pending.emplace_front(Pending{owner, function, user_data, {}});
  pending.self = functions.pending.begin();
  return &pending;
}

void remove(Pending* pending) noexcept {
  All& functions = all.get();
  std::lock_guard lock(functions.mutex);
  functions.pending.erase(pending->self);
}

void forget(const Instance* owner) noexcept {
  All& functions = all.get();
  std::lock_guard lock(functions.mutex);
  functions.pending.remove_if([&](const Pending& pending) { return pending.owner == owner; });
}

void run(void* argument) {
  auto* pending = static_cast<Pending*>(argument);
  const gpumem_host_function function = pending->function;
  void* const user_data = pending->user_data;
  remove(pending);
  const HostFunctionMark mark;
  function(user_data);
}

}  // namespace host_functions
}  // namespace gpumem::core
