// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Unix sockets: descriptors on their way, files of dead processes, permissions, hang-ups.
#include "platform/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "lingering.h"
#include "platform/folder.h"
#include "platform/identity.h"
#include "process_support.h"

namespace gpumem::platform {
namespace {

using namespace std::chrono_literals;

constexpr std::array<uint8_t, 3> kBytes{1, 2, 3};
Deadline soon() { return std::chrono::steady_clock::now() + 2min; }

// A folder of its own, which goes with it.
class SocketTest : public testing::Test {
 public:
  SocketTest() {
    std::string text = "/tmp/gpumem-socket-XXXXXX";
    folder_ = mkdtemp(text.data());
  }
  ~SocketTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name = "s") const { return folder_ + "/" + name; }

  SocketPair pair() {
    auto ends = socket_pair();
    EXPECT_TRUE(ends);
    return std::move(*ends);
  }
  static Descriptors files(size_t count) {
    Descriptors made;
    for (size_t i = 0; i < count; ++i)
      made.emplace_back(memfd_create("test", MFD_CLOEXEC));
    return made;
  }

 private:
  std::string folder_;
};

struct stat status_of_file(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status;
}

TEST_F(SocketTest, CarriesBytesAndDescriptorsThatAreClosedOnExec) {
  const SocketPair ends = pair();
  const uint64_t before = test::open_files();
  {
    Descriptors files = SocketTest::files(kDescriptorsPerPacket);
    auto sent = send_some(ends.ours.get(), kBytes, files);
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->state, Sending::kDone);
    std::array<uint8_t, 16> room{};
    auto got = receive_some(ends.theirs.get(), room);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(got->state, Received::State::kBytes);
    EXPECT_EQ(got->size, kBytes.size());
    EXPECT_FALSE(got->truncated);
    ASSERT_EQ(got->descriptors.size(), kDescriptorsPerPacket);
    for (size_t i = 0; i < files.size(); ++i) {
      const int one = got->descriptors[i].get();
      EXPECT_NE(fcntl(one, F_GETFD) & FD_CLOEXEC, 0);
      EXPECT_EQ(describe(one).inode, describe(files[i].get()).inode);
    }
  }
  EXPECT_EQ(test::open_files(), before);
}

TEST_F(SocketTest, SaysThatAPacketWasCutAndLosesNoDescriptor) {
  const SocketPair ends = pair();
  const uint64_t before = test::open_files();
  {
    const Descriptors files = SocketTest::files(2);
    ASSERT_TRUE(send_some(ends.ours.get(), kBytes, files));
    std::array<uint8_t, 2> room{};
    auto got = receive_some(ends.theirs.get(), room);
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->truncated);
    EXPECT_EQ(got->descriptors.size(), 2U);
  }
  EXPECT_EQ(test::open_files(), before);
}

// Whoever sends the end of a pair decides what comes with its packets.
TEST_F(SocketTest, WhatTheKernelAddsToAPacketIsClosed) {
  constexpr int kPassPidFd = 76;  // SO_PASSPIDFD, of Linux 6.5
  const SocketPair ends = pair();
  constexpr int kOn = 1;
  if (setsockopt(ends.theirs.get(), SOL_SOCKET, kPassPidFd, &kOn, sizeof kOn) != 0)
    GTEST_SKIP() << "the kernel has no SO_PASSPIDFD";
  const uint64_t before = test::open_files();
  for (const size_t count : {size_t{0}, size_t{2}, kDescriptorsPerPacket}) {
    ASSERT_TRUE(send_some(ends.ours.get(), kBytes, files(count)));
    std::array<uint8_t, 16> room{};
    auto got = receive_some(ends.theirs.get(), room);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(got->size, kBytes.size());
    EXPECT_LE(got->descriptors.size(), count);
  }
  EXPECT_EQ(test::open_files(), before);
}

