// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The harness behind harness.h, and the program's main function.
#include "harness.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "../failures_last.h"
#include "../hole.h"
#include "../quiet_fork.h"
#include "cuda_raw.h"
#include "fake_cuda.h"

// A forked child of a program with threads is exactly what some rules speak of.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace conformance {
namespace {

gpumem_backend chosen_backend = GPUMEM_BACKEND_HOST;
std::vector<std::string> arguments_of_child;

const char* backend_name() { return on_host() ? "host" : "cuda"; }

// A function of the fake driver, or null if another driver is loaded or none.
template <class F>
F fake_function(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return nullptr;
  void* symbol = dlsym(library, name);
  dlclose(library);
  return reinterpret_cast<F>(symbol);
}
#define FAKE(function) fake_function<decltype(&::function)>(#function)

}  // namespace

gpumem_backend backend() { return chosen_backend; }
bool on_fake_cuda() { return on_cuda() && FAKE(fake_cuda_violations); }

std::string take_fake_violations() {
  auto* violations = FAKE(fake_cuda_violations);
  if (!violations) return "";
  std::string text(size_t{1} << 16, '\0');
  if (violations(text.data(), text.size()) == 0) return "";
  text.resize(std::strlen(text.c_str()));
  FAKE(fake_cuda_clear_violations)();
  return text;
}

// ---- statuses ----

namespace {
constexpr gpumem_status kNoStatus = INT32_MIN;
thread_local gpumem_error thread_error = GPUMEM_ERROR_INIT;
thread_local bool thread_error_used = false;
// What an earlier failure has left in the texts.
constexpr const char* kStale = "stale";

bool is_stale(const gpumem_error& error) {
  for (const char* const text : {error.native_name, error.function, error.entry_point, error.message}) {
    if (std::strcmp(text, kStale) == 0) return true;
  }
  return error.native_domain == INT32_MIN || error.native_code == INT32_MIN;
}

bool has_cause(const gpumem_error& error) {
  return error.native_domain != GPUMEM_NATIVE_NONE || error.native_code != 0 ||
         error.native_name[0] != '\0' || error.function[0] != '\0' || error.entry_point[0] != '\0' ||
         error.message[0] != '\0';
}
}  // namespace

gpumem_error* why() {
  thread_error = GPUMEM_ERROR_INIT;
  thread_error.status = kNoStatus;
  thread_error.native_domain = INT32_MIN;
  thread_error.native_code = INT32_MIN;
  for (char* const text :
       {thread_error.native_name, thread_error.function, thread_error.entry_point, thread_error.message}) {
    std::strcpy(text, kStale);
  }
  thread_error_used = true;
  return &thread_error;
}

const gpumem_error& last_error() { return thread_error; }

std::string text_of(gpumem_instance instance, decltype(gpumem_stats_report)* function) {
  std::vector<char> text(65536, 'x');
  uint64_t required = 0;
  EXPECT_OK(function(instance, nullptr, 0, &required, why()));
  EXPECT_NE(required, 0U);
  EXPECT_OK(function(instance, text.data(), text.size(), &required, why()));
  EXPECT_EQ(std::strlen(text.data()) + 1, required);
  return text.data();
}

::testing::AssertionResult status_is_one_of(const char* expected_text, const char* call_text,
                                            const std::vector<gpumem_status>& expected,
                                            gpumem_status actual) {
  const bool has_detail = std::exchange(thread_error_used, false);
  std::ostringstream problem;
  if (std::find(expected.begin(), expected.end(), actual) == expected.end()) {
    problem << "expected " << expected_text << ", got " << gpumem_status_name(actual);
  } else if (has_detail && thread_error.status != actual) {
    problem << "returned " << gpumem_status_name(actual) << ", but the error detail says "
            << (thread_error.status == kNoStatus ? "nothing" : gpumem_status_name(thread_error.status));
  } else if (has_detail && GPUMEM_FAILED(actual) && thread_error.message[0] == '\0') {
    problem << gpumem_status_name(actual) << " came without a message";
  } else if (has_detail && is_stale(thread_error)) {
    problem << gpumem_status_name(actual) << " left something of an earlier failure in the error detail";
  } else if (has_detail && !GPUMEM_FAILED(actual) && has_cause(thread_error)) {
    problem << gpumem_status_name(actual) << " came with a cause";
  } else {
    return ::testing::AssertionSuccess();
  }
  problem << "\n  in " << call_text;
  if (has_detail && thread_error.message[0] != '\0') {
    problem << "\n  " << thread_error.function << ": " << thread_error.message;
    if (thread_error.native_code != 0) {
      problem << " [" << thread_error.entry_point << ": " << thread_error.native_name << " "
              << thread_error.native_code << "]";
    }
  }
  return ::testing::AssertionFailure() << problem.str();
}

::testing::AssertionResult status_is(const char* expected_text, const char* call_text, gpumem_status expected,
                                     gpumem_status actual) {
  return status_is_one_of(expected_text, call_text, {expected}, actual);
}

// ---- handles ----

gpumem_memory_info Memory::info() const {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  EXPECT_OK(gpumem_memory_get_info(get(), &info, why()));
  return info;
}

