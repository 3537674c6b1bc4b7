// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <new>
#include <system_error>
#include <utility>

#include "base/caught.h"
#include "base/cleanup.h"
#include "core/object/context.h"
#include "core/object/log.h"
#include "core/share/peer/client.h"
#include "platform/identity.h"
#include "platform/pages.h"
#include "platform/shared_word.h"
#include "platform/thread.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint32_t kNever = 0;  // epoll reports a hang-up all the same
constexpr uint32_t kToRead = EPOLLIN;
constexpr uint32_t kToWrite = EPOLLOUT;
// There is room all the time; this tells when some of what was sent has been read.
constexpr uint32_t kToGoOn = EPOLLOUT | EPOLLET;
constexpr size_t kConnectionsMax = 1024;  // besides those of hubs
constexpr size_t kClaimsMax = 4096;       // different ones of a connection
constexpr size_t kWaitsMax = 64;          // of a connection
constexpr uint32_t kTrialsMax = 64;       // of a connection, in its life
constexpr int kLanesMax = 16;             // of a user
constexpr size_t kLinesMax = 16;
constexpr uint64_t kOtherDescriptors = 64;    // of the process, beside those of its hubs
constexpr uint64_t kUsualDescriptors = 1024;  // that a process may have, unless somebody raises that
constexpr uint64_t kLinkDescriptors = 3;      // of a link, with its holder and an answer
constexpr size_t kReserve = 3;                // what a link takes until it is welcome
constexpr size_t kRecentMax = 8;              // connections that are kept for the next import
constexpr auto kRecentTime = std::chrono::seconds(1);
constexpr auto kSoon = std::chrono::milliseconds(5);
constexpr auto kPauseTime = std::chrono::milliseconds(100);
// How often to ask whether what ended connections have left unread has been read.
constexpr auto kDrainTime = std::chrono::milliseconds(100);

Error violation(const char* what) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "it broke the protocol: %s", what);
}

Error no_descriptor_for(const char* what) {
  return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                    "of the %" PRIu64
                    " descriptors that the process of the hub may have (RLIMIT_NOFILE) none is free for %s; "
                    "withdraw something, or raise `ulimit -n` there",
                    platform::descriptor_limit(), what);
}

Result<platform::Descriptor> checked(int made, const char* entry_point) {
  if (made >= 0) return platform::Descriptor(made);
  if (errno == EMFILE || errno == ENFILE) return platform::no_descriptor(errno, entry_point);
  return platform::system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, entry_point,
                                "cannot start the sharing thread");
}

// Files must be as large as the handle says and sealed at that size, because the keeper counts by it. A
// device file has no size; the driver knows it.
Result<void> check_descriptors(const ShareHandle& handle, const platform::Descriptors& descriptors) {
  std::vector<int> files;
  for (const platform::Descriptor& descriptor : descriptors) {
    const platform::DescriptorFacts facts = platform::describe(descriptor.get());
    if (!facts.open || !facts.shareable)
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "a descriptor is not one of memory");
    files.push_back(descriptor.get());
  }
  auto sizes = block_sizes(handle, &files);
  if (!sizes) return sizes.error();
  for (size_t index = 0; index < files.size(); ++index) {
    const platform::DescriptorFacts facts = platform::describe(files[index]);
    if (!facts.regular && handle.backend != GPUMEM_BACKEND_HOST) continue;
    if (!facts.sealed || facts.size != (*sizes)[index]) {
      return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                        "descriptor %zu is not of a memory file of %" PRIu64
                        " bytes whose size cannot change, as the share handle says",
                        index, (*sizes)[index]);
    }
  }
  return {};
}

gpumem_access lesser(gpumem_access a, gpumem_access b) { return std::min(a, b); }

// A limit is reached here, not where the text is read.
Message refusal_of(const Error& error) {
  Message message = message_of(MessageType::kRefused);
  message.status = error.status;
  if (error.status == GPUMEM_ERROR_LIMIT_EXCEEDED)
    message.text = "process " + std::to_string(platform::process_id()) + " refuses it: ";
  message.text += error.message;
  return message;
}

}  // namespace

// ---- the thread ----

// Whether a device shares anything. The capability says why not.
Result<void> ShareServer::can_share() const {
  Result<void> why;
  for (const auto& device : Devices::of(context_)) {
    if (device->backend().sharing() != nullptr) return {};
    if (why) why = device->need(GPUMEM_CAPABILITY_SHARE_CHANNEL);
  }
  return why;
}

Result<void> ShareServer::start() {
  if (running_.load(std::memory_order_acquire)) return {};
  GPUMEM_TRY(can_share());
  const std::lock_guard lock(mutex_);
  if (stopped_) return instance_closed();
  if (thread_.joinable()) return {};
  auto poll = checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  if (!poll) return poll.error();
  auto wake_event = checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  if (!wake_event) return wake_event.error();
  auto stop_event = checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  if (!stop_event) return stop_event.error();
  auto listener = platform::Listener::open(abstract_address(Exports::of(context_).instance_id()), 0600);
  if (!listener) return listener.error();
  poll_ = std::move(*poll);
  wake_event_ = std::move(*wake_event);
  stop_event_ = std::move(*stop_event);
  Cleanup undo([this] {
    listeners_.clear();
    poll_ = {};
    wake_event_ = {};
    stop_event_ = {};
  });
  GPUMEM_TRY(add_to_poll(wake_event_.get(), kWakeId, kToRead));
  auto added = add_listener(std::move(*listener), 0);
  if (!added) return added.error();
  recent_.reserve(kRecentMax);
  thread_ = platform::start_thread([this] { run(); });
  undo.dismiss();
  running_.store(true, std::memory_order_release);
  return {};
}

void ShareServer::stop() noexcept {
  const platform::ClosingTogether together;
  std::vector<Recent> recent;  // released after unlocking
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    recent.swap(recent_);
    running_.store(false, std::memory_order_release);
  }
  wake_sleepers();
  if (!thread_.joinable()) return;
  wake();
  thread_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, connection] : connections_) {
      platform::hang_up(connection->channel.socket());
      unclaim(*connection);
    }
    connections_.clear();
    undrained_.clear();
    listeners_.clear();
    for (auto& [id, hub] : hubs_)
      leave_store(hub);
    hubs_.clear();
    reserve_.clear();
  }
  // One by one, because a list of them needs memory, and without it their calls could wait for ever.
  while (const auto client = take_client())
    client->abandon(instance_closed());
  // Stop without the lock, because trials take it. No lane is added any more.
  for (auto& [asker, lane] : lanes_)
    lane.thread.stop();
  const uint64_t one = 1;
  (void)!write(stop_event_.get(), &one, sizeof one);
}

// Once it is stopped: one that lives, which is then not among the clients any more. Null: there is none.
std::shared_ptr<ShareClient> ShareServer::take_client() noexcept {
  std::shared_ptr<ShareClient> client;  // released after unlocking, as its end takes the lock
  const std::lock_guard lock(mutex_);
  while (client == nullptr && !clients_.empty()) {
    client = clients_.begin()->second.lock();
    clients_.erase(clients_.begin());
  }
  return client;
}

void ShareServer::wake() noexcept {
  const uint64_t one = 1;
  (void)!write(wake_event_.get(), &one, sizeof one);
}

void ShareServer::look_soon() noexcept {
  if (!look_soon_.exchange(true)) wake();
}

void ShareServer::look_by(platform::Deadline deadline) noexcept {
  const std::lock_guard lock(mutex_);
  look_until(deadline);
}

void ShareServer::look_until(platform::Deadline deadline) {
  if (deadline >= next_look_) return;
  next_look_ = deadline;
  if (!is_this_thread()) wake();
}

namespace {

void log_lines(const std::vector<std::string>& lines) noexcept {
  for (const std::string& line : lines)
    log(GPUMEM_LOG_WARNING, "%s", line.c_str());
}

}  // namespace

