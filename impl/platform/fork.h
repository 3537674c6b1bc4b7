// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which process is this? A number that a forked child does not inherit (COM-25).
#pragma once

#include <atomic>
#include <cstdint>

namespace gpumem::platform {

// The same number for the life of a process, another one in each forked child. One load in the usual case.
uint32_t process_epoch();

// What all instances of a process share, such as a lock. A forked child gets a fresh one: a thread of the
// parent that does not exist in the child may have held the lock, and what the parent noted down is not the
// child's, unless T has inherit(), which takes over what is. Never destroyed, because threads may use it
// while the process exits.
template <class T>
class PerProcess {
 public:
  T& get() {
    Node* known = node_.load(std::memory_order_acquire);
    if (known != nullptr && known->epoch == process_epoch()) return known->value;
    auto* fresh = new Node{process_epoch(), known, {}};
    if constexpr (requires(T & value) { value.inherit(value); }) {
      if (known != nullptr) fresh->value.inherit(known->value);
    }
    if (node_.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return fresh->value;
    delete fresh;  // another thread was faster
    return known->value;
  }

  // Null if nobody has asked for it in this process.
  T* find() {
    Node* known = node_.load(std::memory_order_acquire);
    return known != nullptr && known->epoch == process_epoch() ? &known->value : nullptr;
  }

 private:
  struct Node {
    uint32_t epoch;
    Node* parents;  // kept, so that nobody takes it for a leak
    T value;
  };
  std::atomic<Node*> node_{nullptr};
};

}  // namespace gpumem::platform
