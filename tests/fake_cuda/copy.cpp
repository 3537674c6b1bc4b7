// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies and fills. Operands are checked and resolved to bytes when the call is made, the bytes move when the
// stream's worker comes to them. When a call waits for its copy follows the driver's "API synchronization
// behavior".
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "driver.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fake {
namespace {

struct Span {
  char* bytes;
  size_t size;
};

struct Operand {
  std::vector<Span> spans;
  std::vector<std::shared_ptr<Memory>> memory;
  std::vector<std::shared_ptr<void>> bytes;  // keeps what the spans point to
  bool host = false;                         // pageable, pinned or registered
  bool pageable = false;                     // some of it is unknown to the driver
};

struct Piece {
  Operand target;
  Operand source;
};

enum class Role { kRead, kWrite };

void require_access(const Memory& memory, const Device& device, Role role) {
  bool allowed = true;
  if (memory.kind == Kind::kMapping) {
    unsigned long long rights = rights_of(memory, device.ordinal);
    unsigned long long needed = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (role == Role::kRead) needed = CU_MEM_ACCESS_FLAGS_PROT_READ;
    allowed = (rights & needed) == needed;
  } else if (memory.kind == Kind::kRegistered) {
    allowed = role == Role::kRead || !memory.read_only;
  } else if (in_pool(memory) && memory.kind == Kind::kPinned) {
    allowed = lets(memory, device);  // the driver lets copies pass
  }
  if (!allowed) violation("no-access", "an operation uses memory that its device may not use so");
  require(allowed);
}

// The real driver goes on using the pages that were there; a test is better served by the mistake's being
// seen.
void require_mapped(uintptr_t address, size_t size) {
  bool mapped = is_readable(address) && is_readable(address + size - 1);
  if (!mapped) violation("unmapped-while-registered", "an operation uses registered memory that is gone");
  require(mapped);
}

// The bytes of [address, address + size), which may run over several mappings in a row but over no other
// border.
Operand find_operand(uintptr_t address, size_t size, const Device& device, Role role) {
  Operand operand;
  require(address != 0 && address + size >= address);
  while (size > 0) {
    Located found = locate(address);
    size_t part = size;
    if (found.memory) {
      Memory& memory = *found.memory;
      require_access(memory, device, role);
      part = std::min(size, memory.size - found.offset);
      require(part == size || memory.kind == Kind::kMapping);
      if (memory.kind == Kind::kRegistered) require_mapped(memory.address + found.offset, part);
      operand.spans.push_back({memory.bytes + found.offset, part});
      operand.memory.push_back(found.memory);
      operand.bytes.push_back(memory.backing);
      operand.host |= memory.kind == Kind::kPinned || memory.kind == Kind::kRegistered;
    } else {
      auto next = driver().memory.upper_bound(address);
      require(next == driver().memory.end() || next->first - address >= size);
      require(is_readable(address) && is_readable(address + size - 1));
      operand.spans.push_back({reinterpret_cast<char*>(address), part});
      operand.host = operand.pageable = true;
    }
    address += part;
    size -= part;
  }
  return operand;
}

bool is_device_pointer(uintptr_t address) {
  Located found = locate(address);
  return found.memory != nullptr;
}

bool is_on_device(uintptr_t address) {
  Located found = locate(address);
  return found.memory != nullptr && (is_device_memory(*found.memory) || found.memory->kind == Kind::kMapping);
}

// Makes the pages that are about to be written: most are fresh in a test, and a fault for each of them takes
// longer than its bytes. Where that fails, they fault.
void populate(char* bytes, size_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes) & ~(page - 1);
  const size_t length = reinterpret_cast<uintptr_t>(bytes) + size - begin;
  if (length >= 16 * page) (void)madvise(reinterpret_cast<void*>(begin), length, MADV_POPULATE_WRITE);
}

