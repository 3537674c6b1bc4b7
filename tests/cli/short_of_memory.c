/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Preloaded into a program: all allocations fail after the first TEST_ALLOCATIONS. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

void* __libc_malloc(size_t size);

static atomic_long left = -1; /* -1: not read yet */

void* malloc(size_t size) {
  long now = atomic_load(&left);
  if (now == -1) {
    const char* text = getenv("TEST_ALLOCATIONS");
    now = text == NULL ? 1000000000 : atol(text);
  }
  if (now == 0) {
    atomic_store(&left, 0);
    errno = ENOMEM;
    return NULL;
  }
  atomic_store(&left, now - 1);
  return __libc_malloc(size);
}
