// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a keeper tells the service manager, where that does not read.
#include "core/share/peer/keeper_store.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "platform/pages.h"

namespace gpumem::core {
namespace {

// The socket of a service manager.
class Manager {
 public:
  Manager() : name_("gpumem-keeper-store-" + std::to_string(getpid())) {
    place_.sun_family = AF_UNIX;
    std::memcpy(place_.sun_path + 1, name_.data(), name_.size());
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&place_), size()), 0);
    EXPECT_EQ(setenv("NOTIFY_SOCKET", ("@" + name_).c_str(), 1), 0);
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;
  ~Manager() {
    (void)unsetenv("NOTIFY_SOCKET");
    close(socket_);
  }

  // Until it takes no more.
  void fill() const {
    const int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    while (sendto(sender, "x", 1, 0, reinterpret_cast<const sockaddr*>(&place_), size()) == 1) {
    }
    close(sender);
  }
  // The next packet, or nothing.
  std::string read() const {
    char text[256];
    const ssize_t got = recv(socket_, text, sizeof text, 0);
    return got > 0 ? std::string(text, static_cast<size_t>(got)) : std::string();
  }

 private:
  socklen_t size() const {
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
  }

  const std::string name_;
  sockaddr_un place_{};
  const int socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
};

// One that is killed between the two leaves files of no version, and no version without its files.
TEST(KeeperStore, hub_8_the_version_leaves_before_its_files) {
  const Manager manager;
  auto store = KeeperStore::open();
  ASSERT_TRUE(store) << store.error().message;
  ASSERT_TRUE((*store)->inherit());
  platform::Descriptors files;
  for (int i = 0; i < 3; ++i)
    files.emplace_back(*platform::memory_file(4096, "test"));
  auto entry = (*store)->add({}, files);
  ASSERT_TRUE(entry) << entry.error().message;
  while (!manager.read().empty()) {
  }
  manager.fill();
  *entry = nullptr;
  EXPECT_EQ(manager.read(), "x");  // there is room for one more
  EXPECT_FALSE((*store)->add({}, files)) << "some is not removed yet";
  std::string first;
  do {
    first = manager.read();
  } while (first == "x");
  EXPECT_EQ(first.find("FDSTOREREMOVE=1\nFDNAME=gpumem-version-"), 0U) << first;
}

}  // namespace
}  // namespace gpumem::core
