// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// DLPack for gpumem.View: the C exchange functions of DLPack 1.3, and capsules. See docs/arrow-dlpack.md and
// bindings/python/gpumem/_dlpack.py, which describes the views and does what is rare. The structs and what
// the functions promise are those of dlpack.h 1.3 (github.com/dmlc/dlpack).
#include <array>
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

constexpr Version kVersion{1, 3}, kCapsuleVersion{1, 0};
constexpr uint64_t kReadOnly = 1;
constexpr int32_t kCuda = 2, kCudaManaged = 13;  // whose consumers have streams

struct ManagedTensor {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  Tensor tensor;
};

// Before DLPack 1.0.
struct OldTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(OldTensor* self);
};

// Names of a capsule.
struct Names {
  const char *unused, *used;
};
constexpr Names kNew{"dltensor_versioned", "used_dltensor_versioned"}, kOld{"dltensor", "used_dltensor"};

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

// What _dlpack.py keeps at a view, as bytes, for as long as the view lives. The shape and the strides follow.
struct Described {
  Tensor tensor;
  uint64_t flags;
};

Tensor tensor_of(const Described& described) {
  Tensor tensor = described.tensor;
  // DLPack has no const, and nobody writes there.
  tensor.shape = reinterpret_cast<int64_t*>(const_cast<Described*>(&described) + 1);
  tensor.strides = tensor.shape + tensor.ndim;
  return tensor;
}

// Objects of Python, for as long as the interpreter lives. _dlpack.py has the same struct.
struct Objects {
  // function of a view and the stream that will use it: the Described of a view that may be used now, which
  // is kept in the list that known() reads
  void* describe;
  void* wrap;        // function: a View of the tensor in a capsule, which the view keeps
  void* generation;  // list with one object, another one in each forked child
  void* view;        // the class View
  void* export_any;  // __dlpack__() of Python
  void* types;       // tuple of (type string, bytes), for each code and each size that type_of() knows
};

// Attributes of a view, and the arguments of __dlpack__().
enum Name {
  kMemory,
  kAddress,
  kShape,
  kStrides,
  kTypestr,
  kItemsize,
  kNbytes,
  kReadonly,
  kDevice,
  kDescr,
  kOwner,
  kCounted,
  kLoan,
  kLent,
  kExchange,
  kStream,
  kMaxVersion,
  kDlDevice,
  kCopy,
  kNames
};
constexpr std::array<const char*, kNames> kTexts{
    "memory",    "address",       "shape",       "strides",   "typestr",  "itemsize", "nbytes",
    "readonly",  "dlpack_device", "_descr",      "_owner",    "_counted", "_loan",    "_lent",
    "_exchange", "stream",        "max_version", "dl_device", "copy"};
std::array<void*, kNames> names;
// The descriptors of the attributes, and their function of C: to set by name takes twice as long. NULL before
// Python 3.10.
std::array<void*, kStream> slots;
int (*set_slot)(void* slot, void* view, void* value);
constexpr int kDescrSet = 55;  // Py_tp_descr_set

Objects objects;
void* const none = &_Py_NoneStruct;
// Odd while an interpreter has the functions, and another number for each.
std::atomic<uint64_t> life{0};

// A tensor that was exported, and what of Python it keeps.
struct Exported {
  union {
    ManagedTensor managed;
    OldTensor old;
  };
  void* view;
  void* loan;
  uint64_t life;
};

// Gives references back on any thread. If their life has ended, the objects are gone.
void give_back(uint64_t their_life, std::initializer_list<void*> kept) {
  if (their_life % 2 == 0 || their_life != life.load(std::memory_order_acquire)) return;
  const int state = PyGILState_Ensure();
  for (void* const object : kept)
    Py_DecRef(object);
  PyGILState_Release(state);
}

void release(const Exported* exported) {
  give_back(exported->life, {exported->loan, exported->view});
  delete exported;
}

void release_new(ManagedTensor* managed) { release(static_cast<Exported*>(managed->manager)); }
void release_old(OldTensor* old) { release(static_cast<Exported*>(old->manager)); }

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
  void* const list = PyObject_GetAttr(view, names[kExchange]);
  if (list == nullptr) return nullptr;
  const Described* found = nullptr;
  const ssize_t size = PyList_Size(list);
  if (size > 0) {
    void* const tuple = PyList_GetItem(list, size - 1);
    const ssize_t holds = PySet_Size(PyTuple_GetItem(tuple, 1));
    if ((holds == 0 || holds == 1) && is(view, names[kCounted], PyTuple_GetItem(tuple, 2)) &&
        PyList_GetItem(objects.generation, 0) == PyTuple_GetItem(tuple, 3))
      found = reinterpret_cast<const Described*>(PyBytes_AsString(PyTuple_GetItem(tuple, 0)));
  }
  Py_DecRef(list);  // the view keeps it, and nothing is taken out of it
  return found;
}

