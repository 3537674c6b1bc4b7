/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Loads a library with dlopen and prints how many microseconds that took. Usage: loader LIBRARY [CONTROL]
 * CONTROL is a second library, loaded afterwards, that need not exist. */
#define _POSIX_C_SOURCE 200112L
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

static double microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

int main(int argc, char** argv) {
  double start, end;
  void* library;
  if (argc < 2) return 2;
  start = microseconds();
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  end = microseconds();
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (argc > 2) (void)dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  printf("%.1f\n", end - start);
  return 0;
}
