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

Result<void> read_transfer_threads(const char* name, uint32_t* out) {
  const char* const text = platform::environment(name);
  if (text != nullptr && std::strcmp(text, "off") == 0) {
    *out = TransferOptions::kOff;
    return {};
  }
  return read_number(name, out);
}

void read_text(const char* name, std::string* out) {
  if (const char* text = platform::environment(name)) *out = text;
}

// The comment of each variable is its row in docs/environment.md.
Result<OpenRequest> request_from_environment() {
  static constexpr std::array<Word, 3> kBackends{
      {{"any", GPUMEM_BACKEND_ANY}, {"cuda", GPUMEM_BACKEND_CUDA}, {"host", GPUMEM_BACKEND_HOST}}};
  static constexpr std::array<Word, 3> kLockModes{
      {{"try", GPUMEM_HOST_LOCK_TRY}, {"require", GPUMEM_HOST_LOCK_REQUIRE}, {"off", GPUMEM_HOST_LOCK_OFF}}};
  OpenRequest request;
  request.name = "default";
  backend::HostOptions& host = request.options.host;
  // GPUMEM_BACKEND | `any`, `cuda`, `host` | `any` | the backend; `any` takes the host backend where no GPU
  // can be used
  GPUMEM_TRY(read_word("GPUMEM_BACKEND", kBackends, "any, cuda or host", &request.backend));
  // GPUMEM_PIN_BUDGET | bytes | no limit | limit on the page-locked bytes that live at once, [including
  // registered ones](choosing.md#how-much-pinned-memory)
  GPUMEM_TRY(read_number("GPUMEM_PIN_BUDGET", &request.pin_budget));
  // GPUMEM_TRANSFER_THREADS | a number, `off` | as many as help | number of threads for each device that copy
  // [ordinary memory](choosing.md#copies-of-ordinary-memory); only the cuda backend has them
  GPUMEM_TRY(read_transfer_threads("GPUMEM_TRANSFER_THREADS", &request.transfer.threads));
  // GPUMEM_TRANSFER_BYTES | bytes | 4 MiB for each thread | limit on the page-locked bytes that these threads
  // use for a device
  GPUMEM_TRY(read_number("GPUMEM_TRANSFER_BYTES", &request.transfer.bytes));
  // GPUMEM_HOST_DEVICES | 1 to 64 | 2 | number of emulated devices
  GPUMEM_TRY(read_number("GPUMEM_HOST_DEVICES", &host.device_count));
  // GPUMEM_HOST_DEVICE_BYTES | bytes, from the granularity to 2^63-1 | 4 GiB | memory of each device; the
  // system's memory is taken only as blocks are allocated
  GPUMEM_TRY(read_number("GPUMEM_HOST_DEVICE_BYTES", &host.device_bytes));
  // GPUMEM_HOST_GRANULARITY | a power of two from 512 to 1 GiB | 512 | unit in which device memory is charged
  GPUMEM_TRY(read_number("GPUMEM_HOST_GRANULARITY", &host.granularity));
  // GPUMEM_HOST_STRICT | on, off | on | [strict mode](host-backend.md#strict-mode)
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_STRICT", &host.strict));
  // GPUMEM_HOST_FILL | on, off | as `strict` | fresh memory is filled with the byte 0xA5
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_FILL", &host.fill));
  // GPUMEM_HOST_QUARANTINE | 1 to 65536 | 64 | number of freed address ranges that stay inaccessible before
  // they are reused
  GPUMEM_TRY(read_number("GPUMEM_HOST_QUARANTINE", &host.quarantine));
  // GPUMEM_HOST_PAGEABLE | on, off | off | devices can access ordinary memory
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_PAGEABLE", &host.pageable));
  // GPUMEM_HOST_SAME_POINTER | on, off | off | registered memory has the same address for CPU and devices
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_SAME_POINTER", &host.same_pointer));
  // GPUMEM_HOST_CONCURRENT | on, off | on | the CPU and devices use [managed memory](managed-memory.md) at
  // the same time; off, as on older GPUs
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_CONCURRENT", &host.concurrent));
  // GPUMEM_HOST_COMPRESSIBLE | on, off | on | physical memory can be compressible
  GPUMEM_TRY(read_toggle("GPUMEM_HOST_COMPRESSIBLE", &host.compressible));
  // GPUMEM_HOST_VMM_GRANULARITY | a power of two from the page size to 1 GiB | 2 MiB | unit of [physical
  // memory and of mappings](virtual-memory.md)
  GPUMEM_TRY(read_number("GPUMEM_HOST_VMM_GRANULARITY", &host.vmm_granularity));
  // GPUMEM_HOST_PEERS | `all`, `none`, a list such as `0>1,1>0` | `all` | links between devices
  read_text("GPUMEM_HOST_PEERS", &host.peers);
  // GPUMEM_HOST_LOCK | `try`, `require`, `off` | `try` | `try`: lock pinned memory if [the
  // limits](host-backend.md#limits-of-the-system) allow it; `require`: fail if they do not; `off`: never lock
  GPUMEM_TRY(read_word("GPUMEM_HOST_LOCK", kLockModes, "try, require or off", &host.lock_mode));
  // GPUMEM_HOST_LOCK_PIECE | bytes, a multiple of the page, up to 2^63-1 | 256 MiB | memory is locked in
  // pieces of this size
  GPUMEM_TRY(read_number("GPUMEM_HOST_LOCK_PIECE", &host.lock_piece));
  // GPUMEM_HOST_REGISTER_MAX | a number | 65500 | number of pieces that can be registered at once
  GPUMEM_TRY(read_number("GPUMEM_HOST_REGISTER_MAX", &host.register_count_max));
  // GPUMEM_HOST_NUMA_NODES | 1 to 64 | those of the machine | number of NUMA nodes to simulate
  GPUMEM_TRY(read_number("GPUMEM_HOST_NUMA_NODES", &host.numa_nodes));
  // GPUMEM_HOST_MASKED | a list of `launch_host_function`, `write_value`, `wait_value`, `register`,
  // `copy_2d`, `fill_2d`, `peer_access`, `vmm` (all of virtual memory management) and `sharing` (all sharing
  // between processes), with commas between | none | entry points to treat as missing
  read_text("GPUMEM_HOST_MASKED", &host.masked);
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
      Instance::of(root->context()).is_default_ = true;
  }
  default_instance.handle.store(*handle);
  default_instance.epoch.store(epoch, std::memory_order_release);
  return handle;
}

}  // namespace gpumem::core
