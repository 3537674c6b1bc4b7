// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The benchmark program: creating memory, copies, small calls and loading, each beside the raw driver or
// operating system in the same run. It prints ratios and judges none.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>
#include <utility>

#include "access.h"
#include "calls.h"
#include "fence.h"
#include "file.h"
#include "groups.h"
#include "pageable.h"
#include "pieces.h"
#include "pool.h"
#include "ring.h"
#include "runner.h"
#include "share.h"

namespace bench {
namespace {

// Of each object that lives while pointers are queried.
constexpr uint64_t kLiveBytes = 4 * kKiB;

// Ordinary memory whose pages exist.
class Pages {
 public:
  explicit Pages(uint64_t size) : size_(size) {
    pointer_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pointer_ == MAP_FAILED) fail("mmap of " + std::to_string(size) + " bytes");
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(pointer_, size_); }
  void* get() const { return pointer_; }

 private:
  void* pointer_;
  uint64_t size_;
};

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

// The opened backend with what all cases use.
class Bench {
 public:
  Bench(const Options& options, uint64_t device_bytes) : runner(options) {
    gpumem_host_options host = GPUMEM_HOST_OPTIONS_INIT;
    // What STRICT adds has no counterpart in the raw calls.
    host.strict = GPUMEM_TOGGLE_OFF;
    host.fill = GPUMEM_TOGGLE_OFF;
    host.device_bytes = device_bytes;
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend = options.backend;
    desc.host = &host;
    must(gpumem_instance_open, &desc, &instance);
    must(gpumem_instance_get_info, instance, &opened);
    runner.set_backend(opened.backend);
    must(gpumem_device_get, instance, 0u, &device);
    must(gpumem_stream_create, device, nullptr, &stream);
    raw = opened.backend == GPUMEM_BACKEND_CUDA ? open_raw_cuda() : open_raw_host();
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() { gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr); }

  Setting setting() const {
    gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
    must(gpumem_device_get_info, device, &info);
    const int32_t version = opened.driver_version;
    const std::string driver =
        version == 0 ? "" : std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    return {opened.backend == GPUMEM_BACKEND_CUDA ? "cuda" : "host", info.name, driver, raw->name()};
  }
  Scene scene() { return {runner, *raw, instance, device}; }

  Runner runner;
  std::unique_ptr<Raw> raw;
  gpumem_instance_info opened = GPUMEM_INSTANCE_INFO_INIT;
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;
};

// ---- creating and destroying ----

template <class Work>
double seconds_of(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

constexpr uint64_t kCreateSizes[] = {4 * kKiB, 64 * kKiB, kMiB, 16 * kMiB, 256 * kMiB, kGiB};

void create_and_destroy(gpumem_device device, const gpumem_memory_desc& desc) {
  gpumem_memory memory = nullptr;
  must_succeed(gpumem_memory_create(device, &desc, &memory, nullptr));
  must_succeed(gpumem_memory_destroy(memory, nullptr));
}

void register_and_destroy(Bench& bench, const gpumem_register_desc& desc) {
  gpumem_memory memory = nullptr;
  must_succeed(gpumem_memory_register(bench.device, &desc, &memory, nullptr));
  must_succeed(gpumem_memory_destroy(memory, nullptr));
}

// As who tests on the host backend has it, with its checks and the pattern in new memory; beside memory whose
// pages are touched once.
void creating_by_default(Bench& bench) {
  const std::string name = "create_destroy/device_by_default/" + text_of(kMiB) + "/beside_touch";
  const Call touched = bench.raw->touched(kMiB);
  if (!touched || !bench.runner.wanted(kMiB) || !bench.runner.wanted(name)) return;
  gpumem_instance_desc opening = GPUMEM_INSTANCE_DESC_INIT;
  opening.backend = bench.opened.backend;
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  must(gpumem_instance_open, &opening, &instance);
  must(gpumem_device_get, instance, 0u, &device);
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB, 0);
  bench.runner.time(
      name, [&] { create_and_destroy(device, desc); }, touched);
  must(gpumem_instance_close, instance, GPUMEM_CLOSE_CHECK, nullptr);
}

void creating(Bench& bench) {
  struct Kind {
    const char* name;
    gpumem_kind kind;
    gpumem_memory_flags require;
  };
  constexpr Kind kKinds[] = {{"device", GPUMEM_KIND_DEVICE, 0},
                             {"pinned", GPUMEM_KIND_PINNED, 0},
                             {"write_combined", GPUMEM_KIND_PINNED, GPUMEM_MEMORY_WRITE_COMBINED},
                             {"managed", GPUMEM_KIND_MANAGED, 0}};
  Raw& raw = *bench.raw;
  for (const Kind& kind : kKinds) {
    for (const uint64_t size : kCreateSizes) {
      const std::string name = "create_destroy/" + std::string(kind.name) + "/" + text_of(size);
      if (!bench.runner.wanted(size) || !bench.runner.wanted(name)) continue;
      const gpumem_memory_desc desc = memory_desc(kind.kind, size, kind.require);
      bench.runner.time(
          name, [&] { create_and_destroy(bench.device, desc); },
          [&] { raw.free(kind.kind, raw.allocate(kind.kind, kind.require, size), size); });
    }
  }
  creating_by_default(bench);
  for (const uint64_t size : kCreateSizes) {
    const std::string name = "create_destroy/registered/" + text_of(size);
    if (!bench.runner.wanted(size) || !bench.runner.wanted(name)) continue;
    const Pages pages(size);
    const gpumem_register_desc desc =
        register_desc(pages.get(), size, GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED);
    bench.runner.time(
        name, [&] { register_and_destroy(bench, desc); },
        [&] {
          raw.pin(pages.get(), size);
          raw.unpin(pages.get(), size);
        });
  }
}

// ---- pinning ----

// The longest time that another thread waits for its device memory while `work` runs, and for its return.
double longest_wait(Bench& bench, const Call& work) {
  std::atomic<bool> ready{false};
  std::atomic<bool> stop{false};
  double longest = 0;
  Raw& raw = *bench.raw;
  std::thread other([&] {
    raw.prepare_thread();
    const Call call = [&] { raw.free(GPUMEM_KIND_DEVICE, raw.allocate(GPUMEM_KIND_DEVICE, 0, kMiB), kMiB); };
    call();
    ready = true;
    while (!stop)
      longest = std::max(longest, seconds_of(call));
  });
  while (!ready)
    std::this_thread::yield();
  work();
  stop = true;
  other.join();
  return longest;
}

// Making and freeing each by itself, and who waits meanwhile.
void pinning(Bench& bench) {
  Raw& raw = *bench.raw;
  for (const uint64_t size : {4 * kKiB, 2 * kMiB, 64 * kMiB, kGiB, 4 * kGiB}) {
    if (!bench.runner.wanted(size)) continue;
    gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_PINNED, size, 0);
    gpumem_memory memory = nullptr;
    void* pointer = nullptr;
    const Call create = [&] { must_succeed(gpumem_memory_create(bench.device, &desc, &memory, nullptr)); };
    const Call destroy = [&] { must_succeed(gpumem_memory_destroy(memory, nullptr)); };
    const Call allocate = [&] { pointer = raw.allocate(GPUMEM_KIND_PINNED, 0, size); };
    const Call free = [&] { raw.free(GPUMEM_KIND_PINNED, pointer, size); };
    const auto first_of = [](const Call& first, const Call& second) {
      return [&first, &second] {
        const double seconds = seconds_of(first);
        second();
        return seconds;
      };
    };
    const auto second_of = [](const Call& first, const Call& second) {
      return [&first, &second] {
        first();
        return seconds_of(second);
      };
    };
    bench.runner.clocked("pin_alloc/" + text_of(size), first_of(create, destroy), first_of(allocate, free));
    bench.runner.clocked("pin_free/" + text_of(size), second_of(create, destroy), second_of(allocate, free));
    if (size < kGiB) continue;
    const auto both = [&] {
      create();
      destroy();
    };
    const auto both_raw = [&] {
      allocate();
      free();
    };
    for (const gpumem_memory_flags flags :
         {gpumem_memory_flags{0}, gpumem_memory_flags{GPUMEM_MEMORY_IN_PIECES}}) {
      const std::string pieces = flags == 0 ? "" : "_in_pieces";
      desc.require = flags;
      if (flags != 0)
        bench.runner.clocked("pin_alloc" + pieces + "/" + text_of(size), first_of(create, destroy), {});
      bench.runner.clocked(
          "pin_longest_wait" + pieces + "/" + text_of(size), [&] { return longest_wait(bench, both); },
          [&] { return longest_wait(bench, both_raw); });
    }
  }
  // The program's own memory, which has no pages yet.
  for (const uint64_t size : {64 * kMiB, kGiB}) {
    if (!bench.runner.wanted(size)) continue;
    const auto on_fresh = [size](const std::function<void(void*)>& pin,
                                 const std::function<void(void*)>& unpin) {
      void* const fresh = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (fresh == MAP_FAILED) fail("mmap");
      const double seconds = seconds_of([&] { pin(fresh); });
      unpin(fresh);
      munmap(fresh, size);
      return seconds;
    };
    gpumem_memory memory = nullptr;
    bench.runner.clocked(
        "pin_register_untouched/" + text_of(size),
        [&] {
          return on_fresh(
              [&](void* fresh) {
                const gpumem_register_desc desc =
                    register_desc(fresh, size, GPUMEM_MEMORY_PORTABLE | GPUMEM_MEMORY_MAPPED);
                must_succeed(gpumem_memory_register(bench.device, &desc, &memory, nullptr));
              },
              [&](void*) { must_succeed(gpumem_memory_destroy(memory, nullptr)); });
        },
        [&] {
          return on_fresh([&](void* fresh) { raw.pin(fresh, size); },
                          [&](void* fresh) { raw.unpin(fresh, size); });
        });
  }
}

