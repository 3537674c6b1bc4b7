// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/client.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <new>
#include <thread>
#include <utility>

#include "base/cleanup.h"

namespace gpumem::core {
namespace {

// Most questions and packets in flight.
constexpr size_t kOpenMax = 4096;
// How long a call looks for its answer before it sleeps.
constexpr auto kSpinTime = std::chrono::microseconds(200);

using Clock = std::chrono::steady_clock;

// Whether a request of this type can be refused so. What the other side says is passed on, and no call may
// fail with a status that it does not have.
bool can_be_refused(MessageType request, Status status) {
  const auto is_of = [status](std::initializer_list<Status> those) {
    return std::find(those.begin(), those.end(), status) != those.end();
  };
  // It may be busy, or its system may fail.
  if (is_of({GPUMEM_ERROR_BUSY, GPUMEM_ERROR_OUT_OF_HOST_MEMORY, GPUMEM_ERROR_INTERNAL})) return true;
  switch (request) {
    case MessageType::kHello:
      return is_of({GPUMEM_ERROR_LIMIT_EXCEEDED, GPUMEM_ERROR_PERMISSION_DENIED, GPUMEM_ERROR_STALE_HANDLE,
                    GPUMEM_ERROR_UNSUPPORTED});
    case MessageType::kClaim:
      return is_of({GPUMEM_ERROR_ALREADY_EXISTS, GPUMEM_ERROR_LIMIT_EXCEEDED, GPUMEM_ERROR_PERMISSION_DENIED,
                    GPUMEM_ERROR_STALE_HANDLE});
    case MessageType::kEnumerate:
    case MessageType::kFetch:
      return status == GPUMEM_ERROR_NOT_FOUND;
    case MessageType::kWait:
      return is_of({GPUMEM_ERROR_LIMIT_EXCEEDED, GPUMEM_ERROR_NOT_FOUND});
    case MessageType::kPublish:
      return is_of({GPUMEM_ERROR_ALREADY_EXISTS, GPUMEM_ERROR_INVALID_ARGUMENT, GPUMEM_ERROR_INVALID_STATE,
                    GPUMEM_ERROR_LIMIT_EXCEEDED, GPUMEM_ERROR_NOT_FOUND, GPUMEM_ERROR_PERMISSION_DENIED,
                    GPUMEM_ERROR_UNSUPPORTED});
    case MessageType::kWithdraw:
      return is_of({GPUMEM_ERROR_NOT_FOUND, GPUMEM_ERROR_PERMISSION_DENIED, GPUMEM_ERROR_UNSUPPORTED});
    default:
      return true;  // the refusal of a trial is its result
  }
}

Error refusal_in(const Message& message) {
  return make_error(message.status, "%s", quoted_answer(message.text).c_str());
}

}  // namespace

std::string quoted_answer(const std::string& text) { return "the other process says: " + text; }

platform::Deadline answer_deadline(uint64_t timeout_ns) {
  return platform::deadline_after(timeout_ns != 0 ? timeout_ns : kMessageTime);
}

uint64_t time_until(platform::Deadline deadline) {
  if (deadline == platform::Deadline::max()) return UINT64_MAX;
  const auto left = std::chrono::nanoseconds(deadline - Clock::now()).count();
  return static_cast<uint64_t>(std::max<int64_t>(left, 1));
}

ShareClient::ShareClient(EventLoop& loop, platform::Descriptor socket, const Origin& origin,
                         uint64_t timeout_ns, const Token& exporter)
    : SharePeer(origin, exporter),
      loop_(loop),
      channel_(std::move(socket)),
      time_ns_(std::max(timeout_ns, kMessageTime)) {}

ShareClient::~ShareClient() {
  loop_.forget(*this);
  // A forked child may have a copy, which must not keep the other side waiting.
  platform::hang_up(channel_.socket());
}

Result<std::shared_ptr<ShareClient>> ShareClient::open(EventLoop& loop, platform::Descriptor socket,
                                                       uint64_t timeout_ns, const Token& exporter) {
  auto origin = origin_of(socket.get());
  if (!origin) return origin.error();
  auto client = std::make_shared<ShareClient>(loop, std::move(socket), *origin, timeout_ns, exporter);
  GPUMEM_TRY(loop.watch(client));
  return client;
}

Result<Incoming> ShareClient::call(Message request, platform::SharedDescriptors descriptors,
                                   MessageType answer, platform::Deadline deadline,
                                   const AnswerLimit& limit) {
  GPUMEM_TRY(loop_.may_wait());
  std::optional<Result<Incoming>> place;
  const platform::ClosingTogether together;  // without the lock
  std::unique_lock lock(mutex_);
  if (ended_) return *ended_;
  if (const size_t open = std::max(questions_.size(), channel_.output().size()); open >= kOpenMax) {
    return make_error(GPUMEM_ERROR_BUSY,
                      "the other process has not answered or read %zu requests; try again later", open);
  }
  const uint64_t number = ++last_number_;
  request.number = number;
  const MessageType type = request.type;
  Question question{type, answer, request.name, request.version, request.once, {}, limit, &place};
  if (type == MessageType::kClaim) question.claims = request.token;
  questions_.emplace(number, question);
  Cleanup undo([&] {
    questions_.erase(number);
    if (question.claims) drop_unheld(*question.claims);
  });
  if (question.claims) claims_.try_emplace(*question.claims);  // or the answer could be lost
  send(std::move(request), std::move(descriptors));
  const auto is_over = [&] { return place.has_value() || ended_.has_value(); };
  // The answer to a wait can take any time; that to a look comes as soon as others.
  if (type != MessageType::kWait || question.once)
    take_answer_soon(lock, std::min(deadline, Clock::now() + kSpinTime), is_over);
  if (is_over()) {
    // Nothing to wait for.
  } else if (deadline == platform::Deadline::max()) {
    answered_.wait(lock, is_over);
  } else {
    answered_.wait_until(lock, deadline, is_over);
  }
  if (place) return std::move(*place);
  if (ended_) return *ended_;
  // The answer may still come: then its claim is released.
  undo.dismiss();
  questions_[number].place = nullptr;
  // Nobody accounts for what came of it, or will come.
  if (const Message* const begun = channel_.begun(); begun != nullptr && begun->number == number)
    channel_.refuse_begun_descriptors();
  if (type == MessageType::kWait) (void)send_cancels();
  return make_error(GPUMEM_ERROR_BUSY,
                    "the other process did not answer in time; try again, or pass a longer timeout");
}

bool ShareClient::owes_answer_to(MessageType type) const {
  const std::lock_guard lock(mutex_);
  return !ended_ && std::any_of(questions_.begin(), questions_.end(), [&](const auto& question) {
    return question.second.type == type && question.second.place == nullptr;
  });
}

// Polls on this thread, because most answers come before the sharing thread could wake up and wake this one.
// It looks at least once, however late this thread runs.
template <class IsOver>
void ShareClient::take_answer_soon(std::unique_lock<std::mutex>& lock, platform::Deadline until,
                                   const IsOver& is_over) {
  while (!is_over() && !gone()) {
    const std::optional<Error> damage = take_all();
    const bool over = is_over();
    lock.unlock();
    if (damage) report(*damage);
    if (!over) std::this_thread::yield();
    lock.lock();
    if (Clock::now() >= until) return;
  }
}

// A failure shows in ended_.
void ShareClient::send(Message message, platform::SharedDescriptors descriptors) {
  if (ended_) return;
  // After a hang-up, earlier messages are still unread, so only reading ends the connection.
  if (auto sent = channel_.send(std::move(message), std::move(descriptors));
      !sent && sent.error().status != GPUMEM_ERROR_PEER_GONE)
    end(sent.error());
  update_interest();
}

void ShareClient::update_interest() noexcept {
  const bool wants = channel_.has_output() && !channel_.is_held_up();
  if (channel_.is_held_up()) loop_.look_soon();
  if (std::exchange(wants_to_write_, wants) != wants) loop_.set_interest(*this, wants);
}

void ShareClient::end(const Error& error) noexcept {
  if (!ended_) ended_ = error;
  gone_.store(true, std::memory_order_release);
  loop_.sleepers().wake();
  loop_.ignore(channel_.socket());
  platform::hang_up(channel_.socket());
  channel_.drop();
  answered_.notify_all();
}

void ShareClient::abandon(const Error& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!ended_) ended_ = error;
  answered_.notify_all();
}

