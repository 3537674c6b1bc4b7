// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/copy/copy.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstring>

#include "base/cleanup.h"
#include "call.h"
#include "core/object/context.h"
#include "gpumem/copy.h"

using namespace gpumem;

namespace {

// Where a copy or fill is done: in a stream, or else without one by an instance, until it is complete.
template <class Handle>
struct PlaceOf;
template <>
struct PlaceOf<gpumem_stream> {
  using Object = core::Stream;
  static core::Stream* stream(core::Stream& stream) { return &stream; }
};
template <>
struct PlaceOf<gpumem_instance> {
  using Object = core::InstanceObject;
  static core::Stream* stream(core::InstanceObject&) { return nullptr; }
};

struct Extents {
  uint64_t width = 0;
  uint64_t height = 1;
  uint64_t depth = 1;

  bool empty() const { return width == 0 || height == 0 || depth == 0; }
};

[[gnu::noinline]] uint64_t decode_rows(capi::Decoder& decode, const void* first, uint64_t pitch,
                                       uint64_t slice_pitch, const Extents& extents, const char* what) {
  uint64_t slice = 0;
  uint64_t extent = 0;
  const bool fits = multiply(pitch, extents.height - 1, &slice) && add(slice, extents.width, &slice) &&
                    multiply(slice_pitch, extents.depth - 1, &extent) && add(extent, slice, &extent) &&
                    extent <= kSizeMax && !add_wraps(address_of(first), extent);
  if (!fits) {
    decode.refuse("the range of the %s exceeds 2^63-1 bytes or wraps around the address space", what);
  }
  if (pitch < extents.width) {
    decode.refuse("the pitch of the %s is %" PRIu64 ", which is less than the width of %" PRIu64, what, pitch,
                  extents.width);
  }
  if (fits && extents.depth != 1 && slice_pitch < slice) {
    decode.refuse("the slice pitch of the %s is %" PRIu64 ", but the rows of a slice span %" PRIu64 " bytes",
                  what, slice_pitch, slice);
  }
  return extent;
}

// Bytes from the first to the last one that the rows touch; 0 if there are none.
[[gnu::always_inline]] inline uint64_t decode_extent(capi::Decoder& decode, const void* first, uint64_t pitch,
                                                     uint64_t slice_pitch, const Extents& extents,
                                                     const char* what) {
  if (extents.empty()) return 0;
  const bool one_row = extents.height == 1 && extents.depth == 1;
  if (one_row && pitch >= extents.width && extents.width <= kSizeMax &&
      !add_wraps(address_of(first), extents.width)) [[likely]] {
    return extents.width;
  }
  return decode_rows(decode, first, pitch, slice_pitch, extents, what);
}

void decode_choices(capi::Decoder& decode, gpumem_direction direction, gpumem_source_order source_order) {
  if (direction < GPUMEM_DIRECTION_INFER || direction > GPUMEM_DIRECTION_DEVICE_TO_DEVICE) {
    decode.not_a_value("the direction", "GPUMEM_DIRECTION_", direction);
  }
  if (source_order < GPUMEM_SOURCE_ORDER_STREAM || source_order > GPUMEM_SOURCE_ORDER_ANY) {
    decode.not_a_value("the source order", "GPUMEM_SOURCE_ORDER_", source_order);
  }
}

struct Rectangle {
  void* destination;
  uint64_t destination_pitch;
  const void* source;
  uint64_t source_pitch;
  uint64_t width;
  uint64_t height;
};

[[gnu::always_inline]] inline void decode_side(capi::Decoder& decode, const void* first, uint64_t pitch,
                                               const Extents& extents, const char* what,
                                               core::CopySide* out) {
  if (!extents.empty()) decode.not_null(first, what);
  out->address = const_cast<void*>(first);
  out->pitch = pitch;
  out->extent = decode_extent(decode, first, pitch, 0, extents, what);
}

// A call with a stream seldom waits; the core knows when.
template <class Body>
gpumem_status call_at(gpumem_instance /*where*/, const char* function, gpumem_error* error, Body body) {
  return capi::call(function, error, std::move(body));
}
template <class Body>
gpumem_status call_at(gpumem_stream /*where*/, const char* function, gpumem_error* error, Body body) {
  return capi::call_briefly(function, error, std::move(body));
}

template <class Handle>
gpumem_status do_copy(const char* function, Handle where, const Rectangle& rectangle,
                      const gpumem_copy_options* options, gpumem_error* error) {
  return call_at(where, function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto place = decode.object_briefly<typename PlaceOf<Handle>::Object>(where);
    const gpumem_copy_options given = decode.optional_input(options, "options");
    decode_choices(decode, given.direction, given.source_order);
    const Extents extents{rectangle.width, rectangle.height};
    core::CopyArguments arguments;
    decode_side(decode, rectangle.destination, rectangle.destination_pitch, extents, "destination",
                &arguments.destination);
    decode_side(decode, rectangle.source, rectangle.source_pitch, extents, "source", &arguments.source);
    arguments.width = rectangle.width;
    arguments.height = rectangle.height;
    arguments.direction = given.direction;
    arguments.source_order = given.source_order;
    GPUMEM_TRY(decode.done());
    if (extents.empty()) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::copy(place->context(), PlaceOf<Handle>::stream(*place), arguments));
    return GPUMEM_SUCCESS;
  });
}

