// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What other processes have sent to an instance and it has not imported yet, and how much of it there may be.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/share/peer/peer.h"
#include "core/share/wire/handle.h"
#include "platform/descriptor.h"
#include "platform/socket.h"

namespace gpumem::core {

// A handle, with what came with it.
struct Arrival {
  // What comes from a user takes of its share, as long as somebody has this.
  struct Charge {
    const uint32_t user;
    uint64_t descriptors = 0;  // with those of the connection; guarded by Arrivals::mutex_
  };

  ShareHandle handle;
  platform::Descriptors descriptors;
  std::shared_ptr<SharePeer> peer;  // the connection to its exporter
  uint32_t user = 0;                // who sent it, and not who is at the other end of `peer`
  std::chrono::steady_clock::time_point until;
  std::shared_ptr<Charge> charge = nullptr;  // while it is not kept
};

class Arrivals {
 public:
  using Clock = std::chrono::steady_clock;

  // For a handle to receive from a user. LIMIT_EXCEEDED if too many wait.
  Result<std::shared_ptr<Arrival::Charge>> reserve(uint32_t user);
  // For so many descriptors of it and a connection, which have begun to arrive. `replaced`: the handle in
  // whose place it comes, if any. LIMIT_EXCEEDED if the user has its share of them; then none is reserved any
  // more. Connections may be locked: what gives way is closed by bury().
  Result<void> reserve_descriptors(Arrival::Charge& charge, uint64_t descriptors,
                                   const ShareHandle& replaced = {});
  void bury() noexcept;
  // For descriptors that an exporter is asked for. LIMIT_EXCEEDED.
  Result<std::shared_ptr<Arrival::Charge>> charge(uint32_t user, uint64_t descriptors);
  // Keeps it, in place of what was charged for it, until it is imported or its time is over.
  void keep(Arrival arrival);

  // Takes what came with a handle, if that did. If importing fails, put it back. With `elsewhere`, it is
  // being imported until end_taking(), or that says whether another thread imports it.
  std::optional<Arrival> take(const ShareHandle& handle, bool* elsewhere = nullptr);
  void put_back(Arrival arrival) noexcept;
  void end_taking(const ShareHandle& handle) noexcept;
  // Waits until no other thread imports it. BUSY.
  Result<void> await_taker(const ShareHandle& handle, platform::Deadline deadline);
  // It is imported already.
  void drop(const ShareHandle& handle);

  bool any() const noexcept { return any_.load(std::memory_order_relaxed); }
  // Over which connection it came; null if it did not, or is taken.
  std::shared_ptr<SharePeer> peer_of(const ShareHandle& handle) const;
  // The connection with this number, if handles that were kept came over it; null if it is closed.
  std::shared_ptr<SharePeer> connection(uint64_t id) const;
  bool has(const Token& token) const;
  // Gives up what has waited too long. Returns when something will have; the maximum if nothing is left.
  Clock::time_point tidy(Clock::time_point now) noexcept;
  void clear() noexcept;

 private:
  using Key = std::pair<Token, uint64_t>;  // of an export, and the connection that it came over
  using Table = std::map<Key, Arrival>;
  using Graves = std::multimap<Key, Arrival>;
  // Whether something gives way.
  using Goes = std::function<bool(const Arrival&)>;

  static Key key_of(const ShareHandle& handle) { return {handle.token, handle.origin.connection}; }
  // These require mutex_.
  std::shared_ptr<Arrival::Charge> add_charge(uint32_t user, uint64_t descriptors);
  Result<void> check_places(uint32_t user, const Goes& goes) const;
  Result<void> check_descriptors(uint32_t user, uint64_t more, const ShareHandle& replaced, const Goes& goes,
                                 bool only_share) const;
  // `mine`: what was reserved for what needs the room.
  Result<void> make_room(uint32_t user, const Arrival::Charge* mine,
                         const std::function<Result<void>(const Goes& goes, bool only_share)>& check);
  Result<void> make_room_for(uint32_t user, uint64_t more, const ShareHandle& replaced,
                             const Arrival::Charge* mine);
  void give_up(const Goes& goes);
  void note_any() noexcept { any_.store(!table_.empty(), std::memory_order_relaxed); }

  mutable std::mutex mutex_;  // guards the rest
  Table table_;
  Graves graves_;  // what has given way, until it is closed without the lock
  std::vector<std::weak_ptr<Arrival::Charge>> charges_;  // beside what is kept
  std::multiset<Key> taking_;  // those that threads import, which may have come again
  std::condition_variable taken_;
  std::atomic<bool> any_{false};
  std::map<uint64_t, std::weak_ptr<SharePeer>> connections_;  // that handles came over
};

}  // namespace gpumem::core
