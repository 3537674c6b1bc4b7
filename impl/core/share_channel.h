// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One end of a connection: puts messages into packets and back. Its owner locks, and says when it may go on.
#pragma once

#include <deque>
#include <optional>

#include "core/share_protocol.h"
#include "platform/descriptor.h"
#include "platform/socket.h"

namespace gpumem::core {

// How long a message may take from its first packet, and an answer to be taken, where a hub does not say.
inline constexpr uint64_t kMessageTime = 5'000'000'000;
// Messages of one connection before others have their turn.
inline constexpr int kAtOnce = 32;

class Channel {
 public:
  explicit Channel(platform::Descriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return socket_.get(); }

  // Sends what there is room for, and keeps the rest. PEER_GONE. Without memory nothing of it is sent.
  Result<void> send(Message message, platform::Descriptors descriptors);
  // Goes on with what is left.
  Result<void> flush();
  bool has_output() const { return !output_.empty(); }
  size_t output_count() const { return output_.size(); }
  // The kernel said to try again, without telling when, or had no memory.
  bool is_held_up() const { return held_up_; }

  // The next message; nothing if there is none now, or no memory for it. PEER_GONE; after another failure the
  // connection must end.
  Result<std::optional<Incoming>> receive(uint32_t descriptors_max);
  // The head of a message that is not whole yet; else null.
  const Message* begun() const { return assembler_.open(); }
  size_t held() const { return assembler_.held(); }
  // Closes what came of a message that is not whole, and what waits to be sent.
  void drop() noexcept {
    assembler_ = {};
    output_.clear();
  }

 private:
  platform::Descriptor socket_;
  Assembler assembler_;
  std::deque<Packet> output_;
  bool held_up_ = false;
};

}  // namespace gpumem::core
