// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/copy.h"

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/host_function.h"
#include "core/instance.h"
#include "core/log.h"
#include "core/operand.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

// Whether a row of the destination and one of the source have a byte in common: rectangles may lie in one
// another's gaps.
bool rows_meet(const CopyArguments& arguments, uint64_t to, uint64_t from) {
  const uint64_t width = arguments.width;
  for (uint64_t row = 0; row < arguments.height; ++row) {
    const uint64_t first = to + row * arguments.destination_pitch;
    // The only row of the source that may reach in is the first one that ends behind this byte.
    const uint64_t other = first < from + width ? 0 : (first - from - width) / arguments.source_pitch + 1;
    if (other < arguments.height && from + other * arguments.source_pitch < first + width) return true;
  }
  return false;
}

// Whether the ranges have a byte in common, as addresses or under two addresses of one memory (UVA-9).
bool overlap(const CopyArguments& arguments, const FoundOperand& destination, const FoundOperand& source) {
  if (destination.memory.get() != source.memory.get()) return false;
  const bool own = destination.memory.get() != nullptr;
  const uint64_t to = own ? destination.operand.offset : address_of(arguments.destination);
  const uint64_t from = own ? source.operand.offset : address_of(arguments.source);
  const uint64_t distance = to > from ? to - from : from - to;
  if (distance >= (to > from ? arguments.source_extent : arguments.destination_extent)) return false;
  return rows_meet(arguments, to, from);
}

Result<void> check_direction(gpumem_direction direction, const FoundOperand& destination,
                             const FoundOperand& source) {
  if (direction == GPUMEM_DIRECTION_INFER) return {};
  const bool to_device =
      direction == GPUMEM_DIRECTION_HOST_TO_DEVICE || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  const bool from_device =
      direction == GPUMEM_DIRECTION_DEVICE_TO_HOST || direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  const auto contradicts = [](const char* what, const FoundOperand& found) {
    return make_error(
        GPUMEM_ERROR_INVALID_ARGUMENT,
        "the direction contradicts the pointers: the %s is %s memory; pass GPUMEM_DIRECTION_INFER", what,
        kind_name(found.operand.kind));
  };
  if (destination.operand.on_device != to_device) return contradicts("destination", destination);
  if (source.operand.on_device != from_device) return contradicts("source", source);
  return {};
}

Result<void> check_destination(const FoundOperand& found, const void* address, uint64_t extent) {
  if (found.memory && found.memory->has(GPUMEM_MEMORY_READ_ONLY)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the destination was registered with GPUMEM_MEMORY_READ_ONLY");
  }
  if (found.operand.kind != GPUMEM_KIND_PAGEABLE) return {};
  const uint64_t last = address_of(address) + extent - 1;
  if (!platform::writable(address, 1) || !platform::writable(pointer_to(last), 1)) {
    return make_error(GPUMEM_ERROR_NO_ACCESS, "the destination at %p may only be read", address);
  }
  return {};
}

// The device of an operand must not be lost, whichever device does the work.
Result<void> check_device(Instance& instance, const FoundOperand& found) {
  if (found.device_ordinal < 0) return {};
  return instance.devices()[static_cast<size_t>(found.device_ordinal)]->usable();
}

// Where work without a stream runs: at the memory it writes, else at the memory it reads.
Device& choose_device(Instance& instance, const FoundOperand& destination, const FoundOperand* source) {
  const auto& devices = instance.devices();
  if (destination.operand.on_device) return *devices[static_cast<size_t>(destination.device_ordinal)];
  if (source != nullptr && source->operand.on_device)
    return *devices[static_cast<size_t>(source->device_ordinal)];
  if (destination.device_ordinal >= 0) return *devices[static_cast<size_t>(destination.device_ordinal)];
  if (source != nullptr && source->device_ordinal >= 0)
    return *devices[static_cast<size_t>(source->device_ordinal)];
  return *devices.front();
}

// Hands the work to the stream, or to one of our own and waits (STR-7).
template <class Request>
Result<void> run(Stream* stream, Device& device, const Request& request,
                 Result<void> (backend::Stream::*enqueue)(const Request&)) {
  if (stream != nullptr) return (stream->backend().*enqueue)(request);
  auto borrowed = device.borrow_stream();
  if (!borrowed) return borrowed.error();
  Cleanup give_back([&] { device.return_stream(std::move(*borrowed)); });
  GPUMEM_TRY(((*borrowed).get()->*enqueue)(request));
  auto complete = (*borrowed)->synchronize(GPUMEM_TIMEOUT_INFINITE);
  if (!complete) return complete.error();
  return {};
}

Result<void> check_usable(Stream* stream, Device& device) {
  return stream != nullptr ? stream->usable() : device.usable();
}

}  // namespace

Result<void> copy(Instance& instance, Stream* stream, const CopyArguments& arguments) {
  GPUMEM_TRY(outside_host_function());
  auto destination =
      find_operand(instance, arguments.destination, arguments.destination_extent, "the destination");
  auto source = find_operand(instance, arguments.source, arguments.source_extent, "the source");
  // That nothing is there comes before a range that leaves its object, on whichever side (COM-17).
  if (!source && source.error().status == GPUMEM_ERROR_NOT_FOUND) return source.error();
  if (!destination) return destination.error();
  if (!source) return source.error();
  if (overlap(arguments, *destination, *source)) {
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "source and destination overlap; copy through other memory");
  }
  GPUMEM_TRY(check_direction(arguments.direction, *destination, *source));
  Device& device = stream != nullptr ? stream->device() : choose_device(instance, *destination, &*source);
  GPUMEM_TRY(check_device(instance, *destination));
  GPUMEM_TRY(check_device(instance, *source));
  GPUMEM_TRY(check_usable(stream, device));
  GPUMEM_TRY(check_destination(*destination, arguments.destination, arguments.destination_extent));

  const PassingUse writes(stream == nullptr ? destination->memory.get() : nullptr);
  const PassingUse reads(stream == nullptr ? source->memory.get() : nullptr);
  backend::CopyRequest request;
  request.destination = std::move(destination->operand);
  request.source = std::move(source->operand);
  request.source_order = arguments.source_order;
  if (arguments.destination_pitch == arguments.width && arguments.source_pitch == arguments.width) {
    request.width = arguments.destination_extent;  // rows without gaps are one row
  } else {
    request.destination_pitch = arguments.destination_pitch;
    request.source_pitch = arguments.source_pitch;
    request.width = arguments.width;
    request.height = arguments.height;
  }
  return run(stream, device, request, &backend::Stream::copy);
}

Result<void> fill(Instance& instance, Stream* stream, const FillArguments& arguments) {
  GPUMEM_TRY(outside_host_function());
  auto destination = find_operand(instance, arguments.destination, arguments.extent, "the destination");
  if (!destination) return destination.error();
  Device& device = stream != nullptr ? stream->device() : choose_device(instance, *destination, nullptr);
  GPUMEM_TRY(check_device(instance, *destination));
  GPUMEM_TRY(check_usable(stream, device));
  GPUMEM_TRY(check_destination(*destination, arguments.destination, arguments.extent));

  const PassingUse writes(stream == nullptr ? destination->memory.get() : nullptr);
  backend::FillRequest request;
  request.destination = std::move(destination->operand);
  request.value = arguments.value;
  request.value_size = arguments.value_size;
  if (arguments.pitch == arguments.width) {
    request.width = arguments.extent;
  } else {
    request.pitch = arguments.pitch;
    request.width = arguments.width;
    request.height = arguments.height;
  }
  return run(stream, device, request, &backend::Stream::fill);
}

}  // namespace gpumem::core