Stream::~Stream() {
  if (!get()) return;
  // A lost device has no work left.
  EXPECT_STATUS_IN(gpumem_stream_synchronize(get(), GPUMEM_TIMEOUT_INFINITE, why()), GPUMEM_SUCCESS,
                   GPUMEM_ERROR_DEVICE_LOST);
}

void Stream::synchronize() const {
  EXPECT_OK(gpumem_stream_synchronize(get(), GPUMEM_TIMEOUT_INFINITE, why()));
}

gpumem_memory_desc memory_desc(gpumem_kind kind, uint64_t size, gpumem_memory_flags require) {
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = kind;
  desc.size = size;
  desc.require = require;
  return desc;
}

gpumem_register_desc register_desc(void* pointer, uint64_t size, gpumem_memory_flags require) {
  gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
  desc.pointer = pointer;
  desc.size = size;
  desc.require = require;
  return desc;
}

gpumem_status make_memory(gpumem_device device, const AnyDesc& desc, gpumem_memory* out_memory,
                          gpumem_error* error) {
  const auto* allocation = std::get_if<gpumem_memory_desc>(&desc);
  return allocation != nullptr
             ? gpumem_memory_create(device, allocation, out_memory, error)
             : gpumem_memory_register(device, &std::get<gpumem_register_desc>(desc), out_memory, error);
}

Memory create_memory(gpumem_device device, const AnyDesc& desc) {
  gpumem_memory memory = nullptr;
  EXPECT_OK(make_memory(device, desc, &memory, why()));
  return Memory(memory);
}

Memory alloc_device(gpumem_device device, uint64_t size) {
  return create_memory(device, memory_desc(GPUMEM_KIND_DEVICE, size));
}

Memory alloc_pinned(gpumem_device device, uint64_t size, gpumem_memory_flags require) {
  return create_memory(device, memory_desc(GPUMEM_KIND_PINNED, size, require));
}

Memory register_memory(gpumem_device device, void* pointer, uint64_t size, gpumem_memory_flags require) {
  return create_memory(device, register_desc(pointer, size, require));
}

Stream create_stream(gpumem_device device) {
  gpumem_stream stream = nullptr;
  EXPECT_OK(gpumem_stream_create(device, nullptr, &stream, why()));
  return Stream(stream);
}

Stream wrap_stream(gpumem_device device, void* native) {
  gpumem_stream stream = nullptr;
  EXPECT_OK(gpumem_stream_wrap(device, native, &stream, why()));
  return Stream(stream);
}

Event create_event(gpumem_device device, gpumem_event_flags flags) {
  gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
  desc.flags = flags;
  gpumem_event event = nullptr;
  EXPECT_OK(gpumem_event_create(device, &desc, &event, why()));
  return Event(event);
}

gpumem_pointer_info pointer_info(gpumem_instance instance, const void* pointer) {
  gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
  EXPECT_OK(gpumem_pointer_get_info(instance, pointer, &info, why()));
  return info;
}

namespace {
gpumem_access access_at(gpumem_instance instance, const void* pointer, gpumem_location location, int32_t id) {
  gpumem_access access = -1;
  EXPECT_OK(gpumem_pointer_get_access(instance, pointer, location, id, &access, why()));
  return access;
}
}  // namespace

gpumem_access device_access(gpumem_instance instance, const void* pointer, uint32_t ordinal) {
  return access_at(instance, pointer, GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(ordinal));
}

gpumem_access cpu_access(gpumem_instance instance, const void* pointer) {
  const gpumem_access access = access_at(instance, pointer, GPUMEM_LOCATION_HOST, -1);
  EXPECT_EQ(access, access_at(instance, pointer, GPUMEM_LOCATION_HOST, 0));
  return access;
}

gpumem_kind_stats kind_stats(gpumem_instance instance, gpumem_kind kind) {
  gpumem_kind_stats stats = GPUMEM_KIND_STATS_INIT;
  EXPECT_OK(gpumem_stats_get_kind(instance, kind, &stats, why()));
  return stats;
}

bool Counters::operator==(const Counters& other) const {
  return std::memcmp(&all, &other.all, sizeof all) == 0 &&
         std::memcmp(kinds.data(), other.kinds.data(), sizeof kinds) == 0;
}

Counters counters(gpumem_instance instance) {
  Counters now;
  now.all = stats(instance);
  for (size_t i = 0; i < kCountedKinds.size(); ++i)
    now.kinds.at(i) = kind_stats(instance, kCountedKinds.at(i));
  return now;
}

gpumem_stats stats(gpumem_instance instance) {
  gpumem_stats stats = GPUMEM_STATS_INIT;
  EXPECT_OK(gpumem_stats_get(instance, &stats, why()));
  return stats;
}

gpumem_capability_info capability(gpumem_device device, gpumem_capability what, gpumem_device peer) {
  gpumem_capability_info info = GPUMEM_CAPABILITY_INFO_INIT;
  EXPECT_OK(gpumem_device_get_capability(device, what, peer, &info, why()));
  return info;
}

uint32_t ordinal_of(gpumem_device device) {
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  EXPECT_OK(gpumem_device_get_info(device, &info, why()));
  return info.ordinal;
}

