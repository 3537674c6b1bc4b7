// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/cleanup.h"
#include "core/object/context.h"
#include "core/object/log.h"
#include "platform/pages.h"
#include "platform/thread.h"

namespace gpumem::core {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr size_t kLinesMax = 16;

Result<platform::Descriptor> checked(int made, const char* entry_point) {
  if (made >= 0) return platform::Descriptor(made);
  if (errno == EMFILE || errno == ENFILE) return platform::no_descriptor(errno, entry_point);
  return platform::system_error(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, errno, entry_point,
                                "cannot start the sharing thread");
}

}  // namespace

// ---- how it begins and ends ----

Result<void> EventLoop::open() {
  if (stopped_) return instance_closed();
  auto poll = checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  if (!poll) return poll.error();
  auto wake_event = checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  if (!wake_event) return wake_event.error();
  auto stop_event = checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  if (!stop_event) return stop_event.error();
  poll_ = std::move(*poll);
  wake_event_ = std::move(*wake_event);
  stop_event_ = std::move(*stop_event);
  Cleanup undo([this] { close(); });
  GPUMEM_TRY(add(wake_event_.get(), kWakeId, kToRead));
  undo.dismiss();
  return {};
}

void EventLoop::close() noexcept {
  poll_ = {};
  wake_event_ = {};
  stop_event_ = {};
}

void EventLoop::run(Work& work) {
  thread_ = platform::start_thread([this, &work] { turn_round(work); });
  running_.store(true, std::memory_order_release);
}

bool EventLoop::begin_stop() noexcept {
  {
    const auto locked = lock();
    if (std::exchange(stopped_, true)) return false;
    running_.store(false, std::memory_order_release);
  }
  sleepers_.wake();
  return true;
}

bool EventLoop::join() noexcept {
  if (!thread_.joinable()) return false;
  wake();
  thread_.join();
  return true;
}

// One by one, because a list of them needs memory, and without it their calls could wait for ever.
void EventLoop::abandon_clients(const Error& error) noexcept {
  while (const auto client = take_client())
    client->abandon(error);
}

// One that lives, which is then not among the clients any more. Null: there is none.
std::shared_ptr<EventLoop::Client> EventLoop::take_client() noexcept {
  std::shared_ptr<Client> client;  // released after unlocking, as its end takes the lock
  const auto locked = lock();
  while (client == nullptr && !clients_.empty()) {
    client = clients_.begin()->second.lock();
    clients_.erase(clients_.begin());
  }
  return client;
}

void EventLoop::signal_stop() noexcept {
  const uint64_t one = 1;
  (void)!write(stop_event_.get(), &one, sizeof one);
}

Result<void> EventLoop::may_wait() const {
  if (!is_this_thread()) return {};
  return make_error(GPUMEM_ERROR_INVALID_STATE,
                    "a log function cannot wait for other processes; call this when it has returned");
}

Result<platform::Descriptor> EventLoop::connect(const std::string& address,
                                                platform::Deadline deadline) const {
  for (;;) {
    {
      const auto locked = lock();
      if (stopped_) return instance_closed();
    }
    auto made = platform::connect_to(address, std::min(deadline, Clock::now() + kSoon));
    if (made || made.error().status != GPUMEM_ERROR_BUSY || Clock::now() >= deadline) return made;
  }
}

// ---- the thread ----

void EventLoop::turn_round(Work& work) noexcept {
  thread_id_ = std::this_thread::get_id();
  std::array<epoll_event, 64> events{};
  for (;;) {
    int timeout = -1;
    {
      const auto locked = lock();
      if (stopped_) break;
      if (next_look_ != platform::Deadline::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_look_ - Clock::now()).count();
        timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
      }
    }
    const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    platform::ClosingTogether together;  // without the lock, and in one thread what many others have sent
    Clients clients;                     // released after unlocking
    std::vector<std::string> lines;
    {
      const auto locked = lock();
      if (stopped_) break;
      try {
        work.begin();
        for (int i = 0; i < count; ++i)
          take_event(work, events.at(static_cast<size_t>(i)).data.u64, clients);
        if (look_soon_.exchange(false)) look_until(Clock::now() + kSoon);
        if (next_look_ <= Clock::now()) look_at_times(work, clients);
      } catch (const std::bad_alloc&) {
        // Retry with the next event.
      }
      work.end();
      lines.swap(lines_);
    }
    if (together.close()) {
      const auto locked = lock();
      work.end();  // with the descriptors that are free now
    }
    for (const auto& client : clients)
      client->serve();
    work.unlocked();
    log_lines(lines);
  }
  // Log the lines of a hub that was closed at once.
  std::vector<std::string> rest;
  {
    const auto locked = lock();
    rest.swap(lines_);
    try {
      warnings_.add_left_out(Clock::time_point::max(), rest);
    } catch (const std::bad_alloc&) {
      // Only lines are lost.
    }
  }
  log_lines(rest);
}

