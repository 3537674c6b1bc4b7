// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies and fills: one driver call for each segment.
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "backends/cuda/memory.h"
#include "backends/cuda/pieces.h"
#include "backends/cuda/pointer.h"
#include "backends/cuda/stream.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/fork.h"

namespace gpumem::cuda {
namespace {

// Managed memory has a side only by what the call says (MAN-32). Unified addressing locates foreign and
// device memory; it may not know ordinary memory.
bool is_foreign(const backend::Span& span) { return span.memory == nullptr && !span.pageable; }

CUmemorytype memory_type(const backend::Span& span) {
  if (span.managed) return span.on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  const bool foreign = is_foreign(span);
  return span.on_device || span.in_range || foreign ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_HOST;
}

// Blocks that copies read from and that are freed once their stream has passed them. On a lost device it
// never does.
struct Kept {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<void>> blocks;
  uint64_t last = 0;
};

constinit platform::PerProcess<Kept> kept_memory;

uint64_t keep(std::shared_ptr<void> block) {
  Kept& all = kept_memory.get();
  const std::lock_guard lock(all.mutex);
  all.blocks.emplace(all.last + 1, std::move(block));
  return ++all.last;
}

void CUDA_CB stop_keeping(void* number) {
  std::map<uint64_t, std::shared_ptr<void>>::node_type freed;  // outlives the lock
  Kept& all = kept_memory.get();
  const std::lock_guard lock(all.mutex);
  freed = all.blocks.extract(address_of(number));
}

// Whether the bytes lie in mapped blocks.
bool is_mapped(const backend::Span& span) {
  return span.in_range || (span.memory != nullptr && static_cast<const Memory&>(*span.memory).in_blocks());
}

constexpr const char* kNotEnqueued = "the copy cannot be enqueued";

}  // namespace

// Prefers the host address: the driver can reach it from any device.
[[gnu::flatten]] Result<void> Stream::copy(const backend::CopySegment& segment) {
  if (segment.keep != nullptr) return copy_and_keep(segment);
  return device_.check_enqueued(enqueue(segment), kNotEnqueued);
}

Result<void> Stream::copy_and_keep(const backend::CopySegment& segment) {
  void* const number = pointer_to(keep(*segment.keep));  // before anything is enqueued
  Cleanup undo([&] { stop_keeping(number); });
  GPUMEM_TRY(device_.check_enqueued(enqueue(segment), kNotEnqueued));
  const Outcome outcome = call([&] { return device_.cu().LaunchHostFunc(native_, stop_keeping, number); });
  if (outcome.ok()) {
    undo.dismiss();
    return {};
  }
  const Relaxed relaxed(device_.cu());
  call([&] { return device_.cu().StreamSynchronize(native_); });
  return device_.check_enqueued(outcome, "the copy cannot be completed");
}

const void* Stream::cpu_view(const backend::Span& span) {
  // While another stream uses it, the CPU's own read would fault.
  const bool faults = span.managed && !device_.traits().all_concurrent_managed;
  return span.on_device || span.in_range || faults ? nullptr : span.address;
}

Outcome Stream::enqueue(const backend::CopySegment& segment) {
  const Driver& cu = device_.cu();
  const uint64_t to = address_of(segment.destination.address);
  const uint64_t from = address_of(segment.source.address);
  // Without one, a copy between mapped blocks and another device's memory ends the process (measured).
  std::optional<Scope> scope;
  if (is_mapped(segment.destination) || is_mapped(segment.source)) [[unlikely]] {
    scope.emplace(device_);
    if (!scope->outcome().ok()) return scope->outcome();
  }
  if (segment.height == 1) {
    if (segment.destination.managed || segment.source.managed) [[unlikely]]
      return enqueue_managed(segment);
    return call([&] { return cu.MemcpyAsync(to, from, segment.width, native_); });
  }
  return enqueue_rows(segment);
}

Outcome Stream::enqueue_managed(const backend::CopySegment& segment) {
  const Driver& cu = device_.cu();
  const uint64_t to = address_of(segment.destination.address);
  const uint64_t from = address_of(segment.source.address);
  const bool to_device = segment.destination.on_device;
  const bool from_device = segment.source.on_device;
  const bool unclear = is_foreign(segment.destination) || is_foreign(segment.source);
  // The driver has no host-to-host copy.
  if (unclear || !(to_device || from_device))
    return call([&] { return cu.MemcpyAsync(to, from, segment.width, native_); });
  if (to_device && from_device)
    return call([&] { return cu.MemcpyDtoDAsync(to, from, segment.width, native_); });
  if (to_device)
    return call([&] { return cu.MemcpyHtoDAsync(to, pointer_to(from), segment.width, native_); });
  return call([&] { return cu.MemcpyDtoHAsync(pointer_to(to), from, segment.width, native_); });
}

Outcome Stream::enqueue_rows(const backend::CopySegment& segment) {
  const Driver& cu = device_.cu();
  const uint64_t to = address_of(segment.destination.address);
  const uint64_t from = address_of(segment.source.address);
  CUDA_MEMCPY2D plane{};
  plane.srcMemoryType = memory_type(segment.source);
  plane.srcHost = pointer_to(from);
  plane.srcDevice = from;
  plane.srcPitch = segment.source_pitch;
  plane.dstMemoryType = memory_type(segment.destination);
  plane.dstHost = pointer_to(to);
  plane.dstDevice = to;
  plane.dstPitch = segment.destination_pitch;
  plane.WidthInBytes = segment.width;
  plane.Height = segment.height;
  return call([&] { return cu.Memcpy2DAsync(&plane, native_); });
}

uint64_t Stream::largest_piece() { return Pieces::kLargest; }

// The kernel must reach both sides: where a driver copy only fails, the kernel would destroy the context.
std::optional<backend::Piece> Stream::piece_of(const backend::CopySegment& segment) {
  const auto address = [&](const backend::Span& span) -> uint64_t {
    if (span.memory == nullptr || span.managed) return 0;
    if (span.in_range) return span.home == &device_ ? address_of(span.address) : 0;
    const auto& memory = static_cast<const Memory&>(*span.memory);
    if (memory.owner() != nullptr) return 0;
    if (span.on_device) return &memory.device() == &device_ ? address_of(span.address) : 0;
    return device_address(span);
  };
  const backend::Piece piece{address(segment.destination), address(segment.source), segment.width};
  if (piece.to == 0 || piece.from == 0) return std::nullopt;
  return piece;
}

Result<void> Stream::copy_pieces(std::span<const backend::Piece> pieces, size_t* done) {
  *done = 0;
  const auto captured = is_capturing();
  if (!captured) return captured.error();
  return device_.pieces().copy(native_, *captured, pieces, done);
}

uint64_t Stream::device_address(const backend::Span& span) {
  if (span.on_device || span.in_range) return address_of(span.address);
  if (span.memory != nullptr) {
    const auto& memory = static_cast<const Memory&>(*span.memory);
    return memory.reachable_from(device_) ? address_of(memory.facts().device_pointer) + span.offset : 0;
  }
  if (span.pageable) return 0;
  RelaxedScope scope(device_);
  CUdeviceptr address = 0;
  return find_device_pointer(device_.cu(), span.address, &address).ok() ? address : 0;
}

backend::FillWay Stream::way_of_fill(const backend::Span& destination) {
  if (destination.managed) return backend::FillWay::kEnqueue;
  if (destination.in_range) {
    // The driver fills host memory there too (measured).
    const bool own = destination.home == nullptr || destination.home == &device_;
    return own ? backend::FillWay::kEnqueue : backend::FillWay::kAtHome;
  }
  // The driver fills only memory of the stream's own device (measured).
  if (destination.memory != nullptr && destination.on_device) {
    const bool own = &static_cast<const Memory&>(*destination.memory).device() == &device_;
    return own ? backend::FillWay::kEnqueue : backend::FillWay::kAtHome;
  }
  if (device_address(destination) != 0) return backend::FillWay::kEnqueue;
  // Later copies read ordinary memory when they are called (measured), so the fill cannot be left for later.
  // Copies to ordinary memory wait for the stream too. Registered memory that is not mapped, or not for this
  // device, can wait.
  return destination.registered ? backend::FillWay::kCpuInStream : backend::FillWay::kCpuAfterStream;
}

[[gnu::flatten]] Result<void> Stream::fill(const backend::FillSegment& segment) {
  const Driver& cu = device_.cu();
  const uint64_t to = device_address(segment.destination);
  const uint32_t word = segment.value;
  const auto half = static_cast<unsigned short>(word);
  const auto byte = static_cast<unsigned char>(word);
  const uint64_t pitch = segment.pitch;
  const uint64_t rows = segment.height;
  const uint64_t count = segment.width / segment.value_size;
  std::optional<Scope> scope;
  // In a range, `memory` is the reservation, not the block.
  const bool in_memory = !segment.destination.in_range && segment.destination.memory != nullptr;
  const CUcontext owner =
      in_memory ? static_cast<const Memory&>(*segment.destination.memory).owner() : nullptr;
  if (owner != nullptr) [[unlikely]] {
    scope.emplace(device_, owner);
    GPUMEM_TRY(scope->entered());
  }
  const auto enqueue = [&] {
    if (rows == 1) {
      if (segment.value_size == 1) return cu.MemsetD8Async(to, byte, count, native_);
      if (segment.value_size == 2) return cu.MemsetD16Async(to, half, count, native_);
      return cu.MemsetD32Async(to, word, count, native_);
    }
    if (segment.value_size == 1) return cu.MemsetD2D8Async(to, pitch, byte, count, rows, native_);
    if (segment.value_size == 2) return cu.MemsetD2D16Async(to, pitch, half, count, rows, native_);
    return cu.MemsetD2D32Async(to, pitch, word, count, rows, native_);
  };
  return device_.check_enqueued(call(enqueue), "the fill cannot be enqueued");
}

}  // namespace gpumem::cuda
