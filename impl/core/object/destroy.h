// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The end of an object, the same for all but rings and pools, which end in more steps.
#pragma once

#include "core/object/handles.h"

namespace gpumem::core {

// Ends the handle, waits for other threads that use the object, and releases it. If that fails, the handle is
// good again.
Result<void> destroy_object(Ref<Object> object);

}  // namespace gpumem::core
