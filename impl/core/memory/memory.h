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

class Memory;

// What counts how often a memory was imported, and holds it in the other process.
class Importer {
 public:
  virtual ~Importer() = default;
  // Counts down, or ends the last one.
  virtual Result<void> destroy(Ref<Memory> memory) = 0;
  // Caches the mapping of a memory that ends, instead of releasing it; false if it cannot be cached.
  virtual bool keep_mapped(Memory& memory) noexcept = 0;
  // Drops the record of a memory whose mapping is gone, or kept.
  virtual void forget(const Memory& memory) noexcept = 0;
};

struct AdoptedMemory;
struct NewImport;
using MakeMapping = std::function<Result<std::unique_ptr<backend::Memory>>()>;

class Memory final : public Region {
 public:
  static constexpr Type kType = Type::kMemory;
  Memory(std::shared_ptr<Context> context, Device& device, const KindTraits& traits,
         const backend::MemoryRequest& asked, std::string name);
  Line describe() const override;
  void list(Fields& fields) const noexcept override;
  Result<void> release() override;
  Discard discard() const noexcept override;
  void forget() noexcept override;
  Result<void> may_end() override;
  Result<void> may_end_unused() override;

  // Takes the mapping of an import to cache it, so that nothing is left to release.
  std::unique_ptr<backend::Memory> take_backend() noexcept { return Region::take_backend(); }

  // Whether a buffer or a ring owns it: then only that may free it.
  bool owned() const { return owned_.load(std::memory_order_acquire); }
  void set_owned() noexcept { owned_.store(true, std::memory_order_release); }

  // The answer of gpumem_memory_get_info().
  const gpumem_memory_info& memory_info() const { return memory_info_; }

 private:
  friend class NewMemory;
  friend Result<AdoptedMemory> adopt_memory(DeviceObject& device, NewImport wanted, const MakeMapping& make);
  friend Result<void> destroy_memory(Ref<Memory> memory);

  const backend::MemoryRequest asked_;
  gpumem_memory_info memory_info_ = GPUMEM_MEMORY_INFO_INIT;
  std::atomic<bool> owned_{false};
  Importer* importer_ = nullptr;  // of what is imported
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
  Importer& importer;
  uint64_t size = 0;
  bool on_device = true;
  std::string name;
  std::shared_ptr<const OtherProcess> peer;  // without which the memory cannot be used; or null
};
struct AdoptedMemory {
  Memory* memory = nullptr;
  CreatedMemory created;
};
// Memory of another process. Once `make` has succeeded, nothing can fail. Needs Context::stay_open().
Result<AdoptedMemory> adopt_memory(DeviceObject& device, NewImport wanted, const MakeMapping& make);
// Counts an import down; destroy_object() ends it however often it is imported.
Result<void> destroy_memory(Ref<Memory> memory);
// destroy_memory() for the caller: INVALID_STATE if a buffer or a ring owns it.
Result<void> destroy_for_user(Ref<Memory> memory);
// Frees an allocation or ends a registration, by pointer.
Result<void> free_pointer(Context& context, const void* pointer);
Result<void> unregister_pointer(Context& context, const void* pointer);

}  // namespace gpumem::core