void EventLoop::take_event(Work& work, uint64_t id, Clients& clients) {
  if (id == kWakeId) {
    uint64_t times = 0;
    (void)!read(wake_event_.get(), &times, sizeof times);
  } else if (const auto client = clients_.find(id); client != clients_.end()) {
    clients.reserve(clients.size() + 1);
    if (auto alive = client->second.lock()) clients.push_back(std::move(alive));
  } else {
    work.take_event(id);
  }
}

void EventLoop::look_at_times(Work& work, Clients& clients) {
  // First, because the end of one that does not fit would take the lock again.
  clients.reserve(clients.size() + clients_.size());
  const auto now = Clock::now();
  next_look_ = platform::Deadline::max();
  work.look_at_times(now);
  warnings_.add_left_out(now, lines_);
  look_until(warnings_.next());
  // Resume what was held up.
  for (const auto& [id, client] : clients_) {
    if (auto alive = client.lock()) clients.push_back(std::move(alive));
  }
}

// ---- sockets ----

Result<void> EventLoop::add(int socket, uint64_t id, uint32_t events) {
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

void EventLoop::change(int socket, uint64_t id, uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  (void)epoll_ctl(poll_.get(), EPOLL_CTL_MOD, socket, &event);
}

void EventLoop::ignore(int socket) noexcept { (void)epoll_ctl(poll_.get(), EPOLL_CTL_DEL, socket, nullptr); }

Result<void> EventLoop::watch(const std::shared_ptr<Client>& client) {
  const auto locked = lock();
  if (stopped_) return instance_closed();
  client->id_ = next_id();
  clients_.emplace(client->id_, client);
  if (auto added = add(client->socket(), client->id_, kToRead); !added) {
    clients_.erase(client->id_);
    return added;
  }
  return {};
}

void EventLoop::forget(const Client& client) noexcept {
  const auto locked = lock();
  ignore(client.socket());
  clients_.erase(client.id_);
}

void EventLoop::set_interest(const Client& client, bool to_write) noexcept {
  change(client.socket(), client.id_, to_write ? kToRead | kToWrite : kToRead);
}

// ---- when to look again ----

void EventLoop::wake() noexcept {
  const uint64_t one = 1;
  (void)!write(wake_event_.get(), &one, sizeof one);
}

void EventLoop::look_soon() noexcept {
  if (!look_soon_.exchange(true)) wake();
}

void EventLoop::look_by(platform::Deadline deadline) noexcept {
  const auto locked = lock();
  look_until(deadline);
}

void EventLoop::look_until(platform::Deadline deadline) {
  if (deadline >= next_look_) return;
  next_look_ = deadline;
  if (!is_this_thread()) wake();
}

// ---- the log ----

void EventLoop::note(std::string line) {
  if (lines_.size() < kLinesMax) lines_.push_back(std::move(line));
}

void EventLoop::note(const char* cause, int32_t process, uint32_t user, const char* why) {
  warnings_.add(cause, process, user, why, Clock::now(), lines_);
  look_until(warnings_.next());
}

void EventLoop::warn(const char* cause, int32_t process, uint32_t user, const char* why) noexcept {
  std::vector<std::string> lines;
  try {
    const auto locked = lock();
    warnings_.add(cause, process, user, why, Clock::now(), lines);
    look_until(warnings_.next());
  } catch (const std::bad_alloc&) {
    // Only the log line is lost.
  }
  log_lines(lines);
}

void EventLoop::log_lines(const std::vector<std::string>& lines) noexcept {
  for (const std::string& line : lines)
    log(GPUMEM_LOG_WARNING, "%s", line.c_str());
}

}  // namespace gpumem::core
