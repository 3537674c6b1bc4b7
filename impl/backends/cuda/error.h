// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// From what the driver answers to what gpumem returns.
#pragma once

#include "backends/cuda/loader.h"
#include "base/result.h"

namespace gpumem::cuda {

// What a request was for; decides whose memory is exhausted when the driver has none.
enum class Place { kDevice, kHost, kAddresses };

Status status_of(CUresult code, Place place);

// Constant text, also for numbers that the headers of this build do not know.
const char* name_of(CUresult code);

// Error of a failed call; the text says what could not be done, and is followed by what to do about it.
[[gnu::format(printf, 3, 4)]] Error error_of(const Outcome& outcome, Place place, const char* format, ...);
[[gnu::format(printf, 3, 0)]] Error error_of(const Outcome& outcome, Place place, const char* format,
                                             va_list arguments);

}  // namespace gpumem::cuda
