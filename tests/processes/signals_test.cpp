// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Signals and cancellations that hit a thread in a call that blocks: the call goes on, and nothing is lost.
// And what the library's own threads let through.
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "../asleep.h"
#include "../conformance/harness.h"
#include "process.h"

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
      gpumem::test::wait_until_asleep(id);
      const int before = handled;
      pthread_kill(caller.native_handle(), SIGUSR1);
      while (handled == before)
        sched_yield();
    }
    gpumem::test::wait_until_asleep(id);
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
  gpumem::test::wait_until_asleep(id);
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

// SIGTERM has a handler; the others of those that end a process have the default action.
TEST_F(Threads, of_the_library_take_no_signals_of_the_program) {
  struct sigaction handler = {};
  handler.sa_handler = [](int) {};
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  std::map<int, struct sigaction> before;
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM})
    ASSERT_EQ(sigaction(signal, signal == SIGTERM ? &handler : &by_default, &before[signal]), 0);
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
    for (const int signal : {SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGCHLD, SIGPROF}) {
      EXPECT_NE(blocked >> (signal - 1) & 1, 0u) << strsignal(signal) << " can hit a thread of the library";
    }
    for (const int signal : {SIGSEGV, SIGBUS}) {
      EXPECT_EQ(blocked >> (signal - 1) & 1, 0u) << strsignal(signal) << " of a host function would be lost";
    }
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) {
      EXPECT_EQ(blocked >> (signal - 1) & 1, 0u) << strsignal(signal) << " could not end the process";
    }
  }
  closedir(tasks);
  if (on_host()) {
    EXPECT_GE(found, 2);
  } else {
    EXPECT_EQ(found, 0) << "streams run on threads of the driver";
  }
  for (const auto& [signal, action] : before)
    EXPECT_EQ(sigaction(signal, &action, nullptr), 0);
}

TEST_F(Threads, of_the_library_let_a_process_end_whose_main_thread_has_ended) {
  if (!on_host()) GTEST_SKIP() << "a driver's threads are not ours, and no forked child can use this one";
  REQUIRE_FORK_BESIDE_ALLOCATIONS();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = gpumem::test::quiet_fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = GPUMEM_BACKEND_HOST;
    gpumem_instance instance = nullptr;
    gpumem_device device = nullptr;
    gpumem_stream stream = nullptr;
    const bool made = gpumem_instance_open(&desc, &instance, nullptr) == GPUMEM_SUCCESS &&
                      gpumem_device_get(instance, 0, &device, nullptr) == GPUMEM_SUCCESS &&
                      gpumem_stream_create(device, nullptr, &stream, nullptr) == GPUMEM_SUCCESS;
    if (!made || write(ready[1], "r", 1) != 1) _exit(1);
    syscall(SYS_exit, 0);  // as pthread_exit() ends the main thread, without the tests' own destructors
  }
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  const std::string stat = "/proc/" + std::to_string(child) + "/stat";
  for (std::string line; line.find(") Z ") == std::string::npos; sched_yield()) {
    std::ifstream file(stat);
    std::getline(file, line);
  }
  ASSERT_EQ(kill(child, SIGTERM), 0);
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 10'000 && ended == 0; ++i) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) usleep(1000);
  }
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

// A thread that is cancelled while a call of it waits.
TEST_F(Threads, that_are_cancelled_finish_their_wait) {
  struct Waiter {
    const Event* event;
    std::atomic<pid_t> id{0};
    std::atomic<bool> returned{false};
    gpumem_status status = GPUMEM_ERROR_INTERNAL;
    static void* run(void* argument) {
      auto* const self = static_cast<Waiter*>(argument);
      self->id = gettid();
      self->status = gpumem_event_synchronize(*self->event, GPUMEM_TIMEOUT_INFINITE, nullptr);
      self->returned = true;
      pthread_testcancel();
      return nullptr;
    }
  };
  GatedStream stream(device_);
  // A driver waits for a stream without sleeping.
  const Event event = create_event(device_, GPUMEM_EVENT_BLOCKING_SYNC);
  ASSERT_OK(gpumem_event_record(event, stream, why()));
  Waiter waiter{&event};
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, nullptr, Waiter::run, &waiter), 0);
  while (waiter.id == 0)
    sched_yield();
  gpumem::test::wait_until_asleep(waiter.id);
  ASSERT_EQ(pthread_cancel(thread), 0);
  gpumem::test::wait_until_asleep(waiter.id);
  EXPECT_FALSE(waiter.returned);
  stream.open();
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_TRUE(waiter.returned);
  EXPECT_STATUS(GPUMEM_SUCCESS, waiter.status);
}