// What is known of a view, and a reference to its loan. NULL with an exception set if the view cannot be
// exported.
const Described* lend(void* view, void* stream, void** out_loan) {
  // Lent first, then looked at: View.free() does it in the reverse order.
  void* const loan = PyObject_GetAttr(view, names[kLoan]);
  const Described* found = loan == nullptr ? nullptr : known(view);
  if (found == nullptr) {
    PyErr_Clear();
    if (void* const bytes = PyObject_CallFunctionObjArgs(objects.describe, view, stream, nullptr)) {
      found = reinterpret_cast<const Described*>(PyBytes_AsString(bytes));
      Py_DecRef(bytes);  // the view keeps it
    }
  }
  if (found != nullptr) {
    *out_loan = loan;
  } else if (loan != nullptr) {
    Py_DecRef(loan);
  }
  return found;
}

// A tensor of a view that was lent, with both references. NULL with an exception set if there is no memory.
Exported* keep(const Described& found, void* view, void* loan) {
  auto* const exported = new (std::nothrow) Exported{{}, view, loan, life.load(std::memory_order_relaxed)};
  if (exported == nullptr) {
    Py_DecRef(loan);
    PyErr_NoMemory();
    return nullptr;
  }
  exported->managed = {kVersion, exported, release_new, found.flags, tensor_of(found)};
  Py_IncRef(view);
  return exported;
}

int export_managed(void* view, ManagedTensor** out) {
  void* loan = nullptr;
  const Described* const found = lend(view, none, &loan);
  Exported* const exported = found == nullptr ? nullptr : keep(*found, view, loan);
  if (exported == nullptr) return -1;
  *out = &exported->managed;
  return 0;
}

int export_borrowed(void* view, Tensor* out) {
  void* loan = nullptr;
  const Described* const found = lend(view, none, &loan);
  if (found == nullptr) return -1;
  Py_DecRef(loan);
  if ((found->flags & kReadOnly) != 0) {  // which a tensor without flags cannot say
    PyErr_SetString(PyExc_BufferError,
                    "the memory is read-only, which needs a consumer that takes a managed tensor, or a copy");
    return -1;
  }
  *out = tensor_of(*found);
  return 0;
}

// The destructor of a capsule. Python may run in it, but not while the exception of a consumer that fails is
// set.
template <void (*end)(void* capsule)>
void drop(void* capsule) {
  void *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  end(capsule);
  PyErr_Restore(type, value, trace);
}

// Releases a tensor unless somebody took it.
void end_tensor(void* capsule) {
  if (PyCapsule_IsValid(capsule, kNew.unused) != 0) {
    auto* const managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, kNew.unused));
    if (managed->deleter != nullptr) managed->deleter(managed);
  } else if (PyCapsule_IsValid(capsule, kOld.unused) != 0) {
    auto* const old = static_cast<OldTensor*>(PyCapsule_GetPointer(capsule, kOld.unused));
    if (old->deleter != nullptr) old->deleter(old);
  }
}

// Of Arrow. The array is also the beginning of an ArrowDeviceArray.
struct ArrowSchema {
  const char *format, *name, *metadata;
  int64_t flags, child_count;
  void *children, *dictionary;
  void (*release)(ArrowSchema* self);
  void* private_data;
};
struct ArrowArray {
  int64_t length, null_count, offset, buffer_count, child_count;
  void *buffers, *children, *dictionary;
  void (*release)(ArrowArray* self);
  void* private_data;
};

// What of Python a struct keeps, wherever its consumer moves it.
struct Kept {
  void* object;
  uint64_t life;
};

template <class Struct>
void release_arrow(Struct* self) {
  const auto* const kept = static_cast<Kept*>(self->private_data);
  self->release = nullptr;
  give_back(kept->life, {kept->object});
  delete kept;
}

// A consumer that takes the struct zeroes `release`.
template <class Struct>
void end_arrow(void* capsule) {
  auto* const arrow = static_cast<Struct*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
  if (arrow->release != nullptr) arrow->release(arrow);
  Py_DecRef(PyCapsule_GetContext(capsule));
}

