// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

/*
#cgo gpumem_dlopen CFLAGS: -DGPUMEM_GO_DLOPEN
#cgo gpumem_dlopen LDFLAGS: -ldl
#cgo !gpumem_dlopen pkg-config: gpumem
#include "native.h"
#include <dlfcn.h>
#include <stdio.h>

__thread int gpumem_go_inside;
__thread uintptr_t gpumem_go_sleeping;
__thread uintptr_t gpumem_go_aside;
__thread uintptr_t gpumem_go_unwound;

// Loads and checks the library before anything else is called. Both forms of the package have this function.
#ifdef GPUMEM_GO_DLOPEN

gpumem_table gpumem_go_table;

// Returns NULL, or one line that says what is wrong.
static const char *gpumem_go_load(const char *path, char *text, size_t size) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(text, size, "%s", dlerror());
    return text;
  }
  PFN_gpumem_table_get get = NULL;
  void *symbol = dlsym(library, "gpumem_table_get");
  memcpy(&get, &symbol, sizeof get);
  if (get == NULL) return "it has no function gpumem_table_get";
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_table table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  if (get(GPUMEM_VERSION, &table, &error) < 0) {
    snprintf(text, size, "%s", error.message);
    return text;
  }
#define CHECK(function) \
  if (table.function == NULL) return "it is too old and has no function " #function;
  GPUMEM_GO_FUNCTIONS(CHECK)
#undef CHECK
  gpumem_go_table = table;
  return NULL;
}

#else

static const char *gpumem_go_load(const char *path, char *text, size_t size) {
  (void)path, (void)text, (void)size;
  return NULL;
}

#endif

// The names of the functions that this package uses.
static const char *gpumem_go_function(size_t index) {
#define NAME(function) #function,
  static const char *const names[] = {GPUMEM_GO_FUNCTIONS(NAME)};
#undef NAME
  return index < sizeof names / sizeof *names ? names[index] : NULL;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// makeVersion is GPUMEM_MAKE_VERSION.
func makeVersion(major, minor, patch uint32) uint32 { return major<<22 | minor<<12 | patch }

// ErrLibrary reports that libgpumem.so.0 is missing, too old, or made for another interface.
var ErrLibrary = errors.New("gpumem: the library cannot be used")

const libraryName = "libgpumem.so.0"

var library struct {
	ready atomic.Bool
	mutex sync.Mutex
}

// useLibrary precedes each call that needs no object. A failure is not remembered: the next call tries again.
func useLibrary() error {
	if library.ready.Load() {
		return nil
	}
	library.mutex.Lock()
	defer library.mutex.Unlock()
	if library.ready.Load() {
		return nil
	}
	path := libraryPath()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	const size = 1024
	buffer := (*C.char)(C.malloc(size))
	defer C.free(unsafe.Pointer(buffer))
	if problem := C.gpumem_go_load(name, buffer, size); problem != nil {
		return fmt.Errorf("%w: %s: %s; set the environment variable GPUMEM_LIBRARY to its file", ErrLibrary, path,
			strings.TrimPrefix(C.GoString(problem), path+": "))
	}
	version := uint32(C.gpumem_go_version())
	if version>>22 != VersionMajor || version < makeVersion(VersionMajor, VersionMinor, 0) {
		return fmt.Errorf("%w: %s has version %s, but %d.%d or a later %d.x is needed", ErrLibrary, path,
			C.GoString(C.gpumem_go_version_text()), VersionMajor, VersionMinor, VersionMajor)
	}
	library.ready.Store(true)
	return nil
}

// libraryPath returns the path that a program with the tag gpumem_dlopen loads: $GPUMEM_LIBRARY, unless the process has
// raised privileges; otherwise the name, which the system looks up.
func libraryPath() string {
	path := os.Getenv("GPUMEM_LIBRARY")
	if !loadsLibrary || path == "" || syscall.Getuid() != syscall.Geteuid() || syscall.Getgid() != syscall.Getegid() {
		return libraryName
	}
	return path
}

// functions returns the names of all functions of the library that this package uses.
func functions() (names []string) {
	for index := C.size_t(0); ; index++ {
		name := C.gpumem_go_function(index)
		if name == nil {
			return names
		}
		names = append(names, C.GoString(name))
	}
}

// Version returns the version of the library in use, such as "0.1.0".
func Version() (string, error) {
	if err := useLibrary(); err != nil {
		return "", err
	}
	return C.GoString(C.gpumem_go_version_text()), nil
}

// VersionNumber returns the version of the library in use as one number, major<<22 | minor<<12 | patch; newer versions
// are larger. It is 0 if the library cannot be used.
func VersionNumber() uint32 {
	if useLibrary() != nil {
		return 0
	}
	return uint32(C.gpumem_go_version())
}

// Supported reports whether the library in use has the feature. It says nothing about drivers and devices: use [Probe]
// and [Device.Capability] for those.
func (f Feature) Supported() bool {
	return useLibrary() == nil && C.gpumem_go_feature_supported(C.gpumem_feature(f)) != 0
}