// ---- copies and fills ----

gpumem_status copy_on(gpumem_instance instance, gpumem_stream stream, void* destination, const void* source,
                      uint64_t size, const gpumem_copy_options* options, gpumem_error* error) {
  return stream != nullptr ? gpumem_copy_async(stream, destination, source, size, options, error)
                           : gpumem_copy(instance, destination, source, size, options, error);
}

gpumem_status copy_2d_on(gpumem_instance instance, gpumem_stream stream, void* destination,
                         uint64_t destination_pitch, const void* source, uint64_t source_pitch,
                         uint64_t width, uint64_t height, const gpumem_copy_options* options,
                         gpumem_error* error) {
  return stream != nullptr ? gpumem_copy_2d_async(stream, destination, destination_pitch, source,
                                                  source_pitch, width, height, options, error)
                           : gpumem_copy_2d(instance, destination, destination_pitch, source, source_pitch,
                                            width, height, options, error);
}

gpumem_status copy_regions_on(gpumem_instance instance, gpumem_stream stream,
                              const gpumem_copy_region* regions, uint64_t count, uint64_t* out_failed,
                              gpumem_error* error) {
  return stream != nullptr ? gpumem_copy_regions_async(stream, regions, count, out_failed, error)
                           : gpumem_copy_regions(instance, regions, count, out_failed, error);
}

gpumem_status fill_on(gpumem_instance instance, gpumem_stream stream, void* destination, uint64_t size,
                      uint32_t value, uint32_t value_size, gpumem_error* error) {
  return stream != nullptr ? gpumem_fill_async(stream, destination, size, value, value_size, error)
                           : gpumem_fill(instance, destination, size, value, value_size, error);
}

gpumem_status fill_2d_on(gpumem_instance instance, gpumem_stream stream, void* destination, uint64_t pitch,
                         uint64_t width, uint64_t height, uint32_t value, uint32_t value_size,
                         gpumem_error* error) {
  return stream != nullptr
             ? gpumem_fill_2d_async(stream, destination, pitch, width, height, value, value_size, error)
             : gpumem_fill_2d(instance, destination, pitch, width, height, value, value_size, error);
}

// ---- instances ----

Instance& Instance::operator=(Instance&& other) noexcept {
  if (this != &other) {
    close();
    handle_ = other.release();
  }
  return *this;
}

gpumem_device Instance::device(uint32_t ordinal) const {
  gpumem_device device = nullptr;
  EXPECT_OK(gpumem_device_get(handle_, ordinal, &device, why()));
  return device;
}

uint32_t Instance::device_count() const {
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  EXPECT_OK(gpumem_instance_get_info(handle_, &info, why()));
  return info.device_count;
}

void Instance::close() {
  gpumem_instance instance = release();
  if (!instance) return;
  const gpumem_stats now = stats(instance);
  EXPECT_EQ(now.live_count, 0u);
  EXPECT_EQ(now.live_bytes, 0u);
  EXPECT_EQ(now.reserved_bytes, 0u);
  EXPECT_EQ(now.streams, 0u);
  EXPECT_EQ(now.events, 0u);
  const gpumem_status status = gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, why());
  EXPECT_OK(status);
  // One test that leaves something must not fail all that follow.
  if (status == GPUMEM_ERROR_BUSY) gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr);
}

Instance open_instance(const std::function<void(gpumem_instance_desc&, gpumem_host_options&)>& change) {
  gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
  host.strict = GPUMEM_TOGGLE_ON;
  host.device_bytes = uint64_t{64} << 20;  // so that tests can fill a device
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = backend();
  desc.host = &host;
  if (change) change(desc, host);
  gpumem_instance instance = nullptr;
  EXPECT_OK(gpumem_instance_open(&desc, &instance, why()));
  return Instance(instance);
}

Instance open_backend(gpumem_backend which) {
  return open_instance([&](gpumem_instance_desc& desc, gpumem_host_options&) { desc.backend = which; });
}

// ---- ordinary memory and patterns ----

uint64_t page_size() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

Pages::Pages(uint64_t size, int protection)
    : base_(static_cast<uint8_t*>(gpumem::test::map_below_gap(size, protection))), size_(size) {
  if (base_ == MAP_FAILED) std::abort();
}

Pages::~Pages() { munmap(base_, size_); }

namespace {

constexpr uint64_t kPatternStep = 0x9E3779B97F4A7C15u;
constexpr uint64_t kPatternSeed = 0xD1B54A32D192ED03u;
constexpr uint64_t kPatternPiece = 32 * 1024;

}  // namespace

uint8_t pattern_byte(uint32_t seed, uint64_t position) {
  return static_cast<uint8_t>(((position + 1) * kPatternStep + seed * kPatternSeed) >> 56);
}

