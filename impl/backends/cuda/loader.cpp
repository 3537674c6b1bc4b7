// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/loader.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "backends/cuda/error.h"
#include "base/cleanup.h"
#include "platform/fork.h"
#include "platform/library.h"
#include "platform/thread_record.h"

namespace gpumem::cuda {

bool wait_to_retry(int next) {
  constexpr int kTries = 100;  // 94 ms of pauses in all
  constexpr useconds_t kFirstPause = 10;
  constexpr useconds_t kLongestPause = 1000;
  if (next >= kTries) return false;
  usleep(next < 8 ? kFirstPause << (next - 1) : kLongestPause);
  return true;
}

constinit std::atomic<bool> process_ends{false};

namespace {

#define GPUMEM_CUDA_SAME_SIGNATURE(name, since, suffix) \
  static_assert(std::is_same_v<decltype(Driver::name), Entry<PFN_cu##name##_v##since>>);
GPUMEM_CUDA_OLDER_VARIANTS(GPUMEM_CUDA_SAME_SIGNATURE)
#undef GPUMEM_CUDA_SAME_SIGNATURE

// No lock: a child forked while another thread holds it would wait forever. Two threads that load at once
// find the same library, and one of their tables is kept.
constinit std::atomic<const Driver*> the_driver{nullptr};

// Process in which cuInit succeeded, plus 1; 0 if none. Set before cuInit runs, because a child forked
// meanwhile has a half-initialized driver whose locks nobody releases.
constinit std::atomic<uint64_t> initialised_in{0};

constinit std::atomic<bool> end_is_noticed{false};

// Registered after the driver's own exit handlers, and so runs before them. Gives calls inside the driver a
// moment to return.
void notice_end() {
  constexpr uint32_t kMomentMs = 10;
  process_ends.store(true);
  platform::wait_for_others(kMomentMs);
}

class Symbols {
 public:
  explicit Symbols(void* library)
      : library_(library),
        get_(reinterpret_cast<PFN_cuGetProcAddress_v12000>(
            platform::find_symbol(library, "cuGetProcAddress_v2"))),
        older_get_(reinterpret_cast<PFN_cuGetProcAddress_v11030>(
            platform::find_symbol(library, "cuGetProcAddress"))) {}

  // Null if the driver lacks this variant.
  void* find(const char* name, int version, const std::string& symbol) const {
    if (get_ == nullptr && older_get_ == nullptr) return platform::find_symbol(library_, symbol.c_str());
    constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void* function = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult code = get_ != nullptr ? get_(name, &function, version, kFlags, &status)
                                          : older_get_(name, &function, version, kFlags);
    if (code == CUDA_SUCCESS) return function;
    const bool absent =
        code == CUDA_ERROR_NOT_FOUND || code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_SUPPORTED;
    if (!absent && failure_.ok()) failure_ = {code, "cuGetProcAddress"};
    return nullptr;
  }

  // The first look-up that failed for a reason other than a missing variant.
  Outcome failure() const { return failure_; }

 private:
  mutable Outcome failure_;
  void* library_;
  PFN_cuGetProcAddress_v12000 get_;
  PFN_cuGetProcAddress_v11030 older_get_;
};

// One variant of an entry point.
struct Variant {
  uint16_t entry;  // its offset in Driver
  uint16_t since;
  bool suffixed;  // the symbol ends in _v2
  bool required;
};

// Compiles with the suffixes that there are.
consteval bool is_v2(std::string_view suffix) {
  return suffix == "_v2" || (suffix.empty() ? false : throw suffix);
}

// Older ones come after newer ones.
constexpr Variant kVariants[] = {
#define GPUMEM_CUDA_VARIANT(member, since, suffix, required) \
  {offsetof(Driver, member), since, is_v2(suffix), required},
#define GPUMEM_CUDA_REQUIRED(name, since, suffix) GPUMEM_CUDA_VARIANT(name, since, suffix, true)
#define GPUMEM_CUDA_OPTIONAL(name, since, suffix) GPUMEM_CUDA_VARIANT(name, since, suffix, false)
#define GPUMEM_CUDA_OTHER(member, name, since, suffix) GPUMEM_CUDA_VARIANT(member, since, suffix, false)
    GPUMEM_CUDA_ENTRY_POINTS(GPUMEM_CUDA_REQUIRED, GPUMEM_CUDA_OPTIONAL)
        GPUMEM_CUDA_OLDER_VARIANTS(GPUMEM_CUDA_OPTIONAL) GPUMEM_CUDA_OTHER_SIGNATURES(GPUMEM_CUDA_OTHER)
#undef GPUMEM_CUDA_OTHER
#undef GPUMEM_CUDA_OPTIONAL
#undef GPUMEM_CUDA_REQUIRED
#undef GPUMEM_CUDA_VARIANT
};

// An entry of any signature, which is known to its callers only. Reads and writes its bytes.
class AnyEntry {
 public:
  AnyEntry(Driver& driver, const Variant& variant)
      : bytes_(reinterpret_cast<char*>(&driver) + variant.entry) {}
  const char* name() const { return read<const char*>(offsetof(Some, name)); }
  bool found() const { return read<void*>(offsetof(Some, function)) != nullptr; }
  void fill(void* function, int version) {
    std::memcpy(bytes_ + offsetof(Some, function), &function, sizeof function);
    std::memcpy(bytes_ + offsetof(Some, version), &version, sizeof version);
  }

 private:
  using Some = Entry<PFN_cuInit_v2000>;
  static_assert(std::is_standard_layout_v<Driver> && sizeof(PFN_cuInit_v2000) == sizeof(void*));

  template <class T>
  T read(size_t offset) const {
    T value;
    std::memcpy(&value, bytes_ + offset, sizeof value);
    return value;
  }

  char* bytes_;
};

// The driver's version; the query also detects a stub.
Result<int> find_version(void* library) {
  // Look it up with dlsym: it has one variant, and the Toolkit's stub returns 34 from every call.
  const Entry<PFN_cuDriverGetVersion_v2020> get_version{
      "cuDriverGetVersion",
      reinterpret_cast<PFN_cuDriverGetVersion_v2020>(platform::find_symbol(library, "cuDriverGetVersion"))};
  int version = 0;
  const Outcome outcome = get_version(&version);
  if (!outcome.ok()) return error_of(outcome, Place::kHost, "cannot query the version of the CUDA driver");
  if (version < GPUMEM_CUDA_DRIVER_VERSION_MIN) {
    return make_error(
        GPUMEM_ERROR_DRIVER_TOO_OLD,
        "the CUDA driver has version %d.%d, but %d.%d or newer is needed; install a newer driver",
        version / 1000, version % 1000 / 10, GPUMEM_CUDA_DRIVER_VERSION_MIN / 1000,
        GPUMEM_CUDA_DRIVER_VERSION_MIN % 1000 / 10);
  }
  return version;
}

Result<std::unique_ptr<Driver>> resolve(void* library) {
  auto version = find_version(library);
  if (!version) return version.error();
  static constexpr Driver kEmpty{};  // to copy; a constructor would be as long as the list of names
  auto driver = std::make_unique<Driver>(kEmpty);
  driver->version = *version;
  const Symbols symbols(library);
  for (const Variant& variant : kVariants) {
    AnyEntry entry(*driver, variant);
    if (entry.found() || variant.since > *version) continue;
    const std::string symbol = std::string(entry.name()) + (variant.suffixed ? "_v2" : "");
    entry.fill(symbols.find(entry.name(), variant.since, symbol), variant.since);
  }
  if (!symbols.failure().ok()) {
    return error_of(symbols.failure(), Place::kHost, "cannot get the CUDA driver's entry points");
  }
  for (const Variant& variant : kVariants) {
    const AnyEntry entry(*driver, variant);
    if (variant.required && !entry.found())
      return error_of({kMissing, entry.name()}, Place::kHost, "the CUDA driver lacks a required entry point");
  }
  return driver;
}

Result<const Driver*> find_driver() {
  if (const Driver* driver = the_driver.load(std::memory_order_acquire)) return driver;
  auto library = platform::load_library("libcuda.so.1", GPUMEM_ERROR_DRIVER_NOT_FOUND);
  if (!library) {
    Error error = make_error(GPUMEM_ERROR_DRIVER_NOT_FOUND,
                             "there is no CUDA driver (%s); install one, or use the host backend",
                             library.error().message);
    error.entry_point = library.error().entry_point;
    return error;
  }
  // An unusable library is unloaded, so that the next attempt can find another one.
  Cleanup unload([&] { platform::unload_library(*library); });
  auto driver = resolve(*library);
  if (!driver) return driver.error();
  unload.dismiss();
  const Driver* expected = nullptr;
  if (the_driver.compare_exchange_strong(expected, driver->get())) return driver->release();
  return expected;
}

Error init_error(Outcome outcome) {
  // The driver returns this in a child whose parent had initialized it through other code.
  if (outcome.code == CUDA_ERROR_NOT_INITIALIZED) {
    return make_error(GPUMEM_ERROR_FORKED,
                      "the CUDA driver cannot be initialized in a forked child; start the child with exec")
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  const bool maybe_denied = outcome.code == CUDA_ERROR_NO_DEVICE ||
                            outcome.code == CUDA_ERROR_OPERATING_SYSTEM || outcome.code == CUDA_ERROR_UNKNOWN;
  if (maybe_denied && device_files_denied("/dev")) {
    return make_error(
               GPUMEM_ERROR_PERMISSION_DENIED,
               "this user may not open the driver's device files; check the permissions of /dev/nvidia*")
        .from_native(GPUMEM_NATIVE_CUDA, outcome.code, name_of(outcome.code), outcome.entry_point);
  }
  return error_of(outcome, Place::kHost, "cannot initialize the CUDA driver");
}

}  // namespace

Result<const Driver*> load() {
  const uint64_t here = uint64_t{platform::process_epoch()} + 1;
  const uint64_t initialised = initialised_in.load();
  if (initialised != 0 && initialised != here) {
    return make_error(
        GPUMEM_ERROR_FORKED,
        "the parent had initialized the CUDA driver before it forked; start the child with exec");
  }
  auto driver = find_driver();
  if (!driver) return driver.error();
  uint64_t nobody = 0;
  const bool first = initialised_in.compare_exchange_strong(nobody, here);
  const Outcome outcome = (*driver)->Init(0);
  if (!outcome.ok()) {
    // If another thread succeeded meanwhile, the driver itself rejects a forked child.
    if (first) initialised_in.store(0);
    return init_error(outcome);
  }
  initialised_in.store(here);
  if (!end_is_noticed.exchange(true)) (void)std::atexit(notice_end);
  return *driver;
}

bool device_files_denied(const char* folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(folder), &closedir);
  if (listing == nullptr) return false;
  bool denied = false;
  while (const dirent* entry = readdir(listing.get())) {
    const std::string name = entry->d_name;
    const bool device = name.size() > 6 && std::isdigit(static_cast<unsigned char>(name[6])) != 0;
    if (!name.starts_with("nvidia") || !(device || name == "nvidiactl" || name == "nvidia-uvm")) continue;
    const std::string path = std::string(folder) + "/" + name;
    if (faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) != 0) {
      denied = denied || errno == EACCES || errno == EPERM;
    }
  }
  return denied;
}

}  // namespace gpumem::cuda
