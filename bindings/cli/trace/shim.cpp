// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The library that `gpumem trace record` puts before libgpumem.so.0 in a program: it passes each call on, and
// writes a line for each that makes, ends or changes memory. docs/where-memory.md describes the file.
//
// A thread writes its lines into a part of the file that is mapped, without a lock or a system call. What a
// program that is killed has written is therefore in the file.
#include <dlfcn.h>
#include <fcntl.h>
#include <gpumem/gpumem.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>

namespace {

const gpumem_table& real();

uint64_t now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

// ---- the file ----

// A part of the file, full of line ends where nothing is written yet.
struct Part {
  char* start;
  size_t size;
  size_t used;
  Part* next;
};

constexpr size_t kLargestPart = size_t{64} << 10;
constexpr size_t kLongestLine = 1024;  // of two names and eleven numbers
constexpr size_t kMostNames = 1000;
// In the first line, so that a program that ends in any way leaves it.
constexpr char kLost[] = "\"lost\": ";
constexpr size_t kLostDigits = 10;

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // the file, and the parts that nobody has
char file_name[4096];
struct stat file_status;
size_t file_size = 0;
Part* unused = nullptr;
char* lost_digits = nullptr;
uint64_t begun = 0;
std::atomic<uint64_t> lost = 0;
bool full = false;  // nothing more can be written
enum class State { kNew, kOpen, kOff };
std::atomic<State> state = State::kNew;
pthread_key_t thread_ends;

thread_local Part* part = nullptr;
thread_local uint64_t thread_number = 0;
// When a pool was last asked what it has taken, and which.
thread_local gpumem_pool asked_pool = nullptr;
thread_local uint64_t asked_at = 0;

// The next bytes of the file, which the disk has; null if it is full. A limit on the size of files sends a
// signal.
char* map_next(int file, size_t size) {
  static char line_ends[kLargestPart];
  std::memset(line_ends, '\n', sizeof line_ends);
  sigset_t too_large, before;
  sigemptyset(&too_large);
  sigaddset(&too_large, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &too_large, &before);
  const ssize_t count = pwrite(file, line_ends, size, static_cast<off_t>(file_size));
  const int problem = count < 0 ? errno : ENOSPC;
  if (problem == EFBIG && sigismember(&before, SIGXFSZ) == 0) {
    const timespec at_once = {};
    sigtimedwait(&too_large, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = problem;
  if (count != static_cast<ssize_t>(size)) return nullptr;
  void* const start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file,
                           static_cast<off_t>(file_size));
  if (start == MAP_FAILED) return nullptr;
  file_size += size;
  return static_cast<char*>(start);
}

// No descriptor stays open: a program may close it, and open something else in its place.
char* open_and_map_next(size_t size) {
  const int file = open(file_name, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat found = {};
  const bool same =
      fstat(file, &found) == 0 && found.st_dev == file_status.st_dev && found.st_ino == file_status.st_ino;
  char* const start = same ? map_next(file, size) : nullptr;
  close(file);
  return start;
}

// The first part stays: its first line has a number that changes.
void unmap(const Part& old) {
  if (lost_digits < old.start || lost_digits >= old.start + old.size) munmap(old.start, old.size);
}

void thread_has_ended(void* /*unused*/) {
  pthread_mutex_lock(&mutex);
  if (part != nullptr && part->size - part->used >= kLongestLine) {
    part->next = unused;
    unused = part;
  } else if (part != nullptr) {
    unmap(*part);
    std::free(part);
  }
  part = nullptr;
  pthread_mutex_unlock(&mutex);
}

// A child has a file of its own, once it calls.
void child_begins() {
  state = State::kNew;
  file_size = 0;
  unused = part = nullptr;
  lost = 0;
  full = false;
  thread_number = 0;
  pthread_mutex_unlock(&mutex);
}

// The first part of the file if no process has written there, otherwise of one beside it.
char* begin_file(const char* path, size_t size) {
  for (size_t number = 0; number < kMostNames; ++number) {
    if (number == 0) std::snprintf(file_name, sizeof file_name, "%s", path);
    if (number == 1) std::snprintf(file_name, sizeof file_name, "%s.%d", path, getpid());
    if (number > 1) std::snprintf(file_name, sizeof file_name, "%s.%d.%zu", path, getpid(), number);
    const int file = open(file_name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return nullptr;
    // Of two that find it empty, one waits for the other's first part, or for it to be removed.
    const bool empty = flock(file, LOCK_EX) == 0 && fstat(file, &file_status) == 0 &&
                       file_status.st_size == 0 && file_status.st_nlink != 0;
    char* const start = empty ? map_next(file, size) : nullptr;
    const int problem = errno;
    if (empty && start == nullptr) unlink(file_name);  // so that `gpumem trace` knows that it was said
    flock(file, LOCK_UN);                              // what is mapped keeps it otherwise
    close(file);
    errno = problem;
    if (empty) return start;
  }
  return nullptr;
}

// Under the mutex. Whether there is a file now. `first` is when the call began that opens it.
bool begin(uint64_t first) {
  // GPUMEM_TRACE_FILE | a file | none | set for the program that is recorded: the file to write
  const char* const path = secure_getenv("GPUMEM_TRACE_FILE");
  if (path == nullptr) return false;
  static bool watches = false;
  if (!watches) {
    if (pthread_key_create(&thread_ends, thread_has_ended) != 0) return false;
    pthread_atfork([] { pthread_mutex_lock(&mutex); }, [] { pthread_mutex_unlock(&mutex); }, child_begins);
    watches = true;
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const start = begin_file(path, page);
  if (start == nullptr) {
    dprintf(STDERR_FILENO, "gpumem trace: process %d is not recorded: %s cannot be written: %s\n", getpid(),
            file_name, std::strerror(errno));
    return false;
  }
  char command[64] = "";
  for (size_t i = 0; program_invocation_short_name[i] != 0 && i + 1 < sizeof command; ++i) {
    const char byte = program_invocation_short_name[i];
    command[i] = byte < ' ' || byte > '~' || byte == '"' || byte == '\\' ? '?' : byte;
  }
  timespec date = {};
  clock_gettime(CLOCK_REALTIME, &date);
  begun = first;
  const int length =
      std::snprintf(start, page - 1,
                    "{\"gpumem_trace\": 1, \"gpumem\": \"%s\", \"process\": %d, \"command\": \"%s\", "
                    "\"date\": %lld, %s%*d}",
                    real().gpumem_version_text(), getpid(), command, static_cast<long long>(date.tv_sec),
                    kLost, static_cast<int>(kLostDigits), 0);
  start[length] = '\n';
  lost_digits = start + length - 1 - kLostDigits;
  part = static_cast<Part*>(std::malloc(sizeof(Part)));
  if (part != nullptr) *part = {start, page, static_cast<size_t>(length) + 1, nullptr};
  pthread_setspecific(thread_ends, &part);
  return true;
}

// Whether calls are recorded, from the one that began at `start` on.
bool records(uint64_t start) {
  if (state.load(std::memory_order_acquire) == State::kNew) {
    const int error = errno;
    pthread_mutex_lock(&mutex);
    if (state == State::kNew) state = begin(start) ? State::kOpen : State::kOff;
    pthread_mutex_unlock(&mutex);
    errno = error;
  }
  return state.load(std::memory_order_relaxed) == State::kOpen;
}

// What is lost is counted in the first line.
void lose() {
  const uint64_t count = ++lost;
  pthread_mutex_lock(&mutex);
  char digits[kLostDigits + 1];
  std::snprintf(digits, sizeof digits, "%*llu", static_cast<int>(kLostDigits),
                static_cast<unsigned long long>(std::max(count, lost.load())));
  std::memcpy(lost_digits, digits, kLostDigits);
  pthread_mutex_unlock(&mutex);
}

// Makes room for a line.
bool make_room(size_t size) {
  if (part != nullptr && part->size - part->used >= size) return true;
  const int error = errno;
  pthread_mutex_lock(&mutex);
  if (part == nullptr && unused != nullptr && unused->size - unused->used >= size) {
    part = unused;
    unused = part->next;
  } else if (!full &&
             (part != nullptr || (part = static_cast<Part*>(std::calloc(1, sizeof(Part)))) != nullptr)) {
    const size_t wanted =
        std::min(std::max(part->size * 4, static_cast<size_t>(sysconf(_SC_PAGESIZE))), kLargestPart);
    if (char* const start = open_and_map_next(wanted)) {
      if (part->start != nullptr) unmap(*part);
      *part = {start, wanted, 0, nullptr};
    } else {
      full = true;
    }
  }
  pthread_setspecific(thread_ends, &part);
  pthread_mutex_unlock(&mutex);
  errno = error;
  return part != nullptr && part->size - part->used >= size;
}

// ---- a line ----

// Whether a struct of the caller has all that is read of it.
template <typename Struct>
bool knows(const Struct* given, size_t bytes) {
  return given != nullptr && given->struct_size >= bytes;
}

class Line {
 public:
  Line(uint64_t start, const char* call, gpumem_status status, uint64_t end = now())
      : on_(records(start)), end_(end) {
    if (!on_) return;
    if (thread_number == 0) thread_number = static_cast<uint64_t>(gettid());
    // One of another thread may have begun before that which opened the file.
    put("{\"t\": ");
    put(start > begun ? start - begun : 0);
    number("ns", end - start);
    number("thread", thread_number);
    text("call", call);
    put(", \"status\": ");
    put(status);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() {
    if (!on_) return;
    put("}\n");
    if (make_room(size_)) {
      std::memcpy(part->start + part->used, text_, size_);
      part->used += size_;
    } else {
      lose();
    }
  }

  void number(const char* name, uint64_t value) {
    begin_value(name);
    put(value);
  }
  void address(const char* name, const void* value) {
    begin_value(name);
    put("\"0x");
    put(reinterpret_cast<uintptr_t>(value), 16);
    put("\"");
  }
  // A name has 63 bytes at most.
  void text(const char* name, const char* value) {
    if (value == nullptr) return;
    begin_value(name);
    put("\"");
    for (size_t i = 0; on_ && value[i] != 0 && i < kNameSize; ++i) {
      if (value[i] == '"' || value[i] == '\\') put("\\");
      text_[size_++] = static_cast<unsigned char>(value[i]) < ' ' ? '?' : value[i];
    }
    put("\"");
  }
  void kind(gpumem_kind value) {
    static constexpr const char* kNames[] = {"unknown", "pageable", "pinned",  "registered", "device",
                                             "managed", "pool",     "virtual", "imported",   "foreign"};
    text("kind",
         value >= 0 && static_cast<size_t>(value) < std::size(kNames) ? kNames[value] : "of another version");
  }
  void device(gpumem_device device) {
    gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
    if (on_ && real().gpumem_device_get_info(device, &info, nullptr) == GPUMEM_SUCCESS)
      number("device", info.ordinal);
  }

  void describe(gpumem_memory memory) {
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    if (!on_ || real().gpumem_memory_get_info(memory, &info, nullptr) != GPUMEM_SUCCESS) return;
    address("base", info.host_pointer != nullptr ? info.host_pointer : info.device_pointer);
    number("taken", info.granted_size);
  }
  void describe(gpumem_physical physical) {
    gpumem_physical_info info = GPUMEM_PHYSICAL_INFO_INIT;
    if (!on_ || real().gpumem_physical_get_info(physical, &info, nullptr) != GPUMEM_SUCCESS) return;
    number("block", info.block_id);
    number("taken", info.size);
  }
  void describe(gpumem_range range) {
    gpumem_range_info info = GPUMEM_RANGE_INFO_INIT;
    if (on_ && real().gpumem_range_get_info(range, &info, nullptr) == GPUMEM_SUCCESS)
      address("base", info.base);
  }
  void describe(gpumem_buffer buffer) {
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    if (!on_ || real().gpumem_buffer_get_info(buffer, &info, nullptr) != GPUMEM_SUCCESS) return;
    address("base", info.base);
    number("taken", info.capacity);
  }
  void describe(gpumem_ring ring) {
    gpumem_ring_info info = GPUMEM_RING_INFO_INIT;
    if (!on_ || real().gpumem_ring_get_info(ring, &info, nullptr) != GPUMEM_SUCCESS) return;
    address("base", info.base);
    number("taken", info.slot_stride * info.slot_count);
  }
  // This takes a lock, so not at each of many quick calls.
  void describe(gpumem_pool pool, bool always = false) {
    constexpr uint64_t kPause = 1000000;
    if (!on_ || (!always && pool == asked_pool && end_ - asked_at < kPause)) return;
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    if (real().gpumem_pool_get_info(pool, &info, nullptr) != GPUMEM_SUCCESS) return;
    number("taken", info.reserved_bytes);
    asked_pool = pool;
    asked_at = end_;
  }

 private:
  static constexpr size_t kNameSize = 63;

  void put(const char* value) {
    if (!on_) return;
    const size_t length = std::strlen(value);
    std::memcpy(text_ + size_, value, length);
    size_ += length;
  }
  template <typename Number>
  void put(Number value, int base = 10) {
    if (on_)
      size_ = static_cast<size_t>(std::to_chars(text_ + size_, std::end(text_), value, base).ptr - text_);
  }
  void begin_value(const char* name) {
    put(", \"");
    put(name);
    put("\": ");
  }

  bool on_;
  uint64_t end_;
  size_t size_ = 0;
  char text_[kLongestLine];
};

}  // namespace

// ---- the functions ----

#include "functions.inc"

namespace {

gpumem_table functions_of_library = {};
PFN_gpumem_table_get table_get_of_library = nullptr;

[[noreturn]] void end_without(const char* what, const char* why) {
  std::fprintf(stderr, "gpumem trace: %s: %s\n", what, why);
  _exit(127);
}

// The library that comes behind this one; one that a plug-in has loaded for itself; or the one that is named.
void load() {
  void* library = dlsym(RTLD_NEXT, "gpumem_version") != nullptr ? RTLD_NEXT : nullptr;
  if (library == nullptr) library = dlopen("libgpumem.so.0", RTLD_NOW | RTLD_NOLOAD);
  // GPUMEM_TRACE_LIBRARY | a file | `libgpumem.so.0` | set for the program that is recorded: the library of
  // gpumem
  const char* const path = secure_getenv("GPUMEM_TRACE_LIBRARY");
  if (library == nullptr) library = dlopen(path != nullptr ? path : "libgpumem.so.0", RTLD_NOW);
  if (library == nullptr) end_without("the library cannot be loaded", dlerror());
  const auto find = [library](const char* name) {
    void* const function = dlsym(library, name);
    if (function == nullptr) end_without("the library is too old", dlerror());
    return function;
  };
#define FIND(name) functions_of_library.name = reinterpret_cast<PFN_##name>(find(#name));
  GPUMEM_TRACE_FUNCTIONS(FIND)
#undef FIND
  table_get_of_library = reinterpret_cast<PFN_gpumem_table_get>(find("gpumem_table_get"));
}

const gpumem_table& real() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
  return functions_of_library;
}

}  // namespace

gpumem_status gpumem_table_get(uint32_t version, gpumem_table* out_table, gpumem_error* error) {
  real();
  const gpumem_status status = table_get_of_library(version, out_table, error);
  if (status != GPUMEM_SUCCESS) return status;
  const auto has = [out_table](size_t offset) { return offset + sizeof(void*) <= out_table->struct_size; };
#define REPLACE(name) \
  if (has(offsetof(gpumem_table, name)) && out_table->name != nullptr) out_table->name = name;
  GPUMEM_TRACE_FUNCTIONS(REPLACE)
#undef REPLACE
  return status;
}
