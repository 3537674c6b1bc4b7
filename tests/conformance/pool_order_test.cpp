// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The order of pools, proved by content: no block is handed to a stream while another one still uses it
// (STR-12, STR-23, COM-29). On a GPU the work is kernels that take their time.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#ifdef HAVE_CUDA_HEADERS
#include <dlfcn.h>

#include "cuda_raw.h"
#endif
#include "pools.h"

namespace conformance {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLong = 60'000'000'000;

struct Lane {
  Stream stream;
  void* native = nullptr;
};

// Work that fills a block and, later in its stream, finds out whether somebody else wrote there meanwhile.
class Work {
 public:
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;
  virtual void fill(const Lane& lane, void* block, uint64_t words, uint32_t tag) = 0;
  virtual void check(const Lane& lane, void* block, uint64_t words, uint32_t tag) = 0;
  // Words that were not what they had to be. All work is complete.
  virtual uint64_t mismatches() = 0;
};

// By fills and copies, with host functions that take their time between them.
class HostWork final : public Work {
 public:
  HostWork(gpumem_instance instance, gpumem_device device, std::chrono::microseconds wait)
      : instance_(instance), seen_(alloc_pinned(device, kSlots * sizeof(uint32_t))), wait_(wait) {}
  void fill(const Lane& lane, void* block, uint64_t words, uint32_t tag) override {
    EXPECT_OK(fill_on(instance_, lane.stream, block, words * 4, tag, 4, why()));
  }
  void check(const Lane& lane, void* block, uint64_t words, uint32_t tag) override {
    const uint64_t slot = next_.fetch_add(2);
    ASSERT_LE(slot + 2, kSlots);
    auto* const seen = reinterpret_cast<uint32_t*>(seen_.host()) + slot;
    wanted_[slot] = wanted_[slot + 1] = tag;
    EXPECT_OK(gpumem_stream_launch_host_function(
        lane.stream,
        [](void* wait) { std::this_thread::sleep_for(*static_cast<std::chrono::microseconds*>(wait)); },
        &wait_, why()));
    auto* const first = static_cast<uint32_t*>(block);
    EXPECT_OK(copy_on(instance_, lane.stream, seen, first, 4, nullptr, why()));
    EXPECT_OK(copy_on(instance_, lane.stream, seen + 1, first + words - 1, 4, nullptr, why()));
  }
  uint64_t mismatches() override {
    const auto* const seen = reinterpret_cast<const uint32_t*>(seen_.host());
    uint64_t wrong = 0;
    for (uint64_t slot = 0; slot < next_; ++slot)
      if (seen[slot] != wanted_[slot]) ++wrong;
    return wrong;
  }

