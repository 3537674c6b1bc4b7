// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The functions of torch_memory_saver over a group of buffers: what a region allocates sleeps and wakes by
// its tag.
//
// tms_get_cpu_backup_pointer() promises one pointer to a whole backup, so backups are allocations of this
// file and not the stores of the group. All of them are copied at once, and the group then drops its memory
// in one call.
//
// Where the original ends the process, these functions log a line and return a status, or NULL.
#include <dlfcn.h>
#include <fcntl.h>
#include <gpumem/gpumem.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#define TMS_API extern "C" __attribute__((visibility("default")))

namespace {

// Values of cudaError_t.
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kUnknown = 999;

__attribute__((format(printf, 1, 2))) void report(const char* format, ...) {
  char text[768];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  (void)std::fprintf(stderr, "gpumem-tms: %s\n", text);
}

class Failure : public std::exception {
 public:
  Failure(gpumem_status status, std::string text) : status_(status), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  gpumem_status status() const { return status_; }
  int cuda_error() const {
    switch (status_) {
      case GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY:
      case GPUMEM_ERROR_OUT_OF_HOST_MEMORY:
      case GPUMEM_ERROR_LIMIT_EXCEEDED:
        return kOutOfMemory;
      case GPUMEM_ERROR_INVALID_ARGUMENT:
        return kInvalidValue;
      default:
        return kUnknown;
    }
  }

 private:
  gpumem_status status_;
  std::string text_;
};

// Calls a function of gpumem, whose last parameter is the error.
template <class... Parameters, class... Arguments>
void call(gpumem_status (*function)(Parameters...), Arguments... arguments) {
  gpumem_error error = GPUMEM_ERROR_INIT;
  if (GPUMEM_FAILED(function(arguments..., &error)))
    throw Failure(error.status, std::string(error.function) + ": " + error.message);
}

[[noreturn]] void fail_by_errno(gpumem_status status, const std::string& what, int number) {
  throw Failure(status, what + ": " + std::generic_category().message(number));
}

template <class Answer, class Work>
Answer guarded(const char* function, Answer otherwise, Work work) noexcept {
  try {
    return work();
  } catch (const std::exception& failure) {
    report("%s: %s", function, failure.what());
  }
  return otherwise;
}

// The same for functions that answer a cudaError_t.
template <class Work>
int with_status(const char* function, Work work) noexcept {
  try {
    return work();
  } catch (const Failure& failure) {
    report("%s: %s", function, failure.what());
    return failure.cuda_error();
  } catch (const std::exception& failure) {
    report("%s: %s", function, failure.what());
  }
  return kOutOfMemory;
}

bool is_set(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return false;
  const std::string_view value = text;
  if (value == "1" || value == "true" || value == "TRUE" || value == "yes" || value == "YES") return true;
  if (value != "0" && value != "false" && value != "FALSE" && value != "no" && value != "NO")
    report("%s is \"%s\", which counts as 0; use 0 or 1", name, text);
  return false;
}

enum class Backup { kNone, kPinned, kMapped, kFile };

std::optional<Backup> backup_named(const char* name) {
  const std::string_view text = name == nullptr ? "" : name;
  if (text.empty() || text == "pinned") return Backup::kPinned;
  if (text == "mmap") return Backup::kMapped;
  report("the backend of backups \"%s\" is unknown; use pinned or mmap", name);
  return {};
}

// What the calling thread has set, and at first the environment.
struct Settings {
  std::string tag = "default";
  // TMS_INIT_ENABLE | on, off | off | allocations are in a region from the start
  bool interesting = is_set("TMS_INIT_ENABLE");
  // TMS_INIT_ENABLE_CPU_BACKUP | on, off | off | what is paused is kept in memory of the host
  bool cpu_backup = is_set("TMS_INIT_ENABLE_CPU_BACKUP");
  // TMS_INIT_ENABLE_DISK_BACKUP | on, off | off | what is paused is kept in files
  bool disk_backup = is_set("TMS_INIT_ENABLE_DISK_BACKUP");
  // TMS_INIT_CPU_BACKUP_BACKEND | `pinned`, `mmap` | `pinned` | which memory of the host that is
  Backup backend = backup_named(std::getenv("TMS_INIT_CPU_BACKUP_BACKEND")).value_or(Backup::kPinned);

