// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Exporters and importers that are killed at random moments: the other side goes on, and keeps nothing of
// theirs. GPUMEM_KILL_ROUNDS says how often.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "killing.h"

namespace processes {
namespace {

using namespace conformance;
using namespace std::chrono_literals;

constexpr uint64_t kSize = uint64_t{64} << 10;
constexpr const char* kName = "weights";

struct Handles {
  gpumem_share_handle memory{};
  gpumem_share_handle buffer{};
};

// Some memory of both ways. Whatever happens in the process that is killed, it is not checked there.
class Shared {
 public:
  Shared() : instance_(open_instance()) {
    const gpumem_device device = instance_.device();
    const gpumem_memory_desc wanted = memory_desc(GPUMEM_KIND_DEVICE, kSize, GPUMEM_MEMORY_SHAREABLE);
    gpumem_buffer_desc buffer_desc = GPUMEM_BUFFER_DESC_INIT;
    buffer_desc.size = kSize;
    buffer_desc.reserve = kSize;
    buffer_desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
    gpumem_memory_create(device, &wanted, &memory_, nullptr);
    gpumem_buffer_create(device, &buffer_desc, &buffer_, nullptr);
  }
  Handles exported() const {
    Handles handles;
    gpumem_memory_info memory = GPUMEM_MEMORY_INFO_INIT;
    gpumem_buffer_info buffer = GPUMEM_BUFFER_INFO_INIT;
    gpumem_memory_get_info(memory_, &memory, nullptr);
    gpumem_buffer_get_info(buffer_, &buffer, nullptr);
    gpumem_share_export(instance_, memory.device_pointer, nullptr, &handles.memory, nullptr);
    gpumem_share_export(instance_, buffer.base, nullptr, &handles.buffer, nullptr);
    return handles;
  }
  gpumem_hub open_hub(const char* path) const {
    gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
    desc.path = path;
    gpumem_hub hub = nullptr;
    gpumem_hub_open(instance_, &desc, &hub, nullptr);
    return hub;
  }
  gpumem_instance instance() const { return instance_; }

 private:
  Instance instance_;
  gpumem_memory memory_ = nullptr;
  gpumem_buffer buffer_ = nullptr;
};

// ---- who is killed ----

[[noreturn]] void export_for_ever(const Order& order) {
  const Shared shared;
  const int socket = call_in(order);
  for (;;) {
    const Handles handles = shared.exported();
    (void)send(socket, &handles, sizeof handles, MSG_NOSIGNAL | MSG_DONTWAIT);
    gpumem_hub const hub = shared.open_hub(order.hub);
    for (int i = 0; i < 20 && hub != nullptr; ++i)
      gpumem_hub_publish(hub, kName, &handles.buffer, nullptr, nullptr, nullptr);
    gpumem_hub_withdraw(hub, kName, 0, nullptr);
    gpumem_hub_close(hub, nullptr);
    gpumem_share_revoke(shared.instance(), &handles.buffer, nullptr);
  }
}

// Imports what there is, uses it and destroys it. Returns how much was imported; `use` looks at each.
template <class Use>
int import_once(gpumem_instance instance, const Handles& handles, const char* path, Use use) {
  int count = 0;
  const auto import = [&](const gpumem_share_handle& handle) {
    gpumem_memory memory = nullptr;
    void* pointer = nullptr;
    if (gpumem_share_import(instance, &handle, nullptr, 0, nullptr, &pointer, &memory, nullptr) !=
        GPUMEM_SUCCESS)
      return;
    ++count;
    use(pointer);
    EXPECT_EQ(gpumem_memory_destroy(memory, nullptr), GPUMEM_SUCCESS);
  };
  import(handles.memory);
  import(handles.buffer);
  gpumem_link_desc desc = GPUMEM_LINK_DESC_INIT;
  desc.path = path;
  gpumem_link link = nullptr;
  if (gpumem_link_connect(instance, &desc, &link, nullptr) != GPUMEM_SUCCESS) return count;
  gpumem_share_handle fetched{};
  if (gpumem_link_fetch(link, kName, nullptr, &fetched, nullptr) == GPUMEM_SUCCESS) import(fetched);
  EXPECT_EQ(gpumem_link_close(link, nullptr), GPUMEM_SUCCESS);
  return count;
}

[[noreturn]] void import_for_ever(const Order& order) {
  const Instance instance = open_instance();
  const int socket = call_in(order);
  Handles handles;
  receive_bytes(socket, &handles, sizeof handles);
  for (;;)
    import_once(instance, handles, order.hub, [](void*) {});
}

// x: exports; i: imports.
CHILD(share_nursery) {
  nurse([](const Order& order) {
    if (order.role == 'x') export_for_ever(order);
    import_for_ever(order);
  });
}

// ---- who goes on ----

class ShareKill : public Killing {
 protected:
  static int rounds() { return kill_rounds(300); }
  bool start(char role) { return nursery_.start(order(role)); }
  void time_start(char role) { Killing::time_start(nursery_, role); }
  std::thread kill_later() { return Killing::kill_later(nursery_); }

