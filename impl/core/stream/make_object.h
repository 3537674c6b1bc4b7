// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Making the objects that order work: streams and events.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/cleanup.h"
#include "core/device/device.h"
#include "core/object/context.h"
#include "core/object/handles.h"
#include "core/object/host_function_guard.h"

namespace gpumem::core {

// A new object of type T around what `make` gets from the backend.
template <class T, class Make>
Result<uint64_t> make_object(DeviceObject& device, bool wrapped, std::string name, Make make) {
  Context& context = device.context();
  GPUMEM_TRY(device.device().usable());
  GPUMEM_TRY(outside_host_function());
  const auto open = context.stay_open();
  if (!open) return open.error();
  auto object = std::make_unique<T>(device.shared_context(), device.device(), wrapped, std::move(name));
  auto handle = handles::reserve(*object);
  if (!handle) return handle.error();
  Cleanup undo_handle([&] { handles::cancel(*object); });
  auto made = make(device.device().backend(), *object);
  if (!made) return made.error();
  undo_handle.dismiss();
  object->set_backend(std::move(*made));
  context.add_object(*object);
  handles::publish(object.release());
  return *handle;
}

}  // namespace gpumem::core
