// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "groups.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "calls.h"

namespace bench {
namespace {

constexpr uint64_t kUnit = 2 * kMiB;    // of blocks of memory
constexpr uint64_t kChunk = 64 * kMiB;  // of copies, the library's and the raw ones

template <class Work>
double seconds_of(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

gpumem_buffer_info info_of(gpumem_buffer buffer) {
  gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
  must_succeed(gpumem_buffer_get_info(buffer, &info, nullptr));
  return info;
}

// Some buffers of one size.
class Group {
 public:
  Group(const Scene& scene, uint64_t count, uint64_t size)
      : scene_(scene), size_(size), words_(size / sizeof(uint32_t)) {
    must(gpumem_group_create, scene.instance, nullptr, &group_);
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = desc.reserve = size;
    desc.group = group_;
    for (uint64_t i = 0; i < count; ++i) {
      gpumem_buffer buffer = nullptr;
      must(gpumem_buffer_create, scene.device, &desc, &buffer);
      buffers_.push_back(buffer);
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    for (gpumem_buffer buffer : buffers_)
      gpumem_buffer_destroy(buffer, nullptr);
    gpumem_group_destroy(group_, nullptr);
  }

  void prepare(gpumem_content content) {
    gpumem_prepare_desc desc = GPUMEM_PREPARE_DESC_INIT;
    desc.content = content;
    must(gpumem_group_prepare, group_, &desc);
  }
  void sleep(const gpumem_sleep_desc& desc) { must(gpumem_group_sleep, group_, &desc); }
  void wake(uint64_t keep) {
    gpumem_wake_desc desc = GPUMEM_WAKE_DESC_INIT;
    desc.keep = keep;
    must(gpumem_group_wake, group_, &desc);
  }

  // Bytes that differ between the buffers, and from one `number` to the next.
  void fill(uint64_t number) {
    for (size_t i = 0; i < buffers_.size(); ++i)
      must(gpumem_fill, scene_.instance, info_of(buffers_[i]).base, size_, value_of(number, i), 4u);
  }
  // Every byte.
  void check(uint64_t number) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      must(gpumem_copy, scene_.instance, words_.data(), info_of(buffers_[i]).base, size_, nullptr);
      const uint32_t value = value_of(number, i);
      if (std::any_of(words_.begin(), words_.end(), [&](uint32_t word) { return word != value; }))
        fail("a buffer woke with other bytes than it had");
    }
  }

 private:
  static uint32_t value_of(uint64_t number, size_t index) {
    return static_cast<uint32_t>(number * 1000003 + index + 1);
  }

  Scene scene_;
  uint64_t size_;
  std::vector<uint32_t> words_;  // a buffer's content on the host
  gpumem_group group_ = nullptr;
  std::vector<gpumem_buffer> buffers_;
};

// Bytes of host memory that may be had, also by this process's control group.
uint64_t host_bytes_free() {
  uint64_t free = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    if (word == "MemAvailable:" && meminfo >> free) break;
  }
  free *= kKiB;
  uint64_t most = 0;
  uint64_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> most &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used && most > used)
    free = std::min(free, most - used);
  return free;
}

uint64_t device_bytes_free(gpumem_device device) {
  uint64_t free = 0;
  must(gpumem_device_get_memory, device, &free, nullptr);
  return free;
}

// ---- sleep and wake ----

// What the store of a sleep is: made in the sleep and freed in waking; made before, by prepare(); or kept
// from the sleep before.
enum class Way { kCold, kPrepared, kRepeated };