TEST_F(SocketTest, NothingThatWasSentMakesItsReceiverWait) {
  const uint64_t before = test::open_files();
  for (const int nested : {0, int{SOCK_SEQPACKET}, int{SOCK_STREAM}, int{SOCK_DGRAM}}) {
    SCOPED_TRACE(nested);
    std::array<test::Lingering, 4> lingering;
    for (const test::Lingering& one : lingering) {
      if (!one) GTEST_SKIP() << "there is no network";
    }
    const auto take = [&](size_t i) {
      return nested == 0 ? lingering.at(i).take() : lingering.at(i).take_nested(nested);
    };
    {
      const SocketPair ends = pair();
      ASSERT_TRUE(send_some(ends.ours.get(), kBytes, take(0)));
      std::array<uint8_t, 16> room{};
      EXPECT_EQ(receive_some(ends.theirs.get(), room)->descriptors.size(), 1U);
    }
    {
      const SocketPair ends = pair();
      ASSERT_TRUE(send_some(ends.theirs.get(), {}, {})) << "an empty packet is not the end";
      ASSERT_TRUE(send_some(ends.theirs.get(), {}, take(1)));
    }
    {
      auto listener = Listener::open(path(), 0600);
      ASSERT_TRUE(listener);
      auto connected = connect_to(path(), soon());
      ASSERT_TRUE(connected);
      ASSERT_TRUE(send_some(connected->get(), kBytes, take(2)));
    }
    {
      const SocketPair ends = pair();
      Descriptors listens;
      listens.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      sockaddr_un name{};
      name.sun_family = AF_UNIX;
      socklen_t size = sizeof name.sun_family;  // for an address that the kernel chooses
      auto* const address = reinterpret_cast<sockaddr*>(&name);
      ASSERT_EQ(bind(listens.front().get(), address, size), 0);
      ASSERT_EQ(listen(listens.front().get(), 1), 0);
      size = sizeof name;
      ASSERT_EQ(getsockname(listens.front().get(), address, &size), 0);
      const Descriptor connected(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      ASSERT_EQ(connect(connected.get(), address, size), 0);
      ASSERT_TRUE(send_some(connected.get(), kBytes, take(3)));
      ASSERT_TRUE(send_some(ends.ours.get(), kBytes, listens));
      listens.clear();
      std::array<uint8_t, 16> room{};
      EXPECT_EQ(receive_some(ends.theirs.get(), room)->descriptors.size(), 1U);
    }
  }
  EXPECT_EQ(test::open_files(), before);
}

TEST_F(SocketTest, NobodyHidesWhatLiesInASocketThatWasSent) {
  test::Lingering lingering;
  if (!lingering) GTEST_SKIP() << "there is no network";
  const SocketPair ends = pair();
  {
    const Descriptors nested = lingering.take_nested();
    const int offset = 1 << 30;
    ASSERT_EQ(setsockopt(nested[0].get(), SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset), 0);
    ASSERT_TRUE(send_some(ends.ours.get(), kBytes, nested));
  }
  std::array<uint8_t, 16> room{};
  EXPECT_EQ(receive_some(ends.theirs.get(), room)->descriptors.size(), 1U);
}

// A thread for each would hold up who closes them, as long as others use the processors.
TEST_F(SocketTest, WhatMayTakeLongIsClosedTogether) {
  const uint64_t before = test::open_files();
  const auto hang_up_unread = [this] {
    SocketPair ends = pair();
    EXPECT_TRUE(send_some(ends.theirs.get(), kBytes, {}));  // unread when the first end is closed
    return std::move(ends.theirs);
  };
  {
    std::vector<Descriptor> others;
    ClosingTogether together;
    for (int i = 0; i < 5; ++i)
      others.push_back(hang_up_unread());
    (void)Descriptor::foreign(inotify_init1(IN_CLOEXEC));
    EXPECT_EQ(test::open_files(), before + 11) << "nothing is closed yet";
    for (const Descriptor& other : others)
      EXPECT_TRUE(has_hung_up(other.get()));
    (void)Descriptor::foreign(memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(test::open_files(), before + 11) << "that takes no time";
    EXPECT_TRUE(together.close());
    EXPECT_EQ(test::open_files(), before + 5);
    EXPECT_FALSE(together.close());
    for (int i = 0; i < 100; ++i)
      others.push_back(hang_up_unread());
    EXPECT_LT(test::open_files(), before + 105 + 100) << "many are closed earlier";
  }
  EXPECT_EQ(test::open_files(), before);
  (void)hang_up_unread();
  EXPECT_EQ(test::open_files(), before) << "without one, at once";
}

// What closes without waiting has copies of all descriptors for a moment.
TEST_F(SocketTest, AnAddressIsFreeOnceItsListenerIsClosed) {
  const std::string address = "@gpumem-free-test-" + std::to_string(getpid());
  std::atomic<bool> over = false;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      const SocketPair ends = pair();
      EXPECT_TRUE(send_some(ends.theirs.get(), kBytes, {}));  // unread when the first end is closed
    }
    over = true;
  });
  while (!over && !HasFailure()) {
    auto listener = Listener::open(address, 0600);
    EXPECT_TRUE(listener) << listener.error().message;
  }
  other.join();
}

