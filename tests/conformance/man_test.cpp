// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Rules MAN-1 to MAN-36 of the contract: managed memory, and what other rules say of it.
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "../asleep.h"
#include "harness.h"
#include "progress.h"

namespace conformance {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kHuge = uint64_t{1} << 63;
// Long enough for a call that wrongly does not wait to return.
constexpr std::chrono::milliseconds kShortWait{20};

// A place for a prefetch or advice.
struct Location {
  gpumem_location location;
  int32_t id;
};
constexpr Location kDevice{GPUMEM_LOCATION_DEVICE, 0};
constexpr Location kHost{GPUMEM_LOCATION_HOST, -1};
constexpr Location kNowhere{GPUMEM_LOCATION_NONE, -1};

gpumem_managed_range range_of(void* pointer, uint64_t size, Location where = {0, 0}) {
  gpumem_managed_range range = GPUMEM_MANAGED_RANGE_INIT;
  range.pointer = pointer;
  range.size = size;
  range.location = where.location;
  range.location_id = where.location == GPUMEM_LOCATION_DEVICE ? where.id : 0;
  return range;
}

using Batch = gpumem_status (*)(gpumem_stream, const gpumem_managed_range*, uint64_t, gpumem_error*);

// A stream with device work that waits for a value, so that its device is active.
class ActiveStream {
 public:
  explicit ActiveStream(gpumem_device device)
      : word_(alloc_pinned(device, 8)), stream_(create_stream(device)) {
    std::memset(word_.host(), 0, 8);
    EXPECT_OK(gpumem_stream_wait_value(stream_, word_.device(), 1, 4, GPUMEM_WAIT_GEQ, why()));
  }
  ActiveStream(const ActiveStream&) = delete;
  ActiveStream& operator=(const ActiveStream&) = delete;
  ~ActiveStream() { release(); }
  operator gpumem_stream() const { return stream_; }  // NOLINT: stands for the handle in every call
  // Lets the work run. Nobody has observed it then.
  void release() { __atomic_store_n(reinterpret_cast<uint32_t*>(word_.host()), 1, __ATOMIC_RELEASE); }
  void finish() {
    release();
    stream_.synchronize();
  }

 private:
  Memory word_;
  Stream stream_;
};

// With concurrent devices, and with devices that are not. A real GPU is what it is.
class Man : public Conformance, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    if (on_fake_cuda() && kThreadSanitizer) {
      SKIP_RULE(
          "what the CPU and the devices do at once is the subject, and ThreadSanitizer takes it for races");
    }
    if (on_cuda() && !on_fake_cuda() && !GetParam()) SKIP_RULE("a GPU is concurrent or not by itself");
    if (on_fake_cuda()) set_fake_attribute(kConcurrentManagedAccess, GetParam() ? 1 : 0);
    Conformance::SetUp();
    if (on_host() && !GetParam()) {
      instance_.close();
      instance_ = open_with({});
      device_ = instance_.device();
    }
    const gpumem_capability_info managed = capability(device_, GPUMEM_CAPABILITY_MANAGED);
    concurrent_ = capability(device_, GPUMEM_CAPABILITY_MANAGED_CONCURRENT).value == GPUMEM_ANSWER_YES;
    if (managed.value != GPUMEM_ANSWER_NO) return;
    const Counters before = counters(instance_);
    const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, kMiB);
    gpumem_memory none = nullptr;
    EXPECT_STATUS(managed.status, gpumem_memory_create(device_, &desc, &none, why()));
    EXPECT_EQ(none, nullptr);
    EXPECT_TRUE(before == counters(instance_));
    SKIP_RULE(std::string("no managed memory: ") + managed.reason);
  }
  void TearDown() override {
    if (instance_.get() != nullptr) Conformance::TearDown();
    if (on_fake_cuda()) set_fake_attribute(kConcurrentManagedAccess, 1);
  }

  // Another instance with devices of the same sort.
  Instance open_with(const std::function<void(gpumem_host_options&)>& change) const {
    return open_instance([&](gpumem_instance_desc&, gpumem_host_options& host) {
      host.concurrent = GetParam() ? GPUMEM_TOGGLE_ON : GPUMEM_TOGGLE_OFF;
      if (change) change(host);
    });
  }

  Memory managed(uint64_t size, gpumem_memory_flags require = 0) const {
    return create_memory(device_, memory_desc(GPUMEM_KIND_MANAGED, size, require));
  }
  Stream adopt(void* native) const {
    gpumem_stream stream = nullptr;
    EXPECT_OK(gpumem_stream_wrap(device_, native, &stream, why()));
    return Stream(stream);
  }
  Stream default_stream() const { return adopt(nullptr); }
  std::vector<gpumem_device> devices() const {
    std::vector<gpumem_device> all;
    for (uint32_t i = 0; i < instance_.device_count(); ++i)
      all.push_back(instance_.device(i));
    return all;
  }

  // ---- calls with fewer words ----
  gpumem_status attach(gpumem_stream stream, void* pointer, gpumem_attach how, uint64_t size = 0) const {
    return gpumem_managed_attach(stream, pointer, size, how, why());
  }
  gpumem_status advise(const void* pointer, uint64_t size, gpumem_advice advice,
                       Location where = kHost) const {
    return gpumem_managed_advise(instance_, pointer, size, advice, where.location, where.id, why());
  }
  gpumem_status prefetch(gpumem_stream stream, const void* pointer, uint64_t size, Location where) const {
    return gpumem_managed_prefetch(stream, pointer, size, where.location, where.id, why());
  }
  gpumem_managed_info info(const void* pointer, uint64_t size) const {
    gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
    EXPECT_OK(gpumem_managed_get_info(instance_, pointer, size, &info, why()));
    return info;
  }
  gpumem_status fill(gpumem_stream stream, const Memory& memory, uint32_t value) const {
    return fill_on(instance_, stream, memory.device(), memory.size(), value, 1, why());
  }
  gpumem_status begin(const void* pointer) const {
    return gpumem_managed_begin_host_access(instance_, pointer, why());
  }
  gpumem_status end(const void* pointer) const {
    return gpumem_managed_end_host_access(instance_, pointer, why());
  }
  bool has(gpumem_capability what) const { return capability(device_, what).value != GPUMEM_ANSWER_NO; }

  // ---- expectations ----
  // What a hint answers that names only what is there.
  gpumem_status hinted() const { return concurrent_ ? GPUMEM_SUCCESS : GPUMEM_NO_EFFECT; }
  gpumem_status discarded() const {
    return concurrent_ && has(GPUMEM_CAPABILITY_MANAGED_DISCARD) ? GPUMEM_SUCCESS : GPUMEM_NO_EFFECT;
  }
  // What an operation of a device answers where it is refused on devices that are not concurrent.
  gpumem_status refused() const { return concurrent_ ? GPUMEM_SUCCESS : GPUMEM_ERROR_NO_ACCESS; }
  // Whether the CPU may touch the memory while devices are not concurrent. If it may not, only the host
  // backend shows it.
  void expect_touchable(const Memory& memory, bool may) const {
    uint8_t* const first = memory.host();
    uint8_t* const last = first + memory.size() - 1;
    if (concurrent_ || may) {
      EXPECT_FALSE(read_faults(first));
      EXPECT_FALSE(write_faults(last));
    } else if (on_host()) {
      EXPECT_TRUE(read_faults(first));
      EXPECT_TRUE(read_faults(last));
      EXPECT_TRUE(write_faults(last));
    }
  }
  void expect_preferred(const void* pointer, uint64_t size, Location where) const {
    const gpumem_managed_info now = info(pointer, size);
    EXPECT_EQ(now.preferred_location, where.location);
    EXPECT_EQ(now.preferred_location_id, where.id);
  }
  void expect_prefetched(const void* pointer, uint64_t size, Location where) const {
    const gpumem_managed_info now = info(pointer, size);
    EXPECT_EQ(now.last_prefetch_location, where.location);
    EXPECT_EQ(now.last_prefetch_location_id, where.id);
  }
  void expect_nothing_known(const void* pointer, uint64_t size) const {
    const gpumem_managed_info now = info(pointer, size);
    EXPECT_EQ(now.read_mostly, 0u);
    EXPECT_EQ(now.preferred_location, GPUMEM_LOCATION_NONE);
    EXPECT_EQ(now.preferred_location_id, -1);
    EXPECT_EQ(now.last_prefetch_location, GPUMEM_LOCATION_NONE);
    EXPECT_EQ(now.last_prefetch_location_id, -1);
    EXPECT_EQ(now.accessed_by_host, 0u);
    EXPECT_EQ(now.accessed_by_devices, 0u);
  }
  // The call fails and writes nothing.
  void expect_no_info(gpumem_status expected, const void* pointer, uint64_t size) const {
    gpumem_managed_info before = GPUMEM_MANAGED_INFO_INIT;
    before.read_mostly = 77;
    before.accessed_by_devices = 77;
    gpumem_managed_info after = before;
    EXPECT_STATUS(expected, gpumem_managed_get_info(instance_, pointer, size, &after, why()));
    EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
  }

  static constexpr int kConcurrentManagedAccess = 89;
  bool concurrent_ = false;
};

INSTANTIATE_TEST_SUITE_P(Devices, Man, testing::Values(true, false),
                         [](const auto& one) { return one.param ? "concurrent" : "not_concurrent"; });

// ---- MAN-1, MAN-2 ----

TEST_P(Man, man_1_one_address_for_all) {
  const uint64_t size = kMiB + 5;
  for (const gpumem_memory_flags flags :
       {gpumem_memory_flags{0}, gpumem_memory_flags{GPUMEM_MEMORY_ATTACH_HOST}}) {
    SCOPED_TRACE(flags);
    const Memory memory = managed(size, flags);
    const gpumem_memory_info told = memory.info();
    EXPECT_EQ(told.kind, GPUMEM_KIND_MANAGED);
    EXPECT_EQ(told.size, size);
    EXPECT_EQ(told.host_pointer, told.device_pointer);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(told.host_pointer) % 256, 0u);
    EXPECT_EQ(told.requested_flags, flags);
    EXPECT_EQ(told.granted_flags & GPUMEM_MEMORY_ATTACH_HOST, flags);
    EXPECT_EQ(told.numa_node, -1);
  }
  const Memory memory = managed(size);
  uint32_t seed = 0;
  for (const gpumem_device device : devices()) {
    const Memory other = alloc_device(device, size);
    const Stream stream = create_stream(device);
    fill_pattern(memory.host(), size, ++seed);
    EXPECT_OK(gpumem_copy_async(stream, other.device(), memory.device(), size, nullptr, why()));
    EXPECT_OK(gpumem_fill_async(stream, memory.device(), size, 0, 1, why()));
    EXPECT_OK(gpumem_copy_async(stream, memory.device(), other.device(), size, nullptr, why()));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(memory.host(), size, seed));
  }
}

TEST_P(Man, man_1_flags) {
  const Counters before = counters(instance_);
  const auto refused = [&](gpumem_kind kind, gpumem_memory_flags flags) {
    for (const bool preferred : {false, true}) {
      gpumem_memory_desc desc = memory_desc(kind, kMiB);
      (preferred ? desc.prefer : desc.require) = flags;
      gpumem_memory none = nullptr;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &desc, &none, why()))
          << flags;
      EXPECT_EQ(none, nullptr);
    }
  };
  for (const gpumem_memory_flags flags :
       {GPUMEM_MEMORY_PORTABLE, GPUMEM_MEMORY_MAPPED, GPUMEM_MEMORY_WRITE_COMBINED, GPUMEM_MEMORY_READ_ONLY,
        GPUMEM_MEMORY_IOMEMORY, GPUMEM_MEMORY_PAGE_LOCKED, GPUMEM_MEMORY_NUMA_NODE, UINT64_C(1) << 40}) {
    refused(GPUMEM_KIND_MANAGED, flags);
    refused(GPUMEM_KIND_MANAGED, flags | GPUMEM_MEMORY_ATTACH_HOST);
  }
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    refused(kind, GPUMEM_MEMORY_ATTACH_HOST);
    refused(kind, GPUMEM_MEMORY_OVERSUBSCRIBE);
  }
  Pages pages(page_size());
  for (const gpumem_memory_flags flags : {GPUMEM_MEMORY_ATTACH_HOST, GPUMEM_MEMORY_OVERSUBSCRIBE}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_register(device_, pages.get(), pages.size(), flags, why()));
  }
  EXPECT_TRUE(before == counters(instance_));
}

TEST_P(Man, man_1_is_counted) {
  const gpumem_kind_stats before = kind_stats(instance_, GPUMEM_KIND_MANAGED);
  {
    const Memory memory = managed(12'345);
    const gpumem_kind_stats now = kind_stats(instance_, GPUMEM_KIND_MANAGED);
    EXPECT_EQ(now.live_count, before.live_count + 1);
    EXPECT_EQ(now.live_bytes, before.live_bytes + 12'345);
    EXPECT_EQ(stats(instance_).live_count, 1u);
  }
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_MANAGED).live_count, before.live_count);
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_MANAGED).total_count, before.total_count + 1);
}

