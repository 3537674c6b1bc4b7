/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What a forked child may and may not do. See docs/threads-fork-exit.md. */
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

int main(void) {
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  gpumem_instance instance;
  TRY(gpumem_instance_open(&desc, &instance, &error));

  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    /* The parent's objects are refused, not misused. */
    gpumem_device device;
    if (gpumem_device_get(instance, 0, &device, &error) != GPUMEM_ERROR_FORKED) _exit(1);
    /* An instance of the child's own works. */
    gpumem_instance own;
    TRY(gpumem_instance_open(&desc, &own, &error));
    TRY(gpumem_device_get(own, 0, &device, &error));
    TRY(gpumem_instance_close(own, GPUMEM_CLOSE_CHECK, NULL, &error));
    _exit(0);
  }
  int status;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  return 0;
}
