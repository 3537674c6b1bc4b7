// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "pool.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "calls.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class Pool {
 public:
  Pool(const Scene& scene, gpumem_kind kind, gpumem_pool_flags flags = 0) {
    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
    desc.kind = kind;
    desc.flags = flags;
    must(gpumem_pool_create, scene.device, &desc, &pool_);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { gpumem_pool_destroy(pool_, nullptr); }
  operator gpumem_pool() const { return pool_; }  // NOLINT: stands for the handle

  void* take(uint64_t size, gpumem_stream stream = nullptr) const {
    void* pointer = nullptr;
    must_succeed(gpumem_pool_alloc(pool_, size, stream, &pointer, nullptr));
    return pointer;
  }
  void give(void* pointer, gpumem_stream stream = nullptr) const {
    must_succeed(gpumem_pool_free(pool_, pointer, stream, nullptr));
  }
  uint64_t peak_reserved() const {
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    must_succeed(gpumem_pool_get_info(pool_, &info, nullptr));
    return info.peak_reserved_bytes;
  }

 private:
  gpumem_pool pool_ = nullptr;
};

// Seconds of one call of `work(i)` while as many threads make it; `begin()` makes a thread's `work`.
template <class Begin>
double in_threads(int threads, int calls, Begin begin) {
  std::barrier together(threads);
  std::vector<double> seconds(static_cast<size_t>(threads));
  std::vector<std::thread> crew;
  for (int t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      auto work = begin();
      for (int i = 0; i < std::min(calls, 1000); ++i)
        work(i);
      together.arrive_and_wait();
      const auto start = Clock::now();
      for (int i = 0; i < calls; ++i)
        work(i);
      seconds[static_cast<size_t>(t)] = since(start) / calls;
      together.arrive_and_wait();
    });
  }
  for (std::thread& thread : crew)
    thread.join();
  double total = 0;
  for (const double one : seconds)
    total += one;
  return total / threads;
}

const char* text_of(gpumem_kind kind) {
  return kind == GPUMEM_KIND_DEVICE ? "device" : kind == GPUMEM_KIND_PINNED ? "pinned" : "pageable";
}

std::string text_of_size(uint64_t size) {
  return size < kKiB ? std::to_string(size) + "B" : bench::text_of(size);
}

// ---- pairs ----

// Pinned memory is made and freed by the driver or the system itself, which have no pool of it.
PoolWork beside(Raw& raw, gpumem_kind kind, uint64_t size) {
  if (kind != GPUMEM_KIND_PINNED) return raw.pool_work(kind == GPUMEM_KIND_PAGEABLE);
  return {[&raw, kind](uint64_t bytes) { return raw.allocate(kind, 0, bytes); },
          [&raw, kind, size](void* block) { raw.free(kind, block, size); }};
}

void pairs(const Scene& scene) {
  const int calls = scene.runner.smoke() ? 100 : scene.runner.quick() ? 20'000 : 200'000;
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_PAGEABLE}) {
    for (const uint64_t size : {uint64_t{64}, 4 * kKiB}) {
      if (size == 64 && kind != GPUMEM_KIND_PAGEABLE) continue;
      for (const int threads : kThreads) {
        for (const bool in_stream : {false, true}) {
          if (in_stream && kind != GPUMEM_KIND_DEVICE) continue;
          const std::string name = std::string("pool/") + text_of(kind) + "/pair_" + text_of_size(size) +
                                   (in_stream ? "_in_stream" : "") + "/threads_" + std::to_string(threads);
          if (!scene.runner.wanted(name)) continue;
          const Pool pool(scene, kind);
          const auto ours = [&] {
            return in_threads(threads, calls, [&] {
              gpumem_stream stream = nullptr;
              if (in_stream) must(gpumem_stream_create, scene.device, nullptr, &stream);
              std::shared_ptr<void> end(stream, [](void* it) {
                if (it != nullptr) gpumem_stream_destroy(static_cast<gpumem_stream>(it), nullptr);
              });
              return [&pool, size, stream, end](int) { pool.give(pool.take(size, stream), stream); };
            });
          };
          const auto raw = [&] {
            // No pool keeps pinned memory for the raw side, so its pairs take a thousand times as long.
            const int raw_calls = kind == GPUMEM_KIND_PINNED ? std::min(calls, 20) : std::max(calls / 20, 50);
            return in_threads(threads, raw_calls, [&] {
              scene.raw.prepare_thread();
              return [work = beside(scene.raw, kind, size), size](int) { work.give(work.take(size)); };
            });
          };
          const bool compared = beside(scene.raw, kind, size).take != nullptr;
          scene.runner.clocked(name, ours, compared ? Runner::Clock(raw) : Runner::Clock());
        }
      }
    }
  }
}

