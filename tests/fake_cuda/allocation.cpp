// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The allocation of the driver alone, so that a test which makes its own operator new fail does not reach
// into it. The C++ library linked into the driver has it too, but where GCC links AddressSanitizer, that one
// comes first.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

void* operator new(size_t size) {
  void* const block = std::malloc(std::max<size_t>(size, 1));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new[](size_t size) { return operator new(size); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }
