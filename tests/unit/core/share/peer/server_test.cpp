// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The sharing thread, hubs and links, with a peer that speaks the protocol by hand, and wrongly.
#include "core/share/peer/server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "asleep.h"
#include "base/arithmetic.h"
#include "base/cleanup.h"
#include "core/instance/instance.h"
#include "core/object/destroy.h"
#include "core/object/warnings.h"
#include "core/share/link/imports.h"
#include "core/share/peer/client.h"
#include "core/share/peer/exports.h"
#include "core/share/ring/ring_control.h"
#include "core/share/wire/channel.h"
#include "core/stream/event.h"
#include "gpumem/gpumem.h"
#include "lingering.h"
#include "packets.h"
#include "platform/identity.h"
#include "platform/pages.h"
#include "process_support.h"

namespace {
std::atomic<uint64_t> refusals_of_descriptors{0};  // because too many of the user's are not read
std::atomic<int> no_sending{0};                    // the code that all threads but the first get
std::atomic<bool> hold_answers{false};             // of all threads but the first
std::atomic<bool> answer_is_held{false};
}  // namespace

// The library's calls it too.
extern "C" __attribute__((visibility("default"))) ssize_t sendmsg(int socket, const msghdr* message,
                                                                  int flags) {
  while (hold_answers && gettid() != getpid()) {
    answer_is_held = true;
    sched_yield();
  }
  if (const int code = gettid() != getpid() ? no_sending.load() : 0) {
    errno = code;
    return -1;
  }
  const long sent = syscall(SYS_sendmsg, socket, message, flags);
  if (sent < 0 && errno == ETOOMANYREFS) ++refusals_of_descriptors;
  return sent;
}

namespace gpumem::core {
namespace {

using namespace std::chrono_literals;
using platform::Descriptor;
using platform::Descriptors;
using test::Sleeper;

// How long to wait for what must happen: longer than any machine needs, however busy.
constexpr std::chrono::milliseconds kPatience = 2min;

platform::Deadline soon() { return std::chrono::steady_clock::now() + kPatience; }

template <class Ask>
bool eventually(Ask ask) {
  for (const auto limit = soon(); std::chrono::steady_clock::now() < limit;) {
    if (ask()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return ask();
}

// Each thread of the process, with its state and how often it has gone to sleep.
std::map<std::string, std::string> sleeps_of_threads() {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "status");
    std::string& thread = found[entry.path().filename().string()];
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("State:", 0) == 0 || line.rfind("voluntary_ctxt_switches:", 0) == 0)
        thread += line + " ";
    }
  }
  return found;
}

// An instance on the host backend.
class Opened {
 public:
  Opened() {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = GPUMEM_BACKEND_HOST;
    EXPECT_EQ(gpumem_instance_open(&desc, &instance_, nullptr), GPUMEM_SUCCESS);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() { close(); }
  void close() {
    gpumem_instance const instance = std::exchange(instance_, nullptr);
    if (instance == nullptr) return;
    EXPECT_EQ(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr), GPUMEM_SUCCESS);
  }

  operator gpumem_instance() const { return instance_; }

 private:
  gpumem_instance instance_ = nullptr;
};

std::shared_ptr<Instance> inside(gpumem_instance instance) {
  const auto handle = reinterpret_cast<uintptr_t>(instance);
  return std::static_pointer_cast<Instance>(
      acquire<InstanceObject>(platform::thread_record(), handle)->shared_context());
}

// The address of a buffer that can be shared by descriptors. It ends with its instance.
void* shared_buffer(gpumem_instance instance, uint64_t size) {
  gpumem_device device = nullptr;
  EXPECT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = desc.reserve = size;
  desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer = nullptr;
  EXPECT_EQ(gpumem_buffer_create(device, &desc, &buffer, nullptr), GPUMEM_SUCCESS);
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  EXPECT_EQ(gpumem_buffer_get_info(buffer, &info, nullptr), GPUMEM_SUCCESS);
  return info.base;
}

gpumem_share_handle export_at(gpumem_instance instance, void* pointer) {
  gpumem_share_handle handle{};
  EXPECT_EQ(gpumem_share_export(instance, pointer, nullptr, &handle, nullptr), GPUMEM_SUCCESS);
  return handle;
}

class ShareServerTest : public testing::Test {
 public:
  ShareServerTest() {
    static std::atomic<int> number{0};
    address_ = "@gpumem-server-test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
  }

  gpumem_hub_desc hub_desc() const {
    gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
    desc.path = address_.c_str();
    return desc;
  }
  gpumem_hub open_hub(const gpumem_hub_desc& desc) {
    gpumem_hub hub = nullptr;
    gpumem_error error = GPUMEM_ERROR_INIT;
    EXPECT_EQ(gpumem_hub_open(instance, &desc, &hub, &error), GPUMEM_SUCCESS) << error.message;
    return hub;
  }
  gpumem_status connect(gpumem_link* link, const char* token = nullptr) {
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = address_.c_str();
    desc.token = token;
    desc.token_size = token != nullptr ? static_cast<uint32_t>(std::strlen(token)) : 0;
    return gpumem_link_connect(other, &desc, link, &why);
  }
  gpumem_error why = GPUMEM_ERROR_INIT;  // of connect()
  uint64_t refused(gpumem_hub hub) {
    gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
    EXPECT_EQ(gpumem_hub_get_info(hub, &info, nullptr), GPUMEM_SUCCESS);
    return info.refused_count;
  }
  uint32_t links(gpumem_hub hub) {
    gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
    EXPECT_EQ(gpumem_hub_get_info(hub, &info, nullptr), GPUMEM_SUCCESS);
    return info.link_count;
  }
  const std::string& address() const { return address_; }

  Opened instance;
  Opened other;

 private:
  std::string address_;
};

// Whoever speaks by hand.
class Raw {
 public:
  explicit Raw(const std::string& address) {
    auto made = platform::connect_to(address, soon());
    EXPECT_TRUE(made) << made.error().message;
    if (made) channel_.emplace(std::move(*made));
  }
  explicit Raw(Descriptor socket) { channel_.emplace(std::move(socket)); }

  void send(Message message, Descriptors descriptors = {}) {
    (void)channel_->send(std::move(message), platform::share(std::move(descriptors)));
  }
  void send_bytes(std::span<const uint8_t> bytes, const Descriptors& descriptors = {}) {
    (void)platform::send_some(channel_->socket(), bytes, descriptors);
  }
  // The next message; nothing if the other side hung up, or says nothing for so long.
  std::optional<Incoming> next(std::chrono::milliseconds time = kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    for (;;) {
      auto incoming = channel_->receive([](const Message&) { return kMessageDescriptorsMax; });
      hung_up = !incoming;
      if (!incoming) return {};
      if (incoming->message) return std::move(incoming->message);
      if (incoming->packet) continue;
      if (*platform::wait_for(channel_->socket(), false, deadline) == platform::Waited::kTimeout) return {};
    }
  }
  // Whether the other side hangs up, whatever it says before.
  bool ends(std::chrono::milliseconds time = kPatience) {
    while (next(time).has_value()) {
    }
    return hung_up;
  }
  Message ask(Message message, Descriptors descriptors = {}) {
    message.number = ++number_;
    send(std::move(message), std::move(descriptors));
    auto incoming = next();
    if (!incoming) return {};
    EXPECT_EQ(incoming->message.number, number_);
    received = std::move(incoming->descriptors);
    return incoming->message;
  }
  Message hello(const Token& instance = {}, std::vector<uint8_t> secret = {}) {
    Message message;
    message.type = MessageType::kHello;
    message.token = instance;
    message.secret = std::move(secret);
    return ask(std::move(message));
  }
  int socket() const { return channel_->socket(); }

  Descriptors received;
  bool hung_up = false;

 private:
  std::optional<Channel> channel_;
  uint64_t number_ = 0;
};

constexpr uint64_t kBlock = 65536;

Descriptors files(size_t count, uint64_t size = kBlock) {
  Descriptors made;
  for (size_t i = 0; i < count; ++i)
    made.emplace_back(*platform::memory_file(size, "test"));
  return made;
}

// How many of them, and of other files with such a name, this process has open.
size_t files_of(const char* what) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().find(what) != std::string::npos) ++count;
  }
  return count;
}

// How many descriptors this process may have, while one lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = most;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

// Runs in a child what answers whether all went well. It may read from the socket between the two, whose end
// comes with end().
class Elsewhere {
 public:
  explicit Elsewhere(const std::function<bool(int socket)>& run) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ours_ = Descriptor(ends[0]);
    Descriptor theirs(ends[1]);
    child_ = test::quiet_fork();
    if (child_ != 0) return;
    ours_ = {};
    const bool well = run(theirs.get());
    _exit(well && !testing::Test::HasFailure() ? 0 : 1);
  }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;
  ~Elsewhere() { end(); }

  int socket() const { return ours_.get(); }
  // What the child says first.
  template <class T>
  T said() const {
    T value{};
    EXPECT_EQ(recv(ours_.get(), &value, sizeof value, MSG_WAITALL), ssize_t{sizeof value});
    return value;
  }
  void end() {
    const pid_t child = std::exchange(child_, -1);
    if (child < 0) return;
    shutdown(ours_.get(), SHUT_WR);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }

 private:
  Descriptor ours_;
  pid_t child_ = -1;
};

// Of a child: says it, and goes on once the parent wants its end.
template <class T>
bool say_and_stay(int socket, const T& value) {
  char over = 0;
  return write(socket, &value, sizeof value) == ssize_t{sizeof value} && read(socket, &over, 1) == 0;
}

Message publish_of(const std::string& name, uint32_t descriptors, uint8_t token = 1) {
  Message message = message_of(MessageType::kPublish, name);
  message.handle.way = GPUMEM_SHARE_WAY_POSIX_FD;
  message.handle.backend = GPUMEM_BACKEND_HOST;
  message.handle.size = std::max(descriptors, 1U) * kBlock;
  message.handle.fd_count = descriptors;
  EXPECT_TRUE(write_blocks(std::vector<uint64_t>(descriptors, kBlock), message.handle));
  message.handle.token.fill(token);
  return message;
}

Message claim_of(uint8_t token) {
  Message message = message_of(MessageType::kClaim);
  message.token.fill(token);
  return message;
}

platform::PeerFacts own_process() { return {platform::process_id(), platform::own_user(), {}}; }

// ---- who may connect, and how ----

