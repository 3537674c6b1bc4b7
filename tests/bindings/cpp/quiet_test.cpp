// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem.hpp and mr.hpp without exceptions, in one program with files that have them.
#include <gpumem/gpumem.hpp>
#include <gpumem/mr.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#ifdef __cpp_exceptions
#error "compile this with -fno-exceptions"
#endif

namespace {

TEST(CppQuiet, EveryCallFillsInTheError) {
  gpumem::Error error;
  gpumem::InstanceDesc desc;
  desc.backend = -7;
  EXPECT_FALSE(gpumem::open_instance(desc, error));
  EXPECT_EQ(error.status(), GPUMEM_ERROR_INVALID_ARGUMENT);
  desc.backend = GPUMEM_BACKEND_HOST;
  gpumem::Instance instance = gpumem::open_instance(desc, error);
  ASSERT_FALSE(error) << error.what();

  const gpumem::Device device = instance.device(0, error);
  gpumem::MemoryDesc wanted;
  wanted.kind = GPUMEM_KIND_DEVICE;
  wanted.size = 64;
  gpumem::Memory memory = device.create_memory(wanted, error);
  EXPECT_TRUE(memory.elements<int>(error).empty());
  EXPECT_EQ(error.status(), GPUMEM_ERROR_NO_ACCESS);
  instance.fill(memory.device_elements<int>(error), 5, error);
  int last = 0;
  const gpumem::span<int> one(&last, 1);
  instance.copy(one, memory.device_elements<int>(error).last(1), error);
  EXPECT_FALSE(error) << error.what();
  EXPECT_EQ(last, 5);

  const gpumem::Group group = instance.create_group({}, error);
  bool asked = false;
  group.sleep(
      {}, [&asked](uint64_t, uint64_t) { return asked = true; }, error);
  EXPECT_FALSE(error) << error.what();

  instance.close(error);
  EXPECT_EQ(error.status(), GPUMEM_ERROR_BUSY);
  EXPECT_TRUE(instance);
  memory.close(error);
  EXPECT_FALSE(error) << error.what();
}

void lack_memory(bool too_many) {
  gpumem::Error error;
  gpumem::InstanceDesc desc;
  desc.backend = GPUMEM_BACKEND_HOST;
  const gpumem::Instance instance = gpumem::open_instance(desc, error);
  gpumem::PoolDesc wanted;
  wanted.kind = GPUMEM_KIND_PINNED;
  wanted.limit = uint64_t{1} << 20;
  const gpumem::Pool pool = instance.device(0, error).create_pool(wanted, error);
  gpumem::mr::PmrResource resource(pool, error);
  resource.deallocate(resource.allocate(100), 100);
  gpumem::mr::Allocator<int> allocator(pool, error);
  const std::vector<int, gpumem::mr::Allocator<int>> numbers(1000, 7, allocator);
  if (numbers.back() != 7 || pool.info(error).live_count != 1) return;
  std::fputs("before, ", stderr);
  const volatile size_t around = SIZE_MAX / sizeof(int) + 2;
  if (too_many) (void)allocator.allocate(around);
  (void)resource.allocate(size_t{2} << 20);
}

TEST(CppQuiet, AResourceAbortsWithItsMessage) {
  // All of it happens in the child: an instance does not survive a fork.
  EXPECT_DEATH(lack_memory(false), "before, gpumem_pool_alloc_aligned: .*limit");
  EXPECT_DEATH(lack_memory(true), "before, gpumem::mr::Allocator: .*SIZE_MAX");
}

}  // namespace
