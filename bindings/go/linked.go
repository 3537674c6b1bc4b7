// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build !gpumem_dlopen

package gpumem

// loadsLibrary tells that programs are linked with the library.
const loadsLibrary = false
