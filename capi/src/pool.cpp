// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/pool.h"

#include <cinttypes>
#include <list>
#include <utility>

#include "call.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/pool/pool.h"
#include "core/stream/stream.h"
#include "decode/vmm.h"

using namespace gpumem;

namespace {

constexpr uint64_t kAlignmentMax = uint64_t{1} << 40;

// Whether a class has blocks of this alignment, so that a thread may keep them: those of the size rounded up
// to it.
constexpr bool has_class(uint64_t alignment) {
  return alignment <= core::PoolClasses::kPage && (alignment & (alignment - 1)) == 0;
}
// 0 where that does not fit, which no cache has.
constexpr uint64_t rounded(uint64_t size, uint64_t alignment) {
  return alignment > 1 ? round_up(size, alignment) : size;
}

// A block of any size, for `stream`; 0 bytes are NULL.
Result<void*> allocate(core::PoolCore& core, const core::PoolStream& stream, uint64_t size,
                       uint64_t alignment, gpumem_pool_attempt* attempt = nullptr) {
  if (size == 0) return nullptr;  // of a batch
  platform::ThreadRecord& record = platform::thread_record();
  if (has_class(alignment) && stream.capture.id == 0 && record.attachment != nullptr) {
    const platform::Look look(record);
    const uint64_t bytes = rounded(size, alignment);
    void* const block = core::PoolClasses::is_small(bytes) ? core.take_small(record, stream.key, bytes)
                                                           : core.take_large(record, stream.key, bytes);
    if (block != nullptr) return block;
  }
  return core.allocate(stream, size, alignment, attempt);
}

Result<void> free_block(core::PoolCore& core, const core::PoolStream& stream, void* pointer, uint64_t size) {
  if (pointer == nullptr) return {};  // of a batch
  platform::ThreadRecord& record = platform::thread_record();
  if (stream.capture.id == 0 && !record.takes_long_way()) {  // a callback may take a kept block, but put none
    const platform::Look look(record);
    if (core.put_small(record, stream.key, pointer) || core.put_large(record, stream.key, pointer)) return {};
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
    if (order.pool && order.stream && &order.pool->context() != &order.stream->context())
      decode.refuse("the stream belongs to another instance than the pool");
  }
  return order;
}

Order decode_allocation(capi::Decoder& decode, gpumem_pool pool, uint64_t size, uint64_t alignment,
                        gpumem_stream stream, void** out_pointer) {
  Order order = decode_order(decode, pool, stream);
  decode.not_null(out_pointer, "out_pointer");
  decode.size_or_zero(size, "size");
  if (alignment != 0 && (!is_power_of_two(alignment) || alignment > kAlignmentMax))
    decode.refuse("the alignment of %" PRIu64 " is no power of two up to 2^40", alignment);
  return order;
}

// Out of line, like free_for(), because its frame would slow down the fast paths.
[[gnu::noinline]] gpumem_status allocate_for(const char* function, gpumem_pool pool, uint64_t size,
                                             uint64_t alignment, gpumem_stream stream, void** out_pointer,
                                             gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Order order = decode_allocation(decode, pool, size, alignment, stream, out_pointer);
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
    decode.size_or_zero(size, "size");
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::outside_host_function());
    GPUMEM_TRY(free_block(order.pool->core(), order.of_free(), pointer, size));
    return GPUMEM_SUCCESS;
  });
}

constexpr uint64_t kNoKey = core::PoolCore::kNoKey;

// ---- the short ways, for blocks that the calling thread keeps ----
// Fully inlined, because each instruction counts. The commonest calls have one that calls nothing and so
// needs no frame: of small blocks, without a stream or in one.

// The key of a call's stream, inside look(). kNoKey if it is of another instance, if its device is lost, or
// if only the driver knows whether it is being captured: no driver call is allowed during a look.
struct InStream {
  gpumem_stream stream;
  [[gnu::always_inline]] uint64_t key(const core::Pool& pool, uint32_t process) const {
    const auto* const object = capi::peek<core::Stream>(stream, process);
    if (object == nullptr || &object->context() != &pool.context() || object->backend().may_be_captured() ||
        object->device().backend().lost())
      return kNoKey;
    return object->order_key();
  }
};
struct WithoutStream {
  uint64_t key(const core::Pool& /*pool*/, uint32_t /*process*/) const { return core::PoolStream::kNone; }
};
struct InStreamIfAny {
  gpumem_stream stream;
  [[gnu::always_inline]] uint64_t key(const core::Pool& pool, uint32_t process) const {
    return stream == nullptr ? core::PoolStream::kNone : InStream{stream}.key(pool, process);
  }
};
// kNoKey unless the pool trusts the handle.
struct InNativeStream {
  void* stream;
  uint64_t key(const core::Pool& pool, uint32_t /*process*/) const {
    return pool.core().key_of_native(stream);
  }
};
// Of a free, which fails on a lost device.
struct InUsableNativeStream {
  void* stream;
  uint64_t key(const core::Pool& pool, uint32_t /*process*/) const {
    return pool.core().lost() ? kNoKey : pool.core().key_of_native(stream);
  }
};