  Backup backup() const {
    if (cpu_backup && disk_backup)
      throw Failure(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "backups on the CPU and on disk exclude each other; disable one");
    return disk_backup ? Backup::kFile : cpu_backup ? backend : Backup::kNone;
  }
};
thread_local Settings settings;

// A tag of gpumem has at most 63 bytes and no control characters.
std::string group_tag(const std::string& tag) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (tag.size() <= 63 && std::none_of(tag.begin(), tag.end(), is_control)) return tag;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const char c : tag)
    hash = (hash ^ static_cast<unsigned char>(c)) * UINT64_C(0x100000001b3);
  char text[24];
  (void)std::snprintf(text, sizeof text, "tag %016" PRIx64, hash);
  return text;
}

// Where the content of one allocation is while it sleeps.
struct Store {
  Backup kind = Backup::kNone;
  uint64_t size = 0;
  void* data = nullptr;
  int file = -1;
};

struct Gpu {
  gpumem_device device = nullptr;
  gpumem_stream stream = nullptr;  // for copies
  gpumem_buffer gate = nullptr;    // without memory: putting it to sleep waits for all work of the device
};

struct Allocation {
  uint64_t size;
  uint64_t capacity;
  gpumem_buffer buffer;
  int ordinal;
  Gpu* gpu;
  std::string tag;
  Backup backup;
  void* base;
  Store store = {};
  bool paused = false;
  bool resident = false;
};
using Allocations = std::map<uintptr_t, Allocation>;  // by their first byte
using Chosen = std::vector<Allocation*>;

class Saver {
 public:
  // Lives until the process ends: threads and destructors of other code may still call.
  static Saver& get() {
    static Saver* const saver = new Saver;
    return *saver;
  }

  void* allocate(uint64_t size, int ordinal, const Settings& wanted) {
    // A call for the group must not meet a buffer that has no record yet.
    const Lock lock = enter();
    try {
      return make(size, ordinal, wanted);
    } catch (const Failure& failure) {
      if (failure.cuda_error() != kOutOfMemory || orphans_.empty()) throw;
    }
    free_orphans();
    return make(size, ordinal, wanted);
  }

  // Memory that never sleeps.
  void* allocate_plain(uint64_t size, int ordinal) {
    const Lock lock = enter();
    void* pointer = nullptr;
    call(gpumem_malloc, gpu_of(ordinal).device, GPUMEM_KIND_DEVICE, size, &pointer);
    return pointer;
  }

  // Returns false if no region allocated it. What cannot be freed yet, while a stream is captured say, is an
  // orphan: the caller is rid of it, and a later call frees it.
  bool release(void* pointer) {
    if (forked_) return true;  // the memory is the parent's
    Allocations::node_type found;
    {
      const Lock lock = enter();
      found = allocations_.extract(reinterpret_cast<uintptr_t>(pointer));
      if (found.empty()) return false;
      free_orphans();
    }
    release(found.mapped().store);
    gpumem_error error = GPUMEM_ERROR_INIT;
    if (GPUMEM_FAILED(destroy(found.mapped(), &error))) {
      report("memory stays allocated until a later call can free it: %s", error.message);
      const Lock lock = enter();
      orphans_.insert(std::move(found));
    }
    return true;
  }

  void release_plain(void* pointer) {
    const Lock lock = enter();
    if (instance_ == nullptr)
      throw Failure(GPUMEM_ERROR_NOT_FOUND, "the memory was not allocated by this library");
    call(gpumem_free, instance_, pointer);
  }