TEST_P(Man, man_1_by_pointer) {
  void* pointer = nullptr;
  ASSERT_OK(gpumem_malloc(device_, GPUMEM_KIND_MANAGED, 5001, &pointer, why()));
  auto* const bytes = static_cast<uint8_t*>(pointer);
  EXPECT_EQ(pointer_info(instance_, bytes + 5000).kind, GPUMEM_KIND_MANAGED);
  EXPECT_OK(gpumem_fill(instance_, pointer, 5001, 0x33, 1, why()));
  EXPECT_EQ(bytes[5000], 0x33);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_free(instance_, bytes + 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_unregister(instance_, pointer, why()));
  EXPECT_OK(gpumem_free(instance_, pointer, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, pointer, why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_fill(instance_, pointer, 1, 1, 1, why()));
}

TEST_P(Man, man_1_bad_requests) {
  const Counters before = counters(instance_);
  for (const uint64_t size : {uint64_t{0}, kHuge, UINT64_MAX}) {
    const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, size);
    gpumem_memory none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &desc, &none, why()));
    EXPECT_EQ(none, nullptr);
    void* pointer = this;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_malloc(device_, GPUMEM_KIND_MANAGED, size, &pointer, why()));
    EXPECT_EQ(pointer, this);
  }
  for (const uint64_t alignment : {uint64_t{3}, kHuge, UINT64_MAX}) {
    gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, kMiB);
    desc.alignment = alignment;
    gpumem_memory none = nullptr;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &desc, &none, why()));
    EXPECT_EQ(none, nullptr);
  }
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, kMiB);
  desc.numa_node = 1;
  gpumem_memory none = nullptr;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_memory_create(device_, &desc, &none, why()));
  if (on_fake_cuda()) {
    constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
    Faults::fail_driver_call("cuMemAllocManaged", kOutOfMemory);
    desc = memory_desc(GPUMEM_KIND_MANAGED, kMiB);
    EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, gpumem_memory_create(device_, &desc, &none, why()));
  }
  EXPECT_TRUE(before == counters(instance_));
  for (const uint64_t alignment : {uint64_t{256}, uint64_t{4096}, uint64_t{65536}}) {
    desc = memory_desc(GPUMEM_KIND_MANAGED, 1000);
    desc.alignment = alignment;
    gpumem_memory made = nullptr;
    EXPECT_STATUS_IN(gpumem_memory_create(device_, &desc, &made, why()), GPUMEM_SUCCESS,
                     GPUMEM_ERROR_UNSUPPORTED);
    const Memory memory(made);
    if (made != nullptr) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.host()) % alignment, 0u);
    }
  }
}

TEST_P(Man, man_2_the_address_stays) {
  const uint64_t size = 3 * kMiB;
  const Memory memory = managed(size);
  uint8_t* const address = memory.host();
  const Stream stream = create_stream(device_);
  for (const Location where : {kDevice, kHost, kDevice}) {
    fill_pattern(address, size, 4);
    EXPECT_STATUS(hinted(), prefetch(stream, address, size, where));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(address, size, 4));
    EXPECT_EQ(memory.host(), address);
    const gpumem_pointer_info told = pointer_info(instance_, address);
    EXPECT_EQ(told.location, GPUMEM_LOCATION_NONE);
    EXPECT_EQ(told.location_id, -1);
  }
}

// ---- MAN-3 to MAN-8: who may use it ----