void ShareServer::run() noexcept {
  thread_id_ = std::this_thread::get_id();
  std::array<epoll_event, 64> events{};
  for (;;) {
    int timeout = -1;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) break;
      if (next_look_ != platform::Deadline::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_look_ - Clock::now()).count();
        timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
      }
    }
    const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    platform::ClosingTogether together;  // without the lock, and in one thread what many others have sent
    std::vector<std::shared_ptr<ShareClient>> clients;  // released after unlocking
    std::vector<std::string> lines;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) break;
      try {
        turns_.clear();
        take_notes();
        for (int i = 0; i < count; ++i)
          take_event(events.at(static_cast<size_t>(i)).data.u64, clients);
        if (look_soon_.exchange(false)) look_until(Clock::now() + kSoon);
        if (next_look_ <= Clock::now()) {
          // First, because the end of one that does not fit would take the lock again.
          clients.reserve(clients.size() + clients_.size());
          look_at_times();
          // Resume what was held up.
          for (const auto& [id, client] : clients_) {
            if (auto alive = client.lock()) clients.push_back(std::move(alive));
          }
        }
      } catch (const std::bad_alloc&) {
        // Retry with the next event.
      }
      bury();
      fill_reserve();
      lines.swap(lines_);
    }
    if (together.close()) {
      const std::lock_guard lock(mutex_);
      fill_reserve();  // with what is free now
    }
    for (const auto& client : clients)
      client->serve();
    std::vector<std::shared_ptr<SharePeer>> unused;
    {
      const std::lock_guard lock(mutex_);
      if (!recent_.empty()) unused = take_unused();
    }
    log_lines(lines);
  }
  // Log the lines of a hub that was closed at once.
  std::vector<std::string> rest;
  {
    const std::lock_guard lock(mutex_);
    rest.swap(lines_);
    try {
      warnings_.add_left_out(Clock::time_point::max(), rest);
    } catch (const std::bad_alloc&) {
      // Only lines are lost.
    }
  }
  log_lines(rest);
}

void ShareServer::take_event(uint64_t id, std::vector<std::shared_ptr<ShareClient>>& clients) {
  if (id == kWakeId) {
    uint64_t times = 0;
    (void)!read(wake_event_.get(), &times, sizeof times);
  } else if (const auto connection = connections_.find(id); connection != connections_.end()) {
    take_turn(*connection->second);
  } else if (const auto listening = listeners_.find(id); listening != listeners_.end()) {
    accept_all(listening->second);
  } else if (const auto client = clients_.find(id); client != clients_.end()) {
    clients.reserve(clients.size() + 1);
    if (auto alive = client->second.lock()) clients.push_back(std::move(alive));
  }
}

void ShareServer::withdrawn(const Token& token) noexcept {
  if (!running_.load(std::memory_order_acquire)) return;
  try {
    const std::lock_guard lock(notes_mutex_);
    notes_.push_back(token);
  } catch (const std::bad_alloc&) {
    return;  // importers learn it when they ask again
  }
  wake();
}

void ShareServer::catch_up() noexcept {
  if (!running_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  try {
    for (const auto& [id, connection] : connections_)
      serve(*connection);
  } catch (const std::bad_alloc&) {
    // The sharing thread takes the rest.
  }
  bury();
}

void ShareServer::take_notes() {
  std::vector<Token> notes;
  {
    const std::lock_guard lock(notes_mutex_);
    notes.swap(notes_);
  }
  if (notes.empty()) return;
  for (const Token& token : notes) {
    for (auto& [id, hub] : hubs_)
      hub.table.remove(token);
  }
  have_gone(0, notes);
}

// Ends what has taken too long, and finds the next time to look.
void ShareServer::look_at_times() {
  const auto now = Clock::now();
  next_look_ = platform::Deadline::max();
  if (paused_) pause_listeners(is_greeting_on_reserve());
  if (paused_) look_until(now + kPauseTime);
  for (const auto& [id, connection] : connections_) {
    if (connection->doomed) continue;
    if (id == on_reserve_ && connection->reserve_until <= now) {
      const Error full = no_descriptor_for("a link that stays");
      doom(*connection, &full);
      // End its holder too: it has claimed nothing yet, or only from a keeper that cannot serve anyone.
      if (const auto holder = connections_.find(connection->partner); holder != connections_.end())
        doom(*holder->second, nullptr);
      continue;
    }
    if (connection->channel.is_held_up()) serve(*connection);
    if (connection->doomed) continue;
    if (connection->message_until <= now || connection->output_until <= now) {
      const bool waits = connection->message_until > now && connection->channel.is_held_up();
      Connection& late = waits ? worst_reader(*connection) : *connection;
      const Error why =
          make_error(GPUMEM_ERROR_BUSY,
                     !waits ? "it took too long for a message"
                     : late.channel.unread() != 0
                         ? "it does not read the descriptors that it asked for"
                         : "no descriptors can be sent to it, because ended links of its user, or peers of "
                           "other processes of this one's user, have not read what they asked for");
      doom(late, &why);
      if (&late == connection.get()) continue;
      connection->output_until = platform::deadline_after(connection->time_ns);
    }
    if (connection->lease_until <= now) {
      connection->lease_until = platform::Deadline::max();
      if (connection->lent) Exports::of(context_).unclaim(*std::exchange(connection->lent, std::nullopt));
      if (connection->claims.empty()) doom(*connection, nullptr);
    }
    look_until(std::min({connection->message_until, connection->output_until, connection->lease_until}));
    if (id == on_reserve_) look_until(connection->reserve_until);
    if (connection->channel.is_held_up()) look_until(now + kSoon);
  }
  for (const Recent& one : recent_) {
    if (one.until > now) look_until(one.until);
  }
  drop_drained();
  if (!undrained_.empty()) look_until(now + kDrainTime);
  warnings_.add_left_out(now, lines_);
  look_until(warnings_.next());
}

// ---- who connects ----

Result<void> ShareServer::add_to_poll(int socket, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, socket, &event) == 0) return {};
  const gpumem_status status = errno == EPERM    ? GPUMEM_ERROR_INVALID_ARGUMENT
                               : errno == ENOMEM ? GPUMEM_ERROR_OUT_OF_HOST_MEMORY
                                                 : GPUMEM_ERROR_LIMIT_EXCEEDED;
  return platform::system_error(status, errno, "epoll_ctl",
                                errno == ENOSPC ? "the user watches too many files; raise the limit (sysctl "
                                                  "fs.epoll.max_user_watches)"
                                                : "cannot watch a connection");
}

Result<uint64_t> ShareServer::add_listener(platform::Listener listener, uint64_t hub) {
  const uint64_t id = ++last_id_;
  GPUMEM_TRY(add_to_poll(listener.get(), id, paused_ ? kNever : kToRead));
  listeners_.emplace(id, Listening{std::move(listener), hub});
  return id;
}

Result<ShareServer::Connection*> ShareServer::add_connection(platform::Descriptor socket, Role role,
                                                             uint64_t hub) {
  auto made = std::make_unique<Connection>(std::move(socket));
  made->id = ++last_id_;
  made->role = role;
  made->hub = hub;
  made->interest = kToRead;
  const Hub* const of = find_hub(hub);
  made->time_ns = of != nullptr ? of->request.limits.timeout_ns : kMessageTime;
  if (role == Role::kGreeted) made->message_until = platform::deadline_after(made->time_ns);
  look_until(made->message_until);
  Connection* const added = made.get();
  const uint64_t id = made->id;
  connections_.emplace(id, std::move(made));
  if (auto watched = add_to_poll(added->channel.socket(), id, kToRead); !watched) {
    connections_.erase(id);
    return watched.error();
  }
  return added;
}

// Returns one end of a new connection, and serves the other.
Result<platform::Descriptor> ShareServer::hand_out(Role role, uint64_t hub, Connection** ours) {
  auto ends = platform::socket_pair();
  if (!ends) return ends.error();
  auto added = add_connection(std::move(ends->ours), role, hub);
  if (!added) return added.error();
  *ours = *added;
  (*ours)->user = platform::own_user();
  return std::move(ends->theirs);
}