// Without the lock: the log function is the caller's.
void ShareClient::report(const Error& damage) noexcept {
  const ProcessId& other = origin().process;
  loop_.warn("ended the connection to", other.pid, other.user, damage.message);
}

void ShareClient::serve() noexcept {
  std::optional<Error> damage;
  {
    const std::lock_guard lock(mutex_);
    damage = take_all();
  }
  if (damage) report(*damage);
}

// Takes what has arrived. Returns an error to log if the other side broke the protocol.
std::optional<Error> ShareClient::take_all() noexcept {
  if (gone()) return {};
  Error problem;
  try {
    if (auto flushed = channel_.flush(); !flushed && flushed.error().status != GPUMEM_ERROR_PEER_GONE) {
      end(flushed.error());
      return {};
    }
    update_interest();
    send_owed();
    const auto most = [this](const Message& head) { return descriptors_max_of(head); };
    Result<void> going_on;
    for (int i = 0; i < kAtOnce && going_on; ++i) {
      auto incoming = channel_.receive(most);
      if (!incoming) {
        going_on = incoming.error();
      } else if (incoming->message) {
        message_until_ = platform::Deadline::max();
        going_on = take(std::move(*incoming->message));
      } else if (!incoming->packet) {
        break;
      }
    }
    if (going_on) going_on = await_rest();
    if (going_on) return {};
    problem = going_on.error();
  } catch (const std::bad_alloc&) {
    problem = make_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "no memory for what another process said");
  }
  const bool damaged = problem.status == GPUMEM_ERROR_INVALID_ARGUMENT;
  if (damaged) problem.status = GPUMEM_ERROR_PEER_GONE;  // the caller's arguments are valid
  end(problem);
  if (!damaged) return {};
  return problem;
}

