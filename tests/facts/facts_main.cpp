// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints what the CUDA driver of this machine really does, one fact a line, so that two drivers can be
// compared by diff. Each fact runs in a process of its own: a crash, a hang or a sticky error is a result and
// not the end of the run.
#include "facts.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

namespace facts {
namespace {

constexpr int kSkipped = 77;
constexpr int kGaveUp = 3;  // the fact has printed why

constexpr const char* kUsage =
    R"(gpumem_facts: prints what the CUDA driver of this machine does, one fact a line.

  --list          print the names of the facts and stop
  --only PREFIX   run the facts whose names start with PREFIX (may be given several times)
  --group GROUP   run the facts of one group, the part of the name before the dot (may be given several times)
  --no-timing     leave out the groups "time" and "race", whose answers differ from run to run
  --help          print this text

Lines that start with '~' depend on the machine. Exit status: 0, 2 for wrong use, 77 when there is no usable driver.
)";

struct Options {
  bool list = false;
  bool timing = true;
  std::vector<std::string> prefixes;
  std::string fact;
  std::string role;
  bool check = false;
  bool keep = false;
};

std::vector<Fact> all_facts() {
  std::vector<Fact> all;
  for (auto facts : {process_facts(), capability_facts(), pin_facts(), device_facts(), pointer_facts(),
                     stream_facts(), managed_facts(), ipc_facts(), vmm_facts(), time_facts(), race_facts()}) {
    all.insert(all.end(), facts.begin(), facts.end());
  }
  return all;
}

bool starts_with(std::string_view name, std::string_view prefix) {
  return name.substr(0, prefix.size()) == prefix;
}

bool selected(const Fact& fact, const Options& options) {
  const bool varies = starts_with(fact.name, "time.") || starts_with(fact.name, "race.");
  if (!options.timing && varies) return false;
  return options.prefixes.empty() ||
         std::any_of(options.prefixes.begin(), options.prefixes.end(),
                     [&fact](const std::string& prefix) { return starts_with(fact.name, prefix); });
}

// The part of the program that runs in the child: one fact, named on the command line.
int run_fact(const Fact& fact, const std::string& role) {
  current_fact = fact.name;
  current_role = role;
  std::atexit([] {
    if (after_driver_exit) after_driver_exit();
  });
  if (std::string why = prepare(fact); !why.empty()) {
    say("not_run", why);
    return kGaveUp;
  }
  int status = 0;
  try {
    fact.run(fact.arg);
  } catch (const std::exception& error) {
    say("gave_up", error.what());
    status = kGaveUp;
  }
  if (after_driver_exit) return status;
  // What the fact leaves pending must not be waited for by exit handlers.
  _exit(status);
}

// Keeps the device open during the run: where nothing else does, each fact would wait for the device to wake
// up.
int keep_device_open() {
  if (prepare(Fact{.name = "keep", .run = nullptr, .needs = Needs::kInit}).empty()) pause();
  _exit(0);
}

int check_driver() {
  std::string why = prepare(Fact{.name = "check", .run = nullptr});
  if (why.empty()) _exit(0);
  std::printf("%s\n", why.c_str());
  std::fflush(stdout);
  _exit(kSkipped);
}

void forward(int from, bool& open) {
  char buffer[4096];
  const ssize_t count = read(from, buffer, sizeof buffer);
  if (count > 0) std::fwrite(buffer, 1, static_cast<std::size_t>(count), stdout);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) open = false;
}

