// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/entrance.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <new>
#include <string>

namespace gpumem::core {
namespace {

using Clock = EventLoop::Clock;

constexpr size_t kConnectionsMax = 1024;  // besides those of hubs
constexpr size_t kReserve = 3;            // what a link takes until it is welcome
constexpr auto kPauseTime = std::chrono::milliseconds(100);

}  // namespace

// ---- the listeners ----

Result<void> Entrance::add(platform::Listener listener, uint64_t hub) {
  const uint64_t id = loop_.next_id();
  GPUMEM_TRY(loop_.add(listener.get(), id, paused_ ? EventLoop::kNever : EventLoop::kToRead));
  listeners_.emplace(id, Listening{std::move(listener), hub});
  return {};
}

void Entrance::remove(uint64_t hub) noexcept {
  std::erase_if(listeners_, [&](const auto& one) {
    if (one.second.hub != hub) return false;
    loop_.ignore(one.second.listener.get());  // the service manager may have a copy, so closing is not enough
    return true;
  });
}

void Entrance::remove_all() noexcept {
  listeners_.clear();
  reserve_.clear();
}

void Entrance::pause(bool paused) noexcept {
  paused_ = paused;
  for (const auto& [id, listening] : listeners_)
    loop_.change(listening.listener.get(), id, paused ? EventLoop::kNever : EventLoop::kToRead);
}

// Or waiting connections would wake the thread again and again.
void Entrance::pause_for_a_while() noexcept {
  pause(true);
  loop_.look_until(Clock::now() + kPauseTime);
}

void Entrance::look_at_times(Clock::time_point now) {
  if (paused_) pause(is_greeting_on_reserve());
  if (paused_) loop_.look_until(now + kPauseTime);
  Connection* const link = connections_.find(on_reserve_);
  if (link == nullptr || link->doomed) return;
  if (reserve_until_ > now) {
    loop_.look_until(reserve_until_);
    return;
  }
  const Error full = no_descriptor_for("a link that stays");
  connections_.doom(*link, &full);
  // End its holder too: it has claimed nothing yet, or only from a keeper that cannot serve anyone.
  if (Connection* const holder = connections_.find(link->partner)) connections_.doom(*holder, nullptr);
}

// ---- who comes in ----

void Entrance::take_event(uint64_t id) {
  if (const auto listening = listeners_.find(id); listening != listeners_.end())
    accept_all(listening->second);
}

void Entrance::accept_all(Listening& listening) {
  for (int i = 0; i < kAtOnce && !paused_; ++i) {
    auto socket = listening.listener.accept();
    const bool full = !socket && socket.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED;
    const bool on_reserve = full && free_reserve(listening.hub);
    if (on_reserve) {
      socket = listening.listener.accept();
      pause_for_a_while();
    }
    if (!socket) {
      loop_.note("nobody can connect for now", 0, Warnings::kUnknown, socket.error().message);
      pause_for_a_while();
      return;
    }
    if (!*socket) return;
    platform::PeerFacts facts;
    if (auto admitted = admit(*socket, listening.hub, facts); !admitted) {
      if (OpenHub* const hub = find_hub(hubs_, listening.hub)) ++hub->refused;
      loop_.note("refused", facts.process, facts.user, admitted.error().message);
      (void)platform::send_some(socket->get(), encode_message(refusal_of(admitted.error())), {});
      continue;
    }
    auto added = connections_.add(std::move(*socket), Role::kGreeted, listening.hub);
    if (!added) {
      loop_.note("refused", facts.process, facts.user, added.error().message);
      continue;
    }
    (*added)->process = facts.process;
    (*added)->user = facts.user;
    if (on_reserve) lend_reserve(**added);
  }
}

Result<void> Entrance::admit(const platform::Descriptor& socket, uint64_t hub_id,
                             platform::PeerFacts& facts) {
  auto found = platform::peer_of(socket.get());
  if (!found) return found.error();
  facts = std::move(*found);
  const OpenHub* const hub = find_hub(hubs_, hub_id);
  const bool known = facts.user == platform::own_user() || (hub != nullptr && hub->admits(facts));
  if (!known) return make_error(GPUMEM_ERROR_PERMISSION_DENIED, "user %u may not connect here", facts.user);
  if (check_place(hub_id, facts)) return {};
  catch_up(hub_id);
  return check_place(hub_id, facts);
}

void Entrance::catch_up(uint64_t hub_id) {
  connections_.drop_drained();
  for (const auto& [id, connection] : connections_.all()) {
    if (connection->hub == hub_id) serve_(*connection);
  }
}

Result<void> Entrance::check_hand_out(const platform::PeerFacts& receiver) {
  if (receiver.user == platform::own_user() || check_share(receiver)) return {};
  catch_up(0);
  return check_share(receiver);
}

Result<void> Entrance::check_share(const platform::PeerFacts& receiver) const {
  const uint64_t most = platform::descriptor_limit() / 4 * 3;
  const FairShare held = connections_.handed_out(receiver.user);
  if (held.own() < held.of(most)) return {};
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "user %u has %" PRIu64
                    " connections that came with handles, as many as it may have now; "
                    "let it free what it has imported",
                    receiver.user, held.own());
}