// A capsule of a struct that an object of Python has. The struct keeps another object.
template <class Struct>
void* arrow_capsule(Struct* arrow, const char* name, void* owner, void* object) {
  auto* const kept = new (std::nothrow) Kept{object, life.load(std::memory_order_relaxed)};
  if (kept == nullptr) return PyErr_NoMemory();
  void* const capsule = PyCapsule_New(arrow, name, drop<end_arrow<Struct>>);
  if (capsule == nullptr) {
    delete kept;
    return nullptr;
  }
  Py_IncRef(object);
  Py_IncRef(owner);
  PyCapsule_SetContext(capsule, owner);
  arrow->private_data = kept;
  arrow->release = release_arrow<Struct>;
  return capsule;
}

// A capsule of a tensor. It takes the reference to the loan.
void* capsule_of(const Described& found, bool is_new, void* view, void* loan) {
  Exported* const exported = keep(found, view, loan);
  if (exported == nullptr) return nullptr;
  if (is_new) {
    exported->managed.version = kCapsuleVersion;
  } else {
    exported->old = {tensor_of(found), exported, release_old};
  }
  void* const capsule = PyCapsule_New(exported, (is_new ? kNew : kOld).unused, drop<end_tensor>);
  if (capsule == nullptr) release(exported);
  return capsule;
}

// __dlpack__() in place: NULL, maybe with an exception set, for what export_any() must do or refuse.
void* export_capsule(void* view, void* stream, void* max_version) {
  const bool is_new = max_version != none;
  if (is_new && (PyTuple_Size(max_version) != 2 || PyLong_AsLong(PyTuple_GetItem(max_version, 0)) < 1 ||
                 PyLong_AsLong(PyTuple_GetItem(max_version, 1)) < 0))
    return nullptr;
  const long number = stream == none ? -1 : PyLong_AsLong(stream);
  if (PyErr_Occurred() != nullptr) return nullptr;
  void* loan = nullptr;
  const Described* const found = lend(view, stream, &loan);
  if (found == nullptr) return nullptr;
  const int32_t device = found->tensor.device_type;
  const bool good_stream = number == -1 || (number > 0 && (device == kCuda || device == kCudaManaged));
  if (!good_stream || (!is_new && (found->flags & kReadOnly) != 0)) {
    Py_DecRef(loan);
    return nullptr;
  }
  return capsule_of(*found, is_new, view, loan);
}

// View.__dlpack__(), whose arguments are those of keywords.
void* export_method(void* view, void* const* arguments, ssize_t count, void* keywords) {
  void *stream = none, *max_version = none;
  bool simple = count == 0;
  const ssize_t named = keywords == nullptr ? 0 : PyTuple_Size(keywords);
  for (ssize_t i = 0; i < named; ++i) {
    const void* const name = PyTuple_GetItem(keywords, i);
    void* const value = arguments[count + i];
    if (name == names[kStream]) {
      stream = value;
    } else if (name == names[kMaxVersion]) {
      max_version = value;
    } else if (value != none || (name != names[kDlDevice] && name != names[kCopy])) {
      simple = false;
    }
  }
  if (simple) {
    if (void* const capsule = export_capsule(view, stream, max_version)) return capsule;
    // What a signal handler raised in Python must not be lost.
    if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) return nullptr;
    PyErr_Clear();
  }
  void* const tuple = PyTuple_New(count + 1);
  void* const dict = PyDict_New();
  void* capsule = nullptr;
  if (tuple != nullptr && dict != nullptr) {
    for (ssize_t i = -1; i < count; ++i) {
      void* const argument = i < 0 ? view : arguments[i];
      Py_IncRef(argument);
      PyTuple_SetItem(tuple, i + 1, argument);
    }
    bool filled = true;
    for (ssize_t i = 0; i < named; ++i)
      filled = filled && PyDict_SetItem(dict, PyTuple_GetItem(keywords, i), arguments[count + i]) == 0;
    if (filled) capsule = PyObject_Call(objects.export_any, tuple, dict);
  }
  if (tuple != nullptr) Py_DecRef(tuple);
  if (dict != nullptr) Py_DecRef(dict);
  return capsule;
}

// The entry of objects.types. NULL for types that are rare, or cannot be imported.
void* type_of(const Tensor& tensor) {
  constexpr int kCodes = 7, kSizes = 5;
  const unsigned bits = tensor.bits;
  const int size = __builtin_ctz(bits | 0x100) - 3;
  if (tensor.lanes != 1 || tensor.code >= kCodes || size < 0 || size >= kSizes || bits != 8U << size)
    return nullptr;
  return PyTuple_GetItem(objects.types, tensor.code * kSizes + size);
}

constexpr int kMaxDimensions = 64;  // numpy's
using Numbers = std::array<int64_t, kMaxDimensions>;

