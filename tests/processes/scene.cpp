// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The states, each reached for certain: by pipes, and by looking whether a thread sleeps in the kernel.
#include "scene.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <utility>

#include "../asleep.h"
#include "fake_cuda.h"

namespace processes {

gpumem_table api;

namespace {

constexpr uint64_t kSize = uint64_t{64} << 10;
constexpr uint64_t kForever = GPUMEM_TIMEOUT_INFINITE;

std::atomic<bool> something_failed{false};

// Makes what threads may use while the process ends. Never destroyed, and no leak.
template <class T, class... Arguments>
T& keep(Arguments&&... arguments) {
  static auto& all = *new std::deque<T>;
  return all.emplace_back(std::forward<Arguments>(arguments)...);
}

unsigned char pattern_byte(uint64_t position, unsigned seed) {
  return static_cast<unsigned char>((position * 31 + position / 251 + seed) & 0xff);
}

std::vector<unsigned char> pattern(unsigned seed, uint64_t size = kSize) {
  std::vector<unsigned char> bytes(size);
  for (uint64_t i = 0; i < size; ++i)
    bytes[i] = pattern_byte(i, seed);
  return bytes;
}

// A thread that goes on while the process exits, which a driver answers with CLOSED.
thread_local bool goes_on_at_exit = false;

void ok(gpumem_status status, const std::string& what) {
  while (goes_on_at_exit && status == GPUMEM_ERROR_CLOSED)
    pause();
  expect_status(GPUMEM_SUCCESS, status, what);
}

gpumem_memory enroll(gpumem_device device, void* pointer) {
  gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
  desc.pointer = pointer;
  desc.size = kSize;
  gpumem_memory memory = nullptr;
  ok(api.gpumem_memory_register(device, &desc, &memory, nullptr), "memory_register");
  return memory;
}

gpumem_memory make(gpumem_device device, gpumem_kind kind, uint64_t size = kSize) {
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  desc.kind = kind;
  desc.size = size;
  gpumem_memory memory = nullptr;
  ok(api.gpumem_memory_create(device, &desc, &memory, nullptr), "memory_create");
  return memory;
}

gpumem_memory_info info_of(gpumem_memory memory) {
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  ok(api.gpumem_memory_get_info(memory, &info, nullptr), "memory_get_info");
  return info;
}

gpumem_instance open_instance(gpumem_backend backend) {
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = backend;
  desc.transfer_threads = 3;  // which a large copy starts
  gpumem_instance instance = nullptr;
  ok(api.gpumem_instance_open(&desc, &instance, nullptr), "instance_open");
  return instance;
}

void close_instance(gpumem_instance instance) {
  ok(api.gpumem_instance_close(instance, GPUMEM_CLOSE_CHECK, nullptr, nullptr), "instance_close");
}

// A CPU address that outlives every end of the process.
unsigned char* lasting_pages() {
  void* const pages = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(pages != MAP_FAILED, "mmap");
  return static_cast<unsigned char*>(pages);
}

void hold(gpumem_stream stream, Gate& gate) {
  const auto wait = [](void* gate_of_state) { static_cast<Gate*>(gate_of_state)->arrive(); };
  ok(api.gpumem_stream_launch_host_function(stream, wait, &gate, nullptr), "launch_host_function");
}

// Work that changes nothing that close_scene checks.
void enqueue_copies(const Scene& scene) {
  for (int i = 0; i < 3; ++i) {
    ok(api.gpumem_copy_async(scene.stream, scene.device_bytes, scene.pinned_bytes, kSize, nullptr, nullptr),
       "copy in a stream");
  }
}

void synchronize(const Scene& scene) {
  ok(api.gpumem_stream_synchronize(scene.stream, kForever, nullptr), "stream_synchronize");
}

// A thread that is inside a call when the constructor returns. Never destroyed where the process ends first.
class Caller {
 public:
  explicit Caller(const std::function<gpumem_status()>& call)
      : thread_([this, call] {
          id_ = gettid();
          status_ = call();
        }) {
    while (id_ == 0)
      sched_yield();
    gpumem::test::wait_until_asleep(id_);
  }
  gpumem_status join() {
    thread_.join();
    return status_;
  }