namespace {

// Into memory of its caller alone: no sanitizer need see each byte.
__attribute__((no_sanitize("address", "thread", "undefined"))) uint64_t make_pattern(uint8_t* bytes,
                                                                                     uint64_t size,
                                                                                     uint64_t mixed) {
  for (uint64_t i = 0; i < size; ++i) {
    mixed += kPatternStep;
    bytes[i] = static_cast<uint8_t>(mixed >> 56);
  }
  return mixed;
}

::testing::AssertionResult differs(const uint8_t* found, const uint8_t* expected, uint64_t at, uint64_t count,
                                   uint64_t size) {
  const auto [wrong, right] = std::mismatch(found, found + count, expected);
  return ::testing::AssertionFailure() << "byte " << at + static_cast<uint64_t>(wrong - found) << " of "
                                       << size << " is " << int{*wrong} << " instead of " << int{*right};
}

}  // namespace

// Piece by piece, since fresh memory of this size costs more than all that is done with it.
void pattern_pieces(uint64_t size, uint32_t seed, const PatternPiece& use) {
  std::array<uint8_t, kPatternPiece> some;
  uint64_t mixed = seed * kPatternSeed;
  for (uint64_t at = 0; at < size; at += some.size()) {
    const uint64_t count = std::min<uint64_t>(some.size(), size - at);
    mixed = make_pattern(some.data(), count, mixed);
    if (!use(some.data(), at, count)) return;
  }
}

void fill_pattern(void* host_memory, uint64_t size, uint32_t seed) {
  auto* bytes = static_cast<uint8_t*>(host_memory);
  pattern_pieces(size, seed, [&](const uint8_t* piece, uint64_t at, uint64_t count) {
    std::memcpy(bytes + at, piece, count);
    return true;
  });
}

::testing::AssertionResult has_pattern(const void* host_memory, uint64_t size, uint32_t seed) {
  const auto* bytes = static_cast<const uint8_t*>(host_memory);
  auto result = ::testing::AssertionSuccess();
  pattern_pieces(size, seed, [&](const uint8_t* piece, uint64_t at, uint64_t count) {
    if (std::memcmp(bytes + at, piece, count) == 0) return true;
    result = differs(bytes + at, piece, at, count, size);
    return false;
  });
  return result;
}

void put_pattern(gpumem_instance instance, void* destination, uint64_t size, uint32_t seed) {
  auto* bytes = static_cast<uint8_t*>(destination);
  pattern_pieces(size, seed, [&](const uint8_t* piece, uint64_t at, uint64_t count) {
    const gpumem_status status = gpumem_copy(instance, bytes + at, piece, count, nullptr, why());
    EXPECT_OK(status);
    return status == GPUMEM_SUCCESS;
  });
}

::testing::AssertionResult holds_pattern(gpumem_instance instance, const void* source, uint64_t size,
                                         uint32_t seed) {
  const auto* bytes = static_cast<const uint8_t*>(source);
  std::array<uint8_t, kPatternPiece> found;
  auto result = ::testing::AssertionSuccess();
  pattern_pieces(size, seed, [&](const uint8_t* piece, uint64_t at, uint64_t count) {
    const gpumem_status status = gpumem_copy(instance, found.data(), bytes + at, count, nullptr, why());
    if (status != GPUMEM_SUCCESS) {
      result = status_is("GPUMEM_SUCCESS", "copy of the bytes", 0, status);
    } else if (std::memcmp(found.data(), piece, count) != 0) {
      result = differs(found.data(), piece, at, count, size);
    }
    return static_cast<bool>(result);
  });
  return result;
}

bool all_are(const void* host_memory, uint64_t size, uint8_t value) {
  const auto* bytes = static_cast<const uint8_t*>(host_memory);
  return size == 0 || (bytes[0] == value && std::memcmp(bytes, bytes + 1, size - 1) == 0);
}

::testing::AssertionResult holds_only(gpumem_instance instance, const void* source, uint64_t size,
                                      uint8_t value) {
  const auto* bytes = static_cast<const uint8_t*>(source);
  std::array<uint8_t, kPatternPiece> found;
  for (uint64_t at = 0; at < size; at += found.size()) {
    const uint64_t count = std::min<uint64_t>(found.size(), size - at);
    found.fill(static_cast<uint8_t>(~value));
    const gpumem_status status = gpumem_copy(instance, found.data(), bytes + at, count, nullptr, why());
    if (status != GPUMEM_SUCCESS) return status_is("GPUMEM_SUCCESS", "copy of the bytes", 0, status);
    if (all_are(found.data(), count, value)) continue;
    const auto* const wrong =
        std::find_if(found.begin(), found.end(), [&](uint8_t byte) { return byte != value; });
    return ::testing::AssertionFailure()
           << "byte " << at + static_cast<uint64_t>(wrong - found.begin()) << " of " << size << " is "
           << int{*wrong} << " instead of " << int{value};
  }
  return ::testing::AssertionSuccess();
}

// ---- gates ----

struct Gate::State {
  std::atomic<bool> open{false};
  std::atomic<int> arrived{0};
};

Gate::Gate() {
  // A held function may run after its gate is gone, or never, if its device is lost: states are kept for
  // ever.
  static std::mutex mutex;
  static auto& states = *new std::deque<State>;
  const std::lock_guard lock(mutex);
  state_ = &states.emplace_back();
}

