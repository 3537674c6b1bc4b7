// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A program of C++ that links the library.
#include <gpumem/gpumem.hpp>

#include <cstdio>
#include <vector>

int main() {
  gpumem::InstanceDesc desc;
  desc.backend = GPUMEM_BACKEND_HOST;
  const gpumem::Instance instance = gpumem::open_instance(desc);
  gpumem::MemoryDesc wanted;
  wanted.kind = GPUMEM_KIND_DEVICE;
  wanted.size = 64;
  const gpumem::Memory memory = instance.device(0).create_memory(wanted);
  instance.fill(memory.device_elements<int>(), 5);
  std::vector<int> numbers(16);
  instance.copy(numbers, memory.device_elements<int>());
  if (numbers != std::vector<int>(16, 5)) return 1;
  std::printf("gpumem %s: round trip good\n", gpumem::version_text());
  return 0;
}
