// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/sharing.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/cuda/memory.h"
#include "backends/cuda/stream.h"
#include "backends/cuda/vmm.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "platform/thread_record.h"

namespace gpumem::cuda {
namespace {

// A release may be told of an earlier error, and the next one succeeds then.
template <class Object>
void drop(Object& object) {
  if (!object.release()) (void)object.release();
}

template <class Handle>
backend::Ticket ticket_of(const Handle& handle) {
  backend::Ticket ticket;
  static_assert(sizeof handle == sizeof ticket.bytes);
  std::memcpy(ticket.bytes.data(), &handle, sizeof handle);
  return ticket;
}

template <class Handle>
Handle handle_of(const backend::Ticket& ticket) {
  Handle handle;
  static_assert(sizeof handle == sizeof ticket.bytes);
  std::memcpy(&handle, ticket.bytes.data(), sizeof handle);
  return handle;
}

// Why a handle could not be opened. The driver tells what was freed, what never was and what is of a process
// that has ended by codes that say nothing more (measured: docs/measured/facts-h200-driver580.txt).
Error explain(Device& device, Outcome outcome, const char* what) {
  if (auto room = check_room_for_descriptors(outcome); !room) return room.error();
  const auto because = [&](Status status, const char* why) {
    return make_error(status, "cannot import the %s: %s", what, why)
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  };
  switch (outcome.code) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_MAP_FAILED:
    case CUDA_ERROR_INVALID_HANDLE:
      return because(GPUMEM_ERROR_STALE_HANDLE,
                     "its exporter has released it or has ended; ask for a new export");
    case CUDA_ERROR_INVALID_CONTEXT:
      return because(GPUMEM_ERROR_INVALID_STATE,
                     "this process exported it, and the driver does not open its own handles; use the object "
                     "itself");
    case CUDA_ERROR_ALREADY_MAPPED:
      return because(GPUMEM_ERROR_BUSY, "other code of this process has it open; close it there first");
    default:
      return device.check(outcome, Place::kDevice, "cannot import the %s", what).error();
  }
}

// ---- memory of another process, by its handle ----

class OpenedMemory final : public Memory {
 public:
  using Memory::Memory;

  Result<void> open(const CUipcMemHandle& handle, uint64_t size, bool peer) {
    Cleanup undo([&] { drop(*this); });
    GPUMEM_TRY(retain_context());
    RelaxedScope scope(device_, context());
    GPUMEM_TRY(scope.entered());
    const Driver& cu = device_.cu();
    const Outcome opened = cu.IpcOpenMemHandle(&address_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (!opened.ok()) {
      address_ = 0;
      return explain(device_, opened, "memory");
    }
    // While the context is current: the driver may refuse to make it so again.
    Cleanup undo_open([&] { drop(*this); });
    CUdeviceptr base = 0;
    size_t whole = 0;
    GPUMEM_TRY(device_.check(cu.MemGetAddressRange(&base, &whole, address_), Place::kHost,
                             "cannot query the size of the imported memory"));
    if (address_ - base > whole || whole - (address_ - base) < size) {
      return make_error(GPUMEM_ERROR_STALE_HANDLE,
                        "other memory, of %llu bytes, lies where the exporter had %llu; ask it to export the "
                        "memory again",
                        static_cast<unsigned long long>(whole - std::min<uint64_t>(address_ - base, whole)),
                        static_cast<unsigned long long>(size));
    }
    facts_.device_pointer = pointer_to(address_);
    facts_.granted_size = size;
    if (peer) owner_ = context();
    undo_open.dismiss();
    undo.dismiss();
    return {};
  }

  Result<void> release() override {
    Result<void> result;
    if (address_ != 0) {
      RelaxedScope scope(device_, context());
      GPUMEM_TRY(scope.entered_for_release());
      const Outcome outcome = close();
      if (!refused(outcome)) address_ = 0;
      result = device_.check_release(outcome, "cannot close the imported memory");
      if (address_ != 0) return result;
    }
    if (primary_ == nullptr) return result;
    const Outcome outcome = device_.cu().DevicePrimaryCtxRelease(device_.handle());
    if (!refused(outcome)) primary_ = nullptr;
    auto left = device_.check_release(outcome, "cannot release the primary context");
    return result ? left : result;
  }

 private:
  // The driver opens memory in one context of a device only, so it is the primary one, whichever the instance
  // uses (IPC-6).
  Result<void> retain_context() {
    if (device_.has_primary_context()) return {};
    return device_.check(device_.cu().DevicePrimaryCtxRetain(&primary_, device_.handle()), Place::kDevice,
                         "cannot retain the primary context of device %u", device_.facts().ordinal);
  }

  CUcontext context() const { return primary_ != nullptr ? primary_ : device_.context(); }

  Outcome close() {
    const platform::Freeing freeing(address_, facts_.granted_size);
    return device_.cu().IpcCloseMemHandle(address_);
  }

  CUdeviceptr address_ = 0;
  CUcontext primary_ = nullptr;  // if the instance uses another one
};

// ---- memory of another process, in blocks ----

class MappedMemory final : public Memory {
 public:
  MappedMemory(Device& device, const backend::BlocksRequest& request) : Memory(device) {
    in_blocks_ = true;
    if (request.home != nullptr) owner_ = device.context();
    ends_.reserve(request.sizes.size());
    for (const uint64_t size : request.sizes)
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + size);
    facts_.granted_size = ends_.back();
    if (request.location == GPUMEM_LOCATION_HOST_NUMA) facts_.numa_node = request.numa_node;
    if (request.access == GPUMEM_ACCESS_READ) facts_.granted = GPUMEM_MEMORY_READ_ONLY;
  }