enum class Blocks { kSmall, kLarge, kAll };

template <Blocks kBlocks, class Stream>
[[gnu::always_inline]] inline bool take_briefly(gpumem_pool pool, uint64_t size, Stream stream,
                                                void** out_pointer, gpumem_error* error) {
  return out_pointer != nullptr &&
         capi::look_to_change(
             error, [&](const platform::ThreadRecord& record, uint32_t process)
                        __attribute__((always_inline)) {
                          const auto* const object = capi::peek<core::Pool>(pool, process);
                          if (object == nullptr) return false;
                          const core::PoolCore& core = object->core();
                          if (core.lost()) return false;
                          const uint64_t key = stream.key(*object, process);
                          if (key == kNoKey) return false;
                          const bool small = kBlocks == Blocks::kAll ? core::PoolClasses::is_small(size)
                                                                     : kBlocks == Blocks::kSmall;
                          void* const block =
                              small ? core.take_small(record, key, size) : core.take_large(record, key, size);
                          if (block == nullptr) return false;
                          *out_pointer = block;
                          return true;
                        });
}

template <Blocks kBlocks, class Stream>
[[gnu::always_inline]] inline bool put_briefly(gpumem_pool pool, void* pointer, Stream stream,
                                               gpumem_error* error) {
  return capi::look_to_change(
      error, [&](const platform::ThreadRecord& record, uint32_t process) __attribute__((always_inline)) {
        const auto* const object = capi::peek<core::Pool>(pool, process);
        if (object == nullptr) return false;
        const core::PoolCore& core = object->core();
        const uint64_t key = stream.key(*object, process);
        if (key == kNoKey) return false;
        return (kBlocks != Blocks::kLarge && core.put_small(record, key, pointer)) ||
               (kBlocks != Blocks::kSmall && core.put_large(record, key, pointer));
      });
}

// For all blocks and streams.
[[gnu::noinline]] bool take_any(gpumem_pool pool, uint64_t size, gpumem_stream stream, void** out_pointer,
                                gpumem_error* error) {
  return take_briefly<Blocks::kAll>(pool, size, InStreamIfAny{stream}, out_pointer, error);
}
[[gnu::noinline]] bool put_any(gpumem_pool pool, void* pointer, gpumem_stream stream, gpumem_error* error) {
  return put_briefly<Blocks::kAll>(pool, pointer, InStreamIfAny{stream}, error);
}

constexpr const char* kAlloc = "gpumem_pool_alloc";
constexpr const char* kFree = "gpumem_pool_free";

[[gnu::noinline]] gpumem_status allocate_large(gpumem_pool pool, uint64_t size, gpumem_stream stream,
                                               void** out_pointer, gpumem_error* error) {
  if (take_briefly<Blocks::kLarge>(pool, size, InStreamIfAny{stream}, out_pointer, error))
    return GPUMEM_SUCCESS;
  return allocate_for(kAlloc, pool, size, 0, stream, out_pointer, error);
}

[[gnu::noinline]] gpumem_status allocate_in_stream(gpumem_pool pool, uint64_t size, gpumem_stream stream,
                                                   void** out_pointer, gpumem_error* error) {
  if (take_briefly<Blocks::kSmall>(pool, size, InStream{stream}, out_pointer, error)) [[likely]]
    return GPUMEM_SUCCESS;
  return allocate_for(kAlloc, pool, size, 0, stream, out_pointer, error);
}

[[gnu::noinline]] gpumem_status free_large(gpumem_pool pool, void* pointer, gpumem_stream stream,
                                           gpumem_error* error) {
  if (put_briefly<Blocks::kLarge>(pool, pointer, InStreamIfAny{stream}, error)) return GPUMEM_SUCCESS;
  return free_for(kFree, pool, pointer, 0, stream, error);
}

[[gnu::noinline]] gpumem_status free_in_stream(gpumem_pool pool, void* pointer, gpumem_stream stream,
                                               gpumem_error* error) {
  if (put_briefly<Blocks::kSmall>(pool, pointer, InStream{stream}, error)) [[likely]]
    return GPUMEM_SUCCESS;
  return free_large(pool, pointer, stream, error);
}

}  // namespace

gpumem_status gpumem_pool_alloc(gpumem_pool pool, uint64_t size, gpumem_stream stream, void** out_pointer,
                                gpumem_error* error) {
  if (!core::PoolClasses::is_small(size)) return allocate_large(pool, size, stream, out_pointer, error);
  if (stream != nullptr) return allocate_in_stream(pool, size, stream, out_pointer, error);
  if (take_briefly<Blocks::kSmall>(pool, size, WithoutStream{}, out_pointer, error)) [[likely]]
    return GPUMEM_SUCCESS;
  return allocate_for(kAlloc, pool, size, 0, nullptr, out_pointer, error);
}