uint32_t ShareClient::descriptors_max_of(const Message& head) const {
  uint32_t most = descriptors_taken_max();
  const auto asked = questions_.find(head.number);
  if (asked == questions_.end()) return most;
  const Question& question = asked->second;
  if (question.place == nullptr) return 0;  // nobody waits for it any more
  most = std::min(most, question.limit.descriptors_max);
  const auto* const has_room = question.limit.has_room;
  return head.descriptor_count > most || has_room == nullptr || (*has_room)(head) ? most : 0;
}

// Limits the time for the rest of a message, because its descriptors stay open here until it is complete.
Result<void> ShareClient::await_rest() {
  const Message* const begun = channel_.begun();
  if (begun == nullptr) return {};
  GPUMEM_TRY(check_head(*begun));
  if (message_until_ == platform::Deadline::max()) message_until_ = platform::deadline_after(time_ns_);
  if (message_until_ <= Clock::now())
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "it took too long for the rest of a message");
  loop_.look_by(message_until_);
  return {};
}

Result<void> ShareClient::take(Incoming incoming) {
  const Message& message = incoming.message;
  if (message.type == MessageType::kWithdrawn) {
    // A WITHDRAWN may arrive just after the release.
    const auto held = claims_.find(message.token);
    if (held == claims_.end() || held->second.count == 0) return {};
    held->second.withdrawn = true;
    any_withdrawn_.store(true, std::memory_order_release);
    return {};
  }
  return take_answer(std::move(incoming));
}

// Checks a message that is not whole yet by its head.
Result<void> ShareClient::check_head(const Message& message) const {
  const auto found = questions_.find(message.number);
  if (found != questions_.end()) return check_answer(found->second, message);
  // The answer to a WAIT that was cancelled meanwhile.
  const bool of_wait = message.type == MessageType::kRefused || message.type == MessageType::kEntry;
  if (of_wait && message.number <= last_number_) return {};
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "an answer to no question");
}

Result<void> ShareClient::check_answer(const Question& question, const Message& message) {
  if (message.type == MessageType::kRefused) {
    // Only a look finds nothing; who waits, waits on.
    const bool waits_on = question.type == MessageType::kWait && !question.once;
    const bool absurd = waits_on && message.status == GPUMEM_ERROR_NOT_FOUND;
    if (can_be_refused(question.type, message.status) && !absurd) return {};
    return violation("a refusal with a status that the request cannot have");
  }
  if (message.type != question.answer) return violation("an answer to another question");
  if (question.claims && message.handle.token != *question.claims)
    return violation("what was not asked for was granted");
  const HubEntry& entry = message.entry;
  if (question.type == MessageType::kWait &&
      (entry.name != question.name || entry.version <= question.version))
    return violation("another name, or no newer version, than was waited for");
  if (question.type == MessageType::kPublish && question.version != 0 && message.version != question.version)
    return violation("another version was published than was asked for");
  return {};
}