  Result<void> map(const backend::BlocksRequest& request, std::unique_ptr<backend::Reservation> reservation,
                   std::span<backend::Physical* const> blocks) {
    reservation_ = std::move(reservation);
    facts_.device_pointer = reservation_->facts().device_pointer;
    if (request.location != GPUMEM_LOCATION_DEVICE) facts_.host_pointer = facts_.device_pointer;
    GPUMEM_TRY(reservation_->map(0, blocks));
    mapped_ = true;
    gpumem_access none[] = {GPUMEM_ACCESS_NONE, GPUMEM_ACCESS_NONE};
    const backend::AccessPart whole{0, facts_.granted_size, request.location, none};
    const backend::AccessChange changes[] = {{&device_, request.access}, {nullptr, request.access}};
    const bool on_device = request.location == GPUMEM_LOCATION_DEVICE;
    return reservation_->set_access({&whole, 1}, std::span(changes).first(on_device ? 1 : 2));
  }

  uint64_t contiguous(uint64_t offset) const override {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), offset);
    return end != ends_.end() ? *end - offset : UINT64_MAX;
  }

  // The blocks are mapped for this device alone.
  bool reachable_from(const Device& device) const override { return &device == &device_; }

  Result<void> release() override {
    if (reservation_ == nullptr) return {};
    if (mapped_) {
      GPUMEM_TRY(reservation_->unmap(0, facts_.granted_size, device_));
      mapped_ = false;
    }
    return reservation_->release();
  }

 private:
  std::unique_ptr<backend::Reservation> reservation_;  // null before it is mapped
  std::vector<uint64_t> ends_;                         // of the blocks
  bool mapped_ = false;
};

Error wrong_size(uint64_t size, uint64_t unit) {
  return make_error(
      GPUMEM_ERROR_INVALID_ARGUMENT,
      "a block of %llu bytes is none that could have been created: it must be a multiple of %llu",
      static_cast<unsigned long long>(size), static_cast<unsigned long long>(unit));
}

}  // namespace

// ---- the facet ----

bool Sharing::is_alone(const backend::Memory& memory) const {
  return memory.facts().granted_size % kBlock == 0;
}

Result<backend::Ticket> Sharing::export_memory(backend::Memory& memory) {
  const CUdeviceptr base = static_cast<Memory&>(memory).linear_base();
  // Importers find the memory at the beginning of the driver's allocation.
  if (base == 0 || base != address_of(memory.facts().device_pointer)) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the driver has no handle for memory with such an alignment; create it with "
                      "GPUMEM_MEMORY_SHAREABLE, aligned to 2 MiB at most");
  }
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  CUipcMemHandle handle{};
  const Outcome outcome = device_.cu().IpcGetMemHandle(&handle, base);
  GPUMEM_TRY(check_room_for_descriptors(outcome));
  GPUMEM_TRY(device_.check(outcome, Place::kHost, "cannot get a handle of the memory for other processes"));
  return ticket_of(handle);
}

