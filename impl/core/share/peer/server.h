// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The sharing thread of an instance: answers importers and links, and receives on the instance's own
// connections. It starts on first use, sleeps while idle, and makes no driver call.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/object/background.h"
#include "core/object/warnings.h"
#include "core/share/peer/exports.h"
#include "core/share/peer/fair_share.h"
#include "core/share/peer/hub_table.h"
#include "core/share/peer/keeper_store.h"
#include "core/share/peer/peer.h"
#include "core/share/wire/channel.h"
#include "platform/socket.h"

namespace gpumem::core {

class Context;
class ShareClient;

constexpr uint64_t kLeaseTime =
    30'000'000'000;  // of a name, in nanoseconds, unless its publisher says another

struct HubRequest {
  std::string address;
  uint32_t mode = 0600;
  std::vector<uint32_t> users;
  std::vector<uint32_t> groups;
  std::vector<uint8_t> secret;
  bool keeper = false;
  bool store = false;  // what it keeps, in the store of the service manager
  HubLimits limits;
};

// Whether other users than that of the hub may connect.
inline bool is_shared(const HubRequest& request) { return !request.users.empty() || !request.groups.empty(); }

struct HubCounts {
  uint32_t links = 0;
  uint32_t names = 0;
  uint32_t versions = 0;
  uint32_t descriptors = 0;
  uint64_t refused = 0;
};

class ShareServer {
 public:
  // Of the instance.
  static ShareServer& of(Context& context);

  // Answers a TRIAL with a TRIED. Called on a thread that may wait.
  using AnswerTrial = Message (*)(Context& context, Incoming& trial);
  ShareServer(Context& context, AnswerTrial answer_trial) : context_(context), answer_trial_(answer_trial) {}
  ShareServer(const ShareServer&) = delete;
  ShareServer& operator=(const ShareServer&) = delete;
  ~ShareServer() { stop(); }

  // CLOSED after stop(); UNSUPPORTED where nothing can be shared. Throws what std::thread throws.
  Result<void> start();
  // Ends the thread, hangs up on importers and links, and fails the calls that wait for another process. What
  // this instance has claimed stays claimed until its owners release it.
  void stop() noexcept;
  bool is_this_thread() const { return std::this_thread::get_id() == thread_id_.load(); }
  // INVALID_STATE on the sharing thread, where a log function runs: that thread receives the answers.
  Result<void> may_wait() const;
  // Whether this thread runs a trial, which may wait for other processes.
  bool tries_on_this_thread() const;
  // Started, and not stopped.
  bool is_running() const { return running_.load(std::memory_order_acquire); }
  // A descriptor that is readable once the server has stopped. Needs start().
  int stop_event() const { return stop_event_.get(); }

  // ---- for exporters ----

  // Call when an export has ended, to inform importers. Takes no lock that is held for long.
  void withdrawn(const Token& token) noexcept;
  // An export that is held for the process that gets `end`, until it claims or the lease expires.
  struct Lent {
    Grant grant;
    platform::Descriptor end;
    uint64_t connection = 0;
    // The end, and copies of those of the grant.
    Result<platform::SharedDescriptors> take_descriptors();
  };
  // Takes what importers have sent so far, so that a release sent before an event that the caller saw counts
  // here.
  void catch_up() noexcept;
  Result<Lent> lend(const Token& token, uint64_t lease_ns);
  void take_back(uint64_t connection) noexcept;
  // Which processes hold what of this instance; 0 is one that the system does not show.
  Exports::Holders holders() const;
  // Ends all leases of the export that have not been claimed.
  void end_leases(const Token& token) noexcept;

  // ---- for rings ----

  // Adds 1 to the word and wakes its waiters when another process ends or the thread stops.
  void add_sleeper(std::atomic<uint32_t>& word);
  void remove_sleeper(const std::atomic<uint32_t>& word) noexcept;
  void wake_sleepers() noexcept;

  // ---- for hubs ----

  Result<uint64_t> open_hub(HubRequest request);
  void close_hub(uint64_t hub) noexcept;
  Result<uint64_t> publish(uint64_t hub, HubTable::Request request);
  Result<void> withdraw(uint64_t hub, const std::string& name, uint64_t version);
  HubCounts counts(uint64_t hub) const;

