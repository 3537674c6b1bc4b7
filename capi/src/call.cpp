// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "call.h"

#include "base/caught.h"
#include "core/object/last_failure.h"
#include "core/object/log.h"

namespace gpumem::capi {

Status refuse_detail(const char* function, const gpumem_error* error) noexcept {
  core::log(GPUMEM_LOG_WARNING,
            "%s: error->struct_size is %zu, which is not the size of any version; initialize the struct with "
            "GPUMEM_ERROR_INIT",
            function, error->struct_size);
  return GPUMEM_ERROR_INVALID_ARGUMENT;
}

Status fail(const char* function, gpumem_error* error, const Error& failure) noexcept {
  const bool reported = *failure.entry_point != '\0';  // by a driver or the system
  core::log(GPUMEM_LOG_DEBUG, "%s: %s%s%s", function, failure.entry_point, reported ? ": " : "",
            failure.message);
  core::note_failure(function, failure);
  if (error == nullptr) return failure.status;
  error->status = failure.status;
  error->native_domain = failure.native_domain;
  error->native_code = failure.native_code;
  error->reserved = 0;
  copy_text(error->native_name, failure.native_name);
  copy_text(error->function, function);
  copy_text(error->entry_point, failure.entry_point);
  copy_text(error->message, failure.message);
  return failure.status;
}

Status fail_caught(const char* function, gpumem_error* error) noexcept {
  return fail(function, error, caught_failure());
}

Status run(const char* function, gpumem_error* error, Step step, void* body) noexcept {
  const platform::CancellationHeld held;
  return call_briefly(function, error, [&](Decoder& decode) { return step(body, decode); });
}

}  // namespace gpumem::capi
