// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/server.h"

#include <algorithm>
#include <cinttypes>
#include <new>
#include <utility>

#include "base/cleanup.h"
#include "core/object/context.h"
#include "platform/identity.h"

namespace gpumem::core {
namespace {

constexpr size_t kClaimsMax = 4096;  // different ones of a connection
constexpr size_t kWaitsMax = 64;     // of a connection
constexpr uint32_t kTrialsMax = 64;  // of a connection, in its life

gpumem_access lesser(gpumem_access a, gpumem_access b) { return std::min(a, b); }

}  // namespace

// ---- how it begins and ends ----

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
  if (loop_.is_running()) return {};
  GPUMEM_TRY(can_share());
  const auto lock = loop_.lock();
  if (loop_.has_thread() && !loop_.stopped()) return {};
  GPUMEM_TRY(loop_.open());
  Cleanup undo([this] {
    entrance_.remove_all();
    loop_.close();
  });
  auto listener = platform::Listener::open(abstract_address(Exports::of(context_).instance_id()), 0600);
  if (!listener) return listener.error();
  GPUMEM_TRY(entrance_.add(std::move(*listener), 0));
  loop_.run(*this);
  undo.dismiss();
  return {};
}

void ShareServer::stop() noexcept {
  const platform::ClosingTogether together;
  if (!loop_.begin_stop()) return;
  const PeerCache::Unused recent = peers_.close();  // released without the lock
  if (!loop_.join()) return;
  {
    const auto lock = loop_.lock();
    connections_.end_all();
    entrance_.remove_all();
    for (auto& [id, hub] : hubs_)
      hub.leave_store();
    hubs_.clear();
  }
  loop_.abandon_clients(instance_closed());
  trials_.stop();
  loop_.signal_stop();
}

bool ShareServer::tries_on_this_thread() const {
  const auto lock = loop_.lock();
  return trials_.is_this_thread();
}

// ---- a round ----

void ShareServer::begin() {
  turns_.clear();
  take_notes();
}

void ShareServer::take_event(uint64_t id) {
  if (Connection* const connection = connections_.find(id)) {
    take_turn(*connection);
  } else {
    entrance_.take_event(id);
  }
}

void ShareServer::end() noexcept {
  connections_.bury();
  entrance_.fill_reserve();
}

void ShareServer::unlocked() noexcept {
  (void)peers_.take_unused();
  after_round_(context_);
}

void ShareServer::withdrawn(const Token& token) noexcept {
  if (!loop_.is_running()) return;
  try {
    const std::lock_guard lock(notes_mutex_);
    notes_.push_back(token);
  } catch (const std::bad_alloc&) {
    return;  // importers learn it when they ask again
  }
  loop_.wake();
}