// ---- physical memory and ranges ----

class OurRange : public RawRange {
 public:
  OurRange(Bench& bench, uint64_t size, int blocks)
      : device_(bench.device), size_(size), blocks_(static_cast<size_t>(blocks)) {
    gpumem_range_desc desc = GPUMEM_RANGE_DESC_INIT;
    desc.size = size * blocks_.size();
    must(gpumem_range_reserve, bench.instance, &desc, &range_);
    // On host it is the CPU whose rights the system keeps.
    const bool host = bench.runner.backend() == GPUMEM_BACKEND_HOST;
    access_.location = host ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE;
    access_.access = GPUMEM_ACCESS_READWRITE;
    desc_.location = access_.location;
    desc_.size = size;
  }
  OurRange(const OurRange&) = delete;
  OurRange& operator=(const OurRange&) = delete;
  ~OurRange() override { gpumem_range_release(range_, nullptr); }

  void create(int index) override {
    must_succeed(gpumem_physical_create(device_, &desc_, &block(index), nullptr));
  }
  void map(int index) override {
    must_succeed(gpumem_range_map(range_, at(index), &block(index), 1, nullptr));
    must_succeed(gpumem_range_set_access(range_, at(index), size_, &access_, 1, nullptr));
  }
  void unmap(int index) override { must_succeed(gpumem_range_unmap(range_, at(index), size_, nullptr)); }
  void release(int index) override { must_succeed(gpumem_physical_release(block(index), nullptr)); }

 private:
  gpumem_physical& block(int index) { return blocks_[static_cast<size_t>(index)]; }
  uint64_t at(int index) const { return static_cast<uint64_t>(index) * size_; }

  gpumem_device device_;
  uint64_t size_;
  std::vector<gpumem_physical> blocks_;
  gpumem_range range_ = nullptr;
  gpumem_physical_desc desc_ = GPUMEM_PHYSICAL_DESC_INIT;
  gpumem_access_desc access_ = GPUMEM_ACCESS_DESC_INIT;
};

// Seconds that growing by a block takes: what grew is given back afterwards, which does not count.
double seconds_to_grow(RawRange& range, int blocks) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < blocks; ++i) {
    range.create(i);
    range.map(i);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (int i = 0; i < blocks; ++i) {
    range.unmap(i);
    range.release(i);
  }
  return took.count() / blocks;
}

