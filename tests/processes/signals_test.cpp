// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Signals that hit a thread in a call that blocks: the call goes on, and nothing is lost. And the library's
// own threads take none.
#include <dirent.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

#include "../conformance/harness.h"
#include "asleep.h"

namespace processes {
namespace {

using namespace conformance;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kHour = uint64_t{3600} * 1'000'000'000;
constexpr int kSignals = 20;

std::atomic<int> handled{0};

// The parameter: SA_RESTART or 0.
class Signals : public Conformance, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    handled = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { ++handled; };
    action.sa_flags = GetParam();
    ASSERT_EQ(sigaction(SIGUSR1, &action, &before_action_), 0);
  }
  void TearDown() override {
    sigaction(SIGUSR1, &before_action_, nullptr);
    Conformance::TearDown();
  }

  // The call runs on a thread of its own and is hit while it sleeps; it must return when `release` was called
  // and not before.
  static void hit_while_blocked(const std::function<gpumem_status()>& call,
                                const std::function<void()>& release) {
    std::atomic<pid_t> id{0};
    std::atomic<bool> returned{false};
    gpumem_status status = GPUMEM_ERROR_INTERNAL;
    std::thread caller([&] {
      id = gettid();
      status = call();
      returned = true;
    });
    while (id == 0)
      sched_yield();
    for (int i = 0; i < kSignals && !returned; ++i) {
      wait_until_asleep(id);
      const int before = handled;
      pthread_kill(caller.native_handle(), SIGUSR1);
      while (handled == before)
        sched_yield();
    }
    wait_until_asleep(id);
    EXPECT_FALSE(returned) << "the call ended before its work";
    release();
    caller.join();
    EXPECT_STATUS(GPUMEM_SUCCESS, status);
    EXPECT_EQ(handled, kSignals);
  }

  // Calls that are too short to be caught asleep are repeated while signals come without pause.
  static void hit_without_pause(const std::function<void(int)>& call) {
    constexpr int kRounds = 40;
    std::atomic<bool> done{false};
    const pthread_t caller = pthread_self();
    std::thread sender([&] {
      while (!done) {
        const int before = handled;
        pthread_kill(caller, SIGUSR1);
        while (handled == before && !done)
          sched_yield();
      }
    });
    for (int round = 0; round < kRounds || handled < kSignals; ++round)
      call(round);
    done = true;
    sender.join();
  }

 private:
  struct sigaction before_action_ = {};
};

TEST_P(Signals, synchronize_a_stream) {
  GatedStream stream(device_);
  hit_while_blocked([&] { return gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr); },
                    [&] { stream.open(); });
}

TEST_P(Signals, synchronize_a_stream_with_a_limit) {
  GatedStream stream(device_);
  hit_while_blocked([&] { return gpumem_stream_synchronize(stream, kHour, nullptr); },
                    [&] { stream.open(); });
}

TEST_P(Signals, synchronize_an_event) {
  const Event event = create_event(device_, GPUMEM_EVENT_BLOCKING_SYNC);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  hit_while_blocked([&] { return gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, nullptr); },
                    [&] { stream.open(); });
  stream.finish();
}

TEST_P(Signals, synchronize_an_event_with_a_limit) {
  const Event event = create_event(device_);
  GatedStream stream(device_);
  EXPECT_OK(gpumem_event_record(event, stream, why()));
  hit_while_blocked([&] { return gpumem_event_synchronize(event, kHour, nullptr); }, [&] { stream.open(); });
  stream.finish();
}

TEST_P(Signals, close_an_instance_by_force) {
  Instance other = open_instance();
  gpumem_stream stream = create_stream(other.device()).release();
  Gate gate;
  gate.hold(stream);
  const gpumem_instance instance = other.release();
  hit_while_blocked([&] { return gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr); },
                    [&] { gate.open(); });
}