void ShareServer::catch_up() noexcept {
  if (!loop_.is_running()) return;
  const auto lock = loop_.lock();
  try {
    for (const auto& [id, connection] : connections_.all())
      serve(*connection);
  } catch (const std::bad_alloc&) {
    // The sharing thread takes the rest.
  }
  connections_.bury();
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
void ShareServer::look_at_times(Clock::time_point now) {
  entrance_.look_at_times(now);
  for (const auto& [id, connection] : connections_.all()) {
    if (connection->doomed) continue;
    if (connection->channel.is_held_up()) serve(*connection);
    if (connection->doomed) continue;
    if (connection->message_until <= now || connection->output_until <= now) {
      const bool waits = connection->message_until > now && connection->channel.is_held_up();
      Connection& late = waits ? connections_.worst_reader(*connection) : *connection;
      const Error why =
          make_error(GPUMEM_ERROR_BUSY,
                     !waits ? "it took too long for a message"
                     : late.channel.unread() != 0
                         ? "it does not read the descriptors that it asked for"
                         : "no descriptors can be sent to it, because ended links of its user, or peers of "
                           "other processes of this one's user, have not read what they asked for");
      connections_.doom(late, &why);
      if (&late == connection.get()) continue;
      connection->output_until = platform::deadline_after(connection->time_ns);
    }
    if (connection->lease_until <= now) {
      connection->lease_until = platform::Deadline::max();
      if (connection->lent) Exports::of(context_).unclaim(*std::exchange(connection->lent, std::nullopt));
      if (connection->claims.empty()) connections_.doom(*connection, nullptr);
    }
    loop_.look_until(
        std::min({connection->message_until, connection->output_until, connection->lease_until}));
    if (connection->channel.is_held_up()) loop_.look_until(now + EventLoop::kSoon);
  }
  loop_.look_until(peers_.next());
  connections_.look_at_drained(now);
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
    if (connection.channel.has_output()) connections_.set_window(connection);
    if (auto flushed = connection.channel.flush(); !flushed) {
      connections_.doom(connection, nullptr);
      return count;
    }
    // Without sending or receiving, nothing else tells, and epoll reports it again and again.
    if (connection.channel.is_held_up() && platform::has_hung_up(connection.channel.socket())) {
      connections_.doom(connection, nullptr);
      return count;
    }
    while (count < kAtOnce && !connection.doomed && !connection.channel.has_output()) {
      OpenHub* const hub = find_hub(hubs_, connection.hub);
      // Limit the descriptors of all incomplete messages together.
      uint32_t room = hub != nullptr && connection.role == Role::kLink ? kTrialDescriptorsMax : 0;
      if (hub != nullptr && hub->request.keeper && connection.role == Role::kLink) {
        FairShare begun(connection.user);
        for (const auto& [id, other] : connections_.all()) {
          if (other->hub == connection.hub && other.get() != &connection)
            begun.add(other->user, other->channel.begun_descriptors());
        }
        const uint64_t most = hub->descriptors_max();
        const bool shared = hub->request.is_shared();
        const uint64_t share = shared ? begun.of(most) : most;
        room = static_cast<uint32_t>(share - std::min(shared ? begun.own() : begun.all(), share));
      }
      auto incoming = connection.channel.receive([room](const Message&) { return room; });
      if (!incoming) {
        const bool left = incoming.error().status == GPUMEM_ERROR_PEER_GONE;
        const bool other_version = incoming.error().status == GPUMEM_ERROR_UNSUPPORTED;
        if (other_version && connection.role == Role::kGreeted) {
          connections_.turn_away(connection, 0, incoming.error());
        } else {
          connections_.doom(connection, left ? nullptr : &incoming.error());
        }
        return count;
      }
      if (!incoming->packet) break;
      ++count;
      if (!incoming->message) continue;
      connection.message_until = platform::Deadline::max();
      if (auto taken = take(connection, std::move(*incoming->message)); !taken) {
        connections_.doom(connection, &taken.error());
        return count;
      }
    }
  } catch (const std::bad_alloc&) {
    connections_.doom(connection, nullptr);
    return count;
  }
  // Limit the time of a message from its first packet on.
  if (connection.role != Role::kGreeted) {
    if (connection.channel.begun() != nullptr && connection.message_until == platform::Deadline::max()) {
      connection.message_until = platform::deadline_after(connection.time_ns);
    }
  }
  connections_.update(connection);
  return count;
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
  OpenHub* const hub = find_hub(hubs_, connection.hub);
  const Token& own = Exports::of(context_).instance_id();
  platform::Descriptors ends;
  if (hub == nullptr) {
    if (message.token != own) {
      const Error other = make_error(GPUMEM_ERROR_STALE_HANDLE, "the instance that it asks for is not here");
      connections_.turn_away(connection, message.number, other);
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
      connections_.turn_away(connection, message.number, wrong);
      return {};
    }
    Connection* holder = nullptr;
    auto end = connections_.hand_out(Role::kHolder, connection.hub, &holder);
    if (!end && end.error().status == GPUMEM_ERROR_LIMIT_EXCEEDED && entrance_.borrow_reserve(connection)) {
      end = connections_.hand_out(Role::kHolder, connection.hub, &holder);
    }
    if (!end) {
      connections_.turn_away(connection, message.number, end.error());
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
  connections_.answer(connection, std::move(welcome),
                      ends.empty() ? nullptr : platform::share(std::move(ends)));
  return {};
}

Result<void> ShareServer::take_claim(Connection& connection, const Message& message) {
  const Token& token = message.token;
  const auto refused = [&](const Error& error) -> Result<void> {
    connections_.refuse(connection, message.number, error);
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
  if (OpenHub* const hub = find_hub(hubs_, connection.hub); hub != nullptr) {
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
  } else if (connection.only && Exports::of(context_).whole_of(token) != *connection.only) {
    // Who is at the other end may be of another user, and may have seen more handles than it was given.
    return refused(make_error(GPUMEM_ERROR_PERMISSION_DENIED,
                              "the connection came with another handle, and gives only what that is of"));
  }
  Connection::Claim& claim = connection.claims[token];
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
  connections_.answer(connection, std::move(granted), std::move(grant.descriptors));
  return {};
}

// Nothing says when a connection that was handed out is no longer wanted, but that it claims nothing.
void ShareServer::begin_lease(Connection& connection) noexcept {
  connection.lease_until = platform::deadline_after(connection.lease_ns);
  loop_.look_until(connection.lease_until);
}

Result<void> ShareServer::take_release(Connection& connection, const Token& token) {
  const auto claimed = connection.claims.find(token);
  if (claimed == connection.claims.end()) return violation("it released what it does not hold");
  // A release does not say of which it is. Memory must outlive all claims that may still be of its export.
  Connection::Claim& claim = claimed->second;
  if (claim.kept != 0) {
    --claim.kept;
  } else {
    --claim.exported;
    Exports::of(context_).unclaim(token);
  }
  if (claim.empty()) connection.claims.erase(claimed);
  const bool left = connection.partner != 0 && connections_.find(connection.partner) == nullptr;
  if (connection.claims.empty() && (left || connection.only)) begin_lease(connection);
  return {};
}

Result<void> ShareServer::take_request(Connection& connection, Incoming incoming) {
  const Message& message = incoming.message;
  OpenHub* const hub = find_hub(hubs_, connection.hub);
  if (hub == nullptr) return violation("its hub is closed");
  const uint64_t number = message.number;
  const auto give = [&](Message&& reply, platform::SharedDescriptors descriptors = {}) -> Result<void> {
    reply.number = number;
    connections_.answer(connection, std::move(reply), std::move(descriptors));
    return {};
  };
  const auto refused = [&](const Error& error) -> Result<void> {
    connections_.refuse(connection, number, error);
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
      std::erase_if(connection.waits,
                    [&](const Connection::Wait& wait) { return wait.number == message.version; });
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
      const OpenHub::Publisher publisher{connection.id, connection.channel.socket(), connection.process,
                                         connection.user};
      std::vector<Token> gone;
      auto version = hub->keep(Exports::of(context_), publisher, std::move(incoming), &gone);
      have_gone(connection.hub, gone);
      if (!version) return refused(version.error());
      Message reply = message_of(MessageType::kPublished);
      reply.version = *version;
      tell_waiting(connection.hub, name);
      return give(std::move(reply));
    }
    case MessageType::kWithdraw: {
      if (!hub->request.keeper) return refused(no_keeper());
      std::vector<Token> gone;
      if (auto done = hub->withdraw(message.name, message.version, connection.user, &gone); !done)
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
  const TrialLanes::Asker asker{connection.user, connection.process};
  auto trial = std::make_shared<Incoming>(std::move(incoming));
  auto added = trials_.add(asker, [this, id = connection.id, asker, number, waiting = std::weak_ptr(trial)] {
    Message reply = message_of(MessageType::kTried);
    try {
      if (const auto mine = waiting.lock()) reply = answer_trial_(context_, *mine);
    } catch (const std::bad_alloc&) {
      reply.status = GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
    }
    reply.number = number;
    finish_trial(id, asker, std::move(reply));
  });
  if (!added) {
    connections_.refuse(connection, number, added.error());
    return {};
  }
  ++connection.trials;
  connection.trial = std::move(trial);
  return {};
}

void ShareServer::finish_trial(uint64_t id, const TrialLanes::Asker& asker, Message reply) noexcept {
  const auto lock = loop_.lock();
  trials_.is_over(asker);
  Connection* const found = connections_.find(id);
  if (found == nullptr) return;
  found->trial.reset();
  connections_.answer(*found, std::move(reply));
  connections_.bury();
}

// Allows a link's holder to claim what was fetched, with no more than the access of its name.
void ShareServer::let_claim(const Connection& link, const ShareHandle& handle) {
  Connection* const holder = connections_.find(link.partner);
  if (holder == nullptr) return;
  gpumem_access& access = holder->fetched[handle.token];
  access = std::max(access, handle.access);
}

Result<Message> ShareServer::fetch(Connection& connection, OpenHub& hub, const Message& message,
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

void ShareServer::tell_waiting(uint64_t hub_id, const std::string& name) noexcept {
  const OpenHub* const hub = find_hub(hubs_, hub_id);
  for (const auto& [id, connection] : connections_.all()) {
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
        connections_.doom(*connection, nullptr);  // or it would miss this version
        break;
      }
      reply.number = waits[i].number;
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(i));
      connections_.answer(*connection, std::move(reply));
    }
  }
}

// Informs those who have the export from this hub; 0: from any that has it no more.
void ShareServer::tell_withdrawn(uint64_t hub, const Token& token) noexcept {
  for (const auto& [id, connection] : connections_.all()) {
    if (hub != 0 && connection->hub != hub) continue;
    const OpenHub* const its = find_hub(hubs_, connection->hub);
    if (its != nullptr && its->table.find(token) != nullptr) continue;
    connection->fetched.erase(token);
    const auto claimed = connection->claims.find(token);
    if (claimed == connection->claims.end() || std::exchange(claimed->second.told, true)) continue;
    Message message = message_of(MessageType::kWithdrawn);
    message.token = token;
    connections_.answer(*connection, std::move(message));
  }
}

// Versions or exports, of which some may be published no more.
void ShareServer::have_gone(uint64_t hub, const std::vector<Token>& tokens) noexcept {
  for (const Token& token : tokens)
    tell_withdrawn(hub, token);
  connections_.drop_leaving();
}

// ---- for exporters ----

Result<platform::SharedDescriptors> ShareServer::Lent::take_descriptors() {
  auto all = platform::duplicate_all(*grant.descriptors);
  if (!all) return all.error();
  all->insert(all->begin(), std::move(end));
  return platform::share(std::move(*all));
}

Result<ShareServer::Lent> ShareServer::lend(const Token& token, uint64_t lease_ns,
                                            const platform::PeerFacts& receiver) {
  GPUMEM_TRY(start());
  const auto lock = loop_.lock();
  if (loop_.stopped()) return instance_closed();
  auto admitted = entrance_.check_hand_out(receiver);
  connections_.bury();  // who was seen to have hung up
  if (!admitted) return admitted.error();
  auto grant = Exports::of(context_).claim(token);
  if (!grant) return grant.error();
  Cleanup give_back([&] { Exports::of(context_).unclaim(token); });
  Connection* ours = nullptr;
  auto end = connections_.hand_out(Role::kHolder, 0, &ours);
  if (!end) return end.error();
  give_back.dismiss();
  // Both ends of a socket may have been made here.
  ours->process = receiver.process == platform::process_id() ? 0 : receiver.process;
  ours->user = receiver.user;
  ours->lent = ours->only = token;
  if (lease_ns != 0) ours->lease_ns = lease_ns;
  begin_lease(*ours);
  return Lent{std::move(*grant), std::move(*end), ours->id};
}

void ShareServer::end_leases(const Token& token) noexcept {
  const auto lock = loop_.lock();
  for (const auto& [id, connection] : connections_.all()) {
    if (connection->lent != token) continue;
    connection->lent.reset();
    Exports::of(context_).unclaim(token);
  }
}

Exports::Holders ShareServer::holders() const {
  Exports::Holders found;
  const auto lock = loop_.lock();
  for (const auto& [id, connection] : connections_.all()) {
    for (const auto& [token, claim] : connection->claims) {
      if (claim.exported != 0) found.emplace(token, connection->process);
    }
  }
  return found;
}

void ShareServer::take_back(uint64_t id) noexcept {
  const auto lock = loop_.lock();
  if (Connection* const found = connections_.find(id)) connections_.doom(*found, nullptr);
  connections_.bury();
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
  auto listener = platform::Listener::inherit(request.address);
  // Without the lock, because it may wait for another process that opens a hub.
  if (listener && listener->get() < 0) listener = platform::Listener::open(request.address, request.mode);
  if (!listener) return listener.error();
  // Log here, without the lock: the process may end before the sharing thread would log.
  std::vector<std::string> lines;
  const Cleanup tell([&] { EventLoop::log_lines(lines); });
  const auto lock = loop_.lock();
  if (loop_.stopped()) return instance_closed();
  const uint64_t id = loop_.next_id();
  if (!request.keeper && request.limits.descriptors == 0)
    request.limits.descriptors = HubLimits().descriptors;
  OpenHub& hub = hubs_.emplace(id, OpenHub(std::move(request))).first->second;
  Cleanup undo([&] {
    hub.leave_store();
    hubs_.erase(id);
  });
  (void)hub.descriptors_max();
  hub.store = std::move(store);
  GPUMEM_TRY(entrance_.add(std::move(*listener), id));
  Cleanup undo_listener([&] { entrance_.remove(id); });
  if (hub.store != nullptr) {
    auto restored = hub.restore(loop_);
    lines = loop_.take_lines();
    GPUMEM_TRY(std::move(restored));
  }
  undo_listener.dismiss();
  undo.dismiss();
  entrance_.fill_reserve();
  loop_.wake();
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
      connections_.answer(connection, std::move(message));
    }
  } catch (const std::bad_alloc&) {
    // The peer learns of it with its next request.
  }
}

