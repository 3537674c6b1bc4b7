// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A request for memory of any sort, for tests that make all of them in one way.
#pragma once

#include <cstdint>
#include <memory>

#include "contract/backend.h"

namespace gpumem::test {

enum class Sort { kDevice, kPinned, kRegistered };

struct Request : backend::MemoryRequest {
  Sort sort = Sort::kDevice;  // in place of the other one
  void* pointer = nullptr;    // of what is registered
};

using MemoryPointer = std::shared_ptr<backend::Memory>;

inline Result<MemoryPointer> create_memory(backend::Device& device, const Request& request) {
  backend::RegistrationRequest registration;
  registration.pointer = request.pointer;
  registration.size = request.size;
  registration.require = request.require;
  registration.prefer = request.prefer;
  backend::MemoryRequest allocation = request;
  allocation.sort =
      request.sort == Sort::kDevice ? backend::MemorySort::kDevice : backend::MemorySort::kPinned;
  auto made = request.sort == Sort::kRegistered ? device.register_memory(registration)
                                                : device.create_memory(allocation);
  if (!made) return made.error();
  return MemoryPointer(std::move(*made));
}

// Bytes of memory as the layers above find them.
inline backend::Span span_in(Sort sort, const MemoryPointer& memory, uint64_t offset = 0) {
  const backend::MemoryFacts& facts = memory->facts();
  void* const base = facts.host_pointer != nullptr ? facts.host_pointer : facts.device_pointer;
  backend::Span span;
  span.memory = memory.get();
  span.offset = offset;
  span.address = static_cast<char*>(base) + offset;
  span.on_device = sort == Sort::kDevice;
  span.registered = sort == Sort::kRegistered;
  return span;
}

inline backend::Span pageable(const void* address) {
  backend::Span span;
  span.address = const_cast<void*>(address);
  span.pageable = true;
  return span;
}

inline backend::CopySegment copy_of(const backend::Span& destination, const backend::Span& source,
                                    uint64_t size) {
  backend::CopySegment segment;
  segment.destination = destination;
  segment.source = source;
  segment.width = size;
  return segment;
}

inline backend::FillSegment fill_of(const backend::Span& destination, uint64_t size, uint32_t value,
                                    uint32_t value_size = 1) {
  backend::FillSegment segment;
  segment.destination = destination;
  segment.width = size;
  segment.value = value;
  segment.value_size = value_size;
  return segment;
}

}  // namespace gpumem::test
