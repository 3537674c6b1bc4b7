// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The C exchange functions of DLPack 1.3 for gpumem.View: see docs/arrow-dlpack.md and
// bindings/python/gpumem/_dlpack.py, which describes the views. The structs and what the functions promise
// are those of dlpack.h 1.3 (github.com/dmlc/dlpack).
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>

#include "python.h"

namespace {

struct Tensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct Version {
  uint32_t major, minor;
};

constexpr Version kVersion{1, 3};
constexpr uint64_t kReadOnly = 1;

struct ManagedTensor {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  Tensor tensor;
};

// Writes an error: the name of a class of Python, and a message.
using SetError = void(void* context, const char* kind, const char* message);

struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, ManagedTensor** out, void* context, SetError* set_error);
  int (*export_managed)(void* view, ManagedTensor** out);
  int (*import_managed)(ManagedTensor* tensor, void** out_view);
  int (*export_borrowed)(void* view, Tensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out_stream);
};

// What _dlpack.py keeps at a view, in memory of ctypes, for as long as the view lives.
struct Described {
  Tensor tensor;
  uint64_t flags;
};

// Objects of Python, for as long as the interpreter lives.
struct Objects {
  // function: the address of the Described of a view that may be used now, which is kept in the list that
  // known() reads
  void* describe;
  void* wrap;  // function: a View of the ManagedTensor at an address, and the list that says that it is taken
  void* exchange;  // the names of attributes of a view
  void* counted;
  void* loan;
  void* generation;  // list with one object, another one in each forked child
};

Objects objects;
// Odd while an interpreter has the functions, and another number for each.
std::atomic<uint64_t> life{0};

// A tensor that was exported, and what of Python it keeps.
struct Exported {
  ManagedTensor managed;
  void* view;
  void* loan;
  uint64_t life;
};

void release(ManagedTensor* managed) {
  auto* const exported = static_cast<Exported*>(managed->manager);
  if (exported->life == life.load(std::memory_order_acquire)) {  // otherwise the objects are gone
    const int state = PyGILState_Ensure();
    Py_DecRef(exported->loan);
    Py_DecRef(exported->view);
    PyGILState_Release(state);
  }
  delete exported;
}

// Whether an attribute is an object, and not only equal to it.
bool is(void* view, void* name, const void* expected) {
  void* const found = PyObject_GetAttr(view, name);
  if (found == nullptr) return false;
  Py_DecRef(found);
  return found == expected;
}

// The last entry of the list that describe() fills. NULL, maybe with an exception set, if there is none, or
// if it must be asked again: when something else uses the memory, or it is closed, or this is a forked child.
const Described* known(void* view) {
  void* const list = PyObject_GetAttr(view, objects.exchange);
  if (list == nullptr) return nullptr;
  const Described* found = nullptr;
  const ssize_t size = PyList_Size(list);
  if (size > 0) {
    void* const tuple = PyList_GetItem(list, size - 1);
    const ssize_t holds = PySet_Size(PyTuple_GetItem(tuple, 1));
    if ((holds == 0 || holds == 1) && is(view, objects.counted, PyTuple_GetItem(tuple, 2)) &&
        PyList_GetItem(objects.generation, 0) == PyTuple_GetItem(tuple, 3))
      found = static_cast<const Described*>(PyLong_AsVoidPtr(PyTuple_GetItem(tuple, 0)));
  }
  Py_DecRef(list);  // the view keeps it, and nothing is taken out of it
  return found;
}

// What is known of a view, and a reference to its loan. NULL with an exception set if the view cannot be
// exported.
const Described* lend(void* view, void** out_loan) {
  // Lent first, then looked at: View.free() does it in the reverse order.
  void* const loan = PyObject_GetAttr(view, objects.loan);
  const Described* found = loan == nullptr ? nullptr : known(view);
  if (found == nullptr) {
    PyErr_Clear();
    if (void* const number = PyObject_CallFunctionObjArgs(objects.describe, view, nullptr)) {
      found = static_cast<const Described*>(PyLong_AsVoidPtr(number));
      Py_DecRef(number);
    }
  }
  if (found != nullptr) {
    *out_loan = loan;
  } else if (loan != nullptr) {
    Py_DecRef(loan);
  }
  return found;
}

