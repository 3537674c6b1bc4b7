// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pages of the process: mapping, locking, probing. Addresses and sizes are multiples of the page unless said
// otherwise.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gpumem::platform {

uint64_t page_size();

// Error with errno, its name, and the entry point; `status` decides the class.
Error system_error(Status status, int error_number, const char* entry_point, const char* what);

// A file of anonymous memory, close-on-exec and sealed against resizing.
Result<int> memory_file(uint64_t size);
void close_file(int file_descriptor);

// An inaccessible range without memory, not inherited by fork. `alignment` is a power of two, at least the
// page.
Result<void*> reserve(uint64_t size, uint64_t alignment);
// Private anonymous memory, readable and writable, not inherited by fork.
Result<void*> map_anonymous(uint64_t size, uint64_t alignment);
// The same without an alignment and without claiming memory; pages come into being when they are touched, as
// zeros.
Result<void*> map_lazily(uint64_t size);
// Shared view of a memory file, readable and writable, not inherited by fork; at `address` (replacing what is
// there) or, for null, anywhere.
Result<void*> map_file(int file_descriptor, uint64_t size, void* address);
// Puts an inaccessible, empty range where memory was.
Result<void> make_inaccessible(void* address, uint64_t size);
void unmap(void* address, uint64_t size);

// Brings writable pages into being without changing their contents; up to `threads` share the work.
Result<void> populate(void* address, uint64_t size, uint32_t threads);
// Bytes that can still be populated before the kernel begins to kill processes; an estimate.
uint64_t memory_available();
// LIMIT_EXCEEDED for the lock limit of the process, OUT_OF_HOST_MEMORY for want of memory.
Result<void> lock(void* address, uint64_t size);
void unlock(void* address, uint64_t size);
// Leaves a range that other code mapped out of forked children; whole pages. Tried only: a system that
// refuses lets the child have it.
void keep_from_children(void* address, uint64_t size);
void give_to_children(void* address, uint64_t size);  // the reverse
void use_huge_pages(void* address, uint64_t size);    // a hint

// Whether the CPU may read (write) every page of a range, at any address and size. Changes no byte and never
// faults; pages that did not exist may do so afterwards.
bool readable(const void* address, uint64_t size);
bool writable(const void* address, uint64_t size);

// Whether anything is mapped at every page of a range, whatever may be done with it. Cheaper, and brings no
// page into being.
bool mapped(const void* address, uint64_t size);

enum class Mapping { kNone, kReadOnly, kWritable };

// Both in one: the least that the CPU may do with a page of the range.
Mapping probe(const void* address, uint64_t size);

}  // namespace gpumem::platform
