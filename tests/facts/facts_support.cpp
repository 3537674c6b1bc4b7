// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Loading the driver, printing, and the helpers declared in facts.hpp.
#include "facts.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

namespace facts {

Driver cu;
std::string current_fact;
std::string current_role;
void (*after_driver_exit)() = nullptr;

namespace {

CUcontext primary = nullptr;
constexpr int kPeerSocket = 3;

template <typename Function>
void look_up(Entry<Function>& entry, const char* symbol, int version) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  if (cu.get_proc_address(symbol, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) == CUDA_SUCCESS) {
    entry.address = reinterpret_cast<Function>(address);
  }
}

// For who is not root there is nothing to give up.
std::string become_nobody() {
  constexpr unsigned kNobody = 65534;
  if (geteuid() != 0) return "";
  if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) {
    return std::string("cannot become nobody: ") + std::strerror(errno);
  }
  // A change of user leaves /proc/self unreadable, which an ordinary process of that user would not see.
  prctl(PR_SET_DUMPABLE, 1);
  return "";
}

}  // namespace

std::string load_driver() {
  cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!cu.library) return std::string("no driver: ") + dlerror();
  cu.get_proc_address =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(cu.library, "cuGetProcAddress_v2"));
  if (!cu.get_proc_address) return "no usable driver: it lacks cuGetProcAddress_v2 (12.0)";
#define FACTS_LOOK_UP(member, symbol, version) look_up(cu.member, "cu" #symbol, version);
  FACTS_ENTRIES(FACTS_LOOK_UP)
#undef FACTS_LOOK_UP
  return "";
}

std::string prepare(const Fact& fact) {
  if (fact.as_nobody) {
    if (std::string why = become_nobody(); !why.empty()) return why;
  }
  if (std::string why = load_driver(); !why.empty()) return why;
  if (fact.needs == Needs::kSymbols) return "";
  if (CUresult code = cu.Init(0); code != CUDA_SUCCESS) return "no device: cuInit gives " + text(code);
  if (fact.needs == Needs::kInit) return "";
  if (CUresult code = cu.DevicePrimaryCtxRetain(&primary, 0); code != CUDA_SUCCESS) {
    return "no context: cuDevicePrimaryCtxRetain gives " + text(code);
  }
  if (CUresult code = cu.CtxSetCurrent(primary); code != CUDA_SUCCESS) {
    return "no context: cuCtxSetCurrent gives " + text(code);
  }
  return "";
}

CUcontext context() { return primary; }

std::string text(CUresult code) {
  const char* name = nullptr;
  if (cu.GetErrorName(code, &name) != CUDA_SUCCESS || !name)
    return "code " + std::to_string(static_cast<int>(code));
  return name;
}

std::string yes(bool value) { return value ? "yes" : "no"; }

std::string hex(std::uint64_t value) {
  char buffer[24];
  std::snprintf(buffer, sizeof buffer, "0x%" PRIx64, value);
  return buffer;
}

namespace {
void print_line(const char* mark, std::string_view detail, std::string_view value) {
  std::printf("%s%s.%.*s: %.*s\n", mark, current_fact.c_str(), static_cast<int>(detail.size()), detail.data(),
              static_cast<int>(value.size()), value.data());
  std::fflush(stdout);
}
}  // namespace

void say(std::string_view detail, std::string_view value) { print_line("", detail, value); }
void say(std::string_view detail, CUresult code) { say(detail, text(code)); }
void say_number(std::string_view detail, long long value) { say(detail, std::to_string(value)); }
void say_yes(std::string_view detail, bool value) { say(detail, yes(value)); }
void say_machine(std::string_view detail, std::string_view value) { print_line("~", detail, value); }

void must(CUresult code, const char* step) {
  if (code != CUDA_SUCCESS) give_up(std::string(step) + " gives " + text(code));
}

void give_up(const std::string& why) { throw std::runtime_error(why); }

CUdeviceptr device_memory(std::size_t size) {
  CUdeviceptr p = 0;
  must(cu.MemAlloc(&p, size), "cuMemAlloc");
  return p;
}

std::uint8_t* pinned_memory(std::size_t size, unsigned flags) {
  void* p = nullptr;
  must(cu.MemHostAlloc(&p, size, flags), "cuMemHostAlloc");
  return static_cast<std::uint8_t*>(p);
}

CUdeviceptr managed_memory(std::size_t size, unsigned flags) {
  CUdeviceptr p = 0;
  must(cu.MemAllocManaged(&p, size, flags), "cuMemAllocManaged");
  return p;
}

