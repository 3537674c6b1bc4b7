// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer.h"

#include "call.h"
#include "core/host_function.h"
#include "core/instance.h"
#include "decode_vmm.h"
#include "gpumem/buffer.h"

using namespace gpumem;

namespace {

core::BufferRequest decode_request(capi::Decoder& decode, const core::DeviceObject* device,
                                   const gpumem_buffer_desc& desc) {
  gpumem_physical_desc block = GPUMEM_PHYSICAL_DESC_INIT;
  block.location = desc.location;
  block.location_id = desc.location_id;
  block.handle_types = desc.handle_types;
  block.require = desc.require;
  block.prefer = desc.prefer;
  core::BufferRequest request;
  request.physical = capi::decode_physical(decode, device, block);
  for (const uint64_t bytes : {desc.size, desc.reserve}) {
    if (bytes > kSizeMax) {
      decode.refuse("%llu bytes exceed 2^63-1", static_cast<unsigned long long>(bytes));
    }
  }
  if (desc.reserve != 0 && desc.reserve < desc.size) {
    decode.refuse("reserve is %llu, which is below the size of %llu",
                  static_cast<unsigned long long>(desc.reserve), static_cast<unsigned long long>(desc.size));
  }
  if ((desc.flags & ~GPUMEM_BUFFER_MOVABLE) != 0) {
    decode.refuse("the flags 0x%llx are no GPUMEM_BUFFER_ values",
                  static_cast<unsigned long long>(desc.flags & ~GPUMEM_BUFFER_MOVABLE));
  }
  request.size = desc.size;
  request.reserve = desc.reserve;
  request.flags = desc.flags;
  if (desc.accesses != nullptr || desc.access_count != 0) {
    request.accesses = capi::decode_accesses(decode, device != nullptr ? &device->instance() : nullptr,
                                             desc.accesses, desc.access_count);
  }
  return request;
}

void decode_bytes(capi::Decoder& decode, uint64_t bytes, const char* what) {
  if (bytes > kSizeMax) {
    decode.refuse("the %s of %llu bytes exceeds 2^63-1", what, static_cast<unsigned long long>(bytes));
  }
}

}  // namespace

gpumem_status gpumem_buffer_create(gpumem_device device, const gpumem_buffer_desc* desc,
                                   gpumem_buffer* out_buffer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_buffer, "out_buffer");
    const gpumem_buffer_desc given = decode.input(desc, "desc");
    core::BufferRequest request = decode_request(decode, object.get(), given);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::create_buffer(*object, std::move(request), std::move(name));
    if (!handle) return handle.error();
    *out_buffer = capi::make_handle<gpumem_buffer>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_destroy(gpumem_buffer buffer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (buffer == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Buffer>(buffer);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::destroy_buffer(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_get_info(gpumem_buffer buffer, gpumem_buffer_info* out_info,
                                     gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::outside_host_function());  // another call may hold the buffer and wait for that function
    capi::answer(out_info, object->info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_resize(gpumem_buffer buffer, uint64_t size, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode_bytes(decode, size, "size");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->resize(size));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_set_capacity(gpumem_buffer buffer, uint64_t capacity, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode_bytes(decode, capacity, "capacity");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->set_capacity(capacity));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_set_access(gpumem_buffer buffer, const gpumem_access_desc* accesses,
                                       uint64_t count, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    const std::vector<core::AccessRequest> changes =
        capi::decode_accesses(decode, object ? &object->instance() : nullptr, accesses, count);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->set_access(changes));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_sleep(gpumem_buffer buffer, gpumem_content content, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    if (content < GPUMEM_CONTENT_PINNED || content > GPUMEM_CONTENT_DROP) {
      decode.refuse("the content is %d, which is no GPUMEM_CONTENT_ value", content);
    }
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->sleep(content));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_wake(gpumem_buffer buffer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->wake());
    return GPUMEM_SUCCESS;
  });
}
