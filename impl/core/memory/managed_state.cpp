// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/memory/managed_state.h"

#include <algorithm>
#include <new>

namespace gpumem::core {

// Applies attachments that have taken effect. Those of a lost device count too, as they no longer matter.
void ManagedState::settle() noexcept {
  std::erase_if(pending_, [this](const Pending& pending) {
    if (pending.fence->poll(pending.mark) == GPUMEM_NOT_READY) return false;
    settled_ = pending.association;
    return true;
  });
}

Coherence ManagedState::coherence(StreamKey stream) {
  const std::lock_guard lock(mutex_);
  settle();
  Association own = settled_;
  bool others = false;
  for (const Pending& pending : pending_) {
    if (pending.in == stream && !pending.ended) own = pending.association;
    // An event unknown here may order the work behind the attachment.
    if (!pending.ended) others = others || pending.association.lets_device(stream);
  }
  return {!own.lets_device(stream), own.lets_device(stream) || others};
}

bool ManagedState::lets_devices() {
  const std::lock_guard lock(mutex_);
  settle();
  return settled_.attach != GPUMEM_ATTACH_HOST;
}

void ManagedState::attach_from(Association association, StreamKey in, std::shared_ptr<backend::Fence> fence,
                               uint64_t mark) noexcept {
  if (fence == nullptr) {
    pending_.clear();
    settled_ = association;
    return;
  }
  pending_.push_back({association, in, std::move(fence), mark, false});
}

void ManagedState::stream_ends(StreamKey stream, const std::shared_ptr<backend::Fence>& fence,
                               uint64_t mark) noexcept {
  const std::lock_guard lock(mutex_);
  settle();
  for (Pending& pending : pending_)
    pending.ended = pending.ended || pending.in == stream;
  const Association last = pending_.empty() ? settled_ : pending_.back().association;
  if (last.attach != GPUMEM_ATTACH_SINGLE || last.stream != stream) return;
  try {
    if (fence != nullptr) return pending_.push_back({initial_, stream, fence, mark, true});
  } catch (const std::bad_alloc&) {
    // The attachment takes effect too early, which only relaxes checks for a moment.
  }
  pending_.clear();
  settled_ = initial_;
}

ManagedState::Waits ManagedState::waits() {
  const std::lock_guard lock(mutex_);
  settle();
  Waits result;
  for (const Pending& pending : pending_) {
    if (pending.ended) {
      result.ended = true;
    } else {
      result.streams.push_back(pending.in);
    }
  }
  return result;
}

Association ManagedState::settled() {
  const std::lock_guard lock(mutex_);
  settle();
  return pending_.empty() ? settled_ : pending_.back().association;
}

void ManagedState::end_work() noexcept {
  guard_.fetch_sub(kWork);
  guard_.notify_all();
}

}  // namespace gpumem::core