std::uint8_t* cpu_memory(std::size_t size, int protection, int flags) {
  void* p = mmap(nullptr, size, protection, flags, -1, 0);
  if (p == MAP_FAILED) give_up(std::string("mmap: ") + std::strerror(errno));
  if (protection & PROT_WRITE) std::memset(p, 0x11, size);
  return static_cast<std::uint8_t*>(p);
}

std::uint8_t* registered_memory(std::size_t size, unsigned flags) {
  std::uint8_t* p = cpu_memory(size);
  must(cu.MemHostRegister(p, size, flags), "cuMemHostRegister");
  return p;
}

std::uint8_t* unmapped_address(std::size_t size) {
  std::uint8_t* p = cpu_memory(size, PROT_NONE);
  munmap(p, size);
  return p;
}

CUstream new_stream(unsigned flags) {
  CUstream stream = nullptr;
  must(cu.StreamCreate(&stream, flags), "cuStreamCreate");
  return stream;
}

CUevent new_event(unsigned flags) {
  CUevent event = nullptr;
  must(cu.EventCreate(&event, flags), "cuEventCreate");
  return event;
}

bool all_bytes(const std::uint8_t* p, std::size_t size, std::uint8_t value) {
  return std::all_of(p, p + size, [value](std::uint8_t byte) { return byte == value; });
}

bool device_bytes(CUdeviceptr p, std::size_t size, std::uint8_t value) {
  std::vector<std::uint8_t> copy(size, static_cast<std::uint8_t>(~value));
  return cu.MemcpyDtoH(copy.data(), p, size) == CUDA_SUCCESS && all_bytes(copy.data(), size, value);
}

namespace {

sigjmp_buf touch_escape;
volatile sig_atomic_t touch_signal = 0;

void on_touch(int number) {
  touch_signal = number;
  siglongjmp(touch_escape, 1);
}

std::string signal_name(int number) {
  switch (number) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGABRT:
      return "SIGABRT";
    case SIGKILL:
      return "SIGKILL";
    case SIGALRM:
      return "SIGALRM";
    case SIGILL:
      return "SIGILL";
    case SIGFPE:
      return "SIGFPE";
    case SIGPIPE:
      return "SIGPIPE";
    case SIGTERM:
      return "SIGTERM";
    default:
      return std::to_string(number);
  }
}

template <typename Access>
std::string guarded(Access access) {
  struct sigaction action = {};
  action.sa_handler = on_touch;
  sigemptyset(&action.sa_mask);
  struct sigaction old_segv = {};
  struct sigaction old_bus = {};
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGBUS, &action, &old_bus);
  volatile bool faulted = false;
  if (sigsetjmp(touch_escape, 1) == 0) {
    access();
  } else {
    faulted = true;
  }
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  return faulted ? "signal " + signal_name(touch_signal) : "ok";
}

}  // namespace

std::string touch_read(const void* p) {
  return guarded([p] { (void)*static_cast<const volatile std::uint8_t*>(p); });
}

std::string touch_write(void* p, std::uint8_t value) {
  return guarded([p, value] { *static_cast<volatile std::uint8_t*>(p) = value; });
}

