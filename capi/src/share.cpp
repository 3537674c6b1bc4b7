// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/share.h"

#include "call.h"
#include "core/memory/memory.h"
#include "core/object/context.h"
#include "core/object/host_function_guard.h"
#include "core/share/link/imports.h"
#include "core/share/link/ways.h"
#include "core/share/peer/exports.h"
#include "core/stream/event.h"
#include "decode/share.h"

using namespace gpumem;

gpumem_status gpumem_share_export(gpumem_instance instance, const void* pointer,
                                  const gpumem_export_desc* desc, gpumem_share_handle* out_handle,
                                  gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.not_null(out_handle, "out_handle");
    const gpumem_export_desc given = decode.optional_input(desc, "desc");
    if (given.way < GPUMEM_SHARE_WAY_ANY || given.way > GPUMEM_SHARE_WAY_FABRIC)
      decode.not_a_value("way", "GPUMEM_SHARE_WAY_", given.way,
                         "GPUMEM_SHARE_WAY_ANY, GPUMEM_SHARE_WAY_LEGACY or GPUMEM_SHARE_WAY_POSIX_FD");
    capi::require_access(decode, given.access);
    decode.flags(given.flags, GPUMEM_EXPORT_NEIGHBOURS, "GPUMEM_EXPORT_");
    GPUMEM_TRY(decode.done());
    core::ExportRequest request;
    request.way = given.way;
    if (given.access != GPUMEM_ACCESS_NONE) request.access = given.access;
    request.flags = given.flags;
    auto handle = core::Exports::of(object->context()).export_memory(pointer, request);
    if (!handle) return handle.error();
    *out_handle = core::encode(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_revoke(gpumem_instance instance, const gpumem_share_handle* handle,
                                  gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    auto given = capi::decode_share(decode, handle);
    GPUMEM_TRY(decode.done());
    if (!given) return given.error();
    GPUMEM_TRY(core::Exports::of(object->context()).revoke(given->token));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_get_info(const gpumem_share_handle* handle, gpumem_share_info* out_info,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.output(out_info, "out_info");
    auto given = capi::decode_share(decode, handle);
    GPUMEM_TRY(decode.done());
    if (!given) return given.error();
    gpumem_share_info info = GPUMEM_SHARE_INFO_INIT;
    info.type = given->type;
    info.way = given->way;
    info.backend = given->backend;
    info.access = given->access;
    info.location = given->location;
    info.exporter_pid = given->exporter.pid;
    info.size = given->size;
    info.offset = given->offset;
    info.buffer_id = given->buffer_id;
    info.fd_count = given->fd_count;
    std::memcpy(info.device_uuid, given->device_uuid.data(), sizeof info.device_uuid);
    capi::answer(out_info, info);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_get_fds(gpumem_instance instance, const gpumem_share_handle* handle,
                                   int32_t* out_fds, uint32_t capacity, uint32_t* out_count,
                                   gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_count, "out_count");
    if ((out_fds == nullptr) != (capacity == 0))
      decode.refuse("out_fds is NULL and capacity is not 0, or the reverse");
    auto given = capi::decode_share(decode, handle);
    GPUMEM_TRY(decode.done());
    if (!given) return given.error();
    core::Exports& exports = core::Exports::of(object->context());
    auto known = exports.find(given->token);
    if (!known) return known.error();
    if (capacity != 0 && capacity < known->fd_count) {
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                        "there is room for %u file descriptors, and the export has %u", capacity,
                        known->fd_count);
    }
    if (capacity != 0) {
      auto grant = exports.grant(given->token);
      if (!grant) return grant.error();
      auto copies = platform::duplicate_all(*grant->descriptors);
      if (!copies) return copies.error();
      for (size_t index = 0; index < copies->size(); ++index)
        out_fds[index] = (*copies)[index].release();
    }
    *out_count = known->fd_count;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_import(gpumem_instance instance, const gpumem_share_handle* handle,
                                  const int32_t* fds, uint32_t fd_count, const gpumem_import_desc* desc,
                                  void** out_pointer, gpumem_memory* out_memory, gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_memory, "out_memory");
    const gpumem_import_desc given = decode.optional_input(desc, "desc");
    const bool plain = given.device == nullptr && given.access == GPUMEM_ACCESS_NONE && given.flags == 0 &&
                       given.address == nullptr && given.reserved == 0 && given.name == nullptr &&
                       fds == nullptr && fd_count == 0;
    if (plain && handle != nullptr && decode.done()) {
      if (const auto again = core::Imports::of(object->context()).import_again(*handle)) {
        if (out_pointer != nullptr) *out_pointer = again->pointer;
        *out_memory = capi::make_handle<gpumem_memory>(again->handle);
        return GPUMEM_SUCCESS;
      }
    }
    core::Ref<core::DeviceObject> device;
    core::ImportRequest request = capi::decode_import(decode, given, object.get(), &device);
    auto share = capi::decode_share(decode, handle);
    request.file_descriptors = capi::decode_fds(decode, fds, fd_count);
    GPUMEM_TRY(decode.done());
    if (!share) return share.error();
    request.handle = *share;
    auto imported = core::Imports::of(object->context()).import_memory(request, plain ? handle : nullptr);
    if (!imported) return imported.error();
    if (out_pointer != nullptr) *out_pointer = imported->pointer;
    *out_memory = capi::make_handle<gpumem_memory>(imported->handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_memory_get_import_info(gpumem_memory memory, gpumem_import_info* out_info,
                                            gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Memory>(memory);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    auto info = core::Imports::of(object->context()).info(*object);
    if (!info) return info.error();
    capi::answer(out_info, *info);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_set_cache(gpumem_instance instance, const gpumem_import_cache_desc* desc,
                                     gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    const gpumem_import_cache_desc given = decode.optional_input(desc, "desc");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::Imports::of(object->context()).set_cache(given.idle_ns, given.bytes_max));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_flush_cache(gpumem_instance instance, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::Imports::of(object->context()).flush_for_user());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_get_way(gpumem_instance instance, const void* pointer, gpumem_share_way way,
                                   gpumem_share_peer peer, gpumem_way_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    capi::decode_way(decode, pointer, way, peer, out_info);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());
    capi::answer(out_info, core::share_way(object->context(), pointer, way, peer, nullptr));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_share_export_dma_buf(gpumem_instance instance, const void* pointer, uint64_t size,
                                          gpumem_dma_buf_flags flags, int32_t* out_fd, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.size(size);
    decode.flags(flags, GPUMEM_DMA_BUF_PREFER_PCIE, "GPUMEM_DMA_BUF_");
    decode.not_null(out_fd, "out_fd");
    GPUMEM_TRY(decode.done());
    auto made =
        core::export_dma_buf(object->context(), pointer, size, (flags & GPUMEM_DMA_BUF_PREFER_PCIE) != 0);
    if (!made) return made.error();
    *out_fd = *made;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_event_export(gpumem_event event, gpumem_share_handle* out_handle, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Event>(event);
    decode.not_null(out_handle, "out_handle");
    GPUMEM_TRY(decode.done());
    auto handle = core::Exports::of(object->context()).export_event(*object);
    if (!handle) return handle.error();
    *out_handle = core::encode(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_event_import(gpumem_device device, const gpumem_share_handle* handle, const int32_t* fds,
                                  uint32_t fd_count, gpumem_event* out_event, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_event, "out_event");
    core::ImportRequest request;
    auto given = capi::decode_share(decode, handle);
    request.file_descriptors = capi::decode_fds(decode, fds, fd_count);
    GPUMEM_TRY(decode.done());
    if (!given) return given.error();
    request.handle = *given;
    request.timeout_ns = capi::kAnswerTimeout;
    auto imported = core::Imports::of(object->context()).import_event(*object, request);
    if (!imported) return imported.error();
    *out_event = capi::make_handle<gpumem_event>(*imported);
    return GPUMEM_SUCCESS;
  });
}
