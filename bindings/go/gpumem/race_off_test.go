// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build !race

package gpumem

const raceEnabled = false
