// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the kernel says about this process, and ways to put it under limits.
#pragma once

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

#include "../quiet_fork.h"

namespace gpumem::test {

// Number behind a key such as "VmLck:" in /proc/self/status.
inline uint64_t process_status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) return std::stoull(line.substr(key.size()));
  }
  return 0;
}

inline uint64_t locked_bytes() { return process_status("VmLck:") * 1024; }

inline uint64_t open_files() {
  return static_cast<uint64_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                             std::filesystem::directory_iterator()));
}

inline uint64_t threads() { return process_status("Threads:"); }

// The same, once no more than `most` are left: one that was joined is listed until the kernel has cleaned up
// after it.
inline uint64_t threads_at_most(uint64_t most) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  uint64_t now = threads();
  for (; now > most && std::chrono::steady_clock::now() < limit; now = threads())
    std::this_thread::yield();
  return now;
}

// The flags of the mapping that holds an address, such as "rd wr sh lo dc"; empty if there is none.
inline std::string mapping_flags(const void* address) {
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      const auto wanted = reinterpret_cast<uint64_t>(address);
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line.substr(std::strlen("VmFlags: "));
    }
  }
  return "";
}

inline bool has_flag(const void* address, const std::string& flag) {
  std::istringstream flags(mapping_flags(address));
  for (std::string word; flags >> word;) {
    if (word == flag) return true;
  }
  return false;
}

// For its life, this process may lock only so much memory: a small limit, and no privilege to pass it.
class LockLimit {
 public:
  explicit LockLimit(uint64_t bytes) {
    getrlimit(RLIMIT_MEMLOCK, &limit_);
    rlimit lower = limit_;
    lower.rlim_cur = bytes;
    setrlimit(RLIMIT_MEMLOCK, &lower);
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct without[2] = {before_[0], before_[1]};
    without[0].effective &= ~(1U << CAP_IPC_LOCK);
    syscall(SYS_capset, &header_, without);
  }
  LockLimit(const LockLimit&) = delete;
  LockLimit& operator=(const LockLimit&) = delete;
  ~LockLimit() {
    syscall(SYS_capset, &header_, before_);
    setrlimit(RLIMIT_MEMLOCK, &limit_);
  }

 private:
  rlimit limit_{};
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2]{};
};

// Whether this process may lock a few pages, as tests of locking need it.
inline bool can_lock() {
  const size_t size = 16 * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool locked = syscall(SYS_mlock, pages, size) == 0;
  munmap(pages, size);
  return locked;
}

#define SKIP_IF_LOCKING_IS_FORBIDDEN() \
  if (!gpumem::test::can_lock()) GTEST_SKIP() << "this process may not lock 16 pages (ulimit -l)"

// ThreadSanitizer ends a child that was forked among threads and starts one of its own.
inline constexpr bool kChildrenHaveThreads = !kThreadSanitizer;

// The exit code of a child, forked by `how`, that returns from `code` with it.
inline int exit_code_of(const std::function<int()>& code, pid_t (*how)() = quiet_fork) {
  const pid_t child = how();
  if (child == 0) _exit(code());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// From now on the system answers an error to one system call of this process, or only to those with this
// third argument. False if it takes no such filter.
inline bool refuse_system_call(long number, uint32_t error = ENOSYS, const uint32_t* argument = nullptr) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, argument != nullptr ? *argument : 0, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  // Any third argument will do.
  if (argument == nullptr) code[3] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

inline thread_local sigjmp_buf fault_exit;

// Whether a load from an address, or a store to it, ends in SIGSEGV.
inline bool faults(void* address, bool store) {
  struct sigaction catching {};
  struct sigaction before {};
  catching.sa_handler = [](int) { siglongjmp(fault_exit, 1); };
  sigaction(SIGSEGV, &catching, &before);
  volatile bool faulted = true;
  if (sigsetjmp(fault_exit, 1) == 0) {
    auto* const byte = static_cast<volatile unsigned char*>(address);
    if (store) {
      *byte = 1;
    } else {
      (void)*byte;
    }
    faulted = false;
  }
  sigaction(SIGSEGV, &before, nullptr);
  return faulted;
}

}  // namespace gpumem::test
