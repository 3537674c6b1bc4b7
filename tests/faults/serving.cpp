// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sharing threads without memory: a request may fail, but nothing stays held, and the next one is answered.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "../asleep.h"
#include "core/share/peer/client.h"
#include "core/share/peer/hub_table.h"
#include "core/share/peer/keeper_store.h"
#include "core/share/wire/channel.h"
#include "gpumem/gpumem.h"
#include "loop.h"
#include "platform/pages.h"
#include "platform/socket.h"

namespace faults {
namespace {

namespace core = gpumem::core;
namespace platform = gpumem::platform;

constexpr uint64_t kCallsMost = 3000;
constexpr uint64_t kForever = UINT64_MAX;
constexpr std::chrono::minutes kPatience(2);

// What a request may answer that met a lack of memory here or there.
bool may_be(gpumem_status status) {
  switch (status) {
    case GPUMEM_SUCCESS:
    case GPUMEM_ERROR_OUT_OF_HOST_MEMORY:
    case GPUMEM_ERROR_PEER_GONE:
    case GPUMEM_ERROR_NOT_FOUND:     // of connecting: what listens hung up
    case GPUMEM_ERROR_STALE_HANDLE:  // what another connection had
      return true;
    default:
      return false;
  }
}

class Opened {
 public:
  Opened() {
    gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
    host.vmm_granularity = 64 * 1024;
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = GPUMEM_BACKEND_HOST;
    desc.host = &host;
    EXPECT_EQ(gpumem_instance_open(&desc, &instance, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_device_get(instance, 0, &device, nullptr), GPUMEM_SUCCESS);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    EXPECT_EQ(gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr), GPUMEM_SUCCESS);
  }

  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
};

// One that publishes, and one that keeps what others publish.
class Exporter : public Opened {
 public:
  Exporter() {
    plain_path = "@gpumem-faults-plain-" + std::to_string(getpid());
    keeper_path = "@gpumem-faults-keeper-" + std::to_string(getpid());
    plain = open_hub(plain_path, 0);
    keeper = open_hub(keeper_path, GPUMEM_HUB_KEEPER);
  }

