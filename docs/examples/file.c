/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Weights in a file behind a header, read into memory of a device. See docs/choosing.md. */
#include "common.h"

static int32_t GPUMEM_CALL show(void* user_data, uint64_t done, uint64_t total) {
  int* last = user_data;
  *last = (int)(100 * done / total);
  return 0; /* anything else ends the call */
}

int main(void) {
  enum { HEADER = 100, SIZE = 12 << 20 };
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  FILE* file = tmpfile();
  unsigned char* bytes = malloc(SIZE);
  if (file == NULL || bytes == NULL) return 1;
  for (int i = 0; i < SIZE; ++i)
    bytes[i] = (unsigned char)(i * 7 + i / 1000);
  if (fseek(file, HEADER, SEEK_SET) != 0 || fwrite(bytes, SIZE, 1, file) != 1 || fflush(file) != 0) return 1;

  void* weights;
  TRY(gpumem_malloc(device, GPUMEM_KIND_DEVICE, SIZE, &weights, &error));
  int last = 0;
  gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
  desc.file_descriptor = fileno(file);
  desc.file_offset = HEADER;
  desc.pointer = weights;
  desc.size = SIZE;
  desc.progress = show;
  desc.user_data = &last;
  TRY(gpumem_copy_file(instance, &desc, NULL, &error));

  unsigned char* back = malloc(SIZE);
  if (back == NULL) return 1;
  TRY(gpumem_copy(instance, back, weights, SIZE, NULL, &error));
  const int same = memcmp(back, bytes, SIZE) == 0;
  printf("%d %% are there, content %s\n", last, same ? "equal" : "different");

  /* More than the file has. */
  desc.file_offset = HEADER + 1;
  const gpumem_status refused = gpumem_copy_file(instance, &desc, NULL, &error);
  printf("%s: %s\n", gpumem_status_name(refused), error.message);
  TRY(gpumem_free(instance, weights, &error));
  print_live_objects(instance);
  free(back);
  free(bytes);
  fclose(file);
  return !same || last != 100 || refused != GPUMEM_ERROR_INVALID_ARGUMENT;
}
