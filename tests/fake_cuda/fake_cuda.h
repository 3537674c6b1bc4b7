// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What tests may ask of the fake CUDA driver beyond the CUDA driver API: see docs/fake-driver.md. Link it, or
// obtain each function with dlsym on the library that was loaded as libcuda.so.1; its type is
// decltype(&fake_cuda_...). None needs cuInit or a context.
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fake_cuda_object {
  FAKE_CUDA_ANY = -1,
  FAKE_CUDA_CONTEXT = 0,        // retains of primary contexts plus created contexts
  FAKE_CUDA_DEVICE_MEMORY = 1,  // cuMemAlloc
  FAKE_CUDA_MANAGED_MEMORY = 2,
  FAKE_CUDA_PINNED_MEMORY = 3,
  FAKE_CUDA_REGISTRATION = 4,
  FAKE_CUDA_STREAM = 5,
  FAKE_CUDA_EVENT = 6,
  FAKE_CUDA_GRAPH = 7,
  FAKE_CUDA_RESERVATION = 8,
  FAKE_CUDA_BLOCK = 9,  // physical blocks with a handle or a mapping
  FAKE_CUDA_MAPPING = 10,
  FAKE_CUDA_IMPORT = 11,  // blocks of other processes that are open by cuIpcOpenMemHandle
  FAKE_CUDA_MODULE = 12,
  FAKE_CUDA_MEMORY_POOL = 13,  // cuMemPoolCreate
  FAKE_CUDA_OBJECT_COUNT = 14
};

// Forgets everything (objects, counts, violations, rules, settings) and reads the environment again, as if
// the library had just been loaded. No other thread may be in a call and no host function may be running.
void fake_cuda_reset(void);

// Changes one setting, named and written as its environment variable. 0 when accepted; the number of devices
// is fixed by cuInit. "FAKE_CUDA_FAIL" adds rules, and an empty value removes all rules.
int fake_cuda_configure(const char* name, const char* value);

// From now on the k-th call (1 is the next) of `function` answers `code`, and with `persistent` every later
// one too. A function is named by its base name, by its exported symbol, or by "*" for all.
void fake_cuda_fail(const char* function, uint64_t k, int persistent, int code);

// How many calls have been made to fail by a rule.
uint64_t fake_cuda_failures(void);

// Calls of `function` (named as above) since the last reset, refused ones included.
uint64_t fake_cuda_call_count(const char* function);

// Live objects of one type, or of all with FAKE_CUDA_ANY.
uint64_t fake_cuda_live(int object);

// Loses a device (-1: all of them) with a sticky error; 0 mends it, which no real driver does.
void fake_cuda_set_sticky(int device, int code);

// Sets what cuDeviceGetAttribute answers, and with it what the fake supports. Device -1 means all.
void fake_cuda_set_attribute(int device, int attribute, int value);

// Waits until every operation that was enqueued is complete, for 20 seconds at most. 1 if they are.
int fake_cuda_settle(void);

// Copies the list of violations, one a line, and ends it with a zero; returns how many there are.
size_t fake_cuda_violations(char* buffer, size_t size);
void fake_cuda_clear_violations(void);

// Adds a violation for each type of object that is still alive; returns how many objects there are.
uint64_t fake_cuda_check_leaks(void);

// Around a call under test: a violation is added if the calling thread's context stack, or its mode of
// heeding stream captures, is not the same at the end.
void fake_cuda_section_begin(void);
void fake_cuda_section_end(const char* name);

// Says that the process is ending: later calls answer CUDA_ERROR_DEINITIALIZED and are violations. The fake
// says so itself in an exit handler that cuInit registers.
void fake_cuda_exit_began(void);

#ifdef __cplusplus
}
#endif

#endif