void move_bytes(const std::vector<Span>& targets, const std::vector<Span>& sources) {
  size_t target = 0, source = 0, target_used = 0, source_used = 0;
  while (target < targets.size() && source < sources.size()) {
    size_t part = std::min(targets[target].size - target_used, sources[source].size - source_used);
    char* const to = targets[target].bytes + target_used;
    const char* const from = sources[source].bytes + source_used;
    populate(to, part);
    // AddressSanitizer moves byte by byte.
    if (to + part <= from || from + part <= to) {
      std::memcpy(to, from, part);
    } else {
      std::memmove(to, from, part);
    }
    target_used += part;
    source_used += part;
    if (target_used == targets[target].size) ++target, target_used = 0;
    if (source_used == sources[source].size) ++source, source_used = 0;
  }
}

void check_overlap(const Piece& piece) {
  for (const Span& target : piece.target.spans) {
    for (const Span& source : piece.source.spans) {
      if (target.bytes < source.bytes + source.size && source.bytes < target.bytes + target.size) {
        return violation("overlap", "source and target of a copy share bytes");
      }
    }
  }
}

// Reads the source now, so that the caller may change it as soon as the call returns.
void stage(Operand& source) {
  size_t size = 0;
  for (const Span& span : source.spans)
    size += span.size;
  const std::shared_ptr<char[]> copy(new char[size]);
  std::vector<Span> staged = {{copy.get(), size}};
  move_bytes(staged, source.spans);
  source.spans = std::move(staged);
  source.bytes = {copy};
  source.memory.clear();
  source.pageable = false;
}

// Enqueues the pieces as one operation.
void start(const std::shared_ptr<Stream>& stream, std::vector<Piece> pieces) {
  std::vector<std::shared_ptr<Memory>> uses;
  for (const Piece& piece : pieces) {
    check_overlap(piece);
    for (const Operand* operand : {&piece.target, &piece.source})
      uses.insert(uses.end(), operand->memory.begin(), operand->memory.end());
  }
  enqueue(
      stream,
      [moved = std::move(pieces)] {
        // Nothing promises an order inside a batch.
        for (auto piece = moved.rbegin(); piece != moved.rend(); ++piece)
          move_bytes(piece->target.spans, piece->source.spans);
      },
      uses);
}

// The same for copies of the driver: waits where it would.
void submit(const std::shared_ptr<Stream>& stream, std::vector<Piece> pieces, bool wait) {
  for (Piece& piece : pieces) {
    bool both_host = piece.target.host && piece.source.host;
    wait = wait || piece.target.pageable || both_host;
    // A graph reads it at each launch (measured).
    if (piece.source.pageable && !wait && !stream->capture) stage(piece.source);
  }
  uint64_t before = stream->enqueued;
  start(stream, std::move(pieces));
  if (wait && stream->enqueued != before) synchronize(stream);
}

Piece find_piece(CUdeviceptr target, CUdeviceptr source, size_t size, const Stream& stream) {
  const Device& device = *stream.context->device;
  return {find_operand(target, size, device, Role::kWrite), find_operand(source, size, device, Role::kRead)};
}

// Whether one side lies in a reserved range, on one device, and the other in memory of another device.
bool joins_range_and_other_device(const Operand& range, const Operand& other) {
  for (const auto& mapped : range.memory) {
    if (mapped->kind != Kind::kMapping || mapped->block->device == nullptr) continue;
    for (const auto& plain : other.memory) {
      if (is_device_memory(*plain) && plain->device != mapped->block->device) return true;
    }
  }
  return false;
}

CUresult copy(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream handle, bool synchronous) {
  auto stream = find_stream(handle);
  if (size == 0) return CUDA_SUCCESS;
  std::vector<Piece> pieces;
  pieces.push_back(find_piece(target, source, size, *stream));
  const Piece& piece = pieces[0];
  if (context_stack().empty() && (joins_range_and_other_device(piece.target, piece.source) ||
                                  joins_range_and_other_device(piece.source, piece.target)))
    violation("copy-without-context",
              "a range and memory of another device are copied without a current context");
  bool any_host = piece.target.host || piece.source.host;
  submit(stream, std::move(pieces), synchronous && any_host);
  return CUDA_SUCCESS;
}

