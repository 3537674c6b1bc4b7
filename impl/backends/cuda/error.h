// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Maps driver codes to statuses.
#pragma once

#include "backends/cuda/loader.h"
#include "base/result.h"

namespace gpumem::cuda {

// Location of a request; decides which memory is exhausted when the driver is out of memory.
enum class Place { kDevice, kHost, kAddresses };

Status status_of(CUresult code, Place place);

// Constant text, also for numbers that the headers of this build do not know.
const char* name_of(CUresult code);

// Error of a failed call. The text says what failed; a remedy for the code is appended.
[[gnu::format(printf, 3, 4)]] Error error_of(Outcome outcome, Place place, const char* format, ...);
[[gnu::format(printf, 3, 0)]] Error error_of(Outcome outcome, Place place, const char* format,
                                             va_list arguments);

}  // namespace gpumem::cuda
