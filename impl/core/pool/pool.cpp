// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/pool/pool.h"

#include <algorithm>
#include <new>

#include "base/cleanup.h"
#include "core/memory/pointer.h"
#include "core/object/abandoned.h"
#include "core/object/callback.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/pool/pools.h"
#include "core/stream/stream.h"

namespace gpumem::core {
namespace {

// Turns std::bad_alloc into a status, because the handle has already ended.
Result<bool> release_quietly(PoolCore& core, bool wait = true) noexcept {
  try {
    return core.release_if_empty(wait);
  } catch (const std::bad_alloc&) {
    return make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory to release the pool's memory; try again");
  }
}

}  // namespace

PoolStream pool_stream(const Stream& stream) {
  return {stream.order_key(), stream.shared_backend(), &stream.device().backend(), false, {}};
}

PoolStream captured_pool_stream(const Stream& stream) {
  PoolStream order = pool_stream(stream);
  // Ignore a failed capture, as it launches nothing and a free must succeed.
  const auto capturing = stream.backend().is_capturing();
  if (!capturing || !*capturing) return order;
  if (const auto capture = stream.backend().capture()) order.capture = *capture;
  return order;
}

Result<PoolStream> native_pool_stream(const PoolCore& core, void* native, bool frees) {
  Device& device = core.device();
  auto stream = device.backend().wrap_stream(native);
  if (!stream) return stream.error();
  const uint64_t trusted = core.key_of_native(native);
  if (trusted != PoolCore::kNoKey)
    return PoolStream{trusted, std::move(*stream), &device.backend(), true, {}};
  auto capturing = (*stream)->is_capturing();
  const uint64_t key = (*stream)->identity();
  if (!capturing) {
    // The legacy stream does not say so while a blocking stream is being captured. It is not captured itself,
    // so a free in it is one behind its work as ever.
    const bool legacy = (*stream)->is_default() && capturing.error().status == GPUMEM_ERROR_INVALID_STATE;
    if (!frees || !legacy || key == 0) return capturing.error();
    capturing = false;
  }
  if (*capturing) {
    auto capture = Stream::current_capture(**stream);
    if (!capture) return capture.error();
    if (key == 0) return PoolStream{PoolStream::kNone, nullptr, nullptr, true, *capture};
    return PoolStream{key, std::move(*stream), &device.backend(), true, *capture};
  }
  if (key == 0) {
    if (frees) {
      const auto complete = (*stream)->synchronize(GPUMEM_TIMEOUT_INFINITE);
      if (!complete) return complete.error();
    }
    return PoolStream{};
  }
  return PoolStream{key, std::move(*stream), &device.backend(), true, {}};
}

Line Pool::describe() const { return core_->describe(); }

void Pool::list(Fields& fields) const noexcept { core_->list(fields); }

// The regions of the pool are released on their own.
Result<void> Pool::release() {
  core_->retire();
  return {};
}

Result<uint64_t> create_pool(DeviceObject& device, PoolRequest request) {
  Context& context = device.context();
  GPUMEM_TRY(device.device().usable());
  GPUMEM_TRY(outside_host_function());
  const KindTraits& kind = *request.memory.kind;
  if (kind.capability != 0) GPUMEM_TRY(device.device().need(kind.capability));
  if ((request.memory.flags & GPUMEM_MEMORY_NUMA_NODE) != 0 &&
      !context.backend().has_numa_node(request.memory.numa_node)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "there is no NUMA node %d", request.memory.numa_node);
  }
  end_abandoned(context);
  end_left_pools(context, false);
  auto core = std::make_shared<PoolCore>(device.shared_context(), device.device(), std::move(request),
                                         Pools::of(context));
  auto pool = std::make_unique<Pool>(device.shared_context(), core);
  auto handle = handles::reserve(*pool);
  if (!handle) return handle.error();
  Cleanup undo([&] {
    handles::cancel(*pool);
    core->retire();
    if (!release_quietly(*core)) core->abandon();
  });
  GPUMEM_TRY(core->open());
  core->set_handle(*handle);
  const auto open = context.stay_open();
  if (!open) return open.error();
  Pools::of(context).add(core);
  undo.dismiss();
  context.add_object(*pool);
  handles::publish(pool.release());
  return *handle;
}

Result<void> destroy_pool(Ref<Pool> pool) {
  GPUMEM_TRY(outside_host_function());
  Context& context = pool->context();
  const std::shared_ptr<PoolCore> core = pool->shared_core();
  if (core->in_callback()) {
    return make_error(GPUMEM_ERROR_INVALID_STATE,
                      "the pool's callback is running; destroy it when that has returned");
  }
  {
    const auto open = context.stay_open();
    if (!open) return open.error();
    GPUMEM_TRY(uses_will_end(*pool));
    if (!handles::end(*pool, End::kDestroyed)) return ended_meanwhile(Pool::kType);
    platform::fence_all_threads();
    if (auto unused = wait_for_uses(*pool); !unused) {
      handles::revive(*pool);
      return unused;
    }
    core->retire();
    auto released = release_quietly(*core);
    if (!released) {
      core->revive();
      handles::revive(*pool);
      return released.error();
    }
    core->set_handle(0);
    core->log_blocks();
    // Another thread may have freed the last block since, and left the rest to this one.
    if (!*released) released = release_quietly(*core, false);
    if (released && *released) Pools::of(context).remove(*core);
    context.remove_object(*pool);
    // Retry pool memory that the driver refused to free. Not in a callback, because it may wait.
    if (!Callback::runs_here()) end_abandoned(context);
  }
  Pool* const gone = pool.get();
  pool = {};
  handles::remove(gone);
  return {};
}

Result<void> free_pool_block(Context& context, const PoolStream& stream, const void* pointer) {
  GPUMEM_TRY(outside_host_function());
  end_left_pools(context, false);
  for (const auto& core : Pools::of(context).all()) {
    if (core->blocks().run_at(address_of(pointer)) == nullptr) continue;
    GPUMEM_TRY(core->free(stream, pointer, 0));
    if (core->handle() != 0) return {};                                     // destroying it may fail yet
    const auto released = release_quietly(*core, core->live().count == 0);  // if it fails, the pool is left
    if (released && *released) Pools::of(context).remove(*core);
    return {};
  }
  if (is_of_another_instance(context, pointer)) {
    return make_error(GPUMEM_ERROR_NOT_FOUND,
                      "%p is memory of another instance of this process; free it there", pointer);
  }
  return make_error(GPUMEM_ERROR_NOT_FOUND,
                    "no pool of this instance has a live block at %p; it may be freed already", pointer);
}

void end_left_pools(Context& context, bool wait) noexcept {
  try {
    for (const auto& core : Pools::of(context).all()) {
      if (!core->left()) continue;
      const auto released = release_quietly(*core, wait);
      if (released && *released) Pools::of(context).remove(*core);
    }
  } catch (const std::bad_alloc&) {
    // The next call sees to them.
  }
}

bool find_pool_block(Context& context, const void* pointer, gpumem_pool_block_info* out) {
  const auto pools = Pools::of(context).all();
  return std::any_of(pools.begin(), pools.end(),
                     [&](const auto& core) { return core->block_info(pointer, out); });
}

}  // namespace gpumem::core
