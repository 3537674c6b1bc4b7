// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a forked child does not inherit: the number of the process (COM-25), and some descriptors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace gpumem::platform {

namespace detail {
[[gnu::visibility("hidden")]] extern constinit std::atomic<std::atomic<uint32_t>*> epoch_word;  // never null
uint32_t make_process_epoch();
}  // namespace detail

// 0 if nothing of this process has asked for its number yet. Makes no call.
inline uint32_t known_process_epoch() {
  return detail::epoch_word.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
}

// Closes a descriptor in each forked child from now on. Best effort: out of memory, and in a child that
// clone() made, it stays open.
void close_in_children(int file_descriptor) noexcept;
// Before it is closed here, since its number may be used again at once.
void forget_for_children(int file_descriptor) noexcept;

// The same number, never 0, for the life of a process, another one in each forked child.
inline uint32_t process_epoch() {
  const uint32_t epoch = known_process_epoch();
  return epoch != 0 ? epoch : detail::make_process_epoch();
}

// State that all instances of a process share, such as a lock. A forked child gets a new one, because a
// parent thread that does not exist in the child may have held the lock. T::inherit(), if there is one,
// copies what the child keeps. Never destroyed: threads may use it during exit.
template <class T>
class PerProcess {
 public:
  // The first use does not allocate, because it may be a release, which must not fail. Throws std::bad_alloc
  // only in a forked child, or if two threads race for the first use.
  T& get() {
    Node* known = node_.load(std::memory_order_acquire);
    if (known != nullptr && known->epoch == process_epoch()) return known->value;
    return make(known);
  }

  // Null if this process has not used it.
  T* find() {
    Node* known = node_.load(std::memory_order_acquire);
    return known != nullptr && known->epoch == process_epoch() ? &known->value : nullptr;
  }

 private:
  struct Node {
    uint32_t epoch;
    Node* parents;  // stays reachable, so leak checkers accept it
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
