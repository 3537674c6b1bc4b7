// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies and fills.
#include <array>
#include <cstring>

#include "backends/cuda/parts.h"
#include "backends/cuda/pointer.h"
#include "backends/cuda/stream.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"

namespace gpumem::cuda {
namespace {

template <class Enqueue>
Result<void> enqueue_parts(Device& device, CUstream stream, std::span<const Side> sides, uint64_t width,
                           uint64_t height, Enqueue enqueue) {
  bool any = false;
  auto result = for_each_part(sides, width, height, [&](const Part& part) {
    auto enqueued = device.check(enqueue(part), Place::kDevice, "the work cannot be enqueued");
    any = any || enqueued.ok();
    return enqueued;
  });
  // What was enqueued must not outlive a call that failed.
  if (!result && any) device.cu().StreamSynchronize(stream);
  return result;
}

bool is_host_memory(const backend::Operand& operand) {
  return operand.kind == GPUMEM_KIND_PAGEABLE || operand.kind == GPUMEM_KIND_PINNED ||
         operand.kind == GPUMEM_KIND_REGISTERED;
}

// Unified addressing finds out where foreign and device memory lies; pageable memory it need not know.
CUmemorytype memory_type(const backend::Operand& operand) {
  return is_host_memory(operand) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED;
}

// Copies are told the host address of what has one: the driver knows how to reach it from any device.
uint64_t copy_address(const backend::Operand& operand) {
  if (operand.memory == nullptr) return address_of(operand.address);
  const backend::MemoryFacts& facts = operand.memory->facts();
  return address_of(facts.host_pointer != nullptr ? facts.host_pointer : facts.device_pointer) +
         operand.offset;
}

void fill_by_cpu(const backend::FillRequest& request) {
  auto* row = static_cast<unsigned char*>(pointer_to(copy_address(request.destination)));
  for (uint64_t left = request.height; left > 0; --left) {
    // What is filled serves as the pattern of the next, twice as long part.
    std::memcpy(row, &request.value, request.value_size);
    for (uint64_t filled = request.value_size; filled < request.width; filled *= 2) {
      std::memcpy(row + filled, row, std::min(filled, request.width - filled));
    }
    if (left > 1) row += request.pitch;
  }
}

}  // namespace

Result<void> Stream::copy(const backend::CopyRequest& request) {
  const uint64_t pitch = std::max(request.destination_pitch, request.source_pitch);
  const uint64_t largest = device_.traits().max_pitch;
  if (request.height > 1 && pitch > largest) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "a pitch of %llu bytes is above the %llu that the device can do: copy row by row",
                      static_cast<unsigned long long>(pitch), static_cast<unsigned long long>(largest));
  }
  Scope scope(device_);
  GPUMEM_TRY(scope.entered());
  if (request.source_order == GPUMEM_SOURCE_ORDER_DURING_CALL) return copy_during_call(request);
  return enqueue_copy(request);
}

Result<void> Stream::enqueue_copy(const backend::CopyRequest& request) {
  const Driver& cu = device_.cu();
  const uint64_t destination = copy_address(request.destination);
  const uint64_t source = copy_address(request.source);
  const std::array sides = {side_of(request.destination, request.destination_pitch),
                            side_of(request.source, request.source_pitch)};
  return enqueue_parts(device_, native_, sides, request.width, request.height, [&](const Part& part) {
    const uint64_t to = destination + part.offset(request.destination_pitch);
    const uint64_t from = source + part.offset(request.source_pitch);
    if (part.rows == 1) return cu.MemcpyAsync(to, from, part.width, native_);
    CUDA_MEMCPY2D plane{};
    plane.srcMemoryType = memory_type(request.source);
    plane.srcHost = pointer_to(from);
    plane.srcDevice = from;
    plane.srcPitch = request.source_pitch;
    plane.dstMemoryType = memory_type(request.destination);
    plane.dstHost = pointer_to(to);
    plane.dstDevice = to;
    plane.dstPitch = request.destination_pitch;
    plane.WidthInBytes = part.width;
    plane.Height = part.rows;
    return cu.Memcpy2DAsync(&plane, native_);
  });
}

Result<void> Stream::copy_during_call(const backend::CopyRequest& request) {
  if (!is_host_memory(request.source)) {
    GPUMEM_TRY(enqueue_copy(request));
    return device_.check(device_.cu().StreamSynchronize(native_), Place::kDevice,
                         "the copy did not complete");
  }
  // Read now, into a block that lives until the stream has passed the copy.
  const auto block = std::make_shared_for_overwrite<unsigned char[]>(request.width * request.height);
  const HostWorkId keep = add_host_work([block] {});
  const uint64_t source = copy_address(request.source);
  for (uint64_t row = 0; row < request.height; ++row) {
    std::memcpy(&block[static_cast<ptrdiff_t>(row * request.width)],
                pointer_to(source + row * request.source_pitch), request.width);
  }
  backend::CopyRequest staged = request;
  staged.source = {GPUMEM_KIND_PAGEABLE, nullptr, 0, block.get(), false};
  staged.source_pitch = request.width;
  auto result = enqueue_copy(staged);
  if (result.ok()) return launch(keep);
  remove_host_work(keep);
  return result;
}