 private:
  std::atomic<pid_t> id_{0};
  gpumem_status status_ = GPUMEM_ERROR_INTERNAL;
  std::thread thread_;
};

using Act = std::function<void(Scene&)>;

// ---- the states, one function each ----

void loaded(Scene& scene, const Act& act) { act(scene); }

void instance(Scene& scene, const Act& act) {
  scene.instance = open_instance(scene.backend);
  scene.driver_initialised = true;
  act(scene);
  close_instance(scene.instance);
}

void default_instance(Scene& scene, const Act& act) {
  ok(api.gpumem_instance_default(&scene.instance, nullptr), "instance_default");
  scene.driver_initialised = true;
  act(scene);
  gpumem_instance again = nullptr;
  ok(api.gpumem_instance_default(&again, nullptr), "instance_default");
  expect(again == scene.instance, "the default instance is the same one");
}

void objects(Scene& scene, const Act& act) {
  open_scene(scene);
  act(scene);
  close_scene(scene);
}

void queued(Scene& scene, const Act& act) {
  open_scene(scene);
  gpumem_memory word = make(scene.device, GPUMEM_KIND_PINNED);
  void* const address = info_of(word).device_pointer;
  ok(api.gpumem_fill(scene.instance, address, kSize, 0, 1, nullptr), "fill");
  ok(api.gpumem_stream_wait_value(scene.stream, address, 1, 4, GPUMEM_WAIT_EQ, nullptr), "wait_value");
  enqueue_copies(scene);
  expect_status(GPUMEM_NOT_READY, api.gpumem_stream_query(scene.stream, nullptr), "the stream is held");
  act(scene);
  gpumem_stream other = nullptr;
  ok(api.gpumem_stream_create(scene.device, nullptr, &other, nullptr), "stream_create");
  ok(api.gpumem_stream_write_value(other, address, 1, 4, nullptr), "write_value");
  synchronize(scene);
  ok(api.gpumem_stream_synchronize(other, kForever, nullptr), "stream_synchronize");
  ok(api.gpumem_stream_destroy(other, nullptr), "stream_destroy");
  ok(api.gpumem_memory_destroy(word, nullptr), "memory_destroy");
  close_scene(scene);
}

void host_function(Scene& scene, const Act& act) {
  open_scene(scene);
  auto& gate = keep<Gate>();
  hold(scene.stream, gate);
  enqueue_copies(scene);
  gate.wait_arrived();
  act(scene);
  gate.open();
  synchronize(scene);
  close_scene(scene);
}

void synchronizing(Scene& scene, const Act& act) {
  open_scene(scene);
  auto& gate = keep<Gate>();
  hold(scene.stream, gate);
  ok(api.gpumem_event_record(scene.event, scene.stream, nullptr), "event_record");
  enqueue_copies(scene);
  auto& stream = keep<Caller>([&] { return api.gpumem_stream_synchronize(scene.stream, kForever, nullptr); });
  auto& event = keep<Caller>([&] { return api.gpumem_event_synchronize(scene.event, kForever, nullptr); });
  act(scene);
  gate.open();
  ok(stream.join(), "stream_synchronize of another thread");
  ok(event.join(), "event_synchronize of another thread");
  close_scene(scene);
}

// The log function stands at a gate when the library says that a backend was opened.
void set_log_gate(Gate& gate) {
  const auto stop = [](void* gate_of_state, gpumem_log_level, const char* message) {
    if (std::strncmp(message, "opened", 6) == 0) static_cast<Gate*>(gate_of_state)->arrive();
  };
  ok(api.gpumem_log_set_function(stop, &gate, GPUMEM_LOG_INFO, nullptr), "log_set_function");
}

void unset_log_function() {
  ok(api.gpumem_log_set_function(nullptr, nullptr, 0, nullptr), "log_set_function");
}

void opening(Scene& scene, const Act& act) {
  open_scene(scene);
  auto& gate = keep<Gate>();
  set_log_gate(gate);
  static gpumem_instance other;
  auto& opener = keep<Caller>([backend = scene.backend] {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = backend;
    return api.gpumem_instance_open(&desc, &other, nullptr);
  });
  gate.wait_arrived();
  act(scene);
  gate.open();
  ok(opener.join(), "instance_open of another thread");
  unset_log_function();
  close_instance(other);
  close_scene(scene);
}

void opening_default(Scene& scene, const Act& act) {
  auto& gate = keep<Gate>();
  set_log_gate(gate);
  static gpumem_instance other;
  auto& opener = keep<Caller>([] { return api.gpumem_instance_default(&other, nullptr); });
  gate.wait_arrived();
  scene.driver_initialised = true;
  act(scene);
  gate.open();
  ok(opener.join(), "instance_default of another thread");
  unset_log_function();
  gpumem_instance again = nullptr;
  ok(api.gpumem_instance_default(&again, nullptr), "instance_default");
  expect(again == other, "the default instance is the same one");
}

void closing(Scene& scene, const Act& act) {
  open_scene(scene);
  auto& gate = keep<Gate>();
  hold(scene.stream, gate);
  enqueue_copies(scene);
  gate.wait_arrived();
  static uint64_t destroyed;
  auto& closer = keep<Caller>([&scene] {
    return api.gpumem_instance_close(scene.instance, GPUMEM_CLOSE_FORCE, &destroyed, nullptr);
  });
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  while (api.gpumem_instance_get_info(scene.instance, &info, nullptr) != GPUMEM_ERROR_CLOSED)
    sched_yield();
  scene.ended = GPUMEM_ERROR_CLOSED;
  act(scene);
  gate.open();
  ok(closer.join(), "instance_close of another thread");
  expect(destroyed == 6, "the forced close has destroyed six objects");
}

void destroying(Scene& scene, const Act& act) {
  open_scene(scene);
  auto& gate = keep<Gate>();
  hold(scene.stream, gate);
  gate.wait_arrived();
  auto& waiter = keep<Caller>([&] { return api.gpumem_stream_synchronize(scene.stream, kForever, nullptr); });
  auto& destroyer = keep<Caller>([&] { return api.gpumem_stream_destroy(scene.stream, nullptr); });
  while (api.gpumem_stream_query(scene.stream, nullptr) != GPUMEM_ERROR_STALE_HANDLE)
    sched_yield();
  scene.ended = GPUMEM_ERROR_STALE_HANDLE;
  act(scene);
  gate.open();
  ok(waiter.join(), "stream_synchronize of another thread");
  ok(destroyer.join(), "stream_destroy of another thread");
  scene.stream = nullptr;
  close_scene(scene);
}

void closed(Scene& scene, const Act& act) {
  open_scene(scene);
  uint64_t destroyed = 0;
  ok(api.gpumem_instance_close(scene.instance, GPUMEM_CLOSE_FORCE, &destroyed, nullptr), "instance_close");
  expect(destroyed == 6, "the forced close has destroyed six objects");
  scene.ended = GPUMEM_ERROR_CLOSED;
  act(scene);
}

constexpr int kIllegalAddress = 700;

// Its context is lost to this process alone. PTX of an old architecture, which every newer driver compiles
// for its device.
constexpr const char* kKernelThatWritesToNull = R"(
.version 6.4
.target sm_70
.address_size 64

.visible .entry write_to_null()
{
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  mov.u64 %rd1, 0;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

template <class... Arguments>
void call_driver(void* driver, const char* name, int expected, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver, name));
  expect(function != nullptr && function(arguments...) == expected, name);
}

void lose_device_of_driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (void* const set_sticky = dlsym(driver, "fake_cuda_set_sticky")) {
    reinterpret_cast<decltype(&fake_cuda_set_sticky)>(set_sticky)(0, kIllegalAddress);
    return;
  }
  void* context = nullptr;
  void* module = nullptr;
  void* kernel = nullptr;
  call_driver(driver, "cuDevicePrimaryCtxRetain", 0, &context, 0);
  call_driver(driver, "cuCtxPushCurrent_v2", 0, context);
  call_driver(driver, "cuModuleLoadData", 0, &module, static_cast<const void*>(kKernelThatWritesToNull));
  call_driver(driver, "cuModuleGetFunction", 0, &kernel, module, "write_to_null");
  void** const nothing = nullptr;
  call_driver(driver, "cuLaunchKernel", 0, kernel, 1u, 1u, 1u, 1u, 1u, 1u, 0u, static_cast<void*>(nullptr),
              nothing, nothing);
  call_driver(driver, "cuCtxSynchronize", kIllegalAddress);
}