Result<void> Entrance::check_place(uint64_t hub_id, const platform::PeerFacts& facts) const {
  const OpenHub* const hub = find_hub(hubs_, hub_id);
  const size_t most = hub != nullptr ? hub->request.limits.links : kConnectionsMax;
  const FairShare links = connections_.links_of(hub_id, facts);
  if (links.all() >= most) {
    if (hub != nullptr) {
      return make_error(
          GPUMEM_ERROR_LIMIT_EXCEEDED,
          "the hub has links_max = %zu; close a link, free what was imported by closed ones, or "
          "open it with a higher limit",
          most);
    }
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                      "the exporter has %zu connections, as many as it takes; let importers close some",
                      most);
  }
  if (hub == nullptr && links.own() >= links.of(most)) {
    return make_error(
        GPUMEM_ERROR_LIMIT_EXCEEDED,
        "%s %" PRIu64 " connections to the exporter, which takes %zu of all processes; close some instances",
        facts.process != 0 ? ("process " + std::to_string(facts.process) + " has").c_str()
                           : "processes that the exporter does not see (of other namespaces) have",
        links.own(), most);
  }
  if (hub == nullptr || !hub->request.is_shared()) return {};
  return links.check("links_max", most, 1, 0, "close a link, free what was imported by closed ones");
}

// ---- the reserve ----

bool Entrance::borrow_reserve(Connection& connection) {
  if (!free_reserve(connection.hub)) return false;
  lend_reserve(connection);
  return true;
}

// Frees the reserved descriptors for a link to a keeper. False if they are lent.
bool Entrance::free_reserve(uint64_t hub_id) noexcept {
  const OpenHub* const hub = find_hub(hubs_, hub_id);
  if (hub == nullptr || !hub->request.keeper || reserve_.size() < kReserve) return false;
  reserve_.clear();
  return true;
}

// Lends the reserve for a limited time, in which the link should withdraw something.
void Entrance::lend_reserve(Connection& connection) {
  on_reserve_ = connection.id;
  reserve_until_ = platform::deadline_after(connection.time_ns);
  loop_.look_until(reserve_until_);
}

// Whether a connection is still greeting on the reserve, so that no other may take it.
bool Entrance::is_greeting_on_reserve() const {
  const Connection* const found = connections_.find(on_reserve_);
  return found != nullptr && found->role == Role::kGreeted && !found->doomed;
}

void Entrance::fill_reserve() noexcept {
  const bool wanted =
      std::any_of(hubs_.begin(), hubs_.end(), [](const auto& entry) { return entry.second.request.keeper; });
  if (!wanted) reserve_.clear();
  if (!wanted || reserve_.size() == kReserve || is_greeting_on_reserve()) return;
  try {
    reserve_.reserve(kReserve);
  } catch (const std::bad_alloc&) {
    return;
  }
  while (reserve_.size() < kReserve) {
    auto one = platform::duplicate(loop_.stop_event());
    if (!one) return;
    reserve_.push_back(std::move(*one));
  }
  on_reserve_ = 0;
}

}  // namespace gpumem::core
