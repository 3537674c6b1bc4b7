// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Connections without memory: a message arrives whole or not at all, and the next one after it.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <new>
#include <optional>
#include <string>
#include <utility>

#include "core/share/wire/channel.h"
#include "loop.h"

namespace faults {
namespace {

using gpumem::core::Channel;
using gpumem::core::Incoming;
using gpumem::core::Message;
using gpumem::core::MessageType;
namespace platform = gpumem::platform;

constexpr uint64_t kCallsMost = 1000;

struct Ends {
  Ends() : Ends(std::move(*platform::socket_pair())) {}
  explicit Ends(platform::SocketPair&& pair) : first(std::move(pair.ours)), second(std::move(pair.theirs)) {}
  Channel first;
  Channel second;
};

Message granted(uint32_t descriptor_count) {
  Message message;
  message.type = MessageType::kGranted;
  message.number = 7;
  message.handle.backend = GPUMEM_BACKEND_HOST;
  message.handle.size = uint64_t{descriptor_count} * 4096;  // the least that so many blocks have
  message.handle.fd_count = descriptor_count;
  message.handle.way = GPUMEM_SHARE_WAY_POSIX_FD;
  return message;
}

Message numbered(uint64_t number) {
  Message message;
  message.number = number;
  return message;
}

platform::Descriptors copies(uint32_t count) {
  platform::Descriptors result;
  for (uint32_t i = 0; i < count; ++i) {
    auto copy = platform::duplicate(STDERR_FILENO);
    EXPECT_TRUE(copy);
    if (copy) result.push_back(std::move(*copy));
  }
  return result;
}

// What comes next; a message without a number if nothing does.
Incoming next(Channel& channel) {
  for (;;) {
    auto got =
        channel.receive([](const gpumem::core::Message&) { return gpumem::core::kMessageDescriptorsMax; });
    EXPECT_TRUE(got) << got.error().message;
    if (got && got->message) return std::move(*got->message);
    if (!got || !got->packet) return {};
  }
}

// Calls body() with the 1st, 2nd, ... allocation failing, and after(failed), until none is left to fail.
template <class Body, class After>
void loop(Body body, After after) {
  for (uint64_t k = 1; k < kCallsMost; ++k) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(k));
    bool failed = false;
    arm({Kind::kAllocation, k, false, 0});
    try {
      body();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    disarm();
    after(failed);
    if (hits() == 0 || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "it goes on allocating";
}

// A message of two packets, behind what `begin` sends. All that did not fail must arrive.
template <class Begin>
void send_without_memory(Begin begin) {
  constexpr uint32_t kCount = platform::kDescriptorsPerPacket + 1;
  std::optional<Ends> ends;
  platform::SharedDescriptors descriptors;
  size_t expected = 0;
  const auto send = [&](uint32_t count) {
    EXPECT_TRUE(ends->first.send(count != 0 ? granted(count) : numbered(9), platform::share(copies(count))));
    ++expected;
  };
  const auto prepare = [&] {
    ends.emplace();
    expected = 0;
    begin(ends->first, send);
    descriptors = platform::share(copies(kCount));
  };
  prepare();
  loop([&] { EXPECT_TRUE(ends->first.send(granted(kCount), std::move(descriptors))); },
       [&](bool failed) {
         if (!failed) ++expected;
         send(0);
         Incoming last;
         for (size_t i = 0; i < expected && !testing::Test::HasFailure(); ++i) {
           last = next(ends->second);
           EXPECT_TRUE(ends->first.flush());
           EXPECT_EQ(last.descriptors.size(), last.message.handle.fd_count);
         }
         EXPECT_EQ(last.message.number, 9u) << "not all that was sent has come";
         EXPECT_FALSE(ends->first.has_output());
         EXPECT_FALSE(next(ends->second).message.number) << "what failed has come";
         prepare();
       });
}

}  // namespace

void run_sending_without_memory() {
  // Behind messages for which the socket has no room, so that the queue needs memory sometimes.
  for (int waiting = 0; waiting < 12; ++waiting) {
    send_without_memory([&](Channel& channel, const auto& send) {
      const int little = 1;
      EXPECT_EQ(setsockopt(channel.socket(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
      while (!channel.has_output())
        send(0);
      for (int i = 0; i < waiting; ++i)
        send(0);
    });
  }
  // Behind descriptors that are not read, so that the record of these needs memory sometimes: it grows by 64.
  for (int unread = 60; unread < 66; ++unread) {
    send_without_memory([&](Channel& /*channel*/, const auto& send) {
      for (int i = 0; i < unread; ++i)
        send(1);
    });
  }
}

void run_receiving_without_memory() {
  constexpr uint32_t kCount = 5;
  Ends ends;
  const auto send = [&] { EXPECT_TRUE(ends.first.send(granted(kCount), platform::share(copies(kCount)))); };
  Incoming got;
  send();
  loop([&] { got = next(ends.second); },
       [&](bool failed) {
         EXPECT_FALSE(failed);
         if (got.message.type != MessageType::kGranted) got = next(ends.second);
         EXPECT_EQ(got.message.type, MessageType::kGranted) << "it was lost";
         EXPECT_EQ(got.descriptors.size(), kCount);
         got = {};
         send();
       });
}

}  // namespace faults
