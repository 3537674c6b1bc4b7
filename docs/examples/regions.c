/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A tile of an image, and two rows of another buffer, copied in one call. See docs/quickstart.md. */
#include "common.h"

int main(void) {
  enum { WIDTH = 640, HEIGHT = 480, TILE = 64 };
  static uint8_t image[HEIGHT][WIDTH], rows[2][WIDTH], seen[TILE * TILE + 2 * WIDTH];
  gpumem_instance instance;
  gpumem_device device;
  TRY(gpumem_instance_default(&instance, &error));
  TRY(gpumem_device_get(instance, 0, &device, &error));
  for (int i = 0; i < HEIGHT * WIDTH; ++i)
    image[i / WIDTH][i % WIDTH] = (uint8_t)(i * 7);
  memset(rows, 9, sizeof rows);

  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = sizeof seen;
  gpumem_memory memory;
  TRY(gpumem_memory_create(device, &desc, &memory, &error));

  gpumem_copy_region regions[2] = {GPUMEM_COPY_REGION_INIT, GPUMEM_COPY_REGION_INIT};
  /* The tile at column 100, row 50. In the memory its rows are packed. */
  regions[0].source.pointer = &image[50][100];
  regions[0].source.row_pitch = WIDTH;
  regions[0].destination.memory = memory;
  regions[0].width = TILE;
  regions[0].height = TILE;
  /* The rows, behind the tile. */
  regions[1].source.pointer = rows;
  regions[1].destination.memory = memory;
  regions[1].destination.offset = TILE * TILE;
  regions[1].width = sizeof rows;
  uint64_t failed;
  if (GPUMEM_FAILED(gpumem_copy_regions(instance, regions, 2, &failed, &error))) {
    fprintf(stderr, "region %d: %s\n", (int)failed, error.message);
    return 1;
  }

  gpumem_copy_region back = GPUMEM_COPY_REGION_INIT;
  back.source.memory = memory;
  back.destination.pointer = seen;
  back.width = sizeof seen;
  TRY(gpumem_copy_regions(instance, &back, 1, NULL, &error));
  printf("the tile begins with %d, the rows with %d\n", seen[0], seen[TILE * TILE]);
  TRY(gpumem_memory_destroy(memory, &error));
  return seen[TILE] != image[51][100] || seen[TILE * TILE] != 9;
}