// Loaded and not linked, so that the program needs none, and malloc() stays that of the system.
struct Mimalloc {
  void* const library = dlopen("libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void* (*const take)(size_t) = find<void*(size_t)>("mi_malloc");
  void (*const give)(void*) = find<void(void*)>("mi_free");

 private:
  template <class Function>
  Function* find(const char* name) const {
    return library != nullptr ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
  }
};

void beside_mimalloc(const Scene& scene) {
  const int calls = scene.runner.smoke() ? 100 : scene.runner.quick() ? 20'000 : 200'000;
  for (const uint64_t size : {uint64_t{64}, uint64_t{256}, kKiB, 4 * kKiB}) {
    for (const int threads : {1, 2}) {
      const std::string name =
          "pool/pageable/mimalloc_" + text_of_size(size) + "/threads_" + std::to_string(threads);
      if (!scene.runner.wanted(name)) continue;
      static const Mimalloc mimalloc;
      if (mimalloc.take == nullptr || mimalloc.give == nullptr) {
        note("pool/pageable/mimalloc is left out: there is no libmimalloc.so.2");
        return;
      }
      const Pool pool(scene, GPUMEM_KIND_PAGEABLE);
      const auto time = [&](auto pair) { return in_threads(threads, calls, [&] { return pair; }); };
      scene.runner.clocked(
          name, [&] { return time([&](int) { pool.give(pool.take(size)); }); },
          [&] { return time([size](int) { mimalloc.give(mimalloc.take(size)); }); });
    }
  }
}

// ---- a thousand live blocks ----

template <class Take, class Give>
double replace(int calls, Take take, Give give) {
  std::mt19937 random(1);
  std::vector<void*> blocks(1000);
  const auto size = [&] { return uint64_t{256} << random() % 15; };  // up to 4 MiB
  for (void*& block : blocks)
    block = take(size());
  const auto round = [&](int count) {
    for (int i = 0; i < count; ++i) {
      void*& block = blocks[random() % blocks.size()];
      give(block);
      block = take(size());
    }
  };
  round(calls / 10);
  const auto begin = Clock::now();
  round(calls);
  const double seconds = since(begin) / calls;
  for (void* const block : blocks)
    give(block);
  return seconds;
}

void replacing(const Scene& scene) {
  const int calls = scene.runner.smoke() ? 10 : scene.runner.quick() ? 30'000 : 300'000;
  for (const bool in_stream : {false, true}) {
    const std::string name = std::string("pool/device/random_replace") + (in_stream ? "_in_stream" : "");
    if (!scene.runner.wanted(name)) continue;
    const Pool pool(scene, scene.runner.smoke() ? GPUMEM_KIND_PAGEABLE : GPUMEM_KIND_DEVICE);
    gpumem_stream stream = nullptr;
    if (in_stream) must(gpumem_stream_create, scene.device, nullptr, &stream);
    const PoolWork work = scene.raw.pool_work(false);
    scene.runner.clocked(
        name,
        [&] {
          return replace(
              calls, [&](uint64_t size) { return pool.take(size, stream); },
              [&](void* block) { pool.give(block, stream); });
        },
        work.take != nullptr
            ? Runner::Clock([&] { return replace(std::max(calls / 10, 10), work.take, work.give); })
            : Runner::Clock());
    if (in_stream) must(gpumem_stream_destroy, stream);
  }
}

// ---- from thread to thread, from stream to stream ----

void handing_over(const Scene& scene) {
  const int rounds = scene.runner.smoke() ? 2 : scene.runner.quick() ? 200 : 2000;
  constexpr size_t kBlocks = 256;
  if (const std::string name = "pool/device/freed_by_another_thread"; scene.runner.wanted(name)) {
    const Pool pool(scene, GPUMEM_KIND_DEVICE);
    scene.runner.clocked(name,
                         [&] {
                           std::array<std::array<void*, kBlocks>, 2> blocks{};
                           std::barrier together(2);
                           const auto begin = Clock::now();
                           // While one thread frees a row, the other allocates the next.
                           std::thread other([&] {
                             for (int round = 0; round < rounds; ++round) {
                               together.arrive_and_wait();
                               for (void* const block : blocks[static_cast<size_t>(round % 2)])
                                 pool.give(block);
                             }
                             together.arrive_and_wait();
                           });
                           for (int round = 0; round < rounds; ++round) {
                             for (void*& block : blocks[static_cast<size_t>(round % 2)])
                               block = pool.take(4 * kKiB);
                             together.arrive_and_wait();
                           }
                           together.arrive_and_wait();
                           other.join();
                           return since(begin) / rounds / kBlocks;
                         },
                         {});
  }
  if (const std::string name = "pool/device/freed_in_another_stream"; scene.runner.wanted(name)) {
    const Pool pool(scene, GPUMEM_KIND_DEVICE);
    gpumem_stream first = nullptr;
    gpumem_stream second = nullptr;
    must(gpumem_stream_create, scene.device, nullptr, &first);
    must(gpumem_stream_create, scene.device, nullptr, &second);
    scene.runner.clocked(name,
                         [&] {
                           const int calls = rounds * 100;
                           const auto begin = Clock::now();
                           for (int i = 0; i < calls; ++i)
                             pool.give(pool.take(4 * kKiB, first), second);
                           return since(begin) / calls;
                         },
                         {});
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    must_succeed(gpumem_pool_get_info(pool, &info, nullptr));
    if (!scene.runner.smoke()) {
      note("%llu blocks changed streams, with %llu marks; %llu MiB taken",
           static_cast<unsigned long long>(info.cross_stream_count),
           static_cast<unsigned long long>(info.mark_count),
           static_cast<unsigned long long>(info.peak_reserved_bytes / kMiB));
    }
    must(gpumem_stream_destroy, first);
    must(gpumem_stream_destroy, second);
  }
}

// ---- taking memory and giving it back ----

void growing(const Scene& scene, gpumem_kind kind, gpumem_pool_flags flags) {
  const bool on_device = kind == GPUMEM_KIND_DEVICE;
  // Each of pinned memory takes milliseconds.
  const int calls = scene.runner.smoke() ? 1 : scene.runner.quick() || !on_device ? 20 : 200;
  const std::string of = on_device ? "pool/device" : "pool/pinned";
  const std::string from = flags != 0 ? "_from_driver" : "";
  const auto trimmed = [](const Pool& pool) { must_succeed(gpumem_pool_trim(pool, 0, nullptr, nullptr)); };
  for (const uint64_t size : {2 * kMiB, 64 * kMiB}) {
    const std::string name = of + "/grow_and_trim_" + bench::text_of(size) + from;
    if (!scene.runner.wanted(name)) continue;
    const auto timed = [&](auto take, auto give) {
      const auto begin = Clock::now();
      for (int i = 0; i < calls; ++i)
        give(take(size));
      return since(begin) / calls;
    };
    const Pool pool(scene, kind, flags);
    const PoolWork work = on_device ? scene.raw.pool_work(false) : PoolWork{};
    scene.runner.clocked(
        name,
        [&] {
          return timed([&](uint64_t bytes) { return pool.take(bytes); },
                       [&](void* block) {
                         pool.give(block);
                         trimmed(pool);
                       });
        },
        work.take != nullptr ? Runner::Clock([&] { return timed(work.take, work.give); }) : Runner::Clock());
  }
  const std::string name = of + "/grow_to_64MiB" + from;
  if (!scene.runner.wanted(name)) return;
  const Pool pool(scene, kind, flags);
  scene.runner.clocked(name,
                       [&] {
                         std::array<void*, 64> blocks{};
                         double taking = 0;
                         for (int i = 0; i < calls; ++i) {
                           const auto begin = Clock::now();
                           for (void*& block : blocks)
                             block = pool.take(kMiB);
                           taking += since(begin);
                           for (void* const block : blocks)
                             pool.give(block);
                           trimmed(pool);
                         }
                         return taking / calls / blocks.size();
                       },
                       {});
}

void growing(const Scene& scene) {
  for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED}) {
    growing(scene, kind, 0);
    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
    desc.kind = kind;
    desc.flags = GPUMEM_POOL_FROM_DRIVER;
    gpumem_pool pool = nullptr;
    // An older driver has none, or of device memory alone.
    const gpumem_status status = gpumem_pool_create(scene.device, &desc, &pool, nullptr);
    if (status == GPUMEM_ERROR_UNSUPPORTED) continue;
    must_succeed(status);
    must(gpumem_pool_destroy, pool);
    growing(scene, kind, GPUMEM_POOL_FROM_DRIVER);
  }
}

