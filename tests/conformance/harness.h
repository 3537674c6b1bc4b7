// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What every conformance test stands on: an open instance of the backend under test, handles that clean up
// after themselves, ways to hold a stream, to expect a fault, to run a second process, and to see what is
// left behind.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "../sanitizer.h"
#include "gpumem/gpumem.h"

namespace conformance {

// ---- what is under test ----

gpumem_backend backend();  // as --backend says
inline bool on_host() { return backend() == GPUMEM_BACKEND_HOST; }
inline bool on_cuda() { return backend() == GPUMEM_BACKEND_CUDA; }
// The driver in use is the one of tests/fake_cuda.
bool on_fake_cuda();
// The breaches of the driver's rules that the fake driver has counted, which it then forgets; at the end of a
// test there must be none.
std::string take_fake_violations();

// Built with a sanitizer, whose mlock does nothing and which needs file descriptors of its own.
using gpumem::test::kThreadSanitizer;
inline constexpr bool kSanitized =
    kThreadSanitizer || gpumem::test::kAddressSanitizer || gpumem::test::kUndefinedSanitizer;

#define SKIP_RULE(reason) GTEST_SKIP() << (reason)

// ---- statuses ----

// Error detail for the next call of this thread; EXPECT_STATUS looks into it. Use it as the last argument of
// any call whose status is checked: EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(memory, why()));
gpumem_error* why();
// What the last call of this thread that was given why() has written.
const gpumem_error& last_error();
// The whole text that a function writes of an instance.
std::string text_of(gpumem_instance instance, decltype(gpumem_stats_report)* function);

// Compares, and checks that the detail agrees with the status (COM-16).
::testing::AssertionResult status_is(const char* expected_text, const char* call_text, gpumem_status expected,
                                     gpumem_status actual);
::testing::AssertionResult status_is_one_of(const char* expected_text, const char* call_text,
                                            const std::vector<gpumem_status>& expected, gpumem_status actual);

#define EXPECT_STATUS(expected, call) EXPECT_PRED_FORMAT2(::conformance::status_is, expected, call)
#define ASSERT_STATUS(expected, call) ASSERT_PRED_FORMAT2(::conformance::status_is, expected, call)
#define EXPECT_OK(call) EXPECT_STATUS(GPUMEM_SUCCESS, call)
#define ASSERT_OK(call) ASSERT_STATUS(GPUMEM_SUCCESS, call)
// `call` comes first because the list may contain commas: EXPECT_STATUS_IN(call, A, B, C).
#define EXPECT_STATUS_IN(call, ...) \
  EXPECT_PRED_FORMAT2(::conformance::status_is_one_of, (std::vector<gpumem_status>{__VA_ARGS__}), call)

// ---- handles that clean up ----

// Owns a handle; the destructor destroys it and reports a failing destroy as a failure of the test.
template <class T, gpumem_status (*destroy_function)(T, gpumem_error*)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      destroy();
      handle_ = other.release();
    }
    return *this;
  }
  ~Owned() { destroy(); }

  T get() const { return handle_; }
  operator T() const { return handle_; }  // NOLINT: stands for the handle in every call
  T release() { return std::exchange(handle_, nullptr); }
  void destroy() {
    T handle = release();
    if (handle) {
      EXPECT_OK(destroy_function(handle, why()));
    }
  }

 private:
  T handle_ = nullptr;
};

class Memory : public Owned<gpumem_memory, gpumem_memory_destroy> {
 public:
  using Owned::Owned;
  gpumem_memory_info info() const;
  uint64_t size() const { return info().size; }
  // First byte as the CPU and as devices see it.
  uint8_t* host() const { return static_cast<uint8_t*>(info().host_pointer); }
  uint8_t* device() const { return static_cast<uint8_t*>(info().device_pointer); }
};
using Event = Owned<gpumem_event, gpumem_event_destroy>;

// Its destructor also waits for the stream's work, so that memory declared before the stream can be freed.
class Stream : public Owned<gpumem_stream, gpumem_stream_destroy> {
 public:
  using Owned::Owned;
  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&&) noexcept = default;
  ~Stream();
  void synchronize() const;
};

// An allocation or a registration.
using AnyDesc = std::variant<gpumem_memory_desc, gpumem_register_desc>;
gpumem_status make_memory(gpumem_device device, const AnyDesc& desc, gpumem_memory* out_memory,
                          gpumem_error* error);