gpumem_status gpumem_pool_alloc_aligned(gpumem_pool pool, uint64_t size, uint64_t alignment,
                                        gpumem_stream stream, void** out_pointer, gpumem_error* error) {
  if (has_class(alignment) && take_any(pool, rounded(size, alignment), stream, out_pointer, error))
    return GPUMEM_SUCCESS;
  return allocate_for(__func__, pool, size, alignment, stream, out_pointer, error);
}

gpumem_status gpumem_pool_try_alloc(gpumem_pool pool, uint64_t size, uint64_t alignment, gpumem_stream stream,
                                    void** out_pointer, gpumem_pool_attempt* out_attempt,
                                    gpumem_error* error) {
  if (has_class(alignment) && out_attempt == nullptr &&
      take_any(pool, rounded(size, alignment), stream, out_pointer, error))
    return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Order order = decode_allocation(decode, pool, size, alignment, stream, out_pointer);
    if (out_attempt != nullptr) decode.output(out_attempt, "out_attempt");
    GPUMEM_TRY(decode.done());
    gpumem_pool_attempt attempt = GPUMEM_POOL_ATTEMPT_INIT;
    attempt.answer = GPUMEM_POOL_ANSWER_ALLOCATED;
    Result<void*> block = nullptr;
    if (size != 0) {
      const auto in_order = order.usable();
      if (!in_order) return in_order.error();
      block = allocate(order.pool->core(), *in_order, size, alignment, &attempt);
    }
    if (!block && block.error().status != GPUMEM_NOT_READY) return block.error();
    if (block) *out_pointer = *block;
    if (out_attempt != nullptr) capi::answer(out_attempt, attempt);
    return block ? GPUMEM_SUCCESS : GPUMEM_NOT_READY;
  });
}

gpumem_status gpumem_pool_free(gpumem_pool pool, void* pointer, gpumem_stream stream, gpumem_error* error) {
  if (stream != nullptr) return free_in_stream(pool, pointer, stream, error);
  if (put_briefly<Blocks::kSmall>(pool, pointer, WithoutStream{}, error)) [[likely]]
    return GPUMEM_SUCCESS;
  return free_large(pool, pointer, nullptr, error);
}

gpumem_status gpumem_pool_free_sized(gpumem_pool pool, void* pointer, uint64_t size, gpumem_stream stream,
                                     gpumem_error* error) {
  if (size <= kSizeMax && put_any(pool, pointer, stream, error)) return GPUMEM_SUCCESS;
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
      decode.size_or_zero(sizes[i], "size");
    }
    GPUMEM_TRY(decode.done());
    if (count == 0) return GPUMEM_SUCCESS;
    const auto in_order = order.usable();
    if (!in_order) return in_order.error();
    core::PoolCore& core = order.pool->core();
    std::list<core::PoolCore::GivenBack> taken(1);
    std::vector<void*>& blocks = taken.front().blocks;
    blocks.reserve(count);
    Cleanup undo([&] { core.give_back(*in_order, taken); });
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
  if (take_briefly<Blocks::kAll>(pool, size, InNativeStream{native_stream}, out_pointer, error))
    return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.not_null(out_pointer, "out_pointer");
    decode.size_or_zero(size, "size");
    GPUMEM_TRY(decode.done());
    if (size == 0) {
      *out_pointer = nullptr;
      return GPUMEM_SUCCESS;
    }
    GPUMEM_TRY(object->core().device().usable());
    GPUMEM_TRY(core::outside_host_function());
    auto stream = core::native_pool_stream(object->core(), native_stream, false);
    if (!stream) return stream.error();
    auto block = allocate(object->core(), *stream, size, 0);
    if (!block) return block.error();
    *out_pointer = *block;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_free_native(gpumem_pool pool, void* pointer, void* native_stream,
                                      gpumem_error* error) {
  if (put_briefly<Blocks::kAll>(pool, pointer, InUsableNativeStream{native_stream}, error))
    return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(object->core().device().usable());
    GPUMEM_TRY(core::outside_host_function());
    auto stream = core::native_pool_stream(object->core(), native_stream, true);
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
      if (object && in_stream && &object->context() != &in_stream->context())
        decode.refuse("the stream belongs to another instance");
    }
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::outside_host_function());
    if (in_stream) order = core::captured_pool_stream(*in_stream);
    GPUMEM_TRY(core::free_pool_block(object->context(), order, pointer));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_pool_record_use(gpumem_pool pool, void* pointer, gpumem_stream stream,
                                     gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Pool>(pool);
    decode.not_null(pointer, "pointer");
    const auto in_stream = decode.object<core::Stream>(stream);
    if (object && in_stream && &object->context() != &in_stream->context())
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
