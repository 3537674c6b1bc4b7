// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tries whether another process can use memory of this one: sends a small block the same way, lets the other
// process read and write it, and checks it here.
#pragma once

#include <memory>
#include <string>

#include "core/buffer/buffer.h"
#include "core/share/wire/protocol.h"

namespace gpumem::core {

class Context;
class Link;

// What a trial takes at most.
inline constexpr uint64_t kTrialSizeMax = uint64_t{64} << 20;

struct TrialRequest {
  gpumem_share_way way = GPUMEM_SHARE_WAY_LEGACY;
  // Where the memory lies that would be shared; of host memory the device is the one that it is close to.
  uint32_t device = 0;
  gpumem_location location = GPUMEM_LOCATION_DEVICE;
  int32_t numa_node = -1;
  bool other_device = false;  // for a device there that does not have the memory
  auto operator<=>(const TrialRequest&) const = default;
};

struct TrialResult {
  Status status = GPUMEM_SUCCESS;
  bool slow = false;
  std::string text;
};

// The block that the other side is given, until this is destroyed.
class TrialBlock {
 public:
  static Result<std::unique_ptr<TrialBlock>> make(Context& context, const TrialRequest& request);
  explicit TrialBlock(Context& context) : context_(context) {}
  TrialBlock(const TrialBlock&) = delete;
  TrialBlock& operator=(const TrialBlock&) = delete;
  ~TrialBlock();

  Result<void> write(const Token& bytes);
  Result<Token> read();
  void* pointer() const { return pointer_; }

 private:
  Context& context_;
  uint64_t buffer_ = 0;
  uint64_t memory_ = 0;
  void* pointer_ = nullptr;
};

// What the importer leaves in the block.
Token answer_to(const Token& pattern);

// At the importer: opens what came with a TRIAL, and answers with a TRIED. Not on the sharing thread.
Message answer_trial(Context& context, Incoming& incoming);

// Why memory at a place is slow for a device; empty if it is not.
std::string why_slow(gpumem_location location, bool other_device);

}  // namespace gpumem::core