// ---- queries ----

void querying(const Scene& scene) {
  const int calls = scene.runner.smoke() ? 10 : scene.runner.quick() ? 50'000 : 500'000;
  const size_t live = scene.runner.smoke() ? 10 : scene.runner.quick() ? 10'000 : 1'000'000;
  for (const int threads : kThreads) {
    const std::string name =
        "pool/device/pointer_query_of_" + std::to_string(live) + "/threads_" + std::to_string(threads);
    if (!scene.runner.wanted(name)) continue;
    const Pool pool(scene, GPUMEM_KIND_DEVICE);
    std::vector<void*> blocks(live);
    for (void*& block : blocks)
      block = pool.take(1024);
    // In the order of this array, so that what is missed in the caches is the library's and not the array.
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
    std::atomic<size_t> begins{0};
    const bool compared = scene.raw.thread_work(ThreadCall::kPointerQuery).call != nullptr;
    const auto raw = [&] {
      return in_threads(threads, std::max(calls / 20, 50), [&] {
        scene.raw.prepare_thread();
        // The driver is asked for the same facts of 4 KiB that the thread has.
        return [work = scene.raw.thread_work(ThreadCall::kPointerQuery)](int) { work.call(); };
      });
    };
    scene.runner.clocked(
        name,
        [&] {
          return in_threads(threads, calls, [&] {
            return [&, at = begins++ * 611953 % live](int) mutable {
              gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
              must_succeed(gpumem_pointer_get_info(scene.instance, blocks[at], &info, nullptr));
              if (++at == blocks.size()) at = 0;
            };
          });
        },
        compared ? Runner::Clock(raw) : Runner::Clock());
    for (void* const block : blocks)
      pool.give(block);
  }
}

