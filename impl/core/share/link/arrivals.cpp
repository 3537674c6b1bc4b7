// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/link/arrivals.h"

#include <algorithm>
#include <cinttypes>
#include <new>

#include "base/cleanup.h"
#include "core/object/callback.h"
#include "core/object/handles.h"
#include "core/share/peer/fair_share.h"

namespace gpumem::core {
namespace {

constexpr size_t kHandlesMax = 2048;

}  // namespace

Result<std::shared_ptr<Arrival::Charge>> Arrivals::reserve(uint32_t user) {
  const Cleanup over([&] { bury(); });
  const std::lock_guard lock(mutex_);
  GPUMEM_TRY(make_room(user, nullptr,
                       [&](const Goes& goes, bool /*only_share*/) { return check_places(user, goes); }));
  return add_charge(user, 0);
}

Result<void> Arrivals::reserve_descriptors(Arrival::Charge& charge, uint64_t descriptors,
                                           const ShareHandle& replaced) {
  const std::lock_guard lock(mutex_);
  charge.descriptors = 0;
  GPUMEM_TRY(make_room_for(charge.user, descriptors, replaced, &charge));
  charge.descriptors = descriptors;
  return {};
}

Result<std::shared_ptr<Arrival::Charge>> Arrivals::charge(uint32_t user, uint64_t descriptors) {
  const Cleanup over([&] { bury(); });
  const std::lock_guard lock(mutex_);
  GPUMEM_TRY(make_room_for(user, descriptors, {}, nullptr));
  return add_charge(user, descriptors);
}

void Arrivals::keep(Arrival arrival) {
  const Cleanup over([&] { bury(); });
  const std::lock_guard lock(mutex_);
  arrival.charge = nullptr;
  std::erase_if(connections_, [](const auto& one) { return one.second.expired(); });
  connections_[arrival.handle.origin.connection] = arrival.peer;
  const auto [place, added] = table_.try_emplace(key_of(arrival.handle), std::move(arrival));
  if (!added) std::swap(place->second, arrival);  // closed after unlocking
  any_.store(true, std::memory_order_relaxed);
}

std::optional<Arrival> Arrivals::take(const ShareHandle& handle, bool* elsewhere) {
  const std::lock_guard lock(mutex_);
  const Key key = key_of(handle);
  const auto found = table_.find(key);
  if (elsewhere != nullptr) *elsewhere = found == table_.end() && taking_.contains(key);
  if (found == table_.end()) return std::nullopt;
  // An exporter that does not answer must not have others counted in its place meanwhile.
  auto charged = add_charge(found->second.user, found->second.descriptors.size() + 1);
  if (elsewhere != nullptr) taking_.insert(key);
  found->second.charge = std::move(charged);
  Arrival taken = std::move(table_.extract(found).mapped());
  note_any();
  return taken;
}

void Arrivals::put_back(Arrival arrival) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    arrival.charge = nullptr;
    table_.try_emplace(key_of(arrival.handle), std::move(arrival));
    note_any();
  } catch (const std::bad_alloc&) {
    // The handle must be sent again.
  }
}

void Arrivals::end_taking(const ShareHandle& handle) noexcept {
  const std::lock_guard lock(mutex_);
  taking_.erase(taking_.find(key_of(handle)));
  taken_.notify_all();
}

// Then it is imported, or what came with the handle is there again.
Result<void> Arrivals::await_taker(const ShareHandle& handle, platform::Deadline deadline) {
  if (Callback::runs_here()) return changed_elsewhere("imports of the instance");
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return !taking_.contains(key_of(handle)); };
  if (deadline == platform::Deadline::max()) {
    taken_.wait(lock, is_over);
  } else if (!taken_.wait_until(lock, deadline, is_over)) {
    return make_error(
        GPUMEM_ERROR_BUSY,
        "another thread imports it, and its exporter did not answer in time; try again, or pass "
        "a longer timeout");
  }
  return {};
}

void Arrivals::drop(const ShareHandle& handle) {
  const platform::ClosingTogether together;
  Table::node_type dropped;  // closed after unlocking
  const std::lock_guard lock(mutex_);
  dropped = table_.extract(key_of(handle));
  note_any();
}

std::shared_ptr<SharePeer> Arrivals::peer_of(const ShareHandle& handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = table_.find(key_of(handle));
  return found != table_.end() ? found->second.peer : nullptr;
}

std::shared_ptr<SharePeer> Arrivals::connection(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  return found != connections_.end() ? found->second.lock() : nullptr;
}

bool Arrivals::has(const Token& token) const {
  const std::lock_guard lock(mutex_);
  const auto found = table_.lower_bound({token, 0});
  return found != table_.end() && found->first.first == token;
}

Arrivals::Clock::time_point Arrivals::tidy(Clock::time_point now) noexcept {
  const std::lock_guard lock(mutex_);
  give_up([now](const Arrival& one) { return one.until <= now; });
  Clock::time_point due = Clock::time_point::max();
  for (const auto& [key, one] : table_)
    due = std::min(due, one.until);
  return due;
}

