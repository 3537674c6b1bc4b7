// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "injection.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <system_error>
#include <thread>

namespace faults {
namespace {

// Written by arm() while nobody calls, but read by threads of the library at any time.
struct Plan {
  std::atomic<bool> armed{false};
  std::atomic<Kind> kind{Kind::kDriver};
  std::atomic<uint64_t> k{0};
  std::atomic<bool> forever{false};
  std::atomic<int> code{0};
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> hits{0};
  std::atomic<uint64_t> noted{0};
};

constexpr size_t kHitsKept = 256;

constinit Plan plan;
constinit std::array<std::atomic<const char*>, kHitsKept> hit_calls{};
constinit std::array<std::atomic<int>, kHitsKept> hit_codes{};
constinit std::atomic<int64_t> mapped{0};
// Addresses of records of the library; 0: a free place.
constinit std::array<std::atomic<uint64_t>, 4096> records{};
constinit std::atomic<int64_t> record_bytes_now{0};
constinit std::atomic<int64_t> libraries{0};
constinit std::atomic<int64_t> blocks{0};

// Of a thread that answers other instances and processes: what it fails to do is the failure of their call,
// and comes at no certain time. So it has a kind of its own.
constinit thread_local bool answers_others = false;

bool is_due(Kind kind) {
  if (answers_others != (kind == Kind::kServingAllocation)) return false;
  if (!plan.armed.load() || plan.kind.load() != kind) return false;
  const uint64_t call = plan.calls.fetch_add(1) + 1;
  return call == plan.k.load() || (plan.forever.load() && call > plan.k.load());
}

bool is_noted(const char* call, int code) {
  const size_t kept = std::min<size_t>(plan.noted, kHitsKept);
  for (size_t index = 0; index < kept; ++index) {
    const char* const known = hit_calls[index];  // null while its thread is still writing
    if (known != nullptr && hit_codes[index] == code && std::strcmp(known, call) == 0) return true;
  }
  return false;
}

// Once each: a call that looks for its answer tries again and again. Several threads may be hit at once.
void note(const char* call, int code) {
  ++plan.hits;
  if (is_noted(call, code)) return;
  const uint64_t index = plan.noted.fetch_add(1);
  if (index >= kHitsKept) return;
  hit_codes[index] = code;
  hit_calls[index] = call;
}

// Only records are mapped without being claimed, and can be used.
bool is_record(int protection, int flags) {
  return protection == (PROT_READ | PROT_WRITE) && (flags & MAP_NORESERVE) != 0;
}

void add_record(const void* address, size_t size) {
  for (auto& place : records) {
    uint64_t nobody = 0;
    if (!place.compare_exchange_strong(nobody, reinterpret_cast<uint64_t>(address))) continue;
    record_bytes_now += static_cast<int64_t>(size);
    return;
  }
  std::abort();  // more than any scenario needs
}

void remove_record(const void* address, size_t size) {
  for (auto& place : records) {
    uint64_t known = reinterpret_cast<uint64_t>(address);
    if (place.compare_exchange_strong(known, 0)) record_bytes_now -= static_cast<int64_t>(size);
  }
}

// Whether this call fails; errno is set to one of the codes then.
bool fails(const char* call, std::initializer_list<int> codes) {
  if (!is_due(Kind::kSystem)) return false;
  const int code =
      codes.size() == 0 ? 0 : codes.begin()[static_cast<size_t>(plan.code.load()) % codes.size()];
  note(call, code);
  errno = code;
  return true;
}

}  // namespace

void arm(const Fault& fault) {
  plan.kind = fault.kind;
  plan.k = fault.k;
  plan.forever = fault.forever;
  plan.code = fault.code;
  plan.calls = 0;
  plan.hits = 0;
  plan.noted = 0;
  for (auto& call : hit_calls)
    call = nullptr;
  plan.armed = true;
}

void disarm() { plan.armed = false; }

uint64_t hits() { return plan.hits; }

bool was_hit(const char* call, int code) { return is_noted(call, code); }

bool met_lasting_refusal() {
  return was_hit("mlock", ENOMEM) || was_hit("mlock", EPERM) || was_hit("mbind", EPERM) ||
         was_hit("mbind", ENOSYS) || was_hit("hardware_concurrency", 0);
}

int64_t mapped_bytes() { return mapped; }
int64_t record_bytes() { return record_bytes_now; }
int64_t loaded_libraries() { return libraries; }
int64_t live_blocks() { return blocks; }

}  // namespace faults

