// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "sleep.h"

#include "core/object/context.h"

namespace gpumem::capi {
namespace {

std::string decode_tag(Decoder& decode, const char* tag, bool group) {
  if (tag != nullptr && !group)
    decode.refuse("a tag selects buffers of a group; leave it out for one buffer");
  const auto part = decode.inside("desc->tag");
  return decode.name(tag);
}

core::StoreRequest decode_store(Decoder& decode, gpumem_content content, uint32_t reserved,
                                const char* directory) {
  if (content < GPUMEM_CONTENT_PINNED || content > GPUMEM_CONTENT_FILE) {
    decode.not_a_value("the content", "GPUMEM_CONTENT_", content);
  }
  if (reserved != 0) decode.refuse("reserved is %u; it must be 0", reserved);
  const bool file = content == GPUMEM_CONTENT_FILE;
  if (file && (directory == nullptr || directory[0] == '\0')) {
    decode.refuse("GPUMEM_CONTENT_FILE needs a directory for the file");
  }
  if (!file && directory != nullptr) {
    decode.refuse("only GPUMEM_CONTENT_FILE has a directory; leave it out for other content");
  }
  return {content, file && directory != nullptr ? directory : ""};
}

}  // namespace

DecodedSleep decode_sleep(Decoder& decode, core::Context* instance, const gpumem_sleep_desc* desc,
                          bool group) {
  const gpumem_sleep_desc given = decode.optional_input(desc, "desc");
  DecodedSleep sleep;
  sleep.request.store = decode_store(decode, given.content, given.reserved, given.directory);
  sleep.tag = decode_tag(decode, given.tag, group);
  decode.flags(given.flags, GPUMEM_SLEEP_IDLE, "GPUMEM_SLEEP_");
  sleep.request.idle = (given.flags & GPUMEM_SLEEP_IDLE) != 0;
  if (given.stream != nullptr) sleep.stream = decode.object<core::Stream>(given.stream);
  if (given.event != nullptr) sleep.event = decode.object<core::Event>(given.event);
  if (sleep.request.idle && (given.stream != nullptr || given.event != nullptr)) {
    decode.refuse("GPUMEM_SLEEP_IDLE waits for nothing; pass no stream and no event with it");
  }
  const auto check_instance = [&](const auto& object, const char* what) {
    if (object && instance != nullptr && &object->context() != instance)
      decode.refuse("the %s belongs to another instance", what);
  };
  check_instance(sleep.stream, "stream");
  check_instance(sleep.event, "event");
  sleep.request.stream = sleep.stream.get();
  sleep.request.event = sleep.event.get();
  sleep.request.progress = {given.progress, given.user_data};
  return sleep;
}

DecodedWake decode_wake(Decoder& decode, const gpumem_wake_desc* desc, bool group) {
  const gpumem_wake_desc given = decode.optional_input(desc, "desc");
  DecodedWake wake;
  wake.tag = decode_tag(decode, given.tag, group);
  wake.request.keep = given.keep;
  wake.request.progress = {given.progress, given.user_data};
  return wake;
}

DecodedPrepare decode_prepare(Decoder& decode, const gpumem_prepare_desc* desc, bool group) {
  const gpumem_prepare_desc given = decode.optional_input(desc, "desc");
  DecodedPrepare prepare;
  prepare.store = decode_store(decode, given.content, given.reserved, given.directory);
  prepare.tag = decode_tag(decode, given.tag, group);
  prepare.bytes_per_second = given.bytes_per_second;
  return prepare;
}

}  // namespace gpumem::capi
