// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/destroy.h"

#include "base/cleanup.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/object/sharing.h"
#include "platform/thread_record.h"

namespace gpumem::core {

Result<void> destroy_object(Ref<Object> used) {
  GPUMEM_TRY(outside_host_function());
  Object& object = *used;
  Context& context = object.context();
  const auto open = context.stay_open();
  if (!open) return open.error();
  GPUMEM_TRY(uses_will_end(object));
  // Check before ending the handle, so that an object in use never looks destroyed to other threads.
  GPUMEM_TRY(object.may_end());
  Sharing& sharing = context.sharing();
  GPUMEM_TRY(sharing.begin_end(object));
  // If another call destroys it, that one decides whether it stays shared.
  if (!handles::end(object, End::kDestroyed)) return ended_meanwhile(object.type());
  Cleanup stays([&] {
    object.handle_revived();
    sharing.cancel_end(object);
    handles::revive(object);
  });
  used = {};  // a thread that changes a range waits for those that use it
  object.handle_ended();
  platform::fence_all_threads();
  GPUMEM_TRY(wait_for_uses(object));
  GPUMEM_TRY(object.may_end_unused());
  GPUMEM_TRY(sharing.begin_end(object));  // it may have been exported meanwhile
  GPUMEM_TRY(object.release());
  context.remove_object(object);
  stays.dismiss();
  handles::remove(&object);
  return {};
}

}  // namespace gpumem::core