// The memories that the regions of a call name.
using Held = std::vector<core::Ref<core::Memory>>;

// `instance` is null if the call's own handle is bad.
void decode_operand(capi::Decoder& decode, core::Context* instance, const gpumem_copy_operand& given,
                    const Extents& extents, const char* what, Held& held, core::CopySide* out) {
  core::CopySide& side = *out;
  if ((given.memory != nullptr) == (given.pointer != nullptr)) {
    decode.refuse("the %s has %s; set exactly one of memory and pointer", what,
                  given.memory != nullptr ? "a memory and a pointer" : "neither memory nor pointer");
  }
  if (given.pointer != nullptr && given.offset != 0) {
    decode.refuse("the %s has an offset and a pointer; an offset needs a memory", what);
  }
  if (given.memory != nullptr) {
    auto memory = decode.object<core::Memory>(given.memory);
    if (memory && instance != nullptr && &memory->context() != instance) {
      decode.refuse("the memory of the %s belongs to another instance", what);
    }
    side.memory = memory.get();
    held.push_back(std::move(memory));
  }
  side.address = given.pointer;
  side.offset = given.offset;
  side.pitch = given.row_pitch != 0 ? given.row_pitch : extents.width;
  side.slice_pitch = given.slice_pitch;
  if (given.slice_pitch == 0 && !multiply(side.pitch, extents.height, &side.slice_pitch)) {
    side.slice_pitch = UINT64_MAX;  // refused with the extent, if there is a second slice
  }
  side.extent = decode_extent(decode, given.pointer, side.pitch, side.slice_pitch, extents, what);
}

core::CopyArguments decode_region(capi::Decoder& decode, core::Context* instance,
                                  const gpumem_copy_region* region, uint64_t index, size_t stride,
                                  Held& held) {
  char name[32] = "regions[";
  std::memcpy(std::to_chars(name + 8, name + sizeof name - 2, index).ptr, "]", 2);  // snprintf takes longer
  // Check this first: with another size, the rest of the region may lie behind the end of the array.
  if (region->struct_size != stride) {
    decode.refuse("%s has struct_size %zu, but the first region has %zu", name, region->struct_size, stride);
    return {};
  }
  const gpumem_copy_region given = decode.input(region, name);
  const auto inside = decode.inside(name);
  if (stride % alignof(gpumem_copy_region) != 0) {
    decode.refuse(
        "struct_size is %zu, which cannot be the distance between regions; set it to "
        "sizeof(gpumem_copy_region)",
        stride);
  }
  decode_choices(decode, given.direction, given.source_order);
  core::CopyArguments arguments;
  if (given.width == 0) return arguments;
  const Extents extents{given.width, std::max<uint64_t>(given.height, 1), std::max<uint64_t>(given.depth, 1)};
  decode_operand(decode, instance, given.destination, extents, "destination", held, &arguments.destination);
  decode_operand(decode, instance, given.source, extents, "source", held, &arguments.source);
  arguments.width = extents.width;
  arguments.height = extents.height;
  arguments.depth = extents.depth;
  arguments.direction = given.direction;
  arguments.source_order = given.source_order;
  return arguments;
}

