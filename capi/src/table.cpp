// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/table.h"

#include "call.h"

using namespace gpumem;

namespace {

const gpumem_table kTable = {
    sizeof(gpumem_table),
#include "table.inc"
};

}  // namespace

gpumem_status gpumem_table_get(uint32_t version, gpumem_table* out_table, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    decode.not_null(out_table, "out_table");
    const size_t size = out_table != nullptr ? out_table->struct_size : 0;
    if (out_table != nullptr &&
        (size % sizeof(void*) != 0 || size < 2 * sizeof(void*) || size > capi::kStructSizeMax)) {
      decode.refuse(
          "out_table->struct_size is %zu, which is not a size of this table; set it to sizeof(gpumem_table)",
          size);
    }
    GPUMEM_TRY(decode.done());
    if (version >> 22 != GPUMEM_VERSION_MAJOR) {
      return make_error(GPUMEM_ERROR_UNSUPPORTED,
                        "the caller was built for major version %u, but this library has major version %d",
                        version >> 22, GPUMEM_VERSION_MAJOR);
    }
    // A newer caller knows more functions; its extra entries stay null.
    if (size > sizeof(gpumem_table)) {
      std::memset(reinterpret_cast<char*>(out_table) + sizeof(gpumem_table), 0, size - sizeof(gpumem_table));
    }
    capi::answer(out_table, kTable);
    return GPUMEM_SUCCESS;
  });
}