// ---- what a function of the program may start ----

// Has a whole life of its own with the library; 0 if all went well.
int live_in_a_child(gpumem_device parents) {
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  if (gpumem_device_get_info(parents, &info, nullptr) != GPUMEM_ERROR_FORKED) return 2;
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = GPUMEM_BACKEND_HOST;
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  void* pointer = nullptr;
  if (gpumem_instance_open(&desc, &instance, nullptr) != GPUMEM_SUCCESS) return 3;
  if (gpumem_device_get(instance, 0, &device, nullptr) != GPUMEM_SUCCESS) return 4;
  if (gpumem_malloc(device, GPUMEM_KIND_PINNED, 100, &pointer, nullptr) != GPUMEM_SUCCESS) return 5;
  if (gpumem_fill(instance, pointer, 100, 7, 1, nullptr) != GPUMEM_SUCCESS) return 6;
  if (static_cast<char*>(pointer)[99] != 7) return 7;
  if (gpumem_free(instance, pointer, nullptr) != GPUMEM_SUCCESS) return 8;
  int messages = 0;
  const auto count = [](void* user_data, gpumem_log_level, const char*) { ++*static_cast<int*>(user_data); };
  if (gpumem_log_set_function(count, &messages, GPUMEM_LOG_DEBUG, nullptr) != GPUMEM_SUCCESS) return 9;
  if (gpumem_free(instance, &messages, nullptr) != GPUMEM_ERROR_NOT_FOUND || messages != 1) return 10;
  return gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, nullptr) == GPUMEM_SUCCESS ? 0 : 11;
}

struct Forker {
  gpumem_device device;
  int status = -1;
  bool forked = false;
  void fork_once() {
    if (std::exchange(forked, true)) return;  // the child goes on telling the log function
    const pid_t child = gpumem::test::quiet_fork();
    if (child == 0) {
      alarm(60);
      _exit(live_in_a_child(device));
    }
    ASSERT_GT(child, 0) << "fork";
    EXPECT_EQ(waitpid(child, &status, 0), child);
  }
};

TEST_F(Threads, a_host_function_forks_a_normal_child) {
  REQUIRE_FORK_BESIDE_ALLOCATIONS();
  const Stream stream = create_stream(device_);
  Forker forker{device_};
  EXPECT_OK(gpumem_stream_launch_host_function(
      stream, [](void* argument) { static_cast<Forker*>(argument)->fork_once(); }, &forker, why()));
  stream.synchronize();
  EXPECT_EQ(forker.status, 0);
}

TEST_F(Threads, a_log_function_forks_a_normal_child) {
  REQUIRE_FORK_BESIDE_ALLOCATIONS();
  Forker forker{device_};
  const auto receive = [](void* argument, gpumem_log_level, const char*) {
    static_cast<Forker*>(argument)->fork_once();
  };
  ASSERT_OK(gpumem_log_set_function(receive, &forker, GPUMEM_LOG_DEBUG, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, &forker, why()));
  ASSERT_OK(gpumem_log_set_function(nullptr, nullptr, 0, why()));
  EXPECT_EQ(forker.status, 0);
}

TEST_F(Threads, a_host_function_has_the_mask_of_who_enqueued_it) {
  const Stream stream = create_stream(device_);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  sigset_t before;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &mask, &before), 0);
  sigset_t inside;
  sigfillset(&inside);
  EXPECT_OK(gpumem_stream_launch_host_function(
      stream, [](void* seen) { pthread_sigmask(SIG_SETMASK, nullptr, static_cast<sigset_t*>(seen)); },
      &inside, why()));
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  stream.synchronize();
  for (int signal = 1; signal < SIGRTMIN; ++signal)
    EXPECT_EQ(sigismember(&inside, signal), signal == SIGUSR2 ? 1 : 0) << strsignal(signal);
}

}  // namespace
}  // namespace processes