void lost(Scene& scene, const Act& act) {
  open_scene(scene);
  if (scene.backend == GPUMEM_BACKEND_HOST) {
    ok(api.gpumem_host_device_lose(scene.device, nullptr), "host_device_lose");
  } else {
    lose_device_of_driver();
    expect_status(GPUMEM_ERROR_DEVICE_LOST, api.gpumem_stream_query(scene.stream, nullptr),
                  "stream_query on a lost device");
  }
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  ok(api.gpumem_device_get_info(scene.device, &info, nullptr), "device_get_info");
  expect(info.lost == 1, "the device is lost");
  act(scene);
  ok(api.gpumem_instance_close(scene.instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr), "instance_close");
}

void log_set(Scene& scene, const Act& act) {
  static std::atomic<int> lines{0};
  const auto count = [](void*, gpumem_log_level, const char*) { ++lines; };
  ok(api.gpumem_log_set_function(count, nullptr, GPUMEM_LOG_DEBUG, nullptr), "log_set_function");
  open_scene(scene);
  act(scene);
  close_scene(scene);
  unset_log_function();
  expect(lines > 0, "something was logged");
}

void in_log_function(Scene& scene, const Act& act) {
  open_scene(scene);
  struct Once {
    Scene& scene;
    const Act& act;
    bool done;
  };
  static Once once{scene, act, false};
  const auto run = [](void*, gpumem_log_level, const char*) {
    if (once.done) return;
    once.done = true;
    once.scene.inside_log_function = true;
    once.act(once.scene);
  };
  ok(api.gpumem_log_set_function(run, nullptr, GPUMEM_LOG_INFO, nullptr), "log_set_function");
  close_instance(open_instance(scene.backend));
  expect(once.done, "the log function was called");
  unset_log_function();
  close_scene(scene);
}

