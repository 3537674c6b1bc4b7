// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/stream/managed.h"

#include <cinttypes>
#include <cstdio>

#include "call.h"
#include "core/object/context.h"
#include "gpumem/managed.h"

using namespace gpumem;

namespace {

void decode_range(capi::Decoder& decode, const void* pointer, uint64_t size) {
  decode.not_null(pointer, "pointer");
  decode.size(size);
  if (add_wraps(address_of(pointer), size)) decode.refuse("the range wraps around the address space");
}

// Where advice or a prefetch is to send pages. `instance` is null if the call's own handle is bad.
backend::Location decode_location(capi::Decoder& decode, core::Context* instance, gpumem_location location,
                                  int32_t id, bool nodes) {
  if (location == GPUMEM_LOCATION_HOST) return {location, -1};
  if (location == GPUMEM_LOCATION_DEVICE) {
    const size_t count = instance != nullptr ? core::Devices::of(*instance).size() : INT32_MAX;
    if (id < 0 || static_cast<size_t>(id) >= count) {
      decode.refuse("there is no device %d; the instance has %zu devices, numbered from 0", id, count);
    }
    return {location, id};
  }
  if (!nodes || (location != GPUMEM_LOCATION_HOST_NUMA && location != GPUMEM_LOCATION_HOST_NUMA_CURRENT)) {
    decode.not_a_value("the location", "GPUMEM_LOCATION_", location,
                       nodes ? "GPUMEM_LOCATION_DEVICE, GPUMEM_LOCATION_HOST, GPUMEM_LOCATION_HOST_NUMA or "
                               "GPUMEM_LOCATION_HOST_NUMA_CURRENT"
                             : "GPUMEM_LOCATION_DEVICE or GPUMEM_LOCATION_HOST");
    return {};
  }
  if (instance == nullptr) return {};
  if (location == GPUMEM_LOCATION_HOST_NUMA_CURRENT) id = core::current_node(*instance);
  if (!instance->backend().has_numa_node(id)) decode.refuse("there is no NUMA node %d", id);
  return {GPUMEM_LOCATION_HOST_NUMA, id};
}

backend::Location decode_advice(capi::Decoder& decode, core::Context* instance, gpumem_advice advice,
                                gpumem_location location, int32_t id) {
  switch (advice) {
    case GPUMEM_ADVICE_SET_READ_MOSTLY:
    case GPUMEM_ADVICE_UNSET_READ_MOSTLY:
    case GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION:
      return {};
    case GPUMEM_ADVICE_SET_PREFERRED_LOCATION:
      return decode_location(decode, instance, location, id, true);
    case GPUMEM_ADVICE_SET_ACCESSED_BY:
    case GPUMEM_ADVICE_UNSET_ACCESSED_BY:
      return decode_location(decode, instance, location, id, false);
    default:
      decode.not_a_value("the advice", "GPUMEM_ADVICE_", advice);
      return {};
  }
}

core::RangeArguments decode_batch_range(capi::Decoder& decode, core::Context* instance,
                                        const gpumem_managed_range* range, uint64_t index, size_t stride,
                                        core::Batch what) {
  char name[32];
  std::snprintf(name, sizeof name, "ranges[%" PRIu64 "]", index);
  // Check this first: with another size, the rest of the range may lie behind the end of the array.
  if (range->struct_size != stride) {
    decode.refuse("%s has struct_size %zu, but the first range has %zu", name, range->struct_size, stride);
    return {};
  }
  const gpumem_managed_range given = decode.input(range, name);
  const auto inside = decode.inside(name);
  if (stride % alignof(gpumem_managed_range) != 0) {
    decode.refuse(
        "struct_size is %zu, which cannot be the distance between ranges; set it to "
        "sizeof(gpumem_managed_range)",
        stride);
  }
  decode_range(decode, given.pointer, given.size);
  core::RangeArguments result{given.pointer, given.size, {}};
  if (what != core::Batch::kDiscard) {
    result.location = decode_location(decode, instance, given.location, given.location_id, true);
  } else if (given.location != GPUMEM_LOCATION_NONE || given.location_id != 0) {
    decode.refuse("a discard takes no location; set location and location_id to 0");
  }
  return result;
}

gpumem_status move_batch(const char* function, gpumem_stream stream, core::Batch what,
                         const gpumem_managed_range* ranges, uint64_t count, gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    core::Context* const instance = object ? &object->context() : nullptr;
    if (count != 0) decode.not_null(ranges, "ranges");
    if (count != 0 && object && object->is_default())
      decode.refuse("the stream is the default stream, which takes no batches; use a stream of your own");
    const size_t stride = count != 0 && ranges != nullptr ? ranges->struct_size : 0;
    uint64_t bytes = 0;
    if (stride <= capi::kStructSizeMax &&
        (!multiply(stride, count, &bytes) || add_wraps(address_of(ranges), bytes))) {
      decode.refuse("an array of %" PRIu64 " ranges wraps around the address space", count);
    }
    std::vector<core::RangeArguments> decoded;
    // Always check the first range, because a bad one can outrank a stale handle (COM-17).
    for (uint64_t index = 0; ranges != nullptr && index < count; ++index) {
      const auto* range = reinterpret_cast<const gpumem_managed_range*>(
          reinterpret_cast<const unsigned char*>(ranges) + index * stride);
      decoded.push_back(decode_batch_range(decode, instance, range, index, stride, what));
      if (!decode.done()) break;
    }
    GPUMEM_TRY(decode.done());
    if (count == 0) return GPUMEM_SUCCESS;
    return core::move_batch(*object, what, decoded);
  });
}

}  // namespace

