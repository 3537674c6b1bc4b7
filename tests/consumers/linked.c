/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A program that links the library. */
#define CALL(function) function
#include "round_trip.h"

int main(void) { return round_trip(); }
