// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls libgpumem-tms.so over the fake driver, in the order in which torch_memory_saver's Python does.
#include <cuda.h>
#include <dlfcn.h>
#include <gpumem/gpumem.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
// Of each device of the fake driver.
constexpr size_t kDeviceBytes = 256 * kMiB;

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    std::cerr << name << " is missing" << std::endl;
    std::abort();
  }
}

// All symbols of the original, as binary_wrapper.py declares them, and ours.
struct Tms {
  void* (*torch_malloc)(ssize_t, int, void*);
  void (*torch_free)(void*, ssize_t, int, void*);
  void (*set_current_tag)(const char*);
  const char* (*get_current_tag)();
  void (*set_interesting_region)(bool);
  bool (*get_interesting_region)();
  void (*set_enable_cpu_backup)(bool);
  bool (*get_enable_cpu_backup)();
  void (*set_cpu_backup_backend)(const char*);
  const char* (*get_cpu_backup_backend)();
  void (*set_enable_disk_backup)(bool);
  bool (*get_enable_disk_backup)();
  void (*set_disk_backup_dir)(const char*);
  int (*pause)(const char*);
  int (*resume)(const char*);
  uint32_t (*affected_devices)(const char*, int*, uint32_t);
  void (*set_memory_margin_bytes)(uint64_t);
  void (*set_retain_cpu_backup)(bool);
  bool (*get_retain_cpu_backup)();
  uint64_t (*keep_resident)(const void*);
  uint8_t* (*get_cpu_backup_pointer)(const uint8_t*, uint64_t);
  int (*prepare)(const char*);
  gpumem_group (*group)();
  // Of the library of gpumem behind it.
  decltype(&gpumem_group_sleep) group_sleep;
  decltype(&gpumem_group_wake) group_wake;

  Tms() {
    void* const library = dlopen(TMS_LIBRARY, RTLD_NOW);
    if (library == nullptr) {
      std::cerr << dlerror() << std::endl;
      std::abort();
    }
    find(library, "tms_torch_malloc", torch_malloc);
    find(library, "tms_torch_free", torch_free);
    find(library, "tms_set_current_tag", set_current_tag);
    find(library, "tms_get_current_tag", get_current_tag);
    find(library, "tms_set_interesting_region", set_interesting_region);
    find(library, "tms_get_interesting_region", get_interesting_region);
    find(library, "tms_set_enable_cpu_backup", set_enable_cpu_backup);
    find(library, "tms_get_enable_cpu_backup", get_enable_cpu_backup);
    find(library, "tms_set_cpu_backup_backend", set_cpu_backup_backend);
    find(library, "tms_get_cpu_backup_backend", get_cpu_backup_backend);
    find(library, "tms_set_enable_disk_backup", set_enable_disk_backup);
    find(library, "tms_get_enable_disk_backup", get_enable_disk_backup);
    find(library, "tms_set_disk_backup_dir", set_disk_backup_dir);
    find(library, "tms_pause", pause);
    find(library, "tms_resume", resume);
    find(library, "tms_affected_devices", affected_devices);
    find(library, "set_memory_margin_bytes", set_memory_margin_bytes);
    find(library, "tms_set_retain_cpu_backup", set_retain_cpu_backup);
    find(library, "tms_get_retain_cpu_backup", get_retain_cpu_backup);
    find(library, "tms_keep_resident", keep_resident);
    find(library, "tms_get_cpu_backup_pointer", get_cpu_backup_pointer);
    find(library, "gpumem_tms_prepare", prepare);
    find(library, "gpumem_tms_group", group);
    find(library, "gpumem_group_sleep", group_sleep);
    find(library, "gpumem_group_wake", group_wake);
  }
};

const Tms& tms() {
  static const Tms found;
  return found;
}

// What torch has of the driver: the primary context and copies. The names of functions are macros.
void* driver_library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::cerr << dlerror() << std::endl;
    std::abort();
  }
  return library;
}
template <class Function>
Function* driver_function(const char* name) {
  Function* function = nullptr;
  find(driver_library(), name, function);
  return function;
}
#define TEXT(name) #name
#define DRIVER(name) driver_function<decltype(name)>(TEXT(name))

void must(CUresult result) { ASSERT_EQ(result, CUDA_SUCCESS); }

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// Makes the context of a device current on this thread.
void use(int device) {
  CUcontext context = nullptr;
  must(DRIVER(cuInit)(0));
  must(DRIVER(cuDevicePrimaryCtxRetain)(&context, device));
  must(DRIVER(cuCtxSetCurrent)(context));
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  must(DRIVER(cuMemGetInfo)(&free, &total));
  return free;
}

std::vector<uint8_t> read(const void* memory, size_t size) {
  std::vector<uint8_t> bytes(size);
  must(DRIVER(cuMemcpyDtoH)(bytes.data(), address(memory), size));
  return bytes;
}

struct Config {
  std::string tag = "default";
  bool cpu_backup = false;
  bool disk_backup = false;
  const char* backend = nullptr;
};

