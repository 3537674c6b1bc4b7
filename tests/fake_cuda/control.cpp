// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Settings, injected faults, violations, and the C interface by which tests steer the fake.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "driver.h"

extern char** environ;

namespace fake {
namespace {

// The list of violations has a lock of its own, which is held across fork so that a child can still add to
// it.
struct Log {
  std::mutex mutex;
  std::vector<std::string> violations;
  std::string report;  // file that every violation is appended to as well
};

Log& log() {
  static Log* const only = new Log;
  return *only;
}

std::atomic<bool> g_forked = false;

// What a call must leave as it was for its thread.
struct Section {
  std::vector<CUcontext> contexts;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

thread_local Section t_section;

std::optional<uint64_t> to_number(const std::string& text) {
  if (text.empty() || text.size() > 19 || text.find_first_not_of("0123456789") != std::string::npos)
    return {};
  // strtoull() needs tables that the C library makes after a program has been bound: see environment().
  uint64_t number = 0;
  for (const char digit : text)
    number = number * 10 + static_cast<uint64_t>(digit - '0');
  return number;
}

std::optional<CUresult> to_result(const std::string& text) {
#define RESULT(name) \
  if (text == #name) return name;
#include "errors.inc"
#undef RESULT
  auto number = to_number(text);
  if (!number || *number > 999) return {};
  return static_cast<CUresult>(*number);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

bool set_version(Driver& d, const std::string& value) {
  const std::pair<const char*, int> known[] = {
      {"11.2", 11020}, {"11.8", 11080}, {"12.2", 12020}, {"12.8", 12080}, {"13.0", 13000}};
  for (const auto& [name, version] : known) {
    if (value == name) return d.version = version, true;
  }
  return false;
}

bool set_peers(Config& config, const std::string& value) {
  std::set<std::pair<int, int>> peers;
  if (value != "all" && value != "none") {
    for (const std::string& link : split(value, ',')) {
      std::vector<std::string> ends = split(link, '>');
      if (ends.size() != 2 || !to_number(ends[0]) || !to_number(ends[1])) return false;
      peers.emplace(static_cast<int>(*to_number(ends[0])), static_cast<int>(*to_number(ends[1])));
    }
  }
  config.all_peers = value == "all";
  config.peers = std::move(peers);
  return true;
}

bool set_rules(Driver& d, const std::string& value) {
  if (value.empty()) return d.rules.clear(), true;
  std::vector<FaultRule> rules;
  for (const std::string& rule : split(value, ',')) {
    std::vector<std::string> parts = split(rule, ':');
    if (parts.size() != 4 || (parts[2] != "once" && parts[2] != "always")) return false;
    auto k = to_number(parts[1]);
    auto code = to_result(parts[3]);
    if (!k || *k == 0 || !code || (parts[0] != "*" && !is_entry_point(parts[0]))) return false;
    rules.push_back({parts[0], *k, parts[2] == "always", *code});
  }
  d.rules.insert(d.rules.end(), rules.begin(), rules.end());
  return true;
}

bool set_sticky(Config& config, const std::string& value) {
  std::vector<std::string> parts = split(value, ':');
  if (parts.size() != 2 || !to_number(parts[0]) || !to_result(parts[1])) return false;
  config.sticky_at = *to_number(parts[0]);
  config.sticky_code = *to_result(parts[1]);
  return true;
}

bool set_attribute(Config& config, const std::string& number, const std::string& value) {
  bool negative = value.starts_with('-');
  auto attribute = to_number(number);
  auto magnitude = to_number(value.substr(negative ? 1 : 0));
  if (!attribute || !magnitude) return false;
  config.attributes[{-1, static_cast<int>(*attribute)}] = static_cast<int>(*magnitude) * (negative ? -1 : 1);
  return true;
}

bool set_option(Driver& d, const std::string& name, const std::string& value) {
  Config& config = d.config;
  const std::string attribute_prefix = "FAKE_CUDA_ATTRIBUTE_";
  auto number = to_number(value);
  auto flag = [&](bool& target) { return number && *number <= 1 ? (target = *number == 1, true) : false; };
  auto count = [&](uint64_t& target) { return number ? (target = *number, true) : false; };
  if (name == "FAKE_CUDA_DEVICES") {
    if (!number || *number > 64 || d.initialized) return false;
    return config.devices = static_cast<int>(*number), true;
  }
  if (name == "FAKE_CUDA_VERSION") return set_version(d, value);
  if (name == "FAKE_CUDA_PEERS") return set_peers(config, value);
  if (name == "FAKE_CUDA_MEMORY") return count(config.memory);
  if (name == "FAKE_CUDA_GRANULARITY") {
    if (!number || *number < kPage || (*number & (*number - 1)) != 0) return false;
    return count(config.granularity);
  }
  if (name == "FAKE_CUDA_GRAPH_MEMORY") return count(config.graph_memory);
  if (name == "FAKE_CUDA_REGISTRATIONS") return count(config.registrations);
  if (name == "FAKE_CUDA_WRITE_COMBINED_DIFFERS") return flag(config.write_combined_differs);
  if (name == "FAKE_CUDA_NEEDS_CONTEXT") return flag(config.needs_context);
  if (name == "FAKE_CUDA_REUSE_STREAMS") return flag(config.reuse_streams);
  if (name == "FAKE_CUDA_NUMA_ADVICE") return flag(config.numa_advice);
  if (name == "FAKE_CUDA_IMEX") return flag(config.imex);
  if (name == "FAKE_CUDA_LEAKS_AT_EXIT") return flag(config.leaks_at_exit);
  if (name == "FAKE_CUDA_DELAY_US")
    return number ? (config.delay_us = static_cast<unsigned>(*number), true) : false;
  if (name == "FAKE_CUDA_POINTER_DELAY_US")
    return number ? (config.pointer_delay_us = static_cast<unsigned>(*number), true) : false;
  if (name == "FAKE_CUDA_INIT_DELAY_US")
    return number ? (config.init_delay_us = static_cast<unsigned>(*number), true) : false;
  if (name == "FAKE_CUDA_INIT") return to_result(value) ? (config.init = *to_result(value), true) : false;
  if (name == "FAKE_CUDA_FAIL") return set_rules(d, value);
  if (name == "FAKE_CUDA_STICKY") return set_sticky(config, value);
  if (name == "FAKE_CUDA_REPORT") {
    std::lock_guard lock(log().mutex);
    return log().report = value, true;
  }
  if (name.starts_with(attribute_prefix)) {
    return set_attribute(config, name.substr(attribute_prefix.size()), value);
  }
  return false;
}

// A program that is bound as a whole at its start (-z now) looks symbols up before the C library sets
// environ.
std::vector<std::string> environment() {
  std::vector<std::string> variables;
  if (environ != nullptr) {
    for (char** variable = environ; *variable != nullptr; ++variable)
      variables.emplace_back(*variable);
    return variables;
  }
  const int file = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
  if (file < 0) return variables;
  std::string text;
  char piece[4096];
  for (ssize_t size; (size = read(file, piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<size_t>(size));
  close(file);
  return split(text, '\0');
}

void report_leaks_at_exit() {
  if (g_forked) return;  // the lock may be held by a thread that the child has not got
  std::unique_lock lock(driver().mutex);
  bool wanted = driver().config.leaks_at_exit;
  lock.unlock();
  if (wanted) fake_cuda_check_leaks();
  fake_cuda_exit_began();
}

const char* const kObjectNames[FAKE_CUDA_OBJECT_COUNT] = {
    "context", "device memory", "managed memory", "pinned memory", "registration", "stream", "event",
    "graph",   "reservation",   "block",          "mapping",       "import",       "module", "memory pool"};

}  // namespace

void violation(const std::string& kind, const std::string& text) {
  std::lock_guard lock(log().mutex);
  std::string line = kind + ": " + text;
  if (!log().report.empty()) {
    int file = open(log().report.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) {
      std::string whole = line + "\n";
      ssize_t written = write(file, whole.data(), whole.size());
      (void)written;
      close(file);
    }
  }
  log().violations.push_back(std::move(line));
}

void read_environment(Driver& d) {
  std::vector<std::string> variables = environment();
  // The report comes first, to have what is wrong with the others.
  std::stable_partition(variables.begin(), variables.end(),
                        [](const std::string& text) { return text.starts_with("FAKE_CUDA_REPORT="); });
  for (const std::string& text : variables) {
    if (!text.starts_with("FAKE_CUDA_")) continue;
    size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    std::string name = text.substr(0, equals);
    if (set_option(d, name, text.substr(equals + 1))) continue;
    violation("bad-setting", text);
    const std::string line =
        "fake_cuda: " + text + " is ignored: no such variable, or not a value that it can have\n";
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    (void)written;
  }
}

CUresult apply_fault_rules(const char* base, const char* symbol) {
  Driver& d = driver();
  CUresult answer = CUDA_SUCCESS;
  for (FaultRule& rule : d.rules) {
    if (rule.function != "*" && rule.function != base && rule.function != symbol) continue;
    if (rule.remaining == 0 && !rule.persistent) continue;
    if (rule.remaining > 0 && --rule.remaining > 0) continue;
    if (answer == CUDA_SUCCESS) answer = rule.code;
  }
  if (answer != CUDA_SUCCESS) ++d.failures;
  return answer;
}

void lose_device(int ordinal, CUresult code) {
  for (auto& device : driver().devices) {
    if (ordinal == -1 || ordinal == device->ordinal) device->sticky = code;
  }
  driver().progress.notify_all();
}

bool in_forked_child() { return g_forked; }

void watch_for_fork_and_exit() {
  static const bool watching = [] {
    pthread_atfork([] { log().mutex.lock(); }, [] { log().mutex.unlock(); },
                   [] {
                     g_forked = true;
                     log().mutex.unlock();
                   });
    std::atexit(report_leaks_at_exit);
    return true;
  }();
  (void)watching;
}

uint64_t live(int object) {
  Driver& d = driver();
  uint64_t sum = 0;
  auto count = [&](int type, uint64_t number) {
    if (object == FAKE_CUDA_ANY || object == type) sum += number;
  };
  for (const auto& [handle, context] : d.contexts.all()) {
    if (context->alive) count(FAKE_CUDA_CONTEXT, context->primary ? context->device->primary_retains : 1);
  }
  for (const auto& [address, memory] : d.memory) {
    if (address != memory->address) continue;
    const int types[] = {FAKE_CUDA_DEVICE_MEMORY, FAKE_CUDA_MANAGED_MEMORY, FAKE_CUDA_PINNED_MEMORY,
                         FAKE_CUDA_REGISTRATION,  FAKE_CUDA_MAPPING,        FAKE_CUDA_IMPORT};
    count(types[static_cast<size_t>(memory->kind)], 1);
  }
  for (const auto& stream : d.streams.all())
    count(FAKE_CUDA_STREAM, stream.second->per_thread ? 0 : 1);
  count(FAKE_CUDA_EVENT, d.events.size());
  count(FAKE_CUDA_GRAPH, d.graphs.size() + d.executables.size());
  count(FAKE_CUDA_MODULE, d.modules.size());
  count(FAKE_CUDA_MEMORY_POOL, d.pools.size());
  count(FAKE_CUDA_RESERVATION, d.reservations.size());
  std::set<const Block*> blocks;
  for (const auto& [handle, block] : d.blocks)
    blocks.insert(block.get());
  for (const auto& [address, memory] : d.memory) {
    if (memory->block) blocks.insert(memory->block.get());
  }
  count(FAKE_CUDA_BLOCK, blocks.size());
  return sum;
}

}  // namespace fake

using namespace fake;

#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

FAKE_CUDA_API void fake_cuda_reset(void) {
  std::unique_lock lock(driver().mutex);
  Driver& d = driver();
  abandon_streams(nullptr);
  std::vector<std::shared_ptr<Stream>> retired = std::move(d.retired);
  d.retired.clear();
  lock.unlock();
  for (const auto& stream : retired)
    stream->worker.join();
  lock.lock();
  std::map<uintptr_t, std::shared_ptr<Memory>> memory = d.memory;
  for (const auto& [address, one] : memory) {
    if (address == one->address) remove_memory(one);
  }
  for (const auto& [address, size] : d.reservations)
    release_addresses(address, size);
  d.reservations.clear();
  d.blocks.clear();
  d.streams.clear();
  d.events.clear();
  d.modules.clear();
  d.pools.clear();
  d.graphs.clear();
  d.executables.clear();
  d.user_objects.clear();
  d.last_destroyed = nullptr;
  d.contexts.clear();
  d.devices.clear();
  d.freed.clear();
  d.observed.clear();
  d.rules.clear();
  d.failures = 0;
  d.calls.assign(d.calls.size(), 0);
  d.all_calls = 0;
  d.initialized = false;
  d.exiting = false;
  d.config = Config();
  d.version = kNewest;
  ++d.generation;
  {
    std::lock_guard log_lock(log().mutex);
    log().violations.clear();
    log().report.clear();
  }
  read_environment(d);
}

FAKE_CUDA_API int fake_cuda_configure(const char* name, const char* value) {
  std::lock_guard lock(driver().mutex);
  return set_option(driver(), name, value) ? 0 : -1;
}

FAKE_CUDA_API void fake_cuda_fail(const char* function, uint64_t k, int persistent, int code) {
  std::lock_guard lock(driver().mutex);
  driver().rules.push_back({function, k, persistent != 0, static_cast<CUresult>(code)});
}

FAKE_CUDA_API uint64_t fake_cuda_failures(void) {
  std::lock_guard lock(driver().mutex);
  return driver().failures;
}

FAKE_CUDA_API uint64_t fake_cuda_call_count(const char* function) {
  std::lock_guard lock(driver().mutex);
  return calls_of(function);
}

FAKE_CUDA_API uint64_t fake_cuda_live(int object) {
  std::lock_guard lock(driver().mutex);
  return live(object);
}

FAKE_CUDA_API void fake_cuda_set_sticky(int device, int code) {
  std::lock_guard lock(driver().mutex);
  lose_device(device, static_cast<CUresult>(code));
}

FAKE_CUDA_API void fake_cuda_set_attribute(int device, int attribute, int value) {
  std::lock_guard lock(driver().mutex);
  driver().config.attributes[{device, attribute}] = value;
}

FAKE_CUDA_API size_t fake_cuda_violations(char* buffer, size_t size) {
  std::lock_guard lock(log().mutex);
  std::string all;
  for (const std::string& line : log().violations)
    all += line + "\n";
  if (buffer != nullptr && size > 0) {
    size_t length = std::min(all.size(), size - 1);
    std::memcpy(buffer, all.data(), length);
    buffer[length] = 0;
  }
  return log().violations.size();
}

FAKE_CUDA_API int fake_cuda_settle(void) { return settle() ? 1 : 0; }

FAKE_CUDA_API void fake_cuda_clear_violations(void) {
  std::lock_guard lock(log().mutex);
  log().violations.clear();
}

FAKE_CUDA_API uint64_t fake_cuda_check_leaks(void) {
  std::lock_guard lock(driver().mutex);
  for (int object = 0; object < FAKE_CUDA_OBJECT_COUNT; ++object) {
    uint64_t number = live(object);
    if (number != 0) violation("leak", std::to_string(number) + " of " + kObjectNames[object]);
  }
  return live(FAKE_CUDA_ANY);
}

FAKE_CUDA_API void fake_cuda_section_begin(void) { t_section = {context_stack(), capture_mode_of_thread()}; }

FAKE_CUDA_API void fake_cuda_section_end(const char* name) {
  if (context_stack() != t_section.contexts) violation("context-changed", name);
  if (capture_mode_of_thread() != t_section.capture_mode) violation("capture-mode-changed", name);
}

FAKE_CUDA_API void fake_cuda_exit_began(void) {
  if (in_forked_child()) return;
  std::lock_guard lock(driver().mutex);
  driver().exiting = true;
}
