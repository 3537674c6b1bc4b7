// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What is done in a state: the ways in which a process ends, forks or unloads. Usage:
//   gpumem_scene LIBRARY BACKEND STATE ACTION
//   gpumem_scene LIBRARY BACKEND churn SEED
//   gpumem_scene LIBRARY BACKEND litter NAME
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../quiet_fork.h"
#include "scene.h"

// A forked child of a program with threads is what is tested here.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() {
  // Some scenes end while other threads are about to join theirs.
  return "die_after_fork=0:report_thread_leaks=0";
}

namespace processes {
namespace {

void* library = nullptr;

bool load(const char* path) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    expect(false, dlerror());
    return false;
  }
  const auto get = reinterpret_cast<PFN_gpumem_table_get>(dlsym(library, "gpumem_table_get"));
  api.struct_size = sizeof api;
  return get(GPUMEM_VERSION, &api, nullptr) == GPUMEM_SUCCESS;
}

void unload() {
  if (library == nullptr) return;  // a state may act several times
  expect(dlclose(library) == 0, "dlclose");
  library = nullptr;
}

// Forks a child that ends by `end(code)`, and sees that it does.
template <class End>
void fork_child(
    const Scene& scene, End end, const std::function<void()>& in_child = [] {}) {
  const pid_t child = gpumem::test::quiet_fork();
  if (child == 0) {
    alarm(gpumem::test::kHangSeconds);
    try_everything(scene);
    in_child();
    end(failed() ? 1 : kExitCode);
  }
  int status = 0;
  expect(child > 0, "fork");
  expect(child > 0 && waitpid(child, &status, 0) == child, "waitpid");
  expect(WIFEXITED(status) && WEXITSTATUS(status) == kExitCode,
         "the child exits as it should; its wait status is " + std::to_string(status));
}

// The grandchild is two processes away from the objects of the scene, and one from those of the child.
void fork_in_child(gpumem_backend default_backend) {
  Scene own;
  own.backend = GPUMEM_BACKEND_HOST;
  own.default_backend = default_backend;
  open_scene(own);
  fork_child(own, _exit);
  close_scene(own);
}

void terminate_from_outside() {
  const pid_t self = getpid();
  const pid_t other = fork();
  if (other < 0) std::abort();
  if (other == 0) {
    if (getppid() == self) kill(self, SIGTERM);  // else it has ended, and the number may be another's
    _exit(0);
  }
  for (;;)
    pause();
}

bool act(const std::string& action, const Scene& scene) {
  if (action == "exit") std::exit(kExitCode);
  if (action == "quick_exit") std::quick_exit(kExitCode);
  if (action == "_exit") _exit(kExitCode);
  if (action == "abort") std::abort();
  if (action == "terminate") terminate_from_outside();
  if (action == "unload") {
    unload();
  } else if (action == "unload_exit") {
    unload();
    std::exit(kExitCode);
  } else if (action == "fork_exit") {
    fork_child(scene, std::exit);
  } else if (action == "fork__exit") {
    fork_child(scene, _exit);
  } else if (action == "fork_twice") {
    const bool calls = !scene.inside_log_function && !scene.inside_host_function;
    fork_child(scene, _exit, [&] {
      if (calls) fork_in_child(scene.default_backend);
    });
  } else {
    return false;
  }
  return true;
}

// Leaves behind what a process must not leave behind, so that whoever looks for it can show that it finds it.
[[noreturn]] void litter(const char* name) {
  expect(open(name, O_CREAT | O_WRONLY, 0600) >= 0, "a file in the working folder");
  expect(shm_open((std::string("/") + name).c_str(), O_CREAT | O_RDWR, 0600) >= 0, "shared memory");
  expect(shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0, "a segment of System V");
  expect(write(STDOUT_FILENO, ".", 1) == 1, "write to the pipe");
  for (;;)
    pause();
}

int run(int argc, char** argv) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  alarm(gpumem::test::kHangSeconds);
  if (argc != 5 || !load(argv[1])) return 2;
  const gpumem_backend backend =
      std::strcmp(argv[2], "cuda") == 0 ? GPUMEM_BACKEND_CUDA : GPUMEM_BACKEND_HOST;
  const std::string state = argv[3];
  const std::string action = argv[4];
  if (state == "churn") churn(backend, static_cast<uint32_t>(std::stoul(action)));
  if (state == "litter") litter(argv[4]);
  bool known = false;
  if (!enter(state, backend, [&](Scene& scene) { known = act(action, scene); })) return 2;
  if (!known) return 2;
  return failed() ? 1 : 0;
}

}  // namespace
}  // namespace processes

int main(int argc, char** argv) { return processes::run(argc, argv); }
