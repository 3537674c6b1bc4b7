// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One end of a connection: puts messages into packets and back. Its owner locks, and says when it may go on.
#pragma once

#include <deque>
#include <optional>

#include "core/share_protocol.h"
#include "platform/descriptor.h"
#include "platform/socket.h"

namespace gpumem::core {

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
  bool has_begun() const { return assembler_.is_open(); }
  size_t held() const { return assembler_.held(); }

 private:
  platform::Descriptor socket_;
  Assembler assembler_;
  std::deque<Packet> output_;
  bool held_up_ = false;
};

}  // namespace gpumem::core