// Everything takes a device and fails the test if it cannot be had; the handle is then NULL.
Memory create_memory(gpumem_device device, const AnyDesc& desc);
Memory alloc_device(gpumem_device device, uint64_t size);
Memory alloc_pinned(gpumem_device device, uint64_t size, gpumem_memory_flags require = 0);
Memory register_memory(gpumem_device device, void* pointer, uint64_t size, gpumem_memory_flags require = 0);
Stream create_stream(gpumem_device device);
Stream wrap_stream(gpumem_device device, void* native);
Event create_event(gpumem_device device, gpumem_event_flags flags = 0);

gpumem_memory_desc memory_desc(gpumem_kind kind, uint64_t size, gpumem_memory_flags require = 0);
gpumem_register_desc register_desc(void* pointer, uint64_t size, gpumem_memory_flags require = 0);
gpumem_pointer_info pointer_info(gpumem_instance instance, const void* pointer);
// What a device, or the CPU, may do there.
gpumem_access device_access(gpumem_instance instance, const void* pointer, uint32_t ordinal);
gpumem_access cpu_access(gpumem_instance instance, const void* pointer);
gpumem_stats stats(gpumem_instance instance);
gpumem_kind_stats kind_stats(gpumem_instance instance, gpumem_kind kind);
inline constexpr std::array kCountedKinds{GPUMEM_KIND_DEVICE,  GPUMEM_KIND_PINNED,  GPUMEM_KIND_REGISTERED,
                                          GPUMEM_KIND_MANAGED, GPUMEM_KIND_VIRTUAL, GPUMEM_KIND_IMPORTED};

// Everything that an instance counts.
struct Counters {
  gpumem_stats all = GPUMEM_STATS_INIT;
  std::array<gpumem_kind_stats, kCountedKinds.size()> kinds{};
  bool operator==(const Counters& other) const;
};
Counters counters(gpumem_instance instance);
gpumem_capability_info capability(gpumem_device device, gpumem_capability what, gpumem_device peer = nullptr);

// Each enqueues in `stream`, or does the work at once where that is NULL.
gpumem_status copy_on(gpumem_instance instance, gpumem_stream stream, void* destination, const void* source,
                      uint64_t size, const gpumem_copy_options* options, gpumem_error* error);
gpumem_status copy_2d_on(gpumem_instance instance, gpumem_stream stream, void* destination,
                         uint64_t destination_pitch, const void* source, uint64_t source_pitch,
                         uint64_t width, uint64_t height, const gpumem_copy_options* options,
                         gpumem_error* error);
gpumem_status copy_regions_on(gpumem_instance instance, gpumem_stream stream,
                              const gpumem_copy_region* regions, uint64_t count, uint64_t* out_failed,
                              gpumem_error* error);
gpumem_status fill_on(gpumem_instance instance, gpumem_stream stream, void* destination, uint64_t size,
                      uint32_t value, uint32_t value_size, gpumem_error* error);
gpumem_status fill_2d_on(gpumem_instance instance, gpumem_stream stream, void* destination, uint64_t pitch,
                         uint64_t width, uint64_t height, uint32_t value, uint32_t value_size,
                         gpumem_error* error);

// An instance of the backend under test. The destructor checks that nothing lives and closes it.
class Instance {
 public:
  Instance() = default;
  explicit Instance(gpumem_instance handle) : handle_(handle) {}
  Instance(Instance&& other) noexcept : handle_(other.release()) {}
  Instance& operator=(Instance&& other) noexcept;
  ~Instance() { close(); }

  gpumem_instance get() const { return handle_; }
  operator gpumem_instance() const { return handle_; }  // NOLINT: stands for the handle in every call
  gpumem_instance release() { return std::exchange(handle_, nullptr); }
  gpumem_device device(uint32_t ordinal = 0) const;
  uint32_t device_count() const;
  void close();

 private:
  gpumem_instance handle_ = nullptr;
};

// Options of the host backend have no effect on cuda. The default is STRICT with two devices of 64 MiB.
Instance open_instance(const std::function<void(gpumem_instance_desc&, gpumem_host_options&)>& change = {});
Instance open_backend(gpumem_backend which);

// ---- ordinary memory ----

// Page-aligned private anonymous memory, as mmap gives it.
class Pages {
 public:
  explicit Pages(uint64_t size, int protection = 3 /* PROT_READ | PROT_WRITE */);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();
  uint8_t* get() const { return base_; }
  uint64_t size() const { return size_; }

 private:
  uint8_t* base_;
  uint64_t size_;
};
uint64_t page_size();

// ---- patterns ----

