// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of pools.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <utility>

#ifdef HAVE_CUDA_HEADERS
#include <cuda.h>
#include <cudaTypedefs.h>
#endif

#include "scenario.h"

namespace faults {
namespace {

Step of_many(Step step) {
  step.exhausted = GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
  step.of_many = true;
  return step;
}

Step create_pool(gpumem_kind kind, gpumem_pool_flags flags = 0, uint64_t initial_size = 0, size_t slot = 0,
                 uint64_t limit = 0) {
  return of_many({"gpumem_pool_create", [=](World& w) {
                    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
                    desc.kind = kind;
                    desc.flags = flags;
                    desc.initial_size = initial_size;
                    desc.limit = limit;
                    desc.name = "a name that is longer than a short string";
                    return gpumem_pool_create(w.out.device[0], &desc, &w.out.pool[slot], &w.error);
                  }});
}

// A failure leaves the threshold as it was.
Step set_threshold(uint64_t bytes) {
  return {"gpumem_pool_set_release_threshold", [=](World& w) {
            gpumem_pool_info before = GPUMEM_POOL_INFO_INIT;
            gpumem_pool_info now = GPUMEM_POOL_INFO_INIT;
            const bool known = gpumem_pool_get_info(w.out.pool[0], &before, nullptr) == GPUMEM_SUCCESS;
            const gpumem_status status = gpumem_pool_set_release_threshold(w.out.pool[0], bytes, &w.error);
            if (known && gpumem_pool_get_info(w.out.pool[0], &now, nullptr) == GPUMEM_SUCCESS) {
              EXPECT_EQ(now.release_threshold, status == GPUMEM_SUCCESS ? bytes : before.release_threshold);
            }
            return status;
          }};
}

// Into Out::block.
Step take(size_t slot, uint64_t size, int stream = -1) {
  return of_many({"gpumem_pool_alloc", [=](World& w) {
                    return gpumem_pool_alloc(w.out.pool[0], size,
                                             stream < 0 ? nullptr : w.out.stream[static_cast<size_t>(stream)],
                                             &w.out.block[slot], &w.error);
                  }});
}

Step give(size_t slot, int stream = -1) {
  return of_many({"gpumem_pool_free", [=](World& w) {
                    const gpumem_status status = gpumem_pool_free(
                        w.out.pool[0], w.out.block[slot],
                        stream < 0 ? nullptr : w.out.stream[static_cast<size_t>(stream)], &w.error);
                    if (status == GPUMEM_SUCCESS) unset(w.out.block[slot]);
                    return status;
                  }});
}

Step info() { return CALL(gpumem_pool_get_info, w.out.pool[0], &w.out.pool_info); }

Step block_info() {
  return CALL(gpumem_pool_get_block_info, w.out.instance, w.out.block[0], &w.out.pool_block_info);
}

constexpr std::array<uint64_t, 2> kSizes{3000, 3 * kMiB};

Step batch() {
  return of_many({"gpumem_pool_alloc_batch", [](World& w) {
                    return gpumem_pool_alloc_batch(w.out.pool[0], kSizes.data(), kSizes.size(), nullptr,
                                                   w.out.some_blocks, &w.error);
                  }});
}

// The same in a pool without blocks, which stays so unless all are there.
Step batch_of(std::array<uint64_t, 2> sizes, int stream = -1) {
  return of_many({"gpumem_pool_alloc_batch", [=](World& w) {
                    const gpumem_status status = gpumem_pool_alloc_batch(
                        w.out.pool[0], sizes.data(), sizes.size(),
                        stream < 0 ? nullptr : w.out.stream[static_cast<size_t>(stream)], w.out.some_blocks,
                        &w.error);
                    gpumem_pool_info now = GPUMEM_POOL_INFO_INIT;
                    if (gpumem_pool_get_info(w.out.pool[0], &now, nullptr) == GPUMEM_SUCCESS) {
                      EXPECT_EQ(now.live_count, status == GPUMEM_SUCCESS ? 2U : 0U);
                    }
                    return status;
                  }});
}

// The handle of the first stream, as other code passes it.
void* handle_of_stream = nullptr;

Step get_handle() {
  return {"gpumem_stream_get_info", [](World& w) {
            gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
            const gpumem_status status = gpumem_stream_get_info(w.out.stream[0], &info, &w.error);
            handle_of_stream = info.native_stream;
            return status;
          }};
}

Step take_native(size_t slot, uint64_t size) {
  return of_many({"gpumem_pool_alloc_native", [=](World& w) {
                    return gpumem_pool_alloc_native(w.out.pool[0], size, handle_of_stream, &w.out.block[slot],
                                                    &w.error);
                  }});
}

Step give_native(size_t slot) {
  return of_many({"gpumem_pool_free_native", [=](World& w) {
                    const gpumem_status status =
                        gpumem_pool_free_native(w.out.pool[0], w.out.block[slot], handle_of_stream, &w.error);
                    if (status == GPUMEM_SUCCESS) unset(w.out.block[slot]);
                    return status;
                  }});
}

// A pool that gives memory back once it has more than 8 MiB, down to 2.
Step create_pool_with_low_water() {
  return of_many({"gpumem_pool_create", [](World& w) {
                    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
                    desc.initial_size = 9 * kMiB;
                    desc.release_threshold = 8 * kMiB;
                    desc.low_water = 2 * kMiB;
                    return gpumem_pool_create(w.out.device[0], &desc, &w.out.pool[0], &w.error);
                  }});
}

Step create_pool_for_both() {
  return of_many({"gpumem_pool_create", [](World& w) {
                    gpumem_access_desc access = GPUMEM_ACCESS_DESC_INIT;
                    access.location = GPUMEM_LOCATION_DEVICE;
                    access.location_id = 1;
                    access.access = GPUMEM_ACCESS_READWRITE;
                    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
                    desc.flags = GPUMEM_POOL_FROM_DRIVER;
                    desc.initial_size = kMiB;
                    desc.accesses = &access;
                    desc.access_count = 1;
                    return gpumem_pool_create(w.out.device[0], &desc, &w.out.pool[0], &w.error);
                  }});
}

void expect_none_live(World& w) {
  gpumem_pool_info now = GPUMEM_POOL_INFO_INIT;
  EXPECT_EQ(gpumem_pool_get_info(w.out.pool[0], &now, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(now.live_count, 0U);
}

// Whatever a fault kept from going back, the next trim finds.
void expect_all_goes_back(World& w) {
  expect_none_live(w);
  EXPECT_EQ(gpumem_pool_trim(w.out.pool[0], 0, nullptr, nullptr), GPUMEM_SUCCESS);
  gpumem_pool_info now = GPUMEM_POOL_INFO_INIT;
  EXPECT_EQ(gpumem_pool_get_info(w.out.pool[0], &now, nullptr), GPUMEM_SUCCESS);
  EXPECT_EQ(now.reserved_bytes, 0U);
}

// Ends `count` places.
Step ends(const char* function, void* (Out::*places)[2], std::function<gpumem_status(World&)> call) {
  return of_many({function, [=](World& w) {
                    const gpumem_status status = call(w);
                    if (status == GPUMEM_SUCCESS) unset(w.out.*places);
                    return status;
                  }});
}

Step ends_block(const char* function, std::function<gpumem_status(World&)> call) {
  return of_many({function, [=](World& w) {
                    const gpumem_status status = call(w);
                    if (status == GPUMEM_SUCCESS) unset(w.out.block[0]);
                    return status;
                  }});
}

// A pool that has memory: what it takes for an allocation that then fails stays with it. Taking some is under
// faults where a pool begins with it.
std::vector<Step> warm(Step create, std::vector<Step> more = {}) {
  more.insert(more.begin(), {std::move(create), take(0, 3000), take(1, 9 * kMiB), give(0), give(1)});
  return more;
}

// Begins or ends a capture of the first stream, as other code does.
Step capture(bool begin) {
  return {begin ? "the begin of a capture" : "the end of a capture", [=](World& w) {
            if (w.backend == GPUMEM_BACKEND_HOST)
              return gpumem_host_stream_set_capturing(w.out.stream[0], begin ? 1 : 0, &w.error);
            int code = 1;
#ifdef HAVE_CUDA_HEADERS
            gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
            (void)gpumem_stream_get_info(w.out.stream[0], &info, nullptr);
            auto* const stream = static_cast<CUstream>(info.native_stream);
            void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
            const auto find = [&](const char* name) { return dlsym(driver, name); };
            if (begin) {
              code = reinterpret_cast<PFN_cuStreamBeginCapture_v10010>(find("cuStreamBeginCapture_v2"))(
                  stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
            } else {
              CUgraph graph = nullptr;
              code =
                  reinterpret_cast<PFN_cuStreamEndCapture_v10000>(find("cuStreamEndCapture"))(stream, &graph);
              if (graph != nullptr)
                code |= reinterpret_cast<PFN_cuGraphDestroy_v10000>(find("cuGraphDestroy"))(graph);
            }
            dlclose(driver);
#endif
            return code == 0 ? GPUMEM_SUCCESS : GPUMEM_ERROR_INTERNAL;
          }};
}

// What a callback frees, and how that failed.
struct Lent {
  gpumem_pool pool;
  void* block;
  gpumem_error error;
};
Lent lent;

Step lend(uint64_t size) {
  return {"gpumem_pool_alloc", [=](World& w) {
            lent = {w.out.pool[0], nullptr, GPUMEM_ERROR_INIT};
            return gpumem_pool_alloc(lent.pool, size, nullptr, &lent.block, &w.error);
          }};
}

Step free_lent() {
  return {"gpumem_pool_free", [](World& w) {
            return gpumem_pool_free(lent.pool, std::exchange(lent.block, nullptr), nullptr, &w.error);
          }};
}

int32_t free_in_callback(void* /*user_data*/, gpumem_pool /*pool*/, uint64_t /*size*/) {
  const gpumem_status status = gpumem_pool_free(lent.pool, lent.block, nullptr, &lent.error);
  if (status != GPUMEM_SUCCESS) return 0;
  lent.block = nullptr;
  return 1;
}

// Like take(), from a pool that is full unless the callback frees. If that cannot, its failure is the call's.
Step take_by_callback(size_t slot, uint64_t size) {
  return of_many({"gpumem_pool_alloc", [=](World& w) {
                    lent.error = GPUMEM_ERROR_INIT;
                    const gpumem_status status =
                        gpumem_pool_alloc(w.out.pool[0], size, nullptr, &w.out.block[slot], &w.error);
                    if (status != GPUMEM_ERROR_LIMIT_EXCEEDED || lent.error.status == GPUMEM_SUCCESS)
                      return status;
                    w.error = lent.error;
                    std::snprintf(w.error.function, sizeof w.error.function, "gpumem_pool_alloc");
                    return w.error.status;
                  }});
}

// Writes to a block, once a pool that does not wait for it has ended.
void write_late(gpumem_host_kernel /*kernel*/, void* block) {
  usleep(2000);
  *static_cast<volatile char*>(block) = 1;
}

int32_t no_more(void* /*user_data*/, gpumem_pool /*pool*/, uint64_t /*size*/) { return 0; }

void few_units(gpumem_instance_desc&, gpumem_host_options& host) {
  host.vmm_granularity = kMiB;
  host.lock_mode = GPUMEM_HOST_LOCK_OFF;
  host.fill = GPUMEM_TOGGLE_OFF;
}

}  // namespace

std::vector<Scenario> pool_scenarios() {
  std::vector<Scenario> all;
  const Step destroy = of_many(ENDING_CALL(gpumem_pool_destroy, w.out.pool[0]));
  for (const gpumem_kind kind :
       {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED, GPUMEM_KIND_PAGEABLE}) {
    all.push_back(
        {"a pool of kind " + std::to_string(kind), kBoth, {}, {create_pool(kind), info(), destroy}});
    all.push_back({"blocks of kind " + std::to_string(kind),
                   kBoth,
                   warm(create_pool(kind)),
                   {take(0, 3000), take(1, 3 * kMiB), give(0), give(1)}});
  }
  all.push_back(
      {"a pool that begins with memory", kBoth, {}, {create_pool(GPUMEM_KIND_DEVICE, 0, kMiB), destroy}});
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    const std::string of = " of the driver's memory, of kind " + std::to_string(kind);
    all.push_back({"a pool" + of, kBoth, {}, {create_pool(kind, GPUMEM_POOL_FROM_DRIVER, kMiB), destroy}});
    // The pool of the driver, and the streams in which the device takes such memory and gives it back.
    all.back().idle_streams = kind == GPUMEM_KIND_DEVICE ? 2 : 3;
    all.push_back({"blocks" + of,
                   kBoth,
                   warm(create_pool(kind, GPUMEM_POOL_FROM_DRIVER)),
                   {take(0, 3000), take(1, 3 * kMiB), give(0), give(1),
                    of_many(CALL(gpumem_pool_trim, w.out.pool[0], 0, &w.out.number[0]))}});
  }
  all.push_back(
      {"a pool of the driver's memory for two devices", kBoth, {}, {create_pool_for_both(), destroy}});
  all.back().idle_streams = 3;
  all.push_back(
      {"what a pool can tell",
       kBoth,
       {create_pool(GPUMEM_KIND_DEVICE), take(0, 3000)},
       {block_info(), CALL(gpumem_pool_get_class_info, w.out.pool[0], 3, &w.out.pool_class_info),
        CALL(gpumem_pool_reset_peaks, w.out.pool[0]),
        CALL(gpumem_pool_capacity_for, w.out.pool[0], kSizes.data(), kSizes.size(), &w.out.number[0]),
        CALL(gpumem_pool_set_limit, w.out.pool[0], 64 * kMiB),
        CALL(gpumem_pool_set_release_threshold, w.out.pool[0], 0),
        CALL(gpumem_pool_set_callback, w.out.pool[0], no_more, nullptr)}});
  all.push_back({"a threshold below what a pool has",
                 kBoth,
                 warm(create_pool(GPUMEM_KIND_DEVICE), {create_stream(0), take(0, 3000, 0), give(0, 0)}),
                 {set_threshold(1)}});
  all.push_back(
      {"blocks in streams",
       kBoth,
       warm(create_pool(GPUMEM_KIND_DEVICE), {create_stream(0), create_stream(1)}),
       {take(0, 3000, 0), CALL(gpumem_pool_record_use, w.out.pool[0], w.out.block[0], w.out.stream[1]),
        give(0, 0), take(1, 3 * kMiB, 1), give(1, 1), synchronize(0), synchronize(1)}});
  // What is free in front moves to where more in a row is needed.
  all.push_back({"memory that moves",
                 kBoth,
                 {create_pool(GPUMEM_KIND_DEVICE, 0, 0, 0, 12 * kMiB), take(0, 4 * kMiB), take(1, 4 * kMiB),
                  take(2, 4 * kMiB), give(0), give(2)},
                 {take(0, 6 * kMiB), give(0)},
                 nullptr,
                 {give(1)}});
  // The second stream waits for the first, rather than that the pool grows.
  all.push_back({"a dependency between streams",
                 kBoth,
                 warm(create_pool(GPUMEM_KIND_DEVICE, GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES),
                      {create_stream(0), create_stream(1), take(0, 3000, 0), give(0, 0)}),
                 {take(0, 3000, 1), info(), give(0, 1), synchronize(0), synchronize(1)}});
  all.push_back({"two pools, one of which has memory",
                 kBoth,
                 {create_pool(GPUMEM_KIND_DEVICE), create_pool(GPUMEM_KIND_DEVICE, 0, 9 * kMiB, 1)},
                 {take(0, 3 * kMiB), give(0)}});
  all.back().trims = true;
  all.push_back({"a callback that frees",
                 kBoth,
                 {create_pool(GPUMEM_KIND_DEVICE, 0, 0, 0, 8 * kMiB), lend(7 * kMiB),
                  CALL(gpumem_pool_set_callback, w.out.pool[0], free_in_callback, nullptr)},
                 {take_by_callback(0, 7 * kMiB), give(0)},
                 nullptr,
                 {free_lent()}});
  all.back().trims = true;
  all.push_back({"batches of blocks",
                 kBoth,
                 warm(create_pool(GPUMEM_KIND_DEVICE)),
                 {batch(), ends("gpumem_pool_free_batch", &Out::some_blocks, [](World& w) {
                    return gpumem_pool_free_batch(w.out.pool[0], w.out.some_blocks, 2, nullptr, &w.error);
                  })}});
  for (const gpumem_pool_flags flags : {gpumem_pool_flags{0}, GPUMEM_POOL_DEBUG}) {
    const std::string of = flags != 0 ? " of a pool that looks for mistakes" : "";
    all.push_back({"batches of large blocks" + of,
                   kBoth,
                   {create_pool(GPUMEM_KIND_PINNED, flags, 32 * kMiB)},
                   {batch_of({9 * kMiB, 9 * kMiB})}});
    all.push_back({"batches of a capture" + of,
                   kBoth,
                   {create_pool(GPUMEM_KIND_DEVICE, flags, 32 * kMiB), create_stream(0), capture(true)},
                   {batch_of({100, 3 * kMiB}, 0)},
                   [](World& w) { EXPECT_EQ(capture(false).call(w), GPUMEM_SUCCESS); }});
  }
  all.push_back(
      {"frees by other names",
       kBoth,
       warm(create_pool(GPUMEM_KIND_DEVICE)),
       {of_many(CALL(gpumem_pool_alloc_aligned, w.out.pool[0], 100, kMiB, nullptr, &w.out.block[0])),
        ends_block("gpumem_pool_free_sized",
                   [](World& w) {
                     return gpumem_pool_free_sized(w.out.pool[0], w.out.block[0], 100, nullptr, &w.error);
                   }),
        of_many(CALL(gpumem_pool_try_alloc, w.out.pool[0], 500, 0, nullptr, &w.out.block[0], nullptr)),
        ends_block("gpumem_pool_free_pointer", [](World& w) {
          return gpumem_pool_free_pointer(w.out.instance, w.out.block[0], nullptr, &w.error);
        })}});
  all.push_back({"blocks of a native stream",
                 kBoth,
                 warm(create_pool(GPUMEM_KIND_DEVICE)),
                 {of_many(CALL(gpumem_pool_alloc_native, w.out.pool[0], 700, nullptr, &w.out.block[0])),
                  ends_block("gpumem_pool_free_native",
                             [](World& w) {
                               return gpumem_pool_free_native(w.out.pool[0], w.out.block[0], nullptr,
                                                              &w.error);
                             }),
                  of_many(CALL(gpumem_pool_trim, w.out.pool[0], 0, &w.out.number[0]))}});
  all.back().idle_streams = 1;  // the default stream of the device
  // The small block is kept by the thread, the large one is marked when it is freed.
  all.push_back({"blocks of a native stream that is told by its handle",
                 kBoth,
                 warm(create_pool(GPUMEM_KIND_DEVICE, GPUMEM_POOL_TRUST_NATIVE_STREAMS),
                      {create_stream(0), get_handle()}),
                 {take_native(0, 3000), take_native(1, 9 * kMiB), give_native(0), give_native(1),
                  take_native(0, 3000), take_native(1, 9 * kMiB), give_native(1), give_native(0)},
                 expect_none_live});
  all.push_back({"a pool that gives back down to its low water",
                 kBoth,
                 {create_pool_with_low_water(), create_stream(0)},
                 {take(0, 7 * kMiB), take(1, 3000, 0), give(0), give(1, 0), info()},
                 expect_all_goes_back});
  all.back().trims = true;
  // Its work may still use what was freed behind it.
  all.push_back({"a stream that ends with frees pending",
                 kBoth,
                 warm(create_pool(GPUMEM_KIND_DEVICE), {create_stream(0), create_stream(1)}),
                 {take(0, 3000, 0), take(1, 9 * kMiB, 0),
                  DEVICE_CALL(gpumem_fill_async, w.out.stream[0], w.out.block[0], 3000, 7, 1),
                  CALL(gpumem_pool_record_use, w.out.pool[0], w.out.block[1], w.out.stream[1]), give(0, 0),
                  give(1, 0), ENDING_CALL(gpumem_stream_destroy, w.out.stream[0])},
                 [](World& w) {
                   expect_none_live(w);
                   EXPECT_EQ(take(0, 3000, 1).call(w), GPUMEM_SUCCESS);
                   EXPECT_EQ(give(0, 1).call(w), GPUMEM_SUCCESS);
                 }});
  all.back().trims = true;
  // The thread keeps the block, and no order knows of its free before the end.
  all.push_back(
      {"a pool that ends behind a free",
       kHost,
       {create_pool(GPUMEM_KIND_PAGEABLE), create_stream(0), take(0, 3000, 0),
        CALL(gpumem_pool_trim, w.out.pool[0], 0, &w.out.number[0])},
       {CALL(gpumem_host_launch, w.out.stream[0], write_late, w.out.block[0]), give(0, 0), destroy}});
  all.push_back({"a pool that looks for mistakes",
                 kBoth,
                 warm(create_pool(GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG)),
                 {take(0, 3000), block_info(), give(0)}});
  all.push_back(
      {"blocks of a capture in a pool that looks for mistakes",
       kBoth,
       {create_pool(GPUMEM_KIND_DEVICE, GPUMEM_POOL_DEBUG, 32 * kMiB), create_stream(0), capture(true)},
       {of_many({"gpumem_pool_alloc",
                 [](World& w) {
                   const gpumem_status status =
                       gpumem_pool_alloc(w.out.pool[0], 3 * kMiB, w.out.stream[0], &w.out.block[0], &w.error);
                   gpumem_pool_info now = GPUMEM_POOL_INFO_INIT;
                   if (status != GPUMEM_SUCCESS &&
                       gpumem_pool_trim(w.out.pool[0], UINT64_MAX, nullptr, nullptr) == GPUMEM_SUCCESS) {
                     EXPECT_EQ(gpumem_pool_get_info(w.out.pool[0], &now, nullptr), GPUMEM_SUCCESS);
                     EXPECT_EQ(now.live_count, 0U);
                   }
                   return status;
                 }}),
        give(0, 0)},
       [](World& w) { EXPECT_EQ(capture(false).call(w), GPUMEM_SUCCESS); }});
  // A failure leaves the capture whole: it ends well.
  all.push_back(
      {"blocks of a capture",
       kBoth,
       warm(create_pool(GPUMEM_KIND_DEVICE), {create_stream(0), create_stream(1), capture(true)}),
       {CALL(gpumem_stream_get_capture_id, w.out.stream[0], &w.out.number[0]), take(0, 3000, 0), give(0, 0),
        take(0, 3000, 0), take(1, 4 * kMiB, 0), give(1, 0), take(1, 3 * kMiB, 0),
        CALL(gpumem_pool_record_use, w.out.pool[0], w.out.block[0], w.out.stream[0]),
        CALL(gpumem_pool_record_use, w.out.pool[0], w.out.block[1], w.out.stream[1]), give(0), give(1, 0),
        info(), CALL(gpumem_pool_release_capture, w.out.pool[0], w.out.number[0], w.out.stream[1])},
       [](World& w) {
         EXPECT_EQ(capture(false).call(w), GPUMEM_SUCCESS);
         gpumem_pool_info now = GPUMEM_POOL_INFO_INIT;
         EXPECT_EQ(gpumem_pool_get_info(w.out.pool[0], &now, nullptr), GPUMEM_SUCCESS);
         EXPECT_EQ(now.live_count, 0U);
         EXPECT_EQ(now.capture_count, 0U);
       }});
  for (Scenario& scenario : all) {
    scenario.options = few_units;
    scenario.granularity = kMiB;
  }
  return all;
}

}  // namespace faults
