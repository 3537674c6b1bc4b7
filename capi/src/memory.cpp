// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory.h"

#include "call.h"
#include "core/instance.h"
#include "gpumem/memory.h"

using namespace gpumem;

namespace {

// The flags that a kind can have.
gpumem_memory_flags flags_of(gpumem_kind kind) {
  switch (kind) {
    case GPUMEM_KIND_PINNED:
      return GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_WRITE_COMBINED |
             GPUMEM_MEMORY_PAGE_LOCKED | GPUMEM_MEMORY_NUMA_NODE;
    case GPUMEM_KIND_REGISTERED:
      return GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED | GPUMEM_MEMORY_READ_ONLY |
             GPUMEM_MEMORY_IOMEMORY | GPUMEM_MEMORY_PAGE_LOCKED;
    default:
      return 0;
  }
}

void require_flags(capi::Decoder& decode, gpumem_kind kind, gpumem_memory_flags flags) {
  const gpumem_memory_flags unknown = flags & ~flags_of(kind);
  decode.require(unknown == 0, "the flags 0x%llx are unknown or do not belong to %s memory",
                 static_cast<unsigned long long>(unknown), core::kind_name(kind));
}

backend::MemoryRequest decode_request(capi::Decoder& decode, const gpumem_memory_desc& desc) {
  decode.size(desc.size);
  decode.require(desc.kind != GPUMEM_KIND_REGISTERED,
                 "existing memory is not created; register it with gpumem_memory_register()");
  decode.require(desc.kind == GPUMEM_KIND_DEVICE || desc.kind == GPUMEM_KIND_PINNED,
                 "%s memory cannot be allocated; the kind must be DEVICE or PINNED",
                 core::kind_name(desc.kind));
  decode.require(desc.alignment == 0 || is_power_of_two(desc.alignment),
                 "the alignment of %llu is no power of two", static_cast<unsigned long long>(desc.alignment));
  require_flags(decode, desc.kind, desc.require | desc.prefer);
  const bool wants_node = ((desc.require | desc.prefer) & GPUMEM_MEMORY_NUMA_NODE) != 0;
  decode.require(wants_node || desc.numa_node == 0, "numa_node is set without GPUMEM_MEMORY_NUMA_NODE");
  // Rounding up to the alignment must not wrap either.
  decode.require(desc.alignment <= kSizeMax && desc.size <= kSizeMax - desc.alignment,
                 "size and alignment together are above 2^63-1");
  backend::MemoryRequest request;
  request.kind = desc.kind;
  request.size = desc.size;
  request.alignment = desc.alignment;
  request.require = desc.require;
  request.prefer = desc.prefer & ~desc.require;
  request.numa_node = wants_node ? desc.numa_node : -1;
  return request;
}

backend::MemoryRequest decode_registration(capi::Decoder& decode, const gpumem_register_desc& desc) {
  decode.not_null(desc.pointer, "pointer");
  decode.size(desc.size);
  decode.require(!add_wraps(address_of(desc.pointer), desc.size), "the range wraps around the address space");
  require_flags(decode, GPUMEM_KIND_REGISTERED, desc.require | desc.prefer);
  backend::MemoryRequest request;
  request.kind = GPUMEM_KIND_REGISTERED;
  request.size = desc.size;
  request.require = desc.require;
  request.prefer = desc.prefer & ~desc.require;
  request.host_pointer = desc.pointer;
  return request;
}

}  // namespace

gpumem_status gpumem_memory_create(gpumem_device device, const gpumem_memory_desc* desc,
                                   gpumem_memory* out_memory, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_memory, "out_memory");
    const gpumem_memory_desc given = decode.input(desc, "desc");
    const backend::MemoryRequest request = decode_request(decode, given);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_memory(std::move(object), request, std::move(name));
    if (!handle) return handle.error();
    *out_memory = capi::make_handle<gpumem_memory>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_memory_register(gpumem_device device, const gpumem_register_desc* desc,
                                     gpumem_memory* out_memory, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_memory, "out_memory");
    const gpumem_register_desc given = decode.input(desc, "desc");
    const backend::MemoryRequest request = decode_registration(decode, given);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_memory(std::move(object), request, std::move(name));
    if (!handle) return handle.error();
    *out_memory = capi::make_handle<gpumem_memory>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_memory_destroy(gpumem_memory memory, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (memory == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Memory>(memory);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_memory(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_memory_get_info(gpumem_memory memory, gpumem_memory_info* out_info,
                                     gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Memory>(memory);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    const backend::MemoryFacts& facts = object->facts();
    const uint32_t ordinal = object->device().ordinal();
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    info.kind = object->kind();
    info.numa_node = facts.numa_node;
    info.device = capi::make_handle<gpumem_device>(object->instance().device_handle(ordinal));
    info.device_ordinal = ordinal;
    info.host_pointer = facts.host_pointer;
    info.device_pointer = facts.device_pointer;
    info.size = object->size();
    info.granted_size = facts.granted_size;
    info.alignment = object->alignment();
    info.requested_flags = object->requested();
    info.granted_flags = facts.granted;
    info.buffer_id = object->buffer_id();
    capi::copy_text(info.name, object->name().c_str());
    capi::answer(out_info, info);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_malloc(gpumem_device device, gpumem_kind kind, uint64_t size, void** out_pointer,
                            gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_pointer, "out_pointer");
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = kind;
    desc.size = size;
    const backend::MemoryRequest request = decode_request(decode, desc);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_memory(std::move(object), request, {});
    if (!handle) return handle.error();
    auto memory = core::acquire<core::Memory>(*handle);
    if (!memory) return memory.error();
    const backend::MemoryFacts& facts = (*memory)->facts();
    *out_pointer = facts.host_pointer != nullptr ? facts.host_pointer : facts.device_pointer;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_free(gpumem_instance instance, void* pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::free_pointer(object->instance(), pointer));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_register(gpumem_device device, void* pointer, uint64_t size, gpumem_memory_flags require,
                              gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::DeviceObject>(device);
    gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
    desc.pointer = pointer;
    desc.size = size;
    desc.require = require;
    const backend::MemoryRequest request = decode_registration(decode, desc);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_memory(std::move(object), request, {});
    if (!handle) return handle.error();
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_unregister(gpumem_instance instance, void* pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::unregister_pointer(object->instance(), pointer));
    return GPUMEM_SUCCESS;
  });
}