  int pause(const std::string& tag) {
    const Lock lock = enter();
    free_orphans();
    Chosen chosen = choose(tag);
    const size_t others = std::erase_if(chosen, [](const Allocation* one) { return one->paused; });
    if (others != 0) report("%zu of %zu allocations are paused already", others, others + chosen.size());
    if (!chosen.empty()) {
      finish_work(chosen);
      Chosen made;
      made.reserve(chosen.size());
      try {
        // While a store is page-locked, the copies to those before it go on.
        copy(chosen, GPUMEM_FILE_DIRECTION_FROM_MEMORY, [&](Allocation& one) {
          if (!lacks_store(one)) return;
          make_store(one);
          made.push_back(&one);
        });
        put_to_sleep(chosen, tag);
      } catch (...) {
        for (Allocation* const one : made) {
          if (!one->paused) release(one->store);
        }
        throw;
      }
    }
    return others == 0 ? kSuccess : kInvalidValue;
  }

  int resume(const std::string& tag) {
    const Lock lock = enter();
    Chosen chosen = choose(tag);
    const size_t others = std::erase_if(chosen, [](const Allocation* one) { return !one->paused; });
    if (others != 0) report("%zu of %zu allocations are not paused", others, others + chosen.size());
    if (!chosen.empty()) {
      // What has no backup comes last: a call that fails has not woken it, and drops only what it has woken.
      std::partition(chosen.begin(), chosen.end(), has_store);
      Chosen woken;
      woken.reserve(chosen.size());
      // While memory is made, the copies to what was made before it go on.
      copy_back(chosen, woken, [&](Allocation& one) {
        if (is_awake(one)) return;
        call(gpumem_buffer_wake, one.buffer, nullptr);
        woken.push_back(&one);
      });
      for (Allocation* const one : chosen) {
        one->paused = false;
        if (!retain_ && one->backup != Backup::kFile) release(one->store);
      }
    }
    return others == 0 ? kSuccess : kInvalidValue;
  }

  void prepare(const std::string& tag) {
    const Lock lock = enter();
    Chosen chosen = choose(tag);
    std::erase_if(chosen, [](const Allocation* one) { return one->paused || !lacks_store(*one); });
    try {
      for (Allocation* const one : chosen)
        make_store(*one);
    } catch (...) {
      for (Allocation* const one : chosen)
        release(one->store);
      throw;
    }
  }

  uint8_t* backup_of(const void* pointer, uint64_t size) {
    const Lock lock = enter();
    const Allocation* const one = containing(pointer, size);
    if (one == nullptr) throw Failure(GPUMEM_ERROR_NOT_FOUND, "no allocation of a region has these bytes");
    if (one->backup == Backup::kFile) return nullptr;
    if (one->store.data == nullptr) {
      if (one->paused)
        throw Failure(GPUMEM_ERROR_NOT_FOUND,
                      "the allocation is paused without a backup; enable cpu backup when it is made");
      return nullptr;
    }
    return static_cast<uint8_t*>(one->store.data) +
           (static_cast<const uint8_t*>(pointer) - static_cast<const uint8_t*>(one->base));
  }

  uint64_t keep_resident(const void* pointer) {
    const Lock lock = enter();
    Allocation* const one = containing(pointer, 1);
    if (one == nullptr) return 0;
    if (one->paused)
      throw Failure(GPUMEM_ERROR_INVALID_STATE,
                    "the allocation is paused; resume it before it is to be resident");
    one->resident = true;
    return one->capacity;
  }

  uint32_t devices(const std::string& tag, int* out_ordinals, uint32_t capacity) {
    const Lock lock = enter();
    std::set<int> ordinals;
    for (const auto& [base, one] : allocations_) {
      if (tag.empty() || one.tag == tag) ordinals.insert(one.ordinal);
    }
    const auto count = static_cast<uint32_t>(ordinals.size());
    if (out_ordinals != nullptr) std::copy_n(ordinals.begin(), std::min(capacity, count), out_ordinals);
    return count;
  }