// `with torch_memory_saver.region(...)`: _with_region_config of entrypoint.py.
class Region {
 public:
  explicit Region(const Config& config) : config_(config) {
    tag_ = tms().get_current_tag();
    interesting_ = tms().get_interesting_region();
    cpu_backup_ = tms().get_enable_cpu_backup();
    backend_ = tms().get_cpu_backup_backend();
    disk_backup_ = tms().get_enable_disk_backup();
    set(config.tag, true, config.cpu_backup, config.backend, config.disk_backup);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    EXPECT_TRUE(tms().get_interesting_region());
    EXPECT_EQ(tms().get_enable_cpu_backup(), config_.cpu_backup);
    EXPECT_EQ(tms().get_cpu_backup_backend(), config_.backend == nullptr ? backend_ : config_.backend);
    EXPECT_EQ(tms().get_enable_disk_backup(), config_.disk_backup);
    EXPECT_EQ(tms().get_current_tag(), config_.tag);
    set(tag_, interesting_, cpu_backup_, backend_.c_str(), disk_backup_);
  }

 private:
  static void set(const std::string& tag, bool interesting, bool cpu_backup, const char* backend,
                  bool disk_backup) {
    tms().set_current_tag(tag.c_str());
    tms().set_interesting_region(interesting);
    tms().set_enable_cpu_backup(cpu_backup);
    if (backend != nullptr) tms().set_cpu_backup_backend(backend);
    tms().set_enable_disk_backup(disk_backup);
  }

  Config config_;
  std::string tag_;
  bool interesting_;
  bool cpu_backup_;
  std::string backend_;
  bool disk_backup_;
};

// A tensor: a segment of PyTorch's. The content of its first and last bytes is known.
class Tensor {
 public:
  Tensor(size_t size, uint8_t seed, int device = 0)
      : size_(size), device_(device), bytes_(std::min(size, kKnown)) {
    for (size_t i = 0; i < bytes_.size(); ++i)
      bytes_[i] = static_cast<uint8_t>(seed + i * 7 + (i >> 12));
    memory_ = tms().torch_malloc(static_cast<ssize_t>(size), device, nullptr);
    if (memory_ != nullptr) fill();
  }
  Tensor(Tensor&& other) noexcept
      : size_(other.size_),
        device_(other.device_),
        bytes_(std::move(other.bytes_)),
        memory_(std::exchange(other.memory_, nullptr)) {}
  Tensor& operator=(Tensor&&) = delete;
  ~Tensor() { tms().torch_free(memory_, static_cast<ssize_t>(size_), device_, nullptr); }
  void fill() const {
    use(device_);
    must(DRIVER(cuMemcpyHtoD)(address(memory_), bytes_.data(), bytes_.size()));
    must(DRIVER(cuMemcpyHtoD)(address(end()), bytes_.data(), bytes_.size()));
  }
  bool is_intact() const {
    use(device_);
    return read(memory_, bytes_.size()) == bytes_ &&
           (size_ < 2 * kKnown || read(end(), bytes_.size()) == bytes_);
  }
  uint8_t* memory() const { return static_cast<uint8_t*>(memory_); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  static constexpr size_t kKnown = 64 * 1024;
  const uint8_t* end() const { return memory() + size_ - bytes_.size(); }

  size_t size_;
  int device_;
  std::vector<uint8_t> bytes_;
  void* memory_;
};

Tensor tensor_in(const Config& config, size_t size, uint8_t seed, int device = 0) {
  const Region region(config);
  return Tensor(size, seed, device);
}

std::vector<int> affected_devices(const char* tag) {
  std::vector<int> devices(tms().affected_devices(tag, nullptr, 0));
  if (!devices.empty()) {
    EXPECT_EQ(tms().affected_devices(tag, devices.data(), static_cast<uint32_t>(devices.size())),
              devices.size());
  }
  return devices;
}

// As entrypoint.py does it.
int pause(const char* tag) {
  for (const int device : affected_devices(tag)) {
    use(device);
    must(DRIVER(cuCtxSynchronize)());
  }
  return tms().pause(tag);
}

class TmsTest : public testing::Test {
 protected:
  void SetUp() override {
    use(0);
    // Opens what stays open.
    tensor_in({}, kMiB, 0);
    tensor_in({}, kMiB, 0, 1);
    use(0);
    pinned_ = live(FAKE_CUDA_PINNED_MEMORY) + live(FAKE_CUDA_REGISTRATION);
    blocks_ = live(FAKE_CUDA_BLOCK);
    reservations_ = live(FAKE_CUDA_RESERVATION);
    DRIVER(fake_cuda_clear_violations)();
  }
  void TearDown() override {
    tms().set_retain_cpu_backup(false);
    tms().set_memory_margin_bytes(0);
    EXPECT_EQ(pinned(), 0);
    EXPECT_EQ(live(FAKE_CUDA_BLOCK), blocks_);
    EXPECT_EQ(live(FAKE_CUDA_RESERVATION), reservations_);
    char text[4096];
    EXPECT_EQ(DRIVER(fake_cuda_violations)(text, sizeof text), 0) << text;
  }
  static uint64_t live(int object) { return DRIVER(fake_cuda_live)(object); }
  // How many backups are pinned.
  uint64_t pinned() const { return live(FAKE_CUDA_PINNED_MEMORY) + live(FAKE_CUDA_REGISTRATION) - pinned_; }