// ---- traces ----

struct Event {
  bool takes;
  uint64_t id;
  uint64_t size;
  unsigned stream;
};

std::vector<Event> read_trace(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<Event> events;
  for (std::string line; std::getline(file, line);) {
    char op = 0;
    unsigned long long id = 0;
    unsigned long long size = 0;
    unsigned stream = 0;
    if (std::sscanf(line.c_str(), "%c,%llu,%llu,%u", &op, &id, &size, &stream) == 4)
      events.push_back({op == 'a', id, size, stream});
  }
  return events;
}

// Like a training with another batch in each step: weights that stay, and what a pass forward makes and the
// pass back frees.
std::vector<Event> small_training(bool smoke) {
  const uint64_t layers = smoke ? 2 : 24;
  const int steps = smoke ? 2 : 60;
  std::mt19937 random(1);
  std::vector<Event> events;
  uint64_t id = 0;
  for (uint64_t layer = 0; layer < layers; ++layer)
    events.push_back({true, id++, 2 * kMiB + layer % 3 * 512 * kKiB, 0});
  for (int step = 0; step < steps; ++step) {
    const uint64_t rows = 64 + random() % 960;
    std::vector<uint64_t> kept;
    for (uint64_t layer = 0; layer < layers; ++layer) {
      for (const unsigned width : {1024U, 4096U, 16U}) {
        kept.push_back(id);
        events.push_back({true, id++, rows * width * 2, 0});
      }
      events.push_back({true, id, rows * rows * 4, 0});  // gone at once
      events.push_back({false, id++, 0, 0});
    }
    for (auto last = kept.rbegin(); last != kept.rend(); ++last)
      events.push_back({false, *last, 0, 0});
  }
  return events;
}

// Streams whose work waits for a word in pinned memory, as a GPU is behind the program that feeds it.
class Behind {
 public:
  Behind(const Scene& scene, uint64_t calls) : instance_(scene.instance), calls_(calls) {
    void* word = nullptr;
    if (calls != 0) must(gpumem_malloc, scene.device, GPUMEM_KIND_PINNED, uint64_t{4}, &word);
    word_ = static_cast<volatile uint32_t*>(word);
    if (word_ != nullptr) *word_ = 0;
  }
  Behind(const Behind&) = delete;
  Behind& operator=(const Behind&) = delete;
  ~Behind() {
    if (word_ != nullptr) gpumem_free(instance_, const_cast<uint32_t*>(word_), nullptr);
  }
  // What the streams do next waits for call `number`, and what they did some calls before may go on.
  void call(const std::vector<gpumem_stream>& streams, uint64_t number) {
    if (word_ == nullptr) return;
    for (gpumem_stream stream : streams) {
      must_succeed(gpumem_stream_wait_value(stream, const_cast<uint32_t*>(word_), number, 4, GPUMEM_WAIT_GEQ,
                                            nullptr));
    }
    if (number > calls_) *word_ = static_cast<uint32_t>(number - calls_);
  }
  void end(const std::vector<gpumem_stream>& streams) {
    if (word_ != nullptr) *word_ = INT32_MAX;
    for (gpumem_stream stream : streams)
      must(gpumem_stream_synchronize, stream, GPUMEM_TIMEOUT_INFINITE);
  }

