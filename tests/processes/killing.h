// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Processes that are killed at random moments, and what the others may not keep of them.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "process.h"

namespace processes {

// GPUMEM_KILL_ROUNDS, if it is set; else fewer with a sanitizer, which makes each of them several times as
// long.
inline int kill_rounds(int usual) {
  const char* const wanted = std::getenv("GPUMEM_KILL_ROUNDS");
  return wanted != nullptr ? std::atoi(wanted) : conformance::kSanitized ? usual / 3 : usual;
}

// What the sharing thread does is seen a little later.
template <class Ask>
bool eventually(Ask ask) {
  for (const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
       std::chrono::steady_clock::now() < limit;) {
    if (ask()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ask();
}

// What a process may not gather from those that it shared with.
struct Kept {
  size_t files = 0;
  size_t locks = 0;
  size_t threads = 0;
  size_t mapped_files = 0;

  static Kept now() {
    Kept kept;
    kept.files = entries("/proc/self/fd");
    kept.threads = entries("/proc/self/task");
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo"))
      kept.locks += lines_with(entry.path(), "lock:");
    kept.mapped_files = lines_with("/proc/self/maps", "memfd:");
    return kept;
  }
  bool operator<=(const Kept& other) const {
    return files <= other.files && locks <= other.locks && threads <= other.threads &&
           mapped_files <= other.mapped_files;
  }

 private:
  static size_t entries(const char* folder) {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }
  static size_t lines_with(const std::string& path, const char* text) {
    std::ifstream file(path);
    size_t count = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.find(text) != std::string::npos) ++count;
    }
    return count;
  }
};

inline std::ostream& operator<<(std::ostream& stream, const Kept& kept) {
  return stream << kept.files << " descriptors, " << kept.locks << " locks, " << kept.threads << " threads, "
                << kept.mapped_files << " mapped files";
}

// ---- who is killed ----

// What a process that will be killed is to do.
struct Order {
  char role = 'x';
  uint32_t seed = 0;
  char hub[96] = "";
  char address[64] = "";  // where the test listens, without the 0 before it
};

inline sockaddr_un abstract_socket(const std::string& name, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Tells the test that the calls begin, which with a real driver is late.
inline int call_in(const Order& order) {
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t size = 0;
  const sockaddr_un address = abstract_socket(order.address, &size);
  if (connect(made, reinterpret_cast<const sockaddr*>(&address), size) != 0) _exit(1);
  return made;
}

// The body of a child that makes processes which have loaded the library and not used it. That takes less
// time than to start programs. Each is killed by its parent, so that its number cannot mean another process.
// `live` does not return.
template <class Live>
void nurse(Live live) {
  const int test = conformance::Peer::other_side();
  Order order;
  while (conformance::receive_bytes(test, &order, sizeof order)) {
    const pid_t child = fork();
    if (child == 0) live(order);
    const int32_t number = child;
    conformance::send_bytes(test, &number, sizeof number);
    if (child < 0) continue;
    int32_t signal = SIGKILL;
    conformance::receive_bytes(test, &signal, sizeof signal);
    if (signal != 0) kill(child, signal);
    int32_t status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    conformance::send_bytes(test, &status, sizeof status);
  }
}

// ---- who kills ----

// Starts one process at a time, by a child of that name that calls nurse().
class Nursery {
 public:
  explicit Nursery(const std::string& name) : peer_(name) {}

  // False if there is nobody to kill.
  bool start(const Order& order) const {
    int32_t number = -1;
    EXPECT_TRUE(conformance::send_bytes(peer_.socket(), &order, sizeof order));
    EXPECT_TRUE(conformance::receive_bytes(peer_.socket(), &number, sizeof number));
    EXPECT_GT(number, 0) << "the process does not start";
    return number > 0;
  }
  // The wait status of the process, when it has ended by itself.
  int wait() const { return end(0); }
  void kill_it() const { EXPECT_EQ(end(SIGKILL), SIGKILL) << "it had ended before"; }

 private:
  int end(int32_t signal) const {
    int32_t status = 0;
    EXPECT_TRUE(conformance::send_bytes(peer_.socket(), &signal, sizeof signal));
    EXPECT_TRUE(conformance::receive_bytes(peer_.socket(), &status, sizeof status));
    return status;
  }

  conformance::Peer peer_;
};

// A folder, and a socket where those who are started call in.
class Killing : public testing::Test {
 protected:
  Killing() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    const std::string name =
        "gpumem-kill-" + folder_.substr(folder_.size() - 6) + "-" + std::to_string(getpid());
    socklen_t size = 0;
    const sockaddr_un address = abstract_socket(name, &size);
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    std::snprintf(order_.address, sizeof order_.address, "%s", name.c_str());
    std::snprintf(order_.hub, sizeof order_.hub, "%s/hub", folder_.c_str());
  }
  ~Killing() override {
    close(listener_);
    std::filesystem::remove_all(folder_);
  }

  const char* hub_path() const { return order_.hub; }

  Order order(char role) {
    order_.role = role;
    order_.seed = static_cast<uint32_t>(random_());
    return order_;
  }
  // How long such a process takes until it calls; with a real driver, most of its life.
  void time_start(const Nursery& nursery, char role) {
    const auto begin = std::chrono::steady_clock::now();
    if (!nursery.start(order(role))) return;
    int socket = -1;
    EXPECT_TRUE(eventually([&] { return (socket = accept_one()) >= 0; })) << "it never connected";
    opening_ = first_opening_ = std::chrono::steady_clock::now() - begin;
    nursery.kill_it();
    if (socket >= 0) close(socket);
  }
  // After some time: one in four while the process still starts, the others during its calls.
  std::thread kill_later(const Nursery& nursery) {
    const auto opening = std::chrono::duration_cast<std::chrono::microseconds>(opening_).count();
    std::uniform_int_distribution<int64_t> early(0, opening + 2'000);
    std::uniform_int_distribution<int64_t> late(opening * 3 / 4, opening * 5 / 4 + 15'000);
    const std::chrono::microseconds time(random_() % 4 == 0 ? early(random_) : late(random_));
    return std::thread([&nursery, time] {
      std::this_thread::sleep_for(time);
      nursery.kill_it();
    });
  }
  // The process that was started, if it got so far.
  int accept_one() const { return accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }
  // After each round, because on a busy machine a start takes longer than the first one did, a hundred times
  // as long at worst: whether those who were killed had done something. Two rounds in five do then.
  void learn(bool they_worked) {
    constexpr std::chrono::steady_clock::duration kLongest = std::chrono::seconds(2);
    opening_ = they_worked ? opening_ * 70 / 100 : opening_ * 125 / 100;
    opening_ = std::clamp(opening_, first_opening_ / 2, std::max(first_opening_, kLongest));
  }

 private:
  Order order_;
  std::string folder_ = testing::TempDir() + "gpumem_kill_XXXXXX";
  int listener_ = -1;
  std::chrono::steady_clock::duration opening_{};
  std::chrono::steady_clock::duration first_opening_{};
  std::mt19937 random_{11};
};

}  // namespace processes
