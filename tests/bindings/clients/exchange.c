// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A consumer of the C exchange functions of DLPack, which knows nothing of the objects that it passes, and
// one of Arrow's structs. Compiled and called by exchange.py.
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

void Py_DecRef(void* object);
void PyErr_SetString(void* type, const char* message);
void PyErr_Clear(void);
int PyErr_ExceptionMatches(void* type);
extern void* PyExc_ValueError;

enum { BORROW, EXPORT, HAND_OVER };

// Nanoseconds of the best of 15 runs: of borrowing a tensor, of exporting and releasing one, or of exporting
// it to `to` and dropping the object there. Negative if that fails.
double best(const struct table* from, void* object, int what, const struct table* to) {
  enum { COUNT = 20000 };
  double least = -1;
  for (int run = 0; run < 15; ++run) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < COUNT; ++i) {
      if (what == HAND_OVER) {
        void* const found = hand_over(from, object, to);
        if (!found) return -1;
        Py_DecRef(found);
        continue;
      }
      struct tensor tensor;
      struct managed* exported;
      if ((what == EXPORT ? from->export_managed(object, &exported)
                          : from->export_borrowed(object, &tensor)) != 0)
        return -1;
      if (what == EXPORT) exported->deleter(exported);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double took =
        ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / COUNT;
    if (least < 0 || took < least) least = took;
  }
  return least;
}

struct arrow_schema {
  const char *format, *name, *metadata;
  int64_t flags, n_children;
  void *children, *dictionary;
  void (*release)(struct arrow_schema*);
  void* private_data;
};

struct arrow_array {
  int64_t length, null_count, offset, n_buffers, n_children;
  void *buffers, *children, *dictionary;
  void (*release)(struct arrow_array*);
  void* private_data;
};

// Moves both out and releases them while an exception is set, as a consumer that fails does it. Returns
// whether both say that they were released.
int fail_with_arrow(struct arrow_schema* schema, struct arrow_array* array) {
  struct arrow_schema own_schema = *schema;
  struct arrow_array own_array = *array;
  schema->release = 0;
  array->release = 0;
  PyErr_SetString(PyExc_ValueError, "the consumer fails");
  own_schema.release(&own_schema);
  own_array.release(&own_array);
  int still_set = PyErr_ExceptionMatches(PyExc_ValueError);
  PyErr_Clear();
  return still_set && !own_schema.release && !own_array.release;
}
