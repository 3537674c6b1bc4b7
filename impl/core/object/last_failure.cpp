// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/last_failure.h"

#include <ctime>
#include <mutex>
#include <new>

#include "core/object/status_list.h"
#include "platform/fork.h"

namespace gpumem::core {
namespace {

struct Record {
  std::mutex mutex;
  std::optional<LastFailure> last;
};

constinit platform::PerProcess<Record> of_process;

}  // namespace

void note_failure(const char* function, const Error& error) noexcept {
  if (!lacks_room(error.status)) return;
  try {
    Record& here = of_process.get();
    const std::lock_guard lock(here.mutex);
    here.last = {function, static_cast<uint64_t>(std::time(nullptr)), error};
  } catch (const std::bad_alloc&) {
    // A forked child without memory for its own record notes nothing.
  }
}

std::optional<LastFailure> last_failure() {
  Record* const here = of_process.find();
  if (here == nullptr) return std::nullopt;
  const std::lock_guard lock(here->mutex);
  return here->last;
}

}  // namespace gpumem::core
