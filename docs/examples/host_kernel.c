/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A stand-in for a kernel on an emulated device. See docs/host-backend.md. */
#include "common.h"

struct square {
  int* numbers; /* device memory */
  size_t count;
};

static void GPUMEM_CALL square_all(gpumem_host_kernel kernel, void* user_data) {
  const struct square* work = user_data;
  void* view;
  if (GPUMEM_FAILED(gpumem_host_kernel_view(kernel, work->numbers, work->count * sizeof(int),
                                            GPUMEM_ACCESS_READWRITE, &view, NULL))) {
    return; /* The device is lost now, as after a kernel that faults. */
  }
  for (size_t i = 0; i < work->count; ++i)
    ((int*)view)[i] *= ((int*)view)[i];
}

int main(void) {
  gpumem_host_options options = GPUMEM_HOST_OPTIONS_INIT;
  options.device_count = 1;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  desc.host = &options;
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  TRY(gpumem_instance_open(&desc, &instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  TRY(gpumem_stream_create(device, NULL, &stream, &error));

  int numbers[] = {1, 2, 3, 4};
  void* memory;
  TRY(gpumem_malloc(device, GPUMEM_KIND_DEVICE, sizeof numbers, &memory, &error));
  TRY(gpumem_copy_async(stream, memory, numbers, sizeof numbers, NULL, &error));
  struct square work = {memory, 4};
  TRY(gpumem_host_launch(stream, square_all, &work, &error));
  TRY(gpumem_copy_async(stream, numbers, memory, sizeof numbers, NULL, &error));
  TRY(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, &error));
  printf("%d %d %d %d\n", numbers[0], numbers[1], numbers[2], numbers[3]);

  TRY(gpumem_free(instance, memory, &error));
  TRY(gpumem_stream_destroy(stream, &error));
  TRY(gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, NULL, &error));
  return numbers[3] != 16;
}
