// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Objects that the library itself holds by their handles.
#pragma once

#include <new>
#include <utility>

#include "core/object/handles.h"

namespace gpumem::core {

// An object that another object holds by its handle. It is gone only if the instance is being closed.
template <class T>
Result<Ref<T>> held(uint64_t handle) {
  Ref<T> found = acquire<T>(platform::thread_record(), handle);
  if (!found) return handles::refusal(handle, T::kType);
  return found;
}

// Calls `use` with an object if it still exists, inside a look, and so needs no memory. The thread's record
// exists: it has looked at objects before.
template <class Use>
void look_at(uint64_t handle, Use use) noexcept {
  platform::ThreadRecord& record = platform::thread_record();
  const platform::Look look(record);
  const auto type = static_cast<Type>(handles::detail::type_of(handle));
  if (Object* const object = handles::look_up(handle, type, record.process.load(std::memory_order_relaxed)))
    use(*object);
}

// Releases such an object. Tries twice, because a driver may report an earlier failure at the first try.
template <class T, class End>
Result<void> give_back(uint64_t handle, End end) {
  Result<void> ended;
  for (int tries = 0; tries < 2; ++tries) {
    try {
      auto object = held<T>(handle);
      if (!object) return object.error();
      ended = end(std::move(*object));
    } catch (const std::bad_alloc&) {  // destructors call this
      ended = make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory to give memory back");
    }
    if (ended || ended.error().status == GPUMEM_ERROR_BUSY) break;
  }
  return ended;
}

}  // namespace gpumem::core