using namespace faults;

// ---- the operating system ----
// A wrapped call is __wrap_NAME for the library, and __real_NAME is what it calls otherwise. The errno values
// are those that the call's manual page gives for a lack of something, or for a kernel that is older.

#define WRAP(result, name, parameters)        \
  extern "C" result __real_##name parameters; \
  extern "C" result __wrap_##name parameters; \
  extern "C" result __wrap_##name parameters

WRAP(void*, mmap64, (void* address, size_t size, int protection, int flags, int file, off64_t offset)) {
  if (fails("mmap", {ENOMEM, EAGAIN, ENFILE})) return MAP_FAILED;
  void* const result = __real_mmap64(address, size, protection, flags, file, offset);
  // Over a mapping that exists, nothing is added.
  if (result != MAP_FAILED && (flags & MAP_FIXED) == 0) mapped += static_cast<int64_t>(size);
  if (result != MAP_FAILED && is_record(protection, flags)) add_record(result, size);
  return result;
}

WRAP(int, munmap, (void* address, size_t size)) {
  remove_record(address, size);
  const int result = __real_munmap(address, size);
  if (result == 0) mapped -= static_cast<int64_t>(size);
  return result;
}

// All rights are only given back to whole mappings, for which the system needs no other.
WRAP(int, mprotect, (void* address, size_t size, int protection)) {
  if (protection != (PROT_READ | PROT_WRITE) && fails("mprotect", {ENOMEM})) return -1;
  return __real_mprotect(address, size, protection);
}

// The library moves nothing, and puts a second view where addresses are reserved: none are added.
WRAP(void*, mremap, (void* view, size_t old_size, size_t size, int flags, ...)) {
  va_list arguments;
  va_start(arguments, flags);
  void* const address = va_arg(arguments, void*);
  va_end(arguments);
  if (fails("mremap", {ENOMEM})) return MAP_FAILED;
  return __real_mremap(view, old_size, size, flags, address);
}

WRAP(int, madvise, (void* address, size_t size, int advice)) {
  // Those that came with a kernel newer than the oldest that the library knows.
  constexpr int kPopulateRead = 22;
  constexpr int kPopulateWrite = 23;
  constexpr int kUnknown = -1;  // asks whether the system knows what it accepts
  if (advice == kUnknown) return __real_madvise(address, size, advice);
  const bool newer = advice == kPopulateRead || advice == kPopulateWrite || advice == MADV_WIPEONFORK ||
                     advice == MADV_HUGEPAGE;
  if (newer ? fails("madvise", {EINVAL, ENOMEM, EAGAIN}) : fails("madvise", {ENOMEM, EAGAIN})) return -1;
  return __real_madvise(address, size, advice);
}

WRAP(int, memfd_create, (const char* name, unsigned flags)) {
  constexpr unsigned kNoExecSeal = 0x0008;  // since Linux 6.3
  if ((flags & kNoExecSeal) != 0 ? fails("memfd_create", {EINVAL, EMFILE, ENOMEM})
                                 : fails("memfd_create", {ENFILE, EMFILE, ENOMEM})) {
    return -1;
  }
  return __real_memfd_create(name, flags);
}

WRAP(int, ftruncate64, (int file, off64_t size)) {
  if (fails("ftruncate", {ENOSPC, ENOMEM})) return -1;
  return __real_ftruncate64(file, size);
}

WRAP(int, open64, (const char* path, int flags, ...)) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  // The library asks for this one only whether there are descriptors left.
  const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  const bool asks = (flags & O_PATH) != 0;
  if (!asks && (unnamed ? fails("open", {EOPNOTSUPP, EMFILE, ENOSPC}) : fails("open", {EMFILE, ENFILE})))
    return -1;
  return __real_open64(path, flags, mode);
}

WRAP(int, mkostemp64, (char* path, int flags)) {
  if (fails("mkostemp", {EMFILE, ENOSPC})) return -1;
  return __real_mkostemp64(path, flags);
}

// It answers the code.
WRAP(int, posix_fallocate64, (int file, off64_t offset, off64_t size)) {
  if (fails("posix_fallocate", {ENOSPC, EFBIG})) return errno;
  return __real_posix_fallocate64(file, offset, size);
}

WRAP(ssize_t, pwrite64, (int file, const void* bytes, size_t size, off64_t offset)) {
  if (fails("pwrite", {ENOSPC, EIO})) return -1;
  return __real_pwrite64(file, bytes, size, offset);
}