uint64_t Stream::device_address(const backend::Operand& operand) {
  if (operand.memory != nullptr) {
    const auto& memory = static_cast<const Memory&>(*operand.memory);
    return memory.reachable_from(device_) ? address_of(memory.facts().device_pointer) + operand.offset : 0;
  }
  if (operand.kind == GPUMEM_KIND_PAGEABLE) return 0;
  if (operand.on_device) return address_of(operand.address);
  CUdeviceptr address = 0;
  return find_device_pointer(device_.cu(), operand.address, &address).ok() ? address : 0;
}

Result<void> Stream::fill(const backend::FillRequest& request) {
  if (request.destination.kind == GPUMEM_KIND_DEVICE) {
    Device& home = static_cast<const Memory&>(*request.destination.memory).device();
    if (&home != &device_) return fill_elsewhere(home, request);
  }
  Scope scope(device_);
  GPUMEM_TRY(scope.entered());
  const uint64_t destination = device_address(request.destination);
  if (destination != 0) return fill_on_device(request, destination);
  if (request.destination.kind == GPUMEM_KIND_PAGEABLE) {
    // Later copies read pageable memory when they are called (measured), so the fill cannot be left for
    // later. Copies to pageable memory wait for the stream too.
    GPUMEM_TRY(device_.check(device_.cu().StreamSynchronize(native_), Place::kDevice,
                             "work before the fill did not complete"));
    fill_by_cpu(request);
    return {};
  }
  // Registered memory that is not mapped, or not for this device, is filled by the CPU when the stream comes
  // to it.
  return launch(
      add_host_work([request] { fill_by_cpu(request); }, {&device_, request.destination.memory.get()}));
}

// The driver fills only memory of the stream's own device (measured). So a stream over there does it, between
// two events that put it into the order of this one; all three may be let go at once.
Result<void> Stream::fill_elsewhere(Device& home, const backend::FillRequest& request) {
  Stream there(home, true);
  Event before(device_, nullptr, true);
  Event after(home, nullptr, true);
  const Cleanup let_go([&] {
    (void)after.release();
    (void)before.release();
    (void)there.destroy();  // this stream waits for its work
  });
  GPUMEM_TRY(there.create(0));
  GPUMEM_TRY(before.create(GPUMEM_EVENT_DISABLE_TIMING));
  GPUMEM_TRY(after.create(GPUMEM_EVENT_DISABLE_TIMING));
  GPUMEM_TRY(before.record(*this));
  GPUMEM_TRY(there.wait_event(before));
  GPUMEM_TRY(there.fill(request));
  auto ordered = after.record(there);
  if (ordered) ordered = wait_event(after);
  // Work that this stream does not wait for must not outlive the call.
  if (!ordered) (void)there.synchronize(GPUMEM_TIMEOUT_INFINITE);
  return ordered;
}

Result<void> Stream::fill_on_device(const backend::FillRequest& request, uint64_t destination) {
  const Driver& cu = device_.cu();
  const uint32_t word = request.value;
  const auto half = static_cast<unsigned short>(word);
  const auto byte = static_cast<unsigned char>(word);
  const uint64_t pitch = request.pitch;
  const std::array sides = {side_of(request.destination, pitch)};
  return enqueue_parts(device_, native_, sides, request.width, request.height, [&](const Part& part) {
    const uint64_t to = destination + part.offset(pitch);
    const uint64_t count = part.width / request.value_size;
    if (part.rows == 1) {
      if (request.value_size == 1) return cu.MemsetD8Async(to, byte, count, native_);
      if (request.value_size == 2) return cu.MemsetD16Async(to, half, count, native_);
      return cu.MemsetD32Async(to, word, count, native_);
    }
    if (request.value_size == 1) return cu.MemsetD2D8Async(to, pitch, byte, count, part.rows, native_);
    if (request.value_size == 2) return cu.MemsetD2D16Async(to, pitch, half, count, part.rows, native_);
    return cu.MemsetD2D32Async(to, pitch, word, count, part.rows, native_);
  });
}

Result<void> Stream::launch(HostWorkId work) {
  auto result = device_.check(device_.cu().LaunchHostFunc(native_, run_host_work, pointer_to(work)),
                              Place::kHost, "work of the CPU cannot be enqueued");
  if (!result) {
    // What the work keeps alive may be in use by what was enqueued before it.
    device_.cu().StreamSynchronize(native_);
    remove_host_work(work);
  }
  return result;
}

}  // namespace gpumem::cuda
