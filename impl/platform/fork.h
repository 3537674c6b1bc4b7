// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Which process is this? A number that a forked child does not inherit (COM-25).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace gpumem::platform {

namespace detail {
extern constinit std::atomic<std::atomic<uint32_t>*> epoch_word;
uint32_t make_process_epoch();
}  // namespace detail

// The same number, never 0, for the life of a process, another one in each forked child.
inline uint32_t process_epoch() {
  const std::atomic<uint32_t>* const word = detail::epoch_word.load(std::memory_order_acquire);
  const uint32_t epoch = word != nullptr ? word->load(std::memory_order_relaxed) : 0;
  return epoch != 0 ? epoch : detail::make_process_epoch();
}

// What all instances of a process share, such as a lock. A forked child gets a fresh one: a thread of the
// parent that does not exist in the child may have held the lock, and what the parent noted down is not the
// child's, unless T has inherit(), which takes over what is. Never destroyed, because threads may use it
// while the process exits.
template <class T>
class PerProcess {
 public:
  // The first use needs no memory, because it may be a release, which must not fail. Throws std::bad_alloc in
  // a forked child, or if two threads come first at once.
  T& get() {
    Node* known = node_.load(std::memory_order_acquire);
    if (known != nullptr && known->epoch == process_epoch()) return known->value;
    return make(known);
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

  T& make(Node* known) {
    Node* fresh = nullptr;
    if (!first_taken_.exchange(true)) {
      fresh = new (first_) Node{process_epoch(), known, {}};
    } else {
      fresh = new Node{process_epoch(), known, {}};
    }
    if constexpr (requires(T & value) { value.inherit(value); }) {
      if (known != nullptr) fresh->value.inherit(known->value);
    }
    if (node_.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return fresh->value;
    // Another thread was faster. The first place is not used again.
    if (static_cast<void*>(fresh) != first_) delete fresh;
    return known->value;
  }

  std::atomic<Node*> node_{nullptr};
  std::atomic<bool> first_taken_{false};
  alignas(Node) std::byte first_[sizeof(Node)]{};
};

}  // namespace gpumem::platform