  // ---- for what asks others ----

  // As platform::connect_to(), and ends when the instance closes. May be called before start(), which the
  // rest needs.
  Result<platform::Descriptor> connect(const std::string& address, platform::Deadline deadline) const;
  Result<void> watch(const std::shared_ptr<ShareClient>& client);
  void forget(const ShareClient& client) noexcept;
  void ignore(int socket) noexcept;
  void set_interest(int socket, uint64_t id, bool to_write) noexcept;
  // Looks again in some milliseconds, for what the kernel held up.
  void look_soon() noexcept;
  // Serves all clients once more, soon after the deadline.
  void look_by(platform::Deadline deadline) noexcept;
  // The connection to an exporter that is who it says; null if there is none.
  std::shared_ptr<SharePeer> find_peer(const Token& instance);
  // Returns the existing peer if another thread was faster.
  std::shared_ptr<SharePeer> add_peer(const Token& instance, std::shared_ptr<SharePeer> peer);
  // Logs what another process did, unless its user has done the same too often. Not to be called with a lock.
  void warn(const char* cause, int32_t process, uint32_t user, const char* why) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Role { kGreeted, kHolder, kLink };
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
  // Who requests a trial. Another user's process may have the same number in another namespace.
  struct Asker {
    uint32_t user = 0;
    int32_t process = 0;
    auto operator<=>(const Asker&) const = default;
  };
  struct Connection {
    explicit Connection(platform::Descriptor socket) : channel(std::move(socket)) {}
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
    std::vector<Wait> waits;
    uint32_t trials = 0;              // so far
    std::shared_ptr<Incoming> trial;  // that waits or runs; one that waits is dropped with its link
    platform::Deadline message_until = platform::Deadline::max();  // HELLO, or a message that has begun
    platform::Deadline output_until = platform::Deadline::max();
    platform::Deadline lease_until = platform::Deadline::max();
    platform::Deadline reserve_until = platform::Deadline::max();
    uint32_t interest = 0;
    bool doomed = false;
  };
  struct Hub {
    explicit Hub(HubRequest given) : request(std::move(given)), table(request.limits) {}
    HubRequest request;
    // The limit of descriptors follows that of the process.
    const bool by_process = request.limits.descriptors == 0;
    std::shared_ptr<KeeperStore> store;
    HubTable table;
    uint64_t refused = 0;
  };
  // A connection that has ended before the other side had read all descriptors. They count until that closes
  // it.
  struct Undrained {
    Channel channel;
    uint64_t hub = 0;
    int32_t process = 0;
    uint32_t user = 0;
  };
  struct Listening {
    platform::Listener listener;
    uint64_t hub = 0;
  };

  Result<void> add_to_poll(int socket, uint64_t id, uint32_t events);
  Result<uint64_t> add_listener(platform::Listener listener, uint64_t hub);
  Result<Connection*> add_connection(platform::Descriptor socket, Role role, uint64_t hub);
  Result<platform::Descriptor> hand_out(Role role, uint64_t hub, Connection** ours);
  void wake() noexcept;
  Result<void> can_share() const;

  void keep_for_a_while(std::shared_ptr<SharePeer> peer);
  std::vector<std::shared_ptr<SharePeer>> take_unused() noexcept;

  std::shared_ptr<ShareClient> take_client() noexcept;

  void run() noexcept;
  void take_event(uint64_t id, std::vector<std::shared_ptr<ShareClient>>& clients);
  void take_notes();
  void look_at_times();
  void look_until(platform::Deadline deadline);
  void accept_all(Listening& listening);
  void pause_listeners(bool pause) noexcept;
  bool free_reserve(uint64_t hub) noexcept;
  void lend_reserve(Connection& connection);
  bool is_greeting_on_reserve() const;
  void fill_reserve() noexcept;
  Result<void> admit(const platform::Descriptor& socket, uint64_t hub, platform::PeerFacts& facts);
  FairShare links_of(uint64_t hub, const platform::PeerFacts& facts) const;