 private:
  static constexpr uint64_t kSlots = 256 * 1024;
  gpumem_instance instance_;
  Memory seen_;
  std::chrono::microseconds wait_;
  std::vector<uint32_t> wanted_ = std::vector<uint32_t>(kSlots);
  std::atomic<uint64_t> next_{0};
};

#ifdef HAVE_CUDA_HEADERS
// `fill` waits and writes, `check` compares, waits and compares again. One block of threads each, so that the
// kernels of many streams run at once. PTX of an old architecture, which every newer driver compiles for its
// device.
constexpr const char* kKernels = R"(
.version 6.4
.target sm_70
.address_size 64

.visible .entry fill(.param .u64 address, .param .u64 words, .param .u32 tag, .param .u64 nanoseconds)
{
  .reg .u64 %rd<10>;
  .reg .u32 %r<4>;
  .reg .pred %p<3>;
  ld.param.u64 %rd1, [address];
  ld.param.u64 %rd2, [words];
  ld.param.u32 %r1, [tag];
  ld.param.u64 %rd3, [nanoseconds];
  mov.u64 %rd4, %globaltimer;
wait:
  mov.u64 %rd5, %globaltimer;
  sub.u64 %rd5, %rd5, %rd4;
  setp.lt.u64 %p1, %rd5, %rd3;
  @%p1 bra wait;
  mov.u32 %r2, %tid.x;
  cvt.u64.u32 %rd6, %r2;
  mov.u32 %r3, %ntid.x;
  cvt.u64.u32 %rd7, %r3;
next:
  setp.ge.u64 %p2, %rd6, %rd2;
  @%p2 bra done;
  shl.b64 %rd8, %rd6, 2;
  add.u64 %rd8, %rd8, %rd1;
  st.global.u32 [%rd8], %r1;
  add.u64 %rd6, %rd6, %rd7;
  bra next;
done:
  ret;
}

.visible .entry check(.param .u64 address, .param .u64 words, .param .u32 tag, .param .u64 nanoseconds,
                      .param .u64 mismatches)
{
  .reg .u64 %rd<12>;
  .reg .u32 %r<8>;
  .reg .pred %p<5>;
  ld.param.u64 %rd1, [address];
  ld.param.u64 %rd2, [words];
  ld.param.u32 %r1, [tag];
  ld.param.u64 %rd3, [nanoseconds];
  ld.param.u64 %rd9, [mismatches];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ntid.x;
  cvt.u64.u32 %rd7, %r3;
  mov.u32 %r4, 0;
  mov.u32 %r5, 0;
pass:
  cvt.u64.u32 %rd6, %r2;
next:
  setp.ge.u64 %p1, %rd6, %rd2;
  @%p1 bra compared;
  shl.b64 %rd8, %rd6, 2;
  add.u64 %rd8, %rd8, %rd1;
  ld.volatile.global.u32 %r6, [%rd8];
  setp.ne.u32 %p2, %r6, %r1;
  @%p2 add.u32 %r4, %r4, 1;
  add.u64 %rd6, %rd6, %rd7;
  bra next;
compared:
  setp.ne.u32 %p3, %r5, 0;
  @%p3 bra count;
  mov.u32 %r5, 1;
  mov.u64 %rd4, %globaltimer;
wait:
  mov.u64 %rd5, %globaltimer;
  sub.u64 %rd5, %rd5, %rd4;
  setp.lt.u64 %p4, %rd5, %rd3;
  @%p4 bra wait;
  bra pass;
count:
  setp.eq.u32 %p1, %r4, 0;
  @%p1 bra done;
  cvt.u64.u32 %rd10, %r4;
  red.global.add.u64 [%rd9], %rd10;
done:
  ret;
}
)";

class KernelWork final : public Work {
 public:
  KernelWork(gpumem_instance instance, gpumem_device device, std::chrono::microseconds wait)
      : instance_(instance),
        context_(ordinal_of(device)),
        counter_(alloc_device(device, sizeof(uint64_t))),
        nanoseconds_(static_cast<uint64_t>(wait.count()) * 1000) {
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(driver, name));
      if (function == nullptr) ADD_FAILURE() << name;
    };
    load(load_, "cuModuleLoadData");
    load(find_, "cuModuleGetFunction");
    load(launch_, "cuLaunchKernel");
    load(unload_, "cuModuleUnload");
    EXPECT_EQ(load_(&module_, kKernels), CUDA_SUCCESS);
    EXPECT_EQ(find_(&fill_, module_, "fill"), CUDA_SUCCESS);
    EXPECT_EQ(find_(&check_, module_, "check"), CUDA_SUCCESS);
    EXPECT_OK(gpumem_fill(instance_, counter_.device(), sizeof(uint64_t), 0, 1, why()));
  }
  ~KernelWork() override { EXPECT_EQ(unload_(module_), CUDA_SUCCESS); }
  void fill(const Lane& lane, void* block, uint64_t words, uint32_t tag) override {
    std::array<void*, 4> arguments{static_cast<void*>(&block), &words, &tag, &nanoseconds_};
    launch(fill_, lane, arguments.data());
  }
  void check(const Lane& lane, void* block, uint64_t words, uint32_t tag) override {
    void* counter = counter_.device();
    std::array<void*, 5> arguments{static_cast<void*>(&block), &words, &tag, &nanoseconds_,
                                   static_cast<void*>(&counter)};
    launch(check_, lane, arguments.data());
  }
  uint64_t mismatches() override {
    uint64_t wrong = UINT64_MAX;
    EXPECT_OK(gpumem_copy(instance_, &wrong, counter_.device(), sizeof wrong, nullptr, why()));
    return wrong;
  }

 private:
  void launch(CUfunction function, const Lane& lane, void** arguments) {
    const PrimaryContext context(0);
    EXPECT_EQ(
        launch_(function, 1, 1, 1, 256, 1, 1, 0, static_cast<CUstream>(lane.native), arguments, nullptr),
        CUDA_SUCCESS);
  }

  gpumem_instance instance_;
  PrimaryContext context_;
  Memory counter_;
  uint64_t nanoseconds_;
  CUmodule module_ = nullptr;
  CUfunction fill_ = nullptr;
  CUfunction check_ = nullptr;
  decltype(&cuModuleLoadData) load_ = nullptr;
  decltype(&cuModuleGetFunction) find_ = nullptr;
  decltype(&cuLaunchKernel) launch_ = nullptr;
  decltype(&cuModuleUnload) unload_ = nullptr;
};
#endif

