// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpumem/file.h"

#include <cinttypes>

#include "call.h"
#include "core/buffer/file_copy.h"
#include "core/object/context.h"

using namespace gpumem;

namespace {

core::FileCopyRequest decode_request(capi::Decoder& decode, const gpumem_copy_file_desc& given) {
  core::FileCopyRequest request;
  if (given.direction != GPUMEM_FILE_DIRECTION_TO_MEMORY &&
      given.direction != GPUMEM_FILE_DIRECTION_FROM_MEMORY) {
    decode.not_a_value("the direction", "GPUMEM_FILE_DIRECTION_", given.direction);
  }
  if ((given.prefer & ~GPUMEM_FILE_DIRECT) != 0) {
    decode.refuse("the flags are 0x%" PRIx64 "; the only one is GPUMEM_FILE_DIRECT", given.prefer);
  }
  if (given.size != 0) decode.not_null(given.pointer, "desc->pointer");
  if (given.size > kSizeMax || add_wraps(address_of(given.pointer), given.size)) {
    decode.refuse("the range of the memory exceeds 2^63-1 bytes or wraps around the address space");
  }
  if (given.size <= kSizeMax && given.file_offset > kSizeMax - given.size) {
    decode.refuse("%" PRIu64 " bytes from offset %" PRIu64 " of the file end above 2^63-1", given.size,
                  given.file_offset);
  }
  request.file_descriptor = given.file_descriptor;
  request.to_memory = given.direction == GPUMEM_FILE_DIRECTION_TO_MEMORY;
  request.offset = given.file_offset;
  request.pointer = given.pointer;
  request.size = given.size;
  request.direct = (given.prefer & GPUMEM_FILE_DIRECT) != 0;
  request.progress = {given.progress, given.user_data};
  return request;
}

}  // namespace

gpumem_status gpumem_copy_file(gpumem_instance instance, const gpumem_copy_file_desc* desc,
                               gpumem_copy_file_info* out_info, gpumem_error* error) {
  return capi::call(__func__, error, [&](capi::Decoder& decode) -> Result<Status> {
    const auto object = decode.object<core::InstanceObject>(instance);
    const gpumem_copy_file_desc given = decode.input(desc, "desc");
    const core::FileCopyRequest request = decode_request(decode, given);
    if (out_info != nullptr) decode.output(out_info, "out_info");
    GPUMEM_TRY(decode.done());
    core::FileCopyAnswer made;
    const Result<void> done =
        request.size != 0 ? core::copy_file(object->context(), request, &made) : Result<void>();
    if (out_info != nullptr && (done || made.begun)) {
      gpumem_copy_file_info info = GPUMEM_COPY_FILE_INFO_INIT;
      info.copied = made.copied;
      info.direct = made.direct;
      capi::answer(out_info, info);
    }
    GPUMEM_TRY(done);
    return GPUMEM_SUCCESS;
  });
}