  gpumem_group group() {
    const Lock lock = enter();
    return open_group();
  }

  void set_margin(uint64_t bytes) { margin_ = bytes; }
  void set_retain(bool retain) { retain_ = retain; }
  bool retains() const { return retain_; }
  void set_directory(const char* directory) {
    const Lock lock = enter();
    directory_ = directory;
  }

 private:
  Saver() {
    // TMS_DISK_BACKUP_DIR | a folder | `/tmp` | folder of these files
    const char* const directory = std::getenv("TMS_DISK_BACKUP_DIR");
    directory_ = directory == nullptr ? "/tmp" : directory;
  }

  using Lock = std::unique_lock<std::mutex>;

  // A child process has the lock as it was, and must not touch it.
  Lock enter() {
    if (forked_)
      throw Failure(GPUMEM_ERROR_FORKED,
                    "this process was forked from one that uses the GPU through gpumem; start processes with "
                    "\"spawn\"");
    return Lock(mutex_);
  }

  gpumem_group open_group() {
    if (instance_ == nullptr) {
      [[maybe_unused]] static const int registered =
          pthread_atfork(nullptr, nullptr, [] { get().forked_ = true; });
      gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
      desc.backend = GPUMEM_BACKEND_CUDA;
      desc.name = "torch_memory_saver";
      call(gpumem_instance_open, &desc, &instance_);
    }
    if (group_ == nullptr) call(gpumem_group_create, instance_, nullptr, &group_);
    return group_;
  }

  Gpu& gpu_of(int ordinal) {
    if (ordinal < 0) throw Failure(GPUMEM_ERROR_INVALID_ARGUMENT, "the ordinal of the device is negative");
    (void)open_group();
    Gpu& gpu = gpus_[ordinal];
    if (gpu.device == nullptr)
      call(gpumem_device_get, instance_, static_cast<uint32_t>(ordinal), &gpu.device);
    if (gpu.stream == nullptr) call(gpumem_stream_create, gpu.device, nullptr, &gpu.stream);
    if (gpu.gate == nullptr) {
      gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
      desc.reserve = 1;
      call(gpumem_buffer_create, gpu.device, &desc, &gpu.gate);
    }
    return gpu;
  }

  void* make(uint64_t size, int ordinal, const Settings& wanted) {
    const Backup backup = wanted.backup();
    const std::string tag = group_tag(wanted.tag);
    Gpu& gpu = gpu_of(ordinal);
    check_margin(gpu, size);
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = size;
    desc.reserve = size;
    desc.flags = GPUMEM_BUFFER_RESERVE_ALL;
    desc.prefer = GPUMEM_PHYSICAL_RDMA;
    desc.group = group_;
    desc.tag = tag.c_str();
    gpumem_buffer buffer = nullptr;
    call(gpumem_buffer_create, gpu.device, &desc, &buffer);
    try {
      gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
      call(gpumem_buffer_get_info, buffer, &info);
      allocations_.emplace(
          reinterpret_cast<uintptr_t>(info.base),
          Allocation{size, info.capacity, buffer, ordinal, &gpu, wanted.tag, backup, info.base});
      return info.base;
    } catch (...) {
      (void)gpumem_buffer_destroy(buffer, nullptr);
      throw;
    }
  }

  void check_margin(const Gpu& gpu, uint64_t size) const {
    const uint64_t margin = margin_;
    if (margin == 0) return;
    uint64_t free = 0;
    call(gpumem_device_get_memory, gpu.device, &free, nullptr);
    if (free < margin || free - margin < size)
      throw Failure(GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, std::to_string(size) + " bytes and a margin of " +
                                                           std::to_string(margin) + " are more than the " +
                                                           std::to_string(free) + " bytes that are free");
  }

  // Those with a tag that may sleep.
  Chosen choose(const std::string& tag) {
    Chosen chosen;
    for (auto& [base, one] : allocations_) {
      if ((tag.empty() || one.tag == tag) && !one.resident) chosen.push_back(&one);
    }
    return chosen;
  }