TEST_F(ShareServerTest, AHubAnswersALinkAndSaysWhatItHas) {
  gpumem_hub const hub = open_hub(hub_desc());
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
  ASSERT_EQ(gpumem_link_get_info(link, &info, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(info.pid, getpid());
  EXPECT_EQ(info.uid, geteuid());
  EXPECT_EQ(info.connected, 1U);
  EXPECT_EQ(info.keeper, 0U);
  EXPECT_STREQ(info.path, address().c_str());
  EXPECT_EQ(links(hub), 1U);
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  EXPECT_EQ(gpumem_link_enumerate(link, 0, &entry, nullptr), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(gpumem_link_wait(link, "n", 0, 0, &entry, nullptr), GPUMEM_NOT_READY);
  EXPECT_EQ(gpumem_link_wait(link, "n", 0, 20'000'000, &entry, nullptr), GPUMEM_NOT_READY);
  gpumem_share_handle handle;
  EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(gpumem_link_withdraw(link, "n", 0, nullptr), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(gpumem_hub_withdraw(hub, "n", 0, nullptr), GPUMEM_ERROR_NOT_FOUND);
  ASSERT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_link_enumerate(link, 0, &entry, nullptr), GPUMEM_ERROR_PEER_GONE);
  ASSERT_EQ(gpumem_link_get_info(link, &info, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(info.connected, 0U);
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(connect(&link), GPUMEM_ERROR_NOT_FOUND);
}

TEST_F(ShareServerTest, OnlyTheTokenOpensAHub) {
  gpumem_hub_desc desc = hub_desc();
  desc.token = "secret";
  desc.token_size = 6;
  gpumem_hub const hub = open_hub(desc);
  gpumem_link link = nullptr;
  EXPECT_EQ(connect(&link), GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(connect(&link, "secrets"), GPUMEM_ERROR_PERMISSION_DENIED);
  // Such as that of a variable that is not set.
  EXPECT_EQ(connect(&link, ""), GPUMEM_ERROR_INVALID_ARGUMENT);
  desc.token_size = 0;
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_hub unset = nullptr;
  EXPECT_EQ(gpumem_hub_open(instance, &desc, &unset, &error), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("the token is empty"), std::string::npos) << error.message;
  EXPECT_EQ(link, nullptr);
  EXPECT_EQ(refused(hub), 2U);
  EXPECT_EQ(connect(&link, "secret"), GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, AHubHasNoFlagsThatNobodyKnows) {
  gpumem_hub_desc desc = hub_desc();
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_hub hub = nullptr;
  for (unsigned bit = 0; bit < 64; ++bit) {
    desc.flags = uint64_t{1} << bit;
    if ((desc.flags & (GPUMEM_HUB_KEEPER | GPUMEM_HUB_STORE)) != 0) continue;
    EXPECT_EQ(gpumem_hub_open(instance, &desc, &hub, &error), GPUMEM_ERROR_INVALID_ARGUMENT) << bit;
    EXPECT_NE(std::strstr(error.message, "flags"), nullptr) << error.message;
  }
  EXPECT_EQ(hub, nullptr);
}

TEST_F(ShareServerTest, AHubThatHasGoneCountsNothing) {
  gpumem_link link = nullptr;
  gpumem_hub const hub = open_hub(hub_desc());
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  ShareServer& server = inside(instance)->share_server();
  uint64_t id = 0;
  while (server.counts(id).links == 0)
    ASSERT_LT(++id, 1000U);
  ASSERT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
  const HubCounts none = server.counts(id);
  EXPECT_EQ(none.links + none.names + none.versions + none.descriptors + none.refused, 0U);
}

// In a forked child: tells that it is there, and lives until the other end is closed.
[[noreturn]] void live_until_told(platform::SocketPair told) {
  platform::close_descriptor(told.ours.release());  // only the copy
  const char word = 0;
  EXPECT_EQ(send(told.theirs.get(), &word, 1, 0), 1);
  (void)platform::wait_for(told.theirs.get(), false, soon());
  _exit(0);
}

// Serves a hub until it is killed, and has a child.
[[noreturn]] void serve_beside_a_child(const char* path, platform::SocketPair told) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Opened instance;
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  desc.path = path;
  gpumem_hub hub = nullptr;
  EXPECT_EQ(gpumem_hub_open(instance, &desc, &hub, nullptr), GPUMEM_SUCCESS);
  if (test::quiet_fork() == 0) live_until_told(std::move(told));
  for (;;)
    pause();
}

// A file and an abstract address of this process.
std::array<std::string, 2> addresses_of(const char* test) {
  const std::string name = std::string("gpumem-") + test + "-" + std::to_string(getpid());
  return {"@" + name, testing::TempDir() + name};
}

TEST_F(ShareServerTest, AForkedChildKeepsNeitherAddressNorConnectionOfAKilledProcess) {
  if (!test::kChildrenHaveThreads) GTEST_SKIP() << "this sanitizer lets no forked child have threads";
  for (const std::string& path : addresses_of("killed-test")) {
    SCOPED_TRACE(path);
    auto told = platform::socket_pair();
    ASSERT_TRUE(told);
    const pid_t server = test::quiet_fork();
    if (server == 0) serve_beside_a_child(path.c_str(), std::move(*told));
    told->theirs = {};
    ASSERT_EQ(*platform::wait_for(told->ours.get(), false, soon()), platform::Waited::kReady);
    Raw raw(path);
    EXPECT_EQ(raw.hello().type, MessageType::kWelcome);
    ASSERT_EQ(kill(server, SIGKILL), 0);
    ASSERT_EQ(waitpid(server, nullptr, 0), server);
    EXPECT_TRUE(raw.ends());
    gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
    link_desc.path = path.c_str();
    gpumem_link link = nullptr;
    EXPECT_EQ(gpumem_link_connect(other, &link_desc, &link, nullptr), GPUMEM_ERROR_NOT_FOUND);
    gpumem_hub_desc desc = hub_desc();
    desc.path = path.c_str();
    open_hub(desc);
  }
}

TEST_F(ShareServerTest, AForkedChildKeepsNoAddressOfAClosedHub) {
  for (const std::string& path : addresses_of("closed-test")) {
    SCOPED_TRACE(path);
    gpumem_hub_desc desc = hub_desc();
    desc.path = path.c_str();
    gpumem_hub const hub = open_hub(desc);
    auto told = platform::socket_pair();
    ASSERT_TRUE(told);
    const pid_t child = test::quiet_fork();
    if (child == 0) live_until_told(std::move(*told));
    ASSERT_EQ(*platform::wait_for(told->ours.get(), false, soon()), platform::Waited::kReady);
    EXPECT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
    open_hub(desc);
    told->ours = {};
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
}

// The driver gives out addresses again before the call that has freed them returns.
TEST_F(ShareServerTest, MemoryAtAddressesThatWereJustFreedIsExported) {
  void* const pointer = shared_buffer(instance, 1);
  const platform::Freeing freeing(reinterpret_cast<uintptr_t>(pointer), kBlock);
  gpumem_share_handle handle{};
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_share_export(instance, pointer, nullptr, &handle, &error), GPUMEM_SUCCESS)
      << error.message;
  gpumem_physical physical = nullptr;
  EXPECT_EQ(gpumem_physical_retain(instance, pointer, &physical, &error), GPUMEM_SUCCESS) << error.message;
  EXPECT_EQ(gpumem_physical_release(physical, nullptr), GPUMEM_SUCCESS);
}

// Listens as another user, which only root can.
std::optional<platform::Listener> listening_as_nobody(const std::string& address) {
  std::optional<platform::Listener> made;
  std::thread([&] {
    // Of this thread alone, and so of what it listens at.
    constexpr uid_t kNobody = 65534;
    ASSERT_EQ(syscall(SYS_setresuid, -1, kNobody, -1), 0);
    auto listener = platform::Listener::open(address, 0600);
    ASSERT_TRUE(listener) << listener.error().message;
    made.emplace(std::move(*listener));
  }).join();
  return made;
}

// An impostor who listens where a hub is expected learns nothing.
TEST_F(ShareServerTest, AnotherUserIsNotShownAToken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  std::optional<platform::Listener> impostor = listening_as_nobody(address());
  ASSERT_TRUE(impostor);
  gpumem_link link = nullptr;
  EXPECT_EQ(connect(&link, "secret"), GPUMEM_ERROR_PERMISSION_DENIED);
  auto first = impostor->accept();
  ASSERT_TRUE(first);
  EXPECT_FALSE(Raw(std::move(*first)).next()) << "no word before the check";
  // Without one there is nothing to lose.
  std::thread answers([&] {
    ASSERT_EQ(*platform::wait_for(impostor->get(), false, soon()), platform::Waited::kReady);
    auto second = impostor->accept();
    ASSERT_TRUE(second && *second);
    Raw raw(std::move(*second));
    auto hello = raw.next();
    ASSERT_TRUE(hello);
    EXPECT_TRUE(hello->message.secret.empty());
  });
  EXPECT_EQ(connect(&link), GPUMEM_ERROR_NOT_FOUND);
  answers.join();
}

TEST_F(ShareServerTest, AHubTakesAsManyLinksAsItSays) {
  gpumem_hub_desc desc = hub_desc();
  desc.links_max = 2;
  open_hub(desc);
  gpumem_link link[3] = {};
  ASSERT_EQ(connect(&link[0]), GPUMEM_SUCCESS);
  ASSERT_EQ(connect(&link[1]), GPUMEM_SUCCESS);
  EXPECT_EQ(connect(&link[2]), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_NE(std::strstr(why.message,
                        "links_max = 2; close a link, free what was imported by closed ones, or open it "
                        "with a higher limit"),
            nullptr)
      << why.message;
  EXPECT_EQ(gpumem_link_close(link[0], nullptr), GPUMEM_SUCCESS);
  EXPECT_TRUE(eventually([&] { return connect(&link[2]) == GPUMEM_SUCCESS; }));
}

TEST_F(ShareServerTest, WhoHasHungUpTakesNobodysPlace) {
  gpumem_hub_desc desc = hub_desc();
  desc.links_max = 2;
  open_hub(desc);
  for (int i = 0; i < 100; ++i) {
    for (int j = 0; j < 20; ++j)
      (void)platform::connect_to(address(), soon());
    gpumem_link link = nullptr;
    ASSERT_EQ(connect(&link), GPUMEM_SUCCESS) << "round " << i;
    ASSERT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  }
}

// Connects as another user, which only root can.
std::unique_ptr<Raw> connected_as(uint32_t user, const std::string& address) {
  std::unique_ptr<Raw> made;
  std::thread([&] {
    // Of this thread alone, and so of what it connects.
    ASSERT_EQ(syscall(SYS_setresuid, -1, user, -1), 0);
    made = std::make_unique<Raw>(address);
  }).join();
  return made;
}

// Holds up the sharing thread with a line of the log.
class HeldUp {
 public:
  explicit HeldUp(const std::string& address) {
    EXPECT_EQ(gpumem_log_set_function(
                  [](void* self, gpumem_log_level, const char*) {
                    auto* const held = static_cast<HeldUp*>(self);
                    if (!held->told_.exchange(true)) held->begun_.count_down();
                    held->goes_on_.wait();
                  },
                  this, GPUMEM_LOG_WARNING, nullptr),
              GPUMEM_SUCCESS);
    Raw(address).send(message_of(MessageType::kFetch, "no hello"));
    begun_.wait();
  }
  HeldUp(const HeldUp&) = delete;
  HeldUp& operator=(const HeldUp&) = delete;
  void go_on() { goes_on_.count_down(); }
  ~HeldUp() { EXPECT_EQ(gpumem_log_set_function(nullptr, nullptr, 0, nullptr), GPUMEM_SUCCESS); }

 private:
  std::atomic<bool> told_{false};
  std::latch begun_{1};
  std::latch goes_on_{1};
};

TEST_F(ShareServerTest, hub_4_a_user_with_many_links_does_not_delay_another_one) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  constexpr uint32_t kOther = 65534;
  constexpr uint32_t kLinks = 20;
  constexpr uint32_t kNames = kLinks * kAtOnce;
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  desc.names_max = desc.fds_max = kNames;
  desc.users = &kOther;
  desc.user_count = 1;
  desc.mode = 0666;
  gpumem_hub const hub = open_hub(desc);
  const gpumem_share_handle handle = export_at(instance, shared_buffer(instance, 1));
  for (uint32_t i = 0; i < kNames; ++i) {
    ASSERT_EQ(gpumem_hub_publish(hub, std::to_string(i).c_str(), &handle, nullptr, nullptr, nullptr),
              GPUMEM_SUCCESS);
  }
  std::vector<std::unique_ptr<Raw>> links;
  for (uint32_t i = 0; i < kLinks; ++i) {
    links.push_back(std::make_unique<Raw>(address()));
    ASSERT_EQ(links.back()->hello().type, MessageType::kWelcome);
  }
  const std::unique_ptr<Raw> others = connected_as(kOther, address());
  ASSERT_EQ(others->hello().type, MessageType::kWelcome);
  HeldUp thread(address());
  for (uint32_t i = 0; i < kNames; ++i)
    links[i % kLinks]->send(message_of(MessageType::kWithdraw, std::to_string(i)));
  Message ask = message_of(MessageType::kEnumerate);
  ask.index = kNames;
  others->send(ask);
  thread.go_on();
  const auto told = others->next();
  ASSERT_TRUE(told);
  ASSERT_EQ(told->message.status, GPUMEM_ERROR_NOT_FOUND);
  uint32_t left = 0;
  ASSERT_EQ(std::sscanf(told->message.text.c_str(), "the hub has %u versions", &left), 1)
      << told->message.text;
  EXPECT_GE(left, kNames - 2 * kAtOnce) << "it was asked last";
}

TEST_F(ShareServerTest, WhatHasEndedNeitherCountsNorTakesRoom) {
  gpumem_hub_desc desc = hub_desc();
  desc.names_max = 1;
  gpumem_hub const hub = open_hub(desc);
  const auto handle = [&] { return export_at(instance, shared_buffer(instance, 1)); };
  const auto publish = [&](const char* name, const gpumem_share_handle& what) {
    return gpumem_hub_publish(hub, name, &what, nullptr, nullptr, nullptr);
  };
  const gpumem_share_handle first = handle();
  const gpumem_share_handle second = handle();
  ASSERT_EQ(publish("first", first), GPUMEM_SUCCESS);
  ASSERT_EQ(publish("second", second), GPUMEM_ERROR_LIMIT_EXCEEDED);
  HeldUp thread(address());
  EXPECT_EQ(gpumem_share_revoke(instance, &first, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(publish("second", second), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_share_revoke(instance, &second, nullptr), GPUMEM_SUCCESS);
  gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
  EXPECT_EQ(gpumem_hub_get_info(hub, &info, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(info.version_count, 0U);
  EXPECT_EQ(info.name_count, 0U);
  EXPECT_EQ(info.fd_count, 0U);
  thread.go_on();
}

// Lets a handle say that its memory is of the first device.
void set_device(gpumem_instance instance, ShareHandle& handle) {
  gpumem_device device = nullptr;
  EXPECT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_EQ(gpumem_device_get_info(device, &info, nullptr), GPUMEM_SUCCESS);
  std::copy(std::begin(info.uuid), std::end(info.uuid), handle.device_uuid.begin());
}

// A trial of a block that is none, and a connection of which the other end is `ours`.
Message trial_of(gpumem_instance instance, Descriptors* descriptors, Descriptor* ours) {
  Message message = publish_of("", 1);
  message.type = MessageType::kTrial;
  set_device(instance, message.handle);
  auto pair = platform::socket_pair();
  EXPECT_TRUE(pair);
  *ours = std::move(pair->ours);
  descriptors->push_back(std::move(pair->theirs));
  Descriptors blocks = files(1);
  set_files(blocks, message.handle);
  descriptors->push_back(std::move(blocks.front()));
  return message;
}

// Asks for such a trial over a link. Gives the other end of its connection.
Raw begin_trial(Raw& link, gpumem_instance instance) {
  Descriptors descriptors;
  Descriptor ours;
  const Message message = trial_of(instance, &descriptors, &ours);
  link.send(message, std::move(descriptors));
  return Raw(std::move(ours));
}

// Connects from another process.
Raw connected_elsewhere(const std::string& address) {
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  std::copy(address.begin(), address.end(), std::begin(place.sun_path));
  if (place.sun_path[0] == '@') place.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // The child makes a system call only, so it may be forked while other threads allocate memory.
  const auto connect_it = [&] { return syscall(SYS_connect, socket.get(), &place, size) == 0 ? 0 : errno; };
  EXPECT_EQ(test::exit_code_of(connect_it, fork), 0);
  EXPECT_EQ(fcntl(socket.get(), F_SETFL, O_NONBLOCK), 0);
  Raw raw(std::move(socket));
  EXPECT_EQ(raw.hello().type, MessageType::kWelcome);
  return raw;
}

TEST_F(ShareServerTest, NoProcessHoldsUpTheTrialsOfOthersOfItsUser) {
  open_hub(hub_desc());
  std::vector<Raw> links;
  std::vector<Raw> holders;
  for (int i = 0; i < 30; ++i) {
    Raw& link = links.emplace_back(address());
    ASSERT_EQ(link.hello().type, MessageType::kWelcome);
    holders.push_back(begin_trial(link, instance));
  }
  Raw another = connected_elsewhere(address());
  EXPECT_TRUE(begin_trial(another, instance).next()) << "its claim";
}

TEST_F(ShareServerTest, SixteenProcessesOfAUserTryAtTheSameTime) {
  open_hub(hub_desc());
  // A trial that nobody answers lasts 5 seconds, which is too short on a busy machine.
  EXPECT_TRUE(eventually([&] {
    std::vector<Raw> links;
    std::vector<Raw> holders;
    for (int i = 0; i < 16; ++i) {
      links.push_back(connected_elsewhere(address()));
      holders.push_back(begin_trial(links.back(), instance));
      if (!holders.back().next()) return false;  // the claim
    }
    Raw one_more = connected_elsewhere(address());
    Descriptors descriptors;
    Descriptor ours;
    const Message message = trial_of(instance, &descriptors, &ours);
    const Message answer = one_more.ask(message, std::move(descriptors));
    if (answer.type != MessageType::kRefused) return false;
    EXPECT_EQ(answer.status, GPUMEM_ERROR_BUSY);
    EXPECT_NE(answer.text.find("16 other processes of user"), std::string::npos) << answer.text;
    return true;
  }));
}

class SharedHubTest : public ShareServerTest {
 public:
  static constexpr uint32_t kUsers[] = {65534, 65533};
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
    desc_ = hub_desc();
    desc_.users = kUsers;
    desc_.user_count = 2;
  }

 protected:
  gpumem_hub_desc desc_{};
};

// One after another, trials that are not answered would take 5 seconds each.
TEST_F(SharedHubTest, NoUserHoldsUpTheTrialsOfOthers) {
  open_hub(desc_);
  std::vector<std::unique_ptr<Raw>> links;
  std::vector<Raw> holders;
  const auto begin_one = [&](uint32_t user) {
    links.push_back(connected_as(user, address()));
    ASSERT_EQ(links.back()->hello().type, MessageType::kWelcome);
    holders.push_back(begin_trial(*links.back(), instance));
  };
  for (int i = 0; i < 30; ++i)
    begin_one(kUsers[0]);
  for (const uint32_t user : {kUsers[1], 0U}) {
    begin_one(user);
    EXPECT_TRUE(holders.back().next()) << "its claim";
  }
}

TEST_F(SharedHubTest, NoUserTakesTheLinksOfOthers) {
  desc_.links_max = 12;
  gpumem_hub const hub = open_hub(desc_);
  std::vector<std::unique_ptr<Raw>> links;
  std::string refusal;
  // Whether the hub takes one more.
  const auto takes = [&](uint32_t user) {
    std::unique_ptr<Raw> raw = connected_as(user, address());
    Message hello = message_of(MessageType::kHello);
    hello.number = 1;
    raw->send(hello);
    const auto answer = raw->next();
    if (!answer) return false;
    refusal = answer->message.text;
    if (answer->message.type == MessageType::kWelcome) links.push_back(std::move(raw));
    return answer->message.type == MessageType::kWelcome;
  };
  const auto taken = [&](uint32_t user) {
    int count = 0;
    while (takes(user))
      ++count;
    return count;
  };
  EXPECT_EQ(taken(kUsers[0]), 6) << "half of all";
  EXPECT_NE(refusal.find("links_max = 12 for all users, of which user 65534 may have 6 now; close a link"),
            std::string::npos)
      << refusal;
  EXPECT_EQ(taken(kUsers[1]), 2) << "a third of what is left";
  EXPECT_EQ(taken(0), 1) << "the user of the hub is one of them";
  EXPECT_EQ(refused(hub), 3U);
  EXPECT_FALSE(takes(kUsers[0]));
  links.erase(links.begin(), links.begin() + 5);
  EXPECT_TRUE(takes(kUsers[0])) << "who has hung up counts no more";
  EXPECT_EQ(taken(kUsers[0]), 0) << "others hold some now";
}

// Neither HELLO nor the token is needed to take a place, so the share counts before them.
TEST_F(SharedHubTest, WhoSaysNothingTakesNoPlacesOfOthers) {
  desc_.links_max = 12;
  desc_.token = "secret";
  desc_.token_size = 6;
  desc_.timeout_ns = 600'000'000'000;  // none is late, however busy the machine
  gpumem_hub const hub = open_hub(desc_);
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 20; ++i)
    silent.push_back(connected_as(kUsers[0], address()));
  const std::unique_ptr<Raw> second = connected_as(kUsers[1], address());
  EXPECT_EQ(second->hello({}, {'s', 'e', 'c', 'r', 'e', 't'}).type, MessageType::kWelcome);
  EXPECT_EQ(refused(hub), 14U) << "half of all are his";
  gpumem_link link = nullptr;
  EXPECT_EQ(connect(&link, "secret"), GPUMEM_SUCCESS);
}

TEST_F(SharedHubTest, NoUserTakesWhatAKeeperHolds) {
  desc_.flags = GPUMEM_HUB_KEEPER;
  desc_.names_max = 12;
  gpumem_hub const hub = open_hub(desc_);
  uint8_t token = 0;
  const auto published = [&](uint32_t user) {
    std::unique_ptr<Raw> raw = connected_as(user, address());
    EXPECT_EQ(raw->hello().type, MessageType::kWelcome);
    for (int count = 0;; ++count) {
      const std::string name = std::to_string(user) + "-" + std::to_string(count);
      const Message answer = raw->ask(publish_of(name, 1, ++token), files(1));
      if (answer.type == MessageType::kPublished) continue;
      EXPECT_EQ(answer.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
      EXPECT_NE(answer.text.find("names_max = 12 for all users"), std::string::npos) << answer.text;
      return count;
    }
  };
  EXPECT_EQ(published(kUsers[0]), 6);
  EXPECT_EQ(published(kUsers[1]), 2);
  // The process of the hub takes what it likes.
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  for (const char* name : {"a", "b", "c", "d"})
    EXPECT_EQ(gpumem_hub_publish(hub, name, &handle, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, AStormOfConnectionsLeavesNothing) {
  gpumem_hub const hub = open_hub(hub_desc());
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);  // starts the threads of both
  const uint64_t before = test::open_files();
  for (int i = 0; i < 500; ++i)
    (void)platform::connect_to(address(), soon());
  ASSERT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  ASSERT_TRUE(eventually([&] { return connect(&link) == GPUMEM_SUCCESS; }));
  ASSERT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  EXPECT_TRUE(eventually([&] { return links(hub) == 0 && test::open_files() < before; })) << "one link fewer";
}

TEST_F(ShareServerTest, WhoSaysNothingIsSentAway) {
  gpumem_hub_desc desc = hub_desc();
  desc.timeout_ns = 50'000'000;
  gpumem_hub const hub = open_hub(desc);
  Raw silent(address());
  EXPECT_TRUE(silent.ends());
  EXPECT_EQ(refused(hub), 1U);
}

TEST_F(ShareServerTest, AMessageThatDoesNotEndIsSentAway) {
  gpumem_hub_desc desc = hub_desc();
  desc.timeout_ns = 50'000'000;
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  Message message = publish_of("n", 300);
  std::vector<Packet> packets = split_message(message, files(300));
  raw.send_bytes(packets[0].bytes, packets[0].descriptors);
  EXPECT_TRUE(raw.ends());
}

TEST_F(ShareServerTest, WhateverBreaksTheProtocolEndsTheConnection) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  for (const MessageType type : {MessageType::kClaim, MessageType::kFetch, MessageType::kWelcome,
                                 MessageType::kDone, MessageType::kWithdrawn, MessageType::kEnumerate}) {
    Raw raw(address());
    raw.send(message_of(type, "n"));
    EXPECT_TRUE(raw.ends()) << "before HELLO: " << static_cast<int>(type);
  }
  for (const MessageType type : {MessageType::kHello, MessageType::kClaim, MessageType::kRelease,
                                 MessageType::kWelcome, MessageType::kPublished, MessageType::kWithdrawn}) {
    Raw raw(address());
    ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
    raw.send(message_of(type, "n"));
    EXPECT_TRUE(raw.ends()) << "from a link: " << static_cast<int>(type);
  }
  for (const MessageType type : {MessageType::kHello, MessageType::kEnumerate, MessageType::kRelease,
                                 MessageType::kGranted, MessageType::kTried}) {
    Raw link(address());
    ASSERT_EQ(link.hello().type, MessageType::kWelcome);
    ASSERT_EQ(link.received.size(), 1U);
    Raw holder(std::move(link.received.front()));
    holder.send(message_of(type));
    EXPECT_TRUE(holder.ends()) << "from a holder: " << static_cast<int>(type);
  }
  Raw raw(address());
  raw.send_bytes(std::vector<uint8_t>(kPacketMax + 1));
  EXPECT_TRUE(raw.ends());
  gpumem_link link = nullptr;
  EXPECT_EQ(connect(&link), GPUMEM_SUCCESS) << "others go on";
}

TEST_F(ShareServerTest, TrialsAreBoundedAndBelieveNothing) {
  open_hub(hub_desc());
  gpumem_stats before = GPUMEM_STATS_INIT;
  ASSERT_EQ(gpumem_stats_get(instance, &before, nullptr), GPUMEM_SUCCESS);
  {
    Raw raw(address());
    ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
    Descriptors descriptors;
    Descriptor ours;
    Message message = trial_of(instance, &descriptors, &ours);
    // It does not answer the claim, so the trial goes on.
    raw.send(message, std::move(descriptors));
    Raw holder(std::move(ours));
    auto claim = holder.next();
    ASSERT_TRUE(claim);
    EXPECT_EQ(claim->message.type, MessageType::kClaim);
    Descriptors more;
    Descriptor unused;
    message = trial_of(instance, &more, &unused);
    const Message second = raw.ask(message, std::move(more));
    EXPECT_EQ(second.type, MessageType::kRefused);
    EXPECT_EQ(second.status, GPUMEM_ERROR_BUSY);
    // Another memory than it spoke of, and a file that is none of the library's.
    Message granted = message_of(MessageType::kGranted);
    granted.number = claim->message.number;
    granted.handle = message.handle;
    holder.send(granted, files(1));
    auto tried = raw.next();
    ASSERT_TRUE(tried);
    EXPECT_EQ(tried->message.type, MessageType::kTried);
    EXPECT_LT(tried->message.status, 0);
    EXPECT_FALSE(tried->message.text.empty());
  }
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  for (int i = 0; i < 64; ++i) {
    Descriptors descriptors;
    Descriptor ours;
    Message message = trial_of(instance, &descriptors, &ours);
    if (i % 3 == 0) std::swap(descriptors.front(), descriptors.back());  // no connection
    if (i % 3 == 1) message.handle.device_uuid.fill(0xee);
    ours = Descriptor();  // an exporter that has ended
    const Message tried = raw.ask(message, std::move(descriptors));
    ASSERT_EQ(tried.type, MessageType::kTried) << i;
    // Who has the descriptors needs no exporter, but these are of other memory.
    EXPECT_EQ(tried.status, i % 3 == 1 ? GPUMEM_ERROR_NOT_FOUND : GPUMEM_ERROR_INVALID_ARGUMENT)
        << tried.text;
  }
  Descriptors descriptors;
  Descriptor ours;
  const Message message = trial_of(instance, &descriptors, &ours);
  const Message last = raw.ask(message, std::move(descriptors));
  EXPECT_EQ(last.type, MessageType::kRefused);
  EXPECT_EQ(last.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  gpumem_stats after = GPUMEM_STATS_INIT;
  ASSERT_EQ(gpumem_stats_get(instance, &after, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(after.live_count, before.live_count);
}

TEST_F(ShareServerTest, ATrialThatIsNotAnsweredHoldsUpNoOtherWork) {
  open_hub(hub_desc());
  gpumem_device device = nullptr;
  ASSERT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
  desc.size = 1;
  desc.reserve = 64 << 20;
  std::optional<Raw> raw;
  std::optional<Raw> holder;
  // Each trial lasts 5 seconds, which is too short on a busy machine.
  EXPECT_TRUE(eventually([&] {
    raw.emplace(address());
    EXPECT_EQ(raw->hello().type, MessageType::kWelcome);
    holder.emplace(begin_trial(*raw, instance));
    EXPECT_TRUE(holder->next()) << "the claim, which it does not answer";
    gpumem_buffer buffer = nullptr;
    EXPECT_EQ(gpumem_buffer_create(device, &desc, &buffer, nullptr), GPUMEM_SUCCESS);
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    EXPECT_EQ(gpumem_buffer_get_info(buffer, &info, nullptr), GPUMEM_SUCCESS);
    const uint64_t before = info.capacity;
    // On the thread for longer work.
    EXPECT_EQ(gpumem_buffer_set_ahead(buffer, 32 << 20, nullptr), GPUMEM_SUCCESS);
    EXPECT_TRUE(eventually([&] {
      EXPECT_EQ(gpumem_buffer_get_info(buffer, &info, nullptr), GPUMEM_SUCCESS);
      return info.capacity > before;
    }));
    EXPECT_EQ(gpumem_buffer_destroy(buffer, nullptr), GPUMEM_SUCCESS);
    return !raw->next(0ms) && !raw->hung_up;
  })) << "each trial had ended before";
  // Closing does not wait for it either.
}

// A trial that waits takes nothing once its link has ended.
TEST_F(ShareServerTest, ATrialThatWaitsGoesWithItsLink) {
  open_hub(hub_desc());
  Raw first(address());
  ASSERT_EQ(first.hello().type, MessageType::kWelcome);
  Raw holder = begin_trial(first, instance);
  ASSERT_TRUE(holder.next()) << "the claim, which it does not answer";
  std::optional<Raw> second(address());
  ASSERT_EQ(second->hello().type, MessageType::kWelcome);
  Raw waiting = begin_trial(*second, instance);
  second.reset();
  EXPECT_FALSE(waiting.next()) << "a claim by a trial of nobody";
}

// A hub that opens nothing, and does with a trial what it is told to.
class LyingHubTest : public ShareServerTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(gpumem_link_close(link_, nullptr), GPUMEM_SUCCESS);
    if (liar_.joinable()) liar_.join();
    EXPECT_EQ(gpumem_memory_destroy(memory_, nullptr), GPUMEM_SUCCESS);
    ShareServerTest::TearDown();
  }
  using Answer = std::function<void(Raw& link, uint64_t number)>;
  // Answers with a message.
  static Answer answer(MessageType type, gpumem_status status) {
    return [=](Raw& link, uint64_t number) {
      Message message = message_of(type);
      message.number = number;
      message.status = status;
      link.send(std::move(message));
    };
  }
  gpumem_way_info ask() {
    gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
    EXPECT_EQ(gpumem_link_get_way(link_, pointer_, GPUMEM_SHARE_WAY_LEGACY, GPUMEM_PEER_OTHER_PROCESS, &info,
                                  nullptr),
              GPUMEM_SUCCESS);
    return info;
  }
  gpumem_way_info ask(const Answer& answer) {
    auto listener = platform::Listener::open(address(), 0600);
    EXPECT_TRUE(listener);
    if (!listener) return GPUMEM_WAY_INFO_INIT;
    liar_ = std::thread([answer, listener = std::move(*listener)]() mutable { lie(listener, answer); });
    EXPECT_EQ(connect(&link_), GPUMEM_SUCCESS);
    gpumem_device device = nullptr;
    EXPECT_EQ(gpumem_device_get(other, 0, &device, nullptr), GPUMEM_SUCCESS);
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = GPUMEM_KIND_DEVICE;
    desc.size = 4096;
    desc.require = GPUMEM_MEMORY_SHAREABLE;
    EXPECT_EQ(gpumem_memory_create(device, &desc, &memory_, nullptr), GPUMEM_SUCCESS);
    gpumem_memory_info made = GPUMEM_MEMORY_INFO_INIT;
    EXPECT_EQ(gpumem_memory_get_info(memory_, &made, nullptr), GPUMEM_SUCCESS);
    pointer_ = made.device_pointer;
    return ask();
  }
  // Memory of the one that asks, beside what it asks about.
  uint64_t blocks() {
    gpumem_stats stats = GPUMEM_STATS_INIT;
    EXPECT_EQ(gpumem_stats_get(other, &stats, nullptr), GPUMEM_SUCCESS);
    return stats.live_count - 1;
  }

 private:
  static void lie(platform::Listener& listener, const Answer& answer) {
    ASSERT_EQ(*platform::wait_for(listener.get(), false, soon()), platform::Waited::kReady);
    auto socket = listener.accept();
    ASSERT_TRUE(socket && *socket);
    Raw raw(std::move(*socket));
    const auto hello = raw.next();
    ASSERT_TRUE(hello);
    Message welcome = message_of(MessageType::kWelcome);
    welcome.number = hello->message.number;
    auto pair = platform::socket_pair();
    ASSERT_TRUE(pair);
    Descriptors descriptors;
    descriptors.push_back(std::move(pair->theirs));
    raw.send(std::move(welcome), std::move(descriptors));
    const auto trial = raw.next();
    ASSERT_TRUE(trial);
    answer(raw, trial->message.number);
    (void)raw.next();
  }

  std::thread liar_;
  gpumem_link link_ = nullptr;
  gpumem_memory memory_ = nullptr;
  void* pointer_ = nullptr;
};

TEST_F(LyingHubTest, WhoOnlySaysThatItTriedIsNotBelieved) {
  const gpumem_way_info info = ask(answer(MessageType::kTried, GPUMEM_SUCCESS));
  EXPECT_EQ(info.status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(info.message).find("is not here"), std::string::npos) << info.message;
}

TEST_F(LyingHubTest, ARefusedTrialKeepsNoBlock) {
  EXPECT_EQ(ask(answer(MessageType::kRefused, GPUMEM_ERROR_BUSY)).status, GPUMEM_ERROR_BUSY);
  EXPECT_EQ(blocks(), 0U) << "it could be asked again and again";
}

TEST_F(LyingHubTest, ATrialThatIsNotAnsweredIsTheOnlyOne) {
  std::latch late(1);
  const auto late_answer = [&](Raw& link, uint64_t number) {
    late.wait();
    answer(MessageType::kRefused, GPUMEM_ERROR_BUSY)(link, number);
    const auto next = link.next();
    ASSERT_TRUE(next);
    answer(MessageType::kRefused, GPUMEM_ERROR_UNSUPPORTED)(link, next->message.number);
  };
  EXPECT_EQ(ask(late_answer).status, GPUMEM_ERROR_BUSY);
  for (int i = 0; i < 3; ++i) {
    const gpumem_way_info info = ask();
    EXPECT_EQ(info.status, GPUMEM_ERROR_BUSY);
    EXPECT_NE(std::string(info.message).find("has not answered the trial"), std::string::npos)
        << info.message;
    EXPECT_EQ(blocks(), 1U);
  }
  late.count_down();
  EXPECT_TRUE(eventually([&] { return ask().status == GPUMEM_ERROR_UNSUPPORTED; }));
  EXPECT_EQ(blocks(), 0U);
}

TEST_F(ShareServerTest, NobodySendsWhatTheSharingThreadWaitsFor) {
  for (const bool nested : {false, true}) {
    SCOPED_TRACE(nested);
    std::array<test::Lingering, 3> lingering;
    for (const test::Lingering& one : lingering) {
      if (!one) GTEST_SKIP() << "there is no network";
    }
    const auto take = [&](size_t i) {
      return nested ? lingering.at(i).take_nested() : lingering.at(i).take();
    };
    gpumem_hub_desc desc = hub_desc();
    desc.links_max = 2;
    gpumem_hub const hub = open_hub(desc);
    Raw stays(address());
    ASSERT_EQ(stays.hello().type, MessageType::kWelcome);
    Raw link(address());
    ASSERT_EQ(link.hello().type, MessageType::kWelcome);
    // Nobody reads while an answer is held.
    answer_is_held = false;
    hold_answers = true;
    Message message = message_of(MessageType::kEnumerate);
    message.number = 100;
    stays.send(message);
    EXPECT_TRUE(eventually([] { return answer_is_held.load(); }));
    const std::array<uint8_t, 4> nonsense{};
    link.send_bytes(nonsense, take(0));
    link.send_bytes(nonsense, take(1));  // which is not read any more
    Raw refused_one(address());
    refused_one.send_bytes(nonsense, take(2));
    hold_answers = false;
    EXPECT_TRUE(link.ends());
    EXPECT_TRUE(refused_one.ends());
    EXPECT_TRUE(eventually([&] { return links(hub) == 1; }));
    EXPECT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
  }
}

TEST_F(ShareServerTest, AnotherVersionIsToldWhy) {
  open_hub(hub_desc());
  Raw raw(address());
  Message message = message_of(MessageType::kHello);
  std::vector<uint8_t> bytes = encode_message(message);
  bytes[4] = 9;
  raw.send_bytes(bytes);
  auto answer = raw.next();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->message.type, MessageType::kRefused);
  EXPECT_EQ(answer->message.status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(raw.ends());
}

TEST_F(ShareServerTest, RandomMessagesHarmNobody) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    Raw raw(address());
    if (i % 4 != 0) raw.hello();
    for (int j = 0; j < 20; ++j) {
      Message message = publish_of("n" + std::to_string(random() % 5), 0);
      constexpr uint32_t kTypes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 32, 33, 36, 38, 64, 66};
      message.type = static_cast<MessageType>(kTypes[random() % std::size(kTypes)]);
      const auto count = static_cast<uint32_t>(random() % 3);
      message.handle.fd_count = count;
      message.version = random() % 4;
      std::vector<Packet> packets = split_message(message, files(count));
      if (random() % 8 == 0) packets[0].bytes[random() % packets[0].bytes.size()] ^= 1;
      raw.send_bytes(packets[0].bytes, packets[0].descriptors);
    }
  }
  gpumem_link link = nullptr;
  gpumem_status status = GPUMEM_ERROR_LIMIT_EXCEEDED;
  for (int i = 0; i < 500 && status != GPUMEM_SUCCESS; ++i) {
    status = connect(&link);
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(status, GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, OneThatTakesNoAnswersIsSentAwayAndHoldsUpNobody) {
  gpumem_hub_desc desc = hub_desc();
  desc.timeout_ns = 100'000'000;
  open_hub(desc);
  Raw greedy(address());
  ASSERT_EQ(greedy.hello().type, MessageType::kWelcome);
  const auto end = soon();
  bool ended = false;
  while (!ended && std::chrono::steady_clock::now() < end) {
    const std::vector<uint8_t> ask = encode_message(message_of(MessageType::kEnumerate));
    auto sent = platform::send_some(greedy.socket(), ask, {});
    ended = !sent;
  }
  EXPECT_TRUE(ended);
  gpumem_link link = nullptr;
  EXPECT_EQ(connect(&link), GPUMEM_SUCCESS);
}

// ---- a keeper ----

TEST_F(ShareServerTest, AKeeperKeepsDescriptorsWhenItsPublisherHasEnded) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  gpumem_hub const hub = open_hub(desc);
  Descriptors given = files(300);
  const uint64_t inode = platform::describe(given[299].get()).inode;
  {
    Raw publisher(address());
    ASSERT_TRUE(publisher.hello().keeper);
    EXPECT_EQ(publisher.ask(publish_of("n", 300), std::move(given)).type, MessageType::kPublished);
  }
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  for (int i = 0; i < 500 && entry.publisher_gone == 0; ++i)
    ASSERT_EQ(gpumem_link_enumerate(link, 0, &entry, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(entry.publisher_gone, 1U);
  EXPECT_STREQ(entry.name, "n");
  EXPECT_EQ(entry.access, GPUMEM_ACCESS_READ);
  gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
  ASSERT_EQ(gpumem_hub_get_info(hub, &info, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(info.fd_count, 300U);

  Raw reader(address());
  ASSERT_EQ(reader.hello().type, MessageType::kWelcome);
  Raw holder(std::move(reader.received.front()));
  ASSERT_EQ(reader.ask(message_of(MessageType::kFetch, "n")).type, MessageType::kGranted);
  ASSERT_EQ(reader.received.size(), 300U);
  EXPECT_EQ(platform::describe(reader.received[299].get()).inode, inode);
  ASSERT_EQ(holder.ask(claim_of(1)).type, MessageType::kGranted);
  EXPECT_EQ(holder.received.size(), 300U);
  EXPECT_EQ(holder.ask(claim_of(2)).status, GPUMEM_ERROR_STALE_HANDLE);
  ASSERT_EQ(gpumem_link_withdraw(link, "n", 1, nullptr), GPUMEM_SUCCESS);
  auto note = holder.next();
  ASSERT_TRUE(note);
  EXPECT_EQ(note->message.type, MessageType::kWithdrawn);
  EXPECT_EQ(holder.ask(claim_of(1)).status, GPUMEM_ERROR_STALE_HANDLE);
}

// Its number may be another process's by then.
TEST_F(ShareServerTest, NobodyPublishesInTheNameOfAProcessThatHasEnded) {
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  int option = 0;
  socklen_t size = sizeof option;
  if (getsockopt(ends->ours.get(), SOL_SOCKET, 77, &option, &size) != 0)
    GTEST_SKIP() << "the kernel has no SO_PEERPIDFD";
  const Descriptor asked(option);
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  const auto publish = [](Raw& link) {
    Message message = publish_of("n", 1);
    Descriptors blocks = files(1);
    set_files(blocks, message.handle);
    return link.ask(message, std::move(blocks));
  };
  Raw inherited = connected_elsewhere(address());
  const Message refused = publish(inherited);
  EXPECT_EQ(refused.status, GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_NE(refused.text.find("has ended"), std::string::npos) << refused.text;
  Raw own(address());
  ASSERT_EQ(own.hello().type, MessageType::kWelcome);
  EXPECT_EQ(publish(own).type, MessageType::kPublished);
}

TEST_F(ShareServerTest, AnImportThatFailsLeavesNoThread) {
  const gpumem_share_handle handle = export_at(instance, shared_buffer(instance, 1));
  ASSERT_TRUE(inside(other)->share_server().start());
  gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
  desc.address = shared_buffer(other, 1);  // where something lies
  const uint64_t before = test::threads();
  gpumem_memory memory = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_share_import(other, &handle, nullptr, 0, &desc, nullptr, &memory, &error),
            GPUMEM_ERROR_ALREADY_EXISTS)
      << error.message;
  EXPECT_TRUE(eventually([&] { return test::threads() == before; }));
}

// The sharing thread, which is there, gives up what nobody imports.
TEST_F(ShareServerTest, AFetchStartsNoThread) {
  gpumem_hub const hub = open_hub(hub_desc());
  const gpumem_share_handle exported = export_at(instance, shared_buffer(instance, 1));
  ASSERT_EQ(gpumem_hub_publish(hub, "n", &exported, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  const uint64_t before = test::threads();
  gpumem_share_handle handle;
  ASSERT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_SUCCESS);
  EXPECT_LE(test::threads(), before);
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// A handle may be imported by another thread first, which takes what came with it.
TEST_F(ShareServerTest, AFetchedHandleIsImportedAgainOverItsLink) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = desc.path;
  {
    const Opened publisher;
    gpumem_link link = nullptr;
    ASSERT_EQ(gpumem_link_connect(publisher, &link_desc, &link, nullptr), GPUMEM_SUCCESS);
    const gpumem_share_handle exported = export_at(publisher, shared_buffer(publisher, 1));
    ASSERT_EQ(gpumem_link_publish(link, "n", &exported, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  }
  gpumem_link link = nullptr;
  ASSERT_EQ(gpumem_link_connect(other, &link_desc, &link, nullptr), GPUMEM_SUCCESS);
  gpumem_share_handle handle;
  ASSERT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_SUCCESS);
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto import = [&] {
    gpumem_memory memory = nullptr;
    const gpumem_status status =
        gpumem_share_import(other, &handle, nullptr, 0, nullptr, nullptr, &memory, &error);
    EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS);
    return status;
  };
  EXPECT_EQ(import(), GPUMEM_SUCCESS) << error.message;
  EXPECT_EQ(import(), GPUMEM_SUCCESS) << error.message;
  ASSERT_EQ(gpumem_link_withdraw(link, "n", 0, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(import(), GPUMEM_ERROR_STALE_HANDLE) << error.message;
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, AKeeperKeepsWhatItsOwnInstanceHasPublishedByALink) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  gpumem_hub const hub = open_hub(desc);
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = desc.path;
  gpumem_link link = nullptr;
  ASSERT_EQ(gpumem_link_connect(instance, &link_desc, &link, nullptr), GPUMEM_SUCCESS);
  gpumem_share_handle const kept = export_at(instance, shared_buffer(instance, 1));
  ASSERT_EQ(gpumem_link_publish(link, "kept", &kept, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  gpumem_share_handle const lent = export_at(instance, shared_buffer(instance, 1));
  ASSERT_EQ(gpumem_hub_publish(hub, "lent", &lent, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  Raw reader(address());
  ASSERT_EQ(reader.hello().type, MessageType::kWelcome);
  Raw holder(std::move(reader.received.front()));
  for (const gpumem_share_handle* handle : {&kept, &lent}) {
    ASSERT_EQ(reader.ask(message_of(MessageType::kFetch, handle == &kept ? "kept" : "lent")).type,
              MessageType::kGranted);
    Message claim = message_of(MessageType::kClaim);
    claim.token = decode(*handle)->token;
    ASSERT_EQ(holder.ask(claim).type, MessageType::kGranted);
    EXPECT_EQ(gpumem_share_revoke(instance, handle, nullptr), GPUMEM_SUCCESS);
  }
  // What is told first is the second: the first has not ended.
  const auto note = holder.next();
  ASSERT_TRUE(note);
  EXPECT_EQ(note->message.type, MessageType::kWithdrawn);
  EXPECT_EQ(note->message.token, decode(lent)->token);
  EXPECT_EQ(reader.ask(message_of(MessageType::kFetch, "lent")).status, GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(reader.ask(message_of(MessageType::kFetch, "kept")).type, MessageType::kGranted);
}

TEST_F(ShareServerTest, WhoHasReadAHandlePublishesNothingElseBehindIt) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  Raw reader(address());
  ASSERT_EQ(reader.hello().type, MessageType::kWelcome);
  const Raw holder(std::move(reader.received.front()));
  const auto publish = [](Raw& raw, const char* name) {
    Descriptors given = files(1);
    const uint64_t inode = platform::describe(given[0].get()).inode;
    EXPECT_EQ(raw.ask(publish_of(name, 1), std::move(given)).type, MessageType::kPublished) << name;
    return inode;
  };
  const auto fetched = [&](const char* name, uint64_t inode) {
    reader.received.clear();
    const Message granted = reader.ask(message_of(MessageType::kFetch, name));
    EXPECT_EQ(granted.type, MessageType::kGranted) << name;
    EXPECT_EQ(reader.received.size(), 1U) << name;
    if (!reader.received.empty()) {
      EXPECT_EQ(platform::describe(reader.received[0].get()).inode, inode) << name;
    }
    return granted.handle.token;
  };
  const Token token = publish_of("", 1).handle.token;
  {
    Raw owner(address());
    ASSERT_EQ(owner.hello().type, MessageType::kWelcome);
    const uint64_t genuine = publish(owner, "n");
    const uint64_t own = publish(reader, "other");
    EXPECT_NE(fetched("other", own), token);
    EXPECT_EQ(fetched("n", genuine), token);
    EXPECT_EQ(fetched("same", publish(owner, "same")), token) << "its own";
    ASSERT_EQ(owner.ask(message_of(MessageType::kWithdraw, "n")).type, MessageType::kDone);
    ASSERT_EQ(owner.ask(message_of(MessageType::kWithdraw, "same")).type, MessageType::kDone);
  }
  // Nobody is shut out, in whatever order they publish, and if a publisher comes again.
  const uint64_t first = publish(reader, "first");
  EXPECT_EQ(fetched("first", first), token);
  for (const char* name : {"n", "n", "same"}) {
    Raw owner(address());
    ASSERT_EQ(owner.hello().type, MessageType::kWelcome);
    EXPECT_NE(fetched(name, publish(owner, name)), token);
  }
  EXPECT_EQ(fetched("first", first), token);
}

TEST_F(ShareServerTest, OneProcessLeavesPlacesAtAnExporterForOthers) {
  const Token exporter = decode(export_at(instance, shared_buffer(instance, 1)))->exporter.instance;
  const DescriptorLimit limit(4096);  // both ends of each connection are here
  std::vector<Raw> held;
  for (;;) {
    Raw one(abstract_address(exporter));
    Message hello = message_of(MessageType::kHello);
    hello.token = exporter;
    one.send(std::move(hello));
    const auto answer = one.next();
    ASSERT_TRUE(answer);
    if (answer->message.type != MessageType::kWelcome) {
      EXPECT_EQ(answer->message.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
      break;
    }
    held.push_back(std::move(one));
  }
  EXPECT_EQ(held.size(), 512U);
  const auto connect_elsewhere = [&] {
    return Raw(abstract_address(exporter)).hello(exporter).type == MessageType::kWelcome ? 0 : 1;
  };
  EXPECT_EQ(test::exit_code_of(connect_elsewhere), 0);
}

// A link that claims one token twice: as what a hub's own process exported, and as what its keeper keeps.
class ClaimedTwiceTest : public ShareServerTest {
 public:
  ClaimedTwiceTest() {
    gpumem_hub_desc desc = hub_desc();
    desc.flags = GPUMEM_HUB_KEEPER;
    hub = open_hub(desc);
    gpumem_device device = nullptr;
    EXPECT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
    gpumem_memory_desc memory_desc = GPUMEM_MEMORY_DESC_INIT;
    memory_desc.kind = GPUMEM_KIND_DEVICE;
    memory_desc.size = 1;
    memory_desc.require = GPUMEM_MEMORY_SHAREABLE;
    EXPECT_EQ(gpumem_memory_create(device, &memory_desc, &memory, nullptr), GPUMEM_SUCCESS);
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    EXPECT_EQ(gpumem_memory_get_info(memory, &info, nullptr), GPUMEM_SUCCESS);
    const gpumem_share_handle exported = export_at(instance, info.device_pointer);
    claim.token = decode(exported)->token;
    EXPECT_EQ(gpumem_hub_publish(hub, "exported", &exported, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  }
  // Other files under the token of the export.
  Message forged() const {
    Message message = publish_of("kept", 1);
    message.handle.token = claim.token;
    message.handle.exporter.pid = getpid();
    return message;
  }
  void claim_twice() {
    link.emplace(address());
    ASSERT_EQ(link->hello().type, MessageType::kWelcome);
    holder.emplace(std::move(link->received.front()));
    ASSERT_EQ(link->ask(message_of(MessageType::kFetch, "exported")).type, MessageType::kGranted);
    ASSERT_EQ(holder->ask(claim).type, MessageType::kGranted);
    ASSERT_EQ(gpumem_hub_withdraw(hub, "exported", 0, nullptr), GPUMEM_SUCCESS);
    const auto note = holder->next();
    ASSERT_TRUE(note);
    ASSERT_EQ(note->message.type, MessageType::kWithdrawn);
    ASSERT_EQ(link->ask(forged(), files(1)).type, MessageType::kPublished) << "a process trusts itself";
    ASSERT_EQ(link->ask(message_of(MessageType::kFetch, "kept")).type, MessageType::kGranted);
    ASSERT_EQ(holder->ask(claim).type, MessageType::kGranted);
  }

  gpumem_hub hub = nullptr;
  gpumem_memory memory = nullptr;
  Message claim = message_of(MessageType::kClaim);
  std::optional<Raw> link;
  std::optional<Raw> holder;
};

TEST_F(ClaimedTwiceTest, NoOtherProcessPublishesTheTokenOfAnExport) {
  ASSERT_EQ(gpumem_hub_withdraw(hub, "exported", 0, nullptr), GPUMEM_SUCCESS);
  const auto publish = [&] {
    Raw raw(address());
    if (raw.hello().type != MessageType::kWelcome) return 1;
    return raw.ask(forged(), files(1)).status == GPUMEM_ERROR_PERMISSION_DENIED ? 0 : 2;
  };
  EXPECT_EQ(test::exit_code_of(publish), 0);
}

TEST_F(ClaimedTwiceTest, BothClaimsEndWithTheirConnection) {
  claim_twice();
  EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_ERROR_BUSY);
  link.reset();
  holder.reset();
  EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ClaimedTwiceTest, TheExportIsHeldUntilBothAreReleased) {
  claim_twice();
  Message release = message_of(MessageType::kRelease);
  release.token = claim.token;
  holder->send(release);
  EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_ERROR_BUSY) << "it may be the other's";
  holder->send(release);
  EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ClaimedTwiceTest, WithdrawnIsToldOnceOfAClaim) {
  claim_twice();
  ASSERT_EQ(link->ask(message_of(MessageType::kWithdraw, "kept")).type, MessageType::kDone);
  const auto note = holder->next();
  ASSERT_TRUE(note);
  EXPECT_EQ(note->message.type, MessageType::kWithdrawn) << "it was claimed again since the first one";
  ASSERT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(holder->ask(claim).type, MessageType::kRefused) << "nothing came before this answer";
}

TEST_F(ShareServerTest, AClaimHasTheAccessOfTheNameThatWasFetched) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  Raw publisher(address());
  ASSERT_EQ(publisher.hello().type, MessageType::kWelcome);
  ASSERT_EQ(publisher.ask(publish_of("read", 1), files(1)).type, MessageType::kPublished);
  Message writable = publish_of("write", 1);
  writable.access = GPUMEM_ACCESS_READWRITE;
  ASSERT_EQ(publisher.ask(writable, files(1)).type, MessageType::kPublished);

  Raw link(address());
  ASSERT_EQ(link.hello().type, MessageType::kWelcome);
  Raw holder(std::move(link.received.front()));
  EXPECT_EQ(holder.ask(claim_of(1)).status, GPUMEM_ERROR_STALE_HANDLE) << "nothing was fetched";
  const auto claimed = [&](const char* name) {
    EXPECT_EQ(link.ask(message_of(MessageType::kFetch, name)).type, MessageType::kGranted);
    const Message granted = holder.ask(claim_of(1));
    EXPECT_EQ(granted.type, MessageType::kGranted);
    return granted.handle.access;
  };
  EXPECT_EQ(claimed("read"), GPUMEM_ACCESS_READ);
  EXPECT_EQ(claimed("write"), GPUMEM_ACCESS_READWRITE);
  // What was fetched ends with what was published.
  ASSERT_EQ(publisher.ask(message_of(MessageType::kWithdraw, "read")).type, MessageType::kDone);
  ASSERT_EQ(publisher.ask(message_of(MessageType::kWithdraw, "write")).type, MessageType::kDone);
  auto note = holder.next();
  ASSERT_TRUE(note);
  EXPECT_EQ(note->message.type, MessageType::kWithdrawn);
  ASSERT_EQ(publisher.ask(publish_of("read", 1), files(1)).type, MessageType::kPublished);
  EXPECT_EQ(holder.ask(claim_of(1)).status, GPUMEM_ERROR_STALE_HANDLE);
}

TEST_F(ShareServerTest, AKeeperRefusesWhatIsNoMemory) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  desc.fds_max = 260;
  open_hub(desc);
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  auto ends = platform::socket_pair();
  Descriptors socket;
  socket.push_back(std::move(ends->ours));
  EXPECT_EQ(raw.ask(publish_of("n", 1), std::move(socket)).status, GPUMEM_ERROR_INVALID_ARGUMENT);
  Message legacy = publish_of("n", 1);
  legacy.handle.way = GPUMEM_SHARE_WAY_LEGACY;
  EXPECT_EQ(raw.ask(legacy, files(1)).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(raw.ask(publish_of("n", 0)).status, GPUMEM_ERROR_UNSUPPORTED);
  const uint64_t before = test::open_files();
  EXPECT_EQ(raw.ask(publish_of("n", 300), files(300)).status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  // The other thread may be closing those of the last message.
  for (int i = 0; i < 500 && test::open_files() > before; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_LE(test::open_files(), before);
  Message greedy = publish_of("n", 1);
  greedy.handle.access = GPUMEM_ACCESS_READ;
  greedy.access = GPUMEM_ACCESS_READWRITE;
  EXPECT_EQ(raw.ask(greedy, files(1)).status, GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(raw.ask(publish_of("n", 1), files(1)).type, MessageType::kPublished);
}

TEST_F(ShareServerTest, AKeeperTakesOnlyAsManyBytesAsTheHandleSays) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  gpumem_hub const hub = open_hub(desc);
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  const auto answer_to = [&](Descriptors given, gpumem_backend backend = GPUMEM_BACKEND_HOST) {
    Message message = publish_of("n", static_cast<uint32_t>(given.size()));
    message.handle.backend = backend;
    return raw.ask(message, std::move(given));
  };
  const auto with = [](Descriptor last) {
    Descriptors given = files(2);
    given.push_back(std::move(last));
    return given;
  };
  for (const gpumem_backend backend : {GPUMEM_BACKEND_HOST, GPUMEM_BACKEND_CUDA}) {
    EXPECT_EQ(answer_to(files(1, 2 * kBlock), backend).status, GPUMEM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(answer_to(with(std::move(files(1, kBlock / 2)[0])), backend).status,
              GPUMEM_ERROR_INVALID_ARGUMENT);
    // One that can grow later.
    Descriptor growing(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(growing.get(), kBlock), 0);
    EXPECT_EQ(answer_to(with(std::move(growing)), backend).status, GPUMEM_ERROR_INVALID_ARGUMENT);
  }
  // What the driver gives is a device file.
  EXPECT_EQ(answer_to(with(Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC)))).status,
            GPUMEM_ERROR_INVALID_ARGUMENT);
  Message wrong = publish_of("n", 2);
  wrong.handle.size += kBlock;
  EXPECT_EQ(raw.ask(wrong, files(2)).status, GPUMEM_ERROR_INVALID_ARGUMENT) << "more than its blocks";
  gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
  ASSERT_EQ(gpumem_hub_get_info(hub, &info, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(info.fd_count, 0U);
  EXPECT_EQ(info.refused_count, 8U);
  EXPECT_EQ(answer_to(with(Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC))), GPUMEM_BACKEND_CUDA).type,
            MessageType::kPublished);
}

TEST_F(ShareServerTest, WaitingEndsWithAVersionWithTheLinkAndWithTheHub) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  gpumem_hub const hub = open_hub(desc);
  gpumem_link link[3] = {};
  for (gpumem_link& one : link)
    ASSERT_EQ(connect(&one), GPUMEM_SUCCESS);
  Raw publisher(address());
  ASSERT_EQ(publisher.hello().type, MessageType::kWelcome);
  std::atomic<gpumem_status> first{1};
  Sleeper waiter([&] {
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    first = gpumem_link_wait(link[0], "n", 0, GPUMEM_TIMEOUT_INFINITE, &entry, nullptr);
    EXPECT_EQ(entry.version, 1U);
  });
  EXPECT_EQ(publisher.ask(publish_of("n", 1), files(1)).type, MessageType::kPublished);
  waiter.join();
  EXPECT_EQ(first, GPUMEM_SUCCESS);

  std::atomic<gpumem_status> second{1};
  std::atomic<gpumem_status> third{1};
  Sleeper closed(
      [&] { second = gpumem_link_wait(link[1], "n", 1, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr); });
  Sleeper left([&] { third = gpumem_link_wait(link[2], "n", 1, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr); });
  EXPECT_EQ(gpumem_link_close(link[1], nullptr), GPUMEM_SUCCESS);
  closed.join();
  EXPECT_EQ(second, GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
  left.join();
  EXPECT_EQ(third, GPUMEM_ERROR_PEER_GONE);
}

// Closing waits for the call, which would go on for an hour otherwise.
TEST_F(ShareServerTest, ClosingTheInstanceEndsAConnectionThatNobodyAccepts) {
  auto listener = platform::Listener::open(address(), 0600);
  ASSERT_TRUE(listener);
  std::vector<Descriptor> waiting;
  for (;;) {  // as many as have room
    auto one = platform::connect_to(address(), std::chrono::steady_clock::now());
    if (!one) break;
    waiting.push_back(std::move(*one));
  }
  ASSERT_FALSE(waiting.empty());
  gpumem_instance const closed = other;
  const std::string path = address();
  std::atomic<gpumem_status> connected{1};
  Sleeper connects([&] {
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = path.c_str();
    desc.timeout_ns = 3'600'000'000'000;
    gpumem_link link = nullptr;
    connected = gpumem_link_connect(closed, &desc, &link, nullptr);
  });
  other.close();
  connects.join();
  EXPECT_EQ(connected, GPUMEM_ERROR_CLOSED);
}

TEST_F(ShareServerTest, ClosingTheInstanceEndsWhatWaits) {
  open_hub(hub_desc());
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  gpumem_instance const closed = other;
  auto ends = platform::socket_pair();
  std::atomic<gpumem_status> waited{1};
  std::atomic<gpumem_status> received{1};
  Sleeper waiter([&] { waited = gpumem_link_wait(link, "n", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr); });
  Sleeper receiver([&] {
    gpumem_share_handle handle;
    received = gpumem_share_receive(closed, ends->ours.get(), GPUMEM_TIMEOUT_INFINITE, &handle, nullptr);
  });
  other.close();
  waiter.join();
  receiver.join();
  EXPECT_EQ(waited, GPUMEM_ERROR_CLOSED);
  EXPECT_EQ(received, GPUMEM_ERROR_CLOSED);
}

// Whether all threads but `others` go to sleep and stay so. They may have had something to finish the first
// time; those that look every now and then never pass.
bool sleep_but(const std::map<std::string, std::string>& others) {
  const auto sleeps = [&] {
    auto found = sleeps_of_threads();
    for (const auto& other_thread : others)
      found.erase(other_thread.first);
    return found;
  };
  return eventually([&] {
    const auto before = sleeps();
    std::this_thread::sleep_for(300ms);
    return !before.empty() && sleeps() == before &&
           std::all_of(before.begin(), before.end(), [](const auto& thread) {
             return thread.second.find("S (sleeping)") != std::string::npos;
           });
  });
}

TEST_F(ShareServerTest, TheThreadSleepsWhileNobodyAsks) {
  const auto others = sleeps_of_threads();
  open_hub(hub_desc());
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  EXPECT_TRUE(sleep_but(others)) << "threads woke up";
}

TEST_F(ShareServerTest, TheSocketOfTheServiceManagerOutlivesTheHub) {
  const auto others = sleeps_of_threads();
  const Descriptor given(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, address().data() + 1, address().size() - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address().size());
  ASSERT_EQ(bind(given.get(), reinterpret_cast<const sockaddr*>(&name), size), 0);
  ASSERT_EQ(listen(given.get(), 8), 0);
  ASSERT_EQ(setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1), 0);
  ASSERT_EQ(setenv("LISTEN_FDS", std::to_string(given.get() - 2).c_str(), 1), 0);
  const Cleanup forget([] {
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
  });
  const gpumem_hub_desc desc = hub_desc();
  for (int round = 0; round < 2; ++round) {
    gpumem_hub const hub = open_hub(desc);
    gpumem_hub second = nullptr;
    EXPECT_EQ(gpumem_hub_open(other, &desc, &second, &why), GPUMEM_ERROR_ALREADY_EXISTS);
    EXPECT_NE(std::strstr(why.message, "another hub of this process listens"), nullptr) << why.message;
    gpumem_link link = nullptr;
    EXPECT_EQ(connect(&link), GPUMEM_SUCCESS) << why.message;
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
    EXPECT_TRUE(platform::connect_to(address(), soon())) << "who comes now waits for the next hub";
    EXPECT_TRUE(sleep_but(others)) << "nobody looks who waits";
  }
}

TEST_F(ShareServerTest, NoMessageHasControlCharactersOfAPath) {
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  desc.name = "two\nlines";
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_hub hub = nullptr;
  gpumem_link link = nullptr;
  EXPECT_EQ(gpumem_hub_open(instance, &desc, &hub, &error), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(std::strchr(error.message, '\n'), nullptr) << error.message;
  desc.name = nullptr;
  char folder[] = "/tmp/gpumem-two\nlines-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string taken = std::string(folder) + "/taken";
  const std::string missing = std::string(folder) + "/missing/hub";
  desc.path = taken.c_str();
  ASSERT_EQ(gpumem_hub_open(instance, &desc, &hub, &error), GPUMEM_SUCCESS) << error.message;
  const auto refused = [&](gpumem_status expected, gpumem_status status) {
    EXPECT_EQ(status, expected) << error.message;
    EXPECT_EQ(std::strchr(error.message, '\n'), nullptr) << error.message;
    EXPECT_NE(std::strstr(error.message, "two\\x0alines"), nullptr) << error.message;
  };
  gpumem_hub other_hub = nullptr;
  refused(GPUMEM_ERROR_ALREADY_EXISTS, gpumem_hub_open(instance, &desc, &other_hub, &error));
  const std::string only_a_folder = std::string(folder) + "/";
  desc.path = link_desc.path = only_a_folder.c_str();
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_hub_open(instance, &desc, &other_hub, &error));
  refused(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_link_connect(other, &link_desc, &link, &error));
  desc.path = missing.c_str();
  refused(GPUMEM_ERROR_NOT_FOUND, gpumem_hub_open(instance, &desc, &other_hub, &error));
  link_desc.path = missing.c_str();
  refused(GPUMEM_ERROR_NOT_FOUND, gpumem_link_connect(other, &link_desc, &link, &error));
  link_desc.path = taken.c_str();
  ASSERT_EQ(gpumem_link_connect(other, &link_desc, &link, &error), GPUMEM_SUCCESS) << error.message;
  gpumem_share_handle handle{};
  gpumem_memory_desc memory_desc = GPUMEM_MEMORY_DESC_INIT;
  memory_desc.kind = GPUMEM_KIND_DEVICE;
  memory_desc.size = 4096;
  memory_desc.require = GPUMEM_MEMORY_SHAREABLE;
  gpumem_device device = nullptr;
  ASSERT_EQ(gpumem_device_get(other, 0, &device, nullptr), GPUMEM_SUCCESS);
  gpumem_memory memory = nullptr;
  ASSERT_EQ(gpumem_memory_create(device, &memory_desc, &memory, nullptr), GPUMEM_SUCCESS);
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  ASSERT_EQ(gpumem_memory_get_info(memory, &info, nullptr), GPUMEM_SUCCESS);
  ASSERT_EQ(gpumem_share_export(other, info.device_pointer, nullptr, &handle, nullptr), GPUMEM_SUCCESS);
  refused(GPUMEM_ERROR_UNSUPPORTED, gpumem_link_publish(link, "n", &handle, nullptr, nullptr, &error));
  ASSERT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(rmdir(folder), 0);
}

TEST_F(ShareServerTest, WhereNothingCanBeSharedNothingListens) {
  gpumem_host_options options = GPUMEM_HOST_OPTIONS_INIT;
  options.masked = "sharing";
  gpumem_instance_desc instance_desc = GPUMEM_INSTANCE_DESC_INIT;
  instance_desc.backend = GPUMEM_BACKEND_HOST;
  instance_desc.host = &options;
  gpumem_instance masked = nullptr;
  ASSERT_EQ(gpumem_instance_open(&instance_desc, &masked, nullptr), GPUMEM_SUCCESS);
  gpumem_error error = GPUMEM_ERROR_INIT;
  const gpumem_hub_desc desc = hub_desc();
  gpumem_hub hub = nullptr;
  EXPECT_EQ(gpumem_hub_open(masked, &desc, &hub, &error), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.message, "masked"), nullptr) << error.message;
  open_hub(desc);
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = address().c_str();
  gpumem_link link = nullptr;
  EXPECT_EQ(gpumem_link_connect(masked, &link_desc, &link, &error), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.message, "masked"), nullptr) << error.message;
  auto ends = platform::socket_pair();
  gpumem_share_handle handle;
  EXPECT_EQ(gpumem_share_receive(masked, ends->ours.get(), 0, &handle, &error), GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(gpumem_instance_close(masked, GPUMEM_CLOSE_CHECK, nullptr, nullptr), GPUMEM_SUCCESS);
}

// ---- handles over a socket of the program ----

TEST_F(ShareServerTest, ReceivingEndsInTimeAlsoInTheMiddleOfAMessage) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    int made[2];
    ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, made), 0);
    Descriptor ours(made[0]);
    Descriptor theirs(made[1]);
    Message pass = publish_of("n", 300);
    pass.type = MessageType::kPass;
    const std::vector<Packet> packets = split_message(pass, files(301));
    ASSERT_GT(packets.size(), 1U);
    gpumem_share_handle handle;
    EXPECT_EQ(gpumem_share_receive(instance, ours.get(), 0, &handle, nullptr), GPUMEM_NOT_READY);
    ASSERT_TRUE(platform::send_some(theirs.get(), packets[0].bytes, packets[0].descriptors));
    const uint64_t before = test::open_files();
    gpumem_error error = GPUMEM_ERROR_INIT;
    EXPECT_EQ(gpumem_share_receive(instance, ours.get(), 100'000'000, &handle, &error), GPUMEM_ERROR_BUSY);
    EXPECT_NE(std::strstr(error.message, "close the socket"), nullptr) << error.message;
    EXPECT_EQ(test::open_files(), before);
  }
}

TEST_F(ShareServerTest, ReceivingSaysThatTheSenderIsGoneAlsoInTheMiddleOfAMessage) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    Message pass = publish_of("n", 300);
    pass.type = MessageType::kPass;
    const Packet first = std::move(split_message(pass, files(301)).front());
    const size_t least = type == SOCK_STREAM ? 1 : first.bytes.size();
    for (const size_t size : {least, first.bytes.size()}) {
      SCOPED_TRACE(size);
      int made[2];
      ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, made), 0);
      Descriptor ours(made[0]);
      Descriptor theirs(made[1]);
      ASSERT_TRUE(platform::send_some(theirs.get(), std::span(first.bytes).first(size), first.descriptors));
      theirs = {};
      gpumem_share_handle handle;
      gpumem_error error = GPUMEM_ERROR_INIT;
      EXPECT_EQ(gpumem_share_receive(instance, ours.get(), GPUMEM_TIMEOUT_INFINITE, &handle, &error),
                GPUMEM_ERROR_PEER_GONE)
          << error.message;
      EXPECT_NE(std::strstr(error.message, "in the middle of a message; connect again"), nullptr)
          << error.message;
    }
  }
}

// It is sent again over the same socket, as the message says.
TEST_F(ShareServerTest, AHandleThatIsLostLeavesTheSocketInStep) {
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    for (const uint32_t count : {5U, 300U, 600U}) {
      SCOPED_TRACE(count);
      int made[2];
      ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, made), 0);
      Descriptor ours(made[0]);
      Descriptor theirs(made[1]);
      gpumem_share_handle received;
      EXPECT_EQ(gpumem_share_receive(other, ours.get(), 0, &received, nullptr), GPUMEM_NOT_READY);
      Message pass = publish_of("n", count);
      pass.type = MessageType::kPass;
      for (const Packet& packet : split_message(pass, files(count + 1)))
        ASSERT_TRUE(platform::send_some(theirs.get(), packet.bytes, packet.descriptors));
      const uint64_t before = test::open_files();
      gpumem_error error = GPUMEM_ERROR_INIT;
      {
        const DescriptorLimit limit(before + 3);
        EXPECT_EQ(gpumem_share_receive(other, ours.get(), 0, &received, &error), GPUMEM_ERROR_LIMIT_EXCEEDED);
      }
      EXPECT_NE(std::strstr(error.message, "must be sent again"), nullptr) << error.message;
      EXPECT_EQ(test::open_files(), before);
      ASSERT_EQ(gpumem_share_send(instance, &handle, theirs.get(), nullptr, nullptr), GPUMEM_SUCCESS);
      EXPECT_EQ(gpumem_share_receive(other, ours.get(), GPUMEM_TIMEOUT_INFINITE, &received, &error),
                GPUMEM_SUCCESS)
          << error.message;
    }
  }
}

// The next message, which an honest client sends.
Message heard(Raw& raw) {
  auto incoming = raw.next();
  return incoming ? incoming->message : Message();
}

// Two connected sockets that another user has made.
std::pair<Descriptor, Descriptor> pair_of(uint32_t user, int type) {
  int made[2] = {-1, -1};
  std::thread([&] {
    EXPECT_EQ(syscall(SYS_setresuid, -1, user, -1), 0);  // of this thread alone, and so of what it connects
    EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, made), 0);
  }).join();
  return {Descriptor(made[0]), Descriptor(made[1])};
}

// A handle of blocks with its connection, as gpumem_share_send() sends it.
std::vector<Packet> pass_of(gpumem_instance instance, uint32_t blocks, Descriptor connection,
                            uint64_t lease_ns = UINT64_MAX) {
  Descriptors sent;
  sent.push_back(std::move(connection));
  Message pass = publish_of("", blocks);
  pass.type = MessageType::kPass;
  pass.version = lease_ns;
  pass.handle.token = platform::random_id();
  set_device(instance, pass.handle);
  Descriptors opened = files(blocks);
  set_files(opened, pass.handle);
  std::move(opened.begin(), opened.end(), std::back_inserter(sent));
  return split_message(pass, std::move(sent));
}

void send_packets(const Descriptor& socket, std::span<const Packet> packets) {
  for (const Packet& packet : packets)
    ASSERT_TRUE(platform::send_some(socket.get(), packet.bytes, packet.descriptors));
}

// A sender says how long its handle may wait, and need not grant it. It is the sender that pays, whosever the
// connection is that it passes on.
TEST_F(SharedHubTest, HandlesThatWaitLeaveDescriptorsToThoseOfOtherUsers) {
  constexpr uint32_t kBlocks = 9;  // ten descriptors, with the connection
  constexpr uint32_t kLast = 65532;
  const DescriptorLimit limit(600);
  std::map<uint32_t, std::pair<Descriptor, Descriptor>> sockets;
  for (const uint32_t user : {kUsers[0], kUsers[1], 0U, kLast})
    sockets.emplace(user, pair_of(user, SOCK_STREAM));
  std::map<uint32_t, std::vector<Descriptor>> held;
  gpumem_share_handle handle{};
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto receive = [&](uint32_t user, uint32_t connected_as, uint32_t blocks) {
    auto [ours, theirs] = pair_of(connected_as, SOCK_SEQPACKET);
    held[user].push_back(std::move(ours));
    const auto& [here, there] = sockets.at(user);
    send_packets(there, pass_of(other, blocks, std::move(theirs)));
    return gpumem_share_receive(other, here.get(), GPUMEM_TIMEOUT_INFINITE, &handle, &error);
  };
  // One whose exporter does not answer counts while it is imported.
  ASSERT_EQ(receive(kUsers[0], kUsers[0], 200), GPUMEM_SUCCESS) << error.message;
  std::thread import([&, given = handle] {
    gpumem_memory memory = nullptr;
    EXPECT_EQ(gpumem_share_import(other, &given, nullptr, 0, nullptr, nullptr, &memory, nullptr),
              GPUMEM_ERROR_INVALID_ARGUMENT)
        << "these files are no blocks";
  });
  Raw exporter(std::move(held[kUsers[0]].front()));
  EXPECT_EQ(heard(exporter).type, MessageType::kClaim);
  EXPECT_EQ(receive(kUsers[0], kUsers[0], 200), GPUMEM_ERROR_LIMIT_EXCEEDED);
  { const Raw ends = std::move(exporter); }
  import.join();
  held.clear();
  const auto received = [&](uint32_t user, uint32_t connected_as) {
    for (int count = 0;; ++count) {
      if (receive(user, connected_as, kBlocks) != GPUMEM_SUCCESS) return count;
    }
  };
  // Of three quarters of the process's.
  EXPECT_EQ(received(kUsers[0], kUsers[1]), 22) << "half of them";
  EXPECT_EQ(error.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_NE(
      std::strstr(error.message, "must be sent again: handles of user 65534 that were received and not"),
      nullptr)
      << error.message;
  EXPECT_EQ(received(kUsers[1], kUsers[1]), 7) << "a third of what is left";
  EXPECT_EQ(received(0, 0), 4);
  EXPECT_EQ(files_of("memfd:test"), (22 + 7 + 4) * kBlocks);
  held.erase(kUsers[0]);
  held.erase(0);
  EXPECT_TRUE(eventually([&] { return receive(0, 0, kBlocks) == GPUMEM_SUCCESS; }))
      << "in place of what nobody can grant";
  EXPECT_EQ(receive(0, 0, kBlocks), GPUMEM_SUCCESS) << error.message;
  EXPECT_EQ(files_of("memfd:test"), (22 + 7 + 2) * kBlocks) << "another user's do not give way to it";
  EXPECT_EQ(receive(kLast, kLast, 160), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(files_of("memfd:test"), (22 + 7 + 2) * kBlocks) << "nor to more than a share";
  EXPECT_TRUE(eventually([&] { return receive(kLast, kLast, 89) == GPUMEM_SUCCESS; }))
      << "but to the share of a user who has none, and for whom there is no room";
  EXPECT_EQ(files_of("memfd:test"), (7 + 2) * kBlocks + 89);
  // Two large ones leave something to whoever comes next.
  held.clear();
  EXPECT_TRUE(eventually([&] { return receive(kUsers[0], kUsers[0], 220) == GPUMEM_SUCCESS; }));
  EXPECT_EQ(receive(kUsers[1], kUsers[1], 175), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(receive(kUsers[1], kUsers[1], 165), GPUMEM_SUCCESS) << error.message;
  EXPECT_EQ(receive(0, 0, kBlocks), GPUMEM_SUCCESS) << error.message;
}

// A message takes of its sender's share from its first packet on, however long the rest takes.
TEST_F(SharedHubTest, AHandleThatDoesNotEndTakesNoDescriptorsOfOthers) {
  const DescriptorLimit limit(600);
  const auto [first_here, first_there] = pair_of(kUsers[0], SOCK_STREAM);
  const auto [second_here, second_there] = pair_of(kUsers[0], SOCK_STREAM);
  const auto [third_here, third_there] = pair_of(kUsers[1], SOCK_STREAM);
  Descriptors held;
  const auto packets = [&](uint32_t blocks) {
    auto ends = platform::socket_pair();
    held.push_back(std::move(ends->ours));
    return pass_of(other, blocks, std::move(ends->theirs));
  };
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto receive = [&](const Descriptor& here) {
    gpumem_share_handle handle;
    return gpumem_share_receive(other, here.get(), GPUMEM_TIMEOUT_INFINITE, &handle, &error);
  };
  std::thread slow([&, here = first_here.get()] {
    gpumem_share_handle handle;
    EXPECT_EQ(gpumem_share_receive(other, here, GPUMEM_TIMEOUT_INFINITE, &handle, nullptr), GPUMEM_SUCCESS);
  });
  std::vector<Packet> begun = packets(290);
  send_packets(first_there, std::span(begun).first(1));
  begun.front().descriptors.clear();
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 290; })) << "here, or still to be sent";
  send_packets(second_there, packets(20));
  EXPECT_EQ(receive(second_here), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_NE(std::strstr(error.message, "must be sent again: handles of user 65534 that were received"),
            nullptr)
      << error.message;
  send_packets(third_there, packets(20));
  EXPECT_EQ(receive(third_here), GPUMEM_SUCCESS) << error.message;
  send_packets(first_there, std::span(begun).subspan(1));
  begun.clear();
  slow.join();
  EXPECT_EQ(files_of("memfd:test"), 290 + 20);
}

// Also those that come with its first byte.
TEST_F(SharedHubTest, DescriptorsBeforeAHeadTakeOfTheirSendersShare) {
  const DescriptorLimit limit(600);
  std::vector<std::thread> slow;
  std::vector<std::pair<Descriptor, Descriptor>> sockets;
  for (int i = 0; i < 3; ++i) {
    sockets.push_back(pair_of(kUsers[0], SOCK_STREAM));
    const auto& [here, there] = sockets.back();
    ASSERT_TRUE(platform::send_some(there.get(), std::array<uint8_t, 1>(), files(150)));
    slow.emplace_back([&, socket = here.get()] {
      gpumem_share_handle handle;
      EXPECT_EQ(gpumem_share_receive(other, socket, GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
                GPUMEM_ERROR_PEER_GONE);
    });
  }
  for (const auto& pair : sockets) {
    EXPECT_TRUE(eventually([&] {
      int unread = -1;
      return ioctl(pair.first.get(), FIONREAD, &unread) == 0 && unread == 0;
    }));
  }
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 150; })) << "the others are beyond the share";
  for (auto& pair : sockets)
    pair.second = {};
  for (std::thread& one : slow)
    one.join();
}

// And with that of a later packet, beside what is here.
TEST_F(SharedHubTest, DescriptorsBeforeTheRestOfAPacketTakeOfTheirSendersShare) {
  const DescriptorLimit limit(600);
  auto sockets = pair_of(kUsers[0], SOCK_STREAM);
  const int here = sockets.first.get();
  Descriptor& there = sockets.second;
  auto ends = platform::socket_pair();
  std::vector<Packet> packets = pass_of(other, 290, std::move(ends->theirs));
  send_packets(there, std::span(packets).first(1));
  packets.clear();
  ASSERT_TRUE(platform::send_some(there.get(), std::array<uint8_t, 1>(), files(150)));
  std::thread slow([&] {
    gpumem_share_handle handle;
    EXPECT_EQ(gpumem_share_receive(other, here, GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
              GPUMEM_ERROR_PEER_GONE);
  });
  EXPECT_TRUE(eventually([&] {
    int unread = -1;
    return ioctl(here, FIONREAD, &unread) == 0 && unread == 0;
  }));
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") <= 290; })) << "more than was announced";
  there = {};
  slow.join();
}

// An exporter that grants 300 descriptors, in two packets.
class GrantTest : public ShareServerTest {
 protected:
  // What it has sent to import.
  gpumem_share_handle receive(uint32_t blocks) {
    const auto [here, there] = pair_of(geteuid(), SOCK_STREAM);
    auto ends = platform::socket_pair();
    send_packets(there, pass_of(other, blocks, std::move(ends->theirs)));
    exporter_.emplace(std::move(ends->ours));
    gpumem_share_handle handle{};
    EXPECT_EQ(gpumem_share_receive(other, here.get(), GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
              GPUMEM_SUCCESS);
    return handle;
  }
  // None of the first packet may be kept, beside so many blocks that were received.
  void grant(uint32_t received) {
    const Message claim = heard(*exporter_);
    Message granted = message_of(MessageType::kGranted);
    granted.number = claim.number;
    granted.handle = publish_of("", 300).handle;
    granted.handle.token = claim.token;
    std::vector<Packet> packets = split_message(granted, files(300));
    exporter_->send_bytes(packets[0].bytes, packets[0].descriptors);
    packets[0].descriptors.clear();
    const size_t to_come = packets[1].descriptors.size();
    EXPECT_TRUE(eventually([&] {
      return platform::unread_packets(exporter_->socket()) == 0 &&
             files_of("memfd:test") == received + to_come;
    })) << "what was sent, and what will be";
    exporter_->send_bytes(packets[1].bytes, packets[1].descriptors);
  }
  std::optional<Raw> exporter_;
};

TEST_F(GrantTest, OfMoreThanTheHandleSaysIsClosedAsItComes) {
  const gpumem_share_handle handle = receive(1);
  gpumem_error error = GPUMEM_ERROR_INIT;
  std::thread import([&] {
    gpumem_memory memory = nullptr;
    EXPECT_EQ(gpumem_share_import(other, &handle, nullptr, 0, nullptr, nullptr, &memory, &error),
              GPUMEM_ERROR_INVALID_ARGUMENT);
  });
  grant(1);
  import.join();
  EXPECT_NE(std::strstr(error.message, "is not what its exporter has recorded"), nullptr) << error.message;
}

TEST_F(GrantTest, ThatNobodyWaitsForIsClosedAsItComes) {
  const gpumem_share_handle handle = receive(300);
  gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
  desc.timeout_ns = 1;
  gpumem_memory memory = nullptr;
  EXPECT_EQ(gpumem_share_import(other, &handle, nullptr, 0, &desc, nullptr, &memory, nullptr),
            GPUMEM_ERROR_BUSY);
  grant(300);
  EXPECT_EQ(heard(*exporter_).type, MessageType::kRelease);
}

TEST_F(SharedHubTest, NoUserTakesTheConnectionsThatGoWithHandles) {
  const DescriptorLimit limit(400);
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  std::map<uint32_t, std::pair<Descriptor, Descriptor>> sockets;
  for (const uint32_t user : {kUsers[0], kUsers[1], 0U})
    sockets.emplace(user, pair_of(user, SOCK_STREAM));
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto sent = [&](uint32_t user) {
    for (int count = 0;; ++count) {
      if (gpumem_share_send(instance, &handle, sockets.at(user).second.get(), nullptr, &error) !=
          GPUMEM_SUCCESS)
        return count;
    }
  };
  EXPECT_EQ(sent(kUsers[0]), 150) << "half of three quarters of the descriptors";
  EXPECT_EQ(error.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_NE(std::strstr(error.message, "user 65534 has 150 connections that came with handles"), nullptr)
      << error.message;
  EXPECT_EQ(sent(kUsers[1]), 50) << "a third of what is left";
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(gpumem_share_send(instance, &handle, sockets.at(0).second.get(), nullptr, &error),
              GPUMEM_SUCCESS)
        << error.message;
  }
  sockets.at(kUsers[1]) = pair_of(kUsers[1], SOCK_STREAM);
  EXPECT_EQ(sent(kUsers[1]), 50) << "what its own user has does not count";
  EXPECT_EQ(gpumem_share_send(instance, &handle, sockets.at(0).second.get(), nullptr, &error), GPUMEM_SUCCESS)
      << error.message;
  sockets.at(kUsers[0]) = pair_of(kUsers[0], SOCK_STREAM);
  EXPECT_EQ(gpumem_share_send(instance, &handle, sockets.at(kUsers[0]).second.get(), nullptr, &error),
            GPUMEM_SUCCESS)
      << "those have hung up: " << error.message;
}

// They are not among those that come to the exporter's address.
TEST_F(ShareServerTest, ConnectionsThatGoWithHandlesLeaveThoseOfImportersTheirPlaces) {
  const DescriptorLimit limit(2600);
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  const auto [here, there] = pair_of(platform::own_user(), SOCK_STREAM);
  gpumem_error error = GPUMEM_ERROR_INIT;
  Descriptors held;
  for (int i = 0; i < 1030; ++i) {
    ASSERT_EQ(gpumem_share_send(instance, &handle, there.get(), nullptr, &error), GPUMEM_SUCCESS)
        << error.message;
    std::array<uint8_t, kPacketMax> bytes;
    auto got = platform::receive_some(here.get(), bytes);
    ASSERT_TRUE(got && !got->descriptors.empty());
    held.push_back(std::move(got->descriptors.front()));
  }
  gpumem_memory memory = nullptr;
  EXPECT_EQ(gpumem_share_import(other, &handle, nullptr, 0, nullptr, nullptr, &memory, &error),
            GPUMEM_SUCCESS)
      << error.message;
  EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, ReceivingRefusesWhatIsNotAMessage) {
  gpumem_share_handle handle;
  const auto receive = [&](int socket, uint64_t time = 100'000'000) {
    return gpumem_share_receive(instance, socket, time, &handle, nullptr);
  };
  EXPECT_EQ(receive(-1), GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(receive(files(1).front().get()), GPUMEM_ERROR_INVALID_ARGUMENT);
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    int made[2];
    ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, made), 0);
    Descriptor ours(made[0]);
    Descriptor theirs(made[1]);
    EXPECT_EQ(receive(ours.get(), 0), GPUMEM_NOT_READY);
    EXPECT_EQ(receive(ours.get(), 10'000'000), GPUMEM_NOT_READY);
    const uint64_t before = test::open_files();
    const auto send = [&](const Message& message, const Descriptors& descriptors) {
      ASSERT_TRUE(platform::send_some(theirs.get(), encode_message(message), descriptors));
    };
    Message pass = publish_of("n", 0);
    pass.type = MessageType::kPass;
    pass.descriptor_count = pass.packet_count = 1;
    send(pass, {});
    EXPECT_EQ(receive(ours.get()), GPUMEM_ERROR_INVALID_ARGUMENT) << "no descriptor";
    send(pass, files(2));
    EXPECT_EQ(receive(ours.get()), GPUMEM_ERROR_INVALID_ARGUMENT) << "one too many";
    send(pass, files(1));
    EXPECT_EQ(receive(ours.get()), GPUMEM_ERROR_INVALID_ARGUMENT) << "no connection";
    send(claim_of(1), {});
    EXPECT_EQ(receive(ours.get()), GPUMEM_ERROR_INVALID_ARGUMENT) << "another message";
    const std::array<uint8_t, 24> words{'h', 'e', 'l', 'l', 'o'};
    ASSERT_TRUE(platform::send_some(theirs.get(), words, {}));
    EXPECT_EQ(receive(ours.get()), GPUMEM_ERROR_INVALID_ARGUMENT) << "words of the program";
    EXPECT_EQ(test::open_files(), before);
    ASSERT_EQ(shutdown(theirs.get(), SHUT_RDWR), 0);
    EXPECT_EQ(receive(ours.get()), GPUMEM_ERROR_PEER_GONE);
  }
}

// ---- what one peer can make the other hold ----

TEST_F(ShareServerTest, DescriptorsThatNobodyAskedForAreClosed) {
  open_hub(hub_desc());
  const uint64_t before = files_of("memfd:test");
  for (const MessageType type : {MessageType::kHello, MessageType::kEnumerate, MessageType::kClaim}) {
    Raw raw(address());
    Raw* speaker = &raw;
    std::optional<Raw> holder;
    if (type != MessageType::kHello) {
      ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
    }
    if (type == MessageType::kClaim) speaker = &holder.emplace(std::move(raw.received.front()));
    // As many as a packet carries, again and again.
    const std::vector<uint8_t> bytes = encode_message(message_of(type));
    const Descriptors many = files(platform::kDescriptorsPerPacket);
    for (int i = 0; i < 4; ++i)
      speaker->send_bytes(bytes, many);
    EXPECT_TRUE(speaker->ends()) << static_cast<int>(type);
  }
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") <= before; }));
}

TEST_F(ShareServerTest, ANonKeeperTakesNoDescriptors) {
  open_hub(hub_desc());
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  EXPECT_EQ(raw.ask(publish_of("n", 1000), files(1000)).status, GPUMEM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 0; }));
  EXPECT_EQ(raw.ask(message_of(MessageType::kEnumerate)).status, GPUMEM_ERROR_NOT_FOUND) << "it goes on";
}

TEST_F(ShareServerTest, MessagesThatHaveBegunShareTheDescriptorsOfAKeeper) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  desc.fds_max = 300;
  desc.timeout_ns = 600'000'000'000;  // none is late, however busy the machine
  open_hub(desc);
  std::vector<std::unique_ptr<Raw>> peers;
  for (uint8_t i = 0; i < 8; ++i) {
    peers.push_back(std::make_unique<Raw>(address()));
    ASSERT_EQ(peers.back()->hello().type, MessageType::kWelcome);
    Message message = publish_of("n" + std::to_string(i), 260, i);
    const std::vector<Packet> packets = split_message(message, files(260));
    peers.back()->send_bytes(packets[0].bytes, packets[0].descriptors);
  }
  // The thread has received all that was sent, and closes what there is no room for.
  EXPECT_TRUE(eventually([&] {
    return std::all_of(peers.begin(), peers.end(), [](const auto& peer) {
      int unread = -1;
      return ioctl(peer->socket(), SIOCOUTQ, &unread) == 0 && unread == 0;
    });
  }));
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") <= 300U; }));
  EXPECT_GE(files_of("memfd:test"), platform::kDescriptorsPerPacket) << "one of them was let begin";
  peers.clear();
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 0; }));
}

