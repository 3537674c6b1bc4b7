// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/wire/channel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

namespace gpumem::core {

Result<void> Channel::send(Message message, platform::SharedDescriptors descriptors) {
  output_.emplace_back(std::move(message), std::move(descriptors));
  return flush();
}

Result<void> Channel::flush() {
  held_up_ = false;
  while (!output_.empty()) {
    Outgoing& next = output_.front();
    const size_t before = unread();
    const size_t room = window_ - std::min(before, window_);
    held_up_ = next.left() != 0 && room == 0;
    if (held_up_) return {};
    const auto [bytes, descriptors] = next.packet(room);
    const size_t count = descriptors.size();
    const bool counts = count != 0 || before != 0;
    try {
      if (counts) sent_.push_back(count);
    } catch (const std::bad_alloc&) {
      held_up_ = true;  // no failure, because the message will still be sent
      return {};
    }
    auto sent = platform::send_some(socket_.get(), bytes, descriptors);
    const bool gone = sent && sent->state == platform::Sending::kDone;
    if (gone) {
      unread_ += count;
    } else if (counts) {
      sent_.pop_back();
    }
    // Out of memory, the kernel took nothing: keep the packet, as the other side waits for it.
    held_up_ = sent ? sent->state == platform::Sending::kLater
                    : sent.error().status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY;
    if (held_up_) return {};
    if (!sent) return sent.error();
    if (!gone) return {};
    if (next.advance()) output_.pop_front();
  }
  return {};
}

size_t Channel::unread() {
  if (sent_.empty()) return 0;
  for (const size_t most = platform::unread_packets(socket_.get()); sent_.size() > most; sent_.pop_front())
    unread_ -= sent_.front();
  if (unread_ == 0) sent_.clear();
  return unread_;
}

Result<Channel::Taken> Channel::receive(const Assembler::DescriptorsMax& descriptors_max) {
  std::array<uint8_t, kPacketMax> room;
  auto got = platform::receive_some(socket_.get(), room);
  // Out of memory, nothing was read: the packet stays for the next call.
  if (!got && got.error().status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY) return Taken();
  if (!got) return got.error();
  if (got->state == platform::Received::State::kNothing) return Taken();
  if (got->state == platform::Received::State::kHungUp)
    return make_error(GPUMEM_ERROR_PEER_GONE,
                      "the other process has ended or hung up; connect again, or get a new share handle");
  if (got->truncated)
    return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                      "a message of another process is damaged: it is too long");
  auto whole =
      assembler_.take({room.data(), got->size}, std::move(got->descriptors), descriptors_max, got->none_free);
  if (!whole) return whole.error();
  return Taken{true, std::move(*whole)};
}

}  // namespace gpumem::core