 private:
  uint64_t pinned_ = 0;
  uint64_t blocks_ = 0;
  uint64_t reservations_ = 0;
};

const Config kWeights{"weights", true, false, nullptr};
const Config kCache{"kv_cache", false, false, nullptr};

TEST_F(TmsTest, a_region_ends_with_the_settings_from_before) {
  EXPECT_FALSE(tms().get_interesting_region());
  EXPECT_STREQ(tms().get_current_tag(), "default");
  EXPECT_STREQ(tms().get_cpu_backup_backend(), "pinned");
  {
    const Region outer(kWeights);
    const Region inner({"kv_cache", false, true, "mmap"});
    // disable() of entrypoint.py.
    tms().set_interesting_region(false);
    EXPECT_FALSE(tms().get_interesting_region());
    tms().set_interesting_region(true);
    std::thread([] {
      EXPECT_FALSE(tms().get_interesting_region());
      EXPECT_STREQ(tms().get_current_tag(), "default");
      EXPECT_FALSE(tms().get_enable_disk_backup());
    }).join();
  }
  EXPECT_FALSE(tms().get_interesting_region());
  EXPECT_STREQ(tms().get_current_tag(), "default");
}

TEST_F(TmsTest, bad_settings_change_nothing) {
  tms().set_current_tag(nullptr);
  EXPECT_STREQ(tms().get_current_tag(), "default");
  tms().set_cpu_backup_backend("disk");
  EXPECT_STREQ(tms().get_cpu_backup_backend(), "pinned");
  tms().set_disk_backup_dir(nullptr);
  const Region region({"both", true, true, nullptr});
  EXPECT_EQ(tms().torch_malloc(kMiB, 0, nullptr), nullptr);
  EXPECT_EQ(tms().torch_malloc(0, 0, nullptr), nullptr);
}

TEST_F(TmsTest, memory_goes_and_comes_back_at_its_address_with_its_content) {
  const size_t before = free_bytes();
  const Tensor weights = tensor_in(kWeights, 8 * kMiB + 100, 1);
  const Tensor small = tensor_in(kWeights, 513, 2);
  const size_t awake = free_bytes();
  ASSERT_EQ(pause(nullptr), kSuccess);
  EXPECT_EQ(free_bytes(), before);
  // What took its place meanwhile.
  CUdeviceptr other = 0;
  must(DRIVER(cuMemAlloc)(&other, kDeviceBytes / 8));
  must(DRIVER(cuMemsetD8)(other, 0xff, kDeviceBytes / 8));
  must(DRIVER(cuCtxSynchronize)());
  must(DRIVER(cuMemFree)(other));
  ASSERT_EQ(tms().resume(nullptr), kSuccess);
  EXPECT_EQ(free_bytes(), awake);
  EXPECT_TRUE(weights.is_intact());
  EXPECT_TRUE(small.is_intact());
}

TEST_F(TmsTest, tags_sleep_each_for_itself) {
  const Tensor weights = tensor_in(kWeights, 8 * kMiB, 1);
  const Tensor cache = tensor_in(kCache, 16 * kMiB, 2);
  const size_t awake = free_bytes();
  ASSERT_EQ(pause("kv_cache"), kSuccess);
  EXPECT_EQ(free_bytes(), awake + 16 * kMiB);
  EXPECT_TRUE(weights.is_intact());
  ASSERT_EQ(pause("weights"), kSuccess);
  EXPECT_EQ(free_bytes(), awake + 24 * kMiB);
  ASSERT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_TRUE(weights.is_intact());
  ASSERT_EQ(tms().resume("kv_cache"), kSuccess);
  EXPECT_EQ(free_bytes(), awake);
  // Without a backup the memory is there, but not its content.
  cache.fill();
  EXPECT_TRUE(cache.is_intact());
  EXPECT_EQ(pause("no such tag"), kSuccess);
  EXPECT_EQ(tms().resume("no such tag"), kSuccess);
}

TEST_F(TmsTest, any_tag_will_do) {
  const std::string longer(200, 'x');
  const Tensor one = tensor_in({longer, true, false, nullptr}, kMiB, 1);
  const Tensor two = tensor_in({longer + "\n", true, false, nullptr}, kMiB, 2);
  const Tensor none = tensor_in({"", true, false, nullptr}, kMiB, 3);
  const size_t awake = free_bytes();
  ASSERT_EQ(pause(longer.c_str()), kSuccess);
  EXPECT_EQ(free_bytes(), awake + 2 * kMiB);
  ASSERT_EQ(tms().resume(longer.c_str()), kSuccess);
  ASSERT_EQ(pause(nullptr), kSuccess);
  EXPECT_EQ(free_bytes(), awake + 6 * kMiB);
  ASSERT_EQ(tms().resume(""), kSuccess);
  EXPECT_TRUE(one.is_intact());
  EXPECT_TRUE(two.is_intact());
  EXPECT_TRUE(none.is_intact());
}

TEST_F(TmsTest, backups_may_be_ordinary_memory_or_files) {
  char folder[] = "/tmp/tms_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string directory = std::string(folder) + "/made";
  tms().set_disk_backup_dir(directory.c_str());
  {
    const Tensor mapped = tensor_in({"mapped", true, false, "mmap"}, kMiB, 1);
    const Tensor file = tensor_in({"file", false, true, nullptr}, kMiB + 1, 2);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(pause(nullptr), kSuccess);
      EXPECT_EQ(pinned(), 0);
      EXPECT_EQ(tms().get_cpu_backup_pointer(file.memory(), 1), nullptr);
      const uint8_t* const bytes = tms().get_cpu_backup_pointer(mapped.memory(), mapped.bytes().size());
      ASSERT_NE(bytes, nullptr);
      EXPECT_EQ(std::memcmp(bytes, mapped.bytes().data(), mapped.bytes().size()), 0);
      ASSERT_EQ(tms().resume(nullptr), kSuccess);
      EXPECT_TRUE(mapped.is_intact());
      EXPECT_TRUE(file.is_intact());
    }
  }
  // No file has a name, so the folders are empty.
  EXPECT_EQ(rmdir(directory.c_str()), 0);
  EXPECT_EQ(rmdir(folder), 0);
  tms().set_disk_backup_dir("/proc/no/such/folder");
  const Tensor nowhere = tensor_in({"file", false, true, nullptr}, kMiB, 3);
  EXPECT_NE(pause("file"), kSuccess);
  EXPECT_TRUE(nowhere.is_intact());
}