void in_host_function(Scene& scene, const Act& act) {
  open_scene(scene);
  struct Both {
    Scene& scene;
    const Act& act;
  };
  static Both both{scene, act};
  const auto run = [](void*) {
    gpumem::test::wait_until_asleep(getpid());  // the first thread, in synchronize below
    both.act(both.scene);
  };
  scene.inside_host_function = true;
  ok(api.gpumem_stream_launch_host_function(scene.stream, run, nullptr, nullptr), "launch_host_function");
  enqueue_copies(scene);
  synchronize(scene);
  close_scene(scene);
}

// One of each kind, made, used and destroyed, over and over.
struct Busy {
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};

  void run(const Scene& scene, unsigned seed) {
    goes_on_at_exit = true;
    const std::vector<unsigned char> bytes = pattern(seed);
    std::vector<unsigned char> lent(kSize);
    std::vector<unsigned char> back(kSize);
    while (!stop) {
      const gpumem_memory on_device = make(scene.device, GPUMEM_KIND_DEVICE);
      const gpumem_memory pinned = make(scene.device, GPUMEM_KIND_PINNED);
      const gpumem_memory registered = enroll(scene.device, lent.data());
      gpumem_stream stream = nullptr;
      ok(api.gpumem_stream_create(scene.device, nullptr, &stream, nullptr), "stream_create");
      void* const there = info_of(on_device).device_pointer;
      ok(api.gpumem_copy(scene.instance, there, bytes.data(), kSize, nullptr, nullptr), "copy");
      const auto nothing = [](void*) {};
      for (int i = 0; i < 10; ++i) {
        ok(api.gpumem_stream_launch_host_function(stream, nothing, nullptr, nullptr), "launch_host_function");
      }
      ok(api.gpumem_stream_synchronize(stream, kForever, nullptr), "stream_synchronize");
      ok(api.gpumem_copy(scene.instance, back.data(), there, kSize, nullptr, nullptr), "copy back");
      expect(back == bytes, "a busy thread reads what it wrote");
      ok(api.gpumem_stream_destroy(stream, nullptr), "stream_destroy");
      for (const gpumem_memory memory : {on_device, pinned, registered})
        ok(api.gpumem_memory_destroy(memory, nullptr), "memory_destroy");
      ++rounds;
    }
  }
};

