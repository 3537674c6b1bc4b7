// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/peer_cache.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace gpumem::core {
namespace {

constexpr auto kRecentTime = std::chrono::seconds(1);

}  // namespace

std::shared_ptr<SharePeer> PeerCache::find(const Token& instance) {
  std::shared_ptr<SharePeer> peer;  // the last reference is released without the lock
  platform::Deadline until;
  {
    const std::lock_guard lock(mutex_);
    const auto known = peers_.find(instance);
    if (known == peers_.end()) return nullptr;
    peer = known->second.lock();
    if (peer == nullptr || peer->gone()) {
      peers_.erase(known);
      return nullptr;
    }
    until = keep_for_a_while(peer);
  }
  loop_.look_by(until);
  return peer;
}

std::shared_ptr<SharePeer> PeerCache::add(const Token& instance, std::shared_ptr<SharePeer> peer) {
  std::shared_ptr<SharePeer> before;
  platform::Deadline until;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(peers_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<SharePeer>& place = peers_[instance];
    before = place.lock();
    if (before != nullptr && !before->gone()) return before;
    place = peer;
    until = keep_for_a_while(peer);
  }
  loop_.look_by(until);
  return peer;
}

// Returns when to look whether it is still kept.
platform::Deadline PeerCache::keep_for_a_while(const std::shared_ptr<SharePeer>& peer) {
  if (closed_) return platform::Deadline::max();
  const platform::Deadline until = EventLoop::Clock::now() + kRecentTime;
  const auto place_of = [&](const std::shared_ptr<SharePeer>& which) {
    return std::find_if(recent_.begin(), recent_.end(), [&](const Recent& one) { return one.peer == which; });
  };
  auto place = place_of(peer);
  if (place == recent_.end()) place = place_of(nullptr);
  if (place == recent_.end()) return platform::Deadline::max();
  *place = {peer, until};
  return until;
}

template <class Which>
PeerCache::Unused PeerCache::take(Which which) noexcept {
  Unused taken;
  for (size_t at = 0; at < recent_.size(); ++at) {
    if (recent_[at].peer != nullptr && which(recent_[at])) taken[at] = std::exchange(recent_[at], {}).peer;
  }
  return taken;
}

PeerCache::Unused PeerCache::take_unused() noexcept {
  const std::lock_guard lock(mutex_);
  const auto now = EventLoop::Clock::now();
  return take([&](const Recent& one) { return one.until <= now || one.peer->gone(); });
}

platform::Deadline PeerCache::next() const {
  const std::lock_guard lock(mutex_);
  auto next = platform::Deadline::max();
  for (const Recent& one : recent_)
    next = std::min(next, one.until);
  return next;
}

PeerCache::Unused PeerCache::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  return take([](const Recent&) { return true; });
}

}  // namespace gpumem::core