template <class Handle>
gpumem_status do_copy_regions(const char* function, Handle where, const gpumem_copy_region* regions,
                              uint64_t count, uint64_t* out_failed, gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto place = decode.object_briefly<typename PlaceOf<Handle>::Object>(where);
    core::Context* const instance = place ? &place->context() : nullptr;
    core::Stream* const stream = place ? PlaceOf<Handle>::stream(*place) : nullptr;
    if (count != 0) {
      decode.not_null(regions, "regions");
      if (stream != nullptr && stream->is_default()) {
        decode.refuse("the stream is the default stream, which takes no batches; use a stream of your own");
      }
    }
    const size_t stride = count != 0 && regions != nullptr ? regions->struct_size : 0;
    uint64_t bytes = 0;
    if (stride <= capi::kStructSizeMax &&
        (!multiply(stride, count, &bytes) || add_wraps(address_of(regions), bytes))) {
      decode.refuse("an array of %" PRIu64 " regions wraps around the address space", count);
    }
    const bool own_good = decode.done().ok();
    Held held;
    std::vector<core::CopyArguments> entries;
    uint64_t index = 0;
    // Always check the first region, because a bad one can outrank a stale handle (COM-17).
    for (; regions != nullptr && index < count; ++index) {
      const auto* region = reinterpret_cast<const gpumem_copy_region*>(
          reinterpret_cast<const unsigned char*>(regions) + index * stride);
      entries.push_back(decode_region(decode, instance, region, index, stride, held));
      if (!decode.done()) break;
    }
    if (auto good = decode.done(); !good) {
      if (own_good && out_failed != nullptr) *out_failed = index;
      return good.error();
    }
    index = count;
    // Name the entry also for an exception, such as out of memory.
    const Cleanup name_entry([&] {
      if (index < count && out_failed != nullptr) *out_failed = index;
    });
    GPUMEM_TRY(core::copy_all(place->context(), stream, entries, &index));
    return GPUMEM_SUCCESS;
  });
}

template <class Handle>
gpumem_status do_fill(const char* function, Handle where, core::FillArguments arguments,
                      gpumem_error* error) {
  return call_at(where, function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto place = decode.object_briefly<typename PlaceOf<Handle>::Object>(where);
    const uint32_t unit = arguments.value_size;
    const bool known_unit = unit == 1 || unit == 2 || unit == 4;
    if (!known_unit) decode.refuse("value_size is %u; it must be 1, 2 or 4", unit);
    const Extents extents{arguments.width, arguments.height};
    if (!extents.empty()) decode.not_null(arguments.destination, "destination");
    if (known_unit && !extents.empty()) {
      if (address_of(arguments.destination) % unit != 0) {
        decode.refuse("the destination %p is not aligned to %u bytes", arguments.destination, unit);
      }
      const bool width = arguments.width % unit != 0;
      if (width || arguments.pitch % unit != 0) {
        decode.refuse("the %s of %" PRIu64 " bytes is not a multiple of value_size, which is %u",
                      !width                  ? "pitch"
                      : arguments.height == 1 ? "size"
                                              : "width",
                      width ? arguments.width : arguments.pitch, unit);
      }
    }
    arguments.extent =
        decode_extent(decode, arguments.destination, arguments.pitch, 0, extents, "destination");
    GPUMEM_TRY(decode.done());
    if (extents.empty()) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::fill(place->context(), PlaceOf<Handle>::stream(*place), arguments));
    return GPUMEM_SUCCESS;
  });
}

