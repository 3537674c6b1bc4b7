// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/log.h"

#include "call.h"
#include "core/object/log.h"

using namespace gpumem;

gpumem_status gpumem_log_set_function(gpumem_log_function function, void* user_data,
                                      gpumem_log_level max_level, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    if (function != nullptr && (max_level < GPUMEM_LOG_ERROR || max_level > GPUMEM_LOG_DEBUG)) {
      decode.not_a_value("max_level", "GPUMEM_LOG_", max_level);
    }
    GPUMEM_TRY(decode.done());
    GPUMEM_TRY(core::set_log_function(function, user_data, max_level));
    return GPUMEM_SUCCESS;
  });
}
