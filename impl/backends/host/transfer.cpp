// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/host/transfer.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "backends/host/memory.h"
#include "platform/pages.h"

namespace gpumem::host {

namespace {

template <class T>
void fill_rows(const Rectangle& destination, T value) {
  for (uint64_t row = 0; row < destination.height; ++row) {
    std::byte* const first = destination.bytes.first + row * destination.pitch;
    std::fill_n(reinterpret_cast<T*>(first), destination.width / sizeof(T), value);
  }
}

}  // namespace

Result<void> require_reachable(const Rectangle& rectangle, Use use) {
  if (!rectangle.bytes.lent()) return {};
  const auto& allocation = rectangle.bytes.allocation;
  if (allocation != nullptr && allocation->given_back) {
    return make_error(GPUMEM_ERROR_INVALID_STATE, "the memory at %p is no longer registered",
                      static_cast<void*>(rectangle.bytes.first));
  }
  if (platform::find_denied_row(rectangle.bytes.first, rectangle.pitch, rectangle.width, rectangle.height,
                                use != Use::kRead) == nullptr)
    return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "the %s memory at %p is no longer mapped in a way that it can be %s",
                    rectangle.bytes.allocation == nullptr ? "pageable" : "registered",
                    static_cast<void*>(rectangle.bytes.first), use == Use::kRead ? "read" : "written");
}

Result<Rectangle> resolve(Shared& shared, const backend::Span& span, uint64_t pitch, uint64_t width,
                          uint64_t height) {
  Rectangle rectangle{{}, height > 1 ? pitch : width, width, height};
  Bytes& bytes = rectangle.bytes;
  if (span.pageable) {
    bytes.first = static_cast<std::byte*>(span.address);
    return rectangle;
  }
  if (span.memory == nullptr) {
    const std::lock_guard lock(shared.mutex);
    bytes.allocation = shared.table.find(span.address);
    if (bytes.allocation == nullptr || bytes.allocation->foreign_id == 0) {
      return make_error(GPUMEM_ERROR_NOT_FOUND, "the foreign memory at %p has been freed", span.address);
    }
    bytes.first =
        bytes.allocation->bytes + (address_of(span.address) - address_of(bytes.allocation->device_address));
    return rectangle;
  }
  if (span.in_range) {
    const std::lock_guard lock(shared.mutex);
    bytes.allocation = shared.table.find(span.address);
    if (bytes.allocation == nullptr) {
      return make_error(GPUMEM_ERROR_INVALID_STATE, "nothing is mapped at %p", span.address);
    }
    bytes.first =
        bytes.allocation->bytes + (address_of(span.address) - address_of(bytes.allocation->device_address));
    return rectangle;
  }
  bytes.allocation = static_cast<HostMemory&>(*span.memory).allocation();
  bytes.first = bytes.allocation->bytes + span.offset;
  const uint64_t extent = rectangle.pitch * (height - 1) + width;
  if (bytes.lent() && !platform::mapped(bytes.first, extent)) {
    return make_error(GPUMEM_ERROR_INVALID_STATE, "a page of the registered memory at %p is no longer mapped",
                      static_cast<void*>(bytes.first));
  }
  return rectangle;
}

Result<void> copy(const Rectangle& destination, const Rectangle& source) {
  GPUMEM_TRY(require_reachable(source, Use::kRead));
  GPUMEM_TRY(require_reachable(destination, Use::kWrite));
  const bool gapless = destination.pitch == destination.width && source.pitch == source.width;
  const uint64_t width = gapless ? source.width * source.height : source.width;
  for (uint64_t row = 0; row < (gapless ? 1 : source.height); ++row) {
    std::memcpy(destination.bytes.first + row * destination.pitch, source.bytes.first + row * source.pitch,
                width);
  }
  return {};
}

Result<void> fill(const Rectangle& destination, uint32_t value, uint32_t value_size) {
  GPUMEM_TRY(require_reachable(destination, Use::kWrite));
  switch (value_size) {
    case 1:
      fill_rows(destination, static_cast<uint8_t>(value));
      break;
    case 2:
      fill_rows(destination, static_cast<uint16_t>(value));
      break;
    default:
      fill_rows(destination, value);
      break;
  }
  return {};
}

}  // namespace gpumem::host
