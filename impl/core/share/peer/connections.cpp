// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/connections.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/object/context.h"
#include "core/share/peer/exports.h"

namespace gpumem::core {
namespace {

using Clock = EventLoop::Clock;

// How often to ask whether what ended connections have left unread has been read.
constexpr auto kDrainTime = std::chrono::milliseconds(100);

}  // namespace

// A limit is reached here, not where the text is read.
Message refusal_of(const Error& error) {
  Message message = message_of(MessageType::kRefused);
  message.status = error.status;
  if (error.status == GPUMEM_ERROR_LIMIT_EXCEEDED)
    message.text = "process " + std::to_string(platform::process_id()) + " refuses it: ";
  message.text += error.message;
  return message;
}

Result<Connection*> Connections::add(platform::Descriptor socket, Role role, uint64_t hub) {
  auto made = std::make_unique<Connection>(std::move(socket));
  made->id = loop_.next_id();
  made->role = role;
  made->hub = hub;
  made->interest = EventLoop::kToRead;
  const OpenHub* const of = find_hub(hubs_, hub);
  made->time_ns = of != nullptr ? of->request.limits.timeout_ns : kMessageTime;
  if (role == Role::kGreeted) made->message_until = platform::deadline_after(made->time_ns);
  loop_.look_until(made->message_until);
  Connection* const added = made.get();
  const uint64_t id = made->id;
  all_.emplace(id, std::move(made));
  if (auto watched = loop_.add(added->channel.socket(), id, EventLoop::kToRead); !watched) {
    all_.erase(id);
    return watched.error();
  }
  return added;
}

Result<platform::Descriptor> Connections::hand_out(Role role, uint64_t hub, Connection** ours) {
  auto ends = platform::socket_pair();
  if (!ends) return ends.error();
  auto added = add(std::move(ends->ours), role, hub);
  if (!added) return added.error();
  *ours = *added;
  (*ours)->user = platform::own_user();
  return std::move(ends->theirs);
}

Connection* Connections::find(uint64_t id) const noexcept {
  const auto found = all_.find(id);
  return found != all_.end() ? found->second.get() : nullptr;
}

// ---- what they are sent ----

void Connections::answer(Connection& connection, Message message,
                         platform::SharedDescriptors descriptors) noexcept {
  if (connection.doomed) return;
  bool sent = false;
  try {
    const bool counts = descriptors != nullptr && !descriptors->empty();
    if (counts) set_window(connection);
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

void Connections::refuse(Connection& connection, uint64_t number, const Error& error) {
  // Do not count requests for what does not exist.
  const bool counts = error.status == GPUMEM_ERROR_PERMISSION_DENIED ||
                      error.status == GPUMEM_ERROR_LIMIT_EXCEEDED ||
                      error.status == GPUMEM_ERROR_INVALID_ARGUMENT;
  if (OpenHub* const hub = find_hub(hubs_, connection.hub); hub != nullptr && counts) ++hub->refused;
  Message message = refusal_of(error);
  message.number = number;
  answer(connection, std::move(message));
}

void Connections::turn_away(Connection& connection, uint64_t number, const Error& error) {
  refuse(connection, number, error);
  loop_.note("refused", connection.process, connection.user, error.message);
  doom(connection, nullptr);
}

void Connections::update(Connection& connection) noexcept {
  if (connection.doomed) return;
  const Channel& channel = connection.channel;
  if (!channel.has_output()) {
    connection.output_until = platform::Deadline::max();
  } else if (connection.output_until == platform::Deadline::max()) {
    connection.output_until = platform::deadline_after(connection.time_ns);
  }
  if (channel.is_held_up()) loop_.look_until(Clock::now() + EventLoop::kSoon);
  loop_.look_until(std::min(connection.message_until, connection.output_until));
  // Do not read from a connection that does not read its answers.
  const uint32_t wanted = !channel.has_output()  ? EventLoop::kToRead
                          : channel.is_held_up() ? EventLoop::kToGoOn
                                                 : EventLoop::kToWrite;
  if (std::exchange(connection.interest, wanted) == wanted) return;
  loop_.change(channel.socket(), connection.id, wanted);
}

// ---- what they have not read ----

// A holder whose link has ended counts as a link, and so does an ended link with unread descriptors. What
// went with a handle does not.
FairShare Connections::links_of(uint64_t hub, const platform::PeerFacts& facts) const {
  const auto who = [&](uint32_t user, int32_t process) {
    return hub != 0 ? user : static_cast<uint32_t>(process);
  };
  FairShare links(who(facts.user, facts.process));
  const auto is_meant = [&](uint64_t of, uint32_t user) {
    return of == hub && (hub != 0 || user == platform::own_user());
  };
  for (const auto& [id, connection] : all_) {
    const bool counts = connection->role != Role::kHolder || !all_.contains(connection->partner);
    if (is_meant(connection->hub, connection->user) && !connection->doomed && !connection->only && counts)
      links.add(who(connection->user, connection->process), 1);
  }
  for (const Undrained& one : undrained_) {
    if (is_meant(one.hub, one.user)) links.add(who(one.user, one.process), 1);
  }
  return links;
}

FairShare Connections::handed_out(uint32_t user) const {
  FairShare held(user);
  for (const auto& [id, connection] : all_) {
    if (connection->only && connection->user != platform::own_user() && !connection->doomed)
      held.add(connection->user, 1);
  }
  for (const Undrained& one : undrained_) {
    if (one.hub == 0 && one.user != platform::own_user()) held.add(one.user, 1);
  }
  return held;
}

void Connections::drop_drained() noexcept {
  std::erase_if(undrained_, [](Undrained& one) { return one.channel.unread() == 0; });
}

void Connections::look_at_drained(Clock::time_point now) {
  drop_drained();
  if (!undrained_.empty()) loop_.look_until(now + kDrainTime);
}

// The kernel limits the unread descriptors of all processes of this user together, and looks at the limit of
// each that sends. So only an eighth of what a process usually may have is for all connections, a fair share
// of it for each user, and of that a fair share for each process. The first one of a connection does not
// count, while there is room: whatever others leave unread, who reads can connect and goes on.
size_t Connections::window_of(Connection& connection) {
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
  for (const auto& [id, other] : all_) {
    if (other.get() != &connection) add(other->user, other->process, other->channel.unread());
  }
  for (Undrained& one : undrained_)
    add(one.user, one.process, one.channel.unread());
  const uint64_t limit = platform::usual_descriptor_limit();
  const uint64_t share = of_processes.of(of_users.of(limit / 8));
  return share - std::min(of_processes.own(), share) + (all < limit / 4 ? 1 : 0);
}

void Connections::set_window(Connection& connection) { connection.channel.set_window(window_of(connection)); }

Connection& Connections::worst_reader(Connection& waiting) {
  Connection* worst = &waiting;
  for (const auto& [id, other] : all_) {
    if (!other->doomed && other->user == waiting.user && other->channel.unread() > worst->channel.unread())
      worst = other.get();
  }
  return *worst;
}

// Answers that wait keep the descriptors of what has been withdrawn. Hangs up on all whose answers do, if
// those are too many of the descriptors that this process may have.
void Connections::drop_leaving() noexcept {
  struct Left {
    long waiting = 0;
    bool is_all = false;  // nobody has them but answers that wait
  };
  try {
    std::map<platform::SharedDescriptors, Left> found;
    const auto for_each = [&](const auto& see) {
      for (const auto& [id, connection] : all_) {
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

// ---- how they end ----

void Connections::doom(Connection& connection, const Error* error) noexcept {
  if (connection.doomed) return;
  connection.doomed = true;
  any_doomed_ = true;
  loop_.ignore(connection.channel.socket());
  platform::hang_up(connection.channel.socket());
  unclaim(connection);
  if (error == nullptr) return;
  if (OpenHub* const hub = find_hub(hubs_, connection.hub)) ++hub->refused;
  try {
    loop_.note("hung up on", connection.process, connection.user, error->message);
  } catch (const std::bad_alloc&) {
    // Only the log line is lost.
  }
}

void Connections::unclaim(Connection& connection) noexcept {
  Exports& exports = Exports::of(context_);
  for (const auto& [token, claim] : connection.claims) {
    for (uint64_t i = 0; i < claim.exported; ++i)
      exports.unclaim(token);
  }
  connection.claims.clear();
  if (connection.lent) exports.unclaim(*connection.lent);
  connection.lent.reset();
}

void Connections::leave_undrained(Connection& connection) noexcept {
  if (connection.channel.unread() == 0) return;
  try {
    connection.channel.drop();
    undrained_.push_back(
        {std::move(connection.channel), connection.hub, connection.process, connection.user});
    loop_.look_until(Clock::now() + kDrainTime);
  } catch (const std::bad_alloc&) {
    // Its descriptors are no longer counted; the kernel's own limit still holds.
  }
}

void Connections::bury() noexcept {
  if (!std::exchange(any_doomed_, false)) return;
  for (auto at = all_.begin(); at != all_.end();) {
    const auto one = at++;
    const Connection& connection = *one->second;
    if (!connection.doomed) continue;
    if (connection.role == Role::kLink) {
      if (OpenHub* const hub = find_hub(hubs_, connection.hub)) hub->table.publisher_has_ended(connection.id);
      // The holder stays for a while, because what was fetched may still be imported.
      const auto holder = all_.find(connection.partner);
      if (holder != all_.end() && holder->second->claims.empty()) {
        holder->second->lease_until = platform::deadline_after(kLeaseTime);
        loop_.look_until(holder->second->lease_until);
      }
    }
    leave_undrained(*one->second);
    all_.erase(one);
  }
}

void Connections::end_all() noexcept {
  for (const auto& [id, connection] : all_) {
    platform::hang_up(connection->channel.socket());
    unclaim(*connection);
  }
  all_.clear();
  undrained_.clear();
}

}  // namespace gpumem::core