WRAP(ssize_t, pread64, (int file, void* bytes, size_t size, off64_t offset)) {
  if (fails("pread", {EIO, ENOMEM})) return -1;
  return __real_pread64(file, bytes, size, offset);
}

WRAP(int, fcntl64, (int file, int command, ...)) {
  // A number or a pointer, as the C library takes it.
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  // Other commands ask, or change what needs no memory.
  if (command == F_ADD_SEALS && fails("fcntl", {ENOMEM})) return -1;
  if (command == F_DUPFD_CLOEXEC && fails("fcntl", {EMFILE})) return -1;
  return __real_fcntl64(file, command, argument);
}

WRAP(int, mincore, (void* address, size_t size, unsigned char* out)) {
  if (fails("mincore", {EAGAIN})) return -1;
  return __real_mincore(address, size, out);
}

WRAP(FILE*, fopen64, (const char* path, const char* mode)) {
  if (fails("fopen", {ENOENT, EMFILE, ENOMEM})) return nullptr;
  if (std::strcmp(path, "/proc/self/cgroup") != 0) return __real_fopen64(path, mode);
  // A path that needs memory, wherever the test runs.
  const int group = __real_memfd_create("cgroup", MFD_CLOEXEC);
  const char text[] = "0::/gpumem.slice/gpumem-faults-of-memory.scope\n";
  if (group < 0 || write(group, text, sizeof text - 1) < 0 || lseek(group, 0, SEEK_SET) != 0) std::abort();
  return fdopen(group, mode);
}

WRAP(char*, fgets, (char* line, int size, FILE* file)) {
  if (fails("fgets", {EIO})) return nullptr;
  return __real_fgets(line, size, file);
}

WRAP(DIR*, opendir, (const char* path)) {
  if (fails("opendir", {EMFILE, ENOMEM, EACCES})) return nullptr;
  return __real_opendir(path);
}

WRAP(dirent64*, readdir64, (DIR * folder)) {
  if (fails("readdir", {ENOENT})) return nullptr;
  if (dirent64* const entry = __real_readdir64(folder)) return entry;
  // At the end one more, whose name needs memory.
  static bool given = false;
  given = !given;
  if (!given) return nullptr;
  static dirent64 last{};
  std::strcpy(last.d_name, "nvidia-of-a-name-that-needs-memory");
  return &last;
}

WRAP(void*, dlopen, (const char* name, int flags)) {
  if (fails("dlopen", {})) return nullptr;
  void* const result = __real_dlopen(name, flags);
  if (result != nullptr) ++libraries;
  return result;
}

WRAP(int, dlclose, (void* library)) {
  --libraries;
  return __real_dlclose(library);
}

WRAP(void*, dlsym, (void* library, const char* name)) {
  if (fails("dlsym", {})) return nullptr;
  return __real_dlsym(library, name);
}

// Without a key, threads keep their records for good.
WRAP(int, pthread_key_create, (pthread_key_t * key, void (*destroy)(void*))) {
  if (fails("pthread_key_create", {EAGAIN, ENOMEM})) return errno;
  return __real_pthread_key_create(key, destroy);
}

// ---- sharing ----
// Where a code means that the other side has gone, or that there is no room for now, another test makes it
// so.

WRAP(int, socket, (int domain, int type, int protocol)) {
  if (fails("socket", {EMFILE, ENFILE, ENOBUFS})) return -1;
  return __real_socket(domain, type, protocol);
}

WRAP(int, socketpair, (int domain, int type, int protocol, int* ends)) {
  if (fails("socketpair", {EMFILE, ENFILE, ENOMEM})) return -1;
  return __real_socketpair(domain, type, protocol, ends);
}

WRAP(int, bind, (int socket, const sockaddr* address, socklen_t size)) {
  if (fails("bind", {ENOMEM, EACCES, ENOSPC})) return -1;
  return __real_bind(socket, address, size);
}

WRAP(int, connect, (int socket, const sockaddr* address, socklen_t size)) {
  if (fails("connect", {ENOMEM, EACCES})) return -1;
  return __real_connect(socket, address, size);
}

WRAP(ssize_t, sendmsg, (int socket, const msghdr* message, int flags)) {
  if (fails("sendmsg", {ENOMEM})) return -1;
  return __real_sendmsg(socket, message, flags);
}

WRAP(ssize_t, recvmsg, (int socket, msghdr* message, int flags)) {
  if (fails("recvmsg", {ENOMEM})) return -1;
  return __real_recvmsg(socket, message, flags);
}