// Acts so often while so many threads work, each time somewhere else in their work.
template <class Work>
void act_beside(Scene& scene, const Act& act, int count, int times) {
  open_scene(scene);
  auto& work = keep<Work>();
  auto& threads = keep<std::vector<std::thread>>();
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] { work.run(scene, static_cast<unsigned>(5 + i)); });
  for (int i = 1; i <= times; ++i) {
    while (work.rounds < i * count)
      sched_yield();
    act(scene);
  }
  work.stop = true;
  for (std::thread& thread : threads)
    thread.join();
  close_scene(scene);
}

// A fork finds other locks held each time.
void busy(Scene& scene, const Act& act) { act_beside<Busy>(scene, act, 3, 6); }

// Ordinary memory to the device and back, in copies so large that the library's threads make them.
struct Copying {
  static constexpr uint64_t kLarge = (uint64_t{8} << 20) + 77;
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};

  void run(const Scene& scene, unsigned seed) {
    goes_on_at_exit = true;
    std::vector<unsigned char> bytes = pattern(seed, kLarge);
    std::vector<unsigned char> back(kLarge);
    const gpumem_memory memory = make(scene.device, GPUMEM_KIND_DEVICE, kLarge);
    void* const there = info_of(memory).device_pointer;
    do {
      for (uint64_t i = 0; i < kLarge; i += 4096)
        ++bytes[i];
      ok(api.gpumem_copy(scene.instance, there, bytes.data(), kLarge, nullptr, nullptr), "large copy");
      ok(api.gpumem_copy(scene.instance, back.data(), there, kLarge, nullptr, nullptr), "large copy back");
      expect(back == bytes, "a copying thread reads what it wrote");
      ++rounds;
    } while (!stop);
    ok(api.gpumem_memory_destroy(memory, nullptr), "memory_destroy");
  }
};

void copied(Scene& scene, const Act& act) {
  open_scene(scene);
  auto& work = keep<Copying>();
  work.stop = true;  // after one round
  work.run(scene, 6);
  act(scene);
  work.run(scene, 7);
  close_scene(scene);
}

void copying(Scene& scene, const Act& act) { act_beside<Copying>(scene, act, 2, 4); }

struct State {
  const char* name;
  void (*enter)(Scene&, const Act&);
};

constexpr State kAllStates[] = {
    {"loaded", loaded},
    {"instance", instance},
    {"default_instance", default_instance},
    {"objects", objects},
    {"queued", queued},
    {"host_function", host_function},
    {"synchronizing", synchronizing},
    {"opening", opening},
    {"opening_default", opening_default},
    {"closing", closing},
    {"destroying", destroying},
    {"closed", closed},
    {"lost", lost},
    {"log_set", log_set},
    {"in_log_function", in_log_function},
    {"in_host_function", in_host_function},
    {"busy", busy},
    {"copied", copied},
    {"copying", copying},
};
static_assert(std::size(kAllStates) == kStates.size());

}  // namespace

void expect(bool holds, const std::string& what) {
  if (holds) return;
  dprintf(STDERR_FILENO, "process %d: not so: %s\n", getpid(), what.c_str());
  something_failed = true;
}

void expect_status(gpumem_status expected, gpumem_status actual, const std::string& what) {
  if (actual == expected) return;
  expect(false,
         what + ": expected " + api.gpumem_status_name(expected) + ", got " + api.gpumem_status_name(actual));
}