  Allocation* containing(const void* pointer, uint64_t size) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    auto place = allocations_.upper_bound(address);
    if (place == allocations_.begin()) return nullptr;
    --place;
    const uint64_t offset = address - place->first;
    Allocation& one = place->second;
    return offset <= one.size && size <= one.size - offset ? &one : nullptr;
  }

  static void finish_work(const Chosen& chosen) {
    std::set<const Gpu*> gpus;
    for (const Allocation* const one : chosen)
      gpus.insert(one->gpu);
    for (const Gpu* const gpu : gpus) {
      gpumem_sleep_desc drop = GPUMEM_SLEEP_DESC_INIT;
      drop.content = GPUMEM_CONTENT_DROP;
      call(gpumem_buffer_sleep, gpu->gate, &drop);
      call(gpumem_buffer_wake, gpu->gate, nullptr);
    }
  }

  static bool has_store(const Allocation* one) { return one->store.kind != Backup::kNone; }
  static bool lacks_store(const Allocation& one) { return one.backup != Backup::kNone && !has_store(&one); }

  void make_store(Allocation& one) const {
    Store made{one.backup, one.size};
    if (one.backup == Backup::kPinned) {
      call(gpumem_malloc, one.gpu->device, GPUMEM_KIND_PINNED, one.size, &made.data);
    } else if (one.backup == Backup::kMapped) {
      made.data = mmap(nullptr, one.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (made.data == MAP_FAILED) fail_by_errno(GPUMEM_ERROR_OUT_OF_HOST_MEMORY, "a backup", errno);
    } else {
      // Beyond the limit a signal would end the process.
      rlimit limit{};
      if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
          one.size > limit.rlim_cur)
        throw Failure(GPUMEM_ERROR_LIMIT_EXCEEDED, "a backup of " + std::to_string(one.size) +
                                                       " bytes is larger than RLIMIT_FSIZE allows (" +
                                                       std::to_string(limit.rlim_cur) +
                                                       "); raise the limit (ulimit -f)");
      std::error_code ignored;
      std::filesystem::create_directories(directory_, ignored);
      std::string name = directory_ + "/tms_XXXXXX";
      made.file = mkostemp(name.data(), O_CLOEXEC);
      if (made.file < 0) fail_by_errno(GPUMEM_ERROR_PERMISSION_DENIED, "a file in " + directory_, errno);
      // It goes with the process, however that ends.
      (void)unlink(name.c_str());
      int full = EINTR;
      while (full == EINTR)
        full = posix_fallocate(made.file, 0, static_cast<off_t>(one.size));
      if (full != 0) {
        (void)close(made.file);
        fail_by_errno(GPUMEM_ERROR_LIMIT_EXCEEDED, "a file in " + directory_, full);
      }
    }
    one.store = made;
  }

  void release(Store& store) const {
    if (store.kind == Backup::kPinned) {
      gpumem_error error = GPUMEM_ERROR_INIT;
      if (GPUMEM_FAILED(gpumem_free(instance_, store.data, &error)))
        report("a backup stays allocated: %s", error.message);
    } else if (store.kind == Backup::kMapped) {
      (void)munmap(store.data, store.size);
    } else if (store.kind == Backup::kFile) {
      (void)close(store.file);
    }
    store = {};
  }

  // Between the allocations and their stores, each after `prepare` was called for it.
  template <class Prepare>
  void copy(const Chosen& chosen, gpumem_file_direction direction, Prepare prepare) const {
    const bool saves = direction == GPUMEM_FILE_DIRECTION_FROM_MEMORY;
    std::set<gpumem_stream> streams;
    try {
      for (Allocation* const one : chosen) {
        prepare(*one);
        if (one->store.kind != Backup::kPinned) continue;
        streams.insert(one->gpu->stream);
        call(gpumem_copy_async, one->gpu->stream, saves ? one->store.data : one->base,
             saves ? one->base : one->store.data, one->size, nullptr);
      }
      for (const Allocation* const one : chosen) {
        if (one->store.kind == Backup::kMapped) {
          call(gpumem_copy, instance_, saves ? one->store.data : one->base,
               saves ? one->base : one->store.data, one->size, nullptr);
        } else if (one->store.kind == Backup::kFile) {
          copy_file(*one, direction);
        }
      }
      for (const gpumem_stream stream : streams)
        call(gpumem_stream_synchronize, stream, GPUMEM_TIMEOUT_INFINITE);
    } catch (...) {
      for (const gpumem_stream stream : streams)
        (void)gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr);
      throw;
    }
  }

  void copy_file(const Allocation& one, gpumem_file_direction direction) const {
    gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
    desc.file_descriptor = one.store.file;
    desc.direction = direction;
    desc.pointer = one.base;
    desc.size = one.size;
    call(gpumem_copy_file, instance_, &desc, nullptr);
    // The backup is not to take the memory of the host after all.
    (void)fdatasync(one.store.file);
    (void)posix_fadvise(one.store.file, 0, 0, POSIX_FADV_DONTNEED);
  }

  static bool is_awake(const Allocation& one) {
    gpumem_buffer_info info = GPUMEM_BUFFER_INFO_INIT;
    return GPUMEM_FAILED(gpumem_buffer_get_info(one.buffer, &info, nullptr)) ||
           info.state == GPUMEM_BUFFER_STATE_AWAKE;
  }

  static gpumem_status sleep_alone(const Allocation& one, gpumem_error* error = nullptr) {
    gpumem_sleep_desc drop = GPUMEM_SLEEP_DESC_INIT;
    drop.content = GPUMEM_CONTENT_DROP;
    return gpumem_buffer_sleep(one.buffer, &drop, error);
  }

  // PyTorch frees memory whose last work it has not observed, as cudaFree() waits for it. A call for the
  // group that has put the buffer to sleep meanwhile has waited.
  static gpumem_status destroy(Allocation& one, gpumem_error* error) {
    if (!one.paused) {
      const gpumem_status status = sleep_alone(one, error);
      if (GPUMEM_FAILED(status) && status != GPUMEM_ERROR_DEVICE_LOST && is_awake(one)) return status;
      one.paused = true;
    }
    return gpumem_buffer_destroy(one.buffer, error);
  }

  // It may wait for the devices, which ends a capture: only for calls that do so too, or cannot go on.
  void free_orphans() {
    for (auto at = orphans_.begin(); at != orphans_.end();)
      at = GPUMEM_FAILED(destroy(at->second, nullptr)) ? std::next(at) : orphans_.erase(at);
  }

  void put_to_sleep(const Chosen& chosen, const std::string& tag) {
    const bool all = std::none_of(allocations_.begin(), allocations_.end(), [&](const auto& entry) {
      return entry.second.resident && (tag.empty() || entry.second.tag == tag);
    });
    // Beside resident memory they sleep one by one: those first whose content a failure does not lose.
    Chosen ordered = chosen;
    std::partition(ordered.begin(), ordered.end(), has_store);
    try {
      if (all) {
        const std::string name = group_tag(tag);
        gpumem_sleep_desc drop = GPUMEM_SLEEP_DESC_INIT;
        drop.content = GPUMEM_CONTENT_DROP;
        drop.tag = name.c_str();
        call(gpumem_group_sleep, group_, &drop);
      } else {
        for (const Allocation* const one : ordered) {
          gpumem_error error = GPUMEM_ERROR_INIT;
          if (GPUMEM_FAILED(sleep_alone(*one, &error))) throw Failure(error.status, error.message);
        }
      }
    } catch (...) {
      note_sleepers(chosen, !all);
      throw;
    }
    for (Allocation* const one : chosen)
      one->paused = true;
  }

  // If it fails, those that were woken for it, also by `prepare`, sleep again, without what is in their
  // memory.
  template <class Prepare>
  void copy_back(const Chosen& chosen, const Chosen& woken, Prepare prepare) const {
    try {
      copy(chosen, GPUMEM_FILE_DIRECTION_TO_MEMORY, prepare);
    } catch (...) {
      for (const Allocation* const one : woken)
        (void)sleep_alone(*one);
      throw;
    }
  }

  // After a failure. What cannot be woken with its content waits for tms_resume().
  void note_sleepers(const Chosen& chosen, bool wake) {
    // At once, as it keeps the stores.
    for (Allocation* const one : chosen)
      one->paused = !is_awake(*one);
    if (!wake) return;
    Chosen woken;
    woken.reserve(chosen.size());
    for (Allocation* const one : chosen) {
      if (!one->paused || GPUMEM_FAILED(gpumem_buffer_wake(one->buffer, nullptr, nullptr))) continue;
      if (one->store.kind == Backup::kNone) {
        one->paused = false;
      } else {
        woken.push_back(one);
      }
    }
    copy_back(woken, woken, [](const Allocation&) {});
    for (Allocation* const one : woken)
      one->paused = false;
  }

  std::mutex mutex_;  // guards all below but the atomics
  gpumem_instance instance_ = nullptr;
  gpumem_group group_ = nullptr;
  std::map<int, Gpu> gpus_;
  Allocations allocations_;
  std::multimap<uintptr_t, Allocation> orphans_;  // freed by the program, but not yet here
  std::string directory_;                         // of files
  std::atomic<bool> forked_ = false;              // this is a child of the process that opened the instance
  std::atomic<uint64_t> margin_ = 0;
  // TMS_RETAIN_CPU_BACKUP | on, off | off | the backup is kept for the next pause
  std::atomic<bool> retain_ = is_set("TMS_RETAIN_CPU_BACKUP");
};

