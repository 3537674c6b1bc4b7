// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The process-wide instance, configured by the environment.
#include <array>
#include <charconv>
#include <cstring>

#include "base/cleanup.h"
#include "base/text.h"
#include "core/instance/instance.h"
#include "platform/environment.h"

namespace gpumem::core {
namespace {

struct DefaultInstance {
  std::atomic<uint32_t> opening{
      0};  // epoch of the process in which a thread is at it; another one's is no lock
  std::atomic<uint32_t> epoch{0};  // of the process that `handle` belongs to
  std::atomic<uint64_t> handle{0};
};

constinit DefaultInstance default_instance;

Error bad_variable(const char* name, const char* value, const char* expected) {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT, "the environment variable %s is %s; it must be %s", name,
                    Quoted(value).text(), expected);
}

template <class T>
Result<void> read_number(const char* name, T* out) {
  const char* text = platform::environment(name);
  if (text == nullptr) return {};
  const char* end = text + std::strlen(text);
  T value{};
  const auto [stop, problem] = std::from_chars(text, end, value);
  if (problem != std::errc{} || stop != end) return bad_variable(name, text, "a whole number");
  *out = value;
  return {};
}

struct Word {
  const char* text;
  int32_t value;
};

template <size_t N>
Result<void> read_word(const char* name, const std::array<Word, N>& words, const char* expected,
                       int32_t* out) {
  const char* text = platform::environment(name);
  if (text == nullptr) return {};
  for (const Word& word : words) {
    if (std::strcmp(word.text, text) == 0) {
      *out = word.value;
      return {};
    }
  }
  return bad_variable(name, text, expected);
}

Result<void> read_toggle(const char* name, gpumem_toggle* out) {
  static constexpr std::array<Word, 4> kWords{{{"1", GPUMEM_TOGGLE_ON},
                                               {"on", GPUMEM_TOGGLE_ON},
                                               {"0", GPUMEM_TOGGLE_OFF},
                                               {"off", GPUMEM_TOGGLE_OFF}}};
  return read_word(name, kWords, "1, 0, on or off", out);
}

Result<void> read_transfer_threads(uint32_t* out) {
  constexpr const char* kName = "GPUMEM_TRANSFER_THREADS";
  const char* const text = platform::environment(kName);
  if (text != nullptr && std::strcmp(text, "off") == 0) {
    *out = TransferOptions::kOff;
    return {};
  }
  return read_number(kName, out);
}

void read_text(const char* name, std::string* out) {
  if (const char* text = platform::environment(name)) *out = text;
}

Result<OpenRequest> request_from_environment() {
  static constexpr std::array<Word, 3> kBackends{
      {{"any", GPUMEM_BACKEND_ANY}, {"cuda", GPUMEM_BACKEND_CUDA}, {"host", GPUMEM_BACKEND_HOST}}};
  static constexpr std::array<Word, 3> kLockModes{
      {{"try", GPUMEM_HOST_LOCK_TRY}, {"require", GPUMEM_HOST_LOCK_REQUIRE}, {"off", GPUMEM_HOST_LOCK_OFF}}};
  OpenRequest request;
  request.name = "default";
  backend::HostOptions& host = request.options.host;
  GPUMEM_TRY(read_word("GPUMEM_BACKEND", kBackends, "any, cuda or host", &request.backend));
  GPUMEM_TRY(read_number("GPUMEM_PIN_BUDGET", &request.pin_budget));
  GPUMEM_TRY(read_transfer_threads(&request.transfer.threads));
  GPUMEM_TRY(read_number("GPUMEM_TRANSFER_BYTES", &request.transfer.bytes));
  GPUMEM_TRY(read_number("GPUMEM_HOST_DEVICES", &host.device_count));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_STRICT", &host.strict));
  GPUMEM_TRY(read_number("GPUMEM_HOST_DEVICE_BYTES", &host.device_bytes));
  GPUMEM_TRY(read_number("GPUMEM_HOST_GRANULARITY", &host.granularity));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_PAGEABLE", &host.pageable));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_SAME_POINTER", &host.same_pointer));
  GPUMEM_TRY(read_word("GPUMEM_HOST_LOCK", kLockModes, "try, require or off", &host.lock_mode));
  GPUMEM_TRY(read_number("GPUMEM_HOST_NUMA_NODES", &host.numa_nodes));
  GPUMEM_TRY(read_number("GPUMEM_HOST_REGISTER_MAX", &host.register_count_max));
  GPUMEM_TRY(read_number("GPUMEM_HOST_LOCK_PIECE", &host.lock_piece));
  GPUMEM_TRY(read_number("GPUMEM_HOST_QUARANTINE", &host.quarantine));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_FILL", &host.fill));
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_COMPRESSIBLE", &host.compressible));
  GPUMEM_TRY(read_number("GPUMEM_HOST_VMM_GRANULARITY", &host.vmm_granularity));
  read_text("GPUMEM_HOST_PEERS", &host.peers);
  read_text("GPUMEM_HOST_MASKED", &host.masked);
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_CONCURRENT", &host.concurrent));
  return request;
}

}  // namespace

Result<uint64_t> Instance::open_default() {
  const uint32_t epoch = platform::process_epoch();
  while (true) {
    if (default_instance.epoch.load(std::memory_order_acquire) == epoch)
      return default_instance.handle.load();
    uint32_t holder = default_instance.opening.load();
    if (holder != epoch && default_instance.opening.compare_exchange_strong(holder, epoch)) break;
    default_instance.opening.wait(epoch);  // another thread of this process opens it
  }
  Cleanup done([] {
    default_instance.opening.store(0);
    default_instance.opening.notify_all();
  });
  if (default_instance.epoch.load(std::memory_order_acquire) == epoch) return default_instance.handle.load();
  auto request = request_from_environment();
  if (!request) return request.error();
  auto handle = open(*request);
  if (!handle) return handle;
  {
    const platform::Look look(platform::thread_record());
    if (Object* const root = handles::look_up(*handle, Type::kInstance, epoch))
      root->instance().is_default_ = true;
  }
  default_instance.handle.store(*handle);
  default_instance.epoch.store(epoch, std::memory_order_release);
  return handle;
}

}  // namespace gpumem::core