// Strides and size in bytes. False for a negative extent, or if only numbers of Python are large enough.
bool lay_out(const Tensor& tensor, int64_t item, Numbers* strides, int64_t* bytes) {
  *bytes = item;
  for (auto i = static_cast<size_t>(tensor.ndim); i-- > 0;) {
    if (tensor.shape[i] < 0) return false;
    (*strides)[i] = *bytes;
    if (tensor.strides != nullptr && __builtin_mul_overflow(tensor.strides[i], item, &(*strides)[i]))
      return false;
    if (__builtin_mul_overflow(*bytes, tensor.shape[i], bytes)) return false;
  }
  return true;
}

void* tuple_of(const int64_t* numbers, ssize_t count) {
  void* const tuple = PyTuple_New(count);
  for (ssize_t i = 0; tuple != nullptr && i < count; ++i) {
    void* const number = PyLong_FromLongLong(numbers[i]);
    if (number == nullptr) {
      Py_DecRef(tuple);
      return nullptr;
    }
    PyTuple_SetItem(tuple, i, number);
  }
  return tuple;
}

void* shared(void* object) {
  Py_IncRef(object);
  return object;
}

// A view of a tensor, as View._foreign() makes it. NULL, maybe with an exception set, for what Python must
// import or refuse.
void* view_of(void* address, bool is_new, void* owner) {
  const auto* const managed = static_cast<const ManagedTensor*>(address);
  const Tensor& tensor = is_new ? managed->tensor : static_cast<const OldTensor*>(address)->tensor;
  if ((is_new && managed->version.major != kCapsuleVersion.major) || tensor.ndim < 0 ||
      tensor.ndim > kMaxDimensions || (tensor.ndim != 0 && tensor.shape == nullptr))
    return nullptr;
  void* const type = type_of(tensor);
  Numbers strides;
  int64_t bytes = 0;
  size_t start = 0;
  if (type == nullptr || !lay_out(tensor, tensor.bits / 8, &strides, &bytes) ||
      (tensor.data == nullptr && bytes != 0) ||
      __builtin_add_overflow(reinterpret_cast<uintptr_t>(tensor.data), tensor.byte_offset, &start))
    return nullptr;
  void* const view = PyType_GenericNew(objects.view, nullptr, nullptr);
  if (view == nullptr) return nullptr;
  // Takes the reference to a value, which may be NULL.
  const auto set = [view](Name name, void* value) {
    if (value == nullptr) return false;
    const bool good = (set_slot != nullptr ? set_slot(slots[name], view, value)
                                           : PyObject_SetAttr(view, names[name], value)) == 0;
    Py_DecRef(value);
    return good;
  };
  const std::array<int64_t, 2> device{tensor.device_type, tensor.device_id};
  if (set(kOwner, shared(owner)) && set(kAddress, PyLong_FromSize_t(start)) &&
      set(kShape, tuple_of(tensor.shape, tensor.ndim)) &&
      set(kStrides, tuple_of(strides.data(), tensor.ndim)) &&
      set(kTypestr, shared(PyTuple_GetItem(type, 0))) && set(kItemsize, shared(PyTuple_GetItem(type, 1))) &&
      set(kNbytes, PyLong_FromLongLong(bytes)) && set(kDevice, tuple_of(device.data(), 2)) &&
      set(kReadonly, PyBool_FromLong(is_new && (managed->flags & kReadOnly) != 0 ? 1 : 0)) &&
      set(kMemory, shared(none)) && set(kDescr, shared(none)) && set(kLoan, shared(none)) &&
      set(kCounted, PyBool_FromLong(0)) && set(kLent, PyBool_FromLong(0)) && set(kExchange, PyList_New(0)))
    return view;
  Py_DecRef(view);
  return nullptr;
}

// A view that releases the tensor at its end. NULL with an exception set if the tensor cannot be imported; it
// is still the caller's then.
void* import_tensor(void* address, bool is_new) {
  void* const owner = PyCapsule_New(address, (is_new ? kNew : kOld).unused, nullptr);
  if (owner == nullptr) return nullptr;
  void* view = view_of(address, is_new, owner);
  if (view == nullptr) {
    PyErr_Clear();
    view = PyObject_CallFunctionObjArgs(objects.wrap, owner, nullptr);
  }
  if (view != nullptr) PyCapsule_SetDestructor(owner, drop<end_tensor>);
  Py_DecRef(owner);
  return view;
}