std::string settle(CUstream stream, int limit_ms) {
  CUresult code = CUDA_ERROR_NOT_READY;
  for (int waited = 0; waited < limit_ms; ++waited) {
    code = cu.StreamQuery(stream);
    if (code != CUDA_ERROR_NOT_READY) return text(code);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "still " + text(code);
}

struct Hold::State {
  std::atomic<bool> released = false;
  std::atomic<bool> over = false;
  int limit_ms = 0;
};

Hold::Hold(CUstream stream, int limit_ms) : state_(new State) {
  state_->limit_ms = limit_ms;
  must(cu.LaunchHostFunc(stream, &Hold::wait, state_), "cuLaunchHostFunc");
}

void CUDA_CB Hold::wait(void* data) {
  State* state = static_cast<State*>(data);
  for (int waited = 0; waited < state->limit_ms && !state->released; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  state->over = true;
}

bool Hold::active() const { return !state_->over; }
void Hold::release() { state_->released = true; }

namespace {

// The PTX of an old architecture, which every newer driver compiles for its device.
constexpr const char* kKernels = R"(
.version 6.4
.target sm_70
.address_size 64

.visible .entry store_byte(.param .u64 address, .param .u32 value)
{
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  ld.param.u64 %rd1, [address];
  ld.param.u32 %r1, [value];
  st.u8 [%rd1], %r1;
  ret;
}

.visible .entry wait_then_fill(.param .u64 flag, .param .u64 address, .param .u64 bytes, .param .u32 value)
{
  .reg .u64 %rd<8>;
  .reg .u32 %r<4>;
  .reg .pred %p<4>;
  ld.param.u64 %rd1, [flag];
  ld.param.u64 %rd2, [address];
  ld.param.u64 %rd3, [bytes];
  ld.param.u32 %r1, [value];
  mov.u64 %rd4, %globaltimer;
wait:
  ld.volatile.u32 %r2, [%rd1];
  setp.ne.u32 %p1, %r2, 0;
  @%p1 bra fill;
  mov.u64 %rd5, %globaltimer;
  sub.u64 %rd6, %rd5, %rd4;
  setp.lt.u64 %p2, %rd6, 2000000000;
  @%p2 bra wait;
fill:
  setp.eq.u64 %p3, %rd3, 0;
  @%p3 bra done;
  st.u8 [%rd2], %r1;
  add.u64 %rd2, %rd2, 1;
  sub.u64 %rd3, %rd3, 1;
  bra fill;
done:
  ret;
}
)";

}  // namespace

CUfunction kernel(Kernel which) {
  CUmodule module = nullptr;
  must(cu.ModuleLoadData(&module, kKernels), "cuModuleLoadData");
  CUfunction function = nullptr;
  const char* name = which == Kernel::kStoreByte ? "store_byte" : "wait_then_fill";
  must(cu.ModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  return function;
}

CUresult launch(CUfunction function, CUstream stream, void** params) {
  return cu.LaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
}

void try_device_write(int which, CUdeviceptr target, const std::function<CUresult(CUstream)>& from_host) {
  CUstream stream = new_stream();
  switch (which) {
    case 0:
      say("write", cu.MemsetD8Async(target, 1, 64, stream));
      break;
    case 1:
      say("write", from_host(stream));
      break;
    case 2:
      say("write", cu.MemcpyDtoDAsync(target, device_memory(kMiB), kMiB, stream));
      break;
    default: {
      std::uint32_t value = 1;
      void* params[] = {&target, &value};
      say("write", launch(kernel(Kernel::kStoreByte), stream, params));
      break;
    }
  }
  say("stream_then", settle(stream));
  say("context_then", cu.CtxSynchronize());
}

std::string ending(int wait_status) {
  if (WIFSIGNALED(wait_status)) return "signal " + signal_name(WTERMSIG(wait_status));
  return "exit " + std::to_string(WEXITSTATUS(wait_status));
}

std::string in_fork(const std::function<int()>& action) {
  const pid_t pid = fork();
  if (pid < 0) give_up(std::string("fork: ") + std::strerror(errno));
  if (pid == 0) {
    alarm(60);  // a child that hangs ends by SIGALRM
    _exit(action());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return ending(status);
}

Peer::Peer(const char* role) : pid_(-1), socket_(-1) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) give_up("socketpair");
  pid_ = fork();
  if (pid_ < 0) give_up("fork");
  if (pid_ == 0) {
    if (ends[1] == kPeerSocket) {
      fcntl(ends[1], F_SETFD, 0);
    } else {
      dup2(ends[1], kPeerSocket);
    }
    execl("/proc/self/exe", "gpumem_facts", "--fact", current_fact.c_str(), "--role", role,
          static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  socket_ = ends[0];
}

Peer Peer::other_side() { return Peer(-1, kPeerSocket); }

Peer::~Peer() {
  if (socket_ >= 0) close(socket_);
  if (pid_ > 0) wait_for_end();
}

void Peer::send(const void* bytes, std::size_t size) {
  if (::send(socket_, bytes, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size))
    give_up("the other process is gone");
}

void Peer::receive(void* bytes, std::size_t size) {
  if (recv(socket_, bytes, size, MSG_WAITALL) != static_cast<ssize_t>(size))
    give_up("the other process is gone");
}

void Peer::await_end() {
  char byte = 0;
  (void)recv(socket_, &byte, 1, 0);
}

namespace {
union FdMessage {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};
}  // namespace

void Peer::send_fd(int fd) {
  char byte = 'f';
  iovec part = {&byte, 1};
  FdMessage control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
  if (sendmsg(socket_, &message, MSG_NOSIGNAL) != 1) give_up("sendmsg");
}

int Peer::receive_fd() {
  char byte = 0;
  iovec part = {&byte, 1};
  FdMessage control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket_, &message, MSG_CMSG_CLOEXEC) != 1 || control.header.cmsg_type != SCM_RIGHTS) {
    give_up("no file descriptor came");
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
  return fd;
}

std::string Peer::wait_for_end() {
  if (pid_ <= 0) give_up("there is no process to wait for");
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return ending(status);
}

void Peer::kill() {
  if (pid_ <= 0) give_up("there is no process to kill");
  ::kill(pid_, SIGKILL);
  wait_for_end();
}

}  // namespace facts