bool failed() { return something_failed; }

Gate::Gate() { expect(pipe2(arrived_, O_CLOEXEC) == 0 && pipe2(open_, O_CLOEXEC) == 0, "pipe2"); }

void Gate::arrive() {
  if (used_.exchange(true)) return;
  char byte = 0;
  expect(write(arrived_[1], &byte, 1) == 1, "write to a gate");
  expect(read(open_[0], &byte, 1) >= 0, "read from a gate");
}

void Gate::wait_arrived() {
  char byte = 0;
  expect(read(arrived_[0], &byte, 1) == 1, "read from a gate");
}

void Gate::open() {
  close(open_[1]);
  open_[1] = -1;
}

void open_scene(Scene& scene) {
  scene.instance = open_instance(scene.backend);
  scene.driver_initialised = true;
  ok(api.gpumem_device_get(scene.instance, 0, &scene.device, nullptr), "device_get");
  scene.registered_bytes = lasting_pages();
  scene.memory = make(scene.device, GPUMEM_KIND_DEVICE);
  scene.pinned = make(scene.device, GPUMEM_KIND_PINNED);
  scene.registered = enroll(scene.device, scene.registered_bytes);
  scene.device_bytes = static_cast<unsigned char*>(info_of(scene.memory).device_pointer);
  scene.pinned_bytes = static_cast<unsigned char*>(info_of(scene.pinned).host_pointer);
  ok(api.gpumem_stream_create(scene.device, nullptr, &scene.stream, nullptr), "stream_create");
  ok(api.gpumem_event_create(scene.device, nullptr, &scene.event, nullptr), "event_create");
  gpumem_pool_desc pool = GPUMEM_POOL_DESC_INIT;
  pool.kind = GPUMEM_KIND_PAGEABLE;
  ok(api.gpumem_pool_create(scene.device, &pool, &scene.pool, nullptr), "pool_create");
  ok(api.gpumem_pool_alloc(scene.pool, 64, nullptr, &scene.block, nullptr), "pool_alloc");
  const std::vector<unsigned char> bytes = pattern(1);
  std::memcpy(scene.pinned_bytes, bytes.data(), kSize);
  std::memcpy(scene.registered_bytes, pattern(2).data(), kSize);
  ok(api.gpumem_copy(scene.instance, scene.device_bytes, bytes.data(), kSize, nullptr, nullptr),
     "copy of the pattern");
}

void close_scene(Scene& scene) {
  std::vector<unsigned char> back(kSize);
  ok(api.gpumem_copy(scene.instance, back.data(), scene.device_bytes, kSize, nullptr, nullptr),
     "copy of the pattern back");
  expect(back == pattern(1), "device memory has its content");
  expect(std::memcmp(scene.pinned_bytes, pattern(1).data(), kSize) == 0, "pinned memory has its content");
  expect(std::memcmp(scene.registered_bytes, pattern(2).data(), kSize) == 0,
         "registered memory has its content");
  ok(api.gpumem_pool_free(scene.pool, scene.block, nullptr, nullptr), "pool_free");
  ok(api.gpumem_pool_destroy(scene.pool, nullptr), "pool_destroy");
  ok(api.gpumem_memory_destroy(scene.memory, nullptr), "memory_destroy");
  ok(api.gpumem_memory_destroy(scene.pinned, nullptr), "memory_destroy");
  ok(api.gpumem_memory_destroy(scene.registered, nullptr), "memory_destroy");
  ok(api.gpumem_event_destroy(scene.event, nullptr), "event_destroy");
  ok(api.gpumem_stream_destroy(scene.stream, nullptr), "stream_destroy");
  close_instance(scene.instance);
  munmap(scene.registered_bytes, kSize);
}

bool enter(const std::string& state, gpumem_backend backend, const Act& act) {
  for (const State& one : kAllStates) {
    if (state != one.name) continue;
    auto& scene = keep<Scene>();
    scene.backend = backend;
    scene.default_backend = backend;
    one.enter(scene, act);
    return true;
  }
  return false;
}

}  // namespace processes
