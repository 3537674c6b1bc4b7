// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/status.h"

#include "call.h"
#include "core/object/status_list.h"

using namespace gpumem;

const char* gpumem_status_name(gpumem_status status) {
  const core::StatusText* text = core::find_status(status);
  return text != nullptr ? text->name : "GPUMEM_ERROR_?";
}

gpumem_status gpumem_status_get_info(gpumem_status status, gpumem_status_info* out_info,
                                     gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    const core::StatusText* text = core::find_status(status);
    if (text == nullptr)
      return make_error(GPUMEM_ERROR_NOT_FOUND, "%d is not a status code of this version", status);
    capi::answer(out_info, {0, text->status, 0, text->name, text->cause, text->remedy});
    return GPUMEM_SUCCESS;
  });
}

gpumem_status gpumem_status_enumerate(uint32_t index, gpumem_status* out_status, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.not_null(out_status, "out_status");
    GPUMEM_TRY(decode.done());
    if (index >= core::status_list().size()) {
      return make_error(GPUMEM_ERROR_NOT_FOUND,
                        "the index is past the end of the list, which has %zu entries",
                        core::status_list().size());
    }
    *out_status = core::status_list()[index].status;
    return GPUMEM_SUCCESS;
  });
}