bool has_kernels() { return !on_host() && !on_fake_cuda(); }

// Its checks take `wait`, a tenth of that where they are kernels.
std::unique_ptr<Work> make_work(gpumem_instance instance, gpumem_device device,
                                std::chrono::microseconds wait) {
#ifdef HAVE_CUDA_HEADERS
  if (has_kernels()) return std::make_unique<KernelWork>(instance, device, wait / 10);
#endif
  return std::make_unique<HostWork>(instance, device, wait);
}

Lane make_lane(gpumem_device device) {
  Lane lane{create_stream(device)};
  gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
  EXPECT_OK(gpumem_stream_get_info(lane.stream, &info, why()));
  lane.native = info.native_stream;
  return lane;
}

// Remembers in which stream an address was used last.
class LastUse {
 public:
  void used(void* block, size_t lane) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = last_.try_emplace(block, lane);
    if (!is_new && entry->second != lane) ++handed_over_;
    entry->second = lane;
  }
  uint64_t handed_over() const { return handed_over_; }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, size_t> last_;
  uint64_t handed_over_ = 0;
};

void prove_order(gpumem_pool_flags flags) {
  Instance instance = open_instance();
  const gpumem_device device = instance.device();
  const auto work = make_work(instance, device, std::chrono::microseconds(200));
  constexpr size_t kThreads = 4;
  constexpr size_t kLanes = 3;  // of each thread
  const uint32_t steps = has_kernels() ? 4000 : 120;
  const Pool pool = create_pool(device, GPUMEM_KIND_DEVICE, flags, 48 * kMiB);
  std::vector<Lane> lanes;
  for (size_t i = 0; i < kThreads * kLanes; ++i)
    lanes.push_back(make_lane(device));
  LastUse last;
  std::atomic<uint64_t> refused{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t + 1));
      const Event event = create_event(device);
      for (uint32_t step = 0; step < steps; ++step) {
        const size_t index = t * kLanes + random() % kLanes;
        const Lane& lane = lanes[index];
        const uint64_t size = std::array{4 * kKiB, 64 * kKiB, kMiB, 3 * kMiB}[random() % 4];
        const auto tag = static_cast<uint32_t>(t << 24 | step);
        void* block = nullptr;
        if (gpumem_pool_alloc(pool, size, lane.stream, &block, nullptr) != GPUMEM_SUCCESS) {
          ++refused;  // the limit: everything is in use
          EXPECT_OK(gpumem_stream_synchronize(lane.stream, kLong, why()));
          continue;
        }
        last.used(block, index);
        work->fill(lane, block, size / 4, tag);
        work->check(lane, block, size / 4, tag);
        if (random() % 4 == 0) {
          // Another stream uses it too, behind the fill and until after the free.
          const Lane& other = lanes[t * kLanes + random() % kLanes];
          EXPECT_OK(gpumem_event_record(event, lane.stream, why()));
          EXPECT_OK(gpumem_stream_wait_event(other.stream, event, why()));
          work->check(other, block, size / 4, tag);
          EXPECT_OK(gpumem_pool_record_use(pool, block, other.stream, why()));
        }
        EXPECT_OK(gpumem_pool_free(pool, block, lane.stream, why()));
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  for (const Lane& lane : lanes)
    EXPECT_OK(gpumem_stream_synchronize(lane.stream, kLong, why()));
  EXPECT_EQ(work->mismatches(), 0U);
  EXPECT_GT(last.handed_over(), steps / 4) << "too few blocks changed their stream to prove anything";
  EXPECT_LT(refused, uint64_t{kThreads} * steps / 2);
}