TEST_F(SharedHubTest, MessagesThatHaveBegunLeaveDescriptorsToOtherUsers) {
  desc_.flags = GPUMEM_HUB_KEEPER;
  desc_.fds_max = 600;
  desc_.timeout_ns = 600'000'000'000;  // none is late, however busy the machine
  open_hub(desc_);
  const auto begin = [&](uint32_t user) {
    std::unique_ptr<Raw> raw = connected_as(user, address());
    EXPECT_EQ(raw->hello().type, MessageType::kWelcome);
    Message message = publish_of("n", 300, 1);
    const std::vector<Packet> packets = split_message(message, files(300), 1);
    raw->send_bytes(packets[0].bytes, packets[0].descriptors);
    return raw;
  };
  const auto hog = begin(kUsers[0]);
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 1; }));
  const std::unique_ptr<Raw> second = connected_as(kUsers[1], address());
  ASSERT_EQ(second->hello().type, MessageType::kWelcome);
  // 300 are to come, and a third of the others is his.
  EXPECT_EQ(second->ask(publish_of("many", 101, 2), files(101)).status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(second->ask(publish_of("n", 100, 2), files(100)).type, MessageType::kPublished);
}

TEST_F(ShareServerTest, NoVersionThatIsAskedForEndsAName) {
  gpumem_hub const hub = open_hub(hub_desc());
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  uint64_t version = 0;
  const auto publish = [&](uint64_t number) {
    gpumem_publish_desc desc = GPUMEM_PUBLISH_DESC_INIT;
    desc.version = number;
    return gpumem_hub_publish(hub, "n", &handle, &desc, &version, nullptr);
  };
  for (const uint64_t number : {UINT64_MAX, kVersionLast, kVersionLast - 1, kVersionMax + 1})
    EXPECT_EQ(publish(number), GPUMEM_ERROR_INVALID_ARGUMENT) << number;
  EXPECT_EQ(version, 0U);
  EXPECT_EQ(publish(kVersionMax), GPUMEM_SUCCESS);
  EXPECT_EQ(publish(0), GPUMEM_SUCCESS);
  EXPECT_EQ(version, kVersionMax + 1);
  EXPECT_EQ(gpumem_hub_withdraw(hub, "n", 0, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(publish(kVersionMax), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_EQ(publish(kVersionMax + 3), GPUMEM_ERROR_INVALID_ARGUMENT);
  // Who must know whether a call that was not answered was carried out asks for a number, and does so again.
  EXPECT_EQ(publish(kVersionMax + 2), GPUMEM_SUCCESS);
  EXPECT_EQ(publish(kVersionMax + 2), GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_EQ(publish(0), GPUMEM_SUCCESS);
  EXPECT_EQ(version, kVersionMax + 3);
}

TEST_F(ShareServerTest, hub_1_no_user_uses_up_the_numbers_of_a_name_for_others) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  constexpr uint32_t kUsers[] = {65533, 65534};
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  desc.users = kUsers;
  desc.user_count = 2;
  desc.mode = 0666;
  open_hub(desc);
  uint8_t token = 0;
  const auto publish = [&](Raw& raw, uint64_t number) {
    Message message = publish_of("n", 1, ++token);
    message.version = number;
    return raw.ask(message, files(1));
  };
  const std::unique_ptr<Raw> first = connected_as(kUsers[0], address());
  ASSERT_EQ(first->hello().type, MessageType::kWelcome);
  EXPECT_EQ(publish(*first, kVersionLast - 1).status, GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(publish(*first, kVersionMax).version, kVersionMax);
  EXPECT_EQ(first->ask(message_of(MessageType::kWithdraw, "n")).type, MessageType::kDone);
  const std::unique_ptr<Raw> second = connected_as(kUsers[1], address());
  ASSERT_EQ(second->hello().type, MessageType::kWelcome);
  const Message used_up = publish(*second, 1);
  EXPECT_EQ(used_up.status, GPUMEM_ERROR_INVALID_STATE);
  const std::string next = std::to_string(kVersionMax + 1);
  EXPECT_NE(used_up.text.find("pass exactly " + next), std::string::npos) << used_up.text;
  EXPECT_EQ(publish(*second, kVersionMax + 1).version, kVersionMax + 1);
  EXPECT_EQ(publish(*second, kVersionMax + 1).status, GPUMEM_ERROR_ALREADY_EXISTS);
}

// Another thread may have closed some by the time that this one could ask for a free one. Here the time
// leaves no room for the last.
TEST_F(ShareServerTest, WhoseDescriptorsFindNoRoomIsNotTakenForALiar) {
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  const int on = 1;
  for (const int wanted : {SO_PASSCRED, SO_TIMESTAMP})
    ASSERT_EQ(setsockopt(ends->theirs.get(), SOL_SOCKET, wanted, &on, sizeof on), 0);
  Channel sender(std::move(ends->ours));
  Channel receiver(std::move(ends->theirs));
  Message message = publish_of("n", platform::kDescriptorsPerPacket);
  message.type = MessageType::kGranted;
  ASSERT_TRUE(sender.send(message, platform::share(files(platform::kDescriptorsPerPacket))));
  auto got = receiver.receive([](const Message&) { return kMessageDescriptorsMax; });
  ASSERT_TRUE(got) << got.error().message;
  ASSERT_TRUE(got->message);
  EXPECT_TRUE(got->message->none_free);
  EXPECT_TRUE(got->message->descriptors.empty());
}

// A message may have 65,536 packets, and others wait meanwhile.
TEST_F(ShareServerTest, AChannelTakesOnePacketAtATime) {
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  Raw sender(std::move(ends->ours));
  Channel receiver(std::move(ends->theirs));
  Message message = message_of(MessageType::kGranted);
  message.number = 1;
  message.descriptor_count = 3;
  message.packet_count = 1;
  message.handle = publish_of("n", 3).handle;
  sender.send_bytes(encode_message(message), files(1));
  message.type = MessageType::kMore;
  for (int i = 0; i < 2; ++i)
    sender.send_bytes(encode_message(message), files(1));
  for (const bool whole : {false, false, true}) {
    auto got = receiver.receive([](const Message&) { return 3U; });
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_TRUE(got->packet);
    EXPECT_EQ(got->message.has_value(), whole);
  }
  EXPECT_FALSE(receiver.receive([](const Message&) { return 3U; })->packet);
}

TEST_F(ShareServerTest, AChannelKnowsWhatIsNotRead) {
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  Channel channel(std::move(ends->ours));
  Raw reader(std::move(ends->theirs));
  const auto send = [&] {
    Message message = message_of(MessageType::kGranted);
    message.handle = publish_of("n", 2).handle;
    EXPECT_TRUE(channel.send(std::move(message), platform::share(files(2))));
  };
  for (int i = 0; i < 10; ++i)
    send();
  EXPECT_EQ(channel.unread(), 20U);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(reader.next());
  EXPECT_GE(channel.unread(), 10U);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(reader.next());
  EXPECT_EQ(channel.unread(), 0U);
  // A message goes in as many packets as it takes.
  channel.set_window(3);
  send();
  EXPECT_FALSE(channel.has_output());
  send();
  EXPECT_TRUE(channel.has_output() && channel.is_held_up());
  EXPECT_EQ(channel.unread(), 3U);
  ASSERT_TRUE(reader.next());
  EXPECT_FALSE(reader.next(1ms)) << "one descriptor of it has come";
  channel.set_window(0);
  ASSERT_TRUE(channel.flush());
  EXPECT_TRUE(channel.has_output() && channel.is_held_up());
  channel.set_window(2);
  ASSERT_TRUE(channel.flush());
  EXPECT_FALSE(channel.has_output() || channel.is_held_up());
  EXPECT_EQ(reader.next()->descriptors.size(), 2U);
}

// What is on its way counts as the sender's, so that the kernel would soon take no more from it.
TEST_F(ShareServerTest, OneThatReadsNothingTakesNoDescriptorsFromOthers) {
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  constexpr uint32_t kNobody = 65534;
  gpumem_hub_desc desc = hub_desc();
  desc.timeout_ns = 200'000'000;
  desc.users = &kNobody;
  desc.user_count = 1;
  gpumem_hub const hub = open_hub(desc);
  ASSERT_EQ(gpumem_hub_publish(hub, "n", &handle, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  const DescriptorLimit limit(800);  // so at most 200 for one user, and 100 for its first process, but for 10
  const bool as_another = geteuid() == 0;
  std::vector<Raw> hogs;
  std::thread([&] {
    // Of this thread alone, and so of what it connects.
    if (as_another) {
      ASSERT_EQ(syscall(SYS_setresuid, -1, kNobody, -1), 0);
    }
    while (hogs.size() < 10) {
      Raw hog(address());
      // On a busy machine it may say so too late.
      if (hog.hello().type == MessageType::kWelcome) hogs.push_back(std::move(hog));
    }
  }).join();
  for (Raw& hog : hogs) {
    for (uint64_t number = 100; number < 210; ++number) {
      Message fetch = message_of(MessageType::kFetch, "n");
      fetch.number = number;
      hog.send(fetch);
    }
  }
  EXPECT_TRUE(eventually([&] { return links(hub) == 0; })) << "none of them reads";
  const auto fetch = [&] {
    gpumem_link link = nullptr;
    gpumem_share_handle fetched;
    const bool done = connect(&link) == GPUMEM_SUCCESS &&
                      gpumem_link_fetch(link, "n", nullptr, &fetched, nullptr) == GPUMEM_SUCCESS;
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    return done;
  };
  // The end of a connection takes nothing back of what was sent over it.
  if (as_another) {
    EXPECT_TRUE(fetch()) << "another user has a share of its own";
    const auto fetch_as_another_process = [&] {
      if (syscall(SYS_setresuid, -1, kNobody, -1) != 0) return 1;
      Raw raw(address());
      if (raw.hello().type != MessageType::kWelcome) return 2;
      Message ask = message_of(MessageType::kFetch, "n");
      ask.number = 100;
      raw.send(ask);
      const auto granted = raw.next();
      return granted && !granted->descriptors.empty() ? 0 : 3;
    };
    EXPECT_EQ(test::exit_code_of(fetch_as_another_process), 0) << "and so has another process of that user";
  }
  size_t received = 0;
  for (Raw& hog : hogs) {
    while (auto incoming = hog.next())
      received += incoming->descriptors.size();
  }
  EXPECT_GT(received, 0U);
  EXPECT_LE(received, 110U) << "the first one of a connection does not count";
  EXPECT_TRUE(eventually(fetch)) << "all has been read";
}

// The link that waits is late, and another one is ended for it.
TEST_F(ShareServerTest, TheConnectionThatReadsLeastIsEnded) {
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  gpumem_hub_desc desc = hub_desc();
  desc.timeout_ns = 500'000'000;
  gpumem_hub const hub = open_hub(desc);
  ASSERT_EQ(gpumem_hub_publish(hub, "n", &handle, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  const DescriptorLimit limit(800);  // so at most 25 unread ones for the first process of a user
  const auto fetch = [](Raw& raw, uint64_t count) {
    Message message = message_of(MessageType::kFetch, "n");
    for (message.number = 100; message.number < 100 + count; ++message.number)
      raw.send(message);
  };
  const auto connected = [&] {
    for (;;) {
      Raw raw(address());
      // On a busy machine it may say so too late.
      if (raw.hello().type == MessageType::kWelcome) return raw;
    }
  };
  Raw hog = connected();
  fetch(hog, 20);
  for (int taken = 0; taken < 20; ++taken)
    inside(instance)->share_server().catch_up();
  Raw late = connected();
  fetch(late, 10);
  EXPECT_TRUE(eventually([&] { return platform::has_hung_up(hog.socket()); }))
      << "nothing waits to be sent to it";
}

// A keeper with a name of many blocks, which several links fetch and do not read.
class UnreadAnswersTest : public ShareServerTest {
 public:
  static constexpr uint32_t kMany = 28;  // fills what one process may have unread

  UnreadAnswersTest() {
    gpumem_hub_desc desc = hub_desc();
    desc.flags = GPUMEM_HUB_KEEPER;
    desc.timeout_ns = 3'600'000'000'000;  // nobody is late
    desc.links_max = 128;
    open_hub(desc);
    publisher_.emplace(address());
    EXPECT_TRUE(publisher_->hello().keeper);
    publish();
  }
  void publish(uint32_t count = kMany) {
    Message message = publish_of("n", count);
    Descriptors blocks = files(count);
    set_files(blocks, message.handle);
    EXPECT_EQ(publisher_->ask(message, std::move(blocks)).type, MessageType::kPublished);
  }
  // Returns when the hub has answered, as far as it can.
  void fetch(Raw& link) {
    Message message = message_of(MessageType::kFetch, "n");
    message.number = 100;
    link.send(message);
    inside(instance)->share_server().catch_up();
  }
  static void expect_answer(Raw& link) {
    const auto answer = link.next();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->message.type, MessageType::kGranted) << answer->message.text;
    EXPECT_EQ(answer->descriptors.size(), kMany);
  }

 private:
  const DescriptorLimit limit_{1000};  // so at most 31 unread ones for the first process of a user
  std::optional<Raw> publisher_;
};

TEST_F(UnreadAnswersTest, AnswersThatWaitOpenNoDescriptors) {
  std::vector<Raw> links;
  for (int i = 0; i < 10; ++i) {
    links.emplace_back(address());
    ASSERT_EQ(links.back().hello().type, MessageType::kWelcome);
  }
  const uint64_t before = test::open_files();
  for (Raw& link : links)
    fetch(link);
  EXPECT_LE(test::open_files(), before);
  for (Raw& link : links)
    expect_answer(link);
}

TEST_F(UnreadAnswersTest, WhoReadsConnectsAndGoesOnWhateverOthersLeaveUnread) {
  std::vector<Raw> links;
  for (int i = 0; i < 20; ++i) {
    links.emplace_back(address());
    ASSERT_EQ(links.back().hello().type, MessageType::kWelcome);
    fetch(links.back());
  }
  const auto expect_served = [&](Raw link) {
    ASSERT_EQ(link.hello().type, MessageType::kWelcome);
    fetch(link);
    expect_answer(link);
  };
  expect_served(Raw(address()));
  for (int process = 0; process < 40; ++process) {
    links.push_back(connected_elsewhere(address()));
    fetch(links.back());
  }
  Raw elsewhere = connected_elsewhere(address());
  fetch(elsewhere);
  expect_answer(elsewhere);
  expect_served(Raw(address()));  // though its process has more than its share by now
}

TEST_F(UnreadAnswersTest, AnEndedConnectionIsKeptNoLongerThanItsReaderHasSomethingToRead) {
  Raw stays(address());  // so that the hub has had a link before
  ASSERT_EQ(stays.hello().type, MessageType::kWelcome);
  const uint64_t before = test::open_files();
  {
    Raw link(address());
    ASSERT_EQ(link.hello().type, MessageType::kWelcome);
    fetch(link);
    link.send_bytes(std::array<uint8_t, 4>{}, {});  // which ends it
    EXPECT_TRUE(eventually([&] { return platform::has_hung_up(link.socket()); }));
  }
  // Nobody asks the hub for anything.
  EXPECT_TRUE(eventually([&] { return test::open_files() <= before; }));
}

// The kernel counts what is unread for all processes of a user, which usually may have 1024 each.
TEST_F(UnreadAnswersTest, AHighLimitOfOneHubLeavesSomethingToOthersOfItsUser) {
  const DescriptorLimit limit(4000);
  constexpr uint32_t kAll = 4 * kMany;
  Raw link(address());
  ASSERT_EQ(link.hello().type, MessageType::kWelcome);
  publish(kAll);
  fetch(link);
  std::array<uint8_t, kPacketMax> room{};
  auto first = platform::receive_some(link.socket(), room);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_GE(first->descriptors.size(), 1U);
  EXPECT_LE(first->descriptors.size(), 33U);
  for (size_t all = first->descriptors.size(); all < kAll;) {
    ASSERT_EQ(*platform::wait_for(link.socket(), false, soon()), platform::Waited::kReady);
    auto next = platform::receive_some(link.socket(), room);
    ASSERT_TRUE(next && !next->descriptors.empty());
    all += next->descriptors.size();
  }
}

TEST_F(UnreadAnswersTest, WhatHasGoneIsNotKeptForManyWhoDoNotRead) {
  std::vector<Raw> links;
  for (int i = 0; i < 6; ++i) {
    links.emplace_back(address());
    ASSERT_EQ(links.back().hello().type, MessageType::kWelcome);
  }
  const auto displace = [&] {  // all versions that are there
    publish();
    publish();
  };
  fetch(links[0]);
  fetch(links[1]);  // waits, because the first link has read nothing
  displace();
  expect_answer(links[0]);
  expect_answer(links[1]);
  fetch(links[0]);
  for (size_t i = 1; i < links.size(); ++i) {  // 140 descriptors of five versions, of at most 125
    fetch(links[i]);
    displace();
  }
  for (size_t i = 1; i < links.size(); ++i)
    EXPECT_TRUE(links[i].ends());
  expect_answer(links[0]);  // which waits for nothing
}

TEST_F(ShareServerTest, WhoHangsUpWhileItsAnswerIsHeldUpIsMissedAtOnce) {
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  gpumem_hub_desc desc = hub_desc();
  desc.timeout_ns = 3'600'000'000'000;
  gpumem_hub const hub = open_hub(desc);
  ASSERT_EQ(gpumem_hub_publish(hub, "n", &handle, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  const DescriptorLimit limit(800);  // so at most 25 unread ones for the first process of a user
  Raw hog(address());
  Raw link(address());
  for (Raw* one : {&hog, &link})
    ASSERT_EQ(one->hello().type, MessageType::kWelcome);
  const auto fetch = [&](Raw& raw, uint64_t count) {
    Message message = message_of(MessageType::kFetch, "n");
    for (message.number = 100; message.number < 100 + count; ++message.number)
      raw.send(message);
    for (uint64_t taken = 0; taken < count; ++taken)
      inside(instance)->share_server().catch_up();
  };
  fetch(hog, 30);
  fetch(link, 2);  // one goes in any case
  { const Raw gone = std::move(link); }
  EXPECT_TRUE(eventually([&] { return links(hub) == 1; }));
}

// As a user whom nothing else runs as. Other programs of the user of a hub leave it less than its own
// windows.
int serve_while_the_kernel_refuses() {
  const std::string address = "@gpumem-refused-test-" + std::to_string(getpid());
  const uid_t user = 100'000 + static_cast<uid_t>(getpid());
  EXPECT_EQ(setresuid(user, user, user), 0);
  EXPECT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);  // so that /proc/self is this user's
  auto told = platform::socket_pair();
  EXPECT_TRUE(told);
  char word = 0;
  const pid_t reader = fork();
  if (reader == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    EXPECT_EQ(*platform::wait_for(told->theirs.get(), false, soon()), platform::Waited::kReady);
    Raw raw(address);
    EXPECT_EQ(raw.hello().type, MessageType::kWelcome);
    for (uint64_t number = 100; number < 120; ++number) {
      Message fetch = message_of(MessageType::kFetch, "n");
      fetch.number = number;
      raw.send(fetch);
    }
    EXPECT_EQ(send(told->theirs.get(), &word, 1, 0), 1);
    for (;;)
      pause();
  }
  const Opened instance;
  const Opened other;
  gpumem_share_handle const handle = export_at(instance, shared_buffer(instance, 1));
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  desc.path = address.c_str();
  desc.timeout_ns = 600'000'000'000;  // nobody is late
  gpumem_hub hub = nullptr;
  EXPECT_EQ(gpumem_hub_open(instance, &desc, &hub, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_hub_publish(hub, "n", &handle, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  gpumem_link_desc link_desc = GPUMEM_LINK_DESC_INIT;
  link_desc.path = address.c_str();
  link_desc.timeout_ns = desc.timeout_ns;
  gpumem_link link = nullptr;
  EXPECT_EQ(gpumem_link_connect(other, &link_desc, &link, nullptr), GPUMEM_SUCCESS);

  const DescriptorLimit limit(200);
  auto unread = platform::socket_pair();
  EXPECT_TRUE(unread);
  const std::array<uint8_t, 1> byte{};
  const Descriptors two = files(2);
  while (refusals_of_descriptors == 0 && !testing::Test::HasFailure()) {
    auto sent = platform::send_some(unread->ours.get(), byte, two);
    EXPECT_TRUE(sent && sent->state != platform::Sending::kFull);
  }
  for (int i = 0; i < 2; ++i) {
    std::array<uint8_t, 1> room;
    EXPECT_TRUE(platform::receive_some(unread->theirs.get(), room));
  }
  refusals_of_descriptors = 0;
  EXPECT_EQ(send(told->ours.get(), &word, 1, 0), 1);
  EXPECT_EQ(*platform::wait_for(told->ours.get(), false, soon()), platform::Waited::kReady);
  EXPECT_TRUE(eventually([] { return refusals_of_descriptors != 0; }));

  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  EXPECT_EQ(gpumem_link_enumerate(link, 0, &entry, nullptr), GPUMEM_SUCCESS) << "this needs none";
  gpumem_status fetched = GPUMEM_ERROR_INTERNAL;
  gpumem_share_handle received;
  Sleeper fetching([&] { fetched = gpumem_link_fetch(link, "n", nullptr, &received, nullptr); });
  EXPECT_EQ(kill(reader, SIGKILL), 0);
  EXPECT_EQ(waitpid(reader, nullptr, 0), reader);
  fetching.join();
  EXPECT_EQ(fetched, GPUMEM_SUCCESS) << "what the reader had not read is free again";
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(ShareServer, WhatTheKernelRefusesForNowIsSentLater) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become a user whom nothing else runs as";
  if (!test::kChildrenHaveThreads) GTEST_SKIP() << "this sanitizer lets no forked child have threads";
  EXPECT_EQ(test::exit_code_of(serve_while_the_kernel_refuses), 0);
}

// Of what was done so many times, how much the log was told line by line, and of how much only the number.
class Heard {
 public:
  Heard() {
    EXPECT_EQ(gpumem_log_set_function([](void* self, gpumem_log_level,
                                         const char* line) { static_cast<Heard*>(self)->hear(line); },
                                      this, GPUMEM_LOG_WARNING, nullptr),
              GPUMEM_SUCCESS);
  }
  Heard(const Heard&) = delete;
  Heard& operator=(const Heard&) = delete;
  ~Heard() { EXPECT_EQ(gpumem_log_set_function(nullptr, nullptr, 0, nullptr), GPUMEM_SUCCESS); }
  // When the instance is closed, whose thread tells the number.
  void expect(uint64_t times, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    const auto periods = 1 + (std::chrono::steady_clock::now() - began_) / Warnings::kPeriod;
    EXPECT_LE(told_[cause], Warnings::kLines * static_cast<uint64_t>(periods));
    EXPECT_EQ(told_[cause] + left_out_[cause], times);
  }
  bool knows(uint64_t times, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    return told_[cause] + left_out_[cause] == times;
  }

 private:
  void hear(const std::string& line) {
    const std::lock_guard lock(mutex_);
    const size_t process = line.find(" process");
    const size_t count = line.find(": ");
    const bool number = line.find(" times more") != std::string::npos;
    if (process == std::string::npos || count == std::string::npos) return;
    const std::string cause = line.substr(0, process);
    if (number) {
      left_out_[cause] += std::stoull(line.substr(count + 2));
    } else {
      ++told_[cause];
    }
  }

  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::map<std::string, uint64_t> told_;
  std::map<std::string, uint64_t> left_out_;
};

TEST_F(ShareServerTest, OneThatBreaksTheProtocolAgainAndAgainFillsNoLog) {
  gpumem_hub const hub = open_hub(hub_desc());
  Heard log;
  for (int i = 0; i < 50; ++i) {
    Raw raw(address());
    raw.send(message_of(MessageType::kDone));
    EXPECT_TRUE(raw.ends());
  }
  EXPECT_TRUE(eventually([&] { return refused(hub) == 50; }));
  instance.close();
  log.expect(50, "hung up on");
}

// Nothing happens any more that could remind the thread.
TEST_F(ShareServerTest, HowManyLinesAreMissingIsSaidWhenTheirTimeIsOver) {
  const auto period = std::exchange(Warnings::period, std::chrono::milliseconds(500));
  gpumem_hub const hub = open_hub(hub_desc());
  Heard log;
  for (int i = 0; i < 50; ++i) {
    Raw raw(address());
    raw.send(message_of(MessageType::kDone));
    EXPECT_TRUE(raw.ends());
  }
  EXPECT_TRUE(eventually([&] { return log.knows(50, "hung up on"); }));
  EXPECT_EQ(refused(hub), 50U);
  instance.close();
  Warnings::period = period;
}

// Those of its links and of the process come first, and a message is here before what it replaces has gone.
TEST_F(ShareServerTest, AKeeperTakesHalfTheDescriptorsThatItsProcessHas) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  gpumem_hub const hub = open_hub(desc);
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  // Its limit counts when something is published.
  std::optional<DescriptorLimit> limit(856);  // 64 of the process, three of each of 64 links, and twice 300
  EXPECT_EQ(raw.ask(publish_of("many", 301), files(301)).status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(raw.ask(publish_of("n", 300), files(300)).type, MessageType::kPublished);
  EXPECT_EQ(raw.ask(publish_of("another", 1, 2), files(1)).status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  limit.reset();
  EXPECT_EQ(raw.ask(publish_of("another", 1, 2), files(1)).type, MessageType::kPublished);
  EXPECT_EQ(refused(hub), 2U);
}

TEST_F(ShareServerTest, AKeeperWithoutAFreeDescriptorRefusesAndGoesOn) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  ASSERT_EQ(raw.ask(publish_of("n", 1), files(1)).type, MessageType::kPublished);
  for (const uint32_t count : {1U, 300U}) {
    Descriptors many = files(count);
    const DescriptorLimit limit(3);  // those are taken
    const Message answer = raw.ask(publish_of("many", count, 2), std::move(many));
    EXPECT_EQ(answer.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
    EXPECT_NE(answer.text.find("none is free for what is published"), std::string::npos) << answer.text;
  }
  {
    const DescriptorLimit limit(3);
    EXPECT_EQ(raw.ask(message_of(MessageType::kWithdraw, "n")).type, MessageType::kDone);
  }
  EXPECT_EQ(raw.ask(publish_of("again", 1, 3), files(1)).type, MessageType::kPublished);
}

TEST_F(ShareServerTest, ALinkHasAsManyWaitsAsItMay) {
  open_hub(hub_desc());
  Raw raw(address());
  ASSERT_EQ(raw.hello().type, MessageType::kWelcome);
  for (uint64_t number = 100; number < 164; ++number) {
    Message wait = message_of(MessageType::kWait, "n");
    wait.number = number;
    raw.send(wait);
  }
  EXPECT_EQ(raw.ask(message_of(MessageType::kWait, "n")).status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  Message cancel = message_of(MessageType::kCancel, {}, 120);
  raw.send(cancel);
  Message wait = message_of(MessageType::kWait, "n");
  wait.number = 200;
  raw.send(wait);
  EXPECT_EQ(raw.ask(message_of(MessageType::kWait, "n")).status, GPUMEM_ERROR_LIMIT_EXCEEDED);
}

TEST_F(ShareServerTest, AReplayedMessageIsOneMoreOfItsKind) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  Raw link(address());
  ASSERT_EQ(link.hello().type, MessageType::kWelcome);
  Raw holder(std::move(link.received.front()));
  Message publish = publish_of("n", 1);
  publish.version = 5;
  EXPECT_EQ(link.ask(publish, files(1)).version, 5U);
  EXPECT_EQ(link.ask(publish, files(1)).status, GPUMEM_ERROR_ALREADY_EXISTS);
  publish.version = 4;
  EXPECT_EQ(link.ask(publish, files(1)).status, GPUMEM_ERROR_ALREADY_EXISTS);
  publish.version = kVersionMax;
  EXPECT_EQ(link.ask(publish, files(1)).version, kVersionMax);
  EXPECT_EQ(link.ask(publish, files(1)).status, GPUMEM_ERROR_ALREADY_EXISTS);
  EXPECT_EQ(holder.ask(claim_of(1)).status, GPUMEM_ERROR_STALE_HANDLE) << "its link has fetched nothing";
  EXPECT_EQ(link.ask(message_of(MessageType::kFetch, "n")).type, MessageType::kGranted);
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(holder.ask(claim_of(1)).type, MessageType::kGranted);
  EXPECT_EQ(link.ask(message_of(MessageType::kWithdraw, "n")).type, MessageType::kDone);
  EXPECT_EQ(link.ask(message_of(MessageType::kWithdraw, "n")).status, GPUMEM_ERROR_NOT_FOUND);
  EXPECT_EQ(holder.next()->message.type, MessageType::kWithdrawn);
  publish.version = 5;
  EXPECT_EQ(link.ask(publish, files(1)).status, GPUMEM_ERROR_INVALID_STATE) << "it is not there";
  Message release = claim_of(1);
  release.type = MessageType::kRelease;
  holder.send(release);
  holder.send(release);
  EXPECT_EQ(holder.ask(claim_of(1)).status, GPUMEM_ERROR_STALE_HANDLE);
  holder.send(release);
  EXPECT_TRUE(holder.ends());
}

// What a consumer does that left the ring, and could not unmap its memory.
TEST_F(ShareServerTest, ring_8_nobody_has_the_ring_who_has_nothing_of_it) {
  gpumem_device device = nullptr;
  ASSERT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
  desc.slot_size = 1000;
  desc.slot_count = 2;
  desc.consumers_max = 1;
  gpumem_ring ring = nullptr;
  gpumem_share_handle bytes{};
  ASSERT_EQ(gpumem_ring_create(device, &desc, &ring, nullptr), GPUMEM_SUCCESS);
  ASSERT_EQ(gpumem_ring_export(ring, &bytes, nullptr), GPUMEM_SUCCESS);
  const ShareHandle exported = *decode(bytes);
  std::optional<Raw> consumer(std::in_place, abstract_address(exported.exporter.instance));
  ASSERT_EQ(consumer->hello(exported.exporter.instance).type, MessageType::kWelcome);
  Message claim = message_of(MessageType::kClaim);
  claim.token = exported.token;
  ASSERT_EQ(consumer->ask(claim).type, MessageType::kGranted);
  auto control = RingControl::open(consumer->received);
  ASSERT_TRUE(control);
  claim.token = decode((*control)->memory_handle())->token;
  ASSERT_EQ(consumer->ask(claim).type, MessageType::kGranted);
  Message release = message_of(MessageType::kRelease);
  release.token = exported.token;
  consumer->send(release);
  ASSERT_EQ(consumer->ask(claim_of(1)).status, GPUMEM_ERROR_STALE_HANDLE) << "when it has released the ring";

  EXPECT_EQ(gpumem_ring_destroy(ring, nullptr), GPUMEM_ERROR_BUSY);
  gpumem_ring_slot slot = GPUMEM_RING_SLOT_INIT;
  EXPECT_EQ(gpumem_ring_acquire(ring, nullptr, 0, &slot, nullptr), GPUMEM_SUCCESS) << "nothing changed";
  EXPECT_EQ(gpumem_ring_finish(ring, 0, nullptr), GPUMEM_NOT_READY);
  consumer.reset();
  EXPECT_EQ(gpumem_ring_finish(ring, GPUMEM_TIMEOUT_INFINITE, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_ring_destroy(ring, nullptr), GPUMEM_SUCCESS);
}

// ---- a hub or an exporter that lies ----

// Listens, and speaks by hand with each who connects.
class Impostor {
 public:
  Impostor(const std::string& address, std::function<void(Raw&)> speak) : speak_(std::move(speak)) {
    auto made = platform::Listener::open(address, 0600);
    EXPECT_TRUE(made);
    listener_ = std::move(*made);
    thread_ = std::thread([this] {
      while (!over_) {
        auto socket = listener_.accept();
        if (!socket || !*socket) {
          std::this_thread::sleep_for(1ms);
          continue;
        }
        Raw raw(std::move(*socket));
        speak_(raw);
      }
    });
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  ~Impostor() {
    over_ = true;
    thread_.join();
  }

 private:
  std::function<void(Raw&)> speak_;
  platform::Listener listener_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

void reply(Raw& raw, const Message& question, Message answer, Descriptors descriptors = {}) {
  answer.number = question.number;
  raw.send(std::move(answer), std::move(descriptors));
}
// As a hub does; answers the end of the holder.
Descriptor welcome(Raw& raw, bool keeper = false) {
  const Message hello = heard(raw);
  auto ends = platform::socket_pair();
  Descriptors one;
  one.push_back(std::move(ends->theirs));
  Message answer = message_of(MessageType::kWelcome);
  answer.keeper = keeper;
  reply(raw, hello, answer, std::move(one));
  return std::move(ends->ours);
}

TEST_F(ShareServerTest, WhatIsNoHubIsNotConnectedTo) {
  const auto connected_to = [&](const std::function<void(Raw&)>& speak, uint64_t timeout_ns = 0) {
    const Impostor impostor(address(), speak);
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = address().c_str();
    desc.timeout_ns = timeout_ns;
    gpumem_link link = nullptr;
    const gpumem_status status = gpumem_link_connect(other, &desc, &link, nullptr);
    EXPECT_EQ(link, nullptr);
    return status;
  };
  EXPECT_EQ(connected_to([](Raw& raw) { heard(raw); }), GPUMEM_ERROR_NOT_FOUND) << "it hangs up";
  const uint64_t before = test::open_files();
  EXPECT_EQ(connected_to([](Raw& raw) { raw.ends(1s); }, 50'000'000), GPUMEM_ERROR_BUSY) << "it says nothing";
  EXPECT_EQ(connected_to([](Raw& raw) { reply(raw, heard(raw), message_of(MessageType::kWelcome)); }),
            GPUMEM_ERROR_NOT_FOUND)
      << "no connection";
  EXPECT_EQ(
      connected_to([](Raw& raw) { reply(raw, heard(raw), message_of(MessageType::kWelcome), files(1)); }),
      GPUMEM_ERROR_NOT_FOUND)
      << "a file";
  EXPECT_EQ(connected_to([](Raw& raw) {
              reply(raw, heard(raw), message_of(MessageType::kWelcome), files(2));
              raw.ends(1s);
            }),
            GPUMEM_ERROR_NOT_FOUND)
      << "too many";
  EXPECT_EQ(connected_to([](Raw& raw) {
              reply(raw, heard(raw), message_of(MessageType::kDone));
              raw.ends(1s);
            }),
            GPUMEM_ERROR_NOT_FOUND)
      << "another answer";
  EXPECT_EQ(connected_to([](Raw& raw) {
              heard(raw);
              raw.send_bytes(std::vector<uint8_t>(kPacketMax + 100, 'x'), files(253));
              raw.ends(1s);
            }),
            GPUMEM_ERROR_NOT_FOUND)
      << "no message";
  const auto refused = [&](gpumem_status status) {
    return connected_to([status](Raw& raw) {
      const Message asked = heard(raw);
      Message refusal = message_of(MessageType::kRefused);
      refusal.status = status;
      reply(raw, asked, refusal);
      raw.ends(1s);
    });
  };
  EXPECT_EQ(refused(GPUMEM_ERROR_PERMISSION_DENIED), GPUMEM_ERROR_PERMISSION_DENIED);
  EXPECT_EQ(refused(GPUMEM_ERROR_WRONG_KIND), GPUMEM_ERROR_NOT_FOUND) << "a refusal that no hub gives";
  EXPECT_TRUE(eventually([&] { return test::open_files() <= before; }));
}

TEST_F(ShareServerTest, TheAddressOfAnInstanceIsNoHub) {
  const ShareHandle handle = *decode(export_at(instance, shared_buffer(instance, 1)));
  const std::string at = abstract_address(handle.exporter.instance);
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = at.c_str();
  gpumem_link link = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_link_connect(other, &desc, &link, &error), GPUMEM_ERROR_NOT_FOUND);
  EXPECT_NE(std::strstr(error.message, "is no hub"), nullptr) << error.message;
}

// A lying hub, or one of a newer library.
TEST_F(ShareServerTest, ARefusalHasAStatusOfTheCallAndSaysWhoseWordsItHas) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  // `numbered`: as the answer to the question, and not as one from before any.
  const auto refused = [&](gpumem_status status, bool numbered,
                           const std::function<gpumem_status(gpumem_link)>& call) {
    const Impostor impostor(address(), [&](Raw& raw) {
      const Descriptor holder = welcome(raw, true);
      Message asked = heard(raw);
      if (!numbered) asked.number = 0;
      Message refusal = message_of(MessageType::kRefused);
      refusal.status = status;
      refusal.text = "go away";
      reply(raw, asked, refusal);
      raw.ends(1s);
    });
    gpumem_link link = nullptr;
    EXPECT_EQ(connect(&link), GPUMEM_SUCCESS);
    const gpumem_status answer = call(link);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    return answer;
  };
  struct Call {
    const char* name;
    std::function<gpumem_status(gpumem_link)> make;
    gpumem_status possible;
  };
  const gpumem_share_handle handle = export_at(other, shared_buffer(other, 1));
  gpumem_share_handle got{};
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  const Call calls[] = {
      {"enumerate", [&](gpumem_link link) { return gpumem_link_enumerate(link, 0, &entry, &error); },
       GPUMEM_ERROR_NOT_FOUND},
      {"wait",
       [&](gpumem_link link) {
         return gpumem_link_wait(link, "n", 0, GPUMEM_TIMEOUT_INFINITE, &entry, &error);
       },
       GPUMEM_ERROR_LIMIT_EXCEEDED},
      {"fetch", [&](gpumem_link link) { return gpumem_link_fetch(link, "n", nullptr, &got, &error); },
       GPUMEM_ERROR_NOT_FOUND},
      {"publish",
       [&](gpumem_link link) { return gpumem_link_publish(link, "n", &handle, nullptr, nullptr, &error); },
       GPUMEM_ERROR_ALREADY_EXISTS},
      {"withdraw", [&](gpumem_link link) { return gpumem_link_withdraw(link, "n", 0, &error); },
       GPUMEM_ERROR_PERMISSION_DENIED},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    for (const gpumem_status status :
         {call.possible, gpumem_status{GPUMEM_ERROR_BUSY}, gpumem_status{GPUMEM_ERROR_INTERNAL}}) {
      EXPECT_EQ(refused(status, true, call.make), status);
      EXPECT_NE(std::strstr(error.message, "the other process says: go away"), nullptr) << error.message;
    }
    EXPECT_EQ(refused(GPUMEM_ERROR_WRONG_KIND, true, call.make), GPUMEM_ERROR_PEER_GONE);
    EXPECT_EQ(std::strstr(error.message, "go away"), nullptr) << error.message;
    EXPECT_EQ(refused(GPUMEM_ERROR_PERMISSION_DENIED, false, call.make), GPUMEM_ERROR_PEER_GONE);
  }
  // Who waits is not told that there is nothing.
  EXPECT_EQ(refused(GPUMEM_ERROR_NOT_FOUND, true, calls[1].make), GPUMEM_ERROR_PEER_GONE);
}

TEST_F(ShareServerTest, AHubThatAnswersWronglyIsHungUpOn) {
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  // What it says when it is asked, and what becomes of the call.
  const auto enumerated = [&](const std::function<void(Raw&, const Message&)>& speak,
                              uint64_t timeout_ns = 0) {
    const Impostor impostor(address(), [&](Raw& raw) {
      const Descriptor holder = welcome(raw);
      speak(raw, heard(raw));
      raw.ends(1s);
    });
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = address().c_str();
    desc.timeout_ns = timeout_ns;
    gpumem_link link = nullptr;
    EXPECT_EQ(gpumem_link_connect(other, &desc, &link, nullptr), GPUMEM_SUCCESS);
    const gpumem_status status = gpumem_link_enumerate(link, 0, &entry, nullptr);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    return status;
  };
  Message good = message_of(MessageType::kEntry);
  good.entry.name = "n";
  good.entry.version = 1;
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) { reply(raw, asked, good); }), GPUMEM_SUCCESS);
  const uint64_t before = test::open_files();
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) {
              Message wrong = good;
              wrong.number = asked.number + 7;
              raw.send(wrong);
            }),
            GPUMEM_ERROR_PEER_GONE)
      << "an answer to no question";
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) {
              reply(raw, asked, message_of(MessageType::kPublished, {}, 1));
            }),
            GPUMEM_ERROR_PEER_GONE)
      << "an answer to another question";
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) {
              Message wrong = good;
              wrong.entry.version = 0;
              reply(raw, asked, wrong);
            }),
            GPUMEM_ERROR_PEER_GONE)
      << "no version";
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) {
              Message refusal = message_of(MessageType::kRefused);
              refusal.status = -9999;
              reply(raw, asked, refusal);
            }),
            GPUMEM_ERROR_PEER_GONE)
      << "a status that does not exist";
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) { reply(raw, asked, good, files(3)); }),
            GPUMEM_ERROR_PEER_GONE)
      << "descriptors";
  for (const char* name : {"../../etc", "a/b", "\xff\xfe", "\x1b[2J"}) {
    EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) {
                Message wrong = good;
                wrong.entry.name = name;
                reply(raw, asked, wrong);
              }),
              GPUMEM_ERROR_PEER_GONE)
        << name;
  }
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) {
              Message more = message_of(MessageType::kMore);
              reply(raw, asked, more, files(200));
            }),
            GPUMEM_ERROR_PEER_GONE)
      << "the rest of nothing";
  EXPECT_EQ(enumerated([&](Raw& raw, const Message& asked) {
              Message refusal = message_of(MessageType::kRefused);
              refusal.status = GPUMEM_ERROR_NOT_FOUND;
              refusal.text = "no\nsuch \xff thing";
              reply(raw, asked, refusal);
              reply(raw, asked, refusal);
            }),
            GPUMEM_ERROR_NOT_FOUND)
      << "a refusal that comes twice is read once";
  EXPECT_EQ(enumerated([](Raw&, const Message&) {}, 200'000'000), GPUMEM_ERROR_BUSY) << "no answer";
  EXPECT_TRUE(eventually([&] { return test::open_files() <= before; }));
}

