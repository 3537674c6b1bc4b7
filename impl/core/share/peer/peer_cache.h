// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The connections of an instance to exporters, one for each. Those of recent imports are kept for a while,
// because connecting again takes longer than an import.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "core/share/peer/event_loop.h"
#include "core/share/peer/peer.h"

namespace gpumem::core {

class PeerCache {
 public:
  static constexpr size_t kRecentMax = 8;
  // To be released without a lock.
  using Unused = std::array<std::shared_ptr<SharePeer>, kRecentMax>;

  explicit PeerCache(EventLoop& loop) : loop_(loop) {}

  // The connection to an exporter that is who it says; null if there is none.
  std::shared_ptr<SharePeer> find(const Token& instance);
  // Returns the existing peer if another thread was faster.
  std::shared_ptr<SharePeer> add(const Token& instance, std::shared_ptr<SharePeer> peer);

  // Those that are kept no longer.
  Unused take_unused() noexcept;
  // When the next one is; max(): never.
  platform::Deadline next() const;
  // Keeps none any more, and returns those that it had kept.
  Unused close() noexcept;

 private:
  struct Recent {
    std::shared_ptr<SharePeer> peer;
    platform::Deadline until = platform::Deadline::max();
  };
  platform::Deadline keep_for_a_while(const std::shared_ptr<SharePeer>& peer);
  template <class Which>
  Unused take(Which which) noexcept;

  EventLoop& loop_;
  mutable std::mutex mutex_;  // guards the rest; nothing is taken under it
  bool closed_ = false;
  std::map<Token, std::weak_ptr<SharePeer>> peers_;
  std::array<Recent, kRecentMax> recent_;
};

}  // namespace gpumem::core
