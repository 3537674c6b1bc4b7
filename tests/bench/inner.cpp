// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Opens what measures parts of gpumem that have no C interface: a library beside this program, in the build
// only.
#include <dlfcn.h>

#include <filesystem>

#include "fence.h"
#include "pageable.h"

namespace bench {

void* inner_function(const char* name) {
  static void* const library = [] {
    const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    return dlopen((folder / "libbench_fence.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  return library == nullptr ? nullptr : dlsym(library, name);
}

std::unique_ptr<FenceBench> open_fence_bench(bool cuda) {
  const auto open = reinterpret_cast<FenceBench* (*)(bool)>(inner_function("gpumem_bench_open_fence"));
  return std::unique_ptr<FenceBench>(open == nullptr ? nullptr : open(cuda));
}

std::unique_ptr<TransferBench> open_transfer_bench(uint64_t most) {
  const auto open =
      reinterpret_cast<TransferBench* (*)(uint64_t)>(inner_function("gpumem_bench_open_transfer"));
  return std::unique_ptr<TransferBench>(open == nullptr ? nullptr : open(most));
}

}  // namespace bench