CUresult copy_to_device(CUdeviceptr target, const void* source, size_t size, CUstream stream,
                        bool synchronous) {
  auto from = reinterpret_cast<uintptr_t>(source);
  if (size != 0) require(is_device_pointer(target));
  return copy(target, from, size, stream, synchronous);
}

CUresult copy_to_host(void* target, CUdeviceptr source, size_t size, CUstream stream, bool synchronous) {
  auto to = reinterpret_cast<uintptr_t>(target);
  if (size != 0) require(is_device_pointer(source));
  return copy(to, source, size, stream, synchronous);
}

CUresult copy_on_device(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream,
                        bool synchronous) {
  if (size != 0) require(is_device_pointer(target) && is_device_pointer(source));
  return copy(target, source, size, stream, synchronous);
}

// The kernel that the fake knows, as the library names it.
constexpr const char* kPiecesName = "gpumem_copy_pieces";
constexpr const char* kPiecesEntry = ".entry gpumem_copy_pieces(";
constexpr unsigned kPiecesMost = 170;

// What a kernel would touch in vain: it would end its context.
void require_reachable(const Operand& operand, uintptr_t address, const Stream& stream) {
  bool reachable = !operand.pageable;
  for (const auto& memory : operand.memory) {
    if (is_device_memory(*memory)) {
      reachable = reachable && memory->device == stream.context->device;
    } else if (in_pool(*memory)) {
      reachable = reachable && lets(*memory, *stream.context->device);
    } else if (memory->kind != Kind::kMapping) {
      reachable = reachable && locate(address).start == memory->device_address;
    }
  }
  if (!reachable) violation("no-access", "a kernel uses memory that its device cannot reach");
  require(reachable);
}

struct Plane {
  uintptr_t start;
  size_t pitch;
};

Plane find_plane(CUmemorytype type, const void* host, CUdeviceptr device, size_t pitch, size_t x, size_t y,
                 const CUDA_MEMCPY2D& copy) {
  require(type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED);
  uintptr_t base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : device;
  require(type != CU_MEMORYTYPE_DEVICE || is_device_pointer(base));
  require(type != CU_MEMORYTYPE_HOST || !is_on_device(base));
  if (pitch == 0) pitch = x + copy.WidthInBytes;
  require(copy.Height <= 1 || pitch >= x + copy.WidthInBytes);
  return {base + y * pitch + x, pitch};
}

CUresult copy_planes(const CUDA_MEMCPY2D* copy, CUstream handle, bool synchronous) {
  require(copy != nullptr);
  auto stream = find_stream(handle);
  if (copy->WidthInBytes == 0 || copy->Height == 0) return CUDA_SUCCESS;
  Plane target = find_plane(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch,
                            copy->dstXInBytes, copy->dstY, *copy);
  Plane source = find_plane(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch,
                            copy->srcXInBytes, copy->srcY, *copy);
  std::vector<Piece> pieces;
  bool any_host = false;
  for (size_t row = 0; row < copy->Height; ++row) {
    pieces.push_back(find_piece(target.start + row * target.pitch, source.start + row * source.pitch,
                                copy->WidthInBytes, *stream));
    any_host = any_host || pieces.back().target.host || pieces.back().source.host;
  }
  submit(stream, std::move(pieces), synchronous && any_host);
  return CUDA_SUCCESS;
}