void ShareServer::pause_listeners(bool pause) noexcept {
  paused_ = pause;
  for (const auto& [id, listening] : listeners_) {
    epoll_event event{};
    event.events = pause ? kNever : kToRead;
    event.data.u64 = id;
    (void)epoll_ctl(poll_.get(), EPOLL_CTL_MOD, listening.listener.get(), &event);
  }
}

// Frees the reserved descriptors for a link to a keeper. False if they are lent.
bool ShareServer::free_reserve(uint64_t hub_id) noexcept {
  const Hub* const hub = find_hub(hub_id);
  if (hub == nullptr || !hub->request.keeper || reserve_.size() < kReserve) return false;
  reserve_.clear();
  return true;
}

// Lends the reserve for a limited time, in which the link should withdraw something.
void ShareServer::lend_reserve(Connection& connection) {
  on_reserve_ = connection.id;
  connection.reserve_until = platform::deadline_after(connection.time_ns);
  look_until(connection.reserve_until);
}

// Whether a connection is still greeting on the reserve, so that no other may take it.
bool ShareServer::is_greeting_on_reserve() const {
  const auto found = connections_.find(on_reserve_);
  return found != connections_.end() && found->second->role == Role::kGreeted && !found->second->doomed;
}

void ShareServer::fill_reserve() noexcept {
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
    auto one = platform::duplicate(wake_event_.get());
    if (!one) return;
    reserve_.push_back(std::move(*one));
  }
  on_reserve_ = 0;
}

void ShareServer::accept_all(Listening& listening) {
  for (int i = 0; i < kAtOnce && !paused_; ++i) {
    auto socket = listening.listener.accept();
    const bool full = !socket && socket.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED;
    const bool on_reserve = full && free_reserve(listening.hub);
    if (on_reserve) {
      socket = listening.listener.accept();
      pause_listeners(true);
      look_until(Clock::now() + kPauseTime);
    }
    if (!socket) {
      // Pause, or waiting connections would wake the thread again and again.
      note("nobody can connect for now", 0, Warnings::kUnknown, socket.error().message);
      pause_listeners(true);
      look_until(Clock::now() + kPauseTime);
      return;
    }
    if (!*socket) return;
    platform::PeerFacts facts;
    if (auto admitted = admit(*socket, listening.hub, facts); !admitted) {
      if (Hub* const hub = find_hub(listening.hub)) ++hub->refused;
      note("refused", facts.process, facts.user, admitted.error().message);
      (void)platform::send_some(socket->get(), encode_message(refusal_of(admitted.error())), {});
      continue;
    }
    auto added = add_connection(std::move(*socket), Role::kGreeted, listening.hub);
    if (!added) {
      note("refused", facts.process, facts.user, added.error().message);
      continue;
    }
    (*added)->process = facts.process;
    (*added)->user = facts.user;
    if (on_reserve) lend_reserve(**added);
  }
}

// Those of users; at the exporter's own address, where all are of one user, of processes. A holder whose link
// has ended counts as a link, and so does an ended link with unread descriptors.
FairShare ShareServer::links_of(uint64_t hub, const platform::PeerFacts& facts) const {
  const auto who = [&](uint32_t user, int32_t process) {
    return hub != 0 ? user : static_cast<uint32_t>(process);
  };
  FairShare links(who(facts.user, facts.process));
  for (const auto& [id, connection] : connections_) {
    const bool counts = connection->role != Role::kHolder || !connections_.contains(connection->partner);
    if (connection->hub == hub && !connection->doomed && counts)
      links.add(who(connection->user, connection->process), 1);
  }
  for (const Undrained& one : undrained_) {
    if (one.hub == hub) links.add(who(one.user, one.process), 1);
  }
  return links;
}

Result<void> ShareServer::admit(const platform::Descriptor& socket, uint64_t hub_id,
                                platform::PeerFacts& facts) {
  auto found = platform::peer_of(socket.get());
  if (!found) return found.error();
  facts = std::move(*found);
  const Hub* const hub = find_hub(hub_id);
  bool known = facts.user == platform::own_user();
  if (hub != nullptr) {
    const HubRequest& request = hub->request;
    const auto has = [](const std::vector<uint32_t>& all, uint32_t one) {
      return std::find(all.begin(), all.end(), one) != all.end();
    };
    known = known || has(request.users, facts.user) ||
            std::any_of(facts.groups.begin(), facts.groups.end(),
                        [&](uint32_t group) { return has(request.groups, group); });
  }
  if (!known) return make_error(GPUMEM_ERROR_PERMISSION_DENIED, "user %u may not connect here", facts.user);
  const size_t most = hub != nullptr ? hub->request.limits.links : kConnectionsMax;
  const auto check_place = [&]() -> Result<void> {
    const FairShare links = links_of(hub_id, facts);
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
          "%s %" PRIu64
          " connections to the exporter, which takes %zu of all processes; close some instances",
          facts.process != 0 ? ("process " + std::to_string(facts.process) + " has").c_str()
                             : "processes that the exporter does not see (of other namespaces) have",
          links.own(), most);
    }
    if (hub == nullptr || !is_shared(hub->request)) return {};
    return links.check("links_max", most, 1, 0, "close a link, free what was imported by closed ones");
  };
  if (check_place()) return {};
  drop_drained();
  // Some may have hung up just now.
  for (const auto& [id, connection] : connections_) {
    if (connection->hub == hub_id) serve(*connection);
  }
  return check_place();
}

// ---- what they say ----

// However many connections a user has, each round handles as many messages of all of them as of one. What is
// left makes epoll report them again, after those that it has not reported yet.
void ShareServer::take_turn(Connection& connection) {
  auto turn = std::find_if(turns_.begin(), turns_.end(),
                           [&](const Turn& one) { return one.user == connection.user; });
  if (turn == turns_.end()) turn = turns_.insert(turn, {connection.user, kAtOnce});
  if (turn->left > 0) turn->left -= serve(connection);
}

int ShareServer::serve(Connection& connection) {
  int count = 0;
  if (connection.doomed) return count;
  try {
    if (connection.channel.has_output()) connection.channel.set_window(window_of(connection));
    if (auto flushed = connection.channel.flush(); !flushed) {
      doom(connection, nullptr);
      return count;
    }
    // Without sending or receiving, nothing else tells, and epoll reports it again and again.
    if (connection.channel.is_held_up() && platform::has_hung_up(connection.channel.socket())) {
      doom(connection, nullptr);
      return count;
    }
    while (count < kAtOnce && !connection.doomed && !connection.channel.has_output()) {
      Hub* const hub = find_hub(connection.hub);
      // Limit the descriptors of all incomplete messages together.
      uint32_t room = hub != nullptr && connection.role == Role::kLink ? kTrialDescriptorsMax : 0;
      if (hub != nullptr && hub->request.keeper && connection.role == Role::kLink) {
        FairShare begun(connection.user);
        for (const auto& [id, other] : connections_) {
          if (other->hub == connection.hub && other.get() != &connection)
            begun.add(other->user, other->channel.held());
        }
        const uint64_t most = descriptors_of(*hub);
        const bool shared = is_shared(hub->request);
        const uint64_t share = shared ? begun.of(most) : most;
        room = static_cast<uint32_t>(share - std::min(shared ? begun.own() : begun.all(), share));
      }
      auto incoming = connection.channel.receive(room);
      if (!incoming) {
        const bool left = incoming.error().status == GPUMEM_ERROR_PEER_GONE;
        const bool other_version = incoming.error().status == GPUMEM_ERROR_UNSUPPORTED;
        if (other_version && connection.role == Role::kGreeted) {
          turn_away(connection, 0, incoming.error());
        } else {
          doom(connection, left ? nullptr : &incoming.error());
        }
        return count;
      }
      if (!*incoming) break;
      ++count;
      connection.message_until = platform::Deadline::max();
      if (auto taken = take(connection, std::move(**incoming)); !taken) {
        doom(connection, &taken.error());
        return count;
      }
    }
  } catch (const std::bad_alloc&) {
    doom(connection, nullptr);
    return count;
  }
  // Limit the time of a message from its first packet on.
  if (connection.role != Role::kGreeted) {
    if (connection.channel.begun() != nullptr && connection.message_until == platform::Deadline::max()) {
      connection.message_until = platform::deadline_after(connection.time_ns);
    }
  }
  update(connection);
  return count;
}

