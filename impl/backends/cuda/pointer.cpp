// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/pointer.h"

#include <condition_variable>
#include <iterator>
#include <map>
#include <mutex>

#include "backends/cuda/process_wide.h"
#include "base/arithmetic.h"

namespace gpumem::cuda {
namespace {

struct UsedPart {
  void* memory;
  uint64_t size;
};

// Of all instances.
struct Addresses {
  std::mutex mutex;
  std::map<uint64_t, UsedPart> used_parts;  // by the address of the allocation
  Question* questions = nullptr;
  std::condition_variable answered;
  Freeing* freeing = nullptr;
};

Addresses& addresses() { return process_wide<Addresses>(); }

// Narrows what the driver knows to what a memory of ours uses; false if the address lies beside it.
bool narrow(backend::PointerFacts& facts, const void* pointer) {
  Addresses& all = addresses();
  const std::lock_guard lock(all.mutex);
  const auto found = all.used_parts.find(address_of(facts.base));
  if (found == all.used_parts.end()) return true;
  facts.base = found->second.memory;
  facts.size = found->second.size;
  return address_of(pointer) - address_of(facts.base) < facts.size;
}

template <class Member>
void unlink(Member*& first, Member* member, Member* Member::*next) {
  Member** place = &first;
  while (*place != member)
    place = &((*place)->*next);
  *place = member->*next;
}

}  // namespace

bool Question::lies_in(const Freeing& range) const { return address_ - range.base_ < range.size_; }

Question::Question(const void* pointer) : address_(address_of(pointer)) {
  Addresses& all = addresses();
  const std::lock_guard lock(all.mutex);
  for (const Freeing* range = all.freeing; range != nullptr; range = range->next_) {
    if (lies_in(*range)) allowed_ = false;
  }
  if (!allowed_) return;
  next_ = all.questions;
  all.questions = this;
}

Question::~Question() {
  if (!allowed_) return;
  Addresses& all = addresses();
  const std::lock_guard lock(all.mutex);
  unlink(all.questions, this, &Question::next_);
  if (all.freeing != nullptr) all.answered.notify_all();
}

Freeing::Freeing(uint64_t base, uint64_t size) : base_(base), size_(size) {
  Addresses& all = addresses();
  std::unique_lock lock(all.mutex);
  next_ = all.freeing;
  all.freeing = this;
  all.answered.wait(lock, [&] {
    for (const Question* question = all.questions; question != nullptr; question = question->next_) {
      if (question->lies_in(*this)) return false;
    }
    return true;
  });
}

Freeing::~Freeing() {
  Addresses& all = addresses();
  const std::lock_guard lock(all.mutex);
  unlink(all.freeing, this, &Freeing::next_);
}

void note_used_part(uint64_t allocation, const void* memory, uint64_t size) {
  const std::lock_guard lock(addresses().mutex);
  addresses().used_parts[allocation] = {const_cast<void*>(memory), size};
}

void forget_used_part(uint64_t allocation) {
  const std::lock_guard lock(addresses().mutex);
  addresses().used_parts.erase(allocation);
}

Outcome find_device_pointer(const Driver& cu, const void* pointer, CUdeviceptr* out) {
  const Question question(pointer);
  if (!question.allowed()) return {CUDA_ERROR_INVALID_VALUE, cu.MemHostGetDevicePointer.name};
  return cu.MemHostGetDevicePointer(out, const_cast<void*>(pointer), 0);
}

// The plural form: it gives nulls for strangers, where the singular one fails, and is faster.
Result<backend::PointerFacts> pointer_facts(Device& device, const void* pointer) {
  CUmemorytype type{};
  CUdeviceptr device_pointer = 0;
  void* host_pointer = nullptr;
  unsigned managed = 0;
  int ordinal = -1;
  CUdeviceptr base = 0;
  size_t size = 0;
  unsigned long long buffer_id = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_HOST_POINTER,   CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&type, &device_pointer, &host_pointer, &managed, &ordinal, &base, &size, &buffer_id};
  // Without a current context the driver tells no device pointer.
  Scope scope(device);
  GPUMEM_TRY(scope.entered());
  const Question question(pointer);
  if (!question.allowed()) return backend::PointerFacts();
  GPUMEM_TRY(device.check(
      device.cu().PointerGetAttributes(std::size(attributes), attributes, values, address_of(pointer)),
      Place::kHost, "the driver does not tell what %p is", pointer));

  backend::PointerFacts facts;
  const bool host = type == CU_MEMORYTYPE_HOST;
  if (!host && type != CU_MEMORYTYPE_DEVICE && managed == 0) return facts;
  facts.kind = GPUMEM_KIND_FOREIGN;
  if (managed != 0) {
    facts.location = GPUMEM_LOCATION_NONE;  // it moves
  } else {
    facts.location = host ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE;
  }
  facts.device_ordinal = ordinal >= 0 ? ordinal : -1;
  if (facts.location == GPUMEM_LOCATION_DEVICE) facts.location_id = facts.device_ordinal;
  facts.host_pointer = host_pointer;
  // Memory of a device has one address for all; the driver tells it only to devices with access.
  const bool of_device = facts.location == GPUMEM_LOCATION_DEVICE;
  facts.device_pointer = of_device ? const_cast<void*>(pointer) : pointer_to(device_pointer);
  facts.base = pointer_to(base);
  facts.size = size;
  facts.buffer_id = buffer_id;
  return narrow(facts, pointer) ? facts : backend::PointerFacts();
}

}  // namespace gpumem::cuda
