// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools as a whole: making, ending, limits and information. The calls for single blocks, which are built for
// speed, are in pool.cpp.
#include <cinttypes>
#include <utility>

#include "call.h"
#include "core/memory/kind.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/pool/pool.h"
#include "decode/vmm.h"
#include "gpumem/pool.h"

using namespace gpumem;

namespace {

core::PoolRequest decode_request(capi::Decoder& decode, const core::DeviceObject* device,
                                 const gpumem_pool_desc& desc) {
  core::PoolRequest request;
  const gpumem_kind wanted = desc.kind == 0 ? core::kinds::device.kind : desc.kind;
  request.memory.name = decode.name(desc.name);
  const core::KindTraits* const kind = core::find_kind(wanted);
  const bool served = kind != nullptr && (kind->allocated() || kind == &core::kinds::pageable);
  if (!served) {
    decode.not_a_value("the kind", "GPUMEM_KIND_", desc.kind,
                       "GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED or GPUMEM_KIND_PAGEABLE");
  } else {
    request.memory.kind = kind;
    if ((desc.memory_flags & ~kind->flags) != 0) {
      decode.refuse("the flags 0x%" PRIx64 " do not belong to %s memory", desc.memory_flags & ~kind->flags,
                    kind->name);
    }
  }
  decode.flags(desc.flags,
               GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES | GPUMEM_POOL_DEBUG |
                   GPUMEM_POOL_TRUST_NATIVE_STREAMS | GPUMEM_POOL_FROM_DRIVER,
               "GPUMEM_POOL_");
  request.memory.from_driver = (desc.flags & GPUMEM_POOL_FROM_DRIVER) != 0;
  const bool from_driver_too = wanted == core::kinds::device.kind || wanted == core::kinds::pinned.kind;
  if (request.memory.from_driver &&
      (!from_driver_too || (desc.memory_flags & ~GPUMEM_MEMORY_NUMA_NODE) != 0)) {
    decode.refuse(
        "GPUMEM_POOL_FROM_DRIVER belongs to a pool of device or pinned memory without memory flags but "
        "GPUMEM_MEMORY_NUMA_NODE");
  }
  request.memory.flags = desc.memory_flags;
  request.memory.numa_node = desc.numa_node;
  if ((desc.memory_flags & GPUMEM_MEMORY_NUMA_NODE) == 0 && desc.numa_node != 0)
    decode.refuse("numa_node is %d, but the flags have no GPUMEM_MEMORY_NUMA_NODE", desc.numa_node);
  request.flags = desc.flags;
  request.limit = desc.limit;
  request.release_threshold = desc.release_threshold;
  request.low_water = desc.low_water;
  request.initial_size = desc.initial_size;
  request.segment_size = desc.segment_size;
  decode.size_or_zero(desc.limit, "limit");
  decode.size_or_zero(desc.release_threshold, "release threshold");
  decode.size_or_zero(desc.initial_size, "initial size");
  decode.size_or_zero(desc.segment_size, "segment size");
  if (desc.limit != 0 && desc.initial_size > desc.limit) {
    decode.refuse("initial_size is %" PRIu64 ", which is above the limit of %" PRIu64, desc.initial_size,
                  desc.limit);
  }
  if (desc.low_water > desc.release_threshold) {
    decode.refuse("low_water is %" PRIu64 ", which is above the release threshold of %" PRIu64,
                  desc.low_water, desc.release_threshold);
  }
  request.memory.handle_types = desc.handle_types;
  if ((desc.handle_types & ~GPUMEM_HANDLE_TYPE_POSIX_FD) != 0) {
    decode.refuse("a pool has no handle types but GPUMEM_HANDLE_TYPE_POSIX_FD, not 0x%" PRIx64,
                  desc.handle_types);
  } else if (desc.handle_types != 0 && served && !kind->on_device) {
    decode.refuse("handle types belong to a pool of device memory only");
  }
  if (desc.accesses != nullptr || desc.access_count != 0) {
    if (served && !kind->on_device) decode.refuse("accesses belong to a pool of device memory only");
    request.memory.accesses = capi::decode_accesses(decode, device != nullptr ? &device->context() : nullptr,
                                                    desc.accesses, desc.access_count);
  }
  return request;
}

}  // namespace

gpumem_status gpumem_pool_create(gpumem_device device, const gpumem_pool_desc* desc, gpumem_pool* out_pool,
                                 gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_pool, "out_pool");
    const gpumem_pool_desc given = decode.optional_input(desc, "desc");
    core::PoolRequest request = decode_request(decode, object.get(), given);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_pool(*object, std::move(request));
    if (!handle) return handle.error();
    *out_pool = capi::make_handle<gpumem_pool>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_destroy(gpumem_pool pool, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (pool == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Pool>(pool);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_pool(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_trim(gpumem_pool pool, uint64_t keep_bytes, uint64_t* out_released,
                               gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    auto released = object->core().trim(keep_bytes);
    if (!released) return released.error();
    if (out_released != nullptr) *out_released = *released;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_capacity_for(gpumem_pool pool, const uint64_t* sizes, uint64_t count,
                                       uint64_t* out_bytes, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    if (count != 0) capi::decode_array(decode, sizes, count, sizeof *sizes, "sizes");
    decode.not_null(out_bytes, "out_bytes");
    GPUMEM_TRY(decode.done());
    for (uint64_t i = 0; i < count; ++i) {
      const auto entry = decode.inside("sizes", i);
      decode.size_or_zero(sizes[i], "size");
    }
    GPUMEM_TRY(decode.done());
    auto bytes = object->core().capacity_for({sizes, count});
    if (!bytes) return bytes.error();
    *out_bytes = *bytes;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_set_limit(gpumem_pool pool, uint64_t bytes, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.size_or_zero(bytes, "limit");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    object->core().set_limit(bytes);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_set_release_threshold(gpumem_pool pool, uint64_t bytes, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.size_or_zero(bytes, "release threshold");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    object->core().set_release_threshold(bytes);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_get_info(gpumem_pool pool, gpumem_pool_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->core().info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_get_class_info(gpumem_pool pool, uint32_t index, gpumem_pool_class_info* out_info,
                                         gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    auto info = object->core().class_info(index);
    if (!info) return info.error();
    capi::answer(out_info, *info);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_reset_peaks(gpumem_pool pool, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    GPUMEM_TRY(decode.done());
    object->core().reset_peaks();
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_get_block_info(gpumem_instance instance, const void* pointer,
                                         gpumem_pool_block_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
    if (!core::find_pool_block(object->context(), pointer, &info)) {
      return make_error(GPUMEM_ERROR_NOT_FOUND, "no pool of this instance has a live block at %p", pointer);
    }
    capi::answer(out_info, info);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_set_callback(gpumem_pool pool, gpumem_pool_callback callback, void* user_data,
                                       gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    GPUMEM_TRY(object->core().set_callback(callback, user_data));
    return GPUMEM_SUCCESS;
  });
}
