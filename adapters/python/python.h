// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions of CPython's stable ABI, which the interpreter that loads this library has. Declared here, so
// that building needs no headers of Python, and weak, so that linking needs no library.
#pragma once

#include <sys/types.h>

#include <cstddef>

#define EXPORT extern "C" __attribute__((visibility("default")))

// PyMethodDef, with flags for arguments in an array, for keywords in it too, and for one argument.
struct Method {
  const char* name;
  void* function;
  int flags;
  const char* doc;
};
constexpr int kPositional = 0x80, kWithKeywords = 0x82, kOneArgument = 0x8;

#pragma GCC visibility push(default)
extern "C" {
__attribute__((weak)) void* PyEval_SaveThread();
__attribute__((weak)) void PyEval_RestoreThread(void* thread);
__attribute__((weak)) void* PyInterpreterState_Get();
__attribute__((weak)) void* PyInterpreterState_Main();
__attribute__((weak)) int PyGILState_Ensure();
__attribute__((weak)) void PyGILState_Release(int state);
__attribute__((weak)) void Py_IncRef(void* object);
__attribute__((weak)) void Py_DecRef(void* object);
__attribute__((weak)) extern char _Py_NoneStruct;
__attribute__((weak)) extern void* PyExc_BufferError;
__attribute__((weak)) extern void* PyExc_Exception;
__attribute__((weak)) int PyErr_ExceptionMatches(void* type);
__attribute__((weak)) void PyErr_SetString(void* type, const char* message);
__attribute__((weak)) void* PyErr_NoMemory();
__attribute__((weak)) void PyErr_Clear();
__attribute__((weak)) void PyErr_Fetch(void** type, void** value, void** trace);
__attribute__((weak)) void PyErr_Restore(void* type, void* value, void* trace);
__attribute__((weak)) void* PyErr_Occurred();
__attribute__((weak)) void* PyObject_GetAttr(void* object, void* name);
__attribute__((weak)) int PyObject_SetAttr(void* object, void* name, void* value);
__attribute__((weak)) void* PyObject_Call(void* callable, void* tuple, void* dict);
__attribute__((weak)) void* PyObject_CallFunctionObjArgs(void* callable, ...);
__attribute__((weak)) void* PyObject_Type(void* object);
__attribute__((weak)) void* PyType_GetSlot(void* type, int slot);
__attribute__((weak)) void* PyType_GenericNew(void* type, void* tuple, void* dict);
__attribute__((weak)) void* PyDescr_NewMethod(void* type, Method* method);
__attribute__((weak)) void* PyCFunction_NewEx(Method* method, void* self, void* module);
__attribute__((weak)) void* PyCapsule_New(void* pointer, const char* name, void (*destructor)(void*));
__attribute__((weak)) void* PyCapsule_GetPointer(void* capsule, const char* name);
__attribute__((weak)) int PyCapsule_IsValid(void* capsule, const char* name);
__attribute__((weak)) const char* PyCapsule_GetName(void* capsule);
__attribute__((weak)) void* PyCapsule_GetContext(void* capsule);
__attribute__((weak)) int PyCapsule_SetContext(void* capsule, void* context);
__attribute__((weak)) int PyCapsule_SetName(void* capsule, const char* name);
__attribute__((weak)) int PyCapsule_SetDestructor(void* capsule, void (*destructor)(void*));
__attribute__((weak)) void* PyUnicode_InternFromString(const char* text);
__attribute__((weak)) void* PyBool_FromLong(long value);
__attribute__((weak)) void* PyDict_New();
__attribute__((weak)) int PyDict_SetItem(void* dict, void* key, void* value);
__attribute__((weak)) void* PyTuple_New(ssize_t size);
__attribute__((weak)) ssize_t PyTuple_Size(void* tuple);
__attribute__((weak)) void* PyTuple_GetItem(void* tuple, ssize_t index);
__attribute__((weak)) int PyTuple_SetItem(void* tuple, ssize_t index, void* item);
__attribute__((weak)) void* PyList_New(ssize_t size);
__attribute__((weak)) ssize_t PyList_Size(void* list);
__attribute__((weak)) int PyList_Append(void* list, void* object);
__attribute__((weak)) void* PyList_GetItem(void* list, ssize_t index);
__attribute__((weak)) ssize_t PySet_Size(void* set);
__attribute__((weak)) void* PyLong_FromLongLong(long long number);
__attribute__((weak)) long PyLong_AsLong(void* number);
__attribute__((weak)) size_t PyLong_AsSize_t(void* number);
__attribute__((weak)) void* PyLong_FromSize_t(size_t number);
__attribute__((weak)) void* PyLong_FromVoidPtr(void* pointer);
__attribute__((weak)) const char* PyBytes_AsString(void* bytes);
}
#pragma GCC visibility pop
