// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/copy.h"

#include <cinttypes>

#include "call.h"
#include "core/instance.h"
#include "gpumem/copy.h"

using namespace gpumem;

void gpumem_copy_options_init(gpumem_copy_options* out_options) {
  if (out_options != nullptr) *out_options = GPUMEM_COPY_OPTIONS_INIT;
}

namespace {

// The instance and, unless it is NULL, the stream of a copy or fill.
struct Place {
  core::Ref<core::InstanceObject> instance;
  core::Ref<core::Stream> stream;
};

Place decode_place(capi::Decoder& decode, gpumem_instance instance, gpumem_stream stream) {
  Place place;
  place.instance = decode.object<core::InstanceObject>(instance);
  if (stream != nullptr) place.stream = decode.object<core::Stream>(stream);
  if (place.instance && place.stream) {
    decode.require(&place.instance->instance() == &place.stream->instance(),
                   "the stream belongs to another instance");
  }
  return place;
}

// Bytes from the first to the last one that rows touch; 0 if there are none.
uint64_t decode_extent(capi::Decoder& decode, const void* first, uint64_t pitch, uint64_t width,
                       uint64_t height, const char* what) {
  if (width == 0 || height == 0) return 0;
  uint64_t extent = 0;
  const bool fits = multiply(pitch, height - 1, &extent) && add(extent, width, &extent) &&
                    extent <= kSizeMax && !add_wraps(address_of(first), extent);
  decode.require(fits, "the range of the %s is above 2^63-1 bytes or wraps around the address space", what);
  decode.require(height == 1 || pitch >= width,
                 "the pitch of the %s is %" PRIu64 ", below the width of %" PRIu64, what, pitch, width);
  return extent;
}

gpumem_status do_copy(const char* function, gpumem_instance instance, gpumem_stream stream,
                      core::CopyArguments arguments, const gpumem_copy_options* options,
                      gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Place place = decode_place(decode, instance, stream);
    const gpumem_copy_options given = decode.optional_input(options, "options");
    arguments.direction = given.direction;
    arguments.source_order = given.source_order;
    decode.require(
        given.direction >= GPUMEM_DIRECTION_INFER && given.direction <= GPUMEM_DIRECTION_DEVICE_TO_DEVICE,
        "the direction is %d, which is no GPUMEM_DIRECTION_ value", given.direction);
    decode.require(
        given.source_order >= GPUMEM_SOURCE_ORDER_STREAM && given.source_order <= GPUMEM_SOURCE_ORDER_ANY,
        "the source order is %d, which is no GPUMEM_SOURCE_ORDER_ value", given.source_order);
    const bool empty = arguments.width == 0 || arguments.height == 0;
    if (!empty) {
      decode.not_null(arguments.destination, "destination");
      decode.not_null(arguments.source, "source");
    }
    arguments.destination_extent = decode_extent(decode, arguments.destination, arguments.destination_pitch,
                                                 arguments.width, arguments.height, "destination");
    arguments.source_extent = decode_extent(decode, arguments.source, arguments.source_pitch, arguments.width,
                                            arguments.height, "source");
    GPUMEM_TRY(decode.done());
    if (empty) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::copy(place.instance->instance(), place.stream.get(), arguments));
    return GPUMEM_SUCCESS;
  });
}

gpumem_status do_fill(const char* function, gpumem_instance instance, gpumem_stream stream,
                      core::FillArguments arguments, gpumem_error* error) {
  return capi::call(function, error, [&](capi::Decoder& decode) -> Result<Status> {
    const Place place = decode_place(decode, instance, stream);
    const uint32_t unit = arguments.value_size;
    const bool known_unit = unit == 1 || unit == 2 || unit == 4;
    decode.require(known_unit, "value_size is %u; it must be 1, 2 or 4", unit);
    const bool empty = arguments.width == 0 || arguments.height == 0;
    if (!empty) decode.not_null(arguments.destination, "destination");
    if (known_unit && !empty) {
      decode.require(address_of(arguments.destination) % unit == 0,
                     "the destination %p is not aligned to %u bytes", arguments.destination, unit);
      decode.require(arguments.width % unit == 0 && (arguments.height == 1 || arguments.pitch % unit == 0),
                     "sizes must be multiples of the %u bytes of the value", unit);
    }
    arguments.extent = decode_extent(decode, arguments.destination, arguments.pitch, arguments.width,
                                     arguments.height, "destination");
    GPUMEM_TRY(decode.done());
    if (empty) return GPUMEM_SUCCESS;
    GPUMEM_TRY(core::fill(place.instance->instance(), place.stream.get(), arguments));
    return GPUMEM_SUCCESS;
  });
}

}  // namespace

gpumem_status gpumem_copy(gpumem_instance instance, gpumem_stream stream, void* destination,
                          const void* source, uint64_t size, const gpumem_copy_options* options,
                          gpumem_error* error) {
  core::CopyArguments arguments;
  arguments.destination = destination;
  arguments.source = source;
  arguments.destination_pitch = arguments.source_pitch = arguments.width = size;
  return do_copy(__func__, instance, stream, arguments, options, error);
}

gpumem_status gpumem_copy_2d(gpumem_instance instance, gpumem_stream stream, void* destination,
                             uint64_t destination_pitch, const void* source, uint64_t source_pitch,
                             uint64_t width, uint64_t height, const gpumem_copy_options* options,
                             gpumem_error* error) {
  core::CopyArguments arguments;
  arguments.destination = destination;
  arguments.source = source;
  arguments.destination_pitch = destination_pitch;
  arguments.source_pitch = source_pitch;
  arguments.width = width;
  arguments.height = height;
  return do_copy(__func__, instance, stream, arguments, options, error);
}

gpumem_status gpumem_fill(gpumem_instance instance, gpumem_stream stream, void* destination, uint64_t size,
                          uint32_t value, uint32_t value_size, gpumem_error* error) {
  core::FillArguments arguments;
  arguments.destination = destination;
  arguments.pitch = arguments.width = size;
  arguments.value = value;
  arguments.value_size = value_size;
  return do_fill(__func__, instance, stream, arguments, error);
}

gpumem_status gpumem_fill_2d(gpumem_instance instance, gpumem_stream stream, void* destination,
                             uint64_t pitch, uint64_t width, uint64_t height, uint32_t value,
                             uint32_t value_size, gpumem_error* error) {
  core::FillArguments arguments;
  arguments.destination = destination;
  arguments.pitch = pitch;
  arguments.width = width;
  arguments.height = height;
  arguments.value = value;
  arguments.value_size = value_size;
  return do_fill(__func__, instance, stream, arguments, error);
}