void mapping(Bench& bench) {
  constexpr uint64_t kUnit = 2 * kMiB;  // the smallest there is
  for (const uint64_t size : {kUnit, kGiB}) {
    if (bench.runner.smoke() ? size != kUnit : !bench.runner.wanted(size)) continue;
    const std::string map = "vmm/map_access_unmap/" + text_of(size);
    const std::string grow = "vmm/create_map_access/" + text_of(size);
    if (!bench.runner.wanted(map) && !bench.runner.wanted(grow)) continue;
    const int blocks = size == kUnit && !bench.runner.smoke() ? 64 : 1;
    OurRange ours(bench, size, blocks);
    const std::unique_ptr<RawRange> raw = bench.raw->reserve(size, blocks);
    const auto once = [](RawRange& range) {
      range.map(0);
      range.unmap(0);
    };
    ours.create(0);
    raw->create(0);
    bench.runner.time(
        map, [&] { once(ours); }, [&] { once(*raw); });
    ours.release(0);
    raw->release(0);
    bench.runner.clocked(
        grow, [&] { return seconds_to_grow(ours, blocks); }, [&] { return seconds_to_grow(*raw, blocks); });
  }
}

// ---- buffers ----

class OurBuffer {
 public:
  OurBuffer(Bench& bench, uint64_t size, uint64_t reserve) {
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = size;
    desc.reserve = reserve;
    must(gpumem_buffer_create, bench.device, &desc, &buffer_);
  }
  OurBuffer(const OurBuffer&) = delete;
  OurBuffer& operator=(const OurBuffer&) = delete;
  ~OurBuffer() { gpumem_buffer_destroy(buffer_, nullptr); }

  void resize(uint64_t size) { must_succeed(gpumem_buffer_resize(buffer_, size, nullptr)); }
  void set_capacity(uint64_t size) { must_succeed(gpumem_buffer_set_capacity(buffer_, size, nullptr)); }
  void sleep(gpumem_content content) {
    gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
    desc.content = content;
    must_succeed(gpumem_buffer_sleep(buffer_, &desc, nullptr));
  }
  void wake() { must_succeed(gpumem_buffer_wake(buffer_, nullptr, nullptr)); }

 private:
  gpumem_buffer buffer_ = nullptr;
};

// Beside each growth, the raw calls for one block of that size. On host a block of a device is compared with
// one that the CPU may use.
void buffers(Bench& bench) {
  constexpr uint64_t kUnit = 2 * kMiB;
  constexpr int kSteps = 64;
  for (const uint64_t size : {kUnit, kGiB, 8 * kGiB}) {
    if (bench.runner.smoke() ? size != kUnit : !bench.runner.wanted(size)) continue;
    const int steps = size == kUnit ? (bench.runner.smoke() ? 1 : kSteps) : 1;
    const std::string grow = "buffer/grow/" + text_of(size);
    const std::string ahead = "buffer/grow_ahead/" + text_of(size);
    if (!bench.runner.wanted(grow) && !bench.runner.wanted(ahead)) continue;
    const uint64_t most = size * (static_cast<uint64_t>(steps) + 1);
    OurBuffer ours(bench, size, most);
    const std::unique_ptr<RawRange> raw = bench.raw->reserve(size, steps);
    const auto grown = [&] {
      const double took = seconds_of([&] {
        for (uint64_t now = size; now < most; now += size)
          ours.resize(now + size);
      });
      ours.resize(size);
      return took / steps;
    };
    bench.runner.clocked(grow, grown, [&] { return seconds_to_grow(*raw, steps); });
    if (size != kUnit) continue;
    bench.runner.clocked(ahead,
                         [&] {
                           ours.set_capacity(most);
                           return grown();
                         },
                         {});
  }
}

// Buffers that together have a GiB sleep and wake. Beside it, the raw copy of as many bytes to pinned memory
// that is there already, and back.
void sleeping(Bench& bench) {
  const uint64_t size = bench.runner.smoke() ? 2 * kMiB : 128 * kMiB;
  const uint64_t count = bench.runner.smoke() ? 1 : 8;
  if (!bench.runner.any_wanted("buffer/sleep") && !bench.runner.any_wanted("buffer/wake")) return;
  if (!bench.runner.smoke() && !bench.runner.wanted(count * size)) return;
  std::vector<std::unique_ptr<OurBuffer>> ours;
  for (uint64_t i = 0; i < count; ++i)
    ours.push_back(std::make_unique<OurBuffer>(bench, size, size));
  void* const there = bench.raw->allocate(GPUMEM_KIND_DEVICE, 0, count * size);
  void* const here = bench.raw->allocate(GPUMEM_KIND_PINNED, 0, count * size);
  const auto copy = [&](void* to, const void* from) {
    return seconds_of([&] { bench.raw->copy(to, from, count * size); });
  };
  const auto all_sleep = [&](gpumem_content content) {
    return seconds_of([&] {
      for (const auto& buffer : ours)
        buffer->sleep(content);
    });
  };
  const auto all_wake = [&] {
    return seconds_of([&] {
      for (const auto& buffer : ours)
        buffer->wake();
    });
  };
  for (const gpumem_content content : {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE}) {
    const char* const name = content == GPUMEM_CONTENT_PINNED ? "pinned" : "pageable";
    bench.runner.clocked(
        std::string("buffer/sleep/") + name + "/" + text_of(count * size),
        [&] {
          const double took = all_sleep(content);
          all_wake();
          return took;
        },
        [&] { return copy(here, there); });
    bench.runner.clocked(
        std::string("buffer/wake/") + name + "/" + text_of(count * size),
        [&] {
          all_sleep(content);
          return all_wake();
        },
        [&] { return copy(there, here); });
  }
  bench.raw->free(GPUMEM_KIND_PINNED, here, count * size);
  bench.raw->free(GPUMEM_KIND_DEVICE, there, count * size);
}

// ---- copies ----

constexpr uint64_t kCopySizes[] = {4 * kKiB, 64 * kKiB, 256 * kKiB, kMiB,
                                   4 * kMiB, 16 * kMiB, 64 * kMiB,  256 * kMiB};

