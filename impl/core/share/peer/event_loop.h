// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The sharing thread of an instance: waits for sockets and points in time, and calls who serves them. It
// sleeps while idle, and makes no driver call.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "core/object/warnings.h"
#include "core/share/peer/sleepers.h"
#include "platform/descriptor.h"
#include "platform/socket.h"

namespace gpumem::core {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;

  // What to wait for at a socket. A hang-up is reported all the same.
  static constexpr uint32_t kNever = 0;
  static constexpr uint32_t kToRead = EPOLLIN;
  static constexpr uint32_t kToWrite = EPOLLOUT;
  // There is room all the time; this tells when some of what was sent has been read.
  static constexpr uint32_t kToGoOn = EPOLLOUT | EPOLLET;
  // When to look again for what the kernel held up.
  static constexpr auto kSoon = std::chrono::milliseconds(5);

  // What the thread does in a round; all but unlocked() with the lock. What throws bad_alloc is called again
  // in a later round.
  class Work {
   public:
    virtual void begin() = 0;
    // Something has happened at the socket that was added with this number.
    virtual void take_event(uint64_t id) = 0;
    // Says by look_until() when to look again.
    virtual void look_at_times(Clock::time_point now) = 0;
    // Called again once the descriptors are closed that the round has left.
    virtual void end() noexcept = 0;
    virtual void unlocked() noexcept = 0;

   protected:
    ~Work() = default;
  };

  // A connection of this instance to another one's server. It has a lock of its own, so its functions are
  // called without that of the loop.
  class Client {
   public:
    virtual ~Client() = default;
    virtual int socket() const = 0;
    // Its socket is ready, or it had asked to be looked at.
    virtual void serve() noexcept = 0;
    // Nobody serves it any more: ends the calls that wait.
    virtual void abandon(const Error& error) noexcept = 0;

   private:
    friend class EventLoop;
    uint64_t id_ = 0;
  };

  EventLoop() = default;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Guards the state of the loop and of who works in it.
  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }

  // ---- how it begins and ends ----

  // In this order, with the lock. CLOSED once it has stopped; run() throws what std::thread throws.
  Result<void> open();
  void close() noexcept;  // if it does not run after all
  void run(Work& work);
  // In this order, without the lock. The first is false if it was called before, the second if it never ran.
  bool begin_stop() noexcept;
  bool join() noexcept;
  void abandon_clients(const Error& error) noexcept;
  void signal_stop() noexcept;

  bool is_this_thread() const { return std::this_thread::get_id() == thread_id_.load(); }
  bool is_running() const { return running_.load(std::memory_order_acquire); }
  bool has_thread() const { return thread_.joinable(); }
  bool stopped() const { return stopped_; }  // with the lock
  // A descriptor that is readable once signal_stop() was called.
  int stop_event() const { return stop_event_.get(); }
  // INVALID_STATE on the thread, where a log function runs: the answers come to it.
  Result<void> may_wait() const;
  // As platform::connect_to(), and ends when the loop stops. It need not run.
  Result<platform::Descriptor> connect(const std::string& address, platform::Deadline deadline) const;

  // ---- sockets, with the lock ----

  uint64_t next_id() { return ++last_id_; }
  Result<void> add(int socket, uint64_t id, uint32_t events);
  void change(int socket, uint64_t id, uint32_t events) noexcept;

  // ---- when to look again ----

  void look_until(platform::Deadline deadline);  // with the lock
  // Without the lock. In some milliseconds; and soon after the deadline. Both serve all clients too.
  void look_soon() noexcept;
  void look_by(platform::Deadline deadline) noexcept;
  void wake() noexcept;

  // ---- clients, without the lock ----

  Result<void> watch(const std::shared_ptr<Client>& client);
  void forget(const Client& client) noexcept;
  void set_interest(const Client& client, bool to_write) noexcept;
  void ignore(int socket) noexcept;  // with or without the lock

  // Woken when another process ends or the loop stops.
  Sleepers& sleepers() { return sleepers_; }

  // ---- the log ----

  // With the lock: the thread logs it at the end of its round. Throws bad_alloc.
  void note(std::string line);
  void note(const char* cause, int32_t process, uint32_t user, const char* why);
  // What was noted, for who logs it at once.
  std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }
  // Logs what another process did, unless its user has done the same too often. Without the lock.
  void warn(const char* cause, int32_t process, uint32_t user, const char* why) noexcept;
  static void log_lines(const std::vector<std::string>& lines) noexcept;

 private:
  using Clients = std::vector<std::shared_ptr<Client>>;

  void turn_round(Work& work) noexcept;
  void take_event(Work& work, uint64_t id, Clients& clients);
  void look_at_times(Work& work, Clients& clients);
  std::shared_ptr<Client> take_client() noexcept;

  platform::Descriptor poll_;
  platform::Descriptor wake_event_;
  platform::Descriptor stop_event_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
  std::atomic<bool> running_{false};
  std::atomic<bool> look_soon_{false};
  Sleepers sleepers_;

  mutable std::mutex mutex_;  // guards the rest
  bool stopped_ = false;
  uint64_t last_id_ = 0;
  platform::Deadline next_look_ = platform::Deadline::max();
  std::map<uint64_t, std::weak_ptr<Client>> clients_;
  std::vector<std::string> lines_;  // for the log, which is called without the lock
  Warnings warnings_;
};

}  // namespace gpumem::core