TEST_F(TmsTest, a_file_above_the_limit_of_the_process_is_a_status) {
  const Tensor file = tensor_in({"file", false, true, nullptr}, 32 * kMiB, 1);
  tms().set_disk_backup_dir("/tmp");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 32 * kMiB - 1;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const int status = pause("file");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status, kOutOfMemory);
  EXPECT_TRUE(file.is_intact());
}

TEST_F(TmsTest, a_backup_can_be_read_while_the_memory_is_away) {
  const Tensor weights = tensor_in(kWeights, 4 * kMiB, 1);
  const Tensor cache = tensor_in(kCache, kMiB, 2);
  EXPECT_EQ(tms().get_cpu_backup_pointer(weights.memory(), 1), nullptr);
  ASSERT_EQ(pause(nullptr), kSuccess);
  const uint8_t* const bytes = tms().get_cpu_backup_pointer(weights.memory() + 4096, 3 * kMiB);
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(std::memcmp(bytes, weights.bytes().data() + 4096, weights.bytes().size() - 4096), 0);
  EXPECT_EQ(tms().get_cpu_backup_pointer(weights.memory() + 4096, 4 * kMiB), nullptr);
  EXPECT_EQ(tms().get_cpu_backup_pointer(cache.memory(), 1), nullptr);
  EXPECT_EQ(tms().get_cpu_backup_pointer(nullptr, 1), nullptr);
  ASSERT_EQ(tms().resume(nullptr), kSuccess);
  EXPECT_EQ(tms().get_cpu_backup_pointer(weights.memory(), 1), nullptr);
  EXPECT_TRUE(weights.is_intact());
}

TEST_F(TmsTest, backups_are_retained_if_wished) {
  const Tensor weights = tensor_in(kWeights, 4 * kMiB, 1);
  EXPECT_FALSE(tms().get_retain_cpu_backup());
  tms().set_retain_cpu_backup(true);
  EXPECT_TRUE(tms().get_retain_cpu_backup());
  ASSERT_EQ(pause("weights"), kSuccess);
  const uint64_t kept = pinned();
  EXPECT_NE(kept, 0);
  const uint8_t* const bytes = tms().get_cpu_backup_pointer(weights.memory(), 1);
  ASSERT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_EQ(pinned(), kept);
  EXPECT_EQ(tms().get_cpu_backup_pointer(weights.memory(), 1), bytes);
  ASSERT_EQ(pause("weights"), kSuccess);
  EXPECT_EQ(tms().get_cpu_backup_pointer(weights.memory(), 1), bytes);
  tms().set_retain_cpu_backup(false);
  EXPECT_EQ(pinned(), kept);
  ASSERT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_EQ(pinned(), 0);
  EXPECT_TRUE(weights.is_intact());
}

TEST_F(TmsTest, backups_can_be_made_ahead) {
  const Tensor weights = tensor_in(kWeights, 4 * kMiB, 1);
  const Tensor cache = tensor_in(kCache, kMiB, 2);
  ASSERT_EQ(tms().prepare(nullptr), kSuccess);
  const uint64_t made = pinned();
  EXPECT_NE(made, 0);
  ASSERT_EQ(pause(nullptr), kSuccess);
  EXPECT_EQ(pinned(), made);
  ASSERT_EQ(tms().prepare(nullptr), kSuccess);
  ASSERT_EQ(tms().resume(nullptr), kSuccess);
  EXPECT_TRUE(weights.is_intact());
}