enum class Place { kPageable, kPinned, kWriteCombined, kRegistered, kDevice };

const char* name_of(Place place) {
  switch (place) {
    case Place::kPageable:
      return "pageable";
    case Place::kPinned:
      return "pinned";
    case Place::kWriteCombined:
      return "write_combined";
    case Place::kRegistered:
      return "registered";
    case Place::kDevice:
      return "device";
  }
  return "";
}

// An operand for either side, each made by the calls of that side.
class Operand {
 public:
  Operand(Bench& bench, Place place, uint64_t size) : raw_(*bench.raw), place_(place), size_(size) {
    kind_ = place == Place::kDevice ? GPUMEM_KIND_DEVICE : GPUMEM_KIND_PINNED;
    if (place == Place::kPageable || place == Place::kRegistered) {
      our_pages_ = std::make_unique<Pages>(size);
      raw_pages_ = std::make_unique<Pages>(size);
      ours_ = our_pages_->get();
      raw_pointer_ = raw_pages_->get();
    }
    if (place == Place::kPageable) return;
    if (place == Place::kRegistered) {
      const gpumem_register_desc desc = register_desc(ours_, size, 0);
      must(gpumem_memory_register, bench.device, &desc, &memory_);
      raw_.pin(raw_pointer_, size);
      return;
    }
    const gpumem_memory_flags require = place == Place::kWriteCombined ? GPUMEM_MEMORY_WRITE_COMBINED : 0;
    const gpumem_memory_desc desc = memory_desc(kind_, size, require);
    must(gpumem_memory_create, bench.device, &desc, &memory_);
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    must(gpumem_memory_get_info, memory_, &info);
    ours_ = info.host_pointer != nullptr ? info.host_pointer : info.device_pointer;
    raw_pointer_ = raw_.allocate(kind_, require, size);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  ~Operand() {
    gpumem_memory_destroy(memory_, nullptr);
    if (place_ == Place::kRegistered) raw_.unpin(raw_pointer_, size_);
    if (raw_pages_ == nullptr) raw_.free(kind_, raw_pointer_, size_);
  }
  void* ours() const { return ours_; }
  void* raw() const { return raw_pointer_; }

 private:
  Raw& raw_;
  Place place_;
  uint64_t size_;
  gpumem_kind kind_;
  std::unique_ptr<Pages> our_pages_;
  std::unique_ptr<Pages> raw_pages_;
  gpumem_memory memory_ = nullptr;
  void* ours_ = nullptr;
  void* raw_pointer_ = nullptr;
};

// The last byte arrives; otherwise a rate would mean nothing.
void check_copy(Bench& bench, const Operand& to, const Operand& from, uint64_t size, const Call& copy) {
  constexpr uint8_t kMark = 0x5A;
  uint8_t last = 0;
  const uint8_t* const end = static_cast<uint8_t*>(to.ours()) + size - 1;
  must(gpumem_fill, bench.instance, from.ours(), size, uint32_t{kMark}, 1u);
  must(gpumem_fill, bench.instance, to.ours(), size, 0u, 1u);
  copy();
  must(gpumem_copy, bench.instance, &last, end, uint64_t{1}, nullptr);
  if (last != kMark) fail("a copy did not arrive");
}

void copies(Bench& bench) {
  constexpr std::pair<Place, Place> kPaths[] = {
      {Place::kPageable, Place::kDevice},      {Place::kDevice, Place::kPageable},
      {Place::kPinned, Place::kDevice},        {Place::kDevice, Place::kPinned},
      {Place::kWriteCombined, Place::kDevice}, {Place::kDevice, Place::kWriteCombined},
      {Place::kRegistered, Place::kDevice},    {Place::kDevice, Place::kRegistered},
      {Place::kDevice, Place::kDevice},        {Place::kPinned, Place::kPinned},
      {Place::kPageable, Place::kPinned},      {Place::kPageable, Place::kPageable}};
  Raw& raw = *bench.raw;
  for (const auto& [source, destination] : kPaths) {
    const std::string path = "copy/" + std::string(name_of(source)) + "_to_" + name_of(destination);
    for (const uint64_t size : kCopySizes) {
      const std::string sync = path + "/sync/" + text_of(size);
      const std::string async = path + "/async/" + text_of(size);
      if (!bench.runner.wanted(size) || !(bench.runner.wanted(sync) || bench.runner.wanted(async))) continue;
      const Operand from(bench, source, size);
      const Operand to(bench, destination, size);
      const Call copy = [&] {
        must_succeed(gpumem_copy(bench.instance, to.ours(), from.ours(), size, nullptr, nullptr));
      };
      const Call enqueue = [&] {
        must_succeed(gpumem_copy_async(bench.stream, to.ours(), from.ours(), size, nullptr, nullptr));
        must_succeed(gpumem_stream_synchronize(bench.stream, GPUMEM_TIMEOUT_INFINITE, nullptr));
      };
      check_copy(bench, to, from, size, copy);
      check_copy(bench, to, from, size, enqueue);
      bench.runner.rate(sync, size, copy, [&] { raw.copy(to.raw(), from.raw(), size); });
      bench.runner.rate(async, size, enqueue, [&] {
        raw.enqueue_copy(to.raw(), from.raw(), size);
        raw.synchronize();
      });
    }
  }
}

// ---- managed memory ----

// There and back again: a prefetch that moves nothing would be measured otherwise.
void managed(Bench& bench, bool cuda) {
  const uint64_t size = bench.runner.smoke() ? 64 * kKiB : cuda ? kGiB : 16 * kMiB;
  const std::string towards[] = {"managed_prefetch/to_host/" + text_of(size),
                                 "managed_prefetch/to_device/" + text_of(size)};
  const std::string advising = "managed_advise/set_and_unset/" + text_of(size);
  const std::string guarding = "managed_host_access/begin_and_end";
  const bool any = bench.runner.wanted(towards[0]) || bench.runner.wanted(towards[1]) ||
                   bench.runner.wanted(advising) || bench.runner.wanted(guarding);
  if (!bench.runner.wanted(size) || !any) return;
  Raw& raw = *bench.raw;
  void* ours = nullptr;
  must(gpumem_malloc, bench.device, GPUMEM_KIND_MANAGED, size, &ours);
  void* const theirs = raw.allocate(GPUMEM_KIND_MANAGED, 0, size);
  must(gpumem_fill, bench.instance, ours, size, 1u, 1u);
  std::memset(theirs, 1, size);
  const auto prefetch = [&](gpumem_location where) {
    must_succeed(gpumem_managed_prefetch(bench.stream, ours, size, where, 0, nullptr));
    must_succeed(gpumem_stream_synchronize(bench.stream, GPUMEM_TIMEOUT_INFINITE, nullptr));
  };
  const Call to_device = raw.enqueue_prefetch(theirs, size, true);
  const Call to_host = raw.enqueue_prefetch(theirs, size, false);
  const auto seconds = [](const auto& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (const bool there : {true, false}) {
    const auto timed = [&] {
      prefetch(there ? GPUMEM_LOCATION_HOST : GPUMEM_LOCATION_DEVICE);
      return seconds([&] { prefetch(there ? GPUMEM_LOCATION_DEVICE : GPUMEM_LOCATION_HOST); });
    };
    const auto timed_raw = [&] {
      (there ? to_host : to_device)();
      raw.synchronize();
      return seconds([&] {
        (there ? to_device : to_host)();
        raw.synchronize();
      });
    };
    bench.runner.clocked(towards[there ? 1 : 0], timed,
                         to_device ? Runner::Clock(timed_raw) : Runner::Clock());
  }
  bench.runner.time(
      advising,
      [&] {
        for (const gpumem_advice advice : {GPUMEM_ADVICE_SET_READ_MOSTLY, GPUMEM_ADVICE_UNSET_READ_MOSTLY}) {
          must_succeed(
              gpumem_managed_advise(bench.instance, ours, size, advice, GPUMEM_LOCATION_HOST, 0, nullptr));
        }
      },
      raw.advise(theirs, size));
  bench.runner.time(guarding,
                    [&] {
                      must_succeed(gpumem_managed_begin_host_access(bench.instance, ours, nullptr));
                      must_succeed(gpumem_managed_end_host_access(bench.instance, ours, nullptr));
                    },
                    {});
  raw.free(GPUMEM_KIND_MANAGED, theirs, size);
  must(gpumem_free, bench.instance, ours);
}

// ---- small calls ----

void small_calls(Bench& bench) {
  gpumem_memory memory = nullptr;
  const gpumem_memory_desc desc = memory_desc(GPUMEM_KIND_DEVICE, kMiB, 0);
  must(gpumem_memory_create, bench.device, &desc, &memory);
  gpumem_memory_info memory_info = GPUMEM_MEMORY_INFO_INIT;
  must(gpumem_memory_get_info, memory, &memory_info);
  gpumem_pointer_info pointer_info = GPUMEM_POINTER_INFO_INIT;
  gpumem_event event = nullptr;
  must(gpumem_event_create, bench.device, nullptr, &event);
  auto* const pointer = static_cast<uint8_t*>(memory_info.device_pointer) + 1000;
  void* const raw_pointer = bench.raw->allocate(GPUMEM_KIND_DEVICE, 0, kMiB);

  const Call settle = [&] {
    must_succeed(gpumem_stream_synchronize(bench.stream, GPUMEM_TIMEOUT_INFINITE, nullptr));
    bench.raw->synchronize();
  };
  const auto measure = [&](const char* name, SmallCall which, const Call& ours) {
    bench.runner.time(std::string("call/") + name, ours,
                      bench.raw->small_call(which, static_cast<uint8_t*>(raw_pointer) + 1000), settle);
  };
  measure("pointer_get_info", SmallCall::kPointerQuery,
          [&] { must_succeed(gpumem_pointer_get_info(bench.instance, pointer, &pointer_info, nullptr)); });
  measure("memory_get_info", SmallCall::kMemoryQuery,
          [&] { must_succeed(gpumem_memory_get_info(memory, &memory_info, nullptr)); });
  measure("stream_query", SmallCall::kStreamQuery,
          [&] { must_succeed(gpumem_stream_query(bench.stream, nullptr)); });
  measure("event_record", SmallCall::kEventRecord,
          [&] { must_succeed(gpumem_event_record(event, bench.stream, nullptr)); });
  measure("empty_copy", SmallCall::kEmptyCopy,
          [&] { must_succeed(gpumem_copy_async(bench.stream, pointer, pointer, 0, nullptr, nullptr)); });

  bench.raw->free(GPUMEM_KIND_DEVICE, raw_pointer, kMiB);
  must(gpumem_event_destroy, event);
  must(gpumem_memory_destroy, memory);
}

// ---- calls of many threads ----

// What one thread uses of its own, as the raw side does.
class Own {
 public:
  explicit Own(Bench& bench) {
    gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
    desc.flags = GPUMEM_EVENT_DISABLE_TIMING;
    must(gpumem_stream_create, bench.device, nullptr, &stream);
    must(gpumem_event_create, bench.device, &desc, &event);
    must(gpumem_malloc, bench.device, GPUMEM_KIND_DEVICE, uint64_t{4096}, &device);
    must(gpumem_malloc, bench.device, GPUMEM_KIND_PINNED, uint64_t{4096}, &host);
    instance_ = bench.instance;
  }
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;
  ~Own() {
    settle();
    gpumem_free(instance_, host, nullptr);
    gpumem_free(instance_, device, nullptr);
    gpumem_event_destroy(event, nullptr);
    gpumem_stream_destroy(stream, nullptr);
  }
  void settle() const { must_succeed(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr)); }

  gpumem_stream stream = nullptr;
  gpumem_event event = nullptr;
  void* device = nullptr;
  void* host = nullptr;

 private:
  gpumem_instance instance_ = nullptr;
};

// Seconds that a call takes on average while as many threads make it at once. `run(start)` is a thread's
// part: it gets ready, calls start(), and returns the seconds that one of its calls took.
template <class Run>
double seconds_per_call(int threads, Run run) {
  std::barrier together(threads);
  std::vector<double> seconds(static_cast<size_t>(threads));
  std::vector<std::thread> crew;
  for (int i = 0; i < threads; ++i) {
    crew.emplace_back([&, i] { seconds[static_cast<size_t>(i)] = run([&] { together.arrive_and_wait(); }); });
  }
  for (std::thread& thread : crew)
    thread.join();
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / threads;
}

// Rows of calls with `settle` between them, which is not timed. The thread is new, and its processor may have
// slept: calls of `warm_up` come first.
template <class Start, class Function, class Settle>
double time_rows(std::chrono::milliseconds warm_up, Start start, int rows, int calls, Function call,
                 Settle settle) {
  using Clock = std::chrono::steady_clock;
  const auto warm = Clock::now() + warm_up;
  do {
    for (int i = 0; i < std::min(calls, 200); ++i)
      call();
    settle();
  } while (Clock::now() < warm);
  start();
  Clock::duration total{};
  for (int row = 0; row < rows; ++row) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i)
      call();
    total += Clock::now() - begin;
    settle();
  }
  return std::chrono::duration<double>(total).count() / rows / calls;
}

