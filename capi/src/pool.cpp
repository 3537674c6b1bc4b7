// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/pool.h"

#include <cinttypes>
#include <utility>

#include "call.h"
#include "core/instance.h"
#include "core/kind.h"
#include "core/pool.h"
#include "core/stream.h"
#include "decode_vmm.h"

using namespace gpumem;

namespace {

constexpr uint64_t kAlignmentMax = uint64_t{1} << 40;

void decode_limit(capi::Decoder& decode, uint64_t bytes, const char* what) {
  if (bytes > kSizeMax) {
    decode.refuse("the %s of %" PRIu64 " bytes exceeds 2^63-1", what, bytes);
  }
}

core::PoolRequest decode_request(capi::Decoder& decode, const core::DeviceObject* device,
                                 const gpumem_pool_desc& desc) {
  core::PoolRequest request;
  const gpumem_kind wanted = desc.kind == 0 ? core::kinds::device.kind : desc.kind;
  request.memory.name = decode.name(desc.name);
  const core::KindTraits* const kind = core::find_kind(wanted);
  const bool served = kind != nullptr && (kind->allocated() || kind == &core::kinds::pageable);
  if (!served) {
    decode.refuse("a pool of kind %d cannot be made; use DEVICE, PINNED, MANAGED or PAGEABLE", desc.kind);
  } else {
    request.memory.kind = kind;
    if ((desc.memory_flags & ~kind->flags) != 0) {
      decode.refuse("the flags 0x%" PRIx64 " do not belong to %s memory", desc.memory_flags & ~kind->flags,
                    kind->name);
    }
  }
  constexpr gpumem_pool_flags kKnown = GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES | GPUMEM_POOL_DEBUG;
  if ((desc.flags & ~kKnown) != 0)
    decode.refuse("the flags 0x%" PRIx64 " are no GPUMEM_POOL_ values", desc.flags & ~kKnown);
  request.memory.flags = desc.memory_flags;
  request.memory.numa_node = desc.numa_node;
  if ((desc.memory_flags & GPUMEM_MEMORY_NUMA_NODE) == 0 && desc.numa_node != 0)
    decode.refuse("numa_node is %d, but the flags have no GPUMEM_MEMORY_NUMA_NODE", desc.numa_node);
  request.flags = desc.flags;
  request.limit = desc.limit;
  request.release_threshold = desc.release_threshold;
  request.initial_size = desc.initial_size;
  request.segment_size = desc.segment_size;
  decode_limit(decode, desc.limit, "limit");
  decode_limit(decode, desc.release_threshold, "release threshold");
  decode_limit(decode, desc.initial_size, "initial size");
  decode_limit(decode, desc.segment_size, "segment size");
  if (desc.limit != 0 && desc.initial_size > desc.limit) {
    decode.refuse("initial_size is %" PRIu64 ", which is above the limit of %" PRIu64, desc.initial_size,
                  desc.limit);
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
    request.memory.accesses = capi::decode_accesses(decode, device != nullptr ? &device->instance() : nullptr,
                                                    desc.accesses, desc.access_count);
  }
  return request;
}

// A block of any size, for `stream`; 0 bytes are NULL.
Result<void*> allocate(core::PoolCore& core, const core::PoolStream& stream, uint64_t size,
                       uint64_t alignment) {
  if (size == 0) return nullptr;  // of a batch
  if (alignment == 0 && stream.capture.id == 0) {
    const platform::Look look(platform::thread_record());
    if (void* const block = core.take(platform::thread_record(), stream.key, size)) return block;
  }
  return core.allocate(stream, size, alignment);
}

Result<void> free_block(core::PoolCore& core, const core::PoolStream& stream, void* pointer, uint64_t size) {
  if (pointer == nullptr) return {};  // of a batch
  if (stream.capture.id == 0) {
    const platform::Look look(platform::thread_record());
    if (core.put(platform::thread_record(), stream.key, pointer)) return {};
  }
  return core.free(stream, pointer, size);
}

// The pool and the stream of a call.
struct Order {
  core::Ref<core::Pool> pool;
  core::Ref<core::Stream> stream;  // may be empty
  // Of an allocation, which needs a usable stream.
  Result<core::PoolStream> usable() const {
    GPUMEM_TRY(pool->core().device().usable());
    GPUMEM_TRY(core::outside_host_function());
    core::PoolStream order;
    if (stream) {
      const auto capture = stream->capture();
      if (!capture) return capture.error();
      order = core::pool_stream(*stream);
      order.capture = *capture;
    }
    return order;
  }
  // Of a free, which does not.
  core::PoolStream of_free() const {
    return stream ? core::captured_pool_stream(*stream) : core::PoolStream{};
  }
};

Order decode_order(capi::Decoder& decode, gpumem_pool pool, gpumem_stream stream) {
  Order order;
  order.pool = decode.object<core::Pool>(pool);
  if (stream != nullptr) {
    order.stream = decode.object<core::Stream>(stream);
    if (order.pool && order.stream && &order.pool->instance() != &order.stream->instance())
      decode.refuse("the stream belongs to another instance than the pool");
  }
  return order;
}

// Out of line, as free_for() is: its frame would slow down the short ways.
[[gnu::noinline]] gpumem_status allocate_for(const char* function, gpumem_pool pool, uint64_t size,
                                             uint64_t alignment, gpumem_stream stream, void** out_pointer,
                                             gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Order order = decode_order(decode, pool, stream);
    decode.not_null(out_pointer, "out_pointer");
    decode_limit(decode, size, "size");
    if (alignment != 0 && (!is_power_of_two(alignment) || alignment > kAlignmentMax))
      decode.refuse("the alignment of %" PRIu64 " is no power of two up to 2^40", alignment);
    GPUMEM_TRY(decode.done());
    if (size == 0) {
      *out_pointer = nullptr;
      return GPUMEM_SUCCESS;
    }
    const auto in_order = order.usable();
    if (!in_order) return in_order.error();
    auto block = allocate(order.pool->core(), *in_order, size, alignment);
    if (!block) return block.error();
    *out_pointer = *block;
    return GPUMEM_SUCCESS;
  });
}