// A view of the tensor in a capsule, which is consumed.
void* import_capsule(void*, void* capsule) {
  const bool is_new = PyCapsule_IsValid(capsule, kNew.unused) != 0;
  const Names& its = is_new ? kNew : kOld;
  void* const address =
      PyCapsule_IsValid(capsule, its.unused) != 0 ? PyCapsule_GetPointer(capsule, its.unused) : nullptr;
  // wrap() refuses None.
  if (address == nullptr) return PyObject_CallFunctionObjArgs(objects.wrap, none, nullptr);
  // Taken first, because making a view can run the garbage collector and other threads, and so other imports.
  if (PyCapsule_SetName(capsule, its.used) != 0) return nullptr;
  void* const view = import_tensor(address, is_new);
  if (view == nullptr) PyCapsule_SetName(capsule, its.unused);
  return view;
}

// A tensor that cannot be imported is still the caller's, as tvm-ffi expects it and PyTorch does it.
int import_managed(ManagedTensor* tensor, void** out_view) {
  void* const view = import_tensor(tensor, true);
  if (view == nullptr) return -1;
  *out_view = view;
  return 0;
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

Method export_definition{"__dlpack__", reinterpret_cast<void*>(export_method), kWithKeywords, nullptr};
Method import_definition{"from_dlpack", reinterpret_cast<void*>(import_capsule), kOneArgument, nullptr};

}  // namespace

/** Takes the objects of Python that the functions need. Call it with the lock of the interpreter. `sizes` is
 * that of Described and that of Objects, to tell versions apart.
 *
 * \return the table of functions, valid as long as the process lives; NULL outside an interpreter, in any but
 * the main one, or if the sizes are other ones, or if another import has them */
EXPORT const void* gpumem_dlpack_start(size_t sizes, const Objects* wanted) {
  const bool taken = life.load(std::memory_order_acquire) % 2 == 1;
  if (PyObject_GetAttr == nullptr || sizes != sizeof(Described) + sizeof(Objects) ||
      (taken && objects.describe != wanted->describe))
    return nullptr;
  // Elsewhere PyGILState_Ensure() waits for the lock that its own thread has, up to Python 3.11.
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) return nullptr;
  if (taken) return &kApi;
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = PyUnicode_InternFromString(kTexts[i]);
    if (names[i] == nullptr) return nullptr;
  }
  objects = *wanted;
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i] = PyObject_GetAttr(objects.view, names[i]);
    if (slots[i] == nullptr) return nullptr;
  }
  void* const type = PyObject_Type(slots[0]);
  set_slot = reinterpret_cast<decltype(set_slot)>(PyType_GetSlot(type, kDescrSet));
  PyErr_Clear();
  Py_DecRef(type);
  for (void* const object :
       {objects.describe, objects.wrap, objects.generation, objects.view, objects.export_any, objects.types})
    Py_IncRef(object);
  life.fetch_add(1, std::memory_order_release);
  return &kApi;
}

/** `__dlpack__` of views for their class or a base of it, after gpumem_dlpack_start(). */
EXPORT void* gpumem_dlpack_method(void* cls, const char* doc) {
  export_definition.doc = doc;
  return PyDescr_NewMethod(cls, &export_definition);
}

/** A capsule of a Described, after gpumem_dlpack_start(), for what is not exported in place. It keeps an
 * object, to which the Described belongs. */
EXPORT void* gpumem_dlpack_capsule(const Described* described, int is_new, void* kept) {
  return capsule_of(*described, is_new != 0, kept, shared(none));
}

/** A capsule of an ArrowSchema that `owner` has, after gpumem_dlpack_start(). */
EXPORT void* gpumem_dlpack_schema(ArrowSchema* schema, const char* name, void* owner) {
  return arrow_capsule(schema, name, owner, none);
}

/** A capsule of an ArrowDeviceArray that `owner` has. The array keeps an object until it is released. */
EXPORT void* gpumem_dlpack_array(ArrowArray* array, const char* name, void* owner, void* kept) {
  return arrow_capsule(array, name, owner, kept);
}

/** Moves an array out of a capsule. With the lock of the interpreter, so that one of several threads does.
 *
 * \return whether it was still there */
EXPORT int gpumem_dlpack_move_array(ArrowArray* from, ArrowArray* to) {
  if (from->release == nullptr) return 0;
  *to = *from;
  from->release = nullptr;
  return 1;
}

/** A function that makes a view of a capsule, after gpumem_dlpack_start(). */
EXPORT void* gpumem_dlpack_import() { return PyCFunction_NewEx(&import_definition, nullptr, nullptr); }

/** From here on tensors are released without the interpreter, which is about to end. */
EXPORT void gpumem_dlpack_end() {
  if (life.load(std::memory_order_acquire) % 2 == 1) life.fetch_add(1, std::memory_order_release);
}