 private:
  Nursery nursery_{"share_nursery"};
};

TEST_F(ShareKill, an_importer_keeps_nothing_of_an_exporter) {
  const Instance instance = open_instance();
  // A stream's thread is started by the first copy; those below may all be refused for a long time.
  const Memory own = alloc_device(instance.device(), kSize);
  put_pattern(instance, own.device(), kSize, 1);
  time_start('x');
  std::optional<Kept> before;
  int imported = 0;
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    ASSERT_TRUE(start('x'));
    const int imported_before = imported;
    std::atomic<bool> ended{false};
    std::thread burial([&, killer = kill_later()]() mutable {
      killer.join();
      ended = true;
    });
    int socket = -1;
    Handles handles;
    gpumem_memory held = nullptr;
    while (!ended) {
      if (socket < 0) socket = accept_one();
      const bool there =
          socket >= 0 && recv(socket, &handles, sizeof handles, 0) == static_cast<ssize_t>(sizeof handles);
      if (!there && imported == 0) continue;
      imported += import_once(instance, handles, hub_path(), [&](void* pointer) {
        // The exporter may end at any time; then the copy is refused, or sees the bytes that are still there.
        uint8_t byte = 0;
        const gpumem_status status = gpumem_copy(instance, &byte, pointer, 1, nullptr, nullptr);
        EXPECT_TRUE(status == GPUMEM_SUCCESS || status == GPUMEM_ERROR_PEER_GONE)
            << gpumem_status_name(status);
      });
      if (held == nullptr)
        gpumem_share_import(instance, &handles.memory, nullptr, 0, nullptr, nullptr, &held, nullptr);
    }
    burial.join();
    learn(imported != imported_before);
    if (held != nullptr) {
      gpumem_import_info info = GPUMEM_IMPORT_INFO_INIT;
      EXPECT_TRUE(eventually([&] {
        return gpumem_memory_get_import_info(held, &info, nullptr) == GPUMEM_SUCCESS &&
               info.state == GPUMEM_IMPORT_PEER_GONE;
      })) << "state "
          << info.state;
      EXPECT_EQ(gpumem_memory_destroy(held, nullptr), GPUMEM_SUCCESS);
    }
    if (socket >= 0) close(socket);
    // Neither time when it was not: what a process sets up for good is there after the first import.
    if (imported == 0) continue;
    if (!before) {
      std::this_thread::sleep_for(20ms);
      before = Kept::now();
      ++before->threads;  // the instance's for what takes long, from the first handle that is fetched on
    }
    Kept now;
    EXPECT_TRUE(eventually([&] { return (now = Kept::now()) <= *before; }))
        << "round " << round << ": " << now << "; before " << *before;
  }
  EXPECT_GT(imported, 0) << "all were killed too early to try anything";
  gpumem_kind_stats stats = GPUMEM_KIND_STATS_INIT;
  EXPECT_EQ(gpumem_stats_get_kind(instance, GPUMEM_KIND_IMPORTED, &stats, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(stats.live_count, 0u);
  // The socket file of the last hub is in nobody's way.
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  desc.path = hub_path();
  gpumem_hub hub = nullptr;
  EXPECT_EQ(gpumem_hub_open(instance, &desc, &hub, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
}

TEST_F(ShareKill, an_exporter_keeps_nothing_of_an_importer) {
  const Instance instance = open_instance();
  gpumem_hub_desc desc = GPUMEM_HUB_DESC_INIT;
  desc.path = hub_path();
  gpumem_hub hub = nullptr;
  ASSERT_EQ(gpumem_hub_open(instance, &desc, &hub, nullptr), GPUMEM_SUCCESS);
  gpumem_buffer_desc buffer_desc = GPUMEM_BUFFER_DESC_INIT;
  buffer_desc.size = kSize;
  buffer_desc.reserve = kSize;
  buffer_desc.handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD;
  gpumem_buffer buffer = nullptr;
  ASSERT_EQ(gpumem_buffer_create(instance.device(), &buffer_desc, &buffer, nullptr), GPUMEM_SUCCESS);
  gpumem_buffer_info buffer_info = GPUMEM_BUFFER_INFO_INIT;
  ASSERT_EQ(gpumem_buffer_get_info(buffer, &buffer_info, nullptr), GPUMEM_SUCCESS);
  Handles handles;
  ASSERT_EQ(gpumem_share_export(instance, buffer_info.base, nullptr, &handles.buffer, nullptr),
            GPUMEM_SUCCESS);
  ASSERT_EQ(gpumem_hub_publish(hub, kName, &handles.buffer, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
  const gpumem_memory_desc wanted = memory_desc(GPUMEM_KIND_DEVICE, kSize, GPUMEM_MEMORY_SHAREABLE);

  time_start('i');
  std::optional<Kept> before;
  int linked = 0;
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    gpumem_memory memory = nullptr;
    ASSERT_EQ(gpumem_memory_create(instance.device(), &wanted, &memory, nullptr), GPUMEM_SUCCESS);
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    ASSERT_EQ(gpumem_memory_get_info(memory, &info, nullptr), GPUMEM_SUCCESS);
    ASSERT_EQ(gpumem_share_export(instance, info.device_pointer, nullptr, &handles.memory, nullptr),
              GPUMEM_SUCCESS);
    if (!before) before = Kept::now();
    ASSERT_TRUE(start('i'));
    std::atomic<bool> ended{false};
    std::thread burial([&, killer = kill_later()]() mutable {
      killer.join();
      ended = true;
    });
    int socket = -1;
    gpumem_hub_info hub_info = GPUMEM_HUB_INFO_INIT;
    bool was_linked = false;
    while (!ended) {
      if (socket < 0 && (socket = accept_one()) >= 0) {
        // It may have been killed in between.
        if (send(socket, &handles, sizeof handles, MSG_NOSIGNAL) < 0) {
          EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET) << strerror(errno);
        }
      }
      // A version comes and goes meanwhile.
      EXPECT_EQ(gpumem_hub_publish(hub, kName, &handles.buffer, nullptr, nullptr, nullptr), GPUMEM_SUCCESS);
      EXPECT_EQ(gpumem_hub_get_info(hub, &hub_info, nullptr), GPUMEM_SUCCESS);
      was_linked = was_linked || hub_info.link_count != 0;
      std::this_thread::sleep_for(100us);
    }
    burial.join();
    if (socket >= 0) close(socket);
    linked += was_linked ? 1 : 0;
    learn(was_linked);
    const gpumem_status status = gpumem_memory_destroy(memory, nullptr);
    EXPECT_TRUE(status == GPUMEM_SUCCESS ||
                eventually([&] { return gpumem_memory_destroy(memory, nullptr) == GPUMEM_SUCCESS; }))
        << "round " << round << ": a dead importer still holds the memory";
    EXPECT_TRUE(eventually([&] {
      return gpumem_hub_get_info(hub, &hub_info, nullptr) == GPUMEM_SUCCESS && hub_info.link_count == 0;
    })) << "round "
        << round << ": the hub has " << hub_info.link_count << " links";
    Kept now;
    EXPECT_TRUE(eventually([&] { return (now = Kept::now()) <= *before; }))
        << "round " << round << ": " << now << "; before " << *before;
  }
  EXPECT_GT(linked, 0) << "all were killed too early to try anything";
  EXPECT_EQ(gpumem_hub_close(hub, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(gpumem_buffer_destroy(buffer, nullptr), GPUMEM_SUCCESS);
}

}  // namespace
}  // namespace processes
