// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where other processes connect to an instance and its hubs, and who of them may.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "core/share/peer/connections.h"
#include "core/share/peer/event_loop.h"
#include "core/share/peer/open_hub.h"
#include "platform/identity.h"
#include "platform/socket.h"

namespace gpumem::core {

// All with the lock of the event loop.
class Entrance {
 public:
  // `serve` takes what a connection has sent; then it may turn out to have hung up.
  Entrance(EventLoop& loop, OpenHubs& hubs, Connections& connections, std::function<void(Connection&)> serve)
      : loop_(loop), hubs_(hubs), connections_(connections), serve_(std::move(serve)) {}

  // 0: the instance's own address.
  Result<void> add(platform::Listener listener, uint64_t hub);
  void remove(uint64_t hub) noexcept;
  void remove_all() noexcept;
  // Lets in who waits at the listener with this number, if there is one.
  void take_event(uint64_t id);
  void look_at_times(EventLoop::Clock::time_point now);

  // A keeper holds some descriptors in reserve for one link at a time, which can so withdraw something when
  // no other is free. Frees them for a connection; false if they are lent already, or its hub is no keeper.
  bool borrow_reserve(Connection& connection);
  // Takes them back, if they are free.
  void fill_reserve() noexcept;
  // Whether a connection may be handed out. LIMIT_EXCEEDED if another user has its share of them.
  Result<void> check_hand_out(const platform::PeerFacts& receiver);

 private:
  struct Listening {
    platform::Listener listener;
    uint64_t hub = 0;
  };

  void accept_all(Listening& listening);
  Result<void> admit(const platform::Descriptor& socket, uint64_t hub, platform::PeerFacts& facts);
  Result<void> check_place(uint64_t hub, const platform::PeerFacts& facts) const;
  Result<void> check_share(const platform::PeerFacts& receiver) const;
  // Takes what others have sent, since some may have hung up just now.
  void catch_up(uint64_t hub);
  void pause(bool paused) noexcept;
  void pause_for_a_while() noexcept;
  bool free_reserve(uint64_t hub) noexcept;
  void lend_reserve(Connection& connection);
  bool is_greeting_on_reserve() const;

  EventLoop& loop_;
  OpenHubs& hubs_;
  Connections& connections_;
  const std::function<void(Connection&)> serve_;
  std::map<uint64_t, Listening> listeners_;
  bool paused_ = false;  // no descriptor is free to accept connections
  platform::Descriptors reserve_;
  uint64_t on_reserve_ = 0;  // the connection that has borrowed it
  platform::Deadline reserve_until_ = platform::Deadline::max();
};

}  // namespace gpumem::core