TEST_P(Man, man_3) {
  const Memory memory = managed(10'000);
  uint32_t value = 0;
  for (const gpumem_device device : devices()) {
    for (int i = 0; i < 2; ++i) {
      const Stream stream = create_stream(device);
      EXPECT_OK(fill(stream, memory, ++value));
      stream.synchronize();
      EXPECT_EQ(memory.host()[9'999], value);
    }
  }
}

TEST_P(Man, man_4) {
  const Memory memory = managed(10'000, GPUMEM_MEMORY_ATTACH_HOST);
  std::memset(memory.host(), 1, 10'000);
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(refused(), fill(stream, memory, 2));
  EXPECT_STATUS(refused(), fill(nullptr, memory, 2));
  stream.synchronize();
  EXPECT_EQ(memory.host()[9'999], concurrent_ ? 2 : 1);

  EXPECT_OK(attach(stream, memory.host(), GPUMEM_ATTACH_GLOBAL));
  stream.synchronize();
  EXPECT_OK(fill(stream, memory, 3));
  stream.synchronize();
  EXPECT_EQ(memory.host()[9'999], 3);
  // What was granted is what it was created with.
  EXPECT_EQ(memory.info().granted_flags & GPUMEM_MEMORY_ATTACH_HOST, GPUMEM_MEMORY_ATTACH_HOST);
}

struct View {
  const void* address;
  gpumem_status status = GPUMEM_ERROR_INTERNAL;
};
void open_view(gpumem_host_kernel kernel, void* user_data) {
  auto& view = *static_cast<View*>(user_data);
  void* bytes = nullptr;
  view.status = gpumem_host_kernel_view(kernel, view.address, 1, GPUMEM_ACCESS_READ, &bytes, nullptr);
}

TEST_P(Man, man_4_kernels) {
  if (!on_host()) SKIP_RULE("kernels are not detected by a driver");
  for (const bool attached : {false, true}) {
    SCOPED_TRACE(attached);
    const Instance own = open_with({});
    Memory memory = create_memory(
        own.device(), memory_desc(GPUMEM_KIND_MANAGED, 100, attached ? 0 : GPUMEM_MEMORY_ATTACH_HOST));
    View view{memory.device()};
    Stream other = create_stream(own.device());
    if (attached) {
      EXPECT_OK(attach(other, memory.host(), GPUMEM_ATTACH_SINGLE));
      other.synchronize();
      EXPECT_OK(gpumem_host_launch(other, open_view, &view, why()));
      other.synchronize();
      EXPECT_EQ(view.status, GPUMEM_SUCCESS);
    }
    const Stream stream = create_stream(own.device());
    EXPECT_OK(gpumem_host_launch(stream, open_view, &view, why()));
    const gpumem_status expected = concurrent_ ? GPUMEM_SUCCESS : GPUMEM_ERROR_DEVICE_LOST;
    EXPECT_STATUS(expected, gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, why()));
    EXPECT_EQ(view.status, expected);
  }
}

TEST_P(Man, man_5_single) {
  const Memory memory = managed(10'000);
  const Stream own = create_stream(device_);
  const Stream other = create_stream(device_);
  EXPECT_OK(attach(own, memory.host(), GPUMEM_ATTACH_SINGLE));
  own.synchronize();
  EXPECT_OK(fill(own, memory, 1));
  own.synchronize();
  EXPECT_STATUS(refused(), fill(other, memory, 2));
  other.synchronize();
  EXPECT_STATUS(refused(), fill(nullptr, memory, 2));
  EXPECT_EQ(memory.host()[0], concurrent_ ? 2 : 1);

  // Each replaces what was before.
  EXPECT_OK(attach(other, memory.host(), GPUMEM_ATTACH_SINGLE));
  other.synchronize();
  EXPECT_STATUS(refused(), fill(own, memory, 3));
  own.synchronize();
  EXPECT_OK(fill(other, memory, 4));
  other.synchronize();
  EXPECT_OK(attach(own, memory.host(), GPUMEM_ATTACH_HOST));
  own.synchronize();
  EXPECT_STATUS(refused(), fill(own, memory, 5));
  own.synchronize();
  EXPECT_STATUS(refused(), fill(other, memory, 5));
  other.synchronize();
  EXPECT_OK(attach(own, memory.host(), GPUMEM_ATTACH_GLOBAL));
  own.synchronize();
  EXPECT_OK(fill(own, memory, 6));
  own.synchronize();
  EXPECT_OK(fill(other, memory, 7));
  other.synchronize();
  EXPECT_EQ(memory.host()[9'999], 7);
}

TEST_P(Man, man_5_wrong_arguments) {
  const Memory memory = managed(page_size());
  const Stream stream = create_stream(device_);
  for (const gpumem_attach how : {0, 3, 5, 6, 7, 8, -1, INT32_MIN})
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(stream, memory.host(), how)) << how;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(stream, nullptr, GPUMEM_ATTACH_GLOBAL));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(nullptr, memory.host(), GPUMEM_ATTACH_GLOBAL));

  const Memory pinned = alloc_pinned(device_, page_size());
  const Memory device = alloc_device(device_, page_size());
  Pages pages(page_size());
  const Memory registered = register_memory(device_, pages.get(), pages.size());
  for (const uint8_t* pointer : {pinned.host(), device.device(), registered.host()}) {
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND,
                  attach(stream, const_cast<uint8_t*>(pointer), GPUMEM_ATTACH_GLOBAL, page_size()));
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND,
                  attach(stream, const_cast<uint8_t*>(pointer), GPUMEM_ATTACH_GLOBAL));
  }
  Pages forbidden(page_size(), PROT_NONE);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, attach(stream, forbidden.get(), GPUMEM_ATTACH_GLOBAL, page_size()));
  stream.synchronize();
}

TEST_P(Man, man_6_takes_its_turn) {
  const Memory memory = managed(10'000);
  const Stream other = create_stream(device_);
  GatedStream held(device_);
  EXPECT_OK(attach(held, memory.host(), GPUMEM_ATTACH_HOST));
  // Not yet.
  EXPECT_OK(fill(other, memory, 1));
  other.synchronize();
  held.finish();
  EXPECT_STATUS(refused(), fill(other, memory, 2));
  other.synchronize();
  EXPECT_EQ(memory.host()[9'999], concurrent_ ? 2 : 1);
}

TEST_P(Man, man_6_later_work_of_the_stream_sees_it) {
  const Memory memory = managed(10'000, GPUMEM_MEMORY_ATTACH_HOST);
  const Stream other = create_stream(device_);
  GatedStream held(device_);
  EXPECT_OK(attach(held, memory.host(), GPUMEM_ATTACH_SINGLE));
  EXPECT_OK(fill(held, memory, 1));
  if (!concurrent_) {
    EXPECT_STATUS(GPUMEM_ERROR_NO_ACCESS, fill(other, memory, 2));
  }
  held.finish();
  EXPECT_EQ(memory.host()[9'999], 1);
  EXPECT_OK(fill(held, memory, 3));
  held.finish();
  EXPECT_EQ(memory.host()[9'999], 3);
}

TEST_P(Man, man_7) {
  const uint64_t size = 4 * page_size();
  const Memory memory = managed(size);
  const Stream stream = create_stream(device_);
  for (const gpumem_attach how : {GPUMEM_ATTACH_SINGLE, GPUMEM_ATTACH_HOST, GPUMEM_ATTACH_GLOBAL}) {
    EXPECT_OK(attach(stream, memory.host(), how));
    EXPECT_OK(attach(stream, memory.host(), how, size));
    for (const uint64_t wrong : {uint64_t{1}, page_size(), size - 1, size + 1, 2 * size, kHuge, UINT64_MAX})
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(stream, memory.host(), how, wrong)) << wrong;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(stream, memory.host() + 1, how));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  attach(stream, memory.host() + page_size(), how, size - page_size()));
  }
  stream.synchronize();
  EXPECT_OK(fill(stream, memory, 1));
  stream.synchronize();
}

TEST_P(Man, man_8) {
  const Memory memory = managed(page_size());
  const Stream stream = default_stream();
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(stream, memory.host(), GPUMEM_ATTACH_SINGLE));
  const Stream other = create_stream(device_);
  EXPECT_OK(fill(other, memory, 1));
  other.synchronize();
  EXPECT_OK(attach(stream, memory.host(), GPUMEM_ATTACH_HOST));
  EXPECT_OK(attach(stream, memory.host(), GPUMEM_ATTACH_GLOBAL));
  stream.synchronize();
}

// ---- MAN-9 to MAN-16: when the CPU may touch it ----

TEST_P(Man, man_9_while_the_device_is_active) {
  const Memory one = managed(10'000);
  const Memory two = managed(3 * page_size());
  expect_touchable(one, true);
  ActiveStream active(device_);
  expect_touchable(one, false);
  expect_touchable(two, false);
  active.finish();
  expect_touchable(one, true);
  expect_touchable(two, true);

  const gpumem_device second = second_device();
  if (second == nullptr) return;
  ActiveStream beside(second);
  expect_touchable(one, false);
  beside.finish();
  expect_touchable(one, true);
}

TEST_P(Man, man_9_until_it_is_observed) {
  const Memory memory = managed(10'000);
  const Memory flag = alloc_pinned(device_, 8);
  const Event event = create_event(device_);
  const Stream stream = create_stream(device_);
  const auto poll = [](auto query) {
    gpumem_status status = GPUMEM_NOT_READY;
    while ((status = query()) == GPUMEM_NOT_READY)
      std::this_thread::yield();
    EXPECT_EQ(status, GPUMEM_SUCCESS);
  };
  const std::function<void()> ways[] = {
      [&] { stream.synchronize(); }, [&] { poll([&] { return gpumem_stream_query(stream, nullptr); }); },
      [&] { EXPECT_OK(gpumem_event_synchronize(event, GPUMEM_TIMEOUT_INFINITE, why())); },
      [&] { poll([&] { return gpumem_event_query(event, nullptr); }); }};
  uint8_t value = 0;
  for (const auto& observe : ways) {
    SCOPED_TRACE(unsigned{value});
    ++value;
    EXPECT_OK(fill(stream, memory, value));
    EXPECT_OK(gpumem_fill_async(stream, flag.device(), 8, value, 1, why()));
    EXPECT_OK(gpumem_event_record(event, stream, why()));
    // Done, as the pinned memory shows, but nobody has asked.
    while (peek(flag.host() + 7) != value)
      std::this_thread::yield();
    if (on_host()) expect_touchable(memory, false);
    observe();
    EXPECT_EQ(memory.host()[0], value);
    expect_touchable(memory, true);
    std::memset(memory.host(), 0, 10'000);
  }
}

TEST_P(Man, man_9_by_its_own_use) {
  const Memory memory = managed(10'000);
  GatedStream held(device_);
  expect_touchable(memory, true);  // a host function keeps no device active
  held.finish();
  const Stream stream = create_stream(device_);
  EXPECT_OK(fill(stream, memory, 1));
  expect_touchable(memory, false);
  stream.synchronize();
  expect_touchable(memory, true);
  EXPECT_EQ(memory.host()[0], 1);
}

TEST_P(Man, man_9_by_a_kernel) {
  if (!on_host()) SKIP_RULE("a driver's kernels are other code");
  const Memory memory = managed(10'000);
  const Stream stream = create_stream(device_);
  View view{memory.device()};
  EXPECT_OK(gpumem_host_launch(stream, open_view, &view, why()));
  expect_touchable(memory, false);
  stream.synchronize();
  expect_touchable(memory, true);
  EXPECT_EQ(view.status, GPUMEM_SUCCESS);
}

TEST_P(Man, man_10) {
  const Memory memory = managed(10'000);
  const Memory flag = alloc_pinned(device_, 8);
  const Stream own = create_stream(device_);
  EXPECT_OK(attach(own, memory.host(), GPUMEM_ATTACH_SINGLE));
  own.synchronize();
  ActiveStream other(device_);
  expect_touchable(memory, true);
  // Its own stream matters, whatever that does.
  EXPECT_OK(gpumem_fill_async(own, flag.device(), 8, 1, 1, why()));
  expect_touchable(memory, false);
  own.synchronize();
  expect_touchable(memory, true);
  other.finish();
}

TEST_P(Man, man_11) {
  const Memory memory = managed(10'000, GPUMEM_MEMORY_ATTACH_HOST);
  const Memory attached = managed(10'000);
  const Stream stream = create_stream(device_);
  EXPECT_OK(attach(stream, attached.host(), GPUMEM_ATTACH_HOST));
  stream.synchronize();
  ActiveStream active(device_);
  for (const Memory* each : {&memory, &attached}) {
    expect_touchable(*each, true);
    fill_pattern(each->host(), 10'000, 1);
    EXPECT_TRUE(has_pattern(each->host(), 10'000, 1));
  }
  active.finish();
}

TEST_P(Man, man_12_refused_and_unchanged) {
  const Memory hosts = managed(10'000, GPUMEM_MEMORY_ATTACH_HOST);
  const Memory singles = managed(10'000);
  const Memory device = alloc_device(device_, 10'000);
  const Stream own = create_stream(device_);
  const Stream stream = create_stream(device_);
  EXPECT_OK(attach(own, singles.host(), GPUMEM_ATTACH_SINGLE));
  own.synchronize();
  gpumem_copy_options both = GPUMEM_COPY_OPTIONS_INIT;
  both.direction = GPUMEM_DIRECTION_DEVICE_TO_DEVICE;
  for (const Memory* memory : {&hosts, &singles}) {
    std::memset(memory->host(), 1, 10'000);
    put_pattern(instance_, device.device(), 10'000, 2);
    EXPECT_STATUS(refused(), fill(stream, *memory, 3));
    EXPECT_STATUS(refused(), gpumem_fill_2d_async(stream, memory->device(), 100, 50, 100, 3, 1, why()));
    EXPECT_STATUS(refused(),
                  gpumem_copy_async(stream, memory->device(), device.device(), 10'000, &both, why()));
    EXPECT_STATUS(refused(),
                  gpumem_copy_async(stream, device.device(), memory->device(), 10'000, &both, why()));
    stream.synchronize();
    if (concurrent_) {
      EXPECT_TRUE(has_pattern(memory->host(), 10'000, 2));
    } else {
      EXPECT_EQ(memory->host()[0], 1);
      EXPECT_EQ(memory->host()[9'999], 1);
    }
    EXPECT_TRUE(holds_pattern(instance_, device.device(), 10'000, 2));
  }
}

TEST_P(Man, man_13_the_stream_goes) {
  const Memory global = managed(10'000);
  const Memory hosts = managed(10'000, GPUMEM_MEMORY_ATTACH_HOST);
  const Memory other = managed(10'000);
  const Stream stays = create_stream(device_);
  const Stream stream = create_stream(device_);
  {
    const Stream goes = create_stream(device_);
    EXPECT_OK(attach(goes, global.host(), GPUMEM_ATTACH_SINGLE));
    EXPECT_OK(attach(goes, hosts.host(), GPUMEM_ATTACH_SINGLE));
    EXPECT_OK(attach(stays, other.host(), GPUMEM_ATTACH_SINGLE));
    goes.synchronize();
    stays.synchronize();
    EXPECT_STATUS(refused(), fill(stream, global, 1));
    stream.synchronize();
  }
  EXPECT_OK(fill(stream, global, 2));
  EXPECT_STATUS(refused(), fill(stream, hosts, 2));
  EXPECT_STATUS(refused(), fill(stream, other, 2));
  stream.synchronize();
  EXPECT_EQ(global.host()[0], 2);
  ActiveStream active(device_);
  expect_touchable(global, false);
  expect_touchable(hosts, true);
  expect_touchable(other, true);
  active.finish();
}

TEST_P(Man, man_13_once_its_work_is_complete) {
  if (!on_host()) SKIP_RULE("a driver is not asked what a destroyed stream still does");
  const Memory memory = managed(10'000);
  const Stream stream = create_stream(device_);
  for (const bool captured : {false, true}) {
    SCOPED_TRACE(captured);
    Gate gate;
    gpumem_stream goes = create_stream(device_).release();
    EXPECT_OK(attach(goes, memory.host(), GPUMEM_ATTACH_SINGLE));
    EXPECT_OK(gpumem_stream_synchronize(goes, GPUMEM_TIMEOUT_INFINITE, why()));
    gate.hold(goes);
    EXPECT_OK(gpumem_host_stream_set_capturing(goes, captured ? 1 : 0, why()));
    EXPECT_OK(gpumem_stream_destroy(goes, why()));
    EXPECT_STATUS(refused(), fill(stream, memory, 1));
    gate.open();
    gpumem_status status = GPUMEM_ERROR_NO_ACCESS;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (status == GPUMEM_ERROR_NO_ACCESS && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
      status = fill(stream, memory, 2);
    }
    EXPECT_EQ(status, GPUMEM_SUCCESS);
    stream.synchronize();
    EXPECT_EQ(memory.host()[0], 2);
  }
}

TEST_P(Man, man_13_the_native_stream_goes) {
  if (!on_host()) SKIP_RULE("a driver does not tell that other code destroys a stream");
  const Memory memory = managed(10'000);
  const Stream other = create_stream(device_);
  {
    const NativeStream native(device_);
    {
      const Stream adopted = adopt(native.get());
      EXPECT_OK(attach(adopted, memory.host(), GPUMEM_ATTACH_SINGLE));
      adopted.synchronize();
    }
    // The stream goes on without the handle.
    EXPECT_STATUS(refused(), fill(other, memory, 1));
    other.synchronize();
  }
  EXPECT_OK(fill(other, memory, 2));
  other.synchronize();
  EXPECT_EQ(memory.host()[0], 2);
  // The CPU waits for all streams again.
  Gate gate;
  gate.hold(other);
  EXPECT_OK(gpumem_host_launch(
      other, [](gpumem_host_kernel, void*) {}, nullptr, why()));
  std::atomic<pid_t> id{0};
  std::thread accessing([&] {
    id = gettid();
    EXPECT_OK(begin(memory.host()));
    EXPECT_FALSE(read_faults(memory.host()));
    EXPECT_OK(end(memory.host()));
  });
  while (id == 0)
    std::this_thread::yield();
  gpumem::test::wait_until_asleep(id);
  gate.open();
  accessing.join();
  other.synchronize();
}

TEST_P(Man, man_14) {
  ActiveStream active(device_);
  const Memory global = managed(10'000);
  const Memory hosts = managed(10'000, GPUMEM_MEMORY_ATTACH_HOST);
  expect_touchable(global, false);
  expect_touchable(hosts, true);
  active.finish();
  expect_touchable(global, true);
  expect_touchable(hosts, true);
}

TEST_P(Man, man_15) {
  if (!concurrent_) SKIP_RULE("it is about concurrent devices");
  const Memory memories[] = {managed(10'000), managed(10'000, GPUMEM_MEMORY_ATTACH_HOST), managed(10'000)};
  const Stream own = create_stream(device_);
  EXPECT_OK(attach(own, memories[2].host(), GPUMEM_ATTACH_SINGLE));
  own.synchronize();
  ActiveStream active(device_);
  for (const Memory& memory : memories) {
    // The first half is the device's, the second the CPU's.
    EXPECT_OK(gpumem_fill_async(active, memory.device(), 5'000, 9, 1, why()));
    fill_pattern(memory.host() + 5'000, 5'000, 1);
    EXPECT_TRUE(has_pattern(memory.host() + 5'000, 5'000, 1));
    EXPECT_FALSE(read_faults(memory.host()));
  }
  active.finish();
  for (const Memory& memory : memories) {
    EXPECT_EQ(memory.host()[0], 9);
    EXPECT_EQ(memory.host()[4'999], 9);
    EXPECT_TRUE(has_pattern(memory.host() + 5'000, 5'000, 1));
  }
}

struct Touch {
  uint8_t* attached;
  uint8_t* global;
  bool attached_faults = true;
  bool global_faults = true;
  uint8_t seen = 0;
};

TEST_P(Man, man_16) {
  const Memory attached = managed(10'000);
  const Memory global = managed(10'000);
  const Stream stream = create_stream(device_);
  EXPECT_OK(attach(stream, attached.host(), GPUMEM_ATTACH_SINGLE));
  stream.synchronize();
  const auto look = [](void* user_data) {
    auto& touch = *static_cast<Touch*>(user_data);
    touch.attached_faults = read_faults(touch.attached) || write_faults(touch.attached + 1);
    touch.global_faults = read_faults(touch.global) || write_faults(touch.global + 1);
    if (!touch.attached_faults) touch.seen = touch.attached[0];
  };
  Touch alone{attached.host(), global.host()};
  EXPECT_OK(fill(stream, attached, 5));
  EXPECT_OK(fill(stream, global, 6));
  EXPECT_OK(gpumem_stream_launch_host_function(stream, look, &alone, why()));
  stream.synchronize();
  EXPECT_FALSE(alone.attached_faults);
  EXPECT_FALSE(alone.global_faults);
  EXPECT_EQ(alone.seen, 5);
  EXPECT_EQ(attached.host()[1], 1);
  EXPECT_EQ(global.host()[0], 6);

  ActiveStream other(device_);
  Touch beside{attached.host(), global.host()};
  EXPECT_OK(fill(stream, attached, 7));
  if (concurrent_ || on_host()) {
    EXPECT_OK(gpumem_stream_launch_host_function(stream, look, &beside, why()));
    stream.synchronize();
    EXPECT_FALSE(beside.attached_faults);
    EXPECT_EQ(beside.global_faults, !concurrent_);
    EXPECT_EQ(beside.seen, 7);
  }
  other.finish();
  stream.synchronize();
}

// ---- the guard of the CPU's accesses ----

TEST_P(Man, man_9_host_access_waits) {
  const Memory global = managed(10'000);
  const Memory flag = alloc_pinned(device_, 8);
  ActiveStream active(device_);
  EXPECT_OK(fill(active, global, 3));
  if (concurrent_) {
    EXPECT_OK(begin(global.host()));  // waits for nothing
    EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(active, why()));
    EXPECT_OK(end(global.host()));
    active.finish();
    return;
  }
  std::atomic<bool> begun{false};
  std::thread waiter([&] {
    EXPECT_OK(begin(global.host() + 5'000));
    begun = true;
  });
  std::this_thread::sleep_for(kShortWait);
  EXPECT_FALSE(begun);
  active.release();
  waiter.join();
  expect_touchable(global, true);
  EXPECT_EQ(global.host()[0], 3);
  EXPECT_OK(gpumem_stream_query(active, why()));
  EXPECT_OK(end(global.host()));
}

TEST_P(Man, man_10_host_access_waits_for_one_stream) {
  const Memory single = managed(10'000);
  const Memory hosts = managed(10'000, GPUMEM_MEMORY_ATTACH_HOST);
  const Stream own = create_stream(device_);
  EXPECT_OK(attach(own, single.host(), GPUMEM_ATTACH_SINGLE));
  EXPECT_OK(fill(own, single, 4));
  own.synchronize();
  EXPECT_OK(fill(own, single, 5));
  ActiveStream other(device_);
  for (const Memory* memory : {&single, &hosts}) {
    EXPECT_OK(begin(memory->host()));
    expect_touchable(*memory, true);
    EXPECT_OK(end(memory->host()));
  }
  EXPECT_STATUS(GPUMEM_NOT_READY, gpumem_stream_query(other, why()));
  if (concurrent_) own.synchronize();
  EXPECT_EQ(single.host()[0], 5);
  other.finish();
}

TEST_P(Man, man_9_host_access_is_counted) {
  const Memory memory = managed(10'000);
  const Memory device = alloc_device(device_, 10'000);
  const Stream stream = create_stream(device_);
  // Where nobody waits, nobody counts.
  const gpumem_status none_begun = concurrent_ ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_STATE;
  EXPECT_STATUS(none_begun, end(memory.host()));
  EXPECT_OK(begin(memory.host()));
  EXPECT_OK(begin(memory.host() + 9'999));
  const gpumem_status busy = concurrent_ ? GPUMEM_SUCCESS : GPUMEM_ERROR_BUSY;
  const auto expect_kept = [&] {
    EXPECT_STATUS(busy, fill(stream, memory, 1));
    stream.synchronize();  // the next fill is in no stream
    EXPECT_STATUS(busy, fill(nullptr, memory, 1));
    EXPECT_STATUS(busy, gpumem_copy_async(stream, device.device(), memory.device(), 10'000, nullptr, why()));
    stream.synchronize();
    if (concurrent_) return;
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, attach(stream, memory.host(), GPUMEM_ATTACH_HOST));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(memory, why()));
    EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_free(instance_, memory.host(), why()));
    expect_touchable(memory, true);
  };
  expect_kept();
  EXPECT_OK(end(memory.host()));
  expect_kept();
  std::thread([&] { EXPECT_OK(end(memory.host() + 1)); }).join();
  EXPECT_STATUS(none_begun, end(memory.host()));
  EXPECT_OK(fill(stream, memory, 2));
  EXPECT_OK(attach(stream, memory.host(), GPUMEM_ATTACH_HOST));
  stream.synchronize();
  EXPECT_EQ(memory.host()[0], 2);
}

TEST_P(Man, man_9_host_access_bad_arguments) {
  const Memory pinned = alloc_pinned(device_, 100);
  const Memory device = alloc_device(device_, 100);
  std::vector<uint8_t> heap(100);
  for (const auto call : {gpumem_managed_begin_host_access, gpumem_managed_end_host_access}) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, call(instance_, nullptr, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, call(nullptr, pinned.host(), why()));
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, call(instance_, pinned.host(), why()));
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, call(instance_, device.device(), why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, call(instance_, heap.data(), why()));
    EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, call(instance_, reinterpret_cast<void*>(uintptr_t{16}), why()));
  }
  const Memory memory = managed(page_size());
  EXPECT_STATUS_IN(begin(memory.host() + page_size()), GPUMEM_ERROR_NOT_FOUND, GPUMEM_ERROR_WRONG_KIND);
}

TEST_P(Man, man_9_host_access_and_a_captured_stream) {
  REQUIRE_FOREIGN();
  const Memory memory = managed(page_size());
  NativeStream native(device_);
  gpumem_stream handle = nullptr;
  ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
  const Stream stream(handle);
  native.begin_capture(stream);
  EXPECT_STATUS(concurrent_ ? GPUMEM_SUCCESS : GPUMEM_ERROR_INVALID_STATE, begin(memory.host()));
  native.end_capture(stream);
  if (!concurrent_) {
    EXPECT_OK(begin(memory.host()));
  }
  EXPECT_OK(end(memory.host()));
}

// ---- MAN-17 to MAN-20: prefetches ----

TEST_P(Man, man_17_whole_pages) {
  const uint64_t page = page_size();
  const uint64_t size = 8 * page;
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  fill_pattern(base, size, 1);
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(hinted(), prefetch(stream, base + 2 * page + 100, page, kDevice));
  if (!concurrent_) {
    expect_nothing_known(base, size);
    return;
  }
  expect_prefetched(base + 2 * page, 2 * page, kDevice);
  expect_prefetched(base + 3 * page + 50, 1, kDevice);
  expect_prefetched(base + page, page, kNowhere);
  expect_prefetched(base + 4 * page, page, kNowhere);
  expect_prefetched(base, size, kNowhere);
  stream.synchronize();
  EXPECT_TRUE(has_pattern(base, size, 1));

  const Memory odd = managed(1000);
  EXPECT_OK(prefetch(stream, odd.host() + 999, 1, kDevice));
  stream.synchronize();
  expect_prefetched(odd.host(), 1000, kDevice);
}

TEST_P(Man, man_18_targets) {
  const uint64_t size = 4 * page_size();
  const Memory memory = managed(size);
  fill_pattern(memory.host(), size, 1);
  const Stream stream = create_stream(device_);
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    const Location where{GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(ordinal)};
    EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, where));
    if (concurrent_) expect_prefetched(memory.host(), size, where);
  }
  EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, {GPUMEM_LOCATION_HOST, 77}));
  if (concurrent_) expect_prefetched(memory.host(), size, kHost);
  const gpumem_status numa = has(GPUMEM_CAPABILITY_MANAGED_NUMA_LOCATIONS) ? hinted() : GPUMEM_NO_EFFECT;
  EXPECT_STATUS(numa, prefetch(stream, memory.host(), size, {GPUMEM_LOCATION_HOST_NUMA, 0}));
  if (numa == GPUMEM_SUCCESS) expect_prefetched(memory.host(), size, {GPUMEM_LOCATION_HOST_NUMA, 0});
  EXPECT_STATUS(numa, prefetch(stream, memory.host(), size, {GPUMEM_LOCATION_HOST_NUMA_CURRENT, 77}));
  if (numa == GPUMEM_SUCCESS) {
    EXPECT_EQ(info(memory.host(), size).last_prefetch_location, GPUMEM_LOCATION_HOST_NUMA);
    EXPECT_GE(info(memory.host(), size).last_prefetch_location_id, 0);
  }
  stream.synchronize();
  EXPECT_TRUE(has_pattern(memory.host(), size, 1));
}

// Places that no prefetch or advice takes.
std::vector<Location> no_locations(gpumem_instance_info instance) {
  const auto count = static_cast<int32_t>(instance.device_count);
  return {{GPUMEM_LOCATION_NONE, 0},
          {GPUMEM_LOCATION_DEVICE, -1},
          {GPUMEM_LOCATION_DEVICE, count},
          {GPUMEM_LOCATION_DEVICE, 99},
          {GPUMEM_LOCATION_DEVICE, INT32_MIN},
          {GPUMEM_LOCATION_HOST_NUMA, -1},
          {GPUMEM_LOCATION_HOST_NUMA, 99'999},
          {GPUMEM_LOCATION_HOST_NUMA, INT32_MAX},
          {5, 0},
          {-1, 0},
          {INT32_MAX, 0}};
}
gpumem_instance_info instance_info(gpumem_instance instance) {
  gpumem_instance_info info = GPUMEM_INSTANCE_INFO_INIT;
  EXPECT_OK(gpumem_instance_get_info(instance, &info, why()));
  return info;
}

TEST_P(Man, man_18_no_such_target) {
  const uint64_t size = 4 * page_size();
  const Memory memory = managed(size);
  const Stream stream = create_stream(device_);
  for (const Location where : no_locations(instance_info(instance_))) {
    SCOPED_TRACE(testing::Message() << where.location << ' ' << where.id);
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, prefetch(stream, memory.host(), size, where));
    gpumem_managed_range range = range_of(memory.host(), size);
    range.location = where.location;
    range.location_id = where.id;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_managed_prefetch_batch(stream, &range, 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_managed_discard_and_prefetch_batch(stream, &range, 1, why()));
  }
  expect_nothing_known(memory.host(), size);
}

TEST_P(Man, man_19_never_needed) {
  const uint64_t size = 2 * kMiB;
  const Memory memory = managed(size);
  const Stream stream = create_stream(device_);
  const gpumem_status preferred = advise(memory.host(), size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kHost);
  EXPECT_FALSE(GPUMEM_FAILED(preferred)) << preferred;
  EXPECT_OK(fill(stream, memory, 3));
  EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, kDevice));
  if (concurrent_) {
    // Used meanwhile.
    for (uint64_t at = 0; at < size; at += page_size())
      EXPECT_FALSE(read_faults(memory.host() + at));
    expect_prefetched(memory.host(), size, kDevice);
    expect_preferred(memory.host(), size, kHost);
  }
  stream.synchronize();
  EXPECT_EQ(memory.host()[size - 1], 3);
  fill_pattern(memory.host(), size, 2);
  EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, kDevice));
  EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, kHost));
  stream.synchronize();
  EXPECT_TRUE(has_pattern(memory.host(), size, 2));
}

TEST_P(Man, man_19_with_advice) {
  const uint64_t size = 2 * kMiB;
  const Memory memory = managed(size);
  const Stream stream = create_stream(device_);
  fill_pattern(memory.host(), size, 3);
  for (const gpumem_advice advice : {GPUMEM_ADVICE_SET_READ_MOSTLY, GPUMEM_ADVICE_SET_ACCESSED_BY}) {
    EXPECT_FALSE(GPUMEM_FAILED(advise(memory.host(), size, advice, kHost)));
    for (const Location where : {kDevice, kHost}) {
      EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, where));
      stream.synchronize();
      EXPECT_TRUE(holds_pattern(instance_, memory.host(), size, 3));
      EXPECT_TRUE(has_pattern(memory.host(), size, 3));
    }
  }
  // A write ends the copies of read-mostly pages.
  EXPECT_OK(fill(stream, memory, 4));
  stream.synchronize();
  EXPECT_EQ(memory.host()[size - 1], 4);
  memory.host()[5] = 6;
  uint8_t seen = 0;
  EXPECT_OK(gpumem_copy(instance_, &seen, memory.host() + 5, 1, nullptr, why()));
  EXPECT_EQ(seen, 6);
}

TEST_P(Man, man_20_hints_never_fail) {
  const uint64_t size = 4 * page_size();
  const Memory memory = managed(size);
  fill_pattern(memory.host(), size, 1);
  const Stream stream = create_stream(device_);
  gpumem_managed_range range = range_of(memory.host(), size, kDevice);
  EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, kDevice));
  EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), size, kHost));
  EXPECT_STATUS(hinted(), gpumem_managed_prefetch_batch(stream, &range, 1, why()));
  for (const gpumem_advice advice : {GPUMEM_ADVICE_SET_PREFERRED_LOCATION, GPUMEM_ADVICE_SET_ACCESSED_BY,
                                     GPUMEM_ADVICE_UNSET_ACCESSED_BY}) {
    EXPECT_STATUS(hinted(), advise(memory.host(), size, advice, kDevice)) << advice;
  }
  for (const gpumem_advice advice : {GPUMEM_ADVICE_SET_READ_MOSTLY, GPUMEM_ADVICE_UNSET_READ_MOSTLY,
                                     GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION}) {
    EXPECT_STATUS_IN(advise(memory.host(), size, advice, kDevice), GPUMEM_SUCCESS, hinted()) << advice;
  }
  stream.synchronize();
  EXPECT_TRUE(has_pattern(memory.host(), size, 1));
  if (!concurrent_) {
    range = range_of(memory.host(), size);
    EXPECT_STATUS(GPUMEM_NO_EFFECT, gpumem_managed_discard_batch(stream, &range, 1, why()));
    range = range_of(memory.host(), size, kDevice);
    EXPECT_STATUS(GPUMEM_NO_EFFECT, gpumem_managed_discard_and_prefetch_batch(stream, &range, 1, why()));
    stream.synchronize();
    EXPECT_TRUE(has_pattern(memory.host(), size, 1));
    const gpumem_managed_info now = info(memory.host(), size);
    EXPECT_EQ(now.preferred_location, GPUMEM_LOCATION_NONE);
    EXPECT_EQ(now.last_prefetch_location, GPUMEM_LOCATION_NONE);
    EXPECT_EQ(now.accessed_by_devices, 0u);
  }
}

// What a driver of an older version gets.
CHILD(man_20_older_driver) {
  const Instance instance = open_instance();
  const gpumem_device device = instance.device();
  const bool numa = capability(device, GPUMEM_CAPABILITY_MANAGED_NUMA_LOCATIONS).value != GPUMEM_ANSWER_NO;
  const std::string version = child_arguments().at(0);
  EXPECT_EQ(numa, version != "11.8" && version != "11.2");
  EXPECT_EQ(capability(device, GPUMEM_CAPABILITY_MANAGED_DISCARD).value, uint64_t{GPUMEM_ANSWER_NO});
  EXPECT_NE(capability(device, GPUMEM_CAPABILITY_MANAGED_BATCH).value, uint64_t{GPUMEM_ANSWER_YES});
  const uint64_t size = 4 * page_size();
  const Memory memory = create_memory(device, memory_desc(GPUMEM_KIND_MANAGED, size));
  fill_pattern(memory.host(), size, 1);
  const Stream stream = create_stream(device);
  EXPECT_OK(gpumem_managed_prefetch(stream, memory.host(), size, GPUMEM_LOCATION_DEVICE, 0, why()));
  EXPECT_OK(gpumem_managed_prefetch(stream, memory.host(), size, GPUMEM_LOCATION_HOST, 0, why()));
  EXPECT_STATUS(numa ? GPUMEM_SUCCESS : GPUMEM_NO_EFFECT,
                gpumem_managed_prefetch(stream, memory.host(), size, GPUMEM_LOCATION_HOST_NUMA, 0, why()));
  EXPECT_STATUS_IN(gpumem_managed_advise(instance, memory.host(), size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION,
                                         GPUMEM_LOCATION_HOST_NUMA, 0, why()),
                   GPUMEM_NO_EFFECT, numa ? GPUMEM_SUCCESS : GPUMEM_NO_EFFECT);
  EXPECT_OK(gpumem_managed_advise(instance, memory.host(), size, GPUMEM_ADVICE_SET_READ_MOSTLY,
                                  GPUMEM_LOCATION_NONE, 0, why()));
  EXPECT_OK(gpumem_managed_advise(instance, memory.host(), size, GPUMEM_ADVICE_SET_ACCESSED_BY,
                                  GPUMEM_LOCATION_HOST, 0, why()));
  gpumem_managed_range ranges[] = {range_of(memory.host(), page_size(), kDevice),
                                   range_of(memory.host() + page_size(), page_size(), kHost)};
  EXPECT_OK(gpumem_managed_prefetch_batch(stream, ranges, 2, why()));
  gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
  EXPECT_OK(gpumem_managed_get_info(instance, memory.host(), page_size(), &info, why()));
  EXPECT_EQ(info.last_prefetch_location, GPUMEM_LOCATION_DEVICE);
  EXPECT_EQ(info.read_mostly, 1u);
  EXPECT_EQ(info.accessed_by_host, 1u);
  EXPECT_STATUS(GPUMEM_NO_EFFECT, gpumem_managed_discard_and_prefetch_batch(stream, ranges, 2, why()));
  ranges[0].location = 0;
  EXPECT_STATUS(GPUMEM_NO_EFFECT, gpumem_managed_discard_batch(stream, ranges, 1, why()));
  EXPECT_OK(gpumem_managed_attach(stream, memory.host(), 0, GPUMEM_ATTACH_HOST, why()));
  stream.synchronize();
  EXPECT_TRUE(has_pattern(memory.host(), size, 1));
}

TEST_P(Man, man_20_older_drivers) {
  if (!on_fake_cuda()) SKIP_RULE("only the fake driver has versions to choose");
  if (!GetParam()) SKIP_RULE("the same for both sorts of devices");
  for (const std::string version : {"11.2", "11.8", "12.2", "12.8"}) {
    SCOPED_TRACE(version);
    const ProcessResult result =
        run_child("man_20_older_driver", {"FAKE_CUDA_VERSION=" + version}, {version});
    EXPECT_TRUE(result.ok()) << result;
  }
}

// ---- MAN-21 to MAN-28: advice, and what is known of a range ----

TEST_P(Man, man_21_covers_pages) {
  const uint64_t page = page_size();
  const Memory memory = managed(8 * page);
  uint8_t* const base = memory.host();
  fill_pattern(base, 8 * page, 1);
  // The location is ignored.
  const gpumem_status given = advise(base + 3 * page - 1, 2, GPUMEM_ADVICE_SET_READ_MOSTLY, {77, -5});
  EXPECT_STATUS_IN(given, GPUMEM_SUCCESS, hinted());
  const uint32_t set = given == GPUMEM_SUCCESS ? 1 : 0;
  EXPECT_EQ(info(base + 2 * page, 2 * page).read_mostly, set);
  EXPECT_EQ(info(base + 3 * page + 100, 5).read_mostly, set);
  EXPECT_EQ(info(base + 2 * page - 1, 2).read_mostly, 0u);
  EXPECT_EQ(info(base + 4 * page, page).read_mostly, 0u);
  EXPECT_EQ(info(base, 8 * page).read_mostly, 0u);
  EXPECT_STATUS(given, advise(base + 3 * page, 1, GPUMEM_ADVICE_UNSET_READ_MOSTLY, {77, -5}));
  EXPECT_EQ(info(base + 2 * page, page).read_mostly, set);
  EXPECT_EQ(info(base + 3 * page, page).read_mostly, 0u);
  EXPECT_TRUE(has_pattern(base, 8 * page, 1));
}

TEST_P(Man, man_21_no_such_advice) {
  const Memory memory = managed(page_size());
  for (const gpumem_advice advice : {0, 7, -1, 100, INT32_MIN})
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, advise(memory.host(), page_size(), advice, kDevice))
        << advice;
  expect_nothing_known(memory.host(), page_size());
}

TEST_P(Man, man_22) {
  const uint64_t size = 4 * page_size();
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  fill_pattern(base, size, 1);
  const auto prefer = [&](Location where) {
    return advise(base, size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, where);
  };
  EXPECT_STATUS(hinted(), prefer(kDevice));
  if (concurrent_) expect_preferred(base, size, kDevice);
  const gpumem_status host = prefer({GPUMEM_LOCATION_HOST, 77});
  EXPECT_STATUS_IN(host, GPUMEM_SUCCESS, hinted());
  expect_preferred(base, size, host == GPUMEM_SUCCESS ? kHost : kNowhere);
  // A node, or nothing changes: some drivers accept one and ignore it.
  for (const Location node :
       {Location{GPUMEM_LOCATION_HOST_NUMA, 0}, Location{GPUMEM_LOCATION_HOST_NUMA_CURRENT, 77}}) {
    const bool certain = on_host() && concurrent_;
    const gpumem_managed_info kept = info(base, size);
    const gpumem_status given = prefer(node);
    EXPECT_STATUS_IN(given, GPUMEM_SUCCESS, certain ? GPUMEM_SUCCESS : GPUMEM_NO_EFFECT);
    const gpumem_managed_info now = info(base, size);
    if (given == GPUMEM_SUCCESS) {
      EXPECT_EQ(now.preferred_location, GPUMEM_LOCATION_HOST_NUMA);
      EXPECT_GE(now.preferred_location_id, 0);
    } else {
      EXPECT_EQ(std::memcmp(&now, &kept, sizeof now), 0);
    }
  }
  const gpumem_managed_info before = info(base, size);
  for (const Location where : no_locations(instance_info(instance_))) {
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, prefer(where)) << where.location << ' ' << where.id;
  }
  const gpumem_managed_info after = info(base, size);
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
  expect_prefetched(base, size, kNowhere);  // nothing moved
  EXPECT_TRUE(has_pattern(base, size, 1));
}

TEST_P(Man, man_22_each_device) {
  const uint64_t size = page_size();
  const Memory memory = managed(size);
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    const Location where{GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(ordinal)};
    EXPECT_STATUS(hinted(), advise(memory.host(), size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, where));
    expect_preferred(memory.host(), size, concurrent_ ? where : kNowhere);
  }
}

TEST_P(Man, man_23) {
  const uint64_t size = 4 * page_size();
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  fill_pattern(base, size, 1);
  uint64_t devices = 0;
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    EXPECT_STATUS(hinted(), advise(base, size, GPUMEM_ADVICE_SET_ACCESSED_BY,
                                   {GPUMEM_LOCATION_DEVICE, static_cast<int32_t>(ordinal)}));
    if (concurrent_) devices |= uint64_t{1} << ordinal;
    EXPECT_EQ(info(base, size).accessed_by_devices, devices);
    EXPECT_EQ(info(base, size).accessed_by_host, 0u);
  }
  const gpumem_status host = advise(base, size, GPUMEM_ADVICE_SET_ACCESSED_BY, kHost);
  EXPECT_STATUS_IN(host, GPUMEM_SUCCESS, hinted());
  EXPECT_EQ(info(base, size).accessed_by_host, host == GPUMEM_SUCCESS ? 1u : 0u);
  EXPECT_EQ(info(base, size).accessed_by_devices, devices);
  std::vector<Location> wrong = no_locations(instance_info(instance_));
  wrong.push_back({GPUMEM_LOCATION_HOST_NUMA, 0});
  wrong.push_back({GPUMEM_LOCATION_HOST_NUMA_CURRENT, 0});
  for (const Location where : wrong) {
    for (const gpumem_advice advice : {GPUMEM_ADVICE_SET_ACCESSED_BY, GPUMEM_ADVICE_UNSET_ACCESSED_BY}) {
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, advise(base, size, advice, where))
          << advice << ' ' << where.location << ' ' << where.id;
    }
  }
  EXPECT_EQ(info(base, size).accessed_by_devices, devices);
  expect_prefetched(base, size, kNowhere);
  EXPECT_TRUE(has_pattern(base, size, 1));
}

TEST_P(Man, man_24) {
  const uint64_t page = page_size();
  const uint64_t size = 4 * page;
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  // Nothing was set.
  for (const gpumem_advice advice : {GPUMEM_ADVICE_UNSET_READ_MOSTLY, GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION,
                                     GPUMEM_ADVICE_UNSET_ACCESSED_BY}) {
    EXPECT_STATUS_IN(advise(base, size, advice, kDevice), GPUMEM_SUCCESS, hinted()) << advice;
  }
  expect_nothing_known(base, size);
  if (!concurrent_) return;

  EXPECT_OK(advise(base, size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kDevice));
  EXPECT_OK(advise(base, size, GPUMEM_ADVICE_SET_ACCESSED_BY, kDevice));
  EXPECT_OK(advise(base, size, GPUMEM_ADVICE_SET_ACCESSED_BY, kHost));
  EXPECT_OK(advise(base, size, GPUMEM_ADVICE_SET_READ_MOSTLY));
  // All readable together.
  EXPECT_EQ(info(base, size).read_mostly, 1u);
  expect_preferred(base, size, kDevice);
  EXPECT_EQ(info(base, size).accessed_by_devices, 1u);
  EXPECT_EQ(info(base, size).accessed_by_host, 1u);

  EXPECT_OK(advise(base, page, GPUMEM_ADVICE_UNSET_READ_MOSTLY, {77, 77}));
  EXPECT_EQ(info(base, page).read_mostly, 0u);
  EXPECT_EQ(info(base + page, size - page).read_mostly, 1u);
  EXPECT_OK(advise(base + page, page, GPUMEM_ADVICE_UNSET_PREFERRED_LOCATION, {77, 77}));
  expect_preferred(base + page, page, kNowhere);
  expect_preferred(base, page, kDevice);
  expect_preferred(base + 2 * page, 2 * page, kDevice);
  EXPECT_OK(advise(base + 2 * page, page, GPUMEM_ADVICE_UNSET_ACCESSED_BY, kHost));
  EXPECT_EQ(info(base + 2 * page, page).accessed_by_host, 0u);
  EXPECT_EQ(info(base + 2 * page, page).accessed_by_devices, 1u);
  EXPECT_EQ(info(base + 3 * page, page).accessed_by_host, 1u);
}

TEST_P(Man, man_25) {
  if (!concurrent_) SKIP_RULE("advice has no effect here; MAN-20 says so");
  const uint64_t page = page_size();
  const uint64_t size = 6 * page;
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  EXPECT_OK(advise(base, 3 * page, GPUMEM_ADVICE_SET_READ_MOSTLY));
  EXPECT_EQ(info(base, 3 * page).read_mostly, 1u);
  EXPECT_EQ(info(base + 1, 3 * page - 1).read_mostly, 1u);
  EXPECT_EQ(info(base + 1, 3 * page).read_mostly, 0u);  // a byte of the fourth page
  EXPECT_EQ(info(base + 3 * page - 1, 1).read_mostly, 1u);

  EXPECT_OK(advise(base, 2 * page, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kDevice));
  EXPECT_OK(advise(base + 2 * page, 2 * page, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kHost));
  expect_preferred(base, 2 * page, kDevice);
  expect_preferred(base + 2 * page, 2 * page, kHost);
  expect_preferred(base, 4 * page, kNowhere);             // they differ
  expect_preferred(base + 3 * page, 2 * page, kNowhere);  // one has none
  expect_preferred(base + 4 * page, 2 * page, kNowhere);
}

TEST_P(Man, man_26) {
  if (!concurrent_) SKIP_RULE("advice has no effect here; MAN-20 says so");
  const uint64_t page = page_size();
  const Memory memory = managed(4 * page);
  uint8_t* const base = memory.host();
  EXPECT_OK(advise(base, 4 * page, GPUMEM_ADVICE_SET_ACCESSED_BY, kHost));
  EXPECT_OK(advise(base, 2 * page, GPUMEM_ADVICE_SET_ACCESSED_BY, kDevice));
  EXPECT_OK(advise(base, 2 * page, GPUMEM_ADVICE_SET_ACCESSED_BY, kDevice));  // none twice
  if (second_device() != nullptr) {
    EXPECT_OK(advise(base + page, 3 * page, GPUMEM_ADVICE_SET_ACCESSED_BY, {GPUMEM_LOCATION_DEVICE, 1}));
    EXPECT_EQ(info(base, page).accessed_by_devices, 1u);
    EXPECT_EQ(info(base + page, page).accessed_by_devices, 3u);
    EXPECT_EQ(info(base + 2 * page, 2 * page).accessed_by_devices, 2u);
    EXPECT_EQ(info(base + page, 3 * page).accessed_by_devices, 2u);
  }
  EXPECT_EQ(info(base, 2 * page).accessed_by_devices, 1u);
  EXPECT_EQ(info(base, 4 * page).accessed_by_devices, 0u);
  EXPECT_EQ(info(base, 4 * page).accessed_by_host, 1u);
}

TEST_P(Man, man_27_from_the_call_on) {
  if (!concurrent_) SKIP_RULE("a prefetch has no effect here; MAN-20 says so");
  const uint64_t page = page_size();
  const Memory memory = managed(4 * page);
  uint8_t* const base = memory.host();
  std::memset(base, 1, 4 * page);
  ActiveStream active(device_);
  EXPECT_OK(prefetch(active, base, 2 * page, kDevice));
  expect_prefetched(base, 2 * page, kDevice);
  expect_prefetched(base, 4 * page, kNowhere);
  EXPECT_OK(prefetch(active, base + page, 2 * page, kHost));
  expect_prefetched(base, page, kDevice);
  expect_prefetched(base + page, 2 * page, kHost);
  expect_prefetched(base, 2 * page, kNowhere);
  const gpumem_managed_range ranges[] = {range_of(base, page, kHost),
                                         range_of(base + 2 * page, 2 * page, kDevice)};
  EXPECT_OK(gpumem_managed_prefetch_batch(active, ranges, 2, why()));
  expect_prefetched(base, 2 * page, kHost);
  expect_prefetched(base + 2 * page, 2 * page, kDevice);
  active.finish();
  expect_prefetched(base, 2 * page, kHost);
  expect_prefetched(base + 2 * page, 2 * page, kDevice);
}

TEST_P(Man, man_27_over_pages_that_differ) {
  if (!concurrent_) SKIP_RULE("a prefetch has no effect here; MAN-20 says so");
  constexpr int kPages = 9;
  const uint64_t page = page_size();
  const Memory memory = managed(kPages * page);
  uint8_t* const base = memory.host();
  ActiveStream active(device_);
  const auto each = [&](const std::function<void(uint8_t*, int)>& act) {
    for (int i = 0; i < kPages; ++i)
      act(base + static_cast<uint64_t>(i) * page, i);
  };
  for (const bool batch : {false, true}) {
    SCOPED_TRACE(batch ? "batch" : "single");
    each([&](uint8_t* at, int i) { EXPECT_OK(prefetch(active, at, page, i % 2 ? kDevice : kHost)); });
    const gpumem_managed_range whole = range_of(base, kPages * page, kDevice);
    EXPECT_OK(batch ? gpumem_managed_prefetch_batch(active, &whole, 1, why())
                    : prefetch(active, base, kPages * page, kDevice));
    if (on_host()) {
      expect_prefetched(base, kPages * page, kDevice);
    } else {
      each([&](uint8_t* at, int i) {  // the new location or the one before
        if (i % 2 || info(at, page).last_prefetch_location == GPUMEM_LOCATION_DEVICE)
          expect_prefetched(at, page, kDevice);
        else
          expect_prefetched(at, page, kHost);
      });
    }
    each([&](uint8_t* at, int) { EXPECT_OK(prefetch(active, at, page, kDevice)); });
    expect_prefetched(base, kPages * page, kDevice);
  }
  active.finish();
}

TEST_P(Man, man_28_ranges) {
  const uint64_t page = page_size();
  const uint64_t size = 4 * page;
  std::vector<Memory> all;
  for (int i = 0; i < 8; ++i)
    all.push_back(managed(size));
  const Stream stream = create_stream(device_);
  for (const Memory& memory : all) {
    uint8_t* const base = memory.host();
    const std::pair<uint64_t, uint64_t> beyond[] = {
        {0, size + 1}, {0, 2 * size}, {size - 1, 2}, {page, size}, {0, kHuge - 1}};
    for (const auto& [offset, length] : beyond) {
      SCOPED_TRACE(testing::Message() << offset << " + " << length);
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                    advise(base + offset, length, GPUMEM_ADVICE_SET_READ_MOSTLY));
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, prefetch(stream, base + offset, length, kDevice));
      expect_no_info(GPUMEM_ERROR_INVALID_ARGUMENT, base + offset, length);
      const gpumem_managed_range range = range_of(base + offset, length, kDevice);
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_managed_prefetch_batch(stream, &range, 1, why()));
    }
    expect_nothing_known(base, size);
  }
}

TEST_P(Man, man_28_one_moment) {
  if (!concurrent_) SKIP_RULE("advice has no effect here; MAN-20 says so");
  const uint64_t size = 16 * page_size();
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    while (!stop) {
      EXPECT_OK(advise(base, size, GPUMEM_ADVICE_SET_READ_MOSTLY));
      EXPECT_OK(advise(base, size, GPUMEM_ADVICE_SET_ACCESSED_BY, kHost));
      EXPECT_OK(advise(base, size, GPUMEM_ADVICE_UNSET_ACCESSED_BY, kHost));
      EXPECT_OK(advise(base, size, GPUMEM_ADVICE_UNSET_READ_MOSTLY));
    }
  });
  for (int i = 0; i < 500; ++i) {
    const gpumem_managed_info now = info(base, size);
    EXPECT_GE(now.read_mostly, now.accessed_by_host);  // never an accessor of what is not read-mostly
  }
  stop = true;
  changer.join();
}

// Every function that takes a range, with a bad one.
TEST_P(Man, man_28_bad_memory) {
  const uint64_t page = page_size();
  const Memory memory = managed(4 * page);
  const Memory pinned = alloc_pinned(device_, page);
  const Memory device = alloc_device(device_, page);
  Pages pages(page);
  Pages forbidden(page, PROT_NONE);
  const Memory registered = register_memory(device_, pages.get(), page);
  const Instance other = open_with({});
  void* freed = nullptr;
  ASSERT_OK(gpumem_malloc(device_, GPUMEM_KIND_MANAGED, page, &freed, why()));
  ASSERT_OK(gpumem_free(instance_, freed, why()));
  const Stream stream = create_stream(device_);
  struct Bad {
    const char* name;
    void* pointer;
    uint64_t size;
    gpumem_status status;
  };
  const Bad all[] = {{"NULL", nullptr, page, GPUMEM_ERROR_INVALID_ARGUMENT},
                     {"size 0", memory.host(), 0, GPUMEM_ERROR_INVALID_ARGUMENT},
                     {"huge", memory.host(), kHuge, GPUMEM_ERROR_INVALID_ARGUMENT},
                     {"wraps", memory.host(), UINT64_MAX, GPUMEM_ERROR_INVALID_ARGUMENT},
                     {"pinned", pinned.host(), page, GPUMEM_ERROR_WRONG_KIND},
                     {"device", device.device(), page, GPUMEM_ERROR_WRONG_KIND},
                     {"registered", registered.host(), page, GPUMEM_ERROR_WRONG_KIND},
                     {"nothing there", forbidden.get(), page, GPUMEM_ERROR_NOT_FOUND},
                     {"freed", freed, page, GPUMEM_ERROR_NOT_FOUND}};
  for (const Bad& bad : all) {
    if (bad.pointer == freed && !on_host()) continue;  // a driver may have given the address to somebody else
    SCOPED_TRACE(bad.name);
    EXPECT_STATUS(bad.status, advise(bad.pointer, bad.size, GPUMEM_ADVICE_SET_READ_MOSTLY));
    EXPECT_STATUS(bad.status, advise(bad.pointer, bad.size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kDevice));
    EXPECT_STATUS(bad.status, prefetch(stream, bad.pointer, bad.size, kDevice));
    expect_no_info(bad.status, bad.pointer, bad.size);
    const gpumem_managed_range good = range_of(memory.host(), page, kDevice);
    gpumem_managed_range ranges[] = {good, range_of(bad.pointer, bad.size, kDevice), good};
    for (const Batch batch : {gpumem_managed_prefetch_batch, gpumem_managed_discard_and_prefetch_batch}) {
      EXPECT_STATUS(bad.status, batch(stream, ranges, 3, why()));
      EXPECT_NE(std::strstr(last_error().message, "[1]"), nullptr) << last_error().message;
    }
    ranges[0].location = ranges[1].location = ranges[2].location = 0;
    EXPECT_STATUS(bad.status, gpumem_managed_discard_batch(stream, ranges, 3, why()));
    EXPECT_NE(std::strstr(last_error().message, "[1]"), nullptr) << last_error().message;
  }
  // Nothing was enqueued and nothing noted.
  expect_nothing_known(memory.host(), 4 * page);
  EXPECT_OK(gpumem_stream_query(stream, why()));
}

TEST_P(Man, man_28_bad_structs) {
  const Memory memory = managed(page_size());
  const Stream stream = create_stream(device_);
  for (const size_t wrong : {size_t{0}, size_t{8}, sizeof(gpumem_managed_info) - 1, SIZE_MAX}) {
    gpumem_managed_info before = GPUMEM_MANAGED_INFO_INIT;
    before.struct_size = wrong;
    gpumem_managed_info after = before;
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                  gpumem_managed_get_info(instance_, memory.host(), page_size(), &after, why()))
        << wrong;
    EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
  }
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_managed_get_info(instance_, memory.host(), page_size(), nullptr, why()));
  for (const Batch batch : {gpumem_managed_prefetch_batch, gpumem_managed_discard_and_prefetch_batch}) {
    for (const size_t wrong : {size_t{0}, size_t{8}, sizeof(gpumem_managed_range) - 1, SIZE_MAX}) {
      gpumem_managed_range ranges[] = {range_of(memory.host(), page_size(), kHost),
                                       range_of(memory.host(), page_size(), kHost)};
      ranges[0].struct_size = wrong;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, batch(stream, ranges, 1, why())) << wrong;
      ranges[0].struct_size = sizeof ranges[0];
      ranges[1].struct_size = wrong;
      EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, batch(stream, ranges, 2, why())) << wrong;
    }
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, batch(stream, nullptr, 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, batch(nullptr, nullptr, 0, why()));
  }
  expect_nothing_known(memory.host(), page_size());
}

// A caller of a later version has longer structs.
TEST_P(Man, man_35_newer_callers) {
  struct Newer {
    gpumem_managed_range known;
    uint64_t unknown;
  };
  const Memory memory = managed(2 * page_size());
  const Stream stream = create_stream(device_);
  Newer ranges[2] = {{range_of(memory.host(), page_size(), kHost), 0},
                     {range_of(memory.host() + page_size(), page_size(), kDevice), 0}};
  for (Newer& range : ranges)
    range.known.struct_size = sizeof range;
  EXPECT_STATUS(hinted(), gpumem_managed_prefetch_batch(stream, &ranges[0].known, 2, why()));
  if (concurrent_) {
    expect_prefetched(memory.host(), page_size(), kHost);
    expect_prefetched(memory.host() + page_size(), page_size(), kDevice);
  }
  ranges[1].unknown = 1;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT,
                gpumem_managed_prefetch_batch(stream, &ranges[0].known, 2, why()));
  stream.synchronize();
}

// ---- MAN-29, MAN-30: how much there can be ----

constexpr uint64_t kSmallDevice = 8 * kMiB;

gpumem_status try_managed(gpumem_device device, uint64_t size, gpumem_memory_flags require, Memory* out) {
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, size, require);
  gpumem_memory memory = nullptr;
  const gpumem_status status = gpumem_memory_create(device, &desc, &memory, why());
  EXPECT_EQ(memory == nullptr, status != GPUMEM_SUCCESS);
  *out = Memory(memory);
  return status;
}

TEST_P(Man, man_29) {
  if (!on_host()) SKIP_RULE("no more managed memory than a GPU has is made in a test");
  const Instance small = open_with([](gpumem_host_options& host) {
    host.device_bytes = kSmallDevice;
    host.device_count = 1;
  });
  const gpumem_device device = small.device();
  const Memory kept = alloc_device(device, kMiB);
  put_pattern(small, kept.device(), kMiB, 77);
  const Stream stream = create_stream(device);
  std::vector<Memory> all;
  for (const uint64_t size : {kSmallDevice / 2, 2 * kSmallDevice}) {
    Memory memory;
    EXPECT_STATUS(concurrent_ ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED,
                  try_managed(device, size, GPUMEM_MEMORY_OVERSUBSCRIBE, &memory));
    if (concurrent_) {
      EXPECT_NE(memory.info().granted_flags & GPUMEM_MEMORY_OVERSUBSCRIBE, 0u);
      all.push_back(std::move(memory));
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_OK(
        gpumem_fill_async(stream, all[i].device(), all[i].size(), static_cast<uint32_t>(i + 1), 1, why()));
    EXPECT_OK(
        gpumem_managed_prefetch(stream, all[i].device(), all[i].size(), GPUMEM_LOCATION_DEVICE, 0, why()));
  }
  stream.synchronize();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].host()[0], i + 1);
    EXPECT_EQ(all[i].host()[all[i].size() - 1], i + 1);
  }
  EXPECT_TRUE(holds_pattern(small, kept.device(), kMiB, 77));
}

TEST_P(Man, man_29_only_if_asked_for) {
  if (!on_host()) SKIP_RULE("no more managed memory than a GPU has is made in a test");
  const Instance small = open_with([](gpumem_host_options& host) { host.device_bytes = kSmallDevice; });
  Memory one;
  Memory two;
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, try_managed(small.device(), 2 * kSmallDevice, 0, &one));
  EXPECT_OK(try_managed(small.device(), kSmallDevice / 8 * 5, 0, &one));
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY,
                try_managed(small.device(), kSmallDevice / 8 * 5, 0, &two));
  one.destroy();
  EXPECT_OK(try_managed(small.device(), kSmallDevice / 8 * 5, 0, &two));
}

TEST_P(Man, man_30) {
  if (!on_host()) SKIP_RULE("a device's memory is not filled in a test");
  const Instance small = open_with([](gpumem_host_options& host) { host.device_bytes = kSmallDevice; });
  Memory memory;
  EXPECT_STATUS(concurrent_ ? GPUMEM_SUCCESS : GPUMEM_ERROR_UNSUPPORTED,
                try_managed(small.device(), 2 * kSmallDevice, GPUMEM_MEMORY_OVERSUBSCRIBE, &memory));
  memory.destroy();
  const Counters before = counters(small);
  EXPECT_STATUS(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, try_managed(small.device(), kSmallDevice + 1, 0, &memory));
  EXPECT_TRUE(before == counters(small));
  EXPECT_OK(try_managed(small.device(), kSmallDevice, 0, &memory));
}

TEST_P(Man, man_30_a_preference_is_dropped) {
  gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, kMiB);
  desc.prefer = GPUMEM_MEMORY_OVERSUBSCRIBE;
  const Memory memory = create_memory(device_, desc);
  EXPECT_EQ((memory.info().granted_flags & GPUMEM_MEMORY_OVERSUBSCRIBE) != 0, concurrent_);
}

// ---- MAN-31: pageable memory ----

TEST_P(Man, man_31_where_devices_cannot) {
  const gpumem_capability_info pageable = capability(device_, GPUMEM_CAPABILITY_PAGEABLE);
  if (pageable.value != GPUMEM_ANSWER_NO) SKIP_RULE("these devices access pageable memory");
  Pages pages(4 * page_size());
  fill_pattern(pages.get(), pages.size(), 1);
  const Stream stream = create_stream(device_);
  EXPECT_STATUS(pageable.status, attach(stream, pages.get(), GPUMEM_ATTACH_GLOBAL, pages.size()));
  EXPECT_STATUS(pageable.status, prefetch(stream, pages.get(), pages.size(), kDevice));
  EXPECT_STATUS(pageable.status, advise(pages.get(), pages.size(), GPUMEM_ADVICE_SET_READ_MOSTLY));
  gpumem_managed_range range = range_of(pages.get(), pages.size(), kDevice);
  EXPECT_STATUS(pageable.status, gpumem_managed_prefetch_batch(stream, &range, 1, why()));
  range.location = 0;
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_managed_discard_batch(stream, &range, 1, why()));
  expect_no_info(GPUMEM_ERROR_WRONG_KIND, pages.get(), pages.size());
  EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 1));
}

TEST_P(Man, man_31_where_devices_can) {
  if (on_host()) {
    instance_.close();
    instance_ = open_with([](gpumem_host_options& host) { host.pageable = GPUMEM_TOGGLE_ON; });
    device_ = instance_.device();
  }
  if (!has(GPUMEM_CAPABILITY_PAGEABLE)) SKIP_RULE("these devices do not access pageable memory");
  const uint64_t page = page_size();
  Pages pages(4 * page);
  fill_pattern(pages.get(), pages.size(), 1);
  const Stream stream = create_stream(device_);
  EXPECT_OK(attach(stream, pages.get() + 5, GPUMEM_ATTACH_GLOBAL, 100));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(stream, pages.get(), GPUMEM_ATTACH_GLOBAL));
  EXPECT_STATUS(hinted(), prefetch(stream, pages.get() + 5, 2 * page, kDevice));
  EXPECT_STATUS(hinted(), advise(pages.get(), 4 * page, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kDevice));
  EXPECT_STATUS_IN(advise(pages.get(), 4 * page, GPUMEM_ADVICE_SET_READ_MOSTLY), GPUMEM_SUCCESS, hinted());
  gpumem_managed_range range = range_of(pages.get(), pages.size(), kHost);
  EXPECT_STATUS(hinted(), gpumem_managed_prefetch_batch(stream, &range, 1, why()));
  range.location = 0;
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_managed_discard_batch(stream, &range, 1, why()));
  expect_no_info(GPUMEM_ERROR_WRONG_KIND, pages.get(), pages.size());
  stream.synchronize();
  EXPECT_TRUE(has_pattern(pages.get(), pages.size(), 1));

  // Nothing there, and a range with a hole.
  Pages forbidden(page, PROT_NONE);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, prefetch(stream, forbidden.get(), page, kDevice));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, attach(stream, forbidden.get(), GPUMEM_ATTACH_GLOBAL, page));
  ASSERT_EQ(munmap(pages.get() + 2 * page, page), 0);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, prefetch(stream, pages.get(), 4 * page, kDevice));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, advise(pages.get(), 4 * page, GPUMEM_ADVICE_SET_READ_MOSTLY));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, attach(stream, pages.get(), GPUMEM_ATTACH_GLOBAL, 4 * page));
  stream.synchronize();
}

// ---- MAN-32: copies ----

bool from_device_side(gpumem_direction direction, bool is_source) {
  return direction == GPUMEM_DIRECTION_DEVICE_TO_DEVICE ||
         direction == (is_source ? GPUMEM_DIRECTION_DEVICE_TO_HOST : GPUMEM_DIRECTION_HOST_TO_DEVICE);
}

TEST_P(Man, man_32) {
  constexpr uint64_t kSize = 20'001;
  const Memory pinned = alloc_pinned(device_, kSize);
  const Memory device = alloc_device(device_, kSize);
  std::vector<uint8_t> heap(kSize);
  const Memory memory = managed(kSize);
  const Stream own = create_stream(device_);
  const Stream other = create_stream(device_);
  struct Case {
    gpumem_attach how;
    gpumem_stream attached;
    bool coherent_here;  // for the device in the stream of the copy
  };
  const Case cases[] = {{GPUMEM_ATTACH_GLOBAL, own, true},
                        {GPUMEM_ATTACH_HOST, own, false},
                        {GPUMEM_ATTACH_SINGLE, own, true},
                        {GPUMEM_ATTACH_SINGLE, other, false}};
  uint32_t seed = 0;
  for (const Case& one : cases) {
    EXPECT_OK(attach(one.attached, memory.host(), one.how));
    own.synchronize();
    other.synchronize();
    for (const gpumem_direction direction :
         {GPUMEM_DIRECTION_INFER, GPUMEM_DIRECTION_HOST_TO_HOST, GPUMEM_DIRECTION_HOST_TO_DEVICE,
          GPUMEM_DIRECTION_DEVICE_TO_HOST, GPUMEM_DIRECTION_DEVICE_TO_DEVICE}) {
      for (const bool is_source : {true, false}) {
        for (uint8_t* const operand : {pinned.host(), device.device(), heap.data()}) {
          const bool on_device = operand == device.device();
          // The other operand must be what the direction says.
          if (direction != GPUMEM_DIRECTION_INFER && from_device_side(direction, !is_source) != on_device)
            continue;
          SCOPED_TRACE(testing::Message() << "attached " << one.how << (one.coherent_here ? " here" : "")
                                          << ", direction " << direction << (is_source ? ", from" : ", to"));
          gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
          options.direction = direction;
          ++seed;
          uint8_t* const source = is_source ? memory.host() : operand;
          uint8_t* const destination = is_source ? operand : memory.host();
          if (source == device.device()) {
            put_pattern(instance_, source, kSize, seed);
          } else {
            fill_pattern(source, kSize, seed);
          }
          const bool is_refused =
              !concurrent_ && from_device_side(direction, is_source) && !one.coherent_here;
          EXPECT_STATUS(is_refused ? GPUMEM_ERROR_NO_ACCESS : GPUMEM_SUCCESS,
                        gpumem_copy_async(own, destination, source, kSize, &options, why()));
          own.synchronize();
          if (is_refused) continue;
          if (destination == device.device()) {
            EXPECT_TRUE(holds_pattern(instance_, destination, kSize, seed));
          } else {
            EXPECT_TRUE(has_pattern(destination, kSize, seed));
          }
        }
      }
    }
  }
}

TEST_P(Man, man_32_synchronous_and_both_sides) {
  constexpr uint64_t kSize = 20'001;
  const Memory global = managed(kSize);
  const Memory hosts = managed(kSize, GPUMEM_MEMORY_ATTACH_HOST);
  const Memory single = managed(kSize);
  const Stream stream = create_stream(device_);
  EXPECT_OK(attach(stream, single.host(), GPUMEM_ATTACH_SINGLE));
  stream.synchronize();
  if (concurrent_) {
    EXPECT_OK(advise(global.host(), kSize, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kHost));
  }
  uint32_t seed = 0;
  for (const Memory* to : {&global, &hosts, &single}) {
    for (const Memory* from : {&global, &hosts, &single}) {
      if (to == from) continue;
      fill_pattern(from->host(), kSize, ++seed);
      EXPECT_OK(gpumem_copy(instance_, to->host(), from->host(), kSize, nullptr, why()));
      EXPECT_TRUE(has_pattern(to->host(), kSize, seed));
      std::memset(to->host(), 0, kSize);
      EXPECT_OK(gpumem_copy_async(stream, to->host(), from->host(), kSize, nullptr, why()));
      stream.synchronize();
      EXPECT_TRUE(has_pattern(to->host(), kSize, seed));
    }
  }
}

// ---- MAN-33: fork ----

TEST_P(Man, man_33) {
  if (kSanitized && on_cuda()) SKIP_RULE("the fake driver's memory is a sanitizer's here");
  const Memory memory = managed(kMiB);
  fill_pattern(memory.host(), kMiB, 1);
  uint8_t* const bytes = memory.host();
  const gpumem_instance instance = instance_;
  const ProcessResult child = in_forked_child([&] {
    EXPECT_TRUE(read_faults(bytes));
    EXPECT_TRUE(write_faults(bytes + kMiB - 1));
    EXPECT_STATUS(GPUMEM_ERROR_FORKED, gpumem_managed_begin_host_access(instance, bytes, why()));
    EXPECT_STATUS(GPUMEM_ERROR_FORKED,
                  gpumem_managed_advise(instance, bytes, 1, GPUMEM_ADVICE_SET_READ_MOSTLY,
                                        GPUMEM_LOCATION_HOST, 0, why()));
  });
  EXPECT_TRUE(child.ok()) << child;
  EXPECT_TRUE(has_pattern(memory.host(), kMiB, 1));

  // While a child that execs exists, the parent goes on.
  const char* const words[] = {"sleep", "0.2", nullptr};
  pid_t pid = -1;
  ASSERT_EQ(posix_spawnp(&pid, "sleep", nullptr, nullptr, const_cast<char* const*>(words), environ), 0);
  const Stream stream = create_stream(device_);
  EXPECT_OK(fill(stream, memory, 2));
  stream.synchronize();
  EXPECT_EQ(memory.host()[kMiB - 1], 2);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

// ---- MAN-34 to MAN-36: discards and batches ----

TEST_P(Man, man_34) {
  const uint64_t page = page_size();
  const uint64_t size = 8 * page;
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  fill_pattern(base, size, 1);
  const gpumem_status advised = advise(base, size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION, kDevice);
  EXPECT_EQ(advised, hinted());
  const Stream stream = create_stream(device_);
  // The last bytes of the second page to the first bytes of the sixth: three whole pages.
  gpumem_managed_range range = range_of(base + 2 * page - 10, 3 * page + 20);
  EXPECT_STATUS(discarded(), gpumem_managed_discard_batch(stream, &range, 1, why()));
  stream.synchronize();
  EXPECT_TRUE(has_pattern(base, 2 * page, 1));
  EXPECT_FALSE(read_faults(base + 3 * page));
  for (uint64_t i = 5 * page; i < size; ++i)
    ASSERT_EQ(base[i], pattern_byte(1, i)) << i;
  if (discarded() == GPUMEM_NO_EFFECT) {
    EXPECT_TRUE(has_pattern(base, size, 1));
    return;
  }
  if (on_host()) {
    for (uint64_t i = 2 * page; i < 5 * page; ++i)
      ASSERT_EQ(base[i], 0xA5) << i;
  }
  expect_preferred(base, size, kDevice);
  // What is written afterwards counts.
  fill_pattern(base, size, 2);
  EXPECT_TRUE(holds_pattern(instance_, base, size, 2));
  EXPECT_OK(gpumem_managed_discard_batch(stream, &range, 1, why()));
  EXPECT_OK(fill(stream, memory, 3));
  stream.synchronize();
  EXPECT_EQ(base[3 * page], 3);
}

TEST_P(Man, man_34_has_no_location) {
  const Memory memory = managed(4 * page_size());
  fill_pattern(memory.host(), 4 * page_size(), 1);
  const Stream stream = create_stream(device_);
  gpumem_managed_range ranges[] = {range_of(memory.host(), page_size()),
                                   range_of(memory.host() + page_size(), page_size(), kHost)};
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_managed_discard_batch(stream, ranges, 2, why()));
  EXPECT_NE(std::strstr(last_error().message, "[1]"), nullptr) << last_error().message;
  stream.synchronize();
  EXPECT_TRUE(has_pattern(memory.host(), 4 * page_size(), 1));
}

TEST_P(Man, man_35_in_stream_order) {
  const uint64_t page = page_size();
  const uint64_t size = 16 * page;
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  std::memset(base, 0, size);
  std::vector<gpumem_managed_range> ranges;
  for (uint64_t i = 0; i < 16; ++i)
    ranges.push_back(range_of(base + i * page, page, i % 2 == 0 ? kDevice : kHost));
  const Stream stream = create_stream(device_);
  EXPECT_OK(fill(stream, memory, 1));
  EXPECT_STATUS(hinted(), gpumem_managed_prefetch_batch(stream, ranges.data(), ranges.size(), why()));
  EXPECT_OK(gpumem_fill_async(stream, base, page, 2, 1, why()));
  stream.synchronize();
  EXPECT_EQ(base[0], 2);
  EXPECT_EQ(base[page], 1);
  EXPECT_EQ(base[size - 1], 1);
  for (uint64_t i = 0; i < 16; ++i) {
    const Location where = concurrent_ ? (i % 2 == 0 ? kDevice : kHost) : kNowhere;
    expect_prefetched(base + i * page, page, where);
  }
}

TEST_P(Man, man_35_arguments) {
  const Memory memory = managed(page_size());
  const Stream stream = create_stream(device_);
  const Stream no_stream = default_stream();
  const gpumem_managed_range range = range_of(memory.host(), page_size(), kHost);
  gpumem_managed_range plain = range;
  plain.location = 0;
  for (const Batch batch : {gpumem_managed_prefetch_batch, gpumem_managed_discard_and_prefetch_batch}) {
    EXPECT_OK(batch(stream, nullptr, 0, why()));
    EXPECT_OK(batch(stream, &range, 0, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, batch(no_stream, &range, 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, batch(stream, &range, UINT64_MAX, why()));
    EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, batch(stream, &plain, 1, why()));
  }
  EXPECT_OK(gpumem_managed_discard_batch(stream, nullptr, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_managed_discard_batch(no_stream, &plain, 1, why()));
  expect_nothing_known(memory.host(), page_size());
}

TEST_P(Man, man_36) {
  const uint64_t page = page_size();
  const uint64_t size = 8 * page;
  const Memory memory = managed(size);
  uint8_t* const base = memory.host();
  fill_pattern(base, size, 1);
  const Stream stream = create_stream(device_);
  const gpumem_managed_range ranges[] = {range_of(base, 2 * page, kDevice),
                                         range_of(base + 4 * page, 2 * page, kHost)};
  EXPECT_STATUS(discarded(), gpumem_managed_discard_and_prefetch_batch(stream, ranges, 2, why()));
  stream.synchronize();
  for (uint64_t i = 2 * page; i < 4 * page; ++i)
    ASSERT_EQ(base[i], pattern_byte(1, i)) << i;
  if (discarded() == GPUMEM_NO_EFFECT) {
    EXPECT_TRUE(has_pattern(base, size, 1));
    expect_nothing_known(base, size);
    return;
  }
  expect_prefetched(base, 2 * page, kDevice);
  expect_prefetched(base + 4 * page, 2 * page, kHost);
  expect_prefetched(base + 2 * page, page, kNowhere);
  EXPECT_FALSE(read_faults(base));
  std::memset(base, 7, page);
  stream.synchronize();
  EXPECT_EQ(base[page - 1], 7);
}

// ---- what the rules of all memory say of this kind ----

TEST_P(Man, uva_5_managed) {
  for (uint32_t ordinal = 0; ordinal < instance_.device_count(); ++ordinal) {
    const Memory memory = create_memory(instance_.device(ordinal), memory_desc(GPUMEM_KIND_MANAGED, 5001));
    for (const uint64_t offset : {uint64_t{0}, uint64_t{2500}, uint64_t{5000}}) {
      uint8_t* const pointer = memory.host() + offset;
      const gpumem_pointer_info told = pointer_info(instance_, pointer);
      EXPECT_EQ(told.kind, GPUMEM_KIND_MANAGED);
      EXPECT_EQ(told.location, GPUMEM_LOCATION_NONE);
      EXPECT_EQ(told.location_id, -1);
      EXPECT_EQ(told.device_ordinal, static_cast<int32_t>(ordinal));
      EXPECT_EQ(told.host_pointer, pointer);
      EXPECT_EQ(told.device_pointer, pointer);
      EXPECT_EQ(told.base, memory.host());
      EXPECT_EQ(told.size, 5001u);
      EXPECT_EQ(told.buffer_id, memory.info().buffer_id);
      EXPECT_EQ(told.memory, memory.get());
      for (uint32_t each = 0; each < instance_.device_count(); ++each) {
        EXPECT_EQ(device_access(instance_, pointer, each), GPUMEM_ACCESS_READWRITE);
        void* device_pointer = nullptr;
        EXPECT_OK(gpumem_pointer_get_device_pointer(instance_.device(each), pointer, &device_pointer, why()));
        EXPECT_EQ(device_pointer, pointer);
      }
      EXPECT_EQ(cpu_access(instance_, pointer), GPUMEM_ACCESS_READWRITE);
    }
    EXPECT_NE(pointer_info(instance_, memory.host() + 5001).buffer_id, memory.info().buffer_id);
  }
}

// Subject to MAN-4 and MAN-5.
TEST_P(Man, uva_5_managed_and_its_association) {
  const Memory memory = managed(100, GPUMEM_MEMORY_ATTACH_HOST);
  EXPECT_EQ(device_access(instance_, memory.host(), 0),
            concurrent_ ? GPUMEM_ACCESS_READWRITE : GPUMEM_ACCESS_NONE);
  EXPECT_EQ(cpu_access(instance_, memory.host()), GPUMEM_ACCESS_READWRITE);
}

TEST_P(Man, pin_13_managed) {
  const Memory memory = managed(4 * page_size());
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND, gpumem_register(device_, memory.host(), 100, 0, why()));
  EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND,
                gpumem_register(device_, memory.host() + 50, page_size(), GPUMEM_MEMORY_MAPPED, why()));
  EXPECT_EQ(kind_stats(instance_, GPUMEM_KIND_REGISTERED).live_count, 0u);
}

TEST_P(Man, str_17_managed) {
  const Memory memory = managed(64);
  const Stream stream = create_stream(device_);
  for (const uint32_t size : {4u, 8u}) {
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND,
                  gpumem_stream_write_value(stream, memory.device(), 1, size, why()));
    EXPECT_STATUS(GPUMEM_ERROR_WRONG_KIND,
                  gpumem_stream_wait_value(stream, memory.device(), 1, size, GPUMEM_WAIT_EQ, why()));
  }
  stream.synchronize();
}

TEST_P(Man, str_20_managed) {
  REQUIRE_FOREIGN();
  const Memory memory = managed(page_size());
  NativeStream native(device_);
  gpumem_stream handle = nullptr;
  ASSERT_OK(gpumem_stream_wrap(device_, native.get(), &handle, why()));
  const Stream stream(handle);
  native.begin_capture(stream);
  gpumem_managed_range range = range_of(memory.host(), page_size(), kHost);
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, attach(stream, memory.host(), GPUMEM_ATTACH_HOST));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, prefetch(stream, memory.host(), page_size(), kHost));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_managed_prefetch_batch(stream, &range, 1, why()));
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE,
                gpumem_managed_discard_and_prefetch_batch(stream, &range, 1, why()));
  range.location = 0;
  EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, gpumem_managed_discard_batch(stream, &range, 1, why()));
  // Advice is no operation of a stream.
  EXPECT_STATUS_IN(advise(memory.host(), page_size(), GPUMEM_ADVICE_SET_READ_MOSTLY), GPUMEM_SUCCESS,
                   hinted());
  native.end_capture(stream);
  EXPECT_STATUS(hinted(), prefetch(stream, memory.host(), page_size(), kHost));
  stream.synchronize();
}