TEST_F(ShareServerTest, AHubThatLiesAgainAndAgainFillsNoLog) {
  Heard log;
  const Impostor impostor(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    Message wrong = message_of(MessageType::kDone);
    wrong.number = heard(raw).number + 7;
    raw.send(wrong);
    raw.ends();
  });
  for (int i = 0; i < 50; ++i) {
    gpumem_link link = nullptr;
    ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    EXPECT_EQ(gpumem_link_enumerate(link, 0, &entry, nullptr), GPUMEM_ERROR_PEER_GONE);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  }
  other.close();
  log.expect(50, "ended the connection to");
}

// A log function that asks a link, when the sharing thread of its instance calls it first.
class AskingLog {
 public:
  AskingLog(gpumem_instance instance, gpumem_link link) : link_(link) {
    pointer = shared_buffer(instance, kBlock);
    address_ = abstract_address(decode(export_at(instance, pointer))->exporter.instance);
    EXPECT_EQ(gpumem_log_set_function(
                  [](void* self, gpumem_log_level, const char*) { static_cast<AskingLog*>(self)->hear(); },
                  this, GPUMEM_LOG_WARNING, nullptr),
              GPUMEM_SUCCESS);
  }
  AskingLog(const AskingLog&) = delete;
  AskingLog& operator=(const AskingLog&) = delete;
  ~AskingLog() { EXPECT_EQ(gpumem_log_set_function(nullptr, nullptr, 0, nullptr), GPUMEM_SUCCESS); }

