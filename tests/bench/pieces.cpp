// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "pieces.h"

#include <algorithm>
#include <random>
#include <vector>

#include "calls.h"

namespace bench {
namespace {

constexpr uint64_t kSizes[] = {kKiB, 4 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB, 256 * kKiB};

struct Way {
  const char* name;
  gpumem_kind to;
  gpumem_kind from;
};
constexpr Way kWays[] = {{"to_device", GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED},
                         {"to_host", GPUMEM_KIND_PINNED, GPUMEM_KIND_DEVICE},
                         {"on_device", GPUMEM_KIND_DEVICE, GPUMEM_KIND_DEVICE}};

// The same pieces on both sides: packed in the source, with gaps in the destination, in no order.
struct Batch {
  std::vector<gpumem_copy_region> regions;
  RawBatch raw;

  Batch(uint64_t count, uint64_t size, uint8_t* to, uint8_t* from, uint8_t* raw_to, uint8_t* raw_from) {
    std::vector<uint64_t> order(count);
    for (uint64_t i = 0; i < count; ++i)
      order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    for (const uint64_t i : order) {
      gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
      region.destination.pointer = to + i * 2 * size;
      region.source.pointer = from + i * size;
      region.width = size;
      regions.push_back(region);
      raw.add(raw_to + i * 2 * size, raw_from + i * size, size);
    }
  }
};

}  // namespace

void pieces(const Scene& scene, gpumem_stream stream) {
  Runner& runner = scene.runner;
  Raw& raw = scene.raw;
  const uint64_t count = runner.smoke() ? 20 : 1000;
  for (const Way& way : kWays) {
    for (const uint64_t size : kSizes) {
      const std::string name =
          std::string("pieces/") + way.name + "/" + std::to_string(count) + "x" + text_of(size);
      const std::string beside = name + "/beside_batch";
      if (!runner.wanted(name) && !runner.wanted(beside)) continue;
      const uint64_t all = count * size;
      void* to = nullptr;
      void* from = nullptr;
      must(gpumem_malloc, scene.device, way.to, 2 * all, &to);
      must(gpumem_malloc, scene.device, way.from, all, &from);
      void* const raw_to = raw.allocate(way.to, 0, 2 * all);
      void* const raw_from = raw.allocate(way.from, 0, all);
      {
        Batch batch(count, size, static_cast<uint8_t*>(to), static_cast<uint8_t*>(from),
                    static_cast<uint8_t*>(raw_to), static_cast<uint8_t*>(raw_from));
        const auto ours = [&] {
          must_succeed(gpumem_copy_regions_async(stream, batch.regions.data(), batch.regions.size(), nullptr,
                                                 nullptr));
          must_succeed(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr));
        };
        runner.time(name, ours, [&] {
          for (size_t i = 0; i < count; ++i)
            raw.enqueue_copy(batch.raw.to[i], batch.raw.from[i], size);
          raw.synchronize();
        });
        if (raw.enqueue_batch(batch.raw)) {
          raw.synchronize();
          runner.time(beside, ours, [&] {
            raw.enqueue_batch(batch.raw);
            raw.synchronize();
          });
        }
      }
      raw.free(way.from, raw_from, all);
      raw.free(way.to, raw_to, 2 * all);
      must(gpumem_free, scene.instance, from);
      must(gpumem_free, scene.instance, to);
    }
  }
}

}  // namespace bench
