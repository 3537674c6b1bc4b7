// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/copy.h"

#include <deque>
#include <utility>

#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/host_function.h"
#include "core/instance.h"
#include "core/log.h"
#include "core/operand.h"
#include "platform/pages.h"

namespace gpumem::core {
namespace {

// Whether a row of one side of a copy, which begins at `base`, has a byte in [first, first + width).
bool has_row_in(const CopyArguments& box, const CopySide& side, uint64_t base, uint64_t first) {
  // Only the first slice, and in it the first row, that ends behind `first` may reach in.
  const uint64_t slice_extent = (box.height - 1) * side.pitch + box.width;
  const bool in_first_slice = box.depth == 1 || first < base + slice_extent;
  const uint64_t slice = in_first_slice ? 0 : (first - base - slice_extent) / side.slice_pitch + 1;
  if (slice >= box.depth) return false;
  const uint64_t start = base + slice * side.slice_pitch;
  const bool in_first_row = box.height == 1 || first < start + box.width;
  const uint64_t row = in_first_row ? 0 : (first - start - box.width) / side.pitch + 1;
  if (row >= box.height) return false;
  const uint64_t found = start + row * side.pitch;
  return found < first + box.width && first < found + box.width;
}

// Whether a row of the destination and one of the source have a byte in common: boxes may lie in one
// another's gaps.
bool rows_meet(const CopyArguments& box, uint64_t to, uint64_t from) {
  for (uint64_t slice = 0; slice < box.depth; ++slice) {
    for (uint64_t row = 0; row < box.height; ++row) {
      const uint64_t first = to + slice * box.destination.slice_pitch + row * box.destination.pitch;
      if (has_row_in(box, box.source, from, first)) return true;
    }
  }
  return false;
}

// Whether the ranges have a byte in common, as addresses or under two addresses of one memory (UVA-9).
bool overlap(const CopyArguments& arguments, const FoundOperand& destination, const FoundOperand& source) {
  if (destination.memory.get() != source.memory.get()) return false;
  const bool own = destination.memory.get() != nullptr;
  const uint64_t to = own ? destination.operand.offset : address_of(destination.operand.address);
  const uint64_t from = own ? source.operand.offset : address_of(source.operand.address);
  const uint64_t distance = to > from ? to - from : from - to;
  if (distance >= (to > from ? arguments.source.extent : arguments.destination.extent)) return false;
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

Result<void> check_destination(const FoundOperand& found, uint64_t extent) {
  const void* const address = found.operand.address;
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

// A copy that has been checked.
struct CheckedCopy {
  CopyArguments arguments;
  FoundOperand destination;
  FoundOperand source;
  Device* device = nullptr;
  uint64_t index = 0;  // among the entries of the call
};

Result<FoundOperand> find_side(Instance& instance, CopySide& side, const char* what) {
  if (side.memory) return operand_of(std::move(side.memory), side.offset, side.extent, what);
  return find_operand(instance, side.address, side.extent, what);
}

// `usable` says whether the stream is; a check may be one of many on it.
Result<CheckedCopy> check_copy(Instance& instance, Stream* stream, const Result<void>& usable,
                               CopyArguments arguments) {
  auto destination = find_side(instance, arguments.destination, "the destination");
  auto source = find_side(instance, arguments.source, "the source");
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
  GPUMEM_TRY(usable);
  if (stream == nullptr) GPUMEM_TRY(device.usable());
  GPUMEM_TRY(check_destination(*destination, arguments.destination.extent));
  return CheckedCopy{std::move(arguments), std::move(*destination), std::move(*source), &device};
}

// Enqueues slice by slice, or all at once where nothing lies between the rows.
Result<void> enqueue_copy(backend::Stream& stream, CheckedCopy& copy) {
  const CopyArguments& box = copy.arguments;
  const CopySide& to = box.destination;
  const CopySide& from = box.source;
  backend::CopyRequest request;
  request.destination = std::move(copy.destination.operand);
  request.source = std::move(copy.source.operand);
  request.source_order = box.source_order;
  if (to.extent == box.width * box.height * box.depth && from.extent == to.extent) {
    request.width = to.extent;
    return stream.copy(request);
  }
  request.destination_pitch = to.pitch;
  request.source_pitch = from.pitch;
  request.width = box.width;
  request.height = box.height;
  const auto advance = [](backend::Operand& operand, uint64_t bytes) {
    operand.offset += bytes;
    operand.address = pointer_to(address_of(operand.address) + bytes);
  };
  for (uint64_t slice = 0; slice < box.depth; ++slice) {
    GPUMEM_TRY(stream.copy(request));
    advance(request.destination, to.slice_pitch);
    advance(request.source, from.slice_pitch);
  }
  return {};
}

// Streams of our own, one for each device that the copies of a call run on. They are idle when they go back,
// also after an exception.
class BorrowedStreams {
 public:
  BorrowedStreams() = default;
  BorrowedStreams(const BorrowedStreams&) = delete;
  BorrowedStreams& operator=(const BorrowedStreams&) = delete;
  ~BorrowedStreams() {
    try {
      if (!idle_) (void)synchronize();
    } catch (const std::exception& problem) {
      log(GPUMEM_LOG_ERROR, "copies of a failed call could not be waited for: %s", problem.what());
    }
    for (auto& [device, stream] : streams_)
      device->return_stream(std::move(stream));
  }

  Result<backend::Stream*> of(Device& device) {
    idle_ = false;
    for (const auto& [known, stream] : streams_) {
      if (known == &device) return stream.get();
    }
    streams_.reserve(streams_.size() + 1);
    auto borrowed = device.borrow_stream();
    if (!borrowed) return borrowed.error();
    return streams_.emplace_back(&device, std::move(*borrowed)).second.get();
  }

  Result<void> synchronize() {
    Result<void> result;
    for (const auto& [device, stream] : streams_) {
      auto complete = stream->synchronize(GPUMEM_TIMEOUT_INFINITE);
      if (!complete && result) result = complete.error();
    }
    idle_ = true;
    return result;
  }

 private:
  bool idle_ = true;
  std::vector<std::pair<Device*, std::shared_ptr<backend::Stream>>> streams_;
};

}  // namespace

Result<void> copy(Instance& instance, Stream* stream, CopyArguments arguments) {
  GPUMEM_TRY(outside_host_function());
  const Result<void> usable = stream != nullptr ? stream->usable() : Result<void>();
  auto checked = check_copy(instance, stream, usable, std::move(arguments));
  if (!checked) return checked.error();
  if (stream != nullptr) return enqueue_copy(stream->backend(), *checked);
  const PassingUse writes(checked->destination.memory.get());
  const PassingUse reads(checked->source.memory.get());
  BorrowedStreams streams;
  auto own = streams.of(*checked->device);
  if (!own) return own.error();
  auto enqueued = enqueue_copy(**own, *checked);
  auto complete = streams.synchronize();
  return enqueued ? complete : enqueued;
}

Result<void> copy_all(Instance& instance, Stream* stream, std::vector<CopyArguments> entries,
                      uint64_t* index) {
  const uint64_t count = entries.size();
  *index = count;
  GPUMEM_TRY(outside_host_function());
  const Result<void> usable = stream != nullptr ? stream->usable() : Result<void>();
  std::vector<CheckedCopy> checked;
  checked.reserve(count);
  std::deque<PassingUse> uses;
  for (*index = 0; *index < count; ++*index) {
    if (entries[*index].width == 0) continue;
    auto good = check_copy(instance, stream, usable, std::move(entries[*index]));
    if (!good) return good.error();
    CheckedCopy& entry = checked.emplace_back(std::move(*good));
    entry.index = *index;
    if (stream == nullptr) {
      uses.emplace_back(entry.destination.memory.get());
      uses.emplace_back(entry.source.memory.get());
    }
  }

  BorrowedStreams streams;
  Result<void> enqueued;
  for (CheckedCopy& entry : checked) {
    *index = entry.index;
    auto target = stream != nullptr ? Result(&stream->backend()) : streams.of(*entry.device);
    enqueued = target ? enqueue_copy(**target, entry) : Result<void>(target.error());
    if (!enqueued) break;
  }
  if (enqueued) *index = count;
  auto complete = streams.synchronize();
  return enqueued ? complete : enqueued;
}

Result<void> fill(Instance& instance, Stream* stream, const FillArguments& arguments) {
  GPUMEM_TRY(outside_host_function());
  auto destination = find_operand(instance, arguments.destination, arguments.extent, "the destination");
  if (!destination) return destination.error();
  Device& device = stream != nullptr ? stream->device() : choose_device(instance, *destination, nullptr);
  GPUMEM_TRY(check_device(instance, *destination));
  GPUMEM_TRY(check_usable(stream, device));
  GPUMEM_TRY(check_destination(*destination, arguments.extent));

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
