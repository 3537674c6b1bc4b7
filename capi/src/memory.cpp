// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/memory.h"

#include <array>

#include "call.h"
#include "core/object/context.h"
#include "gpumem/memory.h"

using namespace gpumem;

namespace {

void require_flags(capi::Decoder& decode, const core::KindTraits& kind, gpumem_memory_flags flags) {
  struct Named {
    gpumem_memory_flags flag;
    const char* name;
  };
#define GPUMEM_NAMED(flag) \
  Named { flag, #flag }
  static constexpr std::array kNames{
      GPUMEM_NAMED(GPUMEM_MEMORY_PORTABLE),       GPUMEM_NAMED(GPUMEM_MEMORY_MAPPED),
      GPUMEM_NAMED(GPUMEM_MEMORY_WRITE_COMBINED), GPUMEM_NAMED(GPUMEM_MEMORY_READ_ONLY),
      GPUMEM_NAMED(GPUMEM_MEMORY_IOMEMORY),       GPUMEM_NAMED(GPUMEM_MEMORY_PAGE_LOCKED),
      GPUMEM_NAMED(GPUMEM_MEMORY_NUMA_NODE),      GPUMEM_NAMED(GPUMEM_MEMORY_ATTACH_HOST),
      GPUMEM_NAMED(GPUMEM_MEMORY_OVERSUBSCRIBE),  GPUMEM_NAMED(GPUMEM_MEMORY_SHAREABLE),
      GPUMEM_NAMED(GPUMEM_MEMORY_IN_PIECES)};
#undef GPUMEM_NAMED
  gpumem_memory_flags wrong = flags & ~kind.flags;
  for (const Named& known : kNames) {
    if ((wrong & known.flag) == 0) continue;
    decode.refuse("%s does not apply to %s memory", known.name, kind.name);
    wrong &= ~known.flag;
  }
  if (wrong != 0) {
    decode.refuse("the flags 0x%llx are no GPUMEM_MEMORY_ values", static_cast<unsigned long long>(wrong));
  }
}

// The kind of memory to allocate; null if it cannot be, and then done() fails.
const core::KindTraits* decode_kind(capi::Decoder& decode, gpumem_kind number) {
  const core::KindTraits* const kind = core::find_kind(number);
  if (kind != nullptr && kind->registered) {
    decode.refuse("GPUMEM_KIND_REGISTERED is memory that exists; register it with gpumem_memory_register()");
  } else if (kind == nullptr || !kind->allocated()) {
    decode.not_a_value("the kind", "GPUMEM_KIND_", number,
                       "GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED or GPUMEM_KIND_MANAGED");
  }
  return kind;
}

backend::MemoryRequest decode_request(capi::Decoder& decode, const core::KindTraits* kind,
                                      const gpumem_memory_desc& desc) {
  decode.size(desc.size);
  if (desc.alignment != 0 && !is_power_of_two(desc.alignment)) {
    decode.refuse("the alignment of %llu is not a power of two",
                  static_cast<unsigned long long>(desc.alignment));
  }
  if (kind != nullptr) require_flags(decode, *kind, desc.require | desc.prefer);
  const bool wants_node = ((desc.require | desc.prefer) & GPUMEM_MEMORY_NUMA_NODE) != 0;
  if (!wants_node && desc.numa_node != 0) decode.refuse("numa_node is set without GPUMEM_MEMORY_NUMA_NODE");
  // Rounding up to the alignment must not wrap either.
  if (desc.alignment > kSizeMax || desc.size > kSizeMax - desc.alignment) {
    decode.refuse("size plus alignment exceeds 2^63-1");
  }
  backend::MemoryRequest request;
  request.size = desc.size;
  request.alignment = desc.alignment;
  request.require = desc.require;
  request.prefer = desc.prefer & ~desc.require;
  request.numa_node = wants_node ? desc.numa_node : -1;
  return request;
}

backend::RegistrationRequest decode_registration(capi::Decoder& decode, const gpumem_register_desc& desc) {
  decode.not_null(desc.pointer, "pointer");
  decode.size(desc.size);
  // No program has memory beyond this address, and the page map has no entries for it.
  constexpr uint64_t kEnd = core::PageMap::kEnd;
  if (desc.size > kEnd || address_of(desc.pointer) > kEnd - desc.size) {
    decode.refuse("the range reaches beyond the addresses that a program can have");
  }
  require_flags(decode, core::kinds::registered, desc.require | desc.prefer);
  backend::RegistrationRequest request;
  request.pointer = desc.pointer;
  request.size = desc.size;
  request.require = desc.require;
  request.prefer = desc.prefer & ~desc.require;
  return request;
}

}  // namespace

gpumem_status gpumem_memory_create(gpumem_device device, const gpumem_memory_desc* desc,
                                   gpumem_memory* out_memory, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_memory, "out_memory");
    const gpumem_memory_desc given = decode.input(desc, "desc");
    const core::KindTraits* const kind = decode_kind(decode, given.kind);
    const backend::MemoryRequest request = decode_request(decode, kind, given);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto created = core::create_memory(*object, *kind, request, std::move(name));
    if (!created) return created.error();
    *out_memory = capi::make_handle<gpumem_memory>(created->handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_memory_register(gpumem_device device, const gpumem_register_desc* desc,
                                     gpumem_memory* out_memory, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_memory, "out_memory");
    const gpumem_register_desc given = decode.input(desc, "desc");
    const backend::RegistrationRequest request = decode_registration(decode, given);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto created = core::register_memory(*object, request, std::move(name));
    if (!created) return created.error();
    *out_memory = capi::make_handle<gpumem_memory>(created->handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_memory_destroy(gpumem_memory memory, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (memory == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Memory>(memory);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_for_user(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_malloc(gpumem_device device, gpumem_kind kind, uint64_t size, void** out_pointer,
                            gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_pointer, "out_pointer");
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.size = size;
    const core::KindTraits* const traits = decode_kind(decode, kind);
    const backend::MemoryRequest request = decode_request(decode, traits, desc);
    GPUMEM_TRY(decode.done());
    auto created = core::create_memory(*object, *traits, request, {});
    if (!created) return created.error();
    *out_pointer = created->pointer;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_free(gpumem_instance instance, void* pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    GPUMEM_TRY(decode.done());
    if (pointer == nullptr) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::free_pointer(object->context(), pointer));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_register(gpumem_device device, void* pointer, uint64_t size, gpumem_memory_flags require,
                              gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
    desc.pointer = pointer;
    desc.size = size;
    desc.require = require;
    const backend::RegistrationRequest request = decode_registration(decode, desc);
    GPUMEM_TRY(decode.done());
    auto created = core::register_memory(*object, request, {});
    if (!created) return created.error();
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_unregister(gpumem_instance instance, void* pointer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::unregister_pointer(object->context(), pointer));
    return GPUMEM_SUCCESS;
  });
}