// After something was sent or received.
void ShareServer::update(Connection& connection) noexcept {
  if (connection.doomed) return;
  const Channel& channel = connection.channel;
  if (!channel.has_output()) {
    connection.output_until = platform::Deadline::max();
  } else if (connection.output_until == platform::Deadline::max()) {
    connection.output_until = platform::deadline_after(connection.time_ns);
  }
  if (channel.is_held_up()) look_until(Clock::now() + kSoon);
  look_until(std::min(connection.message_until, connection.output_until));
  // Do not read from a connection that does not read its answers.
  const uint32_t wanted = !channel.has_output() ? kToRead : channel.is_held_up() ? kToGoOn : kToWrite;
  if (std::exchange(connection.interest, wanted) == wanted) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = connection.id;
  (void)epoll_ctl(poll_.get(), EPOLL_CTL_MOD, channel.socket(), &event);
}

void ShareServer::drop_drained() noexcept {
  std::erase_if(undrained_, [](Undrained& one) { return one.channel.unread() == 0; });
}

// The kernel limits the unread descriptors of all processes of this user together, and looks at the limit of
// each that sends. So only an eighth of what a process usually may have is for all connections, a fair share
// of it for each user, and of that a fair share for each process. The first one of a connection does not
// count, while there is room: whatever others leave unread, who reads can connect and goes on.
size_t ShareServer::window_of(Connection& connection) {
  drop_drained();
  FairShare of_users(connection.user);
  FairShare of_processes(static_cast<uint32_t>(connection.process));
  uint64_t all = 0;
  const auto add = [&](uint32_t user, int32_t process, uint64_t unread) {
    all += unread;
    const uint64_t counted = unread - std::min<uint64_t>(unread, 1);
    of_users.add(user, counted);
    if (user == connection.user) of_processes.add(static_cast<uint32_t>(process), counted);
  };
  for (const auto& [id, other] : connections_) {
    if (other.get() != &connection) add(other->user, other->process, other->channel.unread());
  }
  for (Undrained& one : undrained_)
    add(one.user, one.process, one.channel.unread());
  const uint64_t limit = std::min(platform::descriptor_limit(), kUsualDescriptors);
  const uint64_t share = of_processes.of(of_users.of(limit / 8));
  return share - std::min(of_processes.own(), share) + (all < limit / 4 ? 1 : 0);
}

// The connection with the most unread descriptors, among those of the user of `waiting`.
ShareServer::Connection& ShareServer::worst_reader(Connection& waiting) {
  Connection* worst = &waiting;
  for (const auto& [id, other] : connections_) {
    if (!other->doomed && other->user == waiting.user && other->channel.unread() > worst->channel.unread())
      worst = other.get();
  }
  return *worst;
}

// Answers that wait keep the descriptors of what has been withdrawn. Hangs up on all whose answers do, if
// those are too many of the descriptors that this process may have.
void ShareServer::drop_leaving() noexcept {
  struct Left {
    long waiting = 0;
    bool is_all = false;  // nobody has them but answers that wait
  };
  try {
    std::map<platform::SharedDescriptors, Left> found;
    const auto for_each = [&](const auto& see) {
      for (const auto& [id, connection] : connections_) {
        for (const Outgoing& waiting : connection->channel.output()) {
          if (!connection->doomed && waiting.left() != 0) see(*connection, waiting.descriptors());
        }
      }
    };
    for_each([&](Connection&, const auto& descriptors) { ++found[descriptors].waiting; });
    uint64_t count = 0;
    for (auto& [descriptors, left] : found) {
      left.is_all = descriptors.use_count() == left.waiting + 1;  // with this map
      if (left.is_all) count += descriptors->size();
    }
    if (count <= platform::descriptor_limit() / 8) return;
    const Error why = make_error(GPUMEM_ERROR_BUSY, "it does not read what it asked for, which has gone");
    for_each([&](Connection& connection, const auto& descriptors) {
      if (found.at(descriptors).is_all) doom(connection, &why);
    });
  } catch (const std::bad_alloc&) {
    // They stay until those connections are late.
  }
}

// Hangs up if the answer cannot be sent, so that the peer asks again.
void ShareServer::answer(Connection& connection, Message message,
                         platform::SharedDescriptors descriptors) noexcept {
  if (connection.doomed) return;
  bool sent = false;
  try {
    const bool counts = descriptors != nullptr && !descriptors->empty();
    if (counts) connection.channel.set_window(window_of(connection));
    sent = static_cast<bool>(connection.channel.send(std::move(message), std::move(descriptors)));
  } catch (const std::bad_alloc&) {
    // Nothing was sent, not even in part.
  }
  if (sent) {
    update(connection);
  } else {
    doom(connection, nullptr);
  }
}

void ShareServer::refuse(Connection& connection, uint64_t number, const Error& error) {
  // Do not count requests for what does not exist.
  const bool counts = error.status == GPUMEM_ERROR_PERMISSION_DENIED ||
                      error.status == GPUMEM_ERROR_LIMIT_EXCEEDED ||
                      error.status == GPUMEM_ERROR_INVALID_ARGUMENT;
  if (Hub* const hub = find_hub(connection.hub); hub != nullptr && counts) ++hub->refused;
  Message message = refusal_of(error);
  message.number = number;
  answer(connection, std::move(message));
}

void ShareServer::turn_away(Connection& connection, uint64_t number, const Error& error) {
  refuse(connection, number, error);
  note("refused", connection.process, connection.user, error.message);
  doom(connection, nullptr);
}

Result<void> ShareServer::take(Connection& connection, Incoming incoming) {
  const Message& message = incoming.message;
  switch (connection.role) {
    case Role::kGreeted:
      if (message.type != MessageType::kHello) return violation("it did not begin with HELLO");
      return take_hello(connection, message);
    case Role::kHolder:
      if (message.type == MessageType::kClaim) return take_claim(connection, message);
      if (message.type == MessageType::kRelease) return take_release(connection, message.token);
      return violation("a holder sent what is for others");
    case Role::kLink:
      break;
  }
  return take_request(connection, std::move(incoming));
}

Result<void> ShareServer::take_hello(Connection& connection, const Message& message) {
  Message welcome = message_of(MessageType::kWelcome);
  welcome.number = message.number;
  Hub* const hub = find_hub(connection.hub);
  const Token& own = Exports::of(context_).instance_id();
  platform::Descriptors ends;
  if (hub == nullptr) {
    if (message.token != own) {
      const Error other = make_error(GPUMEM_ERROR_STALE_HANDLE, "the instance that it asks for is not here");
      turn_away(connection, message.number, other);
      return {};
    }
    welcome.token = own;
    connection.role = Role::kHolder;
  } else {
    const auto& secret = hub->request.secret;
    if (!secret.empty() && !equal_secrets(secret, message.secret)) {
      const Error wrong =
          make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                     message.secret.empty() ? "the hub asks for a token; pass its token"
                                            : "the token is not that of the hub; pass its token");
      turn_away(connection, message.number, wrong);
      return {};
    }
    Connection* holder = nullptr;
    auto end = hand_out(Role::kHolder, connection.hub, &holder);
    if (!end && end.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED && free_reserve(connection.hub)) {
      lend_reserve(connection);
      end = hand_out(Role::kHolder, connection.hub, &holder);
    }
    if (!end) {
      turn_away(connection, message.number, end.error());
      return {};
    }
    holder->user = connection.user;
    holder->process = connection.process;
    holder->partner = connection.id;
    connection.partner = holder->id;
    ends.push_back(std::move(*end));
    welcome.keeper = hub->request.keeper;
    connection.role = Role::kLink;
  }
  connection.message_until = platform::Deadline::max();
  answer(connection, std::move(welcome), ends.empty() ? nullptr : platform::share(std::move(ends)));
  return {};
}