std::string tag_of(const char* tag) { return tag == nullptr ? "" : tag; }

// A function of the CUDA runtime behind this library, when that was preloaded.
template <class Function>
Function real(const char* name) {
  const auto function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  if (function == nullptr)
    report("%s was called, but no other library has it; is the CUDA runtime loaded?", name);
  return function;
}

}  // namespace

// ---- memory ----

TMS_API void* tms_torch_malloc(ssize_t size, int device, void* /*stream*/) {
  return guarded("tms_torch_malloc", static_cast<void*>(nullptr), [&] {
    if (size <= 0) throw Failure(GPUMEM_ERROR_INVALID_ARGUMENT, "the size is not positive");
    if (settings.interesting) return Saver::get().allocate(static_cast<uint64_t>(size), device, settings);
    static std::atomic<bool> told = false;
    if (!told.exchange(true)) report("memory is allocated outside of a region; such memory is never paused");
    return Saver::get().allocate_plain(static_cast<uint64_t>(size), device);
  });
}

TMS_API void tms_torch_free(void* pointer, ssize_t /*size*/, int /*device*/, void* /*stream*/) {
  if (pointer == nullptr) return;
  (void)with_status("tms_torch_free", [&] {
    if (!Saver::get().release(pointer)) Saver::get().release_plain(pointer);
    return kSuccess;
  });
}

