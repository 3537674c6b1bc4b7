// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Starts the program of scene_main.cpp and sees how it ends.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "../conformance/harness.h"
#include "../quiet_fork.h"

namespace processes {

#define REQUIRE_FORK_BESIDE_ALLOCATIONS()    \
  if (!gpumem::test::kForkBesideAllocations) \
  GTEST_SKIP() << "the allocator of this sanitizer does not survive a fork beside threads"

// The program lies beside this one, and uses the library that this one has loaded.
inline std::string scene_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpumem_scene";
}
inline std::string scene_library() {
  Dl_info found{};
  const void* const function = dlsym(RTLD_DEFAULT, "gpumem_table_get");
  if (function == nullptr || dladdr(function, &found) == 0) {
    ADD_FAILURE() << "cannot find the library: " << dlerror();
    return "";
  }
  return std::filesystem::canonical(found.dli_fname);  // the program may have another working folder
}

struct Ending {
  int wait_status = -1;  // -1: it did not start
  std::string out;
  std::string err;
};

inline std::ostream& operator<<(std::ostream& stream, const Ending& ending) {
  if (ending.wait_status == -1) return stream << "it did not start\n";
  return stream << (WIFSIGNALED(ending.wait_status)
                        ? std::string("signal ") + strsignal(WTERMSIG(ending.wait_status))
                        : "exit code " + std::to_string(WEXITSTATUS(ending.wait_status)))
                << "\n"
                << ending.out << ending.err;
}

// A running gpumem_scene. Killed at the end of its life if it was not waited for.
class Process {
 public:
  // With a conformance::changed_environment(). The working folder is `folder` if it is not empty.
  explicit Process(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {}, const std::string& folder = "") {
    const std::string program = scene_program();
    std::vector<std::string> words = {program, scene_library(), conformance::on_host() ? "host" : "cuda"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::string> variables = conformance::changed_environment(environment);
    int out[2] = {-1, -1};
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    out_ = out[0];
    err_ = memfd_create("err", MFD_CLOEXEC);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err_, STDERR_FILENO);
    if (!folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
    const int problem =
        posix_spawn(&pid_, program.c_str(), &actions, nullptr, conformance::pointers(words).data(),
                    conformance::pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    if (problem != 0) pid_ = -1;  // which no call may take for a process
    EXPECT_EQ(problem, 0) << "cannot start " << program << ": " << std::strerror(problem);
    close(out[1]);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (signal(SIGKILL)) wait();
    close(out_);
    close(err_);
  }

  // For names only; to send a signal, call signal().
  pid_t pid() const { return pid_; }
  // False, and nothing is sent, if it did not start or was waited for.
  bool signal(int number) const { return pid_ > 0 && ::kill(pid_, number) == 0; }

  // The next bytes of its standard output; fewer only if it has ended.
  std::string read_out(size_t count) const {
    std::string text;
    while (text.size() < count) {
      char part[4096];
      const ssize_t got = read(out_, part, std::min(sizeof part, count - text.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      text.append(part, static_cast<size_t>(got));
    }
    return text;
  }

  Ending wait() {
    Ending ending;
    if (pid_ <= 0) return ending;
    ending.out = read_out(SIZE_MAX);
    while (waitpid(pid_, &ending.wait_status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    ending.err.resize(static_cast<size_t>(lseek(err_, 0, SEEK_END)));
    EXPECT_EQ(pread(err_, ending.err.data(), ending.err.size(), 0), static_cast<ssize_t>(ending.err.size()));
    return ending;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
};

}  // namespace processes
