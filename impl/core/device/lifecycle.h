// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Making and destroying the objects that order work: streams and events.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/cleanup.h"
#include "core/instance/instance.h"
#include "core/object/handles.h"
#include "core/object/host_function_guard.h"
#include "core/share/peer/exports.h"

namespace gpumem::core {

// A new object of type T around what `make` gets from the backend.
template <class T, class Make>
Result<uint64_t> make_object(DeviceObject& device, bool wrapped, std::string name, Make make) {
  Instance& instance = device.instance();
  GPUMEM_TRY(device.device().usable());
  GPUMEM_TRY(outside_host_function());
  const auto open = instance.stay_open();
  if (!open) return open.error();
  auto object = std::make_unique<T>(device.shared_instance(), device.device(), wrapped, std::move(name));
  auto handle = handles::reserve(*object);
  if (!handle) return handle.error();
  Cleanup undo_handle([&] { handles::cancel(*object); });
  auto made = make(device.device().backend(), *object);
  if (!made) return made.error();
  undo_handle.dismiss();
  object->set_backend(std::move(*made));
  instance.add_object(*object);
  handles::publish(object.release());
  return *handle;
}

// The reverse: ends the handle, waits for other threads that use the object, and releases it.
template <class T>
Result<void> destroy_object(Ref<T> object) {
  GPUMEM_TRY(outside_host_function());
  Instance& instance = object->instance();
  const auto open = instance.stay_open();
  if (!open) return open.error();
  GPUMEM_TRY(uses_will_end(*object));
  Exports& exports = instance.exports();
  GPUMEM_TRY(exports.begin_end(*object));
  Cleanup still_shared([&, shared = object.get()] { exports.cancel_end(*shared); });
  if (!handles::end(*object, End::kDestroyed)) {
    still_shared.dismiss();  // the call that destroys it decides that
    return ended_meanwhile(T::kType);
  }
  Cleanup stays([&] { handles::revive(*object); });
  platform::fence_all_threads();
  GPUMEM_TRY(wait_for_uses(*object));
  GPUMEM_TRY(exports.begin_end(*object));  // it may have been exported meanwhile
  GPUMEM_TRY(object->release());
  stays.dismiss();
  still_shared.dismiss();
  T* const gone = object.get();
  object = {};
  handles::remove(gone);
  return {};
}

}  // namespace gpumem::core
