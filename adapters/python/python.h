// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions of CPython's stable ABI, which the interpreter that loads this library has. Declared here, so
// that building needs no headers of Python, and weak, so that linking needs no library.
#pragma once

#include <sys/types.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

#pragma GCC visibility push(default)
extern "C" {
__attribute__((weak)) void* PyEval_SaveThread();
__attribute__((weak)) void PyEval_RestoreThread(void* thread);
__attribute__((weak)) int PyGILState_Ensure();
__attribute__((weak)) void PyGILState_Release(int state);
__attribute__((weak)) void Py_IncRef(void* object);
__attribute__((weak)) void Py_DecRef(void* object);
__attribute__((weak)) extern void* PyExc_BufferError;
__attribute__((weak)) void PyErr_SetString(void* type, const char* message);
__attribute__((weak)) void* PyErr_NoMemory();
__attribute__((weak)) void PyErr_Clear();
__attribute__((weak)) void* PyObject_GetAttr(void* object, void* name);
__attribute__((weak)) void* PyObject_CallFunctionObjArgs(void* callable, ...);
__attribute__((weak)) void* PyTuple_GetItem(void* tuple, ssize_t index);
__attribute__((weak)) ssize_t PyList_Size(void* list);
__attribute__((weak)) int PyList_Append(void* list, void* object);
__attribute__((weak)) void* PyList_GetItem(void* list, ssize_t index);
__attribute__((weak)) ssize_t PySet_Size(void* set);
__attribute__((weak)) void* PyLong_FromVoidPtr(void* pointer);
__attribute__((weak)) void* PyLong_AsVoidPtr(void* number);
}
#pragma GCC visibility pop