  void take_turn(Connection& connection);
  // Returns how many messages it took.
  int serve(Connection& connection);
  Result<void> take(Connection& connection, Incoming incoming);
  Result<void> take_hello(Connection& connection, const Message& message);
  Result<void> take_claim(Connection& connection, const Message& message);
  Result<void> take_release(Connection& connection, const Token& token);
  Result<void> take_request(Connection& connection, Incoming incoming);
  Result<void> take_trial(Connection& connection, Incoming incoming);
  void finish_trial(uint64_t connection, Asker asker, Message reply) noexcept;
  Result<Message> fetch(Connection& connection, Hub& hub, const Message& message,
                        platform::SharedDescriptors* descriptors);
  void let_claim(const Connection& link, const ShareHandle& handle);
  Result<uint64_t> keep(Connection& connection, Hub& hub, Incoming incoming);
  Result<void> restore(Hub& hub);
  static void leave_store(Hub& hub) noexcept;
  Result<void> withdraw_from(Hub& hub, const std::string& name, uint64_t version, uint32_t user,
                             std::vector<Token>* gone);
  void answer(Connection& connection, Message message, platform::SharedDescriptors descriptors = {}) noexcept;
  void refuse(Connection& connection, uint64_t number, const Error& error);
  // Refuses, and hangs up.
  void turn_away(Connection& connection, uint64_t number, const Error& error);
  void tell_waiting(uint64_t hub, const std::string& name) noexcept;
  void tell_withdrawn(uint64_t hub, const Token& token) noexcept;
  void have_gone(uint64_t hub, const std::vector<Token>& tokens) noexcept;
  void tell_all_withdrawn(Connection& connection) noexcept;
  void update(Connection& connection) noexcept;
  size_t window_of(Connection& connection);
  Connection& worst_reader(Connection& waiting);
  void drop_leaving() noexcept;
  void doom(Connection& connection, const Error* error) noexcept;
  void bury() noexcept;
  void leave_undrained(Connection& connection) noexcept;
  void unclaim(Connection& connection) noexcept;
  Hub* find_hub(uint64_t id) noexcept;
  // What messages that have begun, and what is kept, may each take; as the limit of the process is now.
  static uint32_t descriptors_of(Hub& hub);
  void note(std::string line);
  void note(const char* cause, int32_t process, uint32_t user, const char* why);
  void drop_drained() noexcept;

  Context& context_;
  const AnswerTrial answer_trial_;
  platform::Descriptor poll_;
  platform::Descriptor wake_event_;
  platform::Descriptor stop_event_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
  std::atomic<bool> running_{false};
  std::atomic<bool> look_soon_{false};

  std::mutex notes_mutex_;  // guards the notes; nothing is taken under it
  std::vector<Token> notes_;

  std::mutex sleepers_mutex_;  // guards the sleepers; nothing is taken under it
  std::vector<std::atomic<uint32_t>*> sleepers_;

  mutable std::mutex mutex_;  // guards the rest
  bool stopped_ = false;
  bool paused_ = false;  // no descriptor is free to accept connections
  // Descriptors reserved by a keeper for one link, so that it can withdraw something when no other is free.
  platform::Descriptors reserve_;
  uint64_t on_reserve_ = 0;  // the connection that has borrowed the reserve
  uint64_t last_id_ = 0;
  platform::Deadline next_look_ = platform::Deadline::max();
  std::map<uint64_t, Listening> listeners_;
  std::map<uint64_t, Hub> hubs_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  // A thread for the trials of one process. They wait for that process, and hold up no other one's.
  struct Lane {
    Background thread;
    uint64_t count = 0;  // that wait or run
  };
  std::map<Asker, Lane> lanes_;
  // Messages that may still be handled for a user in this round.
  struct Turn {
    uint32_t user = 0;
    int left = 0;
  };
  std::vector<Turn> turns_;
  bool any_doomed_ = false;
  std::list<Undrained> undrained_;
  std::map<uint64_t, std::weak_ptr<ShareClient>> clients_;
  std::map<Token, std::weak_ptr<SharePeer>> peers_;
  // Peers of recent imports, kept because connecting again takes longer than an import.
  struct Recent {
    std::shared_ptr<SharePeer> peer;
    platform::Deadline until;
  };
  std::vector<Recent> recent_;
  std::vector<std::string> lines_;  // for the log, which is called without the lock
  Warnings warnings_;
};

}  // namespace gpumem::core
