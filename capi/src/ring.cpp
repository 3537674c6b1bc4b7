// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/ring.h"

#include <utility>

#include "call.h"
#include "core/object/context.h"
#include "core/share/ring/ring.h"
#include "core/stream/stream.h"
#include "decode/share.h"

using namespace gpumem;

namespace {

constexpr uint32_t kDefaultCount = 4;

core::RingRequest decode_request(capi::Decoder& decode, const gpumem_ring_desc& desc) {
  core::RingRequest request;
  request.name = decode.name(desc.name);
  core::RingShape& shape = request.shape;
  shape.slot_size = desc.slot_size;
  shape.slot_count = desc.slot_count != 0 ? desc.slot_count : kDefaultCount;
  shape.place_count = desc.consumers_max != 0 ? desc.consumers_max : kDefaultCount;
  request.consumers_first = desc.consumers_first;
  decode.size(desc.slot_size, "size of a slot");
  if (shape.slot_count > core::RingShape::kSlotsMax)
    decode.refuse("slot_count is %u, and a ring has at most %u", shape.slot_count,
                  core::RingShape::kSlotsMax);
  if (shape.place_count > core::RingShape::kPlacesMax) {
    decode.refuse("consumers_max is %u, and a ring has at most %u", shape.place_count,
                  core::RingShape::kPlacesMax);
  }
  if (request.consumers_first > shape.place_count) {
    decode.refuse("consumers_first is %u, and consumers_max %u", request.consumers_first, shape.place_count);
  }
  if (desc.reserved != 0) decode.refuse("desc->reserved is %u; set it to 0", desc.reserved);
  if (desc.slot_size <= kSizeMax && desc.slot_size != 0 && !shape.is_valid())
    decode.refuse("the slots together exceed 2^63-1 bytes");
  return request;
}

// NULL is the calling thread.
core::Ref<core::Stream> decode_stream(capi::Decoder& decode, gpumem_stream stream) {
  return stream == nullptr ? core::Ref<core::Stream>() : decode.object<core::Stream>(stream);
}

gpumem_ring_slot slot_of(const core::RingSlot& slot) {
  gpumem_ring_slot answer = GPUMEM_RING_SLOT_INIT;
  answer.pointer = slot.pointer;
  answer.size = slot.size;
  answer.number = slot.number;
  answer.tag = slot.tag;
  answer.index = slot.index;
  return answer;
}

// The next slot, by acquire() of the producer or wait() of a consumer.
template <class Method>
gpumem_status next_slot(const char* function, Method method, gpumem_ring ring, gpumem_stream stream,
                        uint64_t timeout_ns, gpumem_ring_slot* out_slot, gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Ring>(ring);
    const auto order = decode_stream(decode, stream);
    decode.output(out_slot, "out_slot");
    GPUMEM_TRY(decode.done());
    core::RingSlot slot;
    auto found = ((*object).*method)(order.get(), timeout_ns, &slot);
    if (found && *found == GPUMEM_SUCCESS) capi::answer(out_slot, slot_of(slot));
    return found;
  });
}

}  // namespace

gpumem_status gpumem_ring_create(gpumem_device device, const gpumem_ring_desc* desc, gpumem_ring* out_ring,
                                 gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_ring, "out_ring");
    core::RingRequest request = decode_request(decode, decode.input(desc, "desc"));
    GPUMEM_TRY(decode.done());
    auto handle = core::create_ring(*object, std::move(request));
    if (!handle) return handle.error();
    *out_ring = capi::make_handle<gpumem_ring>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_ring_export(gpumem_ring ring, gpumem_share_handle* out_handle, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Ring>(ring);
    decode.not_null(out_handle, "out_handle");
    GPUMEM_TRY(decode.done());
    auto handle = object->exported();
    if (!handle) return handle.error();
    *out_handle = core::encode(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_ring_open(gpumem_instance instance, const gpumem_share_handle* handle,
                               const gpumem_ring_open_desc* desc, gpumem_ring* out_ring,
                               gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_ring, "out_ring");
    const gpumem_ring_open_desc options = decode.optional_input(desc, "desc");
    std::string name = decode.name(options.name);
    auto given = capi::decode_share(decode, handle);
    GPUMEM_TRY(decode.done());
    if (!given) return given.error();
    auto opened = core::open_ring(object->shared_context(), *given, options.timeout_ns, std::move(name));
    if (!opened) return opened.error();
    *out_ring = capi::make_handle<gpumem_ring>(*opened);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_ring_acquire(gpumem_ring ring, gpumem_stream stream, uint64_t timeout_ns,
                                  gpumem_ring_slot* out_slot, gpumem_error* error) {
  return next_slot(__func__, &core::Ring::acquire, ring, stream, timeout_ns, out_slot, error);
}

gpumem_status gpumem_ring_publish(gpumem_ring ring, gpumem_stream stream, uint64_t size, uint64_t tag,
                                  gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Ring>(ring);
    const auto order = decode_stream(decode, stream);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->publish(order.get(), size, tag));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_ring_wait(gpumem_ring ring, gpumem_stream stream, uint64_t timeout_ns,
                               gpumem_ring_slot* out_slot, gpumem_error* error) {
  return next_slot(__func__, &core::Ring::wait, ring, stream, timeout_ns, out_slot, error);
}

gpumem_status gpumem_ring_release(gpumem_ring ring, gpumem_stream stream, uint64_t number,
                                  gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Ring>(ring);
    const auto order = decode_stream(decode, stream);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->release(order.get(), number));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_ring_finish(gpumem_ring ring, uint64_t timeout_ns, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Ring>(ring);
    GPUMEM_TRY(decode.done());
    return object->finish(timeout_ns);
  });
}

gpumem_status gpumem_ring_get_info(gpumem_ring ring, gpumem_ring_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Ring>(ring);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_ring_destroy(gpumem_ring ring, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (ring == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Ring>(ring);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_ring(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}
