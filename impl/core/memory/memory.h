// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Allocations and registrations: making and destroying them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "core/memory/region.h"
#include "core/object/handles.h"

namespace gpumem::core {

class Memory final : public Region {
 public:
  static constexpr Type kType = Type::kMemory;
  Memory(std::shared_ptr<Instance> instance, Device& device, const KindTraits& traits,
         const backend::MemoryRequest& asked, std::string name);
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;
  void forget() noexcept override;

  // Takes the mapping of an import to cache it, so that nothing is left to release.
  std::unique_ptr<backend::Memory> take_backend() noexcept { return Region::take_backend(); }

  // Whether a buffer or a ring owns it: then only that may free it.
  bool owned() const { return owned_.load(std::memory_order_acquire); }
  void set_owned() noexcept { owned_.store(true, std::memory_order_release); }

  // The answer of gpumem_memory_get_info().
  const gpumem_memory_info& memory_info() const { return memory_info_; }

 private:
  friend class NewMemory;

  const backend::MemoryRequest asked_;
  gpumem_memory_info memory_info_ = GPUMEM_MEMORY_INFO_INIT;
  std::atomic<bool> owned_{false};
};

// A new memory: its handle, and its pointer for callers that need only that.
struct CreatedMemory {
  uint64_t handle = 0;
  void* pointer = nullptr;
};

// The request's values must be checked already; decides here whether it can be met. Memory of a buffer can be
// closed from the start.
Result<CreatedMemory> create_memory(DeviceObject& device, const KindTraits& kind,
                                    backend::MemoryRequest request, std::string name, bool closed = false);
Result<CreatedMemory> register_memory(DeviceObject& device, backend::RegistrationRequest request,
                                      std::string name);
// For adopt_memory(). The mapping is a cached one, or null.
struct NewImport {
  uint64_t size = 0;
  bool on_device = true;
  std::string name;
  std::shared_ptr<SharePeer> peer;  // without which the memory cannot be used; or null
};
struct AdoptedMemory {
  Memory* memory = nullptr;
  CreatedMemory created;
};
// Memory of another process. Once `make` has succeeded, nothing can fail. Needs Instance::stay_open().
Result<AdoptedMemory> adopt_memory(DeviceObject& device, NewImport wanted,
                                   const std::function<Result<std::unique_ptr<backend::Memory>>()>& make);
// Counts an import down.
Result<void> destroy_memory(Ref<Memory> memory);
// Ends the memory, however often it is imported.
Result<void> destroy_mapping(Ref<Memory> memory);
// destroy_memory() for the caller: INVALID_STATE if a buffer or a ring owns it.
Result<void> destroy_for_user(Ref<Memory> memory);
// Frees an allocation or ends a registration, by pointer.
Result<void> free_pointer(Instance& instance, const void* pointer);
Result<void> unregister_pointer(Instance& instance, const void* pointer);

}  // namespace gpumem::core