Result<void> ShareClient::take_answer(Incoming incoming) {
  const Message& message = incoming.message;
  const bool refused = message.type == MessageType::kRefused;
  if (refused && message.number == 0) {
    // A server that accepts no connections refuses before the first question.
    const bool is_first = last_number_ == 0 || questions_.contains(1);
    if (!is_first || !can_be_refused(MessageType::kHello, message.status))
      return violation("a refusal of no question");
    end(refusal_in(message));
    return {};
  }
  const auto found = questions_.find(message.number);
  if (found == questions_.end()) return check_head(message);
  const Question question = std::move(found->second);
  GPUMEM_TRY(check_answer(question, message));
  if (question.claims && !refused) {
    Held& held = claims_[*question.claims];
    ++held.count;
    held.withdrawn = false;
  }
  questions_.erase(found);
  // More than were asked for are left out, as the caller sees.
  const bool too_many = incoming.too_many && message.descriptor_count <= question.limit.descriptors_max;
  // No caller waits for the answer or can use it.
  const bool unused = question.place == nullptr || too_many;
  if (question.claims && !refused && unused) count_down(claims_.find(*question.claims));
  if (question.place == nullptr) {
    if (question.claims && refused) drop_unheld(*question.claims);
    return {};
  }
  if (refused) {
    question.place->emplace(refusal_in(message));
  } else if (too_many) {
    question.place->emplace(too_many_descriptors(incoming));
  } else {
    question.place->emplace(std::move(incoming));
  }
  answered_.notify_all();
  return {};
}

Result<Incoming> ShareClient::claim(const Token& token, const AnswerLimit& limit, uint64_t timeout_ns) {
  Message request;
  request.type = MessageType::kClaim;
  request.token = token;
  return call(std::move(request), {}, MessageType::kGranted, answer_deadline(timeout_ns), limit);
}

void ShareClient::release(const Token& token) noexcept {
  const std::lock_guard lock(mutex_);
  const auto held = claims_.find(token);
  if (held != claims_.end() && held->second.count != 0) count_down(held);
}

void ShareClient::drop_unheld(const Token& token) noexcept {
  const auto held = claims_.find(token);
  if (held != claims_.end() && held->second.count == 0 && held->second.owed == 0) claims_.erase(held);
}

void ShareClient::count_down(Claims::iterator held) noexcept {
  --held->second.count;
  ++held->second.owed;
  ++owed_;
  (void)send_releases(held);
}

// Works after abandon() too, as the socket is still open. False if out of memory.
bool ShareClient::send_releases(Claims::iterator held) noexcept {
  Held& claim = held->second;
  try {
    for (; claim.owed != 0; --claim.owed, --owed_) {
      Message message;
      message.type = MessageType::kRelease;
      message.token = held->first;
      // A connection that has ended holds nothing.
      if (!gone()) (void)channel_.send(std::move(message));
    }
    if (!gone()) update_interest();
  } catch (const std::bad_alloc&) {
    loop_.look_soon();
    return false;
  }
  if (claim.count == 0) claims_.erase(held);
  return true;
}

// False if out of memory.
bool ShareClient::send_cancels() noexcept {
  owes_cancels_ = true;
  try {
    for (auto at = questions_.begin(); at != questions_.end();) {
      const auto over = at++;
      if (over->second.type != MessageType::kWait || over->second.place != nullptr) continue;
      Message message;
      message.type = MessageType::kCancel;
      message.version = over->first;
      send(std::move(message));
      questions_.erase(over);
    }
  } catch (const std::bad_alloc&) {
    loop_.look_soon();
    return false;
  }
  owes_cancels_ = false;
  return true;
}

void ShareClient::send_owed() noexcept {
  if (owes_cancels_ && !send_cancels()) return;
  for (auto at = claims_.begin(); owed_ != 0 && at != claims_.end();) {
    const auto held = at++;
    if (!send_releases(held)) return;
  }
}

bool ShareClient::withdrawn(const Token& token) const noexcept {
  if (!any_withdrawn_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  const auto held = claims_.find(token);
  return held != claims_.end() && held->second.count != 0 && held->second.withdrawn;
}

}  // namespace gpumem::core
