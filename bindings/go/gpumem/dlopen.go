// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo && gpumem_dlopen

package gpumem

// loadsLibrary is true: the library is loaded at run time.
const loadsLibrary = true