  gpumem_status ask() {
    gpumem_way_info info = GPUMEM_WAY_INFO_INIT;
    EXPECT_EQ(gpumem_link_get_way(link_, pointer, GPUMEM_SHARE_WAY_POSIX_FD, GPUMEM_PEER_OTHER_PROCESS, &info,
                                  nullptr),
              GPUMEM_SUCCESS);
    return info.status;
  }
  // Makes the thread write a line. The answer that the log function got; SUCCESS if it got none.
  gpumem_status provoke() {
    Raw raw(address_);
    raw.send(message_of(MessageType::kDone));
    EXPECT_TRUE(eventually([&] { return answer_ != GPUMEM_SUCCESS; }));
    return answer_;
  }

  void* pointer = nullptr;

 private:
  void hear() {
    if (!asked_.exchange(true)) answer_ = ask();
  }

  const gpumem_link link_;
  std::string address_;
  std::atomic<bool> asked_{false};
  std::atomic<gpumem_status> answer_{GPUMEM_SUCCESS};
};

TEST_F(ShareServerTest, ipc_24_what_a_log_function_is_refused_is_not_the_answer_of_the_link) {
  open_hub(hub_desc());
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  AskingLog log(other, link);
  EXPECT_EQ(log.provoke(), GPUMEM_ERROR_INVALID_STATE);
  EXPECT_EQ(log.ask(), GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, com_27_a_log_function_waits_for_no_trial_of_another_thread) {
  std::latch asked(1);
  std::latch answered(1);
  const Impostor hub(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    const Message trial = heard(raw);
    asked.count_down();
    answered.wait();
    Message answer = message_of(MessageType::kTried);
    answer.status = GPUMEM_ERROR_UNSUPPORTED;
    reply(raw, trial, answer);
    raw.ends();
  });
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = address().c_str();
  desc.timeout_ns = GPUMEM_TIMEOUT_INFINITE;
  gpumem_link link = nullptr;
  ASSERT_EQ(gpumem_link_connect(other, &desc, &link, nullptr), GPUMEM_SUCCESS);
  {
    AskingLog log(other, link);
    gpumem_status status = GPUMEM_SUCCESS;
    std::thread waiting([&] { status = log.ask(); });
    asked.wait();
    EXPECT_EQ(log.provoke(), GPUMEM_ERROR_BUSY);
    answered.count_down();
    waiting.join();
    EXPECT_EQ(status, GPUMEM_ERROR_UNSUPPORTED);
  }
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// Whoever makes the folder first can listen in it.
TEST_F(ShareServerTest, AFolderThatOthersCanWriteToIsNotTrustedByLinks) {
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string own = std::string(folder) + "/gpumem";
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string runtime = before != nullptr ? before : "";
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = "n";
  gpumem_link link = nullptr;
  EXPECT_EQ(gpumem_link_connect(other, &desc, &link, nullptr), GPUMEM_ERROR_NOT_FOUND) << "no folder";
  ASSERT_EQ(mkdir(own.c_str(), 0700), 0);
  {
    const Impostor impostor(own + "/n", [&](Raw& raw) {
      const Descriptor holder = welcome(raw);
      raw.ends();
    });
    ASSERT_EQ(chmod(own.c_str(), 0777), 0);
    EXPECT_EQ(gpumem_link_connect(other, &desc, &link, nullptr), GPUMEM_ERROR_PERMISSION_DENIED);
    EXPECT_EQ(link, nullptr);
    ASSERT_EQ(chmod(own.c_str(), 0700), 0);
    EXPECT_EQ(gpumem_link_connect(other, &desc, &link, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  }
  EXPECT_EQ(before != nullptr ? setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1) : unsetenv("XDG_RUNTIME_DIR"),
            0);
  std::filesystem::remove_all(folder);
}

TEST_F(ShareServerTest, AHubWhoseVersionsGoBackwardsIsHungUpOn) {
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  const auto waited = [&](const std::string& name, uint64_t version) {
    const Impostor impostor(address(), [&](Raw& raw) {
      const Descriptor holder = welcome(raw);
      Message answer = message_of(MessageType::kEntry);
      answer.entry.name = name;
      answer.entry.version = version;
      reply(raw, heard(raw), answer);
      raw.ends();
    });
    gpumem_link link = nullptr;
    EXPECT_EQ(connect(&link), GPUMEM_SUCCESS);
    const gpumem_status status = gpumem_link_wait(link, "n", 7, GPUMEM_TIMEOUT_INFINITE, &entry, nullptr);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    return status;
  };
  EXPECT_EQ(waited("n", 8), GPUMEM_SUCCESS);
  EXPECT_EQ(entry.version, 8U);
  EXPECT_EQ(waited("n", 7), GPUMEM_ERROR_PEER_GONE) << "the version that is known";
  EXPECT_EQ(waited("n", 6), GPUMEM_ERROR_PEER_GONE) << "an older one";
  EXPECT_EQ(waited("m", 9), GPUMEM_ERROR_PEER_GONE) << "another name";
  EXPECT_EQ(waited("n", UINT64_MAX), GPUMEM_ERROR_PEER_GONE) << "nothing could be newer than it";
  EXPECT_EQ(entry.version, 8U) << "nothing was written";
}

TEST_F(ShareServerTest, hub_3_the_time_for_the_next_version_is_for_all_that_are_tried) {
  std::atomic<uint64_t> tried{0};
  const Impostor impostor(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    while (!raw.hung_up) {
      const auto asked = raw.next(2ms);
      if (!asked) continue;
      Message answer = message_of(MessageType::kRefused);
      answer.status = GPUMEM_ERROR_NOT_FOUND;
      if (asked->message.type == MessageType::kWait) {
        answer = message_of(MessageType::kEntry);
        answer.entry.name = "n";
        answer.entry.version = asked->message.version + 1;
        ++tried;
      }
      reply(raw, asked->message, answer);
    }
  });
  struct Limit {
    uint64_t of_call;
    uint64_t of_answers;
    gpumem_status status;
  };
  for (const Limit& limit :
       {Limit{200'000'000, 0, GPUMEM_NOT_READY}, Limit{0, 200'000'000, GPUMEM_ERROR_BUSY}}) {
    SCOPED_TRACE(limit.of_call);
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = address().c_str();
    desc.timeout_ns = limit.of_answers;
    gpumem_link link = nullptr;
    ASSERT_EQ(gpumem_link_connect(other, &desc, &link, nullptr), GPUMEM_SUCCESS);
    tried = 0;
    gpumem_memory memory = nullptr;
    EXPECT_EQ(
        gpumem_link_import_next(link, "n", 0, limit.of_call, nullptr, nullptr, nullptr, &memory, nullptr),
        limit.status);
    EXPECT_GT(tried, 1U);
    EXPECT_EQ(memory, nullptr);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  }
}

// The caller gets no handle to import or drop.
TEST_F(ShareServerTest, hub_3_what_came_with_a_version_that_is_not_imported_is_closed) {
  const ShareHandle genuine = *decode(export_at(instance, shared_buffer(instance, 1)));
  const Impostor impostor(address(), [&](Raw& raw) {
    Raw holder(welcome(raw));
    while (!raw.hung_up) {
      for (Raw* const from : {&raw, &holder}) {
        const auto asked = from->next(2ms);
        if (!asked || asked->message.type == MessageType::kRelease) continue;
        Message answer = message_of(MessageType::kRefused);
        answer.status = GPUMEM_ERROR_BUSY;
        Descriptors blocks;
        if (asked->message.type == MessageType::kWait) {
          answer = message_of(MessageType::kEntry);
          answer.entry.name = "n";
          answer.entry.version = 1;
        } else if (asked->message.type == MessageType::kFetch) {
          answer = publish_of("", 8);
          answer.type = MessageType::kGranted;
          answer.handle.device_uuid = genuine.device_uuid;
          answer.handle.exporter = genuine.exporter;
          blocks = files(8);
          set_files(blocks, answer.handle);
        }
        reply(*from, asked->message, answer, std::move(blocks));
      }
    }
  });
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_link_wait(link, "n", 0, 0, nullptr, nullptr), GPUMEM_SUCCESS);  // it has sent its welcome
  const uint64_t before = test::open_files();
  gpumem_memory memory = nullptr;
  EXPECT_EQ(gpumem_link_import_next(link, "n", 0, 0, nullptr, nullptr, nullptr, &memory, nullptr),
            GPUMEM_ERROR_BUSY);
  EXPECT_EQ(test::open_files(), before);
  gpumem_share_handle handle{};
  EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_SUCCESS);
  // It answers one after the other, and so has closed its own.
  EXPECT_EQ(gpumem_link_wait(link, "n", 0, 0, nullptr, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(test::open_files(), before + 8) << "which can be imported later";
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, hub_3_a_wait_that_the_hub_refuses_is_not_over_in_time) {
  const Impostor hub(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    Message refusal = message_of(MessageType::kRefused);
    refusal.status = GPUMEM_ERROR_BUSY;
    refusal.text = "not now";
    reply(raw, heard(raw), refusal);
    raw.ends();
  });
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_link_wait(link, "n", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, &error), GPUMEM_ERROR_BUSY);
  EXPECT_NE(std::strstr(error.message, "not now"), nullptr) << error.message;
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ShareServerTest, hub_3_a_wait_that_cannot_be_sent_is_not_over_in_time) {
  std::latch over(1);
  const Impostor hub(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    over.wait();  // it reads nothing more
  });
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  // Each leaves two packets.
  for (int i = 0; i < 4000; ++i)
    ASSERT_EQ(gpumem_link_wait(link, "n", 0, 1, nullptr, nullptr), GPUMEM_NOT_READY);
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_link_wait(link, "n", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, &error), GPUMEM_ERROR_BUSY);
  EXPECT_NE(std::strstr(error.message, "has not answered or read 409"), nullptr) << error.message;
  over.count_down();
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// Half of what it was sent makes no sense to the other side.
TEST_F(ShareServerTest, AConnectionEndsWithWhatCannotBeSent) {
  std::latch reads(1);
  const Impostor hub(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    reads.wait();
    raw.ends();
  });
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  for (int i = 0; i < 1000; ++i)  // more than the socket takes
    ASSERT_EQ(gpumem_link_wait(link, "n", 0, 1, nullptr, nullptr), GPUMEM_NOT_READY);
  gpumem_error error = GPUMEM_ERROR_INIT;
  Sleeper waiting([&] {
    constexpr uint64_t kMinutes = 120'000'000'000;
    EXPECT_EQ(gpumem_link_wait(link, "n", 0, kMinutes, nullptr, &error), GPUMEM_ERROR_PERMISSION_DENIED);
  });
  no_sending = EPERM;
  reads.count_down();
  waiting.join();
  no_sending = 0;
  EXPECT_EQ(error.native_code, EPERM) << error.message;
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// The sharing thread may see it a little later.
TEST_F(ShareServerTest, WhoHasHungUpIsKnownBeforeItIsServed) {
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  ShareServer& server = inside(instance)->share_server();
  const ShareClient client(server.loop(), std::move(ends->ours), Origin(), 0,
                           Token{});  // which the thread does not know
  EXPECT_FALSE(client.has_hung_up());
  ends->theirs = Descriptor();
  EXPECT_TRUE(client.has_hung_up());
  EXPECT_FALSE(client.gone());
}

