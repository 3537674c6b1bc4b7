// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Exporters and importers that are killed at random moments: the other side goes on, and keeps nothing of
// theirs. GPUMEM_KILL_ROUNDS says how often.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "process.h"

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

struct Order {
  char role = 'x';  // x: exports; i: imports
  char hub[96] = "";
  char address[64] = "";  // where the test listens, without the 0 before it
};

sockaddr_un abstract(const std::string& name, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

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

// Tells the test that the calls begin, which with a real driver is late.
int call_in(const Order& order) {
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t size = 0;
  const sockaddr_un address = abstract(order.address, &size);
  if (connect(made, reinterpret_cast<const sockaddr*>(&address), size) != 0) _exit(1);
  return made;
}

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

// Makes processes that have loaded the library and not used it, which takes less time than to start programs.
// Each is killed by its parent, so that its number cannot mean another process.
CHILD(nursery) {
  Order order;
  while (receive_bytes(Peer::other_side(), &order, sizeof order)) {
    const pid_t child = fork();
    if (child == 0) {
      if (order.role == 'x') export_for_ever(order);
      import_for_ever(order);
    }
    int32_t number = child;
    send_bytes(Peer::other_side(), &number, sizeof number);
    if (child < 0) continue;
    receive_bytes(Peer::other_side(), &number, sizeof number);
    kill(child, SIGKILL);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    send_bytes(Peer::other_side(), &status, sizeof status);
  }
}

// ---- who goes on ----

size_t entries(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

// What a process may not gather from those that it shared with.
struct Kept {
  size_t files = 0;
  size_t threads = 0;
  size_t mapped_files = 0;

  static Kept now() {
    Kept kept{entries("/proc/self/fd"), entries("/proc/self/task"), 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("memfd:") != std::string::npos) ++kept.mapped_files;
    return kept;
  }
  bool operator<=(const Kept& other) const {
    return files <= other.files && threads <= other.threads && mapped_files <= other.mapped_files;
  }
};

std::ostream& operator<<(std::ostream& stream, const Kept& kept) {
  return stream << kept.files << " descriptors, " << kept.threads << " threads, " << kept.mapped_files
                << " mapped files";
}

// What the sharing thread does is seen a little later.
template <class Ask>
bool eventually(Ask ask) {
  for (const auto limit = std::chrono::steady_clock::now() + 2min;
       std::chrono::steady_clock::now() < limit;) {
    if (ask()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return ask();
}

int rounds() {
  const char* const wanted = std::getenv("GPUMEM_KILL_ROUNDS");
  return wanted != nullptr ? std::atoi(wanted) : 300;
}

class ShareKill : public testing::Test {
 protected:
  ShareKill() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    const std::string name =
        "gpumem-kill-" + folder_.substr(folder_.size() - 6) + "-" + std::to_string(getpid());
    socklen_t size = 0;
    const sockaddr_un address = abstract(name, &size);
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    std::snprintf(order_.address, sizeof order_.address, "%s", name.c_str());
    std::snprintf(order_.hub, sizeof order_.hub, "%s/hub", folder_.c_str());
  }
  ~ShareKill() override {
    close(listener_);
    std::filesystem::remove_all(folder_);
  }

  const char* hub_path() const { return order_.hub; }

  // False if there is nobody to kill.
  bool start(char role) {
    order_.role = role;
    int32_t number = -1;
    EXPECT_TRUE(send_bytes(nursery_.socket(), &order_, sizeof order_));
    EXPECT_TRUE(receive_bytes(nursery_.socket(), &number, sizeof number));
    EXPECT_GT(number, 0) << "the process does not start";
    return number > 0;
  }
  // How long such a process takes until it calls; with a real driver, most of its life.
  void time_start(char role) {
    const auto begin = std::chrono::steady_clock::now();
    if (!start(role)) return;
    int socket = -1;
    EXPECT_TRUE(eventually([&] { return (socket = accept_one()) >= 0; })) << "it never connected";
    opening_ = std::chrono::steady_clock::now() - begin;
    kill_it();
    if (socket >= 0) close(socket);
  }
  // After some time: one in four while the process still starts, the others during its calls.
  std::thread kill_later() {
    const auto opening = std::chrono::duration_cast<std::chrono::microseconds>(opening_).count();
    std::uniform_int_distribution<int64_t> early(0, opening + 2'000);
    std::uniform_int_distribution<int64_t> late(opening * 3 / 4, opening * 5 / 4 + 15'000);
    const std::chrono::microseconds time(random_() % 4 == 0 ? early(random_) : late(random_));
    return std::thread([=, this] {
      std::this_thread::sleep_for(time);
      kill_it();
    });
  }
  void kill_it() {
    int32_t status = 0;
    EXPECT_TRUE(send_bytes(nursery_.socket(), &status, sizeof status));
    EXPECT_TRUE(receive_bytes(nursery_.socket(), &status, sizeof status));
    EXPECT_EQ(status, SIGKILL) << "it had ended before";
  }
  // The process that was started, if it got so far.
  int accept_one() const { return accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }

 private:
  Order order_;
  std::string folder_ = testing::TempDir() + "share_kill_XXXXXX";
  int listener_ = -1;
  std::chrono::steady_clock::duration opening_{};
  Peer nursery_{"nursery"};
  std::mt19937 random_{11};
};

TEST_F(ShareKill, an_importer_keeps_nothing_of_an_exporter) {
  const Instance instance = open_instance();
  time_start('x');
  std::optional<Kept> before;
  int imported = 0;
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    ASSERT_TRUE(start('x'));
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