void thread_calls(Bench& bench) {
  struct Case {
    const char* name;
    ThreadCall which;
    int calls;  // in a row: not so many that the stream is full
  };
  constexpr Case kCases[] = {{"copy_4KiB_async", ThreadCall::kCopy, 200},
                             {"fill_4KiB_async", ThreadCall::kFill, 200},
                             {"event_record", ThreadCall::kRecord, 200},
                             {"event_query", ThreadCall::kEventQuery, 2000},
                             {"stream_query", ThreadCall::kStreamQuery, 2000}};
  const int rows = bench.runner.smoke() ? 1 : bench.runner.quick() ? 5 : 20;
  for (const Case& one : kCases) {
    for (const int threads : kThreads) {
      const auto ours = [&] {
        return seconds_per_call(threads, [&](auto start) {
          bench.raw->prepare_thread();
          const Own own(bench);
          const auto settle = [&] { own.settle(); };
          const auto time = [&](auto call) {
            return time_rows(bench.runner.warm_up(), start, rows, one.calls, call, settle);
          };
          switch (one.which) {
            case ThreadCall::kCopy:
              return time([&] {
                must_succeed(gpumem_copy_async(own.stream, own.device, own.host, 4096, nullptr, nullptr));
              });
            case ThreadCall::kFill:
              return time(
                  [&] { must_succeed(gpumem_fill_async(own.stream, own.device, 4096, 7, 1, nullptr)); });
            case ThreadCall::kRecord:
              return time([&] { must_succeed(gpumem_event_record(own.event, own.stream, nullptr)); });
            case ThreadCall::kEventQuery:
              return time([&] { must_succeed(gpumem_event_query(own.event, nullptr)); });
            default:
              return time([&] { must_succeed(gpumem_stream_query(own.stream, nullptr)); });
          }
        });
      };
      const auto raw = [&] {
        return seconds_per_call(threads, [&](auto start) {
          bench.raw->prepare_thread();
          const ThreadWork work = bench.raw->thread_work(one.which);
          return time_rows(bench.runner.warm_up(), start, rows, one.calls, work.call, work.settle);
        });
      };
      const bool compared = bench.raw->thread_work(one.which).call != nullptr;
      bench.runner.clocked("threads_" + std::to_string(threads) + "/" + one.name, ours,
                           compared ? Runner::Clock(raw) : Runner::Clock());
    }
  }
}

