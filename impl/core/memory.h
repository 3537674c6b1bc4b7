// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Making and destroying memory of every kind.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "core/device.h"
#include "core/object.h"
#include "core/registry.h"

namespace gpumem::core {

class Memory final : public Object {
 public:
  static constexpr Type kType = Type::kMemory;
  Memory(std::shared_ptr<Instance> instance, Device& device, const backend::MemoryRequest& request,
         std::string name);

  Device& device() const { return device_; }
  gpumem_kind kind() const { return request_.kind; }
  uint64_t size() const { return request_.size; }
  uint64_t alignment() const { return request_.alignment; }
  gpumem_memory_flags requested() const { return request_.require | request_.prefer; }
  uint64_t buffer_id() const { return buffer_id_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<backend::Memory>& backend() const { return backend_; }
  const backend::MemoryFacts& facts() const { return backend_->facts(); }
  bool has(gpumem_memory_flags flag) const { return (facts().granted & flag) != 0; }

  // Registry keys: the address of the CPU, and that of the devices where it is another one; 0 if there is
  // none.
  uint64_t host_base() const;
  uint64_t device_base() const;

  // Whether work of a device may read, or write, this memory in place, that is by its device pointer.
  Result<void> reachable_by(const Device& device, bool write) const;

  // BUSY if work that was left to a stream is known to use the memory. Calls that use it only until they
  // return are waited for when it is destroyed, and do not count.
  Result<void> check_unused() const;

 private:
  friend class PassingUse;
  friend Result<uint64_t> create_memory(Ref<DeviceObject> device, backend::MemoryRequest request,
                                        std::string name);
  friend Result<void> release_memory(Memory& memory);

  Device& device_;
  const backend::MemoryRequest request_;
  const uint64_t buffer_id_;
  const std::string name_;
  std::shared_ptr<backend::Memory> backend_;
  std::atomic<uint64_t> passing_uses_begun_{0};
  std::atomic<uint64_t> passing_uses_ended_{0};
};

// Stands for a call that uses a memory only until it returns; of null, nothing.
class PassingUse {
 public:
  explicit PassingUse(Memory* memory) : memory_(memory) {
    if (memory_ != nullptr) ++memory_->passing_uses_begun_;
  }
  PassingUse(const PassingUse&) = delete;
  PassingUse& operator=(const PassingUse&) = delete;
  ~PassingUse() {
    if (memory_ != nullptr) ++memory_->passing_uses_ended_;
  }

 private:
  Memory* const memory_;
};

// The handle of new memory. The request has been checked by value; whether it can be honoured is decided
// here.
Result<uint64_t> create_memory(Ref<DeviceObject> device, backend::MemoryRequest request, std::string name);
Result<void> destroy_memory(Ref<Memory> memory);
// By pointer: an allocation, or a registration.
Result<void> free_pointer(Instance& instance, const void* pointer);
Result<void> unregister_pointer(Instance& instance, const void* pointer);

// Gives back an ended memory that nobody else refers to; on failure it is as it was. Needs
// Instance::stay_open().
Result<void> release_memory(Memory& memory);
// Drops the records of a memory that is gone, or that could not be given back when its instance was closed.
void forget_memory(Memory& memory) noexcept;

const char* kind_name(gpumem_kind kind);

}  // namespace gpumem::core