 private:
  gpumem_instance instance_;
  const uint64_t calls_;
  volatile uint32_t* word_ = nullptr;
};

void replay(const Scene& scene, const std::string& title, uint64_t calls_behind,
            const std::function<std::vector<Event>()>& read) {
  constexpr size_t kPoints = 500;
  const std::string name = "pool/device/replay_" + title;
  if (!scene.runner.wanted(name)) return;
  const std::vector<Event> events = read();
  struct Block {
    void* pointer;
    uint64_t size;
    size_t stream;
  };
  const Pool pool(scene, GPUMEM_KIND_DEVICE);
  Behind behind(scene, calls_behind);
  const auto info_of = [&] {
    gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
    must_succeed(gpumem_pool_get_info(pool, &info, nullptr));
    return info;
  };
  std::vector<gpumem_stream> streams;
  std::unordered_map<uint64_t, Block> blocks;
  Trace trace;
  trace.name = title;
  trace.events = events.size();
  uint64_t live = 0;
  uint64_t most = 0;  // since the last point
  double seconds = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& [takes, id, size, stream] = events[i];
    while (streams.size() <= stream) {
      streams.push_back(nullptr);
      must(gpumem_stream_create, scene.device, nullptr, &streams.back());
    }
    behind.call(streams, i);
    const auto begin = Clock::now();
    if (takes) {
      blocks[id] = {pool.take(size, streams[stream]), size, stream};
      live += size;
    } else {
      const Block block = blocks.at(id);
      pool.give(block.pointer, streams[block.stream]);
      live -= block.size;
      blocks.erase(id);
    }
    seconds += since(begin);
    most = std::max(most, live);
    if (i * kPoints / events.size() == (i + 1) * kPoints / events.size()) continue;
    trace.peak_live = std::max(trace.peak_live, most);
    trace.points.push_back({i + 1, most, info_of().reserved_bytes});
    most = live;
  }
  behind.end(streams);
  for (const auto& [id, block] : blocks)
    pool.give(block.pointer, streams[block.stream]);
  const gpumem_pool_info info = info_of();
  trace.peak_reserved = info.peak_reserved_bytes;
  note("%s: peak live %.3f GB, peak reserved %.3f GB, ratio %.4f; grown %llu times, released %llu",
       name.c_str(), static_cast<double>(trace.peak_live) / 1e9,
       static_cast<double>(trace.peak_reserved) / 1e9,
       static_cast<double>(trace.peak_reserved) / static_cast<double>(std::max<uint64_t>(trace.peak_live, 1)),
       static_cast<unsigned long long>(info.grow_count), static_cast<unsigned long long>(info.release_count));
  scene.runner.seconds(name, seconds / static_cast<double>(std::max<size_t>(events.size(), 1)), 0);
  scene.runner.trace(std::move(trace));
  for (gpumem_stream stream : streams)
    must(gpumem_stream_destroy, stream);
}

// ---- patterns that leave holes ----
// None leaves only holes below 2 MiB, the least that goes back to the driver: there, what is reserved depends
// on the pattern and not on the pool.

// What a program asks of a pool without streams, and the most that lived at once.
class Load {
 public:
  explicit Load(const Pool& pool) : pool_(pool) {}
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() {
    while (!blocks_.empty())
      give(blocks_.size() - 1);
  }
  void take(uint64_t size) {
    blocks_.push_back({pool_.take(size), size});
    live_ += size;
    peak_ = std::max(peak_, live_);
    ++events_;
  }
  // The last takes its place.
  void give(size_t index) {
    const Block block = std::exchange(blocks_[index], blocks_.back());
    blocks_.pop_back();
    pool_.give(block.pointer);
    live_ -= block.size;
    ++events_;
  }
  // Frees every `step`-th block.
  void thin(size_t step) {
    std::vector<Block> kept;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i % step != 0) {
        kept.push_back(blocks_[i]);
        continue;
      }
      pool_.give(blocks_[i].pointer);
      live_ -= blocks_[i].size;
      ++events_;
    }
    blocks_ = std::move(kept);
  }
  size_t count() const { return blocks_.size(); }
  uint64_t live() const { return live_; }
  uint64_t peak() const { return peak_; }
  uint64_t events() const { return events_; }

 private:
  struct Block {
    void* pointer;
    uint64_t size;
  };
  const Pool& pool_;
  std::vector<Block> blocks_;
  uint64_t live_ = 0;
  uint64_t peak_ = 0;
  uint64_t events_ = 0;
};

