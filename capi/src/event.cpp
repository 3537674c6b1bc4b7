// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/event.h"

#include "call.h"
#include "core/object/destroy.h"
#include "core/stream/event.h"
#include "core/stream/stream.h"

using namespace gpumem;

namespace {

void require_flags(capi::Decoder& decode, gpumem_event_flags flags) {
  decode.flags(flags, GPUMEM_EVENT_DISABLE_TIMING | GPUMEM_EVENT_BLOCKING_SYNC | GPUMEM_EVENT_INTERPROCESS,
               "GPUMEM_EVENT_");
  if ((flags & GPUMEM_EVENT_INTERPROCESS) != 0 && (flags & GPUMEM_EVENT_DISABLE_TIMING) == 0) {
    decode.refuse("GPUMEM_EVENT_INTERPROCESS needs GPUMEM_EVENT_DISABLE_TIMING; such an event has no times");
  }
}

}  // namespace

gpumem_status gpumem_event_create(gpumem_device device, const gpumem_event_desc* desc,
                                  gpumem_event* out_event, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_event, "out_event");
    const gpumem_event_desc given = decode.optional_input(desc, "desc");
    require_flags(decode, given.flags);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_event(*object, given.flags, std::move(name));
    if (!handle) return handle.error();
    *out_event = capi::make_handle<gpumem_event>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_event_wrap(gpumem_device device, void* native_event, gpumem_event_flags flags,
                                gpumem_event* out_event, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(native_event, "native_event");
    decode.not_null(out_event, "out_event");
    require_flags(decode, flags);
    GPUMEM_TRY(decode.done());
    auto handle = core::wrap_event(*object, native_event, flags);
    if (!handle) return handle.error();
    *out_event = capi::make_handle<gpumem_event>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_event_destroy(gpumem_event event, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (event == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Event>(event);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_object(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_event_record(gpumem_event event, gpumem_stream stream, gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto recorded = decode.object_briefly<core::Event>(event);
    const auto order = decode.object_briefly<core::Stream>(stream);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::record_event(*recorded, *order));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_event_query(gpumem_event event, gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object_briefly<core::Event>(event);
    GPUMEM_TRY(decode.done());
    return core::query_event(*object);
  });
}

gpumem_status gpumem_event_synchronize(gpumem_event event, uint64_t timeout_ns, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Event>(event);
    GPUMEM_TRY(decode.done());
    return core::synchronize_event(*object, timeout_ns);
  });
}

gpumem_status gpumem_event_get_elapsed_time(gpumem_event start, gpumem_event end, int64_t* out_nanoseconds,
                                            gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto first = decode.object<core::Event>(start);
    const auto second = decode.object<core::Event>(end);
    decode.not_null(out_nanoseconds, "out_nanoseconds");
    GPUMEM_TRY(decode.done());
    auto elapsed = core::elapsed_time(*first, *second);
    if (!elapsed) return elapsed.error();
    if (!elapsed->has_value()) return GPUMEM_NOT_READY;
    *out_nanoseconds = **elapsed;
    return GPUMEM_SUCCESS;
  });
}