// The two that a process gets to which this library is preloaded.

TMS_API int cudaMalloc(void** out_pointer, size_t size) {
  if (settings.interesting && out_pointer != nullptr && size != 0) {
    return with_status("cudaMalloc", [&] {
      const auto get_device = real<int (*)(int*)>("cudaGetDevice");
      int device = 0;
      if (get_device == nullptr) return kUnknown;
      if (const int failed = get_device(&device); failed != kSuccess) return failed;
      *out_pointer = Saver::get().allocate(size, device, settings);
      return kSuccess;
    });
  }
  const auto function = real<int (*)(void**, size_t)>("cudaMalloc");
  return function == nullptr ? kUnknown : function(out_pointer, size);
}

TMS_API int cudaFree(void* pointer) {
  bool ours = false;
  const int status = with_status("cudaFree", [&] {
    ours = pointer != nullptr && Saver::get().release(pointer);
    return kSuccess;
  });
  if (ours || status != kSuccess) return status;
  const auto function = real<int (*)(void*)>("cudaFree");
  return function == nullptr ? kUnknown : function(pointer);
}

// ---- what a region is ----

TMS_API void tms_set_interesting_region(bool interesting) { settings.interesting = interesting; }

TMS_API bool tms_get_interesting_region() { return settings.interesting; }