void Gate::hold(gpumem_stream stream) {
  const auto wait_here = [](void* user_data) {
    auto* state = static_cast<State*>(user_data);
    ++state->arrived;
    state->arrived.notify_all();
    state->open.wait(false);
  };
  EXPECT_OK(gpumem_stream_launch_host_function(stream, wait_here, state_, why()));
}

void Gate::open() {
  state_->open = true;
  state_->open.notify_all();
}

void Gate::wait_until_reached() { state_->arrived.wait(0); }

void GatedStream::finish() {
  open();
  stream_.synchronize();
}

// ---- faults of the CPU ----

namespace {

thread_local sigjmp_buf fault_return;
thread_local volatile sig_atomic_t fault_expected = 0;

void on_fault(int signal) {
  if (!fault_expected) {
    std::signal(signal, SIG_DFL);
    return;  // the instruction runs again and ends the process
  }
  siglongjmp(fault_return, 1);
}

}  // namespace

bool raises_fault(const std::function<void()>& code) {
  struct sigaction action = {};
  action.sa_handler = on_fault;
  action.sa_flags = SA_NODEFER;
  struct sigaction old_segv;
  struct sigaction old_bus;
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGBUS, &action, &old_bus);
  volatile bool faulted = false;
  if (sigsetjmp(fault_return, 1) == 0) {
    fault_expected = 1;
    code();
  } else {
    faulted = true;
  }
  fault_expected = 0;
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  return faulted;
}

// A device may use the byte at the same time; ThreadSanitizer is not to judge that.
[[gnu::noinline, gnu::no_sanitize_thread]] uint8_t peek(const void* address) {
  return *static_cast<const volatile uint8_t*>(address);
}

namespace {

[[gnu::noinline, gnu::no_sanitize_thread]] void write_byte(void* address) {
  *static_cast<volatile uint8_t*>(address) = 1;
}

}  // namespace

bool read_faults(const void* address) {
  return raises_fault([=] { (void)peek(address); });
}

bool write_faults(void* address) {
  return raises_fault([=] { write_byte(address); });
}

// ---- other processes ----

namespace {

constexpr int kPassedDescriptor = 3;  // of a child

std::map<std::string, void (*)()>& children() {
  static auto& map = *new std::map<std::string, void (*)()>;
  return map;
}

// Files without a name that take what a child prints.
class Output {
 public:
  Output() : out_(memfd_create("out", MFD_CLOEXEC)), err_(memfd_create("err", MFD_CLOEXEC)) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    close(out_);
    close(err_);
  }
  int out() const { return out_; }
  int err() const { return err_; }

  ProcessResult wait_for(pid_t pid) const {
    ProcessResult result;
    if (pid <= 0) {
      result.err = "it did not start, or was waited for before";
      return result;
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    result.out = text_of(out_);
    result.err = text_of(err_);
    return result;
  }

 private:
  static std::string text_of(int file) {
    std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
    const ssize_t got = pread(file, text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }
  int out_;
  int err_;
};

}  // namespace

std::ostream& operator<<(std::ostream& stream, const ProcessResult& result) {
  stream << "the child ended with ";
  if (result.signal != 0) {
    stream << "signal " << result.signal << " (" << strsignal(result.signal) << ")";
  } else {
    stream << "exit code " << result.exit_code;
  }
  return stream << "\n" << result.out << result.err;
}

ProcessResult in_forked_child(const std::function<void()>& code) {
  const Output output;
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t pid = gpumem::test::quiet_fork();
  if (pid == 0) {
    alarm(gpumem::test::kHangSeconds);
    dup2(output.out(), STDOUT_FILENO);
    dup2(output.err(), STDERR_FILENO);
    const testing::TestResult* test = testing::UnitTest::GetInstance()->current_test_info()->result();
    const int before = test->total_part_count();
    code();
    std::fflush(nullptr);
    bool failed = false;
    for (int i = before; i < test->total_part_count(); ++i) {
      failed = failed || test->GetTestPartResult(i).failed();
    }
    _exit(failed ? 1 : 0);
  }
  return output.wait_for(pid);
}

std::vector<std::string> changed_environment(const std::vector<std::string>& changes) {
  // What the gate saves where programs start by the hundred.
  const char* const options = std::getenv("GPUMEM_TEST_CHILD_ASAN_OPTIONS");
  std::vector<std::string> all = changes;
  if (options != nullptr) all.push_back(std::string("ASAN_OPTIONS=") + options);
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const bool changed = std::any_of(all.begin(), all.end(), [&](const std::string& change) {
      return name_of(change) == name_of(*entry);
    });
    if (!changed) variables.push_back(*entry);
  }
  std::copy_if(all.begin(), all.end(), std::back_inserter(variables),
               [](const std::string& change) { return change.find('=') != std::string::npos; });
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts)
    list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