TEST_F(TmsTest, the_group_sleeps_by_the_functions_of_gpumem) {
  const Tensor weights = tensor_in(kWeights, 4 * kMiB, 1);
  const Tensor cache = tensor_in(kCache, 2 * kMiB, 2);
  const size_t awake = free_bytes();
  {
    const Tensor freed = tensor_in(kCache, 2 * kMiB, 3);
    gpumem_sleep_desc keep = GPUMEM_SLEEP_DESC_INIT, drop = GPUMEM_SLEEP_DESC_INIT;
    keep.tag = "weights";
    drop.content = GPUMEM_CONTENT_DROP;
    ASSERT_EQ(tms().group_sleep(tms().group(), &keep, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(free_bytes(), awake + 2 * kMiB);
    ASSERT_EQ(tms().group_sleep(tms().group(), &drop, nullptr), GPUMEM_SUCCESS);
    EXPECT_EQ(free_bytes(), awake + 6 * kMiB);
  }
  ASSERT_EQ(tms().group_wake(tms().group(), nullptr, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(free_bytes(), awake);
  EXPECT_TRUE(weights.is_intact());
  EXPECT_FALSE(cache.is_intact());
}

TEST_F(TmsTest, pausing_twice_and_resuming_twice_is_reported) {
  const Tensor first = tensor_in(kWeights, kMiB, 1);
  EXPECT_EQ(tms().resume("weights"), kInvalidValue);
  ASSERT_EQ(pause("weights"), kSuccess);
  // Also pauses what is new.
  const Tensor second = tensor_in(kWeights, kMiB, 2);
  const size_t awake = free_bytes();
  EXPECT_EQ(pause("weights"), kInvalidValue);
  EXPECT_EQ(free_bytes(), awake + 2 * kMiB);
  ASSERT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_EQ(tms().resume("weights"), kInvalidValue);
  EXPECT_TRUE(first.is_intact());
  EXPECT_TRUE(second.is_intact());
}

TEST_F(TmsTest, memory_may_be_freed_while_it_is_paused_and_after_its_region) {
  {
    const Tensor weights = tensor_in(kWeights, kMiB, 1);
    const Tensor cache = tensor_in(kCache, kMiB, 2);
    const Tensor file = tensor_in({"file", false, true, nullptr}, kMiB, 3);
    tms().set_disk_backup_dir("/tmp");
    ASSERT_EQ(pause(nullptr), kSuccess);
  }
  EXPECT_EQ(pause(nullptr), kSuccess);
  EXPECT_EQ(tms().resume(nullptr), kSuccess);
}

TEST_F(TmsTest, a_free_waits_for_work) {
  DRIVER(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "20000");
  CUstream stream = nullptr;
  must(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const auto fill = [&](const Tensor& tensor) {
    must(DRIVER(cuMemsetD8Async)(address(tensor.memory()), 1, kMiB, stream));
  };
  {
    const Tensor tensor = tensor_in(kCache, kMiB, 1);
    fill(tensor);
  }
  // Nor does a pause copy before it.
  const Tensor weights = tensor_in(kWeights, kMiB, 1);
  fill(weights);
  ASSERT_EQ(tms().pause(nullptr), kSuccess);
  const uint8_t* const bytes = tms().get_cpu_backup_pointer(weights.memory(), kMiB);
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(std::vector<uint8_t>(bytes, bytes + kMiB), std::vector<uint8_t>(kMiB, 1));
  ASSERT_EQ(tms().resume(nullptr), kSuccess);
  must(DRIVER(cuStreamDestroy)(stream));
  DRIVER(fake_cuda_configure)("FAKE_CUDA_DELAY_US", "0");
}

// A free waits for the device, which no one may while a stream is captured.
void end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  if (DRIVER(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS) must(DRIVER(cuGraphDestroy)(graph));
}
TEST_F(TmsTest, what_is_freed_in_a_capture_is_gone_after_it) {
  CUstream stream = nullptr;
  must(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const size_t before = free_bytes();
  const auto free_in_capture = [&] {
    std::optional<Tensor> weights(tensor_in(kWeights, 64 * kMiB, 1));
    EXPECT_EQ(tms().prepare("weights"), kSuccess);
    EXPECT_NE(pinned(), 0);
    must(DRIVER(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    weights.reset();
    EXPECT_EQ(pinned(), 0);
    EXPECT_TRUE(affected_devices(nullptr).empty());
    EXPECT_EQ(free_bytes(), before - 64 * kMiB);
    end_capture(stream);
  };
  free_in_capture();
  EXPECT_EQ(pause(nullptr), kSuccess);
  EXPECT_EQ(free_bytes(), before);
  free_in_capture();
  (void)tensor_in(kCache, kMiB, 2);
  EXPECT_EQ(free_bytes(), before);
  free_in_capture();
  // There is no room beside it. What has room leaves a capture alone.
  {
    must(DRIVER(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    const Region region(kCache);
    void* const small = tms().torch_malloc(kMiB, 0, nullptr);
    EXPECT_NE(small, nullptr);
    CUgraph graph = nullptr;
    must(DRIVER(cuStreamEndCapture)(stream, &graph));
    must(DRIVER(cuGraphDestroy)(graph));
    EXPECT_EQ(free_bytes(), before - 66 * kMiB);
    const Tensor large(kDeviceBytes - 64 * kMiB, 2);
    EXPECT_NE(large.memory(), nullptr);
    EXPECT_EQ(free_bytes(), 62 * kMiB);
    tms().torch_free(small, kMiB, 0, nullptr);
  }
  EXPECT_EQ(free_bytes(), before);
  must(DRIVER(cuStreamDestroy)(stream));
}

TEST_F(TmsTest, a_resume_without_room_changes_nothing) {
  const Tensor first = tensor_in(kWeights, 8 * kMiB, 1);
  const Tensor second = tensor_in(kWeights, 16 * kMiB, 2);
  ASSERT_EQ(pause("weights"), kSuccess);
  const size_t free = free_bytes();
  CUdeviceptr other = 0;
  must(DRIVER(cuMemAlloc)(&other, free - 16 * kMiB));
  EXPECT_EQ(tms().resume("weights"), kOutOfMemory);
  EXPECT_EQ(free_bytes(), 16 * kMiB);
  EXPECT_NE(tms().get_cpu_backup_pointer(second.memory(), 1), nullptr);
  must(DRIVER(cuMemFree)(other));
  ASSERT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_TRUE(first.is_intact());
  EXPECT_TRUE(second.is_intact());
}

TEST_F(TmsTest, an_allocation_without_room_is_null) {
  const Region region(kWeights);
  EXPECT_EQ(tms().torch_malloc(kDeviceBytes + 1, 0, nullptr), nullptr);
  EXPECT_EQ(tms().torch_malloc(kMiB, 2, nullptr), nullptr);
  EXPECT_EQ(tms().torch_malloc(kMiB, -1, nullptr), nullptr);
  tms().set_memory_margin_bytes(free_bytes() - 4 * kMiB);
  EXPECT_EQ(tms().torch_malloc(8 * kMiB, 0, nullptr), nullptr);
  const Tensor fits(2 * kMiB, 1);
  EXPECT_TRUE(fits.is_intact());
}

TEST_F(TmsTest, memory_outside_of_a_region_never_sleeps) {
  const Tensor plain(kMiB, 1);
  const size_t awake = free_bytes();
  ASSERT_EQ(pause(nullptr), kSuccess);
  EXPECT_EQ(free_bytes(), awake);
  EXPECT_TRUE(plain.is_intact());
  ASSERT_EQ(tms().resume(nullptr), kSuccess);
  // Not ours at all.
  int other = 0;
  tms().torch_free(&other, kMiB, 0, nullptr);
}

TEST_F(TmsTest, several_devices_sleep_at_once) {
  const Tensor first = tensor_in(kWeights, kMiB, 1, 1);
  EXPECT_EQ(affected_devices("weights"), std::vector<int>({1}));
  const Tensor second = tensor_in(kWeights, kMiB, 2, 0);
  EXPECT_EQ(affected_devices("weights"), (std::vector<int>{0, 1}));
  EXPECT_EQ(affected_devices(nullptr), (std::vector<int>{0, 1}));
  EXPECT_TRUE(affected_devices("kv_cache").empty());
  ASSERT_EQ(pause("weights"), kSuccess);
  ASSERT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_TRUE(first.is_intact());
  EXPECT_TRUE(second.is_intact());
}

TEST_F(TmsTest, resident_memory_stays) {
  const Tensor resident = tensor_in(kWeights, 4 * kMiB, 1);
  const Tensor ordinary = tensor_in(kWeights, 4 * kMiB, 2);
  const Tensor dropped = tensor_in({"weights", false, false, nullptr}, 4 * kMiB, 2);
  EXPECT_EQ(tms().keep_resident(resident.memory() + kMiB), 4 * kMiB);
  EXPECT_EQ(tms().keep_resident(resident.memory() + 4 * kMiB), 0);
  EXPECT_EQ(tms().keep_resident(nullptr), 0);
  const size_t awake = free_bytes();
  for (const char* const tag : {"weights", static_cast<const char*>(nullptr)}) {
    ASSERT_EQ(pause(tag), kSuccess);
    EXPECT_EQ(free_bytes(), awake + 8 * kMiB);
    EXPECT_TRUE(resident.is_intact());
    EXPECT_EQ(tms().keep_resident(ordinary.memory()), 0);
    ASSERT_EQ(tms().resume(tag), kSuccess);
    EXPECT_TRUE(ordinary.is_intact());
  }
}

// Each call of the driver fails once: in a pause all stays awake or in its backup, and the next pause is
// whole.
void try_each_failure(bool resident) {
  constexpr size_t kSmall = kMiB / 16;
  const Tensor first = tensor_in(kWeights, 3 * kSmall, 1);
  const Tensor second = tensor_in(kWeights, 2 * kSmall, 2);
  const Tensor third = tensor_in({"weights", true, false, "mmap"}, kSmall, 3);
  const Tensor unsaved = tensor_in({"weights", false, false, nullptr}, kSmall, 5);
  std::optional<Tensor> kept;
  if (resident) {
    kept.emplace(tensor_in(kWeights, kSmall, 4));
    ASSERT_NE(tms().keep_resident(kept->memory()), 0);
  }
  const auto fail = DRIVER(fake_cuda_fail);
  const auto failures = DRIVER(fake_cuda_failures);
  const auto configure = DRIVER(fake_cuda_configure);
  for (const bool pauses : {true, false}) {
    for (uint64_t k = 1;; ++k) {
      ASSERT_LT(k, 1000);
      if (!pauses) {
        ASSERT_EQ(tms().pause("weights"), kSuccess);
      }
      const uint64_t before = failures();
      fail("*", k, 0, CUDA_ERROR_OUT_OF_MEMORY);
      const int status = pauses ? tms().pause("weights") : tms().resume("weights");
      configure("FAKE_CUDA_FAIL", "");
      const bool failed = failures() != before;
      if (!failed) {
        ASSERT_EQ(status, kSuccess);
      }
      if (pauses) {
        // It may be that some could not be woken again.
        (void)tms().resume("weights");
        if (status != kSuccess) {
          ASSERT_TRUE(unsaved.is_intact()) << k;
        }
      } else if (status != kSuccess) {
        ASSERT_EQ(tms().resume("weights"), kSuccess) << k;
      }
      ASSERT_TRUE(first.is_intact()) << k;
      ASSERT_TRUE(second.is_intact()) << k;
      ASSERT_TRUE(third.is_intact()) << k;
      unsaved.fill();
      if (!failed) break;
    }
  }
}
TEST_F(TmsTest, a_failure_of_the_driver_loses_nothing) { try_each_failure(false); }
TEST_F(TmsTest, a_failure_of_the_driver_loses_nothing_beside_resident_memory) { try_each_failure(true); }

// A buffer cannot be put to sleep, and another call fails, such as one that gives those their content back
// that sleep already.
TEST_F(TmsTest, no_two_failures_of_a_pause_lose_a_backup) {
  constexpr size_t kSmall = kMiB / 16;
  const Tensor first = tensor_in(kWeights, 3 * kSmall, 1);
  const Tensor second = tensor_in({"weights", true, false, "mmap"}, kSmall, 2);
  const Tensor kept = tensor_in(kWeights, kSmall, 3);
  ASSERT_NE(tms().keep_resident(kept.memory()), 0);
  const auto calls = [] { return DRIVER(fake_cuda_call_count)("*"); };
  for (uint64_t refused = 1; refused <= 2; ++refused) {
    uint64_t made = 0;
    for (uint64_t k = 1; k == 1 || made + 1 >= k; ++k) {
      ASSERT_LT(k, 1000);
      DRIVER(fake_cuda_fail)("cuMemRetainAllocationHandle", refused, 0, CUDA_ERROR_OUT_OF_MEMORY);
      DRIVER(fake_cuda_fail)("*", k, 0, CUDA_ERROR_OUT_OF_MEMORY);
      const uint64_t before = calls();
      EXPECT_NE(tms().pause("weights"), kSuccess);
      made = calls() - before;
      DRIVER(fake_cuda_configure)("FAKE_CUDA_FAIL", "");
      (void)tms().resume("weights");
      ASSERT_TRUE(first.is_intact()) << refused << " and " << k;
      ASSERT_TRUE(second.is_intact()) << refused << " and " << k;
      ASSERT_TRUE(kept.is_intact()) << refused << " and " << k;
    }
  }
}

TEST_F(TmsTest, threads_have_regions_of_their_own) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      const std::string tag = "thread " + std::to_string(i);
      const Config config{tag, true, false, i % 2 == 0 ? "pinned" : "mmap"};
      for (int round = 0; round < 5; ++round) {
        const Tensor first = tensor_in(config, kMiB, static_cast<uint8_t>(i), i % 2);
        const Tensor second = tensor_in(config, kMiB / 2, static_cast<uint8_t>(round), i % 2);
        EXPECT_EQ(tms().pause(tag.c_str()), kSuccess);
        EXPECT_EQ(tms().resume(tag.c_str()), kSuccess);
        EXPECT_TRUE(first.is_intact());
        EXPECT_TRUE(second.is_intact());
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(TmsTest, one_thread_allocates_while_another_pauses) {
  std::thread allocates([] {
    for (int i = 0; i < 50; ++i)
      EXPECT_TRUE(tensor_in(kCache, kMiB, static_cast<uint8_t>(i)).is_intact());
  });
  const Tensor weights = tensor_in(kWeights, kMiB, 1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(tms().pause("weights"), kSuccess);
    EXPECT_EQ(tms().resume("weights"), kSuccess);
  }
  allocates.join();
  EXPECT_TRUE(weights.is_intact());
}

// Runs this program with another test, in a process of its own.
int run_alone(const char* filter, const std::vector<std::pair<const char*, const char*>>& environment) {
  const std::string argument = std::string("--gtest_filter=") + filter;
  const pid_t child = fork();
  if (child == 0) {
    for (const auto& [name, value] : environment)
      setenv(name, value, 1);
    execl("/proc/self/exe", "tms_test", argument.c_str(), "--gtest_also_run_disabled_tests",
          static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// A child has the lock as another thread held it: here that of a pause, which waits for work.
TEST_F(TmsTest, a_forked_child_returns_at_once) {
  const Tensor weights = tensor_in(kWeights, kMiB, 1);
  CUstream stream = nullptr;
  must(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  std::atomic<bool> goes_on = false;
  must(DRIVER(cuLaunchHostFunc)(
      stream,
      [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load())
          std::this_thread::yield();
      },
      &goes_on));
  const auto calls = DRIVER(fake_cuda_call_count);
  const uint64_t before = calls("*");
  std::thread pauses([] { EXPECT_EQ(tms().pause("weights"), kSuccess); });
  while (calls("*") == before)
    std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(120);
    tms().torch_free(weights.memory(), kMiB, 0, nullptr);
    const Region region(kWeights);
    const bool refused = tms().pause(nullptr) != kSuccess && tms().resume(nullptr) != kSuccess &&
                         tms().torch_malloc(kMiB, 0, nullptr) == nullptr && tms().group() == nullptr;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  goes_on = true;
  pauses.join();
  EXPECT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_TRUE(weights.is_intact());
  must(DRIVER(cuStreamDestroy)(stream));
}

TEST(TmsAlone, DISABLED_ends_while_memory_is_paused) {
  (void)new Tensor(tensor_in(kWeights, kMiB, 1));
  (void)new Tensor(tensor_in(kCache, kMiB, 2));
  ASSERT_EQ(pause(nullptr), kSuccess);
  std::exit(HasFailure() ? 1 : 42);
}
TEST_F(TmsTest, a_process_may_end_while_memory_is_paused) {
  const int status = run_alone("TmsAlone.DISABLED_ends_while_memory_is_paused", {});
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(TmsAlone, DISABLED_reads_the_environment) {
  EXPECT_TRUE(tms().get_interesting_region());
  EXPECT_TRUE(tms().get_enable_cpu_backup());
  EXPECT_FALSE(tms().get_enable_disk_backup());
  EXPECT_STREQ(tms().get_cpu_backup_backend(), "mmap");
  EXPECT_TRUE(tms().get_retain_cpu_backup());
  std::thread([] { EXPECT_TRUE(tms().get_interesting_region()); }).join();
}
TEST_F(TmsTest, the_environment_sets_how_threads_begin) {
  EXPECT_EQ(run_alone("TmsAlone.DISABLED_reads_the_environment", {{"TMS_INIT_ENABLE", "1"},
                                                                  {"TMS_INIT_ENABLE_CPU_BACKUP", "yes"},
                                                                  {"TMS_INIT_ENABLE_DISK_BACKUP", "what?"},
                                                                  {"TMS_INIT_CPU_BACKUP_BACKEND", "mmap"},
                                                                  {"TMS_RETAIN_CPU_BACKUP", "TRUE"}}),
            0);
}

TEST(TmsAlone, DISABLED_is_preloaded) {
  // PyTorch loads its dependencies so.
  ASSERT_NE(dlopen(TMS_RUNTIME, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  int (*cuda_malloc)(void**, size_t) = nullptr;
  int (*cuda_free)(void*) = nullptr;
  int (*runtime_live)() = nullptr;
  find(RTLD_DEFAULT, "cudaMalloc", cuda_malloc);
  find(RTLD_DEFAULT, "cudaFree", cuda_free);
  find(RTLD_DEFAULT, "runtime_live", runtime_live);
  void* plain = nullptr;
  ASSERT_EQ(cuda_malloc(&plain, kMiB), kSuccess);
  EXPECT_EQ(runtime_live(), 1);
  void* memory = nullptr;
  {
    const Region region(kWeights);
    ASSERT_EQ(cuda_malloc(&memory, kMiB), kSuccess);
    void* too_large = nullptr;
    EXPECT_EQ(cuda_malloc(&too_large, 2 * kDeviceBytes), kOutOfMemory);
    EXPECT_EQ(too_large, nullptr);
  }
  EXPECT_EQ(runtime_live(), 1);
  // The runtime says that device 1 is current.
  EXPECT_EQ(affected_devices("weights"), std::vector<int>({1}));
  use(1);
  const std::vector<uint8_t> bytes(kMiB, 7);
  must(DRIVER(cuMemcpyHtoD)(address(memory), bytes.data(), bytes.size()));
  ASSERT_EQ(pause("weights"), kSuccess);
  ASSERT_EQ(tms().resume("weights"), kSuccess);
  EXPECT_EQ(read(memory, kMiB), bytes);
  // Nobody would call again for what has failed in a capture.
  CUstream stream = nullptr;
  must(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  must(DRIVER(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuda_free(memory), kSuccess);
  end_capture(stream);
  EXPECT_EQ(cuda_free(plain), kSuccess);
  EXPECT_EQ(cuda_free(nullptr), kSuccess);
  EXPECT_EQ(runtime_live(), 0);
  EXPECT_TRUE(affected_devices(nullptr).empty());
}
TEST_F(TmsTest, preloaded_it_takes_the_allocations_of_regions) {
  EXPECT_EQ(run_alone("TmsAlone.DISABLED_is_preloaded", {{"LD_PRELOAD", TMS_LIBRARY}}), 0);
}

}  // namespace