[[gnu::noinline]] gpumem_status free_for(const char* function, gpumem_pool pool, void* pointer, uint64_t size,
                                         gpumem_stream stream, gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Order order = decode_order(decode, pool, stream);
    decode_limit(decode, size, "size");
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::outside_host_function());
    GPUMEM_TRY(free_block(order.pool->core(), order.of_free(), pointer, size));
    return GPUMEM_SUCCESS;
  });
}

constexpr uint64_t kNoKey = UINT64_MAX;

// The key of a stream, inside look(). kNoKey if the stream is not one of the pool's instance, if it must be
// asked whether it is being captured, since no driver may be asked during a look, or if its device is lost.
[[gnu::noinline]] uint64_t peek_key(gpumem_stream stream, const core::Pool& pool, uint32_t process) {
  const auto* const object = capi::peek<core::Stream>(stream, process);
  if (object == nullptr || &object->instance() != &pool.instance() || object->backend().may_be_captured() ||
      object->device().backend().lost())
    return kNoKey;
  return object->order_key();
}

// The short ways, for what the calling thread keeps. Inlined whole: their time is the number of instructions.
[[gnu::always_inline]] inline bool take_briefly(gpumem_pool pool, uint64_t size, gpumem_stream stream,
                                                void** out_pointer, gpumem_error* error) {
  return out_pointer != nullptr && !backend::HostFunctionMark::is_set() &&
         capi::look(
             error, [&](uint32_t process) __attribute__((always_inline)) {
               const auto* const object = capi::peek<core::Pool>(pool, process);
               if (object == nullptr || object->core().device().backend().lost()) return false;
               uint64_t key = core::PoolStream::kNone;
               if (stream != nullptr && (key = peek_key(stream, *object, process)) == kNoKey) return false;
               void* const block = object->core().take(*platform::thread_record_or_null, key, size);
               if (block == nullptr) return false;
               *out_pointer = block;
               return true;
             });
}