// Like any other question, a look needs no other thread if its answer comes soon.
TEST_F(ShareServerTest, ALookTakesItsAnswerOnItsOwnThread) {
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  ShareClient client(inside(instance)->share_server().loop(), std::move(ends->ours), Origin(), 0,
                     Token{});  // which the sharing thread does not know
  Message answer = message_of(MessageType::kEntry);
  answer.number = 1;
  answer.entry.name = "n";
  answer.entry.version = 1;
  Raw raw(std::move(ends->theirs));
  raw.send(answer);  // it is there at the first glance
  Message look = message_of(MessageType::kWait, "n");
  look.once = true;
  auto found = client.call(look, {}, MessageType::kEntry, answer_deadline(0));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->message.entry.version, 1U);
}

TEST_F(ShareServerTest, AKeeperThatPublishesAnotherVersionIsHungUpOn) {
  gpumem_share_handle const handle = export_at(other, shared_buffer(other, 1));
  const auto published = [&](uint64_t asked_for, uint64_t answered, uint64_t* version) {
    const Impostor impostor(address(), [&](Raw& raw) {
      const Descriptor holder = welcome(raw, true);
      reply(raw, heard(raw), message_of(MessageType::kPublished, {}, answered));
      raw.ends();
    });
    gpumem_link link = nullptr;
    EXPECT_EQ(connect(&link), GPUMEM_SUCCESS);
    gpumem_publish_desc desc = GPUMEM_PUBLISH_DESC_INIT;
    desc.version = asked_for;
    const gpumem_status status = gpumem_link_publish(link, "n", &handle, &desc, version, nullptr);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    return status;
  };
  uint64_t version = 99;
  EXPECT_EQ(published(0, 0, &version), GPUMEM_ERROR_PEER_GONE) << "no version";
  EXPECT_EQ(published(5, 4, &version), GPUMEM_ERROR_PEER_GONE) << "another one";
  EXPECT_EQ(version, 99U);
  EXPECT_EQ(published(5, 5, &version), GPUMEM_SUCCESS);
  EXPECT_EQ(version, 5U);
}

TEST_F(ShareServerTest, AnAnswerThatDoesNotEndHoldsNoDescriptorsForLong) {
  constexpr uint32_t kAnnounced = 400;
  const DescriptorLimit limit(800);  // or they would be closed at once
  const uint64_t before = test::open_files();
  const auto fetched = [&](bool asked_for, uint64_t timeout_ns) {
    bool hung_up = false;
    {
      const Impostor impostor(address(), [&](Raw& raw) {
        const Descriptor holder = welcome(raw);
        const Message asked = heard(raw);
        Message answer = message_of(MessageType::kGranted);
        answer.handle = publish_of("n", 1).handle;
        answer.handle.size = kAnnounced * kBlock;
        answer.handle.fd_count = kAnnounced;
        answer.number = asked.number + (asked_for ? 0 : 7);
        std::vector<Packet> packets = split_message(answer, files(platform::kDescriptorsPerPacket));
        answer.descriptor_count = kAnnounced;
        packets.front().bytes = encode_message(answer);
        for (const Packet& packet : packets)
          raw.send_bytes(packet.bytes, packet.descriptors);
        packets.clear();
        hung_up = raw.ends();
      });
      gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
      desc.path = address().c_str();
      desc.timeout_ns = timeout_ns;
      gpumem_link link = nullptr;
      // On a busy machine the time is too short for some.
      EXPECT_TRUE(
          eventually([&] { return gpumem_link_connect(other, &desc, &link, nullptr) == GPUMEM_SUCCESS; }));
      gpumem_share_handle handle;
      gpumem_status status = gpumem_link_fetch(link, "n", nullptr, &handle, nullptr);
      EXPECT_EQ(status, asked_for ? GPUMEM_ERROR_BUSY : GPUMEM_ERROR_PEER_GONE);
      if (asked_for) {
        EXPECT_TRUE(eventually([&] {
          gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
          return gpumem_link_get_info(link, &info, nullptr) == GPUMEM_SUCCESS && info.connected == 0;
        }));
        status = gpumem_link_fetch(link, "n", nullptr, &handle, nullptr);
      }
      EXPECT_EQ(status, GPUMEM_ERROR_PEER_GONE);
      // The link is still open, and holds nothing of it.
      EXPECT_TRUE(eventually([&] { return test::open_files() < before + platform::kDescriptorsPerPacket; }));
      EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    }
    return hung_up;
  };
  EXPECT_TRUE(fetched(true, 50'000'000)) << "the rest does not come";
  EXPECT_TRUE(fetched(false, 3'600'000'000'000)) << "what nobody asked for is not waited for";
}

// Of memory with so many blocks, from an exporter that is none.
ShareHandle handle_of_impostor(gpumem_instance importer, uint32_t blocks) {
  ShareHandle handle = publish_of("n", blocks).handle;
  auto boot = platform::boot_id();
  EXPECT_TRUE(boot);
  handle.exporter.boot = *boot;
  handle.exporter.pid = getpid();
  handle.exporter.start_time = *platform::own_start_time();
  handle.exporter.instance = platform::random_id();
  handle.exporter.process_namespace = platform::process_namespace();
  set_device(importer, handle);
  return handle;
}

// Sends what a message announces, or only its first descriptors, and keeps none of them open.
void announce(Raw& raw, Message message, uint32_t announced, uint32_t sent) {
  while (sent != 0) {
    const uint32_t count = std::min<uint32_t>(sent, platform::kDescriptorsPerPacket);
    message.descriptor_count = announced;
    message.packet_count = count;
    raw.send_bytes(encode_message(message), files(count));
    sent -= count;
    const uint64_t number = message.number;
    message = message_of(MessageType::kMore);
    message.number = number;
  }
}

// What others announce leaves this process the descriptors that it needs for itself.
TEST_F(ShareServerTest, AnAnswerBringsHalfOfTheDescriptorsAtMost) {
  constexpr uint32_t kMost = 600;
  const DescriptorLimit limit(2 * kMost);
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto refused = [&](gpumem_status status) {
    EXPECT_EQ(status, GPUMEM_ERROR_LIMIT_EXCEEDED) << error.message;
    EXPECT_NE(std::strstr(error.message,
                          "comes with 601 descriptors, and a process takes half of the 1200 that it may have "
                          "(RLIMIT_NOFILE) at most; raise `ulimit -n`"),
              nullptr)
        << error.message;
  };
  {
    const Impostor hub(address(), [&](Raw& raw) {
      const Descriptor holder = welcome(raw);
      const auto grant = [&](uint32_t announced, uint32_t sent) {
        Message answer = message_of(MessageType::kGranted);
        answer.number = heard(raw).number;
        answer.handle = publish_of("n", 1).handle;
        answer.handle.size = announced * kBlock;
        answer.handle.fd_count = announced;
        announce(raw, answer, announced, sent);
      };
      grant(kMost + 1, kMost + 1);
      grant(kMost, kMost);
      grant(kMessageDescriptorsMax, 3 * platform::kDescriptorsPerPacket);
      int unread = -1;
      EXPECT_TRUE(eventually([&] { return ioctl(raw.socket(), SIOCOUTQ, &unread) == 0 && unread == 0; }));
      EXPECT_TRUE(eventually([&] { return files_of("memfd:test") <= kMost; }));
    });
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = address().c_str();
    desc.timeout_ns = std::chrono::nanoseconds(2 * kPatience).count();
    gpumem_link link = nullptr;
    ASSERT_EQ(gpumem_link_connect(other, &desc, &link, nullptr), GPUMEM_SUCCESS);
    gpumem_share_handle handle;
    refused(gpumem_link_fetch(link, "n", nullptr, &handle, &error));
    EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, &error), GPUMEM_ERROR_INVALID_ARGUMENT)
        << "the link goes on, and all came, though they are not of this handle";
    EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_ERROR_PEER_GONE);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  }
  const ShareHandle handle = handle_of_impostor(other, kMost + 1);
  {
    const Impostor exporter(abstract_address(handle.exporter.instance), [&](Raw& raw) {
      Message answer = message_of(MessageType::kWelcome);
      answer.token = handle.exporter.instance;
      reply(raw, heard(raw), answer);
      answer = message_of(MessageType::kGranted);
      answer.number = heard(raw).number;
      answer.handle = handle;
      announce(raw, answer, kMost + 1, kMost + 1);
      EXPECT_EQ(heard(raw).type, MessageType::kRelease) << "what cannot be used is given back";
    });
    const gpumem_share_handle given = encode(handle);
    gpumem_memory memory = nullptr;
    refused(gpumem_share_import(other, &given, nullptr, 0, nullptr, nullptr, &memory, &error));
    EXPECT_EQ(memory, nullptr);
  }
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  Raw sender(std::move(ends->ours));
  Message pass = message_of(MessageType::kPass);
  pass.handle = publish_of("n", kMost).handle;
  announce(sender, pass, kMost + 1, kMost + 1);
  gpumem_share_handle received;
  refused(gpumem_share_receive(other, ends->theirs.get(), GPUMEM_TIMEOUT_INFINITE, &received, &error));
  other.close();
  EXPECT_EQ(files_of("memfd:test"), 0U);
}

// A hub chooses whose connection it hands out to grant what it gives. What that brings is the hub's, while it
// waits and while it is imported.
TEST_F(SharedHubTest, WhatIsFetchedIsChargedToTheHub) {
  const DescriptorLimit limit(600);
  std::promise<Descriptor> granter;
  const Impostor hub(address(), [&](Raw& raw) {
    auto [ours, theirs] = pair_of(kUsers[0], SOCK_SEQPACKET);
    granter.set_value(std::move(ours));
    Descriptors one;
    one.push_back(std::move(theirs));
    reply(raw, heard(raw), message_of(MessageType::kWelcome), std::move(one));
    while (!raw.hung_up) {
      const auto asked = raw.next(10ms);
      if (!asked) continue;
      const bool fetch = asked->message.type == MessageType::kFetch;
      Message answer = message_of(fetch ? MessageType::kGranted : MessageType::kEntry);
      answer.entry.name = asked->message.name;
      answer.entry.version = 1;
      Descriptors blocks;
      if (fetch) {
        const uint32_t count = asked->message.name == "large" ? 130 : 9;
        answer.handle = publish_of("", count).handle;
        answer.handle.token = platform::random_id();
        set_device(other, answer.handle);
        blocks = files(count);
        set_files(blocks, answer.handle);
      }
      reply(raw, asked->message, answer, std::move(blocks));
    }
  });
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS) << why.message;
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_memory memory = nullptr;
  std::thread import([&] {
    gpumem_memory none = nullptr;
    EXPECT_EQ(gpumem_link_import_next(link, "large", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr, nullptr,
                                      &none, nullptr),
              GPUMEM_ERROR_INVALID_ARGUMENT)
        << "these files are no blocks";
  });
  ASSERT_TRUE(eventually([&] { return files_of("memfd:test") == 130; }));
  Raw exporter(granter.get_future().get());
  EXPECT_EQ(heard(exporter).type, MessageType::kClaim);
  EXPECT_EQ(gpumem_link_import_next(link, "large", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, nullptr, nullptr,
                                    &memory, &error),
            GPUMEM_ERROR_LIMIT_EXCEEDED)
      << error.message;
  EXPECT_EQ(std::strncmp(error.message, "handles of user 0 that", 22), 0) << error.message;
  gpumem_share_handle handle;
  gpumem_status status = GPUMEM_SUCCESS;
  for (int count = 0; count < 40 && status == GPUMEM_SUCCESS; ++count)
    status = gpumem_link_fetch(link, "n", nullptr, &handle, &error);
  EXPECT_EQ(status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(std::strncmp(error.message, "handles of user 0 that", 22), 0) << error.message;
  { const Raw ends = std::move(exporter); }
  import.join();
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// Also from its first packet on, however long the rest takes.
TEST_F(SharedHubTest, AnAnswerThatDoesNotEndIsChargedToTheHub) {
  const DescriptorLimit limit(1200);
  std::promise<void> go_on;
  // Answers each FETCH with the same 300 descriptors, of which it may hold the last ones back at first.
  const auto answer_with = [&](bool hold_back) {
    return [&, hold_back](Raw& raw) mutable {
      const Descriptor holder = welcome(raw);
      Message answer = message_of(MessageType::kGranted);
      answer.handle = publish_of("", 300).handle;
      answer.handle.token = platform::random_id();
      set_device(other, answer.handle);
      while (!raw.hung_up) {
        const auto asked = raw.next(10ms);
        if (!asked) continue;
        answer.number = asked->message.number;
        Descriptors blocks = files(300);
        set_files(blocks, answer.handle);
        for (Packet& packet : split_message(answer, std::move(blocks))) {
          raw.send_bytes(packet.bytes, packet.descriptors);
          packet.descriptors.clear();
          if (std::exchange(hold_back, false)) go_on.get_future().wait();
        }
      }
    };
  };
  const std::string second = address() + "2";
  const Impostor slow(address(), answer_with(true));
  const Impostor quick(second, answer_with(false));
  gpumem_link links[2] = {};
  ASSERT_EQ(connect(&links[0]), GPUMEM_SUCCESS) << why.message;
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = second.c_str();
  ASSERT_EQ(gpumem_link_connect(other, &desc, &links[1], &why), GPUMEM_SUCCESS) << why.message;
  std::thread first([&] {
    gpumem_share_handle handle;
    EXPECT_EQ(gpumem_link_fetch(links[0], "n", nullptr, &handle, nullptr), GPUMEM_SUCCESS);
  });
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 300; })) << "here, or still to be sent";
  gpumem_error error = GPUMEM_ERROR_INIT;
  gpumem_share_handle handle;
  EXPECT_EQ(gpumem_link_fetch(links[1], "n", nullptr, &handle, &error), GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(std::strncmp(error.message, "handles of user 0 that", 22), 0) << error.message;
  go_on.set_value();
  first.join();
  EXPECT_EQ(gpumem_link_fetch(links[0], "n", nullptr, &handle, &error), GPUMEM_SUCCESS)
      << "in place of what waits: " << error.message;
  for (gpumem_link const link : links)
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

TEST_F(SharedHubTest, AHandleThatNobodyImportsStaysNoLongerThanItsLease) {
  const auto [here, there] = pair_of(kUsers[0], SOCK_STREAM);
  auto ends = platform::socket_pair();
  send_packets(there, pass_of(other, 9, std::move(ends->theirs), 200'000'000));
  gpumem_share_handle handle{};
  ASSERT_EQ(gpumem_share_receive(other, here.get(), GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
            GPUMEM_SUCCESS);
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 0; }));
}

// Its lease may be over by then.
TEST_F(SharedHubTest, AHandleThatIsPutBackStaysNoLongerThanItsLease) {
  const auto [here, there] = pair_of(kUsers[0], SOCK_STREAM);
  auto ends = platform::socket_pair();
  send_packets(there, pass_of(other, 9, std::move(ends->theirs), 200'000'000));
  gpumem_share_handle handle{};
  ASSERT_EQ(gpumem_share_receive(other, here.get(), GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
            GPUMEM_SUCCESS);
  gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
  desc.timeout_ns = 400'000'000;
  gpumem_memory memory = nullptr;
  EXPECT_NE(gpumem_share_import(other, &handle, nullptr, 0, &desc, nullptr, &memory, nullptr), GPUMEM_SUCCESS)
      << "its exporter is silent";
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 0; }));
}

// What it replaces counts too, and gives way before the answer comes.
TEST_F(SharedHubTest, WhatIsFetchedAnewIsNotHereTwice) {
  constexpr uint32_t kBlocks = 300;
  const DescriptorLimit limit(1200);
  std::promise<void> half;
  std::promise<void> go_on;
  const Impostor hub(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    Message answer = message_of(MessageType::kGranted);
    answer.handle = publish_of("", kBlocks).handle;
    answer.handle.token = platform::random_id();
    set_device(other, answer.handle);
    for (int count = 0; count < 2; ++count) {
      answer.number = heard(raw).number;
      Descriptors blocks = files(kBlocks);
      set_files(blocks, answer.handle);
      bool hold_back = count == 1;
      for (Packet& packet : split_message(answer, std::move(blocks))) {
        raw.send_bytes(packet.bytes, packet.descriptors);
        packet.descriptors.clear();
        if (!std::exchange(hold_back, false)) continue;
        half.set_value();
        go_on.get_future().wait();
      }
    }
    while (!raw.hung_up)
      raw.next(10ms);
  });
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS) << why.message;
  gpumem_share_handle handle;
  EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, &why), GPUMEM_SUCCESS) << why.message;
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == kBlocks; })) << "all are sent";
  std::thread again(
      [&] { EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_SUCCESS); });
  half.get_future().wait();
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == kBlocks; })) << "here, or still to be sent";
  go_on.set_value();
  again.join();
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

