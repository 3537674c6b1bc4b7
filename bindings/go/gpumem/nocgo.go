// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build !cgo

package gpumem

// This file is compiled without cgo only, and fails: the package calls a library of C. Set CGO_ENABLED=1 and install a C
// compiler; to build for another system, set CC to a compiler for it.
var _ = gpumem_needs_cgo__set_CGO_ENABLED_1_and_install_a_C_compiler