  // Anew for each attempt, since its end is what is looked at.
  void publish() {
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = GPUMEM_KIND_DEVICE;
    desc.size = 1000;
    desc.require = GPUMEM_MEMORY_SHAREABLE;
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    ASSERT_EQ(gpumem_memory_create(device, &desc, &memory_, nullptr), GPUMEM_SUCCESS);
    ASSERT_EQ(gpumem_memory_get_info(memory_, &info, nullptr), GPUMEM_SUCCESS);
    ASSERT_EQ(gpumem_share_export(instance, info.device_pointer, nullptr, &exported_, nullptr),
              GPUMEM_SUCCESS);
    ASSERT_EQ(gpumem_hub_publish(plain, "memory", &exported_, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  }
  const gpumem_share_handle& exported() const { return exported_; }
  // To somebody who does not take it.
  void send() const {
    int pair[2] = {-1, -1};
    gpumem_error error = GPUMEM_ERROR_INIT;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    const gpumem_status status = gpumem_share_send(instance, &exported_, pair[0], nullptr, &error);
    EXPECT_TRUE(may_be(status)) << "send: " << status << ", " << error.message;
    close(pair[0]);
    close(pair[1]);
  }
  // BUSY if an importer that has gone still holds it.
  void destroy() {
    gpumem_error error = GPUMEM_ERROR_INIT;
    EXPECT_EQ(gpumem_memory_destroy(memory_, &error), GPUMEM_SUCCESS) << error.message;
  }
  // The ends of connections come when they come.
  void await_no_links() {
    for (const gpumem_hub hub : {plain, keeper}) {
      gpumem_hub_info info = GPUMEM_HUB_INFO_INIT;
      const auto limit = std::chrono::steady_clock::now() + kPatience;
      while (gpumem_hub_get_info(hub, &info, nullptr) == GPUMEM_SUCCESS && info.link_count != 0 &&
             std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
      EXPECT_EQ(info.link_count, 0u) << "a connection that has ended is still there";
    }
  }

  gpumem_hub plain = nullptr;
  gpumem_hub keeper = nullptr;
  std::string plain_path;
  std::string keeper_path;

 private:
  gpumem_hub open_hub(const std::string& path, gpumem_hub_flags flags) const {
    gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
    desc.path = path.c_str();
    desc.flags = flags;
    gpumem_hub hub = nullptr;
    EXPECT_EQ(gpumem_hub_open(instance, &desc, &hub, nullptr), GPUMEM_SUCCESS);
    return hub;
  }

  gpumem_memory memory_ = nullptr;
  gpumem_share_handle exported_{};
};

class Importer : public Opened {
 public:
  Importer() {
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = 64 * 1024;
    desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    gpumem_buffer buffer = nullptr;
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    EXPECT_EQ(gpumem_buffer_create(device, &desc, &buffer, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(gpumem_buffer_get_info(buffer, &info, nullptr), GPUMEM_SUCCESS);
    base_ = info.base;
    EXPECT_EQ(gpumem_share_export(instance, base_, nullptr, &exported_, nullptr), GPUMEM_SUCCESS);
  }

  // Whether all went well; else each call that did not says why.
  bool use_hub(const std::string& path) {
    gpumem_link link = connect(path);
    if (link == nullptr) return false;
    gpumem_entry_info entry = GPUMEM_ENTRY_INFO_INIT;
    gpumem_share_handle handle{};
    gpumem_way_info way = GPUMEM_WAY_INFO_INIT;
    const bool good = call("enumerate", gpumem_link_enumerate(link, 0, &entry, &error_)) &&
                      call("wait", gpumem_link_wait(link, "memory", 0, kForever, &entry, &error_)) &&
                      call("fetch", gpumem_link_fetch(link, "memory", nullptr, &handle, &error_)) &&
                      call("get_way", gpumem_link_get_way(link, base_, GPUMEM_SHARE_WAY_POSIX_FD,
                                                          GPUMEM_PEER_OTHER_PROCESS, &way, &error_)) &&
                      call("the trial", way.status);
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    return good;
  }

  bool use_keeper(const std::string& path) {
    gpumem_link link = connect(path);
    if (link == nullptr) return false;
    gpumem_share_handle handle{};
    void* address = nullptr;
    gpumem_memory imported = nullptr;
    const bool good =
        call("publish", gpumem_link_publish(link, "buffer", &exported_, nullptr, nullptr, &error_)) &&
        call("fetch", gpumem_link_fetch(link, "buffer", nullptr, &handle, &error_)) &&
        call("import",
             gpumem_share_import(instance, &handle, nullptr, 0, nullptr, &address, &imported, &error_)) &&
        call("destroy", gpumem_memory_destroy(imported, &error_)) &&
        call("withdraw", gpumem_link_withdraw(link, "buffer", 0, &error_));
    EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
    return good;
  }

  gpumem_link connect(const std::string& path) {
    gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
    desc.path = path.c_str();
    desc.timeout_ns = kForever;
    gpumem_link link = nullptr;
    call("connect", gpumem_link_connect(instance, &desc, &link, &error_));
    return link;
  }

 private:
  bool call(const char* what, gpumem_status status) {
    EXPECT_TRUE(may_be(status)) << what << ": " << status << ", " << error_.message;
    return status == GPUMEM_SUCCESS;
  }

  void* base_ = nullptr;
  gpumem_share_handle exported_{};
  gpumem_error error_ = GPUMEM_ERROR_INIT;
};

}  // namespace

// Waits for what comes next; nothing once the other side has hung up.
std::optional<core::Incoming> next(core::Channel& channel) {
  constexpr auto kLimit = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
  for (;;) {
    auto got = channel.receive([](const core::Message&) { return core::kMessageDescriptorsMax; });
    if (!got) return std::nullopt;
    if (got->message) return std::move(got->message);
    if (got->packet) continue;
    pollfd ready{channel.socket(), POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(kLimit.count())) == 1) continue;
    ADD_FAILURE() << "neither an answer nor an end";
    return std::nullopt;
  }
}

core::Channel channel_to(const std::string& address) {
  auto socket = platform::connect_to(address, platform::deadline_after(kForever));
  EXPECT_TRUE(socket) << socket.error().message;
  return core::Channel(std::move(*socket));
}

// Claims memory by hand, since nobody imports what its own process has exported, and then breaks the
// protocol: whoever does that is hung up on, with or without memory for the line that tells it. Whether it
// was granted.
bool claim_and_violate(const gpumem_share_handle& exported) {
  auto handle = core::decode(exported);
  EXPECT_TRUE(handle);
  core::Channel channel = channel_to(core::abstract_address(handle->exporter.instance));
  const auto ask = [&](core::MessageType type, const core::Token& token) {
    core::Message message;
    message.type = type;
    message.number = 1;
    message.token = token;
    (void)channel.send(std::move(message), {});  // it may have hung up already
    return next(channel);
  };
  const bool granted = ask(core::MessageType::kHello, handle->exporter.instance) &&
                       ask(core::MessageType::kClaim, handle->token);
  EXPECT_FALSE(ask(core::MessageType::kRelease, core::Token{})) << "it was to hang up";
  return granted;
}

// Of the exporter's thread and the importer's, with the background thread that makes the trial.
void run_serving_without_memory(Kind kind) {
  Exporter exporter;
  for (uint64_t k = 1; k < kCallsMost; ++k) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(k));
    exporter.publish();
    bool whole = false;
    {
      Importer importer;
      arm({kind, k, false, 0});
      whole = importer.use_hub(exporter.plain_path);
      whole = importer.use_keeper(exporter.keeper_path) && whole;
      if (kind == Kind::kServingAllocation) whole = claim_and_violate(exporter.exported()) && whole;
      disarm();
    }
    const bool failed = hits() != 0;
    EXPECT_TRUE(failed || whole);
    exporter.await_no_links();
    exporter.destroy();
    if (!failed || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "it goes on allocating";
}

// Memory is sent to somebody who does not take it.
void run_lending_without_memory() {
  Exporter exporter;
  for (uint64_t k = 1; k < kCallsMost; ++k) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(k));
    exporter.publish();
    arm({Kind::kAllocation, k, false, 0});
    exporter.send();
    disarm();
    const bool failed = hits() != 0;
    exporter.destroy();
    if (!failed || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "it goes on allocating";
}

// What waits for another process ends with its instance.
void run_closing_without_memory() {
  Exporter exporter;
  for (uint64_t k = 1; k < kCallsMost; ++k) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(k));
    std::optional<Importer> importer(std::in_place);
    gpumem_link const link = importer->connect(exporter.plain_path);
    gpumem_status status = GPUMEM_SUCCESS;
    std::atomic<pid_t> waiting{0};
    std::thread waiter([&] {
      waiting = gettid();
      status = gpumem_link_wait(link, "nothing", 0, kForever, nullptr, nullptr);
    });
    while (waiting == 0)
      std::this_thread::yield();
    gpumem::test::wait_until_asleep(waiting);
    arm({Kind::kAllocation, k, false, 0});
    importer.reset();
    disarm();
    waiter.join();
    EXPECT_EQ(status, GPUMEM_ERROR_CLOSED);
    exporter.await_no_links();
    if (hits() == 0 || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "it goes on allocating";
}

// The third version of a name displaces its first.
void run_publishing_without_memory() {
  for (uint64_t k = 1; k < kCallsMost; ++k) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(k));
    core::HubTable table{core::HubLimits()};
    std::vector<core::Token> gone;
    bool failed = false;
    for (uint8_t number = 1; number <= 3; ++number) {
      core::HubTable::Request request;
      request.name = "a name that does not fit into a string without memory";
      request.published.handle.token.fill(number);
      request.published.handle.fd_count = number;
      platform::Descriptors descriptors;
      descriptors.emplace_back(dup(STDERR_FILENO));
      request.published.descriptors = platform::share(std::move(descriptors));
      const auto counts = [&] {
        return std::tuple(table.name_count(), table.version_count(), table.descriptor_count());
      };
      const auto before = counts();
      arm({Kind::kAllocation, k, false, 0});
      try {
        EXPECT_EQ(*table.publish(std::move(request), &gone), number);
      } catch (const std::bad_alloc&) {
      }
      disarm();
      if (hits() == 0) continue;
      failed = true;
      EXPECT_EQ(counts(), before);
      EXPECT_EQ(request.published.descriptors->size(), 1u);
      EXPECT_TRUE(gone.empty());
      EXPECT_EQ(*table.publish(std::move(request), &gone), number);
    }
    EXPECT_EQ(table.descriptor_count(), 5u);
    EXPECT_TRUE(table.withdraw("a name that does not fit into a string without memory", 0, 0, &gone));
    EXPECT_EQ(gone.size(), 3u) << "none is published any more";
    if (!failed || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "it goes on allocating";
}

// Waits whose time is over leave the hub, so that the link has room for more.
void run_waiting_without_memory() {
  constexpr int kMoreThanALinkMayHave = 70;
  Exporter exporter;
  Importer importer;
  gpumem_link const link = importer.connect(exporter.plain_path);
  for (uint64_t k = 1; k < kCallsMost; ++k) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(k));
    bool failed = false;
    for (int i = 0; i < kMoreThanALinkMayHave; ++i) {
      arm({Kind::kAllocation, k, false, 0});
      const gpumem_status status = gpumem_link_wait(link, "nothing", 0, 1, nullptr, nullptr);
      disarm();
      failed = hits() != 0;
      // The hub may not have read yet what was owed to it.
      EXPECT_TRUE(status == GPUMEM_NOT_READY || status == GPUMEM_ERROR_LIMIT_EXCEEDED ||
                  (failed && status == GPUMEM_ERROR_OUT_OF_HOST_MEMORY))
          << status;
    }
    if (!failed || testing::Test::HasFailure()) break;
  }
  // What could not be said at once is said soon.
  gpumem_status status = GPUMEM_ERROR_LIMIT_EXCEEDED;
  for (const auto limit = std::chrono::steady_clock::now() + kPatience;
       status == GPUMEM_ERROR_LIMIT_EXCEEDED && std::chrono::steady_clock::now() < limit;)
    status = gpumem_link_wait(link, "nothing", 0, 1'000'000'000, nullptr, nullptr);
  EXPECT_EQ(status, GPUMEM_NOT_READY);
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
}

// What is withdrawn leaves the store, and what comes next, by the same numbers, is stored.
void run_withdrawing_without_memory() {
  const std::string name = "gpumem-faults-notify-" + std::to_string(getpid());
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  std::memcpy(place.sun_path + 1, name.data(), name.size());
  const platform::Descriptor manager(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(bind(manager.get(), reinterpret_cast<const sockaddr*>(&place),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  ASSERT_EQ(setenv("NOTIFY_SOCKET", ("@" + name).c_str(), 1), 0);
  std::set<std::string> stored;
  const auto read = [&] {
    char text[256];
    for (ssize_t size = 0; (size = recv(manager.get(), text, sizeof text, 0)) > 0;) {
      const std::string said(text, static_cast<size_t>(size));
      const std::string what = said.substr(said.find("FDNAME=") + 7);
      if (said.starts_with("FDSTORE=1\n")) {
        stored.insert(what);
      } else {
        stored.erase(what);
      }
    }
    return stored.size();
  };
  {
    auto store = core::KeeperStore::open();
    ASSERT_TRUE(store) << store.error().message;
    ASSERT_TRUE((*store)->inherit());
    for (uint64_t k = 1; k < kCallsMost; ++k) {
      const testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(k));
      core::KeeperStore::Entry entry;
      platform::Descriptors files;
      const auto add = [&] {
        files.clear();
        files.emplace_back(*platform::memory_file(4096, "test"));
        auto made = (*store)->add({}, files);
        ASSERT_TRUE(made) << made.error().message;
        entry = std::move(*made);
      };
      add();
      EXPECT_EQ(read(), 2u);
      arm({Kind::kAllocation, k, false, 0});
      entry = nullptr;
      disarm();
      const bool failed = hits() != 0;
      const int number = files.front().get();
      add();
      EXPECT_EQ(files.front().get(), number);
      EXPECT_EQ(read(), 2u) << "a version and its file";
      entry = nullptr;
      EXPECT_EQ(read(), 0u);
      if (!failed || testing::Test::HasFailure()) break;
    }
  }
  EXPECT_EQ(unsetenv("NOTIFY_SOCKET"), 0);
}

}  // namespace faults