core::FillArguments fill_arguments(void* destination, uint64_t pitch, uint64_t width, uint64_t height,
                                   uint32_t value, uint32_t value_size) {
  core::FillArguments arguments;
  arguments.destination = destination;
  arguments.pitch = pitch;
  arguments.width = width;
  arguments.height = height;
  arguments.value = value;
  arguments.value_size = value_size;
  return arguments;
}

}  // namespace

gpumem_status gpumem_copy(gpumem_instance instance, void* destination, const void* source, uint64_t size,
                          const gpumem_copy_options* options, gpumem_error* error) {
  return do_copy(__func__, instance, {destination, size, source, size, size, 1}, options, error);
}

// Flattened, like gpumem_fill_async(), so that the compiler drops what a single row does not need.
[[gnu::flatten]] gpumem_status gpumem_copy_async(gpumem_stream stream, void* destination, const void* source,
                                                 uint64_t size, const gpumem_copy_options* options,
                                                 gpumem_error* error) {
  return do_copy(__func__, stream, {destination, size, source, size, size, 1}, options, error);
}

gpumem_status gpumem_copy_2d(gpumem_instance instance, void* destination, uint64_t destination_pitch,
                             const void* source, uint64_t source_pitch, uint64_t width, uint64_t height,
                             const gpumem_copy_options* options, gpumem_error* error) {
  return do_copy(__func__, instance, {destination, destination_pitch, source, source_pitch, width, height},
                 options, error);
}

gpumem_status gpumem_copy_2d_async(gpumem_stream stream, void* destination, uint64_t destination_pitch,
                                   const void* source, uint64_t source_pitch, uint64_t width, uint64_t height,
                                   const gpumem_copy_options* options, gpumem_error* error) {
  return do_copy(__func__, stream, {destination, destination_pitch, source, source_pitch, width, height},
                 options, error);
}

gpumem_status gpumem_copy_regions(gpumem_instance instance, const gpumem_copy_region* regions, uint64_t count,
                                  uint64_t* out_failed, gpumem_error* error) {
  return do_copy_regions(__func__, instance, regions, count, out_failed, error);
}

gpumem_status gpumem_copy_regions_async(gpumem_stream stream, const gpumem_copy_region* regions,
                                        uint64_t count, uint64_t* out_failed, gpumem_error* error) {
  return do_copy_regions(__func__, stream, regions, count, out_failed, error);
}

gpumem_status gpumem_fill(gpumem_instance instance, void* destination, uint64_t size, uint32_t value,
                          uint32_t value_size, gpumem_error* error) {
  return do_fill(__func__, instance, fill_arguments(destination, size, size, 1, value, value_size), error);
}

[[gnu::flatten]] gpumem_status gpumem_fill_async(gpumem_stream stream, void* destination, uint64_t size,
                                                 uint32_t value, uint32_t value_size, gpumem_error* error) {
  return do_fill(__func__, stream, fill_arguments(destination, size, size, 1, value, value_size), error);
}

gpumem_status gpumem_fill_2d(gpumem_instance instance, void* destination, uint64_t pitch, uint64_t width,
                             uint64_t height, uint32_t value, uint32_t value_size, gpumem_error* error) {
  return do_fill(__func__, instance, fill_arguments(destination, pitch, width, height, value, value_size),
                 error);
}

gpumem_status gpumem_fill_2d_async(gpumem_stream stream, void* destination, uint64_t pitch, uint64_t width,
                                   uint64_t height, uint32_t value, uint32_t value_size,
                                   gpumem_error* error) {
  return do_fill(__func__, stream, fill_arguments(destination, pitch, width, height, value, value_size),
                 error);
}