void ShareServer::close_hub(uint64_t id) noexcept {
  const platform::ClosingTogether together;
  const auto lock = loop_.lock();
  entrance_.remove(id);
  for (const auto& [number, connection] : connections_.all()) {
    if (connection->hub != id) continue;
    // Keep holders that have claimed memory of this process: it still lives, and they still hold it.
    const auto& claims = connection->claims;
    const bool stays = connection->role == Role::kHolder &&
                       std::any_of(claims.begin(), claims.end(),
                                   [](const auto& claim) { return claim.second.exported != 0; });
    if (stays) {
      tell_all_withdrawn(*connection);
    } else {
      connections_.doom(*connection, nullptr);
    }
  }
  if (OpenHub* const hub = find_hub(hubs_, id)) hub->leave_store();
  hubs_.erase(id);
  entrance_.fill_reserve();
  connections_.bury();
}

Result<uint64_t> ShareServer::publish(uint64_t id, HubTable::Request request) {
  const auto lock = loop_.lock();
  OpenHub* const hub = find_hub(hubs_, id);
  if (hub == nullptr) return instance_closed();
  take_notes();  // what has ended takes no room
  const std::string name = request.name;
  (void)hub->descriptors_max();
  request.user = platform::own_user();
  std::vector<Token> gone;
  auto version = hub->table.publish(std::move(request), &gone);
  if (!version) return version;
  have_gone(id, gone);
  tell_waiting(id, name);
  connections_.bury();
  return version;
}

Result<void> ShareServer::withdraw(uint64_t id, const std::string& name, uint64_t version) {
  const auto lock = loop_.lock();
  OpenHub* const hub = find_hub(hubs_, id);
  if (hub == nullptr) return instance_closed();
  std::vector<Token> gone;
  GPUMEM_TRY(hub->withdraw(name, version, platform::own_user(), &gone));
  have_gone(id, gone);
  connections_.bury();
  return {};
}

HubCounts ShareServer::counts(uint64_t id) {
  const auto lock = loop_.lock();
  take_notes();  // what has ended does not count, whatever the sharing thread does just now
  connections_.bury();
  HubCounts counts;
  const auto hub = hubs_.find(id);
  if (hub == hubs_.end()) return counts;
  for (const auto& [number, connection] : connections_.all()) {
    if (connection->hub == id && connection->role == Role::kLink) ++counts.links;
  }
  const HubTable& table = hub->second.table;
  counts.names = table.name_count();
  counts.versions = table.version_count();
  counts.descriptors = table.descriptor_count();
  counts.refused = hub->second.refused;
  return counts;
}

}  // namespace gpumem::core
