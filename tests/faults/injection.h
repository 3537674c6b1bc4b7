// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls of the operating system and of host allocation that can be made to fail, and what they hold. The
// linker hands the library's calls to injection.cpp (see the list in meson.build); operator new and delete
// are the program's own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace faults {

enum class Kind { kDriver, kSystem, kAllocation, kServingAllocation };

// The k-th call of a kind fails, from 1, and if `forever` every later one too. `code` is the CUresult of a
// driver call, and for a system call it chooses among the errno values that are natural for it.
struct Fault {
  Kind kind;
  uint64_t k;
  bool forever;
  int code;
};

// Counts calls of all threads from now on: those that the library makes on its own threads fail as well, but
// for the sharing threads', of which only the allocations of kServingAllocation fail.
void arm(const Fault& fault);
void disarm();

// A system call that was made to fail.
struct Hit {
  const char* call;
  int code;  // errno; 0 if the call sets none
};

// How many calls failed since arm().
uint64_t hits();
// Whether a system call of this name failed with this code.
bool was_hit(const char* call, int code);

// Whether a system call was made to say something about the machine, and not only about this moment.
bool met_lasting_refusal();

// What the library holds of each kind: more afterwards than before is a leak.
int64_t mapped_bytes();
int64_t record_bytes();  // of these, records of an instance, which keeps them until it is closed
int64_t loaded_libraries();
// Blocks of operator new in the whole program.
int64_t live_blocks();

}  // namespace faults