WRAP(int, ppoll, (pollfd * watched, nfds_t count, const timespec* limit, const sigset_t* mask)) {
  if (fails("ppoll", {ENOMEM})) return -1;
  return __real_ppoll(watched, count, limit, mask);
}

WRAP(int, epoll_create1, (int flags)) {
  if (fails("epoll_create1", {EMFILE, ENFILE, ENOMEM})) return -1;
  return __real_epoll_create1(flags);
}

// The other operations change what is there, or take it away.
WRAP(int, epoll_ctl, (int poll, int operation, int file, epoll_event* event)) {
  if (operation == EPOLL_CTL_ADD && fails("epoll_ctl", {ENOMEM, ENOSPC})) return -1;
  return __real_epoll_ctl(poll, operation, file, event);
}

WRAP(int, epoll_wait, (int poll, epoll_event* events, int count, int timeout)) {
  answers_others = true;
  return __real_epoll_wait(poll, events, count, timeout);
}

WRAP(int, eventfd, (unsigned value, int flags)) {
  if (fails("eventfd", {EMFILE, ENFILE, ENOMEM})) return -1;
  return __real_eventfd(value, flags);
}

WRAP(int, flock, (int file, int operation)) {
  if (fails("flock", {ENOLCK})) return -1;
  return __real_flock(file, operation);
}

WRAP(int, fchmodat, (int folder, const char* path, mode_t mode, int flags)) {
  if (fails("fchmodat", {EACCES, ENOMEM})) return -1;
  return __real_fchmodat(folder, path, mode, flags);
}

WRAP(int, mkdir, (const char* path, mode_t mode)) {
  if (fails("mkdir", {EACCES, ENOSPC})) return -1;
  return __real_mkdir(path, mode);
}

// By number. Those not named here give something back, or are questions to which a failure is an answer.
// Of one with fewer arguments the rest is read from the caller's stack, and the kernel does not look at it.
extern "C" __attribute__((no_sanitize_address)) long __wrap_syscall(long number, ...);
WRAP(long, syscall, (long number, ...)) {
  va_list arguments;
  va_start(arguments, number);
  std::array<long, 6> given{};
  for (long& argument : given)
    argument = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_mlock && fails("mlock", {ENOMEM, EAGAIN, EPERM})) return -1;
  // The library does without. It does not ask again once that is refused for good, so later calls would get
  // other numbers.
  if (number == SYS_membarrier && !plan.forever && fails("membarrier", {ENOSYS, EPERM})) return -1;
  if (number == SYS_mbind && fails("mbind", {ENOMEM, EPERM, ENOSYS})) return -1;
  return __real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

// std::thread::hardware_concurrency() and std::thread::_M_start_thread(), by their symbols.
WRAP(unsigned, _ZNSt6thread20hardware_concurrencyEv, ()) {
  if (fails("hardware_concurrency", {})) return 0;
  return 4;  // on every machine
}

#define START_THREAD _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE
#define WRAP_START(result, name, parameters) WRAP(result, name, parameters)
WRAP_START(void, START_THREAD, (std::thread * self, void* state, void (*depend)())) {
  if (fails("pthread_create", {EAGAIN})) {
    throw std::system_error(EAGAIN, std::generic_category());
  }
  __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(self, state,
                                                                                               depend);
}

// ---- host allocation ----

// Of the forms for more than the usual alignment, the library uses one, for the records of threads.

namespace {

void* allocate(size_t size, size_t alignment = alignof(std::max_align_t)) noexcept {
  if (is_due(Kind::kAllocation) || is_due(Kind::kServingAllocation)) {
    note("operator new", 0);
    return nullptr;
  }
  const size_t whole = (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  void* const block = std::aligned_alloc(alignment, whole);
  if (block != nullptr) ++blocks;
  return block;
}

void* allocate_or_throw(size_t size, size_t alignment = alignof(std::max_align_t)) {
  void* const block = allocate(size, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void release(void* block) noexcept {
  if (block == nullptr) return;
  --blocks;
  std::free(block);
}

}  // namespace

void* operator new(size_t size) { return allocate_or_throw(size); }
void* operator new[](size_t size) { return allocate_or_throw(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* block) noexcept { release(block); }
void operator delete[](void* block) noexcept { release(block); }
void operator delete(void* block, size_t) noexcept { release(block); }
void operator delete(void* block, std::align_val_t) noexcept { release(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { release(block); }
void operator delete[](void* block, size_t) noexcept { release(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { release(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { release(block); }
