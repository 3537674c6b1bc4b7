// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the driver knows about an address.
#pragma once

#include "backends/cuda/device.h"

namespace gpumem::cuda {

// Some allocations of the driver are larger than the memory in them, for the sake of an alignment. What is
// left of them belongs to nobody. Parts are named by the address of the driver's allocation.
void note_used_part(uint64_t allocation, const void* memory, uint64_t size);
void forget_used_part(uint64_t allocation);

// While one lives, the driver is not asked about a range that it is told to free: asked meanwhile it crashes
// or hangs (measured: docs/measured/driver-facts.md). Making one waits for the questions that are under way
// there; new ones are answered as if nothing were there any more. It cannot know what other code of the
// process frees.
class Freeing {
 public:
  Freeing(uint64_t base, uint64_t size);
  ~Freeing();
  Freeing(const Freeing&) = delete;
  Freeing& operator=(const Freeing&) = delete;

 private:
  friend class Question;
  const uint64_t base_;
  const uint64_t size_;
  Freeing* next_ = nullptr;
};

// An address that the driver is asked about, for as long as this lives. Only what this backend frees can be
// kept apart from it.
class Question {
 public:
  explicit Question(const void* pointer);
  ~Question();
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  // False: the memory there is being freed.
  bool allowed() const { return allowed_; }

 private:
  friend class Freeing;
  bool lies_in(const Freeing& range) const;

  const uint64_t address_;
  bool allowed_ = true;
  Question* next_ = nullptr;
};

// The address at which a device, whose context is current, reaches memory of the host that was not made here.
// INVALID_VALUE if there is none.
Outcome find_device_pointer(const Driver& cu, const void* pointer, CUdeviceptr* out);

// `device` is the one that asks; the answer is the same for all.
Result<backend::PointerFacts> pointer_facts(Device& device, const void* pointer);

}  // namespace gpumem::cuda
