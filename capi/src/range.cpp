// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/range.h"

#include "call.h"
#include "core/memory/mapping.h"
#include "core/object/context.h"
#include "core/object/destroy.h"
#include "decode/vmm.h"
#include "gpumem/range.h"

using namespace gpumem;

namespace {

backend::ReservationRequest decode_request(capi::Decoder& decode, const gpumem_range_desc& desc) {
  decode.size(desc.size);
  if (desc.alignment != 0 && !is_power_of_two(desc.alignment)) {
    decode.refuse("the alignment of %llu is not a power of two",
                  static_cast<unsigned long long>(desc.alignment));
  }
  if (desc.alignment > kSizeMax || desc.size > kSizeMax - desc.alignment) {
    decode.refuse("size plus alignment exceeds 2^63-1");
  }
  decode.flags(desc.flags, GPUMEM_RANGE_FIXED, "GPUMEM_RANGE_");
  const bool fixed = (desc.flags & GPUMEM_RANGE_FIXED) != 0;
  if (fixed && desc.address == nullptr) decode.refuse("GPUMEM_RANGE_FIXED needs an address");
  if (add_wraps(address_of(desc.address), desc.size)) {
    decode.refuse("the range wraps around the address space");
  }
  return {desc.size, desc.alignment, desc.address, fixed};
}

// The range of a buffer is changed by the buffer alone.
Result<void> check_not_owned(const core::Range& range) {
  if (!range.owned()) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "the range belongs to a buffer; use the functions of gpumem_buffer");
}

}  // namespace

gpumem_status gpumem_range_reserve(gpumem_instance instance, const gpumem_range_desc* desc,
                                   gpumem_range* out_range, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(out_range, "out_range");
    const gpumem_range_desc given = decode.input(desc, "desc");
    const backend::ReservationRequest request = decode_request(decode, given);
    std::string name = decode.name(given.name);
    GPUMEM_TRY(decode.done());
    auto handle = core::reserve_range(object->shared_context(), request, std::move(name));
    if (!handle) return handle.error();
    *out_range = capi::make_handle<gpumem_range>(*handle);
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_range_release(gpumem_range range, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (range == nullptr) return GPUMEM_SUCCESS;
    auto object = decode.object<core::Range>(range);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(check_not_owned(*object));
    GPUMEM_TRY(core::destroy_object(std::move(object)));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_range_get_info(gpumem_range range, gpumem_range_info* out_info, gpumem_error* error) {
  const bool answered = capi::look(error, [&](uint32_t process) {
    const core::Range* const known = capi::peek<core::Range>(range, process);
    if (known == nullptr || !capi::has_own_size(out_info)) return false;
    *out_info = known->range_info();
    return true;
  });
  if (answered) return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Range>(range);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    capi::answer(out_info, object->range_info());
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_range_map(gpumem_range range, uint64_t offset, const gpumem_physical* physicals,
                               uint64_t count, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::Range>(range);
    capi::decode_array(decode, physicals, count, sizeof *physicals, "physicals");
    // More blocks than units never fit.
    if (object && count > object->size() / object->mappings().granularity()) {
      decode.refuse("%llu blocks do not fit into the range", static_cast<unsigned long long>(count));
    }
    std::vector<core::Ref<core::Physical>> held;
    const bool readable = physicals != nullptr && object && decode.done();
    for (uint64_t index = 0; readable && index < count; ++index) {
      const auto inside = decode.inside("physicals", index);
      held.push_back(decode.object<core::Physical>(physicals[index]));
    }
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(check_not_owned(*object));
    GPUMEM_TRY(core::map_range(std::move(object), offset, held));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_range_unmap(gpumem_range range, uint64_t offset, uint64_t size, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::Range>(range);
    const bool whole = offset == 0 && size == GPUMEM_WHOLE_RANGE;
    if (!whole) decode.size(size);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(check_not_owned(*object));
    GPUMEM_TRY(whole ? core::unmap_all(std::move(object))
                     : core::unmap_range(std::move(object), offset, size));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_range_set_access(gpumem_range range, uint64_t offset, uint64_t size,
                                      const gpumem_access_desc* accesses, uint64_t count,
                                      gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    auto object = decode.object<core::Range>(range);
    decode.size(size);
    const std::vector<core::AccessRequest> changes =
        capi::decode_accesses(decode, object ? &object->context() : nullptr, accesses, count);
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(check_not_owned(*object));
    GPUMEM_TRY(core::set_range_access(std::move(object), offset, size, changes));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_range_get_mapping(gpumem_instance instance, const void* pointer,
                                       gpumem_mapping_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    auto info = core::mapping_info(object->context(), pointer);
    if (!info) return info.error();
    capi::answer(out_info, *info);
    return GPUMEM_SUCCESS;
  });
}