TEST_F(SharedHubTest, AnAnswerThatNobodyWaitsForAnyMoreKeepsNothing) {
  std::promise<void> sent;
  std::promise<void> over;
  const Impostor hub(address(), [&](Raw& raw) {
    const Descriptor holder = welcome(raw);
    Message answer = message_of(MessageType::kGranted);
    answer.handle = publish_of("", 300).handle;
    answer.handle.token = platform::random_id();
    set_device(other, answer.handle);
    answer.number = heard(raw).number;
    Descriptors blocks = files(300);
    set_files(blocks, answer.handle);
    std::vector<Packet> packets = split_message(answer, std::move(blocks));
    raw.send_bytes(packets[0].bytes, packets[0].descriptors);
    packets.clear();
    sent.set_value();
    over.get_future().wait();
  });
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = address().c_str();
  desc.timeout_ns = 300'000'000;
  gpumem_link link = nullptr;
  ASSERT_EQ(gpumem_link_connect(other, &desc, &link, &why), GPUMEM_SUCCESS) << why.message;
  gpumem_share_handle handle;
  EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_ERROR_BUSY);
  sent.get_future().wait();
  EXPECT_TRUE(eventually([&] { return files_of("memfd:test") == 0; }));
  gpumem_link_info info = GPUMEM_LINK_INFO_INIT;
  EXPECT_EQ(gpumem_link_get_info(link, &info, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(info.connected, 1U) << "they are closed before the time of the answer is over";
  over.set_value();
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// What came with a handle and what its exporter grants are the same, so they need not have room together.
// What came stays until there is an answer: the exporter may give none, and end.
TEST_F(SharedHubTest, AGrantTakesThePlaceOfWhatCameWithTheHandle) {
  constexpr uint32_t kBlocks = 150;
  const DescriptorLimit limit(600);
  gpumem_share_handle given{};
  const auto receive = [&] {
    const auto [here, there] = pair_of(kUsers[0], SOCK_STREAM);
    auto ends = platform::socket_pair();
    send_packets(there, pass_of(other, kBlocks, std::move(ends->theirs)));
    EXPECT_EQ(gpumem_share_receive(other, here.get(), GPUMEM_TIMEOUT_INFINITE, &given, nullptr),
              GPUMEM_SUCCESS);
    return std::move(ends->ours);
  };
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto import = [&] {
    gpumem_memory memory = nullptr;
    EXPECT_EQ(gpumem_share_import(other, &given, nullptr, 0, nullptr, nullptr, &memory, &error),
              GPUMEM_ERROR_INVALID_ARGUMENT)
        << "these files are no blocks";
  };
  {
    Raw exporter(receive());
    std::thread importer(import);
    const Message claim = heard(exporter);
    EXPECT_EQ(files_of("memfd:test"), kBlocks) << "until there is an answer";
    Message granted = message_of(MessageType::kGranted);
    granted.number = claim.number;
    granted.handle = *decode(given);
    announce(exporter, granted, kBlocks, kBlocks);
    importer.join();
  }
  // They are enough if the exporter has ended.
  receive();
  import();
  EXPECT_EQ(std::strstr(error.message, "handles of user"), nullptr) << error.message;
}

// A ring that an exporter has made, for one consumer.
gpumem_share_handle export_ring(gpumem_instance exporter, uint32_t slots) {
  gpumem_device device = nullptr;
  EXPECT_EQ(gpumem_device_get(exporter, 0, &device, nullptr), GPUMEM_SUCCESS);
  gpumem_ring_desc desc = GPUMEM_RING_DESC_INIT;
  desc.slot_size = 64;
  desc.slot_count = slots;
  desc.consumers_max = 1;
  gpumem_ring ring = nullptr;
  gpumem_share_handle handle{};
  EXPECT_EQ(gpumem_ring_create(device, &desc, &ring, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_ring_export(ring, &handle, nullptr), GPUMEM_SUCCESS);
  return handle;
}

// A ring with 8 slots takes 18 claims. Between the consumer and its producer is who answers each of them
// late.
TEST_F(ShareServerTest, ring_8_all_answers_together_have_the_time_of_one) {
  Elsewhere producer([](int socket) {
    const Opened exporter;
    ShareHandle handle = *decode(export_ring(exporter, 8));
    const Token genuine = handle.exporter.instance;
    handle.exporter.instance = platform::random_id();
    const Impostor late(abstract_address(handle.exporter.instance), [&](Raw& raw) {
      Raw behind(abstract_address(genuine));
      EXPECT_EQ(behind.hello(genuine).type, MessageType::kWelcome);
      Message answer = message_of(MessageType::kWelcome);
      answer.token = handle.exporter.instance;
      reply(raw, heard(raw), answer);
      while (!raw.hung_up) {
        const auto asked = raw.next(10ms);
        if (!asked) continue;
        if (asked->message.type == MessageType::kRelease) {
          behind.send(asked->message);
          continue;
        }
        std::this_thread::sleep_for(40ms);
        const Message granted = behind.ask(asked->message);
        reply(raw, asked->message, granted, std::move(behind.received));
      }
    });
    return say_and_stay(socket, encode(handle));
  });
  const auto handle = producer.said<gpumem_share_handle>();
  for (const uint64_t timeout_ns : {uint64_t{200'000'000}, uint64_t{600'000'000'000}}) {
    const gpumem_status wanted = timeout_ns < 1'000'000'000 ? GPUMEM_ERROR_BUSY : GPUMEM_SUCCESS;
    gpumem_ring_open_desc desc = GPUMEM_RING_OPEN_DESC_INIT;
    desc.timeout_ns = timeout_ns;
    gpumem_ring ring = nullptr;
    gpumem_error error = GPUMEM_ERROR_INIT;
    EXPECT_EQ(gpumem_ring_open(other, &handle, &desc, &ring, &error), wanted) << error.message;
    EXPECT_EQ(gpumem_ring_destroy(ring, nullptr), GPUMEM_SUCCESS);
  }
  other.close();
}

// A ring is claimed before its parts are. Whoever cannot reach its producer but over the connection that
// brought the handle may try again.
TEST_F(ShareServerTest, ipc_7_a_ring_that_could_not_be_opened_may_be_opened_again) {
  Elsewhere producer([](int socket) {
    const Opened exporter;
    const gpumem_share_handle handle = export_ring(exporter, 2);
    EXPECT_EQ(gpumem_share_send(exporter, &handle, socket, nullptr, nullptr), GPUMEM_SUCCESS);
    return say_and_stay(socket, handle);
  });
  gpumem_share_handle received{};
  ASSERT_EQ(gpumem_share_receive(other, producer.socket(), GPUMEM_TIMEOUT_INFINITE, &received, nullptr),
            GPUMEM_SUCCESS);
  const auto exported = producer.said<gpumem_share_handle>();
  gpumem_ring first = nullptr;
  ASSERT_EQ(gpumem_ring_open(other, &exported, nullptr, &first, nullptr), GPUMEM_SUCCESS);
  ShareHandle unreachable = *decode(received);
  unreachable.exporter.instance = platform::random_id();
  received = encode(unreachable);
  gpumem_ring second = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_ring_open(other, &received, nullptr, &second, &error), GPUMEM_ERROR_LIMIT_EXCEEDED)
      << error.message;
  EXPECT_EQ(gpumem_ring_destroy(first, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_ring_open(other, &received, nullptr, &second, &error), GPUMEM_SUCCESS) << error.message;
  EXPECT_EQ(gpumem_ring_destroy(second, nullptr), GPUMEM_SUCCESS);
  other.close();
}

// What came with the handle, and what the exporter grants.
TEST_F(ShareServerTest, WhatIsFetchedNeedsTwiceItsDescriptors) {
  constexpr uint64_t kBlocks = 30;
  const Elsewhere elsewhere([&](int socket) {
    const Opened exporter;
    gpumem_device device = nullptr;
    EXPECT_EQ(gpumem_device_get(exporter, 0, &device, nullptr), GPUMEM_SUCCESS);
    uint64_t unit = 0;
    const gpumem_physical_desc physical = GPUMEM_PHYSICAL_DESC_INIT;
    EXPECT_EQ(gpumem_physical_get_granularity(device, &physical, &unit, nullptr, nullptr), GPUMEM_SUCCESS);
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.reserve = kBlocks * unit;
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    gpumem_buffer buffer = nullptr;
    EXPECT_EQ(gpumem_buffer_create(device, &desc, &buffer, nullptr), GPUMEM_SUCCESS);
    for (uint64_t blocks = 1; blocks <= kBlocks; ++blocks)
      EXPECT_EQ(gpumem_buffer_resize(buffer, blocks * unit, nullptr), GPUMEM_SUCCESS);
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    EXPECT_EQ(gpumem_buffer_get_info(buffer, &info, nullptr), GPUMEM_SUCCESS);
    const gpumem_share_handle handle = export_at(exporter, info.base);
    EXPECT_EQ(decode(handle)->fd_count, kBlocks);
    gpumem_hub hub = nullptr;
    const gpumem_hub_desc at = hub_desc();
    EXPECT_EQ(gpumem_hub_open(exporter, &at, &hub, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_hub_publish(hub, "n", &handle, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
    return say_and_stay(socket, true);
  });
  ASSERT_TRUE(elsewhere.said<bool>());
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  {
    const DescriptorLimit limit(test::open_files() + 2 * kBlocks + kBlocks / 2);
    gpumem_share_handle handle;
    EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_SUCCESS);
    gpumem_error error = GPUMEM_ERROR_INIT;
    gpumem_memory memory = nullptr;
    EXPECT_EQ(gpumem_share_import(other, &handle, nullptr, 0, nullptr, nullptr, &memory, &error),
              GPUMEM_SUCCESS)
        << error.message;
    EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS);
  }
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// All come over the connection of the link, which is one.
TEST_F(ShareServerTest, WhatIsFetchedCountsItsDescriptorsAlone) {
  gpumem_hub_desc desc = hub_desc();
  desc.names_max = 200;
  gpumem_hub const hub = open_hub(desc);
  std::vector<std::string> names;
  for (int i = 0; i < 150; ++i) {
    names.push_back(std::to_string(i));
    const gpumem_share_handle handle = export_at(instance, shared_buffer(instance, 1));
    ASSERT_EQ(gpumem_hub_publish(hub, names.back().c_str(), &handle, nullptr, nullptr, nullptr),
              GPUMEM_SUCCESS);
  }
  gpumem_link link = nullptr;
  ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
  const DescriptorLimit limit(2 * (names.size() + 1) +
                              300);  // those of the exporter too, which is this process
  gpumem_share_handle handle;
  gpumem_error error = GPUMEM_ERROR_INIT;
  for (const std::string& name : names)
    ASSERT_EQ(gpumem_link_fetch(link, name.c_str(), nullptr, &handle, &error), GPUMEM_SUCCESS)
        << error.message;
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// As one that a debugger has stopped.
TEST_F(ShareServerTest, ClosingWaitsForNoExporter) {
  const ShareHandle handle = handle_of_impostor(other, 1);
  std::atomic<bool> asked{false};
  const Impostor impostor(abstract_address(handle.exporter.instance), [&](Raw& raw) {
    Message answer = message_of(MessageType::kWelcome);
    answer.token = handle.exporter.instance;
    reply(raw, heard(raw), answer);
    asked = heard(raw).type == MessageType::kClaim;
    raw.ends();
  });
  const gpumem_share_handle given = encode(handle);
  gpumem_status status = GPUMEM_SUCCESS;
  std::thread importer([&] {
    gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
    desc.timeout_ns = std::chrono::nanoseconds(kPatience).count();
    gpumem_memory memory = nullptr;
    status = gpumem_share_import(other, &given, nullptr, 0, &desc, nullptr, &memory, nullptr);
  });
  EXPECT_TRUE(eventually([&] { return asked.load(); }));
  other.close();
  importer.join();
  EXPECT_EQ(status, GPUMEM_ERROR_CLOSED) << "it did not wait for its time limit";
}

// The message blames the hub, since the caller has passed no descriptors; and none of them stays here.
TEST_F(ShareServerTest, DescriptorsThatAHubLiesAboutAreClosed) {
  ShareHandle handle = *decode(export_at(instance, shared_buffer(instance, 1)));
  for (const bool said : {false, true}) {
    handle.token = platform::random_id();
    auto ends = platform::socket_pair();  // instead of memory
    Descriptors sent;
    sent.push_back(std::move(ends->theirs));
    if (said) set_files(sent, handle);
    const Impostor impostor(address(), [&](Raw& raw) {
      welcome(raw);
      Message answer = message_of(MessageType::kGranted);
      answer.handle = handle;
      reply(raw, heard(raw), answer, std::move(sent));
      raw.ends();
    });
    gpumem_link link = nullptr;
    ASSERT_EQ(connect(&link), GPUMEM_SUCCESS);
    gpumem_share_handle fetched{};
    gpumem_error error = GPUMEM_ERROR_INIT;
    gpumem_status status = gpumem_link_fetch(link, "n", nullptr, &fetched, &error);
    if (said) {
      EXPECT_EQ(status, GPUMEM_SUCCESS) << error.message;
      gpumem_memory memory = nullptr;
      status = gpumem_share_import(other, &fetched, nullptr, 0, nullptr, nullptr, &memory, &error);
    }
    EXPECT_EQ(status, GPUMEM_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.message).find("do not trust the process"), std::string::npos)
        << error.message;
    EXPECT_TRUE(Raw(std::move(ends->ours)).ends()) << "its other end is closed";
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  }
}

// An exporter that other processes were told to ask.
TEST_F(ShareServerTest, AnExporterThatLiesIsNotBelieved) {
  gpumem_share_handle const bytes = export_at(instance, shared_buffer(instance, 1));
  const auto own_files = [&] {
    int32_t number = -1;
    uint32_t count = 0;
    EXPECT_EQ(gpumem_share_get_fds(instance, &bytes, &number, 1, &count, nullptr), GPUMEM_SUCCESS);
    Descriptors made;
    made.emplace_back(number);
    return made;
  };
  uint8_t instances = 100;
  // Imports the same handle from an impostor, who is asked to grant it.
  const auto imported_from = [&](const std::function<void(Raw&, const Message&, ShareHandle)>& grant,
                                 uint64_t timeout_ns = 0) {
    ShareHandle handle = *decode(bytes);
    // Another process may run this test at the same time.
    handle.exporter.instance = platform::random_id();
    handle.token.fill(++instances);
    const Impostor impostor(abstract_address(handle.exporter.instance), [&](Raw& raw) {
      Message answer = message_of(MessageType::kWelcome);
      answer.token = handle.exporter.instance;
      reply(raw, heard(raw), answer);
      grant(raw, heard(raw), handle);
      raw.ends(1s);
    });
    const gpumem_share_handle given = encode(handle);
    gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
    desc.timeout_ns = timeout_ns;
    gpumem_memory memory = nullptr;
    const gpumem_status status =
        gpumem_share_import(other, &given, nullptr, 0, &desc, nullptr, &memory, nullptr);
    EXPECT_EQ(memory != nullptr, status == GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS);
    return status;
  };
  const auto granted = [](Raw& raw, const Message& asked, const ShareHandle& handle,
                          Descriptors descriptors) {
    Message answer = message_of(MessageType::kGranted);
    answer.handle = handle;
    answer.handle.fd_count = static_cast<uint32_t>(descriptors.size());
    reply(raw, asked, answer, std::move(descriptors));
  };
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, const ShareHandle& handle) {
              granted(raw, asked, handle, own_files());
            }),
            GPUMEM_SUCCESS);
  const uint64_t before = test::open_files();
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, ShareHandle handle) {
              handle.token.fill(1);
              granted(raw, asked, handle, own_files());
            }),
            GPUMEM_ERROR_PEER_GONE)
      << "what was not asked for";
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, ShareHandle handle) {
              handle.buffer_id += 1;
              granted(raw, asked, handle, own_files());
            }),
            GPUMEM_ERROR_INVALID_ARGUMENT)
      << "other memory";
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, const ShareHandle& handle) {
              granted(raw, asked, handle, files(1));
            }),
            GPUMEM_ERROR_INVALID_ARGUMENT)
      << "a file of nothing, which a touch would fail on";
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, const ShareHandle& handle) {
              Descriptors ends;
              ends.push_back(std::move(platform::socket_pair()->ours));
              granted(raw, asked, handle, std::move(ends));
            }),
            GPUMEM_ERROR_INVALID_ARGUMENT)
      << "a socket";
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, const ShareHandle& handle) {
              granted(raw, asked, handle, files(1000));
            }),
            GPUMEM_ERROR_PEER_GONE)
      << "a thousand, of which no block has a page";
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, const ShareHandle& handle) {
              granted(raw, asked, handle, {});
            }),
            GPUMEM_ERROR_INVALID_ARGUMENT)
      << "none";
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, ShareHandle handle) {
              handle.size *= 2;
              EXPECT_TRUE(write_blocks(std::vector<uint64_t>{handle.size}, handle));
              granted(raw, asked, handle, own_files());
            }),
            GPUMEM_ERROR_INVALID_ARGUMENT)
      << "larger than the file";
  EXPECT_EQ(imported_from([&](Raw& raw, const Message& asked, ShareHandle) {
              Message refusal = message_of(MessageType::kRefused);
              refusal.status = GPUMEM_ERROR_STALE_HANDLE;
              refusal.text = std::string(200, '%');
              reply(raw, asked, refusal);
            }),
            GPUMEM_ERROR_STALE_HANDLE);
  EXPECT_EQ(imported_from([](Raw&, const Message&, const ShareHandle&) {}, 50'000'000), GPUMEM_ERROR_BUSY)
      << "no answer";
  std::atomic<bool> given_back{false};
  EXPECT_EQ(imported_from(
                [&](Raw& raw, const Message& asked, const ShareHandle& handle) {
                  std::this_thread::sleep_for(600ms);
                  granted(raw, asked, handle, own_files());
                  given_back = heard(raw).type == MessageType::kRelease || raw.hung_up;
                },
                50'000'000),
            GPUMEM_ERROR_BUSY);
  EXPECT_TRUE(given_back) << "what is granted too late is not kept";
  EXPECT_TRUE(eventually([&] { return test::open_files() <= before; }));
  gpumem_kind_stats stats = GPUMEM_KIND_STATS_INIT;
  EXPECT_EQ(gpumem_stats_get_kind(other, GPUMEM_KIND_IMPORTED, &stats, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(stats.live_count, 0U);
}

// It may be in the hands of another user, who knows more handles.
TEST_F(ShareServerTest, ipc_14_a_connection_that_came_with_a_handle_gives_nothing_else) {
  const Token given = decode(export_at(instance, shared_buffer(instance, 1)))->token;
  const Token secret = decode(export_at(instance, shared_buffer(instance, 1)))->token;
  auto lent = inside(instance)->share_server().lend(given, 0, own_process());
  ASSERT_TRUE(lent);
  Raw receiver(std::move(lent->end));
  Message claim = message_of(MessageType::kClaim);
  for (const Token& first : {secret, given, secret}) {
    claim.token = first;
    const Message answer = receiver.ask(claim);
    EXPECT_EQ(answer.type, first == given ? MessageType::kGranted : MessageType::kRefused);
    EXPECT_EQ(answer.status == GPUMEM_ERROR_PERMISSION_DENIED, first != given);
    EXPECT_EQ(receiver.received.empty(), first != given);
  }
}

// It may be kept by who has imported, and freed again, what it came with.
TEST_F(ShareServerTest, AConnectionThatCameWithAHandleEndsWhenItHasClaimedNothingForItsLease) {
  const Token given = decode(export_at(instance, shared_buffer(instance, 1)))->token;
  auto lent = inside(instance)->share_server().lend(given, kMessageTime, own_process());
  ASSERT_TRUE(lent);
  Raw receiver(std::move(lent->end));
  Message message = message_of(MessageType::kClaim);
  message.token = given;
  ASSERT_EQ(receiver.ask(message).type, MessageType::kGranted);
  message.type = MessageType::kRelease;
  receiver.send(message);
  EXPECT_FALSE(receiver.next());
  EXPECT_TRUE(receiver.hung_up);
}

TEST_F(ShareServerTest, AProcessHoldsAsManyExportsAsItMay) {
  gpumem_device device = nullptr;
  ASSERT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = 1;
  desc.require = GPUMEM_MEMORY_SHAREABLE;
  gpumem_memory memory = nullptr;
  ASSERT_EQ(gpumem_memory_create(device, &desc, &memory, nullptr), GPUMEM_SUCCESS);
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  ASSERT_EQ(gpumem_memory_get_info(memory, &info, nullptr), GPUMEM_SUCCESS);
  std::optional<Raw> holder;
  Message answer;
  // What was claimed and then revoked is held still.
  for (int i = 0; i < 4097; ++i) {
    gpumem_share_handle bytes;
    ASSERT_EQ(gpumem_share_export(instance, info.device_pointer, nullptr, &bytes, nullptr), GPUMEM_SUCCESS);
    const ShareHandle handle = *decode(bytes);
    if (!holder) {
      holder.emplace(abstract_address(handle.exporter.instance));
      ASSERT_EQ(holder->hello(handle.exporter.instance).type, MessageType::kWelcome);
    }
    Message claim = message_of(MessageType::kClaim);
    claim.token = handle.token;
    claim.number = static_cast<uint64_t>(i) + 10;
    holder->send(claim);
    do {
      answer = heard(*holder);
    } while (answer.type == MessageType::kWithdrawn);
    if (i < 4096) {
      ASSERT_EQ(answer.type, MessageType::kGranted) << i;
      ASSERT_EQ(gpumem_share_revoke(instance, &bytes, nullptr), GPUMEM_SUCCESS);
    }
  }
  EXPECT_EQ(answer.status, GPUMEM_ERROR_LIMIT_EXCEEDED);
  EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_ERROR_BUSY);
  holder.reset();
  EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS) << "all claims ended with the connection";
}

// ---- what a peer says of another exporter ----

// Device memory or a buffer that is shared; its bytes all have one value.
struct SharedBytes {
  gpumem_memory memory = nullptr;
  gpumem_share_handle whole{};
  gpumem_share_handle inside{};  // of its second half
};
SharedBytes share_bytes(gpumem_instance instance, uint64_t size, uint8_t value, bool blocks) {
  SharedBytes made;
  void* pointer = nullptr;
  if (blocks) {
    pointer = shared_buffer(instance, size);
  } else {
    gpumem_device device = nullptr;
    EXPECT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = GPUMEM_KIND_DEVICE;
    desc.size = size;
    desc.require = GPUMEM_MEMORY_SHAREABLE;
    EXPECT_EQ(gpumem_memory_create(device, &desc, &made.memory, nullptr), GPUMEM_SUCCESS);
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    EXPECT_EQ(gpumem_memory_get_info(made.memory, &info, nullptr), GPUMEM_SUCCESS);
    pointer = info.device_pointer;
  }
  EXPECT_EQ(gpumem_fill(instance, pointer, size, value, 1, nullptr), GPUMEM_SUCCESS);
  made.whole = export_at(instance, pointer);
  made.inside = export_at(instance, static_cast<uint8_t*>(pointer) + size / 2);
  return made;
}

constexpr uint64_t kLarge = uint64_t{4} << 20;
constexpr uint8_t kGenuine = 0xA1;
constexpr uint8_t kForged = 0xF0;

// The process that exports. It sends its handles, and then each one that it is asked for with its connection.
class GenuineExporter {
 public:
  // Sends the blocks over socket().
  void send_blocks() const { EXPECT_EQ(write(socket(), "s", 1), 1); }
  int socket() const { return process_.socket(); }
  void end() { process_.end(); }

 private:
  struct Handles {
    gpumem_share_handle memory{};
    gpumem_share_handle inside{};
    gpumem_share_handle blocks{};
  };
  static bool run(int socket) {
    Opened instance;
    const Handles made{share_bytes(instance, kLarge, kGenuine, false).whole,
                       share_bytes(instance, kLarge, kGenuine, false).inside,
                       share_bytes(instance, kLarge, kGenuine, true).whole};
    if (write(socket, &made, sizeof made) != ssize_t{sizeof made}) return false;
    for (char order = 0; read(socket, &order, 1) == 1;) {
      if (gpumem_share_send(instance, &made.blocks, socket, nullptr, nullptr) != GPUMEM_SUCCESS) return false;
    }
    return true;
  }

  Elsewhere process_{run};

 public:
  const Handles handles = process_.said<Handles>();
};

// A hub that gives its own memory whatever handle it likes.
class LyingHub {
 public:
  // Shares `own`, memory of this process. What it says of it is the truth at first.
  LyingHub(const std::string& address, const gpumem_share_handle& own)
      : raw_(abstract_address(decode(own)->exporter.instance)) {
    EXPECT_EQ(raw_.hello(decode(own)->exporter.instance).type, MessageType::kWelcome);
    said_ = share(own);
    hub_.emplace(address, [this](Raw& link) { speak(link); });
  }
  ~LyingHub() {
    over_ = true;
    hub_.reset();
  }

  // Says of its memory from now on what is true of the other one, but for what it needs itself.
  void forge(const gpumem_share_handle& genuine, bool same_token) {
    const ShareHandle handle = *decode(genuine);
    const std::lock_guard lock(mutex_);
    said_.exporter = handle.exporter;
    said_.buffer_id = handle.buffer_id;
    if (same_token) said_.token = handle.token;
  }
  // Gives the files of this memory from now on.
  void give(const gpumem_share_handle& own) {
    const std::lock_guard lock(mutex_);
    said_.files = share(own).files;
  }

 private:
  ShareHandle share(const gpumem_share_handle& own) {
    Message claim = message_of(MessageType::kClaim);
    claim.token = decode(own)->token;
    return raw_.ask(claim).handle;
  }
  void speak(Raw& link) {
    Raw holder(welcome(link));
    while (!over_ && !(link.hung_up && holder.hung_up)) {
      for (Raw* const from : {&link, &holder}) {
        const auto asked = from->next(2ms);
        if (!asked || asked->message.type == MessageType::kRelease) continue;
        Message granted = message_of(MessageType::kGranted);
        Descriptors copies;
        const std::lock_guard lock(mutex_);
        granted.handle = said_;
        for (const Descriptor& one : raw_.received) {
          auto copy = platform::duplicate(one.get());
          copies.push_back(std::move(*copy));
        }
        reply(*from, asked->message, granted, std::move(copies));
      }
    }
  }

  Raw raw_;
  std::mutex mutex_;  // for what is given
  ShareHandle said_;
  std::atomic<bool> over_{false};
  std::optional<Impostor> hub_;
};

class ForgedHandleTest : public ShareServerTest {
 public:
  struct Imported {
    gpumem_status status = GPUMEM_ERROR_INTERNAL;
    gpumem_memory memory = nullptr;
    void* pointer = nullptr;
  };
  Imported import(const gpumem_share_handle& handle) {
    Imported made;
    made.status =
        gpumem_share_import(other, &handle, nullptr, 0, nullptr, &made.pointer, &made.memory, nullptr);
    return made;
  }
  // The first byte of what was imported.
  int byte_of(const Imported& made) {
    uint8_t byte = 0;
    EXPECT_EQ(made.status, GPUMEM_SUCCESS);
    if (made.status != GPUMEM_SUCCESS) return -1;
    EXPECT_EQ(gpumem_copy(other, &byte, made.pointer, 1, nullptr, nullptr), GPUMEM_SUCCESS);
    return byte;
  }
  gpumem_import_info info_of(const Imported& made) {
    gpumem_import_info info = GPUMEM_IMPORT_INFO_INIT;
    EXPECT_EQ(gpumem_memory_get_import_info(made.memory, &info, nullptr), GPUMEM_SUCCESS);
    return info;
  }
  gpumem_link link() {
    gpumem_link made = nullptr;
    EXPECT_EQ(connect(&made), GPUMEM_SUCCESS);
    return made;
  }
  gpumem_share_handle fetch(gpumem_link link) {
    gpumem_share_handle handle{};
    EXPECT_EQ(gpumem_link_fetch(link, "n", nullptr, &handle, nullptr), GPUMEM_SUCCESS);
    return handle;
  }
};