struct Inside {
  gpumem_instance instance;
  gpumem_device device;
  gpumem_stream stream;
  void* pointer;
  std::vector<gpumem_status> answers;
  gpumem_kind kind = GPUMEM_KIND_UNKNOWN;
};

TEST_P(Man, com_27_managed) {
  const Memory memory = managed(page_size());
  const Stream stream = create_stream(device_);
  const Stream other = create_stream(device_);
  Inside inside{instance_, device_, other, memory.host(), {}};
  const auto call_all = [](void* user_data) {
    auto& in = *static_cast<Inside*>(user_data);
    const uint64_t size = page_size();
    gpumem_managed_range range = range_of(in.pointer, size, kHost);
    gpumem_managed_info info = GPUMEM_MANAGED_INFO_INIT;
    void* made = nullptr;
    in.answers = {gpumem_malloc(in.device, GPUMEM_KIND_MANAGED, 100, &made, nullptr),
                  gpumem_managed_attach(in.stream, in.pointer, 0, GPUMEM_ATTACH_HOST, nullptr),
                  gpumem_managed_advise(in.instance, in.pointer, size, GPUMEM_ADVICE_SET_READ_MOSTLY,
                                        GPUMEM_LOCATION_HOST, 0, nullptr),
                  gpumem_managed_prefetch(in.stream, in.pointer, size, GPUMEM_LOCATION_HOST, 0, nullptr),
                  gpumem_managed_prefetch_batch(in.stream, &range, 1, nullptr),
                  gpumem_managed_discard_and_prefetch_batch(in.stream, &range, 1, nullptr),
                  gpumem_managed_get_info(in.instance, in.pointer, size, &info, nullptr),
                  gpumem_managed_begin_host_access(in.instance, in.pointer, nullptr)};
    range.location = 0;
    in.answers.push_back(gpumem_managed_discard_batch(in.stream, &range, 1, nullptr));
    gpumem_pointer_info told = GPUMEM_POINTER_INFO_INIT;
    if (gpumem_pointer_get_info(in.instance, in.pointer, &told, nullptr) == GPUMEM_SUCCESS)
      in.kind = told.kind;
  };
  EXPECT_OK(gpumem_stream_launch_host_function(stream, call_all, &inside, why()));
  stream.synchronize();
  EXPECT_EQ(inside.answers, std::vector<gpumem_status>(9, GPUMEM_ERROR_INVALID_STATE));
  EXPECT_EQ(inside.kind, GPUMEM_KIND_MANAGED);
}

