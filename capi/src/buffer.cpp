// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/buffer/buffer.h"

#include "call.h"
#include "core/buffer/group.h"
#include "core/buffer/sleep.h"
#include "core/object/context.h"
#include "decode/sleep.h"
#include "decode/vmm.h"
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
  decode.size_or_zero(desc.size, "size");
  decode.size_or_zero(desc.reserve, "reserve");
  if (desc.reserve != 0 && desc.reserve < desc.size) {
    decode.refuse("reserve is %llu, which is below the size of %llu; raise it, or pass 0",
                  static_cast<unsigned long long>(desc.reserve), static_cast<unsigned long long>(desc.size));
  }
  decode.flags(
      desc.flags,
      GPUMEM_BUFFER_MOVABLE | GPUMEM_BUFFER_COPYABLE | GPUMEM_BUFFER_GEOMETRIC | GPUMEM_BUFFER_RESERVE_ALL,
      "GPUMEM_BUFFER_");
  request.size = desc.size;
  request.reserve = desc.reserve;
  request.flags = desc.flags;
  if (desc.accesses != nullptr || desc.access_count != 0) {
    request.accesses = capi::decode_accesses(decode, device != nullptr ? &device->context() : nullptr,
                                             desc.accesses, desc.access_count);
  }
  return request;
}

std::vector<core::Ref<core::Buffer>> alone(core::Ref<core::Buffer> buffer) {
  std::vector<core::Ref<core::Buffer>> buffers;
  buffers.push_back(std::move(buffer));
  return buffers;
}

}  // namespace

gpumem_status gpumem_buffer_create(gpumem_device device, const gpumem_buffer_desc* desc,
                                   gpumem_buffer* out_buffer, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::DeviceObject>(device);
    decode.not_null(out_buffer, "out_buffer");
    const gpumem_buffer_desc given = decode.input(desc, "desc");
    core::BufferRequest request = decode_request(decode, object.get(), given);
    core::Ref<core::Group> group;
    if (given.group != nullptr) {
      group = decode.object<core::Group>(given.group);
      if (group && object && &group->context() != &object->context())
        decode.refuse("the group belongs to another instance");
    } else if (given.tag != nullptr) {
      decode.refuse("the tag says what the buffer is in a group; pass a group too");
    }
    request.name = decode.name(given.name);
    {
      const auto part = decode.inside("desc->tag");
      request.tag = decode.name(given.tag);
    }
    GPUMEM_TRY(decode.done());
    auto handle = core::create_buffer(*object, std::move(request), group.get());
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
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_resize(gpumem_buffer buffer, uint64_t size, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode.size_or_zero(size, "size");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->resize(size));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_set_capacity(gpumem_buffer buffer, uint64_t capacity, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode.size_or_zero(capacity, "capacity");
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
        capi::decode_accesses(decode, object ? &object->context() : nullptr, accesses, count);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->set_access(changes));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_set_ahead(gpumem_buffer buffer, uint64_t bytes, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode.size_or_zero(bytes, "number");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->set_ahead(bytes));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_sleep(gpumem_buffer buffer, const gpumem_sleep_desc* desc, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::Buffer>(buffer);
    const capi::DecodedSleep sleep =
        capi::decode_sleep(decode, object ? &object->context() : nullptr, desc, false);
    GPUMEM_TRY(decode.done());
    core::Context& instance = object->context();
    GPUMEM_TRY(core::sleep_buffers(instance, alone(std::move(object)), false, sleep.request));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_wake(gpumem_buffer buffer, const gpumem_wake_desc* desc, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::Buffer>(buffer);
    const capi::DecodedWake wake = capi::decode_wake(decode, desc, false);
    GPUMEM_TRY(decode.done());
    core::Context& instance = object->context();
    GPUMEM_TRY(core::wake_buffers(instance, alone(std::move(object)), false, wake.request));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_prepare(gpumem_buffer buffer, const gpumem_prepare_desc* desc,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::Buffer>(buffer);
    const capi::DecodedPrepare prepare = capi::decode_prepare(decode, desc, false);
    GPUMEM_TRY(decode.done());
    core::Context& instance = object->context();
    GPUMEM_TRY(core::prepare_buffers(instance, alone(std::move(object)), false, prepare.store,
                                     prepare.bytes_per_second));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_note_registration(gpumem_buffer buffer, const char* name,
                                              uint64_t* out_registration, gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    decode.not_null(name, "name");
    decode.not_null(out_registration, "out_registration");
    if (name != nullptr && name[0] == '\0') decode.refuse("the name is empty; say what holds the memory");
    std::string holder = decode.name(name);
    GPUMEM_TRY(decode.done());
    auto number = object->note_registration(std::move(holder));
    if (!number) return number.error();
    *out_registration = *number;
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_forget_registration(gpumem_buffer buffer, uint64_t registration,
                                                gpumem_error* error) {
  return capi::call_briefly(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->forget_registration(registration));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_buffer_set_callbacks(gpumem_buffer buffer, const gpumem_buffer_callbacks* callbacks,
                                          gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Buffer>(buffer);
    const gpumem_buffer_callbacks given = decode.optional_input(callbacks, "callbacks");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(object->set_callbacks({given.before_sleep, given.after_wake, given.user_data}));
    return GPUMEM_SUCCESS;
  });
}