namespace {

// The pid, or -1 and why not in `problem`. A descriptor at 0 or above is passed on as number 3.
pid_t start_child(const std::string& name, const std::vector<std::string>& environment,
                  const std::vector<std::string>& arguments, const Output& output, int passed,
                  std::string* problem) {
  std::vector<std::string> variables = changed_environment(environment);
  std::vector<std::string> words;
  std::string program = "/proc/self/exe";
  // A program that runs in an emulator starts its children in it too.
  if (const char* const emulator = std::getenv("GPUMEM_TEST_EMULATOR")) {
    std::istringstream text(emulator);
    words.assign(std::istream_iterator<std::string>(text), {});
    words.push_back(std::filesystem::read_symlink(program));
    program = words.front();
  } else {
    words.push_back("gpumem_conformance");
  }
  words.insert(words.end(), {"--backend", backend_name(), "--child", name});
  words.insert(words.end(), arguments.begin(), arguments.end());

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output.out(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.err(), STDERR_FILENO);
  if (passed >= 0) posix_spawn_file_actions_adddup2(&actions, passed, kPassedDescriptor);
  pid_t pid = -1;
  const int failure = posix_spawnp(&pid, program.c_str(), &actions, nullptr, pointers(words).data(),
                                   pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failure == 0) return pid;
  *problem = std::string("cannot start: ") + std::strerror(failure);
  return -1;
}

}  // namespace

ProcessResult run_child(const std::string& name, const std::vector<std::string>& environment,
                        const std::vector<std::string>& arguments) {
  const Output output;
  ProcessResult result;
  const pid_t pid = start_child(name, environment, arguments, output, -1, &result.err);
  return pid < 0 ? result : output.wait_for(pid);
}

struct Peer::Started {
  Output output;
  std::string problem;
};

Peer::Peer(const std::string& name, const std::vector<std::string>& arguments)
    : started_(std::make_unique<Started>()) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  socket_ = ends[0];
  pid_ = start_child(name, {}, arguments, started_->output, ends[1], &started_->problem);
  EXPECT_GT(pid_, 0) << started_->problem;
  close(ends[1]);
}

Peer::~Peer() {
  if (pid_ > 0) {
    const ProcessResult result = end();
    EXPECT_TRUE(result.ok()) << result;
  }
  if (socket_ >= 0) close(socket_);
}

ProcessResult Peer::end() {
  close(std::exchange(socket_, -1));
  return started_->output.wait_for(std::exchange(pid_, -1));
}

bool Peer::signal(int number) const { return pid_ > 0 && ::kill(pid_, number) == 0; }

void Peer::kill() {
  EXPECT_TRUE(signal(SIGKILL)) << "there is no process to kill";
  started_->output.wait_for(std::exchange(pid_, -1));
}

int Peer::other_side() { return kPassedDescriptor; }

bool send_bytes(int socket, const void* bytes, size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size != 0) {
    const ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_bytes(int socket, void* bytes, size_t size) {
  char* at = static_cast<char*>(bytes);
  while (size != 0) {
    const ssize_t got = recv(socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

const std::vector<std::string>& child_arguments() { return arguments_of_child; }

int register_child(const char* name, void (*function)()) {
  children()[name] = function;
  return 0;
}

void skip_child(const std::string& reason) {
  std::cout << reason << std::flush;
  _exit(kChildSkipped);
}

// ---- what is left behind ----

namespace {

// On cuda the driver keeps device files, event files and memory files of its own for as long as it likes.
bool may_be_the_drivers(const std::string& target) {
  return on_cuda() && (target.empty() || target[0] != '/' || target.rfind("/dev/", 0) == 0 ||
                       target.rfind("/memfd:", 0) == 0 || target.rfind("/proc/", 0) == 0);
}

}  // namespace

Snapshot Snapshot::take() {
  namespace fs = std::filesystem;
  Snapshot snapshot;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    const bool is_this_list = target.find("/proc/") == 0 && target.find("/fd") != std::string::npos;
    if (!gone && !is_this_list && !may_be_the_drivers(target)) snapshot.file_descriptors.push_back(target);
  }
  std::sort(snapshot.file_descriptors.begin(), snapshot.file_descriptors.end());
  if (on_cuda()) return snapshot;

  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:") != std::string::npos) ++snapshot.shared_mappings;
  }
  for ([[maybe_unused]] const fs::directory_entry& entry : fs::directory_iterator("/proc/self/task")) {
    ++snapshot.threads;
  }
  return snapshot;
}

::testing::AssertionResult nothing_left_since(const Snapshot& before) {
  Snapshot now = Snapshot::take();
  // A joined thread is listed until the kernel has cleaned up after it.
  for (const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
       now.threads > before.threads && std::chrono::steady_clock::now() < limit; now = Snapshot::take())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::vector<std::string> left;
  std::set_difference(now.file_descriptors.begin(), now.file_descriptors.end(),
                      before.file_descriptors.begin(), before.file_descriptors.end(),
                      std::back_inserter(left));
  if (left.empty() && now.shared_mappings <= before.shared_mappings && now.threads <= before.threads) {
    return ::testing::AssertionSuccess();
  }
  auto failure = ::testing::AssertionFailure();
  for (const std::string& target : left)
    failure << "open file left: " << target << "\n";
  failure << "mappings of memory files: " << before.shared_mappings << " before, " << now.shared_mappings
          << " now; threads: " << before.threads << " before, " << now.threads << " now";
  return failure;
}

// ---- other code of the process ----

#ifdef HAVE_CUDA_HEADERS

const CudaRaw& raw() {
  static const CudaRaw functions = [] {
    CudaRaw table;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      ADD_FAILURE() << dlerror();
      return table;
    }
#define CUDA_RAW_NAME_OF(text) #text
#define CUDA_RAW_NAME(function) CUDA_RAW_NAME_OF(function)
#define CUDA_RAW_LOAD(function) \
  table.function = reinterpret_cast<decltype(table.function)>(dlsym(library, CUDA_RAW_NAME(function)));
    CUDA_RAW_FUNCTIONS(CUDA_RAW_LOAD)
    EXPECT_EQ(table.cuInit(0), CUDA_SUCCESS);
    return table;
  }();
  return functions;
}

PrimaryContext::PrimaryContext(uint32_t ordinal) {
  EXPECT_EQ(raw().cuDeviceGet(&device_, static_cast<int>(ordinal)), CUDA_SUCCESS);
  EXPECT_EQ(raw().cuDevicePrimaryCtxRetain(&context_, device_), CUDA_SUCCESS);
  EXPECT_EQ(raw().cuCtxPushCurrent(context_), CUDA_SUCCESS);
}

PrimaryContext::~PrimaryContext() {
  CUcontext popped = nullptr;
  EXPECT_EQ(raw().cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(raw().cuDevicePrimaryCtxRelease(device_), CUDA_SUCCESS);
}

std::string no_foreign_reason() { return ""; }

#else

std::string no_foreign_reason() {
  return on_host() ? "" : "built without the CUDA headers: other code that uses the driver cannot be played";
}

#endif

ForeignMemory::ForeignMemory(gpumem_device device, gpumem_kind kind, uint64_t size)
    : device_(device), kind_(kind) {
  if (on_host()) {
    void* pointer = nullptr;
    EXPECT_OK(gpumem_host_foreign_alloc(device, kind, size, &pointer, why()));
    pointer_ = static_cast<uint8_t*>(pointer);
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  const PrimaryContext context(ordinal_of(device));
  if (kind == GPUMEM_KIND_DEVICE) {
    CUdeviceptr pointer = 0;
    EXPECT_EQ(raw().cuMemAlloc(&pointer, size), CUDA_SUCCESS);
    pointer_ = reinterpret_cast<uint8_t*>(pointer);
  } else {
    void* pointer = nullptr;
    const unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    EXPECT_EQ(raw().cuMemHostAlloc(&pointer, size, flags), CUDA_SUCCESS);
    pointer_ = static_cast<uint8_t*>(pointer);
  }
#endif
}

void ForeignMemory::free() {
  uint8_t* pointer = std::exchange(pointer_, nullptr);
  if (!pointer) return;
  if (on_host()) {
    EXPECT_OK(gpumem_host_foreign_free(device_, pointer, why()));
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  const PrimaryContext context(ordinal_of(device_));
  if (kind_ == GPUMEM_KIND_DEVICE) {
    EXPECT_EQ(raw().cuMemFree(reinterpret_cast<CUdeviceptr>(pointer)), CUDA_SUCCESS);
  } else {
    EXPECT_EQ(raw().cuMemFreeHost(pointer), CUDA_SUCCESS);
  }
#endif
}

NativeStream::NativeStream(gpumem_device device) : device_(device) {
  if (on_host()) {
    EXPECT_OK(gpumem_host_native_stream_create(device, &native_, why()));
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  const PrimaryContext context(ordinal_of(device));
  CUstream stream = nullptr;
  EXPECT_EQ(raw().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  native_ = stream;
#endif
}

NativeStream::~NativeStream() {
  if (on_host()) {
    EXPECT_OK(gpumem_host_native_stream_destroy(device_, native_, why()));
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  const PrimaryContext context(ordinal_of(device_));
  EXPECT_EQ(raw().cuStreamDestroy(static_cast<CUstream>(native_)), CUDA_SUCCESS);
#endif
}

void NativeStream::begin_capture(gpumem_stream adopted) {
  if (on_host()) {
    EXPECT_OK(gpumem_host_stream_set_capturing(adopted, 1, why()));
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  const PrimaryContext context(ordinal_of(device_));
  EXPECT_EQ(raw().cuStreamBeginCapture(static_cast<CUstream>(native_), CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
#endif
}

void NativeStream::end_capture(gpumem_stream adopted) {
  if (on_host()) {
    EXPECT_OK(gpumem_host_stream_set_capturing(adopted, 0, why()));
    return;
  }
#ifdef HAVE_CUDA_HEADERS
  const PrimaryContext context(ordinal_of(device_));
  CUgraph graph = nullptr;
  EXPECT_EQ(raw().cuStreamEndCapture(static_cast<CUstream>(native_), &graph), CUDA_SUCCESS);
  if (graph) {
    EXPECT_EQ(raw().cuGraphDestroy(graph), CUDA_SUCCESS);
  }
#endif
}

void Faults::fail_step(uint64_t k, bool repeat) {
  if (on_host()) {
    EXPECT_EQ(gpumem_host_fail_step(instance_, k, repeat ? 1 : 0, nullptr), GPUMEM_SUCCESS);
  } else {
    constexpr int kOutOfMemory = 2;
    FAKE(fake_cuda_fail)("*", k, repeat ? 1 : 0, kOutOfMemory);
  }
}

void Faults::fail_call(const char* function, int code) { FAKE(fake_cuda_fail)(function, 1, 0, code); }

void Faults::off() {
  if (on_host()) {
    EXPECT_EQ(gpumem_host_fail_step(instance_, 0, 0, nullptr), GPUMEM_SUCCESS);
  } else {
    FAKE(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
  }
}

void Faults::fail_driver_call(const char* entry_point, int code, bool repeat) {
  FAKE(fake_cuda_fail)(entry_point, 1, repeat ? 1 : 0, code);
}

void Faults::fail_driver_calls(const char* entry_point, int code, uint64_t first, uint64_t count) {
  for (uint64_t k = first; k < first + count; ++k)
    FAKE(fake_cuda_fail)(entry_point, k, 0, code);
}

void ReusedHandles::set(const char* value) {
  if (on_fake_cuda()) FAKE(fake_cuda_configure)("FAKE_CUDA_REUSE_STREAMS", value);
}

uint64_t driver_calls() { return on_fake_cuda() ? FAKE(fake_cuda_call_count)("*") : 0; }

void set_fake_attribute(int attribute, int value) { FAKE(fake_cuda_set_attribute)(-1, attribute, value); }

bool can_lose() { return on_host() || on_fake_cuda(); }

void lose(gpumem_device device) {
  if (on_host()) {
    EXPECT_OK(gpumem_host_device_lose(device, why()));
  } else {
    constexpr int kIllegalAddress = 700;
    FAKE(fake_cuda_set_sticky)(static_cast<int>(ordinal_of(device)), kIllegalAddress);
  }
}

// ---- the fixture ----

void Conformance::SetUp() {
  before_ = Snapshot::take();
  instance_ = open_instance();
  ASSERT_TRUE(instance_.get());
  device_ = instance_.device();
  ASSERT_TRUE(device_);
}

void Conformance::TearDown() {
  instance_.close();
  EXPECT_TRUE(nothing_left_since(before_));
}

gpumem_device Conformance::second_device() const {
  return instance_.device_count() > 1 ? instance_.device(1) : nullptr;
}

// ---- the program ----

namespace {

// What the fake driver found wrong with its use is a failure of the test that ran.
class NoViolations : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& /*test*/) override { EXPECT_EQ(take_fake_violations(), ""); }
};

int usage(std::ostream& stream, int exit_code) {
  stream << "Usage: gpumem_conformance [--backend host|cuda] [--gtest_...]\n\n"
            "Checks the rules of the memory-semantics contract on one backend, the host backend by default.\n"
            "Each test is named after its rule: --gtest_filter='*com_11*' runs the tests of COM-11,\n"
            "--gtest_list_tests lists all.\n";
  return exit_code;
}

int run_as_child(const std::string& name) {
  const auto child = children().find(name);
  if (child == children().end()) {
    std::cerr << "no child is named " << name << "\n";
    return 2;
  }
  child->second();
  EXPECT_EQ(take_fake_violations(), "");
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

// What the driver or the library sets up once for the process is there before the first test looks. On cuda
// the instance stays open, because setting up a device anew for each test takes most of the time.
bool warm_up() {
  std::thread([] {}).join();  // a sanitizer starts a thread of its own beside the first
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = backend();
  gpumem_instance instance = nullptr;
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (gpumem_instance_open(&desc, &instance, &error) != GPUMEM_SUCCESS) {
    std::cerr << "gpumem_conformance: the " << backend_name()
              << " backend cannot be opened: " << error.message << "\n";
    return false;
  }
  return on_cuda() || gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, nullptr) == GPUMEM_SUCCESS;
}

int run(int argc, char** argv) {
  std::string child;
  bool list_only = false;
  std::vector<char*> rest = {argv[0]};
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--help" || word == "-h") return usage(std::cout, 0);
    if (word == "--backend" && i + 1 < argc) word = std::string("--backend=") + argv[++i];
    if (word == "--backend=host") {
      chosen_backend = GPUMEM_BACKEND_HOST;
    } else if (word == "--backend=cuda") {
      chosen_backend = GPUMEM_BACKEND_CUDA;
    } else if (word.rfind("--backend", 0) == 0) {
      return usage(std::cerr, 2);
    } else if (word == "--child" && i + 1 < argc) {
      child = argv[++i];
      arguments_of_child.assign(argv + i + 1, argv + argc);
      break;
    } else {
      list_only = list_only || word == "--gtest_list_tests";
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  rest.push_back(nullptr);
  testing::InitGoogleTest(&count, rest.data());
  FailuresLast::install();
  testing::UnitTest::GetInstance()->listeners().Append(new NoViolations);
  if (count > 1) {
    std::cerr << "gpumem_conformance: unknown argument " << rest[1] << "\n";
    return usage(std::cerr, 2);
  }
  if (!child.empty()) return run_as_child(child);
  setenv("GPUMEM_BACKEND", backend_name(), 1);  // of the default instance, whatever the machine has
  if (!list_only && !warm_up()) return 1;
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) { return conformance::run(argc, argv); }