// Bytes that depend on seed and position, so that shifted, missing or foreign bytes are found.
uint8_t pattern_byte(uint32_t seed, uint64_t position);
// Calls `use` with each piece of the pattern, where it lies and its size, until it returns false.
using PatternPiece = std::function<bool(const uint8_t* piece, uint64_t at, uint64_t count)>;
void pattern_pieces(uint64_t size, uint32_t seed, const PatternPiece& use);
void fill_pattern(void* host_memory, uint64_t size, uint32_t seed);
::testing::AssertionResult has_pattern(const void* host_memory, uint64_t size, uint32_t seed);
// The same for memory of any kind, through synchronous copies.
void put_pattern(gpumem_instance instance, void* destination, uint64_t size, uint32_t seed);
::testing::AssertionResult holds_pattern(gpumem_instance instance, const void* source, uint64_t size,
                                         uint32_t seed);

// Whether all bytes are `value`.
bool all_are(const void* host_memory, uint64_t size, uint8_t value);
::testing::AssertionResult holds_only(gpumem_instance instance, const void* source, uint64_t size,
                                      uint8_t value);

// ---- holding a stream ----

// Holds streams by host functions that wait until the gate opens. A driver may run the host functions of all
// streams on one thread: while a gate is closed, do not wait for a host function of another stream.
class Gate {
 public:
  Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }
  void hold(gpumem_stream stream);
  void open();
  void wait_until_reached();  // until a held stream stands at the gate

  struct State;

 private:
  State* state_;
};

// A stream that runs nothing until open().
class GatedStream {
 public:
  explicit GatedStream(gpumem_device device) : stream_(create_stream(device)) { gate_.hold(stream_); }
  operator gpumem_stream() const { return stream_; }  // NOLINT: stands for the handle in every call
  gpumem_stream get() const { return stream_; }
  void open() { gate_.open(); }
  // Opens the gate and waits for all work.
  void finish();

 private:
  Stream stream_;
  Gate gate_;  // destroyed first, so that the stream can end
};

// ---- faults of the CPU ----

// Runs code that touches memory; true if that raised SIGSEGV or SIGBUS. The code is left by a jump: it must
// own nothing.
bool raises_fault(const std::function<void()>& code);
bool read_faults(const void* address);
// A byte that a device may be writing.
uint8_t peek(const void* address);
bool write_faults(void* address);

// ---- other processes ----

struct ProcessResult {
  int exit_code = -1;  // -1 if a signal ended it
  int signal = 0;
  std::string out;
  std::string err;
  bool ok() const { return exit_code == 0; }
};
std::ostream& operator<<(std::ostream& stream, const ProcessResult& result);

// Runs `code` in a forked child, where EXPECT_ and ASSERT_ work as usual; any failure there makes the exit
// code 1.
ProcessResult in_forked_child(const std::function<void()>& code);

// For posix_spawn: the environment with `changes`, "NAME=value" entries to set and "NAME" entries to remove;
// and a list that ends with null.
std::vector<std::string> changed_environment(const std::vector<std::string>& changes);
std::vector<char*> pointers(std::vector<std::string>& texts);

// Runs a function that was declared with CHILD(name) in a second process, started by exec, with the same
// backend and a changed_environment().
ProcessResult run_child(const std::string& name, const std::vector<std::string>& environment = {},
                        const std::vector<std::string>& arguments = {});

// The same beside this process, with a socket between the two.
class Peer {
 public:
  explicit Peer(const std::string& name, const std::vector<std::string>& arguments = {});
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  // Hangs up and waits; fails the test unless the process was killed or its checks all held.
  ~Peer();
  int socket() const { return socket_; }
  // To compare with; to send a signal, call signal().
  pid_t pid() const { return pid_; }
  // False, and nothing is sent, if it did not start or was waited for.
  bool signal(int number) const;
  // Hangs up and waits.
  ProcessResult end();
  // Kills it, and waits.
  void kill();
  // Of a running child: its side of the socket.
  static int other_side();

