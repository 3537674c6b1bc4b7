// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A socket whose last close() waits for its peer, for as long as whoever made it chose.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "platform/descriptor.h"
#include "platform/socket.h"

namespace gpumem::test {

class Lingering {
 public:
  Lingering() {
    const platform::Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    platform::Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(listener.get(), name, size) != 0 || listen(listener.get(), 1) != 0 ||
        getsockname(listener.get(), name, &size) != 0 || connect(made.get(), name, size) != 0)
      return;
    peer_ = platform::Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::array<char, 65536> bytes{};
    while (send(made.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    const linger setting{1, 3600};
    EXPECT_EQ(setsockopt(made.get(), SOL_SOCKET, SO_LINGER, &setting, sizeof setting), 0);
    made_ = std::move(made);
    watchdog_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      if (!ends_.wait_for(lock, std::chrono::minutes(2), [this] { return ended_; })) late = true;
      peer_ = platform::Descriptor();  // which ends all waiting
    });
  }
  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;
  ~Lingering() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    ends_.notify_all();
    if (watchdog_.joinable()) watchdog_.join();
    EXPECT_FALSE(late) << "somebody waited for the peer of the socket";
  }

  // False where there is no network.
  explicit operator bool() const { return watchdog_.joinable(); }
  // The only descriptor of it.
  platform::Descriptors take() {
    platform::Descriptors taken;
    taken.push_back(std::move(made_));
    return taken;
  }

  // The same inside a Unix socket, which nobody reads.
  platform::Descriptors take_nested(int type = SOCK_SEQPACKET) {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends.data()), 0);
    const platform::Descriptor sender(ends[0]);
    constexpr std::array<uint8_t, 1> kByte{};
    EXPECT_TRUE(platform::send_some(sender.get(), kByte, take()));
    platform::Descriptors nested;
    nested.emplace_back(ends[1]);
    return nested;
  }

  std::atomic<bool> late{false};

 private:
  platform::Descriptor peer_;
  platform::Descriptor made_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  std::thread watchdog_;
};

}  // namespace gpumem::test
