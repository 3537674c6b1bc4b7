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

// Time limit for a message from its first packet, and for an answer to be read, unless a hub sets one.
inline constexpr uint64_t kMessageTime = 5'000'000'000;
// Packets taken from one connection before the next has its turn.
inline constexpr int kAtOnce = 32;

class Channel {
 public:
  explicit Channel(platform::Descriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return socket_.get(); }

  // Sends as much as the socket takes and keeps the rest. PEER_GONE. If out of memory, sends nothing.
  Result<void> send(Message message, platform::SharedDescriptors descriptors = {});
  // Goes on with what is left.
  Result<void> flush();
  bool has_output() const { return !output_.empty(); }
  const std::deque<Outgoing>& output() const { return output_; }
  // Whether to retry without an event to wait for: the kernel refused, it had no memory, or the other side
  // has too many unread descriptors.
  bool is_held_up() const { return held_up_; }

  // An upper bound of the descriptors that the other side has not read. The kernel limits them for the user
  // who sent them.
  size_t unread();
  // How many of them there may be.
  void set_window(size_t descriptors) { window_ = descriptors; }

  // Takes the next packet; not if there is none now, or no memory for it. PEER_GONE; after another failure
  // the connection must end.
  struct Taken {
    bool packet = false;
    std::optional<Incoming> message;  // that is whole with it
  };
  Result<Taken> receive(const Assembler::DescriptorsMax& descriptors_max);
  // The head of a message that is not whole yet; else null.
  const Message* begun() const { return assembler_.open(); }
  // Its descriptors, here or still to come.
  size_t begun_descriptors() const { return assembler_.descriptors(); }
  void refuse_begun_descriptors() { assembler_.refuse_descriptors(); }
  // Closes what came of a message that is not whole, and what waits to be sent.
  void drop() noexcept {
    assembler_ = {};
    output_.clear();
  }

 private:
  platform::OwnDescriptor socket_;
  Assembler assembler_;
  std::deque<Outgoing> output_;
  bool held_up_ = false;
  size_t window_ = SIZE_MAX;
  std::deque<size_t> sent_;  // descriptors of the last packets, from the first that may be unread
  size_t unread_ = 0;        // of all these
};

}  // namespace gpumem::core
