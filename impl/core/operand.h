// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What memory is this address? For the operands of copies and fills, and for pointer queries.
#pragma once

#include "backend/backend.h"
#include "core/memory.h"

namespace gpumem::core {

// One side of a copy or fill with what keeps it alive while it is enqueued.
struct FoundOperand {
  backend::Operand operand;
  Ref<Memory> memory;           // of this instance, or empty
  int32_t device_ordinal = -1;  // of the memory; -1 for ordinary memory
};

// Finds the memory of a range; `what` names it in messages. INVALID_ARGUMENT if the range leaves its object,
// NOT_FOUND if nothing readable is there (UVA-8).
Result<FoundOperand> find_operand(Instance& instance, const void* address, uint64_t size, const char* what);

// The same for a range of a memory of this instance.
Result<FoundOperand> operand_of(Ref<Memory> memory, uint64_t offset, uint64_t size, const char* what);

// gpumem_pointer_get_info(), gpumem_pointer_get_access() and gpumem_pointer_get_device_pointer().
Result<gpumem_pointer_info> pointer_info(Instance& instance, const void* pointer);
// Of a device, or of the CPU if it is null.
Result<gpumem_access> pointer_access(Instance& instance, const void* pointer, Device* device);
Result<void*> device_pointer(DeviceObject& device, const void* pointer);

}  // namespace gpumem::core
