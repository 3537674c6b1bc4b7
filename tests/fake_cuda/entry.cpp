// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The entry table, the one guard through which every entry point goes, the exported symbols, and
// cuGetProcAddress.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "driver.h"

namespace fake {
namespace {

enum Rule : unsigned {
  kBeforeInit = 1,  // works before cuInit
  kAnywhere = 2,    // and also inside a host function and in a forked child: needs no state but the version
  kContext = 4,     // needs a current context that is alive and not lost
  kHealthy = 8,     // needs none, but the current one must not be lost
  kRelease = 16,    // gives something back: does its work even when it is made to fail (see is_refusal)
  kUnsafe = 32,     // refused while a stream capture forbids it
};

enum Index : size_t {
#define ENTRY(base, symbol, version, rules) k_##symbol,
#include "entries.inc"
#undef ENTRY
  kEntryCount
};

struct Entry {
  const char* base;
  const char* symbol;
  int version;
  unsigned rules;
  void* function;
};

const Entry& entry(size_t index);

thread_local std::unique_lock<std::mutex>* t_lock = nullptr;

// What the call is answered before its body is asked, or success.
CUresult admit(const Entry& called) {
  Driver& d = driver();
  ++d.all_calls;
  ++d.calls[static_cast<size_t>(&called - &entry(0))];
  if (d.exiting) {
    violation("call-after-exit", called.symbol);
    return CUDA_ERROR_DEINITIALIZED;
  }
  if (t_in_host_function && !(called.rules & kAnywhere)) {
    violation("call-in-host-function", called.symbol);
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (!d.initialized && !(called.rules & (kBeforeInit | kAnywhere))) return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

CUresult inject(const Entry& called) {
  Driver& d = driver();
  if (d.config.sticky_at != 0 && d.all_calls >= d.config.sticky_at) {
    lose_device(-1, d.config.sticky_code);
    d.config.sticky_at = 0;
  }
  return apply_fault_rules(called.base, called.symbol);
}

CUresult lost(const Entry& called) {
  bool none = context_stack().empty() && !(called.rules & kContext);
  bool demanded = driver().config.needs_context && (called.rules & kHealthy) && !(called.rules & kRelease);
  if (none && demanded) return CUDA_ERROR_INVALID_CONTEXT;
  if (none || !(called.rules & (kContext | kHealthy))) return CUDA_SUCCESS;
  return current_context()->device->sticky;
}

// What gives back may answer the error of earlier work and has done its work all the same. These codes say
// that the call itself was turned down.
bool is_refusal(CUresult code) {
  bool capture =
      code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  bool busy = code == CUDA_ERROR_NOT_READY || code == CUDA_ERROR_DEVICE_UNAVAILABLE ||
              code == CUDA_ERROR_MPS_SERVER_NOT_READY;
  return capture || busy || code == CUDA_ERROR_ILLEGAL_STATE || code == CUDA_ERROR_NOT_PERMITTED;
}

template <class Body>
CUresult run(const Body& body) {
  try {
    return body();
  } catch (const Failure& failure) {
    return failure.code;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

template <class Body>
CUresult guarded(size_t index, const Body& body) {
  const Entry& called = entry(index);
  if (in_forked_child()) {
    if (called.rules & kAnywhere) return run(body);
    violation("call-after-fork", called.symbol);
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  std::unique_lock lock(driver().mutex);
  t_lock = &lock;
  return run([&] {
    CUresult refusal = admit(called);
    if (refusal != CUDA_SUCCESS) return refusal;
    refusal = inject(called);
    if (refusal == CUDA_SUCCESS) refusal = lost(called);
    if (refusal == CUDA_SUCCESS && (called.rules & kUnsafe)) refusal = refuse_in_capture();
    if (refusal == CUDA_SUCCESS) return body();
    if ((called.rules & kRelease) && !is_refusal(refusal)) body();
    return refusal;
  });
}

template <size_t index, auto body>
struct Guarded;

template <size_t index, class... Arguments, CUresult (*body)(Arguments...)>
struct Guarded<index, body> {
  static CUresult call(Arguments... arguments) {
    return guarded(index, [&] { return body(arguments...); });
  }
};

// The Toolkit names the version in which each prototype appeared.
#define ENTRY(base, symbol, version, rules) \
  static_assert(std::is_same_v<decltype(&::symbol), PFN_##base##_v##version>);
#include "entries.inc"
#undef ENTRY

const Entry kEntries[] = {
#define ENTRY(base, symbol, version, rules) \
  {#base, #symbol, version, rules, reinterpret_cast<void*>(&Guarded<k_##symbol, &fake::symbol>::call)},
#include "entries.inc"
#undef ENTRY
};

const Entry& entry(size_t index) { return kEntries[index]; }

void* exported(size_t index) {
  return entry(index).version <= driver().version ? entry(index).function : nullptr;
}

// The newest variant that the asked version and the driver both have.
CUresult find_variant(const char* base, int version, cuuint64_t flags, void** function,
                      CUdriverProcAddressQueryResult* status) {
  require(base != nullptr && function != nullptr);
  require(flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  require(version <= driver().version);
  *function = nullptr;
  *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Entry& candidate : kEntries) {
    if (std::strcmp(candidate.base, base) != 0 || candidate.version > driver().version) continue;
    if (candidate.version <= version) {
      *function = candidate.function;
      *status = CU_GET_PROC_ADDRESS_SUCCESS;
    } else if (*function == nullptr) {
      *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
  }
  return CUDA_SUCCESS;
}

struct ResultName {
  CUresult code;
  const char* name;
};

const ResultName kResults[] = {
#define RESULT(name) {name, #name},
#include "errors.inc"
#undef RESULT
};

const ResultName* find_result(CUresult code) {
  for (const ResultName& result : kResults) {
    if (result.code == code) return &result;
  }
  return nullptr;
}

}  // namespace

Driver& driver() {
  static Driver* const only = [] {
    auto* made = new Driver;  // never destroyed: workers may outlive every destructor
    made->calls.resize(kEntryCount);
    read_environment(*made);
    return made;
  }();
  return *only;
}

void wait_until(const std::function<bool()>& ready) {
  std::unique_lock<std::mutex>* lock = t_lock;
  driver().progress.wait(*lock, ready);
}

void wait_until_or(const std::function<bool()>& ready, std::chrono::milliseconds limit) {
  driver().progress.wait_for(*t_lock, limit, ready);
}

void pause(unsigned microseconds) {
  if (microseconds != 0) without_lock([&] { usleep(microseconds); });
}

void without_lock(const std::function<void()>& run) {
  std::unique_lock<std::mutex>* lock = t_lock;
  lock->unlock();
  run();
  lock->lock();
}

uint64_t calls_of(const std::string& function) {
  uint64_t sum = 0;
  for (size_t index = 0; index < kEntryCount; ++index) {
    if (function == "*" || function == entry(index).base || function == entry(index).symbol) {
      sum += driver().calls[index];
    }
  }
  return sum;
}

bool is_entry_point(const std::string& function) {
  return std::any_of(std::begin(kEntries), std::end(kEntries),
                     [&](const Entry& one) { return function == one.base || function == one.symbol; });
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status;
  CUresult result = find_variant(symbol, version, flags, function, &status);
  if (result != CUDA_SUCCESS) return result;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  CUdriverProcAddressQueryResult found;
  CUresult result = find_variant(symbol, version, flags, function, &found);
  if (status != nullptr) *status = found;
  return result;
}

CUresult cuGetErrorName(CUresult code, const char** name) {
  require(name != nullptr);
  const ResultName* result = find_result(code);
  *name = result != nullptr ? result->name : nullptr;
  return result != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char** text) { return fake::cuGetErrorName(code, text); }

}  // namespace fake

// Each exported symbol is resolved when it is looked up, so that dlsym finds nothing newer than the driver's
// version.
#define ENTRY(base, symbol, version, rules)                                         \
  extern "C" decltype(&::symbol) fake_resolve_##symbol();                           \
  extern "C" decltype(&::symbol) fake_resolve_##symbol() {                          \
    return reinterpret_cast<decltype(&::symbol)>(fake::exported(fake::k_##symbol)); \
  }                                                                                 \
  extern "C" __attribute__((ifunc("fake_resolve_" #symbol), visibility("default"))) decltype(::symbol) symbol;
#include "entries.inc"
#undef ENTRY