// Goes on as this program with other arguments, to end with its parent and without a core file.
[[noreturn]] void become(std::vector<std::string> arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::vector<char*> argv;
  for (std::string& argument : arguments)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

// Runs this program again with the given arguments, prints what it prints, and says how it ended.
std::string run_again(const std::vector<std::string>& arguments, int timeout_s) {
  std::fflush(stdout);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "pipe: " + std::string(std::strerror(errno));
  const pid_t pid = fork();
  if (pid < 0) return "fork: " + std::string(std::strerror(errno));
  setpgid(pid, pid);  // in both, so that the group is there for either
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    become(arguments);
  }
  close(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);

  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  bool open = true;
  bool ended = false;
  bool late = false;
  int status = 0;
  while (!ended && !late) {
    pollfd ready = {open ? ends[0] : -1, POLLIN, 0};
    poll(&ready, 1, 20);
    if (ready.revents) forward(ends[0], open);
    // It is not waited for yet: its number must not go to another process before the group is killed.
    siginfo_t info = {};
    ended =
        waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
    late = !ended && std::chrono::steady_clock::now() > deadline;
  }
  // Also ends what the fact may have started and left behind.
  kill(-pid, SIGKILL);
  ended = false;
  for (int tries = 0; !ended && tries < 1000; ++tries) {
    ended = waitpid(pid, &status, WNOHANG) == pid;
    usleep(10000);
  }
  for (int reads = 0; open && reads < 64; ++reads) {
    pollfd ready = {ends[0], POLLIN, 0};
    if (poll(&ready, 1, 0) <= 0) break;
    forward(ends[0], open);
  }
  close(ends[0]);
  if (!ended) return "timeout, and it cannot be killed";
  return late ? "timeout" : ending(status);
}

int run_all(const Options& options) {
  const std::string check = run_again({"gpumem_facts", "--check"}, 60);
  if (check == "exit 77") return kSkipped;
  if (check != "exit 0") {
    std::printf("no usable driver: making a context ended with %s\n", check.c_str());
    return kSkipped;
  }
  const auto start = std::chrono::steady_clock::now();
  const pid_t keeper = fork();
  if (keeper == 0) become({"gpumem_facts", "--keep"});
  for (const Fact& fact : all_facts()) {
    if (!selected(fact, options)) continue;
    const std::string end = run_again({"gpumem_facts", "--fact", fact.name}, fact.timeout_s);
    if (end != "exit 0" && end != "exit " + std::to_string(kGaveUp))
      std::printf("%s: %s\n", fact.name, end.c_str());
    std::fflush(stdout);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("~run.seconds: %.0f\n", took.count());
  if (keeper > 0) {
    kill(keeper, SIGKILL);
    waitpid(keeper, nullptr, 0);
  }
  return 0;
}

int usage_error(const std::string& what) {
  std::fprintf(stderr, "gpumem_facts: %s (try --help)\n", what.c_str());
  return 2;
}

int main_with(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string option = arguments[i];
    const bool takes_value =
        option == "--only" || option == "--group" || option == "--fact" || option == "--role";
    if (takes_value && i + 1 == arguments.size()) return usage_error(option + " needs a value");
    const std::string value = takes_value ? arguments[++i] : "";
    if (option == "--help") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (option == "--list") {
      options.list = true;
    } else if (option == "--no-timing") {
      options.timing = false;
    } else if (option == "--only") {
      options.prefixes.push_back(value);
    } else if (option == "--group") {
      options.prefixes.push_back(value + ".");
    } else if (option == "--fact") {
      options.fact = value;
    } else if (option == "--role") {
      options.role = value;
    } else if (option == "--check") {
      options.check = true;
    } else if (option == "--keep") {
      options.keep = true;
    } else {
      return usage_error("unknown option " + option);
    }
  }
  if (options.check) return check_driver();
  if (options.keep) return keep_device_open();
  const std::vector<Fact> all = all_facts();
  if (!options.fact.empty()) {
    for (const Fact& fact : all) {
      if (options.fact == fact.name) return run_fact(fact, options.role);
    }
    return usage_error("no fact is called " + options.fact);
  }
  if (options.list) {
    for (const Fact& fact : all) {
      if (selected(fact, options)) std::printf("%s\n", fact.name);
    }
    return 0;
  }
  return run_all(options);
}

}  // namespace
}  // namespace facts

int main(int argc, char** argv) { return facts::main_with({argv, static_cast<std::size_t>(argc)}); }