Result<void> ShareServer::take_claim(Connection& connection, const Message& message) {
  const Token& token = message.token;
  const auto refused = [&](const Error& error) -> Result<void> {
    refuse(connection, message.number, error);
    return {};
  };
  if (!connection.claims.contains(token) && connection.claims.size() >= kClaimsMax) {
    return refused(make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                              "a process may hold %zu exports of another one at once; destroy some imports",
                              kClaimsMax));
  }
  Grant grant;
  bool exported = true;
  gpumem_access access = GPUMEM_ACCESS_READWRITE;
  if (Hub* const hub = find_hub(connection.hub); hub != nullptr) {
    // A part of a ring is published with the ring.
    const Token published = Exports::of(context_).whole_of(token);
    const HubTable::Version* const version = hub->table.find(published);
    const auto fetched = connection.fetched.find(published);
    if (version == nullptr || fetched == connection.fetched.end())
      return refused(
          make_error(GPUMEM_ERROR_STALE_HANDLE, "the hub does not publish it any more; fetch it again"));
    access = fetched->second;
    exported = !version->kept;
    if (version->kept) {
      grant.handle = version->handle;
      grant.handle.access = access;
      grant.handle.offset = 0;
      grant.descriptors = version->descriptors;
    }
  } else if (connection.hub != 0) {
    return refused(make_error(GPUMEM_ERROR_STALE_HANDLE, "the hub is closed"));
  }
  Claim& claim = connection.claims[token];
  if (exported) {
    auto claimed = Exports::of(context_).claim(token);
    if (!claimed) {
      if (claim.empty()) connection.claims.erase(token);
      return refused(claimed.error());
    }
    grant = std::move(*claimed);
    grant.handle.access = lesser(grant.handle.access, access);
  }
  ++(exported ? claim.exported : claim.kept);
  claim.told = false;
  if (connection.lent == token) {
    Exports::of(context_).unclaim(token);
    connection.lent.reset();
    connection.lease_until = platform::Deadline::max();
  }
  Message granted = message_of(MessageType::kGranted);
  granted.number = message.number;
  granted.handle = grant.handle;
  answer(connection, std::move(granted), std::move(grant.descriptors));
  return {};
}

Result<void> ShareServer::take_release(Connection& connection, const Token& token) {
  const auto claimed = connection.claims.find(token);
  if (claimed == connection.claims.end()) return violation("it released what it does not hold");
  // A release does not say of which it is. Memory must outlive all claims that may still be of its export.
  Claim& claim = claimed->second;
  if (claim.kept != 0) {
    --claim.kept;
  } else {
    --claim.exported;
    Exports::of(context_).unclaim(token);
  }
  if (claim.empty()) connection.claims.erase(claimed);
  if (connection.claims.empty() && connection.partner != 0 && !connections_.contains(connection.partner)) {
    connection.lease_until = platform::deadline_after(kLeaseTime);
    look_until(connection.lease_until);
  }
  return {};
}

Result<void> ShareServer::take_request(Connection& connection, Incoming incoming) {
  const Message& message = incoming.message;
  Hub* const hub = find_hub(connection.hub);
  if (hub == nullptr) return violation("its hub is closed");
  const uint64_t number = message.number;
  const auto give = [&](Message&& reply, platform::SharedDescriptors descriptors = {}) -> Result<void> {
    reply.number = number;
    answer(connection, std::move(reply), std::move(descriptors));
    return {};
  };
  const auto refused = [&](const Error& error) -> Result<void> {
    refuse(connection, number, error);
    return {};
  };
  const auto no_keeper = [] {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the hub is no keeper, so only its own process publishes in it; open it with "
                      "GPUMEM_HUB_KEEPER");
  };
  switch (message.type) {
    case MessageType::kEnumerate: {
      auto entry = hub->table.at(message.index);
      if (!entry) return refused(entry.error());
      Message reply = message_of(MessageType::kEntry);
      reply.entry = std::move(*entry);
      return give(std::move(reply));
    }
    case MessageType::kWait: {
      Message reply = message_of(MessageType::kEntry);
      if (hub->table.newest(message.name, message.version, &reply.entry)) return give(std::move(reply));
      if (message.once)
        return refused(make_error(GPUMEM_ERROR_NOT_FOUND, "the name has no such version yet"));
      if (connection.waits.size() >= kWaitsMax) {
        return refused(make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                                  "%zu calls of this link wait already; use another link", kWaitsMax));
      }
      connection.waits.push_back({number, message.name, message.version});
      return {};
    }
    case MessageType::kCancel:
      std::erase_if(connection.waits, [&](const Wait& wait) { return wait.number == message.version; });
      return {};
    case MessageType::kFetch: {
      platform::SharedDescriptors descriptors;
      auto reply = fetch(connection, *hub, message, &descriptors);
      if (!reply) return refused(reply.error());
      return give(std::move(*reply), std::move(descriptors));
    }
    case MessageType::kPublish: {
      if (!hub->request.keeper) return refused(no_keeper());
      const std::string name = message.name;
      auto version = keep(connection, *hub, std::move(incoming));
      if (!version) return refused(version.error());
      Message reply = message_of(MessageType::kPublished);
      reply.version = *version;
      tell_waiting(connection.hub, name);
      return give(std::move(reply));
    }
    case MessageType::kWithdraw: {
      if (!hub->request.keeper) return refused(no_keeper());
      std::vector<Token> gone;
      if (auto done = withdraw_from(*hub, message.name, message.version, connection.user, &gone); !done)
        return refused(done.error());
      have_gone(connection.hub, gone);
      return give(message_of(MessageType::kDone));
    }
    case MessageType::kTrial: {
      if (hub->request.keeper) {
        return refused(make_error(GPUMEM_ERROR_UNSUPPORTED,
                                  "the other process is a keeper, which opens nothing; ask by a link to one "
                                  "that would import"));
      }
      if (incoming.too_many) return refused(too_many_descriptors(incoming));
      if (connection.trial != nullptr)
        return refused(make_error(GPUMEM_ERROR_BUSY, "a trial of this link has not ended; try again later"));
      if (connection.trials >= kTrialsMax) {
        return refused(make_error(GPUMEM_ERROR_LIMIT_EXCEEDED,
                                  "%u trials were made by this link; connect a new one", kTrialsMax));
      }
      return take_trial(connection, std::move(incoming));
    }
    default:
      return violation("a link sent what is for others");
  }
}

// Runs a trial on a thread for its process, because it waits for that and calls the driver.
Result<void> ShareServer::take_trial(Connection& connection, Incoming incoming) {
  const uint64_t number = incoming.message.number;
  const Asker asker{connection.user, connection.process};
  auto trial = std::make_shared<Incoming>(std::move(incoming));
  std::erase_if(lanes_, [&](const auto& lane) { return lane.second.count == 0 && lane.first != asker; });
  const auto of_user = std::count_if(lanes_.begin(), lanes_.end(),
                                     [&](const auto& lane) { return lane.first.user == asker.user; });
  if (of_user >= kLanesMax && !lanes_.contains(asker)) {
    refuse(connection, number,
           make_error(GPUMEM_ERROR_BUSY,
                      "%d other processes of user %u have trials that have not ended; try again later",
                      kLanesMax, asker.user));
    return {};
  }
  Lane& lane = lanes_[asker];
  try {
    lane.thread.start();
    lane.thread.add([this, id = connection.id, asker, number,
                     waiting = std::weak_ptr(trial)]() -> std::optional<std::chrono::nanoseconds> {
      Message reply = message_of(MessageType::kTried);
      try {
        if (const auto mine = waiting.lock()) reply = answer_trial_(context_, *mine);
      } catch (const std::bad_alloc&) {
        reply.status = GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
      }
      reply.number = number;
      finish_trial(id, asker, std::move(reply));
      return std::nullopt;
    });
  } catch (const std::system_error&) {
    refuse(connection, number,
           make_error(GPUMEM_ERROR_LIMIT_EXCEEDED, "the process cannot start a thread; %s", kThreadRemedy));
    return {};
  }
  ++lane.count;
  ++connection.trials;
  connection.trial = std::move(trial);
  return {};
}

