// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/host.h"

#include "call.h"
#include "core/instance/backends.h"
#include "core/stream/simulation.h"

using namespace gpumem;
namespace simulation = core::simulation;

gpumem_status gpumem_host_launch(gpumem_stream stream, gpumem_host_kernel_function function, void* user_data,
                                 gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    if (function == nullptr) decode.refuse("function is NULL");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(simulation::launch(*object, function, user_data));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_kernel_view(gpumem_host_kernel kernel, const void* address, uint64_t size,
                                      gpumem_access access, void** out_view, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    backend::Kernel* running = core::current_host_kernel();
    if (running == nullptr || static_cast<void*>(running) != static_cast<void*>(kernel)) {
      decode.refuse("this kernel is not running on the calling thread");
    }
    decode.not_null(address, "address");
    decode.not_null(out_view, "out_view");
    decode.size(size);
    if (add_wraps(address_of(address), size)) decode.refuse("the range wraps around the address space");
    if (access != GPUMEM_ACCESS_READ && access != GPUMEM_ACCESS_READWRITE) {
      decode.not_a_value("the access", "GPUMEM_ACCESS_", access,
                         "GPUMEM_ACCESS_READ or GPUMEM_ACCESS_READWRITE");
    }
    GPUMEM_TRY(decode.done());
    auto view = running->view(address, size, access);
    if (!view) return view.error();
    *out_view = *view;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_native_stream_create(gpumem_device device, void** out_native_stream,
                                               gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_native_stream, "out_native_stream");
    GPUMEM_TRY(decode.done());
    auto stream = simulation::create_native_stream(*object);
    if (!stream) return stream.error();
    *out_native_stream = *stream;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_native_stream_destroy(gpumem_device device, void* native_stream,
                                                gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(simulation::destroy_native_stream(*object, native_stream));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_stream_set_capturing(gpumem_stream stream, uint32_t capturing,
                                               gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    if (capturing > 1) decode.refuse("capturing is %u; it must be 0 or 1", capturing);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(simulation::set_capturing(*object, capturing == 1));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_device_lose(gpumem_device device, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(simulation::lose(*object));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_fail_step(gpumem_instance instance, uint64_t step, uint32_t repeat,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    if (repeat > 1) decode.refuse("repeat is %u; it must be 0 or 1", repeat);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(simulation::fail_step(object->context(), step, repeat == 1));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_foreign_alloc(gpumem_device device, gpumem_kind kind, uint64_t size,
                                        void** out_pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_pointer, "out_pointer");
    decode.size(size);
    const core::KindTraits* const traits = core::find_kind(kind);
    if (traits == nullptr || !traits->allocated() || traits->managed)
      decode.not_a_value("the kind", "GPUMEM_KIND_", kind, "GPUMEM_KIND_DEVICE or GPUMEM_KIND_PINNED");
    GPUMEM_TRY(decode.done());
    auto pointer = simulation::allocate_foreign(*object, *traits, size);
    if (!pointer) return pointer.error();
    *out_pointer = *pointer;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_foreign_free(gpumem_device device, void* pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(simulation::free_foreign(*object, pointer));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_foreign_peer_access(gpumem_device device, gpumem_device peer, uint32_t enabled,
                                              gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    const auto other = decode.object<core::DeviceObject>(peer);
    if (enabled > 1) decode.refuse("enabled is %u; it must be 0 or 1", enabled);
    if (object && other) {
      if (&object->context() != &other->context()) {
        decode.refuse("the devices belong to different instances");
      }
      if (&object->device() == &other->device()) decode.refuse("the two devices are the same");
    }
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(simulation::set_foreign_peer_access(*object, *other, enabled == 1));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_host_set_current_device(int32_t ordinal, int32_t* out_previous, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (ordinal < -1 || ordinal >= 64) decode.refuse("the ordinal is %d; it must be -1 to 63", ordinal);
    GPUMEM_TRY(decode.done());
    const int32_t previous = core::set_host_current_device(ordinal);
    if (out_previous != nullptr) *out_previous = previous;
    return GPUMEM_SUCCESS;
  });
}