// Attribute indices as documented: the first is 0, each is greater than the one before and less than the
// count.
void require_batch_attributes(const CUmemcpyAttributes* attributes, const size_t* indices,
                              size_t attribute_count, size_t count) {
  require(attributes != nullptr && indices != nullptr && attribute_count != 0 && attribute_count <= count);
  require(indices[0] == 0);
  for (size_t index = 0; index < attribute_count; ++index) {
    require(indices[index] < count && (index == 0 || indices[index] > indices[index - 1]));
    require(attributes[index].srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    require(attributes[index].srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
    require(attributes[index].flags <= CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
  }
}

CUresult copy_batch(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                    CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count, size_t* failed,
                    CUstream handle) {
  if (failed != nullptr) *failed = SIZE_MAX;
  auto stream = find_stream(handle);
  require(stream->handle != nullptr);
  // Measured: no graph can hold it, and the capture goes on.
  require(stream->capture == nullptr, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  require(targets != nullptr && sources != nullptr && sizes != nullptr && count != 0);
  require_batch_attributes(attributes, indices, attribute_count, count);
  std::vector<Piece> pieces;
  size_t attribute_index = 0;
  for (size_t index = 0; index < count; ++index) {
    if (attribute_index + 1 < attribute_count && indices[attribute_index + 1] == index) ++attribute_index;
    if (failed != nullptr) *failed = index;
    require(sizes[index] != 0);
    pieces.push_back(find_piece(targets[index], sources[index], sizes[index], *stream));
    bool now = attributes[attribute_index].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    if (now) stage(pieces.back().source);
  }
  if (failed != nullptr) *failed = SIZE_MAX;
  submit(stream, std::move(pieces), false);
  return CUDA_SUCCESS;
}

template <class Value>
void fill_spans(const std::vector<Span>& spans, Value value) {
  for (const Span& span : spans) {
    populate(span.bytes, span.size);
    if constexpr (sizeof(Value) == 1) {
      std::memset(span.bytes, value, span.size);
    } else {
      std::fill_n(reinterpret_cast<Value*>(span.bytes), span.size / sizeof(Value), value);
    }
  }
}

// Fills `height` rows of `width` elements.
template <class Value>
CUresult fill(CUdeviceptr address, size_t pitch, Value value, size_t width, size_t height, CUstream handle,
              bool synchronous) {
  auto stream = find_stream(handle);
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  size_t row = width * sizeof(Value);
  require(address % sizeof(Value) == 0 && row / sizeof(Value) == width);
  require(height == 1 || (pitch >= row && pitch % sizeof(Value) == 0));
  std::vector<Operand> rows;
  std::vector<std::shared_ptr<Memory>> uses;
  bool host = false;
  for (size_t index = 0; index < height; ++index) {
    rows.push_back(find_operand(address + index * pitch, row, *stream->context->device, Role::kWrite));
    require(!rows.back().pageable);
    // Not measured: what the strictest driver would ask for.
    for (const auto& memory : rows.back().memory) {
      const bool elsewhere = memory->kind == Kind::kImported && memory->device != stream->context->device;
      require(!elsewhere || (!context_stack().empty() && current_context() == memory->context));
    }
    host |= rows.back().host;
    uses.insert(uses.end(), rows.back().memory.begin(), rows.back().memory.end());
  }
  uint64_t before = stream->enqueued;
  auto run = [rows = std::move(rows), value] {
    for (const Operand& operand : rows)
      fill_spans(operand.spans, value);
  };
  enqueue(stream, std::move(run), uses);
  if (synchronous && host && stream->enqueued != before) synchronize(stream);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t size) {
  return copy(target, source, size, nullptr, true);
}

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream) {
  return copy(target, source, size, stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, size_t size) {
  return copy_to_device(target, source, size, nullptr, true);
}

CUresult cuMemcpyDtoH_v2(void* target, CUdeviceptr source, size_t size) {
  return copy_to_host(target, source, size, nullptr, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t size) {
  return copy_on_device(target, source, size, nullptr, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t size, CUstream stream) {
  return copy_to_device(target, source, size, stream, false);
}

CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t size, CUstream stream) {
  return copy_to_host(target, source, size, stream, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream) {
  return copy_on_device(target, source, size, stream, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                           CUcontext source_context, size_t size, CUstream stream) {
  require(find_context(target_context)->alive && find_context(source_context)->alive,
          CUDA_ERROR_INVALID_CONTEXT);
  return copy_on_device(target, source, size, stream, false);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) { return copy_planes(copy, nullptr, true); }

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_planes(copy, stream, false);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                            size_t* failed, CUstream stream) {
  return copy_batch(targets, sources, sizes, count, attributes, indices, attribute_count, failed, stream);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                               CUstream stream) {
  return copy_batch(targets, sources, sizes, count, attributes, indices, attribute_count, nullptr, stream);
}

// Knows one kernel, by its name, and does what that does.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  require(module != nullptr && image != nullptr);
  const bool known = std::strstr(static_cast<const char*>(image), kPiecesEntry) != nullptr;
  require(known, CUDA_ERROR_INVALID_PTX);
  for (const auto& [handle, stream] : driver().streams.all()) {
    if (stream->context == current_context() && stream->completed != stream->enqueued)
      violation("load-while-busy", "code is loaded while a stream of the context has work");
  }
  *module = next_handle<CUmodule>();
  driver().modules.add(*module,
                       std::make_shared<Module>(Module{current_context(), next_handle<CUfunction>()}));
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  auto found = driver().modules.find(module);
  require(function != nullptr && found != nullptr && name != nullptr);
  require(std::strcmp(name, kPiecesName) == 0, CUDA_ERROR_NOT_FOUND);
  *function = found->function;
  return CUDA_SUCCESS;
}

// One column of blocks copies one piece. On the device a wrong address would end the context.
CUresult cuLaunchKernel(CUfunction function, unsigned columns, unsigned rows, unsigned layers, unsigned width,
                        unsigned height, unsigned depth, unsigned shared_bytes, CUstream handle,
                        void** parameters, void** extra) {
  auto stream = find_stream(handle);
  const auto& modules = driver().modules.all();
  const auto found = std::find_if(modules.begin(), modules.end(),
                                  [&](const auto& module) { return module.second->function == function; });
  require(found != modules.end(), CUDA_ERROR_INVALID_HANDLE);
  require(found->second->context == stream->context, CUDA_ERROR_INVALID_CONTEXT);
  require(columns != 0 && columns <= kPiecesMost && rows != 0 && rows <= 65535 && layers == 1);
  require(width != 0 && width <= 1024 && height == 1 && depth == 1 && shared_bytes == 0);
  require(parameters != nullptr && parameters[0] != nullptr && extra == nullptr);
  std::vector<Piece> pieces;
  for (unsigned column = 0; column < columns; ++column) {
    uint64_t numbers[3];
    std::memcpy(numbers, static_cast<const char*>(parameters[0]) + column * sizeof numbers, sizeof numbers);
    if (numbers[2] == 0) continue;
    const Piece& piece = pieces.emplace_back(find_piece(numbers[0], numbers[1], numbers[2], *stream));
    require_reachable(piece.target, numbers[0], *stream);
    require_reachable(piece.source, numbers[1], *stream);
  }
  start(stream, std::move(pieces));
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count) {
  return fill(address, 0, value, count, 1, nullptr, true);
}

CUresult cuMemsetD16_v2(CUdeviceptr address, unsigned short value, size_t count) {
  return fill(address, 0, value, count, 1, nullptr, true);
}

CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned value, size_t count) {
  return fill(address, 0, value, count, 1, nullptr, true);
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
  return fill(address, 0, value, count, 1, stream, false);
}

CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count, CUstream stream) {
  return fill(address, 0, value, count, 1, stream, false);
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
  return fill(address, 0, value, count, 1, stream, false);
}

CUresult cuMemsetD2D8Async(CUdeviceptr address, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream) {
  return fill(address, pitch, value, width, height, stream, false);
}

CUresult cuMemsetD2D16Async(CUdeviceptr address, size_t pitch, unsigned short value, size_t width,
                            size_t height, CUstream stream) {
  return fill(address, pitch, value, width, height, stream, false);
}

CUresult cuMemsetD2D32Async(CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream stream) {
  return fill(address, pitch, value, width, height, stream, false);
}

}  // namespace fake
