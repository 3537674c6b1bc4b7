// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "pageable.h"

#include <sys/mman.h>

#include <cstring>

#include "calls.h"

namespace bench {
namespace {

constexpr uint64_t kSizes[] = {1,         64,         kKiB,       4 * kKiB,   16 * kKiB,
                               64 * kKiB, 256 * kKiB, 512 * kKiB, kMiB,       2 * kMiB,
                               3 * kMiB,  4 * kMiB,   8 * kMiB,   16 * kMiB,  32 * kMiB,
                               64 * kMiB, 128 * kMiB, 256 * kMiB, 512 * kMiB, kGiB};

std::string name_of(uint64_t size) { return size < kKiB ? std::to_string(size) + "B" : text_of(size); }

// Ordinary memory whose pages exist.
class Ordinary {
 public:
  explicit Ordinary(uint64_t size) : size_(size) {
    pointer_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pointer_ == MAP_FAILED) fail("mmap of " + std::to_string(size) + " bytes");
  }
  Ordinary(const Ordinary&) = delete;
  Ordinary& operator=(const Ordinary&) = delete;
  ~Ordinary() { munmap(pointer_, size_); }
  void* get() const { return pointer_; }

 private:
  void* pointer_;
  uint64_t size_;
};

// Memory of the driver's, for the other side.
class Of {
 public:
  Of(Raw& raw, gpumem_kind kind, uint64_t size)
      : raw_(raw), kind_(kind), size_(size), pointer_(raw.allocate(kind, 0, size)) {}
  Of(const Of&) = delete;
  Of& operator=(const Of&) = delete;
  ~Of() { raw_.free(kind_, pointer_, size_); }
  void* get() const { return pointer_; }

 private:
  Raw& raw_;
  gpumem_kind kind_;
  uint64_t size_;
  void* pointer_;
};

// What goes there comes back; otherwise a rate would mean nothing.
void check_content(TransferBench& transfers, uint64_t size) {
  const Ordinary sent(size);
  const Ordinary back(size);
  auto* const words = static_cast<uint32_t*>(sent.get());
  uint32_t word = 1;
  for (uint64_t i = 0; i < size / 4; ++i)
    words[i] = word = word * 1664525 + 1013904223;
  transfers.copy(true, sent.get(), size);
  transfers.copy(false, back.get(), size);
  if (std::memcmp(sent.get(), back.get(), size) != 0) fail("the bytes that came back are others");
}

void settings(const Scene& scene, uint64_t size) {
  Runner& runner = scene.runner;
  if (!runner.any_wanted("pageable_setting/")) return;
  const auto transfers = open_transfer_bench(size);
  if (transfers == nullptr) {
    note("pageable_setting is left out: only the program in the build folder measures it");
    return;
  }
  Raw& raw = scene.raw;
  const Of device(raw, GPUMEM_KIND_DEVICE, size);
  const Of pinned(raw, GPUMEM_KIND_PINNED, size);
  const Ordinary here(size);
  using Setting = TransferBench::Setting;
  std::vector<std::pair<std::string, Setting>> all;
  const auto add = [&](const std::string& name, auto change) {
    Setting setting;
    change(setting);
    all.emplace_back(name, setting);
  };
  for (const uint32_t threads : {1U, 2U, 3U, 4U, 6U, 8U, 10U, 12U, 14U, 16U})
    add("threads_" + std::to_string(threads), [&](Setting& setting) { setting.threads = threads; });
  for (const uint64_t slot : {512 * kKiB, kMiB, 4 * kMiB})
    add("slot_" + text_of(slot), [&](Setting& setting) { setting.slot = slot; });
  for (const uint32_t slots : {3U, 4U})
    add("slots_" + std::to_string(slots), [&](Setting& setting) { setting.slots = slots; });
  for (const uint32_t streams : {2U, 4U})
    add("streams_" + std::to_string(streams), [&](Setting& setting) { setting.streams = streams; });
  for (const uint32_t threads : {12U, 14U}) {
    add("slot_4MiB_threads_" + std::to_string(threads), [&](Setting& setting) {
      setting.slot = 4 * kMiB;
      setting.threads = threads;
    });
    add("slot_3MiB_slots_3_threads_" + std::to_string(threads), [&](Setting& setting) {
      setting.slot = 3 * kMiB;
      setting.slots = 3;
      setting.threads = threads;
    });
  }
  for (const auto& [name, setting] : all) {
    transfers->set(setting);
    check_content(*transfers, size);
    for (const bool to_device : {true, false}) {
      const std::string row =
          std::string("pageable_setting/") + (to_device ? "to_device/" : "to_host/") + name;
      transfers->copy(to_device, here.get(), size);
      runner.rate(
          row, size, [&] { transfers->copy(to_device, here.get(), size); },
          [&] {
            raw.copy(to_device ? device.get() : pinned.get(), to_device ? pinned.get() : device.get(), size);
          });
    }
  }
  // From which size on they are faster, by how many are woken.
  for (const uint64_t each : {kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB}) {
    Setting setting;
    setting.each = each;
    transfers->set(setting);
    for (const uint64_t bytes : {2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB}) {
      if (bytes > size) continue;
      for (const bool to_device : {true, false}) {
        const std::string row = std::string("pageable_setting/") + (to_device ? "to_device/" : "to_host/") +
                                "each_" + text_of(each) + "/beside_driver/" + text_of(bytes);
        runner.rate(
            row, bytes, [&] { transfers->copy(to_device, here.get(), bytes); },
            [&] {
              raw.copy(to_device ? device.get() : here.get(), to_device ? here.get() : device.get(), bytes);
            });
      }
    }
  }
}

}  // namespace