TMS_API void tms_set_current_tag(const char* tag) {
  if (tag == nullptr) return report("tms_set_current_tag: the tag is NULL; it stays as it is");
  (void)with_status("tms_set_current_tag", [&] {
    settings.tag = tag;
    return kSuccess;
  });
}

TMS_API const char* tms_get_current_tag() { return settings.tag.c_str(); }

TMS_API void tms_set_enable_cpu_backup(bool enable) { settings.cpu_backup = enable; }

TMS_API bool tms_get_enable_cpu_backup() { return settings.cpu_backup; }

TMS_API void tms_set_cpu_backup_backend(const char* backend) {
  settings.backend = backup_named(backend).value_or(settings.backend);
}

TMS_API const char* tms_get_cpu_backup_backend() {
  return settings.backend == Backup::kMapped ? "mmap" : "pinned";
}

TMS_API void tms_set_enable_disk_backup(bool enable) { settings.disk_backup = enable; }

TMS_API bool tms_get_enable_disk_backup() { return settings.disk_backup; }

// ---- what the process has ----

TMS_API void tms_set_disk_backup_dir(const char* directory) {
  if (directory == nullptr)
    return report("tms_set_disk_backup_dir: the directory is NULL; it stays as it is");
  (void)with_status("tms_set_disk_backup_dir", [&] {
    Saver::get().set_directory(directory);
    return kSuccess;
  });
}

TMS_API void set_memory_margin_bytes(uint64_t bytes) { Saver::get().set_margin(bytes); }

TMS_API void tms_set_retain_cpu_backup(bool retain) { Saver::get().set_retain(retain); }

TMS_API bool tms_get_retain_cpu_backup() { return Saver::get().retains(); }

TMS_API int tms_pause(const char* tag) {
  return with_status("tms_pause", [&] { return Saver::get().pause(tag_of(tag)); });
}

TMS_API int tms_resume(const char* tag) {
  return with_status("tms_resume", [&] { return Saver::get().resume(tag_of(tag)); });
}

TMS_API uint64_t tms_keep_resident(const void* pointer) {
  return guarded("tms_keep_resident", uint64_t{0}, [&] { return Saver::get().keep_resident(pointer); });
}

TMS_API uint32_t tms_affected_devices(const char* tag, int* out_devices, uint32_t capacity) {
  return guarded("tms_affected_devices", uint32_t{0},
                 [&] { return Saver::get().devices(tag_of(tag), out_devices, capacity); });
}

TMS_API uint8_t* tms_get_cpu_backup_pointer(const uint8_t* pointer, uint64_t size) {
  return guarded("tms_get_cpu_backup_pointer", static_cast<uint8_t*>(nullptr),
                 [&] { return Saver::get().backup_of(pointer, size); });
}

// Not in the original: makes the backups now, so that the first pause only copies.
TMS_API int gpumem_tms_prepare(const char* tag) {
  return with_status("gpumem_tms_prepare", [&] {
    Saver::get().prepare(tag_of(tag));
    return kSuccess;
  });
}

// Not in the original: the group, for a program that puts it to sleep by the functions of gpumem, and then by
// none of those above.
TMS_API gpumem_group gpumem_tms_group() {
  return guarded("gpumem_tms_group", gpumem_group{nullptr}, [] { return Saver::get().group(); });
}