void ShareServer::finish_trial(uint64_t id, Asker asker, Message reply) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto lane = lanes_.find(asker); lane != lanes_.end()) --lane->second.count;
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  found->second->trial.reset();
  answer(*found->second, std::move(reply));
  bury();
}

Result<void> ShareServer::may_wait() const {
  if (!is_this_thread()) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "a log function cannot wait for other processes; call this when it has returned");
}

bool ShareServer::tries_on_this_thread() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane.second.thread.is_this_thread(); });
}

// Allows a link's holder to claim what was fetched, with no more than the access of its name.
void ShareServer::let_claim(const Connection& link, const ShareHandle& handle) {
  const auto holder = connections_.find(link.partner);
  if (holder == connections_.end()) return;
  gpumem_access& access = holder->second->fetched[handle.token];
  access = std::max(access, handle.access);
}

Result<Message> ShareServer::fetch(Connection& connection, Hub& hub, const Message& message,
                                   platform::SharedDescriptors* descriptors) {
  uint64_t number = 0;
  const HubTable::Version* const version =
      hub.table.find(message.name, message.version, message.fingerprint, &number);
  const auto nothing = [] {
    return make_error(
        GPUMEM_ERROR_NOT_FOUND,
        "the hub has no such name, version or fingerprint; gpumem_link_enumerate() lists what it has, "
        "and gpumem_link_wait() waits for more");
  };
  if (version == nullptr) return nothing();
  Message reply = message_of(MessageType::kGranted);
  reply.handle = version->handle;
  if (version->kept) {
    *descriptors = version->descriptors;
    let_claim(connection, reply.handle);
    return reply;
  }
  auto grant = Exports::of(context_).grant(version->handle.token);
  if (!grant && grant.error().status != GPUMEM_ERROR_NOT_FOUND) return grant.error();
  if (!grant) return nothing();  // it has ended just now
  *descriptors = std::move(grant->descriptors);
  let_claim(connection, reply.handle);
  return reply;
}

// Keeps what a link publishes in a keeper.
Result<uint64_t> ShareServer::keep(Connection& connection, Hub& hub, Incoming incoming) {
  Message& message = incoming.message;
  // The limit of the process may have changed since the hub began to wait for the message.
  const uint32_t descriptors_max = descriptors_of(hub);
  if (incoming.none_free) return no_descriptor_for("what is published");
  if (incoming.too_many) {
    return make_error(
        GPUMEM_ERROR_LIMIT_EXCEEDED,
        "the hub has fds_max = %u, and the handle needs %u descriptors; withdraw something, or open it "
        "with a higher limit",
        descriptors_max, message.descriptor_count);
  }
  ShareHandle& handle = message.handle;
  if (handle.way != GPUMEM_SHARE_WAY_POSIX_FD || handle.type != GPUMEM_SHARE_TYPE_MEMORY ||
      handle.fd_count == 0) {
    return make_error(
        GPUMEM_ERROR_UNSUPPORTED,
        "a keeper takes memory by GPUMEM_SHARE_WAY_POSIX_FD only, because nothing else outlives its "
        "process; use a buffer with GPUMEM_HANDLE_TYPE_POSIX_FD in handle_types");
  }
  // Refuse a handle that names another exporter, if this process can check the pid.
  if (handle.exporter.process_namespace == platform::process_namespace() &&
      handle.exporter.pid != connection.process) {
    return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                      "process %d exported the handle, and process %d publishes it; publish it where it was "
                      "exported",
                      handle.exporter.pid, connection.process);
  }
  // What a handle says of its exporter can be forged; the system is believed, where it knows the process.
  if (connection.process > 0) {
    auto began = platform::start_time_of(connection.process);
    if (!began) return began.error();
    auto lives = platform::peer_lives(connection.channel.socket());
    if (!lives) return lives.error();
    if (!*lives) {
      return make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                        "process %d, which made the link, has ended; connect again to publish",
                        connection.process);
    }
    handle.exporter.pid = connection.process;
    handle.exporter.start_time = *began;
    handle.exporter.process_namespace = platform::process_namespace();
  }
  if (Exports::of(context_).has(handle.token) && connection.process != platform::process_id()) {
    return make_error(
        GPUMEM_ERROR_PERMISSION_DENIED,
        "the process of the hub exported the handle, and process %d publishes it; copy the bytes "
        "into memory of your own to publish them",
        connection.process);
  }
  GPUMEM_TRY(check_descriptors(handle, incoming.descriptors));
  const gpumem_access access = message.access != 0 ? message.access : GPUMEM_ACCESS_READ;
  if (access > handle.access)
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "the export allows only reading; pass GPUMEM_ACCESS_READ");
  handle.access = access;
  HubTable::Request request;
  request.name = std::move(message.name);
  request.version = message.version;
  request.keep = message.keep;
  request.user = connection.user;
  request.shared = is_shared(hub.request);
  request.published.handle = handle;
  request.published.fingerprint = message.fingerprint;
  request.published.kept = true;
  request.published.descriptors = platform::share(std::move(incoming.descriptors));
  request.published.publisher = connection.id;
  if (hub.store != nullptr) {
    request.store = [&hub](const HubTable::Request& given, uint64_t number) {
      const HubTable::Version& published = given.published;
      return hub.store->add({given.name, number, given.user, published.handle, published.fingerprint},
                            *published.descriptors);
    };
  }
  std::vector<Token> gone;
  auto version = hub.table.publish(std::move(request), &gone);
  have_gone(connection.hub, gone);
  return version;
}

// Restores what an earlier keeper left in the service manager's store. What does not fit stays there.
Result<void> ShareServer::restore(Hub& hub) {
  auto left = hub.store->inherit();
  if (!left) return left.error();
  if (!platform::store_size()) {
    note(
        "the service manager does not say how many descriptors it stores ($FDSTORE, systemd 254): what is "
        "beyond FileDescriptorStoreMax= is lost");
  }
  if (hub.store->lost_versions() + hub.store->lost_files() != 0) {
    note("the store of the service manager had " + std::to_string(hub.store->lost_versions()) +
         " incomplete versions and " + std::to_string(hub.store->lost_files()) +
         " files of none, which are removed; FileDescriptorStoreMax= may be too small");
  }
  Cleanup leave_rest([&] {
    for (KeeperStore::Kept& one : *left) {
      if (one.entry != nullptr) hub.store->leave(std::move(one.entry), std::move(one.descriptors));
    }
  });
  for (KeeperStore::Kept& one : *left) {
    HubTable::Request request;
    request.name = one.record.name;
    request.version = one.record.number;
    request.keep = UINT32_MAX;
    request.user = one.record.user;
    request.published.handle = one.record.handle;
    request.published.fingerprint = one.record.fingerprint;
    request.published.kept = true;
    request.published.descriptors = std::move(one.descriptors);
    request.published.stored = std::move(one.entry);
    Cleanup put_back([&] {
      one.descriptors = std::move(request.published.descriptors);
      one.entry = std::move(request.published.stored);
    });
    std::vector<Token> gone;
    if (auto version = hub.table.publish(std::move(request), &gone); !version) {
      note("version " + std::to_string(one.record.number) + " of the name " + one.record.name +
           " stays in the store of the service manager, and nobody can have it: " + version.error().message);
    } else {
      put_back.dismiss();
    }
  }
  return {};
}

// Withdraws also what stayed in the store for lack of room, so that its publisher can remove it.
Result<void> ShareServer::withdraw_from(Hub& hub, const std::string& name, uint64_t version, uint32_t user,
                                        std::vector<Token>* gone) {
  const bool left = hub.store != nullptr && hub.store->remove_left(name, version, user);
  auto done = hub.table.withdraw(name, version, user, gone);
  if (!done && left && done.error().status == GPUMEM_ERROR_NOT_FOUND) return {};
  return done;
}