TEST(Pool, str_12_order_holds_under_load) { prove_order(0); }

TEST(Pool, str_12_inserted_dependencies_hold_under_load) {
  prove_order(GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES);
}

// Remembers the native handles of streams that have ended.
class EndedHandles {
 public:
  void ended(void* native) {
    const std::lock_guard lock(mutex_);
    ended_.insert(native);
  }
  void made(void* native) {
    const std::lock_guard lock(mutex_);
    if (ended_.contains(native)) ++again_;
  }
  // Streams with the handle of an earlier one.
  uint64_t again() const { return again_; }

 private:
  std::mutex mutex_;
  std::unordered_set<void*> ended_;
  std::atomic<uint64_t> again_{0};
};

// Native handles come again and again, each time as another stream; many end with their work pending. Some
// are other code's. GPUMEM_STREAMS says how many there are at least: it goes on until a handle came again.
TEST(Pool, com_29_many_streams_mix_nothing_up) {
  const ReusedHandles reused;
  Instance instance = open_instance();
  const gpumem_device device = instance.device();
  const char* const count = std::getenv("GPUMEM_STREAMS");
  const uint64_t streams = count != nullptr ? std::strtoull(count, nullptr, 10) : kSanitized ? 500 : 2000;
  ASSERT_GT(streams, 0U);
  const auto work = make_work(instance, device, std::chrono::milliseconds(5));
  Pool pool = create_pool(device, GPUMEM_KIND_DEVICE, 0, 32 * kMiB);
  constexpr uint64_t kSize = 64 * kKiB;
  std::atomic<uint32_t> tag{0};
  LastUse last;
  EndedHandles handles;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = t; i < streams || (handles.again() == 0 && i < 10 * streams); i += 2) {
        std::optional<NativeStream> native;
        Lane lane;
        if (i / 2 % 16 == 0) {
          native.emplace(device);
          gpumem_stream adopted = nullptr;
          ASSERT_OK(gpumem_stream_wrap(device, native->get(), &adopted, why()));
          lane = {Stream(adopted), native->get()};
        } else {
          lane = make_lane(device);
        }
        handles.made(lane.native);
        void* block = nullptr;
        const auto take = [&] {
          return native ? gpumem_pool_alloc_native(pool, kSize, lane.native, &block, why())
                        : gpumem_pool_alloc(pool, kSize, lane.stream, &block, why());
        };
        gpumem_status taken = take();
        for (int again = 0; taken == GPUMEM_ERROR_LIMIT_EXCEEDED && again < 20'000; ++again) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // pending work has all that there is
          taken = take();
        }
        ASSERT_EQ(taken, GPUMEM_SUCCESS);
        last.used(block, i);
        const uint32_t mine = ++tag;
        work->fill(lane, block, kSize / 4, mine);
        work->check(lane, block, kSize / 4, mine);
        EXPECT_OK(native ? gpumem_pool_free_native(pool, block, lane.native, why())
                         : gpumem_pool_free(pool, block, lane.stream, why()));
        handles.ended(lane.native);
        EXPECT_OK(gpumem_stream_destroy(lane.stream.release(), why()));  // with its work pending
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
  EXPECT_OK(gpumem_pool_get_info(pool, &info, why()));
  EXPECT_EQ(info.live_count, 0U);
  EXPECT_LE(info.reserved_bytes, 32 * kMiB);
  EXPECT_OK(gpumem_pool_destroy(pool.release(), why()));  // which waits for the work
  EXPECT_EQ(work->mismatches(), 0U);
  EXPECT_GT(last.handed_over(), streams / 4);
  // Drivers nearly always do so, but nothing says that they must.
  if (on_host() || on_fake_cuda()) {
    EXPECT_GT(handles.again(), 0U);
  }
}

}  // namespace
}  // namespace conformance