TEST_P(Man, com_18_managed) {
  if (!on_host()) SKIP_RULE("the fake driver's loss lasts for the process");
  const Instance own = open_with([](gpumem_host_options& host) { host.device_count = 1; });
  const gpumem_device device = own.device();
  const uint64_t size = page_size();
  {
    const Memory memory = create_memory(device, memory_desc(GPUMEM_KIND_MANAGED, size));
    const Memory other = create_memory(device, memory_desc(GPUMEM_KIND_MANAGED, size));
    const Stream stream = create_stream(device);
    EXPECT_OK(gpumem_managed_begin_host_access(own, other.host(), why()));
    lose(device);
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, attach(stream, memory.host(), GPUMEM_ATTACH_HOST));
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, prefetch(stream, memory.host(), size, kDevice));
    const gpumem_managed_range range = range_of(memory.host(), size, kDevice);
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_managed_prefetch_batch(stream, &range, 1, why()));
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST,
                  gpumem_managed_advise(own, memory.host(), size, GPUMEM_ADVICE_SET_PREFERRED_LOCATION,
                                        GPUMEM_LOCATION_DEVICE, 0, why()));
    gpumem_memory none = nullptr;
    const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, size);
    EXPECT_STATUS(GPUMEM_ERROR_DEVICE_LOST, gpumem_memory_create(device, &desc, &none, why()));
    EXPECT_EQ(pointer_info(own, memory.host()).kind, GPUMEM_KIND_MANAGED);
    EXPECT_OK(gpumem_managed_end_host_access(own, other.host(), why()));
  }
  EXPECT_EQ(stats(own).live_count, 0u);
}

