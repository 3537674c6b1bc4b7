// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The asking end of a connection. Calls send from their own threads and poll briefly for the answer; later
// ones are received by the instance's sharing thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/share/peer/event_loop.h"
#include "core/share/peer/peer.h"
#include "core/share/wire/channel.h"

namespace gpumem::core {

// 0 is the default of 5 seconds.
platform::Deadline answer_deadline(uint64_t timeout_ns);
// What is left of it for one more answer, in nanoseconds; 1 if it is over.
uint64_t time_until(platform::Deadline deadline);

// Says whose words they are.
std::string quoted_answer(const std::string& text);

class ShareClient final : public SharePeer, public EventLoop::Client {
 public:
  // Takes a connected socket. `loop` has been started.
  // `timeout_ns`: how long an answer may take from its first packet, if that is more than the default.
  // `exporter`: the instance at whose own address it is connected, if it is.
  static Result<std::shared_ptr<ShareClient>> open(EventLoop& loop, platform::Descriptor socket,
                                                   uint64_t timeout_ns = 0, const Token& exporter = {});
  ShareClient(EventLoop& loop, platform::Descriptor socket, const Origin& origin, uint64_t timeout_ns,
              const Token& exporter);
  ~ShareClient() override;

  // Sends a request and waits for its answer. Fails with the other side's refusal, PEER_GONE or BUSY.
  Result<Incoming> call(Message request, platform::SharedDescriptors descriptors, MessageType answer,
                        platform::Deadline deadline, const AnswerLimit& limit = {});
  // Fails waiting and later calls with this error.
  void abandon(const Error& error) noexcept override;

  Result<Incoming> claim(const Token& token, const AnswerLimit& limit, uint64_t timeout_ns) override;
  void release(const Token& token) noexcept override;
  // Whether a call of this type gave up, and its answer has not come yet.
  bool owes_answer_to(MessageType type) const;
  bool gone() const noexcept override { return gone_.load(std::memory_order_acquire); }
  bool has_hung_up() const noexcept override { return gone() || platform::has_hung_up(socket()); }
  bool withdrawn(const Token& token) const noexcept override;

  int socket() const override { return channel_.socket(); }
  void serve() noexcept override;

 private:
  // An open question. Without a place for the answer, its caller has stopped waiting; of a kWait, the other
  // side is told so.
  struct Question {
    MessageType type{};
    MessageType answer{};
    std::string name;      // of a kWait
    uint64_t version = 0;  // of a kWait, a kPublish
    bool once = false;     // of a kWait that only looks
    std::optional<Token> claims;
    AnswerLimit limit;
    std::optional<Result<Incoming>>* place = nullptr;
  };

  // An export that this side has claimed, or is claiming.
  struct Held {
    uint64_t count = 0;
    uint64_t owed = 0;  // releases that the other side has not been told of, for lack of memory
    bool withdrawn = false;
  };
  using Claims = std::map<Token, Held>;

  void end(const Error& error) noexcept;
  std::optional<Error> take_all() noexcept;
  uint32_t descriptors_max_of(const Message& head) const;
  void report(const Error& damage) noexcept;
  template <class IsOver>
  void take_answer_soon(std::unique_lock<std::mutex>& lock, platform::Deadline until, const IsOver& is_over);
  Result<void> await_rest();
  Result<void> take(Incoming incoming);
  Result<void> take_answer(Incoming incoming);
  Result<void> check_head(const Message& message) const;
  static Result<void> check_answer(const Question& question, const Message& message);
  void send(Message message, platform::SharedDescriptors descriptors = {});
  void drop_unheld(const Token& token) noexcept;
  void count_down(Claims::iterator held) noexcept;
  bool send_releases(Claims::iterator held) noexcept;
  bool send_cancels() noexcept;
  void send_owed() noexcept;
  void update_interest() noexcept;

  EventLoop& loop_;
  std::atomic<bool> gone_{false};
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable answered_;
  Channel channel_;
  std::optional<Error> ended_;
  bool wants_to_write_ = false;
  const uint64_t time_ns_;  // for a message
  platform::Deadline message_until_ = platform::Deadline::max();
  uint64_t last_number_ = 0;
  std::map<uint64_t, Question> questions_;
  Claims claims_;
  uint64_t owed_ = 0;                       // of all
  bool owes_cancels_ = false;               // some could not be sent, for lack of memory
  std::atomic<bool> any_withdrawn_{false};  // once there has been one
};

}  // namespace gpumem::core