void Arrivals::clear() noexcept {
  const Cleanup over([&] { bury(); });
  const std::lock_guard lock(mutex_);
  give_up([](const Arrival&) { return true; });
}

void Arrivals::bury() noexcept {
  const platform::ClosingTogether together;
  Graves graves;
  const std::lock_guard lock(mutex_);
  graves.swap(graves_);
}

// ---- how much there may be ----

std::shared_ptr<Arrival::Charge> Arrivals::add_charge(uint32_t user, uint64_t descriptors) {
  auto made = std::make_shared<Arrival::Charge>(Arrival::Charge{user, descriptors});
  std::erase_if(charges_, [](const auto& one) { return one.expired(); });
  charges_.push_back(made);
  return made;
}

void Arrivals::give_up(const Goes& goes) {
  for (auto at = table_.begin(); at != table_.end();) {
    const auto one = at++;
    // Its descriptors make room at once; where their closing may take long, callers are ClosingTogether.
    if (goes(one->second)) graves_.insert(table_.extract(one))->second.descriptors.clear();
  }
  note_any();
}

// The sender says how long a handle may wait, so what waits must not take what others need. Of those that
// were sent by processes which have ended, nobody knows whether they are still wanted: those of this user
// give way, and the others' only if it has nothing else here and takes no more than its share, so that who
// sends too much costs nobody else anything. None goes in vain.
Result<void> Arrivals::make_room(
    uint32_t user, const Arrival::Charge* mine,
    const std::function<Result<void>(const Goes& goes, bool only_share)>& check) {
  // Descriptors are enough for an import, also without their exporter.
  give_up([now = Clock::now()](const Arrival& one) {
    return one.until <= now || (one.handle.way == GPUMEM_SHARE_WAY_LEGACY && one.peer->gone());
  });
  auto room = check([](const Arrival&) { return false; }, false);
  const auto drop = [&](const Goes& goes, bool only_share) {
    if (room || !check(goes, only_share)) return;
    give_up(goes);
    room = {};
  };
  const bool any_own =
      std::any_of(table_.begin(), table_.end(), [&](const auto& one) { return one.second.user == user; }) ||
      std::any_of(charges_.begin(), charges_.end(), [&](const auto& each) {
        const auto one = each.lock();
        return one != nullptr && one.get() != mine && one->user == user;
      });
  drop([&](const Arrival& one) { return one.user == user && one.peer->gone(); }, false);
  if (!any_own) drop([](const Arrival& one) { return one.peer->gone(); }, true);
  return room;
}

Result<void> Arrivals::make_room_for(uint32_t user, uint64_t more, const ShareHandle& replaced,
                                     const Arrival::Charge* mine) {
  const auto is_replaced = [&](const Arrival& one) { return key_of(one.handle) == key_of(replaced); };
  const auto none = [](const Arrival&) { return false; };
  if (!check_descriptors(user, more, replaced, none, false) &&
      check_descriptors(user, more, replaced, is_replaced, false))
    give_up(is_replaced);
  return make_room(user, mine, [&](const Goes& goes, bool only_share) {
    return check_descriptors(user, more, replaced, goes, only_share);
  });
}

Result<void> Arrivals::check_places(uint32_t user, const Goes& goes) const {
  FairShare handles(user);
  for (const auto& [key, one] : table_) {
    if (!goes(one)) handles.add(one.user, 1);
  }
  for (const auto& each : charges_) {
    if (const auto one = each.lock()) handles.add(one->user, 1);
  }
  if (handles.all() < kHandlesMax && handles.own() < handles.of(kHandlesMax)) return {};
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "%" PRIu64
                    " handles of user %u were received and not imported; import them, or receive fewer",
                    handles.own(), user);
}

Result<void> Arrivals::check_descriptors(uint32_t user, uint64_t more, const ShareHandle& replaced,
                                         const Goes& goes, bool only_share) const {
  FairShare held(user);
  std::set<uint64_t> connections{replaced.origin.connection};  // all handles of a link have the same one
  for (const auto& [key, one] : table_) {
    if (goes(one)) continue;
    held.add(one.user, one.descriptors.size() + (connections.insert(key.second).second ? 1 : 0));
  }
  for (const auto& each : charges_) {
    if (const auto one = each.lock()) held.add(one->user, one->descriptors);
  }
  const uint64_t limit = platform::descriptor_limit() / 4 * 3;  // the rest is for what is not sent by others
  if (held.own() + more <= held.of(limit)) return {};
  // A first one may be as large as a message, if that leaves others something.
  if (!only_share && held.own() == 0 && held.all() + more <= limit / 8 * 7) return {};
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "handles of user %u that were received and not imported have %" PRIu64
                    " descriptors of %" PRIu64 "; import them, or raise `ulimit -n`",
                    user, held.own(), held.of(limit));
}

}  // namespace gpumem::core