// Beside it, asynchronous copies of the same chunks between device memory and pinned memory that is there.
void sleep_and_wake(const Scene& scene) {
  const bool smoke = scene.runner.smoke();
  const uint64_t count = smoke ? 2 : 64;
  // The raw side needs as much, and other programs something too.
  uint64_t total = std::min({8 * kGiB, device_bytes_free(scene.device) / 4, host_bytes_free() / 4});
  if (smoke) total = count * kUnit;
  while (!smoke && !scene.runner.wanted(total) && total > count * kUnit)
    total /= 2;
  const uint64_t size = std::max(total / count / kUnit, uint64_t{1}) * kUnit;
  total = count * size;
  constexpr std::pair<Way, const char*> kWays[] = {
      {Way::kPrepared, "prepared"}, {Way::kCold, "cold"}, {Way::kRepeated, "repeated"}};
  const auto name_of = [&](const char* call, const char* way) {
    return std::string("group/") + call + "/" + way + "/" + std::to_string(count) + "x" + text_of(size);
  };
  const auto wanted = [&](const auto& way) {
    return scene.runner.wanted(name_of("sleep", way.second)) ||
           scene.runner.wanted(name_of("wake", way.second));
  };
  if (std::none_of(std::begin(kWays), std::end(kWays), wanted)) return;

  Group ours(scene, count, size);
  ours.fill(1);
  auto* const there = static_cast<uint8_t*>(scene.raw.allocate(GPUMEM_KIND_DEVICE, 0, total));
  auto* const here = static_cast<uint8_t*>(scene.raw.allocate(GPUMEM_KIND_PINNED, 0, total));
  const auto copy = [&](uint8_t* to, const uint8_t* from) {
    return seconds_of([&] {
      for (uint64_t buffer = 0; buffer < total; buffer += size) {
        for (uint64_t chunk = 0; chunk < size; chunk += kChunk)
          scene.raw.enqueue_copy(to + buffer + chunk, from + buffer + chunk, std::min(kChunk, size - chunk));
      }
      scene.raw.synchronize();
    });
  };
  copy(there, here);
  copy(here, there);

  for (const auto& [way, text] : kWays) {
    struct Times {
      double sleep;
      double wake;
    };
    const auto cycle = [&, way = way]() -> Times {
      if (way == Way::kPrepared) {
        ours.prepare(GPUMEM_CONTENT_DROP);  // frees what was kept
        ours.prepare(GPUMEM_CONTENT_PINNED);
      }
      const gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
      const double slept = seconds_of([&] { ours.sleep(desc); });
      return {slept, seconds_of([&] { ours.wake(way == Way::kCold ? 0 : UINT64_MAX); })};
    };
    cycle();
    scene.runner.clocked_rate(
        name_of("sleep", text), total, [&] { return cycle().sleep; }, [&] { return copy(here, there); });
    scene.runner.clocked_rate(
        name_of("wake", text), total, [&] { return cycle().wake; }, [&] { return copy(there, here); });
  }
  ours.check(1);
  scene.raw.free(GPUMEM_KIND_PINNED, here, total);
  scene.raw.free(GPUMEM_KIND_DEVICE, there, total);
}

// ---- growth ahead ----