 private:
  struct Started;
  std::unique_ptr<Started> started_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

// Whole messages over the socket. Receiving fails at the end of the other side.
bool send_bytes(int socket, const void* bytes, size_t size);
bool receive_bytes(int socket, void* bytes, size_t size);

// Arguments of the running child.
const std::vector<std::string>& child_arguments();
int register_child(const char* name, void (*function)());
#define CHILD(name)                                             \
  static void child_##name();                                   \
  [[maybe_unused]] static const int child_##name##_registered = \
      ::conformance::register_child(#name, child_##name);       \
  static void child_##name()

// Passes if the child's checks all held, and shows what it printed otherwise.
#define EXPECT_CHILD_OK(result)                                   \
  do {                                                            \
    const ::conformance::ProcessResult child_result = (result);   \
    if (child_result.exit_code == ::conformance::kChildSkipped) { \
      GTEST_SKIP() << child_result.out;                           \
    }                                                             \
    EXPECT_TRUE(child_result.ok()) << child_result;               \
  } while (false)
inline constexpr int kChildSkipped = 77;
// Ends a child that cannot do its test here; the test is then skipped with this reason.
[[noreturn]] void skip_child(const std::string& reason);

// ---- what is left behind ----

// What the process has that a leak would change. On cuda only what cannot be the driver's own.
struct Snapshot {
  std::vector<std::string> file_descriptors;  // what they point to
  uint64_t shared_mappings = 0;               // lines of /proc/self/maps that name a memfd
  uint64_t threads = 0;

  static Snapshot take();
};
// Threads that are about to end get time to do so.
::testing::AssertionResult nothing_left_since(const Snapshot& before);

// ---- other code of the process, such as another library that uses the driver ----

// Why memory and streams of other code cannot be made here; empty if they can.
std::string no_foreign_reason();
#define REQUIRE_FOREIGN()                                          \
  do {                                                             \
    const std::string reason = ::conformance::no_foreign_reason(); \
    if (!reason.empty()) SKIP_RULE(reason);                        \
  } while (false)

// Memory that was made through the driver, not through gpumem.
class ForeignMemory {
 public:
  ForeignMemory(gpumem_device device, gpumem_kind kind, uint64_t size);
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;
  ~ForeignMemory() { free(); }
  uint8_t* get() const { return pointer_; }
  void free();

 private:
  gpumem_device device_;
  gpumem_kind kind_;
  uint8_t* pointer_ = nullptr;
};

// A stream that was made through the driver, not through gpumem.
class NativeStream {
 public:
  explicit NativeStream(gpumem_device device);
  NativeStream(const NativeStream&) = delete;
  NativeStream& operator=(const NativeStream&) = delete;
  ~NativeStream();
  void* get() const { return native_; }
  // Starts and ends a capture into a graph. `adopted` is a handle that wraps this stream.
  void begin_capture(gpumem_stream adopted);
  void end_capture(gpumem_stream adopted);

 private:
  gpumem_device device_;
  void* native_ = nullptr;
};

uint32_t ordinal_of(gpumem_device device);

// Makes steps of the backend fail: of the host backend by its own means, of cuda by the fake driver.
class Faults {
 public:
  static bool available() { return on_host() || on_fake_cuda(); }
  explicit Faults(gpumem_instance instance) : instance_(instance) {}
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  ~Faults() { off(); }
  // From now on the k-th step (1 is the next) fails, and every later one too if `repeat`.
  void fail_step(uint64_t k, bool repeat = false);
  // The same for the next call of one function of the driver, with a code; on the fake driver only.
  void fail_call(const char* function, int code);
  void off();
  // The next call of this entry point of the fake driver answers this code, and every later one if `repeat`.
  static void fail_driver_call(const char* entry_point, int code, bool repeat = false);
  // So do `count` calls, from the `first` on (1 is the next).
  static void fail_driver_calls(const char* entry_point, int code, uint64_t first, uint64_t count);

 private:
  gpumem_instance instance_;
};

// While it lives, a new native stream gets the handle of the one that was destroyed last. The host backend
// does so anyway, drivers nearly always, and the fake driver is told to.
class ReusedHandles {
 public:
  ReusedHandles() { set("1"); }
  ReusedHandles(const ReusedHandles&) = delete;
  ReusedHandles& operator=(const ReusedHandles&) = delete;
  ~ReusedHandles() { set("0"); }

 private:
  static void set(const char* value);
};

// How many calls the fake driver has had; 0 without it.
uint64_t driver_calls();

// What all devices of the fake driver answer for an attribute from now on.
void set_fake_attribute(int attribute, int value);

// Loses a device as a faulting kernel does. On a real GPU there is no way: check can_lose() first. Do it in a
// child process, as the driver does not recover.
bool can_lose();
void lose(gpumem_device device);

// ---- the fixture ----

// Opens `instance_` before each test; afterwards nothing may be alive, and the process must have what it had
// before.
class Conformance : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // NULL if there is no second device; the test should then be skipped.
  gpumem_device second_device() const;

  Instance instance_;
  gpumem_device device_ = nullptr;  // ordinal 0
  Snapshot before_;
};

}  // namespace conformance
