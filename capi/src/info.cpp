// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Queries of a handle, which the short way answers.
#include "call.h"
#include "core/memory/memory.h"
#include "core/stream/event.h"
#include "core/stream/stream.h"
#include "gpumem/event.h"
#include "gpumem/memory.h"
#include "gpumem/stream.h"

using namespace gpumem;

namespace {

template <auto kInfo, class T, class Handle, class S>
[[gnu::always_inline]] inline gpumem_status get_info(const char* function, Handle handle, S* out_info,
                                                     gpumem_error* error) {
  const bool answered = capi::look(error, [&](uint32_t process) {
    const T* const known = capi::peek<T>(handle, process);
    if (known == nullptr || !capi::has_own_size(out_info)) return false;
    *out_info = (known->*kInfo)();
    return true;
  });
  if (answered) return GPUMEM_SUCCESS;
  return capi::call(function, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<T>(handle);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, (object.get()->*kInfo)());
    return GPUMEM_SUCCESS;
  });
}

}  // namespace

gpumem_status gpumem_memory_get_info(gpumem_memory memory, gpumem_memory_info* out_info,
                                     gpumem_error* error) {
  return get_info<&core::Memory::memory_info, core::Memory>(__func__, memory, out_info, error);
}

gpumem_status gpumem_event_get_info(gpumem_event event, gpumem_event_info* out_info, gpumem_error* error) {
  return get_info<&core::Event::info, core::Event>(__func__, event, out_info, error);
}

gpumem_status gpumem_stream_get_info(gpumem_stream stream, gpumem_stream_info* out_info,
                                     gpumem_error* error) {
  return get_info<&core::Stream::info, core::Stream>(__func__, stream, out_info, error);
}
