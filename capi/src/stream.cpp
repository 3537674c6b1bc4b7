// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/stream.h"

#include "call.h"
#include "core/object/destroy.h"
#include "core/stream/event.h"
#include "gpumem/stream.h"

using namespace gpumem;

gpumem_status gpumem_stream_create(gpumem_device device, const gpumem_stream_desc* desc,
                                   gpumem_stream* out_stream, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_stream, "out_stream");
    const gpumem_stream_desc given = decode.optional_input(desc, "desc");
    if (given.reserved != 0) decode.refuse("desc->reserved must be 0");
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_stream(*object, given.priority, std::move(name));
    if (!handle) return handle.error();
    *out_stream = capi::make_handle<gpumem_stream>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stream_wrap(gpumem_device device, void* native_stream, gpumem_stream* out_stream,
                                 gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_stream, "out_stream");
    GPUMEM_TRY(decode.done());
    auto handle = core::wrap_stream(*object, native_stream);
    if (!handle) return handle.error();
    *out_stream = capi::make_handle<gpumem_stream>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stream_destroy(gpumem_stream stream, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (stream == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Stream>(stream);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_object(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stream_get_capture_id(gpumem_stream stream, uint64_t* out_capture_id,
                                           gpumem_error* error) {
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    decode.not_null(out_capture_id, "out_capture_id");
    GPUMEM_TRY(decode.done());
    auto capture = object->capture();
    if (!capture) return capture.error();
    *out_capture_id = capture->id;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stream_query(gpumem_stream stream, gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object_briefly<core::Stream>(stream);
    GPUMEM_TRY(decode.done());
    return core::query_stream(*object);
  });
}

gpumem_status gpumem_stream_synchronize(gpumem_stream stream, uint64_t timeout_ns, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    GPUMEM_TRY(decode.done());
    return core::synchronize_stream(*object, timeout_ns);
  });
}

gpumem_status gpumem_stream_wait_event(gpumem_stream stream, gpumem_event event, gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto waiter = decode.object_briefly<core::Stream>(stream);
    const auto awaited = decode.object_briefly<core::Event>(event);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::wait_event(*waiter, *awaited));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stream_launch_host_function(gpumem_stream stream, gpumem_host_function function,
                                                 void* user_data, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    if (function == nullptr) decode.refuse("function is NULL");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::launch_host_function(*object, function, user_data));
    return GPUMEM_SUCCESS;
  });
}

namespace {

void decode_word(capi::Decoder& decode, const void* address, uint32_t value_size) {
  decode.not_null(address, "address");
  if (value_size != 4 && value_size != 8) decode.refuse("value_size is %u; it must be 4 or 8", value_size);
  if ((value_size == 4 || value_size == 8) && address_of(address) % value_size != 0) {
    decode.refuse("the address %p is not aligned to %u bytes", address, value_size);
  }
}

}  // namespace

gpumem_status gpumem_stream_write_value(gpumem_stream stream, void* address, uint64_t value,
                                        uint32_t value_size, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    decode_word(decode, address, value_size);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::write_value(*object, address, value, value_size));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_stream_wait_value(gpumem_stream stream, void* address, uint64_t value,
                                       uint32_t value_size, gpumem_wait_condition condition,
                                       gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    decode_word(decode, address, value_size);
    if (condition < GPUMEM_WAIT_GEQ || condition > GPUMEM_WAIT_NOR) {
      decode.not_a_value("condition", "GPUMEM_WAIT_", condition);
    }
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::wait_value(*object, address, value, value_size, condition));
    return GPUMEM_SUCCESS;
  });
}