void pageable(const Scene& scene, gpumem_stream stream) {
  Runner& runner = scene.runner;
  if (!runner.any_wanted("pageable/")) return;
  Raw& raw = scene.raw;
  const uint64_t most = runner.smoke() ? 4 * kMiB : kGiB;
  for (const uint64_t size : kSizes) {
    if (size > most || !runner.wanted(size)) continue;
    void* ours = nullptr;
    must(gpumem_malloc, scene.device, GPUMEM_KIND_DEVICE, size, &ours);
    {
      const Of device(raw, GPUMEM_KIND_DEVICE, size);
      const Of pinned(raw, GPUMEM_KIND_PINNED, size);
      const Ordinary here(size);
      const Ordinary there(size);
      for (const bool to_device : {true, false}) {
        const std::string path = std::string("pageable/") + (to_device ? "to_device" : "to_host");
        const auto copy = [&] {
          must_succeed(gpumem_copy(scene.instance, to_device ? ours : here.get(),
                                   to_device ? here.get() : ours, size, nullptr, nullptr));
        };
        const auto enqueue = [&] {
          must_succeed(gpumem_copy_async(stream, to_device ? ours : here.get(), to_device ? here.get() : ours,
                                         size, nullptr, nullptr));
          must_succeed(gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr));
        };
        // The threads start when much has been copied.
        for (uint64_t copied = 0; copied <= 64 * kMiB && size >= 256 * kKiB; copied += size)
          copy();
        const auto raw_copy = [&](void* host) {
          raw.copy(to_device ? device.get() : host, to_device ? host : device.get(), size);
        };
        runner.rate(path + "/sync/" + name_of(size), size, copy, [&] { raw_copy(there.get()); });
        runner.rate(path + "/async/" + name_of(size), size, enqueue, [&] {
          raw.enqueue_copy(to_device ? device.get() : there.get(), to_device ? there.get() : device.get(),
                           size);
          raw.synchronize();
        });
        runner.rate(path + "/beside_pinned/" + name_of(size), size, copy, [&] { raw_copy(pinned.get()); });
      }
    }
    must(gpumem_free, scene.instance, ours);
  }
}

void pageable_settings(const Scene& scene) {
  if (scene.runner.backend() == GPUMEM_BACKEND_CUDA)
    settings(scene, scene.runner.smoke() ? 4 * kMiB : 256 * kMiB);
}

}  // namespace bench