int export_managed(void* view, ManagedTensor** out) {
  void* loan = nullptr;
  const Described* const found = lend(view, &loan);
  if (found == nullptr) return -1;
  auto* const exported =
      new (std::nothrow) Exported{{kVersion, nullptr, release, found->flags, found->tensor},
                                  view,
                                  loan,
                                  life.load(std::memory_order_relaxed)};
  if (exported == nullptr) {
    Py_DecRef(loan);
    PyErr_NoMemory();
    return -1;
  }
  exported->managed.manager = exported;
  Py_IncRef(view);
  *out = &exported->managed;
  return 0;
}

int export_borrowed(void* view, Tensor* out) {
  void* loan = nullptr;
  const Described* const found = lend(view, &loan);
  if (found == nullptr) return -1;
  Py_DecRef(loan);
  if ((found->flags & kReadOnly) != 0) {  // which a tensor without flags cannot say
    PyErr_SetString(PyExc_BufferError,
                    "the memory is read-only, which needs a consumer that takes a managed tensor, or a copy");
    return -1;
  }
  *out = found->tensor;
  return 0;
}

// A tensor that cannot be imported is still the caller's, as tvm-ffi expects it and PyTorch does it.
int import_managed(ManagedTensor* tensor, void** out_view) {
  void* const address = PyLong_FromVoidPtr(tensor);
  void* const found =
      address == nullptr ? nullptr : PyObject_CallFunctionObjArgs(objects.wrap, address, nullptr);
  int status = -1;
  // From here on the view releases it. Not in Python, where a signal handler could raise behind it.
  if (found != nullptr && PyList_Append(PyTuple_GetItem(found, 1), address) == 0) {
    *out_view = PyTuple_GetItem(found, 0);
    Py_IncRef(*out_view);
    status = 0;
  }
  if (found != nullptr) Py_DecRef(found);
  if (address != nullptr) Py_DecRef(address);
  return status;
}

int allocate(Tensor*, ManagedTensor**, void* context, SetError* set_error) {
  set_error(context, "NotImplementedError",
            "gpumem does not know which pool and stream a new tensor is for; allocate it with gpumem, and "
            "pass a view of it");
  return -1;
}

// The legacy default stream: describe() orders it behind the work of gpumem that uses the memory.
int current_work_stream(int32_t, int32_t, void** out_stream) {
  *out_stream = nullptr;
  return 0;
}

constexpr ExchangeApi kApi{kVersion,       nullptr,         allocate,           export_managed,
                           import_managed, export_borrowed, current_work_stream};

}  // namespace

/** Takes the objects of Python that the functions need. Call it with the lock of the interpreter. `size` is
 * that of Described, to tell versions apart.
 *
 * \return the table of functions, valid as long as the process lives; NULL outside an interpreter, or if the
 * size is another one, or if another interpreter has them */
EXPORT const void* gpumem_dlpack_start(size_t size, void* describe, void* wrap, void* exchange, void* counted,
                                       void* loan, void* generation) {
  const Objects wanted{describe, wrap, exchange, counted, loan, generation};
  const bool taken = life.load(std::memory_order_acquire) % 2 == 1;
  if (PyObject_GetAttr == nullptr || size != sizeof(Described) || (taken && objects.describe != describe))
    return nullptr;
  objects = wanted;
  for (void* const object : {describe, wrap, exchange, counted, loan, generation})
    Py_IncRef(object);
  if (!taken) life.fetch_add(1, std::memory_order_release);
  return &kApi;
}

/** From here on tensors are released without the interpreter, which is about to end. */
EXPORT void gpumem_dlpack_end() {
  if (life.load(std::memory_order_acquire) % 2 == 1) life.fetch_add(1, std::memory_order_release);
}
