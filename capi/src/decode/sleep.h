// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the calls that let buffers sleep and wake have in common, for one buffer and for groups.
#pragma once

#include <string>

#include "core/buffer/sleep.h"
#include "decoder.h"
#include "gpumem/buffer.h"

namespace gpumem::capi {

// The objects that a request names, held until the call ends.
struct DecodedSleep {
  core::SleepRequest request;
  std::string tag;
  core::Ref<core::Stream> stream;
  core::Ref<core::Event> event;
};
struct DecodedWake {
  core::WakeRequest request;
  std::string tag;
};
struct DecodedPrepare {
  core::StoreRequest store;
  uint64_t bytes_per_second = 0;
  std::string tag;
};

// `instance` is null if the call's own handle is bad. A tag is allowed for groups.
DecodedSleep decode_sleep(Decoder& decode, core::Context* instance, const gpumem_sleep_desc* desc,
                          bool group);
DecodedWake decode_wake(Decoder& decode, const gpumem_wake_desc* desc, bool group);
DecodedPrepare decode_prepare(Decoder& decode, const gpumem_prepare_desc* desc, bool group);

}  // namespace gpumem::capi