Result<std::unique_ptr<backend::Memory>> Sharing::import_memory(const backend::TicketRequest& request) {
  auto memory = std::make_unique<OpenedMemory>(device_);
  GPUMEM_TRY(memory->open(handle_of<CUipcMemHandle>(request.ticket), request.size, request.peer));
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

Result<int> Sharing::export_block(backend::Reservation& reservation, uint64_t offset,
                                  const backend::PhysicalFacts& facts) {
  RelaxedScope scope(device_);  // around all, so that what was retained can also be released
  GPUMEM_TRY(scope.entered());
  auto retained = reservation.retain(offset, facts);
  if (!retained) return retained.error();
  auto made = (*retained)->export_fd();
  drop(**retained);
  return made;
}

Result<std::unique_ptr<backend::Memory>> Sharing::import_blocks(const backend::BlocksRequest& request) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  backend::VirtualMemory& home = *(request.home != nullptr ? *request.home : device_).vmm();
  backend::PhysicalRequest one;
  one.location = request.location;
  one.numa_node = request.numa_node;
  one.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  auto unit = home.granularity(one);
  if (!unit) return unit.error();
  backend::ReservationRequest addresses;
  addresses.alignment = unit->minimum;
  addresses.address = request.address;
  addresses.fixed = request.address != nullptr;
  for (const uint64_t size : request.sizes) {
    const bool wraps = !add(addresses.size, size, &addresses.size) || addresses.size > kSizeMax;
    if (size == 0 || size % unit->minimum != 0 || wraps) return wrong_size(size, unit->minimum);
  }

  std::vector<std::unique_ptr<backend::Physical>> blocks;
  std::vector<backend::Physical*> plain;
  blocks.reserve(request.sizes.size());
  plain.reserve(request.sizes.size());
  Cleanup drop_blocks([&] {
    for (const auto& block : blocks)
      drop(*block);
  });
  for (size_t index = 0; index < request.sizes.size(); ++index) {
    one.size = request.sizes[index];
    auto block = home.import_fd(one, request.file_descriptors[index]);
    if (!block) return block.error();
    plain.push_back(block->get());
    blocks.push_back(std::move(*block));
  }

  auto memory = std::make_unique<MappedMemory>(device_, request);
  auto reserved = device_.vmm()->reserve(addresses);
  if (!reserved) return reserved.error();
  Cleanup undo([&] { drop(*memory); });
  GPUMEM_TRY(memory->map(request, std::move(*reserved), plain));
  // The mappings keep the memory.
  while (!blocks.empty()) {
    GPUMEM_TRY(blocks.back()->release());
    blocks.pop_back();
  }
  undo.dismiss();
  return std::unique_ptr<backend::Memory>(std::move(memory));
}

Result<backend::Ticket> Sharing::export_event(backend::Event& event) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  CUipcEventHandle handle{};
  const Outcome outcome = device_.cu().IpcGetEventHandle(&handle, static_cast<CUevent>(event.native()));
  GPUMEM_TRY(check_room_for_descriptors(outcome));
  if (outcome.code == CUDA_ERROR_INVALID_HANDLE) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the event was not created with GPUMEM_EVENT_INTERPROCESS, or was imported")
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  GPUMEM_TRY(device_.check(outcome, Place::kHost, "cannot get a handle of the event for other processes"));
  return ticket_of(handle);
}

Result<std::shared_ptr<backend::Event>> Sharing::import_event(const backend::Ticket& ticket) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  CUevent native = nullptr;
  const Outcome outcome = device_.cu().IpcOpenEventHandle(&native, handle_of<CUipcEventHandle>(ticket));
  if (!outcome.ok()) return explain(device_, outcome, "event");
  Cleanup undo([&] { (void)device_.cu().EventDestroy(native); });
  auto event = std::make_shared<Event>(device_, native, true);
  undo.dismiss();
  return {event};
}

Result<int> Sharing::export_dma_buf(const void* pointer, uint64_t size, bool prefer_pcie) {
  if (prefer_pcie) {
    auto made = try_dma_buf(pointer, size, true);
    if (made || device_.lost()) return made;
  }
  return try_dma_buf(pointer, size, false);
}

Result<int> Sharing::try_dma_buf(const void* pointer, uint64_t size, bool pcie) {
  RelaxedScope scope(device_);
  GPUMEM_TRY(scope.entered());
  int file_descriptor = -1;
  const Outcome outcome = device_.cu().MemGetHandleForAddressRange(
      &file_descriptor, address_of(pointer), size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
      pcie ? CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE : 0);
  return check_descriptor(device_, outcome, file_descriptor, "cannot make a dma-buf of the memory");
}

}  // namespace gpumem::cuda