TEST_P(Man, com_14_fresh_memory_has_no_zeros) {
  if (!on_host()) SKIP_RULE("a driver does not promise what fresh memory holds");
  const Memory memory = managed(3 * page_size() + 5);
  for (uint64_t i = 0; i < memory.size(); ++i)
    ASSERT_EQ(memory.host()[i], 0xA5) << i;
}

TEST_P(Man, com_27_accesses_that_begin_during_a_copy_of_a_file) {
  if (concurrent_) SKIP_RULE("an access waits for nothing where all devices are concurrent");
  std::vector<uint8_t> bytes(10'000, 7);
  const Memory memory = managed(bytes.size());
  const Memory second = managed(bytes.size());
  const int file = memfd_create("file", MFD_CLOEXEC);
  ASSERT_EQ(pwrite(file, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  const auto copy = [&](const Memory& to, const std::function<void()>& before) {
    Progress progress;
    progress.also = [&] {
      if (progress.told.size() == 1) before();
    };
    gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
    desc.file_descriptor = file;
    desc.direction = GPUMEM_FILE_DIRECTION_TO_MEMORY;
    desc.pointer = to.host();
    desc.size = bytes.size();
    desc = progress.in(desc);
    EXPECT_OK(gpumem_copy_file(instance_, &desc, nullptr, why()));
  };
  copy(memory, [&] { EXPECT_STATUS(GPUMEM_ERROR_INVALID_STATE, begin(memory.host())); });
  {
    std::barrier both(2);
    const auto copy_and_begin = [&](const Memory& own, const Memory& other) {
      copy(own, [&] {
        both.arrive_and_wait();
        EXPECT_STATUS(GPUMEM_ERROR_BUSY, begin(other.host()));
        both.arrive_and_wait();
      });
    };
    std::thread beside([&] { copy_and_begin(second, memory); });
    copy_and_begin(memory, second);
    beside.join();
  }
  // Who waits for the copy does not access the memory yet.
  std::atomic<pid_t> id{0};
  std::thread accessing;
  copy(memory, [&] {
    accessing = std::thread([&] {
      id = gettid();
      EXPECT_OK(begin(memory.host()));
      EXPECT_EQ(std::memcmp(memory.host(), bytes.data(), bytes.size()), 0);
      EXPECT_OK(end(memory.host()));
    });
    while (id == 0)
      std::this_thread::yield();
    gpumem::test::wait_until_asleep(id);
  });
  accessing.join();
  close(file);
}

TEST_P(Man, com_13_busy_while_in_use) {
  if (!on_host()) SKIP_RULE("a driver does not detect it");
  const Memory memory = managed(page_size());
  GatedStream held(device_);
  EXPECT_OK(fill(held, memory, 1));
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_memory_destroy(memory, why()));
  held.finish();
}

TEST_P(Man, hst_6_managed_of_another_instance) {
  const Instance other = open_with({});
  const Memory theirs = create_memory(other.device(), memory_desc(GPUMEM_KIND_MANAGED, page_size()));
  EXPECT_NE(pointer_info(instance_, theirs.host()).kind, GPUMEM_KIND_MANAGED);
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, gpumem_free(instance_, theirs.host(), why()));
  EXPECT_STATUS(GPUMEM_ERROR_NOT_FOUND, begin(theirs.host()));
  EXPECT_TRUE(GPUMEM_FAILED(advise(theirs.host(), page_size(), GPUMEM_ADVICE_SET_READ_MOSTLY)));
}

TEST_P(Man, com_24_managed_memory_is_listed_and_freed) {
  gpumem_instance own = open_with({}).release();
  gpumem_device device = nullptr;
  ASSERT_OK(gpumem_device_get(own, 0, &device, why()));
  Memory memory = create_memory(device, memory_desc(GPUMEM_KIND_MANAGED, page_size()));
  EXPECT_OK(gpumem_managed_begin_host_access(own, memory.host(), why()));
  memory.release();
  EXPECT_STATUS(GPUMEM_ERROR_BUSY, gpumem_instance_close(own, GPUMEM_CLOSE_CHECK, nullptr, why()));
  uint64_t destroyed = 0;
  EXPECT_OK(gpumem_instance_close(own, GPUMEM_CLOSE_FORCE, &destroyed, why()));
  EXPECT_EQ(destroyed, 1u);
}

// The k-th step fails: nothing stays behind, and nothing is noted that did not happen.
TEST_P(Man, com_8_managed) {
  if (!Faults::available()) SKIP_RULE("the steps of a driver cannot be made to fail");
  const uint64_t size = 4 * page_size();
  const Stream stream = create_stream(device_);
  Faults faults(instance_);
  const auto until_it_works = [&](const std::function<gpumem_status()>& call,
                                  const std::function<void()>& check) {
    for (uint64_t k = 1; k < 100; ++k) {
      SCOPED_TRACE(k);
      faults.fail_step(k);
      const gpumem_status status = call();
      faults.off();
      if (!GPUMEM_FAILED(status)) return;
      check();
    }
    ADD_FAILURE() << "it never works";
  };
  const Counters before = counters(instance_);
  gpumem_memory made = nullptr;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_MANAGED, size);
  until_it_works([&] { return gpumem_memory_create(device_, &desc, &made, nullptr); },
                 [&] {
                   EXPECT_EQ(made, nullptr);
                   EXPECT_TRUE(before.kinds.size() == kCountedKinds.size() && before == counters(instance_));
                 });
  const Memory memory(made);
  uint8_t* const base = memory.host();
  const auto nothing = [&] { expect_nothing_known(base, size); };
  until_it_works([&] { return prefetch(stream, base, size, kDevice); }, nothing);
  stream.synchronize();
  const Memory second = managed(size);
  const auto nothing_second = [&] { expect_nothing_known(second.host(), size); };
  const gpumem_managed_range ranges[] = {range_of(second.host(), page_size(), kDevice),
                                         range_of(second.host() + page_size(), page_size(), kDevice)};
  until_it_works([&] { return gpumem_managed_discard_and_prefetch_batch(stream, ranges, 2, why()); },
                 nothing_second);
  stream.synchronize();
  // A page that is not discarded is only prefetched, once the others are.
  const Memory third = managed(size);
  const gpumem_managed_range part = range_of(third.host() + 100, 2 * page_size(), kDevice);
  until_it_works([&] { return gpumem_managed_discard_and_prefetch_batch(stream, &part, 1, why()); },
                 [&] { expect_nothing_known(third.host(), 1); });
  stream.synchronize();
  until_it_works([&] { return advise(base, size, GPUMEM_ADVICE_SET_READ_MOSTLY); },
                 [&] { EXPECT_EQ(info(base, size).read_mostly, 0u); });
  until_it_works([&] { return attach(stream, base, GPUMEM_ATTACH_HOST); }, [] {});
  stream.synchronize();
}

}  // namespace
}  // namespace conformance