[[gnu::always_inline]] inline bool put_briefly(gpumem_pool pool, void* pointer, gpumem_stream stream,
                                               gpumem_error* error) {
  return !backend::HostFunctionMark::is_set() &&
         capi::look(
             error, [&](uint32_t process) __attribute__((always_inline)) {
               const auto* const object = capi::peek<core::Pool>(pool, process);
               uint64_t key = core::PoolStream::kNone;
               if (object == nullptr ||
                   (stream != nullptr && (key = peek_key(stream, *object, process)) == kNoKey))
                 return false;
               return object->core().put(*platform::thread_record_or_null, key, pointer);
             });
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

gpumem_status gpumem_pool_alloc(gpumem_pool pool, uint64_t size, gpumem_stream stream, void** out_pointer,
                                gpumem_error* error) {
  if (take_briefly(pool, size, stream, out_pointer, error)) [[likely]]
    return GPUMEM_SUCCESS;
  return allocate_for(__func__, pool, size, 0, stream, out_pointer, error);
}

gpumem_status gpumem_pool_alloc_aligned(gpumem_pool pool, uint64_t size, uint64_t alignment,
                                        gpumem_stream stream, void** out_pointer, gpumem_error* error) {
  return allocate_for(__func__, pool, size, alignment, stream, out_pointer, error);
}

gpumem_status gpumem_pool_free(gpumem_pool pool, void* pointer, gpumem_stream stream, gpumem_error* error) {
  if (put_briefly(pool, pointer, stream, error)) [[likely]]
    return GPUMEM_SUCCESS;
  return free_for(__func__, pool, pointer, 0, stream, error);
}

gpumem_status gpumem_pool_free_sized(gpumem_pool pool, void* pointer, uint64_t size, gpumem_stream stream,
                                     gpumem_error* error) {
  if (size <= kSizeMax && put_briefly(pool, pointer, stream, error)) [[likely]]
    return GPUMEM_SUCCESS;
  return free_for(__func__, pool, pointer, size, stream, error);
}

gpumem_status gpumem_pool_alloc_batch(gpumem_pool pool, const uint64_t* sizes, uint64_t count,
                                      gpumem_stream stream, void** out_pointers, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Order order = decode_order(decode, pool, stream);
    if (count != 0) {
      capi::decode_array(decode, sizes, count, sizeof *sizes, "sizes");
      capi::decode_array(decode, out_pointers, count, sizeof *out_pointers, "out_pointers");
    }
    GPUMEM_TRY(decode.done());
    for (uint64_t i = 0; i < count; ++i) {
      const auto entry = decode.inside("sizes", i);
      decode_limit(decode, sizes[i], "size");
    }
    GPUMEM_TRY(decode.done());
    if (count == 0) return GPUMEM_SUCCESS;
    const auto in_order = order.usable();
    if (!in_order) return in_order.error();
    core::PoolCore& core = order.pool->core();
    std::vector<void*> blocks;
    blocks.reserve(count);
    Cleanup undo([&] {
      for (void* const block : blocks)
        (void)free_block(core, *in_order, block, 0);
    });
    for (uint64_t i = 0; i < count; ++i) {
      auto block = allocate(core, *in_order, sizes[i], 0);
      if (!block) {
        const char* const freed = i != 0 ? "; the blocks before it are freed again" : "";
        return reworded(block.error(), "sizes[%" PRIu64 "]: %s%s", i, block.error().message, freed);
      }
      blocks.push_back(*block);
    }
    undo.dismiss();
    std::copy(blocks.begin(), blocks.end(), out_pointers);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_free_batch(gpumem_pool pool, void* const* pointers, uint64_t count,
                                     gpumem_stream stream, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Order order = decode_order(decode, pool, stream);
    if (count != 0) capi::decode_array(decode, pointers, count, sizeof *pointers, "pointers");
    GPUMEM_TRY(decode.done());
    if (count == 0) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::outside_host_function());
    const core::PoolStream in_order = order.of_free();
    for (uint64_t i = 0; i < count; ++i) {
      auto freed = free_block(order.pool->core(), in_order, pointers[i], 0);
      if (!freed) return reworded(freed.error(), "pointers[%" PRIu64 "]: %s", i, freed.error().message);
    }
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_alloc_native(gpumem_pool pool, uint64_t size, void* native_stream,
                                       void** out_pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.not_null(out_pointer, "out_pointer");
    decode_limit(decode, size, "size");
    GPUMEM_TRY(decode.done());
    if (size == 0) {
      *out_pointer = nullptr;
      return GPUMEM_SUCCESS;
    }
    GPUMEM_TRY(object->core().device().usable());
    GPUMEM_TRY(core::outside_host_function());
    auto stream = core::native_pool_stream(object->core().device(), native_stream, false);
    if (!stream) return stream.error();
    auto block = allocate(object->core(), *stream, size, 0);
    if (!block) return block.error();
    *out_pointer = *block;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_free_native(gpumem_pool pool, void* pointer, void* native_stream,
                                      gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(object->core().device().usable());
    GPUMEM_TRY(core::outside_host_function());
    auto stream = core::native_pool_stream(object->core().device(), native_stream, true);
    if (!stream) return stream.error();
    GPUMEM_TRY(free_block(object->core(), *stream, pointer, 0));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_free_pointer(gpumem_instance instance, void* pointer, gpumem_stream stream,
                                       gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    core::PoolStream order;
    core::Ref<core::Stream> in_stream;
    if (stream != nullptr) {
      in_stream = decode.object<core::Stream>(stream);
      if (object && in_stream && &object->instance() != &in_stream->instance())
        decode.refuse("the stream belongs to another instance");
    }
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::outside_host_function());
    if (in_stream) order = core::captured_pool_stream(*in_stream);
    GPUMEM_TRY(core::free_pool_block(object->instance(), order, pointer));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_record_use(gpumem_pool pool, void* pointer, gpumem_stream stream,
                                     gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.not_null(pointer, "pointer");
    const auto in_stream = decode.object<core::Stream>(stream);
    if (object && in_stream && &object->instance() != &in_stream->instance())
      decode.refuse("the stream belongs to another instance than the pool");
    GPUMEM_TRY(decode.done());
    const auto capture = in_stream->capture();
    if (!capture) return capture.error();
    core::PoolStream order = core::pool_stream(*in_stream);
    order.capture = *capture;
    GPUMEM_TRY(object->core().record_use(order, pointer));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_release_capture(gpumem_pool pool, uint64_t capture_id, gpumem_stream stream,
                                          gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Order order = decode_order(decode, pool, stream);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    core::PoolStream in_order;
    if (order.stream) {
      GPUMEM_TRY(order.stream->usable());
      in_order = core::pool_stream(*order.stream);
    }
    GPUMEM_TRY(order.pool->core().release_capture(in_order, capture_id));
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

gpumem_status gpumem_pool_set_limit(gpumem_pool pool, uint64_t bytes, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode_limit(decode, bytes, "limit");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    object->core().set_limit(bytes);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_set_release_threshold(gpumem_pool pool, uint64_t bytes, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode_limit(decode, bytes, "release threshold");
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
    if (!core::find_pool_block(object->instance(), pointer, &info)) {
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