// A mark beside an event's record, and its poll beside an event's query.
void fences(Bench& bench, bool cuda) {
  struct Case {
    const char* name;
    ThreadCall raw;
    Call FenceWork::*call;
    int calls;
  };
  constexpr Case kCases[] = {{"fence_mark", ThreadCall::kRecord, &FenceWork::mark, 200},
                             {"fence_poll", ThreadCall::kEventQuery, &FenceWork::poll, 20'000}};
  const int rows = bench.runner.smoke() ? 1 : bench.runner.quick() ? 5 : 20;
  std::unique_ptr<FenceBench> opened;
  for (const Case& one : kCases) {
    for (const int threads : kThreads) {
      const std::string name = "threads_" + std::to_string(threads) + "/" + one.name;
      if (!bench.runner.wanted(name)) continue;
      if (opened == nullptr) opened = open_fence_bench(cuda);
      if (opened == nullptr) {
        note("fence is left out: only the program in the build folder measures it");
        return;
      }
      const auto ours = [&] {
        return seconds_per_call(threads, [&](auto start) {
          bench.raw->prepare_thread();
          const FenceWork work = opened->thread_work();
          work.mark();
          work.settle();
          return time_rows(bench.runner.warm_up(), start, rows, one.calls, work.*one.call, work.settle);
        });
      };
      const auto raw = [&] {
        return seconds_per_call(threads, [&](auto start) {
          bench.raw->prepare_thread();
          const ThreadWork work = bench.raw->thread_work(one.raw);
          return time_rows(bench.runner.warm_up(), start, rows, one.calls, work.call, work.settle);
        });
      };
      const bool compared = bench.raw->thread_work(one.raw).call != nullptr;
      bench.runner.clocked(name, ours, compared ? Runner::Clock(raw) : Runner::Clock());
    }
  }
}

// ---- queries while much lives ----

// Allocates until as many live, a page each: that is where the driver packs them no closer, so that a query
// finds one at once. Says what stopped it, which may be a limit of the system; then fewer live.
void make_live(Bench& bench, uint64_t count, std::vector<void*>& live) {
  const auto begin = std::chrono::steady_clock::now();
  const size_t before = live.size();
  live.reserve(count);
  while (live.size() < count) {
    void* pointer = nullptr;
    gpumem_error error = GPUMEM_ERROR_INIT;
    const gpumem_status status =
        gpumem_malloc(bench.device, GPUMEM_KIND_DEVICE, kLiveBytes, &pointer, &error);
    if (GPUMEM_FAILED(status)) {
      note("live_%llu is left out: no more than %zu allocations: %s: %s",
           static_cast<unsigned long long>(count), live.size(), gpumem_status_name(status), error.message);
      return;
    }
    live.push_back(pointer);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (live.size() - before > 1000) {
    note("made %zu device allocations of 4 KiB in %.1f s", live.size() - before, took.count());
  }
}

void queries(Bench& bench) {
  constexpr int kCalls = 1'000'000;
  const int calls = bench.runner.smoke() ? 1000 : bench.runner.quick() ? kCalls / 10 : kCalls;
  std::vector<void*> live;
  for (const uint64_t count : {uint64_t{1}, uint64_t{10'000}, uint64_t{1'000'000}}) {
    const std::string name = "live_" + std::to_string(count) + "/";
    const auto case_of = [&](int threads) {
      return name + "threads_" + std::to_string(threads) + "/pointer_get_info";
    };
    const bool wanted = std::any_of(std::begin(kThreads), std::end(kThreads),
                                    [&](int threads) { return bench.runner.wanted(case_of(threads)); });
    if (count > bench.runner.live_max() || !wanted) continue;
    make_live(bench, count, live);
    if (live.size() < count) break;
    // Addresses that are asked about again and again, as a program does it: 64 of those that live.
    std::array<void*, 64> asked{};
    for (size_t i = 0; i < asked.size(); ++i)
      asked[i] = static_cast<uint8_t*>(live[i * live.size() / asked.size()]) + i;
    const auto query = [&](auto start) {
      gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
      size_t next = 0;
      return time_rows(
          bench.runner.warm_up(), start, 1, calls,
          [&] {
            must_succeed(
                gpumem_pointer_get_info(bench.instance, asked[next++ % asked.size()], &info, nullptr));
          },
          [] {});
    };
    for (const int threads : kThreads) {
      const auto raw = [&] {
        return seconds_per_call(threads, [&](auto start) {
          bench.raw->prepare_thread();
          const ThreadWork work = bench.raw->thread_work(ThreadCall::kPointerQuery);
          return time_rows(bench.runner.warm_up(), start, 1, calls / 20, work.call, work.settle);
        });
      };
      const bool compared = bench.raw->thread_work(ThreadCall::kPointerQuery).call != nullptr;
      bench.runner.clocked(
          case_of(threads), [&] { return seconds_per_call(threads, query); },
          compared ? Runner::Clock(raw) : Runner::Clock());
    }
  }
  for (const int threads : kThreads) {
    const auto look = [&](auto start) {
      gpumem_device device = nullptr;
      return time_rows(
          bench.runner.warm_up(), start, 1, calls,
          [&] { must_succeed(gpumem_device_get(bench.instance, 0, &device, nullptr)); }, [] {});
    };
    bench.runner.clocked("threads_" + std::to_string(threads) + "/device_get",
                         [&] { return seconds_per_call(threads, look); }, {});
  }
  for (void* const pointer : live)
    must(gpumem_free, bench.instance, pointer);
}

// ---- loading ----

// Seconds that a dlopen takes in a process of its own.
double seconds_to_load(const std::string& loader, const std::string& library) {
  const std::string command = "'" + loader + "' '" + library + "'";
  FILE* const pipe = popen(command.c_str(), "r");
  double microseconds = 0;
  const bool read = pipe != nullptr && std::fscanf(pipe, "%lf", &microseconds) == 1;
  if (pipe == nullptr || pclose(pipe) != 0 || !read) fail("cannot run " + command);
  return microseconds / 1e6;
}

// The helper programs and libraries lie beside this program, or where the build has put them.
void loading(Bench& bench) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string loader = folder / "bench_loader";
  const std::string empty = folder / "libbench_empty.so";
  // Not installed; and with a sanitizer inside, the library loads into no other program.
  if (!std::filesystem::exists(loader)) {
    note("load is left out: only the program in the build folder measures it");
    return;
  }
  std::string ours;
  FILE* const maps = std::fopen("/proc/self/maps", "r");
  char line[4096];
  while (maps != nullptr && ours.empty() && std::fgets(line, sizeof line, maps) != nullptr) {
    const char* const path = std::strchr(line, '/');
    if (path != nullptr && std::strstr(path, "libgpumem.so") != nullptr)
      ours.assign(path, std::strcspn(path, "\n"));
  }
  if (maps != nullptr) std::fclose(maps);
  bench.runner.clocked(
      "dlopen", [&] { return seconds_to_load(loader, ours); },
      [&] { return seconds_to_load(loader, empty); });
}

// ---- the program ----

struct Group {
  const char* name;
  const char* what;
  void (*run)(Bench& bench, const Options& options);
};

bool on_cuda(const Bench& bench) { return bench.runner.backend() == GPUMEM_BACKEND_CUDA; }

constexpr Group kGroups[] = {
    {"create", "creating and destroying each kind of memory",
     [](Bench& bench, const Options&) { creating(bench); }},
    {"pin", "pinned memory: making and freeing it, and who waits meanwhile",
     [](Bench& bench, const Options&) { pinning(bench); }},
    {"map", "physical memory in a range of addresses", [](Bench& bench, const Options&) { mapping(bench); }},
    {"buffer", "buffers that grow and sleep",
     [](Bench& bench, const Options&) {
       buffers(bench);
       sleeping(bench);
     }},
    {"group", "groups that sleep and wake, and growth that a thread prepares",
     [](Bench& bench, const Options&) { groups(bench.scene()); }},
    {"share", "memory of a second process", [](Bench& bench, const Options&) { share(bench.scene()); }},
    {"ring", "hand-overs to a second process", [](Bench& bench, const Options&) { rings(bench.scene()); }},
    {"pool", "blocks of a pool, by 1 to 16 threads",
     [](Bench& bench, const Options&) { pools(bench.scene()); }},
    {"trace", "recorded allocations over a pool: memory reserved and live",
     [](Bench& bench, const Options& options) { traces(bench.scene(), options.traces); }},
    {"copy", "copies between any two kinds of memory, by size",
     [](Bench& bench, const Options&) { copies(bench); }},
    {"access", "a kernel that reads or writes memory of each kind in place",
     [](Bench& bench, const Options&) { access(bench.scene()); }},
    {"pieces", "batches of 1,000 small copies",
     [](Bench& bench, const Options&) { pieces(bench.scene(), bench.stream); }},
    {"pageable", "copies of ordinary memory, by size",
     [](Bench& bench, const Options&) { pageable(bench.scene(), bench.stream); }},
    {"file", "copies between files and a device", [](Bench& bench, const Options&) { files(bench.scene()); }},
    {"pageable_setting", "the same with each setting of the library's threads",
     [](Bench& bench, const Options&) { pageable_settings(bench.scene()); }},
    {"managed", "prefetch and advice for managed memory",
     [](Bench& bench, const Options&) { managed(bench, on_cuda(bench)); }},
    {"call", "single small calls", [](Bench& bench, const Options&) { small_calls(bench); }},
    {"threads", "calls of 1 to 16 threads at once",
     [](Bench& bench, const Options&) { thread_calls(bench); }},
    {"fence", "marks in a stream", [](Bench& bench, const Options&) { fences(bench, on_cuda(bench)); }},
    {"query", "pointer queries while much lives, by 1 to 16 threads",
     [](Bench& bench, const Options&) { queries(bench); }},
    {"load", "loading the library", [](Bench& bench, const Options&) { loading(bench); }},
};

int list() {
  for (const Group& group : kGroups)
    std::printf("%-18s%s\n", group.name, group.what);
  return 0;
}

int usage() {
  std::fputs(
      "Usage: gpumem_bench [--backend host|cuda|any] [--group NAME]... [--list]\n"
      "                    [--quick] [--only TEXT] [--repeat N] [--max-size MIB]\n"
      "                    [--live N] [--traces FOLDER] [--json FILE] [--smoke]\n"
      "\n"
      "Measures gpumem beside the raw driver or operating system in one run and prints\n"
      "for each case: name, ours, raw, ratio (ours / raw) and unit, and in a line below\n"
      "the spread of both. Each number is a median of rows of calls that take turns.\n"
      "`gpumem bench` runs it, and makes a report of the results.\n"
      "\n"
      "  --backend   host (default), cuda, or any\n"
      "  --group     only this group; repeatable\n"
      "  --list      list the groups\n"
      "  --quick     at most 5 rows, and nothing larger than 64 MiB\n"
      "  --only      only the cases with this text in their names\n"
      "  --repeat    rows of calls for each side; 15 if not given. Slow cases take\n"
      "              fewer, but at least 5\n"
      "  --max-size  leave out cases with more memory than this\n"
      "  --live      most objects that live while pointers are queried: 10,000 if not\n"
      "              given, at most 1,000,000. The host backend needs two mappings for\n"
      "              each, and the system allows vm.max_map_count\n"
      "  --traces    a folder with recorded allocations, as CSV: op,id,size,stream\n"
      "  --json      write the results to a file too\n"
      "  --smoke     each case once and small, only to see that it works\n",
      stdout);
  return 0;
}

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

gpumem_backend backend_of(const std::string& name) {
  if (name == "cuda") return GPUMEM_BACKEND_CUDA;
  if (name == "any") return GPUMEM_BACKEND_ANY;
  if (name != "host") throw UsageError("--backend is any, cuda or host, not " + name);
  return GPUMEM_BACKEND_HOST;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--smoke" || word == "--quick") {
      (word == "--smoke" ? options.smoke : options.quick) = true;
      continue;
    }
    if (++i == argc) throw UsageError(word + " needs a value, or is no option");
    const std::string value = argv[i];
    const auto number = [&] {
      const int read = std::atoi(value.c_str());
      if (read <= 0) throw UsageError(word + " takes a number from 1, not " + value);
      return static_cast<uint64_t>(read);
    };
    if (word == "--backend") {
      options.backend = backend_of(value);
    } else if (word == "--group") {
      if (std::none_of(std::begin(kGroups), std::end(kGroups),
                       [&](const Group& group) { return value == group.name; }))
        throw UsageError("there is no group " + value + " (--list lists them)");
      options.groups.push_back(value);
    } else if (word == "--only") {
      options.only = value;
    } else if (word == "--traces") {
      if (!std::filesystem::is_directory(value)) throw UsageError("--traces takes a folder, not " + value);
      options.traces = value;
    } else if (word == "--json") {
      options.json = value;
    } else if (word == "--repeat") {
      options.repeat = static_cast<int>(number());
    } else if (word == "--live") {
      options.live_max = number();
    } else if (word == "--max-size") {
      options.max_size = number() * kMiB;
    } else {
      throw UsageError("there is no option " + word);
    }
  }
  return options;
}

int run(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (argc == 2 && (first == "--help" || first == "-h")) return usage();
  if (argc == 2 && first == "--list") return list();
  try {
    if (argc == 3 && first == "--share-peer") return share_peer(backend_of(argv[2]));
    if (argc == 3 && first == "--ring-peer") return ring_peer(backend_of(argv[2]));
    const Options options = parse(argc, argv);
    // Recorded programs take much, and touch nothing.
    const uint64_t least = (options.traces.empty() ? 2 : 64) * kGiB;
    Bench bench(options, std::max(least, options.live_max * kLiveBytes));
    const Setting setting = bench.setting();
    bench.runner.print_heading(setting);
    bool failed = false;
    for (const Group& group : kGroups) {
      if (!bench.runner.begin(group.name)) continue;
      // The others are worth their minutes all the same.
      try {
        group.run(bench, options);
      } catch (const std::exception& problem) {
        std::fprintf(stderr, "gpumem: bench: group %s: %s\n", group.name, problem.what());
        bench.runner.fail_group(problem.what());
        failed = true;
      }
    }
    if (!options.json.empty()) bench.runner.write_json(setting);
    return failed ? 1 : 0;
  } catch (const UsageError& problem) {
    std::fprintf(stderr, "gpumem: bench: %s\n", problem.what());
    return 2;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "gpumem: bench: %s\n", problem.what());
    return 1;
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const int status = bench::run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fputs("gpumem: bench: cannot write to the standard output\n", stderr);
  return status != 0 ? status : 1;
}