using Pattern = void (*)(Load& load, uint64_t bytes);

// Up to the peak and down again, each time with larger blocks.
void sawtooth(Load& load, uint64_t bytes) {
  for (uint64_t size = 300 * kKiB; size <= bytes / 8; size = size * 3 / 2) {
    while (load.live() + size <= bytes)
      load.take(size);
    while (load.count() != 0)
      load.give(load.count() / 2);
  }
}

// Each block is a little larger than the one that it replaces, as a list that is copied when it is full.
void growing(Load& load, uint64_t bytes) {
  for (uint64_t size = kMiB; size <= bytes / 3; size = size * 9 / 8) {
    load.take(size);
    if (load.count() > 2) load.give(0);
  }
}

void power_of_two_plus_one(Load& load, uint64_t bytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t size = (uint64_t{256} << random() % 15) + 1;
    while (load.live() + size > bytes)
      load.give(random() % load.count());
    load.take(size);
  }
}

// Every second block is freed, and blocks of twice the size come.
void alternating(Load& load, uint64_t bytes) {
  for (uint64_t size = std::min(4 * kMiB, bytes / 32); size <= bytes / 32; size *= 2) {
    while (load.live() + size <= bytes)
      load.take(size);
    load.thin(2);
  }
}

// Blocks everywhere, of which few stay; then larger ones.
void two_phases(Load& load, uint64_t bytes) {
  while (load.live() + 5 * kMiB <= bytes)
    load.take(5 * kMiB);
  std::mt19937 random(1);
  while (load.live() > bytes / 16)
    load.give(random() % load.count());
  while (load.live() + 24 * kMiB <= bytes)
    load.take(24 * kMiB);
}

void leaving_holes(const Scene& scene) {
  const bool cuda = scene.runner.backend() == GPUMEM_BACKEND_CUDA;
  const uint64_t bytes = (scene.runner.smoke() ? 64 : cuda ? 4096 : 1024) * kMiB;
  if (!scene.runner.smoke() && !scene.runner.wanted(bytes)) return;
  const std::array<std::pair<const char*, Pattern>, 5> patterns{
      {{"sawtooth", sawtooth},
       {"growing", growing},
       {"power_of_two_plus_one", power_of_two_plus_one},
       {"alternating", alternating},
       {"two_phases", two_phases}}};
  for (const auto& [pattern, run] : patterns) {
    const std::string name = std::string("pool/device/pattern_") + pattern;
    if (!scene.runner.wanted(name)) continue;
    const Pool pool(scene, GPUMEM_KIND_DEVICE);
    Load load(pool);
    const auto begin = Clock::now();
    run(load, bytes);
    const double seconds = since(begin);
    note("%s: peak live %.3f GB, peak reserved %.3f GB, ratio %.4f", name.c_str(),
         static_cast<double>(load.peak()) / 1e9, static_cast<double>(pool.peak_reserved()) / 1e9,
         static_cast<double>(pool.peak_reserved()) / static_cast<double>(load.peak()));
    scene.runner.seconds(name, seconds / static_cast<double>(load.events()), 0);
  }
}

}  // namespace

void pools(const Scene& scene) {
  pairs(scene);
  replacing(scene);
  handing_over(scene);
  growing(scene);
  querying(scene);
  leaving_holes(scene);
  beside_mimalloc(scene);
}

void traces(const Scene& scene, const std::string& folder) {
  const auto replay_twice = [&](const std::string& title, const std::function<std::vector<Event>()>& read) {
    replay(scene, title, 0, read);
    replay(scene, title + "_behind", 300, read);
  };
  replay_twice("small_training", [&] { return small_training(scene.runner.smoke()); });
  if (folder.empty()) return;
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == ".csv") files.push_back(file.path());
  }
  if (files.empty()) fail("the folder " + folder + " has no file that ends in .csv");
  std::sort(files.begin(), files.end());
  for (const auto& file : files)
    replay_twice(file.stem().string(), [&] { return read_trace(file); });
}

}  // namespace bench
