// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A consumer of the C exchange functions of DLPack, which knows nothing of the objects that it passes.
// Compiled and called by exchange.py.
#include <stdint.h>
#include <time.h>

struct tensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct managed {
  uint32_t major, minor;
  void* manager;
  void (*deleter)(struct managed*);
  uint64_t flags;
  struct tensor tensor;
};

struct table {
  uint32_t major, minor;
  const struct table* previous;
  int (*allocate)(struct tensor*, struct managed**, void*, void (*)(void*, const char*, const char*));
  int (*export_managed)(void*, struct managed**);
  int (*import_managed)(struct managed*, void**);
  int (*export_borrowed)(void*, struct tensor*);
  int (*current_work_stream)(int32_t, int32_t, void**);
};

// An object of another library over the same bytes; NULL with an exception set if that fails. A tensor that
// is refused is released here, as tvm-ffi does it.
void* hand_over(const struct table* from, void* object, const struct table* to) {
  struct managed* managed = 0;
  void* found = 0;
  if (from->export_managed(object, &managed) != 0) return 0;
  if (to->import_managed(managed, &found) == 0) return found;
  managed->deleter(managed);
  return 0;
}

// Nanoseconds of the best of 15 runs: of borrowing a tensor, and of exporting and releasing one. Negative if
// that fails.
double best(const struct table* table, void* object, int managed) {
  enum { COUNT = 20000 };
  double least = -1;
  for (int run = 0; run < 15; ++run) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < COUNT; ++i) {
      struct tensor tensor;
      struct managed* exported;
      if ((managed ? table->export_managed(object, &exported) : table->export_borrowed(object, &tensor)) != 0)
        return -1;
      if (managed) exported->deleter(exported);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double took =
        ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / COUNT;
    if (least < 0 || took < least) least = took;
  }
  return least;
}