void ShareServer::tell_waiting(uint64_t hub_id, const std::string& name) noexcept {
  const Hub* const hub = find_hub(hub_id);
  for (const auto& [id, connection] : connections_) {
    if (connection->hub != hub_id || hub == nullptr) continue;
    auto& waits = connection->waits;
    for (size_t i = 0; i < waits.size();) {
      Message reply = message_of(MessageType::kEntry);
      try {
        if (waits[i].name != name || !hub->table.newest(name, waits[i].after, &reply.entry)) {
          ++i;
          continue;
        }
      } catch (const std::bad_alloc&) {
        doom(*connection, nullptr);  // or it would miss this version
        break;
      }
      reply.number = waits[i].number;
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(i));
      answer(*connection, std::move(reply));
    }
  }
}

// Informs those who have the export from this hub; 0: from any that has it no more.
void ShareServer::tell_withdrawn(uint64_t hub, const Token& token) noexcept {
  for (const auto& [id, connection] : connections_) {
    if (hub != 0 && connection->hub != hub) continue;
    const Hub* const its = find_hub(connection->hub);
    if (its != nullptr && its->table.find(token) != nullptr) continue;
    connection->fetched.erase(token);
    const auto claimed = connection->claims.find(token);
    if (claimed == connection->claims.end() || std::exchange(claimed->second.told, true)) continue;
    Message message = message_of(MessageType::kWithdrawn);
    message.token = token;
    answer(*connection, std::move(message));
  }
}

// Versions or exports, of which some may be published no more.
void ShareServer::have_gone(uint64_t hub, const std::vector<Token>& tokens) noexcept {
  for (const Token& token : tokens)
    tell_withdrawn(hub, token);
  drop_leaving();
}

// ---- how they end ----

// Marks for bury(), which deletes it, because the caller may be iterating over the connections.
void ShareServer::doom(Connection& connection, const Error* error) noexcept {
  if (connection.doomed) return;
  connection.doomed = true;
  any_doomed_ = true;
  ignore(connection.channel.socket());
  platform::hang_up(connection.channel.socket());
  unclaim(connection);
  if (error == nullptr) return;
  if (Hub* const hub = find_hub(connection.hub)) ++hub->refused;
  try {
    note("hung up on", connection.process, connection.user, error->message);
  } catch (const std::bad_alloc&) {
    // Only the log line is lost.
  }
}

void ShareServer::unclaim(Connection& connection) noexcept {
  Exports& exports = Exports::of(context_);
  for (const auto& [token, claim] : connection.claims) {
    for (uint64_t i = 0; i < claim.exported; ++i)
      exports.unclaim(token);
  }
  connection.claims.clear();
  if (connection.lent) exports.unclaim(*connection.lent);
  connection.lent.reset();
}

void ShareServer::leave_undrained(Connection& connection) noexcept {
  if (connection.channel.unread() == 0) return;
  try {
    connection.channel.drop();
    undrained_.push_back(
        {std::move(connection.channel), connection.hub, connection.process, connection.user});
    look_until(Clock::now() + kDrainTime);
  } catch (const std::bad_alloc&) {
    // Its descriptors are no longer counted; the kernel's own limit still holds.
  }
}

void ShareServer::bury() noexcept {
  if (!std::exchange(any_doomed_, false)) return;
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto one = at++;
    const Connection& connection = *one->second;
    if (!connection.doomed) continue;
    if (connection.role == Role::kLink) {
      if (Hub* const hub = find_hub(connection.hub)) hub->table.publisher_has_ended(connection.id);
      // The holder stays for a while, because what was fetched may still be imported.
      const auto holder = connections_.find(connection.partner);
      if (holder != connections_.end() && holder->second->claims.empty()) {
        holder->second->lease_until = platform::deadline_after(kLeaseTime);
        look_until(holder->second->lease_until);
      }
    }
    leave_undrained(*one->second);
    connections_.erase(one);
  }
}

// The sharing thread logs it.
void ShareServer::note(const char* cause, int32_t process, uint32_t user, const char* why) {
  warnings_.add(cause, process, user, why, Clock::now(), lines_);
  look_until(warnings_.next());
}

void ShareServer::warn(const char* cause, int32_t process, uint32_t user, const char* why) noexcept {
  std::vector<std::string> lines;
  try {
    const std::lock_guard lock(mutex_);
    warnings_.add(cause, process, user, why, Clock::now(), lines);
    look_until(warnings_.next());
  } catch (const std::bad_alloc&) {
    // Only the log line is lost.
  }
  log_lines(lines);
}

void ShareServer::note(std::string line) {
  if (lines_.size() < kLinesMax) lines_.push_back(std::move(line));
}

// Leaves versions in the store: a keeper's end does not withdraw them.
void ShareServer::leave_store(Hub& hub) noexcept {
  hub.table.for_each([&](HubTable::Version& version) {
    if (version.stored != nullptr)
      hub.store->leave(std::move(version.stored), std::move(version.descriptors));
  });
}

uint32_t ShareServer::descriptors_of(Hub& hub) {
  if (hub.by_process) {
    const uint64_t all = platform::descriptor_limit();
    const uint64_t others = kOtherDescriptors + kLinkDescriptors * hub.request.limits.links;
    const uint64_t half = (all > others ? all - others : all) / 2;
    hub.table.limit_descriptors(static_cast<uint32_t>(std::min<uint64_t>(half, UINT32_MAX)));
  }
  return hub.table.limits().descriptors;
}

ShareServer::Hub* ShareServer::find_hub(uint64_t id) noexcept {
  const auto found = hubs_.find(id);
  return found != hubs_.end() ? &found->second : nullptr;
}

// ---- for exporters ----

Result<platform::SharedDescriptors> ShareServer::Lent::take_descriptors() {
  auto all = platform::duplicate_all(*grant.descriptors);
  if (!all) return all.error();
  all->insert(all->begin(), std::move(end));
  return platform::share(std::move(*all));
}

Result<ShareServer::Lent> ShareServer::lend(const Token& token, uint64_t lease_ns) {
  GPUMEM_TRY(start());
  const std::lock_guard lock(mutex_);
  if (stopped_) return instance_closed();
  auto grant = Exports::of(context_).claim(token);
  if (!grant) return grant.error();
  Cleanup give_back([&] { Exports::of(context_).unclaim(token); });
  Connection* ours = nullptr;
  auto end = hand_out(Role::kHolder, 0, &ours);
  if (!end) return end.error();
  give_back.dismiss();
  ours->lent = token;
  ours->lease_until = platform::deadline_after(lease_ns != 0 ? lease_ns : kLeaseTime);
  look_until(ours->lease_until);
  return Lent{std::move(*grant), std::move(*end), ours->id};
}

void ShareServer::end_leases(const Token& token) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, connection] : connections_) {
    if (connection->lent != token) continue;
    connection->lent.reset();
    Exports::of(context_).unclaim(token);
  }
}

Exports::Holders ShareServer::holders() const {
  Exports::Holders found;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, connection] : connections_) {
    for (const auto& [token, claim] : connection->claims) {
      if (claim.exported != 0) found.emplace(token, connection->process);
    }
  }
  return found;
}

void ShareServer::take_back(uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  doom(*found->second, nullptr);
  bury();
}

// ---- for rings ----

void ShareServer::add_sleeper(std::atomic<uint32_t>& word) {
  const std::lock_guard lock(sleepers_mutex_);
  sleepers_.push_back(&word);
}

void ShareServer::remove_sleeper(const std::atomic<uint32_t>& word) noexcept {
  const std::lock_guard lock(sleepers_mutex_);
  if (const auto at = std::find(sleepers_.begin(), sleepers_.end(), &word); at != sleepers_.end())
    sleepers_.erase(at);
}

void ShareServer::wake_sleepers() noexcept {
  const std::lock_guard lock(sleepers_mutex_);
  for (std::atomic<uint32_t>* const word : sleepers_) {
    ++*word;
    platform::wake_all(*word);
  }
}

