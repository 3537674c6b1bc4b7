// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "path.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace gpumem::cli {

namespace {

constexpr unsigned char kSpoiled = 0xA5;

Memory create_for_cpu(gpumem_device device, Kind kind, uint64_t capacity) {
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = kind == Kind::kManaged ? GPUMEM_KIND_MANAGED : GPUMEM_KIND_PINNED;
  desc.size = capacity;
  if (kind == Kind::kWriteCombined) desc.require = GPUMEM_MEMORY_WRITE_COMBINED;
  if (kind == Kind::kMapped) desc.require = GPUMEM_MEMORY_MAPPED;
  return create_memory(device, desc);
}

class MemcpyPath final : public Path {
 public:
  MemcpyPath(uint64_t capacity, uint64_t chunk) : Path(chunk), host_(capacity), device_(capacity) {
    bytes_ = host_.get();
  }

 private:
  void enqueue(Direction direction, uint64_t offset, uint64_t size) override {
    std::byte* host = host_.get() + offset;
    std::byte* device = device_.get() + offset;
    const bool to_device = direction == Direction::kToDevice;
    std::memcpy(to_device ? device : host, to_device ? host : device, size);
  }
  void wait() override {}

  Pages host_;
  Pages device_;
};

class MemcpyPaths final : public RawPaths {
 public:
  std::string name() const override { return "memcpy"; }
  std::unique_ptr<Path> make(Kind /*kind*/, uint64_t capacity, uint64_t chunk, bool /*migrates*/) override {
    return std::make_unique<MemcpyPath>(capacity, chunk);
  }
};

}  // namespace

const std::vector<Kind>& all_kinds() {
  static const std::vector<Kind> kinds = {Kind::kPageable,   Kind::kPinned, Kind::kWriteCombined,
                                          Kind::kRegistered, Kind::kMapped, Kind::kManaged,
                                          Kind::kRange,      Kind::kBuffer};
  return kinds;
}

std::string kind_name(Kind kind) {
  switch (kind) {
    case Kind::kPageable:
      return "pageable";
    case Kind::kPinned:
      return "pinned";
    case Kind::kWriteCombined:
      return "write-combined";
    case Kind::kRegistered:
      return "registered";
    case Kind::kMapped:
      return "mapped";
    case Kind::kManaged:
      return "managed";
    case Kind::kRange:
      return "range";
    case Kind::kBuffer:
      return "buffer";
  }
  return "";
}

void Path::move(Direction direction, uint64_t size) { in_chunks(&Path::enqueue, direction, size); }

void Path::migrate(Direction direction, uint64_t size) {
  in_chunks(&Path::enqueue_prefetch, direction, size);
}

void Path::in_chunks(Enqueue each, Direction direction, uint64_t size) {
  try {
    for (uint64_t offset = 0; offset < size; offset += chunk_) {
      (this->*each)(direction, offset, std::min(chunk_, size - offset));
    }
  } catch (...) {
    wait();  // Nothing may be freed under the chunks that are on their way.
    throw;
  }
  wait();
}

Pages::Pages(uint64_t size) {
  void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  start_ = {static_cast<std::byte*>(start), Unmap{size}};
}

void Pages::Unmap::operator()(std::byte* start) const { munmap(start, size); }

GpumemPath::GpumemPath(Kind kind, const Target& target, uint64_t capacity, uint64_t chunk)
    : Path(chunk), target_(target) {
  if (kind == Kind::kPageable || kind == Kind::kRegistered) pages_ = Pages(capacity);
  if (kind == Kind::kPageable) {
    bytes_ = pages_.get();
  } else {
    memory_ = kind == Kind::kRegistered ? register_memory(target.device, pages_.get(), capacity)
                                        : create_for_cpu(target.device, kind, capacity);
    bytes_ = static_cast<std::byte*>(memory_info(memory_).host_pointer);
  }
  address_ = bytes_;
  if (kind == Kind::kRange) {
    range_ = MappedRange(target.instance, target.device, capacity);
    target_.bytes = range_.base();
  }
  if (kind == Kind::kBuffer) {
    buffer_ = GrownBuffer(target.device, capacity);
    target_.bytes = buffer_.base();
  }
  if (kind == Kind::kMapped) {
    void* device_pointer = nullptr;
    call(gpumem_pointer_get_device_pointer, target.device, bytes_, &device_pointer);
    address_ = static_cast<std::byte*>(device_pointer);
  }
  if (kind == Kind::kWriteCombined) {
    readable_ = create_for_cpu(target.device, Kind::kPinned, capacity);
    came_back_ = static_cast<std::byte*>(memory_info(readable_).host_pointer);
  }
  // On the host backend no page moves.
  if (kind == Kind::kManaged && instance_info(target.instance).backend == GPUMEM_BACKEND_CUDA) {
    migrates_ = prefetch(Direction::kToDevice, 0, capacity) != GPUMEM_NO_EFFECT;
    wait();
  }
}

void GpumemPath::spoil_device(uint64_t size) {
  call(gpumem_fill_async, target_.stream, target_.bytes, size, uint32_t{kSpoiled}, uint32_t{1});
  wait();
}

void GpumemPath::spoil_host(uint64_t size) { std::memset(bytes_, kSpoiled, size); }

void GpumemPath::rest() {
  if (buffer_) buffer_.nap(target_.stream);
}

const std::byte* GpumemPath::came_back(uint64_t size) {
  if (came_back_ == nullptr) return bytes_;
  spoil_device(size);
  move(Direction::kToDevice, size);
  call(gpumem_copy_async, target_.stream, came_back_, target_.bytes, size, nullptr);
  wait();
  return came_back_;
}

void GpumemPath::enqueue(Direction direction, uint64_t offset, uint64_t size) {
  std::byte* host = address_ + offset;
  std::byte* device = static_cast<std::byte*>(target_.bytes) + offset;
  const bool to_device = direction == Direction::kToDevice;
  call(gpumem_copy_async, target_.stream, to_device ? device : host, to_device ? host : device, size,
       nullptr);
}

gpumem_status GpumemPath::prefetch(Direction direction, uint64_t offset, uint64_t size) {
  const bool to_device = direction == Direction::kToDevice;
  gpumem_error error = GPUMEM_ERROR_INIT;
  const gpumem_status status = gpumem_managed_prefetch(
      target_.stream, bytes_ + offset, size, to_device ? GPUMEM_LOCATION_DEVICE : GPUMEM_LOCATION_HOST,
      to_device ? static_cast<int32_t>(device_info(target_.device).ordinal) : 0, &error);
  if (GPUMEM_FAILED(status)) throw CallFailed(error);
  return status;
}

void GpumemPath::enqueue_prefetch(Direction direction, uint64_t offset, uint64_t size) {
  prefetch(direction, offset, size);
}

void GpumemPath::wait() { call(gpumem_stream_synchronize, target_.stream, GPUMEM_TIMEOUT_INFINITE); }

std::unique_ptr<RawPaths> make_memcpy_paths() { return std::make_unique<MemcpyPaths>(); }

}  // namespace gpumem::cli
