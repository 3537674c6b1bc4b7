// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Its functions, structures and numbers: https://docs.nvidia.com/deploy/nvml-api/
#include "nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

namespace gpumem::cli {

namespace {

using Status = int;
using GpuHandle = void*;
constexpr Status kSuccess = 0;
constexpr Status kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;

struct MemoryInfo {
  unsigned long long total, free, used;
};

struct ProcessInfo {
  unsigned process;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

class Library {
 public:
  explicit Library(const char* name) : library_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  bool loaded() const { return library_ != nullptr; }
  const std::string& missing() const { return missing_; }

  template <class F>
  void find(F** function, const char* name) {
    if (loaded()) *function = reinterpret_cast<F*>(dlsym(library_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }

 private:
  void* const library_;  // never closed: it may have started threads
  std::string missing_;
};

using ListProcesses = Status(GpuHandle, unsigned*, ProcessInfo*);

struct Functions {
  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  const char* (*error_string)(Status) = nullptr;
  Status (*count)(unsigned*) = nullptr;
  Status (*handle)(unsigned, GpuHandle*) = nullptr;
  Status (*name)(GpuHandle, char*, unsigned) = nullptr;
  Status (*memory)(GpuHandle, MemoryInfo*) = nullptr;
  ListProcesses* compute = nullptr;
  ListProcesses* graphics = nullptr;
};

Status add_processes(ListProcesses* list, GpuHandle handle, Gpu& gpu) {
  std::vector<ProcessInfo> found(16);
  for (;;) {
    auto count = static_cast<unsigned>(found.size());
    const Status status = list(handle, &count, found.data());
    if (status == kInsufficientSize && found.size() < 1U << 20) {
      found.resize(2 * std::max<size_t>(found.size(), count));  // more may come until the next call
      continue;
    }
    if (status != kSuccess) return status;
    found.resize(std::min<size_t>(count, found.size()));
    break;
  }
  // Parts of a GPU are listed one by one.
  std::map<uint64_t, std::optional<uint64_t>> listed;
  for (const ProcessInfo& one : found) {
    std::optional<uint64_t>& bytes = listed.try_emplace(one.process, 0).first->second;
    bytes = bytes && one.bytes != kNotAvailable ? std::optional(*bytes + one.bytes) : std::nullopt;
  }
  // A process that computes and draws is in both lists, with the same bytes.
  for (const auto& [process, bytes] : listed) {
    std::optional<uint64_t>& known = gpu.bytes_by_process[process];
    known = std::max(known, bytes);
  }
  return kSuccess;
}

Status look_at_gpu(const Functions& nvml, unsigned number, Gpus& gpus) {
  GpuHandle handle = nullptr;
  Status status = nvml.handle(number, &handle);
  if (status != kSuccess) return status;
  Gpu gpu;
  gpu.number = number;
  std::array<char, 96> name{};
  status = nvml.name(handle, name.data(), static_cast<unsigned>(name.size()));
  if (status != kSuccess) return status;
  gpu.name = name.data();
  MemoryInfo memory{};
  status = nvml.memory(handle, &memory);
  if (status != kSuccess) return status;
  gpu.total_bytes = memory.total;
  gpu.free_bytes = memory.free;
  for (ListProcesses* const list : {nvml.compute, nvml.graphics}) {
    const Status listed = list == nullptr ? kSuccess : add_processes(list, handle, gpu);
    if (status == kSuccess) status = listed;
  }
  gpus.list.push_back(std::move(gpu));
  return status;
}

}  // namespace

Gpus look_at_gpus() {
  constexpr const char* kName = "libnvidia-ml.so.1";
  Gpus gpus;
  Library library(kName);
  if (!library.loaded()) {
    const char* const reason = dlerror();
    gpus.problem = std::string(kName) + ", which comes with the driver, cannot be loaded: " +
                   (reason != nullptr ? reason : "no reason is given");
    return gpus;
  }
  Functions nvml;
  library.find(&nvml.init, "nvmlInit_v2");
  library.find(&nvml.shutdown, "nvmlShutdown");
  library.find(&nvml.error_string, "nvmlErrorString");
  library.find(&nvml.count, "nvmlDeviceGetCount_v2");
  library.find(&nvml.handle, "nvmlDeviceGetHandleByIndex_v2");
  library.find(&nvml.name, "nvmlDeviceGetName");
  library.find(&nvml.memory, "nvmlDeviceGetMemoryInfo");
  const bool usable = library.missing().empty();
  // Drivers before 510 lack these.
  library.find(&nvml.compute, "nvmlDeviceGetComputeRunningProcesses_v3");
  library.find(&nvml.graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3");
  if (!library.missing().empty())
    gpus.problem = std::string(kName) + " lacks " + library.missing() + "(): update the driver";
  if (!usable) return gpus;
  const auto succeeded = [&](Status status) {
    const char* const text = nvml.error_string(status);
    if (status != kSuccess && gpus.problem.empty())
      gpus.problem = std::string(kName) + ": " + (text != nullptr ? text : std::to_string(status).c_str());
    return status == kSuccess;
  };
  if (!succeeded(nvml.init())) return gpus;
  unsigned count = 0;
  if (succeeded(nvml.count(&count))) {
    for (unsigned number = 0; number < count; ++number)
      (void)succeeded(look_at_gpu(nvml, number, gpus));
  }
  nvml.shutdown();
  return gpus;
}

}  // namespace gpumem::cli
