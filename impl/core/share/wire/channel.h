// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One end of a connection: puts messages into packets and back. Its owner locks, and says when it may go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "core/share/wire/protocol.h"
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
  // To be tried again, without anything that tells when: the kernel said so, it had no memory, or the other
  // side has too many descriptors to read.
  bool is_held_up() const { return held_up_; }

  // What the other side has not read counts as that of the user who sent it, of which the kernel allows only
  // so many: at most so many descriptors, and perhaps a few that it has read.
  size_t unread();
  // How many of them there may be, or one packet if there are none; 0: no packet with descriptors is sent.
  void set_window(size_t descriptors) { window_ = descriptors; }

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
  size_t window_ = SIZE_MAX;
  std::deque<size_t> sent_;  // descriptors of the last packets, from the first that may be unread
  size_t unread_ = 0;        // of all these
};

}  // namespace gpumem::core