// Of each version it says that a newer one is there, and of the second that it is granted.
TEST_F(ForgedHandleTest, hub_3_versions_that_are_replaced_meanwhile_are_passed_over) {
  const gpumem_share_handle own = share_bytes(instance, kLarge, kGenuine, true).whole;
  Raw exporter(abstract_address(decode(own)->exporter.instance));
  ASSERT_EQ(exporter.hello(decode(own)->exporter.instance).type, MessageType::kWelcome);
  Message claim = message_of(MessageType::kClaim);
  claim.token = decode(own)->token;
  const Message claimed = exporter.ask(claim);
  std::vector<uint64_t> fetched;
  std::optional<Impostor> impostor(std::in_place, address(), [&](Raw& raw) {
    Raw holder(welcome(raw));
    while (!(raw.hung_up && holder.hung_up)) {
      for (Raw* const from : {&raw, &holder}) {
        const auto asked = from->next(2ms);
        if (!asked || asked->message.type == MessageType::kRelease) continue;
        Message answer = message_of(MessageType::kRefused);
        Descriptors copies;
        if (asked->message.type == MessageType::kWait) {
          answer = message_of(MessageType::kEntry);
          answer.entry.name = "n";
          answer.entry.version = asked->message.version + 1;
          answer.entry.size = uint64_t{1} << 40;
          answer.entry.access = GPUMEM_ACCESS_READ;
        } else {
          if (from == &raw) fetched.push_back(asked->message.version);
          // The first is gone when it is fetched, the second when it is claimed.
          answer.status = from == &raw ? GPUMEM_ERROR_NOT_FOUND : GPUMEM_ERROR_STALE_HANDLE;
          if (fetched.back() >= (from == &raw ? 2U : 3U)) {
            answer = message_of(MessageType::kGranted);
            answer.handle = claimed.handle;
            for (const Descriptor& one : exporter.received)
              copies.push_back(std::move(*platform::duplicate(one.get())));
          }
        }
        reply(*from, asked->message, answer, std::move(copies));
      }
    }
  });
  gpumem_link const from = link();
  gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
  Imported made;
  made.status = gpumem_link_import_next(from, "n", 0, GPUMEM_TIMEOUT_INFINITE, nullptr, &entry, &made.pointer,
                                        &made.memory, nullptr);
  EXPECT_EQ(byte_of(made), kGenuine);
  EXPECT_EQ(entry.version, 3U);
  EXPECT_EQ(entry.size, claimed.handle.size) << "and not what the hub says";
  EXPECT_EQ(entry.access, claimed.handle.access);
  EXPECT_EQ(entry.way, claimed.handle.way);
  EXPECT_EQ(gpumem_memory_destroy(made.memory, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_link_close(from, nullptr), GPUMEM_SUCCESS);
  impostor.reset();  // its thread has ended
  EXPECT_EQ(fetched, (std::vector<uint64_t>{1, 2, 3}));
}

// Its memory has 4 KiB, and the genuine handle is of a byte 2 MiB behind the first.
TEST_F(ForgedHandleTest, TheIdOfAnotherExporterGivesNobodyItsImports) {
  const GenuineExporter genuine;
  for (const bool same_token : {false, true}) {
    LyingHub hub(address(), share_bytes(instance, 4096, kForged, false).whole);
    hub.forge(genuine.handles.inside, same_token);
    gpumem_link const hub_link = link();
    const Imported forged = import(fetch(hub_link));
    EXPECT_EQ(byte_of(forged), kForged) << "a hub may share its own memory";
    const Imported made = import(genuine.handles.inside);
    EXPECT_EQ(byte_of(made), kGenuine);
    EXPECT_NE(made.memory, forged.memory);
    const Imported again = import(genuine.handles.inside);
    EXPECT_EQ(again.memory, made.memory);
    EXPECT_EQ(info_of(made).count, 2U);
    EXPECT_EQ(info_of(forged).count, 1U);
    const Imported last = import(fetch(hub_link));
    EXPECT_EQ(byte_of(last), kForged) << "nor the other way round";
    for (const Imported& one : {made, again, forged, last})
      EXPECT_EQ(gpumem_memory_destroy(one.memory, nullptr), GPUMEM_SUCCESS);
  }
}

// The exporter, the hub and the importer are three processes.
TEST_F(ForgedHandleTest, AHubElsewhereGivesNobodyTheImportsOfAnotherExporter) {
  const GenuineExporter genuine;
  for (const gpumem_share_handle& handle : {genuine.handles.inside, genuine.handles.blocks}) {
    const bool blocks = decode(handle)->way == GPUMEM_SHARE_WAY_POSIX_FD;
    const Elsewhere elsewhere([&](int socket) {
      const Opened own;
      LyingHub hub(address(), share_bytes(own, blocks ? kLarge : 4096, kForged, blocks).whole);
      hub.forge(handle, true);
      return say_and_stay(socket, true);
    });
    ASSERT_TRUE(elsewhere.said<bool>());
    gpumem_link const hub_link = link();
    const Imported forged = import(fetch(hub_link));
    const Imported made = import(handle);
    EXPECT_EQ(byte_of(forged), kForged);
    EXPECT_EQ(byte_of(made), kGenuine);
    EXPECT_NE(made.memory, forged.memory);
    for (const Imported& one : {made, forged})
      EXPECT_EQ(gpumem_memory_destroy(one.memory, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_link_close(hub_link, nullptr), GPUMEM_SUCCESS);
  }
}

TEST_F(ForgedHandleTest, BlocksUnderTheTokenOfAnotherExporterAreNotMistakenForIts) {
  const GenuineExporter genuine;
  for (const bool genuine_first : {false, true}) {
    LyingHub hub(address(), share_bytes(instance, kLarge, kForged, true).whole);
    hub.forge(genuine.handles.blocks, true);
    Imported made;
    if (genuine_first) made = import(genuine.handles.blocks);
    const Imported forged = import(fetch(link()));
    if (!genuine_first) made = import(genuine.handles.blocks);
    EXPECT_EQ(byte_of(forged), kForged);
    EXPECT_EQ(byte_of(made), kGenuine);
    for (const Imported& one : {made, forged})
      EXPECT_EQ(gpumem_memory_destroy(one.memory, nullptr), GPUMEM_SUCCESS);
  }
}

// Also where an import has failed before, and nobody is there to ask.
TEST_F(ForgedHandleTest, WhatWasSentIsKeptUntilItIsImported) {
  GenuineExporter genuine;
  genuine.send_blocks();
  gpumem_share_handle handle;
  ASSERT_EQ(gpumem_share_receive(other, genuine.socket(), GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
            GPUMEM_SUCCESS);
  void* const taken = mmap(nullptr, 2 * kLarge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(taken, MAP_FAILED);
  gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
  desc.address = pointer_to(round_up(address_of(taken), kLarge));
  gpumem_memory memory = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  EXPECT_EQ(gpumem_share_import(other, &handle, nullptr, 0, &desc, nullptr, &memory, &error),
            GPUMEM_ERROR_ALREADY_EXISTS)
      << error.message;
  EXPECT_EQ(munmap(taken, 2 * kLarge), 0);
  genuine.end();
  const Imported made = import(handle);
  EXPECT_EQ(byte_of(made), kGenuine);
  EXPECT_EQ(gpumem_memory_destroy(made.memory, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ForgedHandleTest, WhatWasFetchedIsImportedByTheHandleThatWasFetched) {
  const GenuineExporter genuine;
  for (const gpumem_share_handle& handle : {genuine.handles.memory, genuine.handles.blocks}) {
    const bool blocks = decode(handle)->way == GPUMEM_SHARE_WAY_POSIX_FD;
    LyingHub hub(address(), share_bytes(instance, kLarge, kForged, blocks).whole);
    hub.forge(handle, true);
    const gpumem_share_handle fetched = fetch(link());
    EXPECT_EQ(byte_of(import(handle)), kGenuine);
    EXPECT_EQ(byte_of(import(fetched)), kForged) << "it waits for its own";
  }
}

// Also memory that stays mapped after its import.
TEST_F(ForgedHandleTest, WhatIsKeptMappedIsOfOneExporter) {
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = 3600'000'000'000;
  ASSERT_EQ(gpumem_share_set_cache(other, &cache, nullptr), GPUMEM_SUCCESS);
  const GenuineExporter genuine;
  LyingHub hub(address(), share_bytes(instance, kLarge, kForged, true).whole);
  hub.forge(genuine.handles.blocks, true);
  const Imported forged = import(fetch(link()));
  EXPECT_EQ(byte_of(forged), kForged);
  EXPECT_EQ(gpumem_memory_destroy(forged.memory, nullptr), GPUMEM_SUCCESS);
  const Imported made = import(genuine.handles.blocks);
  EXPECT_EQ(byte_of(made), kGenuine);
  EXPECT_EQ(gpumem_memory_destroy(made.memory, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(import(genuine.handles.blocks).pointer, made.pointer) << "its own is kept";
}

// Whoever sends the same memory again and again has the importer hold one connection for it.
TEST_F(ForgedHandleTest, OneClaimHoldsWhatIsKeptMapped) {
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = 3600'000'000'000;
  ASSERT_EQ(gpumem_share_set_cache(other, &cache, nullptr), GPUMEM_SUCCESS);
  const GenuineExporter genuine;
  const auto import_once = [&] {
    genuine.send_blocks();
    gpumem_share_handle handle;
    ASSERT_EQ(gpumem_share_receive(other, genuine.socket(), GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
              GPUMEM_SUCCESS);
    const Imported made = import(handle);
    EXPECT_EQ(byte_of(made), kGenuine);
    EXPECT_EQ(gpumem_memory_destroy(made.memory, nullptr), GPUMEM_SUCCESS);
  };
  import_once();
  const uint64_t before = test::open_files();
  for (int i = 0; i < 5; ++i)
    import_once();
  EXPECT_TRUE(eventually([&] { return test::open_files() == before; }))
      << test::open_files() << " of " << before;
}

// Whoever has claimed memory of another process sends it on, each time over a connection of its own and under
// another token.
class ResentTest : public ForgedHandleTest {
 protected:
  void claim(const gpumem_share_handle& genuine) {
    const ShareHandle said = *decode(genuine);
    exporter_.emplace(abstract_address(said.exporter.instance));
    ASSERT_EQ(exporter_->hello(said.exporter.instance).type, MessageType::kWelcome);
    Message claim = message_of(MessageType::kClaim);
    claim.token = said.token;
    granted_ = exporter_->ask(claim);
    ASSERT_EQ(granted_.type, MessageType::kGranted);
  }
  // Sends it. The granter of its connection is the last one.
  gpumem_share_handle receive_again() {
    auto ends = platform::socket_pair();
    Message pass = message_of(MessageType::kPass);
    pass.version = UINT64_MAX;
    pass.handle = granted_.handle;
    pass.handle.token = granted_.handle.token = platform::random_id();
    Descriptors sent = copies();
    sent.insert(sent.begin(), std::move(ends->theirs));
    send_packets(socket_->theirs, split_message(pass, std::move(sent)));
    gpumem_share_handle handle;
    EXPECT_EQ(gpumem_share_receive(other, socket_->ours.get(), GPUMEM_TIMEOUT_INFINITE, &handle, nullptr),
              GPUMEM_SUCCESS);
    granters.push_back(std::make_unique<Raw>(std::move(ends->ours)));
    return handle;
  }
  // Grants what the next message of the last connection claims.
  void grant() { reply(*granters.back(), heard(*granters.back()), granted_, copies()); }
  Imported import_again() {
    const gpumem_share_handle handle = receive_again();
    std::thread answers([&] { grant(); });
    const Imported made = import(handle);
    answers.join();
    EXPECT_EQ(byte_of(made), kGenuine);
    return made;
  }
  const Token& token() const { return granted_.handle.token; }  // the last one
  std::vector<std::unique_ptr<Raw>> granters;

 private:
  Descriptors copies() {
    Descriptors made;
    for (const Descriptor& one : exporter_->received)
      made.push_back(std::move(*platform::duplicate(one.get())));
    return made;
  }

  std::optional<Raw> exporter_;
  Message granted_;
  Result<platform::SocketPair> socket_ = platform::socket_pair();
};

// Only one of them has what came with the handle, and nobody else knows where it is from.
TEST_F(ResentTest, ThreadsThatImportOneHandleAtTheSameTimeShareIt) {
  const GenuineExporter genuine;
  for (const gpumem_share_handle& shared : {genuine.handles.memory, genuine.handles.blocks}) {
    claim(shared);
    const gpumem_share_handle handle = receive_again();
    Imported first;
    Imported second;
    Sleeper one([&] { first = import(handle); });
    Sleeper later([&] { second = import(handle); });
    grant();
    one.join();
    later.join();
    EXPECT_EQ(byte_of(first), kGenuine);
    EXPECT_EQ(byte_of(second), kGenuine);
    EXPECT_EQ(first.memory, second.memory);
    EXPECT_EQ(info_of(first).count, 2U);
    for (const Imported& each : {first, second})
      EXPECT_EQ(gpumem_memory_destroy(each.memory, nullptr), GPUMEM_SUCCESS);
  }
}

TEST_F(ResentTest, FourClaimsHoldMemoryWhateverItsTokens) {
  const GenuineExporter genuine;
  claim(genuine.handles.memory);
  const Imported first = import_again();
  for (int i = 0; i < 6; ++i) {
    const Imported again = import_again();
    EXPECT_EQ(again.memory, first.memory);
    EXPECT_EQ(gpumem_memory_destroy(again.memory, nullptr), GPUMEM_SUCCESS);
  }
  for (const size_t i : {size_t{1}, size_t{2}, size_t{3}})
    EXPECT_TRUE(granters[i]->ends()) << "the oldest but the first gives way";
  EXPECT_EQ(info_of(first).state, GPUMEM_IMPORT_LIVE);
  granters.pop_back();
  EXPECT_FALSE(granters.back()->ends(50ms));
  EXPECT_EQ(info_of(first).state, GPUMEM_IMPORT_LIVE) << "others hold it";
  EXPECT_EQ(byte_of(first), kGenuine);
  EXPECT_EQ(gpumem_memory_destroy(first.memory, nullptr), GPUMEM_SUCCESS);
  EXPECT_TRUE(granters.back()->ends());
}

// The connection of the first one says whether the exporter lives, also when that claim is withdrawn.
TEST_F(ResentTest, MemoryThatIsExportedAnewIsUsedOn) {
  const GenuineExporter genuine;
  claim(genuine.handles.memory);
  const Imported first = import_again();
  Message withdrawn = message_of(MessageType::kWithdrawn);
  withdrawn.token = token();
  granters.front()->send(withdrawn);
  EXPECT_TRUE(eventually([&] { return info_of(first).state == GPUMEM_IMPORT_WITHDRAWN; }));
  const Imported again = import_again();
  EXPECT_EQ(again.memory, first.memory);
  EXPECT_EQ(info_of(first).state, GPUMEM_IMPORT_LIVE);
  EXPECT_FALSE(granters.front()->next(50ms)) << "it is held on";
  EXPECT_FALSE(granters.front()->hung_up);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(gpumem_memory_destroy(first.memory, nullptr), GPUMEM_SUCCESS);
}

// Nobody imports it again.
TEST_F(ResentTest, WhatHasEndedIsNotKeptMapped) {
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = 3600'000'000'000;
  ASSERT_EQ(gpumem_share_set_cache(other, &cache, nullptr), GPUMEM_SUCCESS);
  const GenuineExporter genuine;
  claim(genuine.handles.blocks);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(gpumem_memory_destroy(import_again().memory, nullptr), GPUMEM_SUCCESS);
  const uint64_t before = test::open_files();
  granters.front().reset();
  EXPECT_TRUE(eventually([&] { return test::open_files() == before - 2; })) << "both ends";
  EXPECT_FALSE(granters.back()->ends(0ms));
}

TEST_F(ResentTest, WhatIsKeptMappedLeavesDescriptorsToOthers) {
  const DescriptorLimit limit(160);
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = 3600'000'000'000;
  ASSERT_EQ(gpumem_share_set_cache(other, &cache, nullptr), GPUMEM_SUCCESS);
  const GenuineExporter genuine;
  claim(genuine.handles.blocks);
  for (int i = 0; i < 25; ++i)
    EXPECT_EQ(gpumem_memory_destroy(import_again().memory, nullptr), GPUMEM_SUCCESS);
  size_t number = 0;
  for (const auto& granter : granters) {
    const bool kept = number++ >= 5;  // an eighth of the descriptors
    EXPECT_EQ(granter->ends(kept ? 0ms : kPatience), !kept) << number;
  }
}

// A hub that lives keeps no import of an exporter that has ended looking alive, even if it has the same
// memory.
TEST_F(ForgedHandleTest, TheStateIsThatOfWhoGrantedIt) {
  GenuineExporter genuine;
  const Imported made = import(genuine.handles.blocks);
  EXPECT_EQ(byte_of(made), kGenuine);
  LyingHub hub(address(), genuine.handles.blocks);
  const Imported passed_on = import(fetch(link()));
  EXPECT_EQ(byte_of(passed_on), kGenuine);
  EXPECT_NE(passed_on.memory, made.memory);
  genuine.end();
  EXPECT_TRUE(eventually([&] { return info_of(made).state == GPUMEM_IMPORT_PEER_GONE; }));
  EXPECT_EQ(info_of(passed_on).state, GPUMEM_IMPORT_LIVE);
}

// Its descriptors may be used without it, but only for the handle that they came with.
TEST_F(ForgedHandleTest, AConnectionToAnExporterThatEndedProvesNothingOfDescriptors) {
  GenuineExporter genuine;
  gpumem_share_handle waiting{};
  genuine.send_blocks();
  ASSERT_EQ(gpumem_share_receive(other, genuine.socket(), GPUMEM_TIMEOUT_INFINITE, &waiting, nullptr),
            GPUMEM_SUCCESS);
  // Whoever was given an end of a connection of the exporter passes it on, with other descriptors.
  genuine.send_blocks();
  std::vector<uint8_t> bytes(kPacketMax);
  ASSERT_EQ(*platform::wait_for(genuine.socket(), false, soon()), platform::Waited::kReady);
  auto got = platform::receive_some(genuine.socket(), bytes);
  ASSERT_TRUE(got);
  ASSERT_GE(got->descriptors.size(), 2U);
  bytes.resize(got->size);
  Message pass = *decode_message(bytes);
  const gpumem_share_handle own = share_bytes(instance, kLarge, kForged, true).whole;
  Descriptors descriptors;
  descriptors.push_back(std::move(got->descriptors.front()));
  int32_t number = -1;
  uint32_t count = 0;
  ASSERT_EQ(gpumem_share_get_fds(instance, &own, &number, 1, &count, nullptr), GPUMEM_SUCCESS);
  descriptors.emplace_back(number);
  pass.handle.files = value_of_files(std::array{number});
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  for (const Packet& packet : split_message(pass, std::move(descriptors)))
    ASSERT_TRUE(platform::send_some(ends->ours.get(), packet.bytes, packet.descriptors));
  gpumem_share_handle received{};
  ASSERT_EQ(gpumem_share_receive(other, ends->theirs.get(), GPUMEM_TIMEOUT_INFINITE, &received, nullptr),
            GPUMEM_SUCCESS);
  genuine.end();
  const Imported forged = import(received);
  EXPECT_EQ(byte_of(forged), kForged) << "whoever sent it could write there anyway";
  EXPECT_EQ(import(received).memory, forged.memory);
  EXPECT_EQ(byte_of(import(waiting)), kGenuine);
  EXPECT_EQ(import(genuine.handles.blocks).status, GPUMEM_ERROR_PEER_GONE);
}

// Whoever has seen a handle can listen at the address of its exporter once that has ended.
TEST_F(ForgedHandleTest, ipc_10_who_listens_in_place_of_an_exporter_that_ended_is_asked_nothing) {
  GenuineExporter genuine;
  genuine.end();
  const Token instance_id = decode(genuine.handles.memory)->exporter.instance;
  std::atomic<int> heard_of{0};
  const Impostor impostor(abstract_address(instance_id), [&](Raw& raw) {
    const Message asked = heard(raw);
    if (asked.type != MessageType::kHello) return;
    ++heard_of;
    Message answer = message_of(MessageType::kWelcome);
    answer.token = instance_id;
    reply(raw, asked, answer);
    heard(raw);
  });
  for (const gpumem_share_handle& given : {genuine.handles.memory, genuine.handles.blocks})
    EXPECT_EQ(import(given).status, GPUMEM_ERROR_PEER_GONE);
  EXPECT_EQ(heard_of, 0);
}

TEST_F(ForgedHandleTest, ipc_10_another_user_who_listens_there_does_not_hide_its_end) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  GenuineExporter genuine;
  genuine.end();
  const auto impostor =
      listening_as_nobody(abstract_address(decode(genuine.handles.memory)->exporter.instance));
  ASSERT_TRUE(impostor);
  for (const gpumem_share_handle& given : {genuine.handles.memory, genuine.handles.blocks})
    EXPECT_EQ(import(given).status, GPUMEM_ERROR_PEER_GONE);
}

// Two publishers, one after the other, who say the same of their memory.
TEST_F(ForgedHandleTest, AKeeperThatGrantsOtherFilesGrantsOtherMemory) {
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  const SharedBytes bytes[] = {share_bytes(instance, kLarge, kForged, true),
                               share_bytes(instance, kLarge, kGenuine, true)};
  for (const SharedBytes& one : bytes) {
    Raw publisher(address());
    ASSERT_TRUE(publisher.hello().keeper);
    Message publish = message_of(MessageType::kPublish, "n");
    publish.handle = *decode(one.whole);
    publish.handle.token.fill(1);
    publish.handle.buffer_id = 1;
    std::vector<int32_t> numbers(publish.handle.fd_count, -1);
    uint32_t count = 0;
    ASSERT_EQ(
        gpumem_share_get_fds(instance, &one.whole, numbers.data(), publish.handle.fd_count, &count, nullptr),
        GPUMEM_SUCCESS);
    Descriptors descriptors;
    for (const int32_t number : numbers)
      descriptors.emplace_back(number);
    ASSERT_EQ(publisher.ask(publish, std::move(descriptors)).type, MessageType::kPublished);
    EXPECT_EQ(byte_of(import(fetch(link()))), &one == bytes ? kForged : kGenuine);
    EXPECT_EQ(publisher.ask(message_of(MessageType::kWithdraw, "n")).type, MessageType::kDone);
  }
}

// Also where the importer has not heard yet that the first is withdrawn.
TEST_F(ForgedHandleTest, OtherFilesUnderATokenThatIsImportedAreOtherMemory) {
  const SharedBytes first = share_bytes(instance, kLarge, kForged, true);
  const SharedBytes second = share_bytes(instance, kLarge, kGenuine, true);
  LyingHub hub(address(), first.whole);
  gpumem_link const hub_link = link();
  const Imported before = import(fetch(hub_link));
  EXPECT_EQ(byte_of(before), kForged);
  hub.give(second.whole);
  const Imported after = import(fetch(hub_link));
  EXPECT_EQ(byte_of(after), kGenuine);
  const Imported again = import(fetch(hub_link));
  EXPECT_EQ(again.memory, after.memory);
  for (const Imported& one : {before, after, again})
    EXPECT_EQ(gpumem_memory_destroy(one.memory, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ForgedHandleTest, SizesAndOffsetsAreTheExportersOnEveryPath) {
  gpumem_import_cache_desc cache = GPUMEM_IMPORT_CACHE_DESC_INIT;
  cache.idle_ns = 3600'000'000'000;
  ASSERT_EQ(gpumem_share_set_cache(other, &cache, nullptr), GPUMEM_SUCCESS);
  const GenuineExporter genuine;
  gpumem_hub const hub = open_hub(hub_desc());
  gpumem_link const hub_link = link();
  const auto expect_checked = [&](const gpumem_share_handle& given, int value, const char* way) {
    ShareHandle larger = *decode(given);
    larger.size *= 2;
    ShareHandle beyond = *decode(given);
    beyond.offset = beyond.size;
    const auto refused = [&](const char* when) {
      for (const ShareHandle& handle : {larger, beyond})
        EXPECT_EQ(import(encode(handle)).status, GPUMEM_ERROR_INVALID_ARGUMENT) << way << ", " << when;
    };
    refused("the first import");
    const Imported made = import(given);
    EXPECT_EQ(byte_of(made), value) << way;
    refused("what is imported already");
    EXPECT_EQ(info_of(made).count, 1U) << way;
    EXPECT_EQ(gpumem_memory_destroy(made.memory, nullptr), GPUMEM_SUCCESS);
    refused("what is kept mapped");
  };
  for (const gpumem_share_handle& given : {genuine.handles.memory, genuine.handles.blocks})
    expect_checked(given, kGenuine, "a handle");
  genuine.send_blocks();
  gpumem_share_handle received{};
  ASSERT_EQ(gpumem_share_receive(other, genuine.socket(), GPUMEM_TIMEOUT_INFINITE, &received, nullptr),
            GPUMEM_SUCCESS);
  expect_checked(received, kGenuine, "a socket");
  const gpumem_share_handle own = share_bytes(instance, kLarge, kForged, true).whole;
  ASSERT_EQ(gpumem_hub_publish(hub, "n", &own, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  expect_checked(fetch(hub_link), kForged, "a link");
}

TEST_F(ForgedHandleTest, NobodyPublishesInTheNameOfAProcessThatTheKeeperSees) {
  const GenuineExporter genuine;
  gpumem_hub_desc desc = hub_desc();
  desc.flags = GPUMEM_HUB_KEEPER;
  open_hub(desc);
  Raw publisher(address());
  ASSERT_TRUE(publisher.hello().keeper);
  Message publish = publish_of("n", 1);
  publish.handle.exporter = decode(genuine.handles.blocks)->exporter;
  EXPECT_EQ(publisher.ask(publish, files(1)).status, GPUMEM_ERROR_PERMISSION_DENIED);
  publish.handle.exporter.pid = getpid();
  EXPECT_EQ(publisher.ask(publish, files(1)).type, MessageType::kPublished);
  // Nor by a process namespace that it made up.
  publish.handle.exporter = decode(genuine.handles.blocks)->exporter;
  ++publish.handle.exporter.process_namespace;
  EXPECT_EQ(publisher.ask(publish, files(1)).type, MessageType::kPublished);
  const Message granted = publisher.ask(message_of(MessageType::kFetch, "n"));
  EXPECT_EQ(granted.handle.exporter.pid, getpid());
  EXPECT_EQ(granted.handle.exporter.process_namespace, platform::process_namespace());
}

TEST_F(ForgedHandleTest, ARingOwnsNothingThatWasImportedAsSomethingElse) {
  const GenuineExporter genuine;
  ImportRequest request;
  request.handle = *decode(genuine.handles.memory);
  request.for_ring = true;
  const auto memory_of = [](uint64_t handle) { return acquire<Memory>(platform::thread_record(), handle); };
  const Imported made = import(genuine.handles.memory);
  Ref<Memory> memory = memory_of(reinterpret_cast<uintptr_t>(made.memory));
  ASSERT_TRUE(memory);
  const auto owner = std::static_pointer_cast<Instance>(memory->shared_context());
  memory = {};
  auto owned = owner->imports().import_memory(request, nullptr);
  ASSERT_FALSE(owned);
  EXPECT_EQ(owned.error().status, GPUMEM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(info_of(made).count, 1U);
  EXPECT_EQ(gpumem_memory_destroy(made.memory, nullptr), GPUMEM_SUCCESS);
  owned = owner->imports().import_memory(request, nullptr);
  ASSERT_TRUE(owned) << owned.error().message;
  EXPECT_EQ(import(genuine.handles.memory).status, GPUMEM_ERROR_INVALID_ARGUMENT);
  // The ring of another producer, which does not answer, names that memory.
  auto ends = platform::socket_pair();
  ASSERT_TRUE(ends);
  auto producer = ShareClient::open(owner->share_server().loop(), std::move(ends->theirs));
  ASSERT_TRUE(producer);
  ends->ours = Descriptor();
  request.peer = *producer;
  request.handle.origin = (*producer)->origin();
  EXPECT_FALSE(owner->imports().import_memory(request, nullptr));
  EXPECT_TRUE(destroy_memory(memory_of(owned->handle)));
}

// A third thread holds up all that changes imports, while it waits for a copy.
TEST_F(ShareServerTest, com_10_who_waits_to_destroy_an_import_holds_up_nobody_else) {
  gpumem_memory twice = nullptr;
  gpumem_memory busy = nullptr;
  void* pointer = nullptr;
  for (gpumem_memory* const made : {&twice, &busy}) {
    const gpumem_share_handle handle = export_at(instance, shared_buffer(instance, kBlock));
    ASSERT_EQ(gpumem_share_import(other, &handle, nullptr, 0, nullptr, &pointer, made, nullptr),
              GPUMEM_SUCCESS);
  }
  struct Copy {
    std::atomic<bool> begun{false};
    std::latch going_on{1};
    static int32_t GPUMEM_CALL wait(void* self, uint64_t /*done*/, uint64_t /*total*/) {
      auto* const copy = static_cast<Copy*>(self);
      copy->begun = true;
      copy->going_on.wait();
      return 0;
    }
  } copy;
  const Descriptor file(memfd_create("test", MFD_CLOEXEC));
  std::thread copying([&] {
    gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
    desc.file_descriptor = file.get();
    desc.direction = GPUMEM_FILE_DIRECTION_FROM_MEMORY;
    desc.pointer = pointer;
    desc.size = kBlock;
    desc.progress = Copy::wait;
    desc.user_data = &copy;
    (void)gpumem_copy_file(other, &desc, nullptr, nullptr);  // its memory is being destroyed
  });
  EXPECT_TRUE(eventually([&] { return copy.begun.load(); }));
  Sleeper ends_busy([&] { EXPECT_EQ(gpumem_memory_destroy(busy, nullptr), GPUMEM_SUCCESS); });
  std::atomic<int> destroyed{0};
  const auto destroy = [&] {
    const gpumem_status status = gpumem_memory_destroy(twice, nullptr);
    EXPECT_TRUE(status == GPUMEM_SUCCESS || status == GPUMEM_ERROR_STALE_HANDLE) << status;
    if (status == GPUMEM_SUCCESS) ++destroyed;
  };
  Sleeper first(destroy);
  Sleeper second(destroy);
  copy.going_on.count_down();
  copying.join();
  for (Sleeper* const one : {&ends_busy, &first, &second})
    one->join();
  EXPECT_EQ(destroyed, 1);
}

TEST_F(ShareServerTest, MemoryOfAnotherInstanceIsNamedAsSuch) {
  gpumem_device device = nullptr;
  void* pointer = nullptr;
  ASSERT_EQ(gpumem_device_get(other, 0, &device, nullptr), GPUMEM_SUCCESS);
  ASSERT_EQ(gpumem_malloc(device, GPUMEM_KIND_DEVICE, 100, &pointer, nullptr), GPUMEM_SUCCESS);
  gpumem_error error = GPUMEM_ERROR_INIT;
  const auto refused = [&](gpumem_status status) {
    EXPECT_EQ(status, GPUMEM_ERROR_NOT_FOUND);
    EXPECT_NE(std::string(error.message).find("is memory of another instance"), std::string::npos)
        << error.message;
  };
  char bytes[100] = {};
  gpumem_share_handle handle{};
  refused(gpumem_copy(instance, bytes, pointer, 100, nullptr, &error));
  refused(gpumem_share_export(instance, pointer, nullptr, &handle, &error));
  refused(gpumem_free(instance, pointer, &error));
  EXPECT_EQ(gpumem_free(other, pointer, nullptr), GPUMEM_SUCCESS);
}

// An event that is being destroyed while another call uses it, and what has been exported of it.
class EventThatEnds : public ShareServerTest {
 public:
  EventThatEnds() {
    gpumem_device device = nullptr;
    gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
    desc.flags = GPUMEM_EVENT_INTERPROCESS | GPUMEM_EVENT_DISABLE_TIMING;
    EXPECT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_event_create(device, &desc, &event, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_event_export(event, &exported, nullptr), GPUMEM_SUCCESS);
    token = decode(exported)->token;
  }
  Ref<Event> use() const {
    return acquire<Event>(platform::thread_record(), reinterpret_cast<uintptr_t>(event));
  }
  // Until the call has ended the handle. Then it waits for those who use the event.
  bool is_ending() const {
    return eventually(
        [&] { return gpumem_event_get_info(event, &info, nullptr) == GPUMEM_ERROR_STALE_HANDLE; });
  }

  gpumem_event event = nullptr;
  gpumem_share_handle exported{};
  Token token{};
  mutable gpumem_event_info info = GPUMEM_EVENT_INFO_INIT;
};

TEST_F(EventThatEnds, IsKeptForWhoClaimsItMeanwhile) {
  Ref<Event> used = use();
  Exports& exports = Exports::of(used->context());
  ASSERT_EQ(gpumem_share_revoke(instance, &exported, nullptr), GPUMEM_SUCCESS);
  std::thread destroyer([&] { EXPECT_EQ(gpumem_event_destroy(event, nullptr), GPUMEM_ERROR_BUSY); });
  ASSERT_TRUE(is_ending());
  auto again = exports.export_event(*used);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(exports.claim(again->token));
  used = {};
  destroyer.join();
  exports.unclaim(again->token);
  EXPECT_EQ(gpumem_event_destroy(event, nullptr), GPUMEM_SUCCESS);
}

TEST_F(EventThatEnds, IsClaimedByNobodyWhenASecondDestroyerLoses) {
  Ref<Event> used = use();
  Exports& exports = Exports::of(used->context());
  std::atomic<bool> may_lose{false};
  std::atomic<bool> uses{false};
  std::thread loser([&] {
    Ref<Event> own = use();
    uses = true;
    while (!may_lose)
      std::this_thread::yield();
    EXPECT_EQ(destroy_object(std::move(own)).error().status, GPUMEM_ERROR_STALE_HANDLE);
  });
  while (!uses)
    std::this_thread::yield();
  std::thread winner([&] { EXPECT_EQ(gpumem_event_destroy(event, nullptr), GPUMEM_SUCCESS); });
  ASSERT_TRUE(is_ending());
  may_lose = true;
  loser.join();
  EXPECT_FALSE(exports.claim(token));
  used = {};
  winner.join();
}

// Dropping a received handle can end the last use of a connection, of which the server is told.
TEST_F(EventThatEnds, WhoFetchesItMeanwhileWaitsForNoImporter) {
  gpumem_hub const hub = open_hub(hub_desc());
  ASSERT_EQ(gpumem_hub_publish(hub, "n", &exported, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  Raw link(address());
  ASSERT_EQ(link.hello().type, MessageType::kWelcome);
  // A received handle whose exporter has gone.
  Imports& imports = inside(instance)->imports();
  {
    auto ends = platform::socket_pair();
    ASSERT_TRUE(ends);
    auto client = ShareClient::open(inside(instance)->share_server().loop(), std::move(ends->theirs));
    ASSERT_TRUE(client);
    const auto until = std::chrono::steady_clock::time_point::max();
    ASSERT_TRUE(imports.keep({*decode(exported), {}, *client, platform::own_user(), until}));
    ends->ours = Descriptor();
    ASSERT_TRUE(eventually([&] { return (*client)->gone(); }));
  }

  Ref<Event> used = use();
  std::thread destroyer([&] { EXPECT_EQ(gpumem_event_destroy(event, nullptr), GPUMEM_SUCCESS); });
  ASSERT_TRUE(is_ending());
  answer_is_held = false;
  hold_answers = true;
  for (const MessageType type : {MessageType::kEnumerate, MessageType::kFetch}) {
    Message message = message_of(type, type == MessageType::kFetch ? "n" : "");
    message.number = 100;
    link.send(message);
  }
  EXPECT_TRUE(eventually([] { return answer_is_held.load(); }));
  Sleeper receiver([&] { EXPECT_TRUE(imports.arrivals().reserve(platform::own_user())); });
  hold_answers = false;
  EXPECT_EQ(heard(link).type, MessageType::kEntry);
  EXPECT_EQ(heard(link).status, GPUMEM_ERROR_NOT_FOUND);
  receiver.join();
  used = {};
  destroyer.join();
}

}  // namespace
}  // namespace gpumem::core