TEST_F(SocketTest, SaysWhenTheProcessHasNoRoomForDescriptors) {
  const SocketPair ends = pair();
  const Descriptors files = SocketTest::files(3);
  ASSERT_TRUE(send_some(ends.ours.get(), kBytes, files));
  const uint64_t before = test::open_files();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlimit lower = limit;
  lower.rlim_cur = static_cast<rlim_t>(files.back().get()) + 2;  // room for one
  setrlimit(RLIMIT_NOFILE, &lower);
  {
    std::array<uint8_t, 16> room{};
    auto got = receive_some(ends.theirs.get(), room);
    setrlimit(RLIMIT_NOFILE, &limit);
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->none_free);
    EXPECT_FALSE(got->truncated);
    EXPECT_LT(got->descriptors.size(), 3U);
  }
  EXPECT_EQ(test::open_files(), before);
}

TEST_F(SocketTest, WithoutAFreeDescriptorNoProcessIsTakenForDead) {
  auto began = own_start_time();
  ASSERT_TRUE(began);
  auto there = whereabouts_of(process_id(), *began);
  ASSERT_TRUE(there);
  EXPECT_EQ(*there, Whereabouts::kSameNetwork);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{0, limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  there = whereabouts_of(process_id(), *began);
  setrlimit(RLIMIT_NOFILE, &limit);
  ASSERT_FALSE(there);
  EXPECT_EQ(there.error().status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  auto other = whereabouts_of(process_id(), *began + 1);
  ASSERT_TRUE(other);
  EXPECT_EQ(*other, Whereabouts::kEnded);
}

// While it ends it has no network, and its parent has not waited for it.
TEST_F(SocketTest, AProcessThatIsEndingIsInNoOtherNetwork) {
  for (int round = 0; round < 60; ++round) {
    SocketPair ends = pair();
    const pid_t child = test::quiet_fork();
    if (child == 0) {
      ends.ours = Descriptor();
      (void)wait_for(ends.theirs.get(), false, Deadline::max());
      _exit(0);
    }
    auto began = start_time_of(child);
    ASSERT_TRUE(began);
    ends.ours = Descriptor();
    std::optional<Whereabouts> last;
    while (last != Whereabouts::kEnded) {
      auto now = whereabouts_of(child, *began);
      ASSERT_TRUE(now);
      last = *now;
      if (last == Whereabouts::kOtherNetwork) ADD_FAILURE() << "round " << round;
    }
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
}

TEST_F(SocketTest, NothingWaitsAndAFullSocketSaysSo) {
  const SocketPair ends = pair();
  std::array<uint8_t, 16> room{};
  auto got = receive_some(ends.theirs.get(), room);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->state, Received::State::kNothing);
  const std::vector<uint8_t> much(4096);
  Sending state = Sending::kDone;
  for (int i = 0; i < 10000 && state == Sending::kDone; ++i) {
    auto sent = send_some(ends.ours.get(), much, {});
    ASSERT_TRUE(sent);
    state = sent->state;
  }
  EXPECT_EQ(state, Sending::kFull);
  auto waited = wait_for(ends.ours.get(), true, std::chrono::steady_clock::now() + 10ms);
  ASSERT_TRUE(waited);
  EXPECT_EQ(*waited, Waited::kTimeout);
}

TEST_F(SocketTest, HangUpIsSeenAtBothEndsAndWhatWasSaidBeforeIsRead) {
  SocketPair ends = pair();
  // A copy, as a forked child has one.
  const Descriptor copy(dup(ends.ours.get()));
  ASSERT_TRUE(send_some(ends.ours.get(), kBytes, {}));
  ASSERT_TRUE(send_some(ends.theirs.get(), kBytes, {}));  // never read
  hang_up(ends.ours.get());
  ends.ours = Descriptor();
  std::array<uint8_t, 16> room{};
  auto got = receive_some(ends.theirs.get(), room);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->size, kBytes.size());
  got = receive_some(ends.theirs.get(), room);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->state, Received::State::kHungUp);
  auto sent = send_some(ends.theirs.get(), kBytes, {});
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().status, GPUMEM_ERROR_PEER_GONE);
}