TEST_P(Signals, destroy_a_stream_that_another_thread_waits_for) {
  Stream stream = create_stream(device_);
  Gate gate;
  gate.hold(stream);
  gate.wait_until_reached();
  std::atomic<pid_t> id{0};
  gpumem_status waited = GPUMEM_ERROR_INTERNAL;
  std::thread waiter([&, handle = stream.get()] {
    id = gettid();
    waited = gpumem_stream_synchronize(handle, GPUMEM_TIMEOUT_INFINITE, nullptr);
  });
  while (id == 0)
    sched_yield();
  wait_until_asleep(id);
  hit_while_blocked([handle = stream.release()] { return gpumem_stream_destroy(handle, nullptr); },
                    [&] { gate.open(); });
  waiter.join();
  EXPECT_STATUS(GPUMEM_SUCCESS, waited);
}

TEST_P(Signals, copies) {
  const Memory memory = alloc_device(device_, kMiB);
  hit_without_pause([&](int round) {
    put_pattern(instance_, memory.device(), memory.size(), static_cast<uint32_t>(round));
    EXPECT_TRUE(holds_pattern(instance_, memory.device(), memory.size(), static_cast<uint32_t>(round)));
  });
}

TEST_P(Signals, creating_and_destroying) {
  Pages pages(kMiB);
  hit_without_pause([&](int round) {
    fill_pattern(pages.get(), pages.size(), static_cast<uint32_t>(round));
    const Memory memory = alloc_device(device_, kMiB);
    const Memory pinned = alloc_pinned(device_, kMiB);
    const Memory registered = register_memory(device_, pages.get(), pages.size());
    const Stream stream = create_stream(device_);
    const Event event = create_event(device_);
    EXPECT_TRUE(has_pattern(pages.get(), pages.size(), static_cast<uint32_t>(round)));
  });
}

TEST_P(Signals, opening_and_closing) {
  hit_without_pause([](int) { open_instance().close(); });
}

INSTANTIATE_TEST_SUITE_P(Processes, Signals, testing::Values(0, SA_RESTART),
                         [](const testing::TestParamInfo<int>& flags) {
                           return flags.param == 0 ? "interrupting" : "restarting";
                         });

// A line of /proc/self/task/ID/status.
std::string status_of(const std::string& thread, const std::string& key) {
  std::ifstream file("/proc/self/task/" + thread + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) return line.substr(line.find_first_not_of(" \t", key.size()));
  }
  return "";
}

using Threads = Conformance;

TEST_F(Threads, of_the_library_take_no_signals_of_the_program) {
  const Stream first = create_stream(device_);
  const Stream second = create_stream(device_);
  // Threads name themselves when they run.
  first.synchronize();
  second.synchronize();
  for (const Stream* stream : {&first, &second}) {
    EXPECT_OK(gpumem_stream_launch_host_function(
        *stream, [](void*) {}, nullptr, why()));
    stream->synchronize();
  }
  int found = 0;
  DIR* const tasks = opendir("/proc/self/task");
  ASSERT_NE(tasks, nullptr);
  while (const dirent* entry = readdir(tasks)) {
    const std::string thread = entry->d_name;
    if (status_of(thread, "Name:") != "gpumem-stream") continue;
    ++found;
    const uint64_t blocked = std::stoull(status_of(thread, "SigBlk:"), nullptr, 16);
    for (const int signal :
         {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGCHLD, SIGPROF}) {
      EXPECT_NE(blocked >> (signal - 1) & 1, 0u) << strsignal(signal) << " can hit a thread of the library";
    }
    for (const int signal : {SIGSEGV, SIGBUS}) {
      EXPECT_EQ(blocked >> (signal - 1) & 1, 0u) << strsignal(signal) << " of a host function would be lost";
    }
  }
  closedir(tasks);
  if (on_host()) {
    EXPECT_GE(found, 2);
  } else {
    EXPECT_EQ(found, 0) << "streams run on threads of the driver";
  }
}

}  // namespace
}  // namespace processes