gpumem_status gpumem_managed_attach(gpumem_stream stream, void* pointer, uint64_t size, gpumem_attach attach,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    decode.not_null(pointer, "pointer");
    if (size != 0) decode_range(decode, pointer, size);
    if (attach != GPUMEM_ATTACH_GLOBAL && attach != GPUMEM_ATTACH_HOST && attach != GPUMEM_ATTACH_SINGLE)
      decode.not_a_value("attach", "GPUMEM_ATTACH_", attach);
    if (attach == GPUMEM_ATTACH_SINGLE && object && object->is_default())
      decode.refuse(
          "the stream is the default stream, to which no memory can be attached; use one of your own");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::attach(*object, pointer, size, attach));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_managed_advise(gpumem_instance instance, const void* pointer, uint64_t size,
                                    gpumem_advice advice, gpumem_location location, int32_t location_id,
                                    gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode_range(decode, pointer, size);
    const backend::Location where =
        decode_advice(decode, object ? &object->context() : nullptr, advice, location, location_id);
    GPUMEM_TRY(decode.done());
    return core::advise(object->context(), pointer, size, advice, where);
  });
}

gpumem_status gpumem_managed_prefetch(gpumem_stream stream, const void* pointer, uint64_t size,
                                      gpumem_location location, int32_t location_id, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::Stream>(stream);
    decode_range(decode, pointer, size);
    const backend::Location where =
        decode_location(decode, object ? &object->context() : nullptr, location, location_id, true);
    GPUMEM_TRY(decode.done());
    return core::prefetch(*object, {const_cast<void*>(pointer), size, where});
  });
}

gpumem_status gpumem_managed_prefetch_batch(gpumem_stream stream, const gpumem_managed_range* ranges,
                                            uint64_t count, gpumem_error* error) {
  return move_batch(__func__, stream, core::Batch::kPrefetch, ranges, count, error);
}

gpumem_status gpumem_managed_discard_batch(gpumem_stream stream, const gpumem_managed_range* ranges,
                                           uint64_t count, gpumem_error* error) {
  return move_batch(__func__, stream, core::Batch::kDiscard, ranges, count, error);
}

gpumem_status gpumem_managed_discard_and_prefetch_batch(gpumem_stream stream,
                                                        const gpumem_managed_range* ranges, uint64_t count,
                                                        gpumem_error* error) {
  return move_batch(__func__, stream, core::Batch::kDiscardAndPrefetch, ranges, count, error);
}

gpumem_status gpumem_managed_get_info(gpumem_instance instance, const void* pointer, uint64_t size,
                                      gpumem_managed_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode_range(decode, pointer, size);
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    auto facts = core::managed_facts(object->context(), pointer, size);
    if (!facts) return facts.error();
    gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
    info.read_mostly = facts->read_mostly ? 1 : 0;
    info.preferred_location = facts->preferred.type;
    info.preferred_location_id = facts->preferred.id;
    info.last_prefetch_location = facts->last_prefetch.type;
    info.last_prefetch_location_id = facts->last_prefetch.id;
    info.accessed_by_host = facts->accessed_by_host ? 1 : 0;
    info.accessed_by_devices = facts->accessed_by_devices;
    capi::answer(out_info, info);
    return GPUMEM_SUCCESS;
  });
}

namespace {

// The fast path of the guard, if there is nothing to wait for or count.
bool unguarded(gpumem_instance instance, const void* pointer, gpumem_error* error) {
  return capi::look(error, [&](uint32_t process) {
    const core::InstanceObject* const known = capi::peek<core::InstanceObject>(instance, process);
    return known != nullptr && pointer != nullptr && core::needs_no_guard(known->context(), pointer);
  });
}

}  // namespace

gpumem_status gpumem_managed_begin_host_access(gpumem_instance instance, const void* pointer,
                                               gpumem_error* error) {
  if (unguarded(instance, pointer, error)) return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::begin_host_access(object->context(), pointer));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_managed_end_host_access(gpumem_instance instance, const void* pointer,
                                             gpumem_error* error) {
  if (unguarded(instance, pointer, error)) return GPUMEM_SUCCESS;
  return capi::call(__func__, error, [=](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    decode.not_null(pointer, "pointer");
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::end_host_access(object->context(), pointer));
    return GPUMEM_SUCCESS;
  });
}