TEST_F(SocketTest, AResetDoesNotHideTheLastWords) {
  SocketPair ends = pair();
  ASSERT_TRUE(send_some(ends.ours.get(), kBytes, {}));
  ASSERT_TRUE(send_some(ends.theirs.get(), kBytes, {}));
  ends.ours = Descriptor();  // with a packet that it has not read
  std::array<uint8_t, 16> room{};
  auto got = receive_some(ends.theirs.get(), room);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->state, Received::State::kBytes);
  EXPECT_EQ(got->size, kBytes.size());
}

TEST_F(SocketTest, ListensWithTheModeAskedForWhateverTheMaskIs) {
  for (const uint32_t mode : {0600U, 0660U, 0666U, 0777U}) {
    const mode_t mask = umask(077);
    auto listener = Listener::open(path(), mode);
    umask(mask);
    ASSERT_TRUE(listener) << listener.error().message;
    EXPECT_EQ(status_of_file(path()).st_mode & 07777, mode);
    EXPECT_TRUE(S_ISSOCK(status_of_file(path()).st_mode));
  }
  EXPECT_NE(access(path().c_str(), F_OK), 0) << "the file stayed";
}

TEST_F(SocketTest, AcceptsAndKnowsWhoConnects) {
  for (const std::string& address : {path(), "@gpumem-test-" + std::to_string(getpid())}) {
    auto listener = Listener::open(address, 0600);
    ASSERT_TRUE(listener) << listener.error().message;
    auto nobody = listener->accept();
    ASSERT_TRUE(nobody);
    EXPECT_FALSE(*nobody);
    auto client = connect_to(address, soon());
    ASSERT_TRUE(client) << client.error().message;
    auto server = listener->accept();
    ASSERT_TRUE(server);
    ASSERT_TRUE(*server);
    auto facts = peer_of(server->get());
    ASSERT_TRUE(facts);
    EXPECT_EQ(facts->process, getpid());
    EXPECT_EQ(facts->user, geteuid());
    EXPECT_FALSE(facts->groups.empty());
    EXPECT_NE(fcntl(server->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(fcntl(client->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(socket_type(client->get()), SocketType::kPackets);
  }
}

TEST_F(SocketTest, NobodyThereIsNotFound) {
  for (const std::string& address : {path(), std::string("@gpumem-nobody-is-here")}) {
    auto client = connect_to(address, soon());
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().status, GPUMEM_ERROR_NOT_FOUND);
  }
}

TEST_F(SocketTest, ALivingListenerIsNotReplaced) {
  for (const std::string& address : {path(), "@gpumem-taken-" + std::to_string(getpid())}) {
    auto first = Listener::open(address, 0600);
    ASSERT_TRUE(first);
    auto second = Listener::open(address, 0600);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().status, GPUMEM_ERROR_ALREADY_EXISTS);
    EXPECT_NE(std::string(second.error().message).find("this process itself listens"), std::string::npos);
    EXPECT_TRUE(connect_to(address, soon()));
  }
}

// The file that a process leaves when it is killed.
void leave_stale_socket(const std::string& path) {
  const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(socket.get(), 1), 0);
}

TEST_F(SocketTest, TheFileOfADeadProcessIsReplaced) {
  leave_stale_socket(path());
  EXPECT_EQ(connect_to(path(), soon()).error().status, GPUMEM_ERROR_NOT_FOUND);
  auto listener = Listener::open(path(), 0600);
  ASSERT_TRUE(listener) << listener.error().message;
  EXPECT_TRUE(connect_to(path(), soon()));
}

TEST_F(SocketTest, OfManyWhoReplaceItOneWins) {
  for (int round = 0; round < 20; ++round) {
    leave_stale_socket(path());
    std::atomic<int> winners{0};
    std::atomic<int> taken{0};
    std::vector<std::thread> threads;
    std::array<Result<Listener>, 4> made{Listener(), Listener(), Listener(), Listener()};
    for (Result<Listener>& one : made) {
      threads.emplace_back([&, this] {
        one = Listener::open(path(), 0600);
        if (one) {
          ++winners;
        } else if (one.error().status == GPUMEM_ERROR_ALREADY_EXISTS) {
          ++taken;
        }
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(taken, 3);
    EXPECT_TRUE(connect_to(path(), soon()));
  }
}

// Whoever can read a folder can lock it.
TEST_F(SocketTest, WhoHasTheFolderLockedKeepsNobodyFromListening) {
  const Descriptor folder(open(path(".").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(folder.get(), LOCK_EX), 0);
  leave_stale_socket(path());
  auto listener = Listener::open(path(), 0600);
  ASSERT_TRUE(listener) << listener.error().message;
  EXPECT_TRUE(connect_to(path(), soon()));
  auto second = Listener::open(path(), 0600);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().status, GPUMEM_ERROR_ALREADY_EXISTS) << "one that lives is not replaced";
}

TEST_F(SocketTest, AFileThatIsNoSocketStays) {
  const Descriptor file(open(path().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  auto listener = Listener::open(path(), 0600);
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().status, GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_TRUE(S_ISREG(status_of_file(path()).st_mode));
  EXPECT_EQ(connect_to(path(), soon()).error().status, GPUMEM_ERROR_NOT_FOUND);
}

TEST_F(SocketTest, WhatAnotherHasPutInItsPlaceIsNotRemoved) {
  auto listener = Listener::open(path(), 0600);
  ASSERT_TRUE(listener);
  ASSERT_EQ(unlink(path().c_str()), 0);
  const Descriptor file(open(path().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  listener->close();
  EXPECT_EQ(access(path().c_str(), F_OK), 0);
}

// What a service manager passes are the descriptors from 3 on.
TEST_F(SocketTest, ASocketOfTheServiceManagerIsUsed) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const std::string name = path(std::to_string(type));
    const Descriptor given(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, name.c_str());
    ASSERT_EQ(bind(given.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(given.get(), 8), 0);
    ASSERT_EQ(setenv("LISTEN_FDS", std::to_string(given.get() - 2).c_str(), 1), 0);
    ASSERT_EQ(setenv("LISTEN_PID", "1", 1), 0);
    EXPECT_EQ(Listener::inherit(name)->get(), -1) << "it is another process's";
    ASSERT_EQ(setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1), 0);
    EXPECT_EQ(Listener::inherit(path("other"))->get(), -1);
    if (type == SOCK_STREAM) {
      auto refused = Listener::inherit(name);
      ASSERT_FALSE(refused);
      EXPECT_NE(std::string(refused.error().message).find("ListenSequentialPacket="), std::string::npos);
      continue;
    }
    auto client = connect_to(name, soon());
    ASSERT_TRUE(client);
    for (int round = 0; round < 2; ++round) {
      auto listener = Listener::inherit(name);
      ASSERT_TRUE(listener) << listener.error().message;
      EXPECT_EQ(listener->address(), name);
      auto accepted = listener->accept();
      ASSERT_TRUE(accepted && *accepted);
      EXPECT_FALSE(*listener->accept()) << "it does not wait for more";
      EXPECT_EQ(Listener::inherit(name).error().status, GPUMEM_ERROR_ALREADY_EXISTS);
      EXPECT_EQ(Listener::open(name, 0600).error().status, GPUMEM_ERROR_ALREADY_EXISTS);
      EXPECT_TRUE(*listener->accept()) << "open() looks who listens";
      client = connect_to(name, soon());
      ASSERT_TRUE(client) << "it waits for the next listener";
    }
    EXPECT_TRUE(S_ISSOCK(status_of_file(name).st_mode));
  }
  (void)unsetenv("LISTEN_PID");
  (void)unsetenv("LISTEN_FDS");
}

TEST_F(SocketTest, BadAddressesAreRefused) {
  for (const std::string& address : {std::string(), std::string(kAddressMax + 1, 'a')}) {
    EXPECT_EQ(Listener::open(address, 0600).error().status, GPUMEM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(connect_to(address, soon()).error().status, GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(Listener::open(path("no/such/folder"), 0600).error().status, GPUMEM_ERROR_NOT_FOUND);
}

// What a process leaves to others must not stand for another one that gets its number.
TEST_F(SocketTest, KnowsWhetherTheProcessAtTheOtherEndHasEnded) {
  auto listener = Listener::open(path(), 0600);
  ASSERT_TRUE(listener);
  const SocketPair told = pair();
  const std::string address = path();
  const pid_t child = test::quiet_fork();
  if (child == 0) {
    auto made = connect_to(address, soon());
    if (!made || !send_some(told.theirs.get(), kBytes, std::span(&*made, 1))) _exit(1);
    (void)wait_for(told.theirs.get(), false, soon());
    _exit(0);
  }
  ASSERT_EQ(*wait_for(told.ours.get(), false, soon()), Waited::kReady);
  const Descriptor accepted = std::move(*listener->accept());
  ASSERT_TRUE(accepted);
  EXPECT_EQ(peer_of(accepted.get())->process, child);
  EXPECT_TRUE(*peer_lives(accepted.get()));
  ASSERT_TRUE(send_some(told.ours.get(), kBytes, {}));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::array<uint8_t, 16> room{};
  const auto left = receive_some(told.ours.get(), room);  // a copy of the other end, so it is not closed
  ASSERT_TRUE(left);
  EXPECT_EQ(peer_of(accepted.get())->process, child);
  int option = 0;
  socklen_t size = sizeof option;
  if (getsockopt(accepted.get(), SOL_SOCKET, 77, &option, &size) != 0 && errno == ENOPROTOOPT)
    GTEST_SKIP() << "the kernel has no SO_PEERPIDFD";
  EXPECT_FALSE(*peer_lives(accepted.get()));
}

TEST_F(SocketTest, KnowsWhatIsAConnectedUnixSocket) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor one(ends[0]);
  const Descriptor other(ends[1]);
  EXPECT_EQ(socket_type(one.get()), SocketType::kStream);
  EXPECT_EQ(socket_type(pair().ours.get()), SocketType::kPackets);
  EXPECT_EQ(socket_type(-1), SocketType::kNone);
  EXPECT_EQ(socket_type(SocketTest::files(1).front().get()), SocketType::kNone);
  const Descriptor alone(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(socket_type(alone.get()), SocketType::kNone);
  const Descriptor internet(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(socket_type(internet.get()), SocketType::kNone);
}

TEST_F(SocketTest, WaitingEndsWhenSomethingComesAndWhenItIsWoken) {
  const SocketPair ends = pair();
  const SocketPair wake = pair();
  std::thread other([&] { EXPECT_TRUE(send_some(wake.ours.get(), kBytes, {})); });
  EXPECT_EQ(*wait_for(ends.theirs.get(), false, Deadline::max(), wake.theirs.get()), Waited::kWoken);
  other.join();
  std::thread sender([&] { EXPECT_TRUE(send_some(ends.ours.get(), kBytes, {})); });
  EXPECT_EQ(*wait_for(ends.theirs.get(), false, Deadline::max()), Waited::kReady);
  sender.join();
}

TEST_F(SocketTest, DeadlinesDoNotWrap) {
  EXPECT_EQ(deadline_after(UINT64_MAX), Deadline::max());
  EXPECT_EQ(deadline_after(uint64_t{INT64_MAX}), Deadline::max());
  EXPECT_LT(deadline_after(1'000'000'000), Deadline::max());
}

TEST_F(SocketTest, APrivateFolderIsOnlyForThisUser) {
  EXPECT_TRUE(make_private_folder(path("mine")));
  EXPECT_TRUE(make_private_folder(path("mine")));
  EXPECT_EQ(status_of_file(path("mine")).st_mode & 0777, 0700U);
  ASSERT_EQ(chmod(path("mine").c_str(), 0777), 0);
  EXPECT_EQ(make_private_folder(path("mine")).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(check_private_folder(path("mine")).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(check_private_folder(path("none")).error().status, GPUMEM_ERROR_NOT_FOUND);
  if (geteuid() == 0) {  // who else can give a folder away
    ASSERT_EQ(chmod(path("mine").c_str(), 0700), 0);
    ASSERT_EQ(chown(path("mine").c_str(), 65534, static_cast<gid_t>(-1)), 0);
    EXPECT_EQ(make_private_folder(path("mine")).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
    EXPECT_EQ(check_private_folder(path("mine")).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
  }
  ASSERT_EQ(symlink("/tmp", path("link").c_str()), 0);
  EXPECT_EQ(make_private_folder(path("link")).error().status, GPUMEM_ERROR_PERMISSION_DENIED);
}

}  // namespace
}  // namespace gpumem::platform
