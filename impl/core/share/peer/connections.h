// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The connections of other processes to an instance and its hubs: what each holds, what it has not read, and
// how it ends.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/share/peer/event_loop.h"
#include "core/share/peer/fair_share.h"
#include "core/share/peer/open_hub.h"
#include "core/share/wire/channel.h"
#include "platform/identity.h"
#include "platform/socket.h"

namespace gpumem::core {

class Context;

// How long a connection that was handed out may claim nothing, in nanoseconds, unless a sender says another.
constexpr uint64_t kLeaseTime = 30'000'000'000;

// One that has not said hello, a holder of exports, or a link to a hub. Each link has a holder.
enum class Role { kGreeted, kHolder, kLink };

struct Connection {
  explicit Connection(platform::Descriptor socket) : channel(std::move(socket)) {}

  // How often a token is claimed: as an export of this instance, which counts them, and as what a keeper
  // keeps. One token can be both, one after the other.
  struct Claim {
    uint64_t exported = 0;
    uint64_t kept = 0;
    bool told = false;  // that it is withdrawn, since the last claim
    bool empty() const { return exported == 0 && kept == 0; }
  };
  struct Wait {
    uint64_t number;
    std::string name;
    uint64_t after;
  };

  uint64_t id = 0;
  Channel channel;
  Role role = Role::kGreeted;
  uint64_t hub = 0;  // 0: none
  int32_t process = 0;
  uint32_t user = 0;
  uint64_t time_ns = 0;  // for a message
  uint64_t partner = 0;  // of a holder, its link; of a link, its holder
  std::map<Token, Claim> claims;
  std::map<Token, gpumem_access> fetched;  // of a holder: what its link may have, as it was published
  std::optional<Token> lent;               // held for it until it claims
  std::optional<Token> only;               // was made for this export, and gives no other
  std::vector<Wait> waits;
  uint32_t trials = 0;              // so far
  std::shared_ptr<Incoming> trial;  // that waits or runs; one that waits is dropped with its link
  platform::Deadline message_until = platform::Deadline::max();  // HELLO, or a message that has begun
  platform::Deadline output_until = platform::Deadline::max();
  platform::Deadline lease_until = platform::Deadline::max();  // of one that was handed out
  uint64_t lease_ns = kLeaseTime;
  uint32_t interest = 0;
  bool doomed = false;
};

Message refusal_of(const Error& error);

// All with the lock of the event loop.
class Connections {
 public:
  Connections(Context& context, EventLoop& loop, OpenHubs& hubs)
      : context_(context), loop_(loop), hubs_(hubs) {}

  Result<Connection*> add(platform::Descriptor socket, Role role, uint64_t hub);
  // Returns one end of a new connection, and serves the other.
  Result<platform::Descriptor> hand_out(Role role, uint64_t hub, Connection** ours);
  // Null if it has ended.
  Connection* find(uint64_t id) const noexcept;
  const std::map<uint64_t, std::unique_ptr<Connection>>& all() const { return all_; }

  // ---- what they are sent ----

  // Hangs up if the answer cannot be sent, so that the peer asks again.
  void answer(Connection& connection, Message message, platform::SharedDescriptors descriptors = {}) noexcept;
  void refuse(Connection& connection, uint64_t number, const Error& error);
  // Refuses, and hangs up.
  void turn_away(Connection& connection, uint64_t number, const Error& error);
  // After something was sent or received.
  void update(Connection& connection) noexcept;

  // ---- what they have not read, and what they take of limits ----

  // Those of users; at the exporter's own address, where all are of one user, of processes.
  FairShare links_of(uint64_t hub, const platform::PeerFacts& facts) const;
  // Those that were handed out to other users.
  FairShare handed_out(uint32_t user) const;
  // How many descriptors it may leave unread.
  void set_window(Connection& connection);
  // The connection with the most unread descriptors, among those of the user of `waiting`.
  Connection& worst_reader(Connection& waiting);
  // Hangs up on those whose unread answers keep what has been withdrawn, if that is too much.
  void drop_leaving() noexcept;
  // Forgets ended ones that have been read meanwhile; the second also says when to look again.
  void drop_drained() noexcept;
  void look_at_drained(EventLoop::Clock::time_point now);

  // ---- how they end ----

  // Marks for bury(), which deletes it, because the caller may be iterating. `error` goes to the log.
  void doom(Connection& connection, const Error* error) noexcept;
  void bury() noexcept;
  void end_all() noexcept;

 private:
  // A connection that has ended before the other side had read all descriptors. They count until that closes
  // it.
  struct Undrained {
    Channel channel;
    uint64_t hub = 0;
    int32_t process = 0;
    uint32_t user = 0;
  };

  size_t window_of(Connection& connection);
  void unclaim(Connection& connection) noexcept;
  void leave_undrained(Connection& connection) noexcept;

  Context& context_;
  EventLoop& loop_;
  OpenHubs& hubs_;
  std::map<uint64_t, std::unique_ptr<Connection>> all_;
  bool any_doomed_ = false;
  std::list<Undrained> undrained_;
};

}  // namespace gpumem::core
