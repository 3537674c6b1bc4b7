// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pages of the process: mapping, locking, probing. Addresses and sizes are multiples of the page unless said
// otherwise.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gpumem::platform {

uint64_t page_size();

// madvise(): 0, or the errno. EINVAL too where advice does nothing: qemu-user accepts any, and ignores it.
int advise(void* address, uint64_t size, int advice);

// Error of class `status` with errno, its name, and the entry point.
Error system_error(Status status, int error_number, const char* entry_point, const char* what);

// A file of anonymous memory, close-on-exec and sealed against resizing. The name shows in /proc.
Result<int> memory_file(uint64_t size, const char* name = "gpumem");
// A memory file that only this view can write: all other mappings, also by its descriptors, are read-only.
struct PublishedFile {
  int file_descriptor = -1;
  void* view = nullptr;
};
Result<PublishedFile> published_file(uint64_t size, const char* name);
void close_file(int file_descriptor);

// An inaccessible range without memory, not inherited by fork. `alignment` is a power of two, at least the
// page.
Result<void*> reserve(uint64_t size, uint64_t alignment);
// The same at an address; ALREADY_EXISTS if something is there.
Result<void*> reserve_at(void* address, uint64_t size);
// Private anonymous memory, readable and writable, not inherited by fork.
Result<void*> map_anonymous(uint64_t size, uint64_t alignment);
// Like map_anonymous(), without an alignment and without committing memory: zeroed pages appear when touched.
Result<void*> map_lazily(uint64_t size);
// What the CPU may do with pages.
enum class Protection { kNone, kRead, kReadWrite };
// A shared view of a memory file, not inherited by fork. At `address`, replacing what is there; anywhere if
// null. NO_ACCESS if the descriptor does not allow it.
Result<void*> map_file(int file_descriptor, uint64_t size, void* address,
                       Protection protection = Protection::kReadWrite);
Result<void> protect(void* address, uint64_t size, Protection protection);
// A second view of a shared view's pages, replacing what is at the address. Has the same rights, and is not
// inherited by fork either.
Result<void> map_again(void* view, uint64_t size, void* address);
// Replaces memory by an inaccessible, empty range, which a forked child has too.
Result<void> make_inaccessible(void* address, uint64_t size);
void unmap(void* address, uint64_t size);
// Lets the CPU use mapped memory, or not. False if the system refuses.
bool set_accessible(void* address, uint64_t size, bool accessible);
// Frees the pages of a shared view; they read as zeros from then on. False if the system refuses.
bool discard(void* address, uint64_t size);

// Populates writable pages, without changing their contents, on up to `threads` threads. More than four do
// not help: the kernel holds a lock of the whole process for each.
Result<void> populate(void* address, uint64_t size, uint32_t threads);
// Provides the pages of a memory file, with this value in each byte: in half of the time that populating a
// view and writing there takes, which clears the pages first (docs/measured/frame.md).
Result<void> fill_memory_file(int file_descriptor, uint64_t size, int byte);
// Populates fresh private memory by storing zeros, which needs no such lock. Cannot report an error: if
// memory runs out, the kernel kills the process.
void touch_fresh(void* address, uint64_t size, uint32_t threads);
// Bytes of a range, at any address, that have no pages yet; estimated from a few of them. 0 if the system
// does not tell.
uint64_t absent_bytes(const void* address, uint64_t size);
// LIMIT_EXCEEDED at the process's lock limit, OUT_OF_HOST_MEMORY if memory runs out.
Result<void> lock(void* address, uint64_t size);
void unlock(void* address, uint64_t size);
// Whether any page of the range is locked, or of a kind that locks have no effect on. False if the kernel
// cannot tell, as before 5.4.
bool any_locked(const void* address, uint64_t size);
// Keeps whole pages that other code mapped out of forked children. Best effort: if the system refuses, the
// child has them.
void keep_from_children(void* address, uint64_t size);
void give_to_children(void* address, uint64_t size);  // the reverse
void use_huge_pages(void* address, uint64_t size);    // a hint

// Whether the CPU can read (write) every page of a range, at any address and size. Changes no byte and never
// faults, but may populate pages.
bool readable(const void* address, uint64_t size);
bool writable(const void* address, uint64_t size);
// The first of some rows with a page that cannot be read, or written; null if there is none.
const void* find_denied_row(const void* first, uint64_t pitch, uint64_t width, uint64_t height, bool write);

// Whether every page of a range is mapped, with any protection. Cheaper, and populates no page.
bool mapped(const void* address, uint64_t size);

enum class Mapping { kNone, kReadOnly, kWritable };

// Both combined: the least access that the CPU has to any page of the range.
Mapping probe(const void* address, uint64_t size);

}  // namespace gpumem::platform
