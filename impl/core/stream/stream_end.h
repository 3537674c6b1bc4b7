// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The end of a stream, as managed memory sees it.
#pragma once

#include <cstdint>
#include <memory>

#include "contract/fence.h"
#include "contract/stream.h"
#include "core/memory/managed_state.h"

namespace gpumem::core {

class Context;

// Encloses the release of a stream, which resets the attachment of memory attached to it (MAN-13).
class StreamEnd {
 public:
  // The key is 0 if the stream goes on, without a handle that wraps it.
  StreamEnd(Context& context, backend::Stream& stream, StreamKey key);
  void finish() noexcept;  // the stream is released

 private:
  Context& context_;
  const StreamKey key_;  // 0: nothing is attached to it
  std::shared_ptr<backend::Fence> fence_;
  uint64_t mark_ = 0;
};

}  // namespace gpumem::core
