// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo && !gpumem_dlopen

package gpumem

// loadsLibrary is false: programs are linked with the library.
const loadsLibrary = false
