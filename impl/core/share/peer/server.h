// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What an instance answers other processes: to importers, what it has exported; to links, what its hubs have.
// All of it happens on the sharing thread, which starts on first use.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/share/peer/connections.h"
#include "core/share/peer/entrance.h"
#include "core/share/peer/event_loop.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/hub_table.h"
#include "core/share/peer/open_hub.h"
#include "core/share/peer/peer_cache.h"
#include "core/share/peer/trial_lanes.h"
#include "platform/socket.h"

namespace gpumem::core {

class Context;

struct HubCounts {
  uint32_t links = 0;
  uint32_t names = 0;
  uint32_t versions = 0;
  uint32_t descriptors = 0;
  uint64_t refused = 0;
};

class ShareServer final : public ExportServer, private EventLoop::Work {
 public:
  // Of the instance.
  static ShareServer& of(Context& context);

  // Answers a TRIAL with a TRIED. Called on a thread that may wait.
  using AnswerTrial = Message (*)(Context& context, Incoming& trial);
  // Called after each round of the sharing thread, without its lock.
  using AfterRound = void (*)(Context& context) noexcept;
  ShareServer(Context& context, AnswerTrial answer_trial, AfterRound after_round)
      : context_(context), answer_trial_(answer_trial), after_round_(after_round) {}
  ShareServer(const ShareServer&) = delete;
  ShareServer& operator=(const ShareServer&) = delete;
  ~ShareServer() { stop(); }

  // CLOSED after stop(); UNSUPPORTED where nothing can be shared. Throws what std::thread throws.
  Result<void> start() override;
  // Ends the thread, hangs up on importers and links, and fails the calls that wait for another process. What
  // this instance has claimed stays claimed until its owners release it.
  void stop() noexcept;
  // Whether this thread runs a trial, which may wait for other processes.
  bool tries_on_this_thread() const;

  EventLoop& loop() { return loop_; }
  // Of what it asks other processes.
  PeerCache& peers() { return peers_; }

  // ---- for exporters ----

  void withdrawn(const Token& token) noexcept override;
  void catch_up() noexcept override;
  // An export that is held for the process that gets `end`, until it claims or the lease expires.
  struct Lent {
    Grant grant;
    platform::Descriptor end;
    uint64_t connection = 0;
    // The end, and copies of those of the grant.
    Result<platform::SharedDescriptors> take_descriptors();
  };
  Result<Lent> lend(const Token& token, uint64_t lease_ns, const platform::PeerFacts& receiver);
  void take_back(uint64_t connection) noexcept;
  // Which processes hold what of this instance; 0 is one that the system does not show.
  Exports::Holders holders() const;
  // Ends all leases of the export that have not been claimed.
  void end_leases(const Token& token) noexcept;

  // ---- for hubs ----

  Result<uint64_t> open_hub(HubRequest request);
  void close_hub(uint64_t hub) noexcept;
  Result<uint64_t> publish(uint64_t hub, HubTable::Request request);
  Result<void> withdraw(uint64_t hub, const std::string& name, uint64_t version);
  HubCounts counts(uint64_t hub);

 private:
  using Clock = EventLoop::Clock;

  void begin() override;
  void take_event(uint64_t id) override;
  void look_at_times(Clock::time_point now) override;
  void end() noexcept override;
  void unlocked() noexcept override;

  Result<void> can_share() const;
  void take_notes();

  void take_turn(Connection& connection);
  // Returns how many messages it took.
  int serve(Connection& connection);
  Result<void> take(Connection& connection, Incoming incoming);
  Result<void> take_hello(Connection& connection, const Message& message);
  Result<void> take_claim(Connection& connection, const Message& message);
  Result<void> take_release(Connection& connection, const Token& token);
  void begin_lease(Connection& connection) noexcept;
  Result<void> take_request(Connection& connection, Incoming incoming);
  Result<void> take_trial(Connection& connection, Incoming incoming);
  void finish_trial(uint64_t connection, const TrialLanes::Asker& asker, Message reply) noexcept;
  Result<Message> fetch(Connection& connection, OpenHub& hub, const Message& message,
                        platform::SharedDescriptors* descriptors);
  void let_claim(const Connection& link, const ShareHandle& handle);
  void tell_waiting(uint64_t hub, const std::string& name) noexcept;
  void tell_withdrawn(uint64_t hub, const Token& token) noexcept;
  void have_gone(uint64_t hub, const std::vector<Token>& tokens) noexcept;
  void tell_all_withdrawn(Connection& connection) noexcept;

  Context& context_;
  const AnswerTrial answer_trial_;
  const AfterRound after_round_;

  std::mutex notes_mutex_;  // guards the notes; nothing is taken under it
  std::vector<Token> notes_;

  EventLoop loop_;  // its lock guards the rest, but the peers
  PeerCache peers_{loop_};
  OpenHubs hubs_;
  Connections connections_{context_, loop_, hubs_};
  TrialLanes trials_;
  Entrance entrance_{loop_, hubs_, connections_, [this](Connection& connection) { serve(connection); }};
  // Messages that may still be handled for a user in this round.
  struct Turn {
    uint32_t user = 0;
    int left = 0;
  };
  std::vector<Turn> turns_;
};

}  // namespace gpumem::core