double percentile(std::vector<double>& values, double share) {
  const auto index = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

// As a program that fills what it got, and so keeps its core awake.
void work_for(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// What a program sees of a growth by 2 MiB: the call alone, with other work between two. Beside it, the raw
// calls for a block of that size. With 64 MiB ahead the thread is woken for each 16th growth, with 1 GiB for
// each 256th.
void grow_ahead(const Scene& scene) {
  constexpr std::chrono::microseconds kPause{500};
  const bool smoke = scene.runner.smoke();
  for (const uint64_t ahead : {64 * kMiB, kGiB}) {
    const std::string name = "buffer/grow_background/" + text_of(kUnit) + "/ahead_" + text_of(ahead);
    if (smoke && ahead == kGiB) continue;
    if (!scene.runner.wanted(name + "/p50") && !scene.runner.wanted(name + "/p99")) continue;
    const uint64_t room = std::min(device_bytes_free(scene.device), host_bytes_free()) / 4;
    if (!smoke && room < 2 * ahead) {
      note("%s is left out: %llu bytes may be used", name.c_str(), static_cast<unsigned long long>(room));
      continue;
    }
    const uint64_t steps = smoke ? 2 : std::min<uint64_t>((room - ahead) / kUnit, 2000);
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.reserve = steps * kUnit + ahead;
    gpumem_buffer buffer = nullptr;
    must(gpumem_buffer_create, scene.device, &desc, &buffer);
    must(gpumem_buffer_set_ahead, buffer, ahead);
    const auto begin = std::chrono::steady_clock::now();
    while (info_of(buffer).capacity < ahead) {
      std::this_thread::sleep_for(kPause);
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(30))
        fail("no memory was made ahead");
    }

    std::vector<double> ours;
    std::vector<double> raw;
    const std::unique_ptr<RawRange> range = scene.raw.reserve(kUnit, static_cast<int>(steps));
    for (uint64_t i = 1; i <= steps; ++i) {
      work_for(kPause);
      ours.push_back(seconds_of([&] { must_succeed(gpumem_buffer_resize(buffer, i * kUnit, nullptr)); }));
    }
    must(gpumem_buffer_destroy, buffer);
    for (int i = 0; i < static_cast<int>(steps); ++i) {
      work_for(kPause);
      raw.push_back(seconds_of([&] {
        range->create(i);
        range->map(i);
      }));
    }
    for (int i = 0; i < static_cast<int>(steps); ++i) {
      range->unmap(i);
      range->release(i);
    }
    scene.runner.seconds(name + "/p50", percentile(ours, 0.5), percentile(raw, 0.5));
    scene.runner.seconds(name + "/p99", percentile(ours, 0.99), percentile(raw, 0.99));
  }
}

// ---- many sleeps ----

// Without the pages that malloc() holds free, which are nobody's leak.
uint64_t resident_bytes() {
  malloc_trim(0);
  uint64_t all = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// How much more is used after a thousand sleeps than before, with each content that keeps bytes. All bytes
// are compared each time.
void many_sleeps(const Scene& scene) {
  const uint64_t cycles = scene.runner.smoke() ? 3 : scene.runner.quick() ? 30 : 1000;
  const std::string name = "group/sleep_and_wake/" + std::to_string(cycles) + "_times";
  const std::string time = name + "/time_of_one";
  const std::string device_growth = name + "/growth_on_device";
  const std::string host_growth = name + "/growth_on_host";
  if (!scene.runner.wanted(time) && !scene.runner.wanted(device_growth) && !scene.runner.wanted(host_growth))
    return;
  Group group(scene, 4, 2 * kUnit);
  const std::string directory = std::filesystem::temp_directory_path();
  const auto cycle = [&](uint64_t number) {
    constexpr gpumem_content kContents[] = {GPUMEM_CONTENT_PINNED, GPUMEM_CONTENT_PAGEABLE,
                                            GPUMEM_CONTENT_FILE};
    gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
    desc.content = kContents[number % std::size(kContents)];
    if (desc.content == GPUMEM_CONTENT_FILE) desc.directory = directory.c_str();
    group.fill(number);
    const double seconds = seconds_of([&] {
      group.sleep(desc);
      group.wake(number % 2 == 0 ? UINT64_MAX : 0);
    });
    group.check(number);
    return seconds;
  };
  const auto tidy = [&] { group.prepare(GPUMEM_CONTENT_DROP); };
  // As many first: tables of addresses and lists of freed ones fill up.
  for (uint64_t number = 0; number < cycles; ++number)
    cycle(number);
  tidy();
  const uint64_t device_before = device_bytes_free(scene.device);
  const uint64_t host_before = resident_bytes();
  double seconds = 0;
  for (uint64_t number = 0; number < cycles; ++number)
    seconds += cycle(number);
  tidy();
  const uint64_t device_after = device_bytes_free(scene.device);
  const uint64_t host_after = resident_bytes();
  scene.runner.seconds(time, seconds / static_cast<double>(cycles), 0);
  scene.runner.bytes(device_growth, device_before - std::min(device_before, device_after));
  scene.runner.bytes(host_growth, std::max(host_before, host_after) - host_before);
}

}  // namespace

void groups(const Scene& scene) {
  sleep_and_wake(scene);
  grow_ahead(scene);
  many_sleeps(scene);
}

}  // namespace bench