// ---- for hubs ----

Result<uint64_t> ShareServer::open_hub(HubRequest request) {
  GPUMEM_TRY(start());
  std::shared_ptr<KeeperStore> store;
  if (request.store) {
    auto opened = KeeperStore::open();
    if (!opened) return opened.error();
    store = std::move(*opened);
  }
  // Without the lock, because it may wait for another process that opens a hub.
  auto listener = platform::Listener::open(request.address, request.mode);
  if (!listener) return listener.error();
  // Log here, without the lock: the process may end before the sharing thread would log.
  std::vector<std::string> lines;
  const Cleanup tell([&] { log_lines(lines); });
  const std::lock_guard lock(mutex_);
  if (stopped_) return instance_closed();
  const uint64_t id = ++last_id_;
  if (!request.keeper && request.limits.descriptors == 0)
    request.limits.descriptors = HubLimits().descriptors;
  Hub& hub = hubs_.emplace(id, Hub(std::move(request))).first->second;
  Cleanup undo([&] {
    leave_store(hub);
    hubs_.erase(id);
  });
  (void)descriptors_of(hub);
  hub.store = std::move(store);
  auto added = add_listener(std::move(*listener), id);
  if (!added) return added.error();
  Cleanup undo_listener([&] { listeners_.erase(*added); });
  if (hub.store != nullptr) {
    auto restored = restore(hub);
    lines.swap(lines_);
    GPUMEM_TRY(std::move(restored));
  }
  undo_listener.dismiss();
  undo.dismiss();
  fill_reserve();
  wake();
  return id;
}

void ShareServer::tell_all_withdrawn(Connection& connection) noexcept {
  try {
    // Copy the tokens, because answering ends the claims of a peer that has hung up.
    std::vector<Token> tokens;
    for (const auto& [token, claim] : connection.claims) {
      if (!claim.told) tokens.push_back(token);
    }
    for (const Token& token : tokens) {
      Message message = message_of(MessageType::kWithdrawn);
      message.token = token;
      answer(connection, std::move(message));
    }
  } catch (const std::bad_alloc&) {
    // The peer learns of it with its next request.
  }
}

void ShareServer::close_hub(uint64_t id) noexcept {
  const platform::ClosingTogether together;
  const std::lock_guard lock(mutex_);
  for (auto at = listeners_.begin(); at != listeners_.end();)
    at = at->second.hub == id ? listeners_.erase(at) : std::next(at);
  for (const auto& [number, connection] : connections_) {
    if (connection->hub != id) continue;
    // Keep holders that have claimed memory of this process: it still lives, and they still hold it.
    const auto& claims = connection->claims;
    const bool stays = connection->role == Role::kHolder &&
                       std::any_of(claims.begin(), claims.end(),
                                   [](const auto& claim) { return claim.second.exported != 0; });
    if (stays) {
      tell_all_withdrawn(*connection);
    } else {
      doom(*connection, nullptr);
    }
  }
  if (Hub* const hub = find_hub(id)) leave_store(*hub);
  hubs_.erase(id);
  fill_reserve();
  bury();
}

Result<uint64_t> ShareServer::publish(uint64_t id, HubTable::Request request) {
  const std::lock_guard lock(mutex_);
  Hub* const hub = find_hub(id);
  if (hub == nullptr) return instance_closed();
  const std::string name = request.name;
  (void)descriptors_of(*hub);
  request.user = platform::own_user();
  std::vector<Token> gone;
  auto version = hub->table.publish(std::move(request), &gone);
  if (!version) return version;
  have_gone(id, gone);
  tell_waiting(id, name);
  bury();
  return version;
}

Result<void> ShareServer::withdraw(uint64_t id, const std::string& name, uint64_t version) {
  const std::lock_guard lock(mutex_);
  Hub* const hub = find_hub(id);
  if (hub == nullptr) return instance_closed();
  std::vector<Token> gone;
  GPUMEM_TRY(withdraw_from(*hub, name, version, platform::own_user(), &gone));
  have_gone(id, gone);
  bury();
  return {};
}

HubCounts ShareServer::counts(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  HubCounts counts;
  const auto hub = hubs_.find(id);
  if (hub == hubs_.end()) return counts;
  for (const auto& [number, connection] : connections_) {
    if (connection->hub == id && connection->role == Role::kLink) ++counts.links;
  }
  const HubTable& table = hub->second.table;
  counts.names = table.name_count();
  counts.versions = table.version_count();
  counts.descriptors = table.descriptor_count();
  counts.refused = hub->second.refused;
  return counts;
}

// ---- for what asks others ----

Result<platform::Descriptor> ShareServer::connect(const std::string& address,
                                                  platform::Deadline deadline) const {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return instance_closed();
    }
    auto made = platform::connect_to(address, std::min(deadline, Clock::now() + kSoon));
    if (made || made.error().status != GPUMEM_ERROR_BUSY || Clock::now() >= deadline) return made;
  }
}

Result<void> ShareServer::watch(const std::shared_ptr<ShareClient>& client) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return instance_closed();
  client->id_ = ++last_id_;
  clients_.emplace(client->id_, client);
  if (auto added = add_to_poll(client->socket(), client->id_, kToRead); !added) {
    clients_.erase(client->id_);
    return added;
  }
  return {};
}

void ShareServer::forget(const ShareClient& client) noexcept {
  const std::lock_guard lock(mutex_);
  ignore(client.socket());
  clients_.erase(client.id_);
}

void ShareServer::ignore(int socket) noexcept {
  (void)epoll_ctl(poll_.get(), EPOLL_CTL_DEL, socket, nullptr);
}

void ShareServer::set_interest(int socket, uint64_t id, bool to_write) noexcept {
  epoll_event event{};
  event.events = to_write ? kToRead | kToWrite : kToRead;
  event.data.u64 = id;
  (void)epoll_ctl(poll_.get(), EPOLL_CTL_MOD, socket, &event);
}

std::shared_ptr<SharePeer> ShareServer::find_peer(const Token& instance) {
  std::shared_ptr<SharePeer> peer;  // the last reference is released without the lock
  const std::lock_guard lock(mutex_);
  const auto known = peers_.find(instance);
  if (known == peers_.end()) return nullptr;
  peer = known->second.lock();
  if (peer != nullptr && !peer->gone()) {
    keep_for_a_while(peer);
    return peer;
  }
  peers_.erase(known);
  return nullptr;
}

void ShareServer::keep_for_a_while(std::shared_ptr<SharePeer> peer) {
  if (stopped_) return;
  const platform::Deadline until = Clock::now() + kRecentTime;
  const auto known =
      std::find_if(recent_.begin(), recent_.end(), [&](const Recent& one) { return one.peer == peer; });
  if (known != recent_.end()) {
    known->until = until;
  } else if (recent_.size() < kRecentMax) {
    recent_.push_back({std::move(peer), until});
  }
  look_until(until);
}

// Removes the recent peers that are over; release them without the lock.
std::vector<std::shared_ptr<SharePeer>> ShareServer::take_unused() noexcept {
  std::vector<std::shared_ptr<SharePeer>> unused;
  try {
    unused.reserve(recent_.size());
  } catch (const std::bad_alloc&) {
    return unused;
  }
  const auto now = Clock::now();
  std::erase_if(recent_, [&](Recent& one) {
    if (one.until > now && !one.peer->gone()) return false;
    unused.push_back(std::move(one.peer));
    return true;
  });
  return unused;
}

std::shared_ptr<SharePeer> ShareServer::add_peer(const Token& instance, std::shared_ptr<SharePeer> peer) {
  std::shared_ptr<SharePeer> before;
  const std::lock_guard lock(mutex_);
  std::erase_if(peers_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<SharePeer>& place = peers_[instance];
  before = place.lock();
  if (before != nullptr && !before->gone()) return before;
  place = peer;
  keep_for_a_while(peer);
  return peer;
}

}  // namespace gpumem::core
